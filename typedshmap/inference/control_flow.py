"""Transfer rules of equations with jaxprs: calls, branches, loops, and manual regions within the region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any

from .. import _jax
from ..errors.varying import DivergentCollective
from .collectives import awaited_axes
from .interpreter import Interpreter, Observation, default_rule
from .lattice import UNKNOWN, UNSHARDED, AxisSet, DimFact, ShardingFact, add_varying, join, join_dims, unknown

_MOST_ITERATIONS = 12

CAST = "pvary"
"""The primitive that casts an invarying value to varying."""


def call(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
    """A call of a jaxpr with the same operands and results."""
    jaxpr = _jax.jaxpr.called_jaxpr(eqn)
    return default_rule(interpreter, eqn, facts) if jaxpr is None else interpreter.interpret(jaxpr, facts)


def hi_primitive(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
    """An operation that is written in Python, as jax 0.12 has them, with a jaxpr of the first of its operands."""
    jaxpr = _jax.jaxpr.hi_jaxpr(eqn)
    if jaxpr is None:
        return default_rule(interpreter, eqn, facts)
    return interpreter.interpret(jaxpr, facts[: len(jaxpr.invars)])


def cond(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """One of several branches; what they do not all compute alike varies where the choice does."""
    which, operands, branches = facts[0], facts[1:], eqn.params["branches"]
    taken = [interpreter.interpret(branch, operands) for branch in branches]
    results = [reduce(join, each) for each in zip(*taken, strict=True)]
    if diverging := interpreter.split_axes(which.varying | which.unreduced):
        _note_collectives(interpreter, eqn, branches, diverging)
        is_same = [len(set(numbers)) == 1 for numbers in zip(*_jax.jaxpr.value_numbers(branches), strict=True)]
        results = _diverged(interpreter, eqn, results, is_same, diverging)
    return results


def scan(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A loop over leading dims, until what is known of the carry no longer changes."""
    consts, carried = _jax.jaxpr.scan_counts(eqn.params)
    fixed, carry, stacked = facts[:consts], facts[consts : consts + carried], facts[consts + carried :]
    items = [fact.with_dims(fact.dims[1:]) for fact in stacked]
    body = eqn.params["jaxpr"]
    _, found = _fixed_point(interpreter, carry, lambda now: interpreter.interpret(body, [*fixed, *now, *items]))
    results = list(found)
    # A result per iteration, along a leading dim that is sharded as what the loop goes over.
    lead = reduce(join_dims, [fact.dims[0] for fact in stacked], UNSHARDED)
    for at, fact in enumerate(results[carried:], carried):
        is_repeated = not {axis for dim in fact.dims for axis in dim.known_axes}.isdisjoint(lead.known_axes)
        results[at] = fact.with_dims((UNKNOWN if is_repeated else lead, *fact.dims))
    return results


