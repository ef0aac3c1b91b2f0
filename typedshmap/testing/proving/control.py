"""Regions, branches and loops, read as terms over global arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from ... import _jax
from ...inference.interpreter import CALLS
from .elementwise import refuse_narrow_sum
from .values import DimSharding, GlobalValue, LeftRegion, NotKnown, Sharded, ShardIds, Truth, Unknown
from .walk import PrimitiveRule, Walk, wider


def _region(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    """A region: its operands are sharded as its in_specs say, and its results are to be as its out_specs say."""
    params, before = eqn.params, walk.sizes
    manual = _jax.jaxpr.newly_manual_axes(params)
    walk.sizes = {**before, **_jax.jaxpr.manual_sizes(params)}
    try:
        entering = [
            _entering(walk, value, spec, var.aval.shape, manual)
            for value, spec, var in zip(operands, params["in_specs"], eqn.invars, strict=True)
        ]
        found = walk.interpret(params["jaxpr"], entering)
        return [
            _leaving(walk, value, spec, var.aval.ndim, manual)
            for value, spec, var in zip(found, params["out_specs"], eqn.outvars, strict=True)
        ]
    finally:
        walk.sizes = before


def _dim_axes(walk: Walk, spec: Any, rank: int, manual: frozenset[str]) -> list[tuple[str, ...]]:
    entries = _jax.array.spec_entries(spec, rank)
    return [tuple(axis for axis in walk.longer(axes) if axis in manual) for axes in entries.dim_axes]


def _entering(walk: Walk, value: GlobalValue, spec: Any, shape: tuple[int, ...], manual: frozenset[str]) -> GlobalValue:
    if isinstance(value, Unknown):
        return value
    if isinstance(value, LeftRegion):
        return value.value if value.spec == (spec, manual) else Unknown(walk.place, value.why)
    try:
        if walk.longer(list(_jax.array.spec_entries(spec, len(shape)).unreduced)):
            raise NotKnown("it enters the region with partial sums")
        axes, found = _dim_axes(walk, spec, len(shape), manual), walk.settled(value)
    except NotKnown as error:
        return Unknown(walk.place, str(error))
    return found.with_dims([None if old is None else (*old, *new) for old, new in zip(found.dims, axes, strict=True)])


def _leaving(walk: Walk, value: GlobalValue, spec: Any, rank: int, manual: frozenset[str]) -> GlobalValue:
    """A result of a region as a global array; or as what another region may take back, as that of a gradient does."""
    if isinstance(value, Unknown):
        return value
    axes, entries = _dim_axes(walk, spec, rank, manual), _jax.array.spec_entries(spec, rank)
    try:
        found = walk.settled(value)
        unreduced = set(walk.longer(list(entries.unreduced)))
        if set(found.partial & manual) != unreduced & manual or found.is_extreme:
            raise NotKnown("a result of the region is not reduced")
        dims = list[DimSharding]()
        for dim, expected in zip(found.dims, axes, strict=True):
            outer = None if dim is None else tuple(axis for axis in dim if axis not in manual)
            if outer is not None and dim != (*outer, *expected):
                raise NotKnown("a result of the region is not sharded as its out_specs say")
            dims.append(outer)
    except NotKnown as error:
        varies = frozenset(walk.longer(list(walk.sizes)))
        if isinstance(value, Sharded):
            varies = value.axes
        if isinstance(value, ShardIds):
            varies = value.ids.axes.union(dict(value.start), value.value.axes if value.value else ())
        if varies & manual <= {axis for each in axes for axis in each}:  # along the others, one shard's copy is taken
            return LeftRegion(value, (spec, manual), str(error))
        return Unknown(walk.place, str(error))
    return found.with_dims(dims)


def _cond(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    which, *given = operands
    branches = eqn.params["branches"]
    chosen = walk.settled(which)
    if walk.is_number(chosen):
        return walk.interpret(branches[max(0, min(int(chosen.factor), len(branches) - 1))], given)
    if chosen.partial:
        raise NotKnown("it chooses by what is not reduced")
    found = list[GlobalValue]()
    for values in walk.ways(eqn, given):
        try:
            settled = list(map(walk.settled, values))
            found.append(walk.made("cond", (), [chosen, *settled], *reduce(wider, settled).layout))
        except NotKnown as error:
            lost = next((value for value in values if isinstance(value, Unknown)), None)
            found.append(lost or Unknown(walk.place, str(error)))
    return found


def _scan(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    given, starts, over = _jax.jaxpr.scan_operands(eqn, operands)
    start, length, params = list(map(walk.settled, starts)), eqn.params["length"], eqn.params
    items = [walk.solid(walk.settled(value), 0, length) for value in over]
    with walk.deeper():
        rows = [walk.variable("item", at, item.with_dims(item.dims[1:])) for at, item in enumerate(items)]
        carry, results = walk.loop(params["jaxpr"], given, [*start], rows)
    body = list(map(walk.settled, results))
    layouts = [refuse_narrow_sum(eqn, walk.settled(value), at) for at, value in enumerate(carry)]
    layouts += [result.with_dims([(), *result.dims]) for result in body[len(start) :]]
    return _after(walk, eqn, layouts, (length, params["reverse"], len(start), len(given)), [*start, *items, *body])


def _while(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    asked, given, starts = _jax.jaxpr.while_operands(eqn, operands)
    start = list(map(walk.settled, starts))
    with walk.deeper():
        carry, results, going_on = walk.while_loop(eqn, [*asked, *given, *start])
    if isinstance(going_on, Truth) and going_on.is_true:
        raise NotKnown("its loop never ends")
    condition = walk.settled(going_on)
    if condition.partial:
        raise NotKnown("its condition is not reduced")
    layouts = [refuse_narrow_sum(eqn, walk.settled(value), at) for at, value in enumerate(carry)]
    return _after(walk, eqn, layouts, (), [condition, *start, *map(walk.settled, results)])


def _after(
    walk: Walk, eqn: Any, layouts: list[Sharded], how: tuple[Any, ...], operands: list[Sharded]
) -> Sequence[GlobalValue]:
    """The results of a loop, by their layouts."""
    return [walk.made(eqn.primitive.name, (*how, at), operands, *each.layout) for at, each in enumerate(layouts)]


CONTROL_RULES: dict[str, PrimitiveRule] = {
    **{name: rule for name, rule in CALLS.items() if name != "call_hi_primitive"},
    "shard_map": _region,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
