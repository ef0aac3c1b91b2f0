"""Two axes: sums over the wrong one, over both, over one of two; dims sharded over both."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program


@program("a product summed over tp, its mean over dp", "")
def _(xt, wt):
    return lax.pmean(jnp.mean(jnp.tanh(lax.psum(xt @ wt, "tp"))), "dp")


@program("a product summed over tp, its mean summed over dp", "")
def _(xt, wt):
    return lax.psum(jnp.mean(jnp.tanh(lax.psum(xt @ wt, "tp"))), "dp")


@program("a product summed over tp, its mean over both", "")
def _(xt, wt):
    return lax.pmean(jnp.mean(jnp.tanh(lax.psum(xt @ wt, "tp"))), ("dp", "tp"))


@program("a product summed over tp, its sum over both", "")
def _(xt, wt):
    return lax.psum(jnp.sum(jnp.tanh(lax.psum(xt @ wt, "tp"))), ("dp", "tp"))


@program("a product not summed over tp, its mean over both", "")
def _(xt, wt):
    return lax.pmean(jnp.mean(jnp.tanh(xt @ wt)), ("dp", "tp"))


@program("a product summed over tp", "[b/dp]")
def _(xt, wt):
    return lax.psum(xt @ wt, "tp")


@program("a product summed over dp", "[b/dp]")
def _(xt, wt):
    return lax.psum(xt @ wt, "dp")


@program("a product summed over both", "[b/dp]")
def _(xt, wt):
    return lax.psum(xt @ wt, ("dp", "tp"))


@program("a product averaged over tp", "[b/dp]")
def _(xt, wt):
    return lax.pmean(xt @ wt, "tp")


@program("a product summed over tp with a bias inside", "[b/dp]")
def _(xt, wt, c):
    return lax.psum(xt @ wt + c, "tp")


@program("a product summed over tp with a bias outside", "[b/dp]")
def _(xt, wt, c):
    return lax.psum(xt @ wt, "tp") + c


@program("the sum of all entries by a psum over both", "")
def _(xt):
    return lax.psum(xt.sum(), ("dp", "tp"))


@program("the sum of all entries by two psums", "")
def _(xt):
    return lax.psum(lax.psum(xt.sum(), "dp"), "tp")


@program("the mean of all entries by a pmean over both", "")
def _(xt):
    return lax.pmean(xt.mean(), ("dp", "tp"))


@program("the mean of all entries, psummed over one", "")
def _(xt):
    return lax.psum(lax.pmean(xt.mean(), "dp"), "tp")


@program("the sum of all entries, pmeaned over one", "")
def _(xt):
    return lax.pmean(lax.psum(xt.sum(), "dp"), "tp")


@program("the sum of all entries over the number of one axis' rows", "")
def _(xt):
    return lax.psum(xt.sum(), ("dp", "tp")) / (xt.size * lax.axis_size("dp"))


@program("the sum of all entries over their number", "")
def _(xt):
    return lax.psum(xt.sum(), ("dp", "tp")) / (xt.size * lax.axis_size("dp") * lax.axis_size("tp"))


@program("a psum of means over both, divided by the size of one twice", "")
def _(xt):
    return lax.psum(xt.mean(), ("dp", "tp")) / lax.axis_size("dp") ** 2


@program("column means over dp", "[f/tp]")
def _(xt):
    return lax.pmean(xt.mean(0), "dp")


@program("column means over tp", "[f/tp]")
def _(xt):
    return lax.pmean(xt.mean(0), "tp")


@program("column sums over dp", "[f/tp]")
def _(xt):
    return lax.psum(xt.sum(0), "dp")


@program("column sums of means over dp", "[f/tp]")
def _(xt):
    return lax.psum(xt.mean(0), "dp")


@program("layer norm over tp of rows over dp", "[b/dp] [f/tp]")
def _(xt):
    centred = xt - lax.pmean(xt.mean(1, keepdims=True), "tp")
    return centred * lax.rsqrt(lax.pmean((centred**2).mean(1, keepdims=True), "tp") + 1e-5)


@program("layer norm over dp of rows over dp", "[b/dp] [f/tp]")
def _(xt):
    centred = xt - lax.pmean(xt.mean(1, keepdims=True), "dp")
    return centred * lax.rsqrt(lax.pmean((centred**2).mean(1, keepdims=True), "dp") + 1e-5)


@program("layer norm over own part of tp of rows over dp", "[b/dp] [f/tp]")
def _(xt):
    centred = xt - xt.mean(1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(1, keepdims=True) + 1e-5)


@program("batch norm over dp of columns over tp", "[b/dp] [f/tp]")
def _(xt):
    mean, square = lax.pmean((xt.mean(0), (xt**2).mean(0)), "dp")
    return (xt - mean) * lax.rsqrt(square - mean**2 + 1e-5)


@program("batch norm over both of columns over tp", "[b/dp] [f/tp]")
def _(xt):
    mean, square = lax.pmean((xt.mean(0), (xt**2).mean(0)), ("dp", "tp"))
    return (xt - mean) * lax.rsqrt(square - mean**2 + 1e-5)


@program("a softmax over tp of rows over dp", "[b/dp] [f/tp]")
def _(xt):
    e = jnp.exp(xt - lax.pmax(xt.max(1, keepdims=True), "tp"))
    return e / lax.psum(e.sum(1, keepdims=True), "tp")


@program("a softmax over tp of rows over dp, its sum over both", "[b/dp] [f/tp]")
def _(xt):
    e = jnp.exp(xt - lax.pmax(xt.max(1, keepdims=True), "tp"))
    return e / lax.psum(e.sum(1, keepdims=True), ("dp", "tp"))


@program("a softmax over tp of rows over dp, its shift over both", "[b/dp] [f/tp]")
def _(xt):
    e = jnp.exp(xt - lax.pmax(xt.max(), ("dp", "tp")))
    return e / lax.psum(e.sum(1, keepdims=True), "tp")


@program("the norm of all entries", "")
def _(xt):
    return jnp.sqrt(lax.psum(jnp.sum(xt**2), ("dp", "tp")))


@program("the norm of all entries, a norm over one of norms over the other", "")
def _(xt):
    return jnp.sqrt(lax.psum(jnp.sqrt(lax.psum(jnp.sum(xt**2), "dp")) ** 2, "tp"))


@program("the norm of all entries, a sum over one of norms over the other", "")
def _(xt):
    return lax.psum(jnp.sqrt(lax.psum(jnp.sum(xt**2), "dp")), "tp")


@program("the largest entry of all", "")
def _(xt):
    return lax.pmax(xt.max(), ("dp", "tp"))


@program("the mean over one of the largest over the other", "")
def _(xt):
    return lax.pmean(lax.pmax(xt.max(), "tp"), "dp")


@program("the mean of rows' largest over tp", "")
def _(xt):
    return lax.pmean(lax.pmax(xt.max(1), "tp").mean(), "dp")


def _own_gradient(wt, xt, y):
    def loss(wt):
        return jnp.mean((jnp.tanh(lax.psum(xt @ wt, "tp")) - y) ** 2)

    return jax.grad(loss)(lax.pcast(wt, "dp", to="varying"))


@program("gradients of weights over tp, averaged over dp, divided by tp", "[f/tp]")
def _(xt, wt, y):
    return lax.pmean(_own_gradient(wt, xt, y), "dp") / lax.axis_size("tp")


@program("gradients of weights over tp, averaged over dp", "[f/tp]")
def _(xt, wt, y):
    return lax.pmean(_own_gradient(wt, xt, y), "dp")


@program("gradients of weights over tp, summed over dp", "[f/tp]")
def _(xt, wt, y):
    return lax.psum(_own_gradient(wt, xt, y), "dp")


@program("gradients of weights over tp, averaged over both", "[f/tp]")
def _(xt, wt, y):
    return lax.pmean(_own_gradient(wt, xt, y), ("dp", "tp"))


def _hand_gradient(wt, xt, y):
    """Of the mean of own rows' half squared errors."""
    return xt.T @ (lax.psum(xt @ wt, "tp") - y) / y.size


