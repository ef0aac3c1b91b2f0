"""Compare the programs of a function on one device and on meshes, as terms over global arrays."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh

from ... import _jax
from ...errors import MeshAxisError, ShapeError, StructureError, SuspectWarning, TypedShmapError
from ...errors.phrases import first_line, mesh_text, value_text
from ...errors.requirements import merge_sizes, require_bool_or_none
from ...inspection import signature
from ...notation.match import NoValue
from ...records import Record
from ...tools.sample.arguments import FlatCall, Inputs
from ...tools.sample.input_plan import InputPlan, plan_inputs, size_of
from ...tools.sample.plain import is_plain, with_hints
from ..describe_difference import FIRST_DIFFERENCE
from ..invariance import DifferenceReport, assert_mesh_invariant
from ..run import FlatFunction, FunctionUnderTest, classify_function, in_its_region
from ..trial_meshes import axes_of
from .global_values import Gap, GlobalValue, NotKnown, TermTable, Unknown
from .rules import RULES
from .walk import Walk

ProofVerdict = Literal["proved", "refuted", "unknown"]


class Proof(Record):
    """The verdict whether the results of a function depend on the mesh.

    Attributes:
      function: its name.
      verdict: ``"proved"``; ``"refuted"``, by a mesh on which it gave another result; or ``"unknown"``.
      place: the equation that gives another result, or that is unknown; "" if it is proved.
      why: what is wrong, or unknown, at that place.
      assumed: the assumptions of the proof.
    """

    function: str
    verdict: ProofVerdict
    place: str
    why: str
    assumed: tuple[str, ...]

    def __str__(self) -> str:
        facts = [self.why] if self.why else []
        facts += [f"at {self.place}"] if self.place else []
        lines = [f"{self.function}: {self.verdict}{': ' if facts else ''}{', '.join(facts)}"]
        return "\n".join([*lines, *(f"  assumed: {assumption}" for assumption in self.assumed)])


def prove(
    f: Any, *, grad: bool = False, timeout: float = 120, sizes: Mapping[str, Any] | None = None, **dims: Any
) -> Proof:
    """Prove that the global results of a typed function are the same on every mesh.

    The program is traced on one device and on meshes of many sizes, without devices, and each value is interpreted as a
    term over global arrays: the shards hold the global array, a part of it, or a part of a sum. If the terms of the
    results are the same, so are the results, over exact numbers. Otherwise the function is run on the default meshes;
    it is refuted only by a mesh on which it ran to its end and gave another result.

    Args:
      f: a function made by `typed_shard_map`, `typed_jit` or `typed`; or a function without hints that calls
        ``jax.shard_map``, with its arguments by name, arrays or ``jax.ShapeDtypeStruct``.
      grad: whether the vector-Jacobian products of all results with respect to all inexact arguments must also be the
        same.
      timeout: the seconds that the analysis, and then each run, may take; after that the verdict is unknown.
      sizes: sizes by name as in a dict, for a dim that has the name of an option.
      **dims: sizes by the names of dims, and arguments by their names, as for `inputs`: the proof is for these and for
        all sizes of the other dims.

    Returns:
      The verdict.

    Raises:
      StructureError: for a name that its hints do not have; for a function without hints that has other arguments, or
        that traces no region.
      ShapeError: for sizes that fit no mesh.
      MeshAxisError: if no mesh axis is known.
      TypedShmapError: for errors of the function on every mesh.
    """
    seconds: Any = timeout
    sizes = merge_sizes(VERB, sizes, dims)
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds < float("inf"):
        raise StructureError(f"{VERB}: timeout={value_text(timeout)} is not a number of seconds")
    given = None
    if is_plain(f):
        f, given = with_hints(VERB, f, (), sizes)
        sizes = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SuspectWarning)  # the terms decide
        read = _read(f, grad, sizes, time.monotonic() + timeout, has_shapes=given is not None)
    if read.verdict == "proved":
        return read
    try:
        assert_mesh_invariant(f, grad=grad, timeout=timeout, arguments=given, sizes=sizes)
    except AssertionError as error:
        if not error.args or not isinstance(error.args[0], DifferenceReport):
            return read  # it did not end, is not deterministic, or raised its own assertion
        lines = str(error).splitlines()
        first = next((line for line in lines if line.startswith(FIRST_DIFFERENCE)), "")
        return replace(read, verdict="refuted", place=first.removeprefix(FIRST_DIFFERENCE) or read.place, why=lines[0])
    except TypedShmapError as error:
        if not isinstance(error, (MeshAxisError, ShapeError, StructureError)):  # no mesh to run on
            raise
    except Exception:  # it cannot be run on some mesh
        return read
    return read


def _read(f: Any, grad: bool, sizes: Mapping[str, Any], deadline: float, has_shapes: bool) -> Proof:
    """The verdict without a run: proved, or unknown."""
    hinted = signature(f, VERB)
    require_bool_or_none(VERB, "grad", grad)
    axes = axes_of(hinted, hinted.known_mesh())
    axes.require_some(VERB, hinted.name, "call it")
    single = axes.abstract({})
    plan = plan_inputs(f, [single], sizes, None, VERB)
    subject, made = classify_function(f, hinted), plan.draw(0).structs(single)
    try:
        subject = in_its_region(subject, made, single)
    except TypedShmapError:
        raise
    except Exception:  # the body also raises it on the analyzed meshes
        pass
    fixed = _fixed_sizes(plan_inputs(f, [single, axes.abstract(dict.fromkeys(axes.sizes, 2))], sizes, None, VERB))
    tried, misfits, refused = list[tuple[dict[str, int], int]](), list[ShapeError](), ""
    try:
        for seed, shape in enumerate(_shapes(list(axes.sizes), fixed)):
            meshes = [subject.mesh_for(axes.abstract(size)) for size in ({}, shape)]
            comparison = _MeshComparison(subject, meshes, sizes, grad, Walk(TermTable(), RULES, deadline))
            try:
                tried.append((shape, comparison.read(seed)))
            except ShapeError as misfit:  # given sizes, or sizes in hints, do not divide over this mesh
                if comparison.refused and not sizes:
                    if not tried:
                        raise
                    raise _raises(misfit, shape) from None
                misfits.append(misfit)
            refused = refused or comparison.refused
            _require_same_equations(tried)
        if not tried:
            raise misfits[0]
        if not any(min(shape.values()) > 1 for shape, _ in tried):
            raise Gap("no mesh shards every dim that its hints shard")
    except Gap as gap:
        return Proof(hinted.name, "unknown", gap.place, gap.why, ())
    largest = {name: max(shape[name] for shape, _ in tried) for name in axes.sizes}
    on = f"{len(tried)} meshes, up to {mesh_text(largest.items())}"
    where = "for arguments of these shapes, on all meshes over which they divide" if has_shapes else _where(plan, sizes)
    assumed = [f"{where}, it has the equations that were traced on {on}"]
    assumed += [f"sizes are such that it does not raise {refused}"] if refused else []
    return Proof(hinted.name, "proved", "", "", (*assumed, *ASSUMED))


def _raises(error: Exception, shape: Mapping[str, int]) -> Gap:
    return Gap(f"it raises {first_line(error)}, on {mesh_text(shape.items())}")


VERB = "prove"
ASSUMED = ("numbers are exact, loops end, and there are no infinities, no NaNs and no overflow",)
_SIZES = (2, 3, 4, 8)
_ALONE = 3
_LONG = 101
"""A size larger than most numbers in a program's text, so that what is decided by comparing with them is seen."""


