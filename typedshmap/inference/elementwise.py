"""Transfer rules of elementwise operations and of products, and what each makes of partial sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from .interpreter import Interpreter
from .lattice import (
    NO_AXES,
    UNKNOWN,
    UNSHARDED,
    AxisSet,
    ConflictAtEquation,
    DimFact,
    ShardingFact,
    conflicting_dims,
    drop_repeated_axes,
    invarying,
    is_conflict,
    join_all_dims,
    join_dims,
    varying_of,
)


def words(text: str) -> list[str]:
    """The names in a table."""
    return text.split()


SAME_SHAPE_FIRST = words(
    "abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil clz conj cos cosh digamma erf "
    "erf_inv erfc exp exp2 expm1 floor imag integer_pow is_finite lgamma log log1p log2 logistic name not "
    "one_minus_square population_count real reduce_precision round rsqrt sign sin sinh sqrt square "
    "stop_gradient tan tanh copy copy_p convert_element_type neg pvary preduced "
    "reduced_vary_cast reduced_vary_cast_p reciprocal cumsum cumprod cummax cummin cumlogsumexp polynomial"
)
SAME_SHAPE = words("bitcast_convert_type reshard optimization_barrier device_put sharding_constraint layout_constraint")
ELEMENTWISE = words(
    "add add_any and atan2 clamp complex div eq eq_to ge gt igamma igamma_grad_a igammac le le_to lt "
    "lt_to max min mul ne nextafter or polygamma pow regularized_incomplete_beta rem select_n shift_left "
    "shift_right_arithmetic shift_right_logical sub xor zeta threefry2x32 mul_add mulhi"
)
_SCALAR = invarying(0)
_LINEAR = frozenset(["add", "add_any", "sub"])
_PRODUCTS = frozenset(["mul", "dot_general", "conv_general_dilated"])
_PASSING = frozenset(
    words(
        "neg copy copy_p convert_element_type real imag conj broadcast_in_dim reshape transpose squeeze slice "
        "rev reduce_sum cumsum name pvary ppermute all_to_all all_gather optimization_barrier split"
    )
)


def transfer_unreduced(name: str, facts: Sequence[ShardingFact]) -> tuple[AxisSet, AxisSet]:
    """The axes over which a result varies, and those over which it is unreduced, by what the operation does to sums."""
    varying = varying_of(facts)
    for at, fact in enumerate(facts):
        if fact.unreduced:
            unreduced = fact.unreduced
            if name in _PASSING or (name in _LINEAR and all(fact.unreduced == unreduced for fact in facts)):
                return varying - unreduced, unreduced
            if name in _PRODUCTS or (name == "div" and at == 0):
                kept = unreduced - varying_of([*facts[:at], *facts[at + 1 :]])
                return varying - kept, kept
            return varying, NO_AXES
    return varying, NO_AXES


def elementwise_1(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """One result of the shape of its first operand: it is sharded as that."""
    if facts[0].unreduced and not interpreter.has_vma:
        varying, unreduced = transfer_unreduced(eqn.primitive.name, facts[:1])
        return [ShardingFact(varying, unreduced, facts[0].dims)]
    return facts if len(facts) == 1 else facts[:1]


def same_shape(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """One result per operand, of the same shape."""
    if facts and facts[0].unreduced and not interpreter.has_vma:
        varying, unreduced = transfer_unreduced(eqn.primitive.name, facts[:1])
        facts = [ShardingFact(varying, unreduced, facts[0].dims), *facts[1:]]
    if len(facts) == len(eqn.outvars) == 1 and len(eqn.outvars[0].aval.shape) == len(facts[0].dims):
        return facts
    found = facts[: len(eqn.outvars)]
    ranks = [len(var.aval.shape) for var in eqn.outvars]
    if all(rank == len(fact.dims) for rank, fact in zip(ranks, found, strict=True)):
        return found
    return [fact.with_dims([UNKNOWN] * rank) for fact, rank in zip(found, ranks, strict=True)]


def elementwise(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Operands of one shape, or scalars; a dim of size 1 goes with any other."""
    shape, largest = eqn.outvars[0].aval.shape, _SCALAR
    for fact in facts:
        if fact is not largest and fact is not _SCALAR and fact != largest:
            if largest is not _SCALAR:
                break
            largest = fact
    else:
        if not largest.unreduced and len(largest.dims) == len(shape):
            return [largest] * len(eqn.outvars)
    shapes = tuple(atom.aval.shape for atom in eqn.invars)
    found, conflicts = _combine_facts(eqn.primitive.name, tuple(facts), shapes, shape)
    for at, first, second in conflicts:
        interpreter.findings.append(ConflictAtEquation(eqn, f"dim {at}", first, second))
    return [found] * len(eqn.outvars)


