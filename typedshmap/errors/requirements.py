"""Requirements on the options of verbs: a wrong one raises a StructureError with the verb and the option."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from . import StructureError
from .phrases import value_text


def require_bool_or_none(verb: str, name: str, value: Any) -> None:
    """Raise unless an option is True, False or None."""
    if value is not None and not isinstance(value, bool):
        raise StructureError(f"{verb}: {name}={value_text(value)} is not True, False or None")


def require_integer(verb: str, name: str, value: Any, least: int, most: int = 2**63 - 1) -> int:
    """An option as an integer."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise StructureError(f"{verb}: {name} must be an integer >= {least}, got {value_text(value)}")
    if int(value) > most:
        raise StructureError(f"{verb}: {name} must be at most {most}, got {value_text(value)}")
    return int(value)


def merge_sizes(verb: str, sizes: Any, dims: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes in ``sizes=``, for dims with the name of an option, and those by keyword.

    A number or a tuple is the size of a dim called ``sizes``.
    """
    if isinstance(sizes, Integral | tuple):
        sizes = {"sizes": sizes}
    require_dict(verb, sizes, "sizes= expects a dict of sizes by the names of dims")
    if twice := [name for name in sizes or () if name in dims]:
        raise StructureError(f"{verb}: the size of '{twice[0]}' is given twice, in sizes= and by keyword")
    return {**(sizes or {}), **dims}


def require_dict(verb: str, value: Any, rule: str = "arguments= expects a dict of arguments by name or path") -> None:
    """Raise unless an option is None or a dict with names as keys."""
    if not isinstance(value, Mapping | None) or not all(isinstance(name, str) for name in value or ()):
        raise StructureError(f"{verb}: {rule}, got {value_text(value)}")
