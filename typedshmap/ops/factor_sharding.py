"""The size and the mesh axes of each factor of a pattern, and the partial sums of sharded factors.

A merged dim is sharded on its major factors: the axes of ``[(h d)/tp]`` are those of ``h``, then those of ``d``; and
``d`` may have axes only if ``h`` is sharded down to single elements. Otherwise the shards of a factor would interleave.

If a sharded factor is summed, each shard has a partial sum. Over each such axis the result determines the sum:
``+axis`` (unreduced), ``~axis`` (varying), ``[dim/axis]`` (psum_scatter), or no mention (psum).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax

from .. import _jax
from ..errors import PatternError
from ..errors.failures import Bound, Subject, WrongSize
from ..errors.phrases import quoted_axes, sharding_text
from ..errors.varying import NotUnreduced
from ..notation.match import SizeMismatch
from ..notation.pattern import PatternDim
from ..notation.spec import Dim, Name
from .operation import RESULT, MeshAxes, Operand, Operation, ResolvedDim, SideLayout

Extents = Mapping[str, int]
FactorAxes = dict[str, MeshAxes]
"""The mesh axes of each factor, major to minor."""


def solve(call: Operation, operands: list[Operand], lengths: Mapping[str, int]) -> dict[str, int]:
    """The global size of every factor in the operands, together with the passed sizes."""
    extents, sizes = dict(lengths), call.region.sizes
    origins = {name: Bound(size, Subject("argument", name), 0) for name, size in lengths.items()}
    # The einsum of einops uses NumPy's and JAX's, which broadcast a size of 1.
    broadcasts = call.verb == "einsum" and call.is_plain
    merged: list[tuple[Operand, int, int]] = []
    for operand in operands:
        for index, (place, size) in enumerate(zip(operand.layout.dims, operand.global_shape(sizes), strict=True)):
            if len(place.keys) != 1:
                merged.append((operand, index, size))
                continue
            name, key, bound = place.names[0], place.keys[0], Bound(size, operand.subject, index)
            known = origins.setdefault(key, bound)
            expected = extents.setdefault(key, int(name) if name.isdecimal() else size)
            if broadcasts and expected == 1:
                extents[key], origins[key] = size, bound
            elif size != expected and not key.startswith("…") and not (broadcasts and size == 1):
                raise _size_mismatch(call, operand, index, size, expected, None if name.isdecimal() else known)
    for operand, index, size in merged:
        _bind_merged(call, operand, index, size, extents)
    return extents


def _size_mismatch(
    call: Operation, operand: Operand, index: int, size: int, expected: int, known: Bound | None
) -> Exception:
    place = operand.layout.dims[index]
    name, span = place.names[0], place.dim.span
    if known is not None and known.subject.kind == "argument":
        return _wrong_size(call, operand, index, f"{name}={size}", f"but {name}={expected} was passed")
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


def _wrong_size(call: Operation, operand: Operand, index: int, has: str, problem: str) -> Exception:
    place = operand.layout.dims[index]
    shard = f" ({operand.shape[index]} per shard over {quoted_axes(place.axes)})" if place.axes else ""
    problem = f"has {has}{shard}, {problem}"
    if call.is_plain:
        return call.fault(f"{operand.subject.phrase} {problem}", place.dim.span)
    return call.wrong(WrongSize(problem, place.dim.span), operand.subject, operand.value)


def _bind_merged(call: Operation, operand: Operand, index: int, size: int, extents: dict[str, int]) -> None:
    place = operand.layout.dims[index]
    span = place.dim.span
    extents |= place.numbers
    known = {key: extents[key] for key in place.keys if key in extents}
    unknown = [key for key in place.keys if key not in extents]
    product, text = prod(known.values()), str(PatternDim(place.dim.factors, None, True))
    if len(unknown) > 1:
        names = " and ".join(map(repr, unknown))
        raise call.fault(f"the sizes of {names} in '{text}' are not known", span, f"pass {unknown[0]}=...")
    if (unknown and (product == 0 or size % product)) or (not unknown and size != product):
        verb = "does not divide by" if unknown else "is not the product of"
        sizes = " ".join(f"{key.split()[0]}={known[key]}" for key in known) or 1
        raise _wrong_size(call, operand, index, f"{text}={size}", f"which {verb} {sizes}")
    for key in unknown:
        extents[key] = size // product


def axes_of_merged(call: Operation, place: ResolvedDim, factor_axes: FactorAxes, extents: Extents) -> MeshAxes:
    """The mesh axes of a dim; raises for a factor after one that has several elements per shard."""
    axes: MeshAxes = ()
    sizes, open_factor = call.region.sizes, None
    for key in place.keys:
        factor = factor_axes.get(key, ())
        if open_factor is not None and any(sizes[axis] > 1 for axis in factor):
            first, before = key.split()[0], open_factor.split()[0]
            problem = f"'{place.dim}' would interleave the shards of '{first}', since '{before}' is before it"
            ordered = " ".join([first, *(name for name in place.names if name != first)])
            raise call.fault(problem, place.dim.span, f"write ({ordered}), or gather '{first}' first (all_gather)")
        axes += factor
        if open_factor is None and extents[key] != call.shards(factor):
            open_factor = key
    return axes


def split_merged_axes(call: Operation, place: ResolvedDim, known: FactorAxes, extents: Extents) -> FactorAxes | None:
    """The mesh axes of a merged dim's factors, as known or as they divide; None if an axis is left over."""
    remaining, by_factor, sizes = list(place.axes), FactorAxes(), call.region.sizes
    for key in place.keys:
        taken, left = known.get(key), extents[key]
        if taken is None or tuple(remaining[: len(taken)]) != taken or left % call.shards(taken):
            taken = ()
            for axis in remaining:
                if left <= 1 or left % sizes[axis]:
                    break
                left //= sizes[axis]
                taken += (axis,)
        by_factor[key] = taken
        del remaining[: len(taken)]
        if extents[key] != call.shards(taken):
            break
    if any(sizes[axis] > 1 for axis in remaining):
        return None
    if remaining and by_factor:
        by_factor[next(reversed(by_factor))] += tuple(remaining)
    return by_factor if by_factor or not remaining else None


