"""Operations that go element by element, and how sums that are owed pass through operations that are linear."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ..facts import NONE, UNKNOWN, WHOLE, Dim, Fact, Names, are_at_odds, at_odds, equal, meet, met, settled, varying_of
from ..reader import Reader
from .odds import Odds


def words(text: str) -> list[str]:
    """A table of names, to be read."""
    return text.split()


ALIKE = words(
    "abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil clz conj cos cosh digamma erf "
    "erf_inv erfc exp exp2 expm1 floor imag integer_pow is_finite lgamma log log1p log2 logistic name not "
    "one_minus_square population_count real reduce_precision round rsqrt sign sin sinh sqrt square "
    "stop_gradient tan tanh copy copy_p convert_element_type neg pvary preduced "
    "reduced_vary_cast reduced_vary_cast_p reciprocal cumsum cumprod cummax cummin cumlogsumexp polynomial"
)
UNARY = words("bitcast_convert_type reshard optimization_barrier device_put sharding_constraint layout_constraint")
NARY = words(
    "add add_any and atan2 clamp complex div eq eq_to ge gt igamma igamma_grad_a igammac le le_to lt "
    "lt_to max min mul ne nextafter or polygamma pow regularized_incomplete_beta rem select_n shift_left "
    "shift_right_arithmetic shift_right_logical sub xor zeta threefry2x32 mul_add mulhi"
)
_SCALAR = equal(0)
_LINEAR = frozenset(["add", "add_any", "sub"])
_PRODUCTS = frozenset(["mul", "dot_general", "conv_general_dilated"])
_PASSING = frozenset(
    words(
        "neg copy copy_p convert_element_type real imag conj broadcast_in_dim reshape transpose squeeze slice "
        "rev reduce_sum cumsum name pvary ppermute all_to_all all_gather optimization_barrier split"
    )
)


def owed_after(name: str, facts: Sequence[Fact]) -> tuple[Names, Names]:
    """Where a result varies, and where its sum is owed, by what the operation does to sums."""
    varying = varying_of(facts)
    for at, fact in enumerate(facts):
        if fact.owed:
            return _of_addends(name, at, varying, facts)
    return varying, NONE


def _of_addends(name: str, at: int, varying: Names, facts: Sequence[Fact]) -> tuple[Names, Names]:
    owed = facts[at].owed
    if name in _PASSING or (name in _LINEAR and all(fact.owed == owed for fact in facts)):
        return varying - owed, owed
    if name in _PRODUCTS or (name == "div" and at == 0):
        kept = owed - varying_of([*facts[:at], *facts[at + 1 :]])
        return varying - kept, kept
    return varying, NONE


def alike(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """One result of one operand, or of its first, of the same shape: it lies as that."""
    if facts[0].owed and not reader.is_typed:
        varying, owed = owed_after(eqn.primitive.name, facts[:1])
        return [Fact(varying, owed, facts[0].dims)]
    return facts if len(facts) == 1 else facts[:1]


def unary(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """One result per operand, of the same shape."""
    if facts and facts[0].owed and not reader.is_typed:
        varying, owed = owed_after(eqn.primitive.name, facts[:1])
        facts = [Fact(varying, owed, facts[0].dims), *facts[1:]]
    if len(facts) == len(eqn.outvars) == 1 and len(eqn.outvars[0].aval.shape) == len(facts[0].dims):
        return facts
    found = facts[: len(eqn.outvars)]
    same = all(len(var.aval.shape) == len(fact.dims) for var, fact in zip(eqn.outvars, found, strict=True))
    return found if same else [_loosened(fact, var) for fact, var in zip(found, eqn.outvars, strict=True)]


def _loosened(fact: Fact, var: Any) -> Fact:
    return fact.lying([UNKNOWN] * len(var.aval.shape))


def nary(reader: Reader, eqn: Any, facts: list[Fact]) -> list[Fact]:
    """Operands of one shape, or scalars; a dim of size 1 goes with any other."""
    shape, told = eqn.outvars[0].aval.shape, _SCALAR
    for fact in facts:
        if fact is not told and fact is not _SCALAR and fact != told:
            if told is not _SCALAR:
                break
            told = fact
    else:
        if not told.owed and len(told.dims) == len(shape):
            return [told] * len(eqn.outvars)
    shapes = tuple(atom.aval.shape for atom in eqn.invars)
    found, odds = _combined(eqn.primitive.name, tuple(facts), shapes, shape)
    for at, first, second in odds:
        reader.findings.append(Odds(eqn, f"dim {at}", first, second))
    return [found] * len(eqn.outvars)


_Found = list[tuple[int, tuple[str, ...], tuple[str, ...]]]


@lru_cache(maxsize=4096)
def _combined(name: str, facts: tuple[Fact, ...], shapes: tuple[Any, ...], shape: Any) -> tuple[Fact, _Found]:
    """What is known of the result, and the dims at which operands are split in ways that do not go together."""
    odds: _Found = []
    if any(len(each) == len(shape) and each != shape for each in shapes):
        dims = settled(tuple(_along(at, size, shapes, facts, odds) for at, size in enumerate(shape)))
    else:
        lying = [fact.dims for fact, each in zip(facts, shapes, strict=True) if each == shape]
        dims = _together(lying or [(WHOLE,) * len(shape)], shape, odds)
    return Fact(*owed_after(name, facts), dims), odds


def _together(lying: list[tuple[Dim, ...]], shape: Any, odds: _Found) -> tuple[Dim, ...]:
    """How operands of one shape lie, as all of them."""
    dims = lying[0]
    for other in lying[1:]:
        for at in at_odds(dims, other):
            if shape[at] > 1:
                odds.append((at, dims[at].axes or (), other[at].axes or ()))
        dims = met(dims, other)
    return dims


def _along(at: int, size: int, shapes: tuple[Any, ...], facts: tuple[Fact, ...], odds: _Found) -> Dim:
    """How one dim lies, of operands of which some have a single place there."""
    rank, dim = max(map(len, shapes)), WHOLE
    for fact, each in zip(facts, shapes, strict=True):
        if len(each) != rank or each[at] != size:
            continue
        other = fact.dims[at]
        if size > 1 and are_at_odds(dim, other):
            odds.append((at, dim.axes or (), other.axes or ()))
        dim = meet(dim, other)
    return dim
