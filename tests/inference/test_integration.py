"""The reading of a body where it meets the rest of JAX: caches, transformations, effects, closures, lifetimes."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, VaryingError, check, typed, typed_shard_map
from typedshmap.inference.claims import Claim

X, R, ALL = Float[Array, "[b/dp] d"], Float[Array, "[r/dp] d"], Float[Array, "r d"]
ROWS = jax.ShapeDtypeStruct((8, 4), jnp.float32)
numbers = np.arange(32, dtype=np.float32).reshape(8, 4) / 32
Body = Callable[..., Any]

# The programs are about other things, and do not all mean something.
pytestmark = pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")


in_both_modes = pytest.mark.parametrize("check_vma", [True, False], ids=["typed", "untyped"])


def traced(f: Body, *args: Any) -> Any:
    """Shapes of results, without what JAX may remember of the function."""
    return jax.eval_shape(lambda *args: f(*args), *args)


def over(mesh: Mesh, body: Body, hint: Any = X, out: Any = None, **options: Any) -> Body:
    return typed_shard_map(body, mesh=mesh, in_types=(hint,), out_types=hint if out is None else out, **options)


# What JAX traces for the first region that calls it, and keeps for the next.


def scanned(f: Body) -> Body:
    def step(carry: Any, _: None) -> tuple[Any, None]:
        return f(carry), None

    return lambda y: lax.scan(step, y, None, length=2)[0]


KEPT: dict[str, Callable[[Body], Body]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": scanned,
    "jit of a checkpoint": lambda f: jax.jit(jax.checkpoint(f)),
}


def helper(y: Any) -> Any:
    return check(y * 2, "r d")


def regions(keep: Callable[[Body], Body], mesh: Mesh, check_vma: bool) -> tuple[Body, Body]:
    """Two regions with one helper; the first gives it what is equal on all shards, the other does not."""
    kept = keep(helper)

    def gathers(w: Any) -> Any:
        return lax.pmean(kept(lax.all_gather(w, "dp", tiled=True)), "dp")

    def repeats(w: Any) -> Any:
        return lax.psum(kept(jnp.concatenate([w] * 4)), "dp")

    first, second = (over(mesh, body, R, ALL, check_vma=check_vma) for body in (gathers, repeats))
    return first, second


@in_both_modes
@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_what_is_traced_for_one_region_is_judged_in_another(
    keep: Callable[[Body], Body], check_vma: bool, mesh: Mesh
) -> None:
    right, wrong = regions(keep, mesh, check_vma)
    traced(right, ROWS)
    with pytest.raises(VaryingError, match="repeats: checked value varies over 'dp'"):
        traced(wrong, ROWS)
    traced(right, ROWS)


@in_both_modes
@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_what_was_refused_in_one_region_is_taken_in_another(
    keep: Callable[[Body], Body], check_vma: bool, mesh: Mesh
) -> None:
    right, wrong = regions(keep, mesh, check_vma)
    with pytest.raises(VaryingError, match="repeats: checked value varies over 'dp'"):
        traced(wrong, ROWS)
    traced(right, ROWS)
    traced(jax.grad(lambda w: right(w).sum()), ROWS)


def test_what_is_traced_for_another_region_is_reported_as_of_this_one(mesh: Mesh) -> None:
    right, wrong = regions(jax.jit, mesh, False)
    traced(right, ROWS)
    with pytest.raises(VaryingError) as raised:
        traced(wrong, ROWS)
    message = str(raised.value)
    line = helper.__code__.co_firstlineno + 1
    joined = regions.__code__.co_firstlineno + 8
    expected = f"""\
repeats: checked value varies over 'dp', which its hint does not mention

    checked: "r d"
    got f32[8,4]{{V:dp}} per shard

Mesh: dp=4, tp=2
At: test_integration.py:{line} (helper)
Hint: the concatenate at test_integration.py:{joined} covers only each shard's part of r (sharded over 'dp')"""
    assert message == expected


COLUMNS = Float[Array, "r [d/tp]"]


def around(kept: Body, mesh: Mesh) -> Body:
    """A region over one axis, and within it one over the other, of a helper."""

    def body(x: Any) -> Any:
        options: Any = {"in_types": (COLUMNS,), "out_types": COLUMNS, "axis_names": {"tp"}, "check_vma": False}
        return typed_shard_map(kept, **options)(x)

    return over(mesh, body, axis_names={"dp"}, check_vma=False)


