"""Trace a program once, have it read, and put it where the call stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from . import _jax

_NAME = "shard_map"


def evaluate(
    f: Callable[..., Any], args: Sequence[Any], read: Callable[[Any], None], has_results: bool = True
) -> Sequence[Any]:
    """Call a mapped function, whose traced program is read.

    It is traced once, but where it is differentiated or mapped over as it is traced: there JAX would
    make another program of one that is traced already than of the function, so that it is called as well.

    Args:
      f: what ``jax.shard_map`` returned, for a function that returns a list of arrays.
      args: its arguments.
      read: is called with the equation that it is in a program, None where it left none, and may raise.
      has_results: whether it returns any, as far as its hints tell.
    """
    if _jax.is_jit_disabled():
        read(_mapped(jax.make_jaxpr(f)(*args)))
        return f(*args)
    if _jax.is_outside_traces():
        # A jit of its own for every call: nothing that the function closes over can be stale.
        compiled = jax.jit(f)
        read(_mapped(compiled.trace(*args).jaxpr))
        return compiled(*args)
    if has_results and _jax.is_staging():
        return _staged(f, args, read)
    traced, program = _jax.trace(f, args)
    read(_mapped(program))
    if _jax.is_transformed((*args, *program.consts)):
        return f(*args)
    return traced(*args)


def _staged(f: Callable[..., Any], args: Sequence[Any], read: Callable[[Any], None]) -> Sequence[Any]:
    """Call a mapped function where it goes straight into a program; its results lead to its equation."""
    results = f(*args)
    eqn = _jax.equation_of(results, _NAME)
    read(_mapped(_jax.trace(f, args)[1]) if eqn is None else eqn)
    return results


def _mapped(program: Any) -> Any:
    """The equation of a mapped function that is all of a program."""
    return next((eqn for eqn in reversed(_jax.equations(program)) if eqn.primitive.name == _NAME), None)
