"""Names of tree structures, trees of what are no arrays, and type aliases."""

import sys
import types
from dataclasses import dataclass
from typing import Annotated, TypeVar

import jax
import numpy as np
import pytest
from beartype.vale import Is
from expecting import fails

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    Float,
    PyTree,
    ShapeError,
    StructureError,
    TypedShmapError,
    check,
    typed,
    typed_shard_map,
)
from typedshmap.testing import inputs

Pairs = PyTree[int, "S T"]


@typed
def composed(z: Pairs, x: PyTree[int, "T"], y: PyTree[int, "S"]) -> PyTree[int, "S ..."]:
    return z


def test_a_structure_may_be_composed_of_those_of_later_arguments():
    assert composed({"key": (4, 5)}, (1, 2), {"key": 3}) == {"key": (4, 5)}


def test_a_structure_that_is_composed_otherwise_is_reported_with_its_parts():
    line = "composed: argument 'z' has tree structure PyTreeDef({'key': [*, *]}), which is not 'S T' "
    line += "for S=PyTreeDef({'key': *}) (y), T=PyTreeDef((*, *)) (x)"
    with fails(StructureError, line):
        composed({"key": [4, 5]}, (1, 2), {"key": 3})


def test_a_structure_of_a_name_that_nothing_binds_is_reported():
    @typed
    def alone(z: Pairs) -> None:
        return None

    with pytest.raises(StructureError) as caught:
        alone([1])
    assert str(caught.value) == (
        "alone: argument 'z' has structure 'S T' in its hint, but nothing binds 'S', 'T'\n\n"
        'Hint: name the structure of another tree, as in PyTree[..., "S"]'
    )


def test_a_static_tree_is_closed_over_at_a_boundary(mesh):
    @typed_shard_map(mesh=mesh)
    def scaled(x: Float[Array, "[b/dp]"], config: PyTree[int]) -> Float[Array, "[b/dp]"]:
        return x * config["scale"][0]

    assert jax.block_until_ready(scaled(np.ones(4, np.float32), {"scale": [3]})).tolist() == [3.0] * 4
    with pytest.raises(
        StructureError, match=r"^scaled: argument 'config\['scale'\]\[0\]' is an array, but its hint int"
    ):
        scaled(np.ones(4, np.float32), {"scale": [np.ones(())]})


def test_a_tree_inside_of_one_leaf_has_the_names_of_that_leaf():
    @typed
    def sized(x: PyTree[tuple[PyTree[Float[np.ndarray, "?n"]], int], "S"]) -> None:
        return None

    sized([([np.ones(2), np.ones(2)], 1), (np.ones(3), 1)])
    with pytest.raises(ShapeError, match=r"^sized: argument 'x\[0\]\[0\]\[1\]' has n=3, but"):
        sized([([np.ones(2), np.ones(3)], 1)])


def test_an_alias_that_holds_itself_is_an_error():
    tree = float | list["tree"]
    with pytest.raises(AnnotationSyntaxError) as caught:
        check([1.0], tree)
    lines = str(caught.value).splitlines()
    assert (lines[0], lines[-1]) == (
        "'tree' is not a hint",
        "Hint: names in strings are looked up for the annotations of functions only; "
        "for trees of any depth write PyTree[...]",
    )


def test_validators_of_what_is_no_array_are_asked():
    Positive = Annotated[int, Is[lambda number: number > 0]]
    check({"a": [1, 2]}, PyTree[Positive])
    for value, hint in [(-1, Positive), (-1, Positive | None), ({"a": [1, -1]}, PyTree[Positive])]:
        with pytest.raises(StructureError, match="-1"):
            check(value, hint)


def test_metadata_may_have_no_hash():
    size, vector = Annotated[int, ["size"]], Annotated[Float[np.ndarray, "n"], ["vector"]]
    check([3, (np.ones(2), [np.ones(2)])], [size, (vector, PyTree[vector])])
    with pytest.raises(StructureError, match="'a'"):
        check("a", size)
    with pytest.raises(AnnotationSyntaxError, match="is not a hint that beartype checks"):
        check([3], list[size])


