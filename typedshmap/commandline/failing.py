"""Errors of the user's program, as the command line tells them."""

from __future__ import annotations

import traceback

from ..errors import TypedShmapError

_OF_JAX = "--------------------"
"""How the note begins by which JAX says that it has filtered a traceback."""


def told(error: BaseException) -> str:
    """An error as it is printed: ours whole, another with the place where it was raised."""
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(_OF_JAX)]
    lines = [f"{type(error).__name__}: {error}", *notes]
    if not isinstance(error, TypedShmapError | AssertionError) and (place := _place(error)):
        lines.append(f"At: {place}")
    return "\n".join(lines)


def _place(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_user(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno} ({frames[-1].name})" if frames else ""


def _is_of_user(filename: str) -> bool:
    return not filename.startswith("<") and "site-packages" not in filename and "importlib" not in filename
