"""Suspects by the theory of degrees, and the cures that were tried."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any, Literal, NamedTuple

from ..records import Record
from .failures import Sentence, Terms
from .phrases import quoted_axes
from .varying import Suspect

SuspectKind = Literal["double-sum", "summed-gradient", "lost-sum", "own-part", "copies", "same-draw"]


class EditedEquation(NamedTuple):
    """An edit of an equation.

    Attributes:
      eqn: the equation.
      operation: the collective that comes after it, or ``divide``; empty for none.
      replaces: the collective in whose place that stands; empty where it comes after the equation.
      is_of_parts: whether of what the equation returns only the parts are meant.
      is_stopped: whether no gradient goes through it, as through a ``pmax``, which has none.
    """

    eqn: Any
    operation: str
    replaces: str = ""
    is_of_parts: bool = False
    is_stopped: bool = False


class Cure(Record):
    """An edit with which a region reads as right.

    Attributes:
      text: the edit, in words.
      other: another cure that is as simple.
      line: the line that it changes; empty for a result.
      operation: the collective that it adds; empty if it removes one.
      weight: its complexity: 2 for one changed operation, more for a result, a division, or two edits.
      changes: the edited equations.
      results: the indices of the results that it changes.
    """

    text: str
    other: str = ""
    line: str = ""
    operation: str = ""
    weight: int = 2
    changes: tuple[EditedEquation, ...] = field(default=(), compare=False)
    results: tuple[int, ...] = ()

    @property
    def eqn(self) -> Any:
        """The equation that it changes first."""
        return self.changes[0].eqn if self.changes else None

    def __str__(self) -> str:
        return f"{self.text}, or {self.other}" if self.other else self.text

    def over(self, before: tuple[str, ...], axes: tuple[str, ...]) -> Cure:
        """The same over more axes."""
        names = quoted_axes(before), quoted_axes(axes)
        return replace(self, text=self.text.replace(*names), other=self.other.replace(*names))


class Suspected(Suspect):
    """Code in a body that is hardly intended.

    Attributes:
      kind: its kind in an audit.
      axes: the mesh axes.
      problem: the problem, in words.
      since: the place of the partial sum, if one is lost.
      is_marked: whether a hint marks the partial sum.
      cure: the cure that holds; None if none is known.
    """

    kind: SuspectKind
    axes: tuple[str, ...]
    problem: str
    since: str = ""
    is_marked: bool = False
    cure: Cure | None = None

    def over(self, axes: tuple[str, ...]) -> Suspected:
        """The same over more axes."""
        problem = self.problem.replace(quoted_axes(self.axes), quoted_axes(axes))
        cure = None if self.cure is None else self.cure.over(self.axes, axes)
        return replace(self, axes=axes, problem=problem, cure=cure)

    def words(self, terms: Terms) -> Sentence:
        cure = None if self.cure is None else str(self.cure)
        if not self.is_marked:
            silenced = f"if it is meant, say so by # typedshmap: ignore[{self.kind}]"
            cure = silenced if cure is None else f"{cure}; {silenced}"
        return Sentence(self.problem, cure=cure)
