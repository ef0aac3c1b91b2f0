"""What collectives make of the parts that the shards hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from ... import _jax
from . import neighbours
from .moving import moved
from .values import Affine, GlobalValue, NotKnown, Sharded
from .walk import PrimitiveRule, Walk, operand_shape


def _names(walk: Walk, eqn: Any) -> list[str]:
    if eqn.params.get("axis_index_groups") is not None:
        raise NotKnown("it is among groups of shards")
    return walk.longer(_jax.jaxpr.named_axes(eqn))


def _all_reduce(combined_by: str) -> PrimitiveRule:
    def rule(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
        axes = _names(walk, eqn)
        return [_reduced(walk, operand, axes, combined_by) for operand in operands] if axes else operands

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
        made.append(found.with_dims(dims))
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
    return [found.with_dims([*found.dims[:dim], (*(found.dims[dim] or ()), *axes), *found.dims[dim + 1 :]])]


def _all_to_all(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    axes, split, to = tuple(_names(walk, eqn)), eqn.params["split_axis"], eqn.params["concat_axis"]
    found = walk.settled(operands[0])
    if not eqn.params["tiled"]:
        raise NotKnown("it drops the dim that it splits")
    if not axes:
        return [found]
    if split == to:
        raise NotKnown("it exchanges the parts of a dim")
    dims, own = list(found.dims), found.dims[to]
    if found.partial.intersection(axes):
        raise NotKnown("it exchanges what is not reduced")
    if own is None and any(axis in axes for dim in dims for axis in dim or ()):
        raise NotKnown("it exchanges parts of another dim")
    if own is not None and own[len(own) - len(axes) :] != axes:
        raise NotKnown("it puts together parts of another dim")
    dims[to] = None if own is None else own[: len(own) - len(axes)]
    dims[split] = None if dims[split] is None else (*(dims[split] or ()), *axes)
    return [found.with_dims(dims)]


def _ppermute(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    axes, perm = _names(walk, eqn), eqn.params["perm"]
    if not axes:  # to the shard itself, or to nobody
        zeros = [walk.number(Fraction(0), (None,) * len(operand_shape(eqn, at))) for at in range(len(operands))]
        return operands if perm else zeros
    return [neighbours.sent(walk, each, operand_shape(eqn, at), axes, perm) for at, each in enumerate(operands)]


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
    if found.is_extreme:
        raise NotKnown("it reduces parts in another way")
    sharding = getattr(eqn.outvars[0].aval, "sharding", None)
    left = frozenset(getattr(getattr(sharding, "spec", None), "unreduced", ()))
    return [replace(found, partial=left & found.partial, combined_by=found.combined_by if left & found.partial else "")]


def _reshard_shards(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """This library's own ``reshard``: its operand is to be laid out as that says."""
    source, target, lead = (eqn.params[name] for name in ("source", "target", "lead"))
    found, left = walk.settled(operands[0]), frozenset(walk.longer(list(target.unreduced)))
    dims = list(found.dims)
    for dim, (before, after) in enumerate(zip(source.dim_axes, target.dim_axes, strict=True), lead):
        if dims[dim] is not None and dims[dim] != tuple(walk.longer(before)):
            raise NotKnown("its operand is not sharded as it says")
        dims[dim] = None if dims[dim] is None else tuple(walk.longer(after))
    if found.partial != frozenset(walk.longer(list(source.unreduced))) or not left <= found.partial:
        raise NotKnown("its operand is not reduced as it says")
    if found.combined_by not in ("", "sum"):
        raise NotKnown("it reduces parts in another way")
    return [replace(found, dims=tuple(dims), partial=left, combined_by="sum" if left else "")]


_BY_FUNCTION: dict[str, PrimitiveRule] = {
    "psum": _all_reduce("sum"),
    "pmax": _all_reduce("max"),
    "pmin": _all_reduce("min"),
    "all_gather": _all_gather,
    "psum_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
}
COLLECTIVE_RULES: dict[str, PrimitiveRule] = {
    **{
        name: _BY_FUNCTION[found.function]
        for name, found in _jax.primitives.PRIMITIVES.items()
        if found.function in _BY_FUNCTION and not name.endswith("_start")
    },
    "axis_index": _axis_index,
    "reshard": _reshard,
    "reshard_shards": _reshard_shards,
}
