"""Run a plan: its steps on one shard, as one linear operation of JAX, whose gradient is a reshard too.

It is a primitive, the identity of global arrays, since the transposes of a plan's steps are not the cheapest way back,
and since a function with a gradient of its own (``jax.custom_vjp``) cannot be differentiated forwards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from math import prod
from typing import Any

import jax
import numpy as np

from ... import _jax
from ...hints.context import SizedAxes
from ...notation.layout import Layout
from ..factor_sharding import scatter_value
from ..operation import MeshAxes, shard_count
from .plan import AxisSizes, DimAxes, Plan, axis_strides, plan_steps


def run(x: Any, planned: Plan, has_vma: bool) -> Any:
    """Run a plan.

    Args:
      x: one shard, in a manual region; it varies over the axes over which it is unreduced.
      planned: the plan.
      has_vma: whether JAX types values as varying here, that is, False under ``check_vma=False``.

    Returns:
      The shard of the same global array in the plan's target.
    """
    source, target, shape = planned.source, planned.target, planned.shape
    if has_vma:
        x = _jax.casts.pcast_varying(_jax.casts.drop_reduced(x), source.sharded)
    aboard = _jax.array.manual_type(x).varying - source.sharded - source.unreduced - target.sharded
    sizes = tuple((axis, size) for axis, size in planned.sizes if axis not in aboard)
    # Over axes of size 1 nothing moves, but the layout changes, which the analysis of the body has to see.
    if source == target and not plan_steps(source, target, shape, sizes):
        return x
    _jax.casts.refuse_unreduced(x)
    return _primitive().bind(x, source=source, target=target, shape=shape, sizes=sizes, has_vma=has_vma, lead=0)


@cache
def _primitive() -> Any:
    from jax.interpreters import ad, batching, mlir

    primitive = _jax.versions.extend_core().Primitive("reshard_shards")  # jax.reshard is called "reshard"

    def batch(args: Any, dims: Any, *, lead: int, **task: Any) -> Any:
        (x,), (dim,) = args, dims
        return primitive.bind(jax.numpy.moveaxis(x, dim, 0), lead=lead + 1, **task), 0

    primitive.def_abstract_eval(lambda x, **task: jax.make_jaxpr(partial(_run_planned, **task))(x).out_avals[0])
    mlir.register_lowering(primitive, mlir.lower_fun(_run_planned, multiple_results=False))
    ad.deflinear2(primitive, _transpose)
    batching.primitive_batchers[primitive] = batch
    return primitive


def _run_planned(
    x: Any, *, source: Layout, target: Layout, shape: Any, sizes: SizedAxes, has_vma: bool, lead: int
) -> Any:
    """Run the steps of a plan, one after the other; ``lead`` dims of ``x`` come before those that the steps know."""
    known = dict(sizes)
    for step in plan_steps(source, target, shape, sizes):
        before, after, axes = step.before.dim_axes, step.after.dim_axes, step.axes
        dims = [lead + dim for dim in step.dims]
        gone = {lead + dim: before[dim][len(after[dim]) :] for dim in step.dims}
        new = {lead + dim: after[dim][len(before[dim]) :] for dim in step.dims}
        match step.kind:
            case "slice":
                for dim in dims:
                    x = _block(x, dim, new[dim], known)
            case "all_gather":
                x = _jax.casts.all_gather(x, axes, dims[0], "invarying", has_vma)
            case "all_to_all":
                # Along a new first dim, of one entry per device; what it is made of and becomes is local.
                x = jax.lax.all_to_all(_split_out(x, new, axes, known), axes, 0, 0, tiled=True)
                x = _merge_back(x, gone, axes, known)
            case "ppermute":
                # JAX counts the devices of several axes in the order of the mesh, whatever their order here.
                ordered = tuple(axis for axis in _jax.mesh.context_mesh().axis_names if axis in axes)
                x = jax.lax.ppermute(x, ordered, permutation(before, after, ordered, known))
            case "psum":
                x = jax.lax.psum(_jax.casts.pcast_unreduced_all(x, axes, has_vma), axes)
            case _:
                x = scatter_value(x, axes, dims[0], has_vma)
    return x


def _transpose(cotangent: Any, x: Any, *, source: Layout, target: Layout, has_vma: bool, **task: Any) -> Any:
    """The cotangent, resharded back and given the value's manual type.

    Every addend of a sum that was taken gets all of it.
    """
    if not has_vma:
        # Here a cotangent is one addend per device, and the transpose of each step is the cheapest one.
        forward = partial(_run_planned, source=source, target=target, has_vma=has_vma, **task)
        return jax.linear_transpose(forward, x.aval)(cotangent)
    kind, kept = _jax.array.manual_type_in(x.aval), target.unreduced
    back = {"source": Layout(target.dim_axes, kept), "target": Layout(source.dim_axes, kept)}
    if plan_steps(**back, shape=task["shape"], sizes=task["sizes"]):
        cotangent = _primitive().bind(cotangent, **back, has_vma=has_vma, **task)
    # A value typed as varying over an axis over which it is the same has one addend per device for a cotangent. Here
    # every device has all of it, so that the first keeps it, and the others get zeros.
    for axis in sorted(kind.varying & target.sharded - source.sharded - source.unreduced):
        cotangent = jax.numpy.where(jax.lax.axis_index(axis) == 0, cotangent, jax.numpy.zeros_like(cotangent))
    # Before jax 0.10.2 the cotangent of an unreduced value has to be typed reduced here.
    for to, axes in (("varying", kind.varying), ("reduced", kind.reduced | (kind.unreduced - kept))):
        missing = tuple(sorted(axes - getattr(_jax.array.manual_type(cotangent), to)))
        cotangent = jax.lax.pcast(cotangent, missing, to=to) if missing else cotangent
    return [cotangent]


def _block(x: Any, dim: int, axes: MeshAxes, sizes: AxisSizes) -> Any:
    """This device's block of a dim."""
    shards, index = shard_count(axes, sizes), jax.numpy.int32(0)
    for axis in axes:
        index = index * sizes[axis] + jax.lax.axis_index(axis)
    size = x.shape[dim] // shards
    if not _jax.array.manual_type(x).unreduced:
        return jax.lax.dynamic_slice_in_dim(x, index * size, size, dim)
    # JAX has no dynamic_slice of unreduced values, but it can choose among static ones.
    x = _jax.casts.pcast_varying(x, axes)
    blocks = (jax.lax.slice_in_dim(x, i * size, (i + 1) * size, axis=dim) for i in range(shards))
    return jax.lax.select_n(index, *blocks)


