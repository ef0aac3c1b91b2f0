"""Right and wrong programs, each with what is wrong with it, whatever ``check_vma`` says.

A right one gives the same result on one device as on eight, which a test holds: so the table cannot
call a wrong program right.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from typedshmap import (
    Array,
    Float,
    Int,
    all_gather,
    all_to_all,
    check,
    einsum,
    psum,
    rearrange,
    reduce,
    size,
    take,
    typed,
)

F = Float[Array, "[b/dp] d"]
X = Float[Array, "[b/dp] [k/tp]"]
W = Float[Array, "[k/tp] n"]
WHOLE = Float[Array, "k n"]
B, K, N = 8, 16, 12


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


class Program(NamedTuple):
    """One program.

    Attributes:
      hints: of its arguments.
      result: the hint of its result.
      body: what it does with the shards.
      args: global arrays.
      said: what the first line of its error says; None for a right one.
    """

    hints: tuple[Any, ...]
    result: Any
    body: Callable[..., Any]
    args: tuple[Any, ...]
    said: str | None = None


XW = (numbers(B, K), numbers(K, N))
TP = "return value varies over 'tp', which its hint does not mention"
DP = "return value varies over 'dp', which its hint does not mention"
OUT = Float[Array, "[b/dp] n"]
WOVEN = "return value has interleaved shards over 'dp' in dim 0, but its hint says sharded over 'dp'"


def summed(x: Any, *axes: str) -> Any:
    return lax.psum(x, axes or ("dp", "tp"))


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return x * 2


doubled.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 2,))


@jax.custom_jvp
def tripled(x: Any) -> Any:
    return x * 3


tripled.defjvp(lambda primals, tangents: (primals[0] * 3, tangents[0] * 3))


def product(x: Any, w: Any) -> Any:
    return x @ w


def kernel(x: Any) -> Any:
    return jax.pure_callback(lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@typed
def helper(x: Float[Array, "[b/dp] k"], w: Float[Array, "k n"]) -> Float[Array, "[b/dp] n"]:
    return x @ w


@typed
def partial_product(x: X, w: W) -> Float[Array, "[b/dp] n +tp"]:
    return x @ w


def gathered(w: Any, axis: str = "tp", dim: int = 0) -> Any:
    return lax.all_gather(w, axis, axis=dim, tiled=True)


def own_part(x: Any, *axes: str) -> Any:
    """The part of the first dim that belongs to a shard along mesh axes, major to minor."""
    number, shards = 0, 1
    for axis in axes:
        number, shards = number * lax.axis_size(axis) + lax.axis_index(axis), shards * lax.axis_size(axis)
    return lax.dynamic_slice_in_dim(x, number * (x.shape[0] // shards), x.shape[0] // shards)


def root_of(f: Callable[[Any], Any], of: Any) -> Any:
    """Where ``f`` is zero, by a solver whose program JAX keeps as one operation."""

    def solve(f: Callable[[Any], Any], x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, x: x - f(x), x)

    return lax.custom_root(f, jnp.zeros_like(of), solve, lambda g, y: y / g(jnp.ones_like(y)))


def solution_of(f: Callable[[Any], Any], of: Any) -> Any:
    """What a linear function maps to a value, by a solver of that kind."""

    def solve(f: Callable[[Any], Any], x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, y: y - (f(y) - x) / 99, x)

    return lax.custom_linear_solve(f, of, solve, symmetric=True)


def repeated(times: int, step: Callable[[Any], Any], x: Any) -> Any:
    return lax.fori_loop(0, times, lambda _, c: step(c), x)


def ring(axis: str, by: int = 1) -> list[tuple[int, int]]:
    count = lax.axis_size(axis)
    return [(at, (at + by) % count) for at in range(count)]


def varied(x: Any, axes: Any = "dp") -> Any:
    return lax.pcast(x, axes, to="varying")


def major_to_minor(major: int, minor: int) -> list[tuple[int, int]]:
    """Where each shard goes, for the axes of a dim to change places."""
    return [(at, at % major * minor + at // major) for at in range(major * minor)]


def index_of(*axes: str) -> Any:
    """A shard's number along mesh axes, major to minor."""
    number = 0
    for axis in axes:
        number = number * lax.axis_size(axis) + lax.axis_index(axis)
    return number


def shards_of(*axes: str) -> int:
    return prod(lax.axis_size(axis) for axis in axes)


def with_halves_swapped(x: Any, swap: Callable[[Any], Any]) -> Any:
    """Blocks of four rows, each with its two halves swapped: where a shard has one block, its dim is of size 1."""
    return swap(x.reshape(-1, 2, 2, x.shape[1])).reshape(x.shape)


def heads(x: Any, w: Any, size: int) -> Any:
    return (x @ w).reshape(*x.shape[:2], -1, size)


def attention_of_heads(x: Any, w: Any, v: Any) -> Any:
    q = heads(x, w, 8)
    weights = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", q, q), -1)
    out = jnp.einsum("bhst,bthd->bshd", weights, q / jnp.sqrt((q**2).mean(-1, keepdims=True)))
    return summed(out.reshape(*x.shape[:2], -1) @ v, "tp")


def transposed_by_hand(x: Any) -> Any:
    parts = x.reshape(x.shape[0], lax.axis_size("dp"), -1, x.shape[2])
    parts = lax.all_to_all(parts, "dp", 1, 0)
    return check(parts.reshape(-1, *parts.shape[2:]).transpose(1, 0, 2), "[b/dp] s d")


def ring_attention(q: Any, k: Any, v: Any) -> Any:
    def iteration(_: int, carry: Any) -> Any:
        k, v, largest, total, out = carry
        scores = q @ k.T
        now = jnp.maximum(largest, scores.max(1))
        weights, scale = jnp.exp(scores - now[:, None]), jnp.exp(largest - now)
        out = check(out * scale[:, None] + weights @ v, "[s/dp] d")
        k, v = (lax.ppermute(x, "dp", ring("dp")) for x in (k, v))
        return k, v, now, total * scale + weights.sum(1), out

    rows = q.shape[:1]
    start = (k, v, varied(jnp.full(rows, -jnp.inf)), varied(jnp.zeros(rows)), varied(jnp.zeros(q.shape)))
    *_, total, out = lax.fori_loop(0, lax.axis_size("dp"), iteration, start)
    return out / total[:, None]


