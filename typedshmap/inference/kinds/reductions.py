"""The rules of reductions, contractions, and operations along dims."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from ... import _jax
from . import loss_kinds
from .collective_kinds import extreme, total
from .functions import nonlinear
from .products import product
from .reading import ReadEquation
from .sums import along_two_dims, by_local_indices, merged_symbols
from .value import ANY, NOT_KNOWN, SAME, UNKNOWN, Share, reach_of, sum_of, unknown, untracked


def reduced(step: ReadEquation, values: list[Share]) -> Share:
    """A reduction over dims: a sum, an extreme, a product, or the position of an extreme."""
    value, params = values[0], step.params
    axes = tuple(int(axis) for axis in params.get("axes", params.get("dimensions", ())))
    is_sum, end = step.name == "reduce_sum", step.primitive.end
    if len(values) > 1:
        return unknown(values)
    if value.kind == "unknown" or (value.kind == "own" and not value.symbols):
        value = value.but(affine=None, number=None, trait="")
        return step.mixed(value) if is_sum else value
    if value.dim in axes and value.kind in ("sharded", "local"):
        return _along_rows(step, value)
    if value.dim in axes and value.kind == "gathered":
        return _over_gathered(step, value, axes)
    dim = value.dim - sum(axis < value.dim for axis in axes) if isinstance(value.dim, int) else value.dim
    if is_sum:
        value = _of_more_entries(step, value, axes)
        return value if value is SAME else value.with_untracked_symbols.but(dim=dim, number=None, trait="", root=None)
    if value.kind == "sum" or (value.kind == "extreme" and end != value.end):
        return nonlinear(step, [value])
    if step.name == "reduce_prod" and value.degree not in (0, ANY):
        return NOT_KNOWN
    if value is SAME:
        return SAME
    is_place = step.name.startswith("arg")
    role = "?" if is_place and value.symbols else value.role
    degree = 0 if is_place else value.degree
    return value.but(dim=dim, degree=degree, number=None, part=None, root=None, role=role)


def _of_more_entries(step: ReadEquation, value: Share, axes: Sequence[int]) -> Share:
    """The operand of a sum, times the ratio of the numbers of entries in both traces, if that is a power of n."""
    before, after = (eqn.invars[0].aval.shape for eqn in (step.eqn, step.other))
    sizes = step.reading.numbers.traces
    more = prod(after[axis] for axis in axes) / max(1, prod(before[axis] for axis in axes))
    if value.kind != "same" or len(sizes) == 1 or more == 1 or value.is_zero:
        return value
    by = {sizes[1] / sizes[0]: 1, sizes[0] / sizes[1]: -1}.get(more)
    return value.but(degree=UNKNOWN if by is None else sum_of(value.degree, by))


def _over_gathered(step: ReadEquation, value: Share, axes: Sequence[int]) -> Share:
    """A reduction over the shards' values that an all-gather has stacked."""
    if not value.symbols and len(axes) == 1:
        of = value.root[1] if value.root is not None else NOT_KNOWN
        if step.name == "reduce_sum":
            return total(step, of)
        if step.primitive.end:
            return extreme(step, of, step.primitive.end)
    return NOT_KNOWN.reached


def _along_rows(step: ReadEquation, value: Share) -> Share:
    """A reduction over the sharded dim, or over a dim as long as a shard's rows."""
    if step.name == "reduce_sum":
        lengths = {eqn.invars[0].aval.shape[value.dim] for eqn in (step.eqn, step.other)}
        if lengths == {1} and _jax.jaxpr.is_transposed(step.eqn):
            return NOT_KNOWN  # one row: the transpose of a broadcast, or a sum of rows
        if value.kind == "local":
            degree = value.degree if value.trait == "folded" or value.is_zero else UNKNOWN  # times the number of rows
            return Share("same", degree, reduced=value.reduced, is_reached=True, **value.symbol_fields)
        if step.reading.is_excusable(value):
            return Share("own", 0, role="?", symbols=value.symbols)
        more = reach_of(value) | value.with_untracked_symbols.symbol_fields
        return Share("sum", value.degree, is_positive=value.is_positive, **more)
    if value.kind == "local":
        return NOT_KNOWN
    if end := step.primitive.end:
        if value.symbols:
            return value.but(kind="own", dim=None, role="?")
        return Share("extreme", value.degree, end=end, is_positive=value.is_positive, **reach_of(value))
    return step.lost(loss_kinds.REDUCED_ROWS, value, is_excusable=True)


