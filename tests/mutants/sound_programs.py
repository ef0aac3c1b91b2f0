"""Right programs that look wrong to a hasty check: other orders of sums, ties, rounding, random numbers, counts.

Each is a function of global arrays that gives the same on every mesh, but for what its entry excludes.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from typedshmap import (
    Array,
    BFloat16,
    Bool,
    Float32,
    Int32,
    Key,
    all_gather,
    einsum,
    pmean,
    psum,
    reduce,
    reshard,
    size,
    typed,
    typed_jit,
    typed_shard_map,
)

X = Float32[Array, "[batch/dp] [model/tp]"]
Rows = Float32[Array, "[batch/dp] model"]
Number = Float32[Array, ""]


def rows_of(x: Array) -> Array:
    """The global numbers of this shard's rows."""
    return jax.lax.axis_index("dp") * len(x) + jnp.arange(len(x))


@typed_shard_map
def matmul_in_bfloat16(
    x: BFloat16[Array, "[batch/dp] [model/tp]"], w: BFloat16[Array, "[model/tp] ff"]
) -> BFloat16[Array, "[batch/dp] ff"]:
    return jax.nn.gelu(einsum(x, w, "[b/dp] [m/tp], [m/tp] f -> [b/dp] f"))


@typed_shard_map
def bfloat16_inside(x: X, w: Float32[Array, "[model/tp] ff"]) -> Float32[Array, "[batch/dp] ff"]:
    half = jnp.bfloat16
    y = einsum(x.astype(half), w.astype(half), "[b/dp] [m/tp], [m/tp] f -> [b/dp] f").astype(jnp.float32)
    return y / jnp.sqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)


@typed_shard_map
def histogram(x: X) -> tuple[Int32[Array, "bins=16"], Int32[Array, ""], Bool[Array, "[batch/dp]"]]:
    at = jnp.clip(jnp.floor(4 * x).astype(jnp.int32) + 8, 0, 15)
    counts = jax.lax.psum(jnp.zeros(16, jnp.int32).at[at.ravel()].add(1), ("dp", "tp"))
    is_high = jax.lax.psum((x > 2).sum(1), "tp") > 0
    return counts, jax.lax.psum((x > 0).sum(dtype=jnp.int32), ("dp", "tp")), is_high


@typed_shard_map
def own_noise(x: Rows, key: Key[Array, ""]) -> tuple[Rows, Number]:
    """Each shard draws numbers of its own, which rightly differ from mesh to mesh."""
    noise = jax.random.normal(jax.random.fold_in(key, jax.lax.axis_index("dp")), x.shape)
    return x + noise, reduce(x, "[b/dp] m ->", "mean")


@typed_shard_map
def largest_of_all(
    logits: Float32[Array, "[batch/dp] [vocab/tp]"],
) -> tuple[Float32[Array, "[batch/dp] k=3"], Int32[Array, "[batch/dp] k=3"]]:
    """The top three of each shard compete."""
    top, at = jax.lax.top_k(logits, min(3, logits.shape[1]))
    ids = at + jax.lax.axis_index("tp") * logits.shape[1]
    every, all_ids = (all_gather(each, "[b/dp] [k/tp] -> [b/dp] k") for each in (top, ids))
    best, place = jax.lax.top_k(every, 3)
    return best, jnp.take_along_axis(all_ids, place, 1)


@typed_shard_map
def sorted_by_all(x: Float32[Array, "[n/dp]"]) -> tuple[Float32[Array, "[n/dp]"], Int32[Array, "[n/dp]"]]:
    """Every shard sorts everything, and keeps its part; and the rank of every element."""
    everything = all_gather(x, "[n/dp] -> n")
    order = jnp.sort(everything)
    mine = jax.lax.dynamic_slice_in_dim(order, jax.lax.axis_index("dp") * len(x), len(x))
    return mine, jnp.searchsorted(order, x).astype(jnp.int32)


@typed_shard_map
def signs(w: Float32[Array, "model"], x: Rows) -> Float32[Array, "model"]:
    """An update by the signs of a gradient."""
    return w - 0.01 * jnp.sign(jax.grad(lambda w: reduce(jnp.tanh(x @ w), "[b/dp] ->", "mean"))(w))


