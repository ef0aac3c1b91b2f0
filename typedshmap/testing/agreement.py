"""How the values of the shards make the value on one device: as its parts, as addends, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, permutations, product
from math import prod
from typing import Any, Literal

import einops
import jax
import numpy as np

from .. import _jax
from ..inference.lattice import ShardingFact
from .run import HostArray

Kind = Literal["global", "reduced", "blocks", "differs", "own", "unknown"]
_REDUCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
_MOST_BLOCKS = 512


@dataclass(frozen=True)
class Agreement:
    """What the shards' values come to.

    Attributes:
      kind: ``global`` where their parts are the value on one device; ``reduced`` where it is a sum, a mean, a maximum
        or a minimum of theirs; ``blocks`` where every shard has some part of it; ``differs`` where they are known to
        make a global value, which is another one; ``own`` where they are none that one device has; ``unknown`` where
        they were not compared.
      dim_axes: the mesh axes of each dim.
      reduced: by mesh axis, how the shards along it are put together.
      global_value: the other value that they make, if ``differs``.
      expected: that on one device, if ``differs``.
      is_mostly: whether most entries of every shard are right.
    """

    kind: Kind
    dim_axes: tuple[tuple[str, ...], ...] = ()
    reduced: tuple[tuple[str, str], ...] = ()
    global_value: HostArray | None = None
    expected: HostArray | None = None
    is_mostly: bool = False


def agreement(
    shards: HostArray, sizes: Mapping[str, int], expected: Sequence[HostArray], fact: ShardingFact | None
) -> Agreement:
    """How the shards' values make one of the values that are expected."""
    axes, known = tuple(sizes), _known_layout(fact, sizes)
    ways = layouts(shards.shape[len(axes) :], sizes, expected, fact)
    if known is not None:  # no other layout of parts is tried
        hows = ("sum", "mean") if known[1] else ("sum",)
        ways = chain(((known[0], dict.fromkeys(known[1], how)) for how in hows), (way for way in ways if way[1]))
    for dim_axes, reduced in ways:
        value = assemble(shards, axes, dim_axes, reduced)
        if value is not None and any(is_same(value, right) for right in expected):
            return Agreement("reduced" if reduced else "global", dim_axes, tuple(reduced.items()))
    if (near := _nearly(shards, sizes, expected, fact)) is not None:
        return near
    if known is not None and not known[1] and (value := assemble(shards, axes, known[0], {})) is not None:
        same_shape = [right for right in expected if right.shape == value.shape]
        for right in same_shape:
            for factor, scaled in _factors(sizes) if right.any() and right.dtype.kind in "fc" else ():
                if is_same(value, factor * right):
                    return Agreement("reduced", known[0], tuple((axis, "scaled") for axis in scaled))
        if same_shape:
            return Agreement("differs", known[0], (), value, same_shape[0])
    if any(_are_blocks(shards.reshape(-1, *shards.shape[len(axes) :]), right) for right in expected):
        return Agreement("blocks")
    return Agreement("own")


def _factors(sizes: Mapping[str, int]) -> Iterator[tuple[float, tuple[str, ...]]]:
    """What values are multiplied by that are counted by the number of shards, or divided by it."""
    longer = [axis for axis in sizes if sizes[axis] > 1]
    for count in range(1, len(longer) + 1):
        for axes in combinations(longer, count):
            size = prod(sizes[axis] for axis in axes)
            yield from ((float(size), axes), (1 / size, axes))


def _nearly(
    shards: HostArray, sizes: Mapping[str, int], expected: Sequence[HostArray], fact: ShardingFact | None
) -> Agreement | None:
    """Parts of a value of which most entries are right on every shard, and not all of them equal."""
    rank, axes = shards.ndim - len(sizes), tuple(sizes)
    for dim_axes, reduced in layouts(shards.shape[len(axes) :], sizes, expected, fact):
        if reduced:
            continue
        for value in (right for right in expected if right.ndim == rank):
            parts = split(value, sizes, dim_axes)
            if parts is None or parts.shape != shards.shape or value.size < 2 or bool((value == value.flat[0]).all()):
                continue
            within = tuple(range(len(axes), len(axes) + rank))
            near, counts = _close(shards, parts, _scale(value)), (shards != 0) | (parts != 0)
            if (2 * (near & counts).sum(within) > counts.sum(within)).all():
                return Agreement("differs", dim_axes, (), assemble(shards, axes, dim_axes, {}), value, is_mostly=True)
    return None


def wrong_entries(value: Agreement, sizes: Mapping[str, int]) -> HostArray | None:
    """A mask of a shard's entries that are wrong on any shard."""
    if value.global_value is None or value.expected is None:
        return None
    wrong = ~_close(value.global_value, value.expected, _scale(value.expected))
    parts = split(wrong, sizes, value.dim_axes)
    return None if parts is None else np.asarray(parts.any(tuple(range(len(sizes)))))


