"""``from_process_local``: global arrays from the data of each process, checked as global arrays.

The global size of a dim depends on its sharding, and so on the hint. So each array is first matched with its hint by
dtype and rank only; then its global shape is computed, and checked together with the other arrays, so that a name has
one size. Finally the processes compare their arrays.

Invariant: every process gets the same reports, so every process raises the same error. Along each dim, the data of a
process consists of the parts on its devices, each once and in global order; all parts have the same size."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import _jax, errors
from ..errors import DtypeError, MeshAxisError, ShapeError, StructureError, TypedShmapError
from ..errors.failures import Failure, HintText, PlainMessage, Subject, WrongSize
from ..errors.phrases import count_text
from ..errors.requirements import merge_sizes
from ..hints.array_hint import ArrayHint
from ..hints.check_array import check_array
from ..hints.check_tree import check_value
from ..hints.context import MeshContext
from ..hints.parse_hint import parse_hint_or_dims
from ..hints.structure import Node, array_hints
from ..meshes import MeshLike
from ..notation.layout import Layout
from ..notation.match import NO_SIZES, SizeMismatch, Sizes
from ..notation.spec import Dim, Rest
from .placement_context import PlacementContext, devices_of, placement_context
from .structs import GIVEN, any_size_hint, bound_sizes, refuse_wrong_sizes, shape_of


def from_process_local(
    data: Any,
    T: Any,
    /,
    mesh: MeshLike | None = None,
    *,
    sizes: Mapping[str, Any] | None = None,
    **dims: int | tuple[int, ...],
) -> Any:
    """Make global arrays from the parts of all processes.

    Along each dim, a process passes the parts on its own devices, each once, in global order: its own rows of a batch
    that is sharded over processes, or the whole dim if its devices hold all of it. Processes with the same part pass
    the same data. With one process, ``data`` is the global value. For one array it is like
    ``multihost_utils.host_local_array_to_global_array``.

    ```python
    # two processes, dp=4 over both: each loads 16 of 32 sequences
    batch = from_process_local(Batch(next(own_files)), Batch, mesh)  # tokens: i32[32,128], P('dp', None)
    ```

    The processes compare their shapes and dtypes (two small all-gathers over all processes), so that
    all of them raise the same error and none of them hangs. If ``sizes`` fix every dim of every hint,
    nothing is communicated: only the process with wrong data raises, and neither dtypes nor the
    lengths of lists are compared. If a process fails before this call, the others wait for it, as in
    every collective, until ``jax.distributed`` gives up.

    Args:
      data: this process's part: a pytree of arrays of NumPy, or of JAX on its own devices.
      T: its hint, or a class with hints; dims are global, as everywhere.
      mesh: the mesh; by default the ambient one.
      sizes: sizes by name as in a dict, for a dim that has the name of an option.
      **dims: global sizes of names in the hints; a tuple of sizes for ``*name``.

    Returns:
      The arrays, each with the NamedSharding of its hint, in the structure of ``data``.

    Raises:
      ShapeError: for sizes that contradict each other, in one process or between processes, and for
        dims that do not divide.
      DtypeError, StructureError: for a leaf that does not fit, by its path.
      ShardingError: for an array that is global already, and for marks, as for `shard`.
      MeshAxisError: without a mesh, for a mesh without devices of this process, or for an axis that it does not have.
    """
    sizes = merge_sizes("from_process_local", sizes, dims)
    place = placement_context("from_process_local", mesh, needs="devices")
    node, processes = parse_hint_or_dims(T), process_mesh(place)
    hints = list(array_hints(node))
    refuse_wrong_sizes(place.verb, hints, sizes, must_all=False)
    here = place if processes.is_alone else replace(place, verb=f"{place.verb} on process {processes.this_process}")
    known = bound_sizes(sizes)
    if processes.is_alone or all(isinstance(shape_of(hint, known), tuple) for hint in hints):
        leaves = _local_leaves(node, data, here, processes, known)
    else:
        refuse_subset(place, processes)
        leaves = _agreed_leaves(
            place, processes.this_process, lambda: _local_leaves(node, data, here, processes, known)
        )
    return _jax.tree.unflatten_like(data, _global_arrays(leaves, place))


def _global_arrays(leaves: Sequence[LocalLeaf], place: PlacementContext) -> list[Any]:
    """All leaves, with global arrays for those with hints, made in one call."""
    local = [leaf for leaf in leaves if leaf.hint is not None]
    kinds = [(leaf.hint, leaf.shape) for leaf in local]
    shardings = {kind: place.sharding_at_rest(kind[0], len(kind[1])) for kind in dict.fromkeys(kinds)}
    values = [leaf.value for leaf in local]
    made = jax.make_array_from_process_local_data(
        [shardings[kind] for kind in kinds],
        [x if type(x) is np.ndarray or isinstance(x, jax.Array) else np.asarray(x) for x in values],
        [leaf.shape for leaf in local],
    )
    arrays = iter(made)
    return [leaf.value if leaf.hint is None else next(arrays) for leaf in leaves]


class ProcessMesh(NamedTuple):
    """The processes with devices in a mesh, and where the devices of this process are in it."""

    this_process: int
    members: tuple[int, ...]
    mesh: Mapping[str, int]
    own_coordinates: tuple[Mapping[str, int], ...]

    @classmethod
    def of(cls, mesh: Mapping[str, int], owners: Sequence[int], this_process: int) -> ProcessMesh:
        devices = zip(product(*map(range, mesh.values())), owners, strict=True)
        held = tuple(dict(zip(mesh, position, strict=True)) for position, owner in devices if owner == this_process)
        return cls(this_process, tuple(sorted(set(owners))), mesh, held)

    @property
    def is_alone(self) -> bool:
        return self.members == (self.this_process,)

    def held_parts(self, axes: tuple[str, ...]) -> HeldParts:
        """The parts that this process holds of a dim that is sharded over these axes."""
        held = {tuple(device[axis] for axis in axes) for device in self.own_coordinates}
        return HeldParts(len(held), prod(self.mesh[axis] for axis in axes))


class HeldParts(NamedTuple):
    """The number of different parts of a dim that a process holds, and the total."""

    held: int
    total: int

    def global_size(self, size: int) -> int | None:
        """The global size for a process's own size; None if that does not divide."""
        if self.held == self.total:
            return size
        return size // self.held * self.total if size % self.held == 0 else None


