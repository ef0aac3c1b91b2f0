"""A rule per primitive, by its name."""

from __future__ import annotations

from collections.abc import Mapping

from ..reader import Rule
from . import calls, collectives, pointwise, products, shapes

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(pointwise.ALIKE, pointwise.alike),
    **dict.fromkeys(pointwise.UNARY, pointwise.unary),
    **dict.fromkeys(pointwise.NARY, pointwise.nary),
    **shapes.RULES,
    **products.RULES,
    **collectives.RULES,
    **calls.RULES,
}
