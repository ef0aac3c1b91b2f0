"""The rules of collectives over the axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import _jax
from . import loss_kinds
from .functions import nonlinear
from .origins import ValueOrigin
from .reading import ReadEquation
from .rings import sent_around, shift_of, total
from .value import ANY, NOT_KNOWN, SAME, Share, unknown


def collective(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """A collective; over other axes it is linear, and keeps the dim."""
    reading, params = step.reading, step.params
    operation, count = _jax.jaxpr.collective_operation(step.eqn), len(step.eqn.outvars)
    if reading.axis not in _jax.jaxpr.named_axes(step.eqn):
        return _elsewhere(step, values, operation)
    reading.collectives.setdefault(id(step.eqn), (step.eqn, step.frame.calls, values[0]))
    # In groups, or also over a dim that jax.vmap has named.
    if params.get("axis_index_groups") is not None or any(isinstance(axis, int) for axis in params.get("axes", ())):
        return [NOT_KNOWN.reached] * count
    if operation == "all-reduce":
        end = step.primitive.end
        return [extreme(step, value, end) if end else total(step, value, at) for at, value in enumerate(values)]
    if (rule := _RULES.get(operation or "")) is not None:
        return [rule(step, value) for value in values]
    return [NOT_KNOWN.reached] * count


def _elsewhere(step: ReadEquation, values: list[Share], operation: str | None) -> Sequence[Share]:
    value, end, is_tiled = values[0], step.primitive.end, step.params.get("tiled", True)
    if len(values) != len(step.eqn.outvars):  # a ragged all-to-all
        return [SAME if all(value is SAME for value in values) else unknown(values)] * len(step.eqn.outvars)
    if end:
        return [nonlinear(step, [value]) if value.is_part and value.end != end else value for value in values]
    if operation == "all-to-all" and not is_tiled:
        return [value if value.dim is None else NOT_KNOWN]
    if operation == "all-gather" and not is_tiled and isinstance(value.dim, int):
        return [value.but(dim=value.dim + (value.dim >= step.params["all_gather_dimension"]))]
    if operation == "reduce-scatter" and not is_tiled and isinstance(value.dim, int):
        return [value.but(dim=value.dim - (value.dim > step.params["scatter_dimension"]))]
    return [value.without_number for value in values]


def extreme(step: ReadEquation, value: Share, end: str) -> Share:
    """A maximum or a minimum over the shards."""
    reading = step.reading
    is_own = bool(value.symbols) and not any(reading.losses[symbol].is_excusable for symbol, _ in value.symbols)
    if value.kind in ("unknown", "same", "local") and not is_own:
        return value.but(is_reached=True, number=None)
    if value.kind == "extreme" and value.end == end:
        return Share("same", value.degree, reduced=value.reduced | {value.part}, is_reached=True)
    if value.kind == "own" and all(
        str(var.aval.dtype) == "bool" for var in step.eqn.invars
    ):  # whether the predicate holds on any shard
        return Share("same", 0, reduced=value.reduced, is_reached=True)
    is_short = value.kind == "sum" and value.ring is not None  # a ring that leaves out some shards
    if value.is_reached and (value.is_part or value.kind == "own") and not is_short:  # the shards may agree
        return NOT_KNOWN.reached
    if value.kind in ("own", "same") and is_own:
        symbol = reading.lose(("bound", step.part), loss_kinds.shared_extreme(end), step, (value,), is_common=True)
        return common_bound(symbol, value)
    if value.is_part:
        return step.lost(loss_kinds.extreme_of_sums(end), value, kind="same")
    return NOT_KNOWN.reached


def common_bound(symbol: Any, value: Share) -> Share:
    """A bound that every shard has: a symbol, which is right if it cancels, like the shift of a softmax."""
    reduced = value.reduced | {symbol for symbol, _ in value.symbols}
    may_cancel, owned = value.may_cancel, frozenset({(symbol, 1)})
    return Share("same", ANY, role="+", symbols=owned, may_cancel=may_cancel, is_reached=True, reduced=reduced)


def gather(step: ReadEquation, value: Share) -> Share:
    """An all-gather: the shards' values along a new dim, or concatenated."""
    at, reading = step.params["all_gather_dimension"], step.reading
    if value.kind == "unknown":
        return value.reached
    is_hard = bool(value.symbols) and any(not reading.losses[symbol].is_excusable for symbol, _ in value.symbols)
    if not step.params["tiled"]:
        symbol_fields = {"role": "?", "symbols": value.symbols} if is_hard else {}
        return Share("gathered", value.degree, dim=at, root=("gathered", value), is_reached=True, **symbol_fields)  # type: ignore[arg-type]
    if value.kind == "sharded" and value.dim == at and (is_hard or not value.symbols) and not value.order:
        return value.but(kind="same", dim=None, is_reached=True)
    if value.kind == "sum":
        return Share("gathered", value.degree, dim=at, root=("gathered", value), is_reached=True)
    return NOT_KNOWN.reached


