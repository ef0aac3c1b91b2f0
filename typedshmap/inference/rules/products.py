"""Contractions: which dims they keep, and that they put the right ones together."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..facts import UNKNOWN, Fact, are_at_odds, meet, settled
from ..reader import Reader
from .odds import Odds
from .pointwise import owed_after


def dot_general(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """Batch dims, then what is left of the first operand, then what is left of the second."""
    left, right = facts
    product, odds = _product(eqn.params["dimension_numbers"], left, right)
    for kind, a, b in odds:
        if eqn.invars[0].aval.shape[a] > 1:
            where = f"{kind} dim {a} of the first operand and dim {b} of the second"
            reader.findings.append(Odds(eqn, where, left.dims[a].axes or (), right.dims[b].axes or ()))
    return [product]


@lru_cache(maxsize=4096)
def _product(numbers: Any, one: Fact, other: Fact) -> tuple[Fact, list[tuple[str, int, int]]]:
    """What is known of a product, and the dims of its operands that do not go together."""
    (contracted, batched), left, right = numbers, one.dims, other.dims
    pairs = [
        (kind, *pair)
        for kind, both in (("contracted", contracted), ("batch", batched))
        for pair in zip(*both, strict=True)
    ]
    odds = [(kind, a, b) for kind, a, b in pairs if are_at_odds(left[a], right[b])]
    dims = [meet(left[a], right[b]) for a, b in zip(*batched, strict=True)]
    for side, lying in enumerate((left, right)):
        used = {*contracted[side], *batched[side]}
        dims += [dim for at, dim in enumerate(lying) if at not in used]
    varying, owed = owed_after("dot_general", [one, other])
    return Fact(varying, owed, settled(tuple(dims))), odds


def convolution(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """The batch dim lies as the first operand's, the feature dim as the second's; windows overlap shards."""
    numbers, params = eqn.params["dimension_numbers"], eqn.params
    dims = [UNKNOWN] * len(facts[0].dims)
    if params["batch_group_count"] == 1:
        dims[numbers.out_spec[0]] = facts[0].dims[numbers.lhs_spec[0]]
    if params["feature_group_count"] == 1 and params["batch_group_count"] == 1:
        dims[numbers.out_spec[1]] = facts[1].dims[numbers.rhs_spec[0]]
    varying, owed = owed_after("conv_general_dilated", facts)
    return [Fact(varying, owed, settled(tuple(dims)))]


RULES = {"dot_general": dot_general, "conv_general_dilated": convolution}