_Conflicts = list[tuple[int, tuple[str, ...], tuple[str, ...]]]


@lru_cache(maxsize=4096)
def _combine_facts(
    name: str, facts: tuple[ShardingFact, ...], shapes: tuple[Any, ...], shape: Any
) -> tuple[ShardingFact, _Conflicts]:
    """What is known of the result, and the dims over which operands are sharded in conflicting ways."""
    conflicts: _Conflicts = []
    if any(len(each) == len(shape) and each != shape for each in shapes):
        dims = drop_repeated_axes(tuple(_join_at(at, size, shapes, facts, conflicts) for at, size in enumerate(shape)))
    else:
        operands = [fact.dims for fact, each in zip(facts, shapes, strict=True) if each == shape]
        dims = operands[0] if operands else (UNSHARDED,) * len(shape)
        for other in operands[1:]:
            for at in conflicting_dims(dims, other):
                if shape[at] > 1:
                    conflicts.append((at, dims[at].axes or (), other[at].axes or ()))
            dims = join_all_dims(dims, other)
    return ShardingFact(*transfer_unreduced(name, facts), dims), conflicts


def _join_at(
    at: int, size: int, shapes: tuple[Any, ...], facts: tuple[ShardingFact, ...], conflicts: _Conflicts
) -> DimFact:
    """One dim of a result, where some operands have size 1."""
    rank, dim = max(map(len, shapes)), UNSHARDED
    for fact, each in zip(facts, shapes, strict=True):
        if len(each) != rank or each[at] != size:
            continue
        other = fact.dims[at]
        if size > 1 and is_conflict(dim, other):
            conflicts.append((at, dim.axes or (), other.axes or ()))
        dim = join_dims(dim, other)
    return dim


def dot_general(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """Batch dims, then what is left of the first operand, then what is left of the second."""
    left, right = facts
    product, conflicts = _product_fact(eqn.params["dimension_numbers"], left, right)
    for kind, a, b in conflicts:
        if eqn.invars[0].aval.shape[a] > 1:
            where = f"{kind} dim {a} of the first operand and dim {b} of the second"
            axes = left.dims[a].axes or (), right.dims[b].axes or ()
            interpreter.findings.append(ConflictAtEquation(eqn, where, *axes))
    return [product]


@lru_cache(maxsize=4096)
def _product_fact(
    numbers: Any, one: ShardingFact, other: ShardingFact
) -> tuple[ShardingFact, list[tuple[str, int, int]]]:
    """What is known of a product, and the dims of its operands that conflict."""
    (contracted, batched), left, right = numbers, one.dims, other.dims
    pairs = [
        (kind, *pair)
        for kind, both in (("contracted", contracted), ("batch", batched))
        for pair in zip(*both, strict=True)
    ]
    conflicts = [(kind, a, b) for kind, a, b in pairs if is_conflict(left[a], right[b])]
    dims = [join_dims(left[a], right[b]) for a, b in zip(*batched, strict=True)]
    for side, layout in enumerate((left, right)):
        used = {*contracted[side], *batched[side]}
        dims += [dim for at, dim in enumerate(layout) if at not in used]
    varying, unreduced = transfer_unreduced("dot_general", [one, other])
    return ShardingFact(varying, unreduced, drop_repeated_axes(tuple(dims))), conflicts


def convolution(interpreter: Interpreter, eqn: Any, facts: list[ShardingFact]) -> list[ShardingFact]:
    """The batch dim is sharded as the first operand's, the feature dim as the second's; windows overlap shards."""
    numbers, params = eqn.params["dimension_numbers"], eqn.params
    dims = [UNKNOWN] * len(facts[0].dims)
    if params["batch_group_count"] == 1:
        dims[numbers.out_spec[0]] = facts[0].dims[numbers.lhs_spec[0]]
    if params["feature_group_count"] == 1 and params["batch_group_count"] == 1:
        dims[numbers.out_spec[1]] = facts[1].dims[numbers.rhs_spec[0]]
    varying, unreduced = transfer_unreduced("conv_general_dilated", facts)
    return [ShardingFact(varying, unreduced, drop_repeated_axes(tuple(dims)))]


RULES = {"dot_general": dot_general, "conv_general_dilated": convolution}
