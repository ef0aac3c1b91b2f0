"""Run the regions of an audit on other meshes, and compare their global results."""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ... import _jax
from ...errors import TypedShmapError
from ...errors.phrases import quoted_axes
from ...inference.closures import closed_over_sizes
from ...introspection import require_decorated
from ...meshes import override_mesh
from ...testing.comparisons import numbers_compared
from ...testing.describe_difference import FIRST_DIFFERENCE
from ...testing.diagnose import result_phrase
from ...testing.invariance import VERB, Trial
from ...testing.meshes import axes_of, default_meshes
from ...testing.run import CompiledCall, classify_function, compile_call
from ..progress import progress
from ..sample.arguments import FlatCall
from ..sample.plain import with_hints
from ..sample.plan import plan_inputs
from .findings import AuditedRegion, Finding
from .operands import is_index_into
from .seen import SeenRegion

_DRAWS = frozenset(["random_bits", "threefry2x32", "rng_bit_generator"])
_SECONDS = 60
_NOT_RUN = "not run on other meshes: "


def compare_on_meshes(seen: Iterable[SeenRegion]) -> tuple[list[Finding], list[AuditedRegion]]:
    """Run regions on one device and on axes of other sizes.

    What they print as they are traced and run is not shown.

    Returns:
      What depends on the mesh, and the regions of which something is not compared, with the reason.
    """
    findings, not_run, is_stuck = list[Finding](), list[AuditedRegion](), False
    for each in seen:
        region, why = each.region, "a region before it has not ended" if is_stuck else _reason_not_to_run(each)
        left_out = [_NOT_RUN + why] if why else []
        if why == "":
            try:
                with warnings.catch_warnings(), redirect_stdout(io.StringIO()), _jax.mesh.without_ambient():
                    warnings.simplefilter("ignore")
                    found, left_out = _OnMeshes(each).compare()
                findings += found
            except AssertionError as error:
                is_stuck, left_out = (
                    " has not ended on " in str(error),
                    [_NOT_RUN + (_first_line(each, error) or "AssertionError")],
                )
            except Exception as error:  # whatever the body raises for other shards
                left_out = [_NOT_RUN + _why_not(each, error)]
        if left_out:
            not_run.append(region._replace(is_complete=True, unread=tuple(left_out)))
    return findings, not_run


def _reason_not_to_run(each: SeenRegion) -> str | None:
    """Why a region cannot be run again; None for a nested one, which is run with its outer region."""
    call = each.traced.call
    if each.traced.eqn.params["mesh"].manual_axes:
        return None
    if call is None:
        return "jax 0.10.1 and older trace a function only once"
    if each.is_stuck:
        return "its shards would wait for each other"
    if each.structs and _has_loop(each):
        return "a while loop may never end with values that are drawn, and its operands were not seen"
    body = each.traced.eqn.params["jaxpr"]
    if _jax.jaxpr.effects_of(body):  # writes of kernels do not count
        found = next(filter(_jax.jaxpr.has_effects, _jax.jaxpr.all_equations(body)), None)
        return f"it does more than compute its results ({found.primitive.name if found else 'a write'})"
    return ""


