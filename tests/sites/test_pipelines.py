"""Sites of a pipelined model: a shift between stages (2), and a batch that is split and joined (6)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from pairs import mesh_of, message, numbers, one_program, said

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


def test_a_shift_of_stages_that_do_not_divide_names_them() -> None:
    assert said(typed_shard_map(rotate, mesh=STAGES), numbers(6, 3)) == [
        "ShapeError: rotate: argument 'x' has stages=6, which does not divide over 'stage' (4 shards)",
        "Hint: make stages a multiple of 4, or pad it and mask the rest",
    ]


def test_a_shift_without_the_dim_of_stages_names_the_argument() -> None:
    first = message(typed_shard_map(rotate, mesh=STAGES), np.float32(1)).splitlines()[0]
    assert first == "ShapeError: rotate: argument 'x' has 0 dims, but its hint has at least 1"


def test_a_sum_over_the_stages_of_one_shard_is_no_sum_over_all() -> None:
    @typed_shard_map(mesh=STAGES)
    def total(x: Float[Array, "[stages/stage] ..."]) -> Float[Array, "..."]:
        return x.sum(0)

    assert said(total, numbers(8, 3)) == [
        "VaryingError: total: return value varies over 'stage', which its hint does not mention",
        "Hint: the sum over stages (sharded over 'stage') leaves partial sums: psum over 'stage'",
    ]


def test_a_result_that_lost_its_stages_is_reported_with_both_sizes() -> None:
    @typed_shard_map(mesh=STAGES)
    def last(x: Float[Array, "[stages/stage] ..."]) -> Float[Array, "[stages/stage] ..."]:
        return x[-1:]

    assert said(last, numbers(8, 3)) == [
        "ShapeError: last: return value has stages=4 (1 per shard over 'stage'), but argument 'x' has stages=8"
    ]


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


def test_a_batch_that_was_split_is_joined_as_it_was() -> None:
    x = numbers(16, 3, 2)
    np.testing.assert_array_equal(jax.jit(lambda x: join(split(x)))(x), x)


def test_a_batch_that_does_not_divide_over_three_axes_names_them() -> None:
    assert said(split, numbers(12, 3, 2)) == [
        (
            "ShapeError: split_body: argument 'x' has size 12 in dim 0, which does not divide over 'data', 'fsdp', "
            "'expert' (8 shards)"
        ),
        "Hint: make dim 0 a multiple of 8, or pad it and mask the rest",
    ]


def test_an_element_of_the_list_that_differs_is_named() -> None:
    assert said(join, [numbers(8, 3, 2), numbers(8, 3, 4)]) == [
        "ShapeError: join_body: argument 'parts[1]' has d=4, but argument 'parts[0]' has d=2"
    ]


def test_a_tuple_in_the_place_of_the_list_is_reported() -> None:
    first = message(join, (numbers(8, 3, 2),) * 2).splitlines()[0]
    assert first == "StructureError: join_body: argument 'parts' is a tuple, but its hint says list"
