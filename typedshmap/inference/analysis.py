"""Analyze the body of one region: have its jaxpr interpreted, and judge the claims that wait for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax

from .. import _jax
from ..errors import TypedShmapError
from ..errors.failures import Failure, Subject, UnmentionedVarying, UntypedVarying
from ..hints.context import LayoutAssertion, MeshContext, current_sink, lookup_layout
from . import claims, collectives, control_flow, elementwise, reshape
from .control_flow import fact_of_spec
from .interpreter import CLAIM, Finding, Interpreter, TransferRule
from .lattice import NO_AXES, AxisSet, ShardingFact
from .marks import has_wrong_gradient, is_used

RULES: Mapping[str, TransferRule] = {
    **elementwise.RULES,
    **reshape.RULES,
    **collectives.RULES,
    **control_flow.RULES,
}


class RegionAnalysis:
    """What the body of a region claims, until its jaxpr is interpreted.

    A body that is traced a second time, under differentiation for instance, makes no claims any more:
    what JAX's types do not confirm must be among what was proven in the first trace.
    """

    def __init__(self, axes: AxisSet) -> None:
        self.axes, self.is_done = axes, False
        self.proven: set[tuple[Any, ...]] = set()

    def begin(self, function: str, region: MeshContext) -> None:
        """Note the body, and the traces in which its claims stay; the region around notes the regions within it.

        A body that is differentiated as it is traced has several: one differentiates what it hands on to the next.
        """
        self.traces = frozenset(_jax.trace.trace_ids())
        if self.is_done:
            return
        self.claims: list[claims.Claim] = []
        self.claim_equations: dict[Any, list[claims.ClaimEquation]] = {}
        self.inner: list[RegionAnalysis] = []
        self.origin = claims.Origin(function, region)
        self.early_interpreter = self.interpreter(region.has_vma)
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
            if assertion.must_be_invarying and claim.key not in self.proven:
                raise _unproven_error(claim)
            return value
        keeps_all: bool = keep_all_claims.value
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
        stated = assertion._replace(must_be_invarying=NO_AXES) if is_known else assertion
        claim = claims.Claim(layout, stated, self.origin)
        var = _jax.jaxpr.variable_of(value, self.traces)
        # Tools ask for each check, also for those that are implied.
        if var is None and not is_kept and claims.is_implied(value, claim, self.early_interpreter):
            return value
        self.claims.append(claim)
        # Tools read the jaxpr; and one that was traced before comes without what was noted beside it.
        if var is None or self.is_inner or keeps_all:
            return claims.insert_claim(value, claim, _jax.trace.trace_ids()[0] in self.traces)
        self.claim_equations.setdefault(var, []).append(claims.claim_equation(var, claim))
        return value

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

    @property
    def origins(self) -> set[claims.Origin]:
        """The bodies of this region and of those within it, as they are traced now."""
        return {self.origin}.union(*(inner.origins for inner in self.inner))

    def interpreter(self, has_vma: bool, claim_equations: Any = None) -> Interpreter:
        """An interpreter over the axes of the analysis, which judges claims."""
        region, rules = self.origin.region, {**RULES, CLAIM: partial(_judge_claim, self.origins, self.origin)}
        sizes = {axis: size for axis, size in region.manual if axis in region.checked_axes}
        return Interpreter(sizes, has_vma, rules, claim_equations)


# Whether each ``check`` leaves a claim, also of what is known already: for tools that report what a body checks. Among
# JAX's own contexts, so that what was traced with all claims is never used where they add to a jaxpr.
keep_all_claims = jax.make_user_context(default_value=False)


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
    params, body, origin = traced.eqn.params, traced.eqn.params["jaxpr"], analysis.origin
    interpreter = analysis.interpreter(bool(params["check_vma"]), analysis.claim_equations)
    pairs = zip(params["in_specs"], body.invars, strict=True)
    entering = [fact_of_spec(spec, len(var.aval.shape), interpreter.axes) for spec, var in pairs]
    out = interpreter.interpret(body, entering)
    judged = [found for found in interpreter.findings if found.claim is not None]
    if traced.is_differentiated and not {*map(id, analysis.claims)} <= {id(found.claim) for found in judged}:
        return False
    _refuse_divergence(interpreter, body, origin)
    _refuse_wrong_gradients(interpreter, body, origin)
    for found in interpreter.findings:
        if found.what is not None and found.control is None:
            raise _finding_error(_at_its_making(found, body), origin, interpreter)
    _refuse_unproven(analysis, judged, body)
    for assertion, at in zip(results, traced.results, strict=True):
        var, fact = body.outvars[at], out[at]
        claim = claims.make_claim(assertion, len(var.aval.shape), origin) if assertion is not None else None
        what = claims.contradiction(claim, fact, var.aval.shape, interpreter) if claim is not None else None
        if what is not None:
            raise _finding_error(
                Finding(_jax.jaxpr.maker_of(body, var), what, claim, fact, var.aval), origin, interpreter
            )
    analysis.is_done = True
    return True


def _refuse_divergence(interpreter: Interpreter, body: Any, origin: claims.Origin) -> None:
    """Refuse the first collective that not all shards reach; one of which nothing comes never runs."""
    for found in interpreter.findings:
        if found.control is not None and is_used(interpreter, body, found.eqn):
            raise _finding_error(found, origin, interpreter)


def _refuse_wrong_gradients(interpreter: Interpreter, body: Any, origin: claims.Origin) -> None:
    """Refuse the first result that JAX types wrongly where that makes gradients wrong."""
    untyped = interpreter.untyped
    if not untyped or not has_wrong_gradient(interpreter, body, {key: axes for key, (_, axes) in untyped.items()}):
        return
    for key, (eqn, results) in untyped.items():
        if has_wrong_gradient(interpreter, body, {key: results}):
            axes, is_control = frozenset[str]().union(*results.values()), eqn.primitive.name in control_flow.RULES
            operation = control_flow.control_name(eqn) if is_control else eqn.primitive.name
            what = UntypedVarying(operation, tuple(axis for axis in interpreter.sizes if axis in axes), is_control)
            raise _finding_error(Finding(eqn, what), origin, interpreter)


def _judge_claim(
    origins: set[claims.Origin], origin: claims.Origin, interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]
) -> Sequence[ShardingFact]:
    """The transfer rule of claims; those in a jaxpr that was traced before are made anew."""
    claim: claims.Claim | None = eqn.params["claim"]
    if claim is not None and claim.origin not in origins:
        claim = claims.remake_claim(claim, origin)
    return facts if claim is None else claims.judge_claim(interpreter, eqn, claim, facts)


def _refuse_unproven(analysis: RegionAnalysis, judged: Sequence[Finding], jaxpr: Any) -> None:
    """Refuse claims in equations that were not interpreted, and note what has been proven.

    A claim that is no longer in the jaxpr, since nothing used the value in a loop that is differentiated, is dropped.
    """
    unproven, seen = analysis.unproven_claims, {id(found.eqn.params["claim"]) for found in judged}
    if any(id(claim) not in seen for claim in unproven):
        left = {id(eqn.params["claim"]) for eqn in _jax.jaxpr.all_equations(jaxpr) if eqn.primitive.name == CLAIM}
        for claim in unproven:
            if id(claim) in left - seen:
                raise _unproven_error(claim)
    analysis.proven.update(claim.key for claim in unproven)
    analysis.proven.update(found.claim.key for found in judged if found.claim.assertion.must_be_invarying)


def _unproven_axes(stated: LayoutAssertion) -> tuple[str, ...]:
    """The axes of what is still to be proven, in the mesh's order."""
    return tuple(axis for axis in stated.region.sizes if axis in stated.must_be_invarying)


