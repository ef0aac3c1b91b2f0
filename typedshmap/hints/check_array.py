"""Check one array against its hint: type, dtype, shape, and how it varies or is sharded over the mesh.

A hint is compiled once per mesh context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import jax
import numpy as np

from .. import _jax
from .._jax.array import takes
from ..errors.failures import BoundaryMark, Failure, NotAnArray, OpenDim, Subject, WrongDtype, key_cure
from ..errors.phrases import instance_text
from ..errors.varying import NotUnreduced, UnmarkedReduced, UnmarkedUnreduced, UnmentionedVarying
from ..notation.layout import NO_AXES, Layout, Unresolved
from ..notation.match import CompiledDim, Match, RankMismatch, SizeMismatch, Sizes, compile_dims, match
from ..notation.spec import Dim
from ..records import Record
from .array_hint import ArrayHint
from .context import KnownLayout, MeshContext, Role, lookup_layout, with_cause
from .global_sharding import auto_mark, sharding_mismatch, with_value_mesh


class CompiledHint(Record):
    """A hint compiled for one mesh context.

    Attributes:
      layout: its layout.
      dims: its compiled dims.
      unmentioned: the axes over which a value must not vary, unless it is known to be invarying.
      wrong_mark: the fault of a mark or of an unconstrained dim, for any value.
    """

    layout: Layout | Unresolved
    dims: tuple[CompiledDim, ...] = ()
    unmentioned: frozenset[str] = frozenset()
    wrong_mark: BoundaryMark | OpenDim | None = None


def _compile_hint(hint: ArrayHint, region: MeshContext) -> CompiledHint:
    """Compile a hint for a mesh context, which caches it."""
    layout = region.layout(hint)
    if not isinstance(layout, Layout):
        return region.keep(hint, CompiledHint(layout))
    compiled = CompiledHint(
        layout,
        compile_dims(hint.spec, layout, dict(region.mesh or ()), region.sizes, must_divide=region.role != "value"),
        # JAX checks the results of the region, and also types values as varying over axes of size 1.
        (region.checked_axes | region.boundary_axes) - layout.sharded - layout.unreduced - layout.varying,
        _wrong_mark(hint, layout, region) if region.role != "value" else None,
    )
    return region.keep(hint, compiled)


def check_array(
    value: Any,
    hint: ArrayHint,
    region: MeshContext,
    sizes: Sizes,
    subject: Subject,
    arguments: Mapping[str, Any],
    leaf: str | None = None,
) -> tuple[Match, frozenset[str]] | Failure:
    """Check one array: its match, and the axes over which the analysis of the body must find it invarying."""
    region = with_value_mesh(value, region)
    compiled: CompiledHint = region.plans.get(hint) or _compile_hint(hint, region)
    layout, unmentioned = compiled.layout, NO_AXES
    if (wrong := _wrong_type(value, hint, region.role)) is not None:
        return Failure(wrong, subject, hint.text)
    if not isinstance(layout, Layout):
        return Failure(layout, subject, hint.text, _jax.array.type_text(value))
    aval = _jax.array.aval_of(value)
    result = match(tuple(getattr(aval, "shape", ())), compiled.dims, sizes, subject, arguments, leaf)
    if not isinstance(result, Match):
        if isinstance(result, RankMismatch):
            result = replace(result, cure=key_cure(hint.dtype_name, _jax.array.dtype_name_of(value)))
        elif isinstance(result, SizeMismatch) and region.manual:
            result = replace(result, missing=_missing_axes(result, region))
        return Failure(result, subject, hint.text, _jax.array.type_text(value))
    what = _wrong_dtype(value, hint, region.role) or compiled.wrong_mark
    if what is None and region.manual:
        if region.has_vma and (region.checked_axes or region.boundary_axes):
            manual_type = _jax.array.manual_type_in(aval)
            unmentioned = manual_type.varying & compiled.unmentioned
            if manual_type.unreduced or manual_type.reduced or layout.unreduced:
                wrong_sum = _wrong_unreduced(manual_type, layout, region)
                what = None if wrong_sum is None else with_cause(value, wrong_sum, layout)
    elif what is None and (
        region.role == "boundary" or (region.role == "value" and not layout.is_silent and isinstance(value, jax.Array))
    ):
        what = sharding_mismatch(value, layout, hint, region)
    if unmentioned:
        unmentioned, known, is_wrong = axes_to_infer(value, unmentioned, region)
        # The analysis of the body may still find the value invarying: report this only beside another fault.
        if is_wrong or (unmentioned and what is not None):
            is_result = region.role == "boundary"
            may_be_unreduced = region.boundary_axes & unmentioned <= region.explicit
            agrees = is_result and known is not None and unmentioned <= known.invarying
            addends = known.unreduced & unmentioned if known is not None else NO_AXES
            axes = tuple(axis for axis in region.sizes if axis in (addends or unmentioned))
            what = UnmentionedVarying(axes, is_result, may_be_unreduced, agrees)
            what = with_cause(
                value, UnmarkedUnreduced(axes) if addends else what, region.manual_layout(hint, aval.ndim)
            )
    return (result, unmentioned) if what is None else Failure(what, subject, hint.text, _jax.array.type_text(value))


def _missing_axes(mismatch: SizeMismatch, region: MeshContext) -> tuple[str, ...]:
    """The axes over which other hints shard the dim, if a shard of it has the actual size."""
    if (
        mismatch.axes
        or mismatch.origin is None
        or not isinstance(mismatch.got, int)
        or not isinstance(mismatch.expected, int)
    ):
        return ()
    sharded = (axes for axes in mismatch.origin.layouts if axes)
    sizes = region.sizes
    fits = (axes for axes in sharded if mismatch.got * prod(sizes.get(a, 1) for a in axes) == mismatch.expected)
    return next(fits, ())


def axes_to_infer(
    value: Any, unmentioned: frozenset[str], region: MeshContext
) -> tuple[frozenset[str], KnownLayout | None, bool]:
    """The unmentioned axes still to be inferred, the known layout, and whether the value is known to be wrong."""
    known = lookup_layout(value)
    if known is None:
        return unmentioned, known, not unmentioned <= region.inferred_axes
    if region.role == "value":
        unmentioned = unmentioned - known.invarying
    return unmentioned, known, not unmentioned <= region.inferred_axes or known.differs_over(unmentioned)


def unmentioned_by_type(value: Any, hint: ArrayHint, region: MeshContext) -> frozenset[str]:
    """The axes over which the type of a checked shard varies, and which its hint does not mention."""
    compiled: CompiledHint | None = region.plans.get(hint)
    return frozenset() if compiled is None else _jax.array.manual_type(value).varying & compiled.unmentioned


def _wrong_dtype(value: Any, hint: ArrayHint, role: Role) -> WrongDtype | None:
    if hint.dtypes is None:
        return None
    dtype = _jax.array.canonical_dtype(value) if role != "value" else _jax.array.dtype_name_of(value)
    fits = takes(hint.dtypes, dtype) or (role == "value" and hint.takes_number(value))
    return None if fits else WrongDtype(hint.dtype_name, dtype)


def _wrong_type(value: Any, hint: ArrayHint, role: Role) -> NotAnArray | None:
    if role == "placement" and isinstance(value, _jax.array.SHAPES):
        return None
    if role != "value" and isinstance(value, (*_jax.array.ARRAYS, *_jax.array.SCALARS)):
        reason = _jax.array.why_not_array(value)
        has_dtype = hasattr(value, "dtype") and hint.dtypes is not None
        if reason is not None and has_dtype and not takes(hint.dtypes, _jax.array.dtype_name_of(value)):
            return None  # the mismatch of the dtype is the clearer message
        return None if reason is None else NotAnArray(hint.type_text, f"{describe(value)} that JAX refuses ({reason})")
    return None if hint.takes_type(value) else NotAnArray(hint.type_text, describe(value))


def describe(value: Any) -> str:
    """A value in a message: ``None``, ``a list``, ``'text' (str)``."""
    if value is None:
        return "None"
    if isinstance(value, np.generic):
        return f"a NumPy {type(value).__name__.rstrip('_')}"
    if isinstance(value, (str, int, float, complex, bool)):
        # Python limits the digits of an integer in decimal.
        text = hex(value) if isinstance(value, int) and value.bit_length() > 4096 else repr(value)
        return f"{text if len(text) < 40 else text[:36] + '...'} ({type(value).__name__})"
    if isinstance(value, _jax.array.ARRAYS):
        return f"{'a NumPy' if not _jax.array.is_jax_array(value) else 'an'} array"
    return instance_text(value)


def _wrong_mark(hint: ArrayHint, layout: Layout, region: MeshContext) -> BoundaryMark | OpenDim | None:
    """Check marks at a boundary or in a placement: ``~`` never, ``+`` and ``-`` on Explicit axes; and no open dim."""
    if region.role == "boundary" and region.boundary_axes and layout.unconstrained:
        dim = hint.spec.dims[min(layout.unconstrained)]
        assert isinstance(dim, Dim)
        return OpenDim(str(dim), str(replace(dim, axes=None)), dim.span)
    for axis in sorted(layout.varying):
        return BoundaryMark("~", axis, "'~' has a meaning only inside a manual region")
    for axis in sorted(layout.unreduced & region.placed_axes):
        return BoundaryMark("+", axis, "an array cannot be placed as addends", "sum it first, and drop the mark")
    # For a result of a region, the sum could be taken inside.
    due = "take the sum inside (psum) and " if region.manual else ""
    return auto_mark(layout, (region.boundary_axes | region.placed_axes) - region.explicit, due)


def _wrong_unreduced(
    kind: _jax.array.ManualType, layout: Layout, region: MeshContext
) -> UnmarkedUnreduced | NotUnreduced | UnmarkedReduced | None:
    """Compare partial sums: an unreduced axis needs the mark ``+``, and a marked axis must be varying or unreduced."""
    checked_axes = region.checked_axes | region.boundary_axes
    order = tuple(axis for axis in region.sizes if axis in checked_axes)
    if unreduced := tuple(axis for axis in order if axis in kind.unreduced - layout.unreduced):
        return UnmarkedUnreduced(unreduced)
    for axis in order:
        if axis in layout.unreduced & region.nontrivial_axes and axis not in kind.varying | kind.unreduced:
            return NotUnreduced(axis, region.sizes[axis])
    reduced = tuple(axis for axis in order if axis in kind.reduced - layout.reduced)
    return UnmarkedReduced(reduced) if reduced and region.role == "boundary" else None
