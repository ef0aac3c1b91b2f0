"""Parse the pattern of an operation, ``"[b/dp] s (h d) -> [b/dp] h s d"``.

The notation is that of einops, with the brackets and marks of hints. Nodes print as their source,
and every parse function's docstring is its grammar rule; a mistake is raised as `SyntaxFault`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from .spec import NOWHERE, Anything, Axes, Dim, Mark, Rest, Spec
from .tokens import MOST_DIGITS, Cursor, RepeatedAxis, Span, SyntaxFault, Token, operands

_ARROW = "->"
_AXES = re.compile(r"(,\w+)+")


@dataclass(frozen=True, slots=True)
class Factor:
    """A name or a number in a pattern; a dim has one of them, or several that are merged."""

    name: str
    span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return self.name

    @property
    def number(self) -> int | None:
        """The size of an anonymous factor, ``4``."""
        return int(self.name) if self.name.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Dots:
    """Any number of dims, ``...``."""

    span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return "..."


@dataclass(frozen=True, slots=True)
class PatternDim:
    """One dim: its factors, major to minor, and its mesh axes (None without brackets)."""

    factors: tuple[Factor | Dots, ...]
    axes: Axes | None = None
    is_group: bool = False
    span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        inner = " ".join(map(str, self.factors))
        inner = f"({inner})" if self.is_group else inner
        return inner if self.axes is None else f"[{inner}/{self.axes}]"


@dataclass(frozen=True, slots=True)
class Side:
    """An operand or the result of a pattern."""

    dims: tuple[PatternDim | Dots, ...]
    marks: tuple[Mark, ...] = ()
    span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return " ".join(map(str, (*self.dims, *self.marks)))

    @property
    def factors(self) -> Iterator[Factor]:
        """The names and numbers, in order."""
        for dim in self.dims:
            if isinstance(dim, PatternDim):
                yield from (factor for factor in dim.factors if isinstance(factor, Factor))

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order; numbers left out."""
        return tuple(factor.name for factor in self.factors if factor.number is None)

    @property
    def dots(self) -> Dots | None:
        """The ``...``, in parentheses or not."""
        items = [i for dim in self.dims for i in (dim.factors if isinstance(dim, PatternDim) else (dim,))]
        return next((item for item in items if isinstance(item, Dots)), None)

    def spec(self, source: str) -> Spec:
        """What this side says as a hint does: any sizes, these mesh axes, these marks."""
        return Spec(tuple(map(_dim_of, self.dims)), self.marks, source)


