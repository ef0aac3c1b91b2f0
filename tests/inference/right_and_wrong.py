"""Right and wrong programs, each with what is wrong with it, whatever ``check_vma`` says.

A right one gives the same result on one device as on eight, which a test holds: so the table cannot
call a wrong program right.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from tables import Program, program

from typedshmap import Array, Float, all_gather, check, einsum, psum, rearrange, reduce, size, typed

XW = "[b/dp] [k/tp], [k/tp] n -> [b/dp] n"
SAME, TOKENS = "[b/dp] d -> [b/dp] d", "[b/dp] [s/tp] d -> [b/dp] [s/tp] d"
TP = "return value varies over 'tp', which its hint does not mention"
DP = "return value varies over 'dp', which its hint does not mention"
OTHER_ORDER = " is sharded over 'dp', 'tp' in dim 0, but its hint says sharded over 'tp', 'dp'"
ASTRAY = "return value was gathered over {} in dim {}, which is not the order of its shards"
WOVEN = "return value has interleaved shards over 'dp' in dim 0, but its hint says sharded over 'dp'"
WOVEN_OVER_TP = WOVEN.replace("dp", "tp")
NOT_UNSHARDED = " is sharded over 'dp' in dim 0, but its hint says unsharded"
NOT_OVER_TP = "return value is sharded over 'dp' in dim 0, but its hint says sharded over 'tp'"


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
def partial_product(x: Float[Array, "[b/dp] [k/tp]"], w: Float[Array, "[k/tp] n"]) -> Float[Array, "[b/dp] n +tp"]:
    return x @ w


def gathered(w: Any, axis: str = "tp", dim: int = 0) -> Any:
    return lax.all_gather(w, axis, axis=dim, tiled=True)


def stacked(x: Any, axes: Any, dim: int = 0) -> Any:
    """Gathered along a new dim, and by JAX's types the same on every shard."""
    return lax.pmax(lax.all_gather(x, axes, axis=dim), axes)


def exchanged(x: Any, axes: Any, split: int = 1, joined: int = 0) -> Any:
    return lax.all_to_all(x, axes, split, joined, tiled=True)


def index_of(*axes: str) -> Any:
    """A shard's number along mesh axes, major to minor."""
    number = 0
    for axis in axes:
        number = number * lax.axis_size(axis) + lax.axis_index(axis)
    return number


def own_part(x: Any, *axes: str, of: tuple[str, ...] = ()) -> Any:
    """The part of the first dim that belongs to a shard along mesh axes, major to minor, as if there were others."""
    size = x.shape[0] // prod(lax.axis_size(axis) for axis in of or axes)
    return lax.dynamic_slice_in_dim(x, index_of(*axes) * size, size)


def own_rows(w: Any, x: Any, *axes: str) -> Any:
    """As many rows as another value has, by the number of the shard along mesh axes."""
    return lax.dynamic_slice_in_dim(w, index_of(*axes) * x.shape[0], x.shape[0])


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


