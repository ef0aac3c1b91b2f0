"""The picture with its legend, as a part of a page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ..model import Explained
from .colours import WHOLE, Colours, ink
from .drawing import draw

_STYLE = """
.typedshmap-picture {overflow:auto; border:1px solid #d0d7de; border-radius:6px; background:#ffffff; max-height:90vh}
.typedshmap-picture svg {display:block; font:12px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.typedshmap-picture text {fill:#1f2328; white-space:pre}
.typedshmap-picture .box {fill:#ffffff; stroke:#8c959f}
.typedshmap-picture .flow {fill:none; stroke:#8c959f; stroke-opacity:.55}
.typedshmap-picture .far {stroke-opacity:.25}
.typedshmap-picture .strong {font-weight:bold}
.typedshmap-picture .small {font-size:10px}
.typedshmap-legend {font:12px sans-serif; margin:.5em 0}
.typedshmap-legend span {display:inline-block; padding:.15em .6em; margin-right:.4em; border-radius:3px}
"""


def figure(explained: Explained) -> str:
    """The picture of a function's own values and collectives, and what its colours mean."""
    style = "".join(line.strip() for line in _STYLE.splitlines())
    legend = "".join(_legend(explained))
    return (
        f"<style>{style}</style>"
        f'<div class="typedshmap-legend">{legend}</div>'
        f'<div class="typedshmap-picture">{draw(explained)}</div>'
    )


def _legend(explained: Explained) -> Iterator[str]:
    colours = Colours(axis for axis, _ in explained.mesh)
    for axis, size in explained.mesh:
        colour = colours.of(axis)
        yield f'<span style="background:{colour};color:{ink(colour)}">{escape(axis)}={size}</span>'
    yield f'<span style="background:{WHOLE}">whole</span>'
    yield "dims: global size → shard size, in the colours of the mesh axes that they are split over; "
    yield "arrows: collectives, bytes of one device in → out"
