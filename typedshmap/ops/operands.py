"""Read the operands of a call: each is checked against its side of the pattern, and sizes are bound.

The sizes of a pattern are global: a shard's size times the sizes of the dim's manual mesh axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .. import _jax
from ..errors.failures import Failure, NotAnArray, PatternLayoutMismatch, UnmentionedVarying, UnusableDtype, WrongSize
from ..errors.phrases import count_text, quoted_axes, sharding_text
from ..hints.array_hint import KEYS, takes
from ..hints.check_array import check_array, describe
from ..hints.context import KnownLayout, LayoutAssertion, current_sink, lookup_layout, record_layout
from ..notation.match import NO_SIZES, Bound, SizeMismatch, Subject
from ..notation.pattern import PatternDim
from ..notation.spec import Dim, Name
from .operation import RESULT, Operation, ResolvedDim, SideLayout, shard_count, sides_of


@dataclass(frozen=True, slots=True)
class Operand:
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
    hint = sides_of(call.pattern)[index][1]
    if call.is_plain:
        # All that einops asks of an operand, however it is sharded.
        if not hint.takes_type(value):
            raise call.error(Failure(NotAnArray("an array", describe(value)), subject, call.text))
        side, got = call.pattern.operands[index], len(_jax.array.aval_of(value).shape)
        expected = len(side.dims) - (hint.spec.rest is not None)
        if got < expected or (got > expected and hint.spec.rest is None):
            least = "at least " if hint.spec.rest is not None else ""
            problem = f"{subject.phrase} has {count_text(got, 'dim')}, but the pattern has {least}{expected}"
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
        what = NotAnArray("an array", f"{describe(value)} that JAX refuses ({reason})")
        raise call.wrong(what, subject, value)


def refuse_keys(call: Operation, operand: Operand) -> None:
    """Refuse keys of ``jax.random``, which are not numbers."""
    if is_key(operand.value):
        what = UnusableDtype(_jax.array.dtype_name_of(operand.value), f"{call.verb} takes numbers")
        raise call.wrong(what, operand.subject, operand.value)


def is_key(value: Any) -> bool:
    """Whether an array holds keys of ``jax.random``."""
    return takes(KEYS, _jax.array.dtype_name_of(value))


def _assert_layout(
    call: Operation,
    index: int,
    value: Any,
    subject: Subject,
    must_be_invarying: frozenset[str] = frozenset(),
    is_result: bool = False,
) -> Any:
    """The value, after its side of the pattern has been written into the jaxpr as an assertion."""
    sink = current_sink()
    if sink is None or not call.region.manual:
        return value
    hint = sides_of(call.pattern)[index][1]
    return sink.assert_layout(
        value, LayoutAssertion(hint, call.region, subject, call.where, NO_SIZES, must_be_invarying, is_result)
    )


def _refuse_known_mismatch(
    call: Operation, layout: SideLayout, known: KnownLayout, subject: Subject, value: Any
) -> None:
    """Refuse a pattern that reads a value in another layout than it is known to have."""
    if len(known.dim_axes) != len(layout.dims) or (
        known.dim_axes == layout.dim_axes and known.unreduced == layout.unreduced
    ):
        return
    compared = known.covered_axes - (known.varying - known.invarying) - layout.varying
    for at, (place, axes) in enumerate(zip(layout.dims, known.dim_axes, strict=True)):
        claimed = tuple(axis for axis in place.axes if axis in compared)
        if claimed != tuple(axis for axis in axes if axis in compared):
            what = PatternLayoutMismatch(
                at, sharding_text(claimed), f"{sharding_text(axes)} ({known.text})", known.place, place.dim.span
            )
            raise call.wrong(what, subject, value)
    claimed, actual = (
        f"unreduced over {quoted_axes(sorted(axes & compared))}" if axes & compared else "not unreduced"
        for axes in (layout.unreduced, known.unreduced)
    )
    if claimed != actual:
        span = next((mark.span for mark in layout.side.marks if mark.sign == "+"), layout.side.span)
        what = PatternLayoutMismatch(None, claimed, f"{actual} ({known.text})", known.place, span)
        raise call.wrong(what, subject, value)


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
        value = _assert_layout(call, -1, value, RESULT, is_result=True)
    # What is computed of the operands is equal on all shards where some are known to be, and none differs.
    invarying = frozenset[str]().union(*[operand.invarying for operand in operands])
    differing = layout.differing.union(*[operand.layout.differing for operand in operands])
    covered_axes = region.checked_axes | layout.differing
    text, invarying = f'"{call.pattern.source}"', (invarying - differing) | made_invarying
    what = KnownLayout(
        *(layout.dim_axes, layout.unreduced, layout.reduced, layout.varying),
        invarying=invarying,
        covered_axes=covered_axes,
        addend_axes=addend_axes,
        text=text,
        place=call.where,
    )
    record_layout(value, what)
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
        raise call.wrong(UnmentionedVarying(axes, False, may_agree=True), *next(culprits, (RESULT, value)))


def key_of_operands(operands: list[Operand]) -> tuple[Any, ...]:
    """What a plan depends on beside its pattern: shapes, and where shards are known to be equal."""
    return tuple([(operand.shape, operand.invarying) for operand in operands])


def untouched_axes(operands: list[Operand], result: SideLayout) -> frozenset[str]:
    """The axes that only a ``~`` of the result mentions: over them all shards are equal."""
    return result.varying.difference(*[operand.layout.differing for operand in operands])


def solve(call: Operation, operands: list[Operand], lengths: Mapping[str, int]) -> dict[str, int]:
    """The global size of every factor in the operands, and those that were passed.

    Raises:
      ShapeError: for sizes that contradict each other, or that do not divide.
      PatternError: for factors whose size is not known; where this is einops, for all of these.
    """
    found = {name: Bound(size, Subject("argument", name), 0) for name, size in lengths.items()}
    # einops leaves an einsum to NumPy and JAX, which broadcast a size of 1.
    broadcasts = call.verb == "einsum" and call.is_plain
    merged: list[tuple[Operand, int, ResolvedDim]] = []
    for operand in operands:
        for index, place in enumerate(operand.layout.dims):
            if len(place.dim.factors) != 1:
                merged.append((operand, index, place))
                continue
            global_size, name, key = operand.global_size(index, call.region.sizes), place.names[0], place.keys[0]
            if name.isdecimal() and int(name) != global_size:
                raise _size_mismatch(call, operand, index, place, int(name), None)
            bound = Bound(global_size, operand.subject, index)
            known = found.setdefault(key, bound)
            if broadcasts and 1 in (global_size, known.size):
                found[key] = known if global_size == 1 else bound
            elif known.size != global_size and not key.startswith("…"):
                raise _size_mismatch(call, operand, index, place, _size_of(known), known)
    for operand, index, place in merged:
        _bind_merged(call, operand, index, place, found)
    return {key: _size_of(bound) for key, bound in found.items()}


def _size_of(bound: Bound) -> int:
    """The size of one dim; under ``jax.export`` it may be symbolic, which is not an ``int``."""
    assert not isinstance(bound.size, tuple)
    return bound.size


def _size_mismatch(
    call: Operation, operand: Operand, index: int, place: ResolvedDim, expected: int, known: Bound | None
) -> Exception:
    global_size, name, span = operand.global_size(index, call.region.sizes), place.names[0], place.dim.span
    if known is not None and known.subject.kind == "argument":
        problem = f"has {name}={global_size}{_shard_text(operand, index, place)}, but {name}={expected} was passed"
        if call.is_plain:
            return call.fault(f"{operand.subject.phrase} {problem}", span)
        return call.wrong(WrongSize(problem, span), operand.subject, operand.value)
    if call.is_plain:
        has = f"{operand.subject.phrase} has "
        has += f"size {global_size} in dim {index}" if name.isdecimal() else f"{name}={global_size}"
        if known is None:
            return call.fault(f"{has}, but the pattern says {expected}", span)
        if known.subject == operand.subject:
            return call.fault(f"{has} in dim {index}, but {name}={expected} in dim {known.dim}", span)
        return call.fault(f"{has}, but {known.subject.phrase} has {name}={expected}", span)
    shard = operand.shape[index] if place.axes else None
    what = SizeMismatch(Dim(Name(name), span=span), index, global_size, shard, place.axes, expected, known, span)
    return call.wrong(what, operand.subject, operand.value)


def _shard_text(operand: Operand, index: int, place: ResolvedDim) -> str:
    return f" ({operand.shape[index]} per shard over {quoted_axes(place.axes)})" if place.axes else ""


def _bind_merged(call: Operation, operand: Operand, index: int, place: ResolvedDim, found: dict[str, Bound]) -> None:
    """Bind the one factor of a merged dim whose size is not known."""
    global_size, span = operand.global_size(index, call.region.sizes), place.dim.span
    for key, name in zip(place.keys, place.names, strict=True):
        if name.isdecimal():
            found[key] = Bound(int(name), operand.subject, index)
    known = [key for key in place.keys if key in found]
    unknown = [key for key in place.keys if key not in found]
    product, text = prod([_size_of(found[key]) for key in known]), str(PatternDim(place.dim.factors, None, True))
    if len(unknown) > 1:
        names = " and ".join(map(repr, unknown))
        raise call.fault(f"the sizes of {names} in '{text}' are not known", span, f"pass {unknown[0]}=...")
    if (unknown and (product == 0 or global_size % product)) or (not unknown and global_size != product):
        verb = "does not divide by" if unknown else "is not the product of"
        sizes = " ".join(f"{key.split()[0]}={found[key].size}" for key in known) or 1
        what = f"has {text}={global_size}{_shard_text(operand, index, place)}, which {verb} {sizes}"
        if call.is_plain:
            raise call.fault(f"{operand.subject.phrase} {what}", span)
        raise call.wrong(WrongSize(what, span), operand.subject, operand.value)
    for key in unknown:
        found[key] = Bound(global_size // product, operand.subject, index)


def shard_length(size: int, axes: tuple[str, ...], sizes: Mapping[str, int]) -> int:
    """A factor's size on one shard."""
    return size // shard_count(axes, sizes)
