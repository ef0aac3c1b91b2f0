"""The figures of the documentation: which device holds which slice, what each collective moves, and a page of explain.

python bench/figures.py            prints where each differs
python bench/figures.py --write    writes them to docs/assets
"""

import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import jax
from picture import PICTURE, picture

from typedshmap import (
    Array,
    Float,
    Float32,
    Stacked,
    all_gather,
    choose_mesh,
    einsum,
    explain,
    psum_scatter,
    show,
    typed_shard_map,
)
from typedshmap.drawing import NEUTRAL, colours_of, ink

ASSETS = PICTURE.parent
MESH, SIZES = "dp=4,tp=2", {"batch": 8, "model": 16, "ff": 32}


# Notation, tutorial, placement: by `show`


class Product(NamedTuple):
    """The arrays of the tutorial's first program, and what a device has before the sum."""

    a: Float[Array, "[m/x] [k/y]"]
    b: Float[Array, "[k/y] n"]
    addends: Float[Array, "[m/x] n +y"]
    c: Float[Array, "[m/x] n"]


class Layer(NamedTuple):
    """The layer of the page on arrays at rest."""

    up: Float[Array, "[model/dp] [ff/tp]"]
    down: Float[Array, "[ff/tp] [model/dp]"]


class Weights(NamedTuple):
    """The weights of the page on arrays at rest."""

    embed: Float[Array, "[vocab/tp] [model/dp]"]
    layers: Stacked["layers", Layer]


def shown(T: object, mesh: str = MESH, at: int = 0, **sizes: int) -> str:
    """An array of a hint, or of a class of hints."""
    return show(T, mesh, **sizes).drawings()[at] + "\n"


# Operations: what each collective moves


class Cell(NamedTuple):
    """A block of an array on a device: whose it was, or a sum; and which part of that."""

    owner: int | None
    part: str = ""


DEVICES = range(4)
CELL, LEFT, GAP, TOP = 30, 34, 46, 46
OWNERS = list(colours_of(["a", "b", "c", "d"]).values())


def own(device: int) -> list[Cell]:
    return [Cell(device, part) for part in "0123"]


COLLECTIVES: dict[str, tuple[str, str, list[list[Cell]], list[list[Cell]]]] = {
    "all-gather": (
        "all_gather",
        "[m/dp] f -> m f",
        [[Cell(device)] for device in DEVICES],
        [[Cell(owner) for owner in DEVICES] for _ in DEVICES],
    ),
    "psum": ("psum", "b f +tp -> b f", [[Cell(device)] for device in DEVICES], [[Cell(None)] for _ in DEVICES]),
    "psum-scatter": (
        "psum_scatter",
        "b f +tp -> b [f/tp]",
        [own(device) for device in DEVICES],
        [[Cell(None, part)] for part in "0123"],
    ),
    "all-to-all": (
        "all_to_all",
        "[s/tp] h d -> s [h/tp] d",
        [own(device) for device in DEVICES],
        [[Cell(owner, part) for owner in DEVICES] for part in "0123"],
    ),
    "ppermute": (
        "ppermute",
        "[s/sp] d, shift=1",
        [[Cell(device)] for device in DEVICES],
        [[Cell((device - 1) % 4)] for device in DEVICES],
    ),
}


def moved(name: str, pattern: str, before: Sequence[Sequence[Cell]], after: Sequence[Sequence[Cell]]) -> str:
    """A row for each of four devices: what it holds before, and after."""
    wide = [max(map(len, cells)) for cells in (before, after)]
    right = LEFT + CELL * wide[0] + GAP
    body = [text(0, 12, f"{name}  {pattern}", weight="bold"), text(0, 34, "device")]
    for device in DEVICES:
        y = TOP + device * (CELL + 6)
        body.append(text(10, y + CELL / 2, str(device)))
        for x, cells in ((LEFT, before[device]), (right, after[device])):
            body += [drawn(x + at * CELL, y, cell) for at, cell in enumerate(cells)]
        if device == 1:
            middle, start = y + CELL + 3, right - GAP + 8
            head = f"M{start} {middle}H{right - 10}m-6 -5l6 5l-6 5"
            body.append(f'<path d="{head}" fill="none" stroke="#1f2328" stroke-width="1.5"/>')
    width = max(right + CELL * wide[1], round(7.3 * len(f"{name}  {pattern}")))
    return svg(
        width + 20, TOP + 4 * (CELL + 6) + 10, f"{name}, {pattern}: what four devices hold before and after", body
    )


def drawn(x: float, y: float, cell: Cell) -> str:
    fill = NEUTRAL[0] if cell.owner is None else OWNERS[cell.owner]
    label = ("sum" if not cell.part else "Σ") if cell.owner is None else "abcd"[cell.owner]
    corner = f'x="{x + 1}" y="{y}" width="{CELL - 2}" height="{CELL}"'
    return f'<rect {corner} rx="3" fill="{fill}"/>' + text(
        x + CELL / 2, y + CELL / 2, f"{label}{cell.part}", ink(fill), "middle"
    )


def text(x: float, y: float, words: str, fill: str = "#1f2328", anchor: str = "start", weight: str = "normal") -> str:
    place = f'x="{x}" y="{y}" text-anchor="{anchor}" dominant-baseline="central"'
    return f'<text {place} fill="{fill}" font-weight="{weight}" xml:space="preserve">{escape(words)}</text>'


