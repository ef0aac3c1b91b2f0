"""The picture of README: which device holds which slice of the operands and the result of a sharded layer.

python bench/picture.py            prints the SVG
python bench/picture.py --write    writes docs/assets/layer.svg
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from typedshmap import Array, Float, show

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "assets" / "layer.svg"


class Layer(NamedTuple):
    """The arrays of ``y = x @ w``, before the sum."""

    x: Float[Array, "[batch/dp] [model/tp]"]
    w: Float[Array, "[model/tp] ff"]
    y: Float[Array, "[batch/dp] ff +tp"]


def picture() -> str:
    """The three arrays side by side."""
    drawings = show(Layer, "dp=4,tp=2", batch=8, model=16, ff=32).drawings()
    sizes = [tuple(map(int, re.findall(r' (?:width|height)="(\d+)"', each)[:2])) for each in drawings]
    placed, left, height = [], 0, max(high for _, high in sizes)
    for drawing, (wide, _), sign in zip(drawings, sizes, ("@", "=", ""), strict=True):
        placed.append(drawing.replace("<svg ", f'<svg x="{left}" y="0" ', 1))
        middle = f'x="{left + wide + 8}" y="{height / 2:.0f}" text-anchor="middle"'
        placed.append(f'<text {middle} font-size="22" font-family="monospace">{sign}</text>' if sign else "")
        left += wide + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left - 16} {height}" width="{left - 16}" role="img" '
        f'aria-label="x, w and y = x @ w over a mesh of 4 by 2 devices">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f"{''.join(placed)}</svg>\n"
    )


if __name__ == "__main__":
    if "--write" in sys.argv:
        PICTURE.write_text(picture())
    else:
        sys.stdout.write(picture())
