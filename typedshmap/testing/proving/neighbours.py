"""Halos: edges that are sent to neighbours, and parts of the global array that overlap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .global_values import (
    Affine,
    AtShard,
    DimSharding,
    Edge,
    GlobalValue,
    NotKnown,
    Sharded,
    Window,
    axes_along,
    split_over,
)
from .walk import Walk, joined_dims, operand_shape

SlicePart = tuple[int, int, int]
"""Where a slice begins, where it ends, and its stride."""


def _window(dim: DimSharding, length: int) -> Window:
    """The window of a sharded dim; ``length`` is the number of a shard's entries."""
    return dim if isinstance(dim, Window) else Window(axes_along(dim), length)


def _without_overlap(window: Window) -> DimSharding:
    """The window, or only its axes if it has no overlap."""
    return window if window.shared or window.before or window.after else window.axes


def padded(dim: DimSharding, length: int, config: Sequence[int]) -> DimSharding:
    """A sharded dim if each shard pads its part with unknown entries."""
    (low, high, interior), window = config, _window(dim, length)
    if min(low, high) < 0 or interior:
        raise NotKnown("it works along a sharded dim")
    return _without_overlap(replace(window, before=window.before + low, after=window.after + high))


def sliced(walk: Walk, value: Sharded, shape: Sequence[int], parts: Mapping[int, SlicePart]) -> GlobalValue:
    """A slice of each shard of an array.

    Along a sharded dim the slices are overlapping parts of the global array, or an edge.
    """
    dims, taken, total = dict[int, DimSharding](), dict[int, SlicePart](), dict(enumerate(shape))
    edges = list[tuple[int, int, int]]()
    for dim, (start, limit, stride) in parts.items():
        length, is_window = shape[dim], isinstance(value.dims[dim], Window)
        if not value.dims[dim]:
            value, taken[dim] = walk.solid(value, dim, length), (start, limit, stride)
            continue
        window = _window(value.dims[dim], length)
        first, last = max(0, start - window.before), max(0, length - limit - window.after)
        shared = window.shared - first - last
        if stride != 1 or (shared < 0 and is_window):
            raise NotKnown("it works along a sharded dim")
        if shared < 0:
            edges.append((dim, start, limit))
            continue
        total[dim] = window.step * walk.count(window.axes) + window.shared
        if first or last:
            taken[dim] = (first, total[dim] - last, 1)
        before, after = max(0, window.before - start), max(0, window.after - (length - limit))
        dims[dim] = _without_overlap(Window(window.axes, window.step, shared, before, after))
    if len(edges) > 1:
        raise NotKnown("it works along a sharded dim")
    result = _slice_of(walk, value, total, taken)
    result = result.with_dims([dims.get(dim, axes) for dim, axes in enumerate(result.dims)])
    return Edge(result, *edges[0], shape[edges[0][0]]) if edges else result


def _slice_of(walk: Walk, value: Sharded, shape: Mapping[int, int], parts: Mapping[int, SlicePart]) -> Sharded:
    """A slice of the global array, with its shape along these dims; if all padding is cut off, the padded array."""
    term, parts = walk.terms.known[value.term], dict(parts)
    widths: Any = term.params if term.operation == "pad" else ()
    padding = dict[int, SlicePart](widths)
    if padding and all(
        min(low, high) >= 0 == interior and parts.get(dim) == (low, shape[dim] - high, 1)
        for dim, (low, high, interior) in padding.items()
    ):
        factor, number = term.operands[0]
        value = replace(value, term=number, factor=factor * value.factor)
        parts = {dim: part for dim, part in parts.items() if dim not in padding}
    return walk.rearranged("slice", tuple(sorted(parts.items())), value, value.dims) if parts else value


