"""What ``explain`` returns: data that shows itself as tables, in a terminal as aligned text, in a notebook as HTML.

Invariant: a table is rows of text; equal collectives at one line of the source are one row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from .. import _jax
from ..errors.phrases import mesh_text
from .model import Collective, Explained, Failed, bytes_text, seconds_text
from .picture import figure


@dataclass(frozen=True)
class Explanation(Explained):
    """One function on one mesh: its values, its collectives, its totals; printed as tables.

    All of `Explained`; ``str`` is text, a notebook shows tables.
    """

    def __str__(self) -> str:
        return explained_text(self)

    @property
    def html(self) -> str:
        """The same as a part of a page: a picture, and tables."""
        return explained_html(self)

    def _repr_html_(self) -> str:
        return self.html

    def to_html(self, path: str | Path) -> None:
        """Write one self-contained page."""
        Path(path).write_text(document(self.function, self.html), encoding="utf-8")


@dataclass(frozen=True)
class Comparison:
    """One function on several meshes, with the same sizes on all of them; printed as a table of one row each.

    Attributes:
      rows: per mesh, in the order in which they were given, the explanation, or why there is none.
    """

    rows: tuple[Explanation | Failed, ...]

    @property
    def explanations(self) -> tuple[Explanation, ...]:
        """The explanations on the meshes on which the function can be traced."""
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
        return compared_text(self.rows)

    @property
    def html(self) -> str:
        """The same as a part of a page: a table, and folded below it the explanation on each mesh."""
        return compared_html(self.rows)

    def _repr_html_(self) -> str:
        return self.html

    def to_html(self, path: str | Path) -> None:
        """Write one self-contained page."""
        name = self.explanations[0].function if self.explanations else "comparison"
        Path(path).write_text(document(name, self.html), encoding="utf-8")


Row = tuple[str, ...]
VALUE_COLUMNS = ("value", "global shape", "spec", "shard shape", "bytes per device", "hint")
COLLECTIVE_COLUMNS = ("part", "collective", "over", "devices", "in", "out", "on the wire", "times", "where")
NO_COLLECTIVES = "no collectives in manual regions"


def explained_text(found: Explained) -> str:
    """All tables of one function on one mesh."""
    blocks = [
        [heading(found)],
        [*table(VALUE_COLUMNS, value_rows(found), {4}), memory_line(found)],
        table(COLLECTIVE_COLUMNS, collective_rows(found), {3, 4, 5, 6, 7}) if found.collectives else [NO_COLLECTIVES],
        table(total_columns(found), total_rows(found), {2, 3, 4, 5, 6}) if found.collectives else [],
        [f"note: {note}" for note in found.notes],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def explained_html(found: Explained) -> str:
    """All tables of one function on one mesh."""
    sections = [
        f"<h3>{escape(heading(found))}</h3>",
        figure(found),
        html_table(VALUE_COLUMNS, value_rows(found)),
        f"<p>{escape(memory_line(found))}</p>",
        html_table(COLLECTIVE_COLUMNS, collective_rows(found)) if found.collectives else f"<p>{NO_COLLECTIVES}</p>",
        html_table(total_columns(found), total_rows(found)) if found.collectives else "",
        notes_html(found.notes),
    ]
    return "\n".join(part for part in sections if part)


def heading(found: Explained) -> str:
    """``train_step on dp=4, tp=2 (8 devices): batch=32, seq=64``"""
    devices = f"{found.devices:,} device{'s' if found.devices != 1 else ''}"
    return f"{found.function} on {mesh_text(found.mesh)} ({devices}){_sizes(found)}"


def _sizes(found: Explained) -> str:
    sizes = ", ".join(f"{name}={size}" for name, size in found.sizes.items())
    return f": {sizes}" if sizes else ""


def value_rows(found: Explained) -> list[Row]:
    """One row per value: arguments, what is checked, results."""
    order, rows = {"argument": 0, "check": 1, "result": 2}, list[Row]()
    for one in sorted(found.values, key=lambda one: order[one.kind]):
        name = f"check in {one.name} at {one.place}" if one.kind == "check" else one.name
        shape, shard = (f"{one.dtype}[{','.join(map(str, sizes))}]" for sizes in (one.shape, one.shard))
        rows.append((name, shape, _jax.array.spec_text(one.spec), shard, bytes_text(one.bytes), one.hint))
    return rows


def memory_line(found: Explained) -> str:
    """``per device: arguments 1 MiB + results 1 MiB - reused 1 MiB = 1 MiB``"""
    memory = found.memory
    reused = f" - donated and reused {bytes_text(memory.reused)}" if memory.reused else ""
    summary = f"arguments {bytes_text(memory.arguments)} + results {bytes_text(memory.results)}{reused}"
    return f"per device: {summary} = {bytes_text(memory.peak)}"


def collective_rows(found: Explained) -> list[Row]:
    """One row per kind of collective at one place, the function's own before those of its gradient."""
    rows: list[Row] = []
    for one in merge_collectives(found.collectives):
        times = f"{one.times} per iteration" if one.is_open else str(one.times)
        sizes = (bytes_text(one.bytes_in), bytes_text(one.bytes_out), bytes_text(one.wire))
        rows.append((one.part, one.operation, ",".join(one.axes), str(one.group), *sizes, times, one.place))
    return rows


def merge_collectives(collectives: Iterable[Collective]) -> list[Collective]:
    """Equal collectives at one place of the source as one, which runs as often as all of them."""
    groups: dict[Collective, Collective] = {}
    for one in collectives:
        key = replace(one, ident=0, after=(), times=0)
        known = groups.get(key)
        groups[key] = one if known is None else replace(known, times=known.times + one.times)
    return sorted(groups.values(), key=lambda one: one.part)


