"""Transfer rules of operations that move, slice or combine dims."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from math import prod
from typing import Any

from .. import _jax
from . import lattice
from .facts import FactInterpreter, TransferRule
from .indices import own_part, own_start
from .lattice import UNKNOWN, UNSHARDED, DimFact, Part, ShardingFact, combine, summed_axes, varying_of

Dims = tuple[DimFact, ...]
DimsRule = Callable[..., Sequence[DimFact]]


def _map_dims(eqn: Any, facts: Sequence[ShardingFact], how: DimsRule, *what: Any) -> list[ShardingFact]:
    """Results whose dims come from the first operand's; they vary where the operands do."""
    return [_mapped(eqn.primitive.name, tuple(facts), how, *what)] * len(eqn.outvars)


@lru_cache(maxsize=4096)
def _mapped(name: str, facts: tuple[ShardingFact, ...], how: DimsRule, *what: Any) -> ShardingFact:
    fact, dims = facts[0], tuple(how(facts[0].dims, *what))
    if len(facts) == 1 and not (fact.unreduced or fact.due or fact.is_zero):
        return fact.with_dims(dims)
    return combine(name, facts, lattice.drop_repeated_axes(dims))


def _combine(eqn: Any, facts: Sequence[ShardingFact], dims: Sequence[DimFact]) -> list[ShardingFact]:
    """A result of these dims, which varies where the operands do."""
    return [combine(eqn.primitive.name, tuple(facts), lattice.drop_repeated_axes(tuple(dims)))]


def along(how: DimsRule, name: str) -> TransferRule:
    """The rule of an operation with a parameter that determines the dims of its result."""
    param = _jax.primitives.primitive(name).along
    return lambda interpreter, eqn, facts: _map_dims(eqn, facts, how, eqn.params[param])


def _sliced_dim(dim: DimFact) -> DimFact:
    """A sliced dim: of an unsharded dim each shard takes the same part; of a sharded dim the part is unknown."""
    return UNSHARDED._replace(woven=dim.woven) if dim.axes == () else UNKNOWN


