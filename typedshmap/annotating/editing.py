"""Edit a file: calls of ``shard_map`` become typed ones, hints stand where they belong, and what is dead goes."""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain, dropwhile, repeat, takewhile
from typing import Any, TypeVar

import libcst as cst
from libcst import matchers as m

from .hints import LeftPlain
from .module import ParsedModule

WIDTH = 120
SHARED = "what gives it its options is used elsewhere, too"
MARKED = "typed_shard_map_that_is_verified"
AnyKey = TypeVar("AnyKey")
_POSITIONS = ("f", "mesh", "in_specs", "out_specs", "check_rep")
_TODAY = {"check_rep": "check_vma"}
_GONE = ("in_specs", "out_specs", "auto")


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

    @property
    def takes_options(self) -> cst.Call:
        """The call that takes further options: ``jax.shard_map(mesh=mesh)(f)`` takes none but the function."""
        outer, *inner = self.calls
        return inner[0] if inner and outer.func is inner[0] else outer

    def marked(self, number: int) -> CallEdit:
        """The same with a number, for ``MARKED`` to know it by."""
        return replace(self, options={**self.options, "number": str(number)}, word=MARKED)


@dataclass
class ModuleEdit:
    """All that changes in a file.

    Attributes:
      calls: its calls that become typed.
      fields: the hints of the fields of its classes.
      comments: comments above the statements that hold nodes.
      typed_dicts: classes that stand above the first function that has hints.
      words: the names that must be imported.
    """

    calls: list[CallEdit] = field(default_factory=list)
    fields: dict[cst.ClassDef, Mapping[str, str]] = field(default_factory=dict)
    comments: dict[cst.CSTNode, list[str]] = field(default_factory=dict)
    typed_dicts: dict[str, Mapping[str, str]] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)

    def add_words(self, words: Iterable[str]) -> None:
        """Have the names imported that it uses, of some that hints may use."""
        hints = chain(*((*one.parameters.values(), one.result) for one in self.calls))
        text = " ".join(chain(hints, *(each.values() for each in (*self.fields.values(), *self.typed_dicts.values()))))
        self.words |= {word for word in words if re.search(rf"\b{word}\b", text)}
        self.words |= {"typed_shard_map"} if self.calls else set()
        self.words |= {"TypedDict"} if self.typed_dicts else set()


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
    func = call.func
    if "functools.partial" in module.imported_names(func) and call.args:
        func = call.args[0].value
    below = func if isinstance(func, cst.Call) else module.bound_value(func)
    return (call, *option_calls(module, below)) if isinstance(below, cst.Call) else (call,)


def options_of(module: ParsedModule, call: cst.Call, names_it: bool) -> dict[str, cst.Arg]:
    """The options that a call gives.

    Raises:
      LeftPlain: for options that cannot be seen.
    """
    is_partial = "functools.partial" in module.imported_names(call.func)
    found: dict[str, cst.Arg] = {}
    positions = iter(_POSITIONS if names_it else _POSITIONS[:1])
    for arg in call.args[is_partial:]:
        if arg.star:
            raise LeftPlain(f"'{module.code(arg.value)}' passes options that cannot be seen")
        name = arg.keyword.value if arg.keyword is not None else next(positions, "")
        found[name] = arg
    return found


def edit_module(module: ParsedModule, edit: ModuleEdit, exported: Set[str]) -> str:
    """The text of a file with all edits; names that other files import stay."""
    editor = _Editor(module, edit)
    tree = module.module.visit(editor)
    assert isinstance(tree, cst.Module)
    body: list[Any] = [*tree.body]
    if edit.typed_dicts and editor.first_definition is not None:
        around = [editor.first_definition, *module.around(editor.first_definition, cst.BaseCompoundStatement)]
        at, indent = list[Any](module.module.body).index(around[-1]), module.module.default_indent
        body[at:at] = [_typed_dict(name, fields, indent) for name, fields in edit.typed_dicts.items()]
    tree = _with_imports(tree.with_changes(body=body), {name: module.spelled(name) for name in edit.words})
    return _without_dead(tree, editor.removed - exported, exported).code


