"""The collectives of a jaxpr and the values that it checks, through loops, branches and calls.

In this domain of `inference.interpreter` a value is its direct sources: the numbers of values and collectives. The body
of a loop is interpreted once, and its collectives count for every iteration."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

from ... import _jax
from ...inspection import Interpreter, call, reshard_steps
from .model import Collective, Pass, Value, array_text, ring_bytes

Sources = frozenset[int]
_NOTHING: Sources = frozenset()
OPAQUE = {
    "pallas_call": "a Pallas kernel",
    "ffi_call": "a foreign function",
    "tpu_custom_call": "a kernel",
    "mosaic_gpu_p": "a kernel",
}
# XLA never communicates for these: they make the same array on every device, or only annotate an array.
_NO_COMMUNICATION = frozenset(
    ["broadcast_in_dim", "iota", "convert_element_type", "reshape", "squeeze", "copy", "mesh_cast", "ask_sharding"]
)


class Around(NamedTuple):
    """How often an equation runs, and where."""

    times: int = 1
    place: str = ""
    is_transposed: bool = False
    sizes: Mapping[str, int] = {}  # of manual mesh axes
    loops: tuple[str, ...] = ()

    def at(self, eqn: Any) -> Around:
        """The surroundings of an equation here."""
        is_transposed = self.is_transposed or _jax.jaxpr.is_transposed(eqn)
        return self._replace(place=_jax.source.equation_place(eqn) or self.place, is_transposed=is_transposed)

    def inside(self, loop: str, times: int = 1) -> Around:
        """The surroundings inside a loop or a branch here."""
        return self._replace(times=self.times * times, loops=(*self.loops, loop))


@dataclass
class JaxprCosts(Interpreter[Sources]):
    """The costs of a jaxpr, in the order of its equations."""

    idents: Iterator[int]
    values: list[Value] = field(default_factory=list[Value])  # checked values
    collectives: list[Collective] = field(default_factory=list[Collective])
    notes: list[str] = field(default_factory=list[str])
    outside: list[str] = field(default_factory=list[str])  # operations on global arrays outside manual regions
    is_transposed: bool = False  # it takes a gradient
    around: Around = field(default_factory=Around)

    def __post_init__(self) -> None:
        self.rules = defaultdict(lambda: JaxprCosts._equation)

    def literal(self, atom: Any, eqn: Any, at: int) -> Sources:
        return _NOTHING

    def constants(self, closed_jaxpr: Any) -> Sequence[Sources]:
        return [_NOTHING] * len(_jax.jaxpr.open_jaxpr(closed_jaxpr).constvars)

    def carried(self, start: list[Sources], now: list[Sources], results: list[Sources], times: int) -> list[Sources]:
        return now

    def opaque(self, eqn: Any, values: list[Sources]) -> Sequence[Sources]:
        """The results of an equation; each of its jaxprs, if any, counts once."""
        jaxprs, count, at, name = _jax.jaxpr.inner_jaxprs(eqn), len(self.collectives), self.around, eqn.primitive.name
        sources = _union(values)
        for jaxpr in jaxprs:
            self.interpret(jaxpr, [sources] * len(jaxpr.invars))
        if len(self.collectives) > count:
            self.notes.append(f"what {name} runs ({at.place}) is counted once")
        if not at.sizes and not jaxprs and name not in _NO_COMMUNICATION:
            shapes = [getattr(var.aval, "shape", ()) for var in (*eqn.invars, *eqn.outvars)]
            if any(size > 1 for shape in shapes for size in shape):
                self.outside.append(name)
        return [sources] * len(eqn.outvars)

    def _equation(self, eqn: Any, sources: list[Sources]) -> Sequence[Sources]:
        around, self.around = self.around, self.around.at(eqn)
        self.is_transposed |= self.around.is_transposed
        results = self._results(eqn, sources)
        self.around = around
        return results

    def _results(self, eqn: Any, sources: list[Sources]) -> Sequence[Sources]:
        name, params, at = eqn.primitive.name, eqn.params, self.around
        if (collectives := collective_costs(eqn, at.sizes)) is not None:
            return self._add_collectives(eqn, collectives, sources)
        if name == "scan":
            consts, carry, rows = _jax.jaxpr.scan_operands(eqn, sources)
            self.around = at.inside(f"scan of {params['length']}", params["length"])
            return self.loop(params["jaxpr"], consts, carry, rows)[1]
        if name == "while":
            conds, consts, carry = _jax.jaxpr.while_operands(eqn, sources)
            self.around = at.inside("while")
            self.interpret(params["cond_jaxpr"], [*conds, *carry])
            return self.loop(params["body_jaxpr"], consts, carry)[1]
        if name == "cond":
            self.around = at.inside("cond")
            return self._cond(eqn, sources)
        if name == "shard_map":
            sizes = {**at.sizes, **_jax.jaxpr.manual_sizes(params)}
            if auto := ", ".join(axis for axis, size in params["mesh"].shape.items() if axis not in sizes and size > 1):
                note = "there XLA shards arrays further, and what it sends is not counted"
                self.notes.append(f"a region is not manual over {auto}: {note}")
            self.around = at._replace(sizes=sizes)
        if name == _jax.jaxpr.CLAIM:
            if params["claim"].assertion.subject.kind != "checked":
                return sources
            self.values.append(_checked_value(next(self.idents), eqn, sources[0], at))
            return [frozenset([self.values[-1].ident])]
        if name in OPAQUE:
            self.notes.append(f"communication inside of {OPAQUE[name]} ({at.place}) cannot be seen")
            return [_union(sources)] * len(eqn.outvars)
        return call(self, eqn, sources)

    def _add_collectives(
        self, eqn: Any, collectives: Sequence[Collective], sources: list[Sources]
    ) -> Sequence[Sources]:
        """A sum takes each operand separately; the steps of a reshard are sequential."""
        results, at, is_chain = list(sources), self.around, eqn.primitive.name == "reshard_shards"
        for place, cost in enumerate(collectives):
            slot, ident = 0 if is_chain else place, next(self.idents)
            part: Pass = "gradient" if at.is_transposed else "forward"
            cost = replace(cost, ident=ident, times=at.times, loops=at.loops, place=at.place, part=part)
            self.collectives.append(replace(cost, after=tuple(sorted(results[slot]))))
            results[slot] = frozenset([ident])
        return results if len(results) == len(eqn.outvars) else [_union(results)] * len(eqn.outvars)

    def _cond(self, eqn: Any, sources: list[Sources]) -> Sequence[Sources]:
        """The branch that sends most; other branches do not count."""
        before, branches = self.collectives, list[tuple[int, list[Collective], list[Sources]]]()
        for branch in eqn.params["branches"]:
            self.collectives = []
            results = self.interpret(branch, sources[1:])
            branches.append((sum(op.sent for op in self.collectives), self.collectives, results))
        sent, most, results = max(branches, key=itemgetter(0))
        self.collectives = before + most
        if any(branch[0] < sent for branch in branches):
            self.notes.append("for a cond, the branch that sends most is counted")
        return [result | sources[0] for result in results]


def _union(sources: Sequence[Sources]) -> Sources:
    return _NOTHING.union(*sources)


def _checked_value(ident: int, eqn: Any, sources: Sources, at: Around) -> Value:
    claim, aval = eqn.params["claim"], eqn.invars[0].aval
    stated = claim.assertion
    sizes = stated.region.sizes
    dim_axes = dict(zip(eqn.params["claimed_dims"], claim.layout.dim_axes, strict=True))
    axes = [dim_axes.get(dim) or () for dim in range(len(aval.shape))]
    name, hint, after = f"{stated.function}{stated.subject.path}", str(stated.hint.text), tuple(sorted(sources))
    shape = tuple(size * prod(sizes[axis] for axis in names) for size, names in zip(aval.shape, axes, strict=True))
    dtype, size = _jax.array.short_dtype(aval.dtype), _jax.array.size_in_bytes(aval.shape, aval.dtype)
    spec = _jax.array.partition_spec(axes, claim.layout.unreduced)
    return Value(ident, "check", name, shape, dtype, spec, aval.shape, size, hint, at.place, after, at.times)


def read_jaxpr(jaxpr: Any, count: int) -> tuple[JaxprCosts, list[Sources]]:
    """The costs of a jaxpr without dead code, and the sources of each result; operands are numbered from 0 on."""
    start, idents = [frozenset([at]) for at in range(count)], itertools.count(count)
    costs, live = JaxprCosts(idents), JaxprCosts(idents)
    results = costs.interpret(jaxpr, start)
    live.interpret(_jax.jaxpr.without_dead_equations(jaxpr), start)
    # The collectives without dead code, with their data from the full jaxpr, which has the checks.
    kept, alive = live.collectives, list[Collective]()
    for op in costs.collectives:
        if len(alive) < len(kept) and replace(op, ident=0, after=()) == replace(kept[len(alive)], ident=0, after=()):
            alive.append(op)
    # They do not match if dead code made another branch the costlier one; then they come without the checks.
    costs.collectives = alive if len(alive) == len(kept) else kept
    costs.outside, costs.is_transposed = live.outside, live.is_transposed
    return costs, results


def collective_costs(eqn: Any, sizes: Mapping[str, int]) -> list[Collective] | None:
    """The costs of a collective, per operand; None for other equations."""
    # Over an axis of size 1 nothing is sent, and XLA drops it.
    params, sizes = eqn.params, {axis: size for axis, size in sizes.items() if size > 1}
    if eqn.primitive.name == "reshard_shards":
        return list(_reshard_costs(eqn, sizes))
    operation, group = _jax.jaxpr.collective_operation(eqn), group_size(eqn, sizes)
    if operation is None or group is None:
        return None
    if group == 1 or ("perm" in params and all(source == target for source, target in params["perm"])):
        return []
    axes = _jax.jaxpr.named_axes(eqn, frozenset(sizes))
    # Ragged exchanges also have offsets and the memory of the result as operands.
    pairs = [(eqn.invars[0], eqn.outvars[0])] if "ragged" in operation else zip(eqn.invars, eqn.outvars, strict=False)
    return [_collective_of(operation, axes, group, operand.aval, result.aval) for operand, result in pairs]


def group_size(eqn: Any, sizes: Mapping[str, int]) -> int | None:
    """The number of shards that communicate; None for an equation that is not a collective."""
    if _jax.jaxpr.collective_operation(eqn) is None:
        return None
    groups = eqn.params.get("axis_index_groups")
    return len(groups[0]) if groups else prod(sizes[axis] for axis in _jax.jaxpr.named_axes(eqn, frozenset(sizes)))


def _reshard_costs(eqn: Any, sizes: Mapping[str, int]) -> Iterator[Collective]:
    """The steps of this library's ``reshard``, which is one equation of a jaxpr."""
    for operation, over, (before,), (after,) in reshard_steps(eqn):
        if axes := tuple(axis for axis in over if axis in sizes):
            yield _collective_of(operation, axes, prod(sizes[axis] for axis in axes), before, after)


def _collective_of(operation: str, axes: tuple[str, ...], group: int, operand: Any, result: Any) -> Collective:
    """A collective without its place, from the types of a shard before and after it."""
    before, after = (array_text(_jax.array.short_dtype(aval.dtype), aval.shape) for aval in (operand, result))
    sizes = [_jax.array.size_in_bytes(aval.shape, aval.dtype) for aval in (operand, result)]
    return Collective(0, operation, axes, group, before, after, *sizes, wire=ring_bytes(operation, group, *sizes))
