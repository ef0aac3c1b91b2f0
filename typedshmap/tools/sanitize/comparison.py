"""Compare shards on the devices: their checksums, one small exchange per set of mesh axes, more only if two differ.

Each shard gets its neighbour's checksums along the axes: if no two neighbours differ, none do. A number of the sender
is added to its checksums, since XLA removes an exchange of values that it can prove to be replicated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import _jax
from .checksums import checksum

_NUMBERS = np.uint32(0x9E3779B1)


def compare_shards(
    shards: Sequence[Any],
    agreeing: Sequence[tuple[str, ...]],
    manual: tuple[str, ...],
    has_vma: bool,
    report: Callable[[Any], None] | None = None,
) -> Any:
    """Compare values in a manual region, each over the mesh axes over which it is replicated.

    Args:
      shards: the values.
      agreeing: for each value these axes, in the order of the mesh.
      manual: the axes over which all shards learn of a difference.
      has_vma: whether JAX types values as varying here.
      report: called on the host of every device with the checksums, if there is a difference.

    Returns:
      Without ``report``, the checksums of all shards if there is a difference, else zeros: an array with a row for
      each shard over ``manual``, in the order of the mesh, and a column for each value.
    """
    plain = (_jax.casts.drop_reduced(lax.stop_gradient(shard)) for shard in shards)
    sums = jnp.stack([_varying(checksum(shard), manual, has_vma) for shard in plain])
    differs = jnp.zeros((), bool)
    for axes in dict.fromkeys(agreeing):
        compared = sums[np.array([at for at, value_axes in enumerate(agreeing) if value_axes == axes])]
        differs |= (compared != _of_neighbour(compared, axes)).any()
    is_different = lax.pmax(_varying(differs, manual, has_vma).astype(jnp.int32), manual) > 0
    numbers = _NUMBERS * np.arange(_size(manual), dtype=np.uint32)

    def gather(sums: Any) -> Any:
        sent = sums + lax.axis_index(manual).astype(jnp.uint32) * _NUMBERS
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
    sent = lax.ppermute(sums + here * _NUMBERS, axes, [(at, (at + 1) % size) for at in range(size)])
    return sent - before * _NUMBERS
