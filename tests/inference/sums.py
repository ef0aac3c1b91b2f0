"""Programs that keep, take, lose and double sums over mesh axes, each with what is said of it in either mode.

The right ones give the same on one device as on eight, which a test holds. `tests/degrees` has hundreds of both kinds;
here is what a mark says, what the first lines of messages say, and ways through JAX.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from right_and_wrong import kernel
from tables import UNTYPED, Program, program

from typedshmap import Array, Float, check, einsum, psum, reduce, repeat, typed

X, W, Y = Float[Array, "[b/dp] [k/tp]"], Float[Array, "[k/tp] n"], Float[Array, "[b/dp] n"]
N = 12
XW, XWB = "[b/dp] [k/tp], [k/tp] n -> ", "[b/dp] [k/tp], [k/tp] n, n -> [b/dp] n"
OF_XW, OF_X, OF_ROWS = f"{XW}[b/dp] n", "[b/dp] [k/tp] -> ", "[b/dp] k, k n -> "
TERM = "psum counts a term once per shard of 'tp': it was added to a partial sum"
TWICE = "a result is 2 times too large on tp=2: it grows with 'tp'"
ROWS_OF_SHARD = "sub adds a partial sum over 'tp' to a value that is sharded over it"
FACTOR = "multiplies by a partial sum over 'tp'"


def repeated(times: int, step: Callable[[Any], Any], x: Any) -> Any:
    return lax.fori_loop(0, times, lambda _, c: step(c), x)


def sent_on(x: Any, axis: str, by: int = 1) -> Any:
    count = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(at, (at + by) % count) for at in range(count)])


def tp(x: Any) -> Any:
    return lax.psum(x, "tp")


def marked(x: Any, w: Any) -> Any:
    return check(x @ w, "[b/dp] n +tp")


def full(x: Any, w: Any) -> Any:
    return 0 * lax.psum(x @ w, "tp")


def kept(step: Callable[[Any], Any], result: str = "[b/dp] n", said: str | None = None) -> Program:
    """A program that does something with a marked sum, and sums."""
    return program(XW + result, lambda x, w: tp(step(marked(x, w))), said)


def lost(step: Callable[[Any], Any], said: str) -> Program:
    return kept(step, said=said)


def by_largest(x: Any, one: Callable[[], Any], other: Callable[[], Any]) -> Any:
    return lax.cond(lax.pmax(x.max(), ("dp", "tp")) > 9, one, other)


@typed
def local_loss(w: Float[Array, "k n"], x: Float[Array, "[b/dp] k"]) -> Float[Array, "+dp"]:
    return ((x @ w) ** 2).sum()


def gradient_of_shards(x: Any, w: Any) -> Any:
    """The gradient with respect to weights of each shard's own."""
    gradient = jax.grad(lambda w: check(((x @ w) ** 2).sum(), "+dp"))(w + 0 * x.sum())
    return lax.psum(gradient, "dp")


def accumulated(x: Any, w: Any) -> Any:
    zeros = 0 * (x @ w)
    start = check(jnp.zeros_like(zeros) + zeros, "[b/dp] n ~tp")
    return tp(lax.scan(lambda total, _: (total + marked(x, w), None), start, None, length=3)[0])


def by_count(x: Any) -> Any:
    """The mean, by one sum of a sum and of a count."""
    total, count = lax.psum(jnp.stack([x.sum(), jnp.float32(x.size)]), ("dp", "tp"))
    return total / count


def counted(x: Any, w: Any) -> Any:
    """A mean by the counts of shards that a sum makes."""
    rows = lax.psum(jnp.float32(x.shape[0]), "dp")
    return lax.psum(x.sum(), "dp") / rows / lax.psum(1, "tp") * lax.psum(jnp.ones(()), "tp")


def means_shared_out(x: Any) -> Any:
    axes = ("dp", "tp")
    return (lax.psum(x.mean(), axes) + lax.psum(lax.pmean(x.mean(), axes), axes)) / lax.axis_size(axes)


