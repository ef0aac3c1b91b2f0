"""Layers whose hidden dim, or whose heads, are sharded; with gradients, Megatron's two functions too."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program


@program("an MLP with gelu and a bias before the psum", "r d")
def _(h, up, down, bias):
    return lax.psum(jax.nn.gelu(h @ up) @ down + bias, "tp")


@program("an MLP with a scaled tanh and a bias before the psum", "r d")
def _(h, up, down, bias, c):
    return lax.psum((c * jnp.tanh(h @ up)) @ down + bias, "tp")


@program("an MLP with a hidden bias", "r d")
def _(h, up, hidden_bias, down):
    return lax.psum(jax.nn.gelu(h @ up + hidden_bias) @ down, "tp")


@program("an MLP with a gate", "r d")
def _(h, up, gate, down):
    return lax.psum((jax.nn.silu(h @ gate) * (h @ up)) @ down, "tp")


@program("an MLP with a gate, pmeaned", "r d")
def _(h, up, gate, down):
    return lax.pmean((jax.nn.silu(h @ gate) * (h @ up)) @ down, "tp")


@program("an MLP with a gate and the residual inside of the psum", "r d")
def _(h, up, gate, down):
    return lax.psum(h + (jax.nn.silu(h @ gate) * (h @ up)) @ down, "tp")


@program("an MLP with a gate and the residual outside of the psum", "r d")
def _(h, up, gate, down, c):
    return h + c * lax.psum((jax.nn.silu(h @ gate) * (h @ up)) @ down, "tp")


@program("an MLP with gelu after the second product", "r d")
def _(h, up, down):
    return lax.psum(jax.nn.gelu((h @ up) @ down), "tp")


@program("an MLP whose hidden layer is psummed", "r d")
def _(h, up, down):
    return lax.psum(lax.psum(jax.nn.gelu(h @ up), "tp") @ down, "tp")


@program("an MLP that is psummed twice", "r d")
def _(h, up, down):
    out = lax.psum(jax.nn.gelu(h @ up) @ down, "tp")
    return lax.psum(out, "tp")


@program("two MLPs, the first's psum forgotten", "r d")
def _(h, up, gate, down):
    hidden = jax.nn.gelu(h @ up) @ down
    return lax.psum(jax.nn.gelu(hidden @ gate) @ down, "tp")


@program("two MLPs", "r d")
def _(h, up, gate, down):
    hidden = lax.psum(jax.nn.gelu(h @ up) @ down, "tp")
    return lax.psum(jax.nn.gelu(hidden @ gate) @ down, "tp")


@program("two linear layers, the first's psum deferred", "r d")
def _(h, up, down, m):
    return lax.psum((h @ up) @ down @ m, "tp")


@program("attention and MLP in parallel under one psum", "r d")
def _(h, up, gate, down):
    return h + lax.psum(jnp.tanh(h @ gate) @ down + jax.nn.gelu(h @ up) @ down, "tp")


@program("attention and MLP in parallel, one summed already", "r d")
def _(h, up, gate, down):
    attention = lax.psum(jnp.tanh(h @ gate) @ down, "tp")
    return h + lax.psum(attention + jax.nn.gelu(h @ up) @ down, "tp")


@program("an MLP in a scan over layers", "r d")
def _(h, up, down, c):
    layers = jnp.stack([up, c * up])
    return lax.scan(lambda h, u: (h + lax.psum(jnp.tanh(h @ u) @ down, "tp"), None), h, layers)[0]


@program("an MLP in a scan over layers, the residual inside of the psum", "r d")
def _(h, up, down, c):
    layers = jnp.stack([up, c * up])
    return lax.scan(lambda h, u: (lax.psum(h + jnp.tanh(h @ u) @ down, "tp"), None), h, layers)[0]


@program("an MLP in a scan over layers, pmeaned", "r d")
def _(h, up, down, c):
    layers = jnp.stack([up, c * up])
    return lax.scan(lambda h, u: (h + lax.pmean(jnp.tanh(h @ u) @ down, "tp"), None), h, layers)[0]


def _attention(q, k, v):
    scores = jnp.einsum("rkd,skd->krs", q, k) / jnp.sqrt(q.shape[-1])
    return jnp.einsum("krs,skd->rkd", jax.nn.softmax(scores, axis=-1), v)


@program("attention over sharded heads", "r [k/tp] d")
def _(q):
    return _attention(q, jnp.tanh(q), jnp.sin(q))


@program("attention over sharded heads, merged and psummed", "r d")
def _(q):
    return lax.psum(_attention(q, jnp.tanh(q), jnp.sin(q)).sum(1), "tp")


@program("attention over sharded heads, merged and averaged over all heads", "r d")
def _(q):
    return lax.pmean(_attention(q, jnp.tanh(q), jnp.sin(q)).mean(1), "tp")


@program("attention over sharded heads, own averages psummed", "r d")
def _(q):
    return lax.psum(_attention(q, jnp.tanh(q), jnp.sin(q)).mean(1), "tp")


@program("scores of all heads averaged before the softmax", "r r")
def _(q):
    scores = lax.pmean(jnp.einsum("rkd,skd->rsk", q, q).mean(-1), "tp")
    return jax.nn.softmax(scores, axis=-1)


@program("scores of own heads averaged before the softmax", "r r")
def _(q):
    scores = jnp.einsum("rkd,skd->rsk", q, q).mean(-1)
    return lax.pmean(jax.nn.softmax(scores, axis=-1), "tp")


@program("scores of all heads summed, psummed", "r r")
def _(q):
    return jax.nn.softmax(lax.psum(jnp.einsum("rkd,skd->rs", q, q), "tp") / 100)


@program("scaled by a root of the heads of a shard", "r d")
def _(q):
    return lax.psum(q.sum(1), "tp") / jnp.sqrt(q.shape[1])


@program("the gradient of a bias before the psum", "d")
def _(h, up, down, bias):
    return jax.grad(lambda b: jnp.sum(jnp.tanh(lax.psum(jnp.tanh(h @ up) @ down + b, "tp"))))(bias)


@program("value and gradient of an MLP with gelu and a bias before the psum", ("", "d [f/tp]"))
def _(h, up, down, bias):
    return jax.value_and_grad(lambda up: jnp.mean(lax.psum(jax.nn.gelu(h @ up) @ down + bias, "tp") ** 2))(up)


@program("value and gradient of an MLP with gelu and a bias after the psum", ("", "d [f/tp]"))
def _(h, up, down, bias):
    return jax.value_and_grad(lambda up: jnp.mean((lax.psum(jax.nn.gelu(h @ up) @ down, "tp") + bias) ** 2))(up)


@program("value and gradient of an MLP with tanh and a bias after the psum, over the shards", ("", "d [f/tp]"))
def _(h, up, down, bias):
    def loss(up):
        return jnp.mean((lax.psum(jnp.tanh(h @ up) @ down, "tp") + bias) ** 2)

    value, g = jax.value_and_grad(loss)(up)
    return value, g / lax.axis_size("tp")


@jax.custom_vjp
def _g(x):
    """Megatron's g: a psum whose cotangent every shard has."""
    return lax.psum(x, "tp")


