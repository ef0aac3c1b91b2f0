"""Repairs of mutants: each that is written down makes the program right, and is found again."""

from functools import cache

import jax
import pytest
from catalogue import MUTANTS, WRONG_ON_ONE_DEVICE
from mutation import Program, function_of
from repaired import FIXES, NONE, loaded, repaired, text_with, written
from tiers import slow
from trying import called, close
from wrong import Mutant

pytestmark = pytest.mark.once

LINES = dict(line.split(": ", 1) for line in FIXES.read_text(encoding="utf-8").splitlines())
FOUND = [mutant for mutant in MUTANTS if LINES[mutant.id] != NONE and mutant.id not in WRONG_ON_ONE_DEVICE]
# One of each kind of edit, of small programs.
QUICK = {"T1", "T3", "T6"}


def test_as_many_are_repaired_as_the_documentation_says() -> None:
    assert LINES.keys() == {mutant.id for mutant in MUTANTS}
    assert len(FOUND) == 105


@cache
def right(program: Program) -> object:
    return called(program, function_of(program), program.meshes[-1])[0]


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, id=each.id) if each.id in QUICK else slow(pytest.param(each, id=each.id)) for each in FOUND],
)
def test_a_repaired_mutant_is_the_right_program(mutant: Mutant) -> None:
    got, _ = called(
        mutant.program, loaded(mutant.program, text_with(mutant, LINES[mutant.id])), mutant.program.meshes[-1]
    )
    close(jax.tree.leaves(got), jax.tree.leaves(right(mutant.program)))


@pytest.mark.parametrize("name", ["T3", *[slow(pytest.param(each, id=each)) for each in ("T6", "X4", "F3")]])
def test_the_repair_is_found(name: str) -> None:
    mutant = next(each for each in MUTANTS if each.id == name)
    assert written(mutant, repaired(mutant, 120)) == LINES[name]
