"""Hypothesis strategies for meshes, for dims that are sharded over them, and for what becomes of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from laws import Case, Given, Parts, Sizes, Step

from typedshmap import check, psum, psum_scatter

AXES = ("dp", "tp", "sp")
SHAPES = tuple(shape for n in (1, 2, 3) for shape in product((1, 2, 3, 4), repeat=n) if prod(shape) <= 8)
WIDE = tuple(shape for shape in SHAPES if sum(size > 1 for size in shape) > 1)


@st.composite
def meshes(draw: st.DrawFn) -> dict[str, int]:
    """One to three mesh axes in any order, with their sizes; mostly, two have several shards."""
    shape = draw(st.sampled_from(draw(st.sampled_from((WIDE, WIDE, SHAPES)))))
    return dict(zip(draw(st.permutations(AXES)), shape, strict=False))


# Cases of one program, which take longer to compile than to draw.
LEAST = min(16, settings.default.max_examples)


def batches(case: Callable[[Sizes], st.SearchStrategy[Case]]) -> st.SearchStrategy[Any]:
    """A mesh, and a list of cases on it."""
    some = {"min_size": LEAST, "max_size": LEAST + 4}
    return meshes().flatmap(lambda sizes: st.tuples(st.just(sizes), st.lists(case(sizes), **some)))


@dataclass(frozen=True)
class Dim:
    """A dim with its name, its global size and its mesh axes."""

    name: str
    size: int
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"[{self.name}/{','.join(self.axes)}]" if self.axes else self.name

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,)


@dataclass(frozen=True)
class Place:
    """A merged dim: its text without brackets, its global size and its mesh axes; or ``...``, for some whole dims."""

    inner: str
    size: int
    axes: tuple[str, ...] = ()
    dots: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"[{self.inner}/{','.join(self.axes)}]" if self.axes else self.inner

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,) if self.dots is None else self.dots


def text(dims: Iterable[object]) -> str:
    return " ".join(map(str, dims))


def parts_of(dims: Iterable[Dim | Place]) -> Parts:
    return tuple(dim.axes for dim in dims for _ in dim.shape)


def shape_of(dims: Iterable[Dim | Place]) -> tuple[int, ...]:
    return tuple(size for dim in dims for size in dim.shape)


def arrow(*sides: object) -> str:
    return f"{', '.join(map(str, sides[:-1]))} -> {sides[-1]}"


@st.composite
def splits(draw: st.DrawFn, axes: Sequence[str], count: int, idle: bool = True) -> list[tuple[str, ...]]:
    """Every mesh axis on one of the dims, or (if it may be idle) on none; several on one dim in any order."""
    found: list[tuple[str, ...]] = [()] * count
    for axis in draw(st.permutations(axes)):
        at = draw(st.integers(0, count if idle else count - 1))
        if at < count:
            found[at] += (axis,)
    return found


@st.composite
def extents(draw: st.DrawFn, sizes: Sizes, axes: Sequence[tuple[str, ...]], most: int = 4) -> list[int]:
    """Sizes that these axes divide; one of them, or none, is wide enough to be scattered over all others."""
    wide = draw(st.integers(0, len(axes)))
    whole = prod(sizes.values())
    least = [whole if at == wide else prod(sizes[axis] for axis in own) for at, own in enumerate(axes)]
    return [size * draw(st.integers(1, most)) for size in least]


@st.composite
def named_dims(draw: st.DrawFn, sizes: Sizes, names: Sequence[str], most: int = 4, idle: bool = True) -> list[Dim]:
    """Dims of these names, of sizes that their axes divide."""
    axes = draw(splits(tuple(sizes), len(names), idle))
    return [Dim(*each) for each in zip(names, draw(extents(sizes, axes, most)), axes, strict=True)]


seeds = st.integers(0, 2**16).map(np.random.default_rng)


def integers(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Small integers as floats: sums and products of them are exact."""
    return np.asarray(rng.integers(-3, 4, tuple(shape)), np.float32)


@st.composite
def subsets(draw: st.DrawFn, items: Sequence[Any]) -> list[Any]:
    """Some of them, in their order."""
    return [item for item in items if draw(st.booleans())]


