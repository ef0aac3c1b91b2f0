"""The sizes that names stand for, and who bound them.

`Sizes` never changes: binding a name makes a new one, so a failed check binds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class Subject(NamedTuple):
    """The value that is spoken of: an argument, the return value or a checked value, or a part of it."""

    kind: str
    name: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.name}{self.path}"

    def at(self, step: str) -> Subject:
        return Subject(self.kind, self.name, self.path + step)

    @property
    def phrase(self) -> str:
        """How a sentence names it."""
        if self.kind == "argument":
            return f"argument '{self}'"
        if self.kind in ("operand", "pattern"):
            return str(self) if " " in self.name else f"the {self}"
        return str(self) if self.path else f"{self.name} value"


RETURN = Subject("return", "return")


@dataclass(frozen=True, slots=True)
class Bound:
    """A global size (or the sizes of a ``*name``), who bound it, and over which mesh axes it was seen."""

    size: int | tuple[int, ...]
    subject: Subject
    dim: int
    layouts: frozenset[tuple[str, ...]] = frozenset()


@dataclass(frozen=True)
class Sizes:
    """Names and their global sizes, in the order in which they were bound.

    Attributes:
      bound: the sizes.
      structures: names of tree structures, each with the structure and the value that first bore it.
    """

    bound: Mapping[str, Bound] = field(default_factory=dict)
    structures: Mapping[str, tuple[object, Subject]] = field(default_factory=dict)

    def get(self, name: str) -> Bound | None:
        return self.bound.get(name)

    def __iter__(self) -> Iterator[tuple[str, Bound]]:
        return iter(self.bound.items())

    def bind(self, name: str, bound: Bound) -> Sizes:
        """These sizes, and one name more."""
        return Sizes({**self.bound, name: bound}, self.structures)

    def bind_structure(self, name: str, structure: object, subject: Subject) -> Sizes:
        """These sizes, and the name of a tree's structure."""
        return Sizes(self.bound, {**self.structures, name: (structure, subject)})

    def seen(self, name: str, axes: tuple[str, ...]) -> Sizes:
        """These sizes, having seen ``name`` split over ``axes``."""
        known = self.bound[name]
        return self if axes in known.layouts else self.bind(name, replace(known, layouts=known.layouts | {axes}))


NO_SIZES = Sizes()
