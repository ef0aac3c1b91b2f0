"""Find the mesh of a call: the decorator's, the ambient one, or the arguments' own.

The mesh is looked up at every call and never kept: a callable of ``jax.shard_map`` keeps the first
ambient mesh under which it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

from jax.sharding import AbstractMesh, Mesh, NamedSharding

from . import _jax
from ._jax.mesh import MOST_DEVICES, mesh_sizes
from .errors import MeshAxisError, ShardingError, StructureError
from .errors.failures import Failure, PlainMessage
from .errors.phrases import count_text, mesh_text, quoted_axes, value_text
from .errors.report import Report
from .hints.context import SizedAxes
from .hints.fitting import CheckedLeaf

MeshLike: TypeAlias = Mesh | AbstractMesh | Mapping[str, int] | str
"""One mesh, as users write it."""


def read_mesh(mesh: Any, like: _jax.mesh.AnyMesh | None = None) -> _jax.mesh.AnyMesh | None:
    """Read the ``mesh=`` of a verb: a mesh, a dict of sizes, or a text like ``"dp=4,tp=2"``.

    Args:
      mesh: the mesh as users write it; None, or a mesh without axes, means that none is given.
      like: the mesh whose axis types a dict or a text takes over; by default the ambient one. Other axes are Auto.

    Raises:
      MeshAxisError: for any other value.
    """
    if mesh is None:
        return None
    if isinstance(mesh, str | Mapping):
        sizes = mesh_sizes(mesh)
        if sizes is None:
            cure = 'a mesh is a jax.sharding.Mesh or AbstractMesh, a dict of sizes, or a text as in "dp=4,tp=2"'
            raise MeshAxisError(f"mesh= is {value_text(mesh)}\n\nHint: {cure}")
        return _jax.mesh.mesh_like(_jax.mesh.abstract_mesh(sizes), like or _jax.mesh.context_mesh())
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        text, kind = repr(mesh), f"of type {type(mesh).__name__}"
        got = f"{text} {kind}" if len(text) < 80 and "\n" not in text else f"a value {kind}"
        raise MeshAxisError(f"mesh= expects a jax.sharding.Mesh or AbstractMesh, got {got}")
    if (problem := why_unusable(mesh)) is not None:
        raise MeshAxisError(f"mesh= {problem}")
    return mesh if mesh.axis_names else None


def why_unusable(mesh: _jax.mesh.AnyMesh) -> str | None:
    """Why arrays cannot be sharded over the user's mesh; None if they can, or if the mesh has no axes."""
    if (problem := _impossible_shape(mesh)) is not None:
        return problem
    if manual := frozenset(mesh.manual_axes).difference(_jax.mesh.context_mesh().manual_axes):
        named = quoted_axes(tuple(name for name in mesh.axis_names if name in manual))
        return f"has {named} of type Manual, a type that axes have only inside jax.shard_map"
    return None


@lru_cache(maxsize=256)
def _impossible_shape(mesh: _jax.mesh.AnyMesh) -> str | None:
    """Why JAX cannot shard arrays over a mesh; it does not check the axes of an AbstractMesh."""
    names = mesh.axis_names
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        return f"has axis '{twice}' twice"
    if (zero := next((name for name, size in mesh.shape_tuple if size == 0), None)) is not None:
        return f"has axis '{zero}' of size 0"
    if prod(mesh.axis_sizes) > MOST_DEVICES:
        return f"has more than {MOST_DEVICES} devices"
    return None


def read_axis_names(axis_names: Any) -> frozenset[str]:
    """The ``axis_names=`` of a decorator."""
    if not isinstance(axis_names, (set, frozenset)):
        got = f"{value_text(axis_names)} ({type(axis_names).__name__})"
        raise StructureError(f"axis_names= expects a set of mesh axes, as jax.shard_map does; got {got}")
    return frozenset(axis_names)