# What keeps a sum that a hint marks as due
KEPT: dict[str, Program] = {
    "two of them added": program(OF_XW, lambda x, w: tp(marked(x, w) + marked(2 * x, w))),
    "one taken from another": program(OF_XW, lambda x, w: tp(marked(x, w) - marked(2 * x, w))),
    "multiplied by a weight": kept(lambda y: y @ np.ones((N, N), np.float32)),
    "by a weight in an einsum": kept(lambda y: einsum(y, jnp.ones((N, N)), "[b/dp] n +tp, n m -> [b/dp] m +tp")),
    "in another dtype and back": kept(lambda y: y.astype(jnp.bfloat16).astype(jnp.float32) * 0),
    "one of two": kept(lambda y: jnp.where(jnp.arange(N) < 5, y, -y)),
    "zeros added": kept(lambda y: y + jnp.zeros(N)),
    "padded": kept(lambda y: jnp.pad(y, ((0, 0), (0, 3))), "[b/dp] _"),
    "side by side": kept(lambda y: jnp.concatenate([y, y], 1), "[b/dp] 2*n"),
    "written into zeros": kept(lambda y: jnp.zeros(y.shape).at[:, 2:].set(y[:, 2:])),
    "rows of it": kept(lambda y: y[:, jnp.array([2, 1])], "[b/dp] 2"),
    "summed over a dim": kept(lambda y: y.sum(1), "[b/dp]"),
    "its mean": kept(lambda y: y.mean(1), "[b/dp]"),
    "scattered": program(
        XW + "[b/dp] [n/tp]", lambda x, w: lax.psum_scatter(2 * marked(x, w), "tp", scatter_dimension=1, tiled=True)
    ),
    "added in a scan": program(OF_XW, accumulated),
    "scaled in a loop": kept(lambda y: repeated(3, lambda y: y * 2, y)),
    "through a jit and a checkpoint": kept(jax.jit(jax.checkpoint(lambda y: -y))),
    "in a branch": program(OF_XW, lambda x, w: tp(by_largest(x, lambda: marked(x, w), lambda: 2 * marked(x, w)))),
    "summed by a pattern": program(OF_XW, lambda x, w: psum(marked(x, w) * 2, "[b/dp] n +tp -> [b/dp] n")),
    "a loss that is summed later": program(
        OF_ROWS, lambda x, w: lax.psum(2 * jax.value_and_grad(local_loss)(w, x)[0], "dp")
    ),
    "a gradient of such a loss": program(OF_ROWS + "k n", gradient_of_shards),
    "a sum over two axes": program(OF_X, lambda x: lax.psum(2 * check(x.sum(), "+dp +tp"), ("dp", "tp"))),
    "one axis after the other": program(OF_X, lambda x: lax.psum(tp(check(x.sum(), "+dp +tp")) / 2, "dp")),
    "sent on over another axis": program(OF_XW, lambda x, w: sent_on(tp(sent_on(marked(x, w), "dp")), "dp", -1)),
    "gathered over another axis": program(
        XW + "n", lambda x, w: lax.pmean(tp(lax.all_gather(marked(x, w), "dp", tiled=True)).sum(0), "dp")
    ),
}

