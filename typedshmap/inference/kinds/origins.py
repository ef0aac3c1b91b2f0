"""Where a sum, an extreme, or each shard's own began, and how it was lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from ... import _jax
from .numbers import Numbers
from .value import Share, is_negative

_NOT_OF_ROWS = frozenset(["collective", "index", "random", "branch", "loop", "outside", "opaque"])


class Loss(NamedTuple):
    """How something that is each shard's own came into a value.

    Attributes:
      why: how, for a message; with what it was lost to.
      eqn: at which equation.
      calls: those around it.
      parts: the parts of a sum or an extreme that were lost.
      is_soft: whether it is an operation on a shard's own rows alone, which is right where others join in.
      is_common: whether it is the same on every shard after all, as a bound that a collective found.
      degree: the largest one of what came together there, as far as it is known.
      name: what the hints call a dim of an operand that is sharded, and the argument.
    """

    why: str
    eqn: Any
    calls: tuple[Any, ...]
    parts: frozenset[Any]
    is_soft: bool = False
    is_common: bool = False
    degree: Any = 0
    name: tuple[str, str] = ("", "")

    @property
    def is_of_slice(self) -> bool:
        """Whether a shard's own part of a partial sum was taken, which others may be added to."""
        return self.why in ("takes its own slice of a partial sum", "takes its own entries of a partial sum")


class Beginning(NamedTuple):
    """Where something began.

    Attributes:
      eqn: the equation; None for an argument.
      calls: those around it, from within.
      name: what the hints call a dim of an operand that is sharded, and the argument.
    """

    eqn: Any
    calls: tuple[Any, ...] = ()
    name: tuple[str, str] = ("", "")

    @property
    def is_marked(self) -> bool:
        """Whether a hint says so."""
        return self.eqn is None or self.eqn.primitive.name == _jax.jaxpr.CLAIM

    @property
    def is_of_rows(self) -> bool:
        """Whether an operation made it of what a shard holds, and of nothing else."""
        return self.eqn is not None and _jax.primitives.primitive(self.eqn.primitive.name).kind not in _NOT_OF_ROWS

    @property
    def written(self) -> Any:
        """Of the equation and those around it the innermost that the user wrote, none of a library's jaxprs."""
        for eqn, caller in zip((self.eqn, *self.calls), (*self.calls, None), strict=True):
            inner = _jax.jaxpr.inner_jaxprs(caller) if caller is not None else ()
            jaxpr = _jax.jaxpr.owner_of(eqn, inner)
            if eqn is not None and _jax.source.is_written_in(eqn, jaxpr):
                return eqn
        return self.eqn

    @property
    def gradient(self) -> Any:
        """The equation, or one around it, that differentiation made by transposing; None if none was."""
        eqns = () if self.is_marked else (self.eqn, *self.calls)
        return next((eqn for eqn in eqns if _jax.jaxpr.is_transposed(eqn)), None)

    @property
    def place(self) -> str:
        """Where the user wrote that, or called what it is in; of a gradient where it was asked for."""
        if self.gradient is not None:
            return _jax.source.gradient_place(self.gradient)
        return "" if self.eqn is None else _jax.source.equation_place(self.written)


def is_extreme(origin: Beginning) -> bool:
    """Whether what began there is an extreme, and no sum."""
    if origin.eqn is None:
        return False
    primitive = _jax.primitives.primitive(origin.eqn.primitive.name)
    return primitive.kind in ("reducing", "extreme") and primitive.end != ""


