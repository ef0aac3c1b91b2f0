"""Choose the meshes that a function is tried on: one device, every axis alone, all axes, and their sizes permuted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from ... import _jax
from ...decorated import Decorated
from ...errors import MeshAxisError
from ...errors.phrases import mesh_text, shown
from ...hints.binding import Typed
from ...hints.nodes import array_hints
from ...hints.scope import Region, naming_here
from ...notation.layout import Layout
from ..written import mesh_sizes

_MOST_DEVICES = 8
_CURE = (
    "a CPU stands for several devices by XLA_FLAGS=--xla_force_host_platform_device_count=8, set before JAX is imported"
)


_EXAMPLE = '{"dp": 4, "tp": 2}'


@dataclass(frozen=True)
class Axes:
    """The mesh axes that a function knows.

    Attributes:
      sizes: of each its size; 1 where that is not known.
      types: of each its type.
      devices: the devices to make meshes of.
    """

    sizes: Mapping[str, int]
    types: Mapping[str, AxisType]
    devices: Sequence[Any]

    def mesh(self, sizes: Mapping[str, int]) -> Mesh:
        """A mesh of these axes, of size 1 where no size is given.

        Raises:
          MeshAxisError: for more devices than there are.
        """
        shape = tuple(sizes.get(name, 1) for name in self.sizes)
        if prod(shape) > len(self.devices):
            wanted = mesh_text(zip(self.sizes, shape, strict=True))
            raise MeshAxisError(
                f"assert_mesh_invariant: the mesh {wanted} needs {prod(shape)} devices, and there are "
                f"{len(self.devices)}\n\nHint: {_CURE}"
            )
        devices = np.array(self.devices[: prod(shape)]).reshape(shape)
        return Mesh(devices, tuple(self.sizes), axis_types=tuple(self.types.values()))


def axes_of(function: Decorated, typed: Typed, mesh: _jax.AnyMesh | None) -> Axes:
    """The axes of a function's mesh; those in its hints, where no mesh is known."""
    if mesh is not None:
        types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        return Axes(dict(mesh.shape), types, _devices(mesh))
    names = _named(function, typed)
    return Axes(dict.fromkeys(names, 1), dict.fromkeys(names, AxisType.Auto), jax.local_devices())


def _devices(mesh: _jax.AnyMesh) -> Sequence[Any]:
    """The devices of a mesh's kind that this process has; those of the mesh first."""
    if isinstance(mesh, AbstractMesh):
        return jax.local_devices()
    own = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    more = jax.local_devices(backend=own[0].platform) if own else jax.local_devices()
    return [*own, *(device for device in more if device not in own)]


def _named(function: Decorated, typed: Typed) -> tuple[str, ...]:
    naming = naming_here(function.naming)
    region = Region(None, (), aliases=naming.aliases, rules=naming.rules)
    nodes = (*typed.parameters.values(), *typed.positional, *((typed.result,) if typed.result is not None else ()))
    layouts = (region.layout(hint) for node in nodes for hint in array_hints(node))
    found = [axis for layout in layouts if isinstance(layout, Layout) for axis in _in_order(layout)]
    return tuple(dict.fromkeys([*found, *sorted(function.axis_names)]))


def _in_order(layout: Layout) -> list[str]:
    split = [axis for axes in layout.parts for axis in axes]
    return [*split, *sorted(layout.axes - set(split))]


def default_meshes(axes: Axes, name: str) -> list[Mesh]:
    """One device, every axis alone, all axes together, and their sizes permuted.

    An axis of the function's own mesh has its own size, where there are devices for it. If that leaves an axis that
    is never longer than 2, it is tried at 4, too: on 2 shards, left is right.

    Args:
      axes: the axes.
      name: the function's name.

    Raises:
      MeshAxisError: where there are no axes, or one device only.
    """
    if not axes.sizes:
        raise MeshAxisError(
            f"assert_mesh_invariant: {name}: no mesh axis is known, neither by a mesh nor by its hints\n\n"
            "Hint: pass meshes=, or call it under jax.set_mesh(mesh)"
        )
    if len(axes.devices) < 2:
        raise MeshAxisError(
            f"assert_mesh_invariant: {name}: there is one device only, and meshes are compared\n\nHint: {_CURE}"
        )
    together = _together(axes)
    alone = {name: _alone(name, axes, together) for name in axes.sizes}
    sizes = [{}, *({name: size} for name, size in alone.items()), together, *_permuted(together)]
    longest = {name: max(each.get(name, 1) for each in sizes) for name in axes.sizes}
    sizes += [{name: 4} for name, size in longest.items() if size == 2 and len(axes.devices) >= 4]
    if len(axes.sizes) == 1 and max(longest.values()) > 2:
        sizes += [{name: 2} for name in axes.sizes]
    return distinct(axes.mesh(each) for each in sizes)