@typed_shard_map
def residual(x: Rows) -> tuple[Float32[Array, "model"], Number]:
    """Zero, but for rounding."""
    centred = x - reduce(x, "[b/dp] m -> m", "mean")
    return psum(centred.sum(0), "m ~dp -> m"), jax.lax.psum(centred.sum(), "dp")


@typed_shard_map
def variance_by_squares(x: Rows) -> Float32[Array, "model"]:
    """A difference of two large numbers, of rows that are far from zero."""
    return pmean((x * x).mean(0), "m ~dp -> m") - pmean(x.mean(0), "m ~dp -> m") ** 2


@typed_shard_map
def masked(x: X) -> tuple[Float32[Array, "[batch/dp]"], Float32[Array, "[batch/dp]"]]:
    """Rows without any finite entry: minus infinity, and not a number."""
    kept = jnp.where(rows_of(x)[:, None] % 2 == 0, -jnp.inf, x)
    largest = jax.lax.pmax(kept.max(1), "tp")
    return largest, jax.lax.psum(jnp.exp(kept - largest[:, None]).sum(1), "tp")


@typed_shard_map
def sampled(logits: Float32[Array, "[batch/dp] [vocab/tp]"], key: Key[Array, ""]) -> Int32[Array, "[batch/dp]"]:
    """By a Gumbel number for every entry of the global array."""
    noise = jax.random.gumbel(key, (size("batch"), size("vocab")))
    at = jax.lax.axis_index("dp") * logits.shape[0], jax.lax.axis_index("tp") * logits.shape[1]
    noisy = logits + jax.lax.dynamic_slice(noise, at, logits.shape)
    top, best = noisy.max(1), jnp.argmax(noisy, 1) + at[1]
    return jax.lax.pmin(jnp.where(top == jax.lax.pmax(top, "tp"), best, size("vocab")), "tp")


@typed_shard_map
def counted(x: Rows) -> tuple[Rows, Int32[Array, ""]]:
    """The number of shards is what it is."""
    return x, jnp.int32(jax.lax.psum(1, "dp"))


@typed_shard_map
def moved_keys(keys: Key[Array, "[batch/dp]"]) -> Key[Array, "[batch/dp]"]:
    return jax.vmap(lambda key: jax.random.split(key)[0])(keys)


@typed_shard_map
def handed_over(x: Float32[Array, "[a/dp,tp] b"]) -> Float32[Array, "[b/tp] [a/dp]"]:
    return reshard(x, "[a/dp,tp] b -> [a/dp] [b/tp]").T


@typed_jit
def compiled(
    x: Rows, w: Float32[Array, "model [ff/tp]"]
) -> tuple[Float32[Array, "[batch/dp] [ff/tp]"], Int32[Array, "[batch/dp]"]]:
    """A program of global arrays, which XLA divides."""
    y = jax.nn.softmax(x @ w)
    return y - y.mean(0), jnp.argsort(jnp.argsort(y[:, 0])).astype(jnp.int32)


@typed
def helper(x: Rows, w: Float32[Array, "model [ff/tp]"]) -> Float32[Array, "[batch/dp] [ff/tp]"]:
    """Neither communicates nor has marks."""
    return jnp.tanh(x @ w)


@typed
def partial_product(x: X, w: Float32[Array, "[model/tp] ff"]) -> Float32[Array, "[batch/dp] ff +tp"]:
    """One addend per shard, whose sum is the result."""
    return x @ w


class Sound(NamedTuple):
    """A right program, and what is to be known of it.

    Attributes:
      function: the function.
      given: sizes and arguments.
      grad: whether it has gradients.
      exclude: results that rightly differ.
    """

    function: Callable[..., Any]
    given: Mapping[str, Any] = MappingProxyType({})
    grad: bool = False
    exclude: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.function.__name__


SOUND = (
    Sound(matmul_in_bfloat16, {"model": 64}, grad=True),
    Sound(bfloat16_inside, {"model": 64}, grad=True),
    Sound(histogram),
    Sound(own_noise, exclude=("return[0]",)),
    Sound(largest_of_all),
    Sound(sorted_by_all),
    Sound(signs),
    Sound(residual),
    Sound(variance_by_squares, {"x": lambda key, shape: 100 + jax.random.normal(key, shape)}),
    Sound(masked),
    Sound(sampled),
    Sound(counted, exclude=("[1]",)),
    Sound(moved_keys),
    Sound(handed_over),
    Sound(compiled),
    Sound(helper, grad=True),
    Sound(partial_product),
)