class _Editor(cst.CSTTransformer):
    """Replaces calls, signatures and fields, and notes the names of what it took away."""

    def __init__(self, module: ParsedModule, edit: ModuleEdit) -> None:
        super().__init__()
        self.module, self.edit, self.removed = module, edit, set[str]()
        self.calls = {call: one for one in edit.calls for call in one.calls}
        self.definitions = {one.definition: one for one in edit.calls if one.definition is not None}
        hints = {node: " ".join(fields.values()) for node, fields in edit.fields.items()}
        classes = [node for node, text in hints.items() if any(name in text for name in edit.typed_dicts)]
        self.first_definition = min([*self.definitions, *classes], key=module.line, default=None)
        self.comments: dict[cst.CSTNode, list[str]] = {}
        for node, texts in edit.comments.items():
            statement = self._statement(node)
            lines = [line for text in texts for line in _comment_lines(text, module.column(statement))]
            self.comments.setdefault(statement, []).extend(lines)
        self.spec_comments: dict[cst.FunctionDef, list[str | None]] = {}
        for one in edit.calls:
            self._take_comments(one)

    def _statement(self, node: cst.CSTNode) -> cst.CSTNode:
        return next(self.module.around(node, cst.SimpleStatementLine, cst.BaseCompoundStatement))

    def _take_comments(self, one: CallEdit) -> None:
        """The comments among the specs go to the parameters, each to its own, or above the call."""
        for call in one.calls:
            options = options_of(self.module, call, call is one.calls[-1])
            for name in ("in_specs", "out_specs"):
                if name not in options:
                    continue
                rest = _comments_in(options[name])
                specs = options[name].value
                if name == "in_specs" and one.definition is not None and isinstance(specs, cst.Tuple):
                    own = [(_comments_in(element.comma) or [None])[0] for element in specs.elements]
                    own[-1:] = [own[-1] or (_comments_in(specs.rpar) or [None])[0]] if own else []
                    if len(own) == len(one.parameters):
                        self.spec_comments[one.definition] = own
                        rest = [text for text in rest if text not in own]
                if rest:
                    self.comments.setdefault(self._statement(call), []).extend(rest)

    # Calls

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        one = self.calls.get(original_node)
        if one is None:
            return self._formatted_around(original_node, updated_node)
        names_it = original_node is one.calls[-1]
        is_partial = "functools.partial" in self.module.imported_names(original_node.func)
        above = self.module.parent(original_node)
        options = options_of(self.module, original_node, names_it)
        new = dict(zip(original_node.args, updated_node.args, strict=True))
        args: list[cst.Arg] = []
        for name, arg in options.items():
            if name in _GONE:
                self._remove(arg.value)
            elif name == "f":
                args.insert(0, new[arg].with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT))
            else:
                args.append(_keyword(_TODAY.get(name, name), new[arg]))
        if original_node is one.takes_options:
            args += [_new_keyword(name, code) for name, code in one.options.items()]
            if one.definition is None:
                args += [
                    _new_keyword("in_types", _tuple(one.parameters.values())),
                    _new_keyword("out_types", one.result),
                ]
        func: cst.BaseExpression = updated_node.func
        if is_partial:
            inner = updated_node.args[0].value
            if names_it:
                self._remove(original_node.args[0])
                inner = cst.Name(self._word(one))
            is_at_once = isinstance(above, cst.Decorator) or (
                isinstance(above, cst.Call) and above.func is original_node
            )
            if (names_it and is_at_once) or not args:
                self._remove(original_node.func)
                func = inner
            else:
                args.insert(0, cst.Arg(inner))
        elif names_it:
            self._remove(original_node.func)
            func = cst.Name(self._word(one))
        if not args and (isinstance(above, cst.Decorator) or (is_partial and not names_it)):
            return func
        return self._formatted(original_node, updated_node.with_changes(func=func), args)

    def _formatted_around(self, original: cst.Call, call: cst.Call) -> cst.Call:
        """A call around a typed one, ``jax.jit``, on one line if that is on one, and no line breaks are needed."""
        is_around = len(call.args) == 1 and original.args[0].value in self.calls
        if not is_around or "\n" in self.module.code(call.args[0].value) or "\n" not in self.module.code(call):
            return call
        return self._formatted(original, call, call.args)

    def _word(self, one: CallEdit) -> str:
        return one.word if one.word == MARKED else self.module.spelled(one.word)

    def _remove(self, node: cst.CSTNode) -> None:
        self.removed |= set(_names_in(node))

    def _formatted(self, original: cst.Call, call: cst.Call, args: Sequence[cst.Arg]) -> cst.Call:
        """A call on one line if it fits and has no comments, else one argument a line."""
        blank, render = cst.SimpleWhitespace(""), self.module.code
        has_comments = any(_comments_in(arg.comma) for arg in args)
        flat = [arg.with_changes(comma=_COMMA, whitespace_after_arg=blank) for arg in args]
        flat[-1:] = [arg.with_changes(comma=cst.MaybeSentinel.DEFAULT) for arg in flat[-1:]]
        one_line = call.with_changes(args=flat, whitespace_before_args=blank)
        before, after = self.module.column(original), self.module.rest_of_line(original)
        first, *rest = f"{render(one_line)}{after}".split("\n")
        fits = before + len(first) <= WIDTH and all(len(line) <= WIDTH for line in rest)
        if fits and not has_comments and (not rest or all("\n" in render(arg) for arg in args[:1])):
            return one_line
        line, unit = self._line_indent(original), self.module.module.default_indent
        outer = line.removeprefix(self._indent_of(original))  # beyond the block's
        lines = [
            self._fitted_argument(arg, line + unit).with_changes(
                comma=_line_end(arg.comma, outer + unit if at < len(args) - 1 else outer), whitespace_after_arg=blank
            )
            for at, arg in enumerate(args)
        ]
        return call.with_changes(args=lines, whitespace_before_args=_new_line(outer + unit))

    def _fitted_argument(self, arg: cst.Arg, indent: str) -> cst.Arg:
        """An argument on a line of its own, which hints of ours may break."""
        name = arg.keyword.value if arg.keyword is not None else ""
        if name not in ("in_types", "out_types"):
            return arg
        unit = self.module.module.default_indent
        text = _fitted(self.module.code(arg.value), WIDTH - len(f"{indent}{name}=,"), indent, unit)
        return arg.with_changes(value=cst.parse_expression(text))

    def _indent_of(self, node: cst.CSTNode) -> str:
        return self._line_indent(node if isinstance(node, cst.FunctionDef) else self._statement(node))

    def _line_indent(self, node: cst.CSTNode) -> str:
        line = self.module.lines[self.module.line(node) - 1]
        return line[: len(line) - len(line.lstrip())]

    # Definitions

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        one = self.definitions.get(original_node)
        if one is None:
            return updated_node
        for param in m.findall(original_node.params, m.Param()):
            assert isinstance(param, cst.Param)
            if param.name.value in one.parameters and param.annotation is not None:
                self._remove(param.annotation)
        if original_node.returns is not None:
            self._remove(original_node.returns)
        hinted = self._hinted(updated_node, one.parameters, one.result)
        comments = self.spec_comments.get(original_node, [])
        if self._is_short(original_node, hinted) and not any(comments):
            return hinted
        unit, indent = self.module.module.default_indent, self._indent_of(original_node)
        rooms = {name: WIDTH - len(f"{indent}{unit}{name}: ,") for name in one.parameters}
        parameters = {k: _fitted(hint, rooms[k], indent + unit, unit) for k, hint in one.parameters.items()}
        result = _fitted(one.result, WIDTH - len(f"{indent}) -> :"), indent, unit)
        return _with_broken_parameters(self._hinted(updated_node, parameters, result), unit, comments)

    def _hinted(self, node: cst.FunctionDef, parameters: Mapping[str, str], result: str) -> cst.FunctionDef:
        params = node.params.visit(_Annotator(parameters))
        return node.with_changes(params=params, returns=_annotation(result, is_result=True))

    def _is_short(self, original: cst.FunctionDef, function: cst.FunctionDef) -> bool:
        """Whether each line of a signature fits."""
        body = cst.SimpleStatementSuite([cst.Pass()])
        head = function.with_changes(body=body, decorators=[], leading_lines=[], lines_after_decorators=[])
        first, *rest = self.module.code(head).rpartition(" pass")[0].split("\n")
        return max(map(len, [self._indent_of(original) + first, *rest])) <= WIDTH

    # Classes and comments

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        fields = self.edit.fields.get(original_node)
        if fields is None:
            return updated_node
        for part in m.findall(original_node.body, m.AnnAssign()):
            if isinstance(part, cst.AnnAssign) and isinstance(part.target, cst.Name) and part.target.value in fields:
                self._remove(part.annotation)
        return updated_node.with_changes(body=updated_node.body.visit(_Annotator(fields)))

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        found: Any = super().on_leave(original_node, updated_node)
        lines = [cst.EmptyLine(comment=cst.Comment(text)) for text in self.comments.get(original_node, ())]
        return found.with_changes(leading_lines=[*found.leading_lines, *lines]) if lines else found


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
        hint = self.hints.get(original_node.name.value)
        if hint is None:
            return updated_node
        equal = cst.AssignEqual() if updated_node.default is not None else cst.MaybeSentinel.DEFAULT
        return updated_node.with_changes(annotation=_annotation(hint), equal=equal)

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.AnnAssign:
        hint = self.hints.get(original_node.target.value) if isinstance(original_node.target, cst.Name) else None
        return updated_node if hint is None else updated_node.with_changes(annotation=_annotation(hint))


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def _annotation(hint: str, is_result: bool = False) -> cst.Annotation:
    before = cst.SimpleWhitespace(" " if is_result else "")
    return cst.Annotation(cst.parse_expression(hint), before, cst.SimpleWhitespace(" "))


