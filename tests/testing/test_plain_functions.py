"""Functions without hints that call ``jax.shard_map`` are explained, budgeted and compared on other meshes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, StructureError, explain, typed_shard_map
from typedshmap.errors import MeshAxisError
from typedshmap.testing import assert_cost, assert_mesh_invariant

STRUCT = jax.ShapeDtypeStruct((8, 8), np.float32)
SPECS = {"in_specs": (P("dp", "tp"), P("tp")), "out_specs": P("dp")}


def product(x: Any, w: Any) -> Any:
    return lax.psum(x @ w, "tp")


def in_a_tree(mapped: Any) -> Any:
    return jax.jit(lambda params, x: {"loss": mapped(x, params["w"]).sum(), "y": mapped(x, params["w"])})


WRITTEN: dict[str, Callable[[Mesh], Any]] = {
    "mapped": lambda mesh: jax.shard_map(product, mesh=mesh, **SPECS),
    "jitted": lambda mesh: jax.jit(jax.shard_map(product, mesh=mesh, **SPECS)),
    "called": lambda mesh: lambda x, w: jax.shard_map(product, mesh=mesh, **SPECS)(x, w),
    "ambient": lambda mesh: jax.shard_map(product, **SPECS),
    "constrained": lambda mesh: (
        lambda x, w: jax.shard_map(product, mesh=mesh, **SPECS)(
            lax.with_sharding_constraint(x, NamedSharding(mesh, P("dp"))), w
        )
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_arguments_are_sharded_as_they_enter_a_region(name: str, mesh: Mesh) -> None:
    f = WRITTEN[name](mesh)
    found = explain(f, STRUCT, STRUCT, mesh="dp=2,tp=4", grad=False)
    assert found.function in ("product", "<lambda>")
    specs = {"x": P("dp", "tp"), "w": P("tp", None)}
    assert {one.name: one.spec for one in found.values if one.name in specs} == (specs if name != "constrained" else {
        "x": P(None, None), "w": P("tp", None)
    })  # fmt: skip
    assert [(one.operation, one.axes, one.group) for one in found.collectives] == [("all-reduce", ("tp",), 4)]
    if name != "ambient":  # which JAX keeps to the first mesh that it meets
        with jax.set_mesh(mesh):  # what was traced for another mesh leaves nothing behind
            assert jax.eval_shape(f, STRUCT, STRUCT).shape == (8, 8)


def test_the_leaves_of_trees_are_named_by_their_paths(mesh: Mesh) -> None:
    found = explain(in_a_tree(WRITTEN["mapped"](mesh)), {"w": STRUCT}, STRUCT, grad=False)
    assert [one.name for one in found.values] == ["params['w']", "x", "return['loss']", "return['y']"]
    assert [one.spec for one in found.values][1::2] == [P("dp", "tp"), P("dp", None)]


def test_the_hints_that_are_read_off_are_those_that_one_writes(mesh: Mesh) -> None:
    @typed_shard_map(mesh=mesh)
    def typed(x: Float[Array, "[8/dp] [8/tp]"], w: Float[Array, "[8/tp] 8"]) -> Float[Array, "[8/dp] 8"]:
        return product(x, w)

    plain, hinted = explain(WRITTEN["mapped"](mesh), STRUCT, STRUCT), explain(typed)
    assert [one.hint.replace("Float32", "Float") for one in plain.values] == [one.hint for one in hinted.values]
    assert plain.totals == hinted.totals and plain.memory == hinted.memory


@pytest.mark.parametrize(
    ("error", "args", "mesh", "problem"),
    [
        (StructureError, (), None, "explain: product: it has no hints and needs its arguments, arrays or"),
        (StructureError, (STRUCT,), None, "missing a required argument: 'w'"),
        (MeshAxisError, (STRUCT, STRUCT), "dp=2", "argument 'x' names mesh axis 'tp', which is not among the mesh's"),
        (MeshAxisError, (STRUCT, STRUCT), "dp", "a mesh is a jax.sharding.Mesh or AbstractMesh, a dict of sizes, or"),
    ],
)
def test_what_cannot_be_explained(error: Any, args: Any, mesh: Any, problem: str) -> None:
    own = jax.sharding.AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    with pytest.raises(error) as raised:
        explain(WRITTEN["mapped"](own), *args, mesh=mesh)
    assert problem in str(raised.value)


def test_a_function_without_a_region_is_refused() -> None:
    with pytest.raises(StructureError, match="no shard_map is traced in it"):
        explain(jnp.sum, STRUCT)


def test_an_axis_that_only_the_body_names_is_one_of_the_mesh(mesh: Mesh) -> None:
    f = jax.shard_map(lambda x: lax.psum(x, "dp"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    with pytest.raises(MeshAxisError, match="its shard_map is over 'dp', 'tp', and the mesh has no 'tp'"):
        explain(f, STRUCT, mesh="dp=2")


BUDGETS: dict[str, tuple[dict[str, Any], str]] = {
    "a collective that is not named": ({"collectives": {}}, "1 all-reduce/tp, not 0"),
    "one more": ({"collectives": {"all-reduce/tp": 2}}, "1 all-reduce/tp, not 2"),
    "another axis": ({"collectives": {"all-reduce/tp": 1, "all-gather/dp": 1}}, "0 all-gather/dp, not 1"),
    "wire": ({"wire_bytes": 63}, "one device sends 64 B per device, and wire_bytes= allows 63 B"),
    "memory": ({"memory": 1}, "the peak of memory is 288 B per device, and memory= allows 1 B"),
    "flops": ({"flops": 1}, "it computes 128 FLOP per device, and flops= allows 1 FLOP"),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_a_budget_that_is_not_kept(name: str, mesh: Mesh) -> None:
    budget, problem = BUDGETS[name]
    with pytest.raises(AssertionError) as raised:
        assert_cost(WRITTEN["mapped"](mesh), STRUCT, STRUCT, **budget)
    first, *rest = str(raised.value).splitlines()
    assert first == f"assert_cost: product: {problem}"
    assert "Mesh: dp=4, tp=2" in rest and "1 all-reduce/tp, 64 B, at test_plain_functions.py:" in rest[-1]


def test_a_budget_that_is_kept_returns_what_was_found(mesh: Mesh) -> None:
    kept = {"collectives": {"all-reduce/tp": 1}, "wire_bytes": 64, "memory": 288, "flops": 128}
    assert assert_cost(WRITTEN["mapped"](mesh), STRUCT, STRUCT, **kept).memory.peak == 288
    with pytest.raises(AssertionError, match="1 all-reduce/dp, not 0"):
        assert_cost(WRITTEN["mapped"](mesh), STRUCT, STRUCT, **kept, grad=True)


@pytest.mark.parametrize(
    ("budget", "problem"),
    [
        ({}, "no budget is given"),
        ({"collectives": {"all-redcue/tp": 1}}, "did you mean 'all-reduce'"),
        ({"collectives": {"all-reduce": 1}}, "is not an operation and its mesh axes"),
        ({"collectives": {"all-reduce/pp": 1}}, "names mesh axis 'pp', which the mesh"),
        ({"collectives": [("all-reduce/tp", 1)]}, "expects a dict"),
        ({"collectives": {"all-reduce/tp": -1}}, "must be an integer >= 0, got -1"),
        ({"wire_bytes": 1.5}, "wire_bytes must be an integer >= 0, got 1.5"),
        ({"memory": 1, "mesh": ["dp=4,tp=2"]}, "a budget is for one"),
        ({"memory": 1, "grad": None, "mesh": "dp=4"}, "names mesh axis 'tp'"),
    ],
)
def test_a_budget_that_cannot_be_read(budget: Any, problem: str, mesh: Mesh) -> None:
    with pytest.raises((StructureError, MeshAxisError)) as raised:
        assert_cost(WRITTEN["mapped"](mesh), STRUCT, STRUCT, **budget)
    assert problem in str(raised.value)


def scaled(x: Any, w: Any) -> Any:
    return product(x, w) / lax.axis_size("dp")


def test_a_plain_function_that_depends_on_the_mesh_is_found(mesh: Mesh) -> None:
    with pytest.raises(AssertionError, match="scaled: return value depends on the mesh: it is 1/2 of"):
        assert_mesh_invariant(jax.shard_map(scaled, mesh=mesh, **SPECS), ["dp=2"], x=STRUCT, w=STRUCT, trials=1)


def test_a_size_that_is_read_off_a_mesh_that_is_closed_over_is_noted(mesh: Mesh) -> None:
    def total(x: Any) -> Any:
        size, found = mesh.shape["dp"], x.sum(0)
        for _ in range(size - 1):
            x = lax.ppermute(x, "dp", [(at, (at + 1) % size) for at in range(size)])
            found += x.sum(0)
        return found

    f = jax.shard_map(total, mesh=mesh, in_specs=P("dp"), out_specs=P(), check_vma=False)
    with pytest.raises(Exception) as raised:
        assert_mesh_invariant(jax.jit(f), ["dp=2", "dp=4"], args=(jnp.arange(64.0).reshape(8, 8),), trials=1)
    assert raised.value.__notes__[-1] == (
        "total closes over mesh, whose sizes stay what they are (its own mesh is dp=4, tp=2); jax.lax.axis_size('tp') "
        "is right on every mesh"
    )


def test_a_sharding_that_is_closed_over_stays_where_it_is(mesh: Mesh) -> None:
    rows = NamedSharding(mesh, P("dp"))

    def constrained(x: Any) -> Any:
        x = lax.with_sharding_constraint(x, rows)
        return jax.shard_map(lambda x: x, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))(x)

    with pytest.raises(ValueError, match="incompatible devices") as raised:
        assert_mesh_invariant(constrained, ["dp=2"], args=(STRUCT,), trials=1)
    assert raised.value.__notes__[-1] == (
        "constrained closes over arrays or shardings of its own mesh, which stay on it: pass arrays as arguments"
    )


def test_what_was_mapped_without_a_mesh_keeps_its_first_one(mesh: Mesh) -> None:
    f = WRITTEN["ambient"](mesh)
    with jax.set_mesh(mesh):
        assert_mesh_invariant(f, ["dp=2"], args=(STRUCT, STRUCT), trials=1)
        assert jax.eval_shape(f, STRUCT, STRUCT).shape == (8, 8)


def test_a_size_that_the_body_closes_over_is_noted(mesh: Mesh) -> None:
    size = mesh.shape["dp"]

    def shift(x: Any) -> Any:
        return lax.ppermute(x, "dp", [(at, (at + 1) % size) for at in range(size)])

    f = jax.shard_map(shift, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))
    with pytest.raises(Exception, match="ppermute") as raised:
        assert_mesh_invariant(f, ["dp=2"], args=(STRUCT,), trials=1)
    assert any("shift closes over size, which may be the size of 'dp'" in note for note in raised.value.__notes__)


def test_a_size_that_a_typed_function_closes_over_is_noted(mesh: Mesh) -> None:
    size = mesh.shape["dp"]

    @typed_shard_map(mesh=mesh)
    def mean(x: Float[Array, "[b/dp] m"]) -> Float[Array, "m"]:
        return lax.psum(x.mean(0), "dp") / size

    with pytest.raises(AssertionError, match="mean: return value depends on the mesh") as raised:
        assert_mesh_invariant(mean, ["dp=2"], trials=1)
    assert raised.value.__notes__ == [
        "mean closes over size, which may be the size of 'dp' (its own mesh is dp=4, tp=2); jax.lax.axis_size('dp') is "
        "right on every mesh"
    ]


@pytest.mark.parametrize("name", ["mapped", "jitted", "called"])
def test_axes_may_be_explicit(name: str, mesh: Mesh) -> None:
    explicit_mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
    f = WRITTEN[name](explicit_mesh)
    specs = (P("dp", "tp"), P("tp", None))
    args = [jax.ShapeDtypeStruct((8, 8), np.float32, sharding=NamedSharding(explicit_mesh, spec)) for spec in specs]
    found = explain(f, *args, meshes=[explicit_mesh, "dp=2,tp=4"])
    assert found.failures == () and [row.totals[0].axes for row in found.rows] == [("tp",)] * 2  # type: ignore[union-attr]
    assert_mesh_invariant(f, ["dp=2,tp=4"], args=args, trials=1)
    with pytest.raises(ValueError, match="in_specs passed to shard_map") as raised:
        explain(f, STRUCT, STRUCT)
    assert any("jax.shard_map takes arguments as they are sharded: pass" in note for note in raised.value.__notes__)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mapped", "jitted", "called", "ambient"])
def test_a_right_plain_function_is_the_same_on_every_mesh(name: str, mesh: Mesh) -> None:
    x = jax.device_put(jnp.arange(64.0).reshape(8, 8), NamedSharding(mesh, P("dp", "tp")))
    found = assert_mesh_invariant(WRITTEN[name](mesh), ["dp=2", "dp=2,tp=4"], args=(x, STRUCT), grad=True)
    assert len(found.meshes) == 3


def test_what_is_for_other_functions_is_refused(mesh: Mesh) -> None:
    with pytest.raises(StructureError, match="manual= is for helpers made by typed"):
        assert_mesh_invariant(WRITTEN["mapped"](mesh), args=(STRUCT, STRUCT), manual=True)

    @typed_shard_map(mesh=mesh)
    def typed(x: Float[Array, "[b/dp] m"]) -> Float[Array, "[b/dp] m"]:
        return x

    with pytest.raises(StructureError, match="args= is for functions without hints"):
        assert_mesh_invariant(typed, args=(STRUCT,))
