"""The rules of gathers, scatters, dynamic slices and their updates, and of random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..reshape import gathered_dims, scattered_dims
from . import loss_kinds
from .moves import first_rows
from .reading import ReadEquation
from .sums import OFFSETS, add
from .value import NOT_KNOWN, SAME, Share, unknown, untracked


def gather(step: ReadEquation, values: list[Share]) -> Share:
    """A lookup at indices."""
    table, index = values[0], values[1]
    if any(value.kind == "gathered" for value in values) or "unknown" in (table.kind, index.kind):
        return unknown(values)
    if index.is_part:
        return step.decided(loss_kinds.INDEX, index, table)
    dims, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    is_batched = table.kind == "sharded" and table.dim in getattr(dims, "operand_batching_dims", ())
    dim = table.dim if table.kind in ("sharded", "local") and not is_batched else None
    if (
        isinstance(dim, int) and sizes[dim] != step.shape(0)[dim]
    ):  # JAX wraps an index by the number of rows that a shard has
        return _of_own_rows(step, table, index)
    if index.symbols:
        return step.lost(loss_kinds.INDEX, *values)
    if index.kind == "own":
        if table.kind == "sum":
            return step.lost(loss_kinds.OWN_ENTRIES, table, index)
        return Share("own", 0, is_reached=True, **untracked(table))
    if table.is_part:
        if index.kind == "same":
            return table.but(part=None)
        return step.lost(loss_kinds.OWN_ENTRIES, table)
    if table is SAME and index is SAME:
        return SAME
    kinds = (table.kind, index.kind)
    kind, dim = next((kind for kind in ("own", "sharded", "local") if kind in kinds), "same"), None
    if kind in ("sharded", "local"):
        dim = _dim_after_gather(step, table, index, is_batched)
        if dim is None or (kinds == ("local", "sharded")):
            return NOT_KNOWN
    trait = index.trait if (kind, table.kind) == ("local", "same") else table.trait
    name = table.name if table.kind == "sharded" else index.name
    is_reached, order = table.is_reached or index.is_reached, table.order or index.order
    return table.but(
        kind=kind, dim=dim, number=None, is_reached=is_reached, order=order, trait=trait, part=None, name=name
    )


def _of_own_rows(step: ReadEquation, table: Share, index: Share) -> Share:
    """A lookup in the rows of a shard."""
    mode = str(step.params.get("mode"))
    if index.trait == "offset" and "FILL" in mode and step.params.get("fill_value") == 0:
        return Share("sum", table.degree, is_reached=True, **table.symbol_fields)
    if index.kind == "own" and index.trait in OFFSETS:
        return Share("own", table.degree, is_reached=True, trait="found", **table.symbol_fields)
    if index.kind == "own":
        return Share("own", 0, is_reached=True)
    if index.kind == "sharded" and index.name[0] == table.name[0]:
        return NOT_KNOWN  # both of one dim: positions within the shard may be intended
    return step.lost(loss_kinds.LOOKUP_IN_ROWS, table, index, is_excusable=True)


def _dim_after_gather(step: ReadEquation, table: Share, index: Share, is_batched: bool) -> int | str | None:
    """The result's dim from the sharded dim of the indices, or of a table whose rows are not looked up."""
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
    """The transfer rule of scatter and scatter-add."""
    into, index, update = values[:3]
    if any(value.kind in ("unknown", "gathered") for value in values):
        return unknown(values)
    if all(value is SAME for value in values):
        return SAME
    if index.is_part or index.symbols:
        return step.decided(loss_kinds.INDEX, index, into, update)
    symbol_fields, end, is_added = untracked(into, update), step.primitive.end, step.primitive.is_linear
    is_sum = step.name in ("scatter-add", "scatter_add")
    common = step.reading.numbers.common
    is_picked = update.trait == "picked" and index.trait in OFFSETS and update.beside is None and into.kind != "sum"
    if index.kind == "own" and "sum" in (into.kind, update.kind) and not is_picked:
        return step.lost(loss_kinds.SCATTERED_SUM, into, update)
    if "own" in (index.kind, update.kind, into.kind):
        is_block = (index.trait == "offset" or is_picked) and into.kind in ("sharded", "same") and is_sum
        if is_block and (len(step.rows) == 1 or into.kind == "sharded"):
            dim = step.rows[0] if len(step.rows) == 1 else into.dim
            return Share("sharded", common(into.degree, update.degree), dim=dim, is_reached=True, **symbol_fields)
        return Share("own", 0, is_reached=True, **symbol_fields)
    dim = into.dim if into.kind == "sharded" else _dim_after_scatter(step, index, update)
    if into.kind == "sharded" or dim is not None:
        is_row = isinstance(dim, int) and dim not in step.params["dimension_numbers"].scatter_dims_to_operand_dims
        if is_row and update.kind in ("same", "sharded") and index.kind in ("same", "sharded", "local"):
            return into.but(kind="sharded", dim=dim, degree=common(into.degree, update.degree), **symbol_fields)
        return NOT_KNOWN
    if "sharded" in (update.kind, index.kind):
        if is_sum and into.kind == "same":
            return Share("sum", update.degree, None if into.is_zero else into.degree, **symbol_fields)
        if is_sum and into.kind == "sum":
            return Share("sum", common(into.degree, update.degree), into.beside, **symbol_fields)
        return Share("extreme", update.degree, end=end) if end and into.kind == "same" else NOT_KNOWN
    are_terms = update.kind in ("sum", "same") and into.kind in ("sum", "same") and index.kind in ("same", "local")
    return add(step, [into.but(number=None), update.but(number=None)]) if are_terms and is_added else NOT_KNOWN


