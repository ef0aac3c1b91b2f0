"""Meshes, sizes and arguments as they are written on the command line."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from jax.sharding import AbstractMesh, AxisType

from .. import _jax


class WrongUse(Exception):
    """Something on the command line that cannot be read; the text says what."""


def read_meshes(written: Sequence[str], explicit: bool = False) -> list[AbstractMesh]:
    """Meshes written as ``dp=4,tp=2``.

    Args:
      written: one mesh each.
      explicit: whether their axes are of type Explicit; else they are Auto.

    Raises:
      WrongUse: for what is no mesh.
    """
    return [_read_mesh(text, explicit) for text in written]


def _read_mesh(text: str, explicit: bool) -> AbstractMesh:
    sizes: dict[str, int] = {}
    for name, size in (_pair(part, f"--mesh {text}", "dp=4,tp=2") for part in text.split(",") if part.strip()):
        if name in sizes:
            raise WrongUse(f"--mesh {text}: mesh axis '{name}' stands there twice")
        if not size.isdecimal() or int(size) < 1:
            raise WrongUse(f"--mesh {text}: mesh axis '{name}' has size '{size}'; write a number from 1 on")
        sizes[name] = int(size)
    if not sizes:
        raise WrongUse(f"--mesh {text!r}: no mesh axes; write them as in dp=4,tp=2")
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))


def mesh_like(mesh: AbstractMesh, own: _jax.AnyMesh | None) -> AbstractMesh:
    """A mesh whose axes have the types that a function's own mesh gives them."""
    if own is None:
        return mesh
    types = dict(zip(own.axis_names, own.axis_types, strict=True))
    found = [types.get(name, kind) for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)]
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=tuple(found))


def _pair(text: str, where: str, example: str) -> tuple[str, str]:
    name, equals, value = text.strip().partition("=")
    if not equals or not name.strip().isidentifier():
        raise WrongUse(f"{where}: '{text.strip()}' is no name and value, as in {example}")
    return name.strip(), value.strip()


def read_sizes(written: Sequence[str]) -> dict[str, int | tuple[int, ...]]:
    """Sizes written as ``batch=32``, or ``rest=4,8`` for ``*rest``; several with blanks between them.

    Raises:
      WrongUse: for what is no size.
    """
    found: dict[str, int | tuple[int, ...]] = {}
    for text in (part for each in written for part in each.split()):
        name, value = _pair(text, f"--size {text}", "batch=32")
        numbers = [number for number in value.split(",") if number]
        if not numbers or not all(number.isdecimal() for number in numbers):
            raise WrongUse(f"--size {text}: '{value}' is no size; write a number, or several with commas for *{name}")
        found[name] = tuple(map(int, numbers)) if "," in value else int(value)
    return found


def read_arguments(written: Sequence[str]) -> dict[str, Any]:
    """Arguments written as ``scale=0.5``: a Python literal, else a string.

    Raises:
      WrongUse: for what is no name and value.
    """
    pairs = (_pair(text, f"--arg {text}", "scale=0.5") for text in written)
    return {name: _literal(value) for name, value in pairs}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
