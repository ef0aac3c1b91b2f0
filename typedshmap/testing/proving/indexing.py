"""Entries that are taken from places, or added at places, which are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from . import lookups
from .elementwise import refuse_narrow_sum
from .values import DimSharding, GlobalValue, NotKnown, ShardIds
from .walk import PrimitiveRule, Walk, joined, operand_shape, params_key


def _gather(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    if isinstance(by := operands[1], ShardIds) and by.place in ("ids", "row"):
        return [lookups.looked_up(walk, eqn, walk.settled(operands[0]), by)]
    table, ids = map(walk.settled, operands)
    numbers, sizes, shape = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], operand_shape(eqn)
    is_filled = "FILL" in str(eqn.params["mode"]) and eqn.params.get("fill_value") not in (None, 0)
    if ids.partial or table.is_extreme or (table.partial and is_filled):
        raise NotKnown("its operand is not reduced")
    batching = tuple(numbers.operand_batching_dims)
    ids_batching = tuple(numbers.start_indices_batching_dims)
    gone = (*numbers.collapsed_slice_dims, *batching)
    touched = [dim for dim in range(len(shape)) if dim not in batching and (sizes[dim] != shape[dim] or dim in gone)]
    for dim in touched:
        table = walk.solid(table, dim, shape[dim])
    ids = walk.solid(ids, len(ids.dims) - 1, operand_shape(eqn, 1)[-1])
    for one, other in zip(batching, ids_batching, strict=True):
        joined(table.dims[one], ids.dims[other])
    window = iter(table.dims[dim] for dim in range(len(shape)) if dim not in gone)
    places = list(ids.dims[:-1])
    for one, other in zip(batching, ids_batching, strict=True):
        places[other] = joined(table.dims[one], places[other])
    batch = iter(places)
    rank = len(eqn.outvars[0].aval.shape)
    dims = [next(window if dim in numbers.offset_dims else batch) for dim in range(rank)]
    if table.partial & ids.axes:
        raise NotKnown("it looks up what is not reduced")
    full = tuple(None if sizes[dim] == shape[dim] and dim not in gone else sizes[dim] for dim in range(len(shape)))
    params = (repr(numbers), full, params_key(eqn, "dimension_numbers", "slice_sizes"))
    operand = replace(table, factor=Fraction(1))
    return [walk.made("gather", params, [operand, ids], dims, table.partial, table.combined_by, table.factor)]


def _scatter_add(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Updates at places: what the shards add in their parts of the updates is a partial sum."""
    by, into = operands[1], walk.settled(operands[0])
    if isinstance(by, ShardIds) and by.place in ("ids", "row") and into.is_zero:
        return [lookups.added_at(walk, eqn, by, operands[2])]
    ids, updates = map(walk.settled, operands[1:])
    numbers, shape = eqn.params["dimension_numbers"], operand_shape(eqn)
    if ids.partial or (not into.is_zero and (updates.axes or into.partial)) or updates.is_extreme:
        raise NotKnown("it adds to what is sharded")
    batching = tuple(numbers.operand_batching_dims)
    gone = (*numbers.inserted_window_dims, *batching)
    if batching:
        raise NotKnown("it adds at places with batch dims")
    ids = walk.solid(ids, len(ids.dims) - 1, operand_shape(eqn, 1)[-1])
    window, batch = numbers.update_window_dims, list(ids.dims[:-1])
    over = list[str]()
    for dim, axes in enumerate(axes for at, axes in enumerate(updates.dims) if at not in window):
        shared = joined(axes, batch[dim])
        if shared is None:
            raise NotKnown("it adds the same at the same place")
        over.extend(shared)
    windows, lengths = (iter([each[dim] for dim in window]) for each in (updates.dims, operand_shape(eqn, 2)))
    dims: list[DimSharding] = []
    for dim in range(len(shape)):
        if dim in gone:
            dims.append(())
            continue
        axes, length = next(windows), next(lengths)
        if axes and (dim in numbers.scatter_dims_to_operand_dims or length != shape[dim]):
            raise NotKnown("it adds at places of a sharded dim")
        dims.append(axes if axes is not None else ())
    unsharded = tuple(shape[dim] * prod(walk.sizes[axis] for axis in dims[dim] or ()) for dim in range(len(shape)))
    params = (repr(numbers), unsharded, params_key(eqn, "dimension_numbers", "update_jaxpr", "update_consts"))
    if updates.partial.intersection(over):
        raise NotKnown("it adds parts of a sum at places that are sharded")
    partial = updates.partial.union(over)
    operands_ = [replace(updates, factor=Fraction(1)), ids]
    if not into.is_zero:
        everywhere = [walk.unsharded(each, operand_shape(eqn, at)) for at, each in enumerate((into, ids, updates))]
        return [walk.made("scatter-add", params, everywhere, [()] * len(shape))]
    made = walk.made("scatter-add", params, operands_, dims, partial, "sum", updates.factor)
    return [refuse_narrow_sum(eqn, made)]


INDEXING_RULES: dict[str, PrimitiveRule] = {"gather": _gather, "scatter-add": _scatter_add}
