"""Draw sizes for the names in hints, and values for arrays.

Sizes divide over their mesh axes, and no two of them are equal by accident."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

import jax
import numpy as np

from ..errors.failures import Bound, Subject
from ..hints.array_hint import ArrayHint
from ..notation.match import NoValue, Sizes, evaluate
from ..notation.spec import Anything, Dim, Expression, Name, Rest
from ..placement.context import PlacementContext
from ..placement.structs import names_of

REST = "..."
"""The name under which the sizes of an unnamed ``...`` are kept, which are the same for all."""
_DRAWN = Subject("placed", "drawn")
SizeValues = dict[str, Any]
"""The size of each name, ``_`` among them; a tuple of sizes for ``*name`` and ``...``."""


@dataclass(frozen=True, slots=True)
class SizeRequirement:
    """The requirement of one dim on the sizes.

    Attributes:
      expression: the size of the dim.
      factor: a divisor of that size, so that the dim divides over its mesh axes on every mesh.
      text: the hint that has the dim.
    """

    expression: Expression
    factor: int
    text: str

    def misfit(self, sizes: SizeValues, arguments: Mapping[str, Any], factor: int) -> str | None:
        """The reason why the size of the dim is not a multiple of a factor, in words.

        None if it is one, and if only the result binds its names.
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
    hints: Iterable[tuple[Subject, ArrayHint]], contexts: Sequence[PlacementContext]
) -> list[SizeRequirement]:
    """The requirements of the dims of hints, for all of several meshes.

    Raises:
      MeshAxisError: for an axis that a mesh does not have.
    """
    found: list[SizeRequirement] = []
    for subject, hint in hints:
        layouts = [(each.layout(hint, subject), dict(each.context.mesh or ())) for each in contexts]
        for at, dim in enumerate(hint.spec.dims):
            if isinstance(dim, Dim):
                factor = lcm(*(prod(sizes.get(axis, 1) for axis in layout.dim_axes[at]) for layout, sizes in layouts))
                found.append(SizeRequirement(dim.size, factor, str(hint.text)))
    return found


def factors_of(hints: Sequence[ArrayHint], requirements: Iterable[SizeRequirement]) -> dict[str, int]:
    """The number by which the drawn size of each name, and of ``_``, has to be divisible."""
    found = {name: 1 for name, is_rest in names_of(hints).items() if not is_rest}
    for dim in (dim for hint in hints for dim in hint.spec.dims):
        if isinstance(dim, Dim) and isinstance(dim.size, Anything):
            found[str(dim.size)] = 1
    for requirement in requirements:
        name = str(requirement.expression)
        if isinstance(requirement.expression, Name | Anything) and name in found:
            found[name] = lcm(found[name], requirement.factor)
    return found


def draw_once(
    factors: Mapping[str, int], rests: Iterable[str], given: Mapping[str, Any], rng: np.random.Generator, spread: int
) -> SizeValues:
    """Draw all sizes once: at least two elements per shard, and even sizes of unsharded dims, to be halved."""
    taken = {size for size in given.values() if isinstance(size, int)}
    drawn: SizeValues = {}
    for name, factor in factors.items():
        unit = factor if factor > 1 else 2
        sizes = [unit * k for k in range(2, 2 + spread + len(factors))]
        free = [size for size in sizes if size not in taken] or sizes
        drawn[name] = int(rng.choice(free[:spread]))
        taken.add(drawn[name])
    return drawn | {name: tuple(rng.choice(range(3, 9), 1, replace=False).tolist()) for name in rests}


def are_distinct(sizes: SizeValues, factors: Mapping[str, int], given: Mapping[str, Any]) -> bool:
    """Whether all drawn sizes are different, global sizes as well as those of shards."""
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


def draw_value(shape: tuple[int, ...], dtype: Any, below: int, seed: Sequence[int]) -> Any:
    """A random global array on the host: normal floats, small integers, keys.

    Args:
      shape: its global shape.
      dtype: its dtype.
      below: the exclusive upper bound of integers.
      seed: the seed, on which alone the value depends.
    """
    jnp = jax.numpy
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        key = key_of(seed)
        return jax.random.split(key, prod(shape)).reshape(shape) if shape else key
    rng = np.random.default_rng(seed)
    if jnp.issubdtype(dtype, jnp.floating):
        return rng.standard_normal(shape).astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if jnp.issubdtype(dtype, jnp.bool_):
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, max(1, min(below, int(jnp.iinfo(dtype).max))), shape).astype(dtype)


def key_of(seed: Sequence[int]) -> jax.Array:
    """A key that depends on the seed alone."""
    return jax.random.key(int(np.random.SeedSequence(seed).generate_state(1)[0]))


def bound_of(hint: ArrayHint, others: Iterable[ArrayHint], sizes: SizeValues) -> int:
    """The exclusive upper bound of drawn integers, so that they are valid indices of the other arrays.

    It is the smallest dim that they may index: the last dim of an array with which they share dims (logits and their
    labels), the first dim of an array with which they share none (a table).
    """
    own, bounds = names_of([hint]), list[int]()
    for other in others:
        names = [dim.size.name for dim in other.spec.dims if isinstance(dim, Dim) and isinstance(dim.size, Name)]
        free = [name for name in names if name not in own]
        if other is not hint and free and len(other.spec.dims) > 1:
            size = sizes.get(free[-1] if len(free) < len(names) else free[0])
            bounds += [size] if isinstance(size, int) else []
    return min(bounds, default=2)
