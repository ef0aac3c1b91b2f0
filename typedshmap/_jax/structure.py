"""The content of a jaxpr, as a key that compares by value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .jaxpr import CLAIM, open_jaxpr
from .versions import extend_core

# Parameters of equations that are functions: their jaxprs have the same content.
_FUNCTIONS = frozenset(
    ["policy", "jvp_jaxpr_fun", "bwd", "fwd_jaxpr_thunk", "out_trees", "rule", "ft_in", "ft_out", "debug_info"]
)
_PLAIN = frozenset([bool, int, float, complex])


def structure_of(jaxpr: Any, notes: Mapping[Any, Any]) -> tuple[Any, ...] | None:
    """A jaxpr's equations with numbered variables and the notes of these; None for a jaxpr that cannot be compared."""
    key: list[Any] = []
    try:
        _add_equations(open_jaxpr(jaxpr), notes, key)
        hash(found := tuple(key))
    except TypeError:  # a parameter without a hash
        return None
    return found


def _add_equations(jaxpr: Any, notes: Mapping[Any, Any], key: list[Any]) -> None:
    """Add the equations of a jaxpr to a key; a hot path, which avoids calls."""
    core = extend_core()
    literal, jaxprs, numbers, count = core.Literal, (core.Jaxpr, core.ClosedJaxpr), dict[Any, int](), 0
    for var in (*jaxpr.constvars, *jaxpr.invars):
        numbers[var] = count = count + 1
        key += (var.aval, notes[var]) if var in notes else (var.aval,)
    for eqn in jaxpr.eqns:
        primitive, params = eqn.primitive, eqn.params
        key += (primitive,)
        for atom in eqn.invars:
            if atom.__class__ is not literal:
                key += (numbers[atom],)
            else:
                value = atom.val
                key += (atom.aval, value if value.__class__ in _PLAIN else np.asarray(value).tobytes())
        if primitive.name == CLAIM:
            claim = params["claim"]
            key += (claim and claim.meaning, params["own"])
            params = {}
        for name in params:
            if name in _FUNCTIONS:
                continue
            value = params[name]
            inner = value if value.__class__ is tuple else (value,)
            if inner and inner[0].__class__ in jaxprs:
                for part in inner:
                    if getattr(part, "consts", ()):
                        raise TypeError("an inner program with constants")
                    _add_equations(open_jaxpr(part), notes, key)
            else:
                key += (name, value)
        for var in eqn.outvars:
            numbers[var] = count = count + 1
            if var in notes:
                key += (count, notes[var])
    for atom in jaxpr.outvars:
        key += (numbers[atom],) if atom.__class__ is not literal else (atom.aval, np.asarray(atom.val).tobytes())
