"""What is told of a function on a mesh, as data: values, collectives, totals, memory.

Invariant: all bytes are exact integers, of one device; text is made of them elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from jax.sharding import PartitionSpec

from .. import _jax

Kind = Literal["argument", "result", "check"]
Part = Literal["forward", "gradient"]
Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One array that hints speak of.

    Attributes:
      ident: its number among the values and collectives, in the program's order.
      kind: what it is.
      name: its path, ``state.weights.w_in``; ``return[1]``; of a checked one the function and what it is called.
      shape: the global shape.
      dtype: JAX's short name, ``f32``.
      spec: how it lies, of full rank.
      shard: the shape of one device's part.
      bytes: of that part.
      hint: what is written.
      place: of a checked value, where that stands, ``train.py:12 (step)``.
      after: the numbers of the values and collectives that it is computed from, with none between.
      times: how often a checked value is computed, in loops of known length.
    """

    ident: int
    kind: Kind
    name: str
    shape: tuple[int, ...]
    dtype: str
    spec: PartitionSpec
    shard: tuple[int, ...]
    bytes: int
    hint: str
    place: str = ""
    after: tuple[int, ...] = ()
    times: int = 1

    @property
    def axes(self) -> tuple[Axes, ...]:
        """Per dim the mesh axes that it is split over."""
        return _jax.spec_parts(self.spec).parts


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation that communicates, as it stands in the traced program.

    Attributes:
      ident: its number among the values and collectives, in the program's order.
      operation: ``all-reduce``, ``all-gather``, ``reduce-scatter``, ``all-to-all``, ``collective-permute``,
        ``collective-broadcast`` or ``ragged-all-to-all``.
      axes: the mesh axes, without those of size 1.
      group: how many devices communicate with each other.
      operand: the type of a shard that goes in, ``f32[8,16]``.
      result: the type of a shard that comes out.
      bytes_in: of the operand.
      bytes_out: of the result.
      wire: the bytes that one device sends by a ring, each time; rounded up.
      times: how often it runs, by the lengths of the scans that it is in.
      loops: what it is in, from the outside: ``scan of 12``, ``while``, ``cond``.
      place: where it stands in the user's source, ``train.py:12 (step)``; empty where that is not known.
      part: whether it belongs to the function itself, or is there because of a gradient.
      after: the numbers of the values and collectives that it is computed from, with none between.
    """

    ident: int
    operation: str
    axes: Axes
    group: int
    operand: str
    result: str
    bytes_in: int
    bytes_out: int
    wire: int
    times: int = 1
    loops: tuple[str, ...] = ()
    place: str = ""
    part: Part = "forward"
    after: tuple[int, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether it is in a while loop, so that it runs ``times`` at every turn of a loop of unknown length."""
        return "while" in self.loops


@dataclass(frozen=True, slots=True)
class Total:
    """What all collectives over the same mesh axes come to.

    Attributes:
      axes: the mesh axes.
      part: of the function itself, or of its gradient.
      count: how many run.
      bytes_in: of all operands.
      bytes_out: of all results.
      wire: what one device sends.
      is_open: whether some are in a while loop of unknown length, of which one turn is counted.
    """

    axes: Axes
    part: Part
    count: int
    bytes_in: int
    bytes_out: int
    wire: int
    is_open: bool

    def seconds(self, bandwidth: Mapping[str, float]) -> float | None:
        """How long it takes by the slowest of its axes; None where the bandwidth of one is not known."""
        if not all(axis in bandwidth for axis in self.axes):
            return None
        return self.wire / min(bandwidth[axis] for axis in self.axes)


@dataclass(frozen=True, slots=True)
class Memory:
    """The bytes of one device that a call's arguments and results take.

    Attributes:
      arguments: of all arguments.
      results: of all results.
      reused: of donated arguments whose memory results take over.
    """

    arguments: int
    results: int
    reused: int = 0

    @property
    def peak(self) -> int:
        """Arguments and results together, what is reused counted once."""
        return self.arguments + self.results - self.reused


@dataclass(frozen=True, slots=True)
class Explained:
    """All that is told of one function on one mesh.

    Attributes:
      function: its name.
      mesh: the mesh axes with their sizes.
      sizes: what the names in its hints stand for.
      values: its arguments and results, and what its body checks.
      collectives: what communicates, in the program's order.
      memory: of its arguments and results.
      notes: what is not counted, and why.
      bandwidth: bytes that one device sends per second, by mesh axis, where that is given.
    """

    function: str
    mesh: tuple[tuple[str, int], ...]
    sizes: Mapping[str, int | tuple[int, ...]]
    values: tuple[Value, ...]
    collectives: tuple[Collective, ...]
    memory: Memory
    notes: tuple[str, ...] = ()
    bandwidth: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        return prod(size for _, size in self.mesh)

    @property
    def totals(self) -> tuple[Total, ...]:
        """Per mesh axes and part what the collectives come to; the function's own first."""
        groups: dict[tuple[Part, Axes], list[Collective]] = {}
        for found in sorted(self.collectives, key=self._order):
            groups.setdefault((found.part, found.axes), []).append(found)
        return tuple(_total(axes, part, group) for (part, axes), group in groups.items())

    def _order(self, found: Collective) -> tuple[str, int, tuple[int, ...]]:
        names = [axis for axis, _ in self.mesh]
        return found.part, len(found.axes), tuple(names.index(axis) for axis in found.axes)

    @property
    def seconds(self) -> float | None:
        """How long the collectives take one after the other, by the bandwidths; None where one is not known.

        Latency, and what overlaps with computation or over other axes, is not modelled.
        """
        times = [total.seconds(self.bandwidth) for total in self.totals]
        known = [time for time in times if time is not None]
        return sum(known) if len(known) == len(times) else None


def _total(axes: Axes, part: Part, group: Iterable[Collective]) -> Total:
    found = tuple(group)
    return Total(
        axes,
        part,
        sum(one.times for one in found),
        sum(one.times * one.bytes_in for one in found),
        sum(one.times * one.bytes_out for one in found),
        sum(one.times * one.wire for one in found),
        any(one.is_open for one in found),
    )


@dataclass(frozen=True, slots=True)
class Failed:
    """A mesh on which the function cannot be traced.

    Attributes:
      mesh: the mesh axes with their sizes.
      error: why.
    """

    mesh: tuple[tuple[str, int], ...]
    error: Exception


def ring_bytes(operation: str, group: int, bytes_in: int, bytes_out: int) -> int:
    """The bytes that one device of a ring sends, rounded up.

    A ring of ``n`` devices passes on ``n - 1`` times an ``n``-th of what is gathered or scattered; an
    all-reduce scatters, then gathers. (Thakur, Rabenseifner and Gropp, Optimization of collective
    communication operations in MPICH, 2005; the same are the bus factors of NVIDIA's nccl-tests.)
    """
    match operation:
        case "all-reduce":
            return -(-2 * (group - 1) * bytes_in // group)
        case "all-gather":
            return -(-(group - 1) * bytes_out // group)
        case "reduce-scatter" | "all-to-all" | "ragged-all-to-all":
            return -(-(group - 1) * bytes_in // group)
        case "collective-permute" | "collective-broadcast":
            return bytes_in
        case _:
            raise ValueError(f"{operation!r} is no collective")
