"""Find the numbers with which a program compares its arguments, so that arguments are drawn on both sides of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from .. import _jax
from .._jax.primitives import primitive
from ..inspection import Interpreter, call
from ..tools.sample.arguments import FlatCall, Inputs
from ..tools.sample.input_plan import ComparedNumber
from .run import FunctionUnderTest


class _ArgumentAt(NamedTuple):
    at: int


Compared = _ArgumentAt | float | None
"""Where a value comes from: an argument, a number in the program, or something that was computed."""


def numbers_compared(subject: FunctionUnderTest, made: Inputs, mesh: Mesh) -> Mapping[str, Collection[ComparedNumber]]:
    """The numbers with which a function compares its arguments, by the name of the argument; empty if it fails."""
    arguments = FlatCall(made, jax.Array)
    with subject.on(mesh), suppress(Exception):  # the first trial also raises and reports it
        jaxpr = jax.make_jaxpr(lambda arrays: arguments.run(subject.mapped(mesh), arrays))(arguments.arrays)
        comparisons = _Comparisons()
        comparisons.interpret(jaxpr, [_ArgumentAt(at) for at in range(len(arguments.arrays))])
        return {arguments.names[at]: numbers for at, numbers in comparisons.numbers.items()}
    return {}


class _Comparisons(Interpreter[Compared]):
    """The arguments and numbers of a program, tracked to comparisons.

    Attributes:
      numbers: the numbers with which an argument is compared, by its position.
    """

    def __init__(self) -> None:
        self.numbers = defaultdict[int, set[ComparedNumber]](set)
        self.rules = defaultdict(lambda: _Comparisons.results_of)

    def literal(self, atom: Any, eqn: Any, at: int) -> Compared:
        value = atom.val
        is_number = np.ndim(value) == 0 and jnp.issubdtype(getattr(value, "dtype", type(value)), jnp.number)
        return float(value) if is_number and not np.iscomplexobj(value) and np.isfinite(value) else None

    def constants(self, closed_jaxpr: Any) -> Sequence[Compared]:
        return [None] * len(_jax.jaxpr.open_jaxpr(closed_jaxpr).constvars)

    def opaque(self, eqn: Any, values: list[Compared]) -> Sequence[Compared]:
        return [None] * len(eqn.outvars)

    def carried(
        self, start: list[Compared], now: list[Compared], results: list[Compared], times: int
    ) -> list[Compared]:
        return now

    def results_of(self, eqn: Any, values: list[Compared]) -> Sequence[Compared]:
        """Interpret one equation; a loop as if it ran once, since its carry is computed."""
        operation = primitive(eqn.primitive.name)
        match operation.kind:
            case "test" | "extreme" if operation.kind == "test" or operation.is_monotone:
                numbers = [value for value in values if isinstance(value, float)]
                for argument in (value for value in values if isinstance(value, _ArgumentAt)):
                    is_equality = operation.kind == "test" and operation.is_commutative
                    self.numbers[argument.at].update(ComparedNumber(number, is_equality) for number in numbers)
            case "call":
                return call(self, eqn, values)
            case "branch":
                self.ways(eqn, values[1:])
            case "loop" if "cond_jaxpr" in eqn.params:
                self.while_loop(eqn, values)
            case "loop":
                self.interpret(eqn.params["jaxpr"], values)
            case _ if operation.is_moving:
                return values[:1] * len(eqn.outvars)
            case _:
                pass
        return self.opaque(eqn, values)
