"""The gradient of a reshard: a reshard of the cotangent back, under every transformation."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from resharded import LAYOUTS, SHAPE, cut, planned, spec

from typedshmap import _jax
from typedshmap._jax.versions import DROPS_UNUSED, HAS_MANUAL_TYPES
from typedshmap.notation.layout import Layout
from typedshmap.ops.resharding.run_plan import run

VALUE = np.random.default_rng(0).integers(-9, 9, SHAPE).astype(np.float32)
WEIGHT = np.random.default_rng(1).integers(-9, 9, SHAPE).astype(np.float32)


def resharder(source: Layout | str, target: Layout | str, typed: bool = True) -> Callable[[Any], Any]:
    found = planned(source, target)
    return lambda x: run(x, found, typed)


def global_map(mesh: Mesh, source: str, target: str, check_vma: bool = True) -> Callable[[Any], Any]:
    """A reshard as a function of global arrays."""
    specs = {"in_specs": spec(cut(source)), "out_specs": spec(cut(target))}
    return jax.shard_map(resharder(source, target, check_vma), mesh=mesh, check_vma=check_vma, **specs)


def computed(f: Callable[..., Any], *args: Any) -> Any:
    return jax.block_until_ready(jax.jit(f)(*args))


@pytest.mark.sample(18)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("source", LAYOUTS[::-6], ids=str)
def test_the_gradient_of_every_target_is_that_of_the_identity(source: Layout, check_vma: bool, cube: Mesh) -> None:
    targets = LAYOUTS[::2]

    def body(xs: list[jax.Array]) -> list[jax.Array]:
        return [resharder(source, target, check_vma)(x) for x, target in zip(xs, targets, strict=True)]

    specs = [spec(target) for target in targets]
    f = jax.shard_map(body, mesh=cube, in_specs=(spec(source),), out_specs=specs, check_vma=check_vma)
    gradients = computed(jax.grad(lambda xs: sum((y**2 * WEIGHT).sum() for y in f(xs))), [VALUE] * len(specs))
    wrong = [not np.array_equal(gradient, 2 * VALUE * WEIGHT) for gradient in gradients]
    assert [target for target, is_wrong in zip(targets, wrong, strict=True) if is_wrong] == []


TRANSFORMED = {
    "jvp": lambda f, x, w: jax.jvp(f, (x,), (w,))[1],
    "linearize": lambda f, x, w: jax.linearize(f, x)[1](w),
    "transpose of jvp": lambda f, x, w: jax.linear_transpose(lambda t: jax.jvp(f, (x,), (t,))[1], x)(w)[0],
    "gradient of jvp": lambda f, x, w: jax.grad(lambda x: (jax.jvp(f, (x,), (x,))[1] * w).sum())(x),
    "jvp of gradient": lambda f, x, w: jax.jvp(jax.grad(lambda x: (f(x) ** 2).sum() / 2), (x,), (w,))[1],
    "vmap": lambda f, x, w: jax.vmap(f)(jnp.stack([x, w]))[1],
    "gradient of vmap": lambda f, x, w: jax.grad(lambda x: (jax.vmap(f)(x) * w).sum())(jnp.stack([x, x]))[1],
    "vmap of gradient": lambda f, x, w: jax.vmap(jax.grad(lambda x, w: (f(x) * w).sum()))(
        jnp.stack([x, x]), jnp.stack([x, w])
    )[1],
    "vmap of jvp": lambda f, x, w: jax.vmap(lambda t: jax.jvp(f, (x,), (t,))[1])(jnp.stack([x, w]))[1],
    "gradient under remat": lambda f, x, w: jax.grad(lambda x: (jax.checkpoint(f)(x) * w).sum())(x),
    "gradient under jit": lambda f, x, w: jax.grad(lambda x: (jax.jit(f)(x) * w).sum())(x),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_it_is_linear_under(name: str, check_vma: bool, cube: Mesh) -> None:
    f = global_map(cube, "a|b", "|c,b", check_vma)
    got = computed(lambda x, w: TRANSFORMED[name](f, x, w), VALUE, WEIGHT)
    np.testing.assert_array_equal(got, WEIGHT)


@pytest.mark.parametrize("check_vma", [True, False])
def test_vmap_inside_puts_the_mapped_dim_first(check_vma: bool, cube: Mesh) -> None:
    body = jax.vmap(resharder("a|", "|a,b", check_vma), in_axes=1, out_axes=2)
    specs = {"in_specs": P("a", None, None), "out_specs": P(None, ("a", "b"), None)}
    f = jax.shard_map(body, mesh=cube, check_vma=check_vma, **specs)
    value = np.arange(16 * 3 * 32, dtype=np.float32).reshape(16, 3, 32)
    np.testing.assert_array_equal(computed(f, value), value.transpose(0, 2, 1))


@pytest.mark.parametrize("check_vma", [True, False])
def test_the_gradient_is_right_inside_scan(check_vma: bool, cube: Mesh) -> None:
    there, back = resharder("a|", "|b", check_vma), resharder("|b", "a|", check_vma)

    def body(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (back(there(x) * 2), None), x, None, length=3)[0]

    f = jax.shard_map(body, mesh=cube, in_specs=P("a"), out_specs=P("a"), check_vma=check_vma)
    np.testing.assert_array_equal(computed(jax.grad(lambda x: (f(x) * WEIGHT).sum()), VALUE), 8 * WEIGHT)


def test_the_gradient_is_right_inside_the_region(cube: Mesh) -> None:
    there = resharder("a|", "|a")

    def body(x: jax.Array) -> jax.Array:
        return jax.grad(lambda x: jax.lax.psum((there(x) ** 2).sum(), "a"))(x)

    f = jax.shard_map(body, mesh=cube, in_specs=P("a"), out_specs=P("a"))
    np.testing.assert_array_equal(computed(f, VALUE), 2 * VALUE)


def test_the_gradient_is_right_without_jit(cube: Mesh) -> None:
    f = global_map(cube, "a|", "|a")
    gradient = jax.block_until_ready(jax.grad(lambda x: (f(x) * WEIGHT).sum())(VALUE))
    np.testing.assert_array_equal(gradient, WEIGHT)


@pytest.mark.sample(5)
@pytest.mark.parametrize("check_vma, kind", [(True, "varying"), (True, "unreduced"), (False, "untyped")])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("target", ["a|", "|a", "|", "c|a"])
def test_every_addend_of_a_sum_gets_the_full_cotangent(
    target: str, kept: bool, check_vma: bool, kind: str, cube: Mesh
) -> None:
    found = planned("a| +b", f"{target} +b" if kept else target)

    def body(x: jax.Array) -> jax.Array:
        x = jax.lax.pcast(x[0], "b", to="unreduced") if kind == "unreduced" else x[0]
        y = run(x, found, check_vma)
        return jax.lax.psum(y, "b") if kept else y

    f = jax.shard_map(body, mesh=cube, in_specs=P("b", "a"), out_specs=spec(cut(target)), check_vma=check_vma)
    if kind == "unreduced" and not HAS_MANUAL_TYPES:
        pytest.skip("jax 0.9 moves no unreduced value")
    program = jax.grad(lambda x: (f(x) * WEIGHT).sum())
    if DROPS_UNUSED and kept and kind == "unreduced" and target == "c|a":  # what moves stays unreduced
        with pytest.raises(ValueError, match="Expected cotangent type"):
            jax.eval_shape(program, np.stack([VALUE, VALUE]))
        return
    np.testing.assert_array_equal(computed(program, np.stack([VALUE, VALUE])), np.stack([WEIGHT, WEIGHT]))


def test_the_sum_may_go_where_its_axis_splits_a_dim(cube: Mesh) -> None:
    found = planned("| +b", "b|")
    f = jax.shard_map(lambda x: run(x[0], found, True), mesh=cube, in_specs=P("b"), out_specs=P("b"))
    gradient = computed(jax.grad(lambda x: (f(x) * WEIGHT).sum()), np.stack([VALUE, VALUE]))
    np.testing.assert_array_equal(gradient, np.stack([WEIGHT, WEIGHT]))


@pytest.mark.parametrize("kind", ["varying", "reduced"])
@pytest.mark.parametrize("target", ["a|", "|", "|b,a", "b|"])
def test_a_value_that_is_the_same_everywhere_but_typed_otherwise_has_the_right_gradient(
    kind: str, target: str, cube: Mesh
) -> None:
    there = resharder("|c", target)

    def body(x: jax.Array, w: jax.Array) -> jax.Array:
        y = there(jax.lax.pcast(x, "a", to=kind)) * w
        return jax.lax.psum(y.sum(), tuple(_jax.array.manual_type(y).varying))

    f = jax.shard_map(body, mesh=cube, in_specs=(P(None, "c"), spec(cut(target))), out_specs=P())
    # Where the target does not split over it, the loss adds up as many equal values as the axis has devices.
    factor = 1 if "a" in target else 2
    np.testing.assert_array_equal(computed(jax.grad(f), VALUE, WEIGHT), factor * WEIGHT)


def test_an_axis_over_which_a_value_is_typed_as_varying_is_not_used_for_others(cube: Mesh) -> None:
    found = planned("| +a,b", "|b,a")
    assert "c" in found.steps[0].axes

    def body(x: jax.Array, w: jax.Array) -> jax.Array:
        y = run(jax.lax.pcast(x[0, 0], "c", to="varying"), found, True) * w
        return jax.lax.psum(y.sum(), ("a", "b", "c"))

    f = jax.shard_map(body, mesh=cube, in_specs=(P("a", "b"), P(None, ("b", "a"))), out_specs=P())
    gradient = computed(jax.grad(f), np.broadcast_to(VALUE, (2, 2, *SHAPE)), WEIGHT)
    np.testing.assert_array_equal(gradient, np.broadcast_to(2 * WEIGHT, (2, 2, *SHAPE)))


@pytest.mark.parametrize(
    "source, target, kinds",
    [
        ("a|", "|", []),
        ("|", "a|", ["all-gather"]),
        ("a|", "|a", ["all-to-all"]),
        ("a,b|", "b,a|", ["collective-permute"]),
    ],
)
def test_the_way_back_is_the_cheapest(source: str, target: str, kinds: list[str], cube: Mesh, reader: Any) -> None:
    def back(weight: jax.Array) -> Any:
        shard = planned(source, target).shards[0]
        x = jax.lax.pcast(jnp.zeros(shard), tuple(axis for axes in cut(source).dim_axes for axis in axes), to="varying")
        return jax.vjp(resharder(source, target), x)[1](weight)[0]

    f = jax.shard_map(back, mesh=cube, in_specs=spec(cut(target)), out_specs=spec(cut(source)))
    text = jax.jit(f).lower(WEIGHT).compile().as_text()
    assert Counter(one.kind for one in reader.collectives(text)) == Counter(kinds)
