"""A cache of regions without suspects. A region with the same equations is not read again."""

from __future__ import annotations

from typing import Any

from ... import _jax
from .region_kinds import Kinds

_MOST = 256
# Keys are kept alive: JAX interns the types of values, and these are equal only while they are alive.
_known = dict[Any, tuple[Any, ...]]()


def is_known(kinds: Kinds) -> bool:
    """Whether an equal region was read before, without suspects."""
    closed_over = _known.get(_key_of(kinds))
    return closed_over is not None and (not closed_over or closed_over == (kinds.tied, kinds.constants))


def note_known(kinds: Kinds) -> None:
    """Record a region without suspects, unless an audit must report that degrees were unknown."""
    key = _key_of(kinds)
    if key is not None and not (kinds.is_thorough and (kinds.unread or kinds.held)):
        while len(_known) >= _MOST:
            _known.pop(next(iter(_known)), None)
        # Closed-over values are not in the equations.
        _known[key] = (kinds.tied, kinds.constants) if kinds.asks_closure else ()


def _key_of(kinds: Kinds) -> Any:
    """A key that is equal for regions with the same reading: everything that `Kinds` uses; None if there is no key.

    Whether a function of JAX made a number follows from the code of the body.
    """
    if kinds.key is None:
        noted = dict[Any, Any]()
        for var, eqns in kinds.claims.items() if kinds.claims else ():
            noted[var] = tuple([eqn.params["claim"].meaning for eqn in eqns])
        try:
            structure = _jax.jaxpr_key.jaxpr_key(_jax.jaxpr.open_jaxpr(kinds.body), noted)
            hash(structure)
        except (_jax.jaxpr_key.NoKey, TypeError):
            return None
        code = getattr(kinds.function, "__code__", None)
        given = *kinds.entering, *kinds.results.items(), *kinds.sizes.items()
        kinds.key = structure, code, *given, kinds.is_thorough
    return kinds.key
