"""What the fuzz tests found once, each with the message that it has now."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draws import endless
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    Float,
    MeshAxisError,
    PatternError,
    PyTree,
    Shaped,
    ShapeError,
    Stacked,
    StructureError,
    axis_aliases,
    axis_rules,
    check,
    einsum,
    partition_specs,
    plan_reshard,
    rearrange,
    reduce,
    repeat,
    shape_structs,
    shard,
    take,
    typed_jit,
    typed_shard_map,
)
from typedshmap.errors.phrases import value_text
from typedshmap.testing import assert_mesh_invariant, inputs

X = Float[Array, "[b/dp] d"]
x = np.ones((8, 16), np.float32)


def f(x: X) -> X:
    return x


class Outer(NamedTuple):
    inner: Later  # defined below


def twice(hint: Any, times: int) -> Any:
    """A hint in which each part stands twice in another."""
    for _ in range(times):
        hint = tuple[hint, hint]
    return hint


def nested(hint: Any, times: int) -> Any:
    for _ in range(times):
        hint = list[hint] | tuple[hint, ...]
    return hint


BOTH = (
    "fits no member of its hint (is a NumPy array, but its hint says list; is a NumPy array, but its hint says tuple)"
)
DEEP = "a hint that is nested too deeply, or holds itself"
# What was found, with what takes long or never ends last.
FOUND: list[tuple[Callable[[Mesh], Any], type[Exception], str]] = [
    (
        lambda mesh: Float[np.ones(2), "b"],
        AnnotationSyntaxError,
        """Float[array([1., 1.]), "b"]: array([1., 1.]) is not an array type, as Array, np.ndarray and ArrayLike are""",
    ),
    (lambda mesh: check(x, Unfinished), AnnotationSyntaxError, "Unfinished names 'NeverDefined', which is not defined"),
    (lambda mesh: check(x, PyTree[Unfinished]), AnnotationSyntaxError,
     "PyTree[Unfinished] names 'NeverDefined', which is not defined"),
    (lambda mesh: partition_specs(10**5000), AnnotationSyntaxError, "an int is not a hint"),
    (lambda mesh: plan_reshard("[a/dp] b -> a [b/dp]", (10**5000, 4), mesh), ShapeError,
     "plan_reshard: shape=a tuple has an int, which is not a size"),
    (lambda mesh: plan_reshard("[a/dp] b -> a [b/dp]", (2**63, 4), mesh), ShapeError,
     "plan_reshard: shape=(9223372036854775808, 4) has 9223372036854775808, which is not a size"),
    (lambda mesh: inputs(typed_shard_map(f, mesh=mesh), b=2**45, d=4), ShapeError,
     'inputs: f: Float[Array, "[b/dp] d"] is of shape (35184372088832, 4), which is too large to be drawn here'),
    (lambda mesh: assert_mesh_invariant(typed_shard_map(f), b=2**45, d=4), ShapeError,
     'assert_mesh_invariant: f: Float[Array, "[b/dp] d"] is of shape (35184372088832, 4), which is too large to be '
     "drawn here"),
    (lambda mesh: Stacked["n", "\ud800"], AnnotationSyntaxError, "Stacked['n', '\\ud800']: '\\ud800' is not a hint"),
    (lambda mesh: axis_aliases(3), MeshAxisError, "axis_aliases: expects a dict of names and mesh axes, got int"),
    (lambda mesh: axis_rules({"b": 10**5000}), MeshAxisError,
     "the rule for 'b' is an int; write a mesh axis, a tuple of them, or None"),
    (lambda mesh: typed_jit(f, static_argnames=jnp.ones(3)), StructureError,
     "f: static_argnames= expects a parameter's name, or several; got Array([1., 1., 1.], dtype=float32)"),
    (lambda mesh: typed_shard_map(f, mesh=mesh, axis_names={"dp", 3, "zz"})(x), MeshAxisError,
     "f: axis_names= names mesh axis '3', which the mesh (dp=4, tp=2) does not have"),
    (lambda mesh: partition_specs_on(Mesh(mesh.devices, (0, 1))), MeshAxisError,
     "shape_structs: hint value names mesh axis 'dp', which is not among the mesh's axes '0', '1'"),
    (lambda mesh: plan_reshard(f"{'9' * 5000} -> a", (8,), mesh), PatternError, "plan_reshard: a size of 5000 digits"),
    (
        lambda mesh: check(x, "{x[" + "9" * 5000 + "]} b"),
        AnnotationSyntaxError,
        f""""{{x[{"9" * 450}...": unexpected '{"9" * 138}...{"9" * 89}' in braces""",
    ),
    (lambda mesh: check(NamedShape(), Shaped[Any, "..."]), StructureError,
     "check: checked value is a NamedShape, but its hint says an array"),
    (lambda mesh: check(x, endless(list)), AnnotationSyntaxError, DEEP),
    (lambda mesh: shard({"a": x}, endless(dict), mesh), AnnotationSyntaxError, DEEP),
    (lambda mesh: typed_shard_map(lambda x: x, mesh=mesh, in_types=(endless(list),), out_types=X),
     AnnotationSyntaxError, f"<lambda>: in_types[0]: {DEEP}"),
    (lambda mesh: check(x, twice(X, 40)), AnnotationSyntaxError, "a hint of more than 100000 parts"),
    (lambda mesh: check(x, nested(X, 17)), AnnotationSyntaxError, "a hint of more than 100000 parts"),
    (lambda mesh: check(x, nested(X, 10)), StructureError, f"check: checked value {BOTH}"),
    (
        lambda mesh: check({"a": x}, dict[X]),  # type: ignore[misc]
        AnnotationSyntaxError,
        'dict[typedshmap.Float[Array, "[b/dp] d"]]: expects the types of keys and of values, as in dict[str, Array]',
    ),
    (lambda mesh: Float[Array, "a b", P(None, ("tp", None))], AnnotationSyntaxError,
     "Float[...]: P(...) holds None; write mesh axes by name, or None"),
    (lambda mesh: check(x, "(99**64)**64 s"), ShapeError,
     "check: checked value has a hint that cannot be evaluated: '99**64' has more than 100 digits"),
    (lambda mesh: repeat(x, "a b -> a b c", c=10**30), PatternError,
     f"repeat: the size of 'c' is {10**30}, which is more than any dim has"),
    (lambda mesh: repeat(x, "a b -> a b c", c=10**18), PatternError,
     "repeat: the result has more elements than any array"),
    (lambda mesh: shape_structs(X, mesh, b=10**5000, d=3), ShapeError, "shape_structs: b=an int is not a size"),
    (lambda mesh: reduce(np.array([[None, 1]], dtype=object), "a b -> a", "sum"), StructureError,
     "reduce: the operand is a NumPy array that JAX refuses ("),
    (lambda mesh: reduce(np.array(["2020-01-01"], dtype="datetime64[D]"), "a ->", "sum"), StructureError,
     "reduce: the operand is a NumPy array that JAX refuses ("),
    (lambda mesh: einsum(np.array([[None]], dtype=object), x[:1, :1], "a b, a b -> a"), StructureError,
     "einsum: operand 1 is a NumPy array that JAX refuses ("),
    (lambda mesh: take(np.ma.masked_array(x, mask=x > 0), np.zeros(2, int), "v m, b -> b m"), StructureError,
     "take: operand 1 is a NumPy array that JAX refuses ("),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "line"), FOUND)
def test_what_was_found_is_reported_in_few_words(
    call: Callable[[Mesh], Any], error: type[Exception], line: str, mesh: Mesh
) -> None:
    with pytest.raises(error) as caught:
        call(mesh)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(line) if line.endswith("(") else first == line
    assert len(str(caught.value)) <= 5000


def test_a_text_that_nobody_wrote_is_not_read() -> None:
    with pytest.raises(AnnotationSyntaxError, match="a text of 400000 characters; at most 200000 are read"):
        check(x, "b " * 200_000)
    with pytest.raises(PatternError, match="a text of 20007 characters; at most 10000 are read"):
        rearrange(x, "a b -> " + "b " * 10_000)


def test_a_long_message_is_cut_where_the_carets_are_not() -> None:
    with pytest.raises(AnnotationSyntaxError) as caught:
        check(x, "b " * 3000 + "c! " + "d " * 1000)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("unexpected character '!'")
    at = next(index for index, line in enumerate(lines) if set(line.strip()) == {"^"})
    assert lines[at - 1][lines[at].index("^")] == "!"
    assert len(str(caught.value)) < 5000


def test_many_failures_and_long_names_stay_readable(mesh: Mesh) -> None:
    with pytest.raises(ShapeError) as caught:
        check({"k" * 20_000 + str(at): jnp.asarray(x) for at in range(9)}, dict[str, Float[Array, "b s c"]])
    assert len(str(caught.value)) <= 5000
    assert len(caught.value.failures) == 9


def test_inputs_of_nested_lists_do_not_double_with_each_list(mesh: Mesh) -> None:
    deep: Any = X
    for _ in range(30):
        deep = list[deep]
    f = typed_shard_map(lambda x: x, mesh=mesh, in_types=(deep,), out_types=deep)
    assert len(jax.tree.leaves(inputs(f, b=8, d=4).args)) == 2**4


class NamedShape:
    shape, dtype = "round", np.dtype("f4")


class Unfinished(NamedTuple):
    inner: NeverDefined  # type: ignore[name-defined]


def partition_specs_on(mesh: Mesh) -> Any:
    return shape_structs(X, mesh, b=8, d=16)


# A tree of a class that names what is defined further down.
TREE = PyTree[Outer]


class Later(NamedTuple):
    w: Float[Array, "d"]


def test_a_tree_of_a_class_that_names_a_later_one_is_read_when_it_is_asked_for() -> None:
    value = [Outer(Later(jnp.ones(3)))]
    assert check(value, TREE) is value
    with pytest.raises(StructureError):
        check([Outer(jnp.ones(3))], TREE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hint", "right"),
    [
        (typing.List, [x]),  # noqa: UP006
        (typing.Dict, {"a": 1}),  # noqa: UP006
        (typing.Tuple, (1, 2, 3)),  # noqa: UP006
        (typing.Callable, len),
    ],
)
def test_a_bare_name_of_typing_is_what_it_names(hint: Any, right: Any) -> None:
    right = [] if hint is typing.List else right  # noqa: UP006
    assert check(right, hint) is right
    with pytest.raises(StructureError):
        check(3, hint)


def test_a_hint_of_more_parts_than_beartype_takes_is_reported() -> None:
    hint: Any = int
    for _ in range(8):
        hint = tuple[hint, hint]
    with pytest.raises(AnnotationSyntaxError, match="it has more parts than beartype accepts"):
        check((1, 2), hint)


@pytest.mark.parametrize("hint", [typing.Self, typing.NoReturn])
def test_a_static_hint_that_beartype_refuses_is_reported(hint: Any) -> None:
    with pytest.raises(AnnotationSyntaxError, match="is not a hint that beartype checks"):
        check([], hint)


class Shy:
    def __repr__(self) -> str:
        raise ValueError("not for you")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("a", "'a'"),
        (Shy(), "a Shy"),
        pytest.param(10**5000, "an int", id="a huge integer"),
        ("a" * 100, "a str"),
        (np.ones((2, 2)), "a ndarray"),
    ],
)
def test_a_value_in_a_message_is_shown_where_it_can_be(value: Any, text: str) -> None:
    assert value_text(value) == text
