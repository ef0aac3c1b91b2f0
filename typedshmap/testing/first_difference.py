"""Find the first line whose global value differs between a mesh and one device, although its operands agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import jax

from .. import _jax
from .._jax.primitives import primitive
from .replay import ComparedValues, Opened, Run
from .steps import Label, SteppedProgram, TracedStep
from .substitution import ChangedResult, first_substitution

_MOST_NESTED = 3


@dataclass(frozen=True)
class FirstDifference:
    """The step where results begin to differ.

    Attributes:
      step: the step.
      comparison: the comparison of all values.
      loop: the enclosing loop with another length than on one device, if any; its values are not compared.
      instead: a replacement for its result that makes all results right, in words; empty if none is known.
    """

    step: TracedStep
    comparison: ComparedValues
    loop: TracedStep | None = None
    instead: str = ""

    @property
    def result(self) -> int:
        """The index of its first result that is known to differ from one device; 0 if none is."""
        kinds = [self.comparison.agreement(number).kind for number in self.step.results]
        return next((at for at, kind in enumerate(kinds) if kind in ("nearly", "differs", "own")), 0)

    @property
    def iteration(self) -> int | None:
        """The iteration of the innermost enclosing loop, from 0 on."""
        around = {step.label for step in self.comparison.program.steps if step.is_loop}
        label = self.step.label
        while label and label[:-2] not in around:
            label = label[:-2]
        return label[-2] if label else None


def first_difference(on_one: Run, on_mesh: Run, wrong: Sequence[int]) -> FirstDifference | None:
    """The first difference in the computation of a result that differs; None if it is not found."""
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
    return FirstDifference(step, compared, loop)


def numbers_behind(numbers: Iterable[int], operands: Callable[[int], Iterable[int]]) -> set[int]:
    """Some values and all values that they depend on, given the operands of each value."""
    behind, waiting = set[int](), [*numbers]
    while waiting:
        number = waiting.pop()
        if number not in behind:
            behind.add(number)
            waiting += operands(number)
    return behind


class Slice:
    """The wrong values on which a wrong result depends.

    Attributes:
      compared: the comparison of all values.
      results: the wrong results; the slice is that of the first of them.
      steps: the steps whose results are not right, in order.
    """

    def __init__(self, compared: ComparedValues, wrong: Sequence[int]) -> None:
        self.compared, self.program, self.types = compared, compared.program, compared.program.types
        self.results = [self.program.results[at] for at in wrong]
        self._maker = {number: step for step in self.program.steps for number in step.results}
        # Values computed from only indices of shards, sizes and literals; from only sizes and literals; and along the
        # sharded dim of a shard's part.
        self._data_free, self._sized, self._local = set[int](), {*self.program.constants}, set[int]()
        for step in self.program.steps:
            # A sum over shards is not a size, even if it sums the cotangent 1 of a loss.
            is_summed = _jax.jaxpr.collective_operation(step.eqn) and any(map(self._is_inexact, step.results))
            if not is_summed and self._data_free.union(self._sized).issuperset(step.operands):
                self._data_free.update(step.results)
            if not is_summed and step.operands and self._sized.issuperset(step.operands):
                self._sized.update(step.results)
            if self._has_order_of_shards(step) or not self._local.isdisjoint(step.operands):
                self._local.update(number for number in step.results if self.kind(number) not in ("global", "reduced"))
        self.steps = self._behind(self.results[:1], self._wrong_operands)

    def _wrong_operands(self, step: TracedStep) -> list[int]:
        wrong = [number for number in step.operands if not self.is_right(number)]
        return wrong + self.program.opened_results.get(step.label, [])

    def _behind(self, numbers: Iterable[int], operands: Callable[[TracedStep], Iterable[int]]) -> list[TracedStep]:
        """The steps on which some values depend through some operands, in order."""

        def before(number: int) -> Iterable[int]:
            step = self.made_by(number)
            return () if step is None else [*operands(step), step.results[0]]

        behind = numbers_behind(numbers, before)
        return [step for step in self.program.steps if not behind.isdisjoint(step.results)]

    def equations(self) -> list[list[TracedStep]]:
        """The equations in regions on which the wrong results depend, each with its steps in all iterations."""
        is_nested = lambda step: step.is_loop or step.is_choice  # noqa: E731
        equations = defaultdict[Label, list[TracedStep]](list)
        for step in self._behind(self.results, lambda step: () if is_nested(step) else step.operands):
            if not is_nested(step) and step.frames and step.region is not None:
                equations[without_iterations(step.label)].append(step)
        return [*equations.values()]

    def places(
        self, equations: Sequence[Sequence[TracedStep]], last: Label, loop: TracedStep | None
    ) -> list[ChangedResult]:
        """The results of equations, up to the last, whose replacement may make the wrong results right.

        In a loop of another length than on one device only indices and masks are replaced, since a value at the same
        place there may be another value.
        """
        places = list[ChangedResult]()
        for steps in (steps for steps in equations if is_up_to(steps[0].label, last)):
            first = steps[0]
            for numbers in zip(*(step.results for step in steps), strict=True):
                dtype = self.types[numbers[0]].dtype
                if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
                    continue
                is_index = not self._data_free.isdisjoint(numbers) and not _jax.array.is_inexact(dtype)
                is_index = is_index and primitive(first.name).kind not in ("cast", "moving")
                sources = [self.compared.sources.get(number, [])[:1] for number in numbers]
                is_compared = all(sources) and (loop is None or not is_in(first.label, loop.label))
                if not is_compared or not (is_index or any(map(self._may_be_wrong, numbers))):
                    sources = []
                if sources or is_index or first.name == "ppermute":
                    places.append(ChangedResult(steps, numbers, is_index, [source for (source,) in sources]))
        return places

    def _may_be_wrong(self, number: int) -> bool:
        """Whether a value may be wrong on the shards, and not just a part, an addend, or temporarily a shard's own."""
        if number in self._local or number in self._data_free:
            return False
        agreement = self.compared.agreement(number)
        is_wrong = agreement.kind in ("nearly", "differs", "own", "blocks")
        return is_wrong or any(len(axes) > 1 for axes in agreement.dim_axes)

    def made_by(self, number: int) -> TracedStep | None:
        """The step that makes a value, in any region."""
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
        """Whether a value is known to be wrong: nearly right, or computed by shards from right values."""
        kind, step = self.kind(number), self._maker.get(number)
        if number in self._data_free:
            return False
        if kind == "own":
            return step is not None and self._is_of_shards(step)
        return kind == "nearly" or (kind == "differs" and number not in self._local)

    def _is_of_shards(self, step: TracedStep) -> bool:
        """Whether a step computes entry by entry, from right shards or from values that are the same on all shards."""
        others = [number for number in step.operands if not self.is_right(number)]
        operation, is_equal = primitive(step.name), all(self.kind(number) == "blocks" for number in others)
        if not operation.is_entry_by_entry or operation.kind == "cast" or not is_equal:
            return False
        if not (self._local | self._data_free).isdisjoint(others):
            return False
        shape = self.types[step.results[0]].shape
        layouts = [
            self.compared.agreement(number).dim_axes
            for number in step.operands
            if number not in self._sized and self.types[number].shape == shape and number not in others
        ]
        return self._is_inexact(step.results[0]) and len({*layouts}) == 1 and any(layouts[0])

    def culprit(self) -> TracedStep | None:
        """The step that made the result wrong: the first with wrong results from right operands; else the last step."""
        written = [step for step in self.steps if step.frames]
        closed = [step for step in written if step.label not in self.program.opened_results]
        for at, step in enumerate(closed):
            results = [number for number in step.results if number not in self._data_free]
            is_own_loop = step.is_loop and "own" in map(self.kind, results)
            if is_own_loop or any(map(self._is_certain, results)):
                return step
            if not all(self.is_right(number) or number in self._data_free for number in step.operands):
                continue
            if _jax.jaxpr.collective_operation(step.eqn) in ("all-reduce", "all-to-all", "reduce-scatter"):
                return step
            is_partial = any(self.kind(number) == "reduced" and self._is_inexact(number) for number in results)
            if is_partial and (blamed := self._blamed(step, closed[at + 1 :])) is not None:
                return blamed
        return written[-1] if written else None

    def _blamed(self, step: TracedStep, later: Sequence[TracedStep]) -> TracedStep | None:
        """The step that adds an invarying value to a partial sum, or sums it wrongly; else the step that made the sum.

        None if the shards exchange the parts: they may be combined correctly.
        """
        parts, are_added = {*step.results}, False
        ways = dict(pair for number in parts for pair in self.compared.agreement(number).reduced)
        for user in (user for user in later if not parts.isdisjoint(user.operands)):
            operation, is_sum = _jax.jaxpr.collective_operation(user.eqn), primitive(user.name).kind == "sum"
            if operation == "all-reduce":  # in a gradient it is JAX's
                return step if _jax.jaxpr.is_transposed(user.eqn) else user
            if "reduced" not in map(self.kind, user.results):
                if operation is not None:
                    return None
                is_same = all(self._is_same_over({*ways}, n) for n in user.operands if n not in parts)
                is_misplaced = is_sum and is_same and "scaled" not in ways.values()
                return user if is_misplaced or are_added else step
            are_added = are_added or (is_sum and all(self.kind(number) == "reduced" for number in user.operands))
            parts.update(user.results)
        return step

    def _is_same_over(self, axes: set[str], number: int) -> bool:
        """Whether a value is right, and the same on all shards of some axes."""
        return self.is_right(number) and all(map(axes.isdisjoint, self.compared.agreement(number).dim_axes))

    def within(self, loop: TracedStep) -> TracedStep | None:
        """The last step in the body of a loop on which a wrong result of the loop depends, and no right result.

        Among several wrong results, the one that depends on the fewest steps is used. The mistake is at the last of
        these steps or before it; more is unknown, since one device has no such iterations.
        """
        after = [number for step in self.steps if step.label > loop.label for number in step.results]
        if loop.name != "scan" or "nearly" in map(self.kind, after):
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
            if kind == "blocks":  # blocks that did not come all the way round: the loop may be too short
                return None
            if kind in ("own", "nearly", "differs"):
                wrong.append(steps_before(inside))
            elif outside in used and kind in ("global", "reduced"):
                right |= steps_before(inside)
        least = min((steps - right for steps in wrong if steps - right), key=len, default=set[Label]())
        kinds = ("cast", "moving", "lookup")  # which pass on wrong values
        steps = [step for step in body.steps if step.label in least and step.frames]
        return next((step for step in reversed(steps) if primitive(step.name).kind not in kinds), None)

    def _has_order_of_shards(self, step: TracedStep) -> bool:
        """Whether an operation depends on the order of the entries of a sharded operand."""
        operation = primitive(step.name)
        has_order = operation.kind == "ordering" or operation.has_order
        return has_order and any(self.compared.agreement(step.operands[0]).dim_axes)


def without_iterations(label: Label) -> Label:
    """The label of an equation without its iterations."""
    return (*label[:1], *label[1::2])


def is_up_to(label: Label, last: Label) -> bool:
    """Whether an equation is not after another equation, or is inside it."""
    label, last = without_iterations(label), without_iterations(last)
    return label[: len(last)] <= last


def is_in(label: Label, loop: Label) -> bool:
    """Whether an equation is in a loop."""
    return label[: len(loop)] == loop
