"""Build the explanation of one call: its values, its collectives and those of its gradient, its memory, and notes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from .. import _jax
from ..errors import StructureError, TypedShmapError
from ..hints.check_tree import CheckedLeaf
from ..hints.context import MeshContext
from ..ops.resharding.plan import shard_shape
from .collectives import JaxprCosts, read_jaxpr
from .model import Collective, Memory, Value, ValueKind
from .tables import Explanation
from .trace import ExplainedCall, has_gradient


def explanation(call: ExplainedCall, grad: bool | None, bandwidth: Mapping[str, float]) -> Explanation:
    """Explain one call."""
    jaxpr, types = call.trace()
    costs, sources = read_jaxpr(jaxpr, len(call.traced))
    arguments = [value_of(at, "argument", leaf, call.region) for at, leaf in enumerate(call.traced.values())]
    first = max((one.ident for one in (*costs.values, *costs.collectives)), default=len(arguments) - 1) + 1
    leaves = call.result_leaves(types) if call.typed.result is not None else []
    results = [
        value_of(first + at, "result", leaf, call.region, sorted(source))
        for at, (leaf, source) in enumerate(zip(leaves, sources, strict=False))
    ]
    gradient, notes = _gradient(call, types, costs, results, first + len(results), grad)
    return Explanation(
        call.typed.name,
        call.mesh.shape_tuple,
        {name: bound.size for name, bound in call.sizes if name.lstrip("*").isidentifier()},
        (*arguments, *costs.values, *results),
        (*costs.collectives, *gradient),
        memory_of(arguments, results, jaxpr),
        tuple(dict.fromkeys((*_notes(call, costs), *notes))),
        bandwidth,
    )


def _notes(call: ExplainedCall, costs: JaxprCosts) -> list[str]:
    """What is not counted in the function itself, and why."""
    notes: list[str] = []
    if call.made_of.verb == "typed":
        axes = ", ".join(call.mesh.axis_names)
        notes.append(f"{call.typed.name} is explained as mapped over {axes}, as it is called in a manual region")
    if unhinted := ", ".join(str(leaf.subject) for leaf in call.traced.values() if leaf.hint is None):
        notes.append(f"no hint says how {unhinted} is sharded; it counts as unsharded")
    if costs.outside and call.mesh.size > 1:
        names = list(dict.fromkeys(costs.outside))
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        notes.append(
            f"outside of manual regions XLA partitions operations on global arrays ({shown}), and what they "
            "communicate is not counted: it is not in the jaxpr"
        )
    return [*notes, *_jaxpr_notes(costs)]


def _jaxpr_notes(costs: JaxprCosts) -> list[str]:
    note = "how often a while loop iterates is not known: what is in it is counted for one iteration"
    return [*costs.notes, *([note] if any(one.is_open for one in costs.collectives) else [])]


def _gradient(
    call: ExplainedCall, types: Any, forward: JaxprCosts, results: Sequence[Value], first: int, grad: bool | None
) -> tuple[Sequence[Collective], Sequence[str]]:
    """The collectives that the gradient adds, with numbers from ``first`` on, and notes."""
    name, inexact = call.typed.name, [has_gradient(leaf) for leaf in jax.tree_util.tree_leaves(types)]
    if grad is False:
        return (), ()
    if grad is None and forward.is_transposed:
        return (), (f"{name} takes a gradient itself, and is not differentiated again (grad=True does)",)
    if not any(map(has_gradient, call.structs)):
        reason = "no argument is of an inexact dtype"
    elif not any(inexact):
        reason = "no result is of an inexact dtype"
    else:
        try:
            jaxpr = call.trace_gradient(types)
        except Exception as error:  # loops and kernels without a transpose, and what a user's rule raises
            if grad and isinstance(error, TypedShmapError):
                raise
            text = (str(error).splitlines() or [""])[0]
            reason = f"it cannot be differentiated: {type(error).__name__}: {text}"
        else:
            both, _ = read_jaxpr(jaxpr, len(call.traced) + sum(inexact))
            ends = [one.ident for one, has in zip(results, inexact, strict=False) if has]
            operands = dict(enumerate([*range(len(call.traced)), *ends]))
            return _added_collectives(both.collectives, forward.collectives, operands, first), _jaxpr_notes(both)
    if grad:
        raise StructureError(f"explain: {name}: grad=True, but {reason}")
    return (), (f"no gradient is reported: {reason}",)


def _added_collectives(
    both: Sequence[Collective], alone: Sequence[Collective], numbers: dict[int, int], first: int
) -> list[Collective]:
    """What the jaxpr with the gradient communicates beyond what the function does alone.

    Transposed equations belong to the gradient; so does what its forward part has more of than the function
    alone, as that of a ``jax.custom_vjp`` may.
    """
    same, added = _match_collectives(both, alone), list[Collective]()
    numbers = {**numbers, **same}
    for one in both:
        if one.ident not in same:
            numbers[one.ident] = ident = first + len(added)
            after = tuple(sorted(numbers[source] for source in one.after if source in numbers))
            added.append(replace(one, ident=ident, part="gradient", after=after))
    return added


def _match_collectives(both: Sequence[Collective], alone: Sequence[Collective]) -> dict[int, int]:
    """Which of the collectives in the forward part of a gradient's jaxpr are those of the function alone.

    The forward part of a ``jax.custom_vjp`` is written in another place than the function itself.
    """
    pairs: dict[int, int] = {}
    # Without what a transformation changes that moves a collective, for instance out of a loop.
    moved: dict[str, Any] = {"ident": 0, "after": (), "times": 1, "loops": ()}
    for ignored in (moved, {**moved, "place": ""}):
        left: defaultdict[Collective, list[int]] = defaultdict(list)
        for one in alone:
            if one.ident not in pairs.values():
                left[replace(one, **ignored)].append(one.ident)
        for one in both:
            same = left[replace(one, **ignored)]
            if one.part == "forward" and one.ident not in pairs and same:
                pairs[one.ident] = same.pop(0)
    return pairs


def value_of(ident: int, kind: ValueKind, leaf: CheckedLeaf, region: MeshContext, after: Sequence[int] = ()) -> Value:
    """An argument or a result, sharded as its hint says.

    Args:
      ident: its number.
      kind: which of the two it is.
      leaf: its shape and dtype, its hint, and its path.
      region: what the hint means on the mesh.
      after: the numbers of the values and collectives that it is computed from.
    """
    aval = leaf.value if isinstance(leaf.value, _jax.array.SHAPES) else jax.typeof(leaf.value)
    shape, dtype = aval.shape, aval.dtype
    spec = region.spec(leaf.hint, len(shape)) if leaf.hint is not None else _jax.array.partition_spec([()] * len(shape))
    shard = shard_shape(_jax.array.spec_entries(spec).dim_axes, shape, dict(region.mesh or ()))
    name, hint, size = str(leaf.subject), leaf.hint, _jax.array.size_in_bytes(shard, dtype)
    text = str(hint.text) if hint is not None else ""
    return Value(ident, kind, name, shape, _jax.array.short_dtype(dtype), spec, shard, size, text, after=tuple(after))


def memory_of(arguments: Sequence[Value], results: Sequence[Value], closed_jaxpr: Any) -> Memory:
    """The bytes of arguments and results on one device; a donated argument is reused by a result of its type.

    Args:
      arguments: the operands of the jaxpr.
      results: all results.
      closed_jaxpr: the jaxpr, in which calls say what is donated to them.
    """
    jaxpr = _jax.jaxpr.open_jaxpr(closed_jaxpr)
    calls = [zip(eqn.invars, eqn.params.get("donated_invars", ()), strict=False) for eqn in jaxpr.eqns]
    donated = {var for call in calls for var, is_donated in call if is_donated and not _jax.jaxpr.is_literal(var)}
    operands = zip(arguments, jaxpr.invars, strict=True)
    offered = Counter((one.dtype, one.shard, one.bytes) for one, var in operands if var in donated)
    wanted = Counter((one.dtype, one.shard, one.bytes) for one in results)
    reused = sum(bytes_each * count for (*_, bytes_each), count in (offered & wanted).items())
    return Memory(sum(one.bytes for one in arguments), sum(one.bytes for one in results), reused)
