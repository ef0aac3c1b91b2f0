"""What a program gives to ``jax.shard_map`` is recorded, with its trees, and the program stays what it is."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, audit, typed_shard_map
from typedshmap.auditing import calls

X = np.ones((8, 8), np.float32)


def body(tree: Any) -> Any:
    return {"twice": 2 * tree["x"]}


def by_decorator(mesh: Mesh) -> Any:
    return jax.shard_map(mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))(body)


def by_old_import(mesh: Mesh) -> Any:
    old = pytest.importorskip("jax.experimental.shard_map")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # told once in a process
        return old.shard_map(body, mesh, P("dp"), P("dp"))


WRITTEN: dict[str, Callable[[Mesh], Any]] = {
    "call": lambda mesh: jax.shard_map(body, mesh=mesh, in_specs=P("dp"), out_specs=P("dp")),
    "decorator": by_decorator,
    "partial": lambda mesh: partial(jax.shard_map, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))(body),
    "old import": by_old_import,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_is_recorded_with_its_trees(name: str, mesh: Mesh) -> None:
    before = jax.shard_map
    with calls.recorded_calls() as found:
        jax.eval_shape(jax.jit(WRITTEN[name](mesh)), {"x": X})
    assert jax.shard_map is before
    (call,) = found
    options = {key: call.options[key] for key in ("mesh", "in_specs", "out_specs")}
    assert call.function is body and options == {"mesh": mesh, "in_specs": P("dp"), "out_specs": P("dp")}
    assert call.args == ({"x": jax.ShapeDtypeStruct((8, 8), np.float32)},)
    assert call.results == {"twice": jax.ShapeDtypeStruct((8, 8), np.float32)}
    assert call.made_at is not None and call.made_at[0] == __file__ and call.is_direct
    assert "mesh" in inspect.getsource(WRITTEN[name])


def test_the_call_under_way_is_the_one_that_traces_a_region(mesh: Mesh) -> None:
    def inner(x: Any) -> Any:
        under_way.append(calls.call_under_way())
        return x.sum()

    def outer(x: Any) -> Any:
        within = jax.shard_map(inner, in_specs=P("tp"), out_specs=P(), axis_names={"tp"}, check_vma=False)
        found = within(x)
        under_way.append(calls.call_under_way())
        return found

    under_way: list[Any] = []
    with calls.recorded_calls() as found:
        around = jax.shard_map(outer, mesh=mesh, in_specs=P("dp"), out_specs=P(), axis_names={"dp"}, check_vma=False)
        jax.eval_shape(jax.jit(around), np.ones(8, np.float32))
    assert [call.function for call in found] == [outer, inner]
    assert under_way == found[::-1] and calls.call_under_way() is None


def test_what_the_library_maps_is_not_recorded(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def twice(x: Float[Array, "[b/dp] m"]) -> Float[Array, "[b/dp] m"]:
        return 2 * x

    with calls.recorded_calls() as found, audit():
        jax.eval_shape(twice, X)
    assert found == []


def test_a_library_that_maps_is_told_apart(mesh: Mesh) -> None:
    nnx = pytest.importorskip("flax.nnx")
    with calls.recorded_calls() as found:
        jax.eval_shape(nnx.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P("dp"), out_specs=P("dp")), X)
    assert [call.is_direct for call in found] == [False] and found[0].made_at is not None
