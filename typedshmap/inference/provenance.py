"""What is kept of a region while causes are looked for: the facts of its equations, and the provenance of its values.

Invariant: nothing of this runs unless an error or a warning is told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

from .. import _jax
from .interpreter import Interpreter, default_rule
from .lattice import ShardingFact

UNREDUCED = ("part", "mixed")
"""The kinds of what no operation has reduced."""

COLLECTIVES = {"sum": "psum", "masked": "psum", "mean": "pmean", "maximum": "pmax", "minimum": "pmin"}
"""By kind, the collective that makes a value the same on every shard, and right."""

Divisor = tuple[float, Any]
"""A number that a value was divided by, and the equation that does so."""

Recount = tuple[Any, "tuple[str, ...]"]
"""A psum that differentiation made of what is the same on every shard of some axes, and these axes."""


class Provenance(NamedTuple):
    """Since when a value varies over one mesh axis, and how.

    Attributes:
      kind: ``part``: each shard holds its part of an array; ``mixed``: its elements, of which dim is not known any
        more; ``picked``: something else that an operation made of its part; ``item``: what a loop over a sharded dim
        takes from it; ``mapped``: the same by ``jax.vmap``; ``sum``, ``mean``, ``maximum``, ``minimum``: each shard
        holds that of its part; ``ring``: it computed that of the parts that others sent it, one after the other;
        ``index``: it depends on the shard's own index; ``masked``: by which a shard has it or zeros; ``opaque``: a
        kernel or a callback computed it; ``choice``: a branch or a loop took another way; ``other``: none of these.
      eqn: where it became so; None for an argument.
      calls: that one and those around it, whose jaxprs hold it, from within; each with the jaxpr that it is in.
      at: counts the equations that are remembered, so that of two the earlier is known.
      dim: the name of the sharded dim, if hints have one.
      subject: the argument that is sharded.
      size: how long the sharded dim is on one shard; 0 where that is not known.
      position: which dim it is, of a mixed value that an elementwise operation made.
      others: how long the other dims were that were summed.
      divisor: a number by which a sum was divided, which may be that of a shard's elements, and where.
      late: the operation before which a collective has to be; as the next two, at first with those around it.
      astray: a sum over another axis, over which nothing is due.
      follows: a collective over the axis that the program has for it.
      recounted: other axes whose shards a gradient counts, and the psum over them that differentiation made.
      gradient: where the gradient that it is a part of was asked for.
      untyped: where what it is in is differentiated, where JAX does not type values.
      inside: the same, where JAX does.
      made: ``typed`` or ``untyped``, by whether JAX types values, where differentiation made the late operation;
        ``mixed``: without types, of a gradient that is in part of a mean.
    """

    kind: str
    eqn: Any
    at: int
    calls: tuple[tuple[Any, Any], ...] = ()
    dim: str = ""
    subject: str = ""
    size: int = 0
    position: int | None = None
    others: tuple[int, ...] = ()
    divisor: Divisor | None = None
    late: Any = None
    astray: Any = None
    follows: Any = None
    recounted: Recount | None = None
    gradient: str = ""
    untyped: str = ""
    inside: str = ""
    made: str = ""

    @property
    def counts(self) -> set[int]:
        """The numbers of elements of a shard by which a sum may be divided for a mean."""
        counts = [self.size]
        for size in self.others:
            counts += [size * each for each in counts]
        return set(counts)

    @property
    def place(self) -> str:
        """Where in the user's program it became so."""
        return _jax.source.equation_place(self.eqn) if self.eqn is not None else ""


class Scale(NamedTuple):
    """By what a value was scaled.

    Attributes:
      divisors: the constants that it was divided by.
      recounts: the psums that differentiation made of what is the same on every shard.
      mixed: the axes over which it is a gradient of which some is of a shard's own mean, and some is not.
    """

    divisors: tuple[Divisor, ...] = ()
    recounts: tuple[Recount, ...] = ()
    mixed: frozenset[str] = frozenset()


class Known(NamedTuple):
    """What is known of a value beside its fact.

    Attributes:
      provenances: by mesh axis.
      value: the number that it is, if it is a constant.
      scale: by what it was scaled.
      carried: whether a loop carries it, from a neutral element on or from something else, as long as that is all that
        is known.
    """

    provenances: Mapping[str, Provenance] = {}
    value: float | None = None
    scale: Scale = Scale()
    carried: Literal["", "neutral", "open"] = ""


