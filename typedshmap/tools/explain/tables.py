"""The results of ``explain``: data that are displayed as tables, as aligned text in a terminal and HTML in a notebook.

Invariant: a table is rows of text; equal collectives on one line of the source are one row."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import inf
from operator import attrgetter
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from ... import _jax
from ...drawing import document, folded, framed, table
from ...errors.phrases import count_text, mesh_text, titled
from .model import Collective, Explained, Failed, Total, array_text, bytes_text, flops_text, ring_seconds, seconds_text
from .picture import charts, figure, lines_table


class Page(ABC):
    """A result that a notebook shows as HTML, and that can be written to a page."""

    @property
    @abstractmethod
    def html(self) -> str:
        """A part of a page."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The title of its page."""

    def __repr__(self) -> str:
        return titled(self)

    def _repr_html_(self) -> str:
        return self.html

    def to_html(self, path: str | Path) -> None:
        """Write a self-contained page."""
        Path(path).write_text(document(self.title, self.html), encoding="utf-8")


@dataclass(frozen=True, repr=False)
class Explanation(Explained, Page):
    """One function on one mesh: its values, collectives and totals.

    It has all of `Explained`; ``str`` is a summary of at most 25 lines, a notebook shows a picture and tables.
    """

    def __str__(self) -> str:
        return "\n\n".join([summary_text(self), *map(str, compiled_tables(self))])

    @property
    def title(self) -> str:
        return self.function

    @property
    def tables(self) -> str:
        """All values, all collectives and their totals as aligned tables, and all notes."""
        tables = collective_tables(self) or [NO_COLLECTIVES]
        return "\n\n".join(filter(None, [str(value_table(self)), *map(str, tables), notes_text(self.notes)]))

    @property
    def html(self) -> str:
        """The same as a part of a page: memory and time as bars, a picture of the collectives, and tables."""
        return framed(*_blocks(self))


def _blocks(report: Explanation) -> list[str]:
    lines = "".join(f"<p>{escape(line)}</p>" for line in memory_text(report).splitlines())
    tables = "".join(table.html for table in collective_tables(report)) or f"<p>{NO_COLLECTIVES}</p>"
    return [
        f"<h3>{escape(heading(report))}</h3>{lines}",
        *(table.html for table in compiled_tables(report)),
        charts([report]),
        figure(report),
        f"<h4>What each device computes</h4>{lines_table(report)}",
        folded("tables", value_table(report).html + tables),
        notes_html(report.notes),
    ]


@dataclass(frozen=True, repr=False)
class Comparison(Page):
    """One function on several meshes, with the same sizes on all meshes; printed as a table with a row for each mesh.

    Attributes:
      rows: for each mesh, in the given order, the explanation or the failure.
    """

    rows: tuple[Explanation | Failed, ...]

    @property
    def explanations(self) -> tuple[Explanation, ...]:
        """The explanations for the meshes on which the function can be traced."""
        return tuple(row for row in self.rows if isinstance(row, Explanation))

    @property
    def failures(self) -> tuple[Failed, ...]:
        """The meshes on which it cannot be traced, with the errors."""
        return tuple(row for row in self.rows if isinstance(row, Failed))

    def __iter__(self) -> Iterator[Explanation | Failed]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Explanation | Failed:
        return self.rows[at]

    def __str__(self) -> str:
        table = str(narrow_comparison_table(self.rows)) if self.explanations else ""
        failed = [f"{mesh_text(row.mesh)}: {type(row.error).__name__}: {row.error}" for row in self.failures]
        return "\n\n".join(filter(None, [self._heading, table, *failed, notes_text(self._notes)]))

    @property
    def title(self) -> str:
        return self.explanations[0].function if self.explanations else "comparison"

    @property
    def tables(self) -> str:
        """The tables of each mesh, under its heading."""
        return "\n\n".join(f"{heading(row)}\n\n{row.tables}" for row in self.explanations)

    @property
    def html(self) -> str:
        """The same as a part of a page: bars on one scale, a table, and the folded explanation of each mesh."""
        head = f"<h3>{escape(self._heading)}</h3>" if self._heading else ""
        errors = [f"<pre>{escape(str(row.error))}</pre>" for row in self.failures]
        parts = [head, charts(self.explanations) if self.explanations else "", comparison_table(self.rows).html]
        details = [folded(mesh_text(row.mesh), "".join(_blocks(row))) for row in self.explanations]
        return framed(*parts, *errors, notes_html(self._notes), *details)

    @property
    def _heading(self) -> str:
        return self.explanations[0].function + sizes_text(self.explanations[0]) if self.explanations else ""

    @property
    def _notes(self) -> Iterable[str]:
        return dict.fromkeys(note for row in self.explanations for note in row.notes)


