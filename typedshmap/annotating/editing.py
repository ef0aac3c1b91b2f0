"""Edit a file: calls of ``shard_map`` become typed ones, hints stand where they belong, and what is dead goes."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from ..hints.array_hint import FAMILIES
from ..source.dead_code import without_dead_code
from ..source.editor import ModuleEditor
from ..source.imports import added_import
from ..source.module import ParsedModule
from ..source.text import TextChange, first_line
from ..source.wrapping import UNIT, bracketed
from .calls import LeftPlain, MappingCall

MARKED = "typed_shard_map_that_is_verified"
_TYPING = {"Any", "TypedDict"}
_WORDS = _TYPING | {*FAMILIES, "Array", "PyTree", "typed_shard_map"}
_HOMES = ("typedshmap", "typing", "typing_extensions", "jax", "jaxtyping")


@dataclass(frozen=True)
class CallEdit:
    """A call of ``shard_map`` that becomes typed.

    Attributes:
      module: the file.
      call: the call.
      definition: the function that takes the hints; None where the call takes them.
      parameters: the hint of each parameter that gets one; of each argument if the call takes them.
      result: the hint of the result.
      options: further options, by the code of their values.
      word: what the call says for ``typed_shard_map``.

    Raises:
      LeftPlain: for hints with a word that is something else in the file.
    """

    module: ParsedModule
    call: MappingCall
    definition: ast.FunctionDef | None
    parameters: Mapping[str, str]
    result: str
    options: Mapping[str, str]
    word: str = "typed_shard_map"

    def __post_init__(self) -> None:
        words = words_in(*self.parameters.values(), self.result, "typed_shard_map") & _WORDS
        for (_, name), nodes in self.module.bindings.items():
            names = {self.module.full_name(node) if isinstance(node, ast.alias) else "" for node in nodes}
            if name in words and not names <= {f"{home}.{name}" for home in _HOMES}:
                raise LeftPlain(f"'{name}' is something else in the file")


@dataclass
class ModuleEdit:
    """All that changes in a file.

    Attributes:
      calls: its calls that become typed.
      fields: the hints of the fields of its classes.
      comments: comments above the statements that hold nodes.
      typed_dicts: classes that stand above the first statement that has hints, with the hints of their keys.
    """

    calls: list[CallEdit] = field(default_factory=list)
    fields: dict[ast.ClassDef, Mapping[str, str]] = field(default_factory=dict)
    comments: dict[ast.AST, list[str]] = field(default_factory=dict)
    typed_dicts: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def words(self) -> set[str]:
        """The words in all hints, and in what goes with them."""
        hints = [hint for one in self.calls for hint in (*one.parameters.values(), one.result, "typed_shard_map")]
        of_classes = [hint for each in (*self.fields.values(), *self.typed_dicts.values()) for hint in each.values()]
        return words_in(*hints, *of_classes, *(["TypedDict"] if self.typed_dicts else []))


def words_in(*hints: str) -> set[str]:
    """The words in hints, but for those in quotes."""
    return {*re.findall(r"\w+", re.sub('"[^"]*"', "", " ".join(hints)))}


def axes_option(words: Mapping[str, str], axes: Mapping[str, str]) -> dict[str, str]:
    """The option that gives names in hints their mesh axes, each by its code; none if there are no such names."""
    named = ", ".join(f'"{words[axis]}": {code}' for axis, code in axes.items())
    return {"axes": f"{{{named}}}"} if named else {}


def edit_module(module: ParsedModule, edit: ModuleEdit, exported: Set[str]) -> str:
    """The text of a file with all edits; names that are exported stay, since other files import them."""
    editor = _Editor(module)
    for node, texts in edit.comments.items():
        editor.comment(node, texts)
    # What is within a call changes before it.
    for one in sorted(edit.calls, key=lambda one: len(module.code(one.call.node))):
        editor.edit_call(one)
    for one in edit.calls:
        if one.definition is not None:
            beside = editor.beside.get(one.definition, ())
            editor.annotate_function(one.definition, one.parameters, one.result, beside)
    for node, hints in edit.fields.items():
        editor.annotate_fields(node, hints)
    editor.add_classes(edit)
    bound = {name for scope, name in module.bindings if scope is module.tree}
    words = (edit.words() & _WORDS) - bound
    for home, names in (("typing", words & _TYPING), ("typedshmap", words - _TYPING)):
        editor.changes += [added_import(module, home, names)] if names else []
    return module.as_written(without_dead_code(editor.text(), exported | module.unused()))


class _Editor(ModuleEditor):
    """Makes calls typed, and collects the other changes of a file."""

    def __init__(self, module: ParsedModule) -> None:
        super().__init__(module)
        self.beside: dict[ast.FunctionDef, list[str]] = {}

    def edit_call(self, one: CallEdit) -> None:
        """Make a call typed. Comments among specs go to the parameters if there is one for each, else above."""
        module, call = self.module, one.call.node
        own = {name: value for name, value in one.call.options.items() if call in module.around(value)}
        comments = dict(zip(own, module.comments_by([*own.values()], call.lineno, call.end_lineno or 0), strict=True))
        items: list[tuple[str, str]] = []
        for name, value in one.call.options.items():
            if name in ("in_specs", "out_specs", "auto"):
                continue
            inner = {module.comments.get(line) for line in range(value.lineno, value.end_lineno or 0)}
            comment = " ".join(text for text in comments.get(name, ()) if text not in inner)
            word = "" if name == "f" else "check_vma=" if name == "check_rep" else f"{name}="
            items.insert(0 if name == "f" else len(items), (f"{word}{self.code(value)}", comment))
        items += [(f"{name}={code}", "") for name, code in one.options.items()]
        if one.definition is None:
            types = ", ".join(one.parameters.values()) + "," * (len(one.parameters) == 1)
            items += [(f"in_types=({types})", ""), (f"out_types={one.result}", "")]
        elif len(texts := comments.pop("in_specs", [])) == len(one.parameters):
            self.beside[one.definition] = texts
        else:
            comments["in_specs"] = texts
        self.comment(call, [*comments.get("in_specs", ()), *comments.get("out_specs", ())])
        start, end = module.span(call)
        line_start, line_end = module.lines_of(call)
        room = len(module.between(line_start, start)), len(module.between(end, line_end).rstrip())
        text = bracketed(f"{one.word}(", items, ")", module.indent(call), *room)
        self.changes.append(TextChange(start, end, text if items else one.word))

    def add_classes(self, edit: ModuleEdit) -> None:
        """Put new classes above the first statement whose hints name one."""
        users = [one.definition for one in edit.calls if one.definition is not None]
        users += [node for node, hints in edit.fields.items() if {*edit.typed_dicts} & words_in(*hints.values())]
        if users and edit.typed_dicts:
            first = min(users, key=first_line)
            outermost = [each for each in (first, *self.module.around(first)) if isinstance(each, ast.stmt)][-1]
            start = self.module.start_of(outermost)
            for name, fields in edit.typed_dicts.items():
                lines = "".join(f"{UNIT}{key}: {hint}\n" for key, hint in fields.items())
                self.insert(start, f"class {name}(TypedDict):\n{lines}\n\n")
