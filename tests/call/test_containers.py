"""Values in containers are taken apart leaf by leaf, each with its own hint, and put together again."""

import sys
import typing
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, TypedDict

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import text_of
from expecting import fails, numbers, same, traced
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from trees import (
    B,
    Box,
    Chain,
    Dense,
    FlaxState,
    Keyed,
    Linear,
    Loose,
    Model,
    Named,
    Nested,
    Pair,
    Swapped,
    W,
    X,
    b,
    every_tree,
    s,
    w,
    x,
)

from typedshmap import (
    Array,
    DtypeError,
    Float,
    MeshAxisError,
    PyTree,
    ShapeError,
    StructureError,
    typed,
    typed_shard_map,
)

SHARDS = {"dp": 4, "tp": 2}


def shard_shape(shape: tuple[int, ...], spec: P) -> tuple[int, ...]:
    return tuple(size // SHARDS.get(axis, 1) for size, axis in zip(shape, spec, strict=True))


@every_tree
def test_a_container_enters_as_it_is_with_every_leaf_a_shard(hint: Any, value: Any, specs: list[P], mesh: Mesh) -> None:
    seen: list[Any] = []
    typed_shard_map(lambda value: seen.append(value), mesh=mesh, in_types=(hint,), out_types=None)(value)
    assert jax.tree.structure(seen[0]) == jax.tree.structure(value)
    shapes, shards = (
        [leaf.shape for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape")] for tree in (value, seen[0])
    )
    assert shards == list(map(shard_shape, shapes, specs))


@pytest.mark.sample(3)
@every_tree
def test_a_container_leaves_as_it_entered(hint: Any, value: Any, specs: list[P], mesh: Mesh) -> None:
    if isinstance(value, Linear):
        hint, value = tuple[W, B], (value.w, value.b)  # a function leaves no manual region
    echo = typed_shard_map(lambda value: value, mesh=mesh, in_types=(hint,), out_types=hint)
    got = jax.block_until_ready(echo(value))
    assert jax.tree.structure(got) == jax.tree.structure(value)
    same(got, value)


@every_tree
def test_typed_takes_and_returns_containers(hint: Any, value: Any, specs: list[P]) -> None:
    arrays = jax.tree.map(lambda leaf: leaf if callable(leaf) else jnp.asarray(leaf), value)

    @typed
    def echo(value: hint) -> hint:
        return value

    assert echo(arrays) is arrays


# Wrong values: hint, value, error, and the first line


WRONG = [
    (tuple[X, W], (x,), StructureError, "'value' has 1 item, but its hint has 2"),
    (tuple[X, W], (x, w, w), StructureError, "'value' has 3 items, but its hint has 2"),
    (tuple[X, W], [x, w], StructureError, "'value' is a list, but its hint says tuple of 2"),
    (tuple[X, ...], [x], StructureError, "'value' is a list, but its hint says tuple"),
    (tuple[()], (x,), StructureError, "'value' has 1 item, but its hint has 0"),
    (tuple[X, tuple[W, B]], (x, (w, x)), ShapeError, "'value[1][1]' has 2 dims, but its hint has 1"),
    (tuple[X, ...], (x, x, x[0]), ShapeError, "'value[2]' has 1 dim, but its hint has 2"),
    (list[X], (x,), StructureError, "'value' is a tuple, but its hint says list"),
    (list[X], x, StructureError, "'value' is a NumPy array, but its hint says list"),
    (list[X], None, StructureError, "'value' is None, but its hint says list"),
    (list[X], [x, "x"], StructureError, "'value[1]' is 'x' (str), but its hint says Array"),
    (list[list[B]], [[b], [b[:2]]], ShapeError, "'value[1][0]' has f=2, but argument 'value[0][0]' has f=6"),
    (Sequence[X], {"u": x}, StructureError, "'value' is a dict, but its hint says list or tuple"),
    (dict[str, B], [b], StructureError, "'value' is a list, but its hint says dict"),
    (dict[str, B], {"u": b, "v": x}, ShapeError, "'value['v']' has 2 dims, but its hint has 1"),
    (dict[int, B], {1: b, 2: x}, ShapeError, "'value[2]' has 2 dims, but its hint has 1"),
    (OrderedDict[str, B], {"u": b}, StructureError, "'value' is a dict, but its hint says OrderedDict"),
    (Pair, (x, w), StructureError, "'value' is a tuple, but its hint says Pair"),
    (Pair, Pair(x, w[:3]), ShapeError, "'value.w' has d=3, but argument 'value.x' has d=4"),
    (Nested, Nested(Pair(x, w), (b, b[:2])), ShapeError,
     "'value.rest[1]' has f=2, but argument 'value.pair.w' has f=6"),
    (Named, {"w": w}, StructureError, "'value' lacks 'x'"),
    (Named, {"x": x, "y": x}, StructureError, "'value' has 'y', which its hint does not have"),
    (Named, {"y": x}, StructureError, "'value' lacks 'x' and has 'y', which its hint does not have"),
    (Loose, {"w": w}, StructureError, "'value' lacks 'x'"),
    (Named, [x], StructureError, "'value' is a list, but its hint says Named"),
    (Named, {"x": x, "w": w[:3]}, ShapeError, "'value['x']' has d=4, but argument 'value['w']' has d=3"),
    (Dense, Dense(w, b[:2]), ShapeError, "'value.b' has f=2, but argument 'value.w' has f=6"),
    (Dense, Dense(w, b, name=3), StructureError, "'value.name' is 3 (int), but its hint says str"),
    (Dense, {"w": w}, StructureError, "'value' is a dict, but its hint says Dense"),
    (Model, Model([Dense(w), Dense(w[:3])], {}, Pair(x, w)), ShapeError,
     "'value.layers[1].w' has d=3, but argument 'value.layers[0].w' has d=4"),
    (Model, Model([], {"in": b}, Pair(x, w)), ShapeError, "'value.scales['in']' has 1 dim, but its hint has 0"),
    (Model, Model([], {}, Pair(x, x)), ShapeError, "'value.pair.w' has d=8, but argument 'value.pair.x' has d=4"),
    (Box[X], Box(x.astype(int), s), DtypeError, "'value.value' has dtype int32, but its hint says Float"),
    (Chain, Chain(Chain(None, x[0]), x), ShapeError, "'value.next.x' has 1 dim, but its hint has 2"),
    (FlaxState, FlaxState(w, np.float32(3), jnp.tanh), DtypeError,
     "'value.step' has dtype float32, but its hint says Int"),
    (FlaxState, FlaxState(w, np.int32(3), jnp.tanh, width="4"), StructureError,
     "'value.width' is '4' (str), but its hint says int"),
    (Linear, Linear(w, b[:2], jnp.tanh), ShapeError, "'value.b' has f=2, but argument 'value.w' has f=6"),
    (Linear, Linear(w, b, 3), StructureError,
     "'value.activation' is 3 (int), but its hint says collections.abc.Callable[..., Any]"),
    (Swapped, Swapped(x, w[:3]), ShapeError, "'value.x' has d=4, but argument 'value.w' has d=3"),
    (Keyed, Keyed(x, w[0]), ShapeError, "'value.w' has 1 dim, but its hint has 2"),
    (PyTree[B], {"v": [b, x]}, ShapeError, "'value['v'][1]' has 2 dims, but its hint has 1"),
    (PyTree[B], {"v": "b"}, StructureError, "'value['v']' is 'b' (str), but its hint says Array"),
    (PyTree[Dense], [Dense(w), Dense(w[:3])], ShapeError, "'value[1].w' has d=3, but argument 'value[0].w' has d=4"),
    (PyTree[Dense], [w], StructureError, "'value[0]' is a NumPy array, but its hint says Dense"),
    (PyTree[Float[Array, "?n"]], [b], ShapeError,
     "'value[0]' has '?n' in its hint, outside of a PyTree with a structure name"),
    (Optional[list[X]], [x[0]], ShapeError, "'value[0]' has 1 dim, but its hint has 2"),
    (tuple[X, X] | tuple[X], (x, x[0]), ShapeError, "'value[1]' has 1 dim, but its hint has 2"),
    (Optional[PyTree[B]], {"u": [b, x]}, ShapeError, "'value['u'][1]' has 2 dims, but its hint has 1"),
    (X | Pair | list[B], [x], ShapeError, "'value[0]' has 2 dims, but its hint has 1"),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "value", "error", "problem"), WRONG, ids=[problem for *_, problem in WRONG])
def test_a_wrong_leaf_is_named_by_its_path(hint: Any, value: Any, error: Any, problem: str, mesh: Mesh) -> None:
    with fails(error, f"<lambda>: argument {problem}"):
        typed_shard_map(lambda value: None, mesh=mesh, in_types=(hint,), out_types=None)(value)


def test_every_wrong_leaf_is_reported(mesh: Mesh) -> None:
    model = Model([Dense(w[0]), Dense(w, w)], {"in": b}, Pair(x.astype(int), w))
    with pytest.raises(ShapeError) as caught:
        typed_shard_map(lambda model: None, mesh=mesh, in_types=(Model,), out_types=None)(model)
    subjects = [str(failure.subject) for failure in caught.value.failures]
    assert subjects == ["model.layers[0].w", "model.layers[1].b", "model.scales['in']", "model.pair.x"]
    assert "Also: argument 'model.pair.x' has dtype int32, but its hint says Float" in str(caught.value)


# Results


WRONG_RESULTS = [
    (tuple[X, X], lambda x: (x,), StructureError, "return value has 1 item, but its hint has 2"),
    (tuple[X, X], lambda x: [x, x], StructureError, "return value is a list, but its hint says tuple of 2"),
    (tuple[X, X], lambda x: (x, x[:, :2]), ShapeError, "return[1] has d=2, but argument 'x' has d=4"),
    (list[X], lambda x: (x,), StructureError, "return value is a tuple, but its hint says list"),
    (list[X], lambda x: [x, x, x[:1]], ShapeError,
     "return[2] has b=4 (1 per shard over 'dp'), but argument 'x' has b=8"),
    (dict[str, X], lambda x: {"u": x[0]}, ShapeError, "return['u'] has 1 dim, but its hint has 2"),
    (Pair, lambda x: (x, x), StructureError, "return value is a tuple, but its hint says Pair"),
    (Pair, lambda x: Pair(x, x.sum()), ShapeError, "return.w has 0 dims, but its hint has 2"),
    (Named, lambda x: {"w": x}, StructureError, "return value lacks 'x'"),
    (Chain, lambda x: Chain(Chain(None, x[0]), x), ShapeError, "return.next.x has 1 dim, but its hint has 2"),
    (Keyed, lambda x: Keyed(x, x[0]), ShapeError, "return.w has 1 dim, but its hint has 2"),
    (PyTree[X], lambda x: {"u": [x, x[0]]}, ShapeError, "return['u'][1] has 1 dim, but its hint has 2"),
    (X, lambda x: None, StructureError, "return value is None, but its hint says Array"),
    (None, lambda x: x, StructureError, "return value is an array, but its hint says None"),
    (tuple[X, str], lambda x: (x, "x"), StructureError,
     "return[1] is 'x' (str), which is not an array and cannot leave the manual region"),
    (tuple[X, int], lambda x: (x, "x"), StructureError, "return[1] is 'x' (str), but its hint says int"),
    (tuple[X, int], lambda x: (x, x.sum()), StructureError, "return[1] is an array, but its hint says int"),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "body", "error", "problem"), WRONG_RESULTS)
