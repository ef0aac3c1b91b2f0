"""Analyze the body of one region: have its jaxpr interpreted, and judge the claims that wait for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax

from .. import _jax
from ..errors import TypedShmapError, error_of
from ..errors.failures import Failure, ShardingConflict, UnmentionedVarying
from ..hints.context import LayoutAssertion, MeshContext, current_sink, lookup_layout
from ..notation.match import NO_SIZES, Subject
from . import claims, collectives, control_flow, elementwise, reshape
from .control_flow import fact_of_spec
from .interpreter import CLAIM, Interpreter, TransferRule
from .lattice import NO_AXES, AxisSet, ConflictAtEquation, ShardingFact

RULES: Mapping[str, TransferRule] = {
    **dict.fromkeys(elementwise.SAME_SHAPE_FIRST, elementwise.elementwise_1),
    **dict.fromkeys(elementwise.SAME_SHAPE, elementwise.same_shape),
    **dict.fromkeys(elementwise.ELEMENTWISE, elementwise.elementwise),
    **reshape.RULES,
    **elementwise.RULES,
    **collectives.RULES,
    **control_flow.RULES,
}


class RegionAnalysis:
    """What the body of a region claims, until its jaxpr is interpreted.

    A body that is traced a second time, under differentiation for instance, makes no claims any more:
    what JAX's types do not confirm must be among what was proven in the first trace.
    """

    def __init__(self, axes: AxisSet) -> None:
        self.axes = axes
        self.claims: list[claims.Claim] = []
        self.unproven_claims: list[claims.Claim] = []
        self.proven: set[tuple[Any, ...]] = set()
        self.is_done = False
        self.traces: frozenset[int] = frozenset()
        self.claim_equations: dict[Any, list[claims.ClaimEquation]] = {}
        self.doubted: _DoubtedClaim | None = None
        self.inner: list[RegionAnalysis] = []

    def begin(self, function: str, region: MeshContext) -> None:
        """Note the body, and the traces in which its claims stay; the region around notes the regions within it.

        A body that is differentiated as it is traced has several: one differentiates what it hands on to the next.
        """
        self.traces = frozenset(_jax.trace.trace_ids())
        if self.is_done:
            return
        self.claims, self.unproven_claims, self.inner = [], [], []
        self.claim_equations, self.doubted = {}, None
        self.origin = claims.Origin(function, region)
        self.early_interpreter = Interpreter(self.sizes, region.has_vma, {**RULES, CLAIM: _claim_rule(self)})
        around = current_sink()
        self.is_inner = isinstance(around, RegionAnalysis)
        if isinstance(around, RegionAnalysis):
            around.inner.append(self)

    def assert_layout(self, value: Any, assertion: LayoutAssertion) -> Any:
        """The value, with the claim that it has a layout, unless that is known already."""
        if not _jax.array.is_tracer(value):
            return value
        layout = assertion.region.manual_layout(assertion.hint, len(_jax.array.aval_of(value).shape))
        if layout is None:
            return value
        if self.is_done:
            claim = claims.Claim(layout, assertion, self.origin)
            if claim.must_be_invarying and claim.key not in self.proven:
                raise _unproven_error(claim)
            return value
        keeps_all: bool = _keep_all_claims.value
        is_kept = keeps_all and assertion.subject.kind == "checked"
        # Whether the same was claimed of the value before, or an operation made it so.
        known = lookup_layout(value)
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
        claim = claims.Claim(
            layout, assertion._replace(must_be_invarying=NO_AXES) if is_known else assertion, self.origin
        )
        var = _jax.jaxpr.variable_of(value, self.traces)
        # Tools ask for each check, also for those that are implied.
        if var is None and not is_kept and claims.is_implied(value, claim, self.early_interpreter):
            return value
        self.claims.append(claim)
        if claim.must_be_invarying:
            self.unproven_claims.append(claim)
            if var is None:
                # In a loop or a call: note what is known by now against it.
                found = claims.known_contradiction(value, claim, self.early_interpreter)
                if found is not None:
                    aval, eqn = _jax.array.aval_of(value), _jax.jaxpr.equation_of(value)
                    self.doubted = _DoubtedClaim(claim, *found, aval, eqn)
        # Tools read the jaxpr; and one that was traced before comes without what was noted beside it.
        if var is None or self.is_inner or keeps_all:
            return claims.insert_claim(value, claim, _jax.trace.trace_ids()[0] in self.traces)
        self.claim_equations.setdefault(var, []).append(claims.claim_equation(var, claim))
        return value

    @property
    def unproven(self) -> list[str]:
        """What is still to be proven, in words."""
        axes = [
            ", ".join(f"'{axis}'" for axis in claim.region.sizes if axis in claim.must_be_invarying)
            for claim in self.unproven_claims
        ]
        return [
            f"{claim.subject.phrase} of {claim.function} is equal over {over}, as {claim.text} says"
            for claim, over in zip(self.unproven_claims, axes, strict=True)
        ]

    def explain_loop_error(self, error: Exception) -> TypedShmapError | None:
        """The error behind JAX's, of a loop's carry whose type another iteration changes since a sum was forgotten.

        JAX raises it before the jaxpr is complete; what it advises makes the carry vary and hides the cause.
        """
        doubted = self.doubted
        if doubted is None or not isinstance(error, TypeError):
            return None
        if not all(re.search(rf"\b{re.escape(axis)}\b", str(error)) for axis in doubted.what.axes):
            return None
        return _claim_error(
            doubted.claim, doubted.what, doubted.fact, doubted.aval, doubted.eqn, self.early_interpreter
        )

    @property
    def sizes(self) -> dict[str, int]:
        """The mesh axes of the analysis, with their sizes."""
        region = self.origin.region
        return {axis: size for axis, size in region.manual if axis in region.checked_axes}

    @property
    def origins(self) -> set[claims.Origin]:
        """The bodies of this region and of those within it, as they are traced now."""
        return {self.origin}.union(*(inner.origins for inner in self.inner))


class _DoubtedClaim(NamedTuple):
    """A claim that a value is invarying, which is computed from varying ones; the value's type and equation."""

    claim: claims.Claim
    what: UnmentionedVarying
    fact: ShardingFact
    aval: Any
    eqn: Any


