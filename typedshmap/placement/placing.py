"""Place a value that is whole as its hints say."""

from __future__ import annotations

from typing import Any, TypeVar

from jax.sharding import AbstractMesh, Mesh

from .. import _jax
from ..errors import StructureError
from ..errors.failures import Failure, NotAnArray, Told
from ..hints.array import ArrayHint
from ..hints.binding import EMPTY
from ..hints.boxes import holds_boxes
from ..hints.leaf import describe
from ..hints.trees import node_of
from ..hints.walk import Found
from .boxed import read_boxed
from .places import Place, devices_of, place_on_devices, place_on_mesh

T = TypeVar("T")


def shard(x: T, hint: Any = EMPTY, mesh: Mesh | AbstractMesh | None = None) -> T:
    """Place a value as its hint says, every leaf checked.

    An array that lies elsewhere, or otherwise, is moved, as by ``jax.device_put``. Where several
    processes run, each calls it with the same value. Under ``jit`` it constrains the value.

    ```python
    weights = shard(init(key), Weights, mesh)
    ```

    Args:
      x: an array, or a pytree of arrays, of NumPy or JAX; of global shape.
      hint: its hint, or the class whose hints it has. A tree that Flax has boxed
        (``nn.LogicallyPartitioned``, ``nn.Partitioned``, ``nnx``) needs none.
      mesh: the mesh; by default the ambient one. It may be abstract under ``jit``, where no devices are known.

    Returns:
      The value, each array with the NamedSharding of its hint; on an Explicit mesh the array's type
      says it, too. What is no array stays as it is.

    Raises:
      MeshAxisError: for no mesh, one without devices, or an axis that it does not have.
      ShapeError, DtypeError, StructureError: for a leaf that does not fit, by its path; and for one that
        is not the same in all processes, where there are several.
      ShardingError: for a mark ``+`` or ``~``, and for ``-`` over Auto axes.
    """
    # Under jit no devices are known, and none are needed.
    place = place_on_devices("shard", mesh) if _jax.is_outside_traces() else place_on_mesh("shard", mesh)
    if holds_boxes(x):
        return _shard_boxed(x, hint, place)
    if hint is EMPTY:
        told = "no hint is given, and the value holds no boxes of Flax, which would say how it lies"
        raise StructureError(f"shard: {told}")
    walk = place.checked(node_of(hint), x, "given")
    _refuse(place, walk.leaves)
    return _jax.like(x, [_placed(leaf, place) for leaf in walk.leaves])


def _shard_boxed(x: T, hint: Any, place: Place) -> T:
    boxed = read_boxed(place, x, None if hint is EMPTY else node_of(hint))
    _refuse(place, [each.leaf for each in boxed.leaves])
    return boxed.with_boxes(lambda each: _placed(each.leaf, each.place))


def _refuse(place: Place, leaves: list[Found]) -> None:
    failures = [
        Failure(what, leaf.subject, leaf.hint.text, _jax.type_text(leaf.value))
        for leaf in leaves
        if leaf.hint is not None and (what := _unplaceable(leaf.value, leaf.hint, place)) is not None
    ]
    if failures:
        raise place.error(failures)


def _unplaceable(value: Any, hint: ArrayHint, place: Place) -> NotAnArray | Told | None:
    """Why a value cannot be placed: it has no values, or lies on other processes' devices."""
    if isinstance(value, _jax.SHAPES):
        return NotAnArray(hint.type_text, describe(value))
    where = _jax.placement(value)
    if where is None or where.is_fully_addressable or where.device_set == set(devices_of(place).devices.flat):
        return None
    return Told("lies on devices of several processes, which are not those of the mesh; JAX moves none between them")


def _placed(leaf: Found, place: Place) -> Any:
    """One array at its place; what has no array's hint stays as it is."""
    if leaf.hint is None:
        return leaf.value
    rank = len(getattr(leaf.value, "shape", ()))
    try:
        return _jax.place(leaf.value, place.sharding(leaf.hint, rank))
    except AssertionError:  # by which JAX says so, in all of them
        problem = "is not the same in all processes, or holds NaN, which JAX finds equal to nothing"
        told = Told(problem, "place by from_process_local what each of them has, by from_callback what holds NaN")
        raise place.error((Failure(told, leaf.subject, leaf.hint.text, _jax.type_text(leaf.value)),)) from None
