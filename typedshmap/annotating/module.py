"""A parsed file: where its nodes stand, and what its names mean."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TypeVar

import libcst as cst
from libcst import matchers as m
from libcst.metadata import (
    Assignment,
    BaseAssignment,
    ExpressionContext,
    ExpressionContextProvider,
    ImportAssignment,
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
        self.module, self.lines = wrapper.module, list(io.StringIO(text))
        self._positions = wrapper.resolve(PositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._scopes = wrapper.resolve(ScopeProvider)
        self._contexts = wrapper.resolve(ExpressionContextProvider)

    def odd_line(self) -> int | None:
        """The first line that libcst does not keep as it stands; None if it keeps all."""
        text = "".join(self.lines)
        if lone := re.search(r"\r(?!\n)", text):
            return text.count("\n", 0, lone.start()) + 1
        pairs = zip(self.lines, io.StringIO(self.module.code), strict=False)
        same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        return None if self.module.code == text else same + 1

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

    def short(self, node: cst.CSTNode) -> str:
        """A node in one line, cut if it is long."""
        code = " ".join(self.code(node).split())
        return code if len(code) <= 60 else f"{code[:57]}..."

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

    def meaning(self, node: cst.CSTNode) -> frozenset[str]:
        """What a name stands for by the imports, also if it is bound once to what they bring in."""
        value = self.bound_value(node)
        return self.imported_names(node) or (self.imported_names(value) if value is not None else frozenset())

    def spelled(self, name: str) -> str:
        """What the file can call a name of the library, or of ``typing``: a name of its own stays what it is."""
        bound = {each.name: each for each in self.all_bindings() if not _imports(each, name)}
        while name in bound:
            name += "_"
        return name

    def bindings(self, name: cst.Name) -> list[BaseAssignment]:
        """Every place that binds a name, as seen from where it is used."""
        scope = self._scopes.get(name)
        return list(scope[name.value]) if scope is not None else []

    def uses(self, name: cst.Name) -> list[cst.CSTNode]:
        """Every use of what a name is bound to."""
        return [use.node for binding in self.bindings(name) for use in binding.references]

    def bound_function(self, name: cst.Name) -> cst.FunctionDef | None:
        """The function that a name is bound to, where that is once."""
        found = [binding.node for binding in self.bindings(name) if isinstance(binding, Assignment)]
        is_one = len(found) == len(self.bindings(name)) == 1
        return found[0] if is_one and isinstance(found[0], cst.FunctionDef) else None

    def bound_value(self, name: cst.CSTNode) -> cst.BaseExpression | None:
        """What a name is bound to, where that is once and by a plain assignment."""
        found = self.bindings(name) if isinstance(name, cst.Name) else []
        if len(found) != 1 or not isinstance(found[0], Assignment):
            return None
        match self._parents.get(found[0].node):
            case cst.AssignTarget() as target:
                statement = self.parent(target)
                is_plain = m.matches(statement, m.Assign([m.AssignTarget()]))
                value = statement.value if is_plain and isinstance(statement, cst.Assign) else None
            case cst.AnnAssign(value=value):
                pass
            case _:
                return None
        # After "from kernels import *" a name may be bound to what is made of itself.
        return value if value is not None and found[0].name not in self.names_in(value) else None

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

    def is_for_running(self, binding: BaseAssignment) -> bool:
        """Whether a name is bound when the program runs, and not for checkers of types only."""
        node = getattr(binding, "node", None)
        around = next(self.around(node, cst.If), None) if node is not None else None
        return not (isinstance(around, cst.If) and "TYPE_CHECKING" in self.code(around.test))

    def parameters(self, function: cst.FunctionDef | cst.Lambda) -> list[cst.Param]:
        """All parameters of a function."""
        params = function.params
        stars = [each if isinstance(each, cst.Param) else None for each in (params.star_arg, params.star_kwarg)]
        every = (*params.posonly_params, *params.params, stars[0], *params.kwonly_params, stars[1])
        return [param for param in every if param is not None]

    def names_in(self, node: cst.CSTNode) -> set[str]:
        """The names in a node."""
        return {name.value for name in m.findall(node, m.Name()) if isinstance(name, cst.Name)}

    def stored_names(self, node: cst.CSTNode) -> set[str]:
        """The names that a statement may bind, and others."""
        names = [name for name in m.findall(node, m.Name()) if isinstance(name, cst.Name)]
        captures = [self.names_in(each) for each in m.findall(node, m.MatchCase())]
        bound = {name.value for name in names if self._contexts.get(name) is not ExpressionContext.LOAD}
        return bound.union(*captures)

    def globals(self) -> Sequence[BaseAssignment]:
        """Every place that binds a name of the module."""
        return [each for each in self.all_bindings() if each.scope is each.scope.globals]

    def all_bindings(self) -> Iterator[BaseAssignment]:
        """Every place of the file that binds a name."""
        for scope in {scope for scope in self._scopes.values() if scope is not None}:
            yield from scope.assignments


_HOMES = ("typedshmap", "typing", "typing_extensions", "jax", "jaxtyping")


def _imports(binding: BaseAssignment, name: str) -> bool:
    """Whether a binding of the module brings in what hints call so."""
    if not isinstance(binding, ImportAssignment) or binding.scope is not binding.scope.globals:
        return False
    names = {found.name for found in binding.get_qualified_names_for(binding.name)}
    return names <= {f"{home}.{name}" for home in _HOMES}
