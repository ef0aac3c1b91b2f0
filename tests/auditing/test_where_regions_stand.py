"""A region is seen wherever it stands in a program, in whichever way that is traced: once, with its bugs' lines."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import audit

X = np.ones((8, 8), np.float32)
F = Callable[[Any], Any]


def forgotten(x: Any) -> Any:
    return x.sum(0, keepdims=True)  # the sum


def summed(x: Any) -> Any:
    return lax.psum(x.sum(0, keepdims=True), "dp")


def diverging(x: Any) -> Any:
    total, is_first, own = (
        lax.psum(x.sum(0, keepdims=True), "dp"),
        lax.axis_index("dp") == 0,
        lax.stop_gradient(x.sum()),
    )
    once, never = (lambda: lax.psum(own, "dp")), (lambda: lax.stop_gradient(total.sum()))  # the deadlock
    return total + lax.cond(is_first, once, never)


# Where a region stands: a function of arrays that runs it.


def with_vjp(forward: F, backward: Callable[[Any, Any], Any]) -> F:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return x * 2

    f.defvjp(forward, backward)
    return f


def in_backward_rule(region: F) -> F:
    return with_vjp(lambda x: (x * 2, None), lambda _, g: (g * region(g),))


def with_jvp(rule: Callable[[Any, Any], Any]) -> F:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return x * 2

    f.defjvp(lambda primals, tangents: rule(*primals, *tangents))
    return f


def in_rule_of_optimized_remat(region: F) -> F:
    @partial(jax.custom_vjp, nondiff_argnums=(1,))
    def f(x: Any, by: int) -> Any:
        return x * by

    f.defvjp(lambda x, by: (x * by, x), lambda by, x, g: (g * region(x),), optimize_remat=True)
    return lambda x: f(x, 2)


def in_scan(region: F) -> F:
    return lambda x: lax.scan(lambda c, _: (c + region(c), None), x, None, length=2)[0]


def in_branch(region: F) -> F:
    return lambda x: lax.cond(x[0, 0] > 0, lambda x: x * region(x), lambda x: x, x)


def in_while(region: F) -> F:
    return lambda x: (
        lax.stop_gradient(
            lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + region(c[1])), (0, lax.stop_gradient(x)))[1]
        )
        * x
    )


def in_linear_call(region: F) -> F:
    forward, backward = (lambda _, x: 2 * x), (lambda _, g: g * region(X))
    return lambda x: jax.custom_derivatives.linear_call(forward, backward, (), x)


def in_solver(region: F) -> F:
    def solve(x: Any) -> Any:
        return lax.custom_linear_solve(lambda y: 2 * y, x, lambda _, b: b / 2 + 0 * region(b), symmetric=True)

    return solve


def in_root(region: F) -> F:
    def tangent_solve(g: Any, y: Any) -> Any:
        return y / g(jnp.ones_like(y)) * (1 + 0 * region(X))

    return lambda x: lax.custom_root(lambda y: y - x, jnp.zeros_like(x), lambda f, y: y - f(y), tangent_solve)


def in_vmap_rule(region: F) -> F:
    @jax.custom_batching.custom_vmap
    def f(x: Any) -> Any:
        return 2 * x

    @f.def_vmap
    def _(_: int, is_batched: list[bool], x: Any) -> Any:
        return 2 * x + 0 * region(lax.stop_gradient(x[0])), is_batched[0]

    return lambda x: x * jax.vmap(lambda x: f(lax.stop_gradient(x)))(x[None])[0]


STANDS: dict[str, Callable[[F], F]] = {
    "a call": lambda region: lambda x: x * region(x),
    "a backward rule": in_backward_rule,
    "a forward rule": lambda region: with_vjp(lambda x: (x * region(x), None), lambda _, g: (g,)),
    "a rule of custom_jvp": lambda region: with_jvp(lambda x, t: (x * region(x), t * 2)),
    "the tangent in a rule of custom_jvp": lambda region: with_jvp(lambda x, t: (x, t * region(x))),
    "a rule with nondiff_argnums and optimize_remat": in_rule_of_optimized_remat,
    "a scan": in_scan,
    "a backward rule in a scan": lambda region: in_scan(in_backward_rule(region)),
    "a branch": in_branch,
    "a backward rule in a branch": lambda region: in_branch(in_backward_rule(region)),
    "a while loop": in_while,
    "the transpose of linear_call": in_linear_call,
    "a solver": in_solver,
    "a root": in_root,
    "a checkpoint": lambda region: jax.checkpoint(
        lambda x: x * region(jnp.sin(x)), policy=jax.checkpoint_policies.nothing_saveable
    ),
    "a jit": lambda region: jax.jit(lambda x: x * region(x)),
    "a gradient of a gradient": lambda region: jax.grad(lambda x: in_backward_rule(region)(x).sum() * x.sum()),
    "a rule of custom_vmap": in_vmap_rule,
}


class Way(NamedTuple):
    """A way to trace a scalar function of an array, and whether that is run."""

    trace: Callable[[F], Any]
    is_run: bool = False


def looped(f: F, x: Any) -> Any:
    return lax.scan(lambda x, _: (jax.grad(f)(x), None), x, None, length=2)[0]


WAYS = {
    "jit of grad": Way(lambda f: jax.jit(jax.grad(f))(X), True),
    "grad": Way(lambda f: jax.grad(f)(X), True),
    "eval_shape": Way(lambda f: jax.eval_shape(jax.grad(f), X)),
    "export": Way(lambda f: jax.export.export(jax.jit(jax.grad(f)))(X)),
    "make_jaxpr": Way(lambda f: jax.make_jaxpr(jax.value_and_grad(f))(X)),
    "vjp in jit": Way(lambda f: jax.jit(lambda x: jax.vjp(f, x)[1](1.0)).trace(X)),
    "linearize in jit": Way(lambda f: jax.jit(lambda x: jax.linear_transpose(jax.linearize(f, x)[1], x)(1.0)).trace(X)),
    "grad in scan": Way(lambda f: jax.jit(partial(looped, f)).lower(X)),
    "grad of jit": Way(lambda f: jax.eval_shape(jax.grad(jax.jit(f)), X)),
    "checkpoint": Way(lambda f: jax.jit(jax.grad(jax.checkpoint(f))).lower(X)),
    "vmap of grad": Way(lambda f: jax.jit(jax.vmap(jax.grad(f))).trace(X[None])),
    "grad of vmap": Way(lambda f: jax.eval_shape(jax.grad(lambda x: jax.vmap(f)(x[None])[0]), X)),
    "grad in a cond": Way(lambda f: jax.make_jaxpr(lambda x: lax.cond(x[0, 0] > 0, jax.grad(f), jnp.sin, x))(X)),
    "grad of a scan": Way(
        lambda f: jax.eval_shape(
            jax.grad(lambda x: lax.scan(lambda x, _: (f(x) * x, None), x, None, length=2)[0].sum()), X
        )
    ),
}
UNKNOWN_TO_JAX = {("the transpose of linear_call", "vmap of grad"), ("the transpose of linear_call", "grad of vmap")}


def cases(check_vma: tuple[bool, ...] = (False, True), runs: bool = True) -> list[Any]:
    """Each place in each way, with and without types in turn; those by default of which one is the plainest."""
    return [
        pytest.param(stand, way, check_vma[(place + at) % len(check_vma)], marks=[] if is_fast else pytest.mark.slow)
        for place, stand in enumerate(STANDS)
        for at, way in enumerate(WAYS)
        if (stand, way) not in UNKNOWN_TO_JAX and (runs or not WAYS[way].is_run)
        for is_fast in [stand == "a backward rule" or way == "eval_shape"]
    ]


def run(stand: str, way: str, mesh: Mesh, body: F, check_vma: bool) -> Any:
    def own(x: Any) -> Any:  # a function of its own, which no cache of traces knows
        return body(x)

    mapped = jax.shard_map(own, mesh=mesh, in_specs=P("dp"), out_specs=P(), check_vma=check_vma)
    f = STANDS[stand](mapped)
    with audit() as report:
        jax.block_until_ready(jax.tree.leaves(WAYS[way].trace(lambda x: (f(x) ** 2).sum())))
    return report


@pytest.mark.sample(4)
@pytest.mark.parametrize(("stand", "way", "check_vma"), cases())
def test_a_right_region_is_seen_once_and_let_by(stand: str, way: str, check_vma: bool, mesh: Mesh) -> None:
    report = run(stand, way, mesh, summed, check_vma)
    assert report.findings == [] and [region.name for region in report.regions] == ["own"]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("stand", "way", "check_vma"), cases((False,)))
def test_a_forgotten_sum_is_found_at_its_line(stand: str, way: str, check_vma: bool, mesh: Mesh) -> None:
    report = run(stand, way, mesh, forgotten, check_vma)
    (found,), (region,) = report.findings, report.regions
    assert (found.kind, region.name) == ("unreduced", "own")
    assert "# the sum" in linecache.getline(found.file, found.line)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("stand", "way", "check_vma"), cases(runs=False))
def test_a_deadlock_is_found_at_its_line(stand: str, way: str, check_vma: bool, mesh: Mesh) -> None:
    report = run(stand, way, mesh, diverging, check_vma)
    (found,) = [found for found in report.findings if found.kind == "divergence"]
    assert len(report.regions) == 1 and "# the deadlock" in linecache.getline(found.file, found.line)


def in_a_branch(x: Any, w: Any) -> Any:
    scale, is_first = jnp.sin(w), x[0, 0] > lax.axis_index("dp")
    scaled = lambda: (x * lax.pcast(scale, "dp", to="varying")).sum()  # noqa: E731  # the cast
    return lax.cond(is_first, scaled, lambda: x.sum())[None]


def before_the_branch(x: Any, w: Any) -> Any:
    scale, is_first = lax.pcast(jnp.sin(w), "dp", to="varying"), x[0, 0] > lax.axis_index("dp")
    return lax.cond(is_first, lambda: (x * scale).sum(), lambda: x.sum())[None]


W = np.ones(8, np.float32)
OF_W: dict[str, Callable[[F], Any]] = {
    "grad": lambda f: jax.eval_shape(jax.grad(f), W),
    "grad of jit": lambda f: jax.eval_shape(jax.grad(jax.jit(f)), W),
    "grad of a scan": lambda f: jax.eval_shape(
        jax.grad(lambda w: lax.scan(lambda w, _: (w * f(w), None), w, None, length=2)[0].sum()), W
    ),
    "grad in a scan": lambda f: jax.jit(lambda w: lax.scan(lambda w, _: (jax.grad(f)(w), None), w, None, 2)).lower(W),
    "grad of checkpoint": lambda f: jax.eval_shape(jax.grad(jax.checkpoint(f)), W),
    "vmap of grad": lambda f: jax.make_jaxpr(jax.vmap(jax.grad(f)))(W[None]),
    "hessian": lambda f: jax.eval_shape(jax.hessian(f), W),
}
WITHOUT_ONE: dict[str, Callable[[F], Any]] = {
    "the program itself": lambda f: jax.eval_shape(f, W),
    "jvp": lambda f: jax.eval_shape(lambda w: jax.jvp(f, (w,), (w,)), W),
    "linearize": lambda f: jax.eval_shape(lambda w: jax.linearize(f, w)[1](w), W),
}


def kinds_of(body: Any, trace: Callable[[F], Any], mesh: Mesh, by_x: bool = False) -> Any:
    def own(x: Any, w: Any) -> Any:
        return body(x, w)

    mapped = jax.shard_map(own, mesh=mesh, in_specs=(P("dp"), P()), out_specs=P("dp"))
    with audit() as report:
        trace(lambda w: (mapped(X * w, W) if by_x else mapped(X, w)).sum())
    assert [region.name for region in report.regions] == ["own"]
    return report


@pytest.mark.sample(3)
@pytest.mark.parametrize("way", OF_W)
def test_a_collective_that_differentiation_puts_into_a_branch_is_a_deadlock(way: str, mesh: Mesh) -> None:
    (found,) = kinds_of(in_a_branch, OF_W[way], mesh).findings
    assert found.kind == "divergence" and "# the cast" in linecache.getline(found.file, found.line)
    assert kinds_of(before_the_branch, OF_W[way], mesh).findings == []
    if way != "vmap of grad":  # where JAX has no rule for the cast, since it makes a select of the cond
        assert kinds_of(in_a_branch, OF_W[way], mesh, by_x=True).findings == []


@pytest.mark.parametrize("way", WITHOUT_ONE)
def test_a_cast_in_a_branch_is_right_where_no_gradient_is_taken(way: str, mesh: Mesh) -> None:
    assert kinds_of(in_a_branch, WITHOUT_ONE[way], mesh).findings == []


def test_a_gradient_by_one_operand_says_nothing_of_another_region(mesh: Mesh) -> None:
    def own(x: Any, w: Any) -> Any:
        return in_a_branch(x, w)

    mapped = jax.shard_map(own, mesh=mesh, in_specs=(P("dp"), P()), out_specs=P("dp"))
    with audit() as report:
        jax.eval_shape(lambda w: mapped(X, w), W)
        jax.eval_shape(jax.grad(lambda x: mapped(x, W).sum()), X)
    assert report.findings == []


@pytest.mark.parametrize("is_eager", [True, False])
def test_regions_within_others_are_seen_once(is_eager: bool, mesh: Mesh) -> None:
    def inner(x: Any) -> Any:
        return x.sum()

    def backward(_: Any, g: Any) -> Any:
        total = jax.shard_map(inner, in_specs=P("tp"), out_specs=P(), axis_names={"tp"}, check_vma=False)(g)
        return (g + 0 * total,)

    def outer(x: Any) -> Any:
        return jax.grad(lambda x: with_vjp(lambda x: (x * 2, None), backward)(x).sum())(x)

    around = jax.shard_map(outer, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"), axis_names={"dp"}, check_vma=False)
    # JAX traces those that are nested, but evaluates none operation by operation.
    refused = pytest.raises((ValueError, AssertionError)) if is_eager else nullcontext()
    with audit() as report, refused:
        around(X) if is_eager else jax.eval_shape(around, X)
    assert [(found.kind, found.region) for found in report.findings] == [("unreduced", "inner")]
    assert "x.sum()" in linecache.getline(report.findings[0].file, report.findings[0].line)
    assert sorted(region.name for region in report.regions) == ["inner", "outer"]
