"""``from_process_local``: global arrays from the data of each process, checked as the global value that it means.

Which global size a process's own size means depends on the sharding, and so on the hint. So each leaf is first matched
with its hint by dtype and rank only; then its global shape is computed; then all leaves are checked together, so that
one name has one size. At last the processes compare their leaves.

Invariant: every process gets the same reports, so every process raises the same error. Along each dim, the data of a
process is the parts that its devices hold, each once and in global order; all parts have the same size."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from .. import _jax, errors
from ..errors import DtypeError, MeshAxisError, ShapeError, StructureError, TypedShmapError
from ..errors.failures import Failure, HintText, PlainMessage, Span, Subject, WrongSize
from ..errors.phrases import count_text
from ..hints.array_hint import ArrayHint
from ..hints.check_tree import CheckedLeaf
from ..hints.context import MeshContext
from ..hints.structure import Node, array_hints, map_hints, parse_hint_or_dims
from ..notation.match import NO_SIZES, SizeMismatch
from ..notation.spec import Dim, Rest
from .context import PlacementContext, devices_of, placement_context, without_given
from .structs import GIVEN, any_size_hint, bound_sizes, refuse_wrong_sizes, sizes_of_dim


def from_process_local(data: Any, T: Any, /, mesh: Mesh | None = None, **sizes: int | tuple[int, ...]) -> Any:
    """Global arrays from the part that each process has.

    A process gives, per dim, the parts that its own devices hold, each once, in global order: its own
    rows of a batch that is sharded over processes, and all of a dim that its devices hold completely.
    Processes that hold the same part give the same data. With one process, data is the global value.
    This is what ``multihost_utils.host_local_array_to_global_array`` does for one array.

    ```python
    # two processes, dp=4 over both: each loads 16 of 32 sequences
    batch = from_process_local(Batch(next(own_files)), Batch, mesh)  # tokens: i32[32,128], P('dp', None)
    ```

    The processes compare their shapes and dtypes (two small all-gathers over all processes), so that
    all of them raise the same error and none of them hangs. Where ``sizes`` fix every dim of every
    hint, nothing is communicated: only the process with wrong data raises, and neither dtypes nor the
    lengths of lists are compared. If a process fails before this call, the others wait for it, as in
    every collective, until ``jax.distributed`` gives up.

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
    place = placement_context("from_process_local", mesh, needs="devices")
    node, processes = parse_hint_or_dims(T), process_mesh(place)
    hints = list(array_hints(node))
    refuse_wrong_sizes(place.verb, hints, sizes, must_all=False)
    here = place if processes.is_alone else replace(place, verb=f"{place.verb} on process {processes.own}")
    known, dims = bound_sizes(sizes), [dim for hint in hints for dim in hint.spec.dims]
    if processes.is_alone or all(isinstance(sizes_of_dim(dim, 0, known), tuple) for dim in dims):
        leaves = _local_leaves(node, data, here, processes, sizes)
    else:
        refuse_subset(place, processes)
        leaves = _agreed_leaves(place, processes.own, lambda: _local_leaves(node, data, here, processes, sizes))
    return _jax.tree.unflatten_like(data, [_global_array(leaf, place) for leaf in leaves])


def _global_array(leaf: LocalLeaf, place: PlacementContext) -> Any:
    if leaf.hint is None:
        return leaf.value
    value = leaf.value if isinstance(leaf.value, jax.Array) else np.asarray(leaf.value)
    return jax.make_array_from_process_local_data(place.sharding(leaf.hint, value.ndim), value, leaf.shape)


class ProcessMesh(NamedTuple):
    """The processes of a mesh, seen from one of them.

    Attributes:
      own: this process.
      members: the processes that have devices in the mesh.
      mesh: the mesh axes and their sizes.
      own_coordinates: the position in the mesh of each device of this process, by mesh axis.
    """

    own: int
    members: tuple[int, ...]
    mesh: Mapping[str, int]
    own_coordinates: tuple[Mapping[str, int], ...]

    @classmethod
    def of(cls, mesh: Mapping[str, int], owners: Sequence[int], own: int) -> ProcessMesh:
        """The processes of a mesh, from the process of each device in the mesh's order."""
        devices = zip(product(*map(range, mesh.values())), owners, strict=True)
        held = tuple(dict(zip(mesh, position, strict=True)) for position, owner in devices if owner == own)
        return cls(own, tuple(sorted(set(owners))), mesh, held)

    @property
    def is_alone(self) -> bool:
        """Whether every device of the mesh belongs to this process."""
        return self.members == (self.own,)

    def held_parts(self, axes: tuple[str, ...]) -> HeldParts:
        """The parts that this process holds of a dim that is sharded over these axes."""
        held = {tuple(device[axis] for axis in axes) for device in self.own_coordinates}
        return HeldParts(len(held), prod(self.mesh[axis] for axis in axes))


