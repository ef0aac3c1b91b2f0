"""A picture of a function as SVG: its values as boxes, its collectives as arrows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

from ..drawing import UNSHARDED, colours_of, ink
from .model import Collective, Explained, Value, ValueKind, bytes_text

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
    colours = colours_of(axis for axis, _ in explained.mesh)
    legend = [
        f'<span style="background:{colours[axis]};color:{ink(colours[axis])}">{escape(axis)}={size}</span>'
        for axis, size in explained.mesh
    ]
    legend.append(f'<span style="background:{UNSHARDED}">unsharded</span>')
    legend.append("dims: global size → shard size, in the colours of the mesh axes that they are sharded over; ")
    legend.append("arrows: collectives, bytes of one device in → out")
    picture = lay_out_picture(explained)
    node_of = {ident: node for node in picture.nodes for ident in node.idents}
    elements: list[str] = []
    for start, end in picture.lines:
        left, right = node_of[start], node_of[end]
        x0, y0, x1, y1 = left.x + left.width, left.anchor(start), right.x, right.anchor(end)
        bend = max(BETWEEN / 2, (x1 - x0) / 2)
        path = f"M{x0:.1f} {y0:.1f}C{x0 + bend:.1f} {y0:.1f} {x1 - bend:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
        far = " far" if x1 - x0 > 2 * BETWEEN else ""
        elements.append(f'<path class="flow{far}" d="{path}"/>')
    for node in picture.nodes:
        elements.append('<g class="node">')
        if node.kind != "collective":
            corner, sides = f'x="{node.x:.1f}" y="{node.y:.1f}"', f'width="{node.width:.1f}" height="{node.height:.1f}"'
            elements.append(f'<rect class="box" {corner} {sides} rx="6"/>')
        if node.title:
            elements.append(_text(node.x + PAD, node.y + TITLE / 2 + 2, node.title, "strong"))
        for row in node.rows:
            elements += _arrow(node, row, colours) if isinstance(row, Collective) else _value_row(node, row, colours)
        elements.append("</g>")
    size = f'width="{picture.width:.0f}" height="{picture.height:.0f}"'
    name = escape(f"{explained.function}: values and collectives", quote=True)
    return (
        f"<style>{''.join(line.strip() for line in _STYLE.splitlines())}</style>"
        f'<div class="typedshmap-legend">{"".join(legend)}</div><div class="typedshmap-picture">'
        f'<svg {size} role="img" aria-label="{name}">{"".join(elements)}</svg></div>'
    )


def _value_row(node: PictureNode, value: Value, colours: Mapping[str, str]) -> Iterator[str]:
    """The rest of a value's path under the title of its box, its dtype, and its dims in colours."""
    middle, cells = node.anchor(value.ident), _cells(value)
    place = f"\n{value.place}" if value.place else ""
    about = f"{value.name}: {value.hint}\nglobal {value.shape}, shard {value.shard}, {value.bytes} bytes{place}"
    yield f"<g><title>{escape(about)}</title>"
    rest = value.name.removeprefix(node.title).lstrip(".")
    yield _text(node.x + PAD, middle, f"{rest} {value.dtype}", "name")
    left, top = node.x + node.width - PAD - sum(width for _, width, _ in cells), middle - ROW / 2 + 2
    for text, width, axes in cells:
        # The colours of the axes that the dim is sharded over, major to minor from the left.
        fills = [colours[axis] for axis in axes] or [UNSHARDED]
        part = (width - 2) / len(fills)
        for at, fill in enumerate(fills):
            corner = f'x="{left + at * part:.1f}" y="{top:.1f}"'
            yield f'<rect {corner} width="{part:.1f}" height="{ROW - 4}" fill="{fill}"/>'
        yield _text(left + 4, top + ROW / 2 - 2, text, "cell", ink(fills[0]))
        left += width
    yield "</g>"


def _cells(value: Value) -> list[tuple[str, float, tuple[str, ...]]]:
    """The dims, each with its width and its mesh axes: the global size, and the shard's of a sharded one."""
    texts = [
        (f"{size}→{part}" if axes else f"{size}", axes)
        for size, part, axes in zip(value.shape, value.shard, value.axes, strict=True)
    ]
    return [(text, len(text) * CHARACTER + 10, axes) for text, axes in texts]


def _arrow(node: PictureNode, each: Collective, colours: Mapping[str, str]) -> Iterator[str]:
    x, y, right, bottom = node.x, node.y, node.x + node.width, node.y + node.height
    tip, neck, wing = node.anchor(each.ident), right - _HEAD, 5
    points = [(x, y), (neck, y), (neck, y - wing), (right, tip), (neck, bottom + wing), (neck, bottom), (x, bottom)]
    fills = [colours[axis] for axis in each.axes]
    corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    loops = f"\nin {', '.join(each.loops)}" if each.loops else ""
    ring = f"{each.wire} bytes on the wire of each device, by a ring of {each.group}"
    about = f"{each.operation} over {', '.join(each.axes)}\n{ring}{loops}\n{each.place}"
    yield f"<title>{escape(about)}</title>"
    second = f' stroke="{fills[1]}" stroke-width="4"' if len(fills) > 1 else ""
    yield f'<polygon class="arrow" points="{corners}" fill="{fills[0]}"{second}/>'
    for line, (text, kind) in enumerate(zip(_texts(each), ("strong", "cell", "small"), strict=True)):
        yield _text(x + PAD, tip + (line - 1) * 15, text, kind, ink(fills[0]))


