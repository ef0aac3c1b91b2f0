"""``assume``: what a kernel knows and the program does not show."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    ShapeError,
    ShardingError,
    VaryingError,
    assume,
    check,
    einsum,
    psum,
    typed_shard_map,
)

X, W, Y = Float[Array, "[b/dp] [k/tp]"], Float[Array, "[k/tp] n"], Float[Array, "[b/dp] n"]
x, w = np.ones((8, 16), np.float32), np.full((16, 12), 0.5, np.float32)
ARGS = (x, w)


def ring_sum(y: Any) -> Any:
    return y + lax.ppermute(y, "tp", [(0, 1), (1, 0)])


def form(body: Any, mesh: Mesh, check_vma: bool = False, out: Any = Y) -> Any:
    return typed_shard_map(body, mesh=mesh, check_vma=check_vma, in_types=(X, W), out_types=out)


def test_what_is_not_assumed_is_refused(mesh: Mesh) -> None:
    with pytest.raises(VaryingError, match="return value varies over 'tp'"):
        jax.eval_shape(form(lambda x, w: ring_sum(x @ w), mesh), *ARGS)


def test_shards_that_are_assumed_to_agree_leave(mesh: Mesh) -> None:
    f = form(lambda x, w: assume(ring_sum(x @ w), "[b/dp] n") * 2, mesh)
    np.testing.assert_allclose(jax.block_until_ready(f(*ARGS)), 2 * x @ w)


def kernel(x: Any, w: Any) -> Any:
    return jax.pure_callback(np.matmul, jax.ShapeDtypeStruct((2, 12), np.float32), x, w)


kernel_product = jax.custom_vjp(kernel)
kernel_product.defvjp(lambda x, w: (kernel(x, w), (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (lambda y: y, r"Hint: .*psum over 'tp'"),
        (lambda y: psum(jax.nn.relu(y), "[b/dp] n +tp -> [b/dp] n"), "is not linear, and its operand is a partial sum"),
    ],
    ids=["unsummed", "nonlinear"],
)
def test_a_partial_sum_that_is_assumed_of_a_kernel_is_to_be_summed(ends: Any, said: str, mesh: Mesh) -> None:
    f = form(lambda x, w: ends(assume(kernel_product(x, w), "[b/dp] n +tp")), mesh)
    for program in (f, jax.grad(lambda x, w: f(x, w).sum())):
        with pytest.raises(VaryingError, match=said):
            jax.eval_shape(program, *ARGS)


@pytest.mark.parametrize("is_differentiated", [False, True])
def test_a_product_with_what_is_assumed_of_a_kernel_is_blamed_on_no_kernel(is_differentiated: bool, mesh: Mesh) -> None:
    def layer(x: Any, w: Any, v: Any) -> Any:
        return assume(kernel_product(x, w), "[b/dp] [n/tp]") @ v

    operands = (Float[Array, "[b/dp] k"], Float[Array, "k [n/tp]"], Float[Array, "[n/tp] m"])
    types: Any = {"in_types": operands, "out_types": Float[Array, "[b/dp] m"]}
    f = typed_shard_map(layer, mesh=mesh, check_vma=False, **types)
    program = jax.grad(lambda *args: f(*args).sum()) if is_differentiated else f
    with pytest.raises(VaryingError, match=r"the contraction over n .* leaves partial sums: psum over 'tp'"):
        jax.eval_shape(program, x, np.ones((16, 24), np.float32), np.ones((24, 3), np.float32))


def test_under_check_vma_they_fit_hints_and_patterns_of_the_body(mesh: Mesh) -> None:
    def body(x: Any, w: Any) -> Any:
        y = check(jnp.tanh(assume(ring_sum(x @ w), "[b/dp] n")), "[b/dp] n")
        y = einsum(y, jnp.ones((12, 12)), "[b/dp] n, n m -> [b/dp] m")
        return lax.pmean(y, "tp")

    f = form(body, mesh, check_vma=True)
    np.testing.assert_allclose(jax.block_until_ready(f(*ARGS)), np.tanh(x @ w) @ np.ones((12, 12)), rtol=1e-6)


def test_under_check_vma_what_leaves_has_to_satisfy_jax(mesh: Mesh) -> None:
    with pytest.raises(VaryingError, match="return value varies over 'tp'"):
        jax.eval_shape(form(lambda x, w: assume(ring_sum(x @ w), "[b/dp] n"), mesh, check_vma=True), *ARGS)


def test_it_adds_nothing_to_the_program(mesh: Mesh) -> None:
    def text(f: Any) -> str:
        def program(x: Any, w: Any) -> Any:
            return f(x, w)

        return jax.jit(program).lower(*ARGS).as_text()

    by_hand = jax.shard_map(
        lambda x, w: ring_sum(x @ w),
        mesh=mesh,
        in_specs=(P("dp", "tp"), P("tp", None)),
        out_specs=P("dp", None),
        check_vma=False,
    )
    assert text(form(lambda x, w: assume(ring_sum(x @ w), "[b/dp] n"), mesh)) == text(by_hand)


@pytest.mark.parametrize("check_vma", [True, False])
def test_the_shape_is_checked(check_vma: bool, mesh: Mesh) -> None:
    f = form(lambda x, w: assume(ring_sum(x @ w), "[b/dp] k"), mesh, check_vma)
    with pytest.raises(ShapeError, match="assumed value has k=12, but argument 'x' has k=16"):
        jax.eval_shape(f, *ARGS)


def test_a_layout_that_is_assumed_is_what_later_claims_are_compared_with(mesh: Mesh) -> None:
    def body(x: Any, w: Any) -> Any:
        moved = assume(lax.sort(x, dimension=0), "[b/tp] [k/dp]")
        return check(jnp.tanh(moved), "[b/dp] [k/tp]")

    with pytest.raises((ShapeError, ShardingError)):
        jax.eval_shape(form(body, mesh, out=X), *ARGS)

    def turned(x: Any, w: Any) -> Any:
        return check(jnp.tanh(assume(x, "[_/tp] [_/dp]")), "[_/dp] [_/tp]")

    with pytest.raises(ShardingError, match="is sharded over 'tp' in dim 0, but its hint says sharded over 'dp'"):
        jax.eval_shape(form(turned, mesh, out=Float[Array, "[_/dp] [_/tp]"]), *ARGS)


def test_a_value_that_is_assumed_to_be_unreduced_may_be_summed(mesh: Mesh) -> None:
    f = form(lambda x, w: lax.psum(assume(x @ w, "[b/dp] n +tp"), "tp"), mesh, check_vma=True)
    np.testing.assert_allclose(jax.block_until_ready(jax.jit(f)(*ARGS)), x @ w)


def test_a_tree_is_assumed_leaf_by_leaf(mesh: Mesh) -> None:
    def body(x: Any, w: Any) -> Any:
        y = ring_sum(x @ w)
        return assume({"a": y, "b": 2 * y}, dict[str, Float[Array, "[b/dp] n"]])["b"]

    np.testing.assert_allclose(jax.block_until_ready(form(body, mesh)(*ARGS)), 2 * x @ w)


def test_of_a_global_array_the_shape_is_checked() -> None:
    assert assume(x, "b k") is x
    with pytest.raises(ShapeError, match="assume: assumed value has 2 dims, but its hint has 1"):
        assume(x, "b")
