"""``shard`` in every situation in which a program constrains an array: what JAX's own verbs do there by hand."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from expecting import fails
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from placed import AUTO, EXPLICIT, MESHES, RUN, U, X, either_mesh, every_mesh, is_sharded, put

from typedshmap import (
    Array,
    Float,
    MeshAxisError,
    ShapeError,
    ShardingError,
    VaryingError,
    check,
    partition_specs,
    shape_structs,
    shard,
    shardings,
    typed_jit,
    typed_shard_map,
)
from typedshmap._jax.versions import HAS_MANUAL_TYPES

ROWS, BOTH = Float[Array, "[b/dp] d"], Float[Array, "[b/dp] [d/tp]"]

HINTS = {
    "one axis": ("[b/tp] d", P("tp")),
    "two dims": ("[b/dp] [d/tp]", P("dp", "tp")),
    "swapped": ("[b/tp] [d/dp]", P("tp", "dp")),
    "unsharded": ("[b/] d", P()),
    "two axes": ("[b/dp,tp] d", P(("dp", "tp"))),
    "two axes, swapped": ("[b/tp,dp] d", P(("tp", "dp"))),
}
in_and_out_of_jit = pytest.mark.parametrize("run", [RUN["eager"], RUN["jit"]], ids=["eager", "jit"])


@pytest.mark.sample(7)
@every_mesh
@pytest.mark.parametrize("is_ambient", [True, False], ids=["ambient mesh", "mesh="])
@pytest.mark.parametrize("run", RUN.values(), ids=RUN)
@pytest.mark.parametrize(("hint", "spec"), HINTS.values(), ids=HINTS)
def test_a_value_is_placed(mesh: Mesh, is_ambient: bool, run: Any, hint: str, spec: P) -> None:
    mixed = pytest.raises(MeshAxisError, match=r"over '.*' \(Auto\) and '.*' \(Explicit\) at once")
    is_refused = "," in hint and len(set(mesh.axis_types)) > 1
    with jax.set_mesh(mesh) if is_ambient else nullcontext(), mixed if is_refused else nullcontext():
        got = run(lambda x: shard(x, hint, None if is_ambient else mesh))(put(mesh))
        assert is_sharded(got, mesh, spec)


@every_mesh
@in_and_out_of_jit
def test_the_gradient_passes_by(mesh: Mesh, run: Any) -> None:
    with jax.set_mesh(mesh):
        gradient = jax.grad(lambda x: (shard(x, "[b/dp] [d/tp]") ** 2).sum() / 2)
        assert is_sharded(run(gradient)(put(mesh, P("dp", "tp"))), mesh, P("dp", "tp"))


@every_mesh
@in_and_out_of_jit
def test_a_mapped_dim_may_be_sharded_by_its_name(mesh: Mesh, run: Any) -> None:
    with jax.set_mesh(mesh):
        mapped = jax.vmap(lambda row: shard(row, "[d/tp]"), spmd_axis_name="dp")
        assert is_sharded(run(mapped)(put(mesh)), mesh, P("dp", "tp"))


@every_mesh
def test_a_loop_places_its_rows(mesh: Mesh) -> None:
    def body(carry: Any, row: Any) -> Any:
        return carry, shard(row, "[d/tp]")

    with jax.set_mesh(mesh):
        rows = put(mesh, P())
        assert is_sharded(jax.jit(lambda x: jax.lax.scan(body, 0, x)[1])(rows), mesh, P(None, "tp"))


# What is placed already


@either_mesh
@pytest.mark.parametrize("spec", [P("dp"), P("dp", None), P(("dp",)), P(("dp",), None)], ids=str)
def test_what_is_placed_already_is_the_same_object(mesh: Mesh, spec: P) -> None:
    x = put(mesh, spec)
    assert shard(x, "[b/dp] d", mesh) is x
    with jax.set_mesh(mesh):
        assert shard({"a": x, "b": [x]}, {"a": "[b/dp] d", "b": list[Float[Array, "[b/dp] d"]]})["b"][0] is x


def test_what_is_typed_so_already_is_the_same_object_under_jit() -> None:
    same = list[bool]()
    with jax.set_mesh(MESHES["Explicit"]):
        jax.eval_shape(lambda x: same.append(shard(x, "[b/dp] d") is x), put(MESHES["Explicit"]))
    assert same == [True]


def test_the_same_sharding_on_another_mesh_is_moved_to_this_one() -> None:
    other = jax.make_mesh((8,), ("x",), axis_types=(AUTO,))
    got = shard(put(other, P("x")), "[b/dp,tp] d", MESHES["Auto"])
    assert got.sharding.mesh == MESHES["Auto"] and is_sharded(got, MESHES["Auto"], P(("dp", "tp")))


# Hints that say nothing, and no mesh


@in_and_out_of_jit
def test_a_bare_hint_says_nothing_without_a_mesh(run: Any) -> None:
    seen: list[bool] = []

    def f(x: Any) -> Any:
        got = shard(x, "b d")
        seen.append(got is x)
        return got

    run(f)(X)
    assert seen == [True]
    with pytest.raises(ShapeError):
        run(lambda x: shard(x, "b b"))(X)


@in_and_out_of_jit
def test_brackets_without_a_mesh_say_how_one_is_given(run: Any) -> None:
    with pytest.raises(MeshAxisError) as caught:
        run(lambda x: shard(x, "[b/dp] d"))(X)
    lines = str(caught.value).splitlines()
    assert lines[0] == "shard: no mesh is known"
    assert lines[-1] == "Hint: pass mesh=, or call it under jax.set_mesh(mesh)"


def test_a_bare_hint_is_unsharded_at_once_and_nothing_under_jit() -> None:
    mesh = MESHES["Auto"]
    with jax.set_mesh(mesh):
        assert is_sharded(shard(put(mesh), "b d"), mesh, P())
        text = jax.jit(lambda x: shard(x, "b d")).lower(put(mesh)).as_text()
        assert "sharding_constraint" not in text


def test_the_mesh_of_the_value_is_known() -> None:
    mesh = MESHES["Auto"]
    assert is_sharded(shard(put(mesh), "b [d/tp]"), mesh, P(None, "tp"))
    assert is_sharded(jax.jit(lambda x: shard(x, "b [d/tp]"))(put(mesh)), mesh, P(None, "tp"))


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT], ids=str)
@in_and_out_of_jit
def test_a_mesh_without_devices_has_those_of_the_value(kind: AxisType, run: Any) -> None:
    mesh = Mesh(MESHES["Auto"].devices, ("dp", "tp"), axis_types=(kind, kind))
    abstract = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(kind, kind))
    assert is_sharded(run(lambda x: shard(x, "b [d/tp]", abstract))(put(mesh)), mesh, P(None, "tp"))


# Dims of any sharding


@pytest.mark.sample(3)
@every_mesh
@pytest.mark.parametrize("run", RUN.values(), ids=RUN)
@pytest.mark.parametrize("hint", ["[b/?] [d/tp]", Float[Array, "b d", P(U, "tp")]], ids=["a string", "a spec"])
def test_a_dim_of_any_sharding_keeps_the_one_it_has(mesh: Mesh, run: Any, hint: Any) -> None:
    with jax.set_mesh(mesh):
        assert is_sharded(run(lambda x: shard(x, hint, mesh))(put(mesh)), mesh, P("dp", "tp"))


@either_mesh
def test_an_axis_that_is_written_leaves_a_dim_of_any_sharding(mesh: Mesh) -> None:
    assert is_sharded(shard(put(mesh), "[b/?] [d/dp]", mesh), mesh, P(None, "dp"))


def test_the_constraint_is_the_one_by_hand() -> None:
    with jax.set_mesh(MESHES["Auto"]):
        ours = jax.jit(lambda x: shard(x, "[b/?] [d/tp]")).lower(X).as_text()
        assert ours == jax.jit(lambda x: jax.lax.with_sharding_constraint(x, P(U, "tp"))).lower(X).as_text()
        assert ours.count("sharding_constraint") == 1
        text = jax.jit(lambda x: shard(x, "[b/?] [d/?]")).lower(X).as_text()
        assert "sharding_constraint" not in text
    with jax.set_mesh(MESHES["Explicit"]):
        x = put(MESHES["Explicit"])
        ours = jax.jit(lambda x: shard(x, "[b/tp] d")).lower(x).as_text()
        assert ours == jax.jit(lambda x: jax.reshard(x, P("tp", None))).lower(x).as_text()


def test_specs_and_shardings_have_unconstrained_dims() -> None:
    hint = Float[Array, "[b/?] [d/tp]"]
    assert partition_specs(hint) == P(U, "tp") == partition_specs(Float[Array, "b d", P(U, "tp")])
    assert shardings(hint, MESHES["Auto"]) == NamedSharding(MESHES["Auto"], P(U, "tp"))
    assert shape_structs(hint, MESHES["Auto"], b=8, d=16).sharding.spec == P(None, "tp")


@every_mesh
def test_verbs_that_look_accept_any_sharding_of_the_dim(mesh: Mesh) -> None:
    x = put(mesh, P("dp", "tp"))
    for hint in ("[b/?] [d/tp]", "[b/dp] [d/?]", "[b/?] [d/?]"):
        assert check(x, hint) is x and isinstance(x, Float[Array, hint])
        jax.eval_shape(lambda x, hint=hint: check(x, hint), x)
    for hint in ("[b/?] d", "[b/tp] [d/?]"):
        assert not isinstance(x, Float[Array, hint])
        with pytest.raises(ShardingError, match="but its hint says P"):
            check(x, hint)


@every_mesh
def test_such_an_argument_has_no_in_sharding_and_such_a_result_a_constraint(mesh: Mesh) -> None:
    @typed_jit(mesh=mesh)
    def f(x: Float[Array, "[b/?] [d/tp]"]) -> Float[Array, "[b/?] [d/tp]"]:
        return x

    x = put(mesh, P("dp", "tp"))
    assert is_sharded(f(x), mesh, P("dp", "tp"))
    with pytest.raises(ShardingError, match="argument 'x' is sharded"):
        f(put(mesh, P("tp", "dp")))

    @typed_jit(mesh=mesh)
    def g(x: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/?] [d/tp]"]:
        return x

    if AxisType.Explicit in mesh.axis_types[1:]:  # there the type of the result is compared
        with pytest.raises(
            ShardingError, match=r"return value is sharded P\(.*but its hint says P\(P.UNCONSTRAINED, 'tp'"
        ):
            g(put(mesh))
        return
    got = g(put(mesh))
    np.testing.assert_array_equal(got, X)
    assert got.sharding.spec[1] == "tp"


def test_a_dim_of_any_sharding_is_refused_where_a_shard_varies() -> None:
    @typed_shard_map(mesh=MESHES["Auto"])
    def f(x: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/dp] d"]:
        check(x, "[n/?] d")
        return x

    with pytest.raises(VaryingError, match="varies over 'dp'"):
        jax.eval_shape(f, X)


@pytest.mark.parametrize("where", ["argument", "result"])
def test_a_dim_of_any_sharding_is_refused_at_a_boundary(where: str) -> None:
    hints = [Float[Array, "[n/?] d"], ROWS]
    into, out = hints if where == "argument" else hints[::-1]
    f = typed_shard_map(lambda x: x, mesh=MESHES["Auto"], in_types=into, out_types=out)
    with pytest.raises(ShardingError, match=r"has '\[n/\?\]' in its hint, but at the boundary of a manual region"):
        jax.eval_shape(f, X)


# Regions


@pytest.mark.parametrize("name", ["Auto", "Explicit", "mixed"])
def test_in_a_region_over_all_axes_nothing_moves(name: str) -> None:
    mesh, seen = MESHES[name], list[bool]()

    def f(x: Any) -> None:
        found = (shard(x, "[b/dp] [d/tp]"), shard(x, "[b/dp] [d/tp]", mesh), shard(x, None))
        seen.append(all(got is x for got in found))

    jax.eval_shape(typed_shard_map(f, mesh=mesh, in_types=BOTH, out_types=None), put(mesh, P("dp", "tp")))
    assert seen and all(seen)


def test_in_a_region_what_is_manual_is_checked() -> None:
    f = typed_shard_map(lambda x: shard(x, "n d"), mesh=MESHES["Auto"], in_types=ROWS, out_types=ROWS)
    with pytest.raises(VaryingError, match="given value varies over 'dp', which its hint does not mention"):
        jax.eval_shape(f, X)


@in_and_out_of_jit
@every_mesh
def test_in_a_region_the_other_axes_are_placed(mesh: Mesh, run: Any) -> None:
    verb = jax.reshard if mesh.axis_types[1] is EXPLICIT else jax.lax.with_sharding_constraint
    over: dict[str, Any] = {"mesh": mesh, "axis_names": {"dp"}}
    region = typed_shard_map(lambda x: shard(x, "[b/dp] [d/tp]"), in_types=ROWS, out_types=ROWS, **over)
    by_hand = jax.shard_map(lambda x: verb(x, P(None, "tp")), in_specs=P("dp"), out_specs=P("dp"), **over)
    with jax.set_mesh(mesh):
        x = put(mesh)
        expected = jax.jit(by_hand)(x).sharding.spec
        assert is_sharded(run(region)(x), mesh, expected)
        assert jax.jit(region).lower(x).as_text() == jax.jit(by_hand).lower(x).as_text()


def test_in_a_region_a_hint_of_its_axes_alone_adds_nothing() -> None:
    def constraints(body: Any) -> int:
        region = typed_shard_map(body, mesh=MESHES["Auto"], axis_names={"dp"}, in_types=ROWS, out_types=ROWS)
        return jax.jit(region).lower(X).as_text().count("constraint")

    assert constraints(lambda x: shard(x, "[b/dp] d")) == constraints(lambda x: x)


# typed_jit


@every_mesh
def test_every_verb_knows_the_mesh_of_typed_jit(mesh: Mesh) -> None:
    found: list[Any] = []

    @typed_jit(mesh=mesh)
    def f(x: Float[Array, "[b/dp] d"]) -> Float[Array, "b [d/tp]"]:
        found.append(shardings(Float[Array, "[b/tp] d"]))
        with pytest.raises(MeshAxisError, match="'pp'"):
            partition_specs(Float[Array, "[b/pp] d"])
        return shard(x, "b [d/tp]")

    assert is_sharded(f(X), mesh, P(None, "tp"))
    assert found[0] == NamedSharding(mesh, P("tp", None))


STATED: dict[str, tuple[str, str | None]] = {
    "the same": ("[b/dp] d", None),
    "another": ("b [d/tp]", "f: argument 'x' is sharded P(None, 'tp') by shard, but its hint says P('dp', None)"),
    "any": ("[b/?] [d/?]", None),
}


@pytest.mark.parametrize(("hint", "line"), STATED.values(), ids=STATED)
@pytest.mark.parametrize("mesh", [MESHES["Auto"], MESHES["mixed, the other way"]], ids=["Auto", "mixed"])
def test_a_typed_jit_under_jit_moves_nothing_that_is_known(mesh: Mesh, hint: str, line: str | None) -> None:
    if mesh is not MESHES["Auto"] and line is not None:
        line = "f: argument 'x' is sharded P(None, None), but its hint says P('dp', None)"  # by its type

    @typed_jit(mesh=mesh)
    def f(x: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/dp] [d/tp]"]:
        return x

    program = jax.jit(lambda x: f(shard(x, hint, mesh)))
    if line is None:
        program(put(mesh)).block_until_ready()
        return
    with fails(ShardingError, line):
        program(put(mesh))


def test_what_is_stated_of_a_value_is_not_taken_for_another_of_its_type() -> None:
    with jax.set_mesh(MESHES["Auto"]):

        def f(x: Any) -> Any:
            check(shard(x, "[b/dp] d"), ROWS)
            check(x, ROWS)
            return check(shard(x, "b [d/tp]"), ROWS)

        with pytest.raises(ShardingError, match=r"sharded P\(None, 'tp'\) by shard"):
            jax.eval_shape(f, X)


# Leaves that are left alone


@dataclass
class Pair:
    a: Float[Array, "[b/dp] d"]
    b: Any
    c: None = None


jax.tree_util.register_dataclass(Pair, ["a", "b", "c"], [])


@in_and_out_of_jit
def test_a_leaf_hinted_any_or_none_is_left_alone(run: Any) -> None:
    mesh = MESHES["Auto"]
    other, x = put(mesh, P("tp")), put(mesh, P())

    def f(pair: Pair) -> Pair:
        return shard(pair, Pair, mesh)

    got = run(f)(Pair(x, other))
    assert is_sharded(got.a, mesh, P("dp")) and is_sharded(got.b, mesh, P("tp")) and got.c is None
    if run is RUN["eager"]:
        assert got.b is other
        assert shard({"a": x, "b": other}, {"a": "[b/dp] d", "b": Any}, mesh)["b"] is other


# Memory


@either_mesh
def test_the_memory_of_an_array_stays(mesh: Mesh) -> None:
    host = put(mesh, memory_kind="pinned_host")
    assert shard(host, "[b/dp] d", mesh) is host
    got = shard(host, "b [d/tp]", mesh)
    assert got.sharding.memory_kind == "pinned_host" and is_sharded(got, mesh, P(None, "tp"))
    back = shard(got, "b [d/tp]", mesh, memory_kind="device")
    assert back.sharding.memory_kind == "device" and is_sharded(back, mesh, P(None, "tp"))


@pytest.mark.skipif(not HAS_MANUAL_TYPES, reason="jax 0.9 has no memory on a CPU's host under jit")
@every_mesh
@pytest.mark.parametrize(
    ("hint", "spec"), [("b [d/tp]", P(None, "tp")), ("[b/?] [d/tp]", P("dp", "tp")), ("b d", P("dp"))]
)
def test_memory_may_be_asked_for_under_jit(mesh: Mesh, hint: str, spec: P) -> None:
    program = jax.jit(lambda x: shard(x, hint, memory_kind="pinned_host"))
    with jax.set_mesh(mesh):
        x = put(mesh)
        got = program(x)
        assert is_sharded(got, mesh, spec)
        assert 'jax.result_info = "result", mhlo.memory_kind = "pinned_host"' in program.lower(x).as_text()
        if len(set(mesh.axis_types)) > 1:
            return  # of a result on such a mesh JAX says "device"
        assert got.sharding.memory_kind == "pinned_host"
        kept = jax.jit(lambda x: shard(x, hint))(got)
        assert kept.sharding.memory_kind == "pinned_host"


def test_shardings_name_a_memory() -> None:
    hint = Float[Array, "[b/dp] d"]
    want = NamedSharding(MESHES["Auto"], P("dp", None), memory_kind="pinned_host")
    assert shardings(hint, MESHES["Auto"], memory_kind="pinned_host") == want
    assert shardings(hint, MESHES["Auto"]).memory_kind == "device"


ASKING: list[Callable[[Any], Any]] = [
    lambda kind: shard(X, ROWS, MESHES["Auto"], memory_kind=kind),
    lambda kind: shardings(ROWS, MESHES["Auto"], memory_kind=kind),
]


@pytest.mark.parametrize("verb", ASKING, ids=["shard", "shardings"])
@pytest.mark.parametrize("kind", ["disk", 3])
def test_a_memory_that_there_is_not_is_refused(verb: Any, kind: Any) -> None:
    with pytest.raises(ShardingError, match="is not a memory of the devices"):
        verb(kind)


# Partial sums


@in_and_out_of_jit
@pytest.mark.parametrize(("before", "tp"), [(P(), None), (P(), "tp"), (P("tp"), "tp"), (P("dp", "tp"), "tp")], ids=str)
def test_a_value_is_placed_as_a_partial_sum_on_explicit_axes(before: P, tp: str | None, run: Any) -> None:
    mesh, hint = MESHES["Explicit"], f"b {'[d/tp]' if tp else 'd'} +dp"
    with jax.set_mesh(mesh):
        got = jax.block_until_ready(run(lambda x: shard(x, hint))(put(mesh, before)))
        assert got.sharding.spec == P(None, tp, unreduced={"dp"})
        np.testing.assert_array_equal(jax.block_until_ready(jax.reshard(got, P(None, None))), X)


@in_and_out_of_jit
def test_a_sum_that_is_due_is_not_lost(run: Any) -> None:
    mesh = MESHES["Explicit"]
    with jax.set_mesh(mesh):
        owed = jax.jit(lambda x: shard(x, "b d +dp"))(put(mesh, P()))
        for hint in ("b d", "[b/] d", "[b/dp] d", "[b/?] d"):
            with pytest.raises(ShardingError, match="is unreduced over 'dp', which its hint does not mention"):
                run(lambda x, hint=hint: shard(x, hint))(owed)


@pytest.mark.parametrize("shape", [(), (8,), (8, 16)], ids=str)
def test_what_jit_is_given_unplaced_becomes_a_partial_sum(shape: tuple[int, ...]) -> None:
    mesh, dims = MESHES["Explicit"], " ".join("bd"[: len(shape)])
    with jax.set_mesh(mesh):
        x = np.ones(shape, np.float32)
        got = jax.block_until_ready(jax.jit(lambda x: shard(x, Float[Array, f"{dims} +dp"]))(x))
        assert got.sharding.spec.unreduced == {"dp"}
        np.testing.assert_array_equal(jax.block_until_ready(jax.reshard(got, P(*[None] * len(shape)))), x)


@in_and_out_of_jit
def test_what_is_reduced_does_not_lose_that(run: Any) -> None:
    mesh = MESHES["Explicit"]
    with jax.set_mesh(mesh):
        reduced = jax.block_until_ready(shard(put(mesh, P()), "b d -dp"))
        line = "shard: given value is reduced over 'dp', which its hint does not mention"
        with fails(ShardingError, f"{line}: its gradient would be summed here"):
            run(lambda x: shard(x, "b [d/tp]"))(reduced)
        kept = jax.jit(lambda x: shard(x, "b [d/tp] -dp"))(reduced)
        assert kept.sharding.spec == P(None, "tp", reduced={"dp"})
        assert jax.jit(lambda x: shard(x, "b d"))(reduced).sharding.spec == reduced.sharding.spec
