"""``logsumexp`` and ``softmax`` over dims that may be sharded, stable and differentiable."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from .. import _jax
from ..errors.phrases import value_text
from .factor_sharding import plan_product, reduce_shards
from .operation import Operand, Operation, read_operation

T = TypeVar("T")


def logsumexp(x: T, pattern: str) -> T:
    """The logarithm of the sum of exponentials over the dims that the result lacks.

    ```python
    total = logsumexp(logits, "[b/dp] s [v/tp] -> [b/dp] s")  # f32[2,8,128] -> f32[2,8] per shard, a pmax and a psum
    ```

    Args:
      x: an array, in a manual region one shard.
      pattern: both sides; the result does not mention the axes of dims that it lacks.

    Returns:
      The array of the pattern's right side, as `jax.nn.logsumexp` of the global array. Its gradient
      is the softmax, without a collective.

    Raises:
      PatternError, ShapeError, VaryingError, ShardingError, MeshAxisError: as for `reduce`.
    """
    call = read_operation("logsumexp", pattern, (x,))
    operand, value = _read_operand(call, x)
    left, right = operand.layout, call.resolve_side(-1, operand.layout.dots)
    names, kept = [place.names[0] for place in left.dims], [place.names[0] for place in right.dims]
    dims = tuple(at for at, name in enumerate(names) if name not in kept)
    axes = tuple(axis for at in dims for axis in left.dim_axes[at])
    for axis in call.nontrivial(axes):
        if axis in right.differing:
            raise call.fault(f"a {call.verb} leaves no partial sum over '{axis}'", call.result.span, "drop it")
    call.plan_for([operand], lambda: plan_product(call, [operand]))  # raises for a result that is sharded otherwise
    top = _maximum(call, value, dims, axes)
    finite = jnp.where(jnp.isfinite(top), top, 0)
    total = _sum(call, jnp.exp(value - jnp.expand_dims(finite, dims)), dims, axes)
    rest = [name for name in names if name in kept]
    result = (jnp.log(total) + finite).transpose(tuple(map(rest.index, kept)))
    return call.record_result(result, (operand,), right)


def softmax(x: T, pattern: str, dims: str) -> T:
    """Divide exponentials by their sum over dims, which may be sharded.

    ```python
    weights = softmax(scores, "[b/dp] [h/tp] q [k/sp]", "k")  # a pmax and a psum over sp
    ```

    Args:
      x: an array, in a manual region one shard.
      pattern: the array, the same before and after.
      dims: the names of the dims to normalise over, separated by spaces.

    Returns:
      An array of the same shape and sharding, as `jax.nn.softmax` of the global array.

    Raises:
      PatternError, ShapeError, VaryingError, ShardingError, MeshAxisError: as for `reduce`.
    """
    call = read_operation("softmax", pattern, (x,), has_result=False)
    dims_text: Any = dims
    known, names = call.pattern.operands[0].names, dims_text.split() if isinstance(dims_text, str) else []
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        wrong = f"'{unknown[0]}' is not a dim of the pattern" if unknown else f"dims={value_text(dims)} names no dim"
        raise call.fault(wrong, None, f"its dims are {', '.join(known)}")
    operand, value = _read_operand(call, x)
    places = operand.layout.dims
    chosen = tuple(at for at, place in enumerate(places) if place.names[0] in names)
    axes = tuple(axis for at in chosen for axis in places[at].axes)
    exponentials = jnp.exp(value - _maximum(call, value, chosen, axes, keepdims=True))
    shares = exponentials / _sum(call, exponentials, chosen, axes, keepdims=True)
    return call.record_result(shares, (operand,), operand.layout)


def _read_operand(call: Operation, x: Any) -> tuple[Operand, Any]:
    """The operand, and its value as floats."""
    call.plan(("names",), lambda: _refuse_other_names(call) is None)
    (operand,) = call.read_operands((x,))
    call.refuse_non_numbers(operand)
    call.refuse_global_marks([operand])
    for axis in sorted(call.region.nontrivial_axes & operand.layout.unreduced):
        problem = f"{call.verb} of a value that is unreduced over '{axis}'"
        raise call.fault(problem, operand.layout.side.span, "take the sum first (psum)")
    value: Any = jnp.asarray(operand.value)
    value = value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(jnp.float32)
    return operand, _jax.casts.drop_reduced(value) if call.region.has_vma else value


def _refuse_other_names(call: Operation) -> None:
    call.require_names()
    call.refuse_new_names()
    call.refuse_repeated_names("on one side")


def _maximum(call: Operation, value: Any, dims: tuple[int, ...], axes: tuple[str, ...], keepdims: bool = False) -> Any:
    """The maximum over dims and mesh axes, with stop_gradient."""
    lowest = -jnp.inf if any(value.shape[at] == 0 for at in dims) else None
    top = jnp.max(jax.lax.stop_gradient(value), axis=dims, keepdims=keepdims, initial=lowest)
    top = _jax.casts.pcast_varying(top, axes) if axes and call.region.has_vma else top
    return jax.lax.pmax(top, axes) if axes else top


def _sum(call: Operation, value: Any, dims: tuple[int, ...], axes: tuple[str, ...], keepdims: bool = False) -> Any:
    total = jnp.sum(value, axis=dims, keepdims=keepdims)
    return reduce_shards(call, total, axes, "sum") if axes else total
