"""Loops until a condition holds, branches on what was reduced, and maps."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program


def _iterated(product, w):
    """Three steps of a power iteration."""

    def step(_, v):
        v = product(v)
        return v / jnp.linalg.norm(v)

    return lax.fori_loop(0, 3, step, w)


@program("a power iteration with pmeans, which does not see the factor", "d")
def _(x, w):
    return _iterated(lambda v: lax.pmean(x.T @ (x @ v), "dp"), w)


@program("a power iteration with pmeans and a shift", "d")
def _(x, w, c):
    return _iterated(lambda v: lax.pmean(x.T @ (x @ v), "dp") + 10 * c * v, w)


@program("a power iteration with psums, its Rayleigh quotient", "")
def _(x, w):
    v = _iterated(lambda v: lax.psum(x.T @ (x @ v), "dp"), w)
    return v @ lax.psum(x.T @ (x @ v), "dp")


@program("a power iteration with pmeans, its Rayleigh quotient", "")
def _(x, w):
    v = _iterated(lambda v: lax.pmean(x.T @ (x @ v), "dp"), w)
    return v @ lax.pmean(x.T @ (x @ v), "dp")


@program("gradient descent until the norm is small, pmeans", "d")
def _(x, y, w):
    def gradient(w):
        return lax.pmean(x.T @ (x @ w - y) / y.size, "dp")

    def step(state):
        w, _ = state
        g = gradient(w)
        return w - 0.2 * g, jnp.sum(g * g)

    return lax.while_loop(lambda state: state[1] > 1e-2, step, (w, jnp.ones(())))[0]


@program("conjugate gradients with a psum in the product", "d")
def _(x, y):
    target = lax.psum(x.T @ y, "dp")
    return jax.scipy.sparse.linalg.cg(lambda v: lax.psum(x.T @ (x @ v), "dp"), target, tol=1e-8)[0]


@program("conjugate gradients with a pmean in the product", "d")
def _(x, y):
    target = lax.psum(x.T @ y, "dp")
    return jax.scipy.sparse.linalg.cg(lambda v: lax.pmean(x.T @ (x @ v), "dp"), target, tol=1e-8)[0]


@program("doubling until the sum of all is large", "")
def _(y):
    total = lax.psum(jnp.abs(y).sum(), "dp")
    return lax.while_loop(lambda t: t < 1000, lambda t: 2 * t, total)


@program("doubling until the sum of a mean is large", "")
def _(y):
    total = lax.psum(jnp.abs(y).mean(), "dp")
    return lax.while_loop(lambda t: t < 1000, lambda t: 2 * t, total)


@program("a branch on a pmean", "d")
def _(x, w):
    mean = lax.pmean(x.mean(), "dp")
    return lax.cond(mean > 0, lambda w: 2 * w, lambda w: -w, w)


@program("a branch on the sign of a psum of means", "d")
def _(x, w):
    total = lax.psum(x.mean(), "dp")
    return lax.cond(total > 0, lambda w: 2 * w, lambda w: -w, w)


@program("a branch on the size of a psum of means", "d")
def _(x, w):
    total = lax.psum(jnp.abs(x).mean(), "dp")
    return lax.cond(total > 1.2, lambda w: 2 * w, lambda w: -w, w)


@program("a branch on a pmean, with a psum of sums in both", "d")
def _(x):
    mean = lax.pmean(x.mean(), "dp")
    return lax.cond(mean > 0, lambda: lax.psum(x.sum(0), "dp"), lambda: lax.psum((x * x).sum(0), "dp"))


@program("a branch on a pmean, with a psum of means in one", "d")
def _(x):
    mean = lax.pmean(jnp.abs(x).mean(), "dp")
    return lax.cond(mean > 0, lambda: lax.psum(x.mean(0), "dp"), lambda: lax.pmean(x.mean(0), "dp"))


@program("a branch on a pmean, with a psum of means in both", "d")
def _(x):
    mean = lax.pmean(x.mean(), "dp")
    return lax.cond(mean > 0, lambda: lax.psum(x.mean(0), "dp"), lambda: 2 * lax.psum(x.mean(0), "dp"))


@program("a branch that adds a weight to parts, psummed after", "d")
def _(x, w, s):
    own = x.sum(0)
    return lax.psum(lax.cond(jnp.abs(s) >= 0, lambda: own + w, lambda: own), "dp")


@program("a branch that scales parts, psummed after", "d")
def _(x, s, c):
    own = x.sum(0)
    return lax.psum(lax.cond(s > 0, lambda: own, lambda: c * own), "dp")


@program("a branch that squares parts, psummed after", "d")
def _(x, s):
    own = x.sum(0)
    return lax.psum(lax.cond(jnp.abs(s) >= 0, lambda: own**2, lambda: own), "dp")


@program("gradients that are skipped where they are not finite", "d")
def _(x, y, w, c):
    g = lax.pmean(x.T @ (x @ w - y) / y.size, "dp")
    return jnp.where(jnp.isfinite(g).all(), w - c * g, w)


@program("gradients of sums that are skipped where they are not finite", "d")
def _(x, y, w, c):
    g = lax.psum(x.T @ (x @ w - y) / y.size, "dp")
    return jnp.where(jnp.isfinite(g).all(), w - c * g, w)


@program("own gradients that are skipped where they are large, pmeaned", "d")
def _(x, y, w, c):
    g = x.T @ (x @ w - y) / y.size
    g = jnp.where(jnp.sum(g * g) > 12, 0, g)
    return w - c * lax.pmean(g, "dp")


@program("a scaled loss, unscaled after a pmean", "d")
def _(x, y, w, s):
    g = jax.grad(lambda w: s * jnp.mean((x @ w - y) ** 2))(lax.pcast(w, "dp", to="varying"))
    return w - 0.1 * lax.pmean(g, "dp") / s


@program("a scaled loss, unscaled after a psum", "d")
def _(x, y, w, s):
    g = jax.grad(lambda w: s * jnp.mean((x @ w - y) ** 2))(lax.pcast(w, "dp", to="varying"))
    return w - 0.1 * lax.psum(g, "dp") / s


@program("rows mapped one by one, pmeaned", "d")
def _(x, c):
    return lax.pmean(lax.map(lambda row: jnp.tanh(c * row), x).mean(0), "dp")


@program("rows mapped one by one, psummed", "d")
def _(x, c):
    return lax.psum(lax.map(lambda row: jnp.tanh(c * row), x).mean(0), "dp")


@program("columns mapped under vmap with a psum of sums", "d")
def _(x, c):
    return jax.vmap(lambda column: lax.psum(c * column.sum(), "dp"), in_axes=1)(x)


@program("columns mapped under vmap with a psum of means", "d")
def _(x, c):
    return jax.vmap(lambda column: lax.psum(c * column.mean(), "dp"), in_axes=1)(x)


@program("rows mapped under vmap with a psum", "[b/dp]")
def _(x):
    return jax.vmap(lambda row: lax.psum(row.sum(), "dp"))(x)


@program("a switch on a count of all", "")
def _(y):
    count = lax.psum(jnp.sum(y > 0), "dp")
    mean = lax.pmean(y.mean(), "dp")
    return lax.switch(count % 3, [lambda m: m, lambda m: 2 * m, lambda m: m * m], mean)


@program("a line search on the summed loss", "d")
def _(x, y, w):
    g = lax.pmean(x.T @ (x @ w - y) / y.size, "dp")
    losses = jax.vmap(lambda t: lax.psum(jnp.sum((x @ (w - t * g) - y) ** 2), "dp"))(jnp.array([0.1, 0.3, 1.0]))
    return w - jnp.array([0.1, 0.3, 1.0])[jnp.argmin(losses)] * g


@program("a line search on own losses, the best step averaged", "d")
def _(x, y, w):
    g = lax.pmean(x.T @ (x @ w - y) / y.size, "dp")
    losses = jax.vmap(lambda t: jnp.sum((x @ (w - t * g) - y) ** 2))(jnp.array([0.1, 0.3, 1.0]))
    return w - lax.pmean(jnp.array([0.1, 0.3, 1.0])[jnp.argmin(losses)], "dp") * g


@program("Sinkhorn's iterations with psums of columns", "[b/dp] d")
def _(x):
    def step(_, p):
        p = p / p.sum(1, keepdims=True)
        return p / lax.psum(p.sum(0), "dp")

    return lax.fori_loop(0, 3, step, jnp.exp(x))


@program("Sinkhorn's iterations with own columns", "[b/dp] d")
def _(x):
    def step(_, p):
        p = p / p.sum(1, keepdims=True)
        return p / p.sum(0)

    return lax.fori_loop(0, 3, step, jnp.exp(x))


def _members(x, centres):
    return jax.nn.one_hot(jnp.argmin(((x[:, None] - centres) ** 2).sum(-1), axis=1), 3)


@program("k-means with psums", "k d")
def _(x):
    def step(_, centres):
        onehot = _members(x, centres)
        sums, counts = lax.psum((onehot.T @ x, onehot.sum(0)), "dp")
        return sums / (counts[:, None] + 1e-3)

    return lax.fori_loop(0, 2, step, jnp.eye(3, 8))


@program("k-means with own means averaged", "k d")
def _(x):
    def step(_, centres):
        onehot = _members(x, centres)
        return lax.pmean(onehot.T @ x / (onehot.sum(0)[:, None] + 1e-3), "dp")

    return lax.fori_loop(0, 2, step, jnp.eye(3, 8))
