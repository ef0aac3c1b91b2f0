"""``rearrange``, ``reduce`` and ``repeat``: einops on every shard, and the sums that a reduction owes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import einops

from .. import _jax
from ..errors import TypedShmapError
from ..errors.failures import NotAnArray
from ..errors.phrases import shown
from ..notation.patterns import Dots, PatternDim, Side
from ..notation.sizes import Subject
from .call import Call, Laid, begin, says
from .operands import (
    Operand,
    idle_over,
    key_of,
    key_of_operands,
    keys_of,
    local,
    read_operands,
    remember_result,
    solve,
)
from .reductions import REDUCTIONS, combine, refuse_marks
from .splits import Interleaved, Splits, axes_of_merged, refuse_addends_of_shards, split_merged, splits_of
from .sums import Sums, left_over, plan_sums, run_sums

T = TypeVar("T")
Reduction = str | Callable[[Any, tuple[int, ...]], Any]


def rearrange(x: T, pattern: str, **axes_lengths: int) -> T:
    """Reorder, merge and split dims, as `einops.rearrange`; nothing moves between shards.

    A merged dim may be sharded on its major factor: ``[(h d)/tp] -> [h/tp] d`` and
    ``[b/dp] s -> [(b s)/dp]`` are free.

    ```python
    q = rearrange(q, "[b/dp] s [(h d)/tp] -> [b/dp] [h/tp] s d", d=64)  # f32[2,8,256] -> f32[2,4,8,64] per shard
    ```

    Args:
      x: an array, in a manual region one shard; a list of arrays is stacked along a new first dim.
      pattern: both sides, with the sharding of each dim; names stand for global sizes.
      **axes_lengths: global sizes of names that the operand does not tell.

    Returns:
      The array of the pattern's right side. Its gradient is the reverse.

    Raises:
      PatternError: for a pattern that cannot be read, that moves shards, or that would interleave them.
      ShapeError, VaryingError, ShardingError: for an operand that is not the pattern's left side.
      MeshAxisError: for an axis that the mesh does not have.
    """
    return _einops("rearrange", x, pattern, axes_lengths)


def repeat(x: T, pattern: str, **axes_lengths: int) -> T:
    """Repeat along new dims, as `einops.repeat`; nothing moves between shards.

    ```python
    k = repeat(k, "[b/dp] s [g/tp] d -> [b/dp] s [(g r)/tp] d", r=4)  # grouped queries: f32[2,8,1,64] -> f32[2,8,4,64]
    ```

    Args:
      x: an array, in a manual region one shard; a list of arrays is stacked along a new first dim.
      pattern: both sides, with the sharding of each dim.
      **axes_lengths: the global sizes of the new names; one that is sharded is made in parts.

    Returns:
      The array of the pattern's right side. Its gradient is summed over what was repeated.

    Raises:
      PatternError, ShapeError, VaryingError, ShardingError, MeshAxisError: as `rearrange` does.
    """
    return _einops("repeat", x, pattern, axes_lengths)


def reduce(x: T, pattern: str, reduction: Reduction, **axes_lengths: int) -> T:
    """Reduce over dims, as `einops.reduce`; a sharded dim is reduced over its mesh axes, too.

    Over the axes of a dim that is reduced the result says what becomes of the sum: nothing (psum),
    ``[f/tp]`` (psum_scatter), ``+tp`` (left unreduced), ``~tp`` (left varying, to be scaled or
    summed later). ``max`` and ``min`` use pmax and pmin, which have no derivative in JAX.

    ```python
    total = reduce(x, "[b/dp] d -> d", "sum")  # f32[2,16] -> f32[16] per shard, one all-reduce over dp
    ```

    Args:
      x: an array, in a manual region one shard; a list of arrays is stacked along a new first dim.
      pattern: both sides, with the sharding of each dim.
      reduction: ``sum mean max min prod any all``, or a function of an array and a tuple of dims
        where no reduced dim is sharded. ``mean`` divides by the global size.
      **axes_lengths: global sizes of names that the operand does not tell.

    Returns:
      The array of the pattern's right side.

    Raises:
      PatternError, ShapeError, VaryingError, ShardingError, MeshAxisError: as `rearrange` does.
    """
    return _einops("reduce", x, pattern, axes_lengths, reduction)


@dataclass(frozen=True, slots=True)
class Reshaping:
    """What an operation of einops does.

    Attributes:
      local: the pattern on one shard.
      lengths: the sizes that einops needs there.
      sums: the sums over mesh axes.
      owed: per axis that is summed over what is summed there.
      result: how the result lies.
    """

    local: str
    lengths: Mapping[str, int]
    sums: Sums
    owed: Mapping[str, str]
    result: Laid


def _einops(verb: str, x: Any, pattern: Any, lengths: dict[str, int], reduction: Reduction | None = None) -> Any:
    call = begin(verb, pattern, 1)
    if isinstance(x, list):
        _refuse_empty(call, x)
        x = einops.rearrange(x, "... -> ...")  # stacks them
    _check_names(call, lengths, reduction)
    operands = read_operands(call, (x,))
    lengths = {name: int(length) for name, length in lengths.items()}
    key = (key_of_operands(operands), tuple(lengths.items()), reduction if isinstance(reduction, str) else "function")
    plan = call.plan(key, lambda: _plan(call, operands, lengths, reduction))
    value = _run(call, operands[0], plan, reduction)
    left = left_over(value, plan.sums)
    if verb == "reduce":
        value = combine(call, value, plan.sums, reduction, operands[0], plan.owed)
    else:
        value = run_sums(call, value, plan.sums)
    idle = idle_over(operands, plan.result)
    return remember_result(call, value, operands, plan.result, idle, left, is_stated=True)


def _refuse_empty(call: Call, arrays: list[Any]) -> None:
    """Nothing can be stacked of nothing; where no sharding is written, einops says so."""
    if not arrays and not call.is_plain:
        raise call.wrong(NotAnArray("an array", "an empty list"), Subject("operand", "operand"), None)


def _plan(call: Call, operands: list[Operand], lengths: Mapping[str, int], reduction: Reduction | None) -> Reshaping:
    (operand,) = operands
    left, extents = operand.laid, solve(call, operands, lengths)
    right = call.lay(-1, dots=left.dots)
    _bind_new(call, right, extents)
    splits = splits_of(call, operands, extents, right.places)
    inherited = [_inherited(call, left, right, at, splits, extents) for at in range(len(right.places))]
    _check_merges(call, left, splits, extents)
    owed = _owed(call, operand, right, splits)
    if call.verb != "reduce":
        _refuse_moves(call, operand, right, inherited)
    refuse_addends_of_shards(call, operands, splits)
    if call.verb == "reduce":
        refuse_marks(call, reduction, operand, right, owed)
    shapes = [prod(local(extents[k], splits.get(k, ()), call.region.sizes) for k in keys_of(p)) for p in right.places]
    sums = plan_sums(call, right, inherited, owed, shapes)
    refuse_lost_varying(call, operands, right)
    local_lengths = _local_lengths(call, left, right, splits, extents, lengths)
    return Reshaping(_local_pattern(call, splits, extents), local_lengths, sums, owed, right)


def _has_open_dots(side: Side) -> bool:
    return any(isinstance(dim, Dots) for dim in side.dims)


def _check_names(call: Call, lengths: Mapping[str, int], reduction: Reduction | None) -> None:
    """What einops says of names, said with their place."""
    left, right = call.pattern.operands[0], call.result
    for index, side in ((0, left), (-1, right)):
        for name in _repeated(side.names):
            raise call.fault(f"the pattern has '{name}' twice on one side", call.span_of(index, name))
    if right.dots is not None and left.dots is None:
        raise call.fault("the pattern has '...' only on the right", right.dots.span)
    if left.dots is not None and not _has_open_dots(left):
        raise call.fault("the pattern has '...' in parentheses on the left", left.dots.span)
    if left.dots is not None and right.dots is None and call.verb != "reduce":
        raise call.fault("the pattern has '...' only on the left", left.dots.span)
    _check_sides(call, left, right, lengths)
    for name, length in lengths.items():
        if name not in (*left.names, *right.names):
            raise call.fault(f"'{name}' is passed as a size, but the pattern does not name it")
        size = _integer(length)
        if size is None:
            raise call.fault(f"the size of '{name}' is {shown(length)}, and no integer", call.span_of(-1, name))
        if size < 0:
            raise call.fault(f"the size of '{name}' is {shown(length)}, which is negative", call.span_of(-1, name))
    is_known = call.verb != "reduce" or callable(reduction) or reduction in REDUCTIONS
    if not is_known:
        raise call.fault(f"the reduction {reduction!r} is not known", None, f"known are {', '.join(REDUCTIONS)}")


def _integer(length: Any) -> int | None:
    """A size that was passed; None for what is no integer, such as an array with dims, a tracer, a symbol."""
    try:
        return None if isinstance(length, bool) else operator.index(length)
    except Exception:  # of NumPy, of JAX, or of whatever class it is
        return None


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for at, name in enumerate(names) if name in names[:at]]


def _check_sides(call: Call, left: Side, right: Side, lengths: Mapping[str, int]) -> None:
    """Names and numbers that may stand on one side only."""
    only_left = [f for f in left.factors if f.number is None and f.name not in right.names]
    only_right = [f for f in right.factors if f.number is None and f.name not in left.names]
    numbers = {side: [f for f in factors if f.number not in (None, 1)]
               for side, factors in (("left", left.factors), ("right", right.factors))}  # fmt: skip
    if only_left and call.verb != "reduce":
        raise call.fault(f"the pattern has '{only_left[0]}' only on the left", only_left[0].span)
    if only_right and call.verb != "repeat":
        raise call.fault(f"the pattern has '{only_right[0]}' only on the right", only_right[0].span)
    if call.verb in ("rearrange", "repeat") and numbers["left"]:
        raise call.fault(f"the pattern has the number {numbers['left'][0]} on the left", numbers["left"][0].span,
                         "give the dim a name")  # fmt: skip
    if call.verb in ("rearrange", "reduce") and numbers["right"]:
        raise call.fault(f"the pattern has the number {numbers['right'][0]} on the right", numbers["right"][0].span,
                         "repeat makes new dims")  # fmt: skip
    for factor in only_right:
        if factor.name not in lengths:
            raise call.fault(f"the size of '{factor}' is not known", factor.span, f"pass {factor}=...")


def _bind_new(call: Call, right: Laid, extents: dict[str, int]) -> None:
    """The sizes of numbers on the right."""
    for place in right.places:
        for at, factor in enumerate(place.dim.factors):
            number = getattr(factor, "number", None)
            if number is not None:
                extents[key_of(place, at)] = number


def _inherited(
    call: Call, left: Laid, right: Laid, at: int, splits: Splits, extents: Mapping[str, int]
) -> tuple[str, ...]:
    """The mesh axes that split a dim of the result; a new dim is made in the parts that it asks for."""
    place = right.places[at]
    keys = keys_of(place)
    old = {key for other in left.places for key in keys_of(other)}
    if not any(key in old for key in keys):
        if keys:
            splits[keys[0]] = place.axes
        _refuse_indivisible_new(call, right, at, extents)
        return place.axes
    known = {key: splits.get(key, ()) for key in keys if key in old}
    if len(known) < len(keys):
        # New factors beside old ones: they, too, are made in the parts that are asked for.
        made = split_merged(keys, place.axes, known, extents, call.region.sizes) or {}
        splits.update({key: axes for key, axes in made.items() if key not in old})
    found = axes_of_merged(keys, splits, extents, call.region.sizes)
    if isinstance(found, Interleaved):
        raise _interleaves(call, place.dim, found)
    return found


def _refuse_indivisible_new(call: Call, right: Laid, at: int, extents: Mapping[str, int]) -> None:
    place = right.places[at]
    size, shards = prod(extents[key] for key in keys_of(place)), prod(call.region.sizes[a] for a in place.axes)
    first = extents[keys_of(place)[0]] if place.names else 1
    if size % shards or first % shards:
        over = ", ".join(map(repr, place.axes))
        name = " ".join(place.names)
        raise call.fault(f"'{name}'={size} does not divide over {over} ({shards} shards)", place.dim.span)


def _interleaves(call: Call, dim: PatternDim, found: Interleaved) -> TypedShmapError:
    names = [str(f) for f in dim.factors]
    first, before = found.factor.split()[0], found.before.split()[0]
    problem = f"'{dim}' would interleave the shards of '{first}', since '{before}' stands before it"
    ordered = " ".join([first, *(name for name in names if name != first)])
    return call.fault(problem, dim.span, f"write ({ordered}), or gather '{first}' first (all_gather)")


def _check_merges(call: Call, left: Laid, splits: Splits, extents: Mapping[str, int]) -> None:
    """A merged dim of the operand is split on its major factors; the result may not say otherwise."""
    for place in left.places:
        found = axes_of_merged(keys_of(place), splits, extents, call.region.sizes)
        if isinstance(found, Interleaved):
            raise _interleaves(call, place.dim, found)


def _owed(call: Call, operand: Operand, right: Laid, splits: Splits) -> dict[str, str]:
    """Per axis over which local results are addends what is summed over it: a reduced name, or the operand's mark."""
    kept = {key for place in right.places for key in keys_of(place)}
    owed = {axis: key for key, axes in splits.items() if key not in kept for axis in axes}
    return owed | {axis: f"+{axis}" for axis in sorted(operand.laid.unreduced)}


