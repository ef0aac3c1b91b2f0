"""Interpret the body of one manual region, and judge what is wrong in it, whatever is claimed of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from .. import _jax
from ..errors.causes import Cure
from ..errors.varying import Cause, UnmarkedUnreduced, UnmentionedVarying, UntypedVarying
from ..notation.layout import Layout
from . import collectives, control_flow, elementwise, reshape
from .causes import Causes, NameDim
from .control_flow import fact_of_spec
from .find_cause import find_cause
from .interpreter import Interpreter, Observation, TransferRule
from .kinds.cures import find_cure, stays_wrong
from .kinds.known import is_known, note_known
from .kinds.region import Kinds
from .kinds.suspects import Suspicion, suspects
from .lattice import unknown
from .marks import has_gradient, has_wrong_gradient, is_used
from .provenance import Provenance

RULES: Mapping[str, TransferRule] = {
    **elementwise.RULES,
    **reshape.RULES,
    **collectives.RULES,
    **control_flow.RULES,
}


raises_in_readings = False
"""Whether a mistake in the reading of what values are of the whole is raised, as in tests, or silences the suspects."""


class InterpretedRegion:
    """A traced region whose body has been interpreted.

    Attributes:
      body: its jaxpr.
      interpreter: what interpreted it.
      entering: what is known of the body's operands.
      results: what is known of its results.
      kinds: what its values are of the whole, once `know` was called.
    """

    kinds: Kinds

    def __init__(
        self, params: Mapping[str, Any], interpreter: Callable[[], Interpreter], name_dim: NameDim, is_typed: bool
    ) -> None:
        """Interpret a region.

        Args:
          params: the parameters of its equation.
          interpreter: makes one for the region.
          name_dim: what hints call the sharded dim of an operand of the body.
          is_typed: whether JAX types the values of the program, if not as it was traced here.
        """
        self.body, self.interpreter = params["jaxpr"], interpreter()
        self._name_dim, self._is_typed = name_dim, is_typed
        pairs = zip(params["in_specs"], self.body.invars, strict=True)
        self.entering = [fact_of_spec(spec, len(var.aval.shape), self.interpreter.axes) for spec, var in pairs]
        self.interpreter.refs_vary = False
        self.results = self.interpreter.interpret(self.body, self.entering)
        if self.interpreter.is_written:
            self.interpreter = interpreter()
            refs = [_jax.jaxpr.is_reference(var) for var in self.body.invars]
            self.entering = [
                unknown(self.interpreter.axes, len(fact.dims)) if is_ref else fact
                for fact, is_ref in zip(self.entering, refs, strict=True)
            ]
            self.results = self.interpreter.interpret(self.body, self.entering)

    @cached_property
    def causes(self) -> Causes:
        """Since when its values vary; computed where an error or a warning is told."""
        is_typed = self.interpreter.has_vma or self._is_typed
        return Causes(self.interpreter, self.body, self.entering, self._name_dim, is_typed)

    def divergence(self, is_differentiated: Sequence[bool] = ()) -> Observation | None:
        """The first collective that not all shards reach; one of which nothing comes never runs.

        A cast is one if a gradient by the operand that it comes from is being taken, as far as is known.

        Args:
          is_differentiated: whether a gradient by each operand of the call is taken; those are behind what the body
            closes over.
        """
        diverging = [found for found in self.interpreter.observations if found.control is not None]
        if not diverging:
            return None
        casts = {id(found.eqn) for found in diverging if found.eqn.primitive.name == control_flow.CAST}
        differentiated = [*[False] * (len(self.body.invars) - len(is_differentiated)), *is_differentiated]

        def is_run(some: Sequence[Observation]) -> bool:
            eqns = {id(found.eqn) for found in some}
            if eqns - casts and is_used(self.interpreter, self.body, eqns - casts):
                return True
            is_taken = bool(eqns & casts) and any(differentiated)
            return is_taken and has_gradient(self.interpreter, self.body, eqns & casts, differentiated)

        if not is_run(diverging):
            return None
        first = next(found for found in diverging if is_run([found]))
        cause = find_cause(first.what.diverging, partial(self.causes.of_predicate, first.control))
        return first._replace(what=replace(first.what, cause=cause))

    def wrong_gradient(self) -> Observation | None:
        """The first result that JAX types wrongly where that makes gradients wrong."""
        untyped = self.interpreter.untyped
        if not untyped or not self._has_wrong_gradient({key: axes for key, (_, axes) in untyped.items()}):
            return None
        for key, (eqn, results) in untyped.items():
            if self._has_wrong_gradient({key: results}):
                axes, is_control = frozenset[str]().union(*results.values()), eqn.primitive.name in control_flow.RULES
                operation = control_flow.control_name(eqn) if is_control else eqn.primitive.name
                in_order = tuple(axis for axis in self.interpreter.sizes if axis in axes)
                return Observation(eqn, UntypedVarying(operation, in_order, is_control))
        return None

    def _has_wrong_gradient(self, untyped: Mapping[int, Any]) -> bool:
        return has_wrong_gradient(self.interpreter, self.body, untyped)

    def contradictions(self) -> list[Observation]:
        """The claims that contradict what is known, and the operations that make no sense, with their causes."""
        found = [each for each in self.interpreter.observations if each.what is not None and each.control is None]
        return [
            each._replace(
                what=self._with_cure(
                    with_cause(each.what, partial(self._provenance_of_operand, each.eqn)), id(each.eqn)
                )
            )
            for each in found
        ]

    def know(self, results: Mapping[int, Layout], **known: Any) -> None:
        """Take what is to be known before anything is suspected, and before cures are tried.

        Args:
          results: by their places, the layouts of the results.
          known: what else `Kinds` takes.
        """
        interpreter = self.interpreter
        self.kinds = Kinds(
            self.body, self.entering, results, interpreter.sizes, interpreter.claim_equations, self._name_dim, **known
        )

    @property
    def _has_symbols(self) -> bool:
        """Whether a size is a symbol, of a program for export: nothing is known of it."""
        for var in self.body.invars:
            for size in var.aval.shape:
                if size.__class__ is not int:
                    return True
        return False

    def suspects(self, refused: Collection[int] = ()) -> list[Suspicion]:
        """What is suspected of it, and the sums that a hint says are due and that are lost.

        Args:
          refused: the places of the results that are refused.
        """
        if self._has_symbols:
            return []
        try:
            if is_known(self.kinds):
                return []
            found = suspects(self.kinds, [axis for axis, size in self.interpreter.sizes.items() if size > 1], refused)
            if not found:
                note_known(self.kinds)
        except Exception:  # a program that runs is never ended by what only reads it
            if raises_in_readings:
                raise
            return []
        return found

    def _with_cure(self, what: Any, key: int) -> Any:
        """What is wrong, with a cure that was tried where the one that its cause suggests is another.

        Args:
          what: what is wrong.
          key: the place of the result, or the id of the claim's equation, of which it is.
        """
        cause = getattr(what, "cause", None)
        if not isinstance(cause, Cause) or not (cause.collective or cause.made) or self._has_symbols:
            return what
        try:
            return self._with_tried(what, cause, key)
        except Exception:  # as above
            if raises_in_readings:
                raise
            return what

    def _with_tried(self, what: Any, cause: Cause, key: int) -> Any:
        tried = list[Cure | None]()
        for axis in cause.axes:
            read = self.kinds.over(axis)
            verdict = read.verdicts.get(key)
            if verdict is None or verdict.says != "wrong":
                return what
            tried.append(find_cure(self.kinds, axis, read))
        first = tried[0]
        if first is None or any(each is None for each in tried):  # what the cause suggests may be right all the same
            axis = cause.axes[0]
            is_wrong = stays_wrong(self.kinds, axis, self.kinds.over(axis), key, cause.collective)
            return replace(what, cause=cause._replace(tried="")) if is_wrong else what
        over = [str(each.over((axis,), cause.axes)) for axis, each in zip(cause.axes, tried, strict=True) if each]
        if len(set(over)) > 1:
            return what
        is_plain = first.operation == cause.collective and first.line == cause.place.partition(" ")[0]
        is_plain = is_plain and not any(change.replaces for change in first.changes) and not cause.is_conditional
        return what if is_plain else replace(what, cause=cause._replace(tried=over[0]))

    def with_cause_of_result(self, what: Any, at: int) -> Any:
        """What is wrong with a result, with its cause."""
        return self._with_cure(with_cause(what, partial(self._provenance_of_result, at)), at)

    def place_of_result(self, at: int) -> str:
        """Where the equation is that made a result."""
        maker = _jax.jaxpr.maker_of(self.body, self.body.outvars[at])
        return _jax.source.equation_place(maker) if maker is not None else ""

    def _provenance_of_operand(self, eqn: Any, axis: str) -> Provenance | None:
        return self.causes.of_operand(eqn, axis)

    def _provenance_of_result(self, at: int, axis: str) -> Provenance | None:
        return self.causes.of_result(at, axis)


def with_cause(what: Any, provenance: Callable[[str], Provenance | None]) -> Any:
    """A fault with the cause, if it is of a value that varies or is unreduced over some axes."""
    if not isinstance(what, UnmentionedVarying | UnmarkedUnreduced):
        return what
    return replace(what, cause=find_cause(what.axes, provenance))
