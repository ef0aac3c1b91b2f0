"""Run a plan, as one linear primitive of JAX, whose transpose is a reshard too."""

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
from ..operation import MeshAxes, shard_count
from .pieces import AxisSizes, Piece, rounds, shard_shape
from .plan import Plan, Step, known_plan


def run(x: Any, planned: Plan, has_vma: bool) -> Any:
    """Run a plan on one shard, which varies over the axes over which it is unreduced."""
    source, target = planned.source, planned.target
    if has_vma:
        x = _jax.casts.pcast_varying(_jax.casts.drop_reduced(x), source.sharded)
    if source == target:
        return x
    _jax.casts.refuse_unreduced(x)
    if aboard := _jax.array.manual_type(x).varying - source.sharded - source.unreduced - target.sharded:
        sizes = tuple((axis, size) for axis, size in planned.sizes if axis not in aboard)
        planned = known_plan(source, target, planned.shape, sizes)
    return _bind(x, planned, has_vma, 0)


def _bind(x: Any, planned: Plan, has_vma: bool, lead: int) -> Any:
    task = {"source": planned.source, "target": planned.target, "shape": planned.shape, "sizes": planned.sizes}
    return _primitive().bind(x, **task, has_vma=has_vma, lead=lead, awaited=planned.awaited)


@cache
def _primitive() -> Any:
    from jax.interpreters import ad, batching, mlir

    primitive = _jax.versions.extend_core().Primitive("reshard_shards")  # jax.reshard is called "reshard"

    def batch(args: Any, dims: Any, *, lead: int, **task: Any) -> Any:
        (x,), (dim,) = args, dims
        return primitive.bind(jax.numpy.moveaxis(x, dim, 0), lead=lead + 1, **task), 0

    def lower(context: Any, x: Any, **task: Any) -> Any:
        (aval,) = context.avals_in
        return mlir.lower_fun(_run_steps, multiple_results=False)(context.replace(avals_in=[_varying(aval)]), x, **task)

    primitive.def_abstract_eval(_result_type)
    mlir.register_lowering(primitive, lower)
    ad.deflinear2(primitive, _transpose)
    batching.primitive_batchers[primitive] = batch
    return primitive


def _varying(x: Any) -> Any:
    """An unreduced value typed as varying, which JAX can move."""
    kind = _jax.array.manual_type_in(x)
    return _jax.array.retyped(x, x.shape, kind.varying | kind.unreduced, frozenset()) if kind.unreduced else x


def _result_type(x: Any, *, source: Layout, target: Layout, shape: Any, sizes: SizedAxes, **how: Any) -> Any:
    """Type the result as invarying over all axes over which it is not sharded, for any steps."""
    known = dict(sizes)
    after = (*x.shape[: how["lead"]], *shard_shape(target.dim_axes, shape, known))
    if not how["has_vma"]:
        return x.update(shape=after)
    kind = _jax.array.manual_type_in(x)
    gone = (source.sharded - target.sharded) | (source.unreduced - target.unreduced)
    added = {axis for axis in target.sharded if known[axis] > 1}
    return _jax.array.retyped(x, after, kind.varying - gone | added, kind.unreduced - gone)


def _run_steps(
    x: Any, *, source: Layout, target: Layout, shape: Any, sizes: SizedAxes, has_vma: bool, lead: int, **_: Any
) -> Any:
    known = dict(sizes)
    x = _jax.casts.pcast_varying(x, known) if has_vma else x
    if not x.size:
        return x.reshape(*x.shape[:lead], *shard_shape(target.dim_axes, shape, known))
    for step in known_plan(source, target, shape, sizes).steps:
        before, after, axes = step.before.dim_axes, step.after.dim_axes, step.axes
        gone = {lead + dim: before[dim][len(after[dim]) :] for dim in step.dims}
        new = {lead + dim: after[dim][len(before[dim]) :] for dim in step.dims}
        # Collectives work along a new first dim, where the part of each device is contiguous.
        match step.kind:
            case "slice":
                for dim, some in new.items():
                    x = _block(x, dim, some, known)
            case "all_gather":
                # JAX gathers random keys only tiled.
                x = _merge_back(jax.lax.all_gather(jax.lax.expand_dims(x, (0,)), axes, tiled=True), gone, axes, known)
            case "all_to_all":
                x = jax.lax.all_to_all(_split_out(x, new, axes, known), axes, 0, 0, tiled=True)
                x = _merge_back(x, gone, axes, known)
            case "ppermute":
                x = _send_pieces(x, step, known)
            case "psum":
                x = jax.lax.psum(x, axes)
            case _:
                x = jax.lax.psum_scatter(_split_out(x, new, axes, known), axes)
    return x