def factor_axes_of(call: Operation, operands: list[Operand], extents: Extents, result: SideLayout) -> FactorAxes:
    """The mesh axes of every factor of the operands; for merged dims, the dims of the result decide."""
    alone = {place.keys[0]: place.axes for place in result.dims if len(place.keys) == 1}
    by_factor, sizes = FactorAxes(), call.region.sizes
    origin: dict[str, Operand] = {}
    for operand in operands:
        for place in operand.layout.dims:
            keys, axes = place.keys, place.axes
            place_axes = {keys[0]: axes} if len(keys) == 1 else split_merged_axes(call, place, alone, extents)
            place_axes = place_axes if place_axes is not None else split_merged_axes(call, place, {}, extents)
            if place_axes is None:
                factors = ", ".join(f"{key.split()[0]}={extents[key]}" for key in keys)
                over = ", ".join(f"{axis}={sizes[axis]}" for axis in axes)
                problem = f"the merged dim '{place.dim}' is not sharded along its factors: {factors} over {over}"
                raise call.fault(problem, place.dim.span, "make the major factor a multiple of the mesh axes")
            for key in keys:
                axes = place_axes.get(key, ())
                if call.nontrivial(by_factor.setdefault(key, axes)) != call.nontrivial(axes):
                    first = origin[key]
                    here = f"{sharding_text(place.axes)} in {operand.subject.phrase}"
                    problem = f"'{key}' is {sharding_text(by_factor[key])} in {first.subject.phrase}, but {here}"
                    sharded = (first if len(by_factor[key]) > len(place.axes) else operand).subject.phrase
                    cure = f"gather it in {sharded} first (all_gather), or reshard the other operand"
                    raise call.fault(problem, place.dim.span, cure)
                by_factor[key] = max(by_factor[key], axes, key=len)
                origin.setdefault(key, operand)
    # With two factors over one mesh axis, a shard would combine only its own parts of both.
    seen: dict[str, str] = {}
    for key, axes in by_factor.items():
        for axis in call.nontrivial(axes):
            if axis in seen:
                both = " and ".join(f"'{name}' in {origin[name].subject.phrase}" for name in (seen[axis], key))
                problem = f"{both} are both sharded over '{axis}', so no shard has all of either"
                span = next(place.dim.span for place in origin[key].layout.dims if key in place.names)
                raise call.fault(problem, span, "gather one of them first (all_gather)")
            seen[axis] = key
    return by_factor


