"""Run the regions of an audit on other meshes, and compare their global results."""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from ... import _jax
from ...errors import TypedShmapError
from ...inspection import closed_over_sizes, on_mesh, signature
from ...notation.layout import Layout
from ...testing.describe_difference import FIRST_DIFFERENCE
from ...testing.diagnose import result_phrase
from ...testing.invariance import VERB, Trial
from ...testing.run import CompiledCall, classify_function, compile_call
from ...testing.thresholds import numbers_compared
from ...testing.trial_meshes import axes_of, default_meshes
from ...testing.waiting import TookTooLong
from ..progress import progress
from ..sample.arguments import FlatCall
from ..sample.input_plan import plan_inputs
from ..sample.plain import with_hints
from .audit_report import NOT_RUN, AuditedRegion, Finding
from .operands import is_index_into
from .seen_regions import SeenRegion

_SECONDS = 60
_NOT_SEEN = "its arguments were not seen, and are drawn"
_VARIED = "an argument with equal entries is varied"


def compare_on_meshes(seen: Iterable[SeenRegion]) -> tuple[list[Finding], list[AuditedRegion]]:
    """The results of regions that differ on axes of other sizes, and the regions that are not compared."""
    findings, not_run, is_stuck = list[Finding](), list[AuditedRegion](), False
    for seen_region in seen:
        why = "an earlier region did not finish" if is_stuck else _reason_not_to_run(seen_region)
        left_out = [NOT_RUN + why] if why else []
        if why == "":
            rerun = _Rerun(seen_region)
            try:
                with warnings.catch_warnings(), redirect_stdout(io.StringIO()), _jax.mesh.without_ambient_devices():
                    warnings.simplefilter("ignore")
                    differing, left_out = rerun.compare()
                findings += differing
            except AssertionError as error:
                is_stuck = isinstance(error.__context__, TookTooLong)
                left_out = [NOT_RUN + (rerun.first_line(error) or "AssertionError")]
            except Exception as error:  # any exception of the body for other shards
                left_out = [NOT_RUN + rerun.why_not(error)]
        if left_out:
            not_run.append(AuditedRegion(*seen_region.region.key, True, tuple(left_out)))
    return findings, not_run


def _reason_not_to_run(seen: SeenRegion) -> str | None:
    """Why a region cannot be run again; None for a nested region, which is run with its outer region."""
    body = seen.region.jaxpr
    if seen.region.mesh.manual_axes:
        return None
    if seen.call is None:
        return "jax 0.10.1 and older trace a function only once"
    if seen.is_stuck:
        return "its shards would wait for each other"
    if seen.structs and "while" in _primitives(body):
        return "its operands were not seen, and a while loop may never end with drawn values"
    if _jax.jaxpr.effects_of(body):  # writes of kernels do not count
        eqn = next(filter(_jax.jaxpr.has_effects, _jax.jaxpr.all_equations(body)), None)
        return f"it does more than compute its results ({eqn.primitive.name if eqn else 'a write'})"
    return ""


def _primitives(body: Any) -> set[str]:
    return {eqn.primitive.name for eqn in _jax.jaxpr.all_equations(body)}


class _RegionOperand(NamedTuple):
    """An operand of a region; its value is a struct if it is unknown."""

    name: str
    value: Any
    layout: Layout
    variable: Any
    is_differentiated: bool

    @property
    def is_struct(self) -> bool:
        return isinstance(self.value, jax.ShapeDtypeStruct)

    @property
    def is_inexact(self) -> bool:
        return _jax.array.is_inexact(jax.numpy.result_type(self.value))


