"""Arguments made from the hints: what they are, what is drawn equal, what the user passes, what is refused."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import mesh_of
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P
from lines import unplaced

import typedshmap as ts
from typedshmap import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree, Stacked, typed, typed_jit, typed_shard_map
from typedshmap.testing import inputs
from typedshmap.tools.sample.arguments import CallForm, FlatCall
from typedshmap.tools.sample.input_plan import plan_inputs

MESH = mesh_of(4, 2)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    up: Float[Array, "model [ff/tp]"]
    down: Float[Array, "[ff/tp] model"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    table: ts.BFloat16[Array, "[vocab/tp] model"]
    layers: Stacked["layers", Layer]


class Batch(NamedTuple):
    ids: Int[Array, "[batch/dp] seq"]
    mask: Bool[Array, "[batch/dp] seq-1"]


@typed_shard_map
def step(weights: Weights, batch: Batch, key: Key[Array, ""], rate: float = 0.1) -> Float[Array, "[batch/dp] model"]:
    total = jax.lax.psum(sum(w.sum() for w in jax.tree.leaves(weights)) * rate, "tp") + jax.random.normal(key)
    return jnp.full((batch.ids.shape[0], ts.size("model")), total, jnp.float32)


def test_every_array_has_the_dtype_shape_and_sharding_of_its_hint() -> None:
    made = inputs(step, mesh=MESH)
    sizes = {name: size for name, size in made.sizes.items() if name != "..."}
    weights, batch = made["weights"], made["batch"]
    of_weights = {name: sizes[name] for name in ("vocab", "model", "layers", "ff")}
    wanted = [
        *jax.tree.leaves(ts.shape_structs(Weights, MESH, **of_weights)),
        *jax.tree.leaves(ts.shape_structs(Batch, MESH, batch=sizes["batch"], seq=sizes["seq"])),
    ]
    found = jax.tree.leaves((weights, batch))
    assert [(x.shape, x.dtype, x.sharding) for x in found] == [(x.shape, x.dtype, x.sharding) for x in wanted]
    assert made.kwargs == {} and len(made) == 3, "an argument with a default and no arrays is left out"
    assert jax.dtypes.issubdtype(made["key"].dtype, jax.dtypes.prng_key)


@pytest.mark.parametrize("spread", ["*", "**", "call"])
def test_a_function_takes_them_in_each_way(spread: str) -> None:
    made = inputs(step, mesh=MESH)
    with jax.set_mesh(MESH):
        result = {"*": lambda: step(*made), "**": lambda: step(**made), "call": lambda: made.call(step)}[spread]()
    assert jax.block_until_ready(result).shape == (made.sizes["batch"], made.sizes["model"])


def test_they_are_a_pytree_of_all_arguments() -> None:
    made = inputs(step, mesh=MESH)
    doubled = jax.tree.map(lambda x: x, made)
    assert doubled.sizes == made.sizes and doubled.seed == made.seed and doubled.names == made.names
    assert len(jax.tree.leaves(made)) == 6


def test_they_are_printed_by_their_types() -> None:
    assert repr(inputs(helper, mesh=MESH, b=4, rest=(3,))) == "Inputs(x=f32[4,3], k=i32[]; seed=0)"
    made = inputs(step, mesh=MESH, batch=4, seq=3, seed=2)
    assert repr(made).startswith("Inputs(weights=Weights of 3, batch=Batch of 2, key=key<fry>[]; seed=2")


def test_values_and_sizes_depend_on_the_seed_alone() -> None:
    meshes = [mesh_of(1, 1), mesh_of(4, 2), mesh_of(2, 4), mesh_of(8, 1)]
    drawn = plan_inputs(step, meshes).draw(3)
    first, *others = [jax.tree.map(np.asarray, jax.tree.map(plain, drawn.on(mesh))) for mesh in meshes]
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, other, first)
    again = jax.tree.map(np.asarray, jax.tree.map(plain, plan_inputs(step, meshes).draw(3).on(meshes[1])))
    jax.tree.map(np.testing.assert_array_equal, again, first)
    changed = plan_inputs(step, meshes).draw(4)
    assert changed.sizes != drawn.sizes
    assert not np.array_equal(plain(changed.on(meshes[1])["key"]), plain(drawn.on(meshes[1])["key"]))


def plain(x: Any) -> Any:
    return jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x


@given(seed=st.integers(0, 2**31), dp=st.integers(1, 16), tp=st.integers(1, 9))
def test_sizes_are_distinct_multiples_of_what_the_axes_need(seed: int, dp: int, tp: int) -> None:
    meshes = [AbstractMesh((dp, tp), ("dp", "tp")), AbstractMesh((tp, dp), ("dp", "tp"))]
    sizes = plan_inputs(step, meshes).draw(seed).sizes
    need = np.lcm(dp, tp)
    assert all(sizes[name] % need == 0 and sizes[name] >= 2 * need for name in ("batch", "vocab", "ff"))
    assert len(set(sizes.values())) == len(sizes)


def test_shapes_are_enough_for_a_mesh_of_thousands() -> None:
    made = inputs(step, mesh=AbstractMesh((512, 64), ("dp", "tp")), batch=1024)
    assert made["batch"].ids.shape == (1024, made.sizes["seq"])
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(made))
    assert made["weights"].table.sharding.spec == jax.P("tp", None)


def test_on_explicit_axes_their_types_say_how_they_lie() -> None:
    mesh = mesh_of(4, 2, kind=AxisType.Explicit)
    assert jax.typeof(inputs(step, mesh=mesh)["weights"].table).sharding.spec == jax.P("tp", None)


def test_the_mesh_is_the_functions_own_or_the_ambient_one_or_none() -> None:
    own = typed_shard_map(lambda x: x, mesh=MESH, in_types=(Float[Array, "[b/dp]"],), out_types=Float[Array, "[b/dp]"])
    assert inputs(own)[0].sharding.mesh == MESH
    with jax.set_mesh(MESH):
        assert inputs(step)["batch"].ids.sharding.mesh == MESH
    assert not inputs(step)["batch"].ids.committed


@pytest.mark.parametrize(
    ("hint", "kind", "least", "below"),
    [
        (Float[Array, "b"], "float32", -9, 9),
        (ts.Float8e4m3fn[Array, "b"], "float8_e4m3fn", -9, 9),
        (ts.Complex[Array, "b"], "complex64", -9, 9),
        (Int[Array, "b"], "int32", 0, 2),
        (ts.UInt8[Array, "b"], "uint8", 0, 2),
        (ts.Int4[Array, "b"], "int4", 0, 2),
        (Bool[Array, "b"], "bool", 0, 2),
    ],
)
def test_values_are_sensible_for_their_dtype(hint: Any, kind: str, least: int, below: int) -> None:
    f = typed_shard_map(lambda x: x, in_types=(hint,), out_types=hint)
    (x,) = inputs(f, mesh=MESH, b=64)
    assert str(x.dtype) == kind
    values = np.asarray(x).astype(complex)
    assert (least <= values.real).all() and (values.real < below).all() and len(np.unique(values)) > 1


def test_integers_are_positions_in_what_they_index() -> None:
    @typed_shard_map
    def look_up(
        ids: Int[Array, "[b/dp] s"], table: Float[Array, "[v/tp] m"], logits: Float[Array, "[b/dp] s c"]
    ) -> Float[Array, "[b/dp] s m"]: ...

    made = inputs(look_up, mesh=MESH, b=64, s=32, v=40, m=6, c=5)
    assert set(np.unique(made["ids"])) == set(range(5)), "below v, the table's first dim, and c, the last one of logits"


def test_containers_unions_and_options_are_made_completely() -> None:
    @typed_shard_map
    def f(
        pair: tuple[Float[Array, "b"], Float[Array, "c"]],
        many: list[Float[Array, "b"]],
        named: dict[str, Float[Array, "c"]],
        tree: PyTree[Float[Array, "..."]],
        bias: Optional[Float[Array, "c"]] = None,
        key: PRNGKeyArray | None = None,
        *rest: Float[Array, "b"],
        nothing: None,
        more: Float[Array, "_ 2*b"],
    ) -> Float[Array, "b"]: ...

    made = inputs(f, mesh=MESH)
    b, c = made.sizes["b"], made.sizes["c"]
    shapes = jax.tree.map(lambda x: x.shape, (made["pair"], made["many"], made["named"], made["bias"]))
    assert shapes == (((b,), (c,)), [(b,), (b,)], {"a": (c,), "b": (c,)}, (c,))
    assert jax.tree.map(lambda x: x.shape, made["tree"]) == {"a": made.sizes["..."], "b": made.sizes["..."]}
    assert made["key"].shape == () and [x.shape for x in made.args[6:]] == [(b,), (b,)]
    assert made.kwargs["nothing"] is None and made.kwargs["more"].shape == (made.sizes["_"], 2 * b)


class Module(eqx.Module):
    w: Float[Array, "[d/tp] d"]
    scale: float = eqx.field(static=True, default=2.0)

    @typed_shard_map
    def apply(self, x: Float[Array, "[b/dp] d"]) -> Float[Array, "[b/dp] d"]:
        return x * self.scale


def test_methods_partials_and_modules() -> None:
    @typed_shard_map
    def f(module: Module, x: Float[Array, "[b/dp] d"], factor: float) -> Float[Array, "[b/dp] d"]:
        return x * factor

    made = inputs(f, mesh=MESH, factor=2.0)
    assert made["module"].w.shape == (made.sizes["d"],) * 2 and made["module"].scale == 2.0 and made["factor"] == 2.0
    (x,) = inputs(made["module"].apply, mesh=MESH, b=8, d=3)
    assert x.shape == (8, 3)

    hint, part = Float[Array, "[b/dp]"], functools.partial(lambda a, x, k: x * k, 1.0, k=2.0)
    assert len(inputs(typed_shard_map(part, in_types=(hint,), out_types=hint), mesh=MESH)) == 1


def test_aliases_and_rules_say_what_must_divide() -> None:
    @typed_jit(axes={"d": ("dp", "tp")}, rules={"heads": "tp"})
    def f(x: Float[Array, "[b/d] m"], w: Float[Array, "heads m"]) -> Float[Array, "b m"]: ...

    made = inputs(f, mesh=MESH)
    assert made.sizes["b"] % 8 == 0 and made[0].sharding.spec == jax.P(("dp", "tp"), None)
    assert made.sizes["heads"] % 2 == 0 and made[1].sharding.spec == jax.P("tp", None)


def test_what_is_passed_is_taken_and_binds_its_sizes() -> None:
    table = np.ones((16, 6), np.float32)

    @typed_shard_map
    def f(
        table: Float[Array, "[v/tp] m"], x: Float[Array, "[b/dp] m"], ids: Int[Array, "[b/dp]"], n: int = 3
    ) -> Float[Array, "[b/dp] m"]: ...

    made = inputs(f, mesh=MESH, table=table, b=8, n=5, ids=lambda key, shape: jax.random.randint(key, shape, 10, 16))
    assert made["x"].shape == (8, 6) and made["n"] == 5 and made["table"].sharding.spec == jax.P("tp", None)
    assert (np.asarray(made["ids"]) >= 10).all()
    structs = plan_inputs(f, [MESH], {"ids": lambda key, shape: jnp.zeros(shape, jnp.int8)}).draw(0).structs(MESH)
    assert structs["ids"].dtype == jnp.int8


def test_a_part_is_passed_by_its_path() -> None:
    made = inputs(step, mesh=MESH, arguments={"weights.layers.up": lambda key, shape: jnp.zeros(shape), "rate": 0.5})
    assert not made["weights"].layers.up.any() and made["weights"].layers.down.any() and made["rate"] == 0.5


def test_an_integer_by_the_name_of_a_dim_is_its_size_unless_a_static_argument_has_that_name() -> None:
    @typed_shard_map
    def f(b: Float[Array, "[b/dp] k"], k: int, x: Float[Array, "{k}"]) -> Float[Array, "[b/dp] k"]: ...

    made = inputs(f, mesh=MESH, b=12, k=7)
    assert made["b"].shape[0] == 12 and made["k"] == 7 and made["x"].shape == (7,)


@typed
def helper(x: Float[Array, "[b/dp] *rest"], k: Int[Array, ""]) -> Float[Array, "[b/dp] *rest"]:
    return x


def test_a_helper_has_inputs_too_and_named_rests_have_sizes() -> None:
    assert inputs(helper, mesh=MESH, rest=(3, 5), b=4)[0].shape == (4, 3, 5)
    assert isinstance(inputs(helper, mesh=MESH).sizes["rest"], tuple)


@typed_shard_map
def sums(x: Float[Array, "[b/dp] d"], *xs: Float[Array, "d"]) -> Float[Array, "[b/dp] d"]:
    return x + sum(xs)


def test_items_of_a_variadic_parameter_are_given_together_or_by_their_paths() -> None:
    made = inputs(sums, mesh=MESH, d=3, b=4, xs=[np.ones(3, np.float32)] * 3)
    assert [x.shape for x in made] == [(4, 3), *[(3,)] * 3]
    assert len(inputs(sums, mesh=MESH, xs=())) == 1
    made = inputs(sums, mesh=MESH, arguments={"xs[1]": lambda key, shape: jnp.zeros(shape)})
    assert made[1].any() and not made[2].any()
    assert FlatCall(made, jax.Array).names == ["x", "xs[0]", "xs[1]"]
    assert made["xs"] == made.args[1:]


def test_in_types_of_a_variadic_parameter_are_not_those_of_a_keyword() -> None:
    def scale(*xs: Any, k: float = 2.0) -> Any:
        return [x * k for x in xs]

    hint = Float[Array, "[b/dp]"]
    f = typed_shard_map(scale, mesh=MESH, in_types=(hint, hint), out_types=[hint, hint])
    made = inputs(f, b=4)
    assert list(made.keys()) == ["xs", "xs"]
    np.testing.assert_array_equal(f(*made, k=3.0)[1], 3 * np.asarray(made[1]))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Chain:
    link: Float[Array, "d"]
    more: "Chain | None"


def test_an_optional_part_of_its_own_class_is_none() -> None:
    @typed
    def f(chain: Chain) -> Float[Array, "d"]: ...

    made = inputs(f, d=3)["chain"]
    assert made.link.shape == (3,) and made.more is None


@typed_shard_map
def wrong(x: Float[Array, "[batch/dp] d"], y: Float[Array, "d"], config: dict, flag: bool) -> Float[Array, "d"]: ...


REFUSED = [
    (lambda: inputs(print),
     "inputs: expects a function made by typed_shard_map, typed_jit or typed, whose hints say what it takes; "
     "got <built-in function print>"),
    (lambda: inputs(typed_shard_map(lambda x: x, mesh=MESH, in_specs=P("dp"), out_specs=P("dp"))),
     "inputs: <lambda>: its in_specs and out_specs say neither ranks nor dtypes, and hints are missing\n\n"
     "Hint: write them; prove, assert_mesh_invariant, assert_cost and explain take its arguments instead"),
    (lambda: inputs(wrong, mesh=MESH),
     "inputs: wrong: argument 'config' (dict) holds no arrays and has no default; pass config=...; "
     "argument 'flag' (bool) holds no arrays and has no default; pass flag=..."),
    (lambda: inputs(wrong, mesh=MESH, config={}, flag=True, bach=3),
     "inputs: wrong: neither a dim of its hints nor an argument is called 'bach' (did you mean 'batch'?)"),
    (lambda: inputs(wrong, mesh=MESH, config={}, flag=True, arguments={"x.y": 3}),
     "inputs: wrong: neither a dim of its hints nor an argument is called 'x.y'"),
    (lambda: inputs(sums, mesh=MESH, xs=3),
     "inputs: sums: argument '*xs' expects a list or a tuple of arguments, got 3"),
    (lambda: inputs(sums, mesh=MESH, x=lambda key, shape: "x"),
     "inputs: sums: the function that makes Float[Array, \"[b/dp] d\"] returned 'x', which is not an array"),
    (lambda: inputs(sums, mesh=MESH, x=lambda key: key),
     'inputs: sums: the function that makes Float[Array, "[b/dp] d"] is given a key and a shape, '
     "which it does not take: too many positional arguments"),
    (lambda: inputs(sums, mesh=MESH, seed=-1), "inputs: seed must be an integer >= 0, got -1"),
    (lambda: inputs(step, mesh=MESH, weights=lambda key, shape: None),
     "inputs: step: argument 'weights' (Weights) is several arrays, so that no function of a key and a shape "
     "makes it; pass arguments={'weights.field': ...}"),
    (lambda: inputs(wrong, mesh=MESH, config={}, flag=True, batch=6, d=5),
     "inputs: wrong: argument 'x' has batch=6, which does not divide over 'dp' (4 shards)\n\n"
     '    x: Float[Array, "[batch/dp] d"]\n'
     "                     ^^^^^^^^^^\n"
     "    got f32[6,5]\n\n"
     "Mesh: dp=4, tp=2\n"
     "Sizes: d=5 (y dim 0)\n"
     "Hint: make batch a multiple of 4, or pad it and mask the rest"),
    (lambda: inputs(wrong, mesh=MESH, config={}, flag=True, batch=-4),
     "inputs: wrong: batch=-4 is not a size\n\nHint: the names in the hints are 'batch', 'd'"),
    (lambda: inputs(wrong, mesh=Mesh(np.array(jax.devices()), ("tp",)), config={}, flag=True),
     "inputs: wrong: argument 'x' names mesh axis 'dp', which is not among the mesh's axes 'tp'\n\n"
     '    x: Float[Array, "[batch/dp] d"]\n'
     "                            ^^\n\n"
     "Mesh: tp=8\n"
     "Hint: axis_aliases({'dp': ...}) maps a name to mesh axes"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_cannot_be_made_is_refused_with_its_reason(call: Any, message: str) -> None:
    with pytest.raises(ts.TypedShmapError) as caught:
        call()
    assert unplaced(caught.value) == message


def test_sizes_that_no_draw_fits_are_reported() -> None:
    @typed_shard_map
    def f(x: Float[Array, "n 2*n+1"], y: Float[Array, "[2*n+1/tp]"]) -> Float[Array, "n"]: ...

    with pytest.raises(ts.ShapeError, match=r"(?s)inputs: f: no sizes were found that fit: '2\*n\+1' is \d+, which is"):
        inputs(f, mesh=MESH)


def test_a_size_that_no_argument_gives_is_reported_and_one_below_zero() -> None:
    @typed_shard_map
    def f(x: Float[Array, "b"], y: Float[Array, "{x} b"]) -> Float[Array, "b"]: ...

    @typed_shard_map
    def g(k: int, y: Float[Array, "{k}-9 b"]) -> Float[Array, "b"]: ...

    with pytest.raises(ts.ShapeError, match=r"'\{x\}' is ArrayToDraw, not an integer \(Float\[Array, \"\{x\} b\"\]\)"):
        inputs(f)
    with pytest.raises(ts.ShapeError, match=r"'\{k\}-9' is -6, which is not a size \(Float\[Array, \"\{k\}-9 b\"\]\)"):
        inputs(g, k=3)
    assert inputs(g, k=12)["y"].shape[0] == 3


def test_arguments_are_a_dict_by_name() -> None:
    for wrong in (3, {3: 4}):
        with pytest.raises(ts.StructureError, match="inputs: arguments= expects a dict of arguments by name or path"):
            inputs(step, mesh=MESH, arguments=wrong)  # type: ignore[arg-type]


def test_a_default_before_an_argument_by_position_is_passed() -> None:
    @typed_shard_map
    def f(
        x: Float[Array, "[b/dp]"], scale: float = 2.0, y: Float[Array, "[b/dp]"] | None = None, last: int = 3
    ) -> Float[Array, "[b/dp]"]:
        return x * scale if y is None else x * scale + y

    made = inputs(f, mesh=MESH)
    assert [type(each).__name__ for each in made] == ["ArrayImpl", "float", "ArrayImpl"]
    with jax.set_mesh(MESH):
        result = jax.block_until_ready(f(*made))
    np.testing.assert_allclose(result, 2 * np.asarray(made["x"]) + np.asarray(made["y"]), rtol=1e-6)


FORM = CallForm("structure", ("f32[4]",), (0.0, "text", len))


@pytest.mark.parametrize(
    ("other", "is_like"),
    [
        (CallForm("structure", ("f32[4]",), (0.0, "text", len)), True),
        (CallForm("structure", ("f32[5]",), (0.0, "text", len)), False),
        (CallForm("another", ("f32[4]",), (0.0, "text", len)), False),
        (CallForm("structure", ("f32[4]",), (-0.0, "text", len)), False),
        (CallForm("structure", ("f32[4]",), (0, "text", len)), False),
        (CallForm("structure", ("f32[4]",), (0.0, "text", [])), False),
        (CallForm(np.zeros(2), ("f32[4]",), (0.0, "text", len)), False),
    ],
)
def test_a_call_is_like_another_if_it_is_traced_to_the_same_program(other: CallForm, is_like: bool) -> None:
    assert FORM.is_like(other) is is_like
