"""Contractions: which dims they keep, and that they put the right ones together."""

from __future__ import annotations

from typing import Any

from ..facts import UNKNOWN, Fact, are_at_odds, meet, settled
from ..reader import Reader
from .odds import Odds
from .pointwise import owed_after


def dot_general(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """Batch dims, then what is left of the first operand, then what is left of the second."""
    (contracted, batched) = eqn.params["dimension_numbers"]
    left, right = facts[0].dims, facts[1].dims
    shape = eqn.invars[0].aval.shape
    for kind, pairs in (("contracted", contracted), ("batch", batched)):
        for a, b in zip(*pairs, strict=True):
            if shape[a] > 1 and are_at_odds(left[a], right[b]):
                where = f"{kind} dim {a} of the first operand and dim {b} of the second"
                reader.findings.append(Odds(eqn, where, left[a].axes or (), right[b].axes or ()))
    dims = [meet(left[a], right[b]) for a, b in zip(*batched, strict=True)]
    for side, lying in enumerate((left, right)):
        used = {*contracted[side], *batched[side]}
        dims += [dim for at, dim in enumerate(lying) if at not in used]
    varying, owed = owed_after("dot_general", facts)
    return [Fact(varying, owed, settled(dims))]


def convolution(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """The batch dim lies as the first operand's, the feature dim as the second's; windows overlap shards."""
    numbers, params = eqn.params["dimension_numbers"], eqn.params
    dims = [UNKNOWN] * len(facts[0].dims)
    if params["batch_group_count"] == 1:
        dims[numbers.out_spec[0]] = facts[0].dims[numbers.lhs_spec[0]]
    if params["feature_group_count"] == 1 and params["batch_group_count"] == 1:
        dims[numbers.out_spec[1]] = facts[1].dims[numbers.rhs_spec[0]]
    varying, owed = owed_after("conv_general_dilated", facts)
    return [Fact(varying, owed, settled(dims))]


RULES = {"dot_general": dot_general, "conv_general_dilated": convolution}