class _Rerun:
    """A region as a function of its global operands, on the meshes for which it can be compiled."""

    def __init__(self, seen: SeenRegion) -> None:
        self.region, call, start = seen.region, seen.call, seen.region.traced.start
        assert call is not None
        self.call, self.body, self.mesh = call, seen.region.jaxpr, call.params["mesh"]
        self.sizes = {axis: size for axis, size in self.mesh.shape.items() if size > 1}
        names, count = call.argument_names or seen.region.argument_names, len(call.operands)
        if len({*names}) != count or not all(name.isidentifier() for name in names):
            names = [f"arg{at}" for at in range(count)]
        variables = self.body.invars[start : start + count]
        self.operands = [
            _RegionOperand(name, x, _jax.array.spec_entries(spec, np.ndim(x)), var, at - count in seen.differentiated)
            for at, (name, x, spec, var) in enumerate(
                zip(names, call.operands, call.params["in_specs"], variables, strict=True)
            )
        ]
        self.takes_gradient = bool(seen.differentiated)
        self.types, self.refused = dict[Mesh, dict[str, Any]](), dict[Mesh, Exception]()
        self.left_out = list[str]()
        self._compiled = dict[Mesh, CompiledCall]()

    def compare(self) -> tuple[list[Finding], list[str]]:
        """The results that depend on the mesh, and those that are not compared, since their shape depends on it."""
        self._compile_for_meshes()
        meshes = [*self.types]
        if len(meshes) < 2:
            raise next(iter(self.refused.values()))
        shapes = {name: {types[name].shape for types in self.types.values()} for name in self.types[meshes[0]]}
        uneven = [name for name, of_meshes in shapes.items() if len(of_meshes) > 1]
        phrase = ", ".join(map(result_phrase, uneven))
        if len(uneven) == len(shapes):
            return [], [f"{NOT_RUN}the shape of {phrase} depends on the mesh"]
        findings = self._findings(meshes, uneven)
        if uneven:
            self.left_out.append(f"not compared between meshes: {phrase}, whose shape depends on the mesh")
        return findings, self.left_out

    def _compile_for_meshes(self) -> None:
        with on_mesh(self.mesh):
            hinted, self._given = with_hints(VERB, self._function(), [value for value, _ in self._arguments()], {})
        read = signature(hinted, VERB)
        self._subject = subject = classify_function(hinted, read)
        for mesh in sorted(default_meshes(axes_of(read, self.mesh), read.name), key=lambda mesh: mesh.size):
            used = subject.mesh_for(mesh)
            try:
                call = FlatCall(plan_inputs(hinted, [mesh], {}, self._given, VERB).draw(0).on(used), jax.Array)
                self._compiled[used] = compile_call(subject, call, used, False, lambda _: False)
                self.types[mesh] = self._compiled[used].types
            except Exception as error:  # for instance sizes that do not fit, or a permutation of other shards
                self.refused[mesh] = error

    def _function(self) -> Callable[..., Any]:
        """A function of the global operands, with the names of the region and of the operands."""

        def run(*operands: Any) -> Any:
            results = self.call(*operands)
            return results[0] if len(results) == 1 else results

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(operand.name, kind) for operand in self.operands])
        setattr(run, "__signature__", signature)  # noqa: B010 (unknown to type checkers)
        run.__name__ = run.__qualname__ = self.region.name
        return run

    def _arguments(self) -> list[tuple[Any, str]]:
        """The arguments of a run, each with a note if it is not the operand: equal entries are varied."""
        arguments, has_loop = list[tuple[Any, str]](), "while" in _primitives(self.body)
        for operand in self.operands:
            value, note = operand.value, _NOT_SEEN if operand.is_struct else ""
            is_weak = getattr(operand.variable.aval, "weak_type", False)
            if is_weak and np.ndim(value) == 0 and not operand.is_differentiated:
                value = value if operand.is_struct else np.asarray(value).item()
            elif not operand.is_struct and not has_loop and _is_constant(value):
                first = np.asarray(value).flat[0]
                change = np.random.default_rng(0).uniform(0, 1, value.shape)
                varied = first + (change if first.real >= 0 else -change)
                value, note = jax.numpy.asarray(varied, value.dtype), _VARIED
            arguments.append((value, note))
        return arguments

    def _findings(self, meshes: Sequence[Mesh], exclude: Sequence[str]) -> list[Finding]:
        """The results that depend on the mesh, unless the function may rely on its own mesh."""
        error = self._difference(meshes, exclude)
        if error is not None and (closed := closed_over_sizes(self.call.body, self.sizes)):
            axis, words = next(iter(closed.items()))
            problem = f"{self.first_line(error)}; it closes over {words}"
            self.left_out.append(f"not run on other sizes of '{axis}': {problem}")
            meshes = [mesh for mesh in meshes if all(mesh.shape[axis] == self.sizes[axis] for axis in closed)]
            error = self._difference(meshes, exclude) if len(meshes) > 1 else None
        elif self.refused:
            fixed = [axis for axis, size in self.sizes.items() if all(mesh.shape[axis] == size for mesh in meshes)]
            for axis in fixed:
                why = next(why for mesh, why in self.refused.items() if mesh.shape[axis] != self.sizes[axis])
                self.left_out.append(f"not run on other sizes of '{axis}': {self.why_not(why)}")
        return [] if error is None else [self._finding(error)]

    def _difference(self, meshes: Sequence[Mesh], exclude: Sequence[str]) -> AssertionError | None:
        if self.takes_gradient:
            not_taken = [x.name for x in self.operands if x.is_inexact and not x.is_differentiated]
            try:
                return self._run(meshes, (*exclude, *(f"grad({name})" for name in not_taken)), True)
            except AssertionError:
                raise
            except Exception as error:  # JAX cannot differentiate the function
                self.left_out.append(f"not compared between meshes: its gradients: {self.why_not(error)}")
        return self._run(meshes, tuple(exclude), False)

    def _run(self, meshes: Sequence[Mesh], exclude: tuple[str, ...], grad: bool) -> AssertionError | None:
        subject = self._subject
        first = subject.mesh_for(meshes[0])
        drawn = plan_inputs(subject.f, meshes, {}, self._given, VERB).draw(0)
        drawn = replace(drawn, compared=numbers_compared(subject, drawn.on(first), first))
        compiled = {} if grad else self._compiled
        with progress(f"{VERB}: {subject.name}") as report:
            trial = Trial(subject, drawn, grad, exclude, None, None, _SECONDS, report, compiled, {})
            try:
                trial.run(meshes, {}, {}, may_fail=True)
            except AssertionError as error:
                if "depends on the mesh" not in str(error).partition("\n")[0]:
                    raise
                return error
        return None

    def _finding(self, error: AssertionError) -> Finding:
        """A difference as a finding: the message of the comparison, the cure, and reasons for doubt."""
        problem, lines = self.first_line(error), str(error).splitlines()[1:]
        cures = (line.removeprefix("Hint: ") for line in lines if line.startswith("Hint: "))
        cure = next((cure for cure in cures if "exclude=" not in cure), "")
        places = (line.removeprefix(FIRST_DIFFERENCE) for line in lines if line.startswith(FIRST_DIFFERENCE))
        place = next((f"first difference: {place}" for place in places if not place.startswith("not known")), "")
        doubt, notes = self._doubt(problem), {note for _, note in self._arguments()}
        given = _NOT_SEEN if _NOT_SEEN in notes else _VARIED if _VARIED in notes else ""
        reservations = "; ".join(filter(None, [doubt, given]))
        message = "; ".join(filter(None, [problem, place, cure])) + (f" ({reservations})" if reservations else "")
        severity = "suspect" if doubt else "error"
        return Finding(severity, "invariance", message, self.region.file, self.region.line, self.region.name)

    def _doubt(self, problem: str) -> str:
        """Why a difference may be right, or the operands differ from those of the program; empty otherwise."""
        if any(_jax.primitives.primitive(name).is_draw for name in _primitives(self.body)):
            return "it draws random numbers, which may legitimately differ between shards"
        if any(x.is_struct and jax.numpy.issubdtype(x.value.dtype, jax.numpy.integer) for x in self.operands):
            return "its integers are drawn, and may be out of the range that it expects"
        results = [self.body.outvars[at] for at in self.region.traced.results]
        if problem.startswith("grad(") and sum(_jax.array.is_inexact(var.aval.dtype) for var in results) > 1:
            return "it is the gradient of all results, and the program may differentiate only some"
        for operand in self.operands:
            shards = [prod(self.mesh.shape[axis] for axis in axes) for axes in operand.layout.dim_axes]
            if any(size == count > 1 for size, count in zip(np.shape(operand.value), shards, strict=True)):
                return f"'{operand.name}' has one entry per shard here, which the function may rely on"
        for operand in self.operands:
            if self._is_local_index(operand):
                return f"'{operand.name}' may hold indices within each shard"
        makers = [_jax.jaxpr.maker_of(self.body, var) for var in results]
        if any(maker is not None and maker.primitive.name == "ppermute" for maker in makers):
            return "it passes shards on unchanged, as the stages of a pipeline do"
        return ""

    def _is_local_index(self, index: _RegionOperand) -> bool:
        """Whether a sharded operand holds indices into the shard of an array, not into the global array."""
        axes = {axis for axes in index.layout.dim_axes for axis in axes}
        if not axes or not jax.numpy.issubdtype(index.variable.aval.dtype, jax.numpy.integer):
            return False
        sharded = dict[Any, list[int]]()
        for var, spec in zip(self.body.invars, self.region.in_specs, strict=True):
            dims = [dim for dim, by in enumerate(_jax.array.spec_entries(spec).dim_axes) if not axes.isdisjoint(by)]
            if dims:
                sharded[var] = dims
        return is_index_into(self.body, index.variable, sharded)

    def first_line(self, error: Exception) -> str:
        """The first line of an error, without the name of the region."""
        return (str(error).splitlines() or [""])[0].removeprefix(f"{self.region.name}: ")

    def why_not(self, error: Exception) -> str:
        first = self.first_line(error)
        text = first if isinstance(error, TypedShmapError) else f"{type(error).__name__}: {first}"
        text = text.removeprefix(f"{VERB}: {self.region.name}: ")
        closed = closed_over_sizes(self.call.body, self.mesh.shape)
        return text + "".join(f"; it closes over {words}" for words in [*closed.values()][:1])


def _is_constant(x: Any) -> bool:
    """Whether all entries of an inexact array, at least two, are equal."""
    if np.size(x) < 2 or not _jax.array.is_inexact(x.dtype):
        return False
    values = np.asarray(x)
    return bool(np.isfinite(values.flat[0]) and (values == values.flat[0]).all())
