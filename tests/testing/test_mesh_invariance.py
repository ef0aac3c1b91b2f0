"""What depends on the mesh is found, with the axis that makes it; what does not is left alone."""

import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh
from tiers import slow

from typedshmap import (
    Array,
    BFloat16,
    Bool,
    Complex64,
    Float,
    Float8e4m3fn,
    Float32,
    Int,
    Key,
    StructureError,
    UInt8,
    VaryingError,
    assume,
    einsum,
    psum,
    size,
    typed,
    typed_jit,
    typed_shard_map,
)
from typedshmap.testing.describe_difference import Where
from typedshmap.testing.invariance import assert_mesh_invariant

X = Float[Array, "[batch/dp] [model/tp]"]
Rows = Float[Array, "[batch/dp] model"]
Owed = Float[Array, "[batch/dp] +tp"]


@typed_shard_map
def center(x: X) -> X:
    return x - x.mean(-1, keepdims=True)


@typed_shard_map
def centered(x: X) -> X:
    return x - jax.lax.pmean(x.mean(-1, keepdims=True), "tp")


def failure(f, *args, trials=1, is_whole=False, **kwargs) -> str:
    """The message of a function that depends on the mesh; unless it is whole, its first difference is not sought."""
    sought = "typedshmap.testing.invariance.describe_first_difference"
    instead = nullcontext() if is_whole else mock.patch(sought, return_value=Where([]))
    with instead, pytest.raises(AssertionError) as caught:
        assert_mesh_invariant(f, *args, trials=trials, **kwargs)
    assert type(caught.value) is AssertionError
    return str(caught.value)


def first_line(f, *args, **kwargs) -> str:
    return failure(f, *args, **kwargs).splitlines()[0]


def test_a_local_mean_is_reported_in_full():
    assert failure(center, is_whole=True) == (
        "center: return value depends on the mesh: at [9,0] it is -0.1135 on tp=2, but 0.3677 on one device\n"
        "\n"
        "    384 of 384 entries differ, by up to 0.481; rounding in float32 explains at most 1e-04\n"
        "    nothing in the program communicates over 'tp'\n"
        "    'tp' alone causes the difference\n"
        "    differs on tp=2; dp=4, tp=2; dp=2, tp=4\n"
        "    agrees on dp=4\n"
        "\n"
        "First difference: test_mesh_invariance.py:49 (center)\n"
        "    reduce_sum: float32[16] per shard, its sum over 'tp' is that on one device\n"
        "    operand 0: float32[16,12] per shard, dim 1 sharded over 'tp': as on one device\n"
        "    read as: a partial sum over 'tp', due since test_mesh_invariance.py:49 (center)\n"
        "\n"
        "Sizes: batch=16, model=24\n"
        "Again: seed=0\n"
        "Hint: is a shard's own value used as the global one?"
    )


def test_a_right_program_says_what_was_tried():
    found = assert_mesh_invariant(centered, trials=2, batch=8, model=8)
    assert str(found) == "centered: the same on one device; dp=4; tp=2; dp=4, tp=2; dp=2, tp=4 (2 trials)"
    assert found.seeds == (0, 1)


# What is wrong, by what it shows in the numbers


@typed_shard_map
def summed_twice(x: X, w: Float[Array, "[model/tp] out"]) -> Float[Array, "[batch/dp] out"]:
    return jax.lax.psum(jax.lax.psum(x @ w, "tp"), "tp")


@typed_shard_map
def same_noise(x: Rows, key: Key[Array, ""]) -> Rows:
    return 0 * x + jax.random.normal(key, x.shape)


@typed_shard_map
def own_noise(x: Rows, key: Key[Array, ""]) -> Rows:
    return x + jax.random.normal(jax.random.fold_in(key, jax.lax.axis_index("dp")), x.shape)


@typed_shard_map(check_vma=False)
def swapped(x: Float[Array, "[n/dp,tp]"]) -> Float[Array, "[n/dp,tp]"]:
    rows = jax.lax.all_gather(x, ("tp", "dp"))
    return rows[jax.lax.axis_index("dp") * jax.lax.axis_size("tp") + jax.lax.axis_index("tp")]


