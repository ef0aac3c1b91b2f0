"""The place of the largest or smallest entry along a sharded dim: each shard has one, and the best shard's is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from .values import Affine, Best, GlobalValue, NotKnown, Sharded
from .walk import Walk, operand_shape, params_key


def place_in_part(walk: Walk, eqn: Any, value: Sharded) -> Best | None:
    """Where each shard has the best entry of its part; None where the dim is not sharded."""
    name, (dim, *more) = eqn.primitive.name, eqn.params["axes"]
    if more or not (axes := value.dims[dim]) or value.partial:
        return None
    dims = [each for at, each in enumerate(value.dims) if at != dim]
    entry = walk.made(f"reduce_{name.removeprefix('arg')}", ((dim,), ()), [value], dims)
    unsharded = walk.made(name, (0, params_key(eqn)), [value], dims)
    return Best("own place", entry, axes, unsharded, operand_shape(eqn)[dim])


def from_start(walk: Walk, best: Best, first: Affine | None) -> Best:
    """The place in the whole, which is the first of the shard's entries further."""
    if best.stage != "own place" or first is None or first.positions or first.constant:
        raise NotKnown("it depends on which shard has the largest or smallest entry")
    found = Affine((best.length,), 0, {0: 1}, first.indices).sharded(walk.sizes)
    if found is None or found[0][0] != best.axes:
        raise NotKnown("what is added to the place in the shard's part is not where that begins")
    return replace(best, stage="place")


def has_best(one: GlobalValue, other: GlobalValue) -> tuple[Sharded, tuple[str, ...]] | None:
    """The best entry of all, and over which axes shards have to say whether it is theirs, where two values are that."""
    if not isinstance(one, Sharded) or not isinstance(other, Sharded):
        return None
    own, best = (one, other) if one.partial else (other, one)
    is_same = (own.term, own.factor, own.dims) == (best.term, best.factor, best.dims)
    is_found = own.combined_by in ("max", "min") and is_same and not best.partial
    return (best, tuple(sorted(own.partial))) if is_found else None


def number_elsewhere(walk: Walk, which: Best, cases: Sequence[GlobalValue]) -> int:
    """What a shard says that does not have the best entry, if the others say where it is."""
    elsewhere, here = cases
    is_place = isinstance(here, Best) and (here.stage, which.stage) == ("place", "has it")
    is_same = isinstance(here, Best) and (here.entry, sorted(here.axes)) == (which.entry, sorted(which.axes))
    if is_place and is_same and isinstance(elsewhere, Sharded) and walk.is_number(elsewhere):
        return int(elsewhere.factor)
    raise NotKnown("it depends on which shard has the largest or smallest entry")


def chosen_by_all(walk: Walk, best: Best, axes: Sequence[str], combined_by: str) -> Sharded:
    """The place that the shards agree on: the first of equal ones by a minimum, any by a maximum.

    Raises:
      NotKnown: where the number of the shards that do not have the entry may be taken for a place.
    """
    last = best.length * prod(walk.sizes[axis] for axis in best.axes) - 1
    is_beyond = best.otherwise <= 0 if combined_by == "max" else best.otherwise >= last
    if best.stage != "chosen" or set(axes) != set(best.axes) or combined_by == "sum" or not is_beyond:
        raise NotKnown("it depends on which shard has the largest or smallest entry")
    if combined_by == "max":
        walk.assumed.add(f"no two of the entries are equal whose place is taken at {walk.place}")
    return best.value
