"""The tree of a Python type hint: what each part of a value should be, arrays and all else.

Invariant: a node is never changed once it is built, so that trees share their parts.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..errors import AnnotationSyntaxError
from .array import ArrayHint, prefixed


@dataclass(frozen=True, eq=False, slots=True)
class Leaf:
    """One array."""

    hint: ArrayHint


@dataclass(frozen=True, eq=False, slots=True)
class Static:
    """A value without arrays, of this Python type."""

    hint: Any

    def __str__(self) -> str:
        return hint_name(self.hint)


@dataclass(frozen=True, eq=False, slots=True)
class Anything:
    """Whatever comes, arrays included (``Any``)."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Items:
    """A tuple of so many items, or a list where hints stand in one."""

    items: tuple[Node, ...]
    kind: type = tuple


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Repeated:
    """A list or a tuple of any length, all items alike."""

    kind: type | tuple[type, ...]
    item: Node


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Keyed:
    """A dict with any keys, all values alike."""

    kind: type | tuple[type, ...]
    value: Node


@dataclass(eq=False, slots=True, weakref_slot=True)
class Record:
    """Named fields: a NamedTuple, a TypedDict or a dataclass.

    ``fields`` is filled after the record is made, so that a class may hold itself; until then the
    record is open, and taken to hold arrays.
    """

    cls: type
    kind: str
    fields: dict[str, Node] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    is_open: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class Either:
    """A union."""

    options: tuple[Node, ...]
    hint: Any


@dataclass(frozen=True, eq=False, slots=True)
class Tree:
    """Any pytree of such leaves, of one structure where it bears a name."""

    leaf: Node
    structure: str | None


Container: TypeAlias = Items | Repeated | Keyed | Record
Node: TypeAlias = Leaf | Static | Anything | Container | Either | Tree

NONE = Static(type(None))


def holds_arrays(node: Node) -> bool:
    """Whether any array is declared in a node."""
    return any(isinstance(part, Leaf) or (isinstance(part, Record) and part.is_open) for part in parts(node))


def array_hints(node: Node) -> Iterator[ArrayHint]:
    """The hints of all arrays that a node declares."""
    return (part.hint for part in parts(node) if isinstance(part, Leaf))


def hints_by_path(node: Node, path: str = "", inside: frozenset[int] = frozenset()) -> Iterator[tuple[str, ArrayHint]]:
    """The hints of all arrays that a node declares, each with its path; a class inside of itself is left out."""
    match node:
        case Leaf(hint):
            yield path, hint
        case Items(items):
            for at, item in enumerate(items):
                yield from hints_by_path(item, f"{path}[{at}]", inside)
        case Either(options, _):
            for option in options:
                yield from hints_by_path(option, path, inside)
        case Repeated(_, item) | Keyed(_, item) | Tree(item, _):
            yield from hints_by_path(item, f"{path}[...]", inside)
        case Record() if id(node) not in inside:
            for name, inner in node.fields.items():
                step = f"[{name!r}]" if node.kind == "TypedDict" else f".{name}"
                yield from hints_by_path(inner, path + step, inside | {id(node)})
        case _:
            pass


def parts(node: Node) -> Iterator[Node]:
    """A node and all nodes in it, each once."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        match part:
            case Items(items) | Either(items, _):
                waiting.extend(items)
            case Repeated(_, item) | Keyed(_, item) | Tree(item, _):
                waiting.append(item)
            case Record():
                waiting.extend(part.fields.values())
            case _:
                pass


def hint_name(hint: Any) -> str:
    """A hint as a message names it."""
    if hint is type(None):
        return "None"
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def node_name(node: Node) -> str:
    """What a node wants, in a message."""
    match node:
        case Leaf(hint):
            return str(hint.text)
        case Static(hint):
            return hint_name(hint)
        case Items(items, kind):
            return f"{kind.__name__} of {len(items)}"
        case Repeated(kind, _) | Keyed(kind, _):
            return kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
        case Record():
            return node.cls.__name__
        case Either(_, hint):
            return hint_name(hint)
        case Tree(leaf, _):
            return f"PyTree[{node_name(leaf)}]"
        case Anything():
            return "Any"


def stacked(node: Node, dims: str, seen: dict[int, Record] | None = None) -> Node:
    """The tree in which every array has leading dims before its own.

    Raises:
      AnnotationSyntaxError: for dims that cannot be read, or that clash with an array's own.
    """
    seen = {} if seen is None else seen

    def inside(part: Node) -> Node:
        return stacked(part, dims, seen)

    match node:
        case Leaf(hint):
            return Leaf(prefixed(hint, dims))
        case Items(items, kind):
            return Items(tuple(map(inside, items)), kind)
        case Repeated(kind, item):
            return Repeated(kind, inside(item))
        case Keyed(kind, value):
            return Keyed(kind, inside(value))
        case Either(options, hint):
            return Either(tuple(map(inside, options)), hint)
        case Tree(leaf, structure):
            return Tree(inside(leaf), structure)
        case Record():
            return _stacked_record(node, dims, seen)
        case _:
            return node


def _stacked_record(node: Record, dims: str, seen: dict[int, Record]) -> Record:
    """A record may hold itself, so it is made before its fields are."""
    if id(node) in seen:
        return seen[id(node)]
    if node.is_open:
        raise AnnotationSyntaxError(
            f"Stacked[{dims!r}, {node.cls.__name__}] stands inside of {node.cls.__name__} itself"
        )
    record = seen[id(node)] = Record(node.cls, node.kind, {}, node.optional)
    record.fields.update((name, stacked(inner, dims, seen)) for name, inner in node.fields.items())
    record.is_open = False
    return record
