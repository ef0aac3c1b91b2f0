"""Over which mesh axes each factor of a pattern is sharded, and the partial sums where a sharded one is summed.

A merged dim is sharded on its major factors: the axes of ``[(h d)/tp]`` are those of ``h``, then those of ``d``;
and ``d`` may have some only if ``h`` is sharded down to single elements. Anything else would interleave the shards of a
factor.

Where a sharded factor is summed, each shard has a partial sum. Over each such axis the result says one thing:
``+axis`` (left unreduced), ``~axis`` (left varying), ``[dim/axis]`` (psum_scatter), or nothing (psum).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from .. import _jax
from ..errors.failures import NotUnreduced, WrongSize
from ..errors.phrases import sharding_text
from .operands import Operand, solve
from .operation import RESULT, MeshAxes, Operation, ResolvedDim, SideLayout, shard_count

Extents = Mapping[str, int]
MeshReduction = Callable[[Any, MeshAxes], Any]
FactorAxes = dict[str, MeshAxes]
"""Per factor its mesh axes, major to minor."""


def axes_of_merged(call: Operation, place: ResolvedDim, factor_axes: FactorAxes, extents: Extents) -> MeshAxes:
    """The mesh axes of a dim, by those of its factors.

    Raises:
      PatternError: for a factor that is sharded although one before it still has several elements per shard.
    """
    axes: MeshAxes = ()
    sizes, open_factor = call.region.sizes, None
    for key in place.keys:
        own = factor_axes.get(key, ())
        if open_factor is not None and any(sizes[axis] > 1 for axis in own):
            first, before = key.split()[0], open_factor.split()[0]
            problem = f"'{place.dim}' would interleave the shards of '{first}', since '{before}' is before it"
            ordered = " ".join([first, *(name for name in place.names if name != first)])
            raise call.fault(problem, place.dim.span, f"write ({ordered}), or gather '{first}' first (all_gather)")
        axes += own
        if open_factor is None and extents[key] != shard_count(own, sizes):
            open_factor = key
    return axes


def split_merged_axes(call: Operation, place: ResolvedDim, known: FactorAxes, extents: Extents) -> FactorAxes | None:
    """The mesh axes of the factors of a merged dim: each takes what divides it; None if one does not divide.

    Args:
      known: axes of factors that are dims of their own elsewhere; taken where they come next.
    """
    remaining, found, sizes = list(place.axes), FactorAxes(), call.region.sizes
    for key in place.keys:
        taken, left = known.get(key), extents[key]
        if taken is None or tuple(remaining[: len(taken)]) != taken or left % shard_count(taken, sizes):
            taken = ()
            for axis in remaining:
                if left <= 1 or left % sizes[axis]:
                    break
                left //= sizes[axis]
                taken += (axis,)
        found[key] = taken
        del remaining[: len(taken)]
        if extents[key] != shard_count(taken, sizes):
            break
    if any(sizes[axis] > 1 for axis in remaining):
        return None
    if remaining and found:
        found[next(reversed(found))] += tuple(remaining)
    return found if found or not remaining else None


def factor_axes_of(call: Operation, operands: list[Operand], extents: Extents, result: SideLayout) -> FactorAxes:
    """The mesh axes of every factor of the operands.

    Args:
      extents: the factors' global sizes.
      result: the result, whose dims decide how a merged dim of an operand is sharded.

    Raises:
      PatternError: for a factor that two operands shard in different ways, for an axis that shards
        two factors, and for a merged dim that its axes do not divide.
    """
    alone = {place.keys[0]: place.axes for place in result.dims if len(place.keys) == 1}
    found, sizes = FactorAxes(), call.region.sizes
    origin: dict[str, Operand] = {}
    for operand in operands:
        for place in operand.layout.dims:
            keys, axes = place.keys, place.axes
            own = {keys[0]: axes} if len(keys) == 1 else split_merged_axes(call, place, alone, extents)
            own = own if own is not None else split_merged_axes(call, place, {}, extents)
            if own is None:
                factors = ", ".join(f"{key.split()[0]}={extents[key]}" for key in keys)
                over = ", ".join(f"{axis}={sizes[axis]}" for axis in axes)
                problem = f"the merged dim '{place.dim}' is not sharded along its factors: {factors} over {over}"
                raise call.fault(problem, place.dim.span, "make the major factor a multiple of the mesh axes")
            for key in keys:
                axes = own.get(key, ())
                if found.setdefault(key, axes) != axes:
                    first, one, two = origin[key], sharding_text(found[key]), sharding_text(place.axes)
                    problem = f"'{key}' is {one} in {first.subject.phrase}, but {two} in {operand.subject.phrase}"
                    sharded = (first if len(found[key]) > len(place.axes) else operand).subject.phrase
                    cure = f"gather it in {sharded} first (all_gather), or reshard the other operand"
                    raise call.fault(problem, place.dim.span, cure)
                origin.setdefault(key, operand)
    # Of two factors over one mesh axis, every shard would meet only its own part of the other.
    seen: dict[str, str] = {}
    for key, axes in found.items():
        for axis in axes:
            if axis in seen:
                other = seen[axis]
                problem = f"'{other}' in {origin[other].subject.phrase} and '{key}' in {origin[key].subject.phrase}"
                problem += f" are both sharded over '{axis}', so no shard has all of either"
                span = next(place.dim.span for place in origin[key].layout.dims if key in place.names)
                raise call.fault(problem, span, "gather one of them first (all_gather)")
            seen[axis] = key
    return found


def refuse_dropped_varying(call: Operation, operands: Sequence[Operand], right: SideLayout) -> None:
    """Refuse a result that does not mention an axis over which an operand is marked ``~``."""
    for operand in operands:
        for axis in sorted(operand.layout.varying - right.differing):
            problem = f"{operand.subject.phrase} is marked '~{axis}', but the result does not mention '{axis}'"
            mark = next(m.span for m in operand.layout.side.marks if m.sign == "~")
            raise call.fault(problem, mark, f"write '~{axis}' on the result, too; psum or pmean removes the mark")
    for axis in sorted(right.reduced.difference(*[operand.layout.reduced for operand in operands])):
        raise call.fault(f"'-{axis}' is on the result only", right.side.span, "all_gather makes such a value")


def refuse_moved_axes(call: Operation, before: Sequence[MeshAxes], right: SideLayout, cure: str) -> None:
    """Refuse a result in which a dim is sharded otherwise than before."""
    for place, axes in zip(right.dims, before, strict=True):
        if place.axes != axes:
            sides = f"{sharding_text(axes)} on the left, but {sharding_text(place.axes)} on the right"
            raise call.fault(f"'{place.name}' is {sides}", place.dim.span, cure)


class PartialSums(NamedTuple):
    """A result, and what becomes of its partial sums.

    Attributes:
      result: the layout of the result.
      addends: per axis over which the local results are partial sums, what is summed over it.
      scattered: dims, and the mesh axes over which the sum is scattered along them.
      summed: the axes over which every shard gets the sum.
      unreduced: those over which the result is left unreduced.
      varying: those over which it is left varying.
    """

    result: SideLayout
    addends: Mapping[str, str]
    scattered: tuple[tuple[int, MeshAxes], ...]
    summed: MeshAxes
    unreduced: MeshAxes
    varying: MeshAxes


def plan_partial_sums(
    call: Operation, layout: SideLayout, inherited: Sequence[MeshAxes], addends: Mapping[str, str], local: Sequence[int]
) -> PartialSums:
    """Plan the sums of a result over mesh axes.

    Args:
      call: the call.
      layout: the result's side.
      inherited: per dim of the result the axes over which it is sharded without any communication.
      addends: per axis over which the local results are partial sums, what is summed over it.
      local: the shape of a local result.

    Raises:
      PatternError: for a dim that the operands shard otherwise than the result says.
      VaryingError: for ``+axis`` where the local results are not partial sums.
      ShapeError: for a dim that does not divide over the axes it is scattered over.
    """
    scattered: list[tuple[int, MeshAxes]] = []
    for at, (place, axes) in enumerate(zip(layout.dims, inherited, strict=True)):
        is_prefix, extra = place.axes[: len(axes)] == axes, place.axes[len(axes) :]
        missing = [axis for axis in extra if axis not in addends]
        if not is_prefix or missing:
            sharding = sharding_text(place.axes)
            problem = f"'{place.name}' is {sharding_text(axes)} in the operands, but {sharding} in the result"
            problem += f", and there is no partial sum over '{missing[0]}'" if is_prefix else ""
            name = str(place.dim.factors[0]) if len(place.names) == 1 else f"({place.name})"
            written = f"[{name}/{','.join(axes)}]" if axes else place.name
            cure = f"write {written}; all_gather, all_to_all and reshard move shards"
            raise call.fault(problem, place.dim.span, cure)
        if extra:
            if local[at] % shard_count(extra, call.region.sizes):
                problem = f"has {place.name}={local[at]} on each shard, which cannot be scattered {call.over(extra)}"
                raise call.wrong(WrongSize(problem, place.dim.span), RESULT)
            scattered.append((at, extra))
    for axis in sorted(layout.unreduced - addends.keys()):
        raise call.wrong(NotUnreduced(axis, call.region.sizes[axis]), RESULT)
    taken = {axis for _, axes in scattered for axis in axes}
    left = [axis for axis in addends if axis not in taken]
    unreduced, varying = (tuple([a for a in left if a in marked]) for marked in (layout.unreduced, layout.varying))
    summed = tuple([axis for axis in left if axis not in layout.unreduced | layout.varying])
    return PartialSums(layout, addends, tuple(scattered), summed, unreduced, varying)


def plan_product(call: Operation, operands: list[Operand]) -> PartialSums:
    """Plan an operation in which every dim has one name.

    Raises:
      ShapeError, PatternError, VaryingError: for operands that do not go together, or a result that
        contradicts them.
    """
    extents, sizes = solve(call, operands, {}), call.region.sizes
    right = call.resolve_side(-1, dots=max((operand.layout.dots for operand in operands), default=0))
    factor_axes, kept = factor_axes_of(call, operands, extents, right), call.result.names
    addends = {axis: name for name, axes in factor_axes.items() if name not in kept for axis in axes}
    for operand in operands:
        for axis in sorted(operand.layout.unreduced):
            is_used = any(axis in axes for axes in factor_axes.values())
            if is_used or axis in addends:
                where = "another operand is sharded over it" if is_used else "so is another operand"
                problem = f"{operand.subject.phrase} is unreduced over '{axis}', and {where}"
                raise call.fault(problem, operand.layout.side.span, f"take the sum first (psum over '{axis}')")
            addends[axis] = f"+{axis}"
    names = [place.names[0] for place in right.dims]
    inherited = [factor_axes.get(name, ()) for name in names]
    local = [extents[name] // shard_count(axes, sizes) for name, axes in zip(names, inherited, strict=True)]
    sums = plan_partial_sums(call, right, inherited, addends, local)
    refuse_dropped_varying(call, operands, right)
    return sums


def run_partial_sums(call: Operation, value: Any, sums: PartialSums, collective: MeshReduction | None = None) -> Any:
    """Take the sums of a local result over mesh axes.

    Args:
      call: the call.
      value: the local result.
      sums: the plan.
      collective: replaces ``jax.lax.psum`` in other reductions.
    """
    has_vma = call.region.has_vma
    for dim, axes in sums.scattered:
        value = scatter_value(value, axes, dim, has_vma)
    if sums.summed:
        value = psum_value(value, sums.summed, has_vma) if collective is None else collective(value, sums.summed)
    if has_vma and sums.unreduced:
        value = _jax.casts.pcast_unreduced(_jax.casts.pcast_varying(value, sums.unreduced), sums.unreduced)
    return _jax.casts.pcast_varying(value, sums.varying) if has_vma and sums.varying else value


def addend_axes(value: Any, sums: PartialSums) -> frozenset[str]:
    """The axes over which a plan leaves each shard of a local result its own addend, as JAX types it."""
    return _jax.array.manual_type(value).varying.intersection(sums.varying) if sums.varying else frozenset()


def psum_value(value: Any, axes: MeshAxes, has_vma: bool) -> Any:
    """The sum over mesh axes, the same on every shard."""
    return jax.lax.psum(_jax.casts.pcast_unreduced_all(value, axes, has_vma), axes)


def scatter_value(value: Any, axes: MeshAxes, dim: int, has_vma: bool) -> Any:
    """The sum over mesh axes, scattered along a dim."""
    value = _jax.casts.pcast_unreduced_all(value, axes, has_vma)
    return jax.lax.psum_scatter(value, axes, scatter_dimension=dim, tiled=True)
