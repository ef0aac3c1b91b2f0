"""Edit a file: calls of ``shard_map`` become typed ones, hints stand where they belong, and what is dead goes."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from ..hints.array_hint import FAMILIES
from ..repairing.source import TextChange, first_line
from .module import LeftPlain, MappingCall, ParsedModule

WIDTH = 120
UNIT = "    "
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
            editor.edit_signature(one.definition, one.parameters, one.result)
    for node, hints in edit.fields.items():
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.target.id in hints:
                editor.changes.append(TextChange(*module.span(part.annotation), hints[part.target.id]))
    editor.add_classes(edit)
    editor.add_imports(edit.words() & _WORDS)
    return module.as_written(_without_dead(editor.text(), exported | module.unused()))


class _Editor:
    """Collects the changes of a file; one within another is part of it."""

    def __init__(self, module: ParsedModule) -> None:
        self.module, self.changes = module, list[TextChange]()
        self.beside: dict[ast.AST, list[str]] = {}

    def insert(self, at: int, text: str) -> None:
        self.changes.append(TextChange(at, at, text))

    def text(self, start: int = 0, end: int | None = None) -> str:
        """The new text, or that of a part of the old one."""
        at, end, found = start, len(self.module.text.encode()) if end is None else end, ""
        for change in sorted(self.changes, key=lambda change: (change.start, -change.end)):
            if at <= change.start and change.end <= end:
                found, at = found + self.module.between(at, change.start) + change.text, change.end
        return found + self.module.between(at, end)

    def code(self, node: ast.expr) -> str:
        return self.text(*self.module.span(node))

    def comment(self, node: ast.AST, comments: Sequence[str]) -> None:
        """Put comments above the statement around a node."""
        statement = next(each for each in (node, *self.module.around(node)) if isinstance(each, ast.stmt))
        start, indent = self.module.start_of(statement), self.module.indent(statement)
        wrapper = textwrap.TextWrapper(WIDTH - len(indent), "# ", "#   ", break_on_hyphens=False)
        lines = [line for text in comments for line in ([text] if text.startswith("#") else wrapper.wrap(text))]
        self.insert(start, "".join(f"{indent}{line}\n" for line in lines))

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

    def edit_signature(self, function: ast.FunctionDef, hints: Mapping[str, str], result: str) -> None:
        """Give the parameters and the result of a function their hints."""
        module, args, items = self.module, function.args, list[tuple[str, str]]()
        plain = [*args.posonlyargs, *args.args]
        defaults = dict(zip(reversed(plain), reversed(args.defaults), strict=False))
        defaults |= {
            param: default for param, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default
        }
        params = [*plain, *filter(None, [args.vararg]), *args.kwonlyargs, *filter(None, [args.kwarg])]
        # The header reaches from behind the name to the colon behind its last node.
        name = re.match("[^(]*", module.code(function))
        start = module.span(function)[0] + len(name[0].encode()) if name is not None else 0
        nodes = [*params, *(param.annotation for param in params), *defaults.values(), function.returns]
        last = max([start, *(module.span(node)[1] for node in nodes if node is not None)])
        rest = re.match("(?:[^:#]|#.*)*", module.between(last, module.span(function)[1]))
        end = last + len(rest[0].encode()) if rest is not None else last
        last_line = function.lineno + module.between(start, end).count("\n")
        beside = dict(zip(hints, self.beside.get(function, ()), strict=False))
        for param, comments in zip(params, module.comments_by(params, function.lineno, last_line), strict=True):
            if args.vararg is None and param in args.kwonlyargs[:1]:
                items.append(("*", ""))
            note = hints.get(param.arg) or (self.code(param.annotation) if param.annotation else "")
            text = "*" * (param is args.vararg) + "**" * (param is args.kwarg) + param.arg + f": {note}" * bool(note)
            if param in defaults:
                text += (" = " if note else "=") + self.code(defaults[param])
            items.append((text, " ".join(comments) or beside.get(param.arg, "")))
            if param in args.posonlyargs[-1:]:
                items.append(("/", ""))
        indent = module.indent(function)
        before = len(indent) + len(name[0] if name is not None else "")
        text = bracketed("(", items, ")", indent, before, len(f" -> {result}:"))
        result = fitted(result, indent, WIDTH - len(f"{indent}) -> :")) if "\n" in text else result
        self.changes.append(TextChange(start, end, f"{text} -> {result}"))

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

    def add_imports(self, words: Set[str]) -> None:
        """Import what the hints name: with what the file imports from there, or in a line behind the last import.

        The first block of imports may stand above what must run before JAX is imported."""
        module, body = self.module, self.module.tree.body
        ends = (at for at, each in enumerate(body) if isinstance(each, ast.FunctionDef | ast.ClassDef))
        top = [each for each in body[: next(ends, len(body))] if isinstance(each, ast.Import | ast.ImportFrom)]
        homes = {each: module.full_name(each.names[0]).removesuffix(f".{each.names[0].name}") for each in top}
        standard = [each for each in top if homes[each].partition(".")[0] in sys.stdlib_module_names]
        for home, above in (("typing", standard), ("typedshmap", top)):
            names = {word for word in words if (word in _TYPING) == (home == "typing")}
            names -= {name for scope, name in module.bindings if scope is module.tree}
            present = next((each for each in top if homes[each] == home and isinstance(each, ast.ImportFrom)), None)
            if names and present is not None and present.names[0].name != "*":
                names.update(map(ast.unparse, present.names))
                self.changes.append(TextChange(*module.span(present), f"from {home} import {', '.join(sorted(names))}"))
            elif names:
                line = f"from {home} import {', '.join(sorted(names))}\n"
                has_docstring = ast.get_docstring(module.tree) is not None
                at = module.start_of((top or body)[0])
                if above:
                    at, line = module.lines_of(above[-1])[1], "\n" * (homes[above[-1]] == "__future__") + line
                elif has_docstring and not top:
                    at, line = module.lines_of(body[0])[1], f"\n{line}"
                else:
                    line += "\n"
                self.insert(at, line)


def bracketed(opened: str, items: Sequence[tuple[str, str]], closed: str, indent: str, before: int, behind: int) -> str:
    """Items in brackets: on one line if there is room and no comment, else with one a line, and its comment beside it.

    Args:
      opened: what stands before the items.
      items: each item, and its comment.
      closed: what stands behind them.
      indent: the indentation of the line.
      before: the length of what stands on the line already.
      behind: the length of what follows on it.
    """
    flat = f"{opened}{', '.join(text for text, _ in items)}{closed}"
    first, *more = flat.split("\n")
    lengths = [before + len(first), *map(len, more)]
    lengths[-1] += behind
    is_short = not more or (items and "\n" in items[0][0])
    if is_short and not any(comment for _, comment in items) and max(lengths) <= WIDTH:
        return flat
    inner, lines = indent + UNIT, ""
    for text, comment in items:
        # Of an argument or a parameter the hint may be long.
        parts = re.fullmatch(r"(\w+(?:: |=)|)(.*?)( = .*|)", text, re.DOTALL)
        if parts is not None and len(f"{inner}{text},") > WIDTH:
            text = parts[1] + fitted(parts[2], inner, WIDTH - len(f"{inner}{parts[1]}{parts[3]},")) + parts[3]
        lines += f"{inner}{text},{'  ' * bool(comment)}{comment}\n"
    return f"{opened}\n{lines}{indent}{closed}"


def fitted(hint: str, indent: str, room: int) -> str:
    """A hint if there is room for it on a line, else with one item of its brackets a line."""
    if len(hint) <= room or "\n" in hint:
        return hint
    match ast.parse(hint, mode="eval").body:
        case ast.Tuple(elts=items):
            opened, closed = "(", ")"
        case ast.Subscript(value=ast.Name(id="tuple" | "list" | "PyTree" as name), slice=ast.Tuple(elts=items)):
            opened, closed = f"{name}[", "]"
        case _:
            return hint
    texts = [(str(ast.get_source_segment(hint, item)), "") for item in items]
    return bracketed(opened, texts, closed, indent, WIDTH, 0)


def _without_dead(text: str, kept: Set[str]) -> str:
    """A text without the assignments, functions and imports that nothing uses any more.

    A statement that goes leaves the comments above it where they are, and of the blank lines around it the more."""
    while True:
        module = ParsedModule(text)
        strings = " ".join(node.value for node in module.nodes(ast.Constant) if isinstance(node.value, str))
        kept = kept | module.declared | {*re.findall(r"\w+", strings)}
        changes = (_removal(module, statement, kept) for statement in module.nodes(ast.stmt))
        change = next((each for each in changes if each is not None), None)
        if change is None:
            return text
        text = module.changed([change])


def _removal(module: ParsedModule, statement: ast.stmt, kept: Set[str]) -> TextChange | None:
    """The change that removes a statement if it is dead, or a name that it imports; None if it is not."""
    aliases: list[ast.alias] = []
    match statement:
        case ast.Assign(targets=[ast.Name() | ast.Tuple() as target], value=value):
            parts = [*getattr(target, "elts", [target]), *ast.walk(value)]
            is_pure = not any(isinstance(each, ast.Starred | ast.Await | ast.Yield | ast.NamedExpr) for each in parts)
            names = [getattr(node, "id", None) if is_pure else None for node in getattr(target, "elts", [target])]
        case ast.FunctionDef(name=name, decorator_list=[]):
            names = [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            names = [
                None if each.asname == each.name else each.asname or each.name.partition(".")[0] for each in aliases
            ]
        case _:
            return None
    used = [name is None or name in kept or bool(module.uses.get(module.binding(name, statement))) for name in names]
    start, end = module.lines_of(statement)
    lines, code = module.between(start, end), module.code(statement)
    is_only = any([statement] == block for block in vars(module.parents[statement]).values())
    if not any(used) and not is_only and re.fullmatch(rf"\s*{re.escape(code)}\s*(#.*\n?)?", lines):
        above, below = module.between(0, start), module.between(end, len(module.text.encode()))
        blank = len(above) - len(above.rstrip("\n")) - 1 if above else len(below)
        return TextChange(start, end + min(blank, len(below) - len(below.lstrip("\n"))), "")
    if not aliases or all(used) or not any(used) or "#" in lines:
        return None
    at = used.index(False)
    first, last = (aliases[at - 1], aliases[at]) if at else (aliases[0], aliases[1])
    return TextChange(module.span(first)[bool(at)], module.span(last)[bool(at)], "")
