"""JAX's facts about a value: its type, dtype and manual type, the value under a tracer, and its sharding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np
from jax.interpreters import ad, partial_eval
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ..notation.layout import Layout
from .versions import HAS_MANUAL_TYPES, manual_axes_of

# The class of most values: the tracers of a jaxpr. A failed attribute lookup on a tracer is slow.
STAGED = partial_eval.DynamicJaxprTracer


class ManualType(NamedTuple):
    """JAX's manual type of a value: the mesh axes over which it varies, is unreduced, is reduced."""

    varying: frozenset[str]
    unreduced: frozenset[str]
    reduced: frozenset[str]


_UNTYPED = ManualType(frozenset(), frozenset(), frozenset())


def manual_type(x: Any) -> Any:
    """The manual type of a value; empty outside manual regions and under ``check_vma=False``."""
    return manual_type_in(x.aval if type(x) is STAGED else jax.typeof(x))


def manual_type_in(aval: Any) -> Any:
    """The manual type in a value's type."""
    try:  # a hot path
        return aval.manual_axis_type or _UNTYPED
    except AttributeError:
        return _UNTYPED if HAS_MANUAL_TYPES else ManualType(*manual_axes_of(aval))


def retyped(aval: Any, shape: tuple[int, ...], varying: frozenset[str], unreduced: frozenset[str]) -> Any:
    """The type with another shape, and with other varying and unreduced axes."""
    if not HAS_MANUAL_TYPES:
        return aval.update(shape=shape, vma=varying)
    kind = aval.manual_axis_type
    if unreduced != kind.unreduced:
        kind = kind.update(unreduced=unreduced) if unreduced else type(kind)(reduced=kind.reduced)
    return aval.update(shape=shape, manual_axis_type=kind.update(varying=varying))


def with_dims(aval: Any, dims: Sequence[int]) -> Any:
    """The type of a value with only some of its dims, as in a function under ``jax.vmap``."""
    spec = PartitionSpec(*(spec_entries(aval.sharding.spec).dim_axes[at] or None for at in dims))
    return aval.update(shape=tuple(aval.shape[at] for at in dims), sharding=aval.sharding.update(spec=spec))


def aval_of(x: Any) -> Any:
    """The object with a value's shape and dtype: for a tracer its type, since its attributes are slow to read."""
    if type(x) is STAGED:
        return x.aval
    return jax.typeof(x) if isinstance(x, jax.core.Tracer) else x


def shapes_of(values: Iterable[Any]) -> list[Any]:
    """The shapes of values, empty for a value without a shape; it makes no call for each tracer."""
    staged: Any = STAGED
    return [x.aval.shape if type(x) is staged else getattr(x, "shape", ()) for x in values]


def type_text(x: Any) -> str:
    """A value's type in JAX's notation, ``f32[2,4]{V:dp}``; in NumPy's if JAX does not accept the value."""
    if why_not_array(x) is None:
        return jax.typeof(x).str_short(short_dtypes=True)
    shape = ",".join(map(str, getattr(x, "shape", ())))
    return f"{x.dtype}[{shape}]" if hasattr(x, "dtype") else type(x).__name__


def why_not_array(x: Any) -> str | None:
    """JAX's message if it does not accept a value as an array; else None."""
    if isinstance(x, jax.Array):
        return None
    try:
        jax.typeof(x)
    except Exception as error:  # TypeError, ValueError, OverflowError and others
        return str(error).splitlines()[0]
    return None


@lru_cache(maxsize=256)
def is_inexact(dtype: Any) -> bool:
    """Whether a dtype has gradients."""
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.inexact))


@lru_cache(maxsize=256)
def is_integer(dtype: Any) -> bool:
    """Whether a dtype is an integer or a bool."""
    return any(jax.numpy.issubdtype(dtype, kind) for kind in (jax.numpy.integer, jax.numpy.bool_))


@lru_cache(maxsize=256)
def short_dtype(dtype: Any) -> str:
    """JAX's short name of a dtype, ``f32``."""
    return jax.core.ShapedArray((), dtype).str_short(short_dtypes=True).partition("[")[0]