NO_COLLECTIVES = "no collectives in manual regions"
_TEXT = frozenset(
    ["mesh", "value", "global shape", "spec", "shard shape", "hint", "part", "collective", "over", "where", "total"]
) | {"cost", "compiled", "refused", "refused:", "why", ""}
"""The columns of text."""


class Table(NamedTuple):
    """Rows of text under their headings; columns of numbers are aligned to the right."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    text: Container[str] = _TEXT  # the headings of the others

    @property
    def width(self) -> int:
        """The length of its longest line."""
        return max(map(len, str(self).splitlines()))

    def __str__(self) -> str:
        """Each column as wide as its widest cell."""
        columns = zip(self.headings, *self.rows, strict=True)
        formats = [f"{'<' if column[0] in self.text else '>'}{max(map(len, column))}" for column in columns]
        return "\n".join("  ".join(map(format, row, formats)).rstrip() for row in (self.headings, *self.rows))

    @property
    def html(self) -> str:
        return table(self.headings, self.rows, [name for name in self.headings if name not in self.text])


_WIDTH, _LINES, _DEAREST = 100, 25, 5
"""A summary has so many columns and lines at the most, and so many of the dearest collectives and lines."""


def summary_text(report: Explained) -> str:
    """The memory, work and traffic of a device, its bound, and the largest costs."""
    costs = [*memory_text(report).splitlines(), sent_text(report)]
    blocks = [[line for text in (heading(report), *costs) for line in _wrapped(text)]]
    dearest = (str(table).splitlines() for table in (dearest_collectives(report), dearest_lines(report)) if table.rows)
    blocks += [[line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in table] for table in dearest]
    lines = "\n\n".join("\n".join(block) for block in blocks).splitlines()
    if report.notes and len(lines) < _LINES - 1:
        lines.append("")
    for at, note in enumerate(report.notes, 1):
        text = _wrapped(f"note: {note}")
        if len(lines) + len(text) + (at < len(report.notes)) > _LINES:
            return "\n".join([*lines, f"more notes ({len(report.notes) - at + 1}) are with the tables of values"])
        lines += text
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    """A text on at most two lines, where a number and its unit stay together."""
    text = re.sub(r"(?<=\d) (?=(?:[KMGTP]?i?B|[KMGTP]?FLOP|[mµn]?s)\b)", "\N{NO-BREAK SPACE}", text)
    lines = wrap(text, _WIDTH, subsequent_indent="    ", break_on_hyphens=False, max_lines=2, placeholder=" ...")
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def sent_text(report: Explained) -> str:
    """``per device: 3 collectives: forward 63 MiB over dp, 448 MiB over tp; 2.5 ms one after the other``"""
    if not report.totals:
        return NO_COLLECTIVES
    parts: dict[str, list[str]] = {}
    for total in report.totals:
        unit = " per iteration" if total.is_open else ""
        parts.setdefault(total.part, []).append(f"{bytes_text(total.wire)}{unit} over {','.join(total.axes)}")
    count = sum(total.count for total in report.totals)
    texts = [f"{part} {', '.join(sums)}" for part, sums in parts.items()]
    if report.seconds is not None:
        texts.append(f"{seconds_text(report.seconds)} one after the other")
    return f"per device: {count_text(count, 'collective')}: {'; '.join(texts)}"


def dearest_collectives(report: Explained) -> Table:
    """The collectives that take longest, equal ones on one line as one row; without times, those that send most."""

    def seconds(op: Collective) -> float | None:
        return ring_seconds(op.sent, op.axes, report.bandwidth)

    def cost(op: Collective) -> tuple[float, int]:
        return inf if (known := seconds(op)) is None else known, op.sent

    rows: list[tuple[str, ...]] = []
    for op in sorted(merge_collectives(report.collectives), key=cost, reverse=True)[:_DEAREST]:
        last = (seconds_text(seconds(op)),) if report.bandwidth else ()
        axes, sent = ",".join(op.axes), bytes_text(op.sent)
        rows.append((op.operation, axes, op.part, op.times_text, sent, *last, op.place))
    names = ("collective", "over", "part", "times", "on the wire", *(["seconds"] if report.bandwidth else []), "where")
    return Table(names, rows)


def dearest_lines(report: Explained) -> Table:
    """The lines that take longest; without hardware, those that compute most."""
    lines, times = report.work.lines, report.time.lines if report.time else {}
    rows: list[tuple[str, ...]] = []
    for line in sorted(lines, key=lambda line: times.get(line.place, 0), reverse=True)[:_DEAREST]:
        last = (seconds_text(times.get(line.place)),) if times else ()
        rows.append((flops_text(line.flops), bytes_text(line.bytes), f"{line.intensity:.3g}", *last, line.place))
    return Table(("computes", "moves", "FLOP per byte", *(["seconds"] if times else []), "where"), rows)


def heading(report: Explained) -> str:
    """``train_step on dp=4, tp=2 (8 devices): batch=32, seq=64``"""
    devices = f"{report.devices:,} device{'s' if report.devices != 1 else ''}"
    return f"{report.function} on {mesh_text(report.mesh)} ({devices}){sizes_text(report)}"


def sizes_text(report: Explained) -> str:
    """``: batch=32, seq=64``"""
    sizes = mesh_text(report.sizes.items())
    return f": {sizes}" if sizes else ""


def value_table(report: Explained) -> Table:
    """A row for each value: arguments, checked values, results."""
    rows: list[tuple[str, ...]] = []
    for value in sorted(report.values, key=attrgetter("kind")):
        name = f"check in {value.name} at {value.place}" if value.kind == "check" else value.name
        shape, shard = (array_text(value.dtype, shape) for shape in (value.shape, value.shard))
        rows.append((name, shape, _jax.array.spec_text(value.spec), shard, bytes_text(value.bytes), value.hint))
    return Table(("value", "global shape", "spec", "shard shape", "bytes per device", "hint"), rows)


def memory_text(report: Explained) -> str:
    """``per device: peak memory 12 MiB at train.py:12 (step): arguments 8 MiB, temporaries 4 MiB``"""
    memory = report.memory
    place = f" at {memory.place}" if memory.place else ""
    parts = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in memory.parts.items())
    lines = [
        f"per device: peak memory {bytes_text(memory.peak)}{place}: {parts}",
        work_text(report),
        time_text(report),
    ]
    return "\n".join(filter(None, lines))


def work_text(report: Explained) -> str:
    """``per device: 1.2 TFLOP, 98% of them in products; 3.5 GiB moved, 320 FLOP per byte``"""
    work = report.work
    matrix = sum(sum(line.products.values()) for line in work.lines)
    share = f", {matrix / work.flops:.0%} in products" if matrix else ""
    moved = f"{bytes_text(work.bytes)} to and from memory"
    return f"per device: {flops_text(work.flops)}{share}; {moved}, {work.intensity:.3g} FLOP per byte"


def time_text(report: Explained) -> str:
    """``on v5p: fits in 95 GiB; 12 ms if all overlaps, 15 ms if nothing does; compute-bound: 7 ms of 12 ms at ...``"""
    if (time := report.time) is None:
        return ""
    fits = f"{'fits' if report.fits else 'does not fit'} in {bytes_text(int(time.limit))}"
    seconds = f"{seconds_text(time.overlapped)} if all overlaps, {seconds_text(time.serial)} if nothing does"
    return f"on {time.hardware}: {fits}; {seconds}; {time.text}"


def collective_tables(report: Explained) -> list[Table]:
    """A row for each kind of collective on a line, and a row for each part and mesh axes."""
    if not report.collectives:
        return []
    rows, totals = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for op in merge_collectives(report.collectives):
        sizes = map(bytes_text, (op.bytes_in, op.bytes_out, op.wire))
        rows.append((op.part, op.operation, ",".join(op.axes), str(op.group), *sizes, op.times_text, op.place))
    for total in report.totals:
        before, after, wire = map(bytes_text, (total.bytes_in, total.bytes_out, total.wire))
        wire += " per iteration" if total.is_open else ""
        seconds = [seconds_text(total.seconds(report.bandwidth))] if report.bandwidth else []
        totals.append((total.part, ",".join(total.axes), f"{total.count:,}", before, after, wire, *seconds))
    sent = ("in", "out", "on the wire")
    return [
        Table(("part", "collective", "over", "devices", *sent, "times", "where"), rows),
        Table(("total", "over", "collectives", *sent, *(["seconds"] if report.bandwidth else [])), totals),
    ]


def merge_collectives(collectives: Iterable[Collective]) -> list[Collective]:
    """Equal collectives on one line of the source as one, with the sum of their runs."""
    groups: dict[Collective, Collective] = {}
    for op in collectives:
        key = replace(op, ident=0, after=(), times=0)
        known = groups.get(key)
        groups[key] = op if known is None else replace(known, times=known.times + op.times)
    return sorted(groups.values(), key=attrgetter("part"))


def compiled_tables(report: Explained) -> list[Table]:
    """The compiler's figures beside the estimate; empty without ``compile=``."""
    if (compiled := report.compiled) is None:
        return []
    needed = f"{bytes_text(compiled.memory)} does not fit" if compiled.error else bytes_text(compiled.memory)
    ratio = f"{report.memory.peak / compiled.memory:.2f}" if compiled.memory else ""
    rows = [("peak memory", bytes_text(report.memory.peak), needed, ratio)]
    if compiled.flops is not None:
        ratio = f"{report.work.once / compiled.flops:.2f}" if compiled.flops else ""
        rows.append(("FLOP, loops once", flops_text(report.work.once), flops_text(compiled.flops), ratio))
        rows += [(name, str(ours), str(there), "") for name, (ours, there) in compiled.collectives.items()]
    return [Table(("compiled", "explain", f"XLA for {compiled.target}", "ratio"), rows)]


