"""Programs that keep, take, lose and double sums over mesh axes, each with what is said of it in either mode.

The right ones give the same on one device as on eight, which a test holds.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from right_and_wrong import kernel, repeated, ring

from typedshmap import Array, Float, check, einsum, psum, reduce, repeat, take, typed

B, K, N = 8, 16, 12
X, W, Y = Float[Array, "[b/dp] [k/tp]"], Float[Array, "[k/tp] n"], Float[Array, "[b/dp] n"]
ROWS, WHOLE, BIAS, NUMBER = Float[Array, "[b/dp] k"], Float[Array, "k n"], Float[Array, "n"], Float[Array, ""]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(0.5, 1.5, size=shape).astype(np.float32)


TERM = "psum counts a term once per shard of 'tp': it was added to a partial sum"
TWICE = "a result is 2 times too large on tp=2: it grows with 'tp'"
ROWS_OF_SHARD = "sub adds a partial sum over 'tp' to a value that is sharded over it"
FACTOR = "multiplies by a partial sum over 'tp'"


class Program(NamedTuple):
    """One program.

    Attributes:
      body: what it does with the shards.
      hints: of its arguments.
      result: the hint of its result.
      args: global arrays.
      said: what the first line of its error or warning says; None where nothing is said.
      modes: what ``check_vma`` may be; under one of them JAX refuses it, or it would not be right.
    """

    body: Callable[..., Any]
    hints: tuple[Any, ...]
    result: Any
    args: tuple[Any, ...]
    said: str | None = None
    modes: tuple[bool, ...] = (True, False)


XW, XWB = (numbers(B, K), numbers(K, N)), (numbers(B, K), numbers(K, N), numbers(N))


def of_xw(body: Callable[..., Any], said: str | None = None, result: Any = Y, modes: Any = (True, False)) -> Program:
    return Program(body, (X, W), result, XW, said, modes)


def of_xwb(body: Callable[..., Any], said: str | None = None, result: Any = Y) -> Program:
    return Program(body, (X, W, BIAS), result, XWB, said)


def of_x(body: Callable[..., Any], said: str | None = None, result: Any = X) -> Program:
    return Program(body, (X,), result, XW[:1], said)


def of_rows(
    body: Callable[..., Any], said: str | None = None, result: Any = NUMBER, modes: Any = (True, False)
) -> Program:
    return Program(body, (ROWS, WHOLE), result, XW, said, modes)


def tp(x: Any) -> Any:
    return lax.psum(x, "tp")


def marked(x: Any, w: Any) -> Any:
    return check(x @ w, "[b/dp] n +tp")


def full(x: Any, w: Any) -> Any:
    return 0 * lax.psum(x @ w, "tp")


@typed
def local_loss(w: WHOLE, x: ROWS) -> Float[Array, "+dp"]:
    return ((x @ w) ** 2).sum()


def loss_of_shards(x: Any, w: Any) -> Any:
    value, _ = jax.value_and_grad(local_loss)(w, x)
    return lax.psum(value * 2, "dp")


def gradient_of_shards(x: Any, w: Any) -> Any:
    """The gradient with respect to weights of each shard's own."""
    gradient = jax.grad(lambda w: check(((x @ w) ** 2).sum(), "+dp"))(w + 0 * x.sum())
    return lax.psum(gradient, "dp")


def accumulated(x: Any, w: Any) -> Any:
    zeros = 0 * (x @ w)
    start = check(jnp.zeros_like(zeros) + zeros, "[b/dp] n ~tp")
    return tp(lax.scan(lambda total, _: (total + marked(x, w), None), start, None, length=3)[0])


def own_part(x: Any, shift: int = 0) -> Any:
    shards = lax.axis_size("tp")
    size, at = x.shape[1] // shards, (lax.axis_index("tp") + shift) % shards
    return lax.dynamic_slice_in_dim(x, at * size, size, axis=1)


def on_one_shard(x: Any, axis: str = "tp") -> Any:
    return jnp.where(lax.axis_index(axis) == 0, x, 0)


def by_count(x: Any) -> Any:
    """The mean, by one sum of a sum and of a count."""
    total, count = lax.psum(jnp.stack([x.sum(), jnp.float32(x.size)]), ("dp", "tp"))
    return total / count


