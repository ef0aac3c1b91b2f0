"""The mesh of a ``typed_jit``, the meaning of hints on it, and the comparison of shardings with hints."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .. import _jax
from ..axis_names import AxisNaming
from ..errors import MeshAxisError
from ..errors.failures import BoundaryMark, Failure, WrongSharding
from ..errors.phrases import mesh_text
from ..hints.array_hint import ArrayHint, rank_of
from ..hints.context import MeshContext, current_axis_naming, state_sharding
from ..hints.fitting import CheckedLeaf
from ..hints.global_sharding import (
    PLACE_IT,
    named_sharding_mismatch,
    sharding_mismatch,
    stated_mismatch,
    with_value_mesh,
    wrong_marks,
)
from ..meshes import devices_text, find_mesh, refuse_other_devices, with_devices_of
from ..notation.layout import Layout


class JitContext:
    """A mesh, and the meaning of hints on it.

    Attributes:
      mesh: the mesh; an AbstractMesh if the devices are those of the arguments, or do not matter.
      boundary_context: the mesh context in which arguments and results are checked.
      value_context: the mesh context in which the shardings of global arrays are checked.
      by_spec: whether JAX gets PartitionSpecs, since only JAX knows the devices.
    """

    def __init__(self, mesh: _jax.mesh.AnyMesh, naming: AxisNaming, by_spec: bool) -> None:
        self.mesh, self.by_spec = mesh, by_spec
        self.boundary_context = MeshContext.over(mesh, naming, "boundary")
        self.value_context = MeshContext.over(mesh, naming)

    @lru_cache(maxsize=4096)  # noqa: B019 (contexts are cached themselves); a trace takes 1.15 times the calls without
    def sharding(self, hint: ArrayHint | None, rank: int) -> NamedSharding | PartitionSpec | None:
        """The sharding of an array for ``jax.jit``; None where JAX chooses: without a hint, and for open dims."""
        if hint is None or self.layout(hint, rank).unconstrained:
            return None
        spec = self.boundary_context.spec(hint, rank)
        return spec if self.by_spec else NamedSharding(self.mesh, spec)

    def layout(self, hint: ArrayHint, rank: int) -> Layout:
        """The layout of a hint; its mesh axes must be known."""
        return _jax.array.spec_entries(self.boundary_context.spec(hint, rank))

    def place(self, value: Any, hint: ArrayHint) -> Any:
        """A traced value, sharded as its hint says."""
        return _jax.placing.place(value, self.layout(hint, rank_of(value)), self.mesh)

    def state(self, value: Any, hint: ArrayHint, source: str) -> None:
        """Record how a traced argument is sharded, by its hint."""
        state_sharding(value, self.layout(hint, rank_of(value)), self.boundary_context, source)


_cached_context = lru_cache(maxsize=256)(JitContext)
"""A call in a gradient takes 2.8 times the calls without it."""


def jit_context(
    name: str,
    mesh: _jax.mesh.AnyMesh | None,
    naming: AxisNaming,
    leaves: Callable[[], list[CheckedLeaf]],
    is_running: bool,
) -> JitContext:
    """The mesh of a call, with the devices of the mesh, the ambient mesh or the arguments, if any are known."""
    ambient = _jax.mesh.context_mesh()
    if manual := _jax.mesh.manual_axes(ambient):
        axes = ", ".join(f"'{axis}'" for axis, _ in manual)
        problem = f"is a typed_jit, called inside a manual region over {axes}, where arrays are shards"
        raise MeshAxisError(f"{name}: {problem}\n\nHint: decorate it by typed instead, or call it outside")
    call_mesh = find_mesh(name, mesh, leaves, ambient)
    if isinstance(call_mesh, AbstractMesh) and isinstance(devices := _jax.mesh.ambient_devices(), Mesh):
        call_mesh = devices
    if isinstance(call_mesh, AbstractMesh):
        without, call_mesh = call_mesh, with_devices_of(call_mesh, (leaf.value for leaf in leaves()))
        if call_mesh is without and is_running and _jax.trace.is_outside_traces():
            refuse_other_devices(name, without, leaves())
    by_spec = False
    if isinstance(call_mesh, AbstractMesh) and not ambient.empty:
        # Under jax.grad and jax.vmap JAX evaluates eagerly, and only JAX knows the ambient mesh's devices there.
        by_spec = not _jax.trace.is_staged()
    return _cached_context(call_mesh, current_axis_naming(naming), by_spec)


def _underlying_value(value: Any) -> Any:
    """A value without the tracers of ``jax.grad`` and ``jax.vmap``."""
    return _jax.array.strip_transforms(value).value if _jax.array.is_tracer(value) else value


def sharding_failure(leaf: CheckedLeaf, context: JitContext, is_result: bool = False) -> Failure | None:
    """The failure of a value's sharding, if any: of its type on Explicit axes, else of its placement.

    A value that is not placed has no sharding: ``jax.jit`` places it, as it places every result over Auto axes.
    """
    value, hint = leaf.value, leaf.hint
    if hint is None:
        return None
    placed, rank, what = _jax.array.committed_sharding(value), len(getattr(value, "shape", ())), None
    if hint.spec.marks:
        layout = context.boundary_context.layout(hint)
        assert isinstance(layout, Layout)
        what = wrong_marks(layout, None, context.boundary_context, has_typed_mesh=True)
    elif placed is not None:
        want = context.sharding(hint, rank)
        if isinstance(want, NamedSharding) and _is_equivalent(placed, want, rank):
            return None
    elif isinstance(value, (np.ndarray, *_jax.array.SCALARS)):
        return None
    what = what or _mismatch(value, placed, hint, rank, context, is_result)
    return Failure(what, leaf.subject, hint.text, _jax.array.type_text(value)) if what is not None else None


@lru_cache(maxsize=4096)  # without it a trace takes 1.1 times the calls
def _is_equivalent(have: Any, want: NamedSharding, rank: int) -> bool:
    return have == want or (isinstance(want.mesh, Mesh) and have.is_equivalent_to(want, rank))


def _mismatch(
    value: Any, placed: Any, hint: ArrayHint, rank: int, context: JitContext, is_result: bool
) -> WrongSharding | BoundaryMark | None:
    want = context.value_context.spec(hint, rank)
    if isinstance(value, _jax.array.SHAPES):
        if not isinstance(value.sharding, NamedSharding):
            return None
        return named_sharding_mismatch(value.sharding, want, tuple(range(rank)), rank, PLACE_IT)
    is_untyped = placed is None and _jax.array.explicit_spec(value) is None
    if is_untyped and _jax.array.committed_sharding(_underlying_value(value)) is None:
        if want.unreduced or want.reduced:
            return WrongSharding(_jax.array.spec_text(want), "not placed on the mesh")
        return None if is_result else stated_mismatch(value, want, context.value_context)
    value_context = with_value_mesh(value, context.value_context)
    layout = value_context.layout(hint)
    wrong = sharding_mismatch(value, layout, hint, value_context, not is_result) if isinstance(layout, Layout) else None
    mesh = context.mesh
    if wrong is not None or placed is None or isinstance(mesh, AbstractMesh):
        return wrong
    # The same sharding over another mesh: other devices, another order, or other axes.
    placed_mesh = getattr(placed, "mesh", None)
    if placed_mesh is not None and placed_mesh.devices.tolist() == mesh.devices.tolist():
        return None
    devices, placed_on = [device.id for device in mesh.devices.flat], _jax.array.device_ids(placed, rank)
    here, there = f"on {devices_text(devices)}", f"on {devices_text(placed_on)}"
    if placed_mesh is not None and placed_on == devices:
        here, there = f"over {mesh_text(mesh.shape_tuple)}", f"over {mesh_text(placed_mesh.shape_tuple)}"
    have = f"sharded {_jax.array.spec_text(placed.spec) if placed_mesh is not None else placed}"
    return WrongSharding(f"{_jax.array.spec_text(want)} {here}", f"{have} {there}", PLACE_IT)
