"""What functions, comparisons and choices make of what the shards hold, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from ..._jax.primitives import OPPOSITE_END, primitive
from .numbers import TINY
from .reading import ReadEquation
from .sums import BARE, OFFSETS, across, add, locally, origin_of_rows
from .value import ANY, NO_PARTS, NOT_KNOWN, SAME, UNKNOWN, Degree, Share, blended, combined, sum_of, traces_of, unknown

PICKED = "picked"
"""The place of a sum of which only one shard has an entry, and the others zeros."""
_HUGE = 1e6


def cast(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """The same numbers of another type."""
    value = values[0]
    if len(values) > 1:
        return values[: len(step.eqn.outvars)]
    if step.name == "convert_element_type":
        before, after = step.eqn.invars[0].aval.dtype, step.eqn.outvars[0].aval.dtype
        if value.number is not None and step.is_inexact and not step.is_inexact_operand:
            degree = step.reading.numbers.degree([float(number) for number in value.number], step.eqn)
            return [value.but(degree=degree, line=None)]
        if value.kind == "sum" and step.is_inexact_operand and not step.is_inexact:
            return [nonlinear(step, values)]
        if value.kind == "extreme" and str(before) == "bool" and str(after) != "bool":
            return [value.but(place="flag")]
    return [value]


def function(step: ReadEquation, values: list[Share]) -> Share:
    """A function, entry by entry."""
    values = [step.reading.softened(value, values) for value in values]
    value, known, power = values[0], step.primitive, _power(step, values)
    if step.name == "abs" and value.is_positive:
        return value
    if value.place == PICKED and value.kind == "sum" and value.beside is None and len(values) == 1:
        if known.keeps_zero and value.degree == 0:
            return value.but(part=None)
        if power is not None and power > 0:
            return value.but(part=None, degree=_raised(value, power))
    if step.name == "is_finite" and value.kind in ("extreme", "sum", "own"):
        return Share("same", 0, place="finite")
    if known.kind == "test":
        return _test(step, values)
    if known.kind == "extreme":
        is_same = len(values) == 2 and step.eqn.invars[0] is step.eqn.invars[1]
        return value if is_same else _extreme(step, values)
    if power is None or value.degree in (UNKNOWN, ANY):
        result, is_positive = nonlinear(step, values), known.is_positive
    elif value.own and value.gauge == "*" and value.kind in ("same", "sharded") and power not in (0, 1):
        own = frozenset((name, times * power) for name, times in value.own)
        return value.but(degree=sum_of(0, value.degree, power), own=own, number=None, root=None)
    else:
        is_free = value.kind == "extreme" and step.name == "abs"
        result = nonlinear(step, values[:1], None if is_free else _raised(value, power))
        is_positive = known.is_positive or (step.name == "integer_pow" and step.params["y"] % 2 == 0)
    return result.but(is_positive=True) if is_positive and result is not SAME else result


def _power(step: ReadEquation, values: Sequence[Share]) -> Fraction | None:
    """Of which degree a function is in what it takes; None where it has none."""
    if step.name == "integer_pow":
        return Fraction(step.params["y"])
    if step.name == "pow" and (number := values[1].number) is not None and len(set(number)) == 1:
        return Fraction(number[0]).limit_denominator(60)
    return step.primitive.degree


def _raised(value: Share, power: Fraction) -> Degree:
    return sum_of(0, value.degree, power) if value.degree != 0 else 0


def nonlinear(step: ReadEquation, values: Sequence[Share], degree: Degree | None = None) -> Share:
    """A function that is linear in none of its operands.

    Args:
      step: the equation.
      values: its operands.
      degree: that of the result, if it may be another than 0; None for a function that needs operands of degree 0.
    """
    value, is_strict, degree = values[0], degree is None, 0 if degree is None else degree
    if any(each.kind in ("unknown", "parts") for each in values):
        return unknown(values)
    if len(values) == 1 and (known := _inverted(step, value)) is not None:
        return known
    is_monotone = value.kind == "extreme" and step.primitive.is_monotone
    if is_monotone and all(each.is_common for each in values[1:]):
        if step.name == "exp" and not value.own:
            step.reading.lose(value.part, f"own {value.end}", step, (value,))
            return value.but(gauge="*", own=frozenset({(value.part, 1)}), degree=0)
        return value.but(part=None, degree=degree, gauge="", own=NO_PARTS)
    if (mixed := of_different_shards(step, values)) is not None:
        return mixed
    if len(values) == 1 and (known := _of_gauges(step, value)) is not None:
        return known
    if any(each.is_part for each in values):
        return _of_parts(step, values)
    dims = {each.dim for each in values if each.kind in ("sharded", "local")}
    more = blended(*values) | traces_of(*values)
    more["is_square"] = any(each.is_square for each in values)
    if any(each.kind == "own" for each in values):
        is_found = all(each.place == "found" or each.kind == "same" for each in values)
        return Share("own", degree, place="found" if is_found else "", **more)
    if len(dims) > 1:
        return across(step, *values)
    dim, sharded = next(iter(dims), None), next((each for each in values if each.kind == "sharded"), None)
    kind = "sharded" if sharded is not None else "local" if dims else "same"
    if sharded is not None and any(each.kind == "local" for each in values):
        return locally(step, *values, degree=degree, dim=dim)
    if is_strict and step.primitive.kind != "test" and not more["own"]:
        known = step.reading.numbers.known
        wrong = next(iter({known(each.degree) for each in values} - {ANY, 0}), None)
        if wrong == UNKNOWN:
            degree = UNKNOWN
        elif wrong is not None and step.reading.numbers.is_degree(wrong, 0) is False:
            return _of_growing(step, values, wrong, kind, dim)
    name = sharded.name if sharded is not None else ("", "")
    order = next((each.order for each in values if each.order), 0)
    place = origin_of_rows(*values) if kind == "local" else ""
    result = Share(kind, degree, dim=dim, order=order, name=name, place=place, **more)
    return SAME if result == BARE else result


def _inverted(step: ReadEquation, value: Share) -> Share | None:
    """What a function of a part is a function of, if this one is its inverse."""
    if value.root is None:
        return None
    function, of = value.root
    power = step.params.get("y") if step.name == "integer_pow" else None
    if primitive(function).inverse == step.name or (function == "sqrt" and power == 2):
        return of.but(reduced=of.reduced | value.reduced, is_heard=value.is_heard)
    return of if function == "inverse" and power == -1 else None


def _of_gauges(step: ReadEquation, value: Share) -> Share | None:
    """The exponential of own terms, or the logarithm of own factors."""
    if not value.own or value.kind not in ("same", "sharded", "local") or value.degree not in (0, ANY):
        return None
    if step.name == "exp" and value.gauge == "+":
        log = ("log", step.reading.axis)
        left = frozenset(pair for pair in value.own if pair[0] != log)
        degree = dict(value.own).get(log, 0)
        return value.but(gauge="*" if left else "", own=left, degree=degree, number=None, root=None)
    return value.but(gauge="+", number=None) if step.name == "log" and value.gauge == "*" else None


def _of_growing(step: ReadEquation, values: Sequence[Share], degree: Degree, kind: Any, dim: Any) -> Share:
    """A function that needs operands of degree 0, of others; the logarithm of one is a sum: log(n**k x)."""
    if step.name == "log" and len(values) == 1:
        why = "is not linear in what grows"
        own = step.reading.lose(("log", step.reading.axis), why, step, values, is_common=True)
        return values[0].but(degree=0, gauge="+", own=frozenset({(own, degree)}), number=None, root=None)
    return step.lost("is not linear in what grows", *values, kind=kind, dim=dim)


def of_different_shards(step: ReadEquation, values: Sequence[Share]) -> Share | None:
    """What takes sums of rows of different shards for rows: that is lost, and all that comes of it."""
    if not any(value.place == "folded" for value in values) or any(value.kind in ("own", "sum") for value in values):
        return None
    dim = next(value.dim for value in values if value.place == "folded")
    return step.lost("adds rows of different shards", *values, kind="local", dim=dim, place="folded")


def _of_parts(step: ReadEquation, values: Sequence[Share]) -> Share:
    """A function of parts: what comes of it is each shard's own."""
    reading, value, seen = step.reading, values[0], traces_of(*values)
    may_cancel = any(each.may_cancel or (each.is_part and each.part in seen["reduced"]) for each in values)
    is_square = step.primitive.degree == 2 or step.name == "integer_pow"
    is_square = is_square and value.kind == "sum"
    for each in values:
        if each.is_part:
            reading.lose(each.part, "is not linear", step, (each,))
    own = frozenset({(reading.lose(("of", step.part), "is not linear", step, values), 1)})
    if len(values) == 1 and value.beside is None and value.gauge in ("", "*") and step.primitive.inverse:
        own = combined(own, value.own if step.name == "log" else NO_PARTS)
        return Share("own", ANY, gauge="+", own=own, root=(step.name, value), **seen)
    before: frozenset[Any] = blended(*values)["own"]
    more: dict[str, Any] = {"own": own | before, "may_cancel": may_cancel, "is_square": is_square, **seen}
    return Share("own", 0 if before else ANY, gauge="?" if before or is_square else "+", **more)


