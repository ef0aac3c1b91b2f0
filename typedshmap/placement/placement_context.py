"""The mesh of one placement call, and the meaning of hints on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .. import _jax
from ..axis_names import AxisNaming
from ..errors import MeshAxisError, ShardingError, TypedShmapError
from ..errors.failures import Failure, Subject
from ..errors.phrases import value_text
from ..hints.array_hint import ArrayHint
from ..hints.check_array import check_array
from ..hints.check_tree import ArrayCheck, check_value
from ..hints.context import MeshContext, current_axis_naming
from ..hints.fitting import CheckedLeaf
from ..hints.structure import Node
from ..meshes import mesh_of_values, read_mesh
from ..notation.layout import Layout
from ..notation.match import NO_SIZES, Sizes
from ..records import Record

_GIVEN = Subject("placed", "given")


class PlacementContext(Record):
    """The mesh of one call that places arrays, and the mesh context in which its hints are read."""

    verb: str
    mesh: _jax.mesh.AnyMesh | None
    context: MeshContext

    def spec(self, hint: ArrayHint | None, rank: int) -> Any:
        """The PartitionSpec of a hint; unsharded without a hint."""
        return PartitionSpec() if hint is None else self.context.spec(hint, rank)

    def sharding(self, hint: ArrayHint | None, rank: int, memory_kind: str | None = None) -> Any:
        """The sharding of a hint; unsharded without a hint; None without a mesh."""
        if self.mesh is None:
            return None
        mesh, key = self.mesh, ("sharding", self.mesh, hint, rank, memory_kind)
        if (cached := self.context.plans.get(key)) is not None:
            return cached
        return self.context.plan(key, lambda: NamedSharding(mesh, self.spec(hint, rank), memory_kind=memory_kind))

    def sharding_at_rest(self, hint: ArrayHint | None, rank: int) -> Any:
        """The sharding of a new array: an unconstrained dim is unsharded."""
        sharding = self.sharding(hint, rank)
        if hint is None or sharding is None or not (layout := self.layout(hint, _GIVEN, rank)).unconstrained:
            return sharding
        return NamedSharding(sharding.mesh, _jax.array.spec_of(replace(layout, unconstrained=frozenset[int]())))

    def layout(self, hint: ArrayHint, subject: Subject, rank: int | None = None) -> Layout:
        layout = self.context.layout(hint)
        if not isinstance(layout, Layout):
            raise self.error((Failure(layout, subject, hint.text),))
        return layout if rank is None else layout.at_rank(rank, hint.spec.rest)

    def require_match(
        self, node: Node, value: Any, name: str = "given", sizes: Sizes = NO_SIZES, check: ArrayCheck = check_array
    ) -> list[CheckedLeaf]:
        """The leaves of a value that matches a hint's tree; raises for all failures."""
        checked = check_value(node, value, Subject("placed", name), self.context, {}, sizes, check)
        if checked.failures:
            bound_here = {name: bound for name, bound in checked.sizes if name not in sizes.bound}
            raise self.error(checked.failures, Sizes(bound_here, checked.sizes.structures))
        return checked.leaves

    def error(self, failures: Iterable[Failure], sizes: Sizes = NO_SIZES) -> TypedShmapError:
        return self.context.error(self.verb, failures, sizes)


def placement_context(
    verb: str,
    mesh: Any,
    needs: Literal["mesh", "devices"],
    values: Iterable[Any] = (),
    takes_sums: bool = False,
    is_optional: bool = False,
    boxed: Callable[[], Mesh | None] = lambda: None,
) -> PlacementContext:
    """The context of the caller's mesh, of the ambient one, of the values, or of their boxes."""
    if _jax.mesh.context_mesh().manual_axes:
        raise MeshAxisError(f"{verb}: inside a manual region a value is one shard, which is placed already")
    used_mesh = mesh_of_values(read_mesh(mesh) or _jax.mesh.known_mesh(), values) or boxed()
    if used_mesh is None and not is_optional:
        raise no_mesh(verb)
    if needs == "devices" and isinstance(used_mesh, AbstractMesh):
        if mesh is None and not _jax.trace.is_outside_traces():
            raise MeshAxisError(f"{verb}: under jax.jit no devices are known\n\nHint: call it outside, or pass mesh=")
        raise MeshAxisError(
            f"{verb}: the mesh is an AbstractMesh, which has no devices to place arrays on\n\n"
            "Hint: pass a jax.sharding.Mesh; shape_structs makes arrays without devices"
        )
    return placement_context_over(verb, used_mesh, current_axis_naming(), takes_sums)


def read_memory_kind(verb: str, mesh: _jax.mesh.AnyMesh | None, memory_kind: Any) -> str | None:
    """The value of a ``memory_kind=``, which the devices must have."""
    if memory_kind is None:
        return None
    if mesh is None:
        raise no_mesh(verb)
    known = _jax.mesh.memory_kinds(mesh)
    if not isinstance(memory_kind, str) or memory_kind not in known:
        listed = ", ".join(map(repr, known))
        raise ShardingError(f"{verb}: memory_kind={value_text(memory_kind)} is not a memory of the devices ({listed})")
    return memory_kind


def no_mesh(verb: str) -> MeshAxisError:
    """The error for a placement that needs a mesh."""
    return MeshAxisError(f"{verb}: no mesh is known\n\nHint: pass mesh=, or call it under jax.set_mesh(mesh)")


def placement_context_over(
    verb: str, mesh: _jax.mesh.AnyMesh | None, naming: AxisNaming, takes_sums: bool = False
) -> PlacementContext:
    """The context of a mesh, which may be None, with a naming; partial sums follow the rules of a boundary."""
    axes = frozenset(mesh.axis_names if mesh is not None else ())
    where = {"boundary_axes" if takes_sums else "placed_axes": axes}
    return PlacementContext(verb, mesh, MeshContext.over(mesh, naming, "placement", **where))


def devices_of(place: PlacementContext) -> Mesh:
    """The mesh of a context, which has devices."""
    assert isinstance(place.mesh, Mesh)
    return place.mesh
