"""Mesh-axis aliases: names in hints that stand for mesh axes, several or none.

The aliases of a context manager live in a JAX user context, so that they take part in ``jit``'s
cache key: a function traced under one alias is never reused under another.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import jax

from ..errors import MeshAxisError

Axes = str | tuple[str, ...] | list[str] | None

# How many contexts there are around, and per alias its mesh axes and the context that set it.
_context = jax.make_user_context(default_value=(0, ()))


@contextmanager
def axis_aliases(aliases: Mapping[str, Axes] | None = None, /, **more: Axes) -> Generator[None]:
    """Let names in hints stand for mesh axes inside the ``with``.

    Inner aliases replace outer ones of the same name; ``axes=`` on a decorator replaces both.

    ```python
    with axis_aliases(dp=("data", "fsdp"), tp=None):
        step(state, batch)
    ```

    Args:
      aliases: names and the mesh axis, the mesh axes (major to minor), or None for unsharded.
      **more: the same, for names that are identifiers.

    Raises:
      MeshAxisError: for an alias that is not a mesh axis, several of them, or None.
    """
    outer, depth = _settings(), current_depth() + 1
    inner = {name: (axes, depth) for name, axes in read_aliases({**(aliases or {}), **more}).items()}
    with _context((depth, tuple(sorted({**outer, **inner}.items())))):
        yield


def _settings() -> dict[str, tuple[tuple[str, ...], int]]:
    return dict(_context.value[1])


def read_aliases(aliases: Any) -> dict[str, tuple[str, ...]]:
    """Aliases as tuples of mesh axes; None means that there are none.

    Raises:
      MeshAxisError: for what is no dict of names and mesh axes.
    """
    if aliases is not None and not isinstance(aliases, Mapping):
        raise MeshAxisError(f"axes= wants a dict of names and mesh axes, got {type(aliases).__name__}")
    return {name: _axes(name, axes) for name, axes in (aliases or {}).items()}


def _axes(name: Any, axes: Any) -> tuple[str, ...]:
    found: tuple[Any, ...] = () if axes is None else (axes,) if isinstance(axes, str) else _sequence(axes)
    if not isinstance(name, str) or not all(isinstance(axis, str) for axis in found):
        raise MeshAxisError(f"the alias '{name}' stands for {axes!r}; write a mesh axis, a tuple of them, or None")
    return found


def _sequence(axes: Any) -> tuple[Any, ...]:
    return tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)


def current_depth() -> int:
    """How many ``axis_aliases`` are around."""
    return _context.value[0]


def current_aliases(since: int = 0) -> dict[str, tuple[str, ...]]:
    """The aliases of the context managers around, of those inside of ``since`` others."""
    return {name: axes for name, (axes, depth) in _settings().items() if depth > since}
