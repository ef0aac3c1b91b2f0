"""The program of one device as steps, each with the buffers that it reads and writes.

Invariant: the steps can run in their order; the body of a loop is among them once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .jaxpr_costs import Around


@dataclass(eq=False, slots=True)
class Buffer:
    """An array in the memory of a device, or an expression that is not computed yet."""

    bytes: int
    type: str  # its dtype and shape, or the name of an argument
    operation: str = ""  # the primitive that makes it
    place: str = ""
    made: int = 0
    is_transposed: bool = False  # made in the backward part of a gradient
    reads: Mapping[Buffer, int] = field(default_factory=dict["Buffer", int])  # bytes; its own if it is in memory
    is_costly: bool = False  # XLA computes it at most once
    size: int = 0  # the operations of the expression
    product: ProgramStep | None = None  # the last product on whose result it depends
    stack: tuple[Buffer, int] | None = None  # for a row in a loop: the array, and the start of the loop

    @property
    def is_stored(self) -> bool:
        return self in self.reads

    def store(self, time: int) -> None:
        """Put it in memory."""
        self.made, self.reads, self.is_costly, self.size = time, {self: self.bytes}, False, 0


@dataclass(eq=False, slots=True)
class ProgramStep:
    """An operation, with the operations fused into it."""

    time: int
    reads: dict[Buffer, int]  # bytes
    writes: Sequence[Buffer]
    around: Around
    is_in_place: bool = False  # it may overwrite an operand
    fills: Sequence[Buffer] = ()  # made before the loop; an iteration writes its part
    product: ProgramStep | None = None  # the product on whose result it depends, entry by entry
    multiplied: frozenset[Buffer] = frozenset()  # the operands of a product in the device's default precision


@dataclass
class Program:
    """The program of one device."""

    arguments: Sequence[Buffer]
    results: list[Buffer] = field(default_factory=list[Buffer])
    types: dict[Buffer, str] = field(default_factory=dict[Buffer, str])  # global, of arguments and results
    reused: dict[Buffer, Buffer] = field(default_factory=dict[Buffer, Buffer])  # donated arguments, by result
    steps: list[ProgramStep] = field(default_factory=list[ProgramStep])
    # With the number of devices over which XLA partitions each equation outside manual regions; inside, 1.
    equations: list[tuple[Any, int, Around]] = field(default_factory=list[tuple[Any, int, Around]])
