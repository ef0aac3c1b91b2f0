"""Which meshes a function is tried on."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh

from typedshmap import Array, Float, MeshAxisError, ShapeError, typed_shard_map
from typedshmap.testing.invariance import assert_mesh_invariant
from typedshmap.testing.trial_meshes import FunctionAxes, default_meshes, given_meshes, name_of_mesh

AUTO = AxisType.Auto


def axes(devices: int = 8, **sizes: int) -> FunctionAxes:
    return FunctionAxes(sizes, dict.fromkeys(sizes, AUTO), jax.devices()[:devices])


@pytest.mark.parametrize(
    ("known", "meshes"),
    [
        (axes(dp=4, tp=2), ["dp=4", "tp=2", "dp=4, tp=2", "dp=2, tp=4"]),
        (axes(dp=1, tp=1), ["dp=4", "tp=2", "dp=4, tp=2", "dp=2, tp=4"]),
        (axes(dp=2, tp=2), ["dp=2", "tp=2", "dp=2, tp=2", "dp=4", "tp=4"]),
        (axes(dp=8, tp=1), ["dp=8", "tp=2", "dp=8", "tp=8"]),
        (axes(dp=64, tp=16), ["dp=4", "tp=2", "dp=4, tp=2", "dp=2, tp=4"]),
        (axes(dp=1), ["dp=8", "dp=2"]),
        (axes(dp=2), ["dp=2", "dp=4"]),
        (axes(2, dp=1), ["dp=2"]),
        (axes(2, dp=1, tp=1), ["dp=2", "tp=2"]),
        (axes(6, dp=1, tp=1), ["dp=3", "tp=2", "dp=3, tp=2", "dp=2, tp=3"]),
        (axes(a=1, b=1, c=1), ["a=2", "b=2", "c=2", "a=2, b=2, c=2", "a=4", "b=4", "c=4"]),
        (axes(a=2, b=4, c=1), ["a=2", "b=4", "c=2", "a=2, b=4", "a=4, c=2", "b=2, c=4"]),
    ],
)
def test_every_axis_is_tried_alone_and_all_together_and_permuted(known, meshes):
    assert list(map(name_of_mesh, default_meshes(known, "f"))) == ["one device", *dict.fromkeys(meshes)]


def test_axes_keep_their_types():
    known = FunctionAxes({"dp": 4, "tp": 2}, {"dp": AxisType.Explicit, "tp": AUTO}, jax.devices())
    assert {mesh.axis_types for mesh in default_meshes(known, "f")} == {(AxisType.Explicit, AUTO)}


GPU = FunctionAxes({"dp": 1}, {"dp": AUTO}, [SimpleNamespace(platform="gpu", id=0)])


@pytest.mark.parametrize(("known", "cpu"), [(axes(1, dp=1), ""), (GPU, "JAX_PLATFORMS=cpu and ")])
def test_one_device_is_not_enough(known, cpu):
    with pytest.raises(MeshAxisError) as caught:
        default_meshes(known, "step")
    assert str(caught.value) == (
        "assert_mesh_invariant: step: there is one device only, and meshes are compared\n"
        "\n"
        f"Hint: a CPU stands for several devices by {cpu}XLA_FLAGS=--xla_force_host_platform_device_count=8, "
        "set before JAX is imported"
    )


def test_a_function_that_knows_no_axis_has_to_be_given_meshes():
    @typed_shard_map
    def plain(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x

    with pytest.raises(MeshAxisError) as caught:
        assert_mesh_invariant(plain)
    assert str(caught.value) == (
        "assert_mesh_invariant: plain: no mesh axis is known, neither by a mesh nor by its hints\n"
        "\n"
        "Hint: pass meshes=, or call it under jax.set_mesh(mesh)"
    )
    assert_mesh_invariant(plain, ["dp=2"], trials=1)


def test_given_meshes_may_be_dicts_and_texts_and_bear_the_axes_of_the_hints():
    own = Mesh(np.array(jax.devices()[2:6]).reshape(2, 2), ("dp", "tp"))
    found = given_meshes([own, {"dp": 4}, "tp = 2, dp=2"], axes(dp=1, tp=1))
    assert [dict(mesh.shape) for mesh in found] == [
        {"dp": 1, "tp": 1},
        {"dp": 2, "tp": 2},
        {"dp": 4, "tp": 1},
        {"dp": 2, "tp": 2},
    ]
    assert found[0].devices.flat[0] == jax.devices()[2]


@pytest.mark.parametrize(
    ("meshes", "message"),
    [
        (["dp"], "meshes= holds 'dp', which is not a mesh"),
        (["dp=x"], "meshes= holds 'dp=x', which is not a mesh"),
        ([{"dp": 0}], "meshes= holds {'dp': 0}, which is not a mesh"),
        ([4], "meshes= holds 4, which is not a mesh"),
        ([], 'meshes= expects a list of meshes, as in [{"dp": 4, "tp": 2}]; got []'),
        ("dp=4", 'meshes= expects a list of meshes, as in [{"dp": 4, "tp": 2}]; got \'dp=4\''),
        ([AbstractMesh((2,), ("dp",))], "an AbstractMesh has no devices to run on; pass its sizes as a dict"),
        (["dp=16"], "the mesh dp=16 needs 16 devices, and there are 8"),
    ],
)
def test_what_is_no_mesh_is_refused(meshes, message):
    with pytest.raises(MeshAxisError) as caught:
        given_meshes(meshes, axes(dp=1))
    assert str(caught.value).splitlines()[0] == f"assert_mesh_invariant: {message}"


def test_meshes_that_given_sizes_do_not_fit_are_left_out_and_told():
    @typed_shard_map
    def local(x: Float[Array, "[n/dp] [m/tp]"]) -> Float[Array, "[n/dp] [m/tp]"]:
        return x - x.max(0)

    with pytest.raises(AssertionError) as caught:
        assert_mesh_invariant(local, m=2, trials=1)
    lines = str(caught.value).splitlines()
    assert "    differs on dp=4; dp=4, tp=2" in lines
    assert "    agrees on tp=2" in lines
    assert "    left out, since the sizes do not fit: dp=2, tp=4" in lines

    found = assert_mesh_invariant(local, n=1, m=4, trials=1)
    assert str(found) == (
        "local: the same on one device; tp=2 "
        "(1 trial; left out, since the sizes do not fit: dp=4; dp=4, tp=2; dp=2, tp=4)"
    )


def test_sizes_that_fit_no_mesh_are_refused():
    @typed_shard_map
    def local(x: Float[Array, "[n/dp]"]) -> Float[Array, "[n/dp]"]:
        return x

    with pytest.raises(ShapeError, match="n=7"):
        assert_mesh_invariant(local, n=7)


def test_names_in_hints_may_be_aliases_and_rules():
    @typed_shard_map(axes={"d": ("data", "fsdp"), "t": None}, rules={"model": "tp"})
    def local(x: Float[Array, "[n/d] [k/t] model"]) -> Float[Array, "[n/d] [k/t] model"]:
        return x - x.max(-1, keepdims=True)

    with pytest.raises(AssertionError, match="'tp' alone causes the difference"):
        assert_mesh_invariant(local, trials=1)


@pytest.mark.filterwarnings("ignore")
def test_meshes_for_which_xla_cannot_compile_a_partly_manual_region_are_left_out_and_told():
    @typed_shard_map(mesh=Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp")), axis_names={"tp"})
    def total(x: Float[Array, "[n/dp] [m/tp]"]) -> Float[Array, "[n/dp]"]:
        return jax.lax.psum(x.sum(-1), "tp")

    assert str(assert_mesh_invariant(jax.jit(total), trials=2)) == (
        "total: the same on one device; tp=2; dp=4, tp=2; dp=2, tp=4 "
        "(2 trials; left out, since XLA cannot compile it there: dp=4)"
    )
