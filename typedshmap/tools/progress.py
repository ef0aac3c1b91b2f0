"""Report the progress of long work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import Event, Thread

_SILENCE = 8.0


@contextmanager
def progress(title: str, first: float | None = None) -> Generator[Callable[[str], None]]:
    """Report the current step on stderr every eight seconds, perhaps sooner at first; yields a function to set it."""
    step, is_done, began = [""], Event(), time.monotonic()

    def report() -> None:
        seconds = _SILENCE if first is None else first
        while not is_done.wait(seconds):
            seconds = _SILENCE
            with suppress(OSError, ValueError):  # a closed stream
                print(f"{title}: {step[0]}, after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    Thread(target=report, daemon=True).start()
    try:
        yield lambda text: step.__setitem__(0, text)
    finally:
        is_done.set()
