"""What users of haliax, MaxText, Flax and TransformerEngine expect of their verbs, said with ``shard`` and its kin.

Each section has the situations of one library's own tests of its verb; what another file has already is not here.
"""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from expecting import numbers
from flax import nnx
from flax.linen import with_logical_constraint
from flax.nnx import bridge
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from placed import AUTO, MESHES, RUN, U, X, either_mesh, is_sharded, put

from typedshmap import (
    Array,
    Float,
    MeshAxisError,
    axis_rules,
    partition_specs,
    shard,
    shardings,
    typed_jit,
    typed_shard_map,
)
from typedshmap._jax.versions import ADDS_UNREDUCED_AXES


def specs_of(tree: Any) -> list[P]:
    """The specs of placed leaves, without what stands for an unsharded dim at their ends."""
    return [bare(x.sharding.spec) for x in jax.tree.leaves(jax.block_until_ready(tree))]


def bare(spec: P) -> P:
    entries = list(spec)
    while entries and entries[-1] is None:
        entries.pop()
    return P(*entries)


# Haliax: rules name the dims of a module; what has no names is unsharded; a jit takes and returns modules


RULES = {"dim2": "dp", "dim3": "tp"}
Named, Rows = Float[Array, "dim1 dim2 dim3"], Float[Array, "dim1 dim2"]


class Module(eqx.Module):
    named: Named
    plain: Array
    bias: Float[Array, "dim3"]
    count: int = eqx.field(static=True, default=1)


class Outer(eqx.Module):
    inner: Module
    rows: Rows
    scalar: Float[Array, ""]


def module() -> Module:
    return Module(np.ones((8, 16, 32)), np.ones(8), np.ones(32))


def outer(rows: Rows) -> Outer:
    return Outer(module(), 2 * rows, np.ones(()))


OUTER = [P(None, "dp", "tp"), P(), P("tp"), P(None, "dp"), P()]


@either_mesh
def test_rules_say_the_shardings_of_a_module(mesh: Mesh) -> None:
    with axis_rules(RULES):
        value = outer(X)
        assert list(map(bare, jax.tree.leaves(partition_specs(Outer, like=value)))) == OUTER
        places = jax.tree.leaves(shardings(Outer, mesh, like=value))
        assert [(place.mesh, bare(place.spec)) for place in places] == [(mesh, spec) for spec in OUTER]
        assert specs_of(shard(value, Outer, mesh)) == OUTER


def placed_outer(rows: Rows) -> Outer:
    return shard(outer(rows), Outer)


@pytest.mark.parametrize(
    ("mesh", "make"),
    # On Explicit axes a result has the sharding that it is made with.
    [(MESHES["Auto"], outer), (MESHES["Auto"], placed_outer), (MESHES["Explicit"], placed_outer)],
    ids=["Auto", "Auto, placed", "Explicit, placed"],
)
def test_a_jit_makes_and_takes_modules(mesh: Mesh, make: Any) -> None:
    def same(value: Outer) -> Outer:
        return value

    with axis_rules(RULES), jax.set_mesh(mesh):
        made = typed_jit(make)(shard(X, Rows))
        assert specs_of(made) == specs_of(typed_jit(same)(made)) == OUTER
        np.testing.assert_array_equal(made.rows, 2 * X)


# MaxText: None passes through; a step of training is that by hand; variables of nnx have names, and a scan's


def param(*shape: int, **said: Any) -> nnx.State:
    with nnx.use_eager_sharding(False):
        return nnx.State({"w": nnx.Param(jnp.ones(shape), **said)})


