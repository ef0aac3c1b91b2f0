"""A traced program as a list of steps, which can be run again with any of its values kept.

Calls are inlined, and so are manual regions, whose values are those of one shard. A loop is one step; an opened loop
has the steps of its first iterations before it, or instead of it if it has no other iterations. An opened choice has
the steps of the branch that is taken. Each value has a number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .. import _jax
from .._jax.primitives import primitive
from ..errors.places import is_users
from ..records import Record
from .run import HostArray, on_host

Label = tuple[int, ...]
"""The place of a step in its program: its number, after those of the loop and of the iteration that it is in."""


class TracedStep(Record):
    """One operation of a program.

    Attributes:
      eqn: its equation; for a row of an iteration, the equation of the loop.
      name: the name of its primitive; or ``item`` for such a row, and ``stack`` for the rows of all iterations.
      operands: the numbers of its operands.
      results: the numbers of its results.
      label: its place in the program.
      frames: the files and lines of the user's frames, innermost first.
      caller: the equation in the user's function; ``eqn`` unless it belongs to a library's function.
      region: the number of its region; None outside.
      compute: computes its results.
    """

    eqn: Any
    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    label: Label
    frames: tuple[tuple[str, int], ...]
    caller: Any
    region: int | None
    compute: Callable[[list[Any]], Sequence[Any]]

    @property
    def is_choice(self) -> bool:
        """Whether it runs one of several branches."""
        return primitive(self.name).kind == "branch"

    @property
    def is_loop(self) -> bool:
        """Whether it runs a program several times."""
        return primitive(self.name).kind == "loop"


@dataclass
class SteppedRegion:
    """A manual region of a program.

    Attributes:
      eqn: its equation.
      operands: the numbers of its operands outside.
      entering: the numbers of its operands inside.
      leaving: the numbers of its results inside.
      results: the numbers of its results outside.
      steps: its steps.
    """

    eqn: Any
    operands: list[int]
    entering: list[int]
    leaving: list[int] = field(default_factory=list[int])
    results: list[int] = field(default_factory=list[int])
    steps: list[TracedStep] = field(default_factory=list[TracedStep])


class SteppedProgram:
    """The steps of a program.

    Attributes:
      arguments: the numbers of its arguments.
      results: the numbers of its results.
      constants: the values that are known without a run, by their numbers.
      literals: the numbers of its literals.
      types: the type of each value, by its number.
      regions: its manual regions.
      parts: its steps and regions, in order.
      opened_results: by the label of a loop with opened iterations, the results of the last of them.
    """

    def __init__(self, closed_jaxpr: Any, opened: Mapping[Label, int] | None = None) -> None:
        """Read a program.

        Args:
          closed_jaxpr: the program.
          opened: by the label of a loop, the largest number of iterations that have their own steps; by the label of a
            choice, the branch that has its own steps.
        """
        self._opened, self._numbers = opened or {}, count()
        self.constants, self.literals, self.types = dict[int, Any](), set[int](), dict[int, Any]()
        self.opened_results = dict[Label, list[int]]()
        self.regions, self.parts = list[SteppedRegion](), list["TracedStep | SteppedRegion"]()
        self.arguments = self._numbered(_jax.jaxpr.open_jaxpr(closed_jaxpr).invars)
        self.results = self._inline(closed_jaxpr, self.arguments, _Scope(self.parts, None, (), count()))

    @property
    def steps(self) -> Iterator[TracedStep]:
        """All steps, in order."""
        for part in self.parts:
            yield from part.steps if isinstance(part, SteppedRegion) else [part]

    @cached_property
    def inside(self) -> set[int]:
        """The numbers of all values in regions."""
        entering = {number for region in self.regions for number in region.entering}
        return entering.union(*(step.results for region in self.regions for step in region.steps))

    def _number(self, aval: Any) -> int:
        number = next(self._numbers)
        self.types[number] = aval
        return number

    def _numbered(self, variables: Sequence[Any]) -> list[int]:
        return [self._number(var.aval) for var in variables]

    def _constant(self, value: Any, aval: Any) -> int:
        number = self._number(aval)
        self.constants[number] = value
        return number

    def _inline(self, closed_jaxpr: Any, arguments: Sequence[int], scope: _Scope) -> list[int]:
        """Add the steps of a jaxpr to a scope; returns the numbers of its results."""
        jaxpr, consts = _jax.jaxpr.open_jaxpr(closed_jaxpr), getattr(closed_jaxpr, "consts", ())
        known: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        known |= {var: self._constant(value, var.aval) for var, value in zip(jaxpr.constvars, consts, strict=True)}

        def number_of(atom: Any) -> int:
            if not _jax.jaxpr.is_literal(atom):
                return known[atom]
            number = self._constant(atom.val, atom.aval)
            self.literals.add(number)
            return number

        for eqn in jaxpr.eqns:
            results = self._results_of(eqn, jaxpr, [number_of(atom) for atom in eqn.invars], scope)
            known.update(zip(eqn.outvars, results, strict=True))
        return [number_of(atom) for atom in jaxpr.outvars]

    def _results_of(self, eqn: Any, jaxpr: Any, operands: list[int], scope: _Scope) -> list[int]:
        """Add the steps of an equation to a scope; returns the numbers of its results."""
        name, params = eqn.primitive.name, eqn.params
        if name == "shard_map" and scope.region is None:
            return self._enter(eqn, operands, scope)
        is_inlined = primitive(name).kind == "call" and name != "shard_map" and not _jax.jaxpr.is_hi(eqn)
        if is_inlined and (called := _jax.jaxpr.called(eqn)) is not None:
            return self._inline(called, operands, scope.called(eqn, called))
        if _jax.jaxpr.effects_of(eqn):
            if not eqn.outvars:  # a print, which is not repeated
                return []
            raise Unreplayable(f"{name} does more than compute its results")
        label = scope.next_label()
        if label in self._opened and name == "cond":
            branch = params["branches"][self._opened[label]]
            return self._inline(branch, operands[1:], scope.iteration(label, 0))
        if label in self._opened and (results := self._open(eqn, operands, scope, label)):
            return results
        results = self._numbered(eqn.outvars)
        scope.add(eqn, name, operands, results, label, _evaluation(eqn, jaxpr))
        return results

    def _enter(self, eqn: Any, operands: list[int], scope: _Scope) -> list[int]:
        body = eqn.params["jaxpr"]
        region = SteppedRegion(eqn, operands, self._numbered(_jax.jaxpr.open_jaxpr(body).invars))
        number = len(self.regions)
        self.regions.append(region)
        self.parts.append(region)
        region.leaving = self._inline(body, region.entering, _Scope(region.steps, number, (number,), count()))
        region.results = self._numbered(eqn.outvars)
        return region.results

    def _open(self, eqn: Any, operands: list[int], scope: _Scope, label: Label) -> list[int] | None:
        """Add the steps of a loop's first iterations; returns the numbers of its results if these are all."""
        params, length = eqn.params, eqn.params.get("length")
        if eqn.primitive.name == "while":
            (_, consts, carry), rows = _jax.jaxpr.while_operands(eqn, operands), list[int]()
        else:
            consts, carry, rows = _jax.jaxpr.scan_operands(eqn, operands)
        body = params["body_jaxpr" if length is None else "jaxpr"]
        is_reverse, made = params.get("reverse", False), list[list[int]]()
        times = self._opened[label] if length is None else min(self._opened[label], length)
        for time in range(times):
            inside, at = scope.iteration(label, time), -1 - time if is_reverse else time
            items = self._numbered(_jax.jaxpr.open_jaxpr(body).invars[len(consts) + len(carry) :])
            for row, item in zip(rows, items, strict=True):
                inside.add(eqn, "item", [row], [item], inside.next_label(), lambda values, at=at: [values[0][at]])
            results = self._inline(body, [*consts, *carry, *items], inside)
            carry = results[: len(carry)]
            made.append(results[len(carry) :])
        if times != length:
            self.opened_results[label] = [*carry, *made[-1]]
            return None
        end, stacked = scope.iteration(label, times), self._numbered(eqn.outvars[len(carry) :])
        for number, items in zip(stacked, zip(*made[:: -1 if is_reverse else 1], strict=True), strict=True):
            end.add(eqn, "stack", items, [number], end.next_label(), lambda values: [jax.numpy.stack(values)])
        return [*carry, *stacked]

    def prepare(
        self, kept: Collection[int], changing: Sequence[Sequence[int]] = (), mesh: Any = None
    ) -> Callable[..., dict[int, HostArray]]:
        """Prepare to run the program several times, also with some values replaced.

        A changed value may vary over all axes, and so may the values that depend on it.

        Args:
          kept: the numbers of the values to return.
          changing: the numbers of values in regions that may be changed, in groups of one type that are changed
            together.
          mesh: the mesh of these regions.

        Returns:
          A function of the arguments, and optionally of the index of the group to change and of the new values. It
          returns the values on the host, by their numbers. A value in a region has one entry for each shard, along
          leading dims for all axes of its mesh; so has a new value.
        """
        slots, depths = defaultdict[int, list[tuple[int, int]]](list), dict[tuple[str, tuple[int, ...]], int]()
        for which, group in enumerate(changing):
            depths[self._form(group[0])] = max(len(group), depths.get(self._form(group[0]), 0))
            for at, number in enumerate(group):
                slots[number].append((which, at))

        def compute(arguments: Sequence[Any], which: Any, new: Mapping[Any, Any]) -> dict[int, Any]:
            values = {**self.constants, **dict(zip(self.arguments, arguments, strict=True))}
            for part in self.parts:
                if isinstance(part, SteppedRegion):
                    values |= self._run_region(part, values, kept, _Changes(slots, which, new))
                else:
                    values |= _run_step(part, values)
            return {number: values[number] for number in kept}

        def placed(values: Any) -> Any:
            return jax.device_put(values, NamedSharding(mesh, PartitionSpec(None, *mesh.axis_names)))

        # The program has an argument for each type, since an argument for each value would be slow.
        unchanged = {
            (dtype, shape): placed(np.zeros((depth, *mesh.shape.values(), *shape), dtype))
            for (dtype, shape), depth in depths.items()
        }
        compiled: Any = None

        def run(arguments: Sequence[Any], which: int = -1, values: Sequence[Any] = ()) -> dict[int, HostArray]:
            nonlocal compiled
            new = dict(unchanged)
            if values:
                form = self._form(changing[which][0])
                stacked = np.zeros(new[form].shape, form[0])
                stacked[: len(values)] = values
                new[form] = placed(stacked)
            given = list(arguments), np.int32(which), new
            if compiled is None:
                platforms = [device.platform for x in arguments if _jax.array.is_jax_array(x) for device in x.devices()]
                platform = (platforms or [jax.default_backend()])[0]
                compiled = _jax.programs.compile_fast(jax.jit(compute).lower(*given), platform)
            results = jax.block_until_ready(compiled(*given))
            return {n: _on_shards(value) if n in self.inside else on_host(value) for n, value in results.items()}

        return run

    def _form(self, number: int) -> tuple[str, tuple[int, ...]]:
        """The dtype and the shape of a value."""
        return str(self.types[number].dtype), self.types[number].shape

    def _run_region(
        self, region: SteppedRegion, values: Mapping[int, Any], kept: Collection[int], changes: _Changes
    ) -> dict[int, Any]:
        """The results of a region, and the kept values inside it."""
        params, mesh = region.eqn.params, region.eqn.params["mesh"]
        manual, is_typed = _jax.jaxpr.newly_manual_axes(params), params.get("check_vma", True)
        made = {*region.entering}.union(*(step.results for step in region.steps))
        own, changed = sorted(made.intersection(kept)), made & changes.slots.keys()
        lead = (None,) * len(mesh.axis_names)

        def body(shards: Sequence[Any], which: Any, new: Mapping[Any, Any]) -> tuple[list[Any], list[Any]]:
            known = {**self.constants, **dict(zip(region.entering, shards, strict=True))}
            for step in region.steps:
                known |= _run_step(step, known, may_vary_more=bool(changed) and is_typed)
                for number in changed.intersection(step.results):
                    for group, at in changes.slots[number]:
                        instead = new[self._form(number)][at][(0,) * len(lead)]
                        known[number] = jax.numpy.where(which == group, instead, known[number])
            results = [known[number] for number in region.leaving]
            if changed and is_typed:
                results = [_of_one_shard(value, spec) for value, spec in zip(results, params["out_specs"], strict=True)]
            return results, [known[number][lead] for number in own]

        def spec_of(number: int) -> PartitionSpec:
            unreduced = _jax.array.manual_type_in(self.types[number]).unreduced
            marks: dict[str, Any] = {"unreduced": unreduced} if unreduced else {}
            return PartitionSpec(*(axis if axis in manual - unreduced else None for axis in mesh.axis_names), **marks)

        new_specs = dict.fromkeys(changes.new, PartitionSpec(None, *mesh.axis_names))
        in_specs = [*params["in_specs"]], PartitionSpec(), new_specs
        out_specs = [*params["out_specs"]], [spec_of(number) for number in own]
        mapped = _jax.mesh.shard_map(
            body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=manual, check_vma=is_typed
        )
        results, inner = mapped([values[number] for number in region.operands], changes.which, changes.new)
        return dict(zip([*region.results, *own], [*results, *inner], strict=True))


