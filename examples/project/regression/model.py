"""A perceptron with one hidden layer: data parallel over `dp`, tensor parallel over `tp`."""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from typedshmap import (
    Array,
    Float32,
    Key,
    Like,
    all_gather,
    einsum,
    reduce,
    shape_structs,
    typed,
    typed_jit,
    typed_shard_map,
)
from typedshmap.testing import mesh_invariant


class Params(NamedTuple):
    up: Float32[Array, "[features/dp] [hidden/tp]"]
    down: Float32[Array, "[hidden/tp]"]


State: TypeAlias = Like[optax.OptState, Params]
Inputs = Float32[Array, "[batch/dp] features"]
Outputs = Float32[Array, "[batch/dp]"]
optimizer = optax.adam(1e-2)


@typed
def predict(params: Params, x: Inputs) -> Outputs:
    up = all_gather(params.up, "[f/dp] [h/tp] -> f [h/tp] ~dp")  # FSDP: gathered right before its use
    hidden = jnp.tanh(einsum(x, up, "[b/dp] f, f [h/tp] -> [b/dp] [h/tp]"))
    return einsum(hidden, params.down, "[b/dp] [h/tp], [h/tp] -> [b/dp]")


@typed_shard_map
def loss_and_gradients(params: Params, x: Inputs, y: Outputs) -> tuple[Float32[Array, ""], Params]:
    return jax.value_and_grad(lambda params: reduce((predict(params, x) - y) ** 2, "[b/dp] ->", "mean"))(params)


@mesh_invariant(state=optimizer.init)
@typed_jit(donate_argnames=("params", "state"))
def step(params: Params, state: State, x: Inputs, y: Outputs) -> tuple[Params, State, Float32[Array, ""]]:
    loss, gradients = loss_and_gradients(params, x, y)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


@typed_jit
def init(key: Key[Array, ""], features: int, hidden: int) -> tuple[Params, State]:
    structs = shape_structs(Params, features=features, hidden=hidden)
    keys = Params(*jax.random.split(key, len(structs)))
    params = jax.tree.map(lambda s, k: 0.1 * jax.random.normal(k, s.shape), structs, keys)
    return params, optimizer.init(params)
