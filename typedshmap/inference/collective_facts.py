"""Transfer rules of collectives: which axes become invarying, and which dims are gathered and scattered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any

from .. import _jax
from ..notation.layout import NO_AXES
from .facts import FactInterpreter
from .indices import IndexFact
from .lattice import UNKNOWN, UNSHARDED, AxisSet, DimFact, Groups, ShardingFact, merge_parts, parts_of


def awaited_axes(interpreter: FactInterpreter, eqn: Any) -> AxisSet:
    """The axes whose shards must all reach an equation; none if it does not communicate.

    XLA merges the permutes of all groups of axes into one operation, and on CPUs waits for all of them. The groups of
    ``axis_index_groups`` are not followed.
    """
    if eqn.primitive.name == "reshard_shards":
        awaited = eqn.params["awaited"]
        return interpreter.split_axes(interpreter.axes if awaited is None else awaited & interpreter.axes)
    operation = _jax.jaxpr.collective_operation(eqn)
    if operation is None or eqn.params.get("axis_index_groups") is not None:
        return NO_AXES
    axes = interpreter.split_axes(frozenset(_jax.jaxpr.named_axes(eqn, interpreter.axes)))
    return interpreter.split_axes(interpreter.axes) if axes and operation == "collective-permute" else axes


def _varying_after_pick(fact: ShardingFact, axes: tuple[str, ...]) -> AxisSet:
    """The varying axes of a value that may come from any shard along some axes: all of these if it varied over one."""
    varying = fact.varying | fact.unreduced
    return varying if varying.isdisjoint(axes) else varying.union(axes)


def _drop_axes(dim: DimFact, axes: AxisSet) -> DimFact:
    """A dim after a reduction over some axes, or a broadcast from one shard."""
    if not axes.isdisjoint(dim.woven):
        dim = dim._replace(woven=tuple(axis for axis in dim.woven if axis not in axes))
    if axes.isdisjoint(dim.known_axes):
        return UNSHARDED if dim.axes == () and not (dim.woven or dim.apart or dim.gathered) else dim
    return UNSHARDED if axes.issuperset(dim.known_axes) else UNKNOWN


def _equal_groups(before: Groups, groups: Groups) -> Groups:
    """The groups of shards that have equal totals, if a value that is equal within some groups is summed over others.

    Two totals are equal if both groups have as many shards of each earlier group.
    """
    place = {shard: at for at, group in enumerate(before) for shard in group}
    linked: list[list[tuple[int, ...]]] = []
    for group in groups:
        met = {place.get(shard, -1 - shard) for shard in group}
        near = [some for some in linked if not met.isdisjoint(place.get(s, -1 - s) for s in chain(*some))]
        linked = [some for some in linked if some not in near] + [[group, *chain(*near)]]
    equal: list[tuple[int, ...]] = []
    for some in linked:
        addends = {tuple(sorted(place.get(shard, -1 - shard) for shard in group)) for group in some}
        equal += [tuple(sorted(chain(*some)))] if len(addends) == 1 else some
    return tuple(sorted(equal))


@lru_cache(maxsize=1024)
def _grouped_fact(fact: ShardingFact, sizes: tuple[tuple[str, int], ...], groups: Groups) -> ShardingFact:
    """The fact of a total over groups of shards, which are numbered over some axes together."""
    axes, counts = tuple(axis for axis, _ in sizes), [size for _, size in sizes]
    varying = _varying_after_pick(fact, axes)
    if sorted(chain(*groups)) != list(range(prod(counts))):
        return ShardingFact(varying, NO_AXES, fact.dims)
    before = fact.groups[1] if fact.groups is not None and fact.groups[0] == axes else ()
    equal = _equal_groups(before, groups)
    number = {shard: at for at, group in enumerate(equal) for shard in group}
    strides = {axis: prod(counts[at + 1 :]) for at, axis in enumerate(axes)}
    summed = frozenset(
        axis
        for axis, size in sizes
        if all(number[shard] == number[shard - shard // strides[axis] % size * strides[axis]] for shard in number)
    )
    dims = tuple(_drop_axes(dim, summed) for dim in fact.dims)
    return ShardingFact(varying - summed, NO_AXES, dims, groups=(axes, equal))


def total(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A sum, maximum or minimum over all shards, or a broadcast from one shard: the same on every shard."""
    axes, named = _jax.jaxpr.named_axes(eqn, interpreter.axes), tuple(eqn.params.get("axes", ()))
    is_sum, groups = "sum" in eqn.primitive.name, eqn.params.get("axis_index_groups")
    if groups is not None and len(groups) > 1:
        sizes = tuple((axis, interpreter.sizes[axis]) for axis in axes)
        if eqn.primitive.name == "pbroadcast":  # one of each group is chosen
            facts = [fact._replace(groups=None) for fact in facts]
        return [_grouped_fact(fact, sizes, tuple(map(tuple, groups))) for fact in facts]
    return [_summed_fact(fact, axes, named, is_sum) for fact in facts]


