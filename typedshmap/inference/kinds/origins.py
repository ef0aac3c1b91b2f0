"""Where the parts of a reading were made, where values became each shard's own, and which operations lost parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from ... import _jax
from .loss_kinds import LossKind
from .numbers import Numbers
from .value import Share, is_negative

_NOT_OF_ROWS = frozenset(["collective", "index", "random", "branch", "loop", "outside", "opaque"])


class Loss(NamedTuple):
    """An operation that uses a shard's quantity as if it were the global one, which makes the quantity a symbol.

    Attributes:
      why: its effect.
      eqn: its equation.
      calls: the enclosing equations, innermost first.
      parts: the parts of a sum or an extreme that it loses.
      is_excusable: whether it only works on a shard's own rows: no mistake if other shards' rows join later.
      is_common: whether its result is still the same on every shard, such as a bound computed by a collective.
      degree: the largest known degree of its operands.
      name: the name in a hint of the sharded dim of an operand, and the argument.
    """

    why: LossKind
    eqn: Any
    calls: tuple[Any, ...]
    parts: frozenset[Any]
    is_excusable: bool = False
    is_common: bool = False
    degree: Any = 0
    name: tuple[str, str] = ("", "")


class ValueOrigin(NamedTuple):
    """The equation that gave a value its kind.

    Attributes:
      eqn: the equation; None for an argument.
      calls: the enclosing equations, innermost first.
      name: the name in a hint of the sharded dim of an operand, and the argument.
    """

    eqn: Any
    calls: tuple[Any, ...] = ()
    name: tuple[str, str] = ("", "")

    @property
    def is_marked(self) -> bool:
        """Whether a hint states the kind of the value."""
        return self.eqn is None or self.eqn.primitive.name == _jax.jaxpr.CLAIM

    @property
    def is_of_rows(self) -> bool:
        """Whether an operation computed it from the shard alone."""
        return self.eqn is not None and _jax.primitives.primitive(self.eqn.primitive.name).kind not in _NOT_OF_ROWS

    @property
    def written(self) -> Any:
        """The innermost of this equation and the enclosing ones that is not in a jaxpr of a library."""
        for eqn, caller in zip((self.eqn, *self.calls), (*self.calls, None), strict=True):
            inner = _jax.jaxpr.inner_jaxprs(caller) if caller is not None else ()
            jaxpr = _jax.jaxpr.owner_of(eqn, inner)
            if eqn is not None and _jax.source.is_written_in(eqn, jaxpr):
                return eqn
        return self.eqn

    @property
    def gradient(self) -> Any:
        """The equation or an enclosing equation that is transposed; None if there is none."""
        eqns = () if self.is_marked else (self.eqn, *self.calls)
        return next((eqn for eqn in eqns if _jax.jaxpr.is_transposed(eqn)), None)

    @property
    def place(self) -> str:
        """The user's line that made it; for a transposed equation, the line of the call of ``jax.grad``."""
        if self.gradient is not None:
            return _jax.source.gradient_place(self.gradient)
        return "" if self.eqn is None else _jax.source.equation_place(self.written)


def is_extreme(origin: ValueOrigin) -> bool:
    """Whether the part that was made there is a part of an extreme rather than a sum."""
    if origin.eqn is None:
        return False
    primitive = _jax.primitives.primitive(origin.eqn.primitive.name)
    return primitive.kind in ("reducing", "extreme") and primitive.end != ""