def test_a_helper_of_a_region_over_all_axes_serves_one_within_a_region(mesh: Mesh) -> None:
    kept = jax.jit(lambda y: check(y * 2, "r [d/tp]"))
    traced(over(mesh, kept, COLUMNS, check_vma=False), jax.ShapeDtypeStruct((2, 4), jnp.float32))
    traced(around(kept, mesh), ROWS)


def test_a_helper_of_a_region_within_is_judged_over_all_axes_of_one_that_has_them(mesh: Mesh) -> None:
    kept = jax.jit(lambda y: check(y * 2, "r [d/tp]"))

    def varies(x: Any) -> Any:
        return lax.psum(kept(x), "dp")

    traced(around(kept, mesh), ROWS)
    with pytest.raises(VaryingError, match="varies: checked value varies over 'dp'"):
        traced(over(mesh, varies, Float[Array, "[b/dp] [d/tp]"], COLUMNS, check_vma=False), ROWS)


def test_a_helpers_names_mean_what_the_region_that_calls_it_says(mesh: Mesh) -> None:
    hint, kept = Float[Array, "[b/i] d"], jax.jit(lambda y: check(y * 2, "[b/i] d"))
    traced(over(mesh, kept, hint, axes={"i": "dp"}, check_vma=False), ROWS)
    halved = jax.ShapeDtypeStruct((4, 4), jnp.float32)  # the same shards over tp
    traced(over(mesh, kept, hint, axes={"i": "tp"}, check_vma=False), halved)


# Wrong wherever it stands, though nothing uses it.


def wrong(y: Any) -> Any:
    check(jnp.concatenate([y] * 4), "b d")
    return y


