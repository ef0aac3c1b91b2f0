"""What each reduction does over mesh axes, after einops has reduced one shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from .. import _jax
from ..errors import PatternError
from .call import Call, Laid
from .operands import Operand
from .sums import Sums, run_sums

REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")
_LINEAR = ("sum", "mean")


def refuse_marks(call: Call, reduction: Any, operand: Operand, right: Laid, owed: Mapping[str, str]) -> None:
    """Refuse a reduction that is no sum where the pattern leaves or scatters one."""
    if reduction in _LINEAR:
        return
    name = repr(reduction) if isinstance(reduction, str) else "a function"
    for axis in sorted(operand.laid.unreduced):
        cure = f"take the sum first: psum(x, '... +{axis} -> ...')"
        raise call.fault(f"{name} of a value that owes a sum over '{axis}'", operand.laid.side.span, cure)
    span = right.side.span
    for axis in owed:
        if not isinstance(reduction, str) and axis not in right.varying:
            problem = f"a function reduces one shard, and '{owed[axis]}' is split over '{axis}'"
            raise call.fault(problem, span, f"write '~{axis}' on the result, and combine the shards yourself")
        if axis in right.unreduced | right.sharded:
            problem = f"{name} is no sum, and nothing of it can be owed or scattered over '{axis}'"
            raise call.fault(problem, span, f"drop '{axis}' from the result, or write '~{axis}'")


def combine(call: Call, value: Any, sums: Sums, reduction: Any, operand: Operand, owed: Mapping[str, str]) -> Any:
    """Reduce over mesh axes what was reduced on every shard."""
    if reduction == "mean":
        return _mean(call, value, sums, operand, owed)
    return run_sums(call, value, sums, _collective(call, reduction))


def _collective(call: Call, reduction: Any) -> Callable[[Any, tuple[str, ...]], Any] | None:
    """What a reduction is over mesh axes; None for the sum."""
    match reduction:
        case "sum":
            return None
        case "prod":
            return partial(_product, call.region.typed)
        case "any":
            return partial(_extremum, reduction="max", text="")
        case "all":
            return partial(_extremum, reduction="min", text="")
        case _:
            return partial(with_refusal, call, reduction)


def _mean(call: Call, value: Any, sums: Sums, operand: Operand, owed: Mapping[str, str]) -> Any:
    """Every shard's mean counts alike; what a ``+`` mark owes is added and not averaged."""
    shards = prod(call.region.sizes[axis] for axis, name in owed.items() if not name.startswith("+"))
    if not (call.region.typed and _jax.manual_type(value).unreduced):
        return run_sums(call, value / shards if shards > 1 else value, sums)
    if sums.unreduced:
        cure = "take the sum first (psum), or reduce by 'sum'"
        raise call.fault("'mean' of a value that stays unreduced: JAX scales no such value", call.result.span, cure)
    whole = prod(operand.whole(at, call.region.sizes) for at in range(len(operand.shape)))
    kept = value.size * prod(call.region.sizes[axis] for axes in operand.laid.parts for axis in axes
                             if axis not in owed)  # fmt: skip
    return run_sums(call, value, sums) * (kept / whole)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def _extremum(x: Any, axes: tuple[str, ...], reduction: str, text: str) -> Any:
    """The largest or the smallest of the shards' values."""
    return (jax.lax.pmax if reduction == "max" else jax.lax.pmin)(x, axes)


@_extremum.defjvp
def _refuse_derivative(axes: Any, reduction: str, text: str, primals: Any, tangents: Any) -> Any:
    over = ", ".join(map(repr, axes))
    raise PatternError(
        f"{text}: '{reduction}' over {over} is a p{reduction}, which has no derivative\n\n"
        f"Hint: jax.lax.stop_gradient(x) where none is needed, or all_gather over {over} before"
    )


def with_refusal(call: Call, reduction: str, value: Any, axes: tuple[str, ...]) -> Any:
    """The largest or the smallest over mesh axes; differentiating it is our error."""
    value = _jax.vary(value, axes) if call.region.typed else value
    return _extremum(value, axes, reduction, f'{call.where}: "{call.pattern.source}"')


def _product(typed: bool, value: Any, axes: tuple[str, ...]) -> Any:
    """There is no collective product: the shards' products are gathered."""
    gathered = _jax.all_gather(value[None], axes, 0, "invarying", typed)
    return jnp.prod(gathered, axis=0).astype(value.dtype)
