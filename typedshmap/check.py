"""``check`` and the sizes: what a body may ask of the region that it is in."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, TypeVar

from . import _jax
from .errors import ShapeError, TypedShmapError, error_of
from .errors.phrases import shown
from .hints.array import ArrayHint
from .hints.inspection import inspect
from .hints.leaf import Fit, check_leaf
from .hints.lying import region_of
from .hints.memory import remember
from .hints.nodes import Either, Leaf, Node, array_hints, holds_arrays, parts
from .hints.postponed import caller, place_of
from .hints.scope import Region, Stated, current_reading, current_region, current_scope
from .hints.trees import node_of
from .hints.walk import Found, Walk
from .notation.layout import Layout
from .notation.sizes import Bound, Sizes, Subject

T = TypeVar("T")
_CHECKED = Subject("checked", "checked")


def check(x: T, hint: Any) -> T:
    """Return ``x`` if it fits a hint.

    In a manual region ``x`` is one shard, elsewhere a global array. Names that are bound in the
    call must have their sizes; new ones are bound.

    ```python
    h = check(x @ w, "[batch/dp] [ff/tp]")  # in the body f32[2,16], global f32[8,32]
    y = check(h @ v, "[batch/dp] model +tp")  # handed on as f32[2,16]{V:dp, U:tp}
    ```

    A global array must lie as its hint says, and one without brackets must be whole. That is
    compared at once for an array that is placed on a mesh, over that mesh, and for one with
    Explicit axes in its type. Arrays of NumPy and uncommitted ones lie nowhere yet, and fit.

    Under ``jax.jit`` XLA chooses how an array lies over Auto axes, and only this function asks
    (``typed``, ``isinstance`` and beartype look at the shape and dtype): what is wrong is raised
    when the program is compiled, and comes out of a plain ``jax.jit`` as a
    ``jax.errors.JaxRuntimeError`` with the whole message in it. It asks once for each compilation,
    not in a program that is only traced (``jax.eval_shape``), exported (``jax.export``, whose
    ``serialize`` refuses a program with this function in it), or lowered for an AbstractMesh made by hand.

    Args:
      x: an array, or a pytree of arrays for a hint of one.
      hint: any hint, or just its dims as a string.

    Returns:
      ``x``, in a loop, a branch or a call within a manual region an equal value that may be another
      object; an array with a ``+axis`` mark at that type, unreduced over the axis.

    Raises:
      ShapeError, DtypeError, ShardingError, VaryingError, StructureError: for what does not fit. What
        only the traced body as a whole tells is raised when that is read, with this call's place.
      AnnotationSyntaxError: for a hint that cannot be read.
      MeshAxisError: for an axis that the mesh does not have, or that is compared under ``jax.jit``
        where no mesh is known.
    """
    region, node = current_region(), node_of(hint)
    name, walk = examine(x, node, region, _CHECKED, "check")
    if not region.is_manual:
        _inspect(walk, node, name)
    return handed_on(x, walk.leaves, region, name, walk.sizes)


def examine(x: Any, node: Node, region: Region, subject: Subject, verb: str) -> tuple[str, Walk]:
    """Check a value in the scope that the program is in, which then knows the sizes that it binds.

    Returns:
      The function that the scope belongs to, the verb if there is none, and what was found.
    """
    scope = current_scope()
    name = scope.function if scope else verb
    walk = Walk(region, scope.arguments if scope else {}, scope.sizes if scope else Sizes())
    walk.visit(node, x, subject)
    walk.settle()
    if walk.failures:
        at = region_of_failure(walk)
        raise error_of(at.report(name, tuple(walk.failures), walk.sizes))
    if scope is not None:
        scope.sizes = walk.sizes
    return name, walk


def region_of_failure(walk: Walk) -> Region:
    """The region with the mesh of the first value that does not fit, of which the message tells."""
    subject = walk.failures[0].subject
    values = (leaf.value for leaf in walk.leaves if leaf.subject == subject)
    return region_of(next(values, None), walk.region)


def _inspect(walk: Walk, node: Node, function: str) -> None:
    """Have it compared how traced leaves lie, once XLA knows, when no traceback leads here."""
    place = place_of(caller(2))
    for leaf in walk.leaves:
        if leaf.hint is not None and _jax.is_tracer(leaf.value):
            hints = _members(leaf, leaf.hint, node, walk)
            inspect(leaf.value, hints, leaf.subject, walk.region, function, walk.sizes, place)


def _members(leaf: Found, hint: ArrayHint, node: Node, walk: Walk) -> tuple[ArrayHint, ...]:
    """The hints that a leaf may fit: where a union has several, the one that was found fits in all but sharding."""
    unions = (part.options for part in parts(node) if isinstance(part, Either))
    choices = (tuple(option for option in options if holds_arrays(option)) for options in unions)
    hints = ([found for option in options for found in array_hints(option)] for options in choices if len(options) > 1)
    others = next((found for found in hints if hint in found), [])
    checked = ((other, _fits(leaf, other, walk)) for other in others if other is not hint)
    return (hint, *(other for other, fits in checked if fits))


def _fits(leaf: Found, hint: ArrayHint, walk: Walk) -> bool:
    return isinstance(check_leaf(leaf.value, hint, walk.region, walk.sizes, leaf.subject, walk.arguments), Fit)


def handed_on(
    value: Any, leaves: list[Found], region: Region, function: str, sizes: Sizes, is_assumed: bool = False
) -> Any:
    """A value at the types of its hints: what is marked ``+axis`` becomes unreduced, and it is stated how all lies."""
    if not region.held:
        return value
    return with_leaves(value, leaves, handed_leaves(leaves, region, function, sizes, is_assumed))


def handed_leaves(
    leaves: list[Found], region: Region, function: str, sizes: Sizes, is_assumed: bool = False
) -> list[Found]:
    """The leaves of values at the types of their hints; the same list if they are that already."""
    # Most hints bear no mark, and are not asked what they mean here.
    if region.typed and any(leaf.hint is not None and leaf.hint.spec.marks for leaf in leaves):
        leaves = [_unreduced(leaf, region) for leaf in leaves]
    return state_leaves(leaves, region, function, sizes, is_assumed)


def with_leaves(value: Any, before: list[Found], after: list[Found]) -> Any:
    """A value whose leaves are others now; the same object if none is."""
    if after is before or all(new.value is old.value for new, old in zip(after, before, strict=True)):
        return value
    if len(before) == 1 and before[0].value is value:
        return after[0].value
    return _jax.like(value, (leaf.value for leaf in after))


def _unreduced(leaf: Found, region: Region) -> Found:
    owed = _owed(leaf, region)
    return leaf._replace(value=_jax.leave_unreduced(leaf.value, owed)) if owed else leaf


def state_leaves(
    leaves: list[Found], region: Region, function: str, sizes: Sizes, is_assumed: bool = False
) -> list[Found]:
    """Shards of which the program now states what their hints say, which is remembered for patterns that read them."""
    reading, handed = current_reading(), leaves
    for at, leaf in enumerate(leaves):
        if leaf.hint is None:
            continue
        value = leaf.value
        stated = Stated(leaf.hint, region, leaf.subject, function, sizes, leaf.alike, is_assumed)
        if reading is not None:
            value = reading.state(value, stated)
        if value is not leaf.value:
            handed = list(leaves) if handed is leaves else handed
            handed[at] = leaf._replace(value=value)
        remember(value, stated)
    return handed


def stated_of(leaf: Found, region: Region, function: str, sizes: Sizes) -> Stated | None:
    """What is stated of a leaf; nothing of one that is no array of the hints."""
    if leaf.hint is None:
        return None
    return Stated(leaf.hint, region, leaf.subject, function, sizes, leaf.alike)


def remember_leaves(leaves: Iterable[Found], region: Region, function: str) -> None:
    """Remember what hints declared of shards, for the patterns that read them."""
    for leaf in leaves:
        if leaf.hint is not None:
            remember(leaf.value, Stated(leaf.hint, region, leaf.subject, function, alike=leaf.alike))


def _owed(leaf: Found, region: Region) -> frozenset[str]:
    if leaf.hint is None:
        return frozenset()
    layout = region.layout(leaf.hint)
    return layout.unreduced & frozenset(region.sizes) if isinstance(layout, Layout) else frozenset()


def size(name: str) -> int:
    """The global size of a dim, by the name that the call's hints bound.

    ```python
    y = total / size("batch")  # 8, also where a shard holds 2
    ```

    Raises:
      ShapeError: for a name that is not bound here.
    """
    return _bound("size", _named("size", name))[1]


def shard_size(name: str) -> int:
    """The size of a dim on one shard, by its name, or by its dim with brackets.

    Args:
      name: ``"batch"``, where every hint shards ``batch`` alike; else ``"[batch/dp]"``.

    Raises:
      ShapeError: for a name that is not bound here, or one that hints shard in different ways.
    """
    if _named("shard_size", name).startswith("["):
        return _bracketed_size(name)
    bound, whole = _bound("shard_size", name)
    held = current_region().sizes
    shards = {prod(held.get(axis, 1) for axis in axes) for axes in bound.layouts}
    if len(shards) > 1:
        ways = " and ".join(sorted(f"[{name}/{','.join(axes)}]" for axes in bound.layouts))
        raise ShapeError(f"shard_size: '{name}' is sharded in several ways here: {ways}\n\nHint: write one of them")
    return whole // shards.pop()


def _bracketed_size(text: str) -> int:
    try:
        node = node_of(text)
    except TypedShmapError as error:
        raise ShapeError(f"shard_size: {error}") from None
    assert isinstance(node, Leaf)
    dims, region = node.hint.spec.dims, current_region()
    layout = region.layout(node.hint)
    if len(dims) != 1 or not isinstance(layout, Layout):
        raise ShapeError(f"shard_size: '{text}' is not one dim over the axes of this mesh")
    whole = size(str(dims[0].size))  # type: ignore[union-attr]
    return whole // prod(region.sizes.get(axis, 1) for axis in layout.parts[0])


def sizes() -> dict[str, int]:
    """The global sizes of all dims that are bound here, by name."""
    scope = current_scope()
    bound = scope.sizes if scope else Sizes()
    return {name: found.size for name, found in bound if not isinstance(found.size, tuple) and name.isidentifier()}


def _named(verb: str, name: Any) -> str:
    if not isinstance(name, str):
        raise ShapeError(f"{verb}: {shown(name)} is no name of a dim")
    return name


def _bound(verb: str, name: str) -> tuple[Bound, int]:
    scope = current_scope()
    bound = scope.sizes.get(name) if scope else None
    if scope is None:
        raise ShapeError(f"{verb}: '{name}' is asked for outside of a typed_shard_map, typed_jit or typed function")
    if bound is None:
        known = ", ".join(f"{n}={s}" for n, s in sizes().items()) or "none"
        raise ShapeError(f"{verb}: nothing binds '{name}' in {scope.function} (bound: {known})")
    if isinstance(bound.size, tuple):
        raise ShapeError(f"{verb}: '{name}' stands for several dims, of sizes {bound.size}")
    return bound, bound.size
