"""``logsumexp`` and ``softmax`` over dims that may be sharded, stable and differentiable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from .. import _jax
from .call import Call, Laid, begin
from .operands import (
    Operand,
    idle_over,
    read_operands,
    refuse_keys,
    refuse_unknown,
    remember_result,
    solve,
)
from .shapes import refuse_lost_varying
from .splits import splits_of
from .sums import plan_sums, psum

T = TypeVar("T")


def logsumexp(x: T, pattern: str) -> T:
    """The logarithm of the sum of exponentials over the dims that the result lacks.

    ```python
    total = logsumexp(logits, "[b/dp] s [v/tp] -> [b/dp] s")  # f32[2,8,128] -> f32[2,8] per shard, a pmax and a psum
    ```

    Args:
      x: an array, in a manual region one shard.
      pattern: both sides; the result mentions no axis of a dim that it lacks.

    Returns:
      The array of the pattern's right side, as `jax.nn.logsumexp` of the global array. Its gradient
      is the softmax, and no collective is needed for it.

    Raises:
      PatternError, ShapeError, VaryingError, ShardingError, MeshAxisError: as `reduce` does.
    """
    call = begin("logsumexp", pattern, 1)
    _check_names(call, call.pattern.operands[0].names)
    operand, dims, axes, right = _read(call, x)
    value = _value(call, operand)
    top = _top(call, value, dims, axes)
    finite = jnp.where(jnp.isfinite(top), top, 0)
    total = _total(call, jnp.exp(value - jnp.expand_dims(finite, dims)), dims, axes)
    kept = (jnp.log(total) + finite).transpose(_order(operand, right, dims))
    return remember_result(call, kept, (operand,), right, idle_over([operand], right))


def softmax(x: T, pattern: str, dims: str) -> T:
    """Exponentials divided by their sum over dims, which may be sharded.

    ```python
    weights = softmax(scores, "[b/dp] [h/tp] q [k/sp]", "k")  # a pmax and a psum over sp
    ```

    Args:
      x: an array, in a manual region one shard.
      pattern: the array, before and after.
      dims: the names of the dims to normalise over, separated by spaces.

    Returns:
      An array of the same shape and sharding, as `jax.nn.softmax` of the global array.

    Raises:
      PatternError, ShapeError, VaryingError, ShardingError, MeshAxisError: as `reduce` does.
    """
    call = begin("softmax", pattern, 1, has_result=False)
    names = _names_of(call, dims)
    _check_names(call, call.pattern.operands[0].names)
    operand = _read_operand(call, x)
    places = operand.laid.places
    chosen = tuple(at for at, place in enumerate(places) if place.names[0] in names)
    axes = tuple(axis for at in chosen for axis in places[at].axes)
    value = _value(call, operand)
    parts = jnp.exp(value - _top(call, value, chosen, axes, keepdims=True))
    shares = parts / _total(call, parts, chosen, axes, keepdims=True)
    return remember_result(call, shares, (operand,), operand.laid)


def _names_of(call: Call, dims: Any) -> list[str]:
    names = dims.split() if isinstance(dims, str) else []
    known = call.pattern.operands[0].names
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        wrong = f"'{unknown[0]}' is no dim of the pattern" if unknown else f"dims={dims!r} names no dim"
        raise call.fault(wrong, None, f"its dims are {', '.join(known)}")
    return names


def _check_names(call: Call, known: tuple[str, ...]) -> None:
    call.require_names()
    sides = call.pattern.operands if call.pattern.result is None else (*call.pattern.operands, call.result)
    for index, side in enumerate(sides):
        for at, factor in enumerate(side.factors):
            if factor.name not in known:
                raise call.fault(f"the pattern has '{factor}' only on the right", factor.span)
            if factor.name in side.names[:at]:
                raise call.fault(f"the pattern has '{factor}' twice on one side", call.span_of(index, factor.name))


def _read(call: Call, x: Any) -> tuple[Operand, tuple[int, ...], tuple[str, ...], Laid]:
    """The operand, the dims that the result lacks, their mesh axes, and the result."""
    operand = _read_operand(call, x)
    operands = [operand]
    extents = solve(call, operands, {})
    left = operand.laid
    right = call.lay(-1, dots=left.dots)
    splits = splits_of(call, operands, extents, ())
    kept = [place.names[0] for place in right.places]
    dims = tuple(at for at, place in enumerate(left.places) if place.names[0] not in kept)
    axes = tuple(axis for at in dims for axis in left.places[at].axes)
    for axis in axes:
        if axis in right.sharded | right.unreduced | right.varying:
            raise call.fault(f"no sum stays owed over '{axis}' in a {call.verb}", call.result.span, "drop it")
    plan_sums(call, right, [splits.get(name, ()) for name in kept], {}, [0] * len(kept))
    refuse_lost_varying(call, operands, right)
    return operand, dims, axes, right


def _read_operand(call: Call, x: Any) -> Operand:
    (operand,) = read_operands(call, (x,))
    refuse_unknown(call, operand.value, operand.subject)
    refuse_keys(call, operand)
    _refuse_sums(call, operand)
    return operand


def _refuse_sums(call: Call, operand: Operand) -> None:
    for axis in sorted(operand.laid.unreduced):
        raise call.fault(f"{call.verb} of a value that owes a sum over '{axis}'", operand.laid.side.span,
                         "take the sum first (psum)")  # fmt: skip


def _value(call: Call, operand: Operand) -> Any:
    value: Any = jnp.asarray(operand.value)
    value = value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(jnp.float32)
    return _jax.without_reduced(value) if call.region.typed else value


def _top(call: Call, value: Any, dims: tuple[int, ...], axes: tuple[str, ...], keepdims: bool = False) -> Any:
    """The largest over dims and mesh axes, which takes no part in the gradient."""
    lowest = -jnp.inf if any(value.shape[at] == 0 for at in dims) else None
    top = jnp.max(jax.lax.stop_gradient(value), axis=dims, keepdims=keepdims, initial=lowest)
    return _across(call, top, axes, jax.lax.pmax)


def _total(call: Call, value: Any, dims: tuple[int, ...], axes: tuple[str, ...], keepdims: bool = False) -> Any:
    total = jnp.sum(value, axis=dims, keepdims=keepdims)
    return psum(total, axes, call.region.typed) if axes else total


def _across(call: Call, value: Any, axes: tuple[str, ...], collective: Callable[..., Any]) -> Any:
    if not axes:
        return value
    return collective(_jax.vary(value, axes) if call.region.typed else value, axes)


def _order(operand: Operand, right: Laid, dims: tuple[int, ...]) -> tuple[int, ...]:
    left = [place.names[0] for at, place in enumerate(operand.laid.places) if at not in dims]
    return tuple(left.index(place.names[0]) for place in right.places)
