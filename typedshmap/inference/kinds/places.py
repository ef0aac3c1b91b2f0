"""Where the dim goes along which the shards' parts lie, as entries are moved, reduced, and looked up."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from ... import _jax
from .arithmetic import OFFSETS, PICKED, across, add, locally, merged, nonlinear, product
from .collectives import extreme, total
from .reading import ReadEquation
from .value import ANY, NO_PARTS, NOT_KNOWN, SAME, UNKNOWN, Share, anyhow, heard, sum_of, unknown

_ROWS = "takes some of its own rows"


def _moved(value: Share, dim: int | None) -> Share:
    """The same value, of which a dim has moved."""
    return value if value.dim == dim else value.but(dim=dim)


def broadcast(step: ReadEquation, values: list[Share]) -> Share:
    """New dims, along which all entries are the same."""
    value, shape = values[0], step.result_shape
    if value is SAME:
        return SAME
    if value.number is not None:
        value = value.but(number=value.number if not shape else None)
    dims = step.params.get("broadcast_dimensions", ())
    if isinstance(value.dim, int):
        return _moved(value, int(dims[value.dim]))
    if value.kind == "same" and isinstance(step.reading.numbers.known(value.degree), tuple):  # of a count to be learnt
        return value.but(root=("mean", tuple(dim for dim in range(len(shape)) if dim not in dims)))
    return value.but(number=None) if value.number is not None and shape else value


def reshape(step: ReadEquation, values: list[Share]) -> Share:
    """Dims merged and split: a sharded one stays so as the major part of what it becomes."""
    value, shape, before = values[0], step.result_shape, step.shape(0)
    if not shape and isinstance(value.dim, int):
        return _only_row(value)
    if not shape or (prod(shape) <= 1 and not isinstance(value.dim, int)):
        return value
    value = value.but(number=None) if value.number is not None else value
    if not isinstance(value.dim, int):
        is_only_ones = [size for size in before if size > 1] == [size for size in shape if size > 1]
        if value.kind == "same" and step.rows and not value.is_zero and not is_only_ones:
            return value if value.root or len(before) == 0 else NOT_KNOWN
        return value
    at, major = value.dim, prod(before[: value.dim])
    if value.kind == "parts":
        kept = [dim for dim in range(len(shape)) if prod(shape[:dim]) == major and shape[dim] == before[at]]
        return value.but(dim=kept[0]) if kept else NOT_KNOWN
    if len(step.rows) == 1 and step.eqn is not step.other:
        to = step.rows[0]
    else:
        ends = [dim for dim in range(len(shape)) if prod(shape[: dim + 1]) > major or shape[dim] == before[at] == 1]
        if not ends:
            return NOT_KNOWN
        to = ends[0]
        if step.eqn is step.other and shape[to] != before[at]:
            pieces = [size for size in shape[to:] if size > 1 and before[at] % size == 0]
            step.reading.numbers.split_into(pieces)
    if value.order > 0:  # its pieces are dims of their own again
        for dim in range(len(shape)):
            if prod(shape[:dim]) == major * value.order and major * before[at] == prod(shape[: dim + 1]):
                return value.but(dim=dim, order=0)
    after = prod(shape[:to])
    if value.order and after and major == value.order * after:  # put together again
        return value.but(dim=to, order=0)
    pieces_before = major // after if after and major % after == 0 else -1
    order = value.order if after == major else pieces_before
    if (
        after == major
        and value.kind == "sharded"
        and shape[to] != before[at]
        and shape[to] % before[at]
        and before[at] % shape[to]
    ):
        return NOT_KNOWN
    return value.but(dim=to, order=value.order or order)


def transpose(step: ReadEquation, values: list[Share]) -> Share:
    """Dims in another order."""
    value = values[0]
    return _moved(value, step.params["permutation"].index(value.dim)) if isinstance(value.dim, int) else value


def squeeze(step: ReadEquation, values: list[Share]) -> Share:
    """Dims of size 1 taken away."""
    value, gone = values[0], step.params["dimensions"]
    if not isinstance(value.dim, int):
        return value
    return _only_row(value) if value.dim in gone else _moved(value, value.dim - sum(dim < value.dim for dim in gone))


def _only_row(value: Share) -> Share:
    """The row of a shard that has one, without its dim."""
    return value.but(dim="rows") if value.kind == "sharded" else value.but(kind="same", dim=None)


_REVERSED = -2
"""The order of a shard's rows from the last to the first."""


