"""The domain of kinds: what the shards of a mesh axis hold of a value, and the degree of the global value.

On an axis of size n the global value is n to the power of its degree, times what the same program computes on one
shard."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Literal, NamedTuple

KindOfShare = Literal[
    "same",  # the same on every shard
    "local",  # the same on every shard, and not constant along a dim that is as long as a shard's rows
    "sharded",  # the shards hold the parts of a dim, in order
    "sum",  # a partial sum: the shards hold addends, perhaps with a term beside them that every shard has
    "extreme",  # a partial maximum or minimum
    "gathered",  # the values of all shards, stacked along a new dim
    "own",  # each shard's own
    "unknown",
]
Trait = Literal[
    "",
    # Of a mask:
    "one",  # true on one shard
    "others",  # true on all shards but one
    "some",  # true on some shards, by their indices
    "below",  # a position within the shard's block is below a bound
    "from",  # not below the first position of the shard's block
    "to",  # not above the last one
    "block",  # both
    "finite",  # whether an entry is finite
    "flag",  # the number 1 on the shards that have a true entry
    # Of an index:
    "offset",  # a position relative to the shard's block
    "clipped",  # the same, moved into the block
    "wrapped",  # the same, with negative positions counted from the end
    # Of entries:
    "found",  # looked up in the shard's rows, and right only for a position in its block
    "picked",  # a partial sum in which one shard has each entry, and the others have zero
    "folded",  # the sums, or some mix, of rows of different shards
    "drawn",  # random numbers
    "taken",  # a slice that is as long as a shard's rows
    "sent",  # received from another shard
    "halo",  # the shard's rows, and some of its neighbours'
]
"""What else is known of a value, for operations that recognise it."""


class Form(NamedTuple):
    """A degree that depends on numbers whose degree one trace does not show.

    Attributes:
      constant: the known part of the degree.
      numbers: these numbers, each with its power as a factor.
    """

    constant: Fraction
    numbers: tuple[tuple[Any, Fraction], ...]


Degree = int | Fraction | Form | str
"""A power of the size of the axis; ``any`` or ``unknown``."""
ANY = "any"
"""The degree of zeros, which are n to any power times themselves."""
UNKNOWN = "unknown"


class Ring(NamedTuple):
    """A sum of the values of several shards, accumulated by a ring of ``ppermute``.

    Attributes:
      base: the number of the value that is sent around.
      value: that value.
      offsets: the shards whose values are in the sum, by their distance from the shard itself.
    """

    base: Any
    value: Share
    offsets: frozenset[int]


class Share(NamedTuple):
    """An abstract value over one axis.

    *Parts.* A shard's addend of a partial sum, or its term of a partial extreme, is a part. It has a number, by which
    it is recognised wherever it is used.

    *Symbols.* A quantity that differs between the shards may be used as if it were the global one, and cancel later:
    ``m`` in ``exp(s - m) / psum(sum(exp(s - m)))``. So a value keeps such quantities as symbols, each with its
    coefficient in a sum, or its exponent in a product. A result is wrong if symbols remain in it. `Ledger.losses` has
    the operation that made each symbol.

    *Reach.* A collective over the axis, or the index of the shard, reaches all values computed from its result. A
    result that is each shard's own is surely wrong only if nothing has reached it.

    Attributes:
      kind: what the shards hold.
      degree: the degree of the global value.
      beside: for a partial sum, the degree of the term that every shard has beside its addend; None without a term.
      dim: the sharded dim, or the dim of kind ``local`` or ``gathered``; ``"rows"`` within a loop over it.
      order: for a sharded dim, 0 if its rows are in global order; k if they are in k pieces, each in global order; -1
        otherwise.
      end: for an extreme, ``max`` or ``min``.
      part: the number of a part.
      role: the role of the symbols: terms (``+``), factors (``*``), or another role (``?``).
      symbols: the symbols, each with its coefficient or exponent.
      may_cancel: whether symbols may have cancelled in a way that is not tracked, so that nothing is suspected.
      is_square: whether the symbols come from a product of parts, as in a second moment.
      root: the function by which it is computed from another value, and that value: ``log``, ``exp``, ``sqrt``,
        ``inverse``, ``gathered``; ``mean`` with the dims along which the divisor of a mean is broadcast; ``block`` with
        the sizes of a shard's block in each trace.
      reduced: the parts that collectives have reduced in its computation.
      is_reached: whether a collective or the shard's index has reached it.
      number: for a scalar, its number in each trace.
      affine: for a scalar ``a + b * axis_index``, a and b in each trace.
      trait: another property.
      is_positive: whether no entry is negative.
      name: the name of the sharded dim in a hint, and the argument.
      origin: for kind ``own`` or ``unknown``, the key in `Ledger.origins` of the equation where it got this kind.
      ring: the shards whose values it has, if a ring sends it around.
      is_plain: whether it is only known to be the same, or sharded in order, with degree 0.
    """

    kind: KindOfShare = "same"
    degree: Degree = 0
    beside: Degree | None = None
    dim: int | str | None = None
    order: int = 0
    end: str = ""
    part: Any = None
    role: str = ""
    symbols: frozenset[tuple[Any, Fraction | int]] = frozenset()
    may_cancel: bool = False
    is_square: bool = False
    root: tuple[str, Any] | None = None
    reduced: frozenset[Any] = frozenset()
    is_reached: bool = False
    number: tuple[Any, ...] | None = None
    affine: tuple[tuple[Any, Any], ...] | None = None
    trait: Trait = ""
    is_positive: bool = False
    name: tuple[str, str] = ("", "")
    origin: Any = None
    ring: Ring | None = None
    is_plain: bool = False

    def but(self, **changes: Any) -> Share:
        """The same with some changes; since it is another value, no ring sends it around."""
        return self._replace(is_plain=False, ring=None, **changes)

    @property
    def is_zero(self) -> bool:
        """Whether it is all zeros."""
        return self.degree == ANY and self.kind in ("same", "sharded", "local") and not self.symbols

    @property
    def is_common(self) -> bool:
        """Whether it is the same on every shard, without symbols."""
        return self.kind == "same" and not self.symbols

    @property
    def is_part(self) -> bool:
        """Whether it is a part of a sum or an extreme over the shards."""
        return self.kind in ("sum", "extreme")

    @property
    def reached(self) -> Share:
        """The same, reached by a collective or an index."""
        return self if self.is_reached else self.but(is_reached=True)

    @property
    def without_number(self) -> Share:
        """The same, with an unknown number."""
        return self.but(number=None, affine=None) if self.number is not None or self.affine is not None else self

    @property
    def accumulated(self) -> Share:
        """The sum of its rows, or of rows that a psum has combined."""
        if self.kind == "local" and self.trait == "folded":
            return self.but(kind="same", dim=None, trait="")
        return self if self.kind != "sharded" else Share("sum", self.degree, **reach_of(self), **self.symbol_fields)

    @property
    def with_untracked_symbols(self) -> Share:
        """The same, with untracked symbols, since entries with other symbols are added to it."""
        return self.but(role="?") if self.role == "+" else self

    @property
    def symbol_fields(self) -> dict[str, Any]:
        """The fields of its symbols, for a value that is computed only from it."""
        return {"role": self.role, "symbols": self.symbols, "may_cancel": self.may_cancel, "is_square": self.is_square}


SAME, NOT_KNOWN = Share(is_plain=True), Share("unknown", UNKNOWN)
NO_PARTS: frozenset[Any] = frozenset()


def is_plain(value: Share) -> bool:
    """The value of ``is_plain``, from all other fields."""
    return (
        value.kind in ("same", "sharded")
        and value.degree == 0
        and not value.symbols
        and not value.order
        and value.dim != "rows"
        and value.number is None
        and value.affine is None
        and not value.trait
        and not value.may_cancel
        and not value.is_square
        and value.ring is None
        and (value.root is None or value.root[0] == "mean")
    )


def is_negative(part: Any) -> bool:
    """Whether the number of a part is that of the negative of another part."""
    return isinstance(part, tuple) and part[0] == "negative"


def unknown(values: Iterable[Share], is_reached: bool = False) -> Share:
    """An unknown result of some values; it is reached if one of them is."""
    return NOT_KNOWN.reached if is_reached or any(value.is_reached for value in values) else NOT_KNOWN


def sum_of(a: Degree, b: Degree, times: int | Fraction = 1) -> Degree:
    """The degree a + times * b: that of a product, if the second factor is to the power ``times``."""
    if a == ANY or b == ANY:
        return ANY if a == ANY or times > 0 else a
    if a == UNKNOWN or b == UNKNOWN:
        return UNKNOWN
    if b == 0:
        return a
    if not isinstance(a, Form) and not isinstance(b, Form):
        return as_integer(a + times * b)  # type: ignore[operator]
    first = a if isinstance(a, Form) else Form(Fraction(a), ())
    second = b if isinstance(b, Form) else Form(Fraction(b), ())
    numbers = dict(first.numbers)
    for number, count in second.numbers:
        numbers[number] = numbers.get(number, Fraction(0)) + times * count
    return form(first.constant + times * second.constant, numbers.items())


def form(constant: Fraction | int, numbers: Iterable[tuple[Any, Fraction]]) -> Degree:
    """The degree of a product of numbers; a fraction if their powers cancel."""
    kept = tuple(sorted(((number, count) for number, count in numbers if count), key=lambda power: str(power[0])))
    return Form(Fraction(constant), kept) if kept else as_integer(constant)


def as_integer(degree: Fraction | int) -> Fraction | int:
    """A degree, as an int if it is integral."""
    return int(degree) if degree.denominator == 1 else degree


def scaled(value: Share, by: Degree) -> Share:
    """A value times a number of a degree."""
    if by == 0:
        return value
    beside = None if value.beside is None else sum_of(value.beside, by)
    return value.but(degree=sum_of(value.degree, by), beside=beside, number=None, affine=None)


def add_symbols(a: Iterable[tuple[Any, Any]], b: Iterable[tuple[Any, Any]]) -> frozenset[tuple[Any, Any]]:
    """The symbols of a sum or a product: coefficients add up, and may cancel."""
    total: dict[Any, Any] = {}
    for symbol, coefficient in (*a, *b):
        total[symbol] = total.get(symbol, 0) + coefficient
    return frozenset((symbol, coefficient) for symbol, coefficient in total.items() if coefficient)


def untracked_symbols(*values: Share) -> frozenset[tuple[Any, Any]]:
    """The symbols of some values, for a result in which they have another role."""
    return frozenset((symbol, 0) for value in values for symbol, _ in value.symbols)


def untracked(*values: Share) -> dict[str, Any]:
    """The fields of the symbols of a result in which those of some values have another role."""
    symbols = untracked_symbols(*values)
    return {"role": "?" if symbols else "", "symbols": symbols, "may_cancel": any(value.may_cancel for value in values)}


def reach_of(*values: Share) -> dict[str, Any]:
    """The fields for the collectives that have reached a result of some values."""
    reduced, is_reached = NO_PARTS, False
    for value in values:  # this runs for most equations, and a comprehension is a call
        reduced |= value.reduced
        is_reached = is_reached or value.is_reached
    return {"reduced": reduced, "is_reached": is_reached}
