"""The hints of the leaves of values by their structure, so that a value like one before is not walked."""

from __future__ import annotations

from dataclasses import field
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from ..errors.failures import Subject
from ..notation.match import Sizes
from ..records import Record
from . import structure
from .array_hint import ArrayHint
from .context import MeshContext
from .structure import ArrayLeaf, Container, Fields, FixedTuple, LikeOf, MappingOf, SequenceOf

MOST_STRUCTURES = 16
"""How many structures are kept for one node."""
_MOST_FITTING = 4  # the weights of a call, those that it returns
FittingTree = tuple[MeshContext, Sizes, list[Any], Sizes]


class LeafHints(Record):
    """The leaves of all values of one structure.

    Attributes:
      hints: their hints.
      paths: their paths within the value.
      fitting: what fitted last, by the subject of the value: where, the sizes that were bound before, the types of the
        leaves (JAX has one object for all types that are equal), and the sizes that are bound then; of a few values.
    """

    hints: tuple[ArrayHint, ...]
    paths: tuple[str, ...]
    fitting: dict[Subject, FittingTree] = field(default_factory=dict[Subject, "FittingTree"])

    def keep_fitting(self, root: Subject, fitting: FittingTree) -> None:
        """Keep what fitted."""
        if len(self.fitting) >= _MOST_FITTING:
            self.fitting.clear()
        self.fitting[root] = fitting


@lru_cache(maxsize=64)
def subjects_at(root: Subject, paths: tuple[str, ...]) -> tuple[Subject, ...]:
    """The subjects of the leaves of a value, by their paths."""
    return tuple(map(root.at, paths))


# Weak, since a node goes with the function or the class that it was made for.
_structures: WeakKeyDictionary[Container | LikeOf, tuple[bool, dict[Any, LeafHints]]] = WeakKeyDictionary()


def known_structures(node: Container | LikeOf) -> tuple[bool, dict[Any, LeafHints]]:
    """Whether the structure of a value determines the hints of its leaves, and the structures so far; bounded."""
    found = _structures.get(node)
    if found is None:
        kinds = (ArrayLeaf, FixedTuple, SequenceOf, MappingOf, Fields, LikeOf)
        parts = [part for _, part in structure.walk(node)]
        by_rank = any(isinstance(part, LikeOf) and not structure.is_named(part.parameters) for part in parts)
        found = _structures[node] = (all(isinstance(part, kinds) for part in parts) and not by_rank, {})
    return found
