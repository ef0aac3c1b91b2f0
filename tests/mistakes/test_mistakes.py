"""What is reported of mistakes in right programs, and what its cures make of them, is as `outcomes.txt` has it.

After a change of what is found or cured, or of a program: ``python tests/mistakes/mistaken.py``, and review the
difference.
"""

from pathlib import Path

import jax
import pytest
from mistaken import Program, decided, digest_of, label_of, messages, outcome, programs, read_outcomes

PROGRAMS = {program.name: program for program in programs()}
MISTAKES = {
    label_of(program, at): (program, *mistake)
    for program in PROGRAMS.values()
    for at, mistake in enumerate(program.mistakes)
}
ROWS = read_outcomes()
CURED = [row for row in ROWS.values() if row.cured and row.decided != "right"]


def test_every_mistake_was_tried_as_it_stands() -> None:
    assert {label: digest_of(*mistake) for label, mistake in MISTAKES.items()} == {
        label: row.digest for label, row in ROWS.items()
    }


def test_no_cure_makes_a_program_accepted_and_wrong() -> None:
    assert [row.label for row in CURED if row.cured == "wrong"] == []


def test_what_is_done_to_the_letter_is_right_for_nearly_all_cures() -> None:
    named = [row for row in ROWS.values() if row.says not in ("silent", "no cure", "JAX") and row.decided != "right"]
    right = [row for row in named if row.cured == "right"]
    assert len(right) >= 0.95 * len(named)


def test_most_mistakes_are_found_and_most_of_these_cured() -> None:
    wrong = [row for row in ROWS.values() if row.decided == "wrong" and row.says != "JAX"]
    found = [row for row in wrong if row.says != "silent"]
    assert len(found) >= 0.95 * len(wrong)
    assert sum(row.cured == "right" for row in found) >= 0.85 * len(found)


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", PROGRAMS)
def test_of_a_right_program_nothing_is_reported(name: str, tmp_path: Path) -> None:
    assert messages(PROGRAMS[name], PROGRAMS[name].text, tmp_path)[0] == []


@pytest.mark.sample(24)
@pytest.mark.parametrize("label", MISTAKES)
def test_what_is_reported_of_a_mistake(label: str, tmp_path: Path) -> None:
    says, names_line, _ = outcome(*MISTAKES[label], tmp_path)
    if jax.__version__.startswith("0.10.") or ROWS[label].says != "JAX":  # which refuses another choice of programs
        assert (says, names_line) == (ROWS[label].says, ROWS[label].names_line)


@pytest.mark.slow
@pytest.mark.parametrize("label", MISTAKES)
def test_mistakes_and_cures_are_what_was_decided(label: str, tmp_path: Path) -> None:
    program, old, new = MISTAKES[label]
    accepted = outcome(program, old, new, tmp_path).accepted
    assert decided(program, old, new, accepted, tmp_path) == (ROWS[label].decided, ROWS[label].cured)


def test_a_wrong_cure_is_decided_to_be_wrong(tmp_path: Path) -> None:
    program: Program = PROGRAMS["sgd_plain"]
    assert decided(program, *program.mistakes[0], program.wrong(*program.mistakes[1]), tmp_path) == ("wrong", "wrong")
