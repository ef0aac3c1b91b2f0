"""Check one array against its hint: type, dtype, shape, and how it varies or lies over the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _jax
from ..errors.failures import (
    BoundaryMark,
    Failure,
    NotAnArray,
    Owes,
    OwesNothing,
    StaysReduced,
    Varies,
    WrongDtype,
)
from ..notation.layout import Layout
from ..notation.match import Match, UnboundNames, match
from ..notation.sizes import Sizes, Subject
from .array import ArrayHint
from .dtypes import takes
from .lying import region_of, wrong_lying
from .memory import recall
from .scope import Region


@dataclass(frozen=True, slots=True)
class Fit:
    """An array that fits its hint.

    Attributes:
      sizes: the sizes known now.
      unbound: a dim that waits for others.
      alike: mesh axes over which JAX types it as varying and its hint says that it is equal, which is
        found out once the body is read.
    """

    sizes: Sizes
    unbound: UnboundNames | None
    alike: frozenset[str] = frozenset()


def check_leaf(
    value: Any,
    hint: ArrayHint,
    region: Region,
    sizes: Sizes,
    subject: Subject,
    arguments: Mapping[str, Any],
    leaf: str | None = None,
) -> Fit | Failure:
    """Check one array against its hint; nothing is bound unless it fits."""
    wrong = _wrong_type(value, hint, region)
    if wrong is not None:
        return Failure(wrong, subject, hint.text)
    region = region_of(value, region)
    layout = region.layout(hint)
    if not isinstance(layout, Layout):
        return Failure(layout, subject, hint.text, _jax.type_text(value))
    shape = tuple(getattr(value, "shape", ()))
    found = match(shape, hint.spec, layout, region.view(arguments), sizes, subject, leaf)
    what: object = found if not isinstance(found, Match) else _wrong_dtype(value, hint, region)
    if what is None and region.role != "value":
        what = _wrong_marks(layout, region)
    if what is None:
        what = _wrong_over_mesh(value, layout, hint, region)
    if what is not None:
        return Failure(what, subject, hint.text, _jax.type_text(value))
    assert isinstance(found, Match)
    alike = _extra(value, layout, region) if region.read and region.typed else frozenset[str]()
    return Fit(found.sizes, found.unbound, alike)


def _wrong_type(value: Any, hint: ArrayHint, region: Region) -> NotAnArray | None:
    if region.role == "placement" and isinstance(value, _jax.SHAPES):
        return None
    if region.role != "value" and isinstance(value, (*_jax.ARRAYS, *_jax.SCALARS)):
        reason = _jax.refusal(value)
        has_dtype = hasattr(value, "dtype") and hint.dtypes is not None
        if reason is not None and has_dtype and not takes(hint.dtypes, _jax.own_dtype(value)):
            return None  # a dtype that JAX does not have is none of the hint's, which says more
        return None if reason is None else NotAnArray(hint.type_text, f"{describe(value)} that JAX refuses ({reason})")
    if hint.takes_type(value):
        return None
    return NotAnArray(hint.type_text, describe(value))


def describe(value: Any) -> str:
    """What a value is, in a sentence: ``None``, ``a list``, ``'text' (str)``."""
    if value is None:
        return "None"
    if isinstance(value, np.generic):
        return f"a NumPy {type(value).__name__.rstrip('_')}"
    if isinstance(value, (str, int, float, complex, bool)):
        return f"{_cut(value)} ({type(value).__name__})"
    if isinstance(value, _jax.ARRAYS):
        return f"{'a NumPy' if not _jax.is_jax_array(value) else 'an'} array"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _cut(value: Any) -> str:
    """A Python scalar or a string, cut short; an integer may have more digits than Python writes."""
    is_huge = isinstance(value, int) and value.bit_length() > 4096
    text = hex(value) if is_huge else repr(value)
    return text if len(text) < 40 else text[:36] + "..."


def _wrong_dtype(value: Any, hint: ArrayHint, region: Region) -> WrongDtype | None:
    if hint.dtypes is None:
        return None
    got = _jax.canonical_dtype(value) if region.role != "value" else _jax.own_dtype(value)
    return None if takes(hint.dtypes, got) else WrongDtype(hint.dtype_name, got)


def _wrong_marks(layout: Layout, region: Region) -> BoundaryMark | None:
    """Marks at a boundary or at rest: ``~`` never, ``+`` and ``-`` on Explicit axes only."""
    for axis in sorted(layout.varying):
        return BoundaryMark("~", axis, "'~' has a meaning only inside a manual region")
    placed = frozenset(axis for axis, _ in region.split) if region.role == "placement" else frozenset[str]()
    for axis in sorted(layout.unreduced & placed):
        return BoundaryMark("+", axis, "no array is placed as addends", "sum it first, and drop the mark")
    for sign, axes in (("+", layout.unreduced), ("-", layout.reduced)):
        for axis in sorted(axes & (region.crossed | placed) - region.explicit):
            reason = f"mesh axis '{axis}' is of type Auto, over which JAX lets no such value in or out"
            cure = f"make '{axis}' an Explicit axis of the mesh, or take the sum inside (psum)"
            return BoundaryMark(sign, axis, reason, cure if sign == "+" else f"make '{axis}' an Explicit axis")
    return None


def _wrong_over_mesh(value: Any, layout: Layout, hint: ArrayHint, region: Region) -> Any:
    if region.is_manual:
        return _wrong_varying(value, layout, region) if region.typed and region.watched else None
    if region.role == "placement" or (region.role == "value" and not _jax.is_jax_array(value)):
        return None
    return wrong_lying(value, layout, hint, region)


def _wrong_varying(value: Any, layout: Layout, region: Region) -> Varies | Owes | OwesNothing | StaysReduced | None:
    """V is in S, P or W; U is in P; each axis of P is in V or U: the rule of the notation's page."""
    order = tuple(axis for axis in region.sizes if axis in region.watched)
    extra = _extra(value, layout, region)
    wrong = _wrong_marks_of(_jax.manual_type(value), layout, region, order)
    # What may turn out to be equal once the body is read is told only beside something else.
    if extra - region.read or (extra and (wrong is not None or _differs(value, extra))):
        known = recall(value)
        agrees = region.role == "boundary" and known is not None and extra <= known.equal
        return varies(tuple(axis for axis in order if axis in extra), region, agrees)
    return wrong


