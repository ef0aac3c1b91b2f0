"""What the theory was measured on first: one axis, one layer, one result."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program

from .losses import mean_loss, row_loss, sum_loss


@program("a step on the mean of the gradients", "d")
def _(x, y, w, c):
    g = jax.grad(mean_loss)(w, x, y)
    return w - c * lax.pmean(g, "dp")


@program("a step on the sum of the gradients, its rate divided by the shards", "d")
def _(x, y, w, c):
    rate = c / lax.axis_size("dp")
    g = jax.grad(mean_loss)(w, x, y)
    return w - rate * lax.psum(g, "dp")


@program("the sign of the summed gradient", "d")
def _(x, y, w, c):
    g = jax.grad(mean_loss)(w, x, y)
    return w - c * jnp.sign(lax.psum(g, "dp"))


@program("the summed gradient over its own norm", "d")
def _(x, y, w, c):
    g = jax.grad(mean_loss)(w, x, y)
    d = lax.psum(g, "dp")
    return w - c * d / jnp.sqrt(jnp.sum(d * d))


@program("the loss summed over all rows, divided by their number", "")
def _(x, y, w):
    total = lax.psum(sum_loss(w, x, y), "dp")
    return total / (x.shape[0] * lax.axis_size("dp"))


@program("the gradient of a summed loss, summed", "d")
def _(x, y, w, c):
    g = jax.grad(sum_loss)(w, x, y)
    return w - c * lax.psum(g, "dp")


@program("a weighted mean, its weights summed too", "")
def _(x, y, w):
    weights = jnp.exp(y)
    return lax.psum(jnp.sum(weights * (x @ w)), "dp") / lax.psum(jnp.sum(weights), "dp")


@program("a penalty beside the loss, within the mean", "d")
def _(x, y, w, c):
    g = jax.grad(lambda w: mean_loss(w, x, y) + c * jnp.sum(w * w))(w)
    return w - 0.1 * lax.pmean(g, "dp")


@program("layer norm over an unsharded dim", "[b/dp]")
def _(x, w):
    h = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return h @ w


@program("a softmax over all shards", "[b/dp]")
def _(x, w):
    scores = x @ w
    e = jnp.exp(scores - lax.pmax(lax.stop_gradient(scores).max(), "dp"))
    return e / lax.psum(e.sum(), "dp")


@program("gradients of rows accumulated in a scan, then their mean", "d")
def _(x, y, w, c):
    def add(total, row):
        return total + jax.grad(row_loss)(w, *row), None

    total, _ = lax.scan(add, 0 * w + 0 * x[0], (x, y))
    return w - c * lax.pmean(total / x.shape[0], "dp")


@program("the gradient of a pmean, pmeaned", "d")
def _(x, y, w, c):
    g = jax.grad(lambda w: lax.pmean(mean_loss(w, x, y), "dp"))(w)
    return w - c * lax.pmean(g, "dp")


@program("gradients summed and divided by the shards", "d")
def _(x, y, w, c):
    g = jax.grad(mean_loss)(w, x, y)
    return w - c * (lax.psum(g, "dp") / lax.axis_size("dp"))


@program("RMSprop on the mean of the gradients", "d")
def _(x, y, w, c):
    g = lax.pmean(jax.grad(mean_loss)(w, x, y), "dp")
    return w - c * g / (jnp.sqrt(g * g) + 1e-2)


@program("the mean of the gradients clipped by its norm", "d")
def _(x, y, w, c):
    g = lax.pmean(jax.grad(mean_loss)(w, x, y), "dp")
    return w - g * jnp.minimum(1.0, 4 * c / jnp.sqrt(jnp.sum(g * g)))


@program("a step on the sum of the gradients of own means", "d")
def _(x, y, w, c):
    g = jax.grad(mean_loss)(w, x, y)
    return w - c * lax.psum(g, "dp")


@program("gradients pmeaned, then psummed", "d")
def _(x, y, w, c):
    g = lax.pmean(jax.grad(mean_loss)(w, x, y), "dp")
    return w - c * lax.psum(g, "dp")


@program("a penalty beside a summed loss, within the sum", "d")
def _(x, y, w, c):
    g = jax.grad(lambda w: sum_loss(w, x, y) + c * jnp.sum(w * w))(w)
    return w - 0.1 * lax.psum(g, "dp")


@program("the pmean of a sum", "")
def _(x, y, w):
    return lax.pmean(sum_loss(w, x, y), "dp")


@program("the pmean of the gradient of a summed loss", "d")
def _(x, y, w, c):
    g = jax.grad(sum_loss)(w, x, y)
    return w - c * lax.pmean(g, "dp")


@program("a softmax over own rows", "[b/dp]")
def _(x, w):
    return jax.nn.softmax(x @ w)


@program("the pmean of means with own weights", "")
def _(x, y, w):
    weights = jnp.exp(y)
    return lax.pmean(jnp.sum(weights * (x @ w)) / jnp.sum(weights), "dp")


@program("a cumsum along the sharded dim", "[b/dp]")
def _(x, w):
    return jnp.cumsum(x @ w)


@program("a variance about own mean, pmeaned", "")
def _(x, w):
    return lax.pmean(jnp.var(x @ w), "dp")


@program("the pmean of own root mean squares", "")
def _(x, w):
    return lax.pmean(jnp.sqrt(jnp.mean((x @ w) ** 2)), "dp")


@program("batch norm by own rows", "[b/dp]")
def _(x, w):
    h = x @ w
    return (h - h.mean()) / jnp.sqrt(h.var() + 1e-5)


@program("the gradient of a pmean, psummed", "d")
def _(x, y, w, c):
    g = jax.grad(lambda w: lax.pmean(mean_loss(w, x, y), "dp"))(w)
    return w - c * lax.psum(g, "dp")


@program("the psum of own means", "")
def _(x, y, w):
    return lax.psum(mean_loss(w, x, y), "dp")


@program("perplexity of the psum of own means", "")
def _(x, y, w):
    return jnp.exp(lax.psum(mean_loss(w, x, y), "dp"))


@program("own maximum taken off", "[b/dp]")
def _(x, w):
    scores = x @ w
    return scores - scores.max()


@program("a logsumexp of own maxima, rescaled by the global one", "")
def _(x, w):
    scores = x @ w
    own = scores.max()
    total = jnp.exp(scores - own).sum()
    top = lax.pmax(own, "dp")
    return top + jnp.log(lax.psum(total * jnp.exp(own - top), "dp"))


@program("a variance merged from parts, as Chan does", "")
def _(x, w):
    h = x @ w
    own = h.mean()
    mean = lax.pmean(own, "dp")
    return lax.pmean(h.var() + (own - mean) ** 2, "dp")


@program("a variance by moments", "")
def _(x, w):
    h = x @ w
    return lax.pmean((h * h).mean(), "dp") - lax.pmean(h.mean(), "dp") ** 2


@program("RMSprop on the sum of the gradients of own means", "d")
def _(x, y, w, c):
    g = lax.psum(jax.grad(mean_loss)(w, x, y), "dp")
    return w - c * g / (jnp.sqrt(g * g) + 1e-1)


@program("the sum of the gradients clipped by its norm", "d")
def _(x, y, w, c):
    g = lax.psum(jax.grad(mean_loss)(w, x, y), "dp")
    return w - g * jnp.minimum(1.0, 10 * c / jnp.sqrt(jnp.sum(g * g)))


@program("gradients that are not reduced", "d")
def _(x, y, w, c):
    return w - c * jax.grad(mean_loss)(w, x, y)


@program("batch norm over all shards", "[b/dp]")
def _(x, w):
    h = x @ w
    mean = lax.pmean(h.mean(), "dp")
    return (h - mean) / jnp.sqrt(lax.pmean(((h - mean) ** 2).mean(), "dp") + 1e-5)


@program("the share of large rows", "")
def _(x, w):
    return lax.psum(jnp.sum(x @ w > 0), "dp") / (lax.axis_size("dp") * x.shape[0])


@program("the pmean of own logsumexps", "")
def _(x, w):
    return lax.pmean(jnp.log1p(jnp.sum(jnp.exp(x @ w))), "dp")


@program("the jacobian of own means, psummed", "d")
def _(x, y, w):
    return lax.psum(jax.jacrev(mean_loss)(w, x, y), "dp")


@program("own mean linearised, psummed", "")
def _(x, y, w):
    _, tangent = jax.linearize(lambda w: mean_loss(w, x, y), w)
    return lax.psum(tangent(w), "dp")


@program("gradients of rows under vmap, their mean psummed", "d")
def _(x, y, w):
    g = jax.vmap(jax.grad(row_loss), (None, 0, 0))(w, x, y)
    return lax.psum(g.mean(0), "dp")


@program("gradients of rows under vmap, their mean pmeaned", "d")
def _(x, y, w):
    g = jax.vmap(jax.grad(row_loss), (None, 0, 0))(w, x, y)
    return lax.pmean(g.mean(0), "dp")


@program("the least of own rows taken off", "[b/dp]")
def _(x, y, w):
    return x @ w - jnp.min(y)


@program("the largest of own rows kept", "[b/dp]")
def _(x, w):
    scores = x @ w
    return scores * (jnp.arange(x.shape[0]) == jnp.argmax(scores))


@program("rows sorted within each shard", "[b/dp]")
def _(x, w):
    return jnp.sort(x @ w)


def _scanned_loss(layers, x, y):
    h, _ = lax.scan(lambda h, layer: (jnp.tanh(h * layer), None), x, layers)
    return jnp.mean((h.sum(-1) - y) ** 2)


@program("two scanned layers, gradients pmeaned", "d")
def _(x, y, w):
    g = jax.grad(_scanned_loss)(jnp.stack([w, w]), x, y)
    return lax.pmean(g, "dp").sum(0)


@program("two scanned layers, gradients psummed", "d")
def _(x, y, w):
    g = jax.grad(_scanned_loss)(jnp.stack([w, w]), x, y)
    return lax.psum(g, "dp").sum(0)


@program("two scanned layers, gradients psummed, the rate divided by the shards", "d")
def _(x, y, w, c):
    layers = jnp.stack([w, w])
    g = jax.grad(_scanned_loss)(layers, x, y)
    return (layers - (c / lax.axis_size("dp")) * lax.psum(g, "dp")).sum(0)
