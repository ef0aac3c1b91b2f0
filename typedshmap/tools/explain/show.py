"""``show``: the slices of an array on the devices of a mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import product
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from ... import _jax
from ...drawing import UNSHARDED, colours_of, ink
from ...errors import MeshAxisError
from ...errors.phrases import mesh_text, quoted_axes, titled
from ...errors.requirements import merge_sizes
from ...inspection import HintedLeaf, MeshLike, leaves_of
from ...records import Record
from .explained_call import meshes_of
from .model import array_text
from .tables import Table

MOST_ROWS = 64
"""The maximal number of slices in a text, and of rows or columns in a drawing."""


MOST_DEVICES = 1 << 17


class Block(Record):
    """One slice of a global array, and the devices that hold it.

    Attributes:
      slices: for each dim the start and the stop.
      devices: the ids of the devices that hold it; on an AbstractMesh their numbers, with the last axis fastest.
    """

    slices: tuple[tuple[int, int], ...]
    devices: tuple[int, ...]


class ShownArray(Record):
    """An array that is sharded over a mesh.

    Attributes:
      name: its path in a class of hints; empty for one array.
      hint: its hint.
      dtype: JAX's short name of its dtype.
      shape: the global shape.
      shard: the shape of one shard.
      dims: the dims in the hint.
      axes: for each dim the mesh axes that it is sharded over, major to minor.
      unreduced: the mesh axes over which each device holds an addend.
      varying: the mesh axes over which the devices may hold different values.
      blocks: its slices, with the last dim fastest.
    """

    name: str
    hint: str
    dtype: str
    shape: tuple[int, ...]
    shard: tuple[int, ...]
    dims: tuple[str, ...]
    axes: tuple[tuple[str, ...], ...]
    unreduced: tuple[str, ...]
    varying: tuple[str, ...]
    blocks: tuple[Block, ...]

    @property
    def title(self) -> str:
        """Its name and its hint."""
        return f"{self.name}: {self.hint}" if self.name else self.hint

    @property
    def types(self) -> str:
        """Its type globally and on one device."""
        of_all, of_one = (array_text(self.dtype, shape) for shape in (self.shape, self.shard))
        return f"{of_all}, on each device {of_one}"

    @property
    def notes(self) -> list[str]:
        """Notes on unreduced and varying axes, which slices do not show."""
        due = [f"each device holds an addend of the sum over {quoted_axes(self.unreduced)}"] if self.unreduced else []
        return [*due, *([f"its values may differ over {quoted_axes(self.varying)}"] if self.varying else [])]


class Shown(Record):
    """Arrays on a mesh: text by ``str``, a drawing in a notebook.

    Attributes:
      mesh: the sizes of the mesh axes, in order.
      arrays: the arrays, in the order of the hints.
    """

    mesh: tuple[tuple[str, int], ...]
    arrays: tuple[ShownArray, ...]

    def __str__(self) -> str:
        return "\n\n".join([f"mesh {mesh_text(self.mesh)}", *map(_table, self.arrays)])

    def __repr__(self) -> str:
        return titled(self)

    def _repr_html_(self) -> str:
        """The drawings, one below the other."""
        return "".join(f'<div style="overflow:auto;max-height:90vh">{svg}</div>' for svg in self.drawings())

    def drawings(self) -> list[str]:
        """An SVG for each array: a grid of slices with their devices, in the colours of the mesh axes."""
        mesh = dict(self.mesh)
        return [_drawing(array, mesh, colours_of(mesh)) for array in self.arrays]


def show(
    T: Any,
    /,
    mesh: MeshLike | None = None,
    *,
    sizes: Mapping[str, Any] | None = None,
    **dims: int | tuple[int, ...],
) -> Shown:
    """Show the slices of an array on the devices of a mesh.

    ```python
    print(show(Float[Array, "[batch/dp] [ff/tp]"], "dp=4,tp=2", batch=8, ff=32))
    ```

    Args:
      T: a hint, its dims as a string, or a class whose fields have hints.
      mesh: a ``jax.sharding.Mesh`` or ``AbstractMesh``, a dict of sizes, or a text ``"dp=4,tp=2"``; by default the
        ambient one. It needs no devices.
      sizes: sizes by name as in a dict, for a dim that has the name of an option.
      **dims: the global size of each name in the hints; a tuple of sizes for ``*name``.

    Returns:
      The arrays with their slices: ``str`` is a table, and notebooks draw them.

    Raises:
      ShapeError: for a missing, unknown or invalid size, and for a dim that does not divide over its mesh axes.
      MeshAxisError: without a mesh, or for an axis that it does not have.
      StructureError: for a hint with an open number of arrays.
    """
    sizes, ambient = merge_sizes("show", sizes, dims), _jax.mesh.ambient_mesh() if mesh is None else mesh
    abstract = meshes_of(ambient, None, (), "show")[0]  # refuses other meshes
    given = ambient if isinstance(ambient, Mesh) else abstract
    if given.size > MOST_DEVICES:
        raise MeshAxisError(f"show: the mesh has {given.size} devices; those of at most {MOST_DEVICES} are listed")
    devices = _device_ids(given)
    leaves = leaves_of(T, sizes, mesh=abstract, verb="show")
    return Shown(given.shape_tuple, tuple(_shown(leaf, given.shape, devices) for leaf in leaves))


def _device_ids(mesh: Mesh | AbstractMesh) -> np.ndarray[Any, Any]:
    """The ids of a mesh's devices, in the shape of the mesh."""
    if isinstance(mesh, Mesh):
        return np.vectorize(lambda device: device.id, otypes=[int])(mesh.devices)
    return np.arange(math.prod(mesh.axis_sizes)).reshape(mesh.axis_sizes)


