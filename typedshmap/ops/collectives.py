"""Collectives over the mesh axes in a pattern: gather, exchange, permute and reduce shards.

A psum over an axis over which the value is not a partial sum would count it several times, and raises an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from .. import _jax
from .._jax.array import KEYS, takes
from ..errors.failures import Failure, PlainMessage, Subject, UnusableDtype, WrongSize
from ..errors.phrases import quoted_axes, sharding_text, value_text
from ..errors.varying import RedundantPsum
from ..hints.check_array import describe
from ..hints.context import lookup_layout
from ..notation.layout import NO_AXES, shared_prefix
from ..notation.pattern import Pattern
from .factor_sharding import plan_partial_sums, reduce_shards, refuse_moved_axes, scatter_value
from .operation import MeshAxes, Operand, Operation, SideLayout, current_operation, read_operation

T = TypeVar("T")
PatternOrAxes = str | tuple[str, ...]


def all_gather(x: T, pattern: str) -> T:
    """Gather the shards of dims over the minor mesh axes that the result lacks.

    The mark on the result determines its type in JAX, and so its gradient: none (invarying: an
    all-reduce and a slice), ``~dp`` (varying: one reduce-scatter; the library infers that all shards
    are equal), ``-dp`` (reduced: one reduce-scatter, and by JAX's type all shards are equal).

    ```python
    w = all_gather(w, "[m/dp] [f/tp] -> m [f/tp] ~dp")  # f32[4,32] -> f32[16,32] per shard
    ```

    Args:
      x: one shard.
      pattern: both sides, with the same dims; several dims and several axes may be gathered at once.

    Returns:
      The gathered array.

    Raises:
      PatternError: for a pattern that gathers nothing, or gathers an axis that is not the minor one.
      ShapeError, VaryingError, ShardingError: for an operand that contradicts the pattern's left side.
      MeshAxisError: for an axis that is not manual here.
    """
    call = read_operation("all_gather", pattern, (x,))
    operand, right = read_move(call, x)
    value = operand.value
    gathers = call.plan((len(operand.shape),), lambda: _plan_gathers(call, operand, right))
    for gather in gathers:
        value = _jax.casts.all_gather(value, gather.axes, gather.dim, gather.to, call.region.has_vma)
    axes = frozenset(axis for gather in gathers for axis in gather.axes)
    return call.record_result(value, (operand,), right, made_invarying=axes)


class Gather(NamedTuple):
    """One gather: a dim, its mesh axes, and JAX's type of the result over them."""

    dim: int
    axes: MeshAxes
    to: str


def _plan_gathers(call: Operation, operand: Operand, right: SideLayout) -> list[Gather]:
    gathers: list[Gather] = []
    for at, (before, place) in enumerate(zip(operand.layout.dim_axes, right.dims, strict=True)):
        kept = call.nontrivial(place.axes)
        if call.nontrivial(before)[: len(kept)] != kept:
            sides = f"{sharding_text(before)} on the left, but {sharding_text(place.axes)} on the right"
            problem = f"'{place.name}' is {sides}: only minor axes can be gathered"
            raise call.fault(problem, place.dim.span, "reshard(x, ...) changes any sharding into any other")
        of_dim: list[Gather] = []
        leaving = [axis for axis in before if axis not in place.axes]
        for axis in reversed(leaving):  # the minor axes first; axes with one type are gathered together
            to = "reduced" if axis in right.reduced else "varying" if axis in right.varying else "invarying"
            together = of_dim.pop().axes if of_dim and of_dim[-1].to == to else ()
            of_dim.append(Gather(at, (axis, *together), to))
        gathers += of_dim
    call.require_manual(sorted(call.layout(0).sharded - call.layout(-1).sharded))
    gone = frozenset(axis for gather in gathers for axis in gather.axes)
    if not gone and not call.has_unused_alias:
        raise call.fault("the pattern gathers nothing: both sides are sharded the same way", right.side.span)
    refuse_other_marks(call, operand.layout, right, gone)
    # In an order that JAX can differentiate: the cotangent of a reduced value is unreduced, and the transpose of a
    # gather without a mark is a slice, which JAX does not have for unreduced values.
    first, then = list[Gather](), list[Gather]()
    for gather in gathers:
        is_late = gather.to == "reduced" or any(late.dim == gather.dim for late in then)
        (then if is_late else first).append(gather)
    for gather in then:
        if gather.to == "invarying":
            reduced = next(axis for later in then if later.to != "invarying" for axis in later.axes)
            problem = f"'-{reduced}' is beside '{gather.axes[-1]}', which has no mark: JAX cannot differentiate that"
            cure = f"write '~{reduced}', or a mark for '{gather.axes[-1]}', too"
            raise call.fault(problem, right.dims[gather.dim].dim.span, cure)
    return [*first, *then]


def read_move(call: Operation, x: Any) -> tuple[Operand, SideLayout]:
    """The operand of a pattern whose two sides have the same dims, and its right side."""
    call.plan(("dims",), lambda: refuse_other_dims(call) is None)
    if not call.region.manual and call.verb != "reshard":
        call.require_manual()
    (operand,) = call.read_operands((x,))
    return operand, call.resolve_side(-1, operand.layout.dots)


def refuse_other_dims(call: Operation) -> None:
    """Raise for sides whose dims differ in more than their sharding."""
    left, _, right = call.local_pattern(lambda dim: str(replace(dim, axes=None))).partition(" -> ")
    if left != right:
        cure = f"{call.verb} changes the sharding only; rearrange reorders, merges and splits dims"
        raise call.fault("the two sides have different dims", call.result.span, cure)


def refuse_other_marks(call: Operation, left: SideLayout, right: SideLayout, gone: frozenset[str]) -> None:
    """Raise for marks on one side only, except those of gathered axes."""
    for sign, before, after in (
        ("+", left.unreduced, right.unreduced),
        ("~", left.varying, right.varying - gone),
        ("-", left.reduced, right.reduced - gone),
    ):
        for axis in sorted(call.region.nontrivial_axes & (before ^ after)):
            name, side = ("left", left.side) if axis in before else ("right", right.side)
            cure = f"write it on both sides: {call.verb} leaves it"
            raise call.fault(f"'{sign}{axis}' is on the {name} only", side.span, cure)


def all_to_all(x: T, pattern: str) -> T:
    """Move mesh axes from one dim to another: every shard sends a piece to every other shard.

    ```python
    q = all_to_all(q, "[s/tp] h d -> s [h/tp] d")  # f32[4,8,16] -> f32[8,4,16] per shard
    ```

    Args:
      x: one shard.
      pattern: both sides, with the same dims; the minor axes of a dim become those of another.

    Returns:
      The array of the pattern's right side. Its gradient is the reverse all_to_all.

    Raises:
      PatternError: for axes that do not move from the minor end of a dim to the minor end of another.
      ShapeError: for a dim that does not divide over its new axes.
      VaryingError, ShardingError: for an operand that contradicts the pattern's left side.
      MeshAxisError: for an axis that is not manual here.
    """
    call = read_operation("all_to_all", pattern, (x,))
    operand, right = read_move(call, x)
    moves = call.plan((len(operand.shape),), lambda: _plan_exchanges(call, operand, right))
    refuse_other_marks(call, operand.layout, right, frozenset())
    value = operand.value
    for axes, dim, to in moves:
        place, size = right.dims[to], operand.shape[to]
        if size % call.shards(axes):
            problem = f"has {place.name}={size} on each shard, which does not divide {call.over(axes)}"
            raise call.wrong(WrongSize(problem, place.dim.span), operand.subject, operand.value)
        value = _jax.casts.pcast_varying(value, axes) if call.region.has_vma else value
        # JAX requires a varying type, which a value over axes of size 1 may lack.
        if call.nontrivial(axes) or _jax.trace.types_have_unit_axes():
            value = jax.lax.all_to_all(value, axes, to, dim, tiled=True)
    return call.record_result(value, (operand,), right)


def _plan_exchanges(call: Operation, operand: Operand, right: SideLayout) -> list[tuple[MeshAxes, int, int]]:
    """The exchanges: axes that leave the minor end of a dim, that dim, and the dim to which they move."""
    written = zip(call.layout(0).dim_axes, call.layout(-1).dim_axes, strict=True)
    call.require_manual([axis for pair in written if pair[0] != pair[1] for axes in pair for axis in axes])
    before, after = operand.layout.dim_axes, right.dim_axes
    kept = [len(shared_prefix(*pair)) for pair in zip(before, after, strict=True)]
    leaving, coming = (
        {at: axes[count:] for at, (axes, count) in enumerate(zip(side, kept, strict=True)) if axes[count:]}
        for side in (before, after)
    )
    moves = [(axes, at, to) for at, axes in leaving.items() for to, arriving in coming.items() if arriving == axes]
    # If a dim lost some axes and gained others at once, it would be resharded before it is gathered.
    if len(moves) != len(leaving) or len(moves) != len(coming) or leaving.keys() & coming.keys():
        place = right.dims[next(iter([*coming, *leaving]))]
        changes = [
            f"dim '{right.dims[at].name}' {verb} {quoted_axes(axes)}"
            for verb, side in (("loses", leaving), ("gains", coming))
            for at, axes in side.items()
        ]
        changes += [] if leaving else ["no dim loses an axis"]
        changes += [] if coming else ["no dim gains an axis"]
        changed = f"{', '.join(changes[:-1])} and {changes[-1]}"
        problem = f"{changed}: an all_to_all moves minor axes from one dim to another"
        raise call.fault(problem, place.dim.span, "reshard(x, ...) changes any sharding into any other")
    if not moves and not call.has_unused_alias:
        raise call.fault("the pattern moves nothing: both sides are sharded the same way", right.side.span)
    return moves


def ppermute(x: T, pattern: str, *, shift: int, axis: str | None = None) -> T:
    """Send every shard ``shift`` places on, and the last shards to the first.

    It rolls a sharded dim of the global array by ``shift`` shards.

    ```python
    k = ppermute(k, "[b/dp] [s/sp] h d", shift=1, axis="sp")  # ring attention: the next shard's keys
    ```

    Args:
      x: one shard.
      pattern: the array, the same before and after.
      shift: the number of places; negative for the other direction.
      axis: the mesh axis to send along, or an alias of several; by default the axes of the only
        sharded dim, or of the only ``~`` mark.

    Returns:
      An array of the same shape. Its cotangent is sent in the other direction.

    Raises:
      PatternError: without an axis, or for several axes without ``axis=``.
      ShapeError, VaryingError, ShardingError: for an operand that contradicts the pattern.
      MeshAxisError: for an axis that is not manual here.
    """
    call = read_operation("ppermute", pattern, (x,), has_result=False)
    if not call.region.manual:
        call.require_manual()
    (operand,) = call.read_operands((x,))
    axes = _axes_to_shift(call, operand, axis)
    if not hasattr(shift, "__index__") or isinstance(shift, bool):
        raise call.fault(f"shift={value_text(shift)} is not an integer")
    value = operand.value
    if axes:
        value = _jax.casts.pcast_varying(value, axes) if call.region.has_vma else value
        # JAX counts the devices of several axes in the order of the mesh; the shards of a dim are in the order of the
        # dim.
        ordered = tuple(axis for axis in call.region.sizes if axis in axes)
        numbers = np.arange(call.shards(axes)).reshape([call.region.sizes[axis] for axis in ordered])
        devices = numbers.transpose([ordered.index(axis) for axis in axes]).ravel().tolist()
        pairs = [(device, devices[(at + int(shift)) % len(devices)]) for at, device in enumerate(devices)]
        value = jax.lax.ppermute(value, ordered, pairs)
    return call.record_result(value, (operand,), operand.layout)


def _axes_to_shift(call: Operation, operand: Operand, axis: str | None) -> MeshAxes:
    marked = [call.meaning(mark.axis) for mark in operand.layout.side.marks if mark.sign == "~"]
    groups = [axes for axes in (*operand.layout.dim_axes, *marked) if axes]
    if axis is not None:
        wanted = call.meaning(axis)
        call.require_manual(wanted)
        if wanted and not any(set(wanted) <= set(axes) for axes in groups):
            raise call.fault(f"axis='{axis}' is not among the axes of the pattern", None, "write it in the pattern")
        return wanted
    call.require_manual()
    if len(groups) > 1:
        names = quoted_axes(",".join(axes) for axes in groups)
        raise call.fault(f"the pattern has several axes to send along: {names}", None, "say which: axis=...")
    if not groups and not call.pattern.has_sharding:
        span = (0, len(call.pattern.source))
        raise call.fault("the pattern has no mesh axis to send along", span, "write [dim/axis]")
    return groups[0] if groups else ()


def psum(x: T, pattern: PatternOrAxes) -> T:
    """Sum a partial sum over mesh axes.

    ```python
    y = psum(y, "[b/dp] f +tp -> [b/dp] f")  # f32[2,16]{V:(dp,tp)} -> f32[2,16]{V:dp}
    total = psum(metrics, "dp")  # a pytree, leaf by leaf
    ```

    Args:
      x: one shard, whose addends the pattern marks ``+axis`` or ``~axis``; or a pytree.
      pattern: both sides; for a pytree a mesh axis or a tuple of them.

    Returns:
      The sum, replicated over the axes. Its gradient is the cotangent itself.

    Raises:
      VaryingError: for a value that does not vary over the axis, which would be counted several times; the
        error names every such leaf of a pytree.
      PatternError: for a pattern that does not sum.
      MeshAxisError: for an axis that is not manual here.
    """
    return _reduce_value("psum", x, pattern)


def pmean(x: T, pattern: PatternOrAxes) -> T:
    """Take the mean over the shards of mesh axes; otherwise as `psum`.

    ```python
    loss = pmean(loss, "~dp -> ")
    gradients = pmean(gradients, "dp")  # refused where JAX has summed them already
    ```

    Args:
      x: one shard, marked ``~axis`` or ``+axis``; or a pytree.
      pattern: both sides; for a pytree a mesh axis or a tuple of them.

    Returns:
      The sum, divided by the number of shards.

    Raises:
      VaryingError, PatternError, MeshAxisError: as for `psum`.
    """
    return _reduce_value("pmean", x, pattern)


def pmax(x: T, pattern: PatternOrAxes) -> T:
    """Take the maximum over the shards of mesh axes; JAX cannot differentiate it.

    ```python
    top = pmax(jax.lax.stop_gradient(top), "[b/dp] s ~tp -> [b/dp] s")
    ```

    Args:
      x: one shard, marked ``~axis``; or a pytree.
      pattern: both sides; for a pytree a mesh axis or a tuple of them.

    Raises:
      VaryingError, PatternError, MeshAxisError: as for `psum`; PatternError if it is differentiated.
    """
    return _reduce_value("pmax", x, pattern)


def pmin(x: T, pattern: PatternOrAxes) -> T:
    """Take the minimum over the shards of mesh axes; otherwise as `pmax`.

    ```python
    low = pmin(low, "[b/dp] s ~tp -> [b/dp] s")
    ```
    """
    return _reduce_value("pmin", x, pattern)


def psum_scatter(x: T, pattern: str) -> T:
    """Sum a value over mesh axes, as `psum`, and scatter the sum along a dim.

    ```python
    y = psum_scatter(y, "[b/dp] f +tp -> [b/dp] [f/tp]")  # f32[2,16] -> f32[2,8] per shard
    ```

    Args:
      x: one shard, whose addends the pattern marks ``+axis`` or ``~axis``.
      pattern: both sides, with the same dims; other axes may be summed without scattering in the same call.

    Returns:
      The sum, scattered. Its gradient is an all_gather.

    Raises:
      ShapeError: for a dim that does not divide over the axes.
      VaryingError, PatternError, MeshAxisError: as for `psum`.
    """
    return _reduce_array(read_operation("psum_scatter", pattern, (x,)), x)


def _reduce_value(verb: str, x: Any, pattern: Any) -> Any:
    if isinstance(pattern, str) and ("->" in pattern or len(pattern.split()) > 1):
        return _reduce_array(read_operation(verb, pattern, (x,)), x)
    return _reduce_tree(verb, x, pattern)


def _reduce_array(call: Operation, x: Any) -> Any:
    operand, right = read_move(call, x)
    call.refuse_non_numbers(operand)
    left = operand.layout
    unreduced = {axis: f"+{axis}" for axis in call.region.sizes if axis in left.unreduced | left.varying}
    if call.verb != "psum_scatter":
        cure = "psum_scatter scatters a sum; all_gather, all_to_all and reshard move shards"
        refuse_moved_axes(call, left.dim_axes, right, cure)
    for sign, before, after in (("+", left.unreduced, right.unreduced), ("~", left.varying, right.varying)):
        for axis in sorted(call.region.nontrivial_axes & after - before):
            raise call.fault(f"'{sign}{axis}' is on the right only", right.side.span)
    sums = plan_partial_sums(call, right, left.dim_axes, unreduced, operand.shape)
    if call.verb in ("pmax", "pmin") and (marked := call.region.nontrivial_axes & left.unreduced):
        axis = sorted(marked)[0]
        raise call.fault(f"a {call.verb} of addends over '{axis}'", left.side.span, f"write '~{axis}', or psum first")
    taken = set(sums.summed).union(*[axes for _, axes in sums.scattered])
    redundant = _redundant_psum(call, operand.value, tuple([axis for axis in call.region.sizes if axis in taken]))
    if redundant is not None:
        raise call.wrong(redundant, operand.subject, operand.value)
    if not call.has_unused_alias:
        if call.verb == "psum_scatter" and taken.isdisjoint(right.sharded):
            cure = "write [dim/axis] where the sum is scattered"
            raise call.fault("the pattern scatters nothing", right.side.span, cure)
        if not taken:
            cure = f"mark the partial sum on the left, as in '... +tp -> ...', or drop the {call.verb}"
            problem = "the pattern takes no sum: both sides are unreduced over the same axes"
            raise call.fault(problem, right.side.span, cure)
    value = operand.value
    for dim, axes in sums.scattered:
        value = scatter_value(value, axes, dim, call.region.has_vma)
    if sums.summed:
        value = _reduce_over(call, value, sums.summed)
    return call.record_result(value, (operand,), right)


def _reduce_over(call: Operation, value: Any, axes: MeshAxes) -> Any:
    if call.verb != "pmean":
        return reduce_shards(call, value, axes, call.verb.removeprefix("p"))
    unreduced = _jax.array.manual_type(value).unreduced if call.region.has_vma else NO_AXES
    for axis in sorted(unreduced.difference(axes)):
        problem = f"a mean of a value that stays unreduced over '{axis}': JAX does not scale such a value"
        raise call.fault(problem, None, f"take the mean over '{axis}' as well, or psum over it first")
    if call.region.has_vma and not unreduced:
        return jax.lax.pmean(value, axes)
    return reduce_shards(call, value, axes, "sum") / call.shards(axes)


def _redundant_psum(call: Operation, value: Any, axes: MeshAxes) -> RedundantPsum | None:
    """The fault of the first axis over which a value is replicated, by JAX's type or by its known layout."""
    kind, known, has_vma = _jax.array.manual_type(value), lookup_layout(value), call.region.has_vma
    is_sum = _jax.primitives.primitive(call.verb).is_linear
    for axis in call.nontrivial(axes):
        is_known = False
        if known is not None and axis in known.invarying:
            # A mean of equal values is right, and makes JAX's type invarying.
            is_known = is_sum
        elif known is not None and not has_vma and axis in known.covered_axes:
            is_known = not any(axis in axes for axes in (known.unreduced, known.varying, *known.dim_axes))
        if is_known or (has_vma and axis not in kind.varying | kind.unreduced):
            place = known.place if known is not None and is_known else None
            other_axes = [name for name in call.nontrivial(axes) if name != axis]
            return RedundantPsum(axis, call.region.sizes[axis], call.verb, is_sum, place, bool(other_axes))
    return None


def _reduce_tree(verb: str, tree: Any, axes: Any) -> Any:
    cure = "write '... +tp -> ...', or a mesh axis, 'tp', for a pytree"
    call, names = _read_axes(verb, axes, "neither a pattern nor a mesh axis", cure)
    try:
        leaves, paths, _ = _jax.tree.flatten_with_paths(tree)
    except _jax.tree.BadTree as error:
        raise call.error(Failure(PlainMessage(f"is not a pytree: {error}"), Subject("argument", "tree"))) from None
    pairs = zip(paths, leaves, strict=True)
    failures = [wrong for path, leaf in pairs if (wrong := _wrong_leaf(call, path, leaf, names)) is not None]
    if failures:
        raise call.error(*failures)
    return _jax.tree.unflatten_like(tree, [_reduce_over(call, leaf, names) for leaf in leaves]) if names else tree


def _read_axes(verb: str, axes: Any, problem: str, cure: str) -> tuple[Operation, MeshAxes]:
    """A call with names of mesh axes or aliases, and the manual mesh axes that they stand for."""
    items = axes if isinstance(axes, tuple) else (axes,)
    text = ", ".join(name if isinstance(name, str) else value_text(name) for name in items)
    call = current_operation(verb, Pattern((), None, text))
    written = axes.split(",") if isinstance(axes, str) else axes
    if not isinstance(written, (tuple, list)) or not all(isinstance(name, str) and name.strip() for name in written):
        raise call.fault(f"{value_text(axes)} is {problem}", None, cure)
    if not written:
        raise call.fault("no mesh axis is named")
    names = tuple(axis for name in written for axis in call.meaning(name.strip()))
    for at, axis in enumerate(names):
        if axis in names[:at]:
            raise call.fault(f"mesh axis '{axis}' is named twice")
    call.require_manual(names)
    return call, names


def axis_index(axis: str | tuple[str, ...]) -> jax.Array:
    """Return the index of this shard over a mesh axis, as `jax.lax.axis_index`; also over an alias or several axes.

    ```python
    rows = axis_index("dp") * shard_size("batch") + jnp.arange(shard_size("batch"))  # of axes={"dp": ("data", "fsdp")}
    ```

    Args:
      axis: a mesh axis, an alias, or a tuple of them, major to minor.

    Returns:
      An int32 of rank 0 that varies over the axes; 0 for an alias of no axis.

    Raises:
      PatternError: for a value that is not a name, and for an axis that is named twice.
      MeshAxisError: for an axis that the mesh does not have, or that is not manual here.
    """
    _, names = _read_axes("axis_index", axis, *_NO_AXIS)
    return jax.lax.axis_index(names) if names else jax.numpy.int32(0)


def axis_size(axis: str | tuple[str, ...]) -> int:
    """Return the number of shards over a mesh axis, as `jax.lax.axis_size`; also over an alias, and over several axes.

    Args:
      axis: a mesh axis, an alias, or a tuple of them.

    Returns:
      The product of their sizes; 1 for an alias of no axis.

    Raises:
      PatternError, MeshAxisError: as for `axis_index`.
    """
    call, names = _read_axes("axis_size", axis, *_NO_AXIS)
    return call.shards(names)


_NO_AXIS = ("not the name of a mesh axis", "write a mesh axis, 'tp', an alias, or a tuple of them")


def _wrong_leaf(call: Operation, path: str, leaf: Any, axes: MeshAxes) -> Failure | None:
    """The failure of a leaf that cannot be reduced: it is not an array of numbers, or is replicated over an axis."""
    subject = Subject("argument", "tree", path)
    if not isinstance(leaf, (*_jax.array.ARRAYS, *_jax.array.SCALARS)):
        return Failure(PlainMessage(f"is {describe(leaf)}, and not an array"), subject)
    if (reason := _jax.array.why_not_array(leaf)) is not None:
        return Failure(PlainMessage(f"is {describe(leaf)} that JAX refuses ({reason})"), subject)
    is_key = takes(KEYS, dtype := _jax.array.dtype_name_of(leaf))
    what = UnusableDtype(dtype, f"{call.verb} takes numbers") if is_key else _redundant_psum(call, leaf, axes)
    return Failure(what, subject, None, _jax.array.type_text(leaf)) if what is not None else None