def _refuse_moves(call: Call, operand: Operand, right: Laid, inherited: Sequence[tuple[str, ...]]) -> None:
    for place, axes in zip(right.places, inherited, strict=True):
        if place.axes != axes:
            name = " ".join(place.names)
            problem = f"'{name}' is {says(axes)} on the left, but {says(place.axes)} on the right"
            cure = f"{call.verb} moves nothing between shards; all_gather, all_to_all and reshard do"
            raise call.fault(problem, place.dim.span, cure)
    if operand.laid.unreduced != right.unreduced:
        axis = sorted(operand.laid.unreduced ^ right.unreduced)[0]
        cure = f"{call.verb} takes no sum; psum and psum_scatter do"
        raise call.fault(f"'+{axis}' stands on one side only", right.side.span, cure)


def refuse_lost_varying(call: Call, operands: Sequence[Operand], right: Laid) -> None:
    """Refuse a result that does not say over which axes it varies, where an operand says ``~``."""
    mentioned = right.sharded | right.varying | right.unreduced
    for operand in operands:
        for axis in sorted(operand.laid.varying - mentioned):
            problem = f"{operand.subject.phrase} is marked '~{axis}', but the result does not mention '{axis}'"
            mark = next(m.span for m in operand.laid.side.marks if m.sign == "~")
            raise call.fault(problem, mark, f"write '~{axis}' on the result, too; psum and its kin make it one value")
    for axis in sorted(right.reduced - frozenset(a for o in operands for a in o.laid.reduced)):
        raise call.fault(f"'-{axis}' stands on the result only", right.side.span, "all_gather(..., '-axis') makes such")


