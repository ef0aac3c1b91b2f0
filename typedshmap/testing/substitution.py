"""Find the first equation whose replacement makes the results right.

The equations in the computation of a wrong result get other values, one equation after the other, and the rest of the
program runs with these: parts of the value on one device, or, for indices and conditions of shards, values with which
they are easily confused. The mistake is at the first equation that makes all results right, or just before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import _jax
from ..errors.phrases import quoted_axes
from .replay import MOST_BYTES, ComparedValues
from .shard_values import HostArray, is_same, layouts, split
from .steps import SteppedProgram, TracedStep

_MOST_NUMBERS, _MOST_TRIES, _MOST_SECONDS = 1000, 2000, 15
"""The values that may be changed, the changes that are tried, and the CPU seconds that these take together."""


@dataclass(frozen=True)
class ChangedResult:
    """A result of an equation in a region, in all iterations.

    Attributes:
      steps: its steps.
      numbers: the numbers of their results.
      is_index: whether it is computed from only indices of shards, sizes and literals.
      sources: the corresponding values on one device, if their parts may replace it.
    """

    steps: Sequence[TracedStep]
    numbers: Sequence[int]
    is_index: bool
    sources: Sequence[int]


class Alternative(NamedTuple):
    """A replacement that may be right at a place.

    Attributes:
      words: the replacement in words.
      values: the values of all shards, for each number of the place.
      is_relative: whether they depend on the replaced values, so that they may also undo a later mistake.
    """

    words: str
    values: Sequence[HostArray]
    is_relative: bool = False


def first_substitution(
    compared: ComparedValues, places: Sequence[ChangedResult], results: Sequence[int]
) -> tuple[TracedStep, str] | None:
    """The first place whose replacement makes the results right, and the replacement in words.

    A replacement that depends on the replaced values may also undo a later mistake. Among several such places, each of
    which all paths from the previous place pass, the last is taken.
    """
    program, reference, on_one, on_mesh = compared.program, compared.reference, compared.on_one, compared.on_mesh
    numbers = [number for place in places for number in place.numbers]
    types = [program.types[number] for number in numbers]
    size = on_mesh.mesh.size * sum(prod(aval.shape) * aval.dtype.itemsize for aval in types)
    if len(numbers) > _MOST_NUMBERS or size > MOST_BYTES:
        return None
    start = time.process_time()
    ends, goals = [program.results[at] for at in results], [reference.results[at] for at in results]
    values = compared.prepare({*numbers, *ends}, {*goals, *(n for place in places for n in place.sources)})
    changed_values = program.prepare(ends, [place.numbers for place in places], on_mesh.mesh)

    def are_right(
        arguments: Sequence[Any], expected: Mapping[int, HostArray], which: int = -1, changes: Sequence[HostArray] = ()
    ) -> bool:
        with on_mesh.context():
            actual = changed_values(arguments, which, changes)
        return all(is_same(actual[end], expected[goal]) for end, goal in zip(ends, goals, strict=True))

    try:
        actual, expected = values(on_mesh.arguments, on_one.arguments)
        if are_right(on_mesh.arguments, expected):
            return None  # the mistake is too small for this search
    except (TypeError, ValueError, NotImplementedError, jax.errors.JaxRuntimeError):
        return None  # JAX refuses the program if values vary over more axes
    tries, again, chosen = 0, None, None
    moved, moved_same = _in_other_order(on_mesh.arguments), _in_other_order(on_one.arguments)
    for which, place in enumerate(places):
        olds = [actual[number] for number in place.numbers]
        operands = zip(*([actual.get(number) for number in step.operands] for step in place.steps), strict=True)
        if any(all(map(np.array_equal, operand, olds)) for operand in operands):
            continue  # tried where they were made
        for at, (words, changes, is_relative) in enumerate(alternatives(place, compared, actual, expected)):
            if chosen is not None and not (is_relative and _is_through(program, chosen[0], place)):
                continue
            tries += 1
            if tries > _MOST_TRIES or time.process_time() - start > _MOST_SECONDS:
                return None
            if not are_right(on_mesh.arguments, expected, which, changes):
                continue
            # It may be an accident: try other arguments too.
            again = again or values(moved, moved_same)
            changes = [*alternatives(place, compared, *again)][at].values
            if are_right(moved, again[1], which, changes):
                chosen = place, words
                if not is_relative:
                    return place.steps[0], words
                break
    return None if chosen is None else (chosen[0].steps[0], chosen[1])


def _is_through(program: SteppedProgram, place: ChangedResult, later: ChangedResult) -> bool:
    """Whether everything that depends on a place does so through a later place."""
    reached = {*place.numbers}
    for step in program.steps:
        if not reached.isdisjoint(step.operands):
            reached.update(number for number in step.results if number not in later.numbers)
    return all(reached.isdisjoint(region.leaving) for region in program.regions)


def _in_other_order(arguments: Sequence[Any]) -> list[Any]:
    """Other arguments of the same kinds: the same entries at other places."""

    def rolled(x: Any) -> Any:
        if not isinstance(x, jax.Array) or jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) or x.size < 2:
            return x
        return jax.device_put(np.roll(np.asarray(x), x.size // 3 + 1), x.sharding)

    return [rolled(x) for x in arguments]


def alternatives(
    place: ChangedResult, compared: ComparedValues, actual: Mapping[int, HostArray], expected: Mapping[int, HostArray]
) -> Iterator[Alternative]:
    """Replacements that may be right at a place, from the values on the mesh and those on one device."""
    sizes, step = compared.sizes, place.steps[0]
    axes, olds = [*sizes], [actual[number] for number in place.numbers]
    if place.sources:
        wanted = [expected[source] for source in place.sources]
        for dim_axes, reduced, fitting in layouts(olds[0].shape[len(axes) :], sizes, wanted):
            if not reduced and len(fitting) == len(wanted):
                dims = [f"dim {dim} sharded over {quoted_axes(over)}" for dim, over in enumerate(dim_axes) if over]
                of = f"the parts ({', '.join(dims)}) of " if dims else ""
                yield Alternative(f"{of}the value on one device", [split(value, sizes, dim_axes) for value in wanted])
    if step.name == "ppermute":
        (axis,) = _jax.jaxpr.named_axes(step.eqn, frozenset(axes))
        for by in range(1, sizes[axis]):
            sent = [np.roll(old, by, axes.index(axis)) for old in olds]
            yield Alternative(f"what is sent {by} further over '{axis}'", sent, is_relative=True)
    if place.is_index:
        yield from _other_indices(step, olds, sizes, compared.shard_sizes)


def _other_indices(
    step: TracedStep, olds: Sequence[HostArray], sizes: Mapping[str, int], shard_sizes: Sequence[int]
) -> Iterator[Alternative]:
    """Replacements for the index of a shard, for a first row, or for a condition on them."""
    shape, rank = olds[0].shape, olds[0].ndim - len(sizes)
    indices = dict(zip(sizes, np.indices([*sizes.values()]), strict=True))

    def changed(words: str, to: Callable[[HostArray], Any], is_relative: bool = False) -> Alternative:
        return Alternative(words, [np.broadcast_to(to(old), shape) for old in olds], is_relative)

    if step.name == "axis_index":
        for axis, index in indices.items():
            yield changed(f"the index over '{axis}'", lambda _, index=index: index)
        return
    longer = [axis for axis in sizes if sizes[axis] > 1]
    for over in (over for count in range(1, len(longer) + 1) for over in permutations(longer, count)):
        names, many, index = quoted_axes(over), prod(sizes[axis] for axis in over), np.zeros((), int)
        for axis in over:
            index = index * sizes[axis] + indices[axis]
        index = index.reshape(*index.shape, *[1] * rank)
        if olds[0].dtype == bool:
            for end, is_end in (("first", index == 0), ("last", index == many - 1)):
                shard = f"on the {end} shard over {names}"
                yield changed(f"the same {shard} alone", lambda old, at=is_end: old & at)
                yield changed(f"the same, but true {shard}", lambda old, at=is_end: old | at)
                yield changed(f"the same, but false {shard}", lambda old, at=is_end: old & ~at)
                yield changed(f"what is true {shard} alone", lambda _, at=is_end: at)
                yield changed(f"what is false {shard} alone", lambda _, at=is_end: ~at)
            continue
        is_scaled = any(old.max() >= many for old in olds)  # else it may be scaled later
        for width in [1, *(shard_sizes if is_scaled else [])] if not rank else []:
            times = f" times {width}" if width > 1 else ""
            yield changed(f"the index over {names}{times}", lambda _, by=index * width: by)
        if len(over) == 1:
            to = f"the other direction over {names}"
            yield changed(to, lambda old, at=2 * index, n=many: (at - old) % n, is_relative=True)
    if olds[0].dtype != bool:
        for by in range(1, 1 + max(sizes.values())):
            yield changed(f"a value {by} larger", lambda old, by=by: old + by, is_relative=True)
            yield changed(f"a value {by} smaller", lambda old, by=by: old - by, is_relative=True)
