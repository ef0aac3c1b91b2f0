"""Match a shape against a spec: the sizes that it binds, or a mismatch.

Invariant: for each dim, shard size times the sizes of its manual mesh axes is the global size, and a name has one
global size. `Sizes` never changes: binding a name makes a new one, so a failed check binds nothing."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

from ..errors.failures import Bound, Mismatch, Sentence, Span, Subject, Terms
from ..errors.phrases import count_text, quoted_axes, size_text
from ..records import Record
from .layout import Layout
from .spec import Anything, Argument, Binary, Braces, Call, Dim, Expression, Group, Name, Negative, Number, Rest, Spec
from .tokens import MOST_DIGITS


class RankMismatch(Mismatch):
    """A number of dims that differs from the spec's (a smaller number if the spec has a ``...``)."""

    expected: int
    at_least: bool
    got: int
    cure: str | None = None

    def words(self, terms: Terms) -> Sentence:
        least = "at least " if self.at_least else ""
        problem = f"has {count_text(self.got, 'dim')}, but {terms.hint} has {least}{self.expected}"
        return Sentence(problem, cure=self.cure)


class SizeMismatch(Mismatch):
    """A size that contradicts the spec, or ``origin``; a shard over the ``missing`` axes would have this size."""

    dim: Dim | Rest
    index: int
    got: int | tuple[int, ...]
    shard: int | None
    axes: tuple[str, ...]
    expected: int | tuple[int, ...]
    origin: Bound | None
    span: Span
    missing: tuple[str, ...] = ()

    def words(self, terms: Terms) -> Sentence:
        shards = "" if self.shard is None else f" ({self.shard} per shard over {quoted_axes(self.axes)})"
        has = f"has {_dim_size_text(self.dim, self.index, self.got)}{shards}"
        or_one = " (or 1)" if self.dim.broadcast else ""
        if self.origin is None:
            return Sentence(f"{has}, but {terms.hint} says {self.expected}{or_one}", self.span)
        name = _dim_name(self.dim, self.index)
        expected = size_text(name, self.expected)
        if self.missing:
            bracketed = f"[{name}/{','.join(self.missing)}]"
            cure = f"if {name} is still sharded over {quoted_axes(self.missing)}, write {bracketed}, or all_gather it"
            return Sentence(f"{has} on each shard, but {self.origin.subject.phrase} has {expected}", self.span, cure)
        if self.origin.subject == terms.subject:
            return Sentence(f"{has} in dim {self.index}, but {expected} in dim {self.origin.dim}", self.span)
        return Sentence(f"{has}, but {self.origin.subject.phrase} has {expected}{or_one}", self.span)


class Indivisible(Mismatch):
    """A dim that does not divide over its mesh axes."""

    dim: Dim
    index: int
    size: int
    axes: tuple[str, ...]
    shards: int
    span: Span

    def words(self, terms: Terms) -> Sentence:
        over = f"{quoted_axes(self.axes)} ({count_text(self.shards, 'shard')})"
        cure = f"make {_dim_name(self.dim, self.index)} a multiple of {self.shards}, or pad it and mask the rest"
        has = f"has {_dim_size_text(self.dim, self.index, self.size)}"
        return Sentence(f"{has}, which does not divide over {over}", self.span, cure)


class UnboundNames(Mismatch):
    """An expression over unbound names."""

    dim: Dim
    index: int
    names: tuple[str, ...]
    span: Span

    def words(self, terms: Terms) -> Sentence:
        named = quoted_axes(self.names)
        is_in_braces = "{" in str(self.dim.size)
        argument = "as an argument" if is_in_braces else f"write {{{self.names[0]}}} for an argument's value"
        cure = f"name {named} as a dim of an argument, or {argument}"
        return Sentence(f"has dim '{self.dim.size}'{terms.within}, but nothing binds {named}", self.span, cure)


class BadExpression(Mismatch):
    """An expression without a value, and the reason."""

    dim: Dim
    index: int
    reason: str
    span: Span

    def words(self, terms: Terms) -> Sentence:
        return Sentence(f"has a hint that cannot be evaluated: {self.reason}", self.span)


class OutsideTree(Mismatch):
    """A ``?name`` outside a structured PyTree."""

    dim: Dim | Rest
    span: Span

    def words(self, terms: Terms) -> Sentence:
        cure = "write PyTree[..., \"S\"] around it, or drop the '?'"
        return Sentence(f"has '{self.dim}'{terms.within}, outside of a PyTree with a structure name", self.span, cure)


def _dim_name(dim: Dim | Rest, index: int) -> str:
    """A dim in a message: its name, its label, its expression, or its index."""
    if isinstance(dim, Rest):
        return f"*{dim.name}"
    if dim.label is not None:
        return dim.label
    return f"dim {index}" if isinstance(dim.size, Anything | Number) else str(dim.size)


