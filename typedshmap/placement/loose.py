"""Hints without their sizes, for what must be known of a value before its sizes mean anything."""

from __future__ import annotations

from dataclasses import replace

from ..hints.array import ArrayHint
from ..hints.nodes import Anything, Either, Items, Keyed, Leaf, Node, Record, Repeated, Static, Tree
from ..notation import nodes


def loosened(node: Node) -> tuple[Node, dict[int, ArrayHint]]:
    """A hint's tree in which every dim may have any size, and of each loose hint the one that it was.

    The loose hints are known by their ``id``, which lasts as long as the tree.
    """
    known: dict[int, ArrayHint] = {}
    return _loosened(node, known, {}), known


def _loosened(node: Node, known: dict[int, ArrayHint], records: dict[int, Record]) -> Node:
    match node:
        case Leaf(hint):
            loose = loose_hint(hint)
            known[id(loose)] = hint
            return Leaf(loose)
        case Items(items, kind):
            return Items(tuple(_loosened(item, known, records) for item in items), kind)
        case Repeated(kind, item):
            return Repeated(kind, _loosened(item, known, records))
        case Keyed(kind, value):
            return Keyed(kind, _loosened(value, known, records))
        case Either(options, hint):
            return Either(tuple(_loosened(option, known, records) for option in options), hint)
        case Tree(leaf, structure):
            return Tree(_loosened(leaf, known, records), structure)
        case Record():
            return _loosened_record(node, known, records)
        case Static() | Anything():
            return node


def _loosened_record(node: Record, known: dict[int, ArrayHint], records: dict[int, Record]) -> Record:
    if id(node) not in records:
        loose = records[id(node)] = Record(node.cls, node.kind, optional=node.optional, is_open=node.is_open)
        loose.fields.update({name: _loosened(inner, known, records) for name, inner in node.fields.items()})
    return records[id(node)]


def loose_hint(hint: ArrayHint) -> ArrayHint:
    """A hint in which every dim may have any size; brackets and marks stay."""
    dims = tuple(
        nodes.Rest(span=dim.span)
        if isinstance(dim, nodes.Rest)
        else nodes.Dim(nodes.Anything(), dim.axes, span=dim.span)
        for dim in hint.spec.dims
    )
    return replace(hint, spec=replace(hint.spec, dims=dims), takes_rules=False)
