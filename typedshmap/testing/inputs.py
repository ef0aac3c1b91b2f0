"""``inputs``: arguments made from the hints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from .. import _jax
from ..decorated import decorated
from ..meshes import read_mesh
from .call import Inputs
from .drawn import Drawn
from .plans import plan


def inputs(
    f: Callable[..., Any],
    /,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    seed: int = 0,
    arguments: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Inputs:
    """Arguments for a function, made from its hints: random global arrays of the right dtype, shape and sharding.

    The size of each name is drawn: a multiple of what its mesh axes need, with two elements per shard or
    more, no two names alike, even where nothing is sharded. ``...`` and ``_`` are drawn alike wherever they
    stand. Floats are normal, keys are keys, integers are small enough to be positions in the arrays that
    they may index: below the last dim of an array that they share dims with (labels of logits), the first
    of one that they share none with (ids of a table). Of a union the first member with arrays is made, so
    that an optional array is there; lists, dicts and trees of any length have two items.

    ```python
    made = inputs(mlp, mesh=mesh, batch=32, ids=lambda key, shape: jax.random.randint(key, shape, 0, 50))
    mlp(*made)
    ```

    Args:
      f: a function made by ``typed_shard_map``, ``typed_jit`` or ``typed``, also under ``jax.jit``; a method of
        an instance.
      mesh: where the arrays lie; by default the function's own mesh, else the ambient one, else nowhere. On an
        AbstractMesh they are ``jax.ShapeDtypeStruct``s.
      seed: what sizes and values are drawn from.
      arguments: arguments by name, for names that are those of dims, too, and by path for fields,
        ``{"state.step": 3}``.
      **sizes: a global size by the name of a dim (an integer; a tuple for ``*name``), or an argument by its
        name: a value, or a function of a key and the global shape that makes it.

    Returns:
      The arguments, without those that have defaults and no arrays.

    Raises:
      StructureError: for a function without hints, and for arguments that no hint can make (a config, ``Any``,
        an ``int``): pass them.
      ShapeError: for sizes that no hint names, or that do not fit.
      MeshAxisError: for an axis that the mesh does not have.
      ShardingError: for an argument marked ``+`` or ``~``, which cannot be placed.
    """
    here = mesh_of(f, mesh, "inputs")
    drawn = plan(f, () if here is None else (here,), sizes, arguments, "inputs").drawn(seed)
    return drawn.structs(here) if isinstance(here, AbstractMesh) else drawn.on(here)


def mesh_of(f: Callable[..., Any], mesh: Any, verb: str) -> _jax.AnyMesh | None:
    """The mesh that is given, else the function's own, else the ambient one, if there is one.

    Raises:
      StructureError: for a function without hints.
      MeshAxisError: for something that is no mesh.
    """
    context = _jax.context_mesh()
    ambient = None if context.empty else _jax.ambient_devices() or context
    return read_mesh(mesh) or decorated(f, verb).mesh or ambient


def draw(
    f: Callable[..., Any],
    meshes: Sequence[_jax.AnyMesh],
    *,
    seed: int = 0,
    given: Mapping[str, Any] = MappingProxyType({}),
    arguments: Mapping[str, Any] | None = None,
    verb: str = "inputs",
) -> Drawn:
    """Arguments for a function whose sizes fit all of several meshes, and whose values are the same on each.

    Args:
      f: as for `inputs`.
      meshes: the meshes.
      seed: what sizes and values are drawn from.
      given: sizes by the names of dims, and arguments by theirs.
      arguments: more arguments, by name or by path.
      verb: the function that messages name.

    Raises:
      TypedShmapError: as for `inputs`.
    """
    return plan(f, meshes, given, arguments, verb).drawn(seed)
