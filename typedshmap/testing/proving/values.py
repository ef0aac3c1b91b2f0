"""What a value on the shards of a mesh is of a global array, and terms, which say how global arrays are computed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain
from math import prod
from typing import Any, Literal, NamedTuple

DimSharding = tuple[str, ...] | None
"""The mesh axes of a dim, the major first; None where a value is the same along the dim, whatever its length."""


class Term(NamedTuple):
    """How a global array is computed: by an operation of others.

    Attributes:
      operation: its name.
      params: whatever else decides on the result, in sizes of the whole.
      operands: the numbers of the terms that it takes, each with a factor.
    """

    operation: str
    params: Hashable
    operands: tuple[tuple[Fraction, int], ...]


class TermTable:
    """All terms of a proof: those that are equal have the same number."""

    def __init__(self) -> None:
        self.numbers = dict[Term, int]()
        self.known = list[Term]()
        self.places = dict[int, str]()
        self.one = self.number_of(Term("number", (), ()), "")

    def number_of(self, term: Term, place: str) -> int:
        """The number of a term, which is made at a place."""
        number = self.numbers.setdefault(term, len(self.known))
        if number == len(self.known):
            self.known.append(term)
        self.places.setdefault(number, place)
        return number

    def difference(self, one: int, other: int) -> int:
        """The first of the other's operands that is not what the one has there; itself if that is not by them."""
        first, second = self.known[one], self.known[other]
        if first[:2] == second[:2] and len(first.operands) == len(second.operands):
            for (factor, a), (same, b) in zip(first.operands, second.operands, strict=True):
                if a != b:
                    return self.difference(a, b)
                if factor != same:
                    return b if b != self.one else other
        return other


@dataclass(frozen=True)
class Sharded:
    """A value of which the shards hold a global array.

    Attributes:
      term: the number of the term for the global array.
      factor: what the array is times the term.
      dims: the mesh axes of each dim.
      partial: the axes over which the shards hold parts that are yet to be combined.
      combined_by: ``"sum"``, ``"max"`` or ``"min"``, by which they are; "" where there are none.
    """

    term: int
    factor: Fraction
    dims: tuple[DimSharding, ...]
    partial: frozenset[str] = frozenset()
    combined_by: str = ""

    def __post_init__(self) -> None:
        """Require that an axis shards one dim at most, and none if the parts over it are yet to be combined.

        Raises:
          NotKnown: for what is no part of a global array.
        """
        axes = [*self.partial, *(axis for dim in self.dims for axis in dim or ())]
        if len(axes) != len(set(axes)):
            raise NotKnown("its operands are sharded over the same axis in different ways")

    @property
    def layout(self) -> tuple[tuple[DimSharding, ...], frozenset[str], str]:
        """How the shards hold the array."""
        return self.dims, self.partial, self.combined_by

    @property
    def is_extreme(self) -> bool:
        """Whether the parts are the largest or smallest entries of shards, with which only that commutes which keeps
        their order."""
        return self.combined_by in ("max", "min")

    @property
    def axes(self) -> frozenset[str]:
        """The axes over which the shards differ."""
        return self.partial.union(*(dim for dim in self.dims if dim))

    @property
    def is_zero(self) -> bool:
        return self.factor == 0

    def with_dims(self, dims: Sequence[DimSharding]) -> Sharded:
        return replace(self, dims=tuple(dims))


