# ruff: noqa: E501 (a body is a line)
"""What is proved of single bodies, what is not known of right ones, and wrong ones: tables of a body and the verdict."""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tiers import slow

from typedshmap import SuspectWarning, typed_shard_map
from typedshmap.testing import assert_mesh_invariant, prove

pytestmark = pytest.mark.usefixtures("nothing_is_run", "without_first_differences")
BEGINNING = """
import jax
import jax.numpy as jnp
from jax import lax
import typedshmap as ts
from typedshmap import *
from typedshmap.dtypes import Complex64

def ring(x, axis, shift):
    n = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(j, (j + shift) % n) for j in range(n)])

def line(x, axis, shift):
    n = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(j, j + shift) for j in range(n) if 0 <= j + shift < n])

"""


class Body(NamedTuple):
    """A body.

    Attributes:
      arguments: the hints of its arguments, of those below.
      lines: its lines.
      result: the hint of its result.
    """

    arguments: str
    lines: str
    result: str

    @property
    def source(self) -> str:
        given = ", ".join(f"{name}: {HINTS[name]}" for name in self.arguments.split())
        lines = "".join(f"    {line}\n" for line in self.lines.split("; "))
        dtype, _, dims = self.result.rpartition(": ")
        return f'{BEGINNING}\ndef f({given}) -> {dtype or "Float32"}[Array, "{dims}"]:\n{lines}'


HINTS = {
    "x": 'Float32[Array, "[b/dp] k"]',
    "y": 'Float32[Array, "[b/dp] k"]',
    "m": 'Float32[Array, "[b/dp] [k/tp]"]',
    "w": 'Float32[Array, "[k/tp] n"]',
    "c": 'Float32[Array, "k"]',
    "g": 'Float32[Array, "b k"]',
    "t": 'Float32[Array, "[v/tp] n"]',
    "i": 'Int32[Array, "[b/dp]"]',
    "ii": 'Int32[Array, "[b/dp]"]',
    "q": 'Float32[Array, "[b/dp,tp] k"]',
    "z": 'Float32[Array, "[b/dp] 6"]',
    "r": 'Float32[Array, "k e"]',
    "s": 'Float32[Array, "e"]',
    "a": 'Int32[Array, "k"]',
    "bk": 'Float32[Array, "[b/dp] k m"]',
    "cx": 'Complex64[Array, "[b/dp] k"]',
    "h": 'BFloat16[Array, "[b/dp] k"]',
    "hm": 'BFloat16[Array, "[b/dp] [k/tp]"]',
    "hw": 'BFloat16[Array, "[k/tp] n"]',
    "kk": 'Float32[Array, "[k/dp] n"]',
    "p": 'Float32[Array, "[b/tp] k"]',
    "u": 'Bool[Array, "[b/dp]"]',
    "z8": 'Float32[Array, "[8/dp] k"]',
}
FIRST = "lax.axis_index('dp') * len(x)"
FIRST_OF_K = "lax.axis_index('tp') * m.shape[1]"
FROM_BEFORE, FROM_BEHIND = "ring(x[-1:], 'dp', 1)", "ring(x[:1], 'dp', -1)"

