"""The cause that a message tells: since when a value varies, as the field calls the operation, and at which line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import _jax
from ..errors.phrases import quoted_axes
from ..errors.varying import Cause
from .provenance import COLLECTIVES, Provenance

_OPERATIONS = {
    **dict.fromkeys(("dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"), "contraction"),
    **dict.fromkeys(("reduce_sum", "scan"), "sum"),
}
_NAMES = {"gather": "lookup", "reduce_or": "any", "reduce_and": "all", "reduce_prod": "product"}
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def find_cause(axes: Sequence[str], provenance: Callable[[str], Provenance | None]) -> Cause | None:
    """Since when a value varies over the first of some axes, with the others over which it does so since then."""
    every = {axis: one for axis in axes if (one := provenance(axis)) is not None}
    found = {axis: one for axis, one in every.items() if one.kind != "other" or one.eqn is not None}
    one = next(iter(found.values()), None)
    if one is None:
        return None
    shared = tuple(axis for axis, other in found.items() if _origin(other) == _origin(one))
    more: dict[str, tuple[str, ...]] = {}
    for axis in shared:
        if (dim := found[axis].dim) != one.dim and dim and one.dim:
            more[dim] = (*more.get(dim, ()), axis)
    what, place = _operation(one.eqn), one.place
    if one.kind in ("mean", "maximum", "minimum"):
        what = one.kind
    if one.kind == "item":
        what = _jax.source.called_function(one.eqn)
    if one.gradient and one.kind in ("sum", "mean"):
        what, place = "gradient", one.gradient
    late = _operation_at(one.late)
    return Cause(
        one.kind,
        shared,
        what,
        place,
        dim=one.dim,
        more_dims=tuple(more.items()),
        subject=one.subject,
        collective=COLLECTIVES.get(one.kind, ""),
        late=late,
        within=_jax.source.called_function(one.late) if late and late == _operation_at(one.eqn) else "",
        divisor="" if one.divisor is None else f"{one.divisor[0]:g} at {_line(one.divisor[1])}",
        astray=_operation_at(one.astray),
        follows=_operation_at(one.follows),
        untyped=one.untyped.partition(" ")[0] if COLLECTIVES.get(one.kind, "psum") == "psum" else "",
        inside=one.inside.partition(" ")[0] if one.kind == "mean" or one.divisor is not None else "",
        recounted=_recounted_by(one, axes),
        made=one.made,
    )


def _recounted_by(one: Provenance, axes: Sequence[str]) -> str:
    """Why a gradient that is due over some axes is wrong over others."""
    if one.recounted is None or not set(axes).isdisjoint(one.recounted[1]):
        return ""
    eqn, over = one.recounted[0], quoted_axes(one.recounted[1])
    if not _jax.jaxpr.collective_operation(eqn):
        return f"the mean at {_line(eqn)} is each shard's own over {over}, too"
    return f"without check_vma=True JAX differentiates the sum over {over} at {_line(eqn)} as a sum"


def _origin(one: Provenance) -> tuple[Any, ...]:
    """Since when a value varies: since an equation, or as a dim of an argument does."""
    return (one.kind, one.eqn) if one.eqn is not None else (one.kind, one.dim, one.subject)


def _operation(eqn: Any) -> str:
    if eqn is None or "claim" in eqn.params:
        claim = None if eqn is None else eqn.params["claim"]
        return "pattern" if claim is not None and claim.assertion.subject.is_pattern else "hint"
    name = _jax.source.called_function(eqn)
    return _OPERATIONS.get(eqn.primitive.name, _NAMES.get(name, name))


def _operation_at(eqn: Any) -> str:
    if eqn is None:
        return ""
    name = _jax.source.called_function(eqn)
    return f"{_SIGNS.get(name, name)} at {_line(eqn)}"


def _line(eqn: Any) -> str:
    return _jax.source.equation_place(eqn).partition(" ")[0]
