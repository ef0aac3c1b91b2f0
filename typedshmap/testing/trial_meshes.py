"""Choose the meshes on which a function is tried: one device, every axis alone, all axes, and permuted sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from .. import _jax
from .._jax.mesh import mesh_sizes
from ..errors import MeshAxisError
from ..errors.phrases import mesh_text, value_text
from ..inspection import Signature
from ..meshes import why_unusable

ONE_DEVICE = "one device"
_MOST_DEVICES = 8
_EXAMPLE = '{"dp": 4, "tp": 2}'
_EIGHT = "XLA_FLAGS=--xla_force_host_platform_device_count=8, set before JAX is imported"


@dataclass(frozen=True)
class FunctionAxes:
    """The mesh axes of a function, and devices for meshes with these axes.

    Attributes:
      sizes: the size of each axis; 1 if it is unknown.
      types: the type of each axis.
      devices: the devices.
    """

    sizes: Mapping[str, int]
    types: Mapping[str, AxisType]
    devices: Sequence[Any]

    def abstract(self, sizes: Mapping[str, int]) -> AbstractMesh:
        """A mesh of these axes without devices, with size 1 by default."""
        shape = tuple(sizes.get(name, 1) for name in self.sizes)
        return AbstractMesh(shape, tuple(self.sizes), axis_types=tuple(self.types.values()))

    def mesh(self, sizes: Mapping[str, int]) -> Mesh:
        """The same with devices; raises if there are too few."""
        mesh = self.abstract(sizes)
        if mesh.size > len(self.devices):
            raise MeshAxisError(
                f"assert_mesh_invariant: the mesh {mesh_text(mesh.shape.items())} needs {mesh.size} devices, and there "
                f"are {len(self.devices)}\n\nHint: {_more_devices(self.devices)}"
            )
        devices = np.array(self.devices[: mesh.size]).reshape(mesh.axis_sizes)
        return Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)

    def require_some(self, verb: str, name: str, cure: str) -> None:
        """Refuse a function without known mesh axes."""
        if not self.sizes:
            raise MeshAxisError(
                f"{verb}: {name}: no mesh axis is known, neither by a mesh nor by its hints\n\n"
                f"Hint: {cure} under jax.set_mesh(mesh)"
            )


def axes_of(signature: Signature, mesh: _jax.mesh.AnyMesh | None) -> FunctionAxes:
    """The axes of a function's mesh; if no mesh is known, the axes that its hints name."""
    if mesh is not None:
        types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        return FunctionAxes(dict(mesh.shape), types, _devices(mesh))
    sizes, types = dict.fromkeys(signature.axes, 1), dict.fromkeys(signature.axes, AxisType.Auto)
    return FunctionAxes(sizes, types, jax.local_devices())


def _devices(mesh: _jax.mesh.AnyMesh) -> Sequence[Any]:
    """The devices of this process on the platform of a mesh, starting with those of the mesh."""
    if isinstance(mesh, AbstractMesh):
        return jax.local_devices()
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    more = jax.local_devices(backend=local[0].platform) if local else jax.local_devices()
    return [*dict.fromkeys([*local, *more])]


def _more_devices(devices: Sequence[Any]) -> str:
    """The cure if more devices are needed."""
    platform = "" if devices[0].platform == "cpu" else "JAX_PLATFORMS=cpu and "
    return f"a CPU stands for several devices by {platform}{_EIGHT}"


def default_meshes(axes: FunctionAxes, name: str) -> list[Mesh]:
    """One device, every axis alone, all axes together, and their sizes permuted.

    An axis of the function's own mesh keeps its size if there are enough devices. An axis that would never be longer
    than 2 is also tried with size 4: with 2 shards, a shift to the left equals a shift to the right.
    """
    axes.require_some("assert_mesh_invariant", name, "pass meshes=, or call it")
    if len(axes.devices) < 2:
        raise MeshAxisError(
            f"assert_mesh_invariant: {name}: there is one device only, and meshes are compared\n\n"
            f"Hint: {_more_devices(axes.devices)}"
        )
    together, available = _all_axes(axes), len(axes.devices)
    alone = {name: size if 1 < size <= available else max(together[name], 2) for name, size in axes.sizes.items()}
    values = tuple(together.values())
    rotations = [values[at:] + values[:at] for at in range(1, min(len(values), 3))]
    permuted = [dict(zip(together, rotation, strict=True)) for rotation in rotations]
    sizes = [{}, *({name: size} for name, size in alone.items()), together, *permuted]
    longest = {name: max(shape.get(name, 1) for shape in sizes) for name in axes.sizes}
    sizes += [{name: 4} for name, size in longest.items() if size == 2 and available >= 4]
    if len(axes.sizes) == 1 and max(longest.values()) > 2:
        sizes += [{name: 2} for name in axes.sizes]
    return list(dict.fromkeys(map(axes.mesh, sizes)))


