"""Which parts of a dim a process holds, and how the reports of processes are compared: tables without a process."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import ShapeError
from typedshmap.errors.failures import HintText, Subject
from typedshmap.notation.spec import parse
from typedshmap.placement.process_local import (
    HeldParts,
    ProcessMesh,
    ProcessReport,
    ReportedLeaf,
    first_disagreement,
    first_error,
)

DP_TP = {"dp": 4, "tp": 2}
# Of each mesh the process of every device.
ROWS = [0, 0, 0, 0, 1, 1, 1, 1]
COLUMNS = [0, 1] * 4
DIAGONAL = [0, 1, 1, 0, 0, 1, 1, 0]
UNEVEN = [0, 0, 0, 1, 1, 1, 1, 1]

# Other ones are drawn below.
PARTS = [
    (ROWS, 0, ("dp",), HeldParts(2, 4)),
    (ROWS, 0, (), HeldParts(1, 1)),
    (COLUMNS, 1, ("tp",), HeldParts(1, 2)),
    (DIAGONAL, 0, ("dp", "tp"), HeldParts(4, 8)),
    (UNEVEN, 1, ("dp", "tp"), HeldParts(5, 8)),
    ([0] * 8, 0, ("dp", "tp"), HeldParts(8, 8)),
    (list(range(8)), 5, ("dp",), HeldParts(1, 4)),
]


@pytest.mark.parametrize(("owners", "process", "axes", "parts"), PARTS)
def test_a_process_holds_these_parts(owners: list[int], process: int, axes: tuple[str, ...], parts: HeldParts) -> None:
    assert ProcessMesh.of(DP_TP, owners, process).held_parts(axes) == parts


@given(
    st.permutations(range(8)), st.integers(1, 8), st.sampled_from([(), ("dp",), ("tp",), ("dp", "tp"), ("tp", "dp")])
)
def test_the_parts_are_those_of_jaxs_indices(order: list[int], count: int, axes: tuple[str, ...]) -> None:
    """Devices up to ``count`` are taken for those of one process."""
    devices = np.array(jax.devices())[list(order)].reshape(4, 2)
    indices = NamedSharding(Mesh(devices, ("dp", "tp")), P(axes or None)).devices_indices_map((8,))
    starts = {device.id: part.start or 0 for device, (part,) in indices.items()}
    held = {start for device, start in starts.items() if device < count}
    owners = [0 if device.id < count else 1 for device in devices.flat]
    assert ProcessMesh.of(DP_TP, owners, 0).held_parts(axes) == HeldParts(len(held), len(set(starts.values())))


GLOBAL_SIZES = [
    (HeldParts(2, 4), 6, 12),
    (HeldParts(1, 1), 7, 7),
    (HeldParts(4, 4), 7, 7),
    (HeldParts(3, 4), 6, 8),
    (HeldParts(2, 4), 5, None),
    (HeldParts(2, 4), 0, 0),
    (HeldParts(1, 8), 3, 24),
]


@pytest.mark.parametrize(("parts", "size", "expected"), GLOBAL_SIZES)
def test_a_size_means_this_globally(parts: HeldParts, size: int, expected: int | None) -> None:
    assert parts.global_size(size) == expected


HINT = HintText('Float[Array, "', "[batch/dp] 4", '"]')


def leaf(path: str = ".x", rows: int = 8, parts: int = 2) -> ReportedLeaf:
    subject, dims = Subject("placed", "data", path), parse(HINT.dims).dims
    return ReportedLeaf(subject, (parts * rows, 4), "float32", (rows, 4), HINT, dims)


# What real processes do not have in test_processes.
DISAGREE: list[Any] = [
    ((leaf(),), (leaf(),), None),
    ((), (), None),
    ((leaf(parts=2),), (leaf(rows=4, parts=4),), None),
    ((leaf(parts=1),), (leaf(rows=6, parts=1),), "has batch=6 on process 1, but process 0 has batch=8"),
    ((leaf(),), (leaf(), leaf(".y")), "is on process 1, but not on process 0"),
]


@pytest.mark.parametrize(("first", "second", "expected"), DISAGREE)
def test_processes_disagree_like_this(first: Any, second: Any, expected: Any) -> None:
    reports = [ProcessReport(0, first), ProcessReport(1, second)]
    difference = first_disagreement(reports)
    assert difference == first_disagreement(reports[::-1])
    assert (difference and difference[1].words().problem) == expected


def test_the_error_of_the_first_process_is_reported() -> None:
    reports = [
        ProcessReport(2, (), ("DtypeError", "two")),
        ProcessReport(0, (leaf(),)),
        ProcessReport(1, (), ("ShapeError", "one")),
    ]
    error = first_error(reports)
    assert (type(error), str(error)) == (ShapeError, "one")
    assert first_error(reports[1:2]) is None
