"""Findings, and the analyzed regions."""

from __future__ import annotations

from typing import NamedTuple

from ...errors import DivergenceError, ShardingError, VaryingError
from ...inspection import Finding as Finding

KINDS = {
    "varying": VaryingError,
    "unreduced": VaryingError,
    "layout": ShardingError,
    "divergence": DivergenceError,
    "unsound": VaryingError,
    "double-sum": VaryingError,
    "lost-sum": VaryingError,
    "summed-gradient": VaryingError,
    "own-part": VaryingError,
    "copies": VaryingError,
    "same-draw": VaryingError,
    "invariance": VaryingError,
}
"""The kinds of findings, each with its exception."""


class AuditedRegion(NamedTuple):
    """A manual region that was analyzed.

    Attributes:
      name: the name of its function.
      file: the path of the file of the function.
      line: the line of the function.
      is_complete: whether all that its results depend on was read.
      unread: what was not, and why.
    """

    name: str
    file: str
    line: int
    is_complete: bool
    unread: tuple[str, ...]


class SuggestedHints(NamedTuple):
    """The hints that a region without hints may be given.

    Attributes:
      name: the name of its function.
      file: the path of the file of the function.
      line: the line of the function.
      calls: how many calls were seen.
      text: a signature that all of them agree with, and the calls of ``typed_shard_map`` that give it their mesh axes;
        empty for the function of a library.
    """

    name: str
    file: str
    line: int
    calls: int
    text: str
