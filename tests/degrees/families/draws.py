"""Random numbers: drawn alike on every shard for the parts of a dim, or folded by where the shard is."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program


@program("noise drawn alike for parts", "[b/dp] d", is_drawn=True)
def _(x, key):
    return x * 0 + jax.random.normal(key, x.shape)


@program("noise folded by the shard's index for parts", "[b/dp] d", is_drawn=True)
def _(x, key):
    key = jax.random.fold_in(key, lax.axis_index("dp"))
    return x * 0 + jax.random.normal(key, x.shape)


@program("noise of a key split and picked by the shard's index for parts", "[b/dp] d", is_drawn=True)
def _(x, key):
    key = jax.random.split(key, lax.axis_size("dp"))[lax.axis_index("dp")]
    return jax.random.normal(key, x.shape)


@program("noise of the first of split keys for parts", "[b/dp] d", is_drawn=True)
def _(x, key):
    key = jax.random.split(key, lax.axis_size("dp"))[0]
    return jax.random.normal(key, x.shape)


@program("noise drawn for all, own rows taken", "[b/dp] d")
def _(x, key):
    noise = jax.random.normal(key, (x.shape[0] * lax.axis_size("dp"), x.shape[1]))
    return x + lax.dynamic_slice_in_dim(noise, lax.axis_index("dp") * x.shape[0], x.shape[0])


@program("noise drawn for all, the first rows taken", "[b/dp] d")
def _(x, key):
    noise = jax.random.normal(key, (x.shape[0] * lax.axis_size("dp"), x.shape[1]))
    return x + noise[: x.shape[0]]


@program("noise folded row by row by the global index", "[b/dp] d")
def _(x, key):
    at = lax.axis_index("dp") * x.shape[0] + jnp.arange(x.shape[0])
    return x + jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i), x.shape[1:]))(at)


@program("noise folded row by row by own index", "[b/dp] d")
def _(x, key):
    return x + jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i), x.shape[1:]))(jnp.arange(x.shape[0]))


@program("dropout drawn alike on parts of rows", "[b/dp] d")
def _(x, key, c):
    return jnp.where(jax.random.bernoulli(key, 1 - c, x.shape), x, 0)


@program("dropout of columns alike on all rows", "[b/dp] d")
def _(x, key, c):
    return jnp.where(jax.random.bernoulli(key, 1 - c, x.shape[1:]), x, 0)


@program("dropout drawn alike on parts of a hidden dim", "r d")
def _(a, down, key, c):
    return lax.psum(jnp.where(jax.random.bernoulli(key, 1 - c, a.shape), a, 0) @ down, "tp")


@program("dropout on unsharded activations after a psum", "r d")
def _(a, down, key, c):
    h = lax.psum(a @ down, "tp")
    return jnp.where(jax.random.bernoulli(key, 1 - c, h.shape), h, 0)


@program("dropout alike on partial sums before a psum", "r d")
def _(a, down, key, c):
    h = a @ down
    return lax.psum(jnp.where(jax.random.bernoulli(key, 1 - c, h.shape), h, 0), "tp")


@program("dropout of own draws on partial sums before a psum", "r d")
def _(a, down, key, c):
    h = a @ down
    keep = jax.random.bernoulli(jax.random.fold_in(key, lax.axis_index("tp")), 1 - c, h.shape)
    return lax.psum(jnp.where(keep, h, 0), "tp")


@program("dropout of own draws on what every shard has", "r d")
def _(h, up, down, key, c):
    keep = jax.random.bernoulli(jax.random.fold_in(key, lax.axis_index("tp")), 1 - c, h.shape)
    return lax.psum(jnp.tanh(jnp.where(keep, h, 0) @ up) @ down, "tp")


@program("weights drawn alike, unsharded", "d d")
def _(x, key, c):
    return c * jax.random.normal(key, (8, 8)) + lax.pmean(x.T @ x / x.shape[0], "dp")


@program("weights drawn alike for parts of columns", "d [p/dp]", is_drawn=False)
def _(mp, key, c):
    return mp + c * jax.random.normal(key, mp.shape)


@program("noise added to gradients alike, after a pmean", "d")
def _(x, w, key, c):
    g = lax.pmean(jax.grad(lambda w: jnp.mean((x @ w) ** 2))(lax.pcast(w, "dp", to="varying")), "dp")
    return g + c * jax.random.normal(key, g.shape)


@program("noise added to gradients alike, before a psum", "d")
def _(x, w, key, c):
    g = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(lax.pcast(w, "dp", to="varying"))
    return lax.psum(g + c * jax.random.normal(key, g.shape), "dp")


@program("noise added to gradients alike, before a pmean", "d")
def _(x, w, key, c):
    g = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(lax.pcast(w, "dp", to="varying"))
    return lax.pmean(g + c * jax.random.normal(key, g.shape), "dp")


@program("own rows permuted alike", "[b/dp] d")
def _(x, key):
    return jax.random.permutation(key, x, axis=0)


@program("columns permuted alike", "[b/dp] d")
def _(x, key):
    return jax.random.permutation(key, x, axis=1, independent=False)


@program("one of own rows drawn alike, summed", "d")
def _(x, key):
    return lax.psum(x[jax.random.randint(key, (), 0, x.shape[0])], "dp")


@program("a mean of own noise drawn alike, pmeaned", "")
def _(x, key):
    return lax.pmean(jnp.mean(x.mean() + jax.random.normal(key, x.shape)), "dp")


@program("random features of drawn directions", "d")
def _(x, key):
    directions = jax.random.normal(key, (8, 8))
    return lax.pmean(jnp.cos(x @ directions).mean(0), "dp")


@program("sampled from logits of own rows, drawn alike", "[b/dp] d")
def _(x, key):
    return x + jax.random.gumbel(key, x.shape)


@program("stochastic depth drawn once for all", "[b/dp] d")
def _(x, key, c):
    return jnp.where(jax.random.uniform(key) < 0.5, x, c * x)
