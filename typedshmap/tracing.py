"""Call a mapped function, and have its traced body read.

The call itself is left to who asks: JAX notes the whole stack with every equation that it traces, so that each
frame between a body and its call is paid for as often as there are equations in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from . import _jax

Function = Callable[..., Any]


class Program(NamedTuple):
    """What to call in the place of a mapped function, and whether its traced body is to be read afterwards."""

    call: Function
    is_read_later: bool


def program_of(f: Function, args: Sequence[Any], read: Callable[[Any], bool], has_results: bool = True) -> Program:
    """What to call in the place of a mapped function, whose traced body is read.

    Where a program is being traced, also one that is differentiated as it is traced, the call is JAX's own, and
    what it traced is read afterwards. Where something is computed at once, it is read before.

    Args:
      f: the function, which returns a list of arrays.
      args: its arguments.
      read: is called with the traced region, and may raise; it tells whether all that the body states stands in it.
      has_results: whether the list may hold any, by which what was traced is found in the program around.
    """
    if _jax.is_jit_disabled() or not _jax.are_staged(args):
        return _read_first(f, args, read)
    if _jax.is_outside_traces():
        # A jit of its own for every call: nothing that the function closes over can be stale.
        return _read_first(jax.jit(f), args, read)
    return Program(f, True) if has_results else _read_first(_jax.inlined(f), args, read)


def _read_first(f: Function, args: Sequence[Any], read: Callable[[Any], bool]) -> Program:
    """Read a function, of which one under ``jax.jit`` is not traced again when it is called."""
    read(_jax.region_in(_jax.program_of(f, args)))
    return Program(f, False)


def read_later(f: Function, args: Sequence[Any], results: Sequence[Any], read: Callable[[Any], bool]) -> None:
    """Read what a mapped function was traced to.

    Where no program holds all of the body, as under ``jax.vmap``, it is traced a second time to be read.
    """
    traced = _jax.region_of(results)
    if traced is None or not read(traced):
        read(_jax.region_in(jax.make_jaxpr(f)(*args)))
