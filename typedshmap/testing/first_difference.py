"""The first line whose values make another global value on a mesh than on one device, though its operands agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np

from .. import _jax
from .._jax.primitives import primitive
from .agreement import HostArray, wrong_entries
from .replay import ComparedValues, Opened, Run
from .steps import Label, SteppedProgram, TracedStep
from .substitution import ChangedResult, first_substitution

_MOST_NESTED = 3


@dataclass(frozen=True)
class FirstDifference:
    """A step, and its comparison.

    Attributes:
      step: the step.
      comparison: what is known of all values.
      loop: the loop around it that has another length than on one device, if any; its values are not compared.
      instead: what puts all results right in the place of its result, in words, if anything is known to.
    """

    step: TracedStep
    comparison: ComparedValues
    loop: TracedStep | None = None
    instead: str = ""

    @property
    def result(self) -> int:
        """Which of its results is known to be another value than on one device; the first if none is."""
        kinds = [self.comparison.agreement(number).kind for number in self.step.results]
        return next((at for at, kind in enumerate(kinds) if kind in ("differs", "own")), 0)

    @property
    def iteration(self) -> int | None:
        """The iteration of the innermost loop that it is in, from 0 on."""
        around = {step.label for step in self.comparison.program.steps if step.is_loop}
        label = self.step.label
        while label and label[:-2] not in around:
            label = label[:-2]
        return label[-2] if label else None


def first_difference(on_one: Run, on_mesh: Run, wrong: Sequence[int]) -> FirstDifference | None:
    """The first difference on the way to a result that differs; None if it is not found.

    Args:
      on_one: the program on one device.
      on_mesh: the program on the mesh.
      wrong: which of its results differ; it is on the way to the first of them.
    """
    way = Slice(ComparedValues(on_one, on_mesh, Opened({}, {})).compare(), wrong)
    for _ in range(_MOST_NESTED):
        opened = way.compared.opened_by(way.steps)
        if opened == way.compared.opened:
            break
        way = Slice(ComparedValues(on_one, on_mesh, opened).compare(), wrong)
    compared, step, loop = way.compared, way.culprit(), None
    if step is None:
        return None
    right = [at for at, number in enumerate(compared.program.results) if way.is_right(number)]
    last = step.label
    if step.is_loop and not compared.is_as_long(step):
        loop, step = step, way.within(step) or step
        way = Slice(ComparedValues(on_one, on_mesh, compared.opened_by([loop], is_as_long=False)), wrong)
    equations = way.equations()
    substitution = first_substitution(way.compared, way.places(equations, last, loop), [*wrong, *right])
    if substitution is not None:
        step, instead = substitution
        if loop is not None and is_in(step.label, loop.label):
            return FirstDifference(step, compared, loop, instead)
        return FirstDifference(step, way.compared, instead=instead)
    condition = way.constant_condition([steps for steps in equations if is_up_to(steps[0].label, last)])
    return FirstDifference(step, compared, loop) if condition is None else FirstDifference(condition, way.compared)


def numbers_behind(numbers: Iterable[int], operands: Callable[[int], Iterable[int]]) -> set[int]:
    """Some values and all that they follow from, given what each of them is computed from."""
    behind, waiting = set[int](), [*numbers]
    while waiting:
        number = waiting.pop()
        if number not in behind:
            behind.add(number)
            waiting += operands(number)
    return behind


class Slice:
    """What a wrong result follows from, as far as it is not right.

    Attributes:
      compared: the values.
      results: the wrong results; it is the slice of the first of them.
      steps: the steps whose results are not right, in their order.
    """

    def __init__(self, compared: ComparedValues, wrong: Sequence[int]) -> None:
        self.compared, self.program, self.types = compared, compared.program, compared.program.types
        self.results = [self.program.results[at] for at in wrong]
        self._maker = {number: step for step in self.program.steps for number in step.results}
        # What is computed from the indices of shards, sizes and literals alone; of sizes and literals alone; and along
        # a sharded dim of one shard's part.
        self._data_free, self._sized, self._local = set[int](), {*self.program.constants}, set[int]()
        for step in self.program.steps:
            # What is summed over shards is not a size, even if it is the cotangent 1 of a loss.
            is_summed = _jax.jaxpr.collective_operation(step.eqn) is not None and any(
                map(self._is_inexact, step.results)
            )
            if not is_summed and self._data_free.union(self._sized).issuperset(step.operands):
                self._data_free.update(step.results)
            if not is_summed and step.operands and self._sized.issuperset(step.operands):
                self._sized.update(step.results)
            if self._is_along_shards(step) or not self._local.isdisjoint(step.operands):
                self._local.update(number for number in step.results if self.kind(number) not in ("global", "reduced"))
        self.steps = self._upstream(self.results[:1])

    def _upstream(self, numbers: Iterable[int]) -> list[TracedStep]:
        """The steps that some values follow from, whose results are not right, in their order."""

        def operands(step: TracedStep) -> list[int]:
            wrong = [number for number in step.operands if not self.is_right(number)]
            return wrong + self.program.opened_results.get(step.label, [])

        return self._behind(numbers, operands)

    def _behind(self, numbers: Iterable[int], operands: Callable[[TracedStep], Iterable[int]]) -> list[TracedStep]:
        """The steps that some values follow from by some operands, in their order."""

        def before(number: int) -> Iterable[int]:
            step = self.made_by(number)
            return () if step is None else [*operands(step), step.results[0]]

        behind = numbers_behind(numbers, before)
        return [step for step in self.program.steps if not behind.isdisjoint(step.results)]

    def equations(self) -> list[list[TracedStep]]:
        """The equations in regions that all wrong results follow from, each with its steps in all iterations."""
        is_nested = lambda step: step.is_loop or step.is_choice  # noqa: E731
        equations = defaultdict[Label, list[TracedStep]](list)
        for step in self._behind(self.results, lambda step: () if is_nested(step) else step.operands):
            if not is_nested(step) and step.frames and step.region is not None:
                equations[without_iterations(step.label)].append(step)
        return [*equations.values()]

    def places(
        self, equations: Sequence[Sequence[TracedStep]], last: Label, loop: TracedStep | None
    ) -> list[ChangedResult]:
        """Results of equations up to one, in whose place other values may put the wrong ones right.

        Behind them come those of all calls of a line at once; of indices and masks also of calls after the last one.
        In a loop of another length than on one device no others are tried than of indices and masks, since what has
        the same place there may be another value.
        """
        places = list[ChangedResult]()
        for steps in equations:
            first = steps[0]
            for numbers in zip(*(step.results for step in steps), strict=True):
                dtype = self.types[numbers[0]].dtype
                if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
                    continue
                is_index = not self._data_free.isdisjoint(numbers) and not _jax.array.is_inexact(dtype)
                is_index = is_index and primitive(first.name).kind not in ("cast", "moving")
                if not is_index and not is_up_to(first.label, last):
                    continue
                sources = [self.compared.sources.get(number, [])[:1] for number in numbers]
                is_compared = all(sources) and (loop is None or not is_in(first.label, loop.label))
                if not is_compared or not (is_index or any(map(self._may_be_wrong, numbers))):
                    sources = []
                if sources or is_index or first.name in ("ppermute", "reshape"):
                    places.append(ChangedResult(steps, numbers, is_index, [source for (source,) in sources]))
        calls = defaultdict[Any, list[ChangedResult]](list)
        for place in places:
            first, aval = place.steps[0], self.types[place.numbers[0]]
            calls[first.frames[0], first.name, aval.shape, aval.dtype, bool(place.sources)].append(place)
        together = [calls_of_line for calls_of_line in calls.values() if len(calls_of_line) > 1]
        groups = [*([place] for place in places), *together]
        return [ChangedResult.of_all(group) for group in groups if is_up_to(group[0].steps[0].label, last)]

    def constant_condition(self, equations: Sequence[Sequence[TracedStep]]) -> TracedStep | None:
        """The first condition on the index of a shard that is the same on all shards."""
        select = {step.operands[0]: step for (step, *_) in equations if primitive(step.name).kind == "choice"}
        for step, *_ in equations:
            if primitive(step.name).kind != "test" or step.caller is not step.eqn or not self.is_right(step.results[0]):
                continue
            indices = {number for number in step.operands if number in self._data_free and not self.is_right(number)}
            chosen = select.get(step.results[0])
            if indices and not (chosen is not None and indices.intersection(chosen.operands)):  # as of x[-1]
                return step
        return None

    def _may_be_wrong(self, number: int) -> bool:
        """Whether a value may not be as it should be on shards: a part, an addend, or the shard's own for now."""
        if number in self._local or number in self._data_free:
            return False
        agreement = self.compared.agreement(number)
        return agreement.kind in ("differs", "own", "blocks") or any(len(axes) > 1 for axes in agreement.dim_axes)

    def made_by(self, number: int) -> TracedStep | None:
        """The step that makes a value, in whatever region."""
        while number in self.compared.origin:
            number = self.compared.origin[number]
        return self._maker.get(number)

    def kind(self, number: int) -> str:
        return self.compared.agreement(number).kind

    def is_right(self, number: int) -> bool:
        return number in self._sized or self.kind(number) == "global"

    def _is_inexact(self, number: int) -> bool:
        return _jax.array.is_inexact(self.types[number].dtype)

    def _is_certain(self, number: int) -> bool:
        """Whether a value is known to be wrong: a global value that is another one."""
        agreement = self.compared.agreement(number)
        if number in self._data_free:
            return False
        if agreement.kind == "differs":
            return agreement.is_mostly or number not in self._local
        step = self._maker.get(number)
        return agreement.kind == "own" and step is not None and self._is_of_shards(step)

    def _is_scaled(self, number: int) -> bool:
        """Whether a value is that on one device, times the number of shards, or divided by it."""
        return any(how == "scaled" for _, how in self.compared.agreement(number).reduced)

    def _is_of_shards(self, step: TracedStep) -> bool:
        """Whether it computes numbers entry by entry, of shards that are right or what is the same for all of them."""
        others = [number for number in step.operands if not self.is_right(number)]
        operation = primitive(step.name)
        if not operation.is_entry_by_entry or operation.kind == "cast" or not all(map(self._is_equal, others)):
            return False
        shape = self.types[step.results[0]].shape
        layouts = [
            self.compared.agreement(number).dim_axes
            for number in step.operands
            if number not in self._sized and self.types[number].shape == shape and number not in others
        ]
        return self._is_inexact(step.results[0]) and len({*layouts}) == 1 and any(layouts[0])

    def culprit(self) -> TracedStep | None:
        """The step that made it wrong."""
        written = [step for step in self.steps if step.frames and step.label not in self.program.opened_results]
        wrong = next((step for step in written if any(map(self._is_certain, step.results))), None)
        wrong = wrong or next((step for step in reversed(self.steps) if step.frames), None)
        if wrong is None:
            return None
        before = [step for step in self._upstream(n for n in wrong.operands if not self.is_right(n)) if step.frames]
        for step in before:
            is_open = step.label in self.program.opened_results
            if step.is_loop and not is_open and {"own", "differs"}.intersection(map(self.kind, step.results)):
                return step
        for step in before:
            if all(map(self.is_right, step.operands)) and (blamed := self._blamed(step, before, wrong)) is not None:
                return blamed
        return self._moved_from(wrong, wrong_entries(self.compared.agreement(wrong.results[0]), self.compared.sizes))

    def within(self, loop: TracedStep) -> TracedStep | None:
        """The last step in the body of a loop that what is wrong at its end follows from, and what is right does not.

        Of several results that are wrong it is the one that follows from the fewest steps. The last of these is at or
        behind what made it wrong, which is all that is known where one device has no such iterations.
        """
        after = [number for step in self.steps if step.label > loop.label for number in step.results]
        if loop.name != "scan" or any(self.compared.agreement(number).is_mostly for number in after):
            return None  # most of it is right: the loop may be too short
        body = SteppedProgram(loop.eqn.params["jaxpr"])
        maker = {number: step for step in body.steps for number in step.results}
        constant, carried = _jax.jaxpr.scan_counts(loop.eqn.params)
        handed_on = dict(zip(body.arguments[constant:][:carried], body.results, strict=False))

        def operands(number: int) -> Iterable[int]:
            if number in handed_on:
                return [handed_on[number]]
            return maker[number].operands if number in maker else ()

        def steps_before(number: int) -> set[Label]:
            return {maker[behind].label for behind in numbers_behind([number], operands) if behind in maker}

        used = {number for step in self.program.steps for number in step.operands}
        used.update(number for region in self.program.regions for number in region.leaving)
        wrong, right = list[set[Label]](), set[Label]()
        for inside, outside in zip(body.results, loop.results, strict=True):
            kind = self.kind(outside)
            if not self._is_inexact(outside):
                continue
            if kind == "blocks":  # handed round, and not back where it was: the loop may be too short
                return None
            if kind in ("own", "differs"):
                wrong.append(steps_before(inside))
            elif outside in used and kind in ("global", "reduced"):
                right |= steps_before(inside)
        least = min((steps - right for steps in wrong if steps - right), key=len, default=set[Label]())
        kinds = ("cast", "moving", "lookup")  # which hand on what is wrong
        steps = [step for step in body.steps if step.label in least and step.frames]
        return next((step for step in reversed(steps) if primitive(step.name).kind not in kinds), None)

    def _moved_from(self, step: TracedStep, wrong: HostArray | None) -> TracedStep:
        """Follow entries of a shard through steps that only move them."""
        while wrong is not None and wrong.any() and len(step.results) == 1:
            kind, start, labels = primitive(step.name).kind, 0, list[HostArray]()
            if kind not in ("cast", "moving", "joining"):
                break
            for number in step.operands:
                labels.append(start + np.arange(prod(self.types[number].shape)).reshape(self.types[number].shape))
                start += labels[-1].size
            moved = labels[0] if kind == "cast" else np.asarray(step.compute(labels)[0])
            sources = np.unique(moved[wrong]) if moved.shape == wrong.shape else np.empty(0, int)
            owners = [at for at, entries in enumerate(labels) if np.isin(sources, entries).any()]
            made = self.made_by(step.operands[owners[0]]) if owners else None
            if made is None or not made.frames:
                break
            step, wrong = made, np.isin(labels[owners[0]], sources)
        return step

    def _blamed(self, step: TracedStep, before: Sequence[TracedStep], wrong: TracedStep) -> TracedStep | None:
        """What is to blame if a value that is not right comes of what is; None if that may be as it should."""
        number = step.results[0]
        if _jax.jaxpr.collective_operation(step.eqn) in ("all-reduce", "all-to-all", "reduce-scatter"):
            return step
        agreement = self.compared.agreement(number)
        if agreement.kind != "reduced" or number in self._data_free or not self._is_inexact(number):
            return None
        return self._after_partial(step, frozenset(axis for axis, _ in agreement.reduced), [*before, wrong])

    def _after_partial(self, step: TracedStep, axes: frozenset[str], later: Sequence[TracedStep]) -> TracedStep | None:
        """What is to blame where a shard's part of a sum is taken for the sum; None if all parts are gathered."""
        parts, is_addend = {*step.results}, False
        is_equal = axes.isdisjoint(self._apart(step.results[0], axes))
        for user in later:
            if parts.isdisjoint(user.operands) or user is step:
                continue
            operation = _jax.jaxpr.collective_operation(user.eqn)
            is_sum, adds = operation == "all-reduce", primitive(user.name).kind == "sum" and len(user.operands) > 1
            if any(self.kind(number) == "reduced" for number in user.results):
                if is_sum and any(map(self._is_scaled, user.results)):
                    return user
                is_addend |= adds and all(self.kind(number) == "reduced" for number in user.operands)
                parts.update(user.results)
                continue
            if operation is not None and not is_sum:
                return None
            others = [number for number in user.operands if number not in parts]
            is_same = all(axes.isdisjoint(self._apart(number)) for number in others)
            return user if is_sum or is_addend or (not is_equal and adds and is_same) else step
        return later[-1]

    def _apart(self, number: int, otherwise: frozenset[str] = frozenset()) -> frozenset[str]:
        """The axes over which shards of a value may differ, if that is known."""
        fact = self.compared.facts.get(number)
        return otherwise if fact is None else self._longer(fact.varying | fact.due | fact.unreduced)

    def _is_equal(self, number: int) -> bool:
        """Whether a value comes of what is the same on all shards, and does not vary by their own indices."""
        return number not in self._local and number not in self._data_free and self.kind(number) == "blocks"

    def _longer(self, axes: Iterable[str]) -> frozenset[str]:
        return frozenset(axis for axis in axes if self.compared.sizes.get(axis, 1) > 1)

    def _is_along_shards(self, step: TracedStep) -> bool:
        """Whether an operation depends on the order of the entries along a dim that is sharded."""
        operation, params = primitive(step.name), step.eqn.params
        has_order = operation.kind == "ordering" or operation.has_order
        if not has_order or step.operands[0] not in self.compared.facts:
            return False
        dims = self.compared.facts[step.operands[0]].dims
        along: Any = params.get(operation.along, range(len(dims)))
        if operation.along == "fft_lengths":
            along = range(len(dims) - len(params["fft_lengths"]), len(dims))
        elif operation.along == "window_dimensions":
            along = [dim for dim, size in enumerate(params["window_dimensions"]) if size > 1]
        along = [along] if isinstance(along, int) else along
        return any(dims[at].axes is None or self._longer(dims[at].known_axes) for at in along)


def without_iterations(label: Label) -> Label:
    """The label of an equation in whatever iteration."""
    return (*label[:1], *label[1::2])


def is_up_to(label: Label, last: Label) -> bool:
    """Whether an equation is not behind another one, or is inside it."""
    label, last = without_iterations(label), without_iterations(last)
    return label[: len(last)] <= last


def is_in(label: Label, loop: Label) -> bool:
    """Whether an equation is in a loop."""
    return label[: len(loop)] == loop
