"""What the shards of one mesh axis hold of a value, and how it grows with the size of the axis.

The whole value is n to a degree times what the same program computes on one shard, on an axis of size n."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Literal, NamedTuple

KindOfShare = Literal[
    "same",  # the same on every shard
    "local",  # the same on every shard, and different along a dim as long as a shard's
    "sharded",  # the shards hold the parts of a dim, in order
    "sum",  # the sum over the shards is meant, perhaps with a term beside it that every shard has
    "extreme",  # the maximum over the shards is meant, or the minimum
    "parts",  # what all shards hold, side by side along a dim of its own
    "own",  # each shard's own
    "unknown",
]


class Form(NamedTuple):
    """A degree that depends on those of numbers that one trace does not show.

    Attributes:
      constant: what is known of it.
      numbers: those numbers, each with how often it is in it.
    """

    constant: Fraction
    numbers: tuple[tuple[Any, Fraction], ...]


Degree = int | Fraction | Form | str
"""A power of the size of the axis; ``any`` or ``unknown``."""
ANY = "any"
"""The degree of zeros: every one."""
UNKNOWN = "unknown"


class Ring(NamedTuple):
    """What a shard has added up of a value that is sent around a ring.

    Attributes:
      base: a number of the value, by which it is known.
      value: what is known of it.
      offsets: of which shards, counted from the shard itself.
    """

    base: Any
    value: Share
    offsets: frozenset[int]


class Share(NamedTuple):
    """What is known of a value, over one axis.

    Attributes:
      kind: what the shards hold.
      degree: of the whole.
      beside: of a sum, the degree of the term that every shard has; None without one.
      dim: the dim along which the parts lie; ``"rows"`` in a loop over it.
      order: of a sharded value, how its rows lie: 0 in the order of the whole; k: in k pieces, each in that order;
        -1 otherwise.
      end: of an extreme, ``max`` or ``min``.
      part: of a sum or an extreme, by which the same part is known wherever it is used.
      gauge: how own quantities are in it: added (``+``), as exponents of factors (``*``), or in another way (``?``).
      own: these quantities, each with its coefficient. They cancel.
      may_cancel: whether they may cancel in a way that is not followed.
      is_square: whether they come of a product of parts, as second moments do.
      root: what it is a function of: the function, and the value.
      reduced: the parts that a collective has combined on the way here.
      is_heard: whether something of other shards, or the shard's index, is in it.
      number: of a scalar, what it is in each trace.
      line: the same of ``a + b * axis_index``: in each trace a and b.
      place: what is known of a mask or an index.
      is_positive: whether no entry is negative.
      name: what the hints call the sharded dim, and the argument.
      since: of what is each shard's own, or not known: the equation since which it is.
      ring: of what was sent around a ring, and of sums of that, whose they are.
      is_plain: whether it is only the same, or sharded in order, and of degree 0.
    """

    kind: KindOfShare = "same"
    degree: Degree = 0
    beside: Degree | None = None
    dim: int | str | None = None
    order: int = 0
    end: str = ""
    part: Any = None
    gauge: str = ""
    own: frozenset[tuple[Any, Fraction | int]] = frozenset()
    may_cancel: bool = False
    is_square: bool = False
    root: tuple[str, Any] | None = None
    reduced: frozenset[Any] = frozenset()
    is_heard: bool = False
    number: tuple[Any, ...] | None = None
    line: tuple[tuple[Any, Any], ...] | None = None
    place: str = ""
    is_positive: bool = False
    name: tuple[str, str] = ("", "")
    since: Any = None
    ring: Ring | None = None
    is_plain: bool = False

    def but(self, **changes: Any) -> Share:
        """The same with some changes; another value, of which nobody sent anything on."""
        return self._replace(is_plain=False, ring=None, **changes)

    @property
    def is_zero(self) -> bool:
        """Whether it is nothing but zeros."""
        return self.degree == ANY and self.kind in ("same", "sharded", "local") and not self.own

    @property
    def is_common(self) -> bool:
        """Whether it is the same on every shard, and nothing of a shard's own is in it."""
        return self.kind == "same" and not self.own

    @property
    def is_part(self) -> bool:
        """Whether it is a part of a sum or of an extreme over the shards."""
        return self.kind in ("sum", "extreme")

    @property
    def heard(self) -> Share:
        """The same, with something of other shards in it."""
        return self if self.is_heard else self.but(is_heard=True)

    @property
    def unnumbered(self) -> Share:
        """The same, of which is not known what number it is."""
        return self.but(number=None, line=None) if self.number is not None or self.line is not None else self

    @property
    def accumulated(self) -> Share:
        """Rows of a shard, or what a psum made of such rows, added up."""
        if self.kind == "local" and self.place == "folded":
            return self.but(kind="same", dim=None, place="")
        return self if self.kind != "sharded" else Share("sum", self.degree, **traces_of(self), **self.gauges)

    @property
    def blurred(self) -> Share:
        """The same, whose own terms are not followed any further: entries with other terms are added to it."""
        return self.but(gauge="?") if self.gauge == "+" else self

    @property
    def gauges(self) -> dict[str, Any]:
        """What is own in it, for a value that is computed of it alone."""
        return {"gauge": self.gauge, "own": self.own, "may_cancel": self.may_cancel, "is_square": self.is_square}


