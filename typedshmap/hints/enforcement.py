"""Whether hints are enforced: with ``TYPEDSHMAP_CHECKS=off`` in the environment they only give specs.

Functions and `check` then accept values that do not fit, and no body is analyzed; JAX raises the errors for impossible
specs. ``isinstance``, placement and patterns still check values, since their results depend on it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ..errors.failures import Failure, Unresolved

_NAME = "TYPEDSHMAP_CHECKS"


def _read(value: str) -> bool:
    if value.lower() not in ("", "on", "off"):
        raise ValueError(f"{_NAME} in the environment must be 'on' or 'off', got {value!r}")
    return value.lower() != "off"


IS_ON = _read(os.environ.get(_NAME, "").strip())


def enforced(failures: Iterable[Failure]) -> list[Failure]:
    """The failures to raise: all of them, or only those of hints without a spec on the mesh."""
    return [failure for failure in failures if IS_ON or isinstance(failure.what, Unresolved)]
