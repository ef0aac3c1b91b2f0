"""The values in a function's closure that tie it to one mesh, for messages. Closures are only read."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from ..errors.places import is_users

_SIZES = frozenset(["shape", "size", "axis_sizes", "shape_tuple", "devices"])
"""The attributes of a mesh that say how many shards there are."""


def closed_over_sizes(function: Any, sizes: Mapping[str, int]) -> dict[str, str]:
    """The mesh axes whose size a function may take from its closure, each with words for the source.

    Args:
      function: the function.
      sizes: the axes of its own mesh, with their sizes.
    """
    words: dict[str, str] = {}
    for name, value in closed_over(function):
        if isinstance(value, (Mesh, AbstractMesh)):
            words |= {axis: f"{name}, whose sizes stay what they are" for axis in sizes if axis in value.shape}
            continue
        numbers = set(_numbers(value, are_sizes=True))
        equal = [axis for axis, size in sizes.items() if size > 1 and size in numbers]
        words |= {axis: f"{name}, which may be the size of '{axis}'" for axis in equal}
    return words


def closed_over_numbers(function: Any) -> frozenset[float]:
    """The numbers in a function's closure, which are the same on every mesh; without huge numbers."""
    numbers = (number for _, value in closed_over(function) for number in _numbers(value, are_sizes=False))
    return frozenset(abs(number) for number in numbers if abs(number) < 1e9)


def _numbers(value: Any, are_sizes: bool, depth: int = 3) -> Iterator[float]:
    """The numbers in a value and in its items.

    Args:
      value: the value.
      are_sizes: whether to find sizes: integers, and the lengths of lists, such as a permutation of shards. Otherwise
        numbers in attributes count too.
      depth: the depth of the search.
    """
    if type(value) is int or (type(value) is float and not are_sizes):
        yield value
    elif depth and isinstance(value, (list, tuple, Mapping)):
        items: list[Any] = [*(value.values() if isinstance(value, Mapping) else value)]  # type: ignore[misc]
        if are_sizes and items and all(type(item) in (tuple, int) for item in items):
            yield len(items)
        for item in items[:64]:
            yield from _numbers(item, are_sizes, depth - 1)
    elif depth and not are_sizes and hasattr(value, "__dict__") and not isinstance(value, type | ModuleType):
        yield from _numbers(vars(value), are_sizes, depth - 1)


def closed_over(function: Any) -> Iterator[tuple[str, Any]]:
    """The names and values in the closures of a function and of the functions that it calls; meshes if it reads sizes.

    Methods of other objects are not followed, and functions of libraries only to the functions that they wrap.
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
    """The closed-over values of one function, by name; values without a name are only followed."""
    match function:
        case functools.partial():
            yield "", function.func
            yield from _of_partial(function)
        case MethodType():
            yield "", function.__func__
            yield from _of_method(function)
        case FunctionType():
            yield from _of_python_function(function)
        case _:
            pass
    if (inner := getattr(function, "__wrapped__", None)) is not None:
        yield "", inner


def _of_partial(function: functools.partial[Any]) -> Iterator[tuple[str, Any]]:
    code = getattr(function.func, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    for at, value in enumerate(function.args):
        if code is None or at >= len(names) or _may_say_size(value, names[at], [code]):
            yield f"argument {at}", value
    for name, value in function.keywords.items():
        if code is None or _may_say_size(value, name, [code]):
            yield name, value


def _of_method(method: MethodType) -> Iterator[tuple[str, Any]]:
    """The attributes of a method's owner; a mesh if the method, or a method that it names, reads its sizes."""
    codes, waiting = list[CodeType](), [method.__func__]
    while waiting:
        code = getattr(waiting.pop(), "__code__", None)
        if code is not None and code not in codes:
            codes.append(code)
            members = (inspect.getattr_static(method.__self__, name, None) for name in _names(code))
            waiting += [getattr(member, "fget", None) or getattr(member, "__func__", member) for member in members]
    for name, value in getattr(method.__self__, "__dict__", {}).items():
        if _may_say_size(value, name, codes):
            yield f"self.{name}", value


def _may_say_size(value: Any, name: str, codes: Sequence[CodeType]) -> bool:
    """Whether code may read the size of a mesh axis from a named value."""
    return not isinstance(value, (Mesh, AbstractMesh)) or any(name in _sized(code) for code in codes)


def _of_python_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if not is_users(function.__code__.co_filename):
        yield from (("", _content(cell)) for cell in cells.values())
        return
    for name, attribute in _reads(function.__code__):
        value: Any = _content(cells[name]) if name in cells else function.__globals__.get(name)
        if not isinstance(value, (Mesh, AbstractMesh)) or attribute in _SIZES:
            yield name, value
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = zip(names[::-1], (function.__defaults__ or ())[::-1], strict=False)
    for name, value in (*defaults, *(function.__kwdefaults__ or {}).items()):
        if _may_say_size(value, name, [function.__code__]):
            yield name, value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is assigned later
        return None


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> tuple[str, ...]:
    """The names of globals and attributes that a function and its inner functions read."""
    inner = (name for const in code.co_consts if isinstance(const, CodeType) for name in _names(const))
    return (*code.co_names, *inner)


@functools.lru_cache(maxsize=1024)
def _sized(code: CodeType) -> frozenset[str]:
    """The names, also of attributes, from which a function or an inner function reads an attribute like ``shape``."""
    names = set[str]()
    for load, following in pairwise(dis.get_instructions(code)):
        if following.opname in ("LOAD_ATTR", "LOAD_METHOD") and following.argval in _SIZES:
            names.add(load.argval[-1] if isinstance(load.argval, tuple) else load.argval)
    inner = (_sized(const) for const in code.co_consts if isinstance(const, CodeType))
    return frozenset(names).union(*inner)


@functools.lru_cache(maxsize=1024)
def _reads(code: CodeType) -> tuple[tuple[str, str], ...]:
    """The outer names that a function and its inner functions read, each with the attribute read from it."""
    return tuple(dict.fromkeys(_iterate_reads(code)))


def _iterate_reads(code: CodeType) -> Iterator[tuple[str, str]]:
    for load, following in pairwise(dis.get_instructions(code)):
        if load.opname in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLOSURE"):
            yield load.argval, following.argval if following.opname in ("LOAD_ATTR", "LOAD_METHOD") else ""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _reads(inner)
