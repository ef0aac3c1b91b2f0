"""The target functions of a verb, by module, file or folder, and their arguments."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh

from ... import _jax
from ...errors import StructureError
from ...errors.phrases import count_text, did_you_mean, excerpt
from ...inspection import Signature, find_signature, signature
from ...testing.marks import find_mark
from ..sample.arguments import (
    example_text,
    hints_of,
    is_literal,
    needed_text,
    required_arguments,
    sizes_among,
    taken_names,
)
from ..sample.plain import with_hints
from .options import FAILED, UsageError, misuse, read_meshes, read_values, virtual_devices
from .output import early_progress, format_error, print_failure


class NothingTyped(UsageError):
    """A module without typed functions."""


def read_functions(
    given: argparse.Namespace, targets: Sequence[str], devices: int
) -> tuple[list[Function], dict[str, Any], list[UsageError]]:
    """The functions of the targets, their sizes and arguments, and the errors of targets that cannot be used."""
    virtual_devices(devices if given.devices is None else given.devices)
    values, functions, unusable = read_values(given.size, given.arg), dict[int, Function](), list[UsageError]()
    lent = next(iter(read_meshes([text for text in given.mesh[:1] if text], given.explicit)), None)
    known, folders = set[str](), [target for target in targets if os.path.isdir(target)]
    files = {target: files_below(Path(target)) for target in folders}
    for target in [file for given_target in targets for file in files.get(given_target, [given_target])]:
        try:
            with early_progress(f"{given.name}: importing") as report:
                report(target)
                functions_here = find_functions(target, values, lent)
            known.update(name for function in functions_here for name in names_taken(function, target, values))
        except UsageError as error:
            if target in targets or not isinstance(error, NothingTyped):  # a file of a folder may have no functions
                unusable.append(error)
        else:
            for function in functions_here:
                is_alone = [target] == list(targets)
                functions.setdefault(id(function.function), function if is_alone else function.with_module)
    if not functions:
        below = [f"{folder}: no function below it was made by typed_shard_map or typed_jit" for folder in folders]
        raise UsageError("\n".join(map(str, unusable or below)))
    if unknown := [name for name in values if name.partition(".")[0] not in known]:
        meant = did_you_mean(f"--{unknown[0]}", given.flags) if unknown[0] in given.size_flags else ""
        there = ", ".join(sorted(known))
        raise UsageError(f"no function has a dim or an argument '{unknown[0]}'{meant}; there are {there}")
    return list(functions.values()), values, unusable


def names_taken(function: Function, target: str, values: Iterable[str]) -> Iterable[str]:
    """The names of the sizes and arguments of a function."""
    if function.is_plain:
        return _parameters_of(function.function) or values
    with misuse(f"{target}: "):
        return function.names


class Function(NamedTuple):
    """A decorated function, and its name in its module; or a plain function with hints from its regions.

    The ambient mesh is the mesh that its module set by ``jax.set_mesh``."""

    name: str
    function: Any
    signature: Signature
    module: str = ""
    is_plain: bool = False
    ambient: _jax.mesh.AnyMesh | None = None

    @property
    def with_module(self) -> Function:
        return self._replace(name=f"{self.module}:{self.name}")

    @property
    def line(self) -> tuple[str, int]:
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return (code.co_filename, code.co_firstlineno) if code is not None else (self.module, 0)

    @property
    def names(self) -> set[str]:
        """The names of its dims and parameters."""
        return taken_names(hints_of(self.function)[0])

    def on(self, mesh: AbstractMesh) -> AbstractMesh:
        """A mesh whose axes have the types of the function's own mesh; else Explicit, as in the ambient mesh."""
        is_explicit = bool(mesh.explicit_axes)
        return _jax.mesh.mesh_like(mesh, self.signature.mesh or (None if is_explicit else self.ambient))

    def in_its_module(self) -> AbstractContextManager[Any]:
        """Set the ambient mesh of its module, if any, inside a ``with``."""
        return _ambient(self.ambient)

    @property
    def mark(self) -> Mapping[str, Any]:
        """The sizes, arguments and options of its ``mesh_invariant``."""
        mark = find_mark(self.function)
        return {} if mark is None else mark.options


