"""Casts of manual types, and gathers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from .array import manual_type
from .versions import HAS_MANUAL_TYPES, gather_invarying


def pcast_reduced(x: Any, axes: Iterable[str]) -> Any:
    """``x`` typed as reduced over the axes over which it is invarying."""
    kind = manual_type(x)
    unmarked = tuple(sorted(frozenset(axes) - kind.varying - kind.unreduced - kind.reduced))
    return jax.lax.pcast(x, unmarked, to="reduced") if unmarked else x


def pcast_unreduced(x: Any, axes: Iterable[str]) -> Any:
    """``x`` typed as an addend over ``axes``: varying axes become unreduced.

    In an un-jitted region on an Auto mesh JAX raises a ValueError for that type; then ``x`` stays
    varying, which means the same.
    """
    unreduced = tuple(sorted(set(axes) & manual_type(x).varying))
    if not unreduced:
        return x
    try:
        return jax.lax.pcast(x, unreduced, to="unreduced")
    except (ValueError, NotImplementedError):
        return x


def pcast_varying(x: Any, axes: Iterable[str]) -> Any:
    """``x`` typed as varying over ``axes``, unless varying or unreduced already; reduced axes are dropped first."""
    kind = manual_type(x)
    missing = frozenset(axes) - kind.varying - kind.unreduced
    if not missing:
        return x
    x, missing = drop_reduced(x), tuple(sorted(missing - kind.reduced))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def drop_reduced(x: Any) -> Any:
    """``x`` with its reduced axes typed as varying, which has the same gradient and allows all operations."""
    reduced = tuple(sorted(manual_type(x).reduced))
    return jax.lax.pcast(x, reduced, to="varying") if reduced else x


def refuse_unreduced(x: Any) -> None:
    """Raise for a value typed unreduced before jax 0.10, which does not slice or gather such values.

    Raises:
      NotImplementedError: for such a value.
    """
    axes = () if HAS_MANUAL_TYPES else sorted(manual_type(x).unreduced)
    if axes:
        raise NotImplementedError(
            f"jax {jax.__version__} cannot move a value typed as unreduced over {', '.join(map(repr, axes))}: "
            "leave it varying, without lax.pcast, or use jax 0.10"
        )


def pcast_unreduced_all(x: Any, axes: tuple[str, ...], has_vma: bool) -> Any:
    """``x`` as an addend over ``axes``, with one type for all axes, as psum over several axes requires."""
    if not has_vma or not axes:
        return x
    x = pcast_varying(x, axes)
    return pcast_unreduced(x, axes) if manual_type(x).unreduced & frozenset(axes) else x


def all_gather(x: Any, axes: tuple[str, ...], dim: int, to: str, has_vma: bool) -> Any:
    """The shards over ``axes``, gathered along a dim.

    Args:
      to: ``"invarying"``, ``"reduced"`` or ``"varying"``, JAX's type of the result.
      has_vma: whether JAX types values here. If not, only the plain gather has the right transpose,
        and jax 0.10 has no other.

    In an un-jitted region on an Auto mesh JAX raises a ValueError for reduced values; then ``x`` is
    gathered as varying, which has the same gradient.
    """
    if not x.shape[dim]:  # XLA does not gather along an empty dim
        return all_gather(x[None], axes, 0, to, has_vma).reshape(x.shape)
    if not has_vma:
        return jax.lax.all_gather(x, axes, axis=dim, tiled=True)
    x = pcast_varying(x, axes)
    if to == "invarying" and not HAS_MANUAL_TYPES:
        return gather_invarying(x, axes, dim)
    try:
        return jax.lax.all_gather(x, axes, axis=dim, tiled=True, to=to)
    except ValueError:
        if to != "reduced":
            raise
        return jax.lax.all_gather(x, axes, axis=dim, tiled=True)


def gather_bytes(data: bytes) -> list[bytes]:
    """Gather bytes from every process, by two all-gathers over all processes: the lengths, then the bytes."""
    lengths = multihost_utils.process_allgather(np.array([len(data)], np.int32)).reshape(-1)
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    gathered = multihost_utils.process_allgather(padded).reshape(len(lengths), -1)
    return [bytes(row[:length]) for row, length in zip(gathered, lengths, strict=True)]
