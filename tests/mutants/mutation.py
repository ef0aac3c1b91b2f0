"""Make a program from its source, as it stands or with one place changed."""

import linecache
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

HERE = Path(__file__).parent


@dataclass(frozen=True, eq=False)
class Program:
    """A function of a source file, and how it is tried.

    Attributes:
      name: for the table.
      file: its source, from the root of the repository.
      function: which of the file's functions is called.
      meshes: on which it is tried, beside one device.
      given: sizes and arguments, as `typedshmap.testing.inputs` takes them.
      settings: edits of the source that make the program small.
      grad: whether it has gradients, to be compared, too.
      unchecked: whether it is tried under ``check_vma=False``, too; not where it says so itself, or where `jax.grad`
        would mean something else.
    """

    name: str
    file: str
    function: str
    meshes: tuple[dict[str, int], ...]
    given: dict[str, Any] = field(default_factory=dict)
    settings: tuple[tuple[str, str], ...] = ()
    grad: bool = False
    unchecked: bool = True

    @property
    def path(self) -> Path:
        return HERE.parents[1] / self.file


def edited(source: str, old: str, new: str) -> str:
    """A source in which one place is changed, and only one."""
    assert source.count(old) == 1, f"{source.count(old)} places, not one, read: {old}"
    return source.replace(old, new)


def without_types(source: str, function: str) -> str:
    """A source in which that function's region says ``check_vma=False``."""
    return edited(source, f"@typed_shard_map\ndef {function}(", f"@typed_shard_map(check_vma=False)\ndef {function}(")


def source_of(program: Program, *edits: tuple[str, str], check_vma: bool = True) -> str:
    """The program's source, with its settings and these edits."""
    source = program.path.read_text(encoding="utf-8")
    for old, new in (*program.settings, *edits):
        source = edited(source, old, new)
    return source if check_vma else without_types(source, program.function)


def module_of(program: Program, *edits: tuple[str, str], check_vma: bool = True) -> ModuleType:
    """The program's module, run with its settings and these edits."""
    source = source_of(program, *edits, check_vma=check_vma)
    module = ModuleType(f"{program.path.stem}_made_of_source")
    sys.modules[module.__name__] = module  # where dataclasses look for their fields' types
    # Messages quote what is run, not what is in the file; without a time, an entry is kept.
    linecache.cache[str(program.path)] = len(source), None, source.splitlines(keepends=True), str(program.path)
    with mock.patch.dict(os.environ):  # an example sets variables for JAX
        exec(compile(source, str(program.path), "exec"), module.__dict__)
    return module


def function_of(program: Program, *edits: tuple[str, str], check_vma: bool = True) -> Any:
    """The program's function, made anew."""
    return getattr(module_of(program, *edits, check_vma=check_vma), program.function)
