"""Shared code of the verbs: reading functions, meshes, sizes and arguments.

They run on virtual CPU devices, and print errors of the user's program with their place."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from difflib import get_close_matches
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import jax
from jax.sharding import AbstractMesh, AxisType

from ...errors import StructureError, TypedShmapError
from ...errors.phrases import count_text, did_you_mean, excerpt
from ...errors.places import Place
from ...hints.signature import HintedSignature
from ...introspection import DecoratedInfo, bound_self, find_decorated, require_decorated
from ...meshes import mesh_like, parse_mesh
from ...testing.marks import find_mark
from ..audit.report import Finding
from ..progress import progress
from ..sample.arguments import example_text, is_literal, needed_text, required_arguments, sizes_among, taken_names
from ..sample.plain import with_hints

SOON = 1.5
"""The seconds after which a verb reports its progress."""
DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: no failure; a failing function; misuse of the command line; Ctrl-C."""


class UsageError(Exception):
    """Misuse of the command line, with a message."""


class NothingTyped(UsageError):
    """A module without typed functions."""


@contextmanager
def misuse(prefix: str = "") -> Generator[None]:
    """Raise errors of options as misuse, inside a ``with``."""
    try:
        yield
    except (TypedShmapError, ValueError) as error:
        raise UsageError(f"{prefix}{error}") from None


_CHOICE = re.compile(
    r"argument (?P<of>.*?): invalid choice: '?(?P<given>.*?)'? \(choose from (?P<known>.*)\)", re.DOTALL
)


class Parser(argparse.ArgumentParser):
    """A parser with short errors that suggest the nearest name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.flags, self.given = list[str](), list[str]()
        super().__init__(*args, **kwargs)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        self.flags += names
        return super().add_argument(*names, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def refuse_flag(self, text: str) -> NoReturn:
        flag = text.partition("=")[0]
        near = did_you_mean(flag, self.flags)
        is_misspelt = bool(get_close_matches(flag, self.flags, 1, 0.8))
        may_be_size = "--size" in self.flags and not is_misspelt and flag.removeprefix("--").isidentifier()
        size = f"; the size of a dim is a number, as in {excerpt(flag)} 32" if may_be_size else ""
        self.error(f"there is no '{excerpt(flag)}'{near}{size}")

    def error(self, message: str) -> NoReturn:
        if choice := _CHOICE.match(message):
            what, known = "verb" if choice["of"] == "VERB" else choice["of"], re.findall(r"[\w-]+", choice["known"])
            given = choice["given"]
            others = "" if what == "verb" else f"; there are {', '.join(known)}"
            message = f"there is no {what} '{excerpt(given)}'{did_you_mean(given, known)}{others}"
        elif message.startswith("the following arguments are required"):
            flags = (flag.partition("=")[0] for flag in self.given if flag.startswith("--"))
            misspelt = next((flag for flag in flags if not any(known.startswith(flag) for known in self.flags)), None)
            message += f"; there is no '{excerpt(misspelt)}'{did_you_mean(misspelt, self.flags)}" if misspelt else ""
        self.exit(WRONG, f"{self.prog}: {message}; see --help\n")


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
        except NothingTyped as error:
            unusable += [] if folders and target not in targets else [error]
            continue
        except UsageError as error:
            unusable.append(error)
            continue
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
        return taken_names(function.typed)


def read_meshes(texts: Sequence[str], explicit: bool) -> list[AbstractMesh]:
    """Meshes written as ``dp=4,tp=2``."""
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return [
        AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))
        for sizes in map(read_axis_sizes, texts)
    ]


def read_axis_sizes(text: str) -> dict[str, int]:
    """The sizes of the axes in ``--mesh``."""
    with misuse(f"--mesh {excerpt(text) or repr(text)}: "):
        return parse_mesh(text)


_MOST_DIGITS = 18


def natural_number(text: str) -> int:
    """The number of an option, for argparse."""
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"'{excerpt(text)}' is not a whole number of at most {_MOST_DIGITS} digits")
    return int(text)


def read_values(sizes: Sequence[str], arguments: Sequence[str]) -> dict[str, Any]:
    """The sizes (``batch=32``, ``rest=4,8`` for ``*rest``) and arguments (literals, else text) of a command line."""
    values: dict[str, Any] = {}
    for text in " ".join(sizes).split():
        name, value = _split_pair(text, "--size", "batch=32")
        numbers = [number for number in value.split(",") if number]
        if not numbers or not all(number.isdecimal() for number in numbers):
            problem = f"'{excerpt(value)}' is not a size; write a number, or several with commas for *{name}"
            raise UsageError(f"--size {excerpt(text)}: {problem}")
        if max(map(len, numbers)) > _MOST_DIGITS:
            raise UsageError(f"--size {excerpt(text)}: a size has at most {_MOST_DIGITS} digits")
        values[name] = tuple(map(int, numbers)) if "," in value else int(value)
    for text in arguments:
        name, value = _split_pair(text, "--arg", "scale=0.5")
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            values[name] = value
    return values


def _split_pair(text: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = map(str.strip, text.strip().partition("="))
    if not equals or not name.isidentifier():
        text = excerpt(text.strip())
        raise UsageError(f"{option} {text}: '{text}' is not a name and a value, as in {example}")
    return name, value


class Function(NamedTuple):
    """A decorated function, and its name in its module; or a plain one with hints of its regions."""

    name: str
    function: Any
    made_of: DecoratedInfo
    module: str = ""
    is_plain: bool = False

    @property
    def with_module(self) -> Function:
        return self._replace(name=f"{self.module}:{self.name}")

    @property
    def line(self) -> tuple[str, int]:
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return (code.co_filename, code.co_firstlineno) if code is not None else (self.module, 0)

    @property
    def typed(self) -> HintedSignature:
        return self.made_of.signature.read(bound_self(self.function))

    def on(self, mesh: AbstractMesh) -> AbstractMesh:
        """A mesh whose axes have the types of the function's own mesh."""
        return mesh_like(mesh, self.made_of.mesh)

    @property
    def mark(self) -> Mapping[str, Any]:
        """The sizes, arguments and options of its ``mesh_invariant``."""
        mark = find_mark(self.function)
        return {} if mark is None else mark.options


