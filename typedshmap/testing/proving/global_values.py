"""How the shards of a value make up a global array, and terms, which say how global arrays are computed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import NamedTuple

from ..._jax.primitives import OPPOSITE_END


class NotKnown(Exception):
    """Raised by a rule for an equation that it does not know; the text is the reason."""


class Gap(Exception):
    """Raised where a proof ends, with the reason and the equation."""

    def __init__(self, why: str, place: str = "") -> None:
        super().__init__(why)
        self.why, self.place = why, place


@dataclass(frozen=True)
class Window:
    """The entries of a global array that the shards have along a sharded dim, if neighbours overlap.

    Attributes:
      axes: the mesh axes of the dim, the major first.
      step: the distance between the first entries of neighbouring shards.
      shared: the number of entries of the array that a shard has beyond ``step``.
      before: the number of unknown entries before them.
      after: the number of unknown entries after them.
    """

    axes: tuple[str, ...]
    step: int
    shared: int = 0
    before: int = 0
    after: int = 0


DimSharding = tuple[str, ...] | Window | None
"""The mesh axes of a dim, the major first; None where a value is the same along the dim, whatever its length."""


def axes_along(dim: DimSharding) -> tuple[str, ...]:
    """The mesh axes of a dim whose parts must not overlap: entries would count twice."""
    if isinstance(dim, Window):
        raise NotKnown("the parts of its shards overlap")
    return dim or ()


class Term(NamedTuple):
    """How a global array is computed: by an operation on other arrays.

    Attributes:
      operation: its name.
      params: other data that determine the result, with global sizes.
      operands: the numbers of its operand terms, each with a factor.
    """

    operation: str
    params: Hashable
    operands: tuple[tuple[Fraction, int], ...]


class TermTable:
    """All terms of a proof: equal terms have the same number."""

    def __init__(self) -> None:
        self.numbers = dict[Term, int]()
        self.known = list[Term]()
        self.places = dict[int, str]()
        self.unit = self.number_of(Term("number", (), ()), "")

    def number_of(self, term: Term, place: str) -> int:
        """The number of a term that is made at a place."""
        number = self.numbers.setdefault(term, len(self.known))
        if number == len(self.known):
            self.known.append(term)
        self.places.setdefault(number, place)
        return number

    def difference(self, expected: int, actual: int) -> int:
        """The innermost operand of the actual term that differs from the expected term; else the term itself."""
        first, second = self.known[expected], self.known[actual]
        if first[:2] == second[:2] and len(first.operands) == len(second.operands):
            for (factor, a), (other_factor, b) in zip(first.operands, second.operands, strict=True):
                if a != b:
                    return self.difference(a, b)
                if factor != other_factor:
                    return b if b != self.unit else actual
        return actual


@dataclass(frozen=True)
class Sharded:
    """A value whose shards hold a global array.

    Attributes:
      term: the number of the term for the global array.
      factor: the factor: the array is the factor times the term.
      dims: the mesh axes of each dim.
      partial: the axes over which the shards hold parts that must still be combined.
      combined_by: ``"sum"``, ``"max"`` or ``"min"``, which combines them; "" without parts.
    """

    term: int
    factor: Fraction
    dims: tuple[DimSharding, ...]
    partial: frozenset[str] = frozenset()
    combined_by: str = ""

    def __post_init__(self) -> None:
        """Require that an axis shards at most one dim, and no dim if the parts over it must still be combined."""
        axes = [*self.partial, *self._placed]
        if len(axes) != len(set(axes)):
            raise NotKnown("its operands are sharded over the same axis in different ways")

    @property
    def _placed(self) -> list[str]:
        return [axis for dim in self.dims if dim for axis in (dim.axes if isinstance(dim, Window) else dim)]

    @property
    def placed(self) -> frozenset[str]:
        """The axes that shard a dim."""
        return frozenset(self._placed)

    @property
    def axes(self) -> frozenset[str]:
        """The axes over which the shards differ."""
        return self.partial | self.placed

    @property
    def layout(self) -> tuple[tuple[DimSharding, ...], frozenset[str], str]:
        """The layout of the array on the shards."""
        return self.dims, self.partial, self.combined_by

    @property
    def is_extreme(self) -> bool:
        """Whether the parts are extremes of shards, which commute only with operations that keep their order."""
        return self.combined_by in OPPOSITE_END

    @property
    def is_zero(self) -> bool:
        """Whether it is zero on every shard; the parts of a sum that is zero may not be zero."""
        return self.factor == 0 and not self.partial

    def times(self, factor: Fraction | int) -> Sharded:
        scaled = replace(self, factor=self.factor * factor)
        return scaled if factor else scaled.partial_over(frozenset(), "")

    def partial_over(self, axes: frozenset[str], by: str) -> Sharded:
        """The same with parts to combine over these axes, if any; zero on all shards has no parts."""
        axes = frozenset[str]() if self.is_zero else axes
        return replace(self, partial=axes, combined_by=by if axes else "")

    def reduced(self, why: str = "its operand is not reduced") -> Sharded:
        """The same; raises for a part of a sum or an extreme."""
        if self.partial:
            raise NotKnown(why)
        return self

    def with_dims(self, dims: Sequence[DimSharding]) -> Sharded:
        return replace(self, dims=tuple(dims))

    def with_dim(self, dim: int, axes: DimSharding) -> Sharded:
        return self.with_dims([*self.dims[:dim], axes, *self.dims[dim + 1 :]])


@dataclass(frozen=True)
class Affine:
    """Integers that are affine in the position within the shard and in the shard's indices.

    Attributes:
      shape: the shape of a shard.
      constant: the number at the first position of the first shard.
      positions: by dim, the increment per position.
      indices: by mesh axis, the increment per shard; none is zero.
    """

    shape: tuple[int, ...]
    constant: int
    positions: tuple[int, ...]
    indices: Mapping[str, int]

    @property
    def number(self) -> int | None:
        """The number, if it is the same everywhere."""
        return None if any(self.positions) or self.indices else self.constant

    def bounds(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """The smallest and the largest of the numbers."""
        spans = [factor * (length - 1) for factor, length in zip(self.positions, self.shape, strict=True)]
        spans += [factor * (sizes[axis] - 1) for axis, factor in self.indices.items()]
        return self.constant + sum(min(0, span) for span in spans), self.constant + sum(max(0, span) for span in spans)

    def plus(self, addend: Affine, times: int = 1) -> Affine:
        """The sum with a multiple of an addend of the same shape."""
        indices = dict(self.indices)
        for axis, step in addend.indices.items():
            indices[axis] = indices.get(axis, 0) + times * step
        return Affine(
            self.shape,
            self.constant + times * addend.constant,
            tuple(a + times * b for a, b in zip(self.positions, addend.positions, strict=True)),
            {axis: step for axis, step in indices.items() if step},
        )

    def sharded(self, sizes: Mapping[str, int]) -> tuple[tuple[DimSharding, ...], Hashable] | None:
        """The axes of each dim, and the global numbers; None if the shards do not hold parts of global numbers."""
        indices, dims, lengths = self.indices, list[DimSharding](), list[tuple[int, int, int]]()
        for dim, (factor, length) in enumerate(zip(self.positions, self.shape, strict=True)):
            axes, indices = split_over(sizes, indices, factor * length) if factor else (None, indices)
            dims.append(axes)
            if axes is not None:
                lengths.append((dim, factor, length * prod(sizes[axis] for axis in axes)))
        return None if indices else (tuple(dims), (self.constant, tuple(lengths)))


def split_over(
    sizes: Mapping[str, int], starts: Mapping[str, int], step: int
) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """The mesh axes of a dim whose parts have a length, and the starts that these axes do not explain.

    A step over an axis continues where the shards of the minor axes end.

    Args:
      sizes: the sizes of the mesh axes.
      starts: by mesh axis, the distance between the parts of neighbouring shards.
      step: the length of a part.
    """
    axes, left = tuple[str, ...](), dict(starts)
    while (axis := next((axis for axis, start in left.items() if start == step), None)) is not None:
        axes, step = (axis, *axes), step * sizes[axis]
        del left[axis]
    return axes, left


OTHER_IDS = "the ids of the shards are not those of their parts of the table"


@dataclass(frozen=True)
class OfIds:
    """A value that a shard computes to look up ids in its part of a table, from the ids minus its own first id.

    Attributes:
      ids: the ids, on all shards.
      start: by mesh axis, the increment of the first id per shard.
      along: by dim, the dim of the ids; None if the value is the same for all entries.
      length: the number of the shard's own ids, if known.
    """

    ids: Sharded
    start: tuple[tuple[str, int], ...]
    along: tuple[int | None, ...]
    length: int | None

    def is_of(self, lookup: OfIds) -> bool:
        """Whether both are about the same ids on the same shards, entry by entry."""
        return (self.ids, self.start, self.along) == (lookup.ids, lookup.start, lookup.along)

    @property
    def dims(self) -> tuple[DimSharding, ...]:
        """The mesh axes of each dim, from those of the ids."""
        return tuple(None if dim is None else self.ids.dims[dim] for dim in self.along)

    def table_axes(self, sizes: Mapping[str, int], length: int) -> tuple[str, ...]:
        """The mesh axes of a table if a shard has a number of its rows."""
        axes, left = split_over(sizes, dict(self.start), length)
        if left or self.length not in (None, length):
            raise NotKnown(OTHER_IDS)
        return axes


class Row(OfIds):
    """The ids minus the shard's own first id; with a length, any row for the ids of other shards."""


