"""Collectives: what they make equal, and which dims they gather, scatter and exchange."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

from ..facts import NONE, UNKNOWN, WHOLE, Dim, Fact, Names
from ..reader import Reader


def _axes(eqn: Any, reader: Reader) -> tuple[str, ...]:
    """The mesh axes of a collective that this region made manual, in the order in which it names them."""
    names = eqn.params.get("axis_name", eqn.params.get("axes", ()))
    return _manual(tuple(names) if isinstance(names, (tuple, list)) else (names,), reader.axes)


@lru_cache(maxsize=1024)
def _manual(names: tuple[Any, ...], axes: Names) -> tuple[str, ...]:
    return tuple(name for name in names if isinstance(name, str) and name in axes)


def _is_grouped(eqn: Any) -> bool:
    return eqn.params.get("axis_index_groups") is not None


def _mixed(fact: Fact, axes: tuple[str, ...]) -> Names:
    """Where shards may differ that were picked out of all along some axes, as one: over all of these if over any."""
    varying = fact.varying | fact.owed
    return varying if varying.isdisjoint(axes) else varying.union(axes)


def _without(dim: Dim, axes: Names) -> Dim:
    """A dim after its shards over some axes were added, or after one of them was chosen."""
    if not dim.axes or axes.isdisjoint(dim.axes):
        return dim
    return WHOLE if axes.issuperset(dim.axes) else UNKNOWN


def total(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A sum, maximum or minimum over all shards, or one of them: equal on all of them."""
    axes, named, is_sum = _axes(eqn, reader), tuple(eqn.params.get("axes", ())), "sum" in eqn.primitive.name
    return [_total(fact, axes, named, is_sum, _is_grouped(eqn)) for fact in facts]


@lru_cache(maxsize=4096)
def _total(fact: Fact, axes: tuple[str, ...], named: tuple[Any, ...], is_sum: bool, is_grouped: bool) -> Fact:
    fact, over = _over_dims(named, fact), frozenset(axes)
    if is_grouped:
        return Fact(_mixed(fact, axes), NONE, fact.dims)
    if not is_sum and fact.owed:  # a maximum over some axes makes that over the others nothing is owed any more
        fact = Fact(fact.varying | fact.owed, NONE, fact.dims)
    return Fact(fact.varying - over, fact.owed - over, tuple(_without(dim, over) for dim in fact.dims))


def _over_dims(axes: Any, fact: Fact) -> Fact:
    """A fact of a sum that goes over dims, too, as one does over an axis that ``jax.vmap`` named."""
    gone = {axis % len(fact.dims) for axis in axes if isinstance(axis, int)}
    return fact.lying(dim for at, dim in enumerate(fact.dims) if at not in gone) if gone else fact


