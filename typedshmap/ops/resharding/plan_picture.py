"""The picture of a plan in a notebook: the dims before the first step and after each step, and the steps between."""

from __future__ import annotations

from fractions import Fraction
from html import escape
from math import ceil, prod
from typing import Any

from ...drawing import BarPart, Html, axis_html, colours_of, cut_dim, framed, track
from ...errors.phrases import quoted_axes
from ...notation.layout import Layout
from .pieces import shape_text

_MOVES = {
    "slice": "each device keeps its part, and nothing is sent",
    "all_gather": "each device sends its shard to the others",
    "all_to_all": "each device sends every other one a part of its shard",
    "ppermute": "each device sends a block to another",
    "psum": "addends are summed, and each device has the sum",
    "psum_scatter": "addends are summed, and each device keeps its part",
}


def picture_of(plan: Any) -> Html:
    """The steps of a `Plan`, with bars for the bytes that each sends."""
    colours, sizes = colours_of(axis for axis, _ in plan.sizes), dict(plan.sizes)

    def state(layout: Layout, shard: tuple[int, ...]) -> str:
        pairs = zip(plan.shape, layout.dim_axes, strict=True)
        dims = (cut_dim(str(size), [(axis, sizes[axis], colours[axis]) for axis in axes]) for size, axes in pairs)
        due = f"; an addend of the sum over {quoted_axes(sorted(layout.unreduced))}" if layout.unreduced else ""
        holds = f"<p>each device holds {shape_text(shard)}{escape(due)}</p>"
        return f'<div class="box"><div class="cuts">{"".join(dims)}</div>{holds}</div>'

    most = max((step.sent for step in plan.steps), default=Fraction(0))
    parts = [f"<h4>{escape(str(plan).partition(chr(10))[0])}</h4>", state(plan.source, plan.shards[0])]
    for step in plan.steps:
        sent, axes = ceil(step.sent * plan.itemsize), " ".join(axis_html(axis, colours[axis]) for axis in step.axes)
        often = f" x{step.rounds}" if step.rounds > 1 else ""
        share = [BarPart(axis, float(step.sent) / len(step.axes), colours[axis]) for axis in step.axes]
        parts.append(
            f'<div class="row"><div class="ends"><span>{step.kind}{often} {axes}: {_MOVES[step.kind]}</span>'
            f"<span>{sent:,} bytes</span></div>{track(share, float(most), is_thin=True)}</div>"
        )
        parts.append(state(step.after, step.shard_after))
    peak = f"peak shard {shape_text(plan.peak)} ({prod(plan.peak) * plan.itemsize:,} bytes)"
    total = f"{plan.bytes:,} bytes sent, of at least {plan.lower_bound * plan.itemsize:,}; {peak}"
    return framed(*parts, f"<p>{total}</p>")