def comparison_table(rows: Sequence[Explained | Failed], name_of: Callable[[Total], str] | None = None) -> Table:
    """A row for each mesh: memory, traffic, and seconds; ``name_of`` is the column of a total."""
    reports, name_of = [row for row in rows if isinstance(row, Explained)], name_of or _part_and_axes
    totals = sorted((total for report in reports for total in report.totals), key=attrgetter("part"))
    names = list(dict.fromkeys(map(name_of, totals)))
    timed = ("at least", "bound") if any(report.time for report in reports) else ()
    headings = ("mesh", "devices", "peak memory", *names, "on the wire", *timed)
    has_seconds, cells = any(report.bandwidth for report in reports), list[tuple[str, ...]]()
    for row in rows:
        if isinstance(row, Explained):
            sent = Counter[str]()
            for total in row.totals:
                sent[name_of(total)] += total.wire
            sizes = map(bytes_text, (row.memory.peak, *(sent[name] for name in names), sent.total()))
            least = (seconds_text(row.time.overlapped), row.time.bound) if row.time else ()
            cells.append((mesh_text(row.mesh), f"{row.devices:,}", *sizes, *least, seconds_text(row.seconds)))
        else:
            cells.append((mesh_text(row.mesh), "", type(row.error).__name__, *[""] * (len(headings) - 2)))
    return Table((*headings, "seconds"), cells) if has_seconds else Table(headings, [row[:-1] for row in cells])


def narrow_comparison_table(rows: Sequence[Explained | Failed]) -> Table:
    """The same in the width of a summary: if needed, forward and gradient together, and small sums in one column."""
    sent = Counter[str]()
    for row in rows:
        for total in row.totals if isinstance(row, Explained) else ():
            sent[_axes(total)] += total.wire
    dearest = [name for name, _ in sent.most_common()]
    table = comparison_table(rows)
    for most in range(len(dearest), -1, -1):
        if table.width <= _WIDTH:
            break
        kept = {name: name for name in dearest[:most]}
        table = comparison_table(rows, lambda total, kept=kept: kept.get(_axes(total), "over others"))
    return table


def _part_and_axes(total: Total) -> str:
    return f"{total.part} {','.join(total.axes)}"


def _axes(total: Total) -> str:
    return f"over {','.join(total.axes)}"


def notes_text(notes: Iterable[str]) -> str:
    """A line per note."""
    return "\n".join(f"note: {note}" for note in notes)


def notes_html(notes: Iterable[str]) -> str:
    """A list of notes; empty without notes."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<ul>{items}</ul>" if items else ""
