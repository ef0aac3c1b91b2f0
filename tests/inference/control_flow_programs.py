"""Programs with branches and loops: right ones, ones that deadlock, and ones whose types JAX gets wrong.

Each has an array ``x`` that is sharded over both axes, and a weight ``w`` that is the same everywhere. Tests hold that
plain JAX runs the right ones, with the gradients that they have under ``check_vma=False``, and not the wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from tables import BOTH, TYPED, Program

from typedshmap import Array, Float, assume, check, partition_specs, reshard, typed
from typedshmap._jax.array import manual_type

X, W, OUT = Float[Array, "[b/dp] [k/tp]"], Float[Array, ""], Float[Array, "[n/dp,tp]"]
ARGS = (np.arange(8 * 16, dtype=np.float32).reshape(8, 16) / 64 - 1, np.float32(2))


def full(x: Any) -> Any:
    """The value, typed as varying over both axes."""

    def leaf(x: Any) -> Any:
        missing = tuple(axis for axis in ("dp", "tp") if axis not in manual_type(x).varying)
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(leaf, x)


def number(x: Any) -> Any:
    return full(x)[None]


def of(body: Callable[..., Any], said: str | None = None, modes: tuple[bool, ...] = BOTH) -> Program:
    """A program from a shard of ``x`` and ``w`` to a number per shard."""
    return Program((X, W), OUT, lambda x, w: number(body(x, w)), ARGS, said, modes)


def returned(body: Callable[..., Any], said: str, modes: tuple[bool, ...] = BOTH, result: Any = W) -> Program:
    """One whose result is as it is, by its hint the same on every shard."""
    return Program((X, W), result, body, ARGS, said, modes)


def cond(predicate: Any, *branches: Callable[[], Any]) -> Any:
    """A choice whose branches JAX types alike."""
    return lax.cond(predicate, *(lambda branch=branch: full(branch()) for branch in branches))


def loop(goes_on: Callable[[Any], Any], step: Callable[[Any], Any], start: Any) -> Any:
    return lax.while_loop(goes_on, lambda carry: full(step(carry)), full(start))


def times(count: Any, step: Callable[[Any], Any], start: Any) -> Any:
    return lax.fori_loop(0, count, lambda _, carry: full(step(carry)), full(start))


def carried(step: Callable[..., Any], start: Any, items: Any = None) -> Any:
    """What two iterations, or one for each item, make of a carry."""
    return lax.scan(lambda c, item: (full(step(c, item)), None), full(start), items, None if items is not None else 2)[
        0
    ]


def at(axis: str, index: int = 0) -> Any:
    return lax.axis_index(axis) == index


def total(x: Any, axes: Any = "dp") -> Any:
    return lax.psum(x.sum(), axes)


def ring(x: Any, axis: str) -> Any:
    count = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(at, (at + 1) % count) for at in range(count)])


def by_index(one: Callable[[], Any], other: Callable[[], Any], axis: str = "dp") -> Any:
    """A choice by a shard's index."""
    return cond(at(axis), one, other)


def one(communicate: Callable[[Any], Any], axis: str = "dp") -> Callable[..., Any]:
    """A body that communicates in one of two branches, which a shard chooses by its index."""
    return lambda x, w: by_index(lambda: communicate(x).sum(), x.sum, axis)


def where(predicate: Callable[[Any], Any], axes: Any = ("dp", "tp")) -> Callable[..., Any]:
    """A body that sums in one of two branches."""
    return lambda x, w: cond(predicate(x), lambda: total(x, axes), x.sum)


def two_or_one() -> Any:
    """What JAX types as the same on every shard, and is not."""
    return lax.cond(at("dp"), lambda: 2.0, lambda: 1.0)


def doubled_by_index(w: Any) -> Any:
    return lax.cond(at("dp"), lambda w: 2 * w, lambda w: w, w)


def doublings(w: Any) -> Any:
    return lax.fori_loop(0, lax.axis_index("dp"), lambda _, c: c * 2, w)


