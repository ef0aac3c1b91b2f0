"""Hints that are strings (PEP 563): where their names are looked up.

Invariant: the frame of a decoration is looked at and let go. Only values that strings name are kept,
and only while one of their names is not defined yet.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import os
import sys
import types
import typing
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from ..errors import AnnotationSyntaxError, TypedShmapError

_UNPARSED = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Errors of Python's parser, the last two for expressions that are nested too deep."""
_LONGEST = 80


class Undefined(AnnotationSyntaxError):
    """A name in a hint that is not defined yet."""


Undefined.__name__ = AnnotationSyntaxError.__name__
Undefined.__qualname__ = AnnotationSyntaxError.__qualname__
Undefined.__module__ = AnnotationSyntaxError.__module__


def undefined_name(name: str, what: str, error: NameError) -> Undefined:
    """The error for a name that is not defined where a function is decorated."""
    text = f"{name}: the hint of {what} names '{error.name}', which is not defined"
    cure = f"define '{error.name}' above {name}; a name of an outer function must stand in the function around {name}"
    return Undefined(f"{text}\n\nHint: {cure}")


def unwrap_annotations(function: Any) -> Any:
    """The object that carries the annotations: through partials, wrappers, methods, instances."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif not isinstance(function, types.FunctionType):
            # An instance is called by its class's method, whatever attributes it has.
            call = getattr(type(function), "__call__", None)  # noqa: B004 (the function, not whether there is one)
            if not isinstance(call, types.FunctionType):
                return function
            function = call
        else:
            return function


def resolved_hints(function: Any, local: Mapping[str, Any], name: str, covered: Collection[str] = ()) -> dict[str, Any]:
    """A function's annotations, its strings evaluated.

    Args:
      function: the object that carries them.
      local: names beside the function's globals.
      name: the function's name in messages.
      covered: the parameters whose annotations are not read, and may use undefined names.
    """
    annotations = getattr(function, "__annotations__", None) or {}
    found = {parameter: hint for parameter, hint in annotations.items() if parameter not in covered}
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    names = getattr(function, "__globals__", None) or vars(module or builtins)
    for parameter, hint in found.items():
        if not has_string(hint):
            continue
        what = "the result" if parameter == "return" else f"parameter '{parameter}'"
        # By itself, so that it is known which one cannot be read.
        variables = getattr(function, "__type_params__", ())
        alone = types.SimpleNamespace(__annotations__={parameter: hint}, __type_params__=variables)
        try:
            found[parameter] = typing.get_type_hints(alone, names, dict(local), include_extras=True)[parameter]
        except TypedShmapError:
            raise
        except NameError as error:
            raise undefined_name(name, what, error) from None
        except Exception as error:  # whatever the expression raises
            bad = [text for text in _strings_of(hint) if _parse_expression(text) is None]
            if bad:
                text = bad[0] if len(bad[0]) < _LONGEST else bad[0][: _LONGEST - 4] + "..."
                problem = f"a hint is a string that is not a Python expression: {text}"
                raise AnnotationSyntaxError(f"{name}: {problem}") from None
            problem = f"the hint of {what} cannot be read: {error or type(error).__name__}"
            raise AnnotationSyntaxError(f"{name}: {problem}") from error
    return found


def has_string(hint: Any) -> bool:
    """Whether a hint is a string, or has one in it."""
    if isinstance(hint, (str, typing.ForwardRef)):
        return True
    return any(has_string(arg) for arg in typing.get_args(hint) if typing.get_origin(hint) is not typing.Literal)


def _parse_expression(text: str) -> ast.Expression | None:
    """A string as a Python expression; None if it is not one."""
    try:
        return ast.parse(text, mode="eval")
    except _UNPARSED:
        return None


def closure_variables(function: Any) -> dict[str, Any]:
    """What a function closes over, by name."""
    cells = getattr(function, "__closure__", None) or ()
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        with suppress(ValueError):  # a name that is assigned later
            found[name] = cell.cell_contents
    return found


def enclosing_locals(function: Any, frame: types.FrameType | None) -> Mapping[str, Any]:
    """The names local to the function around a function's definition; those of a class body in it first.

    Args:
      function: the function whose hints are read.
      frame: the frame in which it is decorated. Where a helper decorates, the definition is further up
        the stack; where it is not on the stack at all, the frame's names are used, and do not hide the
        function's own globals.
    """
    home = _defining_frame(function, frame)
    found: dict[str, Any] = {}
    around = home or frame
    while around is not None and around.f_locals is not around.f_globals:
        found = {**_locals_of(around), **found}
        if around.f_code.co_flags & inspect.CO_OPTIMIZED:
            break  # a function; a class body is run by the function around it
        around = around.f_back
    known = {} if home is not None else getattr(function, "__globals__", {})
    return {name: value for name, value in found.items() if name not in known}


def _defining_frame(function: Any, frame: types.FrameType | None) -> types.FrameType | None:
    """The frame on the stack in which a function was defined."""
    name, module = str(getattr(function, "__qualname__", "")), getattr(function, "__globals__", None)
    while frame is not None:
        if frame.f_globals is module and name.startswith(f"{frame.f_code.co_qualname}."):
            return frame
        frame = frame.f_back
    return None


def _locals_of(frame: types.FrameType) -> dict[str, Any]:
    """A copy of a frame's local names.

    Before Python 3.13 the frame keeps the dict that it once showed, and with it every value in it
    until its function returns; so that is emptied. The function's own variables are not touched.
    """
    shown = frame.f_locals
    found = dict(shown)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        shown.clear()
    return found


def names_in_annotations(function: Any, local: Mapping[str, Any]) -> Mapping[str, Any]:
    """The local values that strings among a function's annotations name."""
    hints = (getattr(function, "__annotations__", None) or {}).values()
    trees = [tree for hint in hints for text in _strings_of(hint) if (tree := _parse_expression(text)) is not None]
    names = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return {name: local[name] for name in names if name in local}


def _strings_of(hint: Any) -> list[str]:
    if isinstance(hint, str):
        return [hint]
    if isinstance(hint, typing.ForwardRef):
        return [hint.__forward_arg__]
    return [text for arg in typing.get_args(hint) for text in _strings_of(arg)]


def frame_place(frame: types.FrameType | None) -> str:
    """The place of a frame, written as in JAX's jaxprs: ``train.py:12 (step)``."""
    if frame is None:
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} ({frame.f_code.co_name})"


def caller_frame(depth: int) -> types.FrameType | None:
    """The frame ``depth`` calls above the caller of this."""
    frame = inspect.currentframe()
    for _ in range(depth + 1):
        frame = frame.f_back if frame is not None else None
    return frame
