"""Statistics of all rows, merged from those of shards: some merge right, some look as if they did."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program


@program("variance about the global mean", "d")
def _(x):
    mean = lax.pmean(x.mean(0), "dp")
    return lax.pmean(((x - mean) ** 2).mean(0), "dp")


@program("variance about the global mean, psummed means", "d")
def _(x):
    mean = lax.pmean(x.mean(0), "dp")
    return lax.psum(((x - mean) ** 2).mean(0), "dp")


@program("variance about a psum of means", "d")
def _(x):
    mean = lax.psum(x.mean(0), "dp")
    return lax.pmean(((x - mean) ** 2).mean(0), "dp")


@program("variance about own mean", "d")
def _(x):
    return lax.pmean(((x - x.mean(0)) ** 2).mean(0), "dp")


@program("within plus between variance", "d")
def _(x):
    own = x.mean(0)
    within = lax.pmean(x.var(0), "dp")
    between = lax.pmean(own**2, "dp") - lax.pmean(own, "dp") ** 2
    return within + between


@program("between variance alone", "d")
def _(x):
    own = x.mean(0)
    return lax.pmean(own**2, "dp") - lax.pmean(own, "dp") ** 2


@program("moments by psums over the rows of all", "d")
def _(x):
    rows = lax.psum(x.shape[0], "dp")
    first, second = lax.psum(x.sum(0), "dp") / rows, lax.psum((x * x).sum(0), "dp") / rows
    return second - first**2


@program("moments by psums over the rows of a shard", "d")
def _(x):
    first, second = lax.psum(x.sum(0), "dp") / x.shape[0], lax.psum((x * x).sum(0), "dp") / x.shape[0]
    return second - first**2


@program("moments, the first psummed and the second pmeaned", "d")
def _(x):
    return lax.pmean((x * x).mean(0), "dp") - lax.psum(x.mean(0), "dp") ** 2


@program("moments in one collective", "d")
def _(x):
    first, second = lax.pmean(jnp.stack([x.mean(0), (x * x).mean(0)]), "dp")
    return second - first**2


@program("Chan's merge by sums of squares", "d")
def _(x):
    rows, own = x.shape[0], x.mean(0)
    mean = lax.pmean(own, "dp")
    squares = lax.psum(((x - own) ** 2).sum(0) + rows * (own - mean) ** 2, "dp")
    return squares / lax.psum(rows, "dp")


@program("Chan's merge that forgets the rows", "d")
def _(x):
    rows, own = x.shape[0], x.mean(0)
    mean = lax.pmean(own, "dp")
    squares = lax.psum(((x - own) ** 2).sum(0) + (own - mean) ** 2, "dp")
    return squares / lax.psum(rows, "dp")


@program("an unbiased variance of all rows", "d")
def _(x):
    rows = x.shape[0] * lax.axis_size("dp")
    mean = lax.pmean(x.mean(0), "dp")
    return lax.psum(((x - mean) ** 2).sum(0), "dp") / (rows - 1)


@program("an unbiased variance by the rows of a shard", "d")
def _(x):
    mean = lax.pmean(x.mean(0), "dp")
    return lax.pmean(((x - mean) ** 2).sum(0) / (x.shape[0] - 1), "dp")


@program("a standard deviation of all rows", "d")
def _(x):
    mean = lax.pmean(x.mean(0), "dp")
    return jnp.sqrt(lax.pmean(((x - mean) ** 2).mean(0), "dp"))


@program("the pmean of own standard deviations", "d")
def _(x):
    return lax.pmean(x.std(0), "dp")


@program("the root of the pmean of own variances", "d")
def _(x):
    return jnp.sqrt(lax.pmean(x.var(0), "dp"))


@program("the harmonic mean of all", "")
def _(y):
    return 1 / lax.pmean(jnp.mean(1 / (jnp.abs(y) + 1)), "dp")


@program("the pmean of own harmonic means", "")
def _(y):
    return lax.pmean(1 / jnp.mean(1 / (jnp.abs(y) + 1)), "dp")


@program("the harmonic mean of own harmonic means", "")
def _(y):
    own = 1 / jnp.mean(1 / (jnp.abs(y) + 1))
    return 1 / lax.pmean(1 / own, "dp")


@program("the geometric mean of all", "")
def _(y):
    return jnp.exp(lax.pmean(jnp.mean(jnp.log(jnp.abs(y) + 1)), "dp"))


@program("the pmean of own geometric means", "")
def _(y):
    return lax.pmean(jnp.exp(jnp.mean(jnp.log(jnp.abs(y) + 1))), "dp")


@program("the geometric mean of own geometric means", "")
def _(y):
    own = jnp.exp(jnp.mean(jnp.log(jnp.abs(y) + 1)))
    return jnp.exp(lax.pmean(jnp.log(own), "dp"))


@program("a root mean square of own root mean squares", "")
def _(y):
    own = jnp.sqrt(jnp.mean(y * y))
    return jnp.sqrt(lax.pmean(own**2, "dp"))


@program("the psum of own norms", "")
def _(y):
    return lax.psum(jnp.linalg.norm(y), "dp")


@program("a norm of own norms", "")
def _(y):
    return jnp.sqrt(lax.psum(jnp.linalg.norm(y) ** 2, "dp"))


@program("a weighted mean, own weights merged by their sums", "")
def _(y, x):
    weights = jnp.exp(x[:, 0])
    own, total = jnp.sum(weights * y) / jnp.sum(weights), jnp.sum(weights)
    return lax.psum(own * total, "dp") / lax.psum(total, "dp")


@program("a weighted mean, own means averaged", "")
def _(y, x):
    weights = jnp.exp(x[:, 0])
    return lax.pmean(jnp.sum(weights * y) / jnp.sum(weights), "dp")


@program("a weighted mean by two pmeans", "")
def _(y, x):
    weights = jnp.exp(x[:, 0])
    return lax.pmean(jnp.sum(weights * y), "dp") / lax.pmean(jnp.sum(weights), "dp")


@program("a weighted mean, weights normalised by own sum", "")
def _(y, x):
    weights = jnp.exp(x[:, 0])
    weights = weights / weights.sum()
    return lax.psum(jnp.sum(weights * y), "dp")


@program("a weighted mean, weights normalised by the sum of all", "")
def _(y, x):
    weights = jnp.exp(x[:, 0])
    weights = weights / lax.psum(weights.sum(), "dp")
    return lax.psum(jnp.sum(weights * y), "dp")


@program("a weighted mean, weights normalised by the sum of all, pmeaned", "")
def _(y, x):
    weights = jnp.exp(x[:, 0])
    weights = weights / lax.psum(weights.sum(), "dp")
    return lax.pmean(jnp.sum(weights * y), "dp")


@program("a masked mean, counts psummed", "")
def _(y, labels):
    mask = labels > 3
    return lax.psum(jnp.sum(y * mask), "dp") / jnp.maximum(lax.psum(mask.sum(), "dp"), 1)


@program("a masked mean, own counts", "")
def _(y, labels):
    mask = labels > 3
    return lax.pmean(jnp.sum(y * mask) / jnp.maximum(mask.sum(), 1), "dp")


@program("a masked mean, a psum over own counts", "")
def _(y, labels):
    mask = labels > 3
    return lax.psum(jnp.sum(y * mask), "dp") / jnp.maximum(mask.sum(), 1)


@program("a masked mean, pmeans of sum and count", "")
def _(y, labels):
    mask = labels > 3
    return lax.pmean(jnp.sum(y * mask), "dp") / lax.pmean(mask.sum().astype(float), "dp")


@program("a masked mean, psum and pmean", "")
def _(y, labels):
    mask = labels > 3
    return lax.psum(jnp.sum(y * mask), "dp") / lax.pmean(mask.sum().astype(float), "dp")


@program("a masked mean by where=", "")
def _(y, labels):
    return lax.pmean(jnp.sum(y, where=labels > 3) / (1 + jnp.sum(labels > 3)), "dp")


@program("means of classes by psums", "classes d")
def _(x, labels):
    onehot = jax.nn.one_hot(labels, 8)
    return lax.psum(onehot.T @ x, "dp") / (lax.psum(onehot.sum(0), "dp")[:, None] + 1)


@program("means of classes by own counts", "classes d")
def _(x, labels):
    onehot = jax.nn.one_hot(labels, 8)
    return lax.pmean(onehot.T @ x / (onehot.sum(0)[:, None] + 1), "dp")


@program("means of classes by segment sums", "classes d")
def _(x, labels):
    sums = jax.ops.segment_sum(x, labels, num_segments=8)
    counts = jax.ops.segment_sum(jnp.ones_like(labels, float), labels, num_segments=8)
    sums, counts = lax.psum((sums, counts), "dp")
    return sums / jnp.maximum(counts, 1)[:, None]


@program("a histogram, psummed", "bins")
def _(labels):
    return lax.psum(jnp.zeros(8).at[labels].add(1), "dp")


@program("a histogram that begins with ones, psummed", "bins")
def _(labels):
    return lax.psum(jnp.ones(8).at[labels].add(1), "dp")


@program("a histogram, psummed over the rows of a shard", "bins")
def _(labels):
    return lax.psum(jnp.zeros(8).at[labels].add(1), "dp") / labels.size


@program("a histogram, pmeaned over the rows of a shard", "bins")
def _(labels):
    return lax.pmean(jnp.zeros(8).at[labels].add(1) / labels.size, "dp")


@program("the entropy of a histogram of all", "")
def _(labels):
    share = lax.pmean(jax.nn.one_hot(labels, 8).mean(0), "dp")
    return -jnp.sum(share * jnp.log(share + 1e-9))


@program("the pmean of entropies of own histograms", "")
def _(labels):
    share = jax.nn.one_hot(labels, 8).mean(0)
    return lax.pmean(-jnp.sum(share * jnp.log(share + 1e-9)), "dp")


@program("a covariance of all rows", "d d")
def _(x):
    centred = x - lax.pmean(x.mean(0), "dp")
    return lax.pmean(centred.T @ centred / x.shape[0], "dp")


@program("a covariance of own centred rows", "d d")
def _(x):
    centred = x - x.mean(0)
    return lax.pmean(centred.T @ centred / x.shape[0], "dp")


@program("a covariance of all rows, psummed over the rows of a shard", "d d")
def _(x):
    centred = x - lax.pmean(x.mean(0), "dp")
    return lax.psum(centred.T @ centred, "dp") / x.shape[0]


@program("a correlation of two columns by moments", "")
def _(x):
    a, b = x[:, 0], x[:, 1]
    means = lax.pmean(jnp.stack([a.mean(), b.mean(), (a * b).mean(), (a * a).mean(), (b * b).mean()]), "dp")
    cov = means[2] - means[0] * means[1]
    return cov / jnp.sqrt((means[3] - means[0] ** 2) * (means[4] - means[1] ** 2))


@program("a correlation of two columns of own rows, pmeaned", "")
def _(x):
    a, b = x[:, 0] - x[:, 0].mean(), x[:, 1] - x[:, 1].mean()
    return lax.pmean((a * b).mean() / jnp.sqrt((a * a).mean() * (b * b).mean()), "dp")


@program("a t-statistic of all rows", "d")
def _(x):
    mean = lax.pmean(x.mean(0), "dp")
    var = lax.pmean(((x - mean) ** 2).mean(0), "dp")
    return mean / jnp.sqrt(var / (x.shape[0] * lax.axis_size("dp")))


@program("a t-statistic by the rows of a shard", "d")
def _(x):
    mean = lax.pmean(x.mean(0), "dp")
    var = lax.pmean(((x - mean) ** 2).mean(0), "dp")
    return mean / jnp.sqrt(var / x.shape[0])


@program("kurtosis of all by central moments", "")
def _(y):
    centred = y - lax.pmean(y.mean(), "dp")
    return lax.pmean((centred**4).mean(), "dp") / lax.pmean((centred**2).mean(), "dp") ** 2


@program("kurtosis of all by psums of central moments", "")
def _(y):
    centred = y - lax.pmean(y.mean(), "dp")
    return lax.psum((centred**4).mean(), "dp") / lax.psum((centred**2).mean(), "dp") ** 2


@program("skewness by a psum over a root of psums", "")
def _(y):
    centred = y - lax.pmean(y.mean(), "dp")
    n = lax.axis_size("dp")
    return lax.psum((centred**3).mean(), "dp") / lax.psum((centred**2).mean(), "dp") ** 1.5 * n**0.5


@program("running statistics of batch norm, pmeaned", ("d", "d"))
def _(x, w, v, c):
    mean = lax.pmean(x.mean(0), "dp")
    var = lax.pmean((x**2).mean(0), "dp") - mean**2
    return (1 - c) * w + c * mean, (1 - c) * v + c * var


@program("running statistics of batch norm, of own rows", ("d", "d"))
def _(x, w, v, c):
    return (1 - c) * w + c * lax.pmean(x.mean(0), "dp"), (1 - c) * v + c * lax.pmean(x.var(0), "dp")
