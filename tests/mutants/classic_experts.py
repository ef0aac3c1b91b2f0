"""Mixture of experts: tokens go to their expert's shard and back, within one capacity for all shards together."""

import jax
import jax.numpy as jnp

from typedshmap import Array, Float32, Int32, all_to_all, psum, size, typed, typed_shard_map

Tokens = Float32[Array, "[tokens/ep] model"]
Choice = Float32[Array, "[tokens/ep] experts"]


@typed
def earlier(chosen: Choice) -> Float32[Array, "experts ~ep"]:
    """How many tokens of the shards before this one go to each expert."""
    counts = jax.lax.all_gather(chosen.sum(0), "ep")
    is_before = jnp.arange(len(counts)) < jax.lax.axis_index("ep")
    return is_before @ counts


@typed
def balance(chosen: Choice, gates: Choice) -> Float32[Array, ""]:
    """Least where every expert gets as many tokens as any other."""
    share, gate = jax.lax.pmean((chosen.mean(0), gates.mean(0)), "ep")
    return size("experts") * jnp.sum(share * gate)


@typed_shard_map
def layer(
    x: Tokens,
    router: Float32[Array, "model experts"],
    w: Float32[Array, "[experts/ep] model model"],
    scale: Float32[Array, "experts"],
) -> tuple[Tokens, Float32[Array, ""], Int32[Array, "experts"]]:
    capacity = size("tokens") // size("experts") + 1
    gates = jax.nn.softmax(x @ router)
    expert = jnp.argmax(gates, 1)
    chosen = jax.nn.one_hot(expert, size("experts"))
    place = jnp.sum((jnp.cumsum(chosen, 0) - 1) * chosen, 1).astype(jnp.int32)
    is_kept = place + earlier(chosen)[expert] < capacity
    sent = jnp.zeros((size("experts"), *x.shape)).at[expert, place].set(x)
    arrived = all_to_all(sent, "e [c/ep] m -> [e/ep] c m")
    first = jax.lax.axis_index("ep") * len(w)
    scales = jax.lax.dynamic_slice_in_dim(scale, first, len(w))
    done = jnp.tanh(jnp.einsum("ecm,emn->ecn", arrived, w)) * scales[:, None, None]
    back = all_to_all(done, "[e/ep] c m -> e [c/ep] m")
    mixed = jnp.where(is_kept, gates.max(1), 0)[:, None] * back[expert, place]
    load = psum((chosen * is_kept[:, None]).sum(0), "e ~ep -> e").astype(jnp.int32)
    return x + mixed, balance(chosen, gates), load
