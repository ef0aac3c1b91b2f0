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


def slow_rows(count: int) -> list[Row]:
    return [Row(f"t.py::f[{at}]", SLOW) for at in range(count)]


def all_but(taken: range) -> set[int]:
    return {*range(taken.stop)} - {*taken}


TABLES: dict[str, tuple[list[Row], set[int], set[int], set[int]]] = {
    "a table": ([Row(f"t.py::f[{at}]", SAMPLE) for at in range(7)], {1, 2, 4, 5}, {1, 2, 4}, set()),
    "several functions": ([Row(f"t.py::{name}[0]", SAMPLE) for name in "fgh"], set(), set(), set()),
    "a row that is slow": (
        [Row("t.py::f[0]", SAMPLE), Row("t.py::f[1]", SAMPLE, SLOW), Row("t.py::f[2]", SAMPLE)],
        {1, 2},
        {1, 2},
        set(),
    ),
    "no table": ([Row("t.py::f", SLOW), Row("t.py::g")], {0}, {0}, set()),
    "six slow rows": (slow_rows(6), {*range(6)}, {0, 4}, all_but(range(0, 6, 4))),
    "a slow table": (slow_rows(33), {*range(33)}, {0, 16, 32}, all_but(range(0, 33, 16))),
    "a long slow table": (slow_rows(86), {*range(86)}, {0, 17, 34, 68, 85}, all_but(range(0, 86, 17))),
}


@pytest.mark.parametrize(("rows", "slow", "once", "rare"), TABLES.values(), ids=TABLES)
def test_rows_are_put_into_runs(rows: list[Row], slow: set[int], once: set[int], rare: set[int]) -> None:
    tiers.put_into_runs(rows)  # type: ignore[arg-type]
    assert {at for at, row in enumerate(rows) if "slow" in row.marks} == slow
    assert {at for at, row in enumerate(rows) if "once" in row.marks} == once
    assert {at for at, row in enumerate(rows) if "rare" in row.marks} == rare
