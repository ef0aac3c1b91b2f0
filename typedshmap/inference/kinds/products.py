"""The rules of products and quotients, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence
from operator import floordiv, mul, truediv
from typing import Any

from ... import _jax
from . import loss_kinds
from .functions import nonlinear, of_different_shards
from .reading import ReadEquation
from .sums import affine_of, along_two_dims, by_local_indices, in_each_trace, merged_symbols, negated, trait_of_rows
from .value import ANY, NOT_KNOWN, UNKNOWN, Share, add_symbols, reach_of, scaled, sum_of, unknown


def multiply(step: ReadEquation, values: list[Share]) -> Share:
    """A product or a quotient, entry by entry."""
    a, b = [step.reading.excused(value, values) for value in values]
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
    """Note whether the divisor of a mean counts sharded rows, if its sum is in the same jaxpr."""
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
    number, affine = None, None
    if not (is_quotient and b.number is not None and 0 in b.number):
        number = in_each_trace(truediv if is_quotient else mul, a.number, b.number)
    if not is_quotient and (a.affine is None or b.affine is None):
        affine = affine_of(a, b, lambda p, q: (p[0] * q[0], p[0] * q[1] + p[1] * q[0]))
    for zero, value in ((a, b), (b, a)):
        if zero.is_zero and not (is_quotient and zero is b):
            is_sharded = "sharded" in (a.kind, b.kind)
            dim = (a.dim if a.dim is not None else b.dim) if is_sharded else None
            return Share("sharded" if is_sharded and value.kind != "unknown" else "same", ANY, dim=dim, number=number)
    if "unknown" in (a.kind, b.kind):
        return unknown((a, b)).but(number=number)
    for part, factor in ((a, b), (b, a)):  # if only one shard keeps it, the index may be a factor
        if part.kind == "sum" and part.is_reached and factor.kind == "own" and factor.is_reached and not factor.symbols:
            return NOT_KNOWN.reached
    seen = reach_of(a, b)
    if {"some", "one"} & {a.trait, b.trait}:
        return unknown((a, b), is_reached=True)
    if affine is not None:
        return Share("own", 0, affine=affine, **seen)
    if (known := _of_roots(a, b, is_quotient, seen)) is not None:
        return known
    if a.kind == b.kind == "sum" and not is_quotient:  # (x / S) * S
        if b.part in {symbol for symbol, _ in a.symbols}:
            b = _as_factor(step, b)
        elif a.part in {symbol for symbol, _ in b.symbols}:
            a = _as_factor(step, a)
    first, second = _factors(step, a, b, is_quotient)
    for at, (value, factor) in enumerate(((first, second), (second, first))):
        if factor.is_common and value.role == "+" and value.kind in ("same", "sharded") and not (at and is_quotient):
            degree = sum_of(first.degree, second.degree, -1 if is_quotient else 1)
            return _scaled_symbols(step, value, 1 - at, is_quotient).but(degree=degree, **seen)
    if is_quotient and second.role == "*":
        second = second.but(symbols=frozenset((symbol, -times) for symbol, times in second.symbols))
    are_rows = a.kind in ("sharded", "local") and b.kind in ("sharded", "local")
    if are_rows and (mixed := of_different_shards(step, (a, b))) is not None:
        return mixed
    return _combined(step, (a, b), (first, second), is_quotient, number)


def _of_roots(a: Share, b: Share, is_quotient: bool, seen: dict[str, Any]) -> Share | None:
    """A product with the inverse or the root of a part, or of an extreme with a number; None for other products."""
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
        is_scaled = extreme.kind == "extreme" and not extreme.symbols and factor.is_common
        if is_scaled and factor.number is not None and factor.number[0] != 0:
            degree = sum_of(a.degree, b.degree, -1 if is_quotient else 1)
            extreme = extreme if factor.number[0] > 0 else negated(extreme)
            return extreme.but(degree=degree, part=None, **seen)
    return None


def _factors(step: ReadEquation, a: Share, b: Share, is_quotient: bool) -> tuple[Share, Share]:
    """The factors; a part becomes a symbol, unless the other factor scales it."""
    is_ratio = is_quotient and b.kind == "sum" and a.beside is None
    takes_a = a.kind == "extreme" or (a.kind == "sum" and b.kind not in ("same", "extreme") and not is_ratio)
    takes_b = b.kind == "extreme" or (b.kind == "sum" and (is_quotient or a.kind not in ("same", "extreme")))
    return _as_factor(step, a) if takes_a else a, _as_factor(step, b) if takes_b else b


def _scaled_symbols(step: ReadEquation, value: Share, at: int, is_quotient: bool) -> Share:
    """A value whose symbols are terms, times an operand that every shard has; the operand scales the symbols."""
    losses, by = step.reading.losses, step.reading.number_of(step.frame, step.eqn.invars[at])
    symbols = frozenset((("times", quantity, by, is_quotient), times) for quantity, times in value.symbols)
    for key, _ in symbols:
        losses.setdefault(key, losses[key[1]])
    return value.but(symbols=symbols, number=None, affine=None, root=None)


def _as_factor(step: ReadEquation, value: Share) -> Share:
    """A part as a factor: a symbol with the exponent 1."""
    if value.kind == "extreme" and value.role == "*":
        return value.but(kind="same")
    if not value.is_part:
        return value
    is_sum, symbols = value.kind == "sum", frozenset({(value.part, 1)})
    step.reading.lose(value.part, loss_kinds.FACTOR if is_sum else loss_kinds.own_extreme(value.end), step, (value,))
    is_factor = not is_sum or (value.beside is None and value.role in ("", "*"))
    return Share(
        "same",
        value.degree,
        role="*" if is_factor else "?",
        symbols=add_symbols(value.symbols, symbols) if is_sum else symbols,
        may_cancel=is_sum and (value.may_cancel or value.part in value.reduced),
        **reach_of(value),
    )


def _combined(
    step: ReadEquation, values: Sequence[Share], factors: Sequence[Share], is_quotient: bool, number: Any
) -> Share:
    """The product of two factors, by their kinds and dims.

    Args:
      step: the equation.
      values: the operands.
      factors: the operands, with parts replaced by symbols.
      is_quotient: whether it is a quotient.
      number: the number of the result.
    """
    (a, b), (first, second), reading, seen = values, factors, step.reading, reach_of(*values)
    symbol_fields = merged_symbols(reading, first, second, "*")
    if a.kind == b.kind == "sum" and symbol_fields["symbols"] and not is_quotient:
        symbol_fields["is_square"] = True
    sign = -1 if is_quotient else 1
    degree = sum_of(first.degree, second.degree, sign)
    kinds, dims = {first.kind, second.kind}, {value.dim for value in factors if value.dim is not None}
    dim = next(iter(dims), None)
    if "own" in kinds:
        root = ("inverse", b) if is_quotient and b.kind == "sum" and a.number is not None else None
        is_found = all(value.trait == "found" or value.kind == "same" for value in values)
        trait = "found" if is_found else ""
        return Share("own", degree if is_found else 0, root=root, trait=trait, **seen, **symbol_fields)
    if "gathered" in kinds:
        stacked, factor = (first, second) if first.kind == "gathered" else (second, first)
        if not factor.is_common or stacked.root is None:
            return NOT_KNOWN
        return stacked.but(degree=degree, root=("gathered", scaled(stacked.root[1], factor.degree)), **seen)
    if "sum" in kinds:
        part, factor = (first, second) if first.kind == "sum" else (second, first)
        if factor.kind in ("sharded", "local"):
            return step.lost(loss_kinds.TIMES_ROWS, a, b)
        beside = None if part.beside is None else sum_of(part.beside, factor.degree, sign)
        return Share("sum", degree, beside, part=part.part, trait=part.trait, **seen, **symbol_fields)
    if len(dims) > 1:
        return along_two_dims(step, a, b)
    more: dict[str, Any] = {"is_positive": a.is_positive and b.is_positive, **seen, **symbol_fields}
    if "sharded" in kinds:
        if "local" in kinds:
            return by_local_indices(step, a, b, degree=degree, dim=dim)
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
        return Share("local", degree, dim=dim, number=number, root=root, trait=trait_of_rows(a, b), **more)
    is_own = "sum" in (a.kind, b.kind) and not all(
        reading.losses[symbol].is_common for symbol, _ in symbol_fields["symbols"]
    )
    return Share("own" if is_own else "same", degree, dim=dim, number=number, root=root, **more)