# Among JAX's own contexts, so that what was traced with all claims is never used where they add to a jaxpr.
_keep_all_claims = jax.make_user_context(default_value=False)


def keep_all_claims() -> AbstractContextManager[None]:
    """Let each ``check`` leave a claim, also of what is known already: for tools that report what a body checks."""
    return _keep_all_claims(True)


def analyze_region(
    analysis: RegionAnalysis, traced: _jax.jaxpr.TracedRegion | None, results: Sequence[LayoutAssertion | None]
) -> bool:
    """Interpret a traced region, and raise its first error.

    Args:
      analysis: the claims that wait for it.
      traced: the region; None for one that is not in the jaxpr, since nothing comes of it.
      results: what is claimed of its results.

    Returns:
      Whether all claims of the body are in the region: not if it was differentiated as it was traced, and
      something was claimed in a loop of a value that nothing uses; then the body is to be traced by itself.

    Raises:
      VaryingError, ShardingError: for a claim that contradicts what is known, with its place.
    """
    if traced is None:
        return True
    params, axes, origin = traced.eqn.params, analysis.sizes, analysis.origin
    rules = {**RULES, CLAIM: _claim_rule(analysis)}
    interpreter = Interpreter(axes, bool(params["check_vma"]), rules, analysis.claim_equations)
    body, names = params["jaxpr"], frozenset(axes)
    pairs = zip(params["in_specs"], body.invars, strict=True)
    out = interpreter.interpret(body, [fact_of_spec(spec, len(var.aval.shape), names) for spec, var in pairs])
    verdicts = [found for found in interpreter.findings if isinstance(found, claims.Verdict)]
    if traced.is_differentiated:
        judged = {id(verdict.claim) for verdict in verdicts}
        if not all(id(claim) in judged for claim in analysis.claims):
            return False
    for found in interpreter.findings:
        if isinstance(found, ConflictAtEquation):
            what = ShardingConflict(found.eqn.primitive.name, found.where, found.first, found.second)
            failure, place = Failure(what, Subject("whole", "body")), _jax.jaxpr.equation_place(found.eqn)
            raise _error_at_place(origin.region, origin.function, failure, NO_SIZES, place)
        if found.what is not None:
            raise _claim_error(found.claim, found.what, found.fact, found.eqn.invars[0].aval, found.eqn, interpreter)
    _refuse_unproven(analysis, verdicts, body)
    for assertion, at in zip(results, traced.results, strict=True):
        var, fact = body.outvars[at], out[at]
        claim = claims.make_claim(assertion, len(var.aval.shape), origin) if assertion is not None else None
        what = claims.contradiction(claim, fact, var.aval.shape, interpreter) if claim is not None else None
        if claim is not None and what is not None:
            eqn = next((eqn for eqn in reversed(body.eqns) if any(result is var for result in eqn.outvars)), None)
            raise _claim_error(claim, what, fact, var.aval, eqn, interpreter)
    analysis.is_done = True
    return True


