"""``shard`` and ``from_callback``: place a global array as its hint says, at once or shard by shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.typing import ArrayLike

from .. import _jax
from ..errors import StructureError
from ..errors.failures import Failure, NotAnArray, PlainMessage, Subject, WrongDtype, WrongSize
from ..errors.phrases import value_text
from ..hints.array_hint import ArrayHint, rank_of, takes
from ..hints.check_array import describe
from ..hints.check_tree import CheckedLeaf
from ..hints.parse_hint import parse_hint_or_dims
from ..hints.signature import EMPTY
from ..hints.structure import ArrayLeaf
from .context import PlacementContext, devices_of, placement_context
from .flax_boxes import PlacedLeaf, check_leaves, holds_boxes
from .structs import default_dtype, structs_of

T = TypeVar("T")


@overload
def shard(x: ArrayLike, hint: Any = EMPTY, mesh: Mesh | AbstractMesh | None = None) -> jax.Array: ...
@overload
def shard(x: T, hint: Any = EMPTY, mesh: Mesh | AbstractMesh | None = None) -> T: ...
def shard(x: Any, hint: Any = EMPTY, mesh: Mesh | AbstractMesh | None = None) -> Any:
    """Place a value as its hint says, every leaf checked.

    An array on other devices, or with another sharding, is moved, as by ``jax.device_put``. Where
    several processes run, each calls it with the same value. Under ``jit`` it constrains the value.

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
      says it, too. What is not an array stays as it is.

    Raises:
      MeshAxisError: for no mesh, one without devices, or an axis that it does not have.
      ShapeError, DtypeError, StructureError: for a leaf that does not fit, by its path; and for one that
        is not the same in all processes, where there are several.
      ShardingError: for a mark ``+`` or ``~``, and for ``-`` over Auto axes.
    """
    # Under jit no devices are known, and none are needed.
    is_outside = _jax.trace.is_outside_traces()
    place = placement_context("shard", mesh, needs="devices" if is_outside else "mesh")
    node = None if hint is EMPTY else parse_hint_or_dims(hint)
    if node is None and not holds_boxes(x):
        problem = "no hint is given, and the value holds no boxes of Flax, which would say how it is sharded"
        raise StructureError(f"shard: {problem}")
    tree, failures = check_leaves(place, x, node), list[Failure]()
    shardings: dict[int, NamedSharding] = {}  # of the arrays that are not placed yet
    for at, ((value, hint, subject, _), within, _) in enumerate(tree.leaves):
        if hint is None:
            continue
        where, sharding = _jax.array.committed_sharding(value), within.sharding(hint, rank_of(value))
        if where == sharding and is_outside:
            continue
        shardings[at] = sharding
        if isinstance(value, _jax.array.SHAPES):
            what = NotAnArray(hint.type_text, describe(value))
        elif where is None or where.is_fully_addressable or where.device_set == set(devices_of(place).devices.flat):
            continue
        else:
            problem = "is on devices of several processes, which are not those of the mesh"
            what = PlainMessage(f"{problem}; JAX moves none between them")
        failures.append(Failure(what, subject, hint.text, _jax.array.type_text(value)))
    if failures:
        raise place.error(failures)
    if is_outside and not devices_of(place).is_multi_process:
        placed = jax.device_put([tree.leaves[at].leaf.value for at in shardings], list(shardings.values()))
    else:
        placed = [_place_leaf(tree.leaves[at], sharding) for at, sharding in shardings.items()]
    moved = dict(zip(shardings, placed, strict=True))
    return tree.with_values([moved.get(at, each.leaf.value) for at, each in enumerate(tree.leaves)])


def _place_leaf(each: PlacedLeaf, sharding: NamedSharding) -> Any:
    """One array, placed by itself."""
    (value, hint, subject, _), place, _ = each
    assert hint is not None
    try:
        return _jax.casts.device_put_global(value, sharding)
    except AssertionError:  # JAX compares the values, and raises this in all processes
        problem = "is not the same in all processes, or holds NaN, which JAX finds equal to nothing"
        cure = "place by from_process_local what each of them has, by from_callback what holds NaN"
        what = PlainMessage(problem, cure)
        raise place.error((Failure(what, subject, hint.text, _jax.array.type_text(value)),)) from None


Index = tuple[slice, ...]


def from_callback(
    callback: Callable[..., Any], T: Any, /, mesh: Mesh | None = None, like: Any = None, **sizes: int | tuple[int, ...]
) -> Any:
    """Make global arrays from a callback that returns their shards, like ``jax.make_array_from_callback``.

    For one array the callback gets the index of a shard: the slices of the global array that the
    shard holds. For a tree it gets the array's path before that, so that a checkpoint is read by
    name. Each process asks for the shards of its own devices only, and nothing is communicated.

    ```python
    tokens = from_callback(lambda index: memmap[index], Int32[Array, "[batch/dp] seqlen"], mesh, batch=64, seqlen=128)
    weights = from_callback(lambda path, index: checkpoint[path][index], Weights, mesh, model=512, ff=2048)
    ```

    Args:
      callback: ``callback(index)``, or ``callback(path, index)`` with a path such as
        ``".layers[0].qkv"``; gives an array of the shard's shape and of a dtype of the hint, the same
        dtype for all shards of an array, on all processes.
      T: a hint, or a class whose fields have hints.
      mesh: the mesh; by default the ambient one.
      like: a value of that type, or its structs, where the hint leaves structure or ranks open, as `shape_structs`.
      **sizes: the global size of each name in the hints; a tuple of sizes for ``*name``.

    Returns:
      The arrays, in the structure of the hint, each with the NamedSharding of its hint.

    Raises:
      ShapeError: for wrong sizes, as `shape_structs`, and for a shard of another shape.
      DtypeError: for a shard of another dtype.
      StructureError: for what is no function, a hint that leaves open how many arrays it holds, and a shard
        that is not an array.
      MeshAxisError: for no mesh, one without devices, or an axis that it does not have.
    """
    if not callable(callback):
        got = f"{value_text(callback)} of type {type(callback).__name__}"
        raise StructureError(f"from_callback: a function is wanted as callback, got {got}")
    node = parse_hint_or_dims(T)
    place = placement_context("from_callback", mesh, needs="devices")
    tree, leaves = structs_of(node, place, sizes, like)
    is_one = isinstance(node, ArrayLeaf)
    return _jax.tree.unflatten_like(tree, [_array_from_callback(leaf, callback, is_one, place) for leaf in leaves])


def _array_from_callback(leaf: CheckedLeaf, callback: Callable[..., Any], is_one: bool, place: PlacementContext) -> Any:
    struct, hint = leaf.value, leaf.hint
    if hint is None:
        return leaf.value
    dtypes = list[str]()  # of the shards so far

    def shard_at(index: Index | None) -> Any:
        assert index is not None
        value = callback(index) if is_one else callback(leaf.subject.path, index)
        of = leaf.subject.path and f" of {leaf.subject.path}"
        subject = Subject("placed", f"the shard{of}", f" at {index_text(index)}")
        what: object = _why_no_values(value, hint)
        if what is not None:
            raise place.error((Failure(what, subject, hint.text),))
        shape, expected = getattr(value, "shape", ()), struct.sharding.shard_shape(struct.shape)
        dtype = _jax.array.canonical_dtype(value)
        dtypes.append(dtype)
        if shape != expected:
            what = WrongSize(f"has shape {shape}, but {expected} is its part of the global shape {struct.shape}")
        elif not takes(hint.dtypes, dtype):
            what = WrongDtype(hint.dtype_name, dtype)
        elif dtype != dtypes[0]:
            what = WrongDtype(f"{hint.dtype_name}, and the shards before have {dtypes[0]}", dtype)
        else:
            return value
        raise place.error((Failure(what, subject, hint.text, _jax.array.type_text(value)),))

    # A process without a device in the mesh makes no shard, which would give the dtype.
    has_some = bool(struct.sharding.addressable_devices)
    return jax.make_array_from_callback(
        struct.shape, struct.sharding, shard_at, dtype=None if has_some else default_dtype(hint)
    )


def _why_no_values(value: Any, hint: ArrayHint) -> NotAnArray | PlainMessage | None:
    """Why a value is not an array whose values this process has."""
    if _jax.array.why_not_array(value) is not None or isinstance(value, _jax.array.SHAPES):
        return NotAnArray(hint.type_text, describe(value))
    if _jax.array.is_tracer(value):
        return PlainMessage("is a value under jax.jit or another transformation", "call from_callback outside of them")
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        # Under jax.set_mesh that is what jax.numpy makes in a program of several processes.
        return PlainMessage("is on devices of several processes", "make it with NumPy, or outside of jax.set_mesh")
    return None


def index_text(index: Index) -> str:
    """An index as it is written: ``[0:4, :]``."""
    ends = [["" if end is None else str(end) for end in (part.start, part.stop)] for part in index]
    return f"[{', '.join(map(':'.join, ends))}]"
