"""Gradients accumulated over microbatches, of which the last rows are padding."""

import jax
import jax.numpy as jnp

from typedshmap import Array, Bool, Float32, size, typed, typed_shard_map

PADDING = 2


@typed
def real_rows(y: Float32[Array, "micro [batch/dp]"]) -> Bool[Array, "[batch/dp]"]:
    rows = y.shape[1]
    at = jax.lax.axis_index("dp") * rows + jnp.arange(rows)
    return at < size("batch") - PADDING


@typed_shard_map
def accumulated(
    w: Float32[Array, "model"], x: Float32[Array, "micro [batch/dp] model"], y: Float32[Array, "micro [batch/dp]"]
) -> tuple[Float32[Array, ""], Float32[Array, "model"]]:
    is_real = real_rows(y)

    def share(w: Array, x: Array, y: Array) -> Array:
        return jnp.sum(jnp.where(is_real, (x @ w - y) ** 2, 0))

    def iteration(carry: tuple[Array, Array], batch: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        total, gradients = carry
        value, gradient = jax.value_and_grad(share)(mine, *batch)
        return (total + value, gradients + gradient), None

    mine = jax.lax.pcast(w, "dp", to="varying")
    start = (0 * mine.sum(), 0 * mine)
    (total, gradients), _ = jax.lax.scan(iteration, start, (x, y))
    count = size("micro") * jax.lax.psum(is_real.sum(), "dp")
    return jax.lax.psum(total, "dp") / count, jax.lax.psum(gradients, "dp") / count
