"""On how many chips the 8B transformer of the examples fits, on which mesh, and how long a step takes at the least.

python bench/fit.py            prints the tables of docs/fit.md, in a minute or two
python bench/fit.py v5p        some of them, by the kind of chip
python bench/fit.py --write    writes them into docs/fit.md"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typedshmap import choose_mesh
from typedshmap.errors.phrases import mesh_text
from typedshmap.tools.explain import Choice
from typedshmap.tools.explain.model import bytes_text, seconds_text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))
transformer = importlib.import_module("transformer")

PAGE = ROOT / "docs" / "fit.md"
BATCH, SEQ = 512, 8192
CHIPS = {
    "v5p": (64, 128, 256, 512, 1024, 2048, 4096),
    "v6e": (64, 256, 1024, 4096),
    "v5e": (64, 256, 1024, 4096),
    "h100": (64, 256, 1024, 4096),
}
HEADINGS = ("chips", "meshes that fit", "the best", "peak memory", "a step takes", "bound", "of the peak at most")


def choice(hardware: str, chips: int) -> Choice:
    """All meshes of so many chips, with 4 million tokens in a step."""
    sizes: dict[str, Any] = {"batch": BATCH, "seq": SEQ, **transformer.LLAMA_8B}
    return choose_mesh(transformer.train_step, devices=chips, hardware=hardware, **sizes)


def row(found: Choice) -> tuple[str, ...]:
    """A row of the table: the best mesh, or the one that needs the least memory."""
    one = found.best or next((one for one in found.refused if one.explanation), None)
    fit = f"{len(found.ranked)} of {len(found.ranked) + len(found.refused)}"
    if one is None or one.explanation is None or one.explanation.time is None:
        return (f"{found.devices:,}", fit, "none divides", *[""] * 4)
    time, mesh, peak = one.explanation.time, mesh_text(one.mesh.items()), one.explanation.memory.peak
    if found.best is None:
        return (f"{found.devices:,}", fit, f"none; {mesh} needs", bytes_text(peak), *[""] * 3)
    span = f"{seconds_text(time.overlapped)} to {seconds_text(time.serial)}"
    return (f"{found.devices:,}", fit, mesh, bytes_text(peak), span, time.bound, f"{time.utilization:.0%}")


def table(hardware: str) -> Iterator[str]:
    """The lines of a table in Markdown."""
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|--:|--:|---|--:|--:|---|--:|"
    for chips in CHIPS[hardware]:
        yield f"| {' | '.join(row(choice(hardware, chips)))} |"


def with_table(page: str, hardware: str, lines: str) -> str:
    """A page with another table after the comment that names the chip."""
    return re.sub(rf"(<!-- {hardware} -->\n\n)(?:\|.*\n)+", lambda found: f"{found[1]}{lines}\n", page)


if __name__ == "__main__":
    named = [name for name in sys.argv[1:] if name in CHIPS] or list(CHIPS)
    for name in named:
        lines = list[str]()
        print(f"\n{name}\n")
        for line in table(name):
            print(line, flush=True)
            lines.append(line)
        if "--write" in sys.argv:
            PAGE.write_text(with_table(PAGE.read_text(), name, "\n".join(lines)))
