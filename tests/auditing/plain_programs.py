"""Programs of plain ``jax.shard_map``, as people write them: wrong ones with what an audit says, and right ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

MESH = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


BF16, F32, I32, U32 = map(jnp.dtype, ("bfloat16", "float32", "int32", "uint32"))


class Program(NamedTuple):
    """A body, its specs, the shapes of its arguments, and the kinds of findings that it has.

    Attributes:
      cause: a part of the line of the first finding.
      vma: the modes of check_vma in which JAX takes it.
    """

    body: Callable[..., Any]
    in_specs: tuple[P, ...]
    out_specs: Any
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...] = ()
    cause: str = ""
    vma: tuple[bool, ...] = (False,)
    dtypes: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return getattr(self.body, "__name__", "partial")

    @property
    def structs(self) -> list[jax.ShapeDtypeStruct]:
        dtypes = self.dtypes or (F32,) * len(self.shapes)
        return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(self.shapes, dtypes, strict=True)]

    def mapped(self, check_vma: bool) -> Callable[..., Any]:
        specs = {"in_specs": self.in_specs, "out_specs": self.out_specs}
        return jax.shard_map(self.body, mesh=MESH, check_vma=check_vma, **specs)

    def trace(self, check_vma: bool) -> Any:
        return jax.eval_shape(self.mapped(check_vma), *self.structs)


BOTH = (False, True)


# Wrong ones


def forgotten_sum(x, w):
    return x @ w


def local_mean(x):
    return jnp.mean(x)


def step_by_a_local_gradient(w, x):
    gradient = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.1 * gradient


def gathered_in_another_order(x):
    return lax.all_gather(x, ("tp", "dp"), tiled=True)


def rows_in_another_order(x):
    return x * 2


def sharded_over_other_axes(x, y):
    return x.T @ y


def collective_in_a_branch(x):
    return lax.cond(x.max() > 0, lambda x: lax.psum(x, "dp"), lambda x: x * 4, x)


def collective_in_a_loop(x):
    def body(x):
        return x - lax.pmean(x, "dp")

    return lax.while_loop(lambda x: x.max() > 1e-3, body, x)


def sum_in_one_branch(x, w, is_last):
    return lax.cond(is_last, lambda y: lax.psum(y, "tp"), lambda y: y, x @ w)


def own_random_numbers(x, key):
    key = jax.random.fold_in(jax.random.wrap_key_data(key), lax.axis_index("dp"))
    return jax.random.normal(key, (4,))


def scattered_over_other_axis(x, w):
    y = x @ w
    return lax.psum_scatter(y, "dp", scatter_dimension=1, tiled=True)


def flattened_with_a_minor_shard(x):
    return x.reshape(-1)


def varies_by_a_condition(x, gain):
    y = lax.cond(x.max() > 0, lambda: gain, lambda: 2 * gain)
    return lax.psum(jnp.sum(x * y), "dp")


def optimizer_without_a_gather(w, moment):
    start = lax.axis_index("dp") * moment.shape[0]
    return lax.dynamic_update_slice_in_dim(w, moment * 0.9, start, 0)


def norm_of_own_rows(gradient):
    norm = jnp.sqrt(jnp.sum(gradient**2))
    return gradient * jnp.minimum(1.0, 1 / norm)


def pencils_by_one_axis(x):
    x = jnp.fft.fft(x, axis=2)
    x = lax.all_to_all(x, "tp", 2, 1, tiled=True)
    return jnp.fft.fft(x, axis=1)


def halo_until_own_rows_agree(x):
    def step(x):
        before = lax.ppermute(x[-1:], "dp", [(i, i + 1) for i in range(3)])
        return x - 0.1 * jnp.concatenate([before, x[:-1]])

    return lax.while_loop(lambda x: abs(x).max() > 1e-3, step, x)


def summed_and_scattered(x, w):
    y = lax.psum(x @ w, "tp")
    return lax.psum_scatter(y, "tp", scatter_dimension=1, tiled=True)


def gathered_and_not_averaged(w, x):
    def loss(w):
        whole = lax.all_gather(w, "dp", tiled=True)
        return jnp.mean((x @ whole) ** 2)

    return w - 0.1 * jax.grad(loss)(w)


def own_part_summed(w, x):
    def loss(w):
        whole = lax.all_gather(w, "dp", tiled=True)
        return lax.pmean(jnp.mean((x @ whole) ** 2), "dp")

    return w - 0.1 * lax.psum(jax.grad(loss)(w), "dp")


def norm_of_own_vocabulary(table, ids, x):
    slope = jax.grad(lambda table: (2 * embedding(table, ids) * x).sum())(table)
    return (slope**2).sum()


MATMUL, TWO, X = (P("dp", "tp"), P("tp")), ((8, 8), (8, 8)), ((8, 8),)
WRONG = [
    Program(forgotten_sum, MATMUL, P("dp"), TWO, ("unreduced",), "x @ w"),
    Program(local_mean, (P("dp"),), P(), X, ("varying",), "jnp.mean(x)"),
    Program(step_by_a_local_gradient, (P(), P("dp")), P(), TWO, ("varying",), "jax.grad"),
    Program(gathered_in_another_order, (P(("dp", "tp")),), P(), X, ("layout",), "all_gather"),
    Program(rows_in_another_order, (P(("dp", "tp")),), P(("tp", "dp")), X, ("layout",), "x * 2", BOTH),
    Program(sharded_over_other_axes, (P("dp"), P("tp")), P(), ((8, 8), (4, 8)), ("layout", "unreduced"), "x.T @ y"),
    Program(collective_in_a_branch, (P("dp"),), P("dp"), X, ("divergence",), "lax.psum", (False,)),
    Program(collective_in_a_loop, (P("dp"),), P("dp"), X, ("divergence",), "pmean"),
    Program(sum_in_one_branch, (*MATMUL, P()), P("dp"), (*TWO, ()), ("unreduced",), "x @ w", dtypes=(F32, F32, bool)),
    Program(own_random_numbers, (P("dp"), P()), P(), ((8, 8), (2,)), ("varying",), "axis_index", dtypes=(F32, U32)),
    Program(scattered_over_other_axis, (P(None, "tp"), P("tp")), P(None, "dp"), TWO, ("unreduced",), "@"),
    Program(flattened_with_a_minor_shard, (P(None, "dp"),), P("dp"), X, ("layout",), "reshape", BOTH),
    Program(varies_by_a_condition, (P("dp"), P()), P(), ((8, 8), ()), ("unsound",), "lax.cond", (True,)),
    Program(optimizer_without_a_gather, (P(), P("dp")), P(), TWO, ("varying",), ""),
    Program(norm_of_own_rows, (P("dp"),), P("dp"), X, ("lost-sum",), "jnp.sum", BOTH),
    Program(pencils_by_one_axis, (P("dp", "tp"),), P("dp", "tp"), ((8, 8, 8),), ("layout",), "fft.fft", BOTH),
    Program(halo_until_own_rows_agree, (P("dp"),), P("dp"), X, ("divergence",), "ppermute", BOTH),
    Program(summed_and_scattered, (P("dp", "tp"), P("tp")), P("dp", "tp"), TWO, ("double-sum",), "psum(x @ w", BOTH),
    Program(step_by_a_local_gradient, (P(), P("dp")), P(), TWO, ("summed-gradient",), "jax.grad", (True,)),
    Program(gathered_and_not_averaged, (P("dp"), P("dp")), P("dp"), TWO, ("summed-gradient",), "jax.grad", BOTH),
    Program(own_part_summed, (P("dp"), P("dp")), P("dp"), TWO, ("double-sum",), "lax.psum(", (True,)),
    Program(
        norm_of_own_vocabulary, (P("tp"), P(), P()), P(), ((16, 8), (8,), (8, 8)),
        ("unreduced",), ".sum()", dtypes=(BF16, I32, BF16),
    ),
]  # fmt: skip


# Right ones


def summed(x, w):
    return lax.psum(x @ w, "tp")


def embedding(table, ids):
    at = ids - lax.axis_index("tp") * table.shape[0]
    is_here = (at >= 0) & (at < table.shape[0])
    rows = table[jnp.clip(at, 0, table.shape[0] - 1)]
    return lax.psum(jnp.where(is_here[:, None], rows, 0), "tp")


def collective_matmul(x, w):
    def turn(i, carry):
        x, total = carry
        at = (lax.axis_index("tp") + i) % 2
        part = lax.dynamic_slice_in_dim(w, at * x.shape[1], x.shape[1])
        return lax.ppermute(x, "tp", [(0, 1), (1, 0)]), total + x @ part

    return lax.fori_loop(0, 2, turn, (x, jnp.zeros((x.shape[0], w.shape[1]))))[1]


def moe(x, w, gates):
    sent = lax.all_to_all(x.reshape(4, -1, x.shape[-1]), "dp", 0, 0)
    done = jnp.einsum("gcm,mf->gcf", sent, w[0])
    return lax.all_to_all(done, "dp", 0, 0).reshape(x.shape) * gates[:, None]


def pipeline(x, w):
    def tick(h, _):
        h = jax.nn.relu(h @ w[0])
        return lax.ppermute(h, "dp", [(i, i + 1) for i in range(3)]), None

    return lax.scan(tick, x[0], None, length=4)[0][None]


def scanned_layers(x, w):
    def layer(h, w):
        return h + lax.psum(jax.nn.relu(h @ w) @ w.T, "tp"), None

    return lax.scan(layer, x, w)[0]


def gradient_in_a_custom_rule(x, w):
    @jax.custom_vjp
    def f(x):
        return lax.psum(x @ w, "tp")

    f.defvjp(lambda x: (f(x), None), lambda _, g: (g @ w.T,))
    return f(x)


def kernel(x, cache):
    return jax.pure_callback(lambda x, cache: (x, cache), (x, cache), x, cache)


def copied_by_a_kernel(pool, table):
    """Pages by a table, as kernels of paged attention fetch them."""

    def kernel(table, pool, pages):
        for at in range(pages.shape[0]):
            pages[at] = pool[table[at]]

    shape = jax.ShapeDtypeStruct((table.shape[0], *pool.shape[1:]), pool.dtype)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(table, pool)


def paged_attention(q, keys, values, tables, lengths):
    def of_one(q, table, length):
        k, v = (pool[table].reshape(-1, *pool.shape[2:]) for pool in (keys, values))
        scores = jnp.einsum("hd,thd->ht", q, k)
        scores = jnp.where(jnp.arange(k.shape[0]) < length, scores, -1e30)
        return jnp.einsum("ht,thd->hd", jax.nn.softmax(scores), v)

    return jax.vmap(of_one)(q, tables, lengths)


def paged_attention_by_a_kernel(q, keys, table):
    k = copied_by_a_kernel(keys, table).reshape(-1, *keys.shape[2:])
    return jnp.einsum("bht,thd->bhd", jax.nn.softmax(jnp.einsum("bhd,thd->bht", q, k)), k)


def ragged(x, sizes):
    counts = sizes[0]
    starts = jnp.cumsum(counts) - counts
    received = lax.all_to_all(counts, "dp", 0, 0, tiled=True)
    offsets = lax.all_to_all(jnp.cumsum(received) - received, "dp", 0, 0, tiled=True)
    return lax.ragged_all_to_all(x, jnp.zeros_like(x), starts, counts, offsets, received, axis_name="dp")


def gathered_matmul(x, w):
    """An all-gather and a product, block by block."""
    index, rows = lax.axis_index("tp"), x.shape[0]
    y = jnp.zeros((2 * rows, w.shape[1]))
    for step in range(2):
        y = lax.dynamic_update_slice(y, x @ w, (((index - step) % 2) * rows, 0))
        x = lax.ppermute(x, "tp", [(0, 1), (1, 0)])
    return y


def scattered_matmul(x, w):
    """A product and a reduce-scatter, block by block."""
    index, rows = lax.axis_index("tp"), x.shape[0] // 2

    def part(step):
        return lax.dynamic_slice_in_dim(x, ((index - step - 1) % 2) * rows, rows) @ w

    return lax.ppermute(part(0), "tp", [(0, 1), (1, 0)]) + part(1)


def jacobi(a, b):
    def residual(x):
        return b - a @ lax.all_gather(x, "dp", tiled=True)

    def step(carry):
        x, _ = carry
        r = residual(x)
        return x + 0.1 * r, lax.psum((r**2).sum(), "dp")

    return lax.while_loop(lambda carry: carry[1] > 1e-3, step, (jnp.zeros_like(b), jnp.inf))[0]


RIGHT = [
    Program(summed, MATMUL, P("dp"), TWO, vma=BOTH),
    Program(embedding, (P("tp"), P("dp")), P("dp"), ((8, 8), (8,)), vma=BOTH, dtypes=(F32, I32)),
    Program(collective_matmul, (P("dp", "tp"), P()), P("dp"), TWO),
    Program(moe, (P("dp"), P("dp"), P("dp")), P("dp"), ((16, 8), (4, 8, 8), (16,)), vma=BOTH),
    Program(pipeline, (P("dp"), P("dp")), P("dp"), ((4, 8, 8), (4, 8, 8)), vma=BOTH),
    Program(scanned_layers, (P("dp"), P(None, None, "tp")), P("dp"), ((8, 8), (3, 8, 8)), vma=BOTH),
    Program(gradient_in_a_custom_rule, MATMUL, P("dp"), TWO, vma=BOTH),
    Program(lambda x: (x * np.float32(2), x.sum()[None]), (P("dp"),), (P("dp"), P("dp")), X, vma=BOTH),
    Program(kernel, (P("dp"), P()), (P("dp"), P()), TWO),
    Program(
        paged_attention, (P("dp", "tp"), *(P(None, None, "tp"),) * 2, P("dp"), P("dp")), P("dp", "tp"),
        ((8, 4, 8), (6, 2, 4, 8), (6, 2, 4, 8), (8, 3), (8,)), vma=BOTH, dtypes=(F32, F32, F32, I32, I32),
    ),
    Program(
        paged_attention_by_a_kernel, (P("dp", "tp"), P(None, None, "tp"), P()), P("dp", "tp"),
        ((8, 4, 8), (6, 2, 4, 8), (3,)), dtypes=(F32, F32, I32),
    ),
    Program(ragged, (P("dp"), P("dp")), P("dp"), ((64, 8), (4, 4)), vma=BOTH, dtypes=(F32, I32)),
    Program(gathered_matmul, (P("tp"), P(None, "tp")), P(None, "tp"), TWO, vma=BOTH),
    Program(scattered_matmul, (P(None, "tp"), P("tp")), P("tp"), TWO, vma=BOTH),
    Program(jacobi, (P("dp"), P("dp")), P("dp"), ((8, 8), (8,)), vma=BOTH),
]  # fmt: skip
