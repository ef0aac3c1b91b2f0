"""Place a value on devices: eagerly, or under a transformation by a constraint or a reshard.

Invariant: an unconstrained dim keeps its sharding if that is known: eagerly, and in the type of a value on Explicit
axes. Otherwise XLA chooses it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, auto_axes

from ..notation.layout import NO_AXES, Layout
from .array import SHAPES, committed_sharding, explicit_spec, has_marked_type, is_mapped, spec_entries, spec_of
from .mesh import AnyMesh, context_mesh, explicit_axes
from .trace import is_outside_traces, is_staged
from .versions import ADDS_UNREDUCED_AXES, HAS_MANUAL_TYPES


def place(x: Any, layout: Layout, mesh: AnyMesh, memory_kind: str | None = None) -> Any:
    """Shard a value by a layout of its rank.

    Under a transformation ``jax.device_put`` does not constrain the compiler, and JAX rejects
    ``with_sharding_constraint`` on Explicit axes. Manual axes of the mesh are ignored.

    Args:
      x: the value.
      layout: the mesh axes of its dims, and the marks.
      mesh: the mesh, with devices if the value is moved eagerly.
      memory_kind: the kind of memory; None for the current one.
    """
    if is_outside_traces():
        wanted = sharding_at_rest(x, layout, mesh, memory_kind)
        return x if is_placed(x, wanted) else move(x, wanted)
    explicit, known = explicit_axes(mesh), explicit_spec(x)
    if explicit:
        wanted = _kept(layout, known).over(explicit)
        if known is None or spec_entries(known.spec, len(layout.dim_axes)).over(explicit) != wanted:
            x = _reshard(x, NamedSharding(mesh, spec_of(wanted)))
    others = frozenset(mesh.axis_names).difference(explicit, mesh.manual_axes)
    constrained = replace(layout.over(others), unreduced=NO_AXES, reduced=NO_AXES)
    is_open = bool(layout.dim_axes) and len(layout.unconstrained) == len(layout.dim_axes)
    if others and not is_open:
        constrain = _constrain_at_once if explicit and not is_staged() else _constrain
        x = constrain(x, NamedSharding(mesh, spec_of(constrained)))
    if memory_kind is not None:  # device_put does not constrain the compiler over Auto axes
        known = explicit_spec(x)
        spec = PartitionSpec() if known is None else known.spec
        x = jax.device_put(x, NamedSharding(mesh, spec, memory_kind=memory_kind))
    return x


def fatal_axes(x: Any, layout: Layout) -> tuple[frozenset[str], frozenset[str]]:
    """The axes over which a traced value is unreduced, and those that a layout adds, if XLA would crash on them."""
    known = None if ADDS_UNREDUCED_AXES or is_outside_traces() else explicit_spec(x)
    have = NO_AXES if known is None else known.spec.unreduced
    return have, layout.unreduced - have if have else frozenset()


def _reshard(x: Any, sharding: NamedSharding) -> Any:
    """``jax.reshard``, in two steps if it makes a partial sum: the first states the current sharding.

    Without it XLA treats an unplaced argument of jit as a partial sum itself, or crashes. On jax 0.9 the first step
    also shards the value as requested, since XLA makes a wrong partial sum from another sharding.
    """
    known, rank = explicit_spec(x), len(x.shape)
    have = Layout(((),) * rank) if known is None else spec_entries(known.spec, rank)
    if sharding.spec.unreduced - have.unreduced:
        wanted = spec_entries(sharding.spec, rank)
        before = have if HAS_MANUAL_TYPES else replace(wanted, unreduced=have.unreduced, reduced=have.reduced)
        if before != have or not is_outside_traces():
            x = jax.reshard(x, NamedSharding(sharding.mesh, spec_of(before)))
    return jax.reshard(x, sharding)


def _constrain(x: Any, sharding: NamedSharding) -> Any:
    """A constraint over the Auto axes of a mesh.

    JAX's own closes the unconstrained dims of a value that is sharded over Explicit axes: such a value is constrained
    on Auto axes, with the axes of its type in the constraint.
    """
    known = explicit_spec(x)
    typed = Layout(()) if known is None else spec_entries(known.spec, x.ndim)
    open_dims = spec_entries(sharding.spec, x.ndim).unconstrained
    if known is None or not open_dims or not typed.sharded or has_marked_type(x):
        return jax.lax.with_sharding_constraint(x, sharding)
    dims = spec_entries(sharding.spec, x.ndim).dim_axes
    both = tuple(a if at in open_dims else (*b, *a) for at, (a, b) in enumerate(zip(dims, typed.dim_axes, strict=True)))
    spec = spec_of(Layout(both, unconstrained=open_dims))
    kept = known.spec if not context_mesh().empty else NamedSharding(sharding.mesh, known.spec)
    explicit = tuple(explicit_axes(sharding.mesh))
    return auto_axes(lambda x: jax.lax.with_sharding_constraint(x, spec), axes=explicit, out_sharding=kept)(x)


@partial(jax.jit, static_argnums=1)
def _constrain_at_once(x: Any, sharding: NamedSharding) -> Any:
    """A constraint under ``jax.grad`` or ``jax.vmap`` alone, since JAX's own gathers the value over Explicit axes."""
    return _constrain(x, sharding)


