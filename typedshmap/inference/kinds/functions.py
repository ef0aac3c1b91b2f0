"""The rules of functions, comparisons and selects, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from ..._jax.primitives import OPPOSITE_END, primitive
from . import loss_kinds
from .numbers import TINY
from .reading import ReadEquation
from .sums import BARE, OFFSETS, add, along_two_dims, by_local_indices, trait_of_rows
from .value import (
    ANY,
    NO_PARTS,
    NOT_KNOWN,
    SAME,
    UNKNOWN,
    Degree,
    Share,
    add_symbols,
    reach_of,
    sum_of,
    unknown,
    untracked,
)

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
            return [value.but(degree=degree, affine=None)]
        if value.kind == "sum" and step.is_inexact_operand and not step.is_inexact:
            return [nonlinear(step, values)]
        if value.kind == "extreme" and str(before) == "bool" and str(after) != "bool":
            return [value.but(trait="flag")]
    return [value]


def function(step: ReadEquation, values: list[Share]) -> Share:
    """A function, entry by entry."""
    values = [step.reading.excused(value, values) for value in values]
    value, known, power = values[0], step.primitive, _power(step, values)
    if step.name == "abs" and value.is_positive:
        return value
    if value.trait == "picked" and value.kind == "sum" and value.beside is None and len(values) == 1:
        if known.keeps_zero and value.degree == 0:
            return value.but(part=None)
        if power is not None and power > 0:
            return value.but(part=None, degree=_raised(value, power))
    if step.name == "is_finite" and value.kind in ("extreme", "sum", "own"):
        return Share("same", 0, trait="finite")
    if known.kind == "test":
        return _test(step, values)
    if known.kind == "extreme":
        is_same = len(values) == 2 and step.eqn.invars[0] is step.eqn.invars[1]
        return value if is_same else _extreme(step, values)
    if power is None or value.degree in (UNKNOWN, ANY):
        result, is_positive = nonlinear(step, values), known.is_positive
    elif value.symbols and value.role == "*" and value.kind in ("same", "sharded") and power not in (0, 1):
        symbols = frozenset((name, times * power) for name, times in value.symbols)
        return value.but(degree=sum_of(0, value.degree, power), symbols=symbols, number=None, root=None)
    else:
        is_free = value.kind == "extreme" and step.name == "abs"
        result = nonlinear(step, values[:1], None if is_free else _raised(value, power))
        is_positive = known.is_positive or (step.name == "integer_pow" and step.params["y"] % 2 == 0)
    return result.but(is_positive=True) if is_positive and result is not SAME else result


def _power(step: ReadEquation, values: Sequence[Share]) -> Fraction | None:
    """The degree of a homogeneous function; None for any other function."""
    if step.name == "integer_pow":
        return Fraction(step.params["y"])
    if step.name == "pow" and (number := values[1].number) is not None and len(set(number)) == 1:
        return Fraction(number[0]).limit_denominator(60)
    return step.primitive.degree


def _raised(value: Share, power: Fraction) -> Degree:
    return sum_of(0, value.degree, power) if value.degree != 0 else 0


def nonlinear(step: ReadEquation, values: Sequence[Share], degree: Degree | None = None) -> Share:
    """A function that is not linear in any operand.

    Args:
      step: the equation.
      values: its operands.
      degree: the degree of the result of a homogeneous function; None for a function that needs operands of degree 0.
    """
    value, is_strict, degree = values[0], degree is None, 0 if degree is None else degree
    if any(operand.kind in ("unknown", "gathered") for operand in values):
        return unknown(values)
    if len(values) == 1 and (known := _inverted(step, value)) is not None:
        return known
    is_monotone = value.kind == "extreme" and step.primitive.is_monotone
    if is_monotone and all(operand.is_common for operand in values[1:]):
        if step.name == "exp" and not value.symbols:
            step.reading.lose(value.part, loss_kinds.own_extreme(value.end), step, (value,))
            return value.but(role="*", symbols=frozenset({(value.part, 1)}), degree=0)
        return value.but(part=None, degree=degree, role="", symbols=NO_PARTS)
    if (mixed := of_different_shards(step, values)) is not None:
        return mixed
    if len(values) == 1 and (known := _of_symbols(step, value)) is not None:
        return known
    if any(operand.is_part for operand in values):
        return _of_parts(step, values)
    dims = {operand.dim for operand in values if operand.kind in ("sharded", "local")}
    more = untracked(*values) | reach_of(*values)
    more["is_square"] = any(operand.is_square for operand in values)
    if any(operand.kind == "own" for operand in values):
        is_found = all(operand.trait == "found" or operand.kind == "same" for operand in values)
        return Share("own", degree, trait="found" if is_found else "", **more)
    if len(dims) > 1:
        return along_two_dims(step, *values)
    dim, sharded = next(iter(dims), None), next((operand for operand in values if operand.kind == "sharded"), None)
    kind = "sharded" if sharded is not None else "local" if dims else "same"
    if sharded is not None and any(operand.kind == "local" for operand in values):
        return by_local_indices(step, *values, degree=degree, dim=dim)
    if is_strict and step.primitive.kind != "test" and not more["symbols"]:
        known = step.reading.numbers.known
        wrong = next(iter({known(operand.degree) for operand in values} - {ANY, 0}), None)
        if wrong == UNKNOWN:
            degree = UNKNOWN
        elif wrong is not None and step.reading.numbers.is_degree(wrong, 0) is False:
            return _of_growing(step, values, wrong, kind, dim)
    name = sharded.name if sharded is not None else ("", "")
    order = next((operand.order for operand in values if operand.order), 0)
    trait = trait_of_rows(*values) if kind == "local" else ""
    result = Share(kind, degree, dim=dim, order=order, name=name, trait=trait, **more)
    return SAME if result == BARE else result


def _inverted(step: ReadEquation, value: Share) -> Share | None:
    """The operand of an earlier function, if this function is its inverse."""
    if value.root is None:
        return None
    function, of = value.root
    power = step.params.get("y") if step.name == "integer_pow" else None
    if primitive(function).inverse == step.name or (function == "sqrt" and power == 2):
        return of.but(reduced=of.reduced | value.reduced, is_reached=value.is_reached)
    return of if function == "inverse" and power == -1 else None


def _of_symbols(step: ReadEquation, value: Share) -> Share | None:
    """The exponential of symbols that are terms, or the logarithm of symbols that are factors."""
    if not value.symbols or value.kind not in ("same", "sharded", "local") or value.degree not in (0, ANY):
        return None
    if step.name == "exp" and value.role == "+":
        log = ("log", step.reading.axis)
        left = frozenset(pair for pair in value.symbols if pair[0] != log)
        degree = dict(value.symbols).get(log, 0)
        return value.but(role="*" if left else "", symbols=left, degree=degree, number=None, root=None)
    return value.but(role="+", number=None) if step.name == "log" and value.role == "*" else None


def _of_growing(step: ReadEquation, values: Sequence[Share], degree: Degree, kind: Any, dim: Any) -> Share:
    """A function that needs operands of degree 0, with other degrees; log(n**k x) is log x plus k times a symbol."""
    why = loss_kinds.NONLINEAR_IN_GROWING
    if step.name == "log" and len(values) == 1:
        symbol = step.reading.lose(("log", step.reading.axis), why, step, values, is_common=True)
        return values[0].but(degree=0, role="+", symbols=frozenset({(symbol, degree)}), number=None, root=None)
    return step.lost(why, *values, kind=kind, dim=dim)


def of_different_shards(step: ReadEquation, values: Sequence[Share]) -> Share | None:
    """The loss if an operation uses sums of rows of different shards as rows; else None."""
    if not any(value.trait == "folded" for value in values) or any(value.kind in ("own", "sum") for value in values):
        return None
    dim = next(value.dim for value in values if value.trait == "folded")
    return step.lost(loss_kinds.SUM_OF_ROWS, *values, kind="local", dim=dim, trait="folded")


def _of_parts(step: ReadEquation, values: Sequence[Share]) -> Share:
    """A nonlinear function of parts, which is each shard's own."""
    reading, value, seen = step.reading, values[0], reach_of(*values)
    may_cancel = any(operand.may_cancel or (operand.is_part and operand.part in seen["reduced"]) for operand in values)
    is_square = step.primitive.degree == 2 or step.name == "integer_pow"
    is_square = is_square and value.kind == "sum"
    for operand in values:
        if operand.is_part:
            reading.lose(operand.part, loss_kinds.NONLINEAR, step, (operand,))
    symbols = frozenset({(reading.lose(("of", step.part), loss_kinds.NONLINEAR, step, values), 1)})
    if len(values) == 1 and value.beside is None and value.role in ("", "*") and step.primitive.inverse:
        symbols = add_symbols(symbols, value.symbols if step.name == "log" else NO_PARTS)
        return Share("own", ANY, role="+", symbols=symbols, root=(step.name, value), **seen)
    before: frozenset[Any] = untracked(*values)["symbols"]
    more: dict[str, Any] = {"symbols": symbols | before, "may_cancel": may_cancel, "is_square": is_square, **seen}
    return Share("own", 0 if before else ANY, role="?" if before or is_square else "+", **more)


