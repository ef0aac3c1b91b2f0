"""What ``explain`` reports of one function on one mesh: values, collectives, memory, notes, and the text of it all."""

from __future__ import annotations

import dataclasses
from textwrap import dedent
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    Float32,
    Int,
    Key,
    MeshAxisError,
    ShapeError,
    StructureError,
    check,
    einsum,
    explain,
    psum,
    typed,
    typed_jit,
    typed_shard_map,
)

SIZES = {"batch": 512, "model": 1024, "ff": 4096}


@typed_shard_map
def mlp(
    x: Float32[Array, "[batch/dp] model"], up: Float32[Array, "model [ff/tp]"], down: Float32[Array, "[ff/tp] model"]
) -> Float32[Array, "[batch/dp] model"]:
    h = check(jnp.tanh(einsum(x, up, "[b/dp] m, m [f/tp] -> [b/dp] [f/tp]")), "[batch/dp] [ff/tp]")
    return einsum(h, down, "[b/dp] [f/tp], [f/tp] m -> [b/dp] m")


def shapes(*sizes, dtype=jnp.float32):
    return [jax.ShapeDtypeStruct(size, dtype) for size in sizes]


def wire(found) -> dict[tuple[str, ...], int]:
    return {(total.part, *total.axes): total.wire for total in found.totals}


def test_everything_is_shown_in_aligned_tables():
    found = explain(mlp, mesh="dp=16,tp=4", bandwidth={"tp": "400GB/s", "dp": 25e9}, **SIZES)
    line = mlp.__wrapped__.__code__.co_firstlineno + 4
    assert found.tables == dedent(f"""\
        value                                          global shape    spec           shard shape     bytes per device  hint
        x                                              f32[512,1024]   P('dp', None)  f32[32,1024]             128 KiB  Float32[Array, "[batch/dp] model"]
        up                                             f32[1024,4096]  P(None, 'tp')  f32[1024,1024]             4 MiB  Float32[Array, "model [ff/tp]"]
        down                                           f32[4096,1024]  P('tp', None)  f32[1024,1024]             4 MiB  Float32[Array, "[ff/tp] model"]
        check in mlp at test_explanations.py:{line} (mlp)  f32[512,4096]   P('dp', 'tp')  f32[32,1024]             128 KiB  "[batch/dp] [ff/tp]"
        return                                         f32[512,1024]   P('dp', None)  f32[32,1024]             128 KiB  Float32[Array, "[batch/dp] model"]

        part      collective  over  devices       in      out  on the wire  times  where
        forward   all-reduce  tp          4  128 KiB  128 KiB      192 KiB      1  test_explanations.py:{line + 1} (mlp)
        gradient  all-reduce  dp         16    4 MiB    4 MiB     7.50 MiB      1  test_explanations.py:{line + 1} (mlp)
        gradient  all-reduce  dp         16    4 MiB    4 MiB     7.50 MiB      1  test_explanations.py:{line} (mlp)
        gradient  all-reduce  tp          4  128 KiB  128 KiB      192 KiB      1  test_explanations.py:{line} (mlp)

        total     over  collectives       in      out  on the wire  seconds
        forward   tp              1  128 KiB  128 KiB      192 KiB   492 ns
        gradient  dp              2    8 MiB    8 MiB       15 MiB   629 us
        gradient  tp              1  128 KiB  128 KiB      192 KiB   492 ns""")  # noqa: E501


