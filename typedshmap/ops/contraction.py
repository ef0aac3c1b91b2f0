"""``einsum``: one contraction on every shard, and the sum over the mesh axes of contracted dims.

Of two traced arrays the contraction is the ``dot_general`` that `jax.numpy.einsum` makes of it, worked out once per
pattern: the search for the best order of contractions, which two arrays do not need, is most of the time of tracing."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import einops
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from .. import _jax
from ..notation.pattern import Dots, PatternDim
from .factor_sharding import Product, addend_axes, plan_product, run_partial_sums
from .operands import (
    Operand,
    key_of_operands,
    read_operands,
    record_result,
    refuse_keys,
    refuse_unknown,
    untouched_axes,
)
from .operation import Operation, read_operation, sides_of

_NUMBERS = (bool, int, float, complex)


def einsum(*operands_and_pattern: Any, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Multiply arrays and sum over shared dims, as `einops.einsum`: the arrays, then the pattern.

    Over the axes of a contracted dim the result says what becomes of the sum: nothing (psum),
    ``[f/tp]`` (psum_scatter), ``+tp`` (left unreduced), ``~tp`` (left varying, to be scaled or
    summed later). A dim is sharded the same way in every operand, and no axis shards two dims.

    ```python
    y = einsum(x, w, "[b/dp] [m/tp], [m/tp] f -> [b/dp] f")  # f32[2,8], f32[8,16] -> f32[2,16] per shard, one psum
    ```

    Args:
      *operands_and_pattern: any number of arrays, and the pattern.
      precision: as for `jax.numpy.einsum`.
      preferred_element_type: as for `jax.numpy.einsum`; sums over mesh axes are taken in it, too.

    Returns:
      The array of the pattern's right side. A gathered operand (``~`` or ``-``) gets its gradient by
      one reduce-scatter.

    Raises:
      PatternError: for a pattern that cannot be parsed, or whose dims are sharded so that no shard
        could compute its part.
      ShapeError, VaryingError, ShardingError: for an operand that is not its side of the pattern.
      MeshAxisError: for an axis that the mesh does not have.
    """
    *values, pattern = operands_and_pattern or ("",)
    if not values and not isinstance(pattern, str):
        values, pattern = [pattern], None
    values = [np.asarray(value) if isinstance(value, _NUMBERS) else value for value in values]
    call = read_operation("einsum", pattern, len(values), allows_underscore=True)
    operands = read_operands(call, tuple(values))
    plan = call.plan(key_of_operands(operands), lambda: _plan(call, operands))
    local, product = _contract(call, operands, plan, precision, preferred_element_type), plan.product
    value, left = run_partial_sums(call, local, product.sums), addend_axes(local, product.sums)
    return record_result(call, value, operands, product.result, untouched_axes(operands, product.result), left)


@dataclass(frozen=True, slots=True)
class Contraction:
    """What an einsum does.

    Attributes:
      letters: the contraction on one shard, as `jax.numpy.einsum` writes it.
      dot: the same as one product of two arrays, where it is one.
      product: the result, and its sums over mesh axes.
    """

    letters: str
    dot: Dot | None
    product: Product


def _plan(call: Operation, operands: list[Operand]) -> Contraction:
    call.require_names()
    names = list(dict.fromkeys(name for side in call.pattern.operands for name in side.names))
    seen: set[str] = set()
    for factor in call.result.factors:
        if factor.name not in names:
            raise call.fault(f"the pattern has '{factor}' only on the right", factor.span)
        if factor.name in seen:
            raise call.fault(f"the pattern has '{factor}' twice in its result", factor.span)
        seen.add(factor.name)
    if len(names) > len(string.ascii_letters):
        raise call.fault(f"the pattern has {len(names)} names; einsum knows {len(string.ascii_letters)}")
    letter = dict(zip(names, string.ascii_letters, strict=False))
    letters = _written(call, "", ",", "->", lambda dim: letter[str(dim.factors[0])])
    return Contraction(letters, plan_dot(letters), plan_product(call, operands))


def _written(call: Operation, space: str, comma: str, arrow: str, name: Callable[[PatternDim], str]) -> str:
    """The pattern without its sharding."""
    *operands, result = (
        space.join(["..." if isinstance(dim, Dots) else name(dim) for dim in side.dims])
        for side in (*call.pattern.operands, call.result)
    )
    return f"{comma.join(operands)}{arrow}{result}"


