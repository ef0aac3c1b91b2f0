"""What is wrong in a region, and what was read of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ...errors import DivergenceError, ShardingError, VaryingError

Severity = Literal["error", "suspect"]

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
"""The kinds of findings, each with what it is raised as."""


class Finding(NamedTuple):
    """What is wrong in a region.

    Attributes:
      severity: ``"error"``, or ``"suspect"`` for what may be meant.
      kind: ``varying``: a result differs between shards of an axis that its PartitionSpec does not mention;
        ``unreduced``: so it is since the sum over the axis is due; ``layout``: a dim is sharded over other axes, or in
        another order, than is taken for granted; ``divergence``: a collective that not all shards reach; ``unsound``: a
        value that varies though JAX types it as invarying; ``double-sum``: what a collective makes grow or shrink with
        the mesh; ``summed-gradient``: what differentiation does; ``lost-sum``: a sum that is due, and that an operation
        loses; ``own-part``: an operation along a sharded dim that needs all of it; ``copies``: what is the same on each
        shard, taken for the parts of a dim; ``same-draw``: random numbers alike on every shard, taken for those of a
        sharded dim; ``invariance``: a global result that is another one on other meshes.
      message: what is wrong, and what to write instead, on one line.
      file: the path of the file in which it began.
      line: its line there.
      region: the name of the region's function.
    """

    severity: Severity
    kind: str
    message: str
    file: str
    line: int
    region: str


class Region(NamedTuple):
    """A manual region that was read.

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
