"""The rules of operations on single entries."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np

from . import looking_up, neighbours
from .global_values import Affine, AtShard, DimSharding, GlobalValue, NotKnown, OfIds, Sharded
from .walk import Walk, is_narrow, joined_dims, params_key, parts_of, refuse_narrow_sum, result_shape


def same(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """The same numbers, perhaps with another type in JAX."""
    return operands[: len(eqn.outvars)]


def entry_by_entry(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Any function of the entries at the same place."""
    values = [walk.settled(operand).reduced() for operand in operands]
    if len(result_shape(eqn)) != max(len(value.dims) for value in values):
        raise NotKnown("it adds or drops a dim")
    params = params_key(eqn, "accuracy", "sharding")
    return [walk.made(eqn.primitive.name, (at, params), values, joined_dims(values)) for at in range(len(eqn.outvars))]


def convert(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """The same numbers, if the new dtype has them."""
    (value,) = operands
    old, new = eqn.invars[0].aval.dtype, eqn.params["new_dtype"]
    if old == new or (isinstance(value, Affine | OfIds) and new.kind in "iu" and _keeps_numbers(old, new)):
        return [value]
    value = walk.settled(value)
    if walk.is_number(value) and new.kind == "b":
        return [walk.number(not value.is_zero, (None,) * len(value.dims))]
    if walk.is_number(value) and jnp.issubdtype(new, jnp.inexact):  # floats count as exact
        return [value]
    if not _keeps_numbers(old, new):
        return entry_by_entry(walk, eqn, [value])
    return [walk.linear("convert", str(new), value, value.dims)]


def _keeps_numbers(old: Any, new: Any) -> bool:
    """Whether a dtype has all numbers of another; floats of 32 bits or more count as having all integers."""
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


def _spread(walk: Walk, value: Sharded, dims: Sequence[DimSharding]) -> Sharded:
    """A value with the dims of the value with which it is combined; a number is the same along all dims."""
    return value.with_dims([None] * len(dims) if walk.is_number(value) else dims)


def add(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """``add``, ``add_any`` and ``sub``."""
    sign = -1 if eqn.primitive.name == "sub" else 1
    first, second = (walk.affine(operand, result_shape(eqn)) for operand in operands)
    if eqn.outvars[0].aval.dtype.kind in "iu":
        if first is not None and second is not None:
            return [first.plus(second, sign)]
        if sign < 0 and (ids := looking_up.minus_first(walk, *operands)) is not None:
            return [ids]
    left, right = map(walk.settled, operands)
    if right.is_extreme and sign < 0:
        raise NotKnown("it negates an unreduced value")
    right, dims = right.times(sign), joined_dims([left, right])
    if left.is_zero or right.is_zero:
        return [_spread(walk, right if left.is_zero else left, dims)]
    if left.partial != right.partial or left.is_extreme or right.is_extreme:
        raise NotKnown("it adds values that are not partial sums over the same axes")
    if left.term == right.term and left.dims == right.dims:
        total = replace(left, factor=left.factor + right.factor)
    elif not left.factor or not right.factor:  # parts whose sum is zero do not change the sum
        total = (left if left.factor else right).with_dims(dims)
    else:
        total = walk.linear("add", (), left, dims, right.times(1 / left.factor))
    return [refuse_narrow_sum(eqn, total)]


def product(walk: Walk, left: Sharded, right: Sharded, name: str, params: Any, dims: Sequence[DimSharding]) -> Sharded:
    """A value that is linear in two operands."""
    if left.partial & right.axes or right.partial & left.axes or left.is_extreme or right.is_extreme:
        raise NotKnown("it multiplies an unreduced value")
    operands, partial = [replace(value, factor=Fraction(1)) for value in (left, right)], left.partial | right.partial
    return walk.made(name, params, operands, dims, partial, "sum", left.factor * right.factor)


def multiply(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """A product, which scales parts if one operand is a number."""
    first, second = (walk.affine(operand, result_shape(eqn)) for operand in operands)
    if first and second and any(isinstance(operand, Affine) for operand in operands):
        for value, by in ((first, second), (second, first)):
            if by.number is not None:
                return [value.plus(value, by.number - 1)]
    left, right = map(walk.settled, operands)
    dims = joined_dims([left, right])
    for number, value in ((left, right), (right, left)):
        if walk.is_number(number):
            if value.is_extreme and number.factor <= 0:
                raise NotKnown("it multiplies an unreduced value")
            return [_spread(walk, value.times(number.factor), dims)]
    return [product(walk, left, right, "mul", (), dims)]


def divide(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """A quotient, linear in the dividend."""
    if eqn.outvars[0].aval.dtype.kind in "iu":
        return entry_by_entry(walk, eqn, operands)
    value, by = walk.settled(operands[0]), walk.settled(operands[1]).reduced("it divides by an unreduced value")
    if by.is_zero:
        return entry_by_entry(walk, eqn, operands)
    inverse = replace(by, factor=1 / by.factor)
    if walk.is_number(by):
        return multiply(walk, eqn, [value, inverse])
    return [product(walk, value, inverse, "div", (), joined_dims([value, by]))]


def negate(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """The negative, also for parts of a sum."""
    if isinstance(operands[0], Sharded) and operands[0].is_extreme:
        raise NotKnown("it negates an unreduced value")
    return multiply(walk, eqn, [operands[0], walk.number(-1, (None,) * len(result_shape(eqn)))])


def extreme(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """``max`` and ``min``, also for parts of such extremes."""
    name = eqn.primitive.name
    left, right = map(walk.settled, operands)
    is_other = {left.combined_by, right.combined_by} - {name, ""}
    if is_other or left.partial & right.placed or right.partial & left.placed:
        raise NotKnown("it compares an unreduced value")
    return [walk.made(name, (), [left, right], joined_dims([left, right]), left.partial | right.partial, name)]


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
"""Each comparison by its name, for two numbers."""


def compare(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """A comparison, decided by the bounds of the difference if possible."""
    is_true, shape, (left, right) = COMPARISONS[eqn.primitive.name], result_shape(eqn), operands
    if (is_own := looking_up.compared(walk, eqn.primitive.name, left, right)) is not None:
        return [is_own]
    if walk.is_number(left) and walk.is_number(right):
        return [walk.number(is_true(left.factor, right.factor), (None,) * len(shape))]
    first, second = walk.affine(left, shape), walk.affine(right, shape)
    if first is not None and second is not None:
        difference = first.plus(second, -1)
        low, high = difference.bounds(walk.sizes)
        if not low < 0 < high and is_true(low, 0) == is_true(high, 0):
            return [walk.number(is_true(low, 0), (None,) * len(shape))]
        if (at_shard := neighbours.compared_index(walk, difference, lambda at: is_true(at, 0))) is not None:
            return [at_shard]
    return entry_by_entry(walk, eqn, operands)


def conjunction(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """``and``."""
    both = looking_up.both_bounds(*operands)
    return entry_by_entry(walk, eqn, operands) if both is None else [both]


def select(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """One of several operands by a predicate, or by its number."""
    which, *cases = operands
    if isinstance(which, AtShard):
        return [neighbours.where(walk, which, cases)]
    if isinstance(which, OfIds):
        return [looking_up.chosen(walk, which, cases)]
    if walk.is_number(which) and which.factor in range(len(cases)):
        return [cases[int(which.factor)]]
    chosen = walk.settled(which).reduced("it chooses by an unreduced value")
    values = list(map(walk.settled, cases))
    partial, by = parts_of(values, "it chooses between values that are not partial sums over the same axes")
    if partial & chosen.axes:
        raise NotKnown("it chooses by what the shards do not share")
    factor = next((value.factor for value in values if value.factor), Fraction(1))
    ratios = [value.times(1 / factor) for value in values]
    return [walk.made("select", (), [chosen, *ratios], joined_dims([chosen, *values]), partial, by, factor)]
