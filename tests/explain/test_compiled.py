"""What XLA says beside the estimate: for virtual CPU devices, and for TPUs where libtpu is installed."""

from __future__ import annotations

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float32, MeshAxisError, StructureError, all_gather, explain, typed_jit, typed_shard_map
from typedshmap.tools.cli.main import main
from typedshmap.tools.explain import compiled
from typedshmap.tools.explain.compiled import _collectives_in, _refused

MODULE = """
from typedshmap import Array, Float32, typed_shard_map

@typed_shard_map
def f(x: Float32[Array, "[a/dp]"]) -> Float32[Array, "[a/dp]"]:
    return x
"""
SIZES = {"a": 64, "b": 32}
WITH_TPU = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")


@typed_shard_map
def product(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] a"]:
    return jnp.tanh(x) @ all_gather(x, "[a/dp] b -> a b ~dp").T


def test_what_xla_says_is_beside_the_estimate():
    found = explain(product, mesh="dp=4", grad=False, compile="cpu", **SIZES)
    there = found.compiled
    assert (there.target, there.error, there.collectives) == ("cpu", "", {"all-gather": (1, 1)})
    assert there.memory > found.memory.arguments
    assert there.flops == pytest.approx(found.work.once, rel=0.05)
    heading, memory, _, gathers = str(found).split("\n\n")[-1].splitlines()
    assert heading.split() == ["compiled", "explain", "XLA", "for", "cpu", "ratio"]
    assert memory.startswith("peak memory") and gathers.split() == ["all-gather", "1", "1"]
    assert "XLA for cpu" in found.html


def test_a_gradient_is_compiled_where_it_is_asked_for_and_nothing_where_nothing_is():
    found = explain(product, mesh="dp=4", grad=True, compile="cpu", **SIZES)
    assert found.compiled.collectives == {"all-gather": (1, 1), "reduce-scatter": (1, 1)}
    assert explain(product, mesh="dp=4", **SIZES).compiled is None


def test_a_donated_argument_is_donated_and_a_plain_function_is_compiled_too():
    @typed_shard_map
    def step(state: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
        return state + 1

    donated = explain(typed_jit(step, donate_argnames="state"), mesh="dp=4", compile="cpu", **SIZES)
    assert donated.compiled.memory == explain(step, mesh="dp=4", compile="cpu", **SIZES).compiled.memory / 2
    mesh = AbstractMesh((4,), ("dp",), axis_types=(AxisType.Auto,))
    plain = jax.shard_map(lambda x: jax.lax.psum(x, "dp"), mesh=mesh, in_specs=P("dp"), out_specs=P())
    struct = jax.ShapeDtypeStruct((64,), jnp.float32)
    found = explain(plain, struct, mesh=mesh, compile="cpu", grad=False)
    assert found.compiled.collectives == {"all-reduce": (1, 1)}


def test_what_cannot_be_compiled_is_an_error_that_says_why(monkeypatch, capsys, tmp_path):
    with pytest.raises(MeshAxisError, match=r"^product: compile='cpu' has 8 devices, but the mesh \(dp=16\) has 16\n"):
        explain(product, mesh="dp=16", compile="cpu", **SIZES)
    with pytest.raises(StructureError, match=r"^explain: compile= is 8\n\nHint: write .cpu., or a kind of TPU"):
        explain(product, mesh="dp=4", compile=8, **SIZES)
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    lacks = "explain: compile='v5e:2x4' needs libtpu, which is not installed\n\nHint: pip install 'typedshmap[tpu]'"
    with pytest.raises(StructureError) as error:
        explain(product, mesh="dp=4", compile="v5e:2x4", **SIZES)
    assert str(error.value) == lacks
    path = tmp_path / "compiled_program.py"
    path.write_text(MODULE)
    assert main(["explain", f"{path}:f", "--mesh", "dp=4", "--compile", "v5e:2x4"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and lacks.partition(": ")[2] in printed.err


@pytest.mark.parametrize(
    "message, needed",
    {
        "XLA:TPU ran out of memory in memory space hbm. Used 20.17G of 15.75G hbm. Exceeded by 4.42G.": 20.17,
        "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries (16.64G) "
        "exceeds available HBM (15.75G). HLO module: jit_step.": 16.64,
        "something else": 0,
    }.items(),
)
def test_a_program_that_is_too_large_is_no_error_but_an_answer(message, needed):
    found = _refused("v5e:2x4", f"RESOURCE_EXHAUSTED: {message}\nSee https://openxla.org")
    assert (found.memory, found.error, found.flops) == (int(needed * 2**30), message, None)


def test_a_collective_that_is_written_in_several_parts_counts_once():
    part = '  %all-gather.{} = f32[4]{{0}} all-gather(%x), channel_id=1, frontend_attributes={{chain_id="{}"}}\n'
    text = part.format(1, 8) + part.format(2, 8) + part.format(3, 9) + "  %a = f32[2]{0} all-to-all(%x)\n"
    text += "  %b = f32[2]{0} all-reduce-start(%x)\n  %c = f32[2]{0} all-reduce-done(%b)\n"
    assert _collectives_in(text) == {"all-gather": 2, "all-to-all": 1, "all-reduce": 1}


@WITH_TPU
@pytest.mark.slow
def test_a_program_is_compiled_for_a_topology_of_tpus():
    found = explain(product, mesh="dp=8", grad=False, compile="v5e:2x4", a=8192, b=1024)
    assert 0.8 < found.memory.peak / found.compiled.memory < 1.25
    large = explain(product, mesh="dp=8", grad=False, compile="v5e:2x4", a=8 * 65536, b=1024)
    assert "15.75G" in large.compiled.error and "does not fit" in str(large)
    with pytest.raises(StructureError, match=r"compile='v5q:2x4' is not a topology: "):
        explain(product, mesh="dp=8", compile="v5q:2x4", **SIZES)
    with pytest.raises(MeshAxisError, match=r"compile='v5e:2x4' has 8 devices, but the mesh .* has 4$"):
        explain(product, mesh="dp=4", compile="v5e:2x4", **SIZES)