def test_the_text_is_a_summary_of_what_costs_most():
    found = explain(mlp, mesh="dp=16,tp=4", bandwidth={"tp": "400GB/s", "dp": 25e9}, **SIZES)
    line = mlp.__wrapped__.__code__.co_firstlineno + 4
    assert str(found) == dedent(f"""\
        mlp on dp=16, tp=4 (64 devices): batch=512, model=1024, ff=4096
        per device: peak memory 8.50 MiB at test_explanations.py:{line + 1} (mlp): arguments 8.12 MiB, temporaries
            256 KiB, results 128 KiB
        per device: 134 MFLOP, 100% in products; 9 MiB to and from memory, 14.2 FLOP per byte
        per device: 4 collectives: forward 192 KiB over tp; gradient 15 MiB over dp, 192 KiB over tp; 630 us
            one after the other

        collective  over  part      times  on the wire  seconds  where
        all-reduce  dp    gradient      1     7.50 MiB   315 us  test_explanations.py:{line + 1} (mlp)
        all-reduce  dp    gradient      1     7.50 MiB   315 us  test_explanations.py:{line} (mlp)
        all-reduce  tp    forward       1      192 KiB   492 ns  test_explanations.py:{line + 1} (mlp)
        all-reduce  tp    gradient      1      192 KiB   492 ns  test_explanations.py:{line} (mlp)

          computes     moves  FLOP per byte  where
        67.1 MFLOP  4.50 MiB           14.2  test_explanations.py:{line} (mlp)
        67.1 MFLOP  4.50 MiB           14.2  test_explanations.py:{line + 1} (mlp)""")


def test_a_summary_has_25_lines_of_100_columns_however_much_there_is():
    axes = tuple(f"an_axis_with_quite_a_long_name_{at}" for at in range(4))
    names = [f"dim_number_{at}" for at in range(30)]
    hint = " ".join(f"[{name}/{axis}]" for name, axis in zip(names, axes, strict=False))

    @typed_shard_map
    def a_function_whose_name_is_long_enough_to_fill_a_good_part_of_the_columns_that_a_terminal_has(
        x: Float32[Array, hint], *more: Float32[Array, " ".join(names[4:])], n: Int[Array, ""]
    ) -> Float32[Array, hint]:
        for at in range(12):
            x = x * lax.pmax(jnp.sin(x), axes[: 1 + at % 4])
            x = x + 1
            x = jnp.tanh(x) * x
            x = jnp.exp(x)
            x = jnp.log(x)
            x = jnp.cos(x)
        return x

    struct = jax.ShapeDtypeStruct((2,) * 4, jnp.float32)
    found = explain(
        a_function_whose_name_is_long_enough_to_fill_a_good_part_of_the_columns_that_a_terminal_has,
        struct, mesh=dict.fromkeys(axes, 2), n=jax.ShapeDtypeStruct((), jnp.int32), hardware="v5p",
    )  # fmt: skip
    many = dataclasses.replace(found, notes=tuple(f"{'why ' * 60}{at}" for at in range(4)))
    for each in (found, many):
        lines = str(each).splitlines()
        assert len(lines) <= 25 and max(map(len, lines)) <= 100 and str(each).isascii()
    assert str(many).endswith("\nmore notes (3) are with the tables of values")


def test_bytes_are_exact_integers():
    found = explain(mlp, mesh="dp=16,tp=4", grad=False, **SIZES)
    (one,) = found.collectives
    assert (one.operation, one.axes, one.group, one.times, one.part) == ("all-reduce", ("tp",), 4, 1, "forward")
    assert (one.operand, one.bytes_in, one.bytes_out) == ("f32[32,1024]", 32 * 1024 * 4, 32 * 1024 * 4)
    assert one.wire == 2 * 3 * 32 * 1024 * 4 // 4
    assert found.devices == 64 and found.sizes == SIZES


def test_an_axis_of_size_1_communicates_nothing():
    assert wire(explain(mlp, mesh="dp=4,tp=1", **SIZES)) == {("gradient", "dp"): 2 * (2 * 3 * 1024 * 4096)}


def test_values_know_what_they_are_computed_from():
    found = explain(mlp, mesh="dp=16,tp=4", grad=False, **SIZES)
    names = {one.ident: one.name for one in found.values} | {one.ident: one.operation for one in found.collectives}
    sources = {names[one.ident]: {names[at] for at in one.after} for one in (*found.values, *found.collectives)}
    made = {"mlp": {"x", "up"}, "all-reduce": {"mlp", "down"}, "return": {"all-reduce"}}
    assert sources == {"x": set(), "up": set(), "down": set(), **made}


