"""Sums of sums, of means, and of what every shard has: what grows with the mesh, or shrinks."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from registry import program


@program("psum of own means", "d")
def _(x, c):
    return c * lax.psum(x.mean(0), "dp")


@program("pmean of own means", "d")
def _(x, c):
    return c * lax.pmean(x.mean(0), "dp")


@program("psum of own means, divided by the shards", "d")
def _(x, c):
    return c * lax.psum(x.mean(0), "dp") / lax.axis_size("dp")


@program("psum of own means, divided by the rows of a shard", "d")
def _(x, c):
    return c * lax.psum(x.mean(0), "dp") / x.shape[0]


@program("psum of sums, divided by the rows of a shard", "d")
def _(x, c):
    return c * lax.psum(x.sum(0), "dp") / x.shape[0]


@program("psum of sums, divided by the rows of all shards", "d")
def _(x, c):
    rows = x.shape[0] * lax.axis_size("dp")
    return c * lax.psum(x.sum(0), "dp") / rows


@program("pmean of own sums", "d")
def _(x, c):
    return c * lax.pmean(x.sum(0), "dp")


@program("pmean of own sums times the shards", "d")
def _(x, c):
    return c * lax.pmean(x.sum(0), "dp") * lax.axis_size("dp")


@program("psum of a psum", "d")
def _(x, c):
    total = lax.psum(x.sum(0), "dp")
    return c * lax.psum(total, "dp")


@program("psum of a psum, divided by the shards in between", "d")
def _(x, c):
    total = lax.psum(x.sum(0), "dp") / lax.axis_size("dp")
    return c * lax.psum(total, "dp")


@program("pmean of a psum", "d")
def _(x, c):
    total = lax.psum(x.sum(0), "dp")
    return c * lax.pmean(total, "dp")


@program("psum of a pmean", "d")
def _(x, c):
    mean = lax.pmean(x.mean(0), "dp")
    return c * lax.psum(mean, "dp")


@program("psum twice, after a division by the rows of all", "")
def _(y):
    mean = lax.psum(y.sum() / (y.size * lax.axis_size("dp")), "dp")
    return lax.psum(mean, "dp")


@program("sums divided by the rows of all, then psummed", "")
def _(y):
    rows = y.size * lax.axis_size("dp")
    return lax.psum(y.sum() / rows, "dp")


@program("sums divided by the rows of all, then pmeaned", "")
def _(y):
    rows = y.size * lax.axis_size("dp")
    return lax.pmean(y.sum() / rows, "dp")


@program("own sum divided by the rows of all, twice, then psummed", "")
def _(y):
    n = lax.axis_size("dp")
    return lax.psum(y.sum() / (y.size * n) / n, "dp")


@program("psum of a weight", "d")
def _(x, w):
    return lax.pmean(x.mean(0), "dp") + lax.psum(w, "dp")


@program("pmean of a weight", "d")
def _(x, w):
    return lax.pmean(x.mean(0), "dp") + lax.pmean(w, "dp")


@program("a sum of squares, its root, of own means", "")
def _(x, c):
    return jnp.sqrt(lax.psum(jnp.mean(c * x * x), "dp"))


@program("a weight added before the psum", "d")
def _(x, w, c):
    return lax.psum(x.sum(0) + c * w, "dp")


@program("a weight added after the psum", "d")
def _(x, w, c):
    return lax.psum(x.sum(0), "dp") + c * w


@program("a weight added before the pmean", "d")
def _(x, w, c):
    return lax.pmean(x.mean(0) + c * w, "dp")


@program("a weight over the shards added before the psum", "d")
def _(x, w, c):
    return lax.psum(x.sum(0) + c * w / lax.axis_size("dp"), "dp")


@program("a number added before the psum", "")
def _(y, c):
    return lax.psum(jnp.sum(y * y) + c, "dp")


@program("a number added to a mean before the pmean", "")
def _(y, c):
    return lax.pmean(jnp.mean(y * y) + c, "dp")


@program("a number added to a sum before the pmean", "")
def _(y, c):
    return lax.pmean(jnp.sum(y * y) + c, "dp") * lax.axis_size("dp")


@program("one minus a psum of means", "")
def _(y, c):
    return 1 - c * lax.psum(jnp.mean(y * y), "dp")


@program("a ratio of two psums of means", "")
def _(x, y):
    return lax.psum(x.mean(), "dp") / (1e-9 + lax.psum(jnp.mean(y * y), "dp"))


@program("a ratio of a psum of means and a pmean", "")
def _(x, y):
    return lax.psum(x.mean(), "dp") / (0.5 + lax.pmean(jnp.mean(y * y), "dp"))


@program("a product of two psums of sums over the square of the rows", "")
def _(x, y):
    rows = lax.psum(y.size, "dp")
    return lax.psum(x.sum(), "dp") * lax.psum(y.sum(), "dp") / rows**2


@program("a product of two psums of sums over the rows of a shard squared", "")
def _(x, y):
    return lax.psum(x.sum(), "dp") * lax.psum(y.sum(), "dp") / y.size**2


@program("a moving average of a psum of means", "d")
def _(x, w, c):
    return (1 - c) * w + c * lax.psum(x.mean(0), "dp")


@program("a moving average of a pmean of means", "d")
def _(x, w, c):
    return (1 - c) * w + c * lax.pmean(x.mean(0), "dp")


@program("tanh of a psum of means", "d")
def _(x, c):
    return jnp.tanh(c * lax.psum(x.mean(0), "dp"))


@program("tanh of a pmean of means", "d")
def _(x, c):
    return jnp.tanh(c * lax.pmean(x.mean(0), "dp"))


@program("relu of a psum of means, normalised by its own sum", "d")
def _(x):
    h = jnp.maximum(lax.psum(x.mean(0), "dp"), 0)
    return h / h.sum()


@program("an argmax of a psum of means", "d")
def _(x, w):
    scores = lax.psum(x.mean(0), "dp")
    return w * (jnp.arange(scores.size) == scores.argmax())


@program("a softmax of a psum of means", "d")
def _(x):
    scores = lax.psum(x.mean(0), "dp")
    e = jnp.exp(scores - scores.max())
    return e / e.sum()


@program("the correlation of psums", "")
def _(x, y, w):
    p = x @ w
    over = jnp.sqrt(lax.psum(jnp.mean(p * p), "dp") * lax.psum(jnp.mean(y * y), "dp"))
    return lax.psum(jnp.mean(p * y), "dp") / over


@program("parts of a mean psummed one by one", "")
def _(x):
    return sum(lax.psum(part.mean(), "dp") for part in jnp.split(x, 2, axis=1)) / 2


@program("parts of a sum psummed one by one", "")
def _(x):
    return sum(lax.psum(part.sum(), "dp") for part in jnp.split(x, 2, axis=1)) / 2


@program("a psum of a tree of sums and a mean", ("d", ""))
def _(x, y):
    return lax.psum((x.sum(0), y.mean()), "dp")


@program("a psum of a tree of sums", ("d", ""))
def _(x, y):
    return lax.psum((x.sum(0), y.sum()), "dp")


@program("a psum of sums times an array that holds one over the number of shards", "d")
def _(x):
    return lax.psum(x.sum(0) * np.full(8, 1 / lax.axis_size("dp"), np.float32), "dp")


@program("a psum of means times an array that holds one over the number of shards", "d")
def _(x):
    return lax.psum(x.mean(0) * np.full(8, 1 / lax.axis_size("dp"), np.float32), "dp")
