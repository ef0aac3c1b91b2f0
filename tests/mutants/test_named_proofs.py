"""What is proved of larger programs: experts, gathered weights, an embedding, the examples."""

import os
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from mutation import Program, function_of
from tiers import slow

from typedshmap import Array, Float32, Int32, size, typed_shard_map
from typedshmap.testing import prove

Tokens = Float32[Array, "[tokens/ep] model"]
Experts = Float32[Array, "[experts/ep] model model"]
Rows = Float32[Array, "[batch/dp] model"]


@typed_shard_map
def experts(x: Tokens, router: Float32[Array, "model experts"], w: Experts) -> Tokens:
    """Every token goes to all experts, with its gate."""
    gates = jax.nn.softmax(x @ router)
    sent = jnp.einsum("te,tm->etm", gates, x)
    arrived = jax.lax.all_to_all(sent, "ep", 0, 1, tiled=True)
    done = jnp.tanh(jnp.einsum("etm,emn->etn", arrived, w))
    return jax.lax.all_to_all(done, "ep", 1, 0, tiled=True).sum(0)


@typed_shard_map
def experts_in_another_order(x: Tokens, router: Float32[Array, "model experts"], w: Experts) -> Tokens:
    """What came from one shard is sent on to the experts of the next."""
    gates, count = jax.nn.softmax(x @ router), jax.lax.axis_size("ep")
    arrived = jax.lax.all_to_all(jnp.einsum("te,tm->etm", gates, x), "ep", 0, 1, tiled=True)
    w = jax.lax.ppermute(w, "ep", [(at, (at + 1) % count) for at in range(count)])
    done = jnp.tanh(jnp.einsum("etm,emn->etn", arrived, w))
    return jax.lax.all_to_all(done, "ep", 1, 0, tiled=True).sum(0)


@typed_shard_map
def gathered(x: Rows, up: Float32[Array, "[model/dp] ff"], down: Float32[Array, "ff [model/dp]"]) -> Rows:
    """Weights at rest in parts, gathered where they are used."""
    h = jax.nn.gelu(x @ jax.lax.all_gather(up, "dp", tiled=True))
    return x + h @ jax.lax.all_gather(down, "dp", axis=1, tiled=True) / size("model")


@typed_shard_map
def gathered_by_halves(x: Rows, up: Float32[Array, "[model/dp] ff"], down: Float32[Array, "ff [model/dp]"]) -> Rows:
    """The size of the shard's part, not of the dim."""
    h = jax.nn.gelu(x @ jax.lax.all_gather(up, "dp", tiled=True))
    return x + h @ jax.lax.all_gather(down, "dp", axis=1, tiled=True) / len(up)


@typed_shard_map
def embedded(table: Float32[Array, "[vocab/tp] model"], ids: Int32[Array, "[batch/dp]"]) -> Rows:
    first = jax.lax.axis_index("tp") * len(table)
    own = ids - first
    here = (own >= 0) & (own < len(table))
    return jax.lax.psum(jnp.where(here[:, None], table[jnp.where(here, own, 0)], 0), "tp")


@typed_shard_map
def embedded_twice(table: Float32[Array, "[vocab/tp] model"], ids: Int32[Array, "[batch/dp]"]) -> Rows:
    """An id that two shards have."""
    own = ids - jax.lax.axis_index("tp") * len(table)
    here = (own >= 0) & (own <= len(table))
    return jax.lax.psum(jnp.where(here[:, None], table[jnp.where(here, own, 0)], 0), "tp")


@pytest.mark.parametrize(
    ("function", "verdict"),
    [
        (experts, "proved"), slow((experts_in_another_order, "refuted")),
        (gathered, "proved"), slow((gathered_by_halves, "refuted")),
        (embedded, "proved"), slow((embedded_twice, "refuted")),
    ],
)  # fmt: skip
def test_the_right_program_is_proved_and_the_wrong_one_refuted(function: Any, verdict: str) -> None:
    assert prove(function).verdict == verdict


@pytest.mark.parametrize(
    ("example", "function"),
    [
        ("stencil", "simulate"), ("fft", "forward"), ("fft", "backward"), slow(("fft", "solve")),
        slow(("transformer", "loss")), slow(("vocabulary", "loss")),
    ],
)  # fmt: skip
def test_the_examples_are_proved(example: str, function: str) -> None:
    with mock.patch.dict(os.environ):
        found = prove(function_of(Program(example, f"examples/{example}.py", function, ())))
    assert found.verdict == "proved"
