"""The graph that a plan is a path in: states of an array on a mesh, and what one collective makes of them.

Costs are elements sent by the busiest device, by ring formulas, times the number of devices, so that
they are integers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, combinations, permutations, product
from math import prod
from typing import NamedTuple

from .partition import Parts, Sizes, missing, shard_shape, ways


class State(NamedTuple):
    """Where an array is.

    Attributes:
      parts: per dim its mesh axes.
      owed: axes over which a sum is owed and will be taken.
      residue: axes over which the value is the same everywhere, but typed by JAX as varying. A
        ``ppermute`` leaves them, and only a gather to invarying takes them away.
    """

    parts: Parts
    owed: frozenset[str] = frozenset()
    residue: frozenset[str] = frozenset()

    @property
    def sharded(self) -> frozenset[str]:
        return frozenset(chain.from_iterable(self.parts))


class Move(NamedTuple):
    """One collective, or a slice: its kind, its axes in their order, the dims it touches, where it leads, its cost."""

    kind: str
    axes: tuple[str, ...]
    dims: tuple[int, ...]
    after: State
    cost: int


@dataclass(slots=True)
class Graph:
    """All states of arrays of one shape over some mesh axes, none of them of size 1; edges are found once."""

    shape: tuple[int, ...]
    sizes: Sizes
    found: dict[State, tuple[Move, ...]] = field(default_factory=dict[State, tuple[Move, ...]])
    alike: dict[frozenset[str], dict[tuple[int, ...], list[Parts]]] = field(
        default_factory=dict[frozenset[str], dict[tuple[int, ...], list[Parts]]]
    )

    def moves(self, state: State) -> tuple[Move, ...]:
        """What can be done in a state."""
        if state not in self.found:
            kinds = (self._slices, self._gathers, self._exchanges, self._sums, self._scatters, self._permutes)
            self.found[state] = tuple(chain.from_iterable(kind(state) for kind in kinds))
        return self.found[state]

    def elements(self, state: State) -> int:
        """The size of a shard."""
        return prod(shard_shape(state.parts, self.shape, self.sizes))

    def missing(self, state: State, goal: State) -> int:
        """A cost that no way from one state to another is below."""
        lacking = self.elements(goal) if state.owed else missing(state.parts, goal.parts, self.shape, self.sizes)
        return lacking * prod(self.sizes.values())

    def _cost(self, state: State, axes: Iterable[str], share: int) -> int:
        """What ``share * (n - 1) / n`` shards come to, with ``n`` the devices of the axes."""
        n = ways(tuple(axes), self.sizes)
        return share * (n - 1) * self.elements(state) * (prod(self.sizes.values()) // n)

    def _divides(self, state: State, dim: int, axes: tuple[str, ...]) -> bool:
        return self.shape[dim] % ways(state.parts[dim] + axes, self.sizes) == 0

    def _slices(self, state: State) -> Iterator[Move]:
        free = set(self.sizes) - state.sharded - state.owed
        for axis, dim in product(sorted(free), range(len(self.shape))):
            if self._divides(state, dim, (axis,)):
                after = State(_append(state.parts, {dim: (axis,)}), state.owed, state.residue - {axis})
                yield Move("slice", (axis,), (dim,), after, 0)

    def _gathers(self, state: State) -> Iterator[Move]:
        for dim, axes in enumerate(state.parts):
            for start in range(len(axes)):
                gone = axes[start:]
                cost = self._cost(state, gone, ways(gone, self.sizes))
                after = state._replace(parts=_cut(state.parts, {dim: len(gone)}))
                yield Move("all_gather", gone, (dim,), after, cost)

    def _exchanges(self, state: State) -> Iterator[Move]:
        """Move the minor axes of some dims to be the minor axes of others, in any order, in one all_to_all."""
        for lengths in product(*(range(len(axes) + 1) for axes in state.parts)):
            sources = {dim: length for dim, length in enumerate(lengths) if length}
            others = [dim for dim, length in enumerate(lengths) if not length]
            if not sources or not others:
                continue
            axes = tuple(chain.from_iterable(state.parts[dim][-length:] for dim, length in sources.items()))
            left, cost = state._replace(parts=_cut(state.parts, sources)), self._cost(state, axes, 1)
            for spread in arrangements(axes, len(others)):
                added = {dim: new for dim, new in zip(others, spread, strict=True) if new}
                if all(self._divides(left, dim, new) for dim, new in added.items()):
                    after = left._replace(parts=_append(left.parts, added))
                    yield Move("all_to_all", axes, (*sources, *added), after, cost)

    def _sums(self, state: State) -> Iterator[Move]:
        for axes in _subsets(state.owed):
            yield Move("psum", axes, (), state._replace(owed=state.owed - set(axes)), self._cost(state, axes, 2))

    def _scatters(self, state: State) -> Iterator[Move]:
        for some, dim in product(_subsets(state.owed), range(len(self.shape))):
            if not self._divides(state, dim, some):
                continue
            for axes in permutations(some):
                after = State(_append(state.parts, {dim: axes}), state.owed - set(axes), state.residue)
                yield Move("psum_scatter", axes, (dim,), after, self._cost(state, axes, 1))

    def _permutes(self, state: State) -> Iterator[Move]:
        """Hand the blocks to other devices: any partition with the same shard shape."""
        usable = frozenset(self.sizes) - state.owed
        cost = self.elements(state) * prod(self.sizes.values())
        for parts in self._of_shape(usable)[_counts(state.parts, self.sizes)]:
            if parts == state.parts:
                continue
            axes = moved_axes(state.parts, parts, self.sizes)
            free = usable - set(chain.from_iterable(parts))
            after = State(parts, state.owed, (state.residue | set(axes)) & free)
            yield Move("ppermute", axes, _changed(state.parts, parts), after, cost)

    def _of_shape(self, axes: frozenset[str]) -> dict[tuple[int, ...], list[Parts]]:
        """All partitions over some of the axes, by how often each cuts each dim."""
        if axes not in self.alike:
            groups = self.alike[axes] = defaultdict(list)
            for some in [(), *_subsets(axes)]:
                for parts in arrangements(some, len(self.shape)):
                    groups[_counts(parts, self.sizes)].append(parts)
        return self.alike[axes]


def arrangements(axes: tuple[str, ...], dims: int) -> Iterator[Parts]:
    """All ways to give axes to dims, in all orders."""
    if not axes:
        yield ((),) * dims
        return
    *others, axis = axes
    for parts in arrangements(tuple(others), dims):
        for dim, old in enumerate(parts):
            for place in range(len(old) + 1):
                yield (*parts[:dim], (*old[:place], axis, *old[place:]), *parts[dim + 1 :])


def digits(parts: Parts, sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Per axis its dim, and how many blocks of that dim lie between two neighbours along the axis."""
    return {
        axis: (dim, ways(axes[place + 1 :], sizes)) for dim, axes in enumerate(parts) for place, axis in enumerate(axes)
    }


def moved_axes(before: Parts, after: Parts, sizes: Sizes) -> tuple[str, ...]:
    """The axes that mean another thing afterwards: along the others, blocks can keep their place."""
    old, new = digits(before, sizes), digits(after, sizes)
    return tuple(axis for axis in sizes if old.get(axis) != new.get(axis))


def _changed(before: Parts, after: Parts) -> tuple[int, ...]:
    return tuple(dim for dim, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)


def _counts(parts: Parts, sizes: Sizes) -> tuple[int, ...]:
    return tuple(ways(axes, sizes) for axes in parts)


def _append(parts: Parts, added: dict[int, tuple[str, ...]]) -> Parts:
    return tuple(axes + added.get(dim, ()) for dim, axes in enumerate(parts))


def _cut(parts: Parts, lengths: dict[int, int]) -> Parts:
    return tuple(axes[: len(axes) - lengths.get(dim, 0)] for dim, axes in enumerate(parts))


def _subsets(axes: frozenset[str]) -> list[tuple[str, ...]]:
    """All but the empty one."""
    names = sorted(axes)
    return [some for length in range(1, len(names) + 1) for some in combinations(names, length)]