@lru_cache(maxsize=4096)
def _summed_fact(fact: ShardingFact, axes: tuple[str, ...], named: tuple[Any, ...], is_sum: bool) -> ShardingFact:
    over = frozenset(axes)
    # Over dims as well, if ``jax.vmap`` has named an axis.
    gone = {axis % len(fact.dims) for axis in named if isinstance(axis, int)}
    if gone:
        fact = fact.with_dims(dim for at, dim in enumerate(fact.dims) if at not in gone)
    if not is_sum and (fact.unreduced or fact.due):  # a maximum over some axes is not an addend over the others
        fact = ShardingFact(fact.varying | fact.unreduced, NO_AXES, fact.dims)
    dims = tuple(_drop_axes(dim, over) for dim in fact.dims)
    return ShardingFact(fact.varying - over, fact.unreduced - over, dims, fact.due - over, fact.is_zero)


def _is_one_group(params: Mapping[str, Any]) -> bool:
    """Whether a collective is among all shards, in their order."""
    groups = params.get("axis_index_groups")
    return groups is None or (len(groups) == 1 and list(groups[0]) == sorted(groups[0]))


def gather(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Shards concatenated, or stacked: the same on every shard."""
    params, axes = eqn.params, _jax.jaxpr.named_axes(eqn, interpreter.axes)
    is_grouped = not _is_one_group(params)
    at, size, shards = params["all_gather_dimension"], 1, prod([interpreter.sizes[axis] for axis in axes])
    if params["tiled"]:
        size = eqn.invars[0].aval.shape[at]
    return [_gathered_fact(facts[0], axes, at, params["tiled"], is_grouped, size, shards)]


@lru_cache(maxsize=4096)
def _gathered_fact(
    fact: ShardingFact, axes: tuple[str, ...], at: int, is_tiled: bool, is_grouped: bool, size: int, shards: int
) -> ShardingFact:
    dims = [_drop_axes(dim, frozenset(axes)) for dim in fact.dims]
    if is_tiled:
        dims[at] = gather_dim(fact.dims[at], axes, size, shards) if not is_grouped else UNKNOWN
    else:
        sharded = [which for which, dim in enumerate(fact.dims) if dim.axes and set(axes) <= set(dim.axes)]
        for which in () if is_grouped else sharded:
            dim = fact.dims[which]
            kept = tuple(axis for axis in dim.axes or () if axis not in axes)
            dims[which] = DimFact(kept, dim.from_claim, apart=(*(a for a in dim.axes or () if a in axes), *dim.apart))
        dims.insert(at, UNSHARDED._replace(gathered=axes) if sharded and not is_grouped else UNSHARDED)
    if is_grouped:
        return ShardingFact(_varying_after_pick(fact, axes), NO_AXES, tuple(dims))
    gone = frozenset(axes)
    return ShardingFact(fact.varying - gone, fact.unreduced - gone, tuple(dims), fact.due - gone)


def gather_dim(dim: DimFact, axes: tuple[str, ...], size: int, shards: int) -> DimFact:
    """A dim after a gather along it.

    Args:
      dim: the dim.
      axes: the axes of the gather.
      size: its size on a shard.
      shards: the number of shards.
    """
    count, known = len(axes), dim.known_axes
    if not set(axes).isdisjoint(dim.woven) and not dim.axes:
        return DimFact(None, gathered=(*axes, *dim.gathered), is_movable=True)
    if not axes or dim.axes == ():
        return dim
    if dim.axes and dim.axes[-count:] == axes:
        return dim.with_axes(dim.axes[:-count])
    if not set(axes) <= set(known) or (dim.parts and dim.from_claim) or (dim.is_movable and not dim.parts):
        return UNKNOWN
    (major, first), *rest = parts_of(dim, size) or (((), 1),)
    start = major.index(axes[0]) if axes[0] in major else 0
    if major[start : start + count] == axes:  # these shards do not follow each other in the dim
        merged = merge_parts(((major[:start], shards), (major[start + count :], first), *rest))
        return merged._replace(from_claim=dim.from_claim, is_movable=dim.is_movable)
    kept = tuple(axis for axis in known if axis not in axes)
    parts = ((kept, size),) if kept else ()
    return DimFact(None, dim.from_claim, (*axes, *dim.gathered), dim.is_movable, parts)


def scatter(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A sum over all shards; each shard keeps a part."""
    params, axes = eqn.params, _jax.jaxpr.named_axes(eqn, interpreter.axes)
    is_grouped = not _is_one_group(params)
    return [_scattered_fact(facts[0], axes, params["scatter_dimension"], params["tiled"], is_grouped)]


@lru_cache(maxsize=4096)
def _scattered_fact(
    fact: ShardingFact, axes: tuple[str, ...], at: int, is_tiled: bool, is_grouped: bool
) -> ShardingFact:
    summed, before = frozenset(axes), fact.dims[at]
    dims = [_drop_axes(dim, summed) for dim in fact.dims]
    if not is_tiled:
        del dims[at]
    elif is_grouped or before.axes is None or not summed.isdisjoint(before.axes):
        dims[at] = UNKNOWN
    else:
        dims[at] = before.with_axes((*before.axes, *axes))
    return _mixed_fact(fact, summed, tuple(dims))


def _mixed_fact(fact: ShardingFact, axes: AxisSet, dims: tuple[DimFact, ...]) -> ShardingFact:
    """The fact of a value that varies over the axes of its collective."""
    return ShardingFact(fact.varying | axes, fact.unreduced - axes, dims, fact.due - axes)


def exchange(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """One dim is gathered, another is sharded."""
    fact, axes, params = facts[0], _jax.jaxpr.named_axes(eqn, interpreter.axes), eqn.params
    to, at = params["split_axis"], params["concat_axis"]
    rank, count = len(eqn.outvars[0].aval.shape), len(axes)
    if not params["tiled"] or to == at or not _is_one_group(params) or len(fact.dims) != rank:
        return [_mixed_fact(fact, frozenset(axes), (UNKNOWN,) * rank)]
    dims = [_drop_axes(dim, frozenset(axes)) for dim in fact.dims]
    before, after = fact.dims[at], fact.dims[to]
    if after.axes is not None and {*before.known_axes, *before.woven}.issuperset(axes):
        shards = prod([interpreter.sizes[axis] for axis in axes])
        dims[at] = gather_dim(before, axes, eqn.invars[0].aval.shape[at], shards)
        dims[to] = after.with_axes((*after.axes, *axes)) if set(axes).isdisjoint(after.axes) else UNKNOWN
    elif before == UNSHARDED and after.axes and after.axes[-count:] == axes:
        # Each shard's part of a dim is split again, and the pieces are concatenated along the other dim.
        dims[at], dims[to] = UNSHARDED, after
    else:
        dims[at] = dims[to] = UNKNOWN
    return [_mixed_fact(fact, frozenset(axes), tuple(dims))]


def permute(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A permutation of shards: an invarying value stays so if every shard receives one.

    Over several axes at once, a dim may become sharded over them in another order.
    """
    fact, axes = facts[0], _jax.jaxpr.named_axes(eqn, interpreter.axes)
    varying = fact.varying | fact.unreduced
    if not varying.issuperset(axes):
        # Indices count in the mesh's order.
        sizes = {axis: size for axis, size in interpreter.sizes.items() if axis in axes}
        varying |= _permuted_axes(eqn.params["perm"], sizes, varying)
    dims, sent = list(fact.dims), frozenset(axes)
    for at, dim in enumerate(dims):
        if not sent.isdisjoint(dim.known_axes):
            dims[at] = UNKNOWN if len(axes) > 1 else dim._replace(is_sent=True)
    return [_mixed_fact(fact, varying & (fact.varying | sent), tuple(dims))]


def _permuted_axes(perm: Any, sizes: Mapping[str, int], varying: AxisSet) -> AxisSet:
    """The axes along which shards receive different values, or some shards receive none."""
    minor = list(sizes.values())
    strides = {axis: prod(minor[at + 1 :]) for at, axis in enumerate(sizes)}
    # Each shard's source by its indices along the axes over which it varies.
    sources: dict[int, object] = {
        to: tuple(at // strides[axis] % sizes[axis] for axis in sizes if axis in varying) for at, to in perm
    }
    return frozenset(
        axis
        for axis, stride in strides.items()
        if any(sources.get(at) != sources.get(at - at // stride % sizes[axis] * stride) for at in range(prod(minor)))
    )


def reshard(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The library's own ``reshard``, with the layouts before and after it."""
    source, target, fact = eqn.params["source"], eqn.params["target"], facts[0]
    gone = (source.sharded | source.unreduced) - target.sharded - target.unreduced
    varying = ((fact.varying | fact.unreduced) - gone) | (target.sharded & interpreter.axes)
    unreduced = target.unreduced & varying
    lead = fact.dims[: len(fact.dims) - len(target.dim_axes)]
    return [
        ShardingFact(varying - unreduced, unreduced, (*lead, *map(DimFact, target.over(interpreter.axes).dim_axes)))
    ]


def axis_index(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A shard's own index."""
    axes, named = _jax.jaxpr.named_axes(eqn, interpreter.axes), eqn.params["axis_name"]
    index = IndexFact(((axes[0], 1),)) if named in (axes[:1], *axes) else None
    return [ShardingFact(frozenset(axes), NO_AXES, (), number=index)]


def cast_unreduced(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A varying value, typed as unreduced."""
    axes = frozenset(_jax.jaxpr.named_axes(eqn, interpreter.axes))
    return [
        ShardingFact(fact.varying - axes, fact.unreduced | (fact.varying & axes), fact.dims, fact.due - axes)
        for fact in facts
    ]