PROVED = {
    "a contraction": Body("m w", "return lax.psum(m @ w, 'tp')", "[b/dp] n"),
    "a mean": Body("x", "return lax.pmean(x.mean(0), 'dp')", "k"),
    "a mean by global sizes": Body("x", "return lax.psum(x.sum(0), 'dp') / size('b')", "k"),
    "a variance": Body("x", "u = lax.pmean(x.mean(0), 'dp'); return lax.pmean(((x - u) ** 2).mean(0), 'dp')", "k"),
    "a maximum": Body("x", "return lax.pmax(x.max(0), 'dp')", "k"),
    "a softmax over a sharded dim": Body(
        "m", "e = jnp.exp(m - lax.pmax(m.max(1), 'tp')[:, None]); return e / lax.psum(e.sum(1), 'tp')[:, None]",
        "[b/dp] [k/tp]",
    ),
    "a gather": Body("x c", "return lax.all_gather(x, 'dp', tiled=True, to='invarying') + c", "b k"),
    "a part of what all have, by the index": Body(
        "x g", f"return x + lax.dynamic_slice_in_dim(g, {FIRST}, len(x))", "[b/dp] k"
    ),
    "global positions": Body("x", f"return x * ({FIRST} + jnp.arange(len(x)))[:, None]", "[b/dp] k"),
    "padding by global positions": Body(
        "x", f"at = {FIRST} + jnp.arange(len(x)); return lax.psum(jnp.where(at[:, None] < size('b') - 2, x, 0).sum(0), 'dp')", "k"
    ),
    "a causal mask": Body(
        "x g", f"at = {FIRST} + jnp.arange(len(x)); s = x @ g.T; return jnp.where(at[:, None] >= jnp.arange(len(g)), s, 0) @ g",
        "[b/dp] k",
    ),
    "an exchange": Body("x", "return lax.all_to_all(x, 'dp', 1, 0, tiled=True)", "b [k/dp]"),
    "a scan": Body("x c", "t, _ = lax.scan(lambda s, r: (jnp.tanh(s + r), None), x, jnp.ones(3)); return t", "[b/dp] k"),
    "a scan of partial sums": Body(
        "m w", "p = lambda s, r: (s + r * (m @ w), None); z = 0 * (m @ w); t, _ = lax.scan(p, z, jnp.arange(3.0)); return lax.psum(t, 'tp')",
        "[b/dp] n",
    ),
    "a while": Body(
        "x c",
        "s = lambda a: (a[0] / 2, lax.pmax(jnp.abs(a[0] / 2).max(), 'dp')); return lax.while_loop(lambda a: a[1] > 0.1, s, (x, jnp.float32(1)))[0]",
        "[b/dp] k",
    ),
    "a branch": Body("x c", "return lax.cond(c[0] > 0, lambda: x * 2, lambda: jnp.tanh(x))", "[b/dp] k"),
    "a lookup": Body("t i", "return ts.take(t, i, '[v/tp] n, [b/dp] -> [b/dp] n')", "[b/dp] n"),
    "a lookup by hand": Body(
        "t i",
        "j = i - lax.axis_index('tp') * len(t); h = (j >= 0) & (j < len(t)); return lax.psum(jnp.where(h[:, None], t[jnp.where(h, j, 0)], 0), 'tp')",
        "[b/dp] n",
    ),
    "rows of a table that all have": Body("g i", "return g[i]", "[b/dp] k"),
    "a merged dim of which the major is sharded": Body("z", "return z.reshape(-1)", "[b*6/dp]"),
    "a split dim": Body("z", "return z.reshape(len(z), 2, 3).sum(2)", "[b/dp] 2"),
    "a Fourier transform of what is not sharded": Body("x", "return jnp.fft.fft(x).real", "[b/dp] k"),
    "rows put on top of each other, and taken apart": Body("x y", "s = jnp.stack([x, jnp.tanh(y)]); u, v = s; return u * v", "[b/dp] k"),
    "a split of what is not sharded": Body("z", "u, v = jnp.split(z, 2, axis=1); return u * v", "[b/dp] 3"),
    "the derivative of tanh": Body("x", "return jax.grad(lambda x: jnp.tanh(x).sum())(x)", "[b/dp] k"),
    "a sum over both axes": Body("m", "return lax.psum((m * m).sum(), ('dp', 'tp'))", ""),
    "a part sent all the way round": Body(
        "x", "n = lax.axis_size('dp'); return ring(ring(x, 'dp', n - 1), 'dp', 1)", "[b/dp] k"
    ),
    "neighbours on a ring": Body(
        "x", f"w = jnp.concatenate([{FROM_BEFORE}, x, {FROM_BEHIND}]); return w[2:] - w[:-2]", "[b/dp] k"
    ),
    "neighbours of neighbours": Body(
        "x", f"w = jnp.tanh(jnp.concatenate([{FROM_BEFORE}, x, {FROM_BEHIND}])); y = w[1:] * w[:-1]; return y[1:] + y[:-1]", "[b/dp] k"
    ),
    "the one before, and zero at the start": Body(
        "x", "n = lax.axis_size('dp'); e = lax.ppermute(x[-1:], 'dp', [(j, j + 1) for j in range(n - 1)]); return x - jnp.concatenate([e, x])[:-1]", "[b/dp] k"
    ),
    "the one behind, and a row at the end": Body(
        "x c", f"e = jnp.where(lax.axis_index('dp') < lax.axis_size('dp') - 1, {FROM_BEHIND}, c[None]); return jnp.concatenate([x, e])[1:]", "[b/dp] k"
    ),
    "a halo in two directions": Body(
        "m",
        "w = jnp.concatenate([ring(m[-1:], 'dp', 1), m, ring(m[:1], 'dp', -1)]); "
        "v = jnp.concatenate([ring(w[:, -1:], 'tp', 1), w, ring(w[:, :1], 'tp', -1)], 1); return v[:-2, :-2] + v[2:, 2:] * v[1:-1, 1:-1]",
        "[b/dp] [k/tp]",
    ),
    "padding that is cut off": Body("m", "return jnp.tanh(jnp.pad(m, 2)[2:-2, 2:-2])", "[b/dp] [k/tp]"),
    "another layout": Body("q", "return ts.reshard(q, '[b/dp,tp] k -> [b/dp] [k/tp]')", "[b/dp] [k/tp]"),
    "rows by the largest of each": Body("x g", "return g[jnp.argmax(jnp.tanh(x), 1)]", "[b/dp] k"),
    "places of those above zero": Body(
        "x c", "at = jnp.cumsum(x > 0, 1) - 1; return c[at % len(c)] * x", "[b/dp] k"
    ),
    "two axes of a dim, gathered": Body("q", "return lax.all_gather(q, ('dp', 'tp'), tiled=True, to='invarying')", "b k"),
    "a matrix solved": Body("x r", "return x @ jnp.linalg.solve(jnp.eye(len(r)) + r @ r.T, r)", "[b/dp] e"),
    "a named function": Body("x", "return lax.composite(jnp.tanh, 'typedshmap.tanh')(x)", "[b/dp] k"),
    "the largest two and their places": Body(
        "x", "t, at = lax.top_k(x, 2); return t[:, 0] * jnp.take_along_axis(x, at, 1)[:, 1]", "[b/dp]"
    ),
    "the largest along the first dim": Body("x", "t, at = lax.top_k(x.T, 2, axis=0); return t * at", "2 [b/dp]"),
}  # fmt: skip

