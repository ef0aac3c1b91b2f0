"""A parsed file: where its nodes stand, what its names mean, and changes to its text.

Invariant: a node is never changed. A rewrite is a list of edits of the text, so that whatever no
edit covers stays as it was written.
"""

from __future__ import annotations

import io
import itertools
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import libcst as cst
from libcst.metadata import (
    Assignment,
    BaseAssignment,
    ByteSpanPositionProvider,
    MetadataWrapper,
    ParentNodeProvider,
    QualifiedNameSource,
    ScopeProvider,
)

NodeT = TypeVar("NodeT", bound=cst.CSTNode)
_WIDTH = 120  # wider lines are broken


class Unclear(Exception):
    """What cannot be rewritten safely, with the reason."""


@dataclass(frozen=True)
class Edit:
    """A stretch of the text, and what is to stand there."""

    start: int
    end: int
    text: str


def place_of(edit: Edit) -> tuple[int, int]:
    """Where an edit comes among others; of two at one place the first in the list comes first."""
    return edit.start, edit.end


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text after all edits, none of which overlaps another."""
    pieces: list[str] = []
    done = 0
    for edit in sorted(edits, key=place_of):
        assert done <= edit.start, f"two edits overlap at {edit.start}"
        pieces += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*pieces, text[done:]])


def odd_line(text: str, module: cst.Module) -> tuple[int, str] | None:
    """The first line of a file that libcst does not place as it stands, and why; None where there is none."""
    if lone := re.search(r"\r(?!\n)", text):
        return text.count("\n", 0, lone.start()) + 1, "a line ends in a carriage return alone"
    if module.code == text:
        return None
    pairs = zip(io.StringIO(text), io.StringIO(module.code), strict=False)
    same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return same + 1, "libcst loses a part of this line (a form feed?)"


class Source:
    """A file's text, its tree, and what libcst knows of both."""

    def __init__(self, module: cst.Module) -> None:
        wrapper = MetadataWrapper(module)
        self.text = module.code
        self.module = wrapper.module
        self._spans = wrapper.resolve(ByteSpanPositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._scopes = wrapper.resolve(ScopeProvider)
        self._offset = _offsets(self.text)

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Where a node stands, without its parentheses."""
        span = self._spans[node]
        return self._offset(span.start), self._offset(span.start + span.length)

    def code(self, node: cst.CSTNode) -> str:
        """A node as it was written, with its parentheses."""
        return self.module.code_for_node(node)

    def short(self, node: cst.CSTNode) -> str:
        """A node in one line, cut where it is long."""
        code = " ".join(self.code(node).split())
        return code if len(code) <= 60 else f"{code[:57]}..."

    def line(self, node: cst.CSTNode) -> int:
        """The number of the line on which a node begins."""
        return self.text.count("\n", 0, self.span(node)[0]) + 1

    def line_start(self, offset: int) -> int:
        """Where the line of a place begins."""
        return self.text.rfind("\n", 0, offset) + 1

    def line_end(self, offset: int) -> int:
        """Where the next line begins."""
        end = self.text.find("\n", offset)
        return len(self.text) if end < 0 else end + 1

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around a node."""
        return self._parents.get(node)

    def enclosing(self, node: cst.CSTNode, kind: type[NodeT]) -> NodeT | None:
        """The innermost node of a kind around a node."""
        above = self.parent(node)
        while above is not None and not isinstance(above, kind):
            above = self.parent(above)
        return above

    def imported_names(self, node: cst.CSTNode) -> frozenset[str]:
        """What a dotted name may stand for, by the imports: ``jax.sharding.PartitionSpec``."""
        if not isinstance(node, (cst.Name, cst.Attribute)):
            return frozenset()
        scope = self._scopes.get(_first_name(node))
        found = scope.get_qualified_names_for(node) if scope is not None else ()
        return frozenset(name.name for name in found if name.source is QualifiedNameSource.IMPORT)

    def meaning(self, node: cst.CSTNode) -> frozenset[str]:
        """What a name stands for, by the imports, also where it is bound once to what they bring in."""
        found = self.imported_names(node)
        value = self.bound_value(node) if isinstance(node, cst.Name) and not found else None
        return found if value is None else self.imported_names(value)

    def bindings(self, name: cst.Name, seen_from: cst.CSTNode | None = None) -> list[BaseAssignment]:
        """Every place that binds a name, as seen from where it is used, or from another node."""
        scope = self._scopes.get(seen_from or name)
        return list(scope[name.value]) if scope is not None else []

    def only_binding(self, name: cst.Name) -> Assignment | None:
        """The one place that binds a name; None for none, several, or an import."""
        found = self.bindings(name)
        return found[0] if len(found) == 1 and isinstance(found[0], Assignment) else None

    def bound_value(self, name: cst.Name) -> cst.BaseExpression | None:
        """What a name is bound to, where that is once and by a plain assignment."""
        binding = self.only_binding(name)
        if binding is None or not isinstance(binding.node, cst.Name):
            return None
        value = self._assigned_value(binding.node)
        # After "from kernels import *" a name may be bound to what is made of itself.
        is_circular = value is not None and any(part.value == name.value for part in _names_in(value))
        return None if is_circular else value

    def _assigned_value(self, target: cst.Name) -> cst.BaseExpression | None:
        above = self.parent(target)
        if isinstance(above, cst.AnnAssign):
            return above.value
        statement = self.parent(above) if isinstance(above, cst.AssignTarget) else None
        is_plain = isinstance(statement, cst.Assign) and len(statement.targets) == 1
        return statement.value if isinstance(statement, cst.Assign) and is_plain else None

    def all_bindings(self) -> Iterator[BaseAssignment]:
        """Every place of the file that binds a name."""
        for scope in {scope for scope in self._scopes.values() if scope is not None}:
            yield from scope.assignments


def _names_in(node: cst.CSTNode) -> Iterator[cst.Name]:
    if isinstance(node, cst.Name):
        yield node
    for child in node.children:
        yield from _names_in(child)


def _first_name(node: cst.BaseExpression) -> cst.BaseExpression:
    """What a dotted name begins with; only that has a scope."""
    return _first_name(node.value) if isinstance(node, cst.Attribute) else node


def _offsets(text: str) -> Callable[[int], int]:
    """From offsets in UTF-8, which libcst counts in, to offsets in the text."""
    if text.isascii():
        return int
    encoded = text.encode()
    return lambda offset: len(encoded[:offset].decode())


def cut_items(spans: Sequence[tuple[int, int]], gone: Iterable[int]) -> list[tuple[int, int]]:
    """What to cut so that some items of a list separated by commas are gone.

    An item goes with the comma after it; those at the end go with the comma before them, so that a
    trailing comma stays.
    """
    last = len(spans) - 1
    cut = sorted(gone)
    while cut and cut[-1] == last:
        cut.pop()
        last -= 1
    tail = [(spans[last][1], spans[-1][1])] if 0 <= last < len(spans) - 1 else []
    return [(spans[i][0], spans[i + 1][0]) for i in cut] + tail


@dataclass(frozen=True)
class ArgumentList:
    """Where the parentheses of parameters or arguments stand, and the commas between them."""

    opening: int
    commas: tuple[int, ...]
    closing: int


def parameters_at(text: str, start: int) -> ArgumentList:
    """The parameters that begin with the first parenthesis after a place."""
    lines = list(io.StringIO(text[start:]))
    starts = list(itertools.accumulate(map(len, lines), initial=start))
    depth, opening = 0, -1
    commas: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO("".join(lines)).readline):
        place = starts[token.start[0] - 1] + token.start[1]
        depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
        if token.string == "(" and depth == 1:
            opening = place
        if token.string == "," and depth == 1 and opening >= 0:
            commas.append(place)
        if token.string == ")" and depth == 0:
            return ArgumentList(opening, tuple(commas), place)
    raise AssertionError("no parentheses")