class Ledger:
    """What a reading over one axis notes of where parts began, and of how they were lost.

    Args:
      axis: the axis.
      numbers: what the numbers of the region are.
    """

    def __init__(self, axis: str, numbers: Numbers) -> None:
        self.axis, self.numbers = axis, numbers
        self.changes = 0
        """How often something was noted."""
        self.losses = dict[Any, Loss]()
        self.makers = dict[Any, Beginning]()
        """By a part, where it was made."""
        self.twins = defaultdict[Any, list[Beginning]](list)
        """By a part, where the same was made once more."""
        self.ends = dict[int, str]()
        """By the id of an equation that makes an extreme, which."""
        self.earlier = dict[Any, Any]()
        """By a part, another one of which an operation made it, entry by entry."""
        self.marked = set[Any]()
        """The parts of which a hint says that their sum is due."""
        self.stated = set[Any]()
        """The parts of which a hint says by ``~`` that each shard has its own, and may do with it what it likes."""
        self.sent = list[Beginning]()
        """Where partial sums are sent on: only the author knows what each shard has had in the end."""
        self.origins = dict[Any, Beginning]()
        """By the id of an equation or a part, where a value became each shard's own, or unknown."""
        self.collectives = dict[int, tuple[Any, tuple[Any, ...], Share]]()
        """The collectives over the axis, with those around them and what they are given first."""
        self.claimed = list[tuple[Any, Any, Share]]()
        """What claims are made of: the equation, the claim, and what is known of the value."""

    def since(self, values: Sequence[Share]) -> int | None:
        """Since when one of some values is each shard's own: what shards sent on counts more than anything else."""
        found = [value.since for value in values if value.since is not None]
        return next(filter(self.is_sent, found), found[0] if found else None)

    def is_sent(self, since: Any) -> bool:
        """Whether that is where shards sent on what they hold, or added up what was sent."""
        eqn = self.origins[since].eqn
        is_sending = eqn is not None and _jax.jaxpr.collective_operation(eqn) == "collective-permute"
        return is_sending or (isinstance(since, tuple) and since[0] == "sent")

    def lose(
        self,
        own: Any,
        why: str,
        step: Any,
        values: Sequence[Share] = (),
        is_soft: bool = False,
        is_common: bool = False,
    ) -> Any:
        """Note that something is each shard's own, by which equation it came to be, and how; its number."""
        self.changes += 1
        parts = {value.part for value in values if value.part is not None}
        parts.update(part for value in values for each, _ in value.own for part in self.losses[each].parts)
        found = frozenset(parts) or frozenset({own})
        degrees = [self.numbers.known(value.degree) for value in values]
        degree = max((each for each in degrees if isinstance(each, int | Fraction)), key=abs, default=0)
        loss = Loss(why, step.eqn, step.frame.calls, found, is_soft, is_common, degree, name_of(values))
        self.losses.setdefault(own, loss)
        return own

    def maker_of(self, part: Any) -> Beginning | None:
        """Where a part was made, or that of which it is the negative."""
        return self.makers.get(part[1] if is_negative(part) else part)

    def makers_of(self, parts: Iterable[Any]) -> list[Beginning]:
        """Where some parts were made, each time."""
        found = list[Beginning]()
        for part in parts:
            if (maker := self.maker_of(part)) is not None:
                found += [maker, *self.twins.get(part[1] if is_negative(part) else part, ())]
        return found

    def is_soft(self, value: Share) -> bool:
        """Whether all that is own in a value is what a shard did with its own rows."""
        return bool(value.own) and all(self.losses[own].is_soft for own, _ in value.own)

    def losses_of(self, value: Share) -> tuple[Loss, ...]:
        """How what is own in a value came to be, in the order of the program."""
        names = {own for own, _ in value.own}
        return tuple(loss for own, loss in self.losses.items() if own in names) if names else ()

    def is_marked(self, parts: Iterable[Any]) -> bool:
        """Whether a hint says of one of some parts that it is due."""
        return any(part in self.marked or (part in self.makers and self.makers[part].is_marked) for part in parts)

    def is_of_extremes(self, value: Share) -> bool:
        """Whether all that is own in a value comes of a shard's own extremes."""
        parts = {part for own, _ in value.own for part in self.losses[own].parts} | ({value.part} - {None})
        origins = [self.makers.get(part) for part in parts]
        is_extremes = all(origin is not None and is_extreme(origin) for origin in origins)
        return value.kind == "extreme" or (bool(origins) and is_extremes)

    def softened(self, value: Share, others: Sequence[Share]) -> Share:
        """A value without what a shard did with its own rows alone, where something of other shards joins in."""
        if not value.own or not any(other.is_heard for other in others):
            return value
        own = frozenset(each for each in value.own if not self.losses[each[0]].is_soft)
        if own == value.own:
            return value
        kind = "own" if not own else value.kind
        return value.but(own=own, gauge=value.gauge if own else "", is_heard=True, kind=kind)


def name_of(operands: Sequence[Share]) -> tuple[str, str]:
    """What the hints call the sharded dim of the first operand that has one, and its argument."""
    return next((value.name for value in operands if value.kind == "sharded"), ("", ""))