# What the variable says, the rules around, and its spec.
VARIABLES: dict[str, tuple[nnx.State, Any, P]] = {
    "a scan's dim": (param(2, 8, 4, out_sharding=("e", None, "d")), (("e", "tp"), ("d", "dp")), P("tp", None, "dp")),
    "no names": (param(4), (("d", "dp"),), P(None)),
    "one name": (param(8, out_sharding="d"), (("d", "dp"),), P("dp")),
    "fewer names than dims": (param(8, 4, out_sharding=("d",)), (("d", "dp"),), P("dp", None)),
    "the first rule": (param(8, out_sharding=("d",)), (("d", "dp"), ("d", "tp")), P("dp")),
    "an axis that is taken": (param(8, 4, out_sharding=("d", "f")), (("d", "dp"), ("f", "dp")), P("dp", None)),
    "the next rule": (param(8, 4, out_sharding=("d", "f")), (("d", "dp"), ("f", "dp"), ("f", "tp")), P("dp", "tp")),
    "its own rules": (param(8, out_sharding=("d",), sharding_rules=(("d", "dp"),)), (), P("dp")),
    "its own rules first": (param(8, out_sharding=("d",), sharding_rules=(("d", "dp"),)), (("d", "tp"),), P("dp")),
    "its own rules and others": (
        param(8, 4, out_sharding=("d", "f"), sharding_rules=(("d", "dp"),)), (("f", "tp"),), P("dp", "tp")),
}  # fmt: skip


@pytest.mark.parametrize(("state", "rules", "spec"), VARIABLES.values(), ids=VARIABLES)
def test_a_variable_has_the_spec_that_its_names_mean(state: nnx.State, rules: Any, spec: P) -> None:
    mesh = MESHES["Auto"]
    with nn.logical_axis_rules(rules), jax.set_mesh(mesh):
        assert jax.tree.leaves(partition_specs(state)) == [spec]
        assert specs_of(shard(state)) == specs_of(jax.jit(lambda state: shard(state))(state)) == [bare(spec)]


def test_a_variable_without_names_may_hold_a_tree_or_nothing() -> None:
    tree = nnx.State({"a": nnx.Variable(optax.MaskedNode()), "b": nnx.Variable((jnp.ones((2, 2)), jnp.ones(3)))})
    got = partition_specs(tree)
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    assert jax.tree.leaves(got) == [P(None, None), P(None)]
    assert specs_of(shard(tree, mesh=MESHES["Auto"])) == [P(), P()]


@pytest.mark.parametrize("kind", ["device", "pinned_host"])
def test_the_shardings_of_a_state_may_be_in_another_memory(kind: str) -> None:
    mesh, state = MESHES["Auto"], param(8, 4, out_sharding=("dp", "tp"))
    places = shardings(state, mesh, memory_kind=kind)
    assert places["w"].get_value() == NamedSharding(mesh, P("dp", "tp"), memory_kind=kind)
    placed = shard(state, mesh=mesh, memory_kind=kind)["w"].get_value()
    assert placed.sharding.memory_kind == kind


# Flax: names become specs by rules; a constraint of names; boxes of linen and of nnx


CONSTRAINTS: dict[str, tuple[Any, Any, str]] = {
    "by rules": (("b", "d"), (("b", "dp"), ("d", "tp")), "b d"),
    "a name without a rule": (("b", "other"), (("b", "dp"),), "b other"),
    "a dim of any sharding": (("b", U), (("b", "dp"),), "b [d/?]"),
    "a rule of any sharding": (("b", "d"), (("b", U), ("d", "tp")), "b d"),
    "rules of None": (("b", "d"), (("b", None), ("d", None)), "b d"),
    "no rules": (("b", "d"), (), "b d"),
}


