"""Whether hints are enforced: ``TYPEDSHMAP_CHECKS=off`` in the environment leaves only the specs that they say.

Then functions and `check` take what does not fit, and no body is read; specs that cannot be are JAX's errors. What asks
(``isinstance``), places arrays or runs a pattern looks as ever, since its result depends on that."""

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
    """What is to be raised: everything, or only that a hint has no spec on the mesh."""
    return [failure for failure in failures if IS_ON or isinstance(failure.what, Unresolved)]
