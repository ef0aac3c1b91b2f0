"""What the collectives move and sum is what the global arrays say, and so are their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import strategies as st
from laws import EXAMPLES, MODES, Case, Parts, Sizes, Step, check, check_values
from strategies import (
    Addends,
    Dim,
    Result,
    add_up,
    addends,
    arrow,
    batches,
    claimed,
    finishes,
    given,
    integers,
    named_dims,
    parts_of,
    seeds,
    shape_of,
    text,
)

from typedshmap import all_gather, all_to_all, einsum, pmax, pmean, pmin, ppermute, psum
from typedshmap._jax.versions import HAS_MANUAL_TYPES

# The programs are about other things, and do not all mean something.
pytestmark = pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")

NAMES = "abcd"


@st.composite
def sharded_dims(draw: st.DrawFn, sizes: Sizes, least: int = 1) -> list[Dim]:
    """Dims one of which at least is sharded."""
    names = NAMES[: draw(st.integers(least, 4))]
    dims = draw(named_dims(sizes, names, 4, draw(st.booleans())))
    return dims if any(dim.axes for dim in dims) else draw(named_dims(sizes, names, 4, False))


# Gathers


@st.composite
def gathered(draw: st.DrawFn, sizes: Sizes, marks: Sequence[str] = ("", "-", "~")) -> Case:
    """Minor axes of some dims go, each with a mark of its own."""
    dims = draw(sharded_dims(sizes))
    must = draw(st.sampled_from([dim for dim in dims if dim.axes]))
    kept = [replace(d, axes=d.axes[: draw(st.integers(0, len(d.axes) - (d is must)))]) for d in dims]
    gone = [axis for dim, after in zip(dims, kept, strict=True) for axis in dim.axes[len(after.axes) :]]
    if not HAS_MANUAL_TYPES and len(gone) > 1:  # jax 0.9 gathers nothing more of what is typed as reduced
        marks = [mark for mark in marks if mark != "-"]
    signs = {axis: draw(st.sampled_from(marks)) for axis in gone}
    for dim in dims:
        for major, minor in combinations((axis for axis in dim.axes if axis in signs), 2):
            if signs[major] == "" and signs[minor] == "-":  # JAX cannot differentiate that
                signs[minor] = ""
    result = Result(tuple(kept), {axis: sign for axis, sign in signs.items() if sign})
    step = Step(all_gather, (0,), (arrow(text(dims), result),))
    return draw(used(sizes, dims, step, result))


@st.composite
def used(draw: st.DrawFn, sizes: Sizes, dims: Sequence[Dim], step: Step, result: Result) -> Case:
    """A gather; where it left a mark, its result is multiplied by an array that is split over those axes."""
    rng = draw(seeds)
    x = integers(rng, shape_of(dims))
    if not result.marks:
        weights = integers(rng, x.shape)
        return Case((given(dims, x),), (step,), parts_of(result.places), x, weights, (weights,))
    axes = tuple(draw(st.permutations(list(result.marks))))
    other = Dim("k", prod(sizes[axis] for axis in axes) * draw(st.integers(1, 2)), axes)
    made = (other, *result.places)
    y = integers(rng, (other.size,))
    after = Step(einsum, (2, 1), (arrow(result, other, text(made)),))
    weights = integers(rng, (other.size, *x.shape))
    gradients = (np.tensordot(y, weights, 1), (weights * x).reshape(other.size, -1).sum(1))
    both = (given(dims, x), given([other], y))
    return Case(both, (step, after), parts_of(made), np.multiply.outer(y, x), weights, gradients)


# Sums


@st.composite
def unreduced_dims(draw: st.DrawFn, sizes: Sizes, signs: str = "+~") -> tuple[list[Dim], Addends]:
    """Dims of an array that is unreduced over one axis at least."""
    dims = draw(named_dims(sizes, NAMES[: draw(st.integers(0, 3))], 4))
    must = draw(st.sampled_from(tuple(sizes)))
    dims = [replace(dim, axes=tuple(axis for axis in dim.axes if axis != must)) for dim in dims]
    partial = draw(addends(sizes, [must, *(axis for dim in dims for axis in dim.axes)], signs))
    count = partial.count * sizes[must]
    return dims, Addends((*partial.axes, must), (*partial.signs, draw(st.sampled_from(signs))), count)


@st.composite
def summed(draw: st.DrawFn, sizes: Sizes, verb: Callable[..., Any] = psum) -> Case:
    """Addends, known as such by a pattern only or by a claim, too, are summed at once or in parts."""
    dims, partial = draw(unreduced_dims(sizes))
    result = Result(tuple(dims), partial.marks)
    hint = Result(tuple(replace(dim, name="_") for dim in dims), partial.marks)
    stated = (Step(claimed, (1,), (str(hint),)),) if draw(st.booleans()) else ()
    steps, parts = draw(finishes(sizes, result, 1 + len(stated), verb))
    rng = draw(seeds)
    x = integers(rng, (partial.count, *shape_of(dims)))
    shards = prod(sizes[axis] for axis in partial.axes) if verb is pmean else 1
    value = x.sum(0) / shards
    weights = integers(rng, value.shape)
    gradient = np.broadcast_to(weights / shards, x.shape)
    argument = given([Dim("z", partial.count, partial.axes), *dims], x)
    every = (Step(add_up, (0,)), *stated, *steps)
    return Case((argument,), every, parts, value, weights, (gradient,), 1e-6 if shards > 1 else 0)


def averaged(sizes: Sizes) -> st.SearchStrategy[Case]:
    return summed(sizes, pmean)


@st.composite
def extremes(draw: st.DrawFn, sizes: Sizes) -> Case:
    dims, partial = draw(unreduced_dims(sizes, "~"))
    verb = draw(st.sampled_from((pmax, pmin)))
    steps, parts = draw(finishes(sizes, Result(tuple(dims), partial.marks), 1, verb))
    rng = draw(seeds)
    x = rng.integers(-99, 99, (partial.count, *shape_of(dims))).astype(np.float32)
    name = "max" if verb is pmax else "min"
    value = getattr(x, name)(0)
    argument = given([Dim("z", partial.count, partial.axes), *dims], x)
    return Case((argument,), (Step(extreme_of, (0,), (name,)), *steps), parts, value, value)


def extreme_of(x: Any, name: str) -> Any:
    """The largest or the smallest over the first dim, by each shard for itself."""
    return getattr(x, name)(0)


def over_tree(x: Any, y: Any, verb: Callable[..., Any], axes: Any) -> Any:
    """Both through a pytree, and as one array again."""
    tree = verb({"x": x, "more": [y]}, axes)
    return tree["x"] + 2 * tree["more"][0]


@st.composite
def trees(draw: st.DrawFn, sizes: Sizes) -> Case:
    """Leaves that are unreduced over the same axes."""
    dims, partial = draw(unreduced_dims(sizes))
    verb = draw(st.sampled_from((psum, pmean)))
    axes = tuple(draw(st.permutations(partial.axes)))
    rng = draw(seeds)
    x, y = (integers(rng, (partial.count, *shape_of(dims))) for _ in range(2))
    shards = prod(sizes[axis] for axis in axes) if verb is pmean else 1
    value = (x.sum(0) + 2 * y.sum(0)) / shards
    weights = integers(rng, value.shape)
    gradient = np.broadcast_to(weights / shards, x.shape)
    placed = [Dim("z", partial.count, partial.axes), *dims]
    last = Step(over_tree, (2, 3), (verb, axes if len(axes) > 1 else axes[0]))
    steps = (Step(add_up, (0,)), Step(add_up, (1,)), last)
    tolerance = 1e-6 if shards > 1 else 0
    both = (given(placed, x), given(placed, y))
    return Case(both, steps, parts_of(dims), value, weights, (gradient, 2 * gradient), tolerance)


# Moves


@st.composite
def exchanged(draw: st.DrawFn, sizes: Sizes) -> Case:
    """Minor axes of some dims move to the minor end of others."""
    dims = draw(sharded_dims(sizes, 2))
    must = draw(st.sampled_from([dim for dim in dims if dim.axes]))
    order = [must, *draw(st.permutations([dim for dim in dims if dim is not must]))]
    after = {dim.name: dim for dim in dims}
    for start, end in zip(order[::2], order[1::2], strict=False):
        moving = start.axes[draw(st.integers(0, max(len(start.axes) - 1, 0))) :]
        after[start.name] = replace(start, axes=start.axes[: len(start.axes) - len(moving)])
        room = prod(sizes[axis] for axis in moving)
        dims = [replace(dim, size=dim.size * room) if dim.name == end.name else dim for dim in dims]
        after[end.name] = replace(end, axes=(*end.axes, *moving))
    step = Step(all_to_all, (0,), (arrow(text(dims), text(after[dim.name] for dim in dims)),))
    rng = draw(seeds)
    x = integers(rng, shape_of(dims))
    weights = integers(rng, x.shape)
    parts = tuple(after[dim.name].axes for dim in dims)
    return Case((given(dims, x),), (step,), parts, x, weights, (weights,))


def rolled(x: np.ndarray, at: int, axes: Sequence[str], along: Sequence[str], sizes: Sizes, shift: int) -> np.ndarray:
    """A global array whose shards along some of the axes that split a dim went ``shift`` places further."""
    split = [sizes[axis] for axis in axes]
    blocks = np.moveaxis(x, at, 0).reshape(*split, x.shape[at] // prod(split), *np.delete(x.shape, at))
    front = np.moveaxis(blocks, [axes.index(axis) for axis in along], range(len(along)))
    ring = front.reshape(prod(sizes[axis] for axis in along), -1)
    moved = np.roll(ring, shift, 0).reshape(front.shape)
    back = np.moveaxis(moved, range(len(along)), [axes.index(axis) for axis in along])
    return np.moveaxis(back.reshape(x.shape[at], *np.delete(x.shape, at)), 0, at)


@st.composite
def shifted(draw: st.DrawFn, sizes: Sizes) -> Case:
    """Shards of one dim go round, along all its axes, one of them, or some in any order."""
    dims = draw(sharded_dims(sizes))
    at = draw(st.sampled_from([place for place, dim in enumerate(dims) if dim.axes]))
    axes = dims[at].axes
    along = tuple(draw(st.permutations(axes)))[: draw(st.integers(1, len(axes)))]
    options: dict[str, Any] = {"shift": draw(st.integers(-9, 9)), "axis": "_".join(along)}
    if sum(bool(dim.axes) for dim in dims) == 1 and draw(st.booleans()):
        along = axes
        del options["axis"]
    rng = draw(seeds)
    x = integers(rng, shape_of(dims))
    weights = integers(rng, x.shape)
    value = rolled(x, at, axes, along, sizes, options["shift"])
    gradient = rolled(weights, at, axes, along, sizes, -options["shift"])
    step = Step(ppermute, (0,), (text(dims),), options)
    return Case((given(dims, x),), (step,), parts_of(dims), value, weights, (gradient,))


def stacked(x: Any) -> Any:
    """With a first dim, along which the values of the shards stand."""
    return x[None]


@st.composite
def shifted_values(draw: st.DrawFn, sizes: Sizes) -> Case:
    """Values that vary over an axis and are shards of no dim go round."""
    axis = draw(st.sampled_from(tuple(sizes)))
    dims = [replace(d, axes=tuple(a for a in d.axes if a != axis)) for d in draw(named_dims(sizes, "ab", 3))]
    shift, count = draw(st.integers(-9, 9)), sizes[axis]
    step = Step(ppermute, (1,), (str(Result(tuple(dims), {axis: "~"})),), {"shift": shift, "axis": axis})
    rng = draw(seeds)
    x = integers(rng, (2 * count, *shape_of(dims)))
    value = np.roll(x.reshape(count, 2, *x.shape[1:]).sum(1), shift, 0)
    weights = integers(rng, value.shape)
    gradient = np.repeat(np.roll(weights, -shift, 0), 2, 0)
    parts: Parts = ((axis,), *parts_of(dims))
    argument = given([Dim("z", 2 * count, (axis,)), *dims], x)
    steps = (Step(add_up, (0,)), step, Step(stacked, (2,)))
    return Case((argument,), steps, parts, value, weights, (gradient,))


FAMILIES = {
    "all_gather": gathered,
    "psum and psum_scatter": summed,
    "pmean": averaged,
    "psum and pmean of pytrees": trees,
    "all_to_all": exchanged,
    "ppermute": shifted,
    "ppermute of values": shifted_values,
}


@pytest.mark.parametrize("family", FAMILIES)
@forall(st.data(), MODES)
@EXAMPLES
def test_what_is_moved_and_summed_is_the_global_array(family: str, data: st.DataObject, mode: str) -> None:
    check(*data.draw(batches(FAMILIES[family])), mode)


@forall(batches(extremes), st.booleans())
@EXAMPLES
def test_the_largest_of_the_shards_is_that_of_the_global_array(batch: Any, check_vma: bool) -> None:
    check_values(*batch, check_vma)
