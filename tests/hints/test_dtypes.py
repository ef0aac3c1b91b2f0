"""Each dtype name takes exactly its dtypes, as in jaxtyping."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import typedshmap
from typedshmap import Array, Key, PyTree
from typedshmap._jax.array import FAMILIES, NAMES, class_name

JAX_DTYPES = {jnp.dtype(t).name: jnp.dtype(t) for t in vars(jnp).values() if isinstance(t, type(jnp.float32))}
# Floats that jaxtyping does not know in every version.
NEWER = {"float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e8m0fnu"}
SHARED = [name for name in NAMES if hasattr(jaxtyping, name) and name not in ("Shaped", "Key")]


def taken(name, library=typedshmap):
    """The dtypes of JAX whose arrays fit a dtype name, of either library."""
    hint = PyTree[getattr(library, name)[np.ndarray, "2"]]
    return {dtype for dtype, kind in JAX_DTYPES.items() if isinstance(np.zeros(2, kind), hint)}


def test_the_tested_dtypes_are_those_that_jax_has():
    assert {"bool", "bfloat16", "float8_e4m3fn", "int2", "uint4", "complex128", *NEWER} <= set(JAX_DTYPES)


@pytest.mark.parametrize("name", SHARED)
def test_a_name_takes_the_dtypes_that_it_takes_in_jaxtyping(name):
    theirs = set(getattr(jaxtyping, name).dtypes) & set(JAX_DTYPES)
    newer = NEWER if "float8_e5m2" in theirs and len(theirs) > 1 else set()
    assert taken(name) == theirs | newer
    assert taken(name, jaxtyping) == theirs  # as we read it


def test_every_name_of_jaxtyping_for_a_dtype_is_a_name_here():
    theirs = {name for name, kind in vars(jaxtyping).items() if hasattr(kind, "dtypes") and isinstance(kind, type)}
    assert theirs - {"AbstractArray", "AbstractDtype"} <= set(NAMES)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(FAMILIES)))
def test_a_name_of_one_dtype_takes_that_dtype_alone(name):
    (dtype,) = taken(name)
    assert class_name(dtype) == name


def test_shaped_takes_every_dtype():
    assert taken("Shaped") == set(JAX_DTYPES)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_key_and_shaped_take_keys_and_no_other_name_does(impl):
    keys = jax.random.split(jax.random.key(0, impl=impl), 3)
    assert {name for name in NAMES if isinstance(keys, getattr(typedshmap, name)[Array, "3"])} == {"Key", "Shaped"}


@pytest.mark.parametrize("name", ["Shaped", "Key"])
def test_a_key_array_has_the_shape_of_its_keys(name):
    assert not isinstance(jax.random.split(jax.random.key(0), 3), getattr(typedshmap, name)[Array, "3 2"])


def test_float0_is_taken_by_shaped_alone():
    zero = np.zeros(2, jax.dtypes.float0)
    assert {name for name in NAMES if isinstance(zero, getattr(typedshmap, name)[np.ndarray, "2"])} == {"Shaped"}


KEY_CURE = "Hint: make it by jax.random.key, or jax.random.wrap_key_data; PRNGKeyArray takes a raw PRNGKey as well"


@pytest.mark.parametrize(
    ("hint", "value", "line", "cure"),
    [
        (Key[Array, "b"], jax.random.split(jax.random.PRNGKey(0)), "has 2 dims, but its hint has 1", KEY_CURE),
        (Key[Array, "..."], jax.random.PRNGKey(0), "has dtype uint32, but its hint says Key", KEY_CURE),
        (
            typedshmap.UInt32[Array, "2"],
            jax.random.key(0),
            "has 0 dims, but its hint has 1",
            "Hint: annotate a key of jax.random.key as Key; PRNGKeyArray takes both kinds",
        ),
        (Key[Array, ""], jnp.ones(3), "has 1 dim, but its hint has 0", "    got f32[3]"),
    ],
)
def test_a_key_of_the_other_kind_says_how_to_make_it(hint, value, line, cure):
    with pytest.raises(typedshmap.TypedShmapError) as caught:
        typedshmap.check(value, hint)
    lines = [each for each in str(caught.value).splitlines() if not each.startswith("At: ")]
    assert (lines[0], lines[-1] or lines[-2]) == (f"check: checked value {line}", cure)
