"""Edit a file: calls of ``shard_map`` become typed ones, hints stand where they belong, and what is dead goes."""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

import libcst as cst
from libcst import matchers as m

from .module import ParsedModule

WIDTH = 120
SHARED = "what gives it its options is used elsewhere, too"
MARKED = "typed_shard_map_that_is_verified"
AnyKey = TypeVar("AnyKey")
_POSITIONS = ("f", "mesh", "in_specs", "out_specs", "check_rep")
_TYPING = frozenset({"Any", "TypedDict"})


class LeftPlain(Exception):
    """What cannot be annotated safely, with the reason."""


@dataclass(frozen=True)
class CallEdit:
    """A call of ``shard_map`` that becomes typed.

    Attributes:
      calls: the calls that give it options, the last of which names ``shard_map`` itself.
      definition: the function that takes the hints; None where the call takes them.
      parameters: the hint of each parameter that gets one; of each argument if the call takes them.
      result: the hint of the result.
      options: further options, by the code of their values.
      word: what the call says for ``typed_shard_map``.
    """

    calls: tuple[cst.Call, ...]
    definition: cst.FunctionDef | None
    parameters: Mapping[str, str]
    result: str
    options: Mapping[str, str]
    word: str = "typed_shard_map"

    def marked(self, number: int) -> CallEdit:
        """The same with a number, for ``MARKED`` to know it by."""
        return replace(self, options={**self.options, "number": str(number)}, word=MARKED)

    def all_options(self) -> dict[str, str]:
        """All that the call gets, with the hints if it takes them."""
        if self.definition is not None:
            return {**self.options}
        types = f"({''.join(f'{hint}, ' for hint in self.parameters.values()).rstrip()})"
        types = types if len(self.parameters) == 1 else types.replace(",)", ")")
        return {**self.options, "in_types": types, "out_types": self.result}


@dataclass
class ModuleEdit:
    """All that changes in a file.

    Attributes:
      calls: its calls that become typed.
      fields: the hints of the fields of its classes.
      comments: comments above the statements that hold nodes.
      typed_dicts: classes that stand above the first function that has hints.
    """

    calls: list[CallEdit] = field(default_factory=list)
    fields: dict[cst.ClassDef, Mapping[str, str]] = field(default_factory=dict)
    comments: dict[cst.CSTNode, list[str]] = field(default_factory=dict)
    typed_dicts: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def hints(self) -> str:
        """The text of all hints."""
        of_calls = chain(*((*one.parameters.values(), one.result) for one in self.calls))
        of_classes = chain(*(each.values() for each in (*self.fields.values(), *self.typed_dicts.values())))
        return " ".join(chain(of_calls, of_classes))


def axes_option(axes: Mapping[str, str]) -> dict[str, str]:
    """The option that gives names in hints their mesh axes, each by its code; none if there are no such names."""
    named = ", ".join(f'"{word}": {code}' for word, code in axes.items())
    return {"axes": f"{{{named}}}"} if axes else {}


def shared_calls(module: ParsedModule, chains: Mapping[AnyKey, tuple[cst.Call, ...]]) -> set[AnyKey]:
    """Of calls with those that give them options, the ones to which a partial gives some that plain calls use, too."""
    kept = dict(chains)
    while True:
        count = Counter(call for calls in kept.values() for call in calls[1:])
        used_elsewhere = {call for call in count if count[call] < module.uses_of_value(call)}
        shared = [key for key, calls in kept.items() if used_elsewhere & {*calls[1:]}]
        if not shared:
            return chains.keys() - kept.keys()
        for key in shared:
            del kept[key]


def option_calls(module: ParsedModule, call: cst.Call) -> tuple[cst.Call, ...]:
    """The calls that give options to the ``shard_map`` that a call maps with, the last of which names it."""
    func = call.args[0].value if is_partial(module, call) else call.func
    below = func if isinstance(func, cst.Call) else module.bound_value(func)
    return (call, *option_calls(module, below)) if isinstance(below, cst.Call) else (call,)


def is_partial(module: ParsedModule, node: cst.CSTNode) -> bool:
    """Whether a node is a call of ``functools.partial``."""
    return isinstance(node, cst.Call) and "functools.partial" in module.imported_names(node.func) and bool(node.args)


def options_of(module: ParsedModule, call: cst.Call, names_it: bool) -> dict[str, cst.Arg]:
    """The options that a call gives.

    Raises:
      LeftPlain: for options that cannot be seen.
    """
    found: dict[str, cst.Arg] = {}
    positions = iter(_POSITIONS if names_it else _POSITIONS[:1])
    for arg in call.args[is_partial(module, call) :]:
        if arg.star:
            raise LeftPlain(f"'{module.code(arg.value)}' passes options that cannot be seen")
        name = arg.keyword.value if arg.keyword is not None else next(positions, "")
        found[name] = arg
    return found


