"""Meshes, their axes by type, and the current mesh."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, lru_cache
from math import prod
from typing import Any, cast

import jax
import jax.core
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from ..errors.phrases import excerpt
from .array import manual_type_in
from .trace import is_outside_traces

AnyMesh = Mesh | AbstractMesh

shard_map = jax.shard_map
"""JAX's own function, even if a program has replaced ``jax.shard_map`` by ours."""
context_mesh = jax.sharding.get_abstract_mesh
"""The ambient mesh, empty if there is none; in a manual region, the region's mesh."""


def manual_axes(mesh: AnyMesh) -> tuple[tuple[str, int], ...]:
    """The mesh axes that are manual here, with their sizes."""
    manual = mesh.manual_axes
    return tuple([(name, size) for name, size in mesh.shape_tuple if name in manual]) if manual else ()


def explicit_axes(mesh: AnyMesh) -> frozenset[str]:
    """The mesh axes of type Explicit."""
    return frozenset(mesh.explicit_axes)


def value_mesh(x: Any) -> AnyMesh | None:
    """The mesh of a value: concrete for a placed array, abstract under ``jit``."""
    sharding = getattr(x, "sharding", None) if not isinstance(x, jax.core.Tracer) else None
    if isinstance(sharding, NamedSharding):
        return sharding.mesh
    if not isinstance(x, jax.Array):
        return None
    mesh = jax.typeof(x).sharding.mesh
    return None if mesh.empty else mesh


def are_values_typed(axis: str) -> bool:
    """Whether JAX types values as varying here: False under ``check_vma=False``.

    Tested with a value that varies by definition, once per axis and mode; both are in JAX's cache key.
    """
    return bool(manual_type_in(_shard_index(axis).eval_shape()).varying)


@lru_cache(maxsize=256)
def _shard_index(axis: str) -> Any:
    return jax.jit(lambda: jax.lax.axis_index(axis))


def without_ambient() -> AbstractContextManager[None]:
    """Remove the ambient mesh, since JAX rejects a mesh of another size inside it."""
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), axis_types=()))


def without_ambient_devices() -> AbstractContextManager[Any]:
    """Remove the ambient mesh and its devices, since JAX rejects arrays on other devices inside it.

    Only outside traces."""
    return jax.set_mesh(Mesh(np.empty((), object), ()))


@contextmanager
def made_ambient(mesh: AnyMesh) -> Generator[None]:
    """Make a mesh the ambient mesh, inside a ``with``."""
    if isinstance(mesh, Mesh):
        with jax.set_mesh(mesh):
            yield
    else:  # in JAX an abstract mesh cannot replace a mesh of another size
        with without_ambient(), jax.sharding.use_abstract_mesh(mesh):
            yield


jit_mesh = jax.make_user_context(default_value=None)
"""The mesh of a typed_jit while its function is traced, which is not the ambient mesh.

A JAX context, so that a trace for one mesh is never reused for another."""


override_mesh = jax.make_user_context(default_value=None)
"""A mesh that replaces every decorator's ``mesh=``, to run a program on another mesh."""


def known_mesh() -> AnyMesh | None:
    """The ambient mesh, with its devices if they are known; else the mesh of an enclosing typed_jit."""
    return ambient_devices() or jit_mesh.value


def ambient_devices() -> AnyMesh | None:
    """The ambient mesh with its devices; under ``jit``, where they are unknown, without."""
    mesh = jax.sharding.get_mesh() if is_outside_traces() else context_mesh()
    return None if mesh.empty else mesh


def ambient_mesh() -> AnyMesh | None:
    """The ambient mesh, with its devices if they are known."""
    context = context_mesh()
    return None if context.empty else ambient_devices() or context


def auto_axes(mesh: AnyMesh) -> tuple[tuple[str, int], ...]:
    """The mesh axes of type Auto, with their sizes, except axes of size 1."""
    kinds = zip(mesh.shape_tuple, mesh.axis_types, strict=True)
    return tuple((name, size) for (name, size), kind in kinds if kind is AxisType.Auto and size > 1)


def abstract_mesh(sizes: Mapping[str, int], kind: AxisType = AxisType.Auto) -> AbstractMesh:
    """A mesh of axes of these sizes, all of one type, without devices."""
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))


def with_axis_type(mesh: Any, kind: AxisType) -> Any:
    """The mesh, concrete or abstract, with one type for all axes."""
    kinds = (kind,) * len(mesh.axis_names)
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)


def memory_kinds(mesh: AnyMesh) -> tuple[str, ...]:
    """The kinds of memory of a mesh's devices; for an AbstractMesh, of the default devices."""
    device: Any = mesh.devices.flat[0] if isinstance(mesh, Mesh) else jax.devices()[0]
    return tuple(memory.kind for memory in device.addressable_memories())


def has_devices(mesh: AnyMesh) -> bool:
    """Whether a mesh comes from devices; an AbstractMesh made by hand does not."""
    return isinstance(mesh, Mesh) or mesh.abstract_device is not None


@cache
def has_one_device() -> bool:
    """Whether this program has only one device, so that every array is unsharded."""
    try:
        return jax.device_count() == 1 and jax.device_count("cpu") == 1
    except RuntimeError:  # no CPU among the platforms that the user allows
        return jax.device_count() == 1


def mesh_like(mesh: AbstractMesh, like: AnyMesh | None) -> AbstractMesh:
    """The mesh with the axis types of a mesh like it."""
    types = {} if like is None else dict(zip(like.axis_names, like.axis_types, strict=True))
    kinds = (types.get(name, kind) for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True))
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=tuple(kinds))


MOST_DEVICES = 2**31 - 1
"""The largest mesh that JAX accepts, abstract or not."""


def mesh_sizes(written: Any) -> dict[str, int] | None:
    """The sizes of mesh axes in a dict, or in a text like ``"dp=4,tp=2"``; None for any other value."""
    if isinstance(written, str):
        try:
            return parse_mesh(written)
        except ValueError:
            return None
    if not isinstance(written, Mapping) or not written:
        return None
    sizes = dict(cast("Mapping[Any, Any]", written))
    is_right = all(isinstance(name, str) and type(size) is int and size > 0 for name, size in sizes.items())
    return sizes if is_right and prod(sizes.values()) <= MOST_DEVICES else None


def parse_mesh(text: str) -> dict[str, int]:
    """The sizes of mesh axes in a text like ``"dp=4,tp=2"``."""
    sizes: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, size = map(str.strip, part.partition("="))
        if not equals or not name:
            raise ValueError(f"'{excerpt(part)}' is not a name and a value, as in dp=4,tp=2")
        if name in sizes:
            raise ValueError(f"mesh axis '{name}' occurs twice")
        # This many digits are always too large; Python does not parse thousands of digits.
        if not size.isdecimal() or (number := int(size[:12])) < 1:
            raise ValueError(f"mesh axis '{name}' has size '{excerpt(size)}'; write a positive integer")
        sizes[name] = number
    if not sizes:
        raise ValueError("no mesh axes; write them as in dp=4,tp=2")
    if prod(sizes.values()) > MOST_DEVICES:
        raise ValueError(f"a mesh has at most {MOST_DEVICES} devices")
    return sizes
