"""The lattice of facts: what is known of a value in a manual region, per mesh axis and per dim."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from .._jax.primitives import primitive
from .indices import IndexFact

AxisSet = frozenset[str]
NO_AXES: AxisSet = frozenset()
Groups = tuple[tuple[int, ...], ...]


Part = tuple[tuple[str, ...], int]
"""A part of a merged dim: the mesh axes that it is sharded over, major to minor, and its size on a shard."""


class DimFact(NamedTuple):
    """What is known of one dim.

    Attributes:
      axes: the mesh axes that it is sharded over, major to minor; None where that is not known.
      from_claim: whether it is known from a claim only. Such a dim may be a local one that was taken
        for a part of a global one, so that it is not followed through a reshape.
      gathered: the axes, in this order, over which a dim that is sharded in another order was gathered.
        Those of an unsharded dim are what it counts: a gather put the shards along it.
      parts: what a dim is for certain, where its shards are interleaved, or its axes are movable or only claimed: it is
        merged from these, major to minor.
      is_movable: whether the axes may be taken to belong to another dim instead. A reshape of a shard cut
        the dim in several: sharded rows of microbatches are laid out as sharded microbatches are.
      is_sent: whether its shards were sent on along the axes, as around a ring: over time a shard may hold them all.
      is_either: whether the axes may be those of the dim beside it, for all that is known: a reshape added or removed
        a dim of size 1 there. So it is not known that a sum over this dim alone is due.
      woven: axes over which the shards do not follow each other along it: they shard what is major to it, or it
        has the same numbers along them.
      apart: the axes whose shards a gather put along another dim, of which this is the minor part.
    """

    axes: tuple[str, ...] | None
    from_claim: bool = False
    gathered: tuple[str, ...] = ()
    is_movable: bool = False
    parts: tuple[Part, ...] = ()
    is_sent: bool = False
    is_either: bool = False
    woven: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()

    @property
    def known_axes(self) -> tuple[str, ...]:
        """The mesh axes that it is known to be sharded over, interleaved or not."""
        return self.axes or tuple(axis for axes, _ in self.parts for axis in axes)

    def with_axes(self, axes: tuple[str, ...]) -> DimFact:
        """The same, sharded over other axes."""
        return DimFact(axes, self.from_claim, (), self.is_movable, (), self.is_sent) if axes else UNSHARDED


UNSHARDED, UNKNOWN = DimFact(()), DimFact(None)


class ShardingFact(NamedTuple):
    """What is known of a value.

    Attributes:
      varying: the mesh axes over which its shards may differ.
      unreduced: those over which every shard holds an addend, as a hint or a pattern says; none of them is varying.
      dims: its dims.
      due: the axes over which every shard holds an addend since a dim that was sharded over them was summed; one is not
        varying where all shards held the same part.
      is_zero: whether it is nothing but zeros, which are an addend over any axis.
      number: what it is, for an integer that is computed from the shard's own indices.
      groups: groups of shards, by their numbers along some axes together, within which it is the same though it varies.
    """

    varying: AxisSet
    unreduced: AxisSet
    dims: tuple[DimFact, ...]
    due: AxisSet = NO_AXES
    is_zero: bool = False
    number: IndexFact | None = None
    groups: tuple[tuple[str, ...], Groups] | None = None

    def with_dims(self, dims: Iterable[DimFact]) -> ShardingFact:
        """The same with other dims."""
        return ShardingFact(self.varying, self.unreduced, tuple(dims), self.due, self.is_zero, None, self.groups)


@lru_cache(maxsize=64)
def invarying(rank: int) -> ShardingFact:
    """A value that is the same on every shard, and unsharded."""
    return ShardingFact(NO_AXES, NO_AXES, (UNSHARDED,) * rank)


@lru_cache(maxsize=64)
def zeros(rank: int) -> ShardingFact:
    """Zeros, the same on every shard."""
    return ShardingFact(NO_AXES, NO_AXES, (UNSHARDED,) * rank, is_zero=True)


@lru_cache(maxsize=4096)
def unknown(varying: AxisSet, rank: int) -> ShardingFact:
    """A value about whose dims nothing is known."""
    return ShardingFact(varying, NO_AXES, (UNKNOWN,) * rank)


def varying_of(facts: Iterable[ShardingFact]) -> AxisSet:
    """The axes over which something computed from these values may vary."""
    found = NO_AXES
    for fact in facts:
        if not (fact.varying <= found and fact.unreduced <= found):
            found = found | fact.varying | fact.unreduced
    return found


@lru_cache(maxsize=4096)
def combine(name: str, facts: tuple[ShardingFact, ...], dims: tuple[DimFact, ...]) -> ShardingFact:
    """What is known of a result of these dims, of an operation on some operands.

    Over an axis it is an addend if its terms are, or do not vary, and what scales or places them does not vary. A sum
    to which something was added that is the same on every shard stays one, so that what follows can be judged.
    """
    varying, unreduced, due = varying_of(facts), NO_AXES, NO_AXES
    ways = primitive(name).linear_in(facts)
    if any(all(term.is_zero for term in terms) for terms, _ in ways):
        return ShardingFact(varying, NO_AXES, dims, is_zero=True)
    for axis in frozenset[str]().union(*[fact.unreduced | fact.due for fact in facts]) if ways else ():
        for terms, factors in ways:
            sums = [term for term in terms if axis in term.unreduced or axis in term.due]
            if sums and not any(axis in fact.varying or axis in fact.unreduced for fact in factors):
                others = [term for term in terms if term not in sums and not term.is_zero]
                if not any(axis in term.varying for term in others):
                    is_marked = any(axis in term.unreduced for term in sums)
                    unreduced, due = (unreduced | {axis}, due) if is_marked else (unreduced, due | {axis})
                break
    return ShardingFact(varying - unreduced, unreduced, dims, due)


def summed_axes(dims: Iterable[DimFact]) -> AxisSet:
    """The axes over which each shard has its part of a sum over these dims.

    Of dims whose shards were sent around, as in a ring, a shard may in time have summed all; and of those that may be
    sharded, or the dims beside them, nothing is known.
    """
    axes, sent = NO_AXES, NO_AXES
    for dim in dims:
        if dim.axes and not dim.is_either:
            axes, sent = axes.union(dim.axes), sent.union(dim.axes) if dim.is_sent else sent
    return axes - sent


def join_dims(a: DimFact, b: DimFact) -> DimFact:
    """One dim of a value computed elementwise from two; or that is one of the two.

    An unsharded dim agrees with every other: a constant, or the same numbers in every shard's part.
    """
    if a is b or a == b or b == UNSHARDED:
        return a
    if a == UNSHARDED:
        return b
    if a.axes and a.axes == b.axes:
        is_claimed, is_sent = a.from_claim and b.from_claim, a.is_sent or b.is_sent
        is_movable, is_either = a.is_movable and b.is_movable, a.is_either and b.is_either
        return DimFact(a.axes, is_claimed, (), is_movable, (), is_sent, is_either)
    return UNKNOWN


@lru_cache(maxsize=4096)
def join_all_dims(a: tuple[DimFact, ...], b: tuple[DimFact, ...]) -> tuple[DimFact, ...]:
    """All dims of such a value."""
    return a if a == b else drop_repeated_axes(tuple(join_dims(one, other) for one, other in zip(a, b, strict=True)))


def is_conflict(a: DimFact, b: DimFact) -> bool:
    """Whether two dims that are taken for the same are sharded so that neither refines the other."""
    if not a.from_claim and not b.from_claim and (_is_woven(a, b) or _is_woven(b, a)):
        return True
    if not a.axes or not b.axes or a.is_movable or b.is_movable:
        return False
    return not is_within(a.axes, b.axes) and not is_within(b.axes, a.axes)


def _is_woven(a: DimFact, b: DimFact) -> bool:
    """Whether axes that shard one dim in order do not shard the other one so."""
    woven = a.woven if a.axes is not None or not a.parts else a.known_axes
    return bool(b.axes) and not b.is_movable and not set(woven).isdisjoint(b.axes)


@lru_cache(maxsize=4096)
def conflicting_dims(a: tuple[DimFact, ...], b: tuple[DimFact, ...]) -> tuple[int, ...]:
    """The dims of two values that conflict."""
    return tuple(at for at, (one, other) in enumerate(zip(a, b, strict=True)) if is_conflict(one, other))


def is_within(axes: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether axes are a subsequence of others."""
    remaining = iter(others)
    return all(axis in remaining for axis in axes)