def _all_axes(axes: FunctionAxes) -> dict[str, int]:
    """The sizes of all axes together: their own, else the prime factors of the number of devices, largest first."""
    if 1 < prod(axes.sizes.values()) <= len(axes.devices):
        return dict(axes.sizes)
    count, names, sizes = min(len(axes.devices), _MOST_DEVICES), cycle(axes.sizes), dict.fromkeys(axes.sizes, 1)
    for prime in (7, 5, 3, 2):
        while count % prime == 0:
            sizes[next(names)] *= prime
            count //= prime
    return sizes


def given_meshes(meshes: Sequence[Any], axes: FunctionAxes) -> list[Mesh]:
    """One device, and the meshes that the user gives.

    Args:
      meshes: each a Mesh, a dict of sizes, or a text like ``"dp=4,tp=2"``; axes that are not named have size 1.
      axes: the axes of the function.
    """
    if not isinstance(meshes, (list, tuple)) or not meshes:
        got = value_text(meshes)
        raise MeshAxisError(f"assert_mesh_invariant: meshes= expects a list of meshes, as in [{_EXAMPLE}]; got {got}")
    shapes: list[Mesh | dict[str, int]] = []
    for mesh in meshes:
        if isinstance(mesh, AbstractMesh):
            problem = "an AbstractMesh has no devices to run on; pass its sizes as a dict"
            raise MeshAxisError(f"assert_mesh_invariant: {problem}")
        if isinstance(mesh, Mesh) and (problem := why_unusable(mesh)):
            raise MeshAxisError(f"assert_mesh_invariant: a mesh {problem}")
        shape = mesh if isinstance(mesh, Mesh) else mesh_sizes(mesh)
        if shape is None:
            problem = f"assert_mesh_invariant: meshes= holds {value_text(mesh)}, which is not a mesh"
            hint = f'write a jax.sharding.Mesh, {_EXAMPLE}, or a text like "dp=4,tp=2"'
            raise MeshAxisError(f"{problem}\n\nHint: {hint}")
        shapes.append(shape)
    more = [name for shape in shapes if not isinstance(shape, Mesh) for name in shape if name not in axes.sizes]
    sizes, types = {**axes.sizes, **dict.fromkeys(more, 1)}, {**axes.types, **dict.fromkeys(more, AxisType.Auto)}
    known = FunctionAxes(sizes, types, axes.devices)
    made = [shape if isinstance(shape, Mesh) else known.mesh(shape) for shape in shapes]
    return list(dict.fromkeys([one_axis_mesh(made[0], None), *made]))


def one_axis_mesh(mesh: Mesh, axis: str | None) -> Mesh:
    """A mesh along one axis of a mesh, with size 1 for the others; without an axis, the mesh of its first device."""
    part = tuple(slice(None) if name == axis else slice(1) for name in mesh.axis_names)
    return Mesh(mesh.devices[part], mesh.axis_names, axis_types=mesh.axis_types)


def with_replica(mesh: Mesh) -> Mesh:
    """A mesh of one device, with a second device along an axis over which nothing is sharded.

    JAX cannot lower an unreduced result on a mesh of a single device.
    """
    (device,) = mesh.devices.flat
    another = [local for local in jax.local_devices(backend=device.platform) if local != device]
    devices = np.array([device, *another[:1]]).reshape(*mesh.devices.shape, -1)
    types = (*mesh.axis_types, mesh.axis_types[0])
    return Mesh(devices, (*mesh.axis_names, "replica"), axis_types=types)


def name_of_mesh(mesh: Mesh) -> str:
    """A mesh in a message: its axes that are longer than 1, or ``one device``."""
    return mesh_text((name, size) for name, size in mesh.shape.items() if size > 1) or ONE_DEVICE


def longer_axes(mesh: Mesh) -> tuple[str, ...]:
    """The axes of a mesh that are longer than 1."""
    return tuple(name for name, size in mesh.shape.items() if size > 1)
