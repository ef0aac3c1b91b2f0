"""The kinds of a region's values: from its own trace, and from a second trace if a verdict depends on degrees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ... import _jax
from ..closures import closed_over_numbers, closed_over_sizes
from ..lattice import ShardingFact
from .judge import RIGHT, ResultVerdict, differs_along, judge
from .kind_rules import RULES
from .numbers import Numbers
from .reading import Reading, Unaligned
from .value import NOT_KNOWN, SAME, Share

Retrace = Callable[[str, int], Any]
"""Traces a region's body with another size of a mesh axis and the same global sizes; returns None if that fails."""
Edits = Mapping[Any, Callable[..., Any]]
NameOfDim = Callable[[int, str], "tuple[str, str]"]


@dataclass(frozen=True)
class RegionReading:
    """A region that was read over one axis.

    Attributes:
      reading: the reading.
      values: the judged values: results by their indices, claimed values by the ids of the claims' equations.
      verdicts: the verdicts on them, except on claims of patterns.
      is_open: whether a verdict may depend on a number whose degree the traces do not show.
      is_blind: whether there is no second trace, so that such degrees are unknown.
    """

    reading: Reading
    values: Mapping[int, Share]
    verdicts: Mapping[int, ResultVerdict]
    is_open: bool
    is_blind: bool = False

    def is_mapped(self, key: int) -> bool:
        """Whether ``jax.vmap`` maps over a dim of a claimed value."""
        claimed = (eqn for eqn, _, _ in self.reading.claimed if id(eqn) == key)
        return any(len(eqn.params["claimed_dims"]) < len(eqn.invars[0].aval.shape) for eqn in claimed)

    @property
    def says(self) -> str:
        """The verdict on all of them."""
        says = {verdict.says for verdict in self.verdicts.values()}
        return "wrong" if "wrong" in says else "unknown" if "unknown" in says else "right"


