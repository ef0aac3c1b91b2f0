"""Read the operands of a call: each is checked against its side of the pattern, and sizes are found.

A pattern speaks of global sizes: shard size times the sizes of the dim's manual mesh axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from .. import _jax
from ..errors.failures import Failure, NotAnArray, NotNumbers, OtherLayout, Varies, WrongSize
from ..hints.array import ArrayHint
from ..hints.dtypes import KEYS, takes
from ..hints.leaf import check_leaf, describe
from ..hints.memory import Remembered, recall, remember
from ..hints.plain import plain_of
from ..hints.scope import Stated, current_reading
from ..notation.match import SizeMismatch
from ..notation.nodes import Dim, Name
from ..notation.patterns import PatternDim
from ..notation.sizes import NO_SIZES, Bound, Subject
from .call import RESULT, Call, Laid, Place, says, sides_of


@dataclass(frozen=True, slots=True)
class Operand:
    """A value and its side of the pattern.

    Attributes:
      value: one shard.
      subject: what a message calls it.
      laid: its side.
      equal: the axes over which its shards are equal though JAX types them as varying.
    """

    value: Any
    subject: Subject
    laid: Laid
    equal: frozenset[str]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(_jax.facts(self.value).shape)

    def whole(self, index: int, sizes: Mapping[str, int]) -> int:
        """The global size of a dim."""
        return self.shape[index] * prod(sizes[axis] for axis in self.laid.places[index].axes)


def read_operands(call: Call, values: tuple[Any, ...]) -> list[Operand]:
    """Check values against their sides of the pattern.

    Raises:
      ShapeError, VaryingError, ShardingError, StructureError: for one that does not fit.
    """
    return [_read(call, index, value) for index, value in enumerate(values)]


def _read(call: Call, index: int, value: Any) -> Operand:
    subject = Subject("operand", "operand" if len(call.pattern.operands) == 1 else f"operand {index + 1}")
    known = recall(value) if call.region.held else None
    equal = known.equal if known is not None else frozenset[str]()
    alike = _check(call, index, value, subject)
    equal |= alike
    laid = call.lay(index, len(_jax.facts(value).shape))
    if known is not None:
        _compare(call, laid, known, subject, value)
    value = _stated(call, index, value, subject, alike)
    reduced = _jax.manual_type(value).reduced if call.region.typed else frozenset[str]()
    return Operand(value, subject, laid, (equal | reduced) - laid.sharded - laid.varying - laid.unreduced)


def _check(call: Call, index: int, value: Any, subject: Subject) -> frozenset[str]:
    """Rank, varying and unreduced axes, and for a global array its sharding, as a hint's check does.

    Returns:
      The axes over which JAX types it as varying, and that it is equal over is found out once the body is read.
    """
    hint = sides_of(call.pattern)[index][1]
    if call.is_plain:
        _check_rank(call, index, value, subject, hint)
        return frozenset()
    plain = plain_of(hint, call.region)
    matched = plain.match(value, NO_SIZES, subject) if plain is not None else None
    if matched is not None:
        return matched[1]
    if call.region.held:
        refuse_unknown(call, value, subject)
    fit = check_leaf(value, hint, call.region, NO_SIZES, subject, {})
    if isinstance(fit, Failure):
        raise call.error(fit)
    if plain is not None:
        plain.learn(value)
    return fit.alike


def refuse_unknown(call: Call, value: Any, subject: Subject) -> None:
    """Refuse an array of NumPy that JAX does not take, such as one of strings."""
    reason = _jax.refusal(value) if isinstance(value, _jax.ARRAYS) else None
    if reason is not None:
        what = NotAnArray("an array", f"{describe(value)} that JAX refuses ({reason})")
        raise call.wrong(what, subject, value)


def refuse_keys(call: Call, operand: Operand) -> None:
    """Refuse keys of ``jax.random``, which are no numbers."""
    if is_key(operand.value):
        what = NotNumbers(_jax.own_dtype(operand.value), call.verb)
        raise call.wrong(what, operand.subject, operand.value)


def is_key(value: Any) -> bool:
    """Whether an array holds keys of ``jax.random``."""
    return takes(KEYS, _jax.own_dtype(value))


def _stated(
    call: Call, index: int, value: Any, subject: Subject, alike: frozenset[str] = frozenset(), is_made: bool = False
) -> Any:
    """A value, of which the program now states what the pattern says; of a result the operation knows it."""
    reading = current_reading()
    if reading is None or not call.region.held:
        return value
    hint = sides_of(call.pattern)[index][1]
    return reading.state(value, Stated(hint, call.region, subject, call.where, NO_SIZES, alike, is_made))


def _check_rank(call: Call, index: int, value: Any, subject: Subject, hint: ArrayHint) -> None:
    """All that einops asks of an operand, wherever it lies."""
    if not hint.takes_type(value):
        raise call.error(Failure(NotAnArray("an array", describe(value)), subject, call.text))
    dims = call.pattern.operands[index].dims
    expected, at_least = len(dims) - (hint.spec.rest is not None), hint.spec.rest is not None
    got = len(_jax.facts(value).shape)
    if got < expected or (got > expected and not at_least):
        least = "at least " if at_least else ""
        problem = f"{subject.phrase} has {got} dim{'s' * (got != 1)}, but the pattern has {least}{expected}"
        raise call.fault(problem, call.pattern.operands[index].span)


def _compare(call: Call, laid: Laid, known: Remembered, subject: Subject, value: Any) -> None:
    """Refuse a pattern that reads a value in another layout than it is known to have."""
    if len(known.parts) != len(laid.places) or (known.parts == laid.parts and known.unreduced == laid.unreduced):
        return
    compared = known.spoken - (known.varying - known.equal) - laid.varying
    for at, (place, axes) in enumerate(zip(laid.places, known.parts, strict=True)):
        claimed = tuple(axis for axis in place.axes if axis in compared)
        if claimed != tuple(axis for axis in axes if axis in compared):
            what = OtherLayout(at, says(claimed), f"{says(axes)} ({known.text})", known.place, place.dim.span)
            raise call.wrong(what, subject, value)
    owed, was_owed = laid.unreduced & compared, known.unreduced & compared
    if owed != was_owed:
        marks = [mark.span for mark in laid.side.marks if mark.sign == "+"]
        span = marks[0] if marks else laid.side.span
        what = OtherLayout(None, _owed(owed), f"{_owed(was_owed)} ({known.text})", known.place, span)
        raise call.wrong(what, subject, value)


def _owed(axes: frozenset[str]) -> str:
    return f"unreduced over {', '.join(map(repr, sorted(axes)))}" if axes else "owing no sum"


def remember_result(
    call: Call,
    value: Any,
    operands: Sequence[Operand],
    laid: Laid,
    made: frozenset[str] = frozenset(),
    left: frozenset[str] = frozenset(),
    is_stated: bool = False,
) -> Any:
    """Remember how a result lies; hand it on.

    Args:
      made: axes over which the operation itself made all shards equal.
      left: axes over which it left every shard its own addend.
      is_stated: whether the program states it as well, where its equations do not tell how it lies.
    """
    if call.region.held:
        if not laid.places:
            _refuse_trap(call, value, operands, laid)
        equal = (equal_over(operands) - laid.sharded - laid.varying - laid.unreduced) | made
        value = _stated(call, -1, value, RESULT, is_made=True) if is_stated else value
        text, place = f'"{call.pattern.source}"', call.where
        spoken = call.region.watched | laid.sharded | laid.unreduced | laid.varying
        remember(value, Remembered(laid.parts, laid.unreduced, laid.varying, equal, spoken, text, place, left))
    return value


def _refuse_trap(call: Call, value: Any, operands: Sequence[Operand], laid: Laid) -> None:
    """A scalar that is typed as varying over an axis that the pattern does not mention.

    Either a sum was forgotten, or its shards agree and its gradient would be too large by their number.
    """
    facts = _jax.facts(value)
    if not call.region.typed or not _jax.is_inexact(facts.dtype):
        return
    mentioned = laid.varying | laid.unreduced
    axes = tuple(axis for axis in call.region.sizes if axis in _jax.manual_type_in(facts).varying - mentioned)
    if not call.region.watched.isdisjoint(axes):
        found = ((operand.subject, operand.value) for operand in operands)
        varying = (one for one in found if not _jax.manual_type(one[1]).varying.isdisjoint(axes))
        raise call.wrong(Varies(axes, False, may_agree=True), *next(varying, (RESULT, value)))


def key_of_operands(operands: list[Operand]) -> tuple[Any, ...]:
    """What a plan depends on beside its pattern: shapes, and where shards are known to be equal."""
    return tuple((operand.shape, operand.equal) for operand in operands)


def idle_over(operands: list[Operand], result: Laid) -> frozenset[str]:
    """The axes that only a ``~`` of the result mentions: over them nothing differs."""
    sides = (operand.laid for operand in operands)
    mentioned = frozenset(axis for laid in sides for axis in laid.sharded | laid.varying | laid.unreduced)
    return result.varying - mentioned


def equal_over(operands: Sequence[Operand]) -> frozenset[str]:
    """The axes over which whatever is computed of these operands is equal on all shards."""
    axes = frozenset(axis for operand in operands for axis in operand.equal)
    return frozenset(axis for axis in axes if all(_is_equal(operand, axis) for operand in operands))


def _is_equal(operand: Operand, axis: str) -> bool:
    laid = operand.laid
    return axis not in laid.sharded | laid.varying | laid.unreduced


def solve(call: Call, operands: list[Operand], lengths: Mapping[str, int]) -> dict[str, int]:
    """The global size of every factor in the operands, and those that were passed.

    Raises:
      ShapeError: for sizes that contradict each other, or that do not divide.
      PatternError: for factors whose size is not known; where this is einops, for all of these.
    """
    found = {name: Bound(size, Subject("argument", name), 0) for name, size in lengths.items()}
    for operand in operands:
        for index, place in enumerate(operand.laid.places):
            if len(place.dim.factors) == 1:
                _bind(call, operand, index, place, found)
    for operand in operands:
        for index, place in enumerate(operand.laid.places):
            if len(place.dim.factors) != 1:
                _bind_group(call, operand, index, place, found)
    return {name: _size_of(bound) for name, bound in found.items()}


def _size_of(bound: Bound) -> int:
    """The size of one dim; under ``jax.export`` it may be a symbol, which is no ``int``."""
    assert not isinstance(bound.size, tuple)
    return bound.size


def key_of(place: Place, at: int) -> str:
    """What a factor is known as: its name; an anonymous one's place, since two of them are different dims."""
    factor = place.dim.factors[at]
    number = getattr(factor, "number", None)
    return str(factor) if number is None else f"{factor} at {place.dim.span[0]}:{at}"


