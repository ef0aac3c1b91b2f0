"""The user's lines of the equations of jaxprs, and the functions of JAX that made them."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import dropwhile, islice, takewhile
from types import CodeType, FunctionType
from typing import Any, TypeVar

from ..errors.places import Place, installed_package, is_users, running_line
from .jaxpr import all_equations, called_jaxpr
from .primitives import primitive

# JAX's names of the functions that compute gradients.
_GRADIENTS = frozenset(["grad_f", "value_and_grad_f", "grad_f_aux", "value_and_grad_f_aux", "vjp", "jvp", "linearize"])


def source_here() -> Any:
    """The current source info, for equations made here."""
    # Imported here, since jax.extend imports Pallas, a fifth of this library's import time.
    from jax.extend.source_info_util import current

    return current()


@contextmanager
def at_its_own_line() -> Generator[None]:
    """Give the equations of a backward rule their own lines, instead of the line of the differentiated operation."""
    # Imported here as in `source_here`.
    from jax.extend.source_info_util import user_context

    # JAX reads the current line if this value is falsy; None would keep the previous value.
    around: Any = user_context(False)  # type: ignore[arg-type]
    around.__enter__()
    try:
        yield
    finally:
        around.__exit__(None, None, None)  # JAX adds the line of the operation to an exception further out


def equation_place(eqn: Any) -> str:
    """The user's place of an equation, ``train.py:12 (step)``; empty if unknown."""
    frame = next((frame for frame in _frames(eqn) if is_users(frame.file_name)), None)
    return "" if frame is None else _frame_place(frame)


def equation_places(eqn: Any) -> list[str]:
    """The places of all of the user's functions that were running, innermost first."""
    return [_frame_place(frame) for frame in _frames(eqn) if is_users(frame.file_name)]


def place_line(place: str) -> tuple[str, int]:
    """The file and the line of a place."""
    return (place.file, place.line) if isinstance(place, Place) else ("", 0)


def equation_lines(eqn: Any) -> Iterator[tuple[str, int]]:
    """The files and lines of the user's frames of an equation, innermost first."""
    return ((frame.file_name, frame.line_num) for frame in _frames(eqn) if is_users(frame.file_name))


def gradient_place(eqn: Any) -> str:
    """The place of the gradient call of an equation; else the place of the equation."""
    frames = dropwhile(lambda frame: frame.function_name.rpartition(".")[2] not in _GRADIENTS, _frames(eqn))
    outer = next((frame for frame in frames if is_users(frame.file_name)), None)
    return equation_place(eqn) if outer is None else _frame_place(outer)


def called_function(eqn: Any) -> str:
    """The library function that made an equation for the user's line; else the equation's own name."""
    inner = called_jaxpr(eqn)
    name = str(eqn.params.get("name") or getattr(getattr(inner, "debug_info", None), "func_name", "")).lstrip("_")
    if not name.isidentifier():
        name = ([frame.function_name for frame in _library_frames(eqn)] or [""])[-1]
    return name if name.isidentifier() and not name.startswith("_") else str(eqn.primitive.name)


def collective_name(eqn: Any) -> str:
    """The function of a collective: ``psum`` for any of its primitives."""
    name = primitive(eqn.primitive.name).function or eqn.primitive.name
    return "pmean" if name == "psum" and called_function(eqn) == "pmean" else name


def library_functions(eqn: Any) -> set[str]:
    """The functions of JAX between the user's line and an equation, ``mean`` for instance."""
    return {frame.function_name for frame in _library_frames(eqn)}


def is_written_in(eqn: Any, jaxpr: Any) -> bool:
    """Whether the user's program has an equation of a jaxpr, rather than a library function that is traced once.

    An equation of such a function has no line on jax 0.10 and later, and on jax 0.9 that of the first call.
    """
    info = getattr(jaxpr, "debug_info", None)
    file, function = getattr(info, "func_filename", None), str(getattr(info, "func_src_info", "")).partition(" ")[0]
    is_made = any((frame.file_name, frame.function_name) == (file, function) for frame in _library_frames(eqn))
    return equation_place(eqn) != "" and not is_made


def function_line(jaxpr: Any, eqn: Any) -> tuple[str, str, int]:
    """The name, the file and the line of the function from which the jaxpr of an equation was traced.

    For a library's function: those of the user's function that it calls, else the line of the user's call.
    """
    name, file, line = _traced_function(jaxpr)
    if file and is_users(file):
        return name, file, line
    called = next((frame for frame in _called_frames(jaxpr) if is_users(frame.file_name)), None)
    if called is not None:
        return called.function_name.rpartition("<locals>.")[2], called.file_name, called.function_start_line
    file, line = next(equation_lines(eqn), None) or (running_line() or ("", 0))[:2]
    return name, file, line


def library_of(jaxpr: Any) -> str:
    """The installed package of the function that a jaxpr was traced from, unless that calls a user's function."""
    file = _traced_function(jaxpr)[1]
    if is_users(file):
        return ""
    called = list(dict.fromkeys(frame.file_name for frame in _called_frames(jaxpr)))
    if any(map(is_users, called)):
        return ""
    return next((package for path in (file, *called) if (package := installed_package(path))), "")


def function_file(jaxpr: Any) -> str:
    """The file of the function that a jaxpr was traced from; empty if unknown."""
    return _traced_function(jaxpr)[1]