NOTHING = Known()


class Frame:
    """One interpretation of a jaxpr.

    Attributes:
      facts: per equation, by its id, the facts of its operands and of its results.
      inner: the interpretations of the jaxprs that an equation runs, by the ids of both.
      caller: the interpretation in which an equation runs it now, and that equation.
      known: what is known of the variables.
      first: their provenances by axis, where it varies for the first time: in a loop, those of the first iteration.
      eqn: the equation that is interpreted now.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.jaxpr, self.eqn = jaxpr, None
        self.facts: dict[int, tuple[list[ShardingFact], Sequence[ShardingFact]]] = {}
        self.inner: dict[tuple[int, int], Frame] = {}
        self.caller: tuple[Frame, Any] | None = None
        self.known: dict[Any, Known] = {}
        self.first: dict[tuple[int, str], Provenance] = {}

    def calls(self, eqn: Any) -> tuple[tuple[Any, Any], ...]:
        """An equation of the jaxpr and those that run this now, from within, each with the jaxpr that it is in."""
        around = () if self.caller is None else self.caller[0].calls(self.caller[1])
        return ((eqn, self.jaxpr), *around)

    @cached_property
    def made_by(self) -> dict[Any, Any]:
        """The equation that made each variable."""
        return {var: eqn for eqn in self.jaxpr.eqns for var in eqn.outvars}

    def note_first(self, var: Any) -> None:
        for axis, one in self.known[var].provenances.items():
            self.first.setdefault((id(var), axis), one)

    def known_of(self, atom: Any) -> Known:
        if not _jax.jaxpr.is_literal(atom):
            return self.known.get(atom, NOTHING)
        try:
            return Known(value=float(atom.val))
        except TypeError:  # an array, or a complex number
            return NOTHING


class Recorder(Interpreter):
    """An interpreter that keeps the facts of all operands and results."""

    def __init__(self, interpreter: Interpreter) -> None:
        super().__init__(interpreter.sizes, interpreter.has_vma, {}, interpreter.claim_equations)
        rules = {name: self._recorded(rule) for name, rule in interpreter.rules.items()}
        self.rules = defaultdict(lambda: self._recorded(default_rule), rules)
        self.frame = Frame(None)
        self.frames: dict[tuple[int, tuple[ShardingFact, ...]], Frame] = {}

    def interpret(self, closed_jaxpr: Any, facts: Sequence[ShardingFact]) -> list[ShardingFact]:
        jaxpr, outer = _jax.jaxpr.open_jaxpr(closed_jaxpr), self.frame
        self.frame = self.frames.setdefault((id(jaxpr), tuple(facts)), Frame(jaxpr))
        outer.inner[id(outer.eqn), id(jaxpr)] = self.frame
        try:
            return super().interpret(closed_jaxpr, facts)
        finally:
            self.frame = outer

    def _recorded(self, rule: Any) -> Any:
        def recorded(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
            self.frame.eqn = eqn
            results = rule(interpreter, eqn, facts)
            self.frame.facts[id(eqn)] = facts, results
            return results

        return recorded


def join_known(ways: Sequence[Known]) -> Known:
    """What is known of a value that is one of several."""
    found: dict[str, Provenance] = {}
    for known in ways:
        for axis, one in known.provenances.items():
            if axis not in found or found[axis].kind == "part":
                found[axis] = one
    return Known(found, None, join_scales([known.scale for known in ways]))


def join_scales(ways: Sequence[Scale]) -> Scale:
    """The scale of a value that is computed from several, or is one of them."""
    divisors = dict.fromkeys(one for scale in ways for one in scale.divisors)
    recounts = dict.fromkeys(one for scale in ways for one in scale.recounts)
    return Scale(tuple(divisors), tuple(recounts), frozenset[str]().union(*[scale.mixed for scale in ways]))


def restrict_known(known: Known, fact: ShardingFact) -> Known:
    """What is known of a value over the axes over which it varies."""
    kept = {axis: one for axis, one in known.provenances.items() if axis in fact.varying or axis in fact.unreduced}
    return known if len(kept) == len(known.provenances) else known._replace(provenances=kept)