class HeldParts(NamedTuple):
    """How many different parts of a dim a process holds, out of how many."""

    held: int
    total: int

    def global_size(self, size: int) -> int | None:
        """The global size that a process's own size means; None where it does not divide.

        A process that holds every part has the global data, so nothing is divided.
        """
        if self.held == self.total:
            return size
        return size // self.held * self.total if size % self.held == 0 else None


def process_mesh(place: PlacementContext) -> ProcessMesh:
    """The processes of a mesh; this one must be among them.

    Raises:
      MeshAxisError: for a mesh that has no device of this process.
    """
    mesh, own = devices_of(place), jax.process_index()
    found = ProcessMesh.of(dict(mesh.shape), [device.process_index for device in mesh.devices.flat], own)
    if own not in found.members:
        listed = ", ".join(map(str, found.members))
        raise MeshAxisError(f"{place.verb}: the mesh has no device of process {own}, only of process {listed}")
    return found


# The leaves of this process


class LocalLeaf(NamedTuple):
    """One leaf of a process's data: its hint, if it is an array, and the global shape that it means."""

    hint: ArrayHint | None
    value: Any
    subject: Subject
    shape: tuple[int, ...] = ()

    def meaning(self, index: int) -> str:
        """``batch=6, which means batch=12 globally``"""
        assert self.hint is not None
        name = _dim_name(_dims(self.hint, len(self.shape))[index])
        return _size_text(name, index, self.value.shape[index], self.shape[index])


# A member of a union is chosen by its rank at first, and then by the global sizes that it means.
_MOST_ITERATIONS = 4


def _local_leaves(
    node: Node, data: Any, place: PlacementContext, processes: ProcessMesh, sizes: Mapping[str, Any]
) -> list[LocalLeaf]:
    """A process's leaves with their global shapes, checked as one global value.

    Raises:
      TypedShmapError: for everything that is wrong.
    """
    checked = _match_leaves(node, data, place)
    for _ in range(_MOST_ITERATIONS):
        found = [_local_leaf(leaf, place, processes) for leaf in checked]
        if failures := [leaf for leaf in found if isinstance(leaf, Failure)]:
            raise place.error(failures)
        leaves = [leaf for leaf in found if isinstance(leaf, LocalLeaf)]
        checked = _check_global(node, data, leaves, place, sizes)
        if all(leaf.hint is other.hint for leaf, other in zip(leaves, checked, strict=True)):
            return leaves
        checked = [leaf._replace(value=own.value) for leaf, own in zip(checked, leaves, strict=True)]
    problem = "fits now one and now another member of its union, by the global size that each of them means"
    raise place.error((Failure(PlainMessage(problem), Subject("placed", "data")),))


_ANYWHERE = MeshContext.over(None, role="placement")


def _match_leaves(node: Node, data: Any, place: PlacementContext) -> list[CheckedLeaf]:
    """Every leaf with its hint; structure, dtypes and ranks are checked, sizes are not."""
    known: dict[int, ArrayHint] = {}

    def any_size(hint: ArrayHint) -> ArrayHint:
        loose = any_size_hint(hint)
        known[id(loose)] = hint
        return loose

    loose = map_hints(node, any_size)  # kept, so that no other hint gets the id of one of its own
    checked = replace(place, context=_ANYWHERE).check_tree(loose, data, "data")
    if checked.failures:
        raise place.error(checked.failures)
    return [leaf if leaf.hint is None else leaf._replace(hint=known[id(leaf.hint)]) for leaf in checked.leaves]


def _local_leaf(leaf: CheckedLeaf, place: PlacementContext, processes: ProcessMesh) -> LocalLeaf | Failure:
    """A leaf with the global shape that it means."""
    value, hint, subject = leaf.value, leaf.hint, leaf.subject
    if hint is None:
        return LocalLeaf(None, value, subject)
    if (refused := _why_refused(value)) is not None:
        return Failure(refused, subject, hint.text, _jax.array.type_text(value))
    own, shape = tuple(getattr(value, "shape", ())), list[int]()
    dim_axes = place.layout(hint, subject).at_rank(len(own), hint.spec.rest).dim_axes
    for index, (size, dim, axes) in enumerate(zip(own, _dims(hint, len(own)), dim_axes, strict=True)):
        parts = processes.held_parts(axes)
        global_size = parts.global_size(size)
        if global_size is None:
            over = ", ".join(f"'{axis}'" for axis in axes)
            shards = f"the {parts.held} of {parts.total} shards over {over} that this process holds"
            problem = f"has {_size_text(_dim_name(dim), index, size, size)}, which does not divide over {shards}"
            return Failure(WrongSize(problem, dim.span), subject, hint.text, _jax.array.type_text(value))
        shape.append(global_size)
    return LocalLeaf(hint, value, subject, tuple(shape))