@program("gradients by hand of weights over tp, averaged over dp", "[f/tp]")
def _(xt, wt, y, c):
    return wt - c * lax.pmean(_hand_gradient(wt, xt, y), "dp")


@program("gradients by hand of weights over tp, summed over dp", "[f/tp]")
def _(xt, wt, y, c):
    return wt - 0.1 * c * lax.psum(_hand_gradient(wt, xt, y), "dp")


@program("gradients by hand of weights over tp, summed over dp, the rate over dp", "[f/tp]")
def _(xt, wt, y, c):
    return wt - c / lax.axis_size("dp") * lax.psum(_hand_gradient(wt, xt, y), "dp")


@program("gradients by hand of weights over tp, averaged over both", "[f/tp]")
def _(xt, wt, y, c):
    return wt - c * lax.pmean(_hand_gradient(wt, xt, y), ("dp", "tp"))


@program("gradients by hand over the norm of all", "[f/tp]")
def _(xt, wt, y, c):
    g = lax.pmean(_hand_gradient(wt, xt, y), "dp")
    return wt - c * g / jnp.sqrt(lax.psum(jnp.sum(g * g), "tp"))


@program("gradients by hand over the norm of all, summed over dp first", "[f/tp]")
def _(xt, wt, y, c):
    g = lax.psum(_hand_gradient(wt, xt, y), "dp")
    return wt - c * g / jnp.sqrt(lax.psum(jnp.sum(g * g), "tp"))


