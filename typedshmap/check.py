"""``check``, ``assume`` and the sizes: assertions and queries in a body."""

from __future__ import annotations

from math import prod
from typing import Any, TypeVar

from . import _jax
from .errors import ShapeError, TypedShmapError
from .errors.failures import Bound, Failure, Subject
from .errors.phrases import value_text
from .errors.places import running_place
from .hints import enforcement
from .hints.array_hint import ArrayHint
from .hints.check_array import check_array
from .hints.check_tree import TreeCheck, check_value
from .hints.context import CallScope, MeshContext, current_mesh_context, current_scope
from .hints.enforcement import enforced
from .hints.fitting import CheckedLeaf
from .hints.global_sharding import check_at_compile_time
from .hints.parse_hint import parse_hint_or_dims
from .hints.structure import ArrayLeaf, Node, UnionOf, array_hints, holds_arrays, walk
from .notation.layout import Layout
from .notation.match import Sizes
from .observers import active, report_assertion

T = TypeVar("T")
_CHECKED = Subject("checked", "checked")


def check(x: T, hint: Any) -> T:
    """Return ``x`` if it fits a hint.

    In a manual region ``x`` is one shard, elsewhere a global array. Names that are bound in the
    call must have their sizes; new ones are bound.

    ```python
    h = check(x @ w, "[batch/dp] [ff/tp]")  # in the body f32[2,16], global f32[8,32]
    y = check(h @ v, "[batch/dp] model +tp")  # the sum over tp is due: f32[2,16]{V:(dp,tp)}
    ```

    A global array must be sharded as its hint says. With one bracket, mark or matching rule, the hint claims the
    sharding of all dims, and dims without brackets are unsharded; a hint without them makes no claim. The sharding is
    compared at once for an array that is placed on a mesh, over that mesh, and for an array with Explicit axes in its
    type. NumPy arrays and uncommitted arrays have no sharding yet, so any hint fits.

    Under ``jax.jit`` XLA chooses the sharding over Auto axes, and only this function compares it
    (``typed``, ``isinstance`` and beartype compare the shape and dtype). A mismatch is raised
    when the program is compiled; a plain ``jax.jit`` raises it as a ``jax.errors.JaxRuntimeError``
    with the whole message. The comparison runs once per compilation. It does not run in a program
    that is only traced (``jax.eval_shape``), exported (``jax.export``, whose ``serialize`` refuses a
    program with this function), or lowered for an AbstractMesh made by hand.

    Args:
      x: an array, or a pytree of arrays for the hint of a pytree.
      hint: any hint, or just its dims as a string.

    Returns:
      ``x``; in a loop, a branch or a call within a manual region perhaps an equal value.

    Raises:
      ShapeError, DtypeError, ShardingError, VaryingError, StructureError: for a value that does not fit.
        Errors that need the whole traced body are raised when it is analyzed, with this call's place.
      AnnotationSyntaxError: for a hint that cannot be read.
      MeshAxisError: for an axis that the mesh does not have, or, under ``jax.jit``, if no mesh is known.
    """
    region, node = current_mesh_context(), parse_hint_or_dims(hint)
    name, checked = check_in_scope(x, node, region, _CHECKED, "check")
    if not region.manual and enforcement.IS_ON:
        for leaf in checked.leaves:
            if leaf.hint is not None and _jax.array.is_tracer(leaf.value):
                hints, place = _candidate_hints(leaf, leaf.hint, node, checked), running_place()
                # Once XLA has chosen the sharding, no traceback leads to this place.
                check_at_compile_time(leaf.value, hints, leaf.subject, region, name, checked.sizes, place)
    if active:
        report_assertion(name, checked)
    return checked.stated(x, name)


def check_in_scope(x: Any, node: Node, region: MeshContext, subject: Subject, verb: str) -> tuple[str, TreeCheck]:
    """Check a value in the current scope, and bind its sizes there; also returns the name for messages."""
    scope = current_scope() or CallScope(verb, {})
    checked = check_value(node, x, subject, region, scope.arguments, scope.sizes)
    if checked.failures and enforced(checked.failures):
        raise checked.error(scope.function)
    scope.sizes = checked.sizes
    return scope.function, checked


def _candidate_hints(leaf: CheckedLeaf, hint: ArrayHint, node: Node, checked: TreeCheck) -> tuple[ArrayHint, ...]:
    """The hints that a leaf may fit: the hint that matched, and union members that match except for sharding."""
    for _, part in walk(node):
        options = [option for option in part.options if holds_arrays(option)] if isinstance(part, UnionOf) else []
        members = [member for option in options for member in array_hints(option)]
        if len(options) > 1 and hint in members:
            break
    else:
        return (hint,)

    def matches(member: ArrayHint) -> bool:
        result = check_array(leaf.value, member, checked.region, checked.sizes, leaf.subject, checked.arguments)
        return not isinstance(result, Failure)

    return (hint, *(member for member in members if member is not hint and matches(member)))