@lru_cache(maxsize=4096)
def drop_repeated_axes(dims: tuple[DimFact, ...]) -> tuple[DimFact, ...]:
    """Dims that share no axis: where two are sharded over one axis, as in a diagonal block, neither is known."""
    names = [axis for dim in dims for axis in dim.known_axes]
    if len(names) == len(set(names)):
        return dims
    twice = {axis for axis in names if names.count(axis) > 1}
    return tuple(UNKNOWN if twice.intersection(dim.known_axes) else dim for dim in dims)


def parts_of(dim: DimFact, size: int) -> tuple[Part, ...] | None:
    """What a dim of so many elements on a shard is merged from, major to minor; None where that is not known."""
    if dim.gathered:
        return None
    return dim.parts or (((dim.axes, size),) if dim.axes is not None else None)


def certain(dim: DimFact) -> DimFact:
    """What a dim is, whatever was claimed of it."""
    if dim.gathered:
        return dim._replace(is_movable=False, from_claim=False)
    return merge_parts(dim.parts)._replace(woven=dim.woven) if dim.parts else dim


@lru_cache(maxsize=4096)
def certain_dims(dims: tuple[DimFact, ...]) -> tuple[DimFact, ...]:
    """What dims are, whatever was claimed of them."""
    return tuple(certain(dim) for dim in dims)


