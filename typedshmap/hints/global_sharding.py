"""Compare the sharding of a global array with its hint: at the check, or after XLA has chosen it.

The sharding of a committed array is known at once, also under ``jax.grad`` and ``jax.vmap``, and so is the type of an
array on Explicit mesh axes. Under ``jax.jit`` a type does not have the sharding over Auto mesh axes, so JAX calls back
when the program is compiled, and the text of our error is in the error that JAX raises. Our primitive wraps
``jax.debug.inspect_array_sharding`` for two reasons: under ``jax.vmap`` the callback of JAX gets the value with the
mapped dim, without its index; and a program that is exported, or lowered for a mesh without devices, cannot call back.

Invariant: an array on another mesh is compared over its own mesh."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import jax
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding

from .. import _jax
from ..errors import MeshAxisError, TypedShmapError, error_of
from ..errors.failures import BoundaryMark, Failure, Fault, NoUnionMember, PlainMessage, Subject, WrongSharding
from ..errors.report import Report
from ..errors.varying import AddedMark
from ..notation.layout import NO_AXES, Layout
from ..notation.match import Indivisible, Sizes, compile_dims, match
from .array_hint import ArrayHint
from .context import MeshContext, state_sharding, stated_sharding

PLACE_IT = "place it by shard(x, hint, mesh)"


def place_stated(
    value: Any,
    layout: Layout,
    mesh: _jax.mesh.AnyMesh,
    region: MeshContext,
    source: str,
    memory_kind: str | None = None,
) -> Any:
    """Place a value by a layout of its rank, over axes that are not manual; for a tracer, record the layout."""
    before, added = _jax.placing.fatal_axes(value, layout)
    if added:
        what = AddedMark(tuple(sorted(before)), tuple(sorted(added)))
        raise region.error(source, (Failure(what, Subject("placed", "given")),))
    placed = _jax.placing.place(value, layout, mesh, memory_kind)
    state_sharding(placed, layout, region, source)
    return placed


def with_value_mesh(value: Any, region: MeshContext) -> MeshContext:
    """The mesh context with the mesh of a global value, if it has one."""
    if region.role != "value" or region.manual or not _jax.array.is_jax_array(value):
        return region
    inner = _jax.array.strip_transforms(value).value
    if not _jax.array.is_tracer(inner) and _jax.array.committed_sharding(inner) is None:
        return region
    mesh = _jax.mesh.value_mesh(inner)
    return region if mesh is None else with_mesh(mesh, region)


def with_mesh(mesh: _jax.mesh.AnyMesh, region: MeshContext) -> MeshContext:
    """The mesh context with another mesh."""
    return region.but(mesh=mesh.shape_tuple, explicit=_jax.mesh.explicit_axes(mesh))


def sharding_mismatch(
    value: Any, layout: Layout, hint: ArrayHint, region: MeshContext, reads_stated: bool = True
) -> WrongSharding | BoundaryMark | None:
    """The mismatch of the sharding of a global array, as far as it is known while tracing.

    At a boundary on Auto axes ``jax.shard_map`` reshards, so there is none.
    """
    type_sharding = _jax.array.explicit_spec(value)
    is_boundary = region.role == "boundary"
    if is_boundary:
        has_marks = bool(layout.unreduced or layout.reduced)
        is_compared = type_sharding is not None or region.boundary_axes <= region.explicit or has_marks
        if not (region.boundary_axes and is_compared):
            return None
    spec = region.spec(hint, len(getattr(_jax.array.aval_of(value), "shape", ())))
    if is_boundary:
        return _mismatch_at_boundary(type_sharding, spec, region)
    inner = _jax.array.strip_transforms(value)
    is_traced, placed = _jax.array.is_tracer(inner.value), _jax.array.committed_sharding(inner.value)
    if not is_traced and placed is None:
        return None
    if marked := wrong_marks(layout, spec, region, type_sharding is not None or not is_traced):
        return marked
    if is_traced or (type_sharding is not None and not _jax.mesh.auto_axes(type_sharding.mesh)):
        return _known_mismatch(type_sharding, inner, spec, region, reads_stated)
    if placed is None:
        return None
    if isinstance(placed, NamedSharding):
        return named_sharding_mismatch(placed, spec, inner.dims, len(inner.value.shape), PLACE_IT)
    # An array that is not on a mesh, usually on one device, is unsharded.
    if prod(shard_counts(spec, region)) == 1 or not placed.is_fully_replicated:
        return None
    got = f"on {', '.join(f'device {number}' for number in _jax.array.device_ids(placed, len(spec)))}, not on the mesh"
    return WrongSharding(_jax.array.spec_text(spec), got, PLACE_IT)


def mismatch_beside_manual(value: Any, layout: Layout, region: MeshContext) -> WrongSharding | None:
    """The mismatch of the sharding of a shard over axes that are not manual; the layout has the shard's rank."""
    inner = _jax.array.strip_transforms(value)
    return _known_mismatch(_jax.array.explicit_spec(value), inner, _jax.array.spec_of(layout), region, True)


