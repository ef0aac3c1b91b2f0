"""The mesh is looked up at every call; names in hints may stand for its axes; regions may be nested."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails, mesh_of, numbers, same, traced
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    MeshAxisError,
    ShapeError,
    ShardingError,
    StructureError,
    VaryingError,
    axis_aliases,
    check,
    explain,
    partition_specs,
    plan_reshard,
    shape_structs,
    shard,
    shard_size,
    shardings,
    show,
    size,
    sizes,
    typed,
    typed_jit,
    typed_shard_map,
)
from typedshmap._jax.versions import HAS_MANUAL_TYPES
from typedshmap.testing import assert_cost, assert_mesh_invariant, inputs

X = Float[Array, "[b/dp] d"]
XY = Float[Array, "[b/dp] [d/tp]"]
x = numbers(8, 4)
EXPLICIT = mesh_of(4, 2, kind=AxisType.Explicit)
MIXED = Mesh(EXPLICIT.devices, ("dp", "tp"), axis_types=(AxisType.Auto, AxisType.Explicit))


def abstract_of(*shape: int) -> AbstractMesh:
    return AbstractMesh(shape, ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def doubling(mesh: Any, **options: Any) -> Callable[..., Any]:
    return typed_shard_map(lambda x: x * 2, mesh=mesh, in_types=XY, out_types=XY, **options)


def looking(shapes: list[tuple[int, ...]], **options: Any) -> Callable[..., Any]:
    """A mapped function that notes its shards' shapes."""

    @typed_shard_map(**options)
    def look(x: X) -> X:
        shapes.append(x.shape)
        return x * (0.3 if size("b") == 8 else 0)

    return look


# Where the mesh comes from


def test_the_mesh_of_one_argument_is_enough(mesh: Mesh) -> None:
    add = typed_shard_map(lambda a, b: a + b[0], in_types=(X, list[X]), out_types=X)
    same(add(x, [shard(x, X, mesh)]), 2 * x)
    same(jax.jit(add)(x, [shard(x, X, mesh)]), 2 * x)


NO_MESH = "look: no mesh is known: mesh= is not given, none is ambient, and no argument was placed on one"


def test_no_mesh_is_refused() -> None:
    for values in (x, jnp.asarray(x)):
        with fails(MeshAxisError, NO_MESH):
            looking([])(values)
        with fails(MeshAxisError, NO_MESH):
            jax.jit(looking([]))(values)


def test_an_empty_mesh_means_none() -> None:
    with fails(MeshAxisError, NO_MESH):
        looking([], mesh=jax.sharding.get_abstract_mesh())(x)


@pytest.mark.parametrize(
    ("value", "got"),
    [(8, "8 of type int"), (("dp", "tp"), "('dp', 'tp') of type tuple"), (x, "a value of type ndarray")],
    ids=["number", "names", "array"],
)
def test_what_is_no_mesh_is_refused_at_decoration(value: Any, got: str) -> None:
    with fails(MeshAxisError, f"mesh= expects a jax.sharding.Mesh or AbstractMesh, got {got}"):
        typed_shard_map(mesh=value)


@pytest.mark.parametrize("mesh", [{"dp": 4, "tp": 2}, "dp=4,tp=2"], ids=["dict", "text"])
def test_a_mesh_is_given_by_its_sizes_too(mesh: Any) -> None:
    shapes: list[tuple[int, ...]] = []
    with jax.set_mesh(mesh_of(4, 2)):
        same(looking(shapes, mesh=mesh)(x), x * 0.3)
        same(typed_jit(looking(shapes), mesh=mesh)(x), x * 0.3)
    assert shapes == [(2, 4), (2, 4)]


@pytest.mark.parametrize("mesh", [{"dp": "4"}, "dp", {}, "dp=0"])
def test_sizes_that_make_no_mesh_are_refused_at_decoration(mesh: Any) -> None:
    with fails(MeshAxisError, f"mesh= is {mesh!r}"):
        typed_shard_map(mesh=mesh)


def test_one_callable_follows_the_mesh_of_its_arguments() -> None:
    shapes: list[tuple[int, ...]] = []
    look = looking(shapes)
    for rows, columns in [(4, 2), (2, 4)]:
        same(look(shard(x, X, mesh_of(rows, columns))), x * 0.3)
    assert shapes == [(2, 4), (4, 4)]


