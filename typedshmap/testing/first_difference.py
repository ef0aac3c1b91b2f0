"""The first line whose values make another global value on a mesh than on one device, though its operands agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import numpy as np

from .. import _jax
from ..inference.claims import CLAIM
from .agreement import Agreement, HostArray, wrong_entries
from .replay import ComparedValues, Opened, Run, compare, match
from .steps import Label, SteppedProgram, TracedStep
from .substitution import ChangedResult, first_substitution

_MOST_NESTED = 3


@dataclass(frozen=True)
class FirstDifference:
    """A step, and its comparison.

    Attributes:
      step: the step.
      comparison: what is known of all values.
      loop: the loop of another length than on one device that it is in, if it is, so that its values are not compared.
      iterations: how many that has on one device.
      instead: what puts all results right in the place of its result, in words, if anything is known to.
    """

    step: TracedStep
    comparison: ComparedValues
    loop: TracedStep | None = None
    iterations: int | None = None
    instead: str = ""

    def agreement(self, number: int) -> Agreement | None:
        """How the shards of a value make that on one device; None if it was not compared."""
        return self.comparison.agreement(number)

    def is_off(self, number: int) -> bool:
        """Whether a value is known to be another one than on one device."""
        found = self.agreement(number)
        return found is not None and found.kind in ("differs", "own")

    @property
    def iteration(self) -> int | None:
        """The iteration of the innermost loop that it is in, from 0 on."""
        around = {step.label for step in self.comparison.program.steps if step.is_loop}
        label = self.step.label
        while label and label[:-2] not in around:
            label = label[:-2]
        return label[-2] if label else None


def first_difference(one: Run, other: Run, wrong: Sequence[int]) -> FirstDifference | None:
    """The first difference on the way to a result that differs; None if it is not found.

    Args:
      one: the program on one device.
      other: the program on the mesh.
      wrong: which of its results differ; it is on the way to the first of them.
    """
    opened = Opened()
    compared = compare(one, other, opened)
    way = Slice(compared, compared.program.results[wrong[0]])
    for _ in range(_MOST_NESTED):
        more = compared.opened_by(way.steps, opened)
        if more == opened:
            break
        opened, compared = more, compare(one, other, more)
        way = Slice(compared, compared.program.results[wrong[0]])
    step = way.culprit()
    if step is None:
        return None
    found = FirstDifference(step, compared)
    right = [at for at, number in enumerate(compared.program.results) if way.is_right(number)]
    if step.is_loop and not compared.is_as_long(step):
        length = compared.matches[step.label][0].eqn.params.get("length")
        found = FirstDifference(way.within(step) or step, compared, step, length)
        compared = match(one, other, compared.opened_by([step], opened, is_as_long=False))
        way = Slice(compared, compared.program.results[wrong[0]])
    last = found.loop.label if found.loop is not None else step.label
    equations = way.equations([compared.program.results[each] for each in wrong])
    places = way.places(equations, last, found.loop)
    substitution = first_substitution(compared, places, one, other, [*wrong, *right])
    if substitution is not None:
        step, instead = substitution
        if found.loop is not None and is_in(step.label, found.loop.label):
            return replace(found, step=step, instead=instead)
        return FirstDifference(step, compared, instead=instead)
    condition = way.constant_condition([steps for steps in equations if is_up_to(steps[0].label, last)])
    return found if condition is None else FirstDifference(condition, compared)


class Slice:
    """What a wrong result follows from, as far as it is not right.

    Attributes:
      steps: the steps whose results are not right, in their order.
    """

    def __init__(self, compared: ComparedValues, result: int) -> None:
        self.compared, self.result = compared, result
        self.maker = {number: step for step in compared.program.steps for number in step.results}
        self.data_free, self.sized, self.local = set[int](), {*compared.program.constants}, set[int]()
        for step in compared.program.steps:
            # What is summed over shards is no size, be it the cotangent 1 of a loss.
            is_summed = _jax.jaxpr.collective_operation(step.eqn) is not None and any(
                _jax.array.is_inexact(compared.program.types[number].dtype) for number in step.results
            )
            if not is_summed and self.data_free.union(self.sized).issuperset(step.operands):
                self.data_free.update(step.results)
            if not is_summed and step.operands and self.sized.issuperset(step.operands):
                self.sized.update(step.results)
            if self._is_along_shards(step) or not self.local.isdisjoint(step.operands):
                self.local.update(number for number in step.results if self.kind(number) not in ("global", "reduced"))
        self.steps = self.upstream([result])

    def upstream(self, numbers: Sequence[int]) -> list[TracedStep]:
        """The steps that some values follow from, whose results are not right, in their order."""
        program, found, waiting = self.compared.program, set[Label](), list(numbers)
        while waiting:
            step = self.made_by(waiting.pop())
            if step is not None and step.label not in found:
                found.add(step.label)
                waiting += [number for number in step.operands if not self.is_right(number)]
                waiting += program.opened_results.get(step.label, [])
        return [step for step in program.steps if step.label in found]

    def equations(self, results: Sequence[int]) -> list[list[TracedStep]]:
        """The equations in regions that some results follow from, each with its steps in all iterations."""
        program, found, waiting = self.compared.program, set[Label](), list(results)
        while waiting:
            step = self.made_by(waiting.pop())
            if step is not None and step.label not in found and not step.is_loop and not step.is_choice:
                found.add(step.label)
                waiting += step.operands
        equations = defaultdict[Label, list[TracedStep]](list)
        for step in program.steps:
            if step.label in found and step.frames and step.region is not None:
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
        places, types = list[ChangedResult](), self.compared.program.types
        for steps in equations:
            first = steps[0]
            for numbers in zip(*(step.results for step in steps), strict=True):
                dtype = types[numbers[0]].dtype
                if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
                    continue
                is_index = not self.data_free.isdisjoint(numbers) and not _jax.array.is_inexact(dtype)
                is_index = is_index and first.name not in _RETYPED
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
            first, aval = place.steps[0], types[place.numbers[0]]
            calls[first.frames[0], first.name, aval.shape, aval.dtype, bool(place.sources)].append(place)
        single = [[place] for place in places]
        together = [each for each in calls.values() if len(each) > 1]
        return [ChangedResult.of_all(each) for each in (*single, *together) if is_up_to(each[0].steps[0].label, last)]

    def constant_condition(self, equations: Sequence[Sequence[TracedStep]]) -> TracedStep | None:
        """The first condition on the index of a shard that is the same on all shards."""
        select = {step.operands[0]: step for (step, *_) in equations if step.name == "select_n"}
        for step, *_ in equations:
            if step.name not in _COMPARING or step.caller is not step.eqn or not self.is_right(step.results[0]):
                continue
            indices = {number for number in step.operands if number in self.data_free and not self.is_right(number)}
            chosen = select.get(step.results[0])
            if indices and not (chosen is not None and indices.intersection(chosen.operands)):  # as of x[-1]
                return step
        return None

    def _may_be_wrong(self, number: int) -> bool:
        """Whether a value is none that is as it should be on shards: a part, an addend, or the shard's own for now."""
        found = self.agreement(number)
        if found is None or number in self.local or number in self.data_free:
            return False
        return found.kind in ("differs", "own", "blocks") or any(len(axes) > 1 for axes in found.dim_axes)

    def made_by(self, number: int) -> TracedStep | None:
        """The step that makes a value, in whatever region."""
        while number in self.compared.origin:
            number = self.compared.origin[number]
        return self.maker.get(number)

    def agreement(self, number: int) -> Agreement | None:
        return self.compared.agreement(number)

    def kind(self, number: int) -> str:
        found = self.agreement(number)
        return "unknown" if found is None else found.kind

    def is_right(self, number: int) -> bool:
        return number in self.sized or self.kind(number) == "global"

    def is_certain(self, number: int) -> bool:
        """Whether a value is known to be wrong: a global value that is another one."""
        found = self.agreement(number)
        if number in self.data_free or found is None:
            return False
        if found.kind == "differs":
            return found.is_mostly or number not in self.local
        step = self.maker.get(number)
        return found.kind == "own" and step is not None and self._is_of_shards(step)

    def _is_scaled(self, number: int) -> bool:
        """Whether a value is that on one device, times the number of shards, or divided by it."""
        found = self.agreement(number)
        return found is not None and any(how == "scaled" for _, how in found.reduced)

    def _is_of_shards(self, step: TracedStep) -> bool:
        """Whether it computes numbers entry by entry, of shards that are right or what is the same for all of them."""
        others = [number for number in step.operands if not self.is_right(number)]
        if step.name not in _ELEMENTWISE or not all(map(self._is_equal, others)):
            return False
        types = self.compared.program.types
        shape, layouts = types[step.results[0]].shape, list[Any]()
        for number in step.operands:
            if number not in self.sized and types[number].shape == shape and number not in others:
                found = self.agreement(number)
                layouts.append(None if found is None else found.dim_axes)
        is_float = _jax.array.is_inexact(types[step.results[0]].dtype)
        return is_float and bool(layouts) and layouts.count(layouts[0]) == len(layouts) and any(layouts[0] or ())

    def culprit(self) -> TracedStep | None:
        """The step that made it wrong."""
        written = [
            step for step in self.steps if step.frames and step.label not in self.compared.program.opened_results
        ]
        wrong = next((step for step in written if any(map(self.is_certain, step.results))), None)
        wrong = wrong or next((step for step in reversed(self.steps) if step.frames), None)
        if wrong is None:
            return None
        before = [step for step in self.upstream([n for n in wrong.operands if not self.is_right(n)]) if step.frames]
        loops = [step for step in before if step.is_loop and not self.compared.program.opened_results.get(step.label)]
        for step in loops:
            if {"own", "differs"}.intersection(map(self.kind, step.results)):
                return step
        for step in before:
            if all(map(self.is_right, step.operands)) and (found := self._blamed(step, before, wrong)) is not None:
                return found
        found = self.agreement(wrong.results[0])
        entries = None if found is None else wrong_entries(found, self.compared.sizes)
        return self._moved_from(wrong, entries)

    def within(self, loop: TracedStep) -> TracedStep | None:
        """The last step in the body of a loop that what is wrong at its end follows from, and what is right does not.

        Of several results that are wrong it is the one that follows from the fewest steps. The last of these is at or
        behind what made it wrong, which is all that is known where one device has no such iterations.
        """
        after = [number for step in self.steps if step.label > loop.label for number in step.results]
        if loop.name != "scan" or any((found := self.agreement(number)) and found.is_mostly for number in after):
            return None  # most of it is right: the loop may be too short
        constant, carried = _jax.jaxpr.scan_counts(loop.eqn.params)
        body = SteppedProgram(loop.eqn.params["jaxpr"])
        maker = {number: step for step in body.steps for number in step.results}
        handed_on = dict(zip(body.arguments[constant:][:carried], body.results, strict=False))

        def steps_before(number: int) -> set[Label]:
            found, seen, waiting = set[Label](), set[int](), [number]
            while waiting:
                number = waiting.pop()
                if number in seen:
                    continue
                seen.add(number)
                if number in handed_on:
                    waiting.append(handed_on[number])
                if (step := maker.get(number)) is not None:
                    found.add(step.label)
                    waiting += step.operands
            return found

        used = {number for step in self.compared.program.steps for number in step.operands}
        used.update(number for region in self.compared.program.regions for number in region.leaving)
        wrong, right = list[set[Label]](), set[Label]()
        for inside, outside in zip(body.results, loop.results, strict=True):
            if not _jax.array.is_inexact(self.compared.program.types[outside].dtype):
                continue
            if self.kind(outside) == "blocks":  # handed round, and not back where it was: the loop may be too short
                return None
            if self.kind(outside) in ("own", "differs"):
                wrong.append(steps_before(inside))
            elif outside in used and self.kind(outside) in ("global", "reduced"):
                right |= steps_before(inside)
        least = min((each - right for each in wrong if each - right), key=len, default=set[Label]())
        written = [step for step in body.steps if step.label in least and step.frames and step.name not in _HANDED_ON]
        return written[-1] if written else None

    def _moved_from(self, step: TracedStep, wrong: HostArray | None) -> TracedStep:
        """Follow entries of a shard through steps that only move them."""
        types = self.compared.program.types
        while wrong is not None and step.name in _MOVES and wrong.any():
            start, labels = 0, list[HostArray]()
            for number in step.operands:
                labels.append(start + np.arange(prod(types[number].shape)).reshape(types[number].shape))
                start += labels[-1].size
            moved = labels[0] if step.name == "pvary" else np.asarray(step.compute(labels)[0])
            sources = np.unique(moved[wrong]) if moved.shape == wrong.shape else np.empty(0, int)
            owners = [at for at, each in enumerate(labels) if np.isin(sources, each).any()]
            made = self.made_by(step.operands[owners[0]]) if owners else None
            if made is None or not made.frames:
                return step
            step, wrong = made, np.isin(labels[owners[0]], sources)
        return step

    def _blamed(self, step: TracedStep, before: Sequence[TracedStep], wrong: TracedStep) -> TracedStep | None:
        """What is to blame if a value that is not right comes of what is; None if that may be as it should."""
        number = step.results[0]
        operation = _jax.jaxpr.collective_operation(step.eqn)
        if operation in ("all-reduce", "all-to-all", "reduce-scatter"):
            return step
        found = self.agreement(number)
        is_number = _jax.array.is_inexact(self.compared.program.types[number].dtype)
        if found is not None and found.kind == "reduced" and number not in self.data_free and is_number:
            return self._after_partial(step, frozenset(axis for axis, _ in found.reduced), [*before, wrong])
        if self._is_of_shard(number):
            return step if self._meets_shards(number, [*before, wrong]) else None
        return None

    def _after_partial(self, step: TracedStep, axes: frozenset[str], later: Sequence[TracedStep]) -> TracedStep | None:
        """What is to blame where a shard's part of a sum is taken for the sum; None if all parts are gathered."""
        parts, is_addend = {*step.results}, False
        fact = self.compared.facts.get(step.results[0])
        is_equal = fact is not None and axes.isdisjoint(fact.varying | fact.due | fact.unreduced)
        for each in later:
            if parts.isdisjoint(each.operands) or each is step:
                continue
            is_sum = _jax.jaxpr.collective_operation(each.eqn) == "all-reduce"
            if any(self.kind(number) == "reduced" for number in each.results):
                if is_sum and any(self._is_scaled(number) for number in each.results):
                    return each
                is_addend |= each.name in _ADDING and all(self.kind(number) == "reduced" for number in each.operands)
                parts.update(each.results)
                continue
            if not is_sum and _jax.jaxpr.collective_operation(each.eqn) is not None:
                return None
            others = [number for number in each.operands if number not in parts]
            facts = [self.compared.facts[number] for number in others if number in self.compared.facts]
            is_same = all(axes.isdisjoint(fact.varying | fact.due | fact.unreduced) for fact in facts)
            is_sum |= is_addend or (not is_equal and each.name in _ADDING and is_same)
            return each if is_sum else step
        return later[-1]

    def _is_equal(self, number: int) -> bool:
        """Whether a value comes of what is the same on all shards, and does not vary by their own indices."""
        return number not in self.local and number not in self.data_free and self.kind(number) == "blocks"

    def _is_of_shard(self, number: int) -> bool:
        """Whether a value is the same on all shards, and as large as a part is."""
        fact, found = self.compared.facts.get(number), self.agreement(number)
        if fact is None or found is None or found.kind not in ("blocks", "own"):
            return False
        return not self._longer(fact.varying | fact.due | fact.unreduced)

    def _meets_shards(self, number: int, later: Sequence[TracedStep]) -> bool:
        """Whether such a value is used with the shards of something else, and not with their own indices."""
        same = {number}
        for each in later:
            if same.isdisjoint(each.operands):
                continue
            if all(map(self._is_of_shard, each.results)):
                same.update(each.results)
                continue
            others = [n for n in each.operands if n not in same and n not in self.sized]
            return not self.data_free.issuperset(others)
        return False

    def _longer(self, axes: frozenset[str]) -> frozenset[str]:
        return frozenset(axis for axis in axes if self.compared.sizes.get(axis, 1) > 1)

    def _is_along_shards(self, step: TracedStep) -> bool:
        """Whether an operation mixes the entries of a dim that is sharded."""
        if step.name not in _ALONG or not step.operands or step.operands[0] not in self.compared.facts:
            return False
        dims = self.compared.facts[step.operands[0]].dims
        params = step.eqn.params
        along = params.get("axis", params.get("dimension", params.get("dimensions", params.get("axes"))))
        if step.name == "fft":
            along = range(len(dims) - len(params["fft_lengths"]), len(dims))
        if isinstance(along, int):
            along = [along]
        elif not isinstance(along, (tuple, list, range)):
            along = range(len(dims))
        return any(dims[at].axes is None or self._longer(frozenset(dims[at].known_axes)) for at in along)


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


_COMPARING = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])
_ADDING = frozenset(["add", "sub", "add_any"])
_ELEMENTWISE = frozenset(
    ["add", "sub", "mul", "div", "max", "min", "pow", "integer_pow", "exp", "log", "tanh", "neg", "select_n"]
)
_HANDED_ON = _jax.primitives.names_of("cast", "moving", "lookup")
_MOVES = frozenset(
    ["slice", "concatenate", "squeeze", "reshape", "transpose", "broadcast_in_dim", "rev", "pvary", "copy"]
)
_RETYPED = frozenset(["broadcast_in_dim", "convert_element_type", "copy", "pvary", "reshape", "squeeze", CLAIM])
_ALONG = frozenset(
    ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "argmax", "argmin", "fft", "rev", "top_k"]
)
