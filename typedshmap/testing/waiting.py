"""Wait for a program: no longer than is allowed, and not in silence."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TypeVar

T = TypeVar("T")
_SILENCE = 8.0


IDLE = 40.0
"""The seconds in which shards that wait for each other on a CPU are found; XLA ends the process after 60."""
_HARDLY = 0.01


class TookTooLong(AssertionError):
    """A program that has not ended in time; its argument is the number of seconds."""


def wait_for(compute: Callable[[], T], seconds: float, idle: float) -> T:
    """What a function returns, or raises.

    It runs in a thread, where it goes on for ever if its shards wait for each other, since nothing can end a
    collective.

    Raises:
      TookTooLong: where it takes longer, or this process has computed next to nothing for ``idle`` seconds.
    """
    returned, raised = list[T](), list[BaseException]()

    def run() -> None:
        try:
            returned.append(compute())
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    began = moved = time.monotonic()
    used = time.process_time()
    while thread.is_alive():
        now = time.monotonic()
        if time.process_time() - used > _HARDLY * (now - moved):
            moved, used = now, time.process_time()
        if now - began >= seconds or now - moved >= idle:
            raise TookTooLong(now - began)
        thread.join(min(1.0, seconds - (now - began)))
    if raised:
        raise raised[0]
    return returned[0]


@contextmanager
def progress(title: str, first: float | None = None) -> Generator[Callable[[str], None]]:
    """Say on stderr what is under way, every eight seconds; nothing where all is done before.

    Args:
      title: what works.
      first: the seconds after which it is said for the first time, if sooner.

    Yields:
      What to call with each next step, in words.
    """
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
