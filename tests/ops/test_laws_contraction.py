"""Products, lookups, softmax and logsumexp of shards are those of the global arrays, and so are their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from hypothesis import given as forall
from hypothesis import strategies as st
from laws import EXAMPLES, MODES, Case, Sizes, Step, check
from strategies import (
    Addends,
    Dim,
    Result,
    add_up,
    addends,
    arrow,
    batches,
    endings,
    finishes,
    given,
    integers,
    named_dims,
    parts_of,
    seeds,
    shape_of,
    subsets,
    text,
)

from typedshmap import einsum, logsumexp, softmax, take


def product_of(operands: Sequence[tuple[Sequence[str], np.ndarray]], result: Sequence[str]) -> np.ndarray:
    """An einsum over named dims; a name may stand twice in an operand."""
    letters = {name: at for at, name in enumerate(dict.fromkeys(n for names, _ in operands for n in names))}
    pairs = [item for names, x in operands for item in (x.astype(np.float64), [letters[n] for n in names])]
    return np.einsum(*pairs, [letters[n] for n in result])


def gradient_of(
    operands: Sequence[tuple[Sequence[str], np.ndarray]], at: int, result: Sequence[str], weights: np.ndarray
) -> np.ndarray:
    """The gradient of a weighted sum of an einsum with respect to one operand."""
    names, x = operands[at]
    fresh = (f"{n}'" for n in count())
    spread: list[tuple[Sequence[str], np.ndarray]] = [
        ((name,), np.ones(size)) for name, size in zip(names, x.shape, strict=True)
    ]
    found = list(names)
    for place, name in enumerate(names):
        if name in names[:place]:  # a diagonal, where the gradient is
            found[place] = next(fresh)
            spread.append(((name, found[place]), np.eye(x.shape[place])))
    others = [operand for other, operand in enumerate(operands) if other != at]
    return product_of([*others, (result, weights), *spread], found)


@dataclass(frozen=True)
class Factor:
    """An operand of a product: its dims, the first of them perhaps written ``...``, and where it is unreduced."""

    dims: tuple[Dim, ...]
    dots: int
    partial: Addends

    def __str__(self) -> str:
        return written(self.dims, self.dots, self.partial.marks)

    @property
    def names(self) -> list[str]:
        return [dim.name for dim in self.dims]


def written(dims: Sequence[Any], dots: int, marks: Any) -> str:
    return str(Result((*(("...",) if dots else ()), *dims[dots:]), marks))


def shaped(factor: Factor) -> list[Dim]:
    """The dims of the argument: one more in front, where the operand is unreduced."""
    more = [Dim("z", factor.partial.count, factor.partial.axes)] if factor.partial.axes else []
    return [*more, *factor.dims]


@st.composite
def operands_of(draw: st.DrawFn, dims: Sequence[Dim], dots: Sequence[Dim]) -> tuple[Dim, ...]:
    """Some of the dims, in some order; one that is whole may stand twice."""
    found = draw(subsets(draw(st.permutations(dims))))
    twice = [dim for dim in found if not dim.axes and dim.size > 1]
    if twice and draw(st.integers(0, 5)) == 0:
        found.append(draw(st.sampled_from(twice)))
    return (*dots, *found)


@st.composite
def multiplied(draw: st.DrawFn, sizes: Sizes, most_dots: int = 2) -> Case:
    """One to three operands, one of which may be unreduced; any may be used twice."""
    dims = draw(named_dims(sizes, "abcde"[: draw(st.integers(1, 5))], 2))
    count = draw(st.integers(0, most_dots))
    dots = [Dim("y", draw(st.integers(1, 3))), Dim("z", draw(st.integers(1, 3)))][:count]
    factors, used = [], [axis for dim in dims for axis in dim.axes]
    for at in range(draw(st.integers(1, 3))):
        own = draw(st.sampled_from((0, len(dots)))) if at else len(dots)
        partial = draw(addends(sizes, used)) if draw(st.integers(0, 3)) == 0 else Addends((), (), 1)
        used += partial.axes
        factors.append(Factor(draw(operands_of(dims, dots[len(dots) - own :])), own, partial))
    if draw(st.integers(0, 4)) == 0 and not factors[0].partial.axes:
        factors.append(factors[0])
    return draw(product_cases(sizes, factors, len(dots)))


@st.composite
def product_cases(draw: st.DrawFn, sizes: Sizes, factors: list[Factor], dots: int) -> Case:
    """The case of a product of these operands."""
    known = list(dict.fromkeys(dim for factor in factors for dim in factor.dims[factor.dots :]))
    kept = draw(subsets(draw(st.permutations(known))))
    gone = [axis for dim in known if dim not in kept for axis in dim.axes]
    partial = [axis for factor in factors for axis, sign in factor.partial.marks.items() if sign == "+"]
    loose = {axis: sign for factor in factors for axis, sign in factor.partial.marks.items() if sign == "~"}
    result = draw(endings(sizes, kept, [*gone, *partial]))
    result = Result(result.places, {**result.marks, **loose})
    front = tuple(factors[0].dims[:dots])
    pattern = arrow(*factors, written((*front, *result.places), dots, result.marks))
    return draw(run_of(sizes, factors, pattern, Result((*front, *result.places), result.marks)))


@st.composite
def run_of(draw: st.DrawFn, sizes: Sizes, factors: list[Factor], pattern: str, result: Result) -> Case:
    rng, alone = draw(seeds), list(dict.fromkeys(factors))
    args = [given(shaped(factor), integers(rng, shape_of(shaped(factor)))) for factor in alone]
    sums = [at for at, factor in enumerate(alone) if factor.partial.axes]
    takes = [len(alone) + sums.index(alone.index(f)) if f.partial.axes else alone.index(f) for f in factors]
    steps = [Step(add_up, (at,)) for at in sums] + [Step(einsum, tuple(takes), (pattern,))]
    after, parts = draw(finishes(sizes, result, len(alone) + len(steps) - 1))
    arrays = [x.array.sum(0) if factor.partial.axes else x.array for factor, x in zip(alone, args, strict=True)]
    operands = [(factor.names, arrays[alone.index(factor)]) for factor in factors]
    names = [dim.name for dim in result.places]
    value = product_of(operands, names)
    weights = integers(rng, value.shape)
    gradients = [np.zeros(x.shape) for x in arrays]
    for at, factor in enumerate(factors):
        gradients[alone.index(factor)] += gradient_of(operands, at, names, weights)
    whole = tuple(np.broadcast_to(g, x.array.shape) for g, x in zip(gradients, args, strict=True))
    return Case(tuple(args), (*steps, *after), parts, value, weights, whole)


@st.composite
def looked_up(draw: st.DrawFn, sizes: Sizes) -> Case:
    """Ids of any integer type, some of which are negative or too large; dims of both operands are batched."""
    names = ["v", *"abcdef"[: draw(st.integers(0, 4))]]
    dims = draw(named_dims(sizes, names, 2))
    roles = {dim.name: draw(st.sampled_from(("table", "ids", "both"))) for dim in dims[1:]}
    of_table = [d for d in draw(st.permutations(dims)) if roles.get(d.name, "table") != "ids"]
    of_ids = [d for d in draw(st.permutations(dims[1:])) if roles[d.name] != "table"]
    result = draw(endings(sizes, draw(st.permutations(dims[1:])), dims[0].axes))
    step = Step(take, (0, 1), (arrow(text(of_table), text(of_ids), result),))
    steps, parts = draw(finishes(sizes, result, 2))
    rng = draw(seeds)
    table = integers(rng, shape_of(of_table))
    dtype = draw(st.sampled_from((np.int8, np.int16, np.int32, np.uint8, np.uint32)))
    low = -2 if np.issubdtype(dtype, np.signedinteger) else 0
    ids = rng.integers(low, dims[0].size + 2, shape_of(of_ids)).astype(dtype)
    chosen = (ids[..., None] == np.arange(dims[0].size)).astype(np.float64)
    operands = [([d.name for d in of_table], table), ([*(d.name for d in of_ids), "v"], chosen)]
    order = [d.name for d in result.places]
    value = product_of(operands, order)
    weights = integers(rng, value.shape)
    gradient = gradient_of(operands, 0, order, weights)
    return Case((given(of_table, table), given(of_ids, ids)), (step, *steps), parts, value, weights, (gradient, None))


@st.composite
def scores(draw: st.DrawFn, shape: Sequence[int], gone: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers small or large, some of them minus infinity, but one at least of those that are summed; and weights."""
    rng = draw(seeds)
    x = rng.normal(scale=draw(st.sampled_from((1, 30))), size=tuple(shape)).astype(np.float32)
    masked = rng.random(x.shape) < draw(st.sampled_from((0, 0.3)))
    masked[tuple(0 if at in gone else slice(None) for at in range(x.ndim))] = False
    return np.where(masked, np.float32(-np.inf), x), rng


