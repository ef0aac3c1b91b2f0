"""Over which mesh axes each factor of a pattern is split.

A merged dim that is split over mesh axes is split on its major factors: the axes of ``[(h d)/tp]``
are those of ``h``, then those of ``d``; and ``d`` may have some only if ``h`` is split down to
single elements. Anything else would interleave the shards of a factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from .call import Call, Place, says
from .operands import Operand, key_of

Splits = dict[str, tuple[str, ...]]
"""Per factor its mesh axes, major to minor."""


@dataclass(frozen=True, slots=True)
class Interleaved:
    """A factor that is split although one before it in the same merged dim is not split to the end."""

    factor: str
    before: str


def axes_of_merged(
    keys: Sequence[str], splits: Mapping[str, tuple[str, ...]], extents: Mapping[str, int], sizes: Mapping[str, int]
) -> tuple[str, ...] | Interleaved:
    """The mesh axes of a merged dim, by those of its factors.

    Args:
      keys: the factors, major to minor.
      splits: their mesh axes.
      extents: their global sizes.
      sizes: the sizes of the mesh axes.
    """
    axes: tuple[str, ...] = ()
    open_factor: str | None = None
    for key in keys:
        own = splits.get(key, ())
        if open_factor is not None and any(sizes[axis] > 1 for axis in own):
            return Interleaved(key, open_factor)
        axes += own
        if extents[key] != prod(sizes[axis] for axis in own) and open_factor is None:
            open_factor = key
    return axes


def split_merged(
    keys: Sequence[str],
    axes: tuple[str, ...],
    known: Mapping[str, tuple[str, ...]],
    extents: Mapping[str, int],
    sizes: Mapping[str, int],
) -> Splits | None:
    """The mesh axes of the factors of a merged dim: each takes what divides it; None if one does not divide.

    Args:
      known: axes of factors that stand alone elsewhere.
    """
    remaining, found = list(axes), Splits()
    for key in keys:
        taken = _taken(remaining, known.get(key), extents[key], sizes)
        found[key] = taken
        del remaining[: len(taken)]
        if extents[key] != prod(sizes[axis] for axis in taken):
            break
    if any(sizes[axis] > 1 for axis in remaining):
        return None
    last = next(reversed(found), None)
    if remaining and last is not None:
        found[last] += tuple(remaining)
    return found if found or not remaining else None


def _taken(
    remaining: Sequence[str], known: tuple[str, ...] | None, extent: int, sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """The axes that a factor takes of those that are left: what it has elsewhere, or all that divide it."""
    if known is not None and tuple(remaining[: len(known)]) == known and extent % prod(sizes[a] for a in known) == 0:
        return known
    taken, left = list[str](), extent
    for axis in remaining:
        if left <= 1 or left % sizes[axis]:
            break
        left //= sizes[axis]
        taken.append(axis)
    return tuple(taken)


def splits_of(call: Call, operands: Sequence[Operand], extents: Mapping[str, int], alone: Iterable[Place]) -> Splits:
    """The mesh axes of every factor of the operands.

    Args:
      extents: the factors' global sizes.
      alone: places of the result, whose axes tell how a merged dim of an operand is split.

    Raises:
      PatternError: for a factor that two operands split in different ways, for an axis that splits
        two factors, and for a merged dim that its axes do not divide.
    """
    hints = {key_of(place, 0): place.axes for place in alone if len(place.dim.factors) == 1}
    found = Splits()
    origin: dict[str, Operand] = {}
    for operand in operands:
        for place in operand.laid.places:
            own = _splits_at(call, place, hints, extents)
            for key, axes in own.items():
                if found.setdefault(key, axes) != axes:
                    raise _split_differently(call, key, origin[key], found[key], operand, place)
                origin.setdefault(key, operand)
    _refuse_shared_axes(call, found, origin)
    return found


def _splits_at(call: Call, place: Place, hints: Mapping[str, tuple[str, ...]], extents: Mapping[str, int]) -> Splits:
    keys = [key_of(place, at) for at in range(len(place.dim.factors))]
    if len(keys) == 1:
        return {keys[0]: place.axes}
    own = split_merged(keys, place.axes, hints, extents, call.region.sizes)
    if own is None:
        own = split_merged(keys, place.axes, {}, extents, call.region.sizes)
    if own is None:
        factors = ", ".join(f"{key.split()[0]}={extents[key]}" for key in keys)
        over = ", ".join(f"{axis}={call.region.sizes[axis]}" for axis in place.axes)
        problem = f"the merged dim '{place.dim}' is not split along its factors: {factors} over {over}"
        raise call.fault(problem, place.dim.span, "make the major factor a multiple of the mesh axes")
    return {key: own.get(key, ()) for key in keys}


def _split_differently(
    call: Call, key: str, first: Operand, first_axes: tuple[str, ...], second: Operand, place: Place
) -> Exception:
    one, two = says(first_axes), says(place.axes)
    problem = f"'{key}' is {one} in {first.subject.phrase}, but {two} in {second.subject.phrase}"
    whole = first if len(first_axes) > len(place.axes) else second
    cure = f"gather it in {whole.subject.phrase} first (all_gather), or shard the other alike (reshard)"
    return call.fault(problem, place.dim.span, cure)


def _refuse_shared_axes(call: Call, splits: Splits, origin: Mapping[str, Operand]) -> None:
    """Two factors over one mesh axis: every shard would meet only its own part of the other."""
    seen: dict[str, str] = {}
    for key, axes in splits.items():
        for axis in axes:
            if axis in seen:
                other = seen[axis]
                problem = (
                    f"'{other}' in {origin[other].subject.phrase} and '{key}' in {origin[key].subject.phrase} are both "
                    f"split over '{axis}', so that no shard meets the whole of either"
                )
                span = next(p.dim.span for p in origin[key].laid.places if key in p.names)
                raise call.fault(problem, span, "gather one of them first (all_gather)")
            seen[axis] = key


def refuse_addends_of_shards(call: Call, operands: Sequence[Operand], splits: Splits) -> None:
    """A sum that is owed over an axis that splits a dim of another operand, or is owed twice."""
    used = {axis for axes in splits.values() for axis in axes}
    owed: dict[str, Operand] = {}
    for operand in operands:
        for axis in sorted(operand.laid.unreduced):
            if axis in used or axis in owed:
                where = "another operand is split over it" if axis in used else "so does another operand"
                problem = f"{operand.subject.phrase} owes a sum over '{axis}', and {where}"
                raise call.fault(problem, operand.laid.side.span, f"take the sum first (psum over '{axis}')")
            owed[axis] = operand