def edit_module(module: ParsedModule, edit: ModuleEdit, exported: Set[str], words: Iterable[str]) -> str:
    """The text of a file with all edits.

    Args:
      module: the file.
      edit: what changes.
      exported: names that stay, since other files import them.
      words: the names of the library, and of ``typing``, that hints may use.
    """
    tree = module.module.visit(_Editor(module, edit))
    hints, body = edit.hints(), [*tree.body]
    bound = {binding.name for binding in module.all_bindings()}
    missing: dict[str, list[str]] = {"typedshmap": [], "typing": []}
    for word in sorted({*words, "typed_shard_map", "TypedDict"}):
        spelled = module.spelled(word)
        is_used = bool(edit.calls) if word == "typed_shard_map" else bool(re.search(rf"\b{spelled}\b", hints))
        if (is_used or (word == "TypedDict" and edit.typed_dicts)) and spelled not in bound:
            home = "typing" if word in _TYPING else "typedshmap"
            missing[home].append(word if word == spelled else f"{word} as {spelled}")
    for home, names in missing.items():
        if names:
            _add_import(body, home, names)
    tree = tree.with_changes(body=body)
    return _without_dead(tree, exported | _unused(module), module.module.default_newline)


def _add_import(body: list[Any], home: str, names: Sequence[str]) -> None:
    """Add names to the import of a module, or a line for them: at the first import, or behind the last.

    That of libcst's codemods puts it behind the first block of imports, which may be above what must run before JAX is
    imported, as ``os.environ["XLA_FLAGS"] = ...``."""
    ends = (at for at, each in enumerate(body) if isinstance(each, cst.FunctionDef | cst.ClassDef))
    top = body[: next(ends, len(body))]
    found = [at for at, each in enumerate(top) if m.matches(each, m.SimpleStatementLine([m.Import() | m.ImportFrom()]))]
    for at in found:
        if m.matches(body[at].body[0], m.ImportFrom(m.Name(home), names=[m.AtLeastN(n=1)])):
            present = [cst.Module([]).code_for_node(alias).strip(", ") for alias in body[at].body[0].names]
            line = cst.parse_statement(f"from {home} import {', '.join(sorted({*names, *present}))}")
            body[at] = line.with_changes(leading_lines=body[at].leading_lines)
            return
    line, blank = cst.parse_statement(f"from {home} import {', '.join(names)}"), cst.EmptyLine(indent=False)
    roots = [re.match(r"\s*(?:from|import) (\w*)", cst.Module([]).code_for_node(body[at].body[0])) for at in found]
    named = {at: root[1] if root is not None else "" for at, root in zip(found, roots, strict=True)}
    firsts = [at for at in found if named[at] != "__future__"]
    standard = [at for at in firsts if named[at] in sys.stdlib_module_names]
    behind = found if home != "typing" else standard
    if behind:
        body.insert(behind[-1] + 1, line.with_changes(leading_lines=[blank] * (behind[-1] not in firsts)))
    elif firsts:
        body.insert(firsts[0], line.with_changes(leading_lines=body[firsts[0]].leading_lines))
        body[firsts[0] + 1] = body[firsts[0] + 1].with_changes(leading_lines=[blank])
    else:
        at = int(m.matches(body[0], m.SimpleStatementLine([m.Expr(m.SimpleString())])))
        body.insert(at, line.with_changes(leading_lines=[blank] * at))
        following = body[at + 1]
        count = 1 + isinstance(following, cst.FunctionDef | cst.ClassDef) - len(following.leading_lines)
        body[at + 1] = following.with_changes(leading_lines=[*[blank] * count, *following.leading_lines])


