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
from ..errors.phrases import quoted_axes
from ..errors.varying import Cause
from .interpreter import CLAIM, Interpreter, default_rule
from .lattice import ShardingFact
from .provenance import Frame, Known, Provenance, Recorder, Recount, join_known, restrict_known

NameDim = Callable[[int, str], "tuple[str, str]"]
"""What hints call the dim of a body's argument that is sharded over an axis, and the argument."""

_ONE_TO_ONE = frozenset(
    ["broadcast_in_dim", "convert_element_type", "copy", "pvary", "reshape", "rev", "squeeze", "transpose"]
)
_MOVING = _ONE_TO_ONE | frozenset(
    ["all_gather", "copy_p", "expand_dims", "name", "optimization_barrier", "preduced", "reduce_precision"]
).union(["reduced_vary_cast", "slice", "split", "stop_gradient"])
_UNREDUCED = ("part", "mixed")
_LINEAR = _MOVING | frozenset(["neg", "reduce_sum", "real", "imag", "conj", "cumsum", "vary_unreduced_cast"])
_PRODUCTS = frozenset(["mul", "dot_general", "conv_general_dilated"])
_SCALING = frozenset(["div", "add", "add_any", "sub", "select_n"])
_PICKING = frozenset(["dynamic_slice", "gather"])
_PLACING = frozenset(["gather", "scatter", "scatter-add", "scatter_add"])
_MIXING = frozenset(["sort", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "fft"])
_EXTREMES = {"reduce_max": "maximum", "reduce_min": "minimum"}
# Which operands an operation adds, or puts side by side.
_JOINED: Mapping[str, Callable[[int], bool]] = {
    **dict.fromkeys(("add", "add_any", "sub", "concatenate", "stack", "pad"), lambda at: True),
    "select_n": lambda at: at > 0,
    "dynamic_update_slice": lambda at: at < 2,
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add"), lambda at: at in (0, 2)),
}
_SCALED = _LINEAR | _PRODUCTS | _SCALING | _PICKING | _PLACING | frozenset(_JOINED)
_ADDING = frozenset(["add", "add_any", "sub"])
_FINAL = frozenset(["index", "opaque", "choice", "ring", "picked", "other"])
_MEANS = frozenset(["mean", "nanmean", "average", "_mean"])
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
        # By axis, place and number: "mean" where a sum is divided by the number of a shard's
        # elements, "unclear" where it may be.
        self._divisions: dict[tuple[str, str, float], str] = {}
        # By axis and number of a provenance: the first operation before which a collective has to be.
        self._first_late: dict[tuple[str, int], Any] = {}
        # Those that make right what varies, by the same.
        self._collectives: dict[tuple[str, int], Any] = {}
        given: list[Known] = []
        for at, fact in enumerate(facts, -len(facts)):
            axes = sorted(fact.varying | fact.unreduced)
            given.append(Known({axis: self._argument(at, axis, fact, name_dim) for axis in axes}))
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

    def mean_of_gradient(self, eqn: Any, axis: str, at: int) -> tuple[str, list[str]] | None:
        """Where the mean of a shard's part is, if an operand of an equation is its gradient, and the axes of the part.

        A gradient that is divided otherwise, as by hand or by a pmean, may be right, unless it was summed as often.
        """
        for frame in self._frames.get(id(eqn), ()):
            known = frame.known_of(eqn.invars[at])
            one = known.provenances.get(axis)
            if one is None or one.kind not in ("sum", "mean"):
                continue
            own, recounts = self._own_means(known.divisors), sum(axis in axes for _, axes in known.recounts)
            if one.kind == "sum" and axis not in [each for _, each in own]:
                continue
            size, others = self.interpreter.sizes[axis], [number for number, by in known.divisors if not is_mean(by)]
            if sum(number % size == 0 for number in others) <= recounts:
                by = next((by for by, each in own if each == axis), None)
                place = _jax.source.equation_place(by) if by is not None else ""
                return place, [each for found, each in own if found is by and each != axis]
        return None

    def is_divided(self, eqn: Any, axis: str, at: int) -> bool:
        """Whether an operand of an equation was divided by the number of shards, or by a multiple of it.

        By hand, or with types by a pmean, whose sum has another gradient than without.
        """
        is_other = is_mean if self.interpreter.has_vma else is_of_mean
        known = [frame.known_of(eqn.invars[at]) for frame in self._frames.get(id(eqn), ())]
        numbers = [number for one in known for number, by in one.divisors if not is_other(by)]
        return any(number % self.interpreter.sizes[axis] == 0 for number in numbers)

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
        made, adds = one.made, one.late is not None and one.late[0][0].primitive.name in _ADDING
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
        value = values[0] if name in _MOVING and len(values) == 1 else None
        is_scaled = name in _SCALED or bool(_jax.jaxpr.collective_operation(eqn))
        divisors = [one for known in operands for one in known.divisors] if is_scaled else []
        reduced = _jax.jaxpr.named_axes(eqn, self.axes) if _jax.jaxpr.collective_operation(eqn) else ()
        recounts = [
            (by, left)
            for known in operands
            if is_scaled
            for by, axes in known.recounts
            if (left := tuple(axis for axis in axes if axis not in reduced))
        ]
        if name == "div" and values[1]:
            divisors.append((values[1], eqn))
            value = values[0] / values[1] if values[0] is not None else None
        elif name == "mul" and (factor := next((one for one in values if one and abs(one) < 1), None)):
            if not any(known.divisors for known in operands if known.value == factor):
                divisors.append((1 / factor, eqn))
        elif recounted := self._recounted_axes(eqn, operands):
            recounts.append((eqn, recounted))
        if _jax.jaxpr.collective_operation(eqn) in ("all-reduce", "reduce-scatter"):
            collective = _jax.source.collective_name(eqn).removesuffix("_scatter")
            for axis in _jax.jaxpr.named_axes(eqn, self.axes):
                one = operands[0].provenances.get(axis)
                if one is not None and one.late is None and collective == _COLLECTIVES.get(one.kind):
                    self._collectives.setdefault((axis, one.at), self._frame.calls(eqn))
        axes = sorted(result.varying | result.unreduced)
        carried: Any = max((known.carried for known in operands), default="")  # open, of several
        if carried:  # where only this makes it vary, the next iteration knows more
            axes = [axis for axis in axes if any(axis in known.provenances for known in operands)]
            carried = carried if name in _LINEAR | _PRODUCTS else "open"
        by_axis = {axis: self._provenance(eqn, axis, operands, facts, result, divisors) for axis in axes}
        mixed = frozenset[str]().union(*[known.mixed for known in operands]) if is_scaled else frozenset[str]()
        if self._is_transposed(eqn):
            mixed |= self._mixed_axes(operands) if name in _ADDING else frozenset()
            for axis, one in by_axis.items():
                if not any(axis in (dim.axes or ()) for dim in result.dims):
                    by_axis[axis] = self._of_gradient(one, axis, divisors, recounts, axis in mixed)
        if name == "div" and values[1] and not self._is_transposed(eqn):
            for axis in self.axes:
                one = operands[0].provenances.get(axis)
                if one is None or one.kind == "part":  # which no mean over its sharded dim is
                    self._divisions.setdefault((axis, _jax.source.equation_place(eqn), values[1]), "")
        return Known(by_axis, value, tuple(dict.fromkeys(divisors)), carried, tuple(dict.fromkeys(recounts)), mixed)

    def _is_transposed(self, eqn: Any) -> bool:
        return any(_jax.jaxpr.is_transposed(each) for each, _ in self._frame.calls(eqn))

    def _mixed_axes(self, operands: list[Known]) -> frozenset[str]:
        """The axes over which of gradients that are added some are of a shard's own mean, and others are not.

        Before they are summed over a shard's part; afterwards it shows.
        """
        if any(one.kind not in _UNREDUCED for known in operands for one in known.provenances.values()):
            return frozenset()
        means = [{axis for _, axis in self._own_means(known.divisors)} for known in operands if known.value != 0]
        return frozenset[str]().union(*means) - frozenset.intersection(*map(frozenset, means)) if means else frozenset()

    def _recounted_axes(self, eqn: Any, operands: list[Known]) -> tuple[str, ...]:
        """The axes over which differentiation, as without types, made a psum of what is the same on all shards."""
        is_sum = _jax.jaxpr.collective_operation(eqn) == "all-reduce" and _jax.jaxpr.is_transposed(eqn)
        if not is_sum or self.interpreter.has_vma:
            return ()
        return tuple(axis for axis in _jax.jaxpr.named_axes(eqn, self.axes) if axis not in operands[0].provenances)

    def _of_gradient(
        self,
        one: Provenance,
        axis: str,
        divisors: Sequence[tuple[float, Any]],
        recounts: Sequence[Recount],
        is_mixed: bool,
    ) -> Provenance:
        """A part of a gradient, which is not sharded over its axis.

        Without types a sum is differentiated as a sum. Of a loss that is reduced over the axis, each shard has so much
        of the gradient that their mean is due, whatever is between. Over other axes nothing takes the mean.
        """
        if any(axis in axes for _, axes in recounts):
            one = one._replace(kind="mean", divisor=None, late=None, astray=None)
        elif is_mixed and not self.interpreter.has_vma and one.kind in ("sum", "mean"):
            return one._replace(made="mixed")
        by_hand = [number for number, by in divisors if not is_of_mean(by)]
        for eqn, axes in recounts:
            others = tuple(other for other in axes if other != axis)
            shards = prod(self.interpreter.sizes[other] for other in others)
            if others and not any(number % shards == 0 for number in by_hand):
                return one._replace(recounted=(eqn, others))
        own = [] if self.interpreter.has_vma or by_hand else self._own_means(divisors)
        others = tuple(dict.fromkeys(other for _, other in own if other != axis))
        return one._replace(recounted=(own[0][0], others)) if others and one.kind == "mean" else one

    def _own_means(self, divisors: Sequence[tuple[float, Any]]) -> list[tuple[Any, str]]:
        """Of some divisions those that take a shard's own mean, each with an axis over which they do."""
        return [
            (by, axis)
            for number, by in divisors
            for axis in self.interpreter.sizes
            if self._divisions.get((axis, _jax.source.equation_place(by), number)) == "mean"
        ]

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
        divisors: list[tuple[float, Any]],
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
        if masked and name in _PLACING and found.keys() - masked == {1}:  # a shard knows where it puts its own
            found = masked
        parts = {at: one for at, one in found.items() if one.kind in _UNREDUCED}
        reduced = [one for one in found.values() if one.kind not in _UNREDUCED]
        if parts and all(one.kind == "index" for one in reduced):  # beside its part a shard knows which one that is
            found, reduced = parts, []
        if not reduced:
            made = found[min(found)] if is_part else self._of_part(eqn, axis, found, facts, result)
            return self._divided(made, axis, divisors)
        final = [one for one in reduced if one.kind in _FINAL]
        first = min(final or reduced, key=lambda one: (one.at, one.late is None))
        if final or first.late is not None or first.astray is not None:
            return first
        if first.kind == "item":
            return self._divided(self._of_item(eqn, first, found, operands), axis, divisors)
        if _jax.jaxpr.collective_operation(eqn) == "all-reduce":
            is_due = all(
                over in operands[0].provenances and operands[0].provenances[over].kind not in _UNREDUCED
                for over in _jax.jaxpr.named_axes(eqn, self.axes)
            )
            return first if is_due else first._replace(astray=self._frame.calls(eqn))
        if not _is_kept(eqn, first.kind, found, operands):
            self._first_late.setdefault((axis, first.at), self._frame.calls(eqn))
            return first._replace(late=self._frame.calls(eqn))
        if name == "reduce_sum":
            first = first._replace(others=(*first.others, *_sizes(eqn, 0, eqn.params["axes"])))
        before = operands[min(found)].divisors
        return self._divided(first, axis, [one for one in divisors if one not in before])

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
            others = _sizes(eqn, at, [dim for dim in reduced if dim != place])
            if place is None:  # of what is mixed
                others = (prod(others) // (one.size or 1),)
            what: dict[str, Any] = {"dim": one.dim, "subject": one.subject, "size": one.size, "others": others}
            is_sent = place is not None and place < len(facts[at].dims) and facts[at].dims[place].is_sent
            return self._new("ring" if is_sent else _EXTREMES.get(name, "sum"), eqn, **what)
        position = _position(eqn, at, place) if place is not None else None
        is_same_shape = eqn.outvars[0].aval.shape == shape and name not in _MIXING
        if position is not None or is_same_shape or name in _ONE_TO_ONE:
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
        return item if all(one.kind in ("item", *_UNREDUCED) for one in found.values()) else self._new("other", eqn)

    def _divided(self, one: Provenance, axis: str, divisors: Sequence[tuple[float, Any]]) -> Provenance:
        """A sum that is divided: by the number of its elements it is a mean; and so is the gradient of a mean."""
        for number, by in divisors:
            if one.kind != "sum":
                return one
            key, functions = (axis, _jax.source.equation_place(by), number), _jax.source.library_functions(by)
            if "pmean" in functions:
                continue
            calls = (each for frame in self._frames[id(by)] for each, _ in frame.calls(by))
            if any(map(_jax.jaxpr.is_transposed, calls)):
                may_count = not one.size or number % one.size == 0  # where what is differentiated is left out
                unseen = "" if not may_count else "unclear" if _MEANS.isdisjoint(functions) else "mean"
                what = self._divisions.setdefault(key, unseen)
            elif not _MEANS.isdisjoint(functions):
                is_local = number == one.size * prod(one.others) and not _MEANS.isdisjoint(
                    _jax.source.library_functions(one.eqn)
                )
                what = self._divisions[key] = "mean" if is_local else ""
            else:
                is_count = one.size and number % (one.size * self.interpreter.sizes[axis]) == 0  # of all shards
                is_divisor = by.primitive.name == "div" and number >= 2 and number == round(number) and not is_count
                what = self._divisions[key] = "unclear" if is_divisor or number in one.counts else ""
            if what:
                one = one._replace(kind="mean") if what == "mean" else one._replace(divisor=(number, by))
        return one


def is_mean(by: Any) -> bool:
    """Whether an equation divides since the user took a mean."""
    return not _MEANS.isdisjoint(_jax.source.library_functions(by))


def is_of_mean(by: Any) -> bool:
    """Whether an equation divides since the user took a mean of elements or of shards."""
    return not _jax.source.library_functions(by).isdisjoint({*_MEANS, "pmean"})


def _written(calls: Sequence[tuple[Any, Any]] | None) -> Any:
    """Of an equation and those around it the innermost that the user wrote; those of a library's jaxprs are not."""
    return next((eqn for eqn, jaxpr in calls if _jax.source.is_written_in(eqn, jaxpr)), calls[0][0]) if calls else None


def _position(eqn: Any, at: int, position: int) -> int | None:
    """Where a dim of an operand is among those of the result; None where that is not known."""
    name, params, shape = eqn.primitive.name, eqn.params, eqn.invars[at].aval.shape
    gone = params.get("axes", params.get("dimensions", ())) if name.startswith("reduce_") or name == "squeeze" else ()
    if gone:
        return None if position in gone else position - sum(dim < position for dim in gone)
    if name == "transpose":
        return params["permutation"].index(position)
    if name == "broadcast_in_dim":
        return params["broadcast_dimensions"][position]
    if name == "dot_general":
        contracted, batched = params["dimension_numbers"]
        if position in batched[at]:
            return batched[at].index(position)
        free = [dim for dim in range(len(shape)) if dim not in (*contracted[at], *batched[at])]
        before = 0 if at == 0 else eqn.outvars[0].aval.ndim - len(free) - len(batched[0])
        return len(batched[0]) + before + free.index(position)
    return position if eqn.outvars[0].aval.shape == shape and name not in _MIXING else None


def _is_kept(eqn: Any, kind: str, found: Mapping[int, Provenance], operands: list[Known]) -> bool:
    """Whether a collective may as well be after an equation as before it."""
    name, is_linear = eqn.primitive.name, kind in ("sum", "mean", "masked")
    if any(one.kind != kind or one.late is not None for one in found.values()):
        return False
    if name in _MOVING or (name in _PICKING and set(found) == {0}):
        return True
    if not is_linear:
        return name in {"maximum": ("max", "reduce_max"), "minimum": ("min", "reduce_min")}[kind]
    if name in _LINEAR:
        return True
    if name in _PRODUCTS or name == "div":
        return len(found) == 1 and (name != "div" or 0 in found)
    if name not in _JOINED:
        return False
    joined = [at for at in range(len(operands)) if _JOINED[name](at)]
    others = [operands[at] for at in joined if at not in found]
    is_shift = kind == "mean" and name in ("add", "add_any", "sub")
    return set(found) <= set(joined) and (is_shift or all(one.value == 0 or one.carried == "neutral" for one in others))


def _sizes(eqn: Any, at: int, dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(eqn.invars[at].aval.shape[dim] for dim in dims)


_OPERATIONS = {
    **dict.fromkeys(("dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"), "contraction"),
    **dict.fromkeys(("reduce_sum", "scan"), "sum"),
}
_NAMES = {"gather": "lookup", "reduce_or": "any", "reduce_and": "all", "reduce_prod": "product"}
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_COLLECTIVES = {"sum": "psum", "masked": "psum", "mean": "pmean", "maximum": "pmax", "minimum": "pmin"}


def find_cause(axes: Sequence[str], provenance: Callable[[str], Provenance | None]) -> Cause | None:
    """Since when a value varies over the first of some axes, with the others over which it does so since then."""
    every = {axis: one for axis in axes if (one := provenance(axis)) is not None}
    found = {axis: one for axis, one in every.items() if one.kind != "other" or one.eqn is not None}
    one = next(iter(found.values()), None)
    if one is None:
        return None
    shared = tuple(axis for axis, other in found.items() if _origin(other) == _origin(one))
    more: dict[str, tuple[str, ...]] = {}
    for axis in shared:
        if (dim := found[axis].dim) != one.dim and dim and one.dim:
            more[dim] = (*more.get(dim, ()), axis)
    what, place = _operation(one.eqn), one.place
    if one.kind in ("mean", "maximum", "minimum"):
        what = one.kind
    if one.kind == "item":
        what = _jax.source.called_function(one.eqn)
    if one.gradient and one.kind in ("sum", "mean"):
        what, place = "gradient", one.gradient
    late = _operation_at(one.late)
    return Cause(
        one.kind,
        shared,
        what,
        place,
        dim=one.dim,
        more_dims=tuple(more.items()),
        subject=one.subject,
        collective=_COLLECTIVES.get(one.kind, ""),
        late=late,
        within=_jax.source.called_function(one.late) if late and late == _operation_at(one.eqn) else "",
        divisor="" if one.divisor is None else f"{one.divisor[0]:g} at {_line(one.divisor[1])}",
        astray=_operation_at(one.astray),
        follows=_operation_at(one.follows),
        untyped=one.untyped.partition(" ")[0] if _COLLECTIVES.get(one.kind, "psum") == "psum" else "",
        inside=one.inside.partition(" ")[0] if one.kind == "mean" or one.divisor is not None else "",
        recounted=_recounted_by(one, axes),
        made=one.made,
    )


def _recounted_by(one: Provenance, axes: Sequence[str]) -> str:
    """Why a gradient that is due over some axes is wrong over others."""
    if one.recounted is None or not set(axes).isdisjoint(one.recounted[1]):
        return ""
    eqn, over = one.recounted[0], quoted_axes(one.recounted[1])
    if not _jax.jaxpr.collective_operation(eqn):
        return f"the mean at {_line(eqn)} is each shard's own over {over}, too"
    return f"without check_vma=True JAX differentiates the sum over {over} at {_line(eqn)} as a sum"


def _origin(one: Provenance) -> tuple[Any, ...]:
    """Since when a value varies: since an equation, or as a dim of an argument does."""
    return (one.kind, one.eqn) if one.eqn is not None else (one.kind, one.dim, one.subject)


def _operation(eqn: Any) -> str:
    if eqn is None or "claim" in eqn.params:
        claim = None if eqn is None else eqn.params["claim"]
        return "pattern" if claim is not None and claim.assertion.subject.is_pattern else "hint"
    name = _jax.source.called_function(eqn)
    return _OPERATIONS.get(eqn.primitive.name, _NAMES.get(name, name))


def _operation_at(eqn: Any) -> str:
    if eqn is None:
        return ""
    name = _jax.source.called_function(eqn)
    return f"{_SIGNS.get(name, name)} at {_line(eqn)}"


def _line(eqn: Any) -> str:
    return _jax.source.equation_place(eqn).partition(" ")[0]
