# ruff: noqa: E501 (a body is a line)
"""Attacks on `prove`: wrong bodies, decided by running them, none of which is proved; and right ones beside them."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from test_bodies import Body, function_of
from tiers import one_in, slow

from typedshmap import ShardingError, SuspectWarning, TypedShmapError
from typedshmap.testing import assert_mesh_invariant, prove

pytestmark = pytest.mark.usefixtures("nothing_is_run", "without_first_differences")
LOOKUP = "j = i - lax.axis_index('tp') * len(t); h = (j >= 0) & (j < len(t))"
CANCELLED = "v = q.sum(0) - ts.reshard(q, '[b/dp,tp] k -> [b/tp,dp] k').sum(0)"
FOOLED = {
    "sum plus min": Body("x", "return lax.psum(x.sum() + x.min(), 'dp')", ""),
    "min over -2": Body("x", "return lax.pmin(x.min() / -2.0, 'dp')", ""),
    "0 - max": Body("x", "return lax.pmax(0.0 - x.max(), 'dp')", ""),
    "0 - min": Body("x", "return lax.pmin(0.0 - x.min(), 'dp')", ""),
    "min scatter-added": Body("x a", "return lax.psum(jnp.zeros(5).at[a % 5].add(x.min(0)), 'dp')", "5"),
    "partial sum scattered by sharded ids": Body("x i", "return lax.psum(jnp.zeros(5).at[i % 5].add(x.sum()), 'dp')", "5"),
    "sum as int8": Body("i", "return lax.psum((i * 100).sum().astype(jnp.int8).astype(jnp.int32), 'dp')", "Int32: "),
    "sum as uint8": Body("i", "return lax.psum((i * 100).sum().astype(jnp.uint8).astype(jnp.float32), 'dp')", ""),
    "max as uint32": Body("i", "return lax.pmax((i - 1).max().astype(jnp.uint32), 'dp').astype(jnp.float32) + lax.pmin((i-1).min().astype(jnp.uint32), 'dp').astype(jnp.float32)", ""),
    "a metric per device": Body("x", "return x.sum(0)[None] * 0 + lax.psum(x.sum(0), 'dp')[None]", "[_/dp] k"),
    "a metric per device of constants": Body("x", "return jnp.ones(1)", "[_/dp]"),
    "a metric per device, constant argument": Body("x c", "return c[None]", "[_/dp] k"),
    "a gather that stacks": Body("x c", "return lax.all_gather(c, 'dp', to='invarying')", "_ k"),
    "local positions": Body("x", "return jnp.zeros(len(x))", "_"),
    "size of the axis as shape": Body("x", "return jnp.ones(lax.axis_size('dp')) + 0 * lax.psum(x.sum(), 'dp')", "_"),
    "zero times rows, plus the sum of parts": Body("x y", "return lax.psum((x - x + y.sum(0)).sum(), 'dp')", ""),
    "a take that fills of parts": Body("x", "return lax.psum(jnp.take(x.sum(0), jnp.array([0, 9999]), mode='fill', fill_value=1.0), 'dp')", "2"),
    "below five by index": Body("x", "return x * jnp.where(lax.axis_index('dp') < 5, 1.0, 2.0)", "[b/dp] k"),
    "below six by index": Body("x", "return x * jnp.where(lax.axis_index('dp') < 6, 1.0, 2.0)", "[b/dp] k"),
    "not the eighth": Body("x", "return x * jnp.where(lax.axis_index('dp') == 7, 2.0, 1.0)", "[b/dp] k"),
    "python on the size of the axis": Body("x", "return x * (2.0 if lax.axis_size('dp') == 8 else 1.0)", "[b/dp] k"),
    "python on a large axis": Body("x", "return x * (2.0 if lax.axis_size('dp') > 5 else 1.0)", "[b/dp] k"),
    "min of the axis size and four": Body("x c", "return lax.psum(c, 'dp') / min(lax.axis_size('dp'), 6)", "k"),
    "clip of the index": Body("x g", "at = jnp.clip(lax.axis_index('dp'), 0, 5) * len(x); return x + lax.dynamic_slice_in_dim(g, at, len(x))", "[b/dp] k"),
    "first rows by max of index": Body("x g", "at = jnp.minimum(lax.axis_index('dp'), 5) * len(x); return x + lax.dynamic_slice_in_dim(g, at, len(x))", "[b/dp] k"),
    "rows by bounds of other ids": Body("t i ii", f"{LOOKUP}; r = lax.select(ii < lax.axis_index('tp') * len(t), jnp.zeros_like(j), jnp.where(h, j, 0)); return lax.psum(jnp.where(h[:, None], t[r], 0), 'tp')", "[b/dp] n"),
    "parts that cancel, compared": Body("q", f"{CANCELLED}; return lax.psum(jnp.where(v > 0, 1.0, 0.0), ('dp', 'tp'))", "k"),
    "parts that cancel, beside what all have": Body("q c", f"{CANCELLED}; return jnp.tanh(lax.pmax(c + v, ('dp', 'tp')))", "k"),
    "parts that cancel, chosen or not": Body("q c", f"{CANCELLED}; return jnp.exp(lax.pmin(jnp.where(c > 0, v, c), ('dp', 'tp')))", "k"),
}  # fmt: skip
"""Bodies like those that were once proved: of each kind of gap that there was."""

WRONG = {
    "max plus sum, in pmax": Body("x", "return lax.pmax(x.max() + x.sum(), 'dp')", ""),
    "min plus min": Body("x y", "return lax.pmin(x.min() + y.min(), 'dp')", ""),
    "max minus min": Body("x", "return lax.pmax(x.max() - x.min(), 'dp')", ""),
    "min times -2": Body("x", "return lax.pmin(x.min() * -2.0, 'dp')", ""),
    "-max": Body("x", "return lax.pmax(-x.max(), 'dp')", ""),
    "min in pmax": Body("x", "return lax.pmax(x.min(), 'dp')", ""),
    "square of min": Body("x", "return lax.pmin(x.min() ** 2, 'dp')", ""),
    "reciprocal of max": Body("x", "return lax.pmax(1.0 / (x.max()), 'dp')", ""),
    "sum of max of rows over parts": Body("x", "return lax.pmax(x.max(0).sum(), 'dp')", ""),
    "dot of max": Body("x c", "return lax.pmax(x.max(0) @ c, 'dp')", ""),
    "cumsum of max": Body("x", "return lax.pmax(jnp.cumsum(x.max(0)), 'dp')", "k"),
    "min padded by one": Body("x", "return lax.psum(jnp.pad(x.sum(0), 1, constant_values=1.0), 'dp')", "k+2"),
    "pad with partial, summed": Body("x c", "return lax.psum(lax.pad(c, x.sum(), [(1, 1, 0)]), 'dp')", "k+2"),
    "concat sums and constants": Body("x c", "return lax.psum(jnp.concatenate([x.sum(0), c]), 'dp')", "2*k"),
    "concat sum and max": Body("x", "return lax.psum(jnp.concatenate([x.sum(0), x.max(0)]), 'dp')", "2*k"),
    "sum as bool": Body("i", "return lax.psum(i.sum().astype(bool).astype(jnp.int32), 'dp')", "Int32: "),
    "sum as int": Body("x", "return lax.psum(x.sum().astype(jnp.int32), 'dp')", "Int32: "),
    "reduce_precision of sum": Body("x", "return lax.psum(lax.reduce_precision(x.sum(), 8, 2), 'dp')", ""),
    "real of complex sum squared": Body("cx", "s = cx.sum(); return lax.psum((s * s.conj()).real, 'dp')", ""),
    "integer division of a sum": Body("i", "return lax.psum(i.sum() // 2, 'dp')", "Int32: "),
    "local length as a shape": Body("x", "return jnp.ones((len(x), 2)).sum(0)", "2"),
    "zero times a shard plus a partial sum": Body("x", "return lax.psum((x * 0 + x.sum(0)[None]).sum(0), 'dp')", "k"),
    "zeros of the shard counted": Body("x", "return lax.psum((x * 0 + 1).sum(), 'dp') + lax.psum(jnp.ones(len(x)).sum() * len(x), 'dp')", ""),
    "all_to_all along one dim": Body("x", "return lax.all_to_all(jnp.tile(x, (lax.axis_size('dp'), 1)), 'dp', 0, 0, tiled=True)[: len(x)]", "[b/dp] k"),
    "scatter in another order": Body("x", "s = x.sum(0); return lax.psum_scatter(lax.psum_scatter(s, 'dp', tiled=True) * 1.0, 'tp', tiled=True)", "[k/dp,tp]"),
    "psum of replicated mean": Body("x c", "return lax.psum(lax.pmean(c, 'dp'), 'dp')", "k"),
    "pmean of the mean of unequal": Body("x", "return lax.pmean(x.sum() / len(x) ** 2, 'dp')", ""),
    "pmax of a count": Body("x", "return lax.pmax(jnp.float32(len(x)), 'dp')", ""),
    "a broadcast of the first shard": Body("x", "return lax.psum(jnp.where(lax.axis_index('dp') == 0, x.sum(0), 0), 'dp')", "k"),
    "first of the gathered": Body("x", "return lax.all_gather(x.sum(0), 'dp', to='invarying')[0]", "k"),
    "local positions below ten": Body("x", "return x * jnp.where(jnp.arange(len(x)) < 10, 1.0, 2.0)[:, None]", "[b/dp] k"),
    "index in a float": Body("x", "return x * (1 + 0 * lax.axis_index('dp') + lax.axis_index('dp').astype(jnp.float32))", "[b/dp] k"),
    "index by fold_in": Body("x", "return lax.psum(jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index('dp')), ()), 'dp')", ""),
    "index modulo two": Body("x", "return x * (lax.axis_index('dp') % 2)", "[b/dp] k"),
    "another step of index": Body("x g", "return x + lax.dynamic_slice_in_dim(g, lax.axis_index('dp') * (len(x) - 1), len(x))", "[b/dp] k"),
    "rolled": Body("x", "return jnp.roll(x, 1, 0)", "[b/dp] k"),
    "sorted": Body("x", "return jnp.sort(x, 0)", "[b/dp] k"),
    "repeat": Body("x", "return jnp.repeat(x, 2, 0) + jnp.tile(x, (2, 1))", "[2*b/dp] k"),
    "concat with itself": Body("x", "return jnp.concatenate([x, x])", "[2*b/dp] k"),
    "dot with itself of local rows": Body("x", "return x @ x.T @ x", "[b/dp] k"),
    "contraction of two sharded": Body("x kk", "return lax.psum(x.sum(0)[: kk.shape[0]] @ kk, 'dp')", "n"),
    "a scan of max in the carry": Body("x", "return lax.pmax(lax.scan(lambda s, r: (s + r, None), 0.0, x.max(0))[0], 'dp')", ""),
    "a scan that turns sum to max": Body("x", "f = lambda s, _: ((s[1], x.max()), None); return lax.psum(lax.scan(f, (jnp.float32(0), x.sum()), None, 2)[0][0], 'dp')", ""),
    "a scan that squares parts": Body("x", "return lax.psum(lax.scan(lambda s, _: (s * s, None), x.sum(0), None, 2)[0], 'dp')", "k"),
    "a scan that adds one": Body("x", "return lax.psum(lax.scan(lambda s, _: (s + 1, None), x.sum(0), None, 2)[0], 'dp')", "k"),
    "a while on a shard's number": Body("x", "return lax.psum(lax.while_loop(lambda s: s.sum() < 10, lambda s: s + jnp.abs(x).sum(0) + 1, x.sum(0) * 0), 'dp')", "k"),
    "a loop as long as the shard": Body("x c", "return lax.fori_loop(0, len(x), lambda _, s: s + c, c)", "k"),
    "a loop over shards": Body("x c", "return lax.fori_loop(0, lax.axis_size('dp'), lambda _, s: s + c, c)", "k"),
    "cond on the index": Body("x c", "return lax.psum(lax.cond(lax.axis_index('dp') == 0, lambda: c, lambda: 2 * c), 'dp')", "k"),
    "cond on local sum": Body("x c", "return lax.pmean(lax.cond(x.sum() > 0, lambda: c, lambda: 2 * c), 'dp')", "k"),
    "scan over the shard's rows": Body("x", "return lax.psum(lax.scan(lambda s, r: (s * 0.5 + r, None), 0 * x[0], x)[0], 'dp')", "k"),
    "select by parts": Body("x c", "return lax.psum(jnp.where(x.sum(0) > 0, x.sum(0), 0), 'dp')", "k"),
    "select by own rows": Body("x g", "return lax.psum(jnp.where(x > 0, x.sum(0), 0).sum(0), 'dp')", "k"),
    "clamp of parts": Body("x", "return lax.psum(jnp.clip(x.sum(0), -1, 1), 'dp')", "k"),
    "max of sum and zero": Body("m w", "return lax.psum(jnp.maximum(m @ w, 0), 'tp')", "[b/dp] n"),
    "softmax of a shard": Body("m", "return jax.nn.softmax(m, 1)", "[b/dp] [k/tp]"),
    "variance of shards": Body("x", "return lax.pmean(x.var(0), 'dp')", "k"),
    "product of a dim": Body("x", "return lax.psum(x.prod(0), 'dp')", "k"),
    "any": Body("x", "return lax.psum((x > 1).any().astype(jnp.float32), 'dp')", ""),
    "count of unique": Body("i", "return lax.psum((jnp.bincount(i, length=4) > 0).astype(jnp.float32), 'dp')", "4"),
    "lookup with another first": Body("t i", "j = i - lax.axis_index('tp') * (len(t) + 1); h = (j >= 0) & (j < len(t)); return lax.psum(jnp.where(h[:, None], t[jnp.where(h, j, 0)], 0), 'tp')", "[b/dp] n"),
    "lookup where elsewhere is one": Body("t i", f"{LOOKUP}; return lax.psum(jnp.where(h[:, None], t[jnp.where(h, j, 0)], 1), 'tp')", "[b/dp] n"),
    "lookup clipped": Body("t i", "j = jnp.clip(i - lax.axis_index('tp') * len(t), 0, len(t) - 1); return lax.psum(t[j], 'tp')", "[b/dp] n"),
    "rows added at shard's ids": Body("x i", "return lax.psum(jnp.zeros((4, x.shape[1])).at[i].set(x), 'dp')", "4 k"),
    "added to ones": Body("x i", "return lax.psum(jnp.ones((4, x.shape[1])).at[i].add(x), 'dp')", "4 k"),
    "max scattered": Body("x i", "return lax.psum(jnp.zeros((4, x.shape[1])).at[i].max(x), 'dp')", "4 k"),
    "multiplied scattered": Body("x i", "return lax.psum(jnp.ones((4, x.shape[1])).at[i].multiply(x), 'dp')", "4 k"),
    "a convolution along the shard": Body("x", "return jax.vmap(lambda r: jnp.convolve(r, jnp.ones(3), mode='same'), 1, 1)(x)", "[b/dp] k"),
    "a grad of a local loss of sums": Body("x c", "return lax.psum(jax.grad(lambda c: (x @ c).sum() ** 2)(c), 'dp')", "k"),
    "normalized by the shard's max": Body("x", "return x / jnp.abs(x).max()", "[b/dp] k"),
    "a mean by local rows": Body("x", "return lax.psum(x.sum(0) / len(x), 'dp')", "k"),
    "two sizes of axes swapped": Body("m", "return lax.psum(m.sum(), ('dp', 'tp')) / lax.axis_size('dp') * lax.axis_size('tp')", ""),
    "psum of a bool constant": Body("x", "return lax.psum((x.sum() * 0 == 0).astype(jnp.float32), 'dp')", ""),
    "extreme of iota": Body("x c", "return c * lax.pmax(jnp.arange(len(x)).max(), 'dp')", "k"),
    "grad of local mean": Body("x c", "return lax.pmean(jax.grad(lambda c: jnp.tanh(x @ c).sum())(c), 'dp')", "k"),
    "grad of pmean twice": Body("x c", "return lax.psum(jax.grad(lambda c: lax.pmean(jnp.tanh(x @ c).mean(), 'dp'))(c), 'dp')", "k"),
    "grad of gather": Body("kk x", "return jax.grad(lambda w: (lax.all_gather(w, 'dp', tiled=True) ** 3).sum())(kk)", "[k/dp] n"),
    "grad of max": Body("x c", "return lax.psum(jax.grad(lambda c: (x * c).max())(c), 'dp')", "k"),
    "hessian": Body("x c", "return lax.pmean(jax.hessian(lambda c: jnp.tanh(x @ c).sum())(c), 'dp')", "k k"),
    "vjp with ones": Body("m w", "y, pull = jax.vjp(lambda w: m @ w, w); return lax.pmean(pull(y)[0], 'dp')", "[k/tp] n"),
    "jvp of parts": Body("x c", "return lax.psum(jax.jvp(lambda c: (x @ c).sum() ** 2, (c,), (c,))[1], 'dp')", ""),
    "custom_vjp wrong": Body("x c", "f = jax.custom_vjp(lambda c: lax.psum((x * c).sum(), 'dp')); f.defvjp(lambda c: (f(c), None), lambda r, g: (g * x.sum(0),)); return lax.pmean(jax.grad(f)(c), 'dp')", "k"),
    "checkpointed parts": Body("m w", "return lax.psum(jax.checkpoint(lambda m: jnp.tanh(m @ w))(m), 'tp')", "[b/dp] n"),
    "jitted parts": Body("m w", "return lax.psum(jax.jit(lambda m: (m @ w) + 1)(m), 'tp')", "[b/dp] n"),
    "scan ys of parts": Body("x c", "_, ys = lax.scan(lambda s, r: (s, r * x.sum(0)), 0., c[:2]); return lax.psum(ys + 1, 'dp')", "2 k"),
    "associative scan": Body("x", "return lax.associative_scan(jnp.add, x)", "[b/dp] k"),
    "dynamic update of parts into constants": Body("x c", "return lax.psum(lax.dynamic_update_slice(c, x.sum()[None], (0,)), 'dp')", "k"),
    "add at into arg": Body("x c", "return lax.psum(c.at[0].add(x.sum()), 'dp')", "k"),
    "roll of dims with index": Body("x", "return jnp.roll(x, lax.axis_index('dp'), 1)", "[b/dp] k"),
    "take by index": Body("x g", "return x * g[lax.axis_index('dp')]", "[b/dp] k"),
    "one_hot of index": Body("x g", "return lax.psum(jax.nn.one_hot(lax.axis_index('dp'), 4) , 'dp')", "4"),
    "gather of index": Body("x", "return lax.all_gather(lax.axis_index('dp'), 'dp', to='invarying').sum().astype(jnp.float32) + 0 * lax.psum(x.sum(), 'dp')", ""),
    "psum of the index": Body("x", "return lax.psum(lax.axis_index('dp'), 'dp').astype(jnp.float32)", ""),
    "pmax of global positions plus one": Body("x", "return lax.pmax((lax.axis_index('dp') * len(x) + jnp.arange(len(x))).max() + lax.axis_index('dp'), 'dp').astype(jnp.float32)", ""),
    "positions shifted per shard": Body("x", "return x * (lax.axis_index('dp') * (len(x) + 1) + jnp.arange(len(x)))[:, None]", "[b/dp] k"),
    "positions descending": Body("x", "return x * (lax.axis_index('dp') * len(x) - jnp.arange(len(x)))[:, None]", "[b/dp] k"),
    "padding by local length": Body("x", "at = lax.axis_index('dp') * len(x) + jnp.arange(len(x)); return lax.psum(jnp.where(at[:, None] < len(x) * 2, x, 0).sum(0), 'dp')", "k"),
    "linspace of local": Body("x", "return x * jnp.linspace(0, 1, len(x))[:, None]", "[b/dp] k"),
    "eye of local": Body("x", "return jnp.eye(len(x), x.shape[1]) + x", "[b/dp] k"),
    "merge with rows of another": Body("z", "return z.reshape(-1)[: len(z) * 3].reshape(len(z), 3)", "[b/dp] 3"),
    "dim of one dropped": Body("z8", "return z8[:1] * jnp.ones((len(z8), 1))", "[8/dp] k"),
    "interleaved": Body("x y", "return jnp.stack([x, y], 1).reshape(-1, x.shape[1])[::-1]", "[2*b/dp] k"),
    "exchange the replicated": Body("c z8", "y = jnp.tile(c, lax.axis_size('dp')); return lax.all_to_all(y, 'dp', 0, 0, tiled=True)[:len(c)] * 1", "[_/dp]"),
    "scatter of what is replicated": Body("c", "y = jnp.tile(c, lax.axis_size('dp')); return lax.psum_scatter(y, 'dp', tiled=True)", "[_/dp]"),
    "gather of parts of a sum": Body("x", "return lax.all_gather(x.sum(0), 'dp', tiled=True, to='invarying')", "_"),
    "lookup inclusive": Body("t i", "j = i - lax.axis_index('tp') * len(t); h = (j >= 0) & (j <= len(t)); return lax.psum(jnp.where(h[:, None], t[jnp.where(h, j, 0)], 0), 'tp')", "[b/dp] n"),
    "lookup with or": Body("t i", "j = i - lax.axis_index('tp') * len(t); h = (j >= 0) | (j < len(t)); return lax.psum(jnp.where(h[:, None], t[jnp.where(h, j, 0)], 0), 'tp')", "[b/dp] n"),
    "lookup not below only": Body("t i", "j = i - lax.axis_index('tp') * len(t); h = (j >= 0); return lax.psum(jnp.where(h[:, None], t[jnp.where(h, j, 0)], 0), 'tp')", "[b/dp] n"),
    "lookup fill one": Body("t i", "j = i - lax.axis_index('tp') * len(t); return lax.psum(jnp.take(t, j, axis=0, mode='fill', fill_value=1.0), 'tp')", "[b/dp] n"),
    "lookup with fill 0, negative wraps": Body("t i", "j = i - lax.axis_index('tp') * len(t); return lax.psum(t.at[j].get(mode='fill', fill_value=0), 'tp')", "[b/dp] n"),
    "lookup from other rows": Body("t i", "k = i - lax.axis_index('tp') * len(t); h = (k >= 0) & (k < len(t)); j = (i + 1) - lax.axis_index('tp') * len(t); return lax.psum(jnp.where(h[:, None], t[jnp.where(h, j, 0)], 0), 'tp')", "[b/dp] n"),
    "lookup added at": Body("t i x", f"{LOOKUP}; return lax.psum(jnp.zeros_like(t).at[jnp.where(h, j, 0)].add(jnp.ones((len(i), t.shape[1]))), 'dp')", "[v/tp] n"),
    "lookup max added at": Body("t i x", "j = i - lax.axis_index('tp') * len(t); return lax.psum(jnp.zeros((len(t), x.shape[1])).at[j].add(x.max(0), mode='drop'), 'dp')", "[v/tp] k"),
    "wrap of negative ids at": Body("t i x", "j = i - lax.axis_index('tp') * len(t); return lax.psum(jnp.zeros((len(t), x.shape[1])).at[j].add(x, mode='drop'), 'dp')", "[v/tp] k"),
    "halo partial": Body("x y", "s = jnp.ones((len(x), 1)) * y.sum(0); w = jnp.concatenate([ring(s[-1:], 'dp', 1), s]); return lax.psum(w.sum(0), 'dp')", "k"),
    "halo times positions": Body("x", "w = jnp.concatenate([ring(x[-1:], 'dp', 1), x]); return (w * jnp.arange(len(w))[:, None])[1:]", "[b/dp] k"),
    "stencil with edges sorted": Body("x", "w = jnp.concatenate([ring(x[-1:], 'dp', 1), x, ring(x[:1], 'dp', -1)]); return jnp.sort(w, 0)[1:-1]", "[b/dp] k"),
    "halo over the tp of dp dim": Body("m", "w = jnp.concatenate([ring(m[-1:], 'tp', 1), m]); return w[:-1]", "[b/dp] [k/tp]"),
    "ptp": Body("x", "return lax.pmax(x.max(0), 'dp') - lax.pmax(x.min(0), 'dp')", "k"),
    "max of products with sign": Body("x c", "return lax.pmax((x * c).max(0) * jnp.sign(c), 'dp')", "k"),
    "weighted by axis size": Body("x", "return x * lax.axis_size('dp')", "[b/dp] k"),
    "top_k of parts": Body("x", "return lax.psum(lax.top_k(x.sum(0), 2)[0], 'dp')", "2"),
    "sort of max": Body("x", "return lax.pmin(jnp.sort(x.max(0)), 'dp')", "k"),
    "matrix inverse of parts": Body("x", "return lax.pmean(jnp.linalg.inv(x.T @ x + jnp.eye(x.shape[1])), 'dp')", "k k"),
    "two-axis products": Body("x p", "return lax.psum(x.sum() * p.sum(), ('dp', 'tp')) + lax.psum(x.sum() * p.max(), ('dp', 'tp'))", ""),
    "max over dp of sum over tp before": Body("m", "return lax.psum(lax.pmax(m.sum(1).max(), 'dp'), 'tp')", ""),
    "xor of parts": Body("i", "return lax.psum(i.sum() ^ 1, 'dp')", "Int32: "),
    "not of max": Body("i", "return lax.pmax(~i.max(), 'dp')", "Int32: "),
    "complex abs of parts": Body("cx", "return lax.psum(jnp.abs(cx.sum(0)), 'dp')", "k"),
    "switch by replicated, one way counts": Body("x a", "return lax.psum(lax.switch(a[0], [lambda: x.sum(0), lambda: x.sum(0) + 1]), 'dp')", "k"),
    "select of shard and of whole": Body("x g", "return jnp.where(lax.axis_index('dp') == 0, x, g[: len(x)])", "[b/dp] k"),
    "psum_scatter of own": Body("x", "return lax.psum_scatter(jnp.tile(x, (lax.axis_size('dp'), 1)), 'dp', tiled=True)", "[b/dp] k"),
}  # fmt: skip

FEW_BITS = {
    "bfloat16 in while": Body("h", "s = lambda t: (t[0] + 1, t[1] + h.astype(jnp.bfloat16).sum(0, dtype=jnp.bfloat16)); return lax.psum(lax.while_loop(lambda t: t[0] < 40, s, (0, jnp.zeros(h.shape[1], jnp.bfloat16)))[1], 'dp').astype(jnp.float32)", "k"),
    "bfloat16 unrolled": Body("hm hw", "t = hm @ hw; t = t + (hm * 3) @ hw; t = t + (hm * 5) @ hw; t = t + (hm * 7) @ hw; return lax.psum(t, 'tp').astype(jnp.float32)", "[b/dp] n"),
    "bfloat16 scatter-add": Body("h i", "return lax.psum(jnp.zeros((3, h.shape[1]), jnp.bfloat16).at[i % 3].add(h), 'dp').astype(jnp.float32)", "3 k"),
    "bfloat16 cumsum of parts": Body("hm hw", "return lax.psum(jnp.cumsum(hm @ hw, 1), 'tp').astype(jnp.float32)", "[b/dp] n"),
    "bfloat16 rows added by ids": Body("t i h", f"rows = h; {LOOKUP}; y = jnp.where(h[:, None], rows, 0); return lax.psum(jnp.zeros((len(t), rows.shape[1]), jnp.bfloat16).at[jnp.where(h, j, 0)].add(y), 'dp').astype(jnp.float32)", "[v/tp] k"),
    "sixteen bits contracted once more": Body("hm hw", "return lax.psum((hm @ hw) @ jnp.ones((hw.shape[1], 3), jnp.bfloat16), 'tp').astype(jnp.float32)", "[b/dp] 3"),
    "sixteen bits in a scan": Body("hm hw", "s = lambda t, r: (t + r * (hm @ hw), None); return lax.psum(lax.scan(s, 0 * (hm @ hw), jnp.ones(40, jnp.bfloat16))[0], 'tp').astype(jnp.float32)", "[b/dp] n"),
    "rounded parts": Body("x", "return lax.psum(x.sum().astype(jnp.bfloat16).astype(jnp.float32), 'dp')", ""),
    "a maximum in fewer bits": Body("x", "return lax.pmax(x.max(0).astype(jnp.float16), 'dp').astype(jnp.float32)", "k"),
    "whole numbers in few bits": Body("i", "return lax.psum((i * 17).sum().astype(jnp.bfloat16), 'dp').astype(jnp.float32)", ""),
}  # fmt: skip
"""Bodies whose results depend on the mesh by more than exact numbers would, however little that is at most sizes."""

RIGHT = {
    "a minimum, halved": Body("x", "return lax.pmin(x.min() / 2.0, 'dp')", ""),
    "a minimum of minima": Body("x y", "return lax.pmin(jnp.minimum(x.min(0), y.min(0)), 'dp')", "k"),
    "a maximum and a bound": Body("x", "return lax.pmax(jnp.maximum(x.max(0), 0.5), 'dp')", "k"),
    "the negative of a maximum": Body("x", "return 0.0 - lax.pmax(x.max(), 'dp')", ""),
    "a range": Body("x", "return lax.pmax(x.max(0), 'dp') - lax.pmin(x.min(0), 'dp')", "k"),
    "a maximum less zero": Body("x", "return lax.pmax(x.max() - 0.0, 'dp')", ""),
    "differences of sums": Body("x y", "return lax.psum(x.sum(0) - y.sum(0) / 2, 'dp')", "k"),
    "a sum and a maximum": Body("x", "return lax.psum(x.sum(), 'dp') + lax.pmax(x.max(), 'dp')", ""),
    "a count, as floats": Body("x", "return lax.psum((x > 0).sum(0).astype(jnp.float32), 'dp')", "k"),
    "a mean of what is above zero": Body("x", "u = x > 0; return lax.psum((x * u).sum(), 'dp') / lax.psum(u.sum(), 'dp')", ""),
    "whole numbers that are widened": Body("i", "return lax.psum(i.astype(jnp.int8).sum(dtype=jnp.int32), 'dp').astype(bool)", "Bool: "),
    "whether any is above": Body("x", "return lax.pmax((x > 1).astype(jnp.int32).max(), 'dp').astype(bool)", "Bool: "),
    "whether all are": Body("x", "return lax.pmin((x > 1).astype(jnp.int32).min(), 'dp') == 1", "Bool: "),
    "a contraction of sixteen bits": Body("hm hw", "return lax.psum(hm @ hw, 'tp').astype(jnp.float32)", "[b/dp] n"),
    "sums of sixteen bits in thirty-two": Body("hm hw", "y = (hm @ hw).astype(jnp.float32); return lax.psum(y + 2 * y, 'tp')", "[b/dp] n"),
    "a maximum of sixteen bits, widened": Body("h", "return lax.pmax(h.max(0).astype(jnp.float32), 'dp')", "k"),
    "parts of a sum at places": Body("x a", "return lax.psum(jnp.zeros(5).at[a % 5].add(x.sum(0)), 'dp')", "5"),
    "rows added at their ids": Body("x i", "return lax.psum(jnp.zeros((4, x.shape[1])).at[i % 4].add(x), 'dp')", "4 k"),
    "a histogram": Body("i", "return lax.psum(jnp.zeros(4).at[i % 4].add(1), 'dp')", "4"),
    "entries of a sum, zero where there are none": Body("x a", "return lax.psum(x.sum(0).at[a].get(mode='fill', fill_value=0), 'dp')", "k"),
    "parts that cancel, beside parts": Body("q", f"{CANCELLED}; return lax.psum(v + q.sum(0), ('dp', 'tp'))", "k"),
    "parts beside zeros": Body("x", "s = x.sum(0); return lax.psum(jnp.concatenate([s, jnp.zeros(3)]), 'dp')", "k+3"),
    "sums of rows, and of a neighbour's": Body("x", "y = jnp.concatenate([ring(x[-1:], 'dp', 1), x]).sum(1); return y[1:] * y[:-1]", "[b/dp]"),
    "padded parts": Body("x", "return lax.psum(jnp.pad(x.sum(0), 1), 'dp')", "k+2"),
    "parts beside parts": Body("x y", "return lax.psum(jnp.concatenate([x.sum(0), y.sum(0)]), 'dp')", "2*k"),
    "a branch of parts, or zero": Body("x c", "return lax.psum(lax.cond(c[0] > 0, lambda: x.sum(0), lambda: 0 * x.sum(0)), 'dp')", "k"),
    "a while that adds parts": Body("x", "s = lambda t: (t[0] + 1, t[1] + x.sum(0)); return lax.psum(lax.while_loop(lambda t: t[0] < 3, s, (0, 0 * x.sum(0)))[1], 'dp')", "k"),
    "a running maximum of parts": Body("x c", "return lax.pmax(lax.scan(lambda s, r: (jnp.maximum(s, r * x.max(0) if False else x.max(0)), None), x.max(0), c[:3])[0], 'dp')", "k"),
    "a product of sums over two axes": Body("x p", "return lax.psum(x.sum() * p.sum(), ('dp', 'tp'))", ""),
    "all parts of all": Body("m", "return lax.psum(lax.psum(m.sum(1), 'tp').sum(), 'dp')", ""),
    "a scattered sum": Body("x kk", "return lax.psum_scatter(jnp.ones((size('k'), 1)) * x.sum(), 'dp', tiled=True) + kk", "[k/dp] n"),
    "weights gathered for use": Body("x kk", "return x @ lax.all_gather(kk, 'dp', tiled=True)", "[b/dp] n"),
    "gradients of gathered weights": Body("x kk", "return jax.grad(lambda w: (x @ lax.all_gather(w, 'dp', tiled=True)).sum())(kk)", "[k/dp] n"),
    "a choice by a number": Body("x", "return jnp.where(jnp.sum(jnp.ones(3, jnp.int32)).astype(bool), x, 0)", "[b/dp] k"),
    "one of three by its number": Body("x", "return lax.select_n(jnp.int32(1), x, 2 * x, 3 * x)", "[b/dp] k"),
    "zero times a shard": Body("x c", "return x * 0 + c", "[b/dp] k"),
    "a log-sum-exp": Body("m", "t = lax.pmax(m.max(1), 'tp'); return jnp.log(lax.psum(jnp.exp(m - t[:, None]).sum(1), 'tp')) + t", "[b/dp]"),
    "a normalised row": Body("m", "return m * lax.rsqrt(lax.psum((m * m).sum(1), 'tp') / size('k'))[:, None]", "[b/dp] [k/tp]"),
    "gated layers": Body("m w", "return jax.nn.silu(lax.psum(m @ w, 'tp'))", "[b/dp] n"),
    "a second derivative": Body("x c", "return lax.psum(jax.grad(lambda c: (jax.grad(lambda c: (jnp.tanh(x @ c)).sum())(c) ** 1).sum())(c), 'dp')", "k"),
    "a loss and its gradient": Body("x c", "return lax.pmean(jax.grad(lambda c: jnp.tanh(x @ c).mean())(c), 'dp')", "k"),
    "complex sums": Body("cx", "return lax.psum(cx.sum(0), 'dp').real", "k"),
    "a transform of parts": Body("x", "return lax.psum(jnp.fft.fft(x.sum(0)), 'dp').real", "k"),
    "a cumulative sum of parts": Body("x", "return lax.psum(jnp.cumsum(x.sum(0)), 'dp')", "k"),
    "the same on all, sent on": Body("x c", "return ring(c, 'dp', 1) + lax.pmean(x.mean(0), 'dp')", "k"),
    "halves of a halo": Body("x", "w = jnp.concatenate([ring(x[-2:], 'dp', 1), x]); return w[1:-1] - w[:-2]", "[b/dp] k"),
    "unsharded dims, moved and merged": Body("bk", "return jnp.moveaxis(bk, 1, 2).reshape(len(bk), -1)[:, ::2]", "[b/dp] _"),
}  # fmt: skip

MESHES = ["dp=2,tp=1", "dp=3,tp=1", "dp=1,tp=3", "dp=2,tp=2", "dp=4,tp=2", "dp=8,tp=1"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [*FOOLED, *FEW_BITS, *one_in(8, WRONG)])
def test_no_wrong_body_is_proved(name: str, tmp_path: Path) -> None:
    function = function_of({**FOOLED, **WRONG, **FEW_BITS}[name], tmp_path, check_vma=False)
    try:
        assert prove(function).verdict == "unknown"
    except TypedShmapError:  # what is known without a proof refuses it
        assert name not in FOOLED and name not in FEW_BITS


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_body_beside_them_is_proved(name: str, tmp_path: Path) -> None:
    found = prove(function_of(RIGHT[name], tmp_path, check_vma=False))
    assert (found.verdict, found.why) == ("proved", "")


def depends_on_the_mesh(function: Any) -> bool:
    """Whether a mesh gives another result, or types refuse it; those that sizes do not fit are passed over."""
    for mesh in MESHES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SuspectWarning)
            try:
                assert_mesh_invariant(function, [mesh], trials=1)
            except (AssertionError, ShardingError):
                return True
            except (TypedShmapError, ValueError):
                continue
    return False


@pytest.mark.parametrize("name", [*map(slow, [*FOOLED, *WRONG, *RIGHT])])
def test_running_and_types_decide_which_are_wrong(name: str, tmp_path: Path) -> None:
    body = {**FOOLED, **WRONG, **RIGHT}[name]
    assert depends_on_the_mesh(function_of(body, tmp_path, check_vma=False)) == (name not in RIGHT)
