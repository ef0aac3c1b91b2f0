"""Array types, hints inside hints, and hints as classes: isinstance, identity, pickling."""

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    ArrayLike,
    BFloat16,
    Bool,
    Float,
    Float32,
    Inexact,
    Int,
    Key,
    MeshAxisError,
    Num,
    PRNGKeyArray,
    PyTree,
    Real,
    Scalar,
    ScalarLike,
    Shaped,
    StructureError,
    UInt8,
    check,
    shard,
)


@pytest.mark.parametrize("shape", [None, "round", ("2",), (-2,), (2.0,), (None,), [2]], ids=str)
def test_what_has_no_shape_of_sizes_is_no_array(shape):
    looks = type("Looks", (), {"shape": shape, "dtype": np.dtype("float32")})
    assert not isinstance(looks(), Shaped[Any, "..."])
    with pytest.raises(StructureError, match="checked value is a Looks, but its hint says an array"):
        check(looks(), "2")


HUGE = "0x31e20801036510f3c591fde5361dc61998... (int)"
NUMBERS = [
    (lambda mesh: check(10**5000, "b"), f"check: checked value is {HUGE}, but its hint says an array"),
    (
        lambda mesh: shard(2**70, Bool[Array, ""], mesh),
        "shard: given value is 1180591620717411303424 (int) that JAX refuses "
        "(Python int 1180591620717411303424 too large to convert to int32), but its hint says Array",
    ),
    (
        lambda mesh: shard(10**5000, Bool[Array, ""], mesh),
        f"shard: given value is {HUGE} that JAX refuses (Exceeds the limit (4300 digits) "
        "for integer string conversion; use sys.set_int_max_str_digits() to increase the limit), "
        "but its hint says Array",
    ),
]


@pytest.mark.parametrize(("call", "line"), NUMBERS, ids=["huge", "large", "huge and placed"])
def test_an_integer_that_fits_no_dtype_is_reported(call, line, mesh):
    with fails(StructureError, line):
        call(mesh)


@pytest.mark.parametrize(("value", "name"), [(np, "module"), (np.ndarray, "type")], ids=str)
def test_a_module_or_a_class_is_no_array(value, name):
    with pytest.raises(StructureError, match=f"checked value is a {name}, but its hint says an array"):
        check(value, "b s")


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (jnp.ones(()), [Array, np.ndarray | Array, ArrayLike, Any]),
        (np.ones(()), [np.ndarray | Array, ArrayLike, Any]),
        (np.float32(1), [ArrayLike, Any]),
        (1.0, [ArrayLike]),
        (1, []),
        (True, []),
    ],
    ids=repr,
)
def test_array_like_takes_scalars_of_the_dtype_that_jax_gives_them(value, taken):
    types = (Array, np.ndarray | Array, ArrayLike, Any)
    assert [kind for kind in types if isinstance(value, Float[kind, ""])] == taken


@pytest.mark.parametrize("dims", ["n+1", "?n", "{self.n}", "2//0"])
def test_a_dim_without_a_size_fits_nothing(dims):
    assert not isinstance(jnp.ones(2), Float[Array, dims])


SCALARS = (jnp.ones(()), np.ones(()), np.float32(1), 1.0, 1, True, 1j)


@pytest.mark.parametrize(
    ("hint", "taken"),
    [(Scalar, [True] + [False] * 6), (ScalarLike, [True] * 7), (PRNGKeyArray, [False] * 7)],
    ids=["Scalar", "ScalarLike", "PRNGKeyArray"],
)
def test_scalars_of_jax_numpy_and_python_are_distinguished(hint, taken):
    assert [isinstance(value, hint) for value in SCALARS] == taken


@pytest.mark.parametrize(
    ("value", "is_key"),
    [
        (jax.random.key(0), True),
        (jax.random.PRNGKey(0), True),
        (jax.random.split(jax.random.key(0)), False),
        (jnp.zeros(3, "uint32"), False),
        (jnp.zeros(2, "int32"), False),
        (np.zeros(2, "uint32"), False),
    ],
)
def test_a_key_is_new_style_or_old_style(value, is_key):
    assert isinstance(value, PRNGKeyArray) is is_key


