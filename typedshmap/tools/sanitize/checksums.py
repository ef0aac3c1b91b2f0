"""A checksum of an array's bits, the same on all devices that hold the same bits, whatever its dtype.

It is a sum of 32-bit words modulo 2**32, which does not depend on the order of summation. Before, each word is mixed
with its index, by invertible steps: two arrays that differ in one element always have different checksums; arrays that
differ in more elements have equal checksums with probability 2**-32, also if elements are only permuted."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# The constants of the last steps of MurmurHash3, which mix all bits; and the golden ratio.
_FIRST, _SECOND, _PLACES = 0x85EBCA6B, 0xC2B2AE35, 0x9E3779B1


def checksum(x: Any) -> Any:
    """The checksum of an array, a ``uint32`` of rank 0; in a manual region, of the shard."""
    return sum((_mixed_sum(words, part) for part, words in enumerate(_words(x))), start=jnp.uint32(0))


def _words(x: Any) -> list[Any]:
    """The bits of an array, in arrays of unsigned integers of at most 32 bits."""
    dtype = jnp.asarray(x).dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return _words(jax.random.key_data(x))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return _words(lax.real(x)) + _words(lax.imag(x))
    if dtype == jnp.bool_:
        return [x]
    bits = jnp.iinfo(dtype).bits if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo(dtype).bits
    # Two words for each element of 64 bits, in a new dim.
    return [lax.bitcast_convert_type(x, jnp.dtype(f"uint{min(int(bits), 32)}"))]


def _mixed_sum(words: Any, part: int) -> Any:
    words = words.astype(jnp.uint32) ^ _places(words.shape, part)
    words = (words ^ (words >> np.uint32(16))) * np.uint32(_FIRST)
    words = (words ^ (words >> np.uint32(13))) * np.uint32(_SECOND)
    return jnp.sum(words ^ (words >> np.uint32(16)), dtype=jnp.uint32)


def _places(shape: tuple[int, ...], part: int) -> Any:
    """A number for each index of an array, computed per dim: a flat iota would need a reshape."""
    numbers = jnp.uint32((part * _FIRST) % 2**32)
    for dim in range(len(shape)):
        stride = np.uint32(prod(shape[dim + 1 :]) * _PLACES % 2**32)
        numbers = numbers + lax.broadcasted_iota(jnp.uint32, shape, dim) * stride
    return numbers