def means_shared_out(x: Any) -> Any:
    axes = ("dp", "tp")
    return (lax.psum(x.mean(), axes) + lax.psum(lax.pmean(x.mean(), axes), axes)) / lax.axis_size(axes)


# What keeps a sum that a hint marks as due
KEPT: dict[str, Program] = {
    "scaled": of_xw(lambda x, w: tp(marked(x, w) * 2.0)),
    "divided": of_xw(lambda x, w: tp(marked(x, w) / 3)),
    "two of them added": of_xw(lambda x, w: tp(marked(x, w) + marked(2 * x, w))),
    "one taken from another": of_xw(lambda x, w: tp(marked(x, w) - marked(2 * x, w))),
    "scaled by what is the same on every shard": of_xwb(lambda x, w, b: tp(marked(x, w) * b)),
    "multiplied by a weight": of_xw(lambda x, w: tp(marked(x, w) @ jnp.ones((N, N)))),
    "by a weight in an einsum": of_xw(
        lambda x, w: tp(einsum(marked(x, w), jnp.ones((N, N)), "[b/dp] n +tp, n m -> [b/dp] m +tp"))
    ),
    "in another dtype and back": of_xw(lambda x, w: tp(marked(x, w).astype(jnp.bfloat16).astype(jnp.float32)) * 0),
    "reshaped, transposed and cut": of_xw(
        lambda x, w: tp(marked(x, w).T.reshape(2, -1, x.shape[0])[1].T), result=Float[Array, "[b/dp] _"]
    ),
    "chosen, and zeros elsewhere": of_xw(lambda x, w: tp(jnp.where(jnp.arange(N) < 5, marked(x, w), 0))),
    "one of two": of_xw(lambda x, w: tp(jnp.where(jnp.arange(N) < 5, marked(x, w), -marked(x, w)))),
    "zeros added": of_xw(lambda x, w: tp(marked(x, w) + jnp.zeros(N))),
    "padded": of_xw(lambda x, w: tp(jnp.pad(marked(x, w), ((0, 0), (0, 3)))), result=Float[Array, "[b/dp] _"]),
    "side by side": of_xw(
        lambda x, w: tp(jnp.concatenate([marked(x, w), marked(x, w)], 1)), result=Float[Array, "[b/dp] 2*n"]
    ),
    "written into zeros": of_xw(lambda x, w: tp(jnp.zeros((x.shape[0], N)).at[:, 2:].set(marked(x, w)[:, 2:]))),
    "rows of it": of_xw(lambda x, w: tp(marked(x, w)[:, jnp.array([2, 1])]), result=Float[Array, "[b/dp] 2"]),
    "summed over a dim": of_xw(lambda x, w: tp(marked(x, w).sum(1)), result=Float[Array, "[b/dp]"]),
    "its mean": of_xw(lambda x, w: tp(marked(x, w).mean(1)), result=Float[Array, "[b/dp]"]),
    "scattered": of_xw(
        lambda x, w: lax.psum_scatter(2 * marked(x, w), "tp", scatter_dimension=1, tiled=True),
        result=Float[Array, "[b/dp] [n/tp]"],
    ),
    "added in a scan": of_xw(accumulated),
    "scaled in a loop": of_xw(lambda x, w: tp(repeated(3, lambda y: y * 2, marked(x, w)))),
    "through a jit and a checkpoint": of_xw(lambda x, w: tp(jax.jit(jax.checkpoint(lambda y: -y))(marked(x, w)))),
    "in a branch": of_xw(
        lambda x, w: tp(lax.cond(lax.pmax(x.max(), ("dp", "tp")) > 1, lambda y: y, lambda y: 2 * y, marked(x, w)))
    ),
    "a bias on one shard": of_xwb(lambda x, w, b: tp(marked(x, w) + on_one_shard(b))),
    "a share of a bias on every shard": of_xwb(lambda x, w, b: tp(marked(x, w) + b / lax.axis_size("tp"))),
    "summed by a pattern": of_xw(lambda x, w: psum(marked(x, w) * 2, "[b/dp] n +tp -> [b/dp] n")),
    "scaled after an einsum": of_xw(
        lambda x, w: psum(3 * einsum(x, w, "[b/dp] [k/tp], [k/tp] n -> [b/dp] n +tp"), "[b/dp] n +tp -> [b/dp] n")
    ),
    "a loss that is summed later": of_rows(loss_of_shards),
    "a gradient of such a loss": of_rows(gradient_of_shards, result=WHOLE),
    "a sum over two axes": of_x(
        lambda x: lax.psum(2 * check(x.sum(), "+dp +tp"), ("dp", "tp")), result=NUMBER
    ),
    "one axis after the other": of_x(
        lambda x: lax.psum(tp(check(x.sum(), "+dp +tp")) / 2, "dp"), result=NUMBER
    ),
    "sent on over another axis": of_xw(lambda x, w: lax.ppermute(tp(lax.ppermute(marked(x, w), "dp", ring("dp"))), "dp",
        [(to, at) for at, to in ring("dp")])),
    "gathered over another axis": of_xw(
        lambda x, w: lax.pmean(tp(lax.all_gather(marked(x, w), "dp", tiled=True)).sum(0), "dp"), result=BIAS),
}  # fmt: skip

