"""What operations make of sums that are due, by the rules of linear algebra: which of them keep them.

The operands of an operation that may keep them are terms, of which its result is the sum, and factors, which scale or
place the terms. Over an axis it keeps a sum that is due of every term where no factor varies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from .lattice import NO_AXES, AxisSet, DimFact, ShardingFact, varying_of

_KEEPING = (
    "neg copy copy_p convert_element_type real imag conj broadcast_in_dim reshape transpose squeeze slice rev "
    "reduce_sum cumsum name pvary optimization_barrier split unstack tile fft reduce_window_sum gather dynamic_slice "
    "stop_gradient reduce_precision device_put reshard sharding_constraint layout_constraint preduced "
    "reduced_vary_cast reduced_vary_cast_p div"
)
_JOINING = "add add_any sub concatenate stack pad complex"
_SCATTERING = "scatter scatter-add scatter_add scatter-sub scatter_sub"
_OF_FIRST, _OF_ALL = frozenset(_KEEPING.split()), frozenset(_JOINING.split())
_PRODUCTS, _SCATTERS = frozenset(["mul", "dot_general", "conv_general_dilated"]), frozenset(_SCATTERING.split())


@lru_cache(maxsize=4096)
def combine(name: str, facts: tuple[ShardingFact, ...], dims: tuple[DimFact, ...]) -> ShardingFact:
    """What is known of a result of these dims.

    A sum to which something was added that is the same on every shard stays one, so that what follows can be judged.
    """
    varying, unreduced, due = varying_of(facts), NO_AXES, NO_AXES
    if _is_zero(name, facts):
        return ShardingFact(varying, NO_AXES, dims, is_zero=True)
    for axis in _axes_of_sums(facts):
        terms, factors = _split_operands(name, facts, axis)
        if not terms or any(axis in fact.varying or axis in fact.unreduced for fact in factors):
            continue
        if all(_is_sum(fact, axis) or axis not in fact.varying for fact in terms):
            if any(axis in fact.unreduced for fact in terms):
                unreduced |= {axis}
            else:
                due |= {axis}
    return ShardingFact(varying - unreduced, unreduced, dims, due)


def summed_axes(dims: Iterable[DimFact]) -> AxisSet:
    """The axes over which each shard has its part of a sum over these dims.

    Of dims whose shards were sent around, as in a ring, a shard may in time have summed all; and of those that may be
    sharded, or the dims beside them, nothing is known.
    """
    axes, sent = NO_AXES, NO_AXES
    for dim in dims:
        if dim.axes and not dim.is_either:
            axes, sent = axes.union(dim.axes), sent.union(dim.axes) if dim.is_sent else sent
    return axes - sent


def factors_of(name: str, facts: Sequence[ShardingFact], at: int) -> Sequence[ShardingFact] | None:
    """What scales or places an operand in the result of an operation; None if that is not known to be linear in it."""
    if name in _PRODUCTS:
        return [*facts[:at], *facts[at + 1 :]]
    terms, factors = _split_operands(name, facts, "")
    return factors if any(term is facts[at] for term in terms) else None


def _axes_of_sums(facts: Sequence[ShardingFact]) -> list[str]:
    return sorted(frozenset[str]().union(*[fact.unreduced | fact.due for fact in facts]))


def _is_sum(fact: ShardingFact, axis: str) -> bool:
    return axis in fact.unreduced or axis in fact.due


def _split_operands(
    name: str, facts: Sequence[ShardingFact], axis: str
) -> tuple[Sequence[ShardingFact], Sequence[ShardingFact]]:
    """The terms of an operation that are not zeros, and its factors; no terms of one that is not known to be linear."""
    if name in _OF_FIRST:
        terms, factors = facts[:1], facts[1:]
    elif name in _OF_ALL:
        terms, factors = facts, ()
    elif name in _PRODUCTS:
        at = next(at for at, fact in enumerate(facts) if _is_sum(fact, axis))
        terms, factors = facts[at : at + 1], [*facts[:at], *facts[at + 1 :]]
    elif name == "select_n":
        terms, factors = facts[1:], facts[:1]
    elif name in _SCATTERS:
        terms, factors = [facts[0], *facts[2:]], facts[1:2]
    elif name == "dynamic_update_slice":
        terms, factors = facts[:2], facts[2:]
    else:
        terms, factors = (), facts
    return [fact for fact in terms if not fact.is_zero], factors


def _is_zero(name: str, facts: Sequence[ShardingFact]) -> bool:
    """Whether an operation makes nothing but zeros."""
    if name in _PRODUCTS:
        return any(fact.is_zero for fact in facts)
    if name in _OF_FIRST:
        return facts[0].is_zero
    if name == "select_n" or name in _OF_ALL:
        return all(fact.is_zero for fact in facts[name == "select_n" :])
    return False
