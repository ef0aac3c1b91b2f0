"""Where JAX says that an operation comes from, and how deep the stack is that it notes with each."""

import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import typedshmap
from typedshmap import Array, Float, all_gather, einsum, typed, typed_jit, typed_shard_map

OURS = os.path.dirname(os.path.abspath(typedshmap.__file__)) + os.sep
X, W = Float[Array, "[b/dp] m"], Float[Array, "[m/dp] f"]
x, w = np.ones((8, 4), np.float32), np.ones((4, 6), np.float32)
depths: dict[str, int] = {}


def noted(where: str) -> None:
    """Note how many frames of the library are on the stack."""
    frame, depths[where] = sys._getframe(), 0
    while frame is not None:
        depths[where] += frame.f_code.co_filename.startswith(OURS)
        frame = frame.f_back


@typed
def gathered(w: W) -> Float[Array, "m f"]:
    noted("a helper")
    return all_gather(w, "[m/dp] f -> m f")


def product(x: X, w: W) -> Float[Array, "[b/dp] f"]:
    noted("a body")
    return einsum(x, jnp.tanh(gathered(w)), "[b/dp] m, m f -> [b/dp] f")


@pytest.mark.parametrize("around", [lambda f: f, lambda f: jax.grad(lambda *args: f(*args).sum())])
def test_operations_come_from_the_users_lines(mesh: Mesh, around: Callable[..., Any]) -> None:
    step = around(typed_shard_map(product, mesh=mesh))
    text = jax.jit(lambda *args: step(*args)).lower(x, w).as_text(debug_info=True)
    assert f"/{os.path.basename(__file__)}" in text  # of the folder, all that is not ASCII is escaped
    assert OURS not in text


def test_few_frames_stand_between_a_function_and_its_call(mesh: Mesh) -> None:
    step = typed_shard_map(product, mesh=mesh)
    jax.eval_shape(lambda *args: step(*args), x, w)
    assert (depths["a body"], depths["a helper"]) == (2, 3)


def test_few_frames_stand_between_a_function_and_its_compiled_call(mesh: Mesh) -> None:
    def doubled(x: X) -> X:
        noted("what is compiled")
        return x * 2

    jax.block_until_ready(typed_jit(doubled, mesh=mesh)(x))
    assert depths["what is compiled"] == 4
