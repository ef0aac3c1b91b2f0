"""Check one array against its hint: type, dtype, shape, and how it varies or is sharded over the mesh.

A hint is compiled once per mesh context: a check is then one look at the value's kind and one comparison per dim, which
gives the sizes, or says no. `check_array` explains a no, and checks by itself what is not compiled: any number of dims,
expressions, sizes per leaf, and the sharding of a global array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import _jax
from ..errors.failures import (
    BoundaryMark,
    Failure,
    NotAnArray,
    NotUnreduced,
    UnmarkedReduced,
    UnmarkedUnreduced,
    UnmentionedVarying,
    WrongDtype,
)
from ..notation.layout import Layout
from ..notation.match import Bound, Match, Sizes, Subject, UnboundNames, match
from ..notation.spec import Anything, Name, Number, Rest
from .array_hint import ArrayHint, takes
from .context import KnownLayout, MeshContext, Role, lookup_layout
from .global_sharding import sharding_mismatch, with_value_mesh


@dataclass(frozen=True, slots=True)
class ArrayMatch:
    """An array that fits its hint.

    Attributes:
      sizes: the sizes known now.
      unbound: a dim whose size depends on names that are not bound yet.
      must_be_invarying: mesh axes that JAX's type has as varying and the hint does not mention; whether the value is
        the same on every shard there is decided once the body is analyzed.
    """

    sizes: Sizes
    unbound: UnboundNames | None
    must_be_invarying: frozenset[str] = frozenset()


def check_array(
    value: Any,
    hint: ArrayHint,
    region: MeshContext,
    sizes: Sizes,
    subject: Subject,
    arguments: Mapping[str, Any],
    leaf: str | None = None,
) -> ArrayMatch | Failure:
    """Check one array against its hint; nothing is bound unless it fits."""
    if (wrong := _wrong_type(value, hint, region.role)) is not None:
        return Failure(wrong, subject, hint.text)
    region = with_value_mesh(value, region)
    layout = region.layout(hint)
    if not isinstance(layout, Layout):
        return Failure(layout, subject, hint.text, _jax.array.type_text(value))
    shape = tuple(getattr(value, "shape", ()))
    found = match(shape, hint.spec, layout, region.view(arguments), sizes, subject, leaf)
    what: object = found if not isinstance(found, Match) else _wrong_dtype(value, hint, region.role)
    if what is None and region.role != "value":
        what = _wrong_marks(layout, region)
    if what is None and region.is_manual:
        what = _wrong_varying(value, layout, region) if region.has_vma and region.checked_axes else None
    elif what is None and (region.role == "boundary" or (region.role == "value" and _jax.array.is_jax_array(value))):
        what = sharding_mismatch(value, layout, hint, region)
    if what is not None:
        return Failure(what, subject, hint.text, _jax.array.type_text(value))
    assert isinstance(found, Match)
    is_inferred = region.inferred_axes and region.has_vma
    return ArrayMatch(
        found.sizes, found.unbound, unmentioned_vma(value, layout, region) if is_inferred else frozenset()
    )


def _wrong_type(value: Any, hint: ArrayHint, role: Role) -> NotAnArray | None:
    if role == "placement" and isinstance(value, _jax.array.SHAPES):
        return None
    if role != "value" and isinstance(value, (*_jax.array.ARRAYS, *_jax.array.SCALARS)):
        reason = _jax.array.why_not_array(value)
        has_dtype = hasattr(value, "dtype") and hint.dtypes is not None
        if reason is not None and has_dtype and not takes(hint.dtypes, _jax.array.dtype_name_of(value)):
            return None  # a dtype that JAX does not have is not one of the hint's, which is the clearer message
        return None if reason is None else NotAnArray(hint.type_text, f"{describe(value)} that JAX refuses ({reason})")
    return None if hint.takes_type(value) else NotAnArray(hint.type_text, describe(value))


def _wrong_dtype(value: Any, hint: ArrayHint, role: Role) -> WrongDtype | None:
    if hint.dtypes is None:
        return None
    got = _jax.array.canonical_dtype(value) if role != "value" else _jax.array.dtype_name_of(value)
    return None if takes(hint.dtypes, got) else WrongDtype(hint.dtype_name, got)


def describe(value: Any) -> str:
    """A value as a message describes it: ``None``, ``a list``, ``'text' (str)``."""
    if value is None:
        return "None"
    if isinstance(value, np.generic):
        return f"a NumPy {type(value).__name__.rstrip('_')}"
    if isinstance(value, (str, int, float, complex, bool)):
        # Python refuses to write an integer of very many digits in decimal.
        text = hex(value) if isinstance(value, int) and value.bit_length() > 4096 else repr(value)
        return f"{text if len(text) < 40 else text[:36] + '...'} ({type(value).__name__})"
    if isinstance(value, _jax.array.ARRAYS):
        return f"{'a NumPy' if not _jax.array.is_jax_array(value) else 'an'} array"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _wrong_marks(layout: Layout, region: MeshContext) -> BoundaryMark | None:
    """Marks at a boundary or at rest: ``~`` never, ``+`` and ``-`` on Explicit axes only."""
    for axis in sorted(layout.varying):
        return BoundaryMark("~", axis, "'~' has a meaning only inside a manual region")
    placed = frozenset(axis for axis, _ in region.entering) if region.role == "placement" else frozenset[str]()
    for axis in sorted(layout.unreduced & placed):
        return BoundaryMark("+", axis, "no array is placed as addends", "sum it first, and drop the mark")
    for sign, axes in (("+", layout.unreduced), ("-", layout.reduced)):
        for axis in sorted(axes & (region.boundary_axes | placed) - region.explicit):
            reason = f"mesh axis '{axis}' is of type Auto, over which JAX lets no such value in or out"
            cure = f"make '{axis}' an Explicit axis of the mesh, or take the sum inside (psum)"
            return BoundaryMark(sign, axis, reason, cure if sign == "+" else f"make '{axis}' an Explicit axis")
    return None


def _wrong_varying(
    value: Any, layout: Layout, region: MeshContext
) -> UnmentionedVarying | UnmarkedUnreduced | NotUnreduced | UnmarkedReduced | None:
    """Compare JAX's manual type with the hint.

    A varying axis must shard a dim or be marked ``~`` or ``+``; an unreduced axis must be marked ``+``; and an axis
    marked ``+`` must be varying or unreduced.
    """
    order = tuple(axis for axis in region.sizes if axis in region.checked_axes)
    extra, kind = unmentioned_vma(value, layout, region), _jax.array.manual_type(value)
    missing = [axis for axis in order if axis in layout.unreduced and axis not in kind.varying | kind.unreduced]
    wrong: UnmarkedUnreduced | NotUnreduced | UnmarkedReduced | None = None
    if unreduced := kind.unreduced & region.checked_axes - layout.unreduced:
        wrong = UnmarkedUnreduced(tuple(axis for axis in order if axis in unreduced))
    elif missing:
        wrong = NotUnreduced(missing[0], region.sizes[missing[0]])
    elif region.role == "boundary" and (kept := kind.reduced & region.checked_axes - layout.reduced):
        wrong = UnmarkedReduced(tuple(axis for axis in order if axis in kept))
    if not extra:
        return wrong
    # What the analysis of the body may still find invarying is reported only beside another fault.
    known = lookup_layout(value)
    if wrong is not None or extra - region.inferred_axes or (known is not None and _differs_over(known, extra)):
        agrees = region.role == "boundary" and known is not None and extra <= known.invarying
        return varying_failure(tuple(axis for axis in order if axis in extra), region, agrees)
    return None


def varying_failure(axes: tuple[str, ...], region: MeshContext, may_agree: bool = False) -> UnmentionedVarying:
    """The failure of a value that varies over axes that its hint does not mention."""
    return UnmentionedVarying(
        axes, region.role == "boundary", region.boundary_axes & frozenset(axes) <= region.explicit, may_agree
    )


def _differs_over(known: KnownLayout, axes: frozenset[str]) -> bool:
    """Whether shards are known to differ over one of the axes: a dim is sharded, or each holds an addend."""
    return any(not axes.isdisjoint(part) for part in (*known.dim_axes, known.addend_axes))


def unmentioned_vma(value: Any, layout: Layout, region: MeshContext) -> frozenset[str]:
    """The axes that JAX's type has as varying, the hint does not mention, and no earlier hint says are invarying."""
    extra = unmentioned_vma_in_type(value, layout, region)
    known = lookup_layout(value) if extra and region.role == "value" else None
    return extra if known is None else extra - known.invarying