def test_a_wrong_leaf_of_a_result_is_named_by_its_path(
    hint: Any, body: Any, error: Any, problem: str, mesh: Mesh
) -> None:
    with fails(error, f"<lambda>: {problem}"):
        traced(typed_shard_map(body, mesh=mesh, in_types=(X,), out_types=hint), x)


def test_what_is_no_array_in_a_result_becomes_one_or_stays_none(mesh: Mesh) -> None:
    hint = tuple[X, int, None, Optional[X], float, bool]
    several = typed_shard_map(lambda x: (x, 3, None, None, 0.5, True), mesh=mesh, in_types=X, out_types=hint)
    same(several(x), (x, 3, None, None, 0.5, True))


# The order of leaves

D = Float[Array, " d"]


class Result(TypedDict):
    rows: X
    columns: D


class Both(NamedTuple):
    rows: X
    columns: D


@jax.tree_util.register_pytree_node_class
@dataclass
class ColumnsFirst:
    """Its two children stand in the other order than its fields, and bear no names."""

    rows: X
    columns: D

    def tree_flatten(self) -> Any:
        return (self.columns, self.rows), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Any:
        return cls(*reversed(children))


ROWS, COLUMNS = P("dp", None), P(None)
PROGRAMS = {
    "tuple and list": (lambda r, c: (r, [c, r]), tuple[X, list[X | D]], (ROWS, [COLUMNS, ROWS])),
    "TypedDict": (lambda r, c: {"rows": r, "columns": c}, Result, {"rows": ROWS, "columns": COLUMNS}),
    "NamedTuple": (Both, Both, Both(ROWS, COLUMNS)),
    "children in another order": (ColumnsFirst, ColumnsFirst, ColumnsFirst(ROWS, COLUMNS)),
}
programs = pytest.mark.parametrize(("make", "hint", "specs"), PROGRAMS.values(), ids=PROGRAMS)


