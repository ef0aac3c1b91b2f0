"""Read a traced program for what communicates and what is checked, through loops, branches and calls.

Invariant: every value of the program carries the numbers of the values and collectives that it comes from
directly; a loop's body is read once, so that these lead forwards only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import _jax
from ..inference.claims import Claim
from ..inference.reader import CLAIM
from .collectives import exchanges
from .model import Collective, Part, Value

Sources = frozenset[int]
_NOTHING: Sources = frozenset()
_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")
_OPAQUE = {
    "pallas_call": "a Pallas kernel",
    "ffi_call": "a foreign function",
    "custom_call": "a foreign function",
    "tpu_custom_call": "a kernel",
    "mosaic_gpu": "a kernel",
}
# They make arrays of the same everywhere, or only say something of one.
_FREE = frozenset(
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
class _Where:
    """Where an equation stands.

    Attributes:
      sizes: the mesh axes that are manual, with their sizes.
      times: how often it runs.
      loops: what it is in.
      part: whether it belongs to a gradient.
      place: the place of the call around, for what has none of its own.
    """

    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    times: int = 1
    loops: tuple[str, ...] = ()
    part: Part = "forward"
    place: str = ""

    def at(self, eqn: Any) -> _Where:
        part: Part = "gradient" if _jax.is_transposed(eqn) else self.part
        return replace(self, part=part, place=_jax.place_of_equation(eqn) or self.place)

    def inside(self, loop: str, times: int = 1) -> _Where:
        return replace(self, times=self.times * times, loops=(*self.loops, loop))


@dataclass
class Found:
    """What was read of a program, in its order.

    Attributes:
      values: what its body checks.
      collectives: what communicates.
      notes: what cannot be seen, or not counted.
      outside: the operations on global arrays outside of manual regions, by name.
      is_transposed: whether the program takes a gradient.
    """

    values: list[Value] = field(default_factory=list[Value])
    collectives: list[Collective] = field(default_factory=list[Collective])
    notes: dict[str, None] = field(default_factory=dict[str, None])
    outside: dict[str, None] = field(default_factory=dict[str, None])
    is_transposed: bool = False


class Reader:
    """A reading of one program.

    Attributes:
      found: what was found so far.
      last: the number that was given last.
      is_transposed: whether a transposed equation was met.
    """

    def __init__(self, last: int) -> None:
        self.found, self.last, self.is_transposed = Found(), last, False

    def read(self, program: Any, sources: Sequence[Sources], at: _Where) -> list[Sources]:
        """Read a program, from where its operands come to where its results do."""
        jaxpr = _jax.open_program(program)
        known: dict[Any, Sources] = dict(zip(jaxpr.invars, sources, strict=True))

        def look(atom: Any) -> Sources:
            return _NOTHING if _jax.is_literal(atom) else known.get(atom, _NOTHING)

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [look(atom) for atom in eqn.invars], at.at(eqn))
            known.update(zip(eqn.outvars, results, strict=True))
            if eqn.primitive.name == CLAIM and not _jax.is_literal(eqn.invars[0]):
                # What is computed of a checked value takes the value itself, not what the check returns.
                known[eqn.invars[0]] = results[0]
        return [look(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, sources: list[Sources], at: _Where) -> Sequence[Sources]:
        self.is_transposed |= at.part == "gradient"
        found = exchanges(eqn, at.sizes)
        if found is not None:
            return self._collective(eqn, found, sources, at)
        match eqn.primitive.name:
            case "scan":
                return self._scan(eqn, sources, at)
            case "while":
                return self._while(eqn, sources, at)
            case "cond":
                return self._cond(eqn, sources, at)
            case "shard_map":
                return self._region(eqn, sources, at)
            case name if name == CLAIM:
                return self._claim(eqn, sources, at)
            case _:
                return self._other(eqn, sources, at)

    def _collective(self, eqn: Any, found: Any, sources: list[Sources], at: _Where) -> Sequence[Sources]:
        """Each operand of a sum goes its own way; the steps of a reshard follow each other."""
        before, is_chain = list(sources), eqn.primitive.name == "reshard_shards"
        for place, one in enumerate(found):
            slot = 0 if is_chain else place
            after = tuple(sorted(before[slot]))
            ident = self._number()
            stands = Collective(
                ident,
                one.operation,
                one.axes,
                one.group,
                one.operand,
                one.result,
                one.bytes_in,
                one.bytes_out,
                one.wire,
                at.times,
                at.loops,
                at.place,
                at.part,
                after,
            )
            self.found.collectives.append(stands)
            before[slot] = frozenset([ident])
        return before if len(before) == len(eqn.outvars) else [_union(before)] * len(eqn.outvars)

    def _number(self) -> int:
        self.last += 1
        return self.last

    def _scan(self, eqn: Any, sources: list[Sources], at: _Where) -> Sequence[Sources]:
        length = eqn.params["length"]
        return self.read(eqn.params["jaxpr"], sources, at.inside(f"scan of {length}", length))

    def _while(self, eqn: Any, sources: list[Sources], at: _Where) -> Sequence[Sources]:
        params, inside = eqn.params, at.inside("while")
        conds, bodies = params["cond_nconsts"], params["body_nconsts"]
        asked, fixed, carry = sources[:conds], sources[conds : conds + bodies], sources[conds + bodies :]
        self.read(params["cond_jaxpr"], [*asked, *carry], inside)
        return self.read(params["body_jaxpr"], [*fixed, *carry], inside)

    def _cond(self, eqn: Any, sources: list[Sources], at: _Where) -> Sequence[Sources]:
        """The branch that sends most; the others do not count."""
        before, read = self.found, list[tuple[Found, list[Sources]]]()
        for branch in eqn.params["branches"]:
            self.found = Found(notes=before.notes, outside=before.outside)
            read.append((self.found, self.read(branch, sources[1:], at.inside("cond"))))
        self.found = before
        most, results = max(read, key=lambda each: _sent(each[0]))
        if len({_sent(found) for found, _ in read}) > 1:
            before.notes["of a cond's branches the one that sends most is counted"] = None
        before.collectives += most.collectives
        before.values += [value for found, _ in read for value in found.values]
        return [result | sources[0] for result in results]

    def _region(self, eqn: Any, sources: list[Sources], at: _Where) -> Sequence[Sources]:
        mesh, manual = eqn.params["mesh"], eqn.params["newly_manual_axes"]
        sizes = {axis: size for axis, size in mesh.shape.items() if axis in manual or axis in at.sizes}
        left = [axis for axis, size in mesh.shape.items() if axis not in sizes and size > 1]
        if left:
            axes = ", ".join(left)
            note = f"{axes} not manual in a region: there XLA splits arrays further, and what it sends is not counted"
            self.found.notes[note] = None
        return self.read(eqn.params["jaxpr"], sources, replace(at, sizes={**at.sizes, **sizes}))

    def _claim(self, eqn: Any, sources: list[Sources], at: _Where) -> Sequence[Sources]:
        stated: Claim = eqn.params["claim"]
        if stated.subject.kind != "checked":
            return sources
        ident = self._number()
        self.found.values.append(_checked(ident, eqn, stated, sources[0], at))
        return [frozenset([ident])]

    def _other(self, eqn: Any, sources: list[Sources], at: _Where) -> Sequence[Sources]:
        name, count = eqn.primitive.name, len(eqn.outvars)
        if name in _OPAQUE:
            self.found.notes[f"communication inside of {_OPAQUE[name]} ({at.place}) cannot be seen"] = None
            return [_union(sources)] * count
        called = next((eqn.params[key] for key in _CALLED if hasattr(eqn.params.get(key), "eqns")), None)
        program = None if called is None else _jax.open_program(called)
        if program is not None and (len(program.invars), len(program.outvars)) == (len(sources), count):
            return self.read(program, sources, at)
        self._within(eqn, sources, at)
        return [_union(sources)] * count

    def _within(self, eqn: Any, sources: list[Sources], at: _Where) -> None:
        """Programs that an operation runs in a way of its own, each counted once."""
        programs = _jax.programs_within(eqn)
        count = len(self.found.collectives)
        for program in programs:
            self.read(program, [_union(sources)] * len(_jax.open_program(program).invars), at)
        if len(self.found.collectives) > count:
            self.found.notes[f"what {eqn.primitive.name} runs ({at.place}) is counted once"] = None
        if not at.sizes and not programs and _is_work(eqn):
            self.found.outside[eqn.primitive.name] = None


def _union(sources: Sequence[Sources]) -> Sources:
    return _NOTHING.union(*sources)


def _sent(found: Found) -> int:
    return sum(one.times * one.wire for one in found.collectives)


def _is_work(eqn: Any) -> bool:
    """Whether XLA may have to communicate for an operation on global arrays."""
    shapes = [getattr(var.aval, "shape", ()) for var in (*eqn.invars, *eqn.outvars)]
    return eqn.primitive.name not in _FREE and any(size > 1 for shape in shapes for size in shape)


def _checked(ident: int, eqn: Any, stated: Claim, sources: Sources, at: _Where) -> Value:
    aval, sizes = eqn.invars[0].aval, dict(stated.region.held)
    parts = dict(zip(eqn.params["own"], stated.lying.parts, strict=True))
    axes = [parts.get(dim) or () for dim in range(len(aval.shape))]
    shape = tuple(_whole(size, names, sizes) for size, names in zip(aval.shape, axes, strict=True))
    return Value(
        ident,
        "check",
        f"{stated.function}{stated.subject.path}",
        shape,
        _jax.short_dtype(aval.dtype),
        _jax.partition_spec(axes, stated.lying.unreduced),
        aval.shape,
        _jax.size_in_bytes(aval.shape, aval.dtype),
        str(stated.text),
        at.place,
        tuple(sorted(sources)),
        at.times,
    )


def _whole(size: int, axes: tuple[str, ...], sizes: Mapping[str, int]) -> int:
    for axis in axes:
        size *= sizes[axis]
    return size


def read_program(program: Any, count: int) -> tuple[Found, list[Sources]]:
    """Read a whole program.

    Args:
      program: what was traced.
      count: how many operands it has; they bear the numbers from 0 on.

    Returns:
      What was found of what XLA keeps, and of each result what it comes from.
    """
    start = [frozenset([at]) for at in range(count)]
    reader = Reader(count - 1)
    results = reader.read(program, start, _Where())
    kept = Reader(reader.last)
    kept.read(_jax.without_dead(program), start, _Where())
    reader.found.collectives = _live(reader.found.collectives, kept.found.collectives)
    reader.found.outside, reader.found.is_transposed = kept.found.outside, kept.is_transposed
    return reader.found, results


def _live(all_of_them: Sequence[Collective], live: Sequence[Collective]) -> list[Collective]:
    """The collectives that are left without dead code: as they stand in the whole program, whose checks they know."""
    kept: list[Collective] = []
    for one in all_of_them:
        if len(kept) < len(live) and _likeness(one) == _likeness(live[len(kept)]):
            kept.append(one)
    # Where dead code made another branch the costlier one they are not the same, and stand without the checks.
    return kept if len(kept) == len(live) else list(live)


def _likeness(one: Collective) -> Collective:
    return replace(one, ident=0, after=())
