"""A product with weights in eight bits, of one scale for all shards."""

import jax
import jax.numpy as jnp

from typedshmap import Array, Float32, typed_shard_map

LARGEST = 448


@typed_shard_map
def quantised(
    x: Float32[Array, "[batch/dp] [model/tp]"], w: Float32[Array, "[model/tp] out"]
) -> Float32[Array, "[batch/dp] out"]:
    scale = jax.lax.pmax(jnp.abs(w).max(), "tp") / LARGEST
    small = (w / scale).astype(jnp.float8_e4m3fn)
    partial = x @ small.astype(jnp.float32)
    return jax.lax.psum(partial, "tp") * scale
