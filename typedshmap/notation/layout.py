"""Which mesh axes a spec's tokens mean: aliases applied, every axis known and used once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from .nodes import Dim, Span, Spec

Aliases = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Per token of a spec its mesh axes, major to minor; and the axes of its marks."""

    parts: tuple[tuple[str, ...], ...]
    unreduced: frozenset[str] = frozenset()
    reduced: frozenset[str] = frozenset()
    varying: frozenset[str] = frozenset()

    @property
    def sharded(self) -> frozenset[str]:
        return frozenset(axis for axes in self.parts for axis in axes)


@dataclass(frozen=True, slots=True)
class UnknownAxis:
    """A hint names a mesh axis that is neither in the mesh nor an alias.

    Attributes:
      written: the name in the hint; another than ``axis`` for an alias.
      axis: the mesh axis that it means.
      mesh: the mesh's axes.
      aliases: other names that would do.
    """

    written: str
    axis: str
    span: Span
    mesh: tuple[str, ...]
    aliases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AxisTwice:
    """Two names of a hint mean the same mesh axis."""

    axis: str
    span: Span


def resolve(spec: Spec, aliases: Aliases, mesh: Collection[str] | None) -> Layout | UnknownAxis | AxisTwice:
    """Replace the names in a spec by mesh axes.

    Args:
      spec: what was written.
      aliases: names that stand for mesh axes, several or none.
      mesh: the mesh's axis names; None where no mesh is known, so that any name will do.
    """
    used: set[str] = set()
    meaning: dict[str, tuple[str, ...]] = {}
    for name, span in _written(spec):
        meaning[name] = aliases.get(name, (name,))
        for axis in meaning[name]:
            if mesh is not None and axis not in mesh:
                return UnknownAxis(name, axis, span, tuple(mesh), tuple(a for a in aliases if a not in mesh))
            if axis in used:
                return AxisTwice(axis, span)
            used.add(axis)
    parts = tuple(_axes_of(dim, meaning) for dim in spec.dims)
    marked = {sign: frozenset(a for m in spec.marks if m.sign == sign for a in meaning[m.axis]) for sign in "+-~"}
    return Layout(parts, marked["+"], marked["-"], marked["~"])


def _written(spec: Spec) -> Iterator[tuple[str, Span]]:
    for dim in spec.dims:
        if isinstance(dim, Dim) and dim.axes is not None:
            yield from ((name, dim.axes.span) for name in dim.axes.names)
    yield from ((mark.axis, mark.span) for mark in spec.marks)


def _axes_of(dim: object, meaning: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if not isinstance(dim, Dim) or dim.axes is None:
        return ()
    return tuple(axis for name in dim.axes.names for axis in meaning[name])
