"""Since when a value varies, and which collective makes it the same on every shard, and right.

The facts of the interpreter say over which axes a value varies, not since when. Here a region is interpreted once more,
and each value has a provenance as well, per axis over which it varies: the equation at which the axis left its dims,
and what happened since.

Invariant: nothing of this runs unless an error or a warning is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import prod
from typing import Any

from .. import _jax
from .commuting import (
    LINEAR,
    MIXING,
    MOVING,
    ONE_TO_ONE,
    PLACING,
    PRODUCTS,
    commutes,
    position_after,
    sizes_of,
)
from .interpreter import CLAIM, Interpreter, default_rule
from .lattice import ShardingFact
from .provenance import (
    COLLECTIVES,
    UNREDUCED,
    Divisor,
    Frame,
    Known,
    Provenance,
    Recorder,
    join_known,
    restrict_known,
)
from .scaling import ADDING, Scaling

NameDim = Callable[[int, str], "tuple[str, str]"]
"""What hints call the dim of a body's argument that is sharded over an axis, and the argument."""

_EXTREMES = {"reduce_max": "maximum", "reduce_min": "minimum"}
_FINAL = frozenset(["index", "opaque", "choice", "ring", "picked", "other"])
_NEUTRAL = (0.0, float("inf"), float("-inf"))
_MOST_ITERATIONS = 4