SAME, NOT_KNOWN = Share(is_plain=True), Share("unknown", UNKNOWN)
NO_PARTS: frozenset[Any] = frozenset()


def is_plain(value: Share) -> bool:
    """Whether a value is only the same, or sharded in order, and of degree 0."""
    return (
        value.kind in ("same", "sharded")
        and value.degree == 0
        and not value.own
        and not value.order
        and value.dim != "rows"
        and value.number is None
        and value.line is None
        and not value.place
        and not value.may_cancel
        and not value.is_square
        and value.ring is None
        and (value.root is None or value.root[0] == "mean")
    )


def is_negative(part: Any) -> bool:
    """Whether a part is known as minus another one."""
    return isinstance(part, tuple) and part[0] == "negative"


def unknown(values: Iterable[Share], is_heard: bool = False) -> Share:
    """Nothing is known of a result but whether something of other shards may be in it."""
    return NOT_KNOWN.heard if is_heard or any(value.is_heard for value in values) else NOT_KNOWN


def sum_of(a: Degree, b: Degree, times: int | Fraction = 1) -> Degree:
    """The degree of a product: a + times * b."""
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
    """A degree of some numbers; a fraction where they cancel."""
    kept = tuple(sorted(((number, count) for number, count in numbers if count), key=lambda each: str(each[0])))
    return Form(Fraction(constant), kept) if kept else as_integer(constant)


def as_integer(degree: Fraction | int) -> Fraction | int:
    """A degree as an int where it is one."""
    return int(degree) if degree.denominator == 1 else degree


def scaled(value: Share, by: Degree) -> Share:
    """A value times a number of a degree."""
    if by == 0:
        return value
    beside = None if value.beside is None else sum_of(value.beside, by)
    return value.but(degree=sum_of(value.degree, by), beside=beside, number=None, line=None)


def combined(a: Iterable[tuple[Any, Any]], b: Iterable[tuple[Any, Any]]) -> frozenset[tuple[Any, Any]]:
    """Own quantities of a sum: coefficients add, and cancel."""
    total: dict[Any, Any] = {}
    for own, coefficient in (*a, *b):
        total[own] = total.get(own, 0) + coefficient
    return frozenset((own, coefficient) for own, coefficient in total.items() if coefficient)


def anyhow(*values: Share) -> frozenset[tuple[Any, Any]]:
    """Own quantities that are in a result in some other way."""
    return frozenset((own, 0) for value in values for own, _ in value.own)


def blended(*values: Share) -> dict[str, Any]:
    """What is own in a result of some values, in which it is in some other way."""
    own = anyhow(*values)
    return {"gauge": "?" if own else "", "own": own, "may_cancel": any(value.may_cancel for value in values)}


def traces_of(*values: Share) -> dict[str, Any]:
    """What collectives have left in a result of some values."""
    reduced, is_heard = NO_PARTS, False
    for value in values:  # this runs for most equations, and a comprehension is a call
        reduced |= value.reduced
        is_heard = is_heard or value.is_heard
    return {"reduced": reduced, "is_heard": is_heard}
