"""Integers that are affine in a shard's indices along mesh axes, such as the start of its part of a dim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple


class IndexFact(NamedTuple):
    """An offset, plus the shard's indices along mesh axes, each times its stride."""

    strides: tuple[tuple[str, int], ...] = ()
    offset: int = 0

    def plus(self, other: IndexFact, times: int) -> IndexFact:
        """The sum ``self + times * other``."""
        strides = dict(self.strides)
        for axis, stride in other.strides:
            strides[axis] = strides.get(axis, 0) + times * stride
        kept = sorted((axis, stride) for axis, stride in strides.items() if stride)
        return IndexFact(tuple(kept), self.offset + times * other.offset)

    def bounds(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """The least and the greatest value on any shard."""
        ends = [stride * (sizes[axis] - 1) for axis, stride in self.strides]
        return self.offset + sum(min(end, 0) for end in ends), self.offset + sum(max(end, 0) for end in ends)


def combine_indices(name: str, operands: Sequence[IndexFact | None], sizes: Mapping[str, int]) -> IndexFact | None:
    """The result of an elementwise operation on such integers; None if it is unknown."""
    match name, operands:
        case (("add" | "sub"), (IndexFact() as a, IndexFact() as b)):
            return a.plus(b, 1 if name == "add" else -1)
        case "mul", (IndexFact() as a, IndexFact((), times)) | (IndexFact((), times), IndexFact() as a):
            return IndexFact().plus(a, times)
        case "lt", (IndexFact() as a, IndexFact() as b):
            least, greatest = a.plus(b, -1).bounds(sizes)
            return IndexFact((), 1) if greatest < 0 else IndexFact() if least >= 0 else None
        case "select_n", (IndexFact((), which), *cases):
            return cases[which]
        case (("convert_element_type" | "pvary" | "copy"), (IndexFact() as a,)):
            return a
        case _:
            return None


def own_part(start: IndexFact | None, size: int, count: int, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes, major to minor, over which a dim becomes sharded if each shard takes ``count`` elements.

    None if they do not start at the shard's own part.
    """
    axes = own_start(start, size, count, sizes)
    return axes if axes is not None and count * prod([sizes[axis] for axis in axes]) == size else None


def own_start(start: IndexFact | None, size: int, count: int, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """The same, also if the parts of all shards are only the first elements of the dim."""
    if start is None or start.offset:
        return None
    axes = tuple(axis for axis, _ in sorted(start.strides, key=lambda pair: -pair[1]))
    shards = [sizes[axis] for axis in axes]
    strides = [count * prod(shards[at + 1 :]) for at in range(len(axes))]
    is_own = dict(start.strides) == dict(zip(axes, strides, strict=True))
    return axes if is_own and count * prod(shards) <= size else None
