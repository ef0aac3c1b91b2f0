"""What operations make of each entry by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._jax.primitives import names_of
from . import lookups, neighbours
from .values import Affine, AtShard, DimSharding, GlobalValue, NotKnown, Sharded, ShardIds, Truth
from .walk import PrimitiveRule, Walk, joined_dims, params_key


def _same(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    return operands[: len(eqn.outvars)]


def _elementwise(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    values = list(map(walk.settled, operands))
    if any(value.partial for value in values):
        raise NotKnown("its operand is not reduced")
    if len(eqn.outvars[0].aval.shape) != max(len(value.dims) for value in values):
        raise NotKnown("it adds or drops a dim")
    params = params_key(eqn, "accuracy", "sharding")
    return [walk.made(eqn.primitive.name, (at, params), values, joined_dims(values)) for at in range(len(eqn.outvars))]


def _convert(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    (value,) = operands
    old, new = eqn.invars[0].aval.dtype, eqn.params["new_dtype"]
    if isinstance(value, Truth) and new.kind != "b":
        return [walk.number(Fraction(value.is_true), (None,) * value.rank)]
    if old == new or (isinstance(value, Affine | ShardIds) and new.kind in "iu" and _keeps_numbers(old, new)):
        return [value]
    value = walk.settled(value)
    if walk.is_number(value) and new.kind == "b":
        return [Truth(not value.is_zero, len(value.dims))]
    if walk.is_number(value) and _holds_number(new, value.factor):
        return [value]
    if not _keeps_numbers(old, new):
        return _elementwise(walk, eqn, [value])
    operand = replace(value, factor=Fraction(1))
    return [walk.made("convert", str(new), [operand], value.dims, value.partial, value.combined_by, value.factor)]


def _holds_number(dtype: Any, number: Fraction) -> bool:
    """Whether a number is one of a dtype, of which floats count as exact."""
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return number.denominator == 1 and limits.min <= number <= limits.max
    return jnp.issubdtype(dtype, jnp.inexact)


def _keeps_numbers(old: Any, new: Any) -> bool:
    """Whether a dtype has all numbers of another; floats of 32 bits count as having whole numbers, and no fewer do."""
    if old.kind in "iu" and new.kind in "iu":
        return np.can_cast(old, new)
    if old.kind in "iu":
        return jnp.issubdtype(new, jnp.inexact) and not is_narrow(new)
    if not jnp.issubdtype(old, jnp.floating if jnp.issubdtype(new, jnp.floating) else jnp.inexact):
        return False
    if not jnp.issubdtype(new, jnp.inexact):
        return False
    few, many = jnp.finfo(old), jnp.finfo(new)
    return few.nmant <= many.nmant and few.maxexp <= many.maxexp and few.minexp >= many.minexp


def is_narrow(dtype: Any) -> bool:
    """Whether floats of a dtype are rounded so much that it matters in which order they are added."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def refuse_narrow_sum(eqn: Any, value: Sharded, at: int = 0) -> Sharded:
    """A result, unless the shards have added up parts of a sum in few bits.

    Raises:
      NotKnown: where they have. One contraction in few bits counts as exact.
    """
    if value.combined_by == "sum" and is_narrow(eqn.outvars[at].aval.dtype):
        raise NotKnown("it adds up parts of a sum in few bits")
    return value


def _spread(walk: Walk, value: Sharded, dims: Sequence[DimSharding]) -> Sharded:
    """A value with the dims of what it is combined with; a number is the same along all of them."""
    return value.with_dims([None] * len(dims) if walk.is_number(value) else dims)


def _sum_of(walk: Walk, one: Sharded, other: Sharded, sign: int) -> Sharded:
    if other.is_extreme and sign < 0:
        raise NotKnown("it negates what is not reduced")
    other = replace(other, factor=sign * other.factor)
    dims = joined_dims([one, other])
    for zero, value in ((one, other), (other, one)):
        if zero.is_zero:
            return _spread(walk, value, dims)
    if one.partial != other.partial or one.is_extreme or other.is_extreme:
        raise NotKnown("it adds what is reduced to what is not")
    if one.term == other.term and one.dims == other.dims:
        return replace(one, factor=one.factor + other.factor)
    ratio = replace(other, factor=other.factor / one.factor)
    operands = [replace(one, factor=Fraction(1)), ratio]
    return walk.made("add", (), operands, dims, one.partial, "sum", one.factor)


