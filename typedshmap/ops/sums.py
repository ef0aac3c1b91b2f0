"""What becomes of the sums that an operation owes: planned from the result's side of the pattern, then run.

Over each mesh axis on which the local results are addends the result says one thing: ``+axis``
(left unreduced), ``~axis`` (left varying), ``[dim/axis]`` (psum_scatter), or nothing (psum).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax

from .. import _jax
from ..errors.failures import OwesNothing, WrongSize
from ..notation.nodes import Span
from .call import RESULT, Call, Laid, says


@dataclass(frozen=True, slots=True)
class Sums:
    """A plan.

    Attributes:
      scattered: dims and the mesh axes over which the sum is scattered along them.
      summed: the axes over which it is taken whole.
      unreduced: those over which it stays owed.
      varying: those over which the result is left as JAX has it.
    """

    scattered: tuple[tuple[int, tuple[str, ...]], ...] = ()
    summed: tuple[str, ...] = ()
    unreduced: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()


def plan_sums(
    call: Call, laid: Laid, inherited: Sequence[tuple[str, ...]], owed: Mapping[str, str], local: Sequence[int]
) -> Sums:
    """Plan the sums of a result.

    Args:
      call: the call.
      laid: the result's side.
      inherited: per dim of the result the axes that split it without any communication.
      owed: per axis over which the local results are addends, what is summed over it.
      local: the shape of a local result.

    Raises:
      PatternError: for a dim that the operands split otherwise than the result says.
      VaryingError: for ``+axis`` where nothing is owed.
      ShapeError: for a dim that does not divide over the axes it is scattered over.
    """
    scattered: list[tuple[int, tuple[str, ...]]] = []
    for at, (place, axes) in enumerate(zip(laid.places, inherited, strict=True)):
        extra = place.axes[len(axes) :]
        if place.axes[: len(axes)] != axes or not all(axis in owed for axis in extra):
            raise _not_inherited(call, laid, at, axes, owed)
        if extra:
            _refuse_indivisible(call, laid, at, local[at], extra)
            scattered.append((at, extra))
    taken = {axis for _, axes in scattered for axis in axes}
    for mark in laid.side.marks:
        _refuse_unowed(call, laid, mark.sign, mark.span, owed)
    left = [axis for axis in owed if axis not in taken]
    unreduced = tuple(axis for axis in left if axis in laid.unreduced)
    varying = tuple(axis for axis in left if axis in laid.varying)
    summed = tuple(axis for axis in left if axis not in laid.unreduced | laid.varying)
    return Sums(tuple(scattered), summed, unreduced, varying)


def _not_inherited(call: Call, laid: Laid, at: int, axes: tuple[str, ...], owed: Mapping[str, str]) -> Exception:
    place = laid.places[at]
    name = " ".join(place.names)
    operands = f"'{name}' is {says(axes)} in the operands" if axes else f"'{name}' is whole in the operands"
    problem = f"{operands}, but {says(place.axes)} in the result"
    extra = [axis for axis in place.axes if axis not in axes]
    if extra and place.axes[: len(axes)] == axes:
        problem += f", and no sum is owed over '{next(axis for axis in extra if axis not in owed)}'"
    written = f"[{place.dim.factors[0] if len(place.names) == 1 else f'({name})'}/{','.join(axes)}]"
    cure = f"write {written if axes else name}; all_gather, all_to_all and reshard move shards"
    return call.fault(problem, place.dim.span, cure)


def _refuse_indivisible(call: Call, laid: Laid, at: int, size: int, axes: tuple[str, ...]) -> None:
    shards = prod(call.region.sizes[axis] for axis in axes)
    if size % shards:
        place = laid.places[at]
        name, over = " ".join(place.names), ", ".join(map(repr, axes))
        problem = f"has {name}={size} on each shard, which cannot be scattered over {over} ({shards} shards)"
        raise call.wrong(WrongSize(problem, place.dim.span), RESULT, None)


def _refuse_unowed(call: Call, laid: Laid, sign: str, span: Span, owed: Mapping[str, str]) -> None:
    if sign != "+":
        return
    for axis in sorted(laid.unreduced - owed.keys()):
        raise call.wrong(OwesNothing(axis, call.region.sizes[axis]), RESULT, None)


def run_sums(
    call: Call, value: Any, sums: Sums, collective: Callable[[Any, tuple[str, ...]], Any] | None = None
) -> Any:
    """Take the sums of a local result.

    Args:
      call: the call.
      value: the local result.
      sums: the plan.
      collective: what takes the place of ``jax.lax.psum`` for other reductions.
    """
    typed = call.region.typed
    for dim, axes in sums.scattered:
        value = scatter(value, axes, dim, typed)
    if sums.summed:
        value = psum(value, sums.summed, typed) if collective is None else collective(value, sums.summed)
    if typed and sums.unreduced:
        value = _jax.leave_unreduced(_jax.vary(value, sums.unreduced), sums.unreduced)
    return _jax.vary(value, sums.varying) if typed else value


def left_over(value: Any, sums: Sums) -> frozenset[str]:
    """The axes over which a plan leaves each shard of a local result its own addend, as JAX types it."""
    return _jax.manual_type(value).varying.intersection(sums.varying) if sums.varying else frozenset()


def psum(value: Any, axes: tuple[str, ...], typed: bool) -> Any:
    """The sum over mesh axes, the same on every shard."""
    return jax.lax.psum(_jax.owe(value, axes, typed), axes)


def scatter(value: Any, axes: tuple[str, ...], dim: int, typed: bool) -> Any:
    """The sum over mesh axes, each shard with its part of a dim."""
    value = _jax.owe(value, axes, typed)
    return jax.lax.psum_scatter(value, axes, scatter_dimension=dim, tiled=True)