def unmentioned_vma_in_type(value: Any, layout: Layout, region: MeshContext) -> frozenset[str]:
    """The axes that JAX's type has as varying and the hint does not mention."""
    mentioned = layout.sharded | layout.unreduced | layout.varying
    return _jax.array.manual_type(value).varying & region.checked_axes - mentioned


_MOST_KINDS = 64


class CompiledDim(NamedTuple):
    """A dim whose global size is a name, a number (``exactly``), or anything."""

    name: str | None
    exactly: int | None
    axes: tuple[str, ...]
    layout: frozenset[tuple[str, ...]]
    shards: int
    divisor: int


class LastMatch(NamedTuple):
    """A traced value that fitted.

    Attributes:
      before: the sizes that were known.
      sizes: the sizes after it, with those it bound.
      cls: its class.
      type: its type.
      extra: mesh axes over which its type is varying and which its hint does not mention.
    """

    before: Sizes
    sizes: Sizes
    cls: type
    type: Any
    extra: frozenset[str]


@dataclass(frozen=True, slots=True)
class CompiledHint:
    """The matcher of one hint in one mesh context.

    Attributes:
      hint: the hint.
      role: the role of the context.
      dims: what each dim must be.
      checked_axes: mesh axes over which JAX's manual type is compared; None where JAX has none.
      forbidden: those over which a value may not be varying, unless it is known to be invarying.
      unreduced: those over which it must be unreduced, or varying.
      inferred_axes: mesh axes over which the analysis of the body decides what is invarying; None at a boundary.
      is_entering: whether values are global and about to be sharded; those on Explicit axes are not compiled.
      last: the last matches, since the same type often comes next: under None one that bound nothing, whatever its
        subject; else by its subject. Bounded.
      kinds: the kinds that the hint takes, by class, class of type, and dtype. Bounded.
    """

    hint: ArrayHint
    role: Role
    dims: tuple[CompiledDim, ...]
    checked_axes: frozenset[str] | None
    forbidden: frozenset[str]
    unreduced: frozenset[str]
    inferred_axes: frozenset[str] | None
    is_entering: bool
    last: dict[Subject | None, LastMatch] = field(default_factory=dict)
    kinds: set[tuple[type, type, Any]] = field(default_factory=set)

    def match(self, value: Any, sizes: Sizes, subject: Subject) -> tuple[Sizes, frozenset[str]] | None:
        """The sizes with those that a value binds, and the axes over which it must turn out to be invarying.

        None if it does not fit, as far as that is compiled.
        """
        aval = _jax.array.aval_of(value)
        # JAX has one object for all types that are equal: the same one is of the same dtype, shape and sharding.
        for key in (None, subject):
            fitted = self.last.get(key)
            if fitted and fitted.type is aval and fitted.before is sizes and fitted.cls is type(value):
                break
        else:
            fitted = self._match_anew(value, aval, sizes, subject)
        if fitted is None:
            return None
        extra = fitted.extra
        if extra:
            if self.inferred_axes is None:
                return None
            if (known := lookup_layout(value)) is not None:
                extra = extra - known.invarying
                if _differs_over(known, extra):
                    return None
            if not extra <= self.inferred_axes:
                return None
        return fitted.sizes, extra

    def _match_anew(self, value: Any, aval: Any, sizes: Sizes, subject: Subject) -> LastMatch | None:
        kind = (type(value), type(aval), getattr(aval, "dtype", None))
        if kind not in self.kinds:
            if kind[2] is None or not self._takes_kind(value):
                return None
            if len(self.kinds) < _MOST_KINDS:
                self.kinds.add(kind)
        if not self._has_expected_vma(value, aval) or (found := self._match_shape(aval.shape, sizes, subject)) is None:
            return None
        extra = _jax.array.manual_type_in(aval).varying & self.forbidden if self.forbidden else self.forbidden
        fitted = LastMatch(sizes, found, type(value), aval, extra)
        if aval is not value:  # an array is not its type, and is not kept
            if len(self.last) >= _MOST_KINDS:
                self.last.clear()
            self.last[subject if found is not sizes else None] = fitted
        return fitted

    def _takes_kind(self, value: Any) -> bool:
        """Whether the hint takes values of this class and dtype, and JAX does, too."""
        is_refused = isinstance(value, _jax.array.ARRAYS) and _jax.array.why_not_array(value) is not None
        wrong = _wrong_type(value, self.hint, self.role) or _wrong_dtype(value, self.hint, self.role)
        return not is_refused and wrong is None

    def _match_shape(self, shape: tuple[int, ...], sizes: Sizes, subject: Subject) -> Sizes | None:
        if len(shape) != len(self.dims):
            return None
        for index, (size, (name, exactly, axes, layout, shards, divisor)) in enumerate(
            zip(shape, self.dims, strict=True)
        ):
            global_size = size * shards
            if size % divisor or (exactly is not None and exactly != global_size):
                return None
            if name is None:
                continue
            bound = sizes.bound.get(name)
            if bound is None:
                sizes = sizes.bind(name, Bound(global_size, subject, index, layout))
            elif bound.size != global_size:
                return None
            elif axes not in bound.layouts:
                sizes = sizes.seen(name, axes)
        return sizes

    def _has_expected_vma(self, value: Any, aval: Any) -> bool:
        """Whether JAX's type has the marks of the hint; that of a global value must have no sharding."""
        if self.is_entering:
            return _jax.array.explicit_spec(value) is None
        if self.checked_axes is None:
            return True
        kind = _jax.array.manual_type_in(aval)
        if kind.reduced:
            return False
        return not (kind.unreduced or self.unreduced) or self.unreduced == (kind.unreduced & self.checked_axes) | (
            self.unreduced & kind.varying
        )


