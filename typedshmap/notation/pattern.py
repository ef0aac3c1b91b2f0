"""Parse the pattern of an operation, ``"[b/dp] s (h d) -> [b/dp] h s d"``.

The notation is that of einops, with the brackets and marks of hints. Nodes print as their source,
and every parse function's docstring is its grammar rule; a mistake is raised as `SyntaxFault`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field, replace
from functools import lru_cache

from ..errors.failures import Span
from ..records import Record
from .spec import NOWHERE, Anything, Axes, AxesParser, Dim, Mark, Rest, Spec, refuse_repeated_axes
from .tokens import MOST_DIGITS, SyntaxFault, refuse_long_text, split_tokens

_ARROW = "->"
_AXES = re.compile(r"(,\w+)+")


class Factor(Record):
    """A name or a number in a pattern; a dim has one factor, or several merged ones."""

    name: str
    span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return self.name

    @property
    def number(self) -> int | None:
        """The size of an anonymous factor, ``4``."""
        return int(self.name) if self.name.isdecimal() else None


class PatternDim(Record):
    """One dim: its factors, major to minor, and its mesh axes (None without brackets)."""

    factors: tuple[Factor | Rest, ...]
    axes: Axes | None = None
    is_group: bool = False
    span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        inner = " ".join(map(str, self.factors))
        inner = f"({inner})" if self.is_group else inner
        return inner if self.axes is None else f"[{inner}/{self.axes}]"


class Side(Record):
    """An operand or the result of a pattern."""

    dims: tuple[PatternDim | Rest, ...]
    marks: tuple[Mark, ...] = ()
    span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return " ".join(map(str, (*self.dims, *self.marks)))

    @property
    def items(self) -> Iterator[Factor | Rest]:
        for dim in self.dims:
            yield from dim.factors if isinstance(dim, PatternDim) else (dim,)

    @property
    def factors(self) -> Iterator[Factor]:
        """The names and numbers, in order."""
        return (item for item in self.items if isinstance(item, Factor))

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order, without numbers."""
        return tuple(factor.name for factor in self.factors if factor.number is None)

    @property
    def dots(self) -> Rest | None:
        """The ``...``, in parentheses or not."""
        return next((item for item in self.items if isinstance(item, Rest)), None)

    def spec(self, pattern: Pattern) -> Spec:
        """The spec of this side; with one bracket or mark, a pattern states the sharding of all sides."""
        unwritten, dims = Axes(()) if pattern.has_sharding else None, list[Dim | Rest]()
        for dim in self.dims:
            dims.append(dim if isinstance(dim, Rest) else Dim(Anything(), dim.axes or unwritten, span=dim.span))
        return Spec(tuple(dims), self.marks, pattern.source)


class Pattern(Record):
    """Operands and a result; the result is None if the pattern has only one side."""

    operands: tuple[Side, ...]
    result: Side | None
    source: str = field(default="", compare=False)

    def __str__(self) -> str:
        left = ", ".join(map(str, self.operands))
        return left if self.result is None else f"{left.rstrip()} {_ARROW} {self.result}".strip()

    @property
    def sides(self) -> tuple[Side, ...]:
        return self.operands if self.result is None else (*self.operands, self.result)

    @property
    def has_sharding(self) -> bool:
        return any(side.marks or any(dim.axes for dim in side.dims) for side in self.sides)


_MOST_CHARACTERS = 10_000


@lru_cache(maxsize=4096)
def parse_pattern(source: str) -> Pattern:
    """pattern := side (',' side)* ('->' side)?"""
    refuse_long_text(source, _MOST_CHARACTERS)
    arrows = [arrow.span() for arrow in re.finditer(_ARROW, source)]
    if len(arrows) > 1:
        raise SyntaxFault("the pattern has two arrows", arrows[1])
    start, end = arrows[0] if arrows else (len(source), 0)
    sides = _parse_sides(source, (0, start))
    if not arrows:
        return Pattern(tuple(sides), None, source)
    results = _parse_sides(source, (end, len(source)))
    if len(results) > 1:
        raise SyntaxFault("the pattern has a comma in its result", results[1].span, "write one result after '->'")
    return Pattern(tuple(sides), results[0], source)


def _parse_sides(source: str, span: Span) -> list[Side]:
    return [_PatternParser(source, tokens).side(span) for tokens in split_tokens(source, span, "comma")]


