"""The lattice of facts about a value in a manual region, per mesh axis and per dim."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from .._jax.primitives import primitive
from ..notation.layout import NO_AXES
from .indices import IndexFact

AxisSet = frozenset[str]
Groups = tuple[tuple[int, ...], ...]


Part = tuple[tuple[str, ...], int]
"""A part of a merged dim: the mesh axes that it is sharded over, major to minor, and its size on a shard."""


class DimFact(NamedTuple):
    """A fact about one dim.

    Attributes:
      axes: the mesh axes that it is sharded over, major to minor; None if they are unknown.
      from_claim: whether only a claim says so. The dim may belong to the shard alone, although the claim calls it a
        part of a global dim, so it is not tracked through a reshape.
      gathered: the axes, in this order, over which the dim was gathered although it is sharded in another order. For an
        unsharded dim: the axes whose shards a gather stacked along it.
      parts: the parts that the dim is merged from, major to minor, if its shards are interleaved, or its axes are
        movable or only claimed.
      is_movable: whether the axes may belong to another dim instead, since a reshape of a shard split the dim: sharded
        rows of microbatches have the same layout as sharded microbatches.
      is_sent: whether its shards were sent along the axes, as in a ring, so that a shard may hold all of them in turn.
      is_either: whether the axes may be those of the next dim: a reshape added or removed a dim of size 1 there. So a
        sum over only this dim need not be a partial sum.
      woven: axes over which the shards do not follow each other along the dim: they shard a more major dim, or the dim
        is the same along them.
      apart: the axes whose shards a gather stacked along another dim, whose minor part is this dim.
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
    """A fact about a value.

    Attributes:
      varying: the mesh axes over which its shards may differ.
      unreduced: the axes over which every shard holds an addend, as a hint or a pattern states; they are not varying.
      dims: its dims.
      due: the axes over which every shard holds an addend because a dim sharded over them was summed; not varying if
        all shards held the same part.
      is_zero: whether it is all zeros, which are an addend over any axis.
      number: an integer that is computed from the shard's indices.
      groups: some axes, and groups of their shards, numbered together, within which a varying value is the same.
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
    """A value with unknown dims."""
    return ShardingFact(varying, NO_AXES, (UNKNOWN,) * rank)


def varying_of(facts: Iterable[ShardingFact]) -> AxisSet:
    """The axes over which a function of these values may vary."""
    axes = NO_AXES
    for fact in facts:
        if not (fact.varying <= axes and fact.unreduced <= axes):
            axes = axes | fact.varying | fact.unreduced
    return axes


@lru_cache(maxsize=4096)
def combine(name: str, facts: tuple[ShardingFact, ...], dims: tuple[DimFact, ...]) -> ShardingFact:
    """The fact of a result with these dims, of an operation on some operands.

    It is an addend over an axis if its terms are addends, or do not vary, and its factors do not vary. A sum of an
    addend and an invarying value stays an addend, so that later operations can be judged.
    """
    varying, unreduced, due = varying_of(facts), NO_AXES, NO_AXES
    ways = primitive(name).linear_in(facts)
    if any(all(term.is_zero for term in terms) for terms, _ in ways):
        return ShardingFact(varying, NO_AXES, dims, is_zero=True)
    for axis in NO_AXES.union(*[fact.unreduced | fact.due for fact in facts]) if ways else ():
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
    """The axes over which each shard has a part of a sum over these dims.

    If shards were sent along a dim, as in a ring, a shard may have summed all of it. A dim that may be sharded instead
    of its neighbor does not count.
    """
    axes, sent = NO_AXES, NO_AXES
    for dim in dims:
        if dim.axes and not dim.is_either:
            axes, sent = axes.union(dim.axes), sent.union(dim.axes) if dim.is_sent else sent
    return axes - sent


def join_dims(a: DimFact, b: DimFact) -> DimFact:
    """A dim of an elementwise result of two values, or of a value that is one of the two.

    An unsharded dim agrees with every other dim: it is a constant, or the same for the part of every shard.
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
    return a if a == b else drop_repeated_axes(tuple(map(join_dims, a, b)))