def size(name: str) -> int:
    """Return the global size of a dim, by its name in the hints of the call.

    ```python
    y = total / size("batch")  # 8, also where a shard holds 2
    ```

    Raises:
      ShapeError: for a name that is not bound here.
    """
    return _find_bound("size", _checked_name("size", name))[1]


def shard_size(name: str) -> int:
    """Return the size of a dim on one shard, by its name, or by the dim with its brackets.

    Args:
      name: ``"batch"``, where every hint shards ``batch`` in the same way; else ``"[batch/dp]"``.

    Raises:
      ShapeError: for a name that is not bound here, or that hints shard in different ways.
    """
    if _checked_name("shard_size", name).startswith("["):
        return _bracketed_size(name)
    bound, global_size = _find_bound("shard_size", name)
    sharded_axes = current_mesh_context().sizes
    shards = {prod(sharded_axes.get(axis, 1) for axis in axes) for axes in bound.layouts}
    if len(shards) > 1:
        ways = " and ".join(sorted(f"[{name}/{','.join(axes)}]" for axes in bound.layouts))
        raise ShapeError(f"shard_size: '{name}' is sharded in several ways here: {ways}\n\nHint: write one of them")
    return global_size // shards.pop()


def _bracketed_size(text: str) -> int:
    try:
        node = parse_hint_or_dims(text)
    except TypedShmapError as error:
        raise ShapeError(f"shard_size: {error.sentence}") from None
    assert isinstance(node, ArrayLeaf)
    dims, region = node.hint.spec.dims, current_mesh_context()
    layout = region.layout(node.hint)
    if len(dims) != 1 or not isinstance(layout, Layout):
        raise ShapeError(f"shard_size: '{text}' is not one dim over the axes of this mesh")
    global_size = size(str(dims[0].size))  # type: ignore[union-attr]
    return global_size // prod(region.sizes.get(axis, 1) for axis in layout.dim_axes[0])


def sizes() -> dict[str, int]:
    """Return the global sizes of all dims that are bound here, by name."""
    scope = current_scope()
    bound = scope.sizes if scope else Sizes()
    return {name: dim.size for name, dim in bound if not isinstance(dim.size, tuple) and name.isidentifier()}


def _checked_name(verb: str, name: Any) -> str:
    if not isinstance(name, str):
        raise ShapeError(f"{verb}: {value_text(name)} is not the name of a dim")
    return name


def _find_bound(verb: str, name: str) -> tuple[Bound, int]:
    scope = current_scope()
    bound = scope.sizes.get(name) if scope else None
    if scope is None:
        raise ShapeError(f"{verb}: '{name}' is not bound outside of a typed_shard_map, typed_jit or typed function")
    if bound is None:
        known = ", ".join(f"{n}={s}" for n, s in sizes().items()) or "none"
        raise ShapeError(f"{verb}: nothing binds '{name}' in {scope.function} (bound: {known})")
    if isinstance(bound.size, tuple):
        raise ShapeError(f"{verb}: '{name}' stands for several dims, of sizes {bound.size}")
    return bound, bound.size


_ASSUMED = Subject("assumed", "assumed")


def assume(x: T, hint: Any) -> T:
    """Return ``x``, and trust its hint: over which axes it is the same on every shard, and how its dims are sharded.

    The shape and the dtype are checked as by `check`. The rest is trusted from here on in the body. Use it for
    values that the analysis cannot read, such as the result of a kernel or of a chain of ``ppermute``. It adds
    nothing to the program.

    ```python
    y = all_reduce_kernel(x)  # f32[2,16] per shard; it sums over tp by itself
    y = assume(y, "[b/dp] d")  # the same on every shard of tp, though x was not
    ```

    It does not change JAX's types: under ``check_vma=True`` JAX checks the results of the region too, so a
    kernel must declare over which axes its results vary (``out_shape``).

    Args:
      x: one shard, or a pytree of shards for the hint of a pytree. For a global array nothing is assumed.
      hint: any hint, or just its dims as a string.

    Returns:
      ``x``, or an equal value.

    Raises:
      ShapeError, DtypeError, StructureError: for a value that does not fit.
      VaryingError: if the hint marks a partial sum whose sum JAX knows to be taken, or the other way round.
      AnnotationSyntaxError: for a hint that cannot be read.
      MeshAxisError: for an axis that the mesh does not have.
    """
    region = current_mesh_context()
    if region.manual:
        region = region.but(inferred_axes=region.checked_axes)
    name, checked = check_in_scope(x, parse_hint_or_dims(hint), region, _ASSUMED, "assume")
    if active:
        report_assertion(name, checked, is_assumed=True)
    return checked.stated(x, name, is_assumed=True)
