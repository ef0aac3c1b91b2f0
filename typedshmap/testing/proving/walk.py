"""Terms over global arrays, as a domain of the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any, TypeGuard

import jax.numpy as jnp
import numpy as np

from ... import _jax
from ...inspection import Interpreter
from .global_values import (
    Affine,
    AtShard,
    DimSharding,
    Edge,
    GlobalValue,
    NotKnown,
    OfIds,
    Sharded,
    Term,
    TermTable,
    Unknown,
    axes_along,
)

PrimitiveRule = Callable[["Walk", Any, list[GlobalValue]], Sequence[GlobalValue]]


class Walk(Interpreter[GlobalValue]):
    """The interpretation of a program in terms.

    Args:
      terms: the terms of this program and of the program with which it is compared.
      rules: the rules, by primitive.
      deadline: the time to give up.
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
        """Within a loop, whose variables differ from those of the enclosing loops."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def variable(self, kind: str, at: int, layout: Sharded) -> Sharded:
        """A carry or a row of a loop, in any iteration."""
        return self.made("variable", (self.depth, kind, at), [], *layout.layout)

    def carried(
        self, start: list[GlobalValue], now: list[GlobalValue], results: list[GlobalValue], times: int
    ) -> list[GlobalValue]:
        """Variables in the layouts of the first iteration's results, which all iterations must keep."""
        pairs = [*zip(map(self.settled, now), results, strict=False)]
        if not times:
            return [self.variable("carry", at, self._joined(*pair)) for at, pair in enumerate(pairs)]
        for carry, result in pairs:
            made = self.settled(result)
            if made.layout != carry.layout and wider(carry, made).layout != carry.layout:
                raise NotKnown("no layout is kept by all iterations")
        return now

    def _joined(self, start: Sharded, result: GlobalValue) -> Sharded:
        with suppress(NotKnown):
            return wider(start, self.settled(result))
        return start

    def unknown(self, error: NotKnown, operands: Sequence[GlobalValue]) -> Unknown:
        """An unknown result, for a reason, or because an operand is unknown."""
        lost = next((value for value in operands if isinstance(value, Unknown)), None)
        return lost or Unknown(self.place, str(error))

    def known(self, make: Callable[..., Sharded], values: Sequence[GlobalValue], *how: Any) -> GlobalValue:
        """A value made from values as global arrays; unknown if one of them is, or if the rule does not know it."""
        try:
            return make(self, *map(self.settled, values), *how)
        except NotKnown as error:
            return self.unknown(error, values)

    def constant(self, value: Any) -> GlobalValue:
        """The value of a constant, the same on every shard."""
        is_array = hasattr(value, "dtype") or isinstance(value, bool | int | float | complex)
        if not is_array or not np.issubdtype(np.asarray(value).dtype, np.generic):
            return Unknown(self.place, "a constant that is not an array")
        array = np.asarray(value)
        free: tuple[DimSharding, ...] = (None,) * array.ndim
        if array.size and (array == array.flat[0]).all():
            entry = array.flat[0].item()
            if isinstance(entry, int | float) and np.isfinite(entry):
                return self.number(fraction_of(entry), free)
            return self.made("constant", (str(array.dtype), repr(entry)), [], free)
        return self.made("constant", (str(array.dtype), array.shape, array.tobytes()), [], ((),) * array.ndim)

    def number(self, factor: Fraction | int, dims: Sequence[DimSharding]) -> Sharded:
        """A number, the same at all entries; a truth value is 0 or 1."""
        return Sharded(self.terms.unit, Fraction(factor), tuple(dims))

    def is_number(self, value: GlobalValue) -> TypeGuard[Sharded]:
        return isinstance(value, Sharded) and (value.term == self.terms.unit or value.is_zero)

    def affine(self, value: GlobalValue, shape: tuple[int, ...] = ()) -> Affine | None:
        """A value as affine integers of a shape; None for other values."""
        if isinstance(value, Affine):
            if value.shape == shape:
                return value
            return None if any(value.positions) else replace(value, shape=shape, positions=(0,) * len(shape))
        if self.is_number(value) and value.factor.denominator == 1:
            return Affine(shape, int(value.factor), (0,) * len(shape), {})
        return None

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
        """The result of an operation on operands with their factors."""
        term = Term(operation, params, tuple((operand.factor, operand.term) for operand in operands))
        number = self.terms.number_of(term, self.place)
        return Sharded(number, factor, tuple(dims), partial, combined_by if partial else "")

    def linear(
        self, operation: str, params: Any, value: Sharded, dims: Sequence[DimSharding], *operands: Sharded
    ) -> Sharded:
        """The result of an operation that is linear in a value, and keeps the order of parts of extremes."""
        operands = (replace(value, factor=Fraction(1)), *operands)
        return self.made(operation, params, operands, dims, value.partial, value.combined_by, value.factor)

    def rearranged(self, operation: str, params: Any, value: Sharded, dims: Sequence[DimSharding]) -> Sharded:
        """As `linear`, for an operation that takes or moves entries: a number stays as it is."""
        return value.with_dims(dims) if self.is_number(value) else self.linear(operation, params, value, dims)

    def settled(self, value: GlobalValue) -> Sharded:
        """A value as a global array."""
        match value:
            case Sharded():
                return value
            case Affine(number=int(number)):
                return self.number(number, (None,) * len(value.shape))
            case Affine():
                layout = value.sharded(self.sizes)
                if layout is None:
                    raise NotKnown("it depends on the index of the shard")
                return self.made("iota", layout[1], [], layout[0])
            case OfIds():
                raise NotKnown("it depends on which ids the shard has")
            case Edge(shift=shift):
                how = "it sends parts of the global array to other shards" if shift else "it works along a sharded dim"
                raise NotKnown(how)
            case AtShard():
                raise NotKnown("it depends on the index of the shard")
            case Unknown(why=why):
                raise NotKnown(why)

    def moved(self, value: Sharded, sources: Sequence[int | None]) -> Sharded:
        """A value whose entry at a place is that of another value at the same place along its source dims.

        Args:
          sources: for each dim of the result the dim of the value; None for a dim along which it is the same.
        """
        dims = moved_dims(value.dims, sources)
        if list(sources) == list(range(len(value.dims))):
            return value.with_dims(dims)
        return self.rearranged("moved", tuple(sources), value, dims)

    def spread(self, lookup: OfIds) -> Sharded:
        """The ids, broadcast to the entries that they determine."""
        return self.moved(lookup.ids, lookup.along)

    def solid(self, value: Sharded, dim: int, length: int) -> Sharded:
        """A value with its global length along a dim, which must not be sharded."""
        if axes_along(value.dims[dim]):
            raise NotKnown("it works along a sharded dim")
        if value.dims[dim] is not None:
            return value
        return self.linear("extent", (dim, length), value, value.with_dim(dim, ()).dims)

    def solid_along(self, eqn: Any, values: Sequence[Sharded], dims: Sequence[int] | None = None) -> list[Sharded]:
        """Operands of an equation, not sharded along some dims; by default along any dim."""
        solid = list[Sharded]()
        for at, value in enumerate(values):
            for dim in range(len(value.dims)) if dims is None else dims:
                value = self.solid(value, dim, operand_shape(eqn, at)[dim])
            solid.append(value)
        return solid

    def longer(self, axes: Sequence[Any]) -> list[str]:
        """The manual axes among some that have more than one shard."""
        return [axis for axis in axes if self.sizes.get(axis, 1) > 1]

    def count(self, axes: Iterable[str]) -> int:
        """The number of shards along some mesh axes."""
        return prod(self.sizes[axis] for axis in axes)

    def named(self, eqn: Any) -> list[str]:
        """The mesh axes of a collective that have more than one shard."""
        if eqn.params.get("axis_index_groups") is not None:
            raise NotKnown("it is among groups of shards")
        return self.longer(_jax.jaxpr.named_axes(eqn))


