"""Decide whether a gradient passes through an equation, or a value with a wrong type, by following tangents forward.

A mark is an additional axis over which a value varies, so that the rules of branches and loops propagate it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import Any

from .. import _jax
from ..notation.layout import NO_AXES
from .facts import CALLBACKS, FactInterpreter, TransferRule
from .interpreter import CLAIM
from .lattice import AxisSet, ShardingFact, unknown, varying_of

# No mesh axis has such a name.
_TANGENT, _PASSED = (frozenset([mark]) for mark in ("has a tangent", "has a gradient that passes"))
_TANGENTS = _TANGENT | _PASSED
UntypedResults = Mapping[int, Mapping[int, AxisSet]]
"""By the id of an equation and the place of a result, the axes over which it varies against its type."""


def has_gradient_through(
    interpreter: FactInterpreter,
    jaxpr: Any,
    differentiated: Sequence[bool],
    eqns: Container[int] = (),
    untyped: UntypedResults = {},  # noqa: B006 (nothing is written into it)
) -> bool:
    """Whether the gradient of a result passes through one of some equations, or a value that varies against its type.

    JAX sums the cotangent of such a value over the shards, although each shard needs its own, and takes the cotangent
    of its factors from one shard. A value without a tangent that later becomes varying in JAX's types is harmless.

    Args:
      interpreter: the interpreter of the region.
      jaxpr: its body.
      differentiated: for each operand of the body whether it is differentiated.
      eqns: the ids of the equations.
      untyped: the values.
    """

    def marked(rule: TransferRule, flow: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
        results = rule(flow, eqn, facts)
        return [fact._replace(varying=marks(eqn, at, facts, fact.varying)) for at, fact in enumerate(results)]

    def marks(eqn: Any, at: int, facts: list[ShardingFact], axes: AxisSet) -> AxisSet:
        name, aval, wrong = eqn.primitive.name, eqn.outvars[at].aval, untyped.get(id(eqn), {}).get(at, NO_AXES)
        typed, is_custom = _jax.array.manual_type_in(aval), name.startswith("custom_")
        axes = (axes | wrong) - typed.varying - typed.unreduced
        if name in CALLBACKS or name == "stop_gradient" or not _jax.array.is_inexact(aval.dtype):
            return axes - _TANGENTS
        if is_custom:  # a function with its own derivative has a tangent, whatever computes it
            axes |= varying_of(facts) & _TANGENTS
        is_wrong = bool(axes - _TANGENTS) if wrong or is_custom else _has_untyped_factor(eqn, facts)
        return axes | _PASSED if axes >= _TANGENT and (is_wrong or id(eqn) in eqns) else axes

    followed = _jax.primitives.names_of("call", "loop", "branch")
    rules = {name: partial(marked, interpreter.rules[name]) for name in followed} | {CLAIM: interpreter.rules[CLAIM]}
    flow = FactInterpreter(interpreter.sizes, False, {}, interpreter.claim_equations)
    flow.rules = defaultdict(lambda: partial(marked, _pass_marks), rules)
    entering = [
        unknown(_TANGENT if has and _jax.array.is_inexact(var.aval.dtype) else NO_AXES, len(var.aval.shape))
        for var, has in zip(jaxpr.invars, differentiated, strict=True)
    ]
    return varying_of(flow.interpret(jaxpr, entering)) >= _PASSED


def _pass_marks(flow: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A result has the marks of all operands; a result of a cast or a collective has only those of its operand."""
    is_one_by_one = _jax.primitives.primitive(eqn.primitive.name).kind in ("cast", "collective")
    is_one_by_one = is_one_by_one and len(facts) == len(eqn.outvars)
    of_results = [[fact] for fact in facts] if is_one_by_one else [facts] * len(eqn.outvars)
    return [
        unknown(varying_of(of_result), len(getattr(var.aval, "shape", ())))
        for var, of_result in zip(eqn.outvars, of_results, strict=True)
    ]


def _has_untyped_factor(eqn: Any, facts: list[ShardingFact]) -> bool:
    """Whether the derivative with respect to an operand depends on a value that JAX types wrongly."""
    if not varying_of(facts) - _TANGENTS or _jax.jaxpr.inner_jaxprs(eqn) or _jax.jaxpr.collective_operation(eqn):
        return False
    ways = _jax.primitives.primitive(eqn.primitive.name).linear_in(facts)
    for fact in facts:
        factors = next((others for terms, others in ways if any(term is fact for term in terms)), facts)
        if fact.varying >= _TANGENT and varying_of(factors) - _TANGENTS:
            return True
    return False
