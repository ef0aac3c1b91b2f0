"""Check values without arrays against their Python types, by beartype.

Plain classes are asked by ``isinstance``; beartype is imported when a hint needs it, since
importing it costs as much as half of the library. Of a container it looks at one item, by chance,
so every item is asked here.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .. import _jax
from ..errors import AnnotationSyntaxError
from ..errors.phrases import shown
from .leaf import describe

_PLAIN = (bool, int, str, bytes, list, tuple, dict, set, frozenset, type(None))
_CONTAINERS = ("builtins", "collections", "collections.abc")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a Python type, ints counting as floats and floats as complex."""
    if hint in _PLAIN:
        return isinstance(value, hint)
    if hint is float:
        return isinstance(value, (float, int))
    if hint is complex:
        return isinstance(value, (complex, float, int))
    options = _options(hint)
    if len(options) > 1:
        return any(fits(value, option) for option in options)
    return _is_bearable(value, hint) and all(fits(item, inner) for item, inner in _items(value, hint))


def misfit(value: Any, hint: Any) -> list[Any]:
    """The innermost item that keeps a plain container from fitting, if one does."""
    for option in _options(hint):
        origin = typing.get_origin(option)
        items = _items(value, option) if isinstance(origin, type) and isinstance(value, origin) else ()
        for item, inner in items:
            if not fits(item, inner):
                return misfit(item, inner) or [item]
    return []


def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union; a hint that is none is its only one."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _items(value: Any, hint: Any) -> Iterable[tuple[Any, Any]]:
    """The items of a plain container that fits so far, each with its hint."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args[1:] != (...,):
        return zip(value, args, strict=False)
    # What the arguments of another generic class mean, nobody knows.
    if not isinstance(value, Collection) or getattr(origin, "__module__", None) not in _CONTAINERS:
        return ()
    if isinstance(value, Mapping) and len(args) == 2:
        return [pair for key, item in value.items() for pair in ((key, args[0]), (item, args[1]))]
    is_one = len(args) == 1 or args[1:] == (...,)
    return [(item, args[0]) for item in value] if is_one and issubclass(origin, Collection) else ()


def _is_bearable(value: Any, hint: Any) -> bool:
    from beartype import BeartypeConf
    from beartype.door import is_bearable
    from beartype.roar import BeartypeException

    try:
        return is_bearable(value, hint, conf=BeartypeConf(is_pep484_tower=True))
    except BeartypeException as error:  # typing.Self, a name that is not defined
        raise AnnotationSyntaxError(f"{shown(hint)} is no hint that beartype checks: {error}") from None


def holds_array(value: Any) -> bool:
    """Whether a value is an array or a plain container with one; objects may close over theirs."""
    waiting, seen = [value], set[int]()
    while waiting:  # a container may be nested deep, and may hold itself
        part = waiting.pop()
        if isinstance(part, _jax.ARRAYS):
            return True
        if isinstance(part, (tuple, list, dict)) and id(part) not in seen:
            seen.add(id(part))
            waiting.extend(part.values() if isinstance(part, dict) else part)
    return False


def describe_static(value: Any, hint: Any) -> str:
    """What a value is, with the item for which it does not fit; a container without such a one as Python shows it."""
    if wrong := misfit(value, hint):
        return f"{describe(value)} with {describe(wrong[0])} in it"
    is_plain = isinstance(value, (tuple, list, dict, set, frozenset)) and shown(value) != describe(value)
    return f"{shown(value)} ({type(value).__name__})" if is_plain else describe(value)
