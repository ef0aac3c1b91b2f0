"""Values whose entries are those of others, in other places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from . import neighbours
from .values import Affine, AtShard, DimSharding, Edge, GlobalValue, NotKnown, Sharded, ShardIds, Truth, Window
from .walk import PrimitiveRule, Walk, joined_dims, operand_shape, unsharded_along


def _transpose(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    order = eqn.params["permutation"]
    return [moved(walk, operands[0], "transpose", tuple(order), lambda dims: [dims[dim] for dim in order])]


def moved(walk: Walk, value: GlobalValue, name: str, params: Any, change: Callable[[Any], Any]) -> Sharded | ShardIds:
    """A value whose entries are those of another, in other places."""
    if isinstance(value, ShardIds):
        found = None if value.value is None else moved(walk, value.value, name, params, change)
        assert not isinstance(found, ShardIds)
        return replace(value, along=tuple(change(value.along)), value=found)
    found = walk.settled(value)
    if walk.is_number(found):
        return found.with_dims(change(found.dims))
    operand = replace(found, factor=Fraction(1))
    return walk.made(name, params, [operand], change(found.dims), found.partial, found.combined_by, found.factor)


def _broadcast(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    value, shape, at = operands[0], eqn.params["shape"], tuple(eqn.params["broadcast_dimensions"])
    before = operand_shape(eqn)
    expanded = tuple(dim for dim, to in enumerate(at) if before[dim] != shape[to])
    if isinstance(value, Truth):
        return [Truth(value.is_true, len(shape))]
    if isinstance(value, AtShard):
        return [value]
    if isinstance(value, Affine):
        positions = {at[dim]: factor for dim, factor in value.positions.items() if dim not in expanded}
        return [Affine(tuple(shape), value.constant, positions, value.indices)]
    found = value if isinstance(value, ShardIds) else walk.settled(value)
    if not isinstance(found, ShardIds) and any(found.dims[dim] for dim in expanded):
        raise NotKnown("it broadcasts a sharded dim")

    def change(dims: Sequence[Any]) -> list[Any]:
        made: list[Any] = [None] * len(shape)
        for dim, to in enumerate(at):
            if dim not in expanded:
                made[to] = dims[dim]
        return made

    return [moved(walk, found, "broadcast", (at, expanded, len(shape)), change)]


def _squeeze(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    gone = tuple(eqn.params["dimensions"])
    if isinstance(value := operands[0], Truth):
        return [Truth(value.is_true, value.rank - len(gone))]
    if isinstance(value, Affine):
        kept = [dim for dim in range(len(value.shape)) if dim not in gone]
        positions = {kept.index(dim): factor for dim, factor in value.positions.items() if dim in kept}
        return [Affine(tuple(value.shape[dim] for dim in kept), value.constant, positions, value.indices)]
    if not isinstance(value, ShardIds) and any(walk.settled(value).dims[dim] for dim in gone):
        raise NotKnown("it drops a sharded dim")
    return [moved(walk, value, "squeeze", gone, lambda dims: [a for d, a in enumerate(dims) if d not in gone])]


def _reshape(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    if eqn.params.get("dimensions") is not None:
        raise NotKnown("it reorders dims")
    before, after, value = operand_shape(eqn), tuple(eqn.params["new_sizes"]), operands[0]
    match value:
        case Truth():
            return [Truth(value.is_true, len(after))]
        case Affine() if not value.positions:
            return [replace(value, shape=after)]
        case ShardIds():
            return [_with_ones(walk, value, before, after)]
        case _:
            return [_reshaped(walk, walk.settled(value), before, after)]


def _with_ones(walk: Walk, value: ShardIds, before: tuple[int, ...], after: tuple[int, ...]) -> ShardIds:
    """What is known of ids with more or fewer dims of one entry."""
    along = list[int | None]()
    for old, new in _groups(before, after, [False] * len(before)):
        if max(len(old), len(new)) > 1:
            raise NotKnown("it merges or splits dims of ids")
        along += [value.along[old[0]] if old else None] * len(new)
    found = None if value.value is None else _reshaped(walk, value.value, before, after)
    return replace(value, along=tuple(along), value=found)


def _reshaped(walk: Walk, found: Sharded, before: tuple[int, ...], after: tuple[int, ...]) -> Sharded:
    """A value of another shape: dims of one entry go, others are merged and split, of which the major is sharded."""
    if walk.is_number(found):
        return found.with_dims([None] * len(after))
    gone = [old[0] for old, new in _groups(before, after, [bool(axes) for axes in found.dims]) if old and not new]
    if gone:
        kept = [dim for dim in range(len(before)) if dim not in gone]
        found = walk.settled(moved(walk, found, "squeeze", tuple(gone), lambda dims: [dims[dim] for dim in kept]))
        before = tuple(before[dim] for dim in kept)
    dims, params = list[DimSharding](), list[Any]()
    for old, new in _groups(before, after, [bool(axes) for axes in found.dims]):
        axes = [found.dims[dim] for dim in old]
        if len(old) == len(new) == 1:
            dims += axes
        elif not old:
            dims += [None] * len(new)
        elif all(each is None for each in axes):
            dims += [None] * len(new)
            params.append((tuple(old), len(new), "free"))
            continue
        elif None in axes or any(axes[1:]) or not new:
            if any(axes) or not new:
                raise NotKnown("it merges or splits a sharded dim, and not as the major one")
            for dim in old:
                found = walk.solid(found, dim, before[dim])
            dims += [()] * len(new)
        else:
            dims += [axes[0], *[()] * (len(new) - 1)]
        params.append((tuple(old), len(new), tuple(after[dim] for dim in new[1:])))
    return walk.settled(moved(walk, found, "reshape", tuple(params), lambda _: dims))


def _groups(
    before: Sequence[int], after: Sequence[int], is_sharded: Sequence[bool]
) -> list[tuple[list[int], list[int]]]:
    """Which dims become which: in their order, with as many entries."""
    found, one, other = list[tuple[list[int], list[int]]](), 0, 0
    while one < len(before) or other < len(after):
        if (
            one < len(before)
            and before[one] == 1
            and not is_sharded[one]
            and (other == len(after) or after[other] != 1)
        ):
            found.append(([one], []))
            one += 1
            continue
        if other < len(after) and after[other] == 1 and (one == len(before) or before[one] != 1):
            found.append(([], [other]))
            other += 1
            continue
        old, new = [one], [other]
        left, right = before[one], after[other]
        one, other = one + 1, other + 1
        while left != right:
            if left < right:
                left *= before[one]
                old.append(one)
                one += 1
            else:
                right *= after[other]
                new.append(other)
                other += 1
        found.append((old, new))
    return found


def _iota(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    shape, dim = tuple(eqn.params["shape"]), eqn.params["dimension"]
    if operands or eqn.params["dtype"].kind not in "iu":
        values = Affine(shape, 0, {dim: 1})
        return [walk.settled(values)]
    return [Affine(shape, 0, {dim: 1})]


def _slice(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    shape, params = operand_shape(eqn), eqn.params
    strides = params["strides"] or (1,) * len(shape)
    parts = list(zip(params["start_indices"], params["limit_indices"], strides, strict=True))
    touched = [dim for dim, part in enumerate(parts) if part != (0, shape[dim], 1)]
    if isinstance(value := operands[0], Affine) and all(part[2] == 1 for part in parts):
        shift = sum(factor * parts[dim][0] for dim, factor in value.positions.items())
        return [replace(value, shape=tuple(b - a for a, b, _ in parts), constant=value.constant + shift)]
    return [neighbours.sliced(walk, value, shape, {dim: parts[dim] for dim in touched})]


def _dynamic_slice(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    shape, sizes = operand_shape(eqn), eqn.params["slice_sizes"]
    found, starts = walk.settled(operands[0]), operands[1 : 1 + len(sizes)]
    dims, touched, by = list(found.dims), list[Any](), list[Sharded]()
    for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if size == shape[dim]:
            continue
        if isinstance(start, Affine) and start.indices and not start.constant:
            found = walk.solid(found, dim, shape[dim])
            unsharded = Affine((size,), 0, {0: 1}, start.indices).sharded(walk.sizes)
            if unsharded is None or size * prod(walk.sizes[axis] for axis in unsharded[0][0] or ()) != shape[dim]:
                raise NotKnown("its start depends on the index of the shard")
            dims[dim] = unsharded[0][0]
            continue
        if found.dims[dim] is None and walk.is_number(found):
            continue
        found = walk.solid(found, dim, shape[dim])
        dims[dim] = ()
        at = walk.settled(start)
        if at.partial:
            raise NotKnown("its start is not reduced")
        touched.append((dim, size))
        by.append(at)
    if not touched:
        return [found.with_dims(dims)]
    operand = replace(found, factor=Fraction(1))
    params = tuple(touched)
    return [walk.made("dynamic_slice", params, [operand, *by], dims, found.partial, found.combined_by, found.factor)]


def _dynamic_update_slice(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    into, new, *starts = map(walk.settled, operands)
    if into.partial or new.partial or any(start.partial for start in starts):
        raise NotKnown("its operand is not reduced")
    touched = [dim for dim in range(len(operand_shape(eqn))) if operand_shape(eqn)[dim] != operand_shape(eqn, 1)[dim]]
    into, new = unsharded_along(walk, eqn, [into, new], touched)
    params = (tuple(touched), tuple(operand_shape(eqn, 1)[dim] for dim in touched))
    by = [starts[dim] for dim in touched]
    return [walk.made("dynamic_update_slice", params, [into, new, *by], joined_dims([into, new]))]


def _concatenate(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    dim = eqn.params["dimension"]
    values = unsharded_along(walk, eqn, list(map(walk.settled, operands)), [dim])
    if len({(value.partial, value.combined_by) for value in values}) > 1:
        raise NotKnown("it puts what is reduced beside what is not")
    lengths = tuple(operand_shape(eqn, at)[dim] for at in range(len(values)))
    partial, by = values[0].partial, values[0].combined_by
    return [walk.made("concatenate", (dim, lengths), values, joined_dims(values), partial, by)]


def _beside(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    has_edges = any(isinstance(each, Edge) for each in operands)
    rule = neighbours.concatenated if has_edges else neighbours.also_overlapping(_concatenate)
    return rule(walk, eqn, operands)


def _stack(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    at, values = eqn.params["axis"], list(map(walk.settled, operands))
    if len({(value.partial, value.combined_by) for value in values}) > 1:
        raise NotKnown("it puts what is reduced beside what is not")
    dims, partial, by = list(joined_dims(values)), values[0].partial, values[0].combined_by
    return [walk.made("stack", at, values, [*dims[:at], (), *dims[at:]], partial, by)]


def _unstack(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    dim = eqn.params["axis"]
    (found,) = unsharded_along(walk, eqn, [walk.settled(operands[0])], [dim])
    return [
        moved(walk, found, "item", (dim, at), lambda dims: [*dims[:dim], *dims[dim + 1 :]])
        for at in range(len(eqn.outvars))
    ]


def _split(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    dim, sizes = eqn.params["axis"], tuple(eqn.params["sizes"])
    (found,) = unsharded_along(walk, eqn, [walk.settled(operands[0])], [dim])
    return [moved(walk, found, "split", (dim, sizes, at), lambda dims: dims) for at in range(len(sizes))]


def _pad(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    config = {dim: tuple(each) for dim, each in enumerate(eqn.params["padding_config"]) if tuple(each) != (0, 0, 0)}
    (found, windows), filler = neighbours.opened(walk, operands[0]), walk.settled(operands[1])
    for dim in [dim for dim in config if found.dims[dim]]:
        windows[dim] = neighbours.padded(windows.get(dim, Window(operand_shape(eqn)[dim])), config.pop(dim))
    if config:
        (unsharded,) = unsharded_along(walk, eqn, [found], list(config))
        found = _padded(walk, unsharded, filler, tuple(config.items()))
    return [neighbours.windowed(found, windows)]


def _padded(walk: Walk, value: Sharded, filler: Sharded, config: Any) -> Sharded:
    if (value.partial or filler.partial) and not filler.is_zero:
        raise NotKnown("it pads what is not reduced")
    if not filler.is_zero:
        return walk.made("pad", config, [value, filler], value.dims)
    operand = replace(value, factor=Fraction(1))
    return walk.made("pad", config, [operand], value.dims, value.partial, value.combined_by, value.factor)


MOVING_RULES: dict[str, PrimitiveRule] = {
    "transpose": neighbours.also_overlapping(_transpose),
    "broadcast_in_dim": neighbours.also_overlapping(_broadcast),
    "squeeze": _squeeze,
    "reshape": _reshape,
    "iota": _iota,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "concatenate": _beside,
    "stack": _stack,
    "unstack": _unstack,
    "split": _split,
    "pad": _pad,
}
