"""A site of attention (12): query heads as two dims; the axes of the heads go to either, or to none."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import numbers
from jax.sharding import PartitionSpec as P
from pairs import close, mesh_of, one_program, whole_numbers

from typedshmap import Array, Float, Int, typed_shard_map

SPLIT = mesh_of(data=2, x=2, y=2)
ARGS = (
    numbers(4, 2, 4, 3, 5),
    numbers(4, 2, 6, 5),
    numbers(4, 2, 6, 5),
    whole_numbers(4, 3, below=2),
    whole_numbers(4, below=3),
)
SCALE = np.abs(numbers(4, 2, 6))


def attend_heads(
    q: Float[Array, "[b/batch] [g/kv] [r/rep] s d"],
    k: Float[Array, "[b/batch] [g/kv] t d"],
    v: Float[Array, "[b/batch] [g/kv] t d"],
    q_seg: Int[Array, "[b/batch] s"],
    starts: Int[Array, "[b/batch]"],
    k_scale: Float[Array, "[b/batch] [g/kv] t"] | None = None,
) -> Float[Array, "[b/batch] [g/kv] [r/rep] s d"]:
    scores = jnp.einsum("bgrsd,bgtd->bgrst", q, k)
    scores = scores if k_scale is None else scores * k_scale[:, :, None, None]
    seen = jnp.arange(k.shape[2]) >= starts[:, None]
    seen = seen[:, None, None, None] & (q_seg > 0)[:, None, None, :, None]
    return jnp.einsum("bgrst,bgtd->bgrsd", jax.nn.softmax(jnp.where(seen, scores, -1e30)), v)


def heads_by_hand(batch: Any, kv: Any, rep: Any, scaled: bool) -> Any:
    keys = P(batch, kv, None, None)
    specs = (P(batch, kv, rep), keys, keys, P(batch, None), P(batch))
    specs = (*specs, P(batch, kv, None)) if scaled else specs
    return jax.shard_map(attend_heads, mesh=SPLIT, in_specs=specs, out_specs=P(batch, kv, rep), check_vma=False)


def heads_typed(batch: Any, kv: Any, rep: Any) -> Any:
    axes = {"batch": batch, "kv": kv, "rep": rep}
    return typed_shard_map(mesh=SPLIT, axes=axes, check_vma=False)(attend_heads)


@pytest.mark.sample(5)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    ("batch", "kv", "rep"),
    [("data", "x", "y"), ("data", None, ("x", "y")), (None, "x", None), (("data", "x"), "y", None)],
)
def test_heads_split_between_two_dims_are_those_by_hand(batch: Any, kv: Any, rep: Any, scaled: bool) -> None:
    args = (*ARGS, SCALE) if scaled else ARGS
    got = one_program(heads_by_hand(batch, kv, rep, scaled), heads_typed(batch, kv, rep), *args)
    close(got, attend_heads(*map(jnp.asarray, args)))
