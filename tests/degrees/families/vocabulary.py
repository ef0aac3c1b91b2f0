"""Losses over a sharded vocabulary, and lookups in tables whose rows are sharded."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program

from typedshmap import Array, Int


def _own(ids, count):
    """Where ids are among the entries of this shard, and which of them are."""
    at = ids - lax.axis_index("tp") * count
    is_own = (at >= 0) & (at < count)
    return jnp.where(is_own, at, 0), is_own


def _looked_up(table, ids, otherwise=0):
    at, is_own = _own(ids, table.shape[0])
    return jnp.where(is_own[:, None], table[at], otherwise)


def _onehot(ids, count):
    return ids[:, None] == lax.axis_index("tp") * count + jnp.arange(count)


@program("a lookup with a mask, psummed", "r d")
def _(table, ids):
    return lax.psum(_looked_up(table, ids), "tp")


@program("a lookup without a mask, psummed", "r d")
def _(table, ids):
    at, _ = _own(ids, table.shape[0])
    return lax.psum(table[at], "tp")


@program("a lookup with a mask, pmeaned", "r d")
def _(table, ids):
    return lax.pmean(_looked_up(table, ids), "tp")


@program("a lookup with a mask that fills with a bias, psummed", "r d")
def _(table, ids, bias):
    return lax.psum(_looked_up(table, ids, bias), "tp")


@program("a lookup with a mask that fills with ones, psummed", "r d")
def _(table, ids):
    return lax.psum(_looked_up(table, ids, 1), "tp")


@program("a lookup with a mask, a bias added before the psum", "r d")
def _(table, ids, bias, c):
    return lax.psum(_looked_up(table, ids) + c * bias, "tp")


@program("a lookup with a mask, a bias added after the psum", "r d")
def _(table, ids, bias, c):
    return lax.psum(_looked_up(table, ids), "tp") + c * bias


@program("a lookup with a mask, tanh before the psum", "r d")
def _(table, ids):
    return lax.psum(jnp.tanh(_looked_up(table, ids)), "tp")


@program("a lookup with a mask, cosine before the psum", "r d")
def _(table, ids):
    return lax.psum(jnp.cos(_looked_up(table, ids)), "tp")


@program("a lookup in own table by global ids", "r d")
def _(table, ids):
    return lax.psum(jnp.take(table, ids, axis=0, mode="clip"), "tp")


@program("a lookup in a gathered table", "r d")
def _(table, ids):
    return lax.pmean(lax.all_gather(table, "tp", tiled=True)[ids], "tp")


@program("a lookup by one-hot rows, psummed", "r d")
def _(table, ids):
    return lax.psum(_onehot(ids, table.shape[0]).astype(table.dtype) @ table, "tp")


@program("a lookup by one-hot rows of own places, psummed", "r d")
def _(table, ids):
    onehot = jax.nn.one_hot(ids % table.shape[0], table.shape[0])
    return lax.psum(onehot @ table, "tp")


@program("a lookup by out-of-range ids that fill with zeros, psummed", "r d")
def _(table, ids):
    at = ids - lax.axis_index("tp") * table.shape[0]
    return lax.psum(table.at[jnp.where(at < 0, table.shape[0], at)].get(mode="fill", fill_value=0), "tp")


def _logsumexp(logits):
    top = lax.pmax(lax.stop_gradient(logits).max(-1), "tp")
    return top + jnp.log(lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "tp"))


def _picked(logits, ids):
    at, is_own = _own(ids, logits.shape[1])
    picked = jnp.take_along_axis(logits, at[:, None], axis=1)[:, 0]
    return lax.psum(jnp.where(is_own, picked, 0), "tp")


@program("logsumexp over a sharded vocabulary", "r")
def _(logits):
    return _logsumexp(logits)


@program("logsumexp over a sharded vocabulary, by own part", "r")
def _(logits):
    return lax.pmean(jax.nn.logsumexp(logits, axis=-1), "tp")


@program("logsumexp over a sharded vocabulary, own parts psummed", "r")
def _(logits):
    return lax.psum(jax.nn.logsumexp(logits, axis=-1), "tp")


@program("logsumexp over a sharded vocabulary, of own logsumexps", "r")
def _(logits):
    own = jax.nn.logsumexp(logits, axis=-1)
    top = lax.pmax(own, "tp")
    return top + jnp.log(lax.psum(jnp.exp(own - top), "tp"))


@program("logsumexp over a sharded vocabulary, of own logsumexps, gathered", "r")
def _(logits):
    own = lax.all_gather(jax.nn.logsumexp(logits, axis=-1), "tp")
    return lax.pmean(jax.nn.logsumexp(own, axis=0), "tp")


@program("logsumexp over a sharded vocabulary without a shift", "r")
def _(logits, c):
    return jnp.log(lax.psum(jnp.exp(c * logits).sum(-1), "tp"))


@program("logmeanexp over a sharded vocabulary", "r")
def _(logits, c):
    return jnp.log(lax.pmean(jnp.exp(c * logits).mean(-1), "tp"))


@program("logsumexp over a sharded vocabulary, pmeaned", "r")
def _(logits, c):
    return jnp.log(lax.pmean(jnp.exp(c * logits).sum(-1), "tp"))


@program("logsumexp over a sharded vocabulary, its shift psummed", "r")
def _(logits):
    top = lax.psum(logits.max(-1), "tp")
    return top + jnp.log(lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "tp"))


@program("logsumexp over a sharded vocabulary, its shift forgotten at the end", "r")
def _(logits):
    own = logits.max(-1)
    return lax.pmax(own, "tp") + jnp.log(lax.psum(jnp.exp(logits - own[:, None]).sum(-1), "tp"))


@program("cross-entropy over a sharded vocabulary", "")
def _(logits, ids):
    return jnp.mean(_logsumexp(logits) - _picked(logits, ids))


@program("cross-entropy over a sharded vocabulary, psummed once more", "")
def _(logits, ids):
    return lax.psum(jnp.mean(_logsumexp(logits) - _picked(logits, ids)), "tp")


@program("cross-entropy over a sharded vocabulary, one psum for both", "")
def _(logits, ids):
    at, is_own = _own(ids, logits.shape[1])
    picked = jnp.where(is_own, jnp.take_along_axis(logits, at[:, None], axis=1)[:, 0], 0)
    return jnp.mean(lax.psum(_logsumexp(logits) - picked, "tp"))


@program("cross-entropy over a sharded vocabulary, the picked logit not masked", "")
def _(logits, ids):
    at, _ = _own(ids, logits.shape[1])
    picked = jnp.take_along_axis(logits, at[:, None], axis=1)[:, 0]
    return jnp.mean(_logsumexp(logits) - lax.psum(picked, "tp"))


@program("cross-entropy over a sharded vocabulary, by own logsumexp", "")
def _(logits, ids):
    return jnp.mean(lax.pmean(jax.nn.logsumexp(logits, axis=-1), "tp") - _picked(logits, ids))


@program("cross-entropy by one-hot targets", "")
def _(logits, ids):
    onehot = _onehot(ids, logits.shape[1])
    picked = lax.psum(jnp.sum(logits * onehot, axis=-1), "tp")
    return jnp.mean(_logsumexp(logits) - picked)


@program("cross-entropy by one-hot targets of own places", "")
def _(logits, ids):
    onehot = jax.nn.one_hot(ids, logits.shape[1])
    return jnp.mean(_logsumexp(logits) - lax.psum(jnp.sum(logits * onehot, axis=-1), "tp"))


@program("cross-entropy with smoothed labels", "")
def _(logits, ids, c):
    size = logits.shape[1] * lax.axis_size("tp")
    uniform = lax.psum(logits.sum(-1), "tp") / size
    return jnp.mean(_logsumexp(logits) - (1 - c) * _picked(logits, ids) - c * uniform)


@program("cross-entropy with smoothed labels by a shard's size", "")
def _(logits, ids, c):
    uniform = lax.psum(logits.sum(-1), "tp") / logits.shape[1]
    return jnp.mean(_logsumexp(logits) - (1 - c) * _picked(logits, ids) - c * uniform)


@program("cross-entropy with a penalty of the logsumexp", "")
def _(logits, ids, c):
    total = _logsumexp(logits)
    return jnp.mean(total - _picked(logits, ids) + c * total**2)


@program("gradients of cross-entropy by hand", "r [n/tp]")
def _(logits, ids):
    p = jnp.exp(logits - _logsumexp(logits)[:, None])
    onehot = _onehot(ids, logits.shape[1])
    return (p - onehot) / 6


@program("gradients of cross-entropy by hand, by own softmax", "r [n/tp]")
def _(logits, ids):
    onehot = _onehot(ids, logits.shape[1])
    return (jax.nn.softmax(logits, axis=-1) - onehot) / 6


@program("gradients of cross-entropy by differentiation", "r [n/tp]")
def _(logits, ids):
    return jax.grad(lambda logits: jnp.mean(_logsumexp(logits) - _picked(logits, ids)))(logits)


@program("gradients of cross-entropy by differentiation, over the shards", "r [n/tp]")
def _(logits, ids):
    n = lax.axis_size("tp")
    return jax.grad(lambda logits: jnp.mean(_logsumexp(logits) - _picked(logits, ids)) / n)(logits)


@program("the entropy over a sharded vocabulary", "r")
def _(logits):
    log_p = logits - _logsumexp(logits)[:, None]
    return -lax.psum(jnp.sum(jnp.exp(log_p) * log_p, axis=-1), "tp")


@program("the entropy over a sharded vocabulary, by own softmax", "r")
def _(logits):
    log_p = jax.nn.log_softmax(logits, axis=-1)
    return -lax.psum(jnp.sum(jnp.exp(log_p) * log_p, axis=-1), "tp")


@program("the argmax over a sharded vocabulary", Int[Array, "r"])
def _(logits):
    at, top = logits.argmax(-1) + lax.axis_index("tp") * logits.shape[1], logits.max(-1)
    is_best = top == lax.pmax(top, "tp")
    return lax.pmin(jnp.where(is_best, at, 1_000_000), "tp")


@program("the argmax over a sharded vocabulary, at own places", Int[Array, "r"])
def _(logits):
    top = logits.max(-1)
    return lax.pmin(jnp.where(top == lax.pmax(top, "tp"), logits.argmax(-1), 1_000_000), "tp")


@program("the argmax over own part of a vocabulary", Int[Array, "r"])
def _(logits):
    return lax.pmax(logits.argmax(-1), "tp")


@program("greedy accuracy over a sharded vocabulary", "")
def _(logits, ids):
    return jnp.mean(_picked(logits, ids) >= lax.pmax(logits.max(-1), "tp"))


@program("greedy accuracy over own part of a vocabulary", "")
def _(logits, ids):
    at, is_own = _own(ids, logits.shape[1])
    return jnp.mean(lax.psum(jnp.where(is_own, logits.argmax(-1) == at, False).astype(float), "tp"))


@program("the largest logits by a gather of each shard's largest", "r 3")
def _(logits):
    best = lax.top_k(logits, 3)[0]
    return lax.pmax(lax.top_k(lax.all_gather(best, "tp", axis=1, tiled=True), 3)[0], "tp")


@program("the largest logits of each shard, pmaxed", "r 3")
def _(logits):
    return lax.pmax(lax.top_k(logits, 3)[0], "tp")


@program("gradients of a table by scatter", "[n/tp] d")
def _(table, ids, h):
    at, is_own = _own(ids, table.shape[0])
    return jnp.zeros_like(table).at[at].add(jnp.where(is_own[:, None], h, 0))


@program("gradients of a table by scatter, not masked", "[n/tp] d")
def _(table, ids, h):
    at, _ = _own(ids, table.shape[0])
    return jnp.zeros_like(table).at[at].add(h)


@program("tied logits of a sharded table", "r [n/tp]")
def _(table, h):
    return h @ table.T


@program("tied logits of a sharded table, psummed", "r n1")
def _(table, h):
    return lax.psum((h @ table.T)[:, :6], "tp")