def test_numbers_of_values_and_collectives_are_all_different_and_those_of_the_gradient_come_from_the_results():
    found = explain(mlp, mesh="dp=16,tp=4", **SIZES)
    every = (*found.values, *found.collectives)
    idents = [one.ident for one in every]
    assert len(set(idents)) == len(idents)
    assert all(set(one.after) <= set(idents) for one in every)
    (result,) = [one for one in found.values if one.kind == "result"]
    assert all(result.ident in one.after for one in found.collectives if one.part == "gradient")


# Arguments


def test_arguments_may_be_given_as_arrays_which_are_not_touched(mesh):
    x, up, down = (np.ones(shape, np.float32) for shape in ((8, 4), (4, 6), (6, 4)))
    found = explain(mlp, jax.device_put(x, NamedSharding(mesh, P("dp"))), up, down)
    assert found.mesh == (("dp", 4), ("tp", 2))
    assert [one.shape for one in found.values if one.kind == "argument"] == [(8, 4), (4, 6), (6, 4)]


def test_some_arguments_may_be_given_and_the_others_made():
    found = explain(mlp, *shapes((64, 8)), mesh="dp=4,tp=2", ff=12)
    assert found.sizes == {"batch": 64, "model": 8, "ff": 12}


def test_a_dtype_is_that_of_the_argument():
    @typed_shard_map
    def f(x: Float[Array, "[a/dp] b"]) -> Float[Array, "b"]:
        return psum(x.sum(0), "dp")

    found = explain(f, *shapes((8, 4), dtype=jnp.bfloat16), mesh="dp=4", grad=False)
    assert [(one.dtype, one.bytes) for one in found.values] == [("bf16", 16), ("bf16", 8)]
    assert found.collectives[0].operand == "bf16[4]"


def test_static_arguments_are_no_values():
    @typed_shard_map
    def f(x: Float32[Array, "[a/dp] b"], power: int, *, is_mean: bool = True) -> Float32[Array, "b"]:
        total = psum((x**power).sum(0), "dp")
        return total / 8 if is_mean else total

    found = explain(f, mesh="dp=4", a=8, b=2, power=3, is_mean=False)
    assert [one.name for one in found.values] == ["x", "return"]


def test_paths_name_the_arrays_in_containers():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Layer:
        w: Float32[Array, "[a/tp] b"]
        gain: Float32[Array, "b"]

    @typed_shard_map
    def f(layers: tuple[Layer, Layer]) -> dict[str, Float32[Array, "[a/tp] b"]]:
        return {"w": layers[0].w * layers[1].gain}

    found = explain(f, mesh="tp=2", a=4, b=3)
    assert [(one.kind, one.name) for one in found.values] == [
        ("argument", "layers[0].w"),
        ("argument", "layers[0].gain"),
        ("argument", "layers[1].w"),
        ("argument", "layers[1].gain"),
        ("result", "return['w']"),
    ]


