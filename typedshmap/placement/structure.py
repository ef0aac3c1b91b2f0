"""A value in the structure of a hint, made of nothing but the hint: what stands for each array is the caller's.

Static fields have their defaults, since they are part of the structure that JAX compares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import _jax
from ..errors import StructureError, error_of
from ..errors.failures import Failure, HiddenField, NotAPytree, Report, Told
from ..hints.array import ArrayHint
from ..hints.dtypes import KEYS
from ..hints.nodes import (
    Either,
    Items,
    Leaf,
    Node,
    Record,
    Static,
    holds_arrays,
    node_name,
)
from ..notation.sizes import Subject

_MISSING: Any = dataclasses.MISSING
_SCALARS = (bool, int, float, complex)


@dataclass(frozen=True, slots=True)
class Maker:
    """What stands in the place of a hint's leaves.

    Attributes:
      verb: the function that messages name.
      array: makes what stands for an array, of its hint and its path.
      static: makes what stands for a leaf that is no array, of the field's default value.
      scalar: what stands for a Python number without a default; None where there must be one.
      cure: what to do where the hint leaves something open.
    """

    verb: str
    array: Callable[[ArrayHint, str], Any]
    static: Callable[[Any], Any]
    scalar: Any
    cure: str

    def open(self, problem: str) -> StructureError:
        """The error for a hint that leaves something open."""
        return StructureError(f"{self.verb}: {problem}\n\nHint: {self.cure}")


def make(node: Node, maker: Maker, path: str = "", inside: frozenset[int] = frozenset()) -> Any:
    """A value in the structure of a hint.

    Args:
      node: the hint's tree, which fixes every length.
      maker: what stands in the place of its leaves.
      path: where the node stands in the whole, as ``jax.tree_util.keystr`` writes it.
      inside: the records around it.

    Raises:
      StructureError: for a hint that leaves open how many arrays it holds.
    """
    match node:
        case Leaf(hint):
            return maker.array(hint, path)
        case Static(hint) if hint is type(None):
            return None
        case Static(hint) if hint in _SCALARS and maker.scalar is not None:
            return maker.scalar
        case Items(items, kind):
            return kind(make(item, maker, f"{path}[{i}]", inside) for i, item in enumerate(items))
        case Record() if id(node) not in inside:
            return _RECORDS[node.kind](node, maker, path, inside | {id(node)})
        case Either(options, _) if (key := typed_key(options)) is not None:
            return make(key, maker, path, inside)
        case Either():
            raise maker.open(f"{path or node_name(node)} is a union")
        case _:
            raise maker.open(f"{path or node_name(node)} does not say how many arrays it holds")


def typed_key(options: tuple[Node, ...]) -> Leaf | None:
    """The key of ``jax.random.key`` in a ``PRNGKeyArray``, which takes the older kind as well."""
    leaves = [option for option in options if isinstance(option, Leaf)]
    keys = [leaf for leaf in leaves if leaf.hint.dtypes == KEYS]
    is_raw = all(leaf.hint.dtypes in (KEYS, ("uint32",)) for leaf in leaves)
    return keys[0] if keys and is_raw and len(leaves) == len(options) else None


def _make_dict(node: Record, maker: Maker, path: str, inside: frozenset[int]) -> Any:
    return {name: make(inner, maker, f"{path}[{name!r}]", inside) for name, inner in node.fields.items()}


def _make_named_tuple(node: Record, maker: Maker, path: str, inside: frozenset[int]) -> Any:
    defaults: Mapping[str, Any] = getattr(node.cls, "_field_defaults", {})
    return node.cls(
        *(
            _make_child(inner, defaults.get(name, _MISSING), maker, f"{path}.{name}", inside)
            for name, inner in node.fields.items()
        )
    )


def _make_dataclass(node: Record, maker: Maker, path: str, inside: frozenset[int]) -> Any:
    children = _children_of(node, maker, path)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(node.cls):
        inner, at = node.fields[field.name], f"{path}.{field.name}"
        if field.name in children:
            values[field.name] = _make_child(inner, _default(field), maker, at, inside)
        elif holds_arrays(inner):
            raise _wrong(maker, HiddenField(node.cls.__name__, field.name), path)
        else:
            values[field.name] = _given(_default(field), maker, at)
    return _blank(node.cls, values)


_RECORDS: dict[str, Callable[[Record, Maker, str, frozenset[int]], Any]] = {
    "TypedDict": _make_dict,
    "NamedTuple": _make_named_tuple,
    "dataclass": _make_dataclass,
}


def _make_child(node: Node, default: Any, maker: Maker, path: str, inside: frozenset[int]) -> Any:
    """A field that JAX sees: a tree of its own, or leaves that are no arrays."""
    if holds_arrays(node) or (default is _MISSING and _is_plain(node, maker)):
        return make(node, maker, path, inside)
    return maker.static(_given(default, maker, path))


def _is_plain(node: Node, maker: Maker) -> bool:
    """Whether a node without arrays fixes its leaves all the same."""
    if not isinstance(node, Static):
        return False
    return node.hint is type(None) or (node.hint in _SCALARS and maker.scalar is not None)


def _given(default: Any, maker: Maker, path: str) -> Any:
    if default is _MISSING:
        raise maker.open(f"{path} holds no array and has no default")
    return default


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not _MISSING else field.default


def _children_of(node: Record, maker: Maker, path: str) -> set[str]:
    """The fields that JAX sees among a class's children, told by an instance of marks."""
    marks = {field.name: object() for field in dataclasses.fields(node.cls)}
    try:
        parts = _jax.children(_blank(node.cls, marks))
    except _jax.BadTree as bad:
        raise _wrong(maker, Told(f"is of class {node.cls.__name__} that JAX cannot take apart: {bad}"), path) from None
    if parts is None:
        raise _wrong(maker, NotAPytree(node.cls.__name__), path)
    seen = {id(part) for _, part in parts}
    return {name for name, mark in marks.items() if id(mark) in seen}


def _blank(cls: type, values: Mapping[str, Any]) -> Any:
    # A class's own __init__ may refuse what is no array, so the fields are set beside it.
    made: Any = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _wrong(maker: Maker, what: object, path: str) -> Exception:
    return error_of(Report(maker.verb, (Failure(what, Subject("placed", "hint", path)),)))