@programs
def test_leaves_of_results_have_the_order_of_the_program_by_hand(make: Any, hint: Any, specs: Any, mesh: Mesh) -> None:
    def body(x: Any) -> Any:
        return make(x * 2, jax.lax.psum(x.sum(0), "dp"))

    by_hand = jax.shard_map(body, mesh=mesh, in_specs=ROWS, out_specs=specs)
    mapped = typed_shard_map(body, mesh=mesh, in_types=(X,), out_types=hint)
    assert text_of(mapped, x) == text_of(by_hand, x)
    same(mapped(x), make(x * 2, x.sum(0)))


@programs
def test_leaves_of_arguments_have_the_order_of_the_program_by_hand(
    make: Any, hint: Any, specs: Any, mesh: Mesh
) -> None:
    def body(value: Any) -> Any:
        return [leaf * (at + 1) for at, leaf in enumerate(jax.tree.leaves(value))]

    value = make(x, x[0])
    by_hand = jax.shard_map(body, mesh=mesh, in_specs=(specs,), out_specs=jax.tree.leaves(specs))
    mapped = typed_shard_map(body, mesh=mesh, in_types=(hint,), out_types=list[X | D])
    assert text_of(mapped, value) == text_of(by_hand, value)
    same(mapped(value), body(value))


