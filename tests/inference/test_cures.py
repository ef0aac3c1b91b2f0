# ruff: noqa: E501 (a program is a row of the table)
"""Whoever follows a message to the letter gets a program that is right, or is refused; never one that is wrong."""

from pathlib import Path
from typing import NamedTuple

import pytest
from cures import BEGINNING, expect_right, meshes, outcomes, refusal
from random_programs import drawn
from tiers import rare, slow

from typedshmap._jax.versions import HAS_MANUAL_TYPES


class Wrong(NamedTuple):
    """A program that is refused.

    Attributes:
      body: the lines of its function.
      names: what its message names.
      is_cured: whether following the messages ends in a program that is taken.
      modes: the settings of ``check_vma`` under which it is refused.
      agrees: whether all shards have the same of what its kernel returns.
      result: the hint of what it returns.
      more: what stands before it.
    """

    arguments: str
    body: str
    result: str
    names: str
    is_cured: bool = True
    modes: tuple[bool, ...] = (True, False)
    agrees: bool = False
    more: str = ""

    @property
    def source(self) -> str:
        lines = "\n".join(f"    {line.strip(chr(10))}" for line in self.body.strip().split("; "))
        hint = self.result if "[" in self.result and "Array" in self.result else f'Float[Array, "{self.result}"]'
        return f"{BEGINNING}{self.more}\n\ndef f({self.arguments}) -> {hint}:\n{lines}\n"


X = 'x: Float[Array, "[b/dp] [k/tp]"]'
XW = f'{X}, w: Float[Array, "[k/tp] n"]'
ROWS = 'x: Float[Array, "[b/dp] k"]'
XV = f'{ROWS}, w: Float[Array, "k"]'
ENTRIES = f'{ROWS}, w: Float[Array, "k n"]'
SHARDED = f'{ROWS}, w: Float[Array, "[k/dp]"]'
LOSS = "def loss_of(w, x):\n    y = x @ w\n    z = jnp.mean(y**2)\n    return z"
LAYER = "def loss_of(w, b, x):\n    y = {}\n    return lax.pmean(jnp.mean((y + b) ** 2), 'dp')"
XWB = f'{XW}, b: Float[Array, "n"]'

TABLE = 't: Float[Array, "[v/tp] n"], i: Int[Array, "[b/dp]"]'
LOOKUP = (
    "j = i - lax.axis_index('tp') * t.shape[0]; m = ((j >= 0) & (j < t.shape[0]))[:, None]; "
    "r = t[jnp.clip(j, 0, t.shape[0] - 1)]"
)

ADD = """
def add(c, r):
    c = c + r**2
    return c, None

def largest(c, r):
    c = jnp.maximum(c, r)
    return c, None
"""

RING = """
def ring(x, turns):
    total = x.sum(0)
    for _ in range(turns):
        x = lax.ppermute(x, 'dp', [(i, (i + 1) % lax.axis_size('dp')) for i in range(lax.axis_size('dp'))])
        total = total + x.sum(0)
    return total
"""

HALOS = """
def to_next(x, axis):
    return lax.ppermute(x, axis, [(i, (i + 1) % lax.axis_size(axis)) for i in range(lax.axis_size(axis))])

@typed
def with_halos(y: Float[Array, "[b/dp] [k/tp]"]) -> Float[Array, "_ _ ~dp ~tp"]:
    y = jnp.concatenate([to_next(y[-1:], 'dp'), y], 0)
    return jnp.concatenate([to_next(y[:, -1:], 'tp'), y], 1)

def step(i, y):
    y = with_halos(y)
    return y[:-1, 1:] + y[1:, :-1]
"""

LOGITS = 'x: Float[Array, "s [v/tp]"]'
SOFTMAX = """
def loss_of(x):
    m = x.max(-1, keepdims=True)
    e = jnp.exp(x - m)
    d = lax.psum(e.sum(-1, keepdims=True), 'tp')
    return -jnp.log(e / d).sum()
"""
LOG_SUM_EXP = """
def loss_of(x):
    m = lax.stop_gradient(x.max(-1))
    s = jnp.exp(x - m[:, None]).sum(-1)
    return (jnp.log(lax.psum(s, 'tp')) + m).sum()
"""
LARGEST = """
def loss_of(x):
    m = x.max(-1)
    return m.sum()
"""

