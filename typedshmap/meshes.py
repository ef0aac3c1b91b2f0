"""Find the mesh of a call: given, ambient, or the arguments' own.

The mesh is looked up at every call and never kept, since a callable of ``jax.shard_map`` keeps the
first ambient mesh that it is called under.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from . import _jax
from .errors import MeshAxisError, ShardingError, StructureError, TypedShmapError
from .errors.failures import Failure, PlainMessage, Report
from .errors.phrases import mesh_text
from .hints.check_tree import CheckedLeaf
from .hints.context import SizedAxes


@dataclass(frozen=True, slots=True)
class ManualBoundary:
    """The boundary of one call.

    Attributes:
      mesh: the mesh passed to ``jax.shard_map``.
      outer: the axes that are manual outside, with their sizes.
      entered: the axes that become manual inside, with their sizes.
    """

    mesh: _jax.mesh.AnyMesh
    outer: SizedAxes
    entered: SizedAxes


def read_mesh(mesh: Any) -> _jax.mesh.AnyMesh | None:
    """The ``mesh=`` of a decorator; an empty mesh means the ambient one.

    Raises:
      MeshAxisError: for something that is not a mesh.
    """
    if mesh is None:
        return None
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        text, kind = repr(mesh), f"of type {type(mesh).__name__}"
        got = f"{text} {kind}" if len(text) < 80 and "\n" not in text else f"a value {kind}"
        raise MeshAxisError(f"mesh= wants a jax.sharding.Mesh or AbstractMesh, got {got}")
    return None if mesh.empty else mesh


def read_axis_names(axis_names: Any) -> frozenset[str]:
    """The ``axis_names=`` of a decorator."""
    if not isinstance(axis_names, (set, frozenset)):
        name = type(axis_names).__name__
        raise StructureError(
            f"axis_names= wants a set of mesh axes, as jax.shard_map does; got {axis_names!r} ({name})"
        )
    return frozenset(axis_names)


def find_boundary(
    name: str, mesh: _jax.mesh.AnyMesh | None, axis_names: frozenset[str], leaves: Callable[[], list[CheckedLeaf]]
) -> ManualBoundary:
    """The mesh of a call, and the axes that it makes manual.

    Args:
      name: the function's name.
      mesh: the decorator's mesh.
      axis_names: the decorator's manual axes; empty for all.
      leaves: returns the arguments' arrays, which may be on a mesh; called only if they matter.

    Raises:
      MeshAxisError: for no mesh, meshes that contradict each other, or an unknown axis name.
      ShardingError: for arrays on other devices, or that are not placed where the mesh is abstract.
    """
    context = _jax.mesh.context_mesh()
    found = find_mesh(name, mesh, leaves)
    if _jax.trace.is_outside_traces():
        ambient = found if context.empty else _jax.mesh.ambient_devices()
        if ambient is not None:
            refuse_other_devices(name, ambient, leaves())
    unknown = sorted(axis_names - set(found.axis_names), key=str)
    if unknown:
        known = mesh_text(found.shape.items())
        raise MeshAxisError(
            f"{name}: axis_names= names mesh axis '{unknown[0]}', which the mesh ({known}) does not have"
        )
    outer = _jax.mesh.manual_axes(context)
    manual = axis_names or frozenset(found.axis_names)
    new = tuple((a, size) for a, size in found.shape_tuple if a in manual and (a, size) not in outer)
    return ManualBoundary(found, outer, new)


def find_mesh(name: str, mesh: _jax.mesh.AnyMesh | None, leaves: Callable[[], list[CheckedLeaf]]) -> _jax.mesh.AnyMesh:
    """The mesh of a call: the ambient one, else the decorator's, that of a typed_jit around, the arguments' own.

    Raises:
      MeshAxisError: for no mesh, or meshes that contradict each other.
    """
    context, override = _jax.mesh.context_mesh(), mesh_override()
    if mesh is not None and override is not None:
        mesh = override
    if not context.empty:
        return _ambient_or_given(name, mesh, context)
    return mesh or _jit_mesh.get() or override or _mesh_of_arguments(name, leaves())


# Among JAX's own contexts, so that nothing that was traced for one mesh is used again for another.
_override = jax.make_user_context(default_value=None)


def mesh_override() -> _jax.mesh.AnyMesh | None:
    """The mesh that replaces every decorator's own."""
    found: _jax.mesh.AnyMesh | None = _override.value
    return found


def override_mesh(mesh: _jax.mesh.AnyMesh) -> AbstractContextManager[None]:
    """Let a mesh replace every decorator's ``mesh=``, so that a program can be run on other meshes than its own."""
    return _override(mesh)


_jit_mesh: ContextVar[_jax.mesh.AnyMesh | None] = ContextVar("typedshmap_mesh_around", default=None)


def jit_mesh() -> _jax.mesh.AnyMesh | None:
    """The mesh of a typed_jit around, where a function is traced for one."""
    return _jit_mesh.get()


@contextmanager
def use_jit_mesh(mesh: _jax.mesh.AnyMesh) -> Generator[None]:
    """Use a mesh while a function is traced for it, though it is not ambient."""
    token = _jit_mesh.set(mesh)
    try:
        yield
    finally:
        _jit_mesh.reset(token)


