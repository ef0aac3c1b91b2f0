"""What comparisons found, on the host: read when it is there, and raised by the next call or by ``wait``."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from ... import _jax
from ...errors import TypedShmapError
from ...errors.failures import Failure, HintText, Subject
from ...errors.varying import DifferingReplicas
from ...hints.context import MeshContext
from ...notation.match import Sizes


class Replicated(NamedTuple):
    """The claim that a value is the same on every shard of some mesh axes.

    Attributes:
      subject: the value's name.
      hint: its hint.
      got: its type in JAX's notation.
      axes: the axes over which the shards agree, in the order of the mesh.
      find_place: returns the line of the user's that says so.
    """

    subject: Subject
    hint: HintText
    got: str
    axes: tuple[str, ...]
    find_place: Callable[[], str]


class ReplicaComparison(NamedTuple):
    """What one place in a program compares.

    Attributes:
      function: whose values they are.
      claims: what is claimed of them.
      manual: the mesh axes of a report's rows, with their sizes.
      region: the mesh context of messages.
      sizes: the sizes of dims.
      mesh: the mesh of the function, with its devices if they are known.
      number: of two that differ the one with the lower number is raised.
    """

    function: str
    claims: tuple[Replicated, ...]
    manual: tuple[tuple[str, int], ...]
    region: MeshContext
    sizes: Sizes
    mesh: _jax.mesh.AnyMesh
    number: int

    def error(self, sums: np.ndarray) -> TypedShmapError | None:
        """The error for the checksums of all shards; None where those agree that have to."""
        found = [
            Failure(what, claim.subject, claim.hint, claim.got, claim.find_place())
            for what, claim in zip(self.differences(sums), self.claims, strict=True)
            if what is not None
        ]
        return self.region.error(self.function, found, self.sizes, found[0].place) if found else None

    def differences(self, sums: np.ndarray) -> list[DifferingReplicas | None]:
        """What is wrong with each value, by the checksums of all shards."""
        names, shape = [name for name, _ in self.manual], tuple(size for _, size in self.manual)
        columns = [column.reshape(shape) for column in sums.T]
        return [
            self._difference(column, tuple(names.index(axis) for axis in claim.axes))
            for column, claim in zip(columns, self.claims, strict=True)
        ]

    def _difference(self, sums: np.ndarray, dims: tuple[int, ...]) -> DifferingReplicas | None:
        """What is wrong with one value, by the checksums of its shards; the dims are of the axes where they agree."""
        names, size = [name for name, _ in self.manual], prod(sums.shape[dim] for dim in dims)
        order = (*(dim for dim in range(sums.ndim) if dim not in dims), *dims)
        numbers = np.arange(sums.size).reshape(sums.shape).transpose(order).reshape(-1, size)
        odd: list[int] = []
        has_majority = True
        for group in numbers:  # of shards that are to be the same
            values, counts = np.unique(sums.ravel()[group], return_counts=True)
            if len(values) == 1:
                continue
            is_most = counts == counts.max()
            has_majority &= is_most.sum() == 1
            odd += (
                group[sums.ravel()[group] != values[is_most.argmax()]].tolist()
                if is_most.sum() == 1
                else group.tolist()
            )
        if not odd:
            return None
        differing = tuple(names[dim] for dim in dims if (sums != np.take(sums, [0], dim)).any())
        shards = tuple(self._shard_text(np.unravel_index(at, sums.shape), names) for at in sorted(odd))
        return DifferingReplicas(differing, shards, size, bool(has_majority))

    def _shard_text(self, at: Sequence[Any], names: Sequence[str]) -> str:
        """``dp=2, tp=1 (device 5)``"""
        where = ", ".join(f"{name}={index}" for name, index in zip(names, at, strict=True))
        # Under jit JAX does not say on which devices the ambient mesh is; where an error is raised it does.
        mesh = self.mesh if isinstance(self.mesh, Mesh) else _jax.mesh.ambient_devices()
        if not isinstance(mesh, Mesh) or mesh.shape_tuple != self.mesh.shape_tuple or {*mesh.axis_names} != {*names}:
            return where
        device: Any = mesh.devices[tuple(at[names.index(name)] for name in mesh.axis_names)]
        process = f" of process {device.process_index}" if jax.process_count() > 1 else ""
        return f"{where} (device {device.id}{process})"


class _Reports:
    """What is under way, and what was found.

    Attributes:
      pending: the checksums of calls that may still be running, with what they compare; zeros if shards are equal.
      found: checksums that differ, of which no call has raised an error yet.
      is_traced: whether a program was traced whose devices report by themselves.
    """

    def __init__(self) -> None:
        self.pending: deque[tuple[ReplicaComparison, Any]] = deque()
        self.found: list[tuple[ReplicaComparison, np.ndarray]] = []
        self.is_traced = False
        self.lock = threading.Lock()


_reports = _Reports()
_MOST_PENDING = 64


def expect(comparison: ReplicaComparison, sums: Any) -> None:
    """Look at checksums once they have been computed."""
    _reports.pending.append((comparison, sums))
    if len(_reports.pending) > _MOST_PENDING:
        _look(*_reports.pending.popleft())


def receiver(comparison: ReplicaComparison) -> Any:
    """What a device calls with checksums of which some differ."""
    _reports.is_traced = True
    return partial(_receive, comparison)


def _receive(comparison: ReplicaComparison, sums: Any) -> None:
    """Take a report, on a thread that runs the program: an exception here would leave other devices waiting."""
    found = np.array(sums)
    if not any(comparison.differences(found)):  # where a program computes both branches, as under jax.vmap
        return
    with _reports.lock:
        is_first = not _reports.found
        _reports.found.append((comparison, found))
    if is_first:
        # What the user has jitted is traced anew at its next call, which raises.
        threading.Thread(target=jax.clear_caches, daemon=True).start()


def _look(comparison: ReplicaComparison, sums: Any) -> None:
    found = jax.device_get(sums.addressable_data(0))
    if any(comparison.differences(found)):
        _reports.found.append((comparison, found))


def raise_found() -> None:
    """Raise what has been found by now, without waiting for anything.

    Raises:
      ReplicaError: for the first value that differs.
    """
    pending = _reports.pending
    while pending and pending[0][1].is_ready():
        _look(*pending.popleft())
    if _reports.found:
        _raise_first()


def wait() -> None:
    """Wait for all comparisons that are under way.

    Raises:
      ReplicaError: for the first value that differs.
    """
    while _reports.pending:
        _look(*_reports.pending.popleft())
    if _reports.is_traced:
        jax.effects_barrier()
    if _reports.found:
        _raise_first()


def _raise_first() -> None:
    """Raise the first error, and forget the others, which mostly follow from it."""
    if _reports.is_traced:
        jax.effects_barrier()  # other devices report the same
    comparison, sums = min(_reports.found, key=lambda each: each[0].number)
    _reports.found.clear()
    _reports.pending.clear()
    error = comparison.error(sums)
    assert error is not None
    raise error
