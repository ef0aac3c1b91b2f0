"""Read a traced program: a fact per value, by a rule per primitive.

Invariant: a program is read once for each set of facts that goes into it; what its claims come to in
a turn of a loop that is not the last does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _jax
from .facts import NONE, Fact, Names, equal, unknown, varying_of

Rule = Callable[["Reader", Any, "list[Fact]"], "Sequence[Fact]"]
"""From an equation and the facts of its operands to those of its results."""

CLAIM = "typedshmap_claim"
"""The primitive that states what its operand is; what it teaches holds for the operand, too."""


class Reader:
    """A reading of one manual region.

    Attributes:
      sizes: the mesh axes that the region made manual, with their sizes.
      is_typed: whether JAX types values as varying, so that its types tell, too.
      findings: what was found of claims and of operations that make no sense, in the program's order.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        is_typed: bool,
        rules: Mapping[str, Rule],
        noted: Mapping[Any, Sequence[Any]] | None = None,
    ) -> None:
        self.sizes, self.is_typed, self.rules, self.noted = sizes, is_typed, _Rules(rules), noted or {}
        self.axes: Names = frozenset(sizes)
        self.findings: list[Any] = []
        self._read: dict[tuple[int, tuple[Fact, ...]], tuple[list[Fact], list[Any]]] = {}
        self._kept: list[Any] = []

    def read(self, program: Any, facts: Sequence[Fact]) -> list[Fact]:
        """What is known of a program's results; remembered for programs that are called again."""
        jaxpr = _jax.open_program(program)
        key = (id(jaxpr), tuple(facts))
        known = self._read.get(key)
        if known is None:
            before, self.findings = self.findings, []
            known = self._read[key] = (self._run(jaxpr, facts), self.findings)
            self._kept.append(jaxpr)  # an id is one program's while that is alive
            self.findings = before
        self.findings += known[1]
        return known[0]

    def _run(self, jaxpr: Any, facts: Sequence[Fact]) -> list[Fact]:
        known: dict[Any, Fact] = dict(zip(jaxpr.invars, facts, strict=True))
        for var in jaxpr.constvars:
            known[var] = equal(len(var.aval.shape))
        # Every equation comes by here: what can be asked once is not asked for each.
        rules, literal, noted, is_typed = self.rules, _jax.literal(), self.noted, self.is_typed
        for eqn in jaxpr.eqns:
            operands = [_constant(atom) if atom.__class__ is literal else known[atom] for atom in eqn.invars]
            results = rules[eqn.primitive.name](self, eqn, operands)
            for var, fact in zip(eqn.outvars, results, strict=True):
                if is_typed and (fact.owed or (fact.varying and _jax.manual_type_in(var.aval).unreduced)):
                    fact = self._typed(var.aval, fact)
                known[var] = self._claimed(var, fact) if var in noted else fact
            if eqn.primitive.name == CLAIM and eqn.invars[0].__class__ is not literal:
                known[eqn.invars[0]] = results[0]
        return [_constant(atom) if atom.__class__ is literal else known[atom] for atom in jaxpr.outvars]

    def _claimed(self, var: Any, fact: Fact) -> Fact:
        """What is known of a value after the claims that were noted of it."""
        for claim in self.noted[var]:
            (fact,) = self.rules[CLAIM](self, claim, [fact])
        return fact

    def results_of(self, eqn: Any, facts: list[Fact]) -> list[Fact]:
        """What is known of the results of one equation."""
        results = self.rules[eqn.primitive.name](self, eqn, facts)
        if not self.is_typed:
            return list(results)
        return [self._typed(var.aval, fact) for var, fact in zip(eqn.outvars, results, strict=True)]

    def _typed(self, aval: Any, fact: Fact) -> Fact:
        """A fact with the sums that JAX's type says are owed, of which it knows all."""
        owed = _jax.manual_type_in(aval).unreduced & self.axes
        return fact if owed == fact.owed else Fact((fact.varying | fact.owed) - owed, owed, fact.dims)

    def quietly(self, program: Any, facts: Sequence[Fact]) -> list[Fact]:
        """Read a program whose findings do not count."""
        before = list(self.findings)
        results = self.read(program, facts)
        self.findings = before
        return results


class _Rules(dict[str, Rule]):
    """A rule for every primitive."""

    def __missing__(self, name: str) -> Rule:
        return anything


def _constant(literal: Any) -> Fact:
    """What is known of a constant in the program's text, most often a scalar."""
    return equal(len(literal.aval.shape))


def anything(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """An operation without a rule, a kernel for instance: what differs in its operands may differ in its results.

    JAX's type of a Pallas kernel's result is what its author wrote down, and believed; that of a callback's or a
    foreign function's is invarying whatever goes in.
    """
    is_free = eqn.primitive.name in _OF_THE_OUTSIDE
    varying = reader.axes if is_free else varying_of(facts) | _axes_within(eqn, reader.axes)
    is_told = reader.is_typed and eqn.primitive.name == "pallas_call"
    return [
        unknown(varying & _jax.manual_type_in(var.aval).varying if is_told else varying, len(_shape(var)))
        for var in eqn.outvars
    ]


def _shape(var: Any) -> tuple[int, ...]:
    return getattr(var.aval, "shape", ())


_OF_THE_OUTSIDE = frozenset(["io_callback", "new_ref", "empty_ref", "ref"])
"""Their results are not of their operands alone: the host may answer as it likes, a reference is written to later."""


def _axes_within(eqn: Any, axes: Names) -> Names:
    """The mesh axes along which an operation communicates, or one in the programs that it runs."""
    found = _named_axes(eqn.params, axes)
    # An operation that is written in Python, as jax 0.12 has them, keeps its programs among parameters of its own.
    own = getattr(eqn.params.get("_prim"), "params", {})
    for value in (*eqn.params.values(), *own.values()):
        for program in value if isinstance(value, tuple) else (value,):
            if hasattr(_jax.open_program(program), "eqns"):
                found = found.union(*(_named_axes(inner.params, axes) for inner in _jax.all_equations(program)))
    return found


def _named_axes(params: Mapping[str, Any], axes: Names) -> Names:
    """The mesh axes along which an operation communicates."""
    names = params.get("axis_name", params.get("axes", ()))
    names = names if isinstance(names, (tuple, list)) else (names,)
    return axes.intersection(name for name in names if isinstance(name, str)) or NONE
