"""Whether what is the same on every shard differs along a dim, so that its copies are no parts of a whole."""

from __future__ import annotations

from typing import Any

from ... import _jax
from .reading import ENTRY_BY_ENTRY


def differs_along(jaxpr: Any, at: int, dim: int | None) -> bool:
    """Whether a result is seen to differ along a dim: it comes, entry by entry, of an argument or of places there."""
    jaxpr = _jax.jaxpr.open_jaxpr(jaxpr)
    makers = _jax.jaxpr.makers(jaxpr)
    waiting, seen = [(jaxpr.outvars[at], dim)], set[Any]()
    for atom, along in waiting:
        if _jax.jaxpr.is_literal(atom) or (atom, along) in seen or along is None or not atom.aval.shape:
            continue
        seen.add((atom, along))
        if atom.aval.shape[along] == 1:
            continue
        eqn = makers.get(atom)
        if eqn is None:
            if atom in jaxpr.invars:
                return True
            continue
        name, shape = eqn.primitive.name, atom.aval.shape
        if name == "iota" and eqn.params["dimension"] == along:
            return True
        if name == "broadcast_in_dim":
            dims = eqn.params["broadcast_dimensions"]
            waiting += [(eqn.invars[0], dims.index(along))] if along in dims else []
        elif name == "transpose":
            waiting.append((eqn.invars[0], eqn.params["permutation"][along]))
        elif (inner := _jax.jaxpr.called_jaxpr(eqn)) is not None:
            if differs_along(inner, eqn.outvars.index(atom), along):
                return True
        elif name in ENTRY_BY_ENTRY:
            waiting += [(operand, along) for operand in eqn.invars if getattr(operand.aval, "shape", ()) == shape]
    return False
