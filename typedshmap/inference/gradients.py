"""Sums of gradients over the shards that a program hardly means.

JAX sums the gradient of a value that is the same on every shard, or of one that was gathered. Of a loss that is a mean
of each shard's part, and of which no collective makes a mean over all, that is so many times the gradient meant; and so
is the gradient of a term that is the same on every shard, where it is added to what differs. Without types JAX
differentiates a sum as a sum, so that a gradient counts each shard. And who sums the gradient of a sharded weight adds
up those of its different parts.

Invariant: causes are looked for only where one of these is seen, as far as a glance can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from .. import _jax
from ..errors.varying import RecountedGradient, SummedGradient, SummedParts
from .causes import Causes
from .control_flow import fact_of_spec
from .find_cause import find_cause
from .interpreter import CLAIM, Interpreter
from .noted_sums import NotedSum
from .suspects import Flow, Verdict

_ELEMENTWISE = frozenset([CLAIM, "add", "add_any", "sub", "mul", "div", "neg", "convert_element_type", "copy", "pvary"])


def judge_gradients(interpreter: Interpreter, jaxpr: Any, causes: Callable[[], Causes]) -> list[Verdict]:
    """The sums of gradients of which the mean is due, once per gradient that the user asked for."""
    found, seen_with = dict[tuple[str, str], Verdict](), set[tuple[str, str]]()
    seen = list(_of_unreduced_losses(interpreter))
    flow = Flow(jaxpr, interpreter) if seen else None
    for eqn, at, axis, by, _ in seen:
        assert flow is not None
        place = _jax.source.gradient_place(by)
        is_averaged = not interpreter.has_vma and _is_reduced(flow, eqn.outvars[at], axis)
        if (place, axis) in {*found, *seen_with} or is_averaged or flow.is_shared_out(eqn.outvars[at : at + 1], axis):
            continue
        ways = (causes().scaling.mean_of_gradient(known, axis) for known in causes().known_of_operand(eqn, at))
        mean = next(filter(None, ways), None)
        if mean is not None:
            others = [each for each in mean.others if not _is_reduced_inside(interpreter, each, place)]
            failure = SummedGradient(axis, interpreter.sizes[axis], mean.place, tuple(others), interpreter.has_vma)
            found[place, axis] = Verdict(eqn, failure, False, place)
            seen_with.update((place, each) for each in others)
    return list(found.values())


def judge_equal_gradients(interpreter: Interpreter, jaxpr: Any, causes: Callable[[], Causes]) -> list[Verdict]:
    """The sums of gradients that are the same on every shard, as of a term that is added to what differs.

    Not those of a loss that is divided by the number of shards, as by a pmean of it all.
    """
    found = dict[tuple[str, str], Verdict]()
    equal = [one for one in interpreter.sums.of_gradients if not one.is_due]
    flow = Flow(jaxpr, interpreter) if equal else None
    for eqn, at, axis, by, _ in equal:
        assert flow is not None
        place = _jax.source.gradient_place(by)
        if (place, axis) in found or not flow.is_used(eqn.outvars[at]):
            continue
        if not _is_divided(causes(), eqn, axis, at) and not flow.is_shared_out(eqn.outvars[at : at + 1], axis):
            found[place, axis] = Verdict(eqn, RecountedGradient(axis, interpreter.sizes[axis], True), False, place)
    return list(found.values())


def judge_recounts(interpreter: Interpreter, jaxpr: Any, causes: Callable[[], Causes]) -> list[Verdict]:
    """The sums of partial sums that are differentiated as sums, without types, and so count a gradient once per shard.

    Not those whose gradients are reduced over the axis afterwards, as that of a loss by the mean over the batch, nor
    those of a loss that is divided by the number of shards.
    """
    found = dict[str, Verdict]()
    equal = [one for one in interpreter.sums.transposed if not one.is_due]
    flow = Flow(jaxpr, interpreter) if equal else None
    for eqn, at, axis, *_ in equal:
        assert flow is not None
        place = _jax.source.equation_place(eqn)
        forward = [
            one.is_due
            for one in interpreter.sums.differentiated
            if one.axis == axis and _jax.source.equation_place(one.eqn) == place
        ]
        uses = flow.linear_uses(eqn.outvars[at : at + 1], axis)
        is_result = any(not _jax.jaxpr.is_literal(var) and var in uses for var in flow.results)
        if place in found or not forward or not all(forward) or not is_result:
            continue
        if not flow.is_shared_out(eqn.outvars[at : at + 1], axis) and not _is_divided(causes(), eqn, axis, at):
            found[place] = Verdict(eqn, RecountedGradient(axis, interpreter.sizes[axis], False), False)
    return list(found.values())


def _is_divided(causes: Causes, eqn: Any, axis: str, at: int) -> bool:
    """Whether an operand of an equation was divided by the number of shards."""
    return any(causes.scaling.is_divided(known, axis) for known in causes.known_of_operand(eqn, at))


def _is_reduced(flow: Flow, variable: Any, axis: str) -> bool:
    """Whether what is linear in a value is reduced over the axis."""
    uses = flow.linear_uses([variable], axis).values()
    return any(flow.is_collective(eqn, axis) for some in uses for eqn in some)


def _is_reduced_inside(interpreter: Interpreter, axis: str, asked: str) -> bool:
    """Whether what a gradient is asked of is reduced over an axis."""
    reduced = interpreter.sums.reducing(axis)
    return reduced is not None and _jax.source.gradient_place(reduced) == asked


def _of_unreduced_losses(interpreter: Interpreter) -> Iterator[NotedSum]:
    """The sums of gradients of what is not reduced over their axis.

    Most bodies ask for one gradient, of which a few places tell.
    """
    by_axis: dict[str, list[NotedSum]] = {}
    for one in interpreter.sums.of_gradients:
        if one.is_due:
            by_axis.setdefault(one.axis, []).append(one)
    for axis, sums in by_axis.items():
        reduced = interpreter.sums.reducing(axis)
        if reduced is None:
            yield from sums
            continue
        asked = _jax.source.gradient_place(reduced)
        if any(_jax.source.gradient_place(one.by) != asked for one in (sums[0], sums[-1])):
            yield from (one for one in sums if _jax.source.gradient_place(one.by) != asked)


def judge_summed_parts(
    interpreter: Interpreter, jaxpr: Any, out_specs: Sequence[Any], causes: Callable[[], Causes]
) -> list[Verdict]:
    """The sums over an axis of gradients sharded over it that are taken for such a part again, once per line."""
    found = dict[str, Verdict]()
    flow = Flow(jaxpr, interpreter) if interpreter.sums.of_parts else None
    for eqn, at, axis, *_ in interpreter.sums.of_parts:
        assert flow is not None
        if not flow.is_of_gradient(eqn.invars[at], axis):
            continue
        uses = flow.linear_uses(eqn.outvars[at : at + 1], axis, _ELEMENTWISE)
        call, _ = flow.call_of(eqn)
        returned = [
            fact_of_spec(spec, len(var.aval.shape), interpreter.axes)
            for var, spec in zip(flow.results, out_specs, strict=False)  # of a body that is read in part, the first
            if not _jax.jaxpr.is_literal(var) and var in uses
        ]
        joined = [
            fact
            for variable, some in uses.items()
            for each in some
            if each.primitive.name in _ELEMENTWISE
            for facts in causes().facts_of(each)
            for atom, fact in zip(each.invars, facts, strict=True)
            if atom is not variable
        ]
        place = _jax.source.equation_place(call)
        if place not in found and any(axis in (dim.axes or ()) for fact in (*returned, *joined) for dim in fact.dims):
            cause = find_cause((axis,), partial(causes().of_operand, eqn, at=at))
            dim = cause.sharded_dim if cause is not None else f"a dim sharded over '{axis}'"
            found[place] = Verdict(call, SummedParts(axis, _jax.source.collective_name(eqn), dim), False)
    return list(found.values())
