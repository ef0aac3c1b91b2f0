"""Where a ``typed_jit`` runs: its mesh, what hints mean there, and whether arrays lie as they say."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .. import _jax
from ..errors import MeshAxisError
from ..errors.failures import BoundaryMark, Failure, WrongSharding
from ..errors.phrases import mesh_text
from ..hints.array import ArrayHint
from ..hints.axes import Naming
from ..hints.lying import region_of, wrong_lying, wrong_placement
from ..hints.scope import Region, naming_here, same
from ..hints.walk import Found
from ..meshes import devices_text, find_mesh, refuse_other_devices
from ..notation.layout import Layout

_MOST_HINTS = 4096
_CURE = "place it by shard(x, hint)"


class Place:
    """A mesh, and what names in hints mean on it.

    Attributes:
      mesh: the mesh; without devices where only those of the arguments matter, or none.
      region: where global arrays are checked on their way in and out.
      values: the same, for arrays as they stand, whose sharding is looked at.
      by_spec: whether JAX is given PartitionSpecs, and knows the mesh itself.
    """

    def __init__(self, mesh: _jax.AnyMesh, naming: Naming, by_spec: bool) -> None:
        self.mesh, self.by_spec = mesh, by_spec
        axes, explicit = mesh.shape_tuple, _jax.explicit_axes(mesh)
        named: dict[str, Any] = {"aliases": naming.aliases, "rules": naming.rules, "explicit": explicit}
        self.region = same(Region(axes, (), split=axes, role="boundary", **named))
        self.values = same(Region(axes, (), **named))
        self._shardings: dict[tuple[ArrayHint, int], NamedSharding | PartitionSpec] = {}

    def sharding(self, hint: ArrayHint, rank: int) -> NamedSharding | PartitionSpec:
        """What ``jax.jit`` is told of an array."""
        found = self._shardings.get((hint, rank))
        if found is None:
            if len(self._shardings) >= _MOST_HINTS:
                self._shardings.clear()
            spec = self.region.spec(hint, rank)
            found = self._shardings[hint, rank] = spec if self.by_spec else NamedSharding(self.mesh, spec)
        return found


_place_of = lru_cache(maxsize=256)(Place)


def find_place(
    name: str, mesh: _jax.AnyMesh | None, naming: Naming, leaves: Callable[[], list[Found]], is_running: bool
) -> Place:
    """Where a call runs.

    Args:
      name: the function's name.
      mesh: the decorator's mesh.
      naming: what the decorator says of names.
      leaves: gives the arguments' arrays.
      is_running: whether it is to be computed, so that devices are needed.

    Raises:
      MeshAxisError: for no mesh, meshes that contradict each other, or a call inside a manual region.
      ShardingError: where a mesh without devices was given, for arrays that lie on no mesh like it.
    """
    context = _jax.context_mesh()
    if manual := _jax.manual_axes(context):
        axes = ", ".join(f"'{axis}'" for axis, _ in manual)
        problem = f"is a typed_jit, called inside a manual region over {axes}, where arrays are shards"
        raise MeshAxisError(f"{name}: {problem}\n\nHint: decorate it by typed instead, or call it outside")
    found, by_spec = find_mesh(name, mesh, leaves), False
    if isinstance(found, AbstractMesh):
        found = _with_devices(name, found, leaves, is_running)
        # Under jax.grad and jax.vmap JAX computes at once; only it knows the ambient mesh's devices there.
        by_spec = isinstance(found, AbstractMesh) and not context.empty and not _is_staged(leaves())
    return _place_of(found, naming_here(naming), by_spec)


def _with_devices(name: str, mesh: AbstractMesh, leaves: Callable[[], list[Found]], is_running: bool) -> _jax.AnyMesh:
    """A mesh like this one that has devices, if one is known: the ambient one, or the arguments'."""
    is_outside = _jax.is_outside_traces()
    ambient = _jax.ambient_devices() if is_outside else None
    if isinstance(ambient, Mesh):
        return ambient
    arrays = leaves()
    for leaf in arrays:
        own = _jax.value_mesh(_inner(leaf.value))
        if isinstance(own, Mesh) and own.shape_tuple == mesh.shape_tuple:
            return own if own.axis_types == mesh.axis_types else Mesh(own.devices, own.axis_names, mesh.axis_types)
    if is_outside and is_running:
        refuse_other_devices(name, mesh, arrays)
    return mesh


