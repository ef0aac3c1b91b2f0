"""What a region's values are of the whole: read from one trace, and from a second one where a verdict depends on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ... import _jax
from ..closures import closed_over_numbers, closed_over_sizes
from ..lattice import ShardingFact
from .judge import RIGHT, ResultVerdict, differs_along, judge
from .numbers import Numbers
from .reading import Reading, Unaligned
from .rules import RULES
from .value import NOT_KNOWN, SAME, Share

Retrace = Callable[[str, int], Any]
"""Traces a region's body with another size of a mesh axis, the global sizes being the same; None where that fails."""
Edits = Mapping[Any, Callable[..., Any]]
NameOfDim = Callable[[int, str], "tuple[str, str]"]


@dataclass(frozen=True)
class RegionReading:
    """A region as it was read over one axis.

    Attributes:
      reading: how.
      values: of the results that are judged, by their places among the results of the body; and of what is claimed of
        values, by the ids of the equations that claim it.
      verdicts: on these, but for what patterns claim.
      is_open: whether they may depend on numbers that the traces do not show.
      is_blind: whether they had to do without, since there is no second trace.
    """

    reading: Reading
    values: Mapping[int, Share]
    verdicts: Mapping[int, ResultVerdict]
    is_open: bool
    is_blind: bool = False

    def is_mapped(self, key: int) -> bool:
        """Whether ``jax.vmap`` maps over a dim of the value that is claimed something of."""
        claimed = (eqn for eqn, _, _ in self.reading.claimed if id(eqn) == key)
        return any(len(eqn.params["own"]) < len(eqn.invars[0].aval.shape) for eqn in claimed)

    @property
    def says(self) -> str:
        """The verdict on all of them."""
        says = {verdict.says for verdict in self.verdicts.values()}
        return "wrong" if "wrong" in says else "unknown" if "unknown" in says else "right"


