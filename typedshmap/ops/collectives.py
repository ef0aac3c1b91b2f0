"""``all_gather``, ``all_to_all`` and ``ppermute``: shards moved over the mesh axes that the pattern shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from .. import _jax
from ..errors.failures import WrongSize
from ..errors.phrases import quoted_axes, sharding_text
from ..notation.layout import shared_prefix
from .operands import Operand, read_operands, record_result
from .operation import MeshAxes, Operation, SideLayout, read_operation, shard_count

T = TypeVar("T")


def all_gather(x: T, pattern: str) -> T:
    """Put the shards of dims together, over the minor mesh axes that the result no longer has.

    The mark on the result says how JAX types it, and so what the gradient is: none (invarying: an
    all-reduce and a slice), ``~dp`` (varying: one reduce-scatter; that all shards are equal is
    inferred), ``-dp`` (reduced: one reduce-scatter, and JAX's type knows that all shards are equal).

    ```python
    w = all_gather(w, "[m/dp] [f/tp] -> m [f/tp] ~dp")  # f32[4,32] -> f32[16,32] per shard
    ```

    Args:
      x: one shard.
      pattern: both sides, with the same dims; several dims and several axes may be gathered at once.

    Returns:
      The gathered array.

    Raises:
      PatternError: for a pattern that gathers nothing, or gathers an axis that is not the minor one.
      ShapeError, VaryingError, ShardingError: for an operand that is not the pattern's left side.
      MeshAxisError: for an axis that is not manual here.
    """
    call = read_operation("all_gather", pattern, 1)
    operand, right = read_move(call, x)
    value = operand.value
    gathers = call.plan((len(operand.shape),), lambda: _plan_gathers(call, operand, right))
    for gather in gathers:
        value = _jax.casts.all_gather(value, gather.axes, gather.dim, gather.to, call.region.has_vma)
    axes = frozenset(axis for gather in gathers for axis in gather.axes)
    return record_result(call, value, (operand,), right, made_invarying=axes)


class Gather(NamedTuple):
    """One gather: a dim, the mesh axes that go, and how JAX types the result over them."""

    dim: int
    axes: MeshAxes
    to: str


def _plan_gathers(call: Operation, operand: Operand, right: SideLayout) -> list[Gather]:
    found: list[Gather] = []
    for at, (before, place) in enumerate(zip(operand.layout.dim_axes, right.dims, strict=True)):
        if before[: len(place.axes)] != place.axes:
            sides = f"{sharding_text(before)} on the left, but {sharding_text(place.axes)} on the right"
            problem = f"'{place.name}' is {sides}: only minor axes can be gathered"
            raise call.fault(problem, place.dim.span, "reshard(x, ...) changes any sharding into any other")
        of_dim: list[Gather] = []
        for axis in reversed(before[len(place.axes) :]):  # the minor axes first; those of one type go together
            to = "reduced" if axis in right.reduced else "varying" if axis in right.varying else "invarying"
            together = of_dim.pop().axes if of_dim and of_dim[-1].to == to else ()
            of_dim.append(Gather(at, (axis, *together), to))
        found += of_dim
    call.require_manual(sorted(call.layout(0).sharded - call.layout(-1).sharded))
    gone = frozenset(axis for gather in found for axis in gather.axes)
    if not gone and not call.has_unused_alias:
        raise call.fault("the pattern gathers nothing: both sides are sharded the same way", right.side.span)
    refuse_other_marks(call, operand.layout, right, gone)
    return _order_gathers(call, right, found)


def _order_gathers(call: Operation, right: SideLayout, gathers: list[Gather]) -> list[Gather]:
    """The gathers in the order in which JAX can differentiate them.

    The cotangent of a reduced value is unreduced, and JAX cannot slice an unreduced value, which is
    what the gradient of a gather without a mark does.
    """
    first, then = list[Gather](), list[Gather]()
    for gather in gathers:
        is_late = gather.to == "reduced" or any(other.dim == gather.dim for other in then)
        (then if is_late else first).append(gather)
    for gather in then:
        if gather.to == "invarying":
            reduced = next(axis for other in then if other.to != "invarying" for axis in other.axes)
            problem = f"'-{reduced}' is beside '{gather.axes[-1]}', which has no mark: JAX has no gradient of that"
            cure = f"write '~{reduced}', or a mark for '{gather.axes[-1]}', too"
            raise call.fault(problem, right.dims[gather.dim].dim.span, cure)
    return [*first, *then]


def read_move(call: Operation, x: Any) -> tuple[Operand, SideLayout]:
    """The operand of a pattern whose two sides have the same dims, and its right side.

    Raises:
      PatternError: for sides that have different dims.
      MeshAxisError: outside of a manual region.
    """
    call.plan(("dims",), lambda: refuse_other_dims(call) is None)
    if not call.region.manual:
        call.require_manual()
    (operand,) = read_operands(call, (x,))
    return operand, call.resolve_side(-1, len(operand.shape))


def refuse_other_dims(call: Operation) -> None:
    """Refuse sides whose dims differ in more than their sharding."""
    left, _, right = call.local_pattern(lambda dim: str(replace(dim, axes=None))).partition(" -> ")
    if left != right:
        cure = f"{call.verb} changes the sharding only; rearrange reorders, merges and splits dims"
        raise call.fault("the two sides have different dims", call.result.span, cure)


def refuse_other_marks(call: Operation, left: SideLayout, right: SideLayout, gone: frozenset[str]) -> None:
    """Refuse marks on one side only, except those of the axes that are gathered."""
    for sign, before, after in (
        ("+", left.unreduced, right.unreduced),
        ("~", left.varying, right.varying - gone),
        ("-", left.reduced, right.reduced - gone),
    ):
        for axis in sorted(before ^ after):
            name, side = ("left", left.side) if axis in before else ("right", right.side)
            cure = f"write it on both sides: {call.verb} leaves it"
            raise call.fault(f"'{sign}{axis}' is on the {name} only", side.span, cure)


def all_to_all(x: T, pattern: str) -> T:
    """Move the sharding from one dim to another: every shard sends a piece to every other.

    ```python
    q = all_to_all(q, "[s/tp] h d -> s [h/tp] d")  # f32[4,8,16] -> f32[8,4,16] per shard
    ```

    Args:
      x: one shard.
      pattern: both sides, with the same dims; the minor axes of a dim become those of another.

    Returns:
      The array of the pattern's right side. Its gradient is the reverse all_to_all.

    Raises:
      PatternError: for axes that do not move from the minor end of a dim to that of another.
      ShapeError: for a dim that does not divide over its new axes.
      VaryingError, ShardingError: for an operand that is not the pattern's left side.
      MeshAxisError: for an axis that is not manual here.
    """
    call = read_operation("all_to_all", pattern, 1)
    operand, right = read_move(call, x)
    moves = call.plan((len(operand.shape),), lambda: _plan_exchanges(call, operand, right))
    refuse_other_marks(call, operand.layout, right, frozenset())
    value = operand.value
    for axes, dim, to in moves:
        place, size = right.dims[to], operand.shape[to]
        if size % shard_count(axes, call.region.sizes):
            problem = f"has {place.name}={size} on each shard, which does not divide {call.over(axes)}"
            raise call.wrong(WrongSize(problem, place.dim.span), operand.subject, operand.value)
        value = _jax.casts.pcast_varying(value, axes) if call.region.has_vma else value
        value = jax.lax.all_to_all(value, axes, to, dim, tiled=True)
    return record_result(call, value, (operand,), right)


def _plan_exchanges(call: Operation, operand: Operand, right: SideLayout) -> list[tuple[MeshAxes, int, int]]:
    """Pair the minor axes that leave a dim with those that come to another: the axes, the one dim, the other."""
    written = zip(call.layout(0).dim_axes, call.layout(-1).dim_axes, strict=True)
    call.require_manual([axis for pair in written if pair[0] != pair[1] for axes in pair for axis in axes])
    before, after = operand.layout.dim_axes, right.dim_axes
    kept = [len(shared_prefix(*pair)) for pair in zip(before, after, strict=True)]
    leaving, coming = (
        {at: axes[count:] for at, (axes, count) in enumerate(zip(side, kept, strict=True)) if axes[count:]}
        for side in (before, after)
    )
    moves = [(axes, at, to) for at, axes in leaving.items() for to, other in coming.items() if other == axes]
    # A dim that gives axes and gets others at once would be sharded anew before it is put together.
    if len(moves) != len(leaving) or len(moves) != len(coming) or leaving.keys() & coming.keys():
        place = right.dims[next(iter([*coming, *leaving]))]
        gone, came = (
            quoted_axes(axis for axes in side.values() for axis in axes) or "no axis" for side in (leaving, coming)
        )
        problem = f"{gone} leaves a dim and {came} comes to one ('{place.name}')"
        problem += ": an all_to_all moves minor axes from dim to dim"
        raise call.fault(problem, place.dim.span, "reshard(x, ...) changes any sharding into any other")
    if not moves and not call.has_unused_alias:
        raise call.fault("the pattern moves nothing: both sides are sharded the same way", right.side.span)
    return moves


def ppermute(x: T, pattern: str, *, shift: int, axis: str | None = None) -> T:
    """Send every shard to the one ``shift`` places further on, the last ones to the first.

    On the global array this rolls a sharded dim by ``shift`` shards.

    ```python
    k = ppermute(k, "[b/dp] [s/sp] h d", shift=1, axis="sp")  # ring attention: the next shard's keys
    ```

    Args:
      x: one shard.
      pattern: the array, before and after.
      shift: how many places; negative for the other way.
      axis: the mesh axis, or the name of an alias for several, along which to send; by default the
        axes of the only dim that is sharded, or of the only ``~`` mark.

    Returns:
      An array of the same shape. Its gradient is sent the other way.

    Raises:
      PatternError: for no axis, or several without ``axis=``.
      ShapeError, VaryingError, ShardingError: for an operand that is not what the pattern says.
      MeshAxisError: for an axis that is not manual here.
    """
    call = read_operation("ppermute", pattern, 1, has_result=False)
    if not call.region.manual:
        call.require_manual()
    (operand,) = read_operands(call, (x,))
    axes = _axes_to_shift(call, operand, axis)
    if not hasattr(shift, "__index__") or isinstance(shift, bool):
        raise call.fault(f"shift={shift!r} is not an integer")
    value = operand.value
    if axes:
        value = _jax.casts.pcast_varying(value, axes) if call.region.has_vma else value
        # JAX counts the devices of several axes in the order of the mesh; the shards of a dim are in the dim's order.
        ordered = tuple(axis for axis in call.region.sizes if axis in axes)
        numbers = np.arange(shard_count(axes, call.region.sizes)).reshape([call.region.sizes[axis] for axis in ordered])
        devices = numbers.transpose([ordered.index(axis) for axis in axes]).ravel().tolist()
        pairs = [(device, devices[(at + int(shift)) % len(devices)]) for at, device in enumerate(devices)]
        value = jax.lax.ppermute(value, ordered, pairs)
    return record_result(call, value, (operand,), operand.layout)


def _axes_to_shift(call: Operation, operand: Operand, axis: str | None) -> MeshAxes:
    marked = [call.meaning(mark.axis) for mark in operand.layout.side.marks if mark.sign == "~"]
    groups = [axes for axes in (*operand.layout.dim_axes, *marked) if axes]
    if axis is not None:
        wanted = call.meaning(axis)
        call.require_manual(wanted)
        if wanted and not any(set(wanted) <= set(axes) for axes in groups):
            raise call.fault(f"axis='{axis}' is not among the axes of the pattern", None, "write it in the pattern")
        return wanted
    call.require_manual()
    if len(groups) > 1:
        names = quoted_axes(",".join(axes) for axes in groups)
        raise call.fault(f"the pattern has several axes to send along: {names}", None, "say which: axis=...")
    if not groups and not call.pattern.has_sharding:
        span = (0, len(call.pattern.source))
        raise call.fault("the pattern has no mesh axis to send along", span, "write [dim/axis]")
    return groups[0] if groups else ()