# -------------------------------------------------------------------------------------------- extremes and comparisons


def _extreme(step: ReadEquation, values: list[Share]) -> Share:
    """A maximum or a minimum of several values, entry by entry; or, and, a remainder."""
    name, numbers = step.name, step.reading.numbers
    end, is_bound = step.primitive.end, step.primitive.end != "" and step.primitive.is_monotone
    if is_bound:
        for bound, value in ((values[0], values[1]), (values[1], values[0])):
            at = bound.number[0] if bound.number is not None else None
            if at is not None and (0 < abs(at) < TINY or abs(at) > _HUGE):
                return value.but(number=None, line=None) if value.line is None else Share("own", 0, is_heard=True)
    kinds, places = {value.kind for value in values}, {value.place for value in values}
    if end and "extreme" in kinds and kinds <= {"extreme", "same"}:
        extremes = [value for value in values if value.kind == "extreme"]
        if all(value.end == end for value in extremes) or (is_bound and len(extremes) == 1):
            return extremes[0].but(part=None, gauge="", own=NO_PARTS)
    if name == "and" and (places == {"from", "to"} or "block" in places) and not any(value.own for value in values):
        return Share("own", 0, is_heard=True, place="block")
    is_bound = is_bound or name == "clamp"
    if is_bound and places & OFFSETS:
        root = next(value.root for value in values if value.place in OFFSETS)
        return Share("own", 0, is_heard=True, place="clipped", root=root)
    degrees = {numbers.known(value.degree) for value in values} - {ANY}
    if UNKNOWN in degrees:
        return nonlinear(step, values, UNKNOWN)
    if len(degrees) <= 1:
        return nonlinear(step, values, next(iter(degrees), 0))
    if is_bound and not kinds & {"sum", "extreme", "unknown"} and step.is_inexact:
        first, *others = degrees
        if any(numbers.agree(first, other) is None for other in others):
            return _of_different_degrees(step, "bounds what grows", values)
        return nonlinear(step, values, first)
    return nonlinear(step, [value.but(degree=0) for value in values]) if kinds & {"sum", "extreme"} else NOT_KNOWN


