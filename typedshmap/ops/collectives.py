"""``all_gather``, ``all_to_all`` and ``ppermute``: shards moved over the mesh axes that the pattern shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, TypeVar

import jax

from .. import _jax
from ..errors import TypedShmapError
from ..errors.failures import WrongSize
from ..notation.nodes import Span
from ..notation.patterns import Dots, PatternDim
from .call import Call, Laid, begin, says
from .operands import Operand, read_operands, remember_result

T = TypeVar("T")

_TYPES = {"": "invarying", "-": "reduced", "~": "varying"}


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
    call = begin("all_gather", pattern, 1)
    operand, right = read_move(call, x)
    value = operand.value
    gathers = call.plan((len(operand.shape),), lambda: _plan_gathers(call, operand, right))
    for gather in gathers:
        value = _jax.all_gather(value, gather.axes, gather.dim, _TYPES[gather.mark], call.region.typed)
    axes = frozenset(axis for gather in gathers for axis in gather.axes)
    return remember_result(call, value, (operand,), right, made=axes)


@dataclass(frozen=True, slots=True)
class Gather:
    """One gather: a dim, the mesh axes that go, and the mark that they leave on the result."""

    dim: int
    axes: tuple[str, ...]
    mark: str


def _plan_gathers(call: Call, operand: Operand, right: Laid) -> list[Gather]:
    found: list[Gather] = []
    for at, (before, after) in enumerate(zip(operand.laid.parts, right.parts, strict=True)):
        if before[: len(after)] != after:
            raise _not_a_prefix(call, right, at, before, after)
        found += _by_mark(right, at, before[len(after) :])
    call.require_manual(_axes_that_go(call))
    gone = {axis for gather in found for axis in gather.axes}
    if not gone and not call.has_idle_name:
        raise call.fault("the pattern gathers nothing: both sides are split alike", right.side.span)
    refuse_other_marks(call, operand, right, gone)
    return _reduced_last(call, right, found)


def _by_mark(right: Laid, at: int, axes: tuple[str, ...]) -> list[Gather]:
    """The gathers of one dim, the minor axes first; axes of one mark go together."""
    found: list[Gather] = []
    for axis in reversed(axes):
        mark = "-" if axis in right.reduced else "~" if axis in right.varying else ""
        if found and found[-1].mark == mark:
            found[-1] = Gather(at, (axis, *found[-1].axes), mark)
        else:
            found.append(Gather(at, (axis,), mark))
    return found


def _reduced_last(call: Call, right: Laid, gathers: list[Gather]) -> list[Gather]:
    """The gathers in the order in which JAX can differentiate them.

    An unreduced cotangent, which is what comes back to a reduced value, cannot be sliced, which is
    what the gradient of a gather without a mark does.
    """
    first, then = list[Gather](), list[Gather]()
    for gather in gathers:
        is_late = gather.mark == "-" or any(other.dim == gather.dim for other in then)
        (then if is_late else first).append(gather)
    for gather in then:
        if not gather.mark:
            reduced = next(axis for other in then if other.mark for axis in other.axes)
            problem = f"'-{reduced}' stands beside '{gather.axes[-1]}', which has no mark: JAX has no gradient of that"
            cure = f"write '~{reduced}', or a mark for '{gather.axes[-1]}', too"
            raise call.fault(problem, right.places[gather.dim].dim.span, cure)
    return [*first, *then]


def _axes_that_go(call: Call) -> set[str]:
    """The axes that split a dim on the left and none on the right, whether manual here or not."""

    def axes(side: Any) -> set[str]:
        names = (n for dim in side.dims if getattr(dim, "axes", None) for n in dim.axes.names)
        return {axis for name in names for axis in call.meaning(name)}

    return axes(call.pattern.operands[0]) - axes(call.result)


def _not_a_prefix(call: Call, right: Laid, at: int, before: tuple[str, ...], after: tuple[str, ...]) -> Exception:
    place = right.places[at]
    name = " ".join(place.names)
    problem = f"'{name}' is {says(before)} on the left, but {says(after)} on the right: only minor axes can be gathered"
    return call.fault(problem, place.dim.span, "reshard(x, ...) changes any sharding into any other")


def read_move(call: Call, x: Any) -> tuple[Operand, Laid]:
    """The operand of a pattern whose two sides have the same dims, and its right side.

    Raises:
      PatternError: for sides with different dims.
      MeshAxisError: outside of a manual region.
    """
    call.plan(("dims",), lambda: refuse_other_dims(call) is None)
    if not call.region.held:
        call.require_manual()
    (operand,) = read_operands(call, (x,))
    return operand, call.lay(-1, len(operand.shape))


def refuse_other_dims(call: Call) -> None:
    """Refuse sides whose dims differ in more than their sharding."""
    left, right = call.pattern.operands[0], call.result
    texts = [[_bare(dim) for dim in side.dims] for side in (left, right)]
    if texts[0] != texts[1]:
        cure = f"{call.verb} changes the sharding only; rearrange reorders, merges and splits dims"
        raise call.fault("the two sides have different dims", right.span, cure)


def _bare(dim: PatternDim | Dots) -> str:
    """A dim without its brackets."""
    if isinstance(dim, Dots):
        return str(dim)
    inner = " ".join(map(str, dim.factors))
    return f"({inner})" if dim.is_group else inner


def refuse_other_marks(call: Call, operand: Operand, right: Laid, gone: set[str]) -> None:
    """Refuse marks on one side only, but for those that a gather leaves."""
    left = operand.laid
    for sign, before, after in (
        ("+", left.unreduced, right.unreduced),
        ("~", left.varying, right.varying - gone),
        ("-", left.reduced, right.reduced - gone),
    ):
        for axis in sorted(before ^ after):
            side = "left" if axis in before else "right"
            span = (left if axis in before else right).side.span
            raise call.fault(
                f"'{sign}{axis}' stands on the {side} only", span, f"write it on both sides: {call.verb} leaves it"
            )


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
    call = begin("all_to_all", pattern, 1)
    operand, right = read_move(call, x)
    moves = _plan_exchanges(call, operand, right)
    refuse_other_marks(call, operand, right, set())
    value = operand.value
    for move in moves:
        _refuse_indivisible(call, operand, right, move)
        value = _jax.vary(value, move.axes) if call.region.typed else value
        value = jax.lax.all_to_all(value, move.axes, move.to, move.dim, tiled=True)
    return remember_result(call, value, (operand,), right)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One all_to_all: the axes that leave a dim for another."""

    axes: tuple[str, ...]
    dim: int
    to: int


