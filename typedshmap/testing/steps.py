"""A traced program as a list of steps, which can be run again with any of its values kept.

Calls are inlined, and so are manual regions, whose values are those of one shard. A loop is one step; one that is
opened has the steps of its first iterations before it, or if these are all, in its place. So has a choice that of the
branch that is taken. Each value has a number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import jax
import jax.core
import numpy as np
from jax.sharding import PartitionSpec

from .. import _jax
from ..errors.places import is_users
from ..records import Record

Label = tuple[int, ...]
"""The place of a step in its program: its number, after those of the loop and of the iteration that it is in."""
Frames = tuple[tuple[str, int], ...]
_LOOPS = frozenset(["scan", "while"])


class TracedStep(Record):
    """One operation of a program.

    Attributes:
      eqn: its equation; of the slice that an iteration of a loop takes, that of the loop.
      name: of its primitive.
      operands: the numbers of its operands.
      results: the numbers of its results.
      label: its place in the program.
      frames: the user's lines from the innermost on, where it was written.
      caller: the equation in the user's function; its own unless a library's function has it.
      region: the number of the region that it is in; None outside.
      compute: computes its results.
    """

    eqn: Any
    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    label: Label
    frames: Frames
    caller: Any
    region: int | None
    compute: Callable[[list[Any]], Sequence[Any]]

    @property
    def is_choice(self) -> bool:
        """Whether it runs one of several branches."""
        return self.name == "cond"

    @property
    def is_loop(self) -> bool:
        """Whether it runs a program several times."""
        return self.name in _LOOPS and self.eqn.primitive.name == self.name


@dataclass
class SteppedRegion:
    """A manual region of a program.

    Attributes:
      eqn: its equation.
      operands: the numbers of its operands outside.
      entering: those of the same inside.
      leaving: those of its results inside.
      results: those of its results outside.
      steps: its steps.
    """

    eqn: Any
    operands: list[int]
    entering: list[int]
    leaving: list[int] = field(default_factory=list[int])
    results: list[int] = field(default_factory=list[int])
    steps: list[TracedStep] = field(default_factory=list[TracedStep])

    @property
    def inside(self) -> Iterator[int]:
        """The numbers of all values within."""
        yield from self.entering
        for step in self.steps:
            yield from step.results


class SteppedProgram:
    """The steps of a program.

    Attributes:
      arguments: the numbers of its arguments.
      results: those of its results.
      constants: the values that are known without running it, by their numbers.
      literals: the numbers of those that are written in its text.
      types: the type of each value, by its number.
      regions: its manual regions.
      parts: its steps and regions, in their order.
      opened_results: by the label of a loop of which some iterations are opened what the last of them makes.
    """

    def __init__(self, closed_jaxpr: Any, opened: Mapping[Label, int] | None = None) -> None:
        """Read a program.

        Args:
          closed_jaxpr: the program.
          opened: by the label of a loop how many of its iterations have steps of their own, at most; by that of a
            choice which branch has.
        """
        self._opened, self._numbers = opened or {}, count()
        self.constants, self.literals, self.types = dict[int, Any](), set[int](), dict[int, Any]()
        self.opened_results = dict[Label, list[int]]()
        self.regions, self.parts = list[SteppedRegion](), list["TracedStep | SteppedRegion"]()
        jaxpr = _jax.jaxpr.open_jaxpr(closed_jaxpr)
        self.arguments = [self._number(var.aval) for var in jaxpr.invars]
        inside = _Scope(self.parts, None, (), count(), None, ())
        self.results = self._inline(jaxpr, getattr(closed_jaxpr, "consts", ()), self.arguments, inside)

    @property
    def steps(self) -> Iterator[TracedStep]:
        """All steps, in their order."""
        for part in self.parts:
            if isinstance(part, SteppedRegion):
                yield from part.steps
            else:
                yield part

    def _number(self, aval: Any) -> int:
        number = next(self._numbers)
        self.types[number] = aval
        return number

    def _constant(self, value: Any, aval: Any = None) -> int:
        number = self._number(aval if aval is not None else jax.typeof(value))
        self.constants[number] = value
        return number

    def _inline(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[int], scope: _Scope) -> list[int]:
        known: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        known |= {var: self._constant(value) for var, value in zip(jaxpr.constvars, consts, strict=True)}

        def number_of(atom: Any) -> int:
            if not _jax.jaxpr.is_literal(atom):
                return known[atom]
            number = self._constant(atom.val, atom.aval)
            self.literals.add(number)
            return number

        for eqn in jaxpr.eqns:
            operands = [number_of(atom) for atom in eqn.invars]
            results = self._results_of(eqn, jaxpr, operands, scope)
            known.update(zip(eqn.outvars, results, strict=True))
        return [number_of(atom) for atom in jaxpr.outvars]

    def _results_of(self, eqn: Any, jaxpr: Any, operands: list[int], scope: _Scope) -> list[int]:
        """The numbers of an equation's results, and in the scope its steps."""
        inner = _jax.jaxpr.called_jaxpr(eqn)
        name = eqn.primitive.name
        if name == "shard_map" and scope.region is None:
            return self._enter(eqn, operands, scope)
        if inner is not None and name not in _OPAQUE:
            consts = next(
                (getattr(each, "consts", ()) for each in eqn.params.values() if _jax.jaxpr.open_jaxpr(each) is inner),
                (),
            )
            if len(consts) == len(inner.constvars):
                return self._inline(inner, consts, operands, scope.called(eqn, inner))
        if _jax.jaxpr.effects_of(eqn):
            if not eqn.outvars:  # a print, which need not be shown again
                return []
            raise Unreplayable(f"{name} does more than compute its results")
        label = (*scope.label, next(scope.numbers))
        if label in self._opened and name == "cond":
            branch = eqn.params["branches"][self._opened[label]]
            inside, consts = scope.iteration(label, 0), getattr(branch, "consts", ())
            return self._inline(_jax.jaxpr.open_jaxpr(branch), consts, operands[1:], inside)
        if label in self._opened and (all_of_it := self._open(eqn, operands, scope, label)):
            return all_of_it
        results = [self._number(var.aval) for var in eqn.outvars]
        scope.add(eqn, name, operands, results, label, _evaluation(eqn, jaxpr))
        return results

    def _enter(self, eqn: Any, operands: list[int], scope: _Scope) -> list[int]:
        body = _jax.jaxpr.open_jaxpr(eqn.params["jaxpr"])
        region = SteppedRegion(eqn, operands, [self._number(var.aval) for var in body.invars])
        inside = _Scope(region.steps, len(self.regions), (len(self.regions),), count(), None, ())
        self.regions.append(region)
        self.parts.append(region)
        region.leaving = self._inline(body, getattr(eqn.params["jaxpr"], "consts", ()), region.entering, inside)
        region.results = [self._number(var.aval) for var in eqn.outvars]
        return region.results

    def _open(self, eqn: Any, operands: list[int], scope: _Scope, label: Label) -> list[int] | None:
        """Add the steps of a loop's first iterations; the numbers of its results, if there are no others."""
        params = eqn.params
        if eqn.primitive.name == "while":
            _, consts, carry = _jax.jaxpr.while_operands(eqn, operands)
            body, stacked, times = params["body_jaxpr"], list[int](), self._opened[label]
        else:
            constant, carried = _jax.jaxpr.scan_counts(params)
            consts, carry, stacked = operands[:constant], operands[constant:][:carried], operands[constant + carried :]
            body, times = params["jaxpr"], min(self._opened[label], params["length"])
        inner, made = _jax.jaxpr.open_jaxpr(body), list[list[int]]()
        for time in range(times):
            inside = scope.iteration(label, time)
            at = -1 - time if params.get("reverse") else time
            items = list[int]()
            for number, var in zip(stacked, inner.invars[len(consts) + len(carry) :], strict=True):
                items.append(self._number(var.aval))
                own = (*inside.label, next(inside.numbers))
                inside.add(eqn, "item", [number], items[-1:], own, lambda values, at=at: [values[0][at]])
            after = self._inline(inner, getattr(body, "consts", ()), [*consts, *carry, *items], inside)
            carry = after[: len(carry)]
            made.append(after[len(carry) :])
        if times != params.get("length"):
            self.opened_results[label] = [*carry, *made[-1]]
            return None
        end = scope.iteration(label, times)
        results = [self._number(var.aval) for var in eqn.outvars[len(carry) :]]
        by_result = [*zip(*(reversed(made) if params.get("reverse") else made), strict=True)]
        for number, items in zip(results, by_result, strict=True):
            own = (*end.label, next(end.numbers))
            end.add(eqn, "stack", items, [number], own, lambda values: [jax.numpy.stack(values)])
        return [*carry, *results]

    def run(self, arguments: Sequence[Any], kept: Collection[int]) -> dict[int, Any]:
        """Run the program.

        Args:
          arguments: its arguments.
          kept: the numbers of the values to return.

        Returns:
          The values on the host, by their numbers: of a value in a region one for each shard, along leading dims for
          all axes of its mesh.
        """
        return self.prepare(kept)(arguments)

    def prepare(
        self, kept: Collection[int], changing: Sequence[Sequence[int]] = (), mesh: Any = None
    ) -> Callable[..., dict[int, Any]]:
        """Prepare to run the program several times, also with other values in the place of some.

        What is changed may vary over all axes, and so may what follows from it.

        Args:
          kept: the numbers of the values to return.
          changing: the numbers of values in regions that may be changed, in groups that are changed at once.
          mesh: the mesh of these regions.

        Returns:
          What takes the arguments, and optionally which of `changing` to change, and to what, for all shards as `run`
          returns them.
        """
        outside = {*self.arguments, *(number for part in self.parts for number in part.results)}
        traced, needed = sorted(set(kept) - self.constants.keys()), self._needed(kept)
        # All of them are slices of one array for each type, so that the program has few arguments.
        slots, lengths = defaultdict[int, list[tuple[int, int]]](list), dict[str, int]()
        for at, together in enumerate(changing):
            dtype, end = str(self.types[together[0]].dtype), 0
            for number in together:
                slots[number].append((at, end))
                end += self.types[number].size
            lengths[dtype] = max(end, lengths.get(dtype, 0))

        def compute(arguments: Sequence[Any], which: Any, changes: Mapping[str, Any]) -> dict[int, Any]:
            values = {**self.constants, **dict(zip(self.arguments, arguments, strict=True))}
            for part in self.parts:
                if isinstance(part, SteppedRegion):
                    if not needed.isdisjoint([*part.results, *part.inside]):
                        values |= self._run_region(part, values, needed, traced, _Changes(slots, which, changes))
                elif not needed.isdisjoint(part.results):
                    values |= _results_by_number(part, values)
            return {number: values[number] for number in traced}

        def placed(values: Any) -> Any:
            return jax.device_put(values, jax.sharding.NamedSharding(mesh, PartitionSpec(*mesh.axis_names)))

        unchanged = {
            dtype: placed(np.zeros((*mesh.shape.values(), length), dtype)) for dtype, length in lengths.items()
        }
        compiled: Any = None

        def run(arguments: Sequence[Any], which: int = -1, values: Sequence[Any] = ()) -> dict[int, Any]:
            nonlocal compiled
            changes = dict(unchanged)
            if values:
                dtype = str(self.types[changing[which][0]].dtype)
                new = np.zeros(changes[dtype].shape, dtype)
                flat = np.concatenate([each.reshape(*new.shape[:-1], -1) for each in values], -1)
                new[..., : flat.shape[-1]] = flat
                changes[dtype] = placed(new)
            given = list(arguments), np.int32(which), changes
            if compiled is None:
                platforms = [device.platform for x in arguments if _jax.array.is_jax_array(x) for device in x.devices()]
                compiled = _jax.programs.compile_fast(
                    jax.jit(compute).lower(*given), (platforms or [jax.default_backend()])[0]
                )
            found = jax.block_until_ready(compiled(*given))
            return {
                number: np.asarray(self.constants[number])
                if number in self.constants
                else (_on_host if number in outside else _of_all_shards)(found[number])
                for number in kept
            }

        return run

    def _needed(self, kept: Collection[int]) -> set[int]:
        """The values that have to be computed for some."""
        needed = {*kept}
        for part in reversed(self.parts):
            if isinstance(part, SteppedRegion):
                pairs = zip(part.leaving, part.results, strict=True)
                needed.update(inside for inside, result in pairs if result in needed)
                for step in reversed(part.steps):
                    if not needed.isdisjoint(step.results):
                        needed.update(step.operands)
                if not needed.isdisjoint([*part.results, *part.inside]):
                    needed.update(part.operands)
            elif not needed.isdisjoint(part.results):
                needed.update(part.operands)
        return needed

    def _run_region(
        self,
        region: SteppedRegion,
        values: Mapping[int, Any],
        needed: set[int],
        wanted: Sequence[int],
        changes: _Changes,
    ) -> dict[int, Any]:
        params, constants = region.eqn.params, self.constants
        inside = {*region.inside}
        own = [number for number in wanted if number in inside]
        returned = [
            (outside, number, spec)
            for outside, number, spec in zip(region.results, region.leaving, params["out_specs"], strict=True)
            if outside in needed
        ]
        mesh, manual = params["mesh"], _jax.jaxpr.newly_manual_axes(params)
        axes, is_typed = mesh.axis_names, params.get("check_vma", True)
        changed = inside & changes.slots.keys()

        def body(shards: Sequence[Any], which: Any, new: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
            found = {**constants, **dict(zip(region.entering, shards, strict=True))}
            for step in region.steps:
                if not needed.isdisjoint(step.results):
                    operands = [found[number] for number in step.operands]
                    results = (
                        _results_over_more_axes(step, operands) if changed and is_typed else step.compute(operands)
                    )
                    found |= dict(zip(step.results, results, strict=True))
                    for number in changed & {*step.results}:
                        old = found[number]
                        for at, start in changes.slots[number]:
                            put = new[str(old.dtype)][(0,) * len(axes)][start : start + old.size].reshape(old.shape)
                            found[number] = jax.numpy.where(which == at, put, found[number])
            kept = [found[number][(None,) * len(axes)] for number in own]
            results = [found[number] for _, number, _ in returned]
            if changed and is_typed:
                results = [_of_one_shard(each, spec) for each, (_, _, spec) in zip(results, returned, strict=True)]
            return results, kept

        def spec_of(number: int) -> PartitionSpec:
            manual_type = _jax.array.manual_type_in(self.types[number])
            varying = manual_type.varying if is_typed and not changed else manual
            marks: dict[str, Any] = {}
            if manual_type.unreduced:
                marks = {"unreduced": manual_type.unreduced}
            return PartitionSpec(*(axis if axis in varying and axis in manual else None for axis in axes), **marks)

        mapped = _jax.mesh.shard_map(
            body,
            mesh=mesh,
            in_specs=(list(params["in_specs"]), PartitionSpec(), dict.fromkeys(changes.values, PartitionSpec(*axes))),
            out_specs=([spec for _, _, spec in returned], [spec_of(number) for number in own]),
            axis_names=manual,
            check_vma=is_typed,
        )
        results, kept = mapped([values[number] for number in region.operands], changes.which, changes.values)
        return dict(zip([outside for outside, _, _ in returned], results, strict=True)) | dict(
            zip(own, kept, strict=True)
        )


class Unreplayable(Exception):
    """A program cannot be run again value by value, with the reason."""


# Calls that are one step: with rules of their own, or of another kind of jaxpr.
_OPAQUE = frozenset(["scan", "while", "cond", "pallas_call", "custom_linear_solve", "shard_map", "call_hi_primitive"])


@dataclass
class _Scope:
    """Where steps are added: a program, a region or an iteration of a loop, and the calls around."""

    steps: list[Any]
    region: int | None
    label: Label
    numbers: Iterator[int]
    caller: Any
    frames: Frames

    def called(self, eqn: Any, jaxpr: Any) -> _Scope:
        """That of a call; the equations of a library's function have the line of the user's call."""
        if is_users(_jax.source.function_file(jaxpr)):
            return _Scope(self.steps, self.region, self.label, self.numbers, None, ())
        if self.caller is not None:
            return self
        return _Scope(self.steps, self.region, self.label, self.numbers, eqn, tuple(_jax.source.equation_lines(eqn)))

    def iteration(self, label: Label, time: int) -> _Scope:
        return _Scope(self.steps, self.region, (*label, time), count(), self.caller, self.frames)

    def add(
        self,
        eqn: Any,
        name: str,
        operands: Sequence[int],
        results: Sequence[int],
        label: Label,
        compute: Callable[[list[Any]], Sequence[Any]],
    ) -> None:
        frames, caller = self.frames or tuple(_jax.source.equation_lines(eqn)), self.caller if self.frames else eqn
        self.steps.append(
            TracedStep(eqn, name, tuple(operands), tuple(results), label, frames, caller, self.region, compute)
        )


def _evaluation(eqn: Any, jaxpr: Any) -> Callable[[list[Any]], Sequence[Any]]:
    """What computes the results of an equation from its operands."""
    variables = list(dict.fromkeys(atom for atom in eqn.invars if not _jax.jaxpr.is_literal(atom)))
    results = [var for var in eqn.outvars if type(var).__name__ != "DropVar"]
    part = jaxpr.replace(constvars=[], invars=variables, outvars=results, eqns=[eqn])

    def compute(values: list[Any]) -> Sequence[Any]:
        given = (
            dict(zip(eqn.invars, values, strict=True))
            if not any(map(_jax.jaxpr.is_literal, eqn.invars))
            else {
                atom: value for atom, value in zip(eqn.invars, values, strict=True) if not _jax.jaxpr.is_literal(atom)
            }
        )
        found = iter(jax.core.eval_jaxpr(part, (), *(given[var] for var in variables)))
        return [next(found) if type(var).__name__ != "DropVar" else None for var in eqn.outvars]

    return compute


def _results_by_number(step: TracedStep, values: Mapping[int, Any]) -> dict[int, Any]:
    return dict(zip(step.results, step.compute([values[number] for number in step.operands]), strict=True))


@dataclass(frozen=True)
class _Changes:
    """What is put in the place of values.

    Attributes:
      slots: by number which changes it is a part of, and its start in the values of its type.
      which: the change that is made.
      values: by type the values of all shards, one after the other.
    """

    slots: Mapping[int, Sequence[tuple[int, int]]]
    which: Any
    values: Mapping[str, Any]


def _results_over_more_axes(step: TracedStep, operands: list[Any]) -> Sequence[Any]:
    """The results of a step whose operands may vary over more axes than where it was traced."""

    def over(value: Any) -> frozenset[str]:
        return _jax.array.manual_type_in(jax.typeof(value)).varying

    more = step.eqn.params["axes"] if step.name == "pvary" else ()
    all_axes = frozenset[str]().union(*map(over, operands), more)
    literals = [*map(_jax.jaxpr.is_literal, step.eqn.invars)] if len(step.eqn.invars) == len(operands) else []
    is_as_traced = step.name != "pvary" and all(over(value) == all_axes for value in operands)
    if step.is_loop or step.is_choice or is_as_traced:
        return step.compute(operands)
    for at, value in enumerate(operands):
        if literals and literals[at]:
            value = jax.numpy.asarray(value, step.eqn.invars[at].aval.dtype)
        more = tuple(all_axes - over(value))
        operands[at] = jax.lax.pcast(value, more, to="varying") if more else value
    if step.name == "pvary":
        return operands
    if not any(literals):
        return step.compute(operands)
    found = step.eqn.primitive.bind(*operands, **step.eqn.params)
    return found if step.eqn.primitive.multiple_results else [found]


def _of_one_shard(value: Any, spec: PartitionSpec) -> Any:
    """A result that may vary over more axes than its spec has: the largest, which is any if it does not."""
    named = {axis for each in spec if each is not None for axis in (each if isinstance(each, tuple) else (each,))}
    more = tuple(_jax.array.manual_type_in(jax.typeof(value)).varying - named)
    return jax.lax.pmax(value, more) if more else value


def _on_host(value: Any) -> Any:
    return np.asarray(jax.random.key_data(value) if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key) else value)


def _of_all_shards(value: jax.Array) -> Any:
    """What each device holds, along the leading dims, one per mesh axis, also where all are said to hold the same."""
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    mesh: Any = getattr(value.sharding, "mesh")  # noqa: B009 (of a NamedSharding, as it is)
    by_device = {shard.device: np.asarray(shard.data) for shard in value.addressable_shards}
    shards = [by_device[device] for device in mesh.devices.flat]
    inner = shards[0].shape[mesh.devices.ndim :]
    return np.stack([shard.reshape(inner) for shard in shards]).reshape(*mesh.devices.shape, *inner)
