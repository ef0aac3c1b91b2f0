"""Softmaxes, attention and mixtures that shards hold parts of, merged by weights; experts; and what merges wrong."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program

# One query per row of h; keys and values are rows of `up.T` and `down`, over tp.


def _part(h, up, down):
    scores = h @ up
    top = scores.max(-1, keepdims=True)
    e = jnp.exp(scores - top)
    return e @ down, e.sum(-1, keepdims=True), top


def _rescaled(h, up, down):
    """A part and its total, by the largest score of all."""
    out, total, own = _part(h, up, down)
    scale = jnp.exp(own - lax.pmax(own, "tp"))
    return out * scale, total * scale


@program("flash attention over sharded keys", "r d")
def _(h, up, down):
    out, total = _rescaled(h, up, down)
    return lax.psum(out, "tp") / lax.psum(total, "tp")


@program("flash attention over sharded keys, normalised parts merged by their weights", "r d")
def _(h, up, down):
    out, total, own = _part(h, up, down)
    weight = total * jnp.exp(own - lax.pmax(own, "tp"))
    return lax.psum(out / total * weight, "tp") / lax.psum(weight, "tp")


@program("flash attention over sharded keys, merged by logsumexps", "r d")
def _(h, up, down):
    out, total, own = _part(h, up, down)
    log_weight = own + jnp.log(total)
    weight = jnp.exp(log_weight - lax.pmax(log_weight, "tp"))
    return lax.psum(out / total * weight, "tp") / lax.psum(weight, "tp")


@program("flash attention over sharded keys, not rescaled", "r d")
def _(h, up, down):
    out, total, _ = _part(h, up, down)
    return lax.psum(out, "tp") / lax.psum(total, "tp")


@program("flash attention over sharded keys, own softmaxes averaged", "r d")
def _(h, up, down):
    out, total, _ = _part(h, up, down)
    return lax.pmean(out / total, "tp")


@program("flash attention over sharded keys, both averaged", "r d")
def _(h, up, down):
    out, total = _rescaled(h, up, down)
    return lax.pmean(out, "tp") / lax.pmean(total, "tp")


@program("flash attention over sharded keys, one summed and one averaged", "r d")
def _(h, up, down):
    out, total = _rescaled(h, up, down)
    return lax.psum(out, "tp") / lax.pmean(total, "tp")


@program("flash attention over sharded keys, with an epsilon in its total", "r d")
def _(h, up, down):
    out, total = _rescaled(h, up, down)
    return lax.psum(out, "tp") / (lax.psum(total, "tp") + 1e-9)


@program("flash attention over sharded keys, with a sink in its total", "r d")
def _(h, up, down):
    out, total, own = _part(h, up, down)
    top = lax.pmax(own, "tp")
    scale = jnp.exp(own - top)
    return lax.psum(out * scale, "tp") / (lax.psum(total * scale, "tp") + jnp.exp(-top))


@program("flash attention over sharded keys, with a sink in every total", "r d")
def _(h, up, down):
    out, total, own = _part(h, up, down)
    top = lax.pmax(own, "tp")
    scale = jnp.exp(own - top)
    return lax.psum(out * scale, "tp") / lax.psum(total * scale + jnp.exp(-top), "tp")


@program("attention over sharded keys without a shift", "r d")
def _(h, up, down):
    e = jnp.exp(0.3 * (h @ up))
    return lax.psum(e @ down, "tp") / lax.psum(e.sum(-1, keepdims=True), "tp")


@program("attention over sharded keys without a shift, its total by own keys", "r d")
def _(h, up, down):
    e = jnp.exp(0.3 * (h @ up))
    return lax.psum(e @ down / e.sum(-1, keepdims=True), "tp")


@program("attention over sharded keys with sigmoids", "r d")
def _(h, up, down):
    return lax.psum(jax.nn.sigmoid(h @ up) @ down, "tp")


@program("attention over sharded keys with relu over a sum", "r d")
def _(h, up, down):
    e = jax.nn.relu(h @ up)
    return lax.psum(e @ down, "tp") / (lax.psum(e.sum(-1, keepdims=True), "tp") + 1e-6)


@program("attention over sharded keys with relu over the global count", "r d")
def _(h, up, down):
    return lax.psum(jax.nn.relu(h @ up) @ down, "tp") / (up.shape[1] * lax.axis_size("tp"))


@program("attention over sharded keys with relu over own count", "r d")
def _(h, up, down):
    return lax.psum(jax.nn.relu(h @ up) @ down, "tp") / up.shape[1]


@program("flash attention in blocks within each shard", "r d")
def _(h, up, down):
    def block(state, kv):
        out, total, top = state
        scores = h @ kv[0]
        new = jnp.maximum(top, scores[:, None])
        e, scale = jnp.exp(scores[:, None] - new), jnp.exp(top - new)
        return (out * scale + e * kv[1], total * scale + e, new), None

    start = (0 * h @ up[:, :1] * 0 + jnp.zeros((6, 8)), 0 * h[:, :1] @ up[:1, :1], h[:, :1] @ up[:1, :1] * 0 - 1e9)
    (out, total, own), _ = lax.scan(block, (start[0] + 0 * down[:1], *start[1:]), (up.T, down))
    scale = jnp.exp(own - lax.pmax(own, "tp"))
    return lax.psum(out * scale, "tp") / lax.psum(total * scale, "tp")


def _contrastive(logits, at):
    picked = jnp.take_along_axis(logits, at[:, None], 1)[:, 0]
    return lax.pmean(jnp.mean(jax.nn.logsumexp(logits, -1) - picked), "dp")


@program("a contrastive loss over gathered rows", "")
def _(x, z):
    at = lax.axis_index("dp") * x.shape[0] + jnp.arange(x.shape[0])
    return _contrastive(x @ lax.all_gather(z, "dp", tiled=True).T, at)


@program("a contrastive loss over own rows", "")
def _(x, z):
    logits = x @ z.T
    return lax.pmean(jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.diagonal(logits)), "dp")


@program("a contrastive loss over gathered rows with own labels", "")
def _(x, z):
    return _contrastive(x @ lax.all_gather(z, "dp", tiled=True).T, jnp.arange(x.shape[0]))


@program("experts over tp, all of them weighted, psummed", "r d")
def _(h, up, down, gate):
    e = jnp.exp(h @ gate - lax.pmax((h @ gate).max(-1, keepdims=True), "tp"))
    weights = e / lax.psum(e.sum(-1, keepdims=True), "tp")
    return lax.psum((weights * jnp.tanh(h @ up)) @ down, "tp")


@program("experts over tp, weighted by own softmax, psummed", "r d")
def _(h, up, down, gate):
    weights = jax.nn.softmax(h @ gate, axis=-1)
    return lax.psum((weights * jnp.tanh(h @ up)) @ down, "tp")


@program("experts over tp, the best of all by a gathered gate", "r d")
def _(h, up, down, gate):
    scores = lax.all_gather(h @ gate, "tp", axis=1, tiled=True)
    best = jax.nn.one_hot(scores.argmax(-1), scores.shape[1])
    own = lax.dynamic_slice_in_dim(best, lax.axis_index("tp") * up.shape[1], up.shape[1], axis=1)
    return lax.psum((own * jnp.tanh(h @ up)) @ down, "tp")


@program("experts over tp, the best of own, psummed", "r d")
def _(h, up, down, gate):
    best = jax.nn.one_hot((h @ gate).argmax(-1), up.shape[1])
    return lax.psum((best * jnp.tanh(h @ up)) @ down, "tp")


@program("experts over dp, rows exchanged by all_to_all and back", "[b/dp] d")
def _(x, wp):
    # Row i of every 24 goes to expert i, of which each shard has a part.
    experts = wp.size
    rows = jnp.repeat(x[:, None], experts * lax.axis_size("dp"), axis=1)
    sent = lax.all_to_all(rows, "dp", split_axis=1, concat_axis=0, tiled=True)
    done = jnp.tanh(sent * wp[None, :, None])
    return lax.all_to_all(done, "dp", split_axis=0, concat_axis=1, tiled=True).sum(1)


@program("experts over dp, applied to own rows alone", "[b/dp] d")
def _(x, wp):
    return jnp.tanh(x[:, None] * wp[None, :, None]).sum(1)


@program("experts over dp, rows exchanged and normalised within an expert", "[b/dp] d")
def _(x, wp):
    rows = jnp.repeat(x[:, None], wp.size * lax.axis_size("dp"), axis=1)
    sent = lax.all_to_all(rows, "dp", split_axis=1, concat_axis=0, tiled=True)
    done = sent * wp[None, :, None] - sent.mean(0)
    return lax.all_to_all(done, "dp", split_axis=0, concat_axis=1, tiled=True).sum(1)


@program("experts' load, balanced over all rows", "")
def _(x, m):
    p = jax.nn.softmax(x @ m, axis=-1)
    share = lax.pmean(jax.nn.one_hot(p.argmax(-1), 8).mean(0), "dp")
    return 8 * jnp.sum(share * lax.pmean(p.mean(0), "dp"))


@program("experts' load, balanced over own rows, pmeaned", "")
def _(x, m):
    p = jax.nn.softmax(x @ m, axis=-1)
    return lax.pmean(8 * jnp.sum(jax.nn.one_hot(p.argmax(-1), 8).mean(0) * p.mean(0)), "dp")


@program("experts' load, balanced over psums of means", "")
def _(x, m):
    p = jax.nn.softmax(x @ m, axis=-1)
    share = lax.psum(jax.nn.one_hot(p.argmax(-1), 8).mean(0), "dp")
    return 8 * jnp.sum(share * lax.pmean(p.mean(0), "dp"))


@program("experts' places by a cumsum of own rows", "[b/dp] d")
def _(x):
    onehot = jax.nn.one_hot(x.argmax(-1), 8)
    return onehot * (jnp.cumsum(onehot, axis=0) <= 2)


@program("experts' places by a cumsum of all rows", "[b/dp] d")
def _(x):
    onehot = jax.nn.one_hot(x.argmax(-1), 8)
    counts = lax.all_gather(onehot.sum(0), "dp")
    before = jnp.sum(counts * (jnp.arange(counts.shape[0]) < lax.axis_index("dp"))[:, None], axis=0)
    return onehot * (jnp.cumsum(onehot, axis=0) + before <= 2)


@program("experts' capacity by the rows of a shard", "[b/dp] d")
def _(x):
    capacity = x.shape[0] // 4
    onehot = jax.nn.one_hot(x.argmax(-1), 8)
    return onehot * (jnp.cumsum(onehot, axis=0) <= capacity)
