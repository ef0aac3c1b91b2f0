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
from ..notation.spec import Anything, Dim, Expression, Name, Rest, names_in_expression
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

    def misfit(self, sizes: SizeValues, arguments: Mapping[str, Any], factor: int) -> str | None:
        """Why the dim has no size, or one that is not a multiple of a factor.

        None where it is one, and where only the result binds its names.
        """
        try:
            size = size_of(self.expression, sizes, arguments)
        except NoValue as unknown:
            (reason,) = unknown.args
            return f"{reason} ({self.text})" if isinstance(reason, str) else None
        if size < 0:
            return f"'{self.expression}' is {size}, which is not a size ({self.text})"
        if size % factor:
            return f"'{self.expression}' is {size}, which is not a multiple of {factor} ({self.text})"
        return None


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


def factors_of(hints: Sequence[ArrayHint], requirements: Iterable[SizeRequirement]) -> dict[str, int]:
    """The number that the size of each name, and of ``_``, is drawn as a multiple of."""
    found = {name: 1 for name, is_rest in names_of(hints).items() if not is_rest}
    for dim in (dim for hint in hints for dim in hint.spec.dims):
        if isinstance(dim, Dim) and isinstance(dim.size, Anything):
            found[str(dim.size)] = 1
    for requirement in requirements:
        name = str(requirement.expression)
        if isinstance(requirement.expression, Name | Anything) and name in found:
            found[name] = lcm(found[name], requirement.factor)
    return found


def draw_sizes(
    hints: Sequence[ArrayHint],
    requirements: Sequence[SizeRequirement],
    given: Mapping[str, Any],
    arguments: Mapping[str, Any],
    rng: np.random.Generator,
    source: str,
) -> SizeValues:
    """A size for every name.

    Args:
      hints: those of the arguments.
      requirements: those of all dims, also of the result.
      given: sizes that are fixed.
      arguments: the values for ``{argument}``.
      rng: what is drawn from.
      source: how messages begin.

    Raises:
      ShapeError: where no sizes were found that fit.
    """
    rests = dict.fromkeys(dim.name or REST for hint in hints for dim in hint.spec.dims if isinstance(dim, Rest))
    factors, fixed = factors_of(hints, requirements), dict(given)
    # Of a dim whose size is given, the check of the arguments reports that it does not divide, with argument and mesh.
    undetermined = [
        each
        for each in requirements
        if not fixed.keys() >= {*names_in_expression(each.expression)} or each.misfit(fixed, arguments, 1)
    ]
    misfits: list[str] = []
    for attempt in range(_TRIES):
        sizes = {**_draw_once(factors, rests, fixed, rng, spread=4 + attempt // 50), **fixed}
        misfits = [misfit for each in undetermined if (misfit := each.misfit(sizes, arguments, each.factor))]
        if not misfits and (attempt >= _TRIES // 4 or _are_distinct(sizes, factors, fixed)):
            return sizes
    problem = misfits[0] if misfits else "no two sizes are different"
    example = ", ".join(f"{name}={4 * factor}" for name, factor in list(factors.items())[:3]) or "x=..."
    raise ShapeError(f"{source}: no sizes were found that fit: {problem}\n\nHint: pass sizes, as in {example}")


def _draw_once(
    factors: Mapping[str, int], rests: Iterable[str], given: Mapping[str, Any], rng: np.random.Generator, spread: int
) -> SizeValues:
    """One draw: at least two elements per shard; even numbers where nothing is sharded, so that they can be halved."""
    taken = {size for size in given.values() if isinstance(size, int)}
    drawn: SizeValues = {}
    for name, factor in factors.items():
        unit = factor if factor > 1 else 2
        sizes = [unit * k for k in range(2, 2 + spread + len(factors))]
        free = [size for size in sizes if size not in taken] or sizes
        drawn[name] = int(rng.choice(free[:spread]))
        taken.add(drawn[name])
    return drawn | {name: tuple(rng.choice(range(3, 9), 1, replace=False).tolist()) for name in rests}


def _are_distinct(sizes: SizeValues, factors: Mapping[str, int], given: Mapping[str, Any]) -> bool:
    """Whether all drawn sizes are different, global ones and those per shard."""
    drawn = {name: sizes[name] for name in factors if name not in given}
    shards = {name: size // factors[name] for name, size in drawn.items() if factors[name] > 1}
    others = [size for name, size in sizes.items() if name not in shards and isinstance(size, int)]
    return len(set(drawn.values())) == len(drawn) and not set(shards.values()) & set(others)


def size_of(expression: Expression, sizes: SizeValues, arguments: Mapping[str, Any]) -> int:
    """The size of a dim.

    Raises:
      NoValue: for a name that has none.
    """
    if isinstance(expression, Anything) and str(expression) in sizes:
        return sizes[str(expression)]
    bound = {name: Bound(size, _DRAWN, 0) for name, size in sizes.items() if isinstance(size, int)}
    return evaluate(expression, Sizes(bound), arguments)


def shape_of(hint: ArrayHint, sizes: SizeValues, arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """The global shape of a hint's array.

    Raises:
      NoValue: for a name that has no size.
    """
    shape: list[int] = []
    for dim in hint.spec.dims:
        shape += sizes[dim.name or REST] if isinstance(dim, Rest) else [size_of(dim.size, sizes, arguments)]
    return tuple(shape)