def _known_mismatch(
    type_sharding: NamedSharding | None,
    inner: _jax.array.Underlying,
    want: Any,
    region: MeshContext,
    reads_stated: bool,
) -> WrongSharding | None:
    """Compare the sharding known while tracing: the type over Explicit axes, and statements over Auto axes."""
    ambient = _jax.mesh.context_mesh()
    if type_sharding is None and region.explicit & _jax.mesh.explicit_axes(ambient):
        # An argument of jit without a mesh is unsharded on the ambient mesh.
        type_sharding = NamedSharding(ambient, _jax.array.partition_spec([()] * len(inner.dims)))
    wrong = None if type_sharding is None else _type_mismatch(type_sharding, want)
    return wrong or (_compare_stated(inner, want, region) if reads_stated else None)


def stated_mismatch(value: Any, want: Any, region: MeshContext) -> WrongSharding | None:
    """Compare the stated sharding of a tracer over Auto axes."""
    return _compare_stated(_jax.array.strip_transforms(value), want, region)


def named_sharding_mismatch(
    placed: NamedSharding, want: Any, dims: tuple[int, ...], rank: int, cure: str
) -> WrongSharding | None:
    """The mismatch of a NamedSharding; ``jax.vmap`` maps over the dims that are not in ``dims``."""
    wanted, have = _jax.array.spec_entries(want), _jax.array.spec_entries(placed.spec, rank)
    seen = replace(have, dim_axes=tuple([have.dim_axes[at] for at in dims]), unconstrained=frozenset[int]())
    trivial = [axis for axis, size in placed.mesh.shape.items() if size == 1]
    if _dims_agree(seen, wanted, (seen.sharded | wanted.sharded).difference(trivial)) and _marks_agree(seen, wanted):
        return None
    return _mismatch(want, placed.spec if len(dims) == rank else _jax.array.spec_of(seen), cure)


def _dims_agree(have: Layout, wanted: Layout, axes: Collection[str]) -> bool:
    """Whether dims have the same sharding over some mesh axes, except dims that may have any sharding."""
    pairs = enumerate(zip(have.over(axes).dim_axes, wanted.over(axes).dim_axes, strict=True))
    return all(axes == asked or at in have.unconstrained | wanted.unconstrained for at, (axes, asked) in pairs)


def _marks_agree(have: Layout, wanted: Layout) -> bool:
    return (have.unreduced, have.reduced) == (wanted.unreduced, wanted.reduced)


def _compare_stated(inner: _jax.array.Underlying, want: Any, region: MeshContext) -> WrongSharding | None:
    stated = stated_sharding(inner.value)
    if stated is None or stated.mesh != region.mesh:
        return None
    known = stated.layout
    seen = Layout(
        tuple(known.dim_axes[at] for at in inner.dims),
        unconstrained=frozenset(index for index, at in enumerate(inner.dims) if at in known.unconstrained),
    )
    if _dims_agree(seen, _jax.array.spec_entries(want), stated.axes):
        return None
    got = f"sharded {_jax.array.spec_text(_jax.array.spec_of(seen))} by {stated.source}"
    return WrongSharding(_jax.array.spec_text(want), got, PLACE_IT)


