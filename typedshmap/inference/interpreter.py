"""Interpret a jaxpr abstractly: what each of its variables is in a domain, by a rule for each primitive.

A domain is a subclass of `Interpreter`: facts of shardings, shares of the whole, and the terms of `prove`. Equations,
calls, branches and loops are walked here for all of them; a domain's own rules say what it makes of a branch, of a row
that a loop takes, and of what a loop leaves behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from .. import _jax

CLAIM = _jax.jaxpr.CLAIM
V = TypeVar("V")


class Interpreter(ABC, Generic[V]):
    """The abstract interpretation of jaxprs in a domain.

    Attributes:
      rules: by primitive, from the interpreter, an equation and its operands to its results; one for any other, too.
    """

    rules: dict[str, Callable[[Any, Any, list[V]], Sequence[V]]]

    def interpret(self, closed_jaxpr: Any, values: Sequence[V], known: dict[Any, V] | None = None) -> list[V]:
        """What a jaxpr's results are, by its operands.

        Args:
          closed_jaxpr: the jaxpr.
          values: its operands.
          known: where to note what its variables are, for a domain that reads them later.
        """
        jaxpr = getattr(closed_jaxpr, "jaxpr", closed_jaxpr)
        known = {} if known is None else known
        known.update(zip(jaxpr.invars, values, strict=True))
        if jaxpr.constvars:
            known.update(zip(jaxpr.constvars, self.constants(closed_jaxpr), strict=True))
        # This runs for every equation: what is the same for all is looked up once, and calls are spared.
        rules, noted, of_literal = self.rules, self.noted(jaxpr), self.literal
        literal = _jax.versions.extend_core().Literal
        for eqn in jaxpr.eqns:
            operands: list[V] = []
            for at, x in enumerate(eqn.invars):  # in Python 3.11 a comprehension is a call
                operands += (of_literal(x, eqn, at) if x.__class__ is literal else known[x],)
            name = eqn.primitive.name
            results = rules[name](self, eqn, operands)
            for var, value in zip(eqn.outvars, results, strict=True):
                known[var] = self.refined(var, value) if var in noted else value
            if name == CLAIM and eqn.invars[0].__class__ is not literal:
                known[eqn.invars[0]] = results[0]
        return [of_literal(x, None, at) if x.__class__ is literal else known[x] for at, x in enumerate(jaxpr.outvars)]

    def ways(self, eqn: Any, operands: Sequence[V]) -> list[tuple[V, ...]]:
        """Each result of a cond, as its branches make it of their operands."""
        return [*zip(*[self.interpret(branch, operands) for branch in eqn.params["branches"]], strict=True)]

    def while_loop(self, eqn: Any, values: list[V]) -> tuple[list[V], list[V], V]:
        """What a while loop carries before every iteration, what an iteration returns, and its condition."""
        conds, consts, start = _jax.jaxpr.while_operands(eqn, values)
        carry, results = self.loop(eqn.params["body_jaxpr"], consts, start)
        (goes_on,) = self.interpret(eqn.params["cond_jaxpr"], [*conds, *carry])
        return carry, results, goes_on

    def loop(self, body: Any, fixed: Sequence[V], start: list[V], rows: Sequence[V] = ()) -> tuple[list[V], list[V]]:
        """What a loop carries before every iteration, and what an iteration returns, its carry first.

        Args:
          body: the jaxpr of an iteration.
          fixed: its operands that are the same in each.
          start: what it carries at first.
          rows: of what it goes over, that of an iteration.
        """
        iteration = lambda now: self.interpret(body, [*fixed, *now, *rows])  # noqa: E731
        return fixed_point(start, iteration, partial(self.carried, start))

    @abstractmethod
    def literal(self, atom: Any, eqn: Any, at: int) -> V:
        """What a literal is: the operand of an equation at a place, or a result of a jaxpr, where there is none."""

    @abstractmethod
    def constants(self, closed_jaxpr: Any) -> Sequence[V]:
        """What the constants beside a jaxpr are."""

    @abstractmethod
    def opaque(self, eqn: Any, values: list[V]) -> Sequence[V]:
        """The results of a call of which it is not known what it runs."""

    @abstractmethod
    def carried(self, start: list[V], now: list[V], results: list[V], times: int) -> list[V]:
        """What a loop may carry, if an iteration makes these results of what it carries now, after so many others.

        It is to be the same in the end, however much the results change.
        """

    def noted(self, jaxpr: Any) -> Container[Any]:
        """The variables of which more is known than what their equations make of them."""
        return ()

    def refined(self, var: Any, value: V) -> V:
        """What such a variable is."""
        return value


def fixed_point(
    start: list[V], iteration: Callable[[list[V]], list[V]], carried: Callable[[list[V], list[V], int], list[V]]
) -> tuple[list[V], list[V]]:
    """What a loop carries before every iteration, and what an iteration returns, its carry first.

    Args:
      start: what it carries at first.
      iteration: what an iteration makes of that.
      carried: what it may carry, by what it carries now, what an iteration makes of that, and how many were before.
    """
    carry, times = start, 0
    while True:
        results = iteration(carry)
        after = carried(carry, results, times)
        if after == carry:
            return carry, results
        carry, times = after, times + 1


def call(interpreter: Interpreter[V], eqn: Any, values: list[V]) -> Sequence[V]:
    """A call of a jaxpr."""
    jaxpr = _jax.jaxpr.called(eqn)
    if jaxpr is None:
        return interpreter.opaque(eqn, values)
    is_hi = "_prim" in eqn.params  # jax 0.12 has operations that are written in Python
    return interpreter.interpret(jaxpr, values[: len(jaxpr.invars)] if is_hi else values)


def linear_solve(interpreter: Interpreter[V], eqn: Any, values: list[V]) -> Sequence[V]:
    """A solver with a gradient of its own: one of its jaxprs computes the solution."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    first, last = lengths.matvec + lengths.vecmat, sum(lengths)
    return interpreter.interpret(jaxprs.solve, [*values[first : first + lengths.solve], *values[last:]])


CALLS: Mapping[str, Callable[[Any, Any, list[Any]], Sequence[Any]]] = {
    **dict.fromkeys(_jax.primitives.names_of("call"), call),
    "custom_linear_solve": linear_solve,
}
