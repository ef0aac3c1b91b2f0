"""What sums and differences make of what the shards hold, entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from operator import add as plus
from typing import Any

from ..._jax.primitives import OPPOSITE_END
from .numbers import TINY
from .reading import ReadEquation, Reading
from .rings import added
from .value import ANY, NO_PARTS, NOT_KNOWN, SAME, UNKNOWN, Share, anyhow, combined, is_negative, traces_of, unknown

OFFSETS = frozenset(["offset", "clipped", "wrapped"])
"""Places relative to the shard's own block: as they are; within bounds; with negative ones from the end."""
BARE = SAME.but()
"""The same on every shard, of degree 0: `SAME`, before it is known as that."""


def add(step: ReadEquation, values: list[Share]) -> Share:
    """A sum or a difference."""
    return added(step, values, _add(step, values))


def _add(step: ReadEquation, values: list[Share]) -> Share:
    reading = step.reading
    a, b = (reading.softened(value, values) for value in values)
    if step.name == "sub":
        b = negated(b)
    number = in_each_trace(plus, a.number, b.number)
    line = line_of(a, b, lambda p, q: (p[0] + q[0], p[1] + q[1]))
    seen = traces_of(a, b)
    for small, value in ((a, b), (b, a)):
        is_guard = small.number is not None and 0 < abs(small.number[0]) < TINY
        if is_guard and value.kind != "unknown" and value.number is None:
            return value
        if small.is_zero and small.kind == "same":
            return value.but(number=number, line=line, is_heard=seen["is_heard"])
    if "unknown" in (a.kind, b.kind):
        return unknown((a, b)).but(number=number)
    if line is not None:
        return Share("own", 0, line=line, **seen)
    for value, term in ((a, b), (b, a)):
        if (known := _of_log_or_index(step, value, term, seen)) is not None:
            return known
    kinds = {a.kind, b.kind}
    if kinds == {"local", "own"} and any(value.line is not None or value.is_heard for value in (a, b)):
        return Share("sharded", 0, dim=a.dim if a.kind == "local" else b.dim, **seen)
    for extreme, term in ((a, b), (b, a)):
        if extreme.kind == "extreme" and term.is_common:
            degree = reading.numbers.agree(extreme.degree, term.degree)
            return _mixed(step, a, b, "same") if degree is None else extreme.but(degree=degree, **seen)
    a, b = (as_gauge(step, value) if value.kind == "extreme" else value for value in (a, b))
    kinds = {a.kind, b.kind}
    if "rows" in (a.dim, b.dim) and kinds in ({"sum", "sharded"}, {"same", "local"}):
        a, b = (value.accumulated if value.dim == "rows" else value for value in (a, b))
    elif kinds == {"sum", "sharded"}:
        a, b = (as_gauge(step, value) if value.kind == "sum" else value for value in (a, b))
    gauges = merged(reading, a, b, "+")
    base = _plain_sum(step, a, b)
    if base.own:
        return base
    found = base.but(**seen, **gauges, number=number, is_positive=a.is_positive and b.is_positive)
    return SAME if found == BARE else found


def _of_log_or_index(step: ReadEquation, value: Share, term: Share, seen: dict[str, Any]) -> Share | None:
    """A term added to the logarithm of a part, or to a place; None where it is neither."""
    if value.root is not None and value.root[0] == "log":  # log(S) + c is log(S exp(c))
        added = as_gauge(step, term) if term.kind == "extreme" else term
        if added.kind == "same" and added.degree in (0, ANY) and added.gauge in ("", "+"):
            of: Share = value.root[1]
            of = of.but(gauge="*" if of.own or added.own else "", own=combined(of.own, added.own))
            return value.but(root=("log", of), own=combined(value.own, added.own), **seen)
    if value.place in OFFSETS and term.kind == "same":
        return value.heard
    is_start = value.line is not None and all(first == 0 for first, _ in value.line)
    if is_start and term.kind in ("same", "sharded") and not term.own and not step.is_inexact:
        assert value.line is not None
        return Share("own", 0, place="offset", root=("block", tuple(-by for _, by in value.line)), **seen)
    return None


def negated(value: Share) -> Share:
    """Minus a value."""
    if value is SAME:
        return value
    part = value.part
    if value.kind == "extreme" and part is not None:
        part = part[1] if is_negative(part) else ("negative", part)
    return value.but(
        own=frozenset((own, -times) for own, times in value.own) if value.gauge == "+" else value.own,
        end=OPPOSITE_END.get(value.end, value.end),
        number=value.number and tuple(-number for number in value.number),
        line=value.line and tuple((-start, -by) for start, by in value.line),
        part=part,
        root=value.root if value.place == "offset" else None,
        place=value.place if value.place in ("offset", "folded", "drawn") else "",
        is_positive=False,
    )


def negate(step: ReadEquation, values: list[Share]) -> Share:
    """The rule of a minus sign; real and imaginary parts are as linear."""
    return negated(values[0]) if step.name == "neg" else values[0].but(number=None, line=None, is_positive=False)


