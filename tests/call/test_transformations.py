"""Mapped dims, checks under transformations, and keys; test_control_flow.py has transformations by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from by_hand import text_of
from expecting import fails, mesh_of, numbers, same, traced
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    Key,
    ShapeError,
    ShardingError,
    TypedShmapError,
    VaryingError,
    check,
    shard_size,
    size,
    typed_shard_map,
)

X = Float[Array, "[b/dp] d"]
U = Float[Array, "d [f/tp]"]
V = Float[Array, "[f/tp] d"]
x, up, down = numbers(8, 4), numbers(4, 6), numbers(6, 4)


def mlp(x: X, up: U, down: V) -> X:
    return jax.lax.psum(check(jnp.tanh(x @ up), "[b/dp] [f/tp]") @ down, "tp")


def plain_mlp(x: Any, up: Any, down: Any) -> Any:
    return jnp.tanh(x @ up) @ down


# A dim that vmap maps over and that is sharded: over an Explicit axis, which vmap takes away, or by spmd_axis_name.

ROW = Float[Array, "[n/tp]"]
W = Float[Array, "[n/tp] m"]


def row_body(row: ROW, w: W) -> Float[Array, "m"]:
    assert (size("n"), shard_size("n")) == (8, 4)
    return jax.lax.psum(check(jnp.sin(row), "[n/tp]") @ w, "tp")


ROW_SPECS: dict[str, Any] = {"in_specs": (P("tp"), P("tp", None)), "out_specs": P(None)}
# What surrounds a function of a row and a matrix; both hold for rows as columns, too.
AROUND_ROWS = {
    "vmap": lambda f, spmd: jax.vmap(f, (0, None), spmd_axis_name=spmd),
    "vmap of jit": lambda f, spmd: jax.vmap(jax.jit(f), (0, None), spmd_axis_name=spmd),
    "vmap of checkpoint": lambda f, spmd: jax.vmap(jax.checkpoint(f), (0, None), spmd_axis_name=spmd),
    "vmap of grad": lambda f, spmd: jax.vmap(jax.grad(lambda row, w: f(row, w).sum()), (0, None), spmd_axis_name=spmd),
    "grad of vmap": lambda f, spmd: jax.grad(
        lambda x, w: jax.vmap(f, (0, None), spmd_axis_name=spmd)(x, w).sum(), argnums=(0, 1)
    ),
    "other dims": lambda f, spmd: lambda x, w: jax.vmap(f, (1, None), 1, spmd_axis_name=spmd)(x.T, w),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("around", AROUND_ROWS)
def test_a_sharded_dim_may_be_mapped_over(around: str, kind: AxisType, check_vma: bool) -> None:
    mesh = mesh_of(4, 2, kind=kind)
    spmd = "dp" if kind is AxisType.Auto else None
    options = {"mesh": mesh, "check_vma": check_vma}

    def by_hand(row: Any, w: Any) -> Any:
        return jax.lax.psum(jnp.sin(row) @ w, "tp")

    pair = typed_shard_map(row_body, **options), jax.shard_map(by_hand, **ROW_SPECS, **options)
    with jax.set_mesh(mesh):
        args = (jax.device_put(numbers(4, 8), P("dp", "tp")), jax.device_put(numbers(8, 3), P("tp", None)))
        typed, plain = (text_of(AROUND_ROWS[around](f, spmd), *args) for f in pair)
    assert typed.replace("row_body", "by_hand") == plain


@pytest.mark.parametrize("jit", [True, False])
def test_an_explicit_axis_may_be_mapped_over_unjitted_and_twice(jit: bool) -> None:
    mesh = mesh_of(2, 2, 2, kind=AxisType.Explicit, names=("pp", "dp", "tp"))
    rows = typed_shard_map(lambda row: check(2 * row, "[n/tp]"), mesh=mesh, in_types=(ROW,), out_types=ROW)
    with jax.set_mesh(mesh):
        x = jax.device_put(numbers(2, 4, 8), P("pp", "dp", "tp"))
        twice = jax.vmap(jax.vmap(rows))
        got = (jax.jit(twice) if jit else twice)(x)
    assert got.sharding == x.sharding
    same(got, 2 * numbers(2, 4, 8))


WRONG_ROWS = [
    (("[n/dp]", "n"), lambda row: row, ShardingError, "argument 'x' is sharded P('tp'), but its hint says P('dp')"),
    (("[n/tp]", ""), jnp.sum, VaryingError, "return value varies over 'tp', which its hint does not mention"),
    (("[n/tp]", "[n/tp]"), lambda row: check(row, "n ~tp"), ShapeError,
     "checked value has n=4 on each shard, but argument 'x' has n=8"),
]  # fmt: skip


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(("hints", "body", "error", "line"), WRONG_ROWS)
def test_what_is_wrong_is_found_where_an_explicit_axis_is_mapped_over(
    hints: tuple[str, str], body: Any, error: type[TypedShmapError], line: str, check_vma: bool
) -> None:
    mesh = mesh_of(4, 2, kind=AxisType.Explicit)
    took, gave = (Float[Array, text] for text in hints)

    def f(x: took) -> gave:  # pyright: ignore[reportInvalidTypeForm]
        return body(x)

    with jax.set_mesh(mesh), fails(error, f"f: {line}"):
        x = jax.device_put(numbers(4, 8), P("dp", "tp"))
        traced(jax.vmap(typed_shard_map(f, check_vma=check_vma)), x)


def test_without_jit_the_values_are_the_same(mesh: Mesh) -> None:
    with jax.disable_jit():
        same(typed_shard_map(mlp, mesh=mesh)(x, up, down), plain_mlp(x, up, down))


TWO, FOUR = "b=2 on each shard, but argument 'x' has b=8", "b=4, but argument 'x' has b=8"
WRONG_INSIDE = [
    pytest.param(
        lambda x: jax.jit(lambda x: check(x, "[b/dp] 3"))(x), "size 4 in dim 1, but its hint says 3", id="jit"
    ),
    pytest.param(lambda x: jax.vmap(lambda row: check(row, "b ~dp"))(x), FOUR, id="vmap"),
    pytest.param(lambda x: jax.lax.scan(lambda c, row: (c, check(row, "b ~dp")), 0, x), FOUR, id="scan"),
    pytest.param(lambda x: jax.grad(lambda x: check(x, "b d").sum())(x), TWO, id="grad"),
    pytest.param(lambda x: jax.checkpoint(lambda x: check(x, "b d"))(x), TWO, id="checkpoint"),
    pytest.param(lambda x: jax.lax.cond(True, lambda x: check(x, "b d"), lambda x: x, x), TWO, id="cond"),
]


@pytest.mark.parametrize(("body", "problem"), WRONG_INSIDE)
def test_transformations_inside_a_body_are_checked(body: Callable[..., Any], problem: str, mesh: Mesh) -> None:
    with fails(ShapeError, f"<lambda>: checked value has {problem}"):
        traced(typed_shard_map(body, mesh=mesh, in_types=(X,), out_types=None), x)


def test_a_row_under_vmap_varies(mesh: Mesh) -> None:
    body = typed_shard_map(lambda x: jax.vmap(lambda row: check(row, "d"))(x), mesh=mesh, in_types=(X,), out_types=X)
    with fails(VaryingError, "<lambda>: checked value varies over 'dp', which its hint does not mention"):
        traced(body, x)


# Keys


def test_a_key_is_the_same_on_every_shard_and_one_folded_with_its_index_varies(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def noise(key: Key[Array, ""], x: X) -> tuple[Float[Array, " d"], X]:
        folded = check(jax.random.fold_in(key, jax.lax.axis_index("dp")), Key[Array, "~dp"])
        same_on_all = check(jax.random.normal(key, (size("d"),)), "d")
        return same_on_all, check(jax.random.normal(folded, x.shape), "[b/dp] d")

    @jax.jit
    def by_hand(key: Any) -> Any:
        keys = jax.vmap(lambda at: jax.random.fold_in(key, at))(jnp.arange(4))
        return jax.random.normal(key, (4,)), jax.vmap(lambda key: jax.random.normal(key, (2, 4)))(keys).reshape(8, 4)

    same(noise(jax.random.key(3), x), by_hand(jax.random.key(3)))

    @typed_shard_map(mesh=mesh)
    def unmarked(key: Key[Array, ""]) -> None:
        check(jax.random.fold_in(key, jax.lax.axis_index("dp")), Key[Array, ""])

    with fails(VaryingError, "unmarked: checked value varies over 'dp', which its hint does not mention"):
        traced(unmarked, jax.random.key(3))


def test_keys_may_be_sharded(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def noise(keys: Key[Array, "[b/dp]"]) -> X:
        return jax.vmap(lambda key: jax.random.normal(key, (4,)))(keys)

    keys = jax.random.split(jax.random.key(3), 8)
    same(noise(keys), jax.vmap(lambda key: jax.random.normal(key, (4,)))(keys))


@pytest.mark.parametrize("result", [None, dict[str, X]], ids=str)
def test_a_body_without_results_is_in_a_program_once(result: Any, mesh: Mesh) -> None:
    def body(x: Any) -> Any:
        jax.debug.print("{}", jax.lax.psum(x.sum(), "dp"))
        return None if result is None else {}

    program = jax.make_jaxpr(typed_shard_map(body, mesh=mesh, in_types=(X,), out_types=result))(x)
    assert str(program).count("psum") == 1


def test_a_result_that_a_gradient_passes_by_is_that_by_hand(mesh: Mesh) -> None:
    """A call whose arguments are of the program around, where something else is differentiated."""
    f = typed_shard_map(mlp, mesh=mesh)

    def loss(by: Any, x: Any) -> Any:
        return (by * f(x, up, down)).sum()

    same(jax.jit(jax.grad(loss))(2.0, x), plain_mlp(x, up, down).sum())
