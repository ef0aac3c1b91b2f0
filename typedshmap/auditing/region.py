"""Read one region of a plain program: its PartitionSpecs are its claims."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from .. import _jax
from ..errors.causes import Suspected
from ..errors.failures import Failure, LayoutMismatch, ShardingConflict, Subject
from ..errors.places import Place, as_users, is_of_package
from ..errors.varying import (
    Cause,
    DivergentCollective,
    NotUnreduced,
    Suspect,
    UnmarkedUnreduced,
    UnmentionedVarying,
    UntypedVarying,
)
from ..hints.array_hint import hint_of_spec
from ..hints.context import LayoutAssertion, MeshContext
from ..inference.claims import Origin, contradiction, make_claim
from ..inference.facts import FactInterpreter
from ..inference.interpreter import CLAIM
from ..inference.region import RULES, InterpretedRegion
from .findings import Finding, Region

_BODY = Subject("spec", "body")

_NO_DEGREES = "whether results grow with '{}', as it cannot be traced on an axis of another size"


class PlainRegion:
    """A region of a program, as its equation has it.

    Args:
      traced: the region.
      lengths: how long mesh axes of size 1 are taken to be.
    """

    def __init__(self, traced: _jax.jaxpr.TracedRegion, lengths: Mapping[str, int]) -> None:
        eqn, self.traced, self.results = traced.eqn, traced, traced.results
        self.params = eqn.params
        body, mesh = eqn.params["jaxpr"], eqn.params["mesh"]
        info = getattr(body, "debug_info", None)
        self.argument_names = tuple(getattr(info, "arg_names", None) or ())
        manual = _jax.jaxpr.newly_manual_axes(eqn.params)
        sizes = ((axis, size if size > 1 else lengths.get(axis, 1)) for axis, size in mesh.shape_tuple)
        self.axes = tuple((axis, size) for axis, size in sizes if axis in manual)
        self._package = _jax.source.library_of(body)
        with as_users(self._package):
            self.name, self.file, self.line = _jax.source.function_line(body, eqn)
        self.is_typed = is_of_package(str(getattr(info, "func_src_info", "")).partition(" at ")[2])
        self.context = MeshContext.over(
            mesh, role="boundary", manual=self.axes, boundary_axes=manual, checked_axes=manual, has_vma=self.has_vma
        )

    @property
    def key(self) -> tuple[str, str, int]:
        """Its function, and where that is."""
        return self.name, self.file, self.line

    @property
    def has_vma(self) -> bool:
        return bool(self.params["check_vma"])

    def read(self) -> tuple[Region, list[Finding]]:
        """What is wrong in it, and whether all of it could be read."""
        with as_users(self._package):
            return self._read()

    def _read(self) -> tuple[Region, list[Finding]]:
        unread, findings = _opaque_operations(self._equations), list[Finding]()
        if self.is_typed:  # its hints are checked as it is traced
            return Region(*self.key, not unread, tuple(dict.fromkeys(unread))), findings
        found = self._interpreted()
        self._make_known(found)
        of_results = self._failures_of_results(found)
        of_body = list(self._failures_of_body(found))
        failures = [*of_body, *of_results.values()]
        if not of_body:
            failures += [Failure(each.failure, _BODY, place=each.place) for each in found.suspects(of_results)]
            unread += [_NO_DEGREES.format(axis) for axis in found.kinds.unread]
        for failure in failures:
            cause = failure.what.cause if isinstance(failure.what, UnmentionedVarying) else None
            if cause is not None and cause.may_agree:
                parts = ", of what the shards send on (ppermute)" if cause.kind == "ring" else ""
                unread.append(f"{failure.subject.phrase}, which depends on {cause.origin}{parts}")
            else:
                findings.append(finding_of(failure, *self.key))
        region = Region(*self.key, not unread, tuple(dict.fromkeys(unread)))
        return region, findings

    @property
    def may_diverge(self) -> bool:
        """Whether shards may go different ways in it, and some not reach a collective of its gradient."""
        return not {"cond", "while"}.isdisjoint([eqn.primitive.name for eqn in self._equations])

    @cached_property
    def _equations(self) -> tuple[Any, ...]:
        return tuple(_jax.jaxpr.all_equations(self.params["jaxpr"]))

    def deadlocks_of_gradient(self, operands: Container[int]) -> list[Finding]:
        """The deadlock that its gradient by some operands has, counted from the last."""
        call, count = self.traced.call, len(self.params["in_specs"])
        end = self.traced.start + len(call.operands if call is not None else ())
        with as_users(self._package):
            first = self._interpreted().divergence([at - end in operands and at < end for at in range(count)])
            if first is None:
                return []
            return [finding_of(Failure(first.what, _BODY, place=_jax.source.equation_place(first.eqn)), *self.key)]

    def _interpreted(self) -> InterpretedRegion:
        return InterpretedRegion(self.params, self._interpreter, self._name_dim)

    def _interpreter(self) -> FactInterpreter:
        sizes = {axis: size for axis, size in self.axes if size > 1}
        return FactInterpreter(sizes, self.has_vma, {**RULES, CLAIM: lambda interpreter, eqn, facts: facts})

    def _name_dim(self, at: int, axis: str) -> tuple[str, str]:
        """The argument whose dim is sharded, counted from the last; its dims have no names."""
        known = len(self.argument_names) >= -at
        return "", f"argument '{self.argument_names[at]}'" if known else ""

    def _failures_of_body(self, found: InterpretedRegion) -> Iterable[Failure]:
        for first in (found.divergence(), found.wrong_gradient(), *found.contradictions()):
            if first is not None:
                yield Failure(first.what, _BODY, place=_jax.source.equation_place(first.eqn))

    def _make_known(self, found: InterpretedRegion) -> None:
        """Have a region know what out_specs say, and how it is traced with other sizes."""
        specs = {at: self.params["out_specs"][at] for at in self.results}
        layouts = {
            at: _jax.array.spec_entries(spec, len(found.body.outvars[at].aval.shape)) for at, spec in specs.items()
        }
        call = self.traced.call
        found.know(layouts, retrace=self._retraced, function=None if call is None else call.body, is_thorough=True)

    def _retraced(self, axis: str, size: int) -> Any:
        """Its jaxpr on a mesh of which an axis has another size; None where it cannot be traced there."""
        call, mesh = self.traced.call, self.params["mesh"]
        if call is None or mesh.manual_axes:
            return None
        other = _jax.regions.other_mesh(mesh, axis, size)
        again = replace(call, params={**call.params, "mesh": other})
        return _jax.regions.traced_on(other, again, call.operands, call.params["in_specs"])

    def _failures_of_results(self, found: InterpretedRegion) -> dict[int, Failure]:
        """The results that are not what out_specs say, by their places."""
        origin, failures = Origin(self.name, self.context), dict[int, Failure]()
        for number, at in enumerate(self.results):
            spec, var = self.params["out_specs"][at], found.body.outvars[at]
            rank, subject = len(var.aval.shape), self._result(number)
            stated = LayoutAssertion(hint_of_spec(spec, rank), self.context, subject, self.name)
            claim = make_claim(stated, rank, origin)
            assert claim is not None
            what = contradiction(claim, found.results[at], var.aval.shape, found.interpreter, True)
            if what is not None:
                failure = Failure(found.with_cause_of_result(what, at), subject)
                failures[at] = replace(failure, place=failure.cause_place or found.place_of_result(at))
        return failures

    def _result(self, number: int) -> Subject:
        """The name of a result."""
        return Subject("spec", "return") if len(self.results) == 1 else Subject("spec", "result", f"[{number}]")


def finding_of(failure: Failure, region: str, file: str = "", line: int = 0) -> Finding:
    """A failure as a finding, at the place in which it began.

    Args:
      failure: what is wrong.
      region: the name of the region's function.
      file: where that is, for a failure without a place.
      line: its line there.
    """
    what, sentence, place = failure.what, failure.words(), failure.place
    if isinstance(what, Suspected) and isinstance(what.since, Place):
        place = what.since
    is_operation = failure.subject.name == "body"
    problem = sentence.problem if is_operation else f"{failure.subject.phrase} {sentence.problem}"
    message = f"{problem}; {sentence.cure}" if sentence.cure else problem
    if isinstance(place, Place):
        file, line = place.file, place.line
    return Finding("suspect" if isinstance(what, Suspect) else "error", _kind(what), message, file, line, region)


def _kind(what: Any) -> str:
    """The kind of finding that a fault is."""
    match what:
        case UnmentionedVarying(cause=Cause(kind="sum")) | UnmarkedUnreduced() | NotUnreduced():
            return "unreduced"
        case LayoutMismatch() | ShardingConflict():
            return "layout"
        case DivergentCollective():
            return "divergence"
        case UntypedVarying():
            return "unsound"
        case Suspected():
            return what.kind
        case _:
            return "varying"


def _opaque_operations(equations: Iterable[Any]) -> list[str]:
    """The kernels and callbacks of a body whose results may be anything, each with its line."""
    found: list[str] = []
    for eqn in equations:
        name = eqn.primitive.name
        if name not in RULES and "call" in name and eqn.outvars:
            line = _jax.source.equation_place(eqn).partition(" ")[0]
            found.append(f"{name}{line and f' at {line}'}")
    return found
