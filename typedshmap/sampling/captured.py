"""What a function closes over: its own mesh, which can be replaced for a while, and numbers that may be sizes of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from jax.sharding import AbstractMesh, Mesh, NamedSharding

from .. import _jax
from ..errors.places import is_users


class Captured(NamedTuple):
    """A value that a function closes over, or finds among the globals that it names.

    Attributes:
      name: by what name.
      value: the value.
      replace: puts another in its place, for all functions that share it; None where that cannot be done.
    """

    name: str
    value: Any
    replace: Callable[[Any], None] | None


def captured_values(function: Any) -> Iterator[Captured]:
    """What a function closes over, and the user's functions that it calls by names.

    Not looked into are methods of other objects than its own, and functions of libraries.
    """
    seen, waiting = set[int](), [function]
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        for each in _own_values(found):
            if isinstance(each.value, (FunctionType, MethodType, functools.partial)) or hasattr(
                each.value, "__wrapped__"
            ):
                waiting.append(each.value)
            else:
                yield each


def _own_values(function: Any) -> Iterator[Captured]:
    """What one function closes over; what a partial, or a wrapper, is of."""
    match function:
        case functools.partial():
            named = {**{str(at): value for at, value in enumerate(function.args)}, **function.keywords}
            yield Captured("", function.func, None)
            yield from (Captured(name, value, None) for name, value in named.items())
        case MethodType():
            own = getattr(function.__self__, "__dict__", {})
            yield Captured("", function.__func__, None)
            yield from (Captured(f"self.{name}", value, None) for name, value in own.items())
        case FunctionType():
            yield from _of_python_function(function)
        case _:
            pass
    if (inner := getattr(function, "__wrapped__", None)) is not None:
        yield Captured("", inner, None)


def _of_python_function(function: FunctionType) -> Iterator[Captured]:
    cells: tuple[CellType, ...] = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # a name that is assigned later
            continue
        yield Captured(name, value, functools.partial(setattr, cell, "cell_contents"))
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    yield from (Captured("a default", value, None) for value in defaults)
    if is_users(function.__code__.co_filename):
        numbers = {each for each in _constants(function.__code__) if isinstance(each, int) and each > _COMMON}
        yield from (Captured(f"the number {number}", number, None) for number in sorted(numbers))
        known: dict[str, Any] = function.__globals__
        for name in dict.fromkeys(_names(function.__code__)):
            if name in known:
                yield Captured(name, known[name], functools.partial(known.__setitem__, name))


# A 2 in a program is seldom the size of an axis.
_COMMON = 2


def _constants(code: CodeType) -> Iterator[Any]:
    """The constants of a function's code, and of that of functions within it."""
    for each in code.co_consts:
        yield from _constants(each) if isinstance(each, CodeType) else (each,)


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function's code, and that of functions within it, looks up."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


@contextmanager
def replaced_meshes(function: Any, change: Callable[[_jax.mesh.AnyMesh], _jax.mesh.AnyMesh]) -> Generator[None]:
    """Put other meshes in the place of those that a function closes over, and of those of shardings."""
    with kept_as_it_is(function):
        for _, value, replace in [*captured_values(function)]:
            own = mesh_in(value)
            if replace is not None and own is not None and (mesh := change(own)) is not own:
                replace(NamedSharding(mesh, value.spec) if isinstance(value, NamedSharding) else mesh)  # type: ignore[arg-type]
        yield


@contextmanager
def kept_as_it_is(function: Any) -> Generator[None]:
    """Put back what a function closes over if that is a mesh, or None.

    What ``jax.shard_map`` makes of a function without a mesh keeps the ambient one of its first call.
    """
    kept = [each for each in captured_values(function) if each.value is None or mesh_in(each.value) is not None]
    try:
        yield
    finally:
        for _, value, replace in kept:
            if replace is not None:
                replace(value)


def mesh_in(value: Any) -> _jax.mesh.AnyMesh | None:
    """A mesh, or that of a sharding; None for any other value."""
    if isinstance(value, NamedSharding):
        return value.mesh
    return value if isinstance(value, (Mesh, AbstractMesh)) else None


_DEPTH = 3


def captured_sizes(function: Any, sizes: Mapping[str, int]) -> dict[str, str]:
    """The mesh axes whose size a function may have taken as a number, each with what it closes over.

    Args:
      function: the function.
      sizes: the axes, each with its size.
    """
    found: dict[str, str] = {}
    for name, value, replace in captured_values(function):
        if isinstance(value, (Mesh, AbstractMesh)) and replace is None:
            found |= dict.fromkeys(sizes, name)
        numbers = set(_numbers(value, _DEPTH))
        found |= {axis: name for axis, size in sizes.items() if size > 1 and size in numbers}
    return found


def _numbers(value: Any, depth: int) -> Iterator[int]:
    """The integers in a value, and the lengths of its lists: a permutation of shards is as long as their axis."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        inside: list[Any] = list(value.values() if isinstance(value, dict) else value)  # type: ignore[misc]
        if inside and all(isinstance(each, (tuple, int)) and not isinstance(each, bool) for each in inside):
            yield len(inside)
        for each in inside[:64]:
            yield from _numbers(each, depth - 1)
