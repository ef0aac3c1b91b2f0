"""Annotate a program that ran: a plan for each call that was seen, and the texts that follow from the plans."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import libcst as cst
from jax.sharding import PartitionSpec

from ..auditing.findings import Finding
from ..auditing.region import PlainRegion
from ..auditing.silenced import is_ignored
from ..errors.places import is_users
from .describe import LeafHint, describe
from .editing import (
    SHARED,
    CallEdit,
    LeftPlain,
    ModuleEdit,
    axes_option,
    edit_module,
    option_calls,
    options_of,
    shared_calls,
)
from .function_source import FunctionSource
from .hints import HintWriter
from .module import ParsedModule
from .recording import MappedSite, TracedCall, Tree
from .static import literal_calls

_PLACE = re.compile(r"(?: at|, due since) [^\s:]+\.py:\d+(?: \(\w+\))?")
_SILENCED = re.compile(r"; [^;]*# typedshmap: ignore\[[\w-]+\]")

Samples = list[tuple[Tree, Sequence[LeafHint | None]]]


@dataclass
class SitePlan:
    """What becomes of one call.

    Attributes:
      site: the call.
      module: its file.
      calls: the call in its file, and those that give it options.
      left: why it stays plain; empty where it becomes typed.
      findings: what the audit found.
      definition: the function that can have the hints; None where only the call can.
      on_definition: whether they stand there.
      names: the parameter of each argument.
      arguments: the trees that were given for each argument, with hints for their leaves.
      results: the same of what was returned.
      axes: the code of mesh axes that hints name otherwise.
    """

    site: MappedSite
    module: ParsedModule
    calls: tuple[cst.Call, ...]
    left: str = ""
    findings: list[Finding] = field(default_factory=list)
    definition: cst.FunctionDef | None = None
    on_definition: bool = False
    names: list[str] = field(default_factory=list)
    arguments: list[Samples] = field(default_factory=list)
    results: Samples = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)

    def is_mapped(self, at: int) -> bool:
        """Whether an argument has a spec."""
        return any(next(tree.leaves(), None) is not None or tree.kind is not None for tree, _ in self.arguments[at])

    def fill(self) -> None:
        """Find out what its hints are, and where they can stand.

        Raises:
          LeftPlain: for a call that cannot be annotated safely.
        """
        site, module = self.site, self.module
        for traced in site.traced.values():
            found = PlainRegion(traced.region, {}).read()[1]
            self.findings += [one for one in found if one not in self.findings and not is_ignored(one)]
        if site.failure or not site.traced:
            raise LeftPlain(site.failure or "it was not called")
        if any(found.severity == "error" for found in self.findings):
            raise LeftPlain("the types would refuse it, for what the audit found")
        options: dict[str, cst.BaseExpression] = {}
        for call in self.calls:
            own = options_of(module, call, call is self.calls[-1])
            options = {name: arg.value for name, arg in own.items()} | options
        if "out_specs" not in options:
            raise LeftPlain("its specs are not seen in the call")
        if len(site.functions) > 1 and all(map(module.is_parameter, map(options.get, ("f", "in_specs", "out_specs")))):
            raise LeftPlain("it maps what its caller gives it, by the specs that its caller gives")
        (code, function), *others = site.functions.items()
        has_source = hasattr(code, "co_firstlineno")
        source = FunctionSource.at(code.co_filename, code.co_firstlineno) if has_source else None
        groups: dict[Any, list[TracedCall]] = {}
        for traced in site.traced.values():
            groups.setdefault((traced.arguments, traced.results), []).append(traced)
        for (arguments, results), traces in groups.items():
            self.names = parameters_of(function, len(arguments))
            paths = [path for name, tree in zip(self.names, arguments, strict=True) for path in _paths(tree, name)]
            described = describe([traced.region for traced in traces], paths, source)
            self.axes |= {word: f'"{axis}"' for word, axis in described.axes.items()}
            self.arguments = self.arguments or [[] for _ in arguments]
            if len(self.arguments) != len(arguments):
                raise LeftPlain("it is called with different numbers of arguments")
            for samples, tree in zip(self.arguments, arguments, strict=True):
                samples.append((tree, described.arguments))
            self.results.append((results, described.results))
        for name in ("in_specs", "out_specs"):
            if name in options:
                self.axes |= _axes_by_code(module, self.calls[0], options[name], site.options.get(name))
        binds_positions = bool(getattr(function, "args", ()))  # a partial
        if not others and has_source and code.co_filename == site.file and not binds_positions:
            self.definition = module.function_at(code.co_firstlineno, code.co_name)

    def edit(self, writer: HintWriter) -> CallEdit:
        """The edit that makes it typed, with hints by a writer for its file.

        Raises:
          LeftPlain: where no hints say what was given.
        """
        code, function = next(iter(self.site.functions.items()))
        writer = replace(writer, names=_names_around(function))
        options = axes_option(self.axes)
        if auto := self.site.options.get("auto"):
            names = [axis for axis in self.site.options["mesh"].axis_names if axis not in auto]
            options["axis_names"] = "{" + ", ".join(f'"{name}"' for name in names) + "}"
        result = writer.hint(self.results, f"{getattr(code, 'co_name', 'result')}_result")
        named = [*zip(self.names, self.arguments, strict=True)]
        if not self.on_definition or self.definition is None:
            hints = {str(at): writer.hint(samples, name) for at, (name, samples) in enumerate(named)}
            return CallEdit(self.calls, None, hints, result, options)
        samples_of: dict[str, Samples] = defaultdict(list)
        for name, samples in named:
            samples_of[name] += samples
        notes = {node.name.value: node.annotation for node in self.module.parameters(self.definition)}
        hints = {
            name: hint if note is None else _optional(hint, self.module.code(note.annotation))
            for name, samples in samples_of.items()
            if (hint := writer.hint(samples, name)) != "Any" or notes[name] is None
            for note in [notes[name]]
        }
        return CallEdit(self.calls, self.definition, hints, result, options)


class AnnotatedProgram:
    """The files of a program, and the plans for the calls in them.

    Args:
      sites: the calls that were seen.
      script: what ran.
      loaded: the names of the modules that were there before it ran.
    """

    def __init__(self, sites: Sequence[MappedSite], script: str, loaded: Collection[str]) -> None:
        self.script = script
        imported = [module for name, module in sys.modules.items() if name not in loaded]
        self._imported = [each for each in imported if is_users(getattr(each, "__file__", None) or "<frozen ")]
        self.texts: dict[str, str] = {}
        self.modules: dict[str, ParsedModule] = {}
        self.plans: list[SitePlan] = []
        self.lost: list[tuple[str, int, str]] = []
        for site in sites:
            try:
                module = self._module(site.file)
            except LeftPlain as reason:
                self.lost.append((site.file, site.span[0] or 0, str(reason)))
                continue
            if (node := module.call_at(site.span)) is None:
                self.lost.append((site.file, site.span[0] or 0, "the call is not found in the file"))
                continue
            plan = SitePlan(site, module, option_calls(module, node))
            self.plans.append(plan)
            try:
                plan.fill()
            except LeftPlain as reason:
                plan.left = str(reason)
        # Hints stand on a function only if it is mapped by one call.
        counted = Counter(id(plan.definition) for plan in self.plans)
        for plan in self.plans:
            plan.on_definition = plan.definition is not None and counted[id(plan.definition)] == 1
        self.lost += self._calls_that_never_ran()

    def _calls_that_never_ran(self) -> Iterator[tuple[str, int, str]]:
        """The calls in the script, and in the modules that it imports, that were not seen."""
        seen = {call for plan in self.plans for call in plan.calls}
        files = {str(Path(file).resolve()): file for file in self.modules}
        for file in (*(str(module.__file__) for module in self._imported), self.script):
            if Path(file).is_file():
                files.setdefault(str(Path(file).resolve()), file)
        for file in files.values():
            with suppress(LeftPlain):
                never = literal_calls(self._module(file)) if "shard_map" in self._text(file) else []
                lines = [self._module(file).line(call.calls[0]) for call in never if not seen & {*call.calls}]
                yield from ((file, line, "it was not called") for line in lines)

    def _text(self, file: str) -> str:
        try:
            if file not in self.texts:
                with Path(file).open(encoding="utf-8", newline="") as opened:
                    self.texts[file] = opened.read()
        except (OSError, ValueError):
            raise LeftPlain("its file cannot be read") from None
        return self.texts[file]

    def _module(self, file: str) -> ParsedModule:
        try:
            return self.modules.setdefault(file, self.modules.get(file) or ParsedModule(self._text(file)))
        except cst.ParserSyntaxError:
            raise LeftPlain("its file cannot be read") from None

    def left(self) -> list[tuple[str, int, str]]:
        """The file and the line of each call that stays plain, and why."""
        plans = [(plan.site.file, plan.site.span[0] or 0, plan.left) for plan in self.plans if plan.left]
        return sorted([*plans, *self.lost])

    def edited(self, marked: bool) -> dict[str, str]:
        """The new text of each file that changes.

        Args:
          marked: whether each call says its own name for ``typed_shard_map``, and not that.
        """
        for file, module in self.modules.items():
            plans = [plan for plan in self.plans if plan.site.file == file and not plan.left]
            for at in shared_calls(module, {at: plan.calls for at, plan in enumerate(plans)}):
                plans[at].left = SHARED
        edits: dict[str, ModuleEdit] = defaultdict(ModuleEdit)
        writers: dict[str, HintWriter] = {}

        def home(kind: type) -> HintWriter | None:
            module, file = sys.modules.get(kind.__module__), self._file_with(kind)
            return writers.setdefault(file, HintWriter(vars(module), home)) if module is not None and file else None

        for number, plan in enumerate(self.plans):
            edit = edits[plan.site.file]
            texts = [_SILENCED.sub("", _PLACE.sub("", found.message)) for found in plan.findings]
            edit.comments.setdefault(plan.calls[0], []).extend(
                f"typedshmap: {found.severity}[{found.kind}] {text}"
                for found, text in zip(plan.findings, texts, strict=True)
            )
            try:
                if not plan.left:
                    one = plan.edit(writers.setdefault(plan.site.file, HintWriter({}, home)))
                    edit.calls.append(one.marked(number) if marked else one)
            except LeftPlain as reason:
                plan.left = str(reason)
        # Of classes only those that hints name, or other classes that they name.
        of_fields = [
            fields for writer in writers.values() for fields in (*writer.classes.values(), *writer.typed_dicts.values())
        ]
        every = " ".join(
            [*(edit.hints() for edit in edits.values()), *(" ".join((each or {}).values()) for each in of_fields)]
        )
        for file, writer in writers.items():
            edit, module = edits[file], self.modules[file]
            edit.typed_dicts = {name: fields for name, fields in writer.typed_dicts.items() if name in every}
            for kind, fields in writer.classes.items():
                if fields is not None and (node := module.class_named(kind.__name__)) and kind.__name__ in every:
                    found = [part for part in ast.walk(ast.parse(module.code(node))) if isinstance(part, ast.AnnAssign)]
                    notes = {ast.unparse(part.target): ast.unparse(part.annotation) for part in found}
                    edit.fields[node] = {name: _optional(hint, notes.get(name, "")) for name, hint in fields.items()}
        words = {word for writer in writers.values() for word in writer.words}
        changed = {
            file: edit for file, edit in edits.items() if edit.calls or any(edit.comments.values()) or edit.fields
        }
        return {file: edit_module(self.modules[file], edit, self._exported, words) for file, edit in changed.items()}

    @cached_property
    def _exported(self) -> set[str]:
        """The names that the program's modules import from each other."""
        found: set[str] = set()
        for module in self._imported:
            with suppress(OSError, TypeError, SyntaxError):
                for node in ast.walk(ast.parse(inspect.getsource(module))):
                    if isinstance(node, ast.ImportFrom):
                        root = sys.modules.get((node.module or "").partition(".")[0])
                        is_own = node.level or root in self._imported
                        found |= {alias.name for alias in node.names} if is_own else set()
                    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                        found |= {node.attr} if vars(module).get(node.value.id) in self._imported else set()
        return found

    def _file_with(self, kind: type) -> str | None:
        """The file of the program that defines a class."""
        module = sys.modules.get(kind.__module__)
        where = self.script if kind.__module__ == "__main__" else getattr(module, "__file__", None) or "<frozen "
        file = next((known for known in self.modules if Path(known).resolve() == Path(where).resolve()), where)
        with suppress(LeftPlain):
            return file if is_users(file) and self._module(file).class_named(kind.__name__) is not None else None
        return None