def sent(walk: Walk, operand: GlobalValue, shape: Sequence[int], axes: Sequence[str], perm: Any) -> GlobalValue:
    """Values from other shards, all at the same distance over some axes."""
    count, senders = walk.count(axes), {to: source for source, to in perm}
    if not isinstance(operand, Edge):
        value = walk.settled(operand)
        if not value.axes.intersection(axes):
            if len(senders) < count:
                raise NotKnown("it gives some shards zeros")
            return operand
        if tuple(axes) not in value.dims:
            raise NotKnown("it sends parts of the global array to other shards")
        dim = value.dims.index(tuple(axes))
        operand = Edge(value, dim, 0, shape[dim], shape[dim])
    shifts, missing = {(to - source) % count for to, source in senders.items()}, set(range(count)) - senders.keys()
    is_sharded_so = operand.value.dims[operand.dim] == tuple(axes) and not operand.value.partial
    if len(axes) > 1 or len(shifts) != 1 or len(missing) > 1 or operand.end or not is_sharded_so:
        raise NotKnown("it sends parts of the global array to other shards")
    shift = (operand.shift + shifts.pop()) % count
    end = (missing.pop(), walk.number(0, (None,) * len(shape))) if missing else None
    if shift == 0 and end is None and (operand.start, operand.stop) == (0, operand.length):
        return operand.value
    return replace(operand, shift=shift, end=end)


def concatenated(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """A part between the edges of its neighbours, or beside the edge of one.

    The result is overlapping parts of the global array, extended at its ends by the edges of a ring or by other values.
    """
    dim = eqn.params["dimension"]
    places = [at for at, operand in enumerate(operands) if not isinstance(operand, Edge)]
    if len(places) != 1:
        raise NotKnown("it works along a sharded dim")
    at, value = places[0], walk.settled(operands[places[0]])
    axes = value.dims[dim]
    if not axes or isinstance(axes, Window) or value.partial or at > 1 or len(operands) > at + 2:
        raise NotKnown("it works along a sharded dim")
    lengths, count = [operand_shape(eqn, here)[dim] for here in range(len(operands))], walk.count(axes)
    step, pieces = lengths[at], list[Sharded]()
    total = lengths[at] = step * count
    for here, (operand, length) in enumerate(zip(operands, lengths, strict=True)):
        if not isinstance(operand, Edge):
            pieces.append(value)
            continue
        is_before = here < at
        shift, end, start = (1, 0, step - length) if is_before else (count - 1, count - 1, 0)
        expected = Edge(value, dim, start, start + length, step, shift, operand.end)
        if operand != expected or (operand.end is not None and operand.end[0] != end):
            raise NotKnown("it places entries of other shards where the global array has different entries")
        if operand.end is not None:
            pieces.append(walk.solid(operand.end[1], dim, length))
        else:
            part = (total - length, total, 1) if is_before else (0, length, 1)
            pieces.append(_slice_of(walk, value, {dim: total}, {dim: part}))
    bare = [piece.with_dim(dim, ()) for piece in pieces]
    if any(piece.partial or piece.axes.intersection(axes) for piece in bare):
        raise NotKnown("what stands at the end is not the same on all shards")
    made = walk.made("concatenate", (dim, tuple(lengths)), pieces, joined_dims(bare))
    return [made.with_dim(dim, _without_overlap(Window(axes, step, sum(lengths) - total)))]


def where(walk: Walk, which: AtShard, cases: Sequence[GlobalValue]) -> GlobalValue:
    """An edge, and another value at the only shard that does not receive it."""
    elsewhere, there = cases if which.is_there else cases[::-1]
    index = which.index
    if isinstance(there, Edge) and walk.count(which.axes) == 2:
        elsewhere, there, index = there, elsewhere, 1 - index
    if not isinstance(elsewhere, Edge) or elsewhere.shift == 0 or isinstance(there, Edge):
        raise NotKnown("it depends on the index of the shard")
    end = walk.settled(there)
    is_end = elsewhere.end is None or elsewhere.end[0] == index
    is_sharded_so = elsewhere.value.dims[elsewhere.dim] == which.axes
    if not is_end or not is_sharded_so or end.partial or end.axes.intersection(which.axes):
        raise NotKnown("it depends on the index of the shard")
    return replace(elsewhere, end=(index, end))


def compared_index(walk: Walk, index: Affine, is_true: Callable[[int], bool]) -> AtShard | None:
    """The predicate of an index that is true, or false, on only one shard; None for other predicates."""
    if any(index.positions):
        return None
    axes, left = split_over(walk.sizes, index.indices, 1)
    truths = [] if left else [is_true(index.constant + at) for at in range(walk.count(axes))]
    for value in (True, False):
        if truths.count(value) == 1:
            return AtShard(axes, truths.index(value), value)
    return None