def _unproven_error(claim: claims.Claim) -> TypedShmapError:
    stated = claim.assertion
    failure = Failure(UnmentionedVarying(_unproven_axes(stated), False), stated.subject, stated.hint.text)
    return stated.region.error(stated.function, (failure,), stated.sizes)


def _at_its_making(found: Finding, body: Any) -> Finding:
    """A finding about what a function returned, where that was made; its claim is where the function was called."""
    is_result = found.claim is not None and found.claim.assertion.subject.kind == "return"
    maker = _jax.jaxpr.maker_of(body, found.eqn.invars[0]) if is_result else None
    return found if maker is None else found._replace(eqn=maker)


def _finding_error(found: Finding, origin: claims.Origin, interpreter: Interpreter) -> TypedShmapError:
    """The error, with the value's type in JAX's notation; under ``check_vma=False`` as it was inferred."""
    place = _jax.jaxpr.equation_place(found.eqn) if found.eqn is not None else ""
    if found.claim is None:
        failure = Failure(found.what, Subject("whole", "body"))
        return origin.region.error(origin.function, (failure,), place=place)
    text, stated = found.aval.str_short(short_dtypes=True), found.claim.assertion
    if not interpreter.has_vma:
        marks = [
            f"{letter}:{axes[0] if len(axes) == 1 else '(' + ','.join(axes) + ')'}"
            for letter, names in (("V", found.fact.varying), ("U", found.fact.unreduced))
            if (axes := [axis for axis in interpreter.sizes if axis in names])
        ]
        text += f"{{{', '.join(marks)}}}" if marks else ""
    failure = Failure(found.what, stated.subject, stated.hint.text, text)
    return stated.region.error(stated.function, (failure,), stated.sizes, place)