# What loses it, an error in either mode
LOST: dict[str, Program] = {
    "a relu": of_xw(
        lambda x, w: tp(jax.nn.relu(marked(x, w))), "relu is not linear, and its operand is a partial sum over 'tp'"
    ),
    "a gelu": of_xw(
        lambda x, w: tp(jax.nn.gelu(marked(x, w))), "is not linear, and its operand is a partial sum over 'tp'"
    ),
    "a tanh after a scaling": of_xw(lambda x, w: tp(jnp.tanh(marked(x, w) * 2)), "tanh is not linear, and its operand"),
    "a bias": of_xwb(
        lambda x, w, b: tp(marked(x, w) + b),
        TERM + ", due since",
    ),
    "a constant": of_xw(lambda x, w: tp(marked(x, w) + 1), TERM),
    "a square": of_xw(lambda x, w: tp(marked(x, w) ** 2), "is not linear, and its operand is a partial sum over 'tp'"),
    "a product of two": of_xw(lambda x, w: tp(marked(x, w) * marked(2 * x, w)), "mul " + FACTOR + ", due since"),
    "a contraction of two": of_xw(
        lambda x, w: tp(jnp.einsum("bn,bn->b", marked(x, w), marked(x, w))),
        "einsum " + FACTOR,
        Float[Array, "[b/dp]"],
    ),
    "a division by it": of_xw(lambda x, w: tp(1 / marked(x, w)), "div " + FACTOR),
    "a comparison": of_xw(lambda x, w: tp(jnp.where(marked(x, w) > 0, 1.0, 0.0)), "gt is not linear, and its operand"),
    "an argmax": of_xw(
        lambda x, w: tp(jnp.argmax(marked(x, w), 1) * 1.0), "argmax is not linear", Float[Array, "[b/dp]"]
    ),
    "a contraction that leaves what is sharded": of_xw(
        lambda x, w: lax.psum(x.T @ marked(x, w), "dp"),
        "dot_general " + FACTOR + ", due since",
        W,
    ),
    "a product with what is sharded": of_xw(lambda x, w: x * marked(x, w)[:, :1], "mul " + FACTOR + ", due since", X),
    "a maximum over a dim": of_xw(
        lambda x, w: tp(marked(x, w).max(1)), "reduce_max is not linear", Float[Array, "[b/dp]"]
    ),
    "a maximum of shards": of_xw(
        lambda x, w: lax.pmax(marked(x, w), "tp"), "pmax takes the maximum of partial sums over 'tp'"
    ),
    "another side that is not zeros": of_xw(
        lambda x, w: tp(jnp.where(jnp.arange(N) < 5, marked(x, w), 1.0)),
        "counts a term once per shard",
    ),
    "a softmax": of_xw(lambda x, w: tp(jax.nn.softmax(marked(x, w))), "is not linear"),
    "a relu in a jit": of_xw(lambda x, w: tp(jax.jit(jax.nn.relu)(marked(x, w))), "relu is not linear"),
    "a relu in a scan": of_xw(
        lambda x, w: tp(lax.scan(lambda c, _: (c, jax.nn.relu(c)), marked(x, w), None, length=2)[1].sum(0)),
        "relu is not linear",
    ),
    "an exp in a loop, of what comes in": of_xw(
        lambda x, w: tp(repeated(2, jnp.exp, marked(x, w))),
        "exp is not linear, and its operand is a partial sum over 'tp', due",
    ),
    "a branch that adds": of_xw(
        lambda x, w: tp(lax.cond(lax.pmax(x.max(), ("dp", "tp")) > 9, lambda y: y, lambda y: y + 1, marked(x, w))),
        "counts a term once per shard",
    ),
    "a nonlinear carry of a loop": of_xw(
        lambda x, w: tp(lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c) + 0 * c, marked(x, w))), "tanh is not linear"
    ),
    "a relu of what a pattern left": of_xw(
        lambda x, w: tp(jax.nn.relu(einsum(x, w, "[b/dp] [k/tp], [k/tp] n -> [b/dp] n +tp"))), "relu is not linear"
    ),
    "a relu of what a kernel left": of_xw(
        lambda x, w: tp(jax.nn.relu(check(kernel(x @ w), "[b/dp] n +tp"))), "relu is not linear", modes=(False,)
    ),
    "a relu of what is claimed in a scan": of_xw(
        lambda x, w: lax.scan(lambda c, _: (c + tp(jax.nn.relu(marked(x, w))), None), full(x, w), None, length=2)[0],
        "relu is not linear, and its operand is a partial sum over 'tp', due since",
    ),
    "a penalty": of_rows(
        lambda x, w: lax.psum(check(((x @ w) ** 2).sum(), "+dp") + 0.01 * (w**2).sum(), "dp"),
        "psum counts a term once per shard of 'dp'",
    ),
    "branches of which one is a sum": of_xw(
        lambda x, w: tp(lax.cond(lax.pmax(x.max(), ("dp", "tp")) > 9, lambda: marked(x, w), lambda: full(x, w) + 1)),
        TERM + ", due since",
        modes=(False,),
    ),
    "a mark of its own kind only": of_xw(
        lambda x, w: tp(check(marked(x, w), "[b/dp] n ~tp")), "is unreduced over 'tp'"
    ),
    "a log of a loss": of_rows(lambda x, w: lax.psum(jnp.log(local_loss(w, x)), "dp"), "log is not linear"),
    "not taken at all": of_xw(lambda x, w: marked(x, w), "return value"),
    "checked without the mark": of_xw(lambda x, w: tp(check(2 * marked(x, w), "[b/dp] n")), "checked value"),
}

