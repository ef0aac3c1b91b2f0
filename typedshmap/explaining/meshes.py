"""The meshes that a function is explained on: given in one of several ways, or found where a call finds its own."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from .. import _jax
from ..errors import MeshAxisError
from ..errors.phrases import shown
from ..inference.reading import stating_all_checks
from ..meshes import instead_of_own, read_mesh
from ..testing.written import mesh_sizes


def meshes_of(verb: str, given: Any, own: _jax.AnyMesh | None, values: Iterable[Any]) -> tuple[AbstractMesh, ...]:
    """One mesh or several, without their devices.

    Args:
      verb: the function that messages name.
      given: a mesh, a dict of sizes, a text as in ``"dp=4,tp=2"``, or a list of such; None to find one.
      own: the decorator's mesh, which comes first where none is given, and says what type axes have.
      values: the call's arguments, which may lie on a mesh.

    Raises:
      MeshAxisError: for what is no mesh, and where none is found.
    """
    if isinstance(given, (list, tuple)):
        if not given:
            raise MeshAxisError(f"{verb}: mesh= is empty")
        return tuple(_one(verb, each, own) for each in given)
    found = given if given is not None else own or _ambient() or _mesh_of(values)
    if found is None:
        raise MeshAxisError(
            f"{verb}: no mesh is known: mesh= is not given, none is ambient, and no argument was placed on one\n\n"
            'Hint: pass mesh=, as in mesh={"dp": 4, "tp": 2}; it needs no devices'
        )
    return (_one(verb, found, own),)


def _ambient() -> _jax.AnyMesh | None:
    mesh = _jax.context_mesh()
    return None if mesh.empty else mesh


def _mesh_of(values: Iterable[Any]) -> _jax.AnyMesh | None:
    leaves = (leaf for value in values for leaf in jax.tree_util.tree_leaves(value))
    return next((mesh for leaf in leaves if (mesh := _jax.value_mesh(leaf)) is not None), None)


def _one(verb: str, given: Any, own: _jax.AnyMesh | None) -> AbstractMesh:
    if isinstance(given, (Mesh, AbstractMesh)):
        mesh = read_mesh(given)
        if mesh is None:
            raise MeshAxisError(f"{verb}: the mesh has no axes")
        return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types)
    sizes = _sizes(verb, given)
    like = own or _ambient()
    types = dict(zip(like.axis_names, like.axis_types, strict=True)) if like is not None else {}
    kinds = tuple(types.get(name, AxisType.Auto) for name in sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


def _sizes(verb: str, given: Any) -> dict[str, int]:
    sizes = mesh_sizes(given)
    if sizes is None:
        raise MeshAxisError(
            f"{verb}: mesh= is {shown(given)}\n\n"
            'Hint: a mesh is a jax.sharding.Mesh or AbstractMesh, a dict of sizes, or a text as in "dp=4,tp=2"'
        )
    return sizes


@contextmanager
def standing_for_all(mesh: AbstractMesh, own: _jax.AnyMesh | None) -> Generator[None]:
    """Let a mesh stand for a function's own, and for the ambient one where a function looks for that."""
    with ExitStack() as stack:
        if own is None or not _jax.context_mesh().empty:
            stack.enter_context(_jax.without_ambient())
            stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
        stack.enter_context(instead_of_own(mesh))
        stack.enter_context(stating_all_checks())
        yield
