"""Compare what a function computes on one device with what it computes on meshes, as terms over global arrays."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, cycle, islice, starmap
from math import prod
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh

from ... import _jax
from ...errors import ShapeError, StructureError, SuspectWarning, TypedShmapError
from ...errors.phrases import mesh_text
from ...introspection import bound_self, require_bool_or_none, require_decorated
from ...records import Record
from ...sampling import mesh_of
from ...sampling.arguments import FlatCall, Inputs
from ...sampling.plan import InputPlan, plan_inputs
from ..describe_difference import FIRST_DIFFERENCE
from ..invariance import assert_mesh_invariant
from ..meshes import FunctionAxes, axes_of
from ..run import FunctionUnderTest, classify_function, needs_manual_axes
from .cases import Cases, read_in_cases
from .entries.rules import ENTRY_RULES
from .entries.walk import EntryWalk, argument
from .polynomials import Polynomials
from .rules import RULES
from .values import GlobalValue, NotKnown, TermTable, Unknown
from .walk import Walk

ProofVerdict = Literal["proved", "refuted", "unknown"]


class Proof(Record):
    """Whether the results of a function depend on the mesh.

    Attributes:
      function: its name.
      verdict: ``"proved"``; ``"refuted"``, by a mesh on which it gave another result; or ``"unknown"``.
      place: the equation that gives another result, or that nothing is known of; "" if it is proved.
      why: what is wrong there, or what is not known.
      assumed: what the proof takes for granted.
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
        return "\n".join([*lines, *(f"  assumed: {each}" for each in self.assumed)])


class _Gap(NamedTuple):
    """Where a proof ends.

    Attributes:
      place: the equation.
      why: what is not known.
    """

    place: str
    why: str


def prove(f: Any, *, grad: bool = False, **sizes: Any) -> Proof:
    """Prove that the global results of a typed function are the same on every mesh.

    Its program is traced on one device and on meshes of many sizes, without devices, and each value is read as a term
    over global arrays: what the shards hold is the whole, a part of it, or a part of a sum. If the terms of the results
    are the same, so are the results, up to the order in which floats are added. If they are not, the function is run on
    the default meshes; it is refuted only by a mesh on which it gives another result.

    Args:
      f: a function made by `typed_shard_map`, `typed_jit` or `typed`.
      grad: whether the vector-Jacobian products must be the same as well, of all results in all inexact arguments.
      **sizes: sizes by the names of dims, and arguments by their names, as for `inputs`; the others are drawn.

    Returns:
      The verdict.

    Raises:
      StructureError: for a function without hints, and for a name that these do not have.
      ShapeError: for sizes that fit no mesh.
      MeshAxisError: where no mesh axis is known.
      TypedShmapError: for anything that is wrong with the function on a mesh.
    """
    read = read_proof(f, grad, sizes)
    if read.verdict == "proved":
        return read
    try:
        assert_mesh_invariant(f, grad=grad, **sizes)
    except AssertionError as error:
        lines = str(error).splitlines()
        first = next((line for line in lines if line.startswith(FIRST_DIFFERENCE)), "")
        return replace(read, verdict="refuted", place=first.removeprefix(FIRST_DIFFERENCE) or read.place, why=lines[0])
    except TypedShmapError as error:
        if not isinstance(error, StructureError):
            raise
    return read