def _shown(leaf: HintedLeaf, mesh: Mapping[str, int], devices: np.ndarray[Any, Any]) -> ShownArray:
    """One array with its slices."""
    hint, shard, names = leaf.hint, leaf.shard_shape, list(mesh)
    assert hint is not None and hint.layout is not None
    layout = hint.layout
    counts = [math.prod(mesh[axis] for axis in axes) for axes in layout.dim_axes]
    major = [names.index(axis) for axes in layout.dim_axes for axis in axes]
    holders = devices.transpose([*major, *(at for at in range(len(names)) if at not in major)]).reshape(*counts, -1)
    blocks = (
        Block(
            tuple((at * size, (at + 1) * size) for at, size in zip(index, shard, strict=True)),
            tuple(sorted(map(int, holders[index]))),
        )
        for index in product(*map(range, counts))
    )
    return ShownArray(
        name=leaf.name,
        hint=hint.text,
        dtype=_jax.array.short_dtype(leaf.value.dtype),
        shape=leaf.value.shape,
        shard=shard,
        dims=hint.dims,
        axes=layout.dim_axes,
        unreduced=tuple(axis for axis in names if axis in layout.unreduced),
        varying=tuple(axis for axis in names if axis in layout.varying),
        blocks=tuple(blocks),
    )


def devices_text(devices: Sequence[int]) -> str:
    """``0``, ``0 1``, ``0-511``: consecutive ids as a range, many other ids by the first and their number."""
    if len(devices) > 2 and devices[-1] - devices[0] == len(devices) - 1:
        return f"{devices[0]}-{devices[-1]}"
    if len(devices) > 8:
        return f"{' '.join(map(str, devices[:4]))} ... {devices[-1]} ({len(devices)})"
    return " ".join(map(str, devices))


def _table(array: ShownArray) -> str:
    """A row for each slice."""
    names = ("", *array.dims, "devices")
    rows = [
        ("", *(_slices(block, [dim]) for dim in range(len(array.dims))), devices_text(block.devices))
        for block in array.blocks[:MOST_ROWS]
    ]
    left = len(array.blocks) - MOST_ROWS
    more = [f"  ... and {left} more slices"] if left > 0 else []
    return "\n".join([f"{array.title}: {array.types}", *array.notes, str(Table(names, rows, names)), *more])


# The drawing

_CELL, _CHARACTER, _MARGIN, _BAR, _LINE = 30, 7.3, 10, 8, 18


