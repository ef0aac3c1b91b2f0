"""What is reported of a step: accuracies, counts, perplexities, thresholds, largest and least."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program

from typedshmap import Array, Int

from .losses import row_loss


@program("accuracy pmeaned", "")
def _(x, labels):
    return lax.pmean(jnp.mean(x.argmax(-1) == labels), "dp")


@program("accuracy psummed", "")
def _(x, labels):
    return lax.psum(jnp.mean(x.argmax(-1) == labels), "dp")


@program("right answers psummed", Int[Array, ""])
def _(x, labels):
    return lax.psum(jnp.sum(x.argmax(-1) == labels), "dp")


@program("right answers pmeaned", "")
def _(x, labels):
    return lax.pmean(jnp.sum(x.argmax(-1) == labels).astype(float), "dp")


@program("right answers over all rows", "")
def _(x, labels):
    return lax.psum(jnp.sum(x.argmax(-1) == labels), "dp") / lax.psum(labels.size, "dp")


@program("right answers over the rows of a shard", "")
def _(x, labels):
    return lax.psum(jnp.sum(x.argmax(-1) == labels), "dp") / labels.size


@program("right answers over a batch of 24", "")
def _(x, labels):
    return lax.psum(jnp.sum(x.argmax(-1) == labels), "dp") / 24


@program("the number of rows, psummed", Int[Array, ""])
def _(labels):
    return lax.psum(jnp.sum(labels >= 0), "dp")


@program("the number of rows of a shard", Int[Array, ""])
def _(labels):
    return lax.pmax(jnp.sum(labels >= 0), "dp")


@program("steps counted once for all", "")
def _(y, s):
    return s + 1 + 0 * lax.pmean(y.mean(), "dp")


@program("steps counted by every shard", "")
def _(y, s):
    return s + lax.psum(jnp.ones(()), "dp") + 0 * lax.pmean(y.mean(), "dp")


@program("perplexity of the mean loss", "")
def _(x, y, w, c):
    return jnp.exp(c * lax.pmean(jnp.mean(row_loss(w, x, y)), "dp"))


@program("the mean of own perplexities", "")
def _(x, y, w, c):
    return lax.pmean(jnp.exp(c * jnp.mean(row_loss(w, x, y))), "dp")


@program("perplexity of the summed loss", "")
def _(x, y, w, c):
    return jnp.exp(0.1 * c * lax.psum(jnp.mean(row_loss(w, x, y)), "dp"))


@program("bits per row", "")
def _(x, y, w):
    return lax.psum(jnp.sum(row_loss(w, x, y)), "dp") / lax.psum(y.size, "dp") / jnp.log(2)


@program("F1 of all by pmeans", "")
def _(x, labels):
    positive, actual = x[:, 0] > 0, labels > 3
    counts = jnp.stack([jnp.sum(positive & actual), positive.sum(), actual.sum()]).astype(float)
    hits, p, a = lax.pmean(counts, "dp")
    return 2 * hits / (p + a)


@program("F1 of own rows, pmeaned", "")
def _(x, labels):
    positive, actual = x[:, 0] > 0, labels > 3
    return lax.pmean(2 * jnp.sum(positive & actual) / (positive.sum() + actual.sum()), "dp")


@program("F1 of all with a smoothing of one", "")
def _(x, labels):
    positive, actual = x[:, 0] > 0, labels > 3
    hits, p, a = lax.psum((jnp.sum(positive & actual), positive.sum(), actual.sum()), "dp")
    return (2 * hits + 1) / (p + a + 1)


@program("F1 by pmeans with a smoothing of one", "")
def _(x, labels):
    positive, actual = x[:, 0] > 0, labels > 3
    counts = jnp.stack([jnp.sum(positive & actual), positive.sum(), actual.sum()]).astype(float)
    hits, p, a = lax.pmean(counts, "dp")
    return (2 * hits + 1) / (p + a + 1)


@program("the coefficient of determination", "")
def _(x, y, w):
    mean = lax.pmean(y.mean(), "dp")
    rest, total = lax.psum((jnp.sum((y - x @ w) ** 2), jnp.sum((y - mean) ** 2)), "dp")
    return 1 - rest / total


@program("the coefficient of determination about own mean", "")
def _(x, y, w):
    rest, total = lax.psum((jnp.sum((y - x @ w) ** 2), jnp.sum((y - y.mean()) ** 2)), "dp")
    return 1 - rest / total


@program("the largest loss", "")
def _(x, y, w):
    return lax.pmax(row_loss(w, x, y).max(), "dp")


@program("the largest of own mean losses", "")
def _(x, y, w):
    return lax.pmax(row_loss(w, x, y).mean(), "dp")


@program("the mean of own largest losses", "")
def _(x, y, w):
    return lax.pmean(row_loss(w, x, y).max(), "dp")


@program("the least loss, by a negative pmax", "")
def _(x, y, w):
    return -lax.pmax(-row_loss(w, x, y).min(), "dp")


@program("the least loss over the largest", "")
def _(x, y, w):
    losses = row_loss(w, x, y)
    return lax.pmin(losses.min(), "dp") / lax.pmax(losses.max(), "dp")


@program("the range of own rows, pmaxed", "")
def _(y):
    return lax.pmax(y.max() - y.min(), "dp")


@program("the range of all rows", "")
def _(y):
    return lax.pmax(y.max(), "dp") - lax.pmin(y.min(), "dp")


@program("the root of the largest square", "")
def _(y):
    return jnp.sqrt(lax.pmax(jnp.max(y * y), "dp"))


@program("the largest of own sums of absolute values", "")
def _(y):
    return lax.pmax(jnp.sum(jnp.abs(y)), "dp")


@program("the largest column sum of a row-sharded matrix", "")
def _(x):
    return lax.psum(jnp.abs(x).sum(0), "dp").max()


@program("the largest column sum of own rows", "")
def _(x):
    return lax.pmax(jnp.abs(x).sum(0).max(), "dp")


@program("the largest row sum of a row-sharded matrix", "")
def _(x):
    return lax.pmax(jnp.abs(x).sum(1).max(), "dp")


@program("rows above the mean of all, counted", Int[Array, ""])
def _(y):
    return lax.psum(jnp.sum(y > lax.pmean(y.mean(), "dp")), "dp")


@program("rows above own mean, counted", Int[Array, ""])
def _(y):
    return lax.psum(jnp.sum(y > y.mean()), "dp")


@program("rows above a psum of means, counted", Int[Array, ""])
def _(y):
    return lax.psum(jnp.sum(y > lax.psum(jnp.abs(y).mean(), "dp") / 2), "dp")


@program("rows above the sign of a psum of means, counted", Int[Array, ""])
def _(y):
    return lax.psum(jnp.sum(y * jnp.sign(lax.psum(y.mean(), "dp")) > 0), "dp")


@program("rows above a fixed threshold, counted", Int[Array, ""])
def _(y, c):
    return lax.psum(jnp.sum(y > c), "dp")


@program("rows above a fixed threshold on a shard, any", "")
def _(y):
    return lax.pmax(jnp.any(y > 1.0).astype(float), "dp")


@program("the number of shards with a row above a threshold", "")
def _(y):
    return lax.psum(jnp.any(y > -1.0).astype(float), "dp")


@program("the two largest of all rows", "2")
def _(y):
    best = lax.top_k(y, 2)[0]
    return lax.top_k(lax.all_gather(best, "dp", tiled=True, to="invarying"), 2)[0]


@program("the two largest of each shard, averaged", "2")
def _(y):
    return lax.pmean(lax.top_k(y, 2)[0], "dp")


@program("the sum of the two largest of each shard", "")
def _(y):
    return lax.psum(lax.top_k(y, 2)[0].sum(), "dp")


@program("a threshold by the two largest of all, then a mask", "[b/dp]")
def _(y):
    best = lax.top_k(y, 2)[0]
    least = lax.pmin(lax.top_k(lax.all_gather(best, "dp", tiled=True), 2)[0][1], "dp")
    return jnp.where(y >= least, y, 0)


@program("a threshold by the two largest of own rows, then a mask", "[b/dp]")
def _(y):
    return jnp.where(y >= lax.top_k(y, 2)[0][1], y, 0)


@program("a sigmoid of a summed score", "")
def _(y, c):
    return jax.nn.sigmoid(c * lax.psum(y.sum(), "dp"))


@program("a summed sigmoid of own scores", "")
def _(y, c):
    return lax.psum(jax.nn.sigmoid(c * y.sum()), "dp")


@program("a summed sigmoid of rows' scores", "")
def _(y, c):
    return lax.psum(jax.nn.sigmoid(c * y).sum(), "dp")
