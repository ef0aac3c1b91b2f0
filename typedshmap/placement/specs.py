"""The PartitionSpecs and shardings that a hint, or a class of hints, means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from .. import _jax
from ..errors.failures import Failure
from ..hints.array_hint import ArrayHint, rank_of
from ..hints.check_array import check_array
from ..hints.context import current_mesh_context, intern_context
from ..hints.structure import parse_hint_or_dims
from ..notation.match import NO_SIZES, Subject
from .context import UNSHARDED, PlacementContext, placement_context_on_mesh, unsharded_specs
from .flax_boxes import FlaxTree, check_boxes, holds_boxes
from .structs import TreeBuilder, any_size_hint, build_tree, default_dtype

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
    here = current_mesh_context()
    place = PlacementContext(
        "partition_specs",
        None,
        intern_context(replace(here, manual=(), checked_axes=frozenset(), has_vma=False, role="placement")),
    )
    if (boxed := _read_boxes(place, T, like)) is not None:
        return boxed.with_specs(lambda leaf: leaf.spec)
    if like is not None:
        leaves, spec_of = place.require_match(parse_hint_or_dims(T), like, "given").leaves, place.context.spec
        return _jax.tree.unflatten_like(
            like, [UNSHARDED if leaf.hint is None else spec_of(leaf.hint, rank_of(leaf.value)) for leaf in leaves]
        )

    def spec(hint: ArrayHint, path: str) -> Any:
        rank = _fixed_rank(hint, path, maker)
        place.layout(hint, Subject("placed", "hint", path))
        return place.context.spec(hint, rank)

    maker = TreeBuilder("partition_specs", spec, unsharded_specs, UNSHARDED, _CURE)
    return build_tree(parse_hint_or_dims(T), maker)


def _read_boxes(place: PlacementContext, T: Any, like: Any) -> FlaxTree | None:
    """A tree that Flax has boxed: the first argument itself, or ``like`` with a hint."""
    if like is None and holds_boxes(T):
        return check_boxes(place, T, None)
    return check_boxes(place, like, parse_hint_or_dims(T)) if holds_boxes(like) else None


def _fixed_rank(hint: ArrayHint, path: str, maker: TreeBuilder) -> int:
    if hint.spec.rest is not None:
        raise maker.open(f"the rank of {path or hint.text} is open")
    return len(hint.spec.dims)


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
    place = _with_boundary_marks(placement_context_on_mesh("shardings", mesh))
    if (boxed := _read_boxes(place, T, like)) is not None:
        return boxed.with_specs(lambda leaf: leaf.sharding)
    if like is not None:
        leaves = place.require_match(parse_hint_or_dims(T), like, "given").leaves
        return _jax.tree.unflatten_like(like, [place.sharding(leaf.hint, rank_of(leaf.value)) for leaf in leaves])

    def sharding(hint: ArrayHint, path: str) -> Any:
        rank = _fixed_rank(hint, path, maker)
        subject = Subject("placed", "hint", path)
        place.layout(hint, subject)
        _refuse_marks(place, hint, rank, subject)
        return place.sharding(hint, rank)

    unsharded = place.sharding(None, 0)
    maker = TreeBuilder("shardings", sharding, lambda value: jax.tree.map(lambda _: unsharded, value), unsharded, _CURE)
    return build_tree(parse_hint_or_dims(T), maker)


def _with_boundary_marks(place: PlacementContext) -> PlacementContext:
    """The context for shardings: sizes need not divide yet, and marks follow the rule of a boundary."""
    axes = frozenset(axis for axis, _ in place.context.entering)
    return replace(place, context=intern_context(replace(place.context, entering=(), boundary_axes=axes)))


def _refuse_marks(place: PlacementContext, hint: ArrayHint, rank: int, subject: Subject) -> None:
    """Refuse marks by the rule for arrays, applied to an array of any size."""
    loose, some = any_size_hint(hint), jax.ShapeDtypeStruct((0,) * rank, default_dtype(hint))
    found = check_array(some, loose, place.context, NO_SIZES, subject, {})
    if isinstance(found, Failure):
        raise place.error((replace(found, got=None),))
