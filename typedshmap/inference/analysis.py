"""Analyze the body of one region: have its jaxpr interpreted, and judge the claims that wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple, final

from .. import _jax
from ..errors import TypedShmapError, warn_of_suspect
from ..errors.failures import Failure, Fault, Subject
from ..errors.places import Place, is_ignored
from ..errors.varying import UnmarkedUnreduced, UnmentionedVarying
from ..hints.check_tree import CheckedLeaf
from ..hints.context import KnownLayout, LayoutAssertion, MeshContext, current_sink, lookup_assertion, recorded_values
from ..hints.signature import HintedSignature
from ..notation.layout import Layout
from ..notation.match import NO_SIZES, Sizes
from ..observers import active, observers
from . import claims
from .facts import FactInterpreter, Observation
from .interpreter import CLAIM
from .kinds.region import Kinds, Retrace
from .kinds.suspects import Suspicion
from .lattice import NO_AXES, AxisSet, ShardingFact, unknown
from .region import RULES, InterpretedRegion, inferred_type, with_cause

NOTHING_CLAIMED: Mapping[int, Layout] = {}


class RegionAnalysis:
    """What the body of a region claims, until its jaxpr is interpreted.

    A body that is traced a second time, under differentiation for instance, makes no claims any more:
    what JAX's types do not confirm must be among what was proven in the first trace.
    """

    def __init__(self, axes: AxisSet) -> None:
        self.axes, self.is_done = axes, False
        self.proven_claims: list[claims.Claim] = []
        self.proven_keys: set[tuple[Any, ...]] = set()

    def begin(self, typed: HintedSignature, region: MeshContext, arguments: Sequence[CheckedLeaf]) -> None:
        """Note the body, its arguments, and the traces in which its claims stay.

        The region around notes the regions within it.

        A body that is differentiated as it is traced has several: one differentiates what it hands on to the next.
        """
        self.typed, self.arguments = typed, arguments
        ids, is_transformed = _jax.trace.running_traces()
        self.traces = frozenset(ids)
        if self.is_done:
            return
        self.is_transformed, self.keeps_all = (
            is_transformed,
            bool(active) and any(each.keeps_claims for each in observers()),
        )
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
        """The value, with the claim that it has a layout, unless that is known already."""
        if layout is None or (type(value) is not _jax.array.STAGED and not _jax.array.is_tracer(value)):
            return value
        if self.is_done:
            claim = claims.Claim(layout, assertion, self.origin)
            if assertion.must_be_invarying and not self.is_proven(claim):
                raise _unproven_error(claim)
            return value
        is_kept = self.keeps_all and assertion.subject.kind == "checked"
        # Whether the same was claimed of the value before, or an operation made it so.
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
        # An equation costs less than to find out whether the claim is implied, unless it is transformed; and observers
        # may want each check.
        may_be_implied = var is None and not is_kept
        is_costly = may_be_implied and (self.is_transformed or _jax.staging.is_transformed_before(value, self.traces))
        if is_costly and claims.is_implied(value, claim, self.early_interpreter):
            return value
        self.claims.append(claim)
        # Observers read the jaxpr; and one that was traced before comes without what was noted beside it.
        if var is None or self.is_inner or self.keeps_all:
            return claims.insert_claim(value, claim, self.traces)
        self.claim_equations.setdefault(var, []).append(claims.claim_equation(var, claim, value))
        return value

    def is_proven(self, claim: claims.Claim) -> bool:
        """Whether an earlier trace has proven the same; most bodies are traced once, and nobody asks."""
        self.proven_keys.update(proven.key for proven in self.proven_claims)
        self.proven_claims.clear()
        return claim.key in self.proven_keys

    @property
    def unproven_claims(self) -> list[claims.Claim]:
        return [claim for claim in self.claims if claim.assertion.must_be_invarying]

    @property
    def unproven(self) -> list[str]:
        """What is still to be proven, in words."""
        return [
            f"{stated.subject.phrase} of {stated.function} is equal over "
            f"{', '.join(map(repr, _unproven_axes(stated)))}, as {stated.hint.text} says"
            for stated in (claim.assertion for claim in self.unproven_claims)
        ]

    def with_cause(self, value: Any, what: Fault, layout: Layout | None) -> Fault:
        """What is wrong with a value, with its cause, as far as the body has been traced."""
        below = _jax.array.undifferentiated(value)
        if not _jax.staging.is_staged(below):
            return what
        if not isinstance(what, UnmentionedVarying | UnmarkedUnreduced):
            return what
        others = frozenset(self.origin.region.sizes) - {*what.axes}
        results = {0: layout or Layout((), varying=others)}
        return with_cause(what, self._interpret_unfinished([below], results)[1], 0)

    def earlier_contradiction(self) -> TypedShmapError | None:
        """The error of a claim before an operation that refuses, which the wrong claim may have brought about.

        It may be the operation's own claim of an operand.
        """
        claimed = (eqn.value() for eqns in self.claim_equations.values() for eqn in eqns)
        values_by_trace: dict[int, list[Any]] = {}
        for value in (*recorded_values(), *claimed) if self.claims else ():
            if _jax.staging.is_staged(value):
                values_by_trace.setdefault(_jax.staging.trace_id(value), []).append(value)
        wrong: dict[int, tuple[Observation, Kinds]] = {}
        for values in values_by_trace.values():
            observations, kinds = self._interpret_unfinished(values)
            wrong |= {
                id(found.claim): (found, kinds) for found in observations if found.claim and found.what is not None
            }
        first = next((wrong[id(claim)] for claim in self.claims if id(claim) in wrong), None)
        if first is None:
            return None
        found, kinds = first
        what = with_cause(found.what, kinds, id(found.eqn))
        return _error_of([_contradiction(found._replace(what=what), self.origin, self.early_interpreter)])

    def _interpret_unfinished(
        self, values: Sequence[Any], results: Mapping[int, Layout] = NOTHING_CLAIMED
    ) -> tuple[list[Observation], Kinds]:
        """What the equations behind some values show: of claims, unless too little is known, and what values are.

        Args:
          values: the values.
          results: by their places, what some of them have to be.
        """
        jaxpr, has_vma = _jax.staging.unfinished_jaxpr(values), self.origin.region.has_vma
        interpreter = self.interpreter(has_vma, self.claim_equations)
        known = [claims.fact_of_operand(operand, interpreter.axes, has_vma) for operand in jaxpr.operands]
        ranks = [len(_jax.array.aval_of(operand).shape) for operand in jaxpr.operands]
        facts = [fact or unknown(interpreter.axes, rank) for fact, rank in zip(known, ranks, strict=True)]
        interpreter.interpret(jaxpr, facts)
        stated = [lookup_assertion(operand) for operand in jaxpr.operands]

        def name_dim(at: int, axis: str) -> tuple[str, str]:
            one, rank = stated[at], ranks[at]
            layout = one.region.manual_layout(one.hint, rank) if one is not None else None
            if one is None or layout is None:
                return "", ""
            return claims.dim_name(layout, one.hint, axis), one.subject.phrase

        kinds = Kinds(jaxpr, facts, results, interpreter.sizes, interpreter.claim_equations, name_dim)
        return [] if None in known else interpreter.observations, kinds

    @property
    def origins(self) -> set[claims.Origin]:
        """The bodies of this region and of those within it, as they are traced now."""
        return {self.origin}.union(*[inner.origins for inner in self.inner])

    def name_dim(self, at: int, axis: str) -> tuple[str, str]:
        """What its hint calls the dim of an operand of the body that is sharded over an axis, and the argument.

        Args:
          at: which operand it is, counted from the last: what the body closes over comes before its arguments.
        """
        hinted = [leaf for leaf in self.arguments if leaf.hint is not None]
        argument = hinted[at] if len(hinted) >= -at else None
        if argument is None or argument.hint is None:
            return "", ""
        layout = self.origin.region.layout(argument.hint)
        name = claims.dim_name(layout, argument.hint, axis) if isinstance(layout, Layout) else ""
        return name, argument.subject.phrase

    def interpreter(self, has_vma: bool, claim_equations: Any = None) -> FactInterpreter:
        """An interpreter over the axes of the analysis, which judges claims."""
        region = self.origin.region
        sizes = {axis: size for axis, size in region.manual if axis in region.checked_axes}
        interpreter = FactInterpreter(sizes, has_vma, RULES, claim_equations)
        interpreter.rules[CLAIM] = partial(_judge_claim, self.origins, self.origin)
        return interpreter

    @cached_property
    def early_interpreter(self) -> FactInterpreter:
        """One for what is judged while the body is traced."""
        return self.interpreter(self.origin.region.has_vma)


@final
class Refused(NamedTuple):
    """What is wrong with a result by its type; it leaves all the same, since the body's jaxpr shows since when.

    Attributes:
      failure: what is wrong.
      sizes: what was bound in the call.
      stated: what its hint says.
    """

    failure: Failure
    sizes: Sizes
    stated: LayoutAssertion | None


def analyze_region(
    analysis: RegionAnalysis,
    traced: _jax.jaxpr.TracedRegion | None,
    operands: Sequence[Any],
    results: Sequence[LayoutAssertion | Refused | None],
    retrace: Retrace | None = None,
) -> bool:
    """Interpret a traced region, raise what its body contradicts, the first first, and warn of suspects.

    Args:
      analysis: the claims that wait for it.
      traced: the region; None for one that is not in the jaxpr, since nothing comes of it.
      operands: what it is called with.
      results: what is claimed of its results, or what is wrong with one by its type.
      retrace: traces its body for another size of an axis.

    Returns:
      Whether all claims of the body are in the region: not if it was differentiated as it was traced, and
      something was claimed in a loop of a value that nothing uses; then the body is to be traced by itself.

    Raises:
      VaryingError, ShardingError: for a claim that contradicts what is known, with its place.
    """
    refused = [result for result in results if isinstance(result, Refused)]
    if traced is None and refused:
        raise analysis.origin.region.error(analysis.typed.name, [one.failure for one in refused], refused[0].sizes)
    if traced is None:
        return True
    params, origin = traced.eqn.params, analysis.origin
    has_vma, claim_equations = bool(params["check_vma"]), analysis.claim_equations
    region = InterpretedRegion(params, lambda: analysis.interpreter(has_vma, claim_equations), analysis.name_dim)
    body = region.body
    judged = [found for found in region.interpreter.observations if found.claim is not None]
    if traced.is_differentiated and not {*map(id, analysis.claims)} <= {id(found.claim) for found in judged}:
        return False
    taken = [*map(_jax.array.has_gradient_taken, operands)]
    if first := region.divergence(taken) or region.wrong_gradient():
        raise _error_of([_contradiction(first, origin, region.interpreter)])
    _know(analysis, region, zip(results, traced.results, strict=True), retrace)
    wrong = [
        _contradiction(_at_its_making(found, body), origin, region.interpreter) for found in region.contradictions()
    ]
    suspected = [] if wrong or refused else region.suspects()
    for each in suspected:
        if each.is_error:
            failure = Failure(each.failure, Subject("whole", "body"), place=each.place)
            wrong.append(Contradiction(failure, origin.function, origin.region))
    if (judged or analysis.claims) and not wrong:
        _refuse_unproven(analysis, judged, body)
    fitting = set[Any]()  # most results are like others
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
                continue  # a PartitionSpec states it, as JAX takes it; a hint has assume for that
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
    """Have a region know what its results are said to be, and what else its reading takes."""
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
        is_thorough=bool(active) and any(each.is_thorough for each in observers()),
    )


def _warn(suspect: Suspicion, origin: claims.Origin) -> None:
    """Warn of a suspect, unless its line says that it is meant."""
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
    """The transfer rule of claims; those in a jaxpr that was traced before are made anew."""
    claim: claims.Claim | None = eqn.params["claim"]
    if claim is not None and claim.origin not in origins:
        claim = claims.remake_claim(claim, origin)
    return facts if claim is None else claims.judge_claim(interpreter, eqn, claim, facts)


def _refuse_unproven(analysis: RegionAnalysis, judged: Sequence[Observation], jaxpr: Any) -> None:
    """Refuse claims in equations that were not interpreted, and note what has been proven.

    A claim that is no longer in the jaxpr, since nothing used the value in a loop that is differentiated, is dropped.
    """
    unproven, seen = analysis.unproven_claims, {id(found.eqn.params["claim"]) for found in judged}
    if any(id(claim) not in seen for claim in unproven):
        left = {id(eqn.params["claim"]) for eqn in _jax.jaxpr.all_equations(jaxpr) if eqn.primitive.name == CLAIM}
        for claim in unproven:
            if id(claim) in left - seen:
                raise _unproven_error(claim)
    analysis.proven_claims += unproven
    analysis.proven_claims += [found.claim for found in judged if found.claim.assertion.must_be_invarying]


def _unproven_axes(stated: LayoutAssertion) -> tuple[str, ...]:
    """The axes of what is still to be proven, in the mesh's order."""
    return tuple(axis for axis in stated.region.sizes if axis in stated.must_be_invarying)


