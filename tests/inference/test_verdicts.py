"""The same verdict on every program of the table, with ``check_vma`` and without."""

import pytest
from jax.sharding import Mesh
from right_and_wrong import RIGHT, WRONG
from tables import expect_right, in_modes, refuse

from typedshmap import TypedShmapError


@pytest.mark.sample(8)
@in_modes(RIGHT)
def test_a_right_program_is_accepted_and_is_right(name: str, check_vma: bool, mesh: Mesh) -> None:
    expect_right(RIGHT[name], mesh, check_vma)


@pytest.mark.usefixtures("without_cures")
@in_modes(WRONG)
def test_a_wrong_program_is_refused(name: str, check_vma: bool, mesh: Mesh) -> None:
    refuse(TypedShmapError, WRONG[name], mesh, check_vma)
