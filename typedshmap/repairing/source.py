"""The text of a module: its syntax tree, where each node stands, and the text with some places changed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class TextChange(NamedTuple):
    """A place in a text, in bytes, and what is to stand there instead."""

    start: int
    end: int
    text: str


class SourceText:
    """A module's text.

    Args:
      text: the text.

    Raises:
      SyntaxError: for what Python cannot read.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._bytes = text.encode()
        lines = self._bytes.splitlines(keepends=True)
        self._starts = [sum(map(len, lines[:at])) for at in range(len(lines) + 1)]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, from within."""
        while (outer := self.parents.get(node)) is not None:
            yield outer
            node = outer

    def span(self, node: ast.expr | ast.stmt | ast.keyword | ast.arg | ast.alias) -> tuple[int, int]:
        """Where a node begins and ends, in bytes."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def lines_of(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where the lines of a node begin and end, in bytes."""
        return self._starts[node.lineno - 1], self._starts[node.end_lineno or node.lineno]

    def code(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        return self.between(*self.span(node))

    def between(self, start: int, end: int) -> str:
        """The text between two places, in bytes."""
        return self._bytes[start:end].decode()

    def changed(self, changes: Iterable[TextChange]) -> str:
        """The text with places changed, which do not overlap."""
        found = self._bytes
        for change in sorted(changes, reverse=True):
            found = found[: change.start] + change.text.encode() + found[change.end :]
        return found.decode()

    @cached_property
    def _functions(self) -> list[ast.AST]:
        return [node for node in ast.walk(self.tree) if isinstance(node, FUNCTIONS)]

    def function_at(self, line: int) -> ast.AST | None:
        """The innermost function that a line is in."""
        found = [each for each in self._functions if first_line(each) <= line <= _last_line(each)]
        return min(found, key=lambda each: _last_line(each) - first_line(each), default=None)

    def functions_named_at(self, line: int) -> list[ast.AST]:
        """The functions whose names stand on a line, as the body of a loop does."""
        names = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name) and node.lineno == line}
        return [each for each in self._functions if getattr(each, "name", "") in names]

    def lines_that_make(self, line: int) -> set[int]:
        """The lines above that assign the names which a line uses."""
        names = [each for each in ast.walk(self.tree) if isinstance(each, ast.Name)]
        used = {each.id for each in names if each.lineno == line}
        return {each.lineno for each in names if each.id in used and each.lineno < line and _is_stored(each)}

    def reached_from(self, line: int) -> list[ast.stmt]:
        """The outermost function or statement at a line, and the definitions of the module that it uses, in turn."""
        named: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            for name in _names_bound(statement):
                named.setdefault(name, []).append(statement)
        start = [each for each in self.tree.body if first_line(each) <= line <= (each.end_lineno or 0)]
        found = list(start)
        for node in found:
            used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            used |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
            found += [each for name in sorted(used) for each in named.get(name, ()) if each not in found]
        return [each for each in found if not isinstance(each, ast.Import | ast.ImportFrom)]


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _last_line(node: ast.AST) -> int:
    return getattr(node, "end_lineno", None) or 0


def first_line(node: ast.AST) -> int:
    """The line of a node, or of its first decorator."""
    return min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))  # type: ignore[attr-defined]


def _names_bound(statement: ast.stmt) -> list[str]:
    """The names that a statement of a module defines or assigns."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []
