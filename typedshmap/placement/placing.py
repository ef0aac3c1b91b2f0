"""``shard`` and ``from_callback``: place a global array as its hint says, at once or shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, overload

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.typing import ArrayLike

from .. import _jax
from ..check import check_in_scope
from ..errors import MeshAxisError, ShardingError, StructureError
from ..errors.failures import Failure, Fault, NotAnArray, PlainMessage, Subject, WrongDtype, WrongSize
from ..errors.phrases import mesh_text, value_text
from ..errors.varying import LostMark
from ..hints.array_hint import ArrayHint, rank_of, takes
from ..hints.check_array import describe
from ..hints.check_tree import CheckedLeaf, assert_layouts, with_other_leaves
from ..hints.context import current_mesh_context
from ..hints.global_sharding import place_stated
from ..hints.parse_hint import parse_hint_or_dims
from ..hints.signature import EMPTY
from ..hints.structure import ArrayLeaf, Node
from ..meshes import read_mesh
from ..notation.layout import Layout
from ..notation.spec import written_axes
from .context import PlacementContext, devices_of, no_mesh, placement_context, read_memory_kind
from .flax_boxes import PlacedLeaf, PlacedTree, check_leaves, holds_boxes, mesh_of_boxes
from .structs import default_dtype, structs_of

T = TypeVar("T")


@overload
def shard(
    x: ArrayLike, hint: Any = EMPTY, mesh: Mesh | AbstractMesh | None = None, *, memory_kind: str | None = None
) -> jax.Array: ...
@overload
def shard(x: T, hint: Any = EMPTY, mesh: Mesh | AbstractMesh | None = None, *, memory_kind: str | None = None) -> T: ...
def shard(x: Any, hint: Any = EMPTY, mesh: Mesh | AbstractMesh | None = None, *, memory_kind: str | None = None) -> Any:
    """Place a value as its hint says, every leaf checked, wherever the call stands.

    An array on other devices, or with another sharding, is moved, as by ``jax.device_put``. Where
    several processes run, each calls it with the same value. Under ``jit`` it is constrained over Auto
    mesh axes, and resharded over Explicit ones. In a manual region brackets over manual axes are
    compared, as by `check`, and the value is placed over the others.

    ```python
    weights = shard(init(key), Weights, mesh)
    ```

    Args:
      x: an array, or a pytree of arrays, of NumPy or JAX; of global shape, in a manual region one shard.
      hint: its hint, or the class whose hints it has. A tree that Flax has boxed
        (``nn.LogicallyPartitioned``, ``nn.Partitioned``, ``nnx``) needs none. A hint without any sharding
        (no bracket, mark or rule that applies) means unsharded where arrays are placed at once; under
        ``jit`` it says nothing. Where no mesh is known, a hint without brackets and marks says nothing.
        What is hinted ``Any`` or None stays as it is.
      mesh: the mesh; by default the ambient one, that of a `typed_jit` around, the value's own, or that
        which its boxes name. It may be abstract under ``jit``, and where the value is on devices of a mesh like it.
      memory_kind: where the arrays are kept, ``"device"`` or ``"pinned_host"``; by default where they are.

    Returns:
      The value, each array with the NamedSharding of its hint; on an Explicit mesh the array's type
      says it, too. What is placed so already is the same object, and what is not an array stays as it is.

    Raises:
      MeshAxisError: for no mesh where the hint names axes, one without devices, or an axis that it does not have.
      ShapeError, DtypeError, StructureError: for a leaf that does not fit, by its path; and for one that
        is not the same in all processes, where there are several.
      ShardingError: for a mark ``~``, and for ``+`` and ``-`` over Auto axes; for a value that is unreduced
        or reduced where its hint has no such mark, which `reshard` takes away; for a kind of memory that
        there is not.
      VaryingError: in a manual region, as `check`.
    """
    node = None if hint is EMPTY else parse_hint_or_dims(hint)
    if node is None and not holds_boxes(x):
        problem = "no hint is given, and the value holds no boxes of Flax, which would say how it is sharded"
        raise StructureError(f"shard: {problem}")
    if node is not None and _jax.mesh.context_mesh().manual_axes:
        return _shard_in_region(x, node, mesh, memory_kind)
    # Under jit no devices are known, and none are needed.
    is_outside = _jax.trace.is_outside_traces()
    values = [] if _jax.tree.is_endless(x) else _jax.tree.leaves(x)
    needs = "devices" if is_outside else "mesh"
    boxed = partial(mesh_of_boxes, x)
    place = placement_context("shard", mesh, needs, values, takes_sums=True, is_optional=True, boxed=boxed)
    kind = read_memory_kind(place.verb, place.mesh, memory_kind)
    tree, failures = check_leaves(place, x, node), list[Failure]()
    layouts: dict[int, Layout] = {}  # of the arrays that are placed
    wanted: dict[int, NamedSharding] = {}  # at once, of those that are elsewhere
    known: dict[Any, NamedSharding | None] = {}  # most leaves are like others
    for at, (leaf, within, box) in enumerate(tree.leaves):
        if leaf.hint is None:
            continue
        like = (leaf.hint, id(within), *_jax.array.place_of(leaf.value)) if is_outside else None
        if like in known:
            if (sharding := known[like]) is not None:
                wanted[at] = sharding
            continue
        layout = within.layout_at(leaf.hint, rank_of(leaf.value))
        is_placed = is_outside or not layout.is_silent
        if (wrong := _why_unplaceable(leaf, layout, place, is_placed)) is not None:
            failures.append(Failure(wrong, leaf.subject, leaf.hint.text, _jax.array.type_text(leaf.value)))
        elif place.mesh is None and layout.axes:
            # Rules alone ask for no mesh, so that one model runs without, as in Flax.
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
    """Why a value that fits its hint cannot be placed so; ``is_placed`` if the hint says how."""
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
    problem = "is on devices of several processes, which are not those of the mesh"
    return PlainMessage(f"{problem}; JAX moves none between them")


def _stated(tree: PlacedTree, layouts: Mapping[int, Layout], place: PlacementContext, kind: str | None) -> list[Any]:
    """The leaves of a tree, those that have a layout placed where a program is traced."""
    values, mesh = [each.leaf.value for each in tree.leaves], place.mesh
    if mesh is None:  # where nothing is placed
        return values
    for at, layout in layouts.items():
        values[at] = place_stated(values[at], layout, mesh, tree.leaves[at].place.context, "shard", kind)
    return values


def _moved(tree: PlacedTree, wanted: Mapping[int, NamedSharding], place: PlacementContext) -> list[Any]:
    """The leaves of a tree, some moved: all that are on devices here by one call."""
    values, together = [each.leaf.value for each in tree.leaves], dict[int, NamedSharding]()
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


def _move_alone(each: PlacedLeaf, sharding: NamedSharding) -> Any:
    """One array, placed by itself."""
    (value, hint, subject, _), place, _ = each
    assert hint is not None
    try:
        return _jax.placing.move(value, sharding)
    except AssertionError:  # JAX compares the values, and raises this in all processes
        problem = "is not the same in all processes, or holds NaN, which JAX finds equal to nothing"
        cure = "place by from_process_local what each of them has, by from_callback what holds NaN"
        what = PlainMessage(problem, cure)
        raise place.error((Failure(what, subject, hint.text, _jax.array.type_text(value)),)) from None


def _shard_in_region(x: Any, node: Node, mesh: Any, memory_kind: str | None) -> Any:
    """A shard, compared over the manual axes and placed over the others, of which its hint names one."""
    here, given = _jax.mesh.context_mesh(), read_mesh(mesh)
    if given is not None and given.shape_tuple != here.shape_tuple:
        problem = f"its mesh ({mesh_text(given.shape_tuple)}) contradicts the ambient one"
        raise MeshAxisError(f"shard: {problem} ({mesh_text(here.shape_tuple)})")
    if memory_kind is not None:
        raise ShardingError("shard: inside a manual region a value is one shard, whose memory is not chosen by a hint")
    region = current_mesh_context()
    name, checked = check_in_scope(x, node, region, Subject("placed", "given"), "shard")
    others = frozenset(here.axis_names) - frozenset(here.manual_axes)

    def placed(leaf: CheckedLeaf) -> CheckedLeaf:
        layout = None if leaf.hint is None else region.layout(leaf.hint)
        if leaf.hint is None or not isinstance(layout, Layout) or layout.axes.isdisjoint(others):
            return leaf
        layout = layout.at_rank(rank_of(leaf.value), leaf.hint.spec.rest)
        return leaf._replace(value=place_stated(leaf.value, layout.over(others), here, region, name))

    leaves = assert_layouts([*map(placed, checked.leaves)], region, name, checked.sizes)
    return with_other_leaves(x, checked.leaves, leaves)


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
