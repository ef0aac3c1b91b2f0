"""``psum``, ``pmean``, ``pmax``, ``pmin`` and ``psum_scatter``: reductions over the mesh axes that the pattern shows.

A sum over an axis over which the value is not a partial sum would count it several times, and is refused."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from .. import _jax
from ..errors.failures import Failure, PlainMessage, RedundantPsum, Subject, UnusableDtype
from ..hints.array_hint import KEYS, takes
from ..hints.check_array import describe
from ..hints.context import lookup_layout
from ..notation.pattern import Pattern
from .collectives import read_move
from .factor_sharding import plan_partial_sums, psum_value, refuse_moved_axes, scatter_value
from .operands import record_result, refuse_non_numbers
from .operation import MeshAxes, Operation, current_operation, read_operation, shard_count
from .shapes import extremum

T = TypeVar("T")
PatternOrAxes = str | tuple[str, ...]


def psum(x: T, pattern: PatternOrAxes) -> T:
    """Sum a value over mesh axes over which each shard has an addend.

    ```python
    y = psum(y, "[b/dp] f +tp -> [b/dp] f")  # f32[2,16]{V:(dp,tp)} or {V:dp, U:tp} -> {V:dp}
    total = psum(metrics, "dp")  # a pytree, leaf by leaf
    ```

    Args:
      x: one shard, whose addends the pattern marks ``+axis`` or ``~axis``; or a pytree.
      pattern: both sides; for a pytree a mesh axis or a tuple of them.

    Returns:
      The sum, the same on every shard of the axes. Its gradient is the cotangent itself.

    Raises:
      VaryingError: for a value that does not vary over the axis, so that it would be counted several times;
        in a pytree each such leaf is named.
      PatternError: for a pattern that does not sum.
      MeshAxisError: for an axis that is not manual here.
    """
    return _reduce_value("psum", x, pattern)


def pmean(x: T, pattern: PatternOrAxes) -> T:
    """Take the mean over the shards of mesh axes; all else as `psum`.

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
      VaryingError, PatternError, MeshAxisError: as `psum` does.
    """
    return _reduce_value("pmean", x, pattern)


def pmax(x: T, pattern: PatternOrAxes) -> T:
    """Take the largest over the shards of mesh axes; JAX has no derivative of it.

    ```python
    top = pmax(jax.lax.stop_gradient(top), "[b/dp] s ~tp -> [b/dp] s")
    ```

    Args:
      x: one shard, marked ``~axis``; or a pytree.
      pattern: both sides; for a pytree a mesh axis or a tuple of them.

    Raises:
      VaryingError, PatternError, MeshAxisError: as `psum` does; PatternError where it is differentiated.
    """
    return _reduce_value("pmax", x, pattern)


def pmin(x: T, pattern: PatternOrAxes) -> T:
    """Take the smallest over the shards of mesh axes; all else as `pmax`.

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
      VaryingError, PatternError, MeshAxisError: as `psum` does.
    """
    return _reduce_array(read_operation("psum_scatter", pattern, 1), x)


def _reduce_value(verb: str, x: Any, pattern: Any) -> Any:
    if isinstance(pattern, str) and ("->" in pattern or len(pattern.split()) > 1):
        return _reduce_array(read_operation(verb, pattern, 1), x)
    return _reduce_tree(verb, x, pattern)


def _reduce_array(call: Operation, x: Any) -> Any:
    operand, right = read_move(call, x)
    refuse_non_numbers(call, operand)
    left = operand.layout
    unreduced = {axis: f"+{axis}" for axis in call.region.sizes if axis in left.unreduced | left.varying}
    if call.verb != "psum_scatter":
        cure = "psum_scatter scatters a sum; all_gather, all_to_all and reshard move shards"
        refuse_moved_axes(call, left.dim_axes, right, cure)
    for sign, before, after in (("+", left.unreduced, right.unreduced), ("~", left.varying, right.varying)):
        for axis in sorted(after - before):
            raise call.fault(f"'{sign}{axis}' is on the right only", right.side.span)
    sums = plan_partial_sums(call, right, left.dim_axes, unreduced, operand.shape)
    if call.verb in ("pmax", "pmin") and left.unreduced:
        axis = sorted(left.unreduced)[0]
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
            cure = "mark the partial sum on the left, as in '... +tp -> ...'"
            problem = "the pattern takes no sum: both sides are unreduced over the same axes"
            raise call.fault(problem, right.side.span, cure)
    value = operand.value
    for dim, axes in sums.scattered:
        value = scatter_value(value, axes, dim, call.region.has_vma)
    if sums.summed:
        value = _reduce_over(call, value, sums.summed)
    return record_result(call, value, (operand,), right)


def _reduce_over(call: Operation, value: Any, axes: MeshAxes) -> Any:
    has_vma = call.region.has_vma
    if call.verb in ("pmax", "pmin"):
        return extremum(call, call.verb[1:], value, axes)
    if call.verb != "pmean":
        return psum_value(value, axes, has_vma)
    unreduced = _jax.array.manual_type(value).unreduced if has_vma else frozenset[str]()
    for axis in sorted(unreduced.difference(axes)):
        cure = f"take the mean over '{axis}' as well, or psum over it first"
        raise call.fault(f"a mean of a value that stays unreduced over '{axis}': JAX scales no such value", None, cure)
    if has_vma and not unreduced:
        return jax.lax.pmean(value, axes)
    return psum_value(value, axes, has_vma) / shard_count(axes, call.region.sizes)


def _redundant_psum(call: Operation, value: Any, axes: MeshAxes) -> RedundantPsum | None:
    """The first axis over which a value is the same on every shard, by JAX's type or by its known layout."""
    kind, known, has_vma = _jax.array.manual_type(value), lookup_layout(value), call.region.has_vma
    for axis in axes:
        is_known = False
        if known is not None and axis in known.invarying:
            # A mean of values that are equal is right, and makes JAX's type say that they are.
            is_known = call.verb in ("psum", "psum_scatter")
        elif known is not None and not has_vma and axis in known.covered_axes:
            is_known = not any(axis in axes for axes in (known.unreduced, known.varying, *known.dim_axes))
        if is_known or (has_vma and axis not in kind.varying | kind.unreduced):
            place = known.place if known is not None and is_known else None
            return RedundantPsum(axis, call.region.sizes[axis], call.verb, place)
    return None