def test_a_mesh_of_one_device_is_a_mesh_like_others() -> None:
    one = mesh_of(1, 1)
    total = typed_shard_map(
        lambda x: jax.lax.psum(x.sum(1), "tp") * size("b"), mesh=one, in_types=(XY,), out_types=Float[Array, "[b/dp]"]
    )
    same(total(x), x.sum(1) * 8)
    same(total(jax.device_put(x, jax.devices()[0])), x.sum(1) * 8)


# Meshes that contradict each other


def test_a_given_mesh_like_the_ambient_one_is_taken(mesh: Mesh) -> None:
    for given in (mesh, mesh.abstract_mesh, abstract_of(4, 2)):
        with jax.set_mesh(mesh):
            same(looking([], mesh=given)(x), x * 0.3)


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        (lambda: mesh_of(2, 4), "dp=2, tp=4; Auto"),
        (lambda: mesh_of(4, 2, names=("data", "tp")), "data=4, tp=2; Auto"),
        (lambda: mesh_of(4, 2, kind=AxisType.Explicit), "dp=4, tp=2; Explicit"),
        (lambda: abstract_of(2, 4), "dp=2, tp=4; Auto"),
    ],
)
def test_a_given_mesh_that_contradicts_the_ambient_one_is_refused(given: Any, facts: str, mesh: Mesh) -> None:
    line = f"look: its mesh ({facts}) contradicts the ambient one (dp=4, tp=2; Auto)"
    with jax.set_mesh(mesh), fails(MeshAxisError, line):
        looking([], mesh=given())(x)


def test_arguments_on_different_meshes_are_refused(mesh: Mesh) -> None:
    add = typed_shard_map(lambda a, b: a + b, in_types=(X, X), out_types=X)
    line = "<lambda>: its arguments are on different meshes: "
    line += "argument 'a' is on dp=4, tp=2; Auto and argument 'b' on dp=2, tp=4; Auto"
    arguments = shard(x, X, mesh), shard(x, X, mesh_of(2, 4))
    with fails(MeshAxisError, line):
        add(*arguments)
    with fails(MeshAxisError, line):
        jax.jit(add)(*arguments)


def test_an_argument_on_the_same_devices_under_other_names_is_taken(mesh: Mesh) -> None:
    other = NamedSharding(mesh_of(4, 2, names=("rows", "columns")), P("rows"))
    same(looking([], mesh=mesh)(jax.device_put(x, other)), x * 0.3)


# Abstract meshes


def test_an_abstract_mesh_is_enough_to_trace() -> None:
    shapes: list[tuple[int, ...]] = []
    look = looking(shapes, mesh=abstract_of(16, 2))
    got = jax.eval_shape(look, jax.ShapeDtypeStruct((32, 4), np.float32))
    assert (got.shape, shapes) == ((32, 4), [(2, 4)])
    with fails(ShapeError, "look: argument 'x' has b=24, which does not divide over 'dp' (16 shards)"):
        jax.eval_shape(look, jax.ShapeDtypeStruct((24, 4), np.float32))


def test_an_abstract_mesh_takes_placed_arrays_and_under_its_concrete_one_any(mesh: Mesh) -> None:
    for abstract in (mesh.abstract_mesh, abstract_of(4, 2)):
        for wrap in (lambda f: f, jax.jit):
            same(wrap(looking([], mesh=abstract))(shard(x, X, mesh)), x * 0.3)
            with jax.set_mesh(mesh):
                same(wrap(looking([], mesh=abstract))(x), x * 0.3)


def test_an_abstract_mesh_refuses_an_array_on_another_mesh(mesh: Mesh) -> None:
    line = "look: argument 'x' is on the mesh dp=2, tp=4, but mesh= is dp=4, tp=2"
    with fails(ShardingError, line):
        looking([], mesh=mesh.abstract_mesh)(shard(x, X, mesh_of(2, 4)))


def test_an_abstract_mesh_without_any_array_is_refused(mesh: Mesh) -> None:
    hints = {"in_types": int, "out_types": Float[Array, " n"]}
    make = typed_shard_map(lambda n: jnp.zeros(n), mesh=mesh.abstract_mesh, **hints)
    with fails(ShardingError, "<lambda>: mesh= is an AbstractMesh, which has no devices to run on"):
        make(3)


# Explicit meshes


