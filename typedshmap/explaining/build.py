"""Build the explanation of one call: its values, its collectives and its gradient's, its memory, what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import jax

from .. import _jax
from ..errors import StructureError, TypedShmapError
from ..hints.check_tree import CheckedLeaf
from ..hints.context import MeshContext
from .collectives import JaxprCosts, read_jaxpr
from .model import Collective, Memory, Value, ValueKind
from .tables import Explanation
from .trace import ExplainedCall, has_gradient


def explanation(call: ExplainedCall, grad: bool | None, bandwidth: Mapping[str, float]) -> Explanation:
    """All that there is to report of one call."""
    traced = call.trace()
    costs, sources = read_jaxpr(traced.jaxpr, len(call.traced_leaves))
    arguments = [
        value_of(at, "argument", call.leaves[leaf], call.structs[leaf], call.region)
        for at, leaf in enumerate(call.traced_leaves)
    ]
    first = max((one.ident for one in (*costs.values, *costs.collectives)), default=len(arguments) - 1) + 1
    leaves = call.result_leaves(traced.results) if call.typed.result is not None else []
    results = [
        value_of(first + at, "result", leaf, leaf.value, call.region, sorted(source))
        for at, (leaf, source) in enumerate(zip(leaves, sources, strict=False))
    ]
    collectives, notes = _gradient(call, traced.results, costs, results, grad)
    return Explanation(
        call.typed.name,
        call.mesh.shape_tuple,
        {name: bound.size for name, bound in call.sizes if name.lstrip("*").isidentifier()},
        (*arguments, *costs.values, *results),
        (*costs.collectives, *collectives),
        memory_of(arguments, results, donated_operands(traced.jaxpr)),
        tuple(dict.fromkeys((*_notes(call, costs), *notes))),
        bandwidth,
    )


def _notes(call: ExplainedCall, costs: JaxprCosts) -> list[str]:
    """What is not counted in the function itself, and why."""
    notes: list[str] = []
    if call.made_of.verb == "typed":
        axes = ", ".join(name for name, _ in call.mesh.shape_tuple)
        notes.append(f"{call.typed.name} is explained as mapped over {axes}, as it is called in a manual region")
    unhinted = [str(leaf.subject) for leaf in (call.leaves[at] for at in call.traced_leaves) if leaf.hint is None]
    if unhinted:
        notes.append(f"no hint says how {', '.join(unhinted)} is sharded; it counts as unsharded")
    if costs.outside and any(size > 1 for _, size in call.mesh.shape_tuple):
        names = list(costs.outside)
        notes.append(
            f"outside of manual regions XLA partitions operations on global arrays ({', '.join(names[:4])}"
            f"{', ...' if len(names) > 4 else ''}), and what they communicate is not counted: it is not in the jaxpr"
        )
    return [*notes, *costs.notes, *_while_notes(costs.collectives)]


def _while_notes(collectives: Sequence[Collective]) -> list[str]:
    note = "how often a while loop iterates is not known: what is in it is counted for one iteration"
    return [note] if any(one.is_open for one in collectives) else []


_Gradient = tuple[Sequence[Collective], Sequence[str]]
"""The collectives that a gradient adds, and notes."""


def _gradient(
    call: ExplainedCall, results: Any, forward: JaxprCosts, values: Sequence[Value], grad: bool | None
) -> _Gradient:
    name = call.typed.name
    if grad is False:
        return (), ()
    if grad is None and forward.is_transposed:
        return (), (f"{name} takes a gradient itself, and is not differentiated again (grad=True does)",)
    inexact = [has_gradient(leaf) for leaf in jax.tree_util.tree_leaves(results)]
    if not call.differentiable():
        reason = "no argument is of an inexact dtype"
    elif not any(inexact):
        reason = "no result is of an inexact dtype"
    else:
        try:
            jaxpr = call.trace_gradient(results)
        except Exception as error:  # loops and kernels without a transpose, and what a user's rule raises
            if grad and isinstance(error, TypedShmapError):
                raise
            text = (str(error).splitlines() or [""])[0]
            reason = f"it cannot be differentiated: {type(error).__name__}: {text}"
        else:
            return _gradient_costs(jaxpr, len(call.traced_leaves), inexact, forward, values)
    if grad:
        raise StructureError(f"explain: {name}: grad=True, but {reason}")
    return (), (f"no gradient is reported: {reason}",)


def _gradient_costs(
    jaxpr: Any, count: int, inexact: Sequence[bool], forward: JaxprCosts, values: Sequence[Value]
) -> _Gradient:
    """What the jaxpr with the gradient communicates beyond what the function does alone.

    Transposed equations belong to the gradient; so does what its forward part has more of than the function
    alone, as that of a ``jax.custom_vjp`` may.
    """
    both, _ = read_jaxpr(jaxpr, count + sum(inexact))
    numbers = {at: at for at in range(count)}
    ends = [one.ident for one, has in zip(values, inexact, strict=False) if has]
    numbers |= {count + at: ident for at, ident in enumerate(ends)}
    first = max([*(one.ident for one in (*forward.values, *forward.collectives, *values)), count - 1]) + 1
    same, added = _match_collectives(both.collectives, forward.collectives), list[Collective]()
    for one in both.collectives:
        if one.ident in same:
            numbers[one.ident] = same[one.ident]
            continue
        numbers[one.ident] = first + len(added)
        after = tuple(sorted(numbers[source] for source in one.after if source in numbers))
        added.append(replace(one, ident=numbers[one.ident], part="gradient", after=after))
    return added, (*both.notes, *_while_notes(both.collectives))


def _match_collectives(both: Sequence[Collective], alone: Sequence[Collective]) -> dict[int, int]:
    """Which of the collectives in the forward part of a gradient's jaxpr are those of the function alone.

    The forward part of a ``jax.custom_vjp`` is written in another place than the function itself.
    """
    pairs: dict[int, int] = {}
    for is_same_place in (True, False):

        def key(one: Collective, is_same_place: bool = is_same_place) -> Collective:
            # Without what a transformation changes that moves a collective, for instance out of a loop.
            return replace(one, ident=0, after=(), times=1, loops=(), place=one.place if is_same_place else "")

        left: dict[Collective, list[int]] = {}
        for one in alone:
            if one.ident not in pairs.values():
                left.setdefault(key(one), []).append(one.ident)
        for one in both:
            same = left.get(key(one))
            if one.part == "forward" and one.ident not in pairs and same:
                pairs[one.ident] = same.pop(0)
    return pairs


def value_of(
    ident: int, kind: ValueKind, leaf: CheckedLeaf, struct: Any, region: MeshContext, after: Sequence[int] = ()
) -> Value:
    """An argument or a result, sharded as its hint says.

    Args:
      ident: its number.
      kind: which of the two it is.
      leaf: its hint, and its path.
      struct: its shape and dtype.
      region: what the hint means on the mesh.
      after: the numbers of what it comes from.
    """
    aval = struct if isinstance(struct, _jax.array.SHAPES) else jax.typeof(struct)
    shape, sizes = aval.shape, dict(region.mesh or ())
    spec = region.spec(leaf.hint, len(shape)) if leaf.hint is not None else _jax.array.partition_spec([()] * len(shape))
    dim_axes = _jax.array.spec_entries(spec).dim_axes
    shard = tuple(size // prod(sizes[axis] for axis in axes) for size, axes in zip(shape, dim_axes, strict=True))
    return Value(
        ident,
        kind,
        str(leaf.subject),
        shape,
        _jax.array.short_dtype(aval.dtype),
        spec,
        shard,
        _jax.array.size_in_bytes(shard, aval.dtype),
        str(leaf.hint.text) if leaf.hint is not None else "",
        after=tuple(after),
    )


def memory_of(arguments: Sequence[Value], results: Sequence[Value], donated: Sequence[int]) -> Memory:
    """What arguments and results take on one device; a donated argument is reused by a result of its type.

    Args:
      arguments: all arguments.
      results: all results.
      donated: the numbers of the arguments that are donated.
    """
    offered = Counter((one.dtype, one.shard, one.bytes) for one in arguments if one.ident in donated)
    wanted = Counter((one.dtype, one.shard, one.bytes) for one in results)
    reused = sum(bytes_each * count for (*_, bytes_each), count in (offered & wanted).items())
    return Memory(sum(one.bytes for one in arguments), sum(one.bytes for one in results), reused)


def donated_operands(closed_jaxpr: Any) -> list[int]:
    """Which operands of a jaxpr are donated to a call in it."""
    jaxpr = _jax.jaxpr.open_jaxpr(closed_jaxpr)
    at = {var: place for place, var in enumerate(jaxpr.invars)}
    calls = [zip(eqn.invars, eqn.params.get("donated_invars", ()), strict=False) for eqn in jaxpr.eqns]
    given = [var for call in calls for var, is_donated in call if is_donated and not _jax.jaxpr.is_literal(var)]
    return [at[var] for var in given if var in at]