def reverse(step: ReadEquation, values: list[Share]) -> Share:
    """Entries in the opposite order."""
    value = values[0]
    if value.kind != "sharded" or value.dim not in step.params["dimensions"]:
        return value
    return value.but(order={0: _REVERSED, _REVERSED: 0}.get(value.order, -1))


def cut(step: ReadEquation, values: list[Share]) -> Share:
    """A slice."""
    value, params = values[0], step.params
    before, after = step.shape(0), step.result_shape
    if isinstance(value.dim, int):
        at, steps = value.dim, params["strides"] or (1,) * len(before)
        start = params["start_indices"][at]
        is_each = steps[at] > start and all(
            eqn.invars[0].aval.shape[at] == steps[at] * eqn.outvars[0].aval.shape[at] for eqn in (step.eqn, step.other)
        )
        if is_each or after[at] == before[at] or value.place == "halo":
            return value
        if value.kind == "parts":
            return NOT_KNOWN
        return step.lost(_ROWS, value, is_soft=True) if value.kind == "sharded" else value
    if value.kind != "same" or value.is_zero or value.own:
        return value.but(number=None) if value.number is not None else value
    rows = step.rows
    if len(rows) == 1 and before[rows[0]] != after[rows[0]]:
        return step.lost("takes the same rows on every shard", value, kind="sharded", dim=rows[0])
    return _first_rows(step, value)


def _first_rows(step: ReadEquation, value: Share) -> Share:
    """A slice of what is the same on every shard, as far as one trace shows whether it is as long as a shard."""
    value = value.but(number=None, line=None) if value is not SAME else value
    if step.eqn is not step.other:
        return value
    lengths, shapes = step.reading.numbers.row_lengths, zip(step.shape(0), step.result_shape, strict=True)
    taken = [dim for dim, (before, after) in enumerate(shapes) if after != before and after in lengths]
    return Share("local", value.degree, dim=taken[0], place="taken") if taken else value


