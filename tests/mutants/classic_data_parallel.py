"""A data-parallel training step: inputs standardised over the batch, dropout, a loss, gradients, an update."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from typedshmap import Array, Float32, Key, reduce, size, typed, typed_shard_map

RATE, KEEP = 0.1, 0.75


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    w: Float32[Array, "inputs outputs"]
    b: Float32[Array, "outputs"]


X = Float32[Array, "[batch/dp] inputs"]
Y = Float32[Array, "[batch/dp] outputs"]
Loss = Float32[Array, ""]


@typed
def standardised(x: X) -> X:
    mean = reduce(x, "[b/dp] i -> i", "mean")
    variance = reduce((x - mean) ** 2, "[b/dp] i -> i", "mean")
    return (x - mean) * jax.lax.rsqrt(variance + 1e-3)


@typed
def dropped(x: X, key: Key[Array, ""]) -> X:
    """One mask for the global batch, from which each shard takes its rows: the same numbers on every mesh."""
    mask = jax.random.bernoulli(key, KEEP, (size("batch"), size("inputs")))
    mine = jax.lax.dynamic_slice_in_dim(mask, jax.lax.axis_index("dp") * len(x), len(x))
    return jnp.where(mine, x / KEEP, 0)


def updated(weights: Weights, gradients: Weights, batch: int) -> Weights:
    rate = RATE * batch / 8
    return jax.tree.map(lambda w, g: w - rate * g, weights, gradients)


@typed_shard_map
def step(weights: Weights, x: X, y: Y, key: Key[Array, ""]) -> tuple[Weights, Loss]:
    x = dropped(standardised(x), key)

    def loss(weights: Weights) -> Array:
        errors = x @ weights.w + weights.b - y
        return reduce(errors**2, "[b/dp] o ->", "sum") / size("batch")

    value, gradients = jax.value_and_grad(loss)(weights)
    return updated(weights, gradients, size("batch")), value


@typed_shard_map(check_vma=False)
def step_by_hand(weights: Weights, x: X, y: Y) -> tuple[Weights, Loss]:
    """As under pmap: each shard's own gradient, then the mean over the shards."""

    def loss(weights: Weights) -> Array:
        return jnp.mean(jnp.sum((x @ weights.w + weights.b - y) ** 2, 1))

    value, gradients = jax.value_and_grad(loss)(weights)
    gradients = jax.lax.pmean(gradients, "dp")
    return updated(weights, gradients, size("batch")), jax.lax.pmean(value, "dp")
