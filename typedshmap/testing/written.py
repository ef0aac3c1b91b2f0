"""What users write for the tools: meshes where any devices do, and answers of yes or no."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..errors import StructureError
from ..errors.phrases import shown


def mesh_sizes(written: Any) -> dict[str, int] | None:
    """The sizes of mesh axes that a dict, or a text like ``"dp=4,tp=2"``, says; None for what says none."""
    found = _pairs(written) if isinstance(written, str) else written
    if not isinstance(found, Mapping) or not found:
        return None
    sizes = dict(cast("Mapping[Any, Any]", found))
    is_right = all(isinstance(name, str) and type(size) is int and size > 0 for name, size in sizes.items())
    return sizes if is_right else None


def _pairs(text: str) -> dict[str, int] | None:
    """None where an axis stands twice; 0 for what is no size."""
    parts = [part.partition("=") for part in text.replace(" ", "").split(",") if part]
    sizes = {name: int(size) if size.isdecimal() else 0 for name, _, size in parts}
    return sizes if len(sizes) == len(parts) else None


def refuse_no_answer(verb: str, name: str, value: Any) -> None:
    """Refuse what is neither True, False nor None, which leaves it open.

    Raises:
      StructureError: with the argument.
    """
    if value is not None and not isinstance(value, bool):
        raise StructureError(f"{verb}: {name}={shown(value)} is neither True, False nor None")
