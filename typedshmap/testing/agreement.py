"""How the values of the shards make the value on one device: as its parts, as addends, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations, product
from math import prod
from typing import Any, Literal

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
    axes = tuple(sizes)
    known = _known_layout(fact, sizes)
    if known is not None:
        dim_axes, summed = known
        for how in ("sum", "mean") if summed else ("sum",):
            found = assemble(shards, axes, dim_axes, dict.fromkeys(summed, how))
            if found is not None and any(is_same(found, each) for each in expected):
                return Agreement("reduced" if summed else "global", dim_axes, tuple((a, how) for a in summed))
    for dim_axes, reduced in layouts(shards.shape[len(axes) :], sizes, expected, fact):
        if known is not None and not reduced:
            continue
        found = assemble(shards, axes, dim_axes, reduced)
        if found is not None and any(is_same(found, each) for each in expected):
            kind = "reduced" if reduced else "global"
            return Agreement(kind, dim_axes, tuple(reduced.items()))
    if (near := _nearly(shards, sizes, expected, fact)) is not None:
        return near
    if known is not None and not known[1]:
        found = assemble(shards, axes, known[0], {})
        same = [each for each in expected if found is not None and found.shape == each.shape]
        for value in same:
            for factor, scaled in _factors(sizes):
                if found is not None and value.any() and value.dtype.kind in "fc" and is_same(found, factor * value):
                    how = tuple((axis, "scaled") for axis in scaled)
                    return Agreement("reduced", known[0], how)
        if same:
            return Agreement("differs", known[0], (), found, same[0])
    if any(_are_blocks(shards.reshape(-1, *shards.shape[len(axes) :]), each) for each in expected):
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
        for value in (each for each in expected if each.ndim == rank):
            parts = split(value, sizes, dim_axes)
            if parts is None or parts.shape != shards.shape or value.size < 2 or bool((value == value.flat[0]).all()):
                continue
            within = tuple(range(len(axes), len(axes) + rank))
            near, counts = _close(shards, parts, _scale(value)), (shards != 0) | (parts != 0)
            if (2 * (near & counts).sum(within) > counts.sum(within)).all():
                return Agreement("differs", dim_axes, (), assemble(shards, axes, dim_axes, {}), value, is_mostly=True)
    return None


def wrong_entries(found: Agreement, sizes: Mapping[str, int]) -> HostArray | None:
    """A mask of a shard's entries that are wrong on any shard."""
    if found.global_value is None or found.expected is None:
        return None
    wrong = ~_close(found.global_value, found.expected, _scale(found.expected))
    parts = split(wrong, sizes, found.dim_axes)
    return None if parts is None else np.asarray(parts.any(tuple(range(len(sizes)))))


def split(value: HostArray, sizes: Mapping[str, int], dim_axes: Sequence[Sequence[str]]) -> HostArray | None:
    """The parts of a value on all shards, along leading dims, one per mesh axis."""
    shape, order = list[int](), list[str | int]()
    for dim, (size, each) in enumerate(zip(value.shape, dim_axes, strict=True)):
        count = prod(sizes[axis] for axis in each)
        if size % count:
            return None
        shape += [*(sizes[axis] for axis in each), size // count]
        order += [*each, dim]
    placed = [axis for axis in sizes if axis in order]
    parts = value.reshape(shape).transpose([order.index(each) for each in (*placed, *range(len(dim_axes)))])
    missing = tuple(at for at, axis in enumerate(sizes) if axis not in order)
    parts = np.expand_dims(parts, missing)
    return np.broadcast_to(parts, (*sizes.values(), *parts.shape[len(sizes) :]))


def _known_layout(
    fact: ShardingFact | None, sizes: Mapping[str, int]
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]] | None:
    """The axes of each dim and those to be summed over, where both are known."""
    if fact is None or any(dim.axes is None for dim in fact.dims):
        return None
    dim_axes = tuple(tuple(axis for axis in dim.axes or () if sizes.get(axis, 1) > 1) for dim in fact.dims)
    summed = tuple(axis for axis in sizes if axis in fact.due | fact.unreduced and sizes[axis] > 1)
    placed = {axis for each in dim_axes for axis in each}
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
    found = list[tuple[int, tuple[tuple[str, ...], ...], dict[str, str]]]()
    shapes = {each.shape for each in expected}
    for chosen in product(*ways):
        dims = [[axis for axis, way in zip(longer, chosen, strict=True) if way == dim] for dim in range(len(shape))]
        full = tuple(n * prod(sizes[a] for a in each) for n, each in zip(shape, dims, strict=True))
        if full not in shapes:
            continue
        reduced = {axis: str(way) for axis, way in zip(longer, chosen, strict=True) if way in _REDUCTIONS}
        for ordered in product(*map(permutations, dims)):
            found.append((len(reduced), tuple(map(tuple, ordered)), reduced))
    yield from ((dim_axes, reduced) for _, dim_axes, reduced in sorted(found, key=lambda each: each[0]))


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
    placed = [axis for each in dim_axes for axis in each]
    for axis in [axis for axis in left if axis not in placed]:
        at = left.index(axis)
        first = shards.take(0, at)
        if not is_same(shards, np.broadcast_to(np.expand_dims(first, at), shards.shape)):
            return None
        shards = first
        left.remove(axis)
    rank = len(dim_axes)
    order, shape = list[int](), list[int]()
    for dim, each in enumerate(dim_axes):
        order += [*(left.index(axis) for axis in each), len(left) + dim]
        shape.append(prod(shards.shape[left.index(axis)] for axis in each) * shards.shape[len(left) + dim])
    assert len(order) == shards.ndim and rank == len(shape)
    return shards.transpose(order).reshape(shape)


def _are_blocks(shards: HostArray, expected: HostArray) -> bool:
    """Whether each shard is a block of a value, at a multiple of its size along every dim."""
    shape = shards.shape[1:]
    if len(shape) != expected.ndim or 0 in shape or any(n % m for n, m in zip(expected.shape, shape, strict=True)):
        return False
    counts = [n // m for n, m in zip(expected.shape, shape, strict=True)]
    if prod(counts) > _MOST_BLOCKS or prod(counts) == 1:
        return False
    split = expected.reshape([size for pair in zip(counts, shape, strict=True) for size in pair])
    rank = len(shape)
    blocks = split.transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]).reshape(-1, *shape)
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
