"""The text of a module: its syntax tree, where each node stands, and the text with some places changed."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

AnyNode = TypeVar("AnyNode", bound=ast.AST)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
ImportNode = ast.Import | ast.ImportFrom
_MARK = "\ufeff"  # the byte order mark, with which editors on Windows begin a file


class TextChange(NamedTuple):
    """A place in a text, in bytes, and what is to stand there instead."""

    start: int
    end: int
    text: str


class SourceText:
    """A module's text.

    Args:
      text: the text, whose ends of lines and byte order mark are put back by `as_written`.

    Raises:
      SyntaxError: for what Python cannot read.
    """

    def __init__(self, text: str) -> None:
        self._has_mark = text.startswith(_MARK)
        self._is_crlf = 0 < text.count("\n") == text.count("\r\n")
        text = text.removeprefix(_MARK)
        self.text = text.replace("\r\n", "\n") if self._is_crlf else text
        self.tree = ast.parse(self.text)
        self._bytes = self.text.encode()
        lines = self._bytes.splitlines(keepends=True)
        self._starts = [sum(map(len, lines[:at])) for at in range(len(lines) + 1)]

    @classmethod
    def read(cls, file: str | Path) -> Self:
        """The text of a file.

        Raises:
          OSError: for one that cannot be opened.
          ValueError: for one that is not UTF-8.
          SyntaxError: for what Python cannot read.
        """
        return cls(Path(file).read_bytes().decode())  # which keeps the ends of lines

    def as_written(self, text: str | None = None) -> str:
        """The text as the file has it, or a new one with the ends of lines and the mark of the old one."""
        text = self.text if text is None else text
        return _MARK * self._has_mark + (text.replace("\n", "\r\n") if self._is_crlf else text)

    # Nodes

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node around each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def nodes(self, *kinds: type[AnyNode]) -> list[AnyNode]:
        """All nodes of some kinds."""
        return [node for node in self.parents if isinstance(node, kinds)]

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, from within."""
        while (outer := self.parents.get(node)) is not None:
            yield outer
            node = outer

    @cached_property
    def comments(self) -> dict[int, str]:
        """The comments by their lines."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text, newline=None).readline)
        return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}

    def comments_by(self, nodes: Sequence[ast.expr | ast.arg], first: int, last: int) -> list[list[str]]:
        """The comments on lines, but for the last one: those of each node, which stand beside or above it."""
        found: list[list[str]] = [[] for _ in nodes]
        for line in range(first, last):
            if nodes and (comment := self.comments.get(line)) is not None:
                on_it = [at for at, node in enumerate(nodes) if node.lineno <= line <= last_line(node)]
                below = [at for at, node in enumerate(nodes) if node.lineno > line]
                found[on_it[-1] if on_it else below[0] if below else -1].append(comment)
        return found

    # Places

    def span(self, node: ast.expr | ast.stmt | ast.keyword | ast.arg | ast.alias) -> tuple[int, int]:
        """Where a node begins and ends, in bytes."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def lines_of(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where the lines of a node begin and end, in bytes; those of its decorators are not among them."""
        return self._starts[node.lineno - 1], self._starts[node.end_lineno or node.lineno]

    def start_of(self, statement: ast.stmt) -> int:
        """Where the line of a statement begins, or of its first decorator."""
        return self._starts[first_line(statement) - 1]

    def indent(self, node: ast.expr | ast.stmt) -> str:
        """The indentation of the line on which a node begins."""
        line = self.between(*self.lines_of(node))
        return line[: len(line) - len(line.lstrip())]

    def code(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        return self.between(*self.span(node))

    def between(self, start: int, end: int | None = None) -> str:
        """The text between two places, in bytes; or that behind one."""
        return self._bytes[start:end].decode()

    def changed(self, changes: Iterable[TextChange], start: int = 0, end: int | None = None) -> str:
        """The text, or that between two places, with changes; one within another is part of it.

        What is inserted where something else is changed stands before that."""
        at, end, found = start, len(self._bytes) if end is None else end, ""
        for change in sorted(changes, key=lambda each: (each.start, each.end > each.start, -each.end)):
            if at <= change.start and change.end <= end:
                found, at = found + self.between(at, change.start) + change.text, change.end
        return found + self.between(at, end)

    # Lines

    @cached_property
    def _functions(self) -> list[FunctionNode]:
        return self.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

    def function_at(self, line: int) -> ast.AST | None:
        """The innermost function that a line is in."""
        found = [each for each in self._functions if first_line(each) <= line <= last_line(each)]
        return min(found, key=lambda each: last_line(each) - first_line(each), default=None)

    def functions_named_at(self, line: int) -> list[ast.AST]:
        """The functions whose names stand on a line, as the body of a loop does."""
        names = {node.id for node in names_in(self.tree) if node.lineno == line}
        return [each for each in self._functions if getattr(each, "name", "") in names]

    def lines_that_make(self, line: int) -> set[int]:
        """The lines above that assign the names which a line uses."""
        names = names_in(self.tree)
        used = {each.id for each in names if each.lineno == line}
        return {each.lineno for each in names if each.id in used and each.lineno < line and _is_stored(each)}

    def reached_from(self, line: int) -> list[ast.stmt]:
        """The outermost function or statement at a line, and the definitions of the module that it uses, in turn."""
        named: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            for name in _names_bound(statement):
                named.setdefault(name, []).append(statement)
        start = [each for each in self.tree.body if first_line(each) <= line <= last_line(each)]
        found = list(start)
        for node in found:
            used = {each.id for each in names_in(node)}
            used |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
            found += [each for name in sorted(used) for each in named.get(name, ()) if each not in found]
        return [each for each in found if not isinstance(each, ImportNode)]


def names_in(node: ast.AST) -> list[ast.Name]:
    """The names that are used or assigned in a node."""
    return [each for each in ast.walk(node) if isinstance(each, ast.Name)]


def parameters_of(node: FunctionNode) -> list[ast.arg]:
    """The parameters of a function, in the order of its header."""
    args = node.args
    starred = filter(None, [args.vararg]), filter(None, [args.kwarg])
    return [*args.posonlyargs, *args.args, *starred[0], *args.kwonlyargs, *starred[1]]


def assigned_names(statement: ast.stmt) -> list[str]:
    """The names in what a statement assigns to."""
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return [name.id for target in targets if target for name in names_in(target)]


def last_name(node: ast.expr) -> str:
    """The last part of a dotted name; empty for what is none."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def first_line(node: ast.AST) -> int:
    """The line of a node, or of its first decorator."""
    return min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))  # type: ignore[attr-defined]


def last_line(node: ast.AST) -> int:
    """The line on which a node ends."""
    return getattr(node, "end_lineno", None) or 0


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _names_bound(statement: ast.stmt) -> list[str]:
    """The names that a statement of a module defines or assigns."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case _:
            return assigned_names(statement)