def test_methods_are_explained_with_what_their_instance_holds():
    class Model:
        width = 3

        @typed_shard_map
        def total(self, x: Float32[Array, "[a/dp] {self.width}"]) -> Float32[Array, "{self.width}"]:
            return psum(x.sum(0), "dp")

    assert [one.shape for one in explain(Model().total, mesh="dp=4", a=8).values] == [(8, 3), (3,)]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scale:
    w: Float32[Array, "b"]

    @typed_shard_map
    def apply(self, x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
        return x * self.w


def test_the_arrays_of_an_instance_are_arguments_without_hints():
    found = explain(Scale(jnp.ones(2)).apply, mesh="dp=4", a=8, b=2, grad=False)
    assert [(value.name, value.bytes) for value in found.values] == [("self.w", 8), ("x", 16), ("return", 16)]
    assert found.notes == ("no hint says how self.w is sharded; it counts as unsharded",)


def test_arguments_by_position_may_be_partial_sums_over_explicit_axes():
    @typed_shard_map
    def f(x: Float32[Array, "a +dp"]) -> Float32[Array, "a"]:
        return psum(x, "a +dp -> a")

    explicit = AbstractMesh((4,), ("dp",), axis_types=(AxisType.Explicit,))
    given, drawn = explain(f, *shapes((8,)), mesh=explicit, grad=False), explain(f, mesh=explicit, a=8, grad=False)
    assert given == drawn and wire(given) == {("forward", "dp"): 48}


def test_keys_have_the_bytes_of_their_numbers():
    @typed_shard_map
    def f(keys: Key[Array, "[n/dp]"]) -> Float32[Array, "[n/dp]"]:
        return jax.vmap(jax.random.normal)(keys)

    found = explain(f, mesh="dp=4", n=8)
    assert [(one.dtype, one.bytes) for one in found.values] == [("key<fry>", 16), ("f32", 8)]


@typed_jit
def rescaled(x: Float32[Array, "[a/dp]"], rest: Any) -> Float32[Array, "[a/dp]"]:
    return x * rest["scale"]


def test_an_argument_hinted_any_counts_as_unsharded():
    found = explain(rescaled, *shapes((8,)), {"scale": jnp.ones(8)}, mesh="dp=4", grad=False)
    assert [(one.name, one.bytes) for one in found.values] == [("x", 8), ("rest['scale']", 32), ("return", 8)]
    assert found.notes[0] == "no hint says how rest['scale'] is sharded; it counts as unsharded"


@pytest.mark.parametrize("mesh", ["dp=64", "dp=4,tp=2", None])
def test_an_array_without_a_hint_may_be_placed_on_another_mesh(mesh):
    own = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Explicit,) * 2)
    scale = jax.device_put(jnp.ones(64), NamedSharding(own, P("dp")))
    found = explain(rescaled, *shapes((64,)), {"scale": scale}, mesh=mesh or own, grad=False)
    assert [(value.name, value.bytes) for value in found.values][1] == ("rest['scale']", 256)


# Meshes


def sum_of(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "b"]:
    return psum(x.sum(0), "dp")


total = typed_shard_map(sum_of)


def test_an_ambient_mesh_of_another_size_may_be_replaced(mesh):
    with jax.set_mesh(mesh):
        assert explain(total, a=8, b=2).mesh == (("dp", 4), ("tp", 2))
        assert explain(total, mesh="dp=64", a=64, b=2).collectives[0].group == 64
        assert jax.sharding.get_mesh() == mesh


def test_a_mesh_that_is_written_down_has_the_axis_types_of_the_functions_own():
    explicit = AbstractMesh((4,), ("dp",), axis_types=(AxisType.Explicit,))

    @typed_shard_map(mesh=explicit)
    def f(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "b +dp"]:
        return x.sum(0)

    found = explain(f, mesh="dp=16", a=16, b=2)
    assert str(found.values[-1].spec) in ("P(None, unreduced={'dp'})", "P(None, unreduced={'dp'}, unreduced_kind=sum)")
    assert found.collectives == ()


def test_jitted_functions_are_explained(mesh):
    assert wire(explain(jax.jit(total), mesh=mesh, a=8, b=2, grad=False)) == {("forward", "dp"): 12}


def test_a_function_for_manual_regions_is_mapped_and_that_is_said():
    found = explain(typed(sum_of), mesh="dp=4,tp=2", a=8, b=2, grad=False)
    assert wire(found) == {("forward", "dp"): 12}
    assert found.notes == ("sum_of is explained as mapped over dp, tp, as it is called in a manual region",)


def test_names_in_the_hints_of_a_mapped_function_keep_their_meaning():
    helper = typed(sum_of, axes={"dp": "data"}, rules={"b": "tp"})
    assert explain(helper, mesh="data=4,tp=2", a=8, b=4).values[0].spec == P("data", "tp")


# Loops, branches, and what cannot be seen


def test_a_while_loop_is_counted_for_one_iteration_and_that_is_said():
    @typed_shard_map
    def f(x: Float32[Array, "b"], n: Int[Array, ""]) -> Float32[Array, "b"]:
        def iteration(carry):
            return carry[0] + 1, lax.pmean(lax.pcast(carry[1], "dp", to="varying"), "dp")

        return lax.while_loop(lambda carry: carry[0] < n, iteration, (jnp.zeros_like(n), x))[1]

    found = explain(f, mesh="dp=4", b=2)
    (one,) = found.collectives
    assert one.is_open and one.loops == ("while",)
    assert found.notes[0] == "the number of iterations of a while loop is unknown: its body is counted once"
    assert found.notes[1].startswith("no gradient is reported: it cannot be differentiated: ValueError: Reverse-mode")
    assert " 12 B per iteration" in found.tables and " 1 per iteration " in found.tables
    assert "per device: 1 collective: forward 12 B per iteration over dp\n" in str(found)