def with_neighbours(x: Any, axis: str, dim: int) -> Any:
    first, last = lax.slice_in_dim(x, 0, 1, axis=dim), lax.slice_in_dim(x, -1, None, axis=dim)
    before, after = lax.ppermute(last, axis, ring(axis)), lax.ppermute(first, axis, ring(axis, -1))
    return jnp.concatenate([before, x, after], dim)


def stencil(x: Any) -> Any:
    x = with_neighbours(with_neighbours(x, "dp", 0), "tp", 1)
    return check((x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) / 4, "[h/dp] [w/tp]")


def accumulated(x: Any, w: Any) -> Any:
    def step(total: Any, rows: Any) -> Any:
        return total + jax.grad(lambda w: ((rows @ w) ** 2).mean())(varied(w)), None

    rows = check(x.reshape(2, -1, x.shape[1]), "m [_/dp] k")
    return lax.pmean(lax.scan(step, varied(jnp.zeros_like(w)), rows)[0], "dp")


def sent_to_experts(x: Any, router: Any, experts: Any) -> Any:
    tokens = check(x.reshape(-1, x.shape[2]), "[t/dp] d")
    expert = jnp.argmax(tokens @ router, 1)
    order = jnp.argsort(expert)
    mine = expert[order]
    place = jnp.arange(len(mine)) - jnp.searchsorted(mine, mine)
    sent = jnp.zeros((router.shape[1], *tokens.shape)).at[mine, place].set(tokens[order])
    sent = all_to_all(check(sent, "e [c/dp] d"), "e [c/dp] d -> [e/dp] c d")
    back = all_to_all(jnp.einsum("ecd,edf->ecf", sent, experts), "[e/dp] c d -> e [c/dp] d")
    return jnp.zeros_like(tokens).at[order].set(back[mine, place]).reshape(x.shape)


def vocabulary_loss(logits: Any, labels: Any) -> Any:
    largest = lax.pmax(logits.max(1), "tp")
    total = jnp.log(summed(jnp.exp(logits - largest[:, None]).sum(1), "tp")) + largest
    here = labels - lax.axis_index("tp") * logits.shape[1]
    is_here = (here >= 0) & (here < logits.shape[1])
    taken = jnp.take_along_axis(logits, jnp.clip(here, 0, logits.shape[1] - 1)[:, None], 1)[:, 0]
    return lax.pmean((total - summed(jnp.where(is_here, taken, 0), "tp")).mean(), "dp")


def conjugate_gradients(a: Any, b: Any) -> Any:
    def dot(x: Any, y: Any) -> Any:
        return summed(x @ y, "dp")

    def iteration(state: Any) -> Any:
        x, rest, way, before = state
        pushed = a @ lax.all_gather(way, "dp", tiled=True)
        step = before / dot(way, pushed)
        rest, now = rest - step * pushed, dot(rest - step * pushed, rest - step * pushed)
        return x + step * way, rest, rest + now / before * way, now

    return lax.while_loop(lambda state: state[3] > 1e-9, iteration, (jnp.zeros_like(b), b, b, dot(b, b)))[0]