NOT_KNOWN = {
    "a reduce-scatter and a gather": Body(
        "m w c",
        "y = m @ w; z = lax.psum_scatter(y, 'tp', scatter_dimension=0, tiled=True); return lax.all_gather(z, 'tp', axis=0, tiled=True, to='invarying')",
        "[b/dp] n",
    ),
    "an exchange and back": Body(
        "x", "y = lax.all_to_all(x, 'dp', 1, 0, tiled=True); return lax.all_to_all(jnp.tanh(y), 'dp', 0, 1, tiled=True)",
        "[b/dp] k",
    ),
    "the first of the largest": Body(
        "m", f"at = jnp.argmax(m, 1) + {FIRST_OF_K}; t = m.max(1); return lax.pmin(jnp.where(t == lax.pmax(t, 'tp'), at, size('k')), 'tp')", "Int32: [b/dp]"
    ),
    "rows in the order of their entries, and back": Body(
        "x", "at = jnp.argsort(x, 1); y = jnp.sort(jnp.tanh(at), 1); return jnp.zeros_like(y).at[jnp.arange(len(x))[:, None], at].set(y)",
        "[b/dp] k",
    ),
    "a ring of keys": Body(
        "x y", "t = 0 * x; n = lax.axis_size('dp'); step = lambda j, a: (ring(a[0], 'dp', 1), a[1] + jnp.tanh(x @ a[0].T) @ a[0]); return lax.fori_loop(0, n, step, (y, t))[1]", "[b/dp] k"
    ),
    "the larger of two numbers": Body(
        "x c", "z = jnp.zeros(c.shape); return c + lax.psum(jnp.maximum(z @ jnp.eye(len(c)), z), 'dp')", "k"
    ),
    "there and back, of another sign": Body("x", "return -ring(-ring(x, 'dp', 1), 'dp', -1)", "[b/dp] k"),
}  # fmt: skip