def _extreme(step: ReadEquation, values: list[Share]) -> Share:
    """A maximum or a minimum of operands, entry by entry; ``or``, ``and``, a remainder."""
    name, numbers = step.name, step.reading.numbers
    end, is_bound = step.primitive.end, step.primitive.end != "" and step.primitive.is_monotone
    if is_bound:
        for bound, value in ((values[0], values[1]), (values[1], values[0])):
            at = bound.number[0] if bound.number is not None else None
            if at is not None and (0 < abs(at) < TINY or abs(at) > _HUGE):
                return value.but(number=None, affine=None) if value.affine is None else Share("own", 0, is_reached=True)
    kinds, traits = {value.kind for value in values}, {value.trait for value in values}
    if end and "extreme" in kinds and kinds <= {"extreme", "same"}:
        extremes = [value for value in values if value.kind == "extreme"]
        if all(value.end == end for value in extremes) or (is_bound and len(extremes) == 1):
            return extremes[0].but(part=None, role="", symbols=NO_PARTS)
    if name == "and" and (traits == {"from", "to"} or "block" in traits) and not any(value.symbols for value in values):
        return Share("own", 0, is_reached=True, trait="block")
    is_bound = is_bound or name == "clamp"
    if is_bound and traits & OFFSETS:
        root = next(value.root for value in values if value.trait in OFFSETS)
        return Share("own", 0, is_reached=True, trait="clipped", root=root)
    degrees = {numbers.known(value.degree) for value in values} - {ANY}
    if UNKNOWN in degrees:
        return nonlinear(step, values, UNKNOWN)
    if len(degrees) <= 1:
        return nonlinear(step, values, next(iter(degrees), 0))
    if is_bound and not kinds & {"sum", "extreme", "unknown"} and step.is_inexact:
        first, *others = degrees
        if any(numbers.agree(first, other) is None for other in others):
            return _of_different_degrees(step, loss_kinds.BOUNDED_GROWING, values)
        return nonlinear(step, values, first)
    return nonlinear(step, [value.but(degree=0) for value in values]) if kinds & {"sum", "extreme"} else NOT_KNOWN