def test_an_explicit_mesh_takes_arrays_that_lie_as_their_hints_say() -> None:
    double = doubling(EXPLICIT)
    placed = shard(x, XY, EXPLICIT)
    for function in (double, jax.jit(double)):
        got = function(placed)
        same(got, 2 * x)
        assert jax.typeof(got).sharding.spec == P("dp", "tp")


@pytest.mark.parametrize(
    ("spec", "got"),
    [(P(None, None), "P(None, None)"), (P("dp", None), "P('dp', None)"), (P("tp", "dp"), "P('tp', 'dp')")],
)
def test_an_explicit_mesh_refuses_arrays_that_lie_otherwise(spec: P, got: str) -> None:
    double = doubling(EXPLICIT)
    placed = jax.device_put(x, NamedSharding(EXPLICIT, spec))
    line = f"<lambda>: argument 'x' is sharded {got}, but its hint says P('dp', 'tp')"
    with fails(ShardingError, line):
        double(placed)
    with fails(ShardingError, line):
        jax.jit(double)(placed)


@pytest.mark.parametrize("spec", [P("dp", "tp"), P(None, "tp")], ids=str)
def test_beside_auto_axes_an_array_must_lie_right_over_the_explicit_ones(spec: P) -> None:
    double = doubling(MIXED)
    placed = jax.device_put(x, NamedSharding(MIXED, spec))
    same(double(placed), 2 * x)
    same(jax.jit(double)(placed), 2 * x)


@pytest.mark.parametrize(("spec", "got"), [(P("dp", None), "P(None, None)"), (P("tp", "dp"), "P('tp', None)")])
def test_beside_auto_axes_an_array_that_is_sharded_otherwise_over_the_explicit_ones_is_refused(
    spec: P, got: str
) -> None:
    double = doubling(MIXED)
    with pytest.raises(ShardingError) as caught:
        double(jax.device_put(x, NamedSharding(MIXED, spec)))
    first, *_, last = str(caught.value).splitlines()
    assert first == f"<lambda>: argument 'x' is sharded {got}, but its hint says P('dp', 'tp')"
    cure = "place it by shard(x, hint, mesh), or under jit by jax.reshard(x, NamedSharding(mesh, P(None, 'tp')))"
    assert last == f"Hint: {cure}"


def test_an_explicit_mesh_refuses_arrays_that_are_not_placed() -> None:
    double = doubling(EXPLICIT)
    line = "<lambda>: argument 'x' is not placed on the mesh, whose axes are Explicit, "
    line += "but its hint says P('dp', 'tp')"
    for function in (double, jax.jit(double)):
        with fails(ShardingError, line):
            function(x)


def test_a_reduced_argument_must_be_placed_beside_auto_axes_too() -> None:
    line = "<lambda>: argument 'w' is not placed on the mesh, some of whose axes are Explicit, "
    line += "but its hint says P(None, None, reduced={'tp'})"
    with fails(ShardingError, line):
        typed_shard_map(lambda w: None, mesh=MIXED, in_types=(Float[Array, "d f -tp"],), out_types=None)(numbers(4, 6))


def test_an_explicit_mesh_takes_any_array_whose_hint_shards_nothing() -> None:
    whole = Float[Array, "b d"]
    same(typed_shard_map(lambda x: x * 2, mesh=EXPLICIT, in_types=whole, out_types=whole)(x), 2 * x)


def test_an_array_of_an_explicit_mesh_on_an_auto_mesh_is_refused(mesh: Mesh) -> None:
    line = "look: argument 'x' is sharded P('dp', 'tp'), but its hint says P('dp', None)"
    with fails(ShardingError, line):
        looking([], mesh=mesh)(shard(x, XY, EXPLICIT))


# Marks at the boundary of an Explicit mesh


OWED = Float[Array, "[b/dp] +tp"]


def rows_unreduced(x: XY) -> OWED:
    return x.sum(1)


def rows_summed(y: OWED) -> Float[Array, "[b/dp]"]:
    return jax.lax.psum(y, "tp")


def test_a_partial_sum_leaves_and_comes_back() -> None:
    partial, summed = typed_shard_map(rows_unreduced), typed_shard_map(rows_summed)
    with jax.set_mesh(EXPLICIT):
        placed = shard(x, XY)
        y = partial(placed)
        assert jax.typeof(y).sharding.spec.unreduced == {"tp"}
        same(summed(y), x.sum(1))
        same(jax.jit(lambda x: summed(partial(x)))(placed), x.sum(1))


