"""The note on exceptions of the user's code and of JAX: what the shards are where it happened."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable

from . import _jax
from .errors.phrases import mesh_text, sizes_text
from .hints.scope import Region, Scope
from .hints.walk import Found

_MARK = "typedshmap: in "
_MOST = 24


# What JAX says where a value's type refuses an operation: "reduced" in words, or in a type that it expected.
_UNREDUCED = re.compile(r"\bunreduced\b")
_REDUCED = re.compile(r"\breduced\b|\{[^{}]*\b[RU]:")


def _cure(message: str) -> str | None:
    """What to write where JAX refuses a value because it is reduced or unreduced."""
    if _UNREDUCED.search(message):
        return "a value marked '+axis' takes no part in this: take the sum first, or mark it '~axis' where it is made"
    if _REDUCED.search(message):
        return (
            "a value gathered with '-axis' takes no part in this: gather it with '~axis', which has the same gradient"
        )
    return None


def _is_unknown_axis(error: Exception) -> bool:
    """Whether JAX asserted something without a word, as it does for an axis that the mesh does not have."""
    if type(error) is not AssertionError or error.args:
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).partition(".")[0] == "jax"


def _cure_of_unknown_axis(region: Region) -> str:
    axes = ", ".join(f"'{name}'" for name, _ in region.mesh or ())
    return f"a collective over an axis that the mesh does not have ends so; the mesh's axes are {axes}"


def add_note(
    error: Exception, scope: Scope, region: Region, leaves: Iterable[Found], waiting: Iterable[str] = ()
) -> None:
    """Tell an exception's reader the shards' hints and types, the sizes and the mesh.

    The exception stays as it is. Only the innermost region speaks.

    Args:
      waiting: what would have been found out once the whole body was traced, and may be the cause.
    """
    if any(note.startswith(_MARK) for note in getattr(error, "__notes__", ())):
        return
    arrays = [(leaf, leaf.hint.text) for leaf in leaves if leaf.hint is not None]
    lines = [f"{_MARK}{scope.function}, where the values are shards:"]
    lines += [f"Not found out: whether {text}" for text in waiting]
    lines += [f"    {leaf.subject}: {text}  is {_jax.type_text(leaf.value)}" for leaf, text in arrays[:_MOST]]
    if len(arrays) > _MOST:
        lines.append(f"    and {len(arrays) - _MOST} more")
    sizes = sizes_text(scope.sizes)
    lines += [f"Mesh: {mesh_text(region.mesh or ())}"] + ([f"Sizes: {sizes}"] if sizes else [])
    cure = _cure_of_unknown_axis(region) if _is_unknown_axis(error) else _cure(str(error))
    lines += [f"Hint: {cure}"] if cure else []
    error.add_note("\n".join(lines))
