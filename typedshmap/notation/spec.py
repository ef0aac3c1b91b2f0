"""A spec, ``"[batch/dp] d"``: its syntax as frozen nodes, and its parser, whose docstrings are the grammar.

Whitespace separates dims and is ignored inside ``[] () {}``. A mistake is raised as `SyntaxFault`, with the problem,
the span and the cure.

Invariant: ``parse(str(node)) == node`` for every node that the parser can make. Spans are not compared, so a node that
was moved is equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

from ..errors.failures import Span
from ..records import Record
from .tokens import MOST_DIGITS, Cursor, RepeatedAxis, SyntaxFault, Token, refuse_long_text, split_tokens

NOWHERE: Span = (0, 0)


class Number(Record):
    """An exact size, ``4``."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


class Name(Record):
    """The name of a global size, ``batch``."""

    name: str

    def __str__(self) -> str:
        return self.name


class Anything(Record):
    """Any size, ``_`` or ``_name``."""

    name: str = "_"

    def __str__(self) -> str:
        return self.name


class Argument(Record):
    """A name in braces, ``heads``, ``self.heads`` or ``sizes[0]``: an argument of the call, else the size of a dim."""

    root: str
    steps: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        steps = (f".{s}" if isinstance(s, str) else f"[{s}]" for s in self.steps)
        return f"{self.root}{''.join(steps)}"


class Braces(Record):
    """An expression over the call's arguments, ``{kernel-1}``."""

    inner: Expression

    def __str__(self) -> str:
        return f"{{{self.inner}}}"


class Group(Record):
    """A parenthesised expression, ``(d+1)``."""

    inner: Expression

    def __str__(self) -> str:
        return f"({self.inner})"


class Negative(Record):
    """A negated expression, ``-d``."""

    inner: Expression

    def __str__(self) -> str:
        return f"-{self.inner}"


class Binary(Record):
    """Two expressions and one of ``+ - * // % **``."""

    left: Expression
    operator: str
    right: Expression

    def __str__(self) -> str:
        return f"{self.left}{self.operator}{self.right}"


class Call(Record):
    """``min(a,b)`` or ``max(a,b)``."""

    function: str
    arguments: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"{self.function}({','.join(map(str, self.arguments))})"


Expression: TypeAlias = Number | Name | Anything | Argument | Braces | Group | Negative | Binary | Call


class Axes(Record):
    """The mesh axes between ``/`` and ``]``, major to minor; none for ``[dim/]``, any sharding for ``[dim/?]``."""

    names: tuple[str, ...]
    parenthesised: bool = field(default=False)
    span: Span = field(default=NOWHERE, compare=False)
    is_any: bool = False

    def __str__(self) -> str:
        names = "?" if self.is_any else ",".join(self.names)
        return f"({names})" if self.parenthesised else names


class Dim(Record):
    """One dim: its size and its mesh axes (``axes`` is None without brackets)."""

    size: Expression
    axes: Axes | None = None
    broadcast: bool = False
    per_leaf: bool = False
    label: str | None = None
    span: Span = field(default=NOWHERE, compare=False)
    size_span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        prefix = "#" * self.broadcast + "?" * self.per_leaf
        label = "" if self.label is None else f"{self.label}="
        text = f"{label}{prefix}{self.size}"
        return text if self.axes is None else f"[{text}/{self.axes}]"


class Rest(Record):
    """Any number of dims, ``...`` or ``*name``; a bare ``*`` has an empty name."""

    axes: ClassVar[None] = None
    name: str | None = None
    broadcast: bool = False
    per_leaf: bool = False
    span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        prefix = "*" + "#" * self.broadcast + "?" * self.per_leaf
        return "..." if self.name is None else f"{prefix}{self.name}"


class Mark(Record):
    """A mark of an array over one mesh axis: ``+tp``, ``-tp`` or ``~tp``."""

    sign: str
    axis: str
    span: Span = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return f"{self.sign}{self.axis}"


class Spec(Record):
    """The dims and marks of a hint."""

    dims: tuple[Dim | Rest, ...]
    marks: tuple[Mark, ...] = ()
    source: str = field(default="", compare=False)

    def __str__(self) -> str:
        return " ".join(map(str, (*self.dims, *self.marks)))

    @property
    def rest(self) -> int | None:
        """The index of the ``...`` or ``*name``, if there is one."""
        return next((i for i, dim in enumerate(self.dims) if isinstance(dim, Rest)), None)

    @cached_property
    def names(self) -> list[str]:
        sizes = (names_in_expression(dim.size) if isinstance(dim, Dim) else (dim.name or "",) for dim in self.dims)
        return [name for size_names in sizes for name in size_names]

    def dim_at(self, index: int, rank: int) -> Dim | Rest:
        """The token for a dim of an array of a rank."""
        if self.rest is None or index < self.rest:
            return self.dims[index]
        return self.dims[max(self.rest, index - rank + len(self.dims))]


