"""Edits that cures ask for: what they make of a source, and of a program."""

from textwrap import dedent

import families  # noqa: F401 (fills the registry)
import pytest
from deciding import decide
from edits import Around, Divided, Edit, InPlaceOf, LeftOut, NotFollowedError, Placed, apply_cure, parse_cures
from follow import outcome
from registry import REGISTRY

SOURCE = dedent("""\
    def f(x, w):
        y = x @ w
        g, h = lax.psum((y, w), ("dp", "tp"))
        def inner(z):
            return jnp.tanh(
                lax.psum(lax.psum(z, "dp") + 1, "dp")
            )
        return inner(g), h
    """)

EDITS: list[tuple[int, Edit, str]] = [
    (2, Around("psum", ("dp",)), "    y = lax.psum(x @ w, 'dp')"),
    (2, Around("pmean", ("dp", "tp")), "    y = lax.pmean(x @ w, ('dp', 'tp'))"),
    (2, Divided(("dp",)), "    y = jax.tree.map(lambda _: _ / lax.axis_size('dp'), x @ w)"),
    (3, InPlaceOf("pmean", ("tp",), "psum"), "    g, h = lax.pmean((y, w), 'tp')"),
    (3, InPlaceOf("pmean", ("tp",), "psum", ("tp",)), "    g, h = lax.pmean(lax.psum((y, w), 'dp'), 'tp')"),
    (3, LeftOut("psum", ("tp",)), "    g, h = lax.psum((y, w), 'dp')"),
    (3, LeftOut("psum", ("dp", "tp")), "    g, h = ((y, w))"),
    (6, LeftOut("psum", ("dp",)), "            ((z) + 1)"),
    (2, Around("pmax", ("dp",), "x @ w", True), "    y = lax.pmax(lax.stop_gradient(x @ w), 'dp')"),
    (8, Around("psum", ("dp",)), "    return lax.psum((inner(g), h), 'dp')"),
]


@pytest.mark.parametrize("line, edit, expected", EDITS)
def test_an_edit_changes_its_line(line: int, edit: Edit, expected: str) -> None:
    lines = SOURCE.splitlines()
    lines[line - 1] = expected
    assert apply_cure(SOURCE, line, edit).splitlines() == lines


def test_a_collective_that_does_not_stand_at_the_line_is_not_replaced() -> None:
    with pytest.raises(NotFollowedError, match="line 2 calls no psum"):
        apply_cure(SOURCE, 2, LeftOut("psum", ("dp",)))


CURES = {
    "Hint: psum over 'dp' at a.py:40": [[Placed(Around("psum", ("dp",)), "a.py", 40)]],
    "Hint: pmax over 'dp' of stop_gradient(x.max(-1)) at a.py:40": [
        [Placed(Around("pmax", ("dp",), "x.max(-1)", True), "a.py", 40)]
    ],
    "Hint: pmax over 'dp' of its stop_gradient at a.py:40": [
        [Placed(Around("pmax", ("dp",), is_stopped=True), "a.py", 40)]
    ],
    "Hint: pmean over 'dp' in the place of psum at a.py:41": [
        [Placed(InPlaceOf("pmean", ("dp",), "psum"), "a.py", 41)]
    ],
    "Hint: pmean over 'dp' in the place of psum over 'dp' at a.py:41": [
        [Placed(InPlaceOf("pmean", ("dp",), "psum", ("dp",)), "a.py", 41)]
    ],
    "Hint: leave out the psum over 'dp', 'tp' at a.py:41": [[Placed(LeftOut("psum", ("dp", "tp")), "a.py", 41)]],
    "Hint: divide the value by the size of 'dp' at a.py:41, or pmean over 'dp' at b.py:2": [
        [Placed(Divided(("dp",)), "a.py", 41)],
        [Placed(Around("pmean", ("dp",)), "b.py", 2)],
    ],
    "Hint: the contraction over heads (sharded over 'tp') leaves partial sums": [],
}


@pytest.mark.parametrize("hint", CURES)
def test_cures_are_read(hint: str) -> None:
    assert parse_cures(f"wrong\n\nAt: a.py:41\n{hint}") == CURES[hint]


def place_of(name: str, text: str) -> tuple[str, int]:
    program = REGISTRY[name]
    line = next(at for at, line in enumerate(program.source.splitlines()) if text in line)
    return f"{program.family}.py", program.function.__code__.co_firstlineno + line


FOLLOWED = [
    ("psum of own means", "    return", InPlaceOf("pmean", ("dp",), "psum"), "right"),
    ("psum of a pmean", "    return", LeftOut("psum", ("dp",)), "right"),
    ("psum of a pmean", "    return", Divided(("dp",)), "right"),
    ("psum of own means", "    return", LeftOut("psum", ("dp",)), "wrong and found"),
    ("parts returned without a psum", "    return", Around("psum", ("tp",)), "right"),
    ("parts returned without a psum", "    return", Around("pmax", ("tp",)), "wrong and found"),
    ("psum of own means", "def", Divided(("dp",)), "cannot be followed"),
]


@pytest.mark.parametrize("name, text, edit, expected", FOLLOWED)
def test_what_comes_of_a_cure_is_decided_by_running(name: str, text: str, edit: Edit, expected: str) -> None:
    cure = [Placed(edit, *place_of(name, text))]
    came = outcome(REGISTRY[name], False, cure)
    assert came == expected or {came, expected} == {"wrong and found", "wrong and accepted"}


def test_a_cure_has_to_give_what_the_program_gives_on_one_device() -> None:
    program, other = REGISTRY["psum of a psum"], REGISTRY["psum of own means"]
    assert decide(other, False, program) == "wrong"