# A sum that became due where no hint says so, and is lost; and one that is taken where none is due
SUSPECT: dict[str, Program] = {
    "a sum that is marked, summed twice": of_xw(lambda x, w: tp(tp(marked(x, w))), "a result is 2 times too large"),
    "the same with a scaling between": of_xw(
        lambda x, w: tp(2 * tp(marked(x, w)).T).T, TWICE
    ),
    "a relu": of_xw(lambda x, w: tp(jax.nn.relu(x @ w)), "relu is not linear, and its operand is a partial sum over 'tp'"),
    "a gelu of a sum": of_x(lambda x: tp(jax.nn.gelu(x.sum(1))), "is not linear", Float[Array, "[b/dp]"]),
    "a bias, then scaled": of_xwb(
        lambda x, w, b: 0.01 * tp(x @ w + b), TERM
    ),
    "a bias, then scaled by a power of two": of_xwb(
        lambda x, w, b: tp(x @ w + b) / 16, TERM
    ),
    "a bias": of_xwb(lambda x, w, b: tp(x @ w + b), TERM),
    "a residual that is added before": of_xw(
        lambda x, w: tp(x @ w + lax.psum(x @ w, "tp")), TERM
    ),
    "a layer without its sum, and a mean that hides it": of_xw(
        lambda x, w: lax.pmean(((x @ w - 1) ** 2).mean(), ("dp", "tp")), "is not linear", NUMBER
    ),
    "two layers, the first without its sum": Program(
        lambda x, w, v: tp(jnp.tanh(x @ w) @ v) / 2, (X, W, Float[Array, "n m"]), Float[Array, "[b/dp] m"],
        (*XW, numbers(N, 4)), "tanh is not linear",
    ),
    "a softmax of each shard's part": of_x(lambda x: jnp.exp(x) / jnp.exp(x).sum(1, keepdims=True), "div " + FACTOR),
    "a norm of each shard's part": of_x(lambda x: x / jnp.sqrt((x**2).mean(1, keepdims=True) + 1e-6), "is not linear"),
    "a mean of each shard's part, taken from it": of_x(
        lambda x: x - x.mean(1, keepdims=True), ROWS_OF_SHARD
    ),
    "a contraction that leaves what is sharded": of_xw(
        lambda x, w: lax.psum(x.T @ (x @ w), "dp"), "dot_general " + FACTOR + ", due since", W
    ),
    "a norm without the sum of squares": of_x(
        lambda x: lax.pmean(jnp.sqrt((x**2).sum()), ("dp", "tp")), "sqrt is not linear", NUMBER
    ),
    "summed twice": of_xw(lambda x, w: tp(tp(x @ w)), TWICE),
    "a loss summed over an axis too many": of_rows(
        lambda x, w: lax.psum((x @ w).sum(), ("dp", "tp")), TWICE, modes=(False,)
    ),
    "an argument that is the same, summed": of_rows(
        lambda x, w: lax.psum(w, "tp"), TWICE, WHOLE
    ),
    "a step, summed": of_rows(
        lambda x, w: lax.psum(w - 1e-3 * w, "tp"), TWICE, WHOLE
    ),
    "a mean that was taken, summed": of_rows(
        lambda x, w: lax.psum(lax.pmean((x @ w).mean(), "dp"), "dp"), "a result is 4 times too large on dp=4: it grows"
    ),
    "a penalty": of_rows(
        lambda x, w: lax.psum(((x @ w) ** 2).sum() + 0.01 * (w**2).sum(), "dp"), "psum counts a term once per shard"
    ),
}  # fmt: skip


