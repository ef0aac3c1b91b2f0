"""Lines of the user's source: which line is running, and how a message names it.

Frames of this library, of Python's modules and of installed packages are not the user's."""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import os
import re
import sys
import sysconfig
import types
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

_PACKAGE, _JAX = os.path.dirname(os.path.dirname(__file__)), getattr(find_spec("jax"), "origin", None) or __file__


def _roots(*folders: str) -> tuple[str, ...]:
    return tuple(os.path.abspath(folder) + os.sep for folder in folders)


_TRACING = _roots(_PACKAGE, os.path.dirname(_JAX))
_PYTHON = _roots(sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))

# Code that libraries compile at run time: importlib, beartype, NumPy and attrs.
_GENERATED = ("<frozen ", "<@", "<__array_function__", "<decorator-gen", "<attrs generated")

# A cell of a notebook, by IPython's name of it and by the file that ipykernel gives it.
_CELL = re.compile(r"<ipython-input-(\d+)-|[/\\]ipykernel_\d+[/\\]|[/\\]ipython-input-")


_package: ContextVar[str] = ContextVar("typedshmap_package", default="")


def is_users(file: str) -> bool:
    """Whether a file is the user's own, by its name."""
    package = _package.get()
    return _is_users(file) or (package != "" and file.startswith(package))


@lru_cache(maxsize=4096)
def _is_users(file: str) -> bool:
    return not file.startswith((*_TRACING, *_PYTHON, *_GENERATED)) and not any(part in file for part in _INSTALLED)


@lru_cache(maxsize=4096)
def installed_package(file: str) -> str:
    """The folder of the installed package that has a file; empty for JAX, and for other files."""
    for folder in () if file.startswith(_TRACING) else _INSTALLED:
        before, at, within = file.partition(folder)
        if at:
            package, is_folder, _ = within.partition(os.sep)
            return before + at + package + is_folder
    return ""


@contextmanager
def as_users(package: str) -> Generator[None]:
    """Treat an installed package as the user's code inside a ``with``; an empty name changes nothing."""
    token = _package.set(package)
    try:
        yield
    finally:
        _package.reset(token)


def is_of_package(file: str) -> bool:
    """Whether a file is this library's."""
    return file.startswith(_PACKAGE + os.sep)


class Place(str):
    """A line of the user's source as messages name it: ``train.py:12 (step)``; of a notebook ``In[3]:12 (step)``.

    Attributes:
      file: the path of the file.
      line: the line's number.
    """

    file: str
    line: int

    @classmethod
    def of(cls, file: str, line: int, function: str) -> Place:
        """The place of a line in a function; a nested function has its own name alone."""
        place = cls(f"{_file_text(file)}:{line} ({function.rpartition('<locals>.')[2]})")
        place.file, place.line = file, line
        return place


def _file_text(file: str) -> str:
    cell = _CELL.search(file)
    if cell is None:
        folder, name = os.path.split(file)
        return os.path.join(os.path.basename(folder), name) if name == "__init__.py" else name
    if cell[1]:
        return f"In[{cell[1]}]"
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return named[1] if named else "cell"


_IGNORE = re.compile(r"#\s*typedshmap:\s*ignore(?![\w-])(?:\[(?P<kinds>[^\]]*)\])?")


def is_ignored(file: str, line: int, kind: str) -> bool:
    """Whether a line, or a comment on the line above, says ``# typedshmap: ignore[kind]``; no kind means all kinds."""
    above = linecache.getline(file, line - 1).strip()
    for text in (linecache.getline(file, line), above if above.startswith("#") else ""):
        if comment := _IGNORE.search(text):
            kinds = comment["kinds"]
            return kinds is None or kind in re.split(r"[\s,]+", kinds.strip())
    return False


def running_place(is_traced: bool = False) -> str:
    """The user's line that is running; empty if there is none.

    Args:
      is_traced: whether the line counts only while JAX traces it, so that a traceback leads through JAX.
    """
    frames = list(_frames_from(inspect.currentframe()))
    if is_traced and not any(str(frame.f_globals.get("__name__")).partition(".")[0] == "jax" for frame in frames):
        return ""
    return next((Place.of(*line) for line in _users_lines(frames)), "")


def running_line() -> tuple[str, int, str] | None:
    """The file, the line and the function of the user's running code; None if there is none."""
    return next(running_lines(), None)


def running_lines() -> Iterator[tuple[str, int, str]]:
    """The same for all running functions of the user, innermost first."""
    return _users_lines(_frames_from(inspect.currentframe()))


def _users_lines(frames: Iterable[types.FrameType]) -> Iterator[tuple[str, int, str]]:
    users = (frame for frame in frames if is_users(frame.f_code.co_filename))
    return ((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname) for frame in users)


def _frames_from(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def hint_place(function: Any, parameter: str) -> str:
    """The line of the hint of a parameter, or of ``"return"``; without a hint that of the ``def``."""
    line = hint_line(function, parameter)
    return Place.of(*line) if line is not None else ""


def hint_line(function: Any, parameter: str) -> tuple[str, int, str] | None:
    """The file, the line and the function of a hint; None for a function in C."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = ast.Module([], [])
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != code.co_name:
            continue
        if min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) == code.co_firstlineno:
            hints = {arg.arg: arg.annotation for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
            hint = node.returns if parameter == "return" else hints.get(parameter)
            return code.co_filename, hint.lineno if hint is not None else node.lineno, code.co_qualname
    return code.co_filename, code.co_firstlineno, code.co_qualname


def return_place(function: Any) -> str:
    """The line of a function's only return, else its first line; empty for a function in C."""
    code = getattr(function, "__code__", None)
    if code is None or not is_users(code.co_filename):
        return ""
    ends = (at.positions for at in dis.get_instructions(code) if at.opname.startswith("RETURN_"))
    lines = {positions.lineno for positions in ends if positions is not None}
    line = lines.pop() if len(lines) == 1 else None
    return Place.of(code.co_filename, line or code.co_firstlineno, code.co_qualname)
