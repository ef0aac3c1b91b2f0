"""The one door to JAX's versions: meshes, manual axes, and JAX's manual types of values.

Everything above asks here; nothing above looks at a JAX version or at an attribute that one has not.
Written against jax 0.10 to 0.12, by public names only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

AnyMesh = Mesh | AbstractMesh


class ManualType(NamedTuple):
    """JAX's manual type of a value: the mesh axes over which it varies, is unreduced, is reduced."""

    varying: frozenset[str]
    unreduced: frozenset[str]
    reduced: frozenset[str]


_UNTYPED = ManualType(frozenset(), frozenset(), frozenset())


def manual_type(x: Any) -> Any:
    """The manual type of a value; empty outside manual regions and under ``check_vma=False``."""
    return manual_type_in(jax.typeof(x))


def manual_type_in(facts: Any) -> Any:
    """The manual type in a value's type."""
    return getattr(facts, "manual_axis_type", None) or _UNTYPED


def facts(x: Any) -> Any:
    """What has a value's shape and dtype: a tracer's type, whose attributes are slow to reach through it."""
    return jax.typeof(x) if isinstance(x, jax.core.Tracer) else x


def type_text(x: Any) -> str:
    """A value's type in JAX's notation, ``f32[2,4]{V:dp}``; in NumPy's for what JAX does not take."""
    if refusal(x) is None:
        return jax.typeof(x).str_short(short_dtypes=True)
    shape = ",".join(map(str, getattr(x, "shape", ())))
    return f"{x.dtype}[{shape}]" if hasattr(x, "dtype") else type(x).__name__


def refusal(x: Any) -> str | None:
    """Why JAX takes a value for no array, in its own words; None for one that it takes."""
    if isinstance(x, jax.Array):
        return None
    try:
        jax.typeof(x)
    except Exception as error:  # of many kinds: TypeError, ValueError, OverflowError
        return str(error).splitlines()[0]
    return None


def context_mesh() -> AbstractMesh:
    """The ambient mesh, empty if there is none; in a manual region, the region's."""
    return jax.sharding.get_abstract_mesh()


def manual_axes(mesh: AnyMesh) -> tuple[tuple[str, int], ...]:
    """The mesh axes that are manual here, with their sizes."""
    manual = mesh.manual_axes
    return tuple((name, size) for name, size in mesh.shape_tuple if name in manual) if manual else ()


def explicit_axes(mesh: AnyMesh) -> frozenset[str]:
    """The mesh axes of type Explicit."""
    return frozenset(mesh.explicit_axes)


def abstract(mesh: AnyMesh) -> AbstractMesh:
    """A mesh without its devices."""
    return mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh


def is_same_mesh(a: AnyMesh, b: AnyMesh) -> bool:
    """Whether two meshes have the same axes, sizes and types, whatever their devices.

    ``mesh.abstract_mesh == AbstractMesh(sizes, names)`` is False, since one of them knows its
    device's kind; what matters for a program is compared here.
    """
    return a.shape_tuple == b.shape_tuple and a.axis_types == b.axis_types


def value_mesh(x: Any) -> AnyMesh | None:
    """The mesh that a value was placed on: concrete for a placed array, abstract under ``jit``."""
    sharding = getattr(x, "sharding", None) if not isinstance(x, jax.core.Tracer) else None
    if isinstance(sharding, NamedSharding):
        return sharding.mesh
    if not isinstance(x, jax.Array):
        return None
    mesh = jax.typeof(x).sharding.mesh
    return None if mesh.empty else mesh


def placement(x: Any) -> jax.sharding.Sharding | None:
    """The sharding of a committed concrete array, else None."""
    if not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer) or not x.committed:
        return None
    return x.sharding


def explicit_spec(x: Any) -> NamedSharding | None:
    """The sharding in a value's type, if its mesh has Explicit axes."""
    if not isinstance(x, jax.Array):
        return None
    sharding = jax.typeof(x).sharding
    if sharding.mesh.empty or AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return sharding


def load_extend() -> None:
    """Import what is imported late now, where nothing is traced.

    On jax 0.12 that import changes settings that are in jit's cache key: inside of a trace it would
    make JAX trace and compile the whole program once more.
    """
    is_outside_traces()


def is_outside_traces() -> bool:
    """Whether no transformation of JAX is running, so that a call computes at once."""
    return _trace_state() == _outside()


