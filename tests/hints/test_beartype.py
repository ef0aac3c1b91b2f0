"""Our hints wherever beartype runs them: decorators, doors, unions, containers, in every region."""

import importlib
import re
import sys
from typing import Optional

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype import beartype
from beartype.door import die_if_unbearable, is_bearable
from beartype.roar import BeartypeCallHintViolation, BeartypeDoorHintViolation
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, Int, PyTree, Scalar, Shaped, check, sizes, typed, typed_shard_map


@beartype
def total(x: Float[Array, "2 n"], scale: Optional[Float[Array, ""]] = None) -> Float[Array, "2"]:
    return x.sum(1) if scale is None else x * scale


@pytest.mark.parametrize(
    ("arguments", "clause"),
    [
        ((jnp.ones((4, 3)),), "value has size 4 in dim 0, but its hint says 2 (got f32[4,3])"),
        ((jnp.ones(3),), "value has 1 dim, but its hint has 2 (got f32[3])"),
        ((jnp.ones((2, 3), int),), "value has dtype int32, but its hint says Float (got i32[2,3])"),
        ((np.ones((2, 3)),), "value is a NumPy array, but its hint says Array"),
        ((None,), "value is None, but its hint says Array"),
    ],
    ids=["size", "rank", "dtype", "array type", "no array"],
)
def test_an_argument_that_does_not_fit_is_reported_with_its_facts(arguments, clause):
    message = re.escape(f'as {clause}, under Float[Array, "2 n"].')
    with pytest.raises(BeartypeCallHintViolation, match=message):
        total(*arguments)


def test_a_result_that_does_not_fit_is_reported_with_its_facts():
    message = re.escape('as value has 2 dims, but its hint has 1 (got f32[2,3]), under Float[Array, "2"].')
    with pytest.raises(BeartypeCallHintViolation, match=message):
        total(jnp.ones((2, 3)), jnp.ones(()))


VALUE = jnp.ones((2, 3))
BEARABLE = [
    (VALUE, Float[Array, "2 3"], Float[Array, "3 2"]),
    (VALUE, Float[Array, "a b"], Float[Array, "a a"]),
    (VALUE, Float[Array, "a a+1"], Float[Array, "a a-1"]),
    (VALUE, Float[Array, "b-1 b"], Float[Array, "b+1 b"]),
    (VALUE, Float[Array, "#1 3"] | Float[Array, "#2 3"], Float[Array, "#3 3"]),
    (VALUE, Float[Array, "..."], Int[Array, "..."]),
    (VALUE, Float[Array, "[a/dp] 3"], Float[Array, "[a/dp] 2"]),
    (VALUE, Optional[Float[Array, "2 3"]], Optional[Float[Array, "3"]]),
    (None, Optional[Float[Array, "3"]], Float[Array, "3"]),
    (VALUE, Float[Array, "3"] | Float[Array, "2 3"], Float[Array, "3"] | Int[Array, "2 3"]),
    (VALUE, Float[Array, "3"] | Float[np.ndarray, "..."] | Shaped[Array, "..."], Float[Array, "3"] | int),
    ((VALUE, 1), tuple[Float[Array, "2 _"], int], tuple[Float[Array, "3 _"], int]),
    ((VALUE, VALUE), tuple[Float[Array, "2 _"], ...], tuple[Float[Array, "3 _"], ...]),
    ([VALUE], list[Float[Array, "2 _"]], list[Float[Array, "3 _"]]),
    ({"w": VALUE}, dict[str, Float[Array, "2 _"]], dict[str, Float[Array, "3 _"]]),
    ({"w": [VALUE]}, dict[str, list[Float[Array, "2 _"]]], dict[str, list[Float[Array, "3 _"]]]),
    ({"w": [VALUE]}, PyTree[Float[Array, "2 _"]], PyTree[Float[Array, "3 _"]]),
    (jnp.ones(()), Scalar | int, Int[Array, ""] | int),
    (1, Scalar | int, Scalar | str),
]


