"""Transfer rules of branches and loops, and the collectives in them that not all shards reach."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any

from .. import _jax
from ..errors.varying import DivergentCollective
from .collective_facts import awaited_axes
from .facts import FactInterpreter, Observation
from .lattice import UNKNOWN, UNSHARDED, AxisSet, DimFact, ShardingFact, add_varying, join, join_dims

CAST = "pvary"
"""The primitive that casts an invarying value to varying."""


def cond(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """One of several branches: results that differ between them vary where the predicate varies."""
    which, operands, branches = facts[0], facts[1:], eqn.params["branches"]
    results = [reduce(join, ways) for ways in interpreter.ways(eqn, operands)]
    if diverging := interpreter.split_axes(which.varying | which.unreduced):
        _note_collectives(interpreter, eqn, branches, diverging)
        is_same = [len(set(numbers)) == 1 for numbers in zip(*_jax.jaxpr.value_numbers(branches), strict=True)]
        results = _diverged(interpreter, eqn, results, is_same, diverging)
    return results


def scan(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A loop over leading dims."""
    fixed, start, over = _jax.jaxpr.scan_operands(eqn, facts)
    rows = [fact.with_dims(fact.dims[1:]) for fact in over]
    _, results = interpreter.loop(eqn.params["jaxpr"], fixed, start, rows)
    # Results are stacked along a leading dim, which is sharded like that of the scanned arrays.
    lead = reduce(join_dims, [fact.dims[0] for fact in over], UNSHARDED)
    for at, fact in enumerate(results[len(start) :], len(start)):
        is_repeated = not {axis for dim in fact.dims for axis in dim.known_axes}.isdisjoint(lead.known_axes)
        results[at] = fact.with_dims((UNKNOWN if is_repeated else lead, *fact.dims))
    return results


def while_loop(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A loop: its results vary where its condition varies.

    In the body, a value is invarying if it is the same on all shards that are still in the loop.
    """
    condition, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    carry, _, goes_on = interpreter.while_loop(eqn, facts)
    if diverging := interpreter.split_axes(goes_on.varying | goes_on.unreduced):
        _note_collectives(interpreter, eqn, (condition, body), diverging)
        (after,) = _jax.jaxpr.value_numbers([body])
        is_same = [at == number for at, number in enumerate(after, eqn.params["body_nconsts"])]
        carry = _diverged(interpreter, eqn, carry, is_same, diverging)
    return carry


def _diverged(
    interpreter: FactInterpreter, eqn: Any, results: list[ShardingFact], is_same: list[bool], axes: AxisSet
) -> list[ShardingFact]:
    """The facts of results after shards took different branches, or left a loop at different times.

    Args:
      interpreter: the interpreter of the region.
      eqn: the branch or the loop.
      results: the facts if the predicate did not vary.
      is_same: for each result, whether it does not depend on the predicate.
      axes: the axes over which the predicate varies.
    """
    results = [fact if same else add_varying(fact, axes) for fact, same in zip(results, is_same, strict=True)]
    interpreter.note_untyped(eqn, results)
    return results


def _note_collectives(interpreter: FactInterpreter, eqn: Any, jaxprs: Sequence[Any], axes: AxisSet) -> None:
    """Note the collectives in branches or in a loop that not all shards of their axes reach.

    A cast to varying is among them: its transpose is a psum.
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
    """The name of a control flow primitive, as in ``jax.lax``."""
    return "loop" if eqn.primitive.name == "while" else "cond" if len(eqn.params["branches"]) == 2 else "switch"


@lru_cache(maxsize=1024)
def fact_of_spec(spec: Any, rank: int, axes: AxisSet) -> ShardingFact:
    """The fact of an argument that enters the region with a spec."""
    layout = _jax.array.spec_entries(spec, rank).over(axes)
    return ShardingFact(layout.sharded, layout.unreduced, tuple(map(DimFact, layout.dim_axes)))