UNUSED: dict[str, Callable[[Body], Body]] = {
    "in the body": lambda f: f,
    "in a scan": scanned,
    "under jit": jax.jit,
    "under a checkpoint": jax.checkpoint,
    "in a branch": lambda f: lambda x: lax.cond(lax.axis_index("dp") > 0, f, lambda y: y, x),
}
AROUND: dict[str, Callable[[Body], Any]] = {
    "traced": lambda f: traced(f, ROWS),
    "differentiated": lambda f: traced(jax.grad(lambda x: f(x).sum()), ROWS),
    "mapped": lambda f: traced(jax.vmap(f), jax.ShapeDtypeStruct((2, 8, 4), jnp.float32)),
    "in a scan": lambda f: traced(scanned(f), ROWS),
    "in a checkpoint": lambda f: traced(jax.grad(lambda x: jax.checkpoint(f)(x).sum()), ROWS),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("within", UNUSED.values(), ids=UNUSED)
def test_a_wrong_check_that_nothing_uses_is_refused(
    within: Callable[[Body], Body], around: Callable[[Body], Any], mesh: Mesh
) -> None:
    # A function of its own, since JAX remembers what it has traced of one.
    with pytest.raises(VaryingError, match="checked value varies over 'dp'"):
        around(over(mesh, within(lambda y: wrong(y)), check_vma=False))


@in_both_modes
@pytest.mark.parametrize("around", ["traced", "differentiated", "mapped"])
def test_a_body_without_results_is_read(around: str, check_vma: bool, mesh: Mesh) -> None:
    def nothing(x: Float[Array, "[b/dp] d"]) -> None:
        wrong(x)

    mapped = typed_shard_map(nothing, mesh=mesh, check_vma=check_vma)
    with pytest.raises(VaryingError, match="nothing: checked value varies over 'dp'"):
        AROUND[around](lambda x: (mapped(x), x)[1])


# The program is that of hand-written shard_map.


def mean_of_rows(x: Any, w: Any, say: Callable[[Any, str], Any]) -> Any:
    whole = say(lax.all_gather(w, "tp", axis=1, tiled=True), "d f")
    h = say(jnp.tanh(x @ whole), "[b/dp] f")
    return lax.psum(h.sum(1) * w.sum(), "tp")


def loss(f: Body) -> Body:
    return lambda x, w: f(x, w).sum()


def with_own_root(f: Body) -> Body:
    def solve(residual: Body, start: Any) -> Any:
        return lax.fori_loop(0, 2, lambda _, v: v - residual(v), start)

    return lambda x, w: lax.custom_root(lambda v: v - f(x, w), jnp.zeros(8), solve, lambda _, y: y)


def in_a_backward_rule(f: Body) -> Body:
    @jax.custom_vjp
    def g(x: Any, w: Any) -> Any:
        return jnp.tanh(x)

    g.defvjp(lambda x, w: (jnp.tanh(x), (x, w)), lambda kept, c: (f(c, kept[1])[:, None] * kept[0], 0 * kept[1]))
    return jax.grad(loss(g), argnums=(0, 1))


def in_a_forward_rule(f: Body) -> Body:
    g = jax.custom_jvp(f)
    g.defjvp(lambda primals, tangents: jax.jvp(f, primals, tangents))
    return jax.grad(loss(g), argnums=(0, 1))


# Other transformations are in tests/call/test_control_flow.py.
TRANSFORMED: dict[str, Callable[[Body], Body]] = {
    "a gradient of vmap": lambda f: (
        lambda x, w: jax.grad(lambda x: jax.vmap(f, (None, 0))(x, jnp.stack([w, w])).sum())(x)
    ),
    "a gradient in a scan": lambda f: (
        lambda x, w: lax.scan(lambda c, _: (jax.grad(loss(f))(c, w), None), x, None, length=2)[0]
    ),
    "a gradient of a scan": lambda f: jax.grad(
        lambda x, w: scanned(lambda c: c + f(c[:, None] * jnp.ones((8, 4)), w))(x[:, 0]).sum()
    ),
    "called twice": lambda f: jax.grad(lambda x, w: f(f(x, w)[:, None] * jnp.ones((8, 4)), w).sum()),
    "a root": with_own_root,
    "a backward rule": in_a_backward_rule,
    "a forward rule": in_a_forward_rule,
}


@pytest.mark.sample(3)
@in_both_modes
@pytest.mark.parametrize("transform", TRANSFORMED.values(), ids=TRANSFORMED)
def test_a_transformed_program_is_that_of_hand_written_shard_map(
    transform: Callable[[Body], Body], check_vma: bool, mesh: Mesh
) -> None:
    hints, out = (X, Float[Array, "d [f/tp]"]), Float[Array, "[b/dp]"]
    body = functools.partial(mean_of_rows, say=check)
    typed = typed_shard_map(body, mesh=mesh, in_types=hints, out_types=out, check_vma=check_vma)
    by_hand = jax.shard_map(
        functools.partial(mean_of_rows, say=lambda x, _: x),
        mesh=mesh,
        in_specs=(P("dp", None), P(None, "tp")),
        out_specs=P("dp"),
        check_vma=check_vma,
    )
    args = ROWS, jax.ShapeDtypeStruct((4, 6), jnp.float32)
    assert text_of(transform(typed), *args) == text_of(transform(by_hand), *args)


def text_of(f: Body, *args: Any) -> str:
    """The text of a program under a name that is the same for all."""

    def program(*args: Any) -> Any:
        return f(*args)

    return jax.jit(program).lower(*args).as_text()


key = jax.random.key(0)


def scoped(x: Any) -> Any:
    with jax.named_scope("scope_of_mine"):
        return x * 2


def printed(x: Any) -> Any:
    jax.debug.print("{}", x.sum())
    return x


BODIES: dict[str, Body] = {
    "its argument": lambda x: x,
    "a closed-over array": lambda x: x * jnp.arange(4.0),
    "a closed-over NumPy array": lambda x: x * numbers[0],
    "a closed-over key": lambda x: x + jax.random.normal(key, x.shape),
    "a print": printed,
    "a pure callback": lambda x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
    "a named scope": scoped,
}
SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "as it is": nullcontext,
    "with checks for leaks": jax.checking_leaks,
    "with 64 bits": lambda: jax.enable_x64(True),
    "with checks for NaN": lambda: jax.debug_nans(True),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_is_lowered_as_by_hand_in_every_setting(
    body: Body, setting: Callable[[], AbstractContextManager[Any]], mesh: Mesh
) -> None:
    rows = P("dp", None)
    with setting():
        typed = over(mesh, lambda x: check(body(check(x, X)), X))
        by_hand = jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows)
        texts = [without_addresses(text_of(f, numbers)) for f in (typed, by_hand)]
    assert texts[0] == texts[1]