@pytest.mark.parametrize(("value", "right", "wrong"), BEARABLE, ids=[str(row[1]) for row in BEARABLE])
def test_a_door_opens_to_what_fits(value, right, wrong):
    assert (is_bearable(value, right), is_bearable(value, wrong)) == (True, False)


@pytest.mark.parametrize(
    ("value", "hint", "clause"),
    [
        (VALUE, Float[Array, "4 3"],
         'value has size 2 in dim 0, but its hint says 4 (got f32[2,3]), under Float[Array, "4 3"]'),
        (VALUE, Float[Array, "a a"],
         'value has a=3 in dim 1, but a=2 in dim 0 (got f32[2,3]), under Float[Array, "a a"]'),
        ([VALUE], list[Float[Array, "4 3"]], "list index 0 item value has size 2 in dim 0, but its hint says 4"),
        ({"w": VALUE}, dict[str, Float[Array, "_ 4"]],
         "dict key str 'w' value value has size 3 in dim 1, but its hint says 4"),
        (3, Float[Array, "4"], 'value is 3 (int), but its hint says Array, under Float[Array, "4"]'),
    ],
    ids=["size", "disagreeing dims", "list", "dict", "no array"],
)  # fmt: skip
def test_a_door_that_stays_shut_shows_the_size(value, hint, clause):
    with pytest.raises(BeartypeDoorHintViolation, match=re.escape(clause)):
        die_if_unbearable(value, hint)


@pytest.mark.parametrize("wrong", [0, 7, 19])
def test_every_leaf_of_a_pytree_is_seen(wrong):
    leaves = [jnp.ones(2 + (i == wrong)) for i in range(20)]
    assert not is_bearable(leaves, PyTree[Float[Array, "2"]])


def in_region(mesh, spec, ask, **options):
    """What ``ask`` answers about one shard of an f32[8,6]."""
    answers = []

    def body(x):
        answers.append(ask(x))

    mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=None, **options)
    jax.eval_shape(mapped, jax.ShapeDtypeStruct((8, 6), "float32"))
    return answers.pop()


@pytest.mark.parametrize(
    ("hint", "in_manual", "in_global"),
    [
        (Float[Array, "[8/dp] 6"], True, True),
        (Float[Array, "[8/dp] _"], True, True),
        (Float[Array, "[2/dp] 6"], False, False),
        (Float[Array, "2 6"], False, False),
        (Float[Array, "8 6"], False, True),
        (Float[Array, "_ 6 ~dp"], True, True),
        (Float[Array, "2 6 ~dp"], True, False),
        (Float[Array, "2 6 +dp"], True, False),
        (Float[Array, "[8/tp] 6"], False, True),
        (Float[Array, "[8/dp] 6 +tp"], False, True),
        (Float[Array, "[8/unknown] 6"], False, True),
        (Float[Array, "2 6"] | Float[Array, "[8/dp] 6"], True, True),
        (Optional[Float[Array, "[8/dp] 5"]], False, False),
    ],
    ids=str,
)
def test_a_hint_means_the_global_array_in_every_region(mesh, hint, in_manual, in_global):
    assert in_region(mesh, P("dp"), lambda x: is_bearable(x, hint)) is in_manual
    assert is_bearable(jnp.ones((8, 6)), hint) is in_global


def test_without_varying_types_shapes_are_checked_all_the_same(mesh):
    def ask(x):
        return is_bearable(x, Float[Array, "2 6"]), is_bearable(x, Float[Array, "[4/dp] 6"])

    assert in_region(mesh, P("dp"), ask, check_vma=False) == (True, False)


def shut(hint):
    """Asks a door that raises, and hands out what it said."""

    def ask(x):
        with pytest.raises(BeartypeDoorHintViolation) as caught:
            die_if_unbearable(x, hint)
        return str(caught.value)

    return ask


