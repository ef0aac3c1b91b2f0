"""`prove` as it is called: what it returns, what it says, what it raises."""

import re
import warnings
from contextlib import nullcontext
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

import typedshmap
from typedshmap import (
    Array,
    Float32,
    Int32,
    MeshAxisError,
    ShapeError,
    StructureError,
    SuspectWarning,
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
def picked(x: Rows, at: Int32[Array, "n"]) -> Float32[Array, "n model"]:
    """Some rows of all, which stand shard by shard."""
    every = jax.lax.all_gather(x, "dp", to="invarying")
    return every.reshape(-1, x.shape[1])[at]


PROVED = """\
mean: proved
  assumed: on all meshes, and for all sizes, it has the equations that were traced on 5 meshes, up to dp=101
  assumed: numbers are exact, loops end, and there are no infinities, no NaNs and no overflow"""


def test_what_is_proved_says_what_it_assumes() -> None:
    found = prove(mean)
    assert str(found) == PROVED
    assert found == Proof("mean", "proved", "", "", found.assumed)


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"batch": 8}, "for batch=8 and all other sizes"),
        ({"batch": 8, "model": 2}, "for batch=8, model=2"),
        ({"x": np.ones((8, 2), np.float32)}, "for batch=8, model=2"),
        ({"x": jax.ShapeDtypeStruct((8, 2), np.float32)}, "for batch=8, model=2"),
    ],
)
def test_a_proof_for_sizes_that_are_given_says_for_which(given: dict[str, Any], where: str) -> None:
    equations = "it has the equations that were traced on 3 meshes, up to dp=8"
    assert prove(mean, **given).assumed[0] == f"{where}, on all meshes over which these divide, {equations}"


def test_a_proof_for_an_argument_other_than_an_array_says_for_which() -> None:
    @typed_shard_map
    def times(x: Rows, count: int) -> Rows:
        return x * count

    assert prove(times, count=3).assumed[0].startswith("for count=3 and all other sizes, on all meshes over which")


def test_what_is_refuted_has_the_place_and_the_mesh() -> None:
    found = prove(halved, batch=8, model=2)
    assert (found.verdict, found.assumed) == ("refuted", ())
    assert found.place.startswith("test_prove.py:43")
    assert found.why.startswith("halved: return value depends on the mesh: it is 1/2 of what one device gives")
    assert str(found) == f"halved: refuted: {found.why}, at {found.place}"


@pytest.mark.usefixtures("without_first_differences")
def test_what_is_refuted_is_no_suspect_besides(recwarn: pytest.WarningsRecorder) -> None:
    warnings.simplefilter("always")

    @typed_shard_map
    def centered(x: Float32[Array, "[b/dp] [m/tp]"]) -> Float32[Array, "[b/dp] [m/tp]"]:
        return x - x.mean(-1, keepdims=True)

    assert prove(centered).verdict == "refuted"
    assert not recwarn.list


def test_what_is_not_known_has_the_place_and_what_is_missing() -> None:
    found = str(prove(picked))
    assert re.fullmatch(r"picked: unknown: it stacks parts of the whole, at test_prove.py:\d+ \(picked\)", found)


@pytest.mark.usefixtures("without_first_differences")
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


@pytest.mark.parametrize("kind", list(AxisType)[:2])
def test_the_ambient_mesh_is_replaced_by_those_of_the_proof(kind: AxisType) -> None:
    @typed_shard_map
    def total(x: Float32[Array, "[batch/dp] [model/tp]"]) -> Float32[Array, ""]:
        return jax.lax.psum(x.sum(), ("dp", "tp"))

    with jax.set_mesh(jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(kind, kind))):
        assert prove(total).verdict == "proved"


def test_meshes_that_give_a_shard_a_single_entry_belong_to_the_proof() -> None:
    """There JAX broadcasts, and the program has other equations."""

    @typed_shard_map
    def weights(x: Float32[Array, "[heads/tp] length"]) -> Float32[Array, "[heads/tp] length"]:
        return jax.grad(lambda x: (jax.nn.softmax(x) ** 2).sum())(x)

    assert prove(weights).verdict == "proved"
    assert prove(weights, heads=4).verdict == "unknown"


@typed_shard_map
def doubled_on_eight(x: Float32[Array, "[batch/dp] model"]) -> Float32[Array, "[batch/dp] model"]:
    return x * (2 if jax.lax.axis_size("dp") == 8 else 1)


@typed_shard_map
def doubled_on_twelve(x: Float32[Array, "[12/dp] model"]) -> Float32[Array, "[12/dp] model"]:
    return x * (2 if jax.lax.axis_size("dp") == 12 else 1)


@pytest.mark.usefixtures("without_first_differences")
def test_every_mesh_that_fits_sizes_belongs_to_the_proof() -> None:
    assert prove(doubled_on_eight, batch=8).verdict == "refuted"
    found = prove(doubled_on_twelve)
    assert (found.verdict, found.why) == ("unknown", "return is 2 times what it is on one device")


def test_a_program_that_grows_with_the_mesh_is_not_known() -> None:
    @typed_shard_map
    def unrolled(x: Rows) -> Rows:
        for _ in range(jax.lax.axis_size("dp")):
            x = x + 0.0
        return x

    found = prove(unrolled)
    assert found.verdict == "unknown"
    assert re.fullmatch(r"it has \d+ equations on dp=3, and \d+ on dp=2", found.why)


@typed_shard_map
def raises_on_odd(x: Rows) -> Rows:
    if jax.lax.axis_size("dp") % 2:
        raise ValueError("an odd number of shards")
    return x


@typed_shard_map
def raises_on_odd_rows(x: Rows) -> Rows:
    assert len(x) % 2 == 0, "an odd number of rows"
    return x


