"""Hints that leave something open, made definite: which member of a union, how many items of a list."""

from __future__ import annotations

from collections.abc import Sequence

from ..hints.nodes import Either, Items, Keyed, Leaf, Node, Record, Repeated, Tree, holds_arrays
from ..placement.structure import typed_key

_KEYS = ("a", "b")


def definite(node: Node, inside: frozenset[int] = frozenset()) -> Node:
    """A node of which one value can be made.

    Of a union it is the first member that holds arrays, so that an optional array is there; lists, dicts and
    trees of any length have two items.

    Args:
      node: what a hint says.
      inside: the records around it; a class holds itself no further.
    """
    match node:
        case Items(items, kind):
            return Items(tuple(definite(item, inside) for item in items), kind)
        case Repeated(kind, item):
            one = definite(item, inside)
            return Items((one, one), list if _takes(kind, list) else tuple)
        case Keyed(_, item) | Tree(item, _):
            one = definite(item, inside)
            return Record(dict, "TypedDict", dict.fromkeys(_KEYS, one), is_open=False)
        case Either(options, _) if typed_key(options) is None:
            return definite(_chosen(options, inside), inside)
        case Record() if id(node) not in inside:
            around = inside | {id(node)}
            fields = {name: definite(inner, around) for name, inner in node.fields.items()}
            return Record(node.cls, node.kind, fields, node.optional, is_open=False)
        case _:
            return node


def _takes(kind: type | tuple[type, ...], wanted: type) -> bool:
    return wanted in kind if isinstance(kind, tuple) else issubclass(wanted, kind)


def _chosen(options: Sequence[Node], inside: frozenset[int]) -> Node:
    fit = [option for option in options if holds_arrays(option) and id(option) not in inside]
    leaves = [option for option in fit if isinstance(option, Leaf)]
    return (leaves or fit or list(options))[0]
