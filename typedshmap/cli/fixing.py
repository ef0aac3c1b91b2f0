"""``--fix`` of ``check`` and ``audit``: try edits in memory, and print the one that holds as a diff."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
from jax.sharding import AbstractMesh

from .. import cli
from ..auditing.findings import Finding, Region
from ..auditing.formats import NOT_RUN
from ..errors.phrases import count_text, mesh_text
from ..errors.places import Place
from ..introspection import require_decorated
from ..repairing.edits import Edit, edits_for
from ..repairing.search import Repair, RepairSearch
from ..sampling.arguments import taken_names
from ..source.module import ParsedModule
from ..source.text import last_name
from .annotate import diff

DEVICES = 8
"""The virtual devices on which edits are tried, where no mesh has more."""
_SECONDS = 120.0


def fix_function(
    function: cli.Function,
    error: BaseException,
    meshes: Sequence[AbstractMesh],
    values: Mapping[str, Any],
    require_types: Callable[[cli.Function], None],
) -> None:
    """Print an edit of a typed function after which it is right, as a diff; or that none was found.

    Args:
      function: the function.
      error: what is wrong with it.
      meshes: the meshes that are asked for.
      values: sizes and arguments.
      require_types: raises what the types say of a function.
    """
    file, line = function.line
    try:
        if function.is_plain:
            raise _Unfixable("it has no hints; audit --fix edits such programs")
        source = _read_source(file)
        search = _search_for(function, source, meshes, values, require_types)
        edits = edits_for(source, search.axes, _places(file, error), line, _cure(str(error)))
        with cli.early_progress(f"check --fix: {function.name}") as report:
            found = search.find(source, edits, _SECONDS, report)
    except _Unfixable as reason:
        print(f"no fix {function.name}  {reason}", flush=True)
        return
    if found is None:
        print(
            f"no fix {function.name}  none of {count_text(search.tried, 'edit')} that were tried is right", flush=True
        )
        return
    _print_fix(function.name, file, source, found, _what_holds(search, found))


def _search_for(
    function: cli.Function,
    source: ParsedModule,
    meshes: Sequence[AbstractMesh],
    values: Mapping[str, Any],
    require_types: Callable[[cli.Function], None],
) -> RepairSearch:
    """How edits of a function are tried.

    Raises:
      _Unfixable: for one that cannot be run on several meshes.
    """
    module = sys.modules[function.function.__module__]

    def load(text: str) -> Any:
        found: Any = _module_of(module, text, function.line[0])
        for step in function.name.rpartition(":")[2].split("."):
            found = getattr(found, step)
        edited = function._replace(function=found, made_of=require_decorated(found, "check"))
        require_types(edited)
        return found

    try:
        known, arguments = taken_names(function.typed), cli.arguments_for(function, values)
        options = {name: value for name, value in function.mark.items() if name not in known}
        small = [dict(mesh.shape_tuple) for mesh in meshes if 1 < mesh.size <= jax.device_count()]
        return RepairSearch(
            function.function, load, small, arguments, bool(options.get("grad")), options.get("exclude", ())
        )
    except Exception as error:
        raise _Unfixable(f"edits cannot be tried: {str(error).partition(chr(10))[0]}") from None


class _Unfixable(Exception):
    """Why no edit can be tried."""


def _read_source(file: str) -> ParsedModule:
    try:
        return ParsedModule.read(file)
    except (OSError, ValueError, SyntaxError):
        raise _Unfixable(f"the text of {os.path.relpath(file)} cannot be read") from None


def _module_of(module: ModuleType, text: str, file: str) -> ModuleType:
    """A module made anew of another text, which stands for it while it is made."""
    made = ModuleType(module.__name__)
    made.__file__, made.__package__, made.__spec__ = file, module.__package__, module.__spec__
    if hasattr(module, "__path__"):
        made.__path__ = module.__path__
    sys.modules[module.__name__] = made
    try:
        exec(compile(text, file, "exec", dont_inherit=True), vars(made))
    finally:
        sys.modules[module.__name__] = module
    return made


def _places(file: str, error: BaseException) -> list[int]:
    """The lines of a file that an error names, its own place first."""
    place = getattr(error, "place", None)
    own = [place.line] if isinstance(place, Place) and os.path.basename(place.file) == os.path.basename(file) else []
    named = re.findall(rf"{re.escape(os.path.basename(file))}:(\d+)", str(error))
    return list(dict.fromkeys([*own, *map(int, named)]))


def _cure(message: str) -> str:
    return " ".join(line for line in message.splitlines() if line.startswith("Hint: "))


def _what_holds(search: RepairSearch, found: Repair) -> str:
    on = "; ".join(mesh_text(mesh.shape.items()) for mesh in (*search.meshes, *search.others))
    gradients = "" if found.has_gradients else "; the gradients of its results, taken from outside, do not"
    proved = "; they are proved to be on all meshes" if search.is_proved(found) else ""
    return f"its types hold, and its results are those of one device on {on}{gradients}{proved}"


def _print_fix(name: str, file: str, source: ParsedModule, found: Repair, holds: str) -> None:
    print(f"fix    {name}  after {count_text(found.tried, 'edit')}: {holds}")
    print(diff(Path(file), source.as_written(), source.as_written(found.text)), end="", flush=True)


# Programs without hints


def fix_program(
    wrong: Sequence[Finding],
    findings: Sequence[Finding],
    regions: Sequence[Region],
    command: Sequence[str],
    environment: Mapping[str, str],
) -> None:
    """Print, for each finding, an edit of the program after which it is gone and none has come, as a diff.

    Args:
      wrong: what is to be cured.
      findings: all that was found.
      regions: what was read.
      command: what audits the program once more and prints a document, to which the file with the edited text is added.
      environment: the environment in which the program began.
    """
    gone, axes = Counter[tuple[str, str]](), _axes_in([*(each.file for each in regions), *command])
    for finding in sorted(wrong, key=lambda each: each.kind == "invariance"):  # which has no place of its own
        key, place = _key(finding), f"{os.path.relpath(finding.file)}:{finding.line}"
        if gone[key] > 0:
            gone[key] -= 1
            continue
        try:
            source = _read_source(finding.file)
        except _Unfixable as reason:
            print(f"no fix {place}  {reason}")
            continue
        edits = edits_for(source, axes, _lines_of(finding), 0, finding.message)
        trial = _ProgramTrial(findings, regions, command, environment)
        found = trial.find(finding, source, [edit for edit in edits if edit.is_identity])
        if found is None:
            print(f"no fix {place}  none of {count_text(trial.tried, 'edit')} that were tried is right", flush=True)
            continue
        gone += trial.gone
        gone[key] -= 1
        holds = f"[{finding.kind}] is gone, nothing else is found, and what is run on other meshes is the same there"
        _print_fix(place, finding.file, source, found, holds)


class _ProgramTrial:
    """Runs a program with edited texts, each in a process of its own."""

    def __init__(
        self,
        findings: Sequence[Finding],
        regions: Sequence[Region],
        command: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self.before, self.regions = Counter(map(_key, findings)), {each.name for each in regions}
        self.not_run = {each.name for each in regions if _is_not_run(each.unread)}
        self.command, self.environment = command, environment
        self.tried, self.gone = 0, Counter[tuple[str, str]]()

    def find(self, finding: Finding, source: ParsedModule, edits: Iterable[Edit]) -> Repair | None:
        """The first edit without which the finding is there, and with which it is not."""
        end = time.monotonic() + _SECONDS
        with cli.early_progress("audit --fix") as report:
            for edit in edits:
                if (left := end - time.monotonic()) <= 0:
                    return None
                self.tried += 1
                report(f"edit {self.tried}, {edit.kind} at line {edit.line}")
                text = source.changed(edit.changes)
                if self._holds(_key(finding), finding.file, text, left):
                    return Repair(edit, text, self.tried, True)
        return None

    def _holds(self, key: tuple[str, str], file: str, text: str, seconds: float) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            job = Path(folder, "texts.json")
            job.write_text(json.dumps({file: text, os.path.abspath(file): text}), encoding="utf-8")
            arguments = [*self.command[:4], f"--edited={job}", *self.command[4:]]
            try:
                done = subprocess.run(
                    arguments, env=dict(self.environment), stdin=subprocess.DEVNULL, capture_output=True,
                    timeout=max(seconds, 1), check=False,
                )  # fmt: skip
                document = json.loads(done.stdout)
            except (subprocess.TimeoutExpired, ValueError):
                return False
        found = document["findings"]
        after = Counter((each["kind"], each["region"]) for each in found)
        is_error = any(each["severity"] == "error" for each in found)
        not_run = {each["name"] for each in document["regions"] if _is_not_run(each["unread"])}
        names = {each["name"] for each in document["regions"]}
        self.gone = self.before - after
        return (
            done.returncode == (cli.FAILED if is_error else cli.DONE)
            and after[key] < self.before[key]
            and not after - self.before
            and not_run <= self.not_run
            and names >= self.regions
        )


def _key(finding: Finding) -> tuple[str, str]:
    return finding.kind, finding.region


def _is_not_run(unread: Iterable[str]) -> bool:
    return any(why.startswith(NOT_RUN) for why in unread)


def _lines_of(finding: Finding) -> list[int]:
    """The lines of its file that a finding names; its own is first, where that is not the function's."""
    named = [*map(int, re.findall(rf"{re.escape(os.path.basename(finding.file))}:(\d+)", finding.message))]
    lines = [*named, finding.line] if finding.kind == "invariance" else [finding.line, *named]
    return list(dict.fromkeys(lines))


_NAME_AXES = frozenset(["P", "PartitionSpec", "make_mesh", "Mesh", "AbstractMesh", "axis_index", "axis_size"])


def _axes_in(files: Iterable[str]) -> list[str]:
    """The mesh axes that files name where they make meshes and PartitionSpecs, and where they communicate."""
    found = list[str]()
    for file in dict.fromkeys(each for each in files if each.endswith(".py") and os.path.isfile(each)):
        try:
            nodes = [*ast.walk(_read_source(file).tree)]
        except _Unfixable:
            continue
        for call in (each for each in nodes if isinstance(each, ast.Call)):
            if last_name(call.func) in _NAME_AXES:
                parts = [part for given in (*call.args, *call.keywords) for part in ast.walk(given)]
                found += [
                    part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)
                ]
    return [axis for axis in dict.fromkeys(found) if axis.isidentifier()]