class Ledger:
    """The origins and the losses that a reading over one axis records.

    Args:
      axis: the axis.
      numbers: the degrees of the numbers in the region.
    """

    def __init__(self, axis: str, numbers: Numbers) -> None:
        self.axis, self.numbers = axis, numbers
        self.changes = 0
        """How many notes were made: a jaxpr in which none is made need not be read again."""
        self.losses = dict[Any, Loss]()
        """For each symbol, the operation that made it one."""
        self.makers = dict[Any, ValueOrigin]()
        """For each part, where it was made."""
        self.twins = defaultdict[Any, list[ValueOrigin]](list)
        """For each part, where the same computation is repeated."""
        self.ends = dict[int, str]()
        """By the id of an equation that makes an extreme, its end."""
        self.earlier = dict[Any, Any]()
        """For each part, the part from which an operation computed it, entry by entry."""
        self.marked = set[Any]()
        """The parts that a hint marks with ``+``."""
        self.stated = set[Any]()
        """The parts that a hint marks with ``~``: each shard may do with its own what it likes."""
        self.sent = list[ValueOrigin]()
        """Where a ``ppermute`` sends partial sums: only the author knows which of them a shard has added up."""
        self.origins = dict[Any, ValueOrigin]()
        """By a key (the id of an equation, or a part), where a value became each shard's own, or unknown."""
        self.collectives = dict[int, tuple[Any, tuple[Any, ...], Share]]()
        """By the id of a collective over the axis: the equation, those around it, and its first operand."""
        self.claimed = list[tuple[Any, Any, Share]]()
        """The claims: the equation, the claim, and the value before it."""

    def origin_of(self, values: Sequence[Share]) -> Any:
        """The key of the origin of the first value that has an origin; an origin that is a ``ppermute`` comes first."""
        keys = [value.origin for value in values if value.origin is not None]
        return next(filter(self.is_sent, keys), keys[0] if keys else None)

    def is_sent(self, key: Any) -> bool:
        """Whether an origin is a ``ppermute``, or a sum of sent values."""
        eqn = self.origins[key].eqn
        is_sending = eqn is not None and _jax.jaxpr.collective_operation(eqn) == "collective-permute"
        return is_sending or (isinstance(key, tuple) and key[0] == "sent")

    def lose(
        self,
        symbol: Any,
        why: LossKind,
        step: Any,
        values: Sequence[Share] = (),
        is_excusable: bool = False,
        is_common: bool = False,
    ) -> Any:
        """Record the loss by which a quantity becomes a symbol.

        Args:
          symbol: the symbol, which is returned.
          why: the effect of the operation.
          step: the equation.
          values: its operands.
          is_excusable: as in `Loss`.
          is_common: as in `Loss`.
        """
        self.changes += 1
        parts = {value.part for value in values if value.part is not None}
        parts.update(part for value in values for earlier, _ in value.symbols for part in self.losses[earlier].parts)
        degrees = [self.numbers.known(value.degree) for value in values]
        degree = max((known for known in degrees if isinstance(known, int | Fraction)), key=abs, default=0)
        lost, name = frozenset(parts) or frozenset({symbol}), name_of(values)
        loss = Loss(why, step.eqn, step.frame.calls, lost, is_excusable, is_common, degree, name)
        self.losses.setdefault(symbol, loss)
        return symbol

    def maker_of(self, part: Any) -> ValueOrigin | None:
        """Where a part, or its negative, was made."""
        return self.makers.get(part[1] if is_negative(part) else part)

    def maker_of_loss(self, loss: Loss) -> ValueOrigin | None:
        """Where one of the parts that an operation loses was made; None if unknown."""
        return next((maker for part in loss.parts if (maker := self.maker_of(part)) is not None), None)

    def makers_of(self, parts: Iterable[Any]) -> list[ValueOrigin]:
        """All origins of some parts."""
        origins = list[ValueOrigin]()
        for part in parts:
            if (maker := self.maker_of(part)) is not None:
                origins += [maker, *self.twins.get(part[1] if is_negative(part) else part, ())]
        return origins

    def is_excusable(self, value: Share) -> bool:
        """Whether a value has symbols, and all losses behind them are excusable."""
        return bool(value.symbols) and all(self.losses[symbol].is_excusable for symbol, _ in value.symbols)

    def losses_of(self, value: Share) -> tuple[Loss, ...]:
        """The losses behind the symbols of a value, in the order of the program."""
        symbols = {symbol for symbol, _ in value.symbols}
        return tuple(loss for symbol, loss in self.losses.items() if symbol in symbols) if symbols else ()

    def is_marked(self, parts: Iterable[Any]) -> bool:
        """Whether a hint marks one of some parts with ``+``."""
        return any(part in self.marked or (part in self.makers and self.makers[part].is_marked) for part in parts)

    def is_of_extremes(self, value: Share) -> bool:
        """Whether a value is an extreme, or all its symbols come from parts of extremes."""
        parts = {part for symbol, _ in value.symbols for part in self.losses[symbol].parts} | ({value.part} - {None})
        origins = [self.makers.get(part) for part in parts]
        is_extremes = all(origin is not None and is_extreme(origin) for origin in origins)
        return value.kind == "extreme" or (bool(origins) and is_extremes)

    def excused(self, value: Share, others: Sequence[Share]) -> Share:
        """A value without its excusable symbols, if a collective has reached one of the other operands."""
        if not value.symbols or not any(other.is_reached for other in others):
            return value
        symbols = frozenset(pair for pair in value.symbols if not self.losses[pair[0]].is_excusable)
        if symbols == value.symbols:
            return value
        kind = "own" if not symbols else value.kind
        return value.but(symbols=symbols, role=value.role if symbols else "", is_reached=True, kind=kind)


def name_of(operands: Sequence[Share]) -> tuple[str, str]:
    """The name in a hint of the sharded dim of the first operand that has a name, and the argument."""
    return next((value.name for value in operands if value.kind == "sharded"), ("", ""))