WRONG = {
    "a sum too few": Body("x", "return lax.pmean(x.sum(0), 'dp')", "k"),
    "a sum too many": Body("x c", "return lax.psum(c, 'dp')", "k"),
    "a mean of squares": Body("x", "return lax.pmean(x.mean(0) ** 2, 'dp')", "k"),
    "a nonlinear function of a part": Body("m w", "return lax.psum(jnp.tanh(m @ w), 'tp')", "[b/dp] n"),
    "a maximum of partial sums": Body("x", "return lax.pmax(x.sum(0), 'dp')", "k"),
    "a solution added up": Body(
        "x r", "y = jnp.linalg.solve(jnp.eye(len(r)) + r @ r.T, r); return x @ lax.psum(y, 'dp')", "[b/dp] e"
    ),
    "the largest of each part": Body("m", "return lax.psum(lax.top_k(m, 1)[0], 'tp')", "[b/dp] 1"),
    "a product of sums": Body("x y", "return lax.psum(x.sum(0) * y.sum(0), 'dp')", "k"),
    "positions of the shard": Body("x", "return x * jnp.arange(len(x))[:, None]", "[b/dp] k"),
    "the number of the shard's rows": Body("x", "return x * len(x)", "[b/dp] k"),
    "the sum of the shard's positions": Body("x c", "return c * jnp.arange(len(x)).sum()", "k"),
    "the first rows of what all have": Body("x g", "return x + g[: len(x)]", "[b/dp] k"),
    "a minor dim that is merged": Body("m", "y = m.reshape(-1); z = y * jnp.arange(y.size); return lax.psum(z.sum(), ('dp', 'tp'))", ""),
    "a lookup by ids of the shard": Body(
        "t i", "h = i < len(t); return lax.psum(jnp.where(h[:, None], t[jnp.where(h, i, 0)], 0), 'tp')", "[b/dp] n"
    ),
    "a lookup in which one id is nobody's": Body(
        "t i",
        "j = i - lax.axis_index('tp') * len(t); h = (j > 0) & (j < len(t)); return lax.psum(jnp.where(h[:, None], t[jnp.where(h, j, 0)], 0), 'tp')",
        "[b/dp] n",
    ),
    "random numbers of the shard's shape": Body(
        "x", "return x * jax.random.normal(jax.random.key(0), x.shape)", "[b/dp] k"
    ),
    "a cumulative sum over a sharded dim": Body("x", "return jnp.cumsum(x, 0)", "[b/dp] k"),
    "a Fourier transform of a sharded dim": Body("x", "return jnp.fft.fft(x, axis=0).real", "[b/dp] k"),
    "rows in reverse on each shard": Body("x", "return x[::-1]", "[b/dp] k"),
    "a scan in which the sum is taken each time": Body(
        "x c", "t, _ = lax.scan(lambda s, r: (s + lax.psum(s + x.sum(0), 'dp') / 8, None), c, jnp.arange(3.0)); return t", "k"
    ),
    "a branch of which one way counts too many": Body(
        "x c", "return lax.cond(c[0] > 0, lambda: lax.psum(c, 'dp'), lambda: 2 * c)", "k"
    ),
    "a shift over the shards": Body("x", "return ring(x, 'dp', 1)", "[b/dp] k"),
    "the wrong edge of the neighbour": Body(
        "x", f"w = jnp.concatenate([ring(x[:1], 'dp', 1), x, {FROM_BEHIND}]); return w[2:] - w[:-2]", "[b/dp] k"
    ),
    "edges of something else": Body(
        "x y", f"w = jnp.concatenate([ring(y[-1:], 'dp', 1), x, {FROM_BEHIND}]); return w[2:] - w[:-2]", "[b/dp] k"
    ),
    "zero at the wrong end": Body(
        "x", f"e = jnp.where(lax.axis_index('dp') == lax.axis_size('dp') - 1, 0, {FROM_BEFORE}); return jnp.concatenate([e, x])[:-1]", "[b/dp] k"
    ),
    "an end that is the sum of all": Body(
        "x", f"e = jnp.where(lax.axis_index('dp') == 0, lax.psum(x[:1], 'dp'), {FROM_BEFORE}); return jnp.concatenate([e, x])[:-1]", "[b/dp] k"
    ),
    "a sum of what overlaps": Body(
        "x", f"w = jnp.concatenate([{FROM_BEFORE}, x, {FROM_BEHIND}]); return lax.psum(w.sum(0), 'dp')", "k"
    ),
    "padding between the shards": Body("x", "w = jnp.pad(x, ((1, 1), (0, 0))); return w[2:] - w[:-2]", "[b/dp] k"),
    "the largest by places in the shard": Body(
        "m", "at = jnp.argmax(m, 1); t = m.max(1); return lax.pmin(jnp.where(t == lax.pmax(t, 'tp'), at, size('k')), 'tp')", "Int32: [b/dp]"
    ),
    "the largest of a part": Body("x r s", "y = (x @ r)[:, : lax.axis_size('dp')]; return s[jnp.argmax(y, 1)]", "[b/dp]"),
    "places of the largest of the shard's rows": Body("x g", "return lax.pmean(g[jnp.argmax(x, 0)], 'dp')", "k k"),
    "the largest in another order": Body(
        "x r s", "y = jnp.roll(x @ r, lax.axis_index('dp'), 1); return s[jnp.argmax(y, 1)]", "[b/dp]"
    ),
    "as many of an expert as each shard has room for": Body(
        "x r s",
        "e = jnp.argmax(x @ r, 1); h = jax.nn.one_hot(e, len(s)); at = ((jnp.cumsum(h, 0) - 1) * h).sum(1); return jnp.where(at < 1, s[e], 0)",
        "[b/dp]",
    ),
}  # fmt: skip


