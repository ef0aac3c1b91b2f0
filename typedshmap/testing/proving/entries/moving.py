"""Entries in other places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..elementwise import is_narrow
from ..values import NotKnown
from .walk import EntryRule, EntryWalk, Numbers, kind_of


def _iota(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    shape, dim, dtype = eqn.params["shape"], eqn.params["dimension"], eqn.params["dtype"]
    if operands:
        raise NotKnown("its shape is computed")
    return [walk.constant(np.indices(shape)[dim].astype(dtype))]


def _broadcast(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    shape, at = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    sizes = [1] * len(shape)
    for dim, to in enumerate(at):
        sizes[to] = operands[0].shape[walk.lead + dim]
    mesh = tuple(walk.mesh.values())
    return [np.broadcast_to(operands[0].reshape((*mesh, *sizes)), (*mesh, *shape))]


def _reshape(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    if eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None:
        raise NotKnown("it reorders dims")
    return [operands[0].reshape((*walk.mesh.values(), *eqn.outvars[0].aval.shape))]


def _transpose(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    order = [walk.lead + dim for dim in eqn.params["permutation"]]
    return [operands[0].transpose(*range(walk.lead), *order)]


def _slice(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    params = eqn.params
    strides = params["strides"] or (1,) * len(params["start_indices"])
    parts = [slice(*each) for each in zip(params["start_indices"], params["limit_indices"], strides, strict=True)]
    return [operands[0][(..., *parts)]]


def _reversed(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    return [np.flip(operands[0], tuple(walk.lead + dim for dim in eqn.params["dimensions"]))]


def _concatenate(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    return [np.concatenate(operands, walk.lead + eqn.params["dimension"])]


def _stack(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    return [np.stack(operands, walk.lead + eqn.params["axis"])]


def _unstack(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    return list(np.moveaxis(operands[0], walk.lead + eqn.params["axis"], 0))


def _split(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    ends = np.cumsum(eqn.params["sizes"])[:-1]
    return np.split(operands[0], ends, walk.lead + eqn.params["axis"])


def _pad(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    numbers, filler = operands
    for dim, (low, high, interior) in enumerate(eqn.params["padding_config"]):
        rows = np.moveaxis(numbers, walk.lead + dim, 0)
        length = len(rows) + interior * max(len(rows) - 1, 0)
        ones = [1] * (rows.ndim - walk.lead - 1)
        total = max(0, low) + length + max(0, high)
        spread = np.broadcast_to(filler.reshape((*filler.shape, *ones)), (total, *rows.shape[1:])).copy()
        spread[max(0, low) : max(0, low) + length : interior + 1] = rows
        numbers = np.moveaxis(spread[max(0, -low) : total - max(0, -high)], 0, walk.lead + dim)
    return [numbers]


def _parts(walk: EntryWalk, eqn: Any, starts: list[Numbers], shape: Sequence[int], sizes: Sequence[int]) -> Any:
    """On each shard, where a part of an array of a shape begins, moved so that it is within."""
    for at in np.ndindex(*walk.mesh.values()):
        firsts = [int(walk.integers(start)[at]) for start in starts]
        firsts = [max(0, min(first, long - size)) for first, long, size in zip(firsts, shape, sizes, strict=True)]
        yield at, tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


def _dynamic_slice(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    numbers, *starts = operands
    sizes, shape = eqn.params["slice_sizes"], numbers.shape[walk.lead :]
    found = np.empty((*walk.mesh.values(), *sizes), np.int64)
    for at, part in _parts(walk, eqn, starts[: len(shape)], shape, sizes):
        found[at] = numbers[at][part]
    return [found]


def _dynamic_update_slice(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    into, new, *starts = operands
    found = into.copy()
    for at, part in _parts(walk, eqn, starts, into.shape[walk.lead :], new.shape[walk.lead :]):
        found[(*at, *part)] = new[at]
    return [found]


class _Places:
    """Where a gather takes entries from, or a scatter puts them: the same of both."""

    def __init__(self, eqn: Any, window: Any, gone: Any, by: Any, batching: Any, batching_of_indices: Any) -> None:
        self.window, self.gone, self.by = tuple(window), tuple(gone), tuple(by)
        self.batching, self.batching_of_indices = tuple(batching), tuple(batching_of_indices)
        self.is_moved = "CLIP" in str(eqn.params["mode"])

    def of(self, indices: Numbers, shape: tuple[int, ...], sizes: Sequence[int], rank: int) -> Numbers:
        """The places in an array of a shape, flat; -1 for those without."""
        batch = indices.shape[:-1]
        starts = np.zeros((*batch, len(shape)), np.int64)
        starts[..., list(self.by)] = indices
        for dim, of in zip(self.batching, self.batching_of_indices, strict=True):
            starts[..., dim] = np.arange(batch[of]).reshape([-1 if at == of else 1 for at in range(len(batch))])
        limits = np.array(shape) - np.array(sizes)
        is_within = np.all((starts >= 0) & (starts <= limits), -1) | self.is_moved
        starts = np.clip(starts, 0, limits)
        left = [dim for dim in range(len(shape)) if dim not in (*self.gone, *self.batching)]
        steps = np.indices([sizes[dim] for dim in left])
        offsets = np.zeros((*steps.shape[1:], len(shape)), np.int64)
        for dim, step in zip(left, steps, strict=True):
            offsets[..., dim] = step
        places = starts[(..., *[None] * len(left), slice(None))] + offsets
        flat = np.ravel_multi_index(tuple(np.moveaxis(places, -1, 0)), shape) if shape else places.sum(-1)
        flat = np.where(np.expand_dims(is_within, tuple(range(len(batch), len(batch) + len(left)))), flat, -1)
        others = iter(range(len(batch)))
        windows = iter(range(len(batch), len(batch) + len(left)))
        return flat.transpose([next(windows) if dim in self.window else next(others) for dim in range(rank)])


def _gather(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    numbers, indices = operands
    params, of = eqn.params, eqn.params["dimension_numbers"]
    places = _Places(
        eqn, of.offset_dims, of.collapsed_slice_dims, of.start_index_map, of.operand_batching_dims,
        of.start_indices_batching_dims,
    )  # fmt: skip
    shape, known = numbers.shape[walk.lead :], walk.integers(indices)
    found = np.empty((*walk.mesh.values(), *eqn.outvars[0].aval.shape), np.int64)
    outside = walk.polynomials.atom("outside", (str(params["mode"]), repr(params.get("fill_value"))))
    has_filler = "FILL" in str(params["mode"])
    for at in np.ndindex(*walk.mesh.values()):
        flat = places.of(known[at], shape, params["slice_sizes"], found.ndim - walk.lead)
        if not has_filler and (flat < 0).any():
            raise NotKnown("it takes entries from outside of an array")
        found[at] = np.where(flat < 0, outside, numbers[at].ravel()[flat])
    return [found]


def _scatter(walk: EntryWalk, eqn: Any, operands: list[Numbers]) -> list[Numbers]:
    into, indices, updates = operands
    of, table, is_sum = eqn.params["dimension_numbers"], walk.polynomials, eqn.primitive.name == "scatter-add"
    if is_sum and (kind_of(eqn.invars[0].aval.dtype) == "u" or is_narrow(eqn.invars[0].aval.dtype)):
        raise NotKnown("it adds numbers that go round, or are rounded")
    places = _Places(
        eqn, of.update_window_dims, of.inserted_window_dims, of.scatter_dims_to_operand_dims,
        of.operand_batching_dims, of.scatter_indices_batching_dims,
    )  # fmt: skip
    shape, known = into.shape[walk.lead :], walk.integers(indices)
    window = iter([updates.shape[walk.lead + dim] for dim in of.update_window_dims])
    gone = (*of.inserted_window_dims, *of.operand_batching_dims)
    sizes = [1 if dim in gone else next(window) for dim in range(len(shape))]
    found = into.copy()
    for at in np.ndindex(*walk.mesh.values()):
        flat = places.of(known[at], shape, sizes, updates.ndim - walk.lead).ravel()
        taken, made = flat[flat >= 0], found[at].ravel()
        if not is_sum and len(set(taken.tolist())) < len(taken):
            raise NotKnown("it writes twice at the same place")
        for place, number in zip(flat.tolist(), updates[at].ravel().tolist(), strict=True):
            if place >= 0:
                made[place] = table.total([(int(made[place]), 1), (number, 1)]) if is_sum else number
        found[at] = made.reshape(shape)
        walk.polynomials.spend(len(flat))
    return [found]


MOVING_RULES: dict[str, EntryRule] = {
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "transpose": _transpose,
    "slice": _slice,
    "rev": _reversed,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "split": _split,
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    **dict.fromkeys(("scatter", "scatter-add"), _scatter),
}
