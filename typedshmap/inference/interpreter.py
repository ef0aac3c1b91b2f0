"""Abstract interpretation of a jaxpr: the value of each variable in a domain, by a rule for each primitive.

A domain is a subclass of `Interpreter`: facts of shardings, kinds, and the terms of `prove`. This module handles
equations, calls, branches and loops for all domains."""

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
      rules: by primitive, a function of the interpreter, an equation and its operands that returns its results; with a
        default.
    """

    rules: dict[str, Callable[[Any, Any, list[V]], Sequence[V]]]

    def interpret(self, closed_jaxpr: Any, values: Sequence[V], known: dict[Any, V] | None = None) -> list[V]:
        """The results of a jaxpr for these operands.

        Args:
          closed_jaxpr: the jaxpr.
          values: its operands.
          known: a dictionary that receives the values of its variables, for a domain that reads them later.
        """
        jaxpr = _jax.jaxpr.open_jaxpr(closed_jaxpr)
        known = {} if known is None else known
        known.update(zip(jaxpr.invars, values, strict=True))
        if jaxpr.constvars:
            known.update(zip(jaxpr.constvars, self.constants(closed_jaxpr), strict=True))
        # This runs for every equation, so that attributes are looked up once and calls are avoided.
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
        """For each result of a cond, its values in the branches."""
        return [*zip(*[self.interpret(branch, operands) for branch in eqn.params["branches"]], strict=True)]

    def while_loop(self, eqn: Any, values: list[V]) -> tuple[list[V], list[V], V]:
        """The carry of a while loop before every iteration, the results of an iteration, and its condition."""
        conds, consts, start = _jax.jaxpr.while_operands(eqn, values)
        carry, results = self.loop(eqn.params["body_jaxpr"], consts, start)
        (goes_on,) = self.interpret(eqn.params["cond_jaxpr"], [*conds, *carry])
        return carry, results, goes_on

    def loop(self, body: Any, fixed: Sequence[V], start: list[V], rows: Sequence[V] = ()) -> tuple[list[V], list[V]]:
        """The carry of a loop before every iteration, and the results of an iteration, its carry first.

        Args:
          body: the jaxpr of an iteration.
          fixed: its operands that are the same in every iteration.
          start: the first carry.
          rows: the items of an iteration.
        """

        def iteration(carry: list[V]) -> list[V]:
            return self.interpret(body, [*fixed, *carry, *rows])

        return fixed_point(start, iteration, partial(self.carried, start))

    @abstractmethod
    def literal(self, atom: Any, eqn: Any, at: int) -> V:
        """The value of a literal: an operand of an equation, or a result of a jaxpr, without an equation."""

    @abstractmethod
    def constants(self, closed_jaxpr: Any) -> Sequence[V]:
        """The values of a jaxpr's constants."""

    @abstractmethod
    def opaque(self, eqn: Any, values: list[V]) -> Sequence[V]:
        """The results of a call of an unknown program."""

    @abstractmethod
    def carried(self, start: list[V], now: list[V], results: list[V], times: int) -> list[V]:
        """The possible carry of a loop whose iteration returns these results for the current carry.

        It must reach a fixed point, however the results change.
        """

    def noted(self, jaxpr: Any) -> Container[Any]:
        """The variables with facts that do not follow from their equations."""
        return ()

    def refined(self, var: Any, value: V) -> V:
        """The value of such a variable."""
        return value


def fixed_point(
    start: list[V], iteration: Callable[[list[V]], list[V]], carried: Callable[[list[V], list[V], int], list[V]]
) -> tuple[list[V], list[V]]:
    """Iterate to a fixed point from `start`, and return it with the results of the last iteration.

    Args:
      start: the first carry.
      iteration: returns the results of an iteration for a carry.
      carried: returns the possible carry for the current carry, the results of an iteration, and the number of earlier
        iterations.
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
    called = _jax.jaxpr.called_with(eqn, values)
    return interpreter.opaque(eqn, values) if called is None else interpreter.interpret(*called)


def linear_solve(interpreter: Interpreter[V], eqn: Any, values: list[V]) -> Sequence[V]:
    """A solver with its own gradient: one of its jaxprs computes the solution."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    first, last = lengths.matvec + lengths.vecmat, sum(lengths)
    return interpreter.interpret(jaxprs.solve, [*values[first : first + lengths.solve], *values[last:]])


CALLS: Mapping[str, Callable[[Any, Any, list[Any]], Sequence[Any]]] = {
    **dict.fromkeys(_jax.primitives.names_of("call"), call),
    "custom_linear_solve": linear_solve,
}
