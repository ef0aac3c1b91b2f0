"""The rules of sums and differences, entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from operator import add as plus
from typing import Any

from ..._jax.primitives import OPPOSITE_END
from . import loss_kinds
from .numbers import TINY
from .reading import ReadEquation, Reading
from .rings import added
from .value import (
    ANY,
    NO_PARTS,
    NOT_KNOWN,
    SAME,
    UNKNOWN,
    Share,
    Trait,
    add_symbols,
    is_negative,
    reach_of,
    unknown,
    untracked_symbols,
)

OFFSETS = frozenset(["offset", "clipped", "wrapped"])
"""The traits of positions relative to the shard's block."""
BARE = SAME.but()
"""The same on every shard, of degree 0: `SAME`, before it is known as that."""


def add(step: ReadEquation, values: list[Share]) -> Share:
    """A sum or a difference."""
    return added(step, values, _add(step, values))


def _add(step: ReadEquation, values: list[Share]) -> Share:
    reading = step.reading
    a, b = [reading.excused(value, values) for value in values]
    if step.name == "sub":
        b = negated(b)
    number = in_each_trace(plus, a.number, b.number)
    affine = affine_of(a, b, lambda p, q: (p[0] + q[0], p[1] + q[1]))
    seen = reach_of(a, b)
    for small, value in ((a, b), (b, a)):
        is_guard = small.number is not None and 0 < abs(small.number[0]) < TINY
        if is_guard and value.kind != "unknown" and value.number is None:
            return value
        if small.is_zero and small.kind == "same":
            return value.but(number=number, affine=affine, is_reached=seen["is_reached"])
    if "unknown" in (a.kind, b.kind):
        return unknown((a, b)).but(number=number)
    if affine is not None:
        return Share("own", 0, affine=affine, **seen)
    for value, term in ((a, b), (b, a)):
        if (known := _of_log_or_index(step, value, term, seen)) is not None:
            return known
    kinds = {a.kind, b.kind}
    if kinds == {"local", "own"} and any(value.affine is not None or value.is_reached for value in (a, b)):
        return Share("sharded", 0, dim=a.dim if a.kind == "local" else b.dim, **seen)
    for extreme, term in ((a, b), (b, a)):
        if extreme.kind == "extreme" and term.is_common:
            degree = reading.numbers.agree(extreme.degree, term.degree)
            return _mixed(step, a, b, "same") if degree is None else extreme.but(degree=degree, **seen)
    a, b = (as_symbol(step, value) if value.kind == "extreme" else value for value in (a, b))
    kinds = {a.kind, b.kind}
    if "rows" in (a.dim, b.dim) and kinds in ({"sum", "sharded"}, {"same", "local"}):
        a, b = (value.accumulated if value.dim == "rows" else value for value in (a, b))
    elif kinds == {"sum", "sharded"}:
        a, b = (as_symbol(step, value) if value.kind == "sum" else value for value in (a, b))
    symbol_fields = merged_symbols(reading, a, b, "+")
    base = _plain_sum(step, a, b)
    if base.symbols:
        return base
    result = base.but(**seen, **symbol_fields, number=number, is_positive=a.is_positive and b.is_positive)
    return SAME if result == BARE else result


def _of_log_or_index(step: ReadEquation, value: Share, term: Share, seen: dict[str, Any]) -> Share | None:
    """A sum with the logarithm of a part, or with a position relative to the shard; None for other operands."""
    if value.root is not None and value.root[0] == "log":  # log(S) + c is log(S exp(c))
        added = as_symbol(step, term) if term.kind == "extreme" else term
        if added.kind == "same" and added.degree in (0, ANY) and added.role in ("", "+"):
            of: Share = value.root[1]
            of = of.but(role="*" if of.symbols or added.symbols else "", symbols=add_symbols(of.symbols, added.symbols))
            return value.but(root=("log", of), symbols=add_symbols(value.symbols, added.symbols), **seen)
    if value.trait in OFFSETS and term.kind == "same":
        return value.reached
    is_start = value.affine is not None and all(first == 0 for first, _ in value.affine)
    if is_start and term.kind in ("same", "sharded") and not term.symbols and not step.is_inexact:
        assert value.affine is not None
        return Share("own", 0, trait="offset", root=("block", tuple(-by for _, by in value.affine)), **seen)
    return None


def negated(value: Share) -> Share:
    """Minus a value."""
    if value is SAME:
        return value
    part = value.part
    if value.kind == "extreme" and part is not None:
        part = part[1] if is_negative(part) else ("negative", part)
    return value.but(
        symbols=frozenset((symbol, -times) for symbol, times in value.symbols) if value.role == "+" else value.symbols,
        end=OPPOSITE_END.get(value.end, value.end),
        number=value.number and tuple(-number for number in value.number),
        affine=value.affine and tuple((-start, -by) for start, by in value.affine),
        part=part,
        root=value.root if value.trait == "offset" else None,
        trait=value.trait if value.trait in ("offset", "folded", "drawn") else "",
        is_positive=False,
    )


def negate(step: ReadEquation, values: list[Share]) -> Share:
    """The rule of a minus sign, and of real and imaginary parts, which are also linear."""
    return negated(values[0]) if step.name == "neg" else values[0].but(number=None, affine=None, is_positive=False)


def as_symbol(step: ReadEquation, value: Share) -> Share:
    """A part that is used as if it were the global value: just a symbol."""
    why = loss_kinds.ADDED_ROWS if value.kind == "sum" else loss_kinds.own_extreme(value.end)
    part, sign = value.part, 1
    if is_negative(part):
        part, sign = part[1], -1
    step.reading.lose(part, why, step, (value.but(part=part),))
    return Share("same", ANY, role="+", symbols=frozenset({(part, sign)}), **reach_of(value))


