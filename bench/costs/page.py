"""The page `docs/benchmarks.md`: written by the command, from what it measured."""

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import jax
import numpy as np

from .benchmark import Result
from .caches_section import CACHES, write_caches
from .growth import curves
from .plot import draw, matplotlib
from .table import HEADER, Line, summary
from .timing import Effort

GENERATED = "<!-- Written by `python bench/run.py --write docs/benchmarks.md`: edits are lost. -->"
TITLES = {
    "same": "The same program",
    "calls": "Calls",
    "forms": "One training step in several forms",
    "tracing": "Tracing and lowering",
    "transformer": "A transformer's training step",
    "checks": "Checks, ours and jaxtyping's",
    "boundary": "A boundary of 1,000 leaves",
    "placing": "Placing 1,000 arrays",
    "growth": "Growth",
    "reshard": "Resharding",
    "memory": "Memory",
    "tools": "The tools",
    "import": "Import, and the first trace",
}


def _percent(result: Result) -> str:
    more = (result.judged.value - 1) * 100
    return f"{abs(more):.1f} % {'fewer' if more < 0 else 'more'} calls of Python"


# What the page opens with, by the row that says it.
PAID: dict[str, Callable[[Result], str]] = {
    "programs lowered to the same text": lambda result: (
        f"A compiled program: nothing. {result.ours} of {result.other} programs that are written twice, with hints and "
        "by hand, are lowered to the same text."
    ),
    "call, jitted and compiled, 8 devices": lambda result: f"Its call: {result.number} times as long.",
    "gradient step of 32 scanned layers, hints at the boundary, calls": lambda result: (
        f"The trace of a training step with hints at its boundary: {_percent(result)} than by hand."
    ),
    "gradient step of 32 scanned layers, in patterns, calls": lambda result: (
        f"The same with hints and patterns everywhere: {_percent(result)}."
    ),
    "forward pass of 32 scanned layers, checked by our hints, calls": lambda result: (
        f"The trace of a forward pass with a check in every helper, the most expensive case: {_percent(result)}."
    ),
    "shard of 1,000 leaves, calls": lambda result: (
        f"Placing 1,000 arrays, all checked: {_percent(result)} than one `jax.device_put`."
    ),
    "check of an array outside of jit": lambda result: f"A check of an array outside `jit`: {result.ours}.",
    "import": lambda result: f"The import: {result.ours} over `import jax`.",
}
INTRODUCTION = """\
Every number is compared with a named alternative that was measured in the same run. A compiled program has no trace
of the library, so most rows are about tracing. This command measures everything, in about twenty minutes, and writes
this page:

```sh
python bench/run.py --write docs/benchmarks.md
```

`--quick` takes fewer turns, `--only GROUP` only some rows. The exit code is 1 if a row is bad. `bench/costs/rows` says
what each row measures.

## How it is measured

The two sides take turns. Each turn gives a ratio, and a row reports their median, with an interval of 95 %. *calls*
counts the calls of Python functions, which are nearly the same in every run; `pytest -m bench` allows those rows 2 %
above their recorded values. A *noise* row has the same on both sides. A row of its group is **BAD** only if its whole
interval, widened by that noise, is beyond the limit. `n^1` is an exponent: time grows in proportion to size.
"""


def write(path: Path, lines: list[Line], effort: Effort) -> None:
    """Write the page, and its plot beside it.

    Args:
      path: the page; the plot has its name and ends in ``.svg``.
      lines: all rows, measured.
      effort: with which they were measured, so that the curves are those of the rows.

    Raises:
      SystemExit: where what draws the plot is not installed.
    """
    matplotlib()
    picture = path.with_suffix(".svg")
    draw(picture, curves(effort))
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(page(lines, picture.name, effort), encoding="utf-8")
    write_caches(path, before.partition(CACHES)[2])


def page(lines: list[Line], picture: str, effort: Effort) -> str:
    """The page as Markdown."""
    groups = {name: list(group) for name, group in groupby(lines, lambda line: line.row.group)}
    sections = [_section(TITLES[name], group, picture if name == "growth" else None) for name, group in groups.items()]
    return "\n".join(
        ["# Benchmarks", "", GENERATED, "", *_paid(lines), "", INTRODUCTION, _measured_on(lines, effort), "", *sections]
    )


def _paid(lines: list[Line]) -> list[str]:
    """What a user pays, of the rows that say so."""
    found = {line.row.name: line.result for line in lines if line.result is not None}
    return ["What a user pays:", "", *(f"- {said(found[name])}" for name, said in PAID.items() if name in found)]


def _measured_on(lines: list[Line], effort: Effort) -> str:
    system = f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores"
    versions = f"Python {platform.python_version()}, jax {jax.__version__}, numpy {np.__version__}"
    turns = f"at most some {effort.seconds:g} s of turns a row"
    return f"This page: {system}; {versions}; 8 virtual CPU devices; {turns}. Its rows: {summary(lines)}."


def _section(title: str, lines: list[Line], picture: str | None) -> str:
    shown = [f"![Times over sizes, ours and by hand, as logarithms]({picture})", ""] if picture else []
    return "\n".join([f"## {title}", "", *shown, *_table([line.cells for line in lines]), ""])


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """The rows of a group; what the other side is stands above them where it is the same for all."""
    others = {row[HEADER.index("other is")] for row in rows}
    if len(others) == 1:
        yield from (f"The other side is {others.pop()}.", "")
        others.clear()
    header = ["", "ratio", "bad is", "ours", "other", *["other is"] * bool(others)]
    yield from (f"| {' | '.join(header)} |", f"| --- | --- | --- | ---: | ---: |{' --- |' * bool(others)}")
    for name, ours, other, ratio, interval, other_is, bad, says in rows:
        ratio = f"{ratio} ({interval.replace(' to ', '..')})" if interval else ratio
        ratio = ratio if says in ("", "ok") else f"{ratio} **{says}**".strip()
        cells = [name, ratio, bad, ours, other, *[other_is] * bool(others)]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
