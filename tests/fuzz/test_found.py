"""What the fuzz tests found once, each with the message that it has now."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    Float,
    MeshAxisError,
    PatternError,
    PyTree,
    Shaped,
    Stacked,
    StructureError,
    axis_aliases,
    axis_rules,
    check,
    partition_specs,
    plan_reshard,
    shape_structs,
    typed_jit,
    typed_shard_map,
)
from typedshmap.errors.phrases import value_text

X = Float[Array, "[b/dp] d"]
x = np.ones((8, 16), np.float32)


def f(x: X) -> X:
    return x


class Outer(NamedTuple):
    inner: Later  # defined below


FOUND: list[tuple[Callable[[Mesh], Any], type[Exception], str]] = [
    (
        lambda mesh: Float[np.ones(2), "b"],
        AnnotationSyntaxError,
        """Float[array([1., 1.]), "b"]: array([1., 1.]) is not an array type, as Array, np.ndarray and ArrayLike are""",
    ),
    (
        lambda mesh: check(x, Unfinished),
        AnnotationSyntaxError,
        "Unfinished names 'NeverDefined', which is not defined",
    ),
    (
        lambda mesh: check(x, PyTree[Unfinished]),
        AnnotationSyntaxError,
        "PyTree[Unfinished] names 'NeverDefined', which is not defined",
    ),
    (lambda mesh: partition_specs(10**5000), AnnotationSyntaxError, "an int is not a hint"),
    (lambda mesh: Stacked["n", "\ud800"], AnnotationSyntaxError, "Stacked['n', '\\ud800']: '\\ud800' is not a hint"),
    (lambda mesh: axis_aliases(3), MeshAxisError, "axis_aliases: wants a dict of names and mesh axes, got int"),
    (
        lambda mesh: axis_rules({"b": 10**5000}),
        MeshAxisError,
        "the rule for 'b' stands for an int; write a mesh axis, a tuple of them, or None",
    ),
    (
        lambda mesh: typed_jit(f, static_argnames=jnp.ones(3)),
        StructureError,
        "f: static_argnames= wants a parameter's name, or several; got Array([1., 1., 1.], dtype=float32)",
    ),
    (
        lambda mesh: typed_shard_map(f, mesh=mesh, axis_names={"dp", 3, "zz"})(x),
        MeshAxisError,
        "f: axis_names= names mesh axis '3', which the mesh (dp=4, tp=2) does not have",
    ),
    (
        lambda mesh: partition_specs_on(Mesh(mesh.devices, (0, 1))),
        MeshAxisError,
        "shape_structs: hint value names mesh axis 'dp', which is not among the mesh's axes '0', '1'",
    ),
    (
        lambda mesh: plan_reshard(f"{'9' * 5000} -> a", (8,), mesh),
        PatternError,
        "plan_reshard: a size of 5000 digits",
    ),
    (
        lambda mesh: check(x, "{x[" + "9" * 5000 + "]} b"),
        AnnotationSyntaxError,
        f""""{{x[{"9" * 450}...": unexpected '{"9" * 138}...{"9" * 89}' in braces""",
    ),
    (
        lambda mesh: check(NamedShape(), Shaped[Any, "..."]),
        StructureError,
        "check: checked value is a NamedShape, but its hint says an array",
    ),
]


class NamedShape:
    shape, dtype = "round", np.dtype("f4")


class Unfinished(NamedTuple):
    inner: NeverDefined  # type: ignore[name-defined]


def partition_specs_on(mesh: Mesh) -> Any:
    return shape_structs(X, mesh, b=8, d=16)


@pytest.mark.parametrize(("call", "error", "line"), FOUND)
def test_what_was_found_is_reported(call: Callable[[Mesh], Any], error: type[Exception], line: str, mesh: Mesh) -> None:
    with pytest.raises(error) as caught:
        call(mesh)
    assert str(caught.value).splitlines()[0] == line


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
