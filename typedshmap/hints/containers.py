"""What a container has to be for its hint, and which hint each of its children has."""

from __future__ import annotations

from typing import Any

from .. import _jax
from ..errors.failures import WrongKeys, WrongLength, WrongType
from .leaf import describe
from .nodes import Anything, Container, Either, Items, Keyed, Leaf, Node, Record, Repeated, Static, Tree, node_name
from .statics import fits, holds_array

_ANYTHING = Anything()


def wrong_container(node: Container, value: Any) -> WrongType | WrongLength | WrongKeys | None:
    """What keeps a value from being taken apart by its hint."""
    match node:
        case Items(items, kind):
            if not isinstance(value, kind):
                return WrongType(node_name(node), describe(value))
            return None if len(value) == len(items) else WrongLength(len(items), len(value))
        case Repeated(kind, _) | Keyed(kind, _):
            return None if isinstance(value, kind) else WrongType(node_name(node), describe(value))
        case Record(cls=cls, kind="TypedDict", fields=fields, optional=optional):
            if not isinstance(value, dict):
                return WrongType(cls.__name__, describe(value))
            missing = tuple(name for name in fields if name not in value and name not in optional)
            extra = tuple(str(name) for name in value if name not in fields)
            return WrongKeys(missing, extra) if missing or extra else None
        case Record(cls=cls):
            return None if isinstance(value, cls) else WrongType(cls.__name__, describe(value))


def is_near(node: Node, value: Any) -> bool:
    """Whether a value is of the kind that a node wants, whatever it holds."""
    match node:
        case Leaf():
            return isinstance(value, (*_jax.ARRAYS, *_jax.SCALARS))
        case Static(hint):
            return not holds_array(value) and fits(value, hint)
        case Either(options, _):
            return any(is_near(option, value) for option in options)
        case Anything() | Tree():
            return True
        case Items(items, kind):
            return isinstance(value, kind) and len(value) == len(items)
        case Repeated() | Keyed() | Record():
            return wrong_container(node, value) is None


def nodes_of(node: Container, parts: list[tuple[Any, Any]]) -> list[Node]:
    """The hint of each child."""
    match node:
        case Items(items):
            return list(items)
        case Repeated(_, item) | Keyed(_, item):
            return [item] * len(parts)
        case Record():
            return [node.fields.get(name_in(key), _ANYTHING) for key, _ in parts]


def name_in(key: Any) -> str:
    """The field that a child's key names."""
    return getattr(key, "name", None) or str(getattr(key, "key", ""))


def keyed_by_place(node: Record, value: Any, parts: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The children of a class that was registered without keys, by the fields that they are.

    The value is put together again from children that can be told apart, as JAX itself does, and
    each is looked for in the fields.
    """
    marks = [object() for _ in parts]
    try:
        marked = _jax.put_together(value, list(marks))
    except Exception:
        return parts
    found = {id(getattr(marked, name, None)): name for name in node.fields}
    return [
        (_jax.field_key(found[id(mark)]) if id(mark) in found else key, part)
        for mark, (key, part) in zip(marks, parts, strict=True)
    ]