def total_columns(found: Explained) -> Row:
    """The columns of the totals; seconds where a bandwidth is known."""
    return ("total", "over", "collectives", "in", "out", "on the wire", *(("seconds",) if found.bandwidth else ()))


def total_rows(found: Explained) -> list[Row]:
    """One row per part and mesh axes."""
    rows: list[Row] = []
    for total in found.totals:
        wire = bytes_text(total.wire) + (" per iteration" if total.is_open else "")
        sizes = (bytes_text(total.bytes_in), bytes_text(total.bytes_out), wire)
        seconds = (_seconds(total.seconds(found.bandwidth)),) if found.bandwidth else ()
        rows.append((total.part, ",".join(total.axes), f"{total.count:,}", *sizes, *seconds))
    return rows


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else seconds_text(seconds)


def compared_text(rows: Sequence[Explained | Failed]) -> str:
    """One row per mesh, and below what failed and what is not counted."""
    found = [row for row in rows if isinstance(row, Explained)]
    lines: list[str] = []
    if found:
        columns = comparison_columns(found)
        lines += [f"{found[0].function}{_sizes(found[0])}", ""]
        lines += table(columns, [comparison_row(row, columns) for row in rows], set(range(1, len(columns))))
    for row in rows:
        if isinstance(row, Failed):
            lines += ["", f"{mesh_text(row.mesh)}: {type(row.error).__name__}: {row.error}"]
    notes = dict.fromkeys(note for row in found for note in row.notes)
    return "\n".join([*lines, *([""] if notes else []), *(f"note: {note}" for note in notes)]).lstrip("\n")


def compared_html(rows: Sequence[Explained | Failed]) -> str:
    """One row per mesh, and of each, folded, its own tables."""
    found = [row for row in rows if isinstance(row, Explained)]
    columns = comparison_columns(found)
    errors = [f"<pre>{escape(str(row.error))}</pre>" for row in rows if isinstance(row, Failed)]
    notes = notes_html(dict.fromkeys(note for row in found for note in row.notes))
    head = f"<h3>{escape(found[0].function + _sizes(found[0]))}</h3>" if found else ""
    compared = html_table(columns, [comparison_row(row, columns) for row in rows])
    each = [
        f"<details><summary>{escape(mesh_text(row.mesh))}</summary>\n{explained_html(row)}\n</details>" for row in found
    ]
    return "\n".join([head, compared, *errors, notes, *each])


def comparison_columns(found: Sequence[Explained]) -> Row:
    """The mesh, memory, what is sent per part and mesh axes, all of it, and seconds where a bandwidth is known."""
    totals = dict.fromkeys((total.part, total.axes) for one in found for total in one.totals)
    names = [f"{part} {','.join(axes)}" for part, axes in sorted(totals, key=lambda key: key[0])]
    seconds = ("seconds",) if any(one.bandwidth for one in found) else ()
    return ("mesh", "devices", "arguments + results", *names, "on the wire", *seconds)


def comparison_row(row: Explained | Failed, columns: Row) -> Row:
    """One mesh's numbers; of one that fails the kind of error."""
    if isinstance(row, Failed):
        return (mesh_text(row.mesh), "", type(row.error).__name__, *[""] * (len(columns) - 3))
    sent = {f"{total.part} {','.join(total.axes)}": total.wire for total in row.totals}
    wires = [bytes_text(sent.get(name, 0)) for name in columns[3:] if name not in ("on the wire", "seconds")]
    seconds = (_seconds(row.seconds),) if "seconds" in columns else ()
    first = (mesh_text(row.mesh), f"{row.devices:,}", bytes_text(row.memory.peak))
    return (*first, *wires, bytes_text(sum(sent.values())), *seconds)


def table(columns: Row, rows: Sequence[Row], right: Iterable[int] = ()) -> list[str]:
    """Rows under their columns, each as wide as its widest cell.

    Args:
      columns: the headings.
      rows: the cells.
      right: the columns with numbers, which are aligned to the right.
    """
    numbers, cells = set(right), [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(f"{cell:>{width}}" if at in numbers else f"{cell:<{width}}" for at, (cell, width) in enumerate(pairs))
        for pairs in (zip(row, widths, strict=True) for row in cells)
    )
    return [line.rstrip() for line in lines]


_NUMBERS = frozenset([VALUE_COLUMNS[4], *COLLECTIVE_COLUMNS[3:8], "collectives", "seconds", "arguments + results"])


def html_table(columns: Row, rows: Iterable[Row]) -> str:
    """A table with its headings; numbers are aligned to the right."""
    numbers = [column in _NUMBERS or column.startswith(("forward ", "gradient ")) for column in columns]
    styles = [' style="text-align:right"' if is_number else "" for is_number in numbers]

    def line(row: Row, tag: str) -> str:
        cells = (f"<{tag}{style}>{escape(cell)}</{tag}>" for cell, style in zip(row, styles, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(columns, 'th')}</thead><tbody>\n{body}\n</tbody></table>"


def notes_html(notes: Iterable[str]) -> str:
    """A list of notes; nothing where there are none."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<ul>{items}</ul>" if items else ""


def document(title: str, body: str) -> str:
    """A complete page."""
    style = "body{font-family:sans-serif}td,th{padding:.2em .7em;text-align:left;white-space:nowrap}"
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{style}</style>"
    return f"<!doctype html><html><head>{head}</head><body>\n{body}\n</body></html>\n"
