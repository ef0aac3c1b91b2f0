"""A plan: the steps from one partition to another, what each sends, and what no plan could do without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod

from .partition import Partition, Parts, Sizes, missing, shard_shape, ways


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, or a slice.

    Attributes:
      kind: ``"slice"``, ``"all_gather"``, ``"all_to_all"``, ``"ppermute"``, ``"psum"`` or ``"psum_scatter"``.
      axes: its mesh axes, in the collective's order.
      dims: the dims that it changes.
      before: the partition before it, without mesh axes of size 1.
      after: the partition after it.
      shard_before: one shard's shape before it.
      shard_after: one shard's shape after it.
      sent: how many elements the busiest device sends, by ring formulas.
    """

    kind: str
    axes: tuple[str, ...]
    dims: tuple[int, ...]
    before: Partition
    after: Partition
    shard_before: tuple[int, ...]
    shard_after: tuple[int, ...]
    sent: Fraction


@dataclass(frozen=True, slots=True)
class Plan:
    """The cheapest steps from one partition of an array to another; printed as a table.

    Attributes:
      source: the partition before.
      target: the partition after.
      shape: the global shape.
      sizes: the mesh axes that may be used, with their sizes.
      steps: what is done, in order.
      is_within_ends: whether no shard on the way is larger than the larger of the two ends.
      itemsize: the bytes of one element; all else is counted in elements.
    """

    source: Partition
    target: Partition
    shape: tuple[int, ...]
    sizes: tuple[tuple[str, int], ...]
    steps: tuple[Step, ...]
    is_within_ends: bool = True
    itemsize: int = 4

    @property
    def elements(self) -> Fraction:
        """How many elements the busiest device sends."""
        return sum((step.sent for step in self.steps), Fraction(0))

    @property
    def bytes(self) -> int:
        """How many bytes the busiest device sends."""
        return ceil(self.elements * self.itemsize)

    @property
    def shards(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of a shard: before the first step, and after each."""
        first = shard_shape(self.source.parts, self.shape, dict(self.sizes))
        return (first, *(step.shard_after for step in self.steps))

    @property
    def peak(self) -> tuple[int, ...]:
        """The shape of the largest shard on the way, ends included."""
        return max(self.shards, key=prod)

    @property
    def lower_bound(self) -> int:
        """How many elements of its part some device needs and does not hold."""
        return lower_bound(self.source, self.target, self.shape, dict(self.sizes))

    def __str__(self) -> str:
        return "\n".join(_lines(self))


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Why there is no plan.

    Attributes:
      reason: in words.
      axes: the mesh axes that it is about.
      dim: the dim that it is about.
    """

    reason: str
    axes: tuple[str, ...]
    dim: int | None = None


def lower_bound(source: Partition, target: Partition, shape: tuple[int, ...], sizes: Sizes) -> int:
    """How many elements of its part some device needs and does not hold; of a sum it holds none."""
    if ways(tuple(source.owed - target.owed), sizes) > 1:
        return prod(shard_shape(target.parts, shape, sizes))
    return missing(_proper(source, sizes), _proper(target, sizes), shape, sizes)


def _proper(partition: Partition, sizes: Sizes) -> Parts:
    """Per dim its axes, but those of size 1."""
    return tuple(tuple(axis for axis in axes if sizes[axis] > 1) for axes in partition.parts)


def _lines(plan: Plan) -> Iterator[str]:
    mesh = ", ".join(f"{axis}={size}" for axis, size in plan.sizes)
    yield f"reshard {plan.source.text(plan.shape)} -> {plan.target.text(plan.shape)} on {mesh}"
    rows = [_row(step, plan.itemsize) for step in plan.steps]
    rows = [("step", "axes", "shard", "bytes"), *rows, ("total", "", "", f"{plan.bytes:,}")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for kind, axes, shard, sent in rows:
        yield f"  {kind:{widths[0]}}  {axes:{widths[1]}}  {shard:{widths[2]}}  {sent:>{widths[3]}}"
    larger = "" if plan.is_within_ends else ", larger than both ends"
    yield f"peak shard {_dims(plan.peak)} ({prod(plan.peak) * plan.itemsize:,} bytes){larger}"
    yield f"lower bound {plan.lower_bound * plan.itemsize:,} bytes"


def _row(step: Step, itemsize: int) -> tuple[str, str, str, str]:
    shard = f"{_dims(step.shard_before)} -> {_dims(step.shard_after)}"
    return step.kind, ",".join(step.axes), shard, f"{ceil(step.sent * itemsize):,}"


def _dims(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
