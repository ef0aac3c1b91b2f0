"""Pallas kernels in typed bodies are those of hand-written ``jax.shard_map``.

On CPU a kernel is interpreted, which JAX does under ``check_vma=False`` only; with ``check_vma`` on a
program with a kernel is lowered for TPU, and not run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails
from jax.experimental import pallas as pl
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from texts import expect_same_program, lowered

from typedshmap import (
    Array,
    DtypeError,
    Float,
    ShapeError,
    StructureError,
    VaryingError,
    check,
    psum,
    rearrange,
    reduce,
    typed,
    typed_shard_map,
)

X = Float[Array, "[b/dp] [s/tp]"]
SPEC = P("dp", "tp")
x = np.random.default_rng(0).normal(size=(32, 256)).astype(np.float32)


def like(x: Any, dtype: Any = None) -> Any:
    """What a kernel gives that works on each shard alone; JAX needs a declaration of it under check_vma."""
    return jax.ShapeDtypeStruct(x.shape, dtype or x.dtype, manual_axis_type=jax.typeof(x).manual_axis_type)


def double_kernel(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2


def double(x: Any, interpret: bool = True) -> Any:
    return pl.pallas_call(double_kernel, out_shape=like(x), interpret=interpret)(x)


def in_blocks(x: Any, interpret: bool = True) -> Any:
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call = pl.pallas_call(
        double_kernel,
        out_shape=like(x),
        grid=(x.shape[0] // 8,),
        in_specs=[block],
        out_specs=block,
        interpret=interpret,
    )
    return call(x)


def two_results(x: Any, interpret: bool = True) -> Any:
    def kernel(x_ref: Any, square_ref: Any, sign_ref: Any) -> None:
        square_ref[...] = x_ref[...] * x_ref[...]
        sign_ref[...] = (x_ref[...] > 0).astype(jnp.int32)

    square, sign = pl.pallas_call(kernel, out_shape=(like(x), like(x, jnp.int32)), interpret=interpret)(x)
    return square * sign


def in_a_scan(x: Any, interpret: bool = True) -> Any:
    return jax.lax.scan(lambda x, _: (double(x, interpret), None), x, length=2)[0]


KERNELS = [double, in_blocks, two_results, in_a_scan]


@pytest.mark.sample(3)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_is_the_program_written_by_hand(kernel: Callable[..., Any], mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh, check_vma=False)
    def mapped(x: X) -> X:
        return check(kernel(check(x, "[b/dp] [s/tp]")), "[b/dp] [s/tp]")

    by_hand = jax.shard_map(kernel, mesh=mesh, in_specs=SPEC, out_specs=SPEC, check_vma=False)
    got = expect_same_program(mapped, by_hand, x)
    np.testing.assert_array_equal(got, {two_results: x**2 * (x > 0), in_a_scan: 4 * x}.get(kernel, 2 * x))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_is_lowered_for_tpu_as_by_hand(kernel: Callable[..., Any], check_vma: bool, mesh: Mesh) -> None:
    options = {"mesh": mesh.abstract_mesh, "check_vma": check_vma}

    @typed_shard_map(**options)
    def mapped(x: X) -> X:
        return check(kernel(x, interpret=False), "[b/dp] [s/tp]")

    by_hand = jax.shard_map(lambda x: kernel(x, interpret=False), in_specs=SPEC, out_specs=SPEC, **options)
    text = lowered(mapped, x, platform="tpu")
    assert "tpu_custom_call" in text
    assert text == lowered(by_hand, x, platform="tpu")


def test_operations_go_around_a_kernel(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh, check_vma=False)
    def mapped(x: X) -> Float[Array, "[b/dp]"]:
        x = rearrange(in_blocks(x), "[b/dp] [(s t)/tp] -> [b/dp] [s/tp] t", t=4)
        return psum(reduce(x, "[b/dp] [s/tp] t -> [b/dp] ~tp", "sum"), "[b/dp] ~tp -> [b/dp]")

    np.testing.assert_allclose(jax.block_until_ready(jax.jit(mapped)(x)), 2 * x.sum(1), rtol=1e-4, atol=1e-4)


def test_a_kernel_with_typed_forward_and_backward_is_differentiated(mesh: Mesh) -> None:
    @jax.custom_vjp
    @typed
    def square(x: X) -> X:
        return two_results(x)

    @typed
    def forward(x: X) -> tuple[X, X]:
        return two_results(x), x

    @typed
    def backward(x: X, ct: X) -> tuple[X]:
        return (double(x) * (x > 0) * ct,)

    square.defvjp(forward, backward)
    mapped = typed_shard_map(square, mesh=mesh, check_vma=False, in_types=(X,), out_types=X)
    got = jax.block_until_ready(jax.jit(jax.grad(lambda x: mapped(x).sum()))(x))
    np.testing.assert_array_equal(got, 2 * x * (x > 0))


def traced(body: Callable[[Any], Any], mesh: Mesh, out: Any = X, check_vma: bool = True) -> Any:
    return jax.eval_shape(typed_shard_map(body, mesh=mesh, in_types=(X,), out_types=out, check_vma=check_vma), x)


def kernel_of(shape: tuple[int, ...], dtype: Any = np.float32, **kind: Any) -> Callable[[Any], Any]:
    """A body that gives what a kernel says that it gives."""
    out = lambda x: jax.ShapeDtypeStruct(shape, dtype, **{k: make(x) for k, make in kind.items()})  # noqa: E731

    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jnp.zeros(shape, dtype)

    return lambda x: pl.pallas_call(kernel, out_shape=out(x))(x)


def own_type(x: Any) -> Any:
    return jax.typeof(x).manual_axis_type


of_own_type = kernel_of((8, 128), manual_axis_type=own_type)


@pytest.mark.parametrize(
    ("body", "out", "error", "problem"),
    [
        (kernel_of((8, 64), manual_axis_type=own_type), X, ShapeError,
         "has s=128 (64 per shard over 'tp'), but argument 'x' has s=256"),
        (kernel_of((8, 128), np.int32, manual_axis_type=own_type), X, DtypeError,
         "has dtype int32, but its hint says Float"),
        (lambda x: [of_own_type(x)], X, StructureError, "is a list, but its hint says Array"),
        (of_own_type, Float[Array, "[b/dp] t"], VaryingError, "varies over 'tp', which its hint does not mention"),
    ],
)  # fmt: skip
def test_what_a_kernel_gives_is_checked(body: Any, out: Any, error: Any, problem: str, mesh: Mesh) -> None:
    with fails(error, f"<lambda>: return value {problem}"):
        traced(body, mesh, out)


def scaled_and_cached(x_ref: Any, cache_ref: Any, out_ref: Any, next_ref: Any) -> None:
    out_ref[...] = x_ref[...] * cache_ref[0, 0]
    next_ref[...] = cache_ref[...] + 1


def looked_up(x_ref: Any, cache_ref: Any, out_ref: Any, next_ref: Any) -> None:
    out_ref[...] = x_ref[...] * cache_ref[0, 0]

    @pl.when(x_ref[0, 0] > 0)
    def _() -> None:
        next_ref[...] = cache_ref[...] + 1


def with_cache(kernel: Callable[..., None], mesh: Mesh) -> Any:
    def body(x: Any, cache: Any) -> Any:
        shapes = (jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (x, cache))
        return pl.pallas_call(kernel, out_shape=tuple(shapes), interpret=True)(x, cache)

    types = {"in_types": (X, Float[Array, "n k"]), "out_types": tuple[X, Float[Array, "n k"]]}
    return typed_shard_map(body, mesh=mesh, check_vma=False, **types)


def test_a_result_of_a_kernel_depends_on_what_its_body_reads_for_it(mesh: Mesh) -> None:
    made, cache = jax.block_until_ready(with_cache(scaled_and_cached, mesh)(x, np.ones((8, 128), np.float32)))
    np.testing.assert_array_equal(made, x)
    assert (cache == 2).all()


def test_a_result_of_a_kernel_that_may_depend_on_all_operands_is_unknown(mesh: Mesh) -> None:
    with pytest.raises(VaryingError, match="varies over 'dp', 'tp', which its hint does not mention") as caught:
        jax.eval_shape(with_cache(looked_up, mesh), x, np.ones((8, 128), np.float32))
    assert "assume" in str(caught.value)


def test_what_jax_wants_of_a_kernel_is_reported_by_jax_with_a_note(mesh: Mesh) -> None:
    with pytest.raises(ValueError, match=r"`manual_axis_type` on `jax.ShapeDtypeStruct` must not be `None`") as caught:
        traced(kernel_of((8, 128)), mesh)
    assert any("is f32[8,128]{V:(dp,tp)}" in note for note in caught.value.__notes__)