def _dim_of(dim: PatternDim | Dots) -> Dim | Rest:
    return Rest(span=dim.span) if isinstance(dim, Dots) else Dim(Anything(), dim.axes, span=dim.span)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Operands and a result; None where the pattern has only one side."""

    operands: tuple[Side, ...]
    result: Side | None
    source: str = field(default="", compare=False)

    def __str__(self) -> str:
        left = ", ".join(map(str, self.operands))
        return left if self.result is None else f"{left.rstrip()} {_ARROW} {self.result}".strip()

    @property
    def has_sharding(self) -> bool:
        """Whether any bracket or mark stands in it."""
        sides = self.operands if self.result is None else (*self.operands, self.result)
        return any(side.marks or any(_axes_of(dim) for dim in side.dims) for side in sides)


def _axes_of(dim: PatternDim | Dots) -> Axes | None:
    return dim.axes if isinstance(dim, PatternDim) else None


@lru_cache(maxsize=4096)
def parse_pattern(source: str) -> Pattern:
    """pattern := side (',' side)* ('->' side)?"""
    left, *right = _split_at_arrow(source)
    sides = tuple(_PatternParser(source, tokens, left).side() for tokens in operands(source, left))
    if not right:
        return Pattern(sides, None, source)
    results = [_PatternParser(source, tokens, right[0]).side() for tokens in operands(source, right[0])]
    if len(results) > 1:
        raise SyntaxFault(
            "the pattern has a comma in its result", source, results[1].span, "one result stands after '->'"
        )
    return Pattern(sides, results[0], source)


def _split_at_arrow(source: str) -> list[Span]:
    at = source.find(_ARROW)
    if at < 0:
        return [(0, len(source))]
    start = at + len(_ARROW)
    if (again := source.find(_ARROW, start)) >= 0:
        raise SyntaxFault("the pattern has two arrows", source, (again, again + len(_ARROW)))
    return [(0, at), (start, len(source))]


class _PatternParser(Cursor):
    """The grammar of one side."""

    def __init__(self, source: str, tokens: list[Token], within: Span) -> None:
        super().__init__(source, tokens)
        self.within = within

    def side(self) -> Side:
        """side := item* mark*"""
        dims: list[PatternDim | Dots] = []
        marks: list[Mark] = []
        while self.peek():
            if self.peek() in ("+", "-", "~"):
                marks.append(self.mark())
            elif marks:
                cure = f"move '{marks[-1]}' to the end"
                raise self.fault(f"the pattern has '{marks[-1]}' before a dim", marks[-1].span, cure)
            else:
                dims.append(self.item())
        span = self.since(0) if self.tokens else (self.within[1], self.within[1])
        side = Side(tuple(dims), tuple(marks), span)
        self.refuse_repeated(side)
        return side

    def refuse_repeated(self, side: Side) -> None:
        dots = [i for dim in side.dims for i in (dim.factors if isinstance(dim, PatternDim) else (dim,))]
        dots = [item for item in dots if isinstance(item, Dots)]
        if len(dots) > 1:
            raise self.fault("the pattern has '...' twice for one array", dots[1].span, "keep one of them")
        axes = [(name, dim.axes.span) for dim in side.dims if isinstance(dim, PatternDim) and dim.axes is not None
                for name in dim.axes.names]  # fmt: skip
        seen: set[str] = set()
        for axis, span in axes + [(mark.axis, mark.span) for mark in side.marks]:
            if axis in seen:
                raise RepeatedAxis(axis, self.source, span)
            seen.add(axis)

    def mark(self) -> Mark:
        """mark := ('+' | '-' | '~') NAME"""
        start, sign = self.at, self.take().text
        if self.kind() != "name":
            raise self.fault(
                f"the pattern has a '{sign}' without a mesh axis",
                self.since(start),
                f"write {sign}axis, as in {sign}tp",
            )
        return Mark(sign, self.take().text, self.since(start))

    def item(self) -> PatternDim | Dots:
        """item := bracketed | dots | dim"""
        if self.peek() == "[":
            dim: PatternDim | Dots = self.bracketed()
        elif self.peek() == "...":
            dim = self.dots()
        else:
            dim = self.dim()
        if self.peek() == "/":
            raise self.unbracketed(dim)
        return dim

    def unbracketed(self, dim: PatternDim | Dots) -> SyntaxFault:
        start = next(i for i, token in enumerate(self.tokens) if token.span[0] == dim.span[0])
        self.take()
        self.axes()
        span = self.since(start)
        # A comma divides operands; one without a space after it was meant for axes.
        more = _AXES.match(self.source, span[1])
        written = self.source[span[0] : more.end() if more else span[1]]
        return self.fault(
            f"the pattern has '{written}', sharded without brackets", self.since(start), f"write [{written}]"
        )

    def bracketed(self) -> PatternDim:
        """bracketed := '[' dim '/' axes? ']'"""
        start = self.at
        self.take()
        if self.peek() == "...":
            raise self.fault(
                "the pattern shards any number of dims", cure="brackets hold one dim; name the dim that is sharded"
            )
        if self.peek() in ("]", "/"):
            raise self.fault("the pattern has brackets without a dim", self.since(start), "write [dim/axis]")
        dim = self.dim()
        if self.peek() == "]":
            self.take()
            text = self.text(self.since(start))
            cure = f"write {text[:-1]}/axis], or {text[:-1]}/] for a dim that is not sharded"
            raise self.fault(f"the pattern has '{text}', which names no mesh axis", self.since(start), cure)
        if self.peek() != "/":
            raise self.fault(
                f"the pattern has an unexpected '{self.peek()}'", cure="brackets hold one dim; merged dims stand in ()"
            )
        self.take()
        axes = self.axes()
        if self.peek() != "]":
            raise self.fault(f"the pattern has an unexpected '{self.peek()}'")
        self.take()
        return PatternDim(dim.factors, axes, dim.is_group, self.since(start))

    def axes(self) -> Axes:
        """axes := '(' names? ')' | names?, names := NAME (',' NAME)*"""
        start, opened = self.at, self.peek() == "("
        if opened:
            self.take()
        names: list[str] = []
        while self.kind() == "name":
            names.append(self.take().text)
            if self.peek() != ",":
                break
            self.take()
            if self.kind() != "name":
                raise self.fault("the pattern wants a mesh axis after ','")
        if opened:
            if self.peek() != ")":
                raise self.fault(f"the pattern has an unexpected '{self.peek()}'")
            self.take()
        return Axes(tuple(names), opened and bool(names), self.since(start) if self.at > start else self.here())

    def dim(self) -> PatternDim:
        """dim := factor | group"""
        if self.peek() == "(":
            return self.group()
        factor = self.factor()
        return PatternDim((factor,), span=factor.span)

    def group(self) -> PatternDim:
        """group := '(' (factor | '...')* ')'"""
        start = self.at
        self.take()
        factors: list[Factor | Dots] = []
        while self.peek() != ")":
            if self.peek() == "(":
                raise self.fault("the pattern has parentheses inside parentheses", cure="one level is enough")
            if self.peek() == "[":
                raise self.sharded_factor(start)
            is_dots = self.peek() == "..."
            factors.append(self.dots() if is_dots else self.factor())
        self.take()
        return PatternDim(tuple(factors), None, True, self.since(start))

    def sharded_factor(self, start: int) -> SyntaxFault:
        at, dim = self.at, self.bracketed()
        text = " ".join(map(str, dim.factors))
        if at == start + 1:
            cure = f"write [({text} ...)/{dim.axes}]: a merged dim is sharded on its major factor"
        else:
            cure = f"put {text} first, [({text} ...)/{dim.axes}]: a merged dim is sharded on its major factor"
        return self.fault("the pattern has brackets inside parentheses", self.since(at), cure)

    def dots(self) -> Dots:
        """dots := '...'"""
        start = self.at
        span = self.take().span
        before = self.tokens[start - 1] if start else None
        touches_before = before is not None and before.kind in ("name", "number") and before.span[1] == span[0]
        touches_after = self.kind() in ("name", "number") and self.here()[0] == span[1]
        if touches_before or touches_after or (self.peek() == "..." and self.here()[0] == span[1]):
            raise self.fault("the pattern has '...' without a space beside it", span, "separate dims by spaces")
        return Dots(span)

    def factor(self) -> Factor:
        """factor := NAME | NUMBER"""
        if self.kind() not in ("name", "number"):
            raise self.fault(f"the pattern has an unexpected '{self.peek()}'", cure=self.cure())
        token = self.take()
        if token.kind == "number" and self.kind() == "name" and self.here()[0] == token.span[1]:
            name = self.take().text
            raise self.fault(f"the pattern has '{token.text}{name}', which is not a name", self.since(self.at - 2))
        if token.kind == "number" and len(token.text) > MOST_DIGITS:
            raise self.fault(f"a size of {len(token.text)} digits", token.span)
        if token.text != "_" and (token.text.startswith("_") or token.text.endswith("_")):
            raise self.fault(
                f"the pattern has '{token.text}'; a name neither starts nor ends with an underscore", token.span
            )
        if token.kind == "name" and not token.text.isidentifier():
            raise self.fault(f"the pattern has '{token.text}', which is not a name", token.span)
        return Factor(token.text, token.span)

    def cure(self) -> str | None:
        return "separate dims by spaces" if self.peek() == "," else None
