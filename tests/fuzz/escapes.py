"""Run many calls, and report what came out of them that should not, and what took long."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from draws import Own

import typedshmap
from typedshmap import TypedShmapError

Case = tuple[str, Callable[[], Any]]
"""What a call is, and the call."""

MOST_CHARACTERS, MOST_SECONDS = 5000, 20
ROOT = str(Path(typedshmap.__file__).parent)
# What JAX says by itself of what is computed, and of a ShapeDtypeStruct of 64 bits.
_OF_JAX = ("Array has been deleted", "Explicitly requested dtype")


class TooLong(BaseException):
    """A call took more CPU time than anybody waits; no one that catches exceptions catches it."""


@contextmanager
def limited(seconds: float) -> Generator[None]:
    """End what takes more CPU seconds, also where a loop of the library's never ends."""

    def end(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@dataclass
class Tally:
    """What became of many calls.

    Attributes:
      returned: how many gave a result.
      refused: how many were refused by an error of this library.
      users: how many were ended by an exception of the user's.
      escaped: what else came out: by kind and place the first case of each.
    """

    returned: int = 0
    refused: int = 0
    users: int = 0
    escaped: dict[str, str] = field(default_factory=dict)

    @property
    def cases(self) -> int:
        return self.returned + self.refused + self.users + len(self.escaped)

    def run(self, case: Case) -> None:
        """Make one call."""
        text, call = case
        try:
            with limited(MOST_SECONDS):
                call()
            self.returned += 1
        except TypedShmapError as error:
            self._refuse(text, error)
        except TooLong as error:
            self._escape(text, error)
        except (Own, typedshmap.SuspectWarning):
            self.users += 1
        except Exception as error:
            if _is_of_einops(error) or _is_of_what_is_called(error) or any(text in str(error) for text in _OF_JAX):
                self.users += 1
            else:
                self._escape(text, error)

    def _refuse(self, text: str, error: TypedShmapError) -> None:
        """An error of ours must be readable: its text can be made, and its first line says something."""
        try:
            message = str(error)
        except Exception as unreadable:
            self._escape(f"{text}: the text of {type(error).__name__}", unreadable)
            return
        if len(message) > MOST_CHARACTERS:
            self._escape(f"{text}: a message of {len(message)} characters", error)
        elif message.partition("\n")[0].strip():
            self.refused += 1
        else:
            self._escape(f"{text}: an error without a first line", error)

    def _escape(self, text: str, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename.startswith(ROOT)]
        at = own[-1] if own else frames[-1]
        place = f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno} ({at.name})"
        self.escaped.setdefault(place, f"{text}: {str(error)[:200]}")


def _is_of_what_is_called(error: Exception) -> bool:
    """Whether it is a plain function that is explained, as `np.float32`, that cannot take a traced array."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return isinstance(error, jax.errors.TracerArrayConversionError) and last.filename.endswith("sampling/plain.py")


def _is_of_einops(error: Exception) -> bool:
    """Whether it is einops that speaks, as it does of a list of no arrays without this library, too."""
    return "einops" in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts
