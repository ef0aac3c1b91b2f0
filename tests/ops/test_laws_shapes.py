"""``rearrange``, ``repeat`` and ``reduce`` of shards are einops of the global arrays, and so are their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import einops
import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st
from laws import EXAMPLES, MODES, Case, Sizes, Step, check, check_values, differentiated
from strategies import (
    Place,
    batches,
    endings,
    extents,
    finishes,
    given,
    integers,
    meshes,
    seeds,
    shape_of,
    splits,
    subsets,
    text,
)

from typedshmap import PatternError, pmax, pmin, psum, rearrange, reduce, repeat

# Means of shards that are added are meant here.
pytestmark = pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")


@dataclass(frozen=True)
class Factor:
    """A factor of a pattern: its name, its size, its mesh axes, and what is written for it.

    Where that is ``...``, the factor is several dims of the array.
    """

    name: str
    size: int
    axes: tuple[str, ...]
    written: str
    dots: tuple[int, ...] | None = None

    def is_full(self, sizes: Sizes) -> bool:
        """Whether it is split down to single elements."""
        return self.size == prod(sizes[axis] for axis in self.axes)


@dataclass(frozen=True)
class Sides:
    """Both sides of a pattern, as lists of merged dims."""

    left: list[list[Factor]]
    right: list[list[Factor]]

    @property
    def factors(self) -> list[Factor]:
        return list(dict.fromkeys(factor for group in (*self.left, *self.right) for factor in group))

    @property
    def lengths(self) -> dict[str, int]:
        return {factor.name: factor.size for factor in self.factors}

    @property
    def forward(self) -> str:
        """The pattern of the global arrays."""
        return f"{_names(self.left)} -> {_names(self.right)}"

    @property
    def backward(self) -> str:
        return f"{_names(self.right)} -> {_names(self.left)}"


def _names(groups: list[list[Factor]]) -> str:
    return " ".join(f"({' '.join(factor.name for factor in group)})" for group in groups)


def place_of(group: list[Factor], bare: bool) -> Place:
    """A merged dim as a pattern has it; a single factor stands in parentheses or bare."""
    written = " ".join(factor.written for factor in group)
    if len(group) == 1 and (bare or group[0].dots is not None):
        return Place(written, group[0].size, group[0].axes, group[0].dots)
    return Place(f"({written})", prod(f.size for f in group), tuple(axis for f in group for axis in f.axes))


@st.composite
def places(draw: st.DrawFn, groups: list[list[Factor]]) -> list[Place]:
    found = [place_of(group, draw(st.booleans())) for group in groups]
    for _ in range(draw(st.sampled_from((0, 0, 0, 1)))):
        found.insert(draw(st.integers(0, len(found))), Place("1", 1))
    return found


@st.composite
def factors(draw: st.DrawFn, sizes: Sizes, names: str) -> list[Factor]:
    axes = draw(splits(tuple(sizes), len(names)))
    made = zip(names, draw(extents(sizes, axes, 3)), axes, strict=True)
    return [Factor(name, size, own, name) for name, size, own in made]


def may_follow(factor: Factor, group: list[Factor], sizes: Sizes) -> bool:
    """Whether a merged dim has this factor next, and its axes show which factor each of them shards.

    An axis of size 1 may split any factor that another has split down to single elements.
    """
    are_told = all(not f.is_full(sizes) or all(sizes[axis] > 1 for axis in f.axes) for f in group)
    is_minor = all(f.is_full(sizes) for f in group) and all(sizes[axis] > 1 for axis in factor.axes)
    return are_told and (not factor.axes or is_minor)


@st.composite
def maybe_number(draw: st.DrawFn, factor: Factor) -> Factor:
    """A factor that stands on one side only may be written as its size."""
    return replace(factor, written=str(factor.size)) if factor.size > 1 and draw(st.booleans()) else factor


@st.composite
def grouped(draw: st.DrawFn, items: Sequence[Factor], sizes: Sizes) -> list[list[Factor]]:
    """Merged dims of them in some order; a dim is cut where a merge would interleave shards."""
    found: list[list[Factor]] = []
    for factor in draw(st.permutations(items)):
        if found and may_follow(factor, found[-1], sizes) and draw(st.booleans()):
            found[-1].append(factor)
        else:
            found.append([factor])
    return found


@st.composite
def with_dots(draw: st.DrawFn, sides: Sides) -> Sides:
    """The sides, with ``...`` for a dim of the operand that is whole and not merged: for none, one or two dims."""
    alone = [group[0] for group in sides.left if len(group) == 1]
    alone = [factor for factor in alone if not factor.axes and factor.name == factor.written]
    old = draw(st.sampled_from([*alone, None, None]))
    if old is None:
        return sides
    dots = draw(st.sampled_from([(old.size,), (old.size, 1), (1, old.size), *([()] if old.size == 1 else [])]))
    new = replace(old, written="...", dots=dots)

    def replaced(groups: list[list[Factor]]) -> list[list[Factor]]:
        return [[new if factor is old else factor for factor in group] for group in groups]

    return Sides(replaced(sides.left), replaced(sides.right))


@st.composite
def passed(draw: st.DrawFn, sides: Sides) -> dict[str, int]:
    """The sizes that are passed: all but one of every merged dim of the operand, and all new ones."""
    known = {f.name for group in sides.left for f in group}
    found = {f.name: f.size for f in sides.factors if f.name not in known}
    for group in sides.left:
        unknown = draw(st.sampled_from([*group, None])) if len(group) > 1 else group[0]
        found |= {f.name: f.size for f in group if f is not unknown}
    named = {f.name for f in sides.factors if f.name == f.written}
    return {name: size for name, size in found.items() if name in named}


@st.composite
def cases(
    draw: st.DrawFn, sizes: Sizes, verb: Any, sides: Sides, unreduced: Sequence[str] = (), how: str | None = None
) -> Case:
    """A case of one of the three verbs; of a reduction of that kind."""
    sides = draw(with_dots(sides))
    left, right = draw(places(sides.left)), draw(places(sides.right))
    result = draw(endings(sizes, right, unreduced, SIGNS[how], how in LINEAR))
    arguments = (f"{text(left)} -> {result}", *(() if how is None else (how,)))
    step = Step(verb, (0,), arguments, draw(passed(sides)))
    steps, parts = draw(finishes(sizes, result, 1, {"max": pmax, "min": pmin}.get(how, psum)))
    rng = draw(seeds)
    x = numbers(rng, how, shape_of(left))
    value = np.asarray(forward(verb, x, sides, how)).reshape(shape_of(result.places))
    weights = integers(rng, value.shape)
    has_gradient = how not in ("any", "all") and not (how in ("max", "min") and unreduced)
    gradients = (backward(verb, x, value, weights, sides, how).reshape(x.shape),) if has_gradient else ()
    tolerance = 1e-6 if how == "mean" else 0
    return Case((given(left, x),), (step, *steps), parts, value, weights, gradients, tolerance)


LINEAR = (None, "sum", "mean")
SIGNS = {None: "", "sum": "+~", "mean": "+~", "max": "~", "min": "~", "prod": "", "any": "", "all": ""}


def numbers(rng: np.random.Generator, how: str | None, shape: Sequence[int]) -> np.ndarray:
    """Numbers that a reduction reduces exactly: all different, powers of two, booleans, or small integers."""
    if how in ("max", "min"):
        return np.asarray(rng.permutation(prod(shape)).reshape(shape), np.float32)
    if how == "prod":
        x = rng.choice(np.array([-1, 1], np.float32), prod(shape))
        x[:20] *= 2
        return rng.permutation(x).reshape(shape)
    if how in ("any", "all"):
        return rng.random(tuple(shape)) < (0.1 if how == "any" else 0.9)
    return integers(rng, shape)


def forward(verb: Any, x: np.ndarray, sides: Sides, how: str | None) -> np.ndarray:
    x = x.reshape([prod(f.size for f in group) for group in sides.left])
    if how is not None:
        return einops.reduce(x, sides.forward, how, **sides.lengths)
    return einops.repeat(x, sides.forward, **sides.lengths)


def backward(
    verb: Any, x: np.ndarray, value: np.ndarray, weights: np.ndarray, sides: Sides, how: str | None
) -> np.ndarray:
    """The gradient of a weighted sum of the result."""
    shape = [prod(f.size for f in group) for group in sides.right]
    if how is None:
        return einops.reduce(weights.reshape(shape), sides.backward, "sum", **sides.lengths)
    both = [einops.repeat(array.reshape(shape), sides.backward, **sides.lengths) for array in (value, weights)]
    values, spread = (array.reshape(x.shape) for array in both)
    match how:
        case "mean":
            return spread * weights.size / x.size
        case "prod":
            return spread * values / x
        case "max" | "min":
            return spread * (values == x)
        case _:
            return spread


@st.composite
def rearranged(draw: st.DrawFn, sizes: Sizes) -> Case:
    items = draw(factors(sizes, "abcd"[: draw(st.integers(1, 4))]))
    sides = Sides(draw(grouped(items, sizes)), draw(grouped(items, sizes)))
    return draw(cases(sizes, rearrange, sides))


@st.composite
def repeated(draw: st.DrawFn, sizes: Sizes) -> Case:
    """New dims may be sharded over axes that are not used yet, and may be numbers."""
    names = "abcdef"[: draw(st.integers(1, 5))]
    items = draw(factors(sizes, names))
    count = draw(st.integers(0, len(items)))
    old, new = items[:count], [draw(maybe_number(factor)) for factor in items[count:]]
    left, right = draw(grouped(old, sizes)), draw(grouped([*old, *new], sizes))
    alone = [[f] for group in right for f in group if f in new and f.axes]
    right = [kept for group in right if (kept := [f for f in group if f in old or not f.axes])]
    return draw(cases(sizes, repeat, Sides(left, draw(st.permutations([*right, *alone])))))


@st.composite
def reduced(
    draw: st.DrawFn, sizes: Sizes, hows: Sequence[str] = ("sum", "mean", "prod"), keeps_sharded: bool = False
) -> Case:
    items = draw(factors(sizes, "abcd"[: draw(st.integers(1, 4))]))
    chosen = draw(subsets(items))
    kept = [factor for factor in items if factor in chosen or (keeps_sharded and factor.axes)]
    items = [factor if factor in kept else draw(maybe_number(factor)) for factor in items]
    unreduced = [axis for f in items if f not in kept for axis in f.axes]
    sides = Sides(draw(grouped(items, sizes)), draw(grouped(kept, sizes)))
    return draw(cases(sizes, reduce, sides, unreduced, draw(st.sampled_from(hows))))


@st.composite
def extreme(draw: st.DrawFn, sizes: Sizes) -> Case:
    """A reduction that is no sum, over dims that may be sharded."""
    return replace(draw(reduced(sizes, ("max", "min", "any", "all"))), gradients=())


def extreme_of_whole_dims(sizes: Sizes) -> st.SearchStrategy[Case]:
    """The largest or the smallest over dims that are not sharded."""
    return reduced(sizes, ("max", "min"), True)


def extreme_of_shards(sizes: Sizes) -> st.SearchStrategy[Case]:
    """The largest or the smallest over dims some of which are sharded."""
    return reduced(sizes, ("max", "min")).filter(lambda case: not case.gradients)


@forall(batches(rearranged), MODES)
@EXAMPLES
def test_rearrange_is_that_of_the_global_array(batch: Any, mode: str) -> None:
    check(*batch, mode)


@forall(batches(repeated), MODES)
@EXAMPLES
def test_repeat_is_that_of_the_global_array(batch: Any, mode: str) -> None:
    check(*batch, mode)


@forall(batches(reduced), MODES)
@EXAMPLES
def test_sums_means_and_products_are_those_of_the_global_array(batch: Any, mode: str) -> None:
    check(*batch, mode)


@forall(batches(extreme), st.booleans())
@EXAMPLES
def test_other_reductions_are_those_of_the_global_array(batch: Any, check_vma: bool) -> None:
    check_values(*batch, check_vma)


@forall(batches(extreme_of_whole_dims), MODES)
@EXAMPLES
def test_the_largest_over_unsharded_dims_has_the_gradient_of_the_global_array(batch: Any, mode: str) -> None:
    check(*batch, mode)


@forall(meshes().flatmap(lambda sizes: st.tuples(st.just(sizes), extreme_of_shards(sizes))), MODES)
@settings(EXAMPLES, max_examples=settings.default.max_examples // 2)
def test_the_largest_over_sharded_dims_is_not_differentiated(drawn: Any, mode: str) -> None:
    sizes, case = drawn
    with pytest.raises(PatternError, match="has no derivative"):
        differentiated(sizes, [case], mode)
