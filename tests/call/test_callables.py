"""Whatever Python can call can be mapped: methods, closures, partials, lambdas, kernels, wrapped functions."""

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails, mesh_of, numbers, same
from jax.sharding import Mesh

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    Float,
    ShapeError,
    StructureError,
    explain,
    typed,
    typed_jit,
    typed_shard_map,
)

ALL = mesh_of(4, 2)
X = Float[Array, "[b/dp] d"]
W = Float[Array, "d [f/tp]"]
Y = Float[Array, "[b/dp] [f/tp]"]
x, w = numbers(8, 4), numbers(4, 6)
array, matrix, ZERO = jnp.asarray(x), jnp.asarray(w), jnp.float32(0)
VERBS = pytest.mark.parametrize(
    "verb", [typed, typed_shard_map(mesh=ALL), typed_jit(mesh=ALL)], ids=["typed", "typed_shard_map", "typed_jit"]
)


# Methods


def layers(verb: Any) -> Any:
    """A class whose methods of every kind are decorated."""

    class Layer:
        """A layer of so many features."""

        features = 4
        factor = 3

        def __init__(self, gain: float) -> None:
            self.gain = gain

        @verb
        def scaled(self, x: Float[Array, "[b/dp] {self.features}"], by: float = 1.0) -> X:
            """Scale x."""
            return x * self.gain * by

        @classmethod
        @verb
        def times(cls, x: X) -> X:
            return x * cls.factor

        @staticmethod
        @verb
        def doubled(x: X) -> X:
            return x * 2

        @verb
        def __call__(self, x: X) -> X:
            return x + self.gain

        @property
        @verb
        def gains(self) -> Float[Array, ""]:
            return jnp.float32(self.gain)

    return Layer


@VERBS
def test_methods_may_be_decorated(verb: Any) -> None:
    Layer = layers(verb)
    layer = Layer(5.0)
    same([layer.scaled(array), Layer.scaled(layer, array), layer.scaled(array, by=2.0)], [5 * x, 5 * x, 10 * x])
    same([layer(array), layer.gains], [x + 5, np.float32(5)])
    same([Layer.times(array), layer.times(array)], [x * 3] * 2)
    same([Layer.doubled(array), layer.doubled(array)], [x * 2] * 2)


WRONG_METHODS = [
    pytest.param(lambda layer: layer(5.0).scaled(array, "2"), StructureError,
        "Layer.scaled: argument 'by' is '2' (str), but its hint says float", id="a static argument"),
    pytest.param(lambda layer: layer.times(), StructureError, "Layer.times: argument 'x' is missing", id="classmethod"),
    pytest.param(lambda layer: layer.doubled(array[:6]), ShapeError,
        "Layer.doubled: argument 'x' has b=6, which does not divide over 'dp' (4 shards)", id="staticmethod"),
    pytest.param(lambda layer: layer(5.0)(array[0]), ShapeError,
        "Layer.__call__: argument 'x' has 1 dim, but its hint has 2", id="call"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "line"), WRONG_METHODS)
def test_methods_are_checked(call: Callable[[Any], Any], error: Any, line: str, mesh: Mesh) -> None:
    with fails(error, line):
        call(layers(typed_shard_map(mesh=mesh)))


def test_a_helper_leaves_what_has_no_hint() -> None:
    @typed
    def helper(first, x: X, *rest, flag=None, **named):
        return first, rest, flag, named

    assert helper("a", array, 1, [2], flag=3, more={}) == ("a", (1, [2]), 3, {"more": {}})
    with fails(ShapeError, "helper: argument 'x' has 1 dim, but its hint has 2"):
        helper("a", array[0])


class Scale:
    """Scale by a gain that may change."""

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def __call__(self, x: X) -> X:
        return x * self.gain

    def method(self, x: X, w: W) -> Y:
        return self.gain * x @ w


@VERBS
def test_a_bound_method_and_a_callable_instance_have_the_hints_of_their_class(verb: Any) -> None:
    same(verb(Scale(3.0).method)(array, w=matrix), 3 * x @ w)
    scaled = verb(Scale(3.0))
    assert scaled.__name__ == "Scale"
    same(scaled(array), 3 * x)
    with fails(ShapeError, "Scale: argument 'x' has 1 dim, but its hint has 2"):
        scaled(array[0])


