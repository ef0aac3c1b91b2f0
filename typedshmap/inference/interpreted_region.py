"""Interpret the body of one manual region, typed or plain, and judge it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import _jax
from ..errors.failures import Failure
from ..errors.varying import UnmarkedUnreduced, UnmentionedVarying, UntypedVarying
from ..hints.context import LayoutAssertion
from ..notation.layout import NO_AXES, Layout
from . import collective_facts, control_flow, elementwise_facts, reshape
from .claims import Origin, contradiction, make_claim
from .control_flow import fact_of_spec
from .facts import FactInterpreter, Observation, TransferRule
from .interpreter import CALLS
from .kinds.error_cause import cause_of, predicate_cause
from .kinds.region_cache import is_known, note_known
from .kinds.region_kinds import Kinds, NameOfDim
from .kinds.suspects import Suspicion, suspects
from .lattice import ShardingFact, unknown
from .tangents import has_gradient_through

_OF_OPERATIONS = {
    "all-reduce": collective_facts.total,
    "all-gather": collective_facts.gather,
    "reduce-scatter": collective_facts.scatter,
    "all-to-all": collective_facts.exchange,
}


def _rule_of(name: str, known: _jax.primitives.Primitive) -> TransferRule | None:
    """The transfer rule that follows from the class of a primitive."""
    match known.kind:
        case "cast":
            return elementwise_facts.same_shape
        case "reducing":
            return reshape.along(reshape.remove_dims, name)
        case "placing":
            return reshape.scatter
        case "ordering":
            return {"axis": elementwise_facts.same_shape, "window_dimensions": reshape.reduce_window}.get(known.along)
        case "collective":
            return _OF_OPERATIONS.get(_jax.primitives.COLLECTIVES.get(name, ""))
        case _:
            return elementwise_facts.elementwise if known.is_entry_by_entry else None


RULES: Mapping[str, TransferRule] = {
    **{name: rule for name, known in _jax.primitives.PRIMITIVES.items() if (rule := _rule_of(name, known)) is not None},
    **CALLS,  # a nested region is interpreted over the axes of this region
    **{
        rule.__name__: rule
        for rule in (
            collective_facts.axis_index, control_flow.cond, control_flow.scan, elementwise_facts.dot_general,
            reshape.broadcast_in_dim, reshape.concatenate, reshape.dynamic_slice, reshape.fft, reshape.gather,
            reshape.iota, reshape.pad, reshape.reduce_sum, reshape.reshape, reshape.sort, reshape.stack, reshape.tile,
            reshape.top_k,
        )
    },
    "bitcast_convert_type": elementwise_facts.bitcast,
    "complex": elementwise_facts.elementwise,
    "conv_general_dilated": elementwise_facts.convolution,
    "dynamic_update_slice": reshape.update_slice,
    "pbroadcast": collective_facts.total,
    "ppermute": collective_facts.permute,
    "pvary": elementwise_facts.vary,
    "random_bits": elementwise_facts.keys,
    "random_clone": elementwise_facts.keys,
    "random_fold_in": elementwise_facts.elementwise,
    "random_split": elementwise_facts.keys,
    "random_unwrap": elementwise_facts.keys,
    "random_wrap": elementwise_facts.keys,
    "reshard_shards": collective_facts.reshard,
    "rev": reshape.along(reshape.slice_dims_at, "rev"),
    "slice": reshape.strided_slice,
    "split": reshape.along(reshape.slice_dims_at, "split"),
    "squeeze": reshape.along(reshape.remove_dims, "squeeze"),
    "threefry2x32": elementwise_facts.elementwise,
    "transpose": reshape.along(reshape.permute_dims, "transpose"),
    "unstack": reshape.along(reshape.remove_dims, "unstack"),
    "vary_unreduced_cast": collective_facts.cast_unreduced,
    "vary_unreduced_cast_p": collective_facts.cast_unreduced,
    "while": control_flow.while_loop,
}  # fmt: skip


raises_in_readings = False
"""Whether an exception in the reading of kinds is raised, as in tests; otherwise nothing is suspected."""


class InterpretedRegion:
    """A traced region whose body has been interpreted.

    Attributes:
      body: its jaxpr.
      interpreter: its interpreter.
      entering: the facts of the operands.
      results: the facts of the results.
      kinds: the kinds of its values.
    """

    def __init__(
        self, params: Mapping[str, Any], interpreter: Callable[[], FactInterpreter], name_dim: NameOfDim
    ) -> None:
        """Interpret a region.

        Args:
          params: the parameters of its equation.
          interpreter: makes an interpreter for the region.
          name_dim: names the sharded dim of an operand, as in `Kinds`.
        """
        self.body, self.interpreter = params["jaxpr"], interpreter()
        self._name_dim = name_dim
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
        self.know({})

    def divergence(self, is_differentiated: Sequence[bool] = ()) -> Observation | None:
        """The first collective that runs and that not all shards reach.

        A cast counts if a gradient passes through it.

        Args:
          is_differentiated: for each operand of the call, whether a gradient is taken with respect to it; closed-over
            values come before them in the body.
        """
        diverging = [observation for observation in self.interpreter.observations if observation.control is not None]
        if not diverging:
            return None
        live = _jax.jaxpr.all_equations(_jax.jaxpr.without_dead_equations(self.body))
        used = {var for eqn in live for var in eqn.outvars}
        differentiated = [*[False] * (len(self.body.invars) - len(is_differentiated)), *is_differentiated]

        def is_passed(casts: Sequence[Observation]) -> bool:
            return has_gradient_through(self.interpreter, self.body, differentiated, {id(cast.eqn) for cast in casts})

        casts = [observation for observation in diverging if observation.eqn.primitive.name == control_flow.CAST]
        may_be_passed = any(differentiated) and is_passed(casts)

        def is_run(observation: Observation) -> bool:
            if observation.eqn.primitive.name == control_flow.CAST:
                return may_be_passed and is_passed([observation])
            return not used.isdisjoint(observation.eqn.outvars)

        first = next(filter(is_run, diverging), None)
        if first is None:
            return None
        cause = predicate_cause(self.kinds, first.control, first.what.diverging[0])
        return first._replace(what=replace(first.what, cause=cause))

    def wrong_gradient(self) -> Observation | None:
        """The first result whose wrong JAX type makes a gradient wrong."""
        untyped = self.interpreter.untyped
        if not untyped or not self._has_wrong_gradient({key: axes for key, (_, axes) in untyped.items()}):
            return None
        for key, (eqn, results) in untyped.items():
            if self._has_wrong_gradient({key: results}):
                axes = NO_AXES.union(*results.values())
                is_control = _jax.primitives.primitive(eqn.primitive.name).kind in ("loop", "branch")
                operation = control_flow.control_name(eqn) if is_control else eqn.primitive.name
                in_order = tuple(axis for axis in self.interpreter.sizes if axis in axes)
                return Observation(eqn, UntypedVarying(operation, in_order, is_control))
        return None

    def _has_wrong_gradient(self, untyped: Mapping[int, Any]) -> bool:
        differentiated = [True] * len(self.body.invars)
        return has_gradient_through(self.interpreter, self.body, differentiated, untyped=untyped)

    def contradictions(self) -> list[Observation]:
        """The contradicted claims and the conflicts, with their causes."""
        return [
            observation._replace(what=with_cause(observation.what, self.kinds, id(observation.eqn)))
            for observation in self.interpreter.observations
            if observation.what is not None and observation.control is None
        ]

    def know(self, results: Mapping[int, Layout], **known: Any) -> None:
        """Set the layouts of the results, and other data for judging them and trying cures.

        Args:
          results: the layouts, by the indices of the results.
          known: other arguments of `Kinds`.
        """
        interpreter = self.interpreter
        self.kinds = Kinds(
            self.body, self.entering, results, interpreter.sizes, interpreter.claim_equations, self._name_dim, **known
        )

    @property
    def _has_symbols(self) -> bool:
        """Whether a size is symbolic, as in a program for export."""
        for var in self.body.invars:
            for size in var.aval.shape:
                if size.__class__ is not int:
                    return True
        return False

    def suspects(self, refused: Collection[int] = ()) -> list[Suspicion]:
        """The suspects of the region, and the marked partial sums that it loses.

        Args:
          refused: the indices of the results that are refused.
        """
        if self._has_symbols:
            return []
        try:
            if is_known(self.kinds):
                return []
            axes = [axis for axis, size in self.interpreter.sizes.items() if size > 1]
            suspicions = suspects(self.kinds, axes, refused)
            if not suspicions:
                note_known(self.kinds)
        except Exception:  # the analysis must not stop a program that runs
            if raises_in_readings:
                raise
            return []
        return suspicions

    def failure_of_result(
        self, at: int, stated: LayoutAssertion, origin: Origin, wants_cure: bool = True
    ) -> Failure | None:
        """The failure of a result that contradicts a hint or a spec."""
        aval, fact, interpreter = self.body.outvars[at].aval, self.results[at], self.interpreter
        claim = make_claim(stated, len(aval.shape), origin)
        what = None if claim is None else contradiction(claim, fact, aval.shape, interpreter, True)
        if what is None:
            return None
        failure = Failure(what, stated.subject, stated.hint.text, inferred_type(aval, fact, interpreter))
        return self.with_cause_of_result(failure, at, wants_cure)

    def with_cause_of_result(self, failure: Failure, at: int, wants_cure: bool = True) -> Failure:
        """The failure of a result, with its cause and its place."""
        failure = replace(failure, what=with_cause(failure.what, self.kinds, at, wants_cure))
        maker = _jax.jaxpr.maker_of(self.body, self.body.outvars[at])
        place = failure.cause_place or (_jax.source.equation_place(maker) if maker is not None else "")
        return replace(failure, place=place)


def with_cause(what: Any, kinds: Kinds, key: int, wants_cure: bool = True) -> Any:
    """A fault with its cause, if a value varies or is unreduced over some axes.

    Args:
      what: the fault.
      kinds: the kinds of the region.
      key: the index of the result, or the id of the claim's equation.
      wants_cure: whether to search for a cure.
    """
    if not isinstance(what, UnmentionedVarying | UnmarkedUnreduced):
        return what
    try:
        return replace(what, cause=cause_of(kinds, what.axes, key, wants_cure))
    except Exception:  # the error is raised without its cause
        if raises_in_readings:
            raise
        return what


def inferred_type(aval: Any, fact: ShardingFact, interpreter: FactInterpreter) -> str:
    """A value's type in JAX's notation; under ``check_vma=False`` the inferred type."""
    text = aval.str_short(short_dtypes=True)
    if interpreter.has_vma:
        return text
    marks = [
        f"{letter}:{axes[0] if len(axes) == 1 else '(' + ','.join(axes) + ')'}"
        for letter, names in (("V", fact.varying), ("U", fact.unreduced))
        if (axes := [axis for axis in interpreter.sizes if axis in names])
    ]
    return text + (f"{{{', '.join(marks)}}}" if marks else "")