def test_a_class_without_key_paths_may_hold_one_array_twice_under_two_hints(mesh: Mesh) -> None:
    @jax.tree_util.register_pytree_node_class
    @dataclass
    class Twice(ColumnsFirst):
        columns: Float[Array, "b d"]

    seen: list[Any] = []
    typed_shard_map(lambda pair: seen.append(pair), mesh=mesh, in_types=Twice, out_types=None)(Twice(x, x))
    assert (seen[0].rows.shape, seen[0].columns.shape) == ((2, 4), (8, 4))


# Classes that do not show their arrays to JAX


def test_arrays_in_a_field_that_is_no_child_are_refused(mesh: Mesh) -> None:
    @flax.struct.dataclass
    class State:
        x: X
        table: W = flax.struct.field(pytree_node=False)

    line = "argument 'state.table' has arrays in field 'table', which is not a pytree child of State"
    with fails(StructureError, f"<lambda>: {line}"):
        typed_shard_map(lambda state: None, mesh=mesh, in_types=(State,), out_types=None)(State(x, w))


# equinox


def test_a_method_of_an_equinox_module_has_its_weights_unsharded_or_by_hint(mesh: Mesh) -> None:
    class Layer(eqx.Module):
        w: W

        @typed_shard_map(mesh=mesh)
        def whole(self, x: X) -> Float[Array, "[b/dp] f"]:
            assert self.w.shape == (4, 6)
            return x @ self.w

        @typed_shard_map(mesh=mesh)
        def split(self: "Layer", x: X) -> Float[Array, "[b/dp] [f/tp]"]:
            assert self.w.shape == (4, 3)
            return x @ self.w

    layer = Layer(jnp.asarray(w))
    same(layer.whole(x), x @ w)
    same(layer.split(x), x @ w)


def test_a_library_module_is_read_by_its_own_hints(mesh: Mesh) -> None:
    hints = {"in_types": (eqx.nn.Linear, X), "out_types": Float[Array, "[b/dp] f"]}
    linear = eqx.nn.Linear(4, 6, key=jax.random.key(0))
    apply = typed_shard_map(lambda linear, x: jax.vmap(linear)(x), mesh=mesh, **hints)
    same(apply(linear, x), x @ linear.weight.T + linear.bias)