class _Editor(cst.CSTTransformer):
    """Replaces calls, signatures and fields."""

    def __init__(self, module: ParsedModule, edit: ModuleEdit) -> None:
        super().__init__()
        self.module, self.edit, self.unit = module, edit, module.module.default_indent
        self.calls = {call: one for one in edit.calls for call in one.calls}
        self.definitions = {one.definition: one for one in edit.calls if one.definition is not None}
        self.beside: dict[cst.CSTNode, dict[str, str]] = {}
        self.above: dict[cst.CSTNode, list[str]] = {}
        for one in edit.calls:  # comments among specs stand beside the parameters, if there is one for each
            for call in one.calls:
                options = options_of(module, call, call is one.calls[-1])
                for name in ("in_specs", "out_specs"):
                    comments = _comments_in(options.get(name))
                    is_each = name == "in_specs" and len(comments) == len(one.parameters)
                    if one.definition is not None and is_each:
                        self.beside[one.definition] = dict(zip(one.parameters, comments, strict=True))
                    else:
                        self.above.setdefault(self._statement(call), []).extend(comments)
        for node, findings in edit.comments.items():
            statement = self._statement(node)
            wrapper = textwrap.TextWrapper(WIDTH - len(module.indent(statement)), "# ", "#   ", break_on_hyphens=False)
            self.above.setdefault(statement, []).extend(line for text in findings for line in wrapper.wrap(text))

    def _statement(self, node: cst.CSTNode) -> cst.CSTNode:
        return next(self.module.around(node, cst.SimpleStatementLine, cst.BaseCompoundStatement))

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        found: Any = super().on_leave(original_node, updated_node)
        lines = [cst.EmptyLine(comment=cst.Comment(text)) for text in self.above.get(original_node, ())]
        return found.with_changes(leading_lines=[*found.leading_lines, *lines]) if lines else found

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        one = self.calls.get(original_node)
        if one is None:
            return updated_node
        names_it, above = original_node is one.calls[-1], self.module.parent(original_node)
        is_called = isinstance(above, cst.Call) and above.func is original_node
        partial = is_partial(self.module, original_node)
        new = dict(zip(original_node.args, updated_node.args, strict=True))
        args: list[cst.Arg] = []
        for name, arg in options_of(self.module, original_node, names_it).items():
            if name == "f":
                args.insert(0, new[arg].with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT))
            elif name not in ("in_specs", "out_specs", "auto"):
                word = cst.Name("check_vma" if name == "check_rep" else name)
                args.append(new[arg].with_changes(keyword=word, equal=_EQUAL))
        # jax.shard_map(mesh=mesh)(f) takes nothing but the function.
        if original_node is (one.calls[1] if one.calls[1:] and one.calls[0].func is one.calls[1] else one.calls[0]):
            for name, code in one.all_options().items():
                args.append(cst.Arg(cst.parse_expression(code), cst.Name(name), _EQUAL))
        func = updated_node.args[0].value if partial else updated_node.func
        if names_it:
            func = cst.Name(one.word if one.word == MARKED else self.module.spelled(one.word))
        is_decorator = isinstance(above, cst.Decorator)
        if partial and args and not (names_it and (is_decorator or is_called)):
            func, args = updated_node.func, [cst.Arg(func), *args]
        if not args and (is_decorator or (partial and not names_it)):
            return func
        return self._fitted_call(original_node, updated_node.with_changes(func=func), args)

    def _fitted_call(self, original: cst.Call, call: cst.Call, args: Sequence[cst.Arg]) -> cst.Call:
        """A call on one line if it fits and has no comments, else one argument a line."""
        flat = [arg.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=_BLANK) for arg in args]
        one_line = call.with_changes(args=flat, whitespace_before_args=_BLANK)
        lines = self.module.code(one_line).split("\n")
        lines[0] += " " * self.module.room_around(original)
        has_comments = any(_comments_in(arg.comma) for arg in args)
        is_short = len(lines) == 1 or any("\n" in self.module.code(arg) for arg in args[:1])
        if is_short and not has_comments and max(map(len, lines)) <= WIDTH:
            return one_line
        indent = self.module.indent(original)
        inner = indent + self.unit
        fitted = [
            arg.with_changes(
                value=self._fitted(arg.value, inner, f"{arg.keyword.value}=,"), whitespace_after_arg=_BLANK
            )
            if arg.keyword is not None
            else arg.with_changes(whitespace_after_arg=_BLANK)
            for arg in args
        ]
        return call.with_changes(args=_one_a_line(fitted, inner, indent), whitespace_before_args=_new_line(inner))

    def _fitted(self, node: Any, indent: str, around: str) -> Any:
        """A hint if there is room for it on a line, else with one item of its brackets a line."""
        code, inner = self.module.code(node), indent + self.unit
        is_hint = m.matches(node, m.Subscript(m.Name("tuple") | m.Name("list") | m.Name("PyTree")) | m.Tuple())
        if not is_hint or "\n" in code or len(indent) + len(around) + len(code) <= WIDTH:
            return node
        if isinstance(node, cst.Tuple):
            items = [each.with_changes(value=self._fitted(each.value, inner, ",")) for each in node.elements]
            opened = [cst.LeftParen(_new_line(inner))]
            return node.with_changes(elements=_one_a_line(items, inner, indent), lpar=opened, rpar=[cst.RightParen()])
        slices = [each.with_changes(slice=cst.Index(self._fitted(each.slice.value, inner, ","))) for each in node.slice]
        opened = cst.LeftSquareBracket(_new_line(inner))
        return node.with_changes(slice=_one_a_line(slices, inner, indent), lbracket=opened)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        one = self.definitions.get(original_node)
        if one is None:
            return updated_node
        returns = cst.Annotation(cst.parse_expression(one.result), cst.SimpleWhitespace(" "))
        params: Any = updated_node.params.visit(_Annotator(one.parameters))
        hinted: Any = updated_node.with_changes(params=params, returns=returns)
        indent, comments = self.module.indent(original_node), self.beside.get(original_node, {})
        empty = hinted.with_changes(
            body=cst.SimpleStatementSuite([cst.Pass()]), decorators=[], leading_lines=[], lines_after_decorators=[]
        )
        head = self.module.code(empty).rpartition(" pass")[0].split("\n")
        if not comments and max(len(indent + head[0]), *map(len, head)) <= WIDTH:
            return hinted
        inner = indent + self.unit

        def fit(param: cst.Param) -> cst.Param:
            note, name = param.annotation, param.name.value
            if note is None or name not in one.parameters:
                return param
            return param.with_changes(annotation=cst.Annotation(self._fitted(note.annotation, inner, f"{name}: ,")))

        groups = {
            name: value if isinstance(value, Sequence) else [value]
            for name in ("posonly_params", "posonly_ind", "params", "star_arg", "kwonly_params", "star_kwarg")
            if isinstance(value := getattr(params, name), Sequence | cst.CSTNode)
        }
        every = [fit(node) if isinstance(node, cst.Param) else node for group in groups.values() for node in group]
        rest = iter(_one_a_line(every, inner, indent, comments))
        broken = {name: [next(rest) for _ in group] for name, group in groups.items()}
        changes = {name: new if name.endswith("params") else new[0] for name, new in broken.items()}
        fitted = cst.Annotation(self._fitted(returns.annotation, indent, ") -> :"), cst.SimpleWhitespace(" "))
        return hinted.with_changes(
            params=params.with_changes(**changes), returns=fitted, whitespace_before_params=_new_line(inner)
        )

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        fields = self.edit.fields.get(original_node, {})
        return updated_node.with_changes(body=updated_node.body.visit(_Annotator(fields)))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """The file with its new classes, above the first statement whose hints name one."""
        texts = {node: " ".join(fields.values()) for node, fields in self.edit.fields.items()}
        classes = [node for node, text in texts.items() if any(name in text for name in self.edit.typed_dicts)]
        first: Any = min([*self.definitions, *classes], key=self.module.line, default=None)
        if first is None or not self.edit.typed_dicts:
            return updated_node
        at = list[Any](original_node.body).index([first, *self.module.around(first, cst.BaseCompoundStatement)][-1])
        new: list[Any] = []
        for name, fields in self.edit.typed_dicts.items():
            lines = "".join(f"{self.unit}{key}: {hint}\n" for key, hint in fields.items())
            statement = cst.parse_statement(f"class {name}(TypedDict):\n{lines}")
            new.append(statement.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * 2))
        return updated_node.with_changes(body=[*updated_node.body[:at], *new, *updated_node.body[at:]])