def svg(width: float, height: float, label: str, body: Sequence[str]) -> str:
    """A drawing on a white ground, which a dark page shows, too."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 -10 {width + 10} {height + 10}" width="{width + 10}" '
        f'role="img" aria-label="{escape(label, quote=True)}" font-family="ui-monospace,Menlo,Consolas,monospace" '
        f'font-size="12"><rect x="-10" y="-10" width="100%" height="100%" fill="#ffffff"/>{"".join(body)}</svg>\n'
    )


# Explain: the page of its first program


@typed_shard_map
def mlp(
    x: Float32[Array, "[batch/dp] seq model"],
    up: Float32[Array, "[model/dp] [ff/tp]"],
    down: Float32[Array, "[ff/tp] [model/dp]"],
) -> Float32[Array, "[batch/dp] seq model"]:
    up = all_gather(up, "[m/dp] [f/tp] -> m [f/tp] ~dp")
    down = all_gather(down, "[f/tp] [m/dp] -> [f/tp] m ~dp")
    h = jax.nn.relu(einsum(x, up, "[b/dp] s m, m [f/tp] -> [b/dp] s [f/tp]"))
    return einsum(h, down, "[b/dp] s [f/tp], [f/tp] m -> [b/dp] s m")


def explained() -> str:
    meshes = ["dp=512,tp=1", "dp=64,tp=8", "dp=8,tp=64"]
    sizes = {"batch": 512, "seq": 2048, "model": 4096, "ff": 16384}
    return explain(mlp, meshes=meshes, hardware="v5p", **sizes).html + "\n"


@typed_shard_map
def gathered_mlp(
    x: Float32[Array, "[batch/fsdp] [model/tp]"],
    up: Float32[Array, "[model/fsdp] [ff/tp]"],
    down: Float32[Array, "[ff/tp] [model/fsdp]"],
) -> Float32[Array, "[batch/fsdp] [model/tp]"]:
    x = all_gather(x, "[b/fsdp] [m/tp] -> [b/fsdp] m")
    h = jax.nn.relu(x @ all_gather(up, "[m/fsdp] [f/tp] -> m [f/tp] ~fsdp"))
    return psum_scatter(h @ all_gather(down, "[f/tp] [m/fsdp] -> [f/tp] m ~fsdp"), "[b/fsdp] m +tp -> [b/fsdp] [m/tp]")


def chosen() -> str:
    """The page of the first choice on the page "Will it fit?"."""
    return choose_mesh(gathered_mlp, devices=64, hardware="v5e", batch=2**15, model=24576, ff=98304).html + "\n"


# Gradients and degrees: a sum of means, and a mean of means

STEPS = [("x", 24, 62, "0"), ("mean of rows", 96, 112, "1"), ("psum", 218, 70, "1"), ("pmean", 298, 70, "0")]


def degrees() -> str:
    """What four shards hold of the mean of all rows, step by step, and its degree."""
    body = []
    for title, x, wide, degree in STEPS:
        body += [text(x + wide / 2, 8, title, anchor="middle", weight="bold")]
        body += [text(x + wide / 2, 172, degree, anchor="middle", weight="bold")]
        for shard in DEVICES:
            a, b = f"x{2 * shard}", f"x{2 * shard + 1}"
            label = {"x": f"{a} {b}", "mean of rows": f"({a} + {b}) / 2", "psum": "4 m", "pmean": "m"}[title]
            fill = OWNERS[shard] if title in ("x", "mean of rows") else NEUTRAL[0]
            corner = f'x="{x}" y="{24 + 34 * shard}" width="{wide}" height="28"'
            body.append(f'<rect {corner} rx="3" fill="{fill}"/>')
            body.append(text(x + wide / 2, 38 + 34 * shard, label, ink(fill), "middle"))
    body += [text(0, 38 + 34 * shard, str(shard)) for shard in DEVICES]
    legend = ["0 to 3: the shards of dp; m: the mean of all rows", "k, the degree: on n shards it is n**k times m"]
    body += [text(0, 198 + 18 * at, words) for at, words in enumerate(legend)]
    body.append(text(0, 172, "k"))
    return svg(380, 226, "A psum of the means of four shards is four times their mean", body)


FIGURES: dict[str, Callable[[], str]] = {
    "layer.svg": picture,
    **{
        f"product-{name}.svg": lambda at=at: shown(Product, "x=4,y=2", at, m=8, k=16, n=4)
        for at, name in enumerate(Product._fields)
    },
    "sharded.svg": lambda: shown(Float[Array, "[batch/dp] model"], batch=8, model=16),
    "sharded-twice.svg": lambda: shown(Float[Array, "[batch/dp,tp] model"], batch=8, model=16),
    "sharded-both.svg": lambda: shown(Float[Array, "[batch/dp] [model/tp]"], batch=8, model=16),
    "columns.svg": lambda: shown(Float[Array, "model [ff/tp]"], model=8, ff=32),
    "unreduced.svg": lambda: shown(Float[Array, "[batch/dp] model +tp"], batch=8, model=16),
    **{
        f"weights-{name}.svg": lambda at=at: shown(Weights, MESH, at, vocab=256, model=16, ff=64, layers=3)
        for at, name in enumerate(("embed", "up", "down"))
    },
    **{f"{name}.svg": lambda given=given: moved(*given) for name, given in COLLECTIVES.items()},
    "degrees.svg": degrees,
    "explain.html": explained,
    "fit.html": chosen,
}


if __name__ == "__main__":
    for name, make in FIGURES.items():
        path, made = ASSETS / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != made:
            print(f"{'written' if '--write' in sys.argv else 'differs'}: {path.relative_to(Path.cwd())}")
            if "--write" in sys.argv:
                path.write_text(made, encoding="utf-8")