def test_a_value_is_unreduced_where_its_hint_says_so_and_nowhere_else() -> None:
    whole = Float[Array, "[b/dp]"]
    take = typed_shard_map(lambda y: y, in_types=whole, out_types=whole)
    with jax.set_mesh(EXPLICIT):
        y = typed_shard_map(rows_unreduced)(shard(x, XY))
        line = "<lambda>: argument 'y' is sharded P('dp', unreduced={'tp'}), but its hint says P('dp')"
        with fails(ShardingError, line):
            take(y)
        line = "rows_summed: argument 'y' is sharded P('dp'), but its hint says P('dp', unreduced={'tp'})"
        with fails(ShardingError, line):
            typed_shard_map(rows_summed)(shard(x[:, 0], whole))


@pytest.mark.skipif(not HAS_MANUAL_TYPES, reason="jax 0.9 multiplies no reduced value by a varying one")
def test_a_reduced_value_enters_as_reduced() -> None:
    seen: list[str] = []

    @typed_shard_map
    def look(w: Float[Array, "d f -tp"], x: X) -> Float[Array, "[b/dp] f"]:
        seen.append(str(jax.typeof(w)))
        return x @ w

    w = numbers(4, 6)
    with jax.set_mesh(EXPLICIT):
        reduced = jax.reshard(w, P(None, None, reduced={"tp"}))
        same(look(reduced, shard(x, X)), x @ w)
    assert seen == ["float32[4,6]{R:tp}"]


def reduced(x: Any) -> Any:
    return jax.lax.pcast(jax.lax.psum(x.sum(1), "tp"), "tp", to="reduced")


@pytest.mark.parametrize("body", [reduced, lambda x: jax.lax.psum(x.sum(1), "tp")], ids=["reduced", "invarying"])
def test_a_reduced_value_leaves_as_reduced(body: Callable[[Any], Any]) -> None:
    total = typed_shard_map(body, mesh=EXPLICIT, in_types=(XY,), out_types=Float[Array, "[b/dp] -tp"])
    got = total(shard(x, XY, EXPLICIT))
    same(got, x.sum(1))
    assert jax.typeof(got).sharding.spec.reduced == {"tp"}


def test_a_reduced_value_is_refused_where_the_hint_does_not_say_so() -> None:
    total = typed_shard_map(reduced, mesh=EXPLICIT, in_types=XY, out_types=Float[Array, "[b/dp]"])
    line = "reduced: return value is reduced over 'tp' in JAX's type, which its hint does not mention"
    with fails(VaryingError, line):
        total(shard(x, XY, EXPLICIT))


# Some axes manual, and regions in regions


def test_axes_that_are_not_manual_do_not_divide(mesh: Mesh) -> None:
    seen: list[Any] = []

    @typed_shard_map(mesh=mesh, axis_names={"dp"})
    def look(x: XY) -> XY:
        seen.append((x.shape, sizes(), shard_size("b"), shard_size("d")))
        return x + x

    same(look(x), 2 * x)
    assert seen == [((2, 4), {"b": 8, "d": 4}, 2, 4)]


def test_axes_that_are_not_manual_must_divide_a_dim_too(mesh: Mesh) -> None:
    look = doubling(mesh, axis_names={"dp"})
    same(look(x), 2 * x)
    with fails(ShapeError, "<lambda>: argument 'x' has d=3, which does not divide over 'tp' (2 shards)"):
        look(numbers(8, 3))


def test_an_axis_that_is_not_manual_is_known_all_the_same(mesh: Mesh) -> None:
    hints = {"in_types": Float[Array, "[b/dp] [d/pp]"], "out_types": None}
    look = typed_shard_map(lambda x: None, mesh=mesh, axis_names={"dp"}, **hints)
    line = "<lambda>: argument 'x' names mesh axis 'pp', which is not among the mesh's axes 'dp', 'tp'"
    with fails(MeshAxisError, line):
        look(x)


@pytest.mark.parametrize(
    ("names", "got"), [(["dp"], "['dp'] (list)"), ("dp", "'dp' (str)"), (("dp",), "('dp',) (tuple)")]
)
def test_axis_names_other_than_a_set_are_refused_at_decoration(names: Any, got: str) -> None:
    with fails(StructureError, f"axis_names= expects a set of mesh axes, as jax.shard_map does; got {got}"):
        typed_shard_map(axis_names=names)


