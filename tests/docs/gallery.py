"""The messages of the page of errors, and the others beside it: those of a body, and those of hints and calls."""

from blocks import ROOT, Block, blocks

PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
OTHERS = (ROOT / "tests/docs/gallery.md").read_text(encoding="utf-8")
BEGINNING = next(blocks(PAGE)).code


def between(text: str, start: str, end: str) -> str:
    return text[text.index(start) : text.index(end)]


_BODIES = [
    between(PAGE, "## In the body", "## Hints, meshes and arguments"),
    between(OTHERS, "## Inside the body", "## Marks at a boundary"),
]


def programs(text: str) -> dict[str, Block]:
    return {block.heading: block for block in blocks(text)}


OF_BODIES = programs("".join(_BODIES))
OF_CALLS = programs(PAGE.replace(_BODIES[0], "") + OTHERS.replace(_BODIES[1], ""))
