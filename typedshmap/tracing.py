"""Trace a program once, have it read, and put it where the call stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from . import _jax


def evaluate(f: Callable[..., Any], args: Sequence[Any], read: Callable[[Any], None]) -> Sequence[Any]:
    """Call a mapped function, after its traced program has been read.

    It is traced once, but where it is differentiated or mapped over as it is traced: there JAX would
    make another program of one that is traced already than of the function, so that it is called as well.

    Args:
      f: the function, which returns a list of arrays.
      args: its arguments.
      read: is called with the program, and may raise.
    """
    if _jax.is_jit_disabled():
        read(jax.make_jaxpr(f)(*args))
        return f(*args)
    if _jax.is_outside_traces():
        # A jit of its own for every call: nothing that the function closes over can be stale.
        compiled = jax.jit(f)
        read(compiled.trace(*args).jaxpr)
        return compiled(*args)
    traced, program = _jax.trace(f, args)
    read(program)
    if _jax.is_transformed((*args, *program.consts)):
        return f(*args)
    return traced(*args)
