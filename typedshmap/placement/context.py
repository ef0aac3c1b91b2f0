"""The mesh that one call places arrays on, and what hints mean over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .. import _jax
from ..axis_names import AxisNaming
from ..errors import MeshAxisError, TypedShmapError, error_of
from ..errors.failures import Failure
from ..hints.array_hint import ArrayHint
from ..hints.check_tree import TreeCheck
from ..hints.context import MeshContext, current_axis_naming
from ..hints.structure import Node
from ..meshes import read_mesh
from ..notation.layout import Layout
from ..notation.match import NO_SIZES, Sizes, Subject

UNSHARDED = PartitionSpec()


@dataclass(frozen=True, slots=True)
class PlacementContext:
    """The mesh of one call that places arrays.

    Attributes:
      verb: the function that messages name.
      mesh: the mesh; None where none is known.
      context: what hints mean over it.
    """

    verb: str
    mesh: _jax.mesh.AnyMesh | None
    context: MeshContext

    def sharding(self, hint: ArrayHint | None, rank: int) -> Any:
        """The sharding that a hint means here; unsharded without a hint; None without a mesh."""
        if self.mesh is None:
            return None
        return NamedSharding(self.mesh, UNSHARDED if hint is None else self.context.spec(hint, rank))

    def layout(self, hint: ArrayHint, subject: Subject) -> Layout:
        """The mesh axes that a hint means here.

        Raises:
          MeshAxisError: for an axis that is unknown or used twice.
        """
        found = self.context.layout(hint)
        if not isinstance(found, Layout):
            raise self.error((Failure(found, subject, hint.text),))
        return found

    def check_tree(self, node: Node, value: Any, name: str, sizes: Sizes = NO_SIZES) -> TreeCheck:
        """Check a value against a hint's tree and collect failures in the result.

        Args:
          name: what messages call the value.
          sizes: the sizes that are known before.
        """
        walk = TreeCheck(self.context, {}, sizes)
        walk.visit(node, value, Subject("placed", name))
        walk.check_deferred()
        return walk

    def require_match(self, node: Node, value: Any, name: str) -> TreeCheck:
        """Check a value against a hint's tree.

        Raises:
          TypedShmapError: for everything that is wrong.
        """
        walk = self.check_tree(node, value, name)
        if walk.failures:
            raise self.error(walk.failures, walk.sizes)
        return walk

    def error(self, failures: Iterable[Failure], sizes: Sizes = NO_SIZES) -> TypedShmapError:
        """The error for what is wrong here."""
        return error_of(self.context.report(self.verb, tuple(failures), sizes))


def placement_context(verb: str, mesh: Any) -> PlacementContext:
    """The context of the given mesh, or of the ambient one, if there is one.

    Raises:
      MeshAxisError: for something that is not a mesh, and in a manual region.
    """
    if _jax.mesh.context_mesh().manual_axes:
        raise MeshAxisError(f"{verb}: inside a manual region a value is one shard, which is where it is")
    return placement_context_over(verb, read_mesh(mesh) or _jax.mesh.ambient_devices(), current_axis_naming())


def placement_context_over(verb: str, mesh: _jax.mesh.AnyMesh | None, naming: AxisNaming) -> PlacementContext:
    """The context of a mesh, or of none, with what names mean there."""
    return PlacementContext(
        verb, mesh, MeshContext.over(mesh, naming, "placement", entering=mesh.shape_tuple if mesh is not None else ())
    )


def placement_context_on_mesh(verb: str, mesh: Any) -> PlacementContext:
    """The context of the given mesh, or of the ambient one; there must be one.

    Raises:
      MeshAxisError: for no mesh, and in a manual region.
    """
    place = placement_context(verb, mesh)
    if place.mesh is None:
        raise MeshAxisError(f"{verb}: no mesh is known\n\nHint: pass mesh=, or call it under jax.set_mesh(mesh)")
    return place


def placement_context_on_devices(verb: str, mesh: Any) -> PlacementContext:
    """The context of the given mesh, or of the ambient one; it must have devices.

    Raises:
      MeshAxisError: for no mesh, or one without devices.
    """
    place = placement_context_on_mesh(verb, mesh)
    if isinstance(place.mesh, AbstractMesh) and mesh is None and not _jax.trace.is_outside_traces():
        raise MeshAxisError(f"{verb}: under jax.jit no devices are known\n\nHint: call it outside, or pass mesh=")
    if isinstance(place.mesh, AbstractMesh):
        raise MeshAxisError(
            f"{verb}: the mesh is an AbstractMesh, which has no devices to place arrays on\n\n"
            "Hint: pass a jax.sharding.Mesh; shape_structs makes arrays without devices"
        )
    return place


def devices_of(place: PlacementContext) -> Mesh:
    """The mesh of a context on devices."""
    assert isinstance(place.mesh, Mesh)
    return place.mesh


def unsharded_specs(value: Any) -> Any:
    """The specs of leaves that are not arrays."""
    return jax.tree.map(lambda _: UNSHARDED, value)


def without_given(sizes: Sizes, without: Mapping[str, Any]) -> Sizes:
    """The sizes that were bound, without those that were given."""
    return Sizes({name: bound for name, bound in sizes if name not in without}, sizes.structures)
