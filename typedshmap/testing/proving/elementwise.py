"""What operations make of each entry by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax.numpy as jnp

from ...inference.interpreter import CLAIM
from . import largest, lookups, neighbours
from .values import Affine, AtShard, Best, DimSharding, GlobalValue, NotKnown, Sharded, ShardIds, Truth
from .walk import PrimitiveRule, Walk, joined_dims, params_key


def _same(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    return operands


def _elementwise(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    values = list(map(walk.settled, operands))
    if any(value.partial for value in values):
        raise NotKnown("its operand is not reduced")
    params = params_key(eqn, "accuracy", "sharding")
    return [walk.made(eqn.primitive.name, (at, params), values, joined_dims(values)) for at in range(len(eqn.outvars))]


def _convert(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    (value,) = operands
    old, new = eqn.invars[0].aval.dtype, eqn.params["new_dtype"]
    if isinstance(value, Affine | ShardIds | Best) and old.kind in "iu" and new.kind in "iu":
        return [value]
    if isinstance(value, Truth) and new.kind != "b":
        return [walk.number(Fraction(value.is_true), (None,) * value.rank)]
    value = walk.settled(value)
    if old.kind == "b" or (old.kind not in "iu" and new.kind in "iub"):
        return _elementwise(walk, eqn, [value])
    if walk.is_number(value) or old == new:
        return [value]
    if value.combined_by == "sum" and is_narrow(new) and not is_narrow(old):
        raise NotKnown("it rounds parts of a sum")
    operand = replace(value, factor=Fraction(1))
    return [walk.made("convert", str(new), [operand], value.dims, value.partial, value.combined_by, value.factor)]


def is_narrow(dtype: Any) -> bool:
    """Whether floats of a dtype are rounded so much that it matters in which order they are added."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def _spread(walk: Walk, value: Sharded, dims: Sequence[DimSharding]) -> Sharded:
    """A value with the dims of what it is combined with; a number is the same along all of them."""
    return value.with_dims([None] * len(dims) if walk.is_number(value) else dims)


def _sum_of(walk: Walk, one: Sharded, other: Sharded, sign: int) -> Sharded:
    other = replace(other, factor=sign * other.factor)
    dims = joined_dims([one, other])
    for zero, value in ((one, other), (other, one)):
        if zero.is_zero:
            return _spread(walk, value, dims)
    if one.partial != other.partial or "max" in (one.combined_by, other.combined_by) or one.combined_by == "min":
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
            for best, first in ((operands[0], affine[1]), (operands[1], affine[0])):
                if isinstance(best, Best) and sign > 0:
                    return [largest.from_start(walk, best, first)]
            if sign < 0 and (ids := lookups.minus_first(walk, *operands)) is not None:
                return [ids]
        one, other = map(walk.settled, operands)
        return [_sum_of(walk, one, other, sign)]

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
    if one.partial & other.axes or other.partial & one.axes or {one.combined_by, other.combined_by} & {"max", "min"}:
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
            if value.combined_by in ("max", "min") and number.factor <= 0:
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
    if not other.is_zero and walk.is_number(other) and (other.factor > 0 or one.combined_by != "max"):
        return [_spread(walk, replace(one, factor=one.factor / other.factor), dims)]
    if other.is_zero:
        return _elementwise(walk, eqn, operands)
    inverse = replace(other, factor=1 / other.factor)
    return [product(walk, one, inverse, dims, "div", ())]


def _negate(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    if isinstance(operands[0], Affine):
        return [operands[0].times(-1)]
    value = walk.settled(operands[0])
    if value.combined_by in ("max", "min"):
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
    if eqn.primitive.name == "eq" and (best := largest.has_best(*operands)) is not None:
        unsharded = walk.settled(_elementwise(walk, eqn, [best[0], best[0]])[0])
        return [Best("has it", best[0], best[1], unsharded)]
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
    if isinstance(which, Best):
        number, (_, here) = largest.number_elsewhere(walk, which, cases), cases
        assert isinstance(here, Best)
        unsharded = walk.settled(_select(walk, eqn, [which.value, cases[0], here.value])[0])
        return [replace(here, stage="chosen", value=unsharded, otherwise=number)]
    if isinstance(which, ShardIds):
        return [lookups.chosen(walk, which, cases)]
    if isinstance(which, Sharded) and walk.is_number(which):
        return [cases[int(which.factor)]]
    chosen, values = walk.settled(which), list(map(walk.settled, cases))
    if chosen.partial:
        raise NotKnown("it chooses by what is not reduced")
    partials = {(value.partial, value.combined_by) for value in values if not value.is_zero}
    if len(partials) > 1 or (any(value.is_zero for value in values) and {"max", "min"} & {by for _, by in partials}):
        raise NotKnown("it chooses between what is reduced and what is not")
    partial, by = next(iter(partials), (frozenset[str](), ""))
    if partial & chosen.axes:
        raise NotKnown("it chooses by what the shards do not share")
    factor = next((value.factor for value in values if not value.is_zero), Fraction(1))
    ratios = [replace(value, factor=value.factor / factor) for value in values] if by != "max" else values
    factor = factor if by != "max" else Fraction(1)
    return [walk.made("select", (), [chosen, *ratios], joined_dims([chosen, *values]), partial, by, factor)]


SAME_NAMES = (
    "pvary pcast copy copy_p stop_gradient optimization_barrier name sharding_constraint mesh_cast preduced "
    "reduced_vary_cast reduced_vary_cast_p vary_unreduced_cast vary_unreduced_cast_p"
)
ELEMENTWISE_NAMES = (
    "abs acos acosh and asin asinh atan atan2 atanh cbrt ceil clamp complex conj cos cosh digamma erf erf_inv erfc "
    "exp exp2 expm1 floor imag integer_pow is_finite lgamma log log1p logistic nextafter or popcount pow real rem "
    "round rsqrt shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square tan tanh xor "
    "bitcast_convert_type reduce_precision one_minus_square log2 population_count clz"
)


_RULES: dict[str, PrimitiveRule] = {
    **dict.fromkeys(ELEMENTWISE_NAMES.split(), _elementwise),
    **dict.fromkeys(SAME_NAMES.split(), _same),
    CLAIM: _same,
    **dict.fromkeys(("add", "add_any"), _add(1)),
    "sub": _add(-1),
    "mul": _multiply,
    "div": _divide,
    "neg": _negate,
    "max": _extreme("max"),
    "min": _extreme("min"),
    **dict.fromkeys(_COMPARED, _compare),
    **dict.fromkeys(("and", "or", "not"), _logical),
    "select_n": _select,
    "convert_element_type": _convert,
}


ELEMENTWISE_RULES = {name: neighbours.also_overlapping(rule) for name, rule in _RULES.items()}
