"""Which of the sums that operations lose are errors, which are suspects, and which are meant.

Losing a sum that a hint marks as due is an error. Of one that became due by a contraction or a sum over a sharded dim,
a shard's own may be meant: a statistic that the program combines itself, a mean of local losses, what a gradient makes.

Invariant: nothing of this runs unless the interpreter found a loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from math import isclose, prod
from typing import Any, NamedTuple

from .. import _jax
from ..errors.varying import LostSum, Suspect
from .causes import Causes
from .find_cause import find_cause
from .interpreter import CLAIM, Interpreter, Observation
from .scaling import is_of_any_mean
from .sums import LINEAR, SumLoss

# What undoes an operation: the shard's own is a step on the way to the sum.
_UNDONE_BY = {"log": ["exp"], "sqrt": ["square", "integer_pow", "mul"], "rsqrt": ["square", "integer_pow", "mul"]}
_REDUCING = frozenset(["dot_general", "conv_general_dilated", "reduce_sum", "reduce_max", "reduce_min", "gather"])
_FOLLOWED = LINEAR | {CLAIM}
_SIDE_BY_SIDE = frozenset(["concatenate", "stack", "scatter", "dynamic_update_slice"])
_BOUNDING = frozenset(["max", "min", "clamp", "add", "sub", "squeeze", "jit", "pjit"])
_UNCHANGED = frozenset(
    [CLAIM, "pvary", "convert_element_type", "broadcast_in_dim", "reshape", "copy", "copy_p", "name"]
)


class Verdict(NamedTuple):
    """A loss that is reported.

    Attributes:
      eqn: where it is in the user's program.
      failure: what is wrong.
      is_error: whether a hint says that the sum is due; else it is a suspect.
      asked: where it was asked for, if it is a gradient.
    """

    eqn: Any
    failure: Suspect
    is_error: bool
    asked: str = ""

    @property
    def place(self) -> str:
        """Where it is, as messages name it."""
        return self.asked or _jax.source.equation_place(self.eqn)


def judge_losses(
    interpreter: Interpreter, jaxpr: Any, losses: Sequence[Observation], causes: Callable[[], Causes]
) -> list[Verdict]:
    """The losses that are errors or suspects, once per place in the user's program.

    Args:
      causes: since when the values of the jaxpr vary.
    """
    written = [each for each in losses if not _jax.jaxpr.is_transposed(each.eqn)]
    if not written:
        return []
    flow, found = Flow(jaxpr, interpreter), dict[str, tuple[Any, LostSum, bool]]()
    for eqn, lost, fact in ((each.eqn, each.lost, each.fact) for each in written if not flow.is_transposed(each.eqn)):
        assert lost is not None
        atoms = eqn.outvars if eqn.primitive.name == "cond" else [eqn.invars[lost.at]]
        ends = interpreter.taken if lost.how == "taken" else interpreter.began
        began = next(filter(None, (flow.origin(atom, ends, lost.axis) for atom in atoms)), None)
        is_error = began is not None if lost.how == "taken" else lost.axis in fact.unreduced
        is_made = began is not None and not is_error and flow.is_transposed(began)
        if is_made or (lost.how == "added" and flow.are_shares(eqn, lost)):
            continue
        if is_error or flow.is_suspect(eqn, lost, began):
            at, operation = flow.call_of(eqn, lost.axis, interpreter.began)
            place, axes = _jax.source.equation_place(at), (lost.axis,)
            if place in found:
                before, failure, _ = found[place]
                if before is not at or failure.how != lost.how or lost.axis in failure.axes:
                    continue
                axes = (*failure.axes, lost.axis)
            begin = flow.call_of(began)[0] if began is not None else None
            since = _jax.source.equation_place(begin) if begin is not None else ""
            shards = prod(interpreter.sizes[axis] for axis in axes)
            cause = find_cause(axes, partial(causes().of_operand, eqn, at=lost.at)) if lost.how != "taken" else None
            if cause is not None and begin is at:
                cause = cause._replace(within=operation)
            varying = tuple(axis for axis in interpreter.sizes if axis in fact.varying | fact.unreduced or axis in axes)
            divides = flow.quotient(eqn.outvars, lost.axis, causes) if lost.how in ("nonlinear", "added") else ""
            failure = LostSum(operation, lost.how, axes, shards, since, not is_error, cause, varying, divides)
            found[place] = at, failure, is_error
    return [Verdict(*each) for each in found.values()]


class Flow:
    """Which values of a body are computed from which, through its calls, branches and loops."""

    def __init__(self, jaxpr: Any, interpreter: Interpreter) -> None:
        self.sizes, self.axes, self.has_vma = interpreter.sizes, interpreter.axes, interpreter.has_vma
        self.claim_equations = interpreter.claim_equations
        self.made_by: dict[Any, Any] = {}
        self.uses: dict[Any, list[Any]] = defaultdict(list)
        # The same value in a jaxpr and in one that it runs, or in one iteration of a loop and in the next.
        self.onward: dict[Any, list[Any]] = defaultdict(list)
        self.back: dict[Any, list[Any]] = defaultdict(list)
        self.arguments = set(_jax.jaxpr.open_jaxpr(jaxpr).invars)
        self.results = list(_jax.jaxpr.open_jaxpr(jaxpr).outvars)
        self.within: dict[int, Any] = {}
        self.callers: dict[int, list[Any]] = defaultdict(list)
        self._index(_jax.jaxpr.open_jaxpr(jaxpr))

    def _index(self, jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            self.within[id(eqn)], inner = jaxpr, _jax.jaxpr.inner_jaxprs(eqn)
            for each in inner:
                self.callers[id(each)].append(eqn)
                self._link(zip(reversed(eqn.invars), reversed(each.invars), strict=False))
                if len(each.outvars) == len(eqn.outvars):
                    self._link(zip(each.outvars, eqn.outvars, strict=True))
                    if eqn.primitive.name == "while":
                        self._link(zip(reversed(each.outvars), reversed(each.invars), strict=False))
                    elif eqn.primitive.name == "scan":
                        consts, carried = _jax.jaxpr.scan_counts(eqn.params)
                        self._link(zip(each.outvars[:carried], each.invars[consts : consts + carried], strict=True))
                if len(self.callers[id(each)]) == 1:
                    self._index(each)
            if not inner:
                self.made_by.update(dict.fromkeys(eqn.outvars, eqn))
                for atom in eqn.invars:
                    if not _jax.jaxpr.is_literal(atom):
                        self.uses[atom].append(eqn)

    def _link(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        for before, after in pairs:
            if not _jax.jaxpr.is_literal(before):
                self.onward[before].append(after)
                self.back[after].append(before)

    def _ancestors(self, atom: Any, is_followed: Container[str] | None = None, axis: str = "") -> Iterator[Any]:
        """A value and those that it was computed from, nearest first.

        Args:
          is_followed: by which operations; by default all.
          axis: an axis; by collectives over others, too.
        """
        waiting, seen = [atom], set[Any]()
        for at in waiting:
            if _jax.jaxpr.is_literal(at) or at in seen:
                continue
            seen.add(at)
            yield at
            eqn = self.made_by.get(at)
            if eqn is not None:
                is_over_others = bool(
                    axis and _jax.jaxpr.collective_operation(eqn) and not self.is_collective(eqn, axis)
                )
                if is_followed is None or eqn.primitive.name in is_followed or is_over_others:
                    waiting += eqn.invars
            waiting += self.back[at]

    def _makers(self, atom: Any, is_followed: Container[str] | None = None, axis: str = "") -> Iterator[Any]:
        """The equations that made a value and those that it was computed from; arguments as for `_ancestors`."""
        return filter(None, map(self.made_by.get, self._ancestors(atom, is_followed, axis)))

    def origin(self, atom: Any, began: dict[Any, Any], axis: str) -> Any:
        """The equation at which the sum over an axis that is due of a value became due, or at which it was taken."""
        found = (began.get((each, axis)) for each in self._ancestors(atom, _FOLLOWED, axis))
        return next((eqn for eqn in found if eqn is not None), None)

    def fates(self, variables: Iterable[Any], axis: str, barrier: Any = None) -> set[str]:
        """What becomes of values: ``sum`` or ``mean`` over an axis of what is linear in them, ``combined`` otherwise.

        Operations that follow a linear chain from them are named, too.

        Args:
          barrier: an equation that counts as one that is not linear.
        """
        found, waiting = set[str](), [(variable, True) for variable in variables]
        seen, descendants = set(waiting), set(self._descendants(variables, axis))
        for at, is_linear in waiting:
            after = [(each, is_linear) for each in self.onward[at]]
            for eqn in self.uses[at]:
                name = eqn.primitive.name
                if self.is_collective(eqn, axis):
                    is_sum = "psum" in name or "scatter" in name
                    taken = ("mean" if self.is_divided(eqn.outvars, axis) else "sum") if is_linear else ""
                    found.add(taken if is_sum else "combined")
                elif is_linear and eqn is not barrier and name in _FOLLOWED and self._is_alone(at, eqn, descendants):
                    after += [(each, True) for each in eqn.outvars]
                elif name not in _REDUCING:
                    found.add(name if is_linear and eqn is not barrier else "")
                    after += [(each, False) for each in eqn.outvars]
            waiting += [each for each in after if each not in seen]
            seen.update(after)
        return found

    def linear_uses(
        self, variables: Iterable[Any], axis: str, followed: Container[str] = LINEAR
    ) -> Mapping[Any, Sequence[Any]]:
        """The equations that use some values, and each that operations make of them, up to a collective over the axis.

        Args:
          followed: which operations.
        """
        found, waiting = dict[Any, Sequence[Any]](), list(variables)
        for at in waiting:
            if at not in found:
                found[at] = self.uses[at]
                waiting += self.onward[at]
                for eqn in found[at]:
                    is_followed = eqn.primitive.name in followed or _jax.jaxpr.collective_operation(eqn)
                    if is_followed and not self.is_collective(eqn, axis):
                        waiting += eqn.outvars
        return found

    def is_used(self, variable: Any) -> bool:
        """Whether anything is computed from a value, or it is a result."""
        return bool(self.uses.get(variable) or self.onward.get(variable)) or variable in self.results

    def is_shared_out(self, variables: Iterable[Any], axis: str) -> bool:
        """Whether what is linear in values is divided by the number of shards, up to a collective over the axis."""
        uses = self.linear_uses(variables, axis).values()
        return any(
            self.counts_shards(self.divisor(eqn), axis) and not is_of_any_mean(eqn) for some in uses for eqn in some
        )

    def quotient(self, variables: Iterable[Any], axis: str, causes: Callable[[], Causes]) -> str:
        """Where values, or what is nearly they, divide a sum that is due over the axis; empty if they do not."""
        for variable, some in self.linear_uses(variables, axis, _UNCHANGED | _BOUNDING).items():
            for eqn in some:
                if eqn.primitive.name == "div" and eqn.invars[1] is variable:
                    terms = [facts[0] for facts in causes().facts_of(eqn)]
                    if any(axis in fact.due | fact.unreduced for fact in terms):
                        return _jax.source.equation_place(self.call_of(eqn)[0]).partition(" ")[0]
        return ""

    def _descendants(self, variables: Iterable[Any], axis: str) -> Iterator[Any]:
        """Values and those that are computed from them, up to a collective over the axis."""
        waiting, seen = list(variables), set[Any]()
        for at in waiting:
            if at not in seen:
                seen.add(at)
                yield at
                waiting += self.onward[at]
                for eqn in self.uses[at]:
                    waiting += [] if self.is_collective(eqn, axis) else eqn.outvars

    def _is_alone(self, variable: Any, eqn: Any, among: Container[Any]) -> bool:
        """Whether of the operands of an equation only one is among some values."""
        found = [each for each in eqn.invars if not _jax.jaxpr.is_literal(each) and each in among]
        return len(found) == 1 and found[0] is variable

    def is_collective(self, eqn: Any, axis: str) -> bool:
        return bool(_jax.jaxpr.collective_operation(eqn)) and axis in _jax.jaxpr.named_axes(eqn, self.axes)

    def is_transposed(self, eqn: Any) -> bool:
        """Whether an equation, or a call around it, is of the backward part of a gradient."""
        if _jax.jaxpr.is_transposed(eqn):
            return True
        callers = self.callers[id(self.within[id(eqn)])] if id(eqn) in self.within else []
        return bool(callers) and all(map(self.is_transposed, callers))

    def call_of(self, eqn: Any, axis: str = "", began: Any = None) -> tuple[Any, str]:
        """The equation that the user wrote, of one in a library's own jaxpr the call of that, and its name."""
        if id(eqn) not in self.within:  # a claim that is kept beside the jaxpr
            return eqn, ""
        name = eqn.primitive.name.removesuffix("_invariant")
        while not _jax.source.is_written_in(eqn, jaxpr := self.within[id(eqn)]) and self.callers[id(jaxpr)]:
            calls, name = self.callers[id(jaxpr)], _jax.source.public_name(jaxpr) or name
            given = (each for each in calls if any(self.origin(atom, began or {}, axis) for atom in each.invars))
            eqn = next(given, calls[0])
        return eqn, name

    def is_suspect(self, eqn: Any, lost: SumLoss, began: Any) -> bool:
        """Whether a loss is one that a program hardly means.

        It does where it takes a sum elsewhere, or combines what the shards have by itself; where a hint says by ``~``
        that each shard has its own; where a mean is taken of what something was added to; and of a sum over equal
        shards, where it divides by their number.
        """
        if lost.how == "taken":
            atom = eqn.invars[lost.at]
            elements = self._summed_elements(atom)
            is_meant = self.is_divided(eqn.outvars, lost.axis, elements) or self._is_part(atom, lost.axis)
            return not (is_meant or self._is_gradient(atom, lost.axis) or self._is_constant(atom))
        if self._is_own(self.call_of(eqn)[0].outvars, lost.axis):
            return False
        fates = self.fates(eqn.outvars, lost.axis)
        is_undone = not fates.isdisjoint(_UNDONE_BY.get(eqn.primitive.name, ()))
        elsewhere = self.fates(began.outvars, lost.axis, eqn) if began is not None else set[str]()
        if is_undone or not elsewhere.isdisjoint(["sum", "mean", "combined"]):
            return False
        return lost.how != "added" or ("sum" in fates and not self.is_shared_out(eqn.outvars, lost.axis))

    def _is_own(self, variables: Iterable[Any], axis: str) -> bool:
        """Whether a hint says of values that their shards may differ over an axis."""
        copies = [each for variable in variables for each in self._copies(variable)]
        stated = [claim for each in copies for claim in (*self.uses[each], *self.claim_equations.get(each, ()))]
        return any(axis in eqn.params["claim"].layout.varying for eqn in stated if eqn.params.get("claim") is not None)

    def _is_constant(self, atom: Any) -> bool:
        """Whether a value depends neither on arguments of the body nor on a collective."""
        is_collective = any(map(_jax.jaxpr.collective_operation, self._makers(atom)))
        return not is_collective and self.arguments.isdisjoint(self._ancestors(atom))

    def is_divided(self, variables: Iterable[Any], axis: str, elements: int = 1) -> bool:
        """Whether values are divided by the number of shards, or with another sum over them: a mean.

        Args:
          elements: how many elements of a shard are summed in them, so that the number may be that of all.
        """
        uses = (eqn for variable in variables for each in self._copies(variable) for eqn in self.uses[each])
        return self.is_shared_out(variables, axis) or any(
            self._counts_all(self.divisor(eqn), axis, elements)
            or (eqn.primitive.name == "div" and self._number(eqn.invars[1]) is None)
            for eqn in uses
        )

    def _counts_all(self, number: int, axis: str, elements: int) -> bool:
        """Whether a number is that of the shards of an axis, or of the elements of a shard on all of them."""
        of_all = elements > 1 and number > 0 and number % (elements * self.sizes[axis]) == 0
        return of_all or self.counts_shards(number, axis)

    def are_shares(self, eqn: Any, lost: SumLoss) -> bool:
        """Whether what is added to a sum was divided by the number of shards, or multiplied by that of the elements."""
        if eqn.primitive.name in _SIDE_BY_SIDE:  # a count, beside a sum
            return all(self._is_constant(atom) for at, atom in enumerate(eqn.invars) if at != lost.at)
        elements = self._summed_elements(eqn.invars[lost.at])
        others = (atom for at, atom in enumerate(eqn.invars) if at != lost.at)
        makers = [each for atom in others for each in self._makers(atom, _UNCHANGED)]
        is_per_element = elements > 1 and any(
            each.primitive.name == "mul" and elements in map(self._number, each.invars) for each in makers
        )
        return is_per_element or any(self.counts_shards(self.divisor(each), lost.axis) for each in makers)

    def _is_gradient(self, atom: Any, axis: str) -> bool:
        """Whether a value is a shard's addend of a gradient, as it is for JAX where values are not typed."""
        return not self.has_vma and self.is_of_gradient(atom, axis)

    def is_of_gradient(self, atom: Any, axis: str) -> bool:
        """Whether a value is linear in what the backward part of a gradient made."""
        return any(map(self.is_transposed, self._makers(atom, _FOLLOWED, axis)))

    def _is_part(self, atom: Any, axis: str) -> bool:
        """Whether a value was divided by the number of shards, and not only by that of elements that were summed."""
        for eqn in self._makers(atom, _FOLLOWED):
            divisor = self.divisor(eqn)
            elements = max(map(self._summed_elements, eqn.invars)) if divisor else 1
            if divisor and not self._is_mean(eqn, axis) and self._counts_all(divisor, axis, elements):
                return True
        return False

    def _is_mean(self, eqn: Any, axis: str) -> bool:
        """Whether what an equation divides or scales is a sum over an axis."""
        makers = (each for atom in eqn.invars for each in self._makers(atom, _UNCHANGED))
        return any(self.is_collective(each, axis) for each in makers)

    def _summed_elements(self, atom: Any) -> int:
        """How many elements of a shard a value is the sum of."""
        sums = (eqn for eqn in self._makers(atom, _FOLLOWED) if eqn.primitive.name == "reduce_sum")
        return prod(eqn.invars[0].aval.shape[at] for eqn in sums for at in eqn.params["axes"])

    def divisor(self, eqn: Any) -> int:
        """The number that an equation divides a value by, by a product, too; 0 if it is none, or not whole."""
        if eqn.primitive.name == "div":
            number = self._number(eqn.invars[1])
        elif eqn.primitive.name == "mul":
            factor = next(filter(None, map(self._number, eqn.invars)), None)
            number = 1 / factor if factor else None
        else:
            number = None
        return round(number) if number and number > 1 and isclose(number, round(number), rel_tol=1e-6) else 0

    def counts_shards(self, number: int, axis: str) -> bool:
        """Whether a number is that of the shards of an axis, or of this one and others."""
        others = [size for other, size in self.sizes.items() if other != axis]
        groups = (group for count in range(len(others) + 1) for group in combinations(others, count))
        return any(number == self.sizes[axis] * prod(group) for group in groups)

    def _copies(self, variable: Any) -> Iterator[Any]:
        """A value, and it again after operations that change none of its numbers."""
        waiting = [variable]
        for at in waiting:
            yield at
            waiting += [each for eqn in self.uses[at] if eqn.primitive.name in _UNCHANGED for each in eqn.outvars]

    def _number(self, atom: Any) -> float | None:
        """The number that a value is, if it is a constant in the text of the jaxpr."""
        while not _jax.jaxpr.is_literal(atom):
            eqn = self.made_by.get(atom)
            if eqn is None or eqn.primitive.name not in _UNCHANGED:
                return None
            atom = eqn.invars[0]
        try:
            return float(atom.val)
        except TypeError:
            return None