def _drawing(array: ShownArray, mesh: Mapping[str, int], colours: Mapping[str, str]) -> str:
    """A grid: the last sharded dim from left to right, the other dims from the top down."""
    dims = range(len(array.shape))
    sharded = [dim for dim in dims if array.axes[dim]]
    across = sharded[-1:] if len(sharded) > 1 else [*dims[-1:]]
    down = [dim for dim in sharded if dim not in across] or [*dims[:-1][:1]]
    slices = np.array(array.blocks, object).reshape([math.prod(mesh[axis] for axis in axes) for axes in array.axes])
    grid = slices.transpose([*(dim for dim in dims if dim not in across), *across])
    grid = grid.reshape(-1, grid.shape[-1] if across else 1)
    shown = grid[:MOST_ROWS, :MOST_ROWS]
    column_names, row_names = [_slices(block, across) for block in shown[0]], [_slices(row[0], down) for row in shown]
    cells = [[devices_text(block.devices) for block in row] for row in shown]
    width = max(_CELL, _widest([*column_names, *(text for row in cells for text in row)]) + 12)
    names_down = " ".join(array.dims[dim] for dim in down)
    titles = [array.title, array.types, *array.notes, *_left_out(grid.shape)]
    left, top = _MARGIN + _widest([*row_names, names_down]) + _BAR + 6, _MARGIN + _LINE * (len(titles) + 2) + _BAR
    body = [_words(_MARGIN, _MARGIN + _LINE * (at + 0.5), title, "start") for at, title in enumerate(titles)]
    if across:
        head = top - _BAR - _LINE
        body.append(_words(left + width * len(column_names) / 2, head - _LINE / 2, array.dims[across[0]]))
        body.append(_words(_MARGIN, head + _LINE / 2, names_down, "start"))
    for column, name in enumerate(column_names):
        x = left + column * width
        body.append(_words(x + width / 2, top - _BAR - _LINE / 2, name))
        fills = _fills(array, across, colours)
        part = (width - 2) / len(fills)
        body += [_box(x + 1 + at * part, top - _BAR, part, _BAR - 2, fill) for at, fill in enumerate(fills)]
    for row, name in enumerate(row_names):
        y = top + row * _CELL
        body.append(_words(left - _BAR - 4, y + _CELL / 2, name, "end"))
        fills = _fills(array, down, colours) if down else []
        body += [
            _box(left - _BAR, y + 1 + at * (_CELL - 2) / len(fills), _BAR - 2, (_CELL - 2) / len(fills), fill)
            for at, fill in enumerate(fills)
        ]
        for column, text in enumerate(cells[row]):
            x = left + column * width
            body += [
                _box(x, y, width, _CELL, 'fill="#f6f8fa" stroke="#8c959f"'),
                _words(x + width / 2, y + _CELL / 2, text),
            ]
    size = max(left + width * len(column_names), _widest(titles) + _MARGIN) + _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size:.0f}" height="{top + _CELL * len(cells) + _MARGIN:.0f}" '
        f'role="img" aria-label="{escape(array.title, quote=True)}" '
        f'style="background:#ffffff;font:12px ui-monospace,Menlo,Consolas,monospace">{"".join(body)}</svg>'
    )


def _slices(block: Block, dims: Sequence[int]) -> str:
    return " ".join(f"{start}:{stop}" for start, stop in (block.slices[dim] for dim in dims))


def _widest(texts: Sequence[str]) -> float:
    """The width of the longest text in a drawing."""
    return _CHARACTER * max(map(len, texts))


def _fills(array: ShownArray, dims: Sequence[int], colours: Mapping[str, str]) -> list[str]:
    """The colours of the mesh axes of some dims, major to minor; grey if these are unsharded."""
    axes = [axis for dim in dims for axis in array.axes[dim]]
    return [f'fill="{colour}"' for colour in [colours[axis] for axis in axes] or [UNSHARDED]]


def _words(x: float, y: float, text: str, anchor: str = "middle") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="central"'
    return f'<text {place} fill="{ink("")}" xml:space="preserve">{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, paint: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {paint}/>'


def _left_out(counts: Sequence[int]) -> list[str]:
    """The slices that a drawing does not show."""
    pairs = zip(counts, ("rows", "columns"), strict=True)
    cuts = [f"the first {MOST_ROWS} of {count} {what}" for count, what in pairs if count > MOST_ROWS]
    return [", ".join(cuts)] if cuts else []
