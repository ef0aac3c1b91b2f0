"""The data of an explanation: values, collectives, totals, memory; and bytes, seconds and bandwidths as text.

Invariant: all bytes are exact integers, for one device."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from math import ceil, inf, prod
from typing import Any, Literal, NamedTuple, TypeAlias

from jax.sharding import PartitionSpec

from ... import _jax
from ...errors import MeshAxisError, StructureError
from ...errors.phrases import mesh_text, value_text

MeshSizes: TypeAlias = tuple[tuple[str, int], ...]
"""The axes of a mesh with their sizes, in order."""
ValueKind = Literal["argument", "result", "check"]
Pass = Literal["forward", "gradient"]


@dataclass(frozen=True, slots=True)
class Value:
    """One array that a hint describes.

    Attributes:
      ident: its number among the values and collectives, in the jaxpr's order.
      kind: whether it is an argument, a result, or checked in the body.
      name: its path, ``state.weights.w_in`` or ``return[1]``; for a checked value the function and its name there.
      shape: the global shape.
      dtype: JAX's short name, ``f32``.
      spec: its PartitionSpec, of full rank.
      shard: the shape of one device's part.
      bytes: the size of that part.
      hint: the text of the hint.
      place: for a checked value, the source of the check, ``train.py:12 (step)``.
      after: the numbers of the values and collectives from which it is directly computed.
      times: the number of times that a checked value is computed, in loops of known length.
    """

    ident: int
    kind: ValueKind
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
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """For each dim the mesh axes that it is sharded over."""
        return _jax.array.spec_entries(self.spec).dim_axes


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation that communicates, as an equation of the jaxpr.

    Attributes:
      ident: its number among the values and collectives, in the jaxpr's order.
      operation: ``all-reduce``, ``all-gather``, ``reduce-scatter``, ``all-to-all``, ``collective-permute``,
        ``collective-broadcast`` or ``ragged-all-to-all``.
      axes: the mesh axes, without those of size 1.
      group: the number of devices that communicate.
      operand: the type of a shard before it, ``f32[8,16]``.
      result: the type of a shard after it.
      bytes_in: the bytes of the operand.
      bytes_out: the bytes of the result.
      wire: the bytes that one device sends in a ring, in one run; rounded up.
      times: the number of runs, from the lengths of the enclosing scans.
      loops: the enclosing loops and branches, outermost first: ``scan of 12``, ``while``, ``cond``.
      place: its place in the user's source, ``train.py:12 (step)``; empty if unknown.
      part: whether it belongs to the function itself, or to a gradient.
      after: the numbers of the values and collectives from which it is directly computed.
    """

    ident: int
    operation: str
    axes: tuple[str, ...]
    group: int
    operand: str
    result: str
    bytes_in: int
    bytes_out: int
    wire: int
    times: int = 1
    loops: tuple[str, ...] = ()
    place: str = ""
    part: Pass = "forward"
    after: tuple[int, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether it is in a while loop, so that it runs ``times`` in every iteration, whose number is unknown."""
        return "while" in self.loops

    @property
    def sent(self) -> int:
        """The bytes that one device sends in all of its runs."""
        return self.times * self.wire

    @property
    def times_text(self) -> str:
        """The number of runs, in words."""
        return f"{self.times} per iteration" if self.is_open else str(self.times)


@dataclass(frozen=True, slots=True)
class Total:
    """The sums over all collectives of one part over the same mesh axes.

    Attributes:
      axes: the mesh axes.
      part: whether they belong to the function itself, or to its gradient.
      count: the number of runs.
      bytes_in: the bytes of all operands.
      bytes_out: the bytes of all results.
      wire: the bytes that one device sends.
      is_open: whether a collective is in a while loop of unknown length, which counts as one iteration.
    """

    axes: tuple[str, ...]
    part: Pass
    count: int
    bytes_in: int
    bytes_out: int
    wire: int
    is_open: bool

    def seconds(self, bandwidth: Mapping[str, float]) -> float | None:
        """The time over the slowest of its axes; None if the bandwidth of an axis is unknown."""
        return ring_seconds(self.wire, self.axes, bandwidth)


@dataclass(frozen=True, slots=True)
class Alive:
    """An array in a device's memory at the peak.

    Attributes:
      bytes: its size.
      what: the path of an argument; else its dtype, its shape on the device, and the primitive that makes it.
      place: the place in the user's source that makes it.
      kind: as in `Memory.parts`.
    """

    bytes: int
    what: str
    place: str
    kind: str


@dataclass(frozen=True, slots=True)
class Memory:
    """The bytes of one device.

    Attributes:
      arguments: the bytes of all arguments.
      results: the bytes of all results.
      reused: the bytes of donated arguments whose memory results reuse.
      peak: the most bytes in memory at any time.
      place: the place in the user's source that runs at the peak; empty before the first operation.
      parts: the bytes at the peak by kind: ``weights``, ``optimizer state`` and other ``arguments``, ``results``,
        ``saved activations`` for a gradient, ``gathered weights`` and other ``gathered`` arrays, buffers of other
        ``collectives``, ``gradients``, ``temporaries``.
      alive: the arrays in memory at the peak, the largest first.
    """

    arguments: int
    results: int
    reused: int
    peak: int
    place: str
    parts: Mapping[str, int]
    alive: tuple[Alive, ...]


class WorkLine(NamedTuple):
    """The operations and memory traffic of a line of the source on one device.

    Attributes:
      place: the line, ``train.py:12 (step)``.
      flops: its floating-point operations, in all runs.
      bytes: the bytes that it reads from memory and writes to memory.
      products: the operations in matrix products, convolutions and transforms, by dtype.
    """

    place: str
    flops: int
    bytes: int
    products: Mapping[str, int]

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes if self.bytes else inf


class Work(NamedTuple):
    """The operations and memory traffic of one device, with all iterations of loops.

    Attributes:
      flops: the floating-point operations.
      once: the same with one iteration of every loop, as XLA counts them.
      bytes: the bytes read from memory and written to memory, after fusion.
      kinds: the operations by kind: ``products`` (and convolutions), ``transforms`` (FFTs), ``elementwise``,
        ``reductions``.
      lines: the lines of the source, the line with the most operations first.
    """

    flops: int
    once: int
    bytes: int
    kinds: Mapping[str, int]
    lines: tuple[WorkLine, ...]

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes if self.bytes else inf


@dataclass(frozen=True, slots=True)
class Time:
    """The least seconds of a program, from the peak figures of a kind of device.

    Attributes:
      hardware: the name of the kind of device.
      limit: the bytes of its memory.
      compute: the seconds of matrix products, convolutions and transforms, at the peak of their dtype.
      memory: the seconds of memory traffic.
      communicate: the seconds of collectives, by mesh axis; a ring over several axes is a ring over each, the fastest
        axis first.
      serial: the seconds of all lines in sequence, each the longer of computation and memory traffic, then of all
        collectives.
      overlapped: the longest of compute, memory and each axis, if all of them overlap.
      bound: the longest: ``"compute"``, ``"memory"`` or the mesh axis.
      place: the line that takes most of this time.
      text: the same in words.
      lines: for each line the longer of computation and memory traffic.
    """

    hardware: str
    limit: float
    compute: float
    memory: float
    communicate: Mapping[str, float]
    serial: float
    overlapped: float
    bound: str
    place: str
    text: str
    lines: Mapping[str, float]

    @property
    def utilization(self) -> float:
        """The largest share of the peak rate that computation can reach, with full overlap."""
        return self.compute / self.overlapped if self.overlapped else 0.0


@dataclass(frozen=True, slots=True)
class Compiled:
    """The figures of a compiler for the same program, on one device.

    Attributes:
      target: the target: ``"cpu"``, or a topology as ``"v5e:2x4"``.
      memory: the bytes at the peak; for a program that does not fit the needed bytes, 0 if unknown.
      flops: the floating-point operations, with one iteration of loops; None for a program that does not fit.
      collectives: by operation, the numbers in the jaxpr and in the compiled text, which may combine several into one.
      error: the compiler's message for a program that does not fit; else empty.
    """

    target: str
    memory: int
    flops: int | None
    collectives: Mapping[str, tuple[int, int]]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """The explanation of one function on one mesh.

    Attributes:
      function: its name.
      mesh: the mesh axes with their sizes.
      sizes: the sizes of the names in its hints.
      values: its arguments, its results, and the checked values of its body.
      collectives: its collectives, in the jaxpr's order.
      memory: the memory of one device.
      work: the operations and memory traffic of one device.
      notes: notes on operations that are not counted.
      bandwidth: the bytes that one device sends per second, by mesh axis, if given.
      time: the time on the given hardware.
      compiled: XLA's figures, with ``compile=``.
    """

    function: str
    mesh: MeshSizes
    sizes: Mapping[str, int | tuple[int, ...]]
    values: tuple[Value, ...]
    collectives: tuple[Collective, ...]
    memory: Memory
    work: Work
    notes: tuple[str, ...] = ()
    bandwidth: Mapping[str, float] = field(default_factory=dict[str, float])
    time: Time | None = None
    compiled: Compiled | None = None

    @property
    def flops(self) -> int:
        """The floating-point operations of one device."""
        return self.work.flops

    @property
    def fits(self) -> bool | None:
        """Whether the peak memory is within that of the hardware; None without hardware."""
        return None if self.time is None else self.memory.peak <= self.time.limit

    @property
    def devices(self) -> int:
        """The number of devices of the mesh."""
        return prod(size for _, size in self.mesh)

    @property
    def totals(self) -> tuple[Total, ...]:
        """The sums over the collectives per part and mesh axes; the function's own first."""
        names = [axis for axis, _ in self.mesh]

        def order(op: Collective) -> tuple[str, int, list[int]]:
            return op.part, len(op.axes), [names.index(axis) for axis in op.axes]

        totals: list[Total] = []
        for _, group in groupby(sorted(self.collectives, key=order), key=order):
            ops = list(group)
            counts = ((op.times, op.times * op.bytes_in, op.times * op.bytes_out, op.sent) for op in ops)
            sums = map(sum, zip(*counts, strict=True))
            totals.append(Total(ops[0].axes, ops[0].part, *sums, is_open=any(op.is_open for op in ops)))
        return tuple(totals)

    @property
    def seconds(self) -> float | None:
        """The seconds of the collectives in sequence, by the bandwidths; None if a bandwidth is unknown.

        Latency, and overlap with computation or over other axes, are not modelled.
        """
        times = [total.seconds(self.bandwidth) for total in self.totals]
        known = [time for time in times if time is not None]
        return sum(known) if len(known) == len(times) else None


@dataclass(frozen=True, slots=True)
class Failed:
    """A mesh on which the function cannot be traced.

    Attributes:
      mesh: the mesh axes with their sizes.
      error: the error.
    """

    mesh: MeshSizes
    error: Exception


def array_text(dtype: str, shape: tuple[int, ...]) -> str:
    """``f32[8,16]``"""
    return f"{dtype}[{','.join(map(str, shape))}]"


def ring_seconds(size: int, axes: tuple[str, ...], bandwidth: Mapping[str, float]) -> float | None:
    """The seconds of some bytes over the slowest of several mesh axes; None if the rate of an axis is unknown."""
    if not all(axis in bandwidth for axis in axes):
        return None
    return size / min(bandwidth[axis] for axis in axes)


def ring_bytes(operation: str, group: int, bytes_in: int, bytes_out: int) -> int:
    """The bytes that one device of a ring sends, rounded up."""
    return ceil(Fraction(_jax.primitives.ring_cost(operation, group, bytes_in, bytes_out), group))


_DECIMAL, _BINARY = ("", "k", "M", "G", "T", "P", "E"), ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_BANDWIDTH = re.compile(r"(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[0-9]+)?) *(?P<prefix>k|Ki|[MGT]i?|)B(?:/s)?")


def bytes_text(count: int) -> str:
    """``512 B``, ``1.5 KiB``, ``16 MiB``: three or four digits, exact if that is short."""
    size, prefix = _scaled(count, 1024, _BINARY)
    digits = 0 if size >= 100 or size.is_integer() else 1 if size >= 10 else 2
    return f"{size:.{digits}f} {prefix}B"


def flops_text(count: int) -> str:
    """``512 FLOP``, ``1.5 MFLOP``, ``16 TFLOP``."""
    size, prefix = _scaled(count, 1000, _DECIMAL)
    return f"{size:.3g} {prefix}FLOP"


def _scaled(count: int, base: int, prefixes: Sequence[str]) -> tuple[float, str]:
    size, power = float(count), 0
    while size >= base and power < len(prefixes) - 1:
        size, power = size / base, power + 1
    return size, prefixes[power]


def seconds_text(seconds: float | None) -> str:
    """``12.3 us``, ``4.56 ms``, ``1.2 s``; None is unknown."""
    if seconds is None:
        return "unknown"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def read_bandwidth(verb: str, given: Any, mesh: MeshSizes) -> dict[str, float]:
    """Bytes per second by mesh axis, from numbers and texts: ``"400GB/s"`` is 400e9, ``"1GiB/s"`` 2**30."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise StructureError(f'{verb}: bandwidth= expects a dict as in {{"tp": "400GB/s"}}, got {value_text(given)}')
    unknown = [axis for axis in given if axis not in dict(mesh)]
    if unknown:
        known = mesh_text(mesh)
        raise MeshAxisError(
            f"{verb}: a bandwidth is given for mesh axis '{unknown[0]}', which the mesh ({known}) does not have"
        )
    bandwidths: dict[str, float] = {}
    for axis, value in given.items():
        match = _BANDWIDTH.fullmatch(value.strip()) if isinstance(value, str) else None
        bandwidth = 0.0
        if match is not None:
            base, prefixes = (1024, _BINARY) if match["prefix"].endswith("i") else (1000, _DECIMAL)
            bandwidth = float(match["number"]) * base ** prefixes.index(match["prefix"])
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and value <= sys.float_info.max:
            bandwidth = float(value)
        if not 0 < bandwidth < float("inf"):
            raise StructureError(
                f"{verb}: the bandwidth of mesh axis '{axis}' is {value_text(value)}\n\n"
                'Hint: write bytes per second, as a number or as in "400GB/s" (400e9) and "100GiB/s"'
            )
        bandwidths[str(axis)] = bandwidth
    return bandwidths
