"""What is said of one failure, before it is put into a message."""

from __future__ import annotations

from dataclasses import dataclass

from ..notation.nodes import Span

DTYPE = -1
"""The start of a span that stands for the dtype, which is not among a hint's dims."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """What is said of a failure: the problem, where carets go, the cure, and whether sizes matter."""

    problem: str
    span: Span | None = None
    cure: str | None = None
    sizes: bool = True