def size_in_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    """The bytes of an array on a device, with dtypes of less than a byte packed."""
    if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
        return prod(shape) * int(dtype.itemsize)
    is_int = jax.numpy.issubdtype(dtype, jax.numpy.integer)
    is_float = jax.numpy.issubdtype(dtype, jax.numpy.floating)
    bits = jax.numpy.iinfo(dtype).bits if is_int else jax.numpy.finfo(dtype).bits if is_float else 8 * dtype.itemsize
    return -(-prod(shape) * int(bits) // 8)


def is_tracer(x: Any) -> bool:
    """Whether a value is being traced."""
    return type(x) is STAGED or isinstance(x, jax.core.Tracer)


def jvp_primal(x: Any) -> Any:
    """The primal value of a tracer of a differentiation, else None."""
    if type(x) is STAGED or not isinstance(x, jax.core.Tracer):
        return None
    return getattr(x, "primal", None)


def undifferentiated(x: Any) -> Any:
    """The innermost primal value under nested differentiations."""
    while (inner := jvp_primal(x)) is not None:
        x = inner
    return x


def has_gradient_taken(x: Any) -> bool:
    """Whether a value is under reverse-mode differentiation, unless its program is traced first."""
    while x is not None and type(x).__name__ != "LinearizeTracer":  # not in JAX's public names
        x = jvp_primal(x)
    return x is not None


@lru_cache(maxsize=256)
def dtype_name(dtype: Any) -> str:
    """JAX's name of a dtype."""
    return str(dtype)


def canonical_dtype(x: Any) -> str:
    """The name of the dtype that JAX gives a value: ``float32`` for a float64 of NumPy."""
    if isinstance(x, SHAPES):
        return dtype_name(jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True))
    if why_not_array(x) is not None and hasattr(x, "dtype"):
        return dtype_name(x.dtype)
    return dtype_name(jax.typeof(x).dtype)


def dtype_name_of(x: Any) -> str:
    """The name of a value's own dtype; for a Python scalar, of JAX's dtype."""
    if hasattr(x, "dtype"):
        return dtype_name(x.dtype)
    return canonical_dtype(x) if why_not_array(x) is None else type(x).__name__


SCALARS = (bool, int, float, complex, np.generic)
ARRAYS = (jax.Array, np.ndarray)
SHAPES = (jax.ShapeDtypeStruct,)


def is_jax_array(x: Any) -> bool:
    return isinstance(x, jax.Array)


def default_dtype(kind: Any) -> Any:
    """JAX's dtype for Python's numbers of a kind, or for a NumPy dtype."""
    return jax.dtypes.canonicalize_dtype(kind) if isinstance(kind, str) else jax.numpy.result_type(kind)


class Underlying(NamedTuple):
    """The value under tracers of ``jax.grad`` and ``jax.vmap``.

    Attributes:
      value: the value, perhaps a tracer of a jaxpr.
      dims: its dims that the tracer has; the others are mapped over.
      is_differentiated: whether one of the tracers is for a gradient.
    """

    value: Any
    dims: tuple[int, ...]
    is_differentiated: bool


def strip_transforms(x: Any) -> Underlying:
    """The value under all transformations that evaluate eagerly."""
    dims, is_differentiated = tuple(range(len(aval_of(x).shape))), False
    while isinstance(x, jax.core.Tracer):
        inner = jvp_primal(x)
        is_differentiated |= inner is not None
        if inner is None and hasattr(x, "batch_dim"):
            inner, at = getattr(x, "val", None), getattr(x, "batch_dim", None)
            if at is not None and not isinstance(at, int):
                break
            dims = dims if at is None else tuple(dim + (dim >= at) for dim in dims)
        if inner is None:
            break
        x = inner
    return Underlying(x, dims, is_differentiated)


def is_under_gradient(x: Any) -> bool:
    """Whether a value is under differentiation, other than that of an enclosing jaxpr."""
    return is_tracer(x) and strip_transforms(x).is_differentiated


def has_tangent(x: Any) -> bool:
    """Whether a value has a nonzero tangent."""
    while isinstance(x, jax.core.Tracer):
        inner = jvp_primal(x)
        if inner is not None and type(getattr(x, "tangent", None)) is not ad.Zero:
            return True
        x = inner if inner is not None else getattr(x, "val", None) if hasattr(x, "batch_dim") else None
    return False


def type_key(x: Any) -> tuple[Any, ...]:
    """The part of a value's type that a trace depends on: the shape, the dtype, and whether that is weak."""
    return (getattr(x, "shape", ()), getattr(x, "dtype", type(x)), getattr(x, "weak_type", False))


def is_mapped(x: Any) -> bool:
    """Whether ``jax.vmap`` maps over a value, so that it has dims that its shape does not show."""
    return hasattr(undifferentiated(x), "batch_dim")


