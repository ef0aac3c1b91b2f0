"""Read a jaxpr for what communicates and what is checked, through loops, branches and calls.

This is not a second domain of `inference.interpreter`: facts are joined until they hold in every iteration, while
costs depend on what is around an equation, and add up. Which jaxpr an equation runs on which operands is the same for
both, and defined in `_jax.jaxpr`.

Invariant: every value of the jaxpr carries the numbers of the values and collectives that it comes from directly; a
loop's body is read once, so that these only lead forwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from .. import _jax
from ..inference.claims import Claim
from ..inference.interpreter import CLAIM
from ..ops.resharding.plan import Unreachable
from ..ops.resharding.search import plan
from .model import Collective, MeshAxes, Pass, Value, ring_bytes

Sources = frozenset[int]
_NOTHING: Sources = frozenset()
_OPAQUE = {
    "pallas_call": "a Pallas kernel",
    "ffi_call": "a foreign function",
    "custom_call": "a foreign function",
    "tpu_custom_call": "a kernel",
    "mosaic_gpu": "a kernel",
}
# XLA never communicates for these: they make the same array on every device, or only annotate one.
_NO_COMMUNICATION = frozenset(
    [
        "broadcast_in_dim",
        "iota",
        "convert_element_type",
        "reshape",
        "squeeze",
        "copy",
        "mesh_cast",
        "ask_sharding",
        CLAIM,
    ]
)


@dataclass(frozen=True, slots=True)
class _EquationContext:
    """What is around an equation.

    Attributes:
      sizes: the mesh axes that are manual, with their sizes.
      times: how often it runs.
      loops: the loops and branches that it is in.
      part: whether it belongs to a gradient.
      place: the source of the call around it, for an equation without a source of its own.
    """

    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    times: int = 1
    loops: tuple[str, ...] = ()
    part: Pass = "forward"
    place: str = ""

    def inside(self, loop: str, times: int = 1) -> _EquationContext:
        return replace(self, times=self.times * times, loops=(*self.loops, loop))


@dataclass
class JaxprCosts:
    """What was found in a jaxpr, in its order.

    Attributes:
      values: what its body checks.
      collectives: what communicates.
      notes: what cannot be seen, or not counted.
      outside: the operations on global arrays outside of manual regions, by name.
      is_transposed: whether it takes a gradient.
    """

    values: list[Value] = field(default_factory=list[Value])
    collectives: list[Collective] = field(default_factory=list[Collective])
    notes: dict[str, None] = field(default_factory=dict[str, None])
    outside: dict[str, None] = field(default_factory=dict[str, None])
    is_transposed: bool = False


class CostInterpreter:
    """Adds up the costs of one jaxpr.

    Attributes:
      costs: what was found so far.
      last: the number that was given last.
      is_transposed: whether there was a transposed equation.
    """

    def __init__(self, last: int) -> None:
        self.costs, self.last, self.is_transposed = JaxprCosts(), last, False

    def read(self, closed_jaxpr: Any, sources: Sequence[Sources], around: _EquationContext) -> list[Sources]:
        """Read a jaxpr; from the sources of its operands to those of its results."""
        jaxpr = _jax.jaxpr.open_jaxpr(closed_jaxpr)
        known: dict[Any, Sources] = dict(zip(jaxpr.invars, sources, strict=True))

        def sources_of(atom: Any) -> Sources:
            return _NOTHING if _jax.jaxpr.is_literal(atom) else known.get(atom, _NOTHING)

        for eqn in jaxpr.eqns:
            part: Pass = "gradient" if _jax.jaxpr.is_transposed(eqn) else around.part
            self.is_transposed |= part == "gradient"
            at = replace(around, part=part, place=_jax.jaxpr.equation_place(eqn) or around.place)
            results = self._equation(eqn, [sources_of(atom) for atom in eqn.invars], at)
            known.update(zip(eqn.outvars, results, strict=True))
            if eqn.primitive.name == CLAIM and not _jax.jaxpr.is_literal(eqn.invars[0]):
                # What is computed of a checked value takes the value itself, not what the check returns.
                known[eqn.invars[0]] = results[0]
        return [sources_of(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, sources: list[Sources], at: _EquationContext) -> Sequence[Sources]:
        found = collective_costs(eqn, at.sizes)
        if found is not None:
            return self._collective(eqn, found, sources, at)
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            length = params["length"]
            return self.read(params["jaxpr"], sources, at.inside(f"scan of {length}", length))
        if name == "while":
            conds, consts, carry = _jax.jaxpr.while_operands(eqn, sources)
            self.read(params["cond_jaxpr"], [*conds, *carry], at.inside("while"))
            return self.read(params["body_jaxpr"], [*consts, *carry], at.inside("while"))
        if name == "cond":
            return self._cond(eqn, sources, at)
        if name == "shard_map":
            mesh, manual = params["mesh"], params["newly_manual_axes"]
            sizes = {axis: size for axis, size in mesh.shape.items() if axis in manual or axis in at.sizes}
            if auto := ", ".join(axis for axis, size in mesh.shape.items() if axis not in sizes and size > 1):
                self._note(f"{auto} not manual in a region: there XLA splits arrays further, and what it sends is not "
                           "counted")  # fmt: skip
            return self.read(params["jaxpr"], sources, replace(at, sizes={**at.sizes, **sizes}))
        if name == CLAIM:
            if params["claim"].subject.kind != "checked":
                return sources
            value = _checked_value(self._number(), eqn, sources[0], at)
            self.costs.values.append(value)
            return [frozenset([value.ident])]
        if name in _OPAQUE:
            self._note(f"communication inside of {_OPAQUE[name]} ({at.place}) cannot be seen")
        elif (called := _jax.jaxpr.called_jaxpr(eqn)) is not None:
            return self.read(called, sources, at)
        else:
            self._inner_jaxprs(eqn, _union(sources), at)
        return [_union(sources)] * len(eqn.outvars)

    def _collective(
        self, eqn: Any, found: Sequence[Collective], sources: list[Sources], at: _EquationContext
    ) -> Sequence[Sources]:
        """A sum takes each operand by itself; the steps of a reshard follow each other."""
        before, is_chain = list(sources), eqn.primitive.name == "reshard_shards"
        context = {"times": at.times, "loops": at.loops, "place": at.place, "part": at.part}
        for place, one in enumerate(found):
            slot = 0 if is_chain else place
            one = replace(one, ident=self._number(), after=tuple(sorted(before[slot])), **context)
            self.costs.collectives.append(one)
            before[slot] = frozenset([one.ident])
        return before if len(before) == len(eqn.outvars) else [_union(before)] * len(eqn.outvars)

    def _number(self) -> int:
        self.last += 1
        return self.last

    def _note(self, text: str) -> None:
        self.costs.notes[text] = None

    def _cond(self, eqn: Any, sources: list[Sources], at: _EquationContext) -> Sequence[Sources]:
        """The branch that sends most; the others do not count."""
        before, branches = self.costs, list[tuple[int, JaxprCosts, list[Sources]]]()
        for branch in eqn.params["branches"]:
            self.costs = JaxprCosts(notes=before.notes, outside=before.outside)
            results = self.read(branch, sources[1:], at.inside("cond"))
            sent = sum(one.times * one.wire for one in self.costs.collectives)
            branches.append((sent, self.costs, results))
        self.costs = before
        _, most, results = max(branches, key=lambda branch: branch[0])
        if len({sent for sent, *_ in branches}) > 1:
            self._note("of a cond's branches the one that sends most is counted")
        before.collectives += most.collectives
        before.values += [value for _, costs, _ in branches for value in costs.values]
        return [result | sources[0] for result in results]

    def _inner_jaxprs(self, eqn: Any, sources: Sources, at: _EquationContext) -> None:
        """Jaxprs that an operation runs in a way of its own, each counted once."""
        jaxprs, count = _jax.jaxpr.inner_jaxprs(eqn), len(self.costs.collectives)
        for jaxpr in jaxprs:
            self.read(jaxpr, [sources] * len(_jax.jaxpr.open_jaxpr(jaxpr).invars), at)
        if len(self.costs.collectives) > count:
            self._note(f"what {eqn.primitive.name} runs ({at.place}) is counted once")
        if not at.sizes and not jaxprs and eqn.primitive.name not in _NO_COMMUNICATION:
            shapes = [getattr(var.aval, "shape", ()) for var in (*eqn.invars, *eqn.outvars)]
            if any(size > 1 for shape in shapes for size in shape):
                self.costs.outside[eqn.primitive.name] = None


def _union(sources: Sequence[Sources]) -> Sources:
    return _NOTHING.union(*sources)


def _checked_value(ident: int, eqn: Any, sources: Sources, context: _EquationContext) -> Value:
    claim: Claim = eqn.params["claim"]
    aval, sizes = eqn.invars[0].aval, dict(claim.region.manual)
    dim_axes = dict(zip(eqn.params["own"], claim.layout.dim_axes, strict=True))
    axes = [dim_axes.get(dim) or () for dim in range(len(aval.shape))]
    return Value(
        ident,
        "check",
        f"{claim.function}{claim.subject.path}",
        tuple(size * prod(sizes[axis] for axis in names) for size, names in zip(aval.shape, axes, strict=True)),
        _jax.array.short_dtype(aval.dtype),
        _jax.array.partition_spec(axes, claim.layout.unreduced),
        aval.shape,
        _jax.array.size_in_bytes(aval.shape, aval.dtype),
        str(claim.text),
        context.place,
        tuple(sorted(sources)),
        context.times,
    )


def read_jaxpr(jaxpr: Any, count: int) -> tuple[JaxprCosts, list[Sources]]:
    """Read a jaxpr, with and without what XLA drops.

    Args:
      jaxpr: what was traced.
      count: how many operands it has; their numbers are those from 0 on.

    Returns:
      What was found of what XLA keeps, and the sources of each result.
    """
    start = [frozenset([at]) for at in range(count)]
    reader = CostInterpreter(count - 1)
    results = reader.read(jaxpr, start, _EquationContext())
    kept = CostInterpreter(reader.last)
    kept.read(_jax.jaxpr.without_dead_equations(jaxpr), start, _EquationContext())
    # What is left without dead code, as it is in the full jaxpr, which has the checks.
    live, alive = kept.costs.collectives, list[Collective]()
    for one in reader.costs.collectives:
        if len(alive) < len(live) and replace(one, ident=0, after=()) == replace(live[len(alive)], ident=0, after=()):
            alive.append(one)
    # Where dead code made another branch the costlier one they are not the same, and come without the checks.
    reader.costs.collectives = alive if len(alive) == len(live) else list(live)
    reader.costs.outside, reader.costs.is_transposed = kept.costs.outside, kept.is_transposed
    return reader.costs, results


def collective_costs(eqn: Any, sizes: Mapping[str, int]) -> list[Collective] | None:
    """What an equation communicates, per operand; None for one that is not a collective.

    Args:
      eqn: the equation.
      sizes: the mesh axes that are manual here; over those of size 1 nothing is sent, and XLA drops it.
    """
    longer, params = frozenset(axis for axis, size in sizes.items() if size > 1), eqn.params
    if eqn.primitive.name == "reshard_shards":
        return list(_reshard_costs(eqn, longer, sizes))
    operation = _jax.jaxpr.collective_operation(eqn)
    if operation is None:
        return None
    axes, groups = _jax.jaxpr.named_axes(eqn, longer), params.get("axis_index_groups")
    group = len(groups[0]) if groups else prod(sizes[axis] for axis in axes)
    if group == 1 or ("perm" in params and all(source == target for source, target in params["perm"])):
        return []
    # Ragged exchanges have offsets and the memory of the result for operands, too.
    pairs = [(eqn.invars[0], eqn.outvars[0])] if "ragged" in operation else zip(eqn.invars, eqn.outvars, strict=False)
    return [
        _collective_of(
            operation, axes, group, (operand.aval.dtype, operand.aval.shape), (result.aval.dtype, result.aval.shape)
        )
        for operand, result in pairs
    ]


def _reshard_costs(eqn: Any, longer: frozenset[str], sizes: Mapping[str, int]) -> Iterator[Collective]:
    """The steps of this library's own ``reshard``, which is one equation of a jaxpr."""
    params, aval = eqn.params, eqn.invars[0].aval
    found = plan(params["source"], params["target"], params["shape"], dict(params["sizes"]))
    assert not isinstance(found, Unreachable), found.reason
    lead = aval.shape[: params["lead"]]
    for step in found.steps:
        axes = tuple(axis for axis in step.axes if axis in longer)
        if step.kind in _jax.jaxpr.COLLECTIVES and axes:
            before, after = (*lead, *step.shard_before), (*lead, *step.shard_after)
            group, operation = prod(sizes[axis] for axis in axes), _jax.jaxpr.COLLECTIVES[step.kind]
            yield _collective_of(operation, axes, group, (aval.dtype, before), (aval.dtype, after))


_ShardType = tuple[Any, tuple[int, ...]]


def _collective_of(operation: str, axes: MeshAxes, group: int, operand: _ShardType, result: _ShardType) -> Collective:
    """A collective, wherever it may be, of the dtype and shape of a shard before and after it."""
    before, after = (
        f"{_jax.array.short_dtype(dtype)}[{','.join(map(str, shape))}]" for dtype, shape in (operand, result)
    )
    sent, received = (_jax.array.size_in_bytes(shape, dtype) for dtype, shape in (operand, result))
    wire = ring_bytes(operation, group, sent, received)
    return Collective(0, operation, axes, group, before, after, sent, received, wire)
