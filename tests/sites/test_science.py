"""Sites of numerical programs: running sums (28), a stack of operators (30)."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import numbers
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from pairs import close, mesh_of, one_program

from typedshmap import Array, Float, PyTree, typed_shard_map

# 28. A running sum over levels, whose mesh axis is read from a sharding, or is none.

LEVELS = mesh_of(z=4, x=2)


def cumsum(x: Any, axis: str | None) -> Any:
    total = jnp.cumsum(x, axis=0)
    if axis is None:
        return total
    sums = jax.lax.all_gather(total[-1], axis)
    earlier = jnp.arange(len(sums)) < jax.lax.axis_index(axis)
    return total + jnp.einsum("k,k...->...", earlier.astype(x.dtype), sums)


def axis_of(x: Any) -> Any:
    return (*x.sharding.spec, None)[0]


Field = Float[Array, "[n/lev] ..."]


def build(axis: str | None) -> Any:
    body = jax.jit(partial(cumsum, axis=axis))
    options = {"mesh": LEVELS, "axes": {"lev": axis}, "check_vma": False}
    return typed_shard_map(body, in_types=(Field,), out_types=Field, **options)


@pytest.mark.parametrize("spec", [P("z"), P(None, "x")])
@pytest.mark.parametrize("shape", [(8,), (8, 2, 3)])
def test_a_running_sum_over_levels_is_that_by_hand(spec: P, shape: tuple[int, ...]) -> None:
    x = jax.device_put(numbers(*shape, 2), NamedSharding(LEVELS, spec))
    axis = axis_of(x)
    body = jax.jit(partial(cumsum, axis=axis))
    by_hand = jax.shard_map(body, mesh=LEVELS, in_specs=P(axis), out_specs=P(axis), check_vma=False)
    close(one_program(by_hand, build(axis), x), np.cumsum(x, axis=0))


# 30. Blocks of an operator go by in a scan: its arrays, what is static of it, and a tree of vectors.

BLOCKS = mesh_of(axis=4)


class Dense(eqx.Module):
    matrix: Any
    scale: Any
    function: Any = eqx.field(static=True)
    name: str = "dense"

    def __call__(self, x: Any) -> Any:
        return self.function(self.scale * (self.matrix @ x))


def apply(
    dyn: PyTree[Float[Array, "[blocks/axis] ..."]], static: Any, x: PyTree[Float[Array, "..."]]
) -> PyTree[Float[Array, "..."]]:
    def add(total: Any, block: Any) -> Any:
        operator = eqx.combine(block, static)
        return jax.tree.map(lambda t, part: t + operator(part), total, x), None

    zero = jax.tree.map(lambda part: jax.lax.pcast(jnp.zeros_like(part), "axis", to="varying"), x)
    total, _ = jax.lax.scan(add, zero, dyn)
    return jax.tree.map(lambda part: jax.lax.psum(part, "axis"), total)


OPERATOR = Dense(numbers(8, 3, 3), numbers(8), jnp.tanh)
VECTORS = {"map": numbers(3), "mask": [numbers(3) + 1]}


def apply_by_hand(static: Any, **options: Any) -> Any:
    specs = {"in_specs": (P("axis"), P()), "out_specs": P()}
    return jax.shard_map(lambda dyn, x: apply(dyn, static, x), mesh=BLOCKS, **specs, **options)


@pytest.mark.sample(2)
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_stack_of_operators_is_that_by_hand(check_vma: bool) -> None:
    dyn, static = eqx.partition(OPERATOR, eqx.is_array)
    typed = typed_shard_map(mesh=BLOCKS, check_vma=check_vma)(apply)
    by_hand = apply_by_hand(static, check_vma=check_vma)
    got = one_program(by_hand, lambda dyn, x: typed(dyn, static, x), dyn, VECTORS)
    close(got, jax.tree.map(lambda x: np.tanh(OPERATOR.scale[:, None] * (OPERATOR.matrix @ x)).sum(0), VECTORS))


def test_the_transpose_of_a_stack_of_operators_is_that_by_hand() -> None:
    dyn, static = eqx.partition(Dense(numbers(8, 3, 3), numbers(8), lambda x: x), eqx.is_array)
    typed = typed_shard_map(mesh=BLOCKS, check_vma=False)(apply)

    def transposed(f: Any) -> Any:
        return lambda dyn, y: jax.linear_transpose(partial(f, dyn), y)(y)[0]

    by_hand = transposed(apply_by_hand(static, check_vma=False))
    by_ours = transposed(lambda dyn, x: typed(dyn, static, x))
    got = one_program(by_hand, by_ours, *jax.tree.map(jnp.asarray, (dyn, numbers(3))))
    close(got, np.einsum("k,kij,i->j", numbers(8), numbers(8, 3, 3), numbers(3)))