def _split_out(x: Any, dims: Mapping[int, MeshAxes], axes: MeshAxes, sizes: AxisSizes) -> Any:
    """Make a first dim out of the major parts of others: one part per axis, in the order of ``axes``."""
    shape, places = list[int](), dict[str, int]()
    for dim, size in enumerate(x.shape):
        for axis in dims.get(dim, ()):
            places[axis] = len(shape)
            shape.append(sizes[axis])
        shape.append(size // shard_count(dims.get(dim, ()), sizes))
    rest = [place for place in range(len(shape)) if place not in places.values()]
    x = x.reshape(shape).transpose([*(places[axis] for axis in axes), *rest])
    return x.reshape(shard_count(places, sizes), *(shape[place] for place in rest))


def _merge_back(x: Any, dims: Mapping[int, MeshAxes], axes: MeshAxes, sizes: AxisSizes) -> Any:
    """The inverse of ``_split_out``."""
    x = x.reshape(*(sizes[axis] for axis in axes), *x.shape[1:])
    groups = [[*map(axes.index, dims.get(dim, ())), len(axes) + dim] for dim in range(x.ndim - len(axes))]
    shape = [prod(x.shape[place] for place in group) for group in groups]
    return x.transpose([place for group in groups for place in group]).reshape(shape)


def permutation(before: DimAxes, after: DimAxes, axes: MeshAxes, sizes: AxisSizes) -> list[tuple[int, int]]:
    """The pairs of a ppermute, sender and receiver, every device once as each.

    A device that holds the block it needs keeps it.

    Args:
      before: per dim its axes, before.
      after: per dim its axes, after.
      axes: the axes that change their meaning, in the order in which the collective counts devices.
      sizes: the axes' sizes.
    """
    have, needed = _blocks(before, axes, sizes), _blocks(after, axes, sizes)
    senders: dict[tuple[int, ...], list[int]] = {}
    for device, block in enumerate(have):
        if block != needed[device]:
            senders.setdefault(block, []).append(device)
    return [(device if have[device] == block else senders[block].pop(), device) for device, block in enumerate(needed)]


def _blocks(dim_axes: DimAxes, axes: MeshAxes, sizes: AxisSizes) -> list[tuple[int, ...]]:
    """Per device the block it holds, as far as these axes decide it."""
    places = np.indices([sizes[axis] for axis in axes]).reshape(len(axes), -1)
    blocks = np.zeros((len(dim_axes), places.shape[1]), int)
    for axis, (dim, stride) in axis_strides(dim_axes, sizes).items():
        if axis in axes:
            blocks[dim] += places[axes.index(axis)] * stride
    return list(map(tuple, blocks.T.tolist()))
