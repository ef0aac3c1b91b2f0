"""Sums over the shards: by a collective, or by a ring of ``ppermute`` in which each shard adds the received values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import _jax
from . import loss_kinds
from .reading import ReadEquation, Reading
from .value import ANY, NO_PARTS, NOT_KNOWN, UNKNOWN, Degree, Ring, Share, sum_of

_MOST_SHARDS = 16
"""The most shards for which the iterations of a loop are read one by one."""


def shift_of(step: ReadEquation) -> int | None:
    """The distance over which a ppermute sends values; None if it differs between shards."""
    shift = None
    for eqn, size in zip((step.eqn, step.other), step.reading.numbers.traces, strict=False):
        perm = eqn.params.get("perm", ())
        shifts = {(target - source) % size for source, target in perm}
        if len(perm) != size or len(shifts) != 1:
            return None
        shift = shifts.pop() if shift is None else shift
    return shift


def sent_around(step: ReadEquation, value: Share, sent: Share, shift: int) -> Share:
    """The result of a ppermute: the values of the shards at a distance."""
    ring, size = _ring_of(step, 0, value), step.reading.numbers.traces[0]
    step.reading.changes += 1  # recognised by its operand: no cached result of another call may be used
    return _known_as(sent, ring._replace(offsets=frozenset((offset + shift) % size for offset in ring.offsets)))


def added(step: ReadEquation, values: list[Share], result: Share) -> Share:
    """A sum of two values, one of them sent: a sum over the shards once every shard has been added."""
    a, b = values
    if a.ring is None and b.ring is None:
        return result
    primitive = step.primitive
    if primitive.kind != "sum" or not primitive.is_commutative:
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
    """Whether a sum of a ring has the values of all shards."""
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
    """The carries of a loop that are sums over all shards after it, by their indices.

    A loop with as many iterations as shards, or one less, is read iteration by iteration.
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
        return value.reached
    symbol_fields = _summed(step, value)
    if symbol_fields is None:
        return NOT_KNOWN.reached
    lost = {symbol for symbol, _ in value.symbols}
    reduced = value.reduced | lost | ({value.part} if value.part is not None else set())
    seen: dict[str, Any] = {**symbol_fields, "reduced": reduced, "is_reached": True, "is_positive": value.is_positive}
    match value.kind:
        case "same" | "local":
            return Share(value.kind, sum_of(value.degree, 1), dim=value.dim, **seen)
        case "sharded" if value.symbols:
            return Share("same", value.degree, **seen)
        case "sharded" if isinstance(value.dim, int) and step.shape(at)[value.dim] == 1:
            # One row on each shard: one trace does not show whether a divisor counts rows or shards.
            return Share("same", UNKNOWN if reading.numbers.is_blind else value.degree, **seen)
        case "sharded":
            return Share("local", value.degree, dim=value.dim, trait="folded", **seen)
        case "sum":
            degree: Degree | None = value.degree
            if value.beside is not None:
                degree = reading.numbers.agree(degree, sum_of(value.beside, 1))
            if degree is None:
                return step.lost(loss_kinds.TERM_PER_SHARD, value, kind="same")
            return Share("same", degree, **seen)
        case "extreme" if value.trait != "flag":
            why = loss_kinds.SUM_OF_EXTREMES
            symbol = reading.lose((step.part, why), why, step, (value,), is_common=True)
            bound: dict[str, Any] = seen | {"role": "+", "symbols": frozenset({(symbol, 1)})}
            return Share("same", ANY, **bound)
        case "own" if symbol_fields["role"]:
            return Share("same", value.degree, **seen)
        case "own" if value.trait == "found":
            return step.lost(loss_kinds.LOOKUP_UNMASKED, value, kind="same")
        case _:
            return NOT_KNOWN.reached


def _summed(step: ReadEquation, value: Share) -> dict[str, Any] | None:
    """The fields of the symbols of a sum over the shards; None if all losses behind them are excusable."""
    losses = step.reading.losses
    symbols = frozenset(pair for pair in value.symbols if not losses[pair[0]].is_excusable)
    if value.symbols and not symbols:
        return None
    if not symbols:
        return {"role": "", "symbols": NO_PARTS, "may_cancel": value.may_cancel}
    if all(losses[symbol].is_common for symbol, _ in symbols) and value.role != "?":
        return value.symbol_fields | {"symbols": symbols}
    return value.symbol_fields | {"role": "?", "symbols": frozenset((symbol, 0) for symbol, _ in symbols)}
