"""Which parts of a dim a process holds, and what processes tell each other: tables without a process."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import DtypeError, ShapeError, StructureError
from typedshmap.placement.agreement import Leaf, Word, disagreement, read_word, told_error, write_word
from typedshmap.placement.parts import Parts, coordinates, parts_of

DP_TP = {"dp": 4, "tp": 2}
# Of each mesh the process of every device.
ROWS = [0, 0, 0, 0, 1, 1, 1, 1]
COLUMNS = [0, 1] * 4
INTERLEAVED = [0, 0, 1, 1, 0, 0, 1, 1]
DIAGONAL = [0, 1, 1, 0, 0, 1, 1, 0]
UNEVEN = [0, 0, 0, 1, 1, 1, 1, 1]

PARTS = [
    (ROWS, 0, ("dp",), Parts(2, 4)),
    (ROWS, 1, ("dp",), Parts(2, 4)),
    (ROWS, 0, ("tp",), Parts(2, 2)),
    (ROWS, 0, (), Parts(1, 1)),
    (ROWS, 0, ("dp", "tp"), Parts(4, 8)),
    (ROWS, 0, ("tp", "dp"), Parts(4, 8)),
    (COLUMNS, 0, ("dp",), Parts(4, 4)),
    (COLUMNS, 1, ("tp",), Parts(1, 2)),
    (INTERLEAVED, 1, ("dp",), Parts(2, 4)),
    (DIAGONAL, 0, ("dp",), Parts(4, 4)),
    (DIAGONAL, 0, ("tp",), Parts(2, 2)),
    (DIAGONAL, 0, ("dp", "tp"), Parts(4, 8)),
    (UNEVEN, 0, ("dp",), Parts(2, 4)),
    (UNEVEN, 1, ("dp",), Parts(3, 4)),
    (UNEVEN, 0, ("dp", "tp"), Parts(3, 8)),
    (UNEVEN, 1, ("dp", "tp"), Parts(5, 8)),
    ([0] * 8, 0, ("dp", "tp"), Parts(8, 8)),
    (list(range(8)), 5, ("dp",), Parts(1, 4)),
]


@pytest.mark.parametrize(("owners", "process", "axes", "parts"), PARTS)
def test_a_process_holds_these_parts(owners: list[int], process: int, axes: tuple[str, ...], parts: Parts) -> None:
    assert parts_of(axes, DP_TP, coordinates(DP_TP, owners, process)) == parts


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
    assert parts_of(axes, DP_TP, coordinates(DP_TP, owners, 0)) == Parts(len(held), len(set(starts.values())))


WHOLE = [
    (Parts(2, 4), 6, 12),
    (Parts(1, 1), 7, 7),
    (Parts(4, 4), 7, 7),
    (Parts(3, 4), 6, 8),
    (Parts(2, 4), 5, None),
    (Parts(2, 4), 0, 0),
    (Parts(1, 8), 3, 24),
]


@pytest.mark.parametrize(("parts", "size", "whole"), WHOLE)
def test_a_size_means_this_globally(parts: Parts, size: int, whole: int | None) -> None:
    assert parts.whole(size) == whole


HINT = ('Float[Array, "', "[batch/dp] 4", '"]')


def leaf(path: str = ".x", rows: int = 8, dtype: str = "float32", parts: int = 2, name: str | None = "batch") -> Leaf:
    return Leaf(path, (rows, 4), (parts * rows, 4), dtype, (name, None), HINT, ((0, 10), (11, 12)))


def told(error: type, path: str, problem: str, index: int | None = None) -> Any:
    return error, path, problem, index


DISAGREE: list[Any] = [
    ((leaf(),), (leaf(),), None),
    ((), (), None),
    ((leaf(parts=2),), (leaf(rows=4, parts=4),), None),
    (
        (leaf(),),
        (leaf(rows=6),),
        told(
            ShapeError,
            ".x",
            "has batch=6 on process 1, which means batch=12 globally, but process 0 has batch=8, which means batch=16",
            0,
        ),
    ),
    (
        (leaf(name=None),),
        (leaf(rows=6, name=None),),
        told(
            ShapeError,
            ".x",
            "has size 6 in dim 0 on process 1, which means 12 globally, "
            "but process 0 has size 8 in dim 0, which means 16",
            0,
        ),
    ),
    (
        (leaf(parts=1),),
        (leaf(rows=6, parts=1),),
        told(ShapeError, ".x", "has batch=6 on process 1, but process 0 has batch=8", 0),
    ),
    (
        (leaf(),),
        (leaf(dtype="bfloat16"),),
        told(DtypeError, ".x", "has dtype bfloat16 on process 1, but process 0 has float32"),
    ),
    (
        (leaf(),),
        (Leaf(".x", (4,), (8,), "float32", ("batch",), HINT, ((0, 10),)),),
        told(ShapeError, ".x", "has 1 dim on process 1, but process 0 has 2 dims"),
    ),
    ((leaf(), leaf(".y")), (leaf(),), told(StructureError, ".y", "is on process 0, but not on process 1")),
    ((leaf(),), (leaf(), leaf(".y")), told(StructureError, ".y", "is on process 1, but not on process 0")),
    (
        (leaf(),),
        (leaf(".y"),),
        told(StructureError, ".x", "is on process 0, but process 1 has data.y in its place"),
    ),
]


@pytest.mark.parametrize(("first", "second", "expected"), DISAGREE)
def test_processes_disagree_like_this(first: Any, second: Any, expected: Any) -> None:
    words = [Word(0, first), Word(1, second)]
    found = disagreement(words)
    assert found == disagreement(words[::-1])
    assert expected == (found and told(found.error, found.leaf.path, found.problem, found.index))


@pytest.mark.parametrize("word", [Word(0), Word(3, (leaf(), leaf(".y", name=None))), Word(1, (), ("ShapeError", "é"))])
def test_a_word_comes_as_it_was_sent(word: Word) -> None:
    assert read_word(write_word(word)) == word


def test_the_first_process_with_an_error_is_heard() -> None:
    words = [Word(2, (), ("DtypeError", "two")), Word(0, (leaf(),)), Word(1, (), ("ShapeError", "one"))]
    error = told_error(words)
    assert (type(error), str(error)) == (ShapeError, "one")
    assert told_error(words[1:2]) is None
