"""``einsum``: one contraction on every shard, planned once per pattern, and the sum over contracted mesh axes."""

from __future__ import annotations

import string
from typing import Any, NamedTuple

import einops
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from .. import _jax
from .factor_sharding import PartialSums, plan_product, record_sums, run_partial_sums
from .operation import Operand, Operation, read_operation

_NUMBERS = (bool, int, float, complex)


def einsum(*operands_and_pattern: Any, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Multiply arrays and sum over shared dims, as `einops.einsum`: the arrays, then the pattern.

    Over the axes of a contracted dim the result determines the sum: no mention (psum), ``[f/tp]``
    (psum_scatter), ``+tp`` (unreduced, to be scaled and summed later), ``~tp`` (varying, each shard
    keeps its own). All operands must shard a dim in the same way, and an axis shards only one dim.

    ```python
    y = einsum(x, w, "[b/dp] [m/tp], [m/tp] f -> [b/dp] f")  # f32[2,8], f32[8,16] -> f32[2,16] per shard, one psum
    ```

    Args:
      *operands_and_pattern: any number of arrays, and the pattern.
      precision: as for `jax.numpy.einsum`.
      preferred_element_type: as for `jax.numpy.einsum`; sums over mesh axes also use it.

    Returns:
      The array of the pattern's right side. The gradient of a gathered operand (``~`` or ``-``) is one
      reduce-scatter.

    Raises:
      PatternError: for a pattern that cannot be parsed, or whose sharding does not let a shard compute
        its part.
      ShapeError, VaryingError, ShardingError: for an operand that contradicts its side of the pattern.
      MeshAxisError: for an axis that the mesh does not have.
    """
    *values, pattern = operands_and_pattern or ("",)
    if not values and not isinstance(pattern, str):
        values, pattern = [pattern], None
    values = [np.asarray(value) if isinstance(value, _NUMBERS) else value for value in values]
    call = read_operation("einsum", pattern, values, allows_underscore=True)
    operands = call.read_operands(tuple(values))
    plan = call.plan_for(operands, lambda: _plan(call, operands))
    local = _contract(call, operands, plan, precision, preferred_element_type)
    return record_sums(call, operands, plan.sums, local, run_partial_sums(call, local, plan.sums))


class Contraction(NamedTuple):
    """The contraction on one shard: letters, which profiles also show; one product if possible; and the sums."""

    letters: str
    dot: Dot | None
    sums: PartialSums


def _plan(call: Operation, operands: list[Operand]) -> Contraction:
    call.require_names()
    call.refuse_new_names()
    factors = list(call.result.factors)
    for at, factor in enumerate(factors):
        if factor in factors[:at]:
            raise call.fault(f"the pattern has '{factor}' twice in its result", factor.span)
    names = list(dict.fromkeys(name for side in call.pattern.operands for name in side.names))
    if len(names) > len(string.ascii_letters):
        raise call.fault(f"the pattern has {len(names)} names; einsum knows {len(string.ascii_letters)}")
    letter = dict(zip(names, string.ascii_letters, strict=False))
    letters = call.local_pattern(lambda dim: letter[str(dim.factors[0])]).replace(" ", "")
    return Contraction(letters, plan_dot(letters), plan_product(call, operands))


def _contract(
    call: Operation, operands: list[Operand], plan: Contraction, precision: Any, preferred_element_type: Any
) -> Any:
    values = [operand.value for operand in operands]
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    if call.mesh is not None and not call.region.manual and call.region.explicit & call.placed_axes:
        # On Explicit axes JAX needs the sharding of a global result if sharded dims are summed.
        spec = call.explicit_spec(call.explicit_axes(operands), plan.sums.result, has_marks=True)
        options["out_sharding"] = NamedSharding(call.mesh, spec)
    elif call.region.manual and call.region.explicit:
        # On axes that are not manual here, JAX needs it if two operands are sharded along a contracted dim.
        known, kept = call.explicit_axes(operands), {key for place in plan.sums.result.dims for key in place.keys}
        if any(len(axes) > 1 for key, axes in known.items() if key not in kept):
            options["out_sharding"] = call.explicit_spec(known, plan.sums.result)
    options = {name: option for name, option in options.items() if option is not None}
    if not options and not any(map(_jax.array.is_jax_array, values)):
        arguments: list[Any] = [*values, call.local_pattern(lambda dim: str(dim.factors[0]))]
        try:
            return einops.einsum(*arguments)
        except Exception:
            for operand in operands:
                call.refuse_unknown(operand.value, operand.subject)  # arrays of objects have their own rules
            raise
    for operand in operands:
        call.refuse_non_numbers(operand)
    if call.region.has_vma:
        for operand in operands if len(operands) > 1 else ():
            call.refuse_unreduced_type(operand, "and JAX does not multiply such values")
        values = [_jax.casts.drop_reduced(value) for value in values]
    dot = plan.dot
    try:
        if dot is not None and options.keys() <= {"precision"} and can_dot(dot, values):
            with jax.named_scope(plan.letters):
                # jit needs hashable options.
                return _multiply(*values, dot, tuple(precision) if isinstance(precision, list) else precision)
        return jnp.einsum(plan.letters, *values, **options)
    except Exception:
        call.refuse_global_marks(operands)
        raise


class Dot(NamedTuple):
    """A product of two operands; ``order`` has the position of each dim of the result in it."""

    is_swapped: bool
    numbers: Any
    order: tuple[int, ...] | None


@_jax.staging.linearised_once
def _multiply(first: Any, second: Any, dot: Dot, precision: Any) -> Any:
    first, second = (second, first) if dot.is_swapped else (first, second)
    dtype = _jax.array.aval_of(first).dtype
    made = jax.lax.dot_general(first, second, dot.numbers, precision, preferred_element_type=dtype)
    return made if dot.order is None else jax.lax.transpose(made, dot.order)


def plan_dot(letters: str) -> Dot | None:
    """The ``dot_general`` of a contraction; None if a dim is summed, or a diagonal taken, before the product."""
    sides, _, result = letters.partition("->")
    operands = sides.split(",")
    if len(operands) != 2 or "." in letters or any(len(set(side)) < len(side) for side in operands):
        return None
    if not set(operands[0]) ^ set(operands[1]) <= set(result):
        return None
    shared, alone = set(operands[0]) & set(operands[1]), set(operands[0]) ^ set(operands[1])
    batch, contracted = [name for name in result if name in shared], sorted(shared - set(result))

    def plan_in_order(is_swapped: bool) -> Dot:
        both = operands[::-1] if is_swapped else operands
        made = [*batch, *(name for name in "".join(both) if name in alone)]
        numbers = tuple(tuple(tuple(map(side.index, names)) for side in both) for names in (contracted, batch))
        return Dot(is_swapped, numbers, None if made == list(result) else tuple(map(made.index, result)))

    # As in `jax.numpy.einsum`: if a transpose is needed anyway, the second operand comes first.
    straight = plan_in_order(False)
    return straight if straight.order is None else plan_in_order(True)


def can_dot(what: Dot, values: list[Any]) -> bool:
    """Whether ``dot_general`` accepts two values: one is traced, the dtypes are equal, and no size 1 is broadcast."""
    if not all(map(_jax.array.is_jax_array, values)) or not any(map(_jax.array.is_tracer, values)):
        return False
    first, second = map(_jax.array.aval_of, reversed(values) if what.is_swapped else values)
    if first.dtype != second.dtype or first.weak_type or second.weak_type:
        return False
    for of_first, of_second in what.numbers:
        for at, to in zip(of_first, of_second, strict=True):
            if first.shape[at] != second.shape[to]:
                return False
    return True
