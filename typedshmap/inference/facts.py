"""What is known of a value over the mesh, and how that is put together. Nothing here knows of JAX.

Per mesh axis a value is invarying (equal on all shards), varying (its shards may differ) or unreduced
(every shard holds an addend). Per dim its mesh axes are known, in order, or not. The order of what is
known of a dim, and in which loops and branches meet, is: whole, split over axes, not known.

Invariant: what is said to be invarying is so; what is said of a dim follows from the arguments' specs
and from claims by rules that hold for every program.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

Names = frozenset[str]
NONE: Names = frozenset()


class Dim(NamedTuple):
    """What is known of one dim.

    Attributes:
      axes: the mesh axes that it is split over, major to minor; None where that is not known.
      is_taught: whether it is known from a claim only. Such a dim may be a local one that was taken
        for a part of a global one, so that it is not followed through a reshape.
      gathered: the axes, in this order, over which a dim that is split in another order was gathered.
      is_loose: whether the axes may be taken to stand on another dim instead. A reshape of a shard cut
        the dim in several: rows in microbatches of which each is split lie as microbatches that are split.
    """

    axes: tuple[str, ...] | None
    is_taught: bool = False
    gathered: tuple[str, ...] = ()
    is_loose: bool = False

    @property
    def is_split(self) -> bool:
        return bool(self.axes)

    def over(self, axes: tuple[str, ...]) -> Dim:
        """The same, split over other axes."""
        return Dim(axes, self.is_taught, (), self.is_loose) if axes else WHOLE


WHOLE, UNKNOWN = Dim(()), Dim(None)


class Fact(NamedTuple):
    """What is known of a value.

    Attributes:
      varying: the mesh axes over which its shards may differ.
      owed: those over which every shard holds an addend.
      dims: its dims.
    """

    varying: Names
    owed: Names
    dims: tuple[Dim, ...]

    def lying(self, dims: Iterable[Dim]) -> Fact:
        """The same over the mesh, with other dims."""
        return Fact(self.varying, self.owed, tuple(dims))


@lru_cache(maxsize=64)
def equal(rank: int) -> Fact:
    """A value that is equal on all shards, and whole."""
    return Fact(NONE, NONE, (WHOLE,) * rank)


@lru_cache(maxsize=4096)
def unknown(varying: Names, rank: int) -> Fact:
    """A value of whose dims nothing is known."""
    return Fact(varying, NONE, (UNKNOWN,) * rank)


def varying_of(facts: Iterable[Fact]) -> Names:
    """Where something computed of these values may differ."""
    found = NONE
    for fact in facts:
        if not (fact.varying <= found and fact.owed <= found):
            found = found | fact.varying | fact.owed
    return found


def meet(a: Dim, b: Dim) -> Dim:
    """One dim of a value computed, element by element, of two; or that is the one or the other.

    A whole dim agrees with every other: a constant, or the same numbers in every shard's part.
    """
    if a is b or a == b or b == WHOLE:
        return a
    if a == WHOLE:
        return b
    if a.axes is not None and a.axes == b.axes:
        return Dim(a.axes, a.is_taught and b.is_taught, (), a.is_loose and b.is_loose)
    return UNKNOWN


@lru_cache(maxsize=4096)
def met(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """All dims of such a value."""
    return a if a == b else settled(tuple(meet(one, other) for one, other in zip(a, b, strict=True)))


def are_at_odds(a: Dim, b: Dim) -> bool:
    """Whether two dims that are taken for the same are split in ways of which neither refines the other."""
    if not a.axes or not b.axes or a.is_loose or b.is_loose:
        return False
    return not is_within(a.axes, b.axes) and not is_within(b.axes, a.axes)


@lru_cache(maxsize=4096)
def at_odds(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[int, ...]:
    """The dims of two values that are so."""
    return tuple(at for at, (one, other) in enumerate(zip(a, b, strict=True)) if are_at_odds(one, other))


def is_within(axes: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether axes stand, in their order, among others."""
    remaining = iter(others)
    return all(axis in remaining for axis in axes)


@lru_cache(maxsize=4096)
def settled(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Dims of which an axis splits at most one: where it stands twice, as in a diagonal block, neither is known."""
    names = [axis for dim in dims for axis in dim.axes or ()]
    if len(names) == len(set(names)):
        return dims
    twice = {axis for axis in names if names.count(axis) > 1}
    return tuple(UNKNOWN if twice.intersection(dim.axes or ()) else dim for dim in dims)


def either(a: Fact, b: Fact) -> Fact:
    """What is known of a value that is the one or the other, as after a branch or a turn of a loop."""
    if a is b or a == b:
        return a
    owed = a.owed & b.owed
    varying = a.varying | b.varying | ((a.owed | b.owed) - owed)
    return Fact(varying, owed - varying, met(a.dims, b.dims))


def differing(fact: Fact, axes: Names) -> Fact:
    """A value that may differ over more axes, as one that a condition chooses which differs there."""
    return fact if axes <= fact.varying else Fact(fact.varying | axes, fact.owed - axes, fact.dims)