@dataclass(frozen=True)
class Result:
    """The right side of a pattern.

    Attributes:
      places: its dims.
      marks: per mesh axis ``+`` or ``~``.
    """

    places: tuple[Dim | Place, ...]
    marks: Mapping[str, str]

    def __str__(self) -> str:
        return text((*self.places, *(f"{sign}{axis}" for axis, sign in self.marks.items())))


def is_dots(place: Dim | Place) -> bool:
    return isinstance(place, Place) and place.dots is not None


@st.composite
def endings(
    draw: st.DrawFn,
    sizes: Sizes,
    places: Sequence[Any],
    unreduced: Sequence[str],
    signs: str = "+~",
    scatters: bool = True,
) -> Result:
    """What becomes of partial sums: each is taken, scattered, left unreduced or left varying.

    Often all are scattered along one dim, since the order of several axes is what goes wrong.
    """
    places, marks, order = list(places), dict[str, str](), draw(st.permutations(sorted(unreduced)))
    named = [at for at, place in enumerate(places) if scatters and not is_dots(place)]
    roomy = [at for at in named if places[at].size % prod(sizes[a] for a in (*places[at].axes, *unreduced)) == 0]
    if len(order) > 1 and roomy and draw(st.booleans()):
        at = draw(st.sampled_from(roomy))
        places[at] = replace(places[at], axes=(*places[at].axes, *order))
        return Result(tuple(places), marks)
    for axis in order:
        fate = draw(st.sampled_from(("", *signs, *named)))
        if isinstance(fate, str):
            marks |= {axis: fate} if fate else {}
        elif places[fate].size % prod(sizes[a] for a in (*places[fate].axes, axis)) == 0:
            places[fate] = replace(places[fate], axes=(*places[fate].axes, axis))
    return Result(tuple(places), marks)


def renamed(place: Dim | Place, at: int) -> Dim | Place:
    """A merged dim by one name, as it is read after it was merged."""
    return replace(place, inner=f"r{at}") if isinstance(place, Place) and not is_dots(place) else place


@st.composite
def finishes(
    draw: st.DrawFn, sizes: Sizes, result: Result, at: int, verb: Callable[..., Any] = psum
) -> tuple[tuple[Step, ...], Parts]:
    """Steps that take the sums over which a result is still unreduced, by psum or scattered, in one call or several.

    Args:
      at: where among all values the result stands.
      verb: what takes them; what takes no sum does not scatter it.
    """
    steps: list[Step] = []
    result = Result(tuple(renamed(place, at) for at, place in enumerate(result.places)), result.marks)
    while result.marks:
        taken = draw(subsets(list(result.marks))) or list(result.marks)
        kept = {axis: sign for axis, sign in result.marks.items() if axis not in taken}
        after = Result(draw(endings(sizes, result.places, taken, "", verb is psum)).places, kept)
        step = verb if after.places == result.places else psum_scatter
        steps.append(Step(step, (at + len(steps),), (arrow(result, after),)))
        result = after
    return tuple(steps), parts_of(result.places)


@dataclass(frozen=True)
class Addends:
    """How an operand becomes unreduced: its array has one more dim, which every shard adds up for itself."""

    axes: tuple[str, ...]
    signs: tuple[str, ...]
    count: int

    @property
    def marks(self) -> dict[str, str]:
        return dict(zip(self.axes, self.signs, strict=True))


def add_up(x: Any) -> Any:
    """The sum over the first dim, by each shard for itself."""
    return x.sum(0)


def claimed(value: Any, hint: str) -> Any:
    """The value at the type of a hint: addends that vary become unreduced."""
    return check(value, hint)


@st.composite
def addends(draw: st.DrawFn, sizes: Sizes, used: Iterable[str], signs: str = "+~") -> Addends:
    """Owed over some of the axes that are not used otherwise."""
    free = [axis for axis in draw(st.permutations(tuple(sizes))) if axis not in set(used)]
    axes = tuple(draw(subsets(free)))
    count = prod(sizes[axis] for axis in axes) * draw(st.integers(1, 2))
    return Addends(axes, tuple(draw(st.sampled_from(signs)) for _ in axes), count)


def given(dims: Sequence[Any], array: np.ndarray) -> Given:
    return Given(array, parts_of(dims))