def find_boundary(
    name: str, mesh: _jax.mesh.AnyMesh | None, axis_names: frozenset[str], leaves: Callable[[], list[CheckedLeaf]]
) -> tuple[_jax.mesh.AnyMesh, SizedAxes, SizedAxes]:
    """The mesh of a call, the axes that are manual already, and those that it makes manual."""
    context = _jax.mesh.context_mesh()
    call_mesh = find_mesh(name, mesh, leaves, context)
    if _jax.trace.is_outside_traces():
        ambient = call_mesh if context.empty else _jax.mesh.ambient_devices()
        if ambient is not None:
            refuse_other_devices(name, ambient, leaves())
    if axis_names and (unknown := sorted(axis_names - set(call_mesh.axis_names), key=str)):
        lacking = f"which the mesh ({mesh_text(call_mesh.shape_tuple)}) does not have"
        raise MeshAxisError(f"{name}: axis_names= names mesh axis '{unknown[0]}', {lacking}")
    outer, manual = _jax.mesh.manual_axes(context), axis_names or frozenset(call_mesh.axis_names)
    entered = tuple([(a, size) for a, size in call_mesh.shape_tuple if a in manual and (a, size) not in outer])
    return call_mesh, outer, entered


def find_mesh(
    name: str, mesh: _jax.mesh.AnyMesh | None, leaves: Callable[[], list[CheckedLeaf]], context: _jax.mesh.AnyMesh
) -> _jax.mesh.AnyMesh:
    """The mesh of a call: of the context, else of the decorator, of an enclosing typed_jit, or of the arguments."""
    call_mesh = _choose_mesh(name, mesh, leaves, context)
    if (problem := _impossible_shape(call_mesh)) is not None:
        raise MeshAxisError(f"{name}: its mesh {problem}")
    return call_mesh


def _choose_mesh(
    name: str, mesh: _jax.mesh.AnyMesh | None, leaves: Callable[[], list[CheckedLeaf]], context: _jax.mesh.AnyMesh
) -> _jax.mesh.AnyMesh:
    override = _jax.mesh.override_mesh.value
    if mesh is not None and override is not None:
        mesh = override
    if context.empty:
        return mesh or _jax.mesh.jit_mesh.value or override or _mesh_of_arguments(name, leaves())
    if mesh is None:
        return context
    # The decorator's mesh must agree with the ambient one, whichever axes are manual here. Meshes of one program need
    # not be equal: perhaps only one of them knows the kind of its devices.
    has_types = bool(context.manual_axes) or mesh.axis_types == context.axis_types
    if mesh.shape_tuple != context.shape_tuple or not has_types:
        here, given = _mesh_description(context), _mesh_description(mesh)
        raise MeshAxisError(f"{name}: its mesh ({given}) contradicts the ambient one ({here})")
    ambient = _jax.mesh.ambient_devices()
    if isinstance(mesh, Mesh) and isinstance(ambient, Mesh) and mesh != ambient:
        given, here = _device_ids(mesh), _device_ids(ambient)
        if given != here:
            problem = f"its mesh is on {devices_text(given)}, but the ambient one on {devices_text(here)}"
            raise MeshAxisError(f"{name}: {problem}")
    return mesh if mesh.abstract_mesh == context else context


def _mesh_of_arguments(name: str, leaves: Iterable[CheckedLeaf]) -> _jax.mesh.AnyMesh:
    known = [(leaf, mesh) for leaf in leaves if (mesh := _jax.mesh.value_mesh(leaf.value)) is not None]
    if not known:
        text = f"{name}: no mesh is known: mesh= is not given, none is ambient, and no argument was placed on one"
        raise MeshAxisError(f"{text}\n\nHint: pass mesh=, or call it under jax.set_mesh(mesh)")
    # The mesh of a tracer has no devices.
    first, mesh = next(((leaf, mesh) for leaf, mesh in known if isinstance(mesh, Mesh)), known[0])
    for leaf, leaf_mesh in known:
        if not _are_one(mesh, leaf_mesh):
            here = f"{first.subject.phrase} is on {_mesh_description(mesh)}"
            there = f"{leaf.subject.phrase} on {_mesh_description(leaf_mesh)}"
            problem = f"{name}: its arguments are on different meshes: {here} and {there}"
            raise MeshAxisError(f"{problem}\n\nHint: pass mesh=")
    return mesh


