"""Check values without arrays by their Python types, with beartype, which is imported when a hint needs it."""

from __future__ import annotations

import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from .. import _jax
from .._jax.array import NAMES, takes
from ..errors import AnnotationSyntaxError
from ..errors.failures import HintText
from ..errors.phrases import value_text
from ..notation.spec import parse
from .array_hint import ArrayHint
from .check_array import describe

_PLAIN = (bool, int, str, bytes, list, tuple, dict, set, frozenset, type(None))
_CONTAINERS = ("builtins", "collections", "collections.abc")


def is_instance(value: Any, hint: Any) -> bool:
    """Whether a value is of a Python type; an int counts as a float, and a float as complex."""
    if hint in _PLAIN:
        return isinstance(value, hint)
    if hint is float:
        return isinstance(value, (float, int))
    if hint is complex:
        return isinstance(value, (complex, float, int))
    options = _union_members(hint)
    if len(options) > 1:
        return any(is_instance(value, option) for option in options)
    return _is_bearable(value, hint) and all(is_instance(item, inner) for item, inner in _items(value, hint))


def offending_item(value: Any, hint: Any) -> list[Any]:
    """A list of the innermost item for which a plain container does not fit; empty without such an item."""
    for option in _union_members(hint):
        origin = typing.get_origin(option)
        items = _items(value, option) if isinstance(origin, type) and isinstance(value, origin) else ()
        for item, inner in items:
            if not is_instance(item, inner):
                return offending_item(item, inner) or [item]
    return []


def _union_members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other hint is its only member."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _items(value: Any, hint: Any) -> Iterable[tuple[Any, Any]]:
    """The items of a plain container of the right class, each with its hint."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    is_endless = len(args) == 2 and args[1] is ...
    if origin is tuple and not is_endless:
        return zip(value, args, strict=False)
    # The arguments of another generic class may mean anything.
    if not isinstance(value, Collection) or getattr(origin, "__module__", None) not in _CONTAINERS:
        return ()
    if isinstance(value, Mapping) and len(args) == 2:
        return [pair for key, item in value.items() for pair in ((key, args[0]), (item, args[1]))]
    is_one = len(args) == 1 or is_endless
    return [(item, args[0]) for item in value] if is_one and issubclass(origin, Collection) else ()


def _is_bearable(value: Any, hint: Any) -> bool:
    from beartype.roar import BeartypeCallHintViolation, BeartypeException

    try:
        _made_check(hint)(value)
    except (BeartypeCallHintViolation, ValueError):  # beartype cannot print a huge integer
        return False
    except (BeartypeException, TypeError) as error:  # typing.Self, a name that is not defined, list[Annotated[int, []]]
        raise AnnotationSyntaxError(f"{value_text(hint)} is not a hint that beartype checks: {error}") from None
    return True


def _made_check(hint: Any) -> Callable[[Any], None]:
    try:
        return _beartype_check(hint)
    except TypeError:  # it has no hash
        return _beartype_check.__wrapped__(hint)
    except AttributeError:  # raised inside beartype
        raise TypeError("it has more parts than beartype accepts") from None


@lru_cache(maxsize=1024)  # a call with static arguments takes 3.5 times the calls without it
def _beartype_check(hint: Any) -> Callable[[Any], None]:
    """A function whose argument beartype checks against a hint.

    ``beartype.door`` is not used: it holds a lock while it tests whether ``isinstance`` accepts a class. That test
    calls our own ``__instancecheck__``, which may call this function.
    """
    from beartype import BeartypeConf, beartype

    def check(value: Any) -> None:
        pass

    check.__annotations__ = {"value": hint}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # typing.List is deprecated
        return beartype(conf=BeartypeConf(is_pep484_tower=True))(check)


_NUMBERS = {
    number: ArrayHint(dtypes, number.__name__, Any, parse(""), HintText(number.__name__))
    for number, dtypes in ((float, NAMES["Real"]), (int, NAMES["Integer"]))
}


def number_hint(value: Any, hint: Any) -> ArrayHint | None:
    """The hint of an array of rank 0 instead of a ``float`` or an ``int``; None for any other value.

    A NumPy number counts as an array while a program is traced.
    """
    kinds = jax.Array if _jax.trace.is_outside_traces() else (*_jax.array.ARRAYS, np.generic)
    number = next((kind for kind in (float, int) if kind in _union_members(hint)), None)
    if number is None or not isinstance(value, kinds) or isinstance(value, (float, int)):
        return None
    return _NUMBERS[number] if takes(_NUMBERS[number].dtypes, _jax.array.dtype_name_of(value)) else None


def holds_array(value: Any) -> bool:
    """Whether a value is an array or a plain container of arrays; other objects are not searched."""
    waiting, seen = [value], set[int]()
    while waiting:  # a container may be deeply nested, or hold itself
        part = waiting.pop()
        if isinstance(part, _jax.array.ARRAYS):
            return True
        if isinstance(part, (tuple, list, dict)) and id(part) not in seen:
            seen.add(id(part))
            waiting.extend(part.values() if isinstance(part, dict) else part)
    return False


def describe_static(value: Any, hint: Any) -> str:
    """The description of a value in a message: with the item that does not fit, or the repr of a container."""
    if wrong := offending_item(value, hint):
        return f"{describe(value)} with {describe(wrong[0])} in it"
    is_plain = isinstance(value, (tuple, list, dict, set, frozenset)) and value_text(value) != describe(value)
    return f"{value_text(value)} ({type(value).__name__})" if is_plain else describe(value)
