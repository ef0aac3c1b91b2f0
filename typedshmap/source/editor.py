"""Edit a module: comments above statements, and annotations of functions and fields."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence

from .module import ParsedModule
from .text import TextChange, parameters_of
from .wrapping import WIDTH, bracketed, fitted


class ModuleEditor:
    """Collects the changes of a module; one within another is part of it.

    Attributes:
      module: the module.
      changes: the changes so far.
    """

    def __init__(self, module: ParsedModule) -> None:
        self.module, self.changes = module, list[TextChange]()

    def insert(self, at: int, text: str) -> None:
        self.changes.append(TextChange(at, at, text))

    def code(self, node: ast.expr) -> str:
        """The new text of a node."""
        return self.module.changed(self.changes, *self.module.span(node))

    def text(self) -> str:
        """The new text of the module."""
        return self.module.changed(self.changes)

    def comment(self, node: ast.AST, comments: Sequence[str]) -> None:
        """Put comments above the statement around a node."""
        statement = next(each for each in (node, *self.module.around(node)) if isinstance(each, ast.stmt))
        start, indent = self.module.start_of(statement), self.module.indent(statement)
        wrapper = textwrap.TextWrapper(WIDTH - len(indent), "# ", "#   ", break_on_hyphens=False)
        lines = [line for text in comments for line in ([text] if text.startswith("#") else wrapper.wrap(text))]
        self.insert(start, "".join(f"{indent}{line}\n" for line in lines))

    def annotate_function(
        self, function: ast.FunctionDef, hints: Mapping[str, str], result: str, comments: Sequence[str] = ()
    ) -> None:
        """Annotate the parameters of a function and its result.

        Args:
          function: the function.
          hints: the annotation of each parameter that gets one; the others keep theirs.
          result: that of the result.
          comments: for each of these parameters a comment beside it, unless it has one.
        """
        module, args, items = self.module, function.args, list[tuple[str, str]]()
        plain = [*args.posonlyargs, *args.args]
        defaults = dict(zip(reversed(plain), reversed(args.defaults), strict=False))
        defaults |= {
            param: default for param, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default
        }
        params = parameters_of(function)
        # The header reaches from behind the name to the colon behind its last node.
        name = re.match("[^(]*", module.code(function))
        start = module.span(function)[0] + len(name[0].encode()) if name is not None else 0
        nodes = [*params, *(param.annotation for param in params), *defaults.values(), function.returns]
        last = max([start, *(module.span(node)[1] for node in nodes if node is not None)])
        rest = re.match("(?:[^:#]|#.*)*", module.between(last, module.span(function)[1]))
        end = last + len(rest[0].encode()) if rest is not None else last
        last_line = function.lineno + module.between(start, end).count("\n")
        beside = dict(zip(hints, comments, strict=False))
        for param, own in zip(params, module.comments_by(params, function.lineno, last_line), strict=True):
            if args.vararg is None and param in args.kwonlyargs[:1]:
                items.append(("*", ""))
            note = hints.get(param.arg) or (self.code(param.annotation) if param.annotation else "")
            text = "*" * (param is args.vararg) + "**" * (param is args.kwarg) + param.arg + f": {note}" * bool(note)
            if param in defaults:
                text += (" = " if note else "=") + self.code(defaults[param])
            items.append((text, " ".join(own) or beside.get(param.arg, "")))
            if param in args.posonlyargs[-1:]:
                items.append(("/", ""))
        indent = module.indent(function)
        before = len(indent) + len(name[0] if name is not None else "")
        text = bracketed("(", items, ")", indent, before, len(f" -> {result}:"))
        result = fitted(result, indent, WIDTH - len(f"{indent}) -> :")) if "\n" in text else result
        self.changes.append(TextChange(start, end, f"{text} -> {result}"))

    def annotate_fields(self, node: ast.ClassDef, hints: Mapping[str, str]) -> None:
        """Give annotated fields of a class other annotations."""
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.target.id in hints:
                self.changes.append(TextChange(*self.module.span(part.annotation), hints[part.target.id]))
