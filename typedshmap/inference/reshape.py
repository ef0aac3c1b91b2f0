"""Transfer rules of operations that move, slice or combine dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from .elementwise import transfer_unreduced
from .interpreter import Interpreter
from .lattice import UNKNOWN, UNSHARDED, DimFact, ShardingFact, drop_repeated_axes, join_dims, varying_of

Dims = tuple[DimFact, ...]


def _map_dims(
    eqn: Any, facts: list[ShardingFact], how: Callable[..., Sequence[DimFact]], *what: Any
) -> list[ShardingFact]:
    """One result, whose dims come from the first operand's; it varies where the operands do."""
    if len(facts) == 1 and not facts[0].unreduced:
        return [_map_fact_dims(facts[0], how, *what)]
    varying, unreduced = transfer_unreduced(eqn.primitive.name, facts)
    return [ShardingFact(varying, unreduced, drop_repeated_axes(tuple(how(facts[0].dims, *what))))]


@lru_cache(maxsize=4096)
def _map_fact_dims(fact: ShardingFact, how: Callable[..., Sequence[DimFact]], *what: Any) -> ShardingFact:
    """The same with dims computed from its own; remembered, since most equations have one operand."""
    return fact.with_dims(how(fact.dims, *what))


def _sliced_dim(dim: DimFact) -> DimFact:
    """A dim that is sliced: of an unsharded one each shard has the same part, of another it is not known which."""
    return UNSHARDED if dim == UNSHARDED else UNKNOWN


