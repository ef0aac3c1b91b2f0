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
    ways, axes = layouts(shards.shape[len(sizes) :], sizes, expected), tuple(sizes)
    wholes = [dim_axes for dim_axes, reduced in ways if not reduced]
    values = [(dim_axes, assemble(shards, axes, dim_axes, {})) for dim_axes in wholes]
    for dim_axes, value in values:
        if value is not None and any(is_same(value, right) for right in expected):
            return Agreement("global", dim_axes)
    for dim_axes, value in values:
        if value is not None and (over := _scaled_over(value, sizes, expected)):
            return Agreement("reduced", dim_axes, tuple((axis, "scaled") for axis in over))
    for dim_axes, reduced in ways[len(wholes) :]:
        value = assemble(shards, axes, dim_axes, reduced)
        if value is not None and any(is_same(value, right) for right in expected):
            return Agreement("reduced", dim_axes, tuple(reduced.items()))
    for dim_axes in wholes:
        if any(_are_nearly(shards, sizes, dim_axes, right) for right in expected):
            return Agreement("nearly", dim_axes)
    if any(_are_blocks(shards.reshape(-1, *shards.shape[len(sizes) :]), right) for right in expected):
        return Agreement("blocks")
    return Agreement("own")


def _scaled_over(value: HostArray, sizes: Mapping[str, int], expected: Sequence[HostArray]) -> tuple[str, ...]:
    """The mesh axes by whose size a value is multiplied or divided; empty if it is not."""
    longer = [axis for axis in sizes if sizes[axis] > 1]
    rights = [right for right in expected if right.any() and right.dtype.kind in "fc"]
    for axes in (axes for count in range(1, len(longer) + 1) for axes in combinations(longer, count)):
        size = float(prod(sizes[axis] for axis in axes))
        if any(is_same(value, factor * right) for right in rights for factor in (size, 1 / size)):
            return axes
    return ()


def _are_nearly(shards: HostArray, sizes: Mapping[str, int], dim_axes: AxesByDim, right: HostArray) -> bool:
    """Whether most entries of every shard are those of its part of a value, whose entries are not all equal."""
    parts = split(right, sizes, dim_axes) if right.ndim == len(dim_axes) else None
    if parts is None or parts.shape != shards.shape or right.size < 2 or bool((right == right.flat[0]).all()):
        return False
    within = tuple(range(len(sizes), shards.ndim))
    near, counts = are_close(shards, parts, _rounding(shards, parts)), (shards != 0) | (parts != 0)
    return bool((2 * (near & counts).sum(within) > counts.sum(within)).all())


def _patterns(axes: Sequence[str], dim_axes: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The dims of the shards' values, with mesh axes first, and of the value that they make up; for einops."""
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


def layouts(
    shape: tuple[int, ...], sizes: Mapping[str, int], expected: Sequence[HostArray]
) -> list[tuple[AxesByDim, dict[str, str]]]:
    """The ways in which shards of a shape may make up one of the values: parts before sums."""
    longer = [axis for axis in sizes if sizes[axis] > 1]
    shapes, tried = {value.shape for value in expected}, list[tuple[AxesByDim, dict[str, str]]]()
    for chosen in product(["same", *range(len(shape)), *_REDUCTIONS], repeat=len(longer)):
        dims = [[axis for axis, way in zip(longer, chosen, strict=True) if way == dim] for dim in range(len(shape))]
        full = tuple(n * prod(sizes[a] for a in dim) for n, dim in zip(shape, dims, strict=True))
        if full in shapes:
            reduced = {axis: str(way) for axis, way in zip(longer, chosen, strict=True) if way in _REDUCTIONS}
            tried += [(tuple(map(tuple, ordered)), reduced) for ordered in product(*map(permutations, dims))]
    return sorted(tried, key=lambda way: len(way[1]))


def assemble(
    shards: HostArray, axes: Sequence[str], dim_axes: Sequence[Sequence[str]], reduced: Mapping[str, str]
) -> HostArray | None:
    """The global value of these shards; None if shards differ that should be the same."""
    left = list(axes)
    for axis, how in reduced.items():
        if shards.dtype == bool and how in ("sum", "mean"):
            return None
        shards = _REDUCTIONS[how](shards, axis=left.index(axis))
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
    blocks, allowed = parts.reshape(-1, *shape), _rounding(shards, expected)
    return all(any(are_close(shard, block, allowed).all() for block in blocks) for shard in shards)


def is_same(a: HostArray, b: HostArray) -> bool:
    """Whether two arrays are equal up to rounding."""
    return a.shape == b.shape and bool(are_close(a, b, _rounding(a, b)).all())


def _rounding(a: HostArray, b: HostArray) -> float:
    """The difference between two arrays that rounding explains, from the largest entry of the second."""
    units = [unit_of(array.dtype) for array in (a, b) if _jax.array.is_inexact(array.dtype)]
    return min(_UNITS * max(units, default=0.0), _MOST) * scale_of(b)
