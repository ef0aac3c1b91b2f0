"""The command line: its parser, and the options of several verbs."""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import jax
from jax.sharding import AbstractMesh, AxisType

from ..._jax.mesh import abstract_mesh, parse_mesh
from ...drawing import document
from ...errors import TypedShmapError
from ...errors.phrases import did_you_mean, excerpt
from ..explain.tables import Page

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: no failure; a failing function; misuse of the command line; Ctrl-C."""


class UsageError(Exception):
    """Misuse of the command line, with a message."""


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
            if "--mesh" in message and not misspelt:
                message += " dp=4,tp=2, for axes of these sizes"
        self.exit(WRONG, f"{self.prog}: {message}; see --help\n")


def read_meshes(texts: Sequence[str], explicit: bool) -> list[AbstractMesh]:
    """Meshes written as ``dp=4,tp=2``."""
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return [abstract_mesh(read_axis_sizes(text), kind) for text in texts]


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
    explicit = "make the mesh axes Explicit; a mesh of the function, or one that its module sets, may do so, too"
    add("--explicit", action="store_true", help=explicit)


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


def write_page(page: Path | None, title: str, results: Iterable[Page]) -> None:
    """Write the file of ``--html``, if any, or raise a UsageError if it cannot be written."""
    if page is None:
        return
    try:
        page.write_text(document(title, "\n<hr>\n".join(result.html for result in results)), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {page}: {(error.strerror or str(error)).lower()}") from None


MOST_VIRTUAL_DEVICES = 512
DEVICES_FLAG = "--xla_force_host_platform_device_count"


def require_device_count(count: int) -> None:
    """Raise a UsageError for no virtual devices, or for more than a machine can hold."""
    if not 1 <= count <= MOST_VIRTUAL_DEVICES:
        limits = f"the number must be from 1 to {MOST_VIRTUAL_DEVICES}"
        raise UsageError(f"cannot make {count} virtual CPU devices: {limits}")


def virtual_devices(count: int) -> None:
    """Make virtual CPU devices, unless the environment sets their number; call it before JAX looks for devices."""
    require_device_count(count)
    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")
    if DEVICES_FLAG not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", count)
