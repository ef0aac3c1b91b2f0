"""Run a program on one device and on a mesh, and compare its values along the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, islice
from math import prod
from typing import Any, NamedTuple

from jax.sharding import Mesh

from .. import _jax
from .run import HostArray
from .shard_values import Agreement, agreement, is_same
from .steps import Label, SteppedProgram, TracedStep

MOST_BYTES = 2**28
"""The bytes of values that are on the host at once, about."""
_MOST_PIECES, _MOST_MATCHES = 8, 16
_ITERATIONS, _MOST_STEPS = 3, 2000
_NOT_COMPARED = Agreement("unknown")
ValuesByNumber = dict[int, HostArray]


class Opened(NamedTuple):
    """By the labels of loops, the number of compared iterations; by the labels of choices, the compared branch.

    Attributes:
      on_one: in the program on one device.
      on_mesh: in the program on the mesh.
    """

    on_one: dict[Label, int]
    on_mesh: dict[Label, int]


@dataclass(frozen=True)
class Run:
    """A program, and the data for a run.

    Attributes:
      jaxpr: the program.
      arguments: its arguments.
      mesh: its mesh.
      context: the context in which it runs.
    """

    jaxpr: Any
    arguments: Sequence[Any]
    mesh: Mesh
    context: Callable[[], AbstractContextManager[None]]


class ComparedValues:
    """The values of a program on a mesh, and the corresponding values on one device.

    Attributes:
      on_one: the run on one device.
      on_mesh: the run on the mesh.
      opened: the loops and choices that have their own steps.
      reference: the program on one device.
      program: the program on the mesh.
      sizes: the mesh axes, each with its size.
      origin: by the number of a value that enters or leaves a region, the number of the same value before.
      matches: by the label of a step, the corresponding steps on one device.
      sources: by the number of a value, the numbers of the corresponding values on one device.
      agreements: by the number of a compared value, how its shards make up the value on one device.
      branches: by the label of a choice, the branch that all shards and one device take.
    """

    def __init__(self, on_one: Run, on_mesh: Run, opened: Opened) -> None:
        """Read both programs, and find the corresponding values."""
        self.on_one, self.on_mesh, self.opened, self.sizes = on_one, on_mesh, opened, dict(on_mesh.mesh.shape)
        self.reference = reference = SteppedProgram(on_one.jaxpr, opened.on_one)
        self.program = program = SteppedProgram(on_mesh.jaxpr, opened.on_mesh)
        self.agreements, self.branches = dict[int, Agreement](), dict[Label, int]()
        self.matches = matching_steps(program, reference)
        self.origin = dict[int, int]()
        pairs = list[tuple[int, list[int]]]()
        for region in program.regions:
            self.origin.update(zip(region.entering, region.operands, strict=True))
            self.origin.update(zip(region.results, region.leaving, strict=True))
        if len(program.regions) == len(reference.regions):
            for region, same in zip(program.regions, reference.regions, strict=True):
                pairs += [(a, [b]) for a, b in zip(region.entering, same.entering, strict=False)]
        for step in program.steps:
            same_steps = self.matches[step.label]
            pairs += [(number, [same.results[at] for same in same_steps]) for at, number in enumerate(step.results)]
        pairs += [(a, [b]) for a, b in zip(program.arguments, reference.arguments, strict=False)]
        self.sources = {a: b for a, b in pairs if b and hasattr(program.types[a], "dtype")}

    def agreement(self, number: int) -> Agreement:
        """How the shards of a value make up the value on one device."""
        while number not in self.agreements and number in self.origin:
            number = self.origin[number]
        return self.agreements.get(number, _NOT_COMPARED)

    def is_as_long(self, loop: TracedStep) -> bool:
        """Whether a loop has as many iterations as on one device, as far as known."""
        return all(same.eqn.params.get("length") == loop.eqn.params.get("length") for same in self.matches[loop.label])

    def opened_by(self, steps: Sequence[TracedStep], is_as_long: bool = True) -> Opened:
        """The opened steps, with those of some steps that do the same on one device, or are loops of other lengths."""
        on_one, on_mesh = dict(self.opened.on_one), dict(self.opened.on_mesh)
        for step in steps:
            matches = self.matches[step.label]
            if step.is_choice and step.label in self.branches:
                on_mesh[step.label] = self.branches[step.label]
                on_one |= {same.label: self.branches[step.label] for same in matches}
            elif step.is_loop and self.is_as_long(step) == is_as_long:
                on_mesh[step.label] = _iterations(step)
                on_one |= {same.label: _iterations(same) for same in matches}
        return Opened(on_one, on_mesh)

    def prepare(
        self, kept: Collection[int], sources: Collection[int]
    ) -> Callable[[Sequence[Any], Sequence[Any]], tuple[ValuesByNumber, ValuesByNumber]]:
        """Prepare to run both programs; the values on one device have no leading dims for mesh axes."""
        run_program, run_reference = self.program.prepare(kept), self.reference.prepare(sources)
        axes, inside = len(self.sizes), self.reference.inside

        def run(arguments: Sequence[Any], same: Sequence[Any]) -> tuple[ValuesByNumber, ValuesByNumber]:
            with self.on_mesh.context():
                actual = run_program(arguments)
            with self.on_one.context():
                expected = run_reference(same)
            for number in inside.intersection(expected):
                expected[number] = expected[number].reshape(expected[number].shape[axes:])
            return actual, expected

        return run

    def compare(self) -> ComparedValues:
        """Run both programs, and compare the values; returns itself."""
        choices = defaultdict[int, list[TracedStep]](list)
        for step in self.program.steps:
            if step.is_choice:
                choices[step.operands[0]].append(step)
        for piece in self._pieces():
            run = self.prepare([number for number, _ in piece], {source for _, sources in piece for source in sources})
            actual, expected = run(self.on_mesh.arguments, self.on_one.arguments)
            for number, sources in piece:
                value, wanted = actual[number], [expected[source] for source in sources]
                if number in choices and bool((value == wanted[0]).all()):
                    self.branches |= {step.label: int(wanted[0]) for step in choices[number]}
                if number in self.program.inside:
                    self.agreements[number] = agreement(value, self.sizes, wanted)
                elif value.shape == wanted[0].shape:
                    is_right = any(is_same(value, expected_value) for expected_value in wanted)
                    self.agreements[number] = Agreement("global" if is_right else "differs")
        return self

    @cached_property
    def shard_sizes(self) -> list[int]:
        """The sizes of dims that are smaller than on one device."""
        shapes = [(self.program.types[a].shape, self.reference.types[b].shape) for a, (b, *_) in self.sources.items()]
        dims = [pair for shapes in shapes for pair in zip(*shapes, strict=False)]
        return sorted({part for part, size in dims if 1 < part < size and size % part == 0})

    def _pieces(self) -> Iterator[list[tuple[int, list[int]]]]:
        """The values to compare, with their sources, in pieces of limited bytes, without values that are too large."""
        constants, types, devices = self.program.constants, self.program.types, prod(self.sizes.values())
        sizes = {n: 2 * prod(types[n].shape) * types[n].dtype.itemsize * devices for n in self.sources}
        pairs = [pair for pair in self.sources.items() if sizes[pair[0]] <= MOST_BYTES and pair[0] not in constants]
        ends = accumulate(sizes[number] for number, _ in pairs)
        pieces = groupby(zip(pairs, ends, strict=True), lambda pair: pair[1] // MOST_BYTES)
        for _, piece in islice(pieces, _MOST_PIECES):
            yield [pair for pair, _ in piece]


def _iterations(loop: TracedStep) -> int:
    """The number of compared iterations of a loop: all of them, up to a limit."""
    length: int | None = loop.eqn.params.get("length")
    if length is None or length * len([*_jax.jaxpr.all_equations(loop.eqn.params["jaxpr"])]) > _MOST_STEPS:
        return _ITERATIONS
    return length


def matching_steps(program: SteppedProgram, reference: SteppedProgram) -> dict[Label, list[TracedStep]]:
    """By the label of each step of a program, the corresponding steps of the reference.

    These are at the same place in the source, by the same primitive: the step with the same number among them, or all
    of them if their numbers differ, as in a loop over an axis.
    """

    def by_place(program: SteppedProgram) -> dict[Any, list[TracedStep]]:
        steps = defaultdict[Any, list[TracedStep]](list)
        for step in program.steps:
            steps[step.frames, step.name, step.region is None, len(step.results)].append(step)
        return steps

    matches, references = dict[Label, list[TracedStep]](), by_place(reference)
    for place, steps in by_place(program).items():
        same = references.get(place, [])
        for at, step in enumerate(steps):
            matches[step.label] = [same[at]] if len(steps) == len(same) else same[:_MOST_MATCHES]
    return matches
