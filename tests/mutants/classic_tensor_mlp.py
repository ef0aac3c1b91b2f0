"""A tensor-parallel MLP block and its gradients: by JAX's types, and by hand under check_vma=False."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from typedshmap import Array, Float32, all_gather, einsum, psum, reduce, size, typed, typed_shard_map


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Mlp:
    up: Float32[Array, "model [ff/tp]"]
    up_bias: Float32[Array, "[ff/tp]"]
    down: Float32[Array, "[ff/tp] model"]
    down_bias: Float32[Array, "model"]


Stream = Float32[Array, "[batch/dp] model"]
Hidden = Float32[Array, "[batch/dp] [ff/tp]"]
Loss = Float32[Array, ""]


@typed
def normed(h: Hidden) -> Hidden:
    square = jax.lax.pmean(jnp.mean(h * h, -1, keepdims=True), "tp")
    return h * jax.lax.rsqrt(square + 1e-3)


@typed
def mlp(x: Stream, w: Mlp) -> Stream:
    h = normed(jax.nn.gelu(x @ w.up + w.up_bias))
    y = jax.lax.psum(h @ w.down, "tp") + w.down_bias
    return x + y


@typed_shard_map
def forward(x: Stream, w: Mlp) -> Stream:
    return mlp(x, w)


@typed_shard_map
def at_rest(x: Stream, up: Float32[Array, "[model/dp] [ff/tp]"], down: Float32[Array, "[ff/tp,dp] model"]) -> Stream:
    """Weights that are gathered right before their use."""
    up = all_gather(up, "[m/dp] [f/tp] -> m [f/tp] ~dp")
    down = jax.lax.all_gather(down, "dp", tiled=True)
    h = jax.nn.relu(einsum(x, up, "[b/dp] m, m [f/tp] -> [b/dp] [f/tp]"))
    return jax.nn.relu(einsum(h, down, "[b/dp] [f/tp], [f/tp] m -> [b/dp] m"))


@typed_shard_map
def loss_and_gradients(w: Mlp, x: Stream, y: Stream) -> tuple[Loss, Mlp]:
    def loss(w: Mlp) -> Array:
        return reduce((mlp(x, w) - y) ** 2, "[b/dp] m ->", "mean")

    return jax.value_and_grad(loss)(w)


@typed_shard_map(check_vma=False)
def by_hand(w: Mlp, x: Stream, y: Stream) -> tuple[Loss, Mlp]:
    """JAX differentiates the sum of what the shards return, so each returns its share of the loss."""

    def share(w: Mlp) -> Array:
        return jnp.sum((mlp(x, w) - y) ** 2) / (size("batch") * size("model") * jax.lax.axis_size("tp"))

    value, gradients = jax.value_and_grad(share)(w)
    gradients = jax.lax.psum(gradients, "dp")
    gradients = replace(gradients, down_bias=jax.lax.psum(gradients.down_bias, "tp"))
    return psum(value, ("dp", "tp")), gradients