def refuse_dropped_varying(call: Operation, operands: Sequence[Operand], right: SideLayout) -> None:
    """Raise for a result that does not mention an axis over which an operand is marked ``~``."""
    for operand in operands:
        for axis in sorted(call.region.nontrivial_axes & operand.layout.varying - right.differing):
            problem = f"{operand.subject.phrase} is marked '~{axis}', but the result does not mention '{axis}'"
            mark = next(m.span for m in operand.layout.side.marks if m.sign == "~")
            raise call.fault(problem, mark, f"write '~{axis}' on the result, too; psum or pmean removes the mark")
    for axis in sorted(right.reduced.difference(*[operand.layout.reduced for operand in operands])):
        raise call.fault(f"'-{axis}' is on the result only", right.side.span, "all_gather makes such a value")


def refuse_moved_axes(call: Operation, before: Sequence[MeshAxes], right: SideLayout, cure: str) -> None:
    """Raise for a result in which a dim is sharded differently."""
    for place, axes in zip(right.dims, before, strict=True):
        if call.nontrivial(place.axes) != call.nontrivial(axes):
            sides = f"{sharding_text(axes)} on the left, but {sharding_text(place.axes)} on the right"
            raise call.fault(f"'{place.name}' is {sides}", place.dim.span, cure)


class PartialSums(NamedTuple):
    """A result, and the sums over mesh axes that it needs; ``addends`` has each axis's summed factor or mark."""

    result: SideLayout
    addends: Mapping[str, str]
    scattered: tuple[tuple[int, MeshAxes], ...]
    summed: MeshAxes
    unreduced: MeshAxes
    varying: MeshAxes


def plan_partial_sums(
    call: Operation, layout: SideLayout, inherited: Sequence[MeshAxes], addends: Mapping[str, str], local: Sequence[int]
) -> PartialSums:
    """Plan the sums of a result whose dims are sharded over the ``inherited`` axes, with this ``local`` shape."""
    call.refuse_uneven(layout, local)
    scattered: list[tuple[int, MeshAxes]] = []
    for at, (place, axes) in enumerate(zip(layout.dims, inherited, strict=True)):
        wanted = place.axes
        if wanted[: len(axes)] != axes:
            wanted, axes = call.nontrivial(wanted), call.nontrivial(axes)
        is_prefix, extra = wanted[: len(axes)] == axes, wanted[len(axes) :]
        missing = [axis for axis in call.nontrivial(extra) if axis not in addends]
        if not is_prefix or missing:
            sharding = sharding_text(place.axes)
            problem = f"'{place.name}' is {sharding_text(axes)} in the operands, but {sharding} in the result"
            problem += f", and there is no partial sum over '{missing[0]}'" if is_prefix else ""
            name = str(place.dim.factors[0]) if len(place.names) == 1 else f"({place.name})"
            written = f"[{name}/{','.join(axes)}]" if axes else place.name
            cure = f"write {written}; all_gather, all_to_all and reshard move shards"
            raise call.fault(problem, place.dim.span, cure)
        if extra := tuple([axis for axis in extra if axis in addends]):
            if local[at] % call.shards(extra):
                problem = f"has {place.name}={local[at]} on each shard, which cannot be scattered {call.over(extra)}"
                raise call.wrong(WrongSize(problem, place.dim.span), RESULT)
            scattered.append((at, extra))
    for axis in sorted(call.region.nontrivial_axes & layout.unreduced - addends.keys()):
        raise call.wrong(NotUnreduced(axis, call.region.sizes[axis]), RESULT)
    taken = {axis for _, axes in scattered for axis in axes}
    left = [axis for axis in addends if axis not in taken]
    unreduced, varying = (tuple([a for a in left if a in marked]) for marked in (layout.unreduced, layout.varying))
    summed = tuple([axis for axis in left if axis not in layout.unreduced | layout.varying])
    return PartialSums(layout, addends, tuple(scattered), summed, unreduced, varying)