class Kinds:
    """The values of one region.

    Args:
      body: its jaxpr.
      entering: what is known of its operands.
      results: by their places, the layouts of the results that are judged.
      sizes: the manual mesh axes.
      claims: the claims beside the jaxpr.
      name_dim: what hints call the sharded dim of an operand, counted from the last, and the argument.
      retrace: traces the body for another size of an axis.
      function: what was traced, which may close over sizes of the mesh.
      is_bound: whether the size of the dim of a result that is sharded over an axis is bound by an argument.
      is_thorough: whether a second trace is made wherever a number may matter, and not only before something is said.
    """

    def __init__(
        self,
        body: Any,
        entering: Sequence[ShardingFact],
        results: Mapping[int, Any],
        sizes: Mapping[str, int],
        claims: Mapping[Any, Any] | None = None,
        name_dim: NameOfDim = lambda at, axis: ("", ""),
        retrace: Retrace | None = None,
        is_thorough: bool = False,
        function: Any = None,
        is_bound: Callable[[int, str], bool] = lambda at, axis: False,
    ) -> None:
        self.body, self.entering, self.results, self.sizes = body, entering, results, sizes
        self.claims, self.retrace, self.is_thorough = claims or {}, retrace, is_thorough
        self.name_dim, self.function, self.is_bound = name_dim, function, is_bound
        self._found: dict[str, RegionReading] = {}
        self._first: dict[str, RegionReading] = {}
        self.key: Any = None
        self.cures: dict[Any, Any] = {}
        self._asked = 0
        self.seconds: dict[str, tuple[tuple[Any, ...], tuple[int, ...], bool]] = {}

    def over(self, axis: str) -> RegionReading:
        """The region over an axis, as well as it can be known."""
        if axis not in self._found:
            self._found[axis] = self._over(axis)
        return self._found[axis]

    def first(self, axis: str) -> RegionReading:
        """The region over an axis, as its own trace shows it."""
        if axis not in self._first:
            self._first[axis] = self.read(axis, (self.body,), (self.sizes[axis],), is_blind=self.retrace is None)
        return self._first[axis]

    def reading_of(self, axis: str, key: int) -> RegionReading:
        """The best reading over an axis that has a value: of what is claimed a second trace may know nothing."""
        found = self.over(axis)
        if key in found.values and not (self.claims and found.values[key].kind == "unknown"):
            return found
        return self.first(axis)  # with the claims beside its own trace

    def ask_for(self, key: int) -> None:
        """Judge what is claimed of a value by a pattern, too: the id of the equation."""
        if key not in self.results and key != self._asked:
            self._asked = key
            for known in (self._found, self._first, self.cures):
                known.clear()

    def variable(self, at: int) -> Any:
        """The variable of the body that is one of its results."""
        return _jax.jaxpr.open_jaxpr(self.body).outvars[at]

    def _over(self, axis: str) -> RegionReading:
        first = self.first(axis)
        if first.is_blind:
            return first
        if first.says != "wrong" and not first.is_open and not self.is_thorough:
            return first
        traces, sizes, is_own = self._second(axis)
        if len(traces) > 1:
            try:
                return self.read(axis, traces, sizes, is_own=is_own)
            except Unaligned:
                self.seconds[axis] = (self.body,), (self.sizes[axis],), True
        is_sure = first.says != "wrong" and not first.is_open
        return first if is_sure else self.read(axis, (self.body,), (self.sizes[axis],), is_blind=True)

    @property
    def unread(self) -> list[str]:
        """The axes over which it was read without degrees, though they may matter."""
        return [axis for axis, read in self._found.items() if read.is_blind]

    @property
    def held(self) -> list[str]:
        """The axes over which no verdict was reached, since the function closes over what may be their size."""
        return [axis for axis, read in self._found.items() if read.says == "unknown" and read.reading.numbers.is_held]

    @property
    def asks_closure(self) -> bool:
        """Whether its reading asked what the function closes over."""
        return not {"tied", "constants"}.isdisjoint(vars(self))

    @cached_property
    def _equations(self) -> list[Any]:
        return [*_jax.jaxpr.all_equations(self.body)]

    @property
    def length(self) -> int:
        """How many equations it has."""
        return len(self._equations)

    @cached_property
    def is_differentiated(self) -> bool:
        """Whether some of it was made by transposing."""
        return any(map(_jax.jaxpr.is_transposed, self._equations))

    def may_be_followed(self, eqn: Any) -> bool:
        """Whether backward equations may follow an equation: but for one of the body itself that has no tangent."""
        is_own = _jax.jaxpr.owner_of(eqn, [self.body]) is not None
        return not _jax.jaxpr.is_transposed(eqn) and not (is_own and not _jax.jaxpr.is_differentiated(eqn))

    @cached_property
    def tied(self) -> frozenset[str]:
        """The axes whose size the function may have from what it closes over."""
        return frozenset() if self.function is None else frozenset(closed_over_sizes(self.function, self.sizes))

    @cached_property
    def constants(self) -> frozenset[float]:
        """The numbers that the function closes over."""
        return frozenset() if self.function is None else closed_over_numbers(self.function)

    def _second(self, axis: str) -> tuple[tuple[Any, ...], tuple[int, ...], bool]:
        """The traces from which degrees are read, their sizes, and whether the first is the region's own."""
        if axis not in self.seconds:
            self.seconds[axis] = self._traced_again(axis)
        return self.seconds[axis]

    def _traced_again(self, axis: str) -> tuple[tuple[Any, ...], tuple[int, ...], bool]:
        own = self.sizes[axis]
        for size in self._other_sizes(axis) if self.retrace is not None else ():
            assert self.retrace is not None
            second = self.retrace(axis, size)
            if second is None:
                continue
            if _jax.jaxpr.aligned_equations(self.body, second) is not None:
                return (self.body, second), (own, size), True
            first = self.retrace(axis, own)  # of one that is differentiated, what is
            if first is None or _jax.jaxpr.aligned_equations(first, second) is None:
                continue
            if _takes_as_much(first, self.body):
                return (first, second), (own, size), False
        return (self.body,), (own,), True

    def _other_sizes(self, axis: str) -> list[int]:
        """Other sizes of an axis, over which the dims of the operands can be sharded."""
        own, lengths = self.sizes[axis], list[int]()
        for fact, var in zip(reversed(self.entering), reversed(_jax.jaxpr.open_jaxpr(self.body).invars), strict=False):
            lengths += [size for dim, size in zip(fact.dims, var.aval.shape, strict=False) if axis in (dim.axes or ())]
        wanted = [2 * own, 3 * own, *([own // 2] if own % 2 == 0 and own > 2 else []), own // 2 if own % 2 == 0 else 0]
        fitting = [size for size in wanted if size and all(length * own % size == 0 for length in lengths)]
        roomy = [size for size in fitting if all(length * own > size or length == 1 for length in lengths)]
        return list(dict.fromkeys([*roomy, *fitting]))[:2] or [2 * own]

    def read(
        self,
        axis: str,
        traces: Sequence[Any],
        sizes: Sequence[int],
        edits: Edits | None = None,
        is_own: bool = True,
        is_blind: bool = False,
        gathered: tuple[str, str] | None = None,
    ) -> RegionReading:
        """Read these traces.

        Args:
          axis: the mesh axis.
          traces: the traces.
          sizes: the sizes of the axis in them.
          edits: changes that are tried.
          is_own: whether the first trace is the region's own.
          is_blind: whether nothing is known of numbers that one trace does not show.
          gathered: the name of a dim, and of its argument, that is taken to be gathered before all else.

        Raises:
          Unaligned: where they do not have the same equations.
        """
        body = _jax.jaxpr.open_jaxpr(traces[0])
        entering = self.entering[max(0, len(self.entering) - len(body.invars)) :]
        given = [_entering(fact, axis, self.name_dim(at, axis)) for at, fact in enumerate(entering, -len(entering))]
        if gathered is not None:
            given = [SAME if value.name == gathered else value for value in given]
        given = [SAME] * (len(body.invars) - len(given)) + given
        pairs = [(value.dim, var.aval.shape) for value, var in zip(given, body.invars, strict=True)]
        rows = [shape[dim] for dim, shape in pairs if isinstance(dim, int)]
        is_tied = len(traces) > 1 and axis in self.tied
        numbers = Numbers(axis, sizes, self.sizes, rows, is_blind, is_tied, lambda: self.constants)
        places = [*self.results] if is_own else range(len(self.results))
        numbers.results = frozenset(
            body.outvars[place].aval.shape[dim]
            for place, layout in zip(places, self.results.values(), strict=True)
            if place < len(body.outvars) and (dim := layout.dim_of(axis)) is not None
        ) - {1}
        reading = Reading(axis, numbers, RULES, self.claims if is_own else None, edits)
        results = reading.read(traces[0], traces[-1], given)
        values, verdicts = dict[int, Share](), dict[int, ResultVerdict]()
        for (at, layout), place in zip(self.results.items(), places, strict=True):
            value, dim, verdict = results[place] if place < len(results) else NOT_KNOWN, layout.dim_of(axis), RIGHT
            if edits and ("result", at) in edits:
                value = edits["result", at](reading, value)
            if axis not in layout.varying:
                verdict = judge(reading, value, dim, axis in layout.unreduced)
                if verdict.kind == "copies" and self.is_bound(at, axis) and differs_along(body, place, dim):
                    verdict = verdict._replace(says="wrong")
            values[at], verdicts[at] = value, verdict
        for eqn, claim, value in {id(claimed[0]): claimed for claimed in reading.claimed}.values():
            key, own, layout, dim = id(eqn), eqn.params["own"], claim.layout, claim.layout.dim_of(axis)
            is_item = isinstance(value.dim, int) and value.dim not in own
            values[key], stated = value.but(dim="rows") if is_item else value, claim.assertion
            is_silent = stated.is_assumed or (stated.subject.is_pattern and key != self._asked)
            if not (is_silent or axis in layout.varying):
                verdict = judge(reading, value, dim if dim is None else own[dim], axis in layout.unreduced)
                # An order may yet be restored.
                verdicts[key] = ResultVerdict("unknown") if verdict.kind == "order" else verdict
        return RegionReading(reading, values, verdicts, numbers.is_open, is_blind)


def _entering(fact: ShardingFact, axis: str, name: tuple[str, str]) -> Share:
    """What a fact says of an operand, over an axis."""
    if axis in fact.unreduced or axis in fact.due:
        return Share("sum", 0, name=name)
    dims = [at for at, dim in enumerate(fact.dims) if axis in (dim.axes or ())]
    if len(dims) == 1:
        return Share("sharded", 0, dim=dims[0], name=name, is_plain=True)
    return SAME if axis not in fact.varying else NOT_KNOWN


def _takes_as_much(first: Any, body: Any) -> bool:
    """Whether the last operands of a body are as large as those of another one."""
    shapes = [[var.aval.shape for var in _jax.jaxpr.open_jaxpr(each).invars] for each in (first, body)]
    return shapes[0] == shapes[1][-len(shapes[0]) :] or not shapes[0]