def arguments_of(source: Source, call: cst.Call) -> ArgumentList:
    """The arguments of a call that has some."""
    spans = [source.span(arg) for arg in call.args]
    commas = tuple(source.text.index(",", end) for _, end in spans[:-1])
    opening, closing = source.text.rindex("(", 0, spans[0][0]), source.text.index(")", spans[-1][1])
    return ArgumentList(opening, commas, closing)


def one_a_line(source: Source, found: ArgumentList, edits: Sequence[Edit]) -> list[Edit]:
    """One argument a line, where one line held them all and would now be too long."""
    text = source.text
    inside = text[found.opening + 1 : found.closing]
    first, last = found.closing - len(inside.lstrip()), found.opening + 1 + len(inside.rstrip())
    if "\n" in inside.strip() or _width(source, first, last, edits) <= _WIDTH:
        return []
    line = text[source.line_start(found.opening) : found.opening]
    outer = source.module.default_newline + line[: len(line) - len(line.lstrip())]
    inner = outer + source.module.default_indent
    kept = [comma + 1 for comma in found.commas if not any(edit.start <= comma < edit.end for edit in edits)]
    spaces = [space.span() for comma in kept if (space := re.compile(" *").match(text, comma)) is not None]
    opened = Edit(found.opening + 1, first, inner)
    closed = Edit(last, found.closing, outer if inside.rstrip().endswith(",") else f",{outer}")
    return [opened, *(Edit(*space, inner) for space in spaces if space[0] < last), closed]


def _width(source: Source, first: int, last: int, edits: Sequence[Edit]) -> int:
    """How long a line becomes that goes from before one place to after another."""
    start, end = source.line_start(first), source.line_end(last)
    inside = [edit for edit in edits if start <= edit.start and edit.end <= end]
    return end - start + sum(len(edit.text) - (edit.end - edit.start) for edit in inside)


def comments(text: str) -> list[str]:
    """The comments in a piece of a bracket, where lines may begin anywhere."""
    tokens = tokenize.generate_tokens(io.StringIO(f"({text}\n)").readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]
