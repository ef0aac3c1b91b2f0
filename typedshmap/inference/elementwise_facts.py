"""Transfer rules of elementwise operations and of products."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .. import _jax
from . import lattice
from .facts import FactInterpreter
from .indices import IndexFact, combine_indices
from .lattice import UNKNOWN, UNSHARDED, AxisSet, DimFact, ShardingFact, combine, summed_axes

_SCALAR, _ZERO = lattice.invarying(0), lattice.zeros(0)


def same_shape(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """As many results as operands, or fewer: each result is sharded like its operand."""
    if facts and facts[0].number is not None and len(eqn.outvars) == 1:
        return [_scalar(interpreter, eqn, facts)]
    for fact in facts:
        if fact.unreduced or fact.due or fact.is_zero:
            facts = [combine(eqn.primitive.name, (fact,), fact.dims) for fact in facts]
            break
    return [fact for fact, _ in zip(facts, eqn.outvars)]  # noqa: B905 (there may be fewer results)


def vary(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The same value, typed as varying; an integer is still followed."""
    is_number = not facts[0].dims and _jax.array.is_integer(eqn.outvars[0].aval.dtype)
    return [_scalar(interpreter, eqn, facts)] if is_number else facts


def bitcast(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The same bits as another dtype; one of another width adds or removes a dim."""
    rank, fact = len(eqn.outvars[0].aval.shape), facts[0]
    dims = fact.dims if rank == len(fact.dims) else (UNKNOWN,) * rank
    return [combine(eqn.primitive.name, (fact,), dims)]


def elementwise(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Operands of one shape, or scalars; a dim of size 1 agrees with any other dim."""
    (result, *others), largest = eqn.outvars, _SCALAR
    shape = result.aval.shape
    if not shape:
        for fact in facts:
            if fact.number is not None:
                return [_scalar(interpreter, eqn, facts)]
    for fact in facts:
        if fact is not largest and fact is not _SCALAR and fact is not _ZERO and fact != largest:
            if fact.number is not None and not fact.varying:
                continue  # a constant
            if largest is not _SCALAR:
                break
            largest = fact
    else:
        is_sum = largest.unreduced or largest.due or largest.is_zero
        if not is_sum and (not largest.dims) == (not shape):
            return [largest] * len(eqn.outvars) if others else [largest]
    shapes = tuple([atom.aval.shape for atom in eqn.invars])
    combined, conflicts = _combine_facts(eqn.primitive.name, tuple(facts), shapes, shape)
    for at, first, second in conflicts:
        interpreter.note_conflict(eqn, f"dim {at}", first, second)
    return [combined] * len(eqn.outvars)


def _scalar(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> ShardingFact:
    """A scalar that is computed from the shard's indices."""
    operands: list[IndexFact | None] = []
    for atom, fact in zip(eqn.invars, facts, strict=True):
        is_number = _jax.jaxpr.is_literal(atom) and _jax.array.is_integer(atom.aval.dtype)
        operands.append(IndexFact((), int(atom.val)) if is_number else fact.number)
    index = None
    if _jax.array.is_integer(eqn.outvars[0].aval.dtype):
        index = combine_indices(eqn.primitive.name, operands, interpreter.sizes)
    result = combine(eqn.primitive.name, tuple(facts), ())
    return result if index is None else result._replace(number=index)


@lru_cache(maxsize=4096)
def _combine_facts(
    name: str, facts: tuple[ShardingFact, ...], shapes: tuple[Any, ...], shape: Any
) -> tuple[ShardingFact, list[tuple[int, DimFact, DimFact]]]:
    """The fact of the result, and the dims in which the shardings of operands conflict."""
    conflicts: list[tuple[int, DimFact, DimFact]] = []
    operands: list[tuple[DimFact, ...]] = []
    for fact, operand_shape in zip(facts, shapes, strict=True):
        if operand_shape == shape:
            operands.append(fact.dims)
        elif len(operand_shape) == len(shape):  # a dim of size 1 agrees with any other dim, like an unsharded dim
            sizes = zip(fact.dims, operand_shape, shape, strict=True)
            operands.append(tuple(dim if length == size else UNSHARDED for dim, length, size in sizes))
    dims = operands[0] if operands else (UNSHARDED,) * len(shape)
    for more in operands[1:]:
        conflicts += [(at, dims[at], more[at]) for at in lattice.conflicting_dims(dims, more) if shape[at] > 1]
        dims = lattice.join_all_dims(dims, more)
    return combine(name, facts, dims), conflicts


def dot_general(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Batch dims, then the other dims of the first operand, then those of the second."""
    left, right = facts
    product, summed, conflicts = _product_fact(eqn.params["dimension_numbers"], left, right)
    for kind, a, b in conflicts:
        if eqn.invars[0].aval.shape[a] > 1:
            where = f"{kind} dim {a} of the first operand and dim {b} of the second"
            interpreter.note_conflict(eqn, where, left.dims[a], right.dims[b])
    return [interpreter.due_sum(eqn, product, summed) if summed else product]


@lru_cache(maxsize=4096)
def _product_fact(
    numbers: Any, first: ShardingFact, second: ShardingFact
) -> tuple[ShardingFact, AxisSet, list[tuple[str, int, int]]]:
    """The fact of a product, the axes over which it is a partial sum, and the dims of operands that conflict."""
    (contracted, batched), left, right = numbers, first.dims, second.dims
    kinds = (("contracted", contracted), ("batch", batched))
    pairs = [(kind, a, b) for kind, both in kinds for a, b in zip(*both, strict=True)]
    conflicts = [(kind, a, b) for kind, a, b in pairs if lattice.is_conflict(left[a], right[b])]
    dims = [lattice.join_dims(left[a], right[b]) for a, b in zip(*batched, strict=True)]
    for side, layout in enumerate((left, right)):
        used = {*contracted[side], *batched[side]}
        dims += [dim for at, dim in enumerate(layout) if at not in used]
    product = combine("dot_general", (first, second), lattice.drop_repeated_axes(tuple(dims)))
    summed = [dim for a, b in zip(*contracted, strict=True) for dim in (left[a], right[b])]
    return product, summed_axes(summed), conflicts


def convolution(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The batch dim is sharded like the first operand's, the feature dim like the second's; windows cross shards."""
    numbers, params = eqn.params["dimension_numbers"], eqn.params
    dims = [UNKNOWN] * len(facts[0].dims)
    if params["batch_group_count"] == 1:
        dims[numbers.out_spec[0]] = facts[0].dims[numbers.lhs_spec[0]]
        if params["feature_group_count"] == 1:
            dims[numbers.out_spec[1]] = facts[1].dims[numbers.rhs_spec[0]]
    product = combine("conv_general_dilated", tuple(facts), lattice.drop_repeated_axes(tuple(dims)))
    if params["feature_group_count"] > 1:
        return [product]
    summed = summed_axes([facts[0].dims[numbers.lhs_spec[1]], facts[1].dims[numbers.rhs_spec[1]]])
    return [interpreter.due_sum(eqn, product, summed)]


def keys(interpreter: FactInterpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The results for each key of an array of keys, in dims after those of the array.

    If only the dims of the array vary, a key has the same results on every shard that holds it.
    """
    given, rank = facts[0].dims, len(eqn.outvars[0].aval.shape)
    sharded = frozenset(axis for dim in given for axis in dim.axes or ())
    behind = UNSHARDED if sharded and lattice.varying_of(facts) <= sharded else UNKNOWN
    dims = (*given, *(behind,) * (rank - len(given)))[:rank]
    return [combine(eqn.primitive.name, tuple(facts), dims)]
