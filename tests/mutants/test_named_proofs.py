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


def experts(is_right: bool) -> Any:
    @typed_shard_map
    def layer(x: Tokens, router: Float32[Array, "model experts"], w: Experts) -> Tokens:
        """Every token goes to all experts, with its gate; if wrong, to those of the next shard."""
        gates, count = jax.nn.softmax(x @ router), jax.lax.axis_size("ep")
        arrived = jax.lax.all_to_all(jnp.einsum("te,tm->etm", gates, x), "ep", 0, 1, tiled=True)
        if not is_right:
            w = jax.lax.ppermute(w, "ep", [(at, (at + 1) % count) for at in range(count)])
        done = jnp.tanh(jnp.einsum("etm,emn->etn", arrived, w))
        return jax.lax.all_to_all(done, "ep", 1, 0, tiled=True).sum(0)

    return layer


def gathered(is_right: bool) -> Any:
    @typed_shard_map
    def layer(x: Rows, up: Float32[Array, "[model/dp] ff"], down: Float32[Array, "ff [model/dp]"]) -> Rows:
        """Weights at rest in parts, gathered where they are used; if wrong, over the size of the shard's part."""
        h = jax.nn.gelu(x @ jax.lax.all_gather(up, "dp", tiled=True))
        y = h @ jax.lax.all_gather(down, "dp", axis=1, tiled=True)
        return x + y / (size("model") if is_right else len(up))

    return layer


def embedded(is_right: bool) -> Any:
    @typed_shard_map
    def rows(table: Float32[Array, "[vocab/tp] model"], ids: Int32[Array, "[batch/dp]"]) -> Rows:
        """Each shard looks up its own ids; if wrong, and the first of the next shard."""
        own = ids - jax.lax.axis_index("tp") * len(table)
        here = (own >= 0) & ((own < len(table)) if is_right else (own <= len(table)))
        return jax.lax.psum(jnp.where(here[:, None], table[jnp.where(here, own, 0)], 0), "tp")

    return rows


@pytest.mark.parametrize("made", [experts, gathered, embedded])
@pytest.mark.parametrize("is_right", [True, slow(False)])
def test_the_right_program_is_proved_and_the_wrong_one_refuted(made: Any, is_right: bool) -> None:
    assert prove(made(is_right)).verdict == ("proved" if is_right else "refuted")


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
