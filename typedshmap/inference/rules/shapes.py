"""Operations that move, cut or put together dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from ..facts import UNKNOWN, WHOLE, Dim, Fact, meet, settled, varying_of
from ..reader import Reader
from .pointwise import owed_after

Dims = tuple[Dim, ...]


def _moved(eqn: Any, facts: list[Fact], how: Callable[..., Sequence[Dim]], *what: Any) -> list[Fact]:
    """One result, whose dims are made of the first operand's; its shards differ as the operands do."""
    if len(facts) == 1 and not facts[0].owed:
        return [_lying(facts[0], how, *what)]
    varying, owed = owed_after(eqn.primitive.name, facts)
    return [Fact(varying, owed, settled(tuple(how(facts[0].dims, *what))))]


@lru_cache(maxsize=4096)
def _lying(fact: Fact, how: Callable[..., Sequence[Dim]], *what: Any) -> Fact:
    """The same over the mesh, with its dims made anew."""
    return fact.lying(how(fact.dims, *what))


def _cut(dim: Dim) -> Dim:
    """A dim of which a part is taken: of a whole one any shard has the same part, of another not known which."""
    return WHOLE if dim == WHOLE else UNKNOWN


def broadcast_in_dim(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """New dims are whole; one that grows from size 1 is the same all along."""
    shape, sizes = eqn.params["shape"], eqn.invars[0].aval.shape
    return _moved(eqn, facts[:1], _broadcast, sizes, shape, eqn.params["broadcast_dimensions"])


def _broadcast(dims: Dims, before: Any, after: Any, places: Any) -> Dims:
    found = [WHOLE] * len(after)
    for at, to in enumerate(places):
        found[to] = dims[at] if before[at] == after[to] else WHOLE
    return tuple(found)


def transpose(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """The same dims in another order."""
    return _moved(eqn, facts, _in_order, eqn.params["permutation"])


def _in_order(dims: Dims, order: Any) -> Dims:
    return tuple(dims[at] for at in order)


def squeeze(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """Dims of size 1 that go."""
    return _moved(eqn, facts, _without, eqn.params["dimensions"])


def _without(dims: Dims, gone: Any) -> Dims:
    places = {at % len(dims) for at in gone}
    return tuple(dim for at, dim in enumerate(dims) if at not in places)


def reshape(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """Groups of dims, each by itself."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if eqn.params.get("dimensions") is not None:
        return _moved(eqn, facts[:1], _none_known, len(after))
    return _moved(eqn, facts[:1], reshaped, before, after)


def _none_known(dims: Dims, rank: int) -> Dims:
    return (UNKNOWN,) * rank


def reshaped(dims: Dims, before: Sequence[int], after: Sequence[int]) -> Dims:
    """The dims after a reshape: each group of dims that becomes another group, by itself.

    Where one dim becomes several its axes stay on the most major, loosely.
    """
    if prod(before) == 0:
        return (UNKNOWN,) * len(after)
    found: list[Dim] = []
    start = end = 0
    at = 0
    while at < len(after) or start < len(before):
        end, to = _group(before, after, start, at)
        found += _regrouped(dims[start:end], before[start:end], after[at:to])
        start, at = end, to
    if len(after) == len(before):
        return tuple(found)
    # Beside a dim of size 1 that came or went, the dim that an axis was on may be either.
    return tuple(
        dim._replace(is_loose=True) if dim.is_split and _has_one_beside(after, at) else dim
        for at, dim in enumerate(found)
    )


def _has_one_beside(shape: Sequence[int], at: int) -> bool:
    return 1 in shape[max(at - 1, 0) : at] or 1 in shape[at + 1 : at + 2]


def _group(before: Sequence[int], after: Sequence[int], start: int, at: int) -> tuple[int, int]:
    """The ends of the smallest groups of dims, from two places on, that hold as many elements."""
    if start < len(before) and at < len(after) and before[start] == after[at]:
        return start + 1, at + 1
    end, to, held, made = start, at, 1, 1
    while end < len(before) and before[end] == 1:
        end += 1
    while to < len(after) and after[to] == 1:
        to += 1
    if end > start or to > at:
        return _group_of_ones(start, end, at, to)
    while held != made or end == start:
        if held <= made and end < len(before):
            held, end = held * before[end], end + 1
        else:
            made, to = made * after[to], to + 1
    return end, to


def _group_of_ones(start: int, end: int, at: int, to: int) -> tuple[int, int]:
    """Dims of size 1 that go or come, by themselves."""
    return (end, at) if end > start else (start, to)


def _regrouped(dims: Sequence[Dim], before: Sequence[int], after: Sequence[int]) -> list[Dim]:
    """One group: an axis stays on its most major dim, if it was there; what is only claimed is not followed."""
    if len(dims) == len(after) == 1:
        return list(dims)
    if not after or all(dim == WHOLE for dim in dims):
        return [WHOLE] * len(after)
    major = dims[0]
    if major.is_taught or not major.is_split or before[0] == 1 or after[0] == 1 or any(d != WHOLE for d in dims[1:]):
        return [UNKNOWN] * len(after)
    return [major._replace(is_loose=major.is_loose or len(after) > 1), *[WHOLE] * (len(after) - 1)]


def rev(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A split dim that is turned is turned on each shard."""
    return _moved(eqn, facts, _cut_at, *eqn.params["dimensions"])


def _cut_at(dims: Dims, *places: int) -> Dims:
    return tuple(_cut(dim) if at in places else dim for at, dim in enumerate(dims))


def resized(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """Slices and pads: a dim that keeps its size is the same; of one that does not, a part is taken."""
    return _moved(eqn, facts, _cut_where_resized, eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)


def _cut_where_resized(dims: Dims, before: Any, after: Any) -> Dims:
    return tuple(dim if a == b else _cut(dim) for dim, a, b in zip(dims, before, after, strict=True))


def tile(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """Dims that are repeated."""
    return _moved(eqn, facts, _cut_at, *(at for at, times in enumerate(eqn.params["reps"]) if times != 1))


def fourier(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A Fourier transform of the last dims."""
    rank = len(facts[0].dims)
    dims = _cut_at(facts[0].dims, *range(rank - len(eqn.params["fft_lengths"]), rank))
    return [Fact(varying_of(facts), frozenset(), dims)]


def windowed(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """What is computed of windows; a dim along which these hold one element each is the same."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    ways = zip(facts[0].dims, before, after, eqn.params["window_dimensions"], strict=True)
    dims = tuple(dim if a == b and size == 1 else _cut(dim) for dim, a, b, size in ways)
    return [Fact(varying_of(facts), frozenset(), dims)]


def dynamic_slice(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """As a slice, but where the start may differ a part of a whole dim may be any part."""
    how = _unknown_where_resized if varying_of(facts[1:]) else _cut_where_resized
    return _moved(eqn, facts, how, eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)


def _unknown_where_resized(dims: Dims, before: Any, after: Any) -> Dims:
    return tuple(dim if a == b else UNKNOWN for dim, a, b in zip(dims, before, after, strict=True))


def written_into(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """Scatters and updates in place: the result lies as what is written into."""
    return [Fact(varying_of(facts), frozenset(), facts[0].dims)]


def concatenate(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """Along a split dim, the parts of the shards stand between each other."""
    along, dims = eqn.params["dimension"], list(facts[0].dims)
    for fact in facts[1:]:
        dims = [meet(a, b) for a, b in zip(dims, fact.dims, strict=True)]
    if len(facts) > 1:
        dims[along] = WHOLE if all(fact.dims[along] == WHOLE for fact in facts) else UNKNOWN
    varying, _ = owed_after("concatenate", facts)
    return [Fact(varying, frozenset(), settled(tuple(dims)))]


def stack(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A dim more, which is whole."""
    dims = list(facts[0].dims)
    for fact in facts[1:]:
        dims = [meet(a, b) for a, b in zip(dims, fact.dims, strict=True)]
    dims.insert(eqn.params["axis"], WHOLE)
    return [Fact(varying_of(facts), frozenset(), settled(tuple(dims)))]


def split(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A split dim is cut on each shard."""
    return _moved(eqn, facts, _cut_at, eqn.params["axis"]) * len(eqn.outvars)


def unstack(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A value per place along a dim."""
    dims = _without(facts[0].dims, (eqn.params["axis"],))
    return [Fact(varying_of(facts), frozenset(), dims)] * len(eqn.outvars)


def reduction(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """The dims that are left."""
    count = len(eqn.outvars)
    return _moved(eqn, facts[:count], _without, eqn.params["axes"]) * count


def sort(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A split dim is sorted on each shard."""
    along, varying = eqn.params["dimension"], varying_of(facts)
    dims = facts[0].dims
    for fact in facts[1:]:
        dims = tuple(meet(a, b) for a, b in zip(dims, fact.dims, strict=True))
    return [Fact(varying, frozenset(), settled(_cut_at(dims, along)))] * len(eqn.outvars)


def top_k(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """Of a split dim, the largest on each shard."""
    along = eqn.params.get("axis", len(facts[0].dims) - 1) % len(facts[0].dims)
    return [Fact(varying_of(facts), frozenset(), _cut_at(facts[0].dims, along))] * len(eqn.outvars)


def gather(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A dim that is taken whole lies as it did, one that the indices bring as theirs."""
    numbers, operand, indices = eqn.params["dimension_numbers"], facts[0], facts[1]
    sizes, shape = eqn.params["slice_sizes"], eqn.invars[0].aval.shape
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [at for at in range(len(shape)) if at not in gone]
    taken = iter(operand.dims[at] if sizes[at] == shape[at] else UNKNOWN for at in kept)
    brought = iter(indices.dims[:-1])
    rank = len(eqn.outvars[0].aval.shape)
    dims = [next(taken) if at in numbers.offset_dims else next(brought) for at in range(rank)]
    return [Fact(varying_of(facts), frozenset(), settled(tuple(dims)))]


def iota(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """The same numbers on every shard."""
    varying = varying_of(facts)
    return [Fact(varying, frozenset(), (WHOLE,) * len(eqn.outvars[0].aval.shape))]


RULES = {
    "broadcast_in_dim": broadcast_in_dim,
    "transpose": transpose,
    "squeeze": squeeze,
    "reshape": reshape,
    "rev": rev,
    "slice": resized,
    "pad": resized,
    "tile": tile,
    "fft": fourier,
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), windowed),
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": written_into,
    "concatenate": concatenate,
    "stack": stack,
    "split": split,
    "unstack": unstack,
    "sort": sort,
    "top_k": top_k,
    "gather": gather,
    "iota": iota,
    **dict.fromkeys(("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter_add",
                     "scatter_sub", "scatter-sub"), written_into),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor",
                     "argmax", "argmin"), reduction),
}  # fmt: skip
