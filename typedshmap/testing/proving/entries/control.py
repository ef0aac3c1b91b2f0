"""Calls, regions, branches and loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import _jax
from ..control import CALL_NAMES
from ..values import NotKnown
from .arithmetic import chosen
from .walk import EntryRule, EntryWalk, Numbers


def _call(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    name = next((name for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in eqn.params), None)
    if name is None:
        raise NotKnown(f"nothing is known of {eqn.primitive.name}")
    return walk.results(eqn.params[name], operands)


def _region(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    params, before = eqn.params, dict(walk.mesh)
    manual = _jax.jaxpr.newly_manual_axes(params)
    added = {axis: size for axis, size in params["mesh"].shape.items() if axis in manual}
    places = {axis: walk.lead + at for at, axis in enumerate(added)}
    entering = list[Numbers]()
    for numbers, spec, var in zip(operands, params["in_specs"], eqn.invars, strict=True):
        entries = _jax.array.spec_entries(spec, len(var.aval.shape))
        if set(entries.unreduced) & manual:
            raise NotKnown("it enters the region with partial sums")
        split, front = list(numbers.shape[: walk.lead]), dict[str, int]()
        for size, axes in zip(var.aval.shape, entries.dim_axes, strict=True):
            for axis in axes:
                if axis in added:
                    front[axis] = len(split)
                    split.append(added[axis])
                    size //= added[axis]
            split.append(size)
        parts = numbers.reshape(split)
        rest = [at for at in range(walk.lead, len(split)) if at not in front.values()]
        parts = parts.transpose(*range(walk.lead), *(front[axis] for axis in added if axis in front), *rest)
        lacking = [places[axis] for axis in added if axis not in front]
        shape = [*before.values(), *added.values(), *(split[at] for at in rest)]
        entering.append(np.broadcast_to(np.expand_dims(parts, tuple(lacking)), shape))
    walk.mesh = {**before, **added}
    try:
        found = walk.results(params["jaxpr"], entering)
    finally:
        walk.mesh = before
    return [
        _leaving(walk, numbers, spec, var.aval, added)
        for numbers, spec, var in zip(found, params["out_specs"], eqn.outvars, strict=True)
    ]


def _leaving(walk: EntryWalk, numbers: Numbers, spec: Any, aval: Any, added: dict[str, int]) -> Numbers:
    """The global array of which a region's shards hold parts."""
    entries = _jax.array.spec_entries(spec, len(aval.shape))
    if set(entries.unreduced) & added.keys():
        raise NotKnown("a result of the region is not reduced")
    names = [axis for axes in entries.dim_axes for axis in axes if axis in added]
    for axis in reversed(added):
        if axis not in names:
            copies = np.moveaxis(numbers, walk.lead + list(added).index(axis), 0)
            if (copies != copies[0]).any():
                raise NotKnown("a result of the region is not the same on all shards")
    kept = [axis for axis in added if axis in names]
    numbers = numbers[(*[slice(None)] * walk.lead, *[slice(None) if axis in names else 0 for axis in added])]
    order = list(range(walk.lead))
    for dim, axes in enumerate(entries.dim_axes):
        order += [walk.lead + kept.index(axis) for axis in axes if axis in kept]
        order.append(walk.lead + len(kept) + dim)
    return numbers.transpose(order).reshape((*walk.mesh.values(), *aval.shape))


def _cond(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    which, *given = operands
    branches, numbers = eqn.params["branches"], set(which.ravel().tolist())
    value = walk.polynomials.value_of(next(iter(numbers)))
    if len(numbers) == 1 and value is not None:
        return walk.results(branches[max(0, min(int(value), len(branches) - 1))], given)
    if len(numbers) > 1 and any(
        _jax.jaxpr.collective_operation(each) is not None
        for branch in branches
        for each in _jax.jaxpr.all_equations(branch)
    ):
        raise NotKnown("some shards may wait for others")
    ways = [walk.results(branch, given) for branch in branches]
    return [chosen(walk, which, list(cases), is_truth=False) for cases in zip(*ways, strict=True)]


def _scan(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    params = eqn.params
    constants, carried = _jax.jaxpr.scan_counts(params)
    given, carry = operands[:constants], operands[constants : constants + carried]
    items = [np.moveaxis(each, walk.lead, 0) for each in operands[constants + carried :]]
    order = list(range(params["length"]))[:: -1 if params["reverse"] else 1]
    made = dict[int, list[Numbers]]()
    for at in order:
        results = walk.results(params["jaxpr"], [*given, *carry, *(item[at] for item in items)])
        carry, made[at] = results[:carried], results[carried:]
    if not order:
        raise NotKnown("it has no iteration")
    stacked = [np.stack([made[at][each] for at in sorted(made)], walk.lead) for each in range(len(made[order[0]]))]
    return [*carry, *stacked]


def _while(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    asked, given, carry = _jax.jaxpr.while_operands(eqn, operands)
    while True:
        (goes_on,) = walk.results(eqn.params["cond_jaxpr"], [*asked, *carry])
        values = {walk.polynomials.value_of(number) for number in goes_on.ravel().tolist()}
        if len(values) > 1 or None in values:
            raise NotKnown("how long it goes on depends on the arguments or on the shard")
        if values == {0}:
            return carry
        walk.polynomials.spend(100)
        carry = walk.results(eqn.params["body_jaxpr"], [*given, *carry])


CONTROL_RULES: dict[str, EntryRule] = {
    **dict.fromkeys(CALL_NAMES.split(), _call),
    "shard_map": _region,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