def _trace_state() -> object:
    # Imported here, since jax.extend brings Pallas along, a fifth of what importing this library costs.
    from jax.extend.core import get_opaque_trace_state

    return get_opaque_trace_state()


@cache
def _outside() -> object:
    """The trace state outside of all transformations, which is one and the same for all threads.

    Asked for in a new thread, since this one may be in the middle of a trace.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_trace_state).result()


def are_values_typed(axis: str) -> bool:
    """Whether JAX types values as varying here: False under ``check_vma=False``.

    Asked of a value that varies by definition; ``eval_shape`` adds nothing to the program.
    """
    known = jax.eval_shape(lambda: jax.lax.axis_index(axis))
    return bool(getattr(known, "manual_axis_type", None))


def make_reduced(x: Any, axes: Iterable[str]) -> Any:
    """``x`` typed as reduced over those of the axes over which it is the same on every shard."""
    kind = manual_type(x)
    alike = tuple(sorted(frozenset(axes) - kind.varying - kind.unreduced - kind.reduced))
    return jax.lax.pcast(x, alike, to="reduced") if alike else x


def partition_spec(
    parts: Iterable[tuple[str, ...]], unreduced: Iterable[str] = (), reduced: Iterable[str] = ()
) -> PartitionSpec:
    """A PartitionSpec with one entry per dim."""
    entries = (None if not axes else axes[0] if len(axes) == 1 else axes for axes in parts)
    return PartitionSpec(*entries, unreduced=frozenset(unreduced), reduced=frozenset(reduced))


class SpecParts(NamedTuple):
    """The entries of a PartitionSpec, each as a tuple of mesh axes."""

    parts: tuple[tuple[str, ...], ...]
    unreduced: frozenset[str]
    reduced: frozenset[str]


def spec_parts(spec: PartitionSpec) -> SpecParts:
    """Read a PartitionSpec."""
    parts = tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec.partitions)
    return SpecParts(parts, frozenset(spec.unreduced), frozenset(spec.reduced))


def odd_entries(spec: PartitionSpec) -> list[Any]:
    """What stands in a PartitionSpec and is no name of a mesh axis: UNCONSTRAINED, or axes that are no strings."""
    entries = [axis for e in spec.partitions for axis in (e if isinstance(e, tuple) else (e,))]
    return [axis for axis in entries if axis is not None and not isinstance(axis, str)]


def spec_text(spec: PartitionSpec) -> str:
    """``P('dp', None)``, alike on every version."""
    parts = spec_parts(spec)
    entries = [repr(axes[0]) if len(axes) == 1 else repr(axes) if axes else "None" for axes in parts.parts]
    for word, axes in (("unreduced", parts.unreduced), ("reduced", parts.reduced)):
        entries += [f"{word}={{{', '.join(map(repr, sorted(axes)))}}}"] if axes else []
    return f"P({', '.join(entries)})"


def leave_unreduced(x: Any, axes: Iterable[str]) -> Any:
    """``x`` typed as an addend over ``axes``: what varies there becomes unreduced.

    A value in an un-jitted region on an Auto mesh cannot have that type, and JAX says so by a
    ValueError; it stays varying, which means the same.
    """
    owed = tuple(sorted(set(axes) & manual_type(x).varying))
    if not owed:
        return x
    try:
        return jax.lax.pcast(x, owed, to="unreduced")
    except (ValueError, NotImplementedError):
        return x


@lru_cache(maxsize=256)
def is_inexact(dtype: Any) -> bool:
    """Whether a dtype has gradients."""
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.inexact))


def is_tracer(x: Any) -> bool:
    """Whether a value is being traced."""
    return isinstance(x, jax.core.Tracer)


def primal(x: Any) -> Any:
    """The value that a tracer of a differentiation stands for; None for any other."""
    return getattr(x, "primal", None) if isinstance(x, jax.core.Tracer) else None


def vary(x: Any, axes: Iterable[str]) -> Any:
    """``x`` typed as varying over ``axes``, where it is not yet, nor unreduced; reduced axes go first."""
    kind = manual_type(x)
    missing = tuple(sorted(frozenset(axes) - kind.varying - kind.unreduced))
    if not missing:
        return x
    x = without_reduced(x)
    missing = tuple(axis for axis in missing if axis not in manual_type(x).varying)
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def without_reduced(x: Any) -> Any:
    """``x`` with its reduced axes typed as varying, which has the same gradient and refuses no operation."""
    reduced = tuple(sorted(manual_type(x).reduced))
    return jax.lax.pcast(x, reduced, to="varying") if reduced else x


def owe(x: Any, axes: tuple[str, ...], typed: bool) -> Any:
    """``x`` as an addend over ``axes``, all of them typed alike, as a sum over several needs it."""
    if not typed or not axes:
        return x
    x = vary(x, axes)
    kind = manual_type(x)
    return leave_unreduced(x, axes) if kind.unreduced & frozenset(axes) else x


def all_gather(x: Any, axes: tuple[str, ...], dim: int, to: str, typed: bool) -> Any:
    """The shards over ``axes`` put together along a dim.

    Args:
      to: ``"invarying"``, ``"reduced"`` or ``"varying"``, how JAX types the result.
      typed: whether JAX types values here. Where it does not, the plain gather is the one whose
        transpose is right, and jax 0.10 has no other.

    A value in an un-jitted region on an Auto mesh cannot be reduced, and JAX says so by a
    ValueError; it is gathered as varying, which has the same gradient.
    """
    if not x.shape[dim]:  # XLA gathers along no empty dim
        return all_gather(x[None], axes, 0, to, typed).reshape(x.shape)
    if not typed:
        return jax.lax.all_gather(x, axes, axis=dim, tiled=True)
    x = vary(x, axes)
    try:
        return jax.lax.all_gather(x, axes, axis=dim, tiled=True, to=to)
    except ValueError:
        if to != "reduced":
            raise
        return jax.lax.all_gather(x, axes, axis=dim, tiled=True)


def children(value: Any) -> list[tuple[Any, Any]] | None:
    """A pytree's children one level down, each with its key; None for a leaf.

    Raises:
      BadTree: for a value that JAX cannot take apart.

    jax 0.10.2 gives every child of a NamedTuple the first one's key, so those are made here.
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names: tuple[str, ...] = value._fields  # type: ignore[attr-defined]
        return [(jax.tree_util.GetAttrKey(name), part) for name, part in zip(names, value, strict=True)]
    try:
        flat = jax.tree_util.default_registry.flatten_one_level_with_keys(value)
    except Exception as error:
        raise BadTree(str(error)) from None
    return list(flat[0]) if flat is not None else None


