"""The public names: all are there, and what is costly to import waits until it is asked for."""

import subprocess
import sys

import pytest

import typedshmap
from typedshmap import dtypes
from typedshmap.hints.array_hint import NAMES


@pytest.mark.parametrize("name", typedshmap.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(typedshmap, name) is not None
    assert name in dir(typedshmap)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'typedshmap' has no attribute 'all_gathers'"):
        typedshmap.all_gathers  # noqa: B018 (asked for, to see the error)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "room"), [("einsum", "ops"), ("shard", "placement"), ("typed_jit", "jit")])
def test_a_room_is_imported_when_one_of_its_names_is_asked_for(name: str, room: str) -> None:
    program = f"""
import sys, typedshmap
assert "typedshmap.{room}" not in sys.modules
assert typedshmap.{name} is sys.modules["typedshmap.{room}"].{name}
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(("old", "new"), [("auditing", "audit"), ("explaining", "explain")])
def test_a_documented_path_of_before_warns_and_has_the_same_names(old: str, new: str) -> None:
    program = f"""
import warnings, typedshmap.tools.{new} as new
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    import typedshmap.{old} as old
(warning,) = [each for each in heard if issubclass(each.category, DeprecationWarning)]
assert str(warning.message) == "typedshmap.{old} is typedshmap.tools.{new} now"
assert all(getattr(old, name) is getattr(new, name) for name in new.__all__)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_every_dtype_is_in_its_module_and_importable_from_the_package() -> None:
    assert set(dtypes.__all__) == set(NAMES)
    for name in dtypes.__all__:
        assert getattr(typedshmap, name) is getattr(dtypes, name)


def test_the_package_lists_what_a_program_needs() -> None:
    assert len(typedshmap.__all__) < 80
    assert not [name for name in typedshmap.__all__ if name.startswith(("Float8", "Float4")) or name.endswith("Int8")]