def _local_pattern(call: Call, splits: Splits, extents: Mapping[str, int]) -> str:
    """The pattern on one shard: without brackets and marks, numbers as they are there."""
    sizes = call.region.sizes

    def text(dim: PatternDim) -> str:
        inner = []
        for at, factor in enumerate(dim.factors):
            number = getattr(factor, "number", None)
            key = f"{factor} at {dim.span[0]}:{at}"
            inner.append(str(factor) if number is None else str(local(number, splits.get(key, ()), sizes)))
        return f"({' '.join(inner)})" if dim.is_group else " ".join(inner)

    def side(s: Side) -> str:
        return " ".join("..." if isinstance(dim, Dots) else text(dim) for dim in s.dims)

    return f"{side(call.pattern.operands[0])} -> {side(call.result)}"


def _local_lengths(
    call: Call, left: Laid, right: Laid, splits: Splits, extents: Mapping[str, int], lengths: Mapping[str, int]
) -> dict[str, int]:
    """The sizes that einops needs on one shard: those that were passed, and those of merged dims."""
    if call.is_plain:
        return dict(lengths)
    merged = {key for p in (*left.places, *right.places) if len(p.names) > 1 for key in keys_of(p)} | set(lengths)
    named = (key for key in merged if key.isidentifier())
    return {key: local(extents[key], splits.get(key, ()), call.region.sizes) for key in named}


def _run(call: Call, operand: Operand, plan: Reshaping, reduction: Reduction | None) -> Any:
    """What einops makes of one shard; what it still refuses is a fault of the pattern."""
    value = operand.value
    try:
        if reduction is None:
            verb = einops.rearrange if call.verb == "rearrange" else einops.repeat
            return verb(value, plan.local, **plan.lengths)
        if call.region.typed:
            value = _jax.without_reduced(value)
        how = "sum" if reduction == "mean" and call.region.typed and _jax.manual_type(value).unreduced else reduction
        return einops.reduce(value, plan.local, how, **plan.lengths)
    except einops.EinopsError as error:
        raise call.fault(str(error).splitlines()[-1].strip(), (0, len(call.pattern.source))) from None
