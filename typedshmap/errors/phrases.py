"""Parts of sentences: the names of values, meshes, axes and sizes in messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from typing import Any

_LONGEST = 80


def value_text(value: object) -> str:
    """A value in a message: its repr if that is short; else ``a dict``."""
    try:
        text = repr(value)
    except Exception:  # a deleted array, a huge integer, deep nesting, or an error of the user's class
        text = ""
    if 0 < len(text) < _LONGEST and "\n" not in text:
        return text
    return instance_text(value)


def first_line(error: BaseException) -> str:
    """``ValueError: the first line of its text``; the class alone where it has none."""
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def instance_text(value: object) -> str:
    """``a dict``, ``an int``: a value by its class."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function in a message."""
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    # With the class of a method, but without enclosing functions.
    name: str = getattr(inner, "__qualname__", getattr(inner, "__name__", type(inner).__name__))
    return name.rpartition("<locals>.")[2]


def excerpt(text: str) -> str:
    """The user's text, cut if it is long."""
    return text if len(text) < _LONGEST else f"{text[:20]}..."


def shortened(text: str, most: int = 300) -> str:
    """The text, without its middle if it is long."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 3 :]}"


_MOST_CHARACTERS = 5000
_LONGEST_LINE = 400
_HEAD, _TAIL = 3400, 1500


def bounded(message: str) -> str:
    """A message of at most 5,000 characters: long lines are cut, around the carets if there are any."""
    if len(message) <= _MOST_CHARACTERS:
        return message
    lines = message.split("\n")
    for at, line in enumerate(lines):
        if len(line) <= _LONGEST_LINE:
            continue
        carets = lines[at + 1] if at + 1 < len(lines) and set(lines[at + 1].strip()) == {"^"} else ""
        if not carets:
            lines[at] = shortened(line, _LONGEST_LINE)
            continue
        start = max(0, carets.index("^") - _LONGEST_LINE // 2)
        lines[at] = ("..." if start else "") + line[start : start + _LONGEST_LINE] + "..."
        lines[at + 1] = " " * (3 * bool(start)) + carets[start : start + _LONGEST_LINE]
    text = "\n".join(lines)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_HEAD]}\n...\n{text[-_TAIL:]}"


def mesh_text(mesh: Iterable[tuple[str, object]]) -> str:
    """``dp=4, tp=2``"""
    return ", ".join(f"{name}={size}" for name, size in mesh)


def alias_text(axes: tuple[str, ...]) -> str:
    """The value of an alias: a mesh axis, several, or None."""
    return "None" if not axes else axes[0] if len(axes) == 1 else f"({', '.join(axes)})"


def size_text(name: str, size: int | tuple[int, ...]) -> str:
    """``batch=8``"""
    return f"{name}={size}".replace(" ", "") if isinstance(size, tuple) else f"{name}={size}"


def quoted_axes(axes: Iterable[str]) -> str:
    """``'dp', 'tp'``"""
    return ", ".join(f"'{axis}'" for axis in axes)


def count_text(number: int, noun: str) -> str:
    """``1 dim``, ``2 dims``"""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'batch'?)``; empty if no name is close."""
    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def sharding_text(axes: tuple[str, ...]) -> str:
    """The sharding of a dim."""
    return f"sharded over {quoted_axes(axes)}" if axes else "unsharded"


def titled(result: object) -> str:
    """``<Plan: reshard [8/tp] 8 -> 8 [8/tp] on dp=4, tp=2>``: the repr of an object that prints several lines."""
    return f"<{type(result).__name__}: {str(result).partition(chr(10))[0]}>"
