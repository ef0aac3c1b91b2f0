"""Where something began, as messages tell it."""

from __future__ import annotations

from ... import _jax
from .reading import Beginning


def place_of(origin: Beginning) -> str:
    """Where the user wrote that, or called what it is in; of a gradient where it was asked for."""
    if origin.eqn is None:
        return ""
    calls = (origin.eqn, *origin.calls)
    if "claim" not in origin.eqn.params and _jax.jaxpr.is_transposed(origin.eqn):
        return next((place for eqn in calls if (place := _jax.source.gradient_place(eqn))), "")
    return next((place for eqn in calls if (place := _jax.source.equation_place(eqn))), "")
