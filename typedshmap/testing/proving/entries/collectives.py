"""What goes from shard to shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..elementwise import is_narrow
from ..polynomials import Polynomials
from ..values import NotKnown
from .arithmetic import sum_of
from .walk import EntryRule, EntryWalk, Numbers, kinds_of


def _all_reduce(make: Callable[[Polynomials, list[int]], int], is_exact: bool = False) -> EntryRule:
    def rule(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
        if "u" in kinds_of(eqn):
            raise NotKnown("it adds whole numbers that go round")
        table, found = walk.polynomials, list[Numbers]()
        for each, var in zip(operands, eqn.invars, strict=True):
            members, rounds = walk.members(each, eqn)[0], not is_exact and is_narrow(var.aval.dtype)
            if rounds and len(members) > 1:
                found.append(walk.each(lambda *row: table.atom("rounded sum", (), sorted(row)), *members))
            else:
                found.append(walk.each(lambda *row: make(table, list(row)), *members))
        return found

    return rule


def _all_gather(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    at = walk.lead + eqn.params["all_gather_dimension"]
    join = np.concatenate if eqn.params["tiled"] else np.stack
    return [join(list(walk.members(each, eqn)[0]), at) for each in operands]


def _own(walk: EntryWalk, parts: Sequence[Numbers], place: Numbers) -> Numbers:
    """That of some arrays which is as many from the first as the shard stands in its group."""
    where = place.reshape((*place.shape[: walk.lead], *[1] * (parts[0].ndim - walk.lead)))
    return np.take_along_axis(np.stack(parts), np.broadcast_to(where, parts[0].shape)[None], 0)[0]


def _reduce_scatter(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    at, found = walk.lead + eqn.params["scatter_dimension"], list[Numbers]()
    for each in operands:
        members, place = walk.members(each, eqn)
        if is_narrow(eqn.invars[0].aval.dtype) or "u" in kinds_of(eqn):
            raise NotKnown("it adds numbers that go round, or are rounded")
        total = walk.each(lambda *row: sum_of(walk.polynomials, list(row)), *members)
        parts = np.split(total, len(members), at)
        found.append(_own(walk, [part if eqn.params["tiled"] else part.squeeze(at) for part in parts], place))
    return found


def _all_to_all(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    split, to = walk.lead + eqn.params["split_axis"], walk.lead + eqn.params["concat_axis"]
    members, place = walk.members(operands[0], eqn)
    sent = [_own(walk, np.split(each, len(members), split), place) for each in members]
    return [np.concatenate(sent, to)]  # what is not tiled has dims of one entry for it


def _ppermute(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    sources, found = {to: source for source, to in eqn.params["perm"]}, list[Numbers]()
    for each in operands:
        members, place = walk.members(each, eqn)
        zero = np.full_like(each, walk.polynomials.zero)
        parts = [members[sources[at]] if at in sources else zero for at in range(len(members))]
        found.append(_own(walk, parts, place))
    return found


def _axis_index(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    place = walk.members(np.full(tuple(walk.mesh.values()), walk.polynomials.zero), eqn)[1]
    numbers = np.array([walk.polynomials.constant(at) for at in range(int(place.max()) + 1)])
    return [numbers[place]]


COLLECTIVE_RULES: dict[str, EntryRule] = {
    **dict.fromkeys(("psum", "psum_invariant", "unreduced_psum"), _all_reduce(sum_of)),
    **dict.fromkeys(("pmax", "pmax_invariant", "unreduced_pmax"), _all_reduce(Polynomials.largest, is_exact=True)),
    **dict.fromkeys(
        ("pmin", "pmin_invariant", "unreduced_pmin"),
        _all_reduce(lambda table, row: table.largest(row, -1), is_exact=True),
    ),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), _all_gather),
    **dict.fromkeys(("reduce_scatter", "unreduced_reduce_scatter"), _reduce_scatter),
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "axis_index": _axis_index,
}
