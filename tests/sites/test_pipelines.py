"""Sites of a pipelined model: a shift between stages (2), and a batch that is split and joined (6)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from pairs import mesh_of, numbers, one_program

from typedshmap import Array, Float, typed_shard_map

STAGES = mesh_of(stage=4, tp=2)
BATCH = mesh_of(data=2, fsdp=2, expert=2)
Act = Float[Array, "[_/data,fsdp,expert] s d"]


# 2. An array of any rank goes on to the next stage.


def rotate(x: Float[Array, "[stages/stage] ..."]) -> Float[Array, "[stages/stage] ..."]:
    last = jax.lax.axis_size("stage") - 1
    return jax.lax.ppermute(x, "stage", [(i, i + 1) for i in range(last)] + [(last, 0)])


@pytest.mark.parametrize("shape", [(4,), (4, 3), (8, 2, 3, 1)])
def test_a_shift_between_stages_is_that_by_hand(shape: tuple[int, ...]) -> None:
    spec = P("stage")
    by_hand = jax.shard_map(rotate, mesh=STAGES, in_specs=spec, out_specs=spec)
    x = numbers(*shape)
    got = one_program(by_hand, typed_shard_map(mesh=STAGES)(rotate), x)
    np.testing.assert_array_equal(got, np.roll(x, shape[0] // 4, axis=0))


# 6. A batch over three axes, split into a list and joined again.


def split_body(x: Any, factor: int) -> list[Any]:
    return jnp.split(x, factor)


def join_body(parts: list[Any], factor: int) -> Any:
    assert len(parts) == factor
    return jnp.concatenate(parts)  # typedshmap: ignore[own-part]


split = typed_shard_map(partial(split_body, factor=2), mesh=BATCH, in_types=(Act,), out_types=list[Act])
join = typed_shard_map(partial(join_body, factor=2), mesh=BATCH, in_types=(list[Act],), out_types=Act)


def test_a_batch_that_is_split_is_that_by_hand() -> None:
    spec = P(("data", "fsdp", "expert"))
    by_hand = jax.shard_map(partial(split_body, factor=2), mesh=BATCH, in_specs=spec, out_specs=[spec] * 2)
    assert [part.shape for part in one_program(by_hand, split, numbers(16, 3, 2))] == [(8, 3, 2)] * 2


def test_a_batch_that_is_joined_is_that_by_hand() -> None:
    spec = P(("data", "fsdp", "expert"))
    by_hand = jax.shard_map(partial(join_body, factor=2), mesh=BATCH, in_specs=([spec] * 2,), out_specs=spec)
    assert one_program(by_hand, join, [numbers(8, 3, 2)] * 2).shape == (16, 3, 2)
