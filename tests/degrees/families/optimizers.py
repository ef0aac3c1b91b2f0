"""What is done with gradients of own rows: some rules do not see a factor, most do."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program

from .losses import mean_loss, own_gradient


@program("momentum on psummed gradients", ("d", "d"))
def _(x, y, w, v, c):
    v = c * v + lax.psum(own_gradient(w, x, y), "dp")
    return w - 0.1 * v, v


@program("momentum on psummed gradients, divided by the shards at the step", "d")
def _(x, y, w, v, c):
    v = c * v + lax.psum(own_gradient(w, x, y), "dp")
    return w - 0.1 * v / lax.axis_size("dp")


@program("Adam on pmeaned gradients", ("d", "d", "d"))
def _(x, y, w, v, c):
    g = lax.pmean(own_gradient(w, x, y), "dp")
    first, second = c * v + (1 - c) * g, c * v**2 + (1 - c) * g**2
    return w - first / (jnp.sqrt(second) + 1e-8), first, second


@program("Adam on psummed gradients", ("d", "d", "d"))
def _(x, y, w, v, c):
    g = lax.psum(own_gradient(w, x, y), "dp")
    first, second = c * v + (1 - c) * g, c * v**2 + (1 - c) * g**2
    return w - first / (jnp.sqrt(second) + 1e-8), first, second


@program("Adam on psummed gradients, its first step only", "d")
def _(x, y, w, c):
    g = lax.psum(own_gradient(w, x, y), "dp")
    first, second = (1 - c) * g, (1 - c) * g**2
    return w - 0.1 * first / (jnp.sqrt(second) + 1e-12)


@program("Adam on gradients that are not reduced, its step pmeaned", "d")
def _(x, y, w, c):
    g = own_gradient(w, x, y)
    return w - c * lax.pmean(g / (jnp.sqrt(g**2) + 1e-3), "dp")


@program("second moments of own gradients pmeaned", "d")
def _(x, y, w):
    return lax.pmean(own_gradient(w, x, y) ** 2, "dp")


@program("the pmean of the signs of own gradients", "d")
def _(x, y, w, c):
    return w - c * lax.pmean(jnp.sign(own_gradient(w, x, y)), "dp")


@program("the sign of the psum of the signs of own gradients", "d")
def _(x, y, w, c):
    return w - c * jnp.sign(lax.psum(jnp.sign(own_gradient(w, x, y)), "dp") + 0.5)


@program("Lion on psummed gradients", "d")
def _(x, y, w, c):
    g = lax.psum(own_gradient(w, x, y), "dp")
    return w - 0.1 * (jnp.sign(g) + c * w)


@program("Lion on psummed gradients and a state", "d")
def _(x, y, w, v, c):
    g = lax.psum(own_gradient(w, x, y), "dp")
    return w - 0.1 * jnp.sign(c * v + (1 - c) * g) * v


@program("psummed gradients normalised by their largest entry", "d")
def _(x, y, w, c):
    g = lax.psum(own_gradient(w, x, y), "dp")
    return w - c * g / jnp.abs(g).max()


@program("psummed gradients normalised by their norm and an epsilon", "d")
def _(x, y, w, c):
    g = lax.psum(own_gradient(w, x, y), "dp")
    return w - c * g / (jnp.linalg.norm(g) + 1e-12)


@program("psummed gradients normalised by their norm and one", "d")
def _(x, y, w, c):
    g = lax.psum(own_gradient(w, x, y), "dp")
    return w - c * g / (jnp.linalg.norm(g) + 1)


@program("pmeaned gradients normalised by their norm and one", "d")
def _(x, y, w, c):
    g = lax.pmean(own_gradient(w, x, y), "dp")
    return w - c * g / (jnp.linalg.norm(g) + 1)


@program("psummed gradients clipped entry by entry", "d")
def _(x, y, w, c):
    g = lax.psum(own_gradient(w, x, y), "dp")
    return w - jnp.clip(g, -c, c)


@program("pmeaned gradients clipped entry by entry", "d")
def _(x, y, w, c):
    g = lax.pmean(own_gradient(w, x, y), "dp")
    return w - jnp.clip(g, -c / 10, c / 10)


@program("own gradients clipped entry by entry, pmeaned", "d")
def _(x, y, w, c):
    g = jnp.clip(own_gradient(w, x, y), -c / 10, c / 10)
    return w - lax.pmean(g, "dp")


@program("psummed gradients clipped to a limit that grows with the shards", "d")
def _(x, y, w, c):
    n = lax.axis_size("dp")
    g = lax.psum(own_gradient(w, x, y), "dp")
    return w - jnp.clip(g, -n * c / 10, n * c / 10) / n


@program("pmeaned gradients clipped by the norm of all parameters", ("d", ""))
def _(x, y, w, s, c):
    g, b = lax.pmean(
        jax.grad(lambda w, b: mean_loss(w, x + b, y), (0, 1))(*lax.pcast((w, s), "dp", to="varying")), "dp"
    )
    scale = jnp.minimum(1, 0.1 * c / jnp.sqrt(jnp.sum(g**2) + b**2))
    return w - scale * g, s - scale * b


@program("one of two gradients psummed", ("d", ""))
def _(x, y, w, s, c):
    g, b = jax.grad(lambda w, b: mean_loss(w, x + b, y), (0, 1))(*lax.pcast((w, s), "dp", to="varying"))
    return w - c * lax.pmean(g, "dp"), s - c * lax.psum(b, "dp")


@program("a step scaled by the norm of own gradients", "d")
def _(x, y, w, c):
    g = own_gradient(w, x, y)
    norm = lax.pmean(jnp.linalg.norm(g), "dp")
    return w - c * lax.pmean(g, "dp") / norm


@program("LARS on psummed gradients", "d")
def _(x, y, w, c):
    g = lax.psum(own_gradient(w, x, y), "dp")
    trust = jnp.linalg.norm(w) / jnp.linalg.norm(g)
    return w - c * trust * g


@program("LARS with decay on psummed gradients", "d")
def _(x, y, w, c):
    g = lax.psum(own_gradient(w, x, y), "dp")
    trust = jnp.linalg.norm(w) / (jnp.linalg.norm(g) + c * jnp.linalg.norm(w))
    return w - trust * (g + c * w)


@program("a rate that is divided by the shards before, on pmeaned gradients", "d")
def _(x, y, w, c):
    rate = c / lax.axis_size("dp")
    return w - rate * lax.pmean(own_gradient(w, x, y), "dp")


@program("a rate that grows with the shards, on pmeaned gradients", "d")
def _(x, y, w, c):
    rate = 0.1 * c * lax.axis_size("dp")
    return w - rate * lax.pmean(own_gradient(w, x, y), "dp")


@program("a rate over the shards, on psummed gradients and a decay", "d")
def _(x, y, w, c):
    rate = c / lax.axis_size("dp")
    return w - rate * (lax.psum(own_gradient(w, x, y), "dp") + 0.1 * w)


@program("Newton's step on psummed gradients and hessians", "d")
def _(x, y, w):
    g = lax.psum(own_gradient(w, x, y), "dp")
    hessian = lax.psum(x.T @ x / y.size, "dp")
    return w - jnp.linalg.solve(hessian, g)


@program("Newton's step on pmeaned gradients and psummed hessians", "d")
def _(x, y, w):
    g = lax.pmean(own_gradient(w, x, y), "dp")
    hessian = lax.psum(x.T @ x / y.size, "dp")
    return w - jnp.linalg.solve(hessian, g)


@program("Newton's step with a ridge on psummed gradients and hessians", "d")
def _(x, y, w, c):
    g = lax.psum(own_gradient(w, x, y), "dp")
    hessian = lax.psum(x.T @ x / y.size, "dp") + c * jnp.eye(w.size)
    return w - jnp.linalg.solve(hessian, g)


@program("least squares by summed normal equations", "d")
def _(x, y):
    return jnp.linalg.solve(lax.psum(x.T @ x, "dp"), lax.psum(x.T @ y, "dp"))


@program("ridge regression by summed normal equations", "d")
def _(x, y, c):
    return jnp.linalg.solve(lax.psum(x.T @ x, "dp") + c * jnp.eye(x.shape[1]), lax.psum(x.T @ y, "dp"))


@program("ridge regression, its ridge added by every shard", "d")
def _(x, y, c):
    return jnp.linalg.solve(lax.psum(x.T @ x + 10 * c * jnp.eye(x.shape[1]), "dp"), lax.psum(x.T @ y, "dp"))


@program("least squares of own rows, pmeaned", "d")
def _(x, y):
    own = jnp.linalg.solve(x.T @ x + jnp.eye(x.shape[1]), x.T @ y)
    return lax.pmean(own, "dp")
