"""Run a plan's steps on one shard, inside a manual region."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from math import prod
from typing import Any

import jax

from ... import _jax
from .partition import Sizes, ways
from .permutation import permutation
from .plans import Step


def run_steps(x: Any, steps: Iterable[Step], sizes: Sizes, lead: int, typed: bool) -> Any:
    """Run steps, one after the other.

    Args:
      x: one shard.
      steps: what to do.
      sizes: the mesh axes' sizes.
      lead: how many dims of ``x`` come before those that the steps know.
      typed: whether JAX types values as varying here.
    """
    for step in steps:
        x = _KINDS[step.kind](x, step, sizes, lead, typed)
    return x


def _slice(x: Any, step: Step, sizes: Sizes, lead: int, typed: bool) -> Any:
    for dim in step.dims:
        x = _block(x, lead + dim, _added(step, dim), sizes)
    return x


def _block(x: Any, dim: int, axes: tuple[str, ...], sizes: Sizes) -> Any:
    """This device's block of a dim."""
    shards, index = ways(axes, sizes), jax.numpy.int32(0)
    for axis in axes:
        index = index * sizes[axis] + jax.lax.axis_index(axis)
    size = x.shape[dim] // shards
    if not _jax.manual_type(x).unreduced:
        return jax.lax.dynamic_slice_in_dim(x, index * size, size, dim)
    # JAX has no dynamic_slice of unreduced values, but it can choose among static ones.
    x = _jax.vary(x, axes)
    return jax.lax.select_n(
        index, *(jax.lax.slice_in_dim(x, i * size, (i + 1) * size, axis=dim) for i in range(shards))
    )


def _all_gather(x: Any, step: Step, sizes: Sizes, lead: int, typed: bool) -> Any:
    (dim,) = step.dims
    return _jax.all_gather(x, step.axes, lead + dim, "invarying", typed)


def _all_to_all(x: Any, step: Step, sizes: Sizes, lead: int, typed: bool) -> Any:
    """Exchange along a new first dim, of one entry per device; what it is made of and becomes is local."""
    gone = {lead + dim: _lost(step, dim) for dim in step.dims}
    new = {lead + dim: _added(step, dim) for dim in step.dims}
    x = _split(x, new, step.axes, sizes)
    x = jax.lax.all_to_all(x, step.axes, 0, 0, tiled=True)
    return _merge(x, gone, step.axes, sizes)


def _split(x: Any, dims: Mapping[int, tuple[str, ...]], axes: tuple[str, ...], sizes: Sizes) -> Any:
    """Make a first dim out of the major parts of others: one part per axis, in the order of ``axes``."""
    order = [axis for dim in sorted(dims) for axis in dims[dim]]
    shape, places = list[int](), dict[str, int]()
    for dim, size in enumerate(x.shape):
        for axis in dims.get(dim, ()):
            places[axis] = len(shape)
            shape.append(sizes[axis])
        shape.append(size // ways(dims.get(dim, ()), sizes))
    rest = [place for place in range(len(shape)) if place not in places.values()]
    x = x.reshape(shape).transpose([*(places[axis] for axis in axes), *rest])
    return x.reshape(ways(tuple(order), sizes), *(shape[place] for place in rest))


def _merge(x: Any, dims: Mapping[int, tuple[str, ...]], axes: tuple[str, ...], sizes: Sizes) -> Any:
    """The inverse of ``_split``."""
    x = x.reshape(*(sizes[axis] for axis in axes), *x.shape[1:])
    groups = [[*map(axes.index, dims.get(dim, ())), len(axes) + dim] for dim in range(x.ndim - len(axes))]
    shape = [prod(x.shape[place] for place in group) for group in groups]
    return x.transpose(list(chain.from_iterable(groups))).reshape(shape)


def _ppermute(x: Any, step: Step, sizes: Sizes, lead: int, typed: bool) -> Any:
    # JAX counts the devices of several axes in the order of the mesh, whatever their order here.
    axes = tuple(axis for axis in _jax.context_mesh().axis_names if axis in step.axes)
    return jax.lax.ppermute(x, axes, permutation(step.before.parts, step.after.parts, axes, sizes))


def _psum(x: Any, step: Step, sizes: Sizes, lead: int, typed: bool) -> Any:
    return jax.lax.psum(_jax.owe(x, step.axes, typed), step.axes)


def _psum_scatter(x: Any, step: Step, sizes: Sizes, lead: int, typed: bool) -> Any:
    (dim,) = step.dims
    x = _jax.owe(x, step.axes, typed)
    return jax.lax.psum_scatter(x, step.axes, scatter_dimension=lead + dim, tiled=True)


_KINDS: dict[str, Callable[[Any, Step, Sizes, int, bool], Any]] = {
    "slice": _slice,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "psum": _psum,
    "psum_scatter": _psum_scatter,
}


def _added(step: Step, dim: int) -> tuple[str, ...]:
    """The axes that a dim has afterwards and had not before."""
    return step.after.parts[dim][len(step.before.parts[dim]) :]


def _lost(step: Step, dim: int) -> tuple[str, ...]:
    """The axes that a dim had before and has not afterwards."""
    return step.before.parts[dim][len(step.after.parts[dim]) :]