def _texts(each: Collective) -> tuple[str, str, str]:
    often = f" x{each.times}" if each.times > 1 else ""
    per_iteration = " per iteration" if each.is_open else ""
    return (
        f"{each.operation} {','.join(each.axes)}",
        f"{bytes_text(each.bytes_in)} → {bytes_text(each.bytes_out)}{often}{per_iteration}",
        f"{each.operand} → {each.result}",
    )


def _text(x: float, y: float, text: str, kind: str, colour: str = "") -> str:
    fill = f' style="fill:{colour}"' if colour else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" dominant-baseline="central"{fill}>{escape(text)}</text>'


CHARACTER = 7.25
"""The width of a character, in pixels: the text is 12 px high, of one width."""
ROW, TITLE, PAD, GAP, BETWEEN, MARGIN, _HEAD = 22, 24, 8, 16, 70, 20, 16


class PictureNode(NamedTuple):
    """A box with a row per value, or an arrow for one collective; its place and size are in pixels.

    Attributes:
      kind: what its rows are.
      title: what the names of its values begin with; empty for none.
      rows: the leaves of one argument or of the result, one checked value, or one collective.
      width: how wide it is.
      height: how high it is.
      x: where its left edge is.
      y: where its upper edge is.
    """

    kind: ValueKind | Literal["collective"]
    title: str
    rows: tuple[Value | Collective, ...]
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0

    @property
    def idents(self) -> tuple[int, ...]:
        return tuple(row.ident for row in self.rows)

    @property
    def before(self) -> tuple[int, ...]:
        return tuple(before for row in self.rows for before in row.after)

    def anchor(self, ident: int) -> float:
        """The height of the middle of a row."""
        if self.kind == "collective":
            return self.y + self.height / 2
        return self.y + TITLE * bool(self.title) + PAD / 2 + ROW * (self.idents.index(ident) + 0.5)


class Picture(NamedTuple):
    """Nodes at their places, and between which there are lines.

    Attributes:
      nodes: the nodes, column by column.
      lines: pairs of the values or collectives that lines go from and to.
      width: of all, in pixels.
      height: of all, in pixels.
    """

    nodes: tuple[PictureNode, ...]
    lines: tuple[tuple[int, int], ...]
    width: float
    height: float


def lay_out_picture(explained: Explained) -> Picture:
    """Place a function's values, and the collectives that its results depend on.

    What is there only where the function is differentiated from outside is not drawn. A column is laid out from the top
    down, each node as near as may be to what it depends on.
    """
    nodes = _nodes(explained)
    placed: dict[int, PictureNode] = {}

    def desired_y(node: PictureNode) -> float:
        heights = [placed[before].anchor(before) for before in node.before if before in placed]
        return sum(heights) / len(heights) if heights else 0.0

    x, found = float(MARGIN), list[PictureNode]()
    for column in _columns(nodes):
        width, y = max(node.width for node in column), float(MARGIN)
        stacked: list[PictureNode] = []
        for wanted, node in sorted(((desired_y(node), node) for node in column), key=itemgetter(0)):
            y = max(y, wanted - node.height / 2)
            stacked.append(node._replace(x=x, y=y, width=width))
            y += node.height + GAP
        placed.update((ident, node) for node in stacked for ident in node.idents)
        found += stacked
        x += width + BETWEEN
    lines = [(before, row.ident) for node in nodes for row in node.rows for before in row.after if before in placed]
    height = max((node.y + node.height for node in found), default=0.0) + MARGIN
    return Picture(tuple(found), tuple(dict.fromkeys(lines)), x - BETWEEN + MARGIN, height)


def _nodes(explained: Explained) -> list[PictureNode]:
    """A box for each argument, the result and each checked value; an arrow for each collective that they depend on."""
    found: list[PictureNode] = []
    for kind in ("argument", "result", "check"):
        for root, group in groupby((value for value in explained.values if value.kind == kind), key=_box_name):
            values = tuple(group)
            title = "" if kind == "check" or values[0].name == root else root
            texts = [(len(value.name) + len(value.dtype) + 1) * CHARACTER for value in values]
            rows = [
                text + sum(width for _, width, _ in _cells(value)) for text, value in zip(texts, values, strict=True)
            ]
            width, height = max(rows) + 4 * PAD, TITLE * bool(title) + ROW * len(values) + PAD
            found.append(PictureNode(kind, title, values, width, height))
    needed = {before for value in explained.values for before in value.after}
    for each in reversed(explained.collectives):
        if each.ident in needed:
            needed.update(each.after)
    for each in explained.collectives:
        if each.ident in needed:
            first, second, third = map(len, _texts(each))
            width = max(first, second, third * 0.84) * CHARACTER + 2 * PAD + _HEAD
            # Arrows of collectives that send more are thicker.
            height = 44 + min(24, 1.2 * (each.wire * each.times).bit_length())
            found.append(PictureNode("collective", "", (each,), width, height))
    return found


def _box_name(value: Value) -> str:
    """The argument that a value's path begins with; a checked value has a box of its own."""
    return str(value.ident) if value.kind == "check" else re.split(r"[.[]", value.name, maxsplit=1)[0]


def _columns(nodes: Sequence[PictureNode]) -> list[list[PictureNode]]:
    """Each node right of all that it depends on; arguments first, results last."""
    ranks: dict[int, int] = {}
    for node in sorted(nodes, key=lambda node: max(node.idents)):
        before = max((ranks[ident] for ident in node.before if ident in ranks), default=0)
        ranks.update(dict.fromkeys(node.idents, 0 if node.kind == "argument" else before + 1))
    last = max(ranks.values(), default=0) + 1
    ranks.update((ident, last) for node in nodes if node.kind == "result" for ident in node.idents)
    return [[node for node in nodes if ranks[node.idents[0]] == rank] for rank in sorted(set(ranks.values()))]
