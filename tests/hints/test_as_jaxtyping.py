"""What jaxtyping says of unsharded arrays ours say too: tables, of which both libraries judge each row."""

import random
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, NewType, Optional, TypeVar, Union, get_args, get_origin

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpy.typing as npt
import pytest
from beartype.door import is_bearable
from expecting import fails
from jax.typing import ArrayLike
from jaxtyping import jaxtyped

import typedshmap
from typedshmap import AnnotationSyntaxError, Array, typed

INVALID = "invalid"


def fits(value, hint):
    """Whether a value fits, member by member of a union, since ``isinstance`` does not look into those of typing."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return any(isinstance(value, member) for member in members)


def verdict(library, make_hints, values):
    """Whether values fit hints of one call, in order, each hint of either library by its own check."""
    try:
        hints = make_hints(library)
    except (ValueError, TypeError):
        return INVALID
    if library is jaxtyping:
        with jaxtyped("context"):
            return all(fits(value, hint) for value, hint in zip(values, hints, strict=True))
    scope = {}

    @typed
    def call():
        scope["fits"] = all(fits(value, hint) for value, hint in zip(values, hints, strict=True))

    call()
    return scope["fits"]


def verdicts(make_hints, values):
    return tuple(verdict(library, make_hints, values) for library in (jaxtyping, typedshmap))


def shapes(*sizes):
    return [np.ones(shape, np.float32) for shape in sizes]


# What the law below does not draw.
DIMS = [
    (["1_000"], [(1000,)], True),
    (["a b", "b a"], [(2, 3), (2, 3)], False),
    (["  a \t b\n"], [(2, 3)], True),
    (["*", "*"], [(2, 3), (2, 3)], True),
    (["*", "*"], [(2, 3), (2,)], False),
    (["* 3"], [(1, 2, 3)], True),
    (["_ _x", "_ _x"], [(2, 3), (4, 5)], True),
    (["n", "#n+1"], [(3,), (1,)], True),
    (["rows=4"], [(4,)], True),
    (["_rows=n", "n"], [(2,), (3,)], True),
    (["*#rows=n", "*n"], [(1, 3), (2, 3)], True),
    (["n", "2*n-1"], [(2,), (4,)], False),
    (["n m", "min(n,m) max(n,m)"], [(4, 3), (3, 4)], True),
    (["n", "(n+1)//2"], [(4,), (2,)], True),
    (["n", "n%3 n**2"], [(4,), (1, 16)], True),
    (["{1+1}"], [(3,)], False),
    (["größe", "größe"], [(2,), (3,)], False),
    (["a,b"], [(2, 3)], INVALID),
    (["a#"], [(2,)], INVALID),
    (["a..."], [(2,)], INVALID),
    (["_a+1"], [(4,)], INVALID),
    (["#"], [(4,)], INVALID),
]


@pytest.mark.parametrize(("dims", "sizes", "expected"), DIMS, ids=[" , ".join(row[0]) for row in DIMS])
def test_dims_mean_what_they_mean_in_jaxtyping(dims, sizes, expected):
    assert verdicts(lambda lib: [lib.Float[np.ndarray, text] for text in dims], shapes(*sizes)) == (expected,) * 2


class Config:
    width = 3


def with_arguments(library, dims):
    """A call whose result has dims that its arguments give."""
    hint = library.Float[np.ndarray, dims]

    def call(self, n, sizes, x, out):
        return isinstance(out, hint)

    return jaxtyped(call, typechecker=None) if library is jaxtyping else typed(call)


@pytest.mark.parametrize(
    ("dims", "size"),
    [
        ("{n}", 4),
        ("{n-1}", 3),
        ("{n}-1", 3),
        ("{n//2}", 2),
        ("2*{n}", 8),
        ("{self.width}", 3),
        ("{self.width*n}", 12),
        ("{sizes[0]}+{sizes[1]}", 13),
        ("{sizes[-1]}", 7),
        ("{x.shape[-1]}", 5),
        ("{x.ndim+1}", 3),
        ("{max(n,self.width)}", 4),
        ("#{n}", 1),
        ("k={n}", 4),
    ],
)
def test_braces_mean_what_they_mean_in_jaxtyping(dims, size):
    given = (Config(), 4, (6, 7), np.ones((2, 5)))
    for library in (jaxtyping, typedshmap):
        call = with_arguments(library, dims)
        found = [call(*given, np.ones(rows, np.float32)) for rows in (size, 99)]
        assert found == [True, False], library.__name__


PAIR = (1, 2)
# What the law below does not draw.
STRUCTURES = [
    ([(int, "T"), (int, " T ")], [PAIR, [1, 2]], False),
    ([(int, "T"), (int, "... T T")], [PAIR, {"a": (PAIR, PAIR)}], True),
    ([(Any, "T"), (Any, "T")], [PAIR, ("a", None)], False),
    ([(Any, "T"), (Any, "T")], [PAIR, ("a", [])], False),
    ([(tuple[int, int], "T"), (int, "T")], [[PAIR], [3]], True),
    ([(int, "S, T")], [3], INVALID),
    ([(int, "")], [3], INVALID),
    ([(int, "S ... T")], [3], INVALID),
    ([(int, "1")], [3], INVALID),
]


PER_LEAF = [
    (["S", "S"], ["?n", "?n"], [{"w": (2,), "b": (3,)}, {"w": (2,), "b": (3,)}], True),
    (["S", "S"], ["?n", "?n"], [{"w": (2,), "b": (3,)}, {"w": (2,), "b": (4,)}], False),
    (["S", "T"], ["?n", "?n"], [{"w": (2,)}, {"w": (3,)}], True),
    (["S", "S"], ["?*n", "*?n"], [{"w": (2, 3), "b": ()}, {"w": (2, 3), "b": ()}], True),
    (["S", "S"], ["#?n", "?#n"], [{"w": (2,)}, {"w": (1,)}], True),
    (["S", "S"], ["?rows=n", "rows=?n"], [{"w": (2,)}, {"w": (3,)}], False),
    (["S", "S"], ["?n m", "?n m"], [{"w": (2, 3), "b": (4, 3)}, {"w": (2, 3), "b": (4, 3)}], True),
]


@pytest.mark.parametrize(("hints", "values", "expected"), STRUCTURES, ids=str)
def test_structures_mean_what_they_mean_in_jaxtyping(hints, values, expected):
    assert verdicts(lambda lib: [lib.PyTree[hint] for hint in hints], values) == (expected,) * 2


@pytest.mark.parametrize(("structures", "dims", "trees", "expected"), PER_LEAF, ids=str)
def test_names_per_leaf_mean_what_they_mean_in_jaxtyping(structures, dims, trees, expected):
    values = [{name: np.ones(shape, np.float32) for name, shape in tree.items()} for tree in trees]
    pairs = list(zip(dims, structures, strict=True))
    found = verdicts(lambda lib: [lib.PyTree[lib.Float[np.ndarray, text], name] for text, name in pairs], values)
    assert found == (expected,) * 2


@pytest.mark.parametrize(
    ("leaf", "right", "wrong"),
    [
        (int, [1, (2, {"a": 3})], [1, "a"]),
        (str, "ab", [b"ab"]),
        (float, [1.0, 1], ["1"]),
        (bool, [True], [1]),
        (int | str, [1, "a"], [1.5]),
        (None, [None], [1]),
        (Optional[int], [1, None], ["a"]),
        (tuple[int, int], [(1, 2)], [(1, "a")]),
        (tuple[int, ...], [(1, 2, 3)], [("a",)]),
        (list[int], [[1], []], [["a"]]),
        (Sequence[int], [[1]], [3.5]),
        (Callable, [len], [3]),
        (Literal["a"], ["a"], ["b"]),
        (Annotated[int, "size"], [1], ["a"]),
        (np.ndarray, [np.ones(2)], [1]),
        (type(None), None, [1]),
    ],
    ids=str,
)
def test_every_leaf_of_a_tree_is_of_the_type_that_jaxtyping_wants(leaf, right, wrong):
    for library in (jaxtyping, typedshmap):
        hint = library.PyTree[leaf]
        assert [isinstance(right, hint), isinstance(wrong, hint)] == [True, False], library.__name__


F32, F64, I32 = np.float32(1), np.float64(1), np.int32(1)


class Duck:
    """Something that is an array by its attributes alone."""

    shape = (2,)
    dtype = np.dtype("float32")


ARRAYS = {"jax": jnp.ones(2), "numpy": np.ones(2, np.float32), "struct": jax.ShapeDtypeStruct((2,), "float32")}
ARRAYS |= {"duck": Duck(), "list": [1.0, 2.0], "text": "ab", "None": None}
SCALARS = {"f": 1.0, "i": 1, "c": 1j, "s": "a", "f32": F32, "jax": jnp.ones(()), "numpy": np.ones((), np.float32)}
Free, Bound, Constrained = TypeVar("Free"), TypeVar("Bound", bound=jax.Array), TypeVar("Constrained", Array, np.ndarray)
TYPES = [
    ("Float", Array, "a"),
    ("Float", np.ndarray, "a"),
    ("Float", Any, "a"),
    ("Float", Array | np.ndarray, "a"),
    ("Float", Union[Array, np.ndarray], "a"),
    ("Float", ArrayLike, "a"),
    ("Float", npt.NDArray[np.float32], "a"),
    ("Float", Free, "a"),
    ("Float", Bound, "a"),
    ("Float", Constrained, "a"),
    ("Float", jax.ShapeDtypeStruct, "a"),
    ("Float", float, ""),
    ("Float", float, "..."),
    ("Float", float, "*n"),
    ("Float", float, "a"),
    ("Float", int, ""),
    ("Float32", float, ""),
    ("Float64", float, ""),
    ("BFloat16", float, ""),
    ("Int", int, ""),
    ("Int8", int, ""),
    ("UInt", int, ""),
    ("Num", int, ""),
    ("Shaped", int, ""),
    ("Complex", complex, ""),
    ("Bool", bool, ""),
    ("Real", bool, ""),
    ("Float", np.float32, ""),
    ("Float", Array | float, ""),
    ("Float", Array | int, ""),
    ("Float", Array | float, "a"),
    ("Float", int | bool, ""),
    ("Float", "Array", "a"),
    ("Float", None, "a"),
]


@pytest.mark.parametrize(("dtype", "array_type", "dims"), TYPES, ids=str)
def test_array_types_take_what_they_take_in_jaxtyping(dtype, array_type, dims):
    values = ARRAYS if dims == "a" else SCALARS
    for name, value in values.items():
        found = verdicts(lambda lib: [getattr(lib, dtype)[array_type, dims]], [value])
        assert found[0] == found[1], name


@pytest.mark.parametrize(
    ("dtype", "array_type", "value", "theirs", "ours"),
    [
        ("Int", int, True, True, False),  # JAX makes a bool of it
        ("Float", np.number, I32, True, False),  # jaxtyping does not look at the dtypes of NumPy's scalars
        ("Float", ArrayLike, I32, True, False),
        ("Float32", float, F64, True, False),
        ("Float", npt.ArrayLike, "a", None, False),  # jaxtyping fails
        ("Float", NewType("Mine", Array), SCALARS["jax"], INVALID, True),
        ("Float", Annotated[Array, "mine"], SCALARS["jax"], None, True),
        ("Float", Optional[Array], None, None, False),
    ],
    ids=str,
)
def test_of_other_array_types_more_is_known_than_in_jaxtyping(dtype, array_type, value, theirs, ours):
    def make_hints(lib):
        return [getattr(lib, dtype)[array_type, ""]]

    assert verdict(typedshmap, make_hints, [value]) == ours
    assert theirs is None or verdict(jaxtyping, make_hints, [value]) == theirs


@pytest.mark.parametrize(
    ("outer", "inner"), [("b", "a"), ("*b", "a"), ("", "a"), ("b", ""), ("b", "..."), ("b b", "*b")], ids=str
)
def test_a_hint_inside_a_hint_is_that_of_jaxtyping(outer, inner):
    def hint(library):
        return library.Float[library.Float[np.ndarray, inner], outer]

    assert hint(typedshmap).dim_str.split() == hint(jaxtyping).dim_str.split()
    for shape in [(), (2,), (2, 2), (2, 2, 2), (2, 3, 3)]:
        assert len(set(verdicts(lambda lib: [hint(lib)], shapes(shape)))) == 1


def test_a_hint_has_the_attributes_of_jaxtyping_hints():
    for library in (jaxtyping, typedshmap):
        hint = library.Float32[np.ndarray, "a #b"]
        found = (hint.dtype, tuple(hint.dtypes), hint.dim_str, hint.array_type)
        assert found == (library.Float32, ("float32",), "a #b", np.ndarray)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda lib: lib.Float[Array, "a"](), 'Float[Array, "a"] is a hint and has no instances'),
        (lambda lib: lib.PyTree(), "PyTree is a hint and has no instances"),
        (lambda lib: lib.PyTree[int](3), "PyTree[int] is a hint and has no instances"),
        (lambda lib: lib.Float("a"), 'Float(...): a hint is written in square brackets, as in Float[Array, "b d"]'),
        (
            lambda lib: isinstance(np.ones(2), lib.Float),
            'isinstance(..., Float): a hint has dims too, as in Float[Array, "..."]',
        ),
    ],
    ids=["hint", "tree", "tree of leaves", "dtype", "isinstance of a dtype"],
)
def test_there_are_no_instances_of_hints_as_in_jaxtyping(make, message):
    with pytest.raises((RuntimeError, jaxtyping.AnnotationError)):
        make(jaxtyping)
    with fails(AnnotationSyntaxError, message):
        make(typedshmap)


@pytest.mark.parametrize(
    ("hint", "right", "wrong"),
    [
        (typedshmap.PyTree[int], [1], ["a"]),
        (typedshmap.PyTree[Sequence[int]], [[1]], [3.5]),
        (typedshmap.PyTree[Literal["a"], "S"], ["a"], ["b"]),
        (tuple[typedshmap.PyTree[int], str], ([1], "a"), (["x"], "a")),
    ],
    ids=str,
)
def test_a_door_opens_to_trees_of_what_are_no_arrays(hint, right, wrong):
    assert [is_bearable(right, hint), is_bearable(wrong, hint)] == [True, False]


NAMES, SIZES = (
    ("a", "b", "n", "m", "_", "..."),
    ("1", "2", "3", "a+1", "2*a", "min(a,b)", "a-b", "{2}", "{a-1}", "b//2"),
)


def random_dim(rng):
    """A dim of jaxtyping's grammar, or near it."""
    text = rng.choice(rng.choice((NAMES, SIZES)))
    signs = ("#", "#", "*", "?", "k=") if text in SIZES or text == "_" else ("#", "#", "*", "*", "?", "_", "k=")
    return "".join(rng.sample(signs, rng.choice((0, 0, 0, 0, 1, 1, 2)))) + text


