"""Rows with noise from keys of their own, times a scale that is drawn once for all shards."""

import jax
import jax.numpy as jnp

from typedshmap import Array, Float32, Key, typed_shard_map

Rows = Float32[Array, "[batch/dp] model"]


@typed_shard_map
def noised(x: Rows, key: Key[Array, ""]) -> tuple[Rows, Float32[Array, "model"]]:
    for_rows, for_all = jax.random.split(key)
    rows = jax.lax.axis_index("dp") * len(x) + jnp.arange(len(x))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(for_rows, rows)
    noise = jax.vmap(lambda key: jax.random.normal(key, x.shape[1:]))(keys)
    scale = jax.random.normal(for_all, x.shape[1:])
    return x + scale * noise, scale