def softmax_over_tp(x: Any) -> Any:
    largest = lax.pmax(lax.stop_gradient(x).max(1, keepdims=True), "tp")
    shares = jnp.exp(x - largest)
    return shares / tp(shares.sum(1, keepdims=True))


def logsumexp_of_shards(x: Any) -> Any:
    """Each shard's own, then that of those."""
    own = jax.nn.logsumexp(x, axis=1)
    largest = lax.pmax(own, "tp")
    return jnp.log(tp(jnp.exp(own - largest))) + largest


def logsumexp_of_gathered(x: Any) -> Any:
    own = lax.all_gather(jnp.log(jnp.exp(x).sum(1)), "tp")
    return lax.pmean(jax.nn.logsumexp(own, axis=0), "tp")


def attended(q: Any, k: Any, v: Any) -> Any:
    """Decoding over keys that are split, each shard with a softmax of its own, and their weighted mean."""
    scores = q @ k.T
    own = scores.max(1, keepdims=True)
    shares = jnp.exp(scores - own)
    total = shares.sum(1, keepdims=True)
    out, weight = (shares @ v) / total, jnp.log(total) + own
    weight = jnp.exp(weight - lax.pmax(weight, "tp"))
    return tp(out * weight) / tp(weight)


def rescaled(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.T
    own = scores.max(1, keepdims=True)
    shares = jnp.exp(scores - own)
    scale = jnp.exp(own - lax.pmax(own, "tp"))
    return tp((shares @ v) * scale) / tp(shares.sum(1, keepdims=True) * scale)


def layer_norm(x: Any) -> Any:
    mean = lax.pmean(x.mean(1, keepdims=True), "tp")
    variance = lax.pmean(((x - mean) ** 2).mean(1, keepdims=True), "tp")
    return (x - mean) * lax.rsqrt(variance + 1e-6)


def merged_variance(x: Any) -> Any:
    """By each shard's mean and squares, as Chan et al. merge them."""
    own, count = x.mean(), x.size
    mean = lax.pmean(own, ("dp", "tp"))
    squares = ((x - own) ** 2).sum() + count * (own - mean) ** 2
    return lax.psum(squares, ("dp", "tp")) / (count * lax.axis_size("dp") * lax.axis_size("tp"))


def gathering_matmul(x: Any, w: Any) -> Any:
    """Columns go around, and every shard multiplies each of them by the rows of a whole weight that it needs."""
    shards, size = lax.axis_size("tp"), x.shape[1]
    at, total = lax.axis_index("tp"), jnp.zeros((x.shape[0], N))
    for step in range(shards):
        total = total + x @ lax.dynamic_slice_in_dim(w, (at - step) % shards * size, size)
        x = lax.ppermute(x, "tp", ring("tp"))
    return lax.pmean(jnp.tanh(total), "tp")


def gathering_matmul_in_a_loop(x: Any, w: Any) -> Any:
    shards, size, at = lax.axis_size("tp"), x.shape[1], lax.axis_index("tp")

    def step(number: Any, carry: Any) -> Any:
        x, total = carry
        total = total + x @ lax.dynamic_slice_in_dim(w, (at - number) % shards * size, size)
        return lax.ppermute(x, "tp", ring("tp")), total

    start = (x, jnp.zeros((x.shape[0], N)) + 0 * x[:, :1])
    return lax.pmean(jnp.tanh(lax.fori_loop(0, shards, step, start)[1]), "tp")


def scattering_matmul(x: Any, w: Any) -> Any:
    """Sums go around, and collect an addend on every shard."""
    shards, size, at = lax.axis_size("tp"), N // lax.axis_size("tp"), lax.axis_index("tp")
    total = jnp.zeros((x.shape[0], size))
    for step in range(shards):
        total = lax.ppermute(total, "tp", ring("tp")) if step else total
        part = lax.dynamic_slice_in_dim(w, (at - step - 1) % shards * size, size, axis=1)
        total = total + x @ part
    return jax.nn.relu(total)


def trained(x: Any, w: Any) -> Any:
    """A step by the gradient of the global loss, which JAX sums where it types values."""

    def loss(w: Any) -> Any:
        return lax.pmean(((jax.nn.relu(x @ w) - 1) ** 2).mean(), "dp")

    gradient = jax.grad(loss)(w)
    norm = jnp.sqrt((gradient**2).sum())
    return w - 0.1 * gradient / (norm + 1e-6)


def scattered_by_hand(x: Any, w: Any) -> Any:
    """A psum_scatter as a ring: every shard adds its part of what came to it, and sends that on."""
    y, shards = x @ w, lax.axis_size("tp")
    total = own_part(y, -1)
    for step in range(1, shards):
        total = lax.ppermute(total, "tp", ring("tp")) + own_part(y, -1 - step)
    return total


# Right programs that look like those, and of which nothing is said
RIGHT: dict[str, Program] = {
    "a mean of means": of_x(lambda x: lax.pmean(x.mean(), ("dp", "tp")), result=NUMBER),
    "a local loss and a penalty, averaged": of_rows(
        lambda x, w: lax.pmean(((x @ w) ** 2).mean() + 0.1 * (w**2).sum(), "dp")
    ),
    "a softmax": of_x(softmax_over_tp),
    "a layer norm": of_x(layer_norm),
    "a logsumexp of shards' own": of_x(logsumexp_of_shards, result=Float[Array, "[b/dp]"]),
    "a logsumexp of gathered ones": of_x(logsumexp_of_gathered, result=Float[Array, "[b/dp]"]),
    "attention over split keys": Program(
        attended, (Float[Array, "q d"], Float[Array, "[s/tp] d"], Float[Array, "[s/tp] d"]), Float[Array, "q d"],
        (numbers(3, 4), numbers(16, 4), numbers(16, 4)),
    ),
    "attention over split keys, rescaled": Program(
        rescaled, (Float[Array, "q d"], Float[Array, "[s/tp] d"], Float[Array, "[s/tp] d"]), Float[Array, "q d"],
        (numbers(3, 4), numbers(16, 4), numbers(16, 4)),
    ),
    "a variance by shards": of_x(merged_variance, result=NUMBER),
    "a global norm": of_x(lambda x: jnp.sqrt(lax.psum((x**2).sum(), ("dp", "tp"))), result=NUMBER),
    "a norm by norms of shards": of_x(
        lambda x: jnp.sqrt(lax.psum(jnp.linalg.norm(x) ** 2, ("dp", "tp"))), result=NUMBER
    ),
    "clipped by the global norm": of_x(
        lambda x: x * jnp.minimum(1.0, 1 / (jnp.sqrt(lax.psum((x**2).sum(), ("dp", "tp"))) + 1e-6))
    ),
    "a matmul that gathers as it goes": Program(gathering_matmul, (X, WHOLE), Y, XW),
    "the same in a loop": Program(gathering_matmul_in_a_loop, (X, WHOLE), Y, XW),
    "a matmul that scatters as it goes": Program(scattering_matmul, (X, W), Float[Array, "[b/dp] [n/tp]"], XW),
    "parts of a sum that go around": of_xw(scattered_by_hand, result=Float[Array, "[b/dp] [n/tp]"]),
    "a step of training": of_rows(trained, result=WHOLE, modes=(True,)),
    "a bias after the sum": of_xwb(lambda x, w, b: jax.nn.relu(tp(x @ w) + b)),
    "a sum beside a count": of_x(by_count, result=NUMBER),
    "a sum of means and of what is the same, shared out": of_x(means_shared_out, result=NUMBER),
    "a bias and a partial sum, shared out before the sum": of_xwb(
        lambda x, w, b: tp((x @ w * lax.axis_size("tp") + b) / lax.axis_size("tp"))
    ),
    "a bias on one shard": of_xwb(lambda x, w, b: tp(x @ w + on_one_shard(b))),
    "a share of a bias on every shard": of_xwb(lambda x, w, b: tp(x @ w + b / lax.axis_size("tp"))),
    "a share of what is the same": of_rows(lambda x, w: tp(lax.pmean(x.mean(), "dp") / lax.axis_size("tp"))),
    "another share of it": of_rows(lambda x, w: tp(lax.pmean(x.mean(), "dp") * (1 / lax.axis_size("tp")))),
    "a share of a penalty": of_rows(
        lambda x, w: lax.psum(((x @ w) ** 2).sum() + (1 / lax.axis_size("dp")) * (w**2).sum(), "dp")
    ),
    "each shard's own, marked as such": of_x(
        lambda x: lax.pmax(jnp.tanh(check(x.sum(1), "[b/dp] ~tp")), "tp") * 0, result=Float[Array, "[b/dp]"]
    ),
    "a count of shards": of_rows(
        lambda x, w: lax.psum(x.sum(), "dp") / lax.psum(jnp.float32(x.shape[0]), "dp") / lax.psum(1, "tp")
        * lax.psum(jnp.ones(()), "tp")
    ),
    "a mean of what is the same": of_rows(lambda x, w: lax.pmean(lax.pmean(x.mean(), "dp"), ("dp", "tp"))),
    "a mean by two sums over all": of_rows(
        lambda x, w: lax.psum(x.sum(), ("dp", "tp")) / lax.psum((0 * x + 1).sum(), ("dp", "tp")), modes=(False,)
    ),
    "a masked lookup": Program(
        lambda table: take(table, jnp.arange(4), "[v/tp] m, i -> i m"), (Float[Array, "[v/tp] m"],),
        Float[Array, "4 m"], (numbers(16, 4),),
    ),
    # Each shard's own, as a check of the result says.
    "a local weighted mean that is stated": of_rows(
        lambda x, w: lax.psum(0 * check((x * x).sum(0) / x.sum(0), "k ~dp").sum(), "dp")
    ),
    "a local deviation that is stated": of_rows(lambda x, w: lax.psum(0 * check(x.std(0), "k ~dp").sum(), "dp")),
    "a sum over a dim along which all is repeated": of_rows(
        lambda x, w: reduce(repeat(w, "k n -> k n [r/tp]", r=4), "k n [r/tp] -> k n", "sum"), result=WHOLE
    ),
    "the same by hand": of_rows(
        lambda x, w: tp(check(w[..., None].repeat(4 // lax.axis_size("tp"), 2), "k n [4/tp]").sum(2)), result=WHOLE
    ),
    "a sum by a pattern": of_xw(
        lambda x, w: jax.nn.relu(einsum(x, w, "[b/dp] [k/tp], [k/tp] n -> [b/dp] n"))
        / reduce(x, "[b/dp] [k/tp] ->", "sum")
    ),
}  # fmt: skip