class Unreplayable(Exception):
    """Raised for a program that cannot be run again value by value, with the reason."""


@dataclass
class _Scope:
    """Where steps are added: a program, a region or an iteration of a loop; with the enclosing call of a library's
    function by the user."""

    steps: list[Any]
    region: int | None
    label: Label
    numbers: Iterator[int]
    caller: Any = None

    def called(self, eqn: Any, jaxpr: Any) -> _Scope:
        """The scope of a call; the equations of a library's function have the line of the user's call."""
        if is_users(_jax.source.function_file(_jax.jaxpr.open_jaxpr(jaxpr))):
            return replace(self, caller=None)
        return replace(self, caller=eqn) if self.caller is None else self

    def iteration(self, label: Label, time: int) -> _Scope:
        return replace(self, label=(*label, time), numbers=count())

    def next_label(self) -> Label:
        return (*self.label, next(self.numbers))

    def add(
        self,
        eqn: Any,
        name: str,
        operands: Sequence[int],
        results: Sequence[int],
        label: Label,
        compute: Callable[[list[Any]], Sequence[Any]],
    ) -> None:
        caller = eqn if self.caller is None else self.caller
        frames = tuple(_jax.source.equation_lines(caller))
        self.steps.append(
            TracedStep(eqn, name, tuple(operands), tuple(results), label, frames, caller, self.region, compute)
        )


