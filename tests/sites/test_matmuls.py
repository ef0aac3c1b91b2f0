"""Sites of matmuls: a sum that may be deferred (20), and groups of rows (34)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import numbers
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from pairs import close, mesh_of, message, one_program, said

from typedshmap import Array, Float, Int32, typed, typed_shard_map

MESH = mesh_of(data=2, model=4)
EXPLICIT = mesh_of(AxisType.Explicit, data=2, model=4)

# 20. The sum over the contracted dim is taken here, or left to the caller, as a flag says.

X, W = Float[Array, "[b/data] ... [k/in_]"], Float[Array, "[k/in_] [n/out]"]
SUMMED, OWED = Float[Array, "[b/data] ... [n/out]"], Float[Array, "[b/data] ... [n/out] +in_"]
AXES = {"in_": "model", "out": None}


def matmul(x: X, w: W, *, over: str | None) -> Any:
    y = jnp.einsum("...k,kn->...n", x, w)
    return y if over is None else jax.lax.psum(y, over)


def matmul_typed(over: str | None, result: Any, **options: Any) -> Any:
    options = {"mesh": MESH, "axes": AXES, **options}
    return typed_shard_map(partial(matmul, over=over), out_types=result, **options)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("shape", [(4, 8), (4, 3, 8), (4, 3, 1, 8)])
def test_a_matmul_that_is_summed_is_that_by_hand(shape: tuple[int, ...], check_vma: bool) -> None:
    leading = ("data", *(None,) * (len(shape) - 2))
    specs = {"in_specs": (P(*leading, "model"), P("model", None)), "out_specs": P(*leading, None)}
    by_hand = jax.shard_map(partial(matmul, over="model"), mesh=MESH, check_vma=check_vma, **specs)
    x, w = numbers(*shape), numbers(8, 6)
    got = one_program(by_hand, matmul_typed("model", SUMMED, check_vma=check_vma), x, w)
    close(got, x @ w)


def placed() -> tuple[Any, Any]:
    specs = P("data", "model"), P("model", None)
    return jax.device_put((numbers(4, 8), numbers(8, 6)), tuple(NamedSharding(EXPLICIT, spec) for spec in specs))


def unreduced(x: Any, w: Any) -> Any:
    return jax.lax.pcast(matmul(x, w, over=None), "model", to="unreduced")


def test_a_sum_that_is_deferred_on_an_explicit_mesh_is_that_by_hand() -> None:
    specs = {"in_specs": (P("data", "model"), P("model", None)), "out_specs": P("data", None, unreduced={"model"})}
    by_hand = jax.shard_map(unreduced, mesh=EXPLICIT, **specs)
    typed = matmul_typed(None, OWED, mesh=EXPLICIT)

    def summed(product: Any) -> Any:
        return lambda x, w: jax.reshard(product(x, w), NamedSharding(EXPLICIT, P("data", None)))

    with jax.set_mesh(EXPLICIT):
        got = one_program(jax.jit(summed(by_hand)), jax.jit(summed(typed)), *placed())
    close(got, numbers(4, 8) @ numbers(8, 6))


def test_a_sum_that_is_deferred_to_the_caller_in_the_region_is_that_by_hand() -> None:
    @typed
    def deferred(
        x: Float[Array, "[b/data] ... [k/model]"], w: Float[Array, "[k/model] n"]
    ) -> Float[Array, "[b/data] ... n +model"]:
        return matmul(x, w, over=None)

    def two(x: Any, w: Any) -> Any:
        return jax.lax.psum(deferred(x, w) + deferred(2 * x, w), "model")

    specs = {"in_specs": (P("data", "model"), P("model", None)), "out_specs": P("data", None)}
    types = {"in_types": (Float[Array, "[b/data] [k/model]"], Float[Array, "[k/model] n"])}
    by_hand = jax.shard_map(
        lambda x, w: jax.lax.psum(unreduced(x, w) + unreduced(2 * x, w), "model"), mesh=MESH, **specs
    )
    typed_two = typed_shard_map(two, mesh=MESH, out_types=Float[Array, "[b/data] n"], **types)
    close(one_program(by_hand, typed_two, numbers(4, 8), numbers(8, 6)), 3 * numbers(4, 8) @ numbers(8, 6))


def test_a_sum_that_was_deferred_and_is_not_declared_is_reported() -> None:
    assert said(matmul_typed(None, SUMMED), numbers(4, 8), numbers(8, 6)) == [
        "VaryingError: matmul: return value varies over 'model', which its hint does not mention",
        "Hint: the contraction over k (sharded over 'model') leaves partial sums: psum over 'model'",
    ]


def test_a_result_declared_as_unreduced_whose_sum_was_taken_is_reported() -> None:
    first = message(matmul_typed("model", OWED, mesh=EXPLICIT.abstract_mesh), *placed()).splitlines()[0]
    assert first == (
        "VaryingError: matmul: return value is the same on every shard of 'model', but its hint says '+in_'"
    )


# 34. Rows in groups, each with a matrix of its own.

GROUPS = mesh_of(data=1, model=4)
GMM = (numbers(10, 8), numbers(3, 8, 5), np.array([4, 0, 6], np.int32))


def gmm(
    lhs: Float[Array, "[t/data] [k/model]"],
    rhs: Float[Array, "g [k/model] n"],
    group_sizes: Int32[Array, "g"],
    *,
    reduce: bool,
) -> Float[Array, "[t/data] n"]:
    y = jax.lax.ragged_dot(lhs, rhs, group_sizes)
    return jax.lax.psum(y, "model") if reduce else y


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_grouped_matmul_is_that_by_hand(check_vma: bool) -> None:
    specs = {"in_specs": (P("data", "model"), P(None, "model", None), P(None)), "out_specs": P("data", None)}
    options = {"mesh": GROUPS, "check_vma": check_vma}
    by_hand = jax.shard_map(partial(gmm, reduce=True), **specs, **options)
    got = one_program(by_hand, typed_shard_map(partial(gmm, reduce=True), **options), *GMM)
    lhs, rhs, _ = GMM
    close(got, np.concatenate([lhs[:4] @ rhs[0], lhs[4:] @ rhs[2]]))
