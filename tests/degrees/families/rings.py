"""Rings and halos: closed rings sum or gather, open ones leave something out."""

import jax
import jax.numpy as jnp
from jax import lax
from registry import program


def _forward(axis):
    n = lax.axis_size(axis)
    return [(i, (i + 1) % n) for i in range(n)]


def _ring_sum(own, axis="dp"):
    total = passed = own
    for _ in range(lax.axis_size(axis) - 1):
        passed = lax.ppermute(passed, axis, _forward(axis))
        total = total + passed
    return total


def _loop_sum(own):
    def turn(_, state):
        total, passed = state
        passed = lax.ppermute(passed, "dp", _forward("dp"))
        return total + passed, passed

    return lax.fori_loop(0, lax.axis_size("dp") - 1, turn, (own, own))[0]


def _same(value, axis="dp"):
    """What is the same on every shard, as JAX types it."""
    return lax.pmax(value, axis)


@program("a ring that sums sums of rows", "d")
def _(x):
    return _same(_ring_sum(x.sum(0)))


@program("a ring that sums means of rows", "d")
def _(x):
    return _same(_ring_sum(x.mean(0)))


@program("a ring that sums means of rows, divided by the shards", "d")
def _(x):
    return _same(_ring_sum(x.mean(0))) / lax.axis_size("dp")


@program("a ring that is one turn short", "d")
def _(x):
    total = passed = x.sum(0)
    for _ in range(lax.axis_size("dp") - 2):
        passed = lax.ppermute(passed, "dp", _forward("dp"))
        total = total + passed
    return lax.pmax(total, "dp")


@program("a ring in a fori_loop that sums sums of rows", "d")
def _(x):
    return _same(_loop_sum(x.sum(0)))


@program("a ring in a fori_loop that sums means of rows", "d")
def _(x):
    return _same(_loop_sum(x.mean(0)))


@program("a ring of keys and values, with merged softmaxes", "b2 [t/dp] d")
def _(seq):
    def turn(_, state):
        keys, top, total, out = state
        scores = jnp.einsum("btd,bsd->bts", seq, keys)
        new = jnp.maximum(top, scores.max(-1))
        e, scale = jnp.exp(scores - new[..., None]), jnp.exp(top - new)
        out = out * scale[..., None] + jnp.einsum("bts,bsd->btd", e, keys)
        return lax.ppermute(keys, "dp", _forward("dp")), new, total * scale + e.sum(-1), out

    start = seq, 0 * seq[..., 0] - 1e9, 0 * seq[..., 0], 0 * seq
    *_, total, out = lax.fori_loop(0, lax.axis_size("dp"), turn, start)
    return out / total[..., None]


def _unmerged(seq):
    def turn(_, state):
        keys, out = state
        p = jax.nn.softmax(jnp.einsum("btd,bsd->bts", seq, keys), axis=-1)
        return lax.ppermute(keys, "dp", _forward("dp")), out + jnp.einsum("bts,bsd->btd", p, keys)

    return lax.fori_loop(0, lax.axis_size("dp"), turn, (seq, 0 * seq))[1]


@program("a ring of keys and values, without merging of softmaxes", "b2 [t/dp] d")
def _(seq):
    return _unmerged(seq)


@program("a ring of keys and values, softmaxes averaged", "b2 [t/dp] d")
def _(seq):
    return _unmerged(seq) / lax.axis_size("dp")


@program("a ring of products of own rows with all rows", "[b/dp] d")
def _(x):
    total, passed = 0 * x, x
    for _ in range(lax.axis_size("dp")):
        total = total + jnp.tanh(x @ passed.T) @ passed
        passed = lax.ppermute(passed, "dp", _forward("dp"))
    return total


@program("rows passed to the next shard", "[b/dp] d")
def _(x):
    return lax.ppermute(x, "dp", _forward("dp"))


@program("rows passed around until they are back", "[b/dp] d")
def _(x):
    for _ in range(lax.axis_size("dp")):
        x = lax.ppermute(x, "dp", _forward("dp"))
    return x


@program("a stencil with halos on both sides", "[b/dp] d")
def _(x):
    n = lax.axis_size("dp")
    before = lax.ppermute(x[-1:], "dp", [(i, (i + 1) % n) for i in range(n)])
    after = lax.ppermute(x[:1], "dp", [((i + 1) % n, i) for i in range(n)])
    h = jnp.concatenate([before, x, after])
    return h[:-2] - 2 * h[1:-1] + h[2:]


@program("a stencil with halos that are swapped", "[b/dp] d")
def _(x):
    n = lax.axis_size("dp")
    before = lax.ppermute(x[:1], "dp", [((i + 1) % n, i) for i in range(n)])
    after = lax.ppermute(x[-1:], "dp", [(i, (i + 1) % n) for i in range(n)])
    h = jnp.concatenate([before, x, after])
    return h[:-2] - 3 * h[1:-1] + 2 * h[2:]


