"""The pictures of a page of ``explain``: memory and time as bars, and the collectives of each loop.

Invariant: every collective is in the picture once; equal collectives in the same loop are one row, with their
number."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from typing import NamedTuple

from ...drawing import (
    NEUTRAL,
    Bar,
    BarPart,
    Html,
    axis_html,
    bars,
    colours_of,
    dim_html,
    folded,
    kind_colours,
    side_by_side,
    table,
    track,
)
from ...errors.phrases import count_text, mesh_text
from .model import Collective, Explained, Pass, Value, bytes_text, flops_text, ring_seconds, seconds_text

_FEW_ROWS = 12
_LANES: tuple[Pass, ...] = ("forward", "gradient")


class SentRow(NamedTuple):
    """Equal collectives in one loop."""

    of: Collective  # one of them, with the times of all
    places: tuple[str, ...]
    sources: tuple[str, ...]  # the arguments and checked values that they use

    @property
    def bytes(self) -> int:
        """The bytes that one device sends in all of them."""
        return self.of.sent


@dataclass(frozen=True)
class SentBlock:
    """A loop or branch, or a whole part of a program, with its collectives; the costliest first."""

    title: str
    items: tuple[SentRow | SentBlock, ...]

    @property
    def bytes(self) -> int:
        """The bytes that one device sends in it."""
        return sum(item.bytes for item in self.items)

    @property
    def rows(self) -> list[SentRow]:
        """Its collectives, with those of its loops."""
        return [row for item in self.items for row in (item.rows if isinstance(item, SentBlock) else [item])]


def sent_in(explained: Explained, part: Pass) -> SentBlock:
    """The collectives of a part of a program, by its loops."""
    names = {value.ident: value.name for value in explained.values if value.kind != "result"}
    chosen = [op for op in explained.collectives if op.part == part]
    return _block(part, chosen, 0, names)


def _block(title: str, collectives: Sequence[Collective], depth: int, names: Mapping[int, str]) -> SentBlock:
    """A block of collectives that share ``depth`` loops."""
    equal: defaultdict[Collective, list[Collective]] = defaultdict(list)
    inner: list[SentBlock] = []
    for loop, group in groupby(collectives, key=lambda op: op.loops[depth : depth + 1]):
        if loop:
            inner.append(_block(loop[0], list(group), depth + 1, names))
        for op in () if loop else group:
            equal[replace(op, ident=0, after=(), times=0, place="")].append(op)
    rows = [
        SentRow(
            replace(same[0], times=sum(op.times for op in same)),
            tuple(dict.fromkeys(op.place for op in same if op.place)),
            tuple(dict.fromkeys(names[at] for op in same if len(op.after) == 1 for at in op.after if at in names)),
        )
        for same in equal.values()
    ]
    return SentBlock(title, tuple(sorted([*rows, *inner], key=lambda item: -item.bytes)))


def figure(explained: Explained) -> Html:
    """The collectives, forward and backward separately, and the arguments and results with their dims."""
    colours = colours_of(axis for axis, _ in explained.mesh)
    blocks = [block for part in _LANES if (block := sent_in(explained, part)).items]
    most = max((row.bytes for block in blocks for row in block.rows), default=0)
    lanes = [_lane(block, most, explained, colours) for block in blocks]
    mesh = " ".join(axis_html(f"{axis}={size}", colours[axis]) for axis, size in explained.mesh)
    values = [
        _values(kind, chosen, colours)
        for kind in ("argument", "check", "result")
        if (chosen := [value for value in explained.values if value.kind == kind])
    ]
    sent = Html(f"<h4>What each device sends</h4>{side_by_side(*lanes)}") if lanes else ""
    return Html(f"<p>mesh {mesh}</p>{sent}<h4>What each device holds</h4>{''.join(values)}")


def _lane(block: SentBlock, most: int, explained: Explained, colours: Mapping[str, str]) -> Html:
    seconds = [ring_seconds(row.bytes, row.of.axes, explained.bandwidth) for row in block.rows]
    known = [time for time in seconds if time is not None]
    time = f", {seconds_text(sum(known))} in a ring" if len(known) == len(seconds) else ""
    count = sum(row.of.times for row in block.rows)
    head = f"{block.title}: {bytes_text(block.bytes)} in {count_text(count, 'collective')}{time}"
    return Html(f"<h5>{escape(head)}</h5>{_items(block, most, explained, colours)}")


def _items(block: SentBlock, most: int, explained: Explained, colours: Mapping[str, str]) -> str:
    blocks: list[str] = []
    for item in block.items:
        if isinstance(item, SentBlock):
            title = f'<h5 class="ends"><span>{escape(item.title)}</span><span>{bytes_text(item.bytes)}</span></h5>'
            blocks.append(f'<section class="box">{title}{_items(item, most, explained, colours)}</section>')
        else:
            blocks.append(_sent(item, most, explained, colours))
    return "".join(blocks)


def _sent(row: SentRow, most: int, explained: Explained, colours: Mapping[str, str]) -> str:
    """The collective, its bytes, runs, types and place, and a bar in the colours of its axes."""
    op, per = row.of, " per iteration" if row.of.is_open else ""
    axes = " ".join(axis_html(axis, colours[axis]) for axis in op.axes)
    often = f"{bytes_text(op.wire)} x {op.times:,} = " if op.times > 1 else ""
    seconds = ring_seconds(row.bytes, row.of.axes, explained.bandwidth)
    amount = f"{often}{bytes_text(row.bytes)}{per}" + ("" if seconds is None else f", {seconds_text(seconds)}")
    parts = [BarPart(axis, row.bytes / len(op.axes), colours[axis]) for axis in op.axes]
    of = f" of {', '.join(row.sources)}" if row.sources else ""
    types = f"{op.operand} → {op.result}{of}"
    over = f"{op.operation} over {', '.join(op.axes)}: {amount}"
    return (
        f'<div class="row" title="{escape(f"{over}, {op.group} devices", quote=True)}">'
        f'<div class="ends"><span>{escape(op.operation)} {axes}</span><span>{escape(amount)}</span></div>'
        f"{track(parts, most, label=over, is_thin=True)}"
        f'<div class="ends faint"><code>{escape(types)}</code><code>{escape(", ".join(row.places))}</code></div></div>'
    )


def _values(kind: str, values: Sequence[Value], colours: Mapping[str, str]) -> Html:
    """A table of arrays with their dims: global size, shard size and mesh axes; the largest first."""
    same: defaultdict[tuple[object, ...], list[Value]] = defaultdict(list)
    for value in values:
        # For a training state, the weights and each of the optimizer's copies of them.
        root, leaf = re.split(r"[.[]", value.name, maxsplit=1)[0], value.name.rpartition(".")[2]
        name = value.name if kind == "check" else root
        same[name, leaf, value.spec, value.shape, value.dtype, value.hint].append(value)
    groups = sorted(same.values(), key=lambda group: -sum(value.bytes for value in group))
    rows = [
        (
            _dims(group[0], colours),
            group[0].dtype,
            f"{len(group)} x {bytes_text(group[0].bytes)}" if len(group) > 1 else bytes_text(group[0].bytes),
            ", ".join(f"{value.name} at {value.place}" if value.place else value.name for value in group),
        )
        for group in groups
    ]
    total = sum(value.bytes for value in values)
    what = "checked value" if kind == "check" else kind
    summary = f"{count_text(len(values), what)}: {bytes_text(total)}"
    body = table(("dims: global → shard", "dtype", "bytes per device", "which"), rows, ("bytes per device",))
    return folded(summary, body, is_open=len(rows) <= _FEW_ROWS)


def _dims(value: Value, colours: Mapping[str, str]) -> Html:
    dims = (
        dim_html(f"{size} → {part}" if axes else f"{size}", [(axis, colours[axis]) for axis in axes])
        for size, part, axes in zip(value.shape, value.shard, value.axes, strict=True)
    )
    return Html("".join(dims) or "scalar")


# Charts


def charts(reports: Sequence[Explained]) -> Html:
    """Memory, and time or bytes on the wire, of one or several programs on the same scales."""
    chart = time_chart if any(report.time for report in reports) else wire_chart
    return side_by_side(memory_chart(reports), chart(reports))


def memory_chart(reports: Sequence[Explained]) -> Html:
    """The peak memory by kind, compared with the memory of the chip."""
    sizes = Counter[str]()
    for report in reports:
        sizes.update(report.memory.parts)
    colours = kind_colours(kind for kind, _ in sizes.most_common())
    rows = [
        Bar(
            mesh_text(report.mesh),
            [
                BarPart(kind, report.memory.parts[kind], colours[kind], bytes_text(report.memory.parts[kind]))
                for kind in colours
                if report.memory.parts.get(kind)
            ],
            bytes_text(report.memory.peak) + ("" if report.fits is not False else ", does not fit"),
        )
        for report in reports
    ]
    time = next((report.time for report in reports if report.time), None)
    limit = (time.limit, f"{bytes_text(int(time.limit))} of {time.hardware}") if time else (0.0, "")
    return bars("peak memory of one device", rows, *limit)


def time_chart(reports: Sequence[Explained]) -> Html:
    """Seconds of computation, memory and each mesh axis, on one scale."""
    compute, memory = NEUTRAL
    colours, rows = colours_of(dict.fromkeys(axis for report in reports for axis, _ in report.mesh)), list[Bar]()
    for report in reports:
        if (time := report.time) is None:
            continue
        seconds = [("compute", time.compute, compute), ("memory", time.memory, memory)]
        seconds += [(f"over {axis}", amount, colours[axis]) for axis, amount in time.communicate.items()]
        parts = [BarPart(what, amount, colour, seconds_text(amount)) for what, amount, colour in seconds]
        if len(reports) == 1:
            rows = [Bar(part.what, [part], part.text) for part in parts]
        else:
            rows.append(Bar(mesh_text(report.mesh), parts, f"{seconds_text(time.overlapped)}, {time.bound}"))
    hardware = next(report.time.hardware for report in reports if report.time)
    return bars(f"time on {hardware}, at the least", rows, is_stacked=False)


def wire_chart(reports: Sequence[Explained]) -> Html:
    """The bytes that one device sends, by mesh axes."""
    axes = dict.fromkeys(axis for report in reports for axis, _ in report.mesh)
    colours = colours_of(axes)
    rows: list[Bar] = []
    for report in reports:
        sent = Counter[tuple[str, ...]]()
        for total in report.totals:
            sent[total.axes] += total.wire
        parts = [
            BarPart(f"over {', '.join(over)}", size, _mixed(over, colours), bytes_text(size))
            for over, size in sent.most_common()
            if size
        ]
        rows.append(Bar(mesh_text(report.mesh), parts, bytes_text(sent.total())))
    return bars("bytes that one device sends", rows) if any(row.parts for row in rows) else Html("")


def _mixed(axes: Sequence[str], colours: Mapping[str, str]) -> str:
    """The colour of an axis; for several axes a gradient of their colours."""
    mixed = [colours[axis] for axis in axes]
    return mixed[0] if len(mixed) == 1 else f"linear-gradient(90deg,{','.join(mixed)})"


def lines_table(explained: Explained) -> Html:
    """The lines with the most operations or memory traffic, with bars."""
    work = explained.work
    if not work.lines:
        return Html("")
    compute, memory = NEUTRAL
    most = max(max(line.flops for line in work.lines), 1), max(max(line.bytes for line in work.lines), 1)
    rows = []
    for line in work.lines:
        flops = track([BarPart("FLOPs", line.flops, compute)], most[0], is_thin=True)
        moved = track([BarPart("bytes", line.bytes, memory)], most[1], is_thin=True)
        sizes = (Html(f"{flops_text(line.flops)}{flops}"), Html(f"{bytes_text(line.bytes)}{moved}"))
        rows.append((line.place or "elsewhere", *sizes, f"{line.intensity:.3g}"))
    headings = ("line", "FLOPs", "bytes to and from memory", "FLOPs per byte")
    summary = f"{flops_text(work.flops)} and {bytes_text(work.bytes)} in {count_text(len(work.lines), 'line')}"
    return folded(summary, table(headings, rows, headings[1:]), is_open=True)
