"""Shapes without values, made from hints and sizes: against JAX's own, and every way to get them wrong."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, TypedDict

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from expecting import fails
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    DtypeError,
    Float,
    Float64,
    Int,
    Key,
    MeshAxisError,
    PRNGKeyArray,
    PyTree,
    ShapeError,
    ShardingError,
    StructureError,
    dtypes,
    plan_reshard,
    shape_structs,
    shard,
    shardings,
    typed_shard_map,
)

X = Float[Array, "[batch/dp] d"]


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    up: Float[Array, "d [ff/tp]"]
    down: Float[Array, "[ff/tp] d"]
    kind: str = field(default="plain", metadata={"static": True})


class Model(TypedDict):
    embed: Float[Array, "[vocab/tp] d"]
    layers: tuple[Layer, Layer]


class Linear(eqx.Module):
    w: Float[Array, "d [ff/tp]"]
    gain: float = 2.0
    activation: Callable[..., Any] = eqx.field(static=True, default=jnp.tanh)


@flax.struct.dataclass
class State:
    w: Float[Array, "d"]
    step: Int[Array, ""]
    name: str = flax.struct.field(pytree_node=False, default="adam")


class Pair(NamedTuple):
    x: X
    none: None = None


def struct(mesh: Any, shape: tuple[int, ...], spec: P, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


SHAPES = [
    ("d", {"d": 4}, (4,)),
    ("", {}, ()),
    ("4 d", {"d": 0}, (4, 0)),
    ("label=4 #d", {"d": 3}, (4, 3)),
    ("d d+1 2*d d//2 d**2 9-d", {"d": 4}, (4, 5, 8, 2, 16, 5)),
    ("min(a,b) max(a,b)", {"a": 2, "b": 3}, (2, 3)),
    ("*rest d", {"rest": (2, 3), "d": 4}, (2, 3, 4)),
    ("*rest", {"rest": ()}, ()),
    ("*#rest d", {"rest": (2,), "d": 4}, (2, 4)),
    ("T B", {"T": 5, "B": 6}, (5, 6)),
]


@pytest.mark.parametrize(("dims", "sizes", "shape"), SHAPES)
def test_sizes_make_a_shape(dims: str, sizes: Any, shape: tuple[int, ...]) -> None:
    assert shape_structs(Float[Array, dims], **sizes) == jax.ShapeDtypeStruct(shape, jnp.float32)


# By names their dtype, and that under `jax_enable_x64`.
DTYPES = {
    "Float Inexact Num Real Shaped": ("float32", "float64"),
    "Int Integer": ("int32", "int64"),
    "UInt": ("uint32", "uint64"),
    "Complex": ("complex64", "complex128"),
    "Bool": ("bool", "bool"),
    "BFloat16": ("bfloat16", "bfloat16"),
    "Int8": ("int8", "int8"),
}
NAMED = [(getattr(dtypes, name), *both) for names, both in DTYPES.items() for name in names.split()]


@pytest.mark.parametrize(("name", "dtype", "wide"), [*NAMED, (jaxtyping.Float, "float32", "float64")])
def test_a_dtype_name_stands_for_jaxs_default_of_its_kind(name: Any, dtype: str, wide: str) -> None:
    assert shape_structs(name[Array, "d"], d=2).dtype == dtype
    with jax.enable_x64(True):
        assert shape_structs(name[Array, "d"], d=2).dtype == wide


@pytest.mark.parametrize("hint", [Key[Array, "n"], PRNGKeyArray])
def test_a_key_has_the_dtype_of_jaxs_keys(hint: Any) -> None:
    sizes = {"n": 4} if hint is not PRNGKeyArray else {}
    got = shape_structs(hint, **sizes)
    assert got == jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4) if sizes else jax.random.key(0))


def test_a_class_of_hints_becomes_a_tree_of_structs(mesh: Mesh) -> None:
    layer = Layer(struct(mesh, (4, 6), P(None, "tp")), struct(mesh, (6, 4), P("tp", None)), "plain")
    expected = {"embed": struct(mesh, (8, 4), P("tp", None)), "layers": (layer, layer)}
    assert shape_structs(Model, mesh, vocab=8, d=4, ff=6) == expected


def test_leaves_that_are_no_arrays_have_their_defaults(mesh: Mesh) -> None:
    got = shape_structs(Linear, mesh, d=4, ff=6)
    assert jax.tree.structure(got) == jax.tree.structure(Linear(jnp.ones(1)))
    assert (got.gain, got.activation) == (2.0, jnp.tanh)
    assert shape_structs(State, d=4).name == "adam"
    assert shape_structs(Pair, batch=2, d=3) == Pair(jax.ShapeDtypeStruct((2, 3), jnp.float32))


def test_structs_know_no_sharding_without_a_mesh_and_that_of_the_ambient_one(mesh: Mesh) -> None:
    assert shape_structs(X, batch=8, d=4).sharding is None
    with jax.set_mesh(mesh):
        assert shape_structs(X, batch=8, d=4) == struct(mesh, (8, 4), P("dp", None))


def test_structs_are_what_placing_zeros_gives(mesh: Mesh) -> None:
    structs = shape_structs(Model, mesh, vocab=8, d=4, ff=6)
    placed = shard(jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), structs), Model, mesh)
    assert jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), placed) == structs


def mean(model: Model, x: X) -> Float[Array, ""]:
    return jnp.mean(x) + jnp.mean(model["layers"][0].up) + jnp.mean(model["embed"])


def test_structs_go_through_eval_shape_and_lowering(mesh: Mesh) -> None:
    model, x = shape_structs(Model, mesh, vocab=8, d=4, ff=6), shape_structs(X, mesh, batch=8, d=4)
    assert jax.eval_shape(mean, model, x) == jax.ShapeDtypeStruct((), jnp.float32)
    compiled = jax.jit(mean).lower(model, x).compile()
    (model_shardings, x_sharding), _ = compiled.input_shardings
    assert x_sharding.is_equivalent_to(x.sharding, 2)
    assert model_shardings["embed"].is_equivalent_to(model["embed"].sharding, 2)


def test_structs_on_an_abstract_mesh_lower_without_its_devices() -> None:
    huge = AbstractMesh((256, 16), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    f = typed_shard_map(lambda x: x * 2, mesh=huge, in_types=(X,), out_types=X)
    text = jax.jit(f).trace(shape_structs(X, huge, batch=512, d=4)).lower(lowering_platforms=("tpu",)).as_text()
    assert "tensor<512x4xf32>" in text
    assert "tensor<2x4xf32>" in text


def test_structs_on_an_explicit_mesh_have_explicit_types() -> None:
    explicit = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Explicit,) * 2)
    out = jax.eval_shape(lambda x: x * 2, shape_structs(X, explicit, batch=8, d=4))
    assert out.sharding.spec == P("dp", None)


WRONG_SIZES = [
    (X, {"batch": 8}, "no size is given for 'd'"),
    (Model, {"vocab": 8}, "no size is given for 'd', 'ff'"),
    (X, {"bach": 8, "d": 4}, "no size is given for 'batch'; no hint names 'bach' (did you mean 'batch'?)"),
    (X, {"batch": 8, "d": 4, "q": 1, "z": 2}, "no hint names 'q'; no hint names 'z'"),
    (X, {"batch": -8, "d": 4}, "batch=-8 is not a size"),
    (X, {"batch": 8.0, "d": True}, "batch=8.0 is not a size; d=True is not a size"),
    (X, {"batch": "8", "d": (4,)}, "batch='8' is not a size; d=(4,) is not a size"),
    (Float[Array, "*rest"], {}, "no size is given for '*rest'"),
    (Float[Array, "*rest"], {"rest": 3}, "rest=3 is not a tuple of sizes, which '*rest' expects"),
    (Float[Array, "*rest"], {"rest": (3, -1)}, "rest=(3, -1) is not a tuple of sizes, which '*rest' expects"),
    (Float[Array, "2*d"], {}, "no size is given for 'd'"),
]


@pytest.mark.parametrize(("hint", "sizes", "problem"), WRONG_SIZES)
def test_sizes_that_are_wrong_are_listed(hint: Any, sizes: Any, problem: str) -> None:
    with fails(ShapeError, f"shape_structs: {problem}"):
        shape_structs(hint, **sizes)


NO_SIZE = [
    ("d _", "has dim '_', for which no size can be given"),
    ("d ...", "has '...', for which no size can be given"),
    ("d {x.y}", "has dim '{x.y}', for which no size can be given"),
    ("d d-9", "has dim 'd-9' of size -5"),
    ("d d-5", "has dim 'd-5' of size -1"),
    ("d d//0", "has a hint that cannot be evaluated: 'd//0' divides by zero, since 0=0"),
    ("d *d", "has dim 'd', but '*d' stands for several dims"),
    ("d ?e", "has '?e' in its hint, outside of a PyTree with a structure name"),
]


@pytest.mark.parametrize(("dims", "problem"), NO_SIZE)
def test_a_dim_without_a_size_is_reported(dims: str, problem: str) -> None:
    sizes = {"d": (4,)} if "*d" in dims else {"d": 4, "e": 1} if "?e" in dims else {"d": 4}
    with fails(ShapeError, f"shape_structs: hint value {problem}"):
        shape_structs(Float[Array, dims], **sizes)


def test_what_does_not_divide_is_reported_by_its_paths(mesh: Mesh) -> None:
    with fails(ShapeError, "shape_structs: hint['embed'] has vocab=7, which does not divide over 'tp' (2 shards)"):
        shape_structs(Model, mesh, vocab=7, d=4, ff=5)
    with pytest.raises(ShapeError) as caught:
        shape_structs(Model, mesh, vocab=8, d=4, ff=5)
    layers = [f"hint['layers'][{at}].{name}" for at in range(2) for name in ("up", "down")]
    assert [str(failure.subject) for failure in caught.value.failures] == layers


OPEN = [
    (PyTree[X], 'PyTree[Float[Array, "[batch/dp] d"]] does not say how many arrays it holds'),
    (NamedTuple("Maybe", [("x", Optional[X])]), ".x is a union"),
    (tuple[X, int], "[1] does not say how many arrays it holds"),
    (NamedTuple("Run", [("x", X), ("steps", int)]), ".steps holds no array and has no default"),
]


@pytest.mark.parametrize(("hint", "problem"), OPEN)
def test_a_hint_that_leaves_its_structure_open_has_no_structs(hint: Any, problem: str) -> None:
    with fails(StructureError, f"shape_structs: {problem}"):
        shape_structs(hint, batch=8, d=4)


AUTO = "Auto, and JAX has unreduced and reduced arrays over Explicit axes only"
WRONG = [
    (Float[Array, "[b/pp]"], MeshAxisError, "names mesh axis 'pp', which is not among the mesh's axes 'dp', 'tp'"),
    (Float[Array, "b -tp"], ShardingError, f"is marked '-tp' in its hint, but mesh axis 'tp' is of type {AUTO}"),
    (Float[Array, "b +tp"], ShardingError, "is marked '+tp' in its hint, but an array cannot be placed as addends"),
    (Float64[Array, "b"], DtypeError, "has dtype float32, but its hint says Float64"),
]


@pytest.mark.parametrize(("hint", "error", "problem"), WRONG)
def test_a_hint_that_no_array_at_rest_fits_has_no_structs(hint: Any, error: Any, problem: str, mesh: Mesh) -> None:
    with fails(error, f"shape_structs: hint value {problem}"):
        shape_structs(hint, mesh, b=8)


@pytest.mark.parametrize("mesh", [{"dp": 4, "tp": 2}, "dp=4,tp=2"], ids=["dict", "text"])
def test_a_mesh_may_be_written_as_sizes(mesh):
    abstract = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    hint = Float[Array, "[b/dp] d"]
    assert shardings(hint, mesh=mesh) == shardings(hint, mesh=abstract)
    assert shape_structs(hint, mesh=mesh, b=8, d=4) == shape_structs(hint, mesh=abstract, b=8, d=4)
    assert plan_reshard("[b/dp] d -> b [d/dp]", (8, 8), mesh) == plan_reshard("[b/dp] d -> b [d/dp]", (8, 8), abstract)


@pytest.mark.parametrize("mesh", [{"dp": 0}, {}, "dp", {"dp": "4"}])
def test_sizes_that_are_no_mesh_are_refused(mesh):
    with pytest.raises(MeshAxisError, match="a dict of sizes, or a text as in"):
        shardings(Float[Array, "[b/dp] d"], mesh=mesh)
