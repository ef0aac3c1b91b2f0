"""Wait for a program, with a time limit."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
IDLE = 40.0
"""The seconds in which shards that wait for each other on a CPU are found; XLA ends the process after 60."""
_HARDLY = 0.01


class TookTooLong(AssertionError):
    """A program did not end in time; the argument is the number of seconds."""


_waiting = list[Thread]()
"""The threads of programs that took too long."""


def end_if_waiting(code: int) -> None:
    """End the process at once if a program waits for ever: Python would wait for it, or a signal would end it."""
    if any(thread.is_alive() for thread in _waiting):
        with suppress(OSError, ValueError):  # a closed stream
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def wait_for(compute: Callable[[], T], seconds: float, idle: float) -> T:
    """Return the result of a function, or raise its exception.

    It runs in a thread, which stays alive for ever if its shards wait for each other, since nothing can end a
    collective.

    Raises:
      TookTooLong: if it takes longer, or if this process has computed next to nothing for ``idle`` seconds.
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
            _waiting.append(thread)
            raise TookTooLong(now - began)
        thread.join(min(1.0, seconds - (now - began)))
    if raised:
        raise raised[0]
    return returned[0]
