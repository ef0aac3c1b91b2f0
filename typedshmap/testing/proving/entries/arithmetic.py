"""Arithmetic of entries, and sums, products and largest entries along dims, as polynomials."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np

from ....inference.interpreter import CLAIM
from ..elementwise import SAME_NAMES, is_narrow
from ..polynomials import Polynomials
from ..values import NotKnown
from .opaque import elementwise, opaque
from .walk import EntryRule, EntryWalk, Numbers, kind_of, kinds_of


def _division(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    """Of floats by the inverse; of whole numbers towards zero, as in C."""
    name, table, dtype = eqn.primitive.name, walk.polynomials, eqn.outvars[0].aval.dtype

    def made(one: int, other: int) -> int:
        a, b = table.value_of(one), table.value_of(other)
        if name == "div" and kind_of(dtype) in "fc":
            return rounded(table, table.product(one, table.inverse(other)), dtype)
        if kind_of(dtype) == "f" or a is None or not b:
            return table.atom(name, str(dtype), (one, other))
        quotient = abs(int(a)) // abs(int(b)) * (1 if (a < 0) == (b < 0) else -1)
        return table.constant(quotient if name == "div" else int(a - quotient * b))

    return [walk.each(made, *operands)]


def rounded(table: Polynomials, number: int, dtype: Any) -> int:
    """A result of arithmetic as a float of few bits, where that may be another number."""
    value = table.value_of(number)
    is_exact = value is not None and abs(value) <= 128 and Fraction(value).denominator in (1, 2, 4)
    return number if is_exact or not is_narrow(dtype) else table.atom("convert", str(dtype), [number])


def _arithmetic(make: Callable[..., int], kinds: str = "bifc", is_exact: bool = False) -> EntryRule:
    """What polynomials are made for: not of whole numbers that go round, unless all are known."""

    def rule(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
        if kinds_of(eqn) - set(kinds):
            return elementwise(walk, eqn, operands)
        table, dtype = walk.polynomials, eqn.outvars[0].aval.dtype
        most = jnp.iinfo(dtype).max if kind_of(dtype) == "i" else None

        def made(*entries: int) -> int:
            found = make(table, eqn, *entries)
            found = found if is_exact else rounded(table, found, dtype)
            if most is not None and abs(table.value_of(found) or 0) > most:
                raise NotKnown("its whole numbers overflow")
            return found

        return [walk.each(made, *operands)]

    return rule


def _same(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    return operands


def _convert(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    """Rounding is an operation of which nothing is known; what only widens is none."""
    table, (entries,), old, new = walk.polynomials, operands, eqn.invars[0].aval.dtype, eqn.params["new_dtype"]
    before, after = kind_of(old), kind_of(new)

    def cast(entry: int) -> int:
        value = table.value_of(entry)
        if value is not None and before in "biu" and after in "biu":
            return walk.number(np.array(value).astype(old).astype(new), new)
        if before == "f" and after == "i" and table.is_integer(entry):
            return entry
        is_small = value is not None and abs(value) <= 128 and Fraction(value).denominator == 1
        return entry if is_small else table.atom("convert", str(new), [entry])

    if old == new:
        return operands
    if after == "b":
        return [walk.each(lambda entry: table.denied(table.is_zero(entry)), entries)]
    if before == after or before + after == "fc":  # numbers that the one dtype has, and the other has them all
        limits = [jnp.iinfo(each).bits if before in "iu" else jnp.finfo(each).nmant for each in (old, new)]
        ranges = [0 if before in "biu" else jnp.finfo(each).maxexp for each in (old, new)]
        holds_all = limits[0] <= limits[1] and ranges[0] <= ranges[1]
    else:
        holds_all = before == "b" or (before in "iu" and after in "fc" and np.dtype(new).itemsize >= 4)
    return [entries if holds_all else walk.each(cast, entries)]


def _compared(name: str) -> EntryRule:
    def make(table: Polynomials, eqn: Any, one: int, other: int) -> int:
        one, other = (other, one) if name in ("gt", "le") else (one, other)
        found = (table.is_zero if name in ("eq", "ne") else table.is_negative)(table.total([(one, 1), (other, -1)]))
        return table.denied(found) if name in ("ne", "le", "ge") else found

    return _arithmetic(make, "fib", is_exact=True)


def _logical(make: Callable[..., int]) -> EntryRule:
    def rule(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
        if kind_of(eqn.outvars[0].aval.dtype) != "b":
            return elementwise(walk, eqn, operands)
        return [walk.each(lambda *entries: make(walk.polynomials, *entries), *operands)]

    return rule


def _either(table: Polynomials, one: int, other: int) -> int:
    return table.total([(one, 1), (other, 1), (table.product(one, other), -1)])


def chosen(walk: EntryWalk, which: Numbers, cases: list[Numbers], is_truth: bool) -> Numbers:
    """One of some arrays, by numbers of the same or of no shape."""
    table = walk.polynomials

    def made(number: int, *entries: int) -> int:
        value = table.value_of(number)
        if value is not None:
            return entries[max(0, min(int(value), len(entries) - 1))]
        if len(set(entries)) == 1:
            return entries[0]
        if len(entries) == 2 and (is_truth or table.is_truth(number)):
            return table.chosen(number, *entries)
        return table.atom("case", len(entries), (number, *entries))

    return walk.each(made, which, *cases)


def _select(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    return [chosen(walk, operands[0], operands[1:], kind_of(eqn.invars[0].aval.dtype) == "b")]


def reduced(walk: EntryWalk, eqn: Any, numbers: Numbers, function: Callable[[list[int]], int]) -> list[Numbers]:
    """A function of all entries along some dims."""
    axes = [walk.lead + axis for axis in eqn.params["axes"]]
    kept = [at for at in range(numbers.ndim) if at not in axes]
    rows = numbers.transpose(*kept, *axes).reshape(*[numbers.shape[at] for at in kept], -1)
    walk.polynomials.spend(rows.size)
    flat = rows.reshape(-1, rows.shape[-1]).tolist()
    return [np.array([function(row) for row in flat], np.int64).reshape(rows.shape[:-1])]


def _reduction(make: Callable[[Polynomials, list[int]], int], kinds: str, is_exact: bool = False) -> EntryRule:
    def rule(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
        dtype, table = eqn.invars[0].aval.dtype, walk.polynomials

        def made(row: list[int]) -> int:
            if kind_of(dtype) not in kinds:
                return table.atom(eqn.primitive.name, str(dtype), row)
            return make(table, row) if is_exact else rounded(table, make(table, row), dtype)

        return reduced(walk, eqn, operands[0], made)

    return rule


def sum_of(table: Polynomials, row: list[int]) -> int:
    """The polynomial that is the sum of some."""
    return table.total((number, 1) for number in row)


def _smallest(table: Polynomials, row: list[int]) -> int:
    return table.largest(row, -1)


def _product(table: Polynomials, row: list[int]) -> int:
    found = table.one
    for number in row:
        found = table.product(found, number)
    return found


def _cumulative(make: Callable[[Polynomials, int, int], int]) -> EntryRule:
    def rule(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
        if "u" in kinds_of(eqn) or is_narrow(eqn.invars[0].aval.dtype):
            return opaque(walk, eqn, operands)
        rows = np.moveaxis(operands[0], walk.lead + eqn.params["axis"], 0)
        order = list(range(len(rows)))[:: -1 if eqn.params["reverse"] else 1]
        found, before = rows.copy(), None
        for at in order:
            if before is not None:
                found[at] = walk.each(lambda x, y: make(walk.polynomials, x, y), found[before], rows[at])
            before = at
        return [np.moveaxis(found, 0, walk.lead + eqn.params["axis"])]

    return rule


def _dot(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    if "u" in kinds_of(eqn):
        return opaque(walk, eqn, operands)
    contracted, batched = eqn.params["dimension_numbers"]
    mesh, arrays, free = tuple(walk.mesh.values()), list[Numbers](), list[tuple[int, ...]]()
    batch: tuple[int, ...] = ()
    for numbers, over, batch_dims in zip(operands, contracted, batched, strict=True):
        over, batch_dims = ([walk.lead + dim for dim in dims] for dims in (over, batch_dims))
        own = [dim for dim in range(walk.lead, numbers.ndim) if dim not in (*over, *batch_dims)]
        sizes = [prod(numbers.shape[dim] for dim in dims) for dims in (own, over)]
        batch, free = tuple(numbers.shape[dim] for dim in batch_dims), [*free, tuple(numbers.shape[dim] for dim in own)]
        arrays.append(
            numbers.transpose(*range(walk.lead), *batch_dims, *own, *over).reshape(prod(mesh + batch), *sizes)
        )
    one, other = arrays
    known, found = dict[Any, int](), list[int]()
    for left, right in zip(one.tolist(), other.tolist(), strict=True):
        for row in map(tuple, left):
            for column in map(tuple, right):
                if (number := known.get((row, column))) is None:
                    number = walk.polynomials.contraction(zip(row, column, strict=True))
                    number = known[row, column] = rounded(walk.polynomials, number, eqn.outvars[0].aval.dtype)
                found.append(number)
    return [np.array(found, np.int64).reshape((*mesh, *batch, *free[0], *free[1]))]


ARITHMETIC_RULES: dict[str, EntryRule] = {
    **dict.fromkeys(SAME_NAMES.split(), _same),
    CLAIM: _same,
    **dict.fromkeys(("add", "add_any"), _arithmetic(lambda table, _, one, other: table.total([(one, 1), (other, 1)]))),
    "sub": _arithmetic(lambda table, _, one, other: table.total([(one, 1), (other, -1)])),
    "neg": _arithmetic(lambda table, _, one: table.total([(one, -1)]), is_exact=True),
    "mul": _arithmetic(lambda table, _, one, other: table.product(one, other)),
    "div": _division,
    "square": _arithmetic(lambda table, _, one: table.product(one, one)),
    "integer_pow": _arithmetic(lambda table, eqn, one: table.power(one, eqn.params["y"]), "fc"),
    "one_minus_square": _arithmetic(lambda table, _, one: table.denied(table.product(one, one))),
    "exp": _arithmetic(lambda table, _, one: table.exponential(one), "fc"),
    "expm1": _arithmetic(lambda table, _, one: table.total([(table.exponential(one), 1), (table.one, -1)]), "fc"),
    "log": _arithmetic(lambda table, _, one: table.logarithm(one), "f"),
    "log1p": _arithmetic(lambda table, _, one: table.logarithm(table.total([(one, 1), (table.one, 1)])), "f"),
    "rsqrt": _arithmetic(lambda table, _, one: table.inverse(table.atom("sqrt", (), [one])), "f"),
    "sqrt": _arithmetic(lambda table, _, one: table.atom("sqrt", (), [one]), "f"),
    "max": _arithmetic(lambda table, _, one, other: table.largest([one, other]), "fi", is_exact=True),
    "min": _arithmetic(lambda table, _, one, other: table.largest([one, other], -1), "fi", is_exact=True),
    "clamp": _arithmetic(
        lambda table, _, low, one, high: table.largest([table.largest([low, one]), high], -1), "fi", is_exact=True
    ),
    "rem": _division,
    **{name: _compared(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "and": _logical(Polynomials.product),
    "or": _logical(_either),
    "not": _logical(Polynomials.denied),
    "select_n": _select,
    "convert_element_type": _convert,
    "reduce_sum": _reduction(sum_of, "bifc"),
    "reduce_max": _reduction(Polynomials.largest, "fi", is_exact=True),
    "reduce_min": _reduction(_smallest, "fi", is_exact=True),
    "reduce_and": _reduction(_product, "b"),
    "reduce_or": _reduction(lambda table, row: table.denied(_product(table, list(map(table.denied, row)))), "b"),
    "reduce_prod": _reduction(_product, "bifc"),
    "cumsum": _cumulative(lambda table, one, other: table.total([(one, 1), (other, 1)])),
    "cumprod": _cumulative(Polynomials.product),
    "cummax": _cumulative(lambda table, one, other: table.largest([one, other])),
    "cummin": _cumulative(lambda table, one, other: table.largest([one, other], -1)),
    "dot_general": _dot,
}
