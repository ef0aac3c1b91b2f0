"""Where something began, and by which operation, as messages tell it."""

from __future__ import annotations

from ... import _jax
from .reading import CLAIM, Beginning

_OPERATIONS = {
    **dict.fromkeys(("dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"), "contraction"),
    **dict.fromkeys(("reduce_sum", "scan"), "sum"),
    "gather": "lookup",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_or": "any",
    "reduce_and": "all",
    "reduce_prod": "product",
}


def operation_of(origin: Beginning) -> str:
    """What the field calls the operation with which something began."""
    eqn = origin.eqn
    if eqn is None or eqn.primitive.name == CLAIM or "claim" in eqn.params:
        claim = None if eqn is None else eqn.params["claim"]
        return "pattern" if claim is not None and claim.assertion.subject.is_pattern else "hint"
    if _jax.jaxpr.is_transposed(eqn):
        return "gradient"
    calls = [each for each in (eqn, *origin.calls) if _jax.source.equation_place(each)]
    name = _jax.source.called_function(calls[0] if calls else eqn)
    return _OPERATIONS.get(eqn.primitive.name, name)


def place_of(origin: Beginning) -> str:
    """Where the user wrote that, or called what it is in; of a gradient where it was asked for."""
    if origin.eqn is None:
        return ""
    calls = (origin.eqn, *origin.calls)
    if "claim" not in origin.eqn.params and _jax.jaxpr.is_transposed(origin.eqn):
        return next((place for eqn in calls if (place := _jax.source.gradient_place(eqn))), "")
    return next((place for eqn in calls if (place := _jax.source.equation_place(eqn))), "")