def _of_different_degrees(step: ReadEquation, why: loss_kinds.LossKind, values: Sequence[Share]) -> Share:
    sharded = next((value for value in values if value.kind == "sharded"), None)
    return step.lost(why, *values, kind="same" if sharded is None else "sharded", dim=sharded and sharded.dim)


def _test(step: ReadEquation, values: list[Share]) -> Share:
    """A comparison."""
    if len(values) == 1:
        return nonlinear(step, values)
    (a, b), name = values, step.name
    is_equality = step.primitive.is_commutative
    if a.affine is not None and b.number is not None:
        if name == "lt" and all(start >= 0 and by >= 0 for start, by in a.affine) and not any(b.number):
            return Share("same", 0, number=(False,) * len(b.number))
        if is_equality:
            return Share("own", 0, is_reached=True, trait="one" if name == "eq" else "others")
    if name == "eq" and "same" in (a.kind, b.kind) and (a.affine or b.affine):
        return Share("own", 0, is_reached=True, trait="some")
    if a.trait in OFFSETS and b.number is not None:
        is_end = name == "lt" and a.root is not None and tuple(b.number) == a.root[1]
        trait = "from" if name == "ge" and not any(b.number) else "to" if is_end else "below"
        return Share("own", 0, is_reached=True, trait=trait)
    for index, rows in ((a, b), (b, a)):
        if index.trait == "offset" and rows.kind == "local" and name == "eq":
            return Share("sharded", 0, dim=rows.dim, is_reached=True)
    if a.kind == b.kind == "extreme":  # such as of positions, to skip work
        return unknown(values, is_reached=True)
    for extreme, bound in ((a, b), (b, a)):
        if extreme.kind == "extreme" and not is_equality and bound.is_common:
            is_kept = (name[0] == "g") == (extreme is a)
            end = extreme.end if is_kept else OPPOSITE_END[extreme.end]
            return extreme.but(degree=0, part=None, end=end, role="", symbols=NO_PARTS)
    if is_equality and {a.kind, b.kind} == {"local", "sharded"}:
        return nonlinear(step, [value.but(kind="sharded") for value in values])
    degrees = [step.reading.numbers.known(value.degree) for value in values if value.degree != ANY]
    is_own = any(value.symbols or value.kind in ("sum", "extreme", "unknown", "own") for value in values)
    differ = len(degrees) == 2 and degrees[0] != degrees[1] and not is_own and step.is_inexact_operand
    if differ and step.reading.numbers.agree(*degrees) is None:
        return _of_different_degrees(step, loss_kinds.COMPARED_GROWING, values)
    return nonlinear(step, values)