def _require_same_equations(tried: Sequence[tuple[Mapping[str, int], int]]) -> None:
    """Require that the programs of all sharding meshes have the same equations, so that the proof holds for all."""
    sharded = [(mesh_text(shape.items()), count) for shape, count in tried if min(shape.values()) > 1]
    if sharded and sharded[0][1] != sharded[-1][1]:
        (first, expected), (last, count) = sharded[0], sharded[-1]
        raise Gap(f"it has {count} equations on {last}, and {expected} on {first}")


def _where(plan: InputPlan, given: Mapping[str, Any]) -> str:
    """The meshes, the sizes and the static arguments for which a proof holds, in words."""
    known = {**{name: value for name, value in given.items() if not hasattr(value, "shape")}, **plan.given}
    if not known:
        return "on all meshes, and for all sizes"
    text = ", ".join(f"{name}={value_text(value)}" for name, value in known.items())
    others = " and all other sizes" if plan.factors.keys() - known.keys() else ""
    return f"for {text}{others}, on all meshes over which these divide"


def _fixed_sizes(plan: InputPlan) -> set[int]:
    """The sizes of sharded dims that are the same in all draws: sizes in hints, or given sizes."""
    sizes = set[int]()
    for requirement in plan.requirements:
        if requirement.factor > 1:
            with suppress(NoValue):
                sizes.add(size_of(requirement.expression, plan.given, plan.named))
    return sizes


def _shapes(names: Sequence[str], fixed: Iterable[int]) -> list[dict[str, int]]:
    """The sizes of meshes: all axes together, with different and with equal sizes; each axis alone; divisors of fixed
    sizes; large sizes last, after programs that grow with the mesh have been recognised."""
    count = len(names)

    def along_each(size: int, others: int) -> list[tuple[int, ...]]:
        return [tuple(size if at == axis else others for axis in range(count)) for at in range(count)]

    shapes = [tuple(islice(cycle(_SIZES), start, start + count)) for start in range(len(_SIZES))]
    if count > 1:
        shapes += [(2,) * count, *along_each(_ALONE, 1)]
    for part in range(2, _LONG + 1):
        if any(size % part == 0 for size in fixed if size >= part):
            shapes += [*along_each(part, 1), *along_each(part, 2)]
    shapes += along_each(_LONG, 2)
    return [dict(zip(names, shape, strict=True)) for shape in dict.fromkeys(shapes)]


