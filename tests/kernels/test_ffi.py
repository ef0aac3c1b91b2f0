"""Calls of foreign functions in typed bodies: LAPACK's, which JAX has in its CPU build."""

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

from typedshmap import Array, Float, ShapeError, VaryingError, check, typed, typed_shard_map

Batch = Float[Array, "[n/dp,tp] m m"]
SPEC = P(("dp", "tp"), None, None)
BY_COLUMNS = (0, 2, 1)
matrices = np.stack([np.eye(4, dtype=np.float32) * (i + 1) + 0.1 for i in range(8)])


@pytest.fixture(scope="module", autouse=True)
def lapack() -> None:
    """JAX finds LAPACK when it lowers its own decomposition."""
    jax.block_until_ready(jnp.linalg.cholesky(matrices[0]))


def cholesky(a: Any) -> Any:
    """The lower factor, by LAPACK called directly; JAX types what is foreign as equal on all shards."""
    call = jax.ffi.ffi_call(
        "lapack_spotrf_ffi",
        (jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct(a.shape[:-2], np.int32)),
        input_layouts=[BY_COLUMNS],
        output_layouts=[BY_COLUMNS, None],
        input_output_aliases={0: 0},
    )
    return jnp.tril(call(a, uplo=np.uint8(ord("L")))[0])


def typed_cholesky(a: Any) -> Any:
    """The lower factor, of the type that its argument has."""
    axes = tuple(jax.typeof(a).manual_axis_type.varying)
    return jax.lax.pcast(cholesky(a), axes, to="varying") if axes else cholesky(a)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_foreign_call_is_the_program_written_by_hand(check_vma: bool, mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh, check_vma=check_vma)
    def mapped(a: Batch) -> Batch:
        return check(typed_cholesky(a), "[n/dp,tp] m m")

    by_hand = jax.shard_map(typed_cholesky, mesh=mesh, in_specs=SPEC, out_specs=SPEC, check_vma=check_vma)
    got = expect_same_program(mapped, by_hand, matrices)
    np.testing.assert_allclose(got, np.linalg.cholesky(matrices), rtol=1e-5)


def test_what_a_foreign_call_gives_is_checked(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def wrong_size(a: Batch) -> Float[Array, "[n/dp,tp] m"]:
        return typed_cholesky(a)[:, 0, 1:]

    @typed_shard_map(mesh=mesh)
    def forgotten_axis(a: Batch) -> Float[Array, "[n/dp] m m"]:
        return typed_cholesky(a)

    with pytest.raises(ShapeError, match="return value has m=3, but argument 'a' has m=4"):
        jax.eval_shape(wrong_size, matrices)
    with pytest.raises((VaryingError, ShapeError)):
        jax.eval_shape(forgotten_axis, matrices)


def test_a_foreign_call_with_typed_forward_and_backward_is_differentiated(mesh: Mesh) -> None:
    @jax.custom_vjp
    @typed
    def factor(a: Batch) -> Batch:
        return typed_cholesky(a)

    @typed
    def forward(a: Batch) -> tuple[Batch, Batch]:
        return typed_cholesky(a), a

    @typed
    def backward(a: Batch, ct: Batch) -> tuple[Batch]:
        return jax.vjp(jnp.linalg.cholesky, a)[1](ct)

    factor.defvjp(forward, backward)
    mapped = typed_shard_map(factor, mesh=mesh, in_types=(Batch,), out_types=Batch)
    got = jax.block_until_ready(jax.jit(jax.grad(lambda a: (mapped(a) ** 3).sum()))(matrices))
    expected = jax.grad(lambda a: (jnp.linalg.cholesky(a) ** 3).sum())(matrices)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


DECOMPOSITIONS: dict[str, Callable[[Any], Any]] = {
    "cholesky": jnp.linalg.cholesky,
    "inv": jnp.linalg.inv,
    "qr": lambda a: jnp.linalg.qr(a).R,
    "eigh": lambda a: jnp.linalg.eigh(a).eigenvectors,
    "svd": lambda a: jnp.linalg.svd(a).U,
    "solve": lambda a: jnp.linalg.solve(a, a + 1),
    "triangular_solve": lambda a: jax.scipy.linalg.solve_triangular(a, a),
    "sort": lambda a: jnp.sort(a, axis=-1),
    "fft": lambda a: jnp.fft.fft(a).real,
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_what_jax_itself_calls_is_the_program_written_by_hand(name: str, mesh: Mesh) -> None:
    body = DECOMPOSITIONS[name]
    mapped = typed_shard_map(lambda a: check(body(a), Batch), mesh=mesh, in_types=(Batch,), out_types=Batch)
    expect_same_program(mapped, jax.shard_map(body, mesh=mesh, in_specs=SPEC, out_specs=SPEC), matrices)