def read_proof(f: Any, grad: bool, sizes: Mapping[str, Any]) -> Proof:
    """The same without running it: proved, or unknown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SuspectWarning)  # the terms decide
        return _read(f, grad, sizes)


def _read(f: Any, grad: bool, sizes: Mapping[str, Any]) -> Proof:
    made_of = require_decorated(f, VERB)
    require_bool_or_none(VERB, "grad", grad)
    typed = made_of.signature.read(bound_self(f))
    axes = axes_of(made_of, typed, mesh_of(f, None, VERB))
    axes.require_some(VERB, typed.name, "call it")
    tried, left_out = list[dict[str, int]](), list[dict[str, int]]()
    gap: _Gap | None = None
    taken_for_granted = set[str]()
    misfit: Exception | None = None
    subject = _in_region(classify_function(f, made_of, typed, None), axes, sizes)
    for seed, shape in enumerate(_shapes(axes)):
        try:
            comparison = _MeshComparison(subject, axes, shape, sizes, grad, seed)
            found = comparison.gap()
        except _SingleEntry as single:
            gap = gap or single.gap
        except ShapeError as error:
            if not sizes:
                raise
            misfit = misfit or error
        else:
            if found is not None:
                gap, tried = found, []
                break
            tried.append(shape)
            taken_for_granted |= comparison.assumed
            continue
        left_out.append(shape)
    if any(all(size > 1 for size in shape.values()) for shape in tried):
        largest = {name: max(shape[name] for shape in tried) for name in axes.sizes}
        traced = f"traced on {len(tried)}, up to {mesh_text(largest.items())}"
        assumed = [f"on all meshes it has the equations that were {traced}", "floats are exact"]
        assumed += sorted(taken_for_granted)
        assumed += [f"its sizes give the shards of {_listed(left_out)} no part, or a single entry"] if left_out else []
        return Proof(typed.name, "proved", "", "", tuple(assumed))
    if gap is None and misfit is not None:
        raise misfit
    if assumed := _proved_by_entries(subject, axes, sizes, grad):
        return Proof(typed.name, "proved", "", "", assumed)
    gap = gap or _Gap("", "no mesh shards all that its hints shard")
    return Proof(typed.name, "unknown", gap.place, gap.why, ())


VERB = "prove"
_SIZES = (2, 3, 4, 5)
_MOST_SHARDS = 8


class _TracedProgram(NamedTuple):
    """A traced program.

    Attributes:
      jaxpr: the program.
      names: those of its results.
      shapes: the global shapes of its operands.
    """

    jaxpr: Any
    names: list[str]
    shapes: list[tuple[int, ...]]


class _SingleEntry(Exception):
    """Raised where a proof ends on a mesh, and a shard has a single entry along a sharded dim: JAX may broadcast it.

    Attributes:
      gap: where the proof ends.
    """

    def __init__(self, gap: _Gap) -> None:
        super().__init__()
        self.gap = gap


def _proved_by_entries(
    subject: FunctionUnderTest, axes: FunctionAxes, sizes: Mapping[str, Any], grad: bool
) -> tuple[str, ...]:
    """What is assumed of a function that computes the same entries on small meshes; nothing if it is not known to."""
    small = [shape for shape in _shapes(axes) if prod(shape.values()) <= _MOST_SHARDS and 5 not in shape.values()]
    small.sort(key=lambda shape: (min(shape.values()) == 1, prod(shape.values())))
    tried, read = list[dict[str, int]](), list[_EqualEntries]()
    for seed, shape in enumerate(small):
        comparison = _MeshComparison(subject, axes, shape, sizes, grad, seed)
        try:
            read += comparison.equal_entries(any(not each.cases.are_all for each in read))
            tried.append(shape)
        except NotKnown:
            return ()
        except Exception:  # sizes that divide over no such mesh
            if not tried:
                return ()
    if not any(all(size > 1 for size in shape.values()) for shape in tried):
        return ()
    meshes = {name: max(shape[name] for shape in tried) for name in axes.sizes}
    spans = {name: sorted(each.sizes[name] for each in read if name in each.sizes) for name in read[0].sizes}
    of = ", ".join(f"{name}={each[0]} to {each[-1]}" for name, each in spans.items())
    assumed = [
        f"on all meshes it does what it does on {len(tried)}, up to {mesh_text(meshes.items())}, entry by entry",
        f"at all sizes it does what it does at {of}",
    ]
    if some := sum(each.cases.number for each in read if not each.cases.are_all):
        first = max((each for each in read if each.cases.are_all), key=lambda each: each.cases.number)
        at = ", ".join(f"{name}={size}" for name, size in first.sizes.items())
        assumed.append(
            "whatever entries are the largest, it does what it does "
            f"in all {first.cases.number} cases at {at}, and in {some} at other sizes that were drawn"
        )
    return (*assumed, "floats are exact")


def _in_region(subject: FunctionUnderTest, axes: FunctionAxes, sizes: Mapping[str, Any]) -> FunctionUnderTest:
    """The function, called as its program needs it: a helper of a manual region is mapped over the shards.

    Raises:
      TypedShmapError: for sizes that it has no use for.
    """
    one = axes.abstract({})
    made = plan_inputs(subject.f, [one], sizes, None, VERB).draw(0).structs(one)
    if subject.kind == "global" and needs_manual_axes(subject, made, one):
        return replace(subject, kind="mapped")
    return subject


def _listed(shapes: Sequence[Mapping[str, int]]) -> str:
    return ", ".join(f"({mesh_text(shape.items())})" for shape in shapes)


def _shapes(axes: FunctionAxes) -> Iterator[dict[str, int]]:
    """The sizes of meshes: each axis alone, and all together, of different sizes and of the same."""
    names = list(axes.sizes)
    for start in range(len(_SIZES) if len(names) > 1 else 0):
        yield dict(zip(names, islice(cycle(_SIZES), start, None), strict=False))
    for name in names:
        for size in _SIZES:
            yield {**dict.fromkeys(names, 1), name: size}
    if len(names) > 1:
        yield dict.fromkeys(names, 2)


def _require_same_equations(traced: Sequence[Sequence[_TracedProgram]]) -> None:
    """Require of programs at a size, twice and nine times that, that they have as many more equations, or the same.

    A slice that takes all of a short dim is no equation at all; a Python loop over a dim has more for a longer one.

    Raises:
      NotKnown: where they have others.
    """
    counts = [
        [Counter(eqn.primitive.name for eqn in _jax.jaxpr.all_equations(program.jaxpr)) for program in programs]
        for programs in traced
    ]
    for once, twice, nine in zip(*counts, strict=True):
        if any(8 * (twice[name] - once[name]) != nine[name] - once[name] for name in once | twice | nine):
            raise NotKnown("other equations at other sizes")


def _require_equal_entries(programs: Iterable[_TracedProgram], table: Polynomials) -> None:
    """Require of two programs that their results have the same entries.

    Raises:
      NotKnown: where that is not known.
    """
    one, other = (
        EntryWalk(table, ENTRY_RULES).results(
            program.jaxpr, list(starmap(partial(argument, table), enumerate(program.shapes)))
        )
        for program in programs
    )
    if not all(map(np.array_equal, one, other)):
        raise NotKnown("other entries")


class _EqualEntries(NamedTuple):
    """Where a program computes the same entries on one device and on a mesh.

    Attributes:
      sizes: its sizes.
      cases: what was decided.
    """

    sizes: Mapping[str, Any]
    cases: Cases


class _MeshComparison:
    """A function on one device and on a mesh.

    Args:
      subject: the function.
      axes: its mesh axes.
      shape: the size of each in the mesh.
      sizes: the sizes that are given.
      grad: whether its vector-Jacobian product is compared as well.
      seed: what the other sizes are drawn from.
    """

    def __init__(
        self,
        subject: FunctionUnderTest,
        axes: FunctionAxes,
        shape: Mapping[str, int],
        sizes: Mapping[str, Any],
        grad: bool,
        seed: int,
    ) -> None:
        self.subject, self.sizes, self.grad, self.seed = subject, sizes, grad, seed
        self.meshes = [subject.mesh_for(axes.abstract(each)) for each in ({}, shape)]
        self.terms, self.has_single, self.assumed = TermTable(), False, set[str]()

    def gap(self) -> _Gap | None:
        """Where the results on the mesh are not known to be those on one device; None if they are.

        Raises:
          _SingleEntry: where that may be for the sizes.
          TypedShmapError: for what is wrong with the function on the mesh.
        """
        try:
            return self._gap_of(1)
        except Exception as error:  # sizes that the hints allow may be refused by the body, or by JAX
            try:
                return self._gap_of(2 * self.meshes[1].size)
            except _SingleEntry:
                raise
            except Exception:
                raise error from None

    def _gap_of(self, multiples_of: int) -> _Gap | None:
        drawn = plan_inputs(self.subject.f, self.meshes, self.sizes, None, VERB).with_multiples(multiples_of)
        programs = [self._traced(drawn.draw(self.seed).structs(mesh), mesh) for mesh in self.meshes[::-1]][::-1]
        found = [self._read(program) for program in programs]
        for name, first, second in zip(programs[1].names, *found, strict=True):
            gap = self._compared(name, first, second)
            if gap is not None and self.has_single:  # along which JAX may broadcast
                raise _SingleEntry(gap)
            if gap is not None:
                return gap
        return None

    def equal_entries(self, has_cases: bool) -> list[_EqualEntries]:
        """Where the results have the same entries on one device and on the mesh.

        Args:
          has_cases: whether they are known to depend on what is decided, so that sizes had better be small.

        Raises:
          NotKnown: where that is not known, or where other sizes have other equations.
        """
        plan = plan_inputs(self.subject.f, self.meshes, self.sizes, None, VERB)
        small, taken = dict[str, int](), set[int]()
        for name, factor in plan.factors.items():
            unit, first = (factor, 3) if factor > 1 else (2, 2)
            fitting = (unit * times for times in count(2 if has_cases else first + self.seed % 3))
            small[name] = next(size for size in fitting if not taken & {size, size // factor})
            taken |= {small[name], small[name] // factor}
        try:
            drawn, programs = self._programs(plan, small)
        except Exception:  # the hints or the body refuse these sizes, or JAX
            drawn, programs = self._programs(plan, {})
        found = [_EqualEntries(drawn, read_in_cases(partial(_require_equal_entries, programs), self.seed))]
        if self.seed == 0 and not found[0].cases.are_all:
            found.append(self._in_all_cases(plan))
        if self.seed == 0:
            for name in plan.factors.keys() - plan.given.keys():
                _require_same_equations([
                    self._programs(plan, {**drawn, name: times * drawn[name]})[1] for times in (1, 2, 9)
                ])  # fmt: skip
        return found

    def _in_all_cases(self, plan: InputPlan) -> _EqualEntries:
        """The smallest sizes, at which there are few cases."""
        for times in (2, 1):
            sizes = {name: factor * times for name, factor in plan.factors.items()}
            drawn, programs = self._programs(plan, sizes)
            cases = read_in_cases(partial(_require_equal_entries, programs), self.seed)
            if cases.are_all:
                return _EqualEntries(drawn, cases)
        raise NotKnown("it has too many cases")

    def _programs(self, plan: InputPlan, sizes: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[_TracedProgram]]:
        drawn = plan.draw(self.seed, sizes)
        return drawn.sizes, [self._traced(drawn.structs(mesh), mesh) for mesh in self.meshes]

    def _traced(self, made: Inputs, mesh: AbstractMesh) -> _TracedProgram:
        """The program of a function on a mesh; of its vector-Jacobian product, too, if that is compared."""
        call, names, mapped = FlatCall(made, jax.ShapeDtypeStruct), list[str](), self.subject.mapped(mesh)

        def forward(arrays: Sequence[Any]) -> list[Any]:
            found = jax.tree_util.tree_flatten_with_path(call.run(mapped, arrays))[0]
            names[:] = [f"return{jax.tree_util.keystr(path)}" for path, _ in found]
            return [leaf for _, leaf in found]

        def both(arrays: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            changing = [at for at, array in enumerate(arrays) if _jax.array.is_inexact(array.dtype)]

            def some(changed: list[Any]) -> list[Any]:
                mixed = {**dict(enumerate(arrays)), **dict(zip(changing, changed, strict=True))}
                return [leaf for leaf in forward(list(mixed.values())) if _jax.array.is_inexact(leaf.dtype)]

            gradients = jax.vjp(some, [arrays[at] for at in changing])[1](list(cotangents))[0]
            results = forward(arrays)
            names.extend(f"grad({call.names[at]})" for at in changing)
            return [*results, *gradients]

        with self.subject.on(mesh):
            if not self.grad:
                return _TracedProgram(
                    jax.make_jaxpr(forward)(call.arrays), names, [array.shape for array in call.arrays]
                )
            shapes = jax.eval_shape(forward, call.arrays)
            pulled = [leaf for leaf in shapes if _jax.array.is_inexact(leaf.dtype)]
            jaxpr = jax.make_jaxpr(both)(call.arrays, pulled)
            return _TracedProgram(jaxpr, names, [array.shape for array in (*call.arrays, *pulled)])

    def _read(self, program: _TracedProgram) -> list[GlobalValue]:
        walk = Walk(self.terms, RULES)
        operands = [walk.made("argument", at, [], ((),) * len(shape)) for at, shape in enumerate(program.shapes)]
        results = walk.results(program.jaxpr, operands)
        self.has_single = self.has_single or walk.has_single
        self.assumed |= walk.assumed
        return results

    def _compared(self, name: str, one: GlobalValue, other: GlobalValue) -> _Gap | None:
        """Where two results are not known to be the same."""
        walk, places = Walk(self.terms, RULES), self.terms.places
        for value in (other, one):
            if isinstance(value, Unknown):
                return _Gap(value.place, value.why)
        try:
            first, second = walk.settled(one), walk.settled(other)
        except NotKnown as error:
            return _Gap("", f"{name}: {error}")
        if {first.combined_by, second.combined_by} - {"", "sum"}:  # an unreduced result stands for its sum
            return _Gap("", f"{name} is not reduced")
        if first.term != second.term:
            at = self.terms.difference(first.term, second.term)
            return _Gap(places[at], f"{name} is not computed there as on one device")
        if first.factor != second.factor:
            times = second.factor / first.factor if first.factor else second.factor
            return _Gap(places[second.term], f"{name} is {times} times what it is on one device")
        return None
