"""``Like[optax.OptState, Params]``: trees of any library's, like parameters that have hints."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Protocol, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from beartype import beartype
from beartype.door import is_bearable
from expecting import numbers
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    Float32,
    Int32,
    Like,
    PyTree,
    ShapeError,
    Stacked,
    StructureError,
    TypedShmapError,
    VaryingError,
    check,
    explain,
    from_callback,
    from_process_local,
    partition_specs,
    psum,
    shape_structs,
    shard,
    shardings,
    size,
    typed,
    typed_jit,
    typed_shard_map,
)
from typedshmap.testing import assert_mesh_invariant, inputs

W = Float32[Array, "[d/dp] [f/tp]"]
B = Float32[Array, "[f/tp]"]


class Params(NamedTuple):
    w: W
    b: B


class Named(TypedDict):
    w: W
    b: B


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Maybe:
    w: W
    b: B | None = None


class Linear(eqx.Module):
    w: W
    b: B | None
    activation: Callable[[Any], Any] = jax.nn.relu
    width: int = eqx.field(static=True, default=16)


w, b = jnp.asarray(numbers(8, 16)), jnp.asarray(numbers(16))
params = Params(w, b)
adam = optax.adam(1e-3)
State = Like[optax.OptState, Params]
S_W, S_B, NONE = P("dp", "tp"), P("tp"), P()


def specs_of(hint: Any, like: Any) -> dict[str, P]:
    """The specs that are not of scalars, by path."""
    found = jax.tree_util.tree_flatten_with_path(partition_specs(hint, like=like))[0]
    return {jax.tree_util.keystr(path): spec for path, spec in found if spec != NONE}


def moments(prefix: str, *fields: str, sep: str = ".{}") -> dict[str, P]:
    return {f"{prefix}.{m}{sep.format(field)}": S_W if field == "w" else S_B for m in ("mu", "nu") for field in fields}


# What has the hints of the parameters

FULL = moments("[0]", "w", "b")
OPTIMIZERS: dict[str, tuple[Any, dict[str, P]]] = {
    "sgd": (optax.sgd(0.1), {}),
    "momentum": (optax.sgd(0.1, momentum=0.9), {"[0].trace.w": S_W, "[0].trace.b": S_B}),
    "adam": (adam, FULL),
    "moments of another dtype": (optax.adamw(0.1, mu_dtype=jnp.bfloat16), FULL),
    "chain": (optax.chain(optax.clip_by_global_norm(1.0), adam), moments("[1][0]", "w", "b")),
    "masked": (optax.masked(adam, Params(True, False)), moments(".inner_state[0]", "w")),
    "several steps": (
        optax.MultiSteps(adam, 4).gradient_transformation(),
        moments(".inner_opt_state[0]", "w", "b") | {".acc_grads.w": S_W, ".acc_grads.b": S_B},
    ),
    "hyperparameters": (optax.inject_hyperparams(optax.adam)(0.1), moments(".inner_state[0]", "w", "b")),
    "partition": (
        optax.partition({"a": adam, "b": optax.set_to_zero()}, Params("a", "b")),
        moments(".inner_states['a'].inner_state[0]", "w"),
    ),
    "other arrays": (
        optax.sm3(0.1),
        {"[0].mu.w[0]": P(None), "[0].mu.w[1]": P(None), "[0].mu.b[0]": P(None), "[0].nu.w": S_W, "[0].nu.b": S_B},
    ),
}


@pytest.mark.parametrize(("optimizer", "specs"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_state_of_an_optimizer_is_sharded_as_its_parameters_are(optimizer: Any, specs: Any, mesh: Mesh) -> None:
    state, structs = optimizer.init(params), jax.eval_shape(optimizer.init, params)
    assert specs_of(State, state) == specs_of(State, structs) == specs
    placed = shard(state, State, mesh)
    assert jax.tree.structure(placed) == jax.tree.structure(state)
    check(placed, State)
    mapped = typed_shard_map(lambda p, s: s, mesh=mesh, in_types=(Params, State), out_types=State)
    assert jax.tree.structure(jax.eval_shape(mapped, params, placed)) == jax.tree.structure(state)


TREES: dict[str, tuple[Any, Any, dict[str, P]]] = {
    "a TypedDict": (Named, Named(w=w, b=b), moments("[0]", "w", "b", sep="['{}']")),
    "a dict of hints": ({"w": W, "b": B}, {"w": w, "b": b}, moments("[0]", "w", "b", sep="['{}']")),
    "a tuple of hints": ((W, B), (w, b), {"[0].mu[0]": S_W, "[0].mu[1]": S_B, "[0].nu[0]": S_W, "[0].nu[1]": S_B}),
    "a list of hints": ([W], [w], {"[0].mu[0]": S_W, "[0].nu[0]": S_W}),
    "any keys": (dict[str, W], {"w": w}, moments("[0]", "w", sep="['{}']")),
    "any length": (list[Params], [params], moments("[0]", "w", "b", sep="[0].{}")),
    "one array": (W, w, {"[0].mu": S_W, "[0].nu": S_W}),
    "PyTree": (PyTree[W], {"w": w}, moments("[0]", "w", sep="['{}']")),
    "PyTree of a class": (PyTree[Params], [params], moments("[0]", "w", "b", sep="[0].{}")),
    "an optional field": (Maybe, Maybe(w), moments("[0]", "w")),
    "equinox": (Linear, eqx.filter(Linear(w, b), eqx.is_array), FULL),
    "Optional": (Optional[Params], params, FULL),
    "stacked": (Stacked["layers", Params], Params(numbers(3, 8, 16), numbers(3, 16)), {
        f"[0].{m}.{name}": spec for m in ("mu", "nu") for name, spec in (("w", P(None, *S_W)), ("b", P(None, *S_B)))
    }),
}  # fmt: skip


@pytest.mark.parametrize(("hint", "tree", "specs"), TREES.values(), ids=TREES)
def test_parameters_are_of_any_structure(hint: Any, tree: Any, specs: dict[str, P], mesh: Mesh) -> None:
    state = Like[optax.OptState, hint]
    assert specs_of(state, adam.init(tree)) == specs
    mapped = typed_shard_map(lambda p, s: (s, p), mesh=mesh, in_types=(hint, state), out_types=(state, hint))
    assert jax.eval_shape(mapped, tree, adam.init(tree))[0][0].count.shape == ()


def test_scalars_beside_parameters_with_any_keys_are_not_among_them() -> None:
    optimizer = optax.inject_hyperparams(optax.adam)(0.1)
    found = specs_of(Like[Any, dict[str, W]], optimizer.init({"w": w}))
    assert found == moments(".inner_state[0]", "w", sep="['{}']")


class Dense(TypedDict):
    weight: Float32[Array, "[_/tp] _"]
    bias: Float32[Array, "[_/tp]"]


class Pair(NamedTuple):
    weight: Any
    bias: Any


@jax.tree_util.register_pytree_with_keys_class
class Module:
    """A class of a library that has an empty node beside its arrays."""

    def __init__(self, weight: Any, bias: Any, state: Any = ()) -> None:
        self.children = {"weight": weight, "bias": bias, "state": state}

    def tree_flatten_with_keys(self) -> Any:
        return [(jax.tree_util.GetAttrKey(name), child) for name, child in self.children.items()], None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Any:
        return cls(*children)


LINEAR = eqx.filter_eval_shape(eqx.nn.Linear, 8, 16, key=jax.random.key(0))


def library_layer(*arrays: Any) -> eqx.nn.Linear:
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), LINEAR, arrays)


@pytest.mark.parametrize("make", [Pair, Module, library_layer])
def test_keys_are_the_fields_of_any_class(make: Any, mesh: Mesh) -> None:
    hint = Like[Any, Dense]
    placed = shard({"layer": make(w.T, b), "scale": b}, hint, mesh)
    assert [leaf.sharding.spec for leaf in jax.tree.leaves(placed)] == [P("tp", None), P("tp"), P(None)]
    mapped = typed_shard_map(lambda tree: tree, mesh=mesh, in_types=(hint,), out_types=hint)
    assert jax.tree.structure(jax.eval_shape(mapped, placed)) == jax.tree.structure(placed)


class Other(NamedTuple):
    b: Any
    w: Any


@pytest.mark.parametrize(
    "tree", [{"w": w, "b": b}, Other(b, w), Maybe(w, b), Linear(w, b)], ids=lambda x: type(x).__name__
)
@pytest.mark.parametrize("hint", [Params, Named, Maybe, Linear], ids=lambda x: x.__name__)
def test_fields_may_be_those_of_another_class(hint: Any, tree: Any) -> None:
    state = adam.init(eqx.filter(tree, eqx.is_array))
    found = specs_of(Like[Any, hint], state)
    assert sorted(map(str, found.values())) == sorted(map(str, [S_W, S_B] * 2))
    assert all(path.rstrip("'].")[-1] == ("w" if spec == S_W else "b") for path, spec in found.items())


def test_what_has_more_arrays_than_the_keys_is_not_like_them() -> None:
    found = specs_of(Like[Any, Dense], Module(w, b, {"mean": b}))
    assert found == {".weight": P(None, None), ".bias": P(None), ".state['mean']": P(None)}


UNIONS: dict[str, tuple[Any, Any, dict[str, P]]] = {
    "a leading dim": (optax.lbfgs(), Params | Stacked["memory", Params], {
        **{f"[0].{name}.{field}": spec for name in ("params", "updates") for field, spec in (("w", S_W), ("b", S_B))},
        **{f"[0].diff_{name}_memory.{field}": P(None, *spec)
           for name in ("params", "updates") for field, spec in (("w", S_W), ("b", S_B))},
        "[0].weights_memory": P(None), "[2].grad.w": S_W, "[2].grad.b": S_B,
    }),
    "unsharded": (optax.adafactor(0.1, min_dim_size_to_factor=4), Params | PyTree[Array], {
        f"[0].{name}.{field}": P(None) for name in ("v_row", "v_col", "v") for field in ("w", "b")
    }),
}  # fmt: skip


@pytest.mark.parametrize(("optimizer", "hint", "specs"), UNIONS.values(), ids=UNIONS)
def test_a_union_says_which_trees_hold_arrays_of_other_ranks(optimizer: Any, hint: Any, specs: dict[str, P]) -> None:
    assert specs_of(Like[optax.OptState, hint], optimizer.init(params)) == specs


@jax.tree_util.register_dataclass
@dataclass
class Training:
    step: int
    params: Any
    state: Any


def test_the_class_is_that_of_the_root() -> None:
    training = Training(0, params, adam.init(params))
    assert specs_of(Like[Training, Params], training) == {
        ".params.w": S_W, ".params.b": S_B, **moments(".state[0]", "w", "b")
    }  # fmt: skip
    assert isinstance(training, Like[Training | Params, Params])
    assert not isinstance(training, Like[Params, Params])
    with pytest.raises(StructureError, match=r"partition_specs: given value is a Training, but its hint says Params"):
        partition_specs(Like[Params, Params], like=training)


# In signatures


class Everything(NamedTuple):
    params: Params
    state: State
    spare: State | None = None


def loss(params: Any, x: Any) -> Any:
    return jnp.mean((x @ params.w + params.b) ** 2)


x = numbers(4, 8)
Rows = Float32[Array, "n d"]


@jax.jit
def plain_step(p: Any, s: Any) -> Any:
    updates, s = adam.update(jax.grad(loss)(p, x), s, p)
    return optax.apply_updates(p, updates), s


def assert_close(got: Any, expected: Any) -> None:
    jax.tree.map(lambda g, e: np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-5), got, expected)


def test_a_step_of_typed_jit_keeps_the_state_where_it_is(mesh: Mesh) -> None:
    @typed_jit(mesh=mesh)
    def init(params: Params) -> State:
        return adam.init(params)

    @typed_jit(mesh=mesh, donate_argnames=("params", "state"))
    def step(params: Params, state: State, x: Rows) -> tuple[Params, State]:
        assert size("f") == 16
        updates, state = adam.update(jax.grad(loss)(params, x), state, params)
        return optax.apply_updates(params, updates), state

    p = shard(params, Params, mesh)
    s = init(p)
    assert s[0].nu.w.sharding.spec == S_W
    for _ in range(2):
        p, s = jax.block_until_ready(step(p, s, x))
    assert s[0].mu.w.sharding.spec == p.w.sharding.spec == S_W
    assert_close((p, s), plain_step(*plain_step(params, adam.init(params))))


def test_a_step_of_typed_shard_map_updates_what_each_shard_holds(mesh: Mesh) -> None:
    @typed
    def apply(params: Params, gradient: Params, state: State) -> tuple[Params, State]:
        updates, state = adam.update(gradient, state, params)
        return optax.apply_updates(params, updates), check(state, State)

    @typed_shard_map(mesh=mesh)
    def step(everything: Everything, gradient: Params) -> Everything:
        assert everything.state[0].mu.w.shape == (2, 8)
        return Everything(*apply(everything.params, gradient, everything.state))

    gradient = jax.jit(jax.grad(loss))(params, x)
    got = jax.block_until_ready(step(Everything(params, adam.init(params)), gradient))
    assert_close(got, Everything(*plain_step(params, adam.init(params))))


def test_scan_goes_through_a_stacked_state(mesh: Mesh) -> None:
    stacked = Params(numbers(3, 8, 16), numbers(3, 16))
    state = jax.vmap(adam.init)(stacked)
    hint = Stacked["layers", State]
    assert specs_of(hint, state)["[0].mu.w"] == P(None, *S_W)
    assert specs_of(hint, state)["[0].count"] == P(None)

    @typed_shard_map(mesh=mesh)
    def update(params: Stacked["layers", Params], state: Stacked["layers", State]) -> Stacked["layers", State]:
        def one(_: None, each: tuple[Params, Any]) -> Any:
            p, s = each
            return None, adam.update(p, check(s, State), p)[1]

        return jax.lax.scan(one, None, (params, state))[1]

    expected = jax.jit(jax.vmap(adam.update))(stacked, state)[1]
    assert_close(jax.block_until_ready(jax.jit(update)(stacked, state)), expected)


def test_a_vmap_and_a_gradient_go_through_it(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def total(state: State) -> Float32[Array, ""]:
        return psum(jnp.sum(state[0].mu.w) + jnp.sum(state[0].nu.w), ("dp", "tp"))

    state = adam.init(params)
    gradient = jax.eval_shape(jax.grad(total, allow_int=True), state)
    assert gradient[0].mu.w.shape == (8, 16)
    many = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), state)
    assert jax.eval_shape(jax.vmap(total), many).shape == (3,)


def test_what_is_not_in_the_parameters_must_be_the_same_on_every_shard(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def f(state: State) -> State:
        count = state[0].count + jax.lax.axis_index("dp")
        return check((state[0]._replace(count=count), state[1]), State)

    with pytest.raises(VaryingError) as caught:
        f(adam.init(params))
    assert str(caught.value).splitlines()[0].startswith("f: checked[0].count varies over 'dp'")


def test_isinstance_beartype_and_its_door_take_it() -> None:
    @beartype
    def f(state: State) -> None: ...  # type: ignore[valid-type]

    state = adam.init(params)
    f(state)
    assert isinstance(state, State) and is_bearable(state, State) and is_bearable([state], list[State])
    wrong = adam.init(Params(numbers(8, 16), numbers(8)))
    assert not isinstance(wrong, State) and not is_bearable(wrong, State)
    with pytest.raises(Exception, match=r"value\[0\]\.mu\.b has f=8, but checked\[0\]\.mu\.w has f=16"):
        f(wrong)


# At rest


def test_structs_and_shardings_come_in_the_structure_of_like(mesh: Mesh) -> None:
    structs = shape_structs(Params, mesh, d=8, f=16)
    got = shape_structs(State, mesh, like=jax.eval_shape(adam.init, structs))
    assert (got[0].mu.w.shape, got[0].mu.w.sharding.spec, got[0].count.dtype) == ((8, 16), S_W, np.int32)
    assert shardings(State, mesh, like=got)[0].nu.b == NamedSharding(mesh, S_B)
    bfloat16 = jax.eval_shape(optax.adam(0.1, mu_dtype=jnp.bfloat16).init, structs)
    assert shape_structs(State, mesh, like=bfloat16)[0].mu.w.dtype == jnp.bfloat16
    assert shape_structs(State, like=adam.init(params), d=8)[0].mu.w.sharding is None
    key = jax.random.key(0)
    assert shape_structs(Like[Any, Params], mesh, like=(key, params))[0].dtype == key.dtype
    with pytest.raises(ShapeError, match=r"shape_structs: like\[0\]\.mu\.w has d=8, but given value has d=4"):
        shape_structs(State, like=adam.init(params), d=4)
    with pytest.raises(ShapeError, match=r"no hint names 'model'"):
        shape_structs(State, like=adam.init(params), model=4)


@pytest.mark.parametrize(
    "call",
    [
        lambda mesh: partition_specs(State),
        lambda mesh: shardings(State, mesh),
        lambda mesh: shape_structs(State, mesh),
        lambda mesh: from_callback(lambda path, index: None, State, mesh),
    ],
)
def test_without_a_value_it_says_to_pass_one(mesh: Mesh, call: Any) -> None:
    words = r"Like\[\.\.\., Params\] does not say how many arrays(.|\n)*pass like=, a"
    with pytest.raises(StructureError, match=words):
        call(mesh)


def test_arrays_come_from_callbacks_and_processes(mesh: Mesh) -> None:
    state = jax.tree.map(np.asarray, adam.init(params))
    by_path = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]}
    made = from_callback(lambda path, index: by_path[path][index], State, mesh, like=jax.eval_shape(adam.init, params))
    assert made[0].mu.w.sharding.spec == S_W
    assert_close(made, state)
    given = from_process_local(state, State, mesh)
    assert given[0].mu.w.sharding.spec == S_W
    masked = optax.masked(adam, Params(True, False)).init(params)
    assert from_process_local(masked, State, mesh).inner_state[0].mu.w.sharding.spec == S_W


@typed_jit
def update(params: Params, state: State) -> State:
    return adam.update(params, state, params)[1]


class Both(NamedTuple):
    params: Params
    state: State


@typed_jit
def update_both(both: Both) -> Both:
    return Both(both.params, adam.update(both.params, both.state)[1])


def test_inputs_are_made_by_a_function_of_the_parameters(mesh: Mesh) -> None:
    made = inputs(update, mesh=mesh, d=8, f=16, state=adam.init)
    assert made["state"][0].mu.w.sharding.spec == S_W
    assert jax.tree.structure(made["state"]) == jax.tree.structure(adam.init(params))
    made = inputs(update, mesh=mesh, state=adam.init(params))
    assert made["params"].w.shape == (8, 16)
    for arguments in ({"both.state": adam.init}, {"both": Both(params, adam.init(params))}):
        structs = inputs(update_both, mesh=AbstractMesh((4, 2), ("dp", "tp")), arguments=arguments)
        assert structs["both"].state[0].mu.w.sharding.spec == S_W
    for function, how in ((update, {"state": adam.init}), (update_both, {"arguments": {"both.state": adam.init}})):
        assert "state[0].mu.w" in explain(function, mesh="dp=4,tp=2", d=8, f=16, **how).tables
    assert "state[0].mu.w" in explain(update, params, mesh="dp=4,tp=2", state=adam.init).tables
    assert "state[0].mu.w" in explain(update, params, jax.eval_shape(adam.init, params), mesh="dp=4,tp=2").tables
    assert_mesh_invariant(update, ["dp=2,tp=2"], trials=1, state=adam.init)


def wanted(verb: str, name: str, cure: str) -> str:
    wants = "has a structure that no hint describes: it needs a value, or a function of the parameters"
    return f"{verb}: argument '{name}' (Like[..., Params]) {wants}; pass {cure}"


NO_PARAMETERS = "no argument has the structure of the parameters from which Like[..., Params] is to be made"


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: inputs(update), wanted("inputs: update", "state", "state=optimizer.init")),
        (lambda: explain(update, mesh="dp=4,tp=2"), wanted("explain: update", "state", "state=optimizer.init")),
        (lambda: inputs(update_both), wanted(
            "inputs: update_both", "both.state", "arguments={'both.state': optimizer.init}"
        )),
        (lambda: inputs(alone, state=adam.init), f"inputs: alone: {NO_PARAMETERS}"),
    ],
    ids=["inputs", "explain", "a field", "no parameters"],
)  # fmt: skip
def test_a_state_that_cannot_be_drawn_is_asked_for(call: Any, line: str) -> None:
    assert message_of(call).splitlines()[0] == line


@typed_jit
def alone(state: State) -> State:
    return state


# What it refuses


def message_of(call: Callable[[], Any]) -> str:
    with pytest.raises(TypedShmapError) as caught:
        call()
    return str(caught.value)


def test_a_size_that_differs_from_the_parameters_is_named_by_its_path(mesh: Mesh) -> None:
    class Dict(TypedDict):
        w: W

    @typed_jit(mesh=mesh)
    def f(params: Dict, opt_state: Like[optax.OptState, Dict]) -> None: ...

    assert message_of(lambda: f({"w": w}, adam.init({"w": numbers(8, 8)}))) == (
        """f: argument 'opt_state[0].mu['w']' has f=8, but argument 'params['w']' has f=16

    opt_state[0].mu['w']: Float32[Array, "[d/dp] [f/tp]"]
                                                  ^
    got f32[8,8]