@pytest.mark.parametrize(
    ("hint", "clause"),
    [
        (
            Float[Array, "[4/dp] 6"],
            "value has size 8 in dim 0 (2 per shard over 'dp'), but its hint says 4 (got f32[2,6]{V:dp})",
        ),
        (Float[Array, "_ 6"], "value varies over 'dp', which its hint does not mention (got f32[2,6]{V:dp})"),
    ],
    ids=str,
)
def test_in_a_manual_region_a_door_shows_global_and_shard_sizes(mesh, hint, clause):
    assert f"as {clause}, under {hint.__name__}." in in_region(mesh, P("dp"), shut(hint))


def scoped(ask):
    """What ``ask`` answers, and the sizes bound after it, in a call that binds b=2 and d=3."""

    @typed
    def scope(x: Float[Array, "b d"]):
        return ask(), sizes()

    return scope(VALUE)


@pytest.mark.parametrize(
    ("value", "hint", "answer", "bound"),
    [
        (jnp.ones((5, 3)), Float[Array, "n d"], True, {"n": 5}),
        (jnp.ones((5, 4)), Float[Array, "n d"], False, {}),
        (jnp.ones((5, 4)), Int[Array, "n k"], False, {}),
        (jnp.ones((5, 4)), Float[Array, "n d"] | Float[Array, "m k"], True, {"m": 5, "k": 4}),
        (jnp.ones((5, 3)), Float[Array, "n d"] | Float[Array, "m k"], True, {"n": 5}),
        (jnp.ones((5, 4)), Float[Array, "n n"] | Float[Array, "k d"], False, {}),
        (jnp.ones((5, 4)), Optional[Float[Array, "n d"]], False, {}),
        (jnp.ones((5, 4)), PyTree[Float[Array, "n d"]] | PyTree[Float[Array, "k ..."]], True, {"k": 5}),
        (jnp.ones((2, 3)), Float[Array, "b d"], True, {}),
        ([jnp.ones(5), jnp.ones(6)], PyTree[Float[Array, "n"]], False, {}),
    ],
    ids=str,
)
def test_in_a_call_only_what_fits_binds_names(value, hint, answer, bound):
    assert scoped(lambda: is_bearable(value, hint)) == (answer, {"b": 2, "d": 3, **bound})


def test_in_a_call_a_door_shows_what_bound_the_size():
    message = re.escape("value has d=4, but argument 'x' has d=3 (got f32[5,4]), under Float[Array, \"n d\"].")
    with pytest.raises(BeartypeDoorHintViolation, match=message):
        scoped(lambda: die_if_unbearable(jnp.ones((5, 4)), Float[Array, "n d"]))


def test_names_bound_by_beartype_hold_for_check():
    @typed_shard_map
    def body(x: Float[Array, "[b/dp] d"]) -> None:
        die_if_unbearable(x[:, :2], Float[Array, "[b/dp] half"])
        check(x[:, 2:], "[b/dp] half")
        answers.append(sizes())

    answers = []
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((4,), ("dp",), (jax.sharding.AxisType.Auto,))):
        jax.eval_shape(body, jax.ShapeDtypeStruct((8, 4), "float32"))
    assert answers == [{"b": 8, "d": 4, "half": 2}]


CLAW = """
import jax.numpy as jnp
from beartype.claw import beartype_this_package
beartype_this_package()
"""
CLAWED = """
import jax.numpy as jnp
from typedshmap import Array, Float

def assigned(n):
    x: Float[Array, "2"] = jnp.ones(n)
    return x

def returned(n) -> Float[Array, "2"]:
    return jnp.ones(n)
"""


@pytest.fixture
def clawed(tmp_path, monkeypatch):
    """A module of a package that beartype's import hook has decorated."""
    package = tmp_path / "clawed_package"
    package.mkdir()
    (package / "__init__.py").write_text(CLAW, encoding="utf-8")
    (package / "module.py").write_text(CLAWED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("clawed_package.module")
    for name in [name for name in sys.modules if name.startswith("clawed_package")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["assigned", "returned"])
def test_under_the_import_hook_assignments_and_results_are_checked(clawed, name):
    function = getattr(clawed, name)
    assert function(2).shape == (2,)
    with pytest.raises((BeartypeCallHintViolation, BeartypeDoorHintViolation), match="value has size 3 in dim 0"):
        function(3)