def test_of_branches_the_one_that_sends_most_is_counted():
    @typed_shard_map
    def f(x: Float32[Array, "[a/dp] b"], n: Int[Array, ""]) -> Float32[Array, "b"]:
        both = lambda x: psum(psum(x, "dp") * lax.axis_index("tp"), "tp")  # noqa: E731
        return lax.cond(n > 0, lambda x: psum(x, "dp"), both, x.sum(0))

    found = explain(f, mesh="dp=4,tp=2", a=8, b=2, grad=False)
    assert wire(found) == {("forward", "dp"): 12, ("forward", "tp"): 8}
    assert found.notes == ("for a cond, the branch that sends most is counted",)


def test_equal_collectives_at_one_place_are_one_row():
    @typed_shard_map
    def f(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "b"]:
        for _ in range(5):
            x = jnp.sin(x) * psum(x.sum(0), "dp")
        return psum(x.sum(0), "dp")

    found = explain(f, mesh="dp=4", a=8, b=2, grad=False)
    assert len(found.collectives) == 6
    rows = [line.split() for line in found.tables.splitlines() if line.startswith("forward") and "all-reduce" in line]
    assert [row[-3] for row in rows] == ["5", "1"]


def test_axes_that_stay_automatic_are_reported():
    hints = {"in_types": (Float32[Array, "[a/dp] [b/tp]"],), "out_types": Float32[Array, "[b/tp]"]}
    f = typed_shard_map(lambda x: psum(x.sum(0), "dp"), axis_names={"dp"}, **hints)
    found = explain(f, mesh="dp=4,tp=2", a=8, b=4, grad=False)
    assert found.values[0].shard == (2, 2)
    assert found.collectives[0].operand == "f32[4]"
    assert found.notes == (
        "a region is not manual over tp: there XLA shards arrays further, and what it sends is not counted",
    )


