"""The public names: all are there, and what is costly to import waits until it is asked for."""

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import typedshmap
from typedshmap import Array, Float, StructureError, dtypes, explain, shape_structs, show, testing, typed_jit
from typedshmap._jax.array import NAMES


@pytest.mark.parametrize("name", typedshmap.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(typedshmap, name) is not None
    assert name in dir(typedshmap)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'typedshmap' has no attribute 'all_gathers'"):
        typedshmap.all_gathers  # noqa: B018 (asked for, to see the error)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "room"), [("einsum", "ops"), ("shard", "placement"), ("typed_jit", "jit")])
def test_a_room_is_imported_when_one_of_its_names_is_asked_for_and_no_tool(name: str, room: str) -> None:
    program = f"""
import sys, typedshmap
assert not [module for module in sys.modules if module.startswith(("typedshmap.tools", "typedshmap.testing"))]
assert "typedshmap.{room}" not in sys.modules
assert typedshmap.{name} is sys.modules["typedshmap.{room}"].{name}
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(("old", "new"), [("auditing", "audit"), ("explaining", "explain")])
def test_a_documented_path_of_before_warns_and_has_the_same_names(
    old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"typedshmap.{old}", raising=False)
    with pytest.warns(DeprecationWarning) as heard:
        before = importlib.import_module(f"typedshmap.{old}")
    assert [str(each.message) for each in heard] == [f"typedshmap.{old} is deprecated; use typedshmap.tools.{new}"]
    now = importlib.import_module(f"typedshmap.tools.{new}")
    assert all(getattr(before, name) is getattr(now, name) for name in now.__all__)


def test_every_dtype_is_in_its_module_and_importable_from_the_package() -> None:
    assert set(dtypes.__all__) == set(NAMES)
    for name in dtypes.__all__:
        assert getattr(typedshmap, name) is getattr(dtypes, name)


def test_the_package_lists_what_a_program_needs() -> None:
    assert len(typedshmap.__all__) < 80
    assert not [name for name in typedshmap.__all__ if name.startswith(("Float8", "Float4")) or name.endswith("Int8")]


def public_functions() -> list[Callable[..., Any]]:
    modules = (typedshmap, testing)
    named = [getattr(module, name) for module in modules for name in module.__all__]
    return [value for value in named if inspect.isfunction(value)]


@pytest.mark.parametrize("f", public_functions(), ids=lambda f: f.__name__)
def test_signatures_agree(f: Callable[..., Any]) -> None:
    parameters = inspect.signature(f).parameters
    takes_dims = "dims" in parameters and parameters["dims"].kind is inspect.Parameter.VAR_KEYWORD
    assert ("sizes" in parameters) == takes_dims
    if "mesh" in parameters and f is not typedshmap.choose_mesh:  # whose mesh leaves sizes open
        assert "MeshLike" in str(parameters["mesh"].annotation)


@typed_jit
def scale(x: Float[Array, "[mesh/dp] sizes timeout"]) -> Float[Array, "[mesh/dp] sizes timeout"]:
    return x * 2.0


SIZES = {"mesh": 4, "timeout": 2}
BY_SIZES: dict[str, Callable[..., Any]] = {
    "shape_structs": lambda **given: shape_structs(Float[Array, "mesh sizes timeout"], **given).shape,
    "show": lambda **given: show(Float[Array, "[mesh/dp] sizes timeout"], {"dp": 2}, **given).arrays[0].shape,
    "explain": lambda **given: explain(scale, mesh="dp=2", **given).values[0].shape,
    "inputs": lambda **given: testing.inputs(scale, mesh="dp=2", **given)[0].shape,
}


@pytest.mark.parametrize("made", BY_SIZES.values(), ids=BY_SIZES)
def test_a_dim_with_the_name_of_an_option_has_its_size_in_sizes(made: Callable[..., Any]) -> None:
    assert made(sizes={**SIZES, "sizes": 3}) == (4, 3, 2)


def test_a_number_for_sizes_is_the_size_of_a_dim_of_that_name() -> None:
    assert shape_structs(Float[Array, "sizes d"], sizes=3, d=2).shape == (3, 2)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"sizes": "b=4"}, "shape_structs: sizes= expects a dict of sizes by the names of dims, got 'b=4'"),
        ({"sizes": {"b": 4}, "b": 4}, "shape_structs: the size of 'b' is given twice, in sizes= and by keyword"),
    ],
)
def test_wrong_sizes_are_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(StructureError) as raised:
        shape_structs(Float[Array, "b"], **given)
    assert str(raised.value) == line