def _add(sign: int) -> PrimitiveRule:
    def rule(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
        shape = tuple(eqn.outvars[0].aval.shape)
        affine = [affine_of(walk, each, shape) for each in operands]
        if eqn.outvars[0].aval.dtype.kind in "iu":
            if affine[0] is not None and affine[1] is not None:
                return [affine[0].plus(affine[1], sign)]
            if sign < 0 and (ids := lookups.minus_first(walk, *operands)) is not None:
                return [ids]
        one, other = map(walk.settled, operands)
        added = _sum_of(walk, one, other, sign)
        return [added if one.is_zero or other.is_zero else refuse_narrow_sum(eqn, added)]

    return rule


def affine_of(walk: Walk, value: GlobalValue, shape: tuple[int, ...]) -> Affine | None:
    """Whole numbers of a shape, where a value is that."""
    if isinstance(value, Affine):
        return value if value.shape == shape else replace(value, shape=shape) if not value.positions else None
    if isinstance(value, Sharded) and walk.is_number(value) and value.factor.denominator == 1:
        return Affine(shape, int(value.factor))
    return None


def product(walk: Walk, one: Sharded, other: Sharded, dims: Sequence[DimSharding], name: str, params: Any) -> Sharded:
    """A value that is linear in two others."""
    partial = one.partial | other.partial
    if one.partial & other.axes or other.partial & one.axes or one.is_extreme or other.is_extreme:
        raise NotKnown("it multiplies what is not reduced")
    factor = one.factor * other.factor
    operands = [replace(each, factor=Fraction(1)) for each in (one, other)]
    return walk.made(name, params, operands, dims, partial, "sum", factor)


def _multiply(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    shape = tuple(eqn.outvars[0].aval.shape)
    one, other = operands
    for each, by in ((one, other), (other, one)):
        number, affine = affine_of(walk, by, shape), affine_of(walk, each, shape)
        is_number = number is not None and not number.positions and not number.indices
        if isinstance(each, Affine) and affine is not None and number is not None and is_number:
            return [affine.times(number.constant)]
    one, other = map(walk.settled, operands)
    dims = joined_dims([one, other])
    for number, value in ((one, other), (other, one)):
        if walk.is_number(number):
            if value.is_extreme and number.factor <= 0:
                raise NotKnown("it multiplies what is not reduced")
            return [_spread(walk, replace(value, factor=value.factor * number.factor), dims)]
    return [product(walk, one, other, dims, "mul", ())]


def _divide(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    if eqn.outvars[0].aval.dtype.kind in "iu":
        return _elementwise(walk, eqn, operands)
    one, other = map(walk.settled, operands)
    dims = joined_dims([one, other])
    if other.partial:
        raise NotKnown("it divides by what is not reduced")
    if not other.is_zero and walk.is_number(other) and (other.factor > 0 or not one.is_extreme):
        return [_spread(walk, replace(one, factor=one.factor / other.factor), dims)]
    if other.is_zero:
        return _elementwise(walk, eqn, operands)
    inverse = replace(other, factor=1 / other.factor)
    return [product(walk, one, inverse, dims, "div", ())]


def _negate(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    if isinstance(operands[0], Affine):
        return [operands[0].times(-1)]
    value = walk.settled(operands[0])
    if value.is_extreme:
        raise NotKnown("it negates what is not reduced")
    return [replace(value, factor=-value.factor)]


def _extreme(name: str) -> PrimitiveRule:
    def rule(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
        bounds = [_bounds(walk, each) for each in operands]
        first, second = bounds
        if first and second and isinstance(operands[0], Affine) != isinstance(operands[1], Affine):
            for at, (here, there) in enumerate([(first, second), (second, first)]):
                is_first = here[0] >= there[1] if name == "max" else here[1] <= there[0]
                if is_first:
                    shape = tuple(eqn.outvars[0].aval.shape)
                    return [affine_of(walk, operands[at], shape) or walk.settled(operands[at])]
        one, other = map(walk.settled, operands)
        partial = one.partial | other.partial
        if partial and {one.combined_by, other.combined_by} - {name, ""}:
            raise NotKnown("it compares what is not reduced")
        if one.partial & (other.axes - other.partial) or other.partial & (one.axes - one.partial):
            raise NotKnown("it compares what is not reduced")
        return [walk.made(name, (), [one, other], joined_dims([one, other]), partial, name)]

    return rule


def _bounds(walk: Walk, value: GlobalValue) -> tuple[Any, Any] | None:
    """The smallest and the largest entry, where they are known."""
    if isinstance(value, Affine):
        return value.bounds(walk.sizes)
    return (value.factor, value.factor) if isinstance(value, Sharded) and walk.is_number(value) else None


_COMPARED: dict[str, Callable[[Any, Any, Any, Any], bool | None]] = {
    "lt": lambda a, b, c, d: True if b < c else False if a >= d else None,
    "le": lambda a, b, c, d: True if b <= c else False if a > d else None,
    "gt": lambda a, b, c, d: True if a > d else False if b <= c else None,
    "ge": lambda a, b, c, d: True if a >= d else False if b < c else None,
    "eq": lambda a, b, c, d: True if a == b == c == d else False if b < c or a > d else None,
    "ne": lambda a, b, c, d: False if a == b == c == d else True if b < c or a > d else None,
}


def _compare(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    spans = [_bounds(walk, each) for each in operands]
    if spans[0] is not None and spans[1] is not None:
        known = _COMPARED[eqn.primitive.name](*spans[0], *spans[1])
        if known is not None:
            return [Truth(known, len(eqn.outvars[0].aval.shape))]
    found = lookups.compared(walk, eqn.primitive.name, operands)
    if isinstance(found, tuple):
        return _compare(walk, eqn, list(found))
    if found is not None:
        return [found]
    if any(isinstance(each, Affine) for each in operands):  # what both shift by is the same
        shape = tuple(eqn.outvars[0].aval.shape)
        affine = [affine_of(walk, each, shape) for each in operands]
        if affine[0] is not None and affine[1] is not None:
            low, high = affine[0].plus(affine[1], -1).bounds(walk.sizes)
            known = _COMPARED[eqn.primitive.name](low, high, 0, 0)
            if known is not None:
                return [Truth(known, len(shape))]
            index, compare = affine[0].plus(affine[1], -1), _COMPARED[eqn.primitive.name]
            if (here := neighbours.compared_index(walk, index, lambda at: compare(at, at, 0, 0))) is not None:
                return [here]
    return _elementwise(walk, eqn, operands)


def _logical(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """``and``, ``or`` and ``not`` of truth values."""
    name = eqn.primitive.name
    if eqn.outvars[0].aval.dtype.kind != "b":
        return _elementwise(walk, eqn, operands)
    if (found := lookups.logical(name, operands)) is not None:
        return [found]
    if name == "not":
        (value,) = operands
        if isinstance(value, AtShard):
            return [replace(value, is_there=not value.is_there)]
        return (
            [replace(value, is_true=not value.is_true)]
            if isinstance(value, Truth)
            else _elementwise(walk, eqn, operands)
        )
    for choice, value in ((operands[0], operands[1]), (operands[1], operands[0])):
        if isinstance(choice, Truth):
            return [value if choice.is_true == (name == "and") else choice]
    return _elementwise(walk, eqn, operands)


def _select(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    which, *cases = operands
    if isinstance(which, Truth):
        return [cases[which.is_true]]
    if isinstance(which, AtShard):
        return [neighbours.where(walk, which, cases)]
    if isinstance(which, ShardIds):
        return [lookups.chosen(walk, which, cases)]
    if walk.is_number(which) and which.factor in range(len(cases)):
        return [cases[int(which.factor)]]
    chosen, values = walk.settled(which), list(map(walk.settled, cases))
    if chosen.partial:
        raise NotKnown("it chooses by what is not reduced")
    partials = {(value.partial, value.combined_by) for value in values if not value.is_zero}
    is_extreme = any(value.is_extreme for value in values)
    if len(partials) > 1 or (is_extreme and any(value.is_zero for value in values)):
        raise NotKnown("it chooses between what is reduced and what is not")
    partial, by = next(iter(partials), (frozenset[str](), ""))
    if partial & chosen.axes:
        raise NotKnown("it chooses by what the shards do not share")
    factor = next((value.factor for value in values if not value.is_zero), Fraction(1))
    ratios = [replace(value, factor=value.factor / factor) for value in values]
    return [walk.made("select", (), [chosen, *ratios], joined_dims([chosen, *values]), partial, by, factor)]


_RULES: dict[str, PrimitiveRule] = {
    **dict.fromkeys(names_of("elementwise", "homogeneous", "test", "extreme"), _elementwise),
    **dict.fromkeys(names_of("cast"), _same),
    **dict.fromkeys(("real", "imag", "conj", "complex", "reduce_precision"), _elementwise),
    "convert_element_type": _convert,
    "add": _add(1),
    "add_any": _add(1),
    "sub": _add(-1),
    "mul": _multiply,
    "div": _divide,
    "neg": _negate,
    "max": _extreme("max"),
    "min": _extreme("min"),
    **dict.fromkeys(_COMPARED, _compare),
    **dict.fromkeys(("and", "or", "not"), _logical),
    "select_n": _select,
}


ELEMENTWISE_RULES = {name: neighbours.also_overlapping(rule) for name, rule in _RULES.items()}
