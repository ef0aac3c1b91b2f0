"""Operations in a region that makes only some axes manual, on values that the others, Explicit ones, shard."""

from collections.abc import Callable
from typing import Any, NamedTuple

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


class Call(NamedTuple):
    """A call of an operation.

    Attributes:
      body: what a region that is manual over ``dp`` computes of both values.
      x: how the first one is sharded.
      w: how the second one is.
      typed: the type of the result.
      whole: what is computed of them on one device.
    """

    body: Callable[[Any, Any], Any]
    x: P
    w: P
    typed: str
    whole: Any


CALLS = {
    "a sum over a dim of both": Call(
        lambda x, w: einsum(x, w, "[b/dp] [k/tp], [k/tp] n -> [b/dp] n"), SHARDED, ROWS, "float32[8@dp,4]", X @ W
    ),
    "the same without brackets": Call(
        lambda x, w: einsum(x, w, "[b/dp] k, k n -> [b/dp] n"), SHARDED, ROWS, "float32[8@dp,4]", X @ W
    ),
    "a sum that is scattered": Call(
        lambda x, w: einsum(x, w, "[b/dp] [k/tp], [k/tp] n -> [b/dp] [n/tp]"),
        SHARDED,
        ROWS,
        "float32[8@dp,4@tp]",
        X @ W,
    ),
    "a sum of three": Call(
        lambda x, w: einsum(x, w, w, "[b/dp] k, k n, k n -> [b/dp] n"), SHARDED, ROWS, "float32[8@dp,4]", X @ W**2
    ),
    "a sum over a dim of one": Call(
        lambda x, w: einsum(x, w, "[b/dp] [k/tp], k n -> [b/dp] n"), SHARDED, P(), "float32[8@dp,4]", X @ W
    ),
    "a dim that stays": Call(
        lambda x, w: einsum(x, w, "[b/dp] k, k [n/tp] -> [b/dp] [n/tp]"), P("dp"), COLUMNS, "float32[8@dp,4@tp]", X @ W
    ),
    "rows looked up": Call(lambda x, w: take(w, FIRST, "[v/tp] m, b -> b m"), P("dp"), ROWS, "float32[2,4]", W[:2]),
    "columns looked up": Call(
        lambda x, w: take(w, FIRST, "v [m/tp], b -> b [m/tp]"), P("dp"), COLUMNS, "float32[2,4@tp]", W[:2]
    ),
    "merged as the minor": Call(
        lambda x, w: rearrange(x, "[b/dp] k -> [(b k)/dp]"), SHARDED, P(), "float32[48@dp]", X.reshape(-1)
    ),
    "a dim split where it is sharded": Call(
        lambda x, w: rearrange(x, "[b/dp] (h k) -> [b/dp] h k", h=3),
        SHARDED,
        P(),
        "float32[8@dp,3,2]",
        X.reshape(8, 3, 2),
    ),
    "repeated as a whole": Call(
        lambda x, w: repeat(x, "[b/dp] k -> [b/dp] (n k)", n=2), SHARDED, P(), "float32[8@dp,12]", np.tile(X, (1, 2))
    ),
    "reduced where it is split": Call(
        lambda x, w: reduce(x, "[b/dp] (h k) -> [b/dp] h", "sum", h=3),
        SHARDED,
        P(),
        "float32[8@dp,3]",
        X.reshape(8, 3, 2).sum(2),
    ),
    "reduced": Call(
        lambda x, w: reduce(x, "[b/dp] [k/tp] -> [b/dp]", "max"), SHARDED, P(), "float32[8@dp]", X.max(1)
    ),
    "a logsumexp": Call(
        lambda x, w: logsumexp(x, "[b/dp] [k/tp] -> [b/dp]"),
        SHARDED,
        P(),
        "float32[8@dp]",
        np.log(np.exp(X).sum(1)),
    ),
    "a softmax": Call(
        lambda x, w: softmax(x, "[b/dp] [k/tp]", "k"),
        SHARDED,
        P(),
        "float32[8@dp,6@tp]",
        np.exp(X) / np.exp(X).sum(1, keepdims=True),
    ),
}  # fmt: skip


def placed(call: Call) -> tuple[Any, Any]:
    return jax.device_put(X, NamedSharding(MESH, call.x)), jax.device_put(W, NamedSharding(MESH, call.w))


def plain(call: Call, check_vma: bool) -> Any:
    out = P("dp") if "@dp" in call.typed else P()
    return jax.shard_map(
        lambda x, w: call.body(x, w),
        mesh=MESH,
        in_specs=(P("dp"), P()),
        out_specs=out,
        axis_names={"dp"},
        check_vma=check_vma,
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_an_operation_says_how_explicit_axes_shard_its_result(name: str, check_vma: bool) -> None:
    call = CALLS[name]
    with jax.set_mesh(MESH):
        result = jax.block_until_ready(jax.jit(plain(call, check_vma))(*placed(call)))
    assert str(jax.typeof(result)) == call.typed
    np.testing.assert_allclose(result, call.whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["a sum over a dim of both", "a sum that is scattered", "merged as the minor"])
def test_its_gradient_is_that_of_the_whole(name: str) -> None:
    call = CALLS[name]
    with jax.set_mesh(MESH):
        mapped = plain(call, True)
        gradient = jax.jit(jax.grad(lambda x, w: (mapped(x, w) ** 2).sum()))(*placed(call))
        gradient = np.asarray(jax.block_until_ready(gradient))
    whole = jax.grad(lambda x: ((x @ W if "sum" in name else x) ** 2).sum())(jnp.asarray(X))
    np.testing.assert_allclose(gradient, whole, rtol=1e-4, atol=1e-4)


def test_a_typed_region_does_so_too() -> None:
    @typed_shard_map(mesh=MESH, axis_names={"dp"})
    def product(x: Float[Array, "[b/dp] [k/tp]"], w: Float[Array, "[k/tp] n"]) -> Float[Array, "[b/dp] n"]:
        return einsum(x, w, "[b/dp] [k/tp], [k/tp] n -> [b/dp] n")

    with jax.set_mesh(MESH):
        result = jax.block_until_ready(jax.jit(product)(*placed(CALLS["a sum over a dim of both"])))
    np.testing.assert_allclose(result, X @ W, rtol=1e-5, atol=1e-5)