def function_of(body: Body, folder: Path, check_vma: bool) -> Any:
    path, made = folder / "program.py", dict[str, Any]()
    path.write_text(body.source, encoding="utf-8")
    exec(compile(body.source, str(path), "exec"), made)
    return typed_shard_map(made["f"], check_vma=check_vma)


@pytest.mark.sample(8)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", PROVED)
def test_a_right_body_is_proved(name: str, check_vma: bool, tmp_path: Path) -> None:
    found = prove(function_of(PROVED[name], tmp_path, check_vma))
    assert (found.verdict, found.place, found.why) == ("proved", "", "")


@pytest.mark.sample(3)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", [*NOT_KNOWN, *WRONG])
def test_what_is_wrong_or_not_known_is_not_proved(name: str, check_vma: bool, tmp_path: Path) -> None:
    found = prove(function_of({**NOT_KNOWN, **WRONG}[name], tmp_path, check_vma))
    assert found.verdict == "unknown" and found.why


def test_the_gradient_of_what_is_picked_is_proved(tmp_path: Path) -> None:
    function = function_of(PROVED["the largest two and their places"], tmp_path, check_vma=True)
    assert prove(function, grad=True).verdict == "proved"
    assert_mesh_invariant(function, ["dp=4,tp=2"], grad=True, trials=1)


def is_invariant(function: Any) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SuspectWarning)
        try:
            assert_mesh_invariant(function, ["dp=2,tp=2", "dp=3,tp=1", "dp=1,tp=3", "dp=4,tp=2"], trials=1)
        except AssertionError:
            return False
    return True


@pytest.mark.parametrize("name", [*map(slow, [*PROVED, *NOT_KNOWN, *WRONG])])
def test_running_says_the_same(name: str, tmp_path: Path) -> None:
    body = {**PROVED, **NOT_KNOWN, **WRONG}[name]
    assert is_invariant(function_of(body, tmp_path, check_vma=False)) == (name not in WRONG)