def process_mesh(place: PlacementContext) -> ProcessMesh:
    """The processes of a mesh; this one must be among them."""
    mesh, this_process = devices_of(place), jax.process_index()
    processes = ProcessMesh.of(dict(mesh.shape), [device.process_index for device in mesh.devices.flat], this_process)
    if this_process not in processes.members:
        listed = ", ".join(map(str, processes.members))
        raise MeshAxisError(f"{place.verb}: the mesh has no device of process {this_process}, only of process {listed}")
    return processes


class LocalLeaf(NamedTuple):
    """One leaf of a process's data: its hint, if it is an array, and its global shape."""

    hint: ArrayHint | None
    value: Any
    subject: Subject
    shape: tuple[int, ...]


def _local_leaves(
    node: Node, data: Any, place: PlacementContext, processes: ProcessMesh, sizes: Sizes
) -> list[LocalLeaf]:
    if processes.is_alone:  # its data is the global value
        checked = check_value(node, data, Subject("placed", "data"), place.context, {}, sizes)
        others = [leaf.value for leaf in checked.leaves if leaf.hint is not None and type(leaf.value) is not np.ndarray]
        if not checked.failures and all(map(_is_held, others)):
            arrays, hints, subjects, _ = zip(*checked.leaves, strict=True) if checked.leaves else ((),) * 4
            own_shapes = [x.shape if type(x) is np.ndarray else np.shape(x) for x in arrays]
            parts = zip(hints, arrays, subjects, own_shapes, strict=True)
            return list(map(partial(tuple.__new__, LocalLeaf), parts))  # without a call for each leaf
    values: dict[Subject, Any] = {}
    shapes: dict[tuple[Subject, ArrayHint | None], tuple[int, ...]] = {}

    def check(value: Any, hint: ArrayHint, region: MeshContext, known: Sizes, subject: Subject, *rest: Any) -> Any:
        shape = _global_shape(value, hint, subject, region, processes)
        if isinstance(shape, Failure):
            return shape
        values[subject], shapes[subject, hint] = value, shape
        # With the dtype to which JAX narrows it.
        struct = jax.ShapeDtypeStruct(shape, jax.typeof(value).dtype)
        checked = check_array(struct, hint, region, known, subject, *rest)
        return _in_local_terms(checked, values) if isinstance(checked, Failure) else checked

    leaves = place.require_match(node, data, "data", sizes, check)
    return [LocalLeaf(hint, value, at, shapes.get((at, hint), ())) for value, hint, at, _ in leaves]


