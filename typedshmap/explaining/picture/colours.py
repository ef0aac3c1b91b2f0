"""A colour per mesh axis, told apart by people who see few colours (Okabe and Ito, Color Universal Design, 2008)."""

from __future__ import annotations

from collections.abc import Iterable

WHOLE = "#e8eaed"
_PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c6bb1")
_DARK = {"#0072b2", "#d55e00", "#009e73", "#8c6bb1"}


class Colours:
    """The colours of a mesh."""

    def __init__(self, axes: Iterable[str]) -> None:
        self._of = {axis: _PALETTE[at % len(_PALETTE)] for at, axis in enumerate(axes)}

    def of(self, axis: str) -> str:
        """The colour of a mesh axis."""
        return self._of[axis]

    def of_all(self, axes: Iterable[str]) -> list[str]:
        """The colours of several; that of a whole dim for none."""
        return [self._of[axis] for axis in axes] or [WHOLE]


def ink(colour: str) -> str:
    """What can be read on a colour."""
    return "#ffffff" if colour in _DARK else "#1f2328"
