"""``reshard`` and ``plan_reshard``: the cheapest collectives between any two shardings of the same dims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from .. import _jax
from ..errors import ShapeError
from ..errors.failures import OwesNothing, WrongSize
from ..hints.scope import Region, naming_here
from ..meshes import read_mesh
from .call import RESULT, Call, Laid, begin
from .collectives import read_move, refuse_other_dims, refuse_other_marks
from .operands import Operand, remember_result
from .resharding import Partition, Plan, Unreachable, plan, run

T = TypeVar("T")


def reshard(x: T, pattern: str) -> T:
    """Change the sharding of an array into any other, by the cheapest collectives.

    ```python
    y = reshard(y, "[s/tp] h -> s [h/tp]")  # f32[4,8] -> f32[8,4] per shard, one all_to_all
    w = reshard(w, "[m/dp,tp] f -> [m/tp,dp] f")  # another order of the axes: one ppermute
    y = reshard(y, "b [f/dp] +tp -> b [f/tp]")  # takes the sum, too
    ```

    Args:
      x: one shard.
      pattern: both sides, with the same dims; ``+`` on the left may be kept or summed. Neither side
        may say ``~`` or ``-`` where the other does not.

    Returns:
      The array of the pattern's right side, bit for bit. Its gradient is resharded back, by the
      cheapest collectives for that way.

    Raises:
      PatternError: for a sum on the right that is not owed on the left.
      ShapeError: for a dim that does not divide over its axes.
      VaryingError, ShardingError: for an operand that is not the pattern's left side.
      MeshAxisError: for an axis that is not manual here.
    """
    call = begin("reshard", pattern, 1)
    operand, right = read_move(call, x)
    call.require_manual(_changed(call))
    _refuse_marks(call, operand, right)
    shape = tuple(operand.whole(at, call.region.sizes) for at in range(len(operand.shape)))
    planned = _plan(call, operand.laid, right, shape, call.region.sizes)
    _refuse_unowed(call, operand)
    value = run(operand.value, planned, call.region.typed)
    if call.region.typed and right.unreduced:
        value = _jax.leave_unreduced(value, right.unreduced)
    return remember_result(call, value, (operand,), right)


def plan_reshard(pattern: str, shape: Sequence[int], mesh: Mesh | AbstractMesh, *, dtype: Any = np.float32) -> Plan:
    """The steps that `reshard` takes, before anything runs.

    ```python
    print(plan_reshard("[s/tp] h -> s [h/tp]", (8, 8), mesh))  # steps, bytes per device, peak shard, lower bound
    ```

    Bytes are those of the busiest device, by the formulas of a ring over ``n`` shards of ``S`` bytes:
    all_gather ``(n-1) S``, all_to_all and psum_scatter ``(n-1)/n S``, psum ``2 (n-1)/n S``,
    ppermute ``S``, slice nothing.

    Args:
      pattern: as for `reshard`.
      shape: the global shape.
      mesh: the mesh, concrete or abstract; every axis counts as manual.
      dtype: the array's dtype.

    Returns:
      The plan, with ``steps``, ``bytes``, ``peak`` and ``lower_bound`` (in elements); printed as a table.

    Raises:
      PatternError, ShapeError, MeshAxisError: as `reshard` does.
    """
    sizes = _sizes(shape)
    found = read_mesh(mesh)
    axes = () if found is None else found.shape_tuple
    region = Region(axes, axes, aliases=naming_here().aliases)
    call = replace(begin("plan_reshard", pattern, 1), region=region, function=None)
    refuse_other_dims(call)
    sides = [call.lay(index, len(sizes)) for index in (0, -1)]
    rank = len(sides[0].side.dims)
    if len(sides[0].places) != len(sizes):
        raise call.fault(f"the pattern has {rank} dim{'s' * (rank != 1)}, but the shape {sizes} has {len(sizes)}")
    planned = _plan(call, sides[0], sides[1], sizes, call.region.sizes)
    return replace(planned, itemsize=np.dtype(dtype).itemsize)


def _sizes(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of integers.

    Raises:
      ShapeError: for what is no shape.
    """
    try:
        sizes = tuple(size.__index__() for size in shape)
    except (TypeError, AttributeError):
        raise ShapeError(f"plan_reshard: shape={shape!r} is no tuple of sizes") from None
    if any(size < 0 for size in sizes):
        raise ShapeError(f"plan_reshard: shape={sizes} has a negative size")
    return sizes


def _plan(call: Call, left: Laid, right: Laid, shape: tuple[int, ...], sizes: Any) -> Plan:
    found = plan(Partition(left.parts, left.unreduced), Partition(right.parts, right.unreduced), shape, sizes)
    if isinstance(found, Plan):
        return found
    raise _unreachable(call, right, shape, found)


def _unreachable(call: Call, right: Laid, shape: tuple[int, ...], found: Unreachable) -> Exception:
    if found.dim is None:
        return call.fault(found.reason, right.side.span, f"mark what is owed on the left, '+{found.axes[0]}'")
    place = right.places[found.dim]
    shards = prod(call.region.sizes[axis] for axis in found.axes)
    name, over = " ".join(place.names), ", ".join(map(repr, found.axes))
    problem = f"has {name}={shape[found.dim]}, which does not divide over {over} ({shards} shards)"
    return call.wrong(WrongSize(problem, place.dim.span), RESULT, None)


def _changed(call: Call) -> set[str]:
    """The axes that the two sides write differently."""
    return set() if str(call.pattern.operands[0]) == str(call.result) else set(call.written_axes())


def _refuse_marks(call: Call, operand: Operand, right: Laid) -> None:
    """``+`` may be summed; other marks stand on both sides."""
    refuse_other_marks(call, replace(operand, laid=replace(operand.laid, unreduced=right.unreduced)), right, set())


def _refuse_unowed(call: Call, operand: Operand) -> None:
    """A ``+axis`` on a value that JAX types as the same on every shard."""
    if not call.region.typed:
        return
    kind = _jax.manual_type(operand.value)
    for axis in sorted(operand.laid.unreduced - kind.varying - kind.unreduced):
        raise call.wrong(OwesNothing(axis, call.region.sizes[axis]), operand.subject, operand.value)