def field_key(name: str) -> Any:
    """The key of a field among a pytree's children."""
    return jax.tree_util.GetAttrKey(name)


def put_together(value: Any, parts: list[Any]) -> Any:
    """A pytree's outermost node with other children."""
    structure = jax.tree_util.tree_structure(value, is_leaf=lambda part: part is not value)
    return jax.tree_util.tree_unflatten(structure, parts)


class BadTree(Exception):
    """A value that JAX cannot take apart: a dict whose keys have no order, a class that is registered wrongly."""


def leaves(value: Any) -> list[Any]:
    """The leaves of a pytree; none of a value that JAX cannot take apart."""
    try:
        return jax.tree_util.tree_leaves(value)
    except Exception:
        return []


def paths(value: Any, is_leaf: Callable[[Any], bool] | None) -> tuple[list[tuple[str, Any]], Any]:
    """The leaves of a pytree, each with its path, and its structure.

    Raises:
      BadTree: for a value that JAX cannot take apart.
    """
    try:
        found, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_leaf)
    except Exception as error:
        raise BadTree(str(error)) from None
    return [(jax.tree_util.keystr(path), part) for path, part in found], structure


def like(value: Any, leaves: Iterable[Any]) -> Any:
    """A pytree of the structure of ``value`` with other leaves."""
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(value), leaves)


def device_ids(sharding: jax.sharding.Sharding, rank: int) -> list[int]:
    """The ids of a sharding's devices, in its order, which a set of devices does not keep."""
    mesh = getattr(sharding, "mesh", None)
    size = len(sharding.device_set)
    devices = sharding.devices_indices_map((size,) * rank) if mesh is None else mesh.devices.flat
    return [int(getattr(device, "id")) for device in devices]  # noqa: B009 (unknown to type checkers)


@lru_cache(maxsize=256)
def dtype_name(dtype: Any) -> str:
    """JAX's name of a dtype."""
    return str(dtype)


def canonical_dtype(x: Any) -> str:
    """The name of the dtype that JAX gives a value: ``float32`` for a float64 of NumPy."""
    if isinstance(x, SHAPES):
        return dtype_name(jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True))
    if refusal(x) is not None and hasattr(x, "dtype"):
        return dtype_name(x.dtype)
    return dtype_name(jax.typeof(x).dtype)


