"""``rearrange``, ``reduce`` and ``repeat``: einops on every shard, then a reduction over mesh axes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeVar

import einops

from .. import _jax
from ..errors import TypedShmapError
from ..errors.failures import NotAnArray, Subject
from ..errors.phrases import value_text
from ..hints.check_array import describe
from ..notation.match import LARGEST_SIZE
from ..notation.pattern import PatternDim
from . import factor_sharding
from .factor_sharding import Extents, FactorAxes, PartialSums, run_partial_sums
from .operation import MeshAxes, Operand, Operation, ResolvedDim, SideLayout, read_operation, shard_count

T = TypeVar("T")
Reduction = str | Callable[[Any, tuple[int, ...]], Any]
REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")


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
      **axes_lengths: global sizes of names that the operand does not determine.

    Returns:
      The array of the pattern's right side. Its gradient is the reverse.

    Raises:
      PatternError: for a pattern that cannot be parsed, that moves shards, or that would interleave them.
      ShapeError, VaryingError, ShardingError: for an operand that contradicts the pattern's left side.
      MeshAxisError: for an axis that the mesh does not have.
    """
    return _run_einops("rearrange", x, pattern, axes_lengths)


def repeat(x: T, pattern: str, **axes_lengths: int) -> T:
    """Repeat along new dims, as `einops.repeat`; nothing moves between shards.

    ```python
    k = repeat(k, "[b/dp] s [g/tp] d -> [b/dp] s [(g r)/tp] d", r=4)  # grouped queries: f32[2,8,1,64] -> f32[2,8,4,64]
    ```

    Args:
      x: an array, in a manual region one shard; a list of arrays is stacked along a new first dim.
      pattern: both sides, with the sharding of each dim.
      **axes_lengths: the global sizes of the new names; each shard makes only its part of a sharded dim.

    Returns:
      The array of the pattern's right side. Its gradient is summed over the repeated dims.

    Raises:
      PatternError, ShapeError, VaryingError, ShardingError, MeshAxisError: as for `rearrange`.
    """
    return _run_einops("repeat", x, pattern, axes_lengths)


def reduce(x: T, pattern: str, reduction: Reduction, **axes_lengths: int) -> T:
    """Reduce over dims, as `einops.reduce`; a sharded dim is also reduced over its mesh axes.

    Over the axes of a reduced dim the result determines the sum: no mention (psum), ``[f/tp]``
    (psum_scatter), ``+tp`` (unreduced, to be scaled and summed later), ``~tp`` (varying, each shard
    keeps its own). ``max`` and ``min`` use pmax and pmin, which JAX cannot differentiate.

    ```python
    total = reduce(x, "[b/dp] d -> d", "sum")  # f32[2,16] -> f32[16] per shard, one all-reduce over dp
    ```

    Args:
      x: an array, in a manual region one shard; a list of arrays is stacked along a new first dim.
      pattern: both sides, with the sharding of each dim.
      reduction: ``sum mean max min prod any all``, or, if no reduced dim is sharded, a function of an
        array and a tuple of dims. ``mean`` divides by the global size.
      **axes_lengths: global sizes of names that the operand does not determine.

    Returns:
      The array of the pattern's right side.

    Raises:
      PatternError, ShapeError, VaryingError, ShardingError, MeshAxisError: as for `rearrange`.
    """
    return _run_einops("reduce", x, pattern, axes_lengths, reduction)


class Rearrangement(NamedTuple):
    """The pattern and the sizes that einops needs on one shard, and the sums over mesh axes."""

    local: str
    lengths: Mapping[str, int]
    sums: PartialSums


def _run_einops(verb: str, x: Any, pattern: Any, lengths: dict[str, Any], reduction: Reduction | None = None) -> Any:
    call = read_operation(verb, pattern, (x,) if not isinstance(x, list) else x[:1] or (x,))
    if isinstance(x, list):
        non_arrays = [item for item in x if not isinstance(item, _jax.array.ARRAYS)]
        if (non_arrays or not x) and (call.region.manual or not call.is_plain):  # else einops raises
            came = f"a list with {describe(non_arrays[0])}" if non_arrays else "an empty list"
            raise call.wrong(NotAnArray("an array", came), Subject("operand", "operand"))
        x = einops.rearrange(x, "... -> ...")  # stacks them
    call.plan(("names", *lengths), lambda: _check_names(call, lengths) is None)
    sizes = {name: _read_size(call, name, length) for name, length in lengths.items()}
    if verb == "reduce" and not callable(reduction) and reduction not in REDUCTIONS:
        known = f"known are {', '.join(REDUCTIONS)}"
        raise call.fault(f"the reduction {value_text(reduction)} is not known", None, known)
    operands = call.read_operands((x,))
    more = (tuple(sizes.items()), reduction if isinstance(reduction, str) else "function")
    plan = call.plan_for(operands, lambda: _plan(call, operands[0], sizes, reduction), more)
    local = _run_locally(call, operands[0], plan, reduction)
    if reduction == "mean":
        value = _mean(call, local, operands[0], plan.sums)
    else:
        value = run_partial_sums(call, local, plan.sums, reduction or "sum")
    return factor_sharding.record_sums(call, operands, plan.sums, local, value, is_stated=True)