def scatter(step: ReadEquation, value: Share) -> Share:
    """A reduce-scatter: a sum over the shards; each shard keeps its part."""
    dim = step.params["scatter_dimension"] if step.params.get("tiled", True) else "rows"
    summed = total(step, value) if value.kind in ("sum", "same") else NOT_KNOWN.reached
    return summed.but(kind="sharded", dim=dim) if summed.kind == "same" else summed


def exchange(step: ReadEquation, value: Share) -> Share:
    """An all-to-all: one dim is gathered, another dim is sharded."""
    to, at = step.params["split_axis"], step.params["concat_axis"]
    is_part = value.kind == "sharded" and value.dim == at and to != at and not value.order
    if step.params["tiled"] and is_part and not step.reading.is_excusable(value):
        return value.but(dim=to, is_reached=True)
    return NOT_KNOWN.reached


def send(step: ReadEquation, value: Share) -> Share:
    """A ppermute."""
    shift = shift_of(step)
    sent = _sent(step, value, shift is not None)
    return sent if shift is None else sent_around(step, value, sent, shift)


def _sent(step: ReadEquation, value: Share, is_full: bool) -> Share:
    if value.kind == "unknown":
        return value.reached
    if is_full and value.kind == "same":
        return value
    if is_full and value.kind == "sum" and value.beside is None:
        step.reading.sent.append(ValueOrigin(step.eqn, step.frame.calls))
        return value.but(part=None, is_reached=True)
    losses = step.reading.losses
    if any(losses[symbol].why.is_of_slice for symbol, _ in value.symbols):
        step.reading.sent.append(ValueOrigin(step.eqn, step.frame.calls))
    symbols = frozenset((symbol, 0) for symbol, _ in value.symbols if not losses[symbol].is_excusable)
    return Share("own", 0, is_reached=True, trait="sent", role="?" if symbols else "", symbols=symbols)


def index(step: ReadEquation, values: list[Share]) -> Share:
    """A shard's own index."""
    if step.reading.axis not in _jax.jaxpr.named_axes(step.eqn):
        return Share("same", 0)
    name = step.params["axis_name"]
    if name in (step.reading.axis, (step.reading.axis,)):
        return Share("own", 0, is_reached=True, affine=((0, 1),) * len(step.reading.numbers.traces))
    return Share("own", 0, is_reached=True)


def resharded(step: ReadEquation, values: list[Share]) -> Share:
    """This library's ``reshard``, with the layouts before and after it."""
    layout, axis = step.params["target"], step.reading.axis
    degree, dim = values[0].degree if values[0].kind != "unknown" else 0, layout.dim_of(axis)
    if axis in layout.unreduced:
        return Share("sum", degree, is_reached=True)
    if dim is not None:
        return Share("sharded", degree, dim=dim, is_reached=True)
    return Share("same", degree, is_reached=True) if degree != 0 else SAME


_RULES = {"all-gather": gather, "reduce-scatter": scatter, "all-to-all": exchange, "collective-permute": send}
"""By XLA's name of a collective, its rule."""