RIGHT: dict[str, Program] = {
    "a product and its sum": Program((X, W), OUT, lambda x, w: summed(x @ w, "tp"), XW),
    "the sum under jit": Program((X, W), OUT, lambda x, w: summed(jax.jit(product)(x, w), "tp"), XW),
    "the sum inside a jit": Program((X, W), OUT, jax.jit(lambda x, w: summed(x @ w, "tp")), XW),
    "the sum under a checkpoint": Program((X, W), OUT, jax.checkpoint(lambda x, w: summed(x @ w, "tp")), XW),
    "a maximum": Program((X,), Float[Array, "[b/dp]"], lambda x: lax.pmax(x.max(1), "tp"), XW[:1]),
    "a mean of all": Program((X,), Float[Array, ""], lambda x: lax.pmean(x.mean(), ("dp", "tp")), XW[:1]),
    "one sum after the other": Program((X,), Float[Array, ""], lambda x: summed(summed(x.sum(), "tp"), "dp"), XW[:1]),
    "a sum scattered": Program(
        (X, W),
        Float[Array, "[b/dp] [n/tp]"],
        lambda x, w: lax.psum_scatter(x @ w, "tp", scatter_dimension=1, tiled=True),
        XW,
    ),
    "elementwise": Program((X,), X, lambda x: jax.nn.gelu(x) * 2 + 1, XW[:1]),
    "transposed": Program((X,), Float[Array, "[k/tp] [b/dp]"], lambda x: x.T, XW[:1]),
    "transposed twice": Program((X,), X, lambda x: x.T.T, XW[:1]),
    "a sum over whole dims": Program((F,), Float[Array, "[b/dp]"], lambda x: x.sum(1), XW[:1]),
    "a dim cut that is whole": Program((F,), Float[Array, "[b/dp] 3"], lambda x: x[:, 2:5], XW[:1]),
    "dims merged, the major split": Program((F,), Float[Array, "[bd/dp]"], lambda x: x.reshape(-1), XW[:1]),
    "a dim split, the major stays": Program(
        (F,), Float[Array, "[_/dp] 2 d"], lambda x: x.reshape(-1, 2, x.shape[1]), (numbers(16, 4),)
    ),
    "a dim more of size 1": Program((F,), Float[Array, "1 [b/dp] d"], lambda x: x[None], XW[:1]),
    "heads split off": Program((X,), Float[Array, "[b/dp] [h/tp] 4"], lambda x: x.reshape(x.shape[0], -1, 4), XW[:1]),
    "concatenated along a whole dim": Program(
        (F,), Float[Array, "[b/dp] 2*d"], lambda x: jnp.concatenate([x, x], 1), XW[:1]
    ),
    "a constant as a sharded result": Program((F,), F, lambda x: jnp.ones_like(x), XW[:1]),
    "zeros as a result without sharding": Program((F,), Float[Array, "3"], lambda x: jnp.zeros(3), XW[:1]),
    "a sum as a sharded result": Program(
        (Float[Array, "[b/dp]"],), Float[Array, "[s/dp]"], lambda x: summed(x * 0, "dp"), (numbers(8),)
    ),
    "a shard's own index": Program((F,), F, lambda x: x + lax.axis_index("dp") * 0.0, XW[:1]),
    "a stack of the shards' sums": Program((F,), Float[Array, "d"], lambda x: summed(x.sum(0), "dp"), XW[:1]),
    "a scan over the rows": Program((F,), F, lambda x: lax.scan(lambda c, row: (c, row * 2), 0.0, x)[1], XW[:1]),
    "a scan with a sum in each iteration": Program(
        (X,),
        Float[Array, "[b/dp]"],
        lambda x: lax.scan(lambda c, row: (c, summed(row.sum(), "tp")), 0.0, x)[1],
        XW[:1],
    ),
    "a loop": Program((F,), F, lambda x: repeated(3, jnp.sin, x), XW[:1]),
    "a loop until a global test": Program(
        (F,),
        F,
        lambda x: lax.while_loop(lambda c: lax.pmax(jnp.abs(c).max(), "dp") > 0.1, lambda c: c / 2, x),
        XW[:1],
    ),
    "a loop that counts until a global test": Program(
        (F,),
        Int[Array, ""],
        lambda x: lax.while_loop(
            lambda c: lax.pmax(jnp.abs(c[1]).max(), "dp") > 0.1, lambda c: (c[0] + 1, c[1] / 2), (0, x)
        )[0],
        XW[:1],
    ),
    "a branch by a global test": Program(
        (X,),
        X,
        lambda x: lax.cond(lax.pmax(x.max(), ("dp", "tp")) > 0, lambda: x, lambda: -x),
        XW[:1],
    ),
    "branches that sum": Program(
        (X, W),
        OUT,
        lambda x, w: lax.cond(
            lax.pmax(x.max(), ("dp", "tp")) > 100, lambda: summed(x @ w, "tp"), lambda: summed(2 * x @ w, "tp")
        ),
        XW,
    ),
    "a function with a gradient of its own": Program((F,), F, lambda x: doubled(x), XW[:1]),
    "a function with a tangent of its own": Program((F,), F, lambda x: tripled(x), XW[:1]),
    "mapped over rows": Program((F,), F, lambda x: jax.vmap(lambda row: row / row.sum())(x), XW[:1]),
    "a softmax over a whole dim": Program((F,), F, lambda x: jax.nn.softmax(x), XW[:1]),
    "a softmax over a sharded dim": Program(
        (X,),
        X,
        lambda x: jnp.exp(x) / summed(jnp.exp(x).sum(1, keepdims=True), "tp"),
        XW[:1],
    ),
    "rows taken by global ids": Program(
        (WHOLE, Int[Array, "[b/dp]"]),
        OUT,
        lambda table, ids: table[ids],
        (numbers(K, N), np.arange(8) % K),
    ),
    "an update in place": Program((F,), F, lambda x: x.at[:, 0].set(1.0), XW[:1]),
    "a cumulative sum along a whole dim": Program((F,), F, lambda x: jnp.cumsum(x, 1), XW[:1]),
    "sorted along a whole dim": Program((F,), F, lambda x: jnp.sort(x, 1), XW[:1]),
    "shards sent around": Program(
        (Float[Array, "[s/dp] d"],),
        Float[Array, "d"],
        lambda x: summed(
            lax.ppermute(x, "dp", [(i, (i + 1) % lax.axis_size("dp")) for i in range(lax.axis_size("dp"))]).sum(0), "dp"
        ),
        XW[:1],
    ),
    "dims exchanged": Program(
        (Float[Array, "[s/tp] h d"],),
        Float[Array, "s [h/tp] d"],
        lambda x: lax.all_to_all(x, "tp", 1, 0, tiled=True),
        (numbers(4, 6, 2),),
    ),
    "dims exchanged and back": Program(
        (Float[Array, "[s/tp] h d"],),
        Float[Array, "[s/tp] h d"],
        lambda x: lax.all_to_all(lax.all_to_all(x, "tp", 1, 0, tiled=True), "tp", 0, 1, tiled=True),
        (numbers(4, 6, 2),),
    ),
    "random numbers of one key": Program(
        (F,), Float[Array, "3"], lambda x: jax.random.normal(jax.random.key(0), (3,)), XW[:1]
    ),
    "a gathered weight in a helper": Program(
        (F, Float[Array, "[d/dp] n"]), OUT, lambda x, w: helper(x, gathered(w, "dp")), XW
    ),
    "a gathered weight that was worked on": Program(
        (F, Float[Array, "[d/dp] n"]), OUT, lambda x, w: helper(x, jnp.tanh(gathered(w, "dp") * 2)), XW
    ),
    "a gathered weight, checked": Program(
        (F, Float[Array, "[d/dp] n"]), OUT, lambda x, w: x @ check(gathered(w, "dp"), "d n"), XW
    ),
    "a gathered weight in a scan": Program(
        (F, Float[Array, "layers [d/dp] e"]),
        F,
        lambda x, w: lax.scan(lambda x, w: (helper(x, gathered(w, "dp")), None), x, w)[0],
        (numbers(8, 8), numbers(2, 8, 8)),
    ),
    "a partial sum, and taken": Program((X, W), OUT, lambda x, w: lax.psum(partial_product(x, w), "tp"), XW),
    "two partial sums, taken as one": Program(
        (X, W), OUT, lambda x, w: lax.psum(partial_product(x, w) + partial_product(2 * x, w), "tp"), XW
    ),
    "an einsum that sums": Program((X, W), OUT, lambda x, w: einsum(x, w, "[b/dp] [k/tp], [k/tp] n -> [b/dp] n"), XW),
    "an operation that gathers": Program(
        (F, Float[Array, "[d/dp] n"]),
        OUT,
        lambda x, w: einsum(x, all_gather(w, "[d/dp] n -> d n ~dp"), "[b/dp] d, d n -> [b/dp] n"),
        XW,
    ),
    "an embedding": Program(
        (Float[Array, "[v/tp] m"], Int[Array, "[b/dp]"]),
        Float[Array, "[b/dp] m"],
        lambda table, ids: take(table, ids, "[v/tp] m, [b/dp] -> [b/dp] m"),
        (numbers(K, N), np.arange(8) % K),
    ),
    "a global mean by its size": Program((F,), Float[Array, "d"], lambda x: summed(x.sum(0), "dp") / size("b"), XW[:1]),
    "a kernel, shard by shard": Program((F,), F, kernel, XW[:1]),
    "a kernel on what is equal": Program((F,), Float[Array, "d"], lambda x: kernel(summed(x.sum(0), "dp")), XW[:1]),
    "a gradient of what is local": Program((F,), F, jax.grad(lambda x: (x**2).sum()), XW[:1]),
    "two axes on a dim, gathered in order": Program(
        (Float[Array, "[b/dp,tp] d"],),
        Float[Array, "d"],
        lambda x: lax.pmean(check(gathered(gathered(x, "tp"), "dp"), "b d").sum(0), ("dp", "tp")),
        XW[:1],
    ),
    "tokens flattened on the shard and back": Program(
        (Float[Array, "[b/dp] [s/tp] d"],),
        Float[Array, "[b/dp] [s/tp] d"],
        lambda x: jnp.tanh(check(x.reshape(-1, x.shape[2]), "[_/dp,tp] d")).reshape(x.shape),
        (numbers(8, 4, 2),),
    ),
    "a shard's own part of a whole dim": Program(
        (Float[Array, "n d"],), Float[Array, "[n/dp,tp] d"], lambda x: own_part(x, "dp", "tp"), (numbers(16, 3),)
    ),
    "a shard's own row": Program(
        (Float[Array, "n d"],),
        Float[Array, "[n/dp] d"],
        lambda x: check(x.reshape(lax.axis_size("dp"), -1, x.shape[1])[lax.axis_index("dp")], "[n/dp] d"),
        (numbers(8, 3),),
    ),
    "two sharded dims merged and split again": Program(
        (Float[Array, "[b/dp] [s/tp] d"],),
        Float[Array, "[b/dp] [s/tp] d"],
        lambda x: check(jnp.sin(x.reshape(-1, x.shape[2])).reshape(x.shape), "[b/dp] [s/tp] d"),
        (numbers(8, 4, 2),),
    ),
    "a root of a function that sums": Program(
        (F,), Float[Array, ""], lambda x: root_of(lambda y: y - summed(check(x, "[b/dp] d").sum(), "dp"), 0.0), XW[:1]
    ),
    "a root on every shard": Program(
        (F,), F, lambda x: check(root_of(lambda y: y - jnp.ldexp(x, 1), x), "[b/dp] d"), XW[:1]
    ),
    "a linear system": Program(
        (Float[Array, "b b"], Float[Array, "[d/dp] b"]),
        Float[Array, "b"],
        lambda a, rows: check(solution_of(lambda x: a @ x, summed(rows.sum(0), "dp")), "b"),
        (numbers(8, 8), numbers(8, 8)),
    ),
    "an associative scan along a whole dim": Program(
        (F,), F, lambda x: lax.associative_scan(jnp.add, x, axis=1), XW[:1]
    ),
    "rows in microbatches, each of them sharded": Program(
        (F,),
        Float[Array, "d"],
        lambda x: summed(jnp.sin(check(x.reshape(2, -1, x.shape[1]), "m [_/dp] d")).sum((0, 1)), "dp"),
        (numbers(32, 4),),
    ),
    "tokens of one row per shard flattened and back": Program(
        (Float[Array, "[b/dp] s d"],),
        Float[Array, "[b/dp] s d"],
        lambda x: jnp.tanh(check(x.reshape(-1, x.shape[2]), "[_/dp] d")).reshape(x.shape),
        (numbers(4, 6, 2),),
    ),
    "shards put in another order": Program(
        (Float[Array, "[b/dp,tp] d"],),
        Float[Array, "[b/tp,dp] d"],
        lambda x: lax.ppermute(x, ("dp", "tp"), major_to_minor(lax.axis_size("dp"), lax.axis_size("tp"))),
        (numbers(16, 4),),
    ),
    "rows for columns, exchanged by hand": Program(
        (Float[Array, "[s/dp] b d"],),
        Float[Array, "[b/dp] s d"],
        transposed_by_hand,
        (numbers(8, 8, 2),),
    ),
    "attention around a ring": Program(
        (Float[Array, "[s/dp] d"],) * 3, Float[Array, "[s/dp] d"], ring_attention, (numbers(8, 4),) * 3
    ),
    "a stencil with its neighbours' rows": Program(
        (Float[Array, "[h/dp] [w/tp]"],),
        Float[Array, "[h/dp] [w/tp]"],
        lambda x: repeated(3, stencil, check(x, "[h/dp] [w/tp]")),
        (numbers(8, 8),),
    ),
    "a gradient summed over microbatches": Program(
        (F, WHOLE), Float[Array, "k n"], accumulated, (numbers(32, K), XW[1])
    ),
    "tokens sent to experts and back": Program(
        (Float[Array, "[b/dp] s d"], Float[Array, "d e"], Float[Array, "[e/dp] d d"]),
        Float[Array, "[b/dp] s d"],
        sent_to_experts,
        (numbers(4, 8, 6), numbers(6, 4), numbers(4, 6, 6)),
    ),
    "a loss over a vocabulary that is split": Program(
        (Float[Array, "[b/dp] [v/tp]"], Int[Array, "[b/dp]"]),
        Float[Array, ""],
        vocabulary_loss,
        (numbers(8, 8), np.arange(8, dtype=np.int32)),
    ),
    "a solver by conjugate gradients": Program(
        (Float[Array, "[n/dp] n"], Float[Array, "[n/dp]"]),
        Float[Array, "[n/dp]"],
        conjugate_gradients,
        (np.eye(8, dtype=np.float32) * 3 + 0.2, numbers(8)),
    ),
    "halves of each block swapped by a transpose": Program(
        (F,), F, lambda x: with_halves_swapped(x, lambda y: y.transpose(0, 2, 1, 3)), (numbers(16, 3),)
    ),
    "halves of each block swapped": Program(
        (F,), F, lambda x: with_halves_swapped(x, lambda y: y[:, ::-1]), (numbers(16, 3),)
    ),
    "halves of each of several blocks swapped": Program(
        (F,), F, lambda x: with_halves_swapped(x, lambda y: jnp.roll(y, 1, 1)), (numbers(32, 3),)
    ),
    "halves of each block swapped, and declared": Program(
        (F,),
        F,
        lambda x: rearrange(
            check(rearrange(x, "[(n h i)/dp] d -> [n/dp] h i d", h=2, i=2)[:, ::-1], "[n/dp] h i d"),
            "[n/dp] h i d -> [(n h i)/dp] d",
        ),
        (numbers(16, 3),),
    ),
    "one head per shard": Program(
        (Float[Array, "[b/dp] s m"], Float[Array, "m [h/tp]"], Float[Array, "[h/tp] m"]),
        Float[Array, "[b/dp] s m"],
        attention_of_heads,
        (numbers(4, 3, 8), numbers(8, 16), numbers(16, 8)),
    ),
    "a gather along a new dim, flattened": Program(
        (F,), Float[Array, "b d"], lambda x: lax.pmax(lax.all_gather(x, "dp").reshape(-1, x.shape[1]), "dp"), XW[:1]
    ),
    "columns gathered along a new dim, and put in order": Program(
        (Float[Array, "b [d/tp]"],),
        Float[Array, "b d"],
        lambda x: lax.pmax(lax.all_gather(x, "tp").transpose(1, 0, 2).reshape(x.shape[0], -1), "tp"),
        XW[:1],
    ),
    "gathered over both axes, the other way, and put in order": Program(
        (Float[Array, "[b/dp,tp] d"],),
        Float[Array, "b d"],
        lambda x: lax.pmax(
            lax.all_gather(x, ("tp", "dp"), tiled=True)
            .reshape(lax.axis_size("tp"), lax.axis_size("dp"), *x.shape)
            .swapaxes(0, 1)
            .reshape(-1, x.shape[1]),
            ("dp", "tp"),
        ),
        (numbers(16, 3),),
    ),
    "a shard's own of what was gathered": Program(
        (F,), F, lambda x: lax.all_gather(x, "dp", axis=1)[:, lax.axis_index("dp")], XW[:1]
    ),
    "every other row": Program((F,), Float[Array, "[c/dp] d"], lambda x: x[1::2], (numbers(16, 3),)),
    "the minor of two axes exchanged": Program(
        (Float[Array, "[b/dp,tp] h"],),
        Float[Array, "[b/dp] [h/tp]"],
        lambda x: lax.all_to_all(x, "tp", 1, 0, tiled=True),
        (numbers(16, 4),),
    ),
    "exchanged in microbatches and back": Program(
        (Float[Array, "[b/dp] h"],),
        Float[Array, "[b/dp] h"],
        lambda x: lax.all_to_all(
            jnp.sin(lax.all_to_all(x.reshape(2, -1, x.shape[1]), "dp", 2, 1, tiled=True)), "dp", 1, 2, tiled=True
        ).reshape(x.shape),
        (numbers(32, 4),),
    ),
    "own rows by both indices": Program(
        (Float[Array, "n d"], Float[Array, "[n/dp,tp] d"]),
        Float[Array, "[n/dp,tp] d"],
        lambda w, x: lax.dynamic_slice_in_dim(w, index_of("dp", "tp") * x.shape[0], x.shape[0]) + x,
        (numbers(16, 3), numbers(16, 3)),
    ),
    "own rows of a longer table": Program(
        (Float[Array, "n d"], F),
        F,
        lambda w, x: lax.dynamic_slice_in_dim(w, index_of("dp") * x.shape[0], x.shape[0]) + x,
        (numbers(16, 3), numbers(8, 3)),
    ),
}

