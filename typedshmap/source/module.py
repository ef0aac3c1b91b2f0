"""What the names of a module mean: the scopes that bind them, and the imports."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property
from itertools import pairwise

from .text import FunctionNode, ImportNode, SourceText, names_in

Binding = tuple[ast.AST | None, str]
"""A name, and the scope that binds it: None for what nothing in the file binds."""
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class ParsedModule(SourceText):
    """A file's text, its syntax tree, and what is bound where.

    Attributes:
      bindings: the nodes that bind a name in a scope.
      uses: where that name is used.
      declared: the names that some function binds elsewhere, by ``global`` or ``nonlocal``.

    Args:
      text: the text, as `SourceText` takes it.

    Raises:
      SyntaxError: for what Python cannot read.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.bindings: dict[Binding, list[ast.AST]] = defaultdict(list)
        self.uses: dict[Binding, list[ast.Name]] = defaultdict(list)
        self.declared: set[str] = set()
        for node in self.parents:
            match node:
                case ast.Global(names=names) | ast.Nonlocal(names=names):
                    self.declared.update(names)
                case ast.alias():
                    self.bindings[self.scope(node), bound_name(node)].append(node)
                case ast.Name(ctx=ast.Load()) | ast.keyword():
                    pass
                case _:
                    fields = (getattr(node, field, None) for field in ("id", "arg", "name", "rest"))
                    for name in (each for each in fields if isinstance(each, str)):
                        self.bindings[self.scope(node), name].append(node)
        for node in self.nodes(ast.Name):
            if not isinstance(node.ctx, ast.Store):
                self.uses[self.binding(node.id, node)].append(node)

    # Names

    def scope(self, node: ast.AST) -> ast.AST:
        """Where a node is evaluated; for decorators, defaults and annotations that is around their function."""
        for inner, outer in pairwise((node, *self.around(node))):
            if isinstance(outer, ast.arguments) and inner is node:
                return self.parents[outer]
            if isinstance(outer, _Comprehension) or (isinstance(outer, ast.Lambda) and inner is outer.body):
                return outer
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and inner in outer.body:
                return outer
        return self.tree

    def binding(self, name: str, place: ast.AST) -> Binding:
        """What a name stands for where it is used."""
        inner = self.scope(place)
        outer = (each for each in self.around(inner) if isinstance(each, FunctionNode | _Comprehension | ast.Module))
        return next(((each, name) for each in (inner, *outer) if (each, name) in self.bindings), (None, name))

    def means_the_same(self, node: ast.AST, place: ast.AST) -> bool:
        """Whether the names in an expression mean the same at another place."""
        return all(self.binding(name.id, name) == self.binding(name.id, place) for name in names_in(node))

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
                names = [each.id for each in names_in(value)] if value else []
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

    @cached_property
    def imports(self) -> list[ImportNode]:
        """The imports that run with the module itself, and under no condition."""
        return [each for each in self.tree.body if isinstance(each, ImportNode)]

    def name_of(self, full: str) -> str | None:
        """What the first import of a module, or of what it is in, calls it: ``"j.lax"`` of ``"jax.lax"``.

        None where nothing imports it by a name."""
        for alias in (alias for statement in self.imports for alias in statement.names):
            if f"{full}.".startswith(f"{self.full_name(alias)}."):
                return bound_name(alias) + full.removeprefix(self.full_name(alias))
        return None

    def unused(self) -> set[str]:
        """The names that are bound, but for parameters, and not used, be it in one scope only."""
        found = self.bindings.items()
        return {key[1] for key, nodes in found if not self.uses.get(key) and not isinstance(nodes[0], ast.arg)}


def bound_name(alias: ast.alias) -> str:
    """The name that an import binds."""
    return alias.asname or alias.name.partition(".")[0]
