"""Terms over global arrays, as a domain of the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any, TypeGuard

import numpy as np

from ...inference.interpreter import Interpreter
from .values import (
    Affine,
    AtShard,
    DimSharding,
    Edge,
    GlobalValue,
    LeftRegion,
    NotKnown,
    Sharded,
    ShardIds,
    Term,
    TermTable,
    Truth,
    Unknown,
    Windows,
)

PrimitiveRule = Callable[["Walk", Any, list[GlobalValue]], Sequence[GlobalValue]]


_MOST_ITERATIONS = 4


class OutOfTime(Exception):
    """Raised where reading a program takes too long."""


class Walk(Interpreter[GlobalValue]):
    """The interpretation of a program in terms.

    Args:
      terms: the terms, of this program and of the one that it is compared with.
      rules: by primitive, what its results are.
      deadline: when to give up.
    """

    def __init__(self, terms: TermTable, rules: dict[str, PrimitiveRule], deadline: float) -> None:
        self.terms, self.rules, self.deadline = terms, rules, deadline
        self.sizes = dict[str, int]()
        self.depth = 0
        self.place = ""

    def literal(self, atom: Any, eqn: Any, at: int) -> GlobalValue:
        return self.constant(atom.val)

    def constants(self, closed_jaxpr: Any) -> list[GlobalValue]:
        return list(map(self.constant, getattr(closed_jaxpr, "consts", ())))

    def opaque(self, eqn: Any, values: list[GlobalValue]) -> Sequence[GlobalValue]:
        raise NotKnown(f"nothing is known of {eqn.primitive.name}")

    @contextmanager
    def deeper(self) -> Generator[None]:
        """Within a loop, whose variables are others than those of the loops around it."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def variable(self, kind: str, at: int, layout: Sharded) -> Sharded:
        """What a loop carries, or takes of what it goes over, in any iteration."""
        return self.made("variable", (self.depth, kind, at), [], layout.dims, layout.partial, layout.combined_by)

    def carried(
        self, start: list[GlobalValue], now: list[GlobalValue], results: list[GlobalValue], times: int
    ) -> list[GlobalValue]:
        """Variables, with layouts that every iteration keeps; at first with those of what the first one makes."""
        after = list[GlobalValue]()
        for at, (first, layout, result) in enumerate(zip(start, now, results, strict=False)):
            before, old = self.settled(first), self.settled(layout)
            after.append(
                self._carried(at, before, old, self.settled(result)) if times else self._first(at, old, result)
            )
        if times >= _MOST_ITERATIONS and after != now:
            raise NotKnown("no layout is kept by all iterations")
        return after

    def _first(self, at: int, start: Sharded, result: GlobalValue) -> Sharded:
        with suppress(NotKnown):
            return self.variable("carry", at, wider(start, self.settled(result)))
        return self.variable("carry", at, start)

    def _carried(self, at: int, start: Sharded, now: Sharded, result: Sharded) -> Sharded:
        if result.layout == now.layout:
            return now
        layout = wider(start if start.is_zero else now, result)
        return now if result.is_zero or layout.layout == now.layout else self.variable("carry", at, layout)

    def constant(self, value: Any) -> GlobalValue:
        """What a constant is, the same on every shard."""
        if not hasattr(value, "dtype") and not isinstance(value, bool | int | float | complex):
            return Unknown(self.place, "a constant that is no array")
        if not np.issubdtype(np.asarray(value).dtype, np.generic):
            return Unknown(self.place, "a constant that is no array")
        array = np.asarray(value)
        free: tuple[DimSharding, ...] = (None,) * array.ndim
        if array.size and (array == array.flat[0]).all():
            entry = array.flat[0].item()
            if isinstance(entry, bool):
                return Truth(entry, array.ndim)
            if isinstance(entry, int | float) and np.isfinite(entry):
                return self.number(fraction_of(entry), free)
            return self.made("constant", (str(array.dtype), repr(entry)), [], free)
        if not array.size and array.ndim:
            return Unknown(self.place, "an array without entries")
        return self.made("constant", (str(array.dtype), array.shape, array.tobytes()), [], ((),) * array.ndim)

    def number(self, factor: Fraction, dims: Sequence[DimSharding]) -> Sharded:
        """A number, wherever one looks."""
        return Sharded(self.terms.one, factor, tuple(dims))

    def is_number(self, value: GlobalValue) -> TypeGuard[Sharded]:
        return isinstance(value, Sharded) and (value.term == self.terms.one or value.is_zero)

    def made(
        self,
        operation: str,
        params: Any,
        operands: Sequence[Sharded],
        dims: Sequence[DimSharding],
        partial: frozenset[str] = frozenset(),
        combined_by: str = "",
        factor: Fraction = Fraction(1),
    ) -> Sharded:
        """The result of an operation, of operands with their factors.

        Raises:
          NotKnown: where shards would hold the same axis twice, and so what is no part of the whole.
        """
        term = Term(operation, params, tuple((each.factor, each.term) for each in operands))
        number = self.terms.number_of(term, self.place)
        return Sharded(number, factor, tuple(dims), partial, combined_by if partial else "")

    def settled(self, value: GlobalValue) -> Sharded:
        """A value as that of a global array.

        Raises:
          NotKnown: where it is not known to be one.
        """
        match value:
            case Sharded():
                return value
            case Truth(is_true=is_true, rank=rank):
                return self.made("constant", ("bool", repr(is_true)), [], (None,) * rank)
            case Affine(positions=positions, indices=indices) if not positions and not indices:
                return self.number(Fraction(value.constant), (None,) * len(value.shape))
            case Affine():
                found = value.sharded(self.sizes)
                if found is None:
                    raise NotKnown("it depends on the index of the shard")
                return self.made("iota", found[1], [], found[0])
            case ShardIds(place="ids", start=()):
                return self.spread(value)
            case ShardIds(place="owned", value=Sharded() as owned):
                return self.owned(value, owned)
            case ShardIds():
                raise NotKnown("it depends on which ids the shard has")
            case Windows():
                raise NotKnown("the parts of its shards overlap")
            case Edge(shift=shift):
                how = "it sends parts of the whole to other shards" if shift else "it works along a sharded dim"
                raise NotKnown(how)
            case AtShard():
                raise NotKnown("it depends on the index of the shard")
            case LeftRegion(why=why) | Unknown(why=why):
                raise NotKnown(why)

    def spread(self, lookup: ShardIds) -> Sharded:
        """The ids, each wherever it decides on an entry."""
        dims = [None if dim is None else lookup.ids.dims[dim] for dim in lookup.along]
        if lookup.along == tuple(range(len(lookup.ids.dims))):
            return lookup.ids
        return self.made("spread", lookup.along, [lookup.ids], dims)

    def owned(self, lookup: ShardIds, value: Sharded) -> Sharded:
        """What each shard has for its own ids, and the sum of which over the shards is it for all ids."""
        assert lookup.length is not None
        axes = lookup.axes(self.sizes, lookup.length)
        ids = self.spread(lookup)
        if value.is_extreme or value.partial & ids.axes:
            raise NotKnown("it chooses from what is not reduced")
        count = lookup.length * prod(self.sizes[axis] for axis in axes)
        operand = replace(value, factor=Fraction(1))
        partial = value.partial.union(axes)
        if value.axes.intersection(axes):
            raise NotKnown("it is sharded over the axes of the table")
        return self.made("owned", count, [operand, ids], joined_dims([value, ids]), partial, "sum", value.factor)

    def solid(self, value: Sharded, dim: int, length: int) -> Sharded:
        """A value whose length along a dim is that of the whole.

        Raises:
          NotKnown: where the dim is sharded.
        """
        if value.dims[dim]:
            raise NotKnown("it works along a sharded dim")
        if value.dims[dim] is not None:
            return value
        dims = (*value.dims[:dim], (), *value.dims[dim + 1 :])
        return self.made("extent", (dim, length), [replace(value, factor=Fraction(1))], dims, value.partial,
                         value.combined_by, value.factor)  # fmt: skip

    def unsharded(self, value: GlobalValue, shape: Sequence[int]) -> Sharded:
        """A value that every shard has whole.

        Raises:
          NotKnown: where the shards differ.
        """
        found = self.settled(value)
        if found.partial:
            raise NotKnown("its operand is not reduced")
        for dim, length in enumerate(shape):
            found = self.solid(found, dim, length)
        return found

    def longer(self, axes: Sequence[Any]) -> list[str]:
        """The manual axes among some that have more than one shard."""
        return [axis for axis in axes if self.sizes.get(axis, 1) > 1]