def own_dtype(x: Any) -> str:
    """The name of a value's own dtype; a Python scalar's as JAX makes it."""
    if hasattr(x, "dtype"):
        return dtype_name(x.dtype)
    return canonical_dtype(x) if refusal(x) is None else type(x).__name__


def is_jit_disabled() -> bool:
    """Whether the user runs everything op by op (``jax.disable_jit``)."""
    return bool(getattr(jax.config, "jax_disable_jit"))  # noqa: B009 (unknown to type checkers)


SCALARS = (bool, int, float, complex, np.generic)
ARRAYS = (jax.Array, np.ndarray)
SHAPES = (jax.ShapeDtypeStruct,)


def is_jax_array(x: Any) -> bool:
    return isinstance(x, jax.Array)


def ambient_devices() -> AnyMesh | None:
    """The ambient mesh with its devices; under ``jit``, where they are not known, without."""
    mesh = jax.sharding.get_mesh() if is_outside_traces() else context_mesh()
    return None if mesh.empty else mesh


def default_dtype(kind: Any) -> Any:
    """The dtype that JAX gives to Python's numbers of a kind, or has in the place of a NumPy dtype."""
    return jax.dtypes.canonicalize_dtype(kind) if isinstance(kind, str) else jax.numpy.result_type(kind)


def key_dtype() -> Any:
    """The dtype of ``jax.random.key``."""
    return jax.eval_shape(lambda: jax.random.key(0)).dtype


class Inner(NamedTuple):
    """What a tracer of ``jax.grad`` or ``jax.vmap`` stands for.

    Attributes:
      value: the value, which is itself a tracer only of a program that is being compiled.
      dims: which of its dims are the tracer's own; the others are mapped over.
    """

    value: Any
    dims: tuple[int, ...]


def innermost(x: Any) -> Inner:
    """The value under all transformations that compute at once."""
    dims = tuple(range(len(facts(x).shape)))
    while isinstance(x, jax.core.Tracer):
        inner = primal(x)
        if inner is None and hasattr(x, "batch_dim"):
            inner, at = getattr(x, "val", None), getattr(x, "batch_dim", None)
            if at is not None and not isinstance(at, int):
                break
            dims = dims if at is None else tuple(dim + (dim >= at) for dim in dims)
        if inner is None:
            break
        x = inner
    return Inner(x, dims)


def auto_axes(mesh: AnyMesh) -> tuple[tuple[str, int], ...]:
    """The mesh axes of type Auto, with their sizes, but for those of size 1."""
    kinds = zip(mesh.shape_tuple, mesh.axis_types, strict=True)
    return tuple((name, size) for (name, size), kind in kinds if kind is AxisType.Auto and size > 1)


def has_devices(mesh: AnyMesh) -> bool:
    """Whether a mesh comes from devices; an AbstractMesh made by hand knows of none."""
    return isinstance(mesh, Mesh) or mesh.abstract_device is not None


@cache
def is_one_device() -> bool:
    """Whether this program has one device only, so that every array is whole."""
    try:
        return jax.device_count() == 1 and jax.device_count("cpu") == 1
    except RuntimeError:  # no CPU among the platforms that the user allows
        return jax.device_count() == 1


def named_sharding(
    sharding: jax.sharding.Sharding, axes: tuple[tuple[str, int], ...], rank: int
) -> NamedSharding | None:
    """A sharding of XLA's over mesh axes; None for one that no PartitionSpec over them says.

    Under an ambient mesh XLA's answer comes without that mesh, on devices in its order. How the
    parts step along each axis tells which dims it shards.
    """
    if isinstance(sharding, NamedSharding):
        return sharding
    places = sharding.devices_indices_map((len(sharding.device_set),) * rank)
    sizes = tuple(size for _, size in axes)
    if not axes or len(places) != np.prod(sizes):
        return None
    mesh = Mesh(np.array(list(places), dtype=object).reshape(sizes), tuple(name for name, _ in axes))
    starts = np.array([[part.start or 0 for part in index or ()] for index in places.values()], dtype=int)
    parts = _parts_of(starts.reshape(*sizes, rank), axes)
    used = [axis for part in parts for axis in part]
    if len(used) > len(set(used)):
        return None
    found = NamedSharding(mesh, partition_spec(parts), memory_kind=sharding.memory_kind)
    return found if sharding.is_equivalent_to(found, rank) else None