def _plan_exchanges(call: Call, operand: Operand, right: Laid) -> list[Exchange]:
    """Minor axes of dims that became minor axes of other dims."""
    call.require_manual(_axes_written_differently(call))
    before, after = operand.laid.parts, right.parts
    kept = [_common(a, b) for a, b in zip(before, after, strict=True)]
    leaving = {at: axes[len(k) :] for at, (axes, k) in enumerate(zip(before, kept, strict=True)) if axes[len(k) :]}
    coming = {at: axes[len(k) :] for at, (axes, k) in enumerate(zip(after, kept, strict=True)) if axes[len(k) :]}
    moves = [Exchange(axes, at, to) for at, axes in leaving.items() for to, other in coming.items() if other == axes]
    # A dim that gives axes and gets others at once would be cut anew before it is put together.
    if len(moves) != len(leaving) or len(moves) != len(coming) or leaving.keys() & coming.keys():
        raise _no_exchange(call, right, leaving, coming)
    if not moves and not call.has_idle_name:
        raise call.fault("the pattern moves nothing: both sides are split alike", right.side.span)
    return moves


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    count = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:count]


def _axes_written_differently(call: Call) -> set[str]:
    pairs = zip(call.pattern.operands[0].dims, call.result.dims, strict=True)
    both = [(getattr(a, "axes", None), getattr(b, "axes", None)) for a, b in pairs]
    names = {n for a, b in both if a != b for axes in (a, b) if axes is not None for n in axes.names}
    return {axis for name in names for axis in call.meaning(name)}


