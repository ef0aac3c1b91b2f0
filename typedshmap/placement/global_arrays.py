"""``shard`` and ``from_callback``: place a global array by its hint, at once or shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, overload

import jax
from jax.sharding import NamedSharding
from jax.typing import ArrayLike

from .. import _jax
from .._jax.array import takes
from ..check import check_in_scope
from ..errors import MeshAxisError, ShardingError, StructureError
from ..errors.failures import Failure, Fault, NotAnArray, PlainMessage, Subject, WrongDtype, WrongSize
from ..errors.phrases import mesh_text, value_text
from ..errors.requirements import merge_sizes
from ..errors.varying import LostMark
from ..hints.array_hint import ArrayHint, rank_of
from ..hints.check_array import describe
from ..hints.check_tree import assert_layouts, with_other_leaves
from ..hints.context import current_mesh_context
from ..hints.fitting import CheckedLeaf
from ..hints.global_sharding import place_stated
from ..hints.parse_hint import parse_hint_or_dims
from ..hints.signature import EMPTY
from ..hints.structure import ArrayLeaf, Node
from ..meshes import MeshLike, read_mesh
from ..notation.layout import Layout
from ..notation.spec import written_axes
from .flax_boxes import PlacedLeaf, PlacedTree, check_leaves, holds_boxes, mesh_of_boxes
from .placement_context import PlacementContext, devices_of, no_mesh, placement_context, read_memory_kind
from .structs import default_dtype, structs_of

T = TypeVar("T")


@overload
def shard(
    x: ArrayLike, hint: Any = EMPTY, mesh: MeshLike | None = None, *, memory_kind: str | None = None
) -> jax.Array: ...
@overload
def shard(x: T, hint: Any = EMPTY, mesh: MeshLike | None = None, *, memory_kind: str | None = None) -> T: ...
def shard(x: Any, hint: Any = EMPTY, mesh: MeshLike | None = None, *, memory_kind: str | None = None) -> Any:
    """Place a value by its hint, and check every leaf; eagerly, under ``jit`` or in a manual region.

    An array on other devices, or with another sharding, is moved, as by ``jax.device_put``. With several processes,
    each process calls it with the same value. Under ``jit`` it is constrained over Auto mesh axes, and resharded over
    Explicit axes. In a manual region brackets over manual axes are compared, as by `check`, and the value is placed
    over the other axes.

    ```python
    weights = shard(init(key), Weights, mesh)
    ```

    Args:
      x: an array, or a pytree of arrays, of NumPy or JAX; of global shape, in a manual region one shard.
      hint: its hint, or a class with hints. A tree of Flax boxes (``nn.LogicallyPartitioned``,
        ``nn.Partitioned``, ``nnx``) needs none. A hint without any sharding (no bracket, mark or matching rule) means
        unsharded in an eager call; under ``jit`` it has no effect. Without a mesh, a hint without brackets and marks
        has no effect. A value hinted ``Any`` or None is not changed.
      mesh: the mesh; by default the ambient mesh, or that of an enclosing `typed_jit`, of the value, or of its boxes.
        It may be abstract under ``jit``, or if the value is placed on a mesh of the same shape.
      memory_kind: the memory of the arrays, ``"device"`` or ``"pinned_host"``; by default their own.

    Returns:
      The value, each array with the NamedSharding of its hint; on an Explicit mesh the type of the array also has that
      sharding. An array that is already placed is the same object; a leaf that is not an array is not changed.

    Raises:
      MeshAxisError: without a mesh if the hint names axes, for a mesh without devices, or for an axis that it does
        not have.
      ShapeError, DtypeError, StructureError: for a leaf that does not fit, by its path; and for a leaf that
        differs between processes.
      ShardingError: for a mark ``~``, and for ``+`` and ``-`` over Auto axes; for an unreduced or reduced
        value whose hint lacks the mark (use `reshard`); for an unknown kind of memory.
      VaryingError: in a manual region, as for `check`.
    """
    node = None if hint is EMPTY else parse_hint_or_dims(hint)
    if node is None and not holds_boxes(x):
        problem = "no hint is given, and the value holds no boxes of Flax that name its dims"
        raise StructureError(f"shard: {problem}")
    if node is not None and _jax.mesh.context_mesh().manual_axes:
        return _shard_in_region(x, node, mesh, memory_kind)
    # Under jit devices are neither known nor needed.
    is_outside = _jax.trace.is_outside_traces()
    values = [] if _jax.tree.is_endless(x) else _jax.tree.leaves(x)
    needs = "devices" if is_outside else "mesh"
    boxed = partial(mesh_of_boxes, x)
    place = placement_context("shard", mesh, needs, values, takes_sums=True, is_optional=True, boxed=boxed)
    kind = read_memory_kind(place.verb, place.mesh, memory_kind)
    tree, failures = check_leaves(place, x, node), list[Failure]()
    layouts: dict[int, Layout] = {}  # of the arrays that are placed under jit
    wanted: dict[int, NamedSharding] = {}  # of the arrays that are moved in an eager call
    known: dict[Any, NamedSharding | None] = {}  # most leaves share a hint and a sharding
    for at, (leaf, within, box) in enumerate(tree.leaves):
        if leaf.hint is None:
            continue
        like = (leaf.hint, id(within), *_jax.array.place_of(leaf.value)) if is_outside else None
        if like in known:
            if (sharding := known[like]) is not None:
                wanted[at] = sharding
            continue
        layout = within.layout(leaf.hint, leaf.subject, rank_of(leaf.value))
        is_placed = is_outside or not layout.is_silent
        if (wrong := _why_unplaceable(leaf, layout, place, is_placed)) is not None:
            failures.append(Failure(wrong, leaf.subject, leaf.hint.text, _jax.array.type_text(leaf.value)))
        elif place.mesh is None and layout.axes:
            # Rules alone need no mesh, so that a model runs without one, as in Flax.
            if box is not None or any(written_axes(leaf.hint.spec.dims, leaf.hint.spec.marks)):
                raise no_mesh(place.verb)
        elif place.mesh is not None and is_outside:
            sharding = _jax.placing.sharding_at_rest(leaf.value, layout, place.mesh, kind)
            known[like] = None if _jax.placing.is_placed(leaf.value, sharding) else sharding
            if known[like] is not None:
                wanted[at] = sharding
        elif place.mesh is not None and is_placed:
            layouts[at] = layout
        elif kind is not None:
            layouts[at] = replace(layout, unconstrained=frozenset(range(len(layout.dim_axes))))
    if failures:
        raise place.error(failures)
    return tree.with_values(_moved(tree, wanted, place) if is_outside else _stated(tree, layouts, place, kind))


def _why_unplaceable(leaf: CheckedLeaf, layout: Layout, place: PlacementContext, is_placed: bool) -> Fault | None:
    """Why a value that fits its hint cannot be placed by it; ``is_placed`` if the hint has a sharding."""
    value, hint, *_ = leaf
    assert hint is not None
    if isinstance(value, _jax.array.SHAPES):
        return NotAnArray(hint.type_text, describe(value))
    known = _jax.array.explicit_spec(value)
    if known is not None and (lost := sorted(known.spec.unreduced - layout.unreduced)):
        return LostMark("+", tuple(lost))
    if known is not None and is_placed and (lost := sorted(known.spec.reduced - layout.reduced)):
        return LostMark("-", tuple(lost))
    where = _jax.array.committed_sharding(value)
    if where is None or place.mesh is None or where.is_fully_addressable:
        return None
    if where.device_set == set(devices_of(place).devices.flat):
        return None
    problem = "is on devices of several processes, but the mesh has other devices"
    return PlainMessage(f"{problem}; JAX does not move arrays between them")


def _stated(tree: PlacedTree, layouts: Mapping[int, Layout], place: PlacementContext, kind: str | None) -> list[Any]:
    """The leaves of a tree; while tracing, those with a layout are placed."""
    values, mesh = [placed.leaf.value for placed in tree.leaves], place.mesh
    if mesh is None:  # nothing is placed
        return values
    for at, layout in layouts.items():
        values[at] = place_stated(values[at], layout, mesh, tree.leaves[at].place.context, "shard", kind)
    return values


def _moved(tree: PlacedTree, wanted: Mapping[int, NamedSharding], place: PlacementContext) -> list[Any]:
    """The leaves of a tree, some of them moved; one call of ``device_put`` moves all arrays of this process."""
    values, together = [placed.leaf.value for placed in tree.leaves], dict[int, NamedSharding]()
    is_multi_process = bool(wanted) and devices_of(place).is_multi_process
    for at, sharding in wanted.items():
        if is_multi_process or sharding.spec.unreduced:
            values[at] = _move_alone(tree.leaves[at], sharding)
        else:
            together[at] = sharding
    placed = jax.device_put([values[at] for at in together], list(together.values()))
    for at, value in zip(together, placed, strict=True):
        values[at] = value
    return values


def _move_alone(leaf: PlacedLeaf, sharding: NamedSharding) -> Any:
    (value, hint, subject, _), place, _ = leaf
    assert hint is not None
    try:
        return _jax.placing.move(value, sharding)
    except AssertionError:  # JAX compares the values, and raises this in all processes
        problem = "is not the same in all processes, or holds NaN, which never compares equal"
        cure = "use from_process_local for parts that differ, and from_callback for values with NaN"
        what = PlainMessage(problem, cure)
        raise place.error((Failure(what, subject, hint.text, _jax.array.type_text(value)),)) from None


def _shard_in_region(x: Any, node: Node, mesh: Any, memory_kind: str | None) -> Any:
    """Check a shard over the manual axes, and place it over the other axes of its hint."""
    here, given = _jax.mesh.context_mesh(), read_mesh(mesh)
    if given is not None and given.shape_tuple != here.shape_tuple:
        problem = f"its mesh ({mesh_text(given.shape_tuple)}) contradicts the ambient one"
        raise MeshAxisError(f"shard: {problem} ({mesh_text(here.shape_tuple)})")
    if memory_kind is not None:
        raise ShardingError("shard: memory_kind= cannot be set inside a manual region, where a value is one shard")
    region = current_mesh_context()
    name, checked = check_in_scope(x, node, region, Subject("placed", "given"), "shard")
    auto_axes = frozenset(here.axis_names) - frozenset(here.manual_axes)

    def placed(leaf: CheckedLeaf) -> CheckedLeaf:
        layout = None if leaf.hint is None else region.layout(leaf.hint)
        if leaf.hint is None or not isinstance(layout, Layout) or layout.axes.isdisjoint(auto_axes):
            return leaf
        layout = layout.at_rank(rank_of(leaf.value), leaf.hint.spec.rest)
        return leaf._replace(value=place_stated(leaf.value, layout.over(auto_axes), here, region, name))

    leaves = assert_layouts([*map(placed, checked.leaves)], region, name, checked.sizes)
    return with_other_leaves(x, checked.leaves, leaves)


Index = tuple[slice, ...]


def from_callback(
    callback: Callable[..., Any],
    T: Any,
    /,
    mesh: MeshLike | None = None,
    like: Any = None,
    *,
    sizes: Mapping[str, Any] | None = None,
    **dims: int | tuple[int, ...],
) -> Any:
    """Make global arrays from a callback that returns their shards, like ``jax.make_array_from_callback``.

    For one array the callback gets the index of a shard: its slices of the global array. For a tree
    it gets the array's path first, to read a checkpoint by name. Each process asks only for the shards
    of its own devices, and nothing is communicated.

    ```python
    tokens = from_callback(lambda index: memmap[index], Int32[Array, "[batch/dp] seqlen"], mesh, batch=64, seqlen=128)
    weights = from_callback(lambda path, index: checkpoint[path][index], Weights, mesh, model=512, ff=2048)
    ```

    Args:
      callback: ``callback(index)``, or ``callback(path, index)`` with a path such as
        ``".layers[0].qkv"``; returns an array of the shard's shape and of a dtype of the hint, the same
        dtype for all shards of an array, on all processes.
      T: a hint, or a class whose fields have hints.
      mesh: the mesh; by default the ambient one.
      like: a value of that type, or its structs, for structure or ranks that the hint leaves open.
      sizes: sizes by name as in a dict, for a dim that has the name of an option.
      **dims: the global size of each name in the hints; a tuple of sizes for ``*name``.

    Returns:
      The arrays, in the structure of the hint, each with the NamedSharding of its hint.

    Raises:
      ShapeError: for wrong sizes, as for `shape_structs`, and for a shard of another shape.
      DtypeError: for a shard of another dtype.
      StructureError: for a callback that is not a function, a hint with an open number of arrays, and a
        shard that is not an array.
      MeshAxisError: without a mesh, for a mesh without devices, or for an axis that it does not have.
    """
    if not callable(callback):
        got = f"{value_text(callback)} of type {type(callback).__name__}"
        raise StructureError(f"from_callback: the callback is not a function; got {got}")
    node, sizes = parse_hint_or_dims(T), merge_sizes("from_callback", sizes, dims)
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
            what = WrongDtype(f"{hint.dtype_name}, and earlier shards have {dtypes[0]}", dtype)
        else:
            return value
        raise place.error((Failure(what, subject, hint.text, _jax.array.type_text(value)),))

    # A process without a device in the mesh makes no shard, so the hint gives the dtype.
    dtype = None if struct.sharding.addressable_devices else default_dtype(hint)
    return jax.make_array_from_callback(struct.shape, struct.sharding, shard_at, dtype=dtype)


def _why_no_values(value: Any, hint: ArrayHint) -> NotAnArray | PlainMessage | None:
    """Why this process cannot read the values of an array; None if it can."""
    if _jax.array.why_not_array(value) is not None or isinstance(value, _jax.array.SHAPES):
        return NotAnArray(hint.type_text, describe(value))
    if _jax.array.is_tracer(value):
        return PlainMessage("is a value under jax.jit or another transformation", "call from_callback outside of them")
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        # With several processes, jax.numpy makes such arrays under jax.set_mesh.
        return PlainMessage("is on devices of several processes", "make it with NumPy, or outside of jax.set_mesh")
    return None


def index_text(index: Index) -> str:
    """An index as Python writes it: ``[0:4, :]``."""
    ends = [["" if end is None else str(end) for end in (part.start, part.stop)] for part in index]
    return f"[{', '.join(map(':'.join, ends))}]"