def find_functions(target: str, values: Mapping[str, Any], mesh: AbstractMesh | None) -> list[Function]:
    """The functions of ``module``, ``file.py`` or ``module:name``, in the module's order; prints what is left out."""
    path, _, name = target.partition(":")
    value: Any = _import_module(path)
    if not name:
        return _find_all(value, path)
    for step in name.split("."):
        if not hasattr(value, step):
            raise UsageError(f"{path}: has no '{name}'{did_you_mean(step, dir(value))}")
        value = getattr(value, step)
    made_of = find_decorated(value)
    if made_of is not None:
        return [Function(name, value, made_of, path)]
    if not callable(value):
        raise UsageError(f"{path}: '{name}' is not a function")
    takes = _parameters_of(value)
    arguments = {key: _read_array(value) for key, value in values.items() if takes is None or key in takes}
    try:
        hinted, _ = with_hints(path, value, (), arguments, mesh)
    except StructureError as error:
        problem = str(error).partition("\n")[0]
        raise UsageError(f'{problem}\n\nHint: its arguments are given as in --arg "x=f32[8,16]"') from None
    except (Exception, SystemExit) as error:  # whatever the function's own code raises
        print_failure(f"FAIL   {name}", error)
        raise SystemExit(FAILED) from None
    return [Function(name, hinted, require_decorated(hinted, path), path, is_plain=True)]


def _parameters_of(f: Any) -> set[str] | None:
    """The parameters of a function without hints; None if it takes any, or has no signature."""
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
    except OSError:  # the import raises, with the reason
        return True


