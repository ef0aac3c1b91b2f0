"""Random values for the arrays that hints declare, drawn on the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from ..hints.array_hint import ArrayHint
from ..notation.spec import Dim, Name
from ..placement.structs import names_of
from .sizes import SizeValues


def draw_value(shape: tuple[int, ...], dtype: Any, below: int, seed: Sequence[int]) -> Any:
    """A random global array on the host: normal floats, small integers, keys.

    Args:
      shape: its global shape.
      dtype: its dtype.
      below: the bound of integers, which are less.
      seed: what it is drawn from, and from nothing else.
    """
    jnp = jax.numpy
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        key = key_of(seed)
        return jax.random.split(key, prod(shape)).reshape(shape) if shape else key
    rng = np.random.default_rng(seed)
    if jnp.issubdtype(dtype, jnp.floating):
        return rng.standard_normal(shape).astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if jnp.issubdtype(dtype, jnp.bool_):
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, max(1, min(below, int(jnp.iinfo(dtype).max))), shape).astype(dtype)


def key_of(seed: Sequence[int]) -> jax.Array:
    """A key that only this seed gives."""
    return jax.random.key(int(np.random.SeedSequence(seed).generate_state(1)[0]))


def bound_of(hint: ArrayHint, others: Iterable[ArrayHint], sizes: SizeValues) -> int:
    """The bound of drawn integers, so that they may be positions in whichever array they index.

    It is the smallest dim that they may index: in an array that shares dims with them (logits and their labels) its
    last one, in an array that shares none (a table) its first one.
    """
    own, bounds = names_of([hint]), list[int]()
    for other in others:
        names = [dim.size.name for dim in other.spec.dims if isinstance(dim, Dim) and isinstance(dim.size, Name)]
        free = [name for name in names if name not in own]
        if other is not hint and free and len(other.spec.dims) > 1:
            size = sizes.get(free[-1] if len(free) < len(names) else free[0])
            bounds += [size] if isinstance(size, int) else []
    return min(bounds, default=2)