LONG = [
    (lambda: Float[Array, "a " * 10_000 + "b!c"], "unexpected character '!'"),
    (lambda: Float[Array, "+".join("a" * 10_000)], "a dim of more than 200 tokens"),
    (lambda: Float[Array, "(" * 10_000], "'(' is never closed"),
    (lambda: Float[Array, "a" * 10_000 + "/dp"], "is sharded without brackets"),
    (lambda: Float[Array, " ".join(f"[n{at}/dp]" for at in range(1_000))], "mesh axis 'dp' is used twice"),
    (lambda: PyTree[int, "S" * 10_000 + "!"], "is not the name of a structure"),
    (lambda: check(3, PyTree[int, "S " * 10_000]), "but nothing binds 'S'"),
    (lambda: check(np.ones(2), Float[np.ndarray, "a" * 10_000 + " b"]), "has 1 dim, but its hint has 2"),
    (lambda: check([3] * 3_000, tuple[PyTree[int, "S"], PyTree[int, "S"]]), "checked"),
    (lambda: check(([3] * 3_000, [4] * 3_001), tuple[PyTree[int, "S"], PyTree[int, "S"]]), "another tree structure"),
]


@pytest.mark.parametrize(("call", "problem"), LONG, ids=[row[1] for row in LONG])
def test_the_message_of_a_long_hint_is_short(call, problem):
    with pytest.raises(TypedShmapError) as caught:
        call()
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 5000


def test_carets_are_under_their_place_in_a_hint_that_is_cut():
    with pytest.raises(AnnotationSyntaxError) as caught:
        Float[Array, "a " * 300 + "[b/dp tp] " + "c " * 300]
    _, _, hint, carets = str(caught.value).splitlines()[:4]
    assert hint[carets.index("^") :].startswith("tp] c c")


ALIASES = """
type Vector = Float[np.ndarray, "n"]
type Pair[T] = tuple[T, T]
type Nested = Vector | list[Nested]
type Endless[T] = tuple[T, Endless[T]]
type Itself = Itself
type AnyArray = np.ndarray | Array

@dataclass
class Node:
    w: Vector
    children: 'Nodes'

type Nodes = list[Node]
jax.tree_util.register_dataclass(Node)
"""


@pytest.fixture(scope="module")
def aliases():
    if sys.version_info < (3, 12):
        pytest.skip("Python 3.12 has type aliases")
    module = {**globals(), "__name__": "aliases", "dataclass": dataclass}
    sys.modules["aliases"] = found = types.ModuleType("aliases")
    vars(found).update(module)
    exec(ALIASES, vars(found))
    yield found
    del sys.modules["aliases"]


def test_a_type_alias_means_what_it_stands_for(aliases):
    one = np.ones(2)
    check(one, aliases.Vector)
    check((one, (one, one)), tuple[aliases.Vector, aliases.Pair[aliases.Vector]])
    check(((one, one),) * 2, aliases.Pair[aliases.Pair[aliases.Vector]])
    check((1, 2), aliases.Pair[int])
    check(aliases.Node(one, [aliases.Node(one, [])]), aliases.Node)
    assert isinstance(one, Float[aliases.AnyArray, "n"])
    assert isinstance(np.ones((3, 2)), Float[aliases.Vector, "m"])
    for value, hint in [((one, np.ones(3)), aliases.Pair[aliases.Vector]), ((1, "a"), aliases.Pair[int])]:
        with pytest.raises((ShapeError, StructureError)):
            check(value, hint)


def test_an_alias_of_typing_extensions_is_one_too():
    make, item = pytest.importorskip("typing_extensions").TypeAliasType, TypeVar("item")
    vector, pair = make("Vector", Float[np.ndarray, "n"]), make("Pair", tuple[item, item], type_params=(item,))
    check((np.ones(2), np.ones(2)), pair[vector])
    with pytest.raises(ShapeError, match=r"checked\[1\] has n=3"):
        check((np.ones(2), np.ones(3)), pair[vector])
    with pytest.raises(StructureError):
        check((1, "a"), pair[int])


@pytest.mark.parametrize("name", ["Nested", "Endless", "Itself"])
def test_a_type_alias_that_holds_itself_is_an_error(aliases, name):
    alias = getattr(aliases, name)
    message = f"the type alias {name} holds itself"
    for hint in (alias[aliases.Vector] if name == "Endless" else alias, list[alias]):
        with pytest.raises(AnnotationSyntaxError, match=message):
            check([np.ones(2)], hint)
    with pytest.raises(
        AnnotationSyntaxError, match=message if name == "Itself" else "is not an array type|holds itself"
    ):
        Float[alias, "n"]


def test_arguments_of_a_composed_structure_are_made(mesh):
    @typed_shard_map(mesh=mesh)
    def whole(
        z: PyTree[Float[Array, "[b/dp]"], "S T"],
        x: PyTree[Float[Array, "..."], "S"],
        y: PyTree[Float[Array, "..."], "T"],
    ) -> PyTree[Float[Array, "[b/dp]"], "S T"]:
        return z

    made = inputs(whole)
    assert jax.tree.structure(jax.eval_shape(whole, *made)) == jax.tree.structure(made["z"])
