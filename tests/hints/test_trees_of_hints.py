"""A tuple, a list or a dict of hints says what the same of arrays is, wherever a hint is given as a value."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from expecting import fails
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from lines import unplaced

from typedshmap import (
    AnnotationSyntaxError,
    Array,
    Float,
    Stacked,
    StructureError,
    check,
    from_process_local,
    partition_specs,
    shape_structs,
    shard,
    shardings,
    typed,
)

X, W = Float[Array, "[b/dp] d"], Float[Array, "d [f/tp]"]
HINTS = {"x": X, "list": [W, "d [f/tp]"], "tuple": (X, None), "layers": Stacked["n", W]}
SPECS = {
    "x": P("dp", None),
    "list": [P(None, "tp"), P(None, "tp")],
    "tuple": (P("dp", None), None),
    "layers": P(None, None, "tp"),
}
x, w = np.ones((8, 4), np.float32), np.ones((4, 6), np.float32)
VALUE = {"x": x, "list": [w, w], "tuple": (x, None), "layers": np.ones((3, 4, 6), np.float32)}


def test_it_has_the_specs_of_its_hints(mesh: Mesh) -> None:
    assert partition_specs(HINTS) == SPECS
    assert partition_specs(HINTS, like=VALUE) == SPECS
    assert jax.tree.map(lambda sharding: sharding.spec, shardings(HINTS, mesh)) == SPECS


def test_it_has_shapes() -> None:
    structs = shape_structs(HINTS, b=8, d=4, f=6, n=3)
    assert jax.tree.map(lambda struct: struct.shape, structs) == jax.tree.map(np.shape, VALUE)


@pytest.mark.parametrize("place", [shard, from_process_local])
def test_it_places_values(mesh: Mesh, place: Any) -> None:
    placed = check(place(VALUE, HINTS, mesh), HINTS)
    assert jax.tree.map(lambda array: array.sharding.spec, placed) == SPECS


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({**VALUE, "list": [w]}, "shard: given['list'] has 1 item, but its hint has 2"),
        ({**VALUE, "list": (w, w)}, "shard: given['list'] is a tuple, but its hint says list of 2"),
        ({"x": x}, "shard: given value lacks 'list', 'tuple', 'layers'"),
        ([x], "shard: given value is a list, but its hint says dict"),
    ],
)
def test_another_structure_is_reported_by_its_path(mesh: Mesh, value: Any, line: str) -> None:
    with fails(StructureError, line):
        shard(value, HINTS, mesh)


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (x, "f32[8,4] is not a hint"),
        ({"x": x}, "f32[8,4] is not a hint"),
        (3, "3 is not a hint"),
        ({1: X}, "{1: <class 'typedshmap.Float[Array, \"[b/dp] d\"]'>} is not a hint"),
        (np.random.default_rng(0).normal(size=(3, 3)).astype(np.float64), "f32[3,3] is not a hint"),
        ({1: tuple(range(100))}, "a dict is not a hint"),
    ],
)
def test_what_is_no_hint_is_refused(hint: Any, message: str) -> None:
    with pytest.raises(AnnotationSyntaxError) as caught:
        partition_specs(hint)
    assert unplaced(caught.value) == message


def test_annotations_of_a_library_need_no_strings() -> None:
    @typed
    def f(params: optax.Params, state: optax.OptState | None, updates: dict[str, optax.Updates]) -> optax.Params:
        return params

    params = {"w": jnp.ones(4), "layers": [jnp.ones(4)]}
    assert f(params, optax.adam(1e-3).init(params), {"a": params}) is params