def shard_counts(spec: Any, region: MeshContext) -> tuple[int, ...]:
    """The number of shards of each dim, by a PartitionSpec over the mesh of a context."""
    sizes = dict(region.mesh or ())
    return tuple(prod(sizes.get(axis, 1) for axis in axes) for axes in _jax.array.spec_entries(spec).dim_axes)


def _with_sharding(function: str, spec: Any) -> str:
    """The text of a call with a sharding, which is also valid without an ambient mesh."""
    return f"{function}(x, NamedSharding(mesh, {_jax.array.spec_text(spec)}))"


def _mismatch(want: Any, have: Any, cure: str) -> WrongSharding:
    return WrongSharding(_jax.array.spec_text(want), f"sharded {_jax.array.spec_text(have)}", cure)


def wrong_marks(
    layout: Layout, spec: Any, region: MeshContext, has_typed_mesh: bool
) -> WrongSharding | BoundaryMark | None:
    """The fault of marks that a global array cannot have: over Auto axes, or without a mesh in its type."""
    if region.mesh is None or not (layout.unreduced or layout.reduced):
        return None
    if marked := auto_mark(layout, frozenset(axis for axis, _ in region.mesh) - region.explicit):
        return marked
    if has_typed_mesh:
        return None
    return WrongSharding(_jax.array.spec_text(spec), "neither unreduced nor reduced in JAX's type")


def auto_mark(layout: Layout, auto: Collection[str], due: str = "") -> BoundaryMark | None:
    """The fault of a mark over an Auto axis; ``due`` is another cure for the mark of a partial sum."""
    for sign, axes in (("+", layout.unreduced), ("-", layout.reduced)):
        for axis in sorted(axes.intersection(auto)):
            reason = (
                f"mesh axis '{axis}' is of type Auto, and JAX has unreduced and reduced arrays over Explicit axes only"
            )
            cure = f"make '{axis}' an Explicit axis of the mesh, or {due if sign == '+' else ''}drop the mark"
            return BoundaryMark(sign, axis, reason, cure)
    return None


def _mismatch_at_boundary(type_sharding: NamedSharding | None, want: Any, region: MeshContext) -> WrongSharding | None:
    """On Explicit axes JAX requires the same spec of the argument and the boundary, by default with axes of size 1.

    With Auto axes too, JAX reshards over all axes; a mismatch in the type is still an error here.
    """
    explicit = region.explicit if type_sharding is None else _jax.mesh.explicit_axes(type_sharding.mesh)
    if not _jax.trace.types_have_unit_axes():
        explicit = explicit.difference(axis for axis, size in region.mesh or () if size == 1)
    wanted = _jax.array.spec_entries(want).over(region.boundary_axes & explicit)
    spec = _jax.array.partition_spec(wanted.dim_axes, wanted.unreduced, wanted.reduced)
    cure = f"{PLACE_IT}, or under jit by {_with_sharding('jax.reshard', spec)}"
    if type_sharding is not None:
        have = _jax.array.spec_entries(type_sharding.spec, len(wanted.dim_axes)).over(region.boundary_axes & explicit)
        return None if have == wanted else _mismatch(want, type_sharding.spec, cure)
    if not wanted.axes:
        return None
    which = "whose axes" if region.boundary_axes <= explicit else "some of whose axes"
    return WrongSharding(_jax.array.spec_text(want), f"not placed on the mesh, {which} are Explicit", cure)


def _type_mismatch(type_sharding: NamedSharding, want: Any) -> WrongSharding | None:
    """Compare the type of a global array, which describes Explicit axes only.

    Axes of size 1 are ignored.
    """
    wanted, sizes = _jax.array.spec_entries(want), type_sharding.mesh.shape
    have = _jax.array.spec_entries(type_sharding.spec, len(wanted.dim_axes))
    known = [axis for axis in _jax.mesh.explicit_axes(type_sharding.mesh) if sizes[axis] > 1]
    if _dims_agree(have, wanted, known) and _marks_agree(have, wanted):
        return None
    return _mismatch(want, type_sharding.spec, f"{PLACE_IT}, or by {_with_sharding('jax.reshard', want)}")


