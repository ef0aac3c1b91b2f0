"""One manual region of a traced program, from its equation: its PartitionSpecs are its claims."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import jax

from .. import _jax
from .._jax.array import spec_entries
from ..errors.causes import Cause, Suspect, Suspected
from ..errors.failures import Failure, LayoutMismatch, ShardingConflict, Subject
from ..errors.places import Place, as_users, is_of_package
from ..errors.varying import DivergentCollective, NotUnreduced, UnmarkedUnreduced, UnmentionedVarying, UntypedVarying
from ..hints.array_hint import hint_of_spec
from ..hints.context import LayoutAssertion, MeshContext
from ..inference.claims import Origin
from ..inference.closures import closed_over_sizes
from ..inference.facts import FactInterpreter
from ..inference.interpreted_region import RULES, InterpretedRegion
from ..inference.interpreter import CLAIM
from ..inference.kinds.describe_value import describe_value
from ..inference.lattice import ShardingFact
from ..ops.resharding.plan import known_plan
from .binding import NOTHING, Hint

Severity = Literal["error", "suspect"]


class Finding(NamedTuple):
    """An error or a suspect in a region.

    Attributes:
      severity: ``"error"``, or ``"suspect"`` for code that may be intended.
      kind: ``varying``: a result differs between shards of an axis that its PartitionSpec does not mention;
        ``unreduced``: a result is a partial sum over such an axis; ``layout``: a dim is sharded over other axes, or in
        another order, than a spec or an operation assumes; ``divergence``: not all shards reach a collective;
        ``unsound``: a value varies but JAX types it as invarying; ``double-sum``: a result grows or shrinks with the
        mesh because of a collective; ``summed-gradient``: the same because of differentiation; ``lost-sum``: an
        operation loses a partial sum; ``own-part``: an operation needs a whole dim but gets one shard of it;
        ``copies``: a replicated value leaves as the parts of a dim; ``same-draw``: every shard draws the same random
        numbers for its part of a dim; ``invariance``: a global result differs between meshes.
      message: the problem and the cure, on one line.
      file: the path of the file where it began.
      line: the line in that file.
      region: the name of the region's function.
    """

    severity: Severity
    kind: str
    message: str
    file: str
    line: int
    region: str


class Fact(NamedTuple):
    """The facts about one value in the body of a region.

    Attributes:
      varying: the mesh axes over which its shards may differ.
      unreduced: the axes over which every shard holds an addend.
      dim_axes: for each dim the mesh axes that it is sharded over, major to minor; None if they are unknown.
    """

    varying: frozenset[str]
    unreduced: frozenset[str]
    dim_axes: tuple[tuple[str, ...] | None, ...]


class CollectiveCall(NamedTuple):
    """One equation that communicates, in the body of a region.

    Attributes:
      operation: XLA's name: ``"all-gather"``, ``"all-reduce"``, ``"reduce-scatter"``, ``"all-to-all"``,
        ``"collective-permute"``, ...
      axes: the mesh axes over which it communicates.
      operand: the bytes of its operands, on one device.
      result: the bytes of its results, on one device.
      times: how often it runs in one call: the product of the lengths of the enclosing scans.
      file: the path of its file.
      line: its line in the file.
    """

    operation: str
    axes: tuple[str, ...]
    operand: int
    result: int
    times: int
    file: str
    line: int


class StatedClaim(NamedTuple):
    """The claim of a hint, a ``check`` or a pattern about a value in the body of a typed region.

    Attributes:
      subject: the value's name.
      hint: the claimed hint.
      is_assumed: whether it comes from `assume`, without proof.
      file: the path of the user's file.
      line: the line in that file.
    """

    subject: str
    hint: Hint
    is_assumed: bool
    file: str
    line: int


_BODY = Subject("spec", "body")

_NO_DEGREES = "whether results grow with '{}', as it cannot be traced on an axis of another size"
_HELD = "whether results grow with '{}', as it closes over {}"


class Region:
    """One manual region of a traced program.

    Attributes:
      name: the name of its function.
      file: the path of the file of the function.
      line: the line of the function.
      mesh: its mesh.
      axes: the mesh axes that it makes manual, with their sizes.
      check_vma: whether JAX types its values as varying.
      in_specs: the PartitionSpecs of its operands: first closed-over values, then the arguments.
      out_specs: the PartitionSpecs of its results.
      jaxpr: its body.
      argument_names: the names of its arguments, if they are known.
      is_typed: whether it belongs to a ``typed_shard_map``, which compared its hints when it was traced.
      origin: ``"written"`` by a call; ``"copied"`` from a program traced earlier; ``"derived"`` by differentiation;
        or ``"transposed"``.
      traced: the region as JAX traced it.
    """

    def __init__(self, traced: _jax.regions.TracedRegion, axis_sizes: Mapping[str, int] = NOTHING) -> None:
        """Wrap a traced region.

        Args:
          traced: the region.
          axis_sizes: the sizes to assume for mesh axes of size 1.
        """
        eqn, self.traced, self._results = traced.eqn, traced, traced.results
        self._params, self.origin = eqn.params, traced.origin
        self.jaxpr = body = eqn.params["jaxpr"]
        self.mesh = mesh = eqn.params["mesh"]
        self.in_specs, self.out_specs = tuple(eqn.params["in_specs"]), tuple(eqn.params["out_specs"])
        self.check_vma = bool(eqn.params["check_vma"])
        info = getattr(body, "debug_info", None)
        self.argument_names = tuple(getattr(info, "arg_names", None) or ())
        manual = _jax.jaxpr.newly_manual_axes(eqn.params)
        sizes = ((axis, size if size > 1 else axis_sizes.get(axis, 1)) for axis, size in mesh.shape_tuple)
        self.axes = {axis: size for axis, size in sizes if axis in manual}
        self._package = _jax.source.library_of(body)
        with as_users(self._package):
            self.name, self.file, self.line = _jax.source.function_line(body, eqn)
        self.is_typed = is_of_package(str(getattr(info, "func_src_info", "")).partition(" at ")[2])
        self._context = MeshContext.over(
            mesh,
            role="boundary",
            manual=(*self.axes.items(),),
            boundary_axes=manual,
            checked_axes=manual,
            has_vma=self.check_vma,
        )

    @classmethod
    def of(cls, eqn: Any) -> Region:
        """The region of an equation of ``jax.shard_map``."""
        return cls(_jax.regions.TracedRegion(eqn, tuple(range(len(eqn.outvars)))))

    @property
    def key(self) -> tuple[str, str, int]:
        """The name, the file and the line of its function."""
        return self.name, self.file, self.line

    @property
    def findings(self) -> list[Finding]:
        """Errors (results that contradict their PartitionSpecs) and suspects (code that is probably a mistake)."""
        return self._read[0]

    @property
    def unread(self) -> tuple[str, ...]:
        """Operations that its results depend on and that the analysis cannot read, with the reason."""
        return self._read[1]

    @property
    def is_complete(self) -> bool:
        """Whether the analysis can read everything that its results depend on."""
        return not self.unread

    def facts(self, value: Any) -> Fact:
        """The facts about a variable or a constant of its body.

        Raises:
          KeyError: for a variable of another jaxpr, such as the body of an inner loop or branch.
        """
        interpreter, known = self._interpreter(), dict[Any, ShardingFact]()
        interpreter.refs_vary = self._interpreted.interpreter.refs_vary
        interpreter.interpret(self.jaxpr, self._interpreted.entering, known)
        fact = known[value]
        return Fact(fact.varying, fact.unreduced, tuple(dim.axes for dim in fact.dims))

    def describe(self, value: Any, other: Region | None = None) -> list[str]:
        """The kind and degree of a variable of its body, or of an inner jaxpr, over each axis, in words.

        Args:
          value: the variable.
          other: the same region on a mesh with another size of one axis, which shows degrees.
        """
        return [*describe_value(self._params, None if other is None else other._params, value)]

    @cached_property
    def collectives(self) -> list[CollectiveCall]:
        """Its collectives, in the order of its jaxpr; those of a branch or a while loop as if it ran once."""
        calls = list[CollectiveCall]()
        for eqn, times in _jax.jaxpr.counted_equations(self.jaxpr):
            axes = tuple(axis for axis in _jax.jaxpr.named_axes(eqn) if self.mesh.shape.get(axis, 1) > 1)
            operation = _jax.jaxpr.collective_operation(eqn)
            steps = [(operation, axes, eqn.invars, eqn.outvars)] if operation and axes else reshard_steps(eqn)
            file, line = _jax.source.place_line(_jax.source.equation_place(eqn))
            for name, over, before, after in steps:
                calls.append(CollectiveCall(name, over, _bytes_of(before), _bytes_of(after), times, file, line))
        return calls

    @cached_property
    def claims(self) -> list[StatedClaim]:
        """The claims of hints, checks and patterns about values of its body that have equations in the jaxpr."""
        stated_claims = list[StatedClaim]()
        for eqn in self._equations:
            if eqn.primitive.name == CLAIM:
                stated, place = eqn.params["claim"].assertion, _jax.source.equation_place(eqn)
                hint, (file, line) = Hint.over(stated.hint, stated.region), _jax.source.place_line(place)
                stated_claims.append(StatedClaim(str(stated.subject), hint, stated.is_assumed, file, line))
        return stated_claims

    @cached_property
    def _read(self) -> tuple[list[Finding], tuple[str, ...]]:
        with as_users(self._package):
            unread, findings = _opaque_operations(self._equations), list[Finding]()
            interpreted, call, results = self._interpreted, self.traced.call, self.jaxpr.outvars
            layouts = {at: spec_entries(self.out_specs[at], len(results[at].aval.shape)) for at in self._results}
            function = None if call is None else call.body
            interpreted.know(layouts, retrace=self._retraced, function=function, is_thorough=True)
            of_results = self._failures_of_results(interpreted)
            of_body = [
                Failure(first.what, _BODY, place=_jax.source.equation_place(first.eqn))
                for first in (interpreted.divergence(), interpreted.wrong_gradient(), *interpreted.contradictions())
                if first is not None
            ]
            failures = [*of_body, *of_results.values()]
            if not of_body:
                failures += [
                    Failure(suspect.failure, _BODY, place=suspect.place) for suspect in interpreted.suspects(of_results)
                ]
                unread += [_NO_DEGREES.format(axis) for axis in interpreted.kinds.unread]
                if held := interpreted.kinds.held:
                    closed = closed_over_sizes(function, self.axes)
                    unread += [_HELD.format(axis, closed[axis]) for axis in held]
            for failure in failures:
                cause = failure.what.cause if isinstance(failure.what, UnmentionedVarying) else None
                if cause is not None and cause.may_agree:
                    parts = ", of what the shards send on (ppermute)" if cause.kind == "ring" else ""
                    unread.append(f"{failure.subject.phrase}, which depends on {cause.origin}{parts}")
                else:
                    findings.append(finding_of(failure, *self.key))
        return findings, tuple(dict.fromkeys(unread))

    @property
    def opaque(self) -> tuple[str, ...]:
        """Its kernels and callbacks, whose results are unknown, each with its line."""
        return tuple(dict.fromkeys(_opaque_operations(self._equations)))

    @property
    def may_diverge(self) -> bool:
        """Whether shards may take different branches, so that some may not reach a collective of its gradient."""
        names = [eqn.primitive.name for eqn in self._equations]
        return "cond" in names or "while" in names

    @cached_property
    def _equations(self) -> tuple[Any, ...]:
        return tuple(_jax.jaxpr.all_equations(self.jaxpr))

    def deadlocks_of_gradient(self, operands: Container[int]) -> list[Finding]:
        """The deadlock in its gradient with respect to some operands, which are counted from the last."""
        call, count = self.traced.call, len(self.in_specs)
        end = self.traced.start + len(call.operands if call is not None else ())
        with as_users(self._package):
            first = self._interpreted.divergence([at - end in operands and at < end for at in range(count)])
            if first is None:
                return []
            return [finding_of(Failure(first.what, _BODY, place=_jax.source.equation_place(first.eqn)), *self.key)]

    @cached_property
    def _interpreted(self) -> InterpretedRegion:
        return InterpretedRegion(self._params, self._interpreter, self._name_dim)

    def _interpreter(self) -> FactInterpreter:
        sizes = {axis: size for axis, size in self.axes.items() if size > 1}
        return FactInterpreter(sizes, self.check_vma, {**RULES, CLAIM: lambda interpreter, eqn, facts: facts})

    def _name_dim(self, at: int, axis: str) -> tuple[str, str]:
        """The names of a dim and of its argument, which is counted from the last; dims have no names here."""
        known = len(self.argument_names) >= -at
        return "", f"argument '{self.argument_names[at]}'" if known else ""

    def _retraced(self, axis: str, size: int) -> Any:
        """Its jaxpr on a mesh with another size of one axis; None if it cannot be traced there."""
        call, mesh = self.traced.call, self.mesh
        if call is None or mesh.manual_axes:
            return None
        mesh_of_size = _jax.regions.other_mesh(mesh, axis, size)
        again = replace(call, params={**call.params, "mesh": mesh_of_size})
        return _jax.regions.traced_on(mesh_of_size, again, call.operands, call.params["in_specs"])

    def _failures_of_results(self, interpreted: InterpretedRegion) -> dict[int, Failure]:
        """The failures of results that contradict out_specs, by the index of the result."""
        origin, failures = Origin(self.name, self._context), dict[int, Failure]()
        for number, at in enumerate(self._results):
            hint = hint_of_spec(self.out_specs[at], len(self.jaxpr.outvars[at].aval.shape))
            is_only = len(self._results) == 1
            subject = Subject("spec", "return") if is_only else Subject("spec", "result", f"[{number}]")
            stated = LayoutAssertion(hint, self._context, subject, self.name)
            if (failure := interpreted.failure_of_result(at, stated, origin)) is not None:
                failures[at] = failure
        return failures


def finding_of(failure: Failure, region: str, file: str = "", line: int = 0) -> Finding:
    """A failure as a finding, at the place where it began.

    Args:
      failure: the failure.
      region: the name of the region's function.
      file: the file of the function, for a failure without a place.
      line: the line of the function.
    """
    what, sentence, place = failure.what, failure.words(), failure.place
    if isinstance(what, Suspected) and isinstance(what.since, Place):
        place = what.since
    is_operation = failure.subject.name == "body"
    problem = sentence.problem if is_operation else f"{failure.subject.phrase} {sentence.problem}"
    cure = sentence.cure
    if isinstance(place, Place):
        file, line = place.file, place.line
        if cure and isinstance(what, Suspected):  # the finding has the line already
            cure = re.sub(rf" at {re.escape(place.partition(' ')[0])}(?!\d)", "", cure)
    message = f"{problem}; {cure}" if cure else problem
    return Finding("suspect" if isinstance(what, Suspect) else "error", _kind(what), message, file, line, region)


def _kind(what: Any) -> str:
    """The kind of finding for a fault."""
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
    """The kernels and callbacks of a body, whose results are unknown, each with its line."""
    opaque: list[str] = []
    for eqn in equations:
        name = eqn.primitive.name
        if name not in RULES and "call" in name and eqn.outvars:
            line = _jax.source.equation_place(eqn).partition(" ")[0]
            opaque.append(f"{name}{line and f' at {line}'}")
    return opaque


def _bytes_of(atoms: Iterable[Any]) -> int:
    avals = (getattr(atom, "aval", atom) for atom in atoms)
    return sum(_jax.array.size_in_bytes(aval.shape, aval.dtype) for aval in avals)


def reshard_steps(eqn: Any) -> Iterator[tuple[str, tuple[str, ...], list[Any], list[Any]]]:
    """The collectives of a `reshard`, which is one equation of a jaxpr: operation, axes, operands and results."""
    if eqn.primitive.name != "reshard_shards":
        return
    params, aval = eqn.params, eqn.invars[0].aval
    lead = aval.shape[: params["lead"]]
    for step in known_plan(params["source"], params["target"], params["shape"], params["sizes"]).steps:
        if (operation := _jax.primitives.COLLECTIVES.get(step.kind)) is not None:
            shapes = [step.piece] * 2 if step.kind == "ppermute" else [step.shard_before, step.shard_after]
            before, after = ([jax.ShapeDtypeStruct((*lead, *shape), aval.dtype)] for shape in shapes)
            for _ in range(step.rounds):
                yield operation, step.axes, before, after