def _ambient_or_given(name: str, mesh: _jax.mesh.AnyMesh | None, context: AbstractMesh) -> _jax.mesh.AnyMesh:
    """The ambient mesh; a given mesh must agree with it, whichever axes are manual by now."""
    if mesh is None:
        return context
    matches = mesh.shape_tuple == context.shape_tuple if context.manual_axes else _jax.mesh.is_same_mesh(mesh, context)
    if not matches:
        here, given = _mesh_description(context), _mesh_description(mesh)
        raise MeshAxisError(f"{name}: its mesh ({given}) contradicts the ambient one ({here})")
    ambient = _jax.mesh.ambient_devices()
    if isinstance(mesh, Mesh) and isinstance(ambient, Mesh) and mesh != ambient and _ids(mesh) != _ids(ambient):
        here, given = devices_text(_ids(ambient)), devices_text(_ids(mesh))
        raise MeshAxisError(f"{name}: its mesh is on {given}, but the ambient one on {here}")
    return mesh if _jax.mesh.abstract(mesh) == context else context


def _mesh_description(mesh: _jax.mesh.AnyMesh) -> str:
    types = {kind.name for kind in mesh.axis_types}
    return f"{mesh_text(mesh.shape.items())}; {'/'.join(sorted(types))}"


def _mesh_of_arguments(name: str, leaves: Iterable[CheckedLeaf]) -> _jax.mesh.AnyMesh:
    known = [(leaf, mesh) for leaf in leaves if (mesh := _jax.mesh.value_mesh(leaf.value)) is not None]
    if not known:
        text = f"{name}: no mesh is known: mesh= is not given, none is ambient, and no argument was placed on one"
        raise MeshAxisError(f"{text}\n\nHint: pass mesh=, or call it under jax.set_mesh(mesh)")
    (first, mesh), *others = known
    for leaf, other in others:
        if other != mesh:
            places = (
                f"{first.subject.phrase} is on {_mesh_description(mesh)} "
                f"and {leaf.subject.phrase} on {_mesh_description(other)}"
            )
            raise MeshAxisError(f"{name}: its arguments are on different meshes: {places}\n\nHint: pass mesh=")
    return mesh


def refuse_other_devices(name: str, mesh: _jax.mesh.AnyMesh, leaves: Iterable[CheckedLeaf]) -> None:
    """Refuse arguments on other devices by name, before JAX refuses them when it compiles."""
    placed = [(leaf, where) for leaf in leaves if (where := _jax.array.committed_sharding(leaf.value)) is not None]
    if isinstance(mesh, AbstractMesh):
        _refuse_unplaced(name, mesh, placed, leaves)
        return
    devices = _ids(mesh)
    for leaf, where in placed:
        if getattr(where, "mesh", None) == mesh:
            continue
        ids = _jax.array.device_ids(where, len(leaf.value.shape))
        if ids != devices:
            problem = f"is on {devices_text(ids)}, but the mesh on {devices_text(devices)}"
            cure = "place it by shard(x, hint, mesh), or pass the mesh that it is on"
            raise _sharding_error(name, Failure(PlainMessage(problem, cure), leaf.subject, _sharding_text(leaf)), mesh)


def _ids(mesh: Mesh) -> list[int]:
    return [device.id for device in mesh.devices.flat]


def devices_text(ids: list[int]) -> str:
    """``8 devices (0, 1, 2, 3, 4, 5, 6, 7)``"""
    shown = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
    return f"{len(ids)} device{'s' if len(ids) != 1 else ''} ({shown})"


def _refuse_unplaced(
    name: str, mesh: AbstractMesh, placed: list[tuple[CheckedLeaf, Any]], leaves: Iterable[CheckedLeaf]
) -> None:
    for leaf, where in placed:
        own = getattr(where, "mesh", None)
        if own is not None and own.shape_tuple != mesh.shape_tuple:
            problem = f"is on the mesh {mesh_text(own.shape.items())}, but mesh= is {mesh_text(mesh.shape.items())}"
            raise _sharding_error(name, Failure(PlainMessage(problem), leaf.subject, _sharding_text(leaf)), mesh)
    if any(getattr(where, "mesh", None) is not None for _, where in placed):
        return
    cure = "call it under jax.set_mesh(mesh), or trace it by jax.eval_shape"
    for leaf in leaves:
        problem = "is not placed on a mesh, and mesh= is an AbstractMesh, which has no devices"
        message = PlainMessage(problem, f"place it by shard(x, hint, mesh), {cure}")
        raise _sharding_error(name, Failure(message, leaf.subject, _sharding_text(leaf)), mesh)
    raise ShardingError(f"{name}: mesh= is an AbstractMesh, which has no devices to run on\n\nHint: {cure}")


def _sharding_text(leaf: CheckedLeaf) -> Any:
    return leaf.hint.text if leaf.hint is not None else None


def _sharding_error(name: str, failure: Failure, mesh: _jax.mesh.AnyMesh) -> TypedShmapError:
    return ShardingError(Report(name, (failure,), tuple(mesh.shape.items())))
