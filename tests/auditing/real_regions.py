"""Regions as real code has them, after the call sites of public repositories: all right, each with its arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
STAGES = Mesh(np.array(jax.devices()[:4]), ("stage",), axis_types=(AxisType.Auto,))


class Region(NamedTuple):
    """A region.

    Attributes:
      call: calls it.
      args: with these arguments.
      why: what an audit says of it that it does not compare; empty if it compares all.
      is_run: whether it is run on other meshes at all.
      found: what it finds, since the result depends on the mesh, as may be meant: the severity, and a word of it.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...]
    why: tuple[str, ...] = ()
    is_run: bool = True
    found: tuple[tuple[str, str], ...] = ()


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def mapped(f: Any, in_specs: Any, out_specs: Any, mesh: Mesh = MESH, check_vma: bool = False) -> Any:
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma))


def shift(x: Any) -> Any:
    """A pipeline's step: the number of stages comes from the config."""
    stages = STAGES.shape["stage"]
    return lax.ppermute(x, "stage", [(at, (at + 1) % stages) for at in range(stages)])


def gathered(weights: Any) -> Any:
    """FSDP: some leaves are gathered, some are not."""
    return {"w": lax.all_gather(weights["w"], "dp", axis=0, tiled=True), "b": weights["b"]}


def split(x: Any, *, factor: int) -> Any:
    return list(jnp.split(x, factor))


def joined(parts: Any) -> Any:
    return jnp.concatenate(parts)


def attention_backward(saved: Any, given: Any) -> Any:
    """The backward pass of an attention kernel, in two tuples."""
    (lse, q, k, v), (g, g_lse) = saved, given
    p = jnp.exp(jnp.einsum("bhsd,bhtd->bhst", q, k) - lse[..., None])
    dp = jnp.einsum("bhsd,bhtd->bhst", g, v) + g_lse[..., None]
    return jnp.einsum("bhst,bhtd->bhsd", p * dp, k), jnp.einsum("bhst,bhsd->bhtd", p * dp, q)


def experts(x: Any, logits: Any, w_in: Any, w_out: Any, bias: Any) -> Any:
    """Experts over dp, with a loss for their balance, or none."""
    index, own = lax.axis_index("dp"), w_in.shape[0]
    tokens, scores = lax.all_gather(x, "dp", axis=0, tiled=True), lax.all_gather(logits, "dp", axis=0, tiled=True)
    weights = jax.nn.softmax(scores)
    mine = lax.dynamic_slice_in_dim(weights, index * own, own, axis=1)
    hidden = jax.nn.relu(jnp.einsum("sd,edf->esf", tokens, w_in) + bias[:, None])
    y = jnp.einsum("esf,efd,se->sd", hidden, w_out, mine)
    balance = lax.pmean((jax.nn.softmax(logits) ** 2).mean(), "dp")
    return lax.psum_scatter(lax.psum(y, "tp"), "dp", scatter_dimension=0, tiled=True), balance, None


@jax.checkpoint
def checkpointed_layer(x: Any, w: Any) -> Any:
    w = lax.all_gather(w, "dp", axis=0, tiled=True)
    return lax.psum(jax.nn.gelu(x @ w) @ w.T, "tp")


