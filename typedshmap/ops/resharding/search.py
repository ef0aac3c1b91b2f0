"""Find the cheapest plan: a shortest path, first among those whose shards stay within the ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heappush
from itertools import chain, count, groupby
from math import prod
from typing import NamedTuple

from .moves import Graph, Move, State
from .partition import Partition, Parts, Sizes, indivisible, shard_shape, ways
from .plans import Plan, Step, Unreachable

# Up to here the search is for the cheapest of all. With more axes there are too many states: those that
# can stay in place do, and a path that needs little more is preferred to one that has sent little so far.
MANY_AXES = 4
HASTE = 8


def plan(source: Partition, target: Partition, shape: tuple[int, ...], sizes: Mapping[str, int]) -> Plan | Unreachable:
    """The cheapest steps from one partition of an array to another.

    Where the target keeps a sum owed, so do all steps. A shard on the way is no larger than the
    larger of the two ends, unless divisibility leaves no such way. Over more than four mesh axes that
    change, a plan may be a little dearer than the cheapest.

    Args:
      source: where the array is.
      target: where it shall be.
      shape: the global shape.
      sizes: the mesh axes that may be used, with their sizes; all that the partitions name, at least.
    """
    return _plan(source, target, tuple(shape), tuple(sizes.items()))


@lru_cache(maxsize=4096)
def _plan(
    source: Partition, target: Partition, shape: tuple[int, ...], sizes: tuple[tuple[str, int], ...]
) -> Plan | Unreachable:
    known = dict(sizes)
    if (refused := _refused(source, target, shape, known)) is not None:
        return refused
    task = _Task.of(source, target, shape, known)
    limit = max(prod(shard_shape(end.parts, shape, known)) for end in (source, target))
    within = task.cheapest(limit)
    moves = within if within is not None else task.cheapest(None)
    assert moves is not None, "gathering all and slicing is always possible"
    steps = (*_drop_units(source, target, shape, known), *task.steps(moves))
    return Plan(source, target, shape, sizes, steps, within is not None)


def _refused(source: Partition, target: Partition, shape: tuple[int, ...], sizes: Sizes) -> Unreachable | None:
    missing = tuple(sorted(target.owed - source.owed))
    if missing:
        names = ", ".join(f"'{axis}'" for axis in missing)
        return Unreachable(f"no sum over {names} is owed before, so that none can be left", missing)
    for end in (source, target):
        dim = indivisible(end.parts, shape, sizes)
        if dim is not None:
            shards = ways(end.parts[dim], sizes)
            reason = f"dim {dim} has {shape[dim]} elements, which {shards} shards do not divide"
            return Unreachable(reason, end.parts[dim], dim)
    return None


class _Cost(NamedTuple):
    """Compared in this order."""

    sent: int = 0
    collectives: int = 0
    slices: int = 0

    def plus(self, move: Move) -> _Cost:
        is_slice = move.kind == "slice"
        return _Cost(self.sent + move.cost, self.collectives + (not is_slice), self.slices + is_slice)


@dataclass(frozen=True, slots=True)
class _Task:
    """What is left to search for: no axes of size 1, no sums that stay owed.

    Attributes:
      graph: where to search, over what the fixed axes leave of each dim.
      start: the state before.
      goal: the state after.
      fixed: per dim its major axes that stay in place.
      kept: the axes over which the sum stays owed.
    """

    graph: Graph
    start: State
    goal: State
    fixed: Parts
    kept: frozenset[str]

    @staticmethod
    def of(source: Partition, target: Partition, shape: tuple[int, ...], sizes: Sizes) -> _Task:
        usable = {axis: size for axis, size in sizes.items() if size > 1 and axis not in target.owed}
        start, goal = _state(source, usable), _state(target, usable)
        fixed: Parts = ((),) * len(shape)
        if len(usable) > MANY_AXES:
            fixed = tuple(map(_common, start.parts, goal.parts))
            start, goal = _without(start, fixed), _without(goal, fixed)
            mentioned = start.sharded | goal.sharded | start.owed
            usable = {axis: size for axis, size in usable.items() if axis in mentioned}
        rest = shard_shape(fixed, shape, sizes)
        return _Task(_graph(rest, tuple(usable.items())), start, goal, fixed, target.owed)

    def cheapest(self, limit: int | None) -> list[Move] | None:
        """A shortest path by elements sent, then by collectives, then by slices; no shard larger than a limit.

        The search is A*: what a device lacks, it must still be sent.
        """
        haste = 1 if len(self.graph.sizes) <= MANY_AXES else HASTE
        tie, done = count(), set[State]()
        waiting: list[tuple[int, _Cost, int, State, tuple[Move, ...]]] = [(0, _Cost(), next(tie), self.start, ())]
        while waiting:
            _, cost, _, state, path = heappop(waiting)
            if state == self.goal:
                return list(path)
            if state in done:
                continue
            done.add(state)
            for move in self.graph.moves(state):
                if move.after not in done and (limit is None or self.graph.elements(move.after) <= limit):
                    sent = cost.plus(move)
                    whole = sent.sent + haste * self.graph.missing(move.after, self.goal)
                    heappush(waiting, (whole, sent, next(tie), move.after, (*path, move)))
        return None

    def steps(self, moves: list[Move]) -> Iterator[Step]:
        """The moves as steps, slices that follow each other as one."""
        state = self.start
        for is_slice, group in groupby(moves, lambda move: move.kind == "slice"):
            for some in [list(group)] if is_slice else [[move] for move in group]:
                yield self._step(state, some)
                state = some[-1].after

    def _step(self, state: State, moves: list[Move]) -> Step:
        shape, sizes, last = self.graph.shape, self.graph.sizes, moves[-1]
        axes = tuple(chain.from_iterable(move.axes for move in moves))
        dims = tuple(sorted({dim for move in moves for dim in move.dims}))
        old, new = (shard_shape(end.parts, shape, sizes) for end in (state, last.after))
        sent = Fraction(sum(move.cost for move in moves), prod(sizes.values()))
        return Step(last.kind, axes, dims, self._partition(state), self._partition(last.after), old, new, sent)

    def _partition(self, state: State) -> Partition:
        parts = tuple(fixed + axes for fixed, axes in zip(self.fixed, state.parts, strict=True))
        return Partition(parts, state.owed | self.kept)


@lru_cache(maxsize=64)
def _graph(shape: tuple[int, ...], sizes: tuple[tuple[str, int], ...]) -> Graph:
    return Graph(shape, dict(sizes))


def _state(partition: Partition, usable: Sizes) -> State:
    parts = tuple(tuple(axis for axis in axes if axis in usable) for axes in partition.parts)
    return State(parts, partition.owed & frozenset(usable))


def _without(state: State, fixed: Parts) -> State:
    return state._replace(parts=tuple(axes[len(gone) :] for axes, gone in zip(state.parts, fixed, strict=True)))


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """What two tuples begin with alike."""
    length = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:length]


def _drop_units(source: Partition, target: Partition, shape: tuple[int, ...], sizes: Sizes) -> Iterator[Step]:
    """Nothing is sent over an axis of size 1, but JAX's type must lose it where the target does not name it."""
    units = {axis for axis, size in sizes.items() if size == 1}
    usable = {axis: size for axis, size in sizes.items() if size > 1}
    here = Partition(_state(source, usable).parts, source.owed)
    shard = shard_shape(source.parts, shape, sizes)
    for dim, axes in enumerate(source.parts):
        if some := tuple(axis for axis in axes if axis in units - target.sharded):
            yield Step("all_gather", some, (dim,), here, here, shard, shard, Fraction(0))
    if owed := tuple(sorted(source.owed & units - target.owed)):
        after = Partition(here.parts, here.owed - set(owed))
        yield Step("psum", owed, (), here, after, shard, shard, Fraction(0))