def _no_exchange(
    call: Call, right: Laid, leaving: Mapping[int, tuple[str, ...]], coming: Mapping[int, tuple[str, ...]]
) -> TypedShmapError:
    at = next(iter([*coming, *leaving]))
    place = right.places[at]
    name = " ".join(place.names)
    gone = ", ".join(f"'{axis}'" for axes in leaving.values() for axis in axes) or "no axis"
    came = ", ".join(f"'{axis}'" for axes in coming.values() for axis in axes) or "no axis"
    problem = f"{gone} leaves a dim and {came} comes to one ('{name}'): an all_to_all moves minor axes from dim to dim"
    return call.fault(problem, place.dim.span, "reshard(x, ...) changes any sharding into any other")


def _refuse_indivisible(call: Call, operand: Operand, right: Laid, move: Exchange) -> None:
    size, shards = operand.shape[move.to], prod(call.region.sizes[axis] for axis in move.axes)
    if size % shards:
        place = right.places[move.to]
        name, over = " ".join(place.names), ", ".join(map(repr, move.axes))
        problem = f"has {name}={size} on each shard, which does not divide over {over} ({shards} shards)"
        raise call.wrong(WrongSize(problem, place.dim.span), operand.subject, operand.value)


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
    call = begin("ppermute", pattern, 1, has_result=False)
    if not call.region.held:
        call.require_manual()
    (operand,) = read_operands(call, (x,))
    axes = _axes_to_shift(call, operand, axis)
    if not hasattr(shift, "__index__") or isinstance(shift, bool):
        raise call.fault(f"shift={shift!r} is no integer")
    value = operand.value
    if axes:
        value = _jax.vary(value, axes) if call.region.typed else value
        value = jax.lax.ppermute(value, *_ring(call, axes, int(shift)))
    return remember_result(call, value, (operand,), operand.laid)


def _axes_to_shift(call: Call, operand: Operand, axis: str | None) -> tuple[str, ...]:
    groups = [axes for axes in operand.laid.parts if axes]
    groups += [call.meaning(mark.axis) for mark in operand.laid.side.marks if mark.sign == "~"]
    groups = [axes for axes in groups if axes]
    if axis is not None:
        wanted = call.meaning(axis)
        call.require_manual(wanted)
        if wanted and not any(set(wanted) <= set(axes) for axes in groups):
            raise call.fault(f"axis='{axis}' is not among the axes of the pattern", None, "write it in the pattern")
        return wanted
    call.require_manual()
    if len(groups) > 1:
        names = ", ".join(repr(",".join(axes)) for axes in groups)
        raise call.fault(f"the pattern has several axes to send along: {names}", None, "say which: axis=...")
    if not groups and not call.pattern.has_sharding:
        raise call.fault("the pattern has no mesh axis to send along", _whole(call), "write [dim/axis]")
    return groups[0] if groups else ()


def _whole(call: Call) -> Span:
    return (0, len(call.pattern.source))


def _ring(call: Call, axes: tuple[str, ...], shift: int) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """The axes in mesh order, and who sends to whom, each as its place in that order."""
    ordered = tuple(axis for axis in call.region.sizes if axis in axes)
    sizes = call.region.sizes
    places = list(product(*(range(sizes[axis]) for axis in axes)))
    at = {place: _place_in(dict(zip(axes, place, strict=True)), ordered, sizes) for place in places}
    count = len(places)
    return ordered, [(at[places[i]], at[places[(i + shift) % count]]) for i in range(count)]


def _place_in(place: Mapping[str, int], ordered: Sequence[str], sizes: Mapping[str, int]) -> int:
    index = 0
    for axis in ordered:
        index = index * sizes[axis] + place[axis]
    return index