WRONG: dict[str, Program] = {
    "a product without its sum": Program((X, W), OUT, lambda x, w: x @ w, XW, TP),
    "the same under jit": Program((X, W), OUT, jax.jit(product), XW, TP),
    "the same under a checkpoint": Program((X, W), OUT, jax.checkpoint(product), XW, TP),
    "a sum over the wrong axis": Program((X, W), OUT, lambda x, w: summed(x @ w, "dp"), XW, TP),
    "a local mean": Program((X,), Float[Array, "[b/dp]"], lambda x: x.mean(1), XW[:1], TP),
    "a local maximum": Program((X,), Float[Array, ""], lambda x: lax.pmax(x.max(), "tp"), XW[:1], DP),
    "a shard's own index": Program((F,), Int[Array, ""], lambda x: lax.axis_index("dp"), XW[:1], DP),
    "a part of a whole dim by the index": Program(
        (WHOLE,),
        WHOLE,
        lambda w: jnp.roll(w, lax.axis_index("tp"), 0),
        XW[1:],
        TP,
    ),
    "a scan that forgets the sum": Program(
        (X,),
        Float[Array, "[b/dp]"],
        lambda x: lax.scan(lambda c, row: (c, row.sum()), 0.0, x)[1],
        XW[:1],
        TP,
    ),
    "a loop whose end differs": Program(
        (F,),
        Int[Array, ""],
        lambda x: lax.while_loop(
            lambda c: jnp.abs(c[1]).max() > 0.1,
            lambda c: (c[0] + 1, c[1] / 2),
            (lax.pcast(0, "dp", to="varying"), x),
        )[0],
        XW[:1],
        DP,
    ),
    "a branch that differs": Program(
        (F,),
        Float[Array, "2"],
        lambda x: lax.cond(
            x.max() > 0,
            lambda: lax.pcast(jnp.ones(2), "dp", to="varying"),
            lambda: lax.pcast(jnp.zeros(2), "dp", to="varying"),
        ),
        XW[:1],
        DP,
    ),
    "a branch that forgets the sum": Program(
        (X, W),
        OUT,
        lambda x, w: lax.cond(
            lax.pmax(x.max(), ("dp", "tp")) > 0,
            lambda: x @ w,
            lambda: lax.pcast(summed(x @ w, "tp"), "tp", to="varying"),
        ),
        XW,
        TP,
    ),
    "a custom gradient around it": Program((X, W), OUT, lambda x, w: doubled(x @ w), XW, TP),
    "a custom tangent around it": Program((X, W), OUT, lambda x, w: tripled(x @ w), XW, TP),
    "a sum scattered and left": Program(
        (X, W),
        Float[Array, "[b/dp] _"],
        lambda x, w: lax.psum_scatter(x @ w, "tp", scatter_dimension=1, tiled=True),
        XW,
        TP,
    ),
    "a shard sent on": Program(
        (W,), Float[Array, "_ n"], lambda w: lax.ppermute(w, "tp", [(0, 1), (1, 0)]), XW[1:], TP
    ),
    "a kernel on a partial sum": Program((X, W), OUT, lambda x, w: kernel(x @ w), XW, TP),
    "random numbers of a key per shard": Program(
        (F,),
        Float[Array, "3"],
        lambda x: jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index("dp")), (3,)),
        XW[:1],
        DP,
    ),
    "a helper given a partial sum": Program(
        (X, W, Float[Array, "n m"]),
        Float[Array, "[b/dp] m"],
        lambda x, w, v: helper(x @ w, v),
        (numbers(B, K), numbers(K, 8), numbers(8, N)),
        "argument 'x' varies over 'tp', which its hint does not mention",
    ),
    "a check of a partial sum": Program(
        (X, W),
        OUT,
        lambda x, w: summed(check(x @ w, "[b/dp] n"), "tp"),
        XW,
        "checked value varies over 'tp', which its hint does not mention",
    ),
    "a weight that is sliced, not gathered": Program(
        (F, Float[Array, "[e/dp] n"]),
        OUT,
        lambda x, w: helper(x, jnp.tile(w, (x.shape[1] // w.shape[0], 1))),
        XW,
        "argument 'w' varies over 'dp', which its hint does not mention",
    ),
    "a pattern given a partial sum": Program(
        (X, W),
        Float[Array, "[b/dp]"],
        lambda x, w: reduce(x @ w, "[b/dp] n -> [b/dp]", "sum"),
        XW,
        "the operand varies over 'tp', which the pattern does not mention",
    ),
    "a partial sum that was taken": Program(
        (X, W),
        OUT,
        lambda x, w: summed(check(summed(x @ w, "tp"), "[b/dp] n +tp"), "tp"),
        XW,
        "checked value is the same on every shard of 'tp', but its hint says '+tp'",
    ),
    "a partial sum of a constant": Program(
        (F,),
        Float[Array, "2"],
        lambda x: summed(check(jnp.ones(2), "2 +dp"), "dp"),
        XW[:1],
        "checked value is the same on every shard of 'dp', but its hint says '+dp'",
    ),
    "axes in another order": Program(
        (Float[Array, "[b/dp,tp] d"],),
        Float[Array, "[_/tp,dp] d"],
        lambda x: x * 2,
        (numbers(16, 4),),
        "return value is sharded over 'dp', 'tp' in dim 0, but its hint says sharded over 'tp', 'dp'",
    ),
    "the same of one row per shard": Program(
        (Float[Array, "[b/dp,tp] d"],),
        Float[Array, "[_/tp,dp] d"],
        lambda x: x,
        (numbers(8, 4),),
        "return value is sharded over 'dp', 'tp' in dim 0, but its hint says sharded over 'tp', 'dp'",
    ),
    "axes in another order in a check": Program(
        (Float[Array, "[b/dp,tp] d"],),
        Float[Array, "[b/dp,tp] d"],
        lambda x: check(jnp.tanh(x), "[_/tp,dp] d"),
        (numbers(16, 4),),
        "checked value is sharded over 'dp', 'tp' in dim 0, but its hint says sharded over 'tp', 'dp'",
    ),
    "gathered in another order": Program(
        (Float[Array, "[b/dp,tp] d"],),
        Float[Array, "d"],
        lambda x: check(lax.all_gather(x, ("tp", "dp"), tiled=True), "_ d")[0],
        (numbers(16, 4),),
        "checked value was gathered over 'tp', 'dp' in dim 0, which is not the order of its shards",
    ),
    "a dim taken for another": Program(
        (Float[Array, "[b/dp] [s/tp]"],),
        Float[Array, "[_/tp] [_/dp]"],
        lambda x: x,
        (numbers(8, 8),),
        "return value is sharded over 'dp' in dim 0, but its hint says sharded over 'tp'",
    ),
    "rows taken for columns": Program(
        (F,),
        Float[Array, "_ [_/dp]"],
        lambda x: x + 1,
        (numbers(8, 4),),
        "return value is sharded over 'dp' in dim 0, but its hint says unsharded",
    ),
    "a root of a shard's own function": Program(
        (F,), Float[Array, ""], lambda x: root_of(lambda y: y - x.sum(), 0.0), XW[:1], DP
    ),
    "a root of a function that is checked": Program(
        (F,),
        Float[Array, ""],
        lambda x: root_of(lambda y: y - summed(check(x.sum(0), "d").sum(), "dp"), 0.0),
        XW[:1],
        "checked value varies over 'dp', which its hint does not mention",
    ),
    "gathered over the major axis first": Program(
        (Float[Array, "[b/dp,tp] d"],),
        Float[Array, "b d"],
        lambda x: lax.pmean(check(gathered(gathered(x, "dp"), "tp"), "b d"), ("dp", "tp")),
        (numbers(16, 3),),
        "checked value was gathered over 'tp' in dim 0, which is not the order of its shards",
    ),
    "gathered over the major axis": Program(
        (Float[Array, "[b/dp,tp] d"],),
        Float[Array, "d"],
        lambda x: summed(check(gathered(x, "dp"), "[b/tp] d")[0], "tp"),
        (numbers(16, 3),),
        "checked value has interleaved shards over 'tp' in dim 0, but its hint says sharded over 'tp'",
    ),
    "merged with a major dim": Program(
        (Float[Array, "b [h/tp]"],),
        Float[Array, "[_/tp]"],
        lambda x: x.reshape(-1),
        XW[:1],
        "return value has interleaved shards over 'tp' in dim 0, but its hint says sharded over 'tp'",
    ),
    "merged with a major dim, whatever a check says": Program(
        (Float[Array, "b [h/tp]"],),
        Float[Array, "[n/tp]"],
        lambda x: check(x.reshape(-1), "[n/tp]"),
        XW[:1],
        "return value has interleaved shards over 'tp' in dim 0, but its hint says sharded over 'tp'",
    ),
    "merged and split into others": Program(
        (Float[Array, "[b/dp] [s/tp]"],),
        Float[Array, "[_/tp] [_/dp]"],
        lambda x: x.reshape(-1).reshape(x.shape),
        (numbers(8, 4),),
        "return value is sharded over 'dp' in dim 0, but its hint says sharded over 'tp'",
    ),
    "cut, and the minor piece said to be sharded": Program(
        (F,),
        Float[Array, "2 [_/dp] d"],
        lambda x: x.reshape(2, -1, x.shape[1]),
        (numbers(16, 3),),
        "return value is sharded over 'dp' in dim 0, but its hint says unsharded",
    ),
    "a part by the axes in another order": Program(
        (Float[Array, "n d"],),
        Float[Array, "[n/tp,dp] d"],
        lambda x: own_part(x, "dp", "tp"),
        (numbers(16, 3),),
        "return value is sharded over 'dp', 'tp' in dim 0, but its hint says sharded over 'tp', 'dp'",
    ),
    "a part of the other dim": Program(
        (Float[Array, "n k"],),
        Float[Array, "_ [_/tp]"],
        lambda x: check(own_part(x.T, "tp"), "_ [_/tp]").T,
        (numbers(8, 8),),
        "checked value is sharded over 'tp' in dim 0, but its hint says unsharded",
    ),
    "exchanged the wrong way": Program(
        (F,),
        Float[Array, "_ [_/dp]"],
        lambda x: lax.all_to_all(x, "dp", 0, 1, tiled=True),
        (numbers(32, 4),),
        "return value is sharded over 'dp' in dim 0, but its hint says unsharded",
    ),
    "a product over two dims split differently": Program(
        (Float[Array, "[b/dp] k"], Float[Array, "[c/tp] n"]),
        Float[Array, "k n"],
        lambda x, w: summed(x.T @ w),
        (numbers(8, 6), numbers(4, 5)),
        "dot_general combines contracted dim",
    ),
    "a product over axes in two orders": Program(
        (Float[Array, "[b/dp,tp] k"], Float[Array, "[b/tp,dp] n"]),
        Float[Array, "k n"],
        lambda x, w: summed(x.T @ w),
        (numbers(16, 6), numbers(16, 5)),
        "dot_general combines contracted dim",
    ),
    "added to what it should be transposed for": Program(
        (Float[Array, "[b/dp] [s/tp]"], Float[Array, "[s/tp] [b/dp]"]),
        Float[Array, "[b/dp] [s/tp]"],
        lambda x, y: x + y,
        (numbers(8, 4), numbers(4, 8)),
        "add combines dim 0, but one is sharded over 'dp', the other over 'tp'",
    ),
    "a loss summed over half the mesh": Program(
        (X,), Float[Array, ""], lambda x: summed((x**2).sum(), "tp"), XW[:1], DP
    ),
    "a psum pattern over what does not vary": Program(
        (F,),
        Float[Array, "d"],
        lambda x: psum(summed(x.sum(0), "dp"), "d +dp -> d"),
        XW[:1],
        "the operand is the same on every shard of 'dp'",
    ),
    "shards sent along both axes": Program(
        (F,),
        F,
        lambda x: lax.ppermute(x, ("dp", "tp"), [(at, (at + 1) % 8) for at in range(8)]),
        XW[:1],
        TP,
    ),
    "a step of each shard's own gradient": Program(
        (F, Float[Array, "d"]),
        Float[Array, "d"],
        lambda x, w: w - jax.grad(lambda w: ((x @ w) ** 2).sum())(lax.pcast(w, "dp", to="varying")),
        (numbers(8, 4), numbers(4)),
        DP,
    ),
    "what the host says": Program(
        (F,),
        Float[Array, ""],
        lambda x: io_callback(lambda: np.float32(0), jax.ShapeDtypeStruct((), np.float32)),
        XW[:1],
        "return value varies over 'dp', 'tp', which its hint does not mention",
    ),
    "halves of each shard summed": Program(
        (Float[Array, "[b/dp] d"],),
        Float[Array, "[_/dp] d"],
        lambda x: x.reshape(2, -1, x.shape[1]).sum(0),
        (numbers(32, 3),),
        WOVEN,
    ),
    "the larger of halves of each shard": Program(
        (Float[Array, "[b/dp]"],), Float[Array, "[_/dp]"], lambda x: x.reshape(2, -1).max(0), (numbers(32),), WOVEN
    ),
    "halves of each shard added, and checked": Program(
        (Float[Array, "[b/dp]"],),
        Float[Array, "[_/dp]"],
        lambda x: check(x.reshape(2, -1)[0] + x.reshape(2, -1)[1], "[_/dp]"),
        (numbers(32),),
        WOVEN,
    ),
    "halves of each shard with a sharded dim": Program(
        (Float[Array, "[b/dp]"], Float[Array, "[n/dp]"]),
        Float[Array, "[n/dp]"],
        lambda x, y: x.reshape(2, -1).max(0) * y,
        (numbers(32), numbers(16)),
        "mul combines dim 0, but one has interleaved shards over 'dp', the other is sharded over 'dp'",
    ),
    "an exchange along the minor part of a split": Program(
        (Float[Array, "[b/dp] h"],),
        Float[Array, "2 _ [h/dp]"],
        lambda x: lax.all_to_all(x.reshape(2, -1, x.shape[1]), "dp", 2, 1, tiled=True),
        (numbers(32, 4),),
        "return value was gathered over 'dp' in dim 1, which is not the order of its shards",
    ),
    "the same, flattened": Program(
        (Float[Array, "[b/dp] h"],),
        Float[Array, "b [h/dp]"],
        lambda x: lax.all_to_all(x.reshape(2, -1, x.shape[1]), "dp", 2, 1, tiled=True).reshape(
            -1, x.shape[1] // lax.axis_size("dp")
        ),
        (numbers(32, 4),),
        "return value was gathered over 'dp' in dim 0, which is not the order of its shards",
    ),
    "a gather along the minor part of a split": Program(
        (Float[Array, "[b/dp] h"],),
        Float[Array, "2 _ h"],
        lambda x: lax.pmax(gathered(x.reshape(2, -1, x.shape[1]), "dp", 1), "dp"),
        (numbers(32, 4),),
        "return value was gathered over 'dp' in dim 1, which is not the order of its shards",
    ),
    "a gather along a new dim, flattened the other way": Program(
        (F,),
        Float[Array, "b d"],
        lambda x: lax.pmax(lax.all_gather(x, "dp", axis=1).reshape(-1, x.shape[1]), "dp"),
        XW[:1],
        "return value was gathered over 'dp' in dim 0, which is not the order of its shards",
    ),
    "a gather along a new dim over axes in another order": Program(
        (Float[Array, "[b/dp,tp] d"],),
        Float[Array, "b d"],
        lambda x: lax.pmax(lax.all_gather(x, ("tp", "dp")).reshape(-1, x.shape[1]), ("dp", "tp")),
        (numbers(16, 3),),
        "return value was gathered over 'tp', 'dp' in dim 0, which is not the order of its shards",
    ),
    "columns gathered along a new dim, flattened": Program(
        (Float[Array, "b [d/tp]"],),
        Float[Array, "b d"],
        lambda x: lax.pmax(lax.all_gather(x, "tp").reshape(x.shape[0], -1), "tp"),
        XW[:1],
        "return value was gathered over 'tp' in dim 0, which is not the order of its shards",
    ),
    "every other row, and then the others": Program(
        (F,), F, lambda x: jnp.concatenate([x[::2], x[1::2]]), (numbers(16, 3),), WOVEN
    ),
    "every other row, and then all of another": Program(
        (F, Float[Array, "[c/dp] d"]),
        Float[Array, "[_/dp] d"],
        lambda x, y: jnp.concatenate([x[::2], y]),
        (numbers(16, 3), numbers(4, 3)),
        WOVEN,
    ),
    "rows in turn by the index": Program(
        (Float[Array, "n d"], Float[Array, "[n/dp] d"]),
        Float[Array, "[n/dp] d"],
        lambda w, x: (
            lax.dynamic_index_in_dim(w.reshape(-1, lax.axis_size("dp"), w.shape[1]), lax.axis_index("dp"), 1).reshape(
                x.shape
            )
            + x
        ),
        (numbers(16, 3), numbers(16, 3)),
        "add combines dim 0, but one has interleaved shards over 'dp', the other is sharded over 'dp'",
    ),
    "the major of two axes exchanged": Program(
        (Float[Array, "[b/dp,tp] h"],),
        Float[Array, "[b/tp] [h/dp]"],
        lambda x: lax.all_to_all(x, "dp", 1, 0, tiled=True),
        (numbers(32, 8),),
        "return value has interleaved shards over 'tp' in dim 0, but its hint says sharded over 'tp'",
    ),
    "exchanged over two axes in another order": Program(
        (Float[Array, "[b/dp,tp] h"],),
        Float[Array, "b [h/tp,dp]"],
        lambda x: lax.all_to_all(x, ("tp", "dp"), 1, 0, tiled=True),
        (numbers(32, 8),),
        "return value was gathered over 'tp', 'dp' in dim 0, which is not the order of its shards",
    ),
    "rows merged with what shards their columns, times a matrix": Program(
        (Float[Array, "b [h/tp]"], Float[Array, "[k/tp] d"]),
        Float[Array, "d"],
        lambda x, w: summed(x.reshape(-1) @ w, "tp"),
        (numbers(4, 8), numbers(32, 3)),
        "dot_general combines contracted dim 0 of the first operand and dim 0 of the second, but one has interleaved "
        "shards over 'tp', the other is sharded over 'tp'",
    ),
    "the same, added to": Program(
        (Float[Array, "b [h/tp]"], Float[Array, "[k/tp]"]),
        Float[Array, "[k/tp]"],
        lambda x, w: x.reshape(-1) + w,
        (numbers(4, 8), numbers(32)),
        "add combines dim 0, but one has interleaved shards over 'tp', the other is sharded over 'tp'",
    ),
    "the same, gathered": Program(
        (Float[Array, "b [h/tp]"],),
        Float[Array, "_"],
        lambda x: lax.pmax(gathered(x.reshape(-1), "tp"), "tp"),
        (numbers(4, 8),),
        "return value was gathered over 'tp' in dim 0, which is not the order of its shards",
    ),
    "own rows by the index along one of two axes": Program(
        (Float[Array, "n d"],),
        Float[Array, "[n/dp,tp] d"],
        lambda w: lax.dynamic_slice_in_dim(
            w, index_of("dp") * (w.shape[0] // shards_of("dp", "tp")), w.shape[0] // shards_of("dp", "tp")
        ),
        (numbers(16, 3),),
        "return value is sharded over 'dp' in dim 0, but its hint says sharded over 'dp', 'tp'",
    ),
    "the same with a sharded dim": Program(
        (Float[Array, "n d"], Float[Array, "[n/dp,tp] d"]),
        Float[Array, "[n/dp,tp] d"],
        lambda w, x: lax.dynamic_slice_in_dim(w, index_of("dp") * x.shape[0], x.shape[0]) + x,
        (numbers(16, 3), numbers(16, 3)),
        "add combines dim 0, but one is sharded over 'dp', the other over 'dp', 'tp'",
    ),
}
