"""What the text of a function says of shapes."""

from __future__ import annotations

import linecache

import pytest

from typedshmap.annotating.notes import FunctionSource, ShapeNote

COMMENTS = {
    "x [B, T, D]": ("B", "T", "D"),
    "x: [batch, seq, model]": ("batch", "seq", "model"),
    "(batch, seq)": ("batch", "seq"),
    "shape (batch, 3)": ("batch", None),
    "f32[b/dp, s, h/tp]": ("b", "s", "h"),
    "x is bf16[n]": ("n",),
    "[..., d]": ("...", "d"),
    "[2*d, d]": (None, "d"),
    "y [b, d]": None,
    "what is loaded (see above)": None,
    "type: ignore[index]": None,
    "typedshmap: ignore[varying]": None,
    "list[int]": None,
    "TODO(someone): 3, 4": None,
    "see [1]": None,
}
BODIES = {
    "b, s = x.shape": ("b", "s"),
    "b, _, *rest = x.shape": ("b", None, "..."),
    "local_b, s_local = x.shape": ("b", "s"),
    "b, s = x.shape[:2]": ("b", "s", "..."),
    "h, d = x.shape[-2:]": ("...", "h", "d"),
    "s = x.shape[1]": (None, "s", "..."),
    "d = x.shape[-1]": ("...", "d"),
    "b, d = x.shape[0], x.shape[-1]": ("b", "..."),
    "h = jnp.einsum('bsd,df->bsf', x, w)": ("b", "s", "d"),
    "h = rearrange(x, 'b (h w) c -> b h w c', h=2)": ("b", None, "c"),
    "b, s = shape_of(x)": None,
}


def all_notes(text: str) -> list[ShapeNote]:
    linecache.cache["<notes>"] = (len(text), None, text.splitlines(keepends=True), "<notes>")
    source = FunctionSource.at("<notes>", 1)
    assert source is not None
    return list(source.shape_notes())


def notes(text: str) -> list[ShapeNote]:
    return [note for note in all_notes(text) if note.path == "x"]


@pytest.mark.parametrize(("comment", "words"), COMMENTS.items(), ids=list(COMMENTS))
def test_the_comment_of_a_parameter(comment: str, words: tuple[str | None, ...] | None) -> None:
    found = notes(f"def f(\n    x,  # {comment}\n    y,\n): ...\n")
    assert [note.words for note in found] == ([] if words is None else [words])
    assert all(note.is_stated and note.lines == (0, 0) for note in found)


@pytest.mark.parametrize("where", ["def f(x):  # [b, d]", "# x: [b, d]\n    pass"])
def test_comments_beside_and_below_the_head(where: str) -> None:
    text = f"{where}\n    return x\n" if where.startswith("def") else f"def f(x, y):\n    {where}\n    return x\n"
    assert notes(text)[0].words == ("b", "d")


@pytest.mark.parametrize(("statement", "words"), BODIES.items(), ids=list(BODIES))
def test_names_of_sizes_and_patterns(statement: str, words: tuple[str | None, ...] | None) -> None:
    found = notes(f"def f(x, w):\n    {statement}\n")
    assert [note.words for note in found][:1] == ([] if words is None else [words])
    assert not any(note.is_stated for note in found)


def test_a_comment_on_a_statement_is_of_the_value_that_it_makes() -> None:
    source = "def f(y):\n    x = g(\n        y,\n    )  # [b, d]\n    # [b, f]\n    x = x @ y\n    return x\n"
    assert [(note.words, note.path, note.lines) for note in all_notes(source)] == [
        (("b", "d"), "", (2, 4)),
        (("b", "f"), "", (6, 6)),
    ]


def test_what_cannot_be_read_has_no_source() -> None:
    assert FunctionSource.at("<string>", 1) is None