def moved_dims(dims: Sequence[DimSharding], sources: Sequence[int | None]) -> list[DimSharding]:
    """The dims of a result, by its source dims."""
    if any(axes for dim, axes in enumerate(dims) if dim not in sources):
        raise NotKnown("it drops or repeats a sharded dim")
    return [None if dim is None else dims[dim] for dim in sources]


def joined(first: DimSharding, second: DimSharding) -> DimSharding:
    """The axes of a dim of two values, which must not conflict."""
    if first is None or second is None or first == second:
        return second if first is None else first
    raise NotKnown("its operands are sharded in different ways")


def parts_of(values: Sequence[Sharded], why: str) -> tuple[frozenset[str], str]:
    """The axes over which values are parts that must be combined, and how.

    A zero is a part of any sum; whether it is a part of an extreme depends on the other shards.
    """
    partials = {(value.partial, value.combined_by) for value in values if not value.is_zero}
    has_zeros = any(value.is_zero for value in values)
    partial, by = partials.pop() if partials else (frozenset[str](), "")
    if partials or (has_zeros and any(value.is_extreme for value in values)):
        raise NotKnown(why)
    return partial, by


def wider(value: Sharded, layout: Sharded) -> Sharded:
    """A value in the layout of another value, if both fit: it may be the same along a dim, or zero beside parts."""
    if any(a is not None and b is not None and a != b for a, b in zip(value.dims, layout.dims, strict=True)):
        raise NotKnown("what it chooses between is sharded in different ways")
    partial, by = parts_of([value, layout], "what it chooses between is not reduced alike")
    return replace(value, dims=joined_dims([value, layout]), partial=partial, combined_by=by)


def joined_dims(values: Sequence[Sharded]) -> tuple[DimSharding, ...]:
    """The axes of the dims of values of one shape, perhaps with scalars among them."""
    rank = max(len(value.dims) for value in values)
    dims: tuple[DimSharding, ...] = (None,) * rank
    for value in values:
        if len(value.dims) == rank:
            dims = tuple(map(joined, dims, value.dims))
        elif value.dims:
            raise NotKnown("its operands have different ranks")
    return dims


def fraction_of(number: float) -> Fraction:
    """A number as a fraction; a simple fraction if it is near one."""
    exact = Fraction(number)
    simple = exact.limit_denominator(10**5)
    return simple if simple and abs(simple / exact - 1) < Fraction(1, 10**7) * 2 else exact


def operand_shape(eqn: Any, at: int = 0) -> tuple[int, ...]:
    """The shape of an operand on a shard."""
    return tuple(eqn.invars[at].aval.shape)


def result_shape(eqn: Any) -> tuple[int, ...]:
    """The shape of the first result on a shard."""
    return tuple(eqn.outvars[0].aval.shape)


def params_key(eqn: Any, *leave_out: str) -> tuple[tuple[str, str], ...]:
    """The parameters that determine the result of an equation, besides its operands."""
    return tuple((name, repr(value)) for name, value in sorted(eqn.params.items()) if name not in leave_out)


def is_narrow(dtype: Any) -> bool:
    """Whether floats of a dtype are rounded so much that the order of a sum matters."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def refuse_narrow_sum(eqn: Any, value: Sharded, at: int = 0) -> Sharded:
    """A result; raises if shards add parts of a sum in few bits. A single contraction in few bits counts as exact."""
    if value.combined_by == "sum" and is_narrow(eqn.outvars[at].aval.dtype):
        raise NotKnown("it adds up parts of a sum in few bits")
    return value
