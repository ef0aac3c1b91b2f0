"""``reshard`` and ``plan_reshard``: the cheapest collectives between any two shardings of the same dims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from jax.sharding import AbstractMesh

from ... import _jax
from ...errors import ShapeError
from ...errors.failures import WrongSize
from ...errors.phrases import count_text, quoted_axes, value_text
from ...errors.varying import NotUnreduced
from ...hints.context import MeshContext, current_axis_naming
from ...meshes import MeshLike, read_mesh
from ...notation.layout import Layout
from ...notation.match import LARGEST_SIZE
from ..collectives import read_move, refuse_other_dims, refuse_other_marks
from ..operation import RESULT, Operation, SideLayout, read_operation
from .pieces import shard_shape
from .plan import Plan, plan
from .run_plan import run

T = TypeVar("T")


def reshard(x: T, pattern: str) -> T:
    """Change the sharding of an array to any other, with the cheapest collectives.

    ```python
    y = reshard(y, "[s/tp] h -> s [h/tp]")  # f32[4,8] -> f32[8,4] per shard, one all_to_all
    w = reshard(w, "[m/dp,tp] f -> [m/tp,dp] f")  # another order of the axes: one ppermute
    y = reshard(y, "b [f/dp] +tp -> b [f/tp]")  # takes the sum, too
    ```

    Args:
      x: one shard.
      pattern: both sides, with the same dims; ``+`` on the left may be kept or summed. ``~`` and ``-``
        must be on both sides.

    Returns:
      The array of the pattern's right side, bit for bit. Its cotangent is resharded back, with the
      cheapest collectives in that direction.

    Raises:
      PatternError: for a result that is unreduced over an axis where the operand is not.
      ShapeError: for a dim that does not divide over its axes.
      VaryingError, ShardingError: for an operand that contradicts the pattern's left side.
      MeshAxisError: for an axis that is not manual here.
    """
    call = read_operation("reshard", pattern, (x,))
    operand, right = read_move(call, x)
    left, sizes, has_vma = operand.layout, call.region.sizes, call.region.has_vma
    call.refuse_uneven(right, shard_shape(right.dim_axes, operand.global_shape(sizes), sizes))
    # A sum may be taken; other marks must be on both sides.
    refuse_other_marks(call, replace(left, unreduced=right.unreduced), right, frozenset())
    planned = _plan_operation(call, left, right, operand.global_shape(sizes))
    if has_vma and left.unreduced:
        kind = _jax.array.manual_type(operand.value)
        for axis in sorted(call.region.nontrivial_axes & left.unreduced - kind.varying - kind.unreduced):
            raise call.wrong(NotUnreduced(axis, sizes[axis]), operand.subject, operand.value)
    value = run(operand.value, planned, has_vma)
    return call.record_result(value, (operand,), right)


def plan_reshard(pattern: str, shape: Sequence[int], mesh: MeshLike, *, dtype: Any = np.float32) -> Plan:
    """The steps that `reshard` takes, before anything runs.

    ```python
    print(plan_reshard("[s/tp] h -> s [h/tp]", (8, 8), mesh))  # steps, bytes per device, peak shard, lower bound
    ```

    Bytes are counted on the busiest device, by the formulas of a ring over ``n`` shards of ``S`` bytes:
    all_gather ``(n-1) S``, all_to_all and psum_scatter ``(n-1)/n S``, psum ``2 (n-1)/n S``,
    slice nothing; a ppermute sends a piece: the overlap of a block before and a block after.

    Args:
      pattern: as for `reshard`.
      shape: the global shape.
      mesh: the mesh, concrete or abstract, a dict of sizes, or a text ``"dp=4,tp=2"``; every axis counts as manual.
      dtype: the array's dtype.

    Returns:
      The plan, with ``steps``, ``bytes``, ``peak`` and ``lower_bound`` (in elements); printed as a table.

    Raises:
      PatternError, ShapeError, MeshAxisError: as for `reshard`.
    """
    try:
        sizes = tuple(size.__index__() for size in shape)
    except (TypeError, AttributeError):
        raise ShapeError(f"plan_reshard: shape={value_text(shape)} is not a tuple of sizes") from None
    if wrong := [size for size in sizes if not 0 <= size <= LARGEST_SIZE]:
        raise ShapeError(f"plan_reshard: shape={value_text(shape)} has {value_text(wrong[0])}, which is not a size")
    over = read_mesh(mesh) or AbstractMesh((), ())
    region = MeshContext.over(over, current_axis_naming(), manual=over.shape_tuple)
    call = replace(read_operation("plan_reshard", pattern, (None,)), region=region, mesh=None, where="plan_reshard")
    refuse_other_dims(call)
    left, right = (call.resolve_side(index, len(sizes) - len(call.result.dims) + 1) for index in (0, -1))
    if len(left.dims) != len(sizes):
        rank = count_text(len(left.side.dims), "dim")
        raise call.fault(f"the pattern has {rank}, but the shape {sizes} has {len(sizes)}")
    planned = _plan_operation(call, left, right, sizes)
    return replace(planned, itemsize=np.dtype(dtype).itemsize)


def _plan_operation(call: Operation, left: SideLayout, right: SideLayout, shape: tuple[int, ...]) -> Plan:
    known = left.unreduced | call.region.nontrivial_axes
    source, target = (Layout(side.dim_axes, side.unreduced & known) for side in (left, right))
    if missing := sorted(target.unreduced - source.unreduced):
        problem = f"there is no partial sum over {quoted_axes(missing)} before, so none can be left"
        cure = f"drop '+{missing[0]}', or, of a partial sum, write it on the left, too"
        raise call.fault(problem, right.side.span, cure)
    for place, size, *ends in zip(right.dims, shape, source.dim_axes, target.dim_axes, strict=True):
        for axes in ends:
            if size % call.shards(axes):
                problem = f"has {place.name}={size}, which does not divide {call.over(axes)}"
                raise call.wrong(WrongSize(problem, place.dim.span), RESULT)
    return plan(source, target, shape, call.region.sizes)
