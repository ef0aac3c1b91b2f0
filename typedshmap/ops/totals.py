"""``psum``, ``pmean``, ``pmax``, ``pmin`` and ``psum_scatter``: sums that are owed, taken where the pattern says so.

A sum over an axis on which nothing is owed would count a value several times, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, TypeVar

import jax

from .. import _jax
from ..errors.failures import Failure, NotNumbers, SummedTwice, Told
from ..hints.leaf import describe
from ..hints.memory import Remembered, recall
from ..notation.patterns import Pattern
from ..notation.sizes import Subject
from .call import Call, Laid, begin, call_here, says
from .collectives import read_move
from .operands import Operand, is_key, refuse_keys, remember_result
from .reductions import with_refusal
from .sums import plan_sums, scatter
from .sums import psum as sum_over

T = TypeVar("T")
Axes = str | tuple[str, ...]


def psum(x: T, pattern: Axes) -> T:
    """Take the sum that is owed over mesh axes.

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
      VaryingError: for a value that does not vary over the axis, whose sum was taken already; in a
        pytree each such leaf is named.
      PatternError: for a pattern that does not sum.
      MeshAxisError: for an axis that is not manual here.
    """
    return _take("psum", x, pattern)


def pmean(x: T, pattern: Axes) -> T:
    """Take the mean over the shards of mesh axes, as `psum` takes the sum.

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
    return _take("pmean", x, pattern)


def pmax(x: T, pattern: Axes) -> T:
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
    return _take("pmax", x, pattern)


def pmin(x: T, pattern: Axes) -> T:
    """Take the smallest over the shards of mesh axes; all else as `pmax`.

    ```python
    low = pmin(low, "[b/dp] s ~tp -> [b/dp] s")
    ```
    """
    return _take("pmin", x, pattern)


def psum_scatter(x: T, pattern: str) -> T:
    """Take the sum that is owed over mesh axes, each shard its part of a dim.

    ```python
    y = psum_scatter(y, "[b/dp] f +tp -> [b/dp] [f/tp]")  # f32[2,16] -> f32[2,8] per shard
    ```

    Args:
      x: one shard, whose addends the pattern marks ``+axis`` or ``~axis``.
      pattern: both sides, with the same dims; other axes may be summed whole in the same call.

    Returns:
      The sum, scattered. Its gradient is an all_gather.

    Raises:
      ShapeError: for a dim that does not divide over the axes.
      VaryingError, PatternError, MeshAxisError: as `psum` does.
    """
    call = begin("psum_scatter", pattern, 1)
    return _run(call, x)


def _take(verb: str, x: Any, pattern: Any) -> Any:
    if isinstance(pattern, str) and ("->" in pattern or len(pattern.split()) > 1):
        return _run(begin(verb, pattern, 1), x)
    return _over_tree(verb, x, pattern)


def _run(call: Call, x: Any) -> Any:
    operand, right = read_move(call, x)
    refuse_keys(call, operand)
    left = operand.laid
    owed = {axis: f"+{axis}" for axis in call.region.sizes if axis in left.unreduced | left.varying}
    call.require_manual(set(call.written_axes()) if not owed and not call.region.held else owed)
    _refuse_scatter(call, left, right)
    _refuse_unmarked(call, left, right)
    sums = plan_sums(call, right, left.parts, owed, operand.shape)
    if call.verb in ("pmax", "pmin") and left.unreduced:
        axis = sorted(left.unreduced)[0]
        raise call.fault(f"a {call.verb} of addends over '{axis}'", left.side.span, f"write '~{axis}', or psum first")
    taken = set(sums.summed) | {axis for _, axes in sums.scattered for axis in axes}
    _refuse_equal(call, operand, taken)
    _refuse_idle(call, right, taken)
    value = operand.value
    for dim, axes in sums.scattered:
        value = scatter(value, axes, dim, call.region.typed)
    if sums.summed:
        value = _collective(call)(value, sums.summed)
    return remember_result(call, value, (operand,), right)


def _collective(call: Call) -> Callable[[Any, tuple[str, ...]], Any]:
    typed = call.region.typed
    match call.verb:
        case "pmax" | "pmin":
            return partial(with_refusal, call, call.verb[1:])
        case "pmean":
            return partial(_mean_over, call)
        case _:
            return partial(sum_over, typed=typed)


def _mean_over(call: Call, value: Any, axes: tuple[str, ...]) -> Any:
    for axis in sorted(_jax.manual_type(value).unreduced.difference(axes) if call.region.typed else ()):
        cure = f"take the mean over '{axis}' as well, or psum over it first"
        raise call.fault(f"a mean of a value that stays unreduced over '{axis}': JAX scales no such value", None, cure)
    if call.region.typed and not _jax.manual_type(value).unreduced:
        return jax.lax.pmean(value, axes)
    return sum_over(value, axes, call.region.typed) / prod(call.region.sizes[axis] for axis in axes)


