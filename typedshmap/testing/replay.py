"""Run a program on one device and on a mesh, and compare its values along the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from jax.sharding import Mesh

from .. import _jax
from ..inference.control_flow import fact_of_spec
from ..inference.facts import FactInterpreter
from ..inference.lattice import UNSHARDED, ShardingFact, invarying, zeros
from ..inference.region import RULES
from .agreement import Agreement, agreement, is_same
from .steps import Label, SteppedProgram, TracedStep

MOST_BYTES = 2**28
"""The bytes of all values that are on the host at once."""
_MOST_PIECES = 8
_ITERATIONS, _MOST_STEPS = 3, 2000


@dataclass(frozen=True)
class Opened:
    """By the labels of loops how many of their iterations are compared; by those of choices which branch is.

    Attributes:
      on_one: in the program on one device.
      on_mesh: in that on the mesh.
    """

    on_one: dict[Label, int] = field(default_factory=dict[Label, int])
    on_mesh: dict[Label, int] = field(default_factory=dict[Label, int])


@dataclass(frozen=True)
class Run:
    """A program and what it is run with.

    Attributes:
      jaxpr: the program.
      arguments: its arguments.
      mesh: its mesh.
      on_mesh: the context in which it runs.
    """

    jaxpr: Any
    arguments: Sequence[Any]
    mesh: Mesh
    on_mesh: Callable[[], AbstractContextManager[None]]

    @property
    def sizes(self) -> dict[str, int]:
        """The mesh axes, each with its size."""
        return dict(self.mesh.shape)


@dataclass
class ComparedValues:
    """The values of a program on a mesh, compared with those on one device.

    Attributes:
      program: the program on the mesh.
      reference: that on one device.
      sizes: the mesh axes, each with its size.
      agreements: what is known of each value, by its number; nothing of one that was not compared.
      facts: what inference knows of the values in regions.
      origin: by the number of a value that enters or leaves a region, that of the same value before.
      matches: by the label of a step the steps on one device that stand for it.
      sources: by the number of a value those of the values on one device that stand for it.
      branches: by the label of a choice the branch that all shards take, and one device.
    """

    program: SteppedProgram
    reference: SteppedProgram
    sizes: dict[str, int]
    agreements: dict[int, Agreement] = field(default_factory=dict[int, Agreement])
    facts: dict[int, ShardingFact] = field(default_factory=dict[int, ShardingFact])
    origin: dict[int, int] = field(default_factory=dict[int, int])
    matches: dict[Label, list[TracedStep]] = field(default_factory=dict[Label, list[TracedStep]])
    sources: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    branches: dict[Label, int] = field(default_factory=dict[Label, int])

    def agreement(self, number: int) -> Agreement | None:
        """What is known of a value, in whatever region."""
        while number not in self.agreements and number in self.origin:
            number = self.origin[number]
        return self.agreements.get(number)

    def opened_by(self, steps: Sequence[TracedStep], opened: Opened, is_as_long: bool = True) -> Opened:
        """The same, and those of some steps that do alike on one device, or are loops of other lengths."""
        on_one, on_mesh = dict(opened.on_one), dict(opened.on_mesh)
        for step in steps:
            if step.is_choice and step.label in self.branches:
                on_mesh[step.label] = self.branches[step.label]
                on_one |= {same.label: self.branches[step.label] for same in self.matches[step.label]}
            elif step.is_loop and self.is_as_long(step) == is_as_long:
                on_mesh[step.label] = _iterations(step)
                on_one |= {same.label: _iterations(same) for same in self.matches[step.label]}
        return Opened(on_one, on_mesh)

    def is_as_long(self, loop: TracedStep) -> bool:
        """Whether a loop has as many iterations as on one device, as far as that is known."""
        return all(each.eqn.params.get("length") == loop.eqn.params.get("length") for each in self.matches[loop.label])

    @cached_property
    def shard_sizes(self) -> list[int]:
        """The sizes of dims that are smaller than on one device."""
        shapes = [(self.program.types[a].shape, self.reference.types[b].shape) for a, (b, *_) in self.sources.items()]
        dims = [pair for shapes in shapes for pair in zip(*shapes, strict=False)]
        return sorted({part for part, size in dims if 1 < part < size and size % part == 0})


def _iterations(loop: TracedStep) -> int:
    """How many iterations of a loop are compared: all of them, if they are not many."""
    length: int | None = loop.eqn.params.get("length")
    if length is None or length * len(_jax.jaxpr.open_jaxpr(loop.eqn.params["jaxpr"]).eqns) > _MOST_STEPS:
        return _ITERATIONS
    return length


def facts_of(program: SteppedProgram) -> dict[int, ShardingFact]:
    """What is known of the values in the regions of a program, by their numbers."""
    found = dict[int, ShardingFact]()
    for region in program.regions:
        params = region.eqn.params
        interpreter = FactInterpreter(_jax.jaxpr.manual_sizes(params), params.get("check_vma", True), RULES)
        for spec, number in zip(params["in_specs"], region.entering, strict=True):
            found[number] = fact_of_spec(spec, len(program.types[number].shape), interpreter.axes)
        for step in region.steps:
            for number in step.operands:
                if number not in found:
                    value, rank = program.constants[number], len(program.types[number].shape)
                    found[number] = zeros(rank) if number in program.literals and not value else invarying(rank)
            operands = [found[number] for number in step.operands]
            if step.name == "item":
                results: Sequence[ShardingFact] = [operands[0].with_dims(operands[0].dims[1:])]
            elif step.name == "stack":
                results = [operands[0].with_dims((UNSHARDED, *operands[0].dims))]
            else:
                results = interpreter.results_of(step.eqn, operands)
            found.update(zip(step.results, results, strict=True))
    return found


def matching_steps(one: SteppedProgram, other: SteppedProgram) -> dict[Label, list[TracedStep]]:
    """By the label of each step of the one program the steps of the other that stand for it.

    These are at the same place in the source, by the same primitive: the one of the same number among them, or where
    there are more or fewer, as in a loop over an axis, all of them.
    """

    def by_place(program: SteppedProgram) -> dict[Any, list[TracedStep]]:
        found = defaultdict[Any, list[TracedStep]](list)
        for step in program.steps:
            found[step.frames, step.name, step.region is None, len(step.results)].append(step)
        return found

    found, others = dict[Label, list[TracedStep]](), by_place(other)
    for place, steps in by_place(one).items():
        same = others.get(place, [])
        for at, step in enumerate(steps):
            found[step.label] = [same[at]] if len(steps) == len(same) else same[:_MOST_MATCHES]
    return found


_MOST_MATCHES = 16


def compare(one: Run, other: Run, opened: Opened) -> ComparedValues:
    """Compare the values of a program on a mesh with those on one device.

    Args:
      one: on one device.
      other: on the mesh.
      opened: what has steps of its own that are compared, too.
    """
    found = match(one, other, opened)
    _run(found, one, other)
    return found


def match(one: Run, other: Run, opened: Opened) -> ComparedValues:
    """The same without running them: which values stand for each other."""
    reference, program = SteppedProgram(one.jaxpr, opened.on_one), SteppedProgram(other.jaxpr, opened.on_mesh)
    found = ComparedValues(program, reference, other.sizes, facts=facts_of(program))
    found.matches = matches = matching_steps(program, reference)
    for region in program.regions:
        found.origin |= dict(zip(region.entering, region.operands, strict=True))
        found.origin |= dict(zip(region.results, region.leaving, strict=True))
    pairs = list[tuple[int, list[int]]]()
    if len(program.regions) == len(reference.regions):
        for region, same in zip(program.regions, reference.regions, strict=True):
            pairs += [(a, [b]) for a, b in zip(region.entering, same.entering, strict=False)]
    for step in program.steps:
        pairs += [
            (number, [each.results[at] for each in matches[step.label]]) for at, number in enumerate(step.results)
        ]
    pairs += [(a, [b]) for a, b in zip(program.arguments, reference.arguments, strict=False)]
    found.sources |= {a: b for a, b in pairs if b and _is_array(program.types[a])}
    return found


def _run(found: ComparedValues, one: Run, other: Run) -> None:
    """Compare the values."""
    program, reference = found.program, found.reference
    inside = {number for region in program.regions for number in region.inside}
    axes, choices = len(other.sizes), defaultdict[int, list[TracedStep]](list)
    for step in program.steps:
        if step.is_choice:
            choices[step.operands[0]].append(step)
    for piece in _pieces([*found.sources.items()], program, other.sizes):
        with other.on_mesh():
            actual = program.run(other.arguments, {number for number, _ in piece})
        with one.on_mesh():
            expected = reference.run(one.arguments, {number for _, numbers in piece for number in numbers})
        for number, numbers in piece:
            wanted = [expected[each] for each in numbers]
            if number in inside:
                wanted = [each.reshape(each.shape[axes:]) for each in wanted]
            if number in choices and bool((actual[number] == wanted[0]).all()):
                found.branches |= {step.label: int(wanted[0]) for step in choices[number]}
            if number in inside:
                fact = found.facts.get(number)
                rank = actual[number].ndim - axes
                if fact is not None and len(fact.dims) < rank:  # the words of a key
                    fact = fact.with_dims((*fact.dims, *[UNSHARDED] * (rank - len(fact.dims))))
                found.agreements[number] = agreement(actual[number], other.sizes, wanted, fact)
            elif actual[number].shape == wanted[0].shape:
                same = any(is_same(actual[number], each) for each in wanted)
                found.agreements[number] = Agreement("global" if same else "differs")


def _is_array(aval: Any) -> bool:
    return hasattr(aval, "shape") and hasattr(aval, "dtype")


def _pieces(
    pairs: Sequence[tuple[int, list[int]]], program: SteppedProgram, sizes: dict[str, int]
) -> Iterator[list[tuple[int, list[int]]]]:
    """The values in pieces of so many bytes, those that are too large left out."""
    piece, filled, count = list[tuple[int, list[int]]](), 0, 0
    for number, numbers in pairs:
        aval = program.types[number]
        size = 2 * prod(aval.shape) * aval.dtype.itemsize * prod(sizes.values())
        if size > MOST_BYTES or number in program.constants:
            continue
        if filled + size > MOST_BYTES:
            yield piece
            piece, filled, count = [], 0, count + 1
            if count == _MOST_PIECES:
                return
        piece.append((number, numbers))
        filled += size
    if piece:
        yield piece
