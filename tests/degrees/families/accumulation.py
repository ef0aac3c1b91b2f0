"""Gradients and sums over microbatches, in scans and loops."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program

from .losses import mean_loss, row_loss, sum_loss


def _own(w):
    return lax.pcast(w, "dp", to="varying")


def _microbatches(x, y, count=2):
    return x.reshape(count, -1, *x.shape[1:]), y.reshape(count, -1)


def _accumulated(loss, x, y, w):
    own = _own(w)
    return lax.scan(lambda t, xy: (t + jax.grad(loss)(own, *xy), None), 0 * own, _microbatches(x, y))[0]


def _added(add, loss, x, y, w):
    """What comes of a total and the own gradient of each microbatch."""
    own = _own(w)
    return lax.scan(lambda t, xy: (add(t, jax.grad(loss)(own, *xy)), None), jnp.zeros_like(w), _microbatches(x, y))[0]


@program("means of microbatches accumulated, pmeaned", "d")
def _(x, y, w):
    return lax.pmean(_accumulated(mean_loss, x, y, w) / 2, "dp")


@program("means of microbatches accumulated, psummed", "d")
def _(x, y, w):
    return lax.psum(_accumulated(mean_loss, x, y, w) / 2, "dp")


@program("sums of microbatches accumulated, psummed", "d")
def _(x, y, w):
    return lax.psum(_accumulated(sum_loss, x, y, w), "dp")


@program("sums of microbatches accumulated, pmeaned", "d")
def _(x, y, w):
    return lax.pmean(_accumulated(sum_loss, x, y, w), "dp")


@program("gradients psummed in every iteration, of means", "d")
def _(x, y, w):
    return _added(lambda total, g: total + lax.psum(g, "dp"), mean_loss, x, y, w)


@program("gradients pmeaned in every iteration, of means", "d")
def _(x, y, w):
    return _added(lambda total, g: total + lax.pmean(g, "dp"), mean_loss, x, y, w)


@program("gradients psummed in every iteration and once more", "d")
def _(x, y, w):
    return lax.psum(_added(lambda total, g: total + lax.psum(g, "dp"), sum_loss, x, y, w), "dp")


@program("the running total psummed in every iteration", "d")
def _(x, y, w):
    return _added(lambda total, g: lax.psum(total + g, "dp"), sum_loss, x, y, w)


@program("steps on pmeaned gradients in a scan", "d")
def _(x, y, w, c):
    def step(w, xy):
        g = jax.grad(mean_loss)(_own(w), *xy)
        return w - c * lax.pmean(g, "dp"), None

    batches = x.reshape(-1, 2, 8).swapaxes(0, 1), y.reshape(-1, 2).T
    return lax.scan(step, w, batches)[0]


@program("steps on psummed gradients of means in a scan", "d")
def _(x, y, w, c):
    def step(w, xy):
        g = jax.grad(mean_loss)(_own(w), *xy)
        return w - c * lax.psum(g, "dp"), None

    return lax.scan(step, w, (x[None], y[None]))[0]


@program("two steps on own gradients, weights averaged at the end", "d")
def _(x, y, w, c):
    def step(_, w):
        return w - c * jax.grad(mean_loss)(w, x, y)

    return lax.pmean(lax.fori_loop(0, 2, step, _own(w)), "dp")


@program("one step on own gradients, weights averaged at the end", "d")
def _(x, y, w, c):
    own = _own(w)
    return lax.pmean(own - c * jax.grad(mean_loss)(own, x, y), "dp")


@program("one step on own gradients, weights summed at the end", "d")
def _(x, y, w, c):
    own = _own(w)
    return lax.psum(own - c * jax.grad(mean_loss)(own, x, y), "dp")


@program("losses of rows summed in a scan, psummed over the rows of all", "")
def _(x, y, w):
    total, _ = lax.scan(lambda t, xy: (t + row_loss(w, *xy), None), 0 * y[0], (x, y))
    return lax.psum(total, "dp") / lax.psum(y.size, "dp")


@program("losses of rows summed in a scan, psummed over the rows of a shard", "")
def _(x, y, w):
    total, _ = lax.scan(lambda t, xy: (t + row_loss(w, *xy), None), 0 * y[0], (x, y))
    return lax.psum(total, "dp") / y.size


@program("losses of rows and their count summed in a scan, both psummed", "")
def _(x, y, w):
    start = (0 * y[0], 0 * y[0])
    (total, count), _ = lax.scan(lambda t, xy: ((t[0] + row_loss(w, *xy), t[1] + 1.0), None), start, (x, y))
    return lax.psum(total, "dp") / lax.psum(count, "dp")


@program("losses of rows and their count summed in a scan, one psummed", "")
def _(x, y, w):
    start = (0 * y[0], 0 * y[0])
    (total, count), _ = lax.scan(lambda t, xy: ((t[0] + row_loss(w, *xy), t[1] + 1.0), None), start, (x, y))
    return lax.psum(total / count, "dp")


@program("a moving average over rows in a scan", "")
def _(y, c):
    mean, _ = lax.scan(lambda mean, row: ((1 - c) * mean + c * row, None), 0 * y[0], y)
    return lax.pmean(mean, "dp")


@program("the largest of rows in a scan, pmaxed", "")
def _(y):
    top, _ = lax.scan(lambda top, row: (jnp.maximum(top, row), None), y[0], y)
    return lax.pmax(top, "dp")


@program("the largest of rows in a scan, pmeaned", "")
def _(y):
    top, _ = lax.scan(lambda top, row: (jnp.maximum(top, row), None), y[0], y)
    return lax.pmean(top, "dp")


@program("the gradient of a scanned sum of rows, psummed", "d")
def _(x, y, w):
    def total(w):
        return lax.scan(lambda t, xy: (t + row_loss(w, *xy), None), 0 * y[0], (x, y))[0]

    return lax.psum(jax.grad(total)(_own(w)), "dp")


@program("the gradient of a scanned mean of rows, psummed", "d")
def _(x, y, w):
    def mean(w):
        return lax.scan(lambda t, xy: (t + row_loss(w, *xy) / y.size, None), 0 * y[0], (x, y))[0]

    return lax.psum(jax.grad(mean)(_own(w)), "dp")


@program("rematerialised scanned layers, pmeaned", "d")
def _(x, y, w):
    def loss(w):
        h, _ = lax.scan(jax.checkpoint(lambda h, i: (jnp.tanh(h * w + i), None)), x, jnp.arange(3.0))
        return jnp.mean((h.sum(-1) - y) ** 2)

    return lax.pmean(jax.grad(loss)(_own(w)), "dp")


@program("rematerialised scanned layers, psummed", "d")
def _(x, y, w):
    def loss(w):
        h, _ = lax.scan(jax.checkpoint(lambda h, i: (jnp.tanh(h * w + i), None)), x, jnp.arange(3.0))
        return jnp.mean((h.sum(-1) - y) ** 2)

    return lax.psum(jax.grad(loss)(_own(w)), "dp")