@dataclass(frozen=True)
class Affine:
    """Whole numbers that are linear in the position within the shard and in the shard's indices.

    Attributes:
      shape: the shape of a shard.
      constant: the number at the first position of the first shard.
      positions: by dim, what one position further adds.
      indices: by mesh axis, what one shard further adds.
    """

    shape: tuple[int, ...]
    constant: int
    positions: Mapping[int, int] = field(default_factory=dict[int, int])
    indices: Mapping[str, int] = field(default_factory=dict[str, int])

    def bounds(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """The smallest and the largest of the numbers."""
        spans = [factor * (self.shape[dim] - 1) for dim, factor in self.positions.items()]
        spans += [factor * (sizes[axis] - 1) for axis, factor in self.indices.items()]
        return self.constant + sum(min(0, span) for span in spans), self.constant + sum(max(0, span) for span in spans)

    def plus(self, other: Affine, sign: int = 1) -> Affine:
        """The sum, or the difference, of two of the same shape."""
        return Affine(
            self.shape,
            self.constant + sign * other.constant,
            _sum(self.positions, other.positions, sign),
            _sum(self.indices, other.indices, sign),
        )

    def times(self, factor: int) -> Affine:
        if factor == 0:
            return Affine(self.shape, 0)
        positions = {dim: factor * each for dim, each in self.positions.items()}
        return Affine(
            self.shape, factor * self.constant, positions, {axis: factor * each for axis, each in self.indices.items()}
        )

    def sharded(self, sizes: Mapping[str, int]) -> tuple[tuple[DimSharding, ...], Hashable] | None:
        """The axes of each dim, and what the global numbers are; None where the shards do not hold such.

        A dim is sharded over axes of which each step goes on where the shards of the minor ones end.
        """
        left, dims = dict(self.indices), list[DimSharding]([None] * len(self.shape))
        lengths = list[tuple[int, int, int]]()
        for dim, factor in sorted(self.positions.items()):
            axes, step = tuple[str, ...](), factor * self.shape[dim]
            while (axis := next((axis for axis, each in left.items() if each == step), None)) is not None:
                axes, step = (axis, *axes), step * sizes[axis]
                del left[axis]
            dims[dim] = axes
            lengths.append((dim, factor, self.shape[dim] * prod(sizes[axis] for axis in axes)))
        return None if left else (tuple(dims), (self.constant, tuple(lengths)))


def _sum(one: Mapping[Any, int], other: Mapping[Any, int], sign: int) -> dict[Any, int]:
    found = {key: one.get(key, 0) + sign * other.get(key, 0) for key in chain(one, other)}
    return {key: factor for key, factor in found.items() if factor}


@dataclass(frozen=True)
class Truth:
    """A truth value that is the same at every position of every shard."""

    is_true: bool
    rank: int


IdsKind = Literal["ids", "row", "below", "above", "not below", "not above", "here", "elsewhere", "found", "owned"]


@dataclass(frozen=True)
class ShardIds:
    """What a shard computes to look up ids in its part of a table, from the ids minus the first of its own.

    Attributes:
      place: ``"ids"`` are these; a ``"row"`` is where an id is in the shard's part, if it is there, else any; others
        say whether it is there; what is ``"found"`` is right where it is, and anything elsewhere; what is ``"owned"``
        is zero elsewhere.
      ids: the ids, on all shards.
      start: by mesh axis, what one shard further adds to the first id.
      along: by dim, the dim of the ids; None where it is the same for all entries.
      length: how many ids a shard has, where that is known.
      value: what is found or owned, as a global array.
    """

    place: IdsKind
    ids: Sharded
    start: tuple[tuple[str, int], ...]
    along: tuple[int | None, ...]
    length: int | None = None
    value: Sharded | None = None

    @property
    def key(self) -> Any:
        """What two of them share that are about the same ids on the same shards."""
        return self.ids, self.start, self.along

    def axes(self, sizes: Mapping[str, int], length: int) -> tuple[str, ...]:
        """The mesh axes of a table of which a shard has so many rows.

        Raises:
          NotKnown: where the first ids are not those of its shards.
        """
        found = Affine((length,), 0, {0: 1}, dict(self.start)).sharded(sizes)
        if found is None or (self.length is not None and self.length != length):
            raise NotKnown("the ids of the shards are not those of their parts of the table")
        return found[0][0] or ()


class Window(NamedTuple):
    """Which entries of a global array the shards have along a dim, where these overlap.

    Attributes:
      step: how many entries further those of the next shard begin.
      shared: how many entries of the array a shard has beside so many.
      before: how many entries it has before them, of which nothing is known.
      after: how many behind.
    """

    step: int
    shared: int = 0
    before: int = 0
    after: int = 0


@dataclass(frozen=True)
class Windows:
    """Parts of a global array that overlap, such as those with a halo.

    Attributes:
      value: the array, with the mesh axes of its dims.
      by_dim: the window of each dim that has one, in their order.
    """

    value: Sharded
    by_dim: tuple[tuple[int, Window], ...]


@dataclass(frozen=True)
class Edge:
    """Some entries of a part along a sharded dim, of the shard itself or of another one.

    Attributes:
      value: what they are a part of.
      dim: along which dim.
      start: the first of them.
      stop: where they end.
      length: how many entries along the dim a part has.
      shift: how many shards further they have been sent, round a ring.
      end: the shard where something else takes their place, and what; None where the ring is closed.
    """

    value: Sharded | Windows
    dim: int
    start: int
    stop: int
    length: int
    shift: int = 0
    end: tuple[int, Sharded] | None = None


@dataclass(frozen=True)
class AtShard:
    """Whether this is a certain shard over some axes.

    Attributes:
      axes: the mesh axes, the major first.
      index: the shard's index.
      is_there: what is true there, and not at the others.
    """

    axes: tuple[str, ...]
    index: int
    is_there: bool


@dataclass(frozen=True)
class LeftRegion:
    """What shards hold that is no part of a global array, outside of the region that made it.

    Attributes:
      value: what it is within.
      spec: the PartitionSpec by which it left the region.
      why: the reason why it is no part of a global array.
    """

    value: GlobalValue
    spec: Any
    why: str


@dataclass(frozen=True)
class Unknown:
    """A value of which nothing is known.

    Attributes:
      place: where the first equation is of which nothing is known.
      why: what is not known of it.
    """

    place: str
    why: str


GlobalValue = Sharded | Affine | Truth | ShardIds | Windows | Edge | AtShard | LeftRegion | Unknown


class NotKnown(Exception):
    """Raised by a rule for an equation of which it knows nothing; the text says why."""