@pytest.mark.parametrize(("names", "rules", "hint"), CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_a_constraint_of_names_is_that_of_flax(names: Any, rules: Any, hint: str) -> None:
    with nn.logical_axis_rules(rules), jax.set_mesh(MESHES["Auto"]):
        ours = jax.jit(lambda x: shard(x, hint)).lower(X).as_text()
        assert ours == jax.jit(lambda x: with_logical_constraint(x, names)).lower(X).as_text()


@pytest.mark.parametrize("run", [RUN["eager"], RUN["jit"]], ids=["eager", "jit"])
def test_rules_without_a_mesh_say_nothing(run: Any) -> None:
    def f(x: Any) -> Any:
        assert shard(x, "b d") is x
        with pytest.raises(MeshAxisError, match="no mesh is known"):
            shard(x, "b [d/tp]")
        return x

    with nn.logical_axis_rules([("b", "dp")]):
        run(f)(X)


def test_a_rule_may_leave_dims_without_one_unconstrained() -> None:
    with axis_rules({"d": "tp"}, fallback="unconstrained"), jax.set_mesh(MESHES["Auto"]):
        assert partition_specs(Float[Array, "b d"]) == P(U, "tp")
        assert partition_specs(Float[Array, "b 4"]) == P(U, None)
        assert partition_specs(Float[Array, "[b/] d"]) == P(None, "tp")
        assert is_sharded(jax.jit(lambda x: shard(x, "b d"))(put(MESHES["Auto"])), MESHES["Auto"], P("dp", "tp"))
        assert is_sharded(shard(put(MESHES["Auto"]), "b d"), MESHES["Auto"], P("dp", "tp"))


def test_rules_of_flax_are_read_where_none_of_ours_are_in_force() -> None:
    mesh = MESHES["Auto"]
    with nn.logical_axis_rules([("b", "dp"), ("d", "tp")]), jax.set_mesh(mesh):
        assert partition_specs(Float[Array, "b d"]) == P("dp", "tp")
        assert is_sharded(shard(X, "b d"), mesh, P("dp", "tp"))
        assert is_sharded(jax.jit(lambda x: shard(x, "b d"))(X), mesh, P("dp", "tp"))
        with axis_rules({"b": "tp"}):
            assert partition_specs(Float[Array, "b d"]) == P("tp", None)
    assert partition_specs(Float[Array, "b d"]) == P(None, None)


@pytest.mark.parametrize("decorator", [typed_jit, typed_shard_map], ids=["typed_jit", "typed_shard_map"])
def test_rules_of_flax_take_part_in_the_keys_of_caches(decorator: Any) -> None:
    mesh = MESHES["Auto"]

    @decorator(mesh=mesh)
    def f(x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return x

    for _ in range(3):
        for axis in ("dp", "tp"):
            with nn.logical_axis_rules([("b", axis)]):
                for _ in range(3):
                    assert is_sharded(f(X), mesh, P(axis))
        assert is_sharded(f(X), mesh, P())


def flax_specs(state: Any) -> list[P]:
    """What Flax itself says of the variables of a state."""
    return list(map(bare, jax.tree.leaves(nnx.get_partition_spec(state))))


class Net(nnx.Module):
    """Two layers, one with rules of its own."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.ones
        kernel = nnx.with_partitioning(init, ("embed", "mlp"), sharding_rules=(("embed", "dp"),))
        self.first = nnx.Linear(8, 16, kernel_init=kernel, rngs=rngs)
        bias = nnx.with_partitioning(nnx.initializers.zeros, ("mlp",))
        other = nnx.with_partitioning(init, ("tp", "dp"))
        self.second = nnx.Linear(16, 8, kernel_init=other, bias_init=bias, rngs=rngs)


def net() -> Any:
    with nnx.use_eager_sharding(False):
        return Net(nnx.Rngs(0))


def train_state(graph: Any, params: Any) -> Any:
    return nnx.TrainState.create(graph, params=params, tx=optax.adam(0.1))


STATES: dict[str, Callable[[], Any]] = {
    "a module": lambda: nnx.state(net()),
    "an optimizer": lambda: nnx.state(nnx.Optimizer(net(), optax.adam(0.1), wrt=nnx.Param)),
    "a train state": lambda: train_state(*nnx.split(net())),
    "shapes": lambda: nnx.state(nnx.eval_shape(net)),
}


@pytest.mark.parametrize("make", STATES.values(), ids=STATES)
def test_the_specs_of_states_are_those_of_flax(make: Any) -> None:
    with nn.logical_axis_rules((("mlp", "tp"),)), jax.set_mesh(MESHES["Auto"]):
        state = make()
        expected = flax_specs(state)
        assert P("dp", "tp") in expected and P("tp", "dp") in expected
        assert list(map(bare, jax.tree.leaves(partition_specs(state)))) == expected
        assert [bare(each.spec) for each in jax.tree.leaves(shardings(state))] == expected
        if make is not STATES["shapes"]:
            assert specs_of(shard(state)) == specs_of(jax.jit(lambda state: shard(state))(state)) == expected


@either_mesh
def test_a_module_is_placed_as_flax_places_it_when_it_is_made(mesh: Mesh) -> None:
    with nn.logical_axis_rules((("mlp", "tp"),)), jax.set_mesh(mesh):
        by_flax, ours = nnx.state(Net(nnx.Rngs(0))), shard(nnx.state(net()))
        for want, got in zip(jax.tree.leaves(by_flax), jax.tree.leaves(ours), strict=True):
            np.testing.assert_array_equal(got, want)
            assert got.sharding.is_equivalent_to(want.sharding, got.ndim)
        kernel = by_flax["second"]["kernel"].get_value()
        assert shard(by_flax)["second"]["kernel"].get_value() is kernel


def test_an_optimizer_may_be_sharded_otherwise() -> None:
    with nnx.use_eager_sharding(False):
        model = nnx.Linear(8, 4, rngs=nnx.Rngs(0), kernel_metadata={"optimizer_sharding": ("dp", "tp")})
        state = nnx.state(nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param))
    mesh = MESHES["Auto"]
    assert specs_of(shard(nnx.state(model), mesh=mesh)) == [P(), P()]
    moments = shard(state, mesh=mesh)["opt_state"][0]["mu"]
    assert specs_of(moments) == [P(), P("dp", "tp")]


def test_a_transformation_adds_the_name_of_its_dim() -> None:
    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=0, transform_metadata={nnx.PARTITION_NAME: "layers"})
    def make(rngs: nnx.Rngs) -> nnx.Linear:
        return nnx.Linear(8, 4, kernel_init=nnx.with_partitioning(nnx.initializers.ones, ("dp", "tp")), rngs=rngs)

    with nnx.use_eager_sharding(False):
        state = nnx.state(make(nnx.Rngs(0)))
    with nn.logical_axis_rules((("layers", None),)), jax.set_mesh(MESHES["Auto"]):
        assert jax.tree.leaves(partition_specs(state))[1] == P(None, "dp", "tp")
        assert specs_of(shard(state))[1] == P(None, "dp", "tp")


AUTO_MESH = MESHES["Auto"]
SAID: dict[str, tuple[Any, P]] = {
    "a spec": (P("dp", "tp"), P("dp", "tp")),
    "a short spec": (P(("dp", "tp")), P(("dp", "tp"))),
    "a spec with any": (P(U, "tp"), P(None, "tp")),
    "a sharding": (NamedSharding(AUTO_MESH, P("dp", None)), P("dp")),
    "a format": (Format(Layout(major_to_minor=(1, 0)), NamedSharding(AUTO_MESH, P("dp", None))), P("dp")),
}


@pytest.mark.parametrize(("said", "spec"), SAID.values(), ids=SAID)
def test_a_variable_may_say_its_sharding_as_jax_does(said: Any, spec: P) -> None:
    state = param(8, 4, out_sharding=said)
    with jax.set_mesh(AUTO_MESH):
        assert specs_of(shard(state)) == [spec]
        assert specs_of(jax.jit(lambda state: shard(state))(state)) == [spec]


def test_a_mesh_of_both_kinds_places_what_flax_refuses() -> None:
    mesh, state = MESHES["mixed"], param(8, 16, out_sharding=("dp", "tp"))
    with jax.set_mesh(mesh):
        with pytest.raises(ValueError, match="all axes as Explicit or all axes as Auto"):
            nnx.Param(X, out_sharding=("dp", "tp"))
        assert specs_of(shard(state)) == [P("dp", "tp")]


def test_boxes_may_name_their_mesh() -> None:
    other = jax.make_mesh((2, 4), ("c", "d"), axis_types=(AUTO, AUTO))
    boxed = [nn.Partitioned(X, names=("dp", "tp"), mesh=AUTO_MESH), param(8, 4, out_sharding=("c", "d"), mesh=other)]
    for each, mesh, spec in zip(boxed, (AUTO_MESH, other), (P("dp", "tp"), P("c", "d")), strict=True):
        (place,) = jax.tree.leaves(shardings(each))
        (placed,) = jax.tree.leaves(shard(each))
        assert place == placed.sharding == NamedSharding(mesh, spec)


def test_a_model_is_made_in_jit_by_the_names_of_its_boxes() -> None:
    rules, mesh = (("a", "dp"), ("b", "tp")), MESHES["Auto"]
    init = nn.with_logical_partitioning(nn.initializers.ones_init(), ("a", "b"), mesh=mesh, rules=rules)
    model = nn.Dense(2, kernel_init=init)
    made = jax.jit(lambda: shard(model.init(jax.random.key(0), jnp.zeros((8, 4))), mesh=mesh))()
    assert made["params"]["kernel"].names == ("a", "b") and made["params"]["kernel"].rules == rules
    assert specs_of(made) == [P(), P("dp", "tp")]


def test_boxes_go_over_the_bridge_both_ways() -> None:
    kernel = nnx.with_partitioning(nnx.initializers.ones, ("dp", "tp"))
    with nnx.use_eager_sharding(False):
        variables = bridge.to_linen(nnx.Linear, 8, 4, kernel_init=kernel).init(jax.random.key(0), jnp.ones((1, 8)))
    with jax.set_mesh(AUTO_MESH):
        assert partition_specs(variables)["params"]["kernel"] == P("dp", "tp")
        assert specs_of(shard(variables)) == [P(), P("dp", "tp")]
    kernel_init = nn.with_partitioning(nn.initializers.ones, ("dp", "tp"))
    bias_init = nn.with_logical_partitioning(nn.initializers.zeros, ("out",), rules=(("out", "tp"),))
    dense = nn.Dense(4, kernel_init=kernel_init, bias_init=bias_init)
    with nnx.use_eager_sharding(False):
        state = nnx.state(bridge.lazy_init(bridge.ToNNX(dense, rngs=nnx.Rngs(0)), jnp.ones((1, 8))), nnx.Param)
    with jax.set_mesh(AUTO_MESH):
        assert specs_of(shard(state)) == flax_specs(state) == [P("tp"), P("dp", "tp")]


def test_a_parameter_goes_into_a_region_by_its_names() -> None:
    mesh = MESHES["Auto"]
    with jax.set_mesh(mesh):
        w = shard(param(8, 4, out_sharding=("dp", None)))

    @typed_shard_map(mesh=mesh)
    def f(w: dict[str, Float[Array, "[b/dp] d"]], b: Float[Array, "d"]) -> Float[Array, "[b/dp] d"]:
        assert w["w"].shape == (2, 4)
        return w["w"] + b

    np.testing.assert_array_equal(f(nnx.to_pure_dict(w), jnp.ones(4)), np.full((8, 4), 2.0))


# TransformerEngine: products whose results are constrained, forward and backward; logical axes by the rules of Flax


PARTITIONS = {
    "rows": ("[b/dp] s [m/tp]", "[m/tp] f", "f", "[b/dp] s f"),
    "columns": ("[b/dp] s m", "m [f/tp]", "[f/tp]", "[b/dp] s [f/tp]"),
}


@pytest.mark.parametrize("hints", PARTITIONS.values(), ids=PARTITIONS)
def test_a_constrained_product_and_its_gradients_are_those_by_hand(hints: tuple[str, ...]) -> None:
    mesh, out = MESHES["Auto"], Float[Array, hints[3]]
    values = [numbers(8, 4, 16), numbers(16, 8), numbers(8)]
    args = [shard(value, hint, mesh) for value, hint in zip(values, hints[:3], strict=True)]

    def loss(place: Any) -> Any:
        return jax.jit(jax.value_and_grad(lambda x, w, b: (place(x @ w + b) ** 2).sum(), argnums=(0, 1, 2)))

    ours = loss(lambda y: shard(y, out, mesh))
    by_hand = loss(lambda y: jax.lax.with_sharding_constraint(y, shardings(out, mesh)))
    got, want = jax.block_until_ready(ours(*args)), jax.block_until_ready(by_hand(*args))
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert specs_of(got[1]) == specs_of(want[1])
    assert ours.lower(*args).as_text() == by_hand.lower(*args).as_text()


MLP_RULES = (("batch", "dp"), ("seqlen", None), ("hidden", None), ("hidden_tp", "tp"), ("w_fsdp", "dp"), ("w_tp", "tp"))


@pytest.mark.sample(3)
@pytest.mark.parametrize("shape", [(4, 2), (8, 1), (1, 8)], ids=str)
def test_layers_with_logical_axes_are_those_by_hand(shape: tuple[int, int]) -> None:
    mesh = jax.make_mesh(shape, ("dp", "tp"), axis_types=(AUTO, AUTO))
    x, up, down = numbers(8, 4, 16), numbers(16, 32), numbers(32, 16)

    def loss(place: Any) -> Any:
        def mlp(x: Any, up: Any, down: Any) -> Any:
            h = place(x, "batch seqlen hidden") @ place(up, "w_fsdp w_tp")
            h = place(jax.nn.gelu(h), "batch seqlen hidden_tp")
            return place(h @ place(down, "w_tp w_fsdp"), "batch seqlen hidden")

        return jax.jit(jax.value_and_grad(lambda *args: mlp(*args).mean(), argnums=(0, 1, 2)))

    with nn.logical_axis_rules(MLP_RULES), jax.set_mesh(mesh):
        ours = loss(lambda y, names: shard(y, Float[Array, names]))
        by_hand = loss(lambda y, names: with_logical_constraint(y, tuple(names.split())))
        jax.tree.map(np.testing.assert_array_equal, ours(x, up, down), jax.block_until_ready(by_hand(x, up, down)))
        assert ours.lower(x, up, down).as_text() == by_hand.lower(x, up, down).as_text()


# Marks on jax 0.9


@pytest.mark.skipif(ADDS_UNREDUCED_AXES, reason="from jax 0.10 on XLA takes it")
@pytest.mark.parametrize("verb", ['shard(y, "b d +dp +tp")', 'reshard(y, "b d +dp -> b d +dp +tp")'])
def test_an_axis_added_to_a_partial_sum_under_jit_is_an_error_and_does_not_end_the_process(verb: str) -> None:
    program = f"""
import jax, jax.numpy as jnp
from typedshmap import ShardingError, reshard, shard
with jax.set_mesh(jax.make_mesh((4, 2), ("dp", "tp"))):
    y = jax.block_until_ready(shard(jnp.ones((8, 16)), "b d +dp"))
    loop = jax.jit(lambda y: jax.lax.scan(lambda c, _: (c, {verb}), 0, None, length=2)[1])
    try:
        jax.block_until_ready(loop(y))
    except ShardingError as error:
        print(error)
    print(jax.block_until_ready(shard(y, "b d +dp +tp")).sharding.spec.unreduced == {{"dp", "tp"}})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert "given value is unreduced over 'dp': on jax 0.9 XLA may crash" in first
    assert last == "True"