def _send_pieces(x: Any, step: Step, sizes: AxisSizes) -> Any:
    """Send every device the missing pieces of its block, each in a ppermute."""
    # JAX counts the devices of several axes in the order of the mesh, regardless of their order here.
    axes = tuple(axis for axis in _jax.mesh.context_mesh().axis_names if axis in step.axes)
    lead = x.shape[: x.ndim - len(step.piece)]
    piece, after = (*lead, *step.piece), (*lead, *step.shard_after)
    device, result = jax.lax.axis_index(axes), jax.lax.full(after, 0, x.dtype)
    for pairs, sent, received in rounds(step.before.dim_axes, step.after.dim_axes, axes, tuple(sizes.items())):
        part = x if x.shape == piece else jax.lax.dynamic_slice(x, _corner(sent, device, piece), piece)
        part = jax.lax.ppermute(part, axes, pairs) if pairs else part
        if piece == after:
            return part
        result = jax.lax.dynamic_update_slice(result, part, _corner(received, device, piece))
    return result


def _corner(places: tuple[Piece, ...], device: Any, piece: tuple[int, ...]) -> list[Any]:
    by_dim = np.array(places, np.int32).T
    lead = len(piece) - len(by_dim)
    corners = (at * size for at, size in zip(by_dim, piece[lead:], strict=True))
    return [np.int32(0)] * lead + [at[0] if (at == at[0]).all() else _entry(at, device) for at in corners]


def _entry(table: np.ndarray[Any, Any], index: Any) -> Any:
    return jax.lax.squeeze(jax.lax.dynamic_slice(table, (index,), (1,)), (0,))


def _transpose(cotangent: Any, x: Any, *, awaited: Any, **task: Any) -> Any:
    """The cotangent, resharded back; every addend of a sum gets all of it."""
    if not task["has_vma"]:
        # Here a cotangent is one addend per device, and the transpose of each step is the cheapest one.
        return jax.linear_transpose(partial(_run_steps, **task), x.aval)(cotangent)
    source, target = task["source"], task["target"]
    kind, kept = _jax.array.manual_type_in(x.aval), target.unreduced
    back = Layout(target.dim_axes, kept), Layout(source.dim_axes, kept)
    if back[0] != back[1]:
        planned = known_plan(*back, task["shape"], task["sizes"])
        cotangent = _bind(cotangent, planned, task["has_vma"], task["lead"])
    # If a value is typed as varying over an axis but is the same on it, its cotangent has one addend per device. Here
    # every device has the whole cotangent, so the first device keeps it, and the others get zeros.
    for axis in sorted(kind.varying & target.sharded - source.sharded - source.unreduced):
        cotangent = jax.numpy.where(jax.lax.axis_index(axis) == 0, cotangent, jax.numpy.zeros_like(cotangent))
    # Before jax 0.10.2 the cotangent of an unreduced value must be typed reduced here.
    for to, axes in (("varying", kind.varying), ("reduced", kind.reduced | (kind.unreduced - kept))):
        missing = tuple(sorted(axes - getattr(_jax.array.manual_type(cotangent), to)))
        cotangent = jax.lax.pcast(cotangent, missing, to=to) if missing else cotangent
    return [cotangent]


def _block(x: Any, dim: int, axes: MeshAxes, sizes: AxisSizes) -> Any:
    shards, index = shard_count(axes, sizes), jax.numpy.int32(0)
    for axis in axes:
        index = index * sizes[axis] + jax.lax.axis_index(axis)
    size = x.shape[dim] // shards
    return jax.lax.dynamic_slice_in_dim(x, index * size, size, dim)


def _split_out(x: Any, dims: Mapping[int, MeshAxes], axes: MeshAxes, sizes: AxisSizes) -> Any:
    """Make a first dim from the major parts of other dims: one part per axis, in the order of ``axes``."""
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
    x = x.reshape(*(sizes[axis] for axis in axes), *x.shape[1:])
    groups = [[*map(axes.index, dims.get(dim, ())), len(axes) + dim] for dim in range(x.ndim - len(axes))]
    shape = [prod(x.shape[place] for place in group) for group in groups]
    return x.transpose([place for group in groups for place in group]).reshape(shape)