def _contract(
    call: Operation, operands: list[Operand], plan: Contraction, precision: Any, preferred_element_type: Any
) -> Any:
    """The contraction on one shard."""
    values = [operand.value for operand in operands]
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    if not call.region.manual:
        # On Explicit axes JAX asks for the sharding of a global result where sharded dims are summed.
        shardings = (_jax.array.explicit_spec(value) for value in values)
        mesh = next((sharding.mesh for sharding in shardings if sharding is not None), None)
        if mesh is not None:
            spec = call.region.spec(sides_of(call.pattern)[-1][1], len(plan.product.result.dims))
            options["out_sharding"] = NamedSharding(mesh, spec)
    options = {name: option for name, option in options.items() if option is not None}
    if not options and not any(map(_jax.array.is_jax_array, values)):
        arguments: list[Any] = [*values, _written(call, " ", ", ", " -> ", lambda dim: str(dim.factors[0]))]
        return einops.einsum(*arguments)
    for operand in operands:
        refuse_unknown(call, operand.value, operand.subject)
        refuse_keys(call, operand)
    if call.region.has_vma:
        for operand in operands if len(operands) > 1 else ():
            for axis in sorted(_jax.array.manual_type(operand.value).unreduced):
                where = f"{operand.subject.phrase} is unreduced over '{axis}' in JAX's type"
                cure = f"take the sum first (psum), or leave it '~{axis}' where it was made"
                raise call.fault(f"{where}, and JAX does not multiply such values", operand.layout.side.span, cure)
        values = [_jax.casts.drop_reduced(value) for value in values]
    if plan.dot is not None and options.keys() <= {"precision"} and can_dot(plan.dot, values):
        return dot(plan.dot, values, precision)
    return jnp.einsum(plan.letters, *values, **options)


@dataclass(frozen=True, slots=True)
class Dot:
    """Two operands contracted, and the result's dims put in order.

    Attributes:
      letters: the contraction as `jax.numpy.einsum` writes it, which is its name in profiles.
      is_swapped: whether the second operand comes first.
      numbers: the dimension numbers of the ``dot_general``: contracted dims, then batch dims, of both.
      order: where the result's dims are in the product; None if in this order.
    """

    letters: str
    is_swapped: bool
    numbers: Any
    order: tuple[int, ...] | None


def plan_dot(letters: str) -> Dot | None:
    """The one ``dot_general`` of a contraction; None where a dim is summed, or a diagonal taken, before it."""
    sides, _, result = letters.partition("->")
    operands = sides.split(",")
    if len(operands) != 2 or "." in letters or any(len(set(side)) < len(side) for side in operands):
        return None
    first, second = operands
    shared = set(first) & set(second)
    if not (set(first) ^ set(second)) <= set(result):
        return None
    straight = _plan_dot(letters, first, second, result, shared)
    if straight.order is None:
        return straight
    # As `jax.numpy.einsum` has it: what needs a transpose anyway begins with the second.
    swapped = _plan_dot(letters, second, first, result, shared)
    return Dot(letters, True, swapped.numbers, swapped.order)


def _plan_dot(letters: str, first: str, second: str, result: str, shared: set[str]) -> Dot:
    batch = [name for name in result if name in shared]
    contracted = sorted(shared - set(result))
    made = [*batch, *(name for name in first if name not in shared), *(name for name in second if name not in shared)]
    numbers = tuple(tuple(tuple(map(side.index, names)) for side in (first, second)) for names in (contracted, batch))
    order = tuple(map(made.index, result))
    return Dot(letters, False, numbers, None if order == tuple(range(len(made))) else order)


def can_dot(what: Dot, values: list[Any]) -> bool:
    """Whether two values are multiplied as they are: one is traced, both of one dtype, and no size 1 is broadcast."""
    if not all(map(_jax.array.is_jax_array, values)) or not any(map(_jax.array.is_tracer, values)):
        return False
    first, second = map(_jax.array.aval_of, reversed(values) if what.is_swapped else values)
    if first.dtype != second.dtype or first.weak_type or second.weak_type:
        return False
    return all(first.shape[at] == second.shape[to] for both in what.numbers for at, to in zip(*both, strict=True))


def dot(what: Dot, values: list[Any], precision: Any) -> Any:
    """The contraction of two values."""
    first, second = reversed(values) if what.is_swapped else values
    dtype = _jax.array.aval_of(first).dtype
    with jax.named_scope(what.letters):
        made = jax.lax.dot_general(first, second, what.numbers, precision, preferred_element_type=dtype)
        return made if what.order is None else jax.lax.transpose(made, what.order)
