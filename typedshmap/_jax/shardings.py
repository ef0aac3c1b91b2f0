"""How global arrays lie: PartitionSpecs, and the shardings of values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def placement(x: Any) -> jax.sharding.Sharding | None:
    """The sharding of a committed concrete array, else None."""
    if not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer) or not x.committed:
        return None
    return x.sharding


def explicit_spec(x: Any) -> NamedSharding | None:
    """The sharding in a value's type, if its mesh has Explicit axes."""
    if not isinstance(x, jax.Array):
        return None
    sharding = jax.typeof(x).sharding
    if sharding.mesh.empty or AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return sharding


def partition_spec(
    parts: Iterable[tuple[str, ...]], unreduced: Iterable[str] = (), reduced: Iterable[str] = ()
) -> PartitionSpec:
    """A PartitionSpec with one entry per dim."""
    entries = (None if not axes else axes[0] if len(axes) == 1 else axes for axes in parts)
    return PartitionSpec(*entries, unreduced=frozenset(unreduced), reduced=frozenset(reduced))


class SpecParts(NamedTuple):
    """The entries of a PartitionSpec, each as a tuple of mesh axes."""

    parts: tuple[tuple[str, ...], ...]
    unreduced: frozenset[str]
    reduced: frozenset[str]


def spec_parts(spec: PartitionSpec) -> SpecParts:
    """Read a PartitionSpec."""
    parts = tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec.partitions)
    return SpecParts(parts, frozenset(spec.unreduced), frozenset(spec.reduced))


def odd_entries(spec: PartitionSpec) -> list[Any]:
    """What stands in a PartitionSpec and is no name of a mesh axis: UNCONSTRAINED, or axes that are no strings."""
    entries = [axis for e in spec.partitions for axis in (e if isinstance(e, tuple) else (e,))]
    return [axis for axis in entries if axis is not None and not isinstance(axis, str)]


def spec_text(spec: PartitionSpec) -> str:
    """``P('dp', None)``, alike on every version."""
    parts = spec_parts(spec)
    entries = [repr(axes[0]) if len(axes) == 1 else repr(axes) if axes else "None" for axes in parts.parts]
    for word, axes in (("unreduced", parts.unreduced), ("reduced", parts.reduced)):
        entries += [f"{word}={{{', '.join(map(repr, sorted(axes)))}}}"] if axes else []
    return f"P({', '.join(entries)})"


def device_ids(sharding: jax.sharding.Sharding, rank: int) -> list[int]:
    """The ids of a sharding's devices, in its order, which a set of devices does not keep."""
    mesh = getattr(sharding, "mesh", None)
    size = len(sharding.device_set)
    devices = sharding.devices_indices_map((size,) * rank) if mesh is None else mesh.devices.flat
    return [int(getattr(device, "id")) for device in devices]  # noqa: B009 (unknown to type checkers)


def named_sharding(
    sharding: jax.sharding.Sharding, axes: tuple[tuple[str, int], ...], rank: int
) -> NamedSharding | None:
    """A sharding of XLA's over mesh axes; None for one that no PartitionSpec over them says.

    Under an ambient mesh XLA's answer comes without that mesh, on devices in its order. How the
    parts step along each axis tells which dims it shards.
    """
    if isinstance(sharding, NamedSharding):
        return sharding
    places = sharding.devices_indices_map((len(sharding.device_set),) * rank)
    sizes = tuple(size for _, size in axes)
    if not axes or len(places) != np.prod(sizes):
        return None
    mesh = Mesh(np.array(list(places), dtype=object).reshape(sizes), tuple(name for name, _ in axes))
    starts = np.array([[part.start or 0 for part in index or ()] for index in places.values()], dtype=int)
    parts = _parts_of(starts.reshape(*sizes, rank), axes)
    used = [axis for part in parts for axis in part]
    if len(used) > len(set(used)):
        return None
    found = NamedSharding(mesh, partition_spec(parts), memory_kind=sharding.memory_kind)
    return found if sharding.is_equivalent_to(found, rank) else None


def _parts_of(starts: Any, axes: tuple[tuple[str, int], ...]) -> list[tuple[str, ...]]:
    """Per dim the axes along which parts start elsewhere, the largest step first.

    Args:
      starts: where each device's part starts: a dim per mesh axis, and one for the array's dims.
      axes: the mesh axes and their sizes.
    """
    steps = {
        name: starts[tuple(int(other == at) for other in range(len(axes)))]
        for at, (name, size) in enumerate(axes)
        if size > 1
    }
    return [
        tuple(axis for _, axis in sorted(((-step[dim], name) for name, step in steps.items() if step[dim])))
        for dim in range(starts.shape[-1])
    ]


def parts_along(sharding: jax.sharding.Sharding, rank: int) -> tuple[int, ...]:
    """In how many parts a sharding splits each dim."""
    probe = (len(sharding.device_set),) * rank
    return tuple(whole // part for whole, part in zip(probe, sharding.shard_shape(probe), strict=True))
