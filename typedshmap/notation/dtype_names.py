"""The names of dtypes in hints, with the dtypes that they accept: those of jaxtyping."""

from __future__ import annotations

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