PROGRAMS = {
    "a contraction": Wrong(XW, "y = x @ w; return y * 2", "[b/dp] n", "psum over 'tp'"),
    "a contraction of both axes": Wrong(X, "y = jnp.einsum('bk,bk->', x, x); return y", "", "psum over 'dp', 'tp'"),
    "a sum": Wrong(ROWS, "y = x.sum(0); return y", "k", "psum over 'dp'"),
    "a sum of mixed elements": Wrong('x: Float[Array, "s [b/dp]"]', "y = x.reshape(-1); z = y.sum(); return z", "", "psum over 'dp'"),
    "a sum over both axes, one at a time": Wrong(X, "y = x.sum(0); z = y.sum(); return z", "", "psum over"),
    "a local mean": Wrong(ROWS, "y = jnp.mean(x**2); return y", "", "pmean over 'dp'"),
    "a local mean of means": Wrong(ROWS, "y = x.mean(1); z = y.mean(); return z", "", "pmean over 'dp'"),
    "a mean that a check names, and that is summed": Wrong(ROWS, "y = check(x.mean(0), 'k'); z = lax.psum(y, 'dp'); return z", "k", "pmean over 'dp'"),
    "a maximum that a check names, and that is summed": Wrong(ROWS, "y = check(x.max(0), 'k'); z = lax.psum(y, 'dp'); return z", "k", "pmax over 'dp'"),
    "a mean over two axes": Wrong(X, "y = (x**2).mean(); return y", "", "pmean over 'dp', 'tp'"),
    "a mean, squared": Wrong(ROWS, "y = x.mean(0); z = y**2; return z", "k", "program.py:10 covers only each shard's part: pmean over 'dp'"),
    "a sum divided by a shard's size": Wrong(ROWS, "y = x.sum(0); return y / x.shape[0]", "k", "program.py:10 covers only each shard's part: pmean over 'dp'"),
    "a sum divided by two": Wrong(ROWS, "y = x.sum(0); return y / 2", "k", "program.py:10 leaves partial sums: psum over 'dp'"),
    "a sum divided by a global size": Wrong(ROWS, "y = x.sum(0); return y / size('b')", "k", "psum over 'dp'"),
    "a mean by multiplication": Wrong(ROWS, "y = x.sum(0); return y * (1 / x.shape[0])", "k", "program.py:10 covers only each shard's part: pmean over 'dp'"),
    "a mean of the other dim, summed": Wrong(ROWS, "y = x.mean(1); z = y.sum(); return z", "", "psum over 'dp'"),
    "the difference from a mean": Wrong(ROWS, "y = x.mean(0); z = ((x - y) ** 2).sum(0); return z", "k", "pmean over 'dp' at program.py:10"),
    "a variance": Wrong(ROWS, "y = x.var(0); return y", "k", "shard's part", is_cured=False),
    "a maximum": Wrong(ROWS, "y = x.max(); return y", "", "pmax over 'dp'"),
    "a minimum": Wrong(ROWS, "y = x.min(0); return y", "k", "pmin over 'dp'"),
    "a softmax by hand": Wrong(X, "m = x.max(1); e = jnp.exp(x - m[:, None]); s = e.sum(1); return s", "[b/dp]", "pmax over 'tp' at program.py:10"),
    "a log-sum-exp": Wrong(X, "y = jax.nn.logsumexp(x, axis=1); return y", "[b/dp]", "the logsumexp at program.py:10 covers only each shard's part of k (sharded over 'tp'): gather it first"),
    "a gathered value": Wrong(ROWS, "y = lax.all_gather(x, 'dp', tiled=True); return y", "b k", "to='invarying'", modes=(True,)),
    "a value that is gathered to vary": Wrong(ROWS, "y = all_gather(x, '[b/dp] k -> b k ~dp'); return y", "b k", "all_gather without '~'", modes=(True,)),
    "what is computed of a gathered value": Wrong(ROWS, "y = lax.all_gather(x, 'dp', tiled=True); z = y.sum(0); return z", "k", "to='invarying'", modes=(True,)),
    "a sum over the wrong axis": Wrong(XW, "y = x @ w; z = lax.psum(y, 'dp'); return z", "[b/dp] n", "psum over 'tp' at program.py:10"),
    "a bias added": Wrong(f'{XW}, c: Float[Array, "n"]', "y = x @ w; z = y + c; return z", "[b/dp] n", "program.py:10 leaves partial sums: psum over 'tp'"),
    "a nonlinear function": Wrong(XW, "y = x @ w; z = jax.nn.relu(y); return z", "[b/dp] n", "program.py:10 leaves partial sums: psum over 'tp'"),
    "a nonlinear function for the second time": Wrong(
        'x: Float[Array, "[b/dp] [k/tp]"], w: Float[Array, "[k/tp] d"]',
        "a = jax.nn.relu(x); y = a @ w; z = jax.nn.relu(y); return z", "[b/dp] d", "program.py:11 leaves partial sums: psum over 'tp'",
    ),
    "a mean, and a psum that does not fit it": Wrong(
        XV, 'm = check(x.mean(0), "k"); return lax.psum((m * w).sum(), "dp")', "", "pmean over 'dp'"
    ),
    "a sum, and a psum that fits it": Wrong(
        XV, 'm = check(x.sum(0), "k"); return lax.psum((m * w).sum(), "dp")', "", "whose sum is taken later: write '+dp'"
    ),
    "a quotient of two sums": Wrong(ROWS, "y = x.sum(0); n = (x**2).sum(0); return y / n", "k", "psum over 'dp' at program.py:11, and psum over 'dp' at program.py:10"),
    "updated weights": Wrong(
        XV, "g = jax.grad(lambda w: ((x @ w) ** 2).sum())(w); return w - 0.1 * g", "k", "program.py:10 leaves partial sums: psum over 'dp' of the gradient", modes=(False,)
    ),
    "updated weights by a gradient of a mean": Wrong(
        XV, "g = jax.grad(lambda w: ((x @ w) ** 2).mean())(w); return w - 0.1 * g", "k", "pmean over 'dp'", modes=(False,)
    ),
    "updated varying weights": Wrong(
        XV,
        "v = lax.pcast(w, 'dp', to='varying'); g = jax.grad(lambda w: ((x @ w) ** 2).mean())(v); return w - 0.1 * g",
        "k",
        "the gradient",
        modes=(True,),
    ),
    "a gradient of a sum divided by a shard's size": Wrong(
        XV, "g = jax.grad(lambda w: ((x @ w) ** 2).sum() / x.shape[0])(w); return g", "k", "program.py:10 covers only each shard's part: pmean over 'dp' of the gradient", modes=(False,)
    ),
    "a gradient of a psum": Wrong(
        XV, "g = jax.grad(lambda w: lax.psum(((x @ w) ** 2).sum(), 'dp'))(w); return g", "k", "pmean over 'dp'", modes=(False,)
    ),
    "a gradient of a pmean": Wrong(
        XV, "g = jax.grad(lambda w: lax.pmean(((x @ w) ** 2).mean(), 'dp'))(w); return g", "k", "pmean over 'dp'", modes=(False,)
    ),
    "a gradient of a pmean of entries": Wrong(
        f'{ENTRIES}, i: Int[Array, "[b/dp]"]',
        "j = i[:, None] % w.shape[1]; g = jax.grad(lambda w: lax.pmean(jnp.take_along_axis(x @ w, j, -1).mean(), 'dp'))(w); return g",
        "k n", "pmean over 'dp'", modes=(False,),
    ),
    "a gradient of a sum over the batch": Wrong(
        XV, "g = jax.grad(lambda w: lax.psum(((x @ w) ** 2).sum(), 'dp') / size('b'))(w); return g", "k", "pmean over 'dp'", modes=(False,)
    ),
    "a gradient through a psum over another axis": Wrong(
        f'{X}, w: Float[Array, "[k/tp]"]',
        "g = jax.grad(lambda w: lax.pmean((lax.psum(x @ w, 'tp') ** 2).mean(), 'dp'))(w); return g",
        "[k/tp]", "pmean over 'dp' of the gradient at program.py:10", modes=(False,),
    ),
    "a gradient of a sum, with that of a penalty": Wrong(
        XV, "g = jax.grad(lambda w: ((x @ w) ** 2).sum() + 0.1 * (w**2).sum())(w); return g", "k", "program.py:10 leaves partial sums", is_cured=False, modes=(False,)
    ),
    "a gradient of a mean, with that of a penalty": Wrong(
        XV, "g = jax.grad(lambda w: ((x @ w) ** 2).mean() + 0.1 * (w**2).sum())(w); return g", "k", "pmean over 'dp'", modes=(False,)
    ),
    "a sum that is compared": Wrong(
        ROWS, "s = x.sum(); t = s > 3.0; return t + 0.0", "", "program.py:10 leaves partial sums: psum over 'dp'"
    ),
    "a gradient of a mean that nobody averaged": Wrong(
        XV, "g = jax.grad(lambda w: loss_of(w, x))(w); return w - 0.1 * g", "k", "pmean over 'dp' at program.py:9", modes=(True,), more=LOSS
    ),
    "a loss that is averaged outside of what is differentiated": Wrong(
        XV, "l, g = jax.value_and_grad(lambda w: loss_of(w, x))(w); return lax.pmean(l, 'dp'), w - 0.1 * g",
        'tuple[Float[Array, ""], Float[Array, "k"]]', "pmean over 'dp' at program.py:9", modes=(True,), more=LOSS,
    ),
    "a mean of gradients that are summed": Wrong(
        XV, "g = jax.grad(lambda w: loss_of(w, x))(w); return lax.pmean(g, 'dp')", "k", "pmean over 'dp' at program.py:9", modes=(True,), more=LOSS
    ),
    "a matrix product that is differentiated": Wrong(
        XWB, "g = jax.grad(lambda w: loss_of(w, b, x))(w); return w - 0.1 * g", "[k/tp] n", "psum over 'tp' of x @ w", modes=(True,),
        more=LAYER.format("(x @ w)"),
    ),
    "a bias inside the psum, differentiated": Wrong(
        XWB, "g = jax.grad(lambda w: loss_of(w, b, x))(w); return w - 0.1 * g", "[k/tp] n",
        "psum over 'tp' of x @ w at program.py:8, and leave out the psum over 'tp' at program.py:8", modes=(True,),
        more=LAYER.format("lax.psum(x @ w + b, 'tp')"),
    ),
    "a gradient of a mean by weights that are gathered": Wrong(
        SHARDED, "g = jax.grad(lambda w: loss_of(lax.all_gather(w, 'dp', tiled=True), x))(w); return w - 0.1 * g",
        "[k/dp]", "pmean over 'dp' at program.py:9", modes=(True,), more=LOSS,
    ),
    "the same without types": Wrong(
        SHARDED, "g = jax.grad(lambda w: lax.pmean(loss_of(lax.all_gather(w, 'dp', tiled=True), x), 'dp'))(w); return w - 0.1 * g",
        "[k/dp]", "divide the gradient by the size of 'dp' at program.py:13", modes=(False,), more=LOSS,
    ),
    "a gradient of a mean over two axes, of which each weight is sharded over one": Wrong(
        f'{ROWS}, w: Float[Array, "k [n/tp]"]', "g = jax.grad(lambda w: loss_of(w, x))(w); return w - 0.1 * g",
        "k [n/tp]", "pmean over 'dp' at program.py:9", modes=(True,), more=LOSS,
    ),
    "a gradient of a mean and of a sum": Wrong(
        XV, "g = jax.grad(lambda w: loss_of(w, x))(w); return g", "k", "the gradient at program.py:13 leaves partial sums", is_cured=False, modes=(False,),
        more="def loss_of(w, x):\n    y = x @ w\n    z = jnp.mean(y**2)\n    return z + y.sum()",
    ),
    "a gradient of what is rematerialised": Wrong(
        XV, "g = jax.grad(lambda w: jax.checkpoint(loss_of)(w, x))(w); return g", "k", "pmean over 'dp' at program.py:9", modes=(True,), more=LOSS
    ),
    "a mean of what is masked": Wrong(
        ROWS, "m = (x > 0).astype(x.dtype); s = (x * m).sum(); c = m.sum(); n = jnp.maximum(c, 1); y = s / n; return lax.pmean(y, 'dp')",
        "", "psum over 'dp' at program.py:12",
    ),
    "a gradient of a sum and of a penalty": Wrong(
        XV, "g = jax.grad(lambda w: ((x @ w) ** 2).sum() + 0.1 * (w**2).sum())(w); return g", "k",
        "psum over 'dp' of ((x @ w) ** 2).sum() at program.py:10", modes=(True,),
    ),
    "a sum of partial sums that is differentiated": Wrong(
        f'{X}, w: Float[Array, "[k/tp]"]', "g = jax.grad(lambda w: loss_of(w, x))(w); return lax.pmean(g, 'dp')",
        "[k/tp]", "divide the gradient by the size of 'tp' at program.py:12", modes=(False,),
        more="def loss_of(w, x):\n    y = lax.psum(x @ w, 'tp')\n    return jnp.mean(y**2)",
    ),
    "a sum of the gradient of weights that are sharded": Wrong(
        SHARDED, "g = jax.grad(lambda w: lax.pmean(loss_of(lax.all_gather(w, 'dp', tiled=True), x), 'dp'))(w); return lax.psum(g, 'dp')",
        "[k/dp]", "leave out the psum over 'dp' at program.py:14", modes=(True,), more=LOSS,
    ),
    "a step by a mean of the gradient of weights that are sharded": Wrong(
        SHARDED, "g = jax.grad(lambda w: lax.pmean(loss_of(lax.all_gather(w, 'dp', tiled=True), x), 'dp'))(w); s = lax.pmean(g, 'dp'); return w - 0.1 * s",
        "[k/dp]", "leave out the pmean over 'dp' at program.py:14", modes=(True,), more=LOSS,
    ),
    "the loss and its gradient": Wrong(
        XV,
        "loss = lambda w: loss_of(w, x); l, g = jax.value_and_grad(loss)(w); return l, w - 0.1 * g",
        'tuple[Float[Array, ""], Float[Array, "k"]]',
        "pmean over 'dp'",
        more=LOSS
    ),
    "a scan that adds rows": Wrong(
        ROWS, "y = lax.scan(add, jnp.zeros(x.shape[1]), x)[0]; return y", "k", "psum over 'dp'", modes=(False,), more=ADD
    ),
    "a scan that adds rows to what varies": Wrong(
        ROWS, "c = lax.pcast(jnp.zeros(x.shape[1]), 'dp', to='varying'); y = lax.scan(add, c, x)[0]; return y",
        "k", "psum over 'dp'", modes=(True,), more=ADD,
    ),
    "a scan that adds rows to ones": Wrong(
        ROWS, "y = lax.scan(add, jnp.ones(x.shape[1]), x)[0]; return y", "k", "the sum over b (sharded over 'dp') at program.py:18 leaves partial sums", is_cured=False, modes=(False,), more=ADD
    ),
    "a scan for the largest row": Wrong(
        ROWS, "y = lax.scan(largest, jnp.full(x.shape[1], -jnp.inf), x)[0]; return y", "k", "pmax over 'dp'", modes=(False,), more=ADD
    ),
    "an argmax": Wrong(ROWS, "y = x.argmax(0); return y", 'Int[Array, "k"]', "gather it first"),
    "a lookup": Wrong('t: Float[Array, "[v/tp] n"], i: Int[Array, "[b/dp]"]', "y = t[i]; return y", "[b/dp] n", "gather it first"),
    "the first row": Wrong(ROWS, "y = x[0]; return y", "k", "gather it first"),
    "a tiled part": Wrong(f'{ROWS}, g: Float[Array, "[k/dp]"]', "h = jnp.tile(g, x.shape[1] // g.shape[0]); return x * check(h, \"k\")", "[b/dp] k", "gather it first"),
    "a dim that stays sharded": Wrong(ROWS, "y = x * 2; return y", "_ k", "write [b/dp], or gather it"),
    "a shard's own index": Wrong(ROWS, "i = lax.axis_index('dp'); return i * 1.0", "", "is each shard's own", is_cured=False),
    "the sum of a shard's own index, said to be part of a sharded dim": Wrong(
        ROWS, "i = check(lax.axis_index('dp') * len(x) + jnp.arange(len(x)), '[b/dp]'); y = (i * 1.0).sum(); return y", "",
        "psum over 'dp'",
    ),
    "a shard's own key": Wrong(
        ROWS, "i = lax.axis_index('dp'); k = jax.random.fold_in(jax.random.key(0), i); return jax.random.normal(k, (3,))", "3",
        "is each shard's own", is_cured=False,
    ),
    "a branch": Wrong(
        ROWS, "y = lax.cond(x.max() > 0, lambda: jnp.ones(2), lambda: jnp.zeros(2)); return y", "2", "the predicate of the cond",
        is_cured=False, modes=(False,),
    ),
    "the product of a part": Wrong(ROWS, "y = x.prod(0); return y", "k", "gather it first"),
    "a shard sent on": Wrong(ROWS, "y = x.sum(0); z = lax.ppermute(y, 'dp', [(0, 1), (1, 2), (2, 3), (3, 0)]) if x.shape[0] < 8 else y; return z", "k", "the ppermute at program.py:11 sends parts of", is_cured=False),
    "a ring that adds": Wrong(
        XW, "y = x @ w; z = lax.ppermute(y, 'tp', [(0, 1), (1, 0)]) if x.shape[1] < 8 else 0 * y; return y + z", "[b/dp] n", "the ppermute at program.py:11 sends parts of", modes=(False,), is_cured=False
    ),
    "a ring that adds, as JAX types it": Wrong(
        XW, "y = x @ w; z = lax.ppermute(y, 'tp', [(0, 1), (1, 0)]) if x.shape[1] < 8 else 0 * y; return y + z", "[b/dp] n", "its shards agree since the sum at program.py:12", modes=(True,), is_cured=False
    ),
    "a sum that a pattern leaves": Wrong('x: Float[Array, "[k/tp] n"], i: Int[Array, "[b/dp]"]', "y = take(x, i, '[k/tp] n, [b/dp] -> [b/dp] n +tp'); z = y * 2; return z", "[b/dp] n", "the lookup over k (sharded over 'tp') at program.py:10 leaves partial sums: psum over 'tp', or write '+tp'", modes=(False,)),
    "a sum that a ring has taken": Wrong(ROWS, "y = ring(x, lax.axis_size('dp') - 1); return y", "k", "assume(x, hint)", agrees=True, more=RING),
    "a sum of what one neighbour sends": Wrong(ROWS, "y = ring(x, 1); return y", "k", "assume(x, hint)", is_cured=False, more=RING),
    "a callback": Wrong(
        ROWS, "y = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x); return y.sum(0)", "k", "state its sharding with assume(x, hint)", is_cured=False
    ),
    "a kernel's second result": Wrong(
        f'{ROWS}, c: Float[Array, "s d"]',
        "shapes = jax.eval_shape(lambda x, c: (x, c), x, c); y, c = jax.pure_callback(lambda x, c: (x * 2, c * 2), shapes, x, c); return y, c",
        'tuple[Float[Array, "[b/dp] k"], Float[Array, "s d"]]', "assume(x, hint)", agrees=True,
    ),
    "a step of each shard's own dropout": Wrong(
        XV,
        "i = lax.axis_index('dp'); m = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), i), 1.0, x.shape); g = jax.grad(lambda w: ((x * m) @ w).mean())(w); return w - g",
        "k", "the axis_index at program.py:10", is_cured=False, modes=(False,),
    ),
    "a check of a partial sum": Wrong(XW, "y = x @ w; z = check(y, \"[b/dp] n\"); return lax.psum(z, 'tp')", "[b/dp] n", "whose sum is taken later: write '+tp'"),
    "a check, and then a pattern": Wrong(
        XW, "y = x @ w; z = check(y, \"[b/dp] n\"); return reduce(z, '[b/dp] n -> [b/dp]', 'sum')", "[b/dp]", "psum over 'tp'"
    ),
    "a check of a mean, and then a pattern": Wrong(
        ROWS, "y = x.mean(0); z = check(y, \"k\"); return reduce(z, 'k ->', 'sum')", "", "pmean over 'dp'"
    ),
    "a check in a loop, and then a pattern": Wrong(
        XW, "y = lax.map(lambda r: rowsum(r, w), x); return y", "[b/dp]", "leaves partial sums: psum over 'tp'", modes=(False,),
        more="def rowsum(r, w):\n    y = r @ w\n    z = check(y, 'n ~dp')\n    return reduce(z, 'n ~dp -> ~dp', 'sum')",
    ),
    "a helper's result that agrees": Wrong(
        ROWS, "y = lax.all_gather(x, 'dp', tiled=True); return norm(y)", "", "to='invarying'", modes=(True,),
        more='@typed\ndef norm(y: Float[Array, "b k"]) -> Float[Array, ""]:\n    return (y * y).sum()',
    ),
    "what is only typed as varying": Wrong(
        XV, "v = lax.pcast(w, 'dp', to='varying'); return v * 2", "k", "take the mean (pmean)", modes=(True,)
    ),
    "a nonlinear function of a mean": Wrong(ROWS, "y = x.mean(0); z = jnp.tanh(y); return lax.pmean(z, 'dp')", "k", "pmean over 'dp' at program.py:10"),
    "a sum over one axis and a mean over another": Wrong(
        'x: Float[Array, "[b/dp] [k/tp]"]', "y = x.sum(0); z = y.mean(); return lax.psum(z, ('dp', 'tp'))", "", "pmean over 'tp' in the place of psum over 'tp' at program.py:12"
    ),
    "a sum of means to which something is added": Wrong(
        ROWS, "y = x.mean(0); z = y + 1.0; return lax.psum(z, 'dp')", "k", "pmean over 'dp' in the place of psum at program.py:12"
    ),
    "a constant that is added too early to what is scaled": Wrong(
        ROWS, "y = x.sum(0); z = y + 1.0; s = lax.psum(z, 'dp'); return 0.01 * s", "k", "psum over 'dp' at program.py:10, and leave out the psum over 'dp' at program.py:12"
    ),
    "a nonlinear function of a sum over a shard's size": Wrong(
        ROWS, "y = x.sum(0) / x.shape[0]; z = jnp.tanh(y); return lax.pmean(z, 'dp')", "k", "pmean over 'dp' of x.sum(0) at program.py:10"
    ),
    "a nonlinear function of rows over the shard's size": Wrong(
        ROWS, "y = x / x.shape[0]; z = jnp.cos(y); return z", "[b/dp] k", "if this is intended", is_cured=False
    ),
    "a norm of a part, summed": Wrong(ROWS, "y = jnp.linalg.norm(x); return lax.psum(y, 'dp')", "", "if this is intended", is_cured=False),
    "a sum that is scattered once more": Wrong(
        XW, "y = x @ w; z = lax.psum(y, 'tp'); return lax.psum_scatter(z, 'tp', scatter_dimension=1, tiled=True)", "[b/dp] [n/tp]", "pmean over 'tp' in the place of psum at program.py:11, or leave out the psum over 'tp' at program.py:11"
    ),
    "a nonlinear function of a partial sum, differentiated": Wrong(
        f'{XW}, u: Float[Array, "[b/dp] n"]',
        "g = jax.grad(lambda w: loss_of(x, w, u))(w); return lax.psum(g, 'dp')", "[k/tp] n", "if this is intended", is_cured=False, modes=(False,),
        more="def loss_of(x, w, u):\n    y = x @ w\n    z = jnp.tanh(y)\n    return (z * u).sum()",
    ),
    "a loss of a sum, beside the gradient by weights that are sharded": Wrong(
        f'{XW}, u: Float[Array, "[b/dp] n"]',
        "l, g = jax.value_and_grad(lambda w: loss_of(x, w, u))(w); return l, lax.psum(g, 'dp')",
        'tuple[Float[Array, ""], Float[Array, "[k/tp] n"]]', "psum over 'dp', 'tp' of result 0", modes=(False,),
        more="def loss_of(x, w, u):\n    y = x @ w\n    z = y * u\n    return z.sum()",
    ),
    "a masked lookup": Wrong(TABLE, f"{LOOKUP}; y = jnp.where(m, r, 0); return y", "[b/dp] n", "the where at program.py:13 leaves partial sums: psum over 'tp'"),
    "a masked lookup, put elsewhere": Wrong(
        TABLE, f"{LOOKUP}; y = jnp.where(m, r, 0); z = jnp.zeros_like(y).at[jnp.arange(len(j)) + 0 * j].set(y); return z", "[b/dp] n",
        "the where at program.py:13 leaves partial sums: psum over 'tp'", is_cured=False,
    ),
    "a nonlinear function of a masked lookup": Wrong(
        TABLE, f"{LOOKUP}; y = jnp.where(m, r, 0); z = jnp.tanh(y); return z", "[b/dp] n", "psum over 'tp' at program.py:14"
    ),
    "a maximum by which something is divided that is summed, and with which it is multiplied again": Wrong(
        ROWS, "m = jnp.abs(x).max(0); q = jnp.tanh(x / m); s = lax.psum(q.sum(0), 'dp'); return s * m", "k", "program.py:10 covers only each shard's part: pmax over 'dp'"
    ),
    "a sum of random numbers by sharded keys": Wrong(
        ROWS,
        "r = lax.bitcast_convert_type(x[:, :2], jnp.uint32); z = jax.vmap(lambda r: jax.random.normal(jax.random.wrap_key_data(r), (3,)))(r); y = z.sum(0); return y",
        "d", "the sum over b (sharded over 'dp')",
    ),
    "the gradient of a softmax with each shard's own shift": Wrong(
        LOGITS, "g = jax.grad(loss_of)(x); return g", "s [v/tp]",
        "pmax over 'tp' of its stop_gradient at program.py:9", modes=(True,), more=SOFTMAX,
    ),
    "a log-sum-exp with each shard's own shift, and its gradient": Wrong(
        LOGITS, "l, g = jax.value_and_grad(loss_of)(x); return l, g", 'tuple[Float[Array, ""], Float[Array, "s [v/tp]"]]',
        "pmax over 'tp' of stop_gradient(x.max(-1))", modes=(True,), more=LOG_SUM_EXP,
    ),
    "the gradient of a maximum of a part": Wrong(
        LOGITS, "g = jax.grad(loss_of)(x); return g", "s [v/tp]",
        "if this is intended", is_cured=False, modes=(True,), more=LARGEST,
    ),
    "any of a part": Wrong(ROWS, "y = (x > 2).any(0); return y * 1.0", "k", "the any over b (sharded over 'dp') at program.py:10 covers only each shard's part: pmax over 'dp' at program.py:11"),
    "a part of what was scattered": Wrong(
        ROWS, "y = lax.psum_scatter(x, 'dp', scatter_dimension=1, tiled=True); z = y[:, 0]; return z", "c",
        "the shards differ since the psum_scatter at program.py:10", is_cured=False,
    ),
    "a root of what neighbours along two axes have sent": Wrong(
        X, "y = lax.fori_loop(0, 2, step, x); z = jnp.sqrt(((x - y) ** 2).sum()); return lax.psum(z, ('dp', 'tp'))", "",
        "psum over 'dp', 'tp' of ((x - y) ** 2).sum() at program.py:23, and leave out the psum over 'dp', 'tp' at program.py:24", more=HALOS,
    ),
    "a check of a part": Wrong(ROWS, "z = check(x, \"_ k\"); return z.sum(0)", "k", "still sharded over 'dp'"),
}  # fmt: skip

