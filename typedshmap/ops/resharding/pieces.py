"""Blocks sent in pieces: the pieces that a device needs, and the senders, in as few ppermutes as possible.

A piece is the overlap of a block of the layout before and a block of the layout after. If in every dim one of the two
numbers of blocks divides the other, all pieces have one shape, and all devices need, and can send, the same number of
pieces. Then senders and receivers form a regular bipartite graph, which is a union of perfect matchings (König, 1916);
each matching is a ppermute."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from ...hints.context import SizedAxes
from ...notation.layout import shared_prefix
from ..operation import MeshAxes, shard_count

DimAxes = tuple[MeshAxes, ...]
AxisSizes = Mapping[str, int]
Piece = tuple[int, ...]


def shard_counts(dim_axes: DimAxes, sizes: AxisSizes) -> tuple[int, ...]:
    """The number of blocks of each dim."""
    return tuple(shard_count(axes, sizes) for axes in dim_axes)


def shard_shape(dim_axes: DimAxes, shape: tuple[int, ...], sizes: AxisSizes) -> tuple[int, ...]:
    """The shard shape of a global shape that the axes divide."""
    return tuple(size // shard_count(axes, sizes) for size, axes in zip(shape, dim_axes, strict=True))


def pieces_per_block(before: Sequence[int], after: Sequence[int]) -> int | None:
    """The number of pieces in a block, from the numbers of blocks of each dim; None if pieces differ in shape."""
    if any(old % new and new % old for old, new in zip(before, after, strict=True)):
        return None
    return prod(max(1, old // new) for old, new in zip(before, after, strict=True))


def is_nested(before: DimAxes, after: DimAxes) -> bool:
    """Whether every device has a piece of the block that it needs; no axis has size 1."""
    return all(shared_prefix(old, new) in (old, new) for old, new in zip(before, after, strict=True))


def moved_axes(before: DimAxes, after: DimAxes, sizes: AxisSizes) -> MeshAxes:
    """The axes whose role changes; along all other axes, blocks keep their place."""
    old, new = _places(before, sizes), _places(after, sizes)
    return tuple(axis for axis in sizes if old.get(axis) != new.get(axis))


def _places(dim_axes: DimAxes, sizes: AxisSizes) -> dict[str, tuple[int, int]]:
    """For each axis its dim, and the number of parts into which it and the axes before it divide that dim."""
    return {
        axis: (dim, shard_count(axes[: at + 1], sizes))
        for dim, axes in enumerate(dim_axes)
        for at, axis in enumerate(axes)
    }


class Round(NamedTuple):
    """One ppermute: senders and receivers (empty if devices keep their pieces), and the piece's place in its block."""

    pairs: tuple[tuple[int, int], ...]
    sent: tuple[Piece, ...]
    received: tuple[Piece, ...]


@lru_cache(maxsize=1024)
def rounds(before: DimAxes, after: DimAxes, axes: MeshAxes, sizes: SizedAxes) -> tuple[Round, ...]:
    """The rounds of pieces, for devices counted over ``axes``; a device that has a piece of its new block keeps it."""
    known = dict(sizes)
    pieces = tuple(map(max, shard_counts(before, known), shard_counts(after, known)))
    held, needed = (_Blocks.of(end, axes, known, pieces) for end in (before, after))
    senders, kept = _senders(held, needed), tuple[Round, ...]()
    if all(device in pieces_by_sender for device, pieces_by_sender in enumerate(senders)):
        own_pieces = [pieces_by_sender.pop(device) for device, pieces_by_sender in enumerate(senders)]
        kept = (Round((), held.within(own_pieces), needed.within(own_pieces)),)
    matched = [_perfect_matching(senders) for _ in range(needed.pieces - len(kept))]
    return (*kept, *(_round(pairs, held, needed) for pairs in matched))


def _round(pairs: Mapping[int, tuple[int, Piece]], held: _Blocks, needed: _Blocks) -> Round:
    sent = dict(pairs.values())
    order = range(len(pairs))
    return Round(
        tuple((pairs[device][0], device) for device in order),
        held.within([sent[device] for device in order]),
        needed.within([pairs[device][1] for device in order]),
    )


class _Blocks(NamedTuple):
    """The blocks of a layout over some axes, in pieces: the first piece of each device, and the size of a block."""

    starts: list[Piece]
    extents: Piece

    @classmethod
    def of(cls, dim_axes: DimAxes, axes: MeshAxes, sizes: AxisSizes, pieces: Piece) -> _Blocks:
        at = np.indices([sizes[axis] for axis in axes]).reshape(len(axes), -1)
        starts = np.zeros((len(dim_axes), at.shape[1]), int)
        for axis, (dim, parts) in _places(dim_axes, sizes).items():
            if axis in axes:
                starts[dim] += at[axes.index(axis)] * (pieces[dim] // parts)
        return cls(list(map(tuple, starts.T.tolist())), shard_shape(dim_axes, pieces, sizes))

    @property
    def pieces(self) -> int:
        return prod(self.extents)

    def block_of(self, piece: Piece) -> Piece:
        """The first piece of the block that has a piece."""
        return tuple(at - at % extent for at, extent in zip(piece, self.extents, strict=True))

    def of_device(self, device: int) -> list[Piece]:
        ranges = (range(at, at + extent) for at, extent in zip(self.starts[device], self.extents, strict=True))
        return list(product(*ranges))

    def within(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        """The position of one piece per device in the device's block."""
        pairs = zip(pieces, self.starts, strict=True)
        return tuple(tuple(at - start for at, start in zip(piece, starts, strict=True)) for piece, starts in pairs)


def _senders(held: _Blocks, needed: _Blocks) -> list[dict[int, Piece]]:
    """For each device its senders and their pieces; all send the same number, and a device keeps a piece it has."""
    holders: dict[Piece, list[int]] = {}
    for device, start in enumerate(held.starts):
        holders.setdefault(start, []).append(device)
    left = [needed.pieces] * len(held.starts)
    senders = [dict[int, Piece]() for _ in left]
    missing = list[tuple[int, Piece]]()
    for device in range(len(left)):
        for piece in needed.of_device(device):
            if held.block_of(piece) == held.starts[device]:
                senders[device][device] = piece
                left[device] -= 1
            else:
                missing.append((device, piece))
    for device, piece in missing:
        able = holders[held.block_of(piece)]
        while not left[able[-1]]:
            able.pop()
        senders[device][able[-1]] = piece
        left[able[-1]] -= 1
    return senders


def _perfect_matching(senders: list[dict[int, Piece]]) -> dict[int, tuple[int, Piece]]:
    """One sender and piece for each device, removed from ``senders``; by augmenting paths, breadth first."""
    receiver_of, sender_of = dict[int, int](), dict[int, int]()
    for root in range(len(senders)):
        asked_by, waiting = dict[int, int](), deque([root])
        free: int | None = None
        while free is None:
            receiver = waiting.popleft()
            for sender in senders[receiver].keys() - asked_by.keys():
                asked_by[sender] = receiver
                if sender not in receiver_of:
                    free = sender
                    break
                waiting.append(receiver_of[sender])
        while free is not None:
            receiver = asked_by[free]
            receiver_of[free] = receiver
            sender_of[receiver], free = free, sender_of.get(receiver)
    return {receiver: (sender, senders[receiver].pop(sender)) for receiver, sender in sorted(sender_of.items())}


def shape_text(shape: tuple[int, ...]) -> str:
    """``64x32``"""
    return "x".join(map(str, shape)) or "scalar"
