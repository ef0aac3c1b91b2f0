"""Where the arrays of one call are placed: a mesh, and what hints mean over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .. import _jax
from ..errors import MeshAxisError, TypedShmapError, error_of
from ..errors.failures import Failure
from ..hints.array import ArrayHint
from ..hints.axes import Naming
from ..hints.nodes import Node
from ..hints.scope import Region, naming_here, same
from ..hints.walk import Walk
from ..meshes import read_mesh
from ..notation.layout import Layout
from ..notation.sizes import NO_SIZES, Sizes, Subject

WHOLE = PartitionSpec()


@dataclass(frozen=True, slots=True)
class Place:
    """Where one call places its arrays.

    Attributes:
      verb: the function that messages name.
      mesh: the mesh; None where none is known.
      region: what hints mean over it.
    """

    verb: str
    mesh: _jax.AnyMesh | None
    region: Region

    def sharding(self, hint: ArrayHint | None, rank: int) -> Any:
        """The sharding that a hint means here; that of a whole array without a hint; None without a mesh."""
        if self.mesh is None:
            return None
        return NamedSharding(self.mesh, WHOLE if hint is None else self.region.spec(hint, rank))

    def layout(self, hint: ArrayHint, subject: Subject) -> Layout:
        """The mesh axes that a hint means here.

        Raises:
          MeshAxisError: for an axis that is unknown or used twice.
        """
        found = self.region.layout(hint)
        if not isinstance(found, Layout):
            raise self.error((Failure(found, subject, hint.text),))
        return found

    def walk(self, node: Node, value: Any, name: str, sizes: Sizes = NO_SIZES) -> Walk:
        """A value checked against a hint's tree; what is wrong is in the walk's failures.

        Args:
          name: what messages call the value.
          sizes: the sizes that are known before.
        """
        walk = Walk(self.region, {}, sizes)
        walk.visit(node, value, Subject("placed", name))
        walk.settle()
        return walk

    def checked(self, node: Node, value: Any, name: str) -> Walk:
        """A value checked against a hint's tree.

        Raises:
          TypedShmapError: for what is wrong, all of it.
        """
        walk = self.walk(node, value, name)
        if walk.failures:
            raise self.error(walk.failures, walk.sizes)
        return walk

    def error(self, failures: Iterable[Failure], sizes: Sizes = NO_SIZES) -> TypedShmapError:
        """The error for what is wrong here."""
        return error_of(self.region.report(self.verb, tuple(failures), sizes))


def place_of(verb: str, mesh: Any) -> Place:
    """Where arrays are placed, over the mesh that is given or the ambient one, if there is one.

    Raises:
      MeshAxisError: for something that is no mesh, and in a manual region.
    """
    if _jax.context_mesh().manual_axes:
        raise MeshAxisError(f"{verb}: inside a manual region a value is one shard, which is where it is")
    return place_over(verb, read_mesh(mesh) or _jax.ambient_devices(), naming_here())


def place_over(verb: str, mesh: _jax.AnyMesh | None, naming: Naming) -> Place:
    """Where arrays are placed, over a mesh or none, with what names mean there."""
    if mesh is None:
        return Place(verb, None, same(Region(None, (), aliases=naming.aliases, role="placement", rules=naming.rules)))
    axes, explicit = mesh.shape_tuple, _jax.explicit_axes(mesh)
    region = Region(axes, (), axes, aliases=naming.aliases, role="placement", explicit=explicit, rules=naming.rules)
    return Place(verb, mesh, same(region))


def place_on_mesh(verb: str, mesh: Any) -> Place:
    """Where arrays are placed, which must be some mesh.

    Raises:
      MeshAxisError: for no mesh, and in a manual region.
    """
    place = place_of(verb, mesh)
    if place.mesh is None:
        raise MeshAxisError(f"{verb}: no mesh is known\n\nHint: pass mesh=, or call it under jax.set_mesh(mesh)")
    return place


def place_on_devices(verb: str, mesh: Any) -> Place:
    """Where arrays are placed, which must be devices.

    Raises:
      MeshAxisError: for no mesh, or one without devices.
    """
    place = place_on_mesh(verb, mesh)
    if isinstance(place.mesh, AbstractMesh) and mesh is None and not _jax.is_outside_traces():
        raise MeshAxisError(f"{verb}: under jax.jit no devices are known\n\nHint: call it outside, or pass mesh=")
    if isinstance(place.mesh, AbstractMesh):
        raise MeshAxisError(
            f"{verb}: the mesh is an AbstractMesh, which has no devices to place arrays on\n\n"
            "Hint: pass a jax.sharding.Mesh; shape_structs makes arrays without devices"
        )
    return place


def devices_of(place: Place) -> Mesh:
    """The mesh of a place on devices."""
    assert isinstance(place.mesh, Mesh)
    return place.mesh


def whole_specs(value: Any) -> Any:
    """The specs of leaves that are no arrays."""
    return jax.tree.map(lambda _: WHOLE, value)


def only(sizes: Sizes, without: Mapping[str, Any]) -> Sizes:
    """The sizes that were found out, without those that were given."""
    return Sizes({name: bound for name, bound in sizes if name not in without}, sizes.structures)