@dataclass
class _MeshComparison:
    """A function on one device and on a mesh.

    Attributes:
      subject: the function.
      meshes: the mesh of one device, and the other mesh.
      sizes: the given sizes.
      grad: whether its vector-Jacobian product is also compared.
      walk: reads both programs.
      refused: the error of an operation that refused sizes that the hints allow; "" without such an error.
    """

    subject: FunctionUnderTest
    meshes: Sequence[AbstractMesh]
    sizes: Mapping[str, Any]
    grad: bool
    walk: Walk
    refused: str = ""

    def read(self, seed: int) -> int:
        """Require that the results on the mesh are those on one device, and count the equations on the mesh.

        An operation may refuse sizes that the hints allow, if it scatters an unsharded dim; then they are drawn once
        more, as multiples of the mesh's sizes.
        """
        try:
            drawn = self._drawn(seed, 1)
            try:
                return self._compare(drawn)
            except ShapeError as error:
                self.refused = first_line(error)
                try:
                    return self._compare(self._drawn(seed, 2 * self.meshes[1].size))
                except ShapeError:
                    raise error from None
        except (Gap, TypedShmapError):
            raise
        except Exception as error:
            raise _raises(error, self.meshes[1].shape) from error

    def _drawn(self, seed: int, multiples_of: int) -> list[Inputs]:
        """The arguments for both meshes."""
        plan = plan_inputs(self.subject.f, self.meshes, self.sizes, None, VERB).with_multiples(multiples_of)
        drawn = plan.draw(seed)
        return [drawn.structs(mesh) for mesh in self.meshes]

    def _compare(self, inputs: Sequence[Inputs]) -> int:
        pairs = [*zip(inputs, self.meshes, strict=True)]
        (actual, names), (expected, expected_names) = (self._traced(made, mesh) for made, mesh in pairs[::-1])
        if names != expected_names:
            raise Gap("it has other results there than on one device")
        for name, first, second in zip(names, expected.out_avals, actual.out_avals, strict=True):
            if (first.shape, first.dtype) != (second.shape, second.dtype):
                raise Gap(f"{name} has another shape or dtype there than on one device")
        values = [self._results(jaxpr) for jaxpr in (expected, actual)]
        for name, first, second in zip(names, *values, strict=True):
            self._require_same(name, first, second)
        return sum(1 for _ in _jax.jaxpr.all_equations(actual))

    def _traced(self, made: Inputs, mesh: AbstractMesh) -> tuple[Any, list[str]]:
        """The program of a function on a mesh and the names of its results, with its vector-Jacobian product if that is
        compared."""
        call = FlatCall(made, jax.ShapeDtypeStruct)
        f = FlatFunction(self.subject.mapped(mesh), call)
        with self.subject.on(mesh):
            if not self.grad:
                return jax.make_jaxpr(f.results)(call.arrays), f.names
            types = jax.eval_shape(f.results, call.arrays)
            pairs = zip(f.names, types, strict=True)
            inexact = {name: leaf for name, leaf in pairs if _jax.array.is_inexact(leaf.dtype)}

            def both(arrays: Sequence[Any], cotangents: list[Any]) -> Any:
                return f.results(arrays), f.pullback(inexact, arrays, cotangents)

            jaxpr = jax.make_jaxpr(both)(call.arrays, [*inexact.values()])
        return jaxpr, [*f.names, *f.gradient_names]

    def _results(self, jaxpr: Any) -> list[GlobalValue]:
        dims = [((),) * len(aval.shape) for aval in jaxpr.in_avals]
        return self.walk.interpret(jaxpr, [self.walk.made("argument", at, [], free) for at, free in enumerate(dims)])

    def _require_same(self, name: str, expected: GlobalValue, actual: GlobalValue) -> None:
        """Require that a result is known to be the same on one device and on the mesh."""
        walk, terms = self.walk, self.walk.terms
        for value in (actual, expected):
            if isinstance(value, Unknown):
                raise Gap(value.why, value.place)
        try:
            first, second = walk.settled(expected), walk.settled(actual)
        except NotKnown as error:
            raise Gap(f"{name}: {error}") from None
        if first.is_extreme or second.is_extreme:  # an unreduced result means its sum
            raise Gap(f"{name} is not reduced")
        if first.term != second.term:
            place = terms.places[terms.difference(first.term, second.term)]
            raise Gap(f"{name} is not computed there as on one device", place)
        if first.factor != second.factor:
            is_times = f"{second.factor / first.factor} times what it is" if first.factor else "not zero, which it is"
            raise Gap(f"{name} is {is_times} on one device", terms.places[second.term])
