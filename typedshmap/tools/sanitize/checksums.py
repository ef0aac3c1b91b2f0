"""Compare shards on the devices: by checksums, one small exchange per set of mesh axes, and more only if two differ.

Each shard gets its neighbour's checksums along the axes: if no two neighbours differ, no shards differ. A number of the
sender is added to its checksums, since XLA removes an exchange of values that it can prove to be replicated.

A checksum is a sum of 32-bit words modulo 2**32, which does not depend on the order of summation. Each word is first
mixed with its index, by invertible steps: two arrays that differ in one element always have different checksums; arrays
that differ in more elements, also by a permutation, have equal checksums with probability 2**-32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import _jax

# The constants of the last steps of MurmurHash3, which mix all bits; and the golden ratio.
_FIRST, _SECOND, _GOLDEN = map(np.uint32, (0x85EBCA6B, 0xC2B2AE35, 0x9E3779B1))


def compare_shards(
    shards: Sequence[Any],
    agreeing: Sequence[tuple[str, ...]],
    manual: tuple[str, ...],
    has_vma: bool,
    report: Callable[[Any], None] | None = None,
) -> Any:
    """Compare shards over the axes over which each is replicated; without ``report``, return checksums, or zeros."""
    plain = (_jax.casts.drop_reduced(lax.stop_gradient(shard)) for shard in shards)
    sums = jnp.stack([_varying(checksum(shard), manual, has_vma) for shard in plain])
    differs = jnp.zeros((), bool)
    for axes in dict.fromkeys(agreeing):
        compared = sums[np.array([at for at, value_axes in enumerate(agreeing) if value_axes == axes])]
        differs |= (compared != _of_neighbour(compared, axes)).any()
    is_different = lax.pmax(_varying(differs, manual, has_vma).astype(jnp.int32), manual) > 0
    numbers = _GOLDEN * np.arange(_size(manual), dtype=np.uint32)

    def gather(sums: Any) -> Any:
        sent = sums + lax.axis_index(manual).astype(jnp.uint32) * _GOLDEN
        return _jax.casts.all_gather(sent[None], manual, 0, "invarying", has_vma) - numbers[:, None]

    if report is None:
        return lax.cond(is_different, gather, lambda sums: jnp.zeros((len(numbers), *sums.shape), sums.dtype), sums)
    return lax.cond(is_different, lambda sums: jax.debug.callback(report, gather(sums)), lambda _: None, sums)


def _varying(x: Any, axes: tuple[str, ...], has_vma: bool) -> Any:
    return _jax.casts.pcast_varying(x, axes) if has_vma else x


def _size(axes: tuple[str, ...]) -> int:
    return int(lax.axis_size(axes))


def _of_neighbour(sums: Any, axes: tuple[str, ...]) -> Any:
    """The checksums of the previous shard."""
    size, here = _size(axes), lax.axis_index(axes).astype(jnp.uint32)
    before = (here + np.uint32(size - 1)) % np.uint32(size)
    sent = lax.ppermute(sums + here * _GOLDEN, axes, [(at, (at + 1) % size) for at in range(size)])
    return sent - before * _GOLDEN


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
    words = (words ^ (words >> np.uint32(16))) * _FIRST
    words = (words ^ (words >> np.uint32(13))) * _SECOND
    return jnp.sum(words ^ (words >> np.uint32(16)), dtype=jnp.uint32)


def _places(shape: tuple[int, ...], part: int) -> Any:
    """A number for each index of an array, computed per dim: a flat iota would need a reshape."""
    numbers = jnp.uint32(part * int(_FIRST) % 2**32)
    for dim in range(len(shape)):
        stride = np.uint32(prod(shape[dim + 1 :]) * int(_GOLDEN) % 2**32)
        numbers = numbers + lax.broadcasted_iota(jnp.uint32, shape, dim) * stride
    return numbers
