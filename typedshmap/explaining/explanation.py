"""What ``explain`` returns: data that shows itself as tables, in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .html import compared_html, document, explained_html
from .model import Explained, Failed
from .tables import compared_text, explained_text


@dataclass(frozen=True)
class Explanation(Explained):
    """One function on one mesh: its values, its collectives, its totals; printed as tables.

    All of `Explained`; ``str`` is text, a notebook shows tables.
    """

    def __str__(self) -> str:
        return explained_text(self)

    @property
    def html(self) -> str:
        """The same as a part of a page: a picture, and tables."""
        return explained_html(self)

    def _repr_html_(self) -> str:
        return self.html

    def to_html(self, path: str | Path) -> None:
        """Write one self-contained page."""
        Path(path).write_text(document(self.function, self.html), encoding="utf-8")


@dataclass(frozen=True)
class Comparison:
    """One function on several meshes, with the same sizes on all of them; printed as a table of one row each.

    Attributes:
      rows: per mesh, in the order in which they were given, what is told there, or why nothing is.
    """

    rows: tuple[Explanation | Failed, ...]

    @property
    def explanations(self) -> tuple[Explanation, ...]:
        """Those of the meshes on which the function can be traced."""
        return tuple(row for row in self.rows if isinstance(row, Explanation))

    @property
    def failures(self) -> tuple[Failed, ...]:
        """The meshes on which it cannot, with the errors."""
        return tuple(row for row in self.rows if isinstance(row, Failed))

    def __iter__(self) -> Iterator[Explanation | Failed]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Explanation | Failed:
        return self.rows[at]

    def __str__(self) -> str:
        return compared_text(self.rows)

    @property
    def html(self) -> str:
        """The same as a part of a page: a table, and folded below it what is told on each mesh."""
        return compared_html(self.rows)

    def _repr_html_(self) -> str:
        return self.html

    def to_html(self, path: str | Path) -> None:
        """Write one self-contained page."""
        name = self.explanations[0].function if self.explanations else "comparison"
        Path(path).write_text(document(name, self.html), encoding="utf-8")
