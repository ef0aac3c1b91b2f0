"""The picture of a program as SVG: values as boxes coloured by their sharding, collectives as arrows with bytes."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ..model import Collective, Explained, Value
from ..units import bytes_text
from .colours import Colours, ink
from .layout import BETWEEN, CHARACTER, PAD, ROW, TITLE, Arrow, Group, Picture, Placed, lay_out

_HEAD = 16


def draw(explained: Explained) -> str:
    """The picture of what belongs to the function itself, as one ``<svg>``."""
    colours = Colours(axis for axis, _ in explained.mesh)
    widths = {value.ident: _width_of(value) for value in explained.values}
    widths |= {each.ident: _width_of_arrow(each) for each in explained.collectives}
    picture = lay_out(explained, widths)
    parts = [*_lines(picture), *(part for placed in picture.nodes for part in _node(placed, colours))]
    size = f'width="{picture.width:.0f}" height="{picture.height:.0f}"'
    name = escape(f"{explained.function}: values and collectives", quote=True)
    return f'<svg {size} role="img" aria-label="{name}">{"".join(parts)}</svg>'


def _label(value: Value, title: str) -> str:
    """What stands before a value's dims: the rest of its path under the title of its box, and its dtype."""
    rest = value.name.removeprefix(title).lstrip(".")
    return f"{rest or value.name} {value.dtype}"


def _cells(value: Value) -> list[str]:
    """The dims: the global size, and where it is split the shard's."""
    pairs = zip(value.shape, value.shard, value.axes, strict=True)
    return [f"{whole}→{part}" if axes else f"{whole}" for whole, part, axes in pairs]


def _width_of(value: Value) -> float:
    cells = sum(len(cell) * CHARACTER + 10 for cell in _cells(value))
    return (len(value.name) + len(value.dtype) + 1) * CHARACTER + cells + 4 * PAD


def _texts(each: Collective) -> tuple[str, str, str]:
    often = f" x{each.times}" if each.times > 1 else ""
    turns = " per turn" if each.is_open else ""
    return (
        f"{each.operation} {','.join(each.axes)}",
        f"{bytes_text(each.bytes_in)} → {bytes_text(each.bytes_out)}{often}{turns}",
        f"{each.operand} → {each.result}",
    )


def _width_of_arrow(each: Collective) -> float:
    first, second, third = _texts(each)
    return max(len(first), len(second), len(third) * 0.84) * CHARACTER + 2 * PAD + _HEAD


def _lines(picture: Picture) -> Iterator[str]:
    at = {ident: placed for placed in picture.nodes for ident in placed.node.idents}
    for start, end in picture.lines:
        left, right = at[start], at[end]
        x0, y0, x1, y1 = left.x + left.width, left.anchor(start), right.x, right.anchor(end)
        bend = max(BETWEEN / 2, (x1 - x0) / 2)
        path = f"M{x0:.1f} {y0:.1f}C{x0 + bend:.1f} {y0:.1f} {x1 - bend:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
        far = " far" if x1 - x0 > 2 * BETWEEN else ""
        yield f'<path class="flow{far}" d="{path}"/>'


def _node(placed: Placed, colours: Colours) -> Iterator[str]:
    yield '<g class="node">'
    if isinstance(placed.node, Arrow):
        yield from _arrow(placed, placed.node, colours)
    else:
        yield from _box(placed, placed.node, colours)
    yield "</g>"


def _box(placed: Placed, group: Group, colours: Colours) -> Iterator[str]:
    x, y, width = placed.x, placed.y, placed.width
    yield f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{group.height:.1f}" rx="6"/>'
    if group.has_title:
        yield _text(x + PAD, y + TITLE / 2 + 2, group.title, "strong")
    for value in group.values:
        yield from _row(value, group.title, x, placed.anchor(value.ident), width, colours)


def _row(value: Value, title: str, x: float, y: float, width: float, colours: Colours) -> Iterator[str]:
    yield f"<g><title>{escape(_about(value))}</title>"
    yield _text(x + PAD, y, _label(value, title), "name")
    cells = _cells(value)
    left = x + width - PAD - sum(len(cell) * CHARACTER + 10 for cell in cells)
    for cell, axes in zip(cells, value.axes, strict=True):
        yield from _cell(left, y - ROW / 2 + 2, cell, colours.of_all(axes))
        left += len(cell) * CHARACTER + 10
    yield "</g>"


def _cell(x: float, y: float, text: str, colours: list[str]) -> Iterator[str]:
    """One dim, in the colours of the axes that it is split over, major to minor from the left."""
    width = len(text) * CHARACTER + 8
    for at, colour in enumerate(colours):
        part = width / len(colours)
        yield f'<rect x="{x + at * part:.1f}" y="{y:.1f}" width="{part:.1f}" height="{ROW - 4}" fill="{colour}"/>'
    yield _text(x + 4, y + ROW / 2 - 2, text, "cell", ink(colours[0]))


def _about(value: Value) -> str:
    place = f"\n{value.place}" if value.place else ""
    return f"{value.name}: {value.hint}\nglobal {value.shape}, shard {value.shard}, {value.bytes} bytes{place}"


def _arrow(placed: Placed, arrow: Arrow, colours: Colours) -> Iterator[str]:
    each = arrow.collective
    x, y, right, height = placed.x, placed.y, placed.x + placed.width, arrow.height
    tip, wing = y + height / 2, 5
    points = [(x, y), (right - _HEAD, y), (right - _HEAD, y - wing), (right, tip)]
    points += [(right - _HEAD, y + height + wing), (right - _HEAD, y + height), (x, y + height)]
    fills = colours.of_all(each.axes)
    corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    yield f"<title>{escape(_about_collective(each))}</title>"
    second = f' stroke="{fills[1]}" stroke-width="4"' if len(fills) > 1 else ""
    yield f'<polygon class="arrow" points="{corners}" fill="{fills[0]}"{second}/>'
    for line, (text, kind) in enumerate(zip(_texts(each), ("strong", "cell", "small"), strict=True)):
        yield _text(x + PAD, tip + (line - 1) * 15, text, kind, ink(fills[0]))


def _about_collective(each: Collective) -> str:
    ring = f"{each.wire} bytes on the wire of each device, by a ring of {each.group}"
    loops = f"\nin {', '.join(each.loops)}" if each.loops else ""
    return f"{each.operation} over {', '.join(each.axes)}\n{ring}{loops}\n{each.place}"


def _text(x: float, y: float, text: str, kind: str, colour: str = "") -> str:
    fill = f' style="fill:{colour}"' if colour else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" dominant-baseline="central"{fill}>{escape(text)}</text>'