def _optional(hint: str, before: str) -> str:
    """A hint that takes None if the annotation before it did."""
    is_optional = re.search(r"\b(None|Optional)\b", before) is not None and not hint.endswith("None") and hint != "Any"
    return f"{hint} | None" if is_optional else hint


def parameters_of(function: Callable[..., Any], count: int) -> list[str]:
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


def _paths(tree: Tree, path: str) -> list[str]:
    if tree.kind is None:
        return [path] if tree.leaf >= 0 else []
    return [found for key, item in tree.items for found in _paths(item, f"{path}[{key!r}]")]


def _axes_by_code(module: ParsedModule, call: cst.Call, node: cst.BaseExpression, specs: Any) -> dict[str, str]:
    """The mesh axes that specs name by code that is no constant, as ``P(config.axis)``, each with the code."""
    if isinstance(node, cst.Name) and (value := module.bound_value(node)) is not None:
        return _axes_by_code(module, call, value, specs)
    if isinstance(node, cst.Tuple) and isinstance(specs, tuple) and len(specs) == len(node.elements):
        pairs = zip((element.value for element in node.elements), specs, strict=True)
    elif isinstance(node, cst.Call) and isinstance(specs, PartitionSpec) and len(node.args) == len(specs):
        pairs = zip((arg.value for arg in node.args), specs, strict=True)
    elif isinstance(specs, str) and isinstance(node, cst.Attribute | cst.Name) and module.means_the_same(node, call):
        return {specs: module.code(node)} if specs.isidentifier() else {}
    else:
        return {}
    return {axis: code for part, spec in pairs for axis, code in _axes_by_code(module, call, part, spec).items()}


def _names_around(function: Any) -> Mapping[str, Any]:
    """What names mean around a function: those of its module, and those that it closes over."""
    while not hasattr(function, "__globals__"):
        below = [getattr(function, name) for name in ("func", "__func__", "__wrapped__") if hasattr(function, name)]
        if not below:
            return {}
        function = below[0]
    return {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
