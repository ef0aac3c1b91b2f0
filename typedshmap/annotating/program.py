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
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import libcst as cst
from jax.sharding import PartitionSpec

from ..auditing.findings import Finding
from ..auditing.region import PlainRegion
from ..auditing.silenced import is_ignored
from ..errors.places import is_users
from .describe import LeafHint, describe
from .editing import SHARED, CallEdit, ModuleEdit, axes_option, edit_module, option_calls, options_of, shared_calls
from .function_source import FunctionSource
from .hints import HintWriter, LeftPlain
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
      node: the call in its file.
      left: why it stays plain; empty where it becomes typed.
      on_definition: whether the hints stand on the function.
    """

    site: MappedSite
    node: cst.Call
    calls: tuple[cst.Call, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    left: str = ""
    on_definition: bool = False
    definition: cst.FunctionDef | None = None
    names: list[str] = field(default_factory=list)
    parameters: dict[str, Samples] = field(default_factory=dict)
    arguments: list[Samples] = field(default_factory=list)
    results: Samples = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)
    code_axes: dict[str, str] = field(default_factory=dict)

    def is_mapped(self, at: int) -> bool:
        """Whether an argument has a spec."""
        return any(next(tree.leaves(), None) is not None or tree.kind is not None for tree, _ in self.arguments[at])

    @property
    def code(self) -> Any:
        return next(iter(self.site.functions))

    @property
    def function(self) -> Callable[..., Any]:
        return next(iter(self.site.functions.values()))


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
                self.plans.append(self._plan(site))
            except LeftPlain as reason:
                self.lost.append((site.file, site.span[0] or 0, str(reason)))
        self._agree_on_definitions()
        self.lost += self._calls_that_never_ran()

    def _calls_that_never_ran(self) -> Iterator[tuple[str, int, str]]:
        """The calls in the script, and in the modules that it imports, that were not seen."""
        seen = {call for plan in self.plans for call in (plan.node, *plan.calls)}
        known = {Path(file).resolve() for file in self.modules}
        files = [module.__file__ for module in self._imported if Path(str(module.__file__)).resolve() not in known]
        script = [self.script] if Path(self.script).is_file() and Path(self.script).resolve() not in known else []
        for file in {*self.modules, *map(str, files), *script}:
            with suppress(LeftPlain):
                never = literal_calls(self._module(file)) if "shard_map" in self._text(file) else []
                lines = [self._module(file).line(call.calls[0]) for call in never if not seen & {*call.calls}]
                yield from ((file, line, "it was not called") for line in lines)

    def _text(self, file: str) -> str:
        if file not in self.texts:
            try:
                with Path(file).open(encoding="utf-8", newline="") as opened:
                    self.texts[file] = opened.read()
            except (OSError, ValueError):
                raise LeftPlain("its file cannot be read") from None
        return self.texts[file]

    def _module(self, file: str) -> ParsedModule:
        if file not in self.modules:
            try:
                self.modules[file] = ParsedModule(self._text(file))
            except cst.ParserSyntaxError:
                raise LeftPlain("its file cannot be read") from None
        return self.modules[file]

    def _plan(self, site: MappedSite) -> SitePlan:
        """What to do with a call.

        Raises:
          LeftPlain: for a call that is not found in its file.
        """
        module = self._module(site.file)
        node = module.call_at(site.span)
        if node is None:
            raise LeftPlain("the call is not found in the file")
        plan = SitePlan(site, node)
        try:
            self._fill(plan, module)
        except LeftPlain as reason:
            plan.left = str(reason)
        return plan

    def _fill(self, plan: SitePlan, module: ParsedModule) -> None:
        site = plan.site
        for traced in site.traced.values():
            found = PlainRegion(traced.region, {}).read()[1]
            plan.findings += [one for one in found if one not in plan.findings and not is_ignored(one)]
        if site.failure or not site.traced:
            raise LeftPlain(site.failure or "it was not called")
        if any(found.severity == "error" for found in plan.findings):
            raise LeftPlain("the types would refuse it, for what the audit found")
        plan.calls = option_calls(module, plan.node)
        options = [options_of(module, call, call is plan.calls[-1]) for call in plan.calls]
        if not any("out_specs" in given for given in options):
            raise LeftPlain("its specs are not seen in the call")
        self._refuse_wrappers(module, plan, options)
        for name, arg in (
            (name, given[name]) for given in options for name in ("in_specs", "out_specs") if name in given
        ):
            plan.code_axes |= _axes_by_code(module, plan.node, arg.value, site.options.get(name))
        self._describe(plan)
        if len(site.functions) == 1:
            plan.definition = self._definition(plan)
        plan.on_definition = plan.definition is not None

    def _refuse_wrappers(self, module: ParsedModule, plan: SitePlan, options: Sequence[Mapping[str, cst.Arg]]) -> None:
        given = {name: arg.value for each in options for name, arg in each.items()}
        if len(plan.site.functions) > 1 and all(
            isinstance(given.get(name), cst.Name) and module.is_parameter(given[name])  # type: ignore[arg-type]
            for name in ("f", "in_specs", "out_specs")
        ):
            raise LeftPlain("it maps what its caller gives it, by the specs that its caller gives")

    def _describe(self, plan: SitePlan) -> None:
        """Note the trees of all calls with hints for their leaves, by parameter and by position."""
        site = plan.site
        source = FunctionSource.of_code(plan.code) if hasattr(plan.code, "co_firstlineno") else None
        groups: dict[Any, list[TracedCall]] = {}
        for traced in site.traced.values():
            groups.setdefault((traced.arguments, traced.results), []).append(traced)
        for (arguments, results), traces in groups.items():
            parameters = parameters_of(plan.function, len(arguments))
            paths = [path for (name, _), tree in zip(parameters, arguments, strict=True) for path in _paths(tree, name)]
            found = describe([traced.region for traced in traces], paths, source)
            plan.axes |= dict(found.axes)
            plan.arguments = plan.arguments or [[] for _ in arguments]
            if len(plan.arguments) != len(arguments):
                raise LeftPlain("it is called with different numbers of arguments")
            for at, ((name, _), tree) in enumerate(zip(parameters, arguments, strict=True)):
                plan.arguments[at].append((tree, found.arguments))
                plan.parameters.setdefault(name, []).append((tree, found.arguments))
            plan.results.append((results, found.results))
        plan.names = [name for name, _ in parameters_of(plan.function, len(plan.arguments))]

    def _definition(self, plan: SitePlan) -> cst.FunctionDef | None:
        """The function that can have the hints; None where only the call can."""
        code = plan.code
        if not hasattr(code, "co_filename") or code.co_name == "<lambda>" or code.co_filename != plan.site.file:
            return None
        node = self._module(code.co_filename).function_at(code.co_firstlineno, code.co_name)
        has_given = bool(getattr(plan.function, "args", ()))  # a partial that binds arguments by position
        return None if has_given else node

    def _agree_on_definitions(self) -> None:
        """Hints stand on a function only if it is mapped by one call."""
        counted = Counter(id(plan.definition) for plan in self.plans if plan.definition is not None)
        for plan in self.plans:
            plan.on_definition &= counted[id(plan.definition)] == 1

    def left(self) -> list[tuple[str, int, str]]:
        """The file and the line of each call that stays plain, and why."""
        plans = [(plan.site.file, plan.site.span[0] or 0, plan.left) for plan in self.plans if plan.left]
        return sorted([*plans, *self.lost])

    def _leave_shared(self) -> None:
        """Leave the calls whose options are given by a partial of ``shard_map`` that plain calls use, too."""
        for file, module in self.modules.items():
            plans = [plan for plan in self.plans if plan.site.file == file and not plan.left]
            for at in shared_calls(module, {at: plan.calls for at, plan in enumerate(plans)}):
                plans[at].left = SHARED

    # Texts

    def edited(self, marked: bool) -> dict[str, str]:
        """The new text of each file that changes.

        Args:
          marked: whether each call says its own name for ``typed_shard_map``, and not that.
        """
        edits: dict[str, ModuleEdit] = defaultdict(ModuleEdit)
        writers: dict[str, HintWriter] = {}
        self._leave_shared()

        def home(kind: type) -> HintWriter | None:
            module = sys.modules.get(kind.__module__)
            file = self._file_with(kind)
            return writers.setdefault(file, HintWriter(vars(module), home)) if module is not None and file else None

        for number, plan in enumerate(self.plans):
            edit, module = edits[plan.site.file], self.modules[plan.site.file]
            for found in plan.findings:
                edit.comments.setdefault(plan.node, []).append(_finding_text(found))
            if plan.left:
                continue
            names = _names_around(plan.function)
            writer = replace(writers.setdefault(plan.site.file, HintWriter(names, home)), names=names)
            try:
                one = self._call_edit(plan, module, writer)
            except LeftPlain as reason:
                plan.left = str(reason)
                continue
            edit.calls.append(one.marked(number) if marked else one)
        hints = {
            hint for edit in edits.values() for one in edit.calls for hint in (*one.parameters.values(), one.result)
        }
        of_classes = [fields for writer in writers.values() for fields in writer.classes.values() if fields is not None]
        every = " ".join(chain(hints, *(fields.values() for fields in of_classes)))
        for file, writer in writers.items():
            edit = edits[file]
            for kind, fields in writer.classes.items():
                node = self.modules[file].class_named(kind.__name__)
                if fields is not None and node is not None and kind.__name__ in every:
                    edit.fields[node] = _with_none(self.modules[file], node, fields)
            edit.typed_dicts = {k: v for k, v in writer.typed_dicts.items() if k in every or _is_inside(k, writer)}
            edit.add_words(writer.words)
        edits = {file: edit for file, edit in edits.items() if edit.calls or edit.comments or edit.fields}
        return {file: edit_module(self.modules[file], edit, self._exported) for file, edit in edits.items()}

    @cached_property
    def _exported(self) -> set[str]:
        """The names that the program's modules import from each other."""
        found: set[str] = set()
        for module in self._imported:
            try:
                nodes = [*ast.walk(ast.parse(inspect.getsource(module)))]
            except (OSError, TypeError, SyntaxError):
                continue
            for node in nodes:
                if isinstance(node, ast.ImportFrom):
                    root = sys.modules.get((node.module or "").partition(".")[0])
                    found |= {alias.name for alias in node.names} if node.level or root in self._imported else set()
                elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    found |= {node.attr} if vars(module).get(node.value.id) in self._imported else set()
        return found

    def _file_with(self, kind: type) -> str | None:
        """The file of the program that defines a class."""
        module = sys.modules.get(kind.__module__)
        where = self.script if kind.__module__ == "__main__" else getattr(module, "__file__", None) or "<frozen "
        file = next((known for known in self.modules if Path(known).resolve() == Path(where).resolve()), where)
        try:
            return file if is_users(file) and self._module(file).class_named(kind.__name__) is not None else None
        except LeftPlain:
            return None

    def _call_edit(self, plan: SitePlan, module: ParsedModule, writer: HintWriter) -> CallEdit:
        options = axes_option({word: f'"{axis}"' for word, axis in plan.axes.items()} | plan.code_axes)
        if auto := plan.site.options.get("auto"):
            names = [axis for axis in plan.site.options["mesh"].axis_names if axis not in auto]
            options["axis_names"] = "{" + ", ".join(f'"{name}"' for name in names) + "}"
        function = getattr(plan.code, "co_name", "result")
        result = writer.hint(plan.results, f"{function}_result")
        if not plan.on_definition:
            hints = [writer.hint(samples, name) for samples, name in zip(plan.arguments, plan.names, strict=True)]
            parameters = {str(at): hint for at, hint in enumerate(hints)}
            return CallEdit(plan.calls, None, parameters, result, options)
        hints = {name: writer.hint(samples, name) for name, samples in plan.parameters.items()}
        assert plan.definition is not None
        nodes = {node.name.value: node for node in module.parameters(plan.definition)}
        parameters = {name: hint for name, hint in hints.items() if hint != "Any" or nodes[name].annotation is None}
        for name, node in nodes.items():
            if name in parameters and node.annotation is not None:
                parameters[name] = _optional(parameters[name], module.code(node.annotation.annotation))
        return CallEdit(plan.calls, plan.definition, parameters, result, options)


