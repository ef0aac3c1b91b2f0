"""The common case, decided fast: an array that plainly fits its hint.

Everything that depends only on a hint and a region is worked out once; a check is then one look at
the value's type and one comparison per dim. It only ever says yes. All else, every failure and every
new name, goes the long way through `leaf`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from .. import _jax
from ..notation.layout import Layout
from ..notation.nodes import Anything, Dim, Name, Number, Rest
from ..notation.sizes import Sizes
from .array import ArrayHint
from .scope import Region

_MOST_KINDS = 64


@dataclass(frozen=True, slots=True)
class PlainDim:
    """A dim whose global size is a name, a number (``exactly``), or neither of them."""

    name: str | None
    exactly: int | None
    axes: tuple[str, ...]
    held: int
    split: int


@dataclass(frozen=True, slots=True)
class Plain:
    """What a hint plainly asks for in a region.

    Attributes:
      dims: its dims.
      forbidden: mesh axes over which a value may not vary; empty where JAX does not say.
      is_global: whether values are whole, so that what lies on Explicit axes goes the long way.
      seen: kinds of arrays, by class and dtype, that were found to fit.
    """

    dims: tuple[PlainDim, ...]
    forbidden: frozenset[str]
    is_global: bool
    is_typed: bool
    seen: set[tuple[type, Any]] = field(default_factory=set)

    def fits(self, value: Any, sizes: Sizes) -> bool:
        """Whether a value plainly fits and binds nothing new."""
        kind = _kind(value)
        if kind not in self.seen or len(value.shape) != len(self.dims):
            return False
        for size, dim in zip(value.shape, self.dims, strict=True):
            if size % dim.split:
                return False
            if dim.name is not None:
                bound = sizes.bound.get(dim.name)
                if bound is None or bound.size != size * dim.held or dim.axes not in bound.layouts:
                    return False
            elif dim.exactly is not None and dim.exactly != size * dim.held:
                return False
        if self.is_typed:
            manual = _jax.manual_type(value)
            return not (manual.unreduced or manual.reduced) and manual.varying.isdisjoint(self.forbidden)
        return not (self.is_global and _jax.explicit_spec(value) is not None)

    def learn(self, value: Any) -> None:
        """Remember the kind of a value that fitted."""
        if len(self.seen) < _MOST_KINDS and hasattr(value, "dtype"):
            self.seen.add(_kind(value))


def _kind(value: Any) -> tuple[type, Any]:
    return (type(value), getattr(value, "dtype", None))


def plain_of(hint: ArrayHint, region: Region) -> Plain | None:
    """What a hint plainly asks for in a region; None where that takes the long way.

    That is any number of dims, a size of 1, a size per leaf, an expression, a mark that is owed or
    leaves the region, and a global value as it stands, whose sharding is looked at.
    """
    found = region.known.plain.get(hint, hint)
    if found is hint:
        found = region.known.plain[hint] = _plain_of(hint, region)
    return found


def _plain_of(hint: ArrayHint, region: Region) -> Plain | None:
    layout = region.layout(hint)
    if not isinstance(layout, Layout) or layout.unreduced or layout.reduced:
        return None
    if region.role == "value" and not region.held:
        return None
    if region.role == "boundary" and (layout.varying or region.crossed & region.explicit):
        return None
    held, split = region.sizes, dict(region.split)
    dims: list[PlainDim] = []
    for dim, axes in zip(hint.spec.dims, layout.parts, strict=True):
        name, exactly = _plain_size(dim)
        if name is None and exactly is None and not isinstance(getattr(dim, "size", None), Anything):
            return None
        whole, parts = prod(held.get(a, 1) for a in axes), prod(split.get(a, 1) for a in axes)
        dims.append(PlainDim(name, exactly, axes, whole, parts))
    is_typed = region.typed and bool(region.held)
    forbidden = region.watched - layout.sharded - layout.varying
    return Plain(tuple(dims), forbidden, not region.held and region.role == "boundary", is_typed)


def _plain_size(dim: Dim | Rest) -> tuple[str | None, int | None]:
    if isinstance(dim, Rest) or dim.broadcast or dim.per_leaf:
        return None, None
    match dim.size:
        case Name(name):
            return name, None
        case Number(value):
            return None, value
        case _:
            return None, None