def sharding_at_rest(x: Any, layout: Layout, mesh: AnyMesh, memory_kind: str | None = None) -> NamedSharding:
    """The sharding of a concrete value after placement; it keeps its memory kind by default."""
    have = committed_sharding(x)
    if memory_kind is None and have is not None:
        kind = have.memory_kind
        memory_kind = None if kind == next(iter(have.device_set)).default_memory().kind else kind
    return NamedSharding(mesh, spec_of(_kept(layout, have)), memory_kind=memory_kind)


def _kept(layout: Layout, have: Any) -> Layout:
    """The layout in which unconstrained dims keep their current mesh axes, except axes that the layout uses."""
    if not layout.unconstrained:
        return layout
    dims, rank, free = [*layout.dim_axes], len(layout.dim_axes), layout.axes
    known = spec_entries(have.spec, rank) if isinstance(have, NamedSharding) else Layout(((),) * rank)
    for at in layout.unconstrained:
        dims[at] = tuple(axis for axis in known.dim_axes[at] if axis not in free)
    return replace(layout, dim_axes=tuple(dims), unconstrained=frozenset[int]())


def is_placed(x: Any, wanted: NamedSharding) -> bool:
    """Whether a value already has this sharding and mesh; on Explicit axes, also in its type."""
    have = committed_sharding(x)
    if not isinstance(have, NamedSharding) or have.mesh != wanted.mesh or have.memory_kind != wanted.memory_kind:
        return False
    if explicit_axes(have.mesh):
        return spec_entries(have.spec, x.ndim) == spec_entries(wanted.spec, x.ndim)
    return have.is_equivalent_to(wanted, x.ndim)


def move(x: Any, sharding: NamedSharding) -> Any:
    """Move a concrete value to a sharding."""
    if sharding.spec.unreduced or (isinstance(x, jax.Array) and jax.typeof(x).sharding.spec.unreduced):
        # device_put does not support this, and reshard only for values on the mesh.
        if explicit_spec(x) is None:
            x = jax.device_put(x, NamedSharding(sharding.mesh, PartitionSpec()))
        return _reshard(x, sharding)
    return (jax.device_put if sharding.is_fully_addressable else _device_put_among_processes)(x, sharding)


def _device_put_among_processes(x: Any, sharding: NamedSharding) -> Any:
    """Place a value that every process has over all processes.

    ``jax.device_put`` does not accept arrays on devices of this process there, nor keys.
    """
    if not isinstance(x, jax.Array):
        return jax.device_put(x, sharding)
    is_key = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
    if not x.is_fully_addressable:
        # Under jax.set_mesh a key that every process makes is placed on all processes.
        moved = jax.device_put(jax.random.key_data(x) if is_key else x, sharding)
        return jax.random.wrap_key_data(moved, impl=jax.random.key_impl(x)) if is_key else moved
    if is_key:
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    return jax.device_put(np.asarray(x), sharding)


def device_put_typed(x: Any, sharding: NamedSharding | PartitionSpec) -> Any:
    """A value with a sharding; a PartitionSpec is over the ambient mesh. A ShapeDtypeStruct gets the sharding."""
    if isinstance(x, SHAPES):
        return x if x.sharding is not None else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    # Under jax.vmap device_put places the mapped value as if it were one item; reshard needs an ambient mesh.
    is_reshard = not isinstance(sharding, NamedSharding) or is_mapped(x)
    return jax.reshard(x, sharding) if is_reshard else jax.device_put(x, sharding)
