"""Draw sizes for the dims of hints: multiples of what the mesh axes need, no two of them equal by accident."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..hints.array_hint import ArrayHint
from ..notation.match import Bound, NoValue, Sizes, Subject, evaluate
from ..notation.spec import Anything, Dim, Expression, Name, Number, Rest, names_in_expression
from ..placement.context import PlacementContext
from ..placement.structs import names_of

REST = "..."
"""The name of the sizes of an unnamed ``...``; all of them have the same."""
_TRIES = 2000
_DRAWN = Subject("placed", "drawn")
SizeValues = dict[str, Any]
"""A size per name; a tuple of sizes for ``*name`` and ``...``; names like ``_`` among them."""


@dataclass(frozen=True, slots=True)
class SizeRequirement:
    """The requirement of a dim on the sizes.

    Attributes:
      expression: the dim's size.
      factor: it must be a multiple of this, so that it divides over its mesh axes on every mesh.
      text: the dim's hint.
    """

    expression: Expression
    factor: int
    text: str


def size_requirements(
    hints: Iterable[tuple[Subject, ArrayHint]], places: Sequence[PlacementContext]
) -> list[SizeRequirement]:
    """The requirements of the dims of hints, over several meshes at once.

    Raises:
      MeshAxisError: for an axis that a mesh does not have.
    """
    found: list[SizeRequirement] = []
    for subject, hint in hints:
        layouts = [(place.layout(hint, subject), dict(place.context.mesh or ())) for place in places]
        for at, dim in enumerate(hint.spec.dims):
            if isinstance(dim, Dim):
                factor = lcm(*(prod(sizes.get(axis, 1) for axis in layout.dim_axes[at]) for layout, sizes in layouts))
                found.append(SizeRequirement(dim.size, factor, str(hint.text)))
    return found


def draw_sizes(
    hints: Sequence[ArrayHint],
    requirements: Sequence[SizeRequirement],
    given: Mapping[str, Any],
    arguments: Mapping[str, Any],
    rng: np.random.Generator,
    verb: str,
) -> SizeValues:
    """A size for every name.

    Args:
      hints: those of the arguments.
      requirements: those of all dims, also of the result.
      given: sizes that are fixed.
      arguments: the values for ``{argument}``.
      rng: what is drawn from.
      verb: the function that messages name.

    Raises:
      ShapeError: where no sizes were found that fit.
    """
    rests = list(dict.fromkeys(dim.name or REST for hint in hints for dim in hint.spec.dims if isinstance(dim, Rest)))
    factors = factors_of(hints, requirements)
    # The check of the arguments reports given sizes that do not divide, with argument and mesh.
    open_ones = [each for each in requirements if _is_undetermined(each, given, arguments)]
    misfits: list[str] = []
    for attempt in range(_TRIES):
        chosen = {**_draw_once(factors, rests, given, rng, spread=4 + attempt // 50), **given}
        misfits = [misfit for each in open_ones if (misfit := _why_unfit(each, chosen, arguments)) is not None]
        if not misfits and (attempt >= _TRIES // 4 or _are_distinct(chosen, factors, given)):
            return chosen
    problem = misfits[0] if misfits else "no two sizes are different"
    example = ", ".join(f"{name}={4 * factor}" for name, factor in list(factors.items())[:3]) or "x=..."
    raise ShapeError(f"{verb}: no sizes were found that fit: {problem}\n\nHint: pass sizes, as in {example}")


def _is_undetermined(requirement: SizeRequirement, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Whether a dim's size depends on what is drawn, or has no value at all."""
    if any(name not in given for name in names_in_expression(requirement.expression)):
        return True
    misfit = _why_unfit(SizeRequirement(requirement.expression, 1, requirement.text), dict(given), arguments)
    return misfit is not None and not isinstance(requirement.expression, Number | Anything)


def factors_of(hints: Sequence[ArrayHint], requirements: Iterable[SizeRequirement]) -> dict[str, int]:
    """The number that the size of each name, and of ``_``, is drawn as a multiple of."""
    found = {name: 1 for name, is_rest in names_of(hints).items() if not is_rest}
    for dim in (dim for hint in hints for dim in hint.spec.dims):
        if isinstance(dim, Dim) and isinstance(dim.size, Anything):
            found[str(dim.size)] = 1
    for requirement in requirements:
        if isinstance(requirement.expression, Name | Anything) and str(requirement.expression) in found:
            found[str(requirement.expression)] = lcm(found[str(requirement.expression)], requirement.factor)
    return found


def _draw_once(
    factors: Mapping[str, int], rests: Iterable[str], given: Mapping[str, Any], rng: np.random.Generator, spread: int
) -> SizeValues:
    """One draw: at least two elements per shard; even numbers where nothing is sharded, so that they can be halved."""
    taken = {size for size in given.values() if isinstance(size, int)}
    chosen: SizeValues = {}
    for name, factor in factors.items():
        unit = factor if factor > 1 else 2
        sizes = [unit * k for k in range(2, 2 + spread + len(factors))]
        free = [size for size in sizes if size not in taken] or sizes
        chosen[name] = int(rng.choice(free[:spread]))
        taken.add(chosen[name])
    for name in rests:
        chosen[name] = tuple(int(size) for size in rng.choice(range(3, 9), 1, replace=False))
    return chosen


def _why_unfit(requirement: SizeRequirement, chosen: SizeValues, arguments: Mapping[str, Any]) -> str | None:
    """Why a dim has no size, or one that does not divide; None where it fits or only the result binds its names."""
    try:
        size = size_of(requirement.expression, chosen, arguments)
    except NoValue as unknown:
        (reason,) = unknown.args
        return f"{reason} ({requirement.text})" if isinstance(reason, str) else None
    dim, text = f"'{requirement.expression}' is {size}", requirement.text
    if size < 0:
        return f"{dim}, which is not a size ({text})"
    if size % requirement.factor:
        return f"{dim}, which is not a multiple of {requirement.factor} ({text})"
    return None


def size_of(expression: Expression, chosen: SizeValues, arguments: Mapping[str, Any]) -> int:
    """The size of a dim.

    Raises:
      NoValue: for a name that has none.
    """
    match expression:
        case Anything() if str(expression) in chosen:
            return chosen[str(expression)]
        case Number(size):
            return size
        case _:
            bound = {name: Bound(size, _DRAWN, 0) for name, size in chosen.items() if isinstance(size, int)}
            return evaluate(expression, Sizes(bound), arguments)


def _are_distinct(chosen: SizeValues, factors: Mapping[str, int], given: Mapping[str, Any]) -> bool:
    """Whether all drawn sizes are different, global ones and those per shard."""
    drawn = {name: chosen[name] for name in factors if name not in given}
    shards = {name: size // factors[name] for name, size in drawn.items() if factors[name] > 1}
    others = [size for name, size in chosen.items() if name not in shards and isinstance(size, int)]
    return len(set(drawn.values())) == len(drawn) and not set(shards.values()) & set(others)


def shape_of(hint: ArrayHint, chosen: SizeValues, arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """The global shape of a hint's array.

    Raises:
      NoValue: for a name that has no size.
    """
    shape: list[int] = []
    for dim in hint.spec.dims:
        if isinstance(dim, Rest):
            shape += chosen[dim.name or REST]
        else:
            shape.append(size_of(dim.size, chosen, arguments))
    return tuple(shape)