_g.defvjp(lambda x: (lax.psum(x, "tp"), None), lambda _, ct: (ct,))


@jax.custom_vjp
def _f(x):
    """Megatron's f: a copy whose cotangents are summed."""
    return x


_f.defvjp(lambda x: (x, None), lambda _, ct: (lax.psum(ct, "tp"),))


def _megatron(h, up, down):
    return jnp.mean(_g(jnp.tanh(_f(h) @ up) @ down) ** 2)


@program("Megatron's layer, gradients of its weights", ("d [f/tp]", "[f/tp] d"))
def _(h, up, down):
    return jax.grad(_megatron, (1, 2))(h, up, down)


@program("Megatron's layer, gradients of its input", "r d")
def _(h, up, down):
    return jax.grad(_megatron)(h, up, down)


@program("Megatron's layer without f, gradients of its input", "r d")
def _(h, up, down):
    return jax.grad(lambda h: jnp.mean(_g(jnp.tanh(h @ up) @ down) ** 2))(h)


@program("Megatron's layer, gradients of its input psummed", "r d")
def _(h, up, down):
    return lax.psum(jax.grad(_megatron)(h, up, down), "tp")


@program("Megatron's layer with a residual, gradients of its input", "r d")
def _(h, up, down):
    return jax.grad(lambda h: jnp.mean((h + _g(jnp.tanh(_f(h) @ up) @ down)) ** 2))(h)


@program("Megatron's layer with a residual and without f, gradients of its input psummed", "r d")
def _(h, up, down):
    return lax.psum(jax.grad(lambda h: jnp.mean((h + _g(jnp.tanh(h @ up) @ down)) ** 2))(h), "tp")