def select(step: ReadEquation, values: list[Share]) -> Share:
    """One of several operands, entry by entry, by a predicate."""
    by, *cases = [step.reading.excused(value, values) for value in values]
    if by.number is not None and int(by.number[0]) < len(cases):
        return cases[int(by.number[0])]
    if by.trait == "finite" and cases[-1].kind in ("extreme", "sum", "own"):  # where(isfinite(m), m, 0)
        return cases[-1]
    if any(value.kind == "unknown" for value in (by, *cases)):
        return unknown((by, *cases))
    zero = [case.is_zero for case in cases]
    if by.trait in ("one", "others") and len(cases) == 2:
        at = 1 if by.trait == "one" else 0
        if zero[1 - at] and cases[at].kind == "same":
            return Share("sum", cases[at].degree, is_reached=True)
    if by.trait == "block" and len(cases) == 2:
        outside, inside = cases
        if inside.trait in OFFSETS and (outside.trait in OFFSETS or outside.kind == "same"):
            return inside.but(trait="clipped")
        if outside.is_common and (inside.trait == "found" or inside.kind == "same"):
            beside = None if zero[0] else outside.degree
            return Share("sum", inside.degree, beside, is_reached=True, trait="picked", **inside.symbol_fields)
    if by.is_part or by.symbols:
        return step.decided(loss_kinds.CHOICE, by, *cases)
    if by.kind == "own":
        return _own_choice(step, by, cases)
    chosen = cases[0] if zero[1:] == [True] else cases[1] if zero[0] and len(cases) == 2 else _either(step, cases)
    if by.kind == "sharded":
        if chosen.is_part:
            return step.lost(loss_kinds.MASKED_BY_ROWS, chosen)
        if chosen.kind == "sharded" and by.dim != chosen.dim:
            return along_two_dims(step, by, *cases)
        if chosen.kind in ("same", "local"):
            chosen = chosen.but(kind="sharded", dim=by.dim, name=by.name)
    elif by.kind == "local":
        if chosen.kind == "sharded" and by.dim == chosen.dim:
            return by_local_indices(step, by, chosen, degree=chosen.degree, dim=chosen.dim)
        if chosen.kind == "same":
            chosen = chosen.but(kind="local", dim=by.dim)
    return (
        chosen.but(number=None, affine=None, is_reached=chosen.is_reached or by.is_reached)
        if chosen is not SAME
        else SAME
    )


def _own_choice(step: ReadEquation, by: Share, cases: Sequence[Share]) -> Share:
    """A selection that each shard makes by its index, which loses a partial sum."""
    if by.trait == "below" and all(case.trait in OFFSETS for case in cases):  # like JAX's wrapping of negative indices
        return cases[0].but(trait="clipped" if cases[0].trait == "clipped" else "wrapped")
    sums = [case for case in cases if case.kind == "sum"]
    if sums and len(sums) < len(cases):
        return step.lost(loss_kinds.MASKED_BY_INDEX, *cases)
    return Share("own", 0, is_reached=True, **untracked(*cases))


def _either(step: ReadEquation, cases: Sequence[Share]) -> Share:
    """A value with entries of several operands."""
    a, b = cases[0], cases[-1]
    for bound, value in ((1, b), (len(cases), a)):
        number = step.number(bound)
        is_masked = number is not None and (abs(number) > _HUGE or number != number or abs(number) < TINY)
        if is_masked and value.kind in ("same", "sharded", "sum", "extreme", "own"):
            return value
    if a.is_plain and b.is_plain and a.kind == b.kind == "same" and not (a.is_reached or b.is_reached):
        return SAME
    return add(step, [a.but(number=None), b.but(number=None)])