def _parts_of(starts: Any, axes: tuple[tuple[str, int], ...]) -> list[tuple[str, ...]]:
    """Per dim the axes along which parts start elsewhere, the largest step first.

    Args:
      starts: where each device's part starts: a dim per mesh axis, and one for the array's dims.
      axes: the mesh axes and their sizes.
    """
    steps = {
        name: starts[tuple(int(other == at) for other in range(len(axes)))]
        for at, (name, size) in enumerate(axes)
        if size > 1
    }
    return [
        tuple(axis for _, axis in sorted(((-step[dim], name) for name, step in steps.items() if step[dim])))
        for dim in range(starts.shape[-1])
    ]


def gather_bytes(data: bytes) -> list[bytes]:
    """What every process sends here, by two all-gathers over all processes: the lengths, then the bytes."""
    lengths = multihost_utils.process_allgather(np.array([len(data)], np.int32)).reshape(-1)
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    gathered = multihost_utils.process_allgather(padded).reshape(len(lengths), -1)
    return [bytes(row[:length]) for row, length in zip(gathered, lengths, strict=True)]


def parts_along(sharding: jax.sharding.Sharding, rank: int) -> tuple[int, ...]:
    """In how many parts a sharding splits each dim."""
    probe = (len(sharding.device_set),) * rank
    return tuple(whole // part for whole, part in zip(probe, sharding.shard_shape(probe), strict=True))


def type_key(x: Any) -> tuple[Any, ...]:
    """What tells a value's type from others where it is traced: its shape, dtype, and whether that is weak."""
    return (getattr(x, "shape", ()), getattr(x, "dtype", type(x)), getattr(x, "weak_type", False))


def _place_among_processes(x: Any, sharding: NamedSharding) -> Any:
    """A value that every process has, placed over all of them.

    ``jax.device_put`` takes no array there that lies on devices of this process, and no keys.
    """
    if not isinstance(x, jax.Array):
        return jax.device_put(x, sharding)
    is_key = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
    if not x.is_fully_addressable:
        # Under jax.set_mesh a key that every process makes lies on all of them.
        moved = jax.device_put(jax.random.key_data(x) if is_key else x, sharding)
        return jax.random.wrap_key_data(moved, impl=jax.random.key_impl(x)) if is_key else moved
    if is_key:
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    return jax.device_put(np.asarray(x), sharding)


def place(x: Any, sharding: NamedSharding) -> Any:
    """A value with a sharding; under a transformation, where nothing is moved at once, constrained to it.

    There ``jax.device_put`` says nothing to the compiler on Auto axes and needs devices on Explicit ones,
    and ``with_sharding_constraint`` is refused on Explicit ones.
    """
    if is_outside_traces():
        if not sharding.is_fully_addressable:
            return _place_among_processes(x, sharding)
        return jax.device_put(x, sharding)
    spec, explicit = spec_parts(sharding.spec), explicit_axes(sharding.mesh)
    if explicit:
        parts = [tuple(axis for axis in axes if axis in explicit) for axes in spec.parts]
        typed = NamedSharding(sharding.mesh, partition_spec(parts, spec.unreduced, spec.reduced))
        x = jax.device_put(x, typed) if context_mesh().empty else jax.reshard(x, typed)
    if len(explicit) == len(sharding.mesh.axis_names):
        return x
    parts = [tuple(axis for axis in axes if axis not in explicit) for axes in spec.parts]
    return jax.lax.with_sharding_constraint(x, NamedSharding(sharding.mesh, partition_spec(parts)))


def put(x: Any, sharding: NamedSharding | PartitionSpec) -> Any:
    """A value placed so, on the ambient mesh by a PartitionSpec; of a ShapeDtypeStruct, one that says so."""
    if isinstance(x, SHAPES):
        return x if x.sharding is not None else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    # device_put places what jax.vmap maps over as if it were one of its items; reshard wants the mesh to be ambient.
    is_reshard = not isinstance(sharding, NamedSharding) or is_mapped(x)
    return jax.reshard(x, sharding) if is_reshard else jax.device_put(x, sharding)


def is_mapped(x: Any) -> bool:
    """Whether ``jax.vmap`` maps over a value here, so that it has dims that its shape does not tell."""
    while isinstance(x, jax.core.Tracer):
        if hasattr(x, "batch_dim"):
            return True
        x = primal(x)
    return False


def has_64_bits() -> bool:
    """Whether dtypes of 64 bits stay as they are."""
    return bool(getattr(jax.config, "jax_enable_x64"))  # noqa: B009 (unknown to type checkers)


TRACERS = (jax.core.Tracer,)
