"""Transfer rules of equations with jaxprs: calls, branches, loops, and manual regions within the region."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from itertools import count
from typing import Any

from .. import _jax
from .interpreter import Interpreter, default_rule
from .lattice import UNKNOWN, UNSHARDED, AxisSet, DimFact, ShardingFact, add_varying, join, join_dims, unknown

_MOST_ITERATIONS = 12


def call(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
    """A call of a jaxpr with the same operands and results."""
    jaxpr = _jax.jaxpr.called_jaxpr(eqn)
    return default_rule(interpreter, eqn, facts) if jaxpr is None else interpreter.interpret(jaxpr, facts)


def cond(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """One of several branches; the results vary where the choice does."""
    which, operands = facts[0], facts[1:]
    taken = [interpreter.interpret(branch, operands) for branch in eqn.params["branches"]]
    varying = which.varying | which.unreduced
    return [add_varying(reduce(join, results), varying) for results in zip(*taken, strict=True)]


def scan(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A loop over leading dims, until what is known of the carry no longer changes."""
    consts, carried = _jax.jaxpr.scan_counts(eqn.params)
    fixed, carry, stacked = facts[:consts], facts[consts : consts + carried], facts[consts + carried :]
    items = [fact.with_dims(fact.dims[1:]) for fact in stacked]
    body = eqn.params["jaxpr"]
    carry = _fixed_point(interpreter, carry, lambda now: interpreter.interpret(body, [*fixed, *now, *items])[:carried])
    results = list(interpreter.interpret(body, [*fixed, *carry, *items]))
    # A result per iteration, along a leading dim that is sharded as what the loop goes over.
    lead = reduce(join_dims, [fact.dims[0] for fact in stacked], UNSHARDED)
    for at, fact in enumerate(results[carried:], carried):
        is_repeated = not {axis for dim in fact.dims for axis in dim.axes or ()}.isdisjoint(lead.axes or ())
        results[at] = fact.with_dims((UNKNOWN if is_repeated else lead, *fact.dims))
    return results


def while_loop(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """A loop; where its condition varies, so does all that it carries."""
    params = eqn.params
    conds, consts, carry = _jax.jaxpr.while_operands(eqn, facts)

    def iteration(now: list[ShardingFact]) -> list[ShardingFact]:
        (ends,) = interpreter.interpret(params["cond_jaxpr"], [*conds, *now])
        after = interpreter.interpret(params["body_jaxpr"], [*consts, *now])
        return [add_varying(fact, ends.varying | ends.unreduced) for fact in after]

    carry = _fixed_point(interpreter, carry, iteration)
    interpreter.interpret(params["cond_jaxpr"], [*conds, *carry])
    interpreter.interpret(params["body_jaxpr"], [*consts, *carry])
    return carry


def _fixed_point(interpreter: Interpreter, carry: list[ShardingFact], iteration: Any) -> list[ShardingFact]:
    """The least fact that holds before every iteration of a loop; the findings on the way to it do not count."""
    before = list(interpreter.findings)
    for times in count():
        after = [join(a, b) for a, b in zip(carry, iteration(carry), strict=True)]
        if times >= _MOST_ITERATIONS:  # a claim in the loop may add again and again what the carry loses
            after = [unknown(fact.varying | fact.unreduced, len(fact.dims)) for fact in after]
        if after == carry:
            break
        carry = after
    interpreter.findings = before
    return carry


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
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "call", "remat", "remat2", "checkpoint",
                     "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "custom_vmap_call",
                     "composite", "xla_metadata_call"), call),
    "shard_map": call,  # a nested region: facts are over the axes of this one only
    "cond": cond,
    "scan": scan,
    "while": while_loop,
    "custom_linear_solve": linear_solve,
}  # fmt: skip
