"""What products and quotients make of what the shards hold, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence
from operator import floordiv, mul, truediv
from typing import Any

from ... import _jax
from .functions import nonlinear, of_different_shards
from .reading import ReadEquation
from .sums import across, in_each_trace, line_of, locally, merged, negated, origin_of_rows
from .value import ANY, NOT_KNOWN, UNKNOWN, Share, combined, scaled, sum_of, traces_of, unknown


def multiply(step: ReadEquation, values: list[Share]) -> Share:
    """A product or a quotient, entry by entry."""
    a, b = (step.reading.softened(value, values) for value in values)
    is_quotient = step.name == "div"
    if is_quotient and not step.is_inexact and a.kind != "unknown":
        if not (a.is_common and b.is_common):
            return nonlinear(step, [a, b])
        number = None if b.number is None or 0 in b.number else in_each_trace(floordiv, a.number, b.number)
        return Share("same", sum_of(a.degree, b.degree, -1), number=number)
    if is_quotient:
        _learn_mean(step, b)
    return product(step, a, b, is_quotient)


def _learn_mean(step: ReadEquation, count: Share) -> None:
    """Note whether a mean of JAX is over a sharded dim, where its sum is seen."""
    if step.reading.numbers.has_second or not isinstance(count.degree, tuple):
        return
    maker = step.maker(0)
    if maker is not None and maker.primitive.name == "reduce_sum" and not _jax.jaxpr.is_literal(maker.invars[0]):
        summed = step.frame.values.get(maker.invars[0])
        if summed is not None:
            is_sharded = summed.kind in ("sharded", "local") and summed.dim in maker.params["axes"]
            step.reading.numbers.learn_count(count.degree, is_sharded)


def product(step: ReadEquation, a: Share, b: Share, is_quotient: bool = False) -> Share:
    """A product or a quotient of two values."""
    number, line = None, None
    if not (is_quotient and b.number is not None and 0 in b.number):
        number = in_each_trace(truediv if is_quotient else mul, a.number, b.number)
    if not is_quotient and (a.line is None or b.line is None):
        line = line_of(a, b, lambda p, q: (p[0] * q[0], p[0] * q[1] + p[1] * q[0]))
    for zero, value in ((a, b), (b, a)):
        if zero.is_zero and not (is_quotient and zero is b):
            is_sharded = "sharded" in (a.kind, b.kind)
            dim = (a.dim if a.dim is not None else b.dim) if is_sharded else None
            return Share("sharded" if is_sharded and value.kind != "unknown" else "same", ANY, dim=dim, number=number)
    if "unknown" in (a.kind, b.kind):
        return unknown((a, b)).but(number=number)
    for part, factor in ((a, b), (b, a)):  # of what one shard keeps, that shard's own is a factor like any other
        if part.kind == "sum" and part.is_heard and factor.kind == "own" and factor.is_heard and not factor.own:
            return NOT_KNOWN.heard
    seen = traces_of(a, b)
    if {"some", "one"} & {a.place, b.place}:
        return unknown((a, b), is_heard=True)
    if line is not None:
        return Share("own", 0, line=line, **seen)
    if (known := _of_roots(a, b, is_quotient, seen)) is not None:
        return known
    if a.kind == b.kind == "sum" and not is_quotient:  # (x / S) * S
        if b.part in {own for own, _ in a.own}:
            b = _as_factor(step, b)
        elif a.part in {own for own, _ in b.own}:
            a = _as_factor(step, a)
    first, second = _factors(step, a, b, is_quotient)
    for at, (value, factor) in enumerate(((first, second), (second, first))):
        if factor.is_common and value.gauge == "+" and value.kind in ("same", "sharded") and not (at and is_quotient):
            degree = sum_of(first.degree, second.degree, -1 if is_quotient else 1)
            return _stretched(step, value, 1 - at, is_quotient).but(degree=degree, **seen)
    if is_quotient and second.gauge == "*":
        second = second.but(own=frozenset((own, -times) for own, times in second.own))
    are_rows = a.kind in ("sharded", "local") and b.kind in ("sharded", "local")
    if are_rows and (mixed := of_different_shards(step, (a, b))) is not None:
        return mixed
    return _combined(step, (a, b), (first, second), is_quotient, number)


def _of_roots(a: Share, b: Share, is_quotient: bool, seen: dict[str, Any]) -> Share | None:
    """A product with the inverse of a part, with a root of one, or of an extreme with a number of known sign."""
    if is_quotient and a.is_common and b.root is not None and b.root[0] == "inverse":
        return scaled(b.root[1], a.degree).but(**seen)
    for root, factor in () if is_quotient else ((a, b), (b, a)):
        if root.root is not None and root.root[0] in ("inverse", "sqrt"):
            function, of = root.root
            if factor.is_common and factor.degree not in (UNKNOWN, ANY):
                by = sum_of(0, factor.degree, -1 if function == "inverse" else 2)
                return root.but(root=(function, scaled(of, by)), **seen)
    if not is_quotient and a == b and a.root is not None and a.root[0] == "sqrt":
        return a.root[1].but(**seen)
    for extreme, factor in ((a, b),) if is_quotient else ((a, b), (b, a)):
        is_scaled = extreme.kind == "extreme" and not extreme.own and factor.is_common
        if is_scaled and factor.number is not None and factor.number[0] != 0:
            degree = sum_of(a.degree, b.degree, -1 if is_quotient else 1)
            extreme = extreme if factor.number[0] > 0 else negated(extreme)
            return extreme.but(degree=degree, part=None, **seen)
    return None


def _factors(step: ReadEquation, a: Share, b: Share, is_quotient: bool) -> tuple[Share, Share]:
    """The factors, of which a part is taken as a quantity of the shard's own, unless the other one scales it."""
    is_ratio = is_quotient and b.kind == "sum" and a.beside is None
    takes_a = a.kind == "extreme" or (a.kind == "sum" and b.kind not in ("same", "extreme") and not is_ratio)
    takes_b = b.kind == "extreme" or (b.kind == "sum" and (is_quotient or a.kind not in ("same", "extreme")))
    return _as_factor(step, a) if takes_a else a, _as_factor(step, b) if takes_b else b