def _keyword(name: str, arg: cst.Arg) -> cst.Arg:
    return arg.with_changes(keyword=cst.Name(name), equal=_EQUAL)


def _new_keyword(name: str, code: str) -> cst.Arg:
    return cst.Arg(cst.parse_expression(code), cst.Name(name), _EQUAL)


def _tuple(items: Iterable[str]) -> str:
    texts = [*items]
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _new_line(indent: str, comment: cst.Comment | None = None) -> cst.ParenthesizedWhitespace:
    first = cst.TrailingWhitespace(cst.SimpleWhitespace("  " if comment is not None else ""), comment)
    return cst.ParenthesizedWhitespace(first, indent=True, last_line=cst.SimpleWhitespace(indent))


def _line_end(comma: cst.Comma | cst.MaybeSentinel, indent: str) -> cst.Comma:
    """A comma behind which the next line begins; its comments stay."""
    after = comma.whitespace_after if isinstance(comma, cst.Comma) else None
    if isinstance(after, cst.ParenthesizedWhitespace) and _comments_in(after):
        return cst.Comma(whitespace_after=after.with_changes(indent=True, last_line=cst.SimpleWhitespace(indent)))
    return cst.Comma(whitespace_after=_new_line(indent))


_MAY_BREAK = re.compile(r"(?:tuple|list|PyTree)\[|\(")


