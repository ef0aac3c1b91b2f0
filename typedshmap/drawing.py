"""Self-contained HTML for pages and notebooks: bars, tables, and dims in the colours of mesh axes.

Text has the colour of the page and backgrounds are translucent, for light and dark pages. Widths are shares, and only
tables scroll, for phones.

```python
parts = [BarPart("weights", 3e9, colour), BarPart("activations", 5e9, other)]
html = framed(bars("memory of one device", [Bar("dp=8, tp=8", parts, "8 GB")], limit=95e9, limit_text="95 GB of v5p"))
```"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import cycle
from typing import NamedTuple

UNSHARDED = "#e8eaed"
NEUTRAL = ("#6e7781", "#a3abb5")
"""Colours of computing and of memory."""
_AXES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c6bb1")
_KINDS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#e15759", "#edc948", "#9c755f", "#ff9da7")
_DARK = {"#0072b2", "#d55e00", "#009e73", "#8c6bb1", "#4e79a7", "#6e7781", "#9c755f"}

_STYLE = """
.typedshmap {font:14px/1.45 system-ui,sans-serif; max-width:1360px; overflow-wrap:anywhere}
.typedshmap * {box-sizing:border-box}
.typedshmap h3, .typedshmap h4, .typedshmap h5 {margin:.9em 0 .35em; line-height:1.3}
.typedshmap h3 {font-size:17px}
.typedshmap h4 {font-size:15px}
.typedshmap h5 {font-size:13px; font-weight:600; text-transform:none; letter-spacing:normal; color:inherit}
.typedshmap p {margin:.3em 0}
.typedshmap ul {margin:.6em 0; padding-left:1.3em}
.typedshmap pre, .typedshmap code, .typedshmap td, .typedshmap th, .typedshmap .axis, .typedshmap .dim {
  font:12px/1.5 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.typedshmap pre {margin:.6em 0; white-space:pre-wrap}
.typedshmap code, .typedshmap td, .typedshmap th {background:none; padding:0; color:inherit}
.typedshmap .side {display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,28em),1fr)); gap:0 2rem}
.typedshmap .side > * {min-width:0}
.typedshmap .scroll {margin:.5em 0; overflow:auto; max-width:100%; max-height:32rem}
.typedshmap table {border-collapse:collapse; margin:0; display:table}
.typedshmap td, .typedshmap th {padding:.2em .8em; text-align:left; white-space:nowrap; border:0;
  border-bottom:1px solid rgba(128,128,128,.25)}
.typedshmap .number {text-align:right}
.typedshmap .row {margin:.45em 0}
.typedshmap .ends {display:flex; flex-wrap:wrap; justify-content:space-between; gap:0 1em}
.typedshmap .faint {opacity:.75}
.typedshmap .track {position:relative; display:flex; height:16px; border-radius:3px; overflow:hidden;
  background:rgba(128,128,128,.18)}
