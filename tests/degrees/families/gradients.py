"""Gradients taken in the region: whether they are of a sum or of a mean, and whether they were summed already."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program

from .losses import mean_loss, own_gradient, row_loss, sum_loss


@program("value and gradient, both pmeaned", ("", "d"))
def _(x, y, w):
    loss, g = jax.value_and_grad(mean_loss)(w, x, y)
    return lax.pmean(loss, "dp"), lax.pmean(g, "dp")


@program("value pmeaned and gradient psummed", ("", "d"))
def _(x, y, w):
    loss, g = jax.value_and_grad(mean_loss)(w, x, y)
    return lax.pmean(loss, "dp"), lax.psum(g, "dp")


@program("value psummed and gradient pmeaned", ("", "d"))
def _(x, y, w):
    loss, g = jax.value_and_grad(mean_loss)(w, x, y)
    return lax.psum(loss, "dp"), lax.pmean(g, "dp")


@program("value and gradient of a pmean", ("", "d"))
def _(x, y, w):
    return jax.value_and_grad(lambda w: lax.pmean(mean_loss(w, x, y), "dp"))(w)


@program("value and gradient of a psum of sums", ("", "d"))
def _(x, y, w):
    return jax.value_and_grad(lambda w: lax.psum(sum_loss(w, x, y), "dp"))(w)


@program("the gradient of a psum of sums, psummed", "d")
def _(x, y, w):
    g = jax.grad(lambda w: lax.psum(sum_loss(w, x, y), "dp"))(w)
    return lax.psum(g, "dp")


@program("the gradient of a psum of sums, pmeaned", "d")
def _(x, y, w):
    g = jax.grad(lambda w: lax.psum(sum_loss(w, x, y), "dp"))(w)
    return lax.pmean(g, "dp")


@program("the gradient of a psum of means", "d")
def _(x, y, w):
    return jax.grad(lambda w: lax.psum(mean_loss(w, x, y), "dp"))(w)


@program("the gradient of own mean over the shards, psummed", "d")
def _(x, y, w):
    g = jax.grad(lambda w: mean_loss(w, x, y) / lax.axis_size("dp"))(w)
    return lax.psum(g, "dp")


@program("the gradient of own mean over the shards", "d")
def _(x, y, w):
    return jax.grad(lambda w: mean_loss(w, x, y) / lax.axis_size("dp"))(w)


@program("the gradient of own mean over the shards, pmeaned", "d")
def _(x, y, w):
    g = jax.grad(lambda w: mean_loss(w, x, y) / lax.axis_size("dp"))(w)
    return lax.pmean(g, "dp")


@program("the gradient of own sum", "d")
def _(x, y, w):
    return jax.grad(sum_loss)(w, x, y)


@program("the gradient of a weight that is made varying, pmeaned", "d")
def _(x, y, w):
    return lax.pmean(own_gradient(w, x, y), "dp")


@program("the gradient of a weight that is made varying, psummed", "d")
def _(x, y, w):
    return lax.psum(own_gradient(w, x, y), "dp")


@program("the gradient of a summed loss, of a weight that is made varying, psummed", "d")
def _(x, y, w):
    return lax.psum(own_gradient(w, x, y, sum_loss), "dp")


@program("a vjp of rows with ones, psummed", "d")
def _(x, y, w):
    losses, backward = jax.vjp(lambda w: row_loss(w, x, y), w)
    return lax.psum(backward(jnp.ones_like(losses))[0], "dp")


@program("a vjp of rows with one over the rows of a shard, psummed", "d")
def _(x, y, w):
    losses, backward = jax.vjp(lambda w: row_loss(w, x, y), w)
    return lax.psum(backward(jnp.ones_like(losses) / losses.size)[0], "dp")


@program("a jvp of own mean, pmeaned", "")
def _(x, y, w, v):
    _, tangent = jax.jvp(lambda w: mean_loss(w, x, y), (w,), (v,))
    return lax.pmean(tangent, "dp")


@program("a jvp of own mean, psummed", "")
def _(x, y, w, v):
    _, tangent = jax.jvp(lambda w: mean_loss(w, x, y), (w,), (v,))
    return lax.psum(tangent, "dp")


@program("a jvp of own sum, psummed", "")
def _(x, y, w, v):
    _, tangent = jax.jvp(lambda w: sum_loss(w, x, y), (w,), (v,))
    return lax.psum(tangent, "dp")


@program("a jacobian of rows, its mean pmeaned", "d")
def _(x, y, w):
    jacobian = jax.jacrev(row_loss)(w, x, y)
    return lax.pmean(jacobian.mean(0), "dp")


@program("a forward jacobian of rows, its sum psummed", "d")
def _(x, y, w):
    jacobian = jax.jacfwd(row_loss)(w, x, y)
    return lax.psum(jacobian.sum(0), "dp")


@program("Gauss-Newton of jacobians, its sum psummed", "d d")
def _(x, y, w):
    jacobian = jax.jacfwd(row_loss)(w, x, y)
    return lax.psum(jacobian.T @ jacobian, "dp")


@program("Gauss-Newton of jacobians, of psummed jacobians", "d d")
def _(x, y, w):
    jacobian = lax.psum(jax.jacfwd(row_loss)(w, x, y).mean(0), "dp")
    return jnp.outer(jacobian, jacobian)


@program("a hessian of own mean, pmeaned", "d d")
def _(x, y, w):
    return lax.pmean(jax.jacfwd(jax.jacfwd(mean_loss))(w, x, y), "dp")


@program("a hessian of own mean, psummed", "d d")
def _(x, y, w):
    return lax.psum(jax.jacfwd(jax.jacfwd(mean_loss))(w, x, y), "dp")


@program("a rematerialised loss, gradients psummed", "d")
def _(x, y, w):
    return lax.psum(jax.grad(jax.checkpoint(mean_loss))(w, x, y), "dp")


@program("a rematerialised pmean, its gradient", "d")
def _(x, y, w):
    return jax.grad(jax.checkpoint(lambda w: lax.pmean(mean_loss(w, x, y), "dp")))(w)


def _clipped(w, x, y, c):
    g = jax.vmap(jax.grad(row_loss), (None, 0, 0))(w, x, y)
    return g * jnp.minimum(1, c / jnp.sqrt(jnp.sum(g * g, axis=1, keepdims=True)))


@program("gradients of rows clipped one by one, then psummed over all rows", "d")
def _(x, y, w, c):
    return lax.psum(_clipped(w, x, y, c).sum(0), "dp") / lax.psum(y.size, "dp")


@program("gradients of rows clipped one by one, their mean psummed", "d")
def _(x, y, w, c):
    return lax.psum(_clipped(w, x, y, c).mean(0), "dp")


@program("gradients of shards clipped one by one, then pmeaned", "d")
def _(x, y, w, c):
    g = own_gradient(w, x, y)
    clipped = g * jnp.minimum(1, 0.1 * c / jnp.sqrt(jnp.sum(g * g)))
    return lax.pmean(clipped, "dp")


@program("a penalty of each shard within the pmean's gradient", "d")
def _(x, y, w, c):
    return jax.grad(lambda w: lax.pmean(mean_loss(w, x, y) + c * jnp.sum(w**2), "dp"))(w)


@program("a penalty outside of the mean, its gradient", "d")
def _(x, y, w, c):
    return jax.grad(lambda w: lax.pmean(mean_loss(w, x, y), "dp") + c * jnp.sum(w**2))(w)


@program("a penalty outside of the mean, its gradient pmeaned", "d")
def _(x, y, w, c):
    g = jax.grad(lambda w: lax.pmean(mean_loss(w, x, y), "dp") + c * jnp.sum(w**2))(w)
    return lax.pmean(g, "dp")


@program("a decay added to the summed gradient", "d")
def _(x, y, w, c):
    return lax.psum(own_gradient(w, x, y, sum_loss), "dp") + c * w


@program("a decay added to own gradient before the psum", "d")
def _(x, y, w, c):
    return lax.psum(own_gradient(w, x, y, sum_loss) + c * w, "dp")


@program("a decay added to own gradient before the pmean", "d")
def _(x, y, w, c):
    return lax.pmean(own_gradient(w, x, y) + c * w, "dp")


@program("a penalty of a small constant's square norm in own mean, psummed over the shards", "d")
def _(x, y, w, c):
    n = lax.axis_size("dp")
    g = jax.grad(lambda w: (mean_loss(w, x, y) + c * jnp.sum(w**2)) / n)(lax.pcast(w, "dp", to="varying"))
    return lax.psum(g, "dp")


@program("gradients of the input rows of own mean", "[b/dp] d")
def _(x, y, w):
    return jax.grad(lambda x: mean_loss(w, x, y))(x)


@program("gradients of the input rows of a pmean", "[b/dp] d")
def _(x, y, w):
    return jax.grad(lambda x: lax.pmean(mean_loss(w, x, y), "dp"))(x)


@program("gradients of the input rows of own sum", "[b/dp] d")
def _(x, y, w):
    return jax.grad(lambda x: sum_loss(w, x, y))(x)