def _check_names(call: Operation, lengths: Mapping[str, Any]) -> None:
    left, right = call.pattern.operands[0], call.result
    call.refuse_repeated_names("on one side")
    if right.dots is not None and left.dots is None:
        raise call.fault("the pattern has '...' only on the right", right.dots.span)
    if left.dots is not None and left.dots not in left.dims:
        raise call.fault("the pattern has '...' in parentheses on the left", left.dots.span)
    if left.dots is not None and right.dots is None and call.verb != "reduce":
        raise call.fault("the pattern has '...' only on the left", left.dots.span)
    sides = (
        ("left", left, right.names, "reduce", "give the dim a name"),
        ("right", right, left.names, "repeat", "repeat makes new dims"),
    )
    for where, side, others, allows, _ in sides:
        for factor in side.factors:
            if factor.number is None and factor.name not in others and call.verb != allows:
                cure = call.spacing_cure if " " not in call.pattern.source else None
                raise call.fault(f"the pattern has '{factor}' only on the {where}", factor.span, cure)
    for where, side, _, allows, cure in sides:
        for factor in side.factors:
            if factor.number not in (None, 1) and call.verb != allows:
                raise call.fault(f"the pattern has the number {factor} on the {where}", factor.span, cure)
    for factor in right.factors:
        if factor.number is None and factor.name not in (*left.names, *lengths):
            raise call.fault(f"the size of '{factor}' is not known", factor.span, f"pass {factor}=...")
    for name in lengths:
        if name not in (*left.names, *right.names):
            raise call.fault(f"'{name}' is passed as a size, but the pattern does not name it")


def _read_size(call: Operation, name: str, length: Any) -> int:
    try:
        size = None if isinstance(length, bool) else operator.index(length)
    except Exception:  # an array with dims, a tracer, a symbol, or any other object
        size = None
    if size is None or not 0 <= size <= LARGEST_SIZE:
        wrong = "not an integer" if size is None else "negative" if size < 0 else "more than any dim has"
        raise call.fault(f"the size of '{name}' is {value_text(length)}, which is {wrong}", call.span_of(-1, name))
    return size