def _of_different_degrees(step: ReadEquation, why: str, values: Sequence[Share]) -> Share:
    sharded = next((value for value in values if value.kind == "sharded"), None)
    return step.lost(why, *values, kind="same" if sharded is None else "sharded", dim=sharded and sharded.dim)


def _test(step: ReadEquation, values: list[Share]) -> Share:
    """A comparison."""
    if len(values) == 1:
        return nonlinear(step, values)
    (a, b), name = values, step.name
    is_equality = step.primitive.is_commutative
    if a.line is not None and b.number is not None:
        if name == "lt" and all(start >= 0 and by >= 0 for start, by in a.line) and not any(b.number):
            return Share("same", 0, number=(False,) * len(b.number))
        if is_equality:
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
        if extreme.kind == "extreme" and not is_equality and bound.is_common:
            is_kept = (name[0] == "g") == (extreme is a)
            end = extreme.end if is_kept else OPPOSITE_END[extreme.end]
            return extreme.but(degree=0, part=None, end=end, gauge="", own=NO_PARTS)
    if is_equality and {a.kind, b.kind} == {"local", "sharded"}:
        return nonlinear(step, [value.but(kind="sharded") for value in values])
    degrees = [step.reading.numbers.known(value.degree) for value in values if value.degree != ANY]
    is_own = any(value.own or value.kind in ("sum", "extreme", "unknown", "own") for value in values)
    differ = len(degrees) == 2 and degrees[0] != degrees[1] and not is_own and step.is_inexact_operand
    if differ and step.reading.numbers.agree(*degrees) is None:
        return _of_different_degrees(step, "compares what grows", values)
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
        outside, inside = cases
        if inside.place in OFFSETS and (outside.place in OFFSETS or outside.kind == "same"):
            return inside.but(place="clipped")
        if outside.is_common and (inside.place == "found" or inside.kind == "same"):
            beside = None if zero[0] else outside.degree
            return Share("sum", inside.degree, beside, is_heard=True, place=PICKED, **inside.gauges)
    if by.is_part or by.own:
        return step.decided("chooses by", by, *cases)
    if by.kind == "own":
        return _own_choice(step, by, cases)
    chosen = cases[0] if zero[1:] == [True] else cases[1] if zero[0] and len(cases) == 2 else _either(step, cases)
    if by.kind == "sharded":
        if chosen.is_part:
            return step.lost("masks by own rows", chosen)
        if chosen.kind == "sharded" and by.dim != chosen.dim:
            return across(step, by, *cases)
        if chosen.kind in ("same", "local"):
            chosen = chosen.but(kind="sharded", dim=by.dim, name=by.name)
    elif by.kind == "local":
        if chosen.kind == "sharded" and by.dim == chosen.dim:
            return locally(step, by, chosen, degree=chosen.degree, dim=chosen.dim)
        if chosen.kind == "same":
            chosen = chosen.but(kind="local", dim=by.dim)
    return chosen.but(number=None, line=None, is_heard=chosen.is_heard or by.is_heard) if chosen is not SAME else SAME


def _own_choice(step: ReadEquation, by: Share, cases: Sequence[Share]) -> Share:
    """What each shard chooses by its own index: of a partial sum it is lost."""
    if by.place == "below" and all(case.place in OFFSETS for case in cases):  # how JAX reads negative places
        return cases[0].but(place="clipped" if cases[0].place == "clipped" else "wrapped")
    sums = [case for case in cases if case.kind == "sum"]
    if sums and len(sums) < len(cases):
        return step.lost("masks by the shard's index", *cases)
    return Share("own", 0, is_heard=True, **blended(*cases))


def _either(step: ReadEquation, cases: Sequence[Share]) -> Share:
    """Entries of both cases."""
    a, b = cases[0], cases[-1]
    for bound, value in ((1, b), (len(cases), a)):
        number = step.number(bound)
        is_masked = number is not None and (abs(number) > _HUGE or number != number or abs(number) < TINY)
        if is_masked and value.kind in ("same", "sharded", "sum", "extreme", "own"):
            return value
    if a.is_plain and b.is_plain and a.kind == b.kind == "same" and not (a.is_heard or b.is_heard):
        return SAME
    return add(step, [a.but(number=None), b.but(number=None)])
