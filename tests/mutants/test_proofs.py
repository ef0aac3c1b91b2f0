"""Verdicts: right programs that are proved, and those of which something is not known; wrong ones never are proved."""

from typing import Any

import pytest
from catalogue import MUTANTS, proofs, verdict, verdict_on
from mutation import Program, function_of
from tiers import slow
from wrong import Mutant

from typedshmap import TypedShmapError
from typedshmap.testing import prove
from typedshmap.testing.proving import proof

pytestmark = pytest.mark.usefixtures("without_cures")
PROGRAMS = {mutant.program.name: mutant.program for mutant in MUTANTS}


@pytest.fixture
def is_run(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions that are run in search of a mesh on which they are wrong; none of them is."""
    found = list[Any]()
    monkeypatch.setattr(proof, "assert_mesh_invariant", lambda function, **_: found.append(function))
    return found


# The quickstart's takes long.
RIGHT = [
    slow(row) if row.id.startswith("quickstart") else row
    for row in (pytest.param(each, id=name) for name, each in PROGRAMS.items())
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("program", RIGHT)
def test_a_right_program_is_proved_or_it_says_what_is_not_known(program: Program) -> None:
    assert verdict(program) == proofs()[program.name]


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, id=each.id) for each in MUTANTS],
)
def test_no_wrong_program_is_proved(mutant: Mutant, is_run: list[Any]) -> None:
    for check_vma in mutant.check_vma:
        function = function_of(mutant.program, (mutant.old, mutant.new), check_vma=check_vma)
        try:
            found = prove(function, grad=mutant.grad)
        except TypedShmapError:
            assert mutant.found_by != "mesh" and proofs()[mutant.id] == "refused"
            continue
        assert found.verdict == "unknown" and proofs()[mutant.id] != "proved"  # where it is run, JAX may refuse it
        assert is_run.pop() is function


def one_of_each_program(mutants: list[Mutant]) -> list[Mutant]:
    return list({mutant.program.name: mutant for mutant in mutants if mutant.found_by == "mesh"}.values())


@pytest.mark.usefixtures("without_first_differences")
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.id) if each.id[0] == "N" else slow(pytest.param(each, id=each.id))
        for each in one_of_each_program(list(MUTANTS))
    ],
)
def test_what_other_meshes_show_to_be_wrong_is_refuted(mutant: Mutant) -> None:
    assert verdict_on(mutant) == proofs()[mutant.id] == "refuted"


def test_all_but_one_that_only_other_meshes_show_to_be_wrong_were_refuted() -> None:
    """Of that one JAX refuses to compile the sends on an even number of shards."""
    found = {mutant.id: proofs()[mutant.id] for mutant in MUTANTS if mutant.found_by == "mesh"}
    not_refuted = {name: verdict for name, verdict in found.items() if verdict != "refuted"}
    assert not_refuted == {"P11": "unknown: it depends on the index of the shard"}