def as_gauge(step: ReadEquation, value: Share) -> Share:
    """A part, taken for a quantity of the shard's own: nothing else is known of it."""
    why = "a partial sum is used as if it were whole" if value.kind == "sum" else f"own {value.end}"
    part, sign = value.part, 1
    if is_negative(part):
        part, sign = part[1], -1
    step.reading.lose(part, why, step, (value.but(part=part),))
    return Share("same", ANY, gauge="+", own=frozenset({(part, sign)}), **traces_of(value))


def merged(reading: Reading, a: Share, b: Share, sign: str) -> dict[str, Any]:
    """What is own in a sum (``+``) or in a product (``*``)."""
    may_cancel = a.may_cancel or b.may_cancel
    if not a.own and not b.own:
        return {"gauge": "", "own": NO_PARTS, "may_cancel": may_cancel}
    is_square = a.is_square or b.is_square
    if sign == "+" and a.gauge == b.gauge == "*" and a.own == b.own:  # the same factor of both terms
        gauge, own = "*", a.own
    elif a.gauge in ("", sign) and b.gauge in ("", sign):
        own = combined(a.own, b.own)
        gauge = sign if own else ""
    else:
        gauge, own = "?", anyhow(a, b)
        parts = [{part for name, _ in value.own for part in reading.losses[name].parts} for value in (a, b)]
        if sign == "+" and is_square and not parts[0].isdisjoint(parts[1]):
            may_cancel = True  # a square of means may correct a variance about them
    return {"gauge": gauge, "own": own, "may_cancel": may_cancel, "is_square": is_square}


def _mixed(step: ReadEquation, a: Share, b: Share, kind: str, **more: Any) -> Share:
    """A sum of terms of different degree."""
    return step.lost("mixes degrees", a, b, kind=kind, **more)


def _plain_sum(step: ReadEquation, a: Share, b: Share) -> Share:
    kinds, agree = {a.kind, b.kind}, step.reading.numbers.agree
    dims = {value.dim for value in (a, b) if value.dim is not None}
    if "own" in kinds:
        return Share("own", 0)
    if "parts" in kinds:
        return NOT_KNOWN
    if len(dims) > 1:
        return across(step, a, b)
    dim, degree = next(iter(dims), None), agree(a.degree, b.degree)
    if kinds == {"same"}:
        return _mixed(step, a, b, "same") if degree is None else Share("same", degree)
    if kinds <= {"same", "local"}:
        return Share("local", UNKNOWN if degree is None else degree, dim=dim, place=origin_of_rows(a, b))
    if kinds <= {"same", "sharded", "local"}:
        order, name = a.order or b.order, a.name if a.kind == "sharded" else b.name
        if degree is None:
            return _mixed(step, a, b, "sharded", dim=dim, order=order)
        if "folded" in (a.place, b.place):
            return step.lost("adds rows of different shards", a, b, kind="sharded", degree=degree, dim=dim)
        if "local" in kinds:
            return locally(step, a, b, degree=degree, dim=dim)
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


def across(step: ReadEquation, *values: Share) -> Share:
    """Own rows along one dim, and along another; with one row per shard that may be meant, as by an index."""
    if any(value.dim == "rows" for value in values):
        return unknown(values, is_heard=True)
    if all(value.kind == "local" for value in values):  # places, compared with places
        return NOT_KNOWN
    numbers = step.reading.numbers
    if not numbers.has_second and any(value.kind == "local" for value in values):
        numbers.is_open = True  # a dim may be as long as a shard's by chance
    return step.lost("combines own rows along different dims", *values, is_soft=True)


def locally(step: ReadEquation, *values: Share, kind: Any = "sharded", **more: Any) -> Share:
    """What counts the places within a shard, taken for those of the whole; integers are left open."""
    numbers = step.reading.numbers
    if not step.is_inexact or not numbers.has_second:
        numbers.is_open = numbers.is_open or step.is_inexact
        return Share(kind, **more, is_heard=any(value.is_heard for value in values))
    why = {"folded": "adds rows of different shards", "drawn": "draws the same numbers"}
    place = origin_of_rows(*values)
    return step.lost(
        why.get(place, "counts places within the shard"), *values, kind=kind, is_soft=place == "folded", **more
    )


def origin_of_rows(*values: Share) -> str:
    """Of what differs along a dim as long as a shard's, how it came to be."""
    places = {value.place for value in values}
    return next((place for place in ("folded", "drawn", "taken") if place in places), "")


def in_each_trace(op: Callable[[Any, Any], Any], a: Any, b: Any) -> tuple[Any, ...] | None:
    """What an operation makes of two numbers in each trace; None where one of them is not known."""
    return None if a is None or b is None else tuple(map(op, a, b))


def line_of(a: Share, b: Share, op: Callable[[Any, Any], tuple[Any, Any]]) -> tuple[tuple[Any, Any], ...] | None:
    """An exact ``a + b * axis_index`` of two such numbers."""
    if a.line is None and b.line is None:
        return None
    lines = [value.line or (value.number and tuple((number, 0) for number in value.number)) for value in (a, b)]
    return in_each_trace(op, *lines)
