"""Find the decorated functions of a module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any

import jax

from ..decorated import Decorated, find_decorated
from ..errors.phrases import count
from .failing import told
from .written import WrongUse

_VERBS = ("typed_shard_map", "typed_jit")


@dataclass(frozen=True, slots=True)
class Function:
    """A decorated function, and what its module calls it."""

    name: str
    function: Any
    made_of: Decorated


def find_functions(target: str) -> tuple[list[Function], list[str]]:
    """The functions that a target names.

    Args:
      target: ``package.module`` or ``folder/file.py``: every function that ``typed_shard_map`` or ``typed_jit``
        made there; with ``:name`` that one alone, ``typed`` ones as well, also ``:Class.name``.

    Returns:
      The functions, in the module's order; and what was left out, and why.

    Raises:
      WrongUse: for a module that is not there or cannot be imported, a name that it has not, and a
        function that no decorator of this library made.
    """
    path, _, name = target.partition(":")
    module = _imported(path)
    return ([_named(module, path, name)], []) if name else _all(module, path)


def _imported(path: str) -> ModuleType:
    is_file = path.endswith(".py")
    if is_file and not Path(path).is_file():
        raise WrongUse(f"{path}: there is no such file")
    try:
        return _from_file(Path(path)) if is_file else importlib.import_module(path)
    except Exception as error:  # whatever the module raises
        if isinstance(error, ModuleNotFoundError) and error.name and f"{path}.".startswith(f"{error.name}."):
            raise WrongUse(f"{path}: there is no such module (a file is named with its .py)") from None
        devices = f"(it found {count(jax.device_count(), 'device')}; --devices gives another number of virtual ones)"
        raise WrongUse(f"{path}: cannot be imported {devices}\n{indent(told(error), '    ')}") from error


def _from_file(path: Path) -> ModuleType:
    """A file as a module of its name, which finds its neighbours as a script does."""
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _named(module: ModuleType, path: str, name: str) -> Function:
    found: Any = module
    for step in name.split("."):
        if not hasattr(found, step):
            close = get_close_matches(step, dir(found), n=1)
            did = f" (did you mean '{close[0]}'?)" if close else ""
            raise WrongUse(f"{path}: has no '{name}'{did}")
        found = getattr(found, step)
    made_of = find_decorated(found)
    if made_of is None:
        raise WrongUse(f"{path}: '{name}' was made by none of typed_shard_map, typed_jit and typed")
    return Function(name, found, made_of)


def _all(module: ModuleType, path: str) -> tuple[list[Function], list[str]]:
    seen: set[int] = set()
    functions: list[Function] = []
    left: list[str] = []
    for name, value in vars(module).items():
        made_of = find_decorated(value) if callable(value) and not inspect.isclass(value) else None
        if made_of is not None and _is_own(value, module) and made_of.verb in _VERBS and id(value) not in seen:
            seen.add(id(value))
            functions.append(Function(name, value, made_of))
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            left += _methods(value)
    if not functions and not left:
        raise WrongUse(f"{path}: no function here was made by typed_shard_map or typed_jit")
    return functions, left


def _is_own(value: Any, module: ModuleType) -> bool:
    return getattr(value, "__module__", module.__name__) == module.__name__


def _methods(owner: type) -> Iterator[str]:
    for name, value in vars(owner).items():
        made_of = find_decorated(value) if callable(value) else None
        if made_of is not None and made_of.verb in _VERBS:
            yield f"{owner.__name__}.{name}: a method needs an instance; name that, as in MODULE:instance.{name}"
