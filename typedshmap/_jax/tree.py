"""Pytrees: flatten them, name their leaves, and rebuild them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import is_
from typing import Any

import jax


def one_level(value: Any) -> list[tuple[Any, Any]] | None:
    """A pytree's children one level down, each with its key; None for a leaf.

    Raises:
      BadTree: for a value that JAX cannot flatten.

    jax 0.10.2 gives every child of a NamedTuple the key of the first child, so these keys are made here.
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names: tuple[str, ...] = value._fields  # type: ignore[attr-defined]
        return [(jax.tree_util.GetAttrKey(name), part) for name, part in zip(names, value, strict=True)]
    try:
        flat = jax.tree_util.default_registry.flatten_one_level_with_keys(value)
    except Exception as error:
        raise BadTree(str(error)) from None
    return list(flat[0]) if flat is not None else None


def is_registered(cls: type) -> bool:
    """Whether a class is registered as a pytree."""
    try:  # without a value of the class, and with no call of its functions
        jax.tree_util.PyTreeDef.from_node_data_and_children(jax.tree_util.default_registry, (cls, None), [])
    except Exception:
        return False
    return True


def replace_children(value: Any, children: list[Any]) -> Any:
    """A pytree's outermost node with other children."""
    structure = jax.tree_util.tree_structure(value, is_leaf=lambda part: part is not value)
    return jax.tree_util.tree_unflatten(structure, children)


def attributes_of(value: Any, children: list[tuple[Any, Any]]) -> list[str | None]:
    """The attribute that holds each child of a value, or its leaves; None if it is unknown.

    A copy with distinct objects as attributes is flattened; if the class refuses these, the leaves are compared.
    """
    names = attribute_names(value)
    marks = {name: object() for name in names}
    try:
        marked = one_level(with_attributes(value, marks)) or []
    except Exception:
        marked = []
    by_mark = {id(mark): name for name, mark in marks.items()}
    if len(marked) == len(children) and all(id(part) in by_mark for _, part in marked):
        return [by_mark[id(part)] for _, part in marked]
    by_leaves: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        by_leaves.setdefault(tuple(map(id, leaves(getattr(value, name, None)))), []).append(name)
    names_of_children = [by_leaves.get(tuple(map(id, leaves(part))), []) for _, part in children]
    return [same[0] if len(same) == 1 else None for same in names_of_children]


def attribute_names(value: Any) -> list[str]:
    """The instance attributes of a value, including slots."""
    slots = [getattr(cls, "__slots__", ()) for cls in reversed(type(value).__mro__)]
    named = [name for names in slots for name in ((names,) if isinstance(names, str) else names)]
    return [name for name in dict.fromkeys((*named, *getattr(value, "__dict__", ()))) if hasattr(value, name)]


def with_attributes(value: Any, attributes: Mapping[str, Any]) -> Any:
    """A copy of a value with other attributes, made without calling functions of its class."""
    made = object.__new__(type(value))
    for name in attribute_names(value):
        # Bypass the class's own ``__setattr__``, which may raise, as in a frozen dataclass.
        object.__setattr__(made, name, attributes[name] if name in attributes else getattr(value, name))
    return made


def is_box(value: Any) -> bool:
    """Whether a value is a box of Flax: ``nnx.Variable``, or one of ``flax.linen``."""
    return is_variable_class(type(value)) or is_linen_box(value)


def is_linen_box(value: Any) -> bool:
    """Whether a value is a box of ``flax.linen``: ``nn.Partitioned``, ``nn.LogicallyPartitioned``, ``NNXMeta``."""
    return hasattr(type(value), "replace_boxed") and (hasattr(value, "names") or hasattr(value, "metadata"))


@lru_cache(maxsize=1024)
def is_variable_class(cls: type) -> bool:
    """Whether this is ``nnx.Variable`` or a subclass."""
    return hasattr(cls, "get_metadata") and hasattr(cls, "raw_value")


def is_endless(value: Any) -> bool:
    """Whether lists or dicts hold themselves, or are nested too deeply for JAX to flatten safely."""

    def goes_on(part: Any) -> bool:
        parts = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
        return any(map(goes_on, parts))

    try:
        return goes_on(value)
    except RecursionError:
        return True


class BadTree(Exception):
    """A value that JAX cannot flatten: a dict with keys that have no order, a class that is registered wrongly."""