class _Annotator(cst.CSTTransformer):
    """Gives parameters of a function, or fields of a class, their hints; functions within stay as they are."""

    def __init__(self, hints: Mapping[str, str]) -> None:
        super().__init__()
        self.hints = hints

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:
        if (hint := self.hints.get(original_node.name.value)) is None:
            return updated_node
        equal = cst.AssignEqual() if updated_node.default is not None else cst.MaybeSentinel.DEFAULT
        return updated_node.with_changes(annotation=cst.Annotation(cst.parse_expression(hint)), equal=equal)

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.AnnAssign:
        hint = self.hints.get(original_node.target.value) if isinstance(original_node.target, cst.Name) else None
        new = cst.Annotation(cst.parse_expression(hint)) if hint is not None else updated_node.annotation
        return updated_node.with_changes(annotation=new)


_BLANK = cst.SimpleWhitespace("")
_EQUAL = cst.AssignEqual(_BLANK, _BLANK)


def _new_line(indent: str, comment: str = "") -> cst.ParenthesizedWhitespace:
    behind = (
        cst.TrailingWhitespace(cst.SimpleWhitespace("  "), cst.Comment(comment))
        if comment
        else cst.TrailingWhitespace()
    )
    return cst.ParenthesizedWhitespace(behind, indent=False, last_line=cst.SimpleWhitespace(indent))