def plan_product(call: Operation, operands: list[Operand]) -> PartialSums:
    """Plan an operation in which every dim has one name."""
    extents = solve(call, operands, {})
    right = call.resolve_side(-1, max((operand.layout.dots for operand in operands), default=0))
    factor_axes, kept = factor_axes_of(call, operands, extents, right), call.result.names
    addends = {axis: name for name, axes in factor_axes.items() if name not in kept for axis in axes}
    for operand in operands:
        for axis in sorted(operand.layout.unreduced):
            is_used = any(axis in axes for axes in factor_axes.values())
            if axis in call.region.nontrivial_axes and (is_used or axis in addends):
                where = "another operand is sharded over it" if is_used else "so is another operand"
                problem = f"{operand.subject.phrase} is unreduced over '{axis}', and {where}"
                raise call.fault(problem, operand.layout.side.span, f"take the sum first (psum over '{axis}')")
            addends[axis] = f"+{axis}"
    names = [place.names[0] for place in right.dims]
    inherited = [factor_axes.get(name, ()) for name in names]
    local = [extents[name] // call.shards(axes) for name, axes in zip(names, inherited, strict=True)]
    sums = plan_partial_sums(call, right, inherited, addends, local)
    refuse_dropped_varying(call, operands, right)
    return sums


def run_partial_sums(call: Operation, value: Any, sums: PartialSums, reduction: Any = "sum") -> Any:
    """Take the sums of a local result over mesh axes, or another reduction if nothing is scattered."""
    has_vma = call.region.has_vma
    for dim, axes in sums.scattered:
        value = scatter_value(value, axes, dim, has_vma)
    if sums.summed:
        value = reduce_shards(call, value, sums.summed, reduction)
    left = (*sums.unreduced, *sums.varying)
    return _jax.casts.pcast_varying(value, left) if has_vma and left else value


def record_sums(
    call: Operation, operands: Sequence[Operand], sums: PartialSums, local: Any, value: Any, is_stated: bool = False
) -> Any:
    """Record a result; where it stays varying, each shard of the local result is an addend."""
    unmarked = any(not operand.layout.unreduced.isdisjoint(sums.varying) for operand in operands)
    addend_axes = _jax.array.manual_type(local).varying.intersection(sums.varying) if sums.varying else frozenset[str]()
    is_stated = is_stated or unmarked or bool(sums.unreduced)
    return call.record_result(value, operands, sums.result, addend_axes=addend_axes, is_stated=is_stated)


def scatter_value(value: Any, axes: MeshAxes, dim: int, has_vma: bool) -> Any:
    """The sum over mesh axes, scattered along a dim."""
    value = _jax.casts.pcast_unreduced_all(value, axes, has_vma)
    return jax.lax.psum_scatter(value, axes, scatter_dimension=dim, tiled=True)


def reduce_shards(call: Operation, value: Any, axes: MeshAxes, reduction: Any) -> Any:
    """A reduction of the shards' values over mesh axes, with a replicated result."""
    has_vma = call.region.has_vma
    if reduction in ("max", "any", "min", "all"):
        value = _jax.casts.pcast_varying(value, axes) if has_vma else value
        which = "max" if reduction in ("max", "any") else "min"
        return _extremum(value, axes, which, f'{call.where}: "{call.pattern.source}"')
    if reduction == "prod":  # JAX has no such collective: gather the products of the shards
        gathered = _jax.casts.all_gather(value[None], axes, 0, "invarying", has_vma)
        return jax.numpy.prod(gathered, axis=0).astype(value.dtype)
    return jax.lax.psum(_jax.casts.pcast_unreduced_all(value, axes, has_vma), axes)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def _extremum(x: Any, axes: MeshAxes, reduction: str, text: str) -> Any:
    """The maximum or the minimum of the shards' values; its derivative raises a PatternError."""
    return (jax.lax.pmax if reduction == "max" else jax.lax.pmin)(x, axes)


@_extremum.defjvp
def _refuse_derivative(axes: Any, reduction: str, text: str, primals: Any, tangents: Any) -> Any:
    over = quoted_axes(axes)
    raise PatternError(
        f"{text}: '{reduction}' over {over} is a p{reduction}, which has no derivative\n\n"
        f"Hint: use jax.lax.stop_gradient(x) if no gradient is needed, else all_gather over {over} first"
    )
