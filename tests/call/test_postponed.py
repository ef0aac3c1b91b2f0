"""Hints that are strings (PEP 563) are resolved wherever Python would have found their names."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, NotRequired, Required, TypedDict, TypeVar

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


def test_a_global_name_is_found(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def double(x: X) -> X:
        return x * 2

    same(double(x), x * 2)
    with fails(ShapeError, "double: argument 'x' has 1 dim, but its hint has 2"):
        double(x[0])


def test_a_local_name_hides_a_global_one(mesh: Mesh) -> None:
    X = Float[Array, " d"]  # noqa: F841 (the string names it)

    @typed_shard_map(mesh=mesh)
    def double(x: X) -> X:
        return x * 2

    same(double(x[0]), x[0] * 2)


def test_a_parameter_of_the_enclosing_function_is_found(mesh: Mesh) -> None:
    def doubling(hint: Any) -> Callable[..., Any]:
        @typed_shard_map(mesh=mesh)
        def double(x: hint) -> hint:
            return x * 2

        return double

    same(doubling(X)(x), x * 2)
    same(doubling(Float[Array, "d"])(x[0]), x[0] * 2)


def test_a_name_of_a_function_further_out_is_found_where_the_function_uses_it(mesh: Mesh) -> None:
    Rows = Float[Array, "[b/dp] d"]

    def make() -> Callable[..., Any]:
        @typed_shard_map(mesh=mesh)
        def double(x: Rows) -> Rows:
            assert Rows
            return x * 2

        return double

    same(make()(x), x * 2)


def test_a_name_of_a_function_further_out_that_nothing_uses_is_reported(mesh: Mesh) -> None:
    Rows = Float[Array, "[b/dp] d"]

    def make() -> Callable[..., Any]:
        @typed_shard_map(mesh=mesh)
        def double(x: Rows) -> None: ...

        return double

    double = make()
    with fails(AnnotationSyntaxError, "double: the hint of parameter 'x' names 'Rows', which is not defined"):
        double(x)


Wide = Float[Array, "[b/dp] d"]


def global_double(x: Wide) -> Wide:
    return x * 2


def test_a_local_name_does_not_hide_the_global_one_of_a_global_function(mesh: Mesh) -> None:
    Wide = x[0]
    same(typed_shard_map(global_double, mesh=mesh)(Wide + x), 2 * (x[0] + x))


def decorated(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """A decorator of the user's."""
    return jax.jit(typed_shard_map(function, mesh=mesh))


DECORATIONS = [
    pytest.param(decorated, id="by a helper"),
    pytest.param(lambda function, mesh: typed_shard_map(function, mesh=mesh), id="by a lambda"),
]


@pytest.mark.parametrize("decorate", DECORATIONS)
def test_local_names_are_found_from_wherever_the_function_is_decorated(
    decorate: Callable[..., Any], mesh: Mesh
) -> None:
    Rows = Float[Array, "[b/dp] d"]

    def double(x: Rows) -> Rows:
        return x * 2

    same(decorate(double, mesh)(x), x * 2)


def test_each_call_of_a_function_resolves_its_own_names(mesh: Mesh) -> None:
    def look(rows: str, seen: list[tuple[int, ...]]) -> Callable[..., Any]:
        Rows = Float[Array, rows]

        @typed_shard_map(mesh=mesh)
        def inner(x: Rows) -> None:
            seen.append(x.shape)

        return inner

    shapes: list[tuple[int, ...]] = []
    by_rows, by_columns = look("[b/dp] d", shapes), look("b [d/tp]", shapes)
    traced(by_rows, x)
    traced(by_columns, x)
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

        @typed_shard_map(mesh=mesh)
        def doubled(self) -> Point:
            return Point(self.at[:2] * 0)

    same(Point(x).plus(Point(2 * x)).at, 3 * x)
    with fails(ShapeError, "Point.plus: argument 'other.at' has b=4, but argument 'self.at' has b=8"):
        Point(x).plus(Point(x[:4]))


def test_a_method_may_name_what_its_class_body_defines(mesh: Mesh) -> None:
    class Layer:
        Rows = Float[Array, "[b/dp] d"]

        @typed_shard_map(mesh=mesh)
        def double(self, x: Rows) -> Rows:
            return x * 2

    same(Layer().double(x), x * 2)


def test_a_method_may_name_what_is_around_its_class(mesh: Mesh) -> None:
    Rows = Float[Array, "[b/dp] d"]

    class Outer:
        class Inner:
            @typed_shard_map(mesh=mesh)
            def double(self, x: Rows) -> Rows:
                return x * 2

    same(Outer.Inner().double(x), x * 2)


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


class Few(TypedDict, total=False):
    x: Required[X]
    scale: Float[Array, " d"]


@pytest.mark.parametrize("hint", [Some, Few])
def test_keys_of_a_typed_dict_are_required_as_their_hints_say(hint: Any, mesh: Mesh) -> None:
    first = typed_shard_map(lambda value: value["x"], mesh=mesh, in_types=(hint,), out_types=X)
    same(first({"x": x}), x)
    same(first({"x": x, "scale": x[0]}), x)
    with fails(StructureError, "<lambda>: argument 'value' lacks 'x'"):
        first({"scale": x[0]})


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


def test_a_generic_class_in_a_generic_class_stands_for_its_argument(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def add(boxes: Boxes[X]) -> Box[X]:
        return Box(boxes.first.value + sum(box.value for box in boxes.rest))

    same(add(Boxes(Box(x), [Box(x), Box(x)])).value, 3 * x)
    with fails(ShapeError, "add: argument 'boxes.rest[0].value' has b=4, but argument 'boxes.first.value' has b=8"):
        add(Boxes(Box(x), [Box(x[:4])]))


def test_a_subclass_of_a_generic_class_stands_for_its_argument(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def scale(box: RowBox) -> X:
        return box.value * box.scale

    same(scale(RowBox(x, np.float32(2))), 2 * x)


# What is kept


def test_nothing_of_the_frame_is_kept(mesh: Mesh) -> None:
    class Big:
        pass

    def make() -> tuple[Any, Any]:
        big = Big()

        @typed_shard_map(mesh=mesh)
        def double(x: Nowhere) -> None: ...

        return double, weakref.ref(big)

    double, big = make()
    assert callable(double)
    assert big() is None
