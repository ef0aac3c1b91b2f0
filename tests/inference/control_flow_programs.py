"""Programs with branches and loops: right ones, ones that deadlock, and ones whose types JAX gets wrong.

Each has an array ``x`` that is sharded over both axes, and a weight ``w`` that is the same everywhere. Tests hold that
plain JAX runs the right ones, with the gradients that they have under ``check_vma=False``, and not the wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from typedshmap import Array, Float, assume, check, partition_specs, reshard, typed
from typedshmap._jax.array import manual_type

X, W, OUT = Float[Array, "[b/dp] [k/tp]"], Float[Array, ""], Float[Array, "[n/dp,tp]"]
ARGS = (np.arange(8 * 16, dtype=np.float32).reshape(8, 16) / 64 - 1, np.float32(2))
BOTH, TYPED, UNTYPED = (True, False), (True,), (False,)


class Program(NamedTuple):
    """One program, from a shard of ``x`` and ``w`` to a number per shard.

    Attributes:
      body: what it does.
      said: what the first line of its error says; None for a right one.
      modes: the values of ``check_vma`` for which it is that.
      result: the hint of its result, where that is not a number per shard.
    """

    body: Callable[..., Any]
    said: str | None = None
    modes: tuple[bool, ...] = BOTH
    result: Any = OUT

    @property
    def hints(self) -> tuple[Any, ...]:
        return X, W

    @property
    def args(self) -> tuple[Any, ...]:
        return ARGS


def full(x: Any) -> Any:
    """The value, typed as varying over both axes."""

    def leaf(x: Any) -> Any:
        missing = tuple(axis for axis in ("dp", "tp") if axis not in manual_type(x).varying)
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(leaf, x)


def number(x: Any) -> Any:
    return full(x)[None]


def cond(predicate: Any, *branches: Callable[[], Any]) -> Any:
    """A choice whose branches JAX types alike."""
    return lax.cond(predicate, *(lambda branch=branch: full(branch()) for branch in branches))


def switch(which: Any, *branches: Callable[[], Any]) -> Any:
    return lax.switch(which, [lambda branch=branch: full(branch()) for branch in branches])


def loop(goes_on: Callable[[Any], Any], step: Callable[[Any], Any], start: Any) -> Any:
    return lax.while_loop(goes_on, lambda carry: full(step(carry)), full(start))


def times(count: Any, step: Callable[[Any], Any], start: Any) -> Any:
    return lax.fori_loop(0, count, lambda _, carry: full(step(carry)), full(start))


def at(axis: str, index: int = 0) -> Any:
    return lax.axis_index(axis) == index


def total(x: Any, axes: Any = "dp") -> Any:
    return lax.psum(x.sum(), axes)


def ring(x: Any, axis: str) -> Any:
    count = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(at, (at + 1) % count) for at in range(count)])


def one(communicate: Callable[[Any], Any], axis: str = "dp") -> Callable[..., Any]:
    """A program that communicates in one of two branches, which a shard chooses by its index."""
    return lambda x, w: cond(at(axis), lambda: communicate(x).sum(), lambda: x.sum())[None]


def agreed(predicate: Callable[[Any], Any]) -> Callable[..., Any]:
    """A program that sums over both axes in one of two branches."""
    return lambda x, w: cond(predicate(x), lambda: total(x, ("dp", "tp")), lambda: x.sum())[None]


def callback(x: Any) -> Any:
    return jax.pure_callback(lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return cond(at("dp"), lambda: total(x), lambda: x.sum())


doubled.defvjp(lambda x: (doubled(x), x), lambda x, g: (g * jnp.ones_like(x),))


@jax.custom_jvp
def tripled(x: Any) -> Any:
    return cond(at("dp"), lambda: total(x), lambda: x.sum())


tripled.defjvp(lambda primals, tangents: (tripled(*primals), tangents[0].sum()))


@jax.custom_vjp
def by_hand(x: Any) -> Any:
    return callback(x)


by_hand.defvjp(lambda x: (callback(x), None), lambda _, g: (full(g) * 2,))


@typed
def summed_somewhere(x: X) -> Float[Array, " ~dp ~tp"]:
    return cond(at("dp"), lambda: total(x), lambda: x.sum())


def root(x: Any) -> Any:
    def solve(f: Any, start: Any) -> Any:
        return lax.fori_loop(0, 9, lambda _, z: z - f(z), start)

    f = lambda z: z - 0.1 * jnp.cos(z) * total(x, ("dp", "tp"))  # noqa: E731
    return lax.custom_root(f, jnp.float32(0), solve, lambda g, y: y / g(1.0))


def written(x: Any) -> Any:
    """A reference that one branch writes."""
    ref = jax.new_ref(full(x.sum()))

    def write() -> Any:
        ref[...] = full(total(x))
        return 0

    lax.cond(at("dp"), write, lambda: 0)
    return ref[...]


def gradient(loss: Callable[[Any], Any], w: Any) -> Any:
    return number(jax.grad(loss)(w))


DEAD = "psum over 'dp' would deadlock: the predicate of the cond around it varies over 'dp'"
DEAD_LOOP = "psum over 'dp' would deadlock: the condition of the loop around it varies over 'dp'"


def dead(name: str, axes: str = "'dp'", over: str = "'dp'", control: str = "predicate of the cond") -> str:
    return f"{name} over {axes} would deadlock: the {control} around it varies over {over}"


WRONG = {
    # Branches.
    "psum in a branch by index": Program(one(total), DEAD),
    "psum in a branch by data": Program(lambda x, w: cond(x.sum() > 3, lambda: total(x), lambda: x.sum())[None], DEAD),
    "psum over both axes, by the index of one": Program(
        one(partial(total, axes=("dp", "tp"))), dead("psum", "'dp', 'tp'")
    ),
    "psum over both axes, by data": Program(agreed(lambda x: x[0, 0] > -1), dead("psum", "'dp', 'tp'", "'dp', 'tp'")),
    "psum over tp, by data summed over dp": Program(
        lambda x, w: cond(total(x) > 3, lambda: total(x, "tp"), lambda: x.sum())[None], dead("psum", "'tp'", "'tp'")
    ),
    "pmax in a branch": Program(one(lambda x: lax.pmax(x, "dp")), dead("pmax")),
    "pmin in a branch": Program(one(lambda x: lax.pmin(x, "dp")), dead("pmin")),
    "pmean in a branch": Program(one(lambda x: lax.pmean(x, "dp")), dead("pmean")),
    "all_gather in a branch": Program(one(lambda x: lax.all_gather(x, "dp")), dead("all_gather")),
    "all_gather to invarying in a branch": Program(
        one(lambda x: lax.all_gather(x, "dp", to="invarying")), dead("all_gather"), TYPED
    ),
    "psum_scatter in a branch": Program(
        one(lambda x: lax.psum_scatter(x, "dp", scatter_dimension=1, tiled=True)), dead("psum_scatter")
    ),
    "all_to_all in a branch": Program(one(lambda x: lax.all_to_all(x, "dp", 1, 0, tiled=True)), dead("all_to_all")),
    "reshard in a branch": Program(one(lambda x: reshard(x, "[b/dp] [k/tp] -> b [k/tp]")), dead("reshard")),
    # On CPUs a ppermute waits for the shards along all axes, and this one is a ppermute.
    "reshard over both axes": Program(
        one(lambda x: reshard(x, "[b/dp] [k/tp] -> [b/tp] [k/dp]"), "tp"), dead("reshard", "'tp'", "'tp'")
    ),
    "ppermute in a branch": Program(one(lambda x: ring(x, "dp")), dead("ppermute")),
    "ppermute over the other axis": Program(one(lambda x: ring(x, "tp")), dead("ppermute", "'tp'")),
    "the same psum in both branches": Program(
        lambda x, w: cond(at("dp"), lambda: total(x) * 2, lambda: total(x))[None], DEAD
    ),
    "psum in one and pmax in the other": Program(
        lambda x, w: cond(at("dp"), lambda: total(x), lambda: lax.pmax(x.sum(), "dp"))[None], dead("pmax")
    ),
    "psum in a switch": Program(
        lambda x, w: switch(lax.axis_index("dp"), *[lambda: x.sum()] * 3, lambda: total(x))[None],
        dead("psum", control="predicate of the switch"),
    ),
    "psum in a cond in a cond": Program(
        lambda x, w: cond(at("dp"), lambda: cond(w > 0, lambda: total(x), lambda: x.sum()), lambda: x.sum())[None],
        DEAD,
    ),
    "psum in a scan in a branch": Program(
        one(lambda x: lax.scan(lambda c, _: (full(c + total(c)), None), x.sum(), None, length=2)[0]), DEAD
    ),
    "psum in a branch in a scan": Program(
        lambda x, w: lax.scan(
            lambda c, _: (cond(at("dp"), lambda: total(c), lambda: c), None), number(x.sum())[0], None, length=2
        )[0][None],
        DEAD,
    ),
    "a predicate that comes to vary in a scan": Program(
        lambda x, w: lax.scan(
            lambda c, _: ((cond(c[1] > 0, lambda: total(x), lambda: x.sum()), c[0]), None),
            (number(x.sum())[0], full(w)),
            None,
            length=3,
        )[0][0][None],
        dead("psum", "'dp'", "'dp'"),
    ),
    "psum in a branch under remat": Program(lambda x, w: jax.checkpoint(one(total))(x, w), DEAD),
    "psum in a branch under jit": Program(lambda x, w: jax.jit(one(total))(x, w), DEAD),
    "psum in a branch, in a function under jit": Program(one(jax.jit(total)), DEAD),
    "psum in a branch under vmap": Program(
        lambda x, w: number(jax.vmap(lambda row: cond(at("dp"), lambda: total(row), lambda: row.sum()))(x).sum()), DEAD
    ),
    "psum in a branch of a typed helper": Program(lambda x, w: number(summed_somewhere(x)), DEAD),
    "psum in a branch of a custom_vjp": Program(lambda x, w: number(doubled(x)), DEAD),
    "psum in a branch of a custom_jvp": Program(lambda x, w: number(tripled(x)), DEAD),
    "psum in a branch around a check": Program(
        lambda x, w: cond(at("dp"), lambda: total(check(x, "[b/dp] [k/tp]")), lambda: x.sum())[None], DEAD
    ),
    "a predicate by a permute": Program(
        lambda x, w: cond(ring(x, "dp").sum() > 0, lambda: total(x), lambda: x.sum())[None], DEAD
    ),
    "a predicate by a callback": Program(
        lambda x, w: cond(full(callback(x)).sum() > 0, lambda: total(x), lambda: x.sum())[None], DEAD
    ),
    "a predicate by the host": Program(
        lambda x, w: cond(
            io_callback(lambda at: np.bool_(at == 0), jax.ShapeDtypeStruct((), bool), lax.axis_index("dp")),
            lambda: total(x),
            lambda: x.sum(),
        )[None],
        DEAD,
    ),
    "a predicate by another branch": Program(
        lambda x, w: cond(lax.cond(at("dp"), lambda: True, lambda: False), lambda: total(x), lambda: x.sum())[None],
        DEAD,
    ),
    "a predicate by an item of a scan": Program(
        lambda x, w: lax.scan(
            lambda c, item: (cond(item > 0, lambda: total(c), lambda: c), None), full(x.sum()), x[:, 0]
        )[0][None],
        DEAD,
    ),
    "a predicate by an item of a map": Program(
        lambda x, w: number(lax.map(lambda row: cond(row.sum() > 0, lambda: total(row), lambda: row.sum()), x).sum()),
        DEAD,
    ),
    "psum in a branch that prints it": Program(
        lambda x, w: cond(at("dp"), lambda: (jax.debug.callback(print, total(x)), x.sum())[1], lambda: x.sum())[None],
        DEAD,
    ),
    "psum in a branch that writes it": Program(lambda x, w: number(written(x)), DEAD),
    "psum in a root that is looked for in a branch": Program(
        lambda x, w: cond(at("dp"), lambda: root(x), lambda: x.sum())[None], dead("psum", "'dp', 'tp'")
    ),
    # Loops.
    "psum in a loop with a varying bound": Program(
        lambda x, w: times(lax.axis_index("dp") + 1, lambda c: c + total(c), x.sum())[None], DEAD_LOOP
    ),
    "psum in a loop that ends by data": Program(
        lambda x, w: loop(lambda c: c[1] < 3 * x.max() + 4, lambda c: (c[0] + total(c[0]), c[1] + 1), (x.sum(), 0))[0][
            None
        ],
        DEAD_LOOP,
    ),
    "psum in the condition of a loop that ends by data": Program(
        lambda x, w: loop(lambda c: (total(c) < 1e3) & (c < 30), lambda c: jnp.abs(c) * 2 + 1, x.sum())[None],
        DEAD_LOOP,
    ),
    "psum of the flags of the other axis": Program(
        lambda x, w: loop(lambda c: total(c, "tp") < 1e3, lambda c: jnp.abs(c) * 2 + ring(c, "dp") + 1, x.sum())[None],
        dead("ppermute", control="condition of the loop"),
    ),
    "psum in a scan in a loop": Program(
        lambda x, w: times(
            lax.axis_index("dp") + 1,
            lambda c: lax.scan(lambda c, _: (full(c + total(c)), None), c, None, length=2)[0],
            x.sum(),
        )[None],
        DEAD_LOOP,
    ),
    "psum in a loop with a fixed bound, in one that varies": Program(
        lambda x, w: times(
            lax.axis_index("dp") + 1, lambda c: times(w.astype(int) + 1, lambda c: c + total(c), c), x.sum()
        )[None],
        DEAD_LOOP,
    ),
    "ring in a loop with a bound that varies over the other axis": Program(
        lambda x, w: times(lax.axis_index("dp") + 1, lambda c: c + ring(c, "tp"), x.sum())[None],
        dead("ppermute", "'tp'", control="condition of the loop"),
    ),
    "a solver that ends by the residual of a shard": Program(
        lambda x, w: number(jax.scipy.sparse.linalg.cg(lambda v: 3 * v + lax.psum(v, "dp"), x[0], maxiter=30)[0].sum()),
        DEAD_LOOP,
    ),
    # What differentiation puts there.
    "gradient of an invarying value in a branch": Program(
        lambda x, w: gradient(lambda w: lax.cond(at("dp"), lambda: full(w * x.sum()), lambda: x.sum()), w),
        "psum over 'dp', 'tp' would deadlock",
        TYPED,
    ),
    "gradient of an invarying value in both branches": Program(
        lambda x, w: gradient(lambda w: lax.cond(at("dp"), lambda: w * x.sum(), lambda: w * x.sum() * 2), w),
        "psum over 'dp', 'tp' would deadlock",
        TYPED,
    ),
    "gradient of a scan in a branch": Program(
        lambda x, w: gradient(
            lambda w: cond(
                at("dp"), lambda: lax.scan(lambda c, row: (c + w * row.sum(), None), full(0.0), x)[0], lambda: x.sum()
            ),
            w,
        ),
        "psum over 'dp', 'tp' would deadlock",
        TYPED,
    ),
    "gradient of a gather in a branch": Program(
        lambda x, w: number(
            jax.grad(lambda x: cond(at("dp"), lambda: (lax.all_gather(x, "dp") ** 2).sum(), lambda: x.sum()))(x).sum()
        ),
        "over 'dp' would deadlock",
    ),
}

# As one writes them at first: under ``check_vma=True`` JAX refuses their types, and its advice makes them deadlock.
WRITTEN_FIRST = {
    "a cond": Program(lambda x, w: lax.cond(at("dp"), lambda: total(x), lambda: x.sum())[None], DEAD),
    "a cond under jit": Program(
        lambda x, w: jax.jit(lambda x: lax.cond(at("dp"), lambda: total(x), lambda: x.sum()))(x)[None], DEAD
    ),
    "a switch": Program(
        lambda x, w: lax.switch(lax.axis_index("dp"), [*[x.sum] * 3, lambda: total(x)])[None],
        dead("psum", control="predicate of the switch"),
    ),
    "a while_loop": Program(
        lambda x, w: lax.while_loop(
            lambda c: c[0] < lax.axis_index("dp"), lambda c: (c[0] + 1, total(c[1])), (0, x.sum())
        )[1][None],
        DEAD_LOOP,
    ),
    "a fori_loop": Program(
        lambda x, w: lax.fori_loop(0, lax.axis_index("dp") + 1, lambda _, c: total(c), x.sum())[None], DEAD_LOOP
    ),
    "a cond in a scan": Program(
        lambda x, w: lax.scan(
            lambda c, _: (lax.cond(at("dp"), lambda: total(x), lambda: c), None), 1.0, None, length=2
        )[0][None],
        DEAD,
    ),
}

# Right as they are; their gradient by ``w`` is not, since differentiation puts a psum into the branch.
DIFFERENTIATED = {
    "a weight in a branch": Program(
        lambda x, w: cond(at("dp"), lambda: w * x.sum(), lambda: x.sum())[None], "psum over 'dp', 'tp'", TYPED
    ),
    "a weight in a branch in a scan": Program(
        lambda x, w: lax.scan(
            lambda c, _: (cond(at("dp"), lambda: c * w, lambda: c), None), full(x.sum()), None, length=2
        )[0][None],
        "psum over 'dp', 'tp'",
        TYPED,
    ),
    "a weight in a branch under remat": Program(
        jax.checkpoint(lambda x, w: cond(at("dp"), lambda: jnp.sin(w) * x.sum(), lambda: x.sum())[None]),
        "psum over 'dp', 'tp'",
        TYPED,
    ),
    "a weight in one branch by data": Program(
        lambda x, w: cond(x.max() > 0, lambda: (x @ (w * jnp.ones((x.shape[1], 2)))).sum(), lambda: x.sum())[None],
        "psum over 'dp', 'tp'",
        TYPED,
    ),
}

TYPE = "varies over 'dp', as its predicate does, but JAX types it as invarying"

UNSOUND = {
    "a cond whose branches subtract the other way round": Program(
        lambda x, w: number(lax.cond(at("dp"), lambda w: w - 2, lambda w: 2 - w, w) * x.sum()), TYPE, TYPED
    ),
    "jax issue 40823": Program(
        lambda x, w: lax.cond(at("dp"), lambda w: 2 * w, lambda w: 3 * w, w)[None],
        f"a result of cond {TYPE}", TYPED, Float[Array, "[n/dp]"],
    ),
    "a choice by data": Program(
        lambda x, w: number(lax.cond(total(x, "tp") > 3, lambda w: 2 * w, lambda w: w, w) * x.sum()),
        f"a result of cond {TYPE}", TYPED,
    ),
    "a switch": Program(
        lambda x, w: number(lax.switch(lax.axis_index("dp"), [lambda w, n=n: n * w for n in range(4)], w) * x.sum()),
        f"a result of switch {TYPE}", TYPED,
    ),
    "a loop with a varying bound": Program(
        lambda x, w: number(lax.fori_loop(0, lax.axis_index("dp"), lambda _, c: c * 2, w) * x.sum()),
        f"a result of loop {TYPE}", TYPED,
    ),
    "a factor by a loop with a varying bound": Program(
        lambda x, w: number(lax.fori_loop(0, lax.axis_index("dp"), lambda _, c: c * 2, 1.0) * w * x.sum()),
        f"a result of loop {TYPE}", TYPED,
    ),
    "a factor by a branch": Program(
        lambda x, w: number(lax.cond(at("dp"), lambda: 2.0, lambda: 1.0) * w * x.sum()),
        f"a result of cond {TYPE}", TYPED,
    ),
    "an integer by a branch": Program(
        lambda x, w: number(lax.cond(at("dp"), lambda: 2, lambda: 1).astype(float) * w * x.sum()),
        f"a result of cond {TYPE}", TYPED,
    ),
    "a choice under remat": Program(
        lambda x, w: number(jax.checkpoint(lambda w: lax.cond(at("dp"), jnp.sin, jnp.cos, w))(w) * x.sum()),
        f"a result of cond {TYPE}", TYPED,
    ),
    "a choice in a scan": Program(
        lambda x, w: number(
            lax.scan(lambda c, _: (lax.cond(at("dp"), jnp.sin, jnp.cos, c), None), w, None, length=2)[0] * x.sum()
        ),
        f"a result of cond {TYPE}", TYPED,
    ),
    "a square of a constant by a branch and a bias": Program(
        lambda x, w: number((lax.cond(at("dp"), lambda: 2.0, lambda: 1.0) + w) ** 2 * x.sum()),
        f"a result of cond {TYPE}",
        TYPED,
    ),
    "a sine of a constant by a branch and a bias": Program(
        lambda x, w: number(jnp.sin(lax.cond(at("dp"), lambda: 2.0, lambda: 1.0) + w) * x.sum()),
        f"a result of cond {TYPE}",
        TYPED,
    ),
    "a callback times a weight": Program(
        lambda x, w: number((callback(x) * w).sum()), "a result of pure_callback varies over 'dp', 'tp'", TYPED
    ),
    "a callback with a derivative": Program(
        lambda x, w: number(by_hand(x).sum()), "a result of pure_callback varies over 'dp', 'tp'", TYPED
    ),
    "the gradient inside of a choice": Program(
        lambda x, w: gradient(lambda w: (lax.cond(at("dp"), lambda w: 2 * w, lambda w: w, w) * x).sum(), w),
        f"a result of cond {TYPE}", TYPED,
    ),
    "a choice that is returned as if it agreed": Program(
        lambda x, w: lax.cond(at("dp"), lambda w: 2 * w, lambda w: 3 * w, w), "varies over 'dp'", BOTH, W,
    ),
    "a loop that is returned as if it agreed": Program(
        lambda x, w: lax.fori_loop(0, lax.axis_index("dp"), lambda _, c: c * 2, w), "varies over 'dp'", BOTH, W,
    ),
    "a callback that is returned as if it agreed": Program(
        lambda x, w: callback(total(x, "tp")), "varies over 'dp'", BOTH, W
    ),
    "a choice that is checked as if it agreed": Program(
        lambda x, w: number(check(lax.cond(at("dp"), lambda: 2.0, lambda: 3.0), "")), "varies over 'dp'",
    ),
}  # fmt: skip


def solved(x: Any) -> Any:
    """A solver that ends where no shard has anything left to do."""

    def step(carry: Any) -> Any:
        y, _, count = carry
        z = y / 2
        return z, total(jnp.abs(z), ("dp", "tp")), count + 1

    y, _, count = lax.while_loop(lambda carry: (carry[1] > 1e-2) & (carry[2] < 50), step, (x, jnp.float32(1), 0))
    return y.sum() + count


def decoded(x: Any) -> Any:
    """A loop per data-parallel shard that sums over tensor-parallel ones, and ends when its own rows are done."""

    def step(carry: Any) -> Any:
        y, count = carry
        return full(y * 2 + lax.psum(jnp.abs(y), "tp") + 1), count + 1

    goes_on = lambda carry: (lax.pmax(jnp.abs(carry[0]).max(), "tp") < 100) & (carry[1] < 20)  # noqa: E731
    return lax.while_loop(goes_on, step, (x, 0))[0].sum()


RIGHT = {
    "psum over the other axis in a branch": Program(one(partial(total, axes="tp"))),
    "all_gather over the other axis": Program(one(lambda x: lax.all_gather(x, "tp"))),
    "reshard over the other axis": Program(one(lambda x: reshard(x, "[b/dp] [k/tp] -> [b/dp] k"))),
    "all_to_all over the other axis": Program(one(lambda x: lax.all_to_all(x, "tp", 1, 0, tiled=True))),
    "psum_scatter over the other axis": Program(
        one(lambda x: lax.psum_scatter(x, "tp", scatter_dimension=0, tiled=True))
    ),
    "a predicate that is summed": Program(agreed(lambda x: total(x, ("dp", "tp")) > 3)),
    "a predicate by pmax": Program(agreed(lambda x: lax.pmax(x.sum() > 3, ("dp", "tp")))),
    "a predicate that is gathered": Program(agreed(lambda x: lax.all_gather(x.sum(), ("dp", "tp")).max() > 3)),
    "a predicate by a psum of flags": Program(agreed(lambda x: lax.psum((x > 0).sum(), ("dp", "tp")) > 3)),
    "a predicate that is summed in two stages": Program(agreed(lambda x: total(lax.psum(x.sum(), "tp"), "dp") > 3)),
    "a predicate by an argument": Program(lambda x, w: cond(w > 1, lambda: total(x), lambda: x.sum())[None]),
    "a predicate by a constant": Program(agreed(lambda x: jnp.array(1) > 0)),
    "a predicate by a size": Program(agreed(lambda x: lax.psum(1, "dp") > 2)),
    "a predicate that is assumed": Program(agreed(lambda x: assume(callback(total(x, ("dp", "tp"))), "") > 3)),
    "a loop with a replicated counter": Program(
        lambda x, w: loop(lambda c: c[1] < 3, lambda c: (c[0] + total(c[0]), c[1] + 1), (x.sum(), 0))[0][None]
    ),
    "a loop with a bound that is an argument": Program(
        lambda x, w: times(w.astype(int), lambda c: c + total(c), x.sum())[None]
    ),
    "a solver with a residual that is summed": Program(lambda x, w: number(solved(x))),
    "a loop that ends where all shards do": Program(
        lambda x, w: loop(
            lambda c: lax.pmax(c < 1e3, ("dp", "tp")), lambda c: jnp.abs(c) + total(jnp.abs(c)) + 1, x.sum()
        )[None]
    ),
    "a loop per data-parallel shard": Program(lambda x, w: number(decoded(x))),
    "a loop whose condition sums over tp": Program(
        lambda x, w: loop(lambda c: total(c, "tp") < 1e3, lambda c: c * 2 + 1, check(jnp.abs(x).sum(), "~dp ~tp"))[None]
    ),
    "a scan around a psum": Program(
        lambda x, w: lax.scan(lambda c, _: (full(c + total(c)), None), x.sum(), None, length=2)[0][None]
    ),
    "a branch without communication": Program(
        lambda x, w: cond(at("dp"), lambda: x.sum() * lax.axis_index("dp"), lambda: x.sum())[None]
    ),
    "a psum that nothing uses": Program(
        lambda x, w: cond(at("dp"), lambda: (total(x), x.sum()), lambda: (x.sum(), x.sum()))[1][None]
    ),
    "a psum in a loop that nothing uses": Program(
        lambda x, w: loop(
            lambda c: c[0] <= lax.axis_index("dp"),
            lambda c: (c[0] + 1, c[1] * 2, c[2] + total(c[2])),
            (0, x.sum(), x.sum()),
        )[1][None]
    ),
    "a choice by select": Program(lambda x, w: number(jnp.where(at("dp"), total(x), x.sum()))),
    "a choice that vmap makes a select": Program(
        lambda x, w: number(jax.vmap(lambda row: cond(row.max() > 0, lambda: row.sum(), lambda: total(row)))(x).sum())
    ),
    "what is chosen is summed": Program(
        lambda x, w: number(total(lax.cond(at("dp"), lambda x: 2 * x, lambda x: x, x)))
    ),
    "a sum before a choice": Program(
        lambda x, w: number(lax.cond(at("dp"), lambda s: s, lambda s: s * 2, full(total(x))))
    ),
    # Results that JAX types wrongly, and nothing goes wrong.
    "the counter of a loop": Program(
        lambda x, w: lax.fori_loop(0, lax.axis_index("dp"), lambda n, c: c + n, full(x.sum()))[None]
    ),
    "a constant factor by a branch": Program(
        lambda x, w: number(x.sum() * lax.cond(at("dp"), lambda: 2.0, lambda: 1.0) * w)
    ),
    "a constant factor by a loop": Program(
        lambda x, w: number(x.sum() * lax.fori_loop(0, lax.axis_index("dp"), lambda _, c: c * 2, 1.0) * w)
    ),
    "a flag by a branch": Program(
        lambda x, w: number(jnp.where(lax.cond(at("dp"), lambda: True, lambda: False), x * w, x).sum())
    ),
    "a callback's result": Program(lambda x, w: number(callback(x).sum())),
    "a callback's result beside a weight": Program(lambda x, w: number((callback(x) + x * w).sum())),
    "a constant by a branch, and a bias": Program(
        lambda x, w: number(((lax.cond(at("dp"), lambda: 2.0, lambda: 1.0) + w)[None] * 3).sum() * x.sum())
    ),
    "a callback's result and a bias": Program(lambda x, w: number((callback(x) + w).sum())),
    "a choice that agrees between a constant by a branch and a weight": Program(
        lambda x, w: number(
            lax.cond(total(x, ("dp", "tp")) > 0, lambda: w, lambda: lax.cond(at("dp"), lambda: 2.0, lambda: 1.0))
            * x.sum()
        )
    ),
    "a callback's result, cast": Program(lambda x, w: number((full(callback(x)) * w).sum())),
    "a callback's result, assumed": Program(lambda x, w: number(assume(callback(total(x, ("dp", "tp"))), "") * w)),
    "a choice of what is cast": Program(
        lambda x, w: number(lax.cond(at("dp"), lambda w: 2 * w, lambda w: 3 * w, full(w)))
    ),
    "a weight in a branch, cast before": Program(
        lambda x, w: (lambda w: cond(at("dp"), lambda: w * x.sum(), lambda: x.sum())[None])(full(w))
    ),
    "a choice between two gradients": Program(
        lambda x, w: gradient(
            lambda w: lax.cond(at("dp"), lambda w: w * x.sum(), lambda w: w * x.sum() * 2, full(w)), w
        )
    ),
    "what both branches hand on": Program(
        lambda x, w: number(lax.cond(at("dp"), lambda c: (c[0] * 2, c[1]), lambda c: c, (full(w), w))[1] * x.sum())
    ),
    "what both branches compute alike": Program(
        lambda x, w: number(
            lax.cond(at("dp"), lambda w: jnp.square(2 + w) * w, lambda w: w * jnp.square(w + 2), w) * x.sum()
        )
    ),
    "what a loop hands on": Program(
        lambda x, w: number(
            lax.fori_loop(0, lax.axis_index("dp"), lambda _, c: (c[0] * 2, c[1]), (full(w), w))[1] * x.sum()
        )
    ),
    "a check in a loop with a varying bound": Program(
        lambda x, w: lax.fori_loop(
            0, lax.axis_index("dp"), lambda n, c: c + check(n.astype(float) * w, Float[Array, ""]), full(x.sum())
        )[None]
    ),
    "a choice without its gradient": Program(
        lambda x, w: number(lax.cond(at("dp"), lambda w: 2 * w, lambda w: w, lax.stop_gradient(w)) * x.sum())
    ),
}


def plain_form(program: Program, mesh: Any, check_vma: bool) -> Any:
    specs = {"in_specs": (jax.P("dp", "tp"), jax.P()), "out_specs": partition_specs(program.result)}
    return jax.jit(jax.shard_map(lambda x, w: program.body(x, w), mesh=mesh, check_vma=check_vma, **specs))


def gradient_of(f: Any) -> Any:
    return jax.grad(lambda x, w: f(x, w).sum(), argnums=1)


def gradients(program: Program, mesh: Any, check_vma: bool) -> Any:
    """Those by both arguments, in plain JAX; None where JAX takes none through a loop or a callback."""
    run = plain_form(program, mesh, check_vma)
    try:
        return jax.block_until_ready(jax.grad(lambda x, w: run(x, w).sum(), argnums=(0, 1))(*ARGS))
    except ValueError as error:
        assert "Reverse-mode differentiation" in str(error) or "Pure callbacks" in str(error), error
        return None
