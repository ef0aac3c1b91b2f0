"""Meshes ranked: the order is that of hand calculations, and what is refused says why."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    BFloat16,
    Float32,
    MeshAxisError,
    ShapeError,
    StructureError,
    VaryingError,
    all_gather,
    choose_mesh,
    einsum,
    explain,
    psum,
    psum_scatter,
    typed_shard_map,
)
from typedshmap.tools.cli.main import main
from typedshmap.tools.explain import Hardware
from typedshmap.tools.explain.choose import meshes_to_try, read_free_mesh

# "How to Scale Your Model" (2025): a layer of two products, of a batch of B tokens, model D, ff F, in bfloat16. W is
# what a device sends, C what it computes in a second; memory is no limit.
W, C = 180e9, 459e12
CHIP = Hardware("chip", {"bf16": C}, 1e15, 1e18, link=W)
D, F = 4096, 8192


@typed_shard_map
def data_parallel(
    x: BFloat16[Array, "[batch/dp] model"],
    up: BFloat16[Array, "model ff"],
    down: BFloat16[Array, "ff model"],
    unused: BFloat16[Array, "[copies/tp]"],
) -> tuple[BFloat16[Array, "model ff"], BFloat16[Array, "ff model"]]:
    h = x @ up
    return psum(x.T @ h, "dp"), psum(h.T @ (h @ down), "dp")


ROWS = BFloat16[Array, "[batch/dp,tp] model"]
BOTH = BFloat16[Array, "[batch/dp] [model/tp]"]


@typed_shard_map
def fsdp(x: ROWS, up: BFloat16[Array, "[model/dp] ff"], down: BFloat16[Array, "[ff/dp] model"]) -> ROWS:
    up, down = all_gather(up, "[m/dp] f -> m f ~dp"), all_gather(down, "[f/dp] m -> f m ~dp")
    return x @ up @ down


@typed_shard_map
def tensor_parallel(x: BOTH, up: BFloat16[Array, "model [ff/tp]"], down: BFloat16[Array, "[ff/tp] model"]) -> BOTH:
    h = all_gather(x, "[b/dp] [m/tp] -> [b/dp] m") @ up
    return einsum(h, down, "[b/dp] [f/tp], [f/tp] m -> [b/dp] [m/tp]")


@typed_shard_map
def mixed(x: BOTH, up: BFloat16[Array, "[model/dp] [ff/tp]"], down: BFloat16[Array, "[ff/tp] [model/dp]"]) -> BOTH:
    up, down = all_gather(up, "[m/dp] [f/tp] -> m [f/tp] ~dp"), all_gather(down, "[f/tp] [m/dp] -> [f/tp] m ~dp")
    h = all_gather(x, "[b/dp] [m/tp] -> [b/dp] m") @ up
    return psum_scatter(h @ down, "[b/dp] m +tp -> [b/dp] [m/tp]")


def of_weights(times):
    return lambda b, dp, tp: {"dp": times * 2 * D * F / tp / W * (dp - 1) / dp}


def of_activations(b, dp, tp):
    return {"tp": 2 * 2 * b / dp * D / W * (tp - 1) / tp}


BOOK = {  # per layer, the products, and the seconds over each mesh axis
    # The gradients of two unsharded matrices are summed: an all-reduce sends them twice.
    "data-parallel": (data_parallel, 4, lambda b, dp, tp: of_weights(4)(b, dp, 1), {"copies": 256}),
    "FSDP": (fsdp, 2, lambda b, dp, tp: of_weights(2)(b, dp, 1), {}),
    "tensor-parallel": (tensor_parallel, 2, of_activations, {}),
    "mixed": (mixed, 2, lambda b, dp, tp: of_weights(2)(b, dp, tp) | of_activations(b, dp, tp), {}),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("batch", [2**13, 2**15])
@pytest.mark.parametrize("name", BOOK)
def test_the_order_is_that_of_the_formulas_of_the_scaling_book(name, batch):
    f, products, sent, more = BOOK[name]
    found = choose_mesh(f, devices=256, hardware=CHIP, batch=batch, model=D, ff=F, **more)
    assert len(found.ranked) == 9 and not found.refused
    keys = []
    for one in found.ranked:
        time, (dp, tp) = one.explanation.time, (one.mesh["dp"], one.mesh["tp"])
        shards = dp if f is data_parallel else 256
        compute, communicate = products * 2 * batch * D * F / shards / C, sent(batch, dp, tp)
        assert time.compute == pytest.approx(compute)
        assert time.communicate == pytest.approx({axis: each for axis, each in communicate.items() if each})
        keys.append((max(compute, *communicate.values()), compute + sum(communicate.values())))
    assert keys == sorted(keys, key=lambda key: tuple(float(f"{each:.3g}") for each in key))


@pytest.mark.parametrize(("batch", "devices", "dp"), [(F, 256, 16), (4 * F, 256, 32), (F, 64, 8)])
def test_the_best_mixed_mesh_is_that_of_the_formula(batch, devices, dp):
    """Where communication bounds, the data-parallel part is the square root of B N / F."""
    best = choose_mesh(mixed, devices=devices, hardware=CHIP, batch=batch, model=D, ff=F).best
    assert best is not None and best.mesh["dp"] == dp == (batch * devices / F) ** 0.5


SMALL = Hardware("small", {"f32": 1e12}, 1.5 * 2**20, 1e12, link=1e9)


@typed_shard_map
def layer(
    x: Float32[Array, "[batch/dp] model"], w: Float32[Array, "model [ff/tp]"], v: Float32[Array, "[ff/tp] model"]
) -> Float32[Array, "[batch/dp] model"]:
    return psum(jnp.tanh(x @ w) @ v, "tp")


def test_a_choice_is_printed_with_what_fits_and_what_does_not():
    found = choose_mesh(layer, devices=12, hardware=SMALL, batch=768, model=256, ff=768)
    assert re.sub(r" +[0-9.]+ MiB", " ? MiB", re.sub(r"py:\d+", "py:1", str(found))) == dedent("""\
        layer on 12 devices of small: 3 of 6 meshes fit
        batch=768, model=256, ff=768

        mesh        peak memory  overlapped  serial  bound  compute   memory  over tp
        dp=6, tp=2 ? MiB      131 us  181 us     tp  50.3 us   2.1 us   131 us
        dp=4, tp=3 ? MiB      262 us  312 us     tp  50.3 us   2.1 us   262 us
        dp=3, tp=4 ? MiB      393 us  444 us     tp  50.3 us  2.23 us   393 us

        best: dp=6, tp=2: bound by communication over 'tp': 131 us of 131 us at test_choices.py:1 (layer)

        refused:
        dp=2, tp=6   needs ? MiB, and small has ? MiB
        dp=12, tp=1  needs ? MiB, and small has ? MiB
        dp=1, tp=12  needs ? MiB, and small has ? MiB""")


def test_a_choice_is_data_and_a_page():
    found = choose_mesh(layer, devices=12, hardware=SMALL, batch=768, model=256, ff=768)
    assert found.best is found.ranked[0]
    again = explain(layer, mesh=found.best.mesh, hardware=SMALL, grad=False, batch=768, model=256, ff=768)
    assert again.time == found.best.explanation.time
    tried = {(one.mesh["dp"], one.mesh["tp"]) for one in (*found.ranked, *found.refused)}
    assert tried == {(dp, 12 // dp) for dp in (1, 2, 3, 4, 6, 12)}
    assert "1.50 MiB of small" in found.html and "peak memory of one device" in found._repr_html_()


def test_nothing_that_fits_is_no_best_mesh_and_says_what_is_the_least():
    tiny = Hardware("tiny", {"f32": 1}, 1024, 1, link=1)
    found = choose_mesh(layer, devices=4, hardware=tiny, batch=64, model=8, ff=8)
    assert (found.best, found.ranked) == (None, ())
    assert found.why.startswith("none fits: the least memory is that of dp=") and "and tiny has 1 KiB" in found.why
    odd = choose_mesh(layer, devices=4, hardware=SMALL, batch=3, model=8, ff=3)
    assert odd.why.startswith("none divides: argument ")


def test_what_fits_depends_on_whether_there_is_a_gradient():
    sizes = {"batch": 512, "model": 64, "ff": 64}
    best = [choose_mesh(layer, devices=4, hardware=CHIP, grad=grad, **sizes).best for grad in (False, True)]
    assert best[0].explanation.memory.peak < best[1].explanation.memory.peak


def test_axes_are_fixed_or_named():
    sizes = {"batch": 64, "model": 8, "ff": 8}
    found = choose_mesh(layer, devices=16, hardware="v5p", mesh="tp=2", **sizes)
    assert [one.mesh for one in found.ranked] == [{"dp": 8, "tp": 2}]
    found = choose_mesh(layer, devices=16, hardware="v5p", mesh={"pp": None, "tp": 2}, **sizes)
    tried = {(one.mesh["dp"], one.mesh["pp"], one.mesh["tp"]) for one in found.ranked}
    assert tried == {(dp, 8 // dp, 2) for dp in (1, 2, 4, 8)}
    assert found.notes == ("no hint and no mesh of layer names 'pp'",)


def test_names_in_hints_that_share_a_mesh_axis_are_one():
    @typed_shard_map(axes={"sp": "tp", "dp": ("data", "fsdp")})
    def f(
        x: Float32[Array, "[batch/dp] [seq/sp]"], w: Float32[Array, "[ff/tp]"]
    ) -> Float32[Array, "[batch/dp] [seq/sp]"]:
        return x * psum(w.sum(0), "sp")

    found = choose_mesh(f, devices=8, hardware="v5p", batch=64, seq=64, ff=64)
    assert len(found.ranked) == 10 and set(found.best.mesh) == {"data", "fsdp", "tp"}


def test_axes_that_communicate_most_lie_on_the_fastest_links():
    @typed_shard_map
    def f(
        x: Float32[Array, "[batch/dp] [model/tp]"], w: Float32[Array, "model [ff/dp,tp]"]
    ) -> Float32[Array, "[batch/dp] model"]:
        return all_gather(x, "[b/dp] [m/tp] -> [b/dp] m")

    found = choose_mesh(f, devices=64, hardware="h100", mesh="tp=8", batch=2**16, model=1024, ff=64)
    assert list(found.best.mesh) == ["dp", "tp"]
    assert found.best.explanation.bandwidth == {"dp": 50e9, "tp": 450e9}


EXPLICIT = AbstractMesh((1, 1), ("dp", "tp"), axis_types=(AxisType.Explicit,) * 2)
HALF = Float32[Array, "[a/dp]"]


def plain(x):
    return jax.shard_map(lambda x: lax.psum(x.sum(0), "dp"), in_specs=P("dp"), out_specs=P())(x)


def test_a_plain_function_is_planned_by_its_arguments():
    x = jax.ShapeDtypeStruct((24, 8), jnp.float32)
    found = choose_mesh(plain, x, devices=8, hardware="v5e", mesh="dp")
    assert [one.mesh for one in found.ranked] == [{"dp": 8}]
    assert not choose_mesh(plain, x, devices=16, hardware="v5e", mesh="dp").ranked


def test_axes_are_of_the_functions_own_mesh_or_the_ambient_one():
    own = typed_shard_map(lambda x: 2 * x, mesh=EXPLICIT, in_types=HALF, out_types=HALF)
    found = choose_mesh(own, devices=8, hardware="v5e", a=64)
    assert {tuple(sorted(one.mesh)) for one in found.ranked} == {("dp", "tp")} and len(found.ranked) == 4
    parts = typed_shard_map(lambda x: x.sum(0, keepdims=True), in_types=HALF, out_types=Float32[Array, "1 +dp"])
    with jax.sharding.use_abstract_mesh(EXPLICIT):
        assert len(choose_mesh(parts, devices=8, hardware="v5e", a=64).ranked) == 4


@typed_shard_map
def forgotten(x: Float32[Array, "[batch/dp] model"]) -> Float32[Array, "model"]:
    return x.sum(0)


@typed_shard_map
def without_axes(x: Float32[Array, "batch model"]) -> Float32[Array, "model"]:
    return x.sum(0)


REFUSED = {
    "no devices": (layer, {"devices": 0}, StructureError, "choose_mesh: devices must be an integer >= 1, got 0"),
    "half": (layer, {"devices": 2.5}, StructureError, "choose_mesh: devices must be an integer >= 1, got 2.5"),
    "too many": (layer, {"devices": 2**31}, StructureError,
                 "choose_mesh: devices must be at most 2147483647, got 2147483648"),
    "hardware": (layer, {"hardware": "v5q"}, StructureError, "choose_mesh: hardware= is 'v5q'"),
    "no hardware": (layer, {"hardware": None}, StructureError,
                    "choose_mesh: hardware= is None, but times need it"),
    "a name": (layer, {"bacth": 3}, StructureError, "choose_mesh: layer: neither a dim of its hints nor an argument "
               "is called 'bacth' (did you mean 'batch'?)"),
    "a size": (layer, {"batch": "x"}, ShapeError, "choose_mesh: layer: batch='x' is not a size"),
    "a mesh": (layer, {"mesh": "tp=x"}, MeshAxisError, "choose_mesh: mesh= is 'tp=x'"),
    "a fixed size": (layer, {"mesh": {"tp": 3}}, MeshAxisError, "choose_mesh: tp=3 does not divide 8 devices"),
    "sizes of all": (layer, {"mesh": "dp=2,tp=2"}, MeshAxisError,
                     "choose_mesh: dp=2, tp=2 makes 4 devices, not 8, and no mesh axis has a free size"),
    "no axes": (without_axes, {}, MeshAxisError,
                "choose_mesh: without_axes: its hints name no mesh axes, and no mesh is known"),
    "a wrong body": (forgotten, {}, VaryingError,
                     "forgotten: return value varies over 'dp', which its hint does not mention"),
    "an ambient mesh": (plain, {"x": jax.ShapeDtypeStruct((24, 8), jnp.float32)}, MeshAxisError,
                        "choose_mesh: plain: its regions are over the ambient mesh, and no mesh is known"),
    "links": (layer, {"hardware": Hardware("chip", {"f32": 1}, 1, 1, {"xp": 1})}, MeshAxisError,
              "hardware 'chip' has a link over mesh axis 'xp', which the mesh (dp=8, tp=1) does not have"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_planned_is_refused(name):
    f, more, error, message = REFUSED[name]
    with pytest.raises(error) as raised:
        choose_mesh(f, **{"devices": 8, "hardware": "v5p", **more})
    assert str(raised.value).splitlines()[0] == message


def test_all_ways_to_divide_devices_are_tried_once():
    meshes = meshes_to_try("f", 360, {"a": None, "b": 2, "c": None, "d": None})
    assert len(meshes) == len({tuple(mesh.values()) for mesh in meshes}) == 6 * 6 * 3
    assert all(mesh["a"] * mesh["c"] * mesh["d"] == 180 and mesh["b"] == 2 for mesh in meshes)
    with pytest.raises(StructureError, match="1,073,741,824 devices make more than 5,000 meshes of a, b, c, d, e\n"):
        meshes_to_try("f", 2**30, dict.fromkeys("abcde"))


def test_a_mesh_of_which_some_sizes_are_free_is_read():
    assert read_free_mesh("f", " dp, tp = 8 ") == {"dp": None, "tp": 8}
    for wrong in ("dp=", "tp=0", "dp,dp", 3, {"dp": 0}, {"dp": True}, {3: 1}):
        with pytest.raises(MeshAxisError):
            read_free_mesh("f", wrong)


MODULE = """
from typedshmap import Array, Float32, psum, typed_shard_map


