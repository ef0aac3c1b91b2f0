"""A mean of rows that are rounded to sixteen bits, by one scale for all shards, and added up in thirty-two."""

import jax
import jax.numpy as jnp

from typedshmap import Array, Float32, typed_shard_map

Rows = Float32[Array, "[rows/dp] model"]
SUM, COUNT = jnp.float32, jnp.dtype("float32")


@typed_shard_map
def mean_size(x: Rows) -> Float32[Array, "model"]:
    """The mean size of the entries of the rows that begin with a positive one."""
    scale = 1 / jax.lax.pmax(jnp.abs(x).max(), "dp")
    small = jnp.abs(x * scale).astype(jnp.bfloat16)

    def add(sums: tuple[Array, Array], row: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        (total, count), (entries, is_taken) = sums, row
        entries = jnp.where(is_taken, entries, 0).astype(total.dtype)
        return (total + entries, count + is_taken.astype(count.dtype)), None

    nothing = jax.lax.pcast((jnp.zeros(x.shape[1:], SUM), jnp.zeros((), COUNT)), "dp", to="varying")
    (total, count), _ = jax.lax.scan(add, nothing, (small, x[:, 0] > 0))
    return jax.lax.psum(total, "dp") / jax.lax.psum(count, "dp") / scale
