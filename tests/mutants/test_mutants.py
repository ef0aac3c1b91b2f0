"""Every mutant is found, by whom the table says, and told in a first line that is worth reading."""

import re
from itertools import groupby

import pytest
from catalogue import MUTANTS, said, told
from trying import found_wrong, first_line
from wrong import Mutant

from typedshmap import TypedShmapError

CASES = [pytest.param(m, v, id=f"{m.id}-{'checked' if v else 'unchecked'}") for m in MUTANTS for v in m.check_vma]
FOUND_BY = {"types": TypedShmapError, "mesh": AssertionError, "JAX": Exception}


@pytest.mark.parametrize(("mutant", "check_vma"), CASES)
def test_a_mutant_is_found_and_told(mutant: Mutant, check_vma: bool) -> None:
    error = found_wrong(mutant, check_vma)
    assert isinstance(error, FOUND_BY[mutant.found_by]), f"not found: {mutant}" if error is None else error
    assert told(first_line(error)) == said(mutant, check_vma)
    if mutant.found_by == "JAX":
        assert any(note.startswith("typedshmap: in ") for note in error.__notes__)


def test_there_are_forty_mutants_and_more_of_nine_programs() -> None:
    ids = [mutant.id for mutant in MUTANTS]
    assert len(set(ids)) == len(ids) >= 40
    letters = [re.sub(r"\d", "", id) for id in ids]
    assert [letter for letter, _ in groupby(letters)] == list("DTAEXPHFQ")


def test_the_numbers_of_the_programs_that_jax_accepts_silently_all_appear() -> None:
    kinds = {mutant.kind for mutant in MUTANTS}
    assert {"K6", "K7", "K8", "K14", "K17", "K21", "K22", "K25", "K27"} <= kinds