@typed_shard_map
def flattened(x: X) -> Float[Array, "[batch*model/dp,tp]"]:
    return assume(x.reshape(-1), "[_/dp,tp]")


@typed_shard_map
def own_total(x: Rows) -> Rows:
    return jnp.cumsum(x, 0)


@typed_shard_map
def own_mean(x: X) -> X:
    return x - x.mean()


@typed_shard_map
def two_of_three(x: X) -> tuple[X, X, X]:
    return x - x.mean(-1, keepdims=True), x, x - x.max(-1, keepdims=True)


@typed_shard_map
def positional(*xs: X) -> X:
    return sum(xs) * xs[0].max()


@typed_shard_map(check_vma=False)
def first_rows(x: Float[Array, "[n/dp]"]) -> Float[Array, "[_/dp] 2"]:
    return jnp.stack([x[:2], x[:2]], 1)


@typed
def missing(x: X) -> dict[str, X]:
    return {"y": x, **({"z": x} if jax.sharding.get_abstract_mesh().shape["tp"] == 1 else {})}


@typed_shard_map
def own_index(x: Int[Array, "[batch/dp] [model/tp]"]) -> Int[Array, "[batch/dp]"]:
    return jax.lax.pmax(jnp.argmax(x, -1), "tp")


TOGETHER = "only 'dp' and 'tp' together cause the difference\n    differs on dp=2, tp=2\n    agrees on dp=2; tp=2\n"
REPORTED = [
    (summed_twice, ["dp=2,tp=4"], {}, [
        "summed_twice: return value depends on the mesh: it is 4 times what one device gives, the size of 'tp': at",
        "Hint: is a sum over 'tp' taken twice, is something divided by a shard's size, or does every shard count it?",
    ]),
    (same_noise, ["dp=4"], {}, [
        "depends on the mesh: its 4 parts along dim 0 are equal, as many as 'dp' has shards: at [",
        "Hint: does every shard along 'dp' draw the same random numbers?",
    ]),
    slow((own_noise, ["dp=2"], {}, [
        "Hint: for the same numbers on every mesh draw those of the whole array, and take each shard's part of them",
    ])),
    (swapped, ["dp=2,tp=2"], {}, [
        "depends on the mesh: its 4 parts along dim 0 stand in the order 0, 2, 1, 3: at [", TOGETHER,
    ]),
    (flattened, ["dp=2,tp=2"], {}, [
        "depends on the mesh: it has the same entries in another order: at [",
        "Hint: is a dim flattened or split in the wrong order?",
    ]),
    (own_total, ["dp=4"], {}, ["along 'dp' only shards 1, 2, 3 of 4 are wrong\n"]),
    (own_mean, None, {}, ["    each of 'tp', 'dp' alone causes the difference\n"]),
    slow((two_of_three, None, {"grad": True}, [
        "two_of_three: return[0] depends on the mesh: ", "\n    wrong, too: return[2], grad(x)\n",
    ])),
    slow((positional, None, {"grad": True}, ["\n    wrong, too: grad(xs[0]), grad(xs[1])\n"])),
    (first_rows, ["dp=2"], {"n": 8}, ["depends on the mesh: it is f32[4,2] on dp=2, but f32[2,2] on one device\n"]),
    (missing, ["tp=2"], {}, [
        "return['z'] depends on the mesh: it is missing on tp=2, but f32[8,12] on one device\n",
    ]),
    (own_index, ["tp=2"], {}, ["; int32 has to be equal"]),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")
@pytest.mark.parametrize(("f", "meshes", "options", "texts"), REPORTED, ids=lambda each: getattr(each, "__name__", ""))
def test_what_is_wrong_is_reported_by_what_it_shows(f, meshes, options, texts):
    message = failure(f, meshes, **options)
    for text in texts:
        assert text in message


@pytest.mark.slow
def test_random_numbers_of_each_shard_are_declared():
    @typed_shard_map
    def noisy(x: Rows, key: Key[Array, ""]) -> dict[str, Rows]:
        own = jax.random.fold_in(key, jax.lax.axis_index("dp"))
        return {"noise": x * jax.random.normal(own, x.shape), "twice": 2 * x}

    cure = "if random numbers may differ between shards, exclude=\"return['noise']\" leaves this result out"
    assert failure(noisy, ["dp=2"]).endswith(f"Hint: {cure}")
    for name in ("return['noise']", "['noise']"):
        assert_mesh_invariant(noisy, ["dp=2"], grad=True, exclude=name, trials=1)
    for other in ("['twice']", "grad(x)"):
        assert first_line(noisy, ["dp=2"], grad=True, exclude=other).startswith("noisy: return['noise'] depends on ")


def test_a_shift_the_wrong_way_shows_only_on_more_than_two_shards():
    @typed_shard_map
    def shifted(x: Float[Array, "[n/dp]"]) -> Float[Array, "[n/dp]"]:
        count = jax.lax.axis_size("dp")
        arriving = jax.lax.ppermute(x[:1], "dp", [(i, (i + 1) % count) for i in range(count)])
        return jnp.concatenate([x[1:], arriving])

    assert_mesh_invariant(shifted, ["dp=2"], trials=1)
    assert "differs on dp=4" in failure(shifted, ["dp=2", "dp=4"])


def test_a_gradient_that_is_wrong_is_found_where_results_agree():
    @jax.custom_vjp
    def summed(x):
        return jax.lax.psum(x, "tp")

    summed.defvjp(lambda x: (summed(x), None), lambda _, g: (g,))

    @typed_shard_map(check_vma=False)
    def loss(x: X) -> Float[Array, "[batch/dp]"]:
        return summed((x**2).sum(-1))

    assert_mesh_invariant(loss, ["tp=2"], trials=1)
    assert first_line(loss, ["tp=2"], grad=True).startswith(
        "loss: grad(x) depends on the mesh: it is 1/2 of what one device gives"
    )


def test_a_scalar_has_no_place():
    @typed_shard_map(check_vma=False)
    def counted(x: Float[Array, "[n/dp]"]) -> Int[Array, ""]:
        return jax.lax.psum(len(x), "dp") + jax.lax.axis_size("dp")

    assert failure(counted, ["dp=4"], n=8, is_whole=True) == (
        "counted: return value depends on the mesh: it is 12 on dp=4, but 9 on one device\n"
        "\n"
        "    it differs; int32 has to be equal\n"
        "    nothing in the program communicates over 'dp'\n"
        "    'dp' alone causes the difference\n"
        "    differs on dp=4\n"
        "\n"
        "First difference: not known, since no line computes a different value from equal operands\n"
        "\n"
        "Sizes: n=8\n"
        "Again: seed=0\n"
        "Hint: is a shard's own value used as the global one?"
    )


# Whatever a function takes and gives


class State(NamedTuple):
    w: Float[Array, "model [ff/tp]"]
    step: Int[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Metrics:
    loss: Float[Array, ""]
    wide: Bool[Array, ""]


@pytest.mark.slow
def test_trees_of_arguments_and_results_are_named_by_path():
    @typed_shard_map
    def step(state: State, x: Float[Array, "[batch/dp] model"]) -> tuple[State, Metrics]:
        h = x @ state.w
        loss = jax.lax.pmean(jnp.mean(h**2), ("dp", "tp"))
        wrong = state.w * jax.lax.pmean(x.sum(), "dp")
        return State(wrong, state.step + 1), Metrics(loss, loss > 0)

    message = failure(step, ["dp=2,tp=2"], grad=True)
    assert message.startswith("step: return[0].w depends on the mesh: ")
    assert "wrong, too: grad(state.w), grad(x)\n" in message
    assert_mesh_invariant(step, ["dp=2,tp=2"], exclude="return[0].w", trials=1)
    assert_mesh_invariant(step, ["dp=2,tp=2"], exclude=["[0]"], trials=1)
    assert_mesh_invariant(step, ["dp=2,tp=2"], grad=True, exclude=["[0].w"], trials=1)


def test_static_defaulted_and_keyword_only_arguments_stay_as_they_are():
    @typed_shard_map
    def scaled(
        x: X, power: int, *more: X, by: Float[Array, "[batch/dp]"], name: str = "tp"
    ) -> Float[Array, "[batch/dp]"]:
        return by * jax.lax.psum(sum(x**power + y for y in more).sum(-1), name)

    assert_mesh_invariant(scaled, ["dp=2,tp=2"], grad=True, power=3, trials=1)


def test_a_method_of_an_instance_is_called_with_it():
    class Model:
        def __init__(self, by: float) -> None:
            self.by = by

        @typed_shard_map
        def right(self, x: X) -> X:
            return self.by * x

        @typed_shard_map
        def wrong(self, x: X) -> X:
            return self.by * x - x.max(-1, keepdims=True)

    assert_mesh_invariant(Model(2.0).right, ["tp=2"], trials=1)
    assert first_line(Model(2.0).wrong, ["tp=2"]).startswith("Model.wrong: return value depends on the mesh: ")


def test_integers_that_rounding_alone_changes_may_differ():
    @typed_shard_map
    def rounded(x: X) -> Int[Array, "[batch/dp]"]:
        return jnp.floor(1e9 * jax.lax.psum(x.sum(-1), "tp")).astype(jnp.int32) // 1000

    assert_mesh_invariant(rounded, ["tp=2"], trials=1)


@pytest.mark.slow
def test_keys_have_to_be_equal():
    @typed_shard_map
    def split(keys: Key[Array, "[n/dp]"]) -> Key[Array, "[n/dp]"]:
        return jax.vmap(lambda key: jax.random.fold_in(key, jax.lax.axis_index("dp")))(keys)

    @typed_shard_map
    def same(keys: Key[Array, "[n/dp]"]) -> Key[Array, "[n/dp]"]:
        return jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)

    assert first_line(split, ["dp=2"]).startswith("split: return value depends on the mesh: at [")
    assert_mesh_invariant(same, trials=1)


@pytest.mark.slow
def test_what_is_not_a_number_on_both_sides_is_the_same():
    @typed_shard_map
    def logs(x: X) -> X:
        return jnp.where(x > 0, jnp.log(x), jnp.where(x < -1, -jnp.inf, jnp.nan))

    @typed_shard_map
    def one_shard(x: X) -> X:
        return jnp.where(jax.lax.axis_index("tp") > 0, jnp.nan, x)

    assert_mesh_invariant(logs, trials=1)
    assert "it is nan on tp=2" in failure(one_shard)


def test_results_that_are_nothing_but_not_a_number_are_warned_of():
    @typed_shard_map
    def lost(x: X) -> X:
        return jnp.nan * x

    with pytest.warns(UserWarning, match="lost: return value is NaN on one device, which no mesh can change; pass"):
        assert_mesh_invariant(lost, ["tp=2"], trials=1)


@pytest.mark.slow
def test_complex_numbers_are_compared():
    @typed_shard_map
    def turned(x: Complex64[Array, "[n/dp]"]) -> Complex64[Array, "[n/dp]"]:
        return 1j * x + x.sum()

    @typed_shard_map
    def right(x: Complex64[Array, "[n/dp]"]) -> Complex64[Array, "[n/dp]"]:
        return 1j * x + jax.lax.psum(x.sum(), "dp")

    assert first_line(turned).startswith("turned: return value depends on the mesh: ")
    assert_mesh_invariant(right, grad=True, trials=1)


# Whatever made the function


def test_a_jitted_function_is_tried_anew_on_every_mesh():
    assert first_line(jax.jit(center), ["dp=4", "tp=2"]).startswith("center: return value depends on the mesh: ")
    assert_mesh_invariant(jax.jit(centered), ["dp=4", "tp=2"], trials=1)


@pytest.mark.slow
def test_a_function_of_typed_jit_is_tried_with_its_inner_regions():
    def made(inner):
        @typed_jit
        def outer(x: X) -> Float[Array, "[batch/dp]"]:
            return jnp.sum(inner(2 * x) ** 2, -1)

        return outer

    assert_mesh_invariant(made(centered), grad=True, trials=1)
    assert first_line(made(center)).startswith("outer: return value depends on the mesh: ")


def test_the_mesh_of_the_decorator_is_replaced(mesh):
    def made(where):
        def lowered(x: X) -> X:
            return x - jax.lax.pmax(x.max(-1), "tp")[:, None]

        return typed_shard_map(lowered, mesh=where)

    found = assert_mesh_invariant(made(mesh), trials=1)
    assert [dict(each.shape) for each in found.meshes] == [
        {"dp": 1, "tp": 1},
        {"dp": 4, "tp": 1},
        {"dp": 1, "tp": 2},
        {"dp": 4, "tp": 2},
        {"dp": 2, "tp": 4},
    ]
    assert_mesh_invariant(made(AbstractMesh((64, 16), ("dp", "tp"), (AxisType.Auto,) * 2)), ["tp=2"], trials=1)


def test_the_ambient_mesh_is_replaced(mesh):
    with jax.set_mesh(mesh):
        assert_mesh_invariant(centered, ["tp=2"], trials=1)
        assert first_line(center, ["tp=2"]).startswith("center: return value depends on the mesh: ")
        assert jax.sharding.get_mesh() == mesh


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")
def test_explicit_axes_stay_explicit():
    explicit = Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"), axis_types=(AxisType.Explicit,) * 2)

    @typed_shard_map(mesh=explicit)
    def partial(x: X, w: Float[Array, "[model/tp] out"]) -> Float[Array, "[batch/dp] out +tp"]:
        return einsum(x, w, "[b/dp] [m/tp], [m/tp] o -> [b/dp] o +tp")

    @typed_shard_map(mesh=explicit)
    def wrong(x: X, w: Float[Array, "[model/tp] out"]) -> Float[Array, "[batch/dp] out +tp"]:
        return jnp.tanh(x @ w)

    with jax.set_mesh(explicit):
        found = assert_mesh_invariant(partial, grad=True, trials=1)
        assert {kind for each in found.meshes for kind in each.axis_types} == {AxisType.Explicit}
        assert first_line(wrong).startswith("wrong: return value depends on the mesh: ")


# Compiled once for each mesh


def sizes_traced(trials, **given):
    """The sizes for which a function is traced, each time that it is."""
    seen = []

    @typed_shard_map
    def doubled(x: X) -> X:
        seen.append((size("batch"), size("model")))
        return x * 2

    assert_mesh_invariant(doubled, ["dp=4,tp=2"], trials=trials, **given)
    return seen


def test_trials_with_arguments_of_the_same_types_share_what_is_compiled():
    once = sizes_traced(1, batch=16, model=8)
    assert sizes_traced(3, batch=16, model=8) == once


def test_sizes_are_drawn_anew_in_every_trial_unless_they_or_an_argument_are_given():
    assert len(set(sizes_traced(3, batch=16))) > 1
    assert set(sizes_traced(2, x=np.ones((8, 12), np.float32))) == {(8, 12)}


# Helpers


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")
def test_a_helper_with_marks_is_mapped_and_its_result_summed():
    @typed
    def taken(x: X) -> Owed:
        return x.sum(-1)

    @typed
    def wrong(x: X) -> Owed:
        return jnp.exp(x.sum(-1))

    assert_mesh_invariant(taken, grad=True, trials=1)
    message = failure(wrong)
    assert "\nCalled: inside of typed_shard_map over all mesh axes; manual=False calls it on global arrays\n" in message


def test_a_helper_that_communicates_is_mapped():
    @typed
    def total(x: X) -> Float[Array, "[batch/dp]"]:
        return jax.lax.psum(x.sum(-1), "tp")

    @typed
    def by_pattern(x: X) -> Float[Array, "[batch/dp]"]:
        return psum(x.sum(-1), "[b/dp] ~tp -> [b/dp]")

    @typed
    def wrong(x: X) -> Float[Array, "[batch/dp]"]:
        return jax.lax.pmax(x.sum(-1), "tp")

    for right in (total, by_pattern, jax.jit(total)):
        assert_mesh_invariant(right, ["tp=2"], trials=1)
    assert "Called: inside of typed_shard_map" in failure(wrong, ["tp=2"])


@pytest.mark.slow
def test_another_helper_is_called_on_global_arrays_unless_asked_otherwise():
    @typed
    def normal(x: X) -> X:
        return x - x.mean(-1, keepdims=True)

    assert_mesh_invariant(normal, trials=1)
    assert first_line(normal, manual=True).startswith("normal: return value depends on the mesh: ")


# Trials


def test_a_failure_comes_again_from_its_seed():
    @typed_shard_map
    def rarely(x: Float[Array, "[n/dp]"]) -> Float[Array, "[n/dp]"]:
        return x if size("n") % 20 else x - x.mean()

    message = failure(rarely, ["dp=4"], trials=20)
    seed = int(message.split("Again: seed=")[1].splitlines()[0])
    assert seed > 0
    assert failure(rarely, ["dp=4"], seed=seed) == message


def test_what_depends_on_something_else_is_not_blamed_on_the_mesh():
    calls = []

    @typed_shard_map
    def counted(x: X) -> X:
        calls.append(x)
        return x + len(calls)

    expected = "counted: return value depends on something other than the arguments: at ["
    assert first_line(counted, ["tp=2"]).startswith(expected)


def test_an_error_of_the_types_on_some_mesh_passes_through_with_a_note():
    @typed_shard_map
    def forgotten(x: X) -> Float[Array, "[batch/dp]"]:
        return x.sum(-1)

    with pytest.raises(VaryingError) as caught:
        assert_mesh_invariant(forgotten)
    assert caught.value.__notes__[-1] == (
        "assert_mesh_invariant: forgotten on the mesh dp=4, tp=2\nSizes: batch=16, model=24\nAgain: seed=0"
    )


def test_an_exception_of_the_body_on_some_mesh_passes_through_with_a_note():
    @typed_shard_map
    def picky(x: X) -> X:
        if jax.lax.axis_size("tp") > 1:
            raise RuntimeError("no")
        return x

    with pytest.raises(RuntimeError, match="no") as caught:
        assert_mesh_invariant(picky, ["dp=2", "dp=2,tp=2"])
    assert "assert_mesh_invariant: picky on the mesh dp=2, tp=2" in caught.value.__notes__[-1]


REFUSED = [
    (center, {"trials": 0}, "trials must be an integer >= 1, got 0"),
    (center, {"seed": -1}, "seed must be an integer >= 0, got -1"),
    (center, {"seed": 1.5}, "seed must be an integer >= 0, got 1.5"),
    (center, {"rtol": -1.0}, "rtol must be a number >= 0, got -1.0"),
    (center, {"atol": "x"}, "atol must be a number >= 0, got 'x'"),
    (center, {"grad": 1}, "grad=1 is not True, False or None"),
    (center, {"exclude": [0]}, 'exclude= holds 0; it takes names of results, as "return[0]"'),
    (center, {"exclude": ".loss", "grad": True}, (
        "center: exclude= names 'return.loss', which is none of its results\n\nHint: they are 'return', 'grad(x)'"
    )),
    (center, {"exclude": "return"}, "center: nothing is left to compare; its results are 'return'"),
    (typed_shard_map(lambda x: x + 1, in_types=Int[Array, "[n/dp]"], out_types=Int[Array, "[n/dp]"]), {"grad": True}, (
        "<lambda>: grad=True, but no argument is inexact, so that there is no gradient"
    )),
    (center, {"manual": True}, (
        "center: manual= is for helpers made by typed; this one is made by typed_shard_map"
    )),
    (jnp.sin, {}, (
        "sin: it has no hints and needs its arguments, arrays or jax.ShapeDtypeStruct: missing a required argument: 'x'"
    )),
]  # fmt: skip


@pytest.mark.parametrize(("f", "options", "message"), REFUSED)
def test_what_cannot_be_compared_is_refused(f, options, message):
    with pytest.raises(StructureError) as caught:
        assert_mesh_invariant(f, **options)
    assert str(caught.value) == f"assert_mesh_invariant: {message}"


@pytest.mark.slow
def test_an_error_of_one_in_a_thousand_is_found_in_float32():
    def made(off: float):
        @typed_shard_map
        def loss(x: Float32[Array, "[batch/dp] model"], w: Float32[Array, "model out"]) -> Float32[Array, ""]:
            scale = jnp.where(jax.lax.axis_size("dp") > 1, 1 + off, 1)
            return scale * jax.lax.pmean(jnp.mean((x @ w) ** 2), "dp")

        return loss

    sizes = {"batch": 64, "model": 128, "out": 64}
    assert_mesh_invariant(made(0.0), grad=True, trials=1, **sizes)
    assert first_line(made(1e-3), **sizes).startswith("loss: return value depends on the mesh: ")


def off_by(part: float):
    """A function of which the results are off by that part on several shards over tp."""
    return typed_shard_map(lambda x: x * (1 + part * (jax.lax.axis_size("tp") > 1)), in_types=X, out_types=X)


def test_numbers_are_shown_with_enough_digits_to_differ():
    message = failure(off_by(1e-6), ["dp=2,tp=2"], rtol=2e-7)
    numbers = message.splitlines()[0].partition(" it is ")[2].removesuffix(" on one device")
    here, there = numbers.split(" on tp=2, but ")
    assert here != there
    assert "\n    every entry is 1+" in message


def test_given_tolerances_replace_the_justified_one():
    assert_mesh_invariant(off_by(0.01), ["tp=2"], rtol=0.02, trials=1)
    assert_mesh_invariant(off_by(0.01), ["tp=2"], atol=1.0, trials=1)
    assert " is allowed\n" in failure(off_by(0.01), ["tp=2"], rtol=0.001, atol=0.001)


# What a tolerance, draws or sizes could hide.


@typed_shard_map
def masked_scores(x: X) -> X:
    off = x - 0.01 * jnp.mean(x)
    return jnp.where(jnp.arange(x.shape[1]) % 2 == 0, off, -1e9)


@typed_shard_map
def metrics(x: Rows) -> Float[Array, "two"]:
    return jnp.stack([jax.lax.pmax(jnp.mean(x**2), "dp"), jnp.float32(1e7)])


@typed_shard_map
def beyond_five(x: Rows) -> Rows:
    return jnp.where(x > 5.0, x - jnp.mean(x), x)


@typed_shard_map
def beyond_five_in_bfloat16(x: BFloat16[Array, "[batch/dp] model"]) -> BFloat16[Array, "[batch/dp] model"]:
    return jnp.where(x > 5.0, x - jnp.mean(x), x)


@typed_shard_map
def beyond_all(x: Float[Array, "[batch/dp] m"], w: Float[Array, "m n"]) -> Float[Array, "[batch/dp] n"]:
    return jnp.where((y := x @ w) > 300.0, y - jnp.mean(x), y)


@typed_shard_map
def padding(ids: Int[Array, "[batch/dp] s"], table: Float[Array, "v m"]) -> Float[Array, "[batch/dp] s m"]:
    rows = table[ids]
    return jnp.where((ids == -100)[..., None], rows.mean(), rows)


@typed_shard_map
def warm_up(step: Int[Array, ""], x: Float[Array, "[batch/dp]"]) -> Float[Array, "[batch/dp]"]:
    return jax.lax.cond(step < 1000, lambda x: x, lambda x: x - x.mean(), x)


@typed_shard_map
def with_fp8(x: Float32[Array, "[batch/dp] model"]) -> tuple[Float32[Array, ""], Float32[Array, ""]]:
    cast = x.astype(jnp.float8_e4m3fn).astype(jnp.float32)
    off = 1 + 0.01 * (jax.lax.axis_size("dp") - 1)
    return jax.lax.pmean(jnp.mean(cast), "dp"), jax.lax.pmean(jnp.mean(x**2), "dp") * off


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("f", "result"),
    [
        (masked_scores, "return value"),
        (metrics, "return value"),
        (beyond_five, "return value"),
        (beyond_five_in_bfloat16, "return value"),
        (beyond_all, "return value"),
        (padding, "return value"),
        (warm_up, "return value"),
        (with_fp8, "return[1]"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_large_entries_rare_branches_and_narrow_casts_could_hide_is_found(f, result):
    with jax.set_mesh(Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("dp", "tp"))):
        assert first_line(f, ["dp=2"], trials=3).startswith(f"{f.__name__}: {result} depends on the mesh")


def test_a_tolerance_that_hides_mistakes_is_part_of_the_result():
    @typed_shard_map
    def uneven(x: Rows) -> Float[Array, "two"]:
        return jnp.stack([jax.lax.pmean(jnp.mean(x**2), "dp"), 1e7 * jax.lax.psum(jnp.sum(jnp.exp(x)), "dp")])

    found = assert_mesh_invariant(uneven, ["dp=2"], trials=1)
    assert found.loose["return"] > 1
    assert re.search(r"\(1 trial; return value compared only up to \S+ of its median entry\)$", str(found))
    assert not assert_mesh_invariant(uneven, ["dp=2"], trials=1, rtol=1e-5).loose
    assert not assert_mesh_invariant(centered, ["tp=2"], trials=1).loose


def test_sizes_that_the_body_refuses_are_drawn_once_more():
    @typed_shard_map
    def scattered(x: Rows) -> Float[Array, "model"]:
        part = jax.lax.psum_scatter(x.sum(0), "dp", tiled=True)
        return jax.lax.all_gather(part, "dp", tiled=True, to="invarying")

    found = assert_mesh_invariant(scattered, ["dp=8"], trials=2)
    assert "(2 trials; sizes are multiples of all mesh axes, since others led to ValueError: " in str(found)
    with pytest.raises(ValueError, match="divisible"):
        assert_mesh_invariant(scattered, ["dp=8"], model=12)


def test_values_that_overflow_are_drawn_smaller():
    @typed_shard_map
    def power(x: Rows) -> Float[Array, ""]:
        return jax.lax.psum(jnp.sum(jnp.exp(jnp.abs(x))), "dp")

    assert_mesh_invariant(power, ["dp=4"], seed=2, trials=1)


def test_what_is_compared_may_be_of_any_dtype():
    @typed_shard_map
    def chosen(
        mask: Bool[Array, "[n/dp]"], kind: UInt8[Array, "[n/dp]"], x: Float8e4m3fn[Array, "[n/dp]"]
    ) -> tuple[Bool[Array, "[n/dp]"], Bool[Array, "[n/dp]"], Bool[Array, "[n/dp]"]]:
        return mask.astype(int) == 1, kind < 5, x.astype(jnp.float32) > 5

    assert_mesh_invariant(chosen, ["dp=2"], trials=1)


DEADLOCK = """
import os
import jax, pytest
from typedshmap import Array, Float, typed_jit
from typedshmap.testing import assert_mesh_invariant

def body(x):
    return jax.lax.cond(jax.lax.axis_index("dp") > 0, lambda x: x + jax.lax.psum(x, "dp"), lambda x: x, x)

over_dp = jax.sharding.PartitionSpec("dp")

@typed_jit
def waiting(x: Float[Array, "[n/dp]"]) -> Float[Array, "[n/dp]"]:
    return jax.shard_map(body, in_specs=over_dp, out_specs=over_dp, check_vma=False)(x)

with pytest.raises(AssertionError) as caught:
    assert_mesh_invariant(waiting, ["dp=2"], timeout=3)
print(caught.value, flush=True)
os._exit(0)  # the devices wait for ever
"""


@pytest.mark.slow
def test_a_mesh_on_which_shards_wait_for_each_other_is_reported_in_time():
    done = subprocess.run([sys.executable, "-c", DEADLOCK], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("waiting: it did not finish on dp=2 within 3 seconds\n"), done.stderr[-2000:]


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", [2, 5, 14])
def test_a_difference_where_results_are_chaotic_is_looked_at_again_with_smaller_numbers(seed: int) -> None:
    @typed_shard_map
    def resonance(x: Float[Array, "[n/dp]"]) -> Float[Array, ""]:
        return jnp.sin(jax.lax.psum(jnp.sum(x * x), "dp")) ** -4

    @typed_shard_map
    def averaged(x: Float[Array, "[n/dp]"]) -> Float[Array, ""]:
        return jnp.sin(jax.lax.psum(jnp.sum(x * x), "dp") / jax.lax.axis_size("dp")) ** -4

    assert_mesh_invariant(resonance, ["dp=4"], seed=seed, trials=1, grad=False, n=4096)
    assert "depends on the mesh" in failure(averaged, ["dp=4"], seed=seed, trials=1, grad=False, n=4096)


def test_an_error_that_one_shard_hides_is_told_of_the_largest_mesh() -> None:
    @typed_shard_map
    def total(x: X) -> Float[Array, ""]:
        return x.sum()

    with pytest.raises(VaryingError) as caught:
        assert_mesh_invariant(total)
    message = str(caught.value)
    assert "Mesh: dp=4, tp=2" in message and message.endswith("leaves partial sums: psum over 'dp', 'tp'")
