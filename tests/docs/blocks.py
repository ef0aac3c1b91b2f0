"""Code blocks of a Markdown file, run one after the other in one namespace.

A ``text`` block after a ``python`` block is what the code prints, or the error that ends it, whole.
``python tests/docs/blocks.py FILE ...`` writes those blocks anew; the difference is then reviewed.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import jax

from typedshmap import SuspectWarning

ROOT = Path(__file__).parents[2]
FILE = "example.py"
"""What a block's code is called in messages."""

_FENCE = re.compile(r"^```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A python block, with the text block after it and that block's place in the file."""

    heading: str
    line: int
    code: str
    expected: str | None
    place: tuple[int, int] | None


def blocks(source: str) -> Iterator[Block]:
    """The python blocks of a Markdown text."""
    fences = list(_FENCE.finditer(source))
    for fence, following in zip_longest(fences, fences[1:]):
        if fence["kind"] != "python":
            continue
        is_next = following is not None and following["kind"] == "text"
        is_next = is_next and not source[fence.end() : following.start()].strip()
        headings = re.findall(r"^#+ (.*)$", source[: fence.start()], re.MULTILINE)
        line = source.count("\n", 0, fence.start()) + 2
        expected = following["text"].rstrip("\n") if is_next else None
        place = (following.start("text"), following.end("text")) if is_next else None
        yield Block(headings[-1] if headings else "", line, fence["text"], expected, place)


def run(block: Block, namespace: dict[str, object]) -> str:
    """What a block prints, or the error that ends it; notes of ours included."""
    # Lines are those of the block, for who reads the page, and for whoever writes another block above.
    linecache.cache[FILE] = (len(block.code), None, block.code.splitlines(keepends=True), FILE)
    code = compile(block.code, FILE, "exec", dont_inherit=True)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
    except Exception as error:
        if block.expected is None:
            raise
        notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("typedshmap: ")]
        return "\n".join([f"{type(error).__name__}: {error}", *notes])
    return printed.getvalue().rstrip("\n")


def outputs(path: Path) -> list[tuple[Block, str]]:
    """The python blocks of a file, each with what it gives; the mesh that they set is set for them alone."""
    namespace: dict[str, object] = {"__name__": path.stem}
    try:
        return [(block, run(block, namespace)) for block in blocks(path.read_text(encoding="utf-8"))]
    finally:
        jax.set_mesh(None)


def rewritten(path: Path) -> str:
    """A file with its text blocks made anew."""
    source, pieces, done = path.read_text(encoding="utf-8"), [], 0
    for block, output in outputs(path):
        if block.place is not None:
            pieces += [source[done : block.place[0]], output + "\n"]
            done = block.place[1]
    return "".join(pieces) + source[done:]


if __name__ == "__main__":
    warnings.simplefilter("error", SuspectWarning)  # as in tests
    for argument in sys.argv[1:]:
        Path(argument).write_text(rewritten(Path(argument)), encoding="utf-8")
