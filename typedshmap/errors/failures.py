"""What can be wrong with a value, as data; the mismatches of shapes are in `notation.match`."""

from __future__ import annotations

from dataclasses import dataclass

from ..notation.match import NO_SIZES, Sizes, Subject
from ..notation.tokens import Span


@dataclass(frozen=True, slots=True)
class NotAnArray:
    """Something that is no array where the hint says one."""

    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class WrongDtype:
    """Another dtype than the hint's."""

    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class NotIntegers:
    """Ids that are no integers."""

    got: str


@dataclass(frozen=True, slots=True)
class NotNumbers:
    """Keys where an operation computes."""

    got: str
    verb: str


@dataclass(frozen=True, slots=True)
class UnmentionedVarying:
    """A value that varies over mesh axes its hint does not mention.

    Attributes:
      axes: the mesh axes.
      leaves_region: whether it leaves, so that ``~`` may not be written.
      may_be_unreduced: whether ``+`` may be; over an Auto axis no addend leaves.
      may_agree: whether its shards may be equal all the same, so that a sum would count it several times, which
        nobody knows while the body is traced; of a value that leaves, whether they are.
    """

    axes: tuple[str, ...]
    leaves_region: bool
    may_be_unreduced: bool = True
    may_agree: bool = False


@dataclass(frozen=True, slots=True)
class UnmarkedUnreduced:
    """A value that JAX types as unreduced over mesh axes its hint does not mark with ``+``."""

    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotUnreduced:
    """A ``+axis`` on a value that is the same on every shard: its sum would count it several times."""

    axis: str
    shards: int


@dataclass(frozen=True, slots=True)
class RedundantPsum:
    """A value that is the same on every shard of an axis over which it is to be summed.

    Attributes:
      place: who made it so, where JAX's type does not tell.
    """

    axis: str
    shards: int
    verb: str
    place: str | None = None


@dataclass(frozen=True, slots=True)
class UnmarkedReduced:
    """A result that JAX types as reduced over mesh axes its hint does not mark with ``-``."""

    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WrongSharding:
    """A global array that lies otherwise than its hint says."""

    expected: str
    got: str
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class BoundaryMark:
    """A mark that may not stand where a value enters or leaves a manual region."""

    sign: str
    axis: str
    reason: str
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class WrongType:
    """A value of another type than the hint's container, or a static value of the wrong type."""

    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class WrongLength:
    """Another number of items than the hint's tuple has."""

    expected: int
    got: int


@dataclass(frozen=True, slots=True)
class WrongKeys:
    """Keys that a TypedDict lacks, or does not know."""

    missing: tuple[str, ...]
    extra: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotAPytree:
    """An instance of a class that holds arrays and that JAX takes for a leaf."""

    cls: str


@dataclass(frozen=True, slots=True)
class NonPytreeField:
    """A field that its class's hints declare as arrays and that JAX does not see among its children."""

    cls: str
    field: str


@dataclass(frozen=True, slots=True)
class StructureMismatch:
    """A pytree of another structure than the one that first bore the name."""

    name: str
    expected: str
    got: str
    origin: Subject


@dataclass(frozen=True, slots=True)
class StaticArray:
    """An array where the hint says that the value is static."""

    hint: str


@dataclass(frozen=True, slots=True)
class NoArray:
    """A part of a result that is neither an array nor a number."""

    got: str


@dataclass(frozen=True, slots=True)
class NoUnionMember:
    """A value that no member of a union takes, and why each of them does not."""

    reasons: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """A failure that is said in words where it is found, since it happens in one place only."""

    problem: str
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class PatternFault:
    """A pattern that makes no sense, or none for these operands; said in words where it is found."""

    problem: str
    span: Span | None = None
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class WrongSize:
    """A size that an operation cannot take; said in words where it is found."""

    problem: str
    span: Span | None = None
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class NotManual:
    """An operation over a mesh axis that is not manual where it stands."""

    axis: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class PatternLayoutMismatch:
    """A value that a pattern reads in another layout than it is known to have.

    Attributes:
      dim: the first dim that differs; None where it is a mark.
      claimed: what the pattern says of it.
      known: what is known of it.
      place: who said so.
    """

    dim: int | None
    claimed: str
    known: str
    place: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class LayoutMismatch:
    """A shard that is known to lie otherwise than a hint or a pattern says.

    Attributes:
      dim: the first dim that differs.
      claimed: the mesh axes that it is said to be split over, major to minor.
      known: those that it is split over.
      gathered: the axes, in this order, over which it was gathered though it is split in another order.
    """

    dim: int
    claimed: tuple[str, ...]
    known: tuple[str, ...]
    gathered: tuple[str, ...] = ()
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class ShardingConflict:
    """An operation that takes two dims for the same which are split in different ways.

    Attributes:
      operation: JAX's name of it.
      where: which dims.
      first: the mesh axes of the first operand's.
      second: those of the other's.
    """

    operation: str
    where: str
    first: tuple[str, ...]
    second: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HintText:
    """A hint as the user wrote it; carets are placed relative to its ``dims``."""

    before: str
    dims: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.before}{self.dims}{self.after}"


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that is wrong with one value.

    Attributes:
      what: the mismatch.
      subject: the value.
      hint: its hint, if it has one.
      got: the value's type in JAX's notation, if it is an array.
    """

    what: object
    subject: Subject
    hint: HintText | None = None
    got: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All that went wrong in one call, and where.

    Attributes:
      function: the name of the function that was called.
      failures: what is wrong; the first is told in full.
      mesh: mesh axes and their sizes.
      manual: the manual axes, where they are not the whole mesh.
      per_shard: whether the values are shards.
      aliases: names of mesh axes that are not their own.
      sizes: what was bound.
      rules: mesh axes for dims without brackets, by their names.
      place: where in the user's program, if no traceback tells it.
    """

    function: str
    failures: tuple[Failure, ...]
    mesh: tuple[tuple[str, int], ...] = ()
    manual: tuple[str, ...] | None = None
    per_shard: bool = False
    aliases: tuple[tuple[str, tuple[str, ...]], ...] = ()
    sizes: Sizes = NO_SIZES
    rules: tuple[tuple[str, tuple[str, ...]], ...] = ()
    place: str = ""