def leaves(value: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of a pytree; empty for a value that JAX cannot flatten."""
    try:
        return jax.tree_util.tree_leaves(value, is_leaf)
    except Exception:
        return []


def is_empty(value: Any) -> bool:
    """Whether a value is a pytree without leaves, such as None."""
    try:
        return jax.tree_util.tree_structure(value).num_leaves == 0
    except Exception:
        return False


def flatten(value: Any) -> tuple[list[Any], Any]:
    """The leaves of a pytree, and its hashable structure.

    Raises:
      BadTree: for a value that JAX cannot flatten, or whose structure has no hash.
    """
    try:
        parts, structure = jax.tree_util.tree_flatten(value)
        hash(structure)
    except Exception as error:
        raise BadTree(str(error)) from None
    return parts, structure


def flatten_with_paths(
    value: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], tuple[str, ...], Any]:
    """The leaves of a pytree, their paths, and its structure.

    Raises:
      BadTree: for a value that JAX cannot flatten.
    """
    try:
        if is_leaf is None:
            leaves, structure = jax.tree_util.tree_flatten(value)
            if (paths := _known_paths(structure)) is not None:
                return leaves, paths, structure
        pairs, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_leaf)
    except Exception as error:
        raise BadTree(str(error)) from None
    return [part for _, part in pairs], tuple([jax.tree_util.keystr(path) for path, _ in pairs]), structure


def _known_paths(structure: Any) -> tuple[str, ...] | None:
    try:
        return _paths_in(structure)
    except Exception:  # the aux data of a class has no hash, or cannot be compared
        return None


@lru_cache(maxsize=64)
def _paths_in(structure: Any) -> tuple[str, ...] | None:
    """The paths of the leaves of a structure; None if they depend on the value."""
    if not takes_any_leaves(structure):
        return None
    pairs, _ = jax.tree_util.tree_flatten_with_path(structure.unflatten(range(structure.num_leaves)))
    return tuple([jax.tree_util.keystr(path) for path, _ in pairs])


def unflatten_like(value: Any, leaves: Iterable[Any]) -> Any:
    """A pytree with the structure of ``value`` and other arrays."""
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(value), leaves)


@lru_cache(maxsize=1024)
def takes_any_leaves(structure: Any) -> bool:
    """Whether a structure accepts leaves that are not arrays, such as shardings.

    A class may convert or reject its children when JAX unflattens it.
    """
    marks = [object() for _ in range(structure.num_leaves)]
    try:
        return all(map(is_, structure.flatten_up_to(structure.unflatten(marks)), marks))
    except Exception:  # whatever the class raises
        return False


def replace_leaves(value: Any, leaves: Iterable[Any], is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """A pytree with the structure of ``value`` and leaves that need not be arrays, such as specs.

    For a class that does not accept such leaves, the attributes are set.

    Raises:
      BadTree: for a class that converts its leaves, and does not keep them as attributes.
    """
    remaining = list(leaves)
    try:
        structure = jax.tree_util.tree_structure(value, is_leaf)
        made = structure.unflatten(remaining)
        if all(map(is_, structure.flatten_up_to(made), remaining)):
            return made
    except Exception:  # whatever the class raises
        pass
    return _replaced(value, iter(remaining), is_leaf or (lambda part: False))


def map_leaves(make: Callable[[Any], Any], value: Any) -> Any:
    """`jax.tree.map`, whose results need not be arrays."""
    return replace_leaves(value, map(make, jax.tree_util.tree_leaves(value)))


def _replaced(value: Any, leaves: Iterator[Any], is_leaf: Callable[[Any], bool]) -> Any:
    children = None if is_leaf(value) else one_level(value)
    if children is None:
        return next(leaves)
    parts = [_replaced(part, leaves, is_leaf) for _, part in children]
    try:
        made = replace_children(value, parts)
        if all(new is part for (_, new), part in zip(one_level(made) or (), parts, strict=True)):
            return made
    except Exception:
        pass
    names = attributes_of(value, children)
    known = {name: part for name, part in zip(names, parts, strict=True) if name is not None}
    if len(known) != len(parts):
        name = type(value).__name__
        raise BadTree(f"{name} converts its leaves, and does not keep them as attributes")
    return with_attributes(value, known)


def is_composed(structure: Any, pieces: Sequence[Any], is_open: bool = False) -> bool:
    """Whether a structure is the first piece with the second piece at each of its leaves, and so on.

    Args:
      structure: the structure of a tree.
      pieces: other structures.
      is_open: whether any trees may be at the leaves of the last piece.
    """

    def is_from(part: Any, piece: Any, rest: Sequence[Any]) -> bool:
        if (node := piece.node_data()) is None:  # a leaf
            return is_composed(part, rest, is_open)
        parts, inner = part.children(), piece.children()
        is_same = part.node_data() == node and len(parts) == len(inner)
        return is_same and all(is_from(*pair, rest) for pair in zip(parts, inner, strict=True))

    return is_from(structure, pieces[0], pieces[1:]) if pieces else is_open or structure.node_data() is None


def is_made_of(structure: Any, pieces: Sequence[Any]) -> bool:
    """Whether a structure is any tree with composed pieces at its leaves."""
    if is_composed(structure, pieces):
        return True
    return structure.node_data() is not None and all(is_made_of(part, pieces) for part in structure.children())