def joined(one: DimSharding, other: DimSharding) -> DimSharding:
    """The axes of a dim of which two values have an entry each.

    Raises:
      NotKnown: where they are sharded in different ways.
    """
    if one is None or other is None or one == other:
        return other if one is None else one
    raise NotKnown("its operands are sharded in different ways")


def wider(one: Sharded, other: Sharded) -> Sharded:
    """The one, in a layout that both have: along a dim of which one is the same, or partial where one is zero.

    Raises:
      NotKnown: where there is none.
    """
    dims = list[DimSharding]()
    for first, second in zip(one.dims, other.dims, strict=True):
        if first is not None and second is not None and first != second:
            raise NotKnown("what it chooses between is sharded in different ways")
        dims.append(second if first is None else first)
    partials = [value for value in (one, other) if not value.is_zero]
    if len({(value.partial, value.combined_by) for value in partials}) > 1:
        raise NotKnown("what it chooses between is not reduced alike")
    partial, by = (partials[0].partial, partials[0].combined_by) if partials else (frozenset[str](), "")
    if len(partials) == 1 and partials[0].is_extreme:
        raise NotKnown("what it chooses between is not reduced alike")
    return replace(one, dims=tuple(dims), partial=partial, combined_by=by)


def joined_dims(values: Sequence[Sharded]) -> tuple[DimSharding, ...]:
    """The axes of the dims of values of one shape."""
    found = values[0].dims
    for value in values[1:]:
        if len(value.dims) != len(found):  # a scalar beside arrays
            found, dims = (found, value.dims) if len(found) > len(value.dims) else (value.dims, found)
            if dims:
                raise NotKnown("its operands have different ranks")
        else:
            found = tuple(map(joined, found, value.dims))
    return found


def fraction_of(number: float) -> Fraction:
    """A number as one divided by another, if it is near a simple one."""
    exact = Fraction(number)
    simple = exact.limit_denominator(10**5)
    return simple if simple and abs(simple / exact - 1) < Fraction(1, 10**7) * 2 else exact


def operand_shape(eqn: Any, at: int = 0) -> tuple[int, ...]:
    """The shape of an operand on a shard."""
    return tuple(eqn.invars[at].aval.shape)


def params_key(eqn: Any, *leave_out: str) -> tuple[tuple[str, str], ...]:
    """What decides on the result of an equation beside its operands."""
    return tuple((name, repr(each)) for name, each in sorted(eqn.params.items()) if name not in leave_out)


def unsharded_along(walk: Walk, eqn: Any, values: Sequence[Sharded], touched: Sequence[int]) -> list[Sharded]:
    """Operands of an equation, none of them sharded along some dims."""
    found = list[Sharded]()
    for at, value in enumerate(values):
        for dim in touched:
            value = walk.solid(value, dim, operand_shape(eqn, at)[dim])
        found.append(value)
    return found
