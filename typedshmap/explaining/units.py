"""Bytes, seconds and bandwidths as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import MeshAxisError, StructureError
from ..errors.phrases import mesh_text, shown

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_BANDWIDTH = re.compile(r"(?P<number>[0-9.]+(?:e[0-9]+)?) *(?P<prefix>[kMGT]i?|)B(?:/s)?")


def bytes_text(count: int) -> str:
    """``512 B``, ``1.5 KiB``, ``16 MiB``: three digits or four, exact where that is short."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    digits = 0 if size >= 100 or size.is_integer() else 1 if size >= 10 else 2
    return f"{size:.{digits}f} {units[0]}"


def seconds_text(seconds: float) -> str:
    """``12.3 us``, ``4.56 ms``, ``1.2 s``"""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def read_bandwidth(verb: str, given: Any, mesh: tuple[tuple[str, int], ...]) -> dict[str, float]:
    """Bytes per second by mesh axis.

    Args:
      verb: the function that messages name.
      given: by mesh axis a number of bytes per second, or a text: ``"400GB/s"`` is 400e9, ``"1GiB/s"`` 2**30.
      mesh: the mesh axes with their sizes.

    Raises:
      MeshAxisError: for an axis that the mesh does not have.
      StructureError: for what is no bandwidth.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise StructureError(f'{verb}: bandwidth= wants a dict as in {{"tp": "400GB/s"}}, got {shown(given)}')
    unknown = [axis for axis in given if axis not in dict(mesh)]
    if unknown:
        known = mesh_text(mesh)
        raise MeshAxisError(
            f"{verb}: a bandwidth is given for mesh axis '{unknown[0]}', which the mesh ({known}) does not have"
        )
    return {str(axis): _read(verb, axis, value) for axis, value in given.items()}


def _read(verb: str, axis: Any, value: Any) -> float:
    found = _number(value)
    if found is None or not 0 < found < float("inf"):
        raise StructureError(
            f"{verb}: the bandwidth of mesh axis '{axis}' is {shown(value)}\n\n"
            'Hint: write bytes per second, as a number or as in "400GB/s" (400e9) and "100GiB/s"'
        )
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    match = _BANDWIDTH.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match["number"].count(".") > 1:
        return None
    return float(match["number"]) * {**_DECIMAL, **_BINARY}[match["prefix"]]