# A body that a check ends is read from one trace, of which jax 0.9 does not show that a number is a mean's.
ENDED = {
    "a check of a mean, and then a pattern",
    "a mean that a check names, and that is summed",
    "a mean, and a psum that does not fit it",
}
CASES = [
    pytest.param(name, mode, id=f"{name}-{mode}")
    for name, one in PROGRAMS.items()
    for mode in one.modes
    if HAS_MANUAL_TYPES or not mode or name not in ENDED
]


@pytest.mark.sample(7)
@pytest.mark.parametrize(("name", "check_vma"), CASES)
def test_a_message_names_what_makes_the_value_the_same_on_every_shard(
    name: str, check_vma: bool, tmp_path: Path
) -> None:
    message = refusal(PROGRAMS[name].source, tmp_path, meshes()[0], check_vma)
    assert message is not None, "it is taken"
    (cure,) = (line for line in message.splitlines() if line.startswith("Hint: "))
    assert PROGRAMS[name].names in cure


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "check_vma"), [case if at % 6 == 0 else slow(case) for at, case in enumerate(CASES)])
def test_a_program_that_follows_its_messages_is_right_or_refused(name: str, check_vma: bool, tmp_path: Path) -> None:
    wrong = PROGRAMS[name]
    taken = outcomes(wrong.source, tmp_path, check_vma, wrong.agrees)
    expect_right(taken, wrong.source, tmp_path, check_vma)
    assert bool(taken) == wrong.is_cured


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(
    "seeds", [range(6), slow(range(1000, 1050)), rare(range(1050, 1200))], ids=["few", "some", "many"]
)
def test_a_random_program_that_follows_its_messages_is_right_or_refused(
    seeds: range, check_vma: bool, tmp_path: Path
) -> None:
    refused = 0
    for seed in seeds:
        source = drawn(seed, check_vma)
        message = refusal(source, tmp_path, meshes()[0], check_vma)
        if message is not None and not message.startswith("JAX: "):
            expect_right(outcomes(source, tmp_path, check_vma), source, tmp_path, check_vma)
            refused += 1
    assert refused > len(seeds) // 4
