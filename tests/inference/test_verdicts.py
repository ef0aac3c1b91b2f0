"""The same verdict on every program of the table, with ``check_vma`` and without."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from right_and_wrong import RIGHT, WRONG
from tables import refuse, typed_form

from typedshmap import TypedShmapError


def one_device() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("dp", "tp"))


in_both_modes = pytest.mark.parametrize("check_vma", [True, False])


def test_there_are_sixty_programs_and_more() -> None:
    assert len(RIGHT) + len(WRONG) >= 60
    assert min(len(RIGHT), len(WRONG)) >= 30


@pytest.mark.sample(5)
@in_both_modes
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_accepted_and_is_right(name: str, check_vma: bool, mesh: Mesh) -> None:
    program = RIGHT[name]
    on_eight = jax.block_until_ready(typed_form(program, mesh, check_vma)(*program.args))
    on_one = jax.block_until_ready(typed_form(program, one_device(), check_vma)(*program.args))
    np.testing.assert_allclose(on_eight, on_one, rtol=2e-5, atol=2e-5)


@in_both_modes
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_refused(name: str, check_vma: bool, mesh: Mesh) -> None:
    refuse(TypedShmapError, WRONG[name], mesh, check_vma)