def _is_held(value: Any) -> bool:
    """Whether a value is a number, or an array that this process holds completely."""
    if isinstance(value, np.ndarray):
        return True
    if isinstance(value, jax.Array):
        return not _jax.array.is_tracer(value) and value.is_fully_addressable
    return isinstance(value, _jax.array.SCALARS)


_ANYWHERE = MeshContext.over(None, role="placement")


def _global_shape(
    value: Any, hint: ArrayHint, subject: Subject, region: MeshContext, processes: ProcessMesh
) -> tuple[int, ...] | Failure:
    """The global shape of a process's array, or a failure if its dtype or its rank contradicts its hint."""
    checked = check_array(value, any_size_hint(hint), _ANYWHERE, NO_SIZES, subject, {})
    if isinstance(checked, Failure):
        return checked
    refused = None
    if isinstance(value, _jax.array.SHAPES):
        refused = PlainMessage("is a ShapeDtypeStruct, which holds no values")
    elif _jax.array.is_tracer(value):
        problem = "is a value under jax.jit or another transformation, which no process has"
        refused = PlainMessage(problem, "call it outside of them")
    elif isinstance(value, jax.Array) and not value.is_fully_addressable:
        refused = PlainMessage("is a global array already, not this process's part", "place it by shard(x, hint, mesh)")
    if refused is not None:
        return Failure(refused, subject, hint.text, _jax.array.type_text(value))
    layout = region.layout(hint)
    if not isinstance(layout, Layout):
        return Failure(layout, subject, hint.text)
    local_shape, shape = np.shape(value), list[int]()
    dim_axes = layout.at_rank(len(local_shape), hint.spec.rest).dim_axes
    for index, (size, dim, axes) in enumerate(zip(local_shape, _dims(hint, len(local_shape)), dim_axes, strict=True)):
        parts = processes.held_parts(axes)
        global_size = parts.global_size(size)
        if global_size is None:
            over = ", ".join(f"'{axis}'" for axis in axes)
            shards = f"the {parts.held} of {parts.total} shards over {over} that this process holds"
            problem = f"has {_size_text(dim, index, size, size)}, which does not divide over {shards}"
            return Failure(WrongSize(problem, dim.span), subject, hint.text, _jax.array.type_text(value))
        shape.append(global_size)
    return tuple(shape)


def _in_local_terms(failure: Failure, values: Mapping[Subject, Any]) -> Failure:
    """A failure of a global array, in terms of this process's data."""
    what, value = failure.what, values[failure.subject]
    if isinstance(what, SizeMismatch) and isinstance(what.got, int) and isinstance(what.expected, int):
        name, origin = _dim_name(what.dim), what.origin
        if origin is None:
            expected = f"its hint says {what.expected}"
        elif origin.subject == GIVEN:
            expected = f"{name}={what.expected} is given"
        else:
            own_size = values[origin.subject].shape[origin.dim]
            expected = f"{origin.subject.phrase} has {_size_text(what.dim, origin.dim, own_size, what.expected)}"
        has = _size_text(what.dim, what.index, value.shape[what.index], what.got)
        what = WrongSize(f"has {has}, but {expected}", what.span)
    return replace(failure, what=what, got=_jax.array.type_text(value))


def _dims(hint: ArrayHint, rank: int) -> tuple[Dim | Rest, ...]:
    return tuple(hint.spec.dim_at(index, rank) for index in range(rank))


def _dim_name(dim: Dim | Rest) -> str | None:
    """The name or the label of a dim, if it has one."""
    text = (dim.label or str(dim.size)) if isinstance(dim, Dim) else ""
    return text if text.isidentifier() and not text.startswith("_") else None


def _size_text(
    dim: Dim | Rest, index: int, size: int, global_size: int, where: str = "", globally: str = " globally"
) -> str:
    """``batch=6, which means batch=12 globally``; without a name ``size 6 in dim 0``."""
    name = _dim_name(dim)
    has = f"size {size} in dim {index}" if name is None else f"{name}={size}"
    means = f"{global_size}" if name is None else f"{name}={global_size}"
    return f"{has}{where}" if size == global_size else f"{has}{where}, which means {means}{globally}"


class ReportedLeaf(NamedTuple):
    """One array of one process; processes agree if the first three fields are equal."""

    subject: Subject
    global_shape: tuple[int, ...]
    dtype: str
    own_shape: tuple[int, ...]
    hint: HintText
    dims: tuple[Dim | Rest, ...]

    @classmethod
    def of(cls, leaf: LocalLeaf) -> ReportedLeaf:
        assert leaf.hint is not None
        dtype, dims = _jax.array.canonical_dtype(leaf.value), _dims(leaf.hint, len(leaf.shape))
        return cls(leaf.subject, leaf.shape, dtype, np.shape(leaf.value), leaf.hint.text, dims)


