"""The rules of operations along dims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from ..._jax.primitives import primitive
from .elementwise import product
from .global_values import GlobalValue, NotKnown, axes_along
from .walk import Walk, is_narrow, joined, joined_dims, operand_shape, params_key, refuse_narrow_sum, result_shape


def reduce_dims(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """``reduce_sum``, ``reduce_max`` and ``reduce_min``: along sharded dims they make parts."""
    name, value, along = eqn.primitive.name, walk.settled(operands[0]), eqn.params["axes"]
    by = name.removeprefix("reduce_")
    if value.combined_by not in ("", by):
        raise NotKnown("it reduces an unreduced value by a different operation")
    over = [axis for dim in along for axis in axes_along(value.dims[dim])]
    solid = tuple(dim for dim in along if value.dims[dim] is not None)
    free = tuple(dim for dim in along if value.dims[dim] is None)
    factor = value.factor * prod(operand_shape(eqn)[dim] for dim in free) if by == "sum" else value.factor
    dims = [axes for dim, axes in enumerate(value.dims) if dim not in along]
    if walk.is_number(value):
        return [walk.number(factor, dims)]
    operand, factor = (replace(value, factor=Fraction(1)), factor) if by == "sum" else (value, Fraction(1))
    made = walk.made(name, (solid, free), [operand], dims, value.partial.union(over), by, factor)
    return [refuse_narrow_sum(eqn, made)]


def dot(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """A contraction; over sharded dims it makes a partial sum."""
    left, right = map(walk.settled, operands)
    (left_over, right_over), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    factor, over, parts = 1, list[str](), left.partial | right.partial
    for first, second in zip(left_over, right_over, strict=True):
        axes = joined(left.dims[first], right.dims[second])
        over.extend(axes_along(axes))
        if axes is None:
            factor *= operand_shape(eqn)[first]
    if parts and is_narrow(eqn.outvars[0].aval.dtype):
        raise NotKnown("it adds up parts of a sum in few bits")
    if parts.intersection(over):
        raise NotKnown("it contracts over an axis of an unreduced value")
    dims = [joined(left.dims[a], right.dims[b]) for a, b in zip(left_batch, right_batch, strict=True)]
    dims += [axes for dim, axes in enumerate(left.dims) if dim not in (*left_over, *left_batch)]
    dims += [axes for dim, axes in enumerate(right.dims) if dim not in (*right_over, *right_batch)]
    numbers = tuple(tuple(map(tuple, pair)) for pair in eqn.params["dimension_numbers"])
    params = numbers, len(left.dims), len(right.dims)
    made = product(walk, left, right, "dot", params, dims)
    return [made.partial_over(made.partial.union(over), "sum").times(factor)]


def along_dims(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Operations along some dims, which must be unsharded, and the same at all entries of the other dims."""
    known, rank = primitive(eqn.primitive.name), len(operand_shape(eqn))
    dims = eqn.params[known.along]
    if known.along == "fft_lengths":
        dims = range(rank - len(dims), rank)
    along = [dims] if isinstance(dims, int) else list(dims)
    values = walk.solid_along(eqn, list(map(walk.settled, operands)), along)
    is_sum_of_parts = known.is_linear and len(values) == 1 and not values[0].is_extreme
    if not known.is_moving and not is_sum_of_parts:
        values = [value.reduced() for value in values]
    over = joined_dims(values)
    is_reduced = len(result_shape(eqn)) != len(over)
    kept = [axes for dim, axes in enumerate(over) if not (is_reduced and dim in along)]
    name, params = eqn.primitive.name, [(at, params_key(eqn)) for at in range(len(eqn.outvars))]
    if known.is_moving:
        return [walk.rearranged(name, which, values[0], kept) for which in params]
    made = [walk.made(name, which, values, kept, values[0].partial, "sum") for which in params]
    return [refuse_narrow_sum(eqn, value, at) for at, value in enumerate(made)]
