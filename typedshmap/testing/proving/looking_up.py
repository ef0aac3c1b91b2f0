"""The rules of gathers and scatter-adds at computed places, and of ids that are looked up in a sharded table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .global_values import (
    OTHER_IDS,
    Affine,
    DimSharding,
    Found,
    GlobalValue,
    IsOwn,
    NotKnown,
    OfIds,
    Row,
    Sharded,
    axes_along,
)
from .walk import Walk, joined, joined_dims, operand_shape, params_key, refuse_narrow_sum, result_shape

_BOUNDS = {"ge": (True, 0), "gt": (True, 1), "lt": (False, 0), "le": (False, 1)}
"""Whether a comparison bounds a number from below, and what is added to the bound: above 2 is at least 3."""
_OTHER_SHARDS = "it depends on which ids the shard has"


def minus_first(walk: Walk, ids: GlobalValue, first: GlobalValue) -> Row | None:
    """Ids minus the shard's first id; None for other operands."""
    if not isinstance(first, Affine) or any(first.positions) or first.constant or not isinstance(ids, Sharded):
        return None
    if walk.is_number(ids) or ids.partial or ids.axes.intersection(first.indices):
        return None
    return Row(ids, tuple(sorted(first.indices.items())), tuple(range(len(ids.dims))), None)


def _integer(walk: Walk, value: GlobalValue) -> int | None:
    affine = walk.affine(value)
    return None if affine is None else affine.number


def compared(walk: Walk, name: str, row: GlobalValue, by: GlobalValue) -> GlobalValue | None:
    """The predicate whether ids belong to a shard; None for other comparisons."""
    number = _integer(walk, by)
    if not isinstance(row, Row) or number is None:
        return None
    if row.length is not None:  # a row is never negative
        return walk.number(0, (None,) * len(row.along)) if name == "lt" and number == 0 else None
    if name not in _BOUNDS:
        return None
    is_bounded_below, more = _BOUNDS[name]
    bound = number + more
    if not is_bounded_below:
        return IsOwn(row.ids, row.start, row.along, bound, is_bounded_below)
    return IsOwn(row.ids, row.start, row.along, None, is_bounded_below) if bound == 0 else None


def both_bounds(first: GlobalValue, second: GlobalValue) -> IsOwn | None:
    """The conjunction of both bounds of the shard's ids; None for other predicates."""
    if not isinstance(first, IsOwn) or not isinstance(second, IsOwn) or not first.is_of(second):
        return None
    lengths = {first.length, second.length} - {None}
    if len(lengths) > 1:
        return None
    is_bounded_below = first.is_bounded_below or second.is_bounded_below
    return replace(first, is_bounded_below=is_bounded_below, length=lengths.pop() if lengths else None)


def chosen(walk: Walk, which: OfIds, cases: Sequence[GlobalValue]) -> GlobalValue:
    """A choice by whether the shard has an id."""
    if not isinstance(which, IsOwn) or not which.is_bounded_below or which.length is None:
        raise NotKnown(_OTHER_SHARDS)
    elsewhere, here = cases
    if isinstance(here, Row) and here.length is None and here.is_of(which):
        number = _integer(walk, elsewhere)
        if number is None or not 0 <= number < which.length:
            raise NotKnown(_OTHER_SHARDS)
        return replace(here, length=which.length)
    if not walk.settled(elsewhere).is_zero:
        raise NotKnown("where the shard does not have an id, it is not zero")
    if not isinstance(here, Found) or not here.is_of(which) or here.length != which.length:
        raise NotKnown(_OTHER_SHARDS)
    return _owned(walk, here)


def _owned(walk: Walk, lookup: Found) -> Sharded:
    """The entries of each shard's own ids, and zero for other ids: their sum over the shards has those of all ids."""
    assert lookup.length is not None
    value, axes, ids = lookup.value, lookup.table_axes(walk.sizes, lookup.length), walk.spread(lookup)
    if value.is_extreme or value.partial & ids.axes:
        raise NotKnown("it chooses from an unreduced value")
    if value.axes.intersection(axes):
        raise NotKnown("it is sharded over the axes of the table")
    owned = walk.linear("owned", lookup.length * walk.count(axes), value, joined_dims([value, ids]), ids)
    return owned.partial_over(value.partial.union(axes), "sum")


