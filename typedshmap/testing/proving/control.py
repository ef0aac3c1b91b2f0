"""The rules of regions, branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from ... import _jax
from .global_values import GlobalValue, NotKnown, Sharded, axes_along
from .walk import Walk, refuse_narrow_sum, wider


def region(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """A region: its operands are sharded by its in_specs, and its results must agree with its out_specs."""
    params, before = eqn.params, walk.sizes
    manual = _jax.jaxpr.newly_manual_axes(params)
    walk.sizes = {**before, **_jax.jaxpr.manual_sizes(params)}
    try:
        entering = zip(operands, params["in_specs"], strict=True)
        results = walk.interpret(params["jaxpr"], [walk.known(_entering, [x], spec, manual) for x, spec in entering])
        leaving = zip(results, params["out_specs"], strict=True)
        return [walk.known(_leaving, [x], spec, manual) for x, spec in leaving]
    finally:
        walk.sizes = before


def _spec_axes(walk: Walk, value: Sharded, spec: Any, manual: frozenset[str]) -> tuple[list[tuple[str, ...]], set[str]]:
    """The manual axes of each dim of a value by a spec, and its unreduced axes."""
    entries = _jax.array.spec_entries(spec, len(value.dims))
    dims = [tuple(axis for axis in walk.longer(axes) if axis in manual) for axes in entries.dim_axes]
    return dims, set(walk.longer(list(entries.unreduced)))


def _entering(walk: Walk, value: Sharded, spec: Any, manual: frozenset[str]) -> Sharded:
    """An operand of a region, as its shards."""
    dims, unreduced = _spec_axes(walk, value, spec, manual)
    if unreduced:
        raise NotKnown("it enters the region with partial sums")
    sharded = zip(value.dims, dims, strict=True)
    return value.with_dims([None if outer is None else (*axes_along(outer), *axes) for outer, axes in sharded])


def _leaving(walk: Walk, result: Sharded, spec: Any, manual: frozenset[str]) -> Sharded:
    """A result of a region as a global array."""
    dims, unreduced = _spec_axes(walk, result, spec, manual)
    if result.partial & manual != frozenset(unreduced) & manual or result.is_extreme:
        raise NotKnown("a result of the region is not reduced")
    outer = [None if dim is None else tuple(a for a in axes_along(dim) if a not in manual) for dim in result.dims]
    expected = [None if before is None else (*before, *axes) for before, axes in zip(outer, dims, strict=True)]
    if list(result.dims) != expected:
        raise NotKnown("a result of the region is not sharded as its out_specs say")
    return result.with_dims(outer)


def cond(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """One of several branches."""
    which, *given = operands
    chosen = walk.settled(which).reduced("it chooses by an unreduced value")

    def one_of(walk: Walk, *cases: Sharded) -> Sharded:
        return walk.made("cond", (), [chosen, *cases], *reduce(wider, cases).layout)

    return [walk.known(one_of, cases) for cases in walk.ways(eqn, given)]


def scan(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """A loop over rows, which must not be sharded."""
    given, starts, over = _jax.jaxpr.scan_operands(eqn, operands)
    start, length, params = list(map(walk.settled, starts)), eqn.params["length"], eqn.params
    items = [walk.solid(walk.settled(value), 0, length) for value in over]
    with walk.deeper():
        rows = [walk.variable("item", at, item.with_dims(item.dims[1:])) for at, item in enumerate(items)]
        carry, results = walk.loop(params["jaxpr"], given, [*start], rows)
    body = list(map(walk.settled, results))
    stacked = [result.with_dims([(), *result.dims]) for result in body[len(start) :]]
    how = (length, params["reverse"], len(start), len(given))
    return _after(walk, eqn, carry, stacked, how, [*start, *items, *body])


def while_loop(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """A loop while a condition holds."""
    asked, given, starts = _jax.jaxpr.while_operands(eqn, operands)
    start = list(map(walk.settled, starts))
    with walk.deeper():
        carry, results, holds = walk.while_loop(eqn, [*asked, *given, *start])
        going_on = walk.settled(holds)
    if walk.is_number(going_on) and not going_on.is_zero:
        raise NotKnown("its loop never ends")
    condition = going_on.reduced("its condition is not reduced")
    return _after(walk, eqn, carry, [], (), [condition, *start, *map(walk.settled, results)])


def _after(
    walk: Walk,
    eqn: Any,
    carry: list[GlobalValue],
    stacked: list[Sharded],
    how: tuple[Any, ...],
    operands: list[Sharded],
) -> Sequence[GlobalValue]:
    """The results of a loop, in the layouts of its carry and of its stacked results."""
    layouts = [refuse_narrow_sum(eqn, walk.settled(value), at) for at, value in enumerate(carry)] + stacked
    return [walk.made(eqn.primitive.name, (*how, at), operands, *value.layout) for at, value in enumerate(layouts)]