# functools.partial


def affine(w: W, x: X, *, gain: float, shift: Float[Array, ""] = ZERO) -> Y:
    return x @ w * gain + shift


PARTIALS = {
    "by keyword": (functools.partial(affine, w=matrix, gain=2.0), lambda f: f(x=array, gain=3.0), x @ w * 3),
    "by position": (functools.partial(affine, matrix, gain=2.0), lambda f: f(array), x @ w * 2),
    "of a partial": (
        functools.partial(functools.partial(affine, gain=2.0), shift=jnp.float32(1)),
        lambda f: f(matrix, array),
        x @ w * 2 + 1,
    ),
}


@VERBS
@pytest.mark.parametrize(("partial", "call", "expected"), PARTIALS.values(), ids=PARTIALS)
def test_a_partial_has_the_hints_of_its_function(verb: Any, partial: Any, call: Any, expected: Any) -> None:
    decorated = verb(partial)
    assert (
        "x" in (parameters := inspect.signature(decorated).parameters) and len(parameters) < 4
    ) or partial.args == ()
    same(call(decorated), expected)
    with fails(ShapeError, "affine: argument 'x' has d=3, but argument 'w' has d=4"):
        call(lambda *args, **named: decorated(*args[:-1], **{**named, "x": array[:, :3]}))


def test_in_types_of_a_partial_are_those_of_what_it_leaves_open(mesh: Mesh) -> None:
    mapped = typed_shard_map(functools.partial(lambda n, x: x**n, 2), mesh=mesh, in_types=(X,), out_types=X)
    same(mapped(x), x**2)


def test_what_a_partial_binds_needs_no_hint(mesh: Mesh) -> None:
    def scale(x: X, by) -> X:
        return x * by

    same(typed_shard_map(functools.partial(scale, by=3), mesh=mesh)(x), x * 3)
    with fails(AnnotationSyntaxError, "scale: parameter 'by' has no hint"):
        typed_shard_map(scale, mesh=mesh)


# Methods that are decorated from outside


def described(verb: Any) -> Any:
    """A class whose descriptors are decorated."""

    class Table:
        """Some rows."""

        gain = 3

        def __init__(self) -> None:
            self.rows = array

        @verb
        @classmethod
        def times(cls, x: X) -> X:
            """Times the gain."""
            return x * cls.gain

        @verb
        @staticmethod
        def doubled(x: X) -> X:
            return x * 2

        @verb
        @property
        def total(self) -> Float[Array, ""]:
            """The sum of all rows."""
            return self.rows.sum()

        @verb
        @functools.cached_property
        def mean(self) -> Float[Array, ""]:
            return self.rows.mean()

        def powered(self, x: X, power: int) -> X:
            return x**power

        squared = verb(functools.partialmethod(powered, power=2))

    return Table


@VERBS
def test_a_descriptor_may_be_decorated_from_outside(verb: Any) -> None:
    cls = described(verb)
    table = cls()
    same([cls.times(array), table.times(array)], [x * 3] * 2)
    same([cls.doubled(array), table.doubled(array)], [x * 2] * 2)
    same([table.total, table.mean, table.squared(array)], [x.sum(), x.mean(), x**2])
    assert (cls.total.__doc__, cls.times.__doc__) == ("The sum of all rows.", "Times the gain.")

    class Heir(cls):
        gain = 5

    same(Heir.times(array), x * 5)
    with fails(ShapeError, "Table.times: argument 'x' has 3 dims, but its hint has 2"):
        cls.times(array[None])


def test_typed_checks_what_a_property_is_set_to() -> None:
    class Holder:
        @property
        def array(self) -> X:
            return self.held

        @array.setter
        def array(self, array: X) -> None:
            self.held = array

        array = typed(array)

    holder = Holder()
    holder.array = array
    same(holder.array, x)
    with fails(ShapeError, "Holder.array: argument 'array' has 1 dim, but its hint has 2"):
        holder.array = jnp.asarray(x[0])


