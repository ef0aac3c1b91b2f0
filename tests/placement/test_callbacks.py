"""Global arrays from a callback: against jax.make_array_from_callback, and what a callback may get wrong."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails, mesh_of, numbers, same
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    BFloat16,
    DtypeError,
    Float,
    Int,
    Key,
    MeshAxisError,
    ShapeError,
    StructureError,
    from_callback,
    shape_structs,
)

X = Float[Array, "[batch/dp] d"]
x = numbers(8, 4)


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    up: Float[Array, "d [ff/tp]"]
    count: Int[Array, ""]


ONE = [
    (X, {"batch": 8, "d": 4}, P("dp", None)),
    (Float[Array, "b [d/tp]"], {"b": 8, "d": 4}, P(None, "tp")),
    (Float[Array, "[b/dp] [d/tp]"], {"b": 8, "d": 4}, P("dp", "tp")),
    (Float[Array, "[b/tp,dp] d"], {"b": 8, "d": 4}, P(("tp", "dp"), None)),
    (Float[Array, "b d"], {"b": 8, "d": 4}, P(None, None)),
]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(("hint", "sizes", "spec"), ONE)
def test_one_array_is_what_jax_makes(hint: Any, sizes: Any, spec: P, kind: AxisType) -> None:
    mesh = mesh_of(4, 2, kind=kind)
    asked: list[list[Any]] = [[], []]
    got = from_callback(lambda index: asked[0].append(index) or x[index], hint, mesh, **sizes)
    sharding = NamedSharding(mesh, spec)
    expected = jax.make_array_from_callback((8, 4), sharding, lambda index: asked[1].append(index) or x[index])
    assert asked[0] == asked[1]
    assert (got.sharding, jax.typeof(got)) == (sharding, jax.typeof(expected))
    same(got, expected)


def test_a_tree_is_read_by_the_paths_of_its_arrays(mesh: Mesh) -> None:
    hint = tuple[Layer, NamedTuple("Inner", [("w", X), ("again", Layer)])]
    sizes = {"d": 4, "ff": 6, "batch": 8}
    structs = shape_structs(hint, mesh, **sizes)
    found, structure = jax.tree_util.tree_flatten_with_path(structs)
    files = {jax.tree_util.keystr(path): np.ones(s.shape, s.dtype) * i for i, (path, s) in enumerate(found)}
    got = from_callback(lambda path, index: files[path][index], hint, mesh, **sizes)
    assert jax.tree.structure(got) == structure
    same(got, jax.tree.unflatten(structure, files.values()))
    assert jax.tree.map(lambda a: a.sharding, got) == jax.tree.map(lambda s: s.sharding, structs)


def test_a_callback_may_give_what_jax_takes_for_an_array(mesh: Mesh) -> None:
    keys = jax.random.split(jax.random.key(0), 8)
    got = from_callback(lambda index: keys[index], Key[Array, "[b/dp]"], mesh, b=8)
    assert got.dtype == keys.dtype
    same(jax.random.key_data(got), jax.random.key_data(keys))
    assert from_callback(lambda index: 3.0, Float[Array, ""], mesh) == 3
    assert from_callback(lambda index: x.astype(float)[index], X, mesh, batch=8, d=4).dtype == jnp.float32
    got = from_callback(lambda index: jnp.ones(2, jnp.bfloat16), BFloat16[Array, "[b/dp]"], mesh, b=8)
    assert got.dtype == jnp.bfloat16


WRONG = [
    (lambda index: x, ShapeError, "has shape (8, 4), but (2, 4) is its part of the global shape (8, 4)"),
    (lambda index: x[index][0], ShapeError, "has shape (4,), but (2, 4) is its part of the global shape (8, 4)"),
    (lambda index: x[index].astype(int), DtypeError, "has dtype int32, but its hint says Float"),
    (lambda index: None, StructureError, "is None, but its hint says Array"),
    (lambda index: [1.0], StructureError, "is a list, but its hint says Array"),
    (lambda index: jax.ShapeDtypeStruct((2, 4), np.float32), StructureError,
     "is a ShapeDtypeStruct, but its hint says Array"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("callback", "got"), [(None, "None of type NoneType"), (5, "5 of type int"), ("x", "'x' of type str")]
)
def test_what_is_no_function_is_refused(callback: Any, got: str, mesh: Mesh) -> None:
    with fails(StructureError, f"from_callback: the callback is not a function; got {got}"):
        from_callback(callback, X, mesh, batch=8, d=4)


@pytest.mark.parametrize(("callback", "error", "problem"), WRONG)
def test_what_is_no_shard_is_refused(callback: Any, error: Any, problem: str, mesh: Mesh) -> None:
    with fails(error, f"from_callback: the shard at [0:2, :] {problem}"):
        from_callback(callback, X, mesh, batch=8, d=4)


def test_a_shard_under_a_transformation_is_refused(mesh: Mesh) -> None:
    line = "from_callback: the shard at [0:2, :] is a value under jax.jit or another transformation"
    with fails(StructureError, line):
        jax.jit(lambda y: from_callback(lambda index: y[index], X, mesh, batch=8, d=4))(x)
    with jax.set_mesh(mesh), fails(MeshAxisError, "from_callback: under jax.jit no devices are known"):
        jax.jit(lambda y: from_callback(lambda index: y[index], X, batch=8, d=4))(x)


def test_all_shards_of_an_array_have_one_dtype(mesh: Mesh) -> None:
    says = "has dtype float16, but its hint says Float, and earlier shards have float32"
    with fails(DtypeError, f"from_callback: the shard at [2:4, :] {says}"):
        from_callback(lambda i: x[i].astype(np.float16 if i[0].start else np.float32), X, mesh, batch=8, d=4)


def test_a_wrong_shard_of_a_tree_is_reported_by_its_path(mesh: Mesh) -> None:
    problem = "has shape (8, 4), but (4, 3) is its part of the global shape (4, 6)"
    with fails(ShapeError, f"from_callback: the shard of [0].up at [:, 0:3] {problem}"):
        from_callback(lambda path, index: x, tuple[Layer, Layer], mesh, d=4, ff=6)


def test_an_exception_of_the_callback_passes_through(mesh: Mesh) -> None:
    with pytest.raises(KeyError, match=r"\.embed"):
        from_callback(lambda path, index: {}[path], NamedTuple("M", [("embed", X)]), mesh, batch=8, d=4)