def _with_none(module: ParsedModule, node: cst.ClassDef, fields: Mapping[str, str]) -> dict[str, str]:
    """The hints of the fields of a class, of which those that could be None still can."""
    lines = [line for line in node.body.body if isinstance(line, cst.SimpleStatementLine)]
    notes = [part for line in lines for part in line.body if isinstance(part, cst.AnnAssign)]
    before = {module.code(note.target): module.code(note.annotation.annotation) for note in notes}
    return {name: _optional(hint, before.get(name, "")) for name, hint in fields.items()}


def _optional(hint: str, before: str) -> str:
    """A hint that takes None if the annotation before it did."""
    is_optional = re.search(r"\b(None|Optional)\b", before) is not None and not hint.endswith("None") and hint != "Any"
    return f"{hint} | None" if is_optional else hint


def parameters_of(function: Callable[..., Any], count: int) -> list[tuple[str, bool]]:
    """The parameter of each positional argument, and whether it takes any number of them."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [(f"argument_{at}", False) for at in range(count)]
    plain = [(p.name, False) for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    star = next(((p.name, True) for p in found if p.kind is p.VAR_POSITIONAL), None)
    plain = plain[:count]
    if len(plain) < count and star is None:
        raise LeftPlain("its parameters are not known")
    return [known if known is not None else star for known, _ in zip_longest(plain, range(count))]  # type: ignore[misc]


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


def _is_inside(name: str, writer: HintWriter) -> bool:
    return any(name in text for fields in writer.typed_dicts.values() for text in fields.values())


def _finding_text(found: Finding) -> str:
    """A finding without its lines, which the edit moves, and without the comment that would silence it."""
    message = _SILENCED.sub("", _PLACE.sub("", found.message))
    return f"typedshmap: {found.severity}[{found.kind}] {message}"
