"""Count the runs of a program within it, by a mutable array that it closes over."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ... import _jax

_GOLDEN = 0.6180339887498949


def is_due(every: int, mesh: _jax.mesh.AnyMesh) -> Any:
    """Whether this run of the traced program is due, as a boolean in the program; the first run is due."""
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
    """A counter on all devices of a mesh; None if they are unknown or missing."""
    try:
        with jax.ensure_compile_time_eval():
            zero: Any = np.uint32(0)
            if isinstance(mesh, Mesh):
                zero = jax.device_put(zero, NamedSharding(mesh, PartitionSpec()))
            count = jax.new_ref(zero)  # under jax.set_mesh on the devices of that mesh
            return count if len(count[...].sharding.device_set) == mesh.size else None
    except Exception:  # for instance a mesh of devices that are only described
        return None