@program("a stencil with open ends", "[b/dp] d")
def _(x):
    n = lax.axis_size("dp")
    before = lax.ppermute(x[-1:], "dp", [(i, i + 1) for i in range(n - 1)])
    return x - jnp.concatenate([before, x[:-1]])


@program("a stencil without halos", "[b/dp] d")
def _(x):
    h = jnp.pad(x, ((1, 1), (0, 0)), mode="wrap")
    return h[:-2] - 2 * h[1:-1] + h[2:]


@program("a stencil in a loop with halos each time", "[b/dp] d")
def _(x, c):
    n = lax.axis_size("dp")

    def step(_, x):
        before = lax.ppermute(x[-1:], "dp", [(i, (i + 1) % n) for i in range(n)])
        return (1 - c) * x + c * jnp.concatenate([before, x[:-1]])

    return lax.fori_loop(0, 3, step, x)


@program("a stencil in a loop with halos once", "[b/dp] d")
def _(x, c):
    n = lax.axis_size("dp")
    before = lax.ppermute(x[-1:], "dp", [(i, (i + 1) % n) for i in range(n)])
    return lax.fori_loop(0, 3, lambda _, x: (1 - c) * x + c * jnp.concatenate([before, x[:-1]]), x)


@program("averages with the next shard alone", "d")
def _(x):
    own = x.mean(0)
    return lax.pmean((own + lax.ppermute(own, "dp", _forward("dp"))) / 2, "dp")


@program("products with the next shard, psummed", "d")
def _(x):
    own = x.sum(0)
    return lax.psum(own * lax.ppermute(own, "dp", _forward("dp")), "dp")


@program("a ring's maximum of maxima", "d")
def _(x):
    top = passed = x.max(0)
    for _ in range(lax.axis_size("dp") - 1):
        passed = lax.ppermute(passed, "dp", _forward("dp"))
        top = jnp.maximum(top, passed)
    return lax.pmax(top, "dp")


@program("a ring matmul of column-sharded weights", "[b/dp] p")
def _(x, mp):
    n, i = lax.axis_size("dp"), lax.axis_index("dp")
    out, passed = jnp.zeros((x.shape[0], 24)) + 0 * x[:, :1], mp
    for turn in range(n):
        at = (i - turn) % n * mp.shape[1]
        out = lax.dynamic_update_slice_in_dim(out, x @ passed, at, axis=1)
        passed = lax.ppermute(passed, "dp", _forward("dp"))
    return out


@program("a ring that sums tanhs of sums", "d")
def _(x):
    return _same(_ring_sum(jnp.tanh(x.sum(0))))


@program("a sum scattered around a ring", "[long/dp]")
def _(x):
    n, i = lax.axis_size("dp"), lax.axis_index("dp")
    own = jnp.repeat(x.sum(0), 3)
    width = own.shape[0] // n
    part = jnp.zeros(width) + 0 * own[:width]
    for turn in range(n):
        at = (i + n - 1 - turn) % n * width
        part = lax.ppermute(part, "dp", _forward("dp")) + lax.dynamic_slice_in_dim(own, at, width)
    return part


@program("a sum scattered around a ring in a fori_loop", "[long/dp]")
def _(x):
    n, i = lax.axis_size("dp"), lax.axis_index("dp")
    own = jnp.repeat(x.sum(0), 3)
    width = own.shape[0] // n

    def turn(at, part):
        own_part = lax.dynamic_slice_in_dim(own, (i + n - 1 - at) % n * width, width)
        return lax.ppermute(part, "dp", _forward("dp")) + own_part

    return lax.fori_loop(0, n, turn, jnp.zeros(width) + 0 * own[:width])


@program("a ring that sums a sum of its own in each turn", "d")
def _(x):
    def turn(_, state):
        total, passed = state
        passed = lax.ppermute(passed + 0 * total, "dp", _forward("dp"))
        return total + passed, passed

    own = x.sum(0)
    return _same(lax.fori_loop(0, lax.axis_size("dp") - 1, turn, (own, own))[0])


@program("a ring that turns the other way, two shards at a time", "d")
def _(x):
    n = lax.axis_size("dp")
    backward = [(i, (i - 1) % n) for i in range(n)]
    total = passed = x.sum(0)
    for _ in range(n - 1):
        passed = lax.ppermute(passed, "dp", backward)
        total = passed + total
    return lax.psum(total, "dp") / n


@program("a ring's sum, psummed", "d")
def _(x):
    return lax.psum(_ring_sum(x.sum(0)), "dp")


@program("a ring's sum of what all shards have", "d")
def _(x, w):
    return _same(_ring_sum(jnp.tanh(w))) + 0 * lax.psum(x.sum(), "dp")


@program("differences with the next shard, around the ring", "d")
def _(x):
    own = x.sum(0)
    return _same(_ring_sum(own - lax.ppermute(own, "dp", _forward("dp"))))
