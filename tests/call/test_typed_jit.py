"""`typed_jit` compiles what `jax.jit` compiles with the shardings of the hints, and checks both sides."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails, mesh_of, numbers, same
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from lines import unplaced

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    DtypeError,
    Float,
    Key,
    MeshAxisError,
    PyTree,
    ShapeError,
    ShardingError,
    StructureError,
    axis_aliases,
    axis_rules,
    check,
    psum,
    size,
    sizes,
    typed,
    typed_jit,
    typed_shard_map,
)
from typedshmap._jax.versions import HAS_MANUAL_TYPES

X = Float[Array, "[b/dp] m"]
W = Float[Array, "m [f/tp]"]
Y = Float[Array, "[b/dp] [f/tp]"]
x, w = numbers(8, 16), numbers(16, 32)


MESH = mesh_of(4, 2)
EXPLICIT = mesh_of(4, 2, kind=AxisType.Explicit)
BACKWARDS = Mesh(MESH.devices[::-1, ::-1], MESH.axis_names)


def placed(array: Any, *spec: Any, mesh: Mesh = MESH) -> jax.Array:
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def on(*spec: Any, mesh: Any = MESH) -> NamedSharding:
    return NamedSharding(mesh, P(*spec))


def multiply(x: X, w: W) -> Y:
    return x @ w


class Weights(NamedTuple):
    w: W
    bias: Float[Array, "[f/tp]"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    w: W
    name: str = dataclasses.field(metadata={"static": True}, default="state")


weights = Weights(w, numbers(32))


class Counted:
    """A function that counts how often its body runs."""

    def __init__(self, body: Callable[..., Any] = lambda x, w: x @ w) -> None:
        self.body, self.runs = body, 0

    def jitted(self, **options: Any) -> Callable[..., Any]:
        def count(x: X, w: W, n: int = 1, s: str = "") -> Y:
            self.runs += 1
            return self.body(x, w) * n

        return typed_jit(count, **{"mesh": MESH, **options})


# The program is that of jax.jit


def affine(weights: Weights, x: X) -> Y:
    return x @ weights.w + weights.bias


def pair(x: X, y: Y) -> tuple[X, dict[str, Y]]:
    return x * 2, {"y": y + 1}


def summed(x: X, y: Y) -> Float[Array, ""]:
    return x.sum() * y.sum()


def named(weights: Weights) -> Weights:
    return Weights(weights.w * 2, weights.bias)


def stepped(state: State, x: X) -> State:
    return dataclasses.replace(state, w=state.w + x.sum())


def trees(tree: PyTree[Float[Array, "... [b/dp]"]]) -> PyTree[Float[Array, "... [b/dp]"]]:
    return jax.tree.map(jnp.sin, tree)


def over_both(x: Float[Array, "[b/dp,tp] m"]) -> list[Float[Array, "m [b/tp,dp]"]]:
    return [x.T, x.T * 2]


def sampled(key: Key[Array, ""]) -> Float[Array, "[b/dp]"]:
    return jax.random.normal(key, (8,))


def scanned(x: X) -> X:
    return jax.lax.scan(lambda carry, _: (jnp.tanh(carry), None), x, None, length=3)[0]


def absent(x: X, w: W | None = None) -> X:
    return x if w is None else x + w.sum()


dp, tp, whole = on("dp", None), on(None, "tp"), on()
both = on("dp", "tp")
PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...], Any, Any]] = [
    (multiply, (x, w), (dp, tp), both),
    (affine, (weights, x), (Weights(tp, on("tp")), dp), both),
    (pair, (x, numbers(8, 32)), (dp, both), (dp, {"y": both})),
    (summed, (x, numbers(8, 32)), (dp, both), whole),
    (named, (weights,), (Weights(tp, on("tp")),), Weights(tp, on("tp"))),
    (stepped, (State(w), x), (State(tp), dp), State(tp)),
    (trees, ([numbers(3, 8), {"a": numbers(8)}],), ([tp_ := on(None, "dp"), {"a": on("dp")}],), [tp_, {"a": on("dp")}]),
    (over_both, (numbers(8, 4),), (on(("dp", "tp"), None),), [on(None, ("tp", "dp"))] * 2),
    (sampled, (jax.random.key(0),), (whole,), on("dp")),
    (scanned, (x,), (dp,), dp),
    (absent, (x, None), (dp, None), dp),
    (absent, (x, w), (dp, tp), dp),
]
NAMES = [f"{program[0].__name__}-{at}" for at, program in enumerate(PROGRAMS)]


@pytest.mark.parametrize(("function", "args", "ins", "outs"), PROGRAMS, ids=NAMES)
def test_the_lowered_text_is_that_of_jax_jit_with_shardings(function: Any, args: Any, ins: Any, outs: Any) -> None:
    by_hand = jax.jit(function, in_shardings=ins, out_shardings=outs).lower(*args)
    assert typed_jit(function, mesh=MESH).lower(*args).as_text() == by_hand.as_text()


@pytest.mark.sample(3)
@pytest.mark.parametrize(("function", "args", "ins", "outs"), PROGRAMS, ids=NAMES)
def test_values_and_shardings_are_those_of_jax_jit(function: Any, args: Any, ins: Any, outs: Any) -> None:
    expected = jax.block_until_ready(jax.jit(function, in_shardings=ins, out_shardings=outs)(*args))
    got = jax.block_until_ready(typed_jit(function, mesh=MESH)(*args))
    same(got, expected)
    assert jax.tree.map(lambda a: a.sharding, got) == jax.tree.map(lambda a: a.sharding, expected)


def test_a_text_with_another_sharding_differs() -> None:
    by_hand = jax.jit(multiply, in_shardings=(dp, tp), out_shardings=dp).lower(x, w)
    assert typed_jit(multiply, mesh=MESH).lower(x, w).as_text() != by_hand.as_text()


def test_the_text_on_an_explicit_mesh_is_that_of_jax_jit() -> None:
    shardings = {"in_shardings": (on("dp", mesh=EXPLICIT), on(None, "tp", mesh=EXPLICIT))}
    by_hand = jax.jit(multiply, **shardings, out_shardings=on("dp", "tp", mesh=EXPLICIT))
    put = placed(x, "dp", None, mesh=EXPLICIT), placed(w, None, "tp", mesh=EXPLICIT)
    expected = by_hand.lower(*put).as_text()
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in put]
    ours = typed_jit(multiply, mesh=EXPLICIT)
    assert [ours.lower(*args).as_text() == expected for args in (put, (x, w), structs)] == [True] * 3


def test_the_text_with_donation_is_that_of_jax_jit() -> None:
    by_hand = jax.jit(scanned, in_shardings=dp, out_shardings=dp, donate_argnums=0).lower(x).as_text()
    assert typed_jit(scanned, mesh=MESH, donate_argnums=0).lower(x).as_text() == by_hand
    assert "tf.aliasing_output" in by_hand or "jax.buffer_donor" in by_hand


# Arguments


def everything(a: X, /, b: X, *rest: X, c: X, d: float = 2.0, **more: X) -> X:
    return (a + b + sum(rest) + c + sum(more.values())) * d


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "expected"),
    [
        (everything, (x, x), {"c": x}, 6 * x),
        (everything, (x,), {"b": x, "c": x, "d": 1.0}, 3 * x),
        (everything, (x, x, x, x), {"c": x, "z": x, "y": x}, 14 * x),
        (everything, (x, x), {"c": x, "a": x}, 8 * x),
        (functools.partial(everything, x, c=x), (x,), {}, 6 * x),
    ],
)
def test_arguments_come_in_every_way(function: Any, args: Any, kwargs: Any, expected: np.ndarray) -> None:
    got = typed_jit(function, mesh=MESH)(*args, **kwargs)
    same(got, expected)
    assert got.sharding.is_equivalent_to(dp, 2)


@pytest.mark.parametrize(
    "given",
    [x, x.astype(np.float64), jnp.asarray(x), placed(x, "dp"), jax.device_put(x)],
    ids=["numpy", "numpy of another width", "uncommitted", "placed", "put without a place"],
)
def test_what_is_not_placed_is_placed(given: Any) -> None:
    got = typed_jit(multiply, mesh=MESH)(given, w)
    same(got, x @ w)
    assert got.sharding.is_equivalent_to(both, 2)


def test_an_any_argument_that_jax_does_not_take_is_named() -> None:
    @typed_jit(mesh=MESH)
    def add(x: X, more: Any) -> X:
        return x

    with fails(StructureError, "add: argument 'more['s']' is 'a' (str), but annotated as Any, and so traced"):
        add(x, {"s": "a"})


# Static values


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Named:
    w: W
    names: list[str] = dataclasses.field(metadata={"static": True}, default_factory=list)


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by


ONE, TWO = Scale(1.0), Scale(2.0)
# Values of an argument, and which trace each of them takes.
TRACES: dict[str, tuple[Any, tuple[Any, ...], tuple[int, ...]]] = {
    "numbers": (int, (1, 2, 1, 2), (1, 2, 1, 2)),
    "an int and a bool": (int, (1, True), (1, 2)),
    "a negative number": (int, (-1, -1), (1, 1)),
    "zeros": (float, (0.0, -0.0), (1, 2)),
    "lists": (list[int], ([1, 2], [1, 2], [1, 3]), (1, 1, 2)),
    "dicts, in the order of their keys": (dict[str, int], ({"b": 2, "a": 1}, {"a": 1, "b": 2}), (1, 1)),
    "objects": (Scale, (ONE, TWO, ONE), (1, 2, 1)),
    "beside arrays": (tuple[X, int | str], ((x, 2), (x + 1, 2), (x, "a"), (x, 3)), (1, 1, 2, 3)),
    "fields": (Named, (Named(w, ["a"]), Named(2 * w, ["a"]), Named(w, ["b"])), (1, 1, 2)),
    "what is hinted Any": (Any, ({"n": 1, "w": placed(w, "tp")}, {"n": 2, "w": placed(w, "tp")}), (1, 1)),
}


@pytest.mark.parametrize(("hint", "values", "traces"), TRACES.values(), ids=TRACES)
def test_what_is_static_and_has_another_value_is_another_trace(hint: Any, values: Any, traces: Any) -> None:
    runs: list[Any] = []

    @typed_jit(mesh=MESH)
    def f(x: X, value: hint) -> X:
        runs.append(value)
        return x + len(runs)

    for value, trace in zip(values, traces, strict=True):
        same(f(x, value), x + trace)


def test_the_arrays_of_a_module_are_traced_and_another_instance_is_another_trace() -> None:
    runs: list[int] = []

    class Layer(Named):
        @typed_jit(mesh=MESH)
        def apply(self, x: X) -> Y:
            runs.append(1)
            return x @ self.w

    class Model(Scale):
        @typed_jit(mesh=MESH)
        def apply(self, x: X) -> X:
            return x * self.by

    jax.tree_util.register_dataclass(Layer, ["w"], ["names"])
    same((Layer(w).apply(x), Layer(w * 2).apply(x)), (x @ w, 2 * x @ w))
    assert len(runs) == 1
    same((Model(2.0).apply(x), Model(3.0).apply(x=x)), (2 * x, 3 * x))


@pytest.mark.parametrize("option", [{"static_argnums": 1}, {"static_argnums": (-1,)}, {"static_argnames": "n"}])
def test_static_parameters_are_chosen_as_for_jax_jit(option: dict[str, Any]) -> None:
    def repeat(x: X, n: Any) -> X:
        return x * len(range(n))

    jitted = typed_jit(repeat, mesh=MESH, **option)
    same((jitted(x, 2), jitted(x, n=3)), (2 * x, 3 * x))


def test_static_parameters_may_stand_among_many() -> None:
    def fold(x: X, *more: Any) -> X:
        return x * len(range(more[0])) + more[1]

    same(typed_jit(fold, mesh=MESH, static_argnums=1)(x, 2, 3.0), 2 * x + 3)


def test_each_member_of_a_union_has_its_sharding() -> None:
    @typed_jit(mesh=MESH)
    def double(x: Float[Array, "[b/dp] 16"] | Float[Array, "b [m/tp]"]) -> Float[Array, "..."]:
        return x * 2

    for given, spec in ((x, P("dp", None)), (w, P(None, "tp")), (x, P("dp", None))):
        same(double(given), given * 2)
        lowered = double.lower(given).compile()
        assert lowered.input_shardings[0][0].spec == spec


def test_an_array_for_a_static_parameter_is_refused() -> None:
    line = "count: argument 'n' is an array, but its hint int holds none, so the argument is static"
    with fails(StructureError, line):
        Counted().jitted()(x, w, jnp.ones(()))


# Donation


def test_donation_reaches_keywords_and_many_arguments() -> None:
    def add(x: X, *rest: X, last: X) -> X:
        return x + rest[0] + rest[1] * last

    def deleted(**options: Any) -> list[bool]:
        given = [placed(x, "dp") for _ in range(4)]
        jax.block_until_ready(typed_jit(add, mesh=MESH, **options)(*given[:3], last=given[3]))
        return [each.is_deleted() for each in given]

    assert deleted(donate_argnums=(-1,)) == [False, False, True, False]
    assert deleted(donate_argnums=1) == [False, True, False, False]
    assert deleted(donate_argnums=0) == [True, False, False, False]
    assert deleted(donate_argnames="last") == [False, False, False, True]


def test_donation_of_a_tree_gives_all_of_it_away() -> None:
    given = Weights(placed(w, None, "tp"), placed(weights.bias, "tp"))
    jax.block_until_ready(typed_jit(named, mesh=MESH, donate_argnames="weights")(given))
    assert [each.is_deleted() for each in given] == [True, True]


# Options


def two(x: X, n: int) -> X:
    return x * n


@pytest.mark.parametrize(
    ("options", "error", "line"),
    [
        ({"in_shardings": dp}, StructureError,
         "two: typed_jit does not take in_shardings=, since the hints give the shardings"),
        ({"out_shardings": dp}, StructureError, None),
        ({"static_argnames": "z"}, StructureError,
         "two: static_argnames= names 'z', which is not one of its parameters ('x', 'n')"),
        ({"donate_argnums": 2}, StructureError, "two: donate_argnums= has 2, but two takes 2 by position"),
        ({"donate_argnums": "x"}, StructureError, "two: donate_argnums= expects a number, or several; got 'x'"),
        ({"static_argnames": 1}, StructureError, "two: static_argnames= expects a parameter's name, or several; got 1"),
        ({"static_argnames": "n", "donate_argnums": 1}, StructureError,
         "two: parameter 'n' is both static and donated, but a static argument has no buffers"),
        ({"unknown": 1}, TypeError, "jit() got an unexpected keyword argument 'unknown'"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_options_are_refused_when_decorating(options: Any, error: Any, line: Any) -> None:
    with pytest.raises(error) as caught:
        typed_jit(two, mesh=MESH, **options)
    assert line is None or unplaced(caught.value) == line


def test_an_option_that_contradicts_a_hint_is_refused() -> None:
    with fails(StructureError, "two: parameter 'x' is to be static, but its hint holds arrays"):
        typed_jit(two, mesh=MESH, static_argnames="x")(x, 1)


def test_options_are_handed_on() -> None:
    jitted = typed_jit(
        multiply, mesh=MESH, keep_unused=True, inline=True, compiler_options={"xla_embed_ir_in_executable": True}
    )
    same(jitted(x, w), x @ w)


def test_a_parameter_without_a_hint_is_refused_when_decorating() -> None:
    with fails(AnnotationSyntaxError, "bare: parameter 'y' has no hint"):

        @typed_jit
        def bare(x: X, y) -> X:  # type: ignore[no-untyped-def]
            return x


# The mesh

UNKNOWN = "mesh= is not given, none is ambient, and no argument was placed on one"


def test_the_mesh_is_the_ambient_one() -> None:
    counted = Counted()
    jitted = counted.jitted(mesh=None)
    for mesh in (MESH, mesh_of(2, 4), BACKWARDS, mesh_of(1, 1), MESH):
        with jax.set_mesh(mesh):
            got = jitted(x, w)
        same(got, x @ w)
        assert got.sharding == NamedSharding(mesh, P("dp", "tp"))
    assert counted.runs == 4
    with fails(MeshAxisError, f"count: no mesh is known: {UNKNOWN}"):
        jitted(x, w)


def test_the_mesh_is_the_arguments_own() -> None:
    jitted = Counted().jitted(mesh=None)
    for mesh in (MESH, mesh_of(2, 4)):
        assert jitted(placed(x, "dp", mesh=mesh), w).sharding == NamedSharding(mesh, P("dp", "tp"))


def test_an_abstract_mesh_takes_its_devices_from_the_arguments() -> None:
    abstract = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    got = Counted().jitted(mesh=abstract)(placed(x, "dp"), w)
    assert got.sharding == both
    same(got, x @ w)


def whole_on_no_mesh(array: Any, mesh: Mesh) -> jax.Array:
    """An array that is whole on the devices of a mesh, in their order, by a sharding that knows no mesh."""
    found: list[Any] = []

    def ask(array: jax.Array) -> None:
        jax.debug.inspect_array_sharding(array, callback=found.append)

    with jax.set_mesh(mesh):
        jax.jit(ask).lower(array).compile()
    assert not isinstance(found[0], NamedSharding)
    return jax.device_put(array, found[0])


def doubled(w: Float[Array, "m f"]) -> Float[Array, "m f"]:
    return 2 * w


@pytest.mark.parametrize("mesh", [MESH, BACKWARDS], ids=["in order", "reversed"])
@pytest.mark.parametrize("verb", [typed_jit, typed_shard_map])
def test_an_array_that_is_replicated_on_the_devices_needs_no_mesh_of_its_own(verb: Any, mesh: Mesh) -> None:
    same(verb(doubled, mesh=mesh)(whole_on_no_mesh(w, mesh)), 2 * w)


IN_ORDER, REVERSED = "8 devices (0, 1, 2, 3, 4, 5, 6, 7)", "8 devices (7, 6, 5, 4, 3, 2, 1, 0)"


def test_an_array_that_is_replicated_on_devices_in_another_order_is_reported() -> None:
    with fails(ShardingError, f"doubled: argument 'w' is on {REVERSED}, but the mesh on {IN_ORDER}"):
        typed_shard_map(doubled, mesh=MESH)(whole_on_no_mesh(w, BACKWARDS))


@pytest.mark.parametrize("verb", [typed_jit, typed_shard_map])
def test_a_mesh_on_other_devices_than_the_ambient_one_is_an_error(verb: Any) -> None:
    line = f"scanned: its mesh is on {REVERSED}, but the ambient one on {IN_ORDER}"
    with jax.set_mesh(MESH), fails(MeshAxisError, line):
        verb(scanned, mesh=BACKWARDS)(x)


def test_a_call_inside_a_manual_region_is_an_error() -> None:
    inner = typed_jit(scanned, mesh=MESH)
    outer = typed_shard_map(lambda x: inner(x), mesh=MESH, in_types=X, out_types=X)
    line = "scanned: is a typed_jit, called inside a manual region over 'dp', 'tp', where arrays are shards"
    with fails(MeshAxisError, line):
        outer(x)


# Wrong arguments


WRONG: list[tuple[Any, Any, type[Exception], str]] = [
    (x, w[:8], ShapeError, "count: argument 'w' has m=8, but argument 'x' has m=16"),
    (x[:6], w, ShapeError, "count: argument 'x' has b=6, which does not divide over 'dp' (4 shards)"),
    (x.astype(np.int32), w, DtypeError, "count: argument 'x' has dtype int32, but its hint says Float"),
    ([x], w, StructureError, "count: argument 'x' is a list, but its hint says Array"),
    (placed(x, "tp"), w, ShardingError, "count: argument 'x' is sharded P('tp'), but its hint says P('dp', None)"),
    (placed(x), w, ShardingError, "count: argument 'x' is sharded P(), but its hint says P('dp', None)"),
    (jax.device_put(x, jax.devices()[0]), w, ShardingError,
     "count: argument 'x' is on device 0, not on the mesh, but its hint says P('dp', None)"),
    (placed(x, "dp", mesh=BACKWARDS), w, ShardingError,
     f"count: argument 'x' is sharded P('dp') on {REVERSED}, but its hint says P('dp', None) on {IN_ORDER}"),
    (placed(x, "dp", mesh=mesh_of(2, 4)), w, ShardingError,
     "count: argument 'x' is sharded P('dp') over dp=2, tp=4, but its hint says P('dp', None) over dp=4, tp=2"),
]  # fmt: skip


@pytest.mark.parametrize(("x", "w", "error", "line"), WRONG)
def test_wrong_arguments_are_refused_before_the_function_runs(x: Any, w: Any, error: Any, line: str) -> None:
    counted = Counted()
    with fails(error, line):
        counted.jitted()(x, w)
    assert counted.runs == 0


def test_jax_refuses_the_shardings_that_are_refused_here() -> None:
    by_hand = jax.jit(multiply, in_shardings=(dp, tp))
    for array in (placed(x, "tp"), placed(x), jax.device_put(x, jax.devices()[0]), placed(x, "dp", mesh=mesh_of(2, 4))):
        with pytest.raises(ValueError, match="does not match the sharding"):
            by_hand(array, w)


def test_a_wrong_leaf_is_named_by_its_path_under_grad_too() -> None:
    line = "affine: argument 'weights.bias' is sharded P(), but its hint says P('tp')"
    for call in (lambda f: f, jax.grad):
        with fails(ShardingError, line):
            call(lambda bias: typed_jit(affine, mesh=MESH)(Weights(w, bias), x).sum())(placed(weights.bias))


def test_a_mark_over_an_auto_axis_is_refused() -> None:
    def f(x: Float[Array, "b m -tp"]) -> Float[Array, ""]:
        return x.sum()

    with pytest.raises(ShardingError, match=r"^f: argument 'x' is marked '-tp' in its hint, but mesh axis 'tp' is of"):
        typed_jit(f, mesh=MESH)(x)


# The result


@pytest.mark.parametrize(
    ("result", "hint", "error", "line"),
    [
        (lambda x: x[:, :3], X, ShapeError, "return value has m=3, but argument 'x' has m=16"),
        (lambda x: x[:4], X, ShapeError, "return value has b=4, but argument 'x' has b=8"),
        (lambda x: x[:, :3], Y, ShapeError, "return value has f=3, which does not divide over 'tp' (2 shards)"),
        (lambda x: [(x, x), (x[:4], x)], list[tuple[X, Y]], ShapeError,
         "return[1][0] has b=4, but argument 'x' has b=8"),
        (lambda x: x > 0, X, DtypeError, "return value has dtype bool, but its hint says Float"),
        (lambda x: (x, x), X, StructureError, "return value is a tuple, but its hint says Array"),
        (lambda x: None, X, StructureError, "return value is None, but its hint says Array"),
        (lambda x: "text", X, StructureError, "return value is 'text' (str), but its hint says Array"),
    ],
)  # fmt: skip
def test_a_wrong_result_is_refused_when_it_is_traced(result: Any, hint: Any, error: Any, line: str) -> None:
    @typed_jit(mesh=MESH)
    def f(x: X) -> hint:
        return result(x)

    for call in (f.eval_shape, f):
        with fails(error, f"f: {line}"):
            call(x)


def test_an_open_result_is_traced_once() -> None:
    runs = []

    @typed_jit(mesh=MESH)
    def split(x: X) -> list[tuple[Float[Array, "... [n/dp]"], X]]:
        runs.append(1)
        return [(x.T, x), (x[:, 0], x)]

    for _ in range(3):
        got = split(x)
    assert [[a.sharding.spec for a in pair] for pair in got] == [
        [P(None, "dp"), P("dp", None)],
        [P("dp"), P("dp", None)],
    ]
    assert len(runs) == 1
    split(x[:4])
    assert len(runs) == 2


def test_an_open_result_may_depend_on_the_shapes() -> None:
    @typed_jit(mesh=MESH)
    def rows(x: Float[Array, "b m"]) -> list[Float[Array, "... [n/dp]"]]:
        return [row.reshape(2, -1) if len(x) == 2 else row for row in x]

    assert [a.sharding.spec for a in rows(x[:2])] == [P(None, "dp")] * 2
    assert [a.sharding.spec for a in rows(x[:3])] == [P("dp")] * 3


def test_jax_names_the_functions_own_arguments() -> None:
    @typed_jit(mesh=MESH)
    def f(weights: Weights, x: X) -> X:
        return x if weights.bias.sum() > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"the argument weights\.bias"):
        f(weights, x)


# Inside


def test_it_compiles_a_typed_shard_map() -> None:
    @typed_jit(mesh=MESH)
    @typed_shard_map(mesh=MESH)
    def total(x: X) -> Float[Array, "m"]:
        return psum(x.sum(0), "m +dp -> m")

    same(total(x), x.sum(0))
    assert total(x=placed(x, "dp")).sharding == on(None)


def test_one_inside_another_has_the_mesh() -> None:
    inner = typed_jit(multiply)

    @typed_jit(mesh=MESH)
    def outer(x: X, w: W) -> Y:
        return inner(x, w) + 1

    same(outer(x, w), x @ w + 1)


def test_sizes_are_bound_in_the_body() -> None:
    seen = []

    @typed
    def helper(x: Float[Array, "rows m"]) -> Float[Array, "rows m"]:
        seen.append(sizes())
        return x

    @typed_jit(mesh=MESH)
    def f(x: X, w: W) -> Y:
        seen.append((size("b"), size("f")))
        return helper(x) @ w

    f(x, w)
    assert seen == [(8, 32), {"rows": 8, "m": 16}]


def test_check_in_the_body_knows_the_sizes() -> None:
    @typed_jit(mesh=EXPLICIT)
    def f(x: X, w: W) -> Y:
        return check(x[:4] @ w, "b f")

    with fails(ShapeError, "f: checked value has b=4, but argument 'x' has b=8"):
        f(x, w)


# Caching


def test_a_static_list_is_the_programs_own() -> None:
    @typed_jit(mesh=MESH)
    def count(x: X, seen: list[int]) -> X:
        seen.append(1)
        return x * len(seen)

    mine = [1]
    for _ in range(2):
        same(count(x, mine), x * 2)
    assert mine == [1]


ON_ONE = jax.device_put(np.float32(2), jax.devices()[0])


def scaled(x: X, tree: dict[str, W], by: Float[Array, ""], n: int = 1) -> X:
    return x * by * n + sum(w.sum() for w in tree.values())


def incremented(x: X) -> X:
    return x + 1


def first_call() -> dict[str, Any]:
    """The arguments of a call that others come after: an array, a tree, a number that is traced, a static one."""
    return {"x": placed(x, "dp"), "tree": {"a": placed(w, None, "tp")}, "by": placed(np.float32(2)), "n": 1}


# What another call has else, and whether jax.jit traces it anew: the mesh that an array is on is in its type.
OTHER_CALLS: dict[str, tuple[Callable[[], dict[str, Any]], bool]] = {
    "nothing": (dict, False),
    "other values": (lambda: {"x": placed(x + 1, "dp")}, False),
    "a shape": (lambda: {"x": placed(x[:4], "dp")}, True),
    "a dtype": (lambda: {"x": placed(x.astype(jnp.bfloat16), "dp")}, True),
    "a weak type": (lambda: {"by": jnp.asarray(2.0)}, True),
    "an uncommitted array": (lambda: {"x": jnp.asarray(x)}, True),
    "an array of NumPy": (lambda: {"x": x}, True),
    "a number of Python": (lambda: {"by": 2.0}, True),
    "a sharding that is the same": (lambda: {"x": placed(x, "dp", None)}, False),
    "the same sharding over another mesh": (lambda: {"x": jax.device_put(x, on(("a", "b"), mesh=SPLIT))}, True),
    "a structure": (lambda: {"tree": {"a": w, "b": placed(w, None, "tp")}}, True),
    "a key of the tree": (lambda: {"tree": {"b": placed(w, None, "tp")}}, True),
    "a static value": (lambda: {"n": 2}, True),
    "a static value of another type": (lambda: {"n": True}, True),
}
SPLIT = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("a", "b", "c"))


@pytest.mark.sample(3)
@pytest.mark.parametrize("what", OTHER_CALLS)
def test_a_call_after_two_like_each_other_is_its_own(what: str) -> None:
    make, is_new = OTHER_CALLS[what]
    runs: list[int] = []

    def counted(x: X, tree: dict[str, W], by: Float[Array, ""], n: int = 1) -> X:
        runs.append(n)
        return scaled(x, tree, by, n)

    f, other = typed_jit(counted, mesh=MESH), {**first_call(), **make()}
    for arguments in (first_call(), first_call(), other, other, first_call(), other):
        got = jax.block_until_ready(f(**arguments))
        want = np.asarray(arguments["x"]) * 2 * arguments["n"] + len(arguments["tree"]) * w.sum()
        np.testing.assert_allclose(np.asarray(got, np.float32), want.astype(np.float32), rtol=2e-2, atol=1)
    assert len(runs) == 1 + is_new


WRONG_CALLS: dict[str, tuple[Callable[[], dict[str, Any]], Any]] = {
    "a shape that does not divide": (lambda: {"x": x[:6]}, ShapeError),
    "a size": (lambda: {"x": placed(x[:, :8], "dp")}, ShapeError),
    "a rank": (lambda: {"x": placed(x[0], None)}, ShapeError),
    "a dtype": (lambda: {"x": placed(x.astype(np.int32), "dp")}, DtypeError),
    "a sharding": (lambda: {"x": placed(x, "tp")}, ShardingError),
    "a sharding of a leaf": (lambda: {"tree": {"a": placed(w, "tp")}}, ShardingError),
    "devices in another order": (lambda: {"x": placed(x, "dp", mesh=BACKWARDS)}, ShardingError),
    "one device": (lambda: {"by": ON_ONE}, ShardingError),
    "a structure": (lambda: {"tree": [w]}, StructureError),
    "no array": (lambda: {"x": "text"}, StructureError),
    "an array for a static one": (lambda: {"n": w}, StructureError),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("what", WRONG_CALLS)
def test_a_wrong_call_after_right_ones_is_refused_each_time(what: str) -> None:
    make, error = WRONG_CALLS[what]
    f, wrong = typed_jit(scaled, mesh=MESH), {**first_call(), **make()}
    for _ in range(2):
        jax.block_until_ready([f(**first_call()) for _ in range(2)])
        for _ in range(2):
            with pytest.raises(error):
                f(**wrong)
        jax.block_until_ready([f(*first_call().values()) for _ in range(2)])
        with pytest.raises(error):
            f(*wrong.values())


def test_a_wrong_call_is_refused_though_jax_has_run_one_like_it() -> None:
    """JAX moves what is on other devices, and remembers that it has."""
    f, by_hand = typed_jit(incremented, mesh=MESH), jax.jit(incremented, in_shardings=on("dp"))
    other = placed(x, "dp", mesh=BACKWARDS)
    assert by_hand(other).shape == by_hand(placed(x, "dp")).shape
    for value in (placed(x, "dp"), placed(x, "dp")):
        f(value).block_until_ready()
    for _ in range(3):
        with pytest.raises(ShardingError, match="argument 'x' is sharded"):
            f(other)
        assert f(placed(x, "dp")).sharding.mesh == MESH


def test_a_call_that_jax_has_seen_is_not_looked_at_leaf_by_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    f = typed_jit(scaled, mesh=MESH)
    jax.block_until_ready([f(**first_call()) for _ in range(2)])
    monkeypatch.delattr("typedshmap.jit.call.JitCall")
    monkeypatch.delattr("typedshmap.jit.call.dispatch_leaves")
    jax.block_until_ready(f(**first_call()))
    with pytest.raises(NameError):
        f(**first_call() | {"by": placed(np.float32(2), mesh=BACKWARDS)})


def test_a_call_like_the_last_one_sees_what_surrounds_it() -> None:
    def same_as(x: Float[Array, "[b/rows] m"]) -> Float[Array, "[b/rows] m"]:
        return x

    f, value = typed_jit(same_as, axes={"rows": "dp"}, rules=[("m", "tp")]), placed(x, "dp", "tp")
    for _ in range(2):
        assert jax.block_until_ready(f(value)).sharding.spec == P("dp", "tp")
    with pytest.raises(MeshAxisError), jax.set_mesh(Mesh(jax.devices()[:4], "tp")):
        f(value)
    assert jax.block_until_ready(f(value)).sharding.spec == P("dp", "tp")

    g = typed_jit(same_as, mesh=MESH)
    for axes in ("dp", "dp", ("dp", "tp"), "dp"):
        with axis_aliases(rows=axes):
            assert jax.block_until_ready(g(x)).sharding.spec == P(axes, None)

    def unsharded(x: Float[Array, "b m"]) -> Float[Array, "b m"]:
        return x

    h = typed_jit(unsharded, mesh=MESH)
    for axis in ("dp", "dp", "tp", "dp"):
        with axis_rules([("b", axis)]):
            assert jax.block_until_ready(h(x)).sharding.spec == P(axis, None)


def test_a_size_that_an_argument_gives_is_read_at_every_call() -> None:
    class Model:
        width = 16

        @typed_jit(mesh=MESH)
        def double(self, x: Float[Array, "[b/dp] {self.width}"]) -> X:
            return 2 * x

    model = Model()
    model.double(x), model.double(x)
    model.width = 8
    line = "Model.double: argument 'x' has size 16 in dim 1, '{self.width}', but its hint says 8"
    with fails(ShapeError, line):
        model.double(x)


def test_it_is_traced_again_when_jax_forgets_it() -> None:
    counted = Counted()
    jitted = counted.jitted()
    jitted(x, w), jitted(x, w)
    jax.clear_caches()
    same(jitted(x, w), x @ w)
    assert counted.runs == 2


def test_keywords_in_any_order_are_one_trace() -> None:
    runs = []

    @typed_jit(mesh=MESH)
    def f(x: X, **more: X) -> X:
        runs.append(list(more))
        return x + more["p"] - more["q"]

    same(f(x, p=x, q=x + 1), x - 1)
    same(f(q=x + 1, p=4 * x, x=2 * x), 5 * x - 1)
    assert len(runs) == 1


def test_no_tracer_leaks() -> None:
    @typed_jit(mesh=MESH)
    def f(x: X) -> list[tuple[Float[Array, "... [b/dp]"], X]]:
        return [(x.T, check(x, X))]

    with jax.checking_leaks():
        same(f(x), [(x.T, x)])
        f.lower(jax.ShapeDtypeStruct((4, 16), np.float32))


def test_a_jitted_function_inside_is_traced_for_the_mesh_of_each_call() -> None:
    shapes = []

    @jax.jit
    @typed_shard_map
    def doubled(x: X) -> X:
        shapes.append(x.shape)
        return x + x

    def step(x: X) -> X:
        return doubled(x)

    for mesh in (mesh_of(4, 2), mesh_of(2, 4)):
        same(typed_jit(step, mesh=mesh)(x), 2 * x)
    assert shapes[0] == (2, 16) and shapes[-1] == (4, 16)


def test_a_decorator_around_is_part_of_what_is_traced() -> None:
    def f(x: Float[Array, "[b/data] m"]) -> Float[Array, "[b/data] m"]:
        return x + 1

    def around(x: Float[Array, "b m"]) -> Any:
        return inner(x)

    inner, given = typed_jit(f), jnp.asarray(x)
    by = {axis: typed(around, axes={"data": axis}) for axis in ("dp", "tp")}
    with jax.set_mesh(MESH):
        for axis in ("dp", "tp", "dp"):
            assert by[axis](given).sharding.spec == P(axis, None)


def test_what_is_closed_over_is_read_when_traced_as_with_jax_jit() -> None:
    scale = [2.0]

    def f(x: X) -> X:
        return x * scale[0]

    ours, by_hand = typed_jit(f, mesh=MESH), jax.jit(f)
    ours(x), by_hand(x)
    scale[0] = 3.0
    same(ours(x), by_hand(x))
    ours.clear_cache()
    same(ours(x), 3 * x)


def test_a_call_keeps_no_arrays() -> None:
    import gc
    import weakref

    jitted, given = Counted().jitted(), placed(x, "dp")
    jax.block_until_ready(jitted(given, w))
    ref = weakref.ref(given)
    del given
    gc.collect()
    assert ref() is None


# Transformations


def test_it_is_differentiated_mapped_and_compiled_again() -> None:
    f = typed_jit(multiply, mesh=MESH)

    def loss(w: Any) -> Any:
        return (f(x, w) ** 2).sum()

    value, gradient = ((x @ w) ** 2).sum(), 2 * x.T @ (x @ w)
    same(jax.value_and_grad(loss)(w), (value, gradient))
    same(jax.jit(jax.grad(loss))(w), gradient)
    xs = numbers(3, 8, 16)
    same(jax.vmap(f, in_axes=(0, None))(xs, w), xs @ w)
    same(jax.jit(f)(x, w), x @ w)
    same(jax.checkpoint(f)(x, w), x @ w)


def test_it_is_differentiated_under_an_ambient_mesh() -> None:
    f = typed_jit(summed)
    y = numbers(8, 32)
    with jax.set_mesh(MESH):
        got = jax.grad(f)(placed(x, "dp"), y)
    same(got, np.full_like(x, y.sum()))
    assert got.sharding.is_equivalent_to(dp, 2)


def test_under_an_outer_jit_the_text_is_that_of_jax_jit() -> None:
    by_hand = jax.jit(multiply, in_shardings=(dp, tp), out_shardings=both)
    pair = typed_jit(multiply, mesh=MESH), by_hand
    texts = [jax.jit(lambda x, w, f=f: f(x, w) * 2).lower(x, w).as_text() for f in pair]
    assert texts[0] == texts[1]


def test_under_an_outer_jit_the_ambient_mesh_will_do() -> None:
    f = typed_jit(multiply)
    with jax.set_mesh(MESH):
        same(jax.jit(lambda x, w: f(x, w) + 1)(x, w), x @ w + 1)
        same(jax.vmap(lambda x: f(x, w))(numbers(3, 8, 16)), numbers(3, 8, 16) @ w)


def test_jit_may_be_disabled() -> None:
    counted = Counted()
    jitted = counted.jitted()
    with jax.disable_jit():
        same(jitted(placed(x, "dp"), w), x @ w)
        with fails(ShapeError, "count: argument 'w' has m=8, but argument 'x' has m=16"):
            jitted(x, w[:8])
    assert counted.runs == 1


# Explicit meshes


def test_on_an_explicit_mesh_the_type_of_the_result_says_its_sharding() -> None:
    got = typed_jit(multiply, mesh=EXPLICIT)(x, placed(w, None, "tp", mesh=EXPLICIT))
    assert str(jax.typeof(got)) == "float32[8@dp,32@tp]"
    same(got, x @ w)


def test_on_an_explicit_mesh_an_argument_of_another_type_is_refused() -> None:
    line = "multiply: argument 'x' is sharded P(None, 'dp'), but its hint says P('dp', None)"
    given = placed(x, None, "dp", mesh=EXPLICIT)
    with fails(ShardingError, line):
        typed_jit(multiply, mesh=EXPLICIT)(given, w)
    with jax.set_mesh(EXPLICIT), fails(ShardingError, line):
        jax.eval_shape(lambda x: typed_jit(multiply)(x, w), given)


def test_on_an_explicit_mesh_a_result_of_another_type_is_refused() -> None:
    def f(x: X) -> Float[Array, "b [m/tp]"]:
        return x * 2

    line = "f: return value is sharded P('dp', None), but its hint says P(None, 'tp')"
    with fails(ShardingError, line):
        typed_jit(f, mesh=EXPLICIT)(x)


def test_on_an_explicit_mesh_unreduced_values_leave_and_enter() -> None:
    def product(x: Float[Array, "[b/dp] [m/tp]"], w: Float[Array, "[m/tp] f"]) -> Float[Array, "[b/dp] f +tp"]:
        return jnp.einsum("bm,mf->bf", x, w, out_sharding=P("dp", None, unreduced={"tp"}))

    def reduced(y: Float[Array, "[b/dp] f +tp"]) -> Float[Array, "[b/dp] f"]:
        return jax.reshard(y, P("dp", None))

    with jax.set_mesh(EXPLICIT):
        addends = typed_jit(product)(x, w)
        assert "U:tp" in str(jax.typeof(addends))
        same(typed_jit(reduced)(addends), x @ w)
        line = "reduced: argument 'y' is sharded P('dp', None), but its hint says P('dp', None, unreduced={'tp'})"
        with fails(ShardingError, line):
            typed_jit(reduced)(placed(x, "dp", None, mesh=EXPLICIT))
        line = "reduced: argument 'y' is not placed on the mesh, but its hint says P('dp', None, unreduced={'tp'})"
        with fails(ShardingError, line):
            typed_jit(reduced)(x)


def test_on_an_explicit_mesh_it_is_differentiated() -> None:
    with jax.set_mesh(EXPLICIT):
        got = jax.grad(lambda x: typed_jit(multiply)(x, w).sum())(x)
    assert str(jax.typeof(got)) == "float32[8@dp,16]"
    same(got, np.broadcast_to(w.sum(1), x.shape))


@pytest.mark.skipif(not HAS_MANUAL_TYPES, reason="jax 0.9 reshards nothing under jax.vmap")
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("give", [np.asarray, jnp.asarray, lambda many: placed(many, None, "dp", mesh=EXPLICIT)])
def test_on_an_explicit_mesh_it_is_mapped_over_what_is_not_placed_yet(count: int, give: Any) -> None:
    many = numbers(count, 8, 16)
    got = jax.vmap(typed_jit(scanned, mesh=EXPLICIT))(give(many))
    assert got.sharding.is_equivalent_to(NamedSharding(EXPLICIT, P(None, "dp", None)), 3)
    same(got, np.tanh(np.tanh(np.tanh(many))))


def test_on_an_explicit_mesh_reduced_values_enter() -> None:
    @typed_jit
    def f(x: Float[Array, "[b/dp] m -tp"]) -> Float[Array, "[b/dp] m -tp"]:
        return x

    with jax.set_mesh(EXPLICIT):
        given = jax.reshard(placed(x, "dp", None, mesh=EXPLICIT), P("dp", None, reduced={"tp"}))
        assert "R:tp" in str(jax.typeof(f(given)))
        line = "f: argument 'x' is sharded P('dp', None), but its hint says P('dp', None, reduced={'tp'})"
        with fails(ShardingError, line):
            f(placed(x, "dp", None, mesh=EXPLICIT))


# Ahead of time


def test_it_has_the_methods_of_jax_jit() -> None:
    f = typed_jit(multiply, mesh=MESH)
    structs = (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(w.shape, w.dtype))
    assert f.__wrapped__ is multiply  # type: ignore[attr-defined]
    assert f.__name__ == "multiply"
    assert f.eval_shape(*structs).shape == (8, 32)
    assert f.trace(x, w=structs[1]).jaxpr.in_avals[1].shape == (16, 32)
    assert f.lower(*structs).as_text() == f.lower(x, w).as_text()
    same(f.lower(*structs).compile()(placed(x, "dp"), placed(w, None, "tp")), x @ w)


def test_shapes_are_checked_as_arrays_are() -> None:
    f = typed_jit(multiply, mesh=MESH)
    with fails(ShapeError, "multiply: argument 'w' has m=8, but argument 'x' has m=16"):
        f.lower(x, jax.ShapeDtypeStruct((8, 32), np.float32))
    struct = jax.ShapeDtypeStruct((8, 16), np.float32, sharding=on("tp"))
    with fails(ShardingError, "multiply: argument 'x' is sharded P('tp'), but its hint says P('dp', None)"):
        f.lower(struct, w)
    with fails(StructureError, "multiply: argument 'x' is a ShapeDtypeStruct, but its hint says Array"):
        f(struct, w)


def test_keys_are_lowered_from_their_shapes() -> None:
    key = jax.random.key(0)
    f = typed_jit(sampled, mesh=MESH)
    assert f.lower(jax.ShapeDtypeStruct((), key.dtype)).as_text() == f.lower(key).as_text()


def test_it_is_lowered_for_devices_that_there_are_not() -> None:
    abstract = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    structs = (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(w.shape, w.dtype))
    by_hand = jax.jit(
        multiply,
        in_shardings=(on("dp", None, mesh=abstract), on(None, "tp", mesh=abstract)),
        out_shardings=on("dp", "tp", mesh=abstract),
    )
    expected = by_hand.trace(*structs).lower(lowering_platforms=("tpu",)).as_text()
    got = typed_jit(multiply, mesh=abstract).trace(*structs).lower(lowering_platforms=("tpu",)).as_text()
    assert got == expected
