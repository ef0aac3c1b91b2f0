"""The domain of facts: how each value of a manual region is sharded, and over which axes it varies.

Invariant: a jaxpr is interpreted once for each list of facts of its operands. Observations before the fixed point of a
loop do not count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from .. import _jax
from ..errors.failures import ShardingConflict
from ..notation.layout import NO_AXES
from .interpreter import CLAIM, Interpreter, fixed_point
from .lattice import AxisSet, DimFact, ShardingFact, invarying, join, unknown, varying_of, zeros

TransferRule = Callable[["FactInterpreter", Any, "list[ShardingFact]"], "Sequence[ShardingFact]"]
"""From an equation and the facts of its operands to those of its results."""


class Observation(NamedTuple):
    """The outcome of a claim, or an operation whose operands have conflicting shardings.

    Attributes:
      eqn: the equation of the claim or the operation; None if it is unknown.
      what: the fault; None if there is none.
      claim: the claim, if it is the outcome of a claim.
      fact: the fact of the claimed value before the claim.
      aval: the type of that value.
      control: the branch or loop whose predicate is at fault.
    """

    eqn: Any
    what: Any
    claim: Any = None
    fact: ShardingFact = invarying(0)
    aval: Any = None
    control: Any = None


_MOST_ITERATIONS = 12
_SCALAR, _ZERO = invarying(0), zeros(0)


class FactInterpreter(Interpreter[ShardingFact]):
    """The interpretation of one manual region in facts: how each value is sharded, and over which axes it varies.

    Attributes:
      sizes: the mesh axes that the region made manual, with their sizes.
      has_vma: whether JAX types values as varying, so that its types also give facts.
      observations: the outcomes of claims, and the conflicts, in the order of the equations.
      untyped: the results that vary though JAX types them as invarying: by the id of the equation, the equation and
        the axes of each result.
      refs_vary: whether a mutable reference varies over all axes, regardless of its initial value.
      is_written: whether a value that varies over more axes is written into a reference.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        has_vma: bool,
        rules: Mapping[str, TransferRule],
        claim_equations: Mapping[Any, Sequence[Any]] | None = None,
    ) -> None:
        self.sizes, self.has_vma = sizes, has_vma
        self.rules = defaultdict(lambda: default_rule, rules)
        self.claim_equations = claim_equations or {}
        self.axes: AxisSet = frozenset(sizes)
        self.refs_vary, self.is_written = True, False
        self.observations: list[Observation] = []
        self.untyped: dict[int, tuple[Any, dict[int, AxisSet]]] = {}
        # Keyed by a jaxpr's id, which is unique while the jaxpr is alive, as it is here.
        self._remembered: dict[
            tuple[int, tuple[ShardingFact, ...]], tuple[Any, list[ShardingFact], list[Observation]]
        ] = {}

    def interpret(self, closed_jaxpr: Any, values: Sequence[ShardingFact], known: Any = None) -> list[ShardingFact]:
        """The facts of a jaxpr's results; cached for jaxprs that are called again."""
        key = (id(closed_jaxpr), tuple(values))
        if key in self._remembered:
            _, outcome, observations = self._remembered[key]
            self.observations += observations
            return outcome
        before, self.observations = self.observations, []
        outcome = super().interpret(closed_jaxpr, values, known)
        self._remembered[key] = (closed_jaxpr, outcome, self.observations)
        self.observations = before + self.observations
        return outcome

    def literal(self, atom: Any, eqn: Any, at: int) -> ShardingFact:
        shape = atom.aval.shape
        return (invarying if atom.val else zeros)(len(shape)) if shape else _SCALAR if atom.val else _ZERO

    def constants(self, closed_jaxpr: Any) -> list[ShardingFact]:
        return [invarying(len(var.aval.shape)) for var in _jax.jaxpr.open_jaxpr(closed_jaxpr).constvars]

    def opaque(self, eqn: Any, values: list[ShardingFact]) -> list[ShardingFact]:
        return default_rule(self, eqn, values)

    def noted(self, jaxpr: Any) -> Container[Any]:
        unreduced = _jax.jaxpr.unreduced_results(jaxpr) if self.has_vma else None
        return self.claim_equations.keys() | unreduced.keys() if unreduced else self.claim_equations

    def refined(self, var: Any, value: ShardingFact) -> ShardingFact:
        (value,) = self._as_typed([var], [value])
        for claim in self.claim_equations.get(var, ()):
            (value,) = self.rules[CLAIM](self, claim, [value])
        return value

    def results_of(self, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
        """The facts of the results of one equation."""
        return self._as_typed(eqn.outvars, self.rules[eqn.primitive.name](self, eqn, facts))

    def _as_typed(self, variables: Sequence[Any], facts: Sequence[ShardingFact]) -> list[ShardingFact]:
        """Facts that are also unreduced over the axes in JAX's types."""
        typed_facts = list(facts)
        for at, fact in enumerate(facts) if self.has_vma else ():
            typed = _jax.array.manual_type_in(variables[at].aval).unreduced if fact.varying else NO_AXES
            if unreduced := typed & fact.varying & self.axes:
                varying, due = fact.varying - unreduced, fact.due - unreduced
                typed_facts[at] = ShardingFact(varying, fact.unreduced | unreduced, fact.dims, due, fact.is_zero)
        return typed_facts

    def loop(
        self,
        body: Any,
        fixed: Sequence[ShardingFact],
        start: list[ShardingFact],
        rows: Sequence[ShardingFact] = (),
    ) -> tuple[list[ShardingFact], list[ShardingFact]]:
        """As in any domain; the observations are those of the last iteration.

        A fault of the first iteration comes before those that follow from it.
        """
        before, since, times = self.observations, dict[int, int](), 0

        def observed(now: list[ShardingFact]) -> list[ShardingFact]:
            nonlocal times
            self.observations, times = [], times + 1
            results = self.interpret(body, [*fixed, *now, *rows])
            for observation in self.observations:
                if observation.what is not None:
                    since.setdefault(id(observation.eqn), times)
            return results

        outcome = fixed_point(start, observed, partial(self.carried, start))
        observations = self.observations
        if since:
            observations = sorted(observations, key=lambda observation: since.get(id(observation.eqn), times))
        self.observations = before + observations
        return outcome

    def carried(
        self, start: list[ShardingFact], now: list[ShardingFact], results: list[ShardingFact], times: int
    ) -> list[ShardingFact]:
        after = [*map(join, now, results)]
        if times < _MOST_ITERATIONS:
            return after
        # A claim in the loop may repeatedly add an axis that the carry loses.
        return [unknown(fact.varying | fact.unreduced, len(fact.dims)) for fact in after]

    def due_sum(self, eqn: Any, fact: ShardingFact, axes: AxisSet) -> ShardingFact:
        """The fact of a result that is a shard's part of a sum over these axes."""
        axes = axes - fact.due - fact.unreduced
        if not axes or not _jax.array.is_inexact(eqn.outvars[0].aval.dtype):  # probably a count of a shard's rows
            return fact
        return ShardingFact(fact.varying, fact.unreduced, fact.dims, fact.due | axes, fact.is_zero)

    def split_axes(self, axes: AxisSet) -> AxisSet:
        """The axes among these that have more than one shard."""
        return frozenset(axis for axis in axes if self.sizes.get(axis, 1) > 1) if axes else axes

    def note_untyped(self, eqn: Any, facts: Sequence[ShardingFact]) -> None:
        """Note which results of an equation vary though JAX types them as invarying."""
        for at, (var, fact) in enumerate(zip(eqn.outvars, facts, strict=True)) if self.has_vma else ():
            typed = _jax.array.manual_type_in(var.aval)
            if axes := self.split_axes(fact.varying - typed.varying - typed.unreduced):
                self.untyped.setdefault(id(eqn), (eqn, {}))[1][at] = axes

    def note_conflict(self, eqn: Any, where: str, first: DimFact, second: DimFact) -> None:
        """Note that an operation combines two dims with different shardings."""
        axes, interleaved = [dim.known_axes or dim.woven for dim in (first, second)], (not first.axes, not second.axes)
        what = ShardingConflict(eqn.primitive.name, where, axes[0], axes[1], interleaved)
        self.observations.append(Observation(eqn, what))


# References, which later equations write to.
_REFS = frozenset(["new_ref", "empty_ref", "ref"])
_WRITES = frozenset(["swap", "addupdate"])

CALLBACKS = frozenset(["pure_callback", "io_callback", "ffi_call"])
"""Calls that run outside of JAX, which types their results as invarying whatever the operands are."""


def default_rule(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """An operation without a transfer rule, such as a kernel: its results may vary where its operands do.

    The author of a Pallas kernel, or of an operation written in Python, states JAX's type of its result; that type is
    trusted. JAX types results of callbacks and foreign functions as invarying regardless of their operands.
    """
    axes = interpreter.axes
    # The results also vary over the axes along which it, or an equation in its jaxprs, communicates.
    name = eqn.primitive.name
    is_from_outside = name == "io_callback" or (
        interpreter.refs_vary and name in _REFS
    )  # each host may return another value
    named = axes if is_from_outside else frozenset(_jax.jaxpr.named_axes(eqn, axes))
    if name in _WRITES and varying_of(facts[1:]) - facts[0].varying:
        interpreter.is_written = True
    for jaxpr in _jax.jaxpr.held_jaxprs(eqn):
        named = named.union(*(_jax.jaxpr.named_axes(inner, axes) for inner in _jax.jaxpr.all_equations(jaxpr)))
    operands = [facts] * len(eqn.outvars)
    if eqn.primitive.name == "pallas_call" and (read := _jax.jaxpr.kernel_operands(eqn)) is not None:
        operands = [[facts[at] for at in of_result] for of_result in read]
    results = [
        unknown(named | varying_of(of_result), len(getattr(var.aval, "shape", ())))
        for var, of_result in zip(eqn.outvars, operands, strict=True)
    ]
    if eqn.primitive.name in CALLBACKS:
        interpreter.note_untyped(eqn, results)
    if interpreter.has_vma and eqn.primitive.name in ("pallas_call", "call_hi_primitive"):
        typed = [_jax.array.manual_type_in(var.aval).varying for var in eqn.outvars]
        return [fact._replace(varying=fact.varying & axes) for fact, axes in zip(results, typed, strict=True)]
    return results