def normalised(x: np.ndarray, dims: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The logarithm of the sum of exponentials, and what each is of that sum."""
    x = x.astype(np.float64)
    top = x.max(dims, keepdims=True)
    total = np.exp(x - top).sum(dims, keepdims=True)
    return np.log(total) + top, np.exp(x - top) / total


@st.composite
def added(draw: st.DrawFn, sizes: Sizes) -> Case:
    dims = draw(named_dims(sizes, "abcd"[: draw(st.integers(1, 4))], 4))
    kept = draw(subsets(draw(st.permutations(dims))))
    gone = tuple(at for at, dim in enumerate(dims) if dim not in kept)
    x, rng = draw(scores(shape_of(dims), gone))
    log, shares = normalised(x, gone)
    order = [dim for dim in dims if dim in kept]
    value = log.squeeze(gone).transpose([order.index(dim) for dim in kept])
    weights = integers(rng, value.shape)
    back = np.expand_dims(weights.transpose([kept.index(dim) for dim in order]), gone)
    step = Step(logsumexp, (0,), (arrow(text(dims), text(kept)),))
    return Case((given(dims, x),), (step,), parts_of(kept), value, weights, (back * shares,), 2e-5)


@st.composite
def shared(draw: st.DrawFn, sizes: Sizes) -> Case:
    dims = draw(named_dims(sizes, "abcd"[: draw(st.integers(1, 4))], 4))
    chosen = draw(subsets(dims)) or dims[:1]
    over = tuple(dims.index(dim) for dim in chosen)
    x, rng = draw(scores(shape_of(dims), over))
    value = normalised(x, over)[1]
    weights = integers(rng, value.shape)
    gradient = value * (weights - (weights * value).sum(over, keepdims=True))
    names = " ".join(dim.name for dim in draw(st.permutations(chosen)))
    step = Step(softmax, (0,), (text(dims), names))
    return Case((given(dims, x),), (step,), parts_of(dims), value, weights, (gradient,), 2e-5)


@forall(batches(multiplied), MODES)
@EXAMPLES
def test_einsum_is_that_of_the_global_arrays(batch: Any, mode: str) -> None:
    check(*batch, mode)


@forall(batches(looked_up), MODES)
@EXAMPLES
def test_take_is_that_of_the_global_table(batch: Any, mode: str) -> None:
    check(*batch, mode)


@forall(batches(added), MODES)
@EXAMPLES
def test_logsumexp_is_that_of_the_global_array(batch: Any, mode: str) -> None:
    check(*batch, mode)


@forall(batches(shared), MODES)
@EXAMPLES
def test_softmax_is_that_of_the_global_array(batch: Any, mode: str) -> None:
    check(*batch, mode)
