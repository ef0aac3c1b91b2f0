"""Ids that are looked up in a table of which each shard has a part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from .values import Affine, DimSharding, GlobalValue, NotKnown, Sharded, ShardIds, Truth
from .walk import Walk, joined

_NEGATED = {
    "below": "not below", "above": "not above", "not below": "below", "not above": "above", "here": "elsewhere",
    "elsewhere": "here",
}  # fmt: skip
# On which side of a bound; whole numbers above 2 are at least 3.
_SIDES = {"ge": (True, 0), "gt": (True, 1), "lt": (False, 0), "le": (False, 1)}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def minus_first(walk: Walk, ids: GlobalValue, first: GlobalValue) -> ShardIds | None:
    """Ids minus the first one of the shard, if it is that."""
    if not isinstance(first, Affine) or first.positions or first.constant or not isinstance(ids, Sharded):
        return None
    if walk.is_number(ids) or ids.partial or ids.axes.intersection(first.indices):
        return None
    return ShardIds("ids", ids, tuple(sorted(first.indices.items())), tuple(range(len(ids.dims))))


def compared(
    walk: Walk, name: str, operands: Sequence[GlobalValue]
) -> GlobalValue | tuple[GlobalValue, GlobalValue] | None:
    """Whether ids are those of a shard; or what is to be compared in the place of ids and positions."""
    one, other = operands
    if isinstance(other, ShardIds):
        one, other, name = other, one, _MIRRORED[name]
    if not isinstance(one, ShardIds) or one.place not in ("ids", "row"):
        return None
    if isinstance(other, Affine) and other.positions and one.place == "ids":  # both with the first one added
        shifted, ids = other.plus(Affine(other.shape, 0, {}, dict(one.start))), walk.spread(one)
        return (ids, shifted) if one is operands[0] else (shifted, ids)
    number = _integer(walk, other)
    if number is None:
        return None
    if one.place == "row":
        return Truth(False, len(one.along)) if name == "lt" and number == 0 else None
    if name not in _SIDES:
        return None
    is_above, more = _SIDES[name]
    if number + more == 0:
        return replace(one, place="not below" if is_above else "below")
    return replace(one, place="above" if is_above else "not above", length=number + more)


def _integer(walk: Walk, value: GlobalValue) -> int | None:
    if isinstance(value, Affine) and not value.positions and not value.indices:
        return value.constant
    if isinstance(value, Sharded) and walk.is_number(value) and value.factor.denominator == 1:
        return int(value.factor)
    return None


def logical(name: str, operands: Sequence[GlobalValue]) -> ShardIds | None:
    """Both bounds of the shard's ids, from one and the other."""
    if name == "not":
        (one,) = operands
        known = isinstance(one, ShardIds) and one.place in _NEGATED
        return replace(one, place=_NEGATED[one.place]) if known else None  # type: ignore[type-var, union-attr]
    one, other = operands
    if not isinstance(one, ShardIds) or not isinstance(other, ShardIds) or one.key != other.key:
        return None
    places, length = {one.place, other.place}, one.length or other.length
    if name == "and" and places == {"not below", "not above"}:
        return replace(one, place="here", length=length)
    if name == "or" and places == {"below", "above"}:
        return replace(one, place="elsewhere", length=length)
    return None


def chosen(walk: Walk, which: ShardIds, cases: Sequence[GlobalValue]) -> GlobalValue:
    """What is chosen by whether the shard has an id."""
    if which.place == "elsewhere":
        which, cases = replace(which, place="here"), cases[::-1]
    if which.place == "below" and isinstance(case := cases[0], ShardIds) and case.place == "row":
        return case  # a row is never negative
    if which.place != "here":
        raise NotKnown("it depends on which ids the shard has")
    assert which.length is not None
    elsewhere, here = cases
    if isinstance(here, ShardIds) and here.place == "ids" and here.key == which.key:
        number = _integer(walk, elsewhere)
        if number is None or not 0 <= number < which.length:
            raise NotKnown("it depends on which ids the shard has")
        return replace(here, place="row", length=which.length)
    other = walk.settled(elsewhere)
    if not other.is_zero:
        raise NotKnown("where the shard does not have an id, it is not zero")
    if isinstance(here, ShardIds) and here.place in ("found", "owned") and here.key == which.key:
        assert here.value is not None
        if here.length == which.length:
            return walk.owned(which, here.value)
    return replace(which, place="owned", value=walk.settled(here))