def gather(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """Shards put side by side: equal on all of them."""
    at, is_tiled = eqn.params["all_gather_dimension"], eqn.params["tiled"]
    return [_gather(facts[0], _axes(eqn, reader), at, is_tiled, _is_grouped(eqn))]


@lru_cache(maxsize=4096)
def _gather(fact: Fact, axes: tuple[str, ...], at: int, is_tiled: bool, is_grouped: bool) -> Fact:
    dims = [_without(dim, frozenset(axes)) for dim in fact.dims]
    if is_tiled:
        dims[at] = gathered(fact.dims[at], axes) if not is_grouped else UNKNOWN
    else:
        dims.insert(at, WHOLE)
    varying = _mixed(fact, axes) if is_grouped else (fact.varying | fact.owed) - frozenset(axes)
    return Fact(varying, NONE, tuple(dims))


def gathered(dim: Dim, axes: tuple[str, ...]) -> Dim:
    """A dim after a gather along it."""
    if dim.axes is None or not axes:
        return dim
    count = len(axes)
    if dim.axes[-count:] == axes:
        return dim.over(dim.axes[:-count])
    if sorted(dim.axes[-count:]) == sorted(axes):
        return Dim(None, gathered=axes)
    return WHOLE if not dim.axes else UNKNOWN


def scatter(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A sum over all shards, of which each keeps a part."""
    at, is_tiled = eqn.params["scatter_dimension"], eqn.params["tiled"]
    return [_scatter(facts[0], _axes(eqn, reader), at, is_tiled, _is_grouped(eqn))]


@lru_cache(maxsize=4096)
def _scatter(fact: Fact, axes: tuple[str, ...], at: int, is_tiled: bool, is_grouped: bool) -> Fact:
    summed, before = frozenset(axes), fact.dims[at]
    dims = [_without(dim, summed) for dim in fact.dims]
    is_plain = is_tiled and not is_grouped and before.axes is not None
    if not is_tiled:
        del dims[at]
    elif is_plain and summed.isdisjoint(before.axes or ()):
        dims[at] = before.over((*(before.axes or ()), *axes))
    else:
        dims[at] = UNKNOWN
    return Fact(fact.varying | fact.owed | summed, NONE, tuple(dims))


def exchange(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """One dim is put together, another is split."""
    fact, axes, params = facts[0], _axes(eqn, reader), eqn.params
    to, at = params["split_axis"], params["concat_axis"]
    rank = len(eqn.outvars[0].aval.shape)
    varying = fact.varying | fact.owed | frozenset(axes)
    if not params["tiled"] or to == at or _is_grouped(eqn) or len(fact.dims) != rank:
        return [Fact(varying, NONE, (UNKNOWN,) * rank)]
    dims = [_without(dim, frozenset(axes)) for dim in fact.dims]
    before, after = fact.dims[at], fact.dims[to]
    is_known = before.axes is not None and after.axes is not None and before.axes[-len(axes) :] == axes
    dims[at] = before.over((before.axes or ())[: -len(axes)]) if is_known else UNKNOWN
    dims[to] = after.over((*(after.axes or ()), *axes)) if is_known else UNKNOWN
    return [Fact(varying, NONE, tuple(dims))]


def permute(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """Shards sent on: what is equal on all of them stays so where every one receives.

    Along several axes at once a dim may come to be split over them in another order.
    """
    fact, axes = facts[0], _axes(eqn, reader)
    varying = fact.varying | fact.owed
    sizes = {axis: size for axis, size in reader.sizes.items() if axis in axes}  # places count in the mesh's order
    if not varying.issuperset(axes):
        varying |= _parted(eqn.params["perm"], sizes, varying)
    dims = fact.dims
    if len(axes) > 1:
        dims = tuple(dim if dim.axes is None or set(axes).isdisjoint(dim.axes) else UNKNOWN for dim in dims)
    return [Fact(varying, NONE, dims)]


def _parted(perm: Any, sizes: Mapping[str, int], varying: Names) -> Names:
    """The axes along which what is sent on comes from shards that differ, or to some and not to others."""
    sources: dict[int, object] = {to: _class_of(at, sizes, varying) for at, to in perm}
    count, stride, found = prod(sizes.values()), prod(sizes.values()), set[str]()
    for axis, size in sizes.items():
        stride //= size
        if any(sources.get(at) != sources.get(at - at // stride % size * stride) for at in range(count)):
            found.add(axis)
    return frozenset(found)


def _class_of(place: int, sizes: Mapping[str, int], varying: Names) -> tuple[int, ...]:
    """Where a shard stands along the axes over which it differs."""
    found: list[int] = []
    for axis, size in reversed(tuple(sizes.items())):
        if axis in varying:
            found.append(place % size)
        place //= size
    return tuple(found)


def resharded(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """This library's own ``reshard``, whose plan says where the value came from and where it went."""
    source, target, fact = eqn.params["source"], eqn.params["target"], facts[0]
    gone = (source.sharded | source.owed) - target.sharded - target.owed
    varying = ((fact.varying | fact.owed) - gone) | (target.sharded & reader.axes)
    owed = target.owed & varying
    lead = fact.dims[: len(fact.dims) - len(target.parts)]
    dims = (Dim(tuple(axis for axis in axes if axis in reader.axes)) for axes in target.parts)
    return [Fact(varying - owed, owed, (*lead, *dims))]


def index(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A shard's own place."""
    return [Fact(frozenset(_axes(eqn, reader)), NONE, ())]


def owe(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """What varies, typed as an addend."""
    axes = frozenset(_axes(eqn, reader))
    return [Fact(fact.varying - axes, fact.owed | (fact.varying & axes), fact.dims) for fact in facts]


RULES = {
    **dict.fromkeys(("psum", "psum2", "psum_invariant", "unreduced_psum"), total),
    **dict.fromkeys(("pmax", "pmin", "unreduced_pmax", "unreduced_pmin", "pbroadcast"), total),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), gather),
    **dict.fromkeys(("reduce_scatter", "unreduced_reduce_scatter"), scatter),
    "all_to_all": exchange,
    "ppermute": permute,
    "axis_index": index,
    "reshard_shards": resharded,
    **dict.fromkeys(("vary_unreduced_cast", "vary_unreduced_cast_p"), owe),
}
