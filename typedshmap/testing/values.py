"""Random values for the arrays that hints declare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np

from ..hints.array import ArrayHint
from ..notation.nodes import Dim, Name
from ..placement.structs import names_of
from .sizes import Chosen


@dataclass(frozen=True, slots=True)
class Slot:
    """One array that is drawn.

    Attributes:
      shape: its global shape.
      dtype: its dtype.
      below: what an integer is less than.
    """

    shape: tuple[int, ...]
    dtype: Any
    below: int


def draw_value(slot: Slot, seed: Sequence[int]) -> Any:
    """A random global array on the host: normal floats, small integers, keys.

    Args:
      slot: what it is.
      seed: what it is drawn from, and from nothing else.
    """
    if jax.numpy.issubdtype(slot.dtype, jax.dtypes.prng_key):
        return _keys(slot.shape, seed)
    rng = np.random.default_rng(seed)
    match _kind(slot.dtype):
        case "floating":
            return rng.standard_normal(slot.shape).astype(slot.dtype)
        case "complex":
            return (rng.standard_normal(slot.shape) + 1j * rng.standard_normal(slot.shape)).astype(slot.dtype)
        case "boolean":
            return rng.integers(0, 2, slot.shape).astype(bool)
        case _:
            return rng.integers(0, _highest(slot), slot.shape).astype(slot.dtype)


def _kind(dtype: Any) -> str:
    jnp = jax.numpy
    for kind, name in ((jnp.floating, "floating"), (jnp.complexfloating, "complex"), (jnp.bool_, "boolean")):
        if jnp.issubdtype(dtype, kind):
            return name
    return "integer"


def _highest(slot: Slot) -> int:
    return max(1, min(slot.below, int(jax.numpy.iinfo(slot.dtype).max)))


def key_of(seed: Sequence[int]) -> jax.Array:
    """A key that is a seed's own."""
    state = np.random.SeedSequence(seed).generate_state(1)
    return jax.random.key(int(state[0]))


def _keys(shape: tuple[int, ...], seed: Sequence[int]) -> jax.Array:
    key = key_of(seed)
    return jax.random.split(key, prod(shape)).reshape(shape) if shape else key


def bound_of(hint: ArrayHint, others: Iterable[ArrayHint], chosen: Chosen) -> int:
    """What integers are drawn below, so that they may be positions in whichever array they index.

    That is the smallest of the dims that they may count: in an array that shares dims with them (logits and their
    labels) its last one, in one that shares none (a table) its first one.
    """
    own = set(names_of([hint]))
    counted = {name for other in others if other is not hint and (name := _counted(other, own)) is not None}
    sizes = [chosen[name] for name in counted if isinstance(chosen.get(name), int)]
    return min(sizes, default=2)


def _counted(other: ArrayHint, own: set[str]) -> str | None:
    names = [dim.size.name for dim in other.spec.dims if isinstance(dim, Dim) and isinstance(dim.size, Name)]
    free = [name for name in names if name not in own]
    if not free or len(other.spec.dims) < 2:
        return None
    return free[-1] if len(free) < len(names) else free[0]