def compile_hint(hint: ArrayHint, region: MeshContext) -> CompiledHint | None:
    """The matcher of a hint in a mesh context; None for what only `check_array` checks.

    That is any number of dims, a size of 1, a size per leaf, an expression, a mark that leaves the region, and a
    global value as it is, whose sharding is compared.
    """
    found = region.cache.compiled.get(hint, hint)
    if found is hint:
        found = region.cache.compiled[hint] = _compile_hint(hint, region)
    return found


def _compile_hint(hint: ArrayHint, region: MeshContext) -> CompiledHint | None:
    layout = region.layout(hint)
    if not isinstance(layout, Layout) or layout.reduced:
        return None
    if region.role == "value" and not region.manual:
        return None
    if region.role != "value" and (layout.varying or layout.unreduced or region.boundary_axes & region.explicit):
        return None
    manual, entering = region.sizes, dict(region.entering)
    dims: list[CompiledDim] = []
    for dim, axes in zip(hint.spec.dims, layout.dim_axes, strict=True):
        if isinstance(dim, Rest) or dim.broadcast or dim.per_leaf:
            return None
        match dim.size:
            case Name(name):
                size = name, None
            case Number(value):
                size = None, value
            case Anything():
                size = None, None
            case _:
                return None
        shards, divisor = prod(manual.get(a, 1) for a in axes), prod(entering.get(a, 1) for a in axes)
        dims.append(CompiledDim(*size, axes, frozenset({axes}), shards, divisor))
    checked_axes = region.checked_axes if region.has_vma and region.manual else None
    known_axes = checked_axes or frozenset[str]()
    return CompiledHint(
        hint,
        region.role,
        tuple(dims),
        checked_axes,
        forbidden=known_axes - layout.sharded - layout.varying - layout.unreduced,
        unreduced=layout.unreduced & known_axes,
        inferred_axes=region.inferred_axes if region.role == "value" else None,
        is_entering=not region.manual and region.role == "boundary",
    )