def random_dims(rng):
    return " ".join(random_dim(rng) for _ in range(rng.choice((0, 1, 1, 2, 2, 3))))


def disagreement(rng):
    """The dims and shapes of a random call of which the libraries differ; None where they agree, or jaxtyping fails."""
    dims = [random_dims(rng) for _ in range(rng.choice((1, 2, 2, 3)))]
    sizes = [tuple(rng.choice((1, 1, 2, 2, 3)) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))) for _ in dims]
    case = (lambda lib: [lib.Shaped[np.ndarray, text] for text in dims], [np.empty(shape) for shape in sizes])
    try:
        theirs = verdict(jaxtyping, *case)
    except Exception:  # a name that is not bound yet, a "?" outside of a tree
        return None
    ours = verdict(typedshmap, *case)
    return None if ours == theirs else (dims, sizes, theirs, ours)


def test_random_hints_and_shapes_are_judged_as_by_jaxtyping():
    rng = random.Random(17)
    assert list(filter(None, (disagreement(rng) for _ in range(1500)))) == []


def random_tree(rng, depth=2):
    """A tree of a few ones, here and there with another leaf."""
    kind = rng.choice(("leaf", "leaf", "tuple", "list", "dict")) if depth else "leaf"
    if kind == "leaf":
        return rng.choice((1, 1, 1, 1, 1, 1, 1, "a", None, 1.5)) if depth < 2 else 1
    items = [random_tree(rng, depth - 1) for _ in range(rng.choice((0, 1, 1, 2)))]
    return tuple(items) if kind == "tuple" else items if kind == "list" else dict(zip("ab", items, strict=False))


def planted(rng, outer, inner):
    """A tree with another one at its leaves, now and then with something else at one."""
    return jax.tree.map(lambda _: inner if rng.random() < 0.95 else random_tree(rng, 1), outer)


def tree_disagreement(rng):
    """The trees and structures of a random call of which the libraries differ; None where they agree."""
    named = {"S": random_tree(rng), "T": random_tree(rng)}
    structure = rng.choice(("S T", "T S", "S S", "S ...", "... S", "... S T", "S T ...", "S", "..."))
    tree = 1
    for name in reversed(structure.split()):
        tree = planted(rng, named.get(name, random_tree(rng, 1)), tree)
    tree = tree if rng.random() < 0.85 else random_tree(rng)
    values, structures = [*named.values(), tree], ["S", "T", structure]
    if None in values:  # which jaxtyping takes for any tree
        return None
    theirs, ours = verdicts(lambda lib: [lib.PyTree[int, name] for name in structures], values)
    return None if ours == theirs else (values, structures, theirs, ours)


def test_random_trees_and_structures_are_judged_as_by_jaxtyping():
    rng = random.Random(17)
    assert list(filter(None, (tree_disagreement(rng) for _ in range(300)))) == []