def _dim_size_text(dim: Dim | Rest, index: int, size: int | tuple[int, ...]) -> str:
    if isinstance(dim, Dim) and dim.label is None and not isinstance(dim.size, Name):
        is_plain = isinstance(dim.size, Anything | Number)
        return f"size {size} in dim {index}" if is_plain else f"size {size} in dim {index}, '{dim.size}'"
    return size_text(_dim_name(dim, index), size)


class Match(Record):
    """A shape that matches: the sizes after the match, and the names that must be bound to complete it."""

    sizes: Sizes
    unbound: UnboundNames | None = None


class CompiledDim(NamedTuple):
    """A dim of a spec for one mesh context: its manual axes, the others, and the shards over both."""

    dim: Dim | Rest
    axes: tuple[str, ...]
    manual: tuple[str, ...]
    shards: int
    split: tuple[str, ...]
    divisor: int
    must_divide: bool = True


def compile_dims(
    spec: Spec, layout: Layout, mesh: Mapping[str, int], manual: Mapping[str, int], must_divide: bool = True
) -> tuple[CompiledDim, ...]:
    """The dims of a spec, for `match`."""
    compiled: list[CompiledDim] = []
    for dim, axes in zip(spec.dims, layout.dim_axes, strict=True):
        held = tuple(filter(manual.__contains__, axes))
        split = tuple([axis for axis in axes if axis in mesh and axis not in manual])
        shards, divisor = prod(map(manual.__getitem__, held)), prod(map(mesh.__getitem__, split))
        compiled.append(CompiledDim(dim, axes, held, shards, split, divisor, must_divide))
    return tuple(compiled)


class NoValue(Exception):
    """An expression without a value; its argument is the unbound names, or the reason."""


def match(
    shape: tuple[int, ...],
    dims: tuple[CompiledDim, ...],
    sizes: Sizes,
    subject: Subject,
    arguments: Mapping[str, Any],
    leaf: str | None = None,
) -> Match | Mismatch:
    """Match the shape of a value, per shard over manual axes, against the dims of a spec."""
    extra = len(shape) - len(dims)  # the number of dims in "..." minus one
    if extra:
        has_rest = any(isinstance(compiled.dim, Rest) for compiled in dims)
        if extra < -has_rest or (extra > 0 and not has_rest):
            return RankMismatch(len(dims) - has_rest, has_rest, len(shape))
    index, unbound = 0, None
    for dim, axes, manual, shards, split, divisor, must_divide in dims:
        if isinstance(dim, Rest):
            rest = _match_rest(dim, shape[index : index + extra + 1], index, sizes, subject, leaf)
            if not isinstance(rest, Sizes):
                return rest
            sizes, index = rest, index + extra + 1
            continue
        at, size, index = index, shape[index], index + 1
        if dim.broadcast and size == 1:
            continue
        global_size = expected = size * shards
        bound = None
        match dim.size:
            case Name(name):
                if dim.per_leaf:
                    if leaf is None:
                        return OutsideTree(dim, dim.span)
                    name = f"{name} at {leaf}"
                bound = sizes.bound.get(name)
                if bound is None:
                    sizes = sizes.bind(name, Bound(global_size, subject, at, frozenset({axes})))
                elif bound.size != global_size:
                    expected = bound.size
                elif axes not in bound.layouts:
                    sizes = sizes.bind(name, replace(bound, layouts=bound.layouts | {axes}))
            case Anything():
                pass
            case expression:
                try:
                    expected = evaluate(expression, sizes, arguments)
                except NoValue as unknown:
                    mismatch = mismatch_of(unknown, dim, at, dim.size_span)
                    if isinstance(mismatch, BadExpression):
                        return mismatch
                    unbound = unbound or mismatch
        if expected != global_size:
            shown = (size, manual) if shards > 1 else (None, ())
            return SizeMismatch(dim, at, global_size, *shown, expected, bound, dim.size_span)
        if divisor > 1 and (remainder := size % divisor) and (must_divide or hasattr(remainder, "__index__")):
            return Indivisible(dim, at, size, split, divisor, dim.span)
    return Match(sizes, unbound)


def mismatch_of(unknown: NoValue, dim: Dim, index: int, span: Span) -> UnboundNames | BadExpression:
    """The mismatch for an expression without a value."""
    if isinstance(unknown.args[0], str):
        return BadExpression(dim, index, unknown.args[0], span)
    return UnboundNames(dim, index, unknown.args[0], span)


