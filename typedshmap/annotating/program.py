"""Annotate a program that ran: a plan for each call that was seen, the texts that follow from them, and the run that
accepts these. A call is accepted if the annotated program reached it, and what was traced there has the mesh, the types
and the specs of the plain one."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import jax

from ..auditing.findings import Finding
from ..auditing.region import PlainRegion
from ..auditing.silenced import is_ignored
from ..errors.places import is_users
from ..progress import progress
from ..source.module import ParsedModule
from ..source.text import first_line
from .calls import LeftPlain, MappingCall, mapping_call
from .dims import axis_words, describe
from .editing import MARKED, CallEdit, ModuleEdit, axes_option, edit_module
from .hints import HintWriter
from .notes import FunctionSource
from .recording import MappedSite, innermost
from .static import axes_in, literal_spec

_ROUNDS = 8
_PLACE = re.compile(r"(?: at|, due since) [^\s:]+\.py:\d+(?: \(\w+\))?|; [^;]*# typedshmap: ignore\[[\w-]+\]")


@dataclass
class SitePlan:
    """What becomes of one call.

    Attributes:
      site: the call as it was seen.
      module: its file.
      call: the call in its file.
      left: why it stays plain; empty where it becomes typed.
      findings: what the audit found.
      definition: the function that gets the hints; None where the call does.
      names: the parameter of each argument.
      arguments: the trees that were given for each argument, with hints for leaves, and ``...`` for what is not mapped.
      results: the same of what was returned.
      axes: the code of mesh axes that the specs name by code.
    """

    site: MappedSite
    module: ParsedModule
    call: MappingCall
    left: str = ""
    findings: list[Finding] = field(default_factory=list)
    definition: ast.FunctionDef | None = None
    names: list[str] = field(default_factory=list)
    arguments: list[list[Any]] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)

    def fill(self) -> None:
        """Find out what its hints are, and where they can stand.

        Raises:
          LeftPlain: for a call that cannot be annotated safely.
        """
        site, module, options = self.site, self.module, self.call.options
        for traced in site.traced.values():
            found = PlainRegion(traced.region, {}).read()[1]
            self.findings += [one for one in found if one not in self.findings and not is_ignored(one)]
        if site.failure or not site.traced:
            raise LeftPlain(site.failure or "it was not called")
        if any(found.severity == "error" for found in self.findings):
            raise LeftPlain("the types would refuse it, for what the audit found")
        asked = [module.bound_node(options[name]) for name in ("f", "in_specs", "out_specs") if name in options]
        if len(site.functions) > 1 and all(isinstance(node, ast.arg) for node in asked):
            raise LeftPlain("it maps what its caller gives it, by the specs that its caller gives")
        code, function = next(iter(site.functions.items()))
        has_code = hasattr(code, "co_firstlineno")
        source = FunctionSource.at(code.co_filename, code.co_firstlineno) if has_code else None
        for traced in site.traced.values():
            self.names = _parameters_of(function, len(traced.arguments))
            given = jax.tree_util.tree_leaves_with_path(traced.arguments)
            steps = [path for path, leaf in given if leaf is not ...]
            paths = [f"{self.names[path[0].idx]}{jax.tree_util.keystr(path[1:])}" for path in steps]
            hints, of_results = describe(traced.region, paths, source)
            by_leaf = {**dict(enumerate(hints)), ...: ...}
            self.arguments = self.arguments or [[] for _ in traced.arguments]
            if len(self.arguments) != len(traced.arguments):
                raise LeftPlain("it is called with different numbers of arguments")
            for samples, tree in zip(self.arguments, traced.arguments, strict=True):
                samples.append(jax.tree.map(by_leaf.__getitem__, tree))
            self.results.append(jax.tree.map(of_results.__getitem__, traced.results))
        for name in ("in_specs", "out_specs"):
            with suppress(LeftPlain, KeyError, ValueError):
                written = [*axes_in(literal_spec(module, options[name], self.call.node))]
                pairs = [*zip(written, axes_in(site.options[name]), strict=True)]
                if all(text == axis or text[0] == "=" for text, axis in pairs):
                    self.axes |= {axis: text[1:] for text, axis in pairs if text[0] == "="}
        if has_code and code.co_filename == site.file:
            functions = (node for node in module.nodes(ast.FunctionDef) if first_line(node) == code.co_firstlineno)
            self.definition = next((node for node in functions if node.name == code.co_name), None)

    def edit(self, writer: HintWriter) -> CallEdit:
        """The edit that makes it typed, with hints by a writer for its file.

        Raises:
          LeftPlain: where no hints say what was given.
        """
        code, function = next(iter(self.site.functions.items()))
        function = innermost(function)
        is_closure = hasattr(function, "__globals__")
        around = {**function.__globals__, **inspect.getclosurevars(function).nonlocals} if is_closure else {}
        writer = replace(writer, names=around)
        called = getattr(code, "co_name", "")
        result = writer.hint(self.results, f"{called}_result" if called.isidentifier() else "result")
        hints = {str(at): writer.hint(each, self.names[at]) for at, each in enumerate(self.arguments)}
        if self.definition is not None:
            samples: dict[str, list[Any]] = defaultdict(list)
            for name, each in zip(self.names, self.arguments, strict=True):
                samples[name] += each
            params = [node for node in ast.walk(self.definition.args) if isinstance(node, ast.arg)]
            notes = {param.arg: self.module.code(param.annotation) if param.annotation else "" for param in params}
            hints = {name: _optional(writer.hint(each, name), notes[name]) for name, each in samples.items()}
            hints = {name: hint for name, hint in hints.items() if hint != "Any" or not notes[name]}
        mesh = next(iter(self.site.traced.values())).region.eqn.params["mesh"]
        words = axis_words(mesh.axis_names)
        text = " ".join([*hints.values(), result])
        odd = {axis: f'"{axis}"' for axis, word in words.items() if axis != word}
        axes = {axis: code for axis, code in {**odd, **self.axes}.items() if re.search(rf"[/,+-]{words[axis]}\b", text)}
        options = axes_option(words, axes)
        if auto := self.site.options.get("auto"):
            options["axis_names"] = "{" + ", ".join(f'"{name}"' for name in mesh.axis_names if name not in auto) + "}"
        return CallEdit(self.module, self.call, self.definition, hints, result, options)


class AnnotatedProgram:
    """The files of a program, and the plans for the calls in them.

    Args:
      sites: the calls that were seen.
      script: what ran.
      loaded: the names of the modules that were there before it ran.
    """

    def __init__(self, sites: Sequence[MappedSite], script: str, loaded: Collection[str]) -> None:
        self.script, self.lost = script, list[tuple[str, int, str]]()
        self.modules: dict[str, ParsedModule] = {}
        self.plans: list[SitePlan] = []
        seen: set[ast.Call | None] = set()
        for site in sites:
            try:
                module = self._module(site.file)
                # For Python the call of a method begins at its name.
                ends = {(call.end_lineno, call.end_col_offset): call for call in reversed(module.nodes(ast.Call))}
                seen.add(node := ends.get((site.span[1], site.span[3])))
                if node is None or (call := mapping_call(module, node)) is None or "out_specs" not in call.options:
                    raise LeftPlain("its specs are not seen in the call")
                plan = SitePlan(site, module, call)
            except LeftPlain as reason:
                self.lost.append((site.file, site.span[0] or 0, str(reason)))
                continue
            self.plans.append(plan)
            try:
                plan.fill()
            except LeftPlain as reason:
                plan.left = str(reason)
        # Hints stand on a function only if it is mapped by one call.
        counted = Counter(plan.definition for plan in self.plans)
        for plan in self.plans:
            plan.definition = plan.definition if counted[plan.definition] == 1 else None
        # What else is in the script, and in the modules that it imports: calls that were not seen, and imports.
        files = {name: getattr(module, "__file__", None) or "<frozen " for name, module in [*sys.modules.items()]}
        files = {name: file for name, file in files.items() if name not in loaded and is_users(file)}
        own = {name.partition(".")[0] for name in files}
        self.exported: set[str] = set()
        for file in {*self.modules, *map(self._known, (script, *files.values()))}:
            with suppress(LeftPlain):
                module = self._module(file)
                names = [(module.full_name(alias), alias.name) for alias in module.nodes(ast.alias)]
                names += [(full, node.attr) for node in module.nodes(ast.Attribute) for full in module.imported(node)]
                self.exported |= {name for full, name in names if full[0] == "." or full.partition(".")[0] in own}
                for node in {*module.nodes(ast.Call)} - seen:
                    with suppress(LeftPlain):
                        never = [] if mapping_call(module, node) is None else [(file, node.lineno, "it was not called")]
                        self.lost += never

    def _known(self, path: str) -> str:
        """A file by the name that the program has for it."""
        return next((file for file in self.modules if Path(file).resolve() == Path(path).resolve()), path)

    def _module(self, file: str) -> ParsedModule:
        if file not in self.modules:
            try:
                self.modules[file] = ParsedModule.read(file)
            except (OSError, ValueError, SyntaxError):
                raise LeftPlain("its file cannot be read") from None
        return self.modules[file]

    def left(self) -> list[tuple[str, int, str]]:
        """The file and the line of each call that stays plain, and why."""
        plans = [(plan.site.file, plan.site.span[0] or 0, plan.left) for plan in self.plans if plan.left]
        return sorted([*plans, *self.lost])

    def edited(self, marked: bool) -> dict[str, str]:
        """The new text of each file that changes.

        Args:
          marked: whether each call says its own name for ``typed_shard_map``, and its number, and not that.
        """
        writers: dict[str, HintWriter] = {}
        edits: dict[str, ModuleEdit] = defaultdict(ModuleEdit)

        def home(kind: type) -> HintWriter | None:
            """The writer for the file of the program that defines a class, if it is the only one of its name there."""
            module = sys.modules.get(kind.__module__)
            path = self.script if kind.__module__ == "__main__" else getattr(module, "__file__", None) or "<frozen "
            with suppress(LeftPlain):
                if is_users(path) and len(classes(file := self._known(path), kind)) == 1:
                    return writers.setdefault(file, HintWriter(vars(module), home))
            return None

        def classes(file: str, kind: type) -> list[ast.ClassDef]:
            return [node for node in self._module(file).nodes(ast.ClassDef) if node.name == kind.__name__]

        for number, plan in enumerate(self.plans):
            edit, found = edits[plan.site.file], plan.findings
            texts = [f"typedshmap: {each.severity}[{each.kind}] {_PLACE.sub('', each.message)}" for each in found]
            edit.comments.setdefault(plan.call.node, []).extend(texts)
            try:
                if not plan.left:
                    one = plan.edit(writers.setdefault(plan.site.file, HintWriter({}, home)))
                    options = {**one.options, "number": str(number)}
                    edit.calls.append(replace(one, options=options, word=MARKED) if marked else one)
            except LeftPlain as reason:
                plan.left = str(reason)
        # Of classes only those that hints name, or other classes that they name.
        of_classes = str([(*writer.classes.values(), *writer.typed_dicts.values()) for writer in writers.values()])
        named = {*re.findall(r"\w+", of_classes)}.union(*(edit.words() for edit in edits.values()))
        for file, writer in writers.items():
            edits[file].typed_dicts = {name: fields for name, fields in writer.typed_dicts.items() if name in named}
            for kind, fields in writer.classes.items():
                if fields is not None and kind.__name__ in named:
                    node = classes(file, kind)[0]
                    parts = [part for part in node.body if isinstance(part, ast.AnnAssign)]
                    notes = {ast.unparse(part.target): ast.unparse(part.annotation) for part in parts}
                    hints = {name: _optional(hint, notes.get(name, "")) for name, hint in fields.items()}
                    edits[file].fields[node] = hints
        changed = {
            file: edit for file, edit in edits.items() if edit.calls or any(edit.comments.values()) or edit.fields
        }
        return {file: edit_module(self.modules[file], edit, self.exported) for file, edit in changed.items()}

    def accept(self, code: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Leave the calls that cannot be accepted, until all others are.

        Args:
          code: the exit code of the plain program.
          command: what runs it, to which the file with the texts is added.
          environment: the environment in which the plain one began.
        """
        for _ in range(_ROUNDS):
            texts = self.edited(marked=True)
            plans = {number: plan for number, plan in enumerate(self.plans) if not plan.left}
            if not plans:
                return
            found, last, claims, failures = _run(texts, plans, command, environment)
            wrong = {number: failures[str(number)] for number in plans if str(number) in failures}
            for number, plan in plans.items() if not wrong else ():
                traced = {*claims.get(str(number), ())}
                if not traced:
                    wrong[number] = f"the annotated program does not get to it: {last}"
                elif traced != {one.claims() for one in plan.site.traced.values()}:
                    wrong[number] = "its hints do not say what its specs say"
            if not wrong and found == code:
                return
            wrong = wrong or dict.fromkeys(plans, f"with hints it ends with exit code {found}, not {code}: {last}")
            for number, why in wrong.items():  # the hints may fit the call, and not the function
                plans[number].left = why if plans[number].definition is None else ""
                plans[number].definition = None
        for plan in self.plans:
            plan.left = plan.left or "the annotated program could not be verified"


