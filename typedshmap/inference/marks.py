"""Follow marks through a jaxpr: whether a result comes of an equation, and where a gradient passes a wrong type.

A mark stands in a fact as one more axis over which a value varies, so that the transfer rules hand it on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

from .. import _jax
from .facts import CALLBACKS, FactInterpreter, TransferRule
from .interpreter import CLAIM
from .lattice import NO_AXES, AxisSet, ShardingFact, add_varying, invarying, unknown, varying_of
from .sums import factors_of

MarkRule = Callable[[Any, int, "list[ShardingFact]", ShardingFact], ShardingFact]
"""The fact of a result with its marks, from its equation, its place, the facts of the operands, and its own."""

# No mesh axis is called so.
_USED, _TANGENT, _WRONG = (frozenset([mark]) for mark in ("is used", "has a tangent", "has a wrong gradient"))
_TANGENTS = _TANGENT | _WRONG


def is_used(interpreter: FactInterpreter, jaxpr: Any, eqns: Container[int]) -> bool:
    """Whether what one of some equations computes reaches a result of the jaxpr, or the world outside.

    Args:
      eqns: the ids of the equations.
    """

    def mark(eqn: Any, at: int, operands: list[ShardingFact], result: ShardingFact) -> ShardingFact:
        return add_varying(result, _USED) if id(eqn) in eqns else result

    marked = _Marking(interpreter, mark)
    results = marked.interpret(jaxpr, [invarying(len(var.aval.shape)) for var in jaxpr.invars])
    return varying_of(results) | marked.marking.emitted >= _USED


def has_wrong_gradient(interpreter: FactInterpreter, jaxpr: Any, untyped: Mapping[int, Mapping[int, AxisSet]]) -> bool:
    """Whether the gradient of a result passes a value that JAX types as invarying though it varies.

    JAX sums the cotangent of such a value over shards that each need their own, and takes that of what it is multiplied
    with from one shard alone. Nothing is wrong with one that has no tangent and becomes varying in JAX's types, too.

    Args:
      untyped: by the id of an equation and the place of a result, the axes over which it varies against its type.
    """

    def mark(eqn: Any, at: int, operands: list[ShardingFact], result: ShardingFact) -> ShardingFact:
        typed = _jax.array.manual_type_in(eqn.outvars[at].aval)
        marks = result.varying | result.unreduced | untyped.get(id(eqn), {}).get(at, NO_AXES)
        marks = _differentiable(eqn, at, operands, marks - typed.varying - typed.unreduced)
        begins = at in untyped.get(id(eqn), {}) or eqn.primitive.name.startswith("custom_")
        is_wrong = marks - _TANGENTS if begins else _has_untyped_factor(eqn, operands)
        return ShardingFact(marks | _WRONG if marks >= _TANGENT and is_wrong else marks, NO_AXES, result.dims)

    return _reaches_result(interpreter, jaxpr, mark, [True] * len(jaxpr.invars))


def has_gradient(
    interpreter: FactInterpreter, jaxpr: Any, eqns: Container[int], differentiated: Sequence[bool]
) -> bool:
    """Whether the gradient of a result passes one of some equations.

    Args:
      eqns: the ids of the equations.
      differentiated: by which operands of the jaxpr.
    """

    def mark(eqn: Any, at: int, operands: list[ShardingFact], result: ShardingFact) -> ShardingFact:
        marks = _differentiable(eqn, at, operands, result.varying | result.unreduced)
        is_passed = id(eqn) in eqns and marks >= _TANGENT
        return ShardingFact(marks | _WRONG if is_passed else marks, NO_AXES, result.dims)

    return _reaches_result(interpreter, jaxpr, mark, differentiated)


def _has_untyped_factor(eqn: Any, operands: list[ShardingFact]) -> bool:
    """Whether the derivative of an operation by one of its operands depends on a value that JAX types wrongly."""
    name = eqn.primitive.name
    if not varying_of(operands) - _TANGENTS or _jax.jaxpr.inner_jaxprs(eqn) or _jax.jaxpr.collective_operation(eqn):
        return False
    for at, fact in enumerate(operands):
        factors = factors_of(name, operands, at)
        if fact.varying >= _TANGENT and varying_of(operands if factors is None else factors) - _TANGENTS:
            return True
    return False


def _differentiable(eqn: Any, at: int, operands: list[ShardingFact], marks: AxisSet) -> AxisSet:
    """The marks of a result, with those of tangents where it has one."""
    name = eqn.primitive.name
    if name in CALLBACKS or name == "stop_gradient" or not _jax.array.is_inexact(eqn.outvars[at].aval.dtype):
        return marks - _TANGENTS
    # What has a derivative of its own has one whatever computes it.
    return marks | (varying_of(operands) & _TANGENTS) if name.startswith("custom_") else marks


def _reaches_result(interpreter: FactInterpreter, jaxpr: Any, mark: MarkRule, differentiated: Sequence[bool]) -> bool:
    """Whether a result has the mark of a wrong gradient, where some operands have a tangent."""
    entering = [
        add_varying(
            invarying(len(var.aval.shape)), _TANGENT if has and _jax.array.is_inexact(var.aval.dtype) else NO_AXES
        )
        for var, has in zip(jaxpr.invars, differentiated, strict=True)
    ]
    return varying_of(_Marking(interpreter, mark).interpret(jaxpr, entering)) >= _WRONG


class _Marking(FactInterpreter):
    """An interpreter whose facts are marks; nothing varies by itself."""

    def __init__(self, interpreter: FactInterpreter, mark: MarkRule) -> None:
        super().__init__(interpreter.sizes, False, {}, interpreter.claim_equations)
        self.rules = self.marking = _MarkingRules(interpreter.rules, mark)

    def split_axes(self, axes: AxisSet) -> AxisSet:
        return axes


class _MarkingRules(dict[str, TransferRule]):
    """The transfer rules, with a mark on each result; what has no rule hands on all marks of its operands.

    Attributes:
      emitted: the marks of what leaves otherwise than as a result: by a callback, or into a mutable reference.
    """

    def __init__(self, rules: Mapping[str, TransferRule], mark: MarkRule) -> None:
        super().__init__({CLAIM: rules[CLAIM]})
        self.unmarked, self.mark, self.emitted = rules, mark, NO_AXES

    def __missing__(self, name: str) -> TransferRule:
        self[name] = partial(self._marked, self.unmarked.get(name, _all_marks))
        return self[name]

    def _marked(
        self, rule: TransferRule, interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]
    ) -> list[ShardingFact]:
        marks = varying_of(facts)
        if marks and _jax.jaxpr.has_effects(eqn):
            self.emitted |= marks
        return [self.mark(eqn, at, facts, result) for at, result in enumerate(rule(interpreter, eqn, facts))]


def _all_marks(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    return [unknown(varying_of(facts), len(getattr(var.aval, "shape", ()))) for var in eqn.outvars]
