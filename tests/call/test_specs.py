"""A call of `jax.shard_map` is replaced by its name: specs for whatever has no hint, the body read all the same."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import expect_same_program, text_of
from expecting import numbers, same
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    DivergenceError,
    Float,
    ShapeError,
    ShardingError,
    SuspectWarning,
    VaryingError,
    check,
    typed_shard_map,
)

x, w = numbers(8, 4), numbers(4, 6)
X = Float[Array, "[b/dp] d"]


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    weights: Any
    bias: Any


# What is accepted, as JAX has it


def both(x, w):
    return lax.psum(x @ w, "tp"), {"x": x, "sum": lax.psum(x.sum(), ("dp", "tp"))}


def optional(x, y=None, scale=2.0):
    return x * scale if y is None else x * scale + y


def over_items(*xs):
    return [x * 2 for x in xs]


def of_other_meaning(x: jax.Array, n: "a name of ours", tree: dict[str, Array]) -> "Nowhere":
    return x * n + tree["w"]


@functools.wraps(optional)
def by_two(x):
    return optional(x, scale=2.0)


class Scaled(NamedTuple):
    scale: float

    def __call__(self, x):
        return x * self.scale


def specs(given: Any, result: Any) -> dict[str, Any]:
    return {"in_specs": given, "out_specs": result}


ROWS = specs(P("dp"), P("dp"))


SAME: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[Any, ...]]] = {
    "one for all arguments": (lambda x, y: x * y, ROWS, (x, x)),
    "several results": (both, specs((P("dp", "tp"), P("tp")), (P("dp"), {"x": P("dp", "tp"), "sum": P()})), (x, w)),
    "a prefix of a tree": (
        lambda tree: jax.tree.map(jnp.sin, tree),
        specs(({"a": P("dp"), "b": P()},), {"a": P("dp"), "b": P()}),
        ({"a": [x, Pair(x, None)], "b": Layer(w, w[0])},),
    ),
    "None for a static argument": (
        lambda scale, x, name: x * scale if name == "mul" else x,
        specs((None, P("dp"), None), P("dp")),
        (3, x, "mul"),
    ),
    "None within an argument": (
        lambda pair: pair.first * pair.second,
        specs((Pair(P("dp"), None),), P("dp")),
        (Pair(x, 2.0),),
    ),
    "numbers that are arrays in the body": (lambda n, x: x * n, specs((P(), P("dp")), P("dp")), (3, x)),
    "an argument that is None": (optional, specs((P("dp"), P()), P("dp")), (x, None)),
    "defaults that are left out": (optional, ROWS, (x,)),
    "any number of arguments": (over_items, ROWS, (x, x, x)),
    "a partial": (partial(optional, y=w[0, :4], scale=3.0), ROWS, (x,)),
    "a partial by position": (partial(jnp.add, 1.0), ROWS, (x,)),
    "annotations of other meaning": (of_other_meaning, specs((P("dp"), P(), P()), P("dp")), (x, 3, {"w": w[0, :4]})),
    "other arguments than those it shows": (by_two, ROWS, (x,)),
    "an instance": (Scaled(3.0), ROWS, (x,)),
    "a method": (Scaled.__call__, specs((None, P("dp")), P("dp")), (Scaled(3.0), x)),
    "no result": (lambda x: None, specs(P("dp"), None), (x,)),
    "no arguments": (lambda: jnp.ones(4), specs((), P()), ()),
    "some axes only": (
        lambda x: lax.psum(x, "dp"),
        {"in_specs": P("dp"), "out_specs": P(), "axis_names": {"dp"}},
        (x,),
    ),
    "without types": (lambda x: lax.psum(x, "dp"), {"in_specs": P("dp"), "out_specs": P(), "check_vma": False}, (x,)),
}


@pytest.mark.parametrize("name", SAME)
def test_a_call_that_is_replaced_by_its_name_is_the_same_program(name: str, mesh: Mesh):
    function, options, args = SAME[name]
    typed = typed_shard_map(function, mesh=mesh, **options)
    by_hand = jax.shard_map(function, mesh=mesh, **options)
    leaves, tree = jax.tree.flatten(args)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]

    def given(arrays):
        filled = dict(zip(at, arrays, strict=True))
        return tree.unflatten([filled.get(i, leaf) for i, leaf in enumerate(leaves)])

    arrays = [leaves[i] for i in at]
    of_arrays = [lambda *arrays, f=f: f(*given(arrays)) for f in (typed, by_hand)]
    texts = [text_of(f, *arrays) for f in of_arrays]
    assert texts[0] == texts[1]
    assert jax.tree.structure(typed(*args)) == jax.tree.structure(jax.eval_shape(of_arrays[1], *arrays))


def test_a_body_that_asks_for_values_is_evaluated_as_jax_does(mesh: Mesh):
    def by_sign(x):
        return x * 2 if lax.psum(x.sum(), "dp") > 0 else -x

    options = {"mesh": mesh, **ROWS}
    same(typed_shard_map(by_sign, **options)(x), jax.shard_map(by_sign, **options)(x))
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(typed_shard_map(by_sign, **options))(x)


def test_specs_are_inferred_over_explicit_axes():
    mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, P("dp", "tp"))
        typed, by_hand = (f(lambda x: x * 2, out_specs=P("dp", "tp")) for f in (typed_shard_map, jax.shard_map))
        expect_same_program(typed, by_hand, placed)
        same(typed(placed), by_hand(placed))


# The body is read


def test_a_forgotten_sum_is_an_error_with_its_place(mesh: Mesh):
    for check_vma in (True, False):
        typed = typed_shard_map(
            lambda x, w: x @ w, mesh=mesh, in_specs=(P("dp", "tp"), P("tp")), out_specs=P("dp"), check_vma=check_vma
        )
        with pytest.raises(VaryingError) as caught:
            typed(x, w)
        message, _, place = str(caught.value).partition("\nAt: ")
        assert message == (
            "<lambda>: return value varies over 'tp', which its PartitionSpec does not mention\n\n"
            "    return: P('dp')\n"
            "    got f32[2,6]{V:(dp,tp)} per shard\n\n"
            "Mesh: dp=4, tp=2"
        )
        assert place.startswith("test_specs.py:") and place.endswith("leaves partial sums: psum over 'tp' of x @ w")


WRONG: dict[str, tuple[Callable[..., Any], dict[str, Any], Any, str]] = {
    "a leaf that varies": (
        lambda x: {"mean": x.mean(0), "x": x},
        specs(P("dp"), {"mean": P(), "x": P("dp")}),
        VaryingError,
        r"return\['mean'\] varies over 'dp'",
    ),
    "a deadlock": (
        lambda x: lax.cond(x.sum() > 0, lambda x: lax.psum(x, "dp"), lambda x: x, x),
        ROWS,
        DivergenceError,
        "psum over 'dp'",
    ),
    "another order": (
        lambda x: x,
        specs(P(("dp", "tp")), P(("tp", "dp"))),
        ShardingError,
        "over 'dp', 'tp' in dim 0, but its PartitionSpec says",
    ),
    "a check": (
        lambda x: check(x, "[b/tp] d"),
        ROWS,
        VaryingError,
        "varies over 'dp', which its hint does not mention",
    ),
}


@pytest.mark.parametrize(("body", "specs", "error", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_in_a_body_is_an_error(body: Any, specs: Any, error: Any, words: str, mesh: Mesh):
    with pytest.raises(error, match=words):
        typed_shard_map(body, mesh=mesh, check_vma=False, **specs)(x)


def test_what_varies_is_a_value_error_by_either_name(mesh: Mesh):
    for make in (typed_shard_map, jax.shard_map):
        with pytest.raises(ValueError, match=r"var(ies|ying)"):
            make(lambda x: x, mesh=mesh, in_specs=P("dp"), out_specs=P())(x)


def test_a_result_that_grows_with_the_mesh_is_a_suspect(mesh: Mesh):
    typed = typed_shard_map(
        lambda x: lax.psum(lax.psum(x.sum(0), "dp"), "dp"), mesh=mesh, in_specs=P("dp"), out_specs=P(), check_vma=False
    )
    with pytest.warns(SuspectWarning, match="psum over 'dp'"):
        typed(x)


def test_what_a_callback_returns_is_what_its_spec_says(mesh: Mesh):
    def computed(x):
        return jax.pure_callback(lambda x: x.sum(0), jax.ShapeDtypeStruct(x.shape[1:], x.dtype), x)

    typed = typed_shard_map(computed, mesh=mesh, in_specs=P("dp"), out_specs=P(), check_vma=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(typed, x)


# Hints come one by one


def test_hints_and_specs_may_stand_side_by_side(mesh: Mesh):
    def matmul(x: X, w) -> Float[Array, "[b/dp] f"]:
        return x @ w

    options: dict[str, Any] = {"mesh": mesh, "in_specs": (P("dp"), P())}
    by_hand = jax.shard_map(matmul, out_specs=P("dp"), **options)
    for more in ({}, {"out_specs": P("dp")}, {"out_specs": P("dp", None)}):
        expect_same_program(typed_shard_map(matmul, **options, **more), by_hand, x, w)
    with pytest.raises(ShapeError, match="argument 'x' has 3 dims"):
        typed_shard_map(matmul, **options)(numbers(8, 4, 2), w)


def test_one_that_has_no_spec_has_a_hint(mesh: Mesh):
    def matmul(x: X, w: Float[Array, "d f"]):
        return x @ w

    same(typed_shard_map(matmul, mesh=mesh, out_specs=P("dp"))(w=w, x=x), x @ w)
    with pytest.raises(ShardingError, match=r"is P\('dp'\) in in_specs, but its hint says P\(None, None\)"):
        typed_shard_map(matmul, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))(x, w)


DISAGREE = {
    "an argument": (
        specs((P("tp"), P()), P("dp")),
        "matmul: argument 'x' is P('tp') in in_specs, but its hint says P('dp', None)\n\n"
        '    x: Float[Array, "[b/dp] d"]\n'
        "    got f32[8,4]\n\n"
        "Mesh: dp=4, tp=2\n"
        'Hint: if in_specs is right, write "[b/tp] d" in the hint',
    ),
    "a static one": (
        specs((None, P()), P("dp")),
        "matmul: argument 'x' is None (static) in in_specs, but its hint says P('dp', None)\n\n"
        '    x: Float[Array, "[b/dp] d"]\n'
        "    got f32[8,4]\n\n"
        "Mesh: dp=4, tp=2\n"
        "Hint: make in_specs and the hint agree",
    ),
    "the result": (
        specs((P("dp"), P()), P(("dp", "tp"))),
        "matmul: return value is P(('dp', 'tp')) in out_specs, but its hint says P('dp', None)\n\n"
        '    return: Float[Array, "[b/dp] f"]\n'
        "    got f32[2,6]{V:dp} per shard\n\n"
        "Mesh: dp=4, tp=2\n"
        "At: {place}\n"
        'Hint: if out_specs is right, write "[b/dp,tp] f" in the hint',
    ),
}


@pytest.mark.parametrize("name", DISAGREE)
def test_a_hint_and_a_spec_that_disagree_are_shown_both(name: str, mesh: Mesh):
    def matmul(x: X, w) -> Float[Array, "[b/dp] f"]:
        return x @ w

    options, message = DISAGREE[name]
    with pytest.raises(ShardingError) as caught:
        typed_shard_map(matmul, mesh=mesh, **options)(x, w)
    assert str(caught.value) == message.replace("{place}", caught.value.place)


# What is refused


REFUSED: dict[str, tuple[dict[str, Any], tuple[Any, ...], str]] = {
    "an axis that the mesh does not have": ({"in_specs": P("pp")}, (x,), "in_specs refers to 'pp'"),
    "a size that does not divide": ({"in_specs": P("dp")}, (x[:3],), "4 does not evenly divide 3"),
    "a spec that is too long": ({"in_specs": P("dp", None, None)}, (x,), r"length 3.*rank 2"),
    "more arguments than the function has": (
        {"in_specs": ({"a": P("dp")}, P())},
        ({"a": w[0, 0]}, x),
        "which has rank 0",
    ),
    "another number of arguments": ({"in_specs": (P(), P())}, (x,), "different lengths of tuple at key path"),
    "another tree": (specs(P(), {"a": P()}), (x,), "shard_map out_specs"),
    "a result of lower rank": (specs(P(), P(None, None, "dp")), (x,), "which has rank 2"),
    "a string": ({"in_specs": "dp"}, (x,), "must be a pytree of"),
    "a string for an array": ({"in_specs": P()}, ("x",), "not a valid JAX type"),
    "no specs over Auto axes": ({}, (x,), "must be a pytree of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_refuses_of_specs_it_words(name: str, mesh: Mesh):
    options, args, words = REFUSED[name]
    options = {"out_specs": P(), **options}
    messages: list[str] = []
    for make in (typed_shard_map, jax.shard_map):
        with pytest.raises((ValueError, TypeError), match=f"(?s){words}") as caught:
            make(lambda x: x, mesh=mesh, **options)(*args)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_result_without_a_hint_needs_a_spec(mesh: Mesh):
    with pytest.raises(AnnotationSyntaxError, match="the result has no hint"):
        typed_shard_map(lambda x: x, mesh=mesh, in_specs=P())