FUNCTIONS = ("min", "max")
_MOST_TOKENS = 200
_MOST_CHARACTERS = 200_000


@lru_cache(maxsize=4096)
def parse(source: str) -> Spec:
    """spec := dim* mark*"""
    refuse_long_text(source, _MOST_CHARACTERS)
    try:
        runs = split_tokens(source, (0, len(source)), "space")
        items = [_SpecParser(source, run).item() for run in runs if run]
    except RecursionError:
        raise SyntaxFault("the dims are nested too deeply", (0, len(source))) from None
    dims = tuple(item for item in items if not isinstance(item, Mark))
    marks = tuple(item for item in items if isinstance(item, Mark))
    rests = [dim for dim in dims if isinstance(dim, Rest)]
    if len(rests) > 1:
        problem = f"'{rests[0]}' and '{rests[1]}' both stand for any number of dims"
        raise SyntaxFault(problem, rests[1].span, "keep one of them")
    for mark, following in pairwise(items):
        if isinstance(mark, Mark) and not isinstance(following, Mark):
            raise SyntaxFault(f"'{mark}' stands before a dim", mark.span, f"move '{mark}' to the end")
    refuse_repeated_axes(dims, marks)
    return Spec(dims, marks, source)


def written_axes(dims: Iterable[Any], marks: Iterable[Mark]) -> Iterator[tuple[str, Span]]:
    """The names of mesh axes in the brackets and marks of a spec, or of a side of a pattern, with their spans."""
    for dim in dims:
        if dim.axes is not None:
            yield from ((name, dim.axes.span) for name in dim.axes.names)
    yield from ((mark.axis, mark.span) for mark in marks)


def refuse_repeated_axes(dims: Iterable[Any], marks: Iterable[Mark]) -> None:
    """Raise for a mesh axis that one array has twice."""
    seen: set[str] = set()
    for axis, span in written_axes(dims, marks):
        if axis in seen:
            raise RepeatedAxis(axis, span)
        seen.add(axis)


def names_in_expression(size: Expression) -> tuple[str, ...]:
    """The names whose sizes an expression needs; a name in braces may be an argument instead."""
    match size:
        case Name(name) | Argument(name, ()):
            return (name,)
        case Group(inner) | Negative(inner) | Braces(inner):
            return names_in_expression(inner)
        case Binary(left, _, right):
            return names_in_expression(left) + names_in_expression(right)
        case Call(_, arguments):
            return tuple(name for argument in arguments for name in names_in_expression(argument))
        case _:
            return ()


class AxesParser(Cursor):
    """The grammar of mesh axes in brackets."""

    def closed_axes(self) -> Axes:
        """closed_axes := axes ']'"""
        axes = self.axes()
        self.expect("]", f"unexpected '{self.peek()}' among mesh axes", "write [dim/a,b]")
        return axes

    def axes(self) -> Axes:
        """axes := '' | '?' | NAME (',' NAME)* | '(' (NAME (',' NAME)* ','?)? ')'"""
        start = self.at
        if self.peek() == "]":
            return Axes((), span=self.here())
        if self.accept("?"):
            return Axes((), span=self.since(start), is_any=True)
        parenthesised = bool(self.accept("("))
        names = [] if parenthesised and self.peek() == ")" else [self.axis()]
        while self.accept(",") and not (parenthesised and self.peek() == ")"):
            names.append(self.axis())
        if parenthesised:
            self.expect(")", f"unexpected '{self.peek()}' among mesh axes", "write [dim/a,b]")
        return Axes(tuple(names), parenthesised and bool(names), self.since(start))

    def axis(self) -> str:
        """axis := NAME"""
        if self.kind() != "name":
            raise self.fault(f"'{self.peek()}' is not a mesh axis", cure="write [dim/axis], or [dim/a,b] for two")
        return self.take().text


_ALONE = "any number of dims stand alone, as in ... or *name"
_DIVISION = "a size is divided by //"
_BRACES = "write {argument}, {argument.attribute} or {argument-1}"


