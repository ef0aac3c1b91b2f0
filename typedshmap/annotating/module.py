"""A parsed file: where its nodes stand, and what its names mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import libcst as cst
from libcst.metadata import (
    Assignment,
    BaseAssignment,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameSource,
    ScopeProvider,
)

from ..auditing.calls import CodeSpan

AnyNode = TypeVar("AnyNode", bound=cst.CSTNode)


class ParsedModule:
    """A file's text and tree, and what libcst knows of both."""

    def __init__(self, text: str) -> None:
        wrapper = MetadataWrapper(cst.parse_module(text))
        self.module, self.lines = wrapper.module, text.splitlines(keepends=True)
        self._positions = wrapper.resolve(PositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._scopes = wrapper.resolve(ScopeProvider)

    def nodes(self, kind: type[AnyNode]) -> Iterator[AnyNode]:
        """All nodes of a kind."""
        return (node for node in self._positions if isinstance(node, kind))

    def line(self, node: cst.CSTNode) -> int:
        """The line on which a node begins."""
        return self._positions[node].start.line

    def column(self, node: cst.CSTNode) -> int:
        """The column at which a node begins."""
        return self._positions[node].start.column

    def rest_of_line(self, node: cst.CSTNode) -> str:
        """What stands behind a node on its last line."""
        end = self._positions[node].end
        return self.lines[end.line - 1][end.column :].rstrip()

    def code(self, node: cst.CSTNode) -> str:
        """A node as it was written."""
        return self.module.code_for_node(node)

    def call_at(self, span: CodeSpan) -> cst.Call | None:
        """The call that ends where code says; Python has a method's call begin at its name."""
        _, line, _, column = span
        for call in self.nodes(cst.Call):
            end = self._positions[call].end
            if end.line == line and len(self.lines[end.line - 1][: end.column].encode()) == column:
                return call
        return None

    def function_at(self, line: int, name: str) -> cst.FunctionDef | None:
        """The function of a name whose code begins on a line, with its first decorator."""
        for node in self.nodes(cst.FunctionDef):
            lines = [self.line(each) for each in (node.name, *node.decorators)]
            if node.name.value == name and min(lines) == line:
                return node
        return None

    def class_named(self, name: str) -> cst.ClassDef | None:
        """The class of a name, if there is one."""
        found = [node for node in self.nodes(cst.ClassDef) if node.name.value == name]
        return found[0] if len(found) == 1 else None

    def parent(self, node: cst.CSTNode) -> cst.CSTNode:
        """The node around a node."""
        return self._parents[node]

    def around(self, node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> Iterator[cst.CSTNode]:
        """The nodes of some kinds around a node, the innermost first."""
        above: cst.CSTNode | None = node
        while (above := self._parents.get(above)) is not None:
            if isinstance(above, kinds):
                yield above

    def imported_names(self, node: cst.CSTNode) -> frozenset[str]:
        """What a dotted name may stand for, by the imports."""
        first = node
        while isinstance(first, cst.Attribute):
            first = first.value
        scope = self._scopes.get(first) if isinstance(first, cst.Name) else None
        found = scope.get_qualified_names_for(node) if scope is not None else ()
        return frozenset(name.name for name in found if name.source is QualifiedNameSource.IMPORT)

    def bindings(self, name: cst.Name) -> list[BaseAssignment]:
        """Every place that binds a name, as seen from where it is used."""
        scope = self._scopes.get(name)
        return list(scope[name.value]) if scope is not None else []

    def bound_value(self, name: cst.CSTNode) -> cst.BaseExpression | None:
        """What a name is bound to, where that is once and by a plain assignment."""
        found = self.bindings(name) if isinstance(name, cst.Name) else []
        if len(found) != 1 or not isinstance(found[0], Assignment):
            return None
        match self._parents.get(found[0].node):
            case cst.AssignTarget() as target:
                statement = self.parent(target)
                return statement.value if isinstance(statement, cst.Assign) and len(statement.targets) == 1 else None
            case cst.AnnAssign(value=value):
                return value
            case _:
                return None

    def uses_of_value(self, node: cst.CSTNode) -> int:
        """How often the name is used that is bound to a value; once if it is bound to none."""
        target = self._parents.get(node)
        names = [one.target for one in target.targets] if isinstance(target, cst.Assign) else []
        bindings = self.bindings(names[0]) if names and isinstance(names[0], cst.Name) else []
        return sum(len(binding.references) for binding in bindings) if bindings else 1

    def means_the_same(self, node: cst.CSTNode, place: cst.CSTNode) -> bool:
        """Whether a dotted name means the same at another place."""
        while isinstance(node, cst.Attribute):
            node = node.value
        scope = self._scopes.get(place)
        return isinstance(node, cst.Name) and scope is not None and [*scope[node.value]] == self.bindings(node)

    def is_parameter(self, name: cst.Name) -> bool:
        """Whether a name is a parameter of a function around it."""
        nodes = [binding.node for binding in self.bindings(name) if isinstance(binding, Assignment)]
        return any(isinstance(node, cst.Param) or isinstance(self._parents.get(node), cst.Param) for node in nodes)

    def all_bindings(self) -> Iterator[BaseAssignment]:
        """Every place of the file that binds a name."""
        for scope in {scope for scope in self._scopes.values() if scope is not None}:
            yield from scope.assignments
