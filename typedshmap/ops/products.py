"""What `einsum` and `take` share: a result whose dims are those of the operands, and the sum over those that go."""

from __future__ import annotations

from dataclasses import dataclass

from .call import Call, Laid
from .operands import Operand, local, solve
from .shapes import refuse_lost_varying
from .splits import Splits, refuse_addends_of_shards, splits_of
from .sums import Sums, plan_sums


@dataclass(frozen=True, slots=True)
class Product:
    """A plan.

    Attributes:
      splits: per name its mesh axes.
      sums: the sums over mesh axes.
      result: how the result lies.
    """

    splits: Splits
    sums: Sums
    result: Laid


def plan_product(call: Call, operands: list[Operand]) -> Product:
    """Plan an operation in which every dim has one name.

    Raises:
      ShapeError, PatternError, VaryingError: for operands that do not go together, or a result that
        says otherwise than they do.
    """
    extents = solve(call, operands, {})
    dots = max((operand.laid.dots for operand in operands), default=0)
    right = call.lay(-1, dots=dots)
    splits = splits_of(call, operands, extents, ())
    refuse_addends_of_shards(call, operands, splits)
    owed = {axis: name for name, axes in splits.items() if name not in call.result.names for axis in axes}
    owed |= {axis: f"+{axis}" for operand in operands for axis in sorted(operand.laid.unreduced)}
    inherited = [splits.get(place.names[0], ()) for place in right.places]
    shapes = [local(extents[p.names[0]], s, call.region.sizes) for p, s in zip(right.places, inherited, strict=True)]
    sums = plan_sums(call, right, inherited, owed, shapes)
    refuse_lost_varying(call, operands, right)
    return Product(splits, sums, right)
