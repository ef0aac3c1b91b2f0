"""Global arrays from what each process has.

What only other processes can know is compared with theirs, and then every process raises the same error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from .. import _jax
from ..errors import ShapeError, TypedShmapError
from ..hints.array import ArrayHint
from ..hints.nodes import Node, array_hints
from ..hints.trees import node_of
from ..notation.sizes import NO_SIZES
from .agreement import Leaf, Word, disagreement, read_word, told_error, write_word
from .own import Local, World, dim_name, locals_of, tokens, world_of
from .places import Place, place_on_devices
from .structs import bound_sizes, refuse_wrong_sizes, sizes_of_dim


def from_process_local(data: Any, T: Any, /, mesh: Mesh | None = None, **sizes: int | tuple[int, ...]) -> Any:
    """Global arrays from the part that each process has.

    Of each dim a process gives the parts that its own devices hold, each once, in global order: of
    a batch that is split over processes its own rows, of a dim that its devices hold all of the
    whole dim. Processes that hold the same part give the same. With one process, data is the global
    value. This is what ``multihost_utils.host_local_array_to_global_array`` does for one array.

    ```python
    # two processes, dp=4 over both: each loads 16 of 32 sequences
    batch = from_process_local(Batch(next(own_files)), Batch, mesh)  # tokens: i32[32,128], P('dp', None)
    ```

    The processes compare their shapes and dtypes (two small all-gathers over all processes), so that
    all of them raise the same error and none of them hangs. Where ``sizes`` fix every dim of every
    hint nothing is communicated: a process that is wrong is the only one that raises, and neither dtypes
    nor the lengths of lists are compared. A process that fails before it comes here leaves the others
    waiting, as with every collective, until ``jax.distributed`` gives up.

    Args:
      data: this process's part: a pytree of arrays of NumPy, or of JAX on its own devices.
      T: its hint, or the class whose hints it has; dims are global, as everywhere.
      mesh: the mesh; by default the ambient one.
      **sizes: global sizes of names in the hints; a tuple of sizes for ``*name``.

    Returns:
      The arrays, each with the NamedSharding of its hint, in the structure of ``data``.

    Raises:
      ShapeError: for sizes that mean different global sizes, in one process or in several, and for
        what does not divide.
      DtypeError, StructureError: for a leaf that does not fit, by its path.
      ShardingError: for an array that is global already, and for marks, as `shard`.
      MeshAxisError: for no mesh, one without devices of this process, or an axis that it does not have.
    """
    place = place_on_devices("from_process_local", mesh)
    node, world = node_of(T), world_of(place)
    hints = list(array_hints(node))
    refuse_wrong_sizes(place.verb, hints, sizes, must_all=False)
    if world.is_alone:
        items = locals_of(node, data, place, world, sizes)
    elif all(_is_fixed(hint, sizes) for hint in hints):
        items = locals_of(node, data, _named(place, world), world, sizes)
    else:
        items = _agreed(node, data, place, world, sizes)
    return _jax.like(data, [_made(item, place) for item in items])


def _named(place: Place, world: World) -> Place:
    """A place whose errors name the process that they are about."""
    return replace(place, verb=f"{place.verb} on process {world.own}")


def _is_fixed(hint: ArrayHint, sizes: Mapping[str, Any]) -> bool:
    known = bound_sizes(sizes)
    return all(isinstance(sizes_of_dim(dim, 0, known), tuple) for dim in hint.spec.dims)


def _made(item: Local, place: Place) -> Any:
    if item.hint is None:
        return item.value
    value = item.value if isinstance(item.value, jax.Array) else np.asarray(item.value)
    return jax.make_array_from_process_local_data(place.sharding(item.hint, value.ndim), value, item.shape)


def _agreed(node: Node, data: Any, place: Place, world: World, sizes: Mapping[str, Any]) -> list[Local]:
    """This process's leaves, once all processes are known to mean the same global arrays.

    Raises:
      TypedShmapError: the same on all processes.
    """
    refuse_subset(place, world)
    items: list[Local] = []
    error: TypedShmapError | None = None
    try:
        items = locals_of(node, data, _named(place, world), world, sizes)
    except TypedShmapError as wrong:
        error = wrong
    leaves = tuple(_leaf(item) for item in items if item.hint is not None)
    own = Word(world.own, leaves, error and (type(error).__name__, str(error)))
    words = [read_word(text) for text in _jax.gather_bytes(write_word(own))]
    if (told := told_error(words)) is not None:
        raise told from error
    if (found := disagreement(words)) is not None:
        raise found.error(place.region.report(place.verb, (found.failure,), NO_SIZES))
    return items


def refuse_subset(place: Place, world: World) -> None:
    """Some of all processes cannot compare their sizes, since a gather is over all."""
    if len(world.members) < jax.process_count():
        listed = ", ".join(map(str, world.members))
        which = f"processes {listed} of {jax.process_count()}"
        raise ShapeError(
            f"{place.verb}: the mesh lies on {which}, which cannot compare their sizes"
            "\n\nHint: pass the global size of every dim by keyword"
        )


def _leaf(item: Local) -> Leaf:
    assert item.hint is not None
    dims, text = tokens(item.hint, len(item.shape)), item.hint.text
    dtype = _jax.canonical_dtype(item.value)
    names, spans = tuple(map(dim_name, dims)), tuple(dim.span for dim in dims)
    return Leaf(
        item.subject.path, item.own_shape, item.shape, dtype, names, (text.before, text.dims, text.after), spans
    )
