"""Counting how often a program runs, within the program.

The count is a mutable array (`jax.new_ref`) that the program closes over: no callback, no new trace, and gradients,
loops and branches count as often as they run."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ... import _jax

_GOLDEN = 0.6180339887498949


def is_due(every: int, mesh: _jax.mesh.AnyMesh) -> Any:
    """Whether a run of the program that is being traced is one of every so many: a truth value of that program.

    The first run is. In a loop, and wherever else a jaxpr is traced for itself, the gaps between two are ``every`` or
    one less, in golden proportion: with equal gaps some iterations of the loop might never be due.

    Args:
      every: at most how many runs from one to the next.
      mesh: where the program runs.

    Returns:
      True where each run is, also where none can be counted: under `jax.vmap`, in a ``jax.jit`` within another, which
      takes no such array if it has shardings, and on devices that are not known.
    """
    if (
        every == 1
        or _jax.trace.is_mapped_around()
        or _jax.trace.is_in_inner_jit()
        or (count := _count_on(mesh)) is None
    ):
        return True
    number = count[...]
    count[...] = number + np.uint32(1)
    if not _jax.trace.is_nested():
        return number % np.uint32(every) == 0
    step = np.uint32(2**32 / (every - 1 + _GOLDEN))
    return number * step < step


def _count_on(mesh: _jax.mesh.AnyMesh) -> Any:
    """A count on all devices of a mesh; None where they are not known, or are not there."""
    try:
        with jax.ensure_compile_time_eval():
            zero: Any = np.uint32(0)
            if isinstance(mesh, Mesh):
                zero = jax.device_put(zero, NamedSharding(mesh, PartitionSpec()))
            count = jax.new_ref(zero)  # under jax.set_mesh on the devices of that
            return count if len(count[...].sharding.device_set) == mesh.size else None
    except Exception:  # of many kinds: a mesh of devices that are described only
        return None
