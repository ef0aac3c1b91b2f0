"""A picture of a function as SVG: its values as boxes, its collectives as arrows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from .model import Collective, Explained, Value, bytes_text

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
    colours, legend = Colours(axis for axis, _ in explained.mesh), list[str]()
    for axis, size in explained.mesh:
        colour = colours.of(axis)
        legend.append(f'<span style="background:{colour};color:{ink(colour)}">{escape(axis)}={size}</span>')
    legend.append(f'<span style="background:{UNSHARDED}">unsharded</span>')
    legend.append("dims: global size → shard size, in the colours of the mesh axes that they are sharded over; ")
    legend.append("arrows: collectives, bytes of one device in → out")
    return (
        f"<style>{''.join(line.strip() for line in _STYLE.splitlines())}</style>"
        f'<div class="typedshmap-legend">{"".join(legend)}</div>'
        f'<div class="typedshmap-picture">{draw(explained)}</div>'
    )


UNSHARDED = "#e8eaed"
_PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c6bb1")
_DARK = {"#0072b2", "#d55e00", "#009e73", "#8c6bb1"}


class Colours:
    """The colours of a mesh."""

    def __init__(self, axes: Iterable[str]) -> None:
        self._of = {axis: _PALETTE[at % len(_PALETTE)] for at, axis in enumerate(axes)}

    def of(self, axis: str) -> str:
        """The colour of a mesh axis."""
        return self._of[axis]

    def of_all(self, axes: Iterable[str]) -> list[str]:
        """The colours of several; that of an unsharded dim for none."""
        return [self._of[axis] for axis in axes] or [UNSHARDED]


def ink(colour: str) -> str:
    """The colour of text that is legible on a colour."""
    return "#ffffff" if colour in _DARK else "#1f2328"


def draw(explained: Explained) -> str:
    """The picture of what belongs to the function itself, as one ``<svg>``."""
    colours, widths = Colours(axis for axis, _ in explained.mesh), dict[int, float]()
    for value in explained.values:
        label = (len(value.name) + len(value.dtype) + 1) * CHARACTER
        widths[value.ident] = label + sum(width for _, width, _ in _cells(value)) + 4 * PAD
    for each in explained.collectives:
        first, second, third = map(len, _texts(each))
        widths[each.ident] = max(first, second, third * 0.84) * CHARACTER + 2 * PAD + _HEAD
    picture = lay_out_picture(explained, widths)
    at = {ident: placed for placed in picture.nodes for ident in placed.node.idents}
    elements: list[str] = []
    for start, end in picture.lines:
        left, right = at[start], at[end]
        x0, y0, x1, y1 = left.x + left.width, left.anchor(start), right.x, right.anchor(end)
        bend = max(BETWEEN / 2, (x1 - x0) / 2)
        path = f"M{x0:.1f} {y0:.1f}C{x0 + bend:.1f} {y0:.1f} {x1 - bend:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
        far = " far" if x1 - x0 > 2 * BETWEEN else ""
        elements.append(f'<path class="flow{far}" d="{path}"/>')
    for placed in picture.nodes:
        node = placed.node
        parts = _arrow(placed, node, colours) if isinstance(node, Arrow) else _box(placed, node, colours)
        elements += ['<g class="node">', *parts, "</g>"]
    size = f'width="{picture.width:.0f}" height="{picture.height:.0f}"'
    name = escape(f"{explained.function}: values and collectives", quote=True)
    return f'<svg {size} role="img" aria-label="{name}">{"".join(elements)}</svg>'


def _cells(value: Value) -> list[tuple[str, float, tuple[str, ...]]]:
    """The dims, each with its width and its mesh axes: the global size, and the shard's of a sharded one."""
    texts = [
        (f"{size}→{part}" if axes else f"{size}", axes)
        for size, part, axes in zip(value.shape, value.shard, value.axes, strict=True)
    ]
    return [(text, len(text) * CHARACTER + 10, axes) for text, axes in texts]


