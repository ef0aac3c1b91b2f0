"""Analyze the body of one typed region: collect its claims, interpret its jaxpr, and raise or warn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple, final

from .. import _jax
from ..errors import TypedShmapError, warn_of_suspect
from ..errors.failures import Failure, Fault, Subject
from ..errors.places import Place, is_ignored
from ..errors.varying import UnmarkedUnreduced, UnmentionedVarying
from ..hints.context import KnownLayout, LayoutAssertion, MeshContext, current_sink, lookup_assertion, recorded_values
from ..hints.fitting import CheckedLeaf
from ..hints.signature import HintedSignature
from ..notation.layout import NO_AXES, Layout
from ..notation.match import NO_SIZES, Sizes
from ..observers import active, observers
from . import claims
from .facts import FactInterpreter, Observation
from .interpreted_region import RULES, InterpretedRegion, inferred_type, with_cause
from .interpreter import CLAIM
from .kinds.region_kinds import Kinds, Retrace
from .kinds.suspects import Suspicion
from .lattice import AxisSet, ShardingFact, unknown


class RegionAnalysis:
    """The claims of a region's body, until its jaxpr is interpreted.

    A body that is traced a second time, as under differentiation, makes no claims: claims that JAX's types do not
    confirm must have been proven in the first trace.
    """

    def __init__(self, axes: AxisSet) -> None:
        self.axes, self.is_done = axes, False
        self.proven: set[tuple[Any, ...]] = set()

    def begin(self, typed: HintedSignature, region: MeshContext, arguments: Sequence[CheckedLeaf]) -> None:
        """Record the body, its arguments, and the running traces; under differentiation there are several."""
        self.typed, self.arguments = typed, arguments
        ids, is_transformed = _jax.trace.running_traces()
        self.traces = frozenset(ids)
        if self.is_done:
            return
        self.is_transformed = is_transformed
        self.keeps_all = bool(active) and any(observer.keeps_claims for observer in observers())
        self.claims: list[claims.Claim] = []
        self.claim_equations: dict[Any, list[claims.ClaimEquation]] = {}
        self.inner: list[RegionAnalysis] = []
        self.origin = claims.Origin(typed.name, region)
        vars(self).pop("early_interpreter", None)
        around, self.is_inner = current_sink(), False
        if isinstance(around, RegionAnalysis):
            self.is_inner = True
            around.inner.append(self)

    def assert_layout(
        self, value: Any, assertion: LayoutAssertion, layout: Layout | None, known: KnownLayout | None
    ) -> Any:
        """The value, with the claim that it has a layout, unless the layout is known already."""
        if layout is None or (type(value) is not _jax.array.STAGED and not _jax.array.is_tracer(value)):
            return value
        if self.is_done:
            claim = claims.Claim(layout, assertion, self.origin)
            if assertion.must_be_invarying and claim.key not in self.proven:
                raise _unproven_error(claim)
            return value
        is_kept = self.keeps_all and assertion.subject.kind == "checked"
        # Whether an earlier claim or an operation gave the value the same layout.
        is_known = (
            known is not None
            and not assertion.is_assumed
            and assertion.must_be_invarying <= known.invarying
            and assertion.region.checked_axes | layout.axes <= known.covered_axes
            and (known.dim_axes, known.unreduced) == (layout.dim_axes, layout.unreduced)
            and known.varying - known.invarying == layout.varying - known.invarying
        )
        if is_known and not is_kept:
            return value
        stated = assertion._replace(must_be_invarying=NO_AXES) if is_known else assertion
        claim = claims.Claim(layout, stated, self.origin)
        var = _jax.staging.variable_of(value, self.traces)
        # An equation is cheaper than a test whether the claim is implied, unless it is transformed. Observers may need
        # every check.
        may_be_implied = var is None and not is_kept
        is_costly = may_be_implied and (self.is_transformed or _jax.staging.is_transformed_before(value, self.traces))
        if is_costly and claims.is_implied(value, claim, self.early_interpreter):
            return value
        self.claims.append(claim)
        # Observers read claims in the jaxpr, and a jaxpr that is traced once for several calls has no claims beside it.
        if var is None or self.is_inner or self.keeps_all:
            return claims.insert_claim(value, claim, self.traces)
        self.claim_equations.setdefault(var, []).append(claims.claim_equation(var, claim, value))
        return value

    @property
    def unproven_claims(self) -> list[claims.Claim]:
        return [claim for claim in self.claims if claim.assertion.must_be_invarying]

    @property
    def unproven(self) -> list[str]:
        """The claims that are still to be proven, in words."""
        return [
            f"{stated.subject.phrase} of {stated.function} is equal over "
            f"{', '.join(map(repr, _unproven_axes(stated)))}, as {stated.hint.text} says"
            for stated in (claim.assertion for claim in self.unproven_claims)
        ]

    def with_cause(self, value: Any, what: Fault, layout: Layout | None) -> Fault:
        """A fault of a value with its cause, as far as the body has been traced."""
        below = _jax.array.undifferentiated(value)
        if not _jax.staging.is_staged(below) or not isinstance(what, UnmentionedVarying | UnmarkedUnreduced):
            return what
        others = frozenset(self.origin.region.sizes) - {*what.axes}
        results = {0: layout or Layout((), varying=others)}
        return with_cause(what, self._interpret_unfinished([below], results)[1], 0)

    def earlier_contradiction(self) -> TypedShmapError | None:
        """The error of a contradicted claim that precedes a failing operation, and may be the reason."""
        claimed = (eqn.value() for eqns in self.claim_equations.values() for eqn in eqns)
        values_by_trace: dict[int, list[Any]] = {}
        for value in (*recorded_values(), *claimed) if self.claims else ():
            if _jax.staging.is_staged(value):
                values_by_trace.setdefault(_jax.staging.trace_id(value), []).append(value)
        wrong: dict[int, tuple[Observation, Kinds]] = {}
        for values in values_by_trace.values():
            observations, kinds = self._interpret_unfinished(values)
            faults = [observation for observation in observations if observation.claim and observation.what is not None]
            wrong |= {id(observation.claim): (observation, kinds) for observation in faults}
        first = next((wrong[id(claim)] for claim in self.claims if id(claim) in wrong), None)
        if first is None:
            return None
        observation, kinds = first
        what = with_cause(observation.what, kinds, id(observation.eqn))
        return _error_of([_contradiction(observation._replace(what=what), self.origin, self.early_interpreter)])

    def _interpret_unfinished(
        self, values: Sequence[Any], results: Mapping[int, Layout] = MappingProxyType({})
    ) -> tuple[list[Observation], Kinds]:
        """Interpret the equations that made some values: the observations, unless an operand is unknown, and the kinds.

        Args:
          values: the values.
          results: the required layouts of some values, by their indices.
        """
        jaxpr, has_vma = _jax.staging.unfinished_jaxpr(values), self.origin.region.has_vma
        interpreter = self.interpreter(has_vma, self.claim_equations)
        known = [claims.fact_of_operand(operand, interpreter.axes, has_vma) for operand in jaxpr.operands]
        ranks = [len(_jax.array.aval_of(operand).shape) for operand in jaxpr.operands]
        facts = [fact or unknown(interpreter.axes, rank) for fact, rank in zip(known, ranks, strict=True)]
        interpreter.interpret(jaxpr, facts)
        stated = [lookup_assertion(operand) for operand in jaxpr.operands]

        def name_dim(at: int, axis: str) -> tuple[str, str]:
            assertion, rank = stated[at], ranks[at]
            layout = assertion.region.manual_layout(assertion.hint, rank) if assertion is not None else None
            if assertion is None or layout is None:
                return "", ""
            return claims.dim_name(layout, assertion.hint, axis), assertion.subject.phrase

        kinds = Kinds(jaxpr, facts, results, interpreter.sizes, interpreter.claim_equations, name_dim)
        return [] if None in known else interpreter.observations, kinds

    @property
    def origins(self) -> set[claims.Origin]:
        """The bodies of this region and of its inner regions in the current trace."""
        return {self.origin}.union(*[inner.origins for inner in self.inner])

    def name_dim(self, at: int, axis: str) -> tuple[str, str]:
        """The name of the dim of an operand that is sharded over an axis, in its hint, and the argument.

        Args:
          at: the operand, counted from the last, since closed-over values come before the arguments.
          axis: the mesh axis.
        """
        hinted = [leaf for leaf in self.arguments if leaf.hint is not None]
        argument = hinted[at] if len(hinted) >= -at else None
        if argument is None or argument.hint is None:
            return "", ""
        layout = self.origin.region.layout(argument.hint)
        name = claims.dim_name(layout, argument.hint, axis) if isinstance(layout, Layout) else ""
        return name, argument.subject.phrase

    def interpreter(self, has_vma: bool, claim_equations: Any = None) -> FactInterpreter:
        """An interpreter over the axes of the analysis that judges claims."""
        region = self.origin.region
        sizes = {axis: size for axis, size in region.manual if axis in region.checked_axes}
        interpreter = FactInterpreter(sizes, has_vma, RULES, claim_equations)
        interpreter.rules[CLAIM] = partial(_judge_claim, self.origins, self.origin)
        return interpreter

    @cached_property
    def early_interpreter(self) -> FactInterpreter:
        """The interpreter for claims that are judged during the trace."""
        return self.interpreter(self.origin.region.has_vma)


@final
class Refused(NamedTuple):
    """The failure of a result whose JAX type contradicts its hint. The result still leaves: the jaxpr shows the cause.

    Attributes:
      failure: the failure.
      sizes: the sizes bound in the call.
      stated: the hint.
    """

    failure: Failure
    sizes: Sizes
    stated: LayoutAssertion | None


def analyze_region(
    analysis: RegionAnalysis,
    traced: _jax.regions.TracedRegion | None,
    operands: Sequence[Any],
    results: Sequence[LayoutAssertion | Refused | None],
    retrace: Retrace | None = None,
) -> bool:
    """Interpret a traced region, raise the first contradiction of its body, and warn of suspects.

    Args:
      analysis: the claims of the body.
      traced: the region; None if the jaxpr lacks it because nothing uses its results.
      operands: the operands of the call.
      results: the hints of the results, or the failures of those whose types contradict them.
      retrace: traces the body for another size of an axis.

    Returns:
      Whether the region has all claims of the body. It does not if it is differentiated during the trace and a loop has
      a claim about an unused value; then the body must be traced alone.

    Raises:
      VaryingError, ShardingError: for a claim that contradicts the jaxpr, with its place.
    """
    refused = [result for result in results if isinstance(result, Refused)]
    if traced is None and refused:
        raise analysis.origin.region.error(
            analysis.typed.name, [result.failure for result in refused], refused[0].sizes
        )
    if traced is None:
        return True
    params, origin = traced.eqn.params, analysis.origin
    has_vma, claim_equations = bool(params["check_vma"]), analysis.claim_equations
    region = InterpretedRegion(params, lambda: analysis.interpreter(has_vma, claim_equations), analysis.name_dim)
    body = region.body
    judged = [observation for observation in region.interpreter.observations if observation.claim is not None]
    if traced.is_differentiated and not {*map(id, analysis.claims)} <= {
        id(observation.claim) for observation in judged
    }:
        return False
    taken = [*map(_jax.array.has_gradient_taken, operands)]
    if first := region.divergence(taken) or region.wrong_gradient():
        raise _error_of([_contradiction(first, origin, region.interpreter)])
    _know(analysis, region, zip(results, traced.results, strict=True), retrace)
    contradicted = [_at_its_making(observation, body) for observation in region.contradictions()]
    wrong = [_contradiction(observation, origin, region.interpreter) for observation in contradicted]
    suspected = [] if wrong or refused else region.suspects()
    for suspect in suspected:
        if suspect.is_error:
            failure = Failure(suspect.failure, Subject("whole", "body"), place=suspect.place)
            wrong.append(Contradiction(failure, origin.function, origin.region))
    if (judged or analysis.claims) and not wrong:
        _refuse_unproven(analysis, judged, body)
    fitting = set[Any]()  # most results are similar
    for result, at in zip(results, traced.results, strict=True):
        if result is None:
            continue
        if type(result) is Refused:
            failure = region.with_cause_of_result(result.failure, at, wants_cure=not wrong)
        else:
            kind = (result.hint, region.results[at], body.outvars[at].aval.shape)
            if kind in fitting:
                continue
            failure = region.failure_of_result(at, result, origin, wants_cure=not wrong)
            if failure is None:
                fitting.add(kind)
                continue
            cause = getattr(failure.what, "cause", None)
            if failure.subject.kind == "spec" and cause is not None and cause.may_agree:
                continue  # a PartitionSpec states that the shards agree; a hint needs assume for that
        wrong.append(Contradiction(failure, analysis.typed.name, origin.region, result.sizes))
    if wrong:
        raise _error_of(wrong)
    for suspect in suspected:
        _warn(suspect._replace(place=suspect.place or analysis.typed.return_place), origin)
    analysis.is_done = True
    return True


def _know(
    analysis: RegionAnalysis,
    region: InterpretedRegion,
    results: Iterable[tuple[LayoutAssertion | Refused | None, int]],
    retrace: Retrace | None,
) -> None:
    """Pass the layouts of the results to a region, with the options of its analysis."""
    layouts, hints = dict[int, Layout](), dict[int, Any]()
    for stated, at in results:
        claimed = stated.stated if isinstance(stated, Refused) else stated
        if claimed is not None:
            hint = hints[at] = claimed.hint
            layout = claimed.region.manual_layout(hint, len(region.body.outvars[at].aval.shape))
            if layout is not None:
                layouts[at] = layout

    def is_bound(at: int, axis: str) -> bool:
        name = claims.dim_name(layouts[at], hints[at], axis)
        return any(name in leaf.hint.spec.names for leaf in analysis.arguments if leaf.hint is not None)

    region.know(
        layouts,
        retrace=retrace,
        function=analysis.typed.function,
        is_bound=is_bound,
        is_thorough=bool(active) and any(observer.is_thorough for observer in observers()),
    )


def _warn(suspect: Suspicion, origin: claims.Origin) -> None:
    """Warn of a suspect, unless its line ignores it."""
    place = suspect.place
    if isinstance(place, Place) and is_ignored(place.file, place.line, suspect.failure.kind):
        return
    failure = Failure(suspect.failure, Subject("whole", "body"), place=place)
    text = str(origin.region.report(origin.function, (failure,), NO_SIZES, place))
    warn_of_suspect(text, *_jax.source.place_line(place))
    for observer in observers():
        observer.suspect(origin.function, failure)


def _judge_claim(
    origins: set[claims.Origin],
    origin: claims.Origin,
    interpreter: FactInterpreter,
    eqn: Any,
    facts: list[ShardingFact],
) -> Sequence[ShardingFact]:
    """The transfer rule of claims; a claim of another body, whose jaxpr is reused, is made again for this body."""
    claim: claims.Claim | None = eqn.params["claim"]
    if claim is not None and claim.origin not in origins:
        claim = claims.remake_claim(claim, origin)
    return facts if claim is None else claims.judge_claim(interpreter, eqn, claim, facts)


def _refuse_unproven(analysis: RegionAnalysis, judged: Sequence[Observation], jaxpr: Any) -> None:
    """Refuse claims in equations that were not interpreted, and note the proven claims.

    A claim that is no longer in the jaxpr is dropped: it is about an unused value of a differentiated loop.
    """
    unproven, seen = analysis.unproven_claims, {id(observation.eqn.params["claim"]) for observation in judged}
    if any(id(claim) not in seen for claim in unproven):
        left = {id(eqn.params["claim"]) for eqn in _jax.jaxpr.all_equations(jaxpr) if eqn.primitive.name == CLAIM}
        for claim in unproven:
            if id(claim) in left - seen:
                raise _unproven_error(claim)
    stated = [observation.claim for observation in judged]
    analysis.proven |= {claim.key for claim in [*unproven, *stated] if claim.assertion.must_be_invarying}


def _unproven_axes(stated: LayoutAssertion) -> tuple[str, ...]:
    """The axes of a claim that is still to be proven, in the mesh's order."""
    return tuple(axis for axis in stated.region.sizes if axis in stated.must_be_invarying)