@pytest.mark.parametrize(
    ("hint", "name"),
    [
        (Float[Float[Array, "c d"], "a b"], 'Float[Array, "a b c d"]'),
        (Float[Float[Float[Array, "c"], "b"], "a"], 'Float[Array, "a b c"]'),
        (Float[Float[Array, ""], ""], 'Float[Array, ""]'),
        (Float[Float[np.ndarray, "c"], ""], 'Float[np.ndarray, "c"]'),
        (Float[Float[Array, "... c"], "b"], 'Float[Array, "b ... c"]'),
        (Float[Float[Array, "[c/dp]"], "[b/tp]"], 'Float[Array, "[b/tp] [c/dp]"]'),
        (Float[Float[Array, "c +dp"], "b -tp"], 'Float[Array, "b c -tp +dp"]'),
        (Shaped[Float[Array, "c"], "b"], 'Float[Array, "b c"]'),
        (Float[Shaped[Array, "c"], "b"], 'Float[Array, "b c"]'),
        (Float32[Float[Array, "c"], "b"], 'Float32[Array, "b c"]'),
        (Num[Float32[Array, "c"], "b"], 'Float32[Array, "b c"]'),
        (Int[Scalar, "b"], 'Int[Array, "b"]'),
    ],
    ids=str,
)
def test_a_hint_inside_a_hint_comes_after_the_outer_dims(hint, name):
    assert hint.__name__ == name


@pytest.mark.parametrize(
    ("outer", "inner", "dtypes"),
    [
        (Shaped, Shaped, None),
        (Shaped, Float32, ("float32",)),
        (Float32, Shaped, ("float32",)),
        (Real, Inexact, Float.dtypes),
        (Num, Int, Int.dtypes),
    ],
)
def test_a_hint_inside_a_hint_takes_the_dtypes_that_both_take(outer, inner, dtypes):
    assert outer[inner[Array, "a"], "b"].dtypes == dtypes


@pytest.mark.parametrize(("outer", "inner"), [(Int, Float), (Num, Bool), (Float32, BFloat16), (Key, Num)])
def test_a_hint_inside_a_hint_without_a_common_dtype_is_an_error(outer, inner):
    with pytest.raises(AnnotationSyntaxError, match=f"no dtype is both {outer} and {inner}"):
        outer[inner[Array, "a"], "b"]


def test_a_mesh_axis_may_not_stand_in_the_outer_and_the_inner_hint():
    with pytest.raises(MeshAxisError, match="mesh axis 'dp' is used twice"):
        Float[Float[Array, "[a/dp]"], "[b/dp]"]


ROUND_TRIPS = {
    "dims": Float[np.ndarray, "[a/dp] b"],
    "any": Float[Any, "a"],
    "nested": Float[Float[np.ndarray, "c"], "b"],
    "partition spec": Float[np.ndarray, "a b", jax.sharding.PartitionSpec("dp")],
    "dtype": UInt8[np.ndarray, ""],
    "dtype name": Float,
    "tree": PyTree,
}


@pytest.mark.parametrize("hint", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_a_pickled_hint_is_itself_again(hint):
    assert pickle.loads(pickle.dumps(hint)) is hint


COPIED = {**ROUND_TRIPS, "array": Float[Array, "a"], "scalar": Scalar, "tree of arrays": PyTree[Float[Array, "a"], "S"]}


@pytest.mark.parametrize("hint", COPIED.values(), ids=COPIED)
def test_a_copied_hint_is_itself(hint):
    assert copy.deepcopy(hint) is hint
    assert copy.copy(hint) is hint


def test_the_same_hint_is_the_same_class():
    assert Float[Array, "a"] is Float[Array, "a"]
    assert Float[Array, "a"] is not Float[Array, "b"]
    assert Float[Array, "a"] is not Float[np.ndarray, "a"]
    assert Float[Array, "a"] is not Float32[Array, "a"]


def test_a_hint_prints_as_it_was_written():
    assert repr(Float[Array, "[a/dp]  b"]) == "<class 'typedshmap.Float[Array, \"[a/dp]  b\"]'>"
