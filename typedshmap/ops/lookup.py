"""``take``: rows of a table by their ids, where the dim that is looked up may be sharded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from .. import _jax
from ..errors.failures import NotIntegers
from .call import Call, Laid, begin
from .operands import Operand, idle_over, key_of_operands, read_operands, remember_result
from .products import Product, plan_product
from .sums import left_over, run_sums


def take(table: Any, ids: Any, pattern: str) -> Any:
    """Look up ids in one dim of a table, the one that is neither in the ids nor in the result.

    Every shard looks up the ids that it holds and gives zeros for the others, so that over the axes
    of a sharded dim the result says what becomes of the sum: nothing (psum), ``[s/tp]``
    (psum_scatter), ``+tp`` or ``~tp``. Dims of both operands are batched. An id outside of the dim
    gives zeros, and so does a negative one, sharded or not.

    ```python
    x = take(embed, ids, "[v/tp] m, [b/dp] s -> [b/dp] s m")  # f32[128,64], i32[8,32] -> f32[8,32,64] per shard
    chosen = take(logits, targets, "[b/dp] s [v/tp], [b/dp] s -> [b/dp] s")  # the target's logit
    ```

    Args:
      table: an array, in a manual region one shard.
      ids: integers.
      pattern: table, ids and result.

    Returns:
      The rows. The gradient with respect to the table is a scatter-add, on the shard that holds the row.

    Raises:
      PatternError: for a pattern that cannot be read, or in which not one dim is looked up.
      ShapeError, DtypeError, VaryingError, ShardingError: for an operand that is not its side.
      MeshAxisError: for an axis that the mesh does not have.
    """
    call = begin("take", pattern, 2)
    looked_up = call.plan(("names",), lambda: _check_names(call))
    operands = read_operands(call, (table, ids))
    if not jnp.issubdtype(_jax.facts(ids).dtype, jnp.integer):
        raise call.wrong(NotIntegers(_jax.own_dtype(ids)), operands[1].subject, ids)
    plan = call.plan(key_of_operands(operands), lambda: _plan(call, operands, looked_up))
    product = plan.product
    found = _run(call, operands, plan)
    value, left = run_sums(call, found, product.sums), left_over(found, product.sums)
    made = idle_over(operands, product.result)
    return remember_result(call, value, operands, product.result, made, left, is_stated=True)


def _check_names(call: Call) -> str:
    """The name of the dim that is looked up."""
    call.require_names()
    table, ids, result = (*call.pattern.operands, call.result)
    for index, side in enumerate((table, ids, result)):
        for at, name in enumerate(side.names):
            if name in side.names[:at]:
                raise call.fault(f"the pattern has '{name}' twice for one array", call.span_of(index, name))
    gone = [name for name in table.names if name not in ids.names and name not in result.names]
    if len(gone) != 1:
        names = " and ".join(map(repr, gone)) or "no dim"
        cure = "the dim that is looked up is the one that stands in the table only"
        raise call.fault(f"the pattern looks up {names} of the table, where it wants one", table.span, cure)
    for name in ids.names:
        if name not in result.names:
            raise call.fault(f"'{name}' of the ids is lost in the result", call.span_of(1, name), "reduce takes sums")
    for factor in result.factors:
        if factor.name not in (*table.names, *ids.names):
            raise call.fault(f"the pattern has '{factor}' only on the right", factor.span)
    if table.dots is not None or (result.dots is None) != (ids.dots is None):
        raise call.fault(
            "'...' may stand for dims of the ids and of the result, and for none of the table", result.span
        )
    if (sign := next((m for m in ids.marks if m.sign == "+"), None)) is not None:
        raise call.fault("ids that owe a sum are no ids yet", sign.span, "take the sum first (psum)")
    return gone[0]


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is looked up on one shard.

    Attributes:
      table: the order of the table's dims: shared with the ids, looked up, all others.
      ids: the order of the ids' dims: shared with the table, all others.
      shared: how many dims both have.
      order: the order of the result's dims, of (shared, ids' others, table's others).
      axes: the mesh axes of the dim that is looked up.
      product: the result, and its sums over mesh axes.
    """

    table: tuple[int, ...]
    ids: tuple[int, ...]
    shared: int
    order: tuple[int, ...]
    axes: tuple[str, ...]
    product: Product


