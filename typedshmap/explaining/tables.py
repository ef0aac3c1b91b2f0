"""What is told of a function, as aligned text.

Invariant: a table is rows of text; equal collectives at one place of the source are one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from .. import _jax
from ..errors.phrases import mesh_text
from .model import Collective, Explained, Failed, Total, Value
from .units import bytes_text, seconds_text

Row = tuple[str, ...]


def explained_text(found: Explained) -> str:
    """All tables of one function on one mesh."""
    blocks = [
        [heading(found)],
        [*table(VALUE_COLUMNS, value_rows(found), {4}), memory_line(found)],
        _collectives(found),
        _totals(found),
        [f"note: {note}" for note in found.notes],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def heading(found: Explained) -> str:
    """``train_step on dp=4, tp=2 (8 devices): batch=32, seq=64``"""
    devices = f"{found.devices:,} device{'s' if found.devices != 1 else ''}"
    return f"{found.function} on {mesh_text(found.mesh)} ({devices})" + (f": {_sizes(found)}" if found.sizes else "")


VALUE_COLUMNS = ("value", "global shape", "spec", "shard shape", "bytes per device", "hint")


def value_rows(found: Explained) -> list[Row]:
    """One row per value: arguments, what is checked, results."""
    order = {"argument": 0, "check": 1, "result": 2}
    return [_value_row(one) for one in sorted(found.values, key=lambda one: order[one.kind])]


def _value_row(one: Value) -> Row:
    name = f"check in {one.name} at {one.place}" if one.kind == "check" else one.name
    shape, shard = (_type(one.dtype, size) for size in (one.shape, one.shard))
    return name, shape, _jax.spec_text(one.spec), shard, bytes_text(one.bytes), one.hint


def _type(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def memory_line(found: Explained) -> str:
    """``per device: arguments 1 MiB + results 1 MiB - reused 1 MiB = 1 MiB``"""
    memory = found.memory
    reused = f" - donated and reused {bytes_text(memory.reused)}" if memory.reused else ""
    parts = f"arguments {bytes_text(memory.arguments)} + results {bytes_text(memory.results)}{reused}"
    return f"per device: {parts} = {bytes_text(memory.peak)}"


NO_COLLECTIVES = "no collectives in manual regions"
COLLECTIVE_COLUMNS = ("part", "collective", "over", "devices", "in", "out", "on the wire", "times", "where")


def _collectives(found: Explained) -> list[str]:
    if not found.collectives:
        return [NO_COLLECTIVES]
    return table(COLLECTIVE_COLUMNS, collective_rows(found), {3, 4, 5, 6, 7})


def collective_rows(found: Explained) -> list[Row]:
    """One row per kind of collective at one place, the function's own before those of its gradient."""
    return [_collective_row(one) for one in merged(found.collectives)]


def merged(collectives: Iterable[Collective]) -> list[Collective]:
    """Equal collectives at one place of the source as one, which runs as often as all of them."""
    groups: dict[Collective, Collective] = {}
    for one in collectives:
        key = replace(one, ident=0, after=(), times=0)
        known = groups.get(key)
        groups[key] = one if known is None else replace(known, times=known.times + one.times)
    return sorted(groups.values(), key=lambda one: one.part)


def _collective_row(one: Collective) -> Row:
    axes, times = ",".join(one.axes), f"{one.times} x turns" if one.is_open else str(one.times)
    sizes = (bytes_text(one.bytes_in), bytes_text(one.bytes_out), bytes_text(one.wire))
    return one.part, one.operation, axes, str(one.group), *sizes, times, one.place


def _totals(found: Explained) -> list[str]:
    if not found.collectives:
        return []
    return table(total_columns(found), total_rows(found), {2, 3, 4, 5, 6})


def total_columns(found: Explained) -> Row:
    """The columns of the totals; seconds where a bandwidth is known."""
    return ("total", "over", "collectives", "in", "out", "on the wire", *(("seconds",) if found.bandwidth else ()))


def total_rows(found: Explained) -> list[Row]:
    """One row per part and mesh axes."""
    return [_total_row(total, found) for total in found.totals]


def _total_row(total: Total, found: Explained) -> Row:
    turn = " per turn" if total.is_open else ""
    sizes = (bytes_text(total.bytes_in), bytes_text(total.bytes_out), bytes_text(total.wire) + turn)
    row = (total.part, ",".join(total.axes), f"{total.count:,}", *sizes)
    return (*row, _seconds(total.seconds(found.bandwidth))) if found.bandwidth else row


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else seconds_text(seconds)


# Comparison


def compared_text(rows: Sequence[Explained | Failed]) -> str:
    """One row per mesh, and below what went wrong and what is not counted."""
    found = [row for row in rows if isinstance(row, Explained)]
    lines: list[str] = []
    if found:
        columns = comparison_columns(found)
        lines += [compared_heading(found[0]), ""]
        lines += table(columns, [comparison_row(row, columns) for row in rows], set(range(1, len(columns))))
    lines += _failures(rows)
    notes = dict.fromkeys(note for row in found for note in row.notes)
    return "\n".join([*lines, *([""] if notes else []), *(f"note: {note}" for note in notes)]).lstrip("\n")


def compared_heading(found: Explained) -> str:
    """``train_step: batch=32, seq=64``"""
    return f"{found.function}: {_sizes(found)}" if found.sizes else found.function


def _sizes(found: Explained) -> str:
    return ", ".join(f"{name}={size}" for name, size in found.sizes.items())


def _failures(rows: Iterable[Explained | Failed]) -> Iterator[str]:
    for row in rows:
        if isinstance(row, Failed):
            yield ""
            yield f"{mesh_text(row.mesh)}: {type(row.error).__name__}: {row.error}"


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
      right: the columns with numbers, which stand to the right.
    """
    numbers, cells = set(right), [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(f"{cell:>{width}}" if at in numbers else f"{cell:<{width}}" for at, (cell, width) in enumerate(pairs))
        for pairs in (zip(row, widths, strict=True) for row in cells)
    )
    return [line.rstrip() for line in lines]
