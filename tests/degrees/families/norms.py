"""Normalisation over dims that are sharded, and over dims that are not."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program


@program("layer norm over an unsharded dim, scaled and shifted", "[b/dp] d")
def _(x, w, v):
    h = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return h * w + v


@program("layer norm over a sharded dim by pmeans", "r [f/tp]")
def _(a):
    centred = a - lax.pmean(a.mean(-1, keepdims=True), "tp")
    return centred / jnp.sqrt(lax.pmean((centred**2).mean(-1, keepdims=True), "tp") + 1e-5)


@program("layer norm over a sharded dim, its mean psummed", "r [f/tp]")
def _(a):
    centred = a - lax.psum(a.mean(-1, keepdims=True), "tp")
    return centred / jnp.sqrt(lax.pmean((centred**2).mean(-1, keepdims=True), "tp") + 1e-5)


def _rms_normed(h, epsilon=1e-6):
    return h * lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + epsilon)


@program("RMS norm over an unsharded dim", "[b/dp] d")
def _(x, w):
    return _rms_normed(x) * w


@program("RMS norm over a sharded dim by its own part", "r [f/tp]")
def _(a):
    return _rms_normed(a)


@program("RMS norm over a sharded dim by a pmean", "r [f/tp]")
def _(a):
    return a * lax.rsqrt(lax.pmean(jnp.mean(a * a, -1, keepdims=True), "tp") + 1e-6)


@program("RMS norm over a sharded dim by a psum of means", "r [f/tp]")
def _(a):
    return a * lax.rsqrt(lax.psum(jnp.mean(a * a, -1, keepdims=True), "tp") + 1e-6)


@program("RMS norm over a sharded dim by a psum of squares, unscaled", "r [f/tp]")
def _(a):
    return a * lax.rsqrt(lax.psum(jnp.sum(a * a, -1, keepdims=True), "tp") + 1e-6)


@program("RMS norm over a sharded dim by a pmean of squares", "r [f/tp]")
def _(a):
    return a * lax.rsqrt(lax.pmean(jnp.sum(a * a, -1, keepdims=True), "tp") + 1e-6)


@program("RMS norm of a sum of parts", "r d")
def _(a, down):
    return _rms_normed(lax.psum(a @ down, "tp"))


@program("RMS norm of parts, psummed", "r d")
def _(a, down):
    return lax.psum(_rms_normed(a @ down), "tp")


@program("RMS norm of a pmean of parts, which does not see the factor", "r d")
def _(a, down):
    return _rms_normed(lax.pmean(a @ down, "tp"), 0)


@program("RMS norm of a pmean of parts, with an epsilon", "r d")
def _(a, down):
    return _rms_normed(lax.pmean(a @ down, "tp"), 1e-12)


@program("RMS norm of a pmean of parts, with one", "r d")
def _(a, down):
    return _rms_normed(lax.pmean(a @ down, "tp"), 1)


@program("batch norm over sharded rows by own rows", "[b/dp] d")
def _(x, w):
    return (x - x.mean(0)) * lax.rsqrt(x.var(0) + 1e-5) * w


@program("batch norm over sharded rows by pmeans of moments", "[b/dp] d")
def _(x, w):
    mean, square = lax.pmean((x.mean(0), (x * x).mean(0)), "dp")
    return (x - mean) * lax.rsqrt(square - mean**2 + 1e-5) * w


@program("batch norm over sharded rows, its variance of own rows", "[b/dp] d")
def _(x, w):
    mean, var = lax.pmean((x.mean(0), x.var(0)), "dp")
    return (x - mean) * lax.rsqrt(var + 1e-5) * w


@program("batch norm over sharded rows by psums of moments", "[b/dp] d")
def _(x, w):
    mean, square = lax.psum((x.mean(0), (x * x).mean(0)), "dp")
    return (x - mean) * lax.rsqrt(jnp.abs(square - mean**2) + 1e-5) * w


@program("batch norm over sharded rows by gathered rows", "[b/dp] d")
def _(x, w):
    rows = lax.all_gather(x, "dp", tiled=True)
    return (x - rows.mean(0)) * lax.rsqrt(rows.var(0) + 1e-5) * w


@program("batch norm over sharded rows by gathered moments", "[b/dp] d")
def _(x, w):
    moments = lax.all_gather(jnp.stack([x.mean(0), (x * x).mean(0)]), "dp")
    mean, square = moments.mean(0)
    return (x - mean) * lax.rsqrt(square - mean**2 + 1e-5) * w


@program("group norm over groups within a shard's columns", "[b/dp] d")
def _(x):
    h = x.reshape(-1, 4, 2)
    h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-5)
    return h.reshape(-1, 8)


@program("rows over their own norm", "[b/dp] d")
def _(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


@program("rows over the norm of a shard's rows", "[b/dp] d")
def _(x):
    return x / jnp.linalg.norm(x)


@program("rows over the norm of all rows", "[b/dp] d")
def _(x):
    return x / jnp.sqrt(lax.psum(jnp.sum(x * x), "dp"))


@program("rows over the largest of a shard's rows", "[b/dp] d")
def _(x):
    return x / jnp.abs(x).max()


@program("rows over the largest of all rows", "[b/dp] d")
def _(x):
    return x / lax.pmax(jnp.abs(x).max(), "dp")


@program("rows scaled to [0, 1] by all", "[b/dp] d")
def _(x):
    low, high = lax.pmin(x.min(0), "dp"), lax.pmax(x.max(0), "dp")
    return (x - low) / (high - low)


@program("rows scaled to [0, 1] by a shard's own", "[b/dp] d")
def _(x):
    low, high = x.min(0), x.max(0)
    return (x - low) / (high - low)


@program("softmax over an unsharded dim", "[b/dp] d")
def _(x, c):
    return jax.nn.softmax(c * x, axis=-1)


@program("softmax over a sharded dim by its own part", "r [f/tp]")
def _(a, c):
    return jax.nn.softmax(c * a, axis=-1)


@program("softmax over a sharded dim by pmax and psum", "r [f/tp]")
def _(a, c):
    e = jnp.exp(c * a - lax.pmax((c * a).max(-1, keepdims=True), "tp"))
    return e / lax.psum(e.sum(-1, keepdims=True), "tp")


@program("softmax over a sharded dim, shifted by own maximum", "r [f/tp]")
def _(a, c):
    e = jnp.exp(c * a - (c * a).max(-1, keepdims=True))
    return e / lax.psum(e.sum(-1, keepdims=True), "tp")


@program("softmax over a sharded dim, shifted by a pmean of maxima", "r [f/tp]")
def _(a, c):
    e = jnp.exp(c * a - lax.pmean((c * a).max(-1, keepdims=True), "tp"))
    return e / lax.psum(e.sum(-1, keepdims=True), "tp")


@program("softmax over a sharded dim, its sum pmeaned", "r [f/tp]")
def _(a, c):
    e = jnp.exp(c * a - lax.pmax((c * a).max(-1, keepdims=True), "tp"))
    return e / lax.pmean(e.sum(-1, keepdims=True), "tp")


@program("softmax over a sharded dim, rescaled from its own part", "r [f/tp]")
def _(a):
    own = a.max(-1, keepdims=True)
    p, total = jax.nn.softmax(a, axis=-1), jnp.exp(a - own).sum(-1, keepdims=True)
    top = lax.pmax(own, "tp")
    share = total * jnp.exp(own - top)
    return p * share / lax.psum(share, "tp")


@program("log softmax over a sharded dim", "r [f/tp]")
def _(a):
    top = lax.pmax(a.max(-1, keepdims=True), "tp")
    return a - top - jnp.log(lax.psum(jnp.exp(a - top).sum(-1, keepdims=True), "tp"))


@program("log softmax over a sharded dim by own logsumexp", "r [f/tp]")
def _(a):
    return a - jax.nn.logsumexp(a, axis=-1, keepdims=True)


@program("half a norm, squared and psummed", "")
def _(x):
    half = 0.5 * jnp.sqrt((x**2).sum())
    return lax.psum(half * half, "dp")


@program("inverses of own sums, scaled and turned back", "")
def _(x):
    inverse = 1 / (1 / (1 + x**2)).sum()
    return 1 / lax.psum(2 / (inverse * 2), "dp")
