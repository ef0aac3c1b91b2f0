"""Which rows of a table are in which run."""

import pytest
import tiers


class Row:
    """A test as far as `tiers` reads it."""

    def __init__(self, nodeid: str, *marks: pytest.Mark) -> None:
        self.nodeid, self.marks = nodeid, {mark.name: mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, name: str) -> None:
        self.marks[name] = getattr(pytest.mark, name).mark


SAMPLE, SLOW = pytest.mark.sample(3).mark, pytest.mark.slow.mark


@pytest.mark.parametrize(
    ("rows", "slow", "once", "rare"),
    [
        ([Row(f"t.py::f[{at}]", SAMPLE) for at in range(7)], {1, 2, 4, 5}, {1, 2, 4}, set()),
        ([Row(f"t.py::{name}[0]", SAMPLE) for name in "fgh"], set(), set(), set()),
        (
            [Row("t.py::f[0]", SAMPLE), Row("t.py::f[1]", SAMPLE, SLOW), Row("t.py::f[2]", SAMPLE)],
            {1, 2},
            {1, 2},
            set(),
        ),
        ([Row("t.py::f", SLOW), Row("t.py::g")], {0}, {0}, set()),
        ([Row(f"t.py::f[{at}]", SLOW) for at in range(6)], {*range(6)}, {0, 4}, {1, 2, 3, 5}),
        (
            [Row(f"t.py::f[{at}]", SLOW) for at in range(33)],
            {*range(33)},
            {0, 8, 16, 32},
            {*range(33)} - {*range(0, 33, 8)},
        ),
    ],
    ids=["a table", "several functions", "a row that is slow", "no table", "six slow rows", "a slow table"],
)
def test_rows_are_put_into_runs(rows: list[Row], slow: set[int], once: set[int], rare: set[int]) -> None:
    tiers.put_into_runs(rows)  # type: ignore[arg-type]
    assert {at for at, row in enumerate(rows) if "slow" in row.marks} == slow
    assert {at for at, row in enumerate(rows) if "once" in row.marks} == once
    assert {at for at, row in enumerate(rows) if "rare" in row.marks} == rare