def _claim_rule(analysis: RegionAnalysis) -> TransferRule:
    """The transfer rule of claims; those in a jaxpr that was traced before are made anew."""
    origins = analysis.origins

    def rule(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> Sequence[ShardingFact]:
        claim: claims.Claim = eqn.params["claim"]
        if claim.origin in origins:
            return claims.judge_claim(interpreter, eqn, claim, facts)
        anew = claims.remake_claim(claim, analysis.origin)
        return facts if anew is None else claims.judge_claim(interpreter, eqn, anew, facts)

    return rule


def _refuse_unproven(analysis: RegionAnalysis, verdicts: Sequence[claims.Verdict], jaxpr: Any) -> None:
    """Refuse claims in equations that were not interpreted, and note what has been proven.

    A claim that is no longer in the jaxpr, since nothing used the value in a loop that is differentiated, is dropped.
    """
    seen = {id(verdict.eqn.params["claim"]) for verdict in verdicts}
    if any(id(claim) not in seen for claim in analysis.unproven_claims):
        left = {id(eqn.params["claim"]) for eqn in _jax.jaxpr.all_equations(jaxpr) if eqn.primitive.name == CLAIM}
        for claim in analysis.unproven_claims:
            if id(claim) in left - seen:
                raise _unproven_error(claim)
    analysis.proven.update(claim.key for claim in analysis.unproven_claims)
    analysis.proven.update(verdict.claim.key for verdict in verdicts if verdict.claim.must_be_invarying)


def _unproven_error(claim: claims.Claim) -> TypedShmapError:
    axes = tuple(axis for axis in claim.region.sizes if axis in claim.must_be_invarying)
    failure = Failure(UnmentionedVarying(axes, False), claim.subject, claim.text)
    return _error_at_place(claim.region, claim.function, failure, claim.sizes, "")


def _claim_error(
    claim: claims.Claim, what: object, fact: ShardingFact, aval: Any, eqn: Any, interpreter: Interpreter
) -> TypedShmapError:
    """The error of a claim, with the value's type in JAX's notation; under ``check_vma=False`` as it was inferred."""
    text = _jax.jaxpr.aval_text(aval)
    if not interpreter.has_vma:
        marks = [
            f"{letter}:{axes[0] if len(axes) == 1 else '(' + ','.join(axes) + ')'}"
            for letter, names in (("V", fact.varying), ("U", fact.unreduced))
            if (axes := [axis for axis in interpreter.sizes if axis in names])
        ]
        text += f"{{{', '.join(marks)}}}" if marks else ""
    place = _jax.jaxpr.equation_place(eqn) if eqn is not None else ""
    failure = Failure(what, claim.subject, claim.text, text)
    return _error_at_place(claim.region, claim.function, failure, claim.sizes, place)


def _error_at_place(region: MeshContext, function: str, failure: Failure, sizes: Any, place: str) -> TypedShmapError:
    return error_of(region.report(function, (failure,), sizes, place))
