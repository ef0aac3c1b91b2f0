"""One call of an operation: its pattern, resolved over the mesh around the call, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeVar

from .. import _jax
from ..errors import TypedShmapError, error_of
from ..errors.failures import Failure, HintText, NotManual, PatternFault
from ..errors.phrases import count_text, quoted_axes
from ..hints.array_hint import ArrayHint
from ..hints.context import MeshContext, current_mesh_context, current_scope
from ..notation.layout import AxisTwice, Layout, UnknownAxis
from ..notation.match import NO_SIZES, Sizes, Subject
from ..notation.pattern import Dots, Factor, Pattern, PatternDim, Side, parse_pattern
from ..notation.tokens import RepeatedAxis, Span, SyntaxFault

T = TypeVar("T")
_PATTERN = Subject("pattern", "pattern")
RESULT = Subject("operand", "result")


@dataclass(frozen=True)
class ResolvedDim:
    """One dim of an array, as the pattern writes it.

    Attributes:
      dim: the dim in the pattern; one made up for each that ``...`` stands for.
      axes: its manual mesh axes, major to minor.
    """

    dim: PatternDim
    axes: tuple[str, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names and numbers of its factors."""
        return tuple(map(str, self.dim.factors))

    @property
    def name(self) -> str:
        """What a message calls it."""
        return " ".join(self.names)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Its factors, so that no two dims share one: an anonymous factor, ``4``, is known by its place."""
        start = self.dim.span[0]
        return tuple(f"{name} at {start}:{at}" if name.isdecimal() else name for at, name in enumerate(self.names))


@dataclass(frozen=True, kw_only=True)
class SideLayout(Layout):
    """The layout that one side of a pattern describes, over manual axes only.

    Attributes:
      side: what was written.
      dims: its dims, for arrays of one rank.
    """

    side: Side
    dims: tuple[ResolvedDim, ...]

    @cached_property
    def differing(self) -> frozenset[str]:
        """The axes over which shards may differ."""
        return self.sharded | self.unreduced | self.varying

    @cached_property
    def dots(self) -> int:
        """How many dims ``...`` stands for."""
        return sum(name.startswith("…") for place in self.dims for name in place.names)


def shard_count(axes: Iterable[str], sizes: Mapping[str, int]) -> int:
    """How many shards mesh axes make."""
    return prod(sizes[axis] for axis in axes)


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of an operation.

    Attributes:
      verb: the operation's name.
      pattern: what was written.
      region: the mesh context of the call.
      function: the typed function that calls it, if one does.
    """

    verb: str
    pattern: Pattern
    region: MeshContext
    function: str | None

    @property
    def is_plain(self) -> bool:
        """Whether this is a call of einops: no brackets, no marks, no manual region."""
        return not self.region.manual and not self.pattern.has_sharding

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
        got = None if value is None else _jax.array.type_text(value)
        return self.error(Failure(what, subject, self.text, got), sizes=sizes)

    @property
    def result(self) -> Side:
        """The pattern's right side."""
        assert self.pattern.result is not None
        return self.pattern.result

    def resolve_side(self, index: int, rank: int = 0, dots: int | None = None) -> SideLayout:
        """Resolve a side over the mesh for arrays of one rank; the result has index -1.

        Args:
          index: which of the operands.
          rank: the number of dims; ignored where ``dots`` is given.
          dots: how many of them ``...`` stands for.

        Raises:
          MeshAxisError: for an axis that is unknown, repeated, or not manual where it is marked.
        """
        return self.plan(("side", index, rank, dots), lambda: self._resolve_side(index, rank, dots))

    def plan(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Work something out once per pattern, region and key; the key holds the shapes and all else it depends on."""
        return self.region.plan((self.pattern.source, self.verb, *key), make)

    def _resolve_side(self, index: int, rank: int, dots: int | None) -> SideLayout:
        side, hint = sides_of(self.pattern)[index]
        layout, manual = self._layout(hint), frozenset(self.region.sizes)
        # JAX's types have + and - of Explicit axes outside of manual regions, too.
        markable = manual or self.region.explicit
        for mark in side.marks:
            for axis in self.meaning(mark.axis):
                if axis not in markable or (mark.sign == "~" and not manual):
                    raise self.not_manual(axis, mark.span)
        places: list[ResolvedDim] = []
        count = rank - len(side.dims) + 1 if dots is None else dots
        for dim, axes in zip(side.dims, layout.dim_axes, strict=True):
            if isinstance(dim, Dots):
                places += [ResolvedDim(PatternDim((dot,), span=dim.span), ()) for dot in _dots_factors(dim, count)]
                continue
            if any(isinstance(factor, Dots) for factor in dim.factors):
                factors = [f for item in dim.factors
                           for f in (_dots_factors(item, count) if isinstance(item, Dots) else (item,))]  # fmt: skip
                dim = PatternDim(tuple(factors), dim.axes, True, dim.span)
            places.append(ResolvedDim(dim, tuple(axis for axis in axes if axis in manual)))
        return SideLayout(
            tuple(place.axes for place in places),
            layout.unreduced & manual,
            layout.reduced & manual,
            layout.varying & manual,
            side=side,
            dims=tuple(places),
        )

    def _layout(self, hint: ArrayHint) -> Layout:
        layout = self.region.layout(hint)
        if not isinstance(layout, Layout):
            raise self.error(Failure(layout, _PATTERN, self.text))
        return layout

    def meaning(self, name: str) -> tuple[str, ...]:
        """The mesh axes that a name in the pattern stands for."""
        return dict(self.region.aliases).get(name, (name,))

    def not_manual(self, axis: str, span: Span | None) -> TypedShmapError:
        """The exception for something that happens over an axis that is not manual here."""
        mesh = None if self.region.mesh is None else tuple(name for name, _ in self.region.mesh)
        if mesh is not None and axis not in mesh:
            others = tuple(name for name, _ in self.region.aliases if name not in mesh)
            place = span or (0, len(self.pattern.source))
            return self.error(Failure(UnknownAxis(axis, axis, place, mesh, others), _PATTERN, self.text))
        return self.error(Failure(NotManual(axis, span), _PATTERN, self.text))

    @property
    def has_unused_alias(self) -> bool:
        """Whether an alias in the pattern stands for no mesh axis here, so that there may be nothing to do."""
        return any(not self.meaning(name) for side, _ in sides_of(self.pattern) for name, _ in _written_names(side))

    def written_axes(self) -> dict[str, Span]:
        """Every mesh axis that the pattern names, aliases applied, with its place."""
        found: dict[str, Span] = {}
        for side, hint in sides_of(self.pattern):
            self._layout(hint)
            for name, span in _written_names(side):
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
        """Where a dim with this factor is in a side; the side itself if there is none."""
        side = sides_of(self.pattern)[index][0]
        for dim in side.dims:
            if isinstance(dim, PatternDim) and name in map(str, dim.factors):
                return dim.span
        return side.span

    def over(self, axes: tuple[str, ...]) -> str:
        """``over 'dp', 'tp' (8 shards)``"""
        return f"over {quoted_axes(axes)} ({shard_count(axes, self.region.sizes)} shards)"


def _written_names(side: Side) -> list[tuple[str, Span]]:
    dims = [dim.axes for dim in side.dims if isinstance(dim, PatternDim) and dim.axes is not None]
    return [(name, axes.span) for axes in dims for name in axes.names] + [(mark.axis, mark.span) for mark in side.marks]


def _dots_factors(dots: Dots, count: int) -> tuple[Factor, ...]:
    """A factor for each dim that ``...`` stands for, counted from the last as broadcasting does."""
    return tuple(Factor(f"…{at}", dots.span) for at in range(count, 0, -1))


# By identity: patterns that are equal may be written in different ways.
_sides: dict[int, tuple[Pattern, tuple[tuple[Side, ArrayHint], ...]]] = {}
_MOST_PATTERNS = 4096


def sides_of(pattern: Pattern) -> tuple[tuple[Side, ArrayHint], ...]:
    """The sides of a pattern, the result last, each with the hint that it means."""
    known = _sides.get(id(pattern))
    if known is None or known[0] is not pattern:
        if len(_sides) >= _MOST_PATTERNS:
            _sides.clear()
        text, sides = HintText('"', pattern.source, '"'), pattern.operands
        sides = sides if pattern.result is None else (*sides, pattern.result)
        hints = [ArrayHint(None, "Shaped", Any, side.spec(pattern.source), text, takes_rules=False) for side in sides]
        known = _sides[id(pattern)] = (pattern, tuple(zip(sides, hints, strict=True)))
    return known[1]


def current_operation(verb: str, pattern: Pattern) -> Operation:
    """A call of an operation in the current mesh context."""
    scope = current_scope()
    return Operation(verb, pattern, current_mesh_context(), scope.function if scope is not None else None)


def read_operation(
    verb: str, pattern: Any, operands: int, has_result: bool = True, allows_underscore: bool = False
) -> Operation:
    """Read the pattern of a call.

    Args:
      verb: the operation.
      pattern: what was written.
      operands: how many arrays were given.
      has_result: whether the pattern has two sides.
      allows_underscore: whether ``_`` is a name, as in einops' einsum.

    Raises:
      PatternError: for one that cannot be parsed, or that has another number of operands.
      MeshAxisError: for a mesh axis that is repeated.
    """
    if not isinstance(pattern, str):
        what = PatternFault(f"the pattern is of type {type(pattern).__name__}, and not a string")
        raise current_operation(verb, Pattern((), None)).error(Failure(what, _PATTERN))
    try:
        call = current_operation(verb, parse_pattern(pattern))
    except SyntaxFault as fault:
        call = current_operation(verb, Pattern((), None, pattern))
        if isinstance(fault, RepeatedAxis):
            raise call.error(Failure(AxisTwice(fault.axis, fault.span), _PATTERN, call.text)) from None
        raise call.fault(fault.problem, fault.span, fault.cure) from None
    parsed = call.pattern
    if has_result and parsed.result is None:
        raise call.fault("the pattern has no '->'", None, "write operands -> result")
    if not has_result and parsed.result is not None:
        raise call.fault("the pattern has a '->', where one side says it all", parsed.result.span)
    if len(parsed.operands) != operands:
        given = f"{count_text(operands, 'array')} {'was' if operands == 1 else 'were'}"
        raise call.fault(f"the pattern has {count_text(len(parsed.operands), 'operand')}, but {given} given")
    if not allows_underscore:
        call.plan(("underscore",), lambda: _refuse_underscore(call))
    return call


def _refuse_underscore(call: Operation) -> bool:
    for side, _ in sides_of(call.pattern):
        for factor in side.factors:
            if factor.name == "_":
                raise call.fault("the pattern has '_'; a name neither starts nor ends with an underscore", factor.span)
    return True
