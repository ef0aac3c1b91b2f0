"""Specs come from hints and classes of hints, and values are placed by them."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails, mesh_of, numbers, same
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from placed import either_mesh
from trees import COLUMNS, PART, ROWS, TREES, B, FlaxState, Linear, Named, Pair, W, X, b, w, x

from typedshmap import (
    Array,
    DtypeError,
    Float,
    Float32,
    Key,
    MeshAxisError,
    PyTree,
    ShapeError,
    ShardingError,
    StructureError,
    check,
    partition_specs,
    shape_structs,
    shard,
    shardings,
    typed_shard_map,
)


class Late(NamedTuple):
    x: "Kind"  # type: ignore[name-defined]


@jax.tree_util.register_dataclass
@dataclass
class Dense:
    w: W
    b: B
    name: str = field(default="dense", metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass
class Deep:
    pair: Pair
    both: tuple[Dense, Dense]


class Gained(eqx.Module):
    b: B
    gain: float = 2.0
    names: tuple[str, ...] = ()
    width: int = eqx.field(static=True, default=6)


# Specs of hints


SPECS = [
    (Float[Array, "[b/dp] d"], P("dp", None)),
    (Float[Array, "b d"], P(None, None)),
    (Float[Array, ""], P()),
    (Float[Array, "[b/dp,tp] [d/]"], P(("dp", "tp"), None)),
    (Float[Array, "[b/(tp,dp)]"], P(("tp", "dp"))),
    (Float[Array, "[b/dp] +tp"], P("dp", unreduced={"tp"})),
    (Float[Array, "[b/dp] -tp"], P("dp", reduced={"tp"})),
    (Float[Array, "[b/dp] ~tp"], P("dp")),
    (Float[Array, "b d", P(None, "tp")], P(None, "tp")),
    (Float[Array, "b d e", P("dp")], P("dp", None, None)),
    (Float[Float[Array, "[h/tp] w"], "[b/dp]"], P("dp", "tp", None)),
    (tuple[X, W], (P("dp", None), P(None, "tp"))),
    (tuple[X, tuple[()]], (P("dp", None), ())),
    (tuple[X, None], (P("dp", None), None)),
    (Pair, Pair(P("dp", None), P(None, "tp"))),
    (Named, {"x": ROWS, "w": COLUMNS}),
    (Dense, Dense(COLUMNS, PART)),
    (Deep, Deep(Pair(P("dp", None), P(None, "tp")), (Dense(COLUMNS, PART),) * 2)),
]


@pytest.mark.parametrize(("hint", "specs"), SPECS)
def test_a_hint_has_these_specs(hint: Any, specs: Any) -> None:
    got = partition_specs(hint)
    assert type(got) is type(specs)
    assert got == specs


OPEN = [
    (Float[Array, "... [b/dp]"], 'the rank of Float[Array, "... [b/dp]"] is open'),
    (Array, 'the rank of Shaped[Array, "..."] is open'),
    (list[X], "list does not say how many arrays it holds"),
    (dict[str, X], "dict does not say how many arrays it holds"),
    (tuple[X, ...], "tuple does not say how many arrays it holds"),
    (PyTree[B], 'PyTree[Float[Array, "[f/tp]"]] does not say how many arrays it holds'),
    (tuple[X, list[B]], "[1] does not say how many arrays it holds"),
]


@pytest.mark.parametrize(("hint", "problem"), OPEN)
def test_a_hint_that_leaves_ranks_or_lengths_open_wants_a_value(hint: Any, problem: str) -> None:
    with fails(StructureError, f"partition_specs: {problem}"):
        partition_specs(hint)


WRONG_LIKE = [
    (list[X], (x,), StructureError, "given value is a tuple, but its hint says list"),
    (FlaxState, FlaxState(w, np.float32(3)), DtypeError, "given.step has dtype float32, but its hint says Int"),
]


@pytest.mark.parametrize(("hint", "like", "error", "problem"), WRONG_LIKE)
def test_a_value_that_does_not_fit_its_hint_has_no_specs(hint: Any, like: Any, error: Any, problem: str) -> None:
    with fails(error, f"partition_specs: {problem}"):
        partition_specs(hint, like=like)


STATIC = [
    (FlaxState, FlaxState(P(None, "tp"), P())),
    (tuple[X, int, float, bool], (P("dp", None), P(), P(), P())),
]


@pytest.mark.parametrize(("hint", "specs"), STATIC)
def test_static_fields_have_their_defaults_and_numbers_are_unsharded(hint: Any, specs: Any) -> None:
    got = partition_specs(hint)
    assert jax.tree.structure(got) == jax.tree.structure(specs)
    assert got == specs


def test_a_number_that_is_a_leaf_has_a_spec_in_place_of_its_default() -> None:
    got = partition_specs(Gained)
    assert (got.b, got.gain, got.width, got.names) == (P("tp"), P(), 6, ())


def test_leaves_that_are_no_arrays_want_defaults_or_a_value() -> None:
    with pytest.raises(StructureError) as error:
        partition_specs(Linear)
    line = "partition_specs: .activation holds no array and has no default"
    assert str(error.value) == f"{line}\n\nHint: pass like=, a value that fixes ranks and lengths"


@dataclass
class Unregistered:
    w: W


@jax.tree_util.register_dataclass
@dataclass
class Hidden:
    w: W
    b: B = field(metadata={"static": True})


class Selfish(NamedTuple):
    w: W
    again: "Selfish"


CLASSES = [
    (Unregistered, "hint value is of class Unregistered, which holds arrays and is not registered as a pytree"),
    (Hidden, "hint value has arrays in field 'b', which is not a pytree child of Hidden"),
    (Selfish, ".again does not say how many arrays it holds"),
]


@pytest.mark.parametrize(("cls", "problem"), CLASSES)
def test_a_class_that_is_no_tree_of_arrays_has_no_specs(cls: Any, problem: str) -> None:
    with fails(StructureError, f"partition_specs: {problem}"):
        partition_specs(cls)


@pytest.mark.parametrize("like", [x[:3], jax.ShapeDtypeStruct((8, 4), np.float32)], ids=["undivided", "a shape"])
def test_a_value_need_not_divide_nor_hold_numbers_to_have_specs(like: Any) -> None:
    assert partition_specs(X, like=like) == P("dp", None)


def test_specs_are_those_of_shard_map(mesh: Mesh) -> None:
    specs = {"in_specs": (partition_specs(Dense),), "out_specs": partition_specs(W)}
    by_hand = jax.shard_map(lambda d: jnp.tanh(d.w) + d.b, mesh=mesh, **specs)
    same(by_hand(Dense(w, b)), np.tanh(w) + b)


def test_specs_know_the_ambient_mesh(mesh: Mesh) -> None:
    with jax.set_mesh(mesh):
        assert partition_specs(X) == P("dp", None)
        line = "names mesh axis 'pp', which is not among the mesh's axes 'dp', 'tp'"
        with fails(MeshAxisError, f"partition_specs: hint value {line}"):
            partition_specs(Float[Array, "[b/pp]"])
        with fails(MeshAxisError, f"partition_specs: hint[1] {line}"):
            partition_specs(tuple[X, Float[Array, "[b/pp]"]])
        with fails(MeshAxisError, f"partition_specs: given[0] {line}"):
            partition_specs(list[Float[Array, "[b/pp]"]], like=[b])
    assert partition_specs(Float[Array, "[b/pp]"]) == P("pp")


# Shardings


@pytest.mark.parametrize(("hint", "specs"), [case for case in SPECS if "tp" not in str(case[0]).rpartition(" ")[2]])
def test_the_shardings_of_a_hint_are_its_specs_over_the_mesh(hint: Any, specs: Any, mesh: Mesh) -> None:
    assert shardings(hint, mesh) == jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


IN_JIT = [
    (Dense, Dense(w, b)),
    (FlaxState, FlaxState(w, np.int32(3))),
    (Gained, Gained(b)),
    (Pair, Pair(x, w)),
    (Deep, Deep(Pair(x, w), (Dense(w, b),) * 2)),
]


@pytest.mark.parametrize(("hint", "value"), IN_JIT)
def test_jit_and_device_put_take_shardings_for_a_value_of_the_class(hint: Any, value: Any, mesh: Mesh) -> None:
    places = shardings(hint, mesh)
    arrays = jax.tree.map(jnp.asarray, value)
    put = jax.tree.map(jax.device_put, arrays, places)
    out = jax.jit(lambda v: v, in_shardings=(places,), out_shardings=places)(arrays)
    assert jax.tree.map(lambda leaf: leaf.sharding, put) == places
    assert jax.tree.map(lambda leaf: leaf.sharding, out) == places


EXPLICIT_ONLY = "mesh axis 'tp' is of type Auto, and JAX has unreduced and reduced arrays over Explicit axes only"
MARKS = {"+tp": EXPLICIT_ONLY, "-tp": EXPLICIT_ONLY, "~tp": "'~' has a meaning only inside a manual region"}


@pytest.mark.parametrize(("mark", "reason"), MARKS.items())
def test_a_marked_hint_has_no_sharding_on_auto_axes(mark: str, reason: str, mesh: Mesh) -> None:
    hint, problem = Float[Array, f"[b/dp] d {mark}"], f"value is marked '{mark}' in its hint, but {reason}"
    with fails(ShardingError, f"shardings: hint {problem}"):
        shardings(hint, mesh)
    with fails(ShardingError, f"shardings: given {problem}"):
        shardings(hint, mesh, like=x)
    with fails(ShardingError, f"shard: given {problem}"):
        shard(x, hint, mesh)


def test_marks_are_part_of_a_sharding_on_explicit_axes() -> None:
    explicit = AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Explicit,) * 2)
    assert shardings(Float[Array, "[b/dp] +tp"], explicit).spec == P("dp", unreduced={"tp"})
    assert shardings(Float[Array, "[b/dp] -tp"], explicit).spec == P("dp", reduced={"tp"})


def test_shardings_want_a_mesh_and_know_its_axes(mesh: Mesh) -> None:
    with fails(MeshAxisError, "shardings: no mesh is known"):
        shardings(X)
    line = "names mesh axis 'pp', which is not among the mesh's axes 'dp', 'tp'"
    with fails(MeshAxisError, f"shardings: hint[1] {line}"):
        shardings(tuple[X, Float[Array, "[b/pp]"]], mesh)


# Placing


PLACED = [
    pytest.param(W, w, [COLUMNS], id="one array"),
    pytest.param(Float[Array, "[b/dp] [d/tp]"], x, [P("dp", "tp")], id="two axes"),
    pytest.param(Float[Array, "[b/dp,tp] d"], x, [P(("dp", "tp"), None)], id="two axes of a dim"),
    pytest.param(Float[Array, "... [d/tp]"], x, [P(None, "tp")], id="any dims first"),
    pytest.param(Float[Array, "[b/dp] *rest d"], x, [ROWS], id="any dims between"),
    pytest.param(Array, x, [P(None, None)], id="a bare array type"),
    pytest.param(Float[Array, ""], 3.0, [P()], id="a number"),
    *TREES,
]


@pytest.mark.parametrize(("hint", "value", "specs"), PLACED)
def test_a_value_is_placed_by_the_specs_of_its_hint(hint: Any, value: Any, specs: list[P], mesh: Mesh) -> None:
    if value is not None:  # which is no value to fix the lengths
        found = jax.tree.leaves(partition_specs(hint, like=value))
        leaves = zip(found, jax.tree.leaves(value), strict=True)
        assert [spec for spec, leaf in leaves if not callable(leaf)] == specs
    placed = shard(value, hint, mesh)
    assert jax.tree.structure(placed) == jax.tree.structure(value)
    arrays = [leaf for leaf in jax.tree.leaves(placed) if not callable(leaf)]
    same(arrays, [leaf for leaf in jax.tree.leaves(value) if not callable(leaf)])
    for leaf, spec in zip(arrays, specs, strict=True):
        assert leaf.committed
        assert leaf.sharding.is_equivalent_to(NamedSharding(mesh, spec), leaf.ndim)


def test_leaves_that_are_no_arrays_stay_as_they_are(mesh: Mesh) -> None:
    assert shard(Linear(w, b, jnp.tanh), Linear, mesh).activation is jnp.tanh
    gain = shard(Gained(b), Gained, mesh).gain
    assert gain == 2.0 and type(gain) is float


def test_a_placed_value_passes_check_and_goes_into_a_mapped_function(mesh: Mesh) -> None:
    placed = shard(x, X, mesh)
    assert check(placed, X) is placed
    same(typed_shard_map(lambda x: x * 2, in_types=(X,), out_types=X)(placed), 2 * x)


def test_a_part_of_the_devices_is_a_mesh_too() -> None:
    part = Mesh(np.array(jax.devices()[2:4]), ("dp",))
    assert shard(x, X, part).sharding.device_set == set(jax.devices()[2:4])


def test_keys_are_placed(mesh: Mesh) -> None:
    keys = jax.random.split(jax.random.key(0), 8)
    placed = shard(keys, Key[Array, "[b/dp]"], mesh)
    assert placed.sharding == NamedSharding(mesh, P("dp"))
    assert (jax.random.key_data(placed) == jax.random.key_data(keys)).all()
    assert partition_specs(Key[Array, "[b/dp]"], like=jax.eval_shape(lambda: keys)) == P("dp")


TRANSFORMED = {
    "a constant under jit": lambda hint: jax.jit(lambda: shard(x, hint))(),
    "under vmap": lambda hint: jax.vmap(lambda x: shard(x, hint))(x[None])[0],
    "a constant under grad": lambda hint: jax.grad(lambda v: (v * shard(x, hint)).sum())(x),
}


@pytest.mark.sample(3)
@either_mesh
@pytest.mark.parametrize("transformed", TRANSFORMED.values(), ids=TRANSFORMED)
def test_a_value_is_placed_under_a_transformation(transformed: Any, mesh: Mesh) -> None:
    with jax.set_mesh(mesh):
        same(transformed(Float[Array, "[b/dp] [d/tp]"]), x)


def test_a_shard_has_no_global_struct(mesh: Mesh) -> None:
    line = "inside a manual region a value is one shard, which is placed already"
    with fails(MeshAxisError, f"shape_structs: {line}"):
        typed_shard_map(lambda x: shape_structs(X, b=8, d=4), mesh=mesh, in_types=(X,), out_types=X)(x)


def test_everything_that_does_not_fit_is_reported_by_its_path(mesh: Mesh) -> None:
    with pytest.raises(ShapeError) as error:
        shard(Deep(Pair(x[:6], w), (Dense(w, b[:4]), Dense(w.astype(int), b))), Deep, mesh)
    assert str(error.value) == (
        "shard: given.pair.x has b=6, which does not divide over 'dp' (4 shards)\n"
        "\n"
        '    given.pair.x: Float[Array, "[b/dp] d"]\n'
        "                                ^^^^^^\n"
        "    got f32[6,4]\n"
        "\n"
        "Mesh: dp=4, tp=2\n"
        "Sizes: d=4 (given.pair.w dim 0), f=6 (given.pair.w dim 1)\n"
        "Hint: make b a multiple of 4, or pad it and mask the rest\n"
        "Also: given.both[0].b has f=4, but given.pair.w has f=6\n"
        "Also: given.both[1].w has dtype int32, but its hint says Float"
    )


def test_shapes_without_values_are_not_placed(mesh: Mesh) -> None:
    struct = jax.ShapeDtypeStruct((8, 4), np.float32)
    with pytest.raises(StructureError) as error:
        shard([struct, x, struct], list[X], mesh)
    assert [str(failure.subject) for failure in error.value.failures] == ["given[0]", "given[2]"]


def test_a_tree_is_moved_by_one_call_and_what_is_placed_stays_the_same_object(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(jax, "device_put", lambda x, where: calls.append(x) or device_put(x, where))
    placed = shard(Deep(Pair(x, w), (Dense(w, b), Dense(w, b))), Deep, mesh)
    assert [len(moved) for moved in calls] == [6]
    again = shard(placed, Deep, mesh)
    assert [len(moved) for moved in calls] == [6, 0]
    assert all(got is had for got, had in zip(jax.tree.leaves(again), jax.tree.leaves(placed), strict=True))


device_put = jax.device_put
MOVED = {
    "of NumPy": lambda mesh: x,
    "uncommitted": lambda mesh: jnp.asarray(x),
    "on one device": lambda mesh: device_put(x, jax.devices()[0]),
    "sharded otherwise": lambda mesh: device_put(x, NamedSharding(mesh, P(None, "tp"))),
    "on devices in another order": lambda mesh: rows_on(Mesh(mesh.devices[::-1], mesh.axis_names)),
    "on Explicit axes": lambda mesh: rows_on(mesh_of(4, 2, kind=AxisType.Explicit)),
}


def rows_on(mesh: Mesh) -> jax.Array:
    return device_put(x, NamedSharding(mesh, P("dp", None)))


def test_a_tree_of_the_same_shapes_is_checked_again_if_it_is_of_other_dtypes(mesh: Mesh) -> None:
    for _ in range(2):
        same(shard(Pair(x, w), Pair, mesh), Pair(x, w))
    with fails(DtypeError, "shard: given.w has dtype int32, but its hint says Float"):
        shard(Pair(x, w.astype(np.int32)), Pair, mesh)
    with pytest.raises(ShapeError, match="d=5"):
        shard(Pair(x, numbers(5, 6)), Pair, mesh)


def test_a_class_is_read_again_if_what_its_hints_name_has_changed(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    for dims, spec in (("[b/dp] d", P("dp", None)), ("b [d/dp]", P(None, "dp")), ("[b/dp] d", P("dp", None))):
        monkeypatch.setitem(globals(), "Kind", Float[Array, dims])
        assert shard(Late(x), Late, mesh).x.sharding.spec == spec


def test_what_jax_makes_of_64_bits_is_asked_each_time(mesh: Mesh) -> None:
    wide = x.astype(np.float64)
    assert shard(wide, Float32[Array, "[b/dp] d"], mesh).dtype == np.float32
    with jax.enable_x64(True), pytest.raises(DtypeError, match="float64"):
        shard(wide, Float32[Array, "[b/dp] d"], mesh)


@pytest.mark.parametrize("have", MOVED)
def test_what_is_elsewhere_is_moved(have: str, mesh: Mesh) -> None:
    moved = shard((MOVED[have](mesh), x), tuple[X, X], mesh)[0]
    assert moved.sharding == NamedSharding(mesh, P("dp", None))
    assert jax.typeof(moved) == jax.typeof(shard(x, X, mesh))
    same(moved, x)


MISPLACED = [
    (X, x[:6], ShapeError, "given value has b=6, which does not divide over 'dp' (4 shards)"),
    (X, x[0], ShapeError, "given value has 1 dim, but its hint has 2"),
    (X, x.astype(int), DtypeError, "given value has dtype int32, but its hint says Float"),
    (X, [x], StructureError, "given value is a list, but its hint says Array"),
    (X, None, StructureError, "given value is None, but its hint says Array"),
    (list[B], [b[:5]], ShapeError, "given[0] has f=5, which does not divide over 'tp' (2 shards)"),
    (Pair, Pair(x, w[:3]), ShapeError, "given.w has d=3, but given.x has d=4"),
    (Dense, Dense(w, b, 3), StructureError, "given.name is 3 (int), but its hint says str"),
    (Float[Array, "[b/pp]"], b, MeshAxisError,
     "given value names mesh axis 'pp', which is not among the mesh's axes 'dp', 'tp'"),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "value", "error", "problem"), MISPLACED)
def test_a_value_that_does_not_fit_its_hint_is_not_placed(
    hint: Any, value: Any, error: Any, problem: str, mesh: Mesh
) -> None:
    with fails(error, f"shard: {problem}"):
        shard(value, hint, mesh)


def test_a_value_is_not_placed_on_what_is_no_mesh() -> None:
    with fails(MeshAxisError, "mesh= expects a jax.sharding.Mesh or AbstractMesh, got 8 of type int"):
        shard(x, X, 8)
