"""The program that one device runs, as steps: what each reads from memory, and what it writes there.

Invariant: the steps are in an order in which they can run; the body of a loop is among them once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(eq=False, slots=True)
class Buffer:
    """An array in the memory of a device.

    Attributes:
      bytes: its size.
      type: its dtype and shape, or the name of an argument.
      operation: the primitive that makes it; empty for an argument.
      place: where that is in the source.
      made: when it is made.
      is_transposed: whether it belongs to the backward part of a gradient.
    """

    bytes: int
    type: str
    operation: str = ""
    place: str = ""
    made: int = 0
    is_transposed: bool = False


@dataclass(eq=False, slots=True)
class ProgramStep:
    """An operation, with what is fused into it.

    Attributes:
      time: when it runs.
      reads: the bytes that it reads of each buffer.
      writes: the buffers that it makes.
      around: how often it runs, and where it is.
      is_in_place: whether it may write where one of its operands was.
      fills: what was made before the loop, of which an iteration writes its part.
      product: the step of a product from whose result it is computed, entry by entry.
      multiplied: of a product of matrices in the precision that a device has by default, its operands.
    """

    time: int
    reads: dict[Buffer, int]
    writes: Sequence[Buffer]
    around: Around
    is_in_place: bool
    fills: Sequence[Buffer] = ()
    product: ProgramStep | None = None
    multiplied: frozenset[Buffer] = frozenset()


class Around(NamedTuple):
    """How often an equation runs, its place in the source, and whether a gradient's backward part has it."""

    times: int = 1
    place: str = ""
    is_transposed: bool = False


class Equation(NamedTuple):
    """An equation that is computed.

    Attributes:
      eqn: the equation.
      parts: over how many devices XLA partitions it outside of manual regions; inside, 1.
      around: how often it runs, and where it is.
    """

    eqn: Any
    parts: int
    around: Around


@dataclass
class Program:
    """What one device runs.

    Attributes:
      arguments: the buffers of the arguments.
      results: the buffers of the results.
      types: of arguments and results their dtypes and global shapes.
      reused: for a result that takes the place of a donated argument, that argument.
      steps: what runs.
      equations: the equations that it is made of.
    """

    arguments: Sequence[Buffer]
    results: list[Buffer] = field(default_factory=list[Buffer])
    types: dict[Buffer, str] = field(default_factory=dict[Buffer, str])
    reused: dict[Buffer, Buffer] = field(default_factory=dict[Buffer, Buffer])
    steps: list[ProgramStep] = field(default_factory=list[ProgramStep])
    equations: list[Equation] = field(default_factory=list[Equation])
