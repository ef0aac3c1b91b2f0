"""Sums over the shards: by a collective, or by a ring, in which each shard adds what the others send on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import _jax
from .reading import ReadEquation, Reading
from .value import ANY, NO_PARTS, NOT_KNOWN, UNKNOWN, Degree, Ring, Share, sum_of

_MOST_SHARDS = 16
"""On how many shards the iterations of a loop are read one by one."""


def shift_of(step: ReadEquation) -> int | None:
    """By how many shards a ppermute sends a value on; None where that is not the same for all of them."""
    shift = None
    for eqn, size in zip((step.eqn, step.other), step.reading.numbers.traces, strict=False):
        perm = eqn.params.get("perm", ())
        shifts = {(target - source) % size for source, target in perm}
        if len(perm) != size or len(shifts) != 1:
            return None
        shift = shifts.pop() if shift is None else shift
    return shift


def turned(step: ReadEquation, value: Share, sent: Share, shift: int) -> Share:
    """What a ppermute sent on, known as the shards' values of so many shards before."""
    ring, size = _ring_of(step, 0, value), step.reading.numbers.traces[0]
    step.reading.changes += 1  # it is known by its operand, so that no other call makes the same
    return _known_as(sent, ring._replace(offsets=frozenset((offset + shift) % size for offset in ring.offsets)))


def added(step: ReadEquation, values: list[Share], result: Share) -> Share:
    """A sum of two values, of which one was sent on: that of all shards, as soon as each has been added once."""
    a, b = values
    is_addition = step.primitive.kind == "sum" and step.primitive.is_commutative
    if (a.ring is None and b.ring is None) or not is_addition:
        return result
    for zero, value in ((a, b), (b, a)):
        if zero.is_zero and zero.kind == "same":
            return _known_as(result, value.ring)
    first, second = (_ring_of(step, at, value) for at, value in enumerate(values))
    if first.base != second.base or not first.offsets.isdisjoint(second.offsets):
        return result
    ring = first._replace(offsets=first.offsets | second.offsets)
    return _known_as(total(step, ring.value) if is_closed(step.reading, ring) else result, ring)


def is_closed(reading: Reading, ring: Ring | None) -> bool:
    """Whether the values of all shards are in a sum."""
    return ring is not None and len(ring.offsets) == reading.numbers.traces[0]


def _ring_of(step: ReadEquation, at: int, value: Share) -> Ring:
    if value.ring is not None:
        return value.ring
    return Ring(step.reading.number_of(step.frame, step.eqn.invars[at]), value, frozenset([0]))


def _known_as(value: Share, ring: Ring | None) -> Share:
    return value._replace(ring=ring, is_plain=False)


def closed_rings(
    step: ReadEquation, starts: list[Share], iteration: Callable[[list[Share]], list[Share]]
) -> dict[int, Share]:
    """By their places among what a loop carries, the sums over all shards that it has made in the end.

    As many iterations as there are shards, or one less, are read one by one.
    """
    reading, sizes = step.reading, step.reading.numbers.traces
    lacking = {size - eqn.params["length"] for eqn, size in zip((step.eqn, step.other), sizes, strict=False)}
    is_ring = len(lacking) == 1 and lacking <= {0, 1} and sizes[0] <= _MOST_SHARDS
    if not is_ring or not any(_sends(eqn, reading.axis) for eqn in _jax.jaxpr.all_equations(step.params["jaxpr"])):
        return {}
    first = _jax.jaxpr.scan_counts(step.params)[0]
    carry = [
        value if value.is_zero else _known_as(value, _ring_of(step, first + at, value))
        for at, value in enumerate(starts)
    ]
    around = reading.iteration
    for at in range(step.params["length"]):
        reading.iteration = (*around, at)
        carry = iteration(carry)[: len(starts)]
    reading.iteration = around
    return {at: _known_as(value, None) for at, value in enumerate(carry) if is_closed(reading, value.ring)}


def _sends(eqn: Any, axis: str) -> bool:
    return _jax.jaxpr.collective_operation(eqn) == "collective-permute" and axis in _jax.jaxpr.named_axes(eqn)


def total(step: ReadEquation, value: Share, at: int = 0) -> Share:
    """A sum over the shards."""
    reading = step.reading
    if value.kind == "unknown":
        return value.heard
    gauges = _summed(step, value)
    if gauges is None:
        return NOT_KNOWN.heard
    lost = {own for own, _ in value.own}
    reduced = value.reduced | lost | ({value.part} if value.part is not None else set())
    seen: dict[str, Any] = {**gauges, "reduced": reduced, "is_heard": True, "is_positive": value.is_positive}
    match value.kind:
        case "same" | "local":
            return Share(value.kind, sum_of(value.degree, 1), dim=value.dim, **seen)
        case "sharded" if value.own:
            return Share("same", value.degree, **seen)
        case "sharded" if isinstance(value.dim, int) and step.shape(at)[value.dim] == 1:
            # A row of each shard: one trace does not show whether its number of rows, or of shards, is divided by.
            return Share("same", UNKNOWN if reading.numbers.is_blind else value.degree, **seen)
        case "sharded":
            return Share("local", value.degree, dim=value.dim, place="folded", **seen)
        case "sum":
            degree: Degree | None = value.degree
            if value.beside is not None:
                degree = reading.numbers.agree(degree, sum_of(value.beside, 1))
            if degree is None:
                return step.lost("counts a term once per shard", value, kind="same")
            return Share("same", degree, **seen)
        case "extreme" if value.place != "flag":
            own = reading.lose((step.part, "sums own extremes"), "sums own extremes", step, (value,), is_common=True)
            bound: dict[str, Any] = seen | {"gauge": "+", "own": frozenset({(own, 1)})}
            return Share("same", ANY, **bound)
        case "own" if gauges["gauge"]:
            return Share("same", value.degree, **seen)
        case "own" if value.place == "found":
            return step.lost("sums what was looked up without a mask", value, kind="same")
        case _:
            return NOT_KNOWN.heard


def _summed(step: ReadEquation, value: Share) -> dict[str, Any] | None:
    """What is own in a sum over the shards; None where it is made of own rows only."""
    losses = step.reading.losses
    own = frozenset(each for each in value.own if not losses[each[0]].is_soft)
    if value.own and not own:
        return None
    if not own:
        return {"gauge": "", "own": NO_PARTS, "may_cancel": value.may_cancel}
    if all(losses[each].is_common for each, _ in own) and value.gauge != "?":
        return value.gauges | {"own": own}
    return value.gauges | {"gauge": "?", "own": frozenset((each, 0) for each, _ in own)}
