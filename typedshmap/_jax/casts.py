"""What changes a value's manual type, gathers it, or places it on devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from .array import SHAPES, is_mapped, manual_type, partition_spec, spec_entries
from .mesh import context_mesh, explicit_axes
from .trace import is_outside_traces
from .versions import HAS_MANUAL_TYPES, gather_invarying


def pcast_reduced(x: Any, axes: Iterable[str]) -> Any:
    """``x`` typed as reduced over those of the axes over which it is the same on every shard."""
    kind = manual_type(x)
    unmarked = tuple(sorted(frozenset(axes) - kind.varying - kind.unreduced - kind.reduced))
    return jax.lax.pcast(x, unmarked, to="reduced") if unmarked else x


def pcast_unreduced(x: Any, axes: Iterable[str]) -> Any:
    """``x`` typed as an addend over ``axes``: what varies there becomes unreduced.

    A value in an un-jitted region on an Auto mesh cannot have that type, and JAX says so by a
    ValueError; it stays varying, which means the same.
    """
    unreduced = tuple(sorted(set(axes) & manual_type(x).varying))
    if not unreduced:
        return x
    try:
        return jax.lax.pcast(x, unreduced, to="unreduced")
    except (ValueError, NotImplementedError):
        return x


def pcast_varying(x: Any, axes: Iterable[str]) -> Any:
    """``x`` typed as varying over ``axes``, where it is not yet, nor unreduced; reduced axes go first."""
    kind = manual_type(x)
    missing = frozenset(axes) - kind.varying - kind.unreduced
    if not missing:
        return x
    x, missing = drop_reduced(x), tuple(sorted(missing - kind.reduced))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def drop_reduced(x: Any) -> Any:
    """``x`` with its reduced axes typed as varying, which has the same gradient and refuses no operation."""
    reduced = tuple(sorted(manual_type(x).reduced))
    return jax.lax.pcast(x, reduced, to="varying") if reduced else x


def refuse_unreduced(x: Any) -> None:
    """Refuse to move a value typed unreduced before jax 0.10, which slices and gathers no such value.

    Raises:
      NotImplementedError: there, for such a value.
    """
    axes = () if HAS_MANUAL_TYPES else sorted(manual_type(x).unreduced)
    if axes:
        raise NotImplementedError(
            f"jax {jax.__version__} moves no value that is typed unreduced over {', '.join(map(repr, axes))}: "
            "leave it varying, without lax.pcast, or use jax 0.10"
        )


def pcast_unreduced_all(x: Any, axes: tuple[str, ...], has_vma: bool) -> Any:
    """``x`` as an addend over ``axes``, all of them typed in the same way, as a sum over several needs it."""
    if not has_vma or not axes:
        return x
    x = pcast_varying(x, axes)
    return pcast_unreduced(x, axes) if manual_type(x).unreduced & frozenset(axes) else x


def all_gather(x: Any, axes: tuple[str, ...], dim: int, to: str, has_vma: bool) -> Any:
    """The shards over ``axes`` put together along a dim.

    Args:
      to: ``"invarying"``, ``"reduced"`` or ``"varying"``, how JAX types the result.
      has_vma: whether JAX types values here. Where it does not, the plain gather is the one whose
        transpose is right, and jax 0.10 has no other.

    A value in an un-jitted region on an Auto mesh cannot be reduced, and JAX says so by a
    ValueError; it is gathered as varying, which has the same gradient.
    """
    if not x.shape[dim]:  # XLA gathers along no empty dim
        return all_gather(x[None], axes, 0, to, has_vma).reshape(x.shape)
    if not has_vma:
        return jax.lax.all_gather(x, axes, axis=dim, tiled=True)
    x = pcast_varying(x, axes)
    if to == "invarying" and not HAS_MANUAL_TYPES:
        return gather_invarying(x, axes, dim)
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


def _device_put_among_processes(x: Any, sharding: NamedSharding) -> Any:
    """A value that every process has, placed over all of them.

    ``jax.device_put`` takes no array there that is on devices of this process, and no keys.
    """
    if not isinstance(x, jax.Array):
        return jax.device_put(x, sharding)
    is_key = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
    if not x.is_fully_addressable:
        # Under jax.set_mesh a key that every process makes is placed on all of them.
        moved = jax.device_put(jax.random.key_data(x) if is_key else x, sharding)
        return jax.random.wrap_key_data(moved, impl=jax.random.key_impl(x)) if is_key else moved
    if is_key:
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    return jax.device_put(np.asarray(x), sharding)


def device_put_global(x: Any, sharding: NamedSharding) -> Any:
    """A value with a sharding; under a transformation, where nothing is moved at once, constrained to it.

    There ``jax.device_put`` says nothing to the compiler on Auto axes and needs devices on Explicit ones,
    and ``with_sharding_constraint`` is refused on Explicit ones.
    """
    if is_outside_traces():
        return (jax.device_put if sharding.is_fully_addressable else _device_put_among_processes)(x, sharding)
    spec, explicit = spec_entries(sharding.spec), explicit_axes(sharding.mesh)
    if explicit:
        over_explicit = partition_spec(spec.over(explicit).dim_axes, spec.unreduced, spec.reduced)
        x = (jax.device_put if context_mesh().empty else jax.reshard)(x, NamedSharding(sharding.mesh, over_explicit))
    others = frozenset(sharding.mesh.axis_names) - explicit
    if not others:
        return x
    over_others = partition_spec(spec.over(others).dim_axes)
    return jax.lax.with_sharding_constraint(x, NamedSharding(sharding.mesh, over_others))


def device_put_typed(x: Any, sharding: NamedSharding | PartitionSpec) -> Any:
    """A value placed so, on the ambient mesh by a PartitionSpec; of a ShapeDtypeStruct, one that says so."""
    if isinstance(x, SHAPES):
        return x if x.sharding is not None else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    # device_put places what jax.vmap maps over as if it were one of its items; reshard wants the mesh to be ambient.
    is_reshard = not isinstance(sharding, NamedSharding) or is_mapped(x)
    return jax.reshard(x, sharding) if is_reshard else jax.device_put(x, sharding)
