"""Trees that Flax has boxed with names: their specs against Flax's own, and placing them."""

import functools
import re
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, TypedDict

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from lines import unplaced

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    Float,
    Like,
    MeshAxisError,
    PyTree,
    ShapeError,
    ShardingError,
    StructureError,
    axis_rules,
    partition_specs,
    shape_structs,
    shard,
    shardings,
    typed_shard_map,
)

RULES = (("embed", "dp"), ("mlp", "tp"), ("heads", "tp"), ("batch", "dp"))


def logical(init: Any, *names: Any, rules: Any = None) -> Any:
    return nn.with_logical_partitioning(init, names, rules=rules)


class Model(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        init, zeros = nn.initializers.ones, nn.initializers.zeros
        x = nn.Dense(8, kernel_init=logical(init, "embed", "mlp"), bias_init=logical(zeros, "mlp"))(x)
        x = nn.BatchNorm(use_running_average=True)(x)
        return nn.Dense(4, kernel_init=logical(init, "mlp", "embed"))(x)


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        layers = nn.scan(
            Layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=3,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return layers()(x, None)[0]


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        return nn.Dense(4, kernel_init=logical(nn.initializers.ones, "embed", "mlp"), use_bias=False)(x), None


def initial(model: nn.Module) -> Any:
    return model.init(jax.random.key(0), jnp.ones((2, 4)))


@functools.cache
def initialised(model: nn.Module) -> Any:
    """The same outside of a trace, whose values may not outlive it."""
    return jax.jit(lambda: initial(model))()


def shapes(model: nn.Module) -> Any:
    return jax.eval_shape(lambda: initial(model))


def flax_specs(boxed: Any, rules: Any = RULES) -> Any:
    return nn.logical_to_mesh(nn.get_partition_spec(boxed), rules)


def equivalent(got: Any, specs: Any, mesh: Mesh) -> None:
    """Expect arrays to be sharded as specs say."""

    def compare(x: Any, spec: P) -> None:
        assert x.sharding.is_equivalent_to(NamedSharding(mesh, spec), x.ndim)

    jax.tree.map(compare, got, specs)


def full(spec: P, rank: int) -> P:
    return P(*spec, *(None,) * (rank - len(spec)))


# Linen


@pytest.mark.parametrize("model", [Model(), Scanned()], ids=["batch norm", "scan"])
@pytest.mark.parametrize("rules", [RULES, (("layers", "dp"), *RULES), (("mlp", ("tp", "dp")),), ()], ids=str)
def test_the_specs_are_those_of_flax(model: nn.Module, rules: Any) -> None:
    boxed = shapes(model)
    with axis_rules(rules):
        got = partition_specs(boxed)
    expected = jax.tree.map(lambda spec, x: full(spec, x.ndim), flax_specs(boxed, rules), nn.unbox(boxed))
    assert got == expected


def test_shardings_place_what_an_initialiser_makes(mesh: Mesh) -> None:
    with axis_rules(RULES):
        placed = shardings(shapes(Model()), mesh)
    made = jax.block_until_ready(jax.jit(lambda: initial(Model()), out_shardings=placed)())
    equivalent(nn.unbox(made), flax_specs(made), mesh)


def test_a_boxed_tree_is_placed_and_stays_boxed(mesh: Mesh) -> None:
    boxed = initialised(Model())
    with axis_rules(RULES):
        placed = shard(boxed, mesh=mesh)
    assert jax.tree.structure(placed) == jax.tree.structure(boxed)
    equivalent(nn.unbox(placed), flax_specs(boxed), mesh)
    jax.tree.map(np.testing.assert_array_equal, placed, boxed)


@pytest.mark.parametrize("hint", [PyTree, Any, PyTree[Array]], ids=str)
def test_a_hint_that_says_nothing_leaves_all_to_the_boxes(mesh: Mesh, hint: Any) -> None:
    boxed = initialised(Model())
    with axis_rules(RULES):
        equivalent(nn.unbox(shard(boxed, hint, mesh)), flax_specs(boxed), mesh)


def test_a_box_of_mesh_axes_needs_no_rules(mesh: Mesh) -> None:
    boxed = {"a": nn.Partitioned(jnp.ones((8, 4)), names=("dp", None)), "b": jnp.ones(3)}
    assert partition_specs(boxed) == {"a": P("dp", None), "b": P(None)}
    assert partition_specs(boxed)["a"] == nn.get_partition_spec(boxed)["a"]
    equivalent(nn.unbox(shard(boxed, mesh=mesh)), {"a": P("dp"), "b": P()}, mesh)


def test_rules_of_a_box_replace_those_in_force() -> None:
    boxed = nn.LogicallyPartitioned(jnp.ones((8, 4)), names=("embed", "mlp"), rules=(("mlp", "dp"),))
    with axis_rules(RULES):
        assert partition_specs(boxed) == P(None, "dp")
    assert partition_specs(boxed) == P(None, "dp")


def test_a_name_says_nothing_of_a_size() -> None:
    boxed = [nn.LogicallyPartitioned(jnp.ones(size), names=("embed",)) for size in (8, 16)]
    with axis_rules(RULES):
        assert partition_specs(boxed) == [P("dp"), P("dp")]


# A hint beside the boxes


class Dense(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(8, kernel_init=logical(nn.initializers.ones, "embed", "mlp"), use_bias=False)(x)


def of_kernel(hint: Any) -> Any:
    return dict[str, dict[str, dict[str, hint]]]


def test_a_hint_that_agrees_is_checked_and_taken(mesh: Mesh) -> None:
    boxed = initialised(Dense())
    with axis_rules(RULES):
        placed = shard(boxed, of_kernel(Float[Array, "[e/dp] [m/tp]"]), mesh)
        assert partition_specs(of_kernel(Float[Array, "embed mlp"]), like=boxed) == partition_specs(boxed)
    assert jax.tree.structure(placed) == jax.tree.structure(boxed)


def test_a_hint_that_does_not_fit_the_array_is_reported_by_its_path(mesh: Mesh) -> None:
    with axis_rules(RULES), pytest.raises(ShapeError) as caught:
        shard(initialised(Dense()), of_kernel(Float[Array, "embed mlp depth"]), mesh)
    first = "shard: given['params']['Dense_0']['kernel'] has 2 dims, but its hint has 3"
    assert str(caught.value).splitlines()[0] == first


MESSAGES = {
    "an axis that the mesh does not have": (
        {"a": nn.Partitioned(np.ones((8, 4)), names=(None, "model"))},
        RULES,
        MeshAxisError,
        """shard: given['a'] names mesh axis 'model', which is not among the mesh's axes 'dp', 'tp'

    given['a']: Partitioned names=(None, 'model')
                                         ^^^^^^^
    got f32[8,4]

Mesh: dp=4, tp=2
Hint: axis_aliases({'model': ...}) maps a name to mesh axes""",
    ),
    "a dim that does not divide": (
        {"a": nn.LogicallyPartitioned(np.ones((6, 4)), names=("embed", None))},
        RULES,
        ShapeError,
        """shard: given['a'] has embed=6, which does not divide over 'dp' (4 shards)

    given['a']: LogicallyPartitioned names=('embed', None)
                                            ^^^^^^^
    got f32[6,4]

Mesh: dp=4, tp=2; rules: embed=dp
Hint: make embed a multiple of 4, or pad it and mask the rest""",
    ),
    "more names than dims": (
        {"a": nn.LogicallyPartitioned(np.ones((8, 4)), names=("embed", "mlp", None))},
        RULES,
        ShapeError,
        """shard: given['a'] has 2 dims, but its box has at least 3

    given['a']: LogicallyPartitioned names=('embed', 'mlp', None)
    got f32[8,4]

Mesh: dp=4, tp=2; rules: embed=dp, mlp=tp""",
    ),
    "names and no rules": (
        {"a": nn.LogicallyPartitioned(np.ones((8, 4)), names=("embed", None))},
        (),
        MeshAxisError,
        """shard: given['a'] has dim 'embed' among its names, which no rule names

    given['a']: LogicallyPartitioned names=('embed', None)
                                            ^^^^^^^
    got f32[8,4]

Mesh: dp=4, tp=2
Hint: add ('embed', None) to the rules""",
    ),
    "what is no name": (
        nn.LogicallyPartitioned(np.ones(4), names=(3,)),
        RULES,
        AnnotationSyntaxError,
        "LogicallyPartitioned: 3 among its names is not a str or None",
    ),
    "no boxes": (
        {"a": np.ones(8)},
        (),
        StructureError,
        "shard: no hint is given, and the value holds no boxes of Flax that name its dims",
    ),
}


@pytest.mark.parametrize(("value", "rules", "error", "message"), MESSAGES.values(), ids=MESSAGES)
def test_what_cannot_be_placed_by_boxes_is_reported_in_full(
    mesh: Mesh, value: Any, rules: Any, error: Any, message: str
) -> None:
    with axis_rules(rules) if rules else nullcontext(), pytest.raises(error) as caught:
        shard(value, mesh=mesh)
    assert unplaced(caught.value) == message


# nnx


@pytest.fixture
def module() -> nnx.Module:
    with nnx.use_eager_sharding(False):
        kernel = nnx.with_partitioning(nnx.initializers.ones, ("embed", "mlp"))
        return nnx.Linear(4, 8, kernel_init=kernel, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("of", [nnx.state, lambda module: module], ids=["state", "module"])
def test_nnx_is_placed_and_stays_what_it_is(of: Any, module: nnx.Module, mesh: Mesh) -> None:
    with axis_rules(RULES):
        placed = shard(of(module), mesh=mesh)
    assert jax.tree.structure(placed) == jax.tree.structure(of(module))
    equivalent(jax.tree.leaves(nnx.state(placed) if of is not nnx.state else placed), [P(None), P("dp", "tp")], mesh)


def test_a_name_of_nnx_that_is_neither_is_an_error(mesh: Mesh) -> None:
    with nnx.use_eager_sharding(False):
        state = nnx.State({"a": nnx.Param(jnp.ones((8, 4)), out_sharding=("embed", "mlp"))})
    with pytest.raises(MeshAxisError) as caught:
        shard(state, mesh=mesh)
    first = "shard: given['a'] names mesh axis 'embed' (by the rule for 'embed'), which is not among the mesh's axes"
    assert str(caught.value).startswith(first)


# nnx, its variables without names, by hints


class Linear(TypedDict):
    kernel: Float[Array, "[d/dp] [f/tp]"]
    bias: Float[Array, "[f/tp]"]


ANY_KEYS = Mapping[str, Float[Array, "..."]]


class Columns(TypedDict):
    kernel: Float[Array, "d [f/tp]"]
    bias: Float[Array, "[f/tp]"]


@pytest.fixture
def linear() -> nnx.Module:
    return nnx.Linear(8, 16, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("hint", "make"),
    [
        (Linear, nnx.state),
        (ANY_KEYS, nnx.state),
        (Like[nnx.State, Linear], nnx.state),
        (Like[optax.OptState, Linear], lambda model: optax.adam(0.1).init(nnx.state(model))),
        (Like[nnx.State, Linear], lambda model: nnx.state(nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param))),
    ],
    ids=["state", "any keys", "like state", "optax", "nnx.Optimizer"],
)
def test_nnx_state_has_hints_by_its_keys(hint: Any, make: Any, linear: nnx.Module, mesh: Mesh) -> None:
    state = make(linear)
    placed = shard(state, hint, mesh)
    assert jax.tree.structure(placed) == jax.tree.structure(state)
    by_rank = {1: P("tp"), 2: P("dp", "tp")} if hint != ANY_KEYS else {}
    equivalent(placed, jax.tree.map(lambda x: by_rank.get(x.ndim, P()), state), mesh)
    structs = shape_structs(hint, mesh, like=state)
    assert jax.tree.map(lambda x: x.sharding, structs) == shardings(hint, mesh, like=state)
    mapped = typed_shard_map(lambda tree: tree, mesh=mesh, in_types=(hint,), out_types=hint)
    assert jax.tree.structure(jax.eval_shape(mapped, state)) == jax.tree.structure(state)


def test_a_hint_says_how_boxes_without_names_are_sharded(mesh: Mesh) -> None:
    with nnx.use_eager_sharding(False):
        state = nnx.State({"kernel": nnx.Param(jnp.ones((8, 4)), out_sharding=("tp", None)), "bias": jnp.ones(4)})
    first = "given['kernel'] is boxed as Param names=('tp', None), which means P('tp', None)"
    with axis_rules({}), jax.set_mesh(mesh), pytest.raises(ShardingError, match=re.escape(first)):
        shard(state, Linear)
    state["kernel"] = nnx.Param(jnp.ones((8, 4)))
    equivalent(jax.tree.leaves(shard(state, Linear, mesh)), [P("tp"), P("dp", "tp")], mesh)


def test_a_module_is_merged_in_the_body(linear: nnx.Module, mesh: Mesh) -> None:
    graph, state = nnx.split(linear)
    x = np.ones((4, 8), np.float32)

    @typed_shard_map(mesh=mesh)
    def forward(graph: nnx.GraphDef[nnx.Linear], state: Columns, x: Float[Array, "n d"]) -> Float[Array, "n [f/tp]"]:
        return nnx.merge(graph, state)(x)

    got = jax.block_until_ready(jax.jit(forward, static_argnums=0)(graph, state, x))
    np.testing.assert_allclose(got, linear(x), rtol=1e-5)


def test_a_variable_of_another_shape_is_reported_by_its_path(mesh: Mesh) -> None:
    state = nnx.state(nnx.Linear(6, 16, rngs=nnx.Rngs(0)))
    for hint in (Linear, Like[Any, Linear]):
        f = typed_shard_map(lambda state: None, mesh=mesh, in_types=(hint,), out_types=None)
        with pytest.raises(ShapeError, match=r"argument 'state\['kernel'\]' has d=6, which does not divide"):
            f(state=state)