# JAX calls back while it compiles, on 0.10 in another thread, so that no context leads to the waiting call: a report
# is found by its text. Keep reports, not errors, which hold frames.
_MOST = 64
_recent_reports: deque[tuple[type[TypedShmapError], Report]] = deque(maxlen=_MOST)


def original_error(error: BaseException) -> TypedShmapError | None:
    """The error of this library with which a compilation failed, if any.

    ```python
    try:
        return compiled(*args)
    except jax.errors.JaxRuntimeError as error:
        if (ours := original_error(error)) is not None:
            raise ours from error
        raise
    ```

    Args:
      error: the exception of JAX, whose text includes ours.

    Returns:
      A new error with the class, text and report of the error raised in JAX's callback.
    """
    text = str(error)
    return next((kind(report) for kind, report in reversed([*_recent_reports]) if str(report) in text), None)


def check_at_compile_time(
    value: Any,
    hints: tuple[ArrayHint, ...],
    subject: Subject,
    region: MeshContext,
    function: str,
    sizes: Sizes,
    place: str,
) -> None:
    """Compare the sharding of a traced value with one of its hints when the program is compiled, if not earlier."""
    region, inner = with_value_mesh(value, region), _jax.array.strip_transforms(value).value
    if region.manual or not _jax.array.is_tracer(inner) or any(_is_silent(hint, region) for hint in hints):
        return
    type_sharding = _jax.array.explicit_spec(inner)
    if type_sharding is not None and not _jax.mesh.auto_axes(type_sharding.mesh):
        return  # its type has the sharding
    mesh = _jax.mesh.value_mesh(inner) or _jax.mesh.context_mesh()
    if mesh.empty and _jax.mesh.has_one_device() and not any(_axes_of(hint, region) for hint in hints):
        return
    if not mesh.empty and (mesh.size == 1 or not _jax.mesh.has_devices(mesh)):
        return
    got, shape = _jax.array.type_text(value), tuple(_jax.array.aval_of(value).shape)

    # This closure must not hold the value: the program keeps the closure alive.
    def compare(sharding: Any, dims: tuple[int, ...], rank: int, mesh: Any) -> None:
        """Compare the sharding that XLA chose, at every compilation; `dims` are those that the hint describes."""
        is_late = region.mesh is None
        here = with_mesh(mesh, region) if is_late and mesh is not None and not mesh.empty else region
        compared = [(hint, _compiled_mismatch(hint, here, is_late, sharding, dims, rank)) for hint in hints]
        if is_late:  # only now is it known whether its dims divide
            compared = [(hint, what or _indivisible(hint, here, shape, sizes, subject)) for hint, what in compared]
        wrong = [Failure(what, subject, hint.text, got) for hint, what in compared if what is not None]
        if len(wrong) < len(hints):
            return
        failure = wrong[0] if len(wrong) == 1 else Failure(NoUnionMember(tuple(wrong)), subject, None, got)
        report = here.report(function, (failure,), sizes, place)
        kind = MeshAxisError if isinstance(wrong[0].what, PlainMessage) else type(error_of(report))
        _recent_reports.append((kind, report))
        raise kind(report)

    hinted_dims = tuple(range(len(shape)))
    _primitive().bind(value, compare=compare, hinted_dims=hinted_dims, asks=_inspection_jaxpr())


def _indivisible(
    hint: ArrayHint, region: MeshContext, shape: tuple[int, ...], sizes: Sizes, subject: Subject
) -> Indivisible | None:
    layout = region.layout(hint)
    assert isinstance(layout, Layout)
    result = match(shape, compile_dims(hint.spec, layout, dict(region.mesh or ()), {}), sizes, subject, {})
    return result if isinstance(result, Indivisible) else None


def _is_silent(hint: ArrayHint, region: MeshContext) -> bool:
    layout = region.layout(hint)
    return isinstance(layout, Layout) and layout.is_silent


def _axes_of(hint: ArrayHint, region: MeshContext) -> frozenset[str]:
    layout = region.layout(hint)
    return layout.sharded | layout.unreduced | layout.reduced if isinstance(layout, Layout) else frozenset()


