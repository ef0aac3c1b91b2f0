"""The rules of operations that move entries, or put them side by side: they follow the sharded dim."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from math import prod

from . import loss_kinds
from .reading import ReadEquation
from .sums import add
from .value import NO_PARTS, NOT_KNOWN, SAME, Share, reach_of, unknown, untracked

_REVERSED = -2
"""The order of rows from the last to the first."""


def _moved(value: Share, dim: int | None) -> Share:
    """The same value, with its dim at another position."""
    return value if value.dim == dim else value.but(dim=dim)


def broadcast(step: ReadEquation, values: list[Share]) -> Share:
    """New dims, along which all entries are the same."""
    value, shape = values[0], step.result_shape
    if value is SAME:
        return SAME
    if value.number is not None and shape:
        value = value.but(number=None)
    dims = step.params.get("broadcast_dimensions", ())
    if isinstance(value.dim, int):
        return _moved(value, int(dims[value.dim]))
    if value.kind == "same" and isinstance(step.reading.numbers.known(value.degree), tuple):  # the divisor of a mean
        return value.but(root=("mean", tuple(dim for dim in range(len(shape)) if dim not in dims)))
    return value


def reshape(step: ReadEquation, values: list[Share]) -> Share:
    """Dims merged and split: a sharded dim stays sharded as the major part of its result."""
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
    if value.kind == "gathered":
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
    if value.order > 0:  # its pieces become a dim again
        for dim in range(len(shape)):
            if prod(shape[:dim]) == major * value.order and major * before[at] == prod(shape[: dim + 1]):
                return value.but(dim=dim, order=0)
    after = prod(shape[:to])
    if value.order and after and major == value.order * after:  # they are merged again
        return value.but(dim=to, order=0)
    if after == major:
        is_cut = shape[to] != before[at] and shape[to] % before[at] and before[at] % shape[to]
        return NOT_KNOWN if is_cut and value.kind == "sharded" else value.but(dim=to)
    return value.but(dim=to, order=value.order or (major // after if after and major % after == 0 else -1))


def transpose(step: ReadEquation, values: list[Share]) -> Share:
    """Dims in another order."""
    value = values[0]
    return _moved(value, step.params["permutation"].index(value.dim)) if isinstance(value.dim, int) else value


def squeeze(step: ReadEquation, values: list[Share]) -> Share:
    """Dims of size 1 removed."""
    value, gone = values[0], step.params["dimensions"]
    if not isinstance(value.dim, int):
        return value
    return _only_row(value) if value.dim in gone else _moved(value, value.dim - sum(dim < value.dim for dim in gone))


def _only_row(value: Share) -> Share:
    """The only row of a shard, without its dim."""
    return value.but(dim="rows") if value.kind == "sharded" else value.but(kind="same", dim=None)


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
        is_strided = steps[at] > start and all(
            eqn.invars[0].aval.shape[at] == steps[at] * eqn.outvars[0].aval.shape[at] for eqn in (step.eqn, step.other)
        )
        if is_strided or after[at] == before[at] or value.trait == "halo":
            return value
        if value.kind == "gathered":
            return NOT_KNOWN
        return step.lost(loss_kinds.SOME_ROWS, value, is_excusable=True) if value.kind == "sharded" else value
    if not value.is_common or value.is_zero:
        return value.but(number=None) if value.number is not None else value
    rows = step.rows
    if len(rows) == 1 and before[rows[0]] != after[rows[0]]:
        return step.lost(loss_kinds.SAME_ROWS, value, kind="sharded", dim=rows[0])
    return first_rows(step, value)


def first_rows(step: ReadEquation, value: Share) -> Share:
    """A slice of a value that is the same on every shard, which may be as long as a shard's rows."""
    value = value.without_number
    if step.eqn is not step.other:
        return value
    lengths, shapes = step.reading.numbers.row_lengths, zip(step.shape(0), step.result_shape, strict=True)
    taken = [dim for dim, (before, after) in enumerate(shapes) if after != before and after in lengths]
    return Share("local", value.degree, dim=taken[0], trait="taken") if taken else value