def _plan(call: Operation, operand: Operand, lengths: Mapping[str, int], reduction: Reduction | None) -> Rearrangement:
    left = operand.layout
    extents = factor_sharding.solve(call, [operand], lengths)
    right = call.resolve_side(-1, left.dots)
    for place in right.dims:
        extents |= place.numbers
    factor_axes = factor_sharding.factor_axes_of(call, [operand], extents, right)
    old = {key for place in left.dims for key in place.keys}
    inherited = [_inherited_axes(call, place, old, factor_axes, extents) for place in right.dims]
    kept = {key for place in right.dims for key in place.keys}
    addends = {axis: key for key, axes in factor_axes.items() if key not in kept for axis in axes}
    addends |= {axis: f"+{axis}" for axis in sorted(left.unreduced)}
    if call.verb != "reduce":
        cure = f"{call.verb} moves nothing between shards; all_gather, all_to_all and reshard do"
        factor_sharding.refuse_moved_axes(call, inherited, right, cure)
        for axis in sorted(call.region.nontrivial_axes & (left.unreduced ^ right.unreduced)):
            cure = f"{call.verb} takes no sum; psum and psum_scatter do"
            raise call.fault(f"'+{axis}' is on one side only", right.side.span, cure)
    elif reduction not in ("sum", "mean"):
        _refuse_partial_sums(call, reduction, left, right, addends)
    if prod([extents[key] for place in right.dims for key in place.keys]) > LARGEST_SIZE:
        raise call.fault("the result has more elements than any array", call.result.span)
    local = {key: size // call.shards(factor_axes.get(key, ())) for key, size in extents.items()}
    shape = [prod([local[key] for key in place.keys]) for place in right.dims]
    sums = factor_sharding.plan_partial_sums(call, right, inherited, addends, shape)
    factor_sharding.refuse_dropped_varying(call, [operand], right)
    if not call.is_plain:  # einops also needs the local sizes of merged dims
        merged = {key for place in (*left.dims, *right.dims) if len(place.keys) > 1 for key in place.keys}
        lengths = {key: local[key] for key in merged | set(lengths) if key.isidentifier()}

    def dim_text(dim: PatternDim) -> str:
        """The text of a dim, with its numbers on one shard."""
        place = ResolvedDim(dim, ())
        names = (str(local.get(key, name)) if name.isdecimal() else name
                 for key, name in zip(place.keys, place.names, strict=True))  # fmt: skip
        return f"({' '.join(names)})" if dim.is_group else " ".join(names)

    return Rearrangement(call.local_pattern(dim_text), lengths, sums)


def _inherited_axes(
    call: Operation, place: ResolvedDim, old: set[str], factor_axes: FactorAxes, extents: Extents
) -> MeshAxes:
    """The mesh axes of a dim of the result without communication; factors not in ``old`` are made in parts."""
    keys = place.keys
    known = {key: factor_axes.get(key, ()) for key in keys if key in old}
    if not known:
        if keys:
            factor_axes[keys[0]] = place.axes
        shards, size = call.shards(place.axes), prod([extents[key] for key in keys])
        if size % shards or (extents[keys[0]] if keys else 1) % shards:
            raise call.fault(f"'{place.name}'={size} does not divide {call.over(place.axes)}", place.dim.span)
        return place.axes
    if len(known) < len(keys):
        made = factor_sharding.split_merged_axes(call, place, known, extents) or {}
        factor_axes.update({key: axes for key, axes in made.items() if key not in old})
    return factor_sharding.axes_of_merged(call, place, factor_axes, extents)


def _refuse_partial_sums(
    call: Operation, reduction: Any, left: SideLayout, right: SideLayout, addends: Mapping[str, str]
) -> None:
    """Raise for a reduction that is not a sum, if the pattern has a partial sum on either side or scatters one."""
    name = repr(reduction) if isinstance(reduction, str) else "a function"
    for axis in sorted(call.region.nontrivial_axes & left.unreduced):
        cure = f"take the sum first: psum(x, '... +{axis} -> ...')"
        raise call.fault(f"{name} of a value that is unreduced over '{axis}'", left.side.span, cure)
    span = right.side.span
    for axis in call.nontrivial(tuple(addends)):
        if not isinstance(reduction, str) and axis not in right.varying:
            problem = f"a function reduces one shard, and '{addends[axis]}' is sharded over '{axis}'"
            raise call.fault(problem, span, f"write '~{axis}' on the result, and combine the shards yourself")
        if axis in right.unreduced | right.sharded:
            problem = f"{name} is not a sum: its result cannot be unreduced or scattered over '{axis}'"
            raise call.fault(problem, span, f"drop '{axis}' from the result, or write '~{axis}'")


def _run_locally(call: Operation, operand: Operand, plan: Rearrangement, reduction: Reduction | None) -> Any:
    """Run einops on one shard; an error of einops becomes a fault of the pattern."""
    value = operand.value

    def run(value: Any) -> Any:
        if reduction is None:
            return getattr(einops, call.verb)(value, plan.local, **plan.lengths)
        return einops.reduce(value, plan.local, reduction, **plan.lengths)

    try:
        if call.region.has_vma and reduction is not None:
            value = _jax.casts.drop_reduced(value)
            if reduction == "mean" and _jax.array.manual_type(value).unreduced:
                reduction = "sum"
        if call.is_plain or not call.region.explicit:
            return run(value)
        is_cut = partial(_is_cut, call, operand, plan)
        return call.run_on_auto_axes([operand._replace(value=value)], plan.sums.result, is_cut, run)
    except TypedShmapError:
        raise
    except einops.EinopsError as error:
        raise call.fault(str(error).splitlines()[-1].strip(), (0, len(call.pattern.source))) from None
    except Exception:
        call.refuse_unknown(value, operand.subject)  # NumPy's arrays of objects and dates have their own rules
        raise


def _is_cut(call: Operation, operand: Operand, plan: Rearrangement, known: Mapping[str, Sequence[MeshAxes]]) -> bool:
    """Whether a dim sharded over Explicit axes is split within a shard, or becomes the minor part of another."""
    mesh, result = dict(call.region.mesh or ()), [place.keys for place in plan.sums.result.dims]
    minor = {key for keys in result for key in keys[1:]}
    for place in operand.layout.dims:
        for major in place.keys[:1]:
            shards = [shard_count(axes, mesh) for axes in known.get(major, ())]
            is_split = len(place.keys) > 1 and any(plan.lengths.get(major, 1) % count for count in shards)
            if is_split or (shards and major in minor):
                return True
    return False


@_jax.source.counts_shards
def _mean(call: Operation, value: Any, operand: Operand, sums: PartialSums) -> Any:
    """The mean of the shards' means; over the axes of a ``+`` mark they are summed, not averaged."""
    if not (call.region.has_vma and _jax.array.manual_type(value).unreduced):
        shards = call.shards(axis for axis, name in sums.addends.items() if not name.startswith("+"))
        return run_partial_sums(call, value / shards if shards > 1 else value, sums)
    if sums.unreduced:
        problem = "'mean' of a value that stays unreduced: JAX does not scale such a value"
        raise call.fault(problem, call.result.span, "take the sum first (psum), or reduce by 'sum'")
    global_size = prod(operand.global_shape(call.region.sizes))
    kept = value.size * call.shards(operand.layout.sharded - sums.addends.keys())
    return run_partial_sums(call, value, sums) * (kept / global_size)