def ordered(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """Operations along a dim that need the whole dim."""
    value, name, params, count = values[0], step.name, step.params, len(step.eqn.outvars)
    if any(operand.kind in ("unknown", "gathered") for operand in values):
        return [unknown(values)] * count
    rank = len(step.shape(0))
    if name == "fft":
        dims = {rank - 1 - at for at in range(len(params["fft_lengths"]))}
    elif name.startswith(("reduce_window", "select_and")):
        window = params.get("window_dimensions", ())
        dims = {at for at, size in enumerate(window) if size > 1}
    else:
        dims = {params.get("axis", params.get("dimension", rank - 1))}
    if any(operand.kind == "sum" for operand in values):
        is_linear = step.primitive.is_linear and len(values) == 1
        return [value.but(part=None) if is_linear else nonlinear(step, values)] * count
    rows = [operand for operand in values if operand.kind in ("sharded", "local")]
    if any(operand.kind == "sharded" and operand.dim in dims for operand in rows):
        return [step.lost(loss_kinds.ALONG_ROWS, *values, is_excusable=True)] * count
    if any(operand.kind in ("extreme", "own") or operand.symbols for operand in values):
        return [nonlinear(step, values)] * count
    given = next(iter(rows), value)
    results = [given if given is SAME else given.but(part=None, number=None)] * count
    if name in ("top_k", "approx_top_k") and count > 1 and given is not SAME:
        results[1] = results[1].but(degree=0)
    return results


def contract(step: ReadEquation, values: list[Share]) -> Share:
    """A product of matrices: a contraction over a sharded dim leaves a partial sum."""
    reading, ragged = step.reading, step.params.get("ragged_dot_dimension_numbers")
    if ragged is not None and not _are_groups_unsharded(ragged, values):
        return SAME if all(value is SAME for value in values) else unknown(values)
    values = values[:2]
    a, b = [reading.excused(value, values) for value in values]
    contracted, batched = step.params["dimension_numbers"] if ragged is None else ragged.dot_dimension_numbers
    if "unknown" in (a.kind, b.kind):
        return unknown((a, b))
    gone = [v for v, dims in zip((a, b), contracted, strict=True) if v.kind in ("sharded", "local") and v.dim in dims]
    if gone:
        return _over_rows(step, a, b, gone)
    if "gathered" in (a.kind, b.kind):
        return NOT_KNOWN
    if a is SAME and b is SAME:
        return SAME
    groups = ((), ragged.rhs_group_dimensions if ragged else ())
    free = [
        [at for at in range(len(step.shape(side))) if at not in (*contracted[side], *batched[side], *groups[side])]
        for side in range(2)
    ]

    def placed(value: Share, side: int) -> Share:
        if value is SAME:
            return value
        dim = value.dim
        if dim in batched[side]:
            dim = list(batched[side]).index(dim)
        elif isinstance(dim, int):
            dim = len(batched[0]) + side * len(free[0]) + free[side].index(dim)
        return value.with_untracked_symbols.but(dim=dim, number=None, affine=None, root=None)

    return product(step, placed(a, 0), placed(b, 1))


def _are_groups_unsharded(ragged: Any, values: Sequence[Share]) -> bool:
    """Whether each shard has all groups of a ragged product, and all their rows, as in a product of matrices."""
    rows, groups = ragged.lhs_ragged_dimensions, ragged.rhs_group_dimensions
    (contracted, _), (batched, _) = ragged.dot_dimension_numbers
    is_plain = not {*rows} & {*contracted, *batched} and len(groups) == 1
    return is_plain and values[2] is SAME and values[0].dim not in rows and values[1].dim not in groups


def _over_rows(step: ReadEquation, a: Share, b: Share, gone: Sequence[Share]) -> Share:
    """A contraction over the sharded dim of some operands."""
    reading = step.reading
    others, is_reached = [value for value in (a, b) if value not in gone], a.is_reached or b.is_reached
    if any(value.kind == "gathered" for value in others):
        return NOT_KNOWN
    if any(value.kind == "own" and not value.symbols for value in others):
        return step.mixed(Share("own", 0, is_reached=is_reached, origin=reading.origin_of((a, b))))
    soft = next((value for value in (a, b) if reading.is_excusable(value)), None)
    if soft is not None:
        return Share("own", 0, role="?", symbols=soft.symbols, is_reached=is_reached)
    if any(value.kind in ("sum", "extreme", "own") for value in others):
        return step.lost(loss_kinds.TIMES_ROWS, a, b)
    if len(gone) == 2 and "folded" in {value.trait for value in gone}:
        return step.lost(loss_kinds.SUM_OF_ROWS, a, b, kind="same")
    if len(gone) == 2 and "local" in {value.kind for value in gone}:
        return NOT_KNOWN if all(value.kind == "local" for value in gone) else by_local_indices(step, a, b, kind="sum")
    if any(value.is_zero for value in (a, b)):
        return Share("same", ANY)
    if len(gone) == 1 and others and others[0].kind == "sharded":
        return along_two_dims(step, a, b)
    same = next((value for value in others if value.root is not None and value.root[0] == "mean"), None)
    if same is not None:
        side, numbers = 0 if a is same else 1, step.params.get("dimension_numbers")
        if numbers is not None and same.root is not None:
            # The contracted dim of the sharded operand corresponds to a dim of the other, along which a mean may be
            # broadcast.
            at = list(numbers[0][1 - side]).index(gone[0].dim)
            reading.numbers.learn_count(same.degree, numbers[0][side][at] in same.root[1])
    degree = sum_of(reading.numbers.known(a.degree), reading.numbers.known(b.degree))
    return Share(
        "sum",
        degree,
        **reach_of(a, b),
        **merged_symbols(reading, a.with_untracked_symbols, b.with_untracked_symbols, "*"),
    )


def convolve(step: ReadEquation, values: list[Share]) -> Share:
    """A convolution."""
    (a, b), numbers = values, step.params["dimension_numbers"]
    if any(value.kind in ("unknown", "gathered") for value in values):
        return unknown(values)
    degree = sum_of(a.degree, b.degree)
    if a.kind == "sharded" and a.dim == numbers.lhs_spec[1] and b.kind in ("same", "sharded"):
        return Share("sum", degree)
    if a.kind == "sharded" and b.kind == "same" and isinstance(a.dim, int):
        at = list(numbers.lhs_spec).index(a.dim)
        to = numbers.out_spec[at]
        is_row_by_row = step.shape(1)[numbers.rhs_spec[at]] == 1 and step.result_shape[to] == step.shape(0)[a.dim]
        if at == 0 or is_row_by_row:
            return a.but(dim=to, degree=degree)
        return step.lost(loss_kinds.CONVOLVED_ROWS, *values, is_excusable=True)
    if a.kind == "same" and b.kind == "sharded" and b.dim == numbers.rhs_spec[0]:
        return b.but(dim=numbers.out_spec[1], degree=degree)
    if "sharded" in (a.kind, b.kind):
        return NOT_KNOWN
    return product(step, a, b)


_POWERS: dict[str, tuple[Fraction | int, ...]] = {
    "cholesky": (Fraction(1, 2),),
    "triangular_solve": (1,),
    "eigh": (0, 1),
    "svd": (1, 0, 0),
}
"""The degrees of the results of decompositions, as functions of the matrix."""


def of_matrices(step: ReadEquation, values: list[Share]) -> Sequence[Share]:
    """Decompositions of matrices, and solutions of linear systems."""
    count = len(step.eqn.outvars)
    powers = _POWERS.get(step.name)
    if powers is not None and all(value.is_common for value in values):
        degrees = [value.degree for value in values]
        if any(degree not in (0, ANY) for degree in degrees):
            first = sum_of(degrees[1], degrees[0], -1) if step.name == "triangular_solve" else degrees[0]
            return [Share("same", sum_of(0, first, power), is_reached=True) for power in powers]
    if all(value.kind == "same" and value.degree in (0, ANY) for value in values):
        result = Share("same", 0, is_reached=any(value.is_reached for value in values), **untracked(*values))
        return [result if result.symbols or result.is_reached else SAME] * count
    if any(value.kind == "sum" or value.symbols for value in values) and not any(v.kind == "unknown" for v in values):
        return [nonlinear(step, values)] * count
    value = values[0]
    is_batch = value.kind == "sharded" and isinstance(value.dim, int) and value.dim < len(step.shape(0)) - 2
    if is_batch and all(other.kind == "same" or other.dim == value.dim for other in values):
        return [value.but(degree=0 if value.degree == 0 else UNKNOWN)] * count
    return [unknown(values)] * count
