"""The common case, decided fast: an array that plainly fits its hint.

Everything that depends only on a hint and a region is worked out once; a check is then one look at
the value's type and one comparison per dim. It only ever says yes. All else, every failure included,
goes the long way through `leaf`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from .. import _jax
from ..notation.layout import Layout
from ..notation.nodes import Anything, Dim, Name, Number, Rest
from ..notation.sizes import Bound, Sizes, Subject
from .array import ArrayHint
from .memory import recall
from .scope import Region

_MOST_KINDS = 64


class PlainDim(NamedTuple):
    """A dim whose global size is a name, a number (``exactly``), or neither of them."""

    name: str | None
    exactly: int | None
    axes: tuple[str, ...]
    layout: frozenset[tuple[str, ...]]
    held: int
    split: int


class Fitted(NamedTuple):
    """A traced value that fitted.

    Attributes:
      before: the sizes that were known.
      sizes: those with what it bound.
      cls: its class.
      type: its type.
      extra: mesh axes over which it varies by its type, and its hint does not mention.
    """

    before: Sizes
    sizes: Sizes
    cls: type
    type: Any
    extra: frozenset[str]


@dataclass(frozen=True, slots=True)
class Plain:
    """What a hint plainly asks for in a region.

    Attributes:
      dims: its dims.
      watched: mesh axes over which JAX's manual type is compared; None where JAX does not say.
      forbidden: those of them over which a value may not vary, unless it is known to be equal.
      owed: those of them over which it must, since its sum is owed.
      read: mesh axes over which the reading of the body finds out whether it is equal; None at a boundary.
      is_entering: whether values are whole, so that what lies on Explicit axes goes the long way.
      last: what fitted last, which often comes next, too: under None what bound nothing new, so that it does not
        matter what it was called; else by what it was called. Bounded.
      seen: kinds of arrays, by class, class of type, and dtype, that were found to fit.
    """

    dims: tuple[PlainDim, ...]
    watched: frozenset[str] | None
    forbidden: frozenset[str]
    owed: frozenset[str]
    read: frozenset[str] | None
    is_entering: bool
    last: dict[Subject | None, Fitted] = field(default_factory=dict)
    seen: set[tuple[type, type, Any]] = field(default_factory=set)

    def match(self, value: Any, sizes: Sizes, subject: Subject) -> tuple[Sizes, frozenset[str]] | None:
        """The sizes with what a value binds, and the axes over which it remains to be read whether it is equal.

        None if it does not plainly fit.
        """
        facts = _jax.facts(value)
        # JAX has one object for all types that are equal: the same one is of the same dtype, shape and sharding.
        for key in (None, subject):
            fitted = self.last.get(key)
            if fitted and fitted.type is facts and fitted.before is sizes and fitted.cls is type(value):
                break
        else:
            fitted = self._fitted(value, facts, sizes, subject)
        if fitted is None:
            return None
        if not fitted.extra:
            return fitted.sizes, fitted.extra
        alike = self._alike(value, fitted.extra)
        return None if alike is None else (fitted.sizes, alike)

    def _fitted(self, value: Any, facts: Any, sizes: Sizes, subject: Subject) -> Fitted | None:
        if _kind(value, facts) not in self.seen or not self.lies_right(value, facts):
            return None
        found = self.match_shape(facts.shape, sizes, subject)
        if found is None:
            return None
        extra = _jax.manual_type_in(facts).varying & self.forbidden if self.forbidden else self.forbidden
        fitted = Fitted(sizes, found, type(value), facts, extra)
        if facts is not value:  # an array is no type, and is not kept
            if len(self.last) >= _MOST_KINDS:
                self.last.clear()
            self.last[subject if found is not sizes else None] = fitted
        return fitted

    def _alike(self, value: Any, extra: frozenset[str]) -> frozenset[str] | None:
        """The axes of these over which it is not known to be equal; None if it cannot be, or is not read."""
        if self.read is None:
            return None
        known = recall(value)
        if known is not None:
            extra = extra - known.equal
            if any(not extra.isdisjoint(part) for part in (*known.parts, known.left)):
                return None
        return extra if extra <= self.read else None

    def match_shape(self, shape: tuple[int, ...], sizes: Sizes, subject: Subject) -> Sizes | None:
        """The sizes with what a shape binds, if it fits."""
        if len(shape) != len(self.dims):
            return None
        for index, (size, (name, exactly, axes, layout, held, split)) in enumerate(zip(shape, self.dims, strict=True)):
            whole = size * held
            if size % split or (exactly is not None and exactly != whole):
                return None
            if name is None:
                continue
            bound = sizes.bound.get(name)
            if bound is None:
                sizes = sizes.bind(name, Bound(whole, subject, index, layout))
            elif bound.size != whole:
                return None
            elif axes not in bound.layouts:
                sizes = sizes.seen(name, axes)
        return sizes

    def lies_right(self, value: Any, facts: Any) -> bool:
        """Whether a value varies as it should; a whole one has no sharding in its type."""
        if self.is_entering:
            return _jax.explicit_spec(value) is None
        if self.watched is None:
            return True
        kind = _jax.manual_type_in(facts)
        if kind.reduced:
            return False
        return not (kind.unreduced or self.owed) or self.owed == (kind.unreduced & self.watched) | (
            self.owed & kind.varying
        )

    def learn(self, value: Any) -> None:
        """Remember the kind of a value that fitted."""
        if len(self.seen) < _MOST_KINDS and hasattr(value, "dtype"):
            self.seen.add(_kind(value, _jax.facts(value)))


def _kind(value: Any, facts: Any) -> tuple[type, type, Any]:
    return (type(value), type(facts), getattr(facts, "dtype", None))


def plain_of(hint: ArrayHint, region: Region) -> Plain | None:
    """What a hint plainly asks for in a region; None where that takes the long way.

    That is any number of dims, a size of 1, a size per leaf, an expression, a mark that leaves the
    region, and a global value as it stands, whose sharding is looked at.
    """
    found = region.known.plain.get(hint, hint)
    if found is hint:
        found = region.known.plain[hint] = _plain_of(hint, region)
    return found


def _plain_of(hint: ArrayHint, region: Region) -> Plain | None:
    layout = region.layout(hint)
    if not isinstance(layout, Layout) or layout.reduced:
        return None
    if region.role == "value" and not region.held:
        return None
    if region.role == "boundary" and (layout.varying or layout.unreduced or region.crossed & region.explicit):
        return None
    held, split = region.sizes, dict(region.split)
    dims: list[PlainDim] = []
    for dim, axes in zip(hint.spec.dims, layout.parts, strict=True):
        name, exactly = _plain_size(dim)
        if name is None and exactly is None and not isinstance(getattr(dim, "size", None), Anything):
            return None
        whole, parts = prod(held.get(a, 1) for a in axes), prod(split.get(a, 1) for a in axes)
        dims.append(PlainDim(name, exactly, axes, frozenset({axes}), whole, parts))
    watched = region.watched if region.typed and region.held else None
    forbidden = (watched or frozenset()) - layout.sharded - layout.varying - layout.unreduced
    read = region.read if region.role == "value" else None
    is_entering = not region.held and region.role == "boundary"
    return Plain(tuple(dims), watched, forbidden, layout.unreduced & (watched or frozenset()), read, is_entering)


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
