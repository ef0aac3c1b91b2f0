"""Specs as the text of hints.

A spec may be shorter than the rank, so that every hint ends in ``...``; nothing is known of the
dtype, so that it is ``Shaped``. A name binds equal sizes, so that no two dims have the same one: a
parameter's dims are called after it, and dims of results, of trees and of ``*args`` are ``_``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .specs import Axis, LeafSpec, NoSpec, Specs


@dataclass(frozen=True)
class Vocabulary:
    """The names that the hints of a file are written with, and which of them were needed.

    Attributes:
      spelled: what a name of the library is called in this file.
      needed: the names of the library that were used.
    """

    spelled: Mapping[str, str]
    needed: set[str] = field(default_factory=set)

    def word(self, name: str) -> str:
        """A name of the library as this file spells it."""
        self.needed.add(name)
        return self.spelled.get(name, name)


def aliases(axes: Iterable[Axis]) -> dict[str, str]:
    """For every axis that is code, a name for hints that no other axis has."""
    axes = list(axes)
    taken = {axis.text for axis in axes if not axis.is_code}
    found: dict[str, str] = {}
    for axis in axes:
        if axis.is_code and axis.text not in found:
            name = axis.text.split(".")[-1].strip("_") or "axis"
            while name in taken:
                name += "_"
            taken.add(name)
            found[axis.text] = name
    return found


@dataclass(frozen=True)
class Writer:
    """Writes the hints of one call."""

    vocabulary: Vocabulary
    aliases: Mapping[str, str]

    def hint(
        self, specs: Specs | None, base: str | None = None, is_array: bool = False, is_optional: bool = False
    ) -> str:
        """The hint of a parameter or a result.

        Args:
          specs: its specs; None for a parameter that no spec reaches.
          base: what its dims are called after.
          is_array: whether it is surely one array, and no tree.
          is_optional: whether it may be None all the same.
        """
        if specs is None or isinstance(specs, NoSpec):
            return self.vocabulary.word("Any")
        if not isinstance(specs, LeafSpec):
            return f"tuple[{', '.join(map(self.hint, specs.items)) or '()'}]"
        is_array = is_array and not specs.is_tree
        dims = self._dims(specs, base if is_array else None)
        leaf = f'{self.vocabulary.word("Shaped")}[{self.vocabulary.word("Array")}, "{dims}"]'
        if not is_array:
            return f"{self.vocabulary.word('PyTree')}[{leaf}]"
        return f"{leaf} | None" if is_optional else leaf

    def result(self, specs: Specs, is_array: bool = False, are_arrays: Sequence[bool] = ()) -> str:
        """The hint of a result; ``are_arrays`` speaks of the items of a tuple."""
        if isinstance(specs, NoSpec):
            return "None"
        if isinstance(specs, LeafSpec):
            return self.hint(specs, is_array=is_array)
        known = are_arrays or [False] * len(specs.items)
        items = [self.result(item, each) for item, each in zip(specs.items, known, strict=True)]
        return f"tuple[{', '.join(items) or '()'}]"

    def bracketed(self, token: str, axes: tuple[Axis, ...]) -> str:
        """A dim with the mesh axes that shard it."""
        return f"[{token}/{','.join(map(self.axis, axes))}]" if axes else token

    def axis(self, axis: Axis) -> str:
        """What a mesh axis is called in a hint."""
        return self.aliases[axis.text] if axis.is_code else axis.text

    def _dims(self, specs: LeafSpec, base: str | None) -> str:
        names = [f"{base}_{i}" if base is not None and base.isascii() else "_" for i in range(len(specs.dims))]
        return " ".join([*map(self.bracketed, names, specs.dims), "..."])
