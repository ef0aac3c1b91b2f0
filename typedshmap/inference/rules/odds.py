"""An operation on dims that are split in different ways, as a finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Odds:
    """Two dims that an operation takes for the same, and that are not.

    Attributes:
      eqn: the operation.
      where: which dims they are.
      first: the mesh axes of the first operand's.
      second: those of the other's.
    """

    eqn: Any
    where: str
    first: tuple[str, ...]
    second: tuple[str, ...]
