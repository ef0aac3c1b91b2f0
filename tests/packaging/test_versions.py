"""What is declared is true: the lowest versions, the range of JAX, and the table of what was tried."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable

import jax
import pytest
from matrix import LOWEST, ROWS, read_table, with_table
from packaging.requirements import Requirement
from packaging.version import Version
from tree import PACKAGE, ROOT, needs_source

from typedshmap._jax import versions

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGE = ROOT / "docs/runs-on.md"
# Modules of the standard library that a platform without POSIX does not have.
POSIX_ONLY = {"curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}


def declared(requirements: Iterable[str]) -> dict[str, Version]:
    """The lower bound of each requirement."""
    found = {}
    for requirement in map(Requirement, requirements):
        (bound,) = (each for each in requirement.specifier if each.operator == ">=")
        found[requirement.name] = Version(bound.version)
    return found


def pinned() -> dict[str, Version]:
    """What stands in the file of constraints."""
    lines = LOWEST.read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name: Version(version) for name, version in pins}


def test_the_lowest_versions_are_those_that_are_declared() -> None:
    extras = PROJECT["optional-dependencies"]
    own = [each for extra in extras if extra != "lint" for each in extras[extra] if not each.startswith("typedshmap[")]
    assert pinned() == declared([*PROJECT["dependencies"], *own])


def test_the_lowest_jax_is_the_one_that_the_import_demands() -> None:
    assert declared(PROJECT["dependencies"])["jax"] == Version(versions.LOWEST) == pinned()["jax"]


def test_the_table_has_what_the_command_tries() -> None:
    found = read_table(PAGE.read_text(encoding="utf-8"))
    assert list(found) == [(row.python, row.jax) for row in ROWS]
    tried = [Version(row.jax) for row in ROWS]
    assert (min(tried), max(tried)) == (Version(versions.LOWEST), Version(versions.NEWEST_TRIED))
    lowest = [pinned()[name] for name in ("jax", "beartype", "einops", "numpy")]
    assert next([Version(cell) for cell in row[1:5]] for row in found.values()) == lowest
    for row in found.values():
        assert row[5] == "passed"
        assert all(re.fullmatch(r"\d+ passed(, \d+ \w+)*|not run", cell) and "failed" not in cell for cell in row[6:])


def test_a_row_takes_the_place_of_the_one_that_was_there() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, read_table(page).values()) == page
    first, *others = read_table(page).values()
    changed = (*first[:-1], "3 failed")
    assert list(read_table(with_table(page, [changed, *others])).values()) == [changed, *others]


def imported_with(version: str, program: str = "") -> subprocess.CompletedProcess[str]:
    """Import the library beside a JAX that says it is another version."""
    code = f"import jax; jax.__version__ = {version!r}; import typedshmap\n{program}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)


def test_a_jax_that_is_too_old_is_refused_by_one_line() -> None:
    done = imported_with("0.7.2")
    range_tried = f"{versions.LOWEST} or newer (tried up to {versions.NEWEST_TRIED})"
    message = f"ImportError: typedshmap needs jax {range_tried}, but jax 0.7.2 is installed"
    assert done.stderr.splitlines()[-1] == message


FAILS = """
import jax, numpy as np
from jax.sharding import Mesh
from typedshmap import Array, Float, ShapeError, typed_jit, typed_shard_map

mesh = Mesh(np.array(jax.devices()[:1]), ("dp",))

def fail(x: Float[Array, "n"]) -> Float[Array, "n"]:
    raise ValueError("mistake")

def notes(call, kind):
    try:
        call()
    except kind as error:
        return [line for note in getattr(error, "__notes__", []) for line in note.splitlines() if "newer" in line]

x = np.ones(2, np.float32)
print(notes(lambda: typed_shard_map(fail, mesh=mesh)(x), ValueError))
print(notes(lambda: typed_jit(fail, mesh=mesh)(x), ValueError))
print(notes(lambda: typed_shard_map(fail, mesh=mesh)(np.ones((2, 2), np.float32)), ShapeError))
"""


def test_a_jax_that_is_newer_than_any_tried_is_noted_where_something_fails() -> None:
    done = imported_with("99.1.0.dev20991231", FAILS)
    range_tried = f"{versions.LOWEST} to {versions.NEWEST_TRIED}"
    note = f"jax 99.1.0.dev20991231 is newer than any that typedshmap was tried on ({range_tried})"
    assert done.stdout.splitlines() == [str([note]), str([note]), "[]"], done.stderr


@pytest.mark.slow
def test_what_a_newer_jax_no_longer_has_is_noted_when_it_is_imported() -> None:
    broken = "import jax, jax.sharding; jax.__version__ = '99.0'; del jax.sharding.AxisType; import typedshmap"
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True, timeout=600)
    *_, error, note = done.stderr.splitlines()
    assert error.startswith("ImportError: cannot import name 'AxisType'")
    assert note.startswith("jax 99.0 is newer than any that typedshmap was tried on")


def test_the_jax_that_is_installed_was_tried() -> None:
    error = ValueError()
    versions.note_untried(error)
    assert not hasattr(error, "__notes__"), f"jax {jax.__version__}: run tests/packaging/matrix.py"


def posix_only(text: str) -> set[str]:
    """The modules of POSIX that a module imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(text)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in plain | named} & POSIX_ONLY


@needs_source
def test_no_module_imports_what_posix_alone_has() -> None:
    texts = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert {path: found for path, text in texts.items() if (found := posix_only(text))} == {}


@pytest.mark.parametrize("text", ["import os, fcntl", "from resource import getrusage", "def f():\n    import pwd"])
def test_an_import_of_what_posix_alone_has_is_found(text: str) -> None:
    assert len(posix_only(text)) == 1
