"""Calls, regions, branches and loops, read as terms over global arrays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import _jax
from .elementwise import refuse_narrow_sum
from .values import DimSharding, GlobalValue, LeftRegion, NotKnown, Sharded, ShardIds, Truth, Unknown

if TYPE_CHECKING:
    from .walk import PrimitiveRule, Walk

_MOST_ITERATIONS = 4


def _call(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    params = eqn.params
    name = next((name for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in params), None)
    if name is None:
        raise NotKnown(f"nothing is known of {eqn.primitive.name}")
    return walk.results(params[name], operands)


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
        found = walk.results(params["jaxpr"], entering)
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


# Branches and loops


def _cond(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    which, *given = operands
    branches = eqn.params["branches"]
    chosen = walk.settled(which)
    if walk.is_number(chosen):
        return walk.results(branches[max(0, min(int(chosen.factor), len(branches) - 1))], given)
    if chosen.partial:
        raise NotKnown("it chooses by what is not reduced")
    ways = [walk.results(branch, given) for branch in branches]
    found = list[GlobalValue]()
    for values in zip(*ways, strict=True):
        try:
            found.append(_chosen(walk, chosen, [walk.settled(value) for value in values]))
        except NotKnown as error:
            lost = next((value for value in values if isinstance(value, Unknown)), None)
            found.append(lost or Unknown(walk.place, str(error)))
    return found


def _chosen(walk: Walk, chosen: Sharded, values: list[Sharded]) -> Sharded:
    layout = values[0]
    for value in values[1:]:
        layout = _wider(layout, value)
    return walk.made("cond", (), [chosen, *values], layout.dims, layout.partial, layout.combined_by)


def _wider(one: Sharded, other: Sharded) -> Sharded:
    """A layout that two values have: one along a dim of which the other is the same, partial where the other is zero.

    Raises:
      NotKnown: where there is none.
    """
    dims = list[DimSharding]()
    for first, second in zip(one.dims, other.dims, strict=True):
        if first is not None and second is not None and first != second:
            raise NotKnown("what it chooses between is sharded in different ways")
        dims.append(second if first is None else first)
    partials = [value for value in (one, other) if not value.is_zero]
    if len({(value.partial, value.combined_by) for value in partials}) > 1:
        raise NotKnown("what it chooses between is not reduced alike")
    partial, by = (partials[0].partial, partials[0].combined_by) if partials else (frozenset[str](), "")
    if len(partials) == 1 and partials[0].is_extreme:
        raise NotKnown("what it chooses between is not reduced alike")
    return replace(one, dims=tuple(dims), partial=partial, combined_by=by)


class _Loop:
    """The values that a loop carries, as variables with the layout that every iteration keeps."""

    def __init__(self, walk: Walk, starts: list[Sharded]) -> None:
        self.walk, self.starts, self.layouts = walk, starts, list(starts)

    def begin(self, results: Sequence[GlobalValue]) -> None:
        """Take the layouts of what the first iteration makes of what is given, where that is known."""
        for at, (start, result) in enumerate(zip(self.starts, results, strict=True)):
            with suppress(NotKnown):
                wider = _wider(start, self.walk.settled(result))
                self.layouts[at] = replace(start, dims=wider.dims, partial=wider.partial, combined_by=wider.combined_by)

    def variable(self, kind: str, at: int, layout: Sharded) -> Sharded:
        name = (self.walk.depth, kind, at)
        return self.walk.made("variable", name, [], layout.dims, layout.partial, layout.combined_by)

    def carried(self) -> list[GlobalValue]:
        return [self.variable("carry", at, layout) for at, layout in enumerate(self.layouts)]

    def settle(self, results: Sequence[GlobalValue]) -> bool:
        """Take note of what an iteration makes of them; whether they keep their layouts."""
        is_kept = True
        for at, (start, layout, result) in enumerate(zip(self.starts, self.layouts, results, strict=True)):
            found = self.walk.settled(result)
            if (found.dims, found.partial, found.combined_by) == (layout.dims, layout.partial, layout.combined_by):
                continue
            wider = _wider(start if start.is_zero else layout, found)
            is_as_wide = (wider.dims, wider.partial, wider.combined_by) == (
                layout.dims,
                layout.partial,
                layout.combined_by,
            )
            if found.is_zero or is_as_wide:
                continue
            self.layouts[at], is_kept = replace(layout, dims=wider.dims, partial=wider.partial,
                                                combined_by=wider.combined_by), False  # fmt: skip
        return is_kept


def _scan(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    params = eqn.params
    constants, carried = _jax.jaxpr.scan_counts(params)
    given, starts = operands[:constants], list(map(walk.settled, operands[constants : constants + carried]))
    loop, items = _Loop(walk, starts), list[Sharded]()
    for at, value in enumerate(operands[constants + carried :]):
        shape = eqn.invars[constants + carried + at].aval.shape
        items.append(walk.solid(walk.settled(value), 0, shape[0]))
    walk.depth += 1
    try:
        parts = [loop.variable("item", at, item.with_dims(item.dims[1:])) for at, item in enumerate(items)]
        loop.begin(walk.results(params["jaxpr"], [*given, *starts, *parts])[:carried])
        for _ in range(_MOST_ITERATIONS):
            results = walk.results(params["jaxpr"], [*given, *loop.carried(), *parts])
            if loop.settle(results[:carried]):
                break
        else:
            raise NotKnown("no layout is kept by all iterations")
    finally:
        walk.depth -= 1
    for at, layout in enumerate(loop.layouts):
        refuse_narrow_sum(eqn, layout, at)
    body = [walk.settled(result) for result in results]
    how = (params["length"], params["reverse"], carried, constants)
    made = list[Sharded]()
    for at, result in enumerate(body):
        layout = loop.layouts[at] if at < carried else result.with_dims([(), *result.dims])
        made.append(walk.made("scan", (*how, at), [*starts, *items, *body], layout.dims, layout.partial,
                              layout.combined_by))  # fmt: skip
    return made


def _while(walk: Walk, eqn: Any, operands: list[GlobalValue]) -> Sequence[GlobalValue]:
    params = eqn.params
    asked, given, carried = _jax.jaxpr.while_operands(eqn, operands)
    starts = list(map(walk.settled, carried))
    loop = _Loop(walk, starts)
    walk.depth += 1
    try:
        loop.begin(walk.results(params["body_jaxpr"], [*given, *starts]))
        for _ in range(_MOST_ITERATIONS):
            results = walk.results(params["body_jaxpr"], [*given, *loop.carried()])
            if loop.settle(results):
                break
        else:
            raise NotKnown("no layout is kept by all iterations")
        going_on = walk.results(params["cond_jaxpr"], [*asked, *loop.carried()])[0]
        if isinstance(going_on, Truth) and going_on.is_true:
            raise NotKnown("its loop never ends")
        condition = walk.settled(going_on)
    finally:
        walk.depth -= 1
    if condition.partial:
        raise NotKnown("its condition is not reduced")
    for at, layout in enumerate(loop.layouts):
        refuse_narrow_sum(eqn, layout, at)
    body = [walk.settled(result) for result in results]
    return [
        walk.made("while", at, [condition, *starts, *body], layout.dims, layout.partial, layout.combined_by)
        for at, layout in enumerate(loop.layouts)
    ]


CALL_NAMES = (
    "jit pjit closed_call core_call call remat remat2 checkpoint custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr "
    "custom_lin custom_vmap_call"
)


CONTROL_RULES: dict[str, PrimitiveRule] = {
    **dict.fromkeys(CALL_NAMES.split(), _call),
    "shard_map": _region,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