def callback(x: Any) -> Any:
    return jax.pure_callback(lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return by_index(lambda: total(x), x.sum)


doubled.defvjp(lambda x: (doubled(x), x), lambda x, g: (g * jnp.ones_like(x),))


@jax.custom_jvp
def tripled(x: Any) -> Any:
    return by_index(lambda: total(x), x.sum)


tripled.defjvp(lambda primals, tangents: (tripled(*primals), tangents[0].sum()))


@jax.custom_vjp
def by_hand(x: Any) -> Any:
    return callback(x)


by_hand.defvjp(lambda x: (callback(x), None), lambda _, g: (full(g) * 2,))


@typed
def summed_somewhere(x: X) -> Float[Array, " ~dp ~tp"]:
    return by_index(lambda: total(x), x.sum)


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


def chosen_by_host(x: Any) -> Any:
    chosen = io_callback(lambda at: np.bool_(at == 0), jax.ShapeDtypeStruct((), bool), lax.axis_index("dp"))
    return cond(chosen, lambda: total(x), x.sum)


def chosen(x: Any, w: Any) -> Any:
    return lax.cond(at("dp"), lambda w: w * x.sum(), lambda w: w * x.sum() * 2, full(w))


def dead(name: str, axes: str = "'dp'", over: str = "'dp'", control: str = "predicate of the cond") -> str:
    return f"{name} over {axes} would deadlock: the {control} around it varies over {over}"


DEAD, IN_LOOP = dead("psum"), "condition of the loop"
DEAD_LOOP = dead("psum", control=IN_LOOP)
BY_GRADIENT = "psum over 'dp', 'tp' would deadlock"

COLLECTIVES: dict[str, Callable[[Any, str], Any]] = {
    "pmax": lax.pmax,
    "pmin": lax.pmin,
    "pmean": lax.pmean,
    "all_gather": lax.all_gather,
    "psum_scatter": lambda x, axis: lax.psum_scatter(x, axis, scatter_dimension=int(axis == "dp"), tiled=True),
    "all_to_all": lambda x, axis: lax.all_to_all(x, axis, 1, 0, tiled=True),
    "reshard": lambda x, axis: reshard(x, f"[b/dp] [k/tp] -> {'b [k/tp]' if axis == 'dp' else '[b/dp] k'}"),
}

WRONG = {
    # Branches.
    "psum in a branch by index": of(one(total), DEAD),
    "psum in a branch by data": of(where(lambda x: x.sum() > 3, "dp"), DEAD),
    "psum over both axes, by the index of one": of(one(partial(total, axes=("dp", "tp"))), dead("psum", "'dp', 'tp'")),
    "psum over both axes, by data": of(where(lambda x: x[0, 0] > -1), dead("psum", "'dp', 'tp'", "'dp', 'tp'")),
    "psum over tp, by data summed over dp": of(where(lambda x: total(x) > 3, "tp"), dead("psum", "'tp'", "'tp'")),
    **{
        f"{name} in a branch": of(one(lambda x, f=collective: f(x, "dp")), dead(name))
        for name, collective in COLLECTIVES.items()
    },
    "all_gather to invarying in a branch": of(
        one(lambda x: lax.all_gather(x, "dp", to="invarying")), dead("all_gather"), TYPED
    ),
    # On CPUs a ppermute waits for the shards along all axes, and this one is a ppermute.
    "reshard over both axes": of(
        one(lambda x: reshard(x, "[b/dp] [k/tp] -> [b/tp] [k/dp]"), "tp"), dead("reshard", "'tp'", "'tp'")
    ),
    "ppermute in a branch": of(one(lambda x: ring(x, "dp")), dead("ppermute")),
    "ppermute over the other axis": of(one(lambda x: ring(x, "tp")), dead("ppermute", "'tp'")),
    "the same psum in both branches": of(lambda x, w: by_index(lambda: total(x) * 2, lambda: total(x)), DEAD),
    "psum in one and pmax in the other": of(
        lambda x, w: by_index(lambda: total(x), lambda: lax.pmax(x.sum(), "dp")), dead("pmax")
    ),
    "psum in a switch": of(
        lambda x, w: lax.switch(lax.axis_index("dp"), [*[lambda: full(x.sum())] * 3, lambda: full(total(x))]),
        dead("psum", control="predicate of the switch"),
    ),
    "psum in a cond in a cond": of(lambda x, w: by_index(lambda: cond(w > 0, lambda: total(x), x.sum), x.sum), DEAD),
    "psum in a scan in a branch": of(one(lambda x: carried(lambda c, _: c + total(c), x.sum())), DEAD),
    "psum in a branch in a scan": of(
        lambda x, w: carried(lambda c, _: by_index(lambda: total(c), lambda: c), x.sum()), DEAD
    ),
    "a predicate that comes to vary in a scan": of(
        lambda x, w: carried(lambda c, _: (cond(c[1] > 0, lambda: total(x), x.sum), c[0]), (x.sum(), w))[0], DEAD
    ),
    "psum in a branch under remat": of(jax.checkpoint(one(total)), DEAD),
    "psum in a branch under jit": of(jax.jit(one(total)), DEAD),
    "psum in a branch, in a function under jit": of(one(jax.jit(total)), DEAD),
    "psum in a branch under vmap": of(
        lambda x, w: jax.vmap(lambda row: by_index(lambda: total(row), row.sum))(x).sum(), DEAD
    ),
    "psum in a branch of a typed helper": of(lambda x, w: summed_somewhere(x), DEAD),
    "psum in a branch of a custom_vjp": of(lambda x, w: doubled(x), DEAD),
    "psum in a branch of a custom_jvp": of(lambda x, w: tripled(x), DEAD),
    "psum in a branch around a check": of(one(lambda x: total(check(x, "[b/dp] [k/tp]"))), DEAD),
    "a predicate by a permute": of(where(lambda x: ring(x, "dp").sum() > 0, "dp"), DEAD),
    "a predicate by a callback": of(where(lambda x: full(callback(x)).sum() > 0, "dp"), DEAD),
    "a predicate by the host": of(lambda x, w: chosen_by_host(x), DEAD),
    "a predicate by another branch": of(where(lambda x: lax.cond(at("dp"), lambda: True, lambda: False), "dp"), DEAD),
    "a predicate by an item of a scan": of(
        lambda x, w: carried(lambda c, item: cond(item > 0, lambda: total(c), lambda: c), x.sum(), x[:, 0]), DEAD
    ),
    "psum in a branch that prints it": of(
        lambda x, w: by_index(lambda: (jax.debug.callback(print, total(x)), x.sum())[1], x.sum), DEAD
    ),
    "psum in a branch that writes it": of(lambda x, w: written(x), DEAD),
    "psum in a root that is looked for in a branch": of(one(root), dead("psum", "'dp', 'tp'")),
    # Loops.
    "psum in a loop with a varying bound": of(
        lambda x, w: times(lax.axis_index("dp") + 1, lambda c: c + total(c), x.sum()), DEAD_LOOP
    ),
    "psum in a loop that ends by data": of(
        lambda x, w: loop(lambda c: c[1] < 3 * x.max() + 4, lambda c: (c[0] + total(c[0]), c[1] + 1), (x.sum(), 0))[0],
        DEAD_LOOP,
    ),
    "psum in the condition of a loop that ends by data": of(
        lambda x, w: loop(lambda c: (total(c) < 1e3) & (c < 30), lambda c: jnp.abs(c) * 2 + 1, x.sum()), DEAD_LOOP
    ),
    "psum of the flags of the other axis": of(
        lambda x, w: loop(lambda c: total(c, "tp") < 1e3, lambda c: jnp.abs(c) * 2 + ring(c, "dp") + 1, x.sum()),
        dead("ppermute", control=IN_LOOP),
    ),
    "psum in a scan in a loop": of(
        lambda x, w: times(lax.axis_index("dp") + 1, lambda c: carried(lambda c, _: c + total(c), c), x.sum()),
        DEAD_LOOP,
    ),
    "ring in a loop with a bound that varies over the other axis": of(
        lambda x, w: times(lax.axis_index("dp") + 1, lambda c: c + ring(c, "tp"), x.sum()),
        dead("ppermute", "'tp'", control=IN_LOOP),
    ),
    "a solver that ends by the residual of a shard": of(
        lambda x, w: jax.scipy.sparse.linalg.cg(lambda v: 3 * v + lax.psum(v, "dp"), x[0], maxiter=30)[0].sum(),
        DEAD_LOOP,
    ),
    # What differentiation puts there.
    "gradient of an invarying value in a branch": of(
        lambda x, w: jax.grad(lambda w: by_index(lambda: w * x.sum(), x.sum))(w), BY_GRADIENT, TYPED
    ),
    "gradient of an invarying value in both branches": of(
        lambda x, w: jax.grad(lambda w: lax.cond(at("dp"), lambda: w * x.sum(), lambda: w * x.sum() * 2))(w),
        BY_GRADIENT,
        TYPED,
    ),
    "gradient of a gather in a branch": of(
        lambda x, w: jax.grad(lambda x: by_index(lambda: (lax.all_gather(x, "dp") ** 2).sum(), x.sum))(x).sum(),
        "over 'dp' would deadlock",
    ),
}

# As one writes them at first: under ``check_vma=True`` JAX refuses their types, and its advice makes them deadlock.
WRITTEN_FIRST = {
    "a cond": of(lambda x, w: lax.cond(at("dp"), lambda: total(x), x.sum), DEAD),
    "a switch": of(
        lambda x, w: lax.switch(lax.axis_index("dp"), [*[x.sum] * 3, lambda: total(x)]),
        dead("psum", control="predicate of the switch"),
    ),
    "a while_loop": of(
        lambda x, w: lax.while_loop(
            lambda c: c[0] < lax.axis_index("dp"), lambda c: (c[0] + 1, total(c[1])), (0, x.sum())
        )[1],
        DEAD_LOOP,
    ),
    "a cond in a scan": of(
        lambda x, w: lax.scan(lambda c, _: (lax.cond(at("dp"), lambda: total(x), lambda: c), None), 1.0, None, 2)[0],
        DEAD,
    ),
}

# Right as they are; their gradient by ``w`` is not, since differentiation puts a psum into the branch.
DIFFERENTIATED = {
    "a weight in a branch": of(lambda x, w: by_index(lambda: w * x.sum(), x.sum), BY_GRADIENT, TYPED),
    "a weight in a branch in a scan": of(
        lambda x, w: carried(lambda c, _: by_index(lambda: c * w, lambda: c), x.sum()), BY_GRADIENT, TYPED
    ),
    "a weight in a branch under remat": of(
        jax.checkpoint(lambda x, w: by_index(lambda: jnp.sin(w) * x.sum(), x.sum)), BY_GRADIENT, TYPED
    ),
    "a weight in one branch by data": of(
        lambda x, w: cond(x.max() > 0, lambda: (x @ (w * jnp.ones((x.shape[1], 2)))).sum(), x.sum),
        BY_GRADIENT,
        TYPED,
    ),
}

TYPE = "a result of {} varies over 'dp', as its predicate does, but JAX types it as invarying"
COND_TYPE, OF_CALLBACK = TYPE.format("cond"), "a result of pure_callback varies over 'dp', 'tp'"

UNSOUND = {
    "a cond whose branches subtract the other way round": of(
        lambda x, w: lax.cond(at("dp"), lambda w: w - 2, lambda w: 2 - w, w) * x.sum(), COND_TYPE, TYPED
    ),
    "jax issue 40823": returned(
        lambda x, w: lax.cond(at("dp"), lambda w: 2 * w, lambda w: 3 * w, w)[None],
        COND_TYPE,
        TYPED,
        Float[Array, "[n/dp]"],
    ),
    "a choice by data": of(
        lambda x, w: lax.cond(total(x, "tp") > 3, lambda w: 2 * w, lambda w: w, w) * x.sum(), COND_TYPE, TYPED
    ),
    "a switch": of(
        lambda x, w: lax.switch(lax.axis_index("dp"), [lambda w, n=n: n * w for n in range(4)], w) * x.sum(),
        TYPE.format("switch"),
        TYPED,
    ),
    "a loop with a varying bound": of(lambda x, w: doublings(w) * x.sum(), TYPE.format("loop"), TYPED),
    "a factor by a loop with a varying bound": of(
        lambda x, w: doublings(1.0) * w * x.sum(), TYPE.format("loop"), TYPED
    ),
    "a factor by a branch": of(lambda x, w: two_or_one() * w * x.sum(), COND_TYPE, TYPED),
    "an integer by a branch": of(
        lambda x, w: lax.cond(at("dp"), lambda: 2, lambda: 1).astype(float) * w * x.sum(), COND_TYPE, TYPED
    ),
    "a choice under remat": of(
        lambda x, w: jax.checkpoint(lambda w: lax.cond(at("dp"), jnp.sin, jnp.cos, w))(w) * x.sum(), COND_TYPE, TYPED
    ),
    "a choice in a scan": of(
        lambda x, w: lax.scan(lambda c, _: (lax.cond(at("dp"), jnp.sin, jnp.cos, c), None), w, None, 2)[0] * x.sum(),
        COND_TYPE,
        TYPED,
    ),
    "a square of a constant by a branch and a bias": of(
        lambda x, w: (two_or_one() + w) ** 2 * x.sum(), COND_TYPE, TYPED
    ),
    "a sine of a constant by a branch and a bias": of(
        lambda x, w: jnp.sin(two_or_one() + w) * x.sum(), COND_TYPE, TYPED
    ),
    "a callback times a weight": of(lambda x, w: (callback(x) * w).sum(), OF_CALLBACK, TYPED),
    "a callback with a derivative": of(lambda x, w: by_hand(x).sum(), OF_CALLBACK, TYPED),
    "the gradient inside of a choice": of(
        lambda x, w: jax.grad(lambda w: (doubled_by_index(w) * x).sum())(w), COND_TYPE, TYPED
    ),
    "a choice that is returned as if it agreed": returned(lambda x, w: doubled_by_index(w), "varies over 'dp'"),
    "a loop that is returned as if it agreed": returned(lambda x, w: doublings(w), "varies over 'dp'"),
    "a callback that is returned as if it agreed": returned(lambda x, w: callback(total(x, "tp")), "varies over 'dp'"),
    "a choice that is checked as if it agreed": of(lambda x, w: check(two_or_one(), ""), "varies over 'dp'"),
}


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
    **{
        f"{name} over the other axis": of(one(lambda x, f=COLLECTIVES[name]: f(x, "tp")))
        for name in ("all_gather", "psum_scatter", "all_to_all", "reshard")
    },
    "psum over the other axis in a branch": of(one(partial(total, axes="tp"))),
    "a predicate that is summed": of(where(lambda x: total(x, ("dp", "tp")) > 3)),
    "a predicate that is gathered": of(where(lambda x: lax.all_gather(x.sum(), ("dp", "tp")).max() > 3)),
    "a predicate that is summed in two stages": of(where(lambda x: total(lax.psum(x.sum(), "tp"), "dp") > 3)),
    "a predicate by an argument": of(lambda x, w: cond(w > 1, lambda: total(x), x.sum)),
    "a predicate by a constant": of(where(lambda x: jnp.array(1) > 0)),
    "a predicate by a size": of(where(lambda x: lax.psum(1, "dp") > 2)),
    "a predicate that is assumed": of(where(lambda x: assume(callback(total(x, ("dp", "tp"))), "") > 3)),
    "a loop with a replicated counter": of(
        lambda x, w: loop(lambda c: c[1] < 3, lambda c: (c[0] + total(c[0]), c[1] + 1), (x.sum(), 0))[0]
    ),
    "a loop with a bound that is an argument": of(lambda x, w: times(w.astype(int), lambda c: c + total(c), x.sum())),
    "a solver with a residual that is summed": of(lambda x, w: solved(x)),
    "a loop that ends where all shards do": of(
        lambda x, w: loop(
            lambda c: lax.pmax(c < 1e3, ("dp", "tp")), lambda c: jnp.abs(c) + total(jnp.abs(c)) + 1, x.sum()
        )
    ),
    "a loop per data-parallel shard": of(lambda x, w: decoded(x)),
    "a loop whose condition sums over tp": of(
        lambda x, w: loop(lambda c: total(c, "tp") < 1e3, lambda c: c * 2 + 1, check(jnp.abs(x).sum(), "~dp ~tp"))
    ),
    "a scan around a psum": of(lambda x, w: carried(lambda c, _: c + total(c), x.sum())),
    "a branch without communication": of(lambda x, w: by_index(lambda: x.sum() * lax.axis_index("dp"), x.sum)),
    "a psum that nothing uses": of(lambda x, w: by_index(lambda: (total(x), x.sum()), lambda: (x.sum(), x.sum()))[1]),
    "a choice by select": of(lambda x, w: jnp.where(at("dp"), total(x), x.sum())),
    "a choice that vmap makes a select": of(
        lambda x, w: jax.vmap(lambda row: cond(row.max() > 0, row.sum, lambda: total(row)))(x).sum()
    ),
    "what is chosen is summed": of(lambda x, w: total(doubled_by_index(x))),
    "a sum before a choice": of(lambda x, w: doubled_by_index(full(total(x)))),
    # Results that JAX types wrongly, and nothing goes wrong.
    "the counter of a loop": of(lambda x, w: lax.fori_loop(0, lax.axis_index("dp"), lambda n, c: c + n, full(x.sum()))),
    "a constant factor by a branch": of(lambda x, w: x.sum() * two_or_one() * w),
    "a constant factor by a loop": of(lambda x, w: x.sum() * doublings(1.0) * w),
    "a flag by a branch": of(lambda x, w: jnp.where(lax.cond(at("dp"), lambda: True, lambda: False), x * w, x).sum()),
    "a callback's result": of(lambda x, w: callback(x).sum()),
    "a callback's result beside a weight": of(lambda x, w: (callback(x) + x * w).sum()),
    "a constant by a branch, and a bias": of(lambda x, w: ((two_or_one() + w)[None] * 3).sum() * x.sum()),
    "a callback's result and a bias": of(lambda x, w: (callback(x) + w).sum()),
    "a choice that agrees between a constant by a branch and a weight": of(
        lambda x, w: lax.cond(total(x, ("dp", "tp")) > 0, lambda: w, two_or_one) * x.sum()
    ),
    "a callback's result, cast": of(lambda x, w: (full(callback(x)) * w).sum()),
    "a callback's result, assumed": of(lambda x, w: assume(callback(total(x, ("dp", "tp"))), "") * w),
    "a choice of what is cast": of(lambda x, w: doubled_by_index(full(w))),
    "a weight in a branch, cast before": of(lambda x, w: (lambda w: by_index(lambda: w * x.sum(), x.sum))(full(w))),
    "a choice between two gradients": of(jax.grad(chosen, argnums=1)),
    "what both branches hand on": of(
        lambda x, w: lax.cond(at("dp"), lambda c: (c[0] * 2, c[1]), lambda c: c, (full(w), w))[1] * x.sum()
    ),
    "what both branches compute alike": of(
        lambda x, w: lax.cond(at("dp"), lambda w: jnp.square(2 + w) * w, lambda w: w * jnp.square(w + 2), w) * x.sum()
    ),
    "what a loop hands on": of(
        lambda x, w: lax.fori_loop(0, lax.axis_index("dp"), lambda _, c: (c[0] * 2, c[1]), (full(w), w))[1] * x.sum()
    ),
    "a check in a loop with a varying bound": of(
        lambda x, w: lax.fori_loop(
            0, lax.axis_index("dp"), lambda n, c: c + check(n.astype(float) * w, Float[Array, ""]), full(x.sum())
        )
    ),
    "a choice without its gradient": of(lambda x, w: doubled_by_index(lax.stop_gradient(w)) * x.sum()),
}

if jax.__version_info__ >= (0, 11):  # older ones keep in the jaxpr what a loop carries and nothing uses
    RIGHT["a psum in a loop that nothing uses"] = of(
        lambda x, w: loop(
            lambda c: c[0] <= lax.axis_index("dp"),
            lambda c: (c[0] + 1, c[1] * 2, c[2] + total(c[2])),
            (0, x.sum(), x.sum()),
        )[1]
    )


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
