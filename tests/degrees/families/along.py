"""Operations along a dim that need all of it: along a sharded dim wrong, along an unsharded one right."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program

from typedshmap import Array, Int


@program("a cumsum along the sharded dim of rows", "[b/dp] d")
def _(x):
    return jnp.cumsum(x, axis=0)


@program("a cumsum along the unsharded dim of rows", "[b/dp] d")
def _(x):
    return jnp.cumsum(x, axis=1)


@program("a cumsum along a sharded dim with offsets of the shards before", "[b/dp] d")
def _(x):
    sums = lax.all_gather(x.sum(0), "dp")
    before = jnp.arange(sums.shape[0]) < lax.axis_index("dp")
    return jnp.cumsum(x, axis=0) + (sums * before[:, None]).sum(0)


@program("a cumsum along a sharded dim with offsets of all shards", "[b/dp] d")
def _(x):
    return jnp.cumsum(x, axis=0) + lax.psum(x.sum(0), "dp")


@program("a cumprod along the sharded dim", "[b/dp]")
def _(y):
    return jnp.cumprod(jnp.tanh(y) + 1.0)


@program("a running maximum along the sharded dim", "[b/dp]")
def _(y):
    return lax.cummax(y)


@program("an associative scan along the sharded dim", "b2 [t/dp] d")
def _(seq, c):
    return lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (0 * seq + c, seq), axis=1)[1]


@program("an associative scan along an unsharded dim", "b2 [t/dp] d")
def _(seq, c):
    return lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (0 * seq + c, seq), axis=2)[1]


def _recurrence(seq, c, axis):
    def step(h, x):
        h = c * h + x
        return h, h

    along = jnp.moveaxis(seq, axis, 0)
    return jnp.moveaxis(lax.scan(step, 0 * along[0], along)[1], 0, axis)


@program("a recurrence scanned along the sharded dim", "b2 [t/dp] d")
def _(seq, c):
    return _recurrence(seq, c, 1)


@program("a recurrence scanned along an unsharded dim", "b2 [t/dp] d")
def _(seq, c):
    return _recurrence(seq, c, 2)


@program("a sort along the sharded dim", "[b/dp] d")
def _(x):
    return jnp.sort(x, axis=0)


@program("a sort along an unsharded dim", "[b/dp] d")
def _(x):
    return jnp.sort(x, axis=1)


@program("ranks along the sharded dim", Int[Array, "[b/dp]"])
def _(y):
    return jnp.argsort(jnp.argsort(y))


@program("ranks along an unsharded dim", Int[Array, "[b/dp] d"])
def _(x):
    return jnp.argsort(jnp.argsort(x, axis=1), axis=1)


@program("ranks among all by gathered rows", Int[Array, "[b/dp]"])
def _(y):
    rows = lax.all_gather(y, "dp", tiled=True)
    return (rows[None, :] < y[:, None]).sum(1)


@program("ranks among own rows by comparison", Int[Array, "[b/dp]"])
def _(y):
    return (y[None, :] < y[:, None]).sum(1)


@program("an argmax along an unsharded dim", Int[Array, "[b/dp]"])
def _(x):
    return x.argmax(1)


@program("a one-hot of the argmax along the sharded dim", "[b/dp] d")
def _(x):
    return jax.nn.one_hot(x.argmax(0), x.shape[0], axis=0)


@program("a one-hot of the argmax along an unsharded dim", "[b/dp] d")
def _(x):
    return jax.nn.one_hot(x.argmax(1), x.shape[1])


@program("an FFT along the sharded dim", "[b/dp] d")
def _(x):
    return jnp.abs(jnp.fft.fft(x, axis=0))


@program("an FFT along an unsharded dim", "[b/dp] d")
def _(x):
    return jnp.abs(jnp.fft.fft(x, axis=1))


@program("a filter by FFT along the sharded dim", "[b/dp] d")
def _(x):
    return jnp.fft.irfft(jnp.fft.rfft(x, axis=0)[: x.shape[0] // 2], n=x.shape[0], axis=0)


@program("an FFT along the sharded dim, its columns exchanged for rows and back", "[b/dp] e")
def _(x):
    columns = lax.all_to_all(jnp.tile(x, (1, 3)), "dp", split_axis=1, concat_axis=0, tiled=True)
    return lax.all_to_all(jnp.abs(jnp.fft.fft(columns, axis=0)), "dp", split_axis=0, concat_axis=1, tiled=True)


@program("rows rolled along the sharded dim", "[b/dp] d")
def _(x):
    return jnp.roll(x, 1, axis=0)


@program("rows rolled along an unsharded dim", "[b/dp] d")
def _(x):
    return jnp.roll(x, 1, axis=1)


@program("rows flipped along the sharded dim", "[b/dp] d")
def _(x):
    return x[::-1]


@program("rows flipped along an unsharded dim", "[b/dp] d")
def _(x):
    return x[:, ::-1]


@program("rows flipped along the sharded dim and back", "[b/dp] d")
def _(x, c):
    return (c * x[::-1])[::-1]


@program("rows sorted and put back", "[b/dp]")
def _(y, c):
    order = jnp.argsort(y)
    return (c * y[order])[jnp.argsort(order)]


@program("differences along the sharded dim", "[b/dp] d")
def _(x):
    return jnp.diff(x, axis=0, prepend=0)


@program("differences along an unsharded dim", "[b/dp] d")
def _(x):
    return jnp.diff(x, axis=1, prepend=0)


@program("differences of neighbours by padding", "[b/dp] d")
def _(x):
    return x - jnp.pad(x, ((1, 0), (0, 0)))[:-1]


@program("differences of neighbours with a halo", "[b/dp] d")
def _(x):
    n = lax.axis_size("dp")
    before = lax.ppermute(x[-1:], "dp", [(i, (i + 1) % n) for i in range(n)])
    return x - jnp.concatenate([before, x[:-1]])


@program("differences of neighbours with a halo of its own", "[b/dp] d")
def _(x):
    return x - jnp.concatenate([x[-1:], x[:-1]])


@program("a moving average along the sharded dim", "[b/dp]")
def _(y):
    return jnp.convolve(y, jnp.ones(3) / 3, mode="same")


@program("a moving average along an unsharded dim", "[b/dp] d")
def _(x):
    return jax.vmap(lambda row: jnp.convolve(row, jnp.ones(3) / 3, mode="same"))(x)


@program("a convolution along the sharded dim", "b2 [t/dp] d")
def _(seq, m):
    kernel = jnp.stack([m, m, m]) / 3
    return lax.conv_general_dilated(seq, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))


@program("a causal convolution along the sharded dim", "b2 [t/dp] d")
def _(seq, w):
    padded = jnp.pad(seq, ((0, 0), (2, 0), (0, 0)))
    return sum(padded[:, i : i + seq.shape[1]] * w for i in range(3))


@program("a pointwise convolution along the sharded dim", "b2 [t/dp] d")
def _(seq, m):
    return lax.conv_general_dilated(seq, m[None], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))


@program("pooling of pairs along the sharded dim, which divide evenly", "b2 [t/dp] d")
def _(seq):
    pairs = seq.reshape(2, -1, 2, 8)
    return jnp.repeat(pairs.max(2), 2, axis=1)


@program("a moving maximum along the sharded dim", "b2 [t/dp] d")
def _(seq):
    return lax.reduce_window(seq, -jnp.inf, lax.max, (1, 3, 1), (1, 1, 1), "SAME")


@program("a causal mask by own positions", "b2 [t/dp] d")
def _(seq):
    at = jnp.arange(seq.shape[1])
    scores = jnp.einsum("btd,bsd->bts", seq, seq) * (at[:, None] >= at)
    return jnp.einsum("bts,bsd->btd", scores, seq)


def _attention(queries, keys):
    p = jax.nn.softmax(jnp.einsum("btd,bsd->bts", queries, keys), axis=-1)
    return jnp.einsum("bts,bsd->btd", p, keys)


@program("attention over own part of a sequence", "b2 [t/dp] d")
def _(seq):
    return _attention(seq, seq)


@program("attention over a gathered sequence", "b2 [t/dp] d")
def _(seq):
    return _attention(seq, lax.all_gather(seq, "dp", axis=1, tiled=True))


@program("causal attention over a gathered sequence", "b2 [t/dp] d")
def _(seq):
    keys = lax.all_gather(seq, "dp", axis=1, tiled=True)
    at = lax.axis_index("dp") * seq.shape[1] + jnp.arange(seq.shape[1])
    scores = jnp.einsum("btd,bsd->bts", seq, keys)
    p = jax.nn.softmax(jnp.where(at[:, None] >= jnp.arange(keys.shape[1]), scores, -jnp.inf), axis=-1)
    return jnp.einsum("bts,bsd->btd", p, keys)


@program("positions by own index added to a sharded sequence", "b2 [t/dp] d")
def _(seq):
    return seq + jnp.sin(jnp.arange(seq.shape[1]))[:, None]


@program("positions by the global index added to a sharded sequence", "b2 [t/dp] d")
def _(seq):
    at = lax.axis_index("dp") * seq.shape[1] + jnp.arange(seq.shape[1])
    return seq + jnp.sin(at)[:, None]


@program("linear attention over own part of a sequence", "b2 [t/dp] d")
def _(seq):
    state = jnp.einsum("btd,bte->bde", seq, jnp.tanh(seq))
    return jnp.einsum("btd,bde->bte", seq, state)


@program("linear attention over all of a sequence", "b2 [t/dp] d")
def _(seq):
    state = lax.psum(jnp.einsum("btd,bte->bde", seq, jnp.tanh(seq)), "dp")
    return jnp.einsum("btd,bde->bte", seq, state)


@program("linear attention over all of a sequence, pmeaned", "b2 [t/dp] d")
def _(seq):
    state = lax.pmean(jnp.einsum("btd,bte->bde", seq, jnp.tanh(seq)), "dp")
    return jnp.einsum("btd,bde->bte", seq, state)


@program("the mean along the sharded dim taken off", "b2 [t/dp] d")
def _(seq):
    return seq - seq.mean(1, keepdims=True)


@program("the mean of all along the sharded dim taken off", "b2 [t/dp] d")
def _(seq):
    return seq - lax.pmean(seq.mean(1, keepdims=True), "dp")


@program("the sum of a cumsum along the sharded dim, psummed", "d")
def _(x):
    return lax.psum(jnp.cumsum(x, axis=0).sum(0), "dp")


@program("the sum of rows sorted along the sharded dim, psummed", "d")
def _(x):
    return lax.psum(jnp.sort(x, axis=0).sum(0), "dp")


@program("the sum of rows flipped along the sharded dim, psummed", "d")
def _(x):
    return lax.psum(x[::-1].sum(0), "dp")


@program("the product of rows and flipped rows, psummed", "d")
def _(x):
    return lax.psum((x * x[::-1]).sum(0), "dp")


@program("a lag product along the sharded dim, psummed", "")
def _(y):
    return lax.psum(jnp.sum(y[1:] * y[:-1]), "dp")


@program("the largest of rows sorted along the sharded dim, pmaxed", "d")
def _(x):
    return lax.pmax(jnp.sort(x, axis=0)[-1], "dp")


@program("a median of own rows, pmeaned", "d")
def _(x):
    return lax.pmean(jnp.median(x, axis=0), "dp")


@program("a median of gathered rows", "d")
def _(x):
    return lax.pmean(jnp.median(lax.all_gather(x, "dp", tiled=True), axis=0), "dp")


@program("rows above the median of own rows", "[b/dp]")
def _(y):
    return y * (y > jnp.median(y))


@program("rows above the median of an unsharded dim", "[b/dp] d")
def _(x):
    return x * (x > jnp.median(x, axis=1, keepdims=True))


@program("rows above a quantile of own rows, psummed", "")
def _(y, c):
    return lax.psum(jnp.sum(jnp.where(y > jnp.quantile(y, c), y, 0)), "dp")


@program("the first row of own rows taken off", "[b/dp] d")
def _(x):
    return x - x[0]


@program("the first row of all taken off", "[b/dp] d")
def _(x):
    first = jnp.where(lax.axis_index("dp") == 0, x[0], 0)
    return x - lax.psum(first, "dp")


@program("every second row halved", "[b/dp] d")
def _(x):
    return x.at[::2].multiply(0.5)


@program("the first row doubled", "[b/dp] d")
def _(x):
    return x.at[0].multiply(2)


@program("solved along the sharded dim", "[b/dp]")
def _(x):
    gram = x @ x.T + jnp.eye(x.shape[0])
    return jnp.linalg.solve(gram, x[:, 0])


@program("matrix functions along an unsharded dim", "[b/dp] d")
def _(x, m):
    return jnp.linalg.solve(m @ m.T + jnp.eye(8), x.T).T


@program("pairwise products of own rows", "[b/dp]")
def _(x):
    return (x @ x.T).sum(1)


@program("pairwise products of all rows", "[b/dp]")
def _(x):
    return (x @ lax.all_gather(x, "dp", tiled=True).T).sum(1)


@program("pairwise products with a psum of rows", "[b/dp]")
def _(x):
    return x @ lax.psum(x.sum(0), "dp")