class Causes:
    """Since when the values of a region vary.

    Args:
      interpreter: one for the region, with its rules and claims.
      closed_jaxpr: the region's body.
      facts: those of the body's operands.
      name_dim: what hints call the sharded dim of an operand.
      is_typed: whether JAX types the values of the program, if not as it is interpreted here.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        closed_jaxpr: Any,
        facts: Sequence[ShardingFact],
        name_dim: NameDim,
        is_typed: bool,
    ) -> None:
        self.is_typed = is_typed
        recorder, self._numbers = Recorder(interpreter), count()
        recorder.interpret(closed_jaxpr, facts)
        ((_, self.body),) = recorder.frame.inner.items()
        self._frame = self.body
        self.interpreter, self.axes, self.claim_equations = interpreter, interpreter.axes, interpreter.claim_equations
        # By axis and number of a provenance: the first operation before which a collective has to be.
        self._first_late: dict[tuple[str, int], Any] = {}
        # Those that make right what varies, by the same.
        self._collectives: dict[tuple[str, int], Any] = {}
        given: list[Known] = []
        for at, fact in enumerate(facts, -len(facts)):
            axes = sorted(fact.varying | fact.unreduced)
            given.append(Known({axis: self._argument(at, axis, fact, name_dim) for axis in axes}))
        self.scaling = Scaling(interpreter, self._is_transposed)
        self._frames: dict[int, list[Frame]] = {}
        for frame in [self.body, *recorder.frames.values()]:
            for eqn in frame.facts:
                self._frames.setdefault(eqn, []).append(frame)
        self._follow(self.body, given)

    def of_result(self, at: int, axis: str) -> Provenance | None:
        """Since when a result of the body varies over an axis."""
        var = self.body.jaxpr.outvars[at]
        return self._seen(self.body.known_of(var).provenances.get(axis) or self._agreement(var, axis), axis)

    def of_operand(self, eqn: Any, axis: str, at: int = 0) -> Provenance | None:
        """Since when an operand of an equation, of a claim for instance, varies over an axis."""
        for frame in self._frames.get(id(eqn), ()):
            if found := frame.first.get((id(eqn.invars[at]), axis)):
                dims = frame.facts[id(eqn)][0][at].dims
                sharded = {place for place, dim in enumerate(dims) if axis in (dim.axes or ())}
                if found.kind == "part" and not sharded.issubset(eqn.params.get("own", sharded)):
                    found = found._replace(kind="mapped")
                return self._seen(found, axis)
        return None

    def of_predicate(self, eqn: Any, axis: str) -> Provenance | None:
        """Since when the predicate of a branch, or the condition of a loop, varies over an axis."""
        if eqn.primitive.name == "cond":
            return self.of_operand(eqn, axis)
        jaxpr = _jax.jaxpr.open_jaxpr(eqn.params["cond_jaxpr"])
        frames = (frame.inner[id(eqn), id(jaxpr)] for frame in self._frames.get(id(eqn), ()))
        found = (frame.known_of(jaxpr.outvars[0]).provenances.get(axis) for frame in frames)
        return self._seen(next(filter(None, found), None), axis)

    def known_of_operand(self, eqn: Any, at: int) -> list[Known]:
        """What is known of an operand of an equation, each time that it was interpreted."""
        return [frame.known_of(eqn.invars[at]) for frame in self._frames.get(id(eqn), ())]

    def facts_of(self, eqn: Any) -> list[list[ShardingFact]]:
        """The facts of an equation's operands, each time that it was interpreted."""
        return [frame.facts[id(eqn)][0] for frame in self._frames.get(id(eqn), ())]

    def _seen(self, one: Provenance | None, axis: str) -> Provenance | None:
        """The same, with equations that the user wrote in the place of those of a library's own jaxprs."""
        if one is None:
            return None
        transposed = next((eqn for eqn, _ in one.calls if _jax.jaxpr.is_transposed(eqn)), None)
        gradient = _jax.source.gradient_place(transposed) if transposed is not None else ""
        differentiated = next((eqn for eqn, _ in one.calls if _jax.jaxpr.is_differentiated(eqn)), None)
        is_within = differentiated is not None and transposed is None
        asked = _jax.source.gradient_place(differentiated) if is_within else ""
        untyped, inside = ("", asked) if self.is_typed else (asked, "")
        if one.late is not None and one.kind in _EXTREMES.values():  # each shard would go on with its own
            one = one._replace(late=self._first_late[axis, one.at])
        made, adds = one.made, one.late is not None and one.late[0][0].primitive.name in ADDING
        if adds and any(_jax.jaxpr.is_transposed(eqn) for eqn, _ in one.late or ()):
            made = "typed" if self.is_typed else "untyped"
        follows = self._collectives.get((axis, one.at))
        eqn, late, astray, follows = map(_written, (one.calls, one.late, one.astray, follows))
        return one._replace(
            eqn=eqn,
            late=late,
            astray=astray,
            gradient=gradient,
            follows=follows,
            untyped=untyped,
            inside=inside,
            made=made,
        )

    def _agreement(self, var: Any, axis: str) -> Provenance | None:
        """Where a value became the same on every shard that JAX types as varying."""
        waiting, seen, cast = [(self.body, var)], set[int](), None
        while waiting:
            frame, atom = waiting.pop()
            eqn = frame.made_by.get(atom) if not _jax.jaxpr.is_literal(atom) else None
            if eqn is None or id(atom) in seen or axis not in _jax.array.manual_type_in(atom.aval).varying:
                continue
            seen.add(id(atom))
            if any(axis in frame.known_of(operand).provenances for operand in eqn.invars):
                return self._new("agreement", eqn, frame)
            inner = frame.inner.get((id(eqn), id(_jax.jaxpr.called_jaxpr(eqn))))
            if inner is not None:
                at = next(at for at, one in enumerate(eqn.outvars) if one is atom)
                waiting.append((inner, inner.jaxpr.outvars[at]))
            cast = cast or (eqn, frame)
            waiting += [(frame, operand) for operand in eqn.invars]
        if cast is None:
            return None
        # An axis of one shard is not interpreted; a gather over it is to be written otherwise on any mesh.
        is_alone = axis not in self.interpreter.sizes and cast[0].primitive.name != "all_gather"
        return self._new("alone" if is_alone else "agreement", *cast)

    def _new(self, kind: str, eqn: Any, frame: Frame | None = None, **more: Any) -> Provenance:
        calls = (frame or self._frame).calls(eqn) if eqn is not None else ()
        return Provenance(kind, eqn, next(self._numbers), calls, **more)

    def _argument(self, at: int, axis: str, fact: ShardingFact, name_dim: NameDim) -> Provenance:
        is_part = any(axis in (dim.axes or ()) for dim in fact.dims)
        kind = "sum" if axis in fact.unreduced else "part" if is_part else "other"
        dim, subject = name_dim(at, axis) if kind != "other" else ("", "")
        return self._new(kind, None, dim=dim, subject=subject)

    def _follow(self, frame: Frame, given: Sequence[Known]) -> list[Known]:
        """What is known of a jaxpr's results, from what is known of its operands."""
        frame.known = known = dict(zip(frame.jaxpr.invars, given, strict=True))
        outer, self._frame = self._frame, frame
        if outer is not frame:
            frame.caller = outer, outer.eqn
        for var in known:
            frame.note_first(var)
        for eqn in frame.jaxpr.eqns:
            frame.eqn = eqn
            facts, results = frame.facts[id(eqn)]
            operands = [frame.known_of(atom) for atom in eqn.invars]
            found = self._results(frame, eqn, operands, facts, results)
            for var, one, fact in zip(eqn.outvars, found, results, strict=True):
                known[var] = restrict_known(one, fact)
                frame.note_first(var)
                for claim in self.claim_equations.get(var, ()):
                    known[var] = self._claimed(frame, claim, known[var])
            if eqn.primitive.name == CLAIM and not _jax.jaxpr.is_literal(eqn.invars[0]):
                known[eqn.invars[0]] = known[eqn.outvars[0]]
        self._frame = outer
        return [frame.known_of(atom) for atom in frame.jaxpr.outvars]

    def _claimed(self, frame: Frame, eqn: Any, known: Known) -> Known:
        """A value of which something is claimed: a sum that is said to be due, the name of a sharded dim."""
        claim, (_, results) = eqn.params["claim"], frame.facts[id(eqn)]
        found = dict(known.provenances)
        for axis, one in found.items():
            if claim is not None and axis in claim.layout.unreduced and one.kind not in ("sum", "mean"):
                found[axis] = self._new("sum", eqn)
            elif (
                claim is not None
                and axis in claim.layout.sharded
                and (one.kind in ("part", "mixed", "index", "opaque", "picked", "other") or one.eqn is None)
            ):
                subject = one.subject or claim.assertion.subject.phrase
                found[axis] = one._replace(kind="part", dim=claim.dim_name(axis) or one.dim, subject=subject)
        return restrict_known(known._replace(provenances=found), results[0])

    def _results(
        self, frame: Frame, eqn: Any, operands: list[Known], facts: list[ShardingFact], results: Sequence[ShardingFact]
    ) -> list[Known]:
        name = eqn.primitive.name
        if name == CLAIM:
            return [self._claimed(frame, eqn, operands[0])]
        if name in ("cond", "scan", "while"):
            return getattr(self, f"_{name}")(frame, eqn, operands, results)
        inner = frame.inner.get((id(eqn), id(_jax.jaxpr.called_jaxpr(eqn))))
        if inner is not None:
            return self._follow(inner, operands)
        if len(operands) > 1 and (name == "optimization_barrier" or _jax.jaxpr.collective_operation(eqn)):
            one_by_one = zip(operands, facts, results, strict=True)
            return [self._result(eqn, [known], [fact], result) for known, fact, result in one_by_one]
        return [self._result(eqn, operands, facts, result) for result in results]

    def _result(self, eqn: Any, operands: list[Known], facts: list[ShardingFact], result: ShardingFact) -> Known:
        """What is known of a result of an equation without jaxprs."""
        values, name = [known.value for known in operands], eqn.primitive.name
        value = values[0] if name in MOVING and len(values) == 1 else None
        if name == "div" and values[1] and values[0] is not None:
            value = values[0] / values[1]
        scale = self.scaling.of_result(eqn, operands)
        if _jax.jaxpr.collective_operation(eqn) in ("all-reduce", "reduce-scatter"):
            collective = _jax.source.collective_name(eqn).removesuffix("_scatter")
            for axis in _jax.jaxpr.named_axes(eqn, self.axes):
                one = operands[0].provenances.get(axis)
                if one is not None and one.late is None and collective == COLLECTIVES.get(one.kind):
                    self._collectives.setdefault((axis, one.at), self._frame.calls(eqn))
        axes = sorted(result.varying | result.unreduced)
        carried: Any = max((known.carried for known in operands), default="")  # open, of several
        if carried:  # where only this makes it vary, the next iteration knows more
            axes = [axis for axis in axes if any(axis in known.provenances for known in operands)]
            carried = carried if name in LINEAR | PRODUCTS else "open"
        by_axis = {axis: self._provenance(eqn, axis, operands, facts, result, scale.divisors) for axis in axes}
        if self._is_transposed(eqn):
            for axis, one in by_axis.items():
                if not any(axis in (dim.axes or ()) for dim in result.dims):
                    by_axis[axis] = self.scaling.of_gradient(one, axis, scale)
        if name == "div" and values[1]:
            self.scaling.note_division(eqn, values[1], dict(operands[0].provenances))
        return Known(by_axis, value, scale, carried)

    def _is_transposed(self, eqn: Any) -> bool:
        """Whether an equation, or one around it, is of the backward part of a gradient."""
        calls = (each for frame in self._frames[id(eqn)] for each, _ in frame.calls(eqn))
        return any(map(_jax.jaxpr.is_transposed, calls))

    def _cond(self, frame: Frame, eqn: Any, operands: list[Known], results: Sequence[ShardingFact]) -> list[Known]:
        jaxprs = map(_jax.jaxpr.open_jaxpr, eqn.params["branches"])
        taken = [self._follow(frame.inner[id(eqn), id(jaxpr)], operands[1:]) for jaxpr in jaxprs]
        return [self._chosen(eqn, operands[0], join_known(ways)) for ways in zip(*taken, strict=True)]

    def _chosen(self, eqn: Any, by: Known, known: Known) -> Known:
        """A value that is chosen by another: over an axis over which that one varies, nothing more is known."""
        chosen = {axis: self._new("choice", eqn) for axis in by.provenances}
        return known._replace(provenances={**known.provenances, **chosen})

    def _scan(self, frame: Frame, eqn: Any, operands: list[Known], results: Sequence[ShardingFact]) -> list[Known]:
        consts, carried = _jax.jaxpr.scan_counts(eqn.params)
        inner = frame.inner[id(eqn), id(_jax.jaxpr.open_jaxpr(eqn.params["jaxpr"]))]
        stacked, items = frame.facts[id(eqn)][0][consts + carried :], list[Known]()
        for fact, known in zip(stacked, operands[consts + carried :], strict=True):
            leading = {axis: known.provenances[axis] for axis in fact.dims[0].axes or () if axis in known.provenances}
            length = eqn.params["length"]
            item = {"kind": "item", "eqn": eqn, "calls": frame.calls(eqn), "size": length}
            taken = {axis: one._replace(**item) for axis, one in leading.items()}
            items.append(known._replace(provenances={**known.provenances, **taken}))
        fixed, carry = operands[:consts], operands[consts : consts + carried]
        found = self._loop(carry, lambda now: self._follow(inner, [*fixed, *now, *items]), carried)
        for at, fact in enumerate(results[carried:], carried):
            lead = fact.dims[0].axes or ()
            parts = {axis: one._replace(kind="part") for axis, one in found[at].provenances.items() if axis in lead}
            found[at] = found[at]._replace(provenances={**found[at].provenances, **parts})
        return found

    def _while(self, frame: Frame, eqn: Any, operands: list[Known], results: Sequence[ShardingFact]) -> list[Known]:
        conds, consts, carry = _jax.jaxpr.while_operands(eqn, operands)
        ends, body = (
            frame.inner[id(eqn), id(_jax.jaxpr.open_jaxpr(eqn.params[name]))] for name in ("cond_jaxpr", "body_jaxpr")
        )

        def iteration(now: list[Known]) -> list[Known]:
            (end,) = self._follow(ends, [*conds, *now])
            return [self._chosen(eqn, end, after) for after in self._follow(body, [*consts, *now])]

        return self._loop(carry, iteration, len(carry))

    def _loop(self, carry: list[Known], iteration: Callable[[list[Known]], list[Known]], carried: int) -> list[Known]:
        """What is known after a loop; what its carry adds up from nothing is due as each of its items is."""
        found, starts = list[Known](), ["neutral" if known.value in _NEUTRAL else "open" for known in carry]
        carry = [known._replace(value=None) for known in carry]
        for _ in range(_MOST_ITERATIONS):
            found = iteration([known._replace(carried=start) for known, start in zip(carry, starts, strict=True)])
            after = [join_known(ways) for ways in zip(carry, found, strict=False)]
            is_same = [one.provenances.keys() for one in after] == [one.provenances.keys() for one in carry]
            carry = after
            if is_same:
                break
        return [*carry, *found[carried:]]

    def _provenance(
        self,
        eqn: Any,
        axis: str,
        operands: list[Known],
        facts: list[ShardingFact],
        result: ShardingFact,
        divisors: Sequence[Divisor],
    ) -> Provenance:
        """Since when the result of an equation varies over an axis."""
        name, is_part = eqn.primitive.name, any(axis in (dim.axes or ()) for dim in result.dims)
        found = {at: known.provenances[axis] for at, known in enumerate(operands) if axis in known.provenances}
        if self.interpreter.rules[name] is default_rule and "call" in name:  # pallas_call, pure_callback
            return self._new("opaque", eqn)
        if name == "axis_index":
            return self._new("index", eqn)
        if not found or axis in _jax.jaxpr.named_axes(eqn, self.axes):
            whose = operands[0].provenances.get(axis) if name == "ppermute" and is_part else None
            named: dict[str, Any] = {"dim": whose.dim, "subject": whose.subject} if whose is not None else {}
            return self._new("part" if is_part else "other", eqn, **named)
        if name == "select_n" and self._is_mask(axis, operands):
            return self._new("masked", eqn)
        masked = {at: one for at, one in found.items() if one.kind == "masked"}
        if masked and name in PLACING and found.keys() - masked == {1}:  # a shard knows where it puts its own
            found = masked
        parts = {at: one for at, one in found.items() if one.kind in UNREDUCED}
        reduced = [one for one in found.values() if one.kind not in UNREDUCED]
        if parts and all(one.kind == "index" for one in reduced):  # beside its part a shard knows which one that is
            found, reduced = parts, []
        if not reduced:
            made = found[min(found)] if is_part else self._of_part(eqn, axis, found, facts, result)
            return self.scaling.of_sum(made, axis, divisors)
        final = [one for one in reduced if one.kind in _FINAL]
        first = min(final or reduced, key=lambda one: (one.at, one.late is None))
        if final or first.late is not None or first.astray is not None:
            return first
        if first.kind == "item":
            return self.scaling.of_sum(self._of_item(eqn, first, found, operands), axis, divisors)
        if _jax.jaxpr.collective_operation(eqn) == "all-reduce":
            is_due = all(
                over in operands[0].provenances and operands[0].provenances[over].kind not in UNREDUCED
                for over in _jax.jaxpr.named_axes(eqn, self.axes)
            )
            return first if is_due else first._replace(astray=self._frame.calls(eqn))
        if not commutes(eqn, first.kind, found, operands):
            self._first_late.setdefault((axis, first.at), self._frame.calls(eqn))
            return first._replace(late=self._frame.calls(eqn))
        if name == "reduce_sum":
            first = first._replace(others=(*first.others, *sizes_of(eqn, 0, eqn.params["axes"])))
        before = operands[min(found)].scale.divisors
        return self.scaling.of_sum(first, axis, [one for one in divisors if one not in before])

    def _of_part(
        self, eqn: Any, axis: str, found: Mapping[int, Provenance], facts: list[ShardingFact], result: ShardingFact
    ) -> Provenance:
        """What an equation makes of a part, whose sharded dim is not among those of the result."""
        name, params = eqn.primitive.name, eqn.params
        at = next((at for at in found if any(axis in (dim.axes or ()) for dim in facts[at].dims)), min(found))
        one, shape = found[at], eqn.invars[at].aval.shape
        place = next((place for place, dim in enumerate(facts[at].dims) if axis in (dim.axes or ())), one.position)
        if place is not None:
            one = one._replace(size=shape[place])
        reduced: Sequence[int] = ()
        if name == "reduce_sum" or name in _EXTREMES:
            reduced = params["axes"]
        elif name == "dot_general":
            reduced = params["dimension_numbers"][0][at]
        elif name.startswith("ragged_dot"):
            reduced = params["ragged_dot_dimension_numbers"].dot_dimension_numbers[0][at]
        elif name == "conv_general_dilated":
            numbers = params["dimension_numbers"]
            reduced = ((numbers.lhs_spec, numbers.rhs_spec)[at][1],)
        unclear = {dim for dim, fact in enumerate(facts[at].dims) if fact.axes is None}
        if (place in reduced) if place is not None else (unclear and unclear.issubset(reduced)):
            others = sizes_of(eqn, at, [dim for dim in reduced if dim != place])
            if place is None:  # of what is mixed
                others = (prod(others) // (one.size or 1),)
            what: dict[str, Any] = {"dim": one.dim, "subject": one.subject, "size": one.size, "others": others}
            is_sent = place is not None and place < len(facts[at].dims) and facts[at].dims[place].is_sent
            return self._new("ring" if is_sent else _EXTREMES.get(name, "sum"), eqn, **what)
        position = position_after(eqn, at, place) if place is not None else None
        is_same_shape = eqn.outvars[0].aval.shape == shape and name not in MIXING
        if position is not None or is_same_shape or name in ONE_TO_ONE:
            one = one if one.eqn is not None else one._replace(eqn=eqn, calls=self._frame.calls(eqn))
            return one._replace(kind="mixed", position=position)
        return self._new("picked", eqn, dim=one.dim, subject=one.subject)

    def _is_mask(self, axis: str, operands: list[Known]) -> bool:
        """Whether a shard keeps what it has by its own index, and has zeros elsewhere, as in a sharded table."""
        by, *cases = operands
        taken = [known for known in cases if known.value != 0]
        kinds = {known.provenances[axis].kind for known in taken if axis in known.provenances}
        is_by_index = axis in by.provenances and by.provenances[axis].kind == "index"
        return is_by_index and len(taken) < len(cases) and kinds <= {"index", "picked", "masked"}

    def _of_item(
        self, eqn: Any, item: Provenance, found: Mapping[int, Provenance], operands: list[Known]
    ) -> Provenance:
        """What an equation makes of an item of a sharded dim: a sum over the dim, where a loop adds it up."""
        name = eqn.primitive.name
        made = next((one for one in found.values() if one.eqn is item.eqn and one.kind != "item"), None)
        if made is not None or any(known.carried == "neutral" for known in operands):
            kind = {"max": "maximum", "min": "minimum", "add": "sum", "add_any": "sum"}.get(name, "other")
            what: dict[str, Any] = {"dim": item.dim, "subject": item.subject, "size": item.size}
            return made or self._new(kind, item.eqn if kind != "other" else eqn, **what)
        return item if all(one.kind in ("item", *UNREDUCED) for one in found.values()) else self._new("other", eqn)


def _written(calls: Sequence[tuple[Any, Any]] | None) -> Any:
    """Of an equation and those around it the innermost that the user wrote; those of a library's jaxprs are not."""
    return next((eqn for eqn, jaxpr in calls if _jax.source.is_written_in(eqn, jaxpr)), calls[0][0]) if calls else None