class Activated(eqx.Module):
    w: W
    activation: Callable[..., Any] = jnp.tanh


def test_a_gradient_of_a_module_has_none_for_what_is_no_array(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def gradient(w: W) -> Activated:
        return eqx.filter_grad(lambda model: model.activation(model.w).sum())(Activated(w))

    got = gradient(w)
    assert got.activation is None
    same(got.w, 1 - np.tanh(w) ** 2)


def test_none_is_no_array(mesh: Mesh) -> None:
    f = typed_shard_map(lambda model: None, mesh=mesh, in_types=(Activated,), out_types=None)
    with fails(StructureError, "<lambda>: argument 'model.w' is None, but its hint says Array"):
        f(Activated(None))


# Named structures


TREE = PyTree[Float[Array, "?n [f/tp]"], "T"]


def test_trees_of_one_structure_agree_leaf_by_leaf(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def step(params: TREE, updates: TREE) -> TREE:
        return jax.tree.map(jnp.add, params, updates)

    params = {"u": w, "v": [numbers(5, 6)]}
    same(step(params, params), {"u": 2 * w, "v": [2 * numbers(5, 6)]})
    line = "argument 'updates['v'][0]' has n=3, but argument 'params['v'][0]' has n=5"
    with fails(ShapeError, f"step: {line}"):
        step(params, {"u": w, "v": [numbers(3, 6)]})
    line = "argument 'updates' has another tree structure than argument 'params', which 'T' stands for: "
    with fails(StructureError, f"step: {line}PyTreeDef({{'u': *, 'v': *}}), not PyTreeDef({{'u': *, 'v': [*]}})"):
        step(params, {"u": w, "v": w})


# Newer Python


@pytest.mark.skipif(sys.version_info < (3, 13), reason="ReadOnly came with Python 3.13")
def test_a_key_that_is_read_only_holds_arrays_as_others_do(mesh: Mesh) -> None:
    class Frozen(TypedDict):
        x: typing.ReadOnly[X]

    double = typed_shard_map(lambda value: value["x"] * 2, mesh=mesh, in_types=(Frozen,), out_types=X)
    same(double({"x": x}), 2 * x)


def test_of_many_failures_the_first_are_reported_and_the_rest_counted(mesh: Mesh) -> None:
    first = typed_shard_map(lambda xs: xs[0], mesh=mesh, in_types=(list[X],), out_types=X)
    with pytest.raises(ShapeError) as caught:
        first([np.ones((8, 4, 1), np.float32)] * 20)
    assert len(caught.value.failures) == 20
    assert str(caught.value).count("Also: argument") == 8
    assert str(caught.value).endswith("Also: 11 more, in error.failures")


def test_an_unknown_axis_in_a_result_is_reported_by_its_path(mesh: Mesh) -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class State:
        weights: tuple[W, Float[Array, "[f/pd] d"]]
        losses: dict[str, Float[Array, "[b/dq]"]]

    f = typed_shard_map(lambda: None, mesh=mesh, in_types=(), out_types=State)
    with pytest.raises(MeshAxisError) as caught:
        f()
    assert [failure.subject.phrase for failure in caught.value.failures] == ["return.weights[1]", "return.losses[...]"]
    assert str(caught.value).startswith("<lambda>: return.weights[1] names mesh axis 'pd', which is not among")


def test_a_body_within_a_region_gets_a_container_of_its_own(mesh: Mesh) -> None:
    Pair = dict[str, Float[Array, "[b/dp]"]]

    @typed_shard_map(mesh=mesh, axis_names={"dp"})
    def inner(pair: Pair) -> Float[Array, "[b/dp]"]:
        pair["x"] = 2 * pair["x"]
        return pair["x"]

    @typed_shard_map(mesh=mesh)
    def outer(pair: Pair) -> Float[Array, "[b/dp]"]:
        return inner(pair) - pair["x"]

    ones = np.ones(8, np.float32)
    np.testing.assert_array_equal(jax.block_until_ready(outer({"x": ones})), ones)
