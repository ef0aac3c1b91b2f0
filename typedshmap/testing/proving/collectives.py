"""What collectives make of the parts that the shards hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ... import _jax
from .moving import moved
from .values import Affine, GlobalValue, NotKnown, Sharded
from .walk import PrimitiveRule, Walk, valid


def _names(walk: Walk, eqn: Any) -> list[str]:
    if eqn.params.get("axis_index_groups") is not None:
        raise NotKnown("it is among groups of shards")
    return walk.longer(_jax.jaxpr.named_axes(eqn))


def _all_reduce(combined_by: str) -> PrimitiveRule:
    def rule(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
        axes = _names(walk, eqn)
        return [_reduced(walk, each, axes, combined_by) for each in operands] if axes else operands

    return rule


def _reduced(walk: Walk, value: GlobalValue, axes: Sequence[str], combined_by: str) -> Sharded:
    found = walk.settled(value)
    over = found.partial.intersection(axes)
    if any(axis in axes for dim in found.dims for axis in dim or ()):
        raise NotKnown("it reduces over an axis that shards a dim")
    if found.partial and found.combined_by != combined_by:
        raise NotKnown("it reduces parts in another way")
    times = prod(walk.sizes[axis] for axis in axes if axis not in over) if combined_by == "sum" else 1
    left = found.partial - over
    return replace(found, factor=found.factor * times, partial=left, combined_by=found.combined_by if left else "")


def _all_gather(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    axes, dim, made = tuple(_names(walk, eqn)), eqn.params["all_gather_dimension"], list[GlobalValue]()
    for each in operands:
        found = walk.settled(each)
        if found.partial.intersection(axes):
            raise NotKnown("it gathers what is not reduced")
        dims = list(found.dims)
        if not eqn.params["tiled"]:
            if any(axis in axes for other in dims for axis in other or ()):
                raise NotKnown("it stacks parts of the whole")
            insert = lambda _, dims=dims: [*dims[:dim], None, *dims[dim:]]  # noqa: E731
            made.append(moved(walk, found, "broadcast", ("stack", dim), insert))
            continue
        own = dims[dim] or ()
        if axes and dims[dim] is not None:
            if own[len(own) - len(axes) :] != axes:
                raise NotKnown("it gathers a dim that is not sharded so")
            dims[dim] = own[: len(own) - len(axes)]
        made.append(valid(found.with_dims(dims)))
        if any(axis in axes for other in dims for axis in other or ()):
            raise NotKnown("it gathers parts of another dim")
    return made


def _reduce_scatter(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    axes, dim = tuple(_names(walk, eqn)), eqn.params["scatter_dimension"]
    found = _reduced(walk, operands[0], axes, "sum")
    if not eqn.params["tiled"]:
        raise NotKnown("it drops the dim that it scatters")
    if not axes or found.dims[dim] is None:
        return [found]
    dims = [*found.dims[:dim], (*(found.dims[dim] or ()), *axes), *found.dims[dim + 1 :]]
    return [valid(found.with_dims(dims))]


def _all_to_all(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    axes, split, to = tuple(_names(walk, eqn)), eqn.params["split_axis"], eqn.params["concat_axis"]
    found = walk.settled(operands[0])
    if not eqn.params["tiled"]:
        raise NotKnown("it drops the dim that it splits")
    if not axes:
        return [found]
    if found.partial.intersection(axes) or found.dims[split] is None or found.dims[to] is None:
        raise NotKnown("it exchanges what is no part of the whole")
    dims, own = list(found.dims), found.dims[to] or ()
    if own[len(own) - len(axes) :] != axes:
        raise NotKnown("it puts together parts of another dim")
    dims[to] = own[: len(own) - len(axes)]
    dims[split] = (*(dims[split] or ()), *axes)
    return [valid(found.with_dims(dims))]


def _ppermute(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    axes = _names(walk, eqn)
    if axes and any(walk.settled(each).axes.intersection(axes) for each in operands):
        raise NotKnown("it sends parts of the whole to other shards")
    count = prod(walk.sizes[axis] for axis in axes)
    if len(eqn.params["perm"]) < count:
        raise NotKnown("it gives some shards zeros")
    return operands


def _axis_index(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    names, indices, step = list(_jax.jaxpr.named_axes(eqn)), dict[str, int](), 1
    for axis in reversed(names):
        if walk.sizes.get(axis, 1) > 1:
            indices[axis] = step
            step *= walk.sizes[axis]
    return [Affine((), 0, {}, indices)]


def _reshard(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    found = walk.settled(operands[0])
    if not found.partial:
        return [found]
    sharding = getattr(eqn.outvars[0].aval, "sharding", None)
    left = frozenset(getattr(getattr(sharding, "spec", None), "unreduced", ()))
    return [replace(found, partial=left & found.partial, combined_by=found.combined_by if left & found.partial else "")]


COLLECTIVE_RULES: dict[str, PrimitiveRule] = {
    **dict.fromkeys(("psum", "psum_invariant", "unreduced_psum"), _all_reduce("sum")),
    **dict.fromkeys(("pmax", "pmax_invariant", "unreduced_pmax"), _all_reduce("max")),
    **dict.fromkeys(("pmin", "pmin_invariant", "unreduced_pmin"), _all_reduce("min")),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), _all_gather),
    **dict.fromkeys(("reduce_scatter", "unreduced_reduce_scatter"), _reduce_scatter),
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "axis_index": _axis_index,
    "reshard": _reshard,
}