class _PatternParser(AxesParser):
    """The grammar of one side."""

    def side(self, within: Span) -> Side:
        """side := item* mark*"""
        dims: list[PatternDim | Rest] = []
        marks: list[Mark] = []
        while self.peek():
            if self.peek() in ("+", "-", "~"):
                marks.append(self.mark())
            elif marks:
                cure = f"move '{marks[-1]}' to the end"
                raise self.fault(f"the pattern has '{marks[-1]}' before a dim", marks[-1].span, cure)
            else:
                dims.append(self.item())
        side = Side(tuple(dims), tuple(marks), self.since(0) if self.tokens else (within[1], within[1]))
        dots = [item for item in side.items if isinstance(item, Rest)]
        if len(dots) > 1:
            raise self.fault("the pattern has '...' twice for one array", dots[1].span, "keep one of them")
        refuse_repeated_axes(dims, marks)
        return side

    def mark(self) -> Mark:
        """mark := ('+' | '-' | '~') NAME"""
        start, sign = self.at, self.take().text
        if self.kind() != "name":
            problem = f"the pattern has a '{sign}' without a mesh axis"
            raise self.fault(problem, self.since(start), f"write {sign}axis, as in {sign}tp")
        return Mark(sign, self.take().text, self.since(start))

    def item(self) -> PatternDim | Rest:
        """item := bracketed | dots | dim"""
        dim = self.bracketed() if self.peek() == "[" else self.dots() if self.peek() == "..." else self.dim()
        if self.peek() == "/":
            raise self.unbracketed(dim)
        return dim

    def unbracketed(self, dim: PatternDim | Rest) -> SyntaxFault:
        start = next(i for i, token in enumerate(self.tokens) if token.span[0] == dim.span[0])
        self.take()
        if self.kind() == "name" or self.peek() == "(":
            self.axes()
        span = self.since(start)
        # A comma separates operands; without a space after it, it separates axes.
        more = _AXES.match(self.source, span[1])
        written = self.source[span[0] : more.end() if more else span[1]]
        problem = f"the pattern has '{written}', sharded without brackets"
        return self.fault(problem, self.since(start), f"write [{written}]")

    def bracketed(self) -> PatternDim:
        """bracketed := '[' dim '/' axes? ']'"""
        start = self.at
        self.take()
        if self.peek() == "...":
            cure = "brackets hold one dim; name the dim that is sharded"
            raise self.fault("the pattern shards any number of dims", cure=cure)
        if self.peek() in ("]", "/"):
            raise self.fault("the pattern has brackets without a dim", self.since(start), "write [dim/axis]")
        dim = self.dim()
        if dim.axes is not None:
            raise self.fault("the pattern has brackets inside brackets", self.since(start), "keep one of them")
        if self.accept("]"):
            text = self.text(self.since(start))
            cure = f"write {text[:-1]}/axis], or {text[:-1]}/] for a dim that is not sharded"
            raise self.fault(f"the pattern has '{text}', which names no mesh axis", self.since(start), cure)
        cure = "brackets hold one dim; merged dims stand in ()"
        self.expect("/", f"the pattern has an unexpected '{self.peek()}'", cure)
        return replace(dim, axes=self.closed_axes(), span=self.since(start))

    def dim(self) -> PatternDim:
        """dim := factor | group"""
        if self.peek() == "(":
            return self.group()
        factor = self.factor()
        return PatternDim((factor,), span=factor.span)

    def group(self) -> PatternDim:
        """group := '(' bracketed? (factor | '...')* ')', where ``([h/tp] d)`` is ``[(h d)/tp]``"""
        start = self.at
        self.take()
        factors: list[Factor | Rest] = []
        axes = None
        while not self.accept(")"):
            if self.peek() == "(":
                raise self.fault("the pattern has parentheses inside parentheses", cure="one level is enough")
            if self.peek() == "[":
                at, dim = self.at, self.bracketed()
                if factors or dim.is_group:
                    raise self.minor_factor(at, dim)
                factors, axes = [*dim.factors], dim.axes
                continue
            factors.append(self.dots() if self.peek() == "..." else self.factor())
        return PatternDim(tuple(factors), axes, True, self.since(start))

    def minor_factor(self, at: int, dim: PatternDim) -> SyntaxFault:
        text = " ".join(map(str, dim.factors))
        cure = f"put {text} first, ([{text}/{dim.axes}] ...): a merged dim is sharded on its major factor"
        return self.fault("the pattern has brackets inside parentheses", self.since(at), cure)

    def dots(self) -> Rest:
        """dots := '...'"""
        start = self.at
        span = self.take().span
        before = self.tokens[start - 1] if start else None
        touches_before = before is not None and before.kind in ("name", "number") and before.span[1] == span[0]
        touches_after = self.kind() in ("name", "number") and self.here()[0] == span[1]
        if touches_before or touches_after or (self.peek() == "..." and self.here()[0] == span[1]):
            raise self.fault("the pattern has '...' without a space beside it", span, "separate dims by spaces")
        return Rest(span=span)

    def factor(self) -> Factor:
        """factor := NAME | NUMBER"""
        if self.kind() not in ("name", "number"):
            cure = "separate dims by spaces" if self.peek() == "," else None
            raise self.fault(f"the pattern has an unexpected '{self.peek()}'", cure=cure)
        token = self.take()
        if token.kind == "number" and self.kind() == "name" and self.here()[0] == token.span[1]:
            name = self.take().text
            raise self.fault(f"the pattern has '{token.text}{name}', which is not a name", self.since(self.at - 2))
        if token.kind == "number" and not token.text.isdecimal():
            raise self.fault(f"the pattern has '{token.text}', which is not a name", token.span)
        if token.kind == "number" and len(token.text) > MOST_DIGITS:
            raise self.fault(f"a size of {len(token.text)} digits", token.span)
        if token.text != "_" and (token.text.startswith("_") or token.text.endswith("_")):
            problem = f"the pattern has '{token.text}'; a name neither starts nor ends with an underscore"
            raise self.fault(problem, token.span)
        if token.kind == "name" and not token.text.isidentifier():
            raise self.fault(f"the pattern has '{token.text}', which is not a name", token.span)
        return Factor(token.text, token.span)