def varies(axes: tuple[str, ...], region: Region, agrees: bool = False) -> Varies:
    """What is wrong with a value that varies over these axes of a region, and what may be written for them there."""
    return Varies(axes, region.role == "boundary", region.crossed & frozenset(axes) <= region.explicit, agrees)


def _wrong_marks_of(
    kind: Any, layout: Layout, region: Region, order: tuple[str, ...]
) -> Owes | OwesNothing | StaysReduced | None:
    """What a value's manual type says of the axes of its hint's marks."""
    if owed := kind.unreduced & region.watched - layout.unreduced:
        return Owes(tuple(axis for axis in order if axis in owed))
    for axis in order:
        if axis in layout.unreduced and axis not in kind.varying | kind.unreduced:
            return OwesNothing(axis, region.sizes[axis])
    if region.role == "boundary" and (kept := kind.reduced & region.watched - layout.reduced):
        return StaysReduced(tuple(axis for axis in order if axis in kept))
    return None


def _extra(value: Any, layout: Layout, region: Region) -> frozenset[str]:
    """The axes over which JAX types a value as varying, its hint does not mention, and it is not known to be equal."""
    extra = extra_by_type(value, layout, region)
    known = recall(value) if extra and region.role == "value" else None
    return extra if known is None else extra - known.equal


def _differs(value: Any, axes: frozenset[str]) -> bool:
    """Whether a value is known to be split over one of the axes, or an addend there, so that shards do not agree."""
    known = recall(value)
    return known is not None and any(not axes.isdisjoint(part) for part in (*known.parts, known.left))


def extra_by_type(value: Any, layout: Layout, region: Region) -> frozenset[str]:
    """The axes over which JAX types a value as varying, and its hint does not mention."""
    return _jax.manual_type(value).varying & region.watched - layout.sharded - layout.unreduced - layout.varying