def _why_refused(value: Any) -> PlainMessage | None:
    if isinstance(value, _jax.array.SHAPES):
        return PlainMessage("is a ShapeDtypeStruct, which holds no values")
    if _jax.array.is_tracer(value):
        return PlainMessage(
            "is a value under jax.jit or another transformation, which no process has", "call it outside of them"
        )
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return PlainMessage("is a global array already, not this process's part", "place it by shard(x, hint)")
    return None


def _check_global(
    node: Node, data: Any, leaves: list[LocalLeaf], place: PlacementContext, sizes: Mapping[str, Any]
) -> list[CheckedLeaf]:
    """Check the global value without its arrays' values; a dtype that JAX narrows is narrowed here, too."""
    structs = [
        leaf.value if leaf.hint is None else jax.ShapeDtypeStruct(leaf.shape, jax.typeof(leaf.value).dtype)
        for leaf in leaves
    ]
    checked = place.check_tree(node, _jax.tree.unflatten_like(data, structs), "data", bound_sizes(sizes))
    if checked.failures:
        known = {leaf.subject: leaf for leaf in leaves}
        failures = [_in_local_terms(failure, known) for failure in checked.failures]
        raise place.error(failures, without_given(checked.sizes, sizes))
    return checked.leaves


def _in_local_terms(failure: Failure, leaves: Mapping[Subject, LocalLeaf]) -> Failure:
    """A failure of the global value, in terms of the data that this process has."""
    what, leaf = failure.what, leaves.get(failure.subject)
    if leaf is None:
        return failure
    got = _jax.array.type_text(leaf.value)
    if not isinstance(what, SizeMismatch) or not isinstance(what.dim, Dim) or not isinstance(what.expected, int):
        return replace(failure, got=got)
    if what.origin is None:
        expected = f"its hint says {what.expected}"
    elif what.origin.subject == GIVEN:
        expected = f"{_dim_name(what.dim)}={what.expected} is given"
    else:
        other = leaves[what.origin.subject]
        expected = f"{other.subject.phrase} has {other.meaning(what.origin.dim)}"
    problem = f"has {leaf.meaning(what.index)}, but {expected}"
    return replace(failure, what=WrongSize(problem, what.span), got=got)


def _dims(hint: ArrayHint, rank: int) -> tuple[Dim | Rest, ...]:
    """The token of a hint that each dim of an array belongs to."""
    dims, rest = hint.spec.dims, hint.spec.rest
    return dims if rest is None else (*dims[:rest], *[dims[rest]] * (rank - len(dims) + 1), *dims[rest + 1 :])


def _dim_name(dim: Dim | Rest) -> str | None:
    """The name or the label of a dim, if it has one."""
    text = (dim.label or str(dim.size)) if isinstance(dim, Dim) else ""
    return text if text.isidentifier() and not text.startswith("_") else None


def _size_text(
    name: str | None, index: int, own: int, global_size: int, where: str = "", globally: str = " globally"
) -> str:
    """``batch=6, which means batch=12 globally``, or ``size 6 in dim 0`` without a name.

    The global size is left out where a process's own size is the global one.
    """
    has, means = (
        (f"size {own} in dim {index}", global_size) if name is None else (f"{name}={own}", f"{name}={global_size}")
    )
    return f"{has}{where}" if own == global_size else f"{has}{where}, which means {means}{globally}"


# Agreement of all processes


class ReportedLeaf(NamedTuple):
    """One array of one process; processes agree where the first three fields are equal.

    Attributes:
      path: its path in the data.
      global_shape: the global shape that it means.
      dtype: its dtype.
      own_shape: the shape that the process has.
      names: per dim its name, if it has one.
      hint: its hint, in the three parts of a `HintText`.
      spans: per dim its place in the hint.
    """

    path: str
    global_shape: tuple[int, ...]
    dtype: str
    own_shape: tuple[int, ...]
    names: tuple[str | None, ...]
    hint: tuple[str, str, str]
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, leaf: LocalLeaf) -> ReportedLeaf:
        """What the other processes need to know of an array."""
        assert leaf.hint is not None
        dims, text = _dims(leaf.hint, len(leaf.shape)), leaf.hint.text
        return cls(
            leaf.subject.path,
            leaf.shape,
            _jax.array.canonical_dtype(leaf.value),
            tuple(getattr(leaf.value, "shape", ())),
            tuple(map(_dim_name, dims)),
            (text.before, text.dims, text.after),
            tuple(dim.span for dim in dims),
        )


