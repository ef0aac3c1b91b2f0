"""The PartitionSpecs and shardings that a hint, or a class of hints, means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from .. import _jax
from ..errors.failures import Failure
from ..hints.array import ArrayHint, rank_of
from ..hints.boxes import holds_boxes
from ..hints.leaf import check_leaf
from ..hints.scope import current_region, same
from ..hints.trees import node_of
from ..notation.sizes import NO_SIZES, Subject
from .boxed import BoxedTree, read_boxed
from .loose import loose_hint
from .places import WHOLE, Place, place_on_mesh, whole_specs
from .structs import default_dtype
from .structure import Maker, make

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
      defaults, and a leaf that is no array has ``P()``.

    Raises:
      StructureError: for a hint whose ranks or lengths are open, without ``like``.
      MeshAxisError: for a mesh axis that the ambient mesh does not have.
    """
    here = current_region()
    place = Place(
        "partition_specs", None, same(replace(here, held=(), watched=frozenset(), typed=False, role="placement"))
    )
    if (boxed := _boxed(place, T, like)) is not None:
        return boxed.with_specs(lambda leaf: leaf.spec)
    if like is not None:
        leaves, spec_of = place.checked(node_of(T), like, "given").leaves, place.region.known.spec
        return _jax.like(
            like, [WHOLE if leaf.hint is None else spec_of(leaf.hint, rank_of(leaf.value)) for leaf in leaves]
        )

    def spec(hint: ArrayHint, path: str) -> Any:
        rank = _fixed_rank(hint, path, maker)
        place.layout(hint, Subject("placed", "hint", path))
        return place.region.spec(hint, rank)

    maker = Maker("partition_specs", spec, whole_specs, WHOLE, _CURE)
    return make(node_of(T), maker)


def _boxed(place: Place, T: Any, like: Any) -> BoxedTree | None:
    """A tree that Flax has boxed: the first argument itself, or ``like`` beside a hint."""
    if like is None and holds_boxes(T):
        return read_boxed(place, T, None)
    return read_boxed(place, like, node_of(T)) if holds_boxes(like) else None


def _fixed_rank(hint: ArrayHint, path: str, maker: Maker) -> int:
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
    place = _uncrossed(place_on_mesh("shardings", mesh))
    if (boxed := _boxed(place, T, like)) is not None:
        return boxed.with_specs(lambda leaf: leaf.sharding)
    if like is not None:
        leaves = place.checked(node_of(T), like, "given").leaves
        return _jax.like(like, [place.sharding(leaf.hint, rank_of(leaf.value)) for leaf in leaves])

    def sharding(hint: ArrayHint, path: str) -> Any:
        rank = _fixed_rank(hint, path, maker)
        subject = Subject("placed", "hint", path)
        place.layout(hint, subject)
        _refuse_marks(place, hint, rank, subject)
        return place.sharding(hint, rank)

    whole = place.sharding(None, 0)
    maker = Maker("shardings", sharding, lambda value: jax.tree.map(lambda _: whole, value), whole, _CURE)
    return make(node_of(T), maker)


def _uncrossed(place: Place) -> Place:
    """The place for shardings: sizes need not divide yet, and marks follow the rule of a boundary."""
    axes = frozenset(axis for axis, _ in place.region.split)
    return replace(place, region=same(replace(place.region, split=(), crossed=axes)))


def _refuse_marks(place: Place, hint: ArrayHint, rank: int, subject: Subject) -> None:
    """Refuse marks by the one rule there is, asked of an array of any size."""
    loose, some = loose_hint(hint), jax.ShapeDtypeStruct((0,) * rank, default_dtype(hint))
    found = check_leaf(some, loose, place.region, NO_SIZES, subject, {})
    if isinstance(found, Failure):
        raise place.error((replace(found, got=None),))
