"""The lines of tests that messages name: found by a comment at the end of a line, so that no number is written."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PLACE = r"At: \S+:\d+ \(\S+\)"


def place(function: Callable[..., Any], mark: str = "# here") -> str:
    """The one line of a function that ends with a comment, as a message names it: ``test_a.py:7 (f)``."""
    function = inspect.unwrap(function)
    lines, first = inspect.getsourcelines(function)
    (at,) = (at for at, line in enumerate(lines) if line.rstrip().endswith(mark))
    name = function.__qualname__.rpartition("<locals>.")[2]
    return f"{Path(function.__code__.co_filename).name}:{first + at} ({name})"


def unplaced(error: BaseException) -> str:
    """A message without the lines that it names: for tests of what else it says."""
    text, count = re.subn(rf"\n+{_PLACE}\Z|{_PLACE}\n", "", str(error))
    assert count <= 1, error
    return re.sub(r" at \w+\.py:\d+", "", text)
