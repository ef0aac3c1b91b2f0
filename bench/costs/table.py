"""All rows, in the order of the table, measured one after the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from .benchmark import Benchmark, Result, Verdict, verdict
from .rows import (
    boundary,
    calls,
    checks,
    formed,
    grown,
    imported,
    memory,
    placing,
    resharding,
    same,
    tools,
    traced,
    trained,
)
from .timing import Effort, Estimate

ROWS: tuple[Benchmark, ...] = (
    *same.ROWS,
    *calls.ROWS,
    *formed.ROWS,
    *traced.ROWS,
    *trained.ROWS,
    *checks.ROWS,
    *boundary.ROWS,
    *placing.ROWS,
    *grown.ROWS,
    *resharding.ROWS,
    *memory.ROWS,
    *tools.ROWS,
    *imported.ROWS,
)
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(row.group for row in ROWS))
HEADER = ("", "ours", "other", "ratio", "interval", "other is", "bad is", "")
WIDTHS = (61, 11, 11, 8, 17, 28, 10, 0)
NOT_RUN = "left out by --quick"


@dataclass(frozen=True, slots=True)
class Line:
    """A row with what was measured, and what that says; none of both where it was left out."""

    row: Benchmark
    result: Result | None
    says: Verdict

    @property
    def cells(self) -> tuple[str, ...]:
        result, bad = self.result, str(self.row.bad or "")
        if result is None:
            return (self.row.name, "", "", "", "", self.row.other, bad, NOT_RUN)
        return (
            self.row.name,
            result.ours,
            result.other,
            result.number,
            result.interval,
            self.row.other,
            bad,
            self.says.value,
        )


def lines(rows: Sequence[Benchmark], effort: Effort, is_quick: bool = False) -> Iterator[Line]:
    """Measure rows; the noise row of a group comes before those that are judged by it."""
    noise: dict[str, Estimate] = {}
    for row in rows:
        if is_quick and row.is_slow:
            yield Line(row, None, Verdict.NONE)
            continue
        result = row.measure(effort)
        yield Line(row, result, verdict(row, result.judged, noise.get(row.group)))
        if row.is_noise:
            noise[row.group] = result.judged


def printed(line: Iterable[str]) -> str:
    """Cells as a line of the terminal."""
    return "  ".join(cell.ljust(width) for cell, width in zip(line, WIDTHS, strict=True)).rstrip()


def show(rows: Sequence[Benchmark], effort: Effort, is_quick: bool, report: Callable[[str], None]) -> list[Line]:
    """Measure rows and report each as it comes."""
    found: list[Line] = []
    report(printed(HEADER))
    for line in lines(rows, effort, is_quick):
        report(printed(line.cells))
        found.append(line)
    return found


def summary(lines: Sequence[Line]) -> str:
    """How many rows are what: ``40 ok, 1 BAD, 2 too noisy to tell``."""
    counts = {says: sum(line.says is says for line in lines) for says in Verdict if says is not Verdict.NONE}
    return ", ".join(f"{count} {says.value}" for says, count in counts.items())