def test_a_check_vma_that_is_neither_true_nor_false_is_refused_at_decoration() -> None:
    with fails(StructureError, "check_vma= expects True or False, got array([1., 1.])"):
        typed_shard_map(check_vma=np.ones(2))


@pytest.mark.parametrize("is_given", [False, True], ids=["ambient", "given"])
def test_one_hint_is_true_in_nested_regions(is_given: bool, mesh: Mesh) -> None:
    seen: list[Any] = []

    def noted(x: Any) -> Any:
        seen.append((x.shape, size("b"), size("d"), shard_size("b"), shard_size("[d/tp]")))
        return x

    @typed
    def helper(x: XY) -> XY:
        return noted(x) * size("b")

    @typed_shard_map(mesh=mesh if is_given else None, axis_names={"tp"})
    def inner(x: XY) -> XY:
        return helper(noted(x)) + 1

    outer = typed_shard_map(lambda x: inner(noted(x) * 2), mesh=mesh, axis_names={"dp"}, in_types=XY, out_types=XY)
    same(outer(x), 16 * x + 1)
    assert seen == [((2, 4), 8, 4, 2, 4), ((2, 2), 8, 4, 2, 2), ((2, 2), 8, 4, 2, 2)]
    same(jax.jit(outer)(x), 16 * x + 1)


def test_a_function_whose_axes_are_all_manual_runs_where_it_is_called(mesh: Mesh) -> None:
    seen: list[Any] = []

    @typed_shard_map(mesh=mesh)
    def inner(x: XY) -> XY:
        seen.append((x.shape, sizes()))
        return x * size("b")

    outer = typed_shard_map(inner, mesh=mesh, in_types=(XY,), out_types=XY)
    same(outer(x), 8 * x)
    assert seen == [((2, 2), {"b": 8, "d": 4})]


def test_a_nested_region_of_another_mesh_is_refused(mesh: Mesh) -> None:
    inner = typed_shard_map(lambda x: x, mesh=mesh_of(2, 4), axis_names={"tp"}, in_types=(XY,), out_types=XY)
    outer = typed_shard_map(inner, mesh=mesh, axis_names={"dp"}, in_types=(XY,), out_types=XY)
    line = "<lambda>: its mesh (dp=2, tp=4; Auto) contradicts the ambient one (dp=4, tp=2; Auto/Manual)"
    with fails(MeshAxisError, line):
        traced(outer, x)


def test_the_ambient_mesh_of_the_decoration_may_be_passed(mesh: Mesh) -> None:
    shapes: list[tuple[int, ...]] = []
    with jax.set_mesh(mesh):
        look = looking(shapes, mesh=jax.sharding.get_abstract_mesh())
        same(look(x), x * 0.3)
    same(look(shard(x, X, mesh)), x * 0.3)

    @typed_shard_map(mesh=mesh, axis_names={"dp"})
    def outer(x: XY) -> XY:
        inner = typed_shard_map(
            lambda x: x * size("d"), mesh=jax.sharding.get_abstract_mesh(), in_types=(XY,), out_types=XY
        )
        return inner(x)

    same(outer(x), 4 * x)
    assert shapes == [(2, 4)] * 2


# Names that stand for mesh axes

ROWS = Float[Array, "[b/rows] [d/columns]"]


def shapes_of(x: Any, **options: Any) -> list[tuple[int, ...]]:
    seen: list[tuple[int, ...]] = []
    take = typed_shard_map(lambda x: seen.append(x.shape), in_types=(ROWS,), out_types=None, **options)
    traced(take, x)
    return seen


ALIASES = [
    pytest.param({"rows": "dp", "columns": "tp"}, (2, 2), id="one each"),
    pytest.param({"rows": "tp", "columns": "dp"}, (4, 1), id="the other way"),
    pytest.param({"rows": ("dp", "tp"), "columns": None}, (1, 4), id="several and none"),
    pytest.param({"rows": ["dp", "tp"], "columns": ()}, (1, 4), id="a list and an empty tuple"),
    pytest.param({"rows": None, "columns": None}, (8, 4), id="none"),
]


@pytest.mark.parametrize(("aliases", "shape"), ALIASES)
def test_names_may_stand_for_mesh_axes(aliases: Any, shape: tuple[int, ...], mesh: Mesh) -> None:
    assert shapes_of(x, mesh=mesh, axes=aliases) == [shape]
    with axis_aliases(aliases):
        assert shapes_of(x, mesh=mesh) == [shape]
    with axis_aliases(**aliases):
        assert shapes_of(x, mesh=mesh) == [shape]


