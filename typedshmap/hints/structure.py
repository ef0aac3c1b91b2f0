"""The structure of a Python type hint: a tree of nodes.

Invariant: a node is immutable after it is built, so that trees share subtrees."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from jax.typing import ArrayLike

from .. import _jax
from ..errors.failures import HintText
from ..records import Record
from .array_hint import ArrayHint, KeepsFits, bare_array_hint


class ArrayLeaf(KeepsFits, Record, eq=False):
    """One array."""

    hint: ArrayHint


class Static(KeepsFits, Record, eq=False):
    """A value without arrays, of this Python type.

    Attributes:
      hint: the type.
      parts: the tree of a container, in which the numbers may be arrays of rank 0.
    """

    hint: Any
    parts: Node | None = None


class Untyped(KeepsFits, Record, eq=False):
    """Any value, arrays included (``Any``)."""


class FixedTuple(KeepsFits, Record, eq=False):
    """A tuple of fixed length, or a list for hints in a list."""

    items: tuple[Node, ...]
    kind: type = tuple


class SequenceOf(KeepsFits, Record, eq=False):
    """A list or a tuple of any length, whose items have one hint."""

    kind: type | tuple[type, ...]
    item: Node


class MappingOf(KeepsFits, Record, eq=False):
    """A dict with any keys, whose values have one hint."""

    kind: type | tuple[type, ...]
    value: Node


@dataclass(eq=False)
class Fields(KeepsFits):
    """Named fields: a NamedTuple, a TypedDict or a dataclass; with ``goes_by_names``, any class with these fields.

    ``fields`` is filled after the record is made, so that a class may hold itself; until then the record is open, and
    counts as a holder of arrays.
    """

    cls: type
    kind: str
    fields: dict[str, Node] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    is_open: bool = True
    goes_by_names: bool = False


class UnionOf(KeepsFits, Record, eq=False):
    """A union."""

    options: tuple[Node, ...]
    hint: Any


class PyTreeOf(KeepsFits, Record, eq=False):
    """Any pytree of such leaves.

    ``structure`` has the names of its structure, outermost first: each is the structure at the leaves of the previous
    structure. Trees with the same name have the same structure; ``...`` before or after the names stands for any
    structure.
    """

    leaf: Node
    structure: tuple[str, ...] = ()


class LikeOf(KeepsFits, Record, eq=False):
    """Any pytree: subtrees with the parameters' structure have their hints, and other arrays are unsharded.

    Attributes:
      name: the name of the hint in messages.
      classes: the allowed classes of its root; empty for any.
      parameters: the hint of the subtrees, with any dtypes and optional arrays.
      other: the hint of the other arrays.
    """

    name: str
    classes: tuple[type, ...]
    parameters: Node
    other: ArrayLeaf

    @property
    def members(self) -> tuple[Node, ...]:
        """The hints whose structure is searched for: of a union, the members that have one."""
        options = self.parameters.options if isinstance(self.parameters, UnionOf) else (self.parameters,)
        return tuple(option for option in options if not isinstance(option, PyTreeOf | Static | Untyped)) or options


class BareTree(KeepsFits, Record, eq=False):
    """Any pytree of a class, a bare ``dict`` or ``PyTree``: its arrays have one hint, its other leaves are static."""

    kind: type
    leaf: ArrayHint


class BySpec(KeepsFits, Record, eq=False):
    """Any pytree: each leaf has a PartitionSpec instead of a hint, or None if it is static."""

    specs: tuple[Any, ...]


def bare_tree(kind: type, name: str) -> BareTree:
    """Any pytree of a class, by its name in messages."""
    return BareTree(kind, replace(bare_array_hint(ArrayLike), text=HintText(name)))


UNHINTED = bare_tree(object, "PyTree")
"""The node of leaves without a hint in a class."""

Container: TypeAlias = FixedTuple | SequenceOf | MappingOf | Fields
Node: TypeAlias = ArrayLeaf | Static | Untyped | Container | UnionOf | PyTreeOf | BareTree | LikeOf | BySpec

NONE = Static(type(None))
ABSENT = Static(type(None))
"""None as a member of a union: no array."""
OPTION = Static(object)
"""An optional parameter without a hint."""


def tree_content(node: Node, around: tuple[Node, ...] = ()) -> Any:
    """The hashable content of a tree of containers and arrays; None for other nodes, or if it holds itself."""
    match node:
        case ArrayLeaf(hint):
            return hint
        case FixedTuple(items, kind):
            content = kind
        case SequenceOf(kind, item) | MappingOf(kind, item):
            content, items = kind, (item,)
        case Fields(cls, kind, fields) if not any(node is outer for outer in around):
            content, items = (cls, kind, node.optional, node.goes_by_names, *fields), tuple(fields.values())
        case _:
            return None
    inside = [tree_content(item, (*around, node)) for item in items]
    return None if None in inside else (type(node), content, *inside)


def walk(node: Node) -> Iterator[tuple[str, Node]]:
    """A node and all nodes in it, each once, with its path."""
    seen, waiting = set[int](), [("", node)]
    while waiting:
        path, part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield path, part
        match part:
            case FixedTuple(items):
                inside = [(f"{path}[{at}]", item) for at, item in enumerate(items)]
            case UnionOf(options):
                inside = [(path, option) for option in options]
            case SequenceOf(_, item) | MappingOf(_, item) | PyTreeOf(item):
                inside = [(f"{path}[...]", item)]
            case Fields(_, kind, fields):
                step = "[{!r}]".format if kind == "TypedDict" else ".{}".format
                inside = [(path + step(name), item) for name, item in fields.items()]
            case LikeOf(_, _, parameters, other):
                inside = [(f"{path}[...]", parameters), (f"{path}[...]", other)]
            case ArrayLeaf() | Static() | Untyped() | BareTree() | BySpec():
                continue
        waiting += reversed(inside)


def array_hints(node: Node) -> Iterator[ArrayHint]:
    """The hints of all arrays in a node."""
    return (part.hint for _, part in walk(node) if isinstance(part, ArrayLeaf))


def declares_arrays(node: Node, kinds: tuple[type, ...] = (ArrayLeaf,)) -> bool:
    """Whether a node declares arrays."""
    return any(isinstance(part, kinds) or (isinstance(part, Fields) and part.is_open) for _, part in walk(node))


def holds_arrays(node: Node) -> bool:
    """Whether a node declares arrays, or may hold undeclared ones."""
    return isinstance(node, ArrayLeaf) or declares_arrays(node, (ArrayLeaf, BareTree, BySpec))


def is_named(node: Node) -> bool:
    """Whether class or key names, and not only ranks, identify this structure."""
    match node:
        case SequenceOf(_, item) | MappingOf(_, item):
            return is_named(item)
        case FixedTuple(items):
            return any(map(is_named, items))
        case Fields(cls, _, fields) if _jax.tree.is_variable_class(cls):  # a value may occur without its variable
            return any(map(is_named, fields.values()))
        case _:
            return isinstance(node, Fields)


def hint_name(hint: Any) -> str:
    """The name of a hint in messages."""
    if hint is type(None):
        return "None"
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def node_name(node: Node) -> str:
    """The name of a node in messages."""
    match node:
        case ArrayLeaf(hint):
            return str(hint.text)
        case Static(hint):
            return hint_name(hint)
        case FixedTuple(items, kind):
            return f"{kind.__name__} of {len(items)}"
        case SequenceOf(kind, _) | MappingOf(kind, _):
            return kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
        case Fields():
            return node.cls.__name__
        case UnionOf(_, hint):
            return hint_name(hint)
        case PyTreeOf(leaf, _):
            return f"PyTree[{node_name(leaf)}]"
        case LikeOf(name):
            return name
        case BareTree(kind):
            return "PyTree" if kind is object else kind.__name__
        case Untyped() | BySpec():
            return "Any"


def map_hints(node: Node, change: Callable[[ArrayHint], ArrayHint]) -> Node:
    """The tree with the hint of every array changed."""
    records: dict[int, Fields] = {}

    def changed(part: Node) -> Node:
        match part:
            case ArrayLeaf(hint):
                return ArrayLeaf(change(hint))
            case FixedTuple(items, kind):
                return FixedTuple(tuple(map(changed, items)), kind)
            case SequenceOf(kind, item):
                return SequenceOf(kind, changed(item))
            case MappingOf(kind, value):
                return MappingOf(kind, changed(value))
            case UnionOf(options, hint):
                return UnionOf(tuple(map(changed, options)), hint)
            case PyTreeOf(leaf, structure):
                return PyTreeOf(changed(leaf), structure)
            case LikeOf(name, classes, parameters, other):
                return LikeOf(name, classes, loosen(changed(parameters)), ArrayLeaf(change(other.hint)))
            case BareTree(kind, leaf):
                return BareTree(kind, change(leaf))
            case Fields():
                if id(part) not in records:  # a record may hold itself, so it is made before its fields are
                    record = records[id(part)] = Fields(part.cls, part.kind, {}, part.optional)
                    record.fields.update((name, changed(inner)) for name, inner in part.fields.items())
                    record.is_open = False
                return records[id(part)]
            case Static() | Untyped() | BySpec():
                return part

    return changed(node)


def loosen(node: Node) -> Node:
    """The hint of a subtree like parameters: with any dtypes, and optional arrays.

    A record may be of another class with these fields: a dict in a checkpoint, or a layer of another library.
    """
    loose = map_hints(node, lambda hint: replace(hint, dtypes=None, may_be_missing=True))
    for _, part in walk(loose):
        if isinstance(part, Fields):
            part.goes_by_names = True
    return loose
