"""The rules of collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import _jax
from . import neighbours
from .global_values import Affine, DimSharding, GlobalValue, NotKnown, Sharded, axes_along
from .walk import Walk, operand_shape


def all_reduce(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """``psum``, ``pmax`` and ``pmin``: parts are combined; a replicated value counts once per shard."""
    axes, by = walk.named(eqn), _jax.primitives.primitive(eqn.primitive.name).function.removeprefix("p")
    return [_combined(walk, walk.settled(operand), axes, by) for operand in operands] if axes else operands


def _combined(walk: Walk, value: Sharded, axes: Sequence[str], by: str) -> Sharded:
    if value.placed.intersection(axes):
        raise NotKnown("it reduces over an axis that shards a dim")
    if value.combined_by not in ("", by):
        raise NotKnown("it reduces parts in another way")
    times = walk.count(set(axes) - value.partial) if by == "sum" else 1
    return value.times(times).partial_over(value.partial.difference(axes), value.combined_by)


def _gathered(dim: DimSharding, axes: tuple[str, ...], why: str) -> DimSharding:
    """A dim whose parts over its minor axes are concatenated."""
    if dim is None or not axes:
        return dim
    before = axes_along(dim)
    if before[-len(axes) :] != axes:
        raise NotKnown(why)
    return before[: -len(axes)]


def _scattered(dim: DimSharding, axes: tuple[str, ...]) -> DimSharding:
    return None if dim is None else (*axes_along(dim), *axes)


def all_gather(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """The parts of a dim, concatenated."""
    return [_all_gather(walk, eqn, walk.settled(operand)) for operand in operands]


def _all_gather(walk: Walk, eqn: Any, value: Sharded) -> GlobalValue:
    axes, dim = tuple(walk.named(eqn)), eqn.params["all_gather_dimension"]
    if value.partial.intersection(axes):
        raise NotKnown("it gathers an unreduced value")
    if not eqn.params["tiled"]:
        raise NotKnown("it stacks parts of the whole")
    value = value.with_dim(dim, _gathered(value.dims[dim], axes, "it gathers a dim that is not sharded so"))
    if value.placed.intersection(axes):
        raise NotKnown("it gathers parts of another dim")
    return value


def reduce_scatter(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """A sum over the shards; each shard keeps a part of a dim."""
    axes, dim = tuple(walk.named(eqn)), eqn.params["scatter_dimension"]
    value = _combined(walk, walk.settled(operands[0]), axes, "sum")
    if not eqn.params["tiled"]:
        raise NotKnown("it drops the dim that it scatters")
    return [value.with_dim(dim, _scattered(value.dims[dim], axes))]


def all_to_all(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """The parts of one dim, concatenated, and another dim sharded instead."""
    axes, split, to = tuple(walk.named(eqn)), eqn.params["split_axis"], eqn.params["concat_axis"]
    value = walk.settled(operands[0])
    if not eqn.params["tiled"]:
        raise NotKnown("it drops the dim that it splits")
    if not axes:
        return [value]
    if split == to:
        raise NotKnown("it exchanges the parts of a dim")
    if value.partial.intersection(axes):
        raise NotKnown("it exchanges an unreduced value")
    if value.dims[to] is None and value.placed.intersection(axes):
        raise NotKnown("it exchanges parts of another dim")
    gathered = value.with_dim(to, _gathered(value.dims[to], axes, "it puts together parts of another dim"))
    return [gathered.with_dim(split, _scattered(value.dims[split], axes))]


def ppermute(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Values from other shards."""
    axes, perm = walk.named(eqn), eqn.params["perm"]
    if not axes:  # to the shard itself, or to no shard
        zeros = [walk.number(0, (None,) * len(operand_shape(eqn, at))) for at in range(len(operands))]
        return operands if perm else zeros
    return [neighbours.sent(walk, value, operand_shape(eqn, at), axes, perm) for at, value in enumerate(operands)]


def axis_index(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """The shard's index over some axes, the major first."""
    indices, step = dict[str, int](), 1
    for axis in reversed(walk.longer(_jax.jaxpr.named_axes(eqn))):
        indices[axis] = step
        step *= walk.sizes[axis]
    return [Affine((), 0, (), indices)]


def reshard(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """An unreduced value may be reduced."""
    value = walk.settled(operands[0])
    if value.is_extreme:
        raise NotKnown("it reduces parts in another way")
    spec = getattr(getattr(eqn.outvars[0].aval, "sharding", None), "spec", None)
    return [value.partial_over(value.partial.intersection(getattr(spec, "unreduced", ())), value.combined_by)]


def reshard_shards(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """This library's ``reshard``: its operand must have the stated layout."""
    source, target, lead = (eqn.params[name] for name in ("source", "target", "lead"))
    value, left = walk.settled(operands[0]), frozenset(walk.longer(list(target.unreduced)))
    dims = list(value.dims)
    for dim, (before, after) in enumerate(zip(source.dim_axes, target.dim_axes, strict=True), lead):
        if dims[dim] is not None and dims[dim] != tuple(walk.longer(before)):
            raise NotKnown("its operand is not sharded as it says")
        dims[dim] = None if dims[dim] is None else tuple(walk.longer(after))
    if value.partial != frozenset(walk.longer(list(source.unreduced))) or not left <= value.partial:
        raise NotKnown("its operand is not reduced as it says")
    if value.is_extreme:
        raise NotKnown("it reduces parts in another way")
    return [value.partial_over(left, value.combined_by).with_dims(dims)]
