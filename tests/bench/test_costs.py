"""The rows of the benchmarks that count (calls, bytes, steps, texts) are within their limits.

They run by themselves, by ``-m bench``: calls are counted of a process whose caches other tests have not filled. A row
that is better for good is kept so by ``python bench/run.py --reached``."""

import importlib
import json
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
REACHED = json.loads((BENCH / "costs" / "reached.json").read_text(encoding="utf-8"))


@pytest.mark.bench
@pytest.mark.parametrize("name", REACHED)
def test_a_row_that_counts_is_within_its_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    table, timing = importlib.import_module("costs.table"), importlib.import_module("costs.timing")
    row = next(row for row in table.ROWS if row.name == name)
    found = row.measure(timing.Effort(seconds=0.0, least=1))
    assert not row.bad.is_beyond(found.judged.value), f"{found.ours} for {found.other} is {found.number}: {row.bad}"