class _OnMeshes:
    """A region, as a function of its global operands, on the meshes that it can be compiled for.

    Attributes:
      each: the region.
      own: the sizes of the axes of its own mesh that are longer than 1.
      types: by mesh the types of its results; the smallest mesh first.
      refused: by mesh what was raised there.
      left_out: what is not compared, with the reason.
    """

    def __init__(self, each: SeenRegion) -> None:
        call = each.traced.call
        assert call is not None
        mesh = call.params["mesh"]
        self.each, self.own = each, {axis: size for axis, size in mesh.shape.items() if size > 1}
        with override_mesh(mesh):
            hinted, self._given = with_hints(VERB, _function_of(each), [value for value, _ in _arguments(each)], {})
        made_of = require_decorated(hinted, VERB)
        typed = made_of.signature.read(())
        self._subject = classify_function(hinted, made_of, typed, None)
        self.types, self.refused = dict[Mesh, dict[str, Any]](), dict[Mesh, Exception]()
        self._compiled = dict[Mesh, CompiledCall]()
        for other in sorted(default_meshes(axes_of(made_of, typed, mesh), typed.name), key=lambda mesh: mesh.size):
            try:
                self.types[other] = self._compile(other)
            except Exception as error:  # of many kinds: sizes that do not fit, a permutation of other shards
                self.refused[other] = error
        self.left_out = list[str]()

    def _compile(self, mesh: Mesh) -> dict[str, Any]:
        """Compile it for a mesh; returns the types of its results."""
        subject = self._subject
        used = subject.mesh_for(mesh)
        call = FlatCall(plan_inputs(subject.f, [mesh], {}, self._given, VERB).draw(0).on(used), jax.Array)
        compiled = self._compiled[used] = compile_call(subject, call, used, False, lambda _: False)
        return dict(zip(compiled.names, compiled.types, strict=True))

    def compare(self) -> tuple[list[Finding], list[str]]:
        """Compare the results on all meshes on which they can be computed.

        Results whose shape is another one on other meshes, as that of one entry per shard is, are compared between
        those on which it is the same.

        Returns:
          What depends on the mesh; and what is not compared, with the reason.

        Raises:
          AssertionError: for a program that has not ended.
        """
        meshes = [*self.types]
        if len(meshes) < 2:
            raise next(iter(self.refused.values()))
        names = [*self.types[meshes[0]]]
        uneven = [name for name in names if len({types[name].shape for types in self.types.values()}) > 1]
        findings = self._findings(meshes, uneven) if len(uneven) < len(names) else []
        axes = self._axes_of([names.index(name) for name in uneven])
        groups = dict[Any, list[Mesh]]()
        for mesh, types in self.types.items() if uneven else ():
            key = *(types[name].shape for name in uneven), *(mesh.shape[axis] for axis in axes)
            groups.setdefault(key, []).append(mesh)
        several = [group for group in groups.values() if len(group) > 1]
        if not findings:
            even = [name for name in names if name not in uneven]
            findings = next(filter(None, (self._findings(group, even, False) for group in several)), [])
        if uneven:
            self.left_out.append(self._why_uneven(uneven, axes, bool(several)))
        return findings, self.left_out

    def _why_uneven(self, results: Sequence[str], axes: Sequence[str], is_compared: bool) -> str:
        """Why results are not compared, or only between some meshes."""
        phrase = ", ".join(map(result_phrase, results))
        blocks = [{_shard_shape(types[name]) for types in self.types.values()} for name in results]
        if axes and all(len(shapes) == 1 for shapes in blocks):
            text = f"{phrase}, of one entry per shard of {quoted_axes(axes)}"
        else:
            text = f"{phrase}, whose shape depends on the mesh"
        return f"not compared between meshes{' where they differ in that' if is_compared else ''}: {text}"

    def _axes_of(self, results: Sequence[int]) -> list[str]:
        """The axes over which some results are sharded."""
        params, at = self.each.traced.eqn.params, self.each.traced.results
        specs = [_jax.array.spec_entries(params["out_specs"][at[result]]) for result in results]
        used = {axis for spec in specs for axes in spec.dim_axes for axis in axes}
        return [axis for axis in self.own if axis in used]

    def _findings(self, meshes: Sequence[Mesh], exclude: Sequence[str], has_gradients: bool = True) -> list[Finding]:
        """The results that depend on the mesh, unless the function may rely on its own mesh."""
        error = self._difference(meshes, exclude, has_gradients)
        call = self.each.traced.call
        assert call is not None
        if error is not None and (closed := closed_over_sizes(call.body, self.own)):
            axis, words = next(iter(closed.items()))
            problem = f"{_first_line(self.each, error)}; it closes over {words}"
            self.left_out.append(f"not run on other sizes of '{axis}': {problem}")
            meshes = [mesh for mesh in meshes if all(mesh.shape[axis] == self.own[axis] for axis in closed)]
            error = self._difference(meshes, exclude, has_gradients) if len(meshes) > 1 else None
        elif self.refused:
            fixed = [axis for axis, size in self.own.items() if all(mesh.shape[axis] == size for mesh in meshes)]
            for axis in fixed:
                why = next(why for mesh, why in self.refused.items() if mesh.shape[axis] != self.own[axis])
                self.left_out.append(f"not run on other sizes of '{axis}': {_why_not(self.each, why)}")
        return [] if error is None else [_finding(self.each, error)]

    def _difference(self, meshes: Sequence[Mesh], exclude: Sequence[str], has_gradients: bool) -> AssertionError | None:
        """The differences between meshes."""
        if has_gradients and self.each.differentiated:
            try:
                return self._run(meshes, (*exclude, *_gradients(self.each)), True)
            except AssertionError:
                raise
            except Exception as error:  # what JAX cannot differentiate
                self.left_out.append(f"not compared between meshes: its gradients: {_why_not(self.each, error)}")
        return self._run(meshes, tuple(exclude), False)

    def _run(self, meshes: Sequence[Mesh], exclude: tuple[str, ...], grad: bool) -> AssertionError | None:
        subject = self._subject
        drawn = plan_inputs(subject.f, meshes, {}, self._given, VERB).draw(0)
        compared = numbers_compared(subject, drawn.on(subject.mesh_for(meshes[0])), subject.mesh_for(meshes[0]))
        with progress(f"{VERB}: {subject.name}") as report:
            drawn = replace(drawn, compared=compared)
            trial = Trial(
                subject, drawn, grad, exclude, None, None, _SECONDS, report, {} if grad else self._compiled, {}
            )
            try:
                trial.run(meshes, {}, {}, may_fail=True)
            except AssertionError as error:
                if "depends on the mesh" not in str(error).partition("\n")[0]:
                    raise
                return error
        return None