def split(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """Pieces along a dim."""
    value, count = values[0], len(step.eqn.outvars)
    axis = step.params.get("axis", 0)
    if step.name == "unstack" and isinstance(value.dim, int) and value.dim != axis:
        return [_moved(value, value.dim - (value.dim > axis))] * count
    if value.dim == axis and value.kind == "sharded" and count > 1:  # such as microbatches
        return [value.but(order=max(1, value.order) * count)] * count
    if value.dim == axis and value.kind == "local" and count > 1:
        # The program fixes the number of rows, so each piece is the same on every shard.
        return [value.but(kind="same", dim=None) if step.name == "unstack" else NOT_KNOWN] * count
    return [value] * count


def tile(step: ReadEquation, values: list[Share]) -> Share:
    """Copies along dims."""
    value = values[0]
    if not isinstance(value.dim, int) or step.params["reps"][value.dim] == 1:
        return value
    return value.but(order=-1) if value.kind == "sharded" else NOT_KNOWN


def roll(step: ReadEquation, values: list[Share]) -> Share:
    """Entries rolled along dims."""
    if "dimensions" in step.params:
        return reverse(step, values)
    return values[0] if values[0].dim is None else NOT_KNOWN


def put_side_by_side(step: ReadEquation, values: list[Share]) -> Share:
    """Operands concatenated or stacked, or padded."""
    if step.name == "stack":
        at = step.params["axis"]
        values = [_moved(v, v.dim + (v.dim >= at)) if isinstance(v.dim, int) else v for v in values]
    if any(value.kind == "unknown" for value in values):
        return unknown(values)
    along = step.params.get("dimension") if step.name == "concatenate" else None
    rows = [value for value in values if along is not None and value.kind == "sharded" and value.dim == along]
    if len(rows) == 1 and not rows[0].symbols and any(value.trait == "sent" for value in values):
        others = [value for value in values if value is not rows[0]]
        if all(value.kind in ("own", "same") and not value.symbols for value in others):
            return rows[0].but(is_reached=True, trait="halo")
    result = reduce(partial(_both, step), [value.without_number for value in values])
    if result.kind in ("sharded", "local") and isinstance(result.dim, int):
        if along == result.dim and len(values) > 1:
            is_reached = any(value.is_reached for value in values)
            return Share("own", 0, is_reached=True) if is_reached else result.but(order=-1)
        if step.name == "pad" and step.params["padding_config"][result.dim] != (0, 0, 0):
            return step.lost(loss_kinds.PADDED_ROWS, result, is_excusable=True)
    has_halo = result.kind == "sharded" and all(value.trait == "halo" for value in values)
    return result.but(trait="halo") if has_halo else result


_ORDER = ("sharded", "local", "same")


def _both(step: ReadEquation, a: Share, b: Share) -> Share:
    """A value with entries of two values."""
    kinds, dims = {a.kind, b.kind}, {value.dim for value in (a, b) if value.dim is not None}
    is_index = not step.is_inexact and kinds <= {*_ORDER} and len(dims) <= 1
    if is_index or (step.name == "pad" and b.is_zero):
        return min((a, b), key=lambda value: _ORDER.index(value.kind) if value.kind in _ORDER else -1)
    if kinds == {"same"} and (degree := step.reading.numbers.agree(a.degree, b.degree)) is not None:
        return Share("same", degree, **untracked(a, b), **reach_of(a, b))
    if kinds == {"extreme"} and a.end == b.end:
        return a.but(part=None, role="", symbols=NO_PARTS)
    return add(step, [a, b])


def iota(step: ReadEquation, values: list[Share]) -> Share:
    """Positions along a dim."""
    at = step.params.get("dimension", 0)
    return Share("local", 0, dim=at) if at in step.likely_rows else SAME
