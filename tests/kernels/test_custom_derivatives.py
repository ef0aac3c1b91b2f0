"""``jax.custom_vjp`` and ``jax.custom_jvp`` whose functions are mapped, typed, or kernels by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from texts import expect_same_program

from typedshmap import Array, Float, ShapeError, VaryingError, check, einsum, typed, typed_shard_map

X, W, Y = Float[Array, "[b/dp] d"], Float[Array, "d [f/tp]"], Float[Array, "[b/dp] [f/tp]"]
SPECS = {X: P("dp", None), W: P(None, "tp"), Y: P("dp", "tp")}
x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
w = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
Around = Callable[[Callable[..., Any], tuple[Any, ...], Any], Callable[..., Any]]


def product(x: Any, w: Any) -> Any:
    return x @ w


def forward(x: Any, w: Any) -> Any:
    return x @ w, (x, w)


def backward(kept: Any, ct: Any) -> Any:
    """Twice the gradient, so that it differs from JAX's own."""
    return 2 * jax.lax.psum(ct @ kept[1].T, "tp"), 2 * jax.lax.psum(kept[0].T @ ct, "dp")


def with_vjp(around: Around) -> Callable[..., Any]:
    """The product with a derivative of its own, each of its three functions mapped or typed."""
    f = jax.custom_vjp(around(product, (X, W), Y))
    f.defvjp(around(forward, (X, W), tuple[Y, tuple[X, W]]), around(backward, (tuple[X, W], Y), tuple[X, W]))
    return f


def with_jvp(around: Around) -> Callable[..., Any]:
    f = jax.custom_jvp(around(product, (X, W), Y))
    tangent = around(lambda x, w, dx, dw: 2 * (dx @ w + x @ dw), (X, W, X, W), Y)
    f.defjvp(lambda primals, tangents: (f(*primals), tangent(*primals, *tangents)))
    return f


def by_type(mesh: Mesh) -> Around:
    return lambda f, hints, out: typed_shard_map(f, mesh=mesh, in_types=hints, out_types=out)


def spec_of(hint: Any) -> Any:
    return SPECS[hint] if hint in SPECS else tuple(map(spec_of, hint.__args__))


def by_hand(mesh: Mesh) -> Around:
    return lambda f, hints, out: jax.shard_map(
        f, mesh=mesh, in_specs=tuple(map(spec_of, hints)), out_specs=spec_of(out)
    )


def as_helper(f: Callable[..., Any], hints: tuple[Any, ...], out: Any) -> Callable[..., Any]:
    """A typed helper with these hints."""

    def helper(*args: Any) -> Any:
        return f(*args)

    annotated = [lambda a, b: helper(a, b), lambda a, b, c, d: helper(a, b, c, d)][len(hints) > 2]
    annotated.__annotations__ = {**dict(zip("abcd", hints, strict=False)), "return": out}
    return typed(annotated)


def untyped(f: Callable[..., Any], hints: tuple[Any, ...], out: Any) -> Callable[..., Any]:
    return f


def loss(f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(lambda x, w: jnp.sin(f(x, w)).sum(), (0, 1))


def expected() -> tuple[Any, Any]:
    """Twice the gradients of plain JAX."""
    return jax.tree.map(lambda g: 2 * g, jax.grad(lambda x, w: jnp.sin(x @ w).sum(), (0, 1))(x, w))


def close(got: Any, wanted: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, wanted)


@pytest.mark.parametrize("make", [with_vjp, with_jvp])
def test_a_derivative_whose_functions_are_all_mapped_is_as_by_hand(make: Any, mesh: Mesh) -> None:
    got = expect_same_program(loss(make(by_type(mesh))), loss(make(by_hand(mesh))), x, w)
    close(got[1], expected())


@pytest.mark.parametrize("make", [with_vjp, with_jvp])
def test_a_derivative_whose_functions_are_all_typed_is_as_by_hand(make: Any, mesh: Mesh) -> None:
    typed_body = by_type(mesh)(make(as_helper), (X, W), Y)
    plain_body = by_hand(mesh)(make(untyped), (X, W), Y)
    got = expect_same_program(loss(typed_body), loss(plain_body), x, w)
    close(got[1], expected())


@pytest.mark.sample(2)
@pytest.mark.parametrize("make", [with_vjp, with_jvp])
def test_a_mapped_derivative_outside_of_jit_has_the_same_values(make: Any, mesh: Mesh) -> None:
    close(jax.block_until_ready(loss(make(by_type(mesh)))(x, w))[1], expected())


def test_a_backward_function_that_forgets_a_sum_is_reported(mesh: Mesh) -> None:
    f = jax.custom_vjp(by_type(mesh)(make_product(), (X, W), Y))
    forgetful = by_type(mesh)(lambda kept, ct: (ct @ kept[1].T, kept[0].T @ ct), (tuple[X, W], Y), tuple[X, W])
    f.defvjp(by_type(mesh)(forward, (X, W), tuple[Y, tuple[X, W]]), forgetful)
    with pytest.raises(VaryingError, match=r"return\[0\] varies over 'tp', which its hint does not mention"):
        jax.eval_shape(loss(f), x, w)


def make_product() -> Callable[..., Any]:
    return lambda x, w: einsum(x, w, "[b/dp] d, d [f/tp] -> [b/dp] [f/tp]")


def test_a_typed_backward_function_of_another_shape_is_reported(mesh: Mesh) -> None:
    f = jax.custom_vjp(as_helper(product, (X, W), Y))
    wrong = as_helper(lambda kept, ct: (kept[0], check(ct, "[b/dp] [f/tp]")), (tuple[X, W], Y), tuple[X, W])
    f.defvjp(as_helper(forward, (X, W), tuple[Y, tuple[X, W]]), wrong)
    mapped = by_type(mesh)(f, (X, W), Y)
    with pytest.raises(ShapeError):
        jax.eval_shape(loss(mapped), x, w)
