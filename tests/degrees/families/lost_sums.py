"""A partial sum, of a contraction over a sharded dim or of rows, and what loses it before it is summed."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program


@program("a contraction over a sharded dim, psummed", "r d")
def _(a, down):
    return lax.psum(a @ down, "tp")


@program("a contraction over a sharded dim, scaled and psummed", "r d")
def _(a, down, c):
    return lax.psum(c * (a @ down), "tp")


@program("a contraction over a sharded dim, pmeaned", "r d")
def _(a, down):
    return lax.pmean(a @ down, "tp")


@program("a contraction over a sharded dim, psummed and divided by its size", "r d")
def _(a, down):
    return lax.psum(a @ down, "tp") / (a.shape[1] * lax.axis_size("tp"))


@program("a contraction over a sharded dim, psummed and divided by its size on a shard", "r d")
def _(a, down):
    return lax.psum(a @ down, "tp") / a.shape[1]


@program("attention-like scaling by a root of the size on a shard", "r d")
def _(a, down):
    return lax.psum(a @ down, "tp") / jnp.sqrt(a.shape[1])


@program("attention-like scaling by a root of the global size", "r d")
def _(a, down):
    return lax.psum(a @ down, "tp") / jnp.sqrt(a.shape[1] * lax.axis_size("tp"))


@program("tanh of parts, psummed", "r d")
def _(a, down):
    return lax.psum(jnp.tanh(a @ down), "tp")


@program("relu of parts, psummed", "r d")
def _(a, down):
    return lax.psum(jnp.maximum(a @ down, 0), "tp")


@program("the square of parts, psummed", "r d")
def _(a, down):
    return lax.psum((a @ down) ** 2, "tp")


@program("the product of two parts, psummed", "r d")
def _(a, down, up):
    return lax.psum((a @ down) * (a @ up.T), "tp")


@program("the product of two sums", "r d")
def _(a, down, up):
    return lax.psum(a @ down, "tp") * lax.psum(a @ up.T, "tp")


@program("the product of a sum and parts, psummed", "r d")
def _(a, down, up):
    return lax.psum(lax.psum(a @ down, "tp") * (a @ up.T), "tp")


@program("the product of a sum and parts, psummed, in gelu", "r d")
def _(a, down, up):
    return jax.nn.gelu(lax.psum(lax.psum(a @ down, "tp") * (a @ up.T), "tp"))


@program("a bias added to parts, psummed", "r d")
def _(a, down, bias, c):
    return lax.psum(a @ down + c * bias, "tp")


@program("a bias added to a sum", "r d")
def _(a, down, bias, c):
    return lax.psum(a @ down, "tp") + c * bias


@program("a bias on one shard only added to parts, psummed", "r d")
def _(a, down, bias, c):
    first = lax.axis_index("tp") == 0
    return lax.psum(a @ down + jnp.where(first, c * bias, 0), "tp")


@program("a bias over the shards added to parts, psummed", "r d")
def _(a, down, bias):
    return lax.psum(a @ down + bias / lax.axis_size("tp"), "tp")


@program("a residual added to parts, pmeaned", "r d")
def _(h, a, down):
    return lax.pmean(h + a @ down, "tp")


@program("parts masked by a mask that all shards have, psummed", "r d")
def _(h, a, down):
    return lax.psum(jnp.where(h > 0, a @ down, 0), "tp")


@program("parts chosen over a residual, psummed", "r d")
def _(h, a, down):
    return lax.psum(jnp.where(h > 0, a @ down, h), "tp")


@program("a sum chosen over a residual", "r d")
def _(h, a, down):
    return jnp.where(h > 0, lax.psum(a @ down, "tp"), h)


@program("parts masked by their own sign, psummed", "r d")
def _(a, down):
    parts = a @ down
    return lax.psum(jnp.where(parts > 0, parts, 0.1 * parts), "tp")


@program("parts of which the first shard's are left out, psummed", "r d")
def _(a, down):
    parts = a @ down
    return lax.psum(jnp.where(lax.axis_index("tp") == 0, 0 * parts, parts), "tp")


@program("parts scaled by the shard's index, psummed", "r d")
def _(a, down):
    return lax.psum((1 + lax.axis_index("tp")) * (a @ down), "tp")


@program("parts scaled by the shard's own largest weight, psummed", "r d")
def _(a, down):
    return lax.psum((a @ down) * jnp.abs(down).max(), "tp")


@program("parts scaled by the largest weight of all, psummed", "r d")
def _(a, down):
    return lax.psum((a @ down) * lax.pmax(jnp.abs(down).max(), "tp"), "tp")


@program("parts quantised by the shard's own scale and put back, psummed", "r d")
def _(a, down):
    scale = jnp.abs(down).max()
    return lax.psum((a @ (down / scale)) * scale, "tp")


@program("parts quantised by the shard's own scale, psummed", "r d")
def _(a, down):
    scale = jnp.abs(down).max()
    return lax.psum(a @ (down / scale), "tp")


@program("parts over their own norm, psummed", "r d")
def _(a, down):
    parts = a @ down
    return lax.psum(parts / jnp.linalg.norm(parts), "tp")


@program("a sum over its norm", "r d")
def _(a, down):
    total = lax.psum(a @ down, "tp")
    return total / jnp.linalg.norm(total)


@program("parts over a norm of the sum, psummed", "r d")
def _(a, down):
    parts = a @ down
    norm = jnp.linalg.norm(lax.psum(parts, "tp"))
    return lax.psum(parts / norm, "tp")


@program("parts that are rolled along another dim, psummed", "r d")
def _(a, down):
    return lax.psum(jnp.roll(a @ down, 1, axis=1), "tp")


@program("parts that are rolled by the shard's index, psummed", "r d")
def _(a, down):
    return lax.psum(jnp.roll(a @ down, lax.axis_index("tp"), axis=1), "tp")


@program("parts of which each shard takes its own row, psummed", "d")
def _(a, down):
    return lax.psum((a @ down)[lax.axis_index("tp")], "tp")


@program("parts scattered at own places, psummed", "r d")
def _(a, down):
    at = lax.axis_index("tp")
    return lax.psum(jnp.zeros((6, 8)).at[at].add((a @ down)[0]), "tp")


@program("parts scattered at places that all shards have, psummed", "r d")
def _(a, down, ids):
    return lax.psum(jnp.zeros((6, 8)).at[ids % 6].add(a @ down), "tp")


@program("parts sorted, psummed", "r d")
def _(a, down):
    return lax.psum(jnp.sort(a @ down, axis=1), "tp")


@program("parts summed along another dim cumulatively, psummed", "r d")
def _(a, down):
    return lax.psum(jnp.cumsum(a @ down, axis=1), "tp")


@program("parts under a softmax, psummed", "r d")
def _(a, down):
    return lax.psum(jax.nn.softmax(a @ down), "tp")


@program("a sum under a softmax", "r d")
def _(a, down):
    return jax.nn.softmax(lax.psum(a @ down, "tp"))


@program("parts in the exponent, multiplied by their psum", "r d")
def _(a, down):
    return jnp.exp(lax.psum(0.1 * (a @ down), "tp"))


@program("the logarithm of a product over shards", "r")
def _(a):
    return lax.psum(jnp.sum(jnp.log(jnp.abs(a) + 1), axis=1), "tp")


@program("the product over a sharded dim by logarithms", "r")
def _(a):
    return jnp.exp(lax.psum(jnp.sum(jnp.log(jnp.abs(a) + 0.5), axis=1), "tp"))


@program("the product of own entries, psummed", "r")
def _(a):
    return lax.psum(jnp.prod(jnp.abs(a) + 0.5, axis=1), "tp")


@program("parts cast to complex numbers, psummed", "r d")
def _(a, down):
    return lax.psum((a @ down).astype(jnp.complex64), "tp").real


@program("parts reshaped, transposed and sliced, psummed", "d r2")
def _(a, down):
    return lax.psum((a @ down).reshape(3, 2, 8)[1].T, "tp")


@program("the difference of parts and a share of a sum, psummed", "r d")
def _(a, down):
    parts = a @ down
    total = lax.psum(parts, "tp")
    return lax.psum(parts - total / lax.axis_size("tp"), "tp") + total


@program("the squared distance of parts from a sum, psummed", "r d")
def _(a, down):
    parts = a @ down
    return lax.psum((parts - lax.psum(parts, "tp")) ** 2, "tp")


@program("parts returned without a psum", "r d")
def _(a, down):
    return a @ down


@program("tanh of a sum that forgot its psum", "r d")
def _(a, down, c):
    return jnp.tanh(c * (a @ down))


@program("the largest of parts", "r d")
def _(a, down):
    return lax.pmax(a @ down, "tp")
