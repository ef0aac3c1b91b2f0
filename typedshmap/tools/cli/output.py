"""The output of verbs: errors of the user's program with their place, and progress."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from textwrap import indent

from ...errors import TypedShmapError
from ...errors.places import is_users
from ..progress import progress

SOON = 1.5
"""The seconds after which a verb reports its progress."""

_OF_JAX = "--------------------"
"""The beginning of JAX's note on a filtered traceback."""


def format_error(error: BaseException) -> str:
    """An error for printing; an error of the user's program has its place."""
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(_OF_JAX)]
    lines = [f"{type(error).__name__}: {error}", *notes]
    if frame := users_frame(error):
        lines.append(f"At: {frame.filename}:{frame.lineno} ({frame.name})")
    return "\n".join(lines)


def users_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The user's frame that raised an error; None for errors of this library, which name their place."""
    if isinstance(error, TypedShmapError | AssertionError):
        return None
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return frames[-1] if frames else None


def print_failure(line: str, error: BaseException, more: str = "") -> None:
    """Print the error of a function, under a line with its name."""
    print(f"{line}\n{indent(format_error(error) + more, '       ')}", flush=True)


def early_progress(title: str) -> AbstractContextManager[Callable[[str], None]]:
    """Report the progress of a verb on stderr, as soon as it takes long."""
    return progress(title, SOON)


@contextmanager
def output_on_stderr() -> Generator[None]:
    """Redirect the output of a program, and of its child processes, to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
