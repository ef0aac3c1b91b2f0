"""A parsed file: where its nodes stand, and what its names mean."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TypeVar

import libcst as cst
from libcst import matchers as m
from libcst.metadata import (
    Assignment,
    BaseAssignment,
    ImportAssignment,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameSource,
    ScopeProvider,
)

from ..auditing.calls import CodeSpan

AnyNode = TypeVar("AnyNode", bound=cst.CSTNode)
_HOMES = ("typedshmap", "typing", "typing_extensions", "jax", "jaxtyping")


class ParsedModule:
    """A file's text and tree, and what libcst knows of both."""

    def __init__(self, text: str) -> None:
        wrapper = MetadataWrapper(cst.parse_module(text))
        self.module, self.lines = wrapper.module, list(io.StringIO(text))
        self._positions = wrapper.resolve(PositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._scopes = wrapper.resolve(ScopeProvider)

    def nodes(self, kind: type[AnyNode]) -> Iterator[AnyNode]:
        """All nodes of a kind."""
        return (node for node in self._positions if isinstance(node, kind))

    def line(self, node: cst.CSTNode) -> int:
        """The line on which a node begins."""
        return self._positions[node].start.line

    def room_around(self, node: cst.CSTNode) -> int:
        """The length of what stands before a node on its first line, and behind it on its last."""
        where = self._positions[node]
        return where.start.column + len(self.lines[where.end.line - 1][where.end.column :].rstrip())

    def indent(self, node: cst.CSTNode) -> str:
        """The indentation of the line on which a node begins."""
        line = self.lines[self.line(node) - 1]
        return line[: len(line) - len(line.lstrip())]

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
            if node.name.value == name and min(map(self.line, (node.name, *node.decorators))) == line:
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
        first = _first(node)
        scope = self._scopes.get(first) if isinstance(first, cst.Name) else None
        found = scope.get_qualified_names_for(node) if scope is not None else ()
        return frozenset(name.name for name in found if name.source is QualifiedNameSource.IMPORT)

    def meaning(self, node: cst.CSTNode) -> frozenset[str]:
        """What a name stands for by the imports, also if it is bound once to what they bring in."""
        value = self.bound_value(node)
        return self.imported_names(node) or (self.imported_names(value) if value is not None else frozenset())

    def spelled(self, name: str) -> str:
        """What the file can call a name of the library, or of ``typing``: a name of its own stays what it is."""
        taken = {each.name for each in self.all_bindings() if not _imports(each, name)}
        while name in taken:
            name += "_"
        return name

    def bindings(self, name: cst.Name) -> list[BaseAssignment]:
        """Every place that binds a name, as seen from where it is used."""
        scope = self._scopes.get(name)
        return list(scope[name.value]) if scope is not None else []

    def all_bindings(self) -> Iterator[BaseAssignment]:
        """Every place of the file that binds a name."""
        for scope in {scope for scope in self._scopes.values() if scope is not None}:
            yield from scope.assignments

    def uses(self, name: cst.Name) -> list[cst.CSTNode]:
        """Every use of what a name is bound to."""
        return [use.node for binding in self.bindings(name) for use in binding.references]

    def bound_node(self, name: cst.CSTNode) -> cst.CSTNode | None:
        """The node that binds a name, where that is one."""
        found = self.bindings(name) if isinstance(name, cst.Name) else []
        return found[0].node if len(found) == 1 and isinstance(found[0], Assignment) else None

    def bound_value(self, name: cst.CSTNode) -> cst.BaseExpression | None:
        """What a name is bound to, where that is once and by a plain assignment."""
        node = self.bound_node(name)
        match self._parents.get(node) if node is not None else None:
            case cst.AssignTarget() as target:
                statement = self.parent(target)
                is_plain = m.matches(statement, m.Assign([m.AssignTarget()]))
                value = statement.value if is_plain and isinstance(statement, cst.Assign) else None
            case cst.AnnAssign(value=value):
                pass
            case _:
                return None
        # After "from kernels import *" a name may be bound to what is made of itself.
        is_of_itself = value is None or m.findall(value, m.Name(name.value))  # type: ignore[attr-defined]
        return None if is_of_itself else value

    def uses_of_value(self, node: cst.CSTNode) -> int:
        """How often the name is used that is bound to a value; once if it is bound to none."""
        match self._parents.get(node):
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name() as name), *_]):
                return len(self.uses(name))
            case _:
                return 1

    def means_the_same(self, node: cst.CSTNode, place: cst.CSTNode) -> bool:
        """Whether a dotted name means the same at another place."""
        name, scope = _first(node), self._scopes.get(place)
        return isinstance(name, cst.Name) and scope is not None and [*scope[name.value]] == self.bindings(name)

    def is_parameter(self, name: cst.CSTNode | None) -> bool:
        """Whether a name is a parameter of a function around it."""
        node = self.bound_node(name) if name is not None else None
        return node is not None and cst.Param in (type(node), type(self._parents.get(node)))

    def parameters(self, function: cst.FunctionDef | cst.Lambda) -> list[cst.Param]:
        """All parameters of a function."""
        params = function.params
        every = (*params.posonly_params, *params.params, params.star_arg, *params.kwonly_params, params.star_kwarg)
        return [param for param in every if isinstance(param, cst.Param)]


def _first(node: cst.CSTNode) -> cst.CSTNode:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node


def _imports(binding: BaseAssignment, name: str) -> bool:
    """Whether a binding of the module brings in what hints call so."""
    if not isinstance(binding, ImportAssignment) or binding.scope is not binding.scope.globals:
        return False
    names = {found.name for found in binding.get_qualified_names_for(binding.name)}
    return names <= {f"{home}.{name}" for home in _HOMES}
