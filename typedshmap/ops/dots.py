"""A contraction of two traced arrays as the ``dot_general`` that it comes to.

`jax.numpy.einsum` makes the same operations, and looks for the order of contractions first, which for
two arrays is most of the time that tracing takes. Which they are is worked out once per pattern here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from .. import _jax


@dataclass(frozen=True, slots=True)
class Dot:
    """Two operands contracted, and the result's dims put in order.

    Attributes:
      letters: the contraction as `jax.numpy.einsum` reads it, under whose name it stands in profiles.
      is_swapped: whether the second operand comes first.
      numbers: the dimension numbers of the ``dot_general``: contracted dims, then batch dims, of both.
      order: where the result's dims stand in the product; None if just so.
    """

    letters: str
    is_swapped: bool
    numbers: Any
    order: tuple[int, ...] | None


def dot_of(letters: str) -> Dot | None:
    """The one ``dot_general`` of a contraction; None where something is to be summed, or chosen, before."""
    sides, _, result = letters.partition("->")
    operands = sides.split(",")
    if len(operands) != 2 or "." in letters or any(len(set(side)) < len(side) for side in operands):
        return None
    first, second = operands
    shared = set(first) & set(second)
    if not (set(first) ^ set(second)) <= set(result):
        return None
    straight = _dot(letters, first, second, result, shared)
    if straight.order is None:
        return straight
    # As `jax.numpy.einsum` has it: what needs a transpose anyway begins with the second.
    swapped = _dot(letters, second, first, result, shared)
    return Dot(letters, True, swapped.numbers, swapped.order)


def _dot(letters: str, first: str, second: str, result: str, shared: set[str]) -> Dot:
    batch = [name for name in result if name in shared]
    contracted = sorted(shared - set(result))
    made = [*batch, *(name for name in first if name not in shared), *(name for name in second if name not in shared)]
    numbers = tuple(tuple(tuple(map(side.index, names)) for side in (first, second)) for names in (contracted, batch))
    order = tuple(map(made.index, result))
    return Dot(letters, False, numbers, None if order == tuple(range(len(made))) else order)


def can_dot(what: Dot, values: list[Any]) -> bool:
    """Whether two values are multiplied as they are: one is traced, both of one dtype, and no size 1 is spread."""
    if not all(_jax.is_jax_array(value) for value in values) or not any(_jax.is_tracer(value) for value in values):
        return False
    first, second = map(_jax.facts, _sides(what, values))
    if first.dtype != second.dtype or first.weak_type or second.weak_type:
        return False
    pairs = (pair for both in what.numbers for pair in zip(*both, strict=True))
    return all(first.shape[at] == second.shape[to] for at, to in pairs)


def dot(what: Dot, values: list[Any], precision: Any) -> Any:
    """The contraction of two values."""
    first, second = _sides(what, values)
    dtype = _jax.facts(first).dtype
    with jax.named_scope(what.letters):
        made = jax.lax.dot_general(first, second, what.numbers, precision, preferred_element_type=dtype)
        return made if what.order is None else jax.lax.transpose(made, what.order)


def _sides(what: Dot, values: list[Any]) -> tuple[Any, Any]:
    first, second = values
    return (second, first) if what.is_swapped else (first, second)
