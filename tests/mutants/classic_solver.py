"""An iteration that ends when all shards have converged."""

import jax
import jax.numpy as jnp

from typedshmap import Array, Float32, Int32, typed_shard_map

State = tuple[Array, Array, Array]


@typed_shard_map
def solved(b: Float32[Array, "[n/dp]"]) -> tuple[Float32[Array, "[n/dp]"], Int32[Array, ""]]:
    """Solve ``x = b + mean(x) / 2``."""

    def is_off(state: State) -> Array:
        _, residual, steps = state
        return (residual > 1e-2) & (steps < 50)

    def improved(state: State) -> State:
        x, _, steps = state
        new = b + jax.lax.pmean(x.mean(), "dp") / 2
        residual = jax.lax.pmax(jnp.abs(new - x).max() * jnp.abs(b).max(), "dp")
        return new, residual, steps + 1

    x, _, steps = jax.lax.while_loop(is_off, improved, (b, jnp.float32(1), jnp.int32(0)))
    return x, steps