class _SpecParser(AxesParser):
    """The grammar of one dim or mark."""

    is_in_braces = False
    unsized = ""
    """The first name in an expression that may be any size."""

    def item(self) -> Dim | Rest | Mark:
        """item := mark | bracketed | '...' | dim"""
        if len(self.tokens) > _MOST_TOKENS:  # limits the depth of an expression
            raise self.fault(f"a dim of more than {_MOST_TOKENS} tokens", self.tokens[_MOST_TOKENS].span)
        if self.peek() in ("+", "-", "~"):
            item = self.mark()
        elif self.peek() == "[":
            item = self.bracketed()
        elif self.accept("..."):
            item = Rest(span=self.since(0))
        else:
            item = self.dim()
        if self.at < len(self.tokens):
            raise self.leftover()
        return item

    def leftover(self) -> SyntaxFault:
        token, text = self.tokens[self.at], self.text(self.full_span())
        done = self.text((self.tokens[0].span[0], token.span[0]))
        if token.text == ",":
            return self.fault("a comma between dims", token.span, "separate dims by spaces")
        if token.text == "/" and not done.startswith(("[", "+", "-", "~")):
            axes = self.text((token.span[1], self.full_span()[1])).strip("()")
            if axes.isdigit():
                return self.fault("a single '/' is not an operator", token.span, f"write {done}//{axes}")
            if not all(axis.isidentifier() for axis in axes.split(",")):
                axes = "axis"
            return self.fault(f"'{text}' is sharded without brackets", self.full_span(), f"write [{done}/{axes}]")
        cures = {"#": f"write #{done}", "?": f"write ?{done}", "...": _ALONE}
        if done.startswith("-") and token.text in ("+", "-", "*", "//", "%", "**"):
            cures[token.text] = f"write ({text}); '-' begins a mark"
        return self.fault(f"unexpected '{token.text}' after '{done}'", token.span, cures.get(token.text))

    def mark(self) -> Mark:
        """mark := ('+' | '-' | '~') NAME"""
        sign = self.take().text
        if self.kind() != "name":
            cure = f"write {sign}axis, as in {sign}tp; an expression holds no spaces, as in d+1"
            raise self.fault(f"'{sign}' expects a mesh axis", self.full_span(), cure)
        return Mark(sign, self.take().text, self.full_span())

    def bracketed(self) -> Dim:
        """bracketed := '[' dim '/' axes? ']'"""
        self.take()
        if self.peek() in ("]", "/"):
            raise self.fault("brackets without a dim", self.full_span(), "write [dim/axis]; _ is a dim of any size")
        dim = None if self.peek() == "..." else self.dim()
        if not isinstance(dim, Dim):
            problem = f"'{self.text(self.full_span())}' shards any number of dims"
            raise self.fault(problem, self.tokens[1].span, "brackets hold one dim; name the dim that is sharded")
        if not self.accept("/"):
            inner = self.text(self.since(1))
            cure = f"write [{inner}/axis], or [{inner}/] for a dim that is not sharded"
            raise self.fault(f"'{self.text(self.full_span())}' names no mesh axis", self.full_span(), cure)
        axes = self.closed_axes()
        if dim.broadcast and axes.names:
            problem = f"'{dim}' may be of size 1, so it may not be sharded"
            raise self.fault(problem, self.full_span(), f"write [{str(dim).replace('#', '')}/{axes}], or {dim}")
        return replace(dim, axes=axes, span=self.since(0))

    def dim(self) -> Dim | Rest:
        """dim := signs sum | signs NAME?, the latter with a '*' among the signs"""
        start, (signs, label) = self.at, self.signs()
        if "*" in signs:
            return self.rest(start, signs)
        size_start = self.at
        if self.at == len(self.tokens):
            raise self.fault("a dim is missing here", self.full_span())
        if self.peek() == "...":
            raise self.fault("unexpected '...'", cure=_ALONE)
        size = self.sum()
        if isinstance(size, Name):
            if "_" in signs or size.name.startswith("_"):
                size, signs = self.anonymous(size.name, start, signs, "_"), signs - {"?"}
        elif self.unsized:
            problem = f"'{self.unsized}' may be any size and cannot stand in an expression"
            raise self.fault(problem, self.since(size_start), "give it a name")
        elif wants_name := signs & {"?", "_"}:
            sign = min(wants_name)
            raise self.fault(f"'{sign}' expects a name", self.since(start), f"write {sign}name")
        return Dim(size, None, "#" in signs, "?" in signs, label, self.since(start), self.since(size_start))

    def rest(self, start: int, signs: set[str]) -> Rest:
        """rest := NAME?"""
        if self.kind() == "number":
            raise self.fault("'*' expects a name", self.full_span(), "write *name, or ... for dims without a name")
        name = self.take().text if self.kind() == "name" else ""
        if "_" in signs or name.startswith("_"):
            self.anonymous(name, start, signs, "...")
            return Rest(span=self.since(start))
        return Rest(name, "#" in signs, "?" in signs, self.since(start))

    def anonymous(self, name: str, start: int, signs: set[str], instead: str) -> Anything:
        """A dim of any size; raises with '#', which needs a size to compare."""
        name = name if name.startswith("_") else f"_{name}"
        if "#" in signs:
            cure = f"give it a name, or write {instead}"
            raise self.fault(f"'{name}' may be any size, so '#' cannot compare it", self.since(start), cure)
        return Anything(name)

    def signs(self) -> tuple[set[str], str | None]:
        """signs := ('*' | '#' | '?' | '_' | NAME '=')*, each once, in any order; returns them, and the NAME"""
        seen, label = set[str](), None
        while True:
            start, following = self.at, self.tokens[self.at + 1].text if self.at + 1 < len(self.tokens) else ""
            if self.kind() == "name" and following == "=" and label is None:
                label, sign = self.take().text, self.take().text
                if label.startswith("_"):
                    label, sign = label[1:] or None, "_"
            elif self.peek() in ("*", "#", "?") or (self.peek() == "_" and following in ("*", "#", "?")):
                sign = self.take().text
            else:
                return seen, label
            if sign in seen:
                raise self.fault(f"'{sign}' is written twice", self.since(start))
            seen.add(sign)

    def sum(self) -> Expression:
        """sum := product (('+' | '-') product)*"""
        left = self.product()
        while sign := self.accept("+", "-"):
            left = Binary(left, sign, self.product())
        return left

    def product(self) -> Expression:
        """product := unary (('*' | '//' | '%') unary)*"""
        left = self.unary()
        while sign := self.accept("*", "//", "%"):
            left = Binary(left, sign, self.unary())
        return left

    def unary(self) -> Expression:
        """unary := '-' unary | atom ('**' unary)?"""
        if self.accept("-"):
            return Negative(self.unary())
        base = self.atom()
        return Binary(base, "**", self.unary()) if self.accept("**") else base

    def atom(self) -> Expression:
        """atom := NUMBER | NAME | call | '(' sum ')' | braces, or an argument in braces"""
        if self.kind() == "number":
            if len(self.peek()) > MOST_DIGITS:
                raise self.fault(f"a size of {len(self.peek())} digits")
            return Number(int(self.take().text))
        if self.kind() == "name":
            name = self.take()
            if self.peek() == "(":
                return self.call(name)
            if self.is_in_braces:
                return self.argument(name.text)
            self.unsized = self.unsized or (name.text if name.text.startswith("_") else "")
            return Name(name.text)
        if self.accept("("):
            inner = self.sum()
            self.close_parenthesis()
            return Group(inner)
        if self.peek() == "{":
            return self.braces()
        if self.at == len(self.tokens):
            raise self.fault(f"'{self.text(self.full_span())}' ends too early", self.full_span())
        if self.peek() == ",":
            raise self.fault("a comma between dims", cure="separate dims by spaces")
        raise self.fault(f"unexpected '{self.peek()}'")

    def call(self, name: Token) -> Call:
        """call := FUNCTION '(' sum (',' sum)* ')'"""
        if name.text not in FUNCTIONS:
            raise self.fault(f"unknown function '{name.text}'", name.span, "min and max are known")
        self.take()
        arguments = [self.sum()]
        while self.accept(","):
            arguments.append(self.sum())
        self.close_parenthesis()
        return Call(name.text, tuple(arguments))

    def close_parenthesis(self) -> None:
        self.expect(")", f"unexpected '{self.peek()}' in parentheses", _DIVISION if self.peek() == "/" else None)

    def braces(self) -> Braces:
        """braces := '{' sum '}'"""
        if self.is_in_braces:
            raise self.fault("braces inside of braces", cure=_BRACES)
        self.take()
        if self.peek() == "}":
            raise self.fault("braces expect an argument's name", cure=_BRACES)
        self.is_in_braces = True
        inner = self.sum()
        self.is_in_braces = False
        self.expect("}", f"unexpected '{self.peek()}' in braces", _DIVISION if self.peek() == "/" else _BRACES)
        return Braces(inner)

    def argument(self, root: str) -> Argument:
        """argument := NAME ('.' NAME | '[' '-'? NUMBER ']')*"""
        steps = list[str | int]()
        while sign := self.accept(".", "["):
            minus = self.accept("-") if sign == "[" else ""
            if self.kind() != ("name" if sign == "." else "number") or (sign == "[" and len(self.peek()) > MOST_DIGITS):
                raise self.fault(f"unexpected '{self.peek()}' in braces", cure=_BRACES)
            step = self.take().text
            steps.append(step if sign == "." else int(minus + step))
            if sign == "[":
                self.expect("]", f"unexpected '{self.peek()}' in braces", _BRACES)
        return Argument(root, tuple(steps))
