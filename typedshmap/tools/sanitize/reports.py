"""The comparisons of replicas on the host: read when available, and raised by the next call or by ``wait``."""

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
    """The claim that a value is the same on every shard of some mesh axes."""

    subject: Subject
    hint: HintText
    got: str
    axes: tuple[str, ...]
    find_place: Callable[[], str]


class ReplicaComparison(NamedTuple):
    """The claims of one call of a function; among differing comparisons, the one with the lowest number is raised."""

    function: str
    mesh: _jax.mesh.AnyMesh
    axes: tuple[tuple[str, int], ...]
    region: MeshContext
    sizes: Sizes
    claims: tuple[Replicated, ...] = ()
    number: int = 0

    @property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    def error(self, sums: np.ndarray) -> TypedShmapError | None:
        failures = [
            Failure(difference, claim.subject, claim.hint, claim.got, claim.find_place())
            for difference, claim in zip(self.differences(sums), self.claims, strict=True)
            if difference is not None
        ]
        return self.region.error(self.function, failures, self.sizes, failures[0].place) if failures else None

    def differences(self, sums: np.ndarray) -> list[DifferingReplicas | None]:
        """The differences between the shards of each value, by the checksums of all shards."""
        columns = sums.T.reshape(-1, *(size for _, size in self.axes))
        return [self._difference(column, claim.axes) for column, claim in zip(columns, self.claims, strict=True)]

    def _difference(self, sums: np.ndarray, agreeing: tuple[str, ...]) -> DifferingReplicas | None:
        dims = [self.axis_names.index(axis) for axis in agreeing]
        size = prod(sums.shape[dim] for dim in dims)
        order = (*(dim for dim in range(sums.ndim) if dim not in dims), *dims)
        shards = np.arange(sums.size).reshape(sums.shape).transpose(order).reshape(-1, size)
        odd, has_majority = list[int](), True
        for group in shards:  # shards that should be the same
            values, counts = np.unique(sums.flat[group], return_counts=True)
            most = values[counts == counts.max()]
            has_majority &= len(most) == 1
            odd += [at for at in group.tolist() if len(most) > 1 or sums.flat[at] != most[0]]
        if not odd:
            return None
        differing = tuple(axis for axis, dim in zip(agreeing, dims, strict=True) if np.ptp(sums, dim).any())
        texts = tuple(self._shard_text(np.unravel_index(at, sums.shape)) for at in sorted(odd))
        return DifferingReplicas(differing, texts, size, has_majority)

    def _shard_text(self, at: Sequence[Any]) -> str:
        """``dp=2, tp=1 (device 5)``"""
        indices = dict(zip(self.axis_names, at, strict=True))
        text = ", ".join(f"{name}={index}" for name, index in indices.items())
        # Under jit the devices of the ambient mesh are unknown; where an error is raised they are known.
        mesh = self.mesh if isinstance(self.mesh, Mesh) else _jax.mesh.ambient_devices()
        if not isinstance(mesh, Mesh) or mesh.shape_tuple != self.mesh.shape_tuple or {*mesh.axis_names} != {*indices}:
            return text
        device: Any = mesh.devices[tuple(indices[name] for name in mesh.axis_names)]
        process = f" of process {device.process_index}" if jax.process_count() > 1 else ""
        return f"{text} (device {device.id}{process})"


class _Reports:
    """The comparisons of this process: pending checksums, differing checksums, and whether devices report any."""

    def __init__(self) -> None:
        self.pending: deque[tuple[ReplicaComparison, Any]] = deque()
        self.differing: list[tuple[ReplicaComparison, np.ndarray]] = []
        self.is_traced = False
        self.lock = threading.Lock()


_reports = _Reports()
_MOST_PENDING = 64


def expect(comparison: ReplicaComparison, sums: Any) -> None:
    """Look at checksums once they have been computed."""
    _reports.pending.append((comparison, sums))
    if len(_reports.pending) > _MOST_PENDING:
        _look_at_first()


def receiver(comparison: ReplicaComparison) -> Any:
    """The callback of a device whose checksums differ."""
    _reports.is_traced = True
    return partial(_receive, comparison)


def _receive(comparison: ReplicaComparison, sums: Any) -> None:
    """Take a report, on a thread that runs the program: an exception here would leave other devices waiting."""
    on_host = np.array(sums)
    if not any(comparison.differences(on_host)):  # a program may compute both branches, as under jax.vmap
        return
    with _reports.lock:
        is_first = not _reports.differing
        _reports.differing.append((comparison, on_host))
    if is_first:
        # The user's jitted functions are traced again at their next call, which raises the error.
        threading.Thread(target=jax.clear_caches, daemon=True).start()


def _look_at_first() -> None:
    comparison, sums = _reports.pending.popleft()
    on_host = jax.device_get(sums.addressable_data(0))
    if any(comparison.differences(on_host)):
        _reports.differing.append((comparison, on_host))


def raise_found() -> None:
    """Raise an error for a difference that is already known."""
    while _reports.pending and _reports.pending[0][1].is_ready():
        _look_at_first()
    if _reports.differing:
        _raise_first()


def wait() -> None:
    """Wait for all comparisons, and raise an error for a difference."""
    while _reports.pending:
        _look_at_first()
    if _reports.is_traced:
        jax.effects_barrier()
    if _reports.differing:
        _raise_first()


def _raise_first() -> None:
    """Raise the first error, and discard the others, which mostly follow from it."""
    if _reports.is_traced:
        jax.effects_barrier()  # other devices report the same
    comparison, sums = min(_reports.differing, key=lambda pair: pair[0].number)
    _reports.differing.clear()
    _reports.pending.clear()
    error = comparison.error(sums)
    assert error is not None
    raise error
