"""A plan: the steps from one layout of a global array to another, what each sends, and the least any plan sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod
from typing import NamedTuple

from ...notation.layout import Layout
from ..operation import MeshAxes, shard_count

DimAxes = tuple[MeshAxes, ...]
AxisSizes = Mapping[str, int]


def shard_shape(dim_axes: DimAxes, shape: tuple[int, ...], sizes: AxisSizes) -> tuple[int, ...]:
    """What one shard holds of a global shape that the axes divide."""
    return tuple(size // shard_count(axes, sizes) for size, axes in zip(shape, dim_axes, strict=True))


def elements_missing(have: DimAxes, need: DimAxes, shape: tuple[int, ...], sizes: AxisSizes) -> int:
    """How many elements of its part some device needs and does not hold; no axis has size 1.

    Where the axes of a dim are a prefix of one another, its smaller blocks are within the larger ones on every
    device; of a dim that is sharded otherwise some device holds nothing that it needs.
    """
    both = 1
    for size, old, new in zip(shape, have, need, strict=True):
        shorter = min(len(old), len(new))
        if old[:shorter] != new[:shorter]:
            return prod(shard_shape(need, shape, sizes))
        both *= size // max(shard_count(old, sizes), shard_count(new, sizes))
    return prod(shard_shape(need, shape, sizes)) - both


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, or a slice.

    Attributes:
      kind: ``"slice"``, ``"all_gather"``, ``"all_to_all"``, ``"ppermute"``, ``"psum"`` or ``"psum_scatter"``.
      axes: its mesh axes, in the collective's order.
      dims: the dims that it changes.
      before: the layout before it, without mesh axes of size 1.
      after: the layout after it.
      shard_before: one shard's shape before it.
      shard_after: one shard's shape after it.
      sent: how many elements the busiest device sends, by ring formulas.
    """

    kind: str
    axes: tuple[str, ...]
    dims: tuple[int, ...]
    before: Layout
    after: Layout
    shard_before: tuple[int, ...]
    shard_after: tuple[int, ...]
    sent: Fraction


def ring_cost(operation: str, group: int, before: int, after: int) -> int:
    """``group`` times what one device of a ring of ``group`` devices sends, so that it is an integer.

    A ring of ``n`` devices passes on ``n - 1`` times an ``n``-th of what is gathered or scattered; an
    all-reduce scatters, then gathers. (Thakur, Rabenseifner and Gropp, Optimization of collective
    communication operations in MPICH, 2005; the same are the bus factors of NVIDIA's nccl-tests.)

    Args:
      operation: XLA's name of the collective.
      group: how many devices communicate with each other.
      before: the size of the operand on one device, in elements or bytes.
      after: the size of the result.

    Raises:
      ValueError: for what is not a collective.
    """
    match operation:
        case "all-reduce":
            return 2 * (group - 1) * before
        case "all-gather":
            return (group - 1) * after
        case "reduce-scatter" | "all-to-all" | "ragged-all-to-all":
            return (group - 1) * before
        case "collective-permute" | "collective-broadcast":
            return group * before
        case _:
            raise ValueError(f"{operation!r} is not a collective")


@dataclass(frozen=True, slots=True)
class Plan:
    """The cheapest steps from one layout of an array to another; printed as a table.

    Attributes:
      source: the layout before.
      target: the layout after.
      shape: the global shape.
      sizes: the mesh axes that may be used, with their sizes.
      steps: what is done, in order.
      is_within_ends: whether no shard on the way is larger than the larger of the two ends.
      itemsize: the bytes of one element; all else is counted in elements.
    """

    source: Layout
    target: Layout
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
        first = shard_shape(self.source.dim_axes, self.shape, dict(self.sizes))
        return (first, *(step.shard_after for step in self.steps))

    @property
    def peak(self) -> tuple[int, ...]:
        """The shape of the largest shard on the way, ends included."""
        return max(self.shards, key=prod)

    @property
    def lower_bound(self) -> int:
        """How many elements of its part some device needs and does not hold; of a sum it holds none."""
        source, target, sizes = self.source, self.target, dict(self.sizes)
        if shard_count(source.unreduced - target.unreduced, sizes) > 1:
            return prod(shard_shape(target.dim_axes, self.shape, sizes))
        longer = [axis for axis, size in self.sizes if size > 1]
        return elements_missing(source.over(longer).dim_axes, target.over(longer).dim_axes, self.shape, sizes)

    def __str__(self) -> str:
        mesh = ", ".join(f"{axis}={size}" for axis, size in self.sizes)
        source, target = (_pattern_text(end, self.shape) for end in (self.source, self.target))
        rows = [("step", "axes", "shard", "bytes")]
        for step in self.steps:
            shard = f"{_shape_text(step.shard_before)} -> {_shape_text(step.shard_after)}"
            rows.append((step.kind, ",".join(step.axes), shard, f"{ceil(step.sent * self.itemsize):,}"))
        rows.append(("total", "", "", f"{self.bytes:,}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        larger = "" if self.is_within_ends else ", larger than both ends"
        lines = [f"reshard {source} -> {target} on {mesh}"]
        for kind, axes, shard, sent in rows:
            lines.append(f"  {kind:{widths[0]}}  {axes:{widths[1]}}  {shard:{widths[2]}}  {sent:>{widths[3]}}")
        lines.append(f"peak shard {_shape_text(self.peak)} ({prod(self.peak) * self.itemsize:,} bytes){larger}")
        lines.append(f"lower bound {self.lower_bound * self.itemsize:,} bytes")
        return "\n".join(lines)


class Unreachable(NamedTuple):
    """Why there is no plan.

    Attributes:
      reason: in words.
      axes: the mesh axes that it is about.
      dim: the dim that it is about.
    """

    reason: str
    axes: MeshAxes
    dim: int | None = None


def _pattern_text(layout: Layout, shape: tuple[int, ...]) -> str:
    """``[64/a] 32 +b``"""
    pairs = zip(shape, layout.dim_axes, strict=True)
    dims = [f"[{size}/{','.join(axes)}]" if axes else f"{size}" for size, axes in pairs]
    return " ".join([*dims, *(f"+{axis}" for axis in sorted(layout.unreduced))])


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