def _run(
    texts: Mapping[str, str], plans: Mapping[int, SitePlan], command: Sequence[str], environment: Mapping[str, str]
) -> tuple[int, str, Mapping[str, Sequence[str]], Mapping[str, str]]:
    """Run the program with other texts: its exit code, its last words, and what each call traced, or raised."""
    mapped = {
        number: [any(one is not ... for one in each) for each in plan.arguments] for number, plan in plans.items()
    }
    with tempfile.TemporaryDirectory() as folder, progress("annotate") as report:
        report("the annotated program runs")
        job, done = Path(folder, "job.json"), Path(folder, "done.json")
        job.write_text(json.dumps({"texts": dict(texts), "mapped": mapped}), encoding="utf-8")
        arguments, silent = [*command[:4], f"--accept={job}", *command[4:]], subprocess.DEVNULL
        ran = subprocess.run(arguments, env=dict(environment), stdin=silent, stdout=silent, stderr=subprocess.PIPE)
        last = ran.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        found = json.loads(done.read_text(encoding="utf-8")) if done.exists() else {"claims": {}, "failures": {}}
    return ran.returncode, last, found["claims"], found["failures"]


def _optional(hint: str, before: str) -> str:
    """A hint that takes None if the annotation before it did."""
    is_optional = re.search(r"\b(None|Optional)\b", before) is not None and not hint.endswith("None") and hint != "Any"
    return f"{hint} | None" if is_optional else hint


def _parameters_of(function: Callable[..., Any], count: int) -> list[str]:
    """The parameter of each of so many positional arguments."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [f"argument_{at}" for at in range(count)]
    plain = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    star = [p.name for p in found if p.kind is p.VAR_POSITIONAL]
    if len(plain) < count and not star:
        raise LeftPlain("its parameters are not known")
    return [*plain, *repeat("".join(star), count - len(plain))]