def test_a_method_decorated_from_outside_is_explained() -> None:
    cls = described(typed_shard_map(mesh=ALL))
    assert [value.shape for value in explain(cls.times, b=8, d=4).values] == [(8, 4), (8, 4)]


# A decorator over another one


def doubled(x: Float[Array, "[b/rows] d"], times: int = 2) -> Float[Array, "[b/rows] d"]:
    return x * times


def test_a_decorator_takes_over_what_the_one_below_was_given() -> None:
    below = typed_shard_map(doubled, mesh=ALL, axes={"rows": "dp"})
    hint = Float[Array, "[b/rows] d"]
    by_types = typed_shard_map(lambda x: x * 2, mesh=ALL, axes={"rows": "dp"}, in_types=hint, out_types=hint)
    for inner in (below, by_types):
        jitted = typed_jit(inner)
        same(jitted(x), x * 2)
        assert jitted(x).sharding.spec == jax.sharding.PartitionSpec("dp", None)
    same(typed(below)(array), x * 2)
    same(typed(by_types)(array), x * 2)
    with fails(ShapeError, "<lambda>: argument 'x' has 1 dim, but its hint has 2"):
        typed(by_types)(jnp.asarray(x[0]))
    same(typed_shard_map(typed(doubled, axes={"rows": "dp"}), mesh=ALL)(x), x * 2)
    # What it is given itself wins.
    columns = typed_jit(by_types, axes={"rows": ("dp", "tp")})
    assert columns.lower(x).compile().input_shardings[0][0].spec == jax.sharding.PartitionSpec(("dp", "tp"), None)
    same(jax.grad(lambda x: typed_jit(below)(x).sum())(x), 2 * np.ones_like(x))


# in_types and out_types


def test_a_lambda_has_the_hints_that_it_is_given(mesh: Mesh) -> None:
    project = typed_shard_map(lambda x, w: x @ w, mesh=mesh, in_types=(X, W), out_types=Y)
    same(project(x, w), x @ w)
    same(project(x, w=w), x @ w)
    with fails(ShapeError, "<lambda>: argument 'w' has d=3, but argument 'x' has d=4"):
        project(x, w[:3])


def test_annotations_that_in_types_and_out_types_cover_are_not_looked_up(mesh: Mesh) -> None:
    def project(x: "OnlyForCheckers", w: "list[OnlyForCheckers]", gain: "int" = 1) -> "OnlyForCheckers":
        return x @ w * gain

    same(typed_shard_map(project, mesh=mesh, in_types=(X, W), out_types=Y)(x, w, gain=2), x @ w * 2)
    with fails(AnnotationSyntaxError, "project: the hint of the result names 'OnlyForCheckers', which is not defined"):
        typed_shard_map(project, mesh=mesh, in_types=(X, W))(x, w)
    line = "project: the hint of parameter 'w' names 'OnlyForCheckers', which is not defined"
    with fails(AnnotationSyntaxError, line):
        typed_shard_map(project, mesh=mesh, in_types=(X,), out_types=Y)(x, w)


def test_annotations_fill_what_in_types_leaves_open(mesh: Mesh) -> None:
    def affine(x, w: W, *, gain: int = 1) -> Y:
        return x @ w * gain

    same(typed_shard_map(affine, mesh=mesh, in_types=(X,))(x, w, gain=2), x @ w * 2)


def test_a_kernel_with_positional_arguments_only_has_hints_by_place(mesh: Mesh) -> None:
    def kernel(*args: Any) -> Any:
        return args[0] @ args[1]

    mapped = typed_shard_map(kernel, mesh=mesh, in_types=(X, W), out_types=Y)
    same(mapped(x, w), x @ w)
    with fails(StructureError, "kernel: got 1 positional arguments, but in_types has 2"):
        mapped(x)
    with fails(ShapeError, "kernel: argument 'args[1]' has d=3, but argument 'args[0]' has d=4"):
        mapped(x, w[:3])