def _fitted(hint: str, room: int, indent: str, unit: str) -> str:
    """A hint if there is room for it, else with one item of its outermost brackets a line."""
    opening = _MAY_BREAK.match(hint)
    if len(hint) <= room or opening is None:
        return hint
    depth, start, items = 0, opening.end(), list[str]()
    for at in range(opening.end(), len(hint)):
        depth += (hint[at] in "[(") - (hint[at] in "])")
        if depth < 0 or (depth == 0 and hint[at] == ","):
            items += [hint[start:at].strip()] if hint[start:at].strip() else []
            start = at + 1
        if depth < 0:
            break
    inner, comma = indent + unit, "," if len(items) > 1 or hint[0] == "(" else ""
    lines = [f"{inner}{_fitted(item, WIDTH - len(inner) - 1, inner, unit)}{comma}" for item in items]
    return "\n".join([opening[0], *lines, f"{indent}{hint[start - 1 :]}"])


def _with_broken_parameters(function: cst.FunctionDef, indent: str, comments: Sequence[str | None]) -> cst.FunctionDef:
    """A function with one parameter a line, some with comments behind them."""
    params = function.params
    texts = chain(comments, repeat(None))
    star, posonly = params.star_arg, params.posonly_ind
    groups = [params.posonly_params, [posonly], params.params, [star], params.kwonly_params, [params.star_kwarg]]
    last = [node for group in groups for node in group if isinstance(node, cst.CSTNode)][-1:]

    def ended(node: Any) -> Any:
        text = next(texts) if isinstance(node, cst.Param) else None
        comma = _line_end(node.comma, "" if [node] == last else indent)
        if text is not None:
            comma = cst.Comma(whitespace_after=_new_line("" if [node] == last else indent, cst.Comment(text)))
        return node.with_changes(comma=comma)

    new = [[ended(node) if isinstance(node, cst.CSTNode) else node for node in group] for group in groups]
    broken = params.with_changes(
        posonly_params=new[0],
        posonly_ind=new[1][0],
        params=new[2],
        star_arg=new[3][0],
        kwonly_params=new[4],
        star_kwarg=new[5][0],
    )
    return function.with_changes(params=broken, whitespace_before_params=_new_line(indent))


def _comments_in(node: Any) -> list[str]:
    if not isinstance(node, cst.CSTNode):
        return [text for part in node for text in _comments_in(part)] if isinstance(node, list | tuple) else []
    return [found.value for found in m.findall(node, m.Comment()) if isinstance(found, cst.Comment)]