def split(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """Pieces along a dim."""
    value, count = values[0], len(step.eqn.outvars)
    axis = step.params.get("axis", 0)
    if step.name == "unstack" and isinstance(value.dim, int) and value.dim != axis:
        return [_moved(value, value.dim - (value.dim > axis))] * count
    if value.dim == axis and value.kind == "sharded" and count > 1:  # pieces of a shard's rows, such as microbatches
        return [value.but(order=max(1, value.order) * count)] * count
    if value.dim == axis and value.kind == "local" and count > 1:
        # Of so many rows by the text of the program each is the same on every shard.
        return [value.but(kind="same", dim=None) if step.name == "unstack" else NOT_KNOWN] * count
    return [value] * count


def tile(step: ReadEquation, values: list[Share]) -> Share:
    """Copies along dims."""
    value = values[0]
    reps = step.params.get("reps", ())
    if not isinstance(value.dim, int) or not reps or reps[value.dim] == 1:
        return value
    return value.but(order=-1) if value.kind == "sharded" else NOT_KNOWN


def roll(step: ReadEquation, values: list[Share]) -> Share:
    """Entries moved around."""
    return (
        reverse(step, values) if "dimensions" in step.params else NOT_KNOWN if values[0].dim is not None else values[0]
    )


def beside(step: ReadEquation, values: list[Share]) -> Share:
    """Several values side by side, or one with a border."""
    reading = step.reading
    if step.name == "stack":
        at = step.params["axis"]
        values = [_moved(v, v.dim + (v.dim >= at)) if isinstance(v.dim, int) else v for v in values]
    if any(value.kind == "unknown" for value in values):
        return unknown(values)
    along = step.params.get("dimension") if step.name == "concatenate" else None
    rows = [value for value in values if along is not None and value.kind == "sharded" and value.dim == along]
    if len(rows) == 1 and not rows[0].own and any(value.place == "sent" for value in values):
        others = [value for value in values if value is not rows[0]]
        if all(value.kind in ("own", "same") and not value.own for value in others):
            return rows[0].but(is_heard=True, place="halo")
    found = values[0].but(number=None, line=None)
    is_integer = not step.is_inexact
    for value in values[1:]:
        value = value.but(number=None, line=None)
        kinds = {found.kind, value.kind}
        dims = {each.dim for each in (found, value) if each.dim is not None}
        if (step.name == "pad" and value.is_zero) or (
            is_integer and kinds <= {"local", "sharded", "same"} and len(dims) <= 1
        ):
            order = ["sharded", "local", "same"]
            found = min((found, value), key=lambda each: order.index(each.kind) if each.kind in order else -1)
        elif kinds == {"same"} and reading.numbers.agree(found.degree, value.degree) is not None:
            own, degree = anyhow(found, value), reading.numbers.agree(found.degree, value.degree)
            found = Share(
                "same",
                UNKNOWN if degree is None else degree,
                own=own,
                gauge="?" if own else "",
                reduced=found.reduced | value.reduced,
                is_heard=found.is_heard or value.is_heard,
                may_cancel=found.may_cancel or value.may_cancel,
            )
        elif kinds == {"extreme"} and found.end == value.end:
            found = found.but(part=None, gauge="", own=NO_PARTS)
        else:
            found = add(step, [found, value])
    if found.kind in ("sharded", "local") and isinstance(found.dim, int):
        if step.name == "concatenate" and along == found.dim and len(values) > 1:
            return (
                found.but(order=-1) if not any(value.is_heard for value in values) else Share("own", 0, is_heard=True)
            )
        if step.name == "pad" and step.params["padding_config"][found.dim] != (0, 0, 0):
            return step.lost("pads its own rows", found, is_soft=True)
    if found is SAME:
        return found
    has_halo = found.kind == "sharded" and all(value.place == "halo" for value in values)
    return found.but(number=None, line=None, place="halo" if has_halo else found.place)


def iota(step: ReadEquation, values: list[Share]) -> Share:
    """Places along a dim."""
    at, rows = step.params.get("dimension", 0), step.rows
    if step.eqn is step.other:
        shape = step.result_shape
        is_rows = bool(shape) and shape[at] in step.reading.numbers.row_lengths
        return Share("local", 0, dim=at) if is_rows else SAME
    if not rows:
        return SAME
    return Share("local", 0, dim=at) if at in rows else SAME


# ------------------------------------------------------------------------------------------------------------- reducing


def reduced(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """Dims taken away by a sum, an extreme, a place, a product."""
    value, params = values[0], step.params
    axes = tuple(int(axis) for axis in params.get("axes", params.get("dimensions", ())))
    if len(values) > 1:
        return [unknown(values)] * len(step.eqn.outvars)
    return [reduce_dims(step, step.name, value, axes)]


def reduce_dims(step: ReadEquation, name: str, value: Share, axes: tuple[int, ...]) -> Share:
    """A value without some dims."""
    reading = step.reading
    is_sum = name == "reduce_sum"
    if value.kind == "unknown" or (value.kind == "own" and not value.own):
        value = value.but(line=None, number=None, place="")
        return step.mixed(value) if is_sum else value
    is_extreme = name in ("reduce_max", "reduce_min", "reduce_or", "reduce_and")
    if value.kind == "parts" and value.dim in axes:
        of = value.root[1] if value.root is not None else NOT_KNOWN
        if value.own or len(axes) != 1:
            return heard(NOT_KNOWN)
        if is_sum:
            return total(step, of)
        return extreme(step, of, name[-3:]) if name in ("reduce_max", "reduce_min") else heard(NOT_KNOWN)
    is_gone = value.kind in ("sharded", "local") and value.dim in axes
    shifted: dict[str, Any] = value.gauges | {"gauge": "?" if value.gauge == "+" else value.gauge}
    if not is_gone:
        dim = value.dim - sum(axis < value.dim for axis in axes) if isinstance(value.dim, int) else value.dim
        if is_sum:
            # Along a dim with an entry for each shard it adds n of them; of entries that shards share out so much less.
            before, after = (eqn.invars[0].aval.shape for eqn in (step.eqn, step.other))
            sizes = reading.numbers.traces
            more = prod(after[axis] for axis in axes) / max(1, prod(before[axis] for axis in axes))
            if value.kind == "same" and len(sizes) > 1 and more != 1 and not value.is_zero:
                by = {sizes[1] / sizes[0]: 1, sizes[0] / sizes[1]: -1}.get(more)
                value = value.but(degree=UNKNOWN if by is None else sum_of(value.degree, by))
            if value is SAME:
                return SAME
            return value.but(dim=dim, gauge=shifted["gauge"], number=None, place="", root=None)
        if value.kind == "sum":
            return nonlinear(step, [value])
        end = {"reduce_or": "max", "reduce_and": "min"}.get(name, name[-3:])
        if value.kind == "extreme" and not (is_extreme and end == value.end):
            return nonlinear(step, [value])
        if name == "reduce_prod" and value.degree not in (0, ANY):
            return NOT_KNOWN
        if value is SAME:
            return SAME
        is_place = name.startswith("arg")
        return value.but(dim=dim, degree=0 if is_place else value.degree, number=None, part=None, root=None,
                         gauge="?" if is_place and value.own else value.gauge)  # fmt: skip
    if is_sum:
        lengths = {eqn.invars[0].aval.shape[value.dim] for eqn in (step.eqn, step.other) if isinstance(value.dim, int)}
        if lengths == {1} and _jax.jaxpr.is_transposed(step.eqn):
            return NOT_KNOWN  # the row that a shard has, as it was before it was broadcast, or a sum of rows
        if value.kind == "local":
            degree = value.degree if value.place == "folded" or value.is_zero else UNKNOWN  # it adds so many rows
            return Share("same", degree, reduced=value.reduced, is_heard=True, **value.gauges)
        if reading.is_soft(value):
            return Share("own", 0, gauge="?", own=value.own)
        return Share(
            "sum",
            value.degree,
            reduced=value.reduced,
            is_heard=value.is_heard,
            is_positive=value.is_positive,
            **shifted,
        )
    if value.kind == "local":
        return NOT_KNOWN
    if is_extreme:
        if value.own:
            return value.but(kind="own", dim=None, gauge="?")
        end = "max" if name in ("reduce_max", "reduce_or") else "min"
        return Share(
            "extreme",
            value.degree,
            end=end,
            reduced=value.reduced,
            is_heard=value.is_heard,
            is_positive=value.is_positive,
        )
    return step.lost("reduces its own rows", value, is_soft=True)


def ordered(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """Operations along a dim that need the whole of it."""
    value, name, params = values[0], step.name, step.params
    count = len(step.eqn.outvars)
    if any(each.kind in ("unknown", "parts") for each in values):
        return [unknown(values)] * count
    rank = len(step.shape(0))
    if name == "fft":
        dims = {rank - 1 - at for at in range(len(params["fft_lengths"]))}
    elif name.startswith(("reduce_window", "select_and")):
        window = params.get("window_dimensions", ())
        dims = {at for at, size in enumerate(window) if size > 1}
    else:
        dims = {params.get("axis", params.get("dimension", rank - 1))}
    if any(each.kind == "sum" for each in values):
        is_linear = _jax.primitives.primitive(name).is_linear
        return [value.but(part=None) if is_linear and len(values) == 1 else nonlinear(step, values)] * count
    rows = [each for each in values if each.kind in ("sharded", "local")]
    if any(each.kind == "sharded" and each.dim in dims for each in rows):
        return [step.lost("works along its own rows", *values, is_soft=True)] * count
    if any(each.kind in ("extreme", "own") or each.own for each in values):
        return [nonlinear(step, values)] * count
    found = next(iter(rows), value)
    results = [found if found is SAME else found.but(part=None, number=None)] * count
    if name in ("top_k", "approx_top_k") and count > 1 and found is not SAME:
        results[1] = results[1].but(degree=0)
    return results


# ------------------------------------------------------------------------------------------------------------- products


def contract(step: ReadEquation, values: list[Share]) -> Share:
    """A product of matrices: a contraction over a sharded dim leaves a partial sum."""
    reading, ragged = step.reading, step.params.get("ragged_dot_dimension_numbers")
    if ragged is not None and not _are_groups_unsharded(ragged, values):
        return SAME if all(value is SAME for value in values) else unknown(values)
    values = values[:2]
    a, b = (reading.softened(value, values) for value in values)
    contracted, batched = step.params["dimension_numbers"] if ragged is None else ragged.dot_dimension_numbers
    if "unknown" in (a.kind, b.kind):
        return unknown((a, b))
    gone = [v for v, dims in zip((a, b), contracted, strict=True) if v.kind in ("sharded", "local") and v.dim in dims]
    if gone:
        return _over_rows(step, a, b, gone)
    if "parts" in (a.kind, b.kind):
        return NOT_KNOWN
    ranks = [len(step.shape(at)) for at in range(2)]

    def placed(value: Share, side: int) -> Share:
        dim = value.dim
        if isinstance(dim, int):
            if dim in batched[side]:
                dim = list(batched[side]).index(dim)
            else:
                taken = (*contracted[side], *batched[side], *(ragged.rhs_group_dimensions if ragged and side else ()))
                free = [at for at in range(ranks[side]) if at not in taken]
                before = 0 if side == 0 else ranks[0] - len(contracted[0]) - len(batched[0])
                dim = len(batched[0]) + before + free.index(dim)
        elif value is SAME:
            return value
        gauge = "?" if value.gauge == "+" else value.gauge
        return value.but(dim=dim, number=None, line=None, gauge=gauge, root=None)

    if a is SAME and b is SAME:
        return SAME
    first, second = placed(a, 0), placed(b, 1)
    return product(step, first, second)


def _are_groups_unsharded(ragged: Any, values: Sequence[Share]) -> bool:
    """Whether rows in groups lie as in a product of matrices: each shard has all rows, and all groups."""
    rows, groups = ragged.lhs_ragged_dimensions, ragged.rhs_group_dimensions
    (contracted, _), (batched, _) = ragged.dot_dimension_numbers
    is_plain = not {*rows} & {*contracted, *batched} and len(groups) == 1
    return is_plain and values[2] is SAME and values[0].dim not in rows and values[1].dim not in groups


def _over_rows(step: ReadEquation, a: Share, b: Share, gone: Sequence[Share]) -> Share:
    reading = step.reading
    others = [value for value in (a, b) if value not in gone]
    if any(value.kind == "parts" for value in others):
        return NOT_KNOWN
    if any(value.kind == "own" and not value.own for value in others):
        return step.mixed(Share("own", 0, is_heard=a.is_heard or b.is_heard, since=reading.since((a, b))))
    soft = next((value for value in (a, b) if reading.is_soft(value)), None)
    if soft is not None:
        return Share("own", 0, gauge="?", own=soft.own, is_heard=a.is_heard or b.is_heard)
    if any(value.kind in ("sum", "extreme", "own") for value in others):
        return step.lost("multiplies a partial sum by own rows", a, b)
    if len(gone) == 2 and "folded" in {value.place for value in gone}:
        return step.lost("adds rows of different shards", a, b, kind="same")
    if len(gone) == 2 and "local" in {value.kind for value in gone}:
        return NOT_KNOWN if all(value.kind == "local" for value in gone) else locally(step, a, b, kind="sum")
    if any(value.is_zero for value in (a, b)):
        return Share("same", ANY)
    if len(gone) == 1 and others and others[0].kind == "sharded":
        return across(step, a, b)
    same = next((value for value in others if value.root is not None and value.root[0] == "mean"), None)
    if same is not None:
        side = 0 if a is same else 1
        numbers = step.params.get("dimension_numbers")
        if numbers is not None:
            # The contracted dim of the sharded operand stands for one of the other, along which a mean may be spread.
            rows = gone[0]
            at = list(numbers[0][1 - side]).index(rows.dim)
            reading.numbers.learn_count(same.degree, numbers[0][side][at] in same.root[1])  # type: ignore[index]
    shifted = [value.but(gauge="?") if value.gauge == "+" else value for value in (a, b)]
    degree = sum_of(reading.numbers.known(a.degree), reading.numbers.known(b.degree))
    more: dict[str, Any] = {"reduced": a.reduced | b.reduced, "is_heard": a.is_heard or b.is_heard}
    return Share("sum", degree, **more, **merged(reading, shifted[0], shifted[1], "*"))


def convolve(step: ReadEquation, values: list[Share]) -> Share:
    """A convolution; along a sharded dim each shard has its own rows only."""
    a, b = values
    numbers = step.params["dimension_numbers"]
    if any(value.kind in ("unknown", "parts") for value in values):
        return unknown(values)
    if a.kind == "sharded" and b.kind in ("same", "sharded"):
        if a.dim == numbers.lhs_spec[0] and b.kind == "same":
            return a.but(dim=numbers.out_spec[0], degree=sum_of(a.degree, b.degree))
        if a.dim == numbers.lhs_spec[1]:
            return Share("sum", sum_of(a.degree, b.degree))
        if a.dim in numbers.lhs_spec[2:] and b.kind == "same":
            at = numbers.lhs_spec[2:].index(a.dim)
            before, to = step.shape(0)[numbers.lhs_spec[2 + at]], numbers.out_spec[2 + at]
            if step.shape(1)[numbers.rhs_spec[2 + at]] == 1 and step.result_shape[to] == before:  # each row by itself
                return a.but(dim=to, degree=sum_of(a.degree, b.degree))
            return step.lost("convolves its own rows", *values, is_soft=True)
        return NOT_KNOWN
    if a.kind == "same" and b.kind == "sharded" and b.dim == numbers.rhs_spec[0]:
        return b.but(dim=numbers.out_spec[1], degree=sum_of(a.degree, b.degree))
    if "sharded" in (a.kind, b.kind):
        return NOT_KNOWN
    return product(step, a, b)


# -------------------------------------------------------------------------------------------------------------- lookups


def gather(step: ReadEquation, values: list[Share]) -> Share:
    """A lookup at indices."""
    table, index = values[0], values[1]
    if any(value.kind == "parts" for value in values) or "unknown" in (table.kind, index.kind):
        return unknown(values)
    if index.kind in ("sum", "extreme"):
        return step.decided("is an index", index, table)
    dims, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    is_batched = table.kind == "sharded" and table.dim in getattr(dims, "operand_batching_dims", ())
    dim = table.dim if table.kind in ("sharded", "local") and not is_batched else None
    if isinstance(dim, int) and sizes[dim] != step.shape(0)[dim]:  # JAX wraps an index by the number of own rows
        return _of_own_rows(step, table, index)
    if index.own:
        return step.lost("is an index", *values)
    if index.kind == "own":
        if table.kind == "sum":
            return step.lost("takes its own entries of a partial sum", table, index)
        return Share("own", 0, is_heard=True, gauge="?" if table.own else "", own=anyhow(table))
    if table.kind in ("sum", "extreme"):
        if index.kind == "same":
            return table.but(part=None)
        return step.lost("takes its own entries of a partial sum", table)
    if table is SAME and index is SAME:
        return SAME
    kinds = (table.kind, index.kind)
    kind = "own" if "own" in kinds else "sharded" if "sharded" in kinds else "local" if "local" in kinds else "same"
    dim = _dim_after_gather(step, table, index, is_batched) if kind in ("sharded", "local") else None
    if kind in ("sharded", "local") and dim is None:
        return NOT_KNOWN
    if kind == "sharded" and "local" in kinds and table.kind != "sharded":
        return NOT_KNOWN
    order = table.order or index.order
    place = index.place if (kind, table.kind) == ("local", "same") else table.place
    return table.but(kind=kind, dim=dim, number=None, is_heard=table.is_heard or index.is_heard, order=order,
                     place=place, part=None, name=table.name if table.kind == "sharded" else index.name)  # fmt: skip


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
    dims = step.params["dimension_numbers"]
    rank = len(step.result_shape)
    batch = [at for at in range(rank) if at not in dims.offset_dims]
    if index.kind in ("sharded", "local") and isinstance(index.dim, int) and index.dim < len(batch):
        return batch[index.dim]
    gone = {*dims.collapsed_slice_dims, *getattr(dims, "operand_batching_dims", ())}
    if is_batched:
        at = dims.operand_batching_dims.index(table.dim)
        of_index = dims.start_indices_batching_dims[at]
        return batch[of_index] if of_index < len(batch) else None
    kept = [at for at in range(len(step.shape(0))) if at not in gone]
    return dims.offset_dims[kept.index(table.dim)] if table.dim in kept else None


def scatter(step: ReadEquation, values: list[Share]) -> Share:
    """Updates put, or added, at indices."""
    into, index, update = values[:3]
    if any(value.kind in ("unknown", "parts") for value in values):
        return unknown(values)
    if all(value is SAME for value in values):
        return SAME
    if index.kind in ("sum", "extreme") or index.own:
        return step.decided("is an index", index, into, update)
    own: dict[str, Any] = {
        "gauge": "?" if into.own or update.own else "",
        "own": anyhow(into, update),
        "may_cancel": into.may_cancel or update.may_cancel,
    }
    agree = step.reading.numbers.agree
    is_picked = update.place == PICKED and index.place in OFFSETS and update.beside is None and into.kind != "sum"
    if index.kind == "own" and "sum" in (into.kind, update.kind) and not is_picked:
        return step.lost("puts a partial sum at its own places", into, update)
    if "own" in (index.kind, update.kind, into.kind):
        is_block = (
            (index.place == "offset" or is_picked)
            and into.kind in ("sharded", "same")
            and step.name.startswith("scatter-add")
        )
        if is_block and (len(step.rows) == 1 or into.kind == "sharded"):
            dim = step.rows[0] if len(step.rows) == 1 else into.dim
            degree = agree(into.degree, update.degree)
            return Share("sharded", UNKNOWN if degree is None else degree, dim=dim, is_heard=True, **own)
        return Share("own", 0, is_heard=True, **own)
    kept = _dim_after_scatter(step, index, update)
    if into.kind == "sharded" or kept is not None:
        dim = into.dim if into.kind == "sharded" else kept
        dims = step.params["dimension_numbers"]
        is_row = isinstance(dim, int) and dim not in getattr(dims, "scatter_dims_to_operand_dims", ())
        if is_row and update.kind in ("same", "sharded") and index.kind in ("same", "sharded", "local"):
            degree = agree(into.degree, update.degree)
            return into.but(kind="sharded", dim=dim, degree=UNKNOWN if degree is None else degree, **own)
        return NOT_KNOWN
    is_added = step.name in ("scatter-add", "scatter_add")
    if "sharded" in (update.kind, index.kind):
        if is_added and into.kind == "same" and into.is_zero:
            return Share("sum", update.degree, **own)
        if is_added and into.kind == "sum":
            return Share("sum", agree(into.degree, update.degree) or UNKNOWN, into.beside, **own)
        if is_added and into.kind == "same":
            return Share("sum", update.degree, into.degree, **own)
        if step.name[-3:] in ("max", "min") and into.kind == "same":
            return Share("extreme", update.degree, end=step.name[-3:])
        return NOT_KNOWN
    are_terms = update.kind in ("sum", "same") and into.kind in ("sum", "same") and index.kind in ("same", "local")
    if are_terms and not step.name.startswith("scatter-m"):
        return add(step, [into.but(number=None), update.but(number=None)])
    return NOT_KNOWN


def _dim_after_scatter(step: ReadEquation, index: Share, update: Share) -> int | None:
    """The dim of what is updated along which the updates are sharded, or the indices; None if they are summed."""
    if len(step.rows) == 1:
        return step.rows[0]
    dims = step.params["dimension_numbers"]
    of_operand: Sequence[Any] = getattr(dims, "operand_batching_dims", ())
    of_index: Sequence[Any] = getattr(dims, "scatter_indices_batching_dims", ())
    if index.kind == "sharded" and index.dim in of_index:
        return of_operand[of_index.index(index.dim)]
    if update.kind != "sharded" or not isinstance(update.dim, int):
        return None
    if update.dim in dims.update_window_dims:
        gone = {*dims.inserted_window_dims, *of_operand}
        windows = [dim for dim in range(len(step.shape(0))) if dim not in gone]
        return windows[dims.update_window_dims.index(update.dim)]
    places = [dim for dim in range(len(step.shape(2))) if dim not in dims.update_window_dims]
    at = places.index(update.dim)
    return of_operand[of_index.index(at)] if at in of_index else None


def dynamic_slice(step: ReadEquation, values: list[Share]) -> Share:
    """A slice from places that are computed."""
    value, starts = values[0], values[1:]
    if any(each.kind in ("unknown", "parts") for each in values):
        return unknown(values, is_heard=any(each.kind == "own" for each in starts))
    if any(each.kind in ("sum", "extreme") or each.own for each in starts):
        return step.decided(
            "is an index", next(each for each in starts if each.kind in ("sum", "extreme") or each.own), value
        )
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
    if value.kind == "same" and not value.own and not value.is_zero and step.eqn is step.other:
        return _first_rows(step, value)
    if value is SAME and not step.rows:
        return SAME
    if step.rows and value.kind == "same" and not value.own and not value.is_zero:
        dim = step.rows[0]
        if shape[dim] != sizes[dim]:
            return step.lost("takes the same rows on every shard", value, kind="sharded", dim=dim)
    if isinstance(value.dim, int) and sizes[value.dim] != shape[value.dim]:
        is_fixed = value.kind == "sharded" and starts[value.dim].number is not None
        return step.lost(_ROWS, value, is_soft=True) if is_fixed else NOT_KNOWN  # else they may go over all of them
    return value.but(number=None, line=None) if value is not SAME else SAME


def update_slice(step: ReadEquation, values: list[Share]) -> Share:
    """A slice put at places that are computed."""
    into, update, *starts = values
    into, update = (step.reading.softened(value, starts) for value in (into, update))
    if any(value.kind in ("unknown", "parts") for value in values):
        return unknown(values)
    if all(value is SAME for value in values):
        return SAME
    if into.is_zero and update.kind == "sharded" and isinstance(update.dim, int) and not update.order:
        line = starts[update.dim].line
        lengths = [eqn.invars[1].aval.shape[update.dim] for eqn in (step.eqn, step.other)]
        is_block = line is not None and all(
            first == 0 and by == length for (first, by), length in zip(line, lengths, strict=False)
        )
        if is_block and sum(start.kind == "own" for start in starts) == 1:
            return Share("sum", update.degree, is_heard=True, **update.gauges)
    if any(start.kind == "own" for start in starts) or "own" in (into.kind, update.kind):
        if "sum" in (into.kind, update.kind):
            return step.lost("puts a partial sum at its own places", into, update)
        return Share("own", 0, is_heard=True, gauge="?" if into.own or update.own else "", own=anyhow(into, update))
    if any(start.kind != "same" for start in starts):
        return NOT_KNOWN
    if isinstance(into.dim, int) and step.shape(1)[into.dim] != step.shape(0)[into.dim]:
        return NOT_KNOWN
    return add(step, [into.but(number=None), update.but(number=None)])


_POWERS: dict[str, tuple[Fraction | int, ...]] = {
    "cholesky": (Fraction(1, 2),),
    "triangular_solve": (1,),
    "eigh": (0, 1),
    "svd": (1, 0, 0),
}
"""Of which degree the results of decompositions are in the matrix."""


def of_matrices(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """Decompositions and solutions of whole matrices."""
    count = len(step.eqn.outvars)
    powers = _POWERS.get(step.name)
    if powers is not None and all(value.kind == "same" and not value.own for value in values):
        degrees = [value.degree for value in values]
        if any(degree not in (0, ANY) for degree in degrees):
            first = sum_of(degrees[1], degrees[0], -1) if step.name == "triangular_solve" else degrees[0]
            return [Share("same", sum_of(0, first, power), is_heard=True) for power in powers]
    if all(value.kind == "same" and value.degree in (0, ANY) for value in values):
        own = anyhow(*values)
        found = Share("same", 0, own=own, gauge="?" if own else "", is_heard=any(v.is_heard for v in values))
        return [found if own or found.is_heard else SAME] * count
    if any(value.kind == "sum" or value.own for value in values) and not any(v.kind == "unknown" for v in values):
        return [nonlinear(step, values)] * count
    value = values[0]
    is_batch = value.kind == "sharded" and isinstance(value.dim, int) and value.dim < len(step.shape(0)) - 2
    if is_batch and all(other.kind == "same" or other.dim == value.dim for other in values):
        return [value.but(degree=0 if value.degree == 0 else UNKNOWN)] * count
    return [unknown(values)] * count


def draw(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """Random numbers, and keys."""
    count = len(step.eqn.outvars)
    if step.name in ("random_wrap", "random_unwrap", "random_clone"):
        return values
    if any(value.kind == "unknown" for value in values):
        return [NOT_KNOWN] * count
    rows = next((value for value in values if value.kind == "sharded" and isinstance(value.dim, int)), None)
    if rows is not None and not any(value.own or value.kind not in ("same", "sharded") for value in values):
        return [Share("sharded", 0, dim=rows.dim, name=rows.name)] * count  # by a key for each row
    local = next((value for value in values if value.kind == "local"), None)
    if local is not None and not any(value.own or value.kind not in ("same", "local") for value in values):
        return [Share("local", 0, dim=local.dim, place="drawn")] * count  # a key for each row, the same on all shards
    if any(value.kind != "same" or value.own for value in values):
        return [Share("own", 0, is_heard=True, place="drawn")] * count
    rows = step.rows
    if step.eqn is step.other:
        lengths = step.reading.numbers.row_lengths
        rows = tuple(dim for dim, size in enumerate(step.result_shape) if size in lengths)
    return [Share("local", 0, dim=rows[0], place="drawn")] * count if rows else [SAME] * count
