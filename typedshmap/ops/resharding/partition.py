"""How a global array is cut into shards: per dim its mesh axes, and the axes over which a sum is owed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

Parts = tuple[tuple[str, ...], ...]
Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Partition:
    """A global array's place on a mesh.

    Attributes:
      parts: per dim its mesh axes, major to minor.
      owed: the axes over which every shard holds one addend.
    """

    parts: Parts
    owed: frozenset[str] = frozenset()

    @property
    def sharded(self) -> frozenset[str]:
        """The axes that split a dim."""
        return frozenset(axis for axes in self.parts for axis in axes)

    def text(self, shape: tuple[int, ...]) -> str:
        """The pattern of this partition, ``[64/a] 32 +b``."""
        dims = [
            f"[{size}/{','.join(axes)}]" if axes else f"{size}" for size, axes in zip(shape, self.parts, strict=True)
        ]
        return " ".join([*dims, *(f"+{axis}" for axis in sorted(self.owed))])


def ways(axes: tuple[str, ...], sizes: Sizes) -> int:
    """How many blocks a dim is cut into."""
    return prod(sizes[axis] for axis in axes)


def shard_shape(parts: Parts, shape: tuple[int, ...], sizes: Sizes) -> tuple[int, ...]:
    """What one shard holds of a global shape that the axes divide."""
    return tuple(size // ways(axes, sizes) for size, axes in zip(shape, parts, strict=True))


def indivisible(parts: Parts, shape: tuple[int, ...], sizes: Sizes) -> int | None:
    """The first dim that its axes do not divide."""
    return next((i for i, axes in enumerate(parts) if shape[i] % ways(axes, sizes)), None)


def missing(held: Parts, needed: Parts, shape: tuple[int, ...], sizes: Sizes) -> int:
    """How many elements of its part some device needs and does not hold; no axis has size 1.

    A dim whose axes begin alike on both sides has blocks that lie within each other, on every
    device; of a dim that is cut differently some device holds nothing that it needs.
    """
    both = 1
    for size, old, new in zip(shape, held, needed, strict=True):
        shorter = min(len(old), len(new))
        if old[:shorter] != new[:shorter]:
            return prod(shard_shape(needed, shape, sizes))
        both *= size // max(ways(old, sizes), ways(new, sizes))
    return prod(shard_shape(needed, shape, sizes)) - both