# What loses it, an error in either mode
LOST: dict[str, Program] = {
    "a relu": lost(jax.nn.relu, "relu is not linear, and its operand is a partial sum over 'tp'"),
    "a gelu": lost(jax.nn.gelu, "is not linear, and its operand is a partial sum over 'tp'"),
    "a bias": program(XWB, lambda x, w, b: tp(marked(x, w) + b), TERM + ", due since"),
    "a product of two": program(
        OF_XW, lambda x, w: tp(marked(x, w) * marked(2 * x, w)), "mul " + FACTOR + ", due since"
    ),
    "a contraction of two": kept(lambda y: jnp.einsum("bn,bn->b", y, y), "[b/dp]", "einsum " + FACTOR),
    "a division by it": lost(lambda y: 1 / y, "div " + FACTOR),
    "a comparison": lost(lambda y: jnp.where(y > 0, 1.0, 0.0), "gt is not linear, and its operand"),
    "an argmax": kept(lambda y: jnp.argmax(y, 1) * 1.0, "[b/dp]", "argmax is not linear"),
    "a contraction that leaves what is sharded": program(
        XW + "[k/tp] n", lambda x, w: lax.psum(x.T @ marked(x, w), "dp"), "dot_general " + FACTOR + ", due since"
    ),
    "a maximum over a dim": kept(lambda y: y.max(1), "[b/dp]", "reduce_max is not linear"),
    "a maximum of shards": program(
        OF_XW, lambda x, w: lax.pmax(marked(x, w), "tp"), "pmax takes the maximum of partial sums over 'tp'"
    ),
    "another side that is not zeros": lost(
        lambda y: jnp.where(jnp.arange(N) < 5, y, 1.0), "counts a term once per shard"
    ),
    "a relu in a jit": lost(jax.jit(jax.nn.relu), "relu is not linear"),
    "a relu in a scan": lost(
        lambda y: lax.scan(lambda c, _: (c, jax.nn.relu(c)), y, None, length=2)[1].sum(0), "relu is not linear"
    ),
    "an exp in a loop, of what comes in": lost(
        lambda y: repeated(2, jnp.exp, y), "exp is not linear, and its operand is a partial sum over 'tp', due"
    ),
    "a branch that adds": program(
        OF_XW,
        lambda x, w: tp(by_largest(x, lambda: marked(x, w), lambda: marked(x, w) + 1)),
        "counts a term once per shard",
    ),
    "a nonlinear carry of a loop": lost(lambda y: repeated(3, lambda c: jnp.tanh(c) + 0 * c, y), "tanh is not linear"),
    "a relu of what a pattern left": program(
        OF_XW,
        lambda x, w: tp(jax.nn.relu(einsum(x, w, "[b/dp] [k/tp], [k/tp] n -> [b/dp] n +tp"))),
        "relu is not linear",
    ),
    "a relu of what a kernel left": program(
        OF_XW, lambda x, w: tp(jax.nn.relu(check(kernel(x @ w), "[b/dp] n +tp"))), "relu is not linear", UNTYPED
    ),
    "a relu of what is claimed in a scan": program(
        OF_XW,
        lambda x, w: lax.scan(lambda c, _: (c + tp(jax.nn.relu(marked(x, w))), None), full(x, w), None, length=2)[0],
        "relu is not linear, and its operand is a partial sum over 'tp', due since",
    ),
    "a penalty": program(
        OF_ROWS,
        lambda x, w: lax.psum(check(((x @ w) ** 2).sum(), "+dp") + 0.01 * (w**2).sum(), "dp"),
        "psum counts a term once per shard of 'dp'",
    ),
    "branches of which one is a sum": program(
        OF_XW,
        lambda x, w: tp(by_largest(x, lambda: marked(x, w), lambda: full(x, w) + 1)),
        TERM + ", due since",
        UNTYPED,
    ),
    "a mark of its own kind only": lost(lambda y: check(y, "[b/dp] n ~tp"), "is unreduced over 'tp'"),
    "a log of a loss": program(OF_ROWS, lambda x, w: lax.psum(jnp.log(local_loss(w, x)), "dp"), "log is not linear"),
    "not taken at all": program(OF_XW, marked, "return value"),
    "checked without the mark": lost(lambda y: check(2 * y, "[b/dp] n"), "checked value"),
}

# A sum that became due where no hint says so, and is lost; and one that is taken where none is due
SUSPECT: dict[str, Program] = {
    "a sum that is marked, summed twice": kept(tp, said="a result is 2 times too large"),
    "the same with a scaling between": program(OF_XW, lambda x, w: tp(2 * tp(marked(x, w)).T).T, TWICE),
    "a relu": program(
        OF_XW, lambda x, w: tp(jax.nn.relu(x @ w)), "relu is not linear, and its operand is a partial sum over 'tp'"
    ),
    "a bias": program(XWB, lambda x, w, b: tp(x @ w + b), TERM),
    "a bias, then scaled": program(XWB, lambda x, w, b: 0.01 * tp(x @ w + b), TERM),
    "a softmax of each shard's part": program(
        OF_X + "[b/dp] [k/tp]", lambda x: jnp.exp(x) / jnp.exp(x).sum(1, keepdims=True), "div " + FACTOR
    ),
    "a mean of each shard's part, taken from it": program(
        OF_X + "[b/dp] [k/tp]", lambda x: x - x.mean(1, keepdims=True), ROWS_OF_SHARD
    ),
    "a contraction that leaves what is sharded": program(
        XW + "[k/tp] n", lambda x, w: lax.psum(x.T @ (x @ w), "dp"), "dot_general " + FACTOR + ", due since"
    ),
    "summed twice": program(OF_XW, lambda x, w: tp(tp(x @ w)), TWICE),
    "a loss summed over an axis too many": program(
        OF_ROWS, lambda x, w: lax.psum((x @ w).sum(), ("dp", "tp")), TWICE, UNTYPED
    ),
    "an argument that is the same, summed": program(OF_ROWS + "k n", lambda x, w: tp(w), TWICE),
    "a mean that was taken, summed": program(
        OF_ROWS,
        lambda x, w: lax.psum(lax.pmean((x @ w).mean(), "dp"), "dp"),
        "a result is 4 times too large on dp=4: it grows",
    ),
}