class Kinds:
    """The kinds of one region's values, read over each axis when they are needed.

    Args:
      body: its jaxpr.
      entering: the facts of its operands.
      results: the layouts of the judged results, by their indices.
      sizes: the manual mesh axes.
      claims: the claims beside the jaxpr.
      name_dim: names, for an operand counted from the last and an axis, the sharded dim and the argument.
      retrace: traces the body for another size of an axis.
      function: the traced function, which may close over sizes of the mesh.
      is_bound: whether an argument binds the size of a result's dim that is sharded over an axis.
      is_thorough: whether to make a second trace wherever a number may matter, even if nothing would be reported.
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
        self._best: dict[str, RegionReading] = {}
        self._first: dict[str, RegionReading] = {}
        self.key: Any = None
        self.cures: dict[Any, Any] = {}
        self._asked = 0
        self._by_call: dict[int, dict[Any, list[Any]]] = {}
        self.seconds: dict[str, tuple[tuple[Any, ...], tuple[int, ...], bool]] = {}

    def over(self, axis: str) -> RegionReading:
        """The best reading over an axis."""
        if axis not in self._best:
            self._best[axis] = self._over(axis)
        return self._best[axis]

    def first(self, axis: str) -> RegionReading:
        """The reading over an axis from the region's own trace alone."""
        if axis not in self._first:
            self._first[axis] = self.read(axis, (self.body,), (self.sizes[axis],), is_blind=self.retrace is None)
        return self._first[axis]

    def reading_of(self, axis: str, key: int) -> RegionReading:
        """The best reading over an axis that has a value; a second trace may lack claims."""
        best = self.over(axis)
        if key in best.values and not (self.claims and best.values[key].kind == "unknown"):
            return best
        return self.first(axis)

    def ask_for(self, key: int) -> None:
        """Judge the claim of a pattern as well, by the id of its equation."""
        if key not in self.results and key != self._asked:
            self._asked = key
            for known in (self._best, self._first, self.cures):
                known.clear()

    def variable(self, at: int) -> Any:
        """The variable of a result of the body."""
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
        """The axes over which degrees are unknown, though they may matter."""
        return [axis for axis, read in self._best.items() if read.is_blind]

    @property
    def held(self) -> list[str]:
        """The axes over which no verdict was reached, since the function closes over a value that may be their size."""
        return [axis for axis, read in self._best.items() if read.says == "unknown" and read.reading.numbers.is_held]

    @property
    def asks_closure(self) -> bool:
        """Whether the reading depends on closed-over values."""
        return not {"tied", "constants"}.isdisjoint(vars(self))

    @cached_property
    def _equations(self) -> list[Any]:
        return [*_jax.jaxpr.all_equations(self.body)]

    def equations_like(self, eqn: Any, trace: Any) -> list[Any]:
        """The equations in a trace that the user's call of an equation makes, at every run of that call."""
        key = None if _jax.jaxpr.is_transposed(eqn) else _jax.source.call_key(eqn)
        if key is None:
            return [eqn]
        if id(trace) not in self._by_call:
            by_call = self._by_call[id(trace)] = dict[Any, list[Any]]()
            for other in _jax.jaxpr.all_equations(trace):
                if not _jax.jaxpr.is_transposed(other):
                    by_call.setdefault(_jax.source.call_key(other), []).append(other)
        return self._by_call[id(trace)].get(key, [eqn])

    @property
    def length(self) -> int:
        """The number of its equations."""
        return len(self._equations)

    @cached_property
    def is_differentiated(self) -> bool:
        """Whether some of its equations are transposed."""
        return any(map(_jax.jaxpr.is_transposed, self._equations))

    def may_be_followed(self, eqn: Any) -> bool:
        """Whether transposed equations may follow from an equation: not if it is in the body and has no tangent."""
        is_own = _jax.jaxpr.owner_of(eqn, [self.body]) is not None
        return not _jax.jaxpr.is_transposed(eqn) and not (is_own and not _jax.jaxpr.is_differentiated(eqn))

    @cached_property
    def tied(self) -> frozenset[str]:
        """The axes whose size the function may take from its closure."""
        return frozenset() if self.function is None else frozenset(closed_over_sizes(self.function, self.sizes))

    @cached_property
    def constants(self) -> frozenset[float]:
        """The numbers in the function's closure."""
        return frozenset() if self.function is None else closed_over_numbers(self.function)

    def _second(self, axis: str) -> tuple[tuple[Any, ...], tuple[int, ...], bool]:
        """The traces that show degrees, the sizes of the axis, and whether the first trace is the region's own."""
        if axis not in self.seconds:
            self.seconds[axis] = self._traced_again(axis)
        return self.seconds[axis]

    def _traced_again(self, axis: str) -> tuple[tuple[Any, ...], tuple[int, ...], bool]:
        size_here = self.sizes[axis]
        for size in self._other_sizes(axis) if self.retrace is not None else ():
            assert self.retrace is not None
            second = self.retrace(axis, size)
            if second is None:
                continue
            if _jax.jaxpr.aligned_equations(self.body, second) is not None:
                return (self.body, second), (size_here, size), True
            first = self.retrace(axis, size_here)  # the body before it was differentiated
            if first is None or _jax.jaxpr.aligned_equations(first, second) is None:
                continue
            if _takes_as_much(first, self.body):
                return (first, second), (size_here, size), False
        return (self.body,), (size_here,), True

    def _other_sizes(self, axis: str) -> list[int]:
        """Other sizes of an axis that divide the sharded dims of the operands."""
        size_here, lengths = self.sizes[axis], list[int]()
        for fact, var in zip(reversed(self.entering), reversed(_jax.jaxpr.open_jaxpr(self.body).invars), strict=False):
            lengths += [size for dim, size in zip(fact.dims, var.aval.shape, strict=False) if axis in (dim.axes or ())]
        wanted = [
            2 * size_here,
            3 * size_here,
            *([size_here // 2] if size_here % 2 == 0 and size_here > 2 else []),
            size_here // 2 if size_here % 2 == 0 else 0,
        ]
        fitting = [size for size in wanted if size and all(length * size_here % size == 0 for length in lengths)]
        roomy = [size for size in fitting if all(length * size_here > size or length == 1 for length in lengths)]
        return list(dict.fromkeys([*roomy, *fitting]))[:2] or [2 * size_here]

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
        """Read some traces over an axis.

        Args:
          axis: the mesh axis.
          traces: the traces.
          sizes: the sizes of the axis in them.
          edits: the edits that are tried.
          is_own: whether the first trace is the region's own.
          is_blind: whether degrees that one trace does not show are unknown.
          gathered: the names of a dim and its argument that is treated as gathered first.

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
            key, claimed_dims = id(eqn), eqn.params["claimed_dims"]
            layout, dim = claim.layout, claim.layout.dim_of(axis)
            is_item = isinstance(value.dim, int) and value.dim not in claimed_dims
            values[key], stated = value.but(dim="rows") if is_item else value, claim.assertion
            is_silent = stated.is_assumed or (stated.subject.is_pattern and key != self._asked)
            if not (is_silent or axis in layout.varying):
                verdict = judge(reading, value, dim if dim is None else claimed_dims[dim], axis in layout.unreduced)
                # The order may be restored later.
                verdicts[key] = ResultVerdict("unknown") if verdict.kind == "order" else verdict
        return RegionReading(reading, values, verdicts, numbers.is_open, is_blind)


def _entering(fact: ShardingFact, axis: str, name: tuple[str, str]) -> Share:
    """The abstract value of an operand over an axis, from its fact."""
    if axis in fact.unreduced or axis in fact.due:
        return Share("sum", 0, name=name)
    dims = [at for at, dim in enumerate(fact.dims) if axis in (dim.axes or ())]
    if len(dims) == 1:
        return Share("sharded", 0, dim=dims[0], name=name, is_plain=True)
    return SAME if axis not in fact.varying else NOT_KNOWN


def _takes_as_much(first: Any, body: Any) -> bool:
    """Whether the last operands of a body have the shapes of those of another body."""
    shapes = [[var.aval.shape for var in _jax.jaxpr.open_jaxpr(jaxpr).invars] for jaxpr in (first, body)]
    return shapes[0] == shapes[1][-len(shapes[0]) :] or not shapes[0]