def _called_frames(jaxpr: Any) -> Iterator[Any]:
    """The frames inside the function that a jaxpr was traced from, of each equation, outermost first."""
    file = _traced_function(jaxpr)[1]
    for eqn in all_equations(jaxpr):
        within = [*takewhile(lambda frame: frame.file_name != file, _frames(eqn))]
        yield from reversed(within)


def _traced_function(jaxpr: Any) -> tuple[str, str, int]:
    """The name, the file and the line of the function that a jaxpr was traced from."""
    name, _, place = str(getattr(getattr(jaxpr, "debug_info", None), "func_src_info", "")).partition(" at ")
    file, _, line = place.rpartition(":")
    return (name, file, int(line)) if line.isdecimal() else (name, "", 0)


def _frames(eqn: Any) -> Iterator[Any]:
    """The frames of an equation, innermost first."""
    return iter(getattr(getattr(eqn.source_info, "traceback", None), "frames", ()))


def _library_frames(eqn: Any) -> Iterator[Any]:
    """The frames between the user's line and an equation, innermost first."""
    return takewhile(lambda frame: not is_users(frame.file_name), _frames(eqn))


def _frame_place(frame: Any) -> str:
    return Place.of(frame.file_name, frame.line_num, frame.function_name)


F = TypeVar("F", bound=FunctionType)

COUNTING_SHARDS = set[CodeType]()
"""The code of functions of this library that divide by the number of shards over which they sum."""


def counts_shards(function: F) -> F:
    """Register a function that divides a sum over shards by their number only."""
    COUNTING_SHARDS.add(function.__code__)
    return function


def call_site(eqn: Any) -> tuple[list[Any], Any]:
    """The code of the functions that were running when an equation was made, and the place in the user's code.

    Returns:
      The code objects, innermost first; the user's innermost one with the position in it, else None.
    """
    traceback = getattr(eqn.source_info, "traceback", None)
    if traceback is None or not hasattr(traceback, "raw_frames"):
        return [], None
    codes, positions = traceback.raw_frames()
    frames = zip(codes, positions, strict=True)
    return codes, next(((code, position) for code, position in frames if is_users(code.co_filename)), None)


def call_key(eqn: Any) -> Any:
    """A key for the user's call that made an equation, the same at every run; None if its place is unknown."""
    traceback = getattr(eqn.source_info, "traceback", None)
    if traceback is None or not hasattr(traceback, "raw_frames"):
        return None
    frames = [*zip(*traceback.raw_frames(), strict=True)]
    last = next((at for at, (code, _) in enumerate(frames) if is_users(code.co_filename)), None)
    return None if last is None else (eqn.primitive, *frames[: last + 1])


def expression(eqn: Any) -> str:
    """The user's expression for an equation, if it is on one line and is not the whole value of that line."""
    before, text, after = _written(eqn)
    is_all = not after.strip() and (not before.strip() or before.rstrip().endswith(("=", "return")))
    return "" if is_all or len(text) > _LONGEST else text


def operand(eqn: Any) -> str:
    """The first argument of the user's call for an equation, if it is on one line."""
    text = _written(eqn)[1]
    call = ast.parse(text, mode="eval").body if text else None
    if not isinstance(call, ast.Call) or not call.args:
        return ""
    argument = ast.get_source_segment(text, call.args[0]) or ""
    return argument if len(argument) <= _LONGEST else ""


def takes_shape(eqn: Any) -> bool:
    """Whether an operand in the user's expression for an equation comes from a shape, as in ``x / x.shape[0]``."""
    text = _written(eqn)[1]
    node = ast.parse(text, mode="eval").body if text else None
    return isinstance(node, ast.BinOp) and any(_measures(side) for side in (node.left, node.right))


def _measures(node: ast.expr) -> bool:
    """Whether an expression is the length of a dim, or computed from one."""
    match node:
        case ast.Subscript(ast.Attribute(attr="shape")) | ast.Attribute(attr="size") | ast.Call(ast.Name("len")):
            return True
        case ast.BinOp(left, _, right):
            return _measures(left) or _measures(right)
        case _:
            return False


def _written(eqn: Any) -> tuple[str, str, str]:
    """The user's expression for an equation, and the text before and after it on its line."""
    site = call_site(eqn)[1]
    if site is None:
        return "", "", ""
    code, position = site
    span = next(islice(code.co_positions(), position // 2, None), None)
    if span is None or None in span or span[0] != span[1]:
        return "", "", ""
    line, _, start, end = span
    linecache.checkcache(code.co_filename)
    text = linecache.getline(code.co_filename, line).encode()
    before, expression, after = (part.decode(errors="replace") for part in (text[:start], text[start:end], text[end:]))
    return (before, expression, after) if _is_expression(expression) else ("", "", "")


_LONGEST = 60


def _is_expression(text: str) -> bool:
    """Whether a text is an expression: the file may have changed since it was imported."""
    try:
        return bool(ast.parse(text, mode="eval"))
    except SyntaxError:
        return False


def codes_of(function: Any) -> list[Any]:
    """The code of a function of JAX, and of the function of its module with the same name after an underscore."""
    function = inspect.unwrap(function)
    private = function.__globals__.get(f"_{function.__name__}")
    codes = [getattr(inspect.unwrap(part), "__code__", None) for part in (function, private) if part is not None]
    return [code for code in codes if code is not None]