def find_functions(target: str, values: Mapping[str, Any], mesh: AbstractMesh | None) -> list[Function]:
    """The functions of ``module``, ``file.py`` or ``module:name``, in the module's order; prints omitted functions."""
    path, _, name = target.partition(":")
    value, ambient = _import_module(path)
    with _ambient(ambient):
        functions = _find_in(value, path, name, values, mesh)
    return [function._replace(ambient=ambient) for function in functions]


def _ambient(mesh: _jax.mesh.AnyMesh | None) -> AbstractContextManager[Any]:
    return _jax.mesh.without_ambient_devices() if mesh is None else _jax.mesh.made_ambient(mesh)


def _find_in(value: Any, path: str, name: str, values: Mapping[str, Any], mesh: AbstractMesh | None) -> list[Function]:
    """The functions of a module, or the function with a name."""
    if not name:
        return _find_all(value, path)
    for step in name.split("."):
        if not hasattr(value, step):
            raise UsageError(f"{path}: has no '{name}'{did_you_mean(step, dir(value))}")
        value = getattr(value, step)
    if (hinted := find_signature(value)) is not None:
        return [Function(name, value, hinted, path)]
    if not callable(value):
        raise UsageError(f"{path}: '{name}' is not a function")
    takes = _parameters_of(value)
    arguments = {key: _read_array(value) for key, value in values.items() if takes is None or key in takes}
    try:
        function, _ = with_hints(path, value, (), arguments, mesh)
    except StructureError as error:
        problem = str(error).partition("\n")[0]
        raise UsageError(f'{problem}\n\nHint: its arguments are given as in --arg "x=f32[8,16]"') from None
    except (Exception, SystemExit) as error:  # any exception of the function's code
        print_failure(f"FAIL   {name}", error)
        raise SystemExit(FAILED) from None
    return [Function(name, function, signature(function, path), path, is_plain=True)]


def _parameters_of(f: Any) -> set[str] | None:
    """The parameters of a function without hints; None if it accepts any, or has no signature."""
    try:
        parameters = inspect.signature(f).parameters
    except (TypeError, ValueError):
        return None
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return None if takes_any else set(parameters)


_ARRAY = re.compile(r"(?P<dtype>[a-z0-9_]+)\[(?P<shape>[0-9, ]*)\]")

_DTYPES = {"f": "float", "bf": "bfloat", "i": "int", "s": "int", "u": "uint", "c": "complex"}


def _read_array(value: Any) -> Any:
    """A struct for an array type in JAX's notation, ``f32[8,16]``; any other value unchanged."""
    written = _ARRAY.fullmatch(value.strip()) if isinstance(value, str) else None
    if written is None:
        return value
    kind = written["dtype"].rstrip("0123456789")
    name = _DTYPES.get(kind, kind) + written["dtype"][len(kind) :]
    if name == "key":
        return jax.eval_shape(lambda: jax.random.key(0))
    shape = tuple(int(size) for size in written["shape"].split(",") if size.strip())
    try:
        return jax.ShapeDtypeStruct(shape, jax.numpy.dtype(name))
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"--arg: '{excerpt(value)}' is not an array as in f32[8,16]") from None


_IS_TYPED = re.compile(rb"typedshmap|typed_shard_map|typed_jit")

_NOT_SOURCES = frozenset(["__pycache__", "build", "dist", "node_modules", "site-packages"])


def files_below(folder: Path) -> list[str]:
    """The files below a folder whose text names this library, except hidden, installed and built ones."""
    paths: list[Path] = []
    for path, folders, files in os.walk(folder):
        below = [name for name in sorted(folders) if name not in _NOT_SOURCES and not name.startswith(".")]
        folders[:] = [name for name in below if not os.path.exists(os.path.join(path, name, "pyvenv.cfg"))]
        sources = [Path(path, name) for name in files if name.endswith(".py") and not name.startswith(".")]
        paths += [file for file in sources if file.is_file() and _names_library(file)]
    return [str(file) for file in sorted(paths)]


def _names_library(file: Path) -> bool:
    try:
        return _IS_TYPED.search(file.read_bytes()) is not None
    except OSError:  # the import raises an error with the reason
        return True


