"""Causal attention over a context that no device holds, with its gradient.

The mesh has two axes: dp shards the batch, cp (context parallel) shards the sequence of queries, keys
and values. Queries stay where they are; keys and values go round a ring of `ppermute`s, one
neighbour at a time, and every shard folds each block it meets into a running softmax. No device ever
holds the context, nor scores of more than one block, where a kernel could take the place of `attend`
and hold less. The gradient is a second trip around the ring, on which the gradients of keys and values
travel with them: without it `jax.grad` would keep every block that came past, that is, the
context.

Where queries see the past only, half of all blocks are skipped. That saves time if every device skips
as many as the others: each holds one chunk from the front of the sequence and one from its end
(`zigzag`). Positions are an array like the others, so that the ring need not know of the order.

    python examples/ring_attention.py

It prints which blocks are computed in either order, compares values and gradients with plain attention
on one device in float32 and bfloat16, and shows what a million tokens take on three meshes. The exit
code is 1 if anything differs.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import sys
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from typedshmap import (
    Array,
    BFloat16,
    Bool,
    Float,
    Float32,
    Int32,
    einsum,
    explain,
    ppermute,
    shape_structs,
    shard,
    typed,
    typed_shard_map,
)

BATCH, SEQ, KV_HEADS, GROUP, HEAD = 2, 128, 2, 2, 16
CHUNKS = 2  # in each shard
UNSEEN = -1e30  # finite, so that a row that has seen nothing yet is not nan

# Sums over 128 keys in another order: some 1e-6 of the largest entry. Of bfloat16, with 8 bits, the weights, the
# results and the gradients of scores are each rounded once, by up to 2e-3 of themselves.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}

# The global arrays.
Queries = Float[Array, "[batch/dp] [seq/cp] kv_heads group head"]
Keys = Float[Array, "[batch/dp] [seq/cp] kv_heads head"]
Positions = Int32[Array, "[batch/dp] [seq/cp]"]

# What meets on a shard: a chunk of queries and one of keys or values, others on every shard of cp.
Rows = Float[Array, "[batch/dp] rows kv_heads group head ~cp"]
Columns = Float[Array, "[batch/dp] columns kv_heads head ~cp"]
Mask = Bool[Array, "[batch/dp] rows columns ~cp"]
Scores = Float32[Array, "[batch/dp] rows kv_heads group columns ~cp"]
PerRow = Float32[Array, "[batch/dp] rows kv_heads group ~cp"]
Gradients = tuple[Float32[Rows, ""], Float32[Columns, ""], Float32[Columns, ""]]

product = partial(einsum, preferred_element_type=jnp.float32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Softmax:
    """A softmax over the keys met so far: the largest score, the sum of exponentials, the values mixed."""

    top: PerRow
    total: PerRow
    mixed: Float32[Rows, ""]


@typed
def scores_of(q: Rows, k: Columns, mask: Mask) -> Scores:
    scores = product(q, k, "[b/dp] q g r d ~cp, [b/dp] k g d ~cp -> [b/dp] q g r k ~cp")
    return jnp.where(mask[:, :, None, None], scores * q.shape[-1] ** -0.5, UNSEEN)


@typed
def mix(weights: Scores, v: Columns) -> Float32[Rows, ""]:
    return product(weights.astype(v.dtype), v, "[b/dp] q g r k ~cp, [b/dp] k g d ~cp -> [b/dp] q g r d ~cp")


@typed
def attend(met: Softmax, mask: Mask, q: Rows, k: Columns, v: Columns) -> Softmax:
    scores = scores_of(q, k, mask)
    top = jnp.maximum(met.top, scores.max(-1))
    shrink, weights = jnp.exp(met.top - top), jnp.exp(scores - top[..., None])
    return Softmax(top, met.total * shrink + weights.sum(-1), met.mixed * shrink[..., None] + mix(weights, v))


@typed
def attend_back(
    met: Gradients, mask: Mask, q: Rows, k: Columns, v: Columns, d_out: Rows, d_total: PerRow, log_total: PerRow
) -> Gradients:
    """Add the gradients of one block, whose share of the softmax is known by now."""

    def block(q, k, v):
        weights = jnp.exp(scores_of(q, k, mask) - log_total[..., None])
        return mix(weights, v), weights.sum(-1)

    gradients = jax.vjp(block, q, k, v)[1]((d_out.astype(jnp.float32), d_total))
    return jax.tree.map(jnp.add, met, gradients)


def is_seen(q_at, k_at):
    """Whether any of these queries sees any of these keys."""
    return q_at.max() >= k_at.min()


def if_seen(attend, met, q_at, k_at, *operands):
    """What was met so far, and one more block if there is anything to see in it."""
    mask = q_at[:, :, None] >= k_at[:, None, :]
    return jax.lax.cond(is_seen(q_at, k_at), attend, lambda met, *_: met, met, mask, *operands)


def chunks(tree) -> list:
    """A list of trees, one for each chunk of the shard."""
    leaves, structure = jax.tree.flatten(tree)
    return [structure.unflatten(part) for part in zip(*(jnp.array_split(x, CHUNKS, 1) for x in leaves), strict=True)]


def joined(parts: list):
    return jax.tree.map(lambda *part: jnp.concatenate(part, 1), *parts)


def pass_on(travelling):
    return jax.tree.map(lambda x: ppermute(x, "[b/dp] [s/cp] ...", shift=1, axis="cp"), travelling)


def ring(meet, home, travelling):
    """Meet one's own, then, passed on by the neighbour, what belongs to each other shard."""

    def step(state, _):
        home, travelling = state
        return meet(home, pass_on(travelling)), None

    others = jax.lax.axis_size("cp") - 1
    return jax.lax.scan(step, meet(home, travelling), length=others)[0]