def major_to_minor(major: int, minor: int) -> list[tuple[int, int]]:
    """Where each shard goes, for the axes of a dim to change places."""
    return [(at, at % major * minor + at // major) for at in range(major * minor)]


def in_two(x: Any) -> Any:
    """A shard's rows in two blocks."""
    return x.reshape(2, -1, *x.shape[1:])


def with_halves_swapped(x: Any, swap: Callable[[Any], Any]) -> Any:
    """Blocks of four rows, each with its two halves swapped: where a shard has one block, its dim is of size 1."""
    return swap(x.reshape(-1, 2, 2, x.shape[1])).reshape(x.shape)


def attention_of_heads(x: Any, w: Any, v: Any) -> Any:
    q = (x @ w).reshape(*x.shape[:2], -1, 8)
    weights = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", q, q), -1)
    out = jnp.einsum("bhst,bthd->bshd", weights, q / jnp.sqrt((q**2).mean(-1, keepdims=True)))
    return summed(out.reshape(*x.shape[:2], -1) @ v, "tp")


def transposed_by_hand(x: Any) -> Any:
    parts = x.reshape(x.shape[0], lax.axis_size("dp"), -1, x.shape[2])
    parts = lax.all_to_all(parts, "dp", 1, 0)
    return check(parts.reshape(-1, *parts.shape[2:]).transpose(1, 0, 2), "[b/dp] s d")


def swapped_as_declared(x: Any) -> Any:
    blocks = rearrange(x, "[(n h i)/dp] d -> [n/dp] h i d", h=2, i=2)
    return rearrange(check(blocks[:, ::-1], "[n/dp] h i d"), "[n/dp] h i d -> [(n h i)/dp] d")


def in_turn(w: Any, x: Any) -> Any:
    """Every fourth row by the index, and others."""
    turns = w.reshape(-1, lax.axis_size("dp"), w.shape[1])
    return lax.dynamic_index_in_dim(turns, lax.axis_index("dp"), 1).reshape(x.shape) + x


def put_in_order(x: Any) -> Any:
    """Gathered over both axes the other way."""
    whole = lax.all_gather(x, ("tp", "dp"), tiled=True)
    parts = whole.reshape(lax.axis_size("tp"), lax.axis_size("dp"), *x.shape).swapaxes(0, 1)
    return lax.pmax(parts.reshape(-1, x.shape[1]), ("dp", "tp"))


def by_largest(x: Any, one: Callable[[], Any], other: Callable[[], Any]) -> Any:
    return lax.cond(lax.pmax(x.max(), ("dp", "tp")) > 100, one, other)


def count_of_halvings(x: Any) -> Any:
    """How often a value is halved until all of it is small."""
    goes_on = lambda c: lax.pmax(jnp.abs(c[1]).max(), "dp") > 0.1  # noqa: E731
    return lax.while_loop(goes_on, lambda c: (c[0] + 1, c[1] / 2), (0.0, x))[0]


RIGHT: dict[str, Program] = {
    "a product and its sum": program(XW, lambda x, w: summed(x @ w, "tp")),
    "the sum under jit": program(XW, lambda x, w: summed(jax.jit(product)(x, w), "tp")),
    "the sum under a checkpoint": program(XW, jax.checkpoint(lambda x, w: summed(x @ w, "tp"))),
    "a sum scattered": program(
        "[b/dp] [k/tp], [k/tp] n -> [b/dp] [n/tp]",
        lambda x, w: lax.psum_scatter(x @ w, "tp", scatter_dimension=1, tiled=True),
    ),
    "transposed": program("[b/dp] [k/tp] -> [k/tp] [b/dp]", lambda x: x.T),
    "a sum over whole dims": program("[b/dp] d -> [b/dp]", lambda x: x.sum(1)),
    "a dim cut that is whole": program("[b/dp] d -> [b/dp] 3", lambda x: x[:, 2:5]),
    "dims merged, the major split": program("[b/dp] d -> [bd/dp]", lambda x: x.reshape(-1)),
    "a row that is transposed and flattened": program("[b/dp] -> [b/dp]", lambda x: x.reshape(1, -1).T.reshape(-1)),
    "a dim split, the major stays": program("[b/dp] d -> [_/dp] 2 d", lambda x: x.reshape(-1, 2, x.shape[1])),
    "a dim more of size 1": program("[b/dp] d -> 1 [b/dp] d", lambda x: x[None]),
    "heads split off": program("[b/dp] [k/tp] -> [b/dp] [h/tp] 4", lambda x: x.reshape(x.shape[0], -1, 4)),
    "concatenated along a whole dim": program("[b/dp] d -> [b/dp] 2*d", lambda x: jnp.concatenate([x, x], 1)),
    "a constant as a sharded result": program(SAME, lambda x: jnp.ones_like(x)),
    "zeros as a result without sharding": program("[b/dp] d -> 3", lambda x: jnp.zeros(3)),
    "a sum as a sharded result": program("[b/dp] -> [s/dp]", lambda x: summed(x * 0, "dp")),
    "a shard's own index": program(SAME, lambda x: x + lax.axis_index("dp") * 0.0),
    "a scan with a sum in each iteration": program(
        "[b/dp] [k/tp] -> [b/dp]", lambda x: lax.scan(lambda c, row: (c, summed(row.sum(), "tp")), 0.0, x)[1]
    ),
    "a loop that counts until a global test": program("[b/dp] d -> ", count_of_halvings),
    "branches that sum": program(
        XW, lambda x, w: by_largest(x, lambda: summed(x @ w, "tp"), lambda: summed(2 * x @ w, "tp"))
    ),
    "a function with a gradient of its own": program(SAME, lambda x: doubled(x)),
    "a function with a tangent of its own": program(SAME, lambda x: tripled(x)),
    "an update in place": program(SAME, lambda x: x.at[:, 0].set(1.0)),
    "dims exchanged": program("[s/tp] h d -> s [h/tp] d", lambda x: exchanged(x, "tp")),
    "a gathered weight that was worked on": program(
        "[b/dp] d, [d/dp] n -> [b/dp] n", lambda x, w: helper(x, jnp.tanh(gathered(w, "dp") * 2))
    ),
    "two partial sums, taken as one": program(
        XW, lambda x, w: lax.psum(partial_product(x, w) + partial_product(2 * x, w), "tp")
    ),
    "an operation that gathers": program(
        "[b/dp] d, [d/dp] n -> [b/dp] n",
        lambda x, w: einsum(x, all_gather(w, "[d/dp] n -> d n ~dp"), "[b/dp] d, d n -> [b/dp] n"),
    ),
    "a global mean by its size": program("[b/dp] d -> d", lambda x: summed(x.sum(0), "dp") / size("b")),
    "a kernel, shard by shard": program(SAME, kernel),
    "a kernel on what is equal": program("[b/dp] d -> d", lambda x: kernel(summed(x.sum(0), "dp"))),
    "two axes on a dim, gathered in order": program(
        "[b/dp,tp] d -> d", lambda x: lax.pmean(check(gathered(gathered(x, "tp"), "dp"), "b d").sum(0), ("dp", "tp"))
    ),
    "tokens flattened on the shard and back": program(
        TOKENS, lambda x: jnp.tanh(check(x.reshape(-1, x.shape[2]), "[_/dp,tp] d")).reshape(x.shape)
    ),
    "a shard's own part of a whole dim": program("b d -> [b/dp,tp] d", lambda x: own_part(x, "dp", "tp")),
    "a shard's own row": program(
        "n d -> [n/dp] d",
        lambda x: check(x.reshape(lax.axis_size("dp"), -1, x.shape[1])[lax.axis_index("dp")], "[n/dp] d"),
    ),
    "two sharded dims merged and split again": program(
        TOKENS, lambda x: check(jnp.sin(x.reshape(-1, x.shape[2])).reshape(x.shape), "[b/dp] [s/tp] d")
    ),
    "a root of a function that sums": program(
        "[b/dp] d -> ", lambda x: root_of(lambda y: y - summed(check(x, "[b/dp] d").sum(), "dp"), 0.0)
    ),
    "a root on every shard": program(SAME, lambda x: check(root_of(lambda y: y - jnp.ldexp(x, 1), x), "[b/dp] d")),
    "a linear system": program(
        "b b, [d/dp] b -> b",
        lambda a, rows: check(solution_of(lambda x: a @ x, summed(rows.sum(0), "dp")), "b"),
    ),
    "rows in microbatches, each of them sharded": program(
        "[b/dp] d -> d", lambda x: summed(jnp.sin(check(in_two(x), "m [_/dp] d")).sum((0, 1)), "dp")
    ),
    "tokens of one row per shard flattened and back": program(
        "[b/dp] s d -> [b/dp] s d",
        lambda x: jnp.tanh(check(x.reshape(-1, x.shape[2]), "[_/dp] d")).reshape(x.shape),
        b=4,
    ),
    "shards put in another order": program(
        "[b/dp,tp] d -> [b/tp,dp] d",
        lambda x: lax.ppermute(x, ("dp", "tp"), major_to_minor(lax.axis_size("dp"), lax.axis_size("tp"))),
    ),
    "rows for columns, exchanged by hand": program("[s/dp] b d -> [b/dp] s d", transposed_by_hand),
    "halves of each block swapped by a transpose": program(
        SAME, lambda x: with_halves_swapped(x, lambda y: y.transpose(0, 2, 1, 3))
    ),
    "halves of each block swapped": program(SAME, lambda x: with_halves_swapped(x, lambda y: y[:, ::-1])),
    "halves of each of several blocks swapped": program(
        SAME, lambda x: with_halves_swapped(x, lambda y: jnp.roll(y, 1, 1)), b=32
    ),
    "halves of each block swapped, and declared": program(SAME, swapped_as_declared),
    "one head per shard": program("[b/dp] s m, m [h/tp], [h/tp] m -> [b/dp] s m", attention_of_heads, b=4),
    "a gather along a new dim, flattened": program(
        "[b/dp] d -> b d", lambda x: stacked(x, "dp").reshape(-1, x.shape[1])
    ),
    "columns gathered along a new dim, and put in order": program(
        "b [d/tp] -> b d", lambda x: stacked(x, "tp").transpose(1, 0, 2).reshape(x.shape[0], -1)
    ),
    "gathered over both axes, the other way, and put in order": program("[b/dp,tp] d -> b d", put_in_order),
    "a shard's own of what was gathered": program(
        SAME, lambda x: lax.all_gather(x, "dp", axis=1)[:, lax.axis_index("dp")]
    ),
    "every other row": program("[b/dp] d -> [c/dp] d", lambda x: x[1::2]),
    "the minor of two axes exchanged": program("[b/dp,tp] h -> [b/dp] [h/tp]", lambda x: exchanged(x, "tp")),
    "exchanged in microbatches and back": program(
        SAME, lambda x: exchanged(jnp.sin(exchanged(in_two(x), "dp", 2, 1)), "dp", 1, 2).reshape(x.shape)
    ),
    "own rows by both indices": program("b d, [b/dp,tp] d -> [b/dp,tp] d", lambda w, x: own_rows(w, x, "dp", "tp") + x),
    "own rows of a longer table": program("v d, [b/dp] d -> [b/dp] d", lambda w, x: own_rows(w, x, "dp") + x, v=32),
}

WRONG: dict[str, Program] = {
    "a product without its sum": program(XW, lambda x, w: x @ w, TP),
    "the same under jit": program(XW, jax.jit(product), TP),
    "the same under a checkpoint": program(XW, jax.checkpoint(product), TP),
    "a part of a whole dim by the index": program("k n -> k n", lambda w: jnp.roll(w, lax.axis_index("tp"), 0), TP),
    "a scan that forgets the sum": program(
        "[b/dp] [k/tp] -> [b/dp]", lambda x: lax.scan(lambda c, row: (c, row.sum()), 0.0, x)[1], TP
    ),
    "a custom gradient around it": program(XW, lambda x, w: doubled(x @ w), TP),
    "a custom tangent around it": program(XW, lambda x, w: tripled(x @ w), TP),
    "a sum scattered and left": program(
        "[b/dp] [k/tp], [k/tp] n -> [b/dp] _",
        lambda x, w: lax.psum_scatter(x @ w, "tp", scatter_dimension=1, tiled=True),
        TP,
    ),
    "a kernel on a partial sum": program(XW, lambda x, w: kernel(x @ w), TP),
    "a helper given a partial sum": program(
        "[b/dp] [k/tp], [k/tp] n, n m -> [b/dp] m",
        lambda x, w, v: helper(x @ w, v),
        "argument 'x' varies over 'tp', which its hint does not mention",
    ),
    "a pattern given a partial sum": program(
        "[b/dp] [k/tp], [k/tp] n -> [b/dp]",
        lambda x, w: reduce(x @ w, "[b/dp] n -> [b/dp]", "sum"),
        "the operand varies over 'tp', which the pattern does not mention",
    ),
    "a partial sum that was taken": program(
        XW,
        lambda x, w: summed(check(summed(x @ w, "tp"), "[b/dp] n +tp"), "tp"),
        "checked value is the same on every shard of 'tp', but its hint says '+tp'",
    ),
    "a partial sum of a constant": program(
        "[b/dp] d -> 2",
        lambda x: summed(check(jnp.ones(2), "2 +dp"), "dp"),
        "checked value is the same on every shard of 'dp', but its hint says '+dp'",
    ),
    "axes in another order": program("[b/dp,tp] d -> [_/tp,dp] d", lambda x: x * 2, "return value" + OTHER_ORDER),
    "the same of one row per shard": program(
        "[b/dp,tp] d -> [_/tp,dp] d", lambda x: x, "return value" + OTHER_ORDER, b=8
    ),
    "axes in another order in a check": program(
        "[b/dp,tp] d -> [b/dp,tp] d", lambda x: check(jnp.tanh(x), "[_/tp,dp] d"), "checked value" + OTHER_ORDER
    ),
    "gathered in another order": program(
        "[b/dp,tp] d -> d",
        lambda x: check(lax.all_gather(x, ("tp", "dp"), tiled=True), "_ d")[0],
        "checked value was gathered over 'tp', 'dp' in dim 0, which is not the order of its shards",
    ),
    "a dim taken for another": program("[b/dp] [s/tp] -> [_/tp] [_/dp]", lambda x: x, NOT_OVER_TP),
    "rows taken for columns": program("[b/dp] d -> _ [_/dp]", lambda x: x + 1, "return value" + NOT_UNSHARDED),
    "a root of a shard's own function": program("[b/dp] d -> ", lambda x: root_of(lambda y: y - x.sum(), 0.0), DP),
    "a root of a function that is checked": program(
        "[b/dp] d -> ",
        lambda x: root_of(lambda y: y - summed(check(x.sum(0), "d").sum(), "dp"), 0.0),
        "checked value varies over 'dp', which its hint does not mention",
    ),
    "gathered over the major axis first": program(
        "[b/dp,tp] d -> b d",
        lambda x: lax.pmean(check(gathered(gathered(x, "dp"), "tp"), "b d"), ("dp", "tp")),
        "checked value was gathered over 'tp' in dim 0, which is not the order of its shards",
    ),
    "gathered over the major axis": program(
        "[b/dp,tp] d -> d",
        lambda x: summed(check(gathered(x, "dp"), "[b/tp] d")[0], "tp"),
        "checked value has interleaved shards over 'tp' in dim 0, but its hint says sharded over 'tp'",
    ),
    "merged with a major dim": program("b [h/tp] -> [_/tp]", lambda x: x.reshape(-1), WOVEN_OVER_TP),
    "merged with a major dim, whatever a check says": program(
        "b [h/tp] -> [n/tp]", lambda x: check(x.reshape(-1), "[n/tp]"), WOVEN_OVER_TP
    ),
    "merged and split into others": program(
        "[b/dp] [s/tp] -> [_/tp] [_/dp]", lambda x: x.reshape(-1).reshape(x.shape), NOT_OVER_TP
    ),
    "cut, and the minor piece said to be sharded": program(
        "[b/dp] d -> 2 [_/dp] d", in_two, "return value" + NOT_UNSHARDED
    ),
    "a part by the axes in another order": program(
        "b d -> [b/tp,dp] d", lambda x: own_part(x, "dp", "tp"), "return value" + OTHER_ORDER
    ),
    "a part of the other dim": program(
        "b k -> _ [_/tp]",
        lambda x: check(own_part(x.T, "tp"), "_ [_/tp]").T,
        "checked value is sharded over 'tp' in dim 0, but its hint says unsharded",
    ),
    "exchanged the wrong way": program(
        "[b/dp] d -> _ [_/dp]", lambda x: exchanged(x, "dp", 0, 1), "return value" + NOT_UNSHARDED, b=32
    ),
    "a product over two dims split differently": program(
        "[b/dp] k, [c/tp] n -> k n", lambda x, w: summed(x.T @ w), "dot_general combines contracted dim", c=8
    ),
    "a product over axes in two orders": program(
        "[b/dp,tp] k, [b/tp,dp] n -> k n", lambda x, w: summed(x.T @ w), "dot_general combines contracted dim"
    ),
    "added to what it should be transposed for": program(
        "[b/dp] [s/tp], [s/tp] [b/dp] -> [b/dp] [s/tp]",
        lambda x, y: x + y,
        "add combines dim 0, but one is sharded over 'dp', the other over 'tp'",
        s=8,
        b=16,
    ),
    "a psum pattern over what does not vary": program(
        "[b/dp] d -> d",
        lambda x: psum(summed(x.sum(0), "dp"), "d +dp -> d"),
        "the operand is the same on every shard of 'dp'",
    ),
    "shards sent along both axes": program(
        SAME, lambda x: lax.ppermute(x, ("dp", "tp"), [(at, (at + 1) % 8) for at in range(8)]), TP
    ),
    "what the host says": program(
        "[b/dp] d -> ",
        lambda x: io_callback(lambda: np.float32(0), jax.ShapeDtypeStruct((), np.float32)),
        "return value varies over 'dp', 'tp', which its hint does not mention",
    ),
    "halves of each shard summed": program("[b/dp] d -> [_/dp] d", lambda x: in_two(x).sum(0), WOVEN),
    "halves of each shard added, and checked": program(
        "[b/dp] -> [_/dp]", lambda x: check(in_two(x)[0] + in_two(x)[1], "[_/dp]"), WOVEN
    ),
    "halves of each shard with a sharded dim": program(
        "[b/dp], [s/dp] -> [s/dp]",
        lambda x, y: in_two(x).max(0) * y,
        "mul combines dim 0, but one has interleaved shards over 'dp', the other is sharded over 'dp'",
    ),
    "an exchange along the minor part of a split": program(
        "[b/dp] h -> 2 _ [h/dp]", lambda x: exchanged(in_two(x), "dp", 2, 1), ASTRAY.format("'dp'", 1)
    ),
    "the same, flattened": program(
        "[b/dp] h -> b [h/dp]",
        lambda x: exchanged(in_two(x), "dp", 2, 1).reshape(-1, x.shape[1] // lax.axis_size("dp")),
        ASTRAY.format("'dp'", 0),
    ),
    "a gather along the minor part of a split": program(
        "[b/dp] h -> 2 _ h", lambda x: lax.pmax(gathered(in_two(x), "dp", 1), "dp"), ASTRAY.format("'dp'", 1)
    ),
    "a gather along a new dim, flattened the other way": program(
        "[b/dp] d -> b d", lambda x: stacked(x, "dp", 1).reshape(-1, x.shape[1]), ASTRAY.format("'dp'", 0)
    ),
    "a gather along a new dim over axes in another order": program(
        "[b/dp,tp] d -> b d",
        lambda x: stacked(x, ("tp", "dp")).reshape(-1, x.shape[1]),
        ASTRAY.format("'tp', 'dp'", 0),
    ),
    "columns gathered along a new dim, flattened": program(
        "b [d/tp] -> b d", lambda x: stacked(x, "tp").reshape(x.shape[0], -1), ASTRAY.format("'tp'", 0)
    ),
    "every other row, and then the others": program(SAME, lambda x: jnp.concatenate([x[::2], x[1::2]]), WOVEN),
    "every other row, and then all of another": program(
        "[b/dp] d, [s/dp] d -> [_/dp] d", lambda x, y: jnp.concatenate([x[::2], y]), WOVEN
    ),
    "rows in turn by the index": program(
        "b d, [b/dp] d -> [b/dp] d",
        in_turn,
        "add combines dim 0, but one has interleaved shards over 'dp', the other is sharded over 'dp'",
    ),
    "the major of two axes exchanged": program(
        "[b/dp,tp] h -> [b/tp] [h/dp]", lambda x: exchanged(x, "dp"), WOVEN_OVER_TP
    ),
    "exchanged over two axes in another order": program(
        "[b/dp,tp] h -> b [h/tp,dp]", lambda x: exchanged(x, ("tp", "dp")), ASTRAY.format("'tp', 'dp'", 0)
    ),
    "rows merged with what shards their columns, times a matrix": program(
        "b [h/tp], [k/tp] d -> d",
        lambda x, w: summed(x.reshape(-1) @ w, "tp"),
        "dot_general combines contracted dim 0 of the first operand and dim 0 of the second, but one has interleaved "
        "shards over 'tp', the other is sharded over 'tp'",
        b=4,
        h=8,
        k=32,
    ),
    "the same, gathered": program(
        "b [h/tp] -> _", lambda x: lax.pmax(gathered(x.reshape(-1), "tp"), "tp"), ASTRAY.format("'tp'", 0)
    ),
    "own rows by the index along one of two axes": program(
        "b d -> [b/dp,tp] d",
        lambda w: own_part(w, "dp", of=("dp", "tp")),
        "return value is sharded over 'dp' in dim 0, but its hint says sharded over 'dp', 'tp'",
    ),
    "the same with a sharded dim": program(
        "b d, [b/dp,tp] d -> [b/dp,tp] d",
        lambda w, x: own_rows(w, x, "dp") + x,
        "add combines dim 0, but one is sharded over 'dp', the other over 'dp', 'tp'",
    ),
}