def _inner(value: Any) -> Any:
    return _jax.innermost(value).value if _jax.is_tracer(value) else value


def _is_staged(leaves: list[Found]) -> bool:
    """Whether an argument belongs to a program that is being traced, so that nothing is computed yet."""
    return any(_jax.is_tracer(_inner(leaf.value)) for leaf in leaves)


def disagreement(leaf: Found, place: Place) -> Failure | None:
    """What is wrong with how a value lies: by its type on Explicit axes, else by its placement.

    What is not placed yet lies nowhere, and is placed by ``jax.jit``.
    """
    value, hint = leaf.value, leaf.hint
    if hint is None:
        return None
    placed, is_marked = _jax.placement(value), bool(hint.spec.marks)
    if not is_marked:
        want = place.sharding(hint, len(value.shape)) if placed is not None else None
        if isinstance(want, NamedSharding) and _agrees(placed, want, len(value.shape)):
            return None
        if placed is None and isinstance(value, (np.ndarray, *_jax.SCALARS)):
            return None
    what = (_wrong_mark(hint, place) if is_marked else None) or _lies_otherwise(value, placed, hint, place)
    return Failure(what, leaf.subject, hint.text, _jax.type_text(value)) if what is not None else None


@lru_cache(maxsize=4096)
def _agrees(have: Any, want: NamedSharding, rank: int) -> bool:
    return have == want or (isinstance(want.mesh, Mesh) and have.is_equivalent_to(want, rank))


def _wrong_mark(hint: ArrayHint, place: Place) -> BoundaryMark | None:
    """A sum that is owed over an Auto axis, where JAX has no such global array."""
    layout = place.region.layout(hint)
    assert isinstance(layout, Layout)
    for sign, axes in (("+", layout.unreduced), ("-", layout.reduced)):
        for axis in sorted(axes - place.region.explicit):
            reason = f"mesh axis '{axis}' is of type Auto, over which JAX has no such global array"
            return BoundaryMark(sign, axis, reason, f"make '{axis}' an Explicit axis of the mesh, or drop the mark")
    return None


def _lies_otherwise(value: Any, placed: Any, hint: ArrayHint, place: Place) -> WrongSharding | BoundaryMark | None:
    rank = len(getattr(value, "shape", ()))
    want = place.values.spec(hint, rank)
    if isinstance(value, _jax.SHAPES):
        have = value.sharding
        return wrong_placement(have, want, tuple(range(rank)), rank, _CURE) if isinstance(have, NamedSharding) else None
    if placed is None and not _lies_somewhere(value):
        is_marked = any(_jax.spec_parts(want)[1:])
        return WrongSharding(_jax.spec_text(want), "not placed on the mesh") if is_marked else None
    own = region_of(value, place.values)
    layout = own.layout(hint)
    wrong = wrong_lying(value, layout, hint, own) if isinstance(layout, Layout) else None
    return wrong if wrong is not None or placed is None else _lies_elsewhere(placed, want, place)


def _lies_somewhere(value: Any) -> bool:
    """Whether it is known how a traced value lies: by its type, or as what jax.grad or jax.vmap stands on."""
    return _jax.explicit_spec(value) is not None or _jax.placement(_inner(value)) is not None


def _lies_elsewhere(placed: Any, want: PartitionSpec, place: Place) -> WrongSharding | None:
    """Sharded alike over another mesh: of other devices, of another order, or of other axes."""
    own, mesh = getattr(placed, "mesh", None), place.mesh
    if isinstance(mesh, AbstractMesh) or (own is not None and own.devices.tolist() == mesh.devices.tolist()):
        return None
    devices, others = [device.id for device in mesh.devices.flat], _jax.device_ids(placed, len(want))
    have, spec = f"sharded {_jax.spec_text(placed.spec) if own is not None else placed}", _jax.spec_text(want)
    if own is not None and others == devices:
        here, there = f"over {mesh_text(mesh.shape_tuple)}", f"over {mesh_text(own.shape_tuple)}"
    else:
        here, there = f"on {devices_text(devices)}", f"on {devices_text(others)}"
    return WrongSharding(f"{spec} {here}", f"{have} {there}", _CURE)