def write_pages(pool: Any, new: Any, tables: Any, lengths: Any) -> Any:
    """A paged cache: each sequence's next entry goes to the page that its table names."""
    page = pool.shape[2]
    pages = jnp.take_along_axis(tables, (lengths // page)[:, None], axis=1)[:, 0]
    return pool.at[:, pages, lengths % page].set(new)


def deferred(x: Any, w: Any, *, is_summed: bool) -> Any:
    y = x @ w
    return lax.psum(y, "tp") if is_summed else y


def copy_pages(src_at: Any, dst_at: Any, source: Any, target: Any) -> Any:
    """Pages are counted within each shard."""
    return source, (target.at[dst_at].set(source[src_at]), jnp.ones((), jnp.int32))


def state_pool(buffer: Any, slots: Any) -> Any:
    """Each shard's slots are counted within it."""
    return buffer[slots]


def running_total(x: Any) -> Any:
    """A cumulative sum over a sharded dim."""

    @jax.jit
    def local(x: Any) -> Any:
        return jnp.cumsum(x, 0)

    totals = lax.all_gather(x.sum(0), "dp")
    before = jnp.where((jnp.arange(totals.shape[0]) < lax.axis_index("dp"))[:, None], totals, 0).sum(0)
    return local(x) + before


def streamed(operators: Any, x: Any) -> Any:
    def step(total: Any, operator: Any) -> Any:
        return total + operator @ x, None

    total, _ = lax.scan(step, jnp.zeros(x.shape), operators)
    return lax.psum(total, "dp")


def jacobian_rows(mine: Any, samples: Any, params: Any) -> Any:
    """One set of samples twice: sharded and whole."""
    rows = jax.vmap(jax.grad(lambda params, x: jnp.tanh(x @ params["w"]).sum()), (None, 0))(params, mine)["w"]
    others = jax.vmap(jax.grad(lambda params, x: jnp.tanh(x @ params["w"]).sum()), (None, 0))(params, samples)["w"]
    return jnp.einsum("aij,bij->ab", rows, others)


def grouped(tokens: Any, w: Any, sizes: Any) -> Any:
    return lax.psum(lax.ragged_dot(tokens, w, sizes), "tp")


def cached(tokens: Any, slots: Any, pool: Any) -> Any:
    """Slots of a pool whose pages are sharded; what is not here is dropped."""
    pages, page = pool.shape[:2]
    local = slots - lax.axis_index("dp") * pages * page
    local = jnp.where((local >= 0) & (local < pages * page), local, pages * page)
    return pool.reshape(-1, *pool.shape[2:]).at[local].set(tokens, mode="drop").reshape(pool.shape)


def training_step(params: Any, batch: Any, rate: Any) -> Any:
    """Gradients, layers in a scan, and the update, all inside; the metrics beside."""

    def loss(params: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            return x + lax.psum(jax.nn.relu(x @ w["up"]) @ w["down"], "tp"), None

        x, _ = lax.scan(jax.checkpoint(layer), batch, params)
        return (x**2).sum()

    total, grads = jax.value_and_grad(loss)(params)
    params = jax.tree.map(lambda p, g: p - rate * g, params, grads)
    return params, {"loss": lax.psum(total, "dp") / 16}


def metrics(x: Any, w: Any) -> Any:
    """A result, and for each device how long its part was and how large."""
    y = x @ w
    return y, jnp.array([x.shape[0]]), jnp.abs(y).max(keepdims=True)[0]


def ring_attention(q: Any, k: Any, v: Any) -> Any:
    """The number of shards comes from the mesh outside, as most write it."""
    shards = MESH.shape["dp"]
    pairs = [(at, (at + 1) % shards) for at in range(shards)]

    def step(carry: Any, _: Any) -> Any:
        k, v, most, norm, total = carry
        scores = q @ k.T
        now = jnp.maximum(most, scores.max(-1))
        p = jnp.exp(scores - now[:, None])
        shrink = jnp.exp(most - now)
        norm, total = norm * shrink + p.sum(-1), total * shrink[:, None] + p @ v
        return (lax.ppermute(k, "dp", pairs), lax.ppermute(v, "dp", pairs), now, norm, total), None

    start = (k, v, jnp.full(q.shape[0], -jnp.inf), jnp.zeros(q.shape[0]), jnp.zeros(q.shape))
    (_, _, _, norm, total), _ = lax.scan(step, start, None, length=shards)
    return total / norm[:, None]


def stencil(x: Any) -> Any:
    """A halo from the one neighbour: the pairs are written for this mesh."""
    before = lax.ppermute(x[-1:], "dp", [(0, 1), (1, 2), (2, 3)])
    return lax.psum((x - jnp.concatenate([before, x[:-1]])).sum(1), "tp")


def logged(x: Any) -> Any:
    jax.debug.print("{}", x.sum())
    return x * 2


def weighted(x: Any, w: Any) -> Any:
    """A weight of 4.0 by closure, on an axis of size 4."""
    return lax.pmean(((x * HEAD_SCALE) @ w).mean(0), "dp")


HEAD_SCALE = 4.0
ROW = P("dp")
REAL: dict[str, Region] = {
    "a pipeline's shift": Region(
        mapped(shift, P("stage"), P("stage"), STAGES), (draw(8, 4),), ("it closes over STAGES",), is_run=False
    ),
    "weights gathered leaf by leaf": Region(
        mapped(gathered, ({"w": ROW, "b": P()},), P()), ({"w": draw(16, 4), "b": draw(4)},)
    ),
    "a batch split": Region(
        mapped(partial(split, factor=2), P(("dp", "tp")), P(("dp", "tp"))),
        (draw(16, 4),),
        ("it closes over factor",),
        found=(("error", "return[0]"),),
    ),
    "a batch joined": Region(
        mapped(joined, P(("dp", "tp")), P(("dp", "tp"))),
        ([draw(16, 4), draw(16, 4, seed=1)],),
        found=(("error", "in another order"), ("suspect", "in the order")),
    ),
    "the backward pass of attention": Region(
        mapped(attention_backward, P("dp", "tp"), P("dp", "tp")),
        ((draw(4, 4, 8), draw(4, 4, 8, 4), draw(4, 4, 8, 4), draw(4, 4, 8, 4)), (draw(4, 4, 8, 4), draw(4, 4, 8))),
    ),
    "an expert layer": Region(
        mapped(experts, (ROW, ROW, P("dp", None, "tp"), P("dp", "tp"), P("dp", "tp")), (ROW, P(), P())),
        (draw(16, 8), draw(16, 8, seed=1), draw(8, 8, 4), draw(8, 4, 8), draw(8, 4)),
    ),
    "a layer under a stack of decorators": Region(
        mapped(checkpointed_layer, (ROW, P("dp", "tp")), ROW), (draw(8, 8), draw(8, 4))
    ),
    "a paged cache": Region(
        mapped(write_pages, (P("tp"), P("tp"), P(), P()), P("tp")),
        (draw(2, 8, 4, 2), draw(2, 3, 2), jnp.array([[0, 1], [2, 3], [4, 5]]), jnp.array([3, 5, 1])),
    ),
    "a sum that is not deferred": Region(
        mapped(partial(deferred, is_summed=True), (P("dp", "tp"), P("tp")), ROW), (draw(8, 8), draw(8, 4))
    ),
    "pages copied within shards": Region(
        mapped(copy_pages, (ROW, ROW, ROW, ROW), (ROW, (ROW, P()))),
        (jnp.array([0, 1, 1, 0]), jnp.array([1, 0, 0, 1]), draw(8, 4), draw(8, 4, seed=1)),
        found=(("suspect", "one entry per shard"),),
    ),
    "slots within shards": Region(
        mapped(state_pool, (ROW, ROW), ROW),
        (draw(16, 4), jnp.array([3, 1, 0, 2, 1, 1, 2, 3])),
        found=(("suspect", "may hold indices within each shard"),),
    ),
    "a running total": Region(mapped(running_total, ROW, ROW), (draw(16, 4),)),
    "operators streamed": Region(mapped(streamed, (ROW, P()), P()), (draw(8, 4, 4), draw(4))),
    "rows of a Jacobian": Region(
        mapped(jacobian_rows, (ROW, P(), P()), ROW), (draw(8, 4), draw(8, 4), {"w": draw(4, 3)})
    ),
    "a grouped matmul": Region(
        mapped(grouped, (P(None, "tp"), P(None, "tp"), P()), P()), (draw(16, 8), draw(3, 8, 4), jnp.array([6, 2, 8]))
    ),
    "a cache by slots": Region(
        mapped(cached, (P(None, "tp"), P(), P("dp", None, "tp")), P("dp", None, "tp")),
        (draw(3, 2, 4), jnp.array([5, 30, 17]), draw(8, 4, 2, 4)),
    ),
    "a training step": Region(
        mapped(
            training_step,
            ({"up": P(None, None, "tp"), "down": P(None, "tp")}, ROW, P()),
            ({"up": P(None, None, "tp"), "down": P(None, "tp")}, {"loss": P()}),
            check_vma=True,
        ),
        ({"up": draw(2, 4, 8) / 4, "down": draw(2, 8, 4, seed=1) / 4}, draw(16, 4), 0.1),
    ),
    "metrics of each device": Region(
        mapped(metrics, (ROW, P()), (ROW, ROW, ROW)),
        (draw(16, 4), draw(4, 4)),
        ("return[1], return[2], whose shape depends on the mesh",),
    ),
    "ring attention": Region(
        mapped(ring_attention, (ROW, ROW, ROW), ROW),
        (draw(16, 4), draw(16, 4, seed=1), draw(16, 4)),
        ("not run on other sizes of 'dp'",),
    ),
    "a halo written for its mesh": Region(
        mapped(stencil, P("dp", "tp"), ROW), (draw(16, 4),), ("not run on other sizes of 'dp'",)
    ),
    "a print": Region(mapped(logged, ROW, ROW), (draw(8, 4),), ("debug",), is_run=False),
    "a weight of 4": Region(mapped(weighted, (ROW, P()), P()), (draw(8, 4), draw(4, 4))),
}
