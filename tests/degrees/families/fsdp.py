"""Parameters of which each shard holds a part: gathered for a layer, their gradients scattered again."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program


def _gathered(mp):
    return lax.all_gather(mp, "dp", axis=1, tiled=True)


def _loss(x, y, m):
    return jnp.mean((jnp.tanh(x @ m).sum(-1) - y) ** 2)


def _sum(x, y, m):
    return jnp.sum((jnp.tanh(x @ m).sum(-1) - y) ** 2)


@program("a layer of gathered weights", "[b/dp] p")
def _(x, mp):
    return jnp.tanh(x @ _gathered(mp))


@program("a layer of own weights on own rows", "[b/dp] p")
def _(x, mp):
    return jnp.tanh(x @ jnp.tile(mp, 24 // mp.shape[1]))


@program("gradients of the part, of own mean over the shards", "d [p/dp]")
def _(x, y, mp):
    return jax.grad(lambda mp: _loss(x, y, _gathered(mp)) / lax.axis_size("dp"))(mp)


@program("gradients of the part, of own mean", "d [p/dp]")
def _(x, y, mp):
    return jax.grad(lambda mp: _loss(x, y, _gathered(mp)))(mp)


@program("gradients of the part, of own mean, divided by the shards", "d [p/dp]")
def _(x, y, mp):
    return jax.grad(lambda mp: _loss(x, y, _gathered(mp)))(mp) / lax.axis_size("dp")


@program("gradients of the part, of own sum", "d [p/dp]")
def _(x, y, mp):
    return jax.grad(lambda mp: _sum(x, y, _gathered(mp)))(mp)


@program("gradients of the part, of own sum over the rows of all", "d [p/dp]")
def _(x, y, mp):
    rows = lax.psum(y.size, "dp")
    return jax.grad(lambda mp: _sum(x, y, _gathered(mp)) / rows)(mp)


@program("gradients of the part, of a pmean", "d [p/dp]")
def _(x, y, mp):
    return jax.grad(lambda mp: lax.pmean(_loss(x, y, _gathered(mp)), "dp"))(mp)


@program("gradients of the part, of a pmean, divided by the shards", "d [p/dp]")
def _(x, y, mp):
    return jax.grad(lambda mp: lax.pmean(_loss(x, y, _gathered(mp)), "dp"))(mp) / lax.axis_size("dp")


@program("gradients of the gathered weights, pmeaned, own part taken", "d [p/dp]")
def _(x, y, mp):
    g = lax.pmean(jax.grad(lambda m: _loss(x, y, m))(_gathered(mp)), "dp")
    return lax.dynamic_slice_in_dim(g, lax.axis_index("dp") * mp.shape[1], mp.shape[1], axis=1)


@program("gradients of the gathered weights, psummed, own part taken", "d [p/dp]")
def _(x, y, mp):
    g = lax.psum(jax.grad(lambda m: _loss(x, y, m))(_gathered(mp)), "dp")
    return lax.dynamic_slice_in_dim(g, lax.axis_index("dp") * mp.shape[1], mp.shape[1], axis=1)


@program("gradients of the gathered weights, not reduced, own part taken", "d [p/dp]")
def _(x, y, mp):
    g = jax.grad(lambda m: _loss(x, y, m))(_gathered(mp))
    return lax.dynamic_slice_in_dim(g, lax.axis_index("dp") * mp.shape[1], mp.shape[1], axis=1)


@program("a step on the part, by own mean, the rate over the shards", "d [p/dp]")
def _(x, y, mp, c):
    rate = c / lax.axis_size("dp")
    return mp - rate * jax.grad(lambda mp: _loss(x, y, _gathered(mp)))(mp)


@program("a step on the part with a decay, the rate over the shards", "d [p/dp]")
def _(x, y, mp, c):
    rate = c / lax.axis_size("dp")
    return mp - rate * (jax.grad(lambda mp: _loss(x, y, _gathered(mp)))(mp) + mp)


@program("a step on the part with a penalty of the gathered weights", "d [p/dp]")
def _(x, y, mp, c):
    def loss(mp):
        m = _gathered(mp)
        return (_loss(x, y, m) + c * jnp.sum(m * m)) / lax.axis_size("dp")

    return mp - 0.1 * jax.grad(loss)(mp)


@program("a step on the part with a penalty of the part", "d [p/dp]")
def _(x, y, mp, c):
    def loss(mp):
        return _loss(x, y, _gathered(mp)) / lax.axis_size("dp") + c * jnp.sum(mp * mp)

    return mp - 0.1 * jax.grad(loss)(mp)


@program("a step on the part with a penalty of the part within the mean", "d [p/dp]")
def _(x, y, mp, c):
    def loss(mp):
        return (_loss(x, y, _gathered(mp)) + c * jnp.sum(mp * mp)) / lax.axis_size("dp")

    return mp - 0.1 * jax.grad(loss)(mp)


@program("the sign of gradients of the part, by own mean", "d [p/dp]")
def _(x, y, mp, c):
    return mp - c * jnp.sign(jax.grad(lambda mp: _loss(x, y, _gathered(mp)))(mp))


@program("gradients of the part clipped by the norm of all parts", "d [p/dp]")
def _(x, y, mp, c):
    g = jax.grad(lambda mp: _loss(x, y, _gathered(mp)) / lax.axis_size("dp"))(mp)
    norm = jnp.sqrt(lax.psum(jnp.sum(g * g), "dp"))
    return mp - g * jnp.minimum(1, 0.1 * c / norm)


@program("gradients of the part clipped by the norm of the part", "d [p/dp]")
def _(x, y, mp, c):
    g = jax.grad(lambda mp: _loss(x, y, _gathered(mp)) / lax.axis_size("dp"))(mp)
    return mp - g * jnp.minimum(1, 0.1 * c / jnp.sqrt(jnp.sum(g * g)))


@program("gradients of the part psummed", "d p1")
def _(x, y, mp):
    g = jax.grad(lambda mp: _loss(x, y, _gathered(mp)) / lax.axis_size("dp"))(mp)
    return lax.psum(g, "dp")[:, :6]


@program("the loss of gathered weights, pmeaned", "")
def _(x, y, mp):
    return lax.pmean(_loss(x, y, _gathered(mp)), "dp")


@program("the loss of gathered weights, psummed", "")
def _(x, y, mp):
    return lax.psum(_loss(x, y, _gathered(mp)), "dp")


@program("a gathered bias added in a psum", "p")
def _(x, wp):
    return lax.psum(x.sum() + lax.all_gather(wp, "dp", tiled=True), "dp")


@program("a gathered vector's sum", "")
def _(wp):
    return lax.pmean(lax.all_gather(wp, "dp", tiled=True).sum(), "dp")


@program("a gathered vector's sum, psummed", "")
def _(wp):
    return lax.psum(lax.all_gather(wp, "dp", tiled=True).sum(), "dp")


@program("a moving average of parts", "[p/dp]")
def _(wp, c):
    return c * wp + (1 - c) * lax.pmean(wp.mean(), "dp")


@program("a moving average of parts and own mean", "[p/dp]")
def _(wp, c):
    return c * wp + (1 - c) * wp.mean()
