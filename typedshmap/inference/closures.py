"""What a function closes over that ties it to one mesh, so that messages can name it. Closures are only read."""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from jax.sharding import AbstractMesh, Mesh, NamedSharding

from ..errors import TypedShmapError
from ..errors.phrases import mesh_text
from ..errors.places import is_users

_SIZES = frozenset(["shape", "size", "axis_sizes", "shape_tuple", "devices"])
"""The attributes of a mesh that say how many shards there are."""


def closed_over_sizes(function: Any, sizes: Mapping[str, int]) -> dict[str, str]:
    """The mesh axes whose size a function may have from what it closes over, each with the words for that.

    Args:
      function: the function.
      sizes: the axes of its own mesh, each with its size.
    """
    found: dict[str, str] = {}
    for name, value in _closed_over(function):
        if isinstance(value, (Mesh, AbstractMesh)):
            found |= {axis: f"{name}, whose sizes stay what they are" for axis in sizes if axis in value.shape}
            continue
        numbers = set(_numbers(value))
        equal = [axis for axis, size in sizes.items() if size > 1 and size in numbers]
        found |= {axis: f"{name}, which may be the size of '{axis}'" for axis in equal}
    return found


def closed_over_numbers(function: Any) -> frozenset[float]:
    """The numbers that a function has from what it closes over, which are the same on every mesh; no huge ones."""
    found = (number for _, value in _closed_over(function) for number in _constants(value))
    return frozenset(abs(number) for number in found if abs(number) < 1e9)


def _constants(value: Any, depth: int = 3) -> Iterator[float]:
    """The numbers in a value, in its items, or in its attributes."""
    if type(value) in (int, float):
        yield value
    elif depth and isinstance(value, (list, tuple)):
        for item in value[:64]:  # type: ignore[misc]
            yield from _constants(item, depth - 1)
    elif depth and isinstance(value, (dict, Mapping)):
        for item in [*value.values()][:64]:  # type: ignore[misc]
            yield from _constants(item, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type | ModuleType):
        yield from _constants(vars(value), depth - 1)


@contextmanager
def noting_sizes(name: str, function: Callable[..., Any], sizes: Mapping[str, int]) -> Generator[None]:
    """Note on an exception what a function closes over that may be the size of an axis of its own mesh.

    Args:
      name: the function's name.
      function: the function.
      sizes: the axes of its own mesh, each with its size.
    """
    try:
        yield
    except TypedShmapError:  # it says itself what is wrong
        raise
    except Exception as error:
        for axis, words in closed_over_sizes(function, sizes).items():
            right = f"jax.lax.axis_size('{axis}') is right on every mesh"
            error.add_note(f"{name} closes over {words} (its own mesh is {mesh_text(sizes.items())}); {right}")
        if not isinstance(error, AssertionError) and any(map(_is_on_mesh, _closed_over(function))):
            error.add_note(
                f"{name} closes over arrays or shardings of its own mesh, which stay on it: pass arrays as arguments"
            )
        raise


def _is_on_mesh(closed_over: tuple[str, Any]) -> bool:
    sharding = getattr(closed_over[1], "sharding", closed_over[1])
    return isinstance(sharding, NamedSharding) and sharding.num_devices > 1


def _closed_over(function: Any) -> Iterator[tuple[str, Any]]:
    """The names and values that a function, and those that it calls by name, close over; of meshes those it measures.

    Methods of objects other than its own are not followed, and functions of libraries only for what they wrap.
    """
    seen, waiting = set[int](), [function]
    while waiting:
        if id(current := waiting.pop()) in seen:
            continue
        seen.add(id(current))
        for name, value in _own_values(current):
            if isinstance(value, (FunctionType, MethodType, functools.partial)) or hasattr(value, "__wrapped__"):
                waiting.append(value)
            elif name:
                yield name, value


def _own_values(function: Any) -> Iterator[tuple[str, Any]]:
    """What one function closes over, by name; without a name what is only to be followed."""
    match function:
        case functools.partial():
            yield "", function.func
            yield from ((f"argument {at}", value) for at, value in enumerate(function.args))
            yield from function.keywords.items()
        case MethodType():
            yield "", function.__func__
            yield from ((f"self.{name}", value) for name, value in getattr(function.__self__, "__dict__", {}).items())
        case FunctionType():
            yield from _of_python_function(function)
        case _:
            pass
    if (inner := getattr(function, "__wrapped__", None)) is not None:
        yield "", inner


def _of_python_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if not is_users(function.__code__.co_filename):
        yield from (("", _content(cell)) for cell in cells.values())
        return
    for name, attribute in _reads(function.__code__):
        value: Any = _content(cells[name]) if name in cells else function.__globals__.get(name)
        if not isinstance(value, (Mesh, AbstractMesh)) or attribute in _SIZES:
            yield name, value
    defaults = function.__code__.co_varnames[: function.__code__.co_argcount]
    yield from zip(defaults[::-1], (function.__defaults__ or ())[::-1], strict=False)
    yield from (function.__kwdefaults__ or {}).items()


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is assigned later
        return None


@functools.lru_cache(maxsize=1024)
def _reads(code: CodeType) -> tuple[tuple[str, str], ...]:
    """The outer names that a function, and functions within it, read, each with the attribute of it that is read."""
    return tuple(dict.fromkeys(_each_read(code)))


def _each_read(code: CodeType) -> Iterator[tuple[str, str]]:
    for load, following in pairwise(dis.get_instructions(code)):
        if load.opname in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLOSURE"):
            yield load.argval, following.argval if following.opname in ("LOAD_ATTR", "LOAD_METHOD") else ""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _reads(inner)


def _numbers(value: Any, depth: int = 3) -> Iterator[int]:
    """The integers in a value, and the lengths of its lists: a permutation of shards is as long as their axis."""
    if type(value) is int:
        yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        inside: list[Any] = list(value.values() if isinstance(value, dict) else value)  # type: ignore[misc]
        if inside and all(type(item) in (tuple, int) for item in inside):
            yield len(inside)
        for item in inside[:64]:
            yield from _numbers(item, depth - 1)
