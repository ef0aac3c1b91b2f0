"""No fault is found with right programs that look wrong to a hasty check."""

import pytest
from sound_programs import SOUND, Sound, counted, own_noise

from typedshmap.testing import assert_mesh_invariant

MESHES = [{"dp": 4, "tp": 2}]


@pytest.mark.sample(8)
@pytest.mark.parametrize("sound", [pytest.param(each, id=each.name) for each in SOUND])
def test_no_fault_is_found_with_a_right_program(sound: Sound) -> None:
    assert_mesh_invariant(sound.function, MESHES, grad=sound.grad, exclude=sound.exclude, trials=1, **sound.given)


@pytest.mark.usefixtures("without_first_differences")
@pytest.mark.sample(2)
@pytest.mark.parametrize(("function", "result"), [(counted, "return[1]"), (own_noise, "return[0]")])
def test_what_was_excluded_does_differ(function, result: str) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_mesh_invariant(function, MESHES, trials=1)
    assert str(caught.value).startswith(f"{function.__name__}: {result} depends on the mesh:")