def test_a_kernel_that_may_communicate_is_reported():
    pallas = pytest.importorskip("jax.experimental.pallas")

    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    @typed_shard_map(check_vma=False)
    def f(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
        return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    (note, *_) = explain(f, mesh="dp=4", a=8, b=2, grad=False).notes
    assert note.startswith("communication inside of a Pallas kernel (test_explanations.py:")
    assert note.endswith(" cannot be seen")


@typed_jit
def checked(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
    return check(x, "[a/dp] b")


@typed_jit
def summed(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "b"]:
    return x.sum(0)


@pytest.mark.parametrize(("f", "mesh", "notes"), [(checked, "dp=4", 0), (summed, "dp=1", 0), (summed, "dp=2", 1)])
def test_only_operations_on_global_arrays_of_several_devices_are_noted(f, mesh, notes):
    assert len(explain(f, mesh=mesh, a=8, b=2, grad=False).notes) == notes


# Gradients


def test_a_function_that_takes_a_gradient_itself_is_not_differentiated_again_unless_asked():
    @typed_shard_map
    def f(w: Float32[Array, "b"], x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "b"]:
        return jax.grad(lambda w: psum(jnp.sum(jnp.sin(x * w)), "dp"))(w)

    found = explain(f, mesh="dp=4", a=8, b=2)
    assert wire(found) == {("gradient", "dp"): 12}
    assert found.notes == ("f takes a gradient itself, and is not differentiated again (grad=True does)",)
    assert len(explain(f, mesh="dp=4", a=8, b=2, grad=True).collectives) > len(found.collectives)


def test_why_there_is_no_gradient_is_reported():
    assert explain(counted, **ON).notes == ("no gradient is reported: no argument is of an inexact dtype",)


def test_integers_among_arguments_and_results_are_left_out_of_the_gradient():
    @typed_shard_map
    def f(x: Float32[Array, "[a/dp] b"], n: Int[Array, ""]) -> tuple[Float32[Array, "b"], Int[Array, ""]]:
        return psum(x.sum(0), "dp") * n, n + 1

    assert wire(explain(f, mesh="dp=4", a=8, b=2, grad=True)) == {("forward", "dp"): 12}


# Memory


def test_a_donated_argument_that_a_result_is_like_is_counted_once():
    @typed_jit(donate_argnames=("state", "other"))
    def step(
        state: Float32[Array, "[a/dp] b"], other: Float32[Array, "b"], x: Float32[Array, "[c/dp] b"]
    ) -> tuple[Float32[Array, "[a/dp] b"], Float32[Array, ""]]:
        return state + other, jnp.sum(x)

    memory = explain(step, mesh="dp=4", a=8, b=2, c=12, grad=False).memory
    assert (memory.arguments, memory.results, memory.reused) == (16 + 8 + 24, 16 + 4, 16)
    assert memory.peak == 48 + 20 - 16


def test_donation_is_seen_beside_other_operations():
    @typed_jit(donate_argnums=0)
    def step(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
        return 2 * x

    explicit = AbstractMesh((4,), ("dp",), axis_types=(AxisType.Explicit,))
    assert explain(step, mesh=explicit, a=8, b=2, grad=False).memory.reused == 16


# What is wrong


@typed_shard_map
def forgotten(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "b"]:
    return x


@typed_shard_map
def counted(x: Int[Array, "[a/dp] b"]) -> Int[Array, "b"]:
    return psum(x.sum(0), "dp")


@typed_shard_map
def endless(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "b"]:
    return lax.while_loop(lambda total: jnp.max(total) < 9, lambda total: 2 * total, psum(x.sum(0), "dp"))


A_MESH = 'Hint: a mesh is a jax.sharding.Mesh or AbstractMesh, a dict of sizes, or a text as in "dp=4,tp=2"'
ON = {"mesh": "dp=4", "a": 8, "b": 2}
REFUSED = {
    **{
        f"the mesh {mesh!r}": (total, (), {"mesh": mesh}, MeshAxisError, f"explain: mesh= is {mesh!r}\n\n{A_MESH}")
        for mesh in ("dp", "dp=x", "", {}, {"dp": 0})
    },
    "a number as a mesh": (total, (), {"mesh": 3}, MeshAxisError,
                           "explain: mesh= expects a jax.sharding.Mesh or AbstractMesh, got 3 of type int"),
    "no mesh": (total, (), {"a": 8, "b": 2}, MeshAxisError,
                "explain: no mesh is known: mesh= is not given, none is ambient, and no argument was placed on one\n\n"
                'Hint: pass mesh=, as in mesh={"dp": 4, "tp": 2}; it needs no devices'),
    "a mesh without axes": (total, (), {**ON, "mesh": Mesh(np.array(jax.devices()[0]), ())}, MeshAxisError,
                            "explain: the mesh has no axes"),
    "no meshes": (total, (), {"meshes": []}, MeshAxisError, "explain: mesh= is empty"),
    "a size that does not divide": (total, shapes((6, 2)), {"mesh": "dp=4"}, ShapeError,
                                    "explain: sum_of: argument 'x' has a=6, which does not divide over 'dp' (4 "),
    "no arguments": (jnp.sin, (), {"mesh": "dp=4"}, StructureError,
                     "explain: sin: it has no hints and needs its arguments"),
    "an error of the body": (forgotten, (), ON, ShapeError, "forgotten: return value "),
    "a gradient of integers": (counted, (), {**ON, "grad": True}, StructureError,
                               "explain: counted: grad=True, but no argument is of an inexact dtype"),
    "a gradient of a while loop": (endless, (), {**ON, "grad": True}, StructureError,
                                   "explain: endless: grad=True, but it cannot be differentiated: ValueError: "),
    "grad": (mlp, (), {"mesh": "dp=2,tp=2", "grad": 1}, StructureError,
             "explain: grad=1 is not True, False or None"),
    "arguments": (mlp, (), {"mesh": "dp=2,tp=2", "arguments": 3}, StructureError,
                  "explain: arguments= expects a dict of arguments by name or path, got 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_explained_is_refused(name):
    f, args, options, error, message = REFUSED[name]
    with pytest.raises(error) as caught:
        explain(f, *args, **options)
    assert str(caught.value).startswith(message)


def test_a_check_of_what_an_operation_recorded_already_is_a_row_too():
    @typed_shard_map
    def f(x: Float32[Array, "[b/dp] m"], w: Float32[Array, "m [f/tp]"]) -> Float32[Array, "[b/dp] [f/tp]"]:
        h = einsum(x, w, "[b/dp] m, m [f/tp] -> [b/dp] [f/tp]")
        h = check(h, "[b/dp] [f/tp]")
        return check(h, "[b/dp] [f/tp]") * 2

    found = explain(f, mesh="dp=2,tp=2", b=4, m=6, f=8, grad=False)
    checks = [(one.shape, one.shard) for one in found.values if one.kind == "check"]
    assert checks == [((4, 8), (2, 4))] * 2
    ours = jax.make_jaxpr(lambda *a: f(*a))  # what is stated for the table is in no other program
    x, w = shapes((4, 6), (6, 8))
    with jax.sharding.use_abstract_mesh(AbstractMesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)):
        assert str(ours(x, w)).count("typedshmap_claim") == 0


def test_a_helper_with_an_unreduced_result_is_explained_on_a_mesh_of_any_type():
    @typed
    def partial(x: Float32[Array, "[b/dp]"]) -> Float32[Array, "+dp"]:
        return jnp.sum(x)

    (result,) = (one for one in explain(partial, mesh="dp=2", b=4).values if one.kind == "result")
    assert result.spec == P(unreduced={"dp"})


@typed_jit
def init(rows: int = 8) -> dict[str, Float[Array, "[b/dp] d"]]:
    return {"w": jnp.ones((rows, 4))}


def test_a_function_without_arrays_is_explained():
    assert [(value.name, value.shard) for value in explain(init, mesh="dp=4").values] == [("return['w']", (2, 4))]
    assert [row.values[0].shard for row in explain(init, meshes=["dp=4", "dp=2"], rows=16)] == [(4, 4), (8, 4)]
    assert explain(init, 16, mesh={"dp": 8}).values[0].shard == (2, 4)


def test_a_function_without_arrays_is_compiled_on_the_ambient_mesh(mesh):
    gradient = jax.grad(lambda w: (w * init()["w"]).sum())
    with jax.set_mesh(mesh):
        assert init()["w"].sharding.spec == P("dp", None)
        assert jax.eval_shape(lambda: init(16)["w"]).shape == (16, 4)
        for f in (gradient, jax.jit(gradient)):
            np.testing.assert_array_equal(f(np.ones((8, 4), np.float32)), np.ones((8, 4)))


@pytest.mark.parametrize(
    ("args", "kwargs", "names"),
    [
        (shapes((8,)), {}, ["x"]),
        (shapes((8,), (8,)), {}, ["x", "bias"]),
        (shapes((8,), (8,), (8,)), {}, ["x", "bias", "more[0]"]),
        ((), {"x": shapes((8,))[0]}, ["x", "bias", "more[0]", "more[1]"]),
    ],
)
def test_a_call_by_position_that_lacks_no_argument_is_explained_as_it_is(args, kwargs, names):
    @typed_shard_map
    def f(
        x: Float32[Array, "[a/dp]"], bias: Float32[Array, "a"] | None = None, *more: Float32[Array, "a"]
    ) -> Float32[Array, "[a/dp]"]:
        return x

    found = explain(f, *args, mesh="dp=4", grad=False, **kwargs)
    assert [value.name for value in found.values] == [*names, "return"]


def test_options_are_left_to_their_defaults():
    @typed_shard_map
    def f(x: Float32[Array, "[a/dp] b"], scale=2.0, *rest, flag=True, **more) -> Float32[Array, "[a/dp] b"]:
        return x * scale

    by_size = explain(f, mesh="dp=4", a=8, b=2)
    given = explain(f, *shapes((8, 2)), 3.0, mesh="dp=4", flag=False, unused="relu")
    assert by_size.values[0].shard == given.values[0].shard == (2, 2)
