"""Sums that a mark says are due, by `check` or by an operation of the library, and what is done with them."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program

from typedshmap import check, einsum, psum, psum_scatter, reduce, take

DUE = "r [f/tp], [f/tp] d -> r d +tp"


@program("a marked sum, psummed", "r d")
def _(a, down, c):
    return lax.psum(c * check(a @ down, "r d +tp"), "tp")


@program("a marked sum with a bias inside", "r d")
def _(a, down, bias, c):
    return lax.psum(check(a @ down, "r d +tp") + c * bias, "tp")


@program("a marked sum with a bias outside", "r d")
def _(a, down, bias, c):
    return lax.psum(check(a @ down, "r d +tp"), "tp") + c * bias


@program("a marked sum under tanh", "r d")
def _(a, down):
    return lax.psum(jnp.tanh(check(a @ down, "r d +tp")), "tp")


@program("a marked sum squared", "r d")
def _(a, down):
    return lax.psum(check(a @ down, "r d +tp") ** 2, "tp")


@program("a marked sum times its own sum", "r d")
def _(a, down):
    due = check(a @ down, "r d +tp")
    return lax.psum(due * lax.psum(due, "tp"), "tp")


@program("a marked sum times the shard's own scalar", "r d")
def _(a, down):
    return lax.psum(check(a @ down, "r d +tp") * down[0, 0], "tp")


@program("a marked sum times the shard's index", "r d")
def _(a, down):
    return lax.psum(check(a @ down, "r d +tp") * (1 + lax.axis_index("tp")), "tp")


@program("a marked sum times what every shard has", "r d")
def _(a, down, bias):
    return lax.psum(check(a @ down, "r d +tp") * bias, "tp")


@program("a marked sum masked by axis_index", "r d")
def _(a, down):
    due = check(a @ down, "r d +tp")
    return lax.psum(jnp.where(lax.axis_index("tp") == 0, due, 0), "tp")


@program("a marked sum masked by what every shard has", "r d")
def _(h, a, down):
    return lax.psum(jnp.where(h > 0, check(a @ down, "r d +tp"), 0), "tp")


@program("a marked sum sliced by axis_index", "d")
def _(a, down):
    return lax.psum(check(a @ down, "r d +tp")[lax.axis_index("tp")], "tp")


@program("a marked sum sliced by a number", "d")
def _(a, down):
    return lax.psum(check(a @ down, "r d +tp")[2], "tp")


@program("a marked sum rolled by axis_index", "r d")
def _(a, down):
    return lax.psum(jnp.roll(check(a @ down, "r d +tp"), lax.axis_index("tp"), axis=0), "tp")


@program("a marked sum rolled by a number", "r d")
def _(a, down):
    return lax.psum(jnp.roll(check(a @ down, "r d +tp"), 1, axis=0), "tp")


@program("a marked sum scattered at own places", "24 d")
def _(a, down):
    due = check(a @ down, "r d +tp")
    return lax.psum(jnp.zeros((24, 8)).at[lax.axis_index("tp") + jnp.arange(6)].add(due), "tp")


@program("a marked sum scattered at places that all shards have", "24 d")
def _(a, down, ids):
    return lax.psum(jnp.zeros((24, 8)).at[ids].add(check(a @ down, "r d +tp")), "tp")


@program("a marked sum divided by its size on a shard", "r d")
def _(a, down):
    return lax.psum(check(a @ down, "r d +tp") / a.shape[1], "tp")


@program("a marked sum divided by its global size", "r d")
def _(a, down):
    return lax.psum(check(a @ down, "r d +tp") / (a.shape[1] * lax.axis_size("tp")), "tp")


@program("a marked sum pmeaned", "r d")
def _(a, down):
    return lax.pmean(check(a @ down, "r d +tp"), "tp")


@program("a marked sum psummed twice", "r d")
def _(a, down):
    return lax.psum(lax.psum(check(a @ down, "r d +tp"), "tp"), "tp")


@program("a marked sum passed on by a ring", "r d")
def _(a, down):
    n = lax.axis_size("tp")
    due = check(a @ down, "r d +tp")
    return lax.psum(lax.ppermute(due, "tp", [(i, (i + 1) % n) for i in range(n)]), "tp")


@program("einsum that leaves its sum due, psummed", "r d")
def _(a, down, c):
    return psum(c * einsum(a, down, DUE), "r d +tp -> r d")


@program("einsum that sums", "r d")
def _(a, down, bias):
    return einsum(a, down, "r [f/tp], [f/tp] d -> r d") + bias


@program("einsum that sums, psummed once more", "r d")
def _(a, down):
    return lax.psum(einsum(a, down, "r [f/tp], [f/tp] d -> r d"), "tp")


@program("einsum that leaves its result varying, scaled and psummed", "r d")
def _(a, down, c):
    return lax.psum(c * einsum(a, down, "r [f/tp], [f/tp] d -> r d ~tp"), "tp")


@program("einsum that leaves its result varying, under tanh, psummed", "r d")
def _(a, down, c):
    return lax.psum(jnp.tanh(c * einsum(a, down, "r [f/tp], [f/tp] d -> r d ~tp")), "tp")


@program("einsum that scatters its sum", "r [n/tp]")
def _(a):
    return einsum(a, a.T @ jnp.ones((6, 24)), "r [f/tp], [f/tp] n -> r [n/tp]")


@program("einsum that leaves its sum due, scattered", "r [n/tp]")
def _(a):
    due = einsum(a, jnp.tanh(a.T) @ jnp.ones((6, 24)), "r [f/tp], [f/tp] n -> r n +tp")
    return psum_scatter(due, "r n +tp -> r [n/tp]")


@program("einsum that leaves its sum due, tanh, scattered", "r [n/tp]")
def _(a):
    due = einsum(a, jnp.tanh(a.T) @ jnp.ones((6, 24)), "r [f/tp], [f/tp] n -> r n +tp")
    return lax.psum_scatter(jnp.tanh(due), "tp", scatter_dimension=1, tiled=True)


@program("take that leaves its sum due, psummed", "r d")
def _(table, ids, bias):
    return lax.psum(take(table, ids, "[n/tp] d, r -> r d +tp"), "tp") + bias


@program("take that leaves its sum due, with a bias inside", "r d")
def _(table, ids, bias):
    return lax.psum(take(table, ids, "[n/tp] d, r -> r d +tp") + bias, "tp")


@program("take that sums, normalised", "r d")
def _(table, ids):
    h = take(table, ids, "[n/tp] d, r -> r d")
    return h / jnp.linalg.norm(h, axis=1, keepdims=True)


@program("a reduce that sums, over the rows of a shard", "d")
def _(x):
    return reduce(x, "[b/dp] d -> d", "sum") / x.shape[0]


@program("a reduce that sums, over the rows of all", "d")
def _(x):
    return reduce(x, "[b/dp] d -> d", "sum") / (x.shape[0] * lax.axis_size("dp"))


@program("a reduce that averages", "d")
def _(x, c):
    return c * reduce(x, "[b/dp] d -> d", "mean")


@program("a reduce that averages, psummed", "d")
def _(x, c):
    return lax.psum(c * reduce(x, "[b/dp] d -> d", "mean"), "dp")


@program("a loss that is due, differentiated and psummed", "d")
def _(x, y, w):
    g = jax.grad(lambda w: check(jnp.sum((x @ w - y) ** 2), "+dp"))(lax.pcast(w, "dp", to="varying"))
    return lax.psum(g, "dp")


@program("a loss that is due over all rows, differentiated and psummed", "d")
def _(x, y, w):
    rows = y.size * lax.axis_size("dp")
    g = jax.grad(lambda w: check(jnp.sum((x @ w - y) ** 2) / rows, "+dp"))(lax.pcast(w, "dp", to="varying"))
    return lax.psum(g, "dp")


@program("a loss that is due over the rows of a shard, differentiated and psummed", "d")
def _(x, y, w):
    g = jax.grad(lambda w: check(jnp.mean((x @ w - y) ** 2), "+dp"))(lax.pcast(w, "dp", to="varying"))
    return lax.psum(g, "dp")


@program("a loss that is due with a penalty beside it, differentiated and psummed", "d")
def _(x, y, w, c):
    def loss(w):
        return check(jnp.sum((x @ w - y) ** 2), "+dp") + c * jnp.sum(w * w)

    return lax.psum(jax.grad(loss)(lax.pcast(w, "dp", to="varying")), "dp")
