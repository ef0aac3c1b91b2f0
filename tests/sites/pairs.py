"""What the tests of call sites share: a mesh, whole numbers, one program written twice, and whole messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from lines import unplaced

from typedshmap import TypedShmapError


def mesh_of(kind: AxisType = AxisType.Auto, /, **axes: int) -> Mesh:
    """A mesh with these axes on the first of the eight devices."""
    devices = np.array(jax.devices()[: math.prod(axes.values())])
    return Mesh(devices.reshape(*axes.values()), tuple(axes), axis_types=(kind,) * len(axes))


def whole_numbers(*shape: int, below: int) -> np.ndarray:
    """Integers from 0, always the same."""
    return np.random.default_rng(sum(shape)).integers(below, size=shape).astype(np.int32)


def lowered(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A program lowered under a name that is the same for every function."""

    def program(*args: Any) -> Any:
        return function(*args)

    return jax.jit(program).lower(*args)


def one_program(by_hand: Callable[..., Any], typed: Callable[..., Any], *args: Any) -> Any:
    """Expect both to lower to one text; what that computes."""
    expected, got = lowered(by_hand, args), lowered(typed, args)
    assert got.as_text() == expected.as_text()
    return jax.block_until_ready(got.compile()(*args))


def close(got: Any, expected: Any) -> None:
    """Expect two pytrees to have one structure, and numbers that differ by no more than rounding."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), got, expected)


def message(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The class and the whole message of our error that a call raises while it is traced."""
    with pytest.raises(TypedShmapError) as caught:
        jax.eval_shape(lambda: function(*args, **kwargs))
    return f"{type(caught.value).__name__}: {unplaced(caught.value)}"


def said(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """The first line of that message, and its cure; messages in full are in the tests of calls and in the docs."""
    first, *lines = message(function, *args, **kwargs).splitlines()
    return [first, *(line for line in lines if line.startswith("Hint: "))]


def text(block: str) -> str:
    """A message as it is written in a test, without its indent."""
    return dedent(block).strip("\n")
