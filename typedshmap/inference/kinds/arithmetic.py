"""What sums, products and functions make of what the shards hold, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from ... import _jax
from .numbers import TINY
from .reading import ReadEquation, Reading
from .value import (
    ANY,
    NO_PARTS,
    NOT_KNOWN,
    SAME,
    UNKNOWN,
    Degree,
    Share,
    accumulated,
    anyhow,
    combined,
    heard,
    is_negative,
    scaled,
    sum_of,
    unknown,
)

OFFSETS = frozenset(["offset", "clipped", "wrapped"])
"""Places relative to the shard's own block: as they are; within bounds; with negative ones from the end."""
PICKED = "picked"
"""The place of a sum of which only one shard has an entry, and the others zeros."""
_INVERSE = {"log": "exp", "exp": "log", "sqrt": "square"}
_OTHER_END = {"max": "min", "min": "max"}
_HUGE = 1e6


def cast(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """The same numbers of another type."""
    value, name = values[0], step.name
    if len(values) > 1:
        return values[: len(step.eqn.outvars)]
    if name == "convert_element_type":
        before, after = step.eqn.invars[0].aval.dtype, step.eqn.outvars[0].aval.dtype
        if value.number is not None and step.is_inexact and not _jax.array.is_inexact(before):
            degree = step.reading.numbers.degree([float(number) for number in value.number], step.eqn)
            return [value.but(degree=degree, line=None)]
        if value.kind == "sum" and _jax.array.is_inexact(before) and not step.is_inexact:
            return [nonlinear(step, values)]
        if value.kind == "extreme" and str(before) == "bool" and str(after) != "bool":
            return [value.but(place="flag")]
    return [value]


# ----------------------------------------------------------------------------------------------------------------- sums


def add(step: ReadEquation, values: list[Share]) -> Share:
    """A sum or a difference."""
    reading = step.reading
    a, b = (reading.softened(value, values) for value in values)
    if step.name == "sub":
        b = negated(b)
    numbers = None
    if a.number is not None and b.number is not None:
        numbers = tuple(x + y for x, y in zip(a.number, b.number, strict=True))
    line = _line(a, b, lambda p, q: (p[0] + q[0], p[1] + q[1]))
    is_heard = a.is_heard or b.is_heard
    for small, value in ((a, b), (b, a)):
        is_guard = small.number is not None and 0 < abs(small.number[0]) < TINY
        if is_guard and value.kind != "unknown" and value.number is None:
            return value
        if small.is_zero and small.kind == "same":
            return value.but(number=numbers, line=line, is_heard=is_heard)
    if "unknown" in (a.kind, b.kind):
        return unknown((a, b)).but(number=numbers)
    seen: dict[str, Any] = {"reduced": a.reduced | b.reduced, "is_heard": is_heard}
    if line is not None:
        return Share("own", 0, line=line, **seen)
    for log, value in ((a, b), (b, a)):  # log(S) + c is log(S exp(c))
        if log.root is not None and log.root[0] == "log":
            value = as_gauge(step, value) if value.kind == "extreme" else value
            if value.kind == "same" and value.degree in (0, ANY) and value.gauge in ("", "+"):
                of: Share = log.root[1]
                of = of.but(gauge="*" if of.own or value.own else "", own=combined(of.own, value.own))
                return log.but(root=("log", of), own=combined(log.own, value.own), **seen)
    for index, value in ((a, b), (b, a)):
        if index.place in OFFSETS and value.kind == "same":
            return heard(index)
        is_start = index.line is not None and all(first == 0 for first, _ in index.line)
        if is_start and value.kind in ("same", "sharded") and not value.own and not step.is_inexact:
            assert index.line is not None
            return Share("own", 0, place="offset", root=("block", tuple(-by for _, by in index.line)), **seen)
    if {a.kind, b.kind} == {"local", "own"} and any(value.line is not None or value.is_heard for value in (a, b)):
        return Share("sharded", 0, dim=a.dim if a.kind == "local" else b.dim, **seen)
    if {a.kind, b.kind} == {"extreme", "same"}:
        extreme, term = (a, b) if a.kind == "extreme" else (b, a)
        if not term.own:
            degree = reading.numbers.agree(extreme.degree, term.degree)
            return _mixed(step, a, b, "same") if degree is None else extreme.but(degree=degree, **seen)
    a, b = (as_gauge(step, value) if value.kind == "extreme" else value for value in (a, b))
    if "rows" in (a.dim, b.dim) and {a.kind, b.kind} in ({"sum", "sharded"}, {"same", "local"}):
        a, b = (accumulated(value) if value.dim == "rows" else value for value in (a, b))
    elif {a.kind, b.kind} == {"sum", "sharded"}:
        a, b = (as_gauge(step, value) if value.kind == "sum" else value for value in (a, b))
    gauges = merged(reading, a, b, "+")
    base = _plain_sum(step, a, b)
    if base.own:
        return base
    found = base.but(**seen, **gauges, number=numbers, is_positive=a.is_positive and b.is_positive)
    return SAME if found == _BARE else found


_BARE = SAME.but()


def negated(value: Share) -> Share:
    """Minus a value."""
    if value is SAME:
        return value
    part = value.part
    if value.kind == "extreme" and part is not None:
        part = part[1] if is_negative(part) else ("negative", part)
    return value.but(
        own=frozenset((own, -times) for own, times in value.own) if value.gauge == "+" else value.own,
        end=_OTHER_END.get(value.end, value.end),
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
    own = frozenset({(part, sign)})
    return Share("same", ANY, gauge="+", own=own, reduced=value.reduced, is_heard=value.is_heard)


def merged(reading: Reading, a: Share, b: Share, sign: str) -> dict[str, Any]:
    """What is own in a sum (``+``) or in a product (``*``)."""
    if not a.own and not b.own:
        return {"gauge": "", "own": NO_PARTS, "may_cancel": a.may_cancel or b.may_cancel}
    found: dict[str, Any] = {"may_cancel": a.may_cancel or b.may_cancel, "is_square": a.is_square or b.is_square}
    if sign == "+" and a.gauge == b.gauge == "*" and a.own == b.own:  # the same factor of both terms
        return {**found, "gauge": "*", "own": a.own}
    if a.gauge in ("", sign) and b.gauge in ("", sign):
        own = combined(a.own, b.own)
        return {**found, "gauge": sign if own else "", "own": own}
    parts = [{part for own, _ in value.own for part in reading.losses[own].parts} for value in (a, b)]
    if sign == "+" and found["is_square"] and not parts[0].isdisjoint(parts[1]):
        found["may_cancel"] = True  # a square of means may correct a variance about them
    return {**found, "gauge": "?", "own": anyhow(a, b)}


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
        return Share("local", UNKNOWN if degree is None else degree, dim=dim, place=_origin_of_rows(a, b))
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
    beside = None if not terms else terms[0] if len(terms) == 1 else agree(*terms)  # type: ignore[arg-type]
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


def locally(step: ReadEquation, *values: Share, kind: str = "sharded", **more: Any) -> Share:
    """What counts the places within a shard, taken for those of the whole; integers are left open."""
    reading = step.reading
    if not step.is_inexact:
        return Share(kind, **more, is_heard=any(value.is_heard for value in values))  # type: ignore[arg-type]
    if not reading.numbers.has_second:
        reading.numbers.is_open = True
        return Share(kind, **more, is_heard=any(value.is_heard for value in values))  # type: ignore[arg-type]
    places = {value.place for value in values}
    why = (
        "adds rows of different shards"
        if "folded" in places
        else "draws the same numbers"
        if "drawn" in places
        else "counts places within the shard"
    )
    return step.lost(why, *values, kind=kind, is_soft="folded" in places, **more)


def _origin_of_rows(*values: Share) -> str:
    """Of what differs along a dim as long as a shard's, how it came to be."""
    places = {value.place for value in values}
    return next((place for place in ("folded", "drawn", "taken") if place in places), "")


def _line(
    a: Share, b: Share, op: Callable[[tuple[Any, Any], tuple[Any, Any]], tuple[Any, Any]]
) -> tuple[tuple[Any, Any], ...] | None:
    """An exact ``a + b * axis_index`` of two such numbers."""
    if a.line is None and b.line is None:
        return None
    lines = [
        value.line if value.line is not None else value.number and tuple((number, 0) for number in value.number)
        for value in (a, b)
    ]
    if lines[0] is None or lines[1] is None:
        return None
    return tuple(op(p, q) for p, q in zip(lines[0], lines[1], strict=True))


# ------------------------------------------------------------------------------------------------------------- products


def multiply(step: ReadEquation, values: list[Share]) -> Share:
    """A product or a quotient, entry by entry."""
    a, b = (step.reading.softened(value, values) for value in values)
    is_quotient = step.name == "div"
    if is_quotient and not step.is_inexact and a.kind != "unknown":
        if all(value.kind == "same" and not value.own for value in (a, b)):
            numbers = None
            if a.number is not None and b.number is not None and 0 not in b.number:
                numbers = tuple(x // y for x, y in zip(a.number, b.number, strict=True))
            return Share("same", sum_of(a.degree, b.degree, -1), number=numbers)
        return nonlinear(step, [a, b])
    if is_quotient:
        _learn_mean(step, a, b)
    return product(step, a, b, is_quotient)


def _learn_mean(step: ReadEquation, a: Share, b: Share) -> None:
    """Note whether a mean of JAX is over a sharded dim, where its sum is seen."""
    if step.reading.numbers.has_second or not isinstance(b.degree, tuple):
        return
    maker = step.maker(0)
    if maker is not None and maker.primitive.name == "reduce_sum":
        summed = step.frame.values.get(maker.invars[0]) if not _jax.jaxpr.is_literal(maker.invars[0]) else None
        if summed is not None:
            is_sharded = summed.kind in ("sharded", "local") and summed.dim in maker.params["axes"]
            step.reading.numbers.learn_count(b.degree, is_sharded)


def product(step: ReadEquation, a: Share, b: Share, is_quotient: bool = False) -> Share:
    """A product or a quotient of two values."""
    sign, reading = -1 if is_quotient else 1, step.reading
    numbers = None
    if a.number is not None and b.number is not None and not (is_quotient and 0 in b.number):
        pairs = zip(a.number, b.number, strict=True)
        numbers = tuple(x / y if is_quotient else x * y for x, y in pairs)
    line = None
    if not is_quotient and (a.line is None or b.line is None):
        line = _line(a, b, lambda p, q: (p[0] * q[0], p[0] * q[1] + p[1] * q[0]))
    for zero, value in ((a, b), (b, a)):
        if zero.is_zero and not (is_quotient and zero is b):
            kind, dim = (
                ("sharded", a.dim if a.dim is not None else b.dim) if "sharded" in (a.kind, b.kind) else ("same", None)
            )
            return Share("same" if value.kind == "unknown" else kind, ANY, dim=dim, number=numbers)  # type: ignore[arg-type]
    if "unknown" in (a.kind, b.kind):
        return unknown((a, b)).but(number=numbers)
    for part, factor in ((a, b), (b, a)):  # of what one shard keeps, that shard's own is a factor like any other
        if part.kind == "sum" and part.is_heard and factor.kind == "own" and factor.is_heard and not factor.own:
            return heard(NOT_KNOWN)
    seen: dict[str, Any] = {"reduced": a.reduced | b.reduced, "is_heard": a.is_heard or b.is_heard}
    if {"some", "one"} & {a.place, b.place}:
        return unknown((a, b), is_heard=True)
    if line is not None:
        return Share("own", 0, line=line, **seen)
    if (found := _of_roots(a, b, is_quotient, seen)) is not None:
        return found
    if a.kind == b.kind == "sum" and not is_quotient:  # (x / S) * S
        if b.part in {own for own, _ in a.own}:
            b = _as_factor(step, b)
        elif a.part in {own for own, _ in b.own}:
            a = _as_factor(step, a)
    is_square = a.kind == b.kind == "sum"
    takes_a = a.kind == "extreme" or (
        a.kind == "sum"
        and b.kind not in ("same", "extreme")
        and not (is_quotient and b.kind == "sum" and a.beside is None)
    )
    takes_b = b.kind == "extreme" or (b.kind == "sum" and (is_quotient or a.kind not in ("same", "extreme")))
    first, second = _as_factor(step, a) if takes_a else a, _as_factor(step, b) if takes_b else b
    if second.kind == "same" and not second.own and first.gauge == "+" and first.kind in ("same", "sharded"):
        return _stretched(step, first, 1, is_quotient).but(degree=sum_of(first.degree, second.degree, sign), **seen)
    is_stretched = first.kind == "same" and not first.own and second.gauge == "+" and second.kind in ("same", "sharded")
    if is_stretched and not is_quotient:
        return _stretched(step, second, 0, False).but(degree=sum_of(first.degree, second.degree), **seen)
    if is_quotient and second.gauge == "*":
        second = second.but(own=frozenset((own, -times) for own, times in second.own))
    is_product = a.kind in ("sharded", "local") and b.kind in ("sharded", "local")
    if is_product and (mixed := _of_different_shards(step, (a, b))) is not None:
        return mixed
    gauges = merged(reading, first, second, "*")
    if is_square and gauges["own"] and not is_quotient:
        gauges["is_square"] = True
    degree = sum_of(first.degree, second.degree, sign)
    kinds, dims = {first.kind, second.kind}, {value.dim for value in (first, second) if value.dim is not None}
    dim = next(iter(dims), None)
    if "own" in kinds:
        inverse = ("inverse", b) if is_quotient and b.kind == "sum" and a.number is not None else None
        is_found = all(value.place == "found" or value.kind == "same" for value in (a, b))
        return Share(
            "own", degree if is_found else 0, root=inverse, place="found" if is_found else "", **seen, **gauges
        )
    if "parts" in kinds:
        parts, factor = (first, second) if first.kind == "parts" else (second, first)
        if factor.kind != "same" or factor.own or parts.root is None:
            return NOT_KNOWN
        return parts.but(degree=degree, root=("gathered", scaled(parts.root[1], factor.degree)), **seen)
    if "sum" in kinds:
        part, factor = (first, second) if first.kind == "sum" else (second, first)
        if factor.kind in ("sharded", "local"):
            if part.beside is None and factor.dim == "rows":
                return step.lost("multiplies a partial sum by own rows", a, b)
            return step.lost("multiplies a partial sum by own rows", a, b)
        beside = None if part.beside is None else sum_of(part.beside, factor.degree, sign)
        return Share("sum", degree, beside, part=part.part, place=part.place, **seen, **gauges)
    if len(dims) > 1:
        return across(step, a, b)
    positive = a.is_positive and b.is_positive
    if "sharded" in kinds:
        if "local" in kinds:
            return locally(step, a, b, degree=degree, dim=dim)
        same, rows = (first, second) if first.kind == "same" else (second, first)
        if same.kind == "same" and same.root is not None and same.root[0] == "mean":
            reading.numbers.learn_count(same.degree, rows.dim in same.root[1])
            degree = reading.numbers.known(degree)
        order, name = a.order or b.order, a.name if a.kind == "sharded" else b.name
        return Share("sharded", degree, dim=dim, order=order, name=name, is_positive=positive, **seen, **gauges)
    inverse = None
    if is_quotient and b.kind == "sum" and b.beside is None and a.kind == "same" and not a.own and not a.is_zero:
        inverse = ("inverse", scaled(b, sum_of(0, a.degree, -1)))
    is_own = (
        gauges["own"]
        and not all(reading.losses[own].is_common for own, _ in gauges["own"])
        and (a.kind == "sum" or b.kind == "sum")
    )
    kind = "local" if "local" in kinds else "own" if is_own else "same"
    root = inverse or next((value.root for value in (a, b) if value.root and value.root[0] == "mean"), None)
    place = _origin_of_rows(a, b) if kind == "local" else ""
    return Share(kind, degree, dim=dim, number=numbers, root=root, is_positive=positive, place=place, **seen, **gauges)  # type: ignore[arg-type]


def _of_roots(a: Share, b: Share, is_quotient: bool, seen: dict[str, Any]) -> Share | None:
    """A product with the inverse of a part, with a root of one, or of an extreme with a number of known sign."""
    if is_quotient and a.kind == "same" and not a.own and b.root is not None and b.root[0] == "inverse":
        return scaled(b.root[1], a.degree).but(**seen)
    for root, factor in () if is_quotient else ((a, b), (b, a)):
        is_root = root.root is not None and root.root[0] in ("inverse", "sqrt")
        if is_root and factor.kind == "same" and not factor.own and factor.degree not in (UNKNOWN, ANY):
            assert root.root is not None
            times = -1 if root.root[0] == "inverse" else 2
            return root.but(root=(root.root[0], scaled(root.root[1], sum_of(0, factor.degree, times))), **seen)
    if not is_quotient and a == b and a.root is not None and a.root[0] == "sqrt":
        return a.root[1].but(**seen)
    if {a.kind, b.kind} == {"extreme", "same"} and (b.kind == "same" or not is_quotient) and not a.own and not b.own:
        extreme, factor = (a, b) if a.kind == "extreme" else (b, a)
        if factor.number is not None and factor.number[0] != 0:
            sign = 1 if factor.number[0] > 0 else -1
            extreme = extreme if sign > 0 else negated(extreme)
            degree = sum_of(a.degree, b.degree, -1 if is_quotient else 1)
            return extreme.but(degree=degree, part=None, **seen)
    return None


def _stretched(step: ReadEquation, value: Share, at: int, is_quotient: bool) -> Share:
    """A value with own quantities as terms, times what every shard has: so are they."""
    reading, by = step.reading, step.reading.number_of(step.frame, step.eqn.invars[at])
    own = frozenset[Any]()
    for quantity, times in value.own:
        loss = reading.losses[quantity]
        key = ("times", quantity, by, is_quotient)
        reading.losses.setdefault(key, loss)
        own |= {(key, times)}
    return value.but(own=own, number=None, line=None, root=None)


def _as_factor(step: ReadEquation, value: Share) -> Share:
    """A part as a factor: an own quantity, as an exponent."""
    reading = step.reading
    if value.kind == "extreme":
        if value.gauge == "*":
            return value.but(kind="same")
        reading.lose(value.part, f"own {value.end}", step, (value,))
        own = frozenset({(value.part, 1)})
        return Share("same", value.degree, gauge="*", own=own, reduced=value.reduced, is_heard=value.is_heard)
    if value.kind != "sum":
        return value
    reading.lose(value.part, "multiplies by a partial sum", step, (value,))
    own = combined(value.own, frozenset({(value.part, 1)}))
    return Share(
        "same",
        value.degree,
        gauge="*" if value.beside is None and value.gauge in ("", "*") else "?",
        own=own,
        reduced=value.reduced,
        is_heard=value.is_heard,
        may_cancel=value.may_cancel or value.part in value.reduced,
    )


# ------------------------------------------------------------------------------------------------------------ functions


def nonlinear(step: ReadEquation, values: Sequence[Share], degree: Degree | None = None) -> Share:
    """A function that is linear in none of its operands.

    Args:
      step: the equation.
      values: its operands.
      degree: that of the result, if it may be another than 0; None for a function that needs operands of degree 0.
    """
    name, reading, value = step.name, step.reading, values[0]
    is_strict, degree = degree is None, 0 if degree is None else degree
    if any(each.kind in ("unknown", "parts") for each in values):
        return unknown(values)
    if len(values) == 1 and value.root is not None:
        function, of = value.root
        is_square = name == "square" or (name == "integer_pow" and step.params.get("y") == 2)
        if _INVERSE.get(function) == name or (function == "sqrt" and is_square):
            return of.but(reduced=of.reduced | value.reduced, is_heard=value.is_heard)
        if function == "inverse" and name == "integer_pow" and step.params.get("y") == -1:
            return of
    is_monotone = value.kind == "extreme" and _jax.primitives.primitive(name).is_monotone
    if is_monotone and all(each.kind == "same" and not each.own for each in values[1:]):
        if name == "exp" and not value.own:
            reading.lose(value.part, f"own {value.end}", step, (value,))
            return value.but(gauge="*", own=frozenset({(value.part, 1)}), degree=0)
        return value.but(part=None, degree=degree, gauge="", own=NO_PARTS)
    if (mixed := _of_different_shards(step, values)) is not None:
        return mixed
    seen: dict[str, Any] = {
        "reduced": NO_PARTS.union(*[each.reduced for each in values]),
        "is_heard": any(each.is_heard for each in values),
    }
    if len(values) == 1 and value.kind in ("same", "sharded", "local") and value.own and value.degree in (0, ANY):
        if name == "exp" and value.gauge == "+":
            times = dict(value.own).get(("log", reading.axis), 0)
            left = frozenset(each for each in value.own if each[0] != ("log", reading.axis))
            return value.but(gauge="*" if left else "", own=left, degree=times, number=None, root=None)
        if name == "log" and value.gauge == "*":
            return value.but(gauge="+", number=None)
    if any(each.kind in ("sum", "extreme") for each in values):
        return _of_parts(step, values, seen)
    own, dims = anyhow(*values), {each.dim for each in values if each.kind in ("sharded", "local")}
    gauges: dict[str, Any] = {
        "gauge": "?" if own else "",
        "own": own,
        "may_cancel": any(each.may_cancel for each in values),
        "is_square": any(each.is_square for each in values),
    }
    if any(each.kind == "own" for each in values):
        is_found = all(each.place == "found" or each.kind == "same" for each in values)
        return Share("own", degree, place="found" if is_found else "", **seen, **gauges)
    if len(dims) > 1:
        return across(step, *values)
    dim, sharded = next(iter(dims), None), next((each for each in values if each.kind == "sharded"), None)
    kind = "sharded" if sharded is not None else "local" if dims else "same"
    if sharded is not None and any(each.kind == "local" for each in values):
        return locally(step, *values, degree=degree, dim=dim)
    degrees = {reading.numbers.known(each.degree) for each in values} - {ANY, 0}
    if degrees and is_strict and _jax.primitives.primitive(name).kind != "test" and not own:
        wrong = next(iter(degrees))
        if wrong == UNKNOWN:
            degree = UNKNOWN
        elif reading.numbers.is_degree(wrong, 0) is False:
            if name == "log" and len(values) == 1:  # log(n**k * x) is k * log(n) + log(x)
                own = reading.lose(("log", reading.axis), "is not linear in what grows", step, values, is_common=True)
                return value.but(degree=0, gauge="+", own=frozenset({(own, wrong)}), number=None, root=None, **seen)
            return step.lost("is not linear in what grows", *values, kind=kind, dim=dim)
    name_of = sharded.name if sharded is not None else ("", "")
    order = next((each.order for each in values if each.order), 0)
    place = _origin_of_rows(*values) if kind == "local" else ""
    found = Share(kind, degree, dim=dim, order=order, name=name_of, place=place, **seen, **gauges)  # type: ignore[arg-type]
    return SAME if found == _BARE else found


def _of_different_shards(step: ReadEquation, values: Sequence[Share]) -> Share | None:
    """What takes sums of rows of different shards for rows: that is lost, and all that comes of it."""
    if not any(value.place == "folded" for value in values) or any(value.kind in ("own", "sum") for value in values):
        return None
    dim = next(value.dim for value in values if value.place == "folded")
    return step.lost("adds rows of different shards", *values, kind="local", dim=dim, place="folded")


def _of_parts(step: ReadEquation, values: Sequence[Share], seen: dict[str, Any]) -> Share:
    """A function of parts: what comes of it is each shard's own."""
    name, reading, value = step.name, step.reading, values[0]
    parts = [each for each in values if each.kind in ("sum", "extreme")]
    may_cancel = any(
        each.part in seen["reduced"] or each.may_cancel for each in values if each in parts or each.may_cancel
    )
    is_square = name in ("integer_pow", "square") and value.kind == "sum"
    for each in parts:
        reading.lose(each.part, "is not linear", step, (each,))
    own = reading.lose(("of", step.part), "is not linear", step, values)
    if len(values) == 1 and value.beside is None and value.gauge in ("", "*") and name in ("log", "sqrt", "exp"):
        before = value.own if name == "log" else NO_PARTS
        quantities = combined(frozenset({(own, 1)}), before)
        return Share("own", ANY, gauge="+", own=quantities, root=(name, value), **seen)
    has_own = any(each.own for each in values)
    quantities = frozenset({(own, 1)}) | anyhow(*values)
    gauge = "?" if has_own or is_square else "+"
    degree: Degree = 0 if has_own else ANY
    return Share("own", degree, gauge=gauge, own=quantities, may_cancel=may_cancel, is_square=is_square, **seen)


def function(step: ReadEquation, values: list[Share]) -> Share:
    """A function, entry by entry."""
    values = [step.reading.softened(value, values) for value in values]
    value, found = values[0], _jax.primitives.primitive(step.name)
    if step.name == "abs" and value.is_positive:
        return value
    if value.place == PICKED and value.kind == "sum" and value.beside is None and len(values) == 1:
        if found.keeps_zero and value.degree == 0:
            return value.but(part=None)
        if (power := _power(step, values)) is not None and power > 0:
            return value.but(part=None, degree=sum_of(0, value.degree, power) if value.degree != 0 else 0)
    if step.name == "is_finite" and value.kind in ("extreme", "sum", "own"):
        return Share("same", 0, place="finite")
    if found.kind == "test":
        return _test(step, values)
    if found.kind == "extreme":
        is_same = len(values) == 2 and step.eqn.invars[0] is step.eqn.invars[1]
        return value if is_same else _extreme(step, values)
    power = _power(step, values)
    if power is not None and value.degree not in (UNKNOWN, ANY):
        values = values[:1]
        if value.own and value.gauge == "*" and value.kind in ("same", "sharded") and step.name not in ("sign", "abs"):
            own = frozenset((each, times * power) for each, times in value.own)
            return value.but(degree=sum_of(0, value.degree, power), own=own, number=None, root=None)
        is_free = value.kind == "extreme" and step.name == "abs"
        degree = sum_of(0, value.degree, power) if value.degree != 0 else 0
        result = nonlinear(step, values, None if is_free else degree)
        is_even = step.name in ("abs", "square", "sqrt") or (step.name == "integer_pow" and step.params["y"] % 2 == 0)
        return result.but(is_positive=True) if is_even and result is not SAME else result
    result = nonlinear(step, values)
    return result.but(is_positive=True) if step.name in ("exp", "exp2", "logistic") and result is not SAME else result


def _power(step: ReadEquation, values: Sequence[Share]) -> Fraction | None:
    """Of which degree a function is in what it takes; None where it has none."""
    if step.name == "integer_pow":
        return Fraction(step.params["y"])
    if step.name == "pow" and (number := values[1].number) is not None and len(set(number)) == 1:
        return Fraction(number[0]).limit_denominator(60)
    return _jax.primitives.primitive(step.name).degree


def _extreme(step: ReadEquation, values: list[Share]) -> Share:
    """A maximum or a minimum of several values, entry by entry; or, and, a remainder."""
    name, numbers = step.name, step.reading.numbers
    if name in ("max", "min"):
        for bound, value in ((values[0], values[1]), (values[1], values[0])):
            at = bound.number[0] if bound.number is not None else None
            if at is not None and (0 < abs(at) < TINY or abs(at) > _HUGE):
                return value.but(number=None, line=None) if value.line is None else Share("own", 0, is_heard=True)
    kinds = {value.kind for value in values}
    if name in ("max", "min", "or", "and") and "extreme" in kinds and kinds <= {"extreme", "same"}:
        end = {"or": "max", "and": "min"}.get(name, name)
        extremes = [value for value in values if value.kind == "extreme"]
        if all(value.end == end for value in extremes) or (name in ("max", "min") and len(extremes) == 1):
            return extremes[0].but(part=None, gauge="", own=NO_PARTS)
    places = {value.place for value in values}
    if name == "and" and (places == {"from", "to"} or "block" in places) and not any(value.own for value in values):
        return Share("own", 0, is_heard=True, place="block")
    if name in ("max", "min", "clamp") and places & OFFSETS:
        root = next(value.root for value in values if value.place in OFFSETS)
        return Share("own", 0, is_heard=True, place="clipped", root=root)
    degrees = {numbers.known(value.degree) for value in values} - {ANY}
    if UNKNOWN in degrees:
        return nonlinear(step, values, UNKNOWN)
    if len(degrees) <= 1:
        return nonlinear(step, values, next(iter(degrees), 0))
    if name in ("max", "min", "clamp") and not kinds & {"sum", "extreme", "unknown"} and step.is_inexact:
        first, *others = degrees
        if any(numbers.agree(first, other) is None for other in others):
            sharded = next((value for value in values if value.kind == "sharded"), None)
            kind = "same" if sharded is None else "sharded"
            return step.lost("bounds what grows", *values, kind=kind, dim=sharded and sharded.dim)
        return nonlinear(step, values, first)
    if kinds & {"sum", "extreme"}:
        return nonlinear(step, [value.but(degree=0) for value in values])
    return NOT_KNOWN


def _test(step: ReadEquation, values: list[Share]) -> Share:
    """A comparison."""
    if len(values) == 1:
        return nonlinear(step, values)
    a, b = values
    name = step.name
    if a.line is not None and b.number is not None:
        is_low = name == "lt" and all(start >= 0 and by >= 0 for start, by in a.line) and not any(b.number)
        if is_low:
            return Share("same", 0, number=(False,) * len(b.number))
        if name in ("eq", "ne"):
            return Share("own", 0, is_heard=True, place="one" if name == "eq" else "others")
    if name == "eq" and "same" in (a.kind, b.kind) and (a.line or b.line):
        return Share("own", 0, is_heard=True, place="some")
    if a.place in OFFSETS and b.number is not None:
        is_end = name == "lt" and a.root is not None and tuple(b.number) == a.root[1]
        place = "from" if name == "ge" and not any(b.number) else "to" if is_end else "below"
        return Share("own", 0, is_heard=True, place=place)
    for index, rows in ((a, b), (b, a)):
        if index.place == "offset" and rows.kind == "local" and name == "eq":
            return Share("sharded", 0, dim=rows.dim, is_heard=True)
    if a.kind == b.kind == "extreme":  # such as of own places, to skip what has nothing to do
        return unknown(values, is_heard=True)
    for extreme, bound in ((a, b), (b, a)):
        is_bound = bound.kind == "same" and not bound.own
        if extreme.kind == "extreme" and name in ("gt", "ge", "lt", "le") and is_bound:
            is_kept = (name[0] == "g") == (extreme is a)
            end = extreme.end if is_kept else _OTHER_END[extreme.end]
            return extreme.but(degree=0, part=None, end=end, gauge="", own=NO_PARTS)
    if name in ("eq", "ne") and {a.kind, b.kind} == {"local", "sharded"}:
        return nonlinear(step, [value.but(kind="sharded") for value in values])
    degrees = [step.reading.numbers.known(value.degree) for value in values if value.degree != ANY]
    is_own = any(value.own or value.kind in ("sum", "extreme", "unknown", "own") for value in values)
    differ = len(degrees) == 2 and degrees[0] != degrees[1] and not is_own and step.is_inexact_operand
    if differ and step.reading.numbers.agree(*degrees) is None:
        sharded = next((value for value in values if value.kind == "sharded"), None)
        kind = "same" if sharded is None else "sharded"
        return step.lost("compares what grows", *values, kind=kind, dim=sharded and sharded.dim)
    return nonlinear(step, values)


# -------------------------------------------------------------------------------------------------------------- choices


def select(step: ReadEquation, values: list[Share]) -> Share:
    """One of several values, entry by entry, by a predicate."""
    by, *cases = (step.reading.softened(value, values) for value in values)
    if by.number is not None and int(by.number[0]) < len(cases):
        return cases[int(by.number[0])]
    if by.place == "finite" and cases[-1].kind in ("extreme", "sum", "own"):  # where(isfinite(m), m, 0)
        return cases[-1]
    if any(value.kind == "unknown" for value in (by, *cases)):
        return unknown((by, *cases))
    zero = [case.is_zero for case in cases]
    if by.place in ("one", "others") and len(cases) == 2:
        at = 1 if by.place == "one" else 0
        if zero[1 - at] and cases[at].kind == "same":
            return Share("sum", cases[at].degree, is_heard=True)
    if by.place == "block" and len(cases) == 2:
        if all(case.place in OFFSETS or case.kind == "same" for case in cases) and cases[1].place in OFFSETS:
            return cases[1].but(place="clipped")
        if cases[0].kind == "same" and not cases[0].own and (cases[1].place == "found" or cases[1].kind == "same"):
            beside = None if zero[0] else cases[0].degree
            return Share("sum", cases[1].degree, beside, is_heard=True, place=PICKED, **cases[1].gauges)
    if by.kind in ("sum", "extreme") or by.own:
        return step.decided("chooses by", by, *cases)
    if by.kind == "own":
        own = anyhow(*cases)
        if by.place == "below" and all(case.place in OFFSETS for case in cases):  # how JAX reads negative places
            return cases[0].but(place="clipped" if cases[0].place == "clipped" else "wrapped")
        return _own_choice(step, by, cases, own)
    if zero[1:] == [True]:
        found = cases[0]
    elif zero[0] and len(cases) == 2:
        found = cases[1]
    else:
        found = _either(step, cases)
    if by.kind in ("sharded", "local"):
        if found.kind in ("same", "local") and by.kind == "sharded":
            found = found.but(kind="sharded", dim=by.dim, name=by.name)
        elif by.kind == "sharded" and found.kind in ("sum", "extreme"):
            return step.lost("masks by own rows", found)
        elif by.kind == "sharded" and found.kind == "sharded" and by.dim != found.dim:
            return across(step, by, *cases)
        elif by.kind == "local" and found.kind == "sharded" and by.dim == found.dim:
            return locally(step, by, found, degree=found.degree, dim=found.dim)
        elif by.kind == "local" and found.kind == "same":
            found = found.but(kind="local", dim=by.dim)
    return found.but(number=None, line=None, is_heard=found.is_heard or by.is_heard) if found is not SAME else SAME


def _own_choice(step: ReadEquation, by: Share, cases: Sequence[Share], own: frozenset[Any]) -> Share:
    """What each shard chooses by its own index: of a partial sum it is lost."""
    parts = [case for case in cases if case.kind == "sum"]
    if parts and not all(case.kind == "sum" for case in cases):
        return step.lost("masks by the shard's index", *cases)
    return Share(
        "own", 0, is_heard=True, gauge="?" if own else "", own=own, may_cancel=any(c.may_cancel for c in cases)
    )


def _either(step: ReadEquation, cases: Sequence[Share]) -> Share:
    """Entries of both cases."""
    a, b = cases[0], cases[-1]
    for bound, value in ((a, b), (b, a)):
        at = bound.number[0] if bound.number is not None else None
        is_guard = at is not None and (abs(at) > _HUGE or at != at or abs(at) < TINY)
        if is_guard and value.kind in ("same", "sharded", "extreme", "own"):
            return value
    if a.is_plain and b.is_plain and a.kind == b.kind == "same" and not (a.is_heard or b.is_heard):
        return SAME
    return add(step, [a.but(number=None), b.but(number=None)])