def _import_module(path: str) -> tuple[Any, _jax.mesh.AnyMesh | None]:
    """A module by name, or a file, which can import its neighbours like a script; and its ambient mesh.

    A file outside packages starts without the mesh that another file has set. A module of a package keeps it: the
    module that sets it may have been imported before."""
    is_script = path.endswith(".py") and not module_of(Path(path))[1]
    with _jax.mesh.without_ambient_devices() if is_script else nullcontext():
        module = _import(path)
        return module, _jax.mesh.ambient_devices()


def _import(path: str) -> ModuleType:
    file = Path(path)
    if path.endswith(".py") and not os.path.isfile(path):
        raise UsageError(f"{path}: there is no such file")
    try:
        if not path.endswith(".py"):
            return importlib.import_module(path)
        root, name = module_of(file)
        sys.path.insert(0, str(root))
        if name:
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except (Exception, SystemExit) as error:  # any exception of the module
        if isinstance(error, ModuleNotFoundError) and error.name and f"{path}.".startswith(f"{error.name}."):
            raise UsageError(f"{path}: there is no such module (a file is named with its .py)") from None
        devices = f"it found {count_text(jax.device_count(), 'device')}; --devices gives another number of virtual ones"
        raise UsageError(f"{path}: cannot be imported ({devices})\n{indent(format_error(error), '    ')}") from error


def module_of(file: Path) -> tuple[Path, str]:
    """The folder from which a file is imported, and its name as a module of a package; empty outside packages."""
    root, names = file.resolve().parent, [] if file.stem == "__init__" else [file.stem]
    while (root / "__init__.py").exists():
        root, names = root.parent, [root.name, *names]
    return root, ".".join(names) if root != file.resolve().parent else ""


def _find_all(module: ModuleType, path: str) -> list[Function]:
    """The functions defined in a module, each by its first name, without methods, which need an instance."""
    functions: dict[int, Function] = {}
    methods: list[str] = []
    for name, value in vars(module).items():
        if not callable(value) or getattr(value, "__module__", module.__name__) != module.__name__:
            continue
        if inspect.isclass(value):
            methods += [f"{value.__name__}.{attribute}" for attribute, method in vars(value).items() if _mapped(method)]
        elif hinted := _mapped(value):
            functions.setdefault(id(value), Function(name, value, hinted, path))
    if not functions and not methods:
        raise NothingTyped(f"{path}: no function here was made by typed_shard_map or typed_jit")
    for method in methods:
        cure = f"name that, as in MODULE:instance.{method.rpartition('.')[2]}"
        print(f"left   {method}: a method needs an instance; {cure}", file=sys.stderr)
    return list(functions.values())


def _mapped(value: Any) -> Signature | None:
    """The signature of a function of ``typed_shard_map`` or ``typed_jit``; None for anything else."""
    hinted = find_signature(value) if callable(value) else None
    return hinted if hinted is not None and hinted.verb != "typed" else None


def arguments_for(function: Function, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values for a function, and the arguments of its mark, whose sizes are for its own meshes."""
    arguments, problems = read_arguments(function, values)
    if problems:
        raise StructureError(f"{function.name}: {problems}")
    return arguments


def read_arguments(function: Function, values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The arguments of a function, and how to pass the missing arguments, in words; empty if none is missing."""
    if function.is_plain:  # it has them already
        return {}, ""
    (typed, owner), known = hints_of(function.function), function.names
    marked = {name: value for name, value in function.mark.items() if name in known}
    sizes = sizes_among(typed, marked)
    arguments = {name: value for name, value in marked.items() if name not in sizes}
    arguments |= function.mark.get("arguments") or {}
    arguments |= {name: value for name, value in values.items() if name.partition(".")[0] in known}
    problems: list[str] = []
    for name, node in required_arguments(typed, owner).items():
        if name not in arguments:
            cure = f"give it by @mesh_invariant({name}={example_text(node)}), which is in typedshmap.testing"
            cure = f"pass --arg {name}=..." if is_literal(node) else cure
            problems.append(f"{needed_text(name, node)}; {cure}")
    return arguments, "; ".join(problems)
