"""Programs within programs: calls, branches, loops, and manual regions within the region."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import Any

from ... import _jax
from ..facts import NONE, UNKNOWN, WHOLE, Dim, Fact, Names, differing, either, meet, unknown
from ..reader import Reader, anything

_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")
_MOST_TURNS = 12


def call(reader: Reader, eqn: Any, facts: list[Fact]) -> Sequence[Fact]:
    """A call of a program with the same operands and results."""
    program = next((eqn.params[name] for name in _PROGRAMS if eqn.params.get(name) is not None), None)
    if program is None or len(_jax.open_program(program).invars) != len(facts):
        return anything(reader, eqn, facts)
    return reader.read(program, facts)


def cond(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """One of several branches; where it may differ which is taken, so may the results."""
    which, operands = facts[0], facts[1:]
    taken = [reader.read(branch, operands) for branch in eqn.params["branches"]]
    results = taken[0]
    for other in taken[1:]:
        results = [either(a, b) for a, b in zip(results, other, strict=True)]
    return [differing(fact, which.varying | which.owed) for fact in results]


def scan(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A loop over leading dims, until what is known of the carry no longer changes."""
    consts, carried = _jax.scan_counts(eqn.params)
    fixed, carry, stacked = facts[:consts], facts[consts : consts + carried], facts[consts + carried :]
    items = [fact.lying(fact.dims[1:]) for fact in stacked]
    body = eqn.params["jaxpr"]
    carry = _settle(carry, lambda now: reader.quietly(body, [*fixed, *now, *items])[:carried])
    results = reader.read(body, [*fixed, *carry, *items])
    lead = WHOLE
    for fact in stacked:
        lead = meet(lead, fact.dims[0])
    return [*results[:carried], *[_stacked(fact, lead) for fact in results[carried:]]]


def _stacked(fact: Fact, lead: Dim) -> Fact:
    """A result per turn, along a leading dim that lies as what the loop goes over."""
    twice = bool(set(lead.axes or ()) & {axis for dim in fact.dims for axis in dim.axes or ()})
    return fact.lying((UNKNOWN if twice else lead, *fact.dims))


def while_loop(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A loop whose end may differ: then so may all that it carries."""
    params = eqn.params
    conds, bodies = params["cond_nconsts"], params["body_nconsts"]
    asked, fixed, carry = facts[:conds], facts[conds : conds + bodies], facts[conds + bodies :]

    def turn(now: list[Fact]) -> list[Fact]:
        ends = reader.quietly(params["cond_jaxpr"], [*asked, *now])[0]
        after = reader.quietly(params["body_jaxpr"], [*fixed, *now])
        return [differing(fact, ends.varying | ends.owed) for fact in after]

    carry = _settle(carry, turn)
    reader.read(params["cond_jaxpr"], [*asked, *carry])
    reader.read(params["body_jaxpr"], [*fixed, *carry])
    return carry


def _settle(carry: list[Fact], turn: Any) -> list[Fact]:
    """The least that holds before every turn of a loop."""
    for times in count():
        after = [either(a, b) for a, b in zip(carry, turn(carry), strict=True)]
        if times >= _MOST_TURNS:  # a claim in the loop may teach again and again what its other end unlearns
            after = [unknown(fact.varying | fact.owed, len(fact.dims)) for fact in after]
        if after == carry:
            break
        carry = after
    return carry


def region(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """A manual region within: its axes are minor to this region's, of which alone it is known what lies where."""
    return reader.read(eqn.params["jaxpr"], facts)


def linear_solve(reader: Reader, eqn: Any, facts: list[Fact]) -> Sequence[Fact]:
    """A solver that brings its own gradient: of its programs one makes the solution."""
    lengths, programs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    first, last = lengths.matvec + lengths.vecmat, sum(lengths)
    return reader.read(programs.solve, [*facts[first : first + lengths.solve], *facts[last:]])


def _full(parts: Sequence[tuple[str, ...]], rank: int) -> list[tuple[str, ...]]:
    return [*parts, *[()] * (rank - len(parts))]


@lru_cache(maxsize=1024)
def entering(spec: Any, rank: int, axes: Names) -> Fact:
    """What a spec says of an argument where it enters the region."""
    parts = _jax.spec_parts(spec)
    dims = [tuple(axis for axis in names if axis in axes) for names in _full(parts.parts, rank)]
    varying = frozenset(axis for names in dims for axis in names)
    return Fact(varying, parts.unreduced & axes or NONE, tuple(Dim(names) for names in dims))


RULES = {
    **dict.fromkeys(
        (
            "jit",
            "pjit",
            "closed_call",
            "core_call",
            "call",
            "remat",
            "remat2",
            "checkpoint",
            "custom_jvp_call",
            "custom_vjp_call",
            "custom_vjp_call_jaxpr",
            "custom_lin",
            "custom_vmap_call",
            "composite",
            "xla_metadata_call",
        ),
        call,
    ),
    "cond": cond,
    "scan": scan,
    "while": while_loop,
    "shard_map": region,
    "custom_linear_solve": linear_solve,
}