def _evaluation(eqn: Any, jaxpr: Any) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that computes the results of an equation from its operands."""
    variables = [at for at, atom in enumerate(eqn.invars) if not _jax.jaxpr.is_literal(atom)]
    part = jaxpr.replace(constvars=[], invars=[eqn.invars[at] for at in variables], outvars=eqn.outvars, eqns=[eqn])
    return lambda values: jax.core.eval_jaxpr(part, (), *(values[at] for at in variables))


class _Changes(NamedTuple):
    """The replacements of values.

    Attributes:
      slots: by the number of a value, its groups, and its position in each.
      which: the group that is changed.
      new: by dtype and shape, the values of all shards, concatenated.
    """

    slots: Mapping[int, Sequence[tuple[int, int]]]
    which: Any
    new: Mapping[Any, Any]


def _run_step(step: TracedStep, values: Mapping[int, Any], may_vary_more: bool = False) -> dict[int, Any]:
    """The results of a step, by their numbers."""
    operands = [values[number] for number in step.operands]
    results = _results_over_more_axes(step, operands) if may_vary_more else step.compute(operands)
    return dict(zip(step.results, results, strict=True))


def _results_over_more_axes(step: TracedStep, operands: list[Any]) -> Sequence[Any]:
    """The results of a step whose operands may vary over more axes than in its trace."""

    def over(value: Any) -> frozenset[str]:
        return _jax.array.manual_type_in(jax.typeof(value)).varying

    more = step.eqn.params["axes"] if step.name == "pvary" else ()
    all_axes = frozenset[str]().union(*map(over, operands), more)
    is_as_traced = step.name != "pvary" and all(over(value) == all_axes for value in operands)
    if step.is_loop or step.is_choice or is_as_traced:
        return step.compute(operands)
    literals = [*map(_jax.jaxpr.is_literal, step.eqn.invars)] if len(step.eqn.invars) == len(operands) else []
    for at, value in enumerate(operands):
        if literals and literals[at]:
            value = jax.numpy.asarray(value, step.eqn.invars[at].aval.dtype)
        operands[at] = _jax.casts.pcast_varying(value, all_axes)
    if step.name == "pvary":
        return operands
    if not any(literals):
        return step.compute(operands)
    results = step.eqn.primitive.bind(*operands, **step.eqn.params)
    return results if step.eqn.primitive.multiple_results else [results]


def _of_one_shard(value: Any, spec: PartitionSpec) -> Any:
    """A result that may vary over more axes than its spec has: the largest value; if it does not vary, any value."""
    named = {axis for axes in _jax.array.spec_entries(spec).dim_axes for axis in axes}
    more = tuple(_jax.array.manual_type_in(jax.typeof(value)).varying - named)
    return jax.lax.pmax(value, more) if more else value


def _on_shards(value: Any) -> HostArray:
    """The part of a value on each device, along leading dims for all axes of its mesh."""
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    mesh: Any = getattr(value.sharding, "mesh")  # noqa: B009 (of a NamedSharding, as it is)
    by_device = {shard.device: np.asarray(shard.data) for shard in value.addressable_shards}
    shards = np.stack([by_device[device] for device in mesh.devices.flat])
    return shards.reshape(*mesh.devices.shape, *shards.shape[1 + mesh.devices.ndim :])
