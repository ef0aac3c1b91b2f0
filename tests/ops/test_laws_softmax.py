"""``logsumexp`` and ``softmax`` of shards are those of the global arrays, and so are their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given as forall
from hypothesis import strategies as st
from laws import EXAMPLES, MODES, Case, Sizes, Step, check
from strategies import arrow, batches, given, integers, named_dims, parts_of, seeds, shape_of, subsets, text

from typedshmap import logsumexp, softmax


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


@forall(batches(added), MODES)
@EXAMPLES
def test_logsumexp_is_that_of_the_global_array(batch: Any, mode: str) -> None:
    check(*batch, mode)


@forall(batches(shared), MODES)
@EXAMPLES
def test_softmax_is_that_of_the_global_array(batch: Any, mode: str) -> None:
    check(*batch, mode)
