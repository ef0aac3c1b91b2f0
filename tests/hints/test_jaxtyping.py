"""Annotations made by jaxtyping are read as if they were ours."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from beartype.door import is_bearable
from lines import unplaced

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    DtypeError,
    Float,
    Int,
    PyTree,
    ShapeError,
    StructureError,
    check,
    typed,
    typed_shard_map,
)
from typedshmap.hints.array_hint import read_array_hint


@pytest.mark.parametrize(
    "hint",
    [
        Float[jaxtyping.Float[Array, "c"], "b"],
        jaxtyping.Float[Float[Array, "c"], "b"],
        jaxtyping.Float[jaxtyping.Float[Array, "c"], "b"],
        jaxtyping.Float[jaxtyping.Shaped[Array, "c"], "b"],
    ],
    ids=["ours of theirs", "theirs of ours", "theirs of theirs", "theirs of shaped"],
)
def test_a_hint_inside_a_hint_may_be_of_jaxtyping(hint):
    assert (str(read_array_hint(hint).spec), read_array_hint(hint).dtypes) == (
        "b c",
        read_array_hint(jaxtyping.Float[Array, ""]).dtypes,
    )


def test_dtypes_of_ones_own_may_be_regular_expressions():
    class Small(jaxtyping.AbstractDtype):
        dtypes = (re.compile("u?int8"), "float16")

    class AnyFloat(jaxtyping.AbstractDtype):
        dtypes = re.compile("float.*")

    for dtype in ("int8", "uint8", "float16", "float32", "bfloat16", "int16", "bool"):
        value = np.zeros(2, dtype)
        for hint in (Small[np.ndarray, "a"], AnyFloat[np.ndarray, "a"]):
            assert is_bearable(value, PyTree[hint]) == isinstance(value, hint), (dtype, hint)


def test_a_hint_reads_as_the_user_wrote_it_however_jaxtyping_names_arrays():
    hint = jaxtyping.Float[np.ndarray, "[a/dp] b"]
    jaxtyping.set_array_name_format("array")
    try:
        another = jaxtyping.Float[np.ndarray, "[a/dp] b"]
    finally:
        jaxtyping.set_array_name_format("dtype_and_shape")
    assert [str(read_array_hint(each).text) for each in (hint, another)] == ['Float[np.ndarray, "[a/dp] b"]'] * 2


def test_dims_that_only_jaxtyping_reads_are_an_error_of_ours():
    with pytest.raises(AnnotationSyntaxError) as caught:
        read_array_hint(jaxtyping.Float[Array, "a/b"])
    assert unplaced(caught.value) == (
        "Float[Array, \"a/b\"]: 'a/b' is sharded without brackets\n\n"
        '    Float[Array, "a/b"]\n                  ^^^\n\nHint: write [a/b]'
    )


def test_a_mark_in_a_jaxtyping_hint_means_unreduced(mesh):
    @typed
    def partial(x: jaxtyping.Float[Array, "m [f/tp]"]) -> jaxtyping.Float[Array, "m +tp"]:
        return x.sum(1)

    @typed_shard_map(mesh=mesh)
    def total(x: jaxtyping.Float[Array, "m [f/tp]"]) -> jaxtyping.Float[Array, "m"]:
        return jax.lax.psum(partial(x), "tp")

    np.testing.assert_allclose(jax.block_until_ready(total(np.ones((3, 8), "float32"))), np.full(3, 8.0))


def test_a_pytree_of_jaxtyping_shards_every_leaf(mesh):
    @typed_shard_map(mesh=mesh)
    def doubled(
        tree: jaxtyping.PyTree[jaxtyping.Float[Array, "[b/dp] ..."]],
    ) -> jaxtyping.PyTree[jaxtyping.Float[Array, "[b/dp] ..."]]:
        return jax.tree.map(lambda leaf: 2 * leaf, tree)

    tree = {"w": np.ones((8, 2), "float32"), "b": (np.ones(8, "float32"),)}
    out = jax.block_until_ready(doubled(tree))
    assert jax.tree.map(lambda leaf: leaf.addressable_shards[0].data.shape, out) == {"w": (2, 2), "b": ((2,),)}
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(2 * x, y), tree, out)


@typed
def same_structure(
    a: jaxtyping.PyTree[jaxtyping.Float[Array, "?n"], "S"], b: jaxtyping.PyTree[jaxtyping.Float[Array, "?n"], "S"]
) -> None:
    return None


def test_a_dim_per_leaf_of_jaxtyping_is_one_size_at_one_leaf():
    with pytest.raises(
        ShapeError, match=r"^same_structure: argument 'b\[1\]' has n=4, but argument 'a\[1\]' has n=3\n"
    ):
        same_structure([jnp.ones(2), jnp.ones(3)], [jnp.zeros(2), jnp.zeros(4)])


KEY, RAW = jax.random.key(0), jax.random.PRNGKey(0)


@pytest.mark.parametrize(
    ("hint", "right", "wrong"),
    [
        (jaxtyping.Float32[Any, "2"], [np.ones(2, np.float32)], [np.ones(2, np.float16), np.ones(3, np.float32)]),
        (jaxtyping.Key[Any, "2"], [jax.random.split(KEY)], [np.zeros(2, np.complex64)]),
        (jaxtyping.Scalar, [jnp.ones(())], [jnp.ones(1)]),
        (jaxtyping.ScalarLike, [np.ones(())], []),
        (jaxtyping.PRNGKeyArray, [KEY, RAW], [jnp.ones(2)]),
        (jaxtyping.Float[jax.typing.ArrayLike, "2"], [np.ones(2)], [np.ones(3)]),
        (jaxtyping.Float[Array, "2"] | None, [None], [jnp.ones(3)]),
        (jaxtyping.Float[Array, "2"] | Int[Array, "3"], [jnp.ones(3, int)], []),
        (jaxtyping.PyTree, [{"anything": object}], []),
    ],
    ids=str,
)
def test_the_other_names_of_jaxtyping_take_their_values_and_refuse_others(hint, right, wrong):
    for value in right:
        assert check(value, hint) is value
    for value in wrong:
        with pytest.raises((ShapeError, DtypeError, StructureError), match=r"^check: checked value "):
            check(value, hint)


def test_a_dtype_name_of_jaxtyping_alone_is_no_hint():
    with pytest.raises(
        AnnotationSyntaxError, match=r'^Float: expects an array type and dims, as in Float\[Array, "b d"\]\n'
    ):
        check(jnp.ones(2), jaxtyping.Float)