def _names_in(node: cst.CSTNode) -> Iterator[str]:
    return (found.value for found in m.findall(node, m.Name()) if isinstance(found, cst.Name))


def _typed_dict(name: str, fields: Mapping[str, str], indent: str) -> cst.BaseStatement:
    lines = "".join(f"{indent}{key}: {hint}\n" for key, hint in fields.items())
    parsed = cst.parse_statement(f"class {name}(TypedDict):\n{lines}")
    blank = cst.EmptyLine(indent=False)
    return parsed.with_changes(leading_lines=[blank, blank])


def _comment_lines(text: str, indent: int) -> list[str]:
    """A finding as comments that fit their lines."""
    wrapper = textwrap.TextWrapper(WIDTH - indent, "# ", "#   ", break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)


# What nothing uses any more


def _without_dead(tree: cst.Module, names: Set[str], exported: Set[str]) -> cst.Module:
    """A file without the assignments, functions and imports that nothing uses any more, of names that were removed."""
    while True:
        module = ParsedModule(tree.code)
        statements = [module.code(part) for kind in (cst.Assign, cst.AugAssign) for part in module.nodes(kind)]
        lists = " ".join(code for code in statements if "__all__" in code)
        unused = {binding.name for binding in module.all_bindings() if not binding.references}
        dead = {name for name in unused if names & {name, name.partition(".")[0]}}
        sweeper = _Sweeper(module, {name for name in dead if not re.search(rf"\b{re.escape(name)}\b", lists)})
        swept = module.module.visit(sweeper)
        assert isinstance(swept, cst.Module)
        if not sweeper.removed:
            return swept
        names, tree = (names | sweeper.removed) - exported, swept


class _Sweeper(cst.CSTTransformer):
    """Takes away the statements that bind dead names, and notes the names that stood in them."""

    def __init__(self, module: ParsedModule, dead: set[str]) -> None:
        super().__init__()
        self.module, self.dead, self.removed = module, dead, set[str]()

    def _is_dead(self, name: cst.CSTNode) -> bool:
        if not isinstance(name, cst.Name) or name.value not in self.dead:
            return False
        return all(not binding.references for binding in self.module.bindings(name))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return self._swept(original_node, updated_node)

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        return self._swept(original_node, updated_node)

    def _swept(self, original: Any, updated: Any) -> Any:
        """A block without dead statements; the lines above one stand above the next."""
        kept: list[Any] = []
        above: Sequence[cst.EmptyLine] = []
        removed = set(self.removed)
        for old, new in zip(original.body, updated.body, strict=True):
            swept = self._without_dead(old, new)
            above = _stacked(above, new.leading_lines)
            if swept is not None:
                kept, above = [*kept, swept.with_changes(leading_lines=above)], []
        if not kept:  # a block is not empty
            self.removed = removed
            return updated
        is_headed = not isinstance(updated, cst.Module) or (updated.header and updated.header[-1].comment)
        if kept[0] is not updated.body[0] and not is_headed:
            kept[0] = kept[0].with_changes(leading_lines=[*dropwhile(_is_blank, kept[0].leading_lines)])
        return updated.with_changes(body=kept, footer=_stacked([*dropwhile(_is_blank, above)], updated.footer))

    def _without_dead(self, original: Any, updated: Any) -> Any:
        """A statement without what is dead; None if nothing is left."""
        if isinstance(original, cst.FunctionDef) and not original.decorators and self._is_dead(original.name):
            self.removed |= set(_names_in(original))
            return None
        if not isinstance(original, cst.SimpleStatementLine) or len(original.body) != 1:
            return updated
        match original.body[0]:
            case cst.Assign(targets=[cst.AssignTarget(target=target)], value=value):
                targets = [one.value for one in target.elements] if isinstance(target, cst.Tuple) else [target]
                if all(map(self._is_dead, targets)) and not m.findall(value, m.Await() | m.Yield() | m.NamedExpr()):
                    self.removed |= {*_names_in(value), *_names_in(target)}
                    return None
            case cst.Import(names=names) | cst.ImportFrom(names=[*names]):
                return self._without_names(original, updated, names)
            case _:
                pass
        return updated

    def _without_names(
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine, names: Sequence[cst.ImportAlias]
    ) -> cst.SimpleStatementLine | None:
        def bound(alias: cst.ImportAlias) -> str:
            return alias.evaluated_alias or alias.evaluated_name

        as_itself = {bound(alias) for alias in names if alias.evaluated_alias == alias.evaluated_name}
        kept = [at for at, alias in enumerate(names) if bound(alias) not in self.dead or bound(alias) in as_itself]
        if len(kept) == len(names) or (kept and _comments_in(updated)):
            return updated
        self.removed |= {bound(alias) for at, alias in enumerate(names) if at not in kept}
        if not kept:
            return None
        statement: Any = updated.body[0]
        aliases = [statement.names[at] for at in kept]
        aliases[-1] = aliases[-1].with_changes(comma=statement.names[-1].comma)
        return updated.with_changes(body=[statement.with_changes(names=aliases)])