def looked_up(walk: Walk, eqn: Any, table: Sharded, ids: ShardIds) -> GlobalValue:
    """The rows that a shard has, of a table of which the other shards have the others."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape = tuple(eqn.invars[0].aval.shape)
    batching = tuple(numbers.operand_batching_dims)
    ids_batching = tuple(numbers.start_indices_batching_dims)
    (dim,) = numbers.start_index_map if len(numbers.start_index_map) == 1 else (None,)
    others = [at for at in range(len(shape)) if at != dim and at not in batching]
    if dim is None or tuple(numbers.collapsed_slice_dims) != (dim,) or any(sizes[at] != shape[at] for at in others):
        raise NotKnown("it looks up parts of rows")
    axes = ids.axes(walk.sizes, shape[dim])
    if (table.dims[dim] if table.dims[dim] is not None else axes) != axes or table.is_extreme:
        raise NotKnown("the ids of the shards are not those of their parts of the table")
    table = walk.solid(table.with_dims([() if at == dim and axes_ is not None else axes_
                                        for at, axes_ in enumerate(table.dims)]), dim,
                       shape[dim] * prod(walk.sizes[axis] for axis in axes))  # fmt: skip
    along = ids.along[:-1]
    spread = replace(ids, along=along)
    places = list(walk.spread(spread).dims)
    for one, other in zip(batching, ids_batching, strict=True):
        places[other] = joined(table.dims[one], places[other])
    rank = len(eqn.outvars[0].aval.shape)
    window, batch, at_batch = iter([table.dims[at] for at in others]), iter(places), iter(along)
    dims, way = list[DimSharding](), list[int | None]()
    for at in range(rank):
        is_window = at in numbers.offset_dims
        dims.append(next(window if is_window else batch))
        way.append(None if is_window else next(at_batch))
    params = (repr(numbers), len(shape))
    operand = replace(table, factor=Fraction(1))
    if table.axes.intersection(axes) or table.partial & ids.ids.axes:
        raise NotKnown("its table is not reduced")
    found = walk.made(
        "rows", params, [operand, walk.spread(spread)], dims, table.partial, table.combined_by, table.factor
    )
    lookup = ShardIds("found", ids.ids, ids.start, tuple(way), shape[dim], found)
    is_filled = "FILL" in str(eqn.params["mode"]) and eqn.params.get("fill_value") == 0
    return walk.owned(lookup, found) if is_filled and ids.place == "ids" else lookup


def added_at(walk: Walk, eqn: Any, ids: ShardIds, updates: GlobalValue) -> Sharded:
    """What updates add to the rows that a shard has, of zeros of which the other shards have the others."""
    numbers, shape = eqn.params["dimension_numbers"], tuple(eqn.invars[0].aval.shape)
    batching = tuple(numbers.operand_batching_dims)
    ids_batching = tuple(numbers.scatter_indices_batching_dims)
    (dim,) = numbers.scatter_dims_to_operand_dims if len(numbers.scatter_dims_to_operand_dims) == 1 else (None,)
    others = [at for at in range(len(shape)) if at != dim and at not in batching]
    window = tuple(numbers.update_window_dims)
    lengths = [eqn.invars[2].aval.shape[at] for at in window]
    if dim is None or tuple(numbers.inserted_window_dims) != (dim,) or lengths != [shape[at] for at in others]:
        raise NotKnown("it adds to parts of rows")
    axes = ids.axes(walk.sizes, shape[dim])
    drops = "FILL" in str(eqn.params["mode"])
    if isinstance(updates, ShardIds):
        is_same = updates.ids == ids.ids and updates.start == ids.start and updates.length == shape[dim]
        batch_along = tuple(way for at, way in enumerate(updates.along) if at not in window)
        if updates.place != "owned" or not is_same or batch_along != ids.along[:-1] or updates.value is None:
            raise NotKnown("it adds what is for other ids")
        value = updates.value
    elif ids.place == "ids" and drops:
        value = walk.settled(updates)
    else:
        raise NotKnown("it adds at places of other ids")
    if value.axes.intersection(axes) or value.is_extreme:
        raise NotKnown("it adds what is not reduced")
    spread = walk.spread(replace(ids, along=ids.along[:-1]))
    own = [axes_ for at, axes_ in enumerate(value.dims) if at not in window]
    over = list[str]()
    dims: list[DimSharding] = [()] * len(shape)
    for at, (one, other) in enumerate(zip(own, spread.dims, strict=True)):
        both = joined(one, other)
        if at in ids_batching:
            dims[batching[ids_batching.index(at)]] = both if both is not None else ()
            if both is None:
                raise NotKnown("it adds the same at the same place")
            continue
        if both is None:
            raise NotKnown("it adds the same at the same place")
        over.extend(both)
    for at, here in zip(others, window, strict=True):
        dims[at] = value.dims[here] if value.dims[here] is not None else ()
    dims[dim] = axes
    unsharded = tuple(shape[at] * prod(walk.sizes[axis] for axis in dims[at] or ()) for at in range(len(shape)))
    operands = [replace(value, factor=Fraction(1)), spread]
    if value.partial & set(spread.axes):
        raise NotKnown("it adds what is not reduced")
    partial = value.partial.union(over)
    return walk.made("rows added", (repr(numbers), unsharded), operands, dims, partial, "sum", value.factor)
