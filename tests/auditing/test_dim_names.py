"""The names that a function's source gives to dims."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float

from typedshmap import einsum, rearrange
from typedshmap.tools.audit.dim_names import dim_names

BD, DF, BF = ("b", "d"), ("d", "f"), ("b", "f")


def by_shape(x):
    b, d = x.shape
    return x.reshape(b * d)


def by_einsum(x, w):
    return jax.nn.relu(jnp.einsum("bd,df->bf", x, w))


def returned(x, w):
    y = jnp.einsum("bd, df -> bf", x, w)
    return y, x, y.sum()


def by_patterns(x, w):
    h = rearrange(x, "b d -> d b")
    return einsum(h, w, "d b, d f -> b f")


def of_items(params, x):
    if x is not None:
        b, d = params["w"][0].shape
        x = x + b * d
    return jnp.einsum("bd->b", params["w"][0])


def assigned_anew(x):
    x, y = x.T, x
    b, d = x.shape
    return b * d + y


def first_wins(x):
    b, d = x.shape
    rows, columns = x.shape
    return b * d * rows * columns


def of_others(x):
    def inner(x):
        b, d = x.shape
        return b * d

    return inner(x.T)


def without_names(x, w):
    _, (*rest,) = x.shape, w.shape
    return jnp.einsum("...d,df->...f", x, w), rest


def annotated(x, w):
    return x @ w


annotated.__annotations__ = {"x": Float[Array, "b d"], "w": Float[Array, "d ..."], "return": Any}

FOUND: dict[str, tuple[Callable[..., Any], dict[str, tuple[str, ...]]]] = {
    "the shape": (by_shape, {"x": BD}),
    "einsum": (by_einsum, {"x": BD, "w": DF}),
    "what is returned": (returned, {"x": BD, "w": DF, "return[0]": BF, "return[1]": BD}),
    "patterns": (by_patterns, {"x": BD, "w": DF, "return": BF}),
    "items": (of_items, {"params['w'][0]": BD, "return": ("b",)}),
    "what is assigned anew": (assigned_anew, {}),
    "two names": (first_wins, {"x": BD}),
    "a function within": (of_others, {}),
    "an ellipsis": (without_names, {"w": DF}),
    "annotations of jaxtyping": (annotated, {"x": BD}),
    "a lambda": (lambda x: jnp.einsum("bd->b", x), {}),
    "one without source": (partial(jnp.add, 1), {}),
}


@pytest.mark.parametrize("name", FOUND)
def test_names(name: str) -> None:
    function, names = FOUND[name]
    assert dim_names(function) == names