def _stretched(step: ReadEquation, value: Share, at: int, is_quotient: bool) -> Share:
    """A value with own quantities as terms, times an operand that every shard has: so are they."""
    losses, by = step.reading.losses, step.reading.number_of(step.frame, step.eqn.invars[at])
    own = frozenset((("times", quantity, by, is_quotient), times) for quantity, times in value.own)
    for key, _ in own:
        losses.setdefault(key, losses[key[1]])
    return value.but(own=own, number=None, line=None, root=None)


def _as_factor(step: ReadEquation, value: Share) -> Share:
    """A part as a factor: an own quantity, as an exponent."""
    if value.kind == "extreme" and value.gauge == "*":
        return value.but(kind="same")
    if not value.is_part:
        return value
    is_sum, own = value.kind == "sum", frozenset({(value.part, 1)})
    step.reading.lose(value.part, "multiplies by a partial sum" if is_sum else f"own {value.end}", step, (value,))
    is_factor = not is_sum or (value.beside is None and value.gauge in ("", "*"))
    return Share(
        "same",
        value.degree,
        gauge="*" if is_factor else "?",
        own=combined(value.own, own) if is_sum else own,
        may_cancel=is_sum and (value.may_cancel or value.part in value.reduced),
        **traces_of(value),
    )


def _combined(
    step: ReadEquation, values: Sequence[Share], factors: Sequence[Share], is_quotient: bool, number: Any
) -> Share:
    """The product of two factors, as they were and as they are taken, by their kinds and their dims."""
    (a, b), (first, second), reading, seen = values, factors, step.reading, traces_of(*values)
    gauges = merged(reading, first, second, "*")
    if a.kind == b.kind == "sum" and gauges["own"] and not is_quotient:
        gauges["is_square"] = True
    sign = -1 if is_quotient else 1
    degree = sum_of(first.degree, second.degree, sign)
    kinds, dims = {first.kind, second.kind}, {value.dim for value in factors if value.dim is not None}
    dim = next(iter(dims), None)
    if "own" in kinds:
        root = ("inverse", b) if is_quotient and b.kind == "sum" and a.number is not None else None
        is_found = all(value.place == "found" or value.kind == "same" for value in values)
        place = "found" if is_found else ""
        return Share("own", degree if is_found else 0, root=root, place=place, **seen, **gauges)
    if "parts" in kinds:
        parts, factor = (first, second) if first.kind == "parts" else (second, first)
        if not factor.is_common or parts.root is None:
            return NOT_KNOWN
        return parts.but(degree=degree, root=("gathered", scaled(parts.root[1], factor.degree)), **seen)
    if "sum" in kinds:
        part, factor = (first, second) if first.kind == "sum" else (second, first)
        if factor.kind in ("sharded", "local"):
            return step.lost("multiplies a partial sum by own rows", a, b)
        beside = None if part.beside is None else sum_of(part.beside, factor.degree, sign)
        return Share("sum", degree, beside, part=part.part, place=part.place, **seen, **gauges)
    if len(dims) > 1:
        return across(step, a, b)
    more: dict[str, Any] = {"is_positive": a.is_positive and b.is_positive, **seen, **gauges}
    if "sharded" in kinds:
        if "local" in kinds:
            return locally(step, a, b, degree=degree, dim=dim)
        same, rows = (first, second) if first.kind == "same" else (second, first)
        if same.kind == "same" and same.root is not None and same.root[0] == "mean":
            reading.numbers.learn_count(same.degree, rows.dim in same.root[1])
            degree = reading.numbers.known(degree)
        name = a.name if a.kind == "sharded" else b.name
        return Share("sharded", degree, dim=dim, order=a.order or b.order, name=name, **more)
    root = next((value.root for value in values if value.root and value.root[0] == "mean"), None)
    if is_quotient and b.kind == "sum" and b.beside is None and a.is_common and not a.is_zero:
        root = ("inverse", scaled(b, sum_of(0, a.degree, -1)))
    if "local" in kinds:
        return Share("local", degree, dim=dim, number=number, root=root, place=origin_of_rows(a, b), **more)
    is_own = "sum" in (a.kind, b.kind) and not all(reading.losses[own].is_common for own, _ in gauges["own"])
    return Share("own" if is_own else "same", degree, dim=dim, number=number, root=root, **more)