def test_an_alias_may_take_the_name_of_a_mesh_axis(mesh: Mesh) -> None:
    with axis_aliases(dp="tp", tp="dp"):
        assert partition_specs(XY) == P("tp", "dp")


def test_an_alias_for_an_axis_that_is_not_in_the_mesh_is_refused(mesh: Mesh) -> None:
    line = "<lambda>: argument 'x' names mesh axis 'pp' (as 'rows'), which is not among the mesh's axes 'dp', 'tp'"
    with fails(MeshAxisError, line):
        shapes_of(x, mesh=mesh, axes={"rows": "pp", "columns": None})


@pytest.mark.parametrize(
    ("aliases", "line"),
    [
        ({"rows": 3}, "the alias 'rows' is 3; write a mesh axis, a tuple of them, or None"),
        ({"rows": ("dp", 3)}, "the alias 'rows' is ('dp', 3); write a mesh axis, a tuple of them, or None"),
        ({3: "dp"}, "the alias '3' is 'dp'; write a mesh axis, a tuple of them, or None"),
        (["rows"], "axes= expects a dict of names and mesh axes, got list"),
    ],
)
def test_what_is_no_alias_is_refused(aliases: Any, line: str) -> None:
    with fails(MeshAxisError, line):
        typed_shard_map(axes=aliases)
    with fails(MeshAxisError, line):
        typed(axes=aliases)


def test_inner_aliases_replace_outer_ones_name_by_name(mesh: Mesh) -> None:
    with axis_aliases(rows="dp", columns="tp"):
        with axis_aliases(rows=None):
            assert partition_specs(ROWS) == P(None, "tp")
        assert partition_specs(ROWS) == P("dp", "tp")


def test_aliases_inside_a_body_replace_those_around(mesh: Mesh) -> None:
    seen: list[Any] = []

    def look(x: ROWS) -> None:
        seen.append(partition_specs(ROWS))
        with axis_aliases(rows=None, columns="dp"):
            seen.append(partition_specs(ROWS))
        seen.append(partition_specs(ROWS))

    with axis_aliases(rows="dp", columns=None):
        traced(typed_shard_map(look, mesh=mesh), x)
    with axis_aliases(rows=None, columns="dp"):  # by the value that is around the decorator's, too
        traced(typed_shard_map(look, mesh=mesh, axes={"rows": "dp", "columns": None}), x)
    assert seen == [P("dp", None), P(None, "dp"), P("dp", None)] * 2


def test_aliases_of_a_decorator_hold_for_helpers_and_checks_in_its_body(mesh: Mesh) -> None:
    seen: list[tuple[int, ...]] = []

    @typed
    def helper(x: ROWS) -> ROWS:
        seen.append((size("b"), size("d")))
        return check(x, "[b/rows] [d/columns]")

    traced(typed_shard_map(helper, mesh=mesh, axes={"rows": "dp", "columns": None}), x)
    assert seen == [(8, 4)]


def test_aliases_of_a_helper_are_its_own(mesh: Mesh) -> None:
    helper = typed(axes={"rows": "dp", "columns": "tp"})(lambda x: check(x, "[b/rows] [d/columns]"))
    same(typed_shard_map(helper, mesh=mesh, in_types=(XY,), out_types=XY)(x), x)
    outer = typed_shard_map(lambda x: rows_of(helper(x)), mesh=mesh, in_types=XY, out_types=XY)
    line = "rows_of: argument 'x' names mesh axis 'rows', which is not among the mesh's axes 'dp', 'tp'"
    with fails(MeshAxisError, line):
        traced(outer, x)


@typed
def rows_of(x: ROWS) -> ROWS:
    return x


