"""What changes a value's manual type, gathers it, or places it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from .meshes import context_mesh, explicit_axes
from .shardings import partition_spec, spec_parts
from .traces import is_outside_traces
from .values import SHAPES, is_mapped, manual_type


def make_reduced(x: Any, axes: Iterable[str]) -> Any:
    """``x`` typed as reduced over those of the axes over which it is the same on every shard."""
    kind = manual_type(x)
    alike = tuple(sorted(frozenset(axes) - kind.varying - kind.unreduced - kind.reduced))
    return jax.lax.pcast(x, alike, to="reduced") if alike else x


def leave_unreduced(x: Any, axes: Iterable[str]) -> Any:
    """``x`` typed as an addend over ``axes``: what varies there becomes unreduced.

    A value in an un-jitted region on an Auto mesh cannot have that type, and JAX says so by a
    ValueError; it stays varying, which means the same.
    """
    owed = tuple(sorted(set(axes) & manual_type(x).varying))
    if not owed:
        return x
    try:
        return jax.lax.pcast(x, owed, to="unreduced")
    except (ValueError, NotImplementedError):
        return x


def vary(x: Any, axes: Iterable[str]) -> Any:
    """``x`` typed as varying over ``axes``, where it is not yet, nor unreduced; reduced axes go first."""
    kind = manual_type(x)
    missing = tuple(sorted(frozenset(axes) - kind.varying - kind.unreduced))
    if not missing:
        return x
    x = without_reduced(x)
    missing = tuple(axis for axis in missing if axis not in manual_type(x).varying)
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def without_reduced(x: Any) -> Any:
    """``x`` with its reduced axes typed as varying, which has the same gradient and refuses no operation."""
    reduced = tuple(sorted(manual_type(x).reduced))
    return jax.lax.pcast(x, reduced, to="varying") if reduced else x


def owe(x: Any, axes: tuple[str, ...], typed: bool) -> Any:
    """``x`` as an addend over ``axes``, all of them typed alike, as a sum over several needs it."""
    if not typed or not axes:
        return x
    x = vary(x, axes)
    kind = manual_type(x)
    return leave_unreduced(x, axes) if kind.unreduced & frozenset(axes) else x


def all_gather(x: Any, axes: tuple[str, ...], dim: int, to: str, typed: bool) -> Any:
    """The shards over ``axes`` put together along a dim.

    Args:
      to: ``"invarying"``, ``"reduced"`` or ``"varying"``, how JAX types the result.
      typed: whether JAX types values here. Where it does not, the plain gather is the one whose
        transpose is right, and jax 0.10 has no other.

    A value in an un-jitted region on an Auto mesh cannot be reduced, and JAX says so by a
    ValueError; it is gathered as varying, which has the same gradient.
    """
    if not x.shape[dim]:  # XLA gathers along no empty dim
        return all_gather(x[None], axes, 0, to, typed).reshape(x.shape)
    if not typed:
        return jax.lax.all_gather(x, axes, axis=dim, tiled=True)
    x = vary(x, axes)
    try:
        return jax.lax.all_gather(x, axes, axis=dim, tiled=True, to=to)
    except ValueError:
        if to != "reduced":
            raise
        return jax.lax.all_gather(x, axes, axis=dim, tiled=True)


def gather_bytes(data: bytes) -> list[bytes]:
    """What every process sends here, by two all-gathers over all processes: the lengths, then the bytes."""
    lengths = multihost_utils.process_allgather(np.array([len(data)], np.int32)).reshape(-1)
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    gathered = multihost_utils.process_allgather(padded).reshape(len(lengths), -1)
    return [bytes(row[:length]) for row, length in zip(gathered, lengths, strict=True)]


def _place_among_processes(x: Any, sharding: NamedSharding) -> Any:
    """A value that every process has, placed over all of them.

    ``jax.device_put`` takes no array there that lies on devices of this process, and no keys.
    """
    if not isinstance(x, jax.Array):
        return jax.device_put(x, sharding)
    is_key = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
    if not x.is_fully_addressable:
        # Under jax.set_mesh a key that every process makes lies on all of them.
        moved = jax.device_put(jax.random.key_data(x) if is_key else x, sharding)
        return jax.random.wrap_key_data(moved, impl=jax.random.key_impl(x)) if is_key else moved
    if is_key:
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    return jax.device_put(np.asarray(x), sharding)


def place(x: Any, sharding: NamedSharding) -> Any:
    """A value with a sharding; under a transformation, where nothing is moved at once, constrained to it.

    There ``jax.device_put`` says nothing to the compiler on Auto axes and needs devices on Explicit ones,
    and ``with_sharding_constraint`` is refused on Explicit ones.
    """
    if is_outside_traces():
        if not sharding.is_fully_addressable:
            return _place_among_processes(x, sharding)
        return jax.device_put(x, sharding)
    spec, explicit = spec_parts(sharding.spec), explicit_axes(sharding.mesh)
    if explicit:
        parts = [tuple(axis for axis in axes if axis in explicit) for axes in spec.parts]
        typed = NamedSharding(sharding.mesh, partition_spec(parts, spec.unreduced, spec.reduced))
        x = jax.device_put(x, typed) if context_mesh().empty else jax.reshard(x, typed)
    if len(explicit) == len(sharding.mesh.axis_names):
        return x
    parts = [tuple(axis for axis in axes if axis not in explicit) for axes in spec.parts]
    return jax.lax.with_sharding_constraint(x, NamedSharding(sharding.mesh, partition_spec(parts)))


def put(x: Any, sharding: NamedSharding | PartitionSpec) -> Any:
    """A value placed so, on the ambient mesh by a PartitionSpec; of a ShapeDtypeStruct, one that says so."""
    if isinstance(x, SHAPES):
        return x if x.sharding is not None else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    # device_put places what jax.vmap maps over as if it were one of its items; reshard wants the mesh to be ambient.
    is_reshard = not isinstance(sharding, NamedSharding) or is_mapped(x)
    return jax.reshard(x, sharding) if is_reshard else jax.device_put(x, sharding)