def broadcast_in_dim(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """New dims are unsharded, and so is one that grows from size 1."""
    shape, sizes = eqn.params["shape"], eqn.invars[0].aval.shape
    return _map_dims(eqn, facts[:1], _broadcast, sizes, shape, eqn.params["broadcast_dimensions"])


def _broadcast(dims: Dims, before: Any, after: Any, places: Any) -> Dims:
    found = [UNSHARDED] * len(after)
    for at, to in enumerate(places):
        found[to] = dims[at] if before[at] == after[to] else UNSHARDED
    return tuple(found)


def transpose(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The same dims in another order."""
    return _map_dims(eqn, facts, _permute_dims, eqn.params["permutation"])


def _permute_dims(dims: Dims, order: Any) -> Dims:
    return tuple(dims[at] for at in order)


def squeeze(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Dims of size 1 that are removed."""
    return _map_dims(eqn, facts, _remove_dims, eqn.params["dimensions"])


def _remove_dims(dims: Dims, gone: Any) -> Dims:
    places = {at % len(dims) for at in gone}
    return tuple(dim for at, dim in enumerate(dims) if at not in places)


def reshape(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Each group of dims by itself."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if eqn.params.get("dimensions") is not None:
        return _map_dims(eqn, facts[:1], _all_unknown, len(after))
    return _map_dims(eqn, facts[:1], reshape_dims, before, after)


def _all_unknown(dims: Dims, rank: int) -> Dims:
    return (UNKNOWN,) * rank


def reshape_dims(dims: Dims, before: Sequence[int], after: Sequence[int]) -> Dims:
    """The dims after a reshape: each group of dims that becomes another group, by itself.

    Where one dim becomes several, the most major one is sharded over its axes, and they are movable.
    """
    if prod(before) == 0:
        return (UNKNOWN,) * len(after)
    found: list[DimFact] = []
    start = end = 0
    at = 0
    while at < len(after) or start < len(before):
        end, to = _group_ends(before, after, start, at)
        found += _regroup_dims(dims[start:end], before[start:end], after[at:to])
        start, at = end, to
    if len(after) == len(before):
        return tuple(found)
    # Beside a dim of size 1 that was added or removed, either may be the one that is sharded.
    return tuple(
        dim._replace(is_movable=True) if dim.is_sharded and 1 in (*after[max(at - 1, 0) : at], *after[at + 1 : at + 2])
        else dim
        for at, dim in enumerate(found)
    )  # fmt: skip


def _group_ends(before: Sequence[int], after: Sequence[int], start: int, at: int) -> tuple[int, int]:
    """The ends of the smallest groups of dims, from two dims on, that have equally many elements."""
    if start < len(before) and at < len(after) and before[start] == after[at]:
        return start + 1, at + 1
    end, to, sharded, made = start, at, 1, 1
    while end < len(before) and before[end] == 1:
        end += 1
    while to < len(after) and after[to] == 1:
        to += 1
    if end > start or to > at:  # dims of size 1 that are added or removed, by themselves
        return (end, at) if end > start else (start, to)
    while sharded != made or end == start:
        if sharded <= made and end < len(before):
            sharded, end = sharded * before[end], end + 1
        else:
            made, to = made * after[to], to + 1
    return end, to


def _regroup_dims(dims: Sequence[DimFact], before: Sequence[int], after: Sequence[int]) -> list[DimFact]:
    """One group: axes stay on its most major dim, if they were there; what is only claimed is not followed."""
    if len(dims) == len(after) == 1:
        return list(dims)
    if not after or all(dim == UNSHARDED for dim in dims):
        return [UNSHARDED] * len(after)
    major = dims[0]
    if (
        major.from_claim
        or not major.is_sharded
        or before[0] == 1
        or after[0] == 1
        or any(d != UNSHARDED for d in dims[1:])
    ):
        return [UNKNOWN] * len(after)
    return [major._replace(is_movable=major.is_movable or len(after) > 1), *[UNSHARDED] * (len(after) - 1)]


def rev(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A sharded dim is reversed on each shard."""
    return _map_dims(eqn, facts, _slice_dims_at, *eqn.params["dimensions"])


def _slice_dims_at(dims: Dims, *places: int) -> Dims:
    return tuple(_sliced_dim(dim) if at in places else dim for at, dim in enumerate(dims))


def slice_or_pad(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Slices and pads: a dim that keeps its size is the same; one that does not is sliced."""
    return _map_dims(eqn, facts, _slice_resized, eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)


def _slice_resized(dims: Dims, before: Any, after: Any) -> Dims:
    return tuple(dim if a == b else _sliced_dim(dim) for dim, a, b in zip(dims, before, after, strict=True))


def tile(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Dims that are repeated."""
    return _map_dims(eqn, facts, _slice_dims_at, *(at for at, times in enumerate(eqn.params["reps"]) if times != 1))


def fft(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A Fourier transform of the last dims."""
    rank = len(facts[0].dims)
    dims = _slice_dims_at(facts[0].dims, *range(rank - len(eqn.params["fft_lengths"]), rank))
    return [ShardingFact(varying_of(facts), frozenset(), dims)]


def reduce_window(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A reduction of windows; a dim along which these have one element each is the same."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    ways = zip(facts[0].dims, before, after, eqn.params["window_dimensions"], strict=True)
    dims = tuple(dim if a == b and size == 1 else _sliced_dim(dim) for dim, a, b, size in ways)
    return [ShardingFact(varying_of(facts), frozenset(), dims)]


def dynamic_slice(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """As a slice, but where the start varies the part of an unsharded dim may be any part."""
    how = _forget_resized if varying_of(facts[1:]) else _slice_resized
    return _map_dims(eqn, facts, how, eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)


def _forget_resized(dims: Dims, before: Any, after: Any) -> Dims:
    return tuple(dim if a == b else UNKNOWN for dim, a, b in zip(dims, before, after, strict=True))


def scatter(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Scatters and updates in place: the result is sharded as what is written into."""
    return [ShardingFact(varying_of(facts), frozenset(), facts[0].dims)]


def concatenate(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Along a sharded dim, the parts of the shards are interleaved."""
    along, dims = eqn.params["dimension"], list(facts[0].dims)
    for fact in facts[1:]:
        dims = [join_dims(a, b) for a, b in zip(dims, fact.dims, strict=True)]
    if len(facts) > 1:
        dims[along] = UNSHARDED if all(fact.dims[along] == UNSHARDED for fact in facts) else UNKNOWN
    varying, _ = transfer_unreduced("concatenate", facts)
    return [ShardingFact(varying, frozenset(), drop_repeated_axes(tuple(dims)))]


def stack(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """An additional dim, which is unsharded."""
    dims = list(facts[0].dims)
    for fact in facts[1:]:
        dims = [join_dims(a, b) for a, b in zip(dims, fact.dims, strict=True)]
    dims.insert(eqn.params["axis"], UNSHARDED)
    return [ShardingFact(varying_of(facts), frozenset(), drop_repeated_axes(tuple(dims)))]


def split(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A sharded dim is split on each shard."""
    return _map_dims(eqn, facts, _slice_dims_at, eqn.params["axis"]) * len(eqn.outvars)


def unstack(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A value per index of a dim."""
    dims = _remove_dims(facts[0].dims, (eqn.params["axis"],))
    return [ShardingFact(varying_of(facts), frozenset(), dims)] * len(eqn.outvars)


def reduction(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The dims that are not reduced."""
    count = len(eqn.outvars)
    return _map_dims(eqn, facts[:count], _remove_dims, eqn.params["axes"]) * count


def sort(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A sharded dim is sorted on each shard."""
    along, varying = eqn.params["dimension"], varying_of(facts)
    dims = facts[0].dims
    for fact in facts[1:]:
        dims = tuple(join_dims(a, b) for a, b in zip(dims, fact.dims, strict=True))
    return [ShardingFact(varying, frozenset(), drop_repeated_axes(_slice_dims_at(dims, along)))] * len(eqn.outvars)


def top_k(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Of a sharded dim, the largest on each shard."""
    along = eqn.params.get("axis", len(facts[0].dims) - 1) % len(facts[0].dims)
    return [ShardingFact(varying_of(facts), frozenset(), _slice_dims_at(facts[0].dims, along))] * len(eqn.outvars)


def gather(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A dim that is taken in full is sharded as it was, one that the indices add as theirs."""
    numbers, operand, indices = eqn.params["dimension_numbers"], facts[0], facts[1]
    sizes, shape = eqn.params["slice_sizes"], eqn.invars[0].aval.shape
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [at for at in range(len(shape)) if at not in gone]
    taken = iter(operand.dims[at] if sizes[at] == shape[at] else UNKNOWN for at in kept)
    brought = iter(indices.dims[:-1])
    rank = len(eqn.outvars[0].aval.shape)
    dims = [next(taken) if at in numbers.offset_dims else next(brought) for at in range(rank)]
    return [ShardingFact(varying_of(facts), frozenset(), drop_repeated_axes(tuple(dims)))]


def iota(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The same numbers on every shard."""
    return [ShardingFact(varying_of(facts), frozenset(), (UNSHARDED,) * len(eqn.outvars[0].aval.shape))]


RULES = {
    "broadcast_in_dim": broadcast_in_dim,
    "transpose": transpose,
    "squeeze": squeeze,
    "reshape": reshape,
    "rev": rev,
    "slice": slice_or_pad,
    "pad": slice_or_pad,
    "tile": tile,
    "fft": fft,
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), reduce_window),
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": scatter,
    "concatenate": concatenate,
    "stack": stack,
    "split": split,
    "unstack": unstack,
    "sort": sort,
    "top_k": top_k,
    "gather": gather,
    "iota": iota,
    **dict.fromkeys(("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter_add",
                     "scatter_sub", "scatter-sub"), scatter),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor",
                     "argmax", "argmin"), reduction),
}  # fmt: skip