def _import_module(path: str) -> ModuleType:
    """A module by name; or a file as a module of its name, which finds its neighbours like a script."""
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
    except (Exception, SystemExit) as error:  # whatever the module raises
        if isinstance(error, ModuleNotFoundError) and error.name and f"{path}.".startswith(f"{error.name}."):
            raise UsageError(f"{path}: there is no such module (a file is named with its .py)") from None
        devices = f"it found {count_text(jax.device_count(), 'device')}; --devices gives another number of virtual ones"
        raise UsageError(f"{path}: cannot be imported ({devices})\n{indent(format_error(error), '    ')}") from error


def module_of(file: Path) -> tuple[Path, str]:
    """The folder from which a file is imported, and its name as a module of a package; empty outside of packages."""
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
        elif made_of := _mapped(value):
            functions.setdefault(id(value), Function(name, value, made_of, path))
    if not functions and not methods:
        raise NothingTyped(f"{path}: no function here was made by typed_shard_map or typed_jit")
    for method in methods:
        cure = f"name that, as in MODULE:instance.{method.rpartition('.')[2]}"
        print(f"left   {method}: a method needs an instance; {cure}", file=sys.stderr)
    return list(functions.values())


def _mapped(value: Any) -> DecoratedInfo | None:
    """The info of a function of ``typed_shard_map`` or ``typed_jit``; None for anything else."""
    made_of = find_decorated(value) if callable(value) else None
    return made_of if made_of is not None and made_of.verb != "typed" else None


def arguments_for(function: Function, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a function takes, and the arguments of its mark, whose sizes are for its own meshes."""
    if function.is_plain:  # it has them already
        return {}
    typed = function.typed
    known = taken_names(typed)
    marked = {name: value for name, value in function.mark.items() if name in known}
    sizes = sizes_among(typed, marked)
    arguments = {name: value for name, value in marked.items() if name not in sizes}
    arguments |= function.mark.get("arguments") or {}
    arguments |= {name: value for name, value in values.items() if name.partition(".")[0] in known}
    problems: list[str] = []
    for name, node in required_arguments(typed, bound_self(function.function)).items():
        if name not in arguments:
            cure = f"give it by @mesh_invariant({name}={example_text(node)}), which is in typedshmap.testing"
            cure = f"pass --arg {name}=..." if is_literal(node) else cure
            problems.append(f"{needed_text(name, node)}; {cure}")
    if problems:
        raise StructureError(f"{function.name}: {'; '.join(problems)}")
    return arguments


def add_target(parser: Parser) -> None:
    """Add the argument of a verb that takes one module."""
    parser.add_argument("target", metavar="MODULE[:FUNCTION]", help="a module or a file.py, or one function of it")


def add_page(parser: Parser, shown: str) -> None:
    """Add the options of a verb that writes a page of HTML."""
    parser.add_argument("--html", metavar="FILE", help=f"also write a page with {shown}")
    parser.add_argument("--force", action="store_true", help="let --html overwrite a file that is not HTML")


def add_common(parser: Parser) -> None:
    """Add the options for the meshes and sizes with which functions are traced."""
    add = parser.add_argument
    add("--mesh", action="append", required=True, metavar="dp=4,tp=2", help="a mesh; repeat the option for several")
    add_values(parser)
    devices = "how many virtual CPU devices the module finds; by default as many as the first mesh has"
    add("--devices", type=natural_number, metavar="8", help=devices)


def add_values(parser: Parser) -> None:
    """Add the options for the sizes and arguments of functions."""
    add = parser.add_argument
    size = "the global size of a dim, also as --batch 32; other sizes are drawn"
    parser.allow_abbrev = False  # any other flag may be a dim
    parser.set_defaults(flags=parser.flags)
    add("--size", action="append", default=[], metavar="batch=32", help=size)
    argument = "an argument that cannot be made from its hint; for a function without hints also an array: x=f32[8,16]"
    add("--arg", action="append", default=[], metavar="scale=0.5", help=argument)
    add(
        "--explicit", action="store_true", help="make the mesh axes Explicit, unless the function has a mesh of its own"
    )


def read_size_flags(given: argparse.Namespace, unknown: Sequence[str]) -> list[str]:
    """Read options that a verb does not have, ``--batch 32`` or ``--batch=32``, as sizes of dims; return the rest."""
    rest, left = list(unknown), list[str]()
    given.size_flags = list[str]()
    while rest:
        flag, equals, size = rest.pop(0).partition("=")
        if flag.startswith("--") and (size if equals else "".join(rest[:1]))[:1].isdecimal():
            name = flag.removeprefix("--")
            given.size_flags.append(name)
            given.size.append(f"{name}={size if equals else rest.pop(0)}")
        else:
            left.append(f"{flag}{equals}{size}")
    return left


def require_one_module(target: str) -> None:
    """Raise a UsageError for a folder."""
    if os.path.isdir(target):
        raise UsageError(f"{target}: it is a folder; name a module, a file.py or one function of it")


def page_to_write(name: str | None, is_forced: bool) -> Path | None:
    """The file of ``--html``."""
    page = None if name is None else Path(name)
    if page is not None and not page.parent.is_dir():
        raise UsageError(f"--html {name}: there is no folder '{page.parent}'")
    if page is not None and page.exists() and page.suffix.lower() not in (".html", ".htm") and not is_forced:
        raise UsageError(f"--html {name}: the file exists, and is not a page of HTML; --force writes over it")
    return page


def write_page(page: Path, text: str) -> None:
    """Write the file of ``--html``, or raise a UsageError if it cannot be written."""
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {page}: {(error.strerror or str(error)).lower()}") from None


MOST = 512
DEVICES_FLAG = "--xla_force_host_platform_device_count"


def require_device_count(count: int) -> None:
    """Raise a UsageError for no virtual devices, or for more than one machine has room for."""
    if not 1 <= count <= MOST:
        raise UsageError(f"{count} virtual CPU devices are asked for; 1 to {MOST} can be made")


def virtual_devices(count: int) -> None:
    """Make virtual CPU devices, unless the environment sets their number; call it before JAX looks for devices."""
    require_device_count(count)
    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")
    if DEVICES_FLAG not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", count)


_OF_JAX = "--------------------"
"""The beginning of JAX's note on a filtered traceback."""
_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"


def format_error(error: BaseException) -> str:
    """An error for printing; an error of the user's program has its place."""
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(_OF_JAX)]
    lines = [f"{type(error).__name__}: {error}", *notes]
    if not isinstance(error, TypedShmapError | AssertionError):
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_user(frame.filename)]
        lines += [f"At: {frame.filename}:{frame.lineno} ({frame.name})" for frame in frames[-1:]]
    return "\n".join(lines)