def merged_symbols(reading: Reading, a: Share, b: Share, sign: str) -> dict[str, Any]:
    """The fields of the symbols of a sum (``+``) or a product (``*``)."""
    may_cancel = a.may_cancel or b.may_cancel
    if not a.symbols and not b.symbols:
        return {"role": "", "symbols": NO_PARTS, "may_cancel": may_cancel}
    is_square = a.is_square or b.is_square
    if sign == "+" and a.role == b.role == "*" and a.symbols == b.symbols:  # the same factor of both terms
        role, symbols = "*", a.symbols
    elif a.role in ("", sign) and b.role in ("", sign):
        symbols = add_symbols(a.symbols, b.symbols)
        role = sign if symbols else ""
    else:
        role, symbols = "?", untracked_symbols(a, b)
        parts = [{part for name, _ in value.symbols for part in reading.losses[name].parts} for value in (a, b)]
        if sign == "+" and is_square and not parts[0].isdisjoint(parts[1]):
            may_cancel = True  # a square of means may correct a variance about them
    return {"role": role, "symbols": symbols, "may_cancel": may_cancel, "is_square": is_square}


def _mixed(step: ReadEquation, a: Share, b: Share, kind: str, **more: Any) -> Share:
    """A sum of terms of different degree."""
    return step.lost(loss_kinds.MIXED_DEGREES, a, b, kind=kind, **more)


def _plain_sum(step: ReadEquation, a: Share, b: Share) -> Share:
    kinds, agree = {a.kind, b.kind}, step.reading.numbers.agree
    dims = {value.dim for value in (a, b) if value.dim is not None}
    if "own" in kinds:
        return Share("own", 0)
    if "gathered" in kinds:
        return NOT_KNOWN
    if len(dims) > 1:
        return along_two_dims(step, a, b)
    dim, degree = next(iter(dims), None), agree(a.degree, b.degree)
    if kinds == {"same"}:
        return _mixed(step, a, b, "same") if degree is None else Share("same", degree)
    if kinds <= {"same", "local"}:
        return Share("local", UNKNOWN if degree is None else degree, dim=dim, trait=trait_of_rows(a, b))
    if kinds <= {"same", "sharded", "local"}:
        order, name = a.order or b.order, a.name if a.kind == "sharded" else b.name
        if degree is None:
            return _mixed(step, a, b, "sharded", dim=dim, order=order)
        if "folded" in (a.trait, b.trait):
            return step.lost(loss_kinds.SUM_OF_ROWS, a, b, kind="sharded", degree=degree, dim=dim)
        if "local" in kinds:
            return by_local_indices(step, a, b, degree=degree, dim=dim)
        return Share("sharded", degree, dim=dim, order=order, name=name)
    parts = [value.degree for value in (a, b) if value.kind in ("sum", "sharded")]
    terms = [value.degree if value.kind == "same" else value.beside for value in (a, b)]
    terms = [term for term in terms if term is not None]
    summed = parts[0] if len(parts) == 1 else agree(*parts)
    beside = None if not terms else terms[0] if len(terms) == 1 else agree(*terms)
    if summed is None or (terms and beside is None):
        return _mixed(step, a, b, "sum")
    sums = [value for value in (a, b) if value.kind == "sum"]
    return Share("sum", summed, beside, part=sums[0].part if len(sums) == 1 else None)


def along_two_dims(step: ReadEquation, *values: Share) -> Share:
    """A loss: rows of two different dims are combined; with one row per shard this may be intended, as by an index."""
    if any(value.dim == "rows" for value in values):
        return unknown(values, is_reached=True)
    if all(value.kind == "local" for value in values):  # positions, compared with positions
        return NOT_KNOWN
    numbers = step.reading.numbers
    if not numbers.has_second and any(value.kind == "local" for value in values):
        numbers.is_open = True  # a dim may be as long as a shard's by chance
    return step.lost(loss_kinds.TWO_DIMS, *values, is_excusable=True)


def by_local_indices(step: ReadEquation, *values: Share, kind: Any = "sharded", **more: Any) -> Share:
    """A loss: positions within a shard are used as global positions; integers are not reported."""
    numbers = step.reading.numbers
    if not step.is_inexact or not numbers.has_second:
        numbers.is_open = numbers.is_open or step.is_inexact
        return Share(kind, **more, is_reached=any(value.is_reached for value in values))
    why = {"folded": loss_kinds.SUM_OF_ROWS, "drawn": loss_kinds.SAME_DRAWS}
    trait = trait_of_rows(*values)
    return step.lost(
        why.get(trait, loss_kinds.LOCAL_INDICES), *values, kind=kind, is_excusable=trait == "folded", **more
    )


def trait_of_rows(*values: Share) -> Trait:
    """The trait of a result of values of kind ``local``: the trait of the rows of one of them."""
    traits, of_rows = {value.trait for value in values}, list[Trait](["folded", "drawn", "taken"])
    for trait in of_rows:
        if trait in traits:
            return trait
    return ""


def in_each_trace(op: Callable[[Any, Any], Any], a: Any, b: Any) -> tuple[Any, ...] | None:
    """The result of an operation on two numbers, in each trace; None if a number is unknown."""
    return None if a is None or b is None else tuple(map(op, a, b))


def affine_of(a: Share, b: Share, op: Callable[[Any, Any], tuple[Any, Any]]) -> tuple[tuple[Any, Any], ...] | None:
    """The result of an operation on two scalars ``a + b * axis_index``; None if neither has this form."""
    if a.affine is None and b.affine is None:
        return None
    affines = [value.affine or (value.number and tuple((number, 0) for number in value.number)) for value in (a, b)]
    return in_each_trace(op, *affines)
