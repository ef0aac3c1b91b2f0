"""Types find the wrong programs of the tables and are silent on right ones, but for those that `expected.txt` lists.

After a change of what is found: ``python tests/degrees/score.py --write``, and review the difference. After a change
of a program: ``python tests/degrees/deciding.py``, which runs it.
"""

import families  # noqa: F401 (fills the registry)
import jax
import pytest
from deciding import decide, read_decided
from edits import parse_cures
from reading import messages_of
from registry import REGISTRY
from score import read_expected, rows_of, unexpected

FAMILIES = sorted({program.family for program in REGISTRY.values()})


def test_every_program_was_decided_as_it_stands() -> None:
    decided = {name: row.digest for name, row in read_decided().items()}
    assert decided == {name: program.digest for name, program in REGISTRY.items()}


@pytest.mark.parametrize("verdict", ["right", "wrong"])
def test_there_are_hundreds_of_programs_of_either_kind(verdict: str) -> None:
    for check_vma in (False, True):
        assert sum(row.verdict(check_vma) == verdict for row in read_decided().values()) >= 400


def test_what_is_missed_and_what_is_suspected_is_of_programs_that_there_are() -> None:
    named = {line.split(maxsplit=1)[1].partition(": ")[0] for line in read_expected()}
    assert named <= set(FAMILIES)


def expect_as_expected(family: str, is_quick: bool) -> None:
    rows = list(rows_of((program for program in REGISTRY.values() if program.family == family), is_quick))
    found, labels = unexpected(rows), {row.label for row in rows}
    expected = {line for line in read_expected() if line.split(maxsplit=1)[1] in labels}
    assert found <= expected
    if jax.__version__.startswith("0.10."):  # on which they are written down; others may find more
        assert found == expected


@pytest.mark.usefixtures("without_cures")
@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_programs_are_found_and_right_ones_are_not_suspected(family: str) -> None:
    expect_as_expected(family, is_quick=True)


@pytest.mark.slow
@pytest.mark.usefixtures("without_cures")
@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_programs_are_found_and_right_ones_are_not_suspected_whatever_the_constants(family: str) -> None:
    expect_as_expected(family, is_quick=False)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["double_sums", "norms", "tensor_parallel"])
def test_of_some_wrong_programs_a_cure_is_named(family: str) -> None:
    decided = read_decided()
    wrong = [each for each in REGISTRY.values() if each.family == family and decided[each.name].plain == "wrong"]
    messages = [message for program in wrong for message in messages_of(program, False, program.constants[0])]
    assert any(map(parse_cures, messages))


# Random numbers first, of which others are right on each mesh: that row is in CI.
@pytest.mark.slow
@pytest.mark.parametrize("family", ["draws", *(family for family in FAMILIES if family != "draws")])
def test_some_programs_are_what_was_decided(family: str) -> None:  # `deciding.py --all` runs all of them
    programs = [program for program in REGISTRY.values() if program.family == family][::20]
    decided = read_decided()
    got = {program.name: (decide(program, False), decide(program, True)) for program in programs}
    assert got == {name: (decided[name].plain, decided[name].typed) for name in got}