def print_failure(line: str, error: BaseException, more: str = "") -> None:
    """Print the error of a function, under a line with its name."""
    print(f"{line}\n{indent(format_error(error) + more, '       ')}", flush=True)


def finding_of_error(function: Function, error: BaseException, where: str) -> Finding:
    """The error of a function as a finding, at the place of the error, else at that of the function."""
    file, line = function.line
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_user(frame.filename)]
    if isinstance(place := getattr(error, "place", None), Place):
        file, line = place.file, place.line
    elif frames and not isinstance(error, TypedShmapError | AssertionError):
        file, line = frames[-1].filename, frames[-1].lineno or line
    name = type(error).__name__.removesuffix("Error")
    kind = "invariance" if isinstance(error, AssertionError) else re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
    first, *rest = str(error).splitlines() or [name]
    cure = "".join(f"; {text.removeprefix('Hint: ')}" for text in rest if text.startswith("Hint: "))
    return Finding("error", kind, f"{first} ({where}){cure}", file, line, function.name)


def early_progress(title: str) -> AbstractContextManager[Callable[[str], None]]:
    """Report the progress of a verb on stderr, as soon as it takes long."""
    return progress(title, SOON)


@contextmanager
def output_on_stderr() -> Generator[None]:
    """Redirect the output of a program, and of its own processes, to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _is_of_user(filename: str) -> bool:
    return not filename.startswith(("<", _PACKAGE)) and not any(
        part in filename for part in ("site-packages", "importlib")
    )
