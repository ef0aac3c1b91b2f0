"""Operations in a region that makes only some axes manual, on values that the others, Explicit ones, shard."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, einsum, logsumexp, rearrange, reduce, repeat, softmax, take, typed_shard_map

MESH = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Explicit,) * 2)
X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
FIRST = np.arange(2, dtype=np.int32)
SHARDED, ROWS, COLUMNS = P("dp", "tp"), P("tp", None), P(None, "tp")


# What a region that is manual over dp computes of both values; how these are sharded; the result's type, and its value.
CALLS: dict[str, tuple[Callable[[Any, Any], Any], P, P, str, Any]] = {
    "a sum over a dim of both": (
        lambda x, w: einsum(x, w, "[b/dp] [k/tp], [k/tp] n -> [b/dp] n"), SHARDED, ROWS, "float32[8@dp,4]", X @ W),
    "the same without brackets": (
        lambda x, w: einsum(x, w, "[b/dp] k, k n -> [b/dp] n"), SHARDED, ROWS, "float32[8@dp,4]", X @ W),
    "a sum that is scattered": (
        lambda x, w: einsum(x, w, "[b/dp] [k/tp], [k/tp] n -> [b/dp] [n/tp]"),
        SHARDED, ROWS, "float32[8@dp,4@tp]", X @ W),
    "a sum of three": (
        lambda x, w: einsum(x, w, w, "[b/dp] k, k n, k n -> [b/dp] n"), SHARDED, ROWS, "float32[8@dp,4]", X @ W**2),
    "a sum over a dim of one": (
        lambda x, w: einsum(x, w, "[b/dp] [k/tp], k n -> [b/dp] n"), SHARDED, P(), "float32[8@dp,4]", X @ W),
    "a dim that stays": (
        lambda x, w: einsum(x, w, "[b/dp] k, k [n/tp] -> [b/dp] [n/tp]"),
        P("dp"), COLUMNS, "float32[8@dp,4@tp]", X @ W),
    "rows looked up": (lambda x, w: take(w, FIRST, "[v/tp] m, b -> b m"), P("dp"), ROWS, "float32[2,4]", W[:2]),
    "columns looked up": (
        lambda x, w: take(w, FIRST, "v [m/tp], b -> b [m/tp]"), P("dp"), COLUMNS, "float32[2,4@tp]", W[:2]),
    "merged as the minor": (
        lambda x, w: rearrange(x, "[b/dp] k -> [(b k)/dp]"), SHARDED, P(), "float32[48@dp]", X.reshape(-1)),
    "a dim split where it is sharded": (
        lambda x, w: rearrange(x, "[b/dp] (h k) -> [b/dp] h k", h=3),
        SHARDED, P(), "float32[8@dp,3,2]", X.reshape(8, 3, 2)),
    "repeated as a whole": (
        lambda x, w: repeat(x, "[b/dp] k -> [b/dp] (n k)", n=2), SHARDED, P(), "float32[8@dp,12]", np.tile(X, (1, 2))),
    "reduced where it is split": (
        lambda x, w: reduce(x, "[b/dp] (h k) -> [b/dp] h", "sum", h=3),
        SHARDED, P(), "float32[8@dp,3]", X.reshape(8, 3, 2).sum(2)),
    "reduced": (lambda x, w: reduce(x, "[b/dp] [k/tp] -> [b/dp]", "max"), SHARDED, P(), "float32[8@dp]", X.max(1)),
    "a logsumexp": (
        lambda x, w: logsumexp(x, "[b/dp] [k/tp] -> [b/dp]"), SHARDED, P(), "float32[8@dp]", np.log(np.exp(X).sum(1))),
    "a softmax": (
        lambda x, w: softmax(x, "[b/dp] [k/tp]", "k"),
        SHARDED, P(), "float32[8@dp,6@tp]", np.exp(X) / np.exp(X).sum(1, keepdims=True)),
}  # fmt: skip


def region(name: str, check_vma: bool) -> tuple[Any, tuple[Any, Any]]:
    """The region, and both values as they are sharded."""
    body, x, w, typed, _ = CALLS[name]
    out, specs = P("dp") if "@dp" in typed else P(), (P("dp"), P())
    options: dict[str, Any] = {"in_specs": specs, "out_specs": out, "axis_names": {"dp"}, "check_vma": check_vma}
    mapped = jax.shard_map(lambda x, w: body(x, w), mesh=MESH, **options)
    return mapped, (jax.device_put(X, NamedSharding(MESH, x)), jax.device_put(W, NamedSharding(MESH, w)))


@pytest.mark.sample(3)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_an_operation_says_how_explicit_axes_shard_its_result(name: str, check_vma: bool) -> None:
    mapped, args = region(name, check_vma)
    with jax.set_mesh(MESH):
        result = jax.block_until_ready(jax.jit(mapped)(*args))
    *_, typed, whole = CALLS[name]
    assert str(jax.typeof(result)) == typed
    np.testing.assert_allclose(result, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["a sum over a dim of both", "a sum that is scattered", "merged as the minor"])
def test_its_gradient_is_that_of_the_whole(name: str) -> None:
    mapped, args = region(name, True)
    with jax.set_mesh(MESH):
        gradient = jax.block_until_ready(jax.jit(jax.grad(lambda x, w: (mapped(x, w) ** 2).sum()))(*args))
    whole = jax.grad(lambda x: ((x @ W if "sum" in name else x) ** 2).sum())(jnp.asarray(X))
    np.testing.assert_allclose(gradient, whole, rtol=1e-4, atol=1e-4)


def test_a_typed_region_does_so_too() -> None:
    @typed_shard_map(mesh=MESH, axis_names={"dp"})
    def product(x: Float[Array, "[b/dp] [k/tp]"], w: Float[Array, "[k/tp] n"]) -> Float[Array, "[b/dp] n"]:
        return einsum(x, w, "[b/dp] [k/tp], [k/tp] n -> [b/dp] n")

    with jax.set_mesh(MESH):
        result = jax.block_until_ready(jax.jit(product)(*region("a sum over a dim of both", True)[1]))
    np.testing.assert_allclose(result, X @ W, rtol=1e-5, atol=1e-5)