class ProcessReport(NamedTuple):
    """The arrays of one process, or the class and the text of its error."""

    process: int
    leaves: tuple[ReportedLeaf, ...] = ()
    error: tuple[str, str] | None = None


def _agreed_leaves(place: PlacementContext, process: int, read: Callable[[], list[LocalLeaf]]) -> list[LocalLeaf]:
    """This process's leaves, if all processes agree on the global arrays; else all raise the same error."""
    leaves: list[LocalLeaf] = []
    error: TypedShmapError | None = None
    try:
        leaves = read()
    except TypedShmapError as wrong:
        error = wrong
    reported = tuple(ReportedLeaf.of(leaf) for leaf in leaves if leaf.hint is not None)
    report = ProcessReport(process, reported, error and (type(error).__name__, str(error)))
    reports = list(map(pickle.loads, _jax.casts.gather_bytes(pickle.dumps(report))))
    if (first := first_error(reports)) is not None:
        raise first from error
    if (difference := first_disagreement(reports)) is not None:
        kind, failure = difference
        raise kind(place.context.report(place.verb, (failure,), NO_SIZES))
    return leaves


def refuse_subset(place: PlacementContext, processes: ProcessMesh) -> None:
    """Raise for a mesh on some of the processes: they cannot compare sizes, since a gather is over all."""
    if len(processes.members) < jax.process_count():
        which = f"processes {', '.join(map(str, processes.members))} of {jax.process_count()}"
        raise ShapeError(
            f"{place.verb}: the mesh is on {which}, which cannot compare their sizes"
            "\n\nHint: pass the global size of every dim by keyword"
        )


def first_error(reports: Iterable[ProcessReport]) -> TypedShmapError | None:
    """The error of the first process with an error."""
    reported = [report.error for report in sorted(reports) if report.error is not None]
    return getattr(errors, reported[0][0])(reported[0][1]) if reported else None


Disagreement = tuple[type[TypedShmapError], Failure]
"""The class and the failure of the error for two processes with different global arrays."""


def first_disagreement(reports: Iterable[ProcessReport]) -> Disagreement | None:
    """The first difference between the first process and any other."""
    first, *compared_reports = sorted(reports)
    for compared in compared_reports:
        for leaf, other_leaf in zip(first.leaves, compared.leaves, strict=False):
            if leaf[:3] != other_leaf[:3]:
                return _disagreement(leaf, first.process, other_leaf, compared.process)
        for longer, shorter in ((first, compared), (compared, first)):
            for leaf in longer.leaves[len(shorter.leaves) :]:
                problem = f"is on process {longer.process}, but not on process {shorter.process}"
                return StructureError, Failure(PlainMessage(problem), leaf.subject, leaf.hint)
    return None


def _disagreement(leaf: ReportedLeaf, a: int, other_leaf: ReportedLeaf, b: int) -> Disagreement:
    """How an array on process ``b`` differs from the one on process ``a``."""
    if leaf.subject != other_leaf.subject:
        problem = f"is on process {a}, but process {b} has {other_leaf.subject} instead"
        return StructureError, Failure(PlainMessage(problem), leaf.subject, leaf.hint)
    ranks = len(leaf.global_shape), len(other_leaf.global_shape)
    if ranks[0] != ranks[1]:
        problem = f"has {count_text(ranks[1], 'dim')} on process {b}, but process {a} has {count_text(ranks[0], 'dim')}"
        return ShapeError, Failure(PlainMessage(problem), leaf.subject, leaf.hint)
    for index, (size, other_size) in enumerate(zip(leaf.global_shape, other_leaf.global_shape, strict=True)):
        if size != other_size:
            has = _size_text(other_leaf.dims[index], index, other_leaf.own_shape[index], other_size, f" on process {b}")
            expected = _size_text(leaf.dims[index], index, leaf.own_shape[index], size, globally="")
            problem = f"has {has}, but process {a} has {expected}"
            return ShapeError, Failure(WrongSize(problem, leaf.dims[index].span), leaf.subject, leaf.hint)
    problem = f"has dtype {other_leaf.dtype} on process {b}, but process {a} has {leaf.dtype}"
    return DtypeError, Failure(PlainMessage(problem), leaf.subject, leaf.hint)
