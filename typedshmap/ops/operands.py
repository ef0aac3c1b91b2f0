"""Read the operands of a call: each is checked against its side of the pattern, and sizes are bound.

The sizes of a pattern are global: a shard's size times the sizes of the dim's manual mesh axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import _jax
from ..errors import failures
from ..errors.failures import Bound, Failure, PatternLayoutMismatch, Span, Subject, UnusableDtype, WrongSize
from ..errors.phrases import count_text, quoted_axes, sharding_text
from ..hints.array_hint import KEYS, takes
from ..hints.check_array import check_array, describe
from ..hints.context import KnownLayout, LayoutAssertion, current_sink, lookup_layout, record_layout
from ..notation.match import NO_SIZES, SizeMismatch
from ..notation.pattern import PatternDim
from ..notation.spec import Dim, Name
from .operation import RESULT, Operation, ResolvedDim, SideLayout


class Operand(NamedTuple):
    """A value and its side of the pattern.

    Attributes:
      value: one shard.
      shape: the shard's shape.
      subject: what a message calls it.
      layout: its side.
      invarying: the axes over which its shards are known to be equal, whatever JAX's type says.
    """

    value: Any
    shape: tuple[int, ...]
    subject: Subject
    layout: SideLayout
    invarying: frozenset[str]

    def global_size(self, index: int, sizes: Mapping[str, int]) -> int:
        """The global size of a dim."""
        return self.shape[index] * prod([sizes[axis] for axis in self.layout.dim_axes[index]])


def read_operands(call: Operation, values: tuple[Any, ...]) -> list[Operand]:
    """Check values against their sides of the pattern.

    Raises:
      ShapeError, VaryingError, ShardingError, StructureError: for one that does not fit.
    """
    operands: list[Operand] = []
    for index, value in enumerate(values):
        subject = Subject("operand", "operand" if len(call.pattern.operands) == 1 else f"operand {index + 1}")
        known = lookup_layout(value) if call.region.manual else None
        must_be_invarying = _check(call, index, value, subject)
        shape = tuple(_jax.array.aval_of(value).shape)
        layout = call.resolve_side(index, len(shape))
        if known is not None:
            _refuse_known_mismatch(call, layout, known, subject, value)
        value = _assert_layout(call, index, value, subject, must_be_invarying)
        invarying = must_be_invarying if known is None else must_be_invarying | known.invarying
        if call.region.has_vma:
            invarying |= _jax.array.manual_type(value).reduced
        operands.append(Operand(value, shape, subject, layout, invarying - layout.differing))
    return operands


def _check(call: Operation, index: int, value: Any, subject: Subject) -> frozenset[str]:
    """Check rank, varying and unreduced axes, and a global array's sharding, as a hint does.

    Returns:
      The axes over which JAX types the value as varying, and over which reading the body has to show that it is not.
    """
    hint = call.hints[index]
    if call.is_plain:
        # All that einops asks of an operand, however it is sharded.
        if not hint.takes_type(value):
            raise call.wrong(failures.NotAnArray("an array", describe(value)), subject)
        side, got = call.pattern.operands[index], len(_jax.array.aval_of(value).shape)
        has_rest = hint.spec.rest is not None
        expected = len(side.dims) - has_rest
        if got < expected or (got > expected and not has_rest):
            expects = f"{'at least ' if has_rest else ''}{expected}"
            problem = f"{subject.phrase} has {count_text(got, 'dim')}, but the pattern has {expects}"
            raise call.fault(problem, side.span)
        return frozenset()
    if call.region.manual and isinstance(value, np.ndarray):
        refuse_unknown(call, value, subject)
    found = check_array(value, hint, call.region, NO_SIZES, subject, {})
    if isinstance(found, Failure):
        raise call.error(found)
    return found[1]


def refuse_unknown(call: Operation, value: Any, subject: Subject) -> None:
    """Refuse an array of NumPy that JAX does not take, such as one of strings."""
    reason = _jax.array.why_not_array(value) if isinstance(value, np.ndarray) else None
    if reason is not None:
        what = failures.NotAnArray("an array", f"{describe(value)} that JAX refuses ({reason})")
        raise call.wrong(what, subject, value)


def refuse_non_numbers(call: Operation, operand: Operand) -> None:
    """Refuse what cannot be computed with: keys of ``jax.random``, and arrays that JAX does not take."""
    refuse_unknown(call, operand.value, operand.subject)
    if takes(KEYS, dtype := _jax.array.dtype_name_of(operand.value)):
        raise call.wrong(UnusableDtype(dtype, f"{call.verb} takes numbers"), operand.subject, operand.value)


def refuse_unreduced_type(call: Operation, operand: Operand, name: str, reason: str) -> None:
    """Refuse an operand that JAX itself types as unreduced, where that has no meaning."""
    for axis in sorted(_jax.array.manual_type(operand.value).unreduced):
        cure = f"take the sum first (psum), or leave it '~{axis}' where it was made"
        problem = f"{name} is unreduced over '{axis}' in JAX's type, {reason}"
        raise call.fault(problem, operand.layout.side.span, cure)


def _assert_layout(call: Operation, index: int, value: Any, subject: Subject, invarying: frozenset[str]) -> Any:
    """The value, after its side of the pattern has been written into the jaxpr as an assertion."""
    sink = current_sink()
    if sink is None or not call.region.manual:
        return value
    hint, is_assumed = call.hints[index], subject is RESULT
    assertion = LayoutAssertion(hint, call.region, subject, call.where, NO_SIZES, invarying, is_assumed)
    return sink.assert_layout(value, assertion)


def _refuse_known_mismatch(
    call: Operation, layout: SideLayout, known: KnownLayout, subject: Subject, value: Any
) -> None:
    """Refuse a pattern that reads a value in another layout than it is known to have."""
    is_same = known.dim_axes == layout.dim_axes and known.unreduced == layout.unreduced
    if is_same or len(known.dim_axes) != len(layout.dims):
        return
    compared = known.covered_axes - (known.varying - known.invarying) - layout.varying
    claimed, actual = layout.over(compared), known.over(compared)
    for at, place in enumerate(layout.dims):
        if claimed.dim_axes[at] != actual.dim_axes[at]:
            text = f"{sharding_text(known.dim_axes[at])} ({known.text})"
            what = PatternLayoutMismatch(at, sharding_text(claimed.dim_axes[at]), text, known.place, place.dim.span)
            raise call.wrong(what, subject, value)
    if claimed.unreduced != actual.unreduced:
        one, other = (f"unreduced over {quoted_axes(sorted(axes))}" if axes else "not unreduced"
                      for axes in (claimed.unreduced, actual.unreduced))  # fmt: skip
        span = next((mark.span for mark in layout.side.marks if mark.sign == "+"), layout.side.span)
        raise call.wrong(PatternLayoutMismatch(None, one, f"{other} ({known.text})", known.place, span), subject, value)


def record_result(
    call: Operation,
    value: Any,
    operands: Sequence[Operand],
    layout: SideLayout,
    made_invarying: frozenset[str] = frozenset(),
    addend_axes: frozenset[str] = frozenset(),
    is_stated: bool = False,
) -> Any:
    """Record the layout of a result, and return the result.

    Args:
      made_invarying: axes over which the operation itself made all shards equal.
      addend_axes: axes over which it left every shard its own addend.
      is_stated: whether the jaxpr states it as well, where the equations themselves do not show the layout.
    """
    region = call.region
    if not region.manual:
        return value
    if not layout.dims and region.has_vma:
        _refuse_scalar_varying(call, value, operands, layout)
    if is_stated:
        value = _assert_layout(call, -1, value, RESULT, frozenset())
    # What is computed of the operands is equal on all shards where some are known to be, and none differs; and over
    # an axis that only a ``~`` of the result mentions.
    differing = frozenset[str]().union(*[operand.layout.differing for operand in operands])
    invarying = frozenset[str]().union(*[operand.invarying for operand in operands]) - differing - layout.differing
    invarying |= made_invarying | (layout.varying - differing)
    covered_axes, text = region.checked_axes | layout.differing, f'"{call.pattern.source}"'
    axes = (layout.dim_axes, layout.unreduced, layout.reduced, layout.varying)
    known = KnownLayout(
        *axes, invarying=invarying, covered_axes=covered_axes, addend_axes=addend_axes, text=text, place=call.where
    )
    record_layout(value, known)
    return value


def _refuse_scalar_varying(call: Operation, value: Any, operands: Sequence[Operand], layout: SideLayout) -> None:
    """Refuse a scalar that is typed as varying over an axis that the pattern does not mention.

    Either a sum was forgotten, or its shards are equal and its gradient would be too large by their number.
    """
    aval = _jax.array.aval_of(value)
    if not _jax.array.is_inexact(aval.dtype):
        return
    varying = _jax.array.manual_type_in(aval).varying - layout.varying - layout.unreduced
    axes = tuple(axis for axis in call.region.sizes if axis in varying)
    if not call.region.checked_axes.isdisjoint(axes):
        found = ((operand.subject, operand.value) for operand in operands)
        culprits = (one for one in found if not _jax.array.manual_type(one[1]).varying.isdisjoint(axes))
        raise call.wrong(failures.UnmentionedVarying(axes, False, may_agree=True), *next(culprits, (RESULT, value)))


def key_of_operands(operands: list[Operand]) -> tuple[Any, ...]:
    """What a plan depends on beside its pattern: shapes, and where shards are known to be equal."""
    return tuple([(operand.shape, operand.invarying) for operand in operands])


def solve(call: Operation, operands: list[Operand], lengths: Mapping[str, int]) -> dict[str, int]:
    """The global size of every factor in the operands, and those that were passed.

    Raises:
      ShapeError: for sizes that contradict each other, or that do not divide.
      PatternError: for factors whose size is not known; where this is einops, for all of these.
    """
    extents = dict(lengths)
    origins = {name: Bound(size, Subject("argument", name), 0) for name, size in lengths.items()}
    # einops leaves an einsum to NumPy and JAX, which broadcast a size of 1.
    broadcasts = call.verb == "einsum" and call.is_plain
    merged: list[tuple[Operand, int, ResolvedDim]] = []
    for operand in operands:
        for index, place in enumerate(operand.layout.dims):
            if len(place.keys) != 1:
                merged.append((operand, index, place))
                continue
            size, name, key = operand.global_size(index, call.region.sizes), place.names[0], place.keys[0]
            bound = Bound(size, operand.subject, index)
            known = origins.setdefault(key, bound)
            expected = extents.setdefault(key, int(name) if name.isdecimal() else size)
            if broadcasts and expected == 1:
                extents[key], origins[key] = size, bound
            elif size != expected and not key.startswith("…") and not (broadcasts and size == 1):
                raise _size_mismatch(call, operand, index, place, expected, None if name.isdecimal() else known)
    for operand, index, place in merged:
        _bind_merged(call, operand, index, place, extents)
    return extents


def _size_mismatch(
    call: Operation, operand: Operand, index: int, place: ResolvedDim, expected: int, known: Bound | None
) -> Exception:
    size, name, span = operand.global_size(index, call.region.sizes), place.names[0], place.dim.span
    if known is not None and known.subject.kind == "argument":
        problem = f"has {name}={size}{_shard_text(operand, index)}, but {name}={expected} was passed"
        return _wrong_size(call, operand, problem, span)
    if call.is_plain:
        phrase = operand.subject.phrase
        if known is None:
            return call.fault(f"{phrase} has size {size} in dim {index}, but the pattern says {expected}", span)
        has = f"{phrase} has {name}={size}"
        if known.subject == operand.subject:
            return call.fault(f"{has} in dim {index}, but {name}={expected} in dim {known.dim}", span)
        return call.fault(f"{has}, but {known.subject.phrase} has {name}={expected}", span)
    shard = operand.shape[index] if place.axes else None
    what = SizeMismatch(Dim(Name(name), span=span), index, size, shard, place.axes, expected, known, span)
    return call.wrong(what, operand.subject, operand.value)


def _wrong_size(call: Operation, operand: Operand, problem: str, span: Span) -> Exception:
    if call.is_plain:
        return call.fault(f"{operand.subject.phrase} {problem}", span)
    return call.wrong(WrongSize(problem, span), operand.subject, operand.value)


def _shard_text(operand: Operand, index: int) -> str:
    axes = operand.layout.dim_axes[index]
    return f" ({operand.shape[index]} per shard over {quoted_axes(axes)})" if axes else ""


def _bind_merged(call: Operation, operand: Operand, index: int, place: ResolvedDim, extents: dict[str, int]) -> None:
    """Bind the one factor of a merged dim whose size is not known."""
    size, span = operand.global_size(index, call.region.sizes), place.dim.span
    extents |= {key: int(name) for key, name in zip(place.keys, place.names, strict=True) if name.isdecimal()}
    known = {key: extents[key] for key in place.keys if key in extents}
    unknown = [key for key in place.keys if key not in extents]
    product, text = prod(known.values()), str(PatternDim(place.dim.factors, None, True))
    if len(unknown) > 1:
        names = " and ".join(map(repr, unknown))
        raise call.fault(f"the sizes of {names} in '{text}' are not known", span, f"pass {unknown[0]}=...")
    if (unknown and (product == 0 or size % product)) or (not unknown and size != product):
        verb = "does not divide by" if unknown else "is not the product of"
        sizes = " ".join(f"{key.split()[0]}={known[key]}" for key in known) or 1
        problem = f"has {text}={size}{_shard_text(operand, index)}, which {verb} {sizes}"
        raise _wrong_size(call, operand, problem, span)
    for key in unknown:
        extents[key] = size // product
