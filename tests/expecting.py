"""What tests share: meshes, numbers, an error expected by its first line, and a call that is only traced."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from typedshmap import TypedShmapError


def mesh_of(*shape: int, kind: AxisType = AxisType.Auto, names: tuple[str, ...] = ("dp", "tp")) -> Mesh:
    """A mesh of that shape, of the first devices."""
    return Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), names, axis_types=(kind,) * len(names))


def numbers(*shape: int) -> np.ndarray:
    """An array of that shape, always the same."""
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@contextmanager
def fails(error: type[TypedShmapError], line: str) -> Generator[None]:
    """Expect an error of just this class, whose message has just this first line."""
    with pytest.raises(error) as caught:
        yield
    assert type(caught.value).__name__ == error.__name__
    assert str(caught.value).splitlines()[0] == line


def traced(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function with arrays, but compute nothing: the types of what it returns."""
    return jax.eval_shape(lambda *arrays: function(*arrays), *args)


def same(got: Any, expected: Any) -> None:
    """Expect two pytrees to have one structure, and equal numbers."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), jax.block_until_ready(got), expected
    )
