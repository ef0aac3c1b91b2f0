"""One call of an operation: its pattern, resolved over the mesh around the call, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from math import prod
from typing import Any, TypeVar

from .. import _jax
from ..errors import TypedShmapError, error_of
from ..errors.failures import Failure, Fault, HintText, NotManual, PatternFault, Span, Subject
from ..errors.phrases import count_text, quoted_axes
from ..hints.array_hint import ArrayHint
from ..hints.context import MeshContext, current_mesh_context, current_scope
from ..notation.layout import AxisTwice, Layout, UnknownAxis
from ..notation.match import NO_SIZES
from ..notation.pattern import Factor, Pattern, PatternDim, Side, parse_pattern
from ..notation.spec import Rest, written_axes
from ..notation.tokens import RepeatedAxis, SyntaxFault

T = TypeVar("T")
MeshAxes = tuple[str, ...]
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
    axes: MeshAxes

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
      dots: how many of them ``...`` stands for.
    """

    side: Side
    dims: tuple[ResolvedDim, ...]
    dots: int

    @cached_property
    def differing(self) -> frozenset[str]:
        """The axes over which shards may differ."""
        return self.sharded | self.unreduced | self.varying


def shard_count(axes: Iterable[str], sizes: Mapping[str, int]) -> int:
    """How many shards mesh axes make."""
    return prod([sizes[axis] for axis in axes])


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of an operation.

    Attributes:
      verb: the operation's name.
      pattern: what was written.
      hints: what each side of the pattern means, the result last.
      region: the mesh context of the call.
      where: how an error names the call.
    """

    verb: str
    pattern: Pattern
    hints: tuple[ArrayHint, ...]
    region: MeshContext
    where: str

    @property
    def is_plain(self) -> bool:
        """Whether this is a call of einops: no brackets, no marks, no manual region."""
        return not self.region.manual and not self.pattern.has_sharding

    @property
    def result(self) -> Side:
        """The pattern's right side."""
        assert self.pattern.result is not None
        return self.pattern.result

    def error(self, *failures: Failure) -> TypedShmapError:
        """The exception for what is wrong with operands."""
        return error_of(self.region.report(self.where, failures, NO_SIZES))

    def wrong(self, what: Fault, subject: Subject = _PATTERN, value: Any = None) -> TypedShmapError:
        """The exception for a pattern, an operand or a result that does not fit."""
        got = None if value is None else _jax.array.type_text(value)
        return self.error(Failure(what, subject, HintText('"', self.pattern.source, '"'), got))

    def fault(self, problem: str, span: Span | None = None, cure: str | None = None) -> TypedShmapError:
        """The exception for what is wrong with the pattern."""
        return self.wrong(PatternFault(problem, span, cure))

    def plan(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Work something out once per pattern, region and key; the key holds the shapes and all else it depends on."""
        return self.region.plan((self.pattern.source, self.verb, *key), make)

    def layout(self, index: int) -> Layout:
        """The layout that a side describes, over all mesh axes; the result has index -1."""
        layout = self.region.layout(self.hints[index])
        if not isinstance(layout, Layout):
            raise self.wrong(layout)
        return layout

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

    def _resolve_side(self, index: int, rank: int, dots: int | None) -> SideLayout:
        side, manual, layout = self.pattern.sides[index], frozenset(self.region.sizes), self.layout(index)
        # JAX's types have + and - of Explicit axes outside of manual regions, too.
        markable = manual or self.region.explicit
        for mark in side.marks:
            for axis in self.meaning(mark.axis):
                if axis not in markable or (mark.sign == "~" and not manual):
                    raise self.not_manual(axis, mark.span)
        count = rank - len(side.dims) + 1 if dots is None else dots
        dims: list[PatternDim] = []
        for dim in side.dims:
            if isinstance(dim, Rest):
                dims += [PatternDim((dot,), span=dim.span) for dot in _factors_of(dim, count)]
            else:
                factors = tuple(chain.from_iterable(_factors_of(item, count) for item in dim.factors))
                dims.append(PatternDim(factors, dim.axes, dim.is_group, dim.span))
        layout = layout.at_rank(len(dims), self.hints[index].spec.rest).over(manual)
        places, dots = tuple(map(ResolvedDim, dims, layout.dim_axes)), 0 if side.dots is None else count
        axes = (layout.dim_axes, layout.unreduced, layout.reduced, layout.varying)
        return SideLayout(*axes, side=side, dims=places, dots=dots)

    def meaning(self, name: str) -> MeshAxes:
        """The mesh axes that a name in the pattern stands for."""
        return dict(self.region.aliases).get(name, (name,))

    @property
    def has_unused_alias(self) -> bool:
        """Whether an alias in the pattern stands for no mesh axis here, so that there may be nothing to do."""
        return any(
            not self.meaning(name) for side in self.pattern.sides for name, _ in written_axes(side.dims, side.marks)
        )

    def require_manual(self, axes: Iterable[str] | None = None) -> None:
        """Refuse to move anything over an axis that is not manual here.

        Args:
          axes: the axes; by default all that the pattern names.

        Raises:
          MeshAxisError: for the first that is not manual.
        """
        written: dict[str, Span] = {}
        for index, side in enumerate(self.pattern.sides):
            self.layout(index)  # has only axes of the mesh
            for name, span in written_axes(side.dims, side.marks):
                for axis in self.meaning(name):
                    written.setdefault(axis, span)
        for axis in written if axes is None else axes:
            if axis not in self.region.sizes:
                raise self.not_manual(axis, written.get(axis))

    def not_manual(self, axis: str, span: Span | None) -> TypedShmapError:
        """The exception for something that happens over an axis that is not manual here."""
        mesh = None if self.region.mesh is None else tuple(name for name, _ in self.region.mesh)
        if mesh is None or axis in mesh:
            return self.wrong(NotManual(axis, span))
        others = tuple(name for name, _ in self.region.aliases if name not in mesh)
        return self.wrong(UnknownAxis(axis, axis, (0, len(self.pattern.source)), mesh, others))

    def require_names(self) -> None:
        """Refuse merged dims and numbers, where an operation takes one name per dim."""
        for side in self.pattern.sides:
            for dim in side.dims:
                if isinstance(dim, PatternDim) and (dim.is_group or str(dim.factors[0]).isdecimal()):
                    cure = "merge and split dims by rearrange; give a number a name"
                    raise self.fault(f"{self.verb} takes no '{dim}', only names", dim.span, cure)

    def refuse_repeated_names(self, where: str) -> None:
        """Refuse a name that one side has twice."""
        for index, side in enumerate(self.pattern.sides):
            names = side.names
            for at, name in enumerate(names):
                if name in names[:at]:
                    raise self.fault(f"the pattern has '{name}' twice {where}", self.span_of(index, name))

    def refuse_new_names(self) -> None:
        """Refuse a name that only the result has."""
        known = [name for side in self.pattern.operands for name in side.names]
        for factor in self.pattern.result.factors if self.pattern.result is not None else ():
            if factor.name not in known:
                raise self.fault(f"the pattern has '{factor}' only on the right", factor.span)

    def span_of(self, index: int, name: str) -> Span:
        """Where a dim with this factor is in a side; the side itself if there is none."""
        side = self.pattern.sides[index]
        dims = (dim for dim in side.dims if isinstance(dim, PatternDim) and name in map(str, dim.factors))
        return next(dims, side).span

    def over(self, axes: MeshAxes) -> str:
        """``over 'dp', 'tp' (8 shards)``"""
        return f"over {quoted_axes(axes)} ({shard_count(axes, self.region.sizes)} shards)"

    def local_pattern(self, dim_text: Callable[[PatternDim], str]) -> str:
        """The pattern without its sharding."""
        sides: list[str] = []
        for side in self.pattern.sides:
            sides.append(" ".join(["..." if isinstance(dim, Rest) else dim_text(dim) for dim in side.dims]))
        return f"{', '.join(sides[:-1])} -> {sides[-1]}"


def _factors_of(item: Factor | Rest, count: int) -> tuple[Factor, ...]:
    """The factor, or one for each dim that ``...`` stands for, counted from the last as broadcasting does."""
    return tuple(Factor(f"…{at}", item.span) for at in range(count, 0, -1)) if isinstance(item, Rest) else (item,)


def current_operation(verb: str, pattern: Pattern, hints: tuple[ArrayHint, ...] = ()) -> Operation:
    """A call of an operation in the current mesh context."""
    scope = current_scope()
    where = verb if scope is None else f"{verb} in {scope.function}"
    return Operation(verb, pattern, hints, current_mesh_context(), where)


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
        parsed, hints = _read_pattern(pattern, allows_underscore)
    except SyntaxFault as fault:
        call = current_operation(verb, Pattern((), None, pattern))
        if isinstance(fault, RepeatedAxis):
            raise call.wrong(AxisTwice(fault.axis, fault.span)) from None
        raise call.fault(fault.problem, fault.span, fault.cure) from None
    call = current_operation(verb, parsed, hints)
    if has_result and parsed.result is None:
        raise call.fault("the pattern has no '->'", None, "write operands -> result")
    if not has_result and parsed.result is not None:
        raise call.fault("the pattern has a '->', where one side says it all", parsed.result.span)
    if len(parsed.operands) != operands:
        given = f"{count_text(operands, 'array')} {'was' if operands == 1 else 'were'}"
        raise call.fault(f"the pattern has {count_text(len(parsed.operands), 'operand')}, but {given} given")
    return call


@lru_cache(maxsize=4096)
def _read_pattern(source: str, allows_underscore: bool) -> tuple[Pattern, tuple[ArrayHint, ...]]:
    """A pattern, and what each of its sides means."""
    pattern, text = parse_pattern(source), HintText('"', source, '"')
    for factor in chain.from_iterable(side.factors for side in pattern.sides):
        if factor.name == "_" and not allows_underscore:
            problem = "the pattern has '_'; a name neither starts nor ends with an underscore"
            raise SyntaxFault(problem, source, factor.span)
    specs = (side.spec(source) for side in pattern.sides)
    return pattern, tuple(ArrayHint(None, "Shaped", Any, spec, text, takes_rules=False) for spec in specs)
