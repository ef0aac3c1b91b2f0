"""Draw sizes for the dims of hints: multiples of what the mesh axes need, no two of them equal by accident."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..hints.array import ArrayHint
from ..notation.match import NoValue, evaluate
from ..notation.nodes import Anything, Dim, Expression, Name, Number, Rest
from ..notation.sizes import Bound, Sizes, Subject
from ..placement.places import Place
from ..placement.structs import names_in, names_of

REST = "..."
"""What stands for the dims of an unnamed ``...``, which are drawn alike wherever it stands."""
_TRIES = 2000
_DRAWN = Subject("placed", "drawn")
Chosen = dict[str, Any]
"""A size per name; a tuple of sizes for ``*name`` and ``...``; names like ``_`` among them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a dim wants of the sizes.

    Attributes:
      expression: the dim's size.
      factor: what it must be a multiple of, so that it divides over its mesh axes on every mesh.
      text: the hint that it stands in.
    """

    expression: Expression
    factor: int
    text: str


def wanted(hints: Iterable[tuple[Subject, ArrayHint]], places: Sequence[Place]) -> list[Wanted]:
    """What the dims of hints want, over several meshes at once.

    Raises:
      MeshAxisError: for an axis that a mesh does not have.
    """
    return [each for subject, hint in hints for each in _wanted_by(subject, hint, places)]


def _wanted_by(subject: Subject, hint: ArrayHint, places: Sequence[Place]) -> Iterator[Wanted]:
    layouts = [(place.layout(hint, subject), dict(place.region.mesh or ())) for place in places]
    for at, dim in enumerate(hint.spec.dims):
        if isinstance(dim, Dim):
            factor = lcm(*(prod(sizes.get(axis, 1) for axis in layout.parts[at]) for layout, sizes in layouts))
            yield Wanted(dim.size, factor, str(hint.text))


def draw_sizes(
    hints: Sequence[ArrayHint],
    wants: Sequence[Wanted],
    given: Mapping[str, Any],
    arguments: Mapping[str, Any],
    rng: np.random.Generator,
    verb: str,
) -> Chosen:
    """A size for every name.

    Args:
      hints: those of the arguments.
      wants: what the dims want, those of the result as well.
      given: sizes that are fixed.
      arguments: values that ``{argument}`` may speak of.
      rng: what is drawn from.
      verb: the function that messages name.

    Raises:
      ShapeError: where no sizes were found that fit.
    """
    rests, factors = _rests(hints), factors_of(hints, wants)
    # Of given sizes that do not divide the check of the arguments tells, by argument and mesh.
    wants = [want for want in wants if _is_open(want, given, arguments)]
    misfits: list[str] = []
    for attempt in range(_TRIES):
        chosen = {**_drawn(factors, rests, given, rng, spread=4 + attempt // 50), **given}
        misfits = [misfit for want in wants if (misfit := _misfit(want, chosen, arguments)) is not None]
        if not misfits and (attempt >= _TRIES // 4 or _are_apart(chosen, factors, given)):
            return chosen
    problem = misfits[0] if misfits else "no two sizes are different"
    raise ShapeError(f"{verb}: no sizes were found that fit: {problem}\n\nHint: pass sizes, as in {_example(factors)}")


def _is_open(want: Wanted, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Whether a dim's size depends on what is drawn, or has no value at all."""
    if any(name not in given for name in names_in(want.expression)):
        return True
    misfit = _misfit(Wanted(want.expression, 1, want.text), dict(given), arguments)
    return misfit is not None and not isinstance(want.expression, Number | Anything)


def _rests(hints: Iterable[ArrayHint]) -> list[str]:
    found = [dim.name or REST for hint in hints for dim in hint.spec.dims if isinstance(dim, Rest)]
    return list(dict.fromkeys(found))


def factors_of(hints: Sequence[ArrayHint], wants: Iterable[Wanted]) -> dict[str, int]:
    """Of each name, and of ``_``, what its size is drawn as a multiple of."""
    found = {name: 1 for name, is_rest in names_of(hints).items() if not is_rest}
    for dim in (dim for hint in hints for dim in hint.spec.dims):
        if isinstance(dim, Dim) and isinstance(dim.size, Anything):
            found[str(dim.size)] = 1
    for want in wants:
        if isinstance(want.expression, Name | Anything) and str(want.expression) in found:
            found[str(want.expression)] = lcm(found[str(want.expression)], want.factor)
    return found


def _drawn(
    factors: Mapping[str, int], rests: Iterable[str], given: Mapping[str, Any], rng: np.random.Generator, spread: int
) -> Chosen:
    """One draw: two elements per shard or more, and even numbers where nothing is sharded, as heads and halves are."""
    taken = {size for size in given.values() if isinstance(size, int)}
    chosen: Chosen = {}
    for name, factor in factors.items():
        unit = factor if factor > 1 else 2
        sizes = [unit * k for k in range(2, 2 + spread + len(factors))]
        free = [size for size in sizes if size not in taken] or sizes
        chosen[name] = int(rng.choice(free[:spread]))
        taken.add(chosen[name])
    for name in rests:
        chosen[name] = tuple(int(size) for size in rng.choice(range(3, 9), 1, replace=False))
    return chosen


def _misfit(want: Wanted, chosen: Chosen, arguments: Mapping[str, Any]) -> str | None:
    """Why a dim has no size, or none that divides; names that only the result has are bound by it."""
    try:
        size = size_of(want.expression, chosen, arguments)
    except NoValue as unknown:
        (reason,) = unknown.args
        return f"{reason} ({want.text})" if isinstance(reason, str) else None
    if size < 0:
        return f"'{want.expression}' is {size}, which is no size ({want.text})"
    if size % want.factor:
        return f"'{want.expression}' is {size}, which is no multiple of {want.factor} ({want.text})"
    return None


def size_of(expression: Expression, chosen: Chosen, arguments: Mapping[str, Any]) -> int:
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


def _are_apart(chosen: Chosen, factors: Mapping[str, int], given: Mapping[str, Any]) -> bool:
    """Whether no drawn size is another's, in whole or per shard."""
    drawn = {name: chosen[name] for name in factors if name not in given}
    shards = {name: size // factors[name] for name, size in drawn.items() if factors[name] > 1}
    others = [size for name, size in chosen.items() if name not in shards and isinstance(size, int)]
    return len(set(drawn.values())) == len(drawn) and not set(shards.values()) & set(others)


def shape_of(hint: ArrayHint, chosen: Chosen, arguments: Mapping[str, Any]) -> tuple[int, ...]:
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


def _example(factors: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={4 * factor}" for name, factor in list(factors.items())[:3]) or "x=..."
