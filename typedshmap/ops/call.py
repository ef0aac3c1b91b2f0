"""One call of an operation: its pattern read for the region it stands in, and how its errors speak."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from .. import _jax
from ..errors import TypedShmapError, error_of
from ..errors.failures import Failure, HintText, NotManual, PatternFault
from ..hints.array import ArrayHint
from ..hints.scope import Region, current_region, current_scope
from ..notation.layout import AxisTwice, Layout, UnknownAxis
from ..notation.nodes import Span
from ..notation.patterns import Dots, Factor, Pattern, PatternDim, Side, parse_pattern
from ..notation.sizes import NO_SIZES, Sizes, Subject
from ..notation.tokens import RepeatedAxis, SyntaxFault

T = TypeVar("T")
_PATTERN = Subject("pattern", "pattern")
RESULT = Subject("operand", "result")


@dataclass(frozen=True, slots=True)
class Place:
    """One dim of an array: what the pattern says of it.

    Attributes:
      dim: the dim in the pattern; one made up for each that ``...`` stands for.
      axes: its manual mesh axes, major to minor.
    """

    dim: PatternDim
    axes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What its factors are called."""
        return tuple(map(str, self.dim.factors))


@dataclass(frozen=True)
class Laid:
    """One side of a pattern over the mesh: only manual axes are left.

    Attributes:
      places: its dims, for arrays of one rank.
      unreduced: the axes marked ``+``.
      reduced: those marked ``-``.
      varying: those marked ``~``.
    """

    side: Side
    places: tuple[Place, ...]
    unreduced: frozenset[str]
    reduced: frozenset[str]
    varying: frozenset[str]

    @cached_property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        return tuple(place.axes for place in self.places)

    @cached_property
    def sharded(self) -> frozenset[str]:
        return frozenset(axis for axes in self.parts for axis in axes)

    @property
    def dots(self) -> int:
        """How many dims ``...`` stands for."""
        return sum(name.startswith("…") for place in self.places for name in place.names)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operation.

    Attributes:
      verb: the operation's name.
      pattern: what was written.
      region: where it stands.
      function: the function that calls it, if it is a typed one.
    """

    verb: str
    pattern: Pattern
    region: Region
    function: str | None

    @property
    def is_plain(self) -> bool:
        """Whether this is einops and no more: no brackets, no marks, no manual region."""
        return not self.region.held and not self.pattern.has_sharding

    @property
    def where(self) -> str:
        """How an error names the call."""
        return self.verb if self.function is None else f"{self.verb} in {self.function}"

    @property
    def text(self) -> HintText:
        """The pattern as an error shows it."""
        return HintText('"', self.pattern.source, '"')

    def error(self, *failures: Failure, sizes: Sizes = NO_SIZES) -> TypedShmapError:
        """The exception for what is wrong with operands."""
        return error_of(self.region.report(self.where, failures, sizes))

    def fault(self, problem: str, span: Span | None = None, cure: str | None = None) -> TypedShmapError:
        """The exception for what is wrong with the pattern."""
        return self.error(Failure(PatternFault(problem, span, cure), _PATTERN, self.text))

    def wrong(self, what: object, subject: Subject, value: Any, sizes: Sizes = NO_SIZES) -> TypedShmapError:
        """The exception for an operand or a result that does not fit."""
        got = None if value is None else _jax.type_text(value)
        return self.error(Failure(what, subject, self.text, got), sizes=sizes)

    @property
    def result(self) -> Side:
        """The pattern's right side."""
        assert self.pattern.result is not None
        return self.pattern.result

    def lay(self, index: int, rank: int = 0, dots: int | None = None) -> Laid:
        """A side over the mesh, of one rank; the result has index -1.

        Args:
          index: which of the operands.
          rank: the number of dims; not asked for where ``dots`` is given.
          dots: how many of them ``...`` stands for.

        Raises:
          MeshAxisError: for an axis that is unknown, or stands twice.
        """
        return self.plan(("lay", index, rank, dots), lambda: self._lay(index, rank, dots))

    def plan(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What was worked out before of this pattern in this region; the key tells shapes, and what else matters."""
        return self.region.known.plan((self.pattern.source, self.verb, *key), make)

    def _lay(self, index: int, rank: int, dots: int | None) -> Laid:
        side, hint = sides_of(self.pattern)[index]
        layout = self.region.layout(hint)
        if not isinstance(layout, Layout):
            raise self.error(Failure(layout, _PATTERN, self.text))
        held = self.region.sizes
        self._refuse_idle_marks(side)
        places: list[Place] = []
        count = rank - len(side.dims) + 1 if dots is None else dots
        for dim, axes in zip(side.dims, layout.parts, strict=True):
            if isinstance(dim, Dots):
                places += [Place(PatternDim((dot,), span=dim.span), ()) for dot in each_of(dim, count)]
            else:
                kept = tuple(axis for axis in axes if axis in held)
                places.append(Place(_without_dots(dim, count), kept))
        manual = frozenset(held)
        marks = (layout.unreduced & manual, layout.reduced & manual, layout.varying & manual)
        return Laid(side, tuple(places), *marks)

    def meaning(self, name: str) -> tuple[str, ...]:
        """The mesh axes that a name in the pattern stands for."""
        return dict(self.region.aliases).get(name, (name,))

    def _refuse_idle_marks(self, side: Side) -> None:
        """A mark is about a manual axis; of Explicit ones JAX's types know ``+`` and ``-`` outside, too."""
        known = frozenset(self.region.sizes) if self.region.held else self.region.explicit
        for mark in side.marks:
            for axis in self.meaning(mark.axis):
                if axis not in known or (mark.sign == "~" and not self.region.held):
                    raise self.not_manual(axis, mark.span)

    def not_manual(self, axis: str, span: Span | None) -> TypedShmapError:
        """The exception for something that happens over an axis that is not manual here."""
        mesh = None if self.region.mesh is None else tuple(name for name, _ in self.region.mesh)
        if mesh is not None and axis not in mesh:
            others = tuple(name for name, _ in self.region.aliases if name not in mesh)
            place = span or (0, len(self.pattern.source))
            return self.error(Failure(UnknownAxis(axis, axis, place, mesh, others), _PATTERN, self.text))
        return self.error(Failure(NotManual(axis, span), _PATTERN, self.text))

    @property
    def has_idle_name(self) -> bool:
        """Whether an alias in the pattern stands for no mesh axis here, so that there may be nothing to do."""
        sides = (side for side, _ in sides_of(self.pattern))
        names = [name for side in sides for name in (*_names_of_axes(side), *(mark.axis for mark in side.marks))]
        return any(not self.meaning(name) for name in names)

    def written_axes(self) -> dict[str, Span]:
        """Every mesh axis that the pattern names, aliases applied, with its place."""
        found: dict[str, Span] = {}
        for side, hint in sides_of(self.pattern):
            layout = self.region.layout(hint)
            if not isinstance(layout, Layout):
                raise self.error(Failure(layout, _PATTERN, self.text))
            places = [(name, dim.axes.span) for dim in side.dims if isinstance(dim, PatternDim) and dim.axes
                      for name in dim.axes.names] + [(mark.axis, mark.span) for mark in side.marks]  # fmt: skip
            for name, span in places:
                for axis in self.meaning(name):
                    found.setdefault(axis, span)
        return found

    def require_manual(self, axes: Iterable[str] | None = None) -> None:
        """Refuse to move anything over an axis that is not manual here.

        Args:
          axes: the axes; by default all that the pattern names.

        Raises:
          MeshAxisError: for the first that is not manual.
        """
        written = self.written_axes()
        for axis in written if axes is None else axes:
            if axis not in self.region.sizes:
                raise self.not_manual(axis, written.get(axis))

    def require_names(self) -> None:
        """Refuse merged dims and numbers, where an operation takes one name per dim."""
        for side, _ in sides_of(self.pattern):
            for dim in side.dims:
                if isinstance(dim, PatternDim) and (dim.is_group or str(dim.factors[0]).isdecimal()):
                    cure = "merge and split dims by rearrange; give a number a name"
                    raise self.fault(f"{self.verb} takes no '{dim}', only names", dim.span, cure)

    def span_of(self, index: int, name: str) -> Span:
        """Where a dim with this factor stands in a side; the side itself if there is none."""
        side = sides_of(self.pattern)[index][0]
        for dim in side.dims:
            if isinstance(dim, PatternDim) and name in map(str, dim.factors):
                return dim.span
        return side.span


def _names_of_axes(side: Side) -> list[str]:
    dims = [dim for dim in side.dims if isinstance(dim, PatternDim)]
    return [name for dim in dims if dim.axes is not None for name in dim.axes.names]


def says(axes: tuple[str, ...]) -> str:
    """How a message tells the axes of a dim."""
    return f"split over {', '.join(map(repr, axes))}" if axes else "whole"


def each_of(dots: Dots, count: int) -> tuple[Factor, ...]:
    """A factor for each dim that ``...`` stands for, counted from the last as broadcasting does."""
    return tuple(Factor(f"…{at}", dots.span) for at in range(count, 0, -1))


def _without_dots(dim: PatternDim, count: int) -> PatternDim:
    if not any(isinstance(factor, Dots) for factor in dim.factors):
        return dim
    factors = [f for item in dim.factors for f in (each_of(item, count) if isinstance(item, Dots) else (item,))]
    return PatternDim(tuple(factors), dim.axes, True, dim.span)


# By identity: patterns that are equal may be written in different ways.
_sides: dict[int, tuple[Pattern, tuple[tuple[Side, ArrayHint], ...]]] = {}
_MOST_PATTERNS = 4096


def sides_of(pattern: Pattern) -> tuple[tuple[Side, ArrayHint], ...]:
    """The sides of a pattern, the result last, each with what it says as a hint."""
    known = _sides.get(id(pattern))
    if known is None or known[0] is not pattern:
        if len(_sides) >= _MOST_PATTERNS:
            _sides.clear()
        known = _sides[id(pattern)] = (pattern, _hints_of(pattern))
    return known[1]


def _hints_of(pattern: Pattern) -> tuple[tuple[Side, ArrayHint], ...]:
    sides = pattern.operands if pattern.result is None else (*pattern.operands, pattern.result)
    text = HintText('"', pattern.source, '"')
    return tuple(
        (side, ArrayHint(None, "Shaped", Any, side.spec(pattern.source), text, takes_rules=False)) for side in sides
    )


def call_here(verb: str, pattern: Pattern) -> Call:
    """A call of an operation where the program is."""
    scope = current_scope()
    return Call(verb, pattern, current_region(), scope.function if scope is not None else None)


def begin(verb: str, pattern: Any, operands: int, has_result: bool = True, allows_underscore: bool = False) -> Call:
    """Read the pattern of a call.

    Args:
      verb: the operation.
      pattern: what was written.
      operands: how many arrays were given.
      has_result: whether the pattern has two sides.
      allows_underscore: whether ``_`` is a name, as in einops' einsum.

    Raises:
      PatternError: for one that cannot be read, or that has another number of operands.
      MeshAxisError: for a mesh axis that stands twice.
    """
    if not isinstance(pattern, str):
        what = PatternFault(f"the pattern is of type {type(pattern).__name__}, and no string")
        raise call_here(verb, Pattern((), None)).error(Failure(what, _PATTERN))
    try:
        call = call_here(verb, parse_pattern(pattern))
    except SyntaxFault as fault:
        raise syntax_fault(call_here(verb, Pattern((), None, pattern)), fault) from None
    refuse_other_sides(call, operands, has_result)
    if not allows_underscore:
        call.plan(("underscore",), lambda: _refuse_underscore(call))
    return call


def _refuse_underscore(call: Call) -> bool:
    for side, _ in sides_of(call.pattern):
        for factor in side.factors:
            if factor.name == "_":
                raise call.fault("the pattern has '_'; a name neither starts nor ends with an underscore", factor.span)
    return True


def syntax_fault(call: Call, fault: SyntaxFault) -> TypedShmapError:
    """The exception for a pattern that cannot be read."""
    if isinstance(fault, RepeatedAxis):
        return call.error(Failure(AxisTwice(fault.axis, fault.span), _PATTERN, call.text))
    return call.fault(fault.problem, fault.span, fault.cure)


def refuse_other_sides(call: Call, operands: int, has_result: bool) -> None:
    """Refuse a pattern of another number of operands, or one that lacks its result."""
    pattern = call.pattern
    if has_result and pattern.result is None:
        raise call.fault("the pattern has no '->'", None, "write operands -> result")
    if not has_result and pattern.result is not None:
        raise call.fault("the pattern has a '->', where one side says it all", pattern.result.span)
    if len(pattern.operands) != operands:
        count = f"{len(pattern.operands)} operand" + "s" * (len(pattern.operands) != 1)
        given = f"{operands} array" + ("s were" if operands != 1 else " was")
        raise call.fault(f"the pattern has {count}, but {given} given")
