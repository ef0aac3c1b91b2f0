"""A mesh as users write it: a dict of sizes, or a text like ``"dp=4,tp=2"``."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, cast

from ..errors.phrases import excerpt

MOST_DEVICES = 2**31 - 1
"""The largest mesh that JAX accepts, abstract or not."""


def mesh_sizes(written: Any) -> dict[str, int] | None:
    """The sizes of mesh axes in a dict, or in a text like ``"dp=4,tp=2"``; None for any other value."""
    if isinstance(written, str):
        try:
            return parse_mesh(written)
        except ValueError:
            return None
    if not isinstance(written, Mapping) or not written:
        return None
    sizes = dict(cast("Mapping[Any, Any]", written))
    is_right = all(isinstance(name, str) and type(size) is int and size > 0 for name, size in sizes.items())
    return sizes if is_right and prod(sizes.values()) <= MOST_DEVICES else None


def parse_mesh(text: str) -> dict[str, int]:
    """The sizes of mesh axes in a text like ``"dp=4,tp=2"``."""
    sizes: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, size = map(str.strip, part.partition("="))
        if not equals or not name:
            raise ValueError(f"'{excerpt(part)}' is not a name and a value, as in dp=4,tp=2")
        if name in sizes:
            raise ValueError(f"mesh axis '{name}' is there twice")
        # So many digits are too many in any case; Python does not read thousands of them.
        if not size.isdecimal() or (number := int(size[:12])) < 1:
            raise ValueError(f"mesh axis '{name}' has size '{excerpt(size)}'; write a number from 1 on")
        sizes[name] = number
    if not sizes:
        raise ValueError("no mesh axes; write them as in dp=4,tp=2")
    if prod(sizes.values()) > MOST_DEVICES:
        raise ValueError(f"a mesh has at most {MOST_DEVICES} devices")
    return sizes
