"""What leaves as the parts of a sharded dim, and is none; what leaves as one value, and is a part."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program


@program("a psum of rows returned as parts", "[b/dp] d")
def _(x):
    return lax.psum(x, "dp")


@program("a pmean of rows returned as parts", "[b/dp] d")
def _(x):
    return lax.pmean(x, "dp")


@program("a pmean of rows added to parts", "[b/dp] d")
def _(x, c):
    return x + c * lax.pmean(x, "dp")


@program("a pmax of rows returned as parts", "[b/dp] d")
def _(x):
    return lax.pmax(x, "dp")


@program("a pmean of all rows added to parts", "[b/dp] d")
def _(x, c):
    return x + c * lax.pmean(x.mean(0), "dp")


@program("a psum of all columns added to parts over tp", "r [f/tp]")
def _(a):
    return a + lax.psum(a.sum(1, keepdims=True), "tp")


@program("a sum over shards of parts, folded, then summed", "d")
def _(x):
    return lax.psum(x, "dp").sum(0)


@program("a sum over shards of parts, folded, then averaged", "d")
def _(x):
    return lax.psum(x, "dp").mean(0)


@program("a sum over shards of parts, folded, then averaged over all", "d")
def _(x):
    return lax.psum(x, "dp").mean(0) / lax.axis_size("dp")


@program("a sum over shards of parts, folded, its largest", "d")
def _(x):
    return lax.psum(x, "dp").max(0)


@program("a sum over shards of parts, folded, squared, then summed", "d")
def _(x):
    return (lax.psum(x, "dp") ** 2).sum(0)


@program("a maximum over shards of parts, folded, then its largest", "d")
def _(x):
    return lax.pmax(x, "dp").max(0)


@program("the first rows of unsharded rows returned as parts", "[b/dp] d")
def _(x, rows):
    return x + rows[: x.shape[0]]


@program("own rows of unsharded rows returned as parts", "[b/dp] d")
def _(x, rows):
    at = lax.axis_index("dp") * x.shape[0]
    return x + lax.dynamic_slice_in_dim(rows, at, x.shape[0])


@program("the first rows of unsharded rows alone returned as parts", "[b/dp] d")
def _(x, rows):
    return rows[: x.shape[0]]


@program("zeros returned as parts", "[b/dp] d")
def _(x):
    return jnp.zeros_like(x)


@program("a weight repeated along the sharded dim", "[b/dp] d")
def _(x, w):
    return jnp.broadcast_to(w, x.shape)


@program("an arange returned as parts", "[b/dp]")
def _(y):
    return jnp.arange(y.size, dtype=float)


@program("a global arange returned as parts", "[b/dp]")
def _(y):
    return lax.axis_index("dp") * y.size + jnp.arange(y.size, dtype=float)


@program("a linspace returned as parts", "[b/dp]")
def _(y):
    return y + jnp.linspace(0, 1, y.size)


@program("an identity matrix's rows returned as parts", "[b/dp] d")
def _(x):
    return x + jnp.eye(*x.shape)


@program("own rows of gathered rows returned", "[b/dp] d")
def _(x):
    rows = lax.all_gather(x, "dp", tiled=True)
    return lax.dynamic_slice_in_dim(jnp.cumsum(rows, axis=0), lax.axis_index("dp") * x.shape[0], x.shape[0])


@program("the first rows of gathered rows returned", "[b/dp] d")
def _(x):
    return lax.all_gather(x, "dp", tiled=True)[: x.shape[0]]


@program("own row block of gathered rows by index", "[b/dp] d")
def _(x):
    return lax.all_gather(x, "dp")[lax.axis_index("dp")]


@program("the first row block of gathered rows", "[b/dp] d")
def _(x):
    return lax.all_gather(x, "dp")[0]


@program("the mean of gathered row blocks", "[b/dp] d")
def _(x):
    return lax.all_gather(x, "dp").mean(0)


@program("the mean of gathered rows", "d")
def _(x):
    return lax.pmean(lax.all_gather(x, "dp", tiled=True).mean(0), "dp")


@program("the mean of gathered means", "d")
def _(x):
    return lax.pmean(lax.all_gather(x.mean(0), "dp").mean(0), "dp")


@program("the sum of gathered means", "d")
def _(x):
    return lax.pmean(lax.all_gather(x.mean(0), "dp").sum(0), "dp")


@program("the sum of gathered sums, psummed", "d")
def _(x):
    return lax.psum(lax.all_gather(x.sum(0), "dp").sum(0), "dp")


@program("the mean of gathered sums", "d")
def _(x):
    return lax.pmean(lax.all_gather(x.sum(0), "dp").mean(0), "dp")


@program("the largest of gathered maxima", "d")
def _(x):
    return lax.pmax(lax.all_gather(x.max(0), "dp").max(0), "dp")


@program("the largest of gathered sums", "d")
def _(x):
    return lax.pmax(lax.all_gather(x.sum(0), "dp").max(0), "dp")


@program("the variance of gathered rows", "d")
def _(x):
    return lax.pmean(lax.all_gather(x, "dp", tiled=True).var(0), "dp")


@program("the variance of gathered means", "d")
def _(x):
    return lax.pmean(lax.all_gather(x.mean(0), "dp").var(0), "dp")


@program("the sum of gathered tanhs of sums", "d")
def _(x):
    return lax.pmean(lax.all_gather(jnp.tanh(x.sum(0)), "dp").sum(0), "dp")


@program("the tanh of the sum of gathered sums", "d")
def _(x):
    return lax.pmean(jnp.tanh(lax.all_gather(x.sum(0), "dp").sum(0)), "dp")


@program("the first of gathered sums", "d")
def _(x):
    return lax.pmean(lax.all_gather(x.sum(0), "dp")[0], "dp")


@program("gathered rows returned", "b d")
def _(x, c):
    return lax.all_gather(c * x, "dp", tiled=True, to="invarying")


@program("gathered norms of own rows' blocks returned as they are", "")
def _(x):
    return jnp.prod(lax.all_gather(jnp.linalg.norm(x), "dp", to="invarying"))


@program("the norm of gathered norms", "")
def _(x):
    return jnp.linalg.norm(lax.all_gather(jnp.linalg.norm(x), "dp", to="invarying"))


@program("the mean of rows returned as it is", "d")
def _(x):
    return x.mean(0)


@program("the first row of all rows", "d")
def _(x):
    return lax.psum(jnp.where(lax.axis_index("dp") == 0, x[0], 0), "dp")


@program("the first rows of shards, summed", "d")
def _(x):
    return lax.psum(x[0], "dp")


@program("the last shard's mean broadcast", "d")
def _(x):
    is_last = lax.axis_index("dp") == lax.axis_size("dp") - 1
    return lax.psum(jnp.where(is_last, x.mean(0), 0), "dp")


@program("a reduce-scatter of unsharded rows", "[b/dp] d")
def _(x, rows):
    return x + lax.psum_scatter(rows, "dp", scatter_dimension=0, tiled=True)


@program("a reduce-scatter of unsharded rows, divided by the shards", "[b/dp] d")
def _(x, rows):
    return x + lax.psum_scatter(rows, "dp", scatter_dimension=0, tiled=True) / lax.axis_size("dp")


@program("a reduce-scatter of own products", "[p/dp] d")
def _(x, z):
    return lax.psum_scatter(jnp.tile(x.T @ z, (3, 1)), "dp", scatter_dimension=0, tiled=True)


@program("a reduce-scatter of own products over the rows of a shard", "[p/dp] d")
def _(x, z):
    return lax.psum_scatter(jnp.tile(x.T @ z, (3, 1)), "dp", scatter_dimension=0, tiled=True) / x.shape[0]


@program("a reduce-scatter of tanhs of own products", "[p/dp] d")
def _(x, z):
    return lax.psum_scatter(jnp.tile(jnp.tanh(x.T @ z), (3, 1)), "dp", scatter_dimension=0, tiled=True)


@program("a reduce-scatter and a gather", "24 d")
def _(x, z):
    part = lax.psum_scatter(jnp.tile(x.T @ z, (3, 1)), "dp", scatter_dimension=0, tiled=True)
    return lax.all_gather(part, "dp", tiled=True, to="invarying")


@program("a reduce-scatter and a gather with tanh in between", "24 d")
def _(x, z):
    part = lax.psum_scatter(jnp.tile(x.T @ z, (3, 1)), "dp", scatter_dimension=0, tiled=True)
    return lax.all_gather(jnp.tanh(part), "dp", tiled=True, to="invarying")


@program("an all_to_all and back", "[b/dp] d24")
def _(x, mp, m):
    h = x @ m @ jnp.ones((8, 24))
    swapped = lax.all_to_all(h, "dp", split_axis=1, concat_axis=0, tiled=True)
    return lax.all_to_all(jnp.cumsum(swapped, axis=0), "dp", split_axis=0, concat_axis=1, tiled=True)


def _wide(x, m):
    return x @ m @ jnp.arange(192.0).reshape(8, 24) / 100


@program("an all_to_all and back with a cumsum along the wrong dim", "[b/dp] d24")
def _(x, m):
    swapped = lax.all_to_all(_wide(x, m), "dp", split_axis=1, concat_axis=0, tiled=True)
    return lax.all_to_all(jnp.cumsum(swapped, axis=1), "dp", split_axis=0, concat_axis=1, tiled=True)


@program("an all_to_all to columns", "b [p/dp]")
def _(x, m):
    return lax.all_to_all(_wide(x, m), "dp", split_axis=1, concat_axis=0, tiled=True)


@program("an all_to_all to columns, then a mean over rows", "[p/dp]")
def _(x, m):
    return lax.all_to_all(_wide(x, m), "dp", split_axis=1, concat_axis=0, tiled=True).mean(0)


@program("a mean over own rows, then parts of columns", "[p/dp]")
def _(x, m):
    return lax.psum_scatter(_wide(x, m).mean(0), "dp", tiled=True)


@program("a mean over own rows, then parts of columns, over the shards", "[p/dp]")
def _(x, m):
    return lax.psum_scatter(_wide(x, m).mean(0), "dp", tiled=True) / lax.axis_size("dp")


@program("jax.nn.standardize over rows of all, by a gather", "[b/dp] d")
def _(x):
    rows = jax.nn.standardize(lax.all_gather(x, "dp", tiled=True), axis=0)
    return lax.dynamic_slice_in_dim(rows, lax.axis_index("dp") * x.shape[0], x.shape[0])


@program("jax.nn.standardize over own rows", "[b/dp] d")
def _(x):
    return jax.nn.standardize(x, axis=0)