def _refuse_scatter(call: Call, left: Laid, right: Laid) -> None:
    for place, before in zip(right.places, left.parts, strict=True):
        if call.verb != "psum_scatter" and place.axes != before:
            name = " ".join(place.names)
            problem = f"'{name}' is {says(before)} on the left, but {says(place.axes)} on the right"
            cure = "psum_scatter scatters a sum; all_gather, all_to_all and reshard move shards"
            raise call.fault(problem, place.dim.span, cure)


def _refuse_unmarked(call: Call, left: Laid, right: Laid) -> None:
    """A mark on the right that the left does not have."""
    for sign, before, after in (("+", left.unreduced, right.unreduced), ("~", left.varying, right.varying)):
        for axis in sorted(after - before):
            raise call.fault(f"'{sign}{axis}' stands on the right only", right.side.span)


def _refuse_equal(call: Call, operand: Operand, taken: set[str]) -> None:
    """A value that is the same on every shard of an axis: JAX's type says so, or what is remembered of it."""
    kind, known = _jax.manual_type(operand.value), recall(operand.value)
    for axis in (axis for axis in call.region.sizes if axis in taken):
        place = known.place if known is not None and _is_known_equal(call, known, axis) else None
        if place is not None or (call.region.typed and axis not in kind.varying | kind.unreduced):
            what = SummedTwice(axis, call.region.sizes[axis], call.verb, place)
            raise call.wrong(what, operand.subject, operand.value)


def _refuse_idle(call: Call, right: Laid, taken: set[str]) -> None:
    if call.has_idle_name:
        return
    if call.verb == "psum_scatter" and not any(axis in right.sharded for axis in taken):
        raise call.fault("the pattern scatters nothing", right.side.span, "write [dim/axis] where the sum is scattered")
    if not taken:
        cure = "mark what is owed on the left, as in '... +tp -> ...'"
        raise call.fault("the pattern takes no sum: both sides owe the same", right.side.span, cure)


def _over_tree(verb: str, tree: Any, axes: Any) -> Any:
    """A pytree, over mesh axes that are named themselves."""
    call = call_here(verb, Pattern((), None, ", ".join(map(str, axes)) if isinstance(axes, tuple) else str(axes)))
    names = _axis_names(call, axes)
    call.require_manual(names)
    try:
        leaves, _ = _jax.paths(tree, None)
    except _jax.BadTree as error:
        raise call.error(Failure(Told(f"is no pytree: {error}"), Subject("argument", "tree"))) from None
    failures = [wrong for path, leaf in leaves for wrong in _wrong_leaf(call, path, leaf, names)]
    if failures:
        raise call.error(*failures)
    if not names:
        return tree
    collective = _collective(call)
    return _jax.like(tree, [collective(leaf, names) for _, leaf in leaves])


def _axis_names(call: Call, axes: Any) -> tuple[str, ...]:
    """Mesh axes by the names that stand for them."""
    written = axes.split(",") if isinstance(axes, str) else axes
    if not isinstance(written, (tuple, list)) or not all(isinstance(name, str) and name.strip() for name in written):
        cure = "write '... +tp -> ...', or a mesh axis, 'tp', for a pytree"
        raise call.fault(f"{axes!r} is no pattern and no mesh axis", None, cure)
    if not written:
        raise call.fault("no mesh axis is named")
    found = tuple(axis for name in written for axis in call.meaning(name.strip()))
    for at, axis in enumerate(found):
        if axis in found[:at]:
            raise call.fault(f"mesh axis '{axis}' is named twice")
    return found


def _wrong_leaf(call: Call, path: str, leaf: Any, axes: tuple[str, ...]) -> list[Failure]:
    """What is wrong with a leaf: no array, or the same on every shard of an axis."""
    subject = Subject("argument", "tree", path)
    if not isinstance(leaf, (*_jax.ARRAYS, *_jax.SCALARS)):
        return [Failure(Told(f"is {describe(leaf)}, and no array"), subject)]
    if (reason := _jax.refusal(leaf)) is not None:
        return [Failure(Told(f"is {describe(leaf)} that JAX refuses ({reason})"), subject)]
    if is_key(leaf):
        return [Failure(NotNumbers(_jax.own_dtype(leaf), call.verb), subject, None, _jax.type_text(leaf))]
    known = recall(leaf) if _jax.is_tracer(leaf) else None
    kind = _jax.manual_type(leaf)
    for axis in axes:
        shards = call.region.sizes[axis]
        if call.region.typed and axis not in kind.varying | kind.unreduced:
            return [Failure(SummedTwice(axis, shards, call.verb), subject, None, _jax.type_text(leaf))]
        if known is not None and _is_known_equal(call, known, axis):
            return [Failure(SummedTwice(axis, shards, call.verb, known.place), subject, None, _jax.type_text(leaf))]
    return []


def _is_known_equal(call: Call, known: Remembered, axis: str) -> bool:
    """Whether all shards are known to be equal over an axis, where JAX's type does not tell."""
    if axis in known.equal:
        # A mean of values that are equal is right, and makes JAX's type say that they are.
        return call.verb in ("psum", "psum_scatter")
    if call.region.typed or axis not in known.spoken:
        return False
    return axis not in known.unreduced | known.varying and not any(axis in axes for axes in known.parts)