def _bind(call: Call, operand: Operand, index: int, place: Place, found: dict[str, Bound]) -> None:
    """Compare a dim of one factor with what is known, or make it known."""
    whole = operand.whole(index, call.region.sizes)
    key, number = key_of(place, 0), getattr(place.dim.factors[0], "number", None)
    if number is not None and number != whole:
        raise _other_size(call, operand, index, place, number, None)
    known = found.setdefault(key, Bound(whole, operand.subject, index))
    if _broadcasts(call) and 1 in (whole, known.size):
        # einops leaves an einsum to NumPy and JAX, where a size of 1 goes with any other.
        found[key] = known if whole == 1 else Bound(whole, operand.subject, index)
        return
    if known.size != whole and not key.startswith("…"):
        raise _other_size(call, operand, index, place, _size_of(known), known)


def _broadcasts(call: Call) -> bool:
    return call.verb == "einsum" and call.is_plain


def _other_size(
    call: Call, operand: Operand, index: int, place: Place, expected: int, known: Bound | None
) -> Exception:
    whole = operand.whole(index, call.region.sizes)
    name = str(place.dim.factors[0])
    if call.is_plain:
        return call.fault(_other_plain_size(operand, index, name, whole, expected, known), place.dim.span)
    if known is not None and known.subject.kind == "argument":
        problem = f"has {name}={whole}{_shards(operand, index, place)}, but {name}={expected} was passed"
        return call.wrong(WrongSize(problem, place.dim.span), operand.subject, operand.value)
    node = Dim(Name(name), span=place.dim.span)
    shard = operand.shape[index] if place.axes else None
    what = SizeMismatch(node, index, whole, shard, place.axes, expected, known, place.dim.span)
    return call.wrong(what, operand.subject, operand.value)