def gather(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """The entries at computed places."""
    table, by = walk.settled(operands[0]), operands[1]
    if isinstance(by, Row):
        return [_looked_up(walk, eqn, table, by)]
    ids = walk.settled(by)
    numbers, sizes, shape = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], operand_shape(eqn)
    is_filled = "FILL" in str(eqn.params["mode"]) and eqn.params.get("fill_value") not in (None, 0)
    if ids.partial or table.is_extreme or (table.partial and is_filled):
        raise NotKnown("its operand is not reduced")
    batching = numbers.operand_batching_dims
    full = tuple(
        None if sizes[dim] == length and dim not in (*numbers.collapsed_slice_dims, *batching) else sizes[dim]
        for dim, length in enumerate(shape)
    )
    for dim, size in enumerate(full):
        if size is not None and dim not in batching:
            table = walk.solid(table, dim, shape[dim])
    params = (repr(numbers), full, params_key(eqn, "dimension_numbers", "slice_sizes"))
    return [_taken(walk, eqn, "gather", params, table, ids)]


def _taken(walk: Walk, eqn: Any, name: str, params: Any, table: Sharded, ids: Sharded) -> Sharded:
    """The entries of a table that may be sharded only along dims that are taken whole, and batch dims."""
    numbers = eqn.params["dimension_numbers"]
    ids = walk.solid(ids, len(ids.dims) - 1, operand_shape(eqn, 1)[-1])
    if table.partial & ids.axes:
        raise NotKnown("it looks up an unreduced value")
    places = list(ids.dims[:-1])
    for dim, at in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        places[at] = joined(table.dims[dim], places[at])
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    window = [axes for dim, axes in enumerate(table.dims) if dim not in gone]
    return walk.linear(name, params, table, _result_dims(eqn, window, places), ids)


def _result_dims(eqn: Any, window: Sequence[Any], batch: Sequence[Any]) -> list[Any]:
    """The fact of each dim of a gather's result, from the dims that are taken whole, and the dims of the places."""
    offsets, of_window, of_batch = eqn.params["dimension_numbers"].offset_dims, iter(window), iter(batch)
    return [next(of_window if dim in offsets else of_batch) for dim in range(len(result_shape(eqn)))]


def _looked_up(walk: Walk, eqn: Any, table: Sharded, row: Row) -> GlobalValue:
    """The rows of a shard, from a table whose other rows are on other shards."""
    numbers, shape = eqn.params["dimension_numbers"], operand_shape(eqn)
    window = [result_shape(eqn)[at] for at in numbers.offset_dims]
    dropped, why = numbers.collapsed_slice_dims, "it looks up parts of rows"
    dim, axes = _table_of(walk, eqn, row, numbers.start_index_map, dropped, window, why)
    if table.dims[dim] not in (None, axes) or table.is_extreme:
        raise NotKnown(OTHER_IDS)
    table = table.with_dim(dim, None if table.dims[dim] is None else ())
    if table.axes.intersection(axes):
        raise NotKnown("its table is not reduced")
    table = walk.solid(table, dim, shape[dim] * walk.count(axes))
    value = _taken(walk, eqn, "rows", (repr(numbers), len(shape)), table, walk.spread(row))
    along = tuple(_result_dims(eqn, [None] * len(shape), row.along[:-1]))
    is_filled = "FILL" in str(eqn.params["mode"]) and eqn.params.get("fill_value") == 0 and row.length is None
    rows = Found(row.ids, row.start, along, shape[dim], value)
    return _owned(walk, rows) if is_filled else rows


