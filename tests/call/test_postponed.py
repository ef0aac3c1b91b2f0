"""Hints that are strings (PEP 563) are resolved wherever Python would have found their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import jax
import numpy as np
import pytest
from expecting import fails, numbers, same, traced
from jax.sharding import Mesh

from typedshmap import AnnotationSyntaxError, Array, Float, ShapeError, StructureError, typed, typed_shard_map

T = TypeVar("T")
x, w = numbers(8, 4), numbers(4, 6)


def test_the_hints_of_this_module_are_strings() -> None:
    def double(x: Float[Array, "[b/dp] d"]) -> None: ...

    assert double.__annotations__["x"] == "Float[Array, '[b/dp] d']"


# Names


X = Float[Array, "[b/dp] d"]
Y = Float[Array, "[b/dp] [f/tp]"]


def test_a_local_name_hides_a_global_one(mesh: Mesh) -> None:
    X = Float[Array, " d"]  # noqa: F841 (the string names it)

    @typed_shard_map(mesh=mesh)
    def double(x: X) -> X:
        return x * 2

    same(double(x[0]), x[0] * 2)


def test_a_name_of_a_function_further_out_that_nothing_uses_is_reported(mesh: Mesh) -> None:
    Rows = Float[Array, "[b/dp] d"]

    def make() -> Callable[..., Any]:
        @typed_shard_map(mesh=mesh)
        def double(x: Rows) -> None: ...

        return double

    double = make()
    with fails(AnnotationSyntaxError, "double: the hint of parameter 'x' names 'Rows', which is not defined"):
        double(x)


def global_double(x: X) -> X:
    return x * 2


def test_a_local_name_does_not_hide_the_global_one_of_a_global_function(mesh: Mesh) -> None:
    X = x[0]
    same(typed_shard_map(global_double, mesh=mesh)(X + x), 2 * (x[0] + x))


def decorated(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """A decorator of the user's."""
    return jax.jit(typed_shard_map(function, mesh=mesh))


@pytest.mark.parametrize("decorate", [decorated, lambda f, mesh: typed_shard_map(f, mesh=mesh)])
def test_local_names_and_parameters_are_those_of_each_call_wherever_it_is_decorated(decorate: Any, mesh: Mesh) -> None:
    shapes: list[tuple[int, ...]] = []

    def look(dims: str, result: Any) -> None:
        Rows = Float[Array, dims]

        def inner(x: Rows) -> result:
            shapes.append(x.shape)

        traced(decorate(inner, mesh), x)

    look("[b/dp] d", None)
    look("b [d/tp]", None)
    assert shapes == [(2, 4), (8, 2)]


# Names that come late


@typed
def late(x: LateRows, by: LateInt = 2) -> LateRows:
    return x * by


LateRows = Float[Array, "[b/dp] d"]
LateInt = int


def test_a_global_name_may_be_defined_after_the_function() -> None:
    same(late(jax.numpy.asarray(x)), x * 2)
    with fails(ShapeError, "late: argument 'x' has 1 dim, but its hint has 2"):
        late(jax.numpy.asarray(x[0]))


def test_a_name_that_is_never_defined_is_reported_at_every_call(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def double(x: X, y: Nowhere) -> X:
        return x * 2

    for _ in range(2):
        with fails(AnnotationSyntaxError, "double: the hint of parameter 'y' names 'Nowhere', which is not defined"):
            double(x, x)


def test_a_closed_over_name_may_be_defined_after_the_function(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def double(x: Rows) -> Rows:
        assert Rows
        return x * 2

    Rows = Float[Array, "[b/dp] d"]
    same(double(x), x * 2)


# Classes


def test_a_method_of_a_local_class_may_name_its_own_class(mesh: Mesh) -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class Point:
        at: X

        @typed_shard_map(mesh=mesh)
        def plus(self: Point, other: Point, again: Point | None = None) -> Point:
            return Point(self.at + other.at)

    same(Point(x).plus(Point(2 * x)).at, 3 * x)
    with fails(ShapeError, "Point.plus: argument 'other.at' has b=4, but argument 'self.at' has b=8"):
        Point(x).plus(Point(x[:4]))


def test_a_method_may_name_what_its_class_body_and_the_function_around_define(mesh: Mesh) -> None:
    Rows = Float[Array, "[b/dp] d"]

    class Outer:
        class Inner:
            Columns = Float[Array, "b [d/tp]"]

            @typed_shard_map(mesh=mesh)
            def shapes(self, x: Rows, y: Columns) -> None:
                assert (x.shape, y.shape) == ((2, 4), (8, 2))

    traced(Outer.Inner().shapes, x, x)


def test_a_local_class_may_name_local_hints(mesh: Mesh) -> None:
    Rows, Columns = Float[Array, "[b/dp] d"], Float[Array, "d [f/tp]"]

    @jax.tree_util.register_dataclass
    @dataclass
    class Weights:
        w: Columns

    class Both(NamedTuple):
        x: Rows
        weights: Weights

    @typed_shard_map(mesh=mesh)
    def project(both: Both) -> Y:
        return both.x @ both.weights.w

    same(project(Both(x, Weights(w))), x @ w)
    with fails(ShapeError, "project: argument 'both.weights.w' has d=3, but argument 'both.x' has d=4"):
        project(Both(x, Weights(w[:3])))


def test_local_classes_may_hold_each_other(mesh: Mesh) -> None:
    shapes: list[tuple[int, ...]] = []

    @jax.tree_util.register_dataclass
    @dataclass
    class Even:
        odd: Odd | None
        at: X

    @jax.tree_util.register_dataclass
    @dataclass
    class Odd:
        even: Even | None
        at: X

    @typed_shard_map(mesh=mesh)
    def look(even: Even) -> None:
        assert Odd
        shapes.extend([even.at.shape, even.odd.at.shape, even.odd.even.at.shape])

    traced(look, Even(Odd(Even(None, x), x), x))
    assert shapes == [(2, 4)] * 3


class Some(TypedDict):
    x: X
    scale: NotRequired[Float[Array, " d"]]


@jax.tree_util.register_dataclass
@dataclass
class Box(Generic[T]):
    value: T


@jax.tree_util.register_dataclass
@dataclass
class Boxes(Generic[T]):
    first: Box[T]
    rest: list[Box[T]]


@jax.tree_util.register_dataclass
@dataclass
class RowBox(Box[X]):
    scale: Float[Array, ""]


def test_keys_of_a_typed_dict_are_required_as_their_hints_say(mesh: Mesh) -> None:
    first = typed_shard_map(lambda value: value["x"], mesh=mesh, in_types=(Some,), out_types=X)
    same(first({"x": x}), x)
    with fails(StructureError, "<lambda>: argument 'value' lacks 'x'"):
        first({"scale": x[0]})


def test_a_generic_class_in_a_generic_class_and_its_subclass_stand_for_their_argument(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def add(boxes: Boxes[X], more: RowBox | None = None) -> Box[X]:
        return Box(boxes.first.value + sum(box.value for box in [*boxes.rest, *([more] if more else [])]))

    same(add(Boxes(Box(x), [Box(x), Box(x)]), RowBox(x, np.float32(2))).value, 4 * x)
    with fails(ShapeError, "add: argument 'boxes.rest[0].value' has b=4, but argument 'boxes.first.value' has b=8"):
        add(Boxes(Box(x), [Box(x[:4])]))