def _plan(call: Call, operands: list[Operand], looked_up: str) -> Lookup:
    product = plan_product(call, operands)
    return Lookup(*_orders(operands, product.result, looked_up), product.splits[looked_up], product)


def _orders(
    operands: list[Operand], right: Laid, looked_up: str
) -> tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...]]:
    """The orders of the dims of table, ids and result, and how many the first two share."""
    names, ids = ([place.names[0] for place in operand.laid.places] for operand in operands)
    shared = [name for name in names if name in ids]
    rest = [name for name in names if name not in ids and name != looked_up]
    own = [name for name in ids if name not in shared]
    made = [*shared, *own, *rest]
    return (
        tuple(names.index(name) for name in (*shared, looked_up, *rest)),
        tuple(ids.index(name) for name in (*shared, *own)),
        len(shared),
        tuple(made.index(place.names[0]) for place in right.places),
    )


def _run(call: Call, operands: list[Operand], plan: Lookup) -> Any:
    """The rows that one shard holds; zeros for ids of others."""
    table, ids = jnp.asarray(operands[0].value), jnp.asarray(operands[1].value)
    if call.region.typed:
        _refuse_unreduced(call, operands[0])
        table, ids = _alike(_jax.without_reduced(table), _jax.without_reduced(ids))
    table, ids = in_order(table, plan.table), in_order(ids, plan.ids)
    here = _local_ids(call, ids, table.shape[plan.shared], plan.axes)
    return in_order(lookup(table, here, plan.shared), plan.order)


def _refuse_unreduced(call: Call, table: Operand) -> None:
    """JAX looks nothing up in a value that it types as unreduced."""
    for axis in sorted(_jax.manual_type(table.value).unreduced):
        problem = f"the table is unreduced over '{axis}' in JAX's type, in which nothing can be looked up"
        cure = f"take the sum first (psum), or leave it '~{axis}' where it was made"
        raise call.fault(problem, table.laid.side.span, cure)


def _alike(table: Any, ids: Any) -> tuple[Any, Any]:
    """Both varying over the same axes, as a batched gather wants them."""
    axes = _jax.manual_type(table).varying | _jax.manual_type(ids).varying
    return _jax.vary(table, axes), _jax.vary(ids, axes)


def _local_ids(call: Call, ids: Any, count: int, axes: tuple[str, ...]) -> Any:
    """Places on this shard; outside of it, below or above, for an id that is not here."""
    limit = count * prod(call.region.sizes[axis] for axis in axes)
    if ids.dtype.itemsize > 4:
        ids = jnp.where((ids >= 0) & (ids < limit), ids, -1)
    # What wraps around in 32 bits, a negative id minus the first one here or an unsigned one, is not below count.
    here = ids.astype(jnp.int32)
    return here - shard_index(axes, call.region.sizes) * count if axes else here


def shard_index(axes: tuple[str, ...], sizes: Mapping[str, int]) -> Any:
    """Which shard of a dim this is, its axes major to minor."""
    first, *minor = axes
    index: Any = jax.lax.axis_index(first)
    for axis in minor:
        index = index * sizes[axis] + jax.lax.axis_index(axis)
    return index


def lookup(table: Any, ids: Any, shared: int) -> Any:
    """Rows of ``table`` along the dim after the shared ones; zeros for ids that are negative or too large."""
    shape, rank = table.shape, ids.ndim
    if shape[shared] == 0:
        return jnp.zeros((*ids.shape, *shape[shared + 1 :]), table.dtype)
    together = tuple(range(shared))
    numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=tuple(range(rank, rank + len(shape) - shared - 1)),
        collapsed_slice_dims=(shared,),
        start_index_map=(shared,),
        operand_batching_dims=together,
        start_indices_batching_dims=together,
    )
    row = (*(1 for _ in together), 1, *shape[shared + 1 :])
    return jax.lax.gather(table, jnp.expand_dims(ids, rank), numbers, row, mode="fill", fill_value=0)


def in_order(x: Any, order: tuple[int, ...]) -> Any:
    """An array with its dims in an order."""
    return x if order == tuple(range(len(order))) else jax.lax.transpose(x, order)
