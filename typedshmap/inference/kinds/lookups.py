"""What lookups and updates at places that are computed make of what the shards hold, and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..reshape import gathered_dims
from .functions import PICKED
from .moves import ROWS, first_rows
from .reading import ReadEquation
from .sums import OFFSETS, add
from .value import NOT_KNOWN, SAME, Share, blended, unknown


def gather(step: ReadEquation, values: list[Share]) -> Share:
    """A lookup at indices."""
    table, index = values[0], values[1]
    if "unknown" in (table.kind, index.kind):
        return unknown(values)
    if index.is_part:
        return step.decided("is an index", index, table)
    dims, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    is_batched = table.kind == "sharded" and table.dim in getattr(dims, "operand_batching_dims", ())
    dim = table.dim if table.kind in ("sharded", "local") and not is_batched else None
    if isinstance(dim, int) and sizes[dim] != step.shape(0)[dim]:  # JAX wraps an index by the number of own rows
        return _of_own_rows(step, table, index)
    if index.own:
        return step.lost("is an index", *values)
    if table.is_part:
        if index.kind == "same":
            return table.but(part=None)
        return step.lost("takes its own entries of a partial sum", table)
    if table is SAME and index is SAME:
        return SAME
    kinds = (table.kind, index.kind)
    kind, dim = next((kind for kind in ("own", "sharded", "local") if kind in kinds), "same"), None
    if kind in ("sharded", "local"):
        dim = _dim_after_gather(step, table, index, is_batched)
        if dim is None or (kinds == ("local", "sharded")):
            return NOT_KNOWN
    place = index.place if (kind, table.kind) == ("local", "same") else table.place
    name = table.name if table.kind == "sharded" else index.name
    is_heard, order = table.is_heard or index.is_heard, table.order or index.order
    return table.but(kind=kind, dim=dim, number=None, is_heard=is_heard, order=order, place=place, part=None, name=name)


def _of_own_rows(step: ReadEquation, table: Share, index: Share) -> Share:
    """A lookup in the rows that a shard has."""
    mode = str(step.params.get("mode"))
    if index.place == "offset" and "FILL" in mode and step.params.get("fill_value") == 0:
        return Share("sum", table.degree, is_heard=True, **table.gauges)
    if index.kind == "own" and index.place in OFFSETS:
        return Share("own", table.degree, is_heard=True, place="found", **table.gauges)
    if index.kind == "own":
        return Share("own", 0, is_heard=True)
    if index.kind == "sharded" and index.name[0] == table.name[0]:
        return NOT_KNOWN  # of the same dim, or of dims without names: places among a shard's own may be meant
    return step.lost("takes its own rows by their places", table, index, is_soft=True)


def _dim_after_gather(step: ReadEquation, table: Share, index: Share, is_batched: bool) -> int | str | None:
    """Where the sharded dim of a table that is taken whole, or of the indices, is in the result."""
    if step.eqn is not step.other and len(step.rows) == 1:
        return step.rows[0]
    if "rows" in (table.dim, index.dim):
        return "rows"
    dims: list[Any] = gathered_dims(step.eqn)
    numbers = step.params["dimension_numbers"]
    wanted = [(1, index.dim)] if index.kind in ("sharded", "local") else []
    if is_batched:
        wanted.append((1, numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(table.dim)]))
    wanted.append((0, table.dim))
    return next((dims.index(pair) for pair in wanted if pair in dims), None)


def scatter(step: ReadEquation, values: list[Share]) -> Share:
    """Updates put, or added, at indices."""
    into, index, update = values[:3]
    if any(value.kind == "unknown" for value in values):
        return unknown(values)
    if all(value is SAME for value in values):
        return SAME
    if index.is_part or index.own:
        return step.decided("is an index", index, into, update)
    sums = [value for value in (into, update) if value.kind == "sum"]
    if index.kind == "own" and sums and update.place != PICKED:
        return step.lost("puts a partial sum at its own places", into, update)
    numbers, is_added = step.reading.numbers, step.name in ("scatter-add", "scatter_add")
    are_rows = into.kind == "sharded" or step.likely_rows or numbers.is_blind
    is_own = "own" in (index.kind, update.kind)
    if "sharded" in (update.kind, index.kind) and is_added and into.kind == "same" and not (are_rows or is_own):
        return Share("sum", update.degree, None if into.is_zero else into.degree, **blended(into, update))
    is_picked = update.place == PICKED and index.place in OFFSETS and update.beside is None
    is_block = is_picked or (is_own and index.place == "offset" and update.kind != "sum")
    dim = step.rows[0] if step.rows else into.dim
    if is_block and is_added and into.kind in ("sharded", "same") and dim is not None:  # of the shard's own rows
        degree = numbers.common(into.degree, update.degree)
        return Share("sharded", degree, dim=dim, is_heard=True, **blended(into, update))
    are_terms = update.kind in ("sum", "same") and into.kind in ("sum", "same") and index.kind in ("same", "local")
    if are_terms and step.primitive.is_linear:
        return add(step, [into.but(number=None), update.but(number=None)])
    return unknown(values, is_heard=is_own or into.kind == "own")


def dynamic_slice(step: ReadEquation, values: list[Share]) -> Share:
    """A slice from places that are computed."""
    value, starts = values[0], values[1:]
    if any(each.kind == "unknown" for each in values):
        return unknown(values, is_heard=any(each.kind == "own" for each in starts))
    if (lost := next((start for start in starts if start.is_part or start.own), None)) is not None:
        return step.decided("is an index", lost, value)
    sizes, shape, numbers = step.params["slice_sizes"], step.shape(0), step.reading.numbers
    moving = [
        dim for dim, start in enumerate(starts) if start.kind in ("own", "sharded") and sizes[dim] != shape[dim]
    ]  # of a whole dim only one start is possible
    if moving:
        dim, start = moving[0], starts[moving[0]]
        if value.kind == "sum":
            is_rest = len(moving) == 1 and value.beside is None
            kind = "sharded" if is_rest else "own"
            return step.lost("takes its own slice of a partial sum", value, kind=kind, dim=dim if is_rest else None)
        if value.kind == "same" and len(moving) == 1 and start.line is not None:
            lengths = [eqn.params["slice_sizes"][dim] for eqn in (step.eqn, step.other)][: len(start.line)]
            is_block = all(
                by == length and first % (length * size) == 0
                for (first, by), length, size in zip(start.line, lengths, numbers.traces, strict=True)
            )
            if is_block and shape[dim] % (sizes[dim] * numbers.traces[0]) == 0:
                return value.but(kind="sharded", dim=dim, is_heard=True, number=None)
            if shape[dim] == sizes[dim] * numbers.traces[0]:
                return step.lost("takes another slice than its own", value, kind="sharded", dim=dim)
        gauges: dict[str, Any] = value.gauges | {"gauge": "?" if value.own else ""}
        return Share("own", 0, is_heard=True, **gauges)
    if value.is_common and not value.is_zero:
        if step.eqn is step.other:
            return first_rows(step, value)
        if step.rows and shape[step.rows[0]] != sizes[step.rows[0]]:
            return step.lost("takes the same rows on every shard", value, kind="sharded", dim=step.rows[0])
    if isinstance(value.dim, int) and sizes[value.dim] != shape[value.dim]:
        is_fixed = value.kind == "sharded" and starts[value.dim].number is not None
        return step.lost(ROWS, value, is_soft=True) if is_fixed else NOT_KNOWN  # else they may go over all of them
    return value.unnumbered


def update_slice(step: ReadEquation, values: list[Share]) -> Share:
    """A slice put at places that are computed."""
    into, update, *starts = values
    into, update = (step.reading.softened(value, starts) for value in (into, update))
    if any(value.kind == "unknown" for value in values):
        return unknown(values)
    if all(value is SAME for value in values):
        return SAME
    if any(start.kind == "own" for start in starts) or "own" in (into.kind, update.kind):
        if "sum" in (into.kind, update.kind):
            return step.lost("puts a partial sum at its own places", into, update)
        return Share("own", 0, is_heard=True, **blended(into, update))
    if any(start.kind != "same" for start in starts):
        return NOT_KNOWN
    if isinstance(into.dim, int) and step.shape(1)[into.dim] != step.shape(0)[into.dim]:
        return NOT_KNOWN
    return add(step, [into.but(number=None), update.but(number=None)])


def draw(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """Random numbers, and keys."""
    count = len(step.eqn.outvars)
    if step.name in ("random_wrap", "random_unwrap", "random_clone"):
        return values
    if any(value.kind == "unknown" for value in values):
        return [NOT_KNOWN] * count
    for rows in values:  # by a key for each row
        if isinstance(rows.dim, int) and all(value.kind in ("same", rows.kind) and not value.own for value in values):
            place = "drawn" if rows.kind == "local" else ""
            return [Share(rows.kind, 0, dim=rows.dim, place=place, name=rows.name)] * count
    if not all(value.is_common for value in values):
        return [Share("own", 0, is_heard=True, place="drawn")] * count
    dims = step.likely_rows
    return [Share("local", 0, dim=dims[0], place="drawn")] * count if dims else [SAME] * count