def is_conflict(a: DimFact, b: DimFact) -> bool:
    """Whether the shardings of two combined dims conflict, so that neither refines the other."""
    if not a.from_claim and not b.from_claim and (_is_woven(a, b) or _is_woven(b, a)):
        return True
    if not a.axes or not b.axes or a.is_movable or b.is_movable:
        return False
    return not is_within(a.axes, b.axes) and not is_within(b.axes, a.axes)


def _is_woven(a: DimFact, b: DimFact) -> bool:
    """Whether axes that shard one dim in order do not shard the other dim in order."""
    woven = a.woven if a.axes is not None or not a.parts else a.known_axes
    return bool(b.axes) and not b.is_movable and not set(woven).isdisjoint(b.axes)


@lru_cache(maxsize=4096)
def conflicting_dims(a: tuple[DimFact, ...], b: tuple[DimFact, ...]) -> tuple[int, ...]:
    """The dims of two values that conflict."""
    return tuple(at for at, is_wrong in enumerate(map(is_conflict, a, b)) if is_wrong)


def is_within(axes: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether axes are a subsequence of others."""
    remaining = iter(others)
    return all(axis in remaining for axis in axes)


@lru_cache(maxsize=4096)
def drop_repeated_axes(dims: tuple[DimFact, ...]) -> tuple[DimFact, ...]:
    """Dims that share no axis: two dims sharded over one axis, as in a diagonal block, are unknown."""
    names = [axis for dim in dims for axis in dim.known_axes]
    if len(names) == len(set(names)):
        return dims
    twice = {axis for axis in names if names.count(axis) > 1}
    return tuple(UNKNOWN if twice.intersection(dim.known_axes) else dim for dim in dims)


def parts_of(dim: DimFact, size: int) -> tuple[Part, ...] | None:
    """The parts from which a dim of this size on a shard is merged, major to minor; None if they are unknown."""
    if dim.gathered:
        return None
    return dim.parts or (((dim.axes, size),) if dim.axes is not None else None)


def certain(dim: DimFact) -> DimFact:
    """The fact of a dim without claims."""
    if dim.gathered:
        return dim._replace(is_movable=False, from_claim=False)
    return merge_parts(dim.parts)._replace(woven=dim.woven) if dim.parts else dim


@lru_cache(maxsize=4096)
def certain_dims(dims: tuple[DimFact, ...]) -> tuple[DimFact, ...]:
    """The facts of dims without claims."""
    return tuple(certain(dim) for dim in dims)


def merge_parts(parts: Iterable[Part]) -> DimFact:
    """A dim merged from these parts: sharded over the axes of all, major to minor, unless shards interleave."""
    merged = normal_parts(parts)
    if len(merged) > 1:
        return DimFact(None, parts=tuple(merged))
    return DimFact(merged[0][0]) if merged and merged[0][0] else UNSHARDED


def normal_parts(parts: Iterable[Part]) -> list[Part]:
    """The fewest parts of a dim: a part absorbs the next part if that is unsharded, or if it has only one element."""
    merged: list[Part] = []
    for axes, size in parts:
        if merged and (merged[-1][1] == 1 or not axes):
            major, count = merged.pop()
            axes, size = major + axes, count * size
        if axes or size > 1:
            merged.append((axes, size))
    return merged


def join(a: ShardingFact, b: ShardingFact) -> ShardingFact:
    """The fact of a value that is one of two, as after a branch or an iteration of a loop."""
    if a is b or a == b:
        return a
    varying, dims = a.varying | b.varying | a.unreduced | b.unreduced, join_all_dims(a.dims, b.dims)
    terms = [fact for fact in (a, b) if not fact.is_zero]
    if not terms:
        return ShardingFact(varying, NO_AXES, dims, is_zero=True)
    addends = frozenset.intersection(*[fact.unreduced | fact.due for fact in terms])
    unreduced = addends & NO_AXES.union(*[fact.unreduced for fact in terms])
    return ShardingFact(varying - unreduced, unreduced, dims, addends - unreduced)


def add_varying(fact: ShardingFact, axes: AxisSet) -> ShardingFact:
    """A value that varies over more axes, such as a choice by a varying predicate."""
    if axes <= fact.varying and fact.groups is None and axes.isdisjoint(fact.due):
        return fact
    return ShardingFact(fact.varying | axes, fact.unreduced - axes, fact.dims, fact.due - axes)