def _dim_after_scatter(step: ReadEquation, index: Share, update: Share) -> int | None:
    """The sharded dim of the result, given by the updates or the indices; None if they are summed over it."""
    if len(step.rows) == 1:
        return step.rows[0]
    dims: dict[Any, int] = scattered_dims(step.eqn)
    if index.kind == "sharded" and (1, index.dim) in dims:
        return dims[1, index.dim]
    if update.kind != "sharded":
        return None
    windows = step.params["dimension_numbers"].update_window_dims
    batch = [dim for dim in range(len(step.shape(2))) if dim not in windows]  # those of the indices
    return dims.get((1, batch.index(update.dim)) if update.dim in batch else (2, update.dim))


def dynamic_slice(step: ReadEquation, values: list[Share]) -> Share:
    """A slice from computed starts."""
    value, starts = values[0], values[1:]
    if any(operand.kind in ("unknown", "gathered") for operand in values):
        return unknown(values, is_reached=any(operand.kind == "own" for operand in starts))
    if (lost := next((start for start in starts if start.is_part or start.symbols), None)) is not None:
        return step.decided(loss_kinds.INDEX, lost, value)
    sizes, shape, numbers = step.params["slice_sizes"], step.shape(0), step.reading.numbers
    moving = [
        dim for dim, start in enumerate(starts) if start.kind in ("own", "sharded") and sizes[dim] != shape[dim]
    ]  # a whole dim has only one start
    if moving:
        dim, start = moving[0], starts[moving[0]]
        if value.kind == "sum":
            is_rest = len(moving) == 1 and value.beside is None
            kind = "sharded" if is_rest else "own"
            return step.lost(loss_kinds.OWN_SLICE, value, kind=kind, dim=dim if is_rest else None)
        if value.kind == "same" and len(moving) == 1 and start.affine is not None:
            lengths = [eqn.params["slice_sizes"][dim] for eqn in (step.eqn, step.other)][: len(start.affine)]
            is_block = all(
                by == length and first % (length * size) == 0
                for (first, by), length, size in zip(start.affine, lengths, numbers.traces, strict=True)
            )
            if is_block and shape[dim] % (sizes[dim] * numbers.traces[0]) == 0:
                return value.but(kind="sharded", dim=dim, is_reached=True, number=None)
            if shape[dim] == sizes[dim] * numbers.traces[0]:
                return step.lost(loss_kinds.OTHER_SLICE, value, kind="sharded", dim=dim)
        symbol_fields: dict[str, Any] = value.symbol_fields | {"role": "?" if value.symbols else ""}
        return Share("own", 0, is_reached=True, **symbol_fields)
    if value.is_common and not value.is_zero:
        if step.eqn is step.other:
            return first_rows(step, value)
        if step.rows and shape[step.rows[0]] != sizes[step.rows[0]]:
            return step.lost(loss_kinds.SAME_ROWS, value, kind="sharded", dim=step.rows[0])
    if isinstance(value.dim, int) and sizes[value.dim] != shape[value.dim]:
        is_fixed = value.kind == "sharded" and starts[value.dim].number is not None
        # With other starts, a loop may go over all rows.
        return step.lost(loss_kinds.SOME_ROWS, value, is_excusable=True) if is_fixed else NOT_KNOWN
    return value.without_number


def update_slice(step: ReadEquation, values: list[Share]) -> Share:
    """An update of a slice with computed starts."""
    into, update, *starts = values
    into, update = (step.reading.excused(value, starts) for value in (into, update))
    if any(value.kind in ("unknown", "gathered") for value in values):
        return unknown(values)
    if all(value is SAME for value in values):
        return SAME
    if into.is_zero and update.kind == "sharded" and isinstance(update.dim, int) and not update.order:
        affine = starts[update.dim].affine
        lengths = [eqn.invars[1].aval.shape[update.dim] for eqn in (step.eqn, step.other)]
        is_block = affine is not None and all(
            first == 0 and by == length for (first, by), length in zip(affine, lengths, strict=False)
        )
        if is_block and sum(start.kind == "own" for start in starts) == 1:
            return Share("sum", update.degree, is_reached=True, **update.symbol_fields)
    if any(start.kind == "own" for start in starts) or "own" in (into.kind, update.kind):
        if "sum" in (into.kind, update.kind):
            return step.lost(loss_kinds.SCATTERED_SUM, into, update)
        return Share("own", 0, is_reached=True, **untracked(into, update))
    if any(start.kind != "same" for start in starts):
        return NOT_KNOWN
    if isinstance(into.dim, int) and step.shape(1)[into.dim] != step.shape(0)[into.dim]:
        return NOT_KNOWN
    return add(step, [into.but(number=None), update.but(number=None)])


def draw(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """Random numbers, and keys."""
    count = len(step.eqn.outvars)
    if step.primitive.keeps_key:
        return values
    if any(value.kind == "unknown" for value in values):
        return [NOT_KNOWN] * count
    for rows in values:  # a key for each row
        if isinstance(rows.dim, int) and all(
            value.kind in ("same", rows.kind) and not value.symbols for value in values
        ):
            trait = "drawn" if rows.kind == "local" else ""
            return [Share(rows.kind, 0, dim=rows.dim, trait=trait, name=rows.name)] * count
    if not all(value.is_common for value in values):
        return [Share("own", 0, is_reached=True, trait="drawn")] * count
    dims = step.likely_rows
    return [Share("local", 0, dim=dims[0], trait="drawn")] * count if dims else [SAME] * count
