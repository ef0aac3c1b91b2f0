"""What each primitive makes of global arrays, whose parts the shards hold."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ... import _jax
from .collectives import COLLECTIVE_RULES
from .contracting import CONTRACTING_RULES
from .control import CONTROL_RULES
from .elementwise import ELEMENTWISE_RULES
from .indexing import INDEXING_RULES
from .moving import MOVING_RULES
from .values import GlobalValue, NotKnown, Unknown
from .walk import OutOfTime, PrimitiveRule, Walk, operand_shape, params_key


def _opaque(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """An operation of which only its name is known, of operands that every shard has whole."""
    name = eqn.primitive.name
    if _jax.jaxpr.inner_jaxprs(eqn) or "callback" in name or "pallas" in name or _jax.jaxpr.has_effects(eqn):
        raise NotKnown(f"nothing is known of {name}")
    if walk.longer(_jax.jaxpr.named_axes(eqn)):
        raise NotKnown(f"nothing is known of {name}")
    values = [walk.unsharded(value, operand_shape(eqn, at)) for at, value in enumerate(operands)]
    params = (params_key(eqn, "sharding", "out_sharding"), tuple(operand_shape(eqn, at) for at in range(len(operands))))
    return [
        walk.made(name, (at, params), values, ((),) * len(var.aval.shape)) for at, var in enumerate(eqn.outvars)
    ]  # fmt: skip


def _answering(rule: PrimitiveRule) -> PrimitiveRule:
    """A rule, of which results are unknown where it knows nothing, with the place of the first such equation."""

    def answered(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
        if time.monotonic() > walk.deadline:
            raise OutOfTime
        before, walk.place = walk.place, _jax.source.equation_place(eqn) or walk.place
        try:
            return rule(walk, eqn, operands)
        except NotKnown as error:
            lost = next((each for each in operands if isinstance(each, Unknown)), None)
            return [lost or Unknown(walk.place, str(error))] * len(eqn.outvars)
        finally:
            walk.place = before

    return answered


_BY_MODULE = (CONTROL_RULES, ELEMENTWISE_RULES, CONTRACTING_RULES, MOVING_RULES, INDEXING_RULES, COLLECTIVE_RULES)

RULES: dict[str, PrimitiveRule] = defaultdict(
    lambda: _answering(_opaque),
    {name: _answering(rule) for rules in _BY_MODULE for name, rule in rules.items()},
)
"""By primitive what its results are."""
