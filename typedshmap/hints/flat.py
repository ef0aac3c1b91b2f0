"""Which hint each leaf of a value has, by the value's structure: found out by a walk, and looked up since.

That is of nodes whose values' structure tells it all: arrays in tuples, lists, dicts and classes.
Static values and unions depend on what is there, and are walked each time; so are trees, whose
structure may hold whatever the user's classes do, which is not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from .. import _jax
from ..notation.sizes import Subject
from .array import ArrayHint
from .nodes import Container, Items, Keyed, Leaf, Record, Repeated, parts

_MOST_STRUCTURES = 16


@dataclass(frozen=True, slots=True)
class Flat:
    """The leaves of all values of one structure.

    Attributes:
      hints: their hints.
      paths: their paths within the value.
      named: what they were called the last time, by what the value was called.
    """

    hints: tuple[ArrayHint, ...]
    paths: tuple[str, ...]
    named: dict[Subject, tuple[Subject, ...]] = field(default_factory=dict)

    def subjects(self, whole: Subject) -> tuple[Subject, ...]:
        """What the leaves of a value are called."""
        found = self.named.get(whole)
        if found is None:
            found = tuple(map(whole.at, self.paths))
            self.named.clear()
            self.named[whole] = found
        return found


class Taken(NamedTuple):
    """A value taken apart."""

    leaves: list[Any]
    structure: Any


class Flats:
    """The structures of a node's values that were met.

    Attributes:
      known: them, each with its leaves; bounded.
    """

    def __init__(self, node: Container) -> None:
        self._is_told = all(isinstance(part, (Leaf, Items, Repeated, Keyed, Record)) for part in parts(node))
        self.known: dict[Any, Flat] = {}

    def take_apart(self, value: Any) -> Taken | None:
        """A value taken apart; None where its structure does not tell which hints its leaves have."""
        try:
            return Taken(*_jax.flat(value)) if self._is_told else None
        except _jax.BadTree:  # of which a walk tells where it is
            return None

    def learn(self, structure: Any, leaves: Sequence[tuple[ArrayHint, str]]) -> None:
        """Remember the leaves of a structure, by their hints and paths."""
        if len(self.known) >= _MOST_STRUCTURES:
            self.known.clear()
        self.known[structure] = Flat(tuple(hint for hint, _ in leaves), tuple(path for _, path in leaves))


# Weak, since a node goes with the function or the class that it was made for.
_flats: WeakKeyDictionary[Container, Flats] = WeakKeyDictionary()


def flats_of(node: Container) -> Flats:
    """The structures of a node's values that were met."""
    found = _flats.get(node)
    if found is None:
        found = _flats[node] = Flats(node)
    return found
