"""``take``: rows of a table by ids, along a dim that may be sharded."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import _jax
from ..errors.failures import UnusableDtype
from .factor_sharding import PartialSums, plan_product, record_sums, run_partial_sums
from .operation import MeshAxes, Operand, Operation, read_operation


def take(table: Any, ids: Any, pattern: str) -> Any:
    """Look up ids along one dim of a table: the dim that neither the ids nor the result have.

    Every shard looks up the ids of its own rows and returns zeros for other ids. Over the axes of a
    sharded dim the result determines the sum: no mention (psum), ``[s/tp]`` (psum_scatter), ``+tp``
    or ``~tp``. Dims of both operands are batch dims. An id out of bounds, or a negative one, returns
    zeros, sharded or not.

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
      PatternError: for a pattern that cannot be parsed, or that does not look up exactly one dim.
      ShapeError, DtypeError, VaryingError, ShardingError: for an operand that contradicts its side.
      MeshAxisError: for an axis that the mesh does not have.
    """
    call = read_operation("take", pattern, (table, ids))
    looked_up = call.plan(("names",), lambda: _check_names(call))
    operands = call.read_operands((table, ids))
    if not jnp.issubdtype(_jax.array.aval_of(ids).dtype, jnp.integer):
        raise call.wrong(UnusableDtype(_jax.array.dtype_name_of(ids), "ids are integers"), operands[1].subject, ids)
    for operand in operands:
        call.refuse_unknown(operand.value, operand.subject)
    plan = call.plan_for(operands, lambda: _plan(call, operands, looked_up))

    def take_rows(table: Any, ids: Any) -> Any:
        return _take_locally(call, operands, plan, table, ids)

    # JAX cannot infer which shard of an Explicit axis has a row, nor the sharding of the rows of a global table.
    is_refused = lambda known: not call.region.manual or looked_up in known  # noqa: E731
    rows = call.run_on_auto_axes(operands, plan.sums.result, is_refused, take_rows)
    return record_sums(call, operands, plan.sums, rows, run_partial_sums(call, rows, plan.sums), is_stated=True)


def _check_names(call: Operation) -> str:
    """The name of the looked-up dim."""
    call.require_names()
    call.refuse_repeated_names("for one array")
    (table, ids), result = call.pattern.operands, call.result
    gone = [name for name in table.names if name not in ids.names and name not in result.names]
    if len(gone) != 1:
        names = " and ".join(map(repr, gone)) or "no dim"
        cure = "the looked-up dim is the one that only the table has"
        raise call.fault(f"the pattern looks up {names} of the table, but {call.verb} looks up one", table.span, cure)
    for name in ids.names:
        if name not in result.names:
            raise call.fault(f"'{name}' of the ids is lost in the result", call.span_of(1, name), "reduce takes sums")
    call.refuse_new_names()
    if table.dots is not None or (result.dots is None) != (ids.dots is None):
        problem = "'...' may stand for dims of the ids and of the result, but not of the table"
        raise call.fault(problem, result.span)
    if (sign := next((m for m in ids.marks if m.sign == "+"), None)) is not None:
        raise call.fault(f"ids are unreduced over '{sign.axis}'", sign.span, "psum them first")
    return gone[0]


class Lookup(NamedTuple):
    """The orders of the table's, the ids' and the result's dims, shared ones first; the dim's axes; the sums."""

    table: tuple[int, ...]
    ids: tuple[int, ...]
    shared: int
    order: tuple[int, ...]
    axes: MeshAxes
    sums: PartialSums


def _plan(call: Operation, operands: list[Operand], looked_up: str) -> Lookup:
    names, ids = ([place.names[0] for place in operand.layout.dims] for operand in operands)
    shared = [name for name in names if name in ids]
    rest = [name for name in names if name not in ids and name != looked_up]
    id_names = [name for name in ids if name not in shared]
    made, sums = [*shared, *id_names, *rest], plan_product(call, operands)
    return Lookup(
        table=tuple(map(names.index, (*shared, looked_up, *rest))),
        ids=tuple(map(ids.index, (*shared, *id_names))),
        shared=len(shared),
        order=tuple(made.index(place.names[0]) for place in sums.result.dims),
        axes=operands[0].layout.dim_axes[names.index(looked_up)],
        sums=sums,
    )


def _take_locally(call: Operation, operands: list[Operand], plan: Lookup, table: Any, ids: Any) -> Any:
    """The rows of one shard; zeros for ids of other shards."""
    table, ids = jnp.asarray(table), jnp.asarray(ids)
    if call.region.has_vma:
        reason = "and JAX has no gather of unreduced values"
        call.refuse_unreduced_type(operands[0], reason, "the table")
        table, ids = _jax.casts.drop_reduced(table), _jax.casts.drop_reduced(ids)
        # JAX's batched gather requires both to vary over the same axes.
        axes = _jax.array.manual_type(table).varying | _jax.array.manual_type(ids).varying
        table, ids = _jax.casts.pcast_varying(table, axes), _jax.casts.pcast_varying(ids, axes)
    table, ids = transpose_to(table, plan.table), transpose_to(ids, plan.ids)
    count, sizes = table.shape[plan.shared], call.region.sizes
    if ids.dtype.itemsize > 4:
        ids = jnp.where((ids >= 0) & (ids < count * call.shards(plan.axes)), ids, -1)
    # An id of another shard becomes negative or at least `count`. An id that wraps around in 32 bits (a negative id
    # minus the offset, or an unsigned id) is not below `count` either.
    ids = ids.astype(jnp.int32)
    if plan.axes:
        shard: Any = jax.lax.axis_index(plan.axes[0])
        for axis in plan.axes[1:]:
            shard = shard * sizes[axis] + jax.lax.axis_index(axis)
        ids = ids - shard * count
    # Rows along the dim after the shared ones; zeros for ids that are negative or too large.
    shape, rank, shared = table.shape, ids.ndim, tuple(range(plan.shared))
    if not count:
        return transpose_to(jnp.zeros((*ids.shape, *shape[plan.shared + 1 :]), table.dtype), plan.order)
    numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=tuple(range(rank, rank + len(shape) - plan.shared - 1)),
        collapsed_slice_dims=(plan.shared,),
        start_index_map=(plan.shared,),
        operand_batching_dims=shared,
        start_indices_batching_dims=shared,
    )
    row = (*(1 for _ in shared), 1, *shape[plan.shared + 1 :])
    rows = jax.lax.gather(table, jnp.expand_dims(ids, rank), numbers, row, mode="fill", fill_value=0)
    return transpose_to(rows, plan.order)


def transpose_to(x: Any, order: tuple[int, ...]) -> Any:
    """An array with its dims in this order."""
    return x if order == tuple(range(len(order))) else jax.lax.transpose(x, order)
