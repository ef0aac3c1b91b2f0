"""Causal ring attention: queries stay, keys and values go round, the softmax is taken as they come."""

import jax
import jax.numpy as jnp

from typedshmap import Array, Float32, check, ppermute, size, typed_shard_map

Rows = Float32[Array, "[batch/dp] [seq/sp] head"]


def positions(block: Array, rows: int) -> Array:
    return block * rows + jnp.arange(rows)


def varying(x: Array) -> Array:
    return jax.lax.pcast(x, ("dp", "sp"), to="varying")


@typed_shard_map
def attention(q: Rows, k: Rows, v: Rows) -> Rows:
    count, mine, rows = jax.lax.axis_size("sp"), jax.lax.axis_index("sp"), q.shape[1]

    def iteration(i: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        k, v, largest, total, out = carry
        block = (mine - i) % count
        scores = jnp.einsum("bqd,bkd->bqk", q, k) * size("head") ** -0.5
        is_past = positions(mine, rows)[:, None] >= positions(block, rows)
        scores = jnp.where(is_past, scores, -1e9)
        now = jnp.maximum(largest, scores.max(-1))
        shrink, weights = jnp.exp(largest - now), jnp.exp(scores - now[..., None])
        total = total * shrink + weights.sum(-1)
        out = out * shrink[..., None] + weights @ v
        k = ppermute(k, "[b/dp] [s/sp] d", shift=1, axis="sp")
        v = ppermute(v, "[b/dp] [s/sp] d", shift=1, axis="sp")
        return k, v, now, total, check(out, "[batch/dp] [seq/sp] head")

    empty = varying(jnp.zeros(q.shape[:2]))
    start = (k, v, empty - 1e9, empty, varying(jnp.zeros(q.shape)))
    _, _, _, total, out = jax.lax.fori_loop(0, count, iteration, start)
    return out / total[..., None]
