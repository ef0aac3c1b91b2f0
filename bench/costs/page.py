"""The page `docs/benchmarks.md`: written by the command, from what it measured."""

import os
import platform
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path

import jax
import numpy as np

from .benchmark import Result
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
        f"The trace of a forward pass whose every helper is checked, the dearest there is: {_percent(result)}."
    ),
    "shard of 1,000 leaves, calls": lambda result: (
        f"Placing 1,000 arrays, all checked: {_percent(result)} than one `jax.device_put`."
    ),
    "check of an array outside of jit": lambda result: f"A check of an array outside of `jit`: {result.ours}.",
    "import": lambda result: f"The import: {result.ours} over `import jax`.",
}
INTRODUCTION = """\
What the library costs, as ratios: every number is compared with a named alternative that was measured in the same run,
and a row that is judged says which number would be bad. Nothing is left of the library in a compiled program, so most
rows are about tracing.

```sh
python bench/run.py --write docs/benchmarks.md
```

measures all of it anew, in some twenty minutes, and writes this page. `--quick` takes fewer turns, `--only GROUP`
some rows. The exit code is 1 if a row is bad.

How near `explain` comes to XLA's own figures of memory, on CPU and on TPUs, is measured by `bench/memory.py`; its
tables are on [the page of `explain`](explain.md#memory).

## How it is measured

The two sides take turns, and which comes first alternates; garbage is collected before a long call and not within it;
each side has run once before. Every turn gives one ratio of two times taken right after each other; what is traced is
timed three times in a turn, of which the shortest counts. The ratio reported is the median of these, with the interval
that holds it for 95 % of redrawn samples of the turns; `ours` and `other` are each side's median time. What Python
does, tracing and lowering, is timed by the process's own time, which leaves out what other programs take of the
machine; calls of compiled programs, and `assert_mesh_invariant`, by the clock on the wall. Beside the times are the
calls that Python makes, counted. They are nearly the same in every run, so that they show a change of a few percent
where times scatter; they do not show how long a call takes. The limit of a row that counts is 2 % above what was
reached; `pytest -m bench` holds those rows to it. What calls tell is judged by them, and its time is there to compare.

A row named *noise* has the same on both sides: its distance from 1 is the machine's doing. A row of its group is
**BAD** only where all of its interval, widened by that distance, is beyond the limit. A ratio that is over the limit
with an interval that is not, and one near it on a machine whose noise is off, is *too noisy to tell*.

An exponent is the slope of the logarithms of time over size by least squares, `n^1` being linear. Curves that are to be
flat are fitted over all sizes; the others from a tenth of the largest size on, where what is constant no longer counts.
The interval is that of redrawn times at every size.
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
    path.write_text(page(lines, picture.name, effort), encoding="utf-8")


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
    means = [f"- **{line.row.name}**: {line.row.means}" for line in lines]
    return "\n".join([f"## {title}", "", *shown, *_table(lines), "", *means, ""])


def _table(lines: Iterable[Line]) -> list[str]:
    rule = ["---", *["---:"] * 3, *["---"] * (len(HEADER) - 4)]
    rows = [HEADER, rule, *(line.cells for line in lines)]
    return [f"| {' | '.join(map(_shown, row))} |" for row in rows]


def _shown(cell: str) -> str:
    return f"**{cell}**" if cell == "BAD" else cell.replace("|", "\\|")
