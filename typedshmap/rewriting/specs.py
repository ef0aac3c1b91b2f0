"""Specs as they are written in a call: literals become data, anything else a reason.

A mesh axis that is no literal, as in ``P(self.axis, None)``, is kept as the code that gives it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import libcst as cst

from .source import Source, Unclear

PARTITION_SPEC = {"jax.sharding.PartitionSpec", "jax.P", "jax.sharding.P", "jax.experimental.PartitionSpec"}
_LOOKS_LIKE_ONE = {"P", "PS", "PartitionSpec"}


@dataclass(frozen=True)
class Axis:
    """A mesh axis: its name, or the code whose value is the name, several, or None."""

    text: str
    is_code: bool = False


@dataclass(frozen=True)
class LeafSpec:
    """``P(...)``: the mesh axes of the first dims; also for every leaf of a tree.

    ``is_tree`` says that a container was written there.
    """

    dims: tuple[tuple[Axis, ...], ...]
    is_tree: bool = False


@dataclass(frozen=True)
class NoSpec:
    """``None``: an argument that is not mapped, or a result that is None."""


@dataclass(frozen=True)
class SpecTuple:
    """A tuple of specs."""

    items: tuple[Specs, ...]


Specs: TypeAlias = LeafSpec | NoSpec | SpecTuple


def axes_of(specs: Specs) -> Iterator[Axis]:
    """Every mesh axis in specs."""
    if isinstance(specs, LeafSpec):
        for dim in specs.dims:
            yield from dim
    elif isinstance(specs, SpecTuple):
        for item in specs.items:
            yield from axes_of(item)


def read_specs(source: Source, node: cst.BaseExpression) -> Specs:
    """Specs from what is written.

    Raises:
      Unclear: for what is no literal, and for trees that hints do not write.
    """
    return _SpecReader(source).specs(node)


@dataclass(frozen=True)
class _SpecReader:
    """Reads specs; ``named`` is the name by which the call has them, where they stand elsewhere."""

    source: Source
    named: cst.Name | None = None

    def specs(self, node: cst.BaseExpression) -> Specs:
        match node:
            case cst.Name(value="None"):
                return NoSpec()
            case cst.Name():
                return self._spec_of_name(node)
            case cst.Tuple():
                return SpecTuple(tuple(self.specs(self._item(element)) for element in node.elements))
            case cst.List():
                return self._common_spec([self.specs(self._item(element)) for element in node.elements], node)
            case cst.Dict():
                return self._common_spec([self.specs(self._item(element)) for element in node.elements], node)
            case cst.Call() if self.source.meaning(node.func) & PARTITION_SPEC:
                return LeafSpec(tuple(self._dim(self._argument(arg)) for arg in node.args))
            case cst.Call() if (name := self.source.short(node.func)).split(".")[-1] in _LOOKS_LIKE_ONE:
                raise Unclear(f"'{name}' is not seen to be JAX's PartitionSpec")
            case _:
                raise Unclear(f"the spec '{self.source.short(node)}' is no literal")

    def _spec_of_name(self, name: cst.Name) -> Specs:
        value = self.source.bound_value(name)
        if value is None:
            raise Unclear(f"the spec '{name.value}' is not bound once to a literal")
        if isinstance(value, (cst.List, cst.Dict)):
            raise Unclear(f"the spec '{name.value}' is bound to a {type(value).__name__.lower()}, which may change")
        try:
            return _SpecReader(self.source, self.named or name).specs(value)
        except Unclear as reason:
            raise Unclear(f"{reason}, in '{name.value}'") from None

    def _common_spec(self, items: list[Specs], node: cst.BaseExpression) -> LeafSpec:
        """A list or dict whose specs are all one: it says what that one says of every leaf."""
        first = items[0] if items else None
        if not isinstance(first, LeafSpec) or any(item != first for item in items):
            kind = type(node).__name__.lower()
            cure = "write a TypedDict or a dataclass" if kind == "dict" else "make it a tuple"
            raise Unclear(f"a {kind} of different specs: {cure}")
        return LeafSpec(first.dims, is_tree=True)

    def _item(self, element: cst.BaseElement | cst.BaseDictElement) -> cst.BaseExpression:
        if isinstance(element, (cst.StarredElement, cst.StarredDictElement)):
            raise Unclear(f"'*{self.source.short(element.value)}' stands for any number of specs or dims")
        return element.value

    def _argument(self, arg: cst.Arg) -> cst.BaseExpression:
        if arg.star:
            raise Unclear(f"'*{self.source.short(arg.value)}' stands for any number of specs or dims")
        if arg.keyword is not None:
            raise Unclear(f"P(..., {arg.keyword.value}=...) says more than where the dims lie")
        return arg.value

    def _dim(self, node: cst.BaseExpression) -> tuple[Axis, ...]:
        if isinstance(node, (cst.Tuple, cst.List)):
            return tuple(axis for element in node.elements for axis in self._dim(self._item(element)))
        if isinstance(node, cst.Name) and node.value == "None":
            return ()
        if isinstance(node, cst.SimpleString):
            return (Axis(_name(node)),)
        return self._dim_of_name(node)

    def _dim_of_name(self, node: cst.BaseExpression) -> tuple[Axis, ...]:
        """A dim whose axis is a constant of the file, or some other name, known when the call is made."""
        value = self.source.bound_value(node) if isinstance(node, cst.Name) else None
        if value is not None and _is_constant(value):
            return self._dim(value)
        code = self.source.code(node)
        if not _is_dotted(node) or code.endswith("UNCONSTRAINED"):
            raise Unclear(f"the mesh axis '{self.source.short(node)}' is no literal")
        if self.named is not None and not self._is_the_same_there(node, self.named):
            raise Unclear(f"the mesh axis '{self.source.short(node)}' may be another one where the call is")
        return (Axis(code, is_code=True),)

    def _is_the_same_there(self, node: cst.BaseExpression, call: cst.CSTNode) -> bool:
        """Whether a name is bound once, and at the call means the same."""
        if not isinstance(node, cst.Name):
            return False
        here = self.source.bindings(node)
        return len(here) == 1 and here == self.source.bindings(node, seen_from=call)


def _is_constant(value: cst.BaseExpression) -> bool:
    """Whether an axis is bound to a literal: a string, None, or a tuple of strings."""
    if isinstance(value, cst.Tuple):
        return all(isinstance(element.value, cst.SimpleString) for element in value.elements)
    return isinstance(value, cst.SimpleString) or (isinstance(value, cst.Name) and value.value == "None")


def _is_dotted(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) or (isinstance(node, cst.Attribute) and _is_dotted(node.value))


def _name(node: cst.SimpleString) -> str:
    name = ast.literal_eval(node.value)
    if not isinstance(name, str) or not name.isidentifier():
        raise Unclear(f"the mesh axis {node.value} is no name that a hint can hold")
    return name