def _box(placed: PlacedNode, box: ValueBox, colours: Colours) -> Iterator[str]:
    """A row per value: the rest of its path under the title of the box, its dtype, and its dims in colours."""
    x, y, width = placed.x, placed.y, placed.width
    yield f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{box.height:.1f}" rx="6"/>'
    if box.has_title:
        yield _text(x + PAD, y + TITLE / 2 + 2, box.title, "strong")
    for value in box.values:
        middle, cells = placed.anchor(value.ident), _cells(value)
        place = f"\n{value.place}" if value.place else ""
        about = f"{value.name}: {value.hint}\nglobal {value.shape}, shard {value.shard}, {value.bytes} bytes{place}"
        yield f"<g><title>{escape(about)}</title>"
        rest = value.name.removeprefix(box.title).lstrip(".")
        yield _text(x + PAD, middle, f"{rest or value.name} {value.dtype}", "name")
        left = x + width - PAD - sum(width for _, width, _ in cells)
        for text, cell, axes in cells:
            # The colours of the axes that the dim is sharded over, major to minor from the left.
            fills, top = colours.of_all(axes), middle - ROW / 2 + 2
            part = (cell - 2) / len(fills)
            for at, fill in enumerate(fills):
                corner = f'x="{left + at * part:.1f}" y="{top:.1f}"'
                yield f'<rect {corner} width="{part:.1f}" height="{ROW - 4}" fill="{fill}"/>'
            yield _text(left + 4, top + ROW / 2 - 2, text, "cell", ink(fills[0]))
            left += cell
        yield "</g>"


def _texts(each: Collective) -> tuple[str, str, str]:
    often = f" x{each.times}" if each.times > 1 else ""
    per_iteration = " per iteration" if each.is_open else ""
    return (
        f"{each.operation} {','.join(each.axes)}",
        f"{bytes_text(each.bytes_in)} → {bytes_text(each.bytes_out)}{often}{per_iteration}",
        f"{each.operand} → {each.result}",
    )


def _arrow(placed: PlacedNode, arrow: Arrow, colours: Colours) -> Iterator[str]:
    each = arrow.collective
    x, y, right, height = placed.x, placed.y, placed.x + placed.width, arrow.height
    tip, wing = y + height / 2, 5
    points = [(x, y), (right - _HEAD, y), (right - _HEAD, y - wing), (right, tip)]
    points += [(right - _HEAD, y + height + wing), (right - _HEAD, y + height), (x, y + height)]
    fills = colours.of_all(each.axes)
    corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    loops = f"\nin {', '.join(each.loops)}" if each.loops else ""
    ring = f"{each.wire} bytes on the wire of each device, by a ring of {each.group}"
    about = f"{each.operation} over {', '.join(each.axes)}\n{ring}{loops}\n{each.place}"
    yield f"<title>{escape(about)}</title>"
    second = f' stroke="{fills[1]}" stroke-width="4"' if len(fills) > 1 else ""
    yield f'<polygon class="arrow" points="{corners}" fill="{fills[0]}"{second}/>'
    for line, (text, kind) in enumerate(zip(_texts(each), ("strong", "cell", "small"), strict=True)):
        yield _text(x + PAD, tip + (line - 1) * 15, text, kind, ink(fills[0]))


def _text(x: float, y: float, text: str, kind: str, colour: str = "") -> str:
    fill = f' style="fill:{colour}"' if colour else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" dominant-baseline="central"{fill}>{escape(text)}</text>'


CHARACTER = 7.25
"""The width of a character, in pixels: the text is 12 px high, of one width."""
ROW, TITLE, PAD, GAP, BETWEEN, MARGIN, _HEAD = 22, 24, 8, 16, 70, 20, 16


@dataclass(frozen=True, slots=True)
class ValueBox:
    """Values that are drawn as one box with a row each: the leaves of one argument, or of the result."""

    title: str
    values: tuple[Value, ...]

    @property
    def idents(self) -> tuple[int, ...]:
        return tuple(value.ident for value in self.values)

    @property
    def before(self) -> tuple[int, ...]:
        return tuple(before for value in self.values for before in value.after)

    @property
    def height(self) -> float:
        return TITLE * self.has_title + ROW * len(self.values) + PAD

    @property
    def has_title(self) -> bool:
        return [value.name for value in self.values] != [self.title]


@dataclass(frozen=True, slots=True)
class Arrow:
    """A collective, drawn as an arrow."""

    collective: Collective
    height: float

    @property
    def idents(self) -> tuple[int, ...]:
        return (self.collective.ident,)

    @property
    def before(self) -> tuple[int, ...]:
        return self.collective.after