def broadcast_in_dim(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """New dims are unsharded, and so is a dim that grows from size 1."""
    shape, sizes = eqn.params["shape"], eqn.invars[0].aval.shape
    return _map_dims(eqn, facts[:1], _broadcast, sizes, shape, eqn.params["broadcast_dimensions"])


def _broadcast(dims: Dims, before: Any, after: Any, places: Any) -> Dims:
    kept = {to: dims[at] for at, to in enumerate(places) if before[at] == after[to]}
    return tuple(kept.get(to, UNSHARDED) for to in range(len(after)))


def permute_dims(dims: Dims, order: Any) -> Dims:
    """Dims in another order."""
    return tuple(dims[at] for at in order)


def remove_dims(dims: Dims, gone: Any) -> Dims:
    """Dims without those that were of size 1, are reduced, or are unstacked."""
    places = {at % len(dims) for at in (gone if isinstance(gone, tuple) else (gone,))}
    return tuple(dim for at, dim in enumerate(dims) if at not in places)


def reduce_sum(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A sum over dims; each shard has its part of the sum over a sharded dim."""
    axes, dims = eqn.params["axes"], facts[0].dims
    (result,) = _map_dims(eqn, facts, remove_dims, axes)
    for at in axes:
        if dims[at].axes:
            return [interpreter.due_sum(eqn, result, summed_axes([dims[at] for at in axes]))]
    return [result]


def reshape(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Each group of dims separately; unknown after a reshape in another order of dims."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if eqn.params.get("dimensions") is not None:
        return _combine(eqn, facts[:1], [UNKNOWN] * len(after))
    return _map_dims(eqn, facts[:1], reshape_dims, before, after)


def reshape_dims(dims: Dims, before: Sequence[int], after: Sequence[int]) -> Dims:
    """The dims after a reshape: each group of dims becomes another group.

    If one dim becomes several, the most major of them is sharded over its axes, and they are movable.
    """
    if prod(before) == 0:
        return (UNKNOWN,) * len(after)
    regrouped: list[DimFact] = []
    start = at = 0
    while at < len(after) or start < len(before):
        end, to = _group_ends(before, after, start, at)
        made = _regroup_dims(dims[start:end], before[start:end], after[at:to])
        left = [
            dim for dim, size in zip(dims[start:end], before[start:end], strict=True) if size == 1 and dim.known_axes
        ]
        if regrouped and left and after[at - 1] > 1 and (end - start, to - at) != (1, 1):
            # The axes of a removed dim of size 1 are minor axes of the dim before, or major axes of this dim.
            axes = tuple(axis for dim in left for axis in dim.known_axes)
            made = [dim._replace(is_movable=True, is_either=True) if dim.axes else dim for dim in made]
            if regrouped[-1].axes == ():
                # A dim that was added before this dim, and moved behind it by a transpose: the axes may belong to this
                # dim.
                is_either = any(dim.is_either for dim in left)
                regrouped[-1] = UNKNOWN if is_either else regrouped[-1]._replace(woven=axes)
        regrouped += made
        start, at = end, to
    return tuple(regrouped)


def _group_ends(before: Sequence[int], after: Sequence[int], start: int, at: int) -> tuple[int, int]:
    """The ends of the smallest groups, from two dims on, with equal numbers of elements.

    Dims of size 1 that are added or removed belong to the dim after them.
    """
    if start < len(before) and at < len(after) and before[start] == after[at]:
        return start + 1, at + 1
    end, to, taken, made = start, at, 1, 1
    while end < len(before) and before[end] == 1:
        end += 1
    while to < len(after) and after[to] == 1:
        to += 1
    while taken != made or (taken == 1 and (end < len(before) or to < len(after))):
        if taken <= made and end < len(before):
            taken, end = taken * before[end], end + 1
        else:
            made, to = made * after[to], to + 1
    return end, to


def _regroup_dims(dims: Sequence[DimFact], before: Sequence[int], after: Sequence[int]) -> list[DimFact]:
    """One group: axes stay on its most major dim; otherwise dims are merged, and merged dims split.

    Claimed axes are not tracked.
    """
    if len(dims) == len(after) == 1:
        return list(dims)
    if not after or all(dim == UNSHARDED for dim in dims):
        return [UNSHARDED] * len(after)
    if any(dim.apart or dim.gathered for dim in dims):
        return _merge_gathered(dims, before, after)
    major, *others = dims
    if major.is_movable and not major.parts:
        is_followed = all(dim == UNSHARDED for dim in others) and before[0] != 1 and after[0] != 1
        if major.from_claim or not major.axes or not is_followed:
            return [UNKNOWN] * len(after)
        return [major, *[UNSHARDED] * (len(after) - 1)]
    parts: list[Part] = []
    for at, (dim, size) in enumerate(zip(dims, before, strict=True)):
        is_certain = dim.parts or not (dim.from_claim or dim.is_movable)
        if size == 1 and dim.is_either and prod(before[:at]) > 1:  # its axes may be those of a dim before
            is_certain = False
        of_dim = lattice.parts_of(dim, size) if is_certain else None
        if of_dim is None:
            return [UNKNOWN] * len(after)
        parts += of_dim
    behind = tuple(axis for axis in major.woven if axis not in {axis for axes, _ in parts for axis in axes})
    return _distribute_parts(lattice.normal_parts(parts), after, behind if major.axes == () else ())


def _merge_gathered(dims: Sequence[DimFact], before: Sequence[int], after: Sequence[int]) -> list[DimFact]:
    """A group with a dim along which shards were stacked, or with the dim of which they are parts.

    The shards are in order if their dim comes right before the dim of which they are parts.
    """
    stacked, rest = (), [(dim, size) for dim, size in zip(dims, before, strict=True) if size > 1]
    while rest and rest[0][0].axes == () and rest[0][0].gathered:
        stacked += rest.pop(0)[0].gathered
    if rest and stacked and stacked == rest[0][0].apart:
        (part, _), *others = rest
        merged = part._replace(gathered=(), apart=(), parts=())
        sizes = [prod(before) // prod([size for _, size in others]), *(size for _, size in others)]
        return _regroup_dims([merged, *(dim for dim, _ in others)], sizes, after)
    parted = {axis for dim in dims for axis in dim.apart}
    astray = tuple(axis for dim in dims for axis in dim.gathered if dim.axes is None or axis in parted)
    is_split = len(after) > 1 and any(dim.axes is None for dim in dims)  # another reshape may put them in order
    if astray and not is_split:
        return [DimFact(None, gathered=astray, is_movable=True), *[UNKNOWN] * (len(after) - 1)]
    return [UNSHARDED if all(dim.axes == () for dim in dims) else UNKNOWN] * len(after)


def _distribute_parts(parts: list[Part], sizes: Sequence[int], behind: tuple[str, ...]) -> list[DimFact]:
    """Dims of these sizes, made of parts in order; if a part is split, its major piece is sharded.

    A piece, or a dim with interleaved shards, is movable and keeps its parts, since a claim may interpret it otherwise.

    Args:
      parts: the parts of all dims.
      sizes: the sizes of the dims.
      behind: the axes that shard dims more major than the first part.
    """
    dims: list[DimFact] = []
    for at, size in enumerate(sizes):
        taken: list[Part] = []
        cut, missing = (), size
        if size == 1 and at < len(sizes) - 1 and parts and parts[0][0]:
            # A dim of size 1 on the shard is major to the following dims, so the axes may belong to it.
            axes, count = parts[0]
            parts[0] = (), count
            dims.append(DimFact(axes, is_movable=True, parts=((axes, 1),), is_either=True))
            continue
        while missing > 1:
            axes, count = parts.pop(0)
            if missing % count and count % missing:
                return [UNKNOWN] * len(sizes)
            taken.append((axes, min(missing, count)))
            if count > missing:
                parts.insert(0, ((), count // missing))
                cut = axes
            missing = max(missing // count, 1)
        if at == len(sizes) - 1:
            taken += parts
        dim = lattice.merge_parts(taken)
        if cut or dim.parts:
            dim = dim._replace(is_movable=True, parts=dim.parts or ((dim.known_axes, size),))
        if dim == UNSHARDED and behind and size > 1:
            dim = dim._replace(woven=behind, parts=(((), size),))
        dims.append(dim)
        behind = (*behind, *dim.known_axes) if cut else behind if dim.axes == () and parts and not parts[0][0] else ()
    return dims


def slice_dims_at(dims: Dims, places: Any) -> Dims:
    """Dims, some of them sliced, reversed, split or sorted on each shard."""
    places = places if isinstance(places, tuple) else (places,)
    return tuple(_sliced_dim(dim) if at in places else dim for at, dim in enumerate(dims))


def strided_slice(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Slices: every n-th element of a sharded dim is sharded in the same way, if all shards have equally many."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    starts, strides = eqn.params["start_indices"], eqn.params["strides"] or (1,) * len(before)
    return _map_dims(eqn, facts, _slice_every, before, after, tuple(starts), tuple(strides))


def _slice_every(dims: Dims, before: Any, after: Any, starts: Any, strides: Any) -> Dims:
    sliced = list(_slice_resized(dims, before, after, True))
    for at, (dim, start, step) in enumerate(zip(dims, starts, strides, strict=True)):
        if start < step > 1 and after[at] * step == before[at] and dim.axes and not dim.parts:
            sliced[at] = dim._replace(parts=((dim.axes, after[at]),))
    return tuple(sliced)


def pad(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A dim that keeps its size is the same; a dim with another size is sliced."""
    return _map_dims(eqn, facts, _slice_resized, eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape, True)


def _slice_resized(dims: Dims, before: Any, after: Any, is_same_part: bool) -> Dims:
    ways = zip(dims, before, after, strict=True)
    return tuple(dim if a == b else _sliced_dim(dim) if is_same_part else UNKNOWN for dim, a, b in ways)


def tile(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Dims that are repeated."""
    places = tuple(at for at, times in enumerate(eqn.params["reps"]) if times != 1)
    return _map_dims(eqn, facts, slice_dims_at, places)


def fft(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A Fourier transform of the last dims."""
    rank = len(facts[0].dims)
    return _map_dims(eqn, facts, slice_dims_at, tuple(range(rank - len(eqn.params["fft_lengths"]), rank)))


def reduce_window(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A reduction of windows; a dim along which each window has one element is the same."""
    ways = zip(eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape, eqn.params["window_dimensions"], strict=True)
    places = tuple(at for at, (before, after, size) in enumerate(ways) if before != after or size > 1)
    return _map_dims(eqn, facts, slice_dims_at, places)


def dynamic_slice(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A slice; if the start varies, each shard may take its own part of an unsharded dim, or any other part."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    varying, (fact, *starts) = varying_of(facts[1:]), facts
    if not varying:
        return _map_dims(eqn, facts, _slice_resized, before, after, True)
    dims: list[DimFact] = []
    for dim, size, count, start in zip(fact.dims, before, after, starts, strict=True):
        axes = own_part(start.number, size, count, interpreter.sizes)
        if size == count or not start.varying | start.unreduced:
            dims.append(dim if size == count else _sliced_dim(dim))
        elif axes and dim.axes is not None and (fact.varying | fact.unreduced).isdisjoint(axes):
            dims.append(dim.with_axes((*dim.axes, *axes)))
        elif dim == UNSHARDED and (axes := own_start(start.number, size, count, interpreter.sizes)):
            # The first rows of the dim, sharded over these axes, and the same along all others.
            others = interpreter.axes - varying_of(facts)
            dims.append(DimFact(axes, woven=tuple(axis for axis in interpreter.sizes if axis in others)))
        else:
            dims.append(UNKNOWN)
    return _combine(eqn, facts, dims)


def update_slice(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """An update of a slice: a dim is sharded as in the operand, or as in an update of the whole dim."""
    shapes = [atom.aval.shape for atom in eqn.invars[:2]]
    pairs = zip(facts[0].dims, facts[1].dims, *shapes, strict=True)
    return _combine(eqn, facts, [lattice.join_dims(dim, new) if a == b else dim for dim, new, a, b in pairs])


def scatter(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A scatter: the result is sharded like the operand, its unsharded dims as in updates of the whole dim."""
    dims, shapes = list(facts[0].dims), [atom.aval.shape for atom in eqn.invars]
    for (operand, source), at in scattered_dims(eqn).items():
        if operand == 1 or shapes[0][at] == shapes[2][source]:
            dims[at] = lattice.join_dims(dims[at], facts[operand].dims[source])
    return _combine(eqn, facts, dims)


def scattered_dims(eqn: Any) -> dict[tuple[int, int], int]:
    """The dims of a scatter's first operand, by the number of the operand (2 updates, 1 indices) and its dim."""
    numbers, rank = eqn.params["dimension_numbers"], len(eqn.invars[0].aval.shape)
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = zip(numbers.update_window_dims, [at for at in range(rank) if at not in gone], strict=True)
    batched = zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    return {(2, dim): at for dim, at in windows} | {(1, dim): at for dim, at in batched}


def _join_operands(facts: Sequence[ShardingFact]) -> list[DimFact]:
    return [reduce(lattice.join_dims, dims) for dims in zip(*[fact.dims for fact in facts], strict=True)]


def concatenate(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Along a sharded dim the parts of the shards are interleaved, in an unknown order.

    If an operand has every n-th row, the result is surely not in order.
    """
    along, dims = eqn.params["dimension"], _join_operands(facts)
    joined = [fact.dims[along] for fact in facts]
    axes = joined[0].axes
    if len(facts) > 1:
        dims[along] = UNSHARDED if all(dim.axes == () and not dim.woven for dim in joined) else UNKNOWN
        is_in_order = axes and all(dim.axes == axes and not (dim.from_claim or dim.is_movable) for dim in joined)
        if axes and is_in_order and any(dim.parts for dim in joined):
            dims[along] = DimFact(None, is_movable=True, woven=axes)
    return _combine(eqn, facts, dims)


def stack(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """An additional dim, which is unsharded."""
    dims = _join_operands(facts)
    dims.insert(eqn.params["axis"], UNSHARDED)
    return _combine(eqn, facts, dims)


def sort(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A sharded dim is sorted on each shard."""
    dims = slice_dims_at(tuple(_join_operands(facts)), eqn.params["dimension"])
    return _combine(eqn, facts, dims) * len(eqn.outvars)


def top_k(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The largest elements of a sharded dim on each shard."""
    along = eqn.params.get("axis", len(facts[0].dims) - 1) % len(facts[0].dims)
    return _map_dims(eqn, facts, slice_dims_at, along)


def gather(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A dim that is taken in full is sharded as before, a dim from the indices is sharded like theirs."""
    sizes, shape = eqn.params["slice_sizes"], eqn.invars[0].aval.shape
    is_cut = [size != length for size, length in zip(sizes, shape, strict=True)]
    pairs = gathered_dims(eqn)
    dims = [UNKNOWN if operand == 0 and is_cut[dim] else facts[operand].dims[dim] for operand, dim in pairs]
    return _combine(eqn, facts, dims)


def gathered_dims(eqn: Any) -> list[tuple[int, int]]:
    """For each dim of a gather's result, its source operand (0 the array, 1 the indices) and the dim in it."""
    numbers, rank = eqn.params["dimension_numbers"], len(eqn.invars[0].aval.shape)
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    taken, brought = iter([at for at in range(rank) if at not in gone]), itertools.count()
    places = range(len(eqn.outvars[0].aval.shape))
    return [(0, next(taken)) if at in numbers.offset_dims else (1, next(brought)) for at in places]


def iota(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The same numbers on every shard."""
    return [lattice.invarying(len(eqn.outvars[0].aval.shape))]
