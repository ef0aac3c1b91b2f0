"""Evaluate hints that are strings; a recursive alias of trees becomes a bare tree.

``optax.OptState``, like any alias such as ``ArrayTree = Array | Iterable["ArrayTree"] | ...``, names itself by a string
that only its own module can look up. It only means a tree of arrays."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ForwardRef

import jax
import numpy as np

from ..errors.places import is_users


class RecursiveTree:
    """The replacement of a recursive alias of trees in a hint."""


RecursiveTree.__module__, RecursiveTree.__qualname__ = "typing", "PyTree"  # the name in messages


def class_hints(cls: type, local: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations of a class and its bases."""
    try:
        return typing.get_type_hints(cls, localns=dict(local), include_extras=True)
    except NameError:
        pass
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, hint in inspect.get_annotations(base).items():
            try:
                hints[name] = resolved_hint(hint, vars(sys.modules.get(base.__module__, types)), local, base)
            except NameError:
                if is_users_class(base):
                    raise
                hints[name] = Any
    return hints


def field_owner(cls: type, name: str) -> type:
    """The class that annotates a field, among a class and its bases."""
    return next((base for base in cls.__mro__ if name in inspect.get_annotations(base)), cls)


def is_users_class(cls: type) -> bool:
    """Whether a class is the user's, not that of an installed library."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file is None or is_users(file)


def resolved_hint(hint: Any, names: dict[str, Any], local: Mapping[str, Any], owner: Any) -> Any:
    """An annotation of a class or a function, with its strings evaluated among module names and local names."""
    variables = getattr(owner, "__type_params__", ())

    def evaluated(hint: Any) -> Any:
        body = {"__annotations__": {"hint": hint}, "__type_params__": variables}
        alone = type("Annotated", (), body) if isinstance(owner, type) else types.SimpleNamespace(**body)
        return typing.get_type_hints(alone, names, dict(local), include_extras=True)["hint"]

    try:
        return evaluated(hint)
    except NameError:
        defined = {**names, **{variable.__name__: variable for variable in variables}, **local}
        written = eval(hint, defined) if isinstance(hint, str) else hint
        plain = without_recursive_aliases(written)
        if plain is written:
            raise
        return evaluated(plain)


_UNIONS = (typing.Union, types.UnionType)


def without_recursive_aliases(hint: Any) -> Any:
    """A hint with `RecursiveTree` for each alias of bare arrays that names itself; the same object without one."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    names = _forward_names(hint)
    if not names or origin in (typing.Literal, Callable):
        return hint
    members = args
    for name in names if origin in _UNIONS else ():
        if _is_recursive_alias(name):
            members = (RecursiveTree, *(member for member in members if not _is_bare(member, name)))
    plain = tuple(map(without_recursive_aliases, members))
    if len(plain) == len(args) and all(new is old for new, old in zip(plain, args, strict=True)):
        return hint
    if origin in _UNIONS:
        return typing.Union[plain]  # noqa: UP007 (made from a tuple)
    return typing.Annotated[plain] if origin is typing.Annotated else origin[plain]  # type: ignore[index]


def _forward_names(hint: Any) -> list[str]:
    """The names that are strings in the items of containers; a shared part is read once."""
    names, parts = dict[str, None](), {id(hint): hint}
    unread = [hint]
    while unread:
        for arg in typing.get_args(unread.pop()):
            if isinstance(arg, (str, ForwardRef)):
                names[_text(arg)] = None
            elif id(arg) not in parts:
                parts[id(arg)] = arg
                unread.append(arg)
    return list(names)


def _text(name: str | ForwardRef) -> str:
    return name.__forward_arg__ if isinstance(name, ForwardRef) else name


def _is_recursive_alias(name: str) -> bool:
    """Whether a module defines a name as a union of bare arrays and trees that names itself."""
    aliases = (getattr(module, "__dict__", {}).get(name) for module in list(sys.modules.values()))
    return any(
        typing.get_origin(alias) in _UNIONS and name in _forward_names(alias) and _is_bare(alias, name)
        for alias in aliases
    )


def _is_bare(hint: Any, name: str) -> bool:
    """Whether a part of the alias of a name only means an array, a number, or a tree of them."""
    if isinstance(hint, (str, ForwardRef)):
        return _text(hint) == name
    if args := typing.get_args(hint):
        return all(_is_bare(arg, name) for arg in args)
    return hint in (Any, ...) or (isinstance(hint, type) and issubclass(hint, (*_PLAIN, RecursiveTree)))


_PLAIN = (jax.Array, np.ndarray, np.generic, bool, int, float, complex, str, bytes, type(None))