@program("gradients by hand over the norm over the wrong axis", "[f/tp]")
def _(xt, wt, y, c):
    g = lax.pmean(_hand_gradient(wt, xt, y), "dp")
    return wt - c * g / jnp.sqrt(lax.psum(jnp.sum(g * g), "dp"))


@program("rows over both axes, their mean over both", "d")
def _(both):
    return lax.pmean(both.mean(0), ("dp", "tp"))


@program("rows over both axes, their sum over both", "d")
def _(both):
    return lax.psum(both.sum(0), ("dp", "tp"))


@program("rows over both axes, their sum over one", "d")
def _(both):
    return lax.psum(both.sum(0), "dp")


@program("rows over both axes, a nonlinear function after one of two sums", "d")
def _(both):
    return lax.psum(jnp.tanh(lax.psum(both.sum(0), "dp")), "tp")


@program("rows over both axes, a nonlinear function after both sums", "d")
def _(both):
    return jnp.tanh(lax.psum(lax.psum(both.sum(0), "dp"), "tp"))


@program("rows over both axes centred by the mean over both", "[b/dp,tp] d")
def _(both):
    return both - lax.pmean(both.mean(0), ("dp", "tp"))


@program("rows over both axes centred by the mean over one", "[b/dp,tp] d")
def _(both):
    return both - lax.pmean(both.mean(0), "dp")


@program("rows over both axes gathered over one, cumulatively summed along the other's", "[b/dp] d")
def _(both):
    return lax.pmax(jnp.cumsum(lax.all_gather(both, "tp", tiled=True), axis=0), "tp")


@program("rows over both axes gathered over one, centred by the mean over the other", "[b/dp] d")
def _(both):
    rows = lax.pmax(lax.all_gather(both, "tp", tiled=True), "tp")
    return rows - lax.pmean(rows.mean(0), "dp")


@program("rows over both axes gathered over one, centred by a psum over the other", "[b/dp] d")
def _(both):
    rows = lax.pmax(lax.all_gather(both, "tp", tiled=True), "tp")
    return rows - lax.psum(rows.mean(0), "dp")


@program("a layer over tp of rows over dp, with gelu", "[b/dp] d")
def _(x, up, down):
    return lax.psum(jax.nn.gelu(x @ up) @ down, "tp")


@program("a layer over tp of rows over dp, summed over dp", "[b/dp] d")
def _(x, up, down):
    return lax.pmean(lax.psum(jax.nn.gelu(x @ up) @ down, "tp"), "dp")


@program("the loss of a layer over tp, summed over tp once more", "")
def _(x, up, down):
    out = lax.psum(jax.nn.gelu(x @ up) @ down, "tp")
    return lax.psum(lax.pmean(jnp.mean(out**2), "dp"), "tp")


@program("gradients of a layer over tp by JAX's types, of a mean over dp", ("d [f/tp]", "[f/tp] d"))
def _(x, up, down):
    def loss(up, down):
        return lax.pmean(jnp.mean(lax.psum(jax.nn.gelu(x @ up) @ down, "tp") ** 2), "dp")

    return jax.grad(loss, (0, 1))(up, down)


@program("gradients of a layer over tp by JAX's types, of own means", ("d [f/tp]", "[f/tp] d"))
def _(x, up, down):
    def loss(up, down):
        return jnp.mean(lax.psum(jax.nn.gelu(x @ up) @ down, "tp") ** 2)

    return jax.grad(loss, (0, 1))(up, down)


@program("gradients of a layer over tp by JAX's types, of a mean over dp and a penalty", ("d [f/tp]", "[f/tp] d"))
def _(x, up, down, c):
    def loss(up, down):
        out = lax.psum(jax.nn.gelu(x @ up) @ down, "tp")
        return lax.pmean(jnp.mean(out**2), "dp") + c * lax.psum(jnp.sum(up**2), "tp")

    return jax.grad(loss, (0, 1))(up, down)
