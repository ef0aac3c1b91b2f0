"""What the theory was measured on first: one axis, one layer, one result."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program

from .losses import mean_loss, sum_loss


@program("a step on the mean of the gradients", "d")
def _(x, y, w, c):
    g = jax.grad(mean_loss)(w, x, y)
    return w - c * lax.pmean(g, "dp")


@program("a step on the sum of the gradients, its rate divided by the shards", "d")
def _(x, y, w, c):
    rate = c / lax.axis_size("dp")
    g = jax.grad(mean_loss)(w, x, y)
    return w - rate * lax.psum(g, "dp")


@program("the gradient of a summed loss, summed", "d")
def _(x, y, w, c):
    g = jax.grad(sum_loss)(w, x, y)
    return w - c * lax.psum(g, "dp")


@program("a penalty beside the loss, within the mean", "d")
def _(x, y, w, c):
    g = jax.grad(lambda w: mean_loss(w, x, y) + c * jnp.sum(w * w))(w)
    return w - 0.1 * lax.pmean(g, "dp")


@program("the gradient of a pmean, pmeaned", "d")
def _(x, y, w, c):
    g = jax.grad(lambda w: lax.pmean(mean_loss(w, x, y), "dp"))(w)
    return w - c * lax.pmean(g, "dp")


@program("a step on the sum of the gradients of own means", "d")
def _(x, y, w, c):
    g = jax.grad(mean_loss)(w, x, y)
    return w - c * lax.psum(g, "dp")


@program("a penalty beside a summed loss, within the sum", "d")
def _(x, y, w, c):
    g = jax.grad(lambda w: sum_loss(w, x, y) + c * jnp.sum(w * w))(w)
    return w - 0.1 * lax.psum(g, "dp")


@program("the gradient of a pmean, psummed", "d")
def _(x, y, w, c):
    g = jax.grad(lambda w: lax.pmean(mean_loss(w, x, y), "dp"))(w)
    return w - c * lax.psum(g, "dp")


@program("own maximum taken off", "[b/dp]")
def _(x, w):
    scores = x @ w
    return scores - scores.max()


@program("a variance merged from parts, as Chan does", "")
def _(x, w):
    h = x @ w
    own = h.mean()
    mean = lax.pmean(own, "dp")
    return lax.pmean(h.var() + (own - mean) ** 2, "dp")


@program("the sum of the gradients clipped by its norm", "d")
def _(x, y, w, c):
    g = lax.psum(jax.grad(mean_loss)(w, x, y), "dp")
    return w - g * jnp.minimum(1.0, 10 * c / jnp.sqrt(jnp.sum(g * g)))


@program("gradients that are not reduced", "d")
def _(x, y, w, c):
    return w - c * jax.grad(mean_loss)(w, x, y)