def _together(axes: Axes) -> dict[str, int]:
    count = prod(axes.sizes.values())
    if 1 < count <= len(axes.devices):
        return dict(axes.sizes)
    return _spread(tuple(axes.sizes), min(len(axes.devices), _MOST_DEVICES))


def _spread(names: tuple[str, ...], count: int) -> dict[str, int]:
    """Sizes for axes whose product is a number of devices, dealt out by its prime factors, largest first."""
    sizes = dict.fromkeys(names, 1)
    for at, factor in enumerate(_factors(count)):
        sizes[names[at % len(names)]] *= factor
    return sizes


def _factors(count: int) -> list[int]:
    found, factor = list[int](), 2
    while count > 1:
        if count % factor:
            factor += 1
        else:
            found, count = [factor, *found], count // factor
    return found


def _alone(name: str, axes: Axes, together: Mapping[str, int]) -> int:
    own = axes.sizes[name]
    return own if 1 < own <= len(axes.devices) else max(together[name], 2)


def _permuted(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    names, values = tuple(sizes), tuple(sizes.values())
    turns = [values[at:] + values[:at] for at in range(1, min(len(values), 3))]
    return [dict(zip(names, turn, strict=True)) for turn in turns]


def distinct(meshes: Iterable[Mesh]) -> list[Mesh]:
    """Meshes without those that stand twice."""
    return list(dict.fromkeys(meshes))


def given_meshes(meshes: Sequence[Any], axes: Axes) -> list[Mesh]:
    """The meshes that a user gives, and before them one device.

    Args:
      meshes: each a Mesh, a dict of sizes, or a text like ``"dp=4,tp=2"``; axes that are not named have size 1.
      axes: the axes that the function knows.

    Raises:
      MeshAxisError: for what is no mesh of devices.
    """
    if not isinstance(meshes, (list, tuple)) or not meshes:
        got = shown(meshes)
        raise MeshAxisError(f"assert_mesh_invariant: meshes= wants a list of meshes, as in [{_EXAMPLE}]; got {got}")
    sizes = [None if isinstance(mesh, Mesh) else _read(mesh) for mesh in meshes]
    known = _with_more(axes, [name for each in sizes if each is not None for name in each])
    made = [mesh if each is None else known.mesh(each) for mesh, each in zip(meshes, sizes, strict=True)]
    return distinct([alone_on(made[0], None), *made])


def _with_more(axes: Axes, names: Iterable[str]) -> Axes:
    more = [name for name in dict.fromkeys(names) if name not in axes.sizes]
    sizes, types = dict.fromkeys(more, 1), dict.fromkeys(more, AxisType.Auto)
    return Axes({**axes.sizes, **sizes}, {**axes.types, **types}, axes.devices)


def _read(mesh: Any) -> dict[str, int]:
    if isinstance(mesh, AbstractMesh):
        raise MeshAxisError("assert_mesh_invariant: an AbstractMesh has no devices to run on; pass its sizes as a dict")
    sizes = mesh_sizes(mesh)
    if sizes is None:
        told = f"assert_mesh_invariant: meshes= holds {shown(mesh)}, which is no mesh"
        raise MeshAxisError(f'{told}\n\nHint: write a jax.sharding.Mesh, {_EXAMPLE}, or a text like "dp=4,tp=2"')
    return sizes


def alone_on(mesh: Mesh, axis: str | None) -> Mesh:
    """The part of a mesh along one axis, the others of size 1; without an axis, its first device."""
    part = tuple(slice(None) if name == axis else slice(1) for name in mesh.axis_names)
    return Mesh(mesh.devices[part], mesh.axis_names, axis_types=mesh.axis_types)


def twofold(mesh: Mesh) -> Mesh:
    """One device, and another one that does the same, along an axis that nothing is split over.

    JAX lowers no unreduced result on a mesh of a single device.
    """
    (device,) = mesh.devices.flat
    another = [each for each in jax.local_devices(backend=device.platform) if each != device]
    devices = np.array([device, *another[:1]]).reshape(*mesh.devices.shape, -1)
    types = (*mesh.axis_types, mesh.axis_types[0])
    return Mesh(devices, (*mesh.axis_names, "replica"), axis_types=types)


def name_of_mesh(mesh: Mesh) -> str:
    """What a message calls a mesh: its axes longer than 1, or one device."""
    return mesh_text((name, size) for name, size in mesh.shape.items() if size > 1) or "one device"


def longer_axes(mesh: Mesh) -> tuple[str, ...]:
    """The axes of a mesh that are longer than 1."""
    return tuple(name for name, size in mesh.shape.items() if size > 1)
