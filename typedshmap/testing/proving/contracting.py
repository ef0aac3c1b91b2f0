"""What operations make of the entries along some dims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from ..._jax.primitives import names_of, primitive
from .elementwise import is_narrow, product, refuse_narrow_sum
from .values import GlobalValue, NotKnown
from .walk import PrimitiveRule, Walk, joined, joined_dims, operand_shape, params_key, unsharded_along


def _reduce(combined_by: str) -> PrimitiveRule:
    def rule(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
        value, reduced = walk.settled(operands[0]), eqn.params["axes"]
        if value.partial and value.combined_by != combined_by:
            raise NotKnown("it reduces what is not reduced over the mesh")
        over = [axis for dim in reduced for axis in value.dims[dim] or ()]
        factor, solid = value.factor, tuple(dim for dim in reduced if value.dims[dim] is not None)
        if combined_by == "sum":
            factor *= prod(operand_shape(eqn)[dim] for dim in reduced if value.dims[dim] is None)
        dims = [axes for dim, axes in enumerate(value.dims) if dim not in reduced]
        partial = value.partial.union(over)
        if walk.is_number(value):
            return [walk.number(factor, dims)]
        is_linear = combined_by == "sum"
        operand = replace(value, factor=Fraction(1)) if is_linear else value
        free = tuple(dim for dim in reduced if value.dims[dim] is None)
        params = (solid, free)
        result = walk.made(
            f"reduce_{combined_by}", params, [operand], dims, partial, combined_by, factor if is_linear else Fraction(1)
        )
        return [refuse_narrow_sum(eqn, result)]

    return rule


def _dot(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    one, other = map(walk.settled, operands)
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    factor, over = Fraction(1), list[str]()
    for first, second in zip(left, right, strict=True):
        axes = joined(one.dims[first], other.dims[second])
        over.extend(axes or ())
        if axes is None:
            factor *= operand_shape(eqn)[first]
    if (one.partial or other.partial) and is_narrow(eqn.outvars[0].aval.dtype):
        raise NotKnown("it adds up parts of a sum in few bits")
    if set(over) & (one.partial | other.partial):
        raise NotKnown("it contracts over an axis of what is not reduced")
    dims = [joined(one.dims[first], other.dims[second]) for first, second in zip(left_batch, right_batch, strict=True)]
    dims += [axes for dim, axes in enumerate(one.dims) if dim not in (*left, *left_batch)]
    dims += [axes for dim, axes in enumerate(other.dims) if dim not in (*right, *right_batch)]
    numbers = tuple(tuple(map(tuple, each)) for each in eqn.params["dimension_numbers"])
    made = product(walk, one, other, [], "dot", (numbers, len(one.dims), len(other.dims)))
    return [replace(
        made, factor=factor * made.factor, dims=tuple(dims), partial=made.partial.union(over),
        combined_by="sum" if made.partial or over else "",
    )]  # fmt: skip


def _along(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """What works along some dims, which are to be whole, and does alike at all entries of the others."""
    found, rank = primitive(eqn.primitive.name), len(operand_shape(eqn))
    dims = eqn.params[found.along]
    if found.along == "fft_lengths":
        dims = range(rank - len(dims), rank)
    along = [dims] if isinstance(dims, int) else list(dims)
    values = unsharded_along(walk, eqn, list(map(walk.settled, operands)), along)
    if any(value.partial for value in values) and not (found.is_linear and len(values) == 1):
        raise NotKnown("its operand is not reduced")
    if values[0].is_extreme:
        raise NotKnown("its operand is not reduced")
    over = joined_dims(values)
    is_reduced = len(eqn.outvars[0].aval.shape) != len(over)
    kept = [axes for dim, axes in enumerate(over) if not (is_reduced and dim in along)]
    params, partial = params_key(eqn), values[0].partial
    made = [walk.made(eqn.primitive.name, (at, params), values, kept, partial, "sum") for at in range(len(eqn.outvars))]
    return [refuse_narrow_sum(eqn, value, at) for at, value in enumerate(made)]


_ALONG = ("axes", "axis", "dimension", "fft_lengths")
CONTRACTING_RULES: dict[str, PrimitiveRule] = {
    **{name: _along for name in names_of("reducing", "ordering") if primitive(name).along in _ALONG},
    "rev": _along,
    "reduce_sum": _reduce("sum"),
    "reduce_max": _reduce("max"),
    "reduce_min": _reduce("min"),
    "dot_general": _dot,
}