def forward(q: Queries, k: Keys, v: Keys, at: Positions):
    queries, zeros = chunks((q, at)), jnp.zeros_like(q, jnp.float32)

    def meet(home, travelling):
        for k, v, k_at in chunks(travelling):
            home = [if_seen(attend, met, q_at, k_at, q, k, v) for met, (q, q_at) in zip(home, queries, strict=True)]
        return home, travelling

    nothing = Softmax(zeros[..., 0] + UNSEEN, zeros[..., 0], zeros)
    met = joined(ring(meet, chunks(nothing), (k, v, at))[0])
    out = (met.mixed / met.total[..., None]).astype(q.dtype)
    return out, (q, k, v, at, out, met.top + jnp.log(met.total))


def backward(saved, d_out: Queries):
    """Go around once more: the gradients of keys and values travel with them, and one step further, home."""
    q, k, v, at, out, log_total = saved
    d_total = -jnp.sum(out.astype(jnp.float32) * d_out, -1)
    queries = chunks((q, at, d_out, d_total, log_total))

    def meet(d_queries, travelling):
        d_queries, keys = list(d_queries), chunks(travelling)
        for i, (q, q_at, *others) in enumerate(queries):
            for j, (k, v, k_at, *d_kv) in enumerate(keys):
                d_queries[i], *d_kv = if_seen(attend_back, (d_queries[i], *d_kv), q_at, k_at, q, k, v, *others)
                keys[j] = (k, v, k_at, *d_kv)
        return d_queries, joined(keys)

    zeros = [jnp.zeros_like(x, jnp.float32) for x in (q, k, v)]
    d_queries, (*_, d_k, d_v) = ring(meet, chunks(zeros[0]), (k, v, at, *zeros[1:]))
    d_k, d_v = pass_on((d_k, d_v))
    return joined(d_queries).astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype), None


@jax.custom_vjp
def ring_attention(q, k, v, at):
    return forward(q, k, v, at)[0]


ring_attention.defvjp(forward, backward)


@jax.jit
@typed_shard_map
def attention_and_gradients(
    q: Queries, k: Keys, v: Keys, at: Positions, d_out: Queries
) -> tuple[Queries, Queries, Keys, Keys]:
    out, back = jax.vjp(lambda q, k, v: ring_attention(q, k, v, at), q, k, v)
    return out, *back(d_out)