def _patterns(axes: Sequence[str], dim_axes: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The dims of the shards' values, those of some mesh axes first, and of the value that they make; for einops."""
    names = {axis: f"a{at}" for at, axis in enumerate(axes)}
    unsharded = [" ".join([*(names[axis] for axis in sharding), f"d{dim}"]) for dim, sharding in enumerate(dim_axes)]
    shards = [*names.values(), *(f"d{dim}" for dim in range(len(dim_axes)))]
    return " ".join(shards), " ".join(f"({dims})" for dims in unsharded)


def split(value: HostArray, sizes: Mapping[str, int], dim_axes: Sequence[Sequence[str]]) -> HostArray | None:
    """The parts of a value on all shards, along leading dims, one per mesh axis."""
    counts = [prod(sizes[axis] for axis in axes) for axes in dim_axes]
    if any(size % count for size, count in zip(value.shape, counts, strict=True)):
        return None
    shards, unsharded = _patterns(list(sizes), dim_axes)
    return einops.repeat(
        np.asarray(value), f"{unsharded} -> {shards}", **{f"a{at}": size for at, size in enumerate(sizes.values())}
    )


def _known_layout(
    fact: ShardingFact | None, sizes: Mapping[str, int]
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]] | None:
    """The axes of each dim and those to be summed over, where both are known."""
    if fact is None or any(dim.axes is None for dim in fact.dims):
        return None
    dim_axes = tuple(tuple(axis for axis in dim.axes or () if sizes.get(axis, 1) > 1) for dim in fact.dims)
    summed = tuple(axis for axis in sizes if axis in fact.due | fact.unreduced and sizes[axis] > 1)
    placed = {axis for axes in dim_axes for axis in axes}
    rest = {axis for axis in fact.varying if sizes.get(axis, 1) > 1} - placed - {*summed}
    return None if rest or placed & {*summed} else (dim_axes, summed)


def layouts(
    shape: tuple[int, ...], sizes: Mapping[str, int], expected: Sequence[HostArray], fact: ShardingFact | None
) -> Iterator[tuple[tuple[tuple[str, ...], ...], dict[str, str]]]:
    """The ways in which shards of a shape may make one of the values: parts before sums."""
    longer = [axis for axis in sizes if sizes[axis] > 1]
    varying = None if fact is None else fact.varying | fact.due | fact.unreduced
    ways = [
        ["same", *range(len(shape)), *_REDUCTIONS] if varying is None or a in varying else ["same", "sum"]
        for a in longer
    ]
    tried = list[tuple[tuple[tuple[str, ...], ...], dict[str, str]]]()
    shapes = {value.shape for value in expected}
    for chosen in product(*ways):
        dims = [[axis for axis, way in zip(longer, chosen, strict=True) if way == dim] for dim in range(len(shape))]
        full = tuple(n * prod(sizes[a] for a in dim) for n, dim in zip(shape, dims, strict=True))
        if full not in shapes:
            continue
        reduced = {axis: str(way) for axis, way in zip(longer, chosen, strict=True) if way in _REDUCTIONS}
        tried += [(tuple(map(tuple, ordered)), reduced) for ordered in product(*map(permutations, dims))]
    yield from sorted(tried, key=lambda way: len(way[1]))


def assemble(
    shards: HostArray, axes: Sequence[str], dim_axes: Sequence[Sequence[str]], reduced: Mapping[str, str]
) -> HostArray | None:
    """The global value of which these are the shards; None where shards differ that are said to be the same."""
    left = list(axes)
    for axis, how in reduced.items():
        at = left.index(axis)
        if shards.dtype == bool and how in ("sum", "mean"):
            return None
        shards = _REDUCTIONS[how](shards, axis=at)
        left.remove(axis)
    placed = [axis for dim in dim_axes for axis in dim]
    for axis in [axis for axis in left if axis not in placed]:
        at = left.index(axis)
        first = shards.take(0, at)
        if not is_same(shards, np.broadcast_to(np.expand_dims(first, at), shards.shape)):
            return None
        shards = first
        left.remove(axis)
    return einops.rearrange(np.asarray(shards), " -> ".join(_patterns(left, dim_axes)))


def _are_blocks(shards: HostArray, expected: HostArray) -> bool:
    """Whether each shard is a block of a value, at a multiple of its size along every dim."""
    shape = shards.shape[1:]
    if len(shape) != expected.ndim or 0 in shape or any(n % m for n, m in zip(expected.shape, shape, strict=True)):
        return False
    counts = {str(dim): n // m for dim, (n, m) in enumerate(zip(expected.shape, shape, strict=True))}
    if not 1 < prod(counts.values()) <= _MOST_BLOCKS:
        return False
    parts = split(expected, counts, [[dim] for dim in counts])
    assert parts is not None
    blocks = parts.reshape(-1, *shape)
    scale = _scale(expected)
    return all(any(is_same(shard, block, scale) for block in blocks) for shard in shards)


def is_same(a: HostArray, b: HostArray, scale: float | None = None) -> bool:
    """Whether two arrays are equal up to rounding."""
    if a.shape != b.shape:
        return False
    return bool(_close(a, b, _scale(b) if scale is None else scale).all())


def _close(a: HostArray, b: HostArray, scale: float) -> HostArray:
    """A mask of the entries that are equal up to rounding, by the largest entry."""
    wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    allowed = min(_UNITS * max(_unit(a.dtype), _unit(b.dtype)), _MOST) * scale
    a, b = a.astype(wide), b.astype(wide)
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= allowed
    return near | (a == b) | (np.isnan(a) & np.isnan(b))


_UNITS, _MOST = 1024.0, 0.05


@lru_cache(maxsize=64)
def _unit(dtype: Any) -> float:
    return float(jax.numpy.finfo(dtype).eps) / 2 if _jax.array.is_inexact(dtype) else 0.0


def _scale(values: HostArray) -> float:
    wide = np.abs(values.astype(np.complex128 if values.dtype.kind == "c" else np.float64))
    return float(np.max(wide, initial=0.0, where=np.isfinite(wide)))