def _shard_shape(result: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    return result.sharding.shard_shape(result.shape)  # type: ignore[union-attr]


def _finding(each: SeenRegion, error: AssertionError) -> Finding:
    """A difference as a finding: the message of the comparison, the cure, and reasons for doubt."""
    region, problem, lines = each.region, _first_line(each, error), str(error).splitlines()[1:]
    cures = (line.removeprefix("Hint: ") for line in lines if line.startswith("Hint: "))
    cure = next((cure for cure in cures if "exclude=" not in cure), "")
    places = (line.removeprefix(FIRST_DIFFERENCE) for line in lines if line.startswith(FIRST_DIFFERENCE))
    place = next((f"first difference: {place}" for place in places if not place.startswith("not known")), "")
    doubt = _doubt(each, problem)
    notes = "; ".join(filter(None, [doubt, _how_given(each)]))
    message = "; ".join(filter(None, [problem, place, cure])) + (f" ({notes})" if notes else "")
    return Finding("suspect" if doubt else "error", "invariance", message, region.file, region.line, region.name)


def _first_line(each: SeenRegion, error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].removeprefix(f"{each.region.name}: ")


def _gradients(each: SeenRegion) -> tuple[str, ...]:
    """The gradients that the program does not take."""
    call, names = each.traced.call, _argument_names(each)
    assert call is not None
    are_inexact = [_jax.array.is_inexact(jax.numpy.result_type(operand)) for operand in call.operands]
    return tuple(
        f"grad({name})"
        for at, (name, is_inexact) in enumerate(zip(names, are_inexact, strict=True))
        if is_inexact and at - len(names) not in each.differentiated
    )


def _arguments(each: SeenRegion) -> list[tuple[Any, str]]:
    """What a region is run with, each with a word on how it was come by if it is not what it was given.

    What has equal entries, as state at the start has, would be the same in any order: it is varied.
    """
    call = each.traced.call
    assert call is not None
    found, has_loop, start = list[tuple[Any, str]](), _has_loop(each), each.traced.start
    for at, operand in enumerate(call.operands):
        is_weak = getattr(each.traced.eqn.invars[start + at].aval, "weak_type", False)
        if is_weak and np.ndim(operand) == 0 and at - len(call.operands) not in each.differentiated:
            number = operand if isinstance(operand, _jax.array.SHAPES) else np.asarray(operand).item()
            found.append((number, _NOT_SEEN if number is operand else ""))
        elif isinstance(operand, _jax.array.SHAPES):
            found.append((operand, _NOT_SEEN))
        elif not has_loop and _is_constant(operand):
            first = np.asarray(operand).flat[0]
            change = np.random.default_rng(0).uniform(0, 1, operand.shape)
            varied = first + (change if first.real >= 0 else -change)
            found.append((jax.numpy.asarray(varied, operand.dtype), "varied"))
        else:
            found.append((operand, ""))
    return found


_NOT_SEEN = "not seen, and drawn"


def _is_constant(operand: Any) -> bool:
    """Whether all entries of an inexact array, at least two, are equal."""
    if np.size(operand) < 2 or not _jax.array.is_inexact(operand.dtype):
        return False
    values = np.asarray(operand)
    return bool(np.isfinite(values.flat[0]) and (values == values.flat[0]).all())


def _how_given(each: SeenRegion) -> str:
    """The operands that differ from those of the program, in words."""
    hows = {how for _, how in _arguments(each)}
    if _NOT_SEEN in hows:
        return "its arguments were not seen, and are drawn"
    return "an argument with equal entries is varied" if hows - {""} else ""


def _has_loop(each: SeenRegion) -> bool:
    equations = _jax.jaxpr.all_equations(each.traced.eqn.params["jaxpr"])
    return any(eqn.primitive.name == "while" for eqn in equations)


def _doubt(each: SeenRegion, problem: str) -> str:
    """Why a difference may be right, or the operands unlike those of the program; empty if neither."""
    body = each.traced.eqn.params["jaxpr"]
    primitives = {eqn.primitive.name for eqn in _jax.jaxpr.all_equations(body)}
    if not primitives.isdisjoint(_DRAWS):
        return "it draws random numbers, which may rightly differ from shard to shard"
    if any(jax.numpy.issubdtype(struct.dtype, jax.numpy.integer) for struct in each.structs):
        return "its integers may be none that the program gives it"
    results = [body.outvars[at] for at in each.traced.results]
    if problem.startswith("grad(") and sum(_jax.array.is_inexact(var.aval.dtype) for var in results) > 1:
        return "it is that of all its results, of which the program may differentiate some"
    if names := _entries_per_shard(each):
        return f"'{names[0]}' has one entry per shard here, which the function may rely on"
    if name := _local_index(each):
        return f"'{name}' may count within each shard"
    makers = [_jax.jaxpr.maker_of(body, var) for var in results]
    if any(maker is not None and maker.primitive.name == "ppermute" for maker in makers):
        return "it hands shards on as they are, as stages of a pipeline do"
    return ""


def _local_index(each: SeenRegion) -> str:
    """An operand that is sharded, and by whose integers each shard looks up in what it has over the same axis.

    Where an offset by the shard's index is taken off it first, or it is sent to other shards, it is of the whole.
    """
    body, call = each.traced.eqn.params["jaxpr"], each.traced.call
    assert call is not None
    specs = [_jax.array.spec_entries(spec) for spec in each.traced.eqn.params["in_specs"]]
    names, start = _argument_names(each), each.traced.start
    for at, name in enumerate(names):
        index = body.invars[start + at]
        axes = {axis for axes in specs[start + at].dim_axes for axis in axes}
        if axes and jax.numpy.issubdtype(index.aval.dtype, jax.numpy.integer):
            sharded = {
                var: [dim for dim, by in enumerate(spec.dim_axes) if not axes.isdisjoint(by)]
                for var, spec in zip(body.invars, specs, strict=True)
            }
            if is_index_into(body, index, {var: dims for var, dims in sharded.items() if dims}):
                return name
    return ""


def _entries_per_shard(each: SeenRegion) -> list[str]:
    """The operands with one entry per shard along a sharded dim."""
    found = list[str]()
    call = each.traced.call
    assert call is not None
    sizes = call.params["mesh"].shape
    for name, operand, spec in zip(_argument_names(each), call.operands, call.params["in_specs"], strict=True):
        layout = _jax.array.spec_entries(spec, np.ndim(operand))
        shards = [prod(sizes[axis] for axis in axes) for axes in layout.dim_axes]
        if any(size == count > 1 for size, count in zip(np.shape(operand), shards, strict=True)):
            found.append(name)
    return found


def _argument_names(each: SeenRegion) -> tuple[str, ...]:
    """The names of a region's operands; replaced if they are not valid parameter names."""
    call = each.traced.call
    assert call is not None
    names, count = call.argument_names or each.argument_names, len(call.operands)
    if len({*names}) != count or not all(name.isidentifier() for name in names):
        return tuple(f"arg{at}" for at in range(count))
    return names


def _function_of(each: SeenRegion) -> Callable[..., Any]:
    """A region as a function of its global operands, with its name and theirs."""
    call = each.traced.call
    assert call is not None

    def run(*operands: Any) -> Any:
        results = call(*operands)
        return results[0] if len(results) == 1 else results

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in _argument_names(each)])
    setattr(run, "__signature__", signature)  # noqa: B010 (unknown to type checkers)
    run.__name__ = run.__qualname__ = each.region.name
    return run


def _why_not(each: SeenRegion, error: Exception) -> str:
    """The reason in an exception that a region cannot be run."""
    first = _first_line(each, error)
    text = first if isinstance(error, TypedShmapError) else f"{type(error).__name__}: {first}"
    text = text.removeprefix(f"{VERB}: {each.region.name}: ")
    call = each.traced.call
    assert call is not None
    closed = closed_over_sizes(call.body, call.params["mesh"].shape)
    return text + "".join(f"; it closes over {words}" for words in [*closed.values()][:1])