def _match_rest(
    dim: Rest, shape: tuple[int, ...], index: int, sizes: Sizes, subject: Subject, leaf: str | None
) -> Sizes | Mismatch:
    """Compare several dims with the sizes bound to their name, with or without ``#``, or bind it."""
    if dim.name is None:
        return sizes
    if dim.per_leaf and leaf is None:
        return OutsideTree(dim, dim.span)
    suffix = f" at {leaf}" if dim.per_leaf else ""
    key, soft_key = f"*{dim.name}{suffix}", f"*#{dim.name}{suffix}"
    exact, soft = sizes.get(key), sizes.get(soft_key)
    joined = shape if soft is None else _broadcast(shape, soft.size)
    if dim.broadcast:
        known = soft if joined is None else exact
        fits = joined is not None and (exact is None or _broadcast(joined, exact.size) == exact.size)
    else:
        known = exact or soft
        fits = joined == shape if exact is None else exact.size == shape
    if known is not None and not fits:
        return SizeMismatch(dim, index, shape, None, (), known.size, known, dim.span)
    if not dim.broadcast:
        return sizes if exact is not None else sizes.bind(key, Bound(shape, subject, index))
    assert joined is not None
    return sizes if soft is not None and soft.size == joined else sizes.bind(soft_key, Bound(joined, subject, index))


def _broadcast(a: Any, b: Any) -> tuple[int, ...] | None:
    """The shape to which two shapes broadcast, as in NumPy; None if they do not."""
    pairs = list(zip_longest(reversed(a), reversed(b), fillvalue=1))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        return None
    return tuple(y if x == 1 else x for x, y in reversed(pairs))


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_FUNCTIONS: dict[str, Callable[[Iterable[int]], int]] = {"min": min, "max": max}
_LARGEST_POWER = 64
LARGEST_SIZE = 2**63 - 1
"""The largest size of a dim; NumPy and JAX count in 64 bits."""


def evaluate(expression: Expression, sizes: Sizes, arguments: Mapping[str, Any]) -> int:
    """The value of an expression; raises NoValue with the unbound names, or with the reason."""
    match expression:
        case Number(value):
            return value
        case Group(inner) | Braces(inner):
            return evaluate(inner, sizes, arguments)
        case Negative(inner):
            return -evaluate(inner, sizes, arguments)
        case Name(name):
            bound = sizes.get(name)
            if bound is None:
                raise NoValue((name,))
            assert isinstance(bound.size, int)
            return bound.size
        case Argument():
            return _read(expression, sizes, arguments)
        case Call(function, items):
            return _FUNCTIONS[function](evaluate(item, sizes, arguments) for item in items)
        case Binary(left, sign, right):
            a, b = evaluate(left, sizes, arguments), evaluate(right, sizes, arguments)
            if sign in ("//", "%") and b == 0:
                raise NoValue(f"'{expression}' divides by zero, since {right}=0")
            if sign == "**" and not 0 <= b <= _LARGEST_POWER:
                raise NoValue(f"'{expression}' has exponent {b}; 0 to {_LARGEST_POWER} are allowed")
            return _bounded(_OPERATIONS[sign](a, b), expression)
        case Anything():
            raise NoValue((str(expression),))


def _read(argument: Argument, sizes: Sizes, arguments: Mapping[str, Any]) -> int:
    """The integer at ``{argument.path}``, or the size of a dim if no argument has the name."""
    if argument.root not in arguments:
        if not argument.steps:
            return evaluate(Name(argument.root), sizes, arguments)
        known = ", ".join(arguments) or "none"
        raise NoValue(f"'{{{argument}}}' names no argument of this call (arguments: {known})")
    value = arguments[argument.root]
    for step in argument.steps:
        try:
            value = getattr(value, step) if isinstance(step, str) else value[step]
        except Exception as error:
            raise NoValue(f"'{{{argument}}}' cannot be read: {type(error).__name__}: {error}") from None
    try:
        number = int(value.__index__())
    except Exception:
        raise NoValue(f"'{{{argument}}}' is {type(value).__name__}, not an integer") from None
    return _bounded(number, f"{{{argument}}}")


def _bounded(number: int, expression: object) -> int:
    if abs(number) >= 10**MOST_DIGITS:
        raise NoValue(f"'{expression}' has more than {MOST_DIGITS} digits")
    return number


@dataclass(frozen=True)
class Sizes:
    """Names and their global sizes, and names of tree structures, in the order in which they were bound."""

    bound: Mapping[str, Bound] = field(default_factory=dict)
    structures: Mapping[str, tuple[object, Subject]] = field(default_factory=dict)

    def get(self, name: str) -> Bound | None:
        return self.bound.get(name)

    def __iter__(self) -> Iterator[tuple[str, Bound]]:
        return iter(self.bound.items())

    def bind(self, name: str, bound: Bound) -> Sizes:
        return Sizes({**self.bound, name: bound}, self.structures)

    def bind_structure(self, name: str, structure: object, subject: Subject) -> Sizes:
        return Sizes(self.bound, {**self.structures, name: (structure, subject)})


NO_SIZES = Sizes()
