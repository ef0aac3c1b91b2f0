"""Check one array against its hint: type, dtype, shape, and how it varies or lies over the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
from .scope import Region


@dataclass(frozen=True, slots=True)
class Fit:
    """An array that fits its hint: the sizes known now, and a dim that waits for others."""

    sizes: Sizes
    unbound: UnboundNames | None


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
    return Fit(found.sizes, found.unbound)


def _wrong_type(value: Any, hint: ArrayHint, region: Region) -> NotAnArray | None:
    if region.role == "placement" and isinstance(value, _jax.SHAPES):
        return None
    if region.role != "value" and isinstance(value, (*_jax.ARRAYS, *_jax.SCALARS)):
        reason = _jax.refusal(value)
        if reason is not None and hint.dtypes is not None and not takes(hint.dtypes, _jax.own_dtype(value)):
            return None  # a dtype that JAX does not have is none of the hint's, which says more
        return None if reason is None else NotAnArray(hint.type_text, f"{describe(value)} that JAX refuses ({reason})")
    if hint.takes_type(value):
        return None
    return NotAnArray(hint.type_text, describe(value))


def describe(value: Any) -> str:
    """What a value is, in a sentence: ``None``, ``a list``, ``'text' (str)``."""
    if value is None:
        return "None"
    if isinstance(value, (str, int, float, complex, bool)):
        text = repr(value)
        return f"{text if len(text) < 40 else text[:36] + '...'} ({type(value).__name__})"
    if isinstance(value, _jax.ARRAYS):
        return f"{'a NumPy' if not _jax.is_jax_array(value) else 'an'} array"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


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
    kind, watched = _jax.manual_type(value), region.watched
    order = tuple(axis for axis in region.sizes if axis in watched)
    mentioned = layout.sharded | layout.unreduced | layout.varying
    if extra := kind.varying & watched - mentioned:
        return Varies(tuple(axis for axis in order if axis in extra), region.role == "boundary")
    if owed := kind.unreduced & watched - layout.unreduced:
        return Owes(tuple(axis for axis in order if axis in owed))
    for axis in order:
        if axis in layout.unreduced and axis not in kind.varying | kind.unreduced:
            return OwesNothing(axis, region.sizes[axis])
    if region.role == "boundary" and (kept := kind.reduced & watched - layout.reduced):
        return StaysReduced(tuple(axis for axis in order if axis in kept))
    return None


def layout_axes(layout: Layout) -> frozenset[str]:
    """Every mesh axis that a layout mentions."""
    return layout.sharded | layout.unreduced | layout.reduced | layout.varying
