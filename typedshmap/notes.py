"""The note on exceptions of the user's code and of JAX: what the shards are where it happened."""

from __future__ import annotations

from collections.abc import Iterable

from . import _jax
from .errors.wording import mesh_text, sizes_text
from .hints.scope import Region, Scope
from .hints.walk import Found

_MARK = "typedshmap: in "
_MOST = 24


def add_note(error: Exception, scope: Scope, region: Region, leaves: Iterable[Found]) -> None:
    """Tell an exception's reader the shards' hints and types, the sizes and the mesh.

    The exception stays as it is. Only the innermost region speaks.
    """
    if any(note.startswith(_MARK) for note in getattr(error, "__notes__", ())):
        return
    arrays = [(leaf, leaf.hint.text) for leaf in leaves if leaf.hint is not None]
    lines = [f"{_MARK}{scope.function}, where the values are shards:"]
    lines += [f"    {leaf.subject}: {text}  is {_jax.type_text(leaf.value)}" for leaf, text in arrays[:_MOST]]
    if len(arrays) > _MOST:
        lines.append(f"    and {len(arrays) - _MOST} more")
    sizes = sizes_text(scope.sizes)
    lines += [f"Mesh: {mesh_text(region.mesh or ())}"] + ([f"Sizes: {sizes}"] if sizes else [])
    error.add_note("\n".join(lines))
