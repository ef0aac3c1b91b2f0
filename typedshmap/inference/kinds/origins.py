"""Where a sum, an extreme, or each shard's own began, and how it was lost."""

from __future__ import annotations

from typing import Any, NamedTuple

from ... import _jax

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
            jaxpr = next((each for each in inner if any(eqn is one for one in each.eqns)), None)
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


_EXTREMES = frozenset(["reduce_max", "reduce_min", "reduce_or", "reduce_and", "max", "min"])


def is_extreme(origin: Beginning) -> bool:
    """Whether what began there is an extreme, and no sum."""
    return origin.eqn is not None and origin.eqn.primitive.name in _EXTREMES