def committed_sharding(x: Any) -> jax.sharding.Sharding | None:
    """The sharding of a committed concrete array, else None."""
    is_concrete = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    return x.sharding if is_concrete and x.committed else None


def place_of(x: Any) -> tuple[Any, ...]:
    """The key of a concrete value's move: values with equal keys move in the same way."""
    if isinstance(x, np.ndarray):
        return np.ndarray, x.ndim
    is_array = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    return (x.sharding, x.committed, x.ndim) if is_array else (id(x),)


def explicit_spec(x: Any) -> NamedSharding | None:
    """The sharding in a value's type, if its mesh has Explicit axes."""
    sharding = jax.typeof(x).sharding if isinstance(x, (jax.Array, jax.Ref)) else None
    return sharding if sharding is not None and AxisType.Explicit in sharding.mesh.axis_types else None


def has_marked_type(x: Any) -> bool:
    """Whether a value is unreduced or reduced over Explicit axes in its type."""
    known = explicit_spec(x)
    return known is not None and bool(known.spec.unreduced or known.spec.reduced)


def inferred_spec(x: Any, axes: frozenset[str]) -> PartitionSpec:
    """The spec in a value's type over Explicit mesh axes; unsharded over others."""
    sharding = explicit_spec(x)
    if sharding is None:
        return PartitionSpec()
    layout = spec_entries(sharding.spec, len(aval_of(x).shape)).over(axes)
    return spec_of(layout)


def partition_spec(
    dim_axes: Iterable[tuple[str, ...]], unreduced: Iterable[str] = (), reduced: Iterable[str] = ()
) -> PartitionSpec:
    """A PartitionSpec with one entry per dim."""
    return spec_of(Layout(tuple(dim_axes), frozenset(unreduced), frozenset(reduced)))


def spec_of(layout: Layout) -> PartitionSpec:
    """The PartitionSpec of a layout, with one entry per dim."""
    entries: list[Any] = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in layout.dim_axes]
    for at in layout.unconstrained:
        entries[at] = PartitionSpec.UNCONSTRAINED
    return PartitionSpec(*entries, unreduced=layout.unreduced, reduced=layout.reduced)


def _raw_entries(spec: PartitionSpec) -> Sequence[Any]:
    # The attribute is new in jax 0.10.2, which does not iterate over a spec with unreduced axes.
    return spec.partitions if hasattr(spec, "partitions") else tuple(spec)


def spec_entries(spec: PartitionSpec, rank: int = 0) -> Layout:
    """The layout of a PartitionSpec, with an entry for each dim."""
    entries = _raw_entries(spec)
    unconstrained = frozenset(at for at, e in enumerate(entries) if e is PartitionSpec.UNCONSTRAINED)
    named = [() if at in unconstrained else e or () for at, e in enumerate(entries)]
    dim_axes = [(e,) if isinstance(e, str) else tuple(e) for e in named]
    unsharded = ((),) * (rank - len(dim_axes))
    marks = (frozenset(spec.unreduced), frozenset(spec.reduced))
    return Layout((*dim_axes, *unsharded), *marks, unconstrained=unconstrained)


def non_name_entries(spec: PartitionSpec) -> list[Any]:
    """The entries of a PartitionSpec that are not names of mesh axes: axes that are not strings."""
    known = [e for e in _raw_entries(spec) if e is not PartitionSpec.UNCONSTRAINED]
    entries = [axis for e in known for axis in (e if isinstance(e, tuple) else (e,))]
    nested = [axis for e in _raw_entries(spec) if isinstance(e, tuple) for axis in e if axis is None]
    return nested + [axis for axis in entries if axis is not None and not isinstance(axis, str)]


def spec_text(spec: PartitionSpec) -> str:
    """``P('dp', None)``, the same on every version."""
    layout = spec_entries(spec)
    entries = [repr(axes[0]) if len(axes) == 1 else repr(axes) if axes else "None" for axes in layout.dim_axes]
    for at in layout.unconstrained:
        entries[at] = "P.UNCONSTRAINED"
    for word, axes in (("unreduced", layout.unreduced), ("reduced", layout.reduced)):
        entries += [f"{word}={{{', '.join(map(repr, sorted(axes)))}}}"] if axes else []
    return f"P({', '.join(entries)})"


