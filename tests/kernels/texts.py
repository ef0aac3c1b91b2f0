"""What the tests of kernels share: the text of a program, and a comparison of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def lowered(f: Callable[..., Any], *args: Any, platform: str = "cpu") -> str:
    """The StableHLO of a program for a platform, under a name that is the same for every function."""

    def program(*args: Any) -> Any:
        return f(*args)

    return jax.jit(program).trace(*args).lower(lowering_platforms=(platform,)).as_text()


def expect_same_program(typed: Callable[..., Any], by_hand: Callable[..., Any], *args: Any) -> Any:
    """Expect one text and one result of both; the result."""
    assert lowered(typed, *args) == lowered(by_hand, *args)
    got = jax.block_until_ready(jax.jit(typed)(*args))
    jax.tree.map(np.testing.assert_array_equal, got, jax.block_until_ready(jax.jit(by_hand)(*args)))
    return got