def _reduce_tree(verb: str, tree: Any, axes: Any) -> Any:
    """Reduce a pytree over mesh axes that are given by name."""
    text = ", ".join(map(str, axes)) if isinstance(axes, tuple) else str(axes)
    call = current_operation(verb, Pattern((), None, text))
    written = axes.split(",") if isinstance(axes, str) else axes
    if not isinstance(written, (tuple, list)) or not all(isinstance(name, str) and name.strip() for name in written):
        cure = "write '... +tp -> ...', or a mesh axis, 'tp', for a pytree"
        raise call.fault(f"{axes!r} is neither a pattern nor a mesh axis", None, cure)
    if not written:
        raise call.fault("no mesh axis is named")
    names = tuple(axis for name in written for axis in call.meaning(name.strip()))
    for at, axis in enumerate(names):
        if axis in names[:at]:
            raise call.fault(f"mesh axis '{axis}' is named twice")
    call.require_manual(names)
    try:
        leaves, _ = _jax.tree.flatten_with_paths(tree, None)
    except _jax.tree.BadTree as error:
        raise call.error(Failure(PlainMessage(f"is not a pytree: {error}"), Subject("argument", "tree"))) from None
    failures = [wrong for path, leaf in leaves if (wrong := _wrong_leaf(call, path, leaf, names)) is not None]
    if failures:
        raise call.error(*failures)
    return _jax.tree.unflatten_like(tree, [_reduce_over(call, leaf, names) for _, leaf in leaves]) if names else tree


def _wrong_leaf(call: Operation, path: str, leaf: Any, axes: MeshAxes) -> Failure | None:
    """Why a leaf cannot be reduced: it is not an array of numbers, or is the same on every shard of an axis."""
    subject = Subject("argument", "tree", path)
    if not isinstance(leaf, (*_jax.array.ARRAYS, *_jax.array.SCALARS)):
        return Failure(PlainMessage(f"is {describe(leaf)}, and not an array"), subject)
    if (reason := _jax.array.why_not_array(leaf)) is not None:
        return Failure(PlainMessage(f"is {describe(leaf)} that JAX refuses ({reason})"), subject)
    is_key = takes(KEYS, dtype := _jax.array.dtype_name_of(leaf))
    what = UnusableDtype(dtype, f"{call.verb} takes numbers") if is_key else _redundant_psum(call, leaf, axes)
    return Failure(what, subject, None, _jax.array.type_text(leaf)) if what is not None else None