PictureNode = ValueBox | Arrow


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node at its place, in pixels."""

    node: PictureNode
    x: float
    y: float
    width: float

    def anchor(self, ident: int) -> float:
        """The height of the row of a value, or of the middle of an arrow."""
        if isinstance(self.node, Arrow):
            return self.y + self.node.height / 2
        return self.y + TITLE * self.node.has_title + PAD / 2 + ROW * (self.node.idents.index(ident) + 0.5)


@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes at their places, and between which there are lines.

    Attributes:
      nodes: the nodes, in the jaxpr's order.
      lines: pairs of the values or collectives that lines go from and to.
      width: of all, in pixels.
      height: of all, in pixels.
    """

    nodes: tuple[PlacedNode, ...]
    lines: tuple[tuple[int, int], ...]
    width: float
    height: float


def lay_out_picture(explained: Explained, widths: Mapping[int, float]) -> Picture:
    """Place a function's values, and the collectives that its results depend on.

    What is there only where the function is differentiated from outside is not drawn. A column is laid out from the top
    down, each node as near as may be to what it depends on.

    Args:
      explained: the explanation of the function.
      widths: how wide the row of a value, or an arrow, has to be.
    """
    nodes = _nodes(explained)
    drawn = {ident for node in nodes for ident in node.idents}
    placed: dict[int, PlacedNode] = {}

    def desired_y(node: PictureNode) -> float:
        heights = [placed[before].anchor(before) for before in node.before if before in placed]
        return sum(heights) / len(heights) if heights else 0.0

    x, found = float(MARGIN), list[PlacedNode]()
    for column in _columns(nodes, drawn):
        width, y = max(widths[ident] for node in column for ident in node.idents), float(MARGIN)
        stacked: list[PlacedNode] = []
        for wanted, node in sorted(((desired_y(node), node) for node in column), key=lambda pair: pair[0]):
            y = max(y, wanted - node.height / 2)
            stacked.append(PlacedNode(node, x, y, width))
            y += node.height + GAP
        placed.update((ident, each) for each in stacked for ident in each.node.idents)
        found += stacked
        x += width + BETWEEN
    lines = [
        (before, each.ident)
        for node in nodes
        for each in ([node.collective] if isinstance(node, Arrow) else node.values)
        for before in each.after
        if before in drawn
    ]
    height = max((each.y + each.node.height for each in found), default=0.0) + MARGIN
    return Picture(tuple(found), tuple(dict.fromkeys(lines)), x - BETWEEN + MARGIN, height)


def _nodes(explained: Explained) -> list[PictureNode]:
    """A box for each argument, the result and each checked value; an arrow for each collective that they depend on."""
    found: list[PictureNode] = []
    for kind in ("argument", "result"):
        of_kind = [value for value in explained.values if value.kind == kind]
        groups = groupby(of_kind, key=lambda value: root_of(value.name))
        found += [ValueBox(root, tuple(group)) for root, group in groups]
    found += [ValueBox(value.name, (value,)) for value in explained.values if value.kind == "check"]
    before = {each.ident: each.after for each in (*explained.values, *explained.collectives)}
    needed: set[int] = set()
    waiting = [value.ident for value in explained.values if value.kind != "argument"]
    while waiting:
        ident = waiting.pop()
        if ident not in needed:
            needed.add(ident)
            waiting += before.get(ident, ())
    # Arrows of collectives that send more are thicker.
    heights = {each.ident: 44 + min(24, 1.2 * (each.wire * each.times).bit_length()) for each in explained.collectives}
    return [*found, *(Arrow(each, heights[each.ident]) for each in explained.collectives if each.ident in needed)]


def root_of(name: str) -> str:
    """The argument that a path begins with."""
    return name.partition(".")[0].partition("[")[0]


def _columns(nodes: Sequence[PictureNode], drawn: set[int]) -> list[list[PictureNode]]:
    """Each node right of all that it depends on; arguments first, results last."""

    def is_kind(node: PictureNode, kind: str) -> bool:
        return isinstance(node, ValueBox) and node.values[0].kind == kind

    by_ident = {ident: node for node in nodes for ident in node.idents}
    ranks: dict[int, int] = {}
    for node in sorted(nodes, key=lambda node: max(node.idents)):
        before = [ranks[id(by_ident[each])] for each in node.before if each in drawn and id(by_ident[each]) in ranks]
        ranks[id(node)] = 0 if is_kind(node, "argument") else max(before, default=0) + 1
    last = max(ranks.values(), default=0) + 1
    ranks.update((id(node), last) for node in nodes if is_kind(node, "result"))
    return [[node for node in nodes if ranks[id(node)] == rank] for rank in sorted(set(ranks.values()))]
