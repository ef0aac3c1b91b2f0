"""A pipeline: every shard runs some of the stages, and hands each microbatch on to the next shard."""

import jax
import jax.numpy as jnp

from typedshmap import Array, Float32, size, typed_shard_map

Microbatches = Float32[Array, "micro batch model"]


def varying(x: Array) -> Array:
    return jax.lax.pcast(x, "pp", to="varying")


@typed_shard_map
def pipeline(
    w: Float32[Array, "[stages/pp] model model"], b: Float32[Array, "stages model"], x: Microbatches
) -> Microbatches:
    count, mine = jax.lax.axis_size("pp"), jax.lax.axis_index("pp")
    first_stage = mine * len(w)

    def staged(h: Array) -> Array:
        for i in range(len(w)):
            h = jnp.tanh(h @ w[i] + b[first_stage + i])
        return h

    def tick(carry: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], None]:
        arriving, done = carry
        fresh = x[jnp.clip(t, 0, size("micro") - 1)]
        h = staged(jnp.where(mine == 0, fresh, arriving))
        at = t - (count - 1)
        is_done = (mine == count - 1) & (at >= 0)
        done = jnp.where(is_done, done.at[at].set(h), done)
        return (jax.lax.ppermute(h, "pp", [(i, (i + 1) % count) for i in range(count)]), done), None

    start = varying(jnp.zeros(x.shape[1:])), varying(jnp.zeros(x.shape))
    (_, done), _ = jax.lax.scan(tick, start, jnp.arange(size("micro") + count - 1))
    return jax.lax.psum(done, "pp")