@program("Megatron's layer, a step on its weights", ("d [f/tp]", "[f/tp] d"))
def _(h, up, down, c):
    g = jax.grad(_megatron, (1, 2))(h, up, down)
    return up - c * g[0], down - c * g[1]


@program("a plain psum in the layer, a step on its weights", ("d [f/tp]", "[f/tp] d"))
def _(h, up, down, c):
    g = jax.grad(lambda up, down: jnp.mean(lax.psum(jnp.tanh(h @ up) @ down, "tp") ** 2), (0, 1))(up, down)
    return up - c * g[0], down - c * g[1]


@program("the norm of gradients of sharded weights by a psum", "")
def _(h, up, down):
    g = jax.grad(_megatron, 1)(h, up, down)
    return jnp.sqrt(lax.psum(jnp.sum(g * g), "tp"))


@program("the norm of gradients of sharded weights, own part", "d [f/tp]")
def _(h, up, down, c):
    g = jax.grad(_megatron, 1)(h, up, down)
    return up - c * g / jnp.sqrt(jnp.sum(g * g))


@program("gradients of sharded weights over the norm of all", "d [f/tp]")
def _(h, up, down, c):
    g = jax.grad(_megatron, 1)(h, up, down)
    return up - c * g / jnp.sqrt(lax.psum(jnp.sum(g * g), "tp"))


@program("gradients of sharded weights over the norm of all, pmeaned squares", "d [f/tp]")
def _(h, up, down, c):
    g = jax.grad(_megatron, 1)(h, up, down)
    return up - c * g / jnp.sqrt(lax.pmean(jnp.sum(g * g), "tp"))


@program("the norm of sharded and unsharded weights together", "")
def _(up, bias):
    return jnp.sqrt(lax.psum(jnp.sum(up**2), "tp") + jnp.sum(bias**2))


@program("the norm of sharded and unsharded weights together, all psummed", "")
def _(up, bias):
    return jnp.sqrt(lax.psum(jnp.sum(up**2) + jnp.sum(bias**2), "tp"))


@program("a penalty on sharded weights, own part", "")
def _(h, up, down, c):
    return jnp.mean(lax.psum(jnp.tanh(h @ up) @ down, "tp") ** 2) + c * lax.pmean(jnp.sum(up**2), "tp")


@program("a penalty on sharded weights, psummed", "")
def _(h, up, down, c):
    return jnp.mean(lax.psum(jnp.tanh(h @ up) @ down, "tp") ** 2) + c * lax.psum(jnp.sum(up**2), "tp")


@program("sequence parallel: a gather, an MLP, a reduce-scatter", "b2 [f/tp]")
def _(a, up, down):
    x = lax.all_gather(a, "tp", axis=1, tiled=True)[:, :8]
    return lax.psum_scatter(jnp.tanh(x @ up) @ down @ jnp.ones((8, 24)), "tp", scatter_dimension=1, tiled=True)


@program("sequence parallel: a reduce-scatter of what every shard has", "b2 [f/tp]")
def _(a):
    x = jnp.tanh(lax.all_gather(a, "tp", axis=1, tiled=True))
    return lax.psum_scatter(x, "tp", scatter_dimension=1, tiled=True)


@program("sequence parallel: a reduce-scatter with a bias inside", "b2 [f/tp]")
def _(a, down):
    out = (a @ down) @ jnp.ones((8, 24)) + 1.0
    return lax.psum_scatter(out, "tp", scatter_dimension=1, tiled=True)


@program("sequence parallel: a reduce-scatter with a bias after", "b2 [f/tp]")
def _(a, down):
    out = lax.psum_scatter((a @ down) @ jnp.ones((8, 24)), "tp", scatter_dimension=1, tiled=True)
    return out + 1.0


@program("scores masked before their psum", "five five")
def _(a):
    scores = jnp.where(jnp.tril(jnp.ones((5, 5), bool)), a[:5] @ a[:5].T, -1e30)
    return jax.nn.softmax(lax.psum(scores, "tp"))


@program("scores masked by minus infinity before their psum", "five five")
def _(a):
    scores = jnp.where(jnp.tril(jnp.ones((5, 5), bool)), a[:5] @ a[:5].T, -jnp.inf)
    return jax.nn.softmax(lax.psum(scores, "tp"))


@program("scores masked by one before their psum", "five five")
def _(a):
    scores = jnp.where(jnp.tril(jnp.ones((5, 5), bool)), a[:5] @ a[:5].T, 1.0)
    return jax.nn.softmax(lax.psum(scores, "tp"))