def merge_parts(parts: Iterable[Part]) -> DimFact:
    """A dim merged from these parts: sharded over the axes of all, major to minor, unless that interleaves shards."""
    found = normal_parts(parts)
    if len(found) > 1:
        return DimFact(None, parts=tuple(found))
    return DimFact(found[0][0]) if found and found[0][0] else UNSHARDED


def normal_parts(parts: Iterable[Part]) -> list[Part]:
    """As few parts as make the same dim: one takes in the next one if that is unsharded, or if it has one element."""
    found: list[Part] = []
    for axes, size in parts:
        if found and (found[-1][1] == 1 or not axes):
            major, count = found.pop()
            axes, size = major + axes, count * size
        if axes or size > 1:
            found.append((axes, size))
    return found


def join(a: ShardingFact, b: ShardingFact) -> ShardingFact:
    """What is known of a value that is one of two, as after a branch or an iteration of a loop."""
    if a is b or a == b:
        return a
    varying, dims = a.varying | b.varying | a.unreduced | b.unreduced, join_all_dims(a.dims, b.dims)
    terms = [fact for fact in (a, b) if not fact.is_zero]
    if not terms:
        return ShardingFact(varying, NO_AXES, dims, is_zero=True)
    addends = frozenset.intersection(*[fact.unreduced | fact.due for fact in terms])
    unreduced = addends & frozenset[str]().union(*[fact.unreduced for fact in terms])
    return ShardingFact(varying - unreduced, unreduced, dims, addends - unreduced)


def add_varying(fact: ShardingFact, axes: AxisSet) -> ShardingFact:
    """A value that varies over more axes, as one that a varying condition chooses."""
    if axes <= fact.varying and fact.groups is None and axes.isdisjoint(fact.due):
        return fact
    return ShardingFact(fact.varying | axes, fact.unreduced - axes, fact.dims, fact.due - axes)
