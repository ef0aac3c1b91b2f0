"""Words for operations that use a shard's quantity as if it were the global one."""

from __future__ import annotations

from typing import NamedTuple

from ...errors.causes import SuspectKind


class LossKind(NamedTuple):
    """The effect of an operation that loses a partial sum, or uses a shard's rows as all rows.

    Attributes:
      words: its effect, with ``{axis}`` for the mesh axis.
      suspect: the kind of the suspect.
      growing: its effect on an operand that grows with the mesh.
      is_of_slice: whether it takes each shard's own part of a partial sum, to which other parts may be added.
      is_of_extreme: whether it uses an extreme; other losses are better explanations.
    """

    words: str
    suspect: SuspectKind = "lost-sum"
    growing: str = ""
    is_of_slice: bool = False
    is_of_extreme: bool = False


ALONG_ROWS = LossKind("works along a dim that is sharded over {axis}: each shard has only its own rows", "own-part")
SOME_ROWS = LossKind("takes rows of a dim that is sharded over {axis}, on each shard from its own part", "own-part")
LOOKUP_IN_ROWS = LossKind("looks up a dim that is sharded over {axis}, on each shard in its own part", "own-part")
SAME_ROWS = LossKind("takes the same rows on every shard of {axis} as the parts of a dim", "own-part")
LOCAL_INDICES = LossKind("uses indices within each shard of {axis} as indices into the whole dim", "own-part")
CONVOLVED_ROWS = LossKind(
    "convolves along a dim that is sharded over {axis}: each shard has only its own rows", "own-part"
)
PADDED_ROWS = LossKind("pads each shard's part of a dim that is sharded over {axis}", "own-part")
SCANNED_ROWS = LossKind("loops over each shard's own rows of a dim that is sharded over {axis}", "own-part")
REDUCED_ROWS = LossKind("reduces each shard's own rows of a dim that is sharded over {axis}", "own-part")
TWO_DIMS = LossKind(
    "combines two dims that are sharded over {axis}: each shard has only its own rows of both", "own-part"
)
OTHER_SLICE = LossKind("takes a slice other than that of the shard's index along {axis}", "own-part")

SUM_OF_ROWS = LossKind("uses a sum of different rows over {axis} as the parts of a dim", "double-sum")
SUM_OF_EXTREMES = LossKind("sums each shard's own extreme over {axis}", "double-sum")
SAME_DRAWS = LossKind(
    "uses the same random numbers on every shard of {axis} as the parts of a sharded dim", "same-draw"
)

NONLINEAR_IN_GROWING = LossKind("is not linear, and its operand grows with {axis}", growing="is not linear")
MIXED_DEGREES = LossKind(
    "adds a term that grows with {axis} to one that does not", growing="combines it with a value that does not"
)
BOUNDED_GROWING = LossKind(
    "bounds a value that grows with {axis} by one that does not", growing="bounds it by a value that does not"
)
COMPARED_GROWING = LossKind(
    "compares a value that grows with {axis} with one that does not", growing="compares it with a value that does not"
)

TERM_PER_SHARD = LossKind("counts a term once per shard of {axis}: it was added to a partial sum")
NONLINEAR = LossKind("is not linear, and its operand is a partial sum over {axis}")
FACTOR = LossKind("multiplies by a partial sum over {axis}")
TIMES_ROWS = LossKind("multiplies a partial sum over {axis} by a value that is sharded over it")
MASKED_BY_ROWS = LossKind("masks a partial sum over {axis} by a value that is sharded over it")
MASKED_BY_INDEX = LossKind("masks a partial sum over {axis} by the shard's own index")
OWN_SLICE = LossKind("takes each shard's own slice of a partial sum over {axis}", is_of_slice=True)
OWN_ENTRIES = LossKind("takes each shard's own entries of a partial sum over {axis}", is_of_slice=True)
SCATTERED_SUM = LossKind("scatters a partial sum over {axis} to indices that differ between shards")
INDEX = LossKind("uses a partial sum over {axis} as an index")
CHOICE = LossKind("chooses by a partial sum over {axis}")
BRANCH = LossKind("branches on a partial sum over {axis}")
CONDITION = LossKind("loops on a partial sum over {axis}")
ADDED_ROWS = LossKind("adds a partial sum over {axis} to a value that is sharded over it")
LOOKUP_UNMASKED = LossKind("sums over {axis} what each shard looked up in its own rows without a mask")


def extreme_of_sums(end: str) -> LossKind:
    """It takes the maximum or the minimum of partial sums."""
    return LossKind(f"takes the {end}imum of partial sums over {{axis}}")


def own_extreme(end: str) -> LossKind:
    """It uses an extreme of each shard's rows as the extreme of all rows."""
    return LossKind(f"uses each shard's own {end} as the {end} over all shards of {{axis}}", is_of_extreme=True)


def shared_extreme(end: str) -> LossKind:
    """It takes an extreme, over the shards, of a value that is each shard's own: right only if it cancels."""
    return LossKind(f"takes the {end} over {{axis}} of what each shard computes from its own part", is_of_extreme=True)
