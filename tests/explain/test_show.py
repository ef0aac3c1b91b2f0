"""``show``: which device holds which slice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
from expecting import fails
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from typedshmap import Array, Float, MeshAxisError, ShapeError, TypedShmapError, axis_rules, partition_specs, show
from typedshmap.tools.explain.show import devices_text

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import figures  # noqa: E402
import picture as readme  # noqa: E402

LAYER = """\
mesh dp=2, tp=2

Float[Array, "[batch/dp] ff +tp"]: f32[4,3], on each device f32[2,3]
each device holds an addend of the sum over 'tp'
  [batch/dp]  ff   devices
  0:2         0:3  0 1
  2:4         0:3  2 3"""


def test_each_slice_is_listed_with_its_devices() -> None:
    assert str(show(Float[Array, "[batch/dp] ff +tp"], "dp=2,tp=2", batch=4, ff=3)) == LAYER


@pytest.mark.parametrize(
    "dims",
    ["[a/dp] [b/tp] c", "[a/tp] [b/dp] c", "[a/dp,tp] b c", "[a/tp,dp] b c", "a b [c/tp]", "a b c", "*r [c/tp,dp]"],
)
def test_the_slices_are_those_of_jax(dims: str) -> None:
    mesh = Mesh(np.array(jax.devices())[::-1].reshape(4, 2), ("dp", "tp"))
    shape = (8, 16, 24)
    sizes: dict[str, Any] = {"r": (8, 16), "c": 24} if "*" in dims else dict(zip("abc", shape, strict=True))
    (array,) = show(dims, mesh, **sizes).arrays
    spec = partition_specs(dims, like=np.ones(shape, np.float32))
    held = NamedSharding(mesh, spec).devices_indices_map(shape)
    expected = {
        device.id: tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))
        for device, index in held.items()
    }
    assert {device: block.slices for block in array.blocks for device in block.devices} == expected


def test_a_class_of_hints_is_shown_array_by_array() -> None:
    class Weights(NamedTuple):
        up: Float[Array, "m [f/tp]"]
        down: Float[Array, "[f/tp] m"]

    shown = show(Weights, {"dp": 4, "tp": 2}, m=2, f=4)
    assert [(array.name, array.shard) for array in shown.arrays] == [("up", (2, 2)), ("down", (2, 2))]
    assert len(shown.drawings()) == 2


def test_rules_shard_dims_by_their_names() -> None:
    with axis_rules([("batch", "dp")]):
        (array,) = show("batch d", AbstractMesh((4,), ("dp",)), batch=8, d=2).arrays
    assert array.shard == (2, 2)


def test_a_large_mesh_is_told_in_a_screen() -> None:
    text = str(show("[b/dp] s [h/tp] d", "dp=64,tp=32", b=128, s=4, h=64, d=2))
    assert len(text.splitlines()) < 80 and text.endswith("... and 1984 more slices")
    assert "0-2047" in str(show("d", "dp=64,tp=32", d=2))
    assert "0 32 64 96 ... 2016 (64)" in str(show("[d/tp]", "dp=64,tp=32", d=32))


@pytest.mark.parametrize("dims", ["[b/dp] [h/tp]", "[b/dp] [s/tp] [h/pp]", "", "b", "[b/dp,tp] h", "[b/dp] h +tp ~pp"])
def test_a_drawing_is_well_formed_and_names_every_device(dims: str) -> None:
    names = {name: 8 for name in "bsh" if name in dims.replace("tp", "").replace("pp", "")}
    shown = show(dims, "dp=2,tp=2,pp=2", **names)
    (drawing,) = shown.drawings()
    texts = ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")
    words = " ".join(text.text or "" for text in texts)
    assert drawing in shown._repr_html_()
    (array,) = shown.arrays
    assert {device for block in array.blocks for device in block.devices} == set(range(8))
    assert all(devices_text(block.devices) in words for block in array.blocks)


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, int], type[TypedShmapError], str]] = {
    "a size that is missing": (("[b/dp] d", "dp=4"), {"b": 8}, ShapeError, "no size is given for 'd'"),
    "a size that does not divide": (("[b/dp] d", "dp=4"), {"b": 9, "d": 1}, ShapeError,
                                    "hint value has b=9, which does not divide over 'dp' (4 shards)"),
    "an axis": (("[b/xx]", "dp=4"), {"b": 8}, MeshAxisError,
                "hint value names mesh axis 'xx', which is not among the mesh's axes 'dp'"),
    "no mesh": (("b",), {"b": 8}, MeshAxisError,
                "no mesh is known: mesh= is not given, none is ambient, and no argument was placed on one"),
    "what is no mesh": (("b", "dp"), {"b": 8}, MeshAxisError, "mesh= is 'dp'"),
    "a mesh that is too large": (("b", "dp=1000000"), {"b": 8}, MeshAxisError,
                                 "the mesh has 1000000 devices; those of at most 131072 are listed"),
}  # fmt: skip


@pytest.mark.parametrize(("args", "sizes", "error", "problem"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_shown_says_why(args: Any, sizes: Any, error: Any, problem: str) -> None:
    with fails(error, f"show: {problem}"):
        show(*args, **sizes)


def test_the_picture_of_readme_is_what_its_command_makes() -> None:
    assert readme.PICTURE.read_text(encoding="utf-8") == readme.picture()
    assert str(readme.PICTURE.relative_to(ROOT)) in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", figures.FIGURES)
def test_the_figures_of_the_docs_are_what_their_command_makes(name: str) -> None:
    assert (figures.ASSETS / name).read_text(encoding="utf-8") == figures.FIGURES[name]()
    shown = (f"assets/{name})", f'docs/assets/{name}"')
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    assert any(each in page for page in pages for each in shown)