def gathering_matmul(x: Any, w: Any) -> Any:
    """Columns go around, and every shard multiplies each of them by the rows of a whole weight that it needs."""
    shards, size = lax.axis_size("tp"), x.shape[1]
    at, total = lax.axis_index("tp"), jnp.zeros((x.shape[0], N))
    for step in range(shards):
        total = total + x @ lax.dynamic_slice_in_dim(w, (at - step) % shards * size, size)
        x = sent_on(x, "tp")
    return lax.pmean(jnp.tanh(total), "tp")


def gathering_matmul_in_a_loop(x: Any, w: Any) -> Any:
    shards, size, at = lax.axis_size("tp"), x.shape[1], lax.axis_index("tp")

    def step(number: Any, carry: Any) -> Any:
        x, total = carry
        return sent_on(x, "tp"), total + x @ lax.dynamic_slice_in_dim(w, (at - number) % shards * size, size)

    start = (x, jnp.zeros((x.shape[0], N)) + 0 * x[:, :1])
    return lax.pmean(jnp.tanh(lax.fori_loop(0, shards, step, start)[1]), "tp")


def scattering_matmul(x: Any, w: Any) -> Any:
    """Sums go around, and collect an addend on every shard."""
    shards, size, at = lax.axis_size("tp"), N // lax.axis_size("tp"), lax.axis_index("tp")
    total = jnp.zeros((x.shape[0], size))
    for step in range(shards):
        part = lax.dynamic_slice_in_dim(w, (at - step - 1) % shards * size, size, axis=1)
        total = (sent_on(total, "tp") if step else total) + x @ part
    return jax.nn.relu(total)


# Right programs that look like those, and of which nothing is said
RIGHT: dict[str, Program] = {
    "a matmul that gathers as it goes": program("[b/dp] [k/tp], k n -> [b/dp] n", gathering_matmul),
    "the same in a loop": program("[b/dp] [k/tp], k n -> [b/dp] n", gathering_matmul_in_a_loop),
    "a matmul that scatters as it goes": program(XW + "[b/dp] [n/tp]", scattering_matmul),
    "a sum beside a count": program(OF_X, by_count),
    "a sum of means and of what is the same, shared out": program(OF_X, means_shared_out),
    "a bias and a partial sum, shared out before the sum": program(
        XWB, lambda x, w, b: tp((x @ w * lax.axis_size("tp") + b) / lax.axis_size("tp"))
    ),
    "a bias on one shard": program(XWB, lambda x, w, b: tp(x @ w + jnp.where(lax.axis_index("tp") == 0, b, 0))),
    "a share of a bias on every shard": program(XWB, lambda x, w, b: tp(x @ w + b / lax.axis_size("tp"))),
    "a share of what is the same": program(
        OF_ROWS, lambda x, w: tp(lax.pmean(x.mean(), "dp") * (1 / lax.axis_size("tp")))
    ),
    "each shard's own, marked as such": program(
        OF_X + "[b/dp]", lambda x: lax.pmax(jnp.tanh(check(x.sum(1), "[b/dp] ~tp")), "tp") * 0
    ),
    "a count of shards": program(OF_ROWS, counted),
    # Each shard's own, as a check of the result says.
    "a local weighted mean that is stated": program(
        OF_ROWS, lambda x, w: lax.psum(0 * check((x * x).sum(0) / x.sum(0), "k ~dp").sum(), "dp")
    ),
    "a local deviation that is stated": program(
        OF_ROWS, lambda x, w: lax.psum(0 * check(x.std(0), "k ~dp").sum(), "dp")
    ),
    "a sum over a dim along which all is repeated": program(
        OF_ROWS + "k n", lambda x, w: reduce(repeat(w, "k n -> k n [r/tp]", r=4), "k n [r/tp] -> k n", "sum")
    ),
    "the same by hand": program(
        OF_ROWS + "k n", lambda x, w: tp(check(w[..., None].repeat(4 // lax.axis_size("tp"), 2), "k n [4/tp]").sum(2))
    ),
    "a sum by a pattern": program(
        OF_XW,
        lambda x, w: (
            jax.nn.relu(einsum(x, w, "[b/dp] [k/tp], [k/tp] n -> [b/dp] n")) / reduce(x, "[b/dp] [k/tp] ->", "sum")
        ),
    ),
}
