"""Operations in a row, and operations on unreduced values: every result is what the next one reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import strategies as st
from laws import EXAMPLES, MODES, Case, Given, Sizes, Step, check
from strategies import (
    Addends,
    Dim,
    Result,
    add_up,
    addends,
    arrow,
    batches,
    claimed,
    endings,
    finishes,
    given,
    integers,
    named_dims,
    parts_of,
    seeds,
    shape_of,
    text,
)
from test_laws_collectives import exchanged, gathered, shifted
from test_laws_contraction import looked_up
from test_laws_shapes import rearranged, reduced, repeated

from typedshmap import all_gather, all_to_all, ppermute, psum, rearrange, reduce, repeat

LINEAR = {
    "rearrange": rearranged,
    "repeat": repeated,
    "reduce": lambda sizes: reduced(sizes, ("sum",)),
    "all_gather": lambda sizes: gathered(sizes, ("",)),
    "all_to_all": exchanged,
    "ppermute": shifted,
    "take": looked_up,
}


def axes_used(case: Case, sizes: Sizes) -> set[str]:
    """The mesh axes that a case speaks of."""
    words = re.findall(r"\w+", str(case))
    return {axis for axis in sizes if any(axis in word.split("_") for word in words)}


def marked(pattern: str, marks: str) -> str:
    """A pattern with these marks on its first operand, and on its result."""
    left, arrow, right = pattern.partition(" -> ")
    first, comma, rest = left.partition(", ")
    return f"{first} {marks}{comma}{rest}" + (f"{arrow}{right} {marks}" if arrow else "")


@st.composite
def carried(draw: st.DrawFn, sizes: Sizes, family: str) -> Case:
    """An operation on an unreduced array, whose sums are taken at the end."""
    case = draw(LINEAR[family](sizes))
    partial = draw(addends(sizes, axes_used(case, sizes)))
    if not partial.axes or (case.steps[0].verb is ppermute and "axis" not in case.steps[0].options):
        return case
    argument, *others = case.given
    x = integers(draw(seeds), (partial.count, *argument.array.shape))
    x[-1] += argument.array - x.sum(0)
    gradient = np.broadcast_to(case.gradients[0], x.shape)
    return replace(
        case,
        given=(Given(x, (partial.axes, *argument.parts)), *others),
        steps=carrying(case, partial, family != "take" and draw(st.booleans())),  # JAX looks up no unreduced ids
        gradients=(gradient, *case.gradients[1:]),
    )


def carrying(case: Case, partial: Addends, are_claimed: bool) -> tuple[Step, ...]:
    """The steps of a case, the addends made before them and summed after them."""
    marks, count = str(Result((), partial.marks)), len(case.given)
    hint = [f"[_/{','.join(axes)}]" if axes else "_" for axes in case.given[0].parts]
    claims = [Step(claimed, (count,), (text((*hint, marks)),))] if are_claimed else []
    first = [Step(add_up, (0,)), *claims]
    moved = {0: count + len(first) - 1} | {at: at for at in range(1, count)}
    later = [
        replace(
            step,
            takes=tuple(moved.get(at, at + len(first)) for at in step.takes),
            arguments=(marked(step.arguments[0], marks), *step.arguments[1:]),
        )
        for step in case.steps
    ]
    dims = tuple(Dim(f"r{at}", 1, axes) for at, axes in enumerate(case.parts))
    last = Step(psum, (count + len(first) + len(later) - 1,), (arrow(Result(dims, partial.marks), text(dims)),))
    return (*first, *later, last)


Arrays = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Link:
    """One operation of a chain: its steps, its result, what it does to a global array, and to its gradient."""

    steps: tuple[Step, ...]
    dims: tuple[Dim, ...]
    forward: Arrays = field(default=lambda x: x)
    backward: Arrays = field(default=lambda weights: weights)


Dims = tuple[Dim, ...]


def step_of(verb: Any, at: int, dims: Dims, after: Any, *more: Any, **options: Any) -> Step:
    result = after if isinstance(after, Result) else text(after)
    return Step(verb, (at,), (arrow(text(dims), result), *more), options)


@st.composite
def permuted(draw: st.DrawFn, sizes: Sizes, dims: Dims, at: int) -> Link:
    order = draw(st.permutations(range(len(dims))))
    after = tuple(dims[place] for place in order)
    step = step_of(rearrange, at, dims, after)
    return Link((step,), after, lambda x: x.transpose(order), lambda w: w.transpose(np.argsort(order)))


@st.composite
def merged(draw: st.DrawFn, sizes: Sizes, dims: Dims, at: int) -> Link:
    """A dim and a whole one that follows it become one."""
    places = [p for p in range(len(dims) - 1) if not dims[p + 1].axes]
    if not places:
        return draw(permuted(sizes, dims, at))
    place = draw(st.sampled_from(places))
    one, two = dims[place : place + 2]
    pair = Dim(f"({one.name} {two.name})", one.size * two.size, one.axes)
    after = (*dims[:place], replace(pair, name=f"m{at}"), *dims[place + 2 :])
    step = step_of(rearrange, at, dims, (*dims[:place], pair, *dims[place + 2 :]))
    before, shape = shape_of(dims), shape_of(after)
    return Link((step,), after, lambda x: x.reshape(shape), lambda w: w.reshape(before))


@st.composite
def whole_again(draw: st.DrawFn, sizes: Sizes, dims: Dims, at: int) -> Link:
    sharded = [place for place, dim in enumerate(dims) if dim.axes]
    if not sharded:
        return draw(permuted(sizes, dims, at))
    place = draw(st.sampled_from(sharded))
    kept = dims[place].axes[: draw(st.integers(0, len(dims[place].axes) - 1))]
    after = (*dims[:place], replace(dims[place], axes=kept), *dims[place + 1 :])
    return Link((step_of(all_gather, at, dims, after),), after)


@st.composite
def swapped(draw: st.DrawFn, sizes: Sizes, dims: Dims, at: int) -> Link:
    """The minor axis of a dim goes to another."""

    def fits(start: Dim, end: Dim) -> bool:
        return bool(start.axes) and start is not end and end.size % shards((*end.axes, start.axes[-1]), sizes) == 0

    pairs = [(start, end) for start in dims for end in dims if fits(start, end)]
    if not pairs:
        return draw(permuted(sizes, dims, at))
    start, end = draw(st.sampled_from(pairs))
    changed = {start: replace(start, axes=start.axes[:-1]), end: replace(end, axes=(*end.axes, start.axes[-1]))}
    after = tuple(changed.get(dim, dim) for dim in dims)
    return Link((step_of(all_to_all, at, dims, after),), after)


def shards(axes: tuple[str, ...], sizes: Sizes) -> int:
    return prod(sizes[axis] for axis in axes)


@st.composite
def turned(draw: st.DrawFn, sizes: Sizes, dims: Dims, at: int) -> Link:
    sharded = [place for place, dim in enumerate(dims) if dim.axes]
    if not sharded:
        return draw(permuted(sizes, dims, at))
    place, shift = draw(st.sampled_from(sharded)), draw(st.integers(-3, 3))
    far = shift * (dims[place].size // shards(dims[place].axes, sizes))
    options = {"shift": shift, "axis": "_".join(dims[place].axes)}
    step = Step(ppermute, (at,), (text(dims),), options)
    return Link((step,), dims, lambda x: np.roll(x, far, place), lambda w: np.roll(w, -far, place))


@st.composite
def totalled(draw: st.DrawFn, sizes: Sizes, dims: Dims, at: int) -> Link:
    """A dim is summed, at once or in parts."""
    if len(dims) < 2:
        return draw(permuted(sizes, dims, at))
    place = draw(st.integers(0, len(dims) - 1))
    kept = (*dims[:place], *dims[place + 1 :])
    result = draw(endings(sizes, kept, dims[place].axes))
    steps, parts = draw(finishes(sizes, result, at + 1))
    after = tuple(replace(dim, axes=axes) for dim, axes in zip(kept, parts, strict=True))
    size = dims[place].size
    first = step_of(reduce, at, dims, result, "sum")
    return Link((first, *steps), after, lambda x: x.sum(place), lambda w: np.repeat(w[_new(place)], size, place))


def _new(place: int) -> tuple[Any, ...]:
    return (*(slice(None),) * place, None)


@st.composite
def spread(draw: st.DrawFn, sizes: Sizes, dims: Dims, at: int) -> Link:
    """A new dim, over axes that are free."""
    used = {axis for dim in dims for axis in dim.axes}
    axes = tuple(axis for axis in draw(st.permutations(tuple(sizes))) if axis not in used and draw(st.booleans()))
    new = Dim(f"n{at}", shards(axes, sizes) * draw(st.integers(1, 2)), axes)
    place = draw(st.integers(0, len(dims)))
    after = (*dims[:place], new, *dims[place:])
    step = step_of(repeat, at, dims, after, **{new.name: new.size})
    return Link((step,), after, lambda x: np.repeat(x[_new(place)], new.size, place), lambda w: w.sum(place))


LINKS = (permuted, merged, whole_again, swapped, turned, totalled, spread)


@st.composite
def chains(draw: st.DrawFn, sizes: Sizes) -> Case:
    dims = first = tuple(draw(named_dims(sizes, "abcd"[: draw(st.integers(1, 4))], 4)))
    links: list[Link] = []
    at = 0
    for link in draw(st.lists(st.sampled_from(LINKS), min_size=2, max_size=4)):
        links.append(draw(link(sizes, dims, at)))
        dims, at = links[-1].dims, at + len(links[-1].steps)
    rng = draw(seeds)
    x = value = integers(rng, shape_of(first))
    for link in links:
        value = link.forward(value)
    weights = gradient = integers(rng, value.shape)
    for link in reversed(links):
        gradient = link.backward(gradient)
    steps = tuple(step for link in links for step in link.steps)
    return Case((given(first, x),), steps, parts_of(dims), value, weights, (gradient,))


@forall(batches(chains), MODES)
@EXAMPLES
def test_operations_in_a_row_are_those_of_the_global_array(batch: Any, mode: str) -> None:
    check(*batch, mode)


@pytest.mark.sample(2)
@pytest.mark.parametrize("family", LINEAR)
@forall(st.data(), MODES)
@EXAMPLES
def test_a_sum_due_before_a_linear_operation_may_be_taken_after_it(family: str, data: st.DataObject, mode: str) -> None:
    check(*data.draw(batches(lambda sizes: carried(sizes, family))), mode)
