"""Global arrays from a callback that gives each shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from .. import _jax
from ..errors.failures import Failure, NotAnArray, Told, WrongDtype, WrongSize
from ..hints.array import ArrayHint
from ..hints.dtypes import takes
from ..hints.leaf import describe
from ..hints.nodes import Leaf
from ..hints.trees import node_of
from ..hints.walk import Found
from ..notation.sizes import Subject
from .places import Place, place_on_devices
from .structs import default_dtype, structs_of

Index = tuple[slice, ...]


def from_callback(
    callback: Callable[..., Any], T: Any, /, mesh: Mesh | None = None, **sizes: int | tuple[int, ...]
) -> Any:
    """Global arrays whose shards a callback gives, as ``jax.make_array_from_callback``.

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
      **sizes: the global size of each name in the hints; a tuple of sizes for ``*name``.

    Returns:
      The arrays, in the structure of the hint, each with the NamedSharding of its hint.

    Raises:
      ShapeError: for wrong sizes, as `shape_structs`, and for a shard of another shape.
      DtypeError: for a shard of another dtype.
      StructureError: for a hint that leaves open how many arrays it holds, and a shard that is no array.
      MeshAxisError: for no mesh, one without devices, or an axis that it does not have.
    """
    node = node_of(T)
    place = place_on_devices("from_callback", mesh)
    structs, arrays = structs_of(node, place, sizes)
    is_one = isinstance(node, Leaf)
    made = iter(_made(array, callback, is_one, place) for array in arrays)
    return jax.tree.map(lambda leaf: next(made) if isinstance(leaf, _jax.SHAPES) else leaf, structs)


def _made(leaf: Found, callback: Callable[..., Any], is_one: bool, place: Place) -> Any:
    assert leaf.hint is not None
    struct, dtypes = leaf.value, list[str]()

    def shard_at(index: Index | None) -> Any:
        assert index is not None
        value = callback(index) if is_one else callback(leaf.subject.path, index)
        _refuse_shard(value, index, leaf, place, dtypes)
        return value

    # A process without a device in the mesh is asked for no shard that would tell the dtype.
    has_some = bool(struct.sharding.addressable_devices)
    return jax.make_array_from_callback(
        struct.shape, struct.sharding, shard_at, dtype=None if has_some else default_dtype(leaf.hint)
    )


def _refuse_shard(value: Any, index: Index, leaf: Found, place: Place, dtypes: list[str]) -> None:
    """Refuse what is no shard of the array; ``dtypes`` are those of its shards so far."""
    hint = leaf.hint
    assert hint is not None
    of = leaf.subject.path and f" of {leaf.subject.path}"
    subject = Subject("placed", f"the shard{of}", f" at {index_text(index)}")
    what: object = _without_values(value, hint)
    if what is not None:
        raise place.error((Failure(what, subject, hint.text),))
    shape, expected = getattr(value, "shape", ()), leaf.value.sharding.shard_shape(leaf.value.shape)
    dtype = _jax.canonical_dtype(value)
    dtypes.append(dtype)
    if shape != expected:
        what = WrongSize(f"has shape {shape}, but {expected} is its part of the global shape {leaf.value.shape}")
    elif not takes(hint.dtypes, dtype):
        what = WrongDtype(hint.dtype_name, dtype)
    elif dtype != dtypes[0]:
        what = WrongDtype(f"{hint.dtype_name}, and the shards before have {dtypes[0]}", dtype)
    else:
        return
    raise place.error((Failure(what, subject, hint.text, _jax.type_text(value)),))


def _without_values(value: Any, hint: ArrayHint) -> NotAnArray | Told | None:
    """Why a value is no array whose values this process has."""
    if _jax.refusal(value) is not None or isinstance(value, _jax.SHAPES):
        return NotAnArray(hint.type_text, describe(value))
    if _jax.is_tracer(value):
        return Told("is a value under jax.jit or another transformation", "call from_callback outside of them")
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        # Under jax.set_mesh that is what jax.numpy makes in a program of several processes.
        return Told("lies on devices of several processes", "make it with NumPy, or outside of jax.set_mesh")
    return None


def index_text(index: Index) -> str:
    """An index as it is written: ``[0:4, :]``."""
    return f"[{', '.join(map(_slice_text, index))}]"


def _slice_text(part: slice) -> str:
    return f"{'' if part.start is None else part.start}:{'' if part.stop is None else part.stop}"
