"""What a value is to JAX: its type, dtype and manual type, and what a tracer stands for."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np
from jax.interpreters import partial_eval

# Most values by far: the tracers of a program that is being traced. To ask one for what it does not have is slow.
_STAGED = partial_eval.DynamicJaxprTracer


class ManualType(NamedTuple):
    """JAX's manual type of a value: the mesh axes over which it varies, is unreduced, is reduced."""

    varying: frozenset[str]
    unreduced: frozenset[str]
    reduced: frozenset[str]


_UNTYPED = ManualType(frozenset(), frozenset(), frozenset())


def manual_type(x: Any) -> Any:
    """The manual type of a value; empty outside manual regions and under ``check_vma=False``."""
    return manual_type_in(x.aval if type(x) is _STAGED else jax.typeof(x))


def manual_type_in(facts: Any) -> Any:
    """The manual type in a value's type."""
    try:  # every value that is read comes by here
        return facts.manual_axis_type or _UNTYPED
    except AttributeError:
        return _UNTYPED


def facts(x: Any) -> Any:
    """What has a value's shape and dtype: a tracer's type, whose attributes are slow to reach through it."""
    if type(x) is _STAGED:
        return x.aval
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


@lru_cache(maxsize=256)
def is_inexact(dtype: Any) -> bool:
    """Whether a dtype has gradients."""
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.inexact))


@lru_cache(maxsize=256)
def short_dtype(dtype: Any) -> str:
    """JAX's short name of a dtype, ``f32``."""
    return jax.core.ShapedArray((), dtype).str_short(short_dtypes=True).partition("[")[0]


def size_in_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    """What an array takes on a device, where dtypes of less than a byte are packed."""
    if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
        return prod(shape) * int(dtype.itemsize)
    is_int = jax.numpy.issubdtype(dtype, jax.numpy.integer)
    is_float = jax.numpy.issubdtype(dtype, jax.numpy.floating)
    bits = jax.numpy.iinfo(dtype).bits if is_int else jax.numpy.finfo(dtype).bits if is_float else 8 * dtype.itemsize
    return -(-prod(shape) * int(bits) // 8)


def is_tracer(x: Any) -> bool:
    """Whether a value is being traced."""
    return type(x) is _STAGED or isinstance(x, jax.core.Tracer)


def primal(x: Any) -> Any:
    """The value that a tracer of a differentiation stands for; None for any other."""
    if type(x) is _STAGED or not isinstance(x, jax.core.Tracer):
        return None
    return getattr(x, "primal", None)


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


SCALARS = (bool, int, float, complex, np.generic)


ARRAYS = (jax.Array, np.ndarray)


SHAPES = (jax.ShapeDtypeStruct,)


def is_jax_array(x: Any) -> bool:
    return isinstance(x, jax.Array)


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
      is_differentiated: whether one of the tracers is for a gradient.
    """

    value: Any
    dims: tuple[int, ...]
    is_differentiated: bool


def innermost(x: Any) -> Inner:
    """The value under all transformations that compute at once."""
    dims, is_differentiated = tuple(range(len(facts(x).shape))), False
    while isinstance(x, jax.core.Tracer):
        inner = primal(x)
        is_differentiated |= inner is not None
        if inner is None and hasattr(x, "batch_dim"):
            inner, at = getattr(x, "val", None), getattr(x, "batch_dim", None)
            if at is not None and not isinstance(at, int):
                break
            dims = dims if at is None else tuple(dim + (dim >= at) for dim in dims)
        if inner is None:
            break
        x = inner
    return Inner(x, dims, is_differentiated)


def type_key(x: Any) -> tuple[Any, ...]:
    """What tells a value's type from others where it is traced: its shape, dtype, and whether that is weak."""
    return (getattr(x, "shape", ()), getattr(x, "dtype", type(x)), getattr(x, "weak_type", False))


def is_mapped(x: Any) -> bool:
    """Whether ``jax.vmap`` maps over a value here, so that it has dims that its shape does not tell."""
    while isinstance(x, jax.core.Tracer):
        if hasattr(x, "batch_dim"):
            return True
        x = primal(x)
    return False


TRACERS = (jax.core.Tracer,)