@typed_shard_map
def total(x: Float32[Array, "[batch/dp] model"]) -> Float32[Array, "model"]:
    return psum(x.sum(0), "dp")
"""
COMMANDS = {
    "sizes as options": (["--devices", "8", "--batch", "64", "--model=128"], 0, "on 8 devices of v5p: 1 of 1 mesh", ""),
    "does not divide": (["--devices", "7", "--batch", "64"], 1, "total on 7 devices of v5p: 0 of 1 mesh fit", ""),
    "does not fit": (["--devices", "8", "--size", "batch=800000000 model=800000000"], 1, "none fits", ""),
    "no devices": (["--devices", "0"], 2, "", "plan: --devices 0: a mesh has 1 to 2147483647 devices\n"),
    "a fixed axis": (["--devices", "8", "--mesh", "dp=3"], 2, "", "plan: --mesh: dp=3 does not divide 8 devices\n"),
    "a flag": (["--devices", "8", "--htlm", "3"], 2, "",
               "plan: no function has a dim or an argument 'htlm' (did you mean '--html'?); "
               "there are batch, model, x\n"),
    "explicit axes": (["--devices", "8", "--explicit"], 0, "1 of 1 mesh fit", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_plans(name, capsys, tmp_path):
    path = tmp_path / f"planned_{len(name)}.py"
    path.write_text(MODULE, encoding="utf-8")
    more, code, out, err = COMMANDS[name]
    assert main(["plan", f"{path}:total", "--hardware", "v5p", *more]) == code
    printed = capsys.readouterr()
    assert out in printed.out and bool(out) == bool(printed.out) and printed.err == err


def test_the_command_writes_a_page(capsys, tmp_path):
    path, page = tmp_path / "planned_page.py", tmp_path / "page.html"
    path.write_text(MODULE, encoding="utf-8")
    assert main(["plan", f"{path}:total", "--hardware", "v5e", "--devices", "4", "--html", str(page), "--grad"]) == 0
    assert "peak memory of one device" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_tables_of_the_page_are_those_of_the_command():
    root = Path(__file__).parents[2]
    printed = subprocess.run(
        [sys.executable, str(root / "bench/fit.py")], capture_output=True, text=True, check=True, timeout=300
    )
    page = (root / "docs/fit.md").read_text(encoding="utf-8")
    assert [line for line in printed.stdout.splitlines() if line.startswith("|") and line not in page] == []
