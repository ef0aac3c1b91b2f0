"""Which parts of a dim one process holds, and so what the size of its own data means globally.

Invariant: a process's data has, of each dim, the parts that its devices hold, each once and in their
global order; every part has the same size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

Coordinates: TypeAlias = Mapping[str, int]
"""Where a device stands in a mesh, by the mesh axes' names."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Of how many parts of a dim a process holds how many different ones."""

    held: int
    total: int

    def whole(self, size: int) -> int | None:
        """The global size that a process's own size means; None where that does not divide.

        Where it holds every part nothing is divided here: its data is whole.
        """
        if self.held == self.total:
            return size
        return size // self.held * self.total if size % self.held == 0 else None


def parts_of(axes: tuple[str, ...], mesh: Mapping[str, int], held: Iterable[Coordinates]) -> Parts:
    """The parts of a dim that a process holds.

    Args:
      axes: the mesh axes over which the dim is split.
      mesh: the mesh axes and their sizes.
      held: where the process's devices stand.
    """
    total = 1
    for axis in axes:
        total *= mesh[axis]
    return Parts(len({tuple(device[axis] for axis in axes) for device in held}), total)


def coordinates(mesh: Mapping[str, int], processes: Iterable[int], process: int) -> list[Coordinates]:
    """Where one process's devices stand.

    Args:
      mesh: the mesh axes and their sizes.
      processes: the process of each device, in the mesh's order.
      process: the process.
    """
    places = product(*(range(size) for size in mesh.values()))
    return [
        dict(zip(mesh, place, strict=True)) for place, owner in zip(places, processes, strict=True) if owner == process
    ]