def _unproven_error(claim: claims.Claim) -> TypedShmapError:
    stated = claim.assertion
    failure = Failure(UnmentionedVarying(_unproven_axes(stated), False), stated.subject, stated.hint.text)
    return stated.region.error(stated.function, (failure,), stated.sizes)


def _at_its_making(observation: Observation, body: Any) -> Observation:
    """An observation of a function's result, with the equation that made the result instead of the claim."""
    is_result = observation.claim is not None and observation.claim.assertion.subject.kind == "return"
    maker = _jax.jaxpr.maker_of(body, observation.eqn.invars[0]) if is_result else None
    return observation if maker is None else observation._replace(eqn=maker)


class Contradiction(NamedTuple):
    """A failure in a body, with the context of its message.

    Attributes:
      failure: the failure, with its place.
      function: the function of the hint, check or operation.
      region: its mesh context.
      sizes: the sizes bound there.
    """

    failure: Failure
    function: str
    region: MeshContext
    sizes: Sizes = NO_SIZES


def _error_of(wrong: Sequence[Contradiction]) -> TypedShmapError:
    """The error for all contradictions, without those that a loop repeats; the first is reported in full."""
    first, failures = wrong[0], list(dict.fromkeys(contradiction.failure for contradiction in wrong))
    return first.region.error(first.function, failures, first.sizes, first.failure.place)


def _contradiction(observation: Observation, origin: claims.Origin, interpreter: FactInterpreter) -> Contradiction:
    """The contradiction of a claim, or of an operation whose operands have conflicting shardings."""
    place = _jax.source.equation_place(observation.eqn) if observation.eqn is not None else ""
    if observation.claim is None:
        failure = Failure(observation.what, Subject("whole", "body"), place=place)
        return Contradiction(failure, origin.function, origin.region)
    text, stated = inferred_type(observation.aval, observation.fact, interpreter), observation.claim.assertion
    failure = Failure(observation.what, stated.subject, stated.hint.text, text, place)
    if stated.subject.kind == "return":
        failure = replace(failure, place=failure.cause_place or place)
    return Contradiction(failure, stated.function, stated.region, stated.sizes)
