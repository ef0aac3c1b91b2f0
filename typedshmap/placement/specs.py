"""The PartitionSpecs and shardings that a hint, or a class of hints, means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from .. import _jax
from ..errors.failures import Failure, Subject
from ..hints.array_hint import ArrayHint, rank_of
from ..hints.check_array import check_array
from ..hints.context import current_mesh_context, intern_context
from ..hints.structure import parse_hint_or_dims
from ..notation.match import NO_SIZES
from .context import PlacementContext, placement_context
from .flax_boxes import check_boxes, holds_boxes
from .structs import TreeBuilder, any_size_hint, default_dtype

_CURE = "pass like=, a value that fixes ranks and lengths"


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
      The specs, in the structure of ``like``, else in that of the hint; static fields have their
      defaults, and a leaf that is not an array has ``P()``.

    Raises:
      StructureError: for a hint whose ranks or lengths are open, without ``like``.
      MeshAxisError: for a mesh axis that the ambient mesh does not have.
    """
    context = replace(current_mesh_context(), manual=(), checked_axes=frozenset(), has_vma=False, role="placement")
    return _map_hints(
        PlacementContext("partition_specs", None, intern_context(context)), T, like, PlacementContext.spec
    )


def shardings(T: Any, mesh: Mesh | AbstractMesh | None = None, like: Any = None) -> Any:
    """The NamedShardings that a hint, or a class of hints, means: `partition_specs` over a mesh.

    They are what ``jax.jit`` takes as ``in_shardings`` and ``out_shardings``, ``jax.device_put`` as
    its second argument, and checkpoint libraries as the target of a restore.

    ```python
    jax.jit(init, out_shardings=shardings(Weights, mesh))(key)
    ```

    Args:
      T: a hint, or a class whose fields have hints.
      mesh: the mesh, which may be abstract; by default the ambient one.
      like: a value of that type, which fixes ranks and lengths where the hint leaves them open.

    Returns:
      The shardings, in the structure of ``like``, else in that of the hint.

    Raises:
      MeshAxisError: for no mesh, or an axis that it does not have.
      StructureError: for a hint whose ranks or lengths are open, without ``like``.
      ShardingError: for a mark ``~``, and for ``+`` or ``-`` over Auto axes.
    """
    place = placement_context("shardings", mesh, needs="mesh")
    # Sizes need not divide yet, and marks follow the rule of a boundary.
    axes = frozenset(axis for axis, _ in place.context.entering)
    context = intern_context(replace(place.context, entering=(), boundary_axes=axes))
    return _map_hints(replace(place, context=context), T, like, PlacementContext.sharding)


def _map_hints(
    place: PlacementContext, T: Any, like: Any, make: Callable[[PlacementContext, ArrayHint | None, int], Any]
) -> Any:
    """What ``make`` returns for each array, from its context, its hint and its rank, in the structure of the hint."""
    if holds_boxes(T if like is None else like):
        # A boxed tree needs no hint: its boxes have names.
        boxed = check_boxes(place, T, None) if like is None else check_boxes(place, like, parse_hint_or_dims(T))
        return boxed.map(lambda each: make(each.place, each.leaf.hint, rank_of(each.leaf.value)), are_specs=True)
    node = parse_hint_or_dims(T)
    if like is not None:
        leaves = place.require_match(node, like, "given").leaves
        return _jax.tree.unflatten_like(like, [make(place, leaf.hint, rank_of(leaf.value)) for leaf in leaves])

    def array(hint: ArrayHint, path: str) -> Any:
        if hint.spec.rest is not None:
            raise builder.open(f"the rank of {path or hint.text} is open")
        rank, subject = len(hint.spec.dims), Subject("placed", "hint", path)
        place.layout(hint, subject)
        if place.mesh is not None:
            # Marks are refused by the rule for arrays, applied to an array of any size.
            some = jax.ShapeDtypeStruct((0,) * rank, default_dtype(hint))
            found = check_array(some, any_size_hint(hint), place.context, NO_SIZES, subject, {})
            if isinstance(found, Failure):
                raise place.error((replace(found, got=None),))
        return make(place, hint, rank)

    unsharded = make(place, None, 0)
    builder = TreeBuilder(place.verb, array, _CURE, lambda value: jax.tree.map(lambda _: unsharded, value), unsharded)
    return builder.build(node)
