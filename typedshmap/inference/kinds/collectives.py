"""What collectives over the axis make of what the shards hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import _jax
from .functions import nonlinear
from .origins import Beginning
from .reading import ReadEquation
from .rings import shift_of, total, turned
from .value import ANY, NOT_KNOWN, SAME, Share, unknown


def collective(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A collective over the axis; over other axes it is linear, and leaves dims where they are."""
    reading, params = step.reading, step.params
    operation, count = _jax.jaxpr.collective_operation(step.eqn), len(step.eqn.outvars)
    if reading.axis not in _jax.jaxpr.named_axes(step.eqn):
        return _elsewhere(step, values, operation)
    reading.collectives.setdefault(id(step.eqn), (step.eqn, step.frame.calls, values[0]))
    # In groups, or over a dim, too, as of an axis of jax.vmap.
    if params.get("axis_index_groups") is not None or any(isinstance(axis, int) for axis in params.get("axes", ())):
        return [NOT_KNOWN.heard] * count
    if operation == "all-reduce":
        end = step.primitive.end
        return [extreme(step, value, end) if end else total(step, value, at) for at, value in enumerate(values)]
    if (rule := _RULES.get(operation or "")) is not None:
        return [rule(step, value) for value in values]
    return [NOT_KNOWN.heard] * count


def _elsewhere(step: ReadEquation, values: list[Share], operation: str | None) -> Sequence[Share]:
    value, end, is_tiled = values[0], step.primitive.end, step.params.get("tiled", True)
    if len(values) != len(step.eqn.outvars):  # of a ragged exchange
        return [SAME if all(value is SAME for value in values) else unknown(values)] * len(step.eqn.outvars)
    if end:
        return [nonlinear(step, [value]) if value.is_part and value.end != end else value for value in values]
    if operation == "all-to-all" and not is_tiled:
        return [value if value.dim is None else NOT_KNOWN]
    if operation == "all-gather" and not is_tiled and isinstance(value.dim, int):
        return [value.but(dim=value.dim + (value.dim >= step.params["all_gather_dimension"]))]
    if operation == "reduce-scatter" and not is_tiled and isinstance(value.dim, int):
        return [value.but(dim=value.dim - (value.dim > step.params["scatter_dimension"]))]
    return [value.unnumbered for value in values]


def extreme(step: ReadEquation, value: Share, end: str) -> Share:
    """A maximum or a minimum over the shards."""
    reading = step.reading
    is_own = bool(value.own) and not any(reading.losses[own].is_soft for own, _ in value.own)
    if value.kind in ("unknown", "same", "local") and not is_own:
        return value.but(is_heard=True, number=None)
    if value.kind == "extreme" and value.end == end:
        return Share("same", value.degree, reduced=value.reduced | {value.part}, is_heard=True)
    if value.kind == "own" and all(str(var.aval.dtype) == "bool" for var in step.eqn.invars):  # whether any shard is
        return Share("same", 0, reduced=value.reduced, is_heard=True)
    is_short = value.kind == "sum" and value.ring is not None  # of a ring that leaves some shards out
    if value.is_heard and (value.is_part or value.kind == "own") and not is_short:  # as others may agree by now
        return NOT_KNOWN.heard
    if value.kind in ("own", "same") and is_own:
        own = reading.lose(("bound", step.part), f"is a common {end}", step, (value,), is_common=True)
        return common_bound(own, value)
    if value.is_part:
        return step.lost(f"takes the {end} of partial sums", value, kind="same")
    return NOT_KNOWN.heard


def common_bound(own: Any, value: Share) -> Share:
    """What is the same on every shard, and nothing of the whole: right where it cancels, as the shift of a softmax."""
    reduced = value.reduced | {each for each, _ in value.own}
    may_cancel, owned = value.may_cancel, frozenset({(own, 1)})
    return Share("same", ANY, gauge="+", own=owned, may_cancel=may_cancel, is_heard=True, reduced=reduced)


def gather(step: ReadEquation, value: Share) -> Share:
    """The shards' values side by side."""
    at, reading = step.params["all_gather_dimension"], step.reading
    if value.kind == "unknown":
        return value.heard
    is_hard = bool(value.own) and any(not reading.losses[own].is_soft for own, _ in value.own)
    if not step.params["tiled"]:
        own = {"gauge": "?", "own": value.own} if is_hard else {}
        return Share("parts", value.degree, dim=at, root=("gathered", value), is_heard=True, **own)  # type: ignore[arg-type]
    if value.kind == "sharded" and value.dim == at and (is_hard or not value.own) and not value.order:
        return value.but(kind="same", dim=None, is_heard=True)
    if value.kind == "sum":
        return Share("parts", value.degree, dim=at, root=("gathered", value), is_heard=True)
    return NOT_KNOWN.heard


def scatter(step: ReadEquation, value: Share) -> Share:
    """A sum over the shards, of which each keeps its part."""
    dim = step.params["scatter_dimension"] if step.params.get("tiled", True) else "rows"
    summed = total(step, value) if value.kind in ("sum", "same") else NOT_KNOWN.heard
    return summed.but(kind="sharded", dim=dim) if summed.kind == "same" else summed


def exchange(step: ReadEquation, value: Share) -> Share:
    """One dim gathered, another one sharded."""
    to, at = step.params["split_axis"], step.params["concat_axis"]
    is_part = value.kind == "sharded" and value.dim == at and to != at and not value.order
    if step.params["tiled"] and is_part and not step.reading.is_soft(value):
        return value.but(dim=to, is_heard=True)
    return NOT_KNOWN.heard


def send(step: ReadEquation, value: Share) -> Share:
    """Shards sent on."""
    shift = shift_of(step)
    sent = _sent(step, value, shift is not None)
    return sent if shift is None else turned(step, value, sent, shift)


def _sent(step: ReadEquation, value: Share, is_full: bool) -> Share:
    if value.kind == "unknown":
        return value.heard
    if is_full and value.kind == "same":
        return value
    if is_full and value.kind == "sum" and value.beside is None:
        step.reading.sent.append(Beginning(step.eqn, step.frame.calls))
        return value.but(part=None, is_heard=True)
    losses = step.reading.losses
    if any(losses[each].is_of_slice for each, _ in value.own):
        step.reading.sent.append(Beginning(step.eqn, step.frame.calls))
    own = frozenset((each, 0) for each, _ in value.own if not losses[each].is_soft)
    return Share("own", 0, is_heard=True, place="sent", gauge="?" if own else "", own=own)


def index(step: ReadEquation, values: list[Share]) -> Share:
    """A shard's own index."""
    if step.reading.axis not in _jax.jaxpr.named_axes(step.eqn):
        return Share("same", 0)
    name = step.params["axis_name"]
    if name in (step.reading.axis, (step.reading.axis,)):
        return Share("own", 0, is_heard=True, line=((0, 1),) * len(step.reading.numbers.traces))
    return Share("own", 0, is_heard=True)


def resharded(step: ReadEquation, values: list[Share]) -> Share:
    """This library's own ``reshard``, with the layouts before and after it."""
    layout, axis = step.params["target"], step.reading.axis
    degree, dim = values[0].degree if values[0].kind != "unknown" else 0, layout.dim_of(axis)
    if axis in layout.unreduced:
        return Share("sum", degree, is_heard=True)
    if dim is not None:
        return Share("sharded", degree, dim=dim, is_heard=True)
    return Share("same", degree, is_heard=True) if degree != 0 else SAME


_RULES = {"all-gather": gather, "reduce-scatter": scatter, "all-to-all": exchange, "collective-permute": send}
"""By XLA's name of a collective, what it makes of a value."""