def test_a_jitted_function_is_traced_again_when_an_alias_changes(mesh: Mesh) -> None:
    shapes: list[tuple[int, ...]] = []
    take = typed_shard_map(lambda x: shapes.append(x.shape) or x + x, mesh=mesh, in_types=(ROWS,), out_types=ROWS)
    take = jax.jit(take)
    for rows in ("dp", "tp", "dp", None, "dp"):
        with axis_aliases(rows=rows, columns=None):
            same(take(x), 2 * x)
    assert shapes == [(2, 4), (4, 4), (8, 4)]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_what_is_traced_and_what_is_closed_over_may_be_on_one_mesh(kind: AxisType) -> None:
    own = mesh_of(4, 2, kind=kind)

    @typed_shard_map
    def f(x: Float[Array, "[b/dp] d"], w: Float[Array, "d [f/tp]"]) -> Float[Array, "[b/dp] [f/tp]"]:
        return x @ w

    x = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(own, P("dp")))
    w = jax.device_put(np.ones((4, 6), np.float32), NamedSharding(own, P(None, "tp")))
    for step in (lambda x: f(x, w), lambda x: f(jax.device_put(x, NamedSharding(own, P("dp"))), w)):
        np.testing.assert_array_equal(jax.block_until_ready(jax.jit(step)(x)), np.full((8, 6), 4))
    other = mesh_of(2, 4, kind=kind)
    elsewhere = jax.device_put(np.ones((4, 8), np.float32), NamedSharding(other, P(None, "tp")))
    with pytest.raises(MeshAxisError, match="its arguments are on different meshes"):
        jax.jit(lambda x: f(x, elsewhere))(x)


def returned(x: X) -> X:
    return x


USES: dict[str, Callable[[Any], Any]] = {
    "typed_shard_map": lambda mesh: typed_shard_map(returned, mesh=mesh),
    "typed_jit": lambda mesh: typed_jit(returned, mesh=mesh),
    "shard": lambda mesh: shard(x, X, mesh),
    "shardings": lambda mesh: shardings(X, mesh),
    "shape_structs": lambda mesh: shape_structs(X, mesh, b=8, d=4),
    "plan_reshard": lambda mesh: plan_reshard("[b/dp] d -> b [d/dp]", (8, 4), mesh),
    "explain": lambda mesh: explain(typed_shard_map(returned), mesh=mesh, b=8, d=4),
    "show": lambda mesh: show(X, mesh, b=8, d=4),
    "inputs": lambda mesh: inputs(typed_shard_map(returned), mesh=mesh),
    "assert_cost": lambda mesh: assert_cost(typed_shard_map(returned), mesh=mesh, collectives={}, b=8, d=4),
}
IMPOSSIBLE = {
    "an axis twice": (AbstractMesh((2, 2), ("dp", "dp")), "has axis 'dp' twice"),
    "an axis twice, of devices": (mesh_of(2, 2, names=("dp", "dp")), "has axis 'dp' twice"),
    "an axis of size 0": (AbstractMesh((0, 2), ("dp", "tp")), "has axis 'dp' of size 0"),
    "too many devices": (AbstractMesh((2**20, 2**20), ("dp", "tp")), "has more than 2147483647 devices"),
    "manual axes": (
        AbstractMesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Manual, AxisType.Auto)),
        "has 'dp' of type Manual, a type that axes have only inside jax.shard_map",
    ),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(("mesh", "problem"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_mesh_over_which_nothing_can_be_sharded_is_refused(use: Any, mesh: Any, problem: str) -> None:
    with pytest.raises(MeshAxisError) as caught:
        use(mesh)
    first = str(caught.value).splitlines()[0]
    assert first in (f"mesh= {problem}", f"explain: mesh= {problem}", f"show: mesh= {problem}")


def test_a_mesh_with_an_axis_twice_is_none_to_be_invariant_over() -> None:
    with pytest.raises(MeshAxisError, match="has axis 'dp' twice"):
        assert_mesh_invariant(typed_shard_map(returned), meshes=[mesh_of(2, 2, names=("dp", "dp"))])


MISPLACED = {
    "typed_shard_map": (typed_shard_map, "pass the mesh by keyword, as mesh="),
    "typed_jit": (typed_jit, "pass the mesh by keyword, as mesh="),
    "typed": (typed, "its mesh is known where the function is called"),
}


@pytest.mark.parametrize("mesh", [mesh_of(4, 2), abstract_of(4, 2)], ids=["devices", "abstract"])
@pytest.mark.parametrize(("verb", "cure"), MISPLACED.values(), ids=MISPLACED)
def test_a_mesh_by_position_is_told_to_go_by_keyword(verb: Any, cure: str, mesh: Any) -> None:
    with pytest.raises(StructureError) as caught:
        verb(mesh)
    problem, at, hint = str(caught.value).replace("\n\n", "\n").splitlines()
    assert (problem, hint) == ("got a mesh as the function", f"Hint: {cure}")
    assert at.startswith("At: test_meshes.py:")
