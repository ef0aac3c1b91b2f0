"""The rules of operations that move entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from . import neighbours
from .global_values import (
    Affine,
    DimSharding,
    Edge,
    Found,
    GlobalValue,
    NotKnown,
    OfIds,
    Sharded,
    axes_along,
    split_over,
)
from .walk import Walk, joined_dims, moved_dims, operand_shape, parts_of, result_shape


def moved(walk: Walk, eqn: Any, value: GlobalValue, sources: Sequence[int | None]) -> GlobalValue:
    """A value of any kind whose entries are those of another value; affine numbers are those on each shard."""
    match value:
        case Affine():
            positions = tuple(0 if dim is None else value.positions[dim] for dim in sources)
            return replace(value, shape=result_shape(eqn), positions=positions)
        case OfIds():
            moved_dims(value.dims, sources)
            lookup = replace(value, along=tuple(None if dim is None else value.along[dim] for dim in sources))
            return replace(lookup, value=walk.moved(value.value, sources)) if isinstance(value, Found) else lookup
        case _:
            return walk.moved(walk.settled(value), sources)


def transpose(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Dims in another order."""
    return [moved(walk, eqn, operands[0], eqn.params["permutation"])]


def broadcast(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """New dims, along which a value is the same."""
    shape, before, at = eqn.params["shape"], operand_shape(eqn), eqn.params["broadcast_dimensions"]
    sources = {to: dim for dim, to in enumerate(at) if before[dim] == shape[to]}
    return [moved(walk, eqn, operands[0], [sources.get(to) for to in range(len(shape))])]


def squeeze(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Dims of one entry dropped."""
    return [moved(walk, eqn, operands[0], without(range(len(operand_shape(eqn))), eqn.params["dimensions"]))]


def without(dims: Sequence[Any], gone: Sequence[int]) -> list[Any]:
    """The facts of the remaining dims."""
    return [axes for dim, axes in enumerate(dims) if dim not in gone]


def reshape(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Dims of size 1 are added and removed; other dims are merged and split, and only the major may be sharded."""
    if eqn.params.get("dimensions") is not None:
        raise NotKnown("it reorders dims")
    before, after, value = operand_shape(eqn), tuple(eqn.params["new_sizes"]), operands[0]
    value = value if isinstance(value, Affine | OfIds) else walk.settled(value)
    groups = _groups(before, after, [None] * len(before) if isinstance(value, Affine) else value.dims)
    if all(max(len(old), len(new)) == 1 for old, new in groups):
        return [moved(walk, eqn, value, [old[0] if old else None for old, new in groups for _ in new])]
    if isinstance(value, OfIds):
        raise NotKnown("it merges or splits dims of ids")
    return [_merged(walk, walk.settled(value), before, after)]


def _merged(walk: Walk, value: Sharded, before: Sequence[int], after: Sequence[int]) -> Sharded:
    """A value whose dims of size above 1 are merged and split."""
    gone = [old[0] for old, new in _groups(before, after, value.dims) if not new]
    value, before = walk.moved(value, without(range(len(before)), gone)), without(before, gone)
    dims, params = list[DimSharding](), list[Any]()
    for old, new in _groups(before, after, value.dims):
        axes, lengths = [value.dims[dim] for dim in old], tuple(after[dim] for dim in new[1:])
        if len(old) == len(new) == 1:
            dims += axes
        elif not old:
            dims += [None]
        else:
            for dim in old[0 if axes[0] is None else 1 :]:
                value = walk.solid(value, dim, before[dim])
            dims += [axes_along(axes[0]), *[()] * (len(new) - 1)]
        params.append((tuple(old), len(new), lengths))
    return walk.rearranged("reshape", tuple(params), value, dims)


def _groups(
    before: Sequence[int], after: Sequence[int], dims: Sequence[DimSharding]
) -> list[tuple[list[int], list[int]]]:
    """The groups of dims that become other groups, in order, of equal size; unsharded dims of size 1 may vanish."""
    groups, at, to = list[tuple[list[int], list[int]]](), 0, 0
    while at < len(before) or to < len(after):
        is_new = to < len(after) and after[to] == 1
        if at < len(before) and before[at] == 1 and not dims[at] and not is_new:
            old, new = [at], list[int]()
        elif is_new and (at == len(before) or before[at] != 1):
            old, new = list[int](), [to]
        elif to == len(after):
            raise NotKnown("it drops a sharded dim")
        else:
            old, new = [at], [to]
            while (left := prod(before[dim] for dim in old)) != (right := prod(after[dim] for dim in new)):
                if left < right:
                    old.append(old[-1] + 1)
                else:
                    new.append(new[-1] + 1)
        groups.append((old, new))
        at, to = at + len(old), to + len(new)
    return groups


def iota(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Positions along a dim."""
    shape, dim = tuple(eqn.params["shape"]), eqn.params["dimension"]
    values = Affine(shape, 0, tuple(int(at == dim) for at in range(len(shape))), {})
    return [values if eqn.params["dtype"].kind in "iu" and not operands else walk.settled(values)]


def slice_dims(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Some entries of each dim."""
    shape, params = operand_shape(eqn), eqn.params
    strides = params["strides"] or (1,) * len(shape)
    parts = enumerate(zip(params["start_indices"], params["limit_indices"], strides, strict=True))
    touched = {dim: part for dim, part in parts if part != (0, shape[dim], 1)}
    return [neighbours.sliced(walk, walk.settled(operands[0]), shape, touched)]


def dynamic_slice(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Each shard's part of a value that all shards have."""
    shape, sizes, value = operand_shape(eqn), eqn.params["slice_sizes"], walk.settled(operands[0])
    for dim, (start, size) in enumerate(zip(operands[1:], sizes, strict=True)):
        if size == shape[dim]:
            continue
        value = walk.solid(value, dim, shape[dim])
        if not isinstance(start, Affine) or start.constant or any(start.positions):
            raise NotKnown("its start is not that of the shard")
        axes, left = split_over(walk.sizes, start.indices, size)
        if left or size * walk.count(axes) != shape[dim]:
            raise NotKnown("its start depends on the index of the shard")
        value = value.with_dim(dim, axes)
    return [value]


_BESIDE = "it puts what is reduced beside what is not"


def concatenate(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Operands side by side along a dim."""
    if any(isinstance(operand, Edge) for operand in operands):
        return neighbours.concatenated(walk, eqn, operands)
    dim = eqn.params["dimension"]
    values = walk.solid_along(eqn, list(map(walk.settled, operands)), [dim])
    lengths = tuple(operand_shape(eqn, at)[dim] for at in range(len(values)))
    return [walk.made("concatenate", (dim, lengths), values, joined_dims(values), *parts_of(values, _BESIDE))]


def stack(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Operands side by side along a new dim."""
    at, values = eqn.params["axis"], list(map(walk.settled, operands))
    dims = joined_dims(values)
    return [walk.made("stack", at, values, [*dims[:at], (), *dims[at:]], *parts_of(values, _BESIDE))]


def pad(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Entries added along some dims; along sharded dims they are between the parts."""
    value, filler = map(walk.settled, operands)
    config = {dim: tuple(widths) for dim, widths in enumerate(eqn.params["padding_config"]) if any(widths)}
    for dim in [dim for dim in config if value.dims[dim]]:
        value = value.with_dim(dim, neighbours.padded(value.dims[dim], operand_shape(eqn)[dim], config.pop(dim)))
    if not config:
        return [value]
    if not filler.is_zero:
        raise NotKnown("it pads with something else than zeros")
    (value,) = walk.solid_along(eqn, [value], list(config))
    return [walk.linear("pad", tuple(config.items()), value, value.dims)]