def device_ids(sharding: jax.sharding.Sharding, rank: int) -> list[int]:
    """The ids of a sharding's devices, in its order."""
    mesh = getattr(sharding, "mesh", None)
    size = len(sharding.device_set)
    devices = sharding.devices_indices_map((size,) * rank) if mesh is None else mesh.devices.flat
    return [int(getattr(device, "id")) for device in devices]  # noqa: B009 (unknown to type checkers)


def named_sharding(
    sharding: jax.sharding.Sharding, axes: tuple[tuple[str, int], ...], rank: int
) -> NamedSharding | None:
    """XLA's sharding as a NamedSharding over mesh axes; None if no PartitionSpec expresses it.

    Under an ambient mesh XLA's sharding has no mesh, and devices in the order of the mesh.
    """
    if isinstance(sharding, NamedSharding):
        return sharding
    places = sharding.devices_indices_map((len(sharding.device_set),) * rank)
    sizes = tuple(size for _, size in axes)
    if not axes or len(places) != prod(sizes):
        return None
    mesh = Mesh(np.array(list(places), dtype=object).reshape(sizes), tuple(name for name, _ in axes))
    # Where each device's part starts: a dim per mesh axis, and one for the array's dims.
    starts = np.array([[part.start or 0 for part in index or ()] for index in places.values()], dtype=int)
    starts = starts.reshape(*sizes, rank)
    # The length of a step along each axis, per dim: the major axis of a dim has the longest steps.
    unit = np.eye(len(axes), dtype=int)
    steps = {name: starts[tuple(unit[at])] for at, (name, size) in enumerate(axes) if size > 1}
    ordered = [sorted((-step[dim], name) for name, step in steps.items() if step[dim]) for dim in range(rank)]
    dim_axes = [tuple(axis for _, axis in axes_by_step) for axes_by_step in ordered]
    used = [axis for part in dim_axes for axis in part]
    if len(used) > len(set(used)):
        return None
    named = NamedSharding(mesh, partition_spec(dim_axes), memory_kind=sharding.memory_kind)
    return named if sharding.is_equivalent_to(named, rank) else None


def shard_counts(sharding: jax.sharding.Sharding, rank: int) -> tuple[int, ...]:
    """The number of parts of each dim."""
    probe = (len(sharding.device_set),) * rank
    return tuple(length // part for length, part in zip(probe, sharding.shard_shape(probe), strict=True))


BOOLS = ("bool",)
UINTS = ("uint2", "uint4", "uint8", "uint16", "uint32", "uint64")
INTS = ("int2", "int4", "int8", "int16", "int32", "int64")
_SMALL_FLOATS = ("float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
                 "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")  # fmt: skip
FLOATS = (*_SMALL_FLOATS, "bfloat16", "float16", "float32", "float64")
COMPLEXES = ("complex64", "complex128")
KEYS = ("prng_key",)

FAMILIES: dict[str, tuple[str, ...] | None] = {
    "Shaped": None,
    "Bool": BOOLS,
    "Num": UINTS + INTS + FLOATS + COMPLEXES,
    "Inexact": FLOATS + COMPLEXES,
    "Float": FLOATS,
    "Complex": COMPLEXES,
    "Real": UINTS + INTS + FLOATS,
    "Integer": UINTS + INTS,
    "UInt": UINTS,
    "Int": INTS,
    "Key": KEYS,
}
"""Names of several dtypes; None for all."""


def class_name(dtype: str) -> str:
    """The hint's name for one dtype: ``BFloat16``, ``UInt8``, ``Float8e4m3fn``."""
    kind = dtype.rstrip("0123456789") if "_" not in dtype else "float"
    return _KINDS[kind] + dtype.removeprefix(kind).replace("_e", "e")


_KINDS = {"bool": "Bool", "bfloat": "BFloat", "uint": "UInt", "int": "Int", "float": "Float", "complex": "Complex"}
NAMES: dict[str, tuple[str, ...] | None] = {
    **FAMILIES,
    **{class_name(dtype): (dtype,) for dtype in UINTS + INTS + FLOATS + COMPLEXES},
}
"""All dtype names and their dtypes."""


def takes(dtypes: tuple[str, ...] | None, dtype: str) -> bool:
    """Whether a hint accepts a dtype, by JAX's name."""
    if dtypes is None:
        return True
    if dtype.startswith("key<"):
        return "prng_key" in dtypes
    return dtype in dtypes


def intersect(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The dtypes that both accept."""
    if a is None or b is None:
        return b if a is None else a
    return tuple(dtype for dtype in a if dtype in b)
