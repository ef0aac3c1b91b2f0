"""Pytrees: flatten them, name their leaves, and rebuild them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import jax


def one_level(value: Any) -> list[tuple[Any, Any]] | None:
    """A pytree's children one level down, each with its key; None for a leaf.

    Raises:
      BadTree: for a value that JAX cannot take apart.

    jax 0.10.2 gives every child of a NamedTuple the first one's key, so those are made here.
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
    """Whether JAX takes values of a class apart."""
    if inspect.isabstract(cls):
        return False
    try:
        return one_level(object.__new__(cls)) is not None
    except BadTree:  # it has no fields yet
        return True


def replace_children(value: Any, children: list[Any]) -> Any:
    """A pytree's outermost node with other children."""
    structure = jax.tree_util.tree_structure(value, is_leaf=lambda part: part is not value)
    return jax.tree_util.tree_unflatten(structure, children)


def is_box(value: Any) -> bool:
    """Whether a value is a box of Flax: ``nnx.Variable``, or one of ``flax.linen``."""
    cls = type(value)
    return _is_variable(cls) or (_has_box(cls) and hasattr(value, "names"))


def is_linen_box(value: Any) -> bool:
    """Whether a value is a box of ``flax.linen``: ``nn.Partitioned``, ``nn.LogicallyPartitioned``."""
    return _has_box(type(value)) and hasattr(value, "names")


@lru_cache(maxsize=1024)
def _is_variable(cls: type) -> bool:
    return hasattr(cls, "get_metadata") and hasattr(cls, "raw_value")


@lru_cache(maxsize=1024)
def _has_box(cls: type) -> bool:
    return hasattr(cls, "replace_boxed")


def is_endless(value: Any) -> bool:
    """Whether lists or dicts hold themselves, or nearly so: if JAX flattens them, Python miscounts its recursions."""

    def goes_on(part: Any) -> bool:
        parts = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
        return any(map(goes_on, parts))

    try:
        return goes_on(value)
    except RecursionError:
        return True


class BadTree(Exception):
    """A value that JAX cannot take apart: a dict whose keys have no order, a class that is registered wrongly."""


def leaves(value: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of a pytree; none of a value that JAX cannot take apart."""
    try:
        return jax.tree_util.tree_leaves(value, is_leaf)
    except Exception:
        return []


def is_empty(value: Any) -> bool:
    """Whether a value is a pytree without leaves, as None is."""
    try:
        return jax.tree_util.tree_structure(value).num_leaves == 0
    except Exception:
        return False


def flatten(value: Any) -> tuple[list[Any], Any]:
    """The leaves of a pytree, and its structure, which can be looked up.

    Raises:
      BadTree: for a value that JAX cannot take apart, or whose structure has no hash.
    """
    try:
        found, structure = jax.tree_util.tree_flatten(value)
        hash(structure)
    except Exception as error:
        raise BadTree(str(error)) from None
    return found, structure


def flatten_with_paths(value: Any, is_leaf: Callable[[Any], bool] | None) -> tuple[list[tuple[str, Any]], Any]:
    """The leaves of a pytree, each with its path, and its structure.

    Raises:
      BadTree: for a value that JAX cannot take apart.
    """
    try:
        found, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_leaf)
    except Exception as error:
        raise BadTree(str(error)) from None
    return [(jax.tree_util.keystr(path), part) for path, part in found], structure


def unflatten_like(value: Any, leaves: Iterable[Any]) -> Any:
    """A pytree of the structure of ``value`` with other leaves."""
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(value), leaves)


def is_composed(structure: Any, pieces: Sequence[Any], is_open: bool = False) -> bool:
    """Whether a structure is the first piece with the second one at each of its leaves, and so on.

    Args:
      structure: the structure of a tree.
      pieces: other structures.
      is_open: whether any trees may stand at the leaves of the last piece.
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