def _table_of(
    walk: Walk, eqn: Any, row: Row, indexed: Sequence[int], dropped: Sequence[int], window: Sequence[int], why: str
) -> tuple[int, tuple[str, ...]]:
    """The dim of a table along which rows are looked up, and its mesh axes.

    Args:
      indexed: the looked-up dims.
      dropped: the dims that a row does not have.
      window: the length of a row along each dim.
      why: the reason to give if it is not a whole row.
    """
    shape, batching = operand_shape(eqn), eqn.params["dimension_numbers"].operand_batching_dims
    lengths = [length for dim, length in enumerate(shape) if dim not in (*indexed, *batching)]
    if len(indexed) != 1 or tuple(dropped) != tuple(indexed) or list(window) != lengths:
        raise NotKnown(why)
    return indexed[0], row.table_axes(walk.sizes, shape[indexed[0]])


def scatter_add(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """Updates at places: the shards add their parts of the updates, which makes a partial sum."""
    into, by = walk.settled(operands[0]), operands[1]
    if isinstance(by, Row) and into.is_zero:
        return [refuse_narrow_sum(eqn, _added_at(walk, eqn, by, operands[2]))]
    key = params_key(eqn, "dimension_numbers", "update_jaxpr", "update_consts")
    ids, updates = map(walk.settled, operands[1:])
    if not into.is_zero or ids.partial or updates.is_extreme:
        raise NotKnown("it adds to what is sharded")
    return [refuse_narrow_sum(eqn, _added(walk, eqn, "scatter-add", key, updates, ids, {}))]


def _added(
    walk: Walk, eqn: Any, name: str, key: Any, updates: Sharded, ids: Sharded, table: Mapping[int, DimSharding]
) -> Sharded:
    """Updates that are added to zeros, at places along unsharded dims, or along the dim of a table."""
    numbers, shape, lengths = eqn.params["dimension_numbers"], operand_shape(eqn), operand_shape(eqn, 2)
    window, ids = numbers.update_window_dims, walk.solid(ids, len(ids.dims) - 1, operand_shape(eqn, 1)[-1])
    batching = dict(zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True))
    dims, over = [table.get(dim, ()) for dim in range(len(shape))], list[str]()
    updated = [axes for dim, axes in enumerate(updates.dims) if dim not in window]
    for at, axes in enumerate(map(joined, updated, ids.dims[:-1])):
        if axes is None:
            raise NotKnown("it adds the same at the same place")
        if at in batching:
            dims[batching[at]] = axes
        else:
            over.extend(axes_along(axes))
    kept = [dim for dim in range(len(shape)) if dim not in (*numbers.inserted_window_dims, *batching.values())]
    for dim, at in zip(kept, window, strict=True):
        axes = axes_along(updates.dims[at])
        if axes and (dim in numbers.scatter_dims_to_operand_dims or lengths[at] != shape[dim]):
            raise NotKnown("it adds at places of a sharded dim")
        dims[dim] = axes
    if updates.partial.intersection(over) or updates.partial & ids.axes:
        raise NotKnown("it adds parts of a sum at places that are sharded")
    counts = [walk.count(axes_along(axes)) for axes in dims]
    unsharded = tuple(length * count for length, count in zip(shape, counts, strict=True))
    added = walk.linear(name, (repr(numbers), unsharded, key), updates, dims, ids)
    return added.partial_over(added.partial.union(over), "sum")


def _added_at(walk: Walk, eqn: Any, row: Row, updates: GlobalValue) -> Sharded:
    """Updates that are added to a shard's rows of zeros, whose other rows are on other shards."""
    numbers = eqn.params["dimension_numbers"]
    window, dropped, why = numbers.update_window_dims, numbers.inserted_window_dims, "it adds to parts of rows"
    lengths = [operand_shape(eqn, 2)[at] for at in window]
    dim, axes = _table_of(walk, eqn, row, numbers.scatter_dims_to_operand_dims, dropped, lengths, why)
    if row.length is not None or "FILL" not in str(eqn.params["mode"]):
        raise NotKnown("it adds at places of other ids")
    value = walk.settled(updates)
    if value.axes.intersection(axes) or value.is_extreme:
        raise NotKnown("it adds an unreduced value")
    return _added(walk, eqn, "rows added", (), value, walk.spread(row), {dim: axes})