def with_devices_of(mesh: AbstractMesh, values: Iterable[Any]) -> _jax.mesh.AnyMesh:
    """The mesh with the devices of the first value on a mesh of the same shape; unchanged without such a value."""
    for x in values:
        like = _jax.mesh.value_mesh(_jax.array.strip_transforms(x).value if _jax.array.is_tracer(x) else x)
        if isinstance(like, Mesh) and like.shape_tuple == mesh.shape_tuple:
            return Mesh(like.devices, like.axis_names, mesh.axis_types)
    return mesh


def mesh_of_values(mesh: _jax.mesh.AnyMesh | None, values: Iterable[Any]) -> _jax.mesh.AnyMesh | None:
    """The mesh, by default that of the first value with a mesh; with the devices of the values if it has none."""
    mesh = mesh or next(filter(None, map(_jax.mesh.value_mesh, values)), None)
    if isinstance(mesh, AbstractMesh) and _jax.trace.is_outside_traces():
        return with_devices_of(mesh, values)
    return mesh


def _are_one(mesh: _jax.mesh.AnyMesh, other: _jax.mesh.AnyMesh) -> bool:
    """Whether two meshes are the same for a program, if one of them may lack devices."""
    if isinstance(mesh, Mesh) and isinstance(other, Mesh):
        return mesh == other
    return (mesh.shape_tuple, mesh.axis_types) == (other.shape_tuple, other.axis_types)


def _mesh_description(mesh: _jax.mesh.AnyMesh) -> str:
    types = {kind.name for kind in mesh.axis_types}
    return f"{mesh_text(mesh.shape_tuple)}; {'/'.join(sorted(types))}"


def refuse_other_devices(name: str, mesh: _jax.mesh.AnyMesh, leaves: Sequence[CheckedLeaf]) -> None:
    """Raise for arguments on other devices, and name them; JAX would raise when it compiles.

    An AbstractMesh needs an argument that is placed on a mesh of the same shape.
    """

    def refusal(leaf: CheckedLeaf, problem: str, cure: str | None = None) -> ShardingError:
        return ShardingError(Report(name, (Failure(PlainMessage(problem, cure), leaf.subject),), mesh.shape_tuple))

    placed = [(leaf, where) for leaf in leaves if (where := _jax.array.committed_sharding(leaf.value)) is not None]
    if isinstance(mesh, Mesh):
        for leaf, where in placed:
            if getattr(where, "mesh", None) == mesh:
                continue
            placed_on, devices = _jax.array.device_ids(where, len(leaf.value.shape)), _device_ids(mesh)
            if placed_on != devices:
                problem = f"is on {devices_text(placed_on)}, but the mesh on {devices_text(devices)}"
                raise refusal(leaf, problem, "place it by shard(x, hint, mesh), or pass the mesh that it is on")
        return
    meshes = [(leaf, where.mesh) for leaf, where in placed if isinstance(where, NamedSharding)]
    for leaf, leaf_mesh in meshes:
        if leaf_mesh.shape_tuple != mesh.shape_tuple:
            text = f"is on the mesh {mesh_text(leaf_mesh.shape_tuple)}, but mesh= is {mesh_text(mesh.shape_tuple)}"
            raise refusal(leaf, text)
    if not meshes:
        cure = "call it under jax.set_mesh(mesh), or trace it by jax.eval_shape"
        if leaves:
            problem = "is not placed on a mesh, and mesh= is an AbstractMesh, which has no devices"
            raise refusal(leaves[0], problem, f"place it by shard(x, hint, mesh), {cure}")
        raise ShardingError(f"{name}: mesh= is an AbstractMesh, which has no devices to run on\n\nHint: {cure}")


def _device_ids(mesh: Mesh) -> list[int]:
    return [device.id for device in mesh.devices.flat]


def devices_text(ids: list[int]) -> str:
    """``8 devices (0, 1, 2, 3, 4, 5, 6, 7)``"""
    shown = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
    return f"{count_text(len(ids), 'device')} ({shown})"
