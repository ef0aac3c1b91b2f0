"""What shards have of their neighbours: edges that are sent on, and parts of the whole that overlap by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from .values import Affine, AtShard, DimSharding, Edge, GlobalValue, NotKnown, Sharded, Window, Windows
from .walk import PrimitiveRule, Walk, joined_dims, operand_shape

SlicePart = tuple[int, int, int]
"""Where a slice begins, where it ends, and its stride."""


def opened(walk: Walk, operand: GlobalValue) -> tuple[Sharded, dict[int, Window]]:
    """The array of which shards have parts, and the windows of the dims along which these overlap."""
    if isinstance(operand, Windows):
        return operand.value, dict(operand.by_dim)
    return walk.settled(operand), {}


def windowed(value: Sharded, windows: Mapping[int, Window]) -> Sharded | Windows:
    """The parts of an array, which overlap where the windows say so."""
    overlapping = tuple((dim, each) for dim, each in sorted(windows.items()) if any(each[1:]))
    return Windows(value, overlapping) if overlapping else value


def sliced(walk: Walk, operand: GlobalValue, shape: Sequence[int], parts: Mapping[int, SlicePart]) -> GlobalValue:
    """Entries of an array of which the shards have parts of some shape, by dim.

    Along a sharded dim they are overlapping parts of the whole, or an edge.
    """
    value, windows = opened(walk, operand)
    taken, edges, total = dict[int, SlicePart](), list[tuple[int, int, int]](), list(shape)
    for dim, (start, limit, stride) in parts.items():
        axes, length = value.dims[dim], shape[dim]
        if not axes:
            value, taken[dim] = walk.solid(value, dim, length), (start, limit, stride)
            continue
        window = windows.get(dim, Window(length))
        first, last = max(0, start - window.before), max(0, length - limit - window.after)
        shared = window.shared - first - last
        if stride != 1 or (shared < 0 and dim in windows):
            raise NotKnown("it works along a sharded dim")
        if shared < 0:
            edges.append((dim, start, limit))
            continue
        total[dim] = window.step * prod(walk.sizes[axis] for axis in axes) + window.shared
        if first or last:
            taken[dim] = (first, total[dim] - last, 1)
        left = max(0, window.before - start), max(0, window.after - (length - limit))
        windows[dim] = Window(window.step, shared, *left)
    found = windowed(_slice_of(walk, value, dict(enumerate(total)), taken), windows)
    if len(edges) > 1:
        raise NotKnown("it works along a sharded dim")
    return Edge(found, *edges[0], shape[edges[0][0]]) if edges else found


def _slice_of(walk: Walk, value: Sharded, shape: Mapping[int, int], parts: Mapping[int, SlicePart]) -> Sharded:
    """A slice of the whole, which has that shape along these dims; what has been padded, if all of that is cut off."""
    term, parts = walk.terms.known[value.term], dict(parts)
    params: Any = term.params if term.operation == "pad" else ()
    padded = dict[int, SlicePart](params)
    if padded and all(
        min(low, high) >= 0 == interior and dim in parts and parts[dim][0] >= low and parts[dim][1] <= shape[dim] - high
        for dim, (low, high, interior) in padded.items()
    ):
        for dim, (low, high, _) in padded.items():
            start, limit, stride = parts.pop(dim)
            if (start - low, limit - low, stride) != (0, shape[dim] - low - high, 1):
                parts[dim] = (start - low, limit - low, stride)
        factor, number = term.operands[0]
        value = replace(value, term=number, factor=factor * value.factor)
    if not parts or walk.is_number(value):
        return value
    operand = replace(value, factor=Fraction(1))
    return walk.made("slice", tuple(sorted(parts.items())), [operand], value.dims, value.partial, value.combined_by,
                     value.factor)  # fmt: skip


def padded(window: Window, config: Sequence[int]) -> Window:
    """The window where each shard pads its part: with entries of which nothing is known."""
    low, high, interior = config
    if min(low, high) < 0 or interior:
        raise NotKnown("it works along a sharded dim")
    return window._replace(before=window.before + low, after=window.after + high)


def sent(walk: Walk, operand: GlobalValue, shape: Sequence[int], axes: Sequence[str], perm: Any) -> GlobalValue:
    """What comes from other shards, all as many further over some axes."""
    count = prod(walk.sizes[axis] for axis in axes)
    if not isinstance(operand, Edge):
        value, windows = opened(walk, operand)
        if not value.axes.intersection(axes):
            if len(perm) < count:
                raise NotKnown("it gives some shards zeros")
            return operand
        dim = next((dim for dim, each in enumerate(value.dims) if each == tuple(axes)), None)
        if dim is None or dim in windows:
            raise NotKnown("it sends parts of the whole to other shards")
        operand = Edge(windowed(value, windows), dim, 0, shape[dim], shape[dim])
    value, _ = opened(walk, operand.value)
    shifts = {(to - source) % count for source, to in perm}
    missing = set(range(count)).difference(to for _, to in perm)
    is_sharded_so = value.dims[operand.dim] == tuple(axes) and not value.partial
    if len(axes) > 1 or len(shifts) != 1 or len(missing) > 1 or operand.end or not is_sharded_so:
        raise NotKnown("it sends parts of the whole to other shards")
    zero = walk.number(Fraction(0), (None,) * len(shape))
    shift, end = (operand.shift + shifts.pop()) % count, (missing.pop(), zero) if missing else None
    if shift == 0 and end is None and (operand.start, operand.stop) == (0, operand.length):
        return operand.value
    return replace(operand, shift=shift, end=end)


def concatenated(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """A part between the edges of the neighbours, or beside that of one: overlapping parts of the whole between its own
    ends, or between what stands there in their place.
    """
    dim, middle = eqn.params["dimension"], [each for each in operands if not isinstance(each, Edge)]
    at = next((at for at, each in enumerate(operands) if not isinstance(each, Edge)), 0)
    value, windows = opened(walk, middle[0]) if len(middle) == 1 else (None, {})
    if value is None or not value.dims[dim] or dim in windows or value.partial or at > 1 or len(operands) > at + 2:
        raise NotKnown("it works along a sharded dim")
    axes, step = value.dims[dim] or (), operand_shape(eqn, at)[dim]
    count = prod(walk.sizes[axis] for axis in axes)
    total, shared, pieces, lengths = step * count, 0, list[Sharded](), list[int]()
    for here, each in enumerate(operands):
        length = operand_shape(eqn, here)[dim]
        if not isinstance(each, Edge):
            pieces.append(value)
            lengths.append(total)
            continue
        is_before = here < at
        wanted = (length, 1, 0) if is_before else (length, count - 1, count - 1)
        bounds = (step - length, step) if is_before else (0, length)
        found = (each.stop - each.start, each.shift, wanted[2] if each.end is None else each.end[0])
        if each.value != middle[0] or each.dim != dim or (each.start, each.stop) != bounds or found != wanted:
            raise NotKnown("it puts entries of other shards where those of the whole are others")
        if each.end is not None:
            pieces.append(walk.solid(each.end[1], dim, length))
        else:
            part = (total - length, total, 1) if is_before else (0, length, 1)
            pieces.append(_slice_of(walk, value, {dim: total}, {dim: part}))
        lengths.append(length)
        shared += length
    bare = [piece.with_dims([() if d == dim else each for d, each in enumerate(piece.dims)]) for piece in pieces]
    if any(piece.partial or piece.axes.intersection(axes) for piece in bare):
        raise NotKnown("what stands at the end is not the same on all shards")
    dims: list[DimSharding] = list(joined_dims(bare))
    dims[dim] = axes
    made = walk.made("concatenate", (dim, tuple(lengths)), pieces, dims)
    return [windowed(made, {**windows, dim: Window(step, shared)})]


def where(walk: Walk, which: AtShard, cases: Sequence[GlobalValue]) -> GlobalValue:
    """An edge, and something else at the one shard that it does not come to."""
    elsewhere, there = cases if which.is_there else cases[::-1]
    index = which.index
    if isinstance(there, Edge) and prod(walk.sizes[axis] for axis in which.axes) == 2:
        elsewhere, there, index = there, elsewhere, 1 - index
    if not isinstance(elsewhere, Edge) or elsewhere.shift == 0 or isinstance(there, Edge):
        raise NotKnown("it depends on the index of the shard")
    value, other = opened(walk, elsewhere.value)[0], walk.settled(there)
    is_end = elsewhere.end is None or elsewhere.end[0] == index
    if not is_end or value.dims[elsewhere.dim] != which.axes or other.partial or other.axes.intersection(which.axes):
        raise NotKnown("it depends on the index of the shard")
    return replace(elsewhere, end=(index, other))


def compared_index(walk: Walk, index: Affine, is_true: Any) -> AtShard | None:
    """The one shard at which an index is said to be, or not to be."""
    found = Affine((1,), 0, {0: 1}, index.indices).sharded(walk.sizes)
    if index.positions or found is None or not (axes := found[0][0] or ()):
        return None
    truths = [is_true(index.constant + at) for at in range(prod(walk.sizes[axis] for axis in axes))]
    for value in (True, False):
        if truths.count(value) == 1:
            return AtShard(axes, truths.index(value), value)
    return None


def also_overlapping(rule: PrimitiveRule) -> PrimitiveRule:
    """What works on each entry by itself, or moves whole dims, also where the parts of the shards all overlap alike."""

    def both(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
        if not any(isinstance(operand, Windows) for operand in operands):
            return rule(walk, eqn, operands)
        marks, marked = dict[DimSharding, tuple[DimSharding, Window]](), list[GlobalValue]()
        for operand in operands:
            value, windows = opened(walk, operand) if isinstance(operand, Windows) else (operand, {})
            if windows and isinstance(value, Sharded):
                dims = list(value.dims)
                for dim, window in windows.items():  # by such a name, it is joined with none but the same
                    mark = (f"{window} over {dims[dim]}",)
                    marks[mark], dims[dim] = (dims[dim], window), mark
                value = value.with_dims(dims)
            marked.append(value)
        results = list[GlobalValue]()
        for value in map(walk.settled, rule(walk, eqn, marked)):
            windows = {dim: marks[each][1] for dim, each in enumerate(value.dims) if each in marks}
            dims = [marks[each][0] if each in marks else each for each in value.dims]
            results.append(windowed(value.with_dims(dims), windows))
        return results

    return both
