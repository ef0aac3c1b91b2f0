"""How the values of the shards make up the value on one device: as its parts, as addends, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import prod
from typing import Literal

import einops
import numpy as np

from .. import _jax
from .compare import are_close, scale_of, unit_of
from .run import HostArray

Kind = Literal["global", "reduced", "blocks", "nearly", "differs", "own", "unknown"]
AxesByDim = tuple[tuple[str, ...], ...]
_REDUCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
_MOST_BLOCKS = 512
_UNITS, _MOST = 1024.0, 0.05
"""The difference that counts as rounding: so many unit roundoffs of the largest entry, and at most this share of it."""


@dataclass(frozen=True)
class Agreement:
    """The relation of the shards' values to the value on one device.

    Attributes:
      kind: ``global`` if their parts are the value on one device; ``reduced`` if that is their sum, mean, maximum or
        minimum, or if they are off by the number of shards; ``blocks`` if every shard has some part of it; ``nearly``
        if most entries of every shard are right; ``differs`` if a value outside a region differs; ``own`` if none of
        these holds; ``unknown`` if they were not compared.
      dim_axes: the mesh axes of each dim.
      reduced: by mesh axis, how the shards along it are combined.
    """

    kind: Kind
    dim_axes: AxesByDim = ()
    reduced: tuple[tuple[str, str], ...] = ()


def agreement(shards: HostArray, sizes: Mapping[str, int], expected: Sequence[HostArray]) -> Agreement:
    """How the shards' values make up one of the expected values."""
    shape = shards.shape[len(sizes) :]
    ways = layouts(shape, sizes, expected)
    wholes = [(dim_axes, rights) for dim_axes, reduced, rights in ways if not reduced]
    for dim_axes, rights in wholes:
        if any(is_same(shards, split(right, sizes, dim_axes)) for right in rights):
            return Agreement("global", dim_axes)
    for dim_axes, rights in wholes:
        if over := _scaled_over(shards, sizes, [split(right, sizes, dim_axes) for right in rights]):
            return Agreement("reduced", dim_axes, tuple((axis, "scaled") for axis in over))
    for dim_axes, reduced, rights in ways[len(wholes) :]:
        if shards.dtype == bool and not {"sum", "mean"}.isdisjoint(reduced.values()):
            continue
        total, left = shards, {**sizes, **dict.fromkeys(reduced, 1)}
        for axis, how in reduced.items():
            total = _REDUCTIONS[how](total, axis=[*sizes].index(axis), keepdims=True)
        if any(is_same(total, split(right, left, dim_axes)) for right in rights):
            return Agreement("reduced", dim_axes, tuple(reduced.items()))
    for dim_axes, rights in wholes:
        if any(_are_nearly(shards, split(right, sizes, dim_axes), len(shape)) for right in rights):
            return Agreement("nearly", dim_axes)
    if any(_are_blocks(shards.reshape(-1, *shape), right) for right in expected):
        return Agreement("blocks")
    return Agreement("own")


def _scaled_over(shards: HostArray, sizes: Mapping[str, int], expected: Sequence[HostArray]) -> tuple[str, ...]:
    """The mesh axes by whose size the shards are multiplied or divided; empty without any."""
    longer = [axis for axis in sizes if sizes[axis] > 1]
    rights = [right for right in expected if right.any() and right.dtype.kind in "fc"]
    for axes in (axes for count in range(1, len(longer) + 1) for axes in combinations(longer, count)):
        size = float(prod(sizes[axis] for axis in axes))
        if any(is_same(shards, factor * right) for right in rights for factor in (size, 1 / size)):
            return axes
    return ()


def _are_nearly(shards: HostArray, parts: HostArray, rank: int) -> bool:
    """Whether most entries of every shard are those of its part of a value, whose entries are not all equal."""
    if parts.size < 2 or bool((parts == parts.flat[0]).all()):
        return False
    within = tuple(range(parts.ndim - rank, parts.ndim))
    near, counts = are_close(shards, parts, _rounding(shards, parts)), (shards != 0) | (parts != 0)
    return bool((2 * (near & counts).sum(within) > counts.sum(within)).all())


def split(value: HostArray, sizes: Mapping[str, int], dim_axes: Sequence[Sequence[str]]) -> HostArray:
    """The parts of a value on all shards, along leading dims, one per mesh axis."""
    names = {axis: f"a{at}" for at, axis in enumerate(sizes)}
    unsharded = [" ".join([*(names[axis] for axis in axes), f"d{dim}"]) for dim, axes in enumerate(dim_axes)]
    shards = [*names.values(), *(f"d{dim}" for dim in range(len(dim_axes)))]
    pattern = f"{' '.join(f'({dims})' for dims in unsharded)} -> {' '.join(shards)}"
    return einops.repeat(np.asarray(value), pattern, **{names[axis]: size for axis, size in sizes.items()})


def layouts(
    shape: tuple[int, ...], sizes: Mapping[str, int], expected: Sequence[HostArray]
) -> list[tuple[AxesByDim, dict[str, str], list[HostArray]]]:
    """The ways in which shards of a shape may make up values, each with these values: parts before sums."""
    longer = [axis for axis in sizes if sizes[axis] > 1]
    tried = list[tuple[AxesByDim, dict[str, str], list[HostArray]]]()
    for chosen in product(["same", *range(len(shape)), *_REDUCTIONS], repeat=len(longer)):
        dims = [[axis for axis, way in zip(longer, chosen, strict=True) if way == dim] for dim in range(len(shape))]
        full = tuple(n * prod(sizes[a] for a in dim) for n, dim in zip(shape, dims, strict=True))
        if values := [value for value in expected if value.shape == full]:
            reduced = {axis: str(way) for axis, way in zip(longer, chosen, strict=True) if way in _REDUCTIONS}
            tried += [(tuple(map(tuple, ordered)), reduced, values) for ordered in product(*map(permutations, dims))]
    return sorted(tried, key=lambda way: len(way[1]))


def _are_blocks(shards: HostArray, expected: HostArray) -> bool:
    """Whether each shard is a block of a value, at a multiple of its size along every dim."""
    shape = shards.shape[1:]
    if len(shape) != expected.ndim or 0 in shape or any(n % m for n, m in zip(expected.shape, shape, strict=True)):
        return False
    counts = {str(dim): n // m for dim, (n, m) in enumerate(zip(expected.shape, shape, strict=True))}
    if not 1 < prod(counts.values()) <= _MOST_BLOCKS:
        return False
    blocks = split(expected, counts, [[dim] for dim in counts]).reshape(-1, *shape)
    allowed = _rounding(shards, expected)
    return all(any(are_close(shard, block, allowed).all() for block in blocks) for shard in shards)


def is_same(a: HostArray, b: HostArray) -> bool:
    """Whether two arrays are equal up to rounding."""
    return a.shape == b.shape and bool(are_close(a, b, _rounding(a, b)).all())


def _rounding(a: HostArray, b: HostArray) -> float:
    """The difference between two arrays that rounding explains, from the largest entry of the second."""
    units = [unit_of(array.dtype) for array in (a, b) if _jax.array.is_inexact(array.dtype)]
    return min(_UNITS * max(units, default=0.0), _MOST) * scale_of(b)
