"""Arrays at rest: the specs of a hint, and placing a value as its hint says."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from . import _jax
from .errors import MeshAxisError, StructureError, error_of
from .errors.failures import Failure, NotAnArray
from .hints.leaf import describe
from .hints.nodes import Either, Items, Leaf, Node, Record, Static, node_name
from .hints.scope import Region, current_region, naming_here, same
from .hints.trees import node_of
from .hints.walk import Found, Walk
from .meshes import read_mesh
from .notation.layout import Layout
from .notation.sizes import NO_SIZES, Subject

T = TypeVar("T")


def partition_specs(T: Any, like: Any = None) -> Any:
    """The PartitionSpecs that a hint, or a class of hints, means; each of full rank.

    ```python
    partition_specs(Float[Array, "[batch/dp] d"])  # P('dp', None)
    partition_specs(Weights, like=weights)  # Weights(embed=P('tp', 'dp'), ...)
    ```

    Args:
      T: a hint, or a class whose fields have hints.
      like: a value of that type, which fixes ranks and lengths where the hint leaves them open.

    Returns:
      The specs, in the structure of ``like``, else in that of the hint.

    Raises:
      StructureError: for a hint whose ranks or lengths are open, without ``like``.
      MeshAxisError: for a mesh axis that the ambient mesh does not have.
    """
    region = current_region()
    node = node_of(T)
    if like is None:
        return _specs_of(node, region, "")
    placing = same(Region(region.mesh, (), aliases=region.aliases, role="placement", rules=region.rules))
    walk = _walked(placing, node, like, "partition_specs")
    specs = [_spec(leaf, placing) for leaf in walk.leaves]
    return _jax.like(like, specs)


def _walked(region: Region, node: Node, value: Any, verb: str) -> Walk:
    walk = Walk(region, {})
    walk.visit(node, value, Subject("placed", "given"))
    walk.settle()
    if walk.failures:
        raise error_of(region.report(verb, tuple(walk.failures), walk.sizes))
    return walk


def _spec(leaf: Found, region: Region) -> Any:
    if leaf.hint is None:
        return jax.sharding.PartitionSpec()
    return region.spec(leaf.hint, len(getattr(leaf.value, "shape", ())))


def _specs_of(node: Node, region: Region, path: str) -> Any:
    """The specs of a hint that fixes every rank and length."""
    match node:
        case Leaf(hint) if hint.spec.rest is None:
            layout = region.layout(hint)
            if not isinstance(layout, Layout):
                where = Subject("placed", "hint", path)
                raise error_of(region.report("partition_specs", (Failure(layout, where, hint.text),), NO_SIZES))
            return region.spec(hint, len(hint.spec.dims))
        case Static(hint) if hint is type(None):
            return None
        case Items(items):
            return tuple(_specs_of(item, region, f"{path}[{i}]") for i, item in enumerate(items))
        case Record():
            return _record_specs(node, region, path)
        case Either(_, hint):
            raise _open(f"{path or node_name(node)} is a union")
        case Leaf():
            raise _open(f"the rank of {path or node_name(node)} is open")
        case _:
            raise _open(f"{path or node_name(node)} does not say how many arrays it holds")


def _open(problem: str) -> StructureError:
    return StructureError(f"partition_specs: {problem}\n\nHint: pass like=, a value that fixes ranks and lengths")


def _record_specs(node: Record, region: Region, path: str) -> Any:
    specs = {name: _specs_of(inner, region, f"{path}.{name}") for name, inner in node.fields.items()}
    if node.kind == "TypedDict":
        return specs
    if node.kind == "NamedTuple":
        return node.cls(**specs)
    # A class's own __init__ may refuse what is no array, so the fields are set beside it.
    made: Any = object.__new__(node.cls)
    for field in dataclasses.fields(node.cls):
        object.__setattr__(made, field.name, specs[field.name])
    return made


def shard(x: T, hint: Any, mesh: Mesh | AbstractMesh | None = None) -> T:
    """Place a value as its hint says, every leaf checked.

    ```python
    weights = shard(init(key), Weights, mesh)
    ```

    Args:
      x: an array, or a pytree of arrays, of NumPy or JAX; of global shape.
      hint: its hint, or the class whose hints it has.
      mesh: the mesh; by default the ambient one.

    Returns:
      The value, each array with the NamedSharding of its hint.

    Raises:
      MeshAxisError: for no mesh, or an axis that it does not have.
      ShapeError, DtypeError, StructureError: for a leaf that does not fit, by its path.
    """
    found = read_mesh(mesh) or _ambient_mesh()
    naming, explicit = naming_here(), _jax.explicit_axes(found)
    axes = found.shape_tuple
    region = same(Region(axes, (), axes, aliases=naming.aliases, role="placement", explicit=explicit, rules=naming.rules))
    walk = _walked(region, node_of(hint), x, "shard")
    return _jax.like(x, [_placed(leaf, found, region) for leaf in walk.leaves])


def _placed(leaf: Found, mesh: Any, region: Region) -> Any:
    """One array at its place; what has no array's hint stays as it is."""
    if leaf.hint is None:
        return leaf.value
    if isinstance(leaf.value, _jax.SHAPES):
        what = Failure(NotAnArray(leaf.hint.type_text, describe(leaf.value)), leaf.subject, leaf.hint.text)
        raise error_of(region.report("shard", (what,), NO_SIZES))
    return jax.device_put(leaf.value, NamedSharding(mesh, _spec(leaf, region)))


def _ambient_mesh() -> Any:
    mesh = _jax.ambient_devices()
    if mesh is None:
        raise MeshAxisError("shard: no mesh is known\n\nHint: pass mesh=, or call it under jax.set_mesh(mesh)")
    return mesh
