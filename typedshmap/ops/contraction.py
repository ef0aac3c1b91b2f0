"""``einsum``: one contraction on every shard, and the sum over the mesh axes of contracted dims."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import einops
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from .. import _jax
from ..notation.patterns import Dots, Side
from .call import Call, begin, sides_of
from .dots import Dot, can_dot, dot, dot_of
from .operands import (
    Operand,
    idle_over,
    key_of_operands,
    read_operands,
    refuse_keys,
    refuse_unknown,
    remember_result,
)
from .products import Product, plan_product
from .sums import left_over, run_sums

_NUMBERS = (bool, int, float, complex)


def einsum(*operands_and_pattern: Any, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Multiply arrays and sum over shared dims, as `einops.einsum`: the arrays, then the pattern.

    Over the axes of a contracted dim the result says what becomes of the sum: nothing (psum),
    ``[f/tp]`` (psum_scatter), ``+tp`` (left unreduced), ``~tp`` (left varying, to be scaled or
    summed later). A dim is split alike in every operand, and no axis splits two dims.

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
      PatternError: for a pattern that cannot be read, or whose dims are split so that no shard
        could compute its part.
      ShapeError, VaryingError, ShardingError: for an operand that is not its side of the pattern.
      MeshAxisError: for an axis that the mesh does not have.
    """
    *values, pattern = operands_and_pattern or ("",)
    if not values and not isinstance(pattern, str):
        values, pattern = [pattern], None
    values = [np.asarray(value) if isinstance(value, _NUMBERS) else value for value in values]
    call = begin("einsum", pattern, len(values), allows_underscore=True)
    operands = read_operands(call, tuple(values))
    plan = call.plan(key_of_operands(operands), lambda: _plan(call, operands))
    local, product = _contract(call, operands, plan, precision, preferred_element_type), plan.product
    value, left = run_sums(call, local, product.sums), left_over(local, product.sums)
    return remember_result(call, value, operands, product.result, idle_over(operands, product.result), left)


@dataclass(frozen=True, slots=True)
class Contraction:
    """What an einsum does.

    Attributes:
      letters: the contraction on one shard, as `jax.numpy.einsum` reads it.
      dot: the same as one product of two arrays, where it is that.
      product: the result, and its sums over mesh axes.
    """

    letters: str
    dot: Dot | None
    product: Product


def _plan(call: Call, operands: list[Operand]) -> Contraction:
    _check_names(call)
    letters = _letters(call)
    return Contraction(letters, dot_of(letters), plan_product(call, operands))


def _check_names(call: Call) -> None:
    """What einops says of an einsum's names, said with their place."""
    call.require_names()
    known = {name for side in call.pattern.operands for name in side.names}
    for index, side in enumerate((*call.pattern.operands, call.result)):
        is_result = index == len(call.pattern.operands)
        for at, factor in enumerate(side.factors):
            if is_result and factor.name not in known:
                raise call.fault(f"the pattern has '{factor}' only on the right", factor.span)
            if is_result and factor.name in side.names[:at]:
                raise call.fault(f"the pattern has '{factor}' twice in its result", factor.span)


def _contract(
    call: Call, operands: list[Operand], plan: Contraction, precision: Any, preferred_element_type: Any
) -> Any:
    """The contraction on one shard."""
    values = [operand.value for operand in operands]
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    options["out_sharding"] = _explicit_result(call, plan, values)
    options = {name: option for name, option in options.items() if option is not None}
    if not options and not any(_jax.is_jax_array(value) for value in values):
        arguments: list[Any] = [*values, _without_sharding(call)]
        return einops.einsum(*arguments)
    for operand in operands:
        refuse_unknown(call, operand.value, operand.subject)
        refuse_keys(call, operand)
    if call.region.typed:
        values = [_operand_of_product(call, operand) for operand in operands]
    if plan.dot is not None and options.keys() <= {"precision"} and can_dot(plan.dot, values):
        return dot(plan.dot, values, precision)
    return jnp.einsum(plan.letters, *values, **options)


def _explicit_result(call: Call, plan: Contraction, values: list[Any]) -> Any:
    """The sharding of a global result on Explicit axes, which JAX asks for where dims that are split are summed."""
    known = [_jax.explicit_spec(value) for value in values]
    mesh = next((sharding.mesh for sharding in known if sharding is not None), None)
    if call.region.held or mesh is None:
        return None
    return NamedSharding(mesh, call.region.spec(sides_of(call.pattern)[-1][1], len(plan.product.result.places)))


def _operand_of_product(call: Call, operand: Operand) -> Any:
    """A value that JAX multiplies: reduced axes as varying; one that is unreduced it multiplies by nothing."""
    unreduced = sorted(_jax.manual_type(operand.value).unreduced)
    if unreduced and len(call.pattern.operands) > 1:
        axis = unreduced[0]
        problem = f"{operand.subject.phrase} is unreduced over '{axis}' in JAX's type, which JAX multiplies by nothing"
        cure = f"take the sum first (psum), or leave it '~{axis}' where it was made"
        raise call.fault(problem, operand.laid.side.span, cure)
    return _jax.without_reduced(operand.value)


def _without_sharding(call: Call) -> str:
    def side(s: Side) -> str:
        return " ".join("..." if isinstance(dim, Dots) else str(dim.factors[0]) for dim in s.dims)

    return f"{', '.join(map(side, call.pattern.operands))} -> {side(call.result)}"


def _letters(call: Call) -> str:
    """The pattern as `jax.numpy.einsum` reads it: a letter for each name."""
    names = list(dict.fromkeys(name for side in call.pattern.operands for name in side.names))
    if len(names) > len(string.ascii_letters):
        raise call.fault(f"the pattern has {len(names)} names; einsum knows {len(string.ascii_letters)}")
    letter: Mapping[str, str] = dict(zip(names, string.ascii_letters, strict=False))

    def side(s: Side) -> str:
        return "".join("..." if isinstance(dim, Dots) else letter[str(dim.factors[0])] for dim in s.dims)

    return f"{','.join(map(side, call.pattern.operands))}->{side(call.result)}"