def _is_blank(line: cst.EmptyLine) -> bool:
    return line.comment is None


def _stacked(above: Sequence[cst.EmptyLine], below: Sequence[cst.EmptyLine]) -> Sequence[cst.EmptyLine]:
    """The lines above a statement behind those above one that is gone: comments stay, blank lines do not pile up."""
    if not all(map(_is_blank, above)):
        return [*above, *below]
    blank = [*takewhile(_is_blank, below)]
    return [*max(above, blank, key=len), *below[len(blank) :]]


# Imports


_TYPING = frozenset({"Any", "TypedDict"})


def _with_imports(tree: cst.Module, words: Mapping[str, str]) -> cst.Module:
    """A file that imports the names that hints use, each as it is spelled there."""
    module = ParsedModule(tree.code)
    bound = {binding.name for binding in module.all_bindings()}
    missing = [name for name in sorted(words) if words[name] not in bound]
    body = [*module.module.body]
    for home in ("typedshmap", "typing"):
        names = [name for name in missing if (name in _TYPING) == (home == "typing")]
        if names:
            _add_import(body, home, [name if name == words[name] else f"{name} as {words[name]}" for name in names])
    return module.module.with_changes(body=body)


def _add_import(body: list[Any], home: str, names: Sequence[str]) -> None:
    """Add names to the import of a module, or a line for them behind the last import that belongs before it."""
    for at, statement in enumerate(body):
        if m.matches(statement, m.SimpleStatementLine([m.ImportFrom(m.Name(home), names=[m.AtLeastN(n=1)])])):
            aliases = [cst.Module([]).code_for_node(alias).strip(", ") for alias in statement.body[0].names]
            new = cst.parse_statement(f"from {home} import {', '.join(sorted({*names, *aliases}))}")
            body[at] = new.with_changes(leading_lines=statement.leading_lines)
            return
    line = cst.parse_statement(f"from {home} import {', '.join(names)}")
    ends = (at for at, statement in enumerate(body) if isinstance(statement, cst.FunctionDef | cst.ClassDef))
    roots = [(at, root) for at, statement in enumerate(body[: next(ends, None)]) if (root := _root(statement))]
    before = [at for at, root in roots if _rank(root) <= _rank(home)]
    if before:
        is_new_section = _rank(_root(body[before[-1]]))[0] != _rank(home)[0]
        body.insert(before[-1] + 1, line.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * is_new_section))
    elif roots:
        at = roots[0][0]
        body.insert(at, line.with_changes(leading_lines=body[at].leading_lines))
        blank = [cst.EmptyLine(indent=False)] if home == "typing" else []
        body[at + 1] = body[at + 1].with_changes(leading_lines=blank)
    else:
        is_docstring = bool(body) and m.matches(body[0], m.SimpleStatementLine([m.Expr(m.SimpleString())]))
        body.insert(int(is_docstring), line)
        if not is_docstring and body[1:] and not body[1].leading_lines:
            blank = [cst.EmptyLine(indent=False)] * (1 + isinstance(body[1], cst.FunctionDef | cst.ClassDef))
            body[1] = body[1].with_changes(leading_lines=blank)


def _rank(root: str) -> tuple[int, str]:
    return (0 if root == "__future__" else 1 if root in sys.stdlib_module_names else 2, root)


def _root(statement: Any) -> str:
    """The package that an import statement imports from; empty for any other statement, and relative imports."""
    match statement:
        case cst.SimpleStatementLine(body=[cst.Import(names=[cst.ImportAlias() as alias, *_])]):
            return alias.evaluated_name.partition(".")[0]
        case cst.SimpleStatementLine(body=[cst.ImportFrom(module=cst.Attribute() | cst.Name() as named, relative=[])]):
            return cst.Module([]).code_for_node(named).partition(".")[0]
        case _:
            return ""