class ProcessReport(NamedTuple):
    """The arrays of one process, or the class and the text of its error."""

    process: int
    leaves: tuple[ReportedLeaf, ...] = ()
    error: tuple[str, str] | None = None


def encode_report(report: ProcessReport) -> bytes:
    """A report as the text of a plain tuple."""
    return repr((report.process, tuple(map(tuple, report.leaves)), report.error)).encode()


def decode_report(text: bytes) -> ProcessReport:
    """A report from the text of a plain tuple."""
    process, leaves, error = ast.literal_eval(text.decode())
    return ProcessReport(process, tuple(ReportedLeaf(*leaf) for leaf in leaves), error)


def _agreed_leaves(place: PlacementContext, own: int, read: Callable[[], list[LocalLeaf]]) -> list[LocalLeaf]:
    """This process's leaves, once all processes are known to mean the same global arrays.

    Raises:
      TypedShmapError: the same on all processes.
    """
    leaves: list[LocalLeaf] = []
    error: TypedShmapError | None = None
    try:
        leaves = read()
    except TypedShmapError as wrong:
        error = wrong
    reported = tuple(ReportedLeaf.of(leaf) for leaf in leaves if leaf.hint is not None)
    report = ProcessReport(own, reported, error and (type(error).__name__, str(error)))
    reports = [decode_report(text) for text in _jax.casts.gather_bytes(encode_report(report))]
    if (first := first_error(reports)) is not None:
        raise first from error
    if (found := first_disagreement(reports)) is not None:
        kind, failure = found
        raise kind(place.context.report(place.verb, (failure,), NO_SIZES))
    return leaves


def refuse_subset(place: PlacementContext, processes: ProcessMesh) -> None:
    """Refuse a mesh on some of all processes: they cannot compare their sizes, since a gather is over all.

    Raises:
      ShapeError: with the processes.
    """
    if len(processes.members) < jax.process_count():
        which = f"processes {', '.join(map(str, processes.members))} of {jax.process_count()}"
        raise ShapeError(
            f"{place.verb}: the mesh is on {which}, which cannot compare their sizes"
            "\n\nHint: pass the global size of every dim by keyword"
        )


def first_error(reports: Iterable[ProcessReport]) -> TypedShmapError | None:
    """The error of the first process that has one."""
    found = [report.error for report in sorted(reports) if report.error is not None]
    return getattr(errors, found[0][0])(found[0][1]) if found else None


Disagreement = tuple[type[TypedShmapError], Failure]
"""Two processes that do not mean the same global array: the error's class, and the failure that it reports."""


def first_disagreement(reports: Iterable[ProcessReport]) -> Disagreement | None:
    """The first difference between the first process and another one."""
    first, *others = sorted(reports)
    for other in others:
        for own, their in zip(first.leaves, other.leaves, strict=False):
            if own[:3] != their[:3]:
                return _disagreement(own, first.process, their, other.process)
        for longer, shorter in ((first, other), (other, first)):
            for leaf in longer.leaves[len(shorter.leaves) :]:
                problem = f"is on process {longer.process}, but not on process {shorter.process}"
                return StructureError, _failure(leaf, PlainMessage(problem))
    return None


def _disagreement(own: ReportedLeaf, a: int, their: ReportedLeaf, b: int) -> Disagreement:
    """How an array on process ``b`` differs from the one on process ``a``."""
    if own.path != their.path:
        problem = f"is on process {a}, but process {b} has data{their.path} in its place"
        return StructureError, _failure(own, PlainMessage(problem))
    ranks = len(own.global_shape), len(their.global_shape)
    if ranks[0] != ranks[1]:
        problem = f"has {count_text(ranks[1], 'dim')} on process {b}, but process {a} has {count_text(ranks[0], 'dim')}"
        return ShapeError, _failure(own, PlainMessage(problem))
    for index, (size, their_size) in enumerate(zip(own.global_shape, their.global_shape, strict=True)):
        if size != their_size:
            has = _size_text(their.names[index], index, their.own_shape[index], their_size, f" on process {b}")
            expected = _size_text(own.names[index], index, own.own_shape[index], size, globally="")
            problem = f"has {has}, but process {a} has {expected}"
            return ShapeError, _failure(own, WrongSize(problem, own.spans[index]))
    problem = f"has dtype {their.dtype} on process {b}, but process {a} has {own.dtype}"
    return DtypeError, _failure(own, PlainMessage(problem))


def _failure(leaf: ReportedLeaf, what: PlainMessage | WrongSize) -> Failure:
    return Failure(what, Subject("placed", "data", leaf.path), HintText(*leaf.hint))
