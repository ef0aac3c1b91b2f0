"""A parsed file: what its names mean, and which of its calls map functions with ``shard_map``."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from ..repairing.source import FUNCTIONS, SourceText

SHARD_MAP = frozenset({"jax.shard_map", "jax.experimental.shard_map.shard_map"})
AnyNode = TypeVar("AnyNode", bound=ast.AST)
Binding = tuple[ast.AST | None, str]
"""A name, and the scope that binds it: None for what nothing in the file binds."""
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_POSITIONS = ("f", "mesh", "in_specs", "out_specs", "check_rep")
_MARK = "\ufeff"  # the byte order mark, with which editors on Windows begin a file


class LeftPlain(Exception):
    """What cannot be annotated safely, with the reason."""


class MappingCall(NamedTuple):
    """A call that maps a function with ``shard_map``, or decorates one.

    Attributes:
      node: the call.
      named: ``shard_map``, as it is named there, or in the partial that the call is of.
      options: those that it gives, the function ``f`` included, and those that it takes from partials.
    """

    node: ast.Call
    named: ast.expr
    options: dict[str, ast.expr]


class ParsedModule(SourceText):
    """A file's text, its syntax tree, and what is bound where.

    Attributes:
      comments: the comments by their lines.
      bindings: the nodes that bind a name in a scope.
      uses: where that name is used.
      declared: the names that some function binds elsewhere, by ``global`` or ``nonlocal``.

    Args:
      text: the text, whose ends of lines and byte order mark are put back by `as_written`.

    Raises:
      SyntaxError: for what Python cannot read.
    """

    def __init__(self, text: str) -> None:
        self._has_mark = text.startswith(_MARK)
        self._is_crlf = 0 < text.count("\n") == text.count("\r\n")
        super().__init__(text.removeprefix(_MARK).replace("\r\n", "\n") if self._is_crlf else text.removeprefix(_MARK))
        tokens = tokenize.generate_tokens(io.StringIO(self.text, newline=None).readline)
        self.comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
        self.bindings: dict[Binding, list[ast.AST]] = defaultdict(list)
        self.uses: dict[Binding, list[ast.Name]] = defaultdict(list)
        self.declared: set[str] = set()
        for node in self.parents:
            match node:
                case ast.Global(names=names) | ast.Nonlocal(names=names):
                    self.declared.update(names)
                case ast.alias(name=name, asname=asname):
                    self.bindings[self.scope(node), asname or name.partition(".")[0]].append(node)
                case ast.Name(ctx=ast.Load()) | ast.keyword():
                    pass
                case _:
                    fields = (getattr(node, field, None) for field in ("id", "arg", "name", "rest"))
                    for name in (each for each in fields if isinstance(each, str)):
                        self.bindings[self.scope(node), name].append(node)
        for node in self.nodes(ast.Name):
            if not isinstance(node.ctx, ast.Store):
                self.uses[self.binding(node.id, node)].append(node)

    def as_written(self, text: str) -> str:
        """A new text of the file, with the ends of lines and the mark of the old one."""
        return _MARK * self._has_mark + (text.replace("\n", "\r\n") if self._is_crlf else text)

    def nodes(self, *kinds: type[AnyNode]) -> list[AnyNode]:
        """All nodes of some kinds."""
        return [node for node in self.parents if isinstance(node, kinds)]

    # Places

    def indent(self, node: ast.expr | ast.stmt) -> str:
        """The indentation of the line on which a node begins."""
        line = self.between(*self.lines_of(node))
        return line[: len(line) - len(line.lstrip())]

    def start_of(self, statement: ast.stmt) -> int:
        """Where the line of a statement begins, or of its first decorator."""
        return self.lines_of([*getattr(statement, "decorator_list", ()), statement][0])[0]

    def comments_by(self, nodes: Sequence[ast.expr | ast.arg], first: int, last: int) -> list[list[str]]:
        """The comments on lines, but for the last one: those of each node, which stand beside or above it."""
        found: list[list[str]] = [[] for _ in nodes]
        for line in range(first, last):
            if nodes and (comment := self.comments.get(line)) is not None:
                on_it = [at for at, node in enumerate(nodes) if node.lineno <= line <= (node.end_lineno or 0)]
                below = [at for at, node in enumerate(nodes) if node.lineno > line]
                found[on_it[-1] if on_it else below[0] if below else -1].append(comment)
        return found

    # Names

    def scope(self, node: ast.AST) -> ast.AST:
        """Where a node is evaluated; for decorators, defaults and annotations that is around their function."""
        for inner, outer in pairwise((node, *self.around(node))):
            if isinstance(outer, ast.arguments) and inner is node:
                return self.parents[outer]
            if isinstance(outer, _COMPREHENSIONS) or (isinstance(outer, ast.Lambda) and inner is outer.body):
                return outer
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and inner in outer.body:
                return outer
        return self.tree

    def binding(self, name: str, place: ast.AST) -> Binding:
        """What a name stands for where it is used."""
        inner = self.scope(place)
        outer = (each for each in self.around(inner) if isinstance(each, (*FUNCTIONS, *_COMPREHENSIONS, ast.Module)))
        return next(((each, name) for each in (inner, *outer) if (each, name) in self.bindings), (None, name))

    def means_the_same(self, node: ast.AST, place: ast.AST) -> bool:
        """Whether the names in an expression mean the same at another place."""
        names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
        return all(self.binding(name.id, name) == self.binding(name.id, place) for name in names)

    def bound_node(self, node: ast.AST | None) -> ast.AST | None:
        """The node that binds a name, where that is one."""
        if not isinstance(node, ast.Name) or node.id in self.declared:
            return None
        found = self.bindings.get(self.binding(node.id, node), [])
        return found[0] if len(found) == 1 else None

    def value(self, node: ast.AST) -> ast.expr | None:
        """What a name is bound to, where that is once and by a plain assignment."""
        bound = self.bound_node(node)
        match self.parents.get(bound) if bound is not None else None:
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=value):
                # After "from kernels import *" a name may be bound to what is made of itself.
                names = [each.id for each in ast.walk(value) if isinstance(each, ast.Name)] if value else []
                return value if target is bound and getattr(node, "id", "") not in names else None
            case _:
                return None

    def imported(self, node: ast.AST | None) -> set[str]:
        """What a dotted name may stand for, by the imports."""
        if isinstance(node, ast.Attribute):
            return {f"{home}.{node.attr}" for home in self.imported(node.value)}
        found = self.bindings.get(self.binding(node.id, node), []) if isinstance(node, ast.Name) else []
        return {self.full_name(each) for each in found if isinstance(each, ast.alias)}

    def meaning(self, node: ast.AST) -> set[str]:
        """What a name stands for by the imports, also if it is bound once to what they bring in."""
        return self.imported(node) or self.imported(self.value(node))

    def full_name(self, alias: ast.alias) -> str:
        """What an import brings in, by its full name."""
        statement = self.parents[alias]
        if isinstance(statement, ast.ImportFrom):
            return f"{'.' * statement.level}{statement.module or ''}.{alias.name}"
        return alias.name if alias.asname else alias.name.partition(".")[0]

    def unused(self) -> set[str]:
        """The names that are bound, but for parameters, and not used, be it in one scope only."""
        found = self.bindings.items()
        return {key[1] for key, nodes in found if not self.uses.get(key) and not isinstance(nodes[0], ast.arg)}

    # Calls of ``shard_map``

    def is_partial(self, node: ast.AST) -> bool:
        """Whether a node is a call of ``functools.partial``."""
        return isinstance(node, ast.Call) and "functools.partial" in self.imported(node.func) and bool(node.args)

    def is_decorator(self, node: ast.AST) -> bool:
        """Whether a node decorates a function or a class."""
        return node in getattr(self.parents[node], "decorator_list", ())

    def mapping_call(self, call: ast.Call) -> MappingCall | None:
        """How a call maps a function with ``shard_map``, or decorates one; None if it does neither.

        Raises:
          LeftPlain: for options that cannot be seen.
        """
        chain, named, below = list[ast.Call](), call.func, call
        while isinstance(below, ast.Call):  # of a partial, of what shard_map(mesh=...) gives, or of a name for that
            chain.append(below)
            named = below.args[0] if self.is_partial(below) else below.func
            below = named if isinstance(named, ast.Call) else self.value(named)
        if not self.meaning(named) & SHARD_MAP:
            return None
        given = [self._options(each, _POSITIONS if each is chain[-1] else _POSITIONS[:1]) for each in chain]
        gives_function = ["f" in each for each in given]
        is_later = self.is_partial(call) and gives_function[0]
        if is_later or gives_function != [not self.is_decorator(call), *[False] * len(chain[1:])]:
            return None
        options = {name: value for each in reversed(given) for name, value in each.items()}
        for name, value in options.items():
            if name not in given[0] and not self.means_the_same(value, call):
                raise LeftPlain(f"its option '{name}' comes from where names may mean something else")
        return MappingCall(call, named, options)

    def _options(self, call: ast.Call, positions: tuple[str, ...]) -> dict[str, ast.expr]:
        positional = call.args[self.is_partial(call) :]
        stars = [each.value for each in positional if isinstance(each, ast.Starred)]
        for value in (*stars, *(each.value for each in call.keywords if each.arg is None)):
            raise LeftPlain(f"'{self.code(value)}' passes options that cannot be seen")
        named = {each.arg: each.value for each in call.keywords if each.arg is not None}
        return {**dict(zip(positions, positional, strict=False)), **named}