def without_addresses(text: str) -> list[str]:
    """A program without the identities of its Python callbacks."""
    return [line for line in text.splitlines() if "callback" not in line]


def test_scopes_of_the_user_are_in_the_text(mesh: Mesh) -> None:
    assert "scope_of_mine" in jax.jit(over(mesh, scoped)).lower(numbers).as_text(debug_info=True)


def test_a_closed_over_tracer_is_differentiated_as_by_hand(mesh: Mesh) -> None:
    rows = P("dp", None)

    def typed(s: Any, x: Any) -> Any:
        return over(mesh, lambda x: check(x * s, X))(x).sum()

    def by_hand(s: Any, x: Any) -> Any:
        return jax.shard_map(lambda x: x * s, mesh=mesh, in_specs=rows, out_specs=rows)(x).sum()

    texts = [text_of(jax.grad(f), jnp.arange(4.0), numbers) for f in (typed, by_hand)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("around", [lambda f: f, jax.checkpoint], ids=["plain", "checkpoint"])
def test_what_is_stated_beside_a_value_keeps_nothing_alive(around: Callable[[Body], Body], mesh: Mesh) -> None:
    """Both arguments of a helper are stated; the gradient needs one of them."""

    def plain(a: Any, b: Any) -> Any:
        return jnp.tanh(a)

    @typed
    def helper(a: X, b: X) -> X:
        return plain(a, b)

    rows = P("dp", None)

    def body(of: Callable[..., Any]) -> Body:
        return scanned(around(lambda c: of(jnp.sin(c) * c, jnp.exp(c) * c)))

    by_hand = jax.shard_map(body(plain), mesh=mesh, in_specs=rows, out_specs=rows)
    texts = [text_of(jax.grad(lambda x, f=f: f(x).sum()), numbers) for f in (over(mesh, body(helper)), by_hand)]
    assert texts[0] == texts[1]


# How often a body runs.

TIMES: dict[str, tuple[int, Callable[[Body], Any]]] = {
    "called": (1, lambda f: f(numbers)),
    "jit": (1, lambda f: jax.jit(f)(numbers)),
    "make_jaxpr": (1, lambda f: jax.make_jaxpr(f)(numbers)),
    "a checkpoint": (1, lambda f: traced(jax.grad(lambda x: jax.checkpoint(f)(x).sum()), ROWS)),
    "a gradient of a scan": (1, lambda f: traced(jax.grad(lambda x: scanned(f)(x).sum()), ROWS)),
    "a gradient of jit": (1, lambda f: traced(jax.grad(lambda x: jax.jit(f)(x).sum()), ROWS)),
    "a gradient": (1, lambda f: traced(jax.grad(lambda x: f(x).sum()), ROWS)),
    "vmap": (2, lambda f: traced(jax.vmap(f), jax.ShapeDtypeStruct((2, 8, 4), jnp.float32))),
}


@pytest.mark.parametrize(("times", "call"), TIMES.values(), ids=TIMES)
def test_a_body_runs_once_but_where_it_is_transformed_as_it_is_traced(
    times: int, call: Callable[[Body], Any], mesh: Mesh
) -> None:
    runs: list[int] = []

    def body(x: Any) -> Any:
        runs.append(1)
        return x + x

    jax.block_until_ready(call(over(mesh, body)))
    assert len(runs) == times


# What outlives a call.


def claims() -> int:
    gc.collect()
    return sum(type(thing) is Claim for thing in gc.get_objects())


def state_in_what_jax_keeps(mesh: Mesh, keep: Callable[[Body], Body]) -> None:
    traced(over(mesh, lambda x: keep(lambda y: check(y * 2, X))(check(x, X))), ROWS)


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_what_is_stated_does_not_outlive_the_calls(keep: Callable[[Body], Body], mesh: Mesh) -> None:
    state_in_what_jax_keeps(mesh, keep)
    before = claims()
    for _ in range(20):
        state_in_what_jax_keeps(mesh, keep)
    assert claims() <= before