.typedshmap .thin {height:7px; margin-bottom:1px}
.typedshmap .track i {display:block; height:100%; min-width:1px}
.typedshmap .track b {position:absolute; top:0; bottom:0; width:3px; margin-left:-3px; background:#d1242f}
.typedshmap .legend {display:flex; flex-wrap:wrap; gap:.1em 1.1em; font-size:13px}
.typedshmap .legend i {display:inline-block; width:.8em; height:.8em; margin-right:.4em; border-radius:2px}
.typedshmap .axis {display:inline-block; padding:0 .45em; border-radius:3px; white-space:nowrap}
.typedshmap .dim {display:inline-block; padding:.1em .35em; margin:.1em .2em .1em 0; white-space:nowrap;
  border:1px solid rgba(128,128,128,.5); border-radius:4px}
.typedshmap .cuts {display:flex; flex-wrap:wrap; gap:.6em 1.2em; margin:.4em 0; align-items:flex-start}
.typedshmap .cuts > div {min-width:7em; max-width:100%}
.typedshmap .cuts .pieces {display:flex; height:12px; margin-top:2px}
.typedshmap .cuts .pieces i {flex:1; border:1px solid rgba(255,255,255,.85); border-radius:2px}
.typedshmap .cuts .whole {height:12px; margin-top:2px; border:1px solid rgba(128,128,128,.6); border-radius:3px}
.typedshmap .box {border:1px solid rgba(128,128,128,.55); border-radius:7px; padding:.1em .8em .4em; margin:.6em 0}
.typedshmap details > summary {cursor:pointer; margin:.5em 0}
"""


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


class BarPart(NamedTuple):
    """One part of a bar, with its amount also in words."""

    what: str
    amount: float
    colour: str
    text: str = ""


class Bar(NamedTuple):
    """One bar, with its parts from the left and the text at its end."""

    name: str
    parts: Sequence[BarPart]
    text: str = ""


def colours_of(axes: Iterable[str]) -> dict[str, str]:
    """The colour of each axis of a mesh."""
    return dict(zip(axes, cycle(_AXES), strict=False))


def kind_colours(kinds: Iterable[str]) -> dict[str, str]:
    """A colour for each kind of array in memory."""
    return dict(zip(dict.fromkeys(kinds), cycle(_KINDS), strict=False))


def ink(colour: str) -> str:
    """The colour of text that is legible on a colour."""
    return "#ffffff" if colour in _DARK else "#1f2328"


def framed(*blocks: str) -> Html:
    """Blocks with their style, as one piece of a page."""
    style = "".join(line.strip() for line in _STYLE.splitlines())
    return Html(f'<div class="typedshmap"><style>{style}</style>{"".join(blocks)}</div>')


def side_by_side(*blocks: str) -> Html:
    """Blocks beside each other if there is room, else below each other."""
    return Html(f'<div class="side">{"".join(f"<div>{block}</div>" for block in blocks if block)}</div>')


def folded(summary: str, body: str, is_open: bool = False) -> Html:
    """A block that a click on its summary opens."""
    return Html(f"<details{' open' * is_open}><summary>{escape(summary)}</summary>{body}</details>")


def track(parts: Sequence[BarPart], scale: float, limit: float = 0, label: str = "", is_thin: bool = False) -> Html:
    """The bar alone, with the limit."""
    scale = scale or 1.0
    pieces = [
        f'<i style="width:{100 * part.amount / scale:.2f}%;background:{part.colour}" '
        f'title="{escape(f"{part.what} {part.text}".strip(), quote=True)}"></i>'
        for part in parts
        if part.amount > 0
    ]
    mark = f'<b style="left:{100 * limit / scale:.2f}%"></b>' if limit else ""
    role = f'role="img" aria-label="{escape(label, quote=True)}"' if label else 'aria-hidden="true"'
    return Html(f'<div class="track{" thin" * is_thin}" {role}>{"".join(pieces)}{mark}</div>')


def bars(title: str, rows: Sequence[Bar], limit: float = 0, limit_text: str = "", is_stacked: bool = True) -> Html:
    """A chart of bars on one scale, with a limit marked in each.

    Stacked parts of a bar add up, and a legend explains them; otherwise each part is a separate bar.
    """
    amounts = [sum(row) if is_stacked else max(row, default=0.0) for row in ([p.amount for p in r.parts] for r in rows)]
    scale, lines = max([*amounts, limit]), list[str]()
    for row in rows:
        parts = ", ".join(f"{part.what} {part.text}".strip() for part in row.parts)
        label = ": ".join(filter(None, [row.name, row.text, parts])) + (f"; {limit_text}" if limit_text else "")
        ends = f'<div class="ends"><span>{escape(row.name)}</span><span>{escape(row.text)}</span></div>'
        if is_stacked:
            tracks = track(row.parts, scale, limit, label)
        else:
            tracks = "".join(
                track([part], scale, limit, f"{row.name}: {part.what} {part.text}", True) for part in row.parts
            )
        lines.append(f'<div class="row">{ends}{tracks}</div>')
    shown = {part.what: part for row in rows if len(row.parts) > 1 for part in reversed(row.parts)}
    entries = [
        (part.colour, f"{part.what} {part.text}".strip() if len(rows) == 1 else part.what)
        for part in reversed(shown.values())
    ]
    entries += [("#d1242f", limit_text)] if limit_text else []
    return Html(f"<h5>{escape(title)}</h5>{''.join(lines)}{legend(entries) if entries else ''}")


def legend(entries: Iterable[tuple[str, str]]) -> Html:
    """Colours with their meanings."""
    items = (f'<span><i style="background:{colour}"></i>{escape(what)}</span>' for colour, what in entries)
    return Html(f'<div class="legend">{"".join(items)}</div>')


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[str] = ()) -> Html:
    """A table in a box that scrolls; cells are text or `Html`, and columns of numbers are aligned to the right."""
    right = set(numbers)
    styles = [' class="number"' if heading in right else "" for heading in headings]

    def line(cells: Sequence[str], tag: str) -> str:
        texts = (cell if isinstance(cell, Html) else escape(cell) for cell in cells)
        return f"<tr>{''.join(f'<{tag}{style}>{text}</{tag}>' for text, style in zip(texts, styles, strict=True))}</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    head = line(headings, "th")
    return Html(
        f'<div class="scroll"><table class="cells"><thead>{head}</thead><tbody>\n{body}\n</tbody></table></div>'
    )


def axis_html(axis: str, colour: str) -> Html:
    """A mesh axis in its colour."""
    return Html(f'<span class="axis" style="background:{colour};color:{ink(colour)}">{escape(axis)}</span>')


def dim_html(text: str, axes: Iterable[tuple[str, str]] = ()) -> Html:
    """A dim, and after it the mesh axes that it is sharded over with their colours, major to minor."""
    chips = "".join(f" {axis_html(axis, colour)}" for axis, colour in axes)
    return Html(f'<span class="dim">{escape(text)}{chips}</span>')


_MOST_CELLS = 64


def cut_dim(name: str, axes: Sequence[tuple[str, int | None, str]]) -> Html:
    """A dim, and below it a row of cells for each mesh axis (name, size, colour) that it is sharded over."""
    rows, cells, chips = list[str](), 1, list[str]()
    for axis, size, colour in axes:
        cells *= size or 3
        cell = f'<i style="background:{colour}"></i>'
        rows.append(f'<div class="pieces">{cell * min(cells, _MOST_CELLS)}</div>')
        chips.append(axis_html(axis if size is None else f"{axis}={size}", colour))
    label = f"{name} over {', '.join(axis for axis, _, _ in axes)}" if axes else f"{name}, unsharded"
    body = "".join(rows) or '<div class="whole"></div>'
    return Html(
        f'<div role="img" aria-label="{escape(label, quote=True)}"><code>{escape(name)}</code> {" ".join(chips)}'
        f"{body}</div>"
    )


def document(title: str, body: str) -> str:
    """A complete page, light or dark like the system."""
    body_style = "font:14px system-ui,sans-serif;margin:16px auto;max-width:1360px;padding:0 16px"
    style = f":root{{color-scheme:light dark}}body{{{body_style}}}"
    head = (
        "<meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{style}</style>"
    )
    return f"<!doctype html><html lang='en'><head>{head}</head><body>\n{body}\n</body></html>\n"