@pytest.mark.parametrize("kernel", [operator.matmul, jnp.matmul], ids=["operator.matmul", "jnp.matmul"])
def test_a_function_that_is_not_the_users_is_mapped(kernel: Any, mesh: Mesh) -> None:
    same(typed_shard_map(kernel, mesh=mesh, in_types=(X, W), out_types=Y)(x, w), x @ w)


@pytest.mark.parametrize(
    ("function", "types", "line"),
    [
        (lambda x: x, {"in_types": (X, X), "out_types": X}, "in_types= has 2 hints for 1 positional parameters"),
        (lambda x, w: x @ w, {"in_types": (X,), "out_types": Y}, "parameter 'w' has no hint"),
        (lambda x: x, {"in_types": (X,)}, "the result has no hint"),
    ],
)
def test_hints_that_do_not_fit_the_parameters_are_refused_at_decoration(
    function: Any, types: dict[str, Any], line: str, mesh: Mesh
) -> None:
    with fails(AnnotationSyntaxError, f"<lambda>: {line}"):
        typed_shard_map(function, mesh=mesh, **types)


def test_out_types_none_means_that_nothing_is_returned(mesh: Mesh) -> None:
    assert typed_shard_map(lambda x: None, mesh=mesh, in_types=(X,), out_types=None)(x) is None
    with fails(StructureError, "<lambda>: return value is an array, but its hint says None"):
        typed_shard_map(lambda x: x, mesh=mesh, in_types=(X,), out_types=None)(x)


class Shy:
    """What is no function, and does not show itself."""

    def __repr__(self) -> str:
        raise RuntimeError("not for you")


@pytest.mark.parametrize("verb", [typed_shard_map, typed])
@pytest.mark.parametrize(
    ("value", "got"),
    [(3, "3 of type int"), ("f", "'f' of type str"), pytest.param(Shy(), "a Shy of type Shy", id="shy")],
)
def test_what_cannot_be_called_is_refused(verb: Any, value: Any, got: str) -> None:
    with fails(StructureError, f"expects a function, got {got}"):
        verb(value)


# Wrapped functions


def project(x: X, w: W, scale: int = 1) -> Y:
    """Project x."""
    return x @ w * scale


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


WRAPPERS = [
    pytest.param(lambda f: jax.jit(f, static_argnames="scale"), id="jit"),
    pytest.param(jax.checkpoint, id="checkpoint"),
    pytest.param(logged, id="functools.wraps"),
    pytest.param(lambda f: logged(logged(f)), id="functools.wraps twice"),
    pytest.param(lambda f: jax.jit(jax.checkpoint(logged(f)), static_argnames="scale"), id="stack"),
    pytest.param(lambda f: typed(f), id="typed"),
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_function_keeps_its_hints_and_a_mapped_one_can_be_wrapped(wrapper: Any, mesh: Mesh) -> None:
    for wrapped in (typed_shard_map(wrapper(project), mesh=mesh), wrapper(typed_shard_map(project, mesh=mesh))):
        same(wrapped(array, w=matrix), x @ w)
        with fails(ShapeError, "project: argument 'w' has d=3, but argument 'x' has d=4"):
            wrapped(array, matrix[:3])


@pytest.mark.sample(3)
@pytest.mark.parametrize("inner", WRAPPERS)
@pytest.mark.parametrize("outer", WRAPPERS)
def test_typed_may_be_anywhere_in_a_stack(inner: Callable[..., Any], outer: Callable[..., Any]) -> None:
    stacked = outer(typed(inner(project)))
    same(stacked(array, matrix), x @ w)
    with fails(ShapeError, "project: argument 'w' has d=3, but argument 'x' has d=4"):
        stacked(array, matrix[:3])


@VERBS
def test_a_decorated_function_looks_like_the_function(verb: Any) -> None:
    decorated = verb(project)
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        assert getattr(decorated, name) == getattr(project, name)
    assert inspect.signature(decorated) == inspect.signature(project)
    assert decorated.__wrapped__ is project and inspect.unwrap(verb(logged(project))) is project
    partial = verb(functools.partial(project, x))
    assert (partial.__name__, list(inspect.signature(partial).parameters)) == ("project", ["w", "scale"])
