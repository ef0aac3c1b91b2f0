"""A structure that was met before is not walked again, and what is in it is checked all the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, TypedShmapError, axis_aliases, axis_rules, partition_specs, typed_shard_map


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    up: Float[Array, "m [f/tp]"]
    down: Float[Array, "[f/tp] m"]


class Model(NamedTuple):
    layers: list[Layer]
    heads: dict[str, Float[Array, "m v"]]
    gain: Float[Array, " m"]


def array(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def layer(m: int = 4, f: int = 6) -> Layer:
    return Layer(array(m, f), array(f, m))


def model(*layers: Layer, m: int = 4, gain: Any = None, **heads: Any) -> Model:
    return Model(list(layers), heads or {"main": array(m, 8)}, gain or array(m))


def gain(model: Model) -> Float[Array, " m"]:
    return model.gain


def reported(f: Callable[[Any], Any], value: Any) -> str | None:
    """What is said of a value; None of one that fits."""
    try:
        jax.eval_shape(lambda value: f(value), value)
    except TypedShmapError as error:
        return str(error)
    return None


RIGHT = {
    "two layers": model(layer(), layer()),
    "of another size": model(layer(6, 2), layer(6, 2), m=6),
    "no layers": model(),
    "more heads": model(layer(), a=array(4, 8), b=array(4, 8)),
}
WRONG = {
    "a size": model(layer(), layer(4, 8)),
    "a size of one layer": model(layer(), Layer(array(4, 6), array(8, 4))),
    "sizes that do not divide": model(layer(4, 3), layer(4, 3)),
    "a dtype": model(layer(), layer(), gain=array(4, dtype=jnp.int32)),
    "a rank": model(layer(), layer(), gain=array(4, 1)),
    "a leaf that is missing": model(layer(), layer(), main=None),
    "a layer that is none": model(layer(), array(4, 6)),
    "a layer that is missing": model(layer(), None),
    "an array in the place of all layers": Model(array(4), {}, array(4)),
    "an array in a tuple": model(layer(), layer(), main=(array(4, 8),)),
    "another class": model(layer(), (array(4, 6), array(6, 4))),
}


@pytest.mark.parametrize("met", [(), tuple(RIGHT.values())], ids=["before", "after"])
@pytest.mark.parametrize("value", RIGHT.values(), ids=RIGHT)
def test_a_value_fits_whatever_was_met(value: Model, met: tuple[Model, ...], mesh: Mesh) -> None:
    f = typed_shard_map(gain, mesh=mesh)
    assert [reported(f, each) for each in (*met, value, value)] == [None] * (len(met) + 2)


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_reported_in_the_same_words_whatever_came_before(value: Model, mesh: Mesh) -> None:
    f = typed_shard_map(gain, mesh=mesh)
    first = reported(f, value)
    for each in RIGHT.values():
        reported(f, each)
    assert first is not None
    assert [reported(f, value), reported(f, value)] == [first, first]


def test_one_class_is_named_by_each_argument_that_it_is(mesh: Mesh) -> None:
    first = typed_shard_map(lambda a, b: a.up, mesh=mesh, in_types=(Layer, Layer), out_types=Float[Array, "m [f/tp]"])
    assert reported(lambda pair: first(*pair), (layer(), layer())) is None
    for wrong, name in (((layer(4, 8), layer()), "b.up"), ((layer(), layer(4, 8)), "b.up")):
        message = reported(lambda pair: first(*pair), wrong)
        assert message is not None
        assert f"argument '{name}'" in message.splitlines()[0]


# What names mean


def specs(value: Model) -> Any:
    return partition_specs(Model, like=value).layers[1].up


def test_other_rules_and_aliases_give_other_specs_of_a_structure_that_was_met() -> None:
    value = model(layer(), layer())
    assert specs(value) == P(None, "tp")
    with axis_rules({"m": "dp"}):
        assert specs(value) == P("dp", "tp")
    with axis_aliases(tp=("a", "b")):
        assert specs(value) == P(None, ("a", "b"))
    assert specs(value) == P(None, "tp")


def test_a_structure_that_was_met_is_split_over_another_mesh() -> None:
    value, f = model(layer(4, 6), layer(4, 6)), typed_shard_map(gain)
    meshes = [AbstractMesh((1, size), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2) for size in (2, 4, 2)]
    found: list[bool] = []
    for mesh in meshes:
        with jax.sharding.use_abstract_mesh(mesh):
            found.append(reported(f, value) is None)
    assert found == [True, False, True]


def test_hints_of_a_class_that_change_are_read_anew() -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class Changing:
        x: Float[Array, "[b/dp]"]

    value = Changing(array(8))
    assert partition_specs(Changing, like=value).x == P("dp")
    Changing.__annotations__["x"] = Float[Array, "[b/tp]"]
    assert partition_specs(Changing, like=value).x == P("tp")


# How long it is known


class Key(str):
    """A key of a dict whose end can be seen."""

    __slots__ = ("__weakref__",)


def test_what_was_met_goes_with_the_function(mesh: Mesh) -> None:
    def ends() -> weakref.ref[Any]:
        def first(leaves: dict[str, Float[Array, " m"]]) -> Float[Array, " m"]:
            return next(iter(leaves.values()))

        key = Key("key")
        assert reported(typed_shard_map(first, mesh=mesh), {key: array(4)}) is None
        return weakref.ref(key)

    ref = ends()
    jax.clear_caches()
    gc.collect()
    assert ref() is None


def test_no_more_than_some_structures_are_kept(mesh: Mesh) -> None:
    def first(leaves: list[Float[Array, " m"]]) -> Float[Array, " m"]:
        return leaves[0]

    f = typed_shard_map(first, mesh=mesh)
    known = {id(each) for each in gc.get_objects() if type(each).__name__ == "Fit"}
    for count in range(1, 60):
        assert reported(f, [array(4)] * count) is None
    more = [each for each in gc.get_objects() if type(each).__name__ == "Fit" and id(each) not in known]
    assert 0 < len(more) < 50