@jax.jit
def plain_attention(q, k, v):
    """On one device, of the sequence in its order; its queries are taken as so many heads."""
    heads = q.reshape(BATCH, SEQ, KV_HEADS * GROUP, HEAD)
    return jax.nn.dot_product_attention(heads, k, v, is_causal=True).reshape(q.shape)


def zigzag(seq: int, shards: int) -> np.ndarray:
    """An order of positions: shard i gets chunk i from the front and chunk i from the end."""
    front, end = np.split(np.arange(seq, dtype=np.int32).reshape(2 * shards, -1), 2)
    return np.stack([front, end[::-1]], 1).reshape(-1)


def blocks(order: np.ndarray, shards: int) -> np.ndarray:
    """How many blocks each shard computes, at each step."""
    at = order.reshape(shards, CHUNKS, -1)
    met = [[at[(i - step) % shards] for step in range(shards)] for i in range(shards)]
    return np.array([[sum(is_seen(q, k) for q in at[i] for k in keys) for keys in met[i]] for i in range(shards)])


def show_work(shards: int) -> None:
    in_order, zigzagged = blocks(np.arange(SEQ), shards), blocks(zigzag(SEQ, shards), shards)
    print(f"blocks computed, of {CHUNKS**2}, at each step of the ring\n\n          in order    zigzag")
    for i in range(shards):
        print(f"shard {i}   {' '.join(map(str, in_order[i])):12}{' '.join(map(str, zigzagged[i]))}")
    slowest = [counts.max(0).sum() for counts in (in_order, zigzagged)]
    print(f"in all    {slowest[0]:<12}{slowest[1]:<12}each step being as slow as its slowest shard\n")


def compare(dtype: str, shards: int) -> bool:
    """Print how far results and gradients are from plain attention in float32; return whether that is rounding."""
    rng, order = np.random.default_rng(0), zigzag(SEQ, shards)
    q, d_out = rng.normal(size=(2, BATCH, SEQ, KV_HEADS, GROUP, HEAD)).astype(jnp.dtype(dtype))
    k, v = rng.normal(size=(2, BATCH, SEQ, KV_HEADS, HEAD)).astype(jnp.dtype(dtype))
    arguments = q[:, order], k[:, order], v[:, order], np.broadcast_to(order, (BATCH, SEQ)), d_out[:, order]
    ours = attention_and_gradients(*shard(arguments, (Queries, Keys, Keys, Positions, Queries)))
    out, back = jax.vjp(plain_attention, *(x.astype(np.float32) for x in (q, k, v)))
    pairs = zip(*jax.device_get((ours, (out, *back(d_out.astype(np.float32))))), strict=True)
    off = [np.abs(a.astype(np.float32) - b[:, order]).max() / np.abs(b).max() for a, b in pairs]
    print(f"{dtype:9}", *(f"{each:9.1e}" for each in off), f"{TOLERANCE[dtype]:11.0e}")
    return np.max(off) < TOLERANCE[dtype]


def main() -> int:
    mesh = jax.make_mesh((2, 4), ("dp", "cp"), axis_types=(AxisType.Auto,) * 2)
    show_work(mesh.shape["cp"])
    print("off from plain attention, relative to the largest entry\n")
    print(f"{'':9}{'out':>10}{'d q':>10}{'d k':>10}{'d v':>10}{'allowed':>12}")
    with jax.set_mesh(mesh):
        are_right = [compare(dtype, mesh.shape["cp"]) for dtype in TOLERANCE]

    million = {"batch": 16, "seq": 2**20, "kv_heads": 8, "group": 4, "head": 128}
    q, k = shape_structs((BFloat16[Queries, ""], BFloat16[Keys, ""]), **million)
    print("\na million tokens, in bfloat16\n")
    print(explain(attention_and_gradients, meshes=["dp=16,cp=16", "dp=4,cp=64", "dp=1,cp=256"], q=q, k=k, v=k, d_out=q))
    print("\nValues and gradients are those of plain attention." if all(are_right) else "\nFAILED: some differ by more")
    return 0 if all(are_right) else 1


if __name__ == "__main__":
    sys.exit(main())
