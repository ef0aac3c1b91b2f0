"""`prove` as it is called: what it returns, what it says, what it raises."""

import re
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

from typedshmap import (
    Array,
    Float32,
    Int32,
    MeshAxisError,
    ShapeError,
    StructureError,
    VaryingError,
    typed,
    typed_jit,
    typed_shard_map,
)
from typedshmap.testing import Proof, prove

Rows = Float32[Array, "[batch/dp] model"]
Row = Float32[Array, "model"]


@typed_shard_map
def mean(x: Rows) -> Row:
    return jax.lax.pmean(x.mean(0), "dp")


@typed_shard_map
def halved(x: Rows) -> Row:
    return jax.lax.pmean(x.sum(0), "dp")


@typed_shard_map
def sent_on(x: Rows) -> Rows:
    """There and back, with another sign on the way."""
    count = jax.lax.axis_size("dp")
    there = -jax.lax.ppermute(x, "dp", [(at, (at + 1) % count) for at in range(count)])
    return -jax.lax.ppermute(there, "dp", [(at, (at - 1) % count) for at in range(count)])


@typed_shard_map
def picked(x: Rows, at: Int32[Array, "n"]) -> Float32[Array, "n model"]:
    """Some rows of all, which stand shard by shard."""
    every = jax.lax.all_gather(x, "dp", to="invarying")
    return every.reshape(-1, x.shape[1])[at]


PROVED = """\
mean: proved
  assumed: on all meshes it has the equations that were traced on 4, up to dp=5
  assumed: floats are exact"""


def test_what_is_proved_says_what_it_assumes() -> None:
    found = prove(mean)
    assert str(found) == PROVED
    assert found == Proof("mean", "proved", "", "", found.assumed)


def test_what_is_refuted_has_the_place_and_the_mesh() -> None:
    found = prove(halved, batch=8, model=2)
    assert (found.verdict, found.assumed) == ("refuted", ())
    assert found.place.startswith("test_prove.py:36")
    assert found.why.startswith("halved: return value depends on the mesh: it is 1/2 of what one device gives")
    assert str(found) == f"halved: refuted: {found.why}, at {found.place}"


READ = """\
sent_on: proved
  assumed: on all meshes it does what it does on 3, up to dp=4, entry by entry
  assumed: at all sizes it does what it does at batch=6 to 20, model=4 to 8
  assumed: floats are exact"""


def test_what_is_refuted_is_no_suspect_besides(recwarn: pytest.WarningsRecorder) -> None:
    warnings.simplefilter("always")

    @typed_shard_map
    def centered(x: Float32[Array, "[b/dp] [m/tp]"]) -> Float32[Array, "[b/dp] [m/tp]"]:
        return x - x.mean(-1, keepdims=True)

    assert prove(centered).verdict == "refuted"
    assert not recwarn.list


def test_what_is_read_entry_by_entry_says_at_which_sizes() -> None:
    assert str(prove(sent_on)) == READ


def test_what_is_not_known_has_the_place_and_what_is_missing() -> None:
    found = str(prove(picked))
    assert re.fullmatch(r"picked: unknown: it stacks parts of the whole, at test_prove.py:\d+ \(picked\)", found)


def test_what_is_said_of_the_largest_entry_is_assumed_to_be_of_one() -> None:
    @typed_shard_map
    def best(x: Float32[Array, "batch [model/tp]"]) -> Int32[Array, "batch"]:
        at, top = jnp.argmax(x, 1) + jax.lax.axis_index("tp") * x.shape[1], x.max(1)
        return jax.lax.pmax(jnp.where(top == jax.lax.pmax(top, "tp"), at, -1), "tp")

    found = prove(best)
    assert found.verdict == "proved"
    assert re.fullmatch(
        r"no two of the entries are equal whose place is taken at test_prove\.py:\d+ \(best\)", found.assumed[2]
    )


def test_gradients_are_proved_where_they_are_asked_for() -> None:
    @jax.custom_vjp
    def root(x: Array) -> Array:
        return jnp.sqrt(jax.lax.psum(jnp.sum(x * x), "dp"))

    def pulled_back(kept: tuple[Array, Array], cotangent: Array) -> tuple[Array]:
        x, norm = kept
        return (cotangent * x / norm * jax.lax.axis_size("dp"),)

    root.defvjp(lambda x: (root(x), (x, root(x))), pulled_back)

    @typed_shard_map
    def norm(x: Rows) -> Float32[Array, ""]:
        return root(x)

    assert prove(norm).verdict == "proved"
    assert prove(norm, grad=True).verdict == "refuted"
    assert prove(mean, grad=True).verdict == "proved"


def test_helpers_and_global_programs_are_proved() -> None:
    @typed
    def product(x: Rows, w: Float32[Array, "model [ff/tp]"], v: Float32[Array, "[ff/tp] model"]) -> Rows:
        return jax.lax.psum(jax.nn.relu(x @ w) @ v, "tp")

    @typed
    def addends(x: Float32[Array, "[batch/dp] model"]) -> Float32[Array, "model +dp"]:
        return x.sum(0)

    @typed_jit
    def program(x: Rows) -> Row:
        return x.sum(0)

    for function in (product, addends, program):
        assert prove(function).verdict == "proved"


def test_a_mesh_needs_no_devices() -> None:
    mesh = AbstractMesh((64, 32), ("dp", "tp"))

    @typed_shard_map(mesh=mesh)
    def total(x: Float32[Array, "[batch/dp] [model/tp]"]) -> Float32[Array, ""]:
        return jax.lax.psum(x.sum(), ("dp", "tp"))

    assert prove(total).verdict == "proved"


def test_a_single_entry_of_a_sharded_dim_is_left_out() -> None:
    @typed_shard_map
    def weights(x: Float32[Array, "[heads/tp] length"]) -> Float32[Array, "[heads/tp] length"]:
        return jax.grad(lambda x: (jax.nn.softmax(x) ** 2).sum())(x)

    assert prove(weights).verdict == "proved"
    found = prove(weights, heads=12)
    assert found.verdict == "proved"
    assert found.assumed[2] == "its sizes give the shards of (tp=5) no part, or a single entry"


def test_what_the_types_refuse_is_their_error() -> None:
    @typed_shard_map
    def partial_sum(x: Rows) -> Row:
        return x.sum(0)

    with pytest.raises(
        VaryingError, match=r"(?s)^partial_sum: return value varies over 'dp'.*Mesh: dp=2.*psum over 'dp'"
    ):
        prove(partial_sum)


def test_bad_input() -> None:
    with pytest.raises(StructureError, match=r"^prove: wants a function made by typed_shard_map, typed_jit or typed"):
        prove(lambda x: x)
    with pytest.raises(
        StructureError, match=r"^prove: mean: neither a dim of its hints nor an argument is called 'rows'"
    ):
        prove(mean, rows=3)
    with pytest.raises(ShapeError, match=r"^prove: mean: batch='8' is not a size"):
        prove(mean, batch="8")
    with pytest.raises(ShapeError, match=r"^prove: mean: argument 'x' has batch=7, which does not divide over 'dp'"):
        prove(mean, batch=7)
    with pytest.raises(StructureError, match=r"^prove: grad=1 is neither True, False nor None"):
        prove(mean, grad=1)

    @typed_jit
    def without_axes(x: Row) -> Row:
        return x

    with pytest.raises(MeshAxisError, match=r"^prove: without_axes: no mesh axis is known"):
        prove(without_axes)