def _other_plain_size(operand: Operand, index: int, name: str, whole: int, expected: int, known: Bound | None) -> str:
    has = f"{operand.subject.phrase} has {_sized(name, index, whole)}"
    if known is None:
        return f"{has}, but the pattern says {expected}"
    if known.subject.kind == "argument":
        return f"{has}, but {name}={expected} was passed"
    if known.subject == operand.subject:
        return f"{has} in dim {index}, but {name}={expected} in dim {known.dim}"
    return f"{has}, but {known.subject.phrase} has {name}={expected}"


def _sized(name: str, index: int, whole: int) -> str:
    return f"size {whole} in dim {index}" if name.isdecimal() else f"{name}={whole}"


def _shards(operand: Operand, index: int, place: Place) -> str:
    axes = ", ".join(map(repr, place.axes))
    return f" ({operand.shape[index]} per shard over {axes})" if axes else ""


def _bind_group(call: Call, operand: Operand, index: int, place: Place, found: dict[str, Bound]) -> None:
    """Find the size of the one factor of a merged dim that is not known."""
    whole, product, unknown = operand.whole(index, call.region.sizes), 1, list[str]()
    for at, factor in enumerate(place.dim.factors):
        key, number = key_of(place, at), getattr(factor, "number", None)
        if number is not None:
            found[key] = Bound(number, operand.subject, index)
        if key in found:
            product *= _size_of(found[key])
        else:
            unknown.append(key)
    text = str(PatternDim(place.dim.factors, None, True))
    if len(unknown) > 1:
        names = " and ".join(map(repr, unknown))
        raise call.fault(f"the sizes of {names} in '{text}' are not known", place.dim.span, f"pass {unknown[0]}=...")
    if (unknown and (product == 0 or whole % product)) or (not unknown and whole != product):
        known = " ".join(f"{key.split()[0]}={found[key].size}" for key in keys_of(place) if key in found)
        verb = "does not divide by" if unknown else "is not the product of"
        what = f"{text}={whole}{_shards(operand, index, place)}, which {verb} {known or 1}"
        if call.is_plain:
            raise call.fault(f"{operand.subject.phrase} has {what}", place.dim.span)
        raise call.wrong(WrongSize(f"has {what}", place.dim.span), operand.subject, operand.value)
    for key in unknown:
        found[key] = Bound(whole // product, operand.subject, index)


def keys_of(place: Place) -> list[str]:
    """What the factors of a dim are known as."""
    return [key_of(place, at) for at in range(len(place.dim.factors))]


def local(size: int, axes: tuple[str, ...], sizes: Mapping[str, int]) -> int:
    """A factor's size on one shard."""
    return size // prod(sizes[axis] for axis in axes)
