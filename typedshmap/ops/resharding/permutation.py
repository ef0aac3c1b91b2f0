"""Which device hands its block to which, where a block changes its device whole."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

from .moves import digits
from .partition import Parts, Sizes


def permutation(before: Parts, after: Parts, axes: tuple[str, ...], sizes: Sizes) -> list[tuple[int, int]]:
    """The pairs of a ppermute, sender and receiver, every device once as each.

    A device that holds the block it needs keeps it.

    Args:
      before: per dim its axes, before.
      after: per dim its axes, after.
      axes: the axes that change their meaning, in the order in which the collective counts devices.
      sizes: the axes' sizes.
    """
    held, needed = _blocks(before, axes, sizes), _blocks(after, axes, sizes)
    senders: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for device, block in enumerate(held):
        if block != needed[device]:
            senders[block].append(device)
    return [(device if held[device] == block else senders[block].pop(), device) for device, block in enumerate(needed)]


def _blocks(parts: Parts, axes: tuple[str, ...], sizes: Sizes) -> list[tuple[int, ...]]:
    """Per device the block it holds, as far as these axes decide it."""
    places = digits(parts, sizes)
    used = [(place, *places[axis]) for place, axis in enumerate(axes) if axis in places]
    blocks: list[tuple[int, ...]] = []
    for device in product(*(range(sizes[axis]) for axis in axes)):
        block = [0] * len(parts)
        for place, dim, stride in used:
            block[dim] += device[place] * stride
        blocks.append(tuple(block))
    return blocks