def while_loop(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A loop; where its condition varies, so does what it leaves behind.

    Within it a value is invarying if it is the same on all shards that are still in the loop.
    """
    condition, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    conds, consts, carry = _jax.jaxpr.while_operands(eqn, facts)
    carry, _ = _fixed_point(interpreter, carry, lambda now: interpreter.interpret(body, [*consts, *now]))
    (goes_on,) = interpreter.interpret(condition, [*conds, *carry])
    if diverging := interpreter.split_axes(goes_on.varying | goes_on.unreduced):
        _note_collectives(interpreter, eqn, (condition, body), diverging)
        (after,) = _jax.jaxpr.value_numbers([body])
        is_same = [at == number for at, number in enumerate(after, len(consts))]
        carry = _diverged(interpreter, eqn, carry, is_same, diverging)
    return carry


def _diverged(
    interpreter: Interpreter, eqn: Any, results: list[ShardingFact], is_same: list[bool], axes: AxisSet
) -> list[ShardingFact]:
    """What is known of results where shards took different branches, or left a loop at different times.

    Args:
      is_same: whether a result is the same, whichever way a shard went.
    """
    results = [fact if same else add_varying(fact, axes) for fact, same in zip(results, is_same, strict=True)]
    interpreter.note_untyped(eqn, results)
    return results


def _note_collectives(interpreter: Interpreter, eqn: Any, jaxprs: Sequence[Any], axes: AxisSet) -> None:
    """Note the collectives in branches or in a loop that not all shards of their axes reach.

    A cast to varying is among them: its transpose is a psum, which differentiation puts there.
    """
    for inner in (inner for jaxpr in jaxprs for inner in _jax.jaxpr.all_equations(jaxpr)):
        interpreter.is_written = interpreter.is_written or _jax.jaxpr.has_effects(inner)
        named, is_cast = _jax.jaxpr.named_axes(inner), inner.primitive.name == CAST
        if is_cast and not _jax.array.is_inexact(inner.outvars[0].aval.dtype):
            continue
        awaited = interpreter.split_axes(frozenset(named)) if is_cast else awaited_axes(interpreter, inner)
        if diverging := tuple(axis for axis in interpreter.sizes if axis in awaited & axes):
            name = "psum" if is_cast else _jax.source.collective_name(inner)
            is_transposed = _jax.jaxpr.is_transposed(inner) or _jax.jaxpr.is_transposed(eqn)
            is_gradient = is_cast or (interpreter.has_vma and name == "psum" and is_transposed)
            what = DivergentCollective(name, named or diverging, diverging, control_name(eqn), is_gradient)
            interpreter.observations.append(Observation(inner, what, control=eqn))


def control_name(eqn: Any) -> str:
    """The control flow that an equation is."""
    return "loop" if eqn.primitive.name == "while" else "cond" if len(eqn.params["branches"]) == 2 else "switch"


def _fixed_point(
    interpreter: Interpreter, carry: list[ShardingFact], iteration: Callable[[list[ShardingFact]], list[ShardingFact]]
) -> tuple[list[ShardingFact], list[ShardingFact]]:
    """The least fact that holds before every iteration of a loop, and what an iteration returns, its carry first.

    The observations are those of that iteration. What is wrong in the first one comes before what follows from it.
    """
    before, since = interpreter.observations, dict[int, int]()
    times = 0
    while True:
        interpreter.observations = []
        results = iteration(carry)
        for found in interpreter.observations:
            if found.what is not None:
                since.setdefault(id(found.eqn), times)
        after = [join(a, b) for a, b in zip(carry, results, strict=False)]
        if times >= _MOST_ITERATIONS:  # a claim in the loop may add again and again what the carry loses
            after = [unknown(fact.varying | fact.unreduced, len(fact.dims)) for fact in after]
        if after == carry:
            break
        carry, times = after, times + 1
    found = interpreter.observations
    interpreter.observations = before + (
        sorted(found, key=lambda one: since.get(id(one.eqn), times)) if since else found
    )
    return carry, results


def linear_solve(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
    """A solver with a gradient of its own: one of its jaxprs computes the solution."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    first, last = lengths.matvec + lengths.vecmat, sum(lengths)
    return interpreter.interpret(jaxprs.solve, [*facts[first : first + lengths.solve], *facts[last:]])


@lru_cache(maxsize=1024)
def fact_of_spec(spec: Any, rank: int, axes: AxisSet) -> ShardingFact:
    """What a spec says of an argument where it enters the region."""
    layout = _jax.array.spec_entries(spec, rank).over(axes)
    return ShardingFact(layout.sharded, layout.unreduced, tuple(map(DimFact, layout.dim_axes)))


RULES = {
    # Of a region within this one, too: facts are over the axes of this one only.
    **dict.fromkeys(_jax.primitives.names_of("call"), call),
    "call_hi_primitive": hi_primitive,
    "cond": cond,
    "scan": scan,
    "while": while_loop,
    "custom_linear_solve": linear_solve,
}
