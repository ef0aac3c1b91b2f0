"""A plan: the steps from one layout of a global array to another, their cost, and the search for the cheapest.

The search is for a shortest path, first among paths whose shards are never larger than those at the ends. The nodes of
the graph are states of an array on a mesh; the edges are single steps. The cost of a step is the number of elements
that the busiest device sends, by ring formulas, and a price for each collective, times the number of devices, so that
costs are integers; equal costs are compared by the copies within a device's memory. All costs are proportional to the
array, so its size does not matter."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from itertools import chain, combinations, count, groupby, permutations, product
from math import ceil, prod
from typing import NamedTuple

from ... import _jax
from ...errors.phrases import titled
from ...hints.context import SizedAxes
from ...notation.layout import Layout, shared_prefix
from ...records import Record
from ..operation import MeshAxes, shard_count
from .pieces import AxisSizes, DimAxes, is_nested, moved_axes, pieces_per_block, shape_text, shard_counts, shard_shape


def elements_missing(have: DimAxes, need: DimAxes, shape: tuple[int, ...], sizes: AxisSizes) -> int:
    """The largest number of elements of its part that a device needs and lacks; no axis has size 1."""
    both = 1
    for size, old, new in zip(shape, have, need, strict=True):
        shorter = min(len(old), len(new))
        if old[:shorter] != new[:shorter]:
            return prod(shard_shape(need, shape, sizes))
        both *= size // max(shard_count(old, sizes), shard_count(new, sizes))
    return prod(shard_shape(need, shape, sizes)) - both


class Step(Record):
    """One collective, or a slice.

    Attributes:
      kind: ``"slice"``, ``"all_gather"``, ``"all_to_all"``, ``"ppermute"``, ``"psum"`` or ``"psum_scatter"``.
      axes: its mesh axes, in the collective's order.
      dims: the dims that it changes.
      before: the layout before it, without mesh axes of size 1.
      after: the layout after it.
      shard_before: one shard's shape before it.
      shard_after: one shard's shape after it.
      sent: the number of elements that the busiest device sends, by ring formulas.
      rounds: the number of collectives: 0 for a slice, a ppermute for each missing piece of a device's block, 1 for any
        other step.
    """

    kind: str
    axes: tuple[str, ...]
    dims: tuple[int, ...]
    before: Layout
    after: Layout
    shard_before: tuple[int, ...]
    shard_after: tuple[int, ...]
    sent: Fraction
    rounds: int = 1

    @property
    def piece(self) -> tuple[int, ...]:
        """The shape that one ppermute sends."""
        return tuple(map(min, self.shard_before, self.shard_after))


class Plan(Record):
    """The cheapest steps from one layout of an array to another; printed as a table.

    Attributes:
      source: the layout before.
      target: the layout after.
      shape: the global shape.
      sizes: the mesh axes that may be used, with their sizes.
      steps: the steps, in order.
      is_within_ends: whether no intermediate shard is larger than the larger of the two end shards.
      itemsize: the bytes of an element; everything else is counted in elements.
    """

    source: Layout
    target: Layout
    shape: tuple[int, ...]
    sizes: tuple[tuple[str, int], ...]
    steps: tuple[Step, ...]
    is_within_ends: bool = True
    itemsize: int = 4

    @property
    def elements(self) -> Fraction:
        """The number of elements that the busiest device sends."""
        return sum((step.sent for step in self.steps), Fraction(0))

    @property
    def bytes(self) -> int:
        """The number of bytes that the busiest device sends."""
        return ceil(self.elements * self.itemsize)

    @cached_property
    def awaited(self) -> frozenset[str] | None:
        """The axes whose shards wait for each other; None for the whole mesh, as for a ppermute on CPUs."""
        if any(step.kind == "ppermute" for step in self.steps):
            return None
        return frozenset(axis for step in self.steps if step.rounds for axis in step.axes)

    @property
    def shards(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of a shard: before the first step, and after each."""
        first = shard_shape(self.source.dim_axes, self.shape, dict(self.sizes))
        return (first, *(step.shard_after for step in self.steps))

    @property
    def peak(self) -> tuple[int, ...]:
        """The shape of the largest shard of the path, ends included."""
        return max(self.shards, key=prod)

    @property
    def lower_bound(self) -> int:
        """The largest number of elements that a device needs and does not hold; it holds none of a sum."""
        source, target, sizes = self.source, self.target, dict(self.sizes)
        if shard_count(source.unreduced - target.unreduced, sizes) > 1:
            return prod(shard_shape(target.dim_axes, self.shape, sizes))
        longer = [axis for axis, size in self.sizes if size > 1]
        return elements_missing(source.over(longer).dim_axes, target.over(longer).dim_axes, self.shape, sizes)

    def __str__(self) -> str:
        mesh = ", ".join(f"{axis}={size}" for axis, size in self.sizes)
        source, target = (_pattern_text(end, self.shape) for end in (self.source, self.target))
        rows = [("step", "axes", "shard", "bytes")]
        for step in self.steps:
            shard = f"{shape_text(step.shard_before)} -> {shape_text(step.shard_after)}"
            kind = f"{step.kind} x{step.rounds}" if step.rounds > 1 else step.kind
            rows.append((kind, ",".join(step.axes), shard, f"{ceil(step.sent * self.itemsize):,}"))
        rows.append(("total", "", "", f"{self.bytes:,}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        larger = "" if self.is_within_ends else ", larger than both ends"
        lines = [f"reshard {source} -> {target} on {mesh}"]
        for kind, axes, shard, sent in rows:
            lines.append(f"  {kind:{widths[0]}}  {axes:{widths[1]}}  {shard:{widths[2]}}  {sent:>{widths[3]}}")
        lines.append(f"peak shard {shape_text(self.peak)} ({prod(self.peak) * self.itemsize:,} bytes){larger}")
        lines.append(f"lower bound {self.lower_bound * self.itemsize:,} bytes")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return titled(self)

    def _repr_html_(self) -> str:
        from .plan_picture import picture_of  # for notebooks only

        return picture_of(self)


def _pattern_text(layout: Layout, shape: tuple[int, ...]) -> str:
    """``[64/a] 32 +b``"""
    pairs = zip(shape, layout.dim_axes, strict=True)
    dims = [f"[{size}/{','.join(axes)}]" if axes else f"{size}" for size, axes in pairs]
    return " ".join([*dims, *(f"+{axis}" for axis in sorted(layout.unreduced))])


# Up to this number of axes the search finds the cheapest plan. With more axes there are too many states: axes stay in
# place if they can, and the search prefers paths that are nearly complete.
MANY_AXES = 4
GREED = 8
# The maximal number of ppermutes for a block.
MOST_ROUNDS = 4
# A collective costs as much as sending 1/ROUNDS_PER_SHARD of the larger end's shard. At 12, XLA's partitioner sends
# less for some pairs on meshes of 16 devices; with larger values, plans take more steps for fewer bytes.
ROUNDS_PER_SHARD = 24


def plan(source: Layout, target: Layout, shape: tuple[int, ...], sizes: Mapping[str, int]) -> Plan:
    """The cheapest steps between two layouts that divide; with more than four axes nearly the cheapest."""
    return known_plan(source, target, tuple(shape), tuple(sizes.items()))


@lru_cache(maxsize=4096)
def known_plan(source: Layout, target: Layout, shape: tuple[int, ...], sizes: SizedAxes) -> Plan:
    """The same, for hashable sizes."""
    known = dict(sizes)
    # The search omits axes of size 1, and axes over which the array stays unreduced.
    usable = {axis: size for axis, size in sizes if size > 1 and axis not in target.unreduced}
    start, goal = (SearchState(end.over(usable).dim_axes, end.over(usable).unreduced) for end in (source, target))
    fixed: DimAxes = ((),) * len(shape)
    if len(usable) > MANY_AXES:
        fixed = tuple(map(shared_prefix, start.dim_axes, goal.dim_axes))
        start, goal = (
            end._replace(dim_axes=tuple(axes[len(gone) :] for axes, gone in zip(end.dim_axes, fixed, strict=True)))
            for end in (start, goal)
        )
        mentioned = start.sharded | goal.sharded | start.unreduced
        usable = {axis: size for axis, size in usable.items() if axis in mentioned}
    graph = _graph(shard_shape(fixed, shape, known), tuple(usable.items()))
    limit = max(prod(shard_shape(end.dim_axes, shape, known)) for end in (source, target))
    within = graph.cheapest_path(start, goal, limit)
    moves = within if within is not None else graph.cheapest_path(start, goal, None)
    assert moves is not None, "gathering all and slicing is always possible"
    steps = tuple(graph.steps(start, moves, fixed, target.unreduced))
    return Plan(source, target, shape, sizes, steps, within is not None)


@lru_cache(maxsize=64)
def _graph(shape: tuple[int, ...], sizes: SizedAxes) -> Graph:
    return Graph(shape, dict(sizes))


class SearchState(NamedTuple):
    """The layout of an array during the search; it is unreduced over axes whose sum will be taken."""

    dim_axes: DimAxes
    unreduced: frozenset[str] = frozenset()

    @property
    def sharded(self) -> frozenset[str]:
        return frozenset(chain.from_iterable(self.dim_axes))

    def append(self, added: Mapping[int, MeshAxes]) -> SearchState:
        return self._replace(dim_axes=tuple(axes + added.get(dim, ()) for dim, axes in enumerate(self.dim_axes)))

    def drop(self, lengths: Mapping[int, int]) -> SearchState:
        kept = (axes[: len(axes) - lengths.get(dim, 0)] for dim, axes in enumerate(self.dim_axes))
        return self._replace(dim_axes=tuple(kept))


class Move(NamedTuple):
    """One step of the search; ``cost`` counts elements if every device sends as many as the busiest device."""

    kind: str
    axes: MeshAxes
    dims: tuple[int, ...]
    after: SearchState
    cost: int
    rounds: int
    copied: int


class Graph:
    """All states of arrays of one shape over some mesh axes, none of size 1."""

    def __init__(self, shape: tuple[int, ...], sizes: AxisSizes) -> None:
        self.shape, self.sizes = shape, sizes
        cached = lru_cache(maxsize=65_536)
        self.moves, self.elements, self.ends = cached(self._moves), cached(self._elements), cached(self._ends)

    def cheapest_path(self, start: SearchState, goal: SearchState, limit: int | None) -> tuple[Move, ...] | None:
        """A shortest path (A*) by the elements sent, then by copies; no shard is larger than a limit."""
        greed = 1 if len(self.sizes) <= MANY_AXES else GREED
        per_round = prod(self.sizes.values()) * max(self.elements(start), self.elements(goal))
        tie, done, bounds = count(), set[SearchState](), dict[SearchState, int]()
        waiting: list[tuple[tuple[int, int], int, int, SearchState, tuple[Move, ...]]]
        waiting = [((0, 0), next(tie), 0, start, ())]
        while waiting:
            (_, copied), _, spent, state, path = heappop(waiting)
            if state == goal:
                return path
            if state in done:
                continue
            done.add(state)
            for move in chain(self.moves(state), self._permutes(state, goal)):
                after = move.after
                if after in done or (limit is not None and self.elements(after) > limit):
                    continue
                if after not in bounds:
                    lacking = self.cost_bound(after, goal)
                    bounds[after] = greed * (lacking * ROUNDS_PER_SHARD + (per_round if lacking else 0))
                now = spent + move.cost * ROUNDS_PER_SHARD + move.rounds * per_round
                rank = (now + bounds[after], copied + move.copied)
                heappush(waiting, (rank, next(tie), now, after, (*path, move)))
        return None

    def steps(self, state: SearchState, moves: Sequence[Move], fixed: DimAxes, kept: frozenset[str]) -> Iterator[Step]:
        """The moves as steps, with consecutive slices as one step; ``fixed`` are major axes that stay in place."""
        for _, group in groupby(moves, lambda move: None if move.kind == "slice" else move):
            some = list(group)
            after = some[-1].after
            axes = tuple(chain.from_iterable(move.axes for move in some))
            dims = tuple(sorted({dim for move in some for dim in move.dims}))
            old, new = (shard_shape(end.dim_axes, self.shape, self.sizes) for end in (state, after))
            sent = Fraction(sum(move.cost for move in some), prod(self.sizes.values()))
            before, behind = (
                Layout(tuple(map(operator.add, fixed, end.dim_axes)), end.unreduced | kept) for end in (state, after)
            )
            yield Step(some[-1].kind, axes, dims, before, behind, old, new, sent, some[-1].rounds)
            state = after

    def _moves(self, state: SearchState) -> tuple[Move, ...]:
        """The moves in a state, except ppermutes."""
        return (*self._slices(state), *self._gathers(state), *self._exchanges(state), *self._sums(state))

    def _elements(self, state: SearchState) -> int:
        return prod(shard_shape(state.dim_axes, self.shape, self.sizes))

    def cost_bound(self, state: SearchState, goal: SearchState) -> int:
        if state.unreduced:
            lacking = self.elements(goal)
        else:
            lacking = elements_missing(state.dim_axes, goal.dim_axes, self.shape, self.sizes)
        return lacking * prod(self.sizes.values())

    def _cost(self, state: SearchState, axes: MeshAxes, kind: str) -> int:
        """The elements that all devices send, if each sends as many as the busiest device."""
        n, elements = shard_count(axes, self.sizes), self.elements(state)
        of_ring = _jax.primitives.ring_cost(_jax.primitives.COLLECTIVES[kind], n, elements, n * elements)
        return of_ring * (prod(self.sizes.values()) // n)

    def _divides(self, state: SearchState, dim: int, axes: MeshAxes) -> bool:
        return self.shape[dim] % shard_count(state.dim_axes[dim] + axes, self.sizes) == 0

    def _slices(self, state: SearchState) -> Iterator[Move]:
        free = set(self.sizes) - state.sharded - state.unreduced
        for axis, dim in product(sorted(free), range(len(self.shape))):
            if self._divides(state, dim, (axis,)):
                after = state.append({dim: (axis,)})
                yield Move("slice", (axis,), (dim,), after, 0, 0, self.elements(after))

    def _gathers(self, state: SearchState) -> Iterator[Move]:
        for dim, axes in enumerate(state.dim_axes):
            for start in range(len(axes)):
                gone = axes[start:]
                after = state.drop({dim: len(gone)})
                copied = 0 if self._is_first(state, dim) else self.elements(after)
                yield Move("all_gather", gone, (dim,), after, self._cost(state, gone, "all_gather"), 1, copied)

    def _exchanges(self, state: SearchState) -> Iterator[Move]:
        """Move the minor axes of some dims to be the minor axes of others, in any order, in one all_to_all."""
        for lengths in product(*(range(len(axes) + 1) for axes in state.dim_axes)):
            sources = {dim: length for dim, length in enumerate(lengths) if length}
            others = [dim for dim, length in enumerate(lengths) if not length]
            if not sources or not others:
                continue
            axes = tuple(chain.from_iterable(state.dim_axes[dim][-length:] for dim, length in sources.items()))
            left, cost = state.drop(sources), self._cost(state, axes, "all_to_all")
            for spread in arrangements(axes, len(others)):
                added = {dim: new for dim, new in zip(others, spread, strict=True) if new}
                if all(self._divides(left, dim, new) for dim, new in added.items()):
                    after = left.append(added)
                    copies = sum(any(not self._is_first(state, dim) for dim in dims) for dims in (sources, added))
                    copied = copies * self.elements(state)
                    yield Move("all_to_all", axes, (*sources, *added), after, cost, 1, copied)

    def _sums(self, state: SearchState) -> Iterator[Move]:
        """Take the sum over some axes: on all shards, or scattered along a dim, in any order of the axes."""
        after = {axes: state._replace(unreduced=state.unreduced - set(axes)) for axes in _subsets(state.unreduced)}
        for axes, summed in after.items():
            yield Move("psum", axes, (), summed, self._cost(state, axes, "psum"), 1, 0)
        for (some, summed), dim in product(after.items(), range(len(self.shape))):
            for axes in permutations(some) if self._divides(state, dim, some) else ():
                cost = self._cost(state, axes, "psum_scatter")
                copied = 0 if self._is_first(state, dim) else self.elements(state)
                yield Move("psum_scatter", axes, (dim,), summed.append({dim: axes}), cost, 1, copied)

    def _permutes(self, state: SearchState, goal: SearchState) -> Iterator[Move]:
        """Send every device the pieces that it lacks, each in a ppermute."""
        held, counts = self.elements(state), shard_counts(state.dim_axes, self.sizes)
        for end in self.ends(goal):
            pieces = pieces_per_block(counts, shard_counts(end.dim_axes, self.sizes))
            if pieces is None or pieces > MOST_ROUNDS + 1 or not state.unreduced.isdisjoint(end.sharded):
                continue
            rounds = pieces - is_nested(state.dim_axes, end.dim_axes)
            if not 1 <= rounds <= MOST_ROUNDS:
                continue
            size = self.elements(end)
            sent = rounds * (size // pieces) * prod(self.sizes.values())
            copied = (size if size // pieces < held else 0) + (2 * size if pieces > 1 else 0)
            dims = tuple(dim for dim, old in enumerate(state.dim_axes) if old != end.dim_axes[dim])
            axes = moved_axes(state.dim_axes, end.dim_axes, self.sizes)
            yield Move("ppermute", axes, dims, state._replace(dim_axes=end.dim_axes), sent, rounds, copied)

    def _ends(self, goal: SearchState) -> list[SearchState]:
        """A layout, and all layouts that are sharded further along some of its dims."""
        free = frozenset(self.sizes) - goal.sharded
        added = chain.from_iterable(arrangements(some, len(self.shape)) for some in [(), *_subsets(free)])
        return [end for dim_axes in added if self._is_possible(end := goal.append(dict(enumerate(dim_axes))))]

    def _is_possible(self, state: SearchState) -> bool:
        counts = shard_counts(state.dim_axes, self.sizes)
        return not any(size % count for size, count in zip(self.shape, counts, strict=True))

    def _is_first(self, state: SearchState, dim: int) -> bool:
        """Whether the parts of a shard along a dim follow each other in memory."""
        return prod(shard_shape(state.dim_axes, self.shape, self.sizes)[:dim]) == 1


def arrangements(axes: MeshAxes, dims: int) -> Iterator[DimAxes]:
    """All ways to give axes to dims, in all orders."""
    if not axes:
        yield ((),) * dims
        return
    *others, axis = axes
    for dim_axes in arrangements(tuple(others), dims):
        for dim, old in enumerate(dim_axes):
            for place in range(len(old) + 1):
                yield (*dim_axes[:dim], (*old[:place], axis, *old[place:]), *dim_axes[dim + 1 :])


def _subsets(axes: frozenset[str]) -> list[MeshAxes]:
    names = sorted(axes)
    return [some for length in range(1, len(names) + 1) for some in combinations(names, length)]
