"""Whether a value has the container of its hint, and the names of its children."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import jax

from .. import _jax
from ..errors import failures
from ..errors.phrases import count_text, quoted_axes, shortened
from ..notation.match import Sizes
from . import structure
from .check_array import describe
from .python_types import holds_array, is_instance
from .structure import (
    ArrayLeaf,
    Container,
    Fields,
    FixedTuple,
    LikeOf,
    MappingOf,
    Node,
    PyTreeOf,
    SequenceOf,
    Static,
    UnionOf,
)


def _is_state_of(cls: type, value: Any) -> bool:
    """Whether a value is an ``nnx.State``, such as a gradient, where a hint names a module of Flax."""
    nnx = sys.modules.get("flax.nnx")  # if such a value exists, the module is imported
    return nnx is not None and isinstance(value, nnx.State) and issubclass(cls, nnx.Module)


def wrong_container(node: Container | LikeOf, value: Any) -> failures.Fault | None:
    """The fault of a value that is not the container of its hint."""
    if isinstance(node, LikeOf):
        names = " or ".join(map(structure.hint_name, node.classes))
        is_right = not node.classes or isinstance(value, node.classes)
        return None if is_right else failures.WrongType(names, describe(value))
    if isinstance(node, Fields) and node.goes_by_names and _has_fields(node, value):
        return None
    is_typed_dict = isinstance(node, Fields) and node.kind == "TypedDict"
    kind = Mapping if is_typed_dict else node.cls if isinstance(node, Fields) else node.kind
    if not isinstance(value, kind):
        name = structure.node_name(node)
        is_state = isinstance(node, Fields) and _is_state_of(node.cls, value)
        cure = f"its state is Like[nnx.State, {name}]" if is_state else None
        return failures.WrongType(name, describe(value), cure)
    problems: list[str] = []
    if isinstance(node, FixedTuple) and len(value) != len(node.items):
        problems = [f"has {count_text(len(value), 'item')}, but its hint has {len(node.items)}"]
    elif isinstance(node, Fields) and is_typed_dict:
        missing = [name for name in node.fields if name not in value and name not in node.optional]
        extra = [str(name) for name in value if name not in node.fields]
        problems = [f"lacks {quoted_axes(missing)}"] if missing else []
        problems += [f"has {quoted_axes(extra)}, which its hint does not have"] if extra else []
    return failures.PlainMessage(" and ".join(problems)) if problems else None


def _has_fields(node: Fields, value: Any) -> bool:
    """Whether a value of any class has the array fields of a record, and no other arrays."""
    try:
        pairs = _jax.tree.one_level(value)
    except _jax.tree.BadTree:
        return False
    if pairs is None:
        return False
    children = {key_name(key): part for key, part in pairs}
    needed = {name for name, inner in node.fields.items() if structure.holds_arrays(inner)} - node.optional
    other_names = children.keys() - node.fields.keys()
    return needed <= children.keys() and all(_jax.tree.is_empty(children[name]) for name in other_names)


def may_match(node: Node, value: Any) -> bool:
    """Whether a value has the class of a node, regardless of its items."""
    match node:
        case ArrayLeaf():
            return isinstance(value, (*_jax.array.ARRAYS, *_jax.array.SCALARS))
        case Static(hint):
            return not holds_array(value) and is_instance(value, hint)
        case UnionOf(options, _):
            return any(may_match(option, value) for option in options)
        case structure.Untyped() | structure.BySpec() | PyTreeOf():
            return True
        case structure.BareTree(kind):
            return isinstance(value, kind)
        case FixedTuple() | SequenceOf() | MappingOf() | Fields() | LikeOf():
            return wrong_container(node, value) is None


def key_name(key: Any) -> str:
    """The field name in a child's key."""
    return getattr(key, "name", None) or str(getattr(key, "key", ""))


def by_fields(node: Fields, value: Any, children: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The children of an instance by field: by the keys that name fields, else by the attributes that hold them.

    A container that is a copy of an attribute, with the same leaves, counts as the attribute.
    """
    if all(key_name(key) in node.fields for key, _ in children):
        return children
    if len(children) == 1 and _jax.tree.is_variable_class(node.cls):
        return [(jax.tree_util.GetAttrKey(*node.fields), children[0][1])]
    names, taken = _jax.tree.attributes_of(value, children), {key_name(key) for key, _ in children}
    fields: list[tuple[Any, Any]] = []
    for name, (key, part) in zip(names, children, strict=True):
        if name is None or name not in node.fields or name in taken or key_name(key) in node.fields:
            fields.append((key, part))
        else:
            taken.add(name)
            fields.append((jax.tree_util.GetAttrKey(name), getattr(value, name)))
    return fields


def items_of(value: Any, children: list[tuple[Any, Any]]) -> list[bool]:
    """Whether each child of a list or a mapping is an item; a class of Flax has one more child, without leaves."""
    if len(children) == len(value):
        return [True] * len(children)
    if isinstance(value, Mapping):
        names = list(value)  # a class may accept more keys than it has
        return [key_name(key) in names for key, _ in children]
    return [isinstance(key, jax.tree_util.SequenceKey) for key, _ in children]


def wrong_structure(names: tuple[str, ...], treedef: Any, sizes: Sizes) -> str | None:
    """Why the structure of a tree is not the one that its hint names."""
    known = [(name, *sizes.structures[name]) for name in names if name != "..."]
    pieces, text = [piece for _, piece, _ in known], shortened(str(treedef))
    if names[0] == "...":
        fits = _jax.tree.is_made_of(treedef, pieces)
    else:
        fits = treedef == pieces[0] if len(names) == 1 else _jax.tree.is_composed(treedef, pieces, names[-1] == "...")
    if fits:
        return None
    if len(names) == 1:
        ((name, expected, origin),) = known
        named = f"{origin.phrase}, which '{name}' stands for"
        return f"has another tree structure than {named}: {text}, not {shortened(str(expected))}"
    where = ", ".join(f"{name}={shortened(str(piece))} ({origin})" for name, piece, origin in known)
    return f"has tree structure {text}, which is not '{' '.join(names)}' for {where}"