def _unproven_error(claim: claims.Claim) -> TypedShmapError:
    stated = claim.assertion
    failure = Failure(UnmentionedVarying(_unproven_axes(stated), False), stated.subject, stated.hint.text)
    return stated.region.error(stated.function, (failure,), stated.sizes)


def _at_its_making(found: Observation, body: Any) -> Observation:
    """A finding about what a function returned, where that was made; its claim is where the function was called."""
    is_result = found.claim is not None and found.claim.assertion.subject.kind == "return"
    maker = _jax.jaxpr.maker_of(body, found.eqn.invars[0]) if is_result else None
    return found if maker is None else found._replace(eqn=maker)


class Contradiction(NamedTuple):
    """What is wrong in a body, and what its message needs.

    Attributes:
      failure: what is wrong, with its place.
      function: the function whose hint, check or operation it is.
      region: where that is.
      sizes: what was bound there.
    """

    failure: Failure
    function: str
    region: MeshContext
    sizes: Sizes = NO_SIZES


def _error_of(wrong: Sequence[Contradiction]) -> TypedShmapError:
    """The error for all that is wrong; the first is told in full, and what is told twice, as of a loop, once."""
    first, failures = wrong[0], list(dict.fromkeys(each.failure for each in wrong))
    return first.region.error(first.function, failures, first.sizes, first.failure.place)


def _contradiction(found: Observation, origin: claims.Origin, interpreter: FactInterpreter) -> Contradiction:
    """What is wrong with a claim, or with an operation that makes no sense."""
    place = _jax.source.equation_place(found.eqn) if found.eqn is not None else ""
    if found.claim is None:
        failure = Failure(found.what, Subject("whole", "body"), place=place)
        return Contradiction(failure, origin.function, origin.region)
    text, stated = inferred_type(found.aval, found.fact, interpreter), found.claim.assertion
    failure = Failure(found.what, stated.subject, stated.hint.text, text, place)
    if stated.subject.kind == "return":
        failure = replace(failure, place=failure.cause_place or place)
    return Contradiction(failure, stated.function, stated.region, stated.sizes)