@typed_shard_map
def refuses_odd(x: Rows) -> Rows:
    if jax.lax.axis_size("dp") % 3 == 0:
        raise ShapeError("three shards")
    return x


@typed_shard_map
def always_raises(x: Rows) -> Rows:
    raise KeyError("model")


@typed
def helper_that_raises(x: Rows) -> Rows:
    raise KeyError("model")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (raises_on_odd, "it raises ValueError: an odd number of shards, on dp=2"),  # there on one device
        (raises_on_odd_rows, "it raises AssertionError: an odd number of rows, on dp=3"),
        (refuses_odd, "it raises ShapeError: three shards, on dp=3"),
        (always_raises, "it raises KeyError: 'model', on dp=2"),
        (helper_that_raises, "it raises KeyError: 'model', on dp=2"),
    ],
)
def test_a_program_whose_body_raises_is_not_known(function: Any, why: str) -> None:
    assert prove(function) == Proof(function.__name__, "unknown", "", why, ())


def test_what_an_operation_refuses_is_assumed_not_to_be_given() -> None:
    @typed_shard_map
    def product(
        x: Float32[Array, "[batch/dp] [model/tp]"], w: Float32[Array, "[model/tp] ff"]
    ) -> Float32[Array, "[batch/dp] ff"]:
        y = typedshmap.einsum(x, w, "[b/dp] [m/tp], [m/tp] f -> [b/dp,tp] f")
        return typedshmap.all_gather(y, "[b/dp,tp] f -> [b/dp] f")

    found = prove(product)
    assert found.verdict == "proved"
    assert found.assumed[1].startswith("sizes are such that it does not raise ShapeError: einsum in product: ")


@typed_shard_map
def never_ends(x: Rows) -> Rows:
    return jax.lax.while_loop(lambda x: True, jnp.tanh, x)


@typed_shard_map
def ends_on_meshes(x: Rows) -> Row:
    """On one device its shard's rows are all rows."""
    rows = jax.lax.psum(1, "dp")
    return jax.lax.pmean(jax.lax.while_loop(lambda s: rows == 1, jnp.tanh, x.sum(0)), "dp")


@pytest.mark.slow
@pytest.mark.parametrize("function", [never_ends, ends_on_meshes])
def test_a_program_that_does_not_end_on_one_device_is_not_known(function: Any) -> None:
    assert prove(function, timeout=2).verdict == "unknown"


def test_a_program_whose_results_differ_by_themselves_is_not_refuted() -> None:
    drawn = count()

    @typed_shard_map
    def noise(x: Rows) -> Rows:
        return jax.pure_callback(lambda x: x + next(drawn), jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    assert prove(noise).verdict == "unknown"


def test_reading_for_too_long_is_told() -> None:
    assert prove(mean, timeout=1e-9).why == "reading it takes too long"


def test_what_the_types_refuse_is_their_error() -> None:
    @typed_shard_map
    def partial_sum(x: Rows) -> Row:
        return x.sum(0)

    with pytest.raises(
        VaryingError, match=r"(?s)^partial_sum: return value varies over 'dp'.*Mesh: dp=2.*psum over 'dp'"
    ):
        prove(partial_sum)


@pytest.mark.usefixtures("without_first_differences")
def test_a_function_without_hints_is_proved_with_its_arguments() -> None:
    mesh = jax.make_mesh((2,), ("dp",), axis_types=(AxisType.Auto,))

    def mean_by_hand(x: Any) -> Any:
        return jax.lax.pmean(x.mean(0), "dp")

    def mean_of_means(x: Any) -> Any:
        return jax.lax.pmean(x.sum(0), "dp")

    for make in (typed_shard_map, jax.shard_map):
        mapped = [make(f, mesh=mesh, in_specs=P("dp"), out_specs=P()) for f in (mean_by_hand, mean_of_means)]
        with pytest.warns(SuspectWarning) if make is typed_shard_map else nullcontext():
            found = [prove(f, x=jax.ShapeDtypeStruct((8, 4), np.float32)) for f in mapped]
        assert [(one.function, one.verdict) for one in found] == [
            ("mean_by_hand", "proved"),
            ("mean_of_means", "refuted"),
        ]
        assert found[0].assumed[0].startswith("for arguments of these shapes, on all meshes over which they divide, it")
        with pytest.raises(StructureError, match=r"^prove: mean_by_hand: it has no hints and needs its arg"):
            prove(mapped[0])


def test_a_function_with_hints_beside_its_specs_needs_no_arguments(mesh: Mesh) -> None:
    def doubled(x: Rows) -> Rows:
        return 2 * x

    assert prove(typed_shard_map(doubled, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))).verdict == "proved"


def test_bad_input() -> None:
    with pytest.raises(StructureError, match=r"^prove: <lambda>: it has no hints, and no shard_map is traced in it"):
        prove(lambda x: x, x=np.ones(8))
    with pytest.raises(
        StructureError, match=r"^prove: mean: neither a dim of its hints nor an argument is called 'rows'"
    ):
        prove(mean, rows=3)
    with pytest.raises(ShapeError, match=r"^prove: mean: batch='8' is not a size"):
        prove(mean, batch="8")
    with pytest.raises(ShapeError, match=r"^prove: mean: argument 'x' has batch=1, which does not divide over 'dp'"):
        prove(mean, batch=1)
    with pytest.raises(StructureError, match=r"^prove: timeout=0 is not a number of seconds"):
        prove(mean, timeout=0)
    with pytest.raises(StructureError, match=r"^prove: grad=1 is not True, False or None"):
        prove(mean, grad=1)

    @typed_jit
    def without_axes(x: Row) -> Row:
        return x

    with pytest.raises(MeshAxisError, match=r"^prove: without_axes: no mesh axis is known"):
        prove(without_axes)
