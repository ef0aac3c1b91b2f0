"""Interpret a jaxpr abstractly: a fact per value, by a transfer rule per primitive.

Invariant: a jaxpr is interpreted once for each list of facts of its operands; what its claims come to in
an iteration before the fixed point of a loop does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _jax
from .lattice import AxisSet, ShardingFact, invarying, unknown, varying_of

TransferRule = Callable[["Interpreter", Any, "list[ShardingFact]"], "Sequence[ShardingFact]"]
"""From an equation and the facts of its operands to those of its results."""

CLAIM = "typedshmap_claim"
"""The primitive that claims a layout of its operand; what is learnt from it holds for the operand, too."""


class Interpreter:
    """The abstract interpretation of one manual region.

    Attributes:
      sizes: the mesh axes that the region made manual, with their sizes.
      has_vma: whether JAX types values as varying, so that facts follow from its types, too.
      findings: the verdicts on claims, and the operations that make no sense, in the order of the equations.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        has_vma: bool,
        rules: Mapping[str, TransferRule],
        claim_equations: Mapping[Any, Sequence[Any]] | None = None,
    ) -> None:
        self.sizes, self.has_vma, self.rules = sizes, has_vma, _RuleTable(rules)
        self.claim_equations = claim_equations or {}
        self.axes: AxisSet = frozenset(sizes)
        self.findings: list[Any] = []
        self._known: dict[tuple[int, tuple[ShardingFact, ...]], tuple[list[ShardingFact], list[Any]]] = {}
        self._kept_jaxprs: list[Any] = []

    def interpret(self, closed_jaxpr: Any, facts: Sequence[ShardingFact]) -> list[ShardingFact]:
        """What is known of a jaxpr's results; remembered for jaxprs that are called again."""
        jaxpr = _jax.jaxpr.open_jaxpr(closed_jaxpr)
        key = (id(jaxpr), tuple(facts))
        known = self._known.get(key)
        if known is None:
            before, self.findings = self.findings, []
            known = self._known[key] = (self._run(jaxpr, facts), self.findings)
            self._kept_jaxprs.append(jaxpr)  # an id belongs to one jaxpr while that is alive
            self.findings = before
        self.findings += known[1]
        return known[0]

    def _run(self, jaxpr: Any, facts: Sequence[ShardingFact]) -> list[ShardingFact]:
        known: dict[Any, ShardingFact] = dict(zip(jaxpr.invars, facts, strict=True))
        for var in jaxpr.constvars:
            known[var] = invarying(len(var.aval.shape))
        # This runs for every equation: what is the same for all is looked up once.
        rules, literal, claims, has_vma = self.rules, _jax.jaxpr.literal(), self.claim_equations, self.has_vma
        for eqn in jaxpr.eqns:
            operands = [_literal_fact(atom) if atom.__class__ is literal else known[atom] for atom in eqn.invars]
            results = rules[eqn.primitive.name](self, eqn, operands)
            for var, fact in zip(eqn.outvars, results, strict=True):
                if has_vma and (fact.unreduced or (fact.varying and _jax.array.manual_type_in(var.aval).unreduced)):
                    fact = self._with_typed_unreduced(var.aval, fact)
                if var in claims:
                    for claim in claims[var]:
                        (fact,) = rules[CLAIM](self, claim, [fact])
                known[var] = fact
            if eqn.primitive.name == CLAIM and eqn.invars[0].__class__ is not literal:
                known[eqn.invars[0]] = results[0]
        return [_literal_fact(atom) if atom.__class__ is literal else known[atom] for atom in jaxpr.outvars]

    def results_of(self, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
        """What is known of the results of one equation."""
        results = self.rules[eqn.primitive.name](self, eqn, facts)
        if not self.has_vma:
            return list(results)
        return [self._with_typed_unreduced(var.aval, fact) for var, fact in zip(eqn.outvars, results, strict=True)]

    def _with_typed_unreduced(self, aval: Any, fact: ShardingFact) -> ShardingFact:
        """A fact that is unreduced over the axes that JAX's type says, and no others."""
        unreduced = _jax.array.manual_type_in(aval).unreduced & self.axes
        if unreduced == fact.unreduced:
            return fact
        return ShardingFact((fact.varying | fact.unreduced) - unreduced, unreduced, fact.dims)

    def interpret_silently(self, jaxpr: Any, facts: Sequence[ShardingFact]) -> list[ShardingFact]:
        """Interpret a jaxpr whose findings do not count."""
        before = list(self.findings)
        results = self.interpret(jaxpr, facts)
        self.findings = before
        return results


class _RuleTable(dict[str, TransferRule]):
    """A transfer rule for every primitive."""

    def __missing__(self, name: str) -> TransferRule:
        return default_rule


def _literal_fact(literal: Any) -> ShardingFact:
    return invarying(len(literal.aval.shape))


# Results that do not depend on operands alone: the host may answer as it likes, a reference is written to later.
_FROM_OUTSIDE = frozenset(["io_callback", "new_ref", "empty_ref", "ref"])


def default_rule(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """An operation without a transfer rule, a kernel for instance: its results may vary where its operands do.

    JAX's type of a Pallas kernel's result is what its author wrote down, and believed; that of a callback's or a
    foreign function's is invarying whatever its operands are.
    """
    axes = interpreter.axes
    if eqn.primitive.name in _FROM_OUTSIDE:
        varying = axes
    else:
        # And over the mesh axes along which it communicates, or an equation in the jaxprs that it runs.
        varying = varying_of(facts).union(_jax.jaxpr.named_axes(eqn, axes))
        # An operation that is written in Python, as jax 0.12 has them, keeps its jaxprs among parameters of its own.
        own = getattr(eqn.params.get("_prim"), "params", {})
        for value in (*eqn.params.values(), *own.values()):
            for jaxpr in value if isinstance(value, tuple) else (value,):
                if hasattr(_jax.jaxpr.open_jaxpr(jaxpr), "eqns"):
                    inner = _jax.jaxpr.all_equations(jaxpr)
                    varying = varying.union(*(_jax.jaxpr.named_axes(each, axes) for each in inner))
    is_typed_kernel = interpreter.has_vma and eqn.primitive.name == "pallas_call"
    return [
        unknown(
            varying & _jax.array.manual_type_in(var.aval).varying if is_typed_kernel else varying,
            len(getattr(var.aval, "shape", ())),
        )
        for var in eqn.outvars
    ]
