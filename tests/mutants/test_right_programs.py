"""The right programs: their numbers, and that neither types nor meshes find fault with them."""

import pytest
from classics import CLASSICS, QUICKSTART
from mutation import Program, function_of, module_of
from oracles import ORACLES
from trying import called, close

from typedshmap.testing import assert_mesh_invariant

UNCHECKED = tuple(program for program in CLASSICS if program.unchecked)


def name_of(program: Program) -> str:
    return program.name.replace(" ", "-").replace(",", "")


@pytest.mark.sample(3)
@pytest.mark.parametrize("program", CLASSICS[:-2], ids=name_of)  # without the quickstart's
def test_a_right_program_computes_what_its_oracle_does(program: Program) -> None:
    got, args = called(program, function_of(program), program.meshes[-1])
    close(got, ORACLES[program.function](*args))


@pytest.mark.slow
def test_the_quickstart_computes_what_its_plain_jax_does() -> None:
    module = module_of(QUICKSTART)
    got, args = called(QUICKSTART, module.loss_and_gradients, QUICKSTART.meshes[-1])
    close(got, module.plain_loss_and_gradients(*args))


@pytest.mark.sample(8)
@pytest.mark.parametrize("program", CLASSICS, ids=name_of)
def test_a_right_program_is_the_same_on_every_mesh(program: Program) -> None:
    found = assert_mesh_invariant(
        function_of(program), list(program.meshes), grad=program.grad, trials=1, **program.given
    )
    assert len(found.meshes) == 1 + len(program.meshes)


@pytest.mark.sample(8)
@pytest.mark.parametrize("program", UNCHECKED, ids=name_of)
def test_a_right_program_is_the_same_on_every_mesh_without_types(program: Program) -> None:
    function = function_of(program, check_vma=False)
    assert_mesh_invariant(function, list(program.meshes), trials=1, seed=1, **program.given)