Mesh: dp=4, tp=2
Sizes: d=8 (params['w'] dim 0), f=16 (params['w'] dim 1)
Also: argument 'opt_state[0].nu['w']' has f=8, but argument 'params['w']' has f=16"""
    )


def test_an_array_outside_of_the_parameters_says_that_it_is(mesh: Mesh) -> None:
    state = jax.device_put({"moment": w}, NamedSharding(mesh, P("dp")))
    assert message_of(lambda: update(params, state)) == (
        """update: argument 'state['moment']' is sharded P('dp'), but its hint says P(None, None)

    state['moment']: unsharded, in no Params of Like[..., Params]
    got f32[8,16]

Mesh: dp=4, tp=2
Hint: place it by shard(x, hint, mesh)"""
    )


def test_other_ranks_in_the_structure_of_the_parameters_are_refused(mesh: Mesh) -> None:
    lines = message_of(lambda: shard(optax.lbfgs().init(params), State, mesh)).splitlines()
    assert lines[0] == "shard: given[0].diff_params_memory.w has 3 dims, but its hint has 2"
    cure = 'Like[..., Params | Stacked["n", Params]], which allows a leading dim'
    assert f"Hint: if trees of Params hold arrays of other ranks, write {cure}" in lines


@pytest.mark.parametrize(
    ("hint", "value", "line"),
    [
        (Like[Any, dict[str, W]], {"w": w, "b": b}, "shard: given['b'] has 1 dim, but its hint has 2"),
        (Everything, Everything(params, adam.init(Params(w, numbers(8)))),
         "shard: given.state[0].mu.b has f=8, but given.params.w has f=16"),
    ],
)  # fmt: skip
def test_parameters_and_a_field_that_do_not_fit_are_refused(hint: Any, value: Any, line: str, mesh: Mesh) -> None:
    assert message_of(lambda: shard(value, hint, mesh)).splitlines()[0] == line


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Like[Params], "Like[...]: expects a class and a hint, as in Like[optax.OptState, Params]"),
        (lambda: Like[1, Params], "Like[1, ...]: 1 is not a class, nor Any"),
        (lambda: Like["State", Params], "Like['State', ...]: 'State' is not a class, nor Any"),
        (lambda: partition_specs(Like), "Like: expects a class and a hint, as in Like[optax.OptState, Params]"),
        (lambda: partition_specs(Like[Any, int]), "Like[Any, int]: int holds no arrays"),
        (lambda: partition_specs(Like[Any, Any]), "Like[Any, Any]: Any holds no arrays"),
        (lambda: partition_specs(Like[Any, "w"]), "'w' is not a hint"),
    ],
)  # fmt: skip
def test_what_is_not_a_hint_is_refused(make: Any, message: str) -> None:
    with pytest.raises(AnnotationSyntaxError) as caught:
        make()
    assert message in str(caught.value).splitlines()[0]


class Endless(NamedTuple):
    w: W
    state: "Like[Any, Endless]"


def test_a_class_that_is_like_itself_is_refused() -> None:
    with pytest.raises(AnnotationSyntaxError, match=r"Like\[Any, Endless\] is inside of Endless itself"):
        partition_specs(Endless)


@pytest.mark.parametrize("hint", [State, Like[tuple, Params], Like[Any, {"w": W, "b": B}]], ids=str)
def test_it_is_pickled(hint: Any) -> None:
    state = adam.init(params if "Params" in hint.__name__ else params._asdict())
    assert specs_of(pickle.loads(pickle.dumps(hint)), state) == specs_of(hint, state) != {}


def test_python_numbers_are_arrays_and_what_is_no_array_stays(mesh: Mesh) -> None:
    placed = shard({"count": 3, "name": "adam", "params": params}, Like[dict, Params], mesh)
    assert (placed["name"], int(placed["count"]), placed["params"].w.sharding.spec) == ("adam", 3, S_W)
    f = typed_shard_map(lambda s: s["count"], mesh=mesh, in_types=(Like[dict, Params],), out_types=Int32[Array, ""])
    assert int(f({"count": 3, "name": "adam", "params": params})) == 3


class OwnProtocol(Protocol):
    mu: Any


def test_a_class_that_isinstance_does_not_take_is_any() -> None:
    assert specs_of(Like[OwnProtocol, Params], adam.init(params)) == FULL


class Postponed(NamedTuple):
    w: "Undefined"  # type: ignore[name-defined]


def test_a_name_that_is_not_defined_is_reported_when_it_is_asked_for() -> None:
    for hint in (Like[Any, Postponed], Stacked["n", Postponed]):
        with pytest.raises(AnnotationSyntaxError, match="names 'Undefined', which is not defined"):
            isinstance(params, hint)