@dataclass(frozen=True)
class IsOwn(OfIds):
    """Whether an id is at least the shard's first id, or less than ``length`` above it, or both.

    Attributes:
      is_bounded_below: whether it tests the lower bound.
    """

    is_bounded_below: bool


@dataclass(frozen=True)
class Found(OfIds):
    """The entries at ids in the shard's part of a table.

    Attributes:
      value: the entries, as a global array; arbitrary for ids of other shards.
    """

    value: Sharded


@dataclass(frozen=True)
class Edge:
    """Some entries of a part along a sharded dim, of the shard itself or of another shard.

    Attributes:
      value: the array with the entries.
      dim: the dim.
      start: the first entry.
      stop: the end of the entries.
      length: the number of entries of a part along the dim.
      shift: the number of shards by which they were sent, round a ring.
      end: the shard with another value instead, and that value; None if the ring is closed.
    """

    value: Sharded
    dim: int
    start: int
    stop: int
    length: int
    shift: int = 0
    end: tuple[int, Sharded] | None = None


@dataclass(frozen=True)
class AtShard:
    """The predicate whether this is a certain shard over some axes.

    Attributes:
      axes: the mesh axes, the major first.
      index: the shard's index.
      is_there: the value of the predicate on that shard; the others have the opposite.
    """

    axes: tuple[str, ...]
    index: int
    is_there: bool


@dataclass(frozen=True)
class Unknown:
    """An unknown value.

    Attributes:
      place: the place of the first unknown equation.
      why: the reason.
    """

    place: str
    why: str


GlobalValue = Sharded | Affine | OfIds | Edge | AtShard | Unknown