def _compiled_mismatch(
    hint: ArrayHint, region: MeshContext, is_late: bool, sharding: Any, dims: tuple[int, ...], rank: int
) -> Fault | None:
    """The fault of the sharding that XLA has chosen; ``is_late`` if the mesh was not known while tracing."""
    layout = region.layout(hint)
    if not isinstance(layout, Layout):
        return layout
    if region.mesh is None and (axes := _axes_of(hint, region)):
        named = f"mesh ax{'i' if len(axes) == 1 else 'e'}s {', '.join(repr(axis) for axis in sorted(axes))}"
        cure = "call it under jax.set_mesh(mesh), or with arguments placed by shard(x, hint, mesh)"
        return PlainMessage(f"names {named} in its hint, but no mesh is known", cure)
    spec = region.spec(hint, len(dims))
    # If the mesh was known while tracing, the marks were compared then.
    if is_late and (marked := wrong_marks(layout, spec, region, has_typed_mesh=False)):
        return marked
    wanted = replace(_jax.array.spec_entries(spec), unreduced=NO_AXES, reduced=NO_AXES)
    spec = _jax.array.spec_of(wanted)  # XLA's answer has no marks
    cure = f"constrain it by {_with_sharding('jax.lax.with_sharding_constraint', spec)}"
    placed = _jax.array.named_sharding(sharding, region.mesh or (), rank)
    if placed is not None:
        return named_sharding_mismatch(placed, spec, dims, rank, cure)
    # Compare a sharding without a PartitionSpec by its number of parts along each dim.
    parts = _jax.array.shard_counts(sharding, rank)
    counts = tuple(parts[at] for at in dims)
    expected = shard_counts(spec, region)
    if all(count == expected[at] or at in wanted.unconstrained for at, count in enumerate(counts)):
        return None
    got = f"sharded in ({', '.join(map(str, counts))}) parts, which no PartitionSpec describes"
    return WrongSharding(_jax.array.spec_text(spec), got, cure)


@cache
def _inspection_jaxpr() -> Any:
    """A jaxpr with JAX's own inspection, whose effect makes JAX lower the program with its devices."""
    return jax.make_jaxpr(lambda x: jax.debug.inspect_array_sharding(x, callback=print))(0)


@cache
def _primitive() -> Any:
    def call_back_now(x: Any, *, compare: Callable[..., None], hinted_dims: tuple[int, ...], **_: Any) -> list[Any]:
        placed = _jax.array.committed_sharding(x)
        if placed is not None:
            compare(placed, hinted_dims, len(x.shape), None)
        return []

    def batch(args: Any, at: Any, *, hinted_dims: tuple[int, ...], **task: Any) -> Any:
        return primitive.bind(*args, hinted_dims=tuple(dim + (dim >= at[0]) for dim in hinted_dims), **task), []

    primitive = _jax.versions.extend_core().Primitive("ask_sharding")
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(lambda x, *, asks, **task: ([], asks.effects))
    primitive.def_impl(call_back_now)
    mlir.register_lowering(primitive, _lower)
    ad.primitive_jvps[primitive] = lambda primals, tangents, **task: (primitive.bind(*primals, **task), [])
    batching.primitive_batchers[primitive] = batch
    return primitive


def _lower(context: Any, x: Any, *, compare: Callable[..., None], hinted_dims: tuple[int, ...], asks: Any) -> Any:
    module = context.module_context
    where = module.axis_context
    if module.lowering_parameters.for_export or getattr(where, "device_assignment", None) is None:
        return []
    mesh = where.abstract_mesh

    def inspect(x: Any) -> tuple[()]:
        numbers = jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        rank = len(numbers.shape)  # a key has dims of its own, at the end
        jax.debug.inspect_array_sharding(numbers, callback=lambda sharding: compare(sharding, hinted_dims, rank, mesh))
        return ()

    # Without the mesh JAX passes on XLA's sharding; with it, JAX raises for a dim that is sharded over a part of an
    # axis, which a PartitionSpec cannot express.
    bare = context.replace(module_context=module.replace(axis_context=replace(where, abstract_mesh=None)))
    return mlir.lower_fun(inspect, multiple_results=True)(bare, x)