def _one_a_line(nodes: Sequence[Any], inner: str, outer: str, comments: Mapping[str, str] | None = None) -> list[Any]:
    """Arguments, parameters or items, each with a comma and a line of its own; comments behind them stay."""
    found: list[Any] = []
    for at, node in enumerate(nodes):
        indent, after = inner if at < len(nodes) - 1 else outer, getattr(node.comma, "whitespace_after", None)
        text = (comments or {}).get(node.name.value, "") if isinstance(node, cst.Param) else ""
        line: Any = _new_line(indent, text)
        if not text and after is not None and _comments_in(after):
            line = after.with_changes(indent=False, last_line=cst.SimpleWhitespace(indent))
        found.append(node.with_changes(comma=cst.Comma(whitespace_after=line)))
    return found


def _comments_in(node: Any) -> list[str]:
    found = m.findall(node, m.Comment()) if isinstance(node, cst.CSTNode) else ()
    return [each.value for each in found if isinstance(each, cst.Comment)]


# What nothing uses any more


def _unused(module: ParsedModule) -> set[str]:
    """The names that a file binds and does not use, be it in one place only."""
    return {binding.name for binding in module.all_bindings() if not binding.references}


def _without_dead(tree: cst.Module, kept: Set[str], newline: str) -> str:
    """The text of a file without the assignments, functions and imports that nothing uses any more.

    A statement that goes leaves the comments above it where they are, and of the blank lines around it the more."""
    while True:
        module = ParsedModule(tree.code)
        lists = [module.code(part) for kind in (cst.Assign, cst.AugAssign) for part in module.nodes(kind)]
        named = {*re.findall(r"\w+", " ".join(code for code in lists if "__all__" in code))}
        sweeper = _Sweeper(module, _unused(module) - kept - named)
        swept = module.module.visit(sweeper)
        if swept.code == tree.code:
            return tree.code
        # Blank lines above and below the statement, and at the start of a file, do not pile up.
        text, end = swept.code, re.escape(newline)
        gone = rf"(?P<above>(?:{end})*)(?:^[ \t]*{_GONE}{end}(?P<below>(?:{end})*))"
        while (found := re.search(gone, text, re.MULTILINE)) is not None:
            blank = max(found["above"], newline + found["below"] if found.start() else "", key=len)
            text = text[: found.start()] + blank + text[found.end() :]
        tree = cst.parse_module(text)


_GONE = "statement_that_is_gone"


class _Sweeper(cst.CSTTransformer):
    """Puts `_GONE` in the place of statements that bind dead names."""

    def __init__(self, module: ParsedModule, dead: Set[str]) -> None:
        super().__init__()
        self.module, self.dead = module, dead

    def _is_dead(self, name: cst.CSTNode) -> bool:
        return (
            isinstance(name, cst.Name)
            and name.value in self.dead
            and not any(binding.references for binding in self.module.bindings(name))
        )

    def _gone(self, updated: Any) -> cst.SimpleStatementLine:
        return cst.SimpleStatementLine([cst.Expr(cst.Name(_GONE))], leading_lines=updated.leading_lines)

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        is_gone = m.SimpleStatementLine([m.Expr(m.Name(_GONE))])
        return original_node if all(m.matches(each, is_gone) for each in updated_node.body) else updated_node

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> Any:
        is_dead = not original_node.decorators and self._is_dead(original_node.name)
        return self._gone(updated_node) if is_dead else updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        match original_node.body:
            case [cst.Assign(targets=[cst.AssignTarget(target=target)], value=value)]:
                targets = [one.value for one in target.elements] if isinstance(target, cst.Tuple) else [target]
                is_pure = not m.findall(value, m.Await() | m.Yield() | m.NamedExpr())
                return self._gone(updated_node) if is_pure and all(map(self._is_dead, targets)) else updated_node
            case [cst.Import(names=names) | cst.ImportFrom(names=[*names])]:
                pass
            case _:
                return updated_node
        statement: Any = updated_node.body[0]
        kept = [each for old, each in zip(names, statement.names, strict=True) if not self._is_dead_import(old)]
        if not kept:
            return self._gone(updated_node)
        if len(kept) == len(names) or _comments_in(updated_node):
            return updated_node
        kept[-1] = kept[-1].with_changes(comma=statement.names[-1].comma)
        return updated_node.with_changes(body=[statement.with_changes(names=kept)])

    def _is_dead_import(self, alias: cst.ImportAlias) -> bool:
        is_as_itself = alias.evaluated_alias == alias.evaluated_name
        return not is_as_itself and (alias.evaluated_alias or alias.evaluated_name) in self.dead
