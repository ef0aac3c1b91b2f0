"""The figure of README: which device holds which block of the operands and the result of a sharded layer.

python bench/picture.py            prints the SVG
python bench/picture.py --write    writes docs/assets/layer.svg
"""

import sys
from html import escape
from pathlib import Path

from typedshmap.drawing import colours_of, ink

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "assets" / "layer.svg"
COLOURS = list(colours_of(["0", "1", "2", "3"]).values())
CELL, HEIGHT, PANEL = 34, 22, 205

# Of the mesh and of each array: its hint, words, and rows of blocks with the devices that hold them.
PANELS = [
    ("mesh dp=2, tp=2", ["dp: down", "tp: across"], ["0 1", "2 3"]),
    ('x: "[batch/dp] [model/tp]"', ["one block", "on each"], ["0 1", "2 3"]),
    ('w: "[model/tp] ff"', ["copies", "along dp"], ["0=2", "1=3"]),
    ('x @ w: "[batch/dp] ff +tp"', ["partial sums", "along tp"], ["0+1", "2+3"]),
]
LEGEND = "a number and its colour are a device", "= the same block    + addends: a psum is due"


def text(x: float, y: float, words: str, fill: str = "#1f2328", anchor: str = "start", size: int = 12) -> str:
    place = f'x="{x}" y="{y}" text-anchor="{anchor}" dominant-baseline="central" font-size="{size}"'
    return f'<text {place} fill="{fill}" xml:space="preserve">{escape(words)}</text>'


def block(x: float, y: float, devices: str) -> str:
    """Devices side by side, with the sign between them, if they hold the same block."""
    parts = []
    for at, device in enumerate(devices[::2]):
        left, fill = x + at * (CELL + 13), COLOURS[int(device)]
        parts.append(f'<rect x="{left}" y="{y}" width="{CELL}" height="{HEIGHT}" rx="3" fill="{fill}"/>')
        parts.append(text(left + CELL / 2, y + HEIGHT / 2, device, ink(fill), "middle"))
    return "".join([*parts, text(x + CELL + 6.5, y + HEIGHT / 2, devices[1], anchor="middle")])


def picture() -> str:
    """The mesh and the arrays, two beside each other, over a legend: it is read on a phone, too."""
    body = []
    for at, (title, words, rows) in enumerate(PANELS):
        x, y = 8 + PANEL * (at % 2), 14 + 88 * (at // 2)
        body.append(text(x, y, title))
        for line, (row, word) in enumerate(zip(rows, words, strict=True)):
            body += [block(x, y + 12 + line * 26, row), text(x + 94, y + 23 + line * 26, word)]
    body += [text(8, 188 + 18 * at, line) for at, line in enumerate(LEGEND)]
    style = 'font-family="ui-monospace,Menlo,Consolas,monospace"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 410 216" width="410" role="img" {style} '
        f'aria-label="x, w and x @ w over a mesh of 2 by 2 devices">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(body)}</svg>\n'
    )


if __name__ == "__main__":
    if "--write" in sys.argv:
        PICTURE.write_text(picture())
    else:
        sys.stdout.write(picture())
