"""Where operations stand: global regions, manual ones, parts of a mesh, aliases, and plain ``jax.shard_map``."""

import cProfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import fails
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import (
    Array,
    Float,
    Int,
    MeshAxisError,
    PatternError,
    ShardingError,
    StructureError,
    TypedShmapError,
    VaryingError,
    all_gather,
    all_to_all,
    axis_aliases,
    axis_index,
    axis_size,
    check,
    einsum,
    logsumexp,
    pmax,
    pmean,
    ppermute,
    psum,
    psum_scatter,
    rearrange,
    reduce,
    shard,
    softmax,
    take,
    typed,
    typed_shard_map,
)
from typedshmap._jax.mesh import are_values_typed
from typedshmap._jax.versions import HAS_MANUAL_TYPES

XY = Float[Array, "[b/dp] [d/tp]"]
x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)


def near(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(jax.block_until_ready(got), expected, rtol=1e-5, atol=1e-5)


def in_body(body: Callable[[Any], Any], mesh: Any, out: Any = None, **options: Any) -> Any:
    """What a body makes of ``x``, split over dp and tp, under jit."""
    call = jax.jit(typed_shard_map(body, mesh=mesh, in_types=(XY,), out_types=out, **options))
    return jax.block_until_ready(call(x))


def traced(body: Callable[[Any], Any], mesh: Any, **options: Any) -> Any:
    """Trace a body, and compute nothing."""
    jax.eval_shape(typed_shard_map(body, mesh=mesh, in_types=(XY,), out_types=None, **options), x)


def refused(error: type[TypedShmapError], line: str, body: Callable[[Any], Any], mesh: Any, **options: Any) -> None:
    with fails(error, line):
        traced(body, mesh, **options)


# Outside of a manual region a pattern speaks of global arrays


def exponentials(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max(1, keepdims=True))


def test_an_axis_is_known_where_a_mesh_is(mesh: Mesh) -> None:
    line = "rearrange: the operand names mesh axis 'zz', which is not among the mesh's axes 'dp', 'tp'"
    with jax.set_mesh(mesh), fails(MeshAxisError, line):
        rearrange(x, "[b/zz] d -> d [b/zz]")


COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "all_gather": lambda x: all_gather(x, "[b/dp] d -> b d"),
    "psum": lambda x: psum(x, "b d +dp -> b d"),
    "pmean": lambda x: pmean(x, "b d ~dp -> b d"),
    "pmax": lambda x: pmax(x, "b d ~dp -> b d"),
    "psum of a tree": lambda x: psum({"x": x}, "dp"),
    "psum_scatter": lambda x: psum_scatter(x, "b d +dp -> [b/dp] d"),
    "all_to_all": lambda x: all_to_all(x, "[b/dp] d -> b [d/dp]"),
    "ppermute": lambda x: ppermute(x, "[b/dp] d", shift=1),
    "axis_index": lambda x: axis_index("dp"),
    "axis_size": lambda x: axis_size("dp"),
}


@pytest.mark.parametrize("has_mesh", [False, True], ids=["without a mesh", "with one"])
@pytest.mark.parametrize(("verb", "operation"), COLLECTIVES.items(), ids=COLLECTIVES)
def test_nothing_is_moved_outside_of_a_manual_region(verb: str, operation: Any, has_mesh: bool, mesh: Mesh) -> None:
    line = f"{verb.split()[0]}: mesh axis 'dp' is not manual here: collectives need it inside shard_map"
    with jax.set_mesh(mesh) if has_mesh else axis_aliases(), fails(MeshAxisError, line):
        operation(x)


# A region that is manual over a part of the mesh

IN_PART: dict[str, tuple[Callable[[Any], Any], str, Any]] = {
    "rearrange": (lambda x: rearrange(x, "[b/dp] [d/tp] -> [d/tp] [b/dp]"), "[d/tp] [b/dp]", x.T),
    "a sum over a dim that is global here": (lambda x: reduce(x, "[b/dp] [d/tp] -> [b/dp]", "sum"), "[b/dp]", x.sum(1)),
    "a sum over both": (lambda x: reduce(x, "[b/dp] [d/tp] ->", "sum"), "", x.sum()),
    "einsum": (lambda x: einsum(x, x, "[b/dp] [d/tp], [b/dp] [e/tp] -> d [e/tp]"), "d e", x.T @ x),
    "einsum, scattered": (lambda x: einsum(x, x, "[b/dp] [d/tp], [b/dp] e -> [d/dp] e"), "[d/dp] e", x.T @ x),
    "all_gather": (lambda x: all_gather(x, "[b/dp] [d/tp] -> b [d/tp]"), "b [d/tp]", x),
    "ppermute": (lambda x: ppermute(x, "[b/dp] [d/tp]", shift=1, axis="dp"), "[b/dp] d", np.roll(x, 2, axis=0)),
    "softmax": (lambda x: softmax(x, "[b/dp] [d/tp]", "d"), "[b/dp] d",
                exponentials(x) / exponentials(x).sum(1, keepdims=True)),
}  # fmt: skip


@pytest.mark.parametrize(("operation", "result", "expected"), IN_PART.values(), ids=IN_PART)
def test_a_pattern_holds_where_one_of_its_axes_is_not_manual(
    operation: Any, result: str, expected: Any, mesh: Mesh
) -> None:
    near(in_body(operation, mesh, Float[Array, result], axis_names={"dp"}), expected)


MOVED: dict[str, Callable[[Any], Any]] = {
    "all_gather": lambda x: all_gather(x, "[b/dp] [d/tp] -> [b/dp] d"),
    "psum": lambda x: psum(x, "[b/dp] d +tp -> [b/dp] d"),
    "pmean": lambda x: pmean(x, "[b/dp] d ~tp -> [b/dp] d"),
    "psum of a tree": lambda x: psum([x], "tp"),
    "psum_scatter": lambda x: psum_scatter(x, "[b/dp] d +tp -> [b/dp] [d/tp]"),
    "reduce, left unreduced": lambda x: reduce(x, "[b/dp] [d/tp] -> [b/dp] +tp", "sum"),
    "einsum, left varying": lambda x: einsum(x, "[b/dp] [d/tp] -> [b/dp] ~tp"),
    "all_to_all": lambda x: all_to_all(x, "[b/dp] [d/tp] -> [b/dp,tp] d"),
    "ppermute": lambda x: ppermute(x, "[b/dp] [d/tp]", shift=1, axis="tp"),
}


@pytest.mark.parametrize(("verb", "operation"), MOVED.items(), ids=MOVED)
def test_nothing_is_moved_over_an_axis_that_is_not_manual(verb: str, operation: Any, mesh: Mesh) -> None:
    name = verb.replace(",", " ").split()[0]
    line = f"{name} in <lambda>: mesh axis 'tp' is not manual here: collectives need it inside shard_map"
    refused(MeshAxisError, line, operation, mesh, axis_names={"dp"})


# Regions within regions


def test_a_pattern_of_a_nested_region_sees_the_axes_of_both(mesh: Mesh) -> None:
    def outer(x: XY) -> Float[Array, "[b/dp]"]:
        def inner(x: Any) -> Any:
            return psum(reduce(x, "[b/dp] [d/tp] -> [b/dp] +tp", "sum"), "[b/dp] +tp -> [b/dp]")

        return jax.shard_map(inner, in_specs=P(None, "tp"), out_specs=P(), axis_names={"tp"})(x)

    near(jax.jit(typed_shard_map(outer, mesh=mesh, axis_names={"dp"}))(x), x.sum(1))


def test_a_nested_region_may_use_the_axes_around_it(mesh: Mesh) -> None:
    @typed_shard_map(axis_names={"tp"})
    def inner(x: XY) -> Float[Array, "d"]:
        return all_gather(reduce(x, "[b/dp] [d/tp] -> [d/tp]", "sum"), "[d/tp] -> d")

    near(in_body(lambda x: inner(x), mesh, Float[Array, "d"], axis_names={"dp"}), x.sum(0))


# Aliases

ALIASES = {"dp": ("data", "fsdp"), "tp": None}


@pytest.fixture
def other_mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "fsdp"))


ALIASED: dict[str, tuple[Callable[[Any], Any], str, Any]] = {
    "all_gather over two": (lambda x: all_gather(x, "[b/dp] [d/tp] -> b [d/tp]"), "b d", x),
    "all_gather over none": (lambda x: all_gather(x, "[b/dp] [d/tp] -> [b/dp] d"), "[b/dp] d", x),
    "all_gather over both": (lambda x: all_gather(x, "[b/dp] [d/tp] -> b d"), "b d", x),
    "a sum over both": (lambda x: reduce(x, "[b/dp] [d/tp] ->", "sum"), "", x.sum()),
    "addends over both": (lambda x: psum(reduce(x, "[b/dp] [d/tp] -> +dp +tp", "sum"), "+dp +tp ->"), "", x.sum()),
    "psum over none": (lambda x: psum(x, "[b/dp] d +tp -> [b/dp] d"), "[b/dp] d", x),
    "pmean over none": (lambda x: pmean(x, "[b/dp] d ~tp -> [b/dp] d"), "[b/dp] d", x),
    "pmax over none": (lambda x: pmax(x, "[b/dp] d ~tp -> [b/dp] d"), "[b/dp] d", x),
    "psum of a tree over none": (lambda x: psum({"x": x}, "tp")["x"], "[b/dp] d", x),
    "psum of a tree over three": (lambda x: psum([x.sum()], ("dp", "tp"))[0], "", x.sum()),
    "psum_scatter over two": (lambda x: psum_scatter(x, "b d ~dp -> b [d/dp]"), "one [d/dp]", x.sum(0)[None]),
    "psum_scatter over none": (lambda x: psum_scatter(x, "[b/dp] d +tp -> [b/dp] [d/tp]"), "[b/dp] d", x),
    "all_to_all over two": (lambda x: all_to_all(x, "[b/dp] d -> b [d/dp]"), "b [d/dp]", x),
    "all_to_all over none": (lambda x: all_to_all(x, "[b/dp] [d/tp] -> [b/dp,tp] d"), "[b/dp] d", x),
    "ppermute over two": (lambda x: ppermute(x, "[b/dp] d", shift=1), "[b/dp] d", np.roll(x, 1, axis=0)),
    "ppermute over none": (lambda x: ppermute(x, "[b/dp] [d/tp]", shift=1, axis="tp"), "[b/dp] d", x),
    "ppermute of a mark": (lambda x: ppermute(x, "b d ~dp", shift=1), "[b/dp] d", np.roll(x, 1, axis=0)),
    "einsum": (lambda x: einsum(x, x, "[b/dp] [d/tp], [b/dp] [e/tp] -> [d/dp] [e/tp]"), "[d/dp] e", x.T @ x),
    "logsumexp": (lambda x: logsumexp(x, "[b/dp] [d/tp] -> [b/dp]"), "[b/dp]", np.log(np.exp(x).sum(1))),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize(("operation", "result", "expected"), ALIASED.values(), ids=ALIASED)
def test_a_name_stands_for_several_mesh_axes_or_for_none(
    operation: Any, result: str, expected: Any, other_mesh: Mesh
) -> None:
    near(in_body(operation, other_mesh, Float[Array, result], axes=ALIASES), expected)


def test_an_alias_of_a_context_holds_in_a_plain_region(other_mesh: Mesh) -> None:
    def body(x: Any) -> Any:
        return reduce(x, "[b/dp] [d/tp] -> [d/tp]", "sum")

    with axis_aliases(dp=("data", "fsdp"), tp=None):
        near(jax.jit(jax.shard_map(body, mesh=other_mesh, in_specs=P(("data", "fsdp")), out_specs=P()))(x), x.sum(0))


def test_an_error_shows_what_a_name_stands_for(other_mesh: Mesh) -> None:
    line = "'b' is sharded over 'data', 'fsdp' on the left, but unsharded on the right"
    with pytest.raises(PatternError, match=f"{line}\n") as caught:
        traced(lambda x: rearrange(x, "[b/dp] d -> b d"), other_mesh, axes=ALIASES)
    assert "Mesh: data=4, fsdp=2; axes: dp=(data, fsdp), tp=None" in str(caught.value)


# A plain jax.shard_map around


def plain(body: Callable[[Any], Any], mesh: Any, out: Any, **options: Any) -> Callable[[Any], Any]:
    return jax.shard_map(body, mesh=mesh, in_specs=P("dp", "tp"), out_specs=out, **options)


@pytest.mark.parametrize("without_jit", [False, True])
def test_plain_regions_on_one_mesh_are_each_read_in_their_own_mode(without_jit: bool, mesh: Mesh) -> None:
    found: list[bool] = []

    def body(x: Any) -> Any:
        found.append(are_values_typed("tp"))
        jax.vmap(lambda x: found.append(are_values_typed("tp")))(x)
        jax.grad(lambda x: (found.append(are_values_typed("tp")), x.sum())[1])(x)
        return x

    with jax.disable_jit(without_jit):
        for check_vma in (True, False, True):
            f = jax.shard_map(body, mesh=mesh, check_vma=check_vma, in_specs=P("dp"), out_specs=P("dp"))
            jax.make_jaxpr(f)(np.zeros(8, np.float32))
    assert found == [True] * 3 + [False] * 3 + [True] * 3


def test_an_operation_in_a_plain_region_makes_few_calls_of_python(mesh: Mesh) -> None:
    def calls(f: Callable[[Any], Any]) -> int:
        body, profile = lambda x: sum(f(x * at) for at in range(20)), cProfile.Profile()
        program = jax.shard_map(body, mesh=mesh, in_specs=P("dp"), out_specs=P())
        jax.make_jaxpr(lambda x: program(x))(np.ones(8))
        profile.runcall(jax.make_jaxpr(lambda x: program(x)), np.ones(8))
        return sum(entry.callcount for entry in profile.getstats())

    by_hand = calls(lambda x: jax.lax.psum(x, "dp"))
    assert calls(lambda x: psum(x, "a ~dp -> a")) < by_hand + 20 * 500


def test_an_error_in_a_plain_region_names_the_operation_alone(mesh: Mesh) -> None:
    with fails(VaryingError, "rearrange: the operand varies over 'tp', which the pattern does not mention"):
        jax.eval_shape(plain(lambda x: rearrange(x, "[b/dp] d -> d [b/dp]"), mesh, P()), x)


def test_results_are_remembered_in_a_plain_region(mesh: Mesh) -> None:
    def body(x: Any) -> Any:
        return rearrange(rearrange(x, "[b/dp] [d/tp] -> [d/tp] [b/dp]"), "[b/dp] [d/tp] -> [d/tp] [b/dp]")

    line = "is read as sharded over 'dp' in dim 0, but rearrange says sharded over 'tp'"
    with pytest.raises(ShardingError, match=line):
        jax.eval_shape(plain(body, mesh, P("dp", "tp")), x)


# Unreduced values

ADDENDS = "[b/dp] [d/tp] -> [b/dp] +tp"
typed_as_unreduced = pytest.mark.skipif(not HAS_MANUAL_TYPES, reason="jax 0.9 has no rule for it")


# Other operations on unreduced values are drawn in test_laws_chains.
@pytest.mark.parametrize("check_vma", [pytest.param(True, marks=typed_as_unreduced), False])
def test_the_mean_of_an_unreduced_value_is_that_of_the_sum(check_vma: bool, mesh: Mesh) -> None:
    def body(x: Any) -> Any:
        return reduce(reduce(x, ADDENDS, "sum"), "[b/dp] +tp ->", "mean")

    near(in_body(body, mesh, Float[Array, ""], check_vma=check_vma), x.sum(1).mean())


NOT_LINEAR: dict[str, tuple[Callable[[Any], Any], str]] = {
    "max": (lambda y: reduce(y, "[b/dp] +tp -> +tp", "max"), "reduce in use: 'max' of a value that is "
            "unreduced over 'tp'"),
    "softmax": (lambda y: softmax(y, "[b/dp] +tp", "b"), "softmax in use: softmax of a value that is "
                "unreduced over 'tp'"),
    "logsumexp": (lambda y: logsumexp(y, "[b/dp] +tp -> "), "logsumexp in use: logsumexp of a value that is "
                  "unreduced over 'tp'"),
    "pmax": (lambda y: pmax(y, "[b/dp] +tp -> [b/dp]"), "pmax in use: a pmax of addends over 'tp'"),
    "a product of two": (lambda y: einsum(y, y, "[b/dp] +tp, [b/dp] +tp -> [b/dp] +tp"), "einsum in use: operand 2"
                         " is unreduced over 'tp', and so is another operand"),
    "a mark that is lost": (lambda y: rearrange(y, "[b/dp] +tp -> 1 [b/dp]"), "rearrange in use: '+tp' is on "
                            "one side only"),
    "one that a gather loses": (lambda y: all_gather(y, "[b/dp] +tp -> b"), "all_gather in use: '+tp' is on "
                                "the left only"),
}  # fmt: skip


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(("operation", "line"), NOT_LINEAR.values(), ids=NOT_LINEAR)
def test_an_unreduced_value_is_put_into_nothing_else(operation: Any, line: str, check_vma: bool, mesh: Mesh) -> None:
    def use(x: Any) -> Any:
        return operation(reduce(x, ADDENDS, "sum"))

    refused(PatternError, line, use, mesh, check_vma=check_vma)


def test_an_unreduced_value_is_not_read_as_a_reduced_one(mesh: Mesh) -> None:
    line = "rearrange in <lambda>: the operand is unreduced over 'tp', which the pattern does not mention"
    use = lambda x: rearrange(reduce(x, ADDENDS, "sum"), "[b/dp] -> 1 [b/dp]")  # noqa: E731
    refused(VaryingError, line, use, mesh)


def unreduced(x: Any) -> Any:
    return jax.lax.pcast(x, "tp", to="unreduced")


TYPED_AS_UNREDUCED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a lookup": (
        lambda x: take(unreduced(x.sum(1)), np.array([5, 2]), "[b/dp] +tp, i -> i +tp"),
        "take in <lambda>: the table is unreduced over 'tp' in JAX's type, and JAX has no gather of unreduced values"),
    "a mean that stays unreduced": (
        lambda x: pmean(unreduced(x.sum()), "~dp +tp -> +tp"),
        "pmean in <lambda>: a mean of a value that stays unreduced over 'tp': JAX does not scale such a value"),
}  # fmt: skip


@pytest.mark.parametrize(("operation", "line"), TYPED_AS_UNREDUCED.values(), ids=TYPED_AS_UNREDUCED)
def test_what_jax_types_as_unreduced_goes_into_nothing_that_jax_does_not_have(
    operation: Any, line: str, mesh: Mesh
) -> None:
    refused(PatternError, line, operation, mesh)


# psum of a pytree


class Layer(NamedTuple):
    w: Any
    b: Any


TREES: dict[str, Callable[[Any], Any]] = {
    "dict": lambda x: {"x": x, "y": x * 2},
    "NamedTuple": lambda x: Layer(x, {"z": x.sum()}),
    "list and tuple": lambda x: [x, (x.sum(), x.max())],
    "one array": lambda x: x,
    "nothing": lambda x: [],
    "None": lambda x: {"x": x, "none": None},
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("axes", ["tp", ("dp", "tp"), ["tp"], "dp,tp"])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_pytree_is_summed_leaf_by_leaf(tree: Any, axes: Any, mesh: Mesh) -> None:
    names = tuple(axes.split(",")) if isinstance(axes, str) else tuple(axes)

    def body(x: Any) -> Any:
        return jax.tree.map(jnp.ravel, (psum(tree(x), axes), jax.lax.psum(tree(x), names)))

    got, expected = jax.jit(plain(body, mesh, P("dp")))(x)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(near, got, expected)


FEWER: list[tuple[str, Callable[[Any], Any], list[str]]] = [
    ("psum", lambda x: {"w": jnp.ones(3), "b": x}, ["tree['w']"]),
    ("psum", lambda x: Layer(jnp.ones(3), [x, jnp.ones(2)]), ["tree.w", "tree.b[1]"]),
    ("psum", lambda x: jnp.ones(3), ["tree"]),
    ("pmean", lambda x: (x, jnp.ones(3)), ["tree[1]"]),
    ("pmax", lambda x: [x, {"top": jnp.ones(3)}], ["tree[1]['top']"]),
]


@pytest.mark.parametrize(("verb", "tree", "paths"), FEWER)
def test_leaves_that_are_the_same_on_every_shard_are_named_by_their_paths(
    verb: str, tree: Any, paths: list[str], mesh: Mesh
) -> None:
    with pytest.raises(VaryingError) as caught:
        traced(lambda x: {"psum": psum, "pmean": pmean, "pmax": pmax}[verb](tree(x), "tp"), mesh)
    assert [str(failure.subject) for failure in caught.value.failures] == paths
    end = "would count it 2 times" if verb == "psum" else "changes nothing"
    what = f"argument '{paths[0]}' is the same on every shard of 'tp', so a {verb} over it {end}"
    assert str(caught.value).splitlines()[0] == f"{verb} in <lambda>: {what}"


def test_leaves_of_several_kinds_of_mistakes_are_reported_together(mesh: Mesh) -> None:
    with pytest.raises(StructureError) as caught:
        traced(lambda x: psum({"a": "text", "b": jnp.ones(2), "c": x}, "dp"), mesh)
    assert [str(failure.subject) for failure in caught.value.failures] == ["tree['a']", "tree['b']"]


# The commonest mistake: jax.grad has summed the gradients of a replicated weight already


def test_a_gradient_that_is_scattered_is_not_summed_over_its_shards(mesh: Mesh) -> None:
    def body(w: Float[Array, "[m/dp] f"], x: Float[Array, "[b/dp] m"]) -> Float[Array, "[m/dp] f"]:
        def loss(w: Any) -> Any:
            return einsum(x, all_gather(w, "[m/dp] f -> m f ~dp"), "[b/dp] m, m f ->")

        return psum(check(jax.grad(loss)(w), "[m/dp] f"), "m f +dp -> m f")

    with pytest.raises(ShardingError, match="is read as unsharded in dim 0, but"):
        jax.eval_shape(typed_shard_map(body, mesh=mesh), x, x)


def test_a_helper_of_a_region_reads_its_operands_as_the_region_does(mesh: Mesh) -> None:
    @typed
    def total(x: Float[Array, "[b/dp] [d/tp]"]) -> Float[Array, "[b/dp]"]:
        return reduce(x, "[b/dp] [d/tp] -> [b/dp]", "sum")

    near(in_body(lambda x: total(x), mesh, Float[Array, "[b/dp]"]), x.sum(1))
    near(total(shard(x, XY, mesh)), x.sum(1))


# The index and the number of shards, by any name that a pattern knows


SHARD_NAMES = {"rows": ("dp", "tp"), "columns": ("tp", "dp"), "none": None}


@pytest.mark.parametrize(
    ("axis", "expected", "count"),
    [
        ("dp", [[0, 0], [1, 1], [2, 2], [3, 3]], 4),
        ("rows", [[0, 1], [2, 3], [4, 5], [6, 7]], 8),
        (("dp", "tp"), [[0, 1], [2, 3], [4, 5], [6, 7]], 8),
        ("columns", [[0, 4], [1, 5], [2, 6], [3, 7]], 8),
        ("tp, dp", [[0, 4], [1, 5], [2, 6], [3, 7]], 8),
        ("none", [[0, 0], [0, 0], [0, 0], [0, 0]], 1),
    ],
)
def test_the_index_of_a_shard_counts_axes_major_to_minor(axis: Any, expected: Any, count: int, mesh: Mesh) -> None:
    def index() -> Any:
        assert axis_size(axis) == count
        return jnp.full((1, 1), axis_index(axis))

    call = typed_shard_map(index, mesh=mesh, axes=SHARD_NAMES, in_types=(), out_types=Int[Array, "[_/dp] [_/tp]"])
    np.testing.assert_array_equal(jax.block_until_ready(call()), expected)


@pytest.mark.parametrize("verb", [axis_index, axis_size])
@pytest.mark.parametrize(
    ("axis", "error", "problem"),
    [
        ("pp", MeshAxisError, "the pattern names mesh axis 'pp', which is not among the mesh's axes 'dp', 'tp'"),
        (("dp", "rows"), PatternError, "mesh axis 'dp' is named twice"),
        ((), PatternError, "no mesh axis is named"),
        (3, PatternError, "3 is not the name of a mesh axis"),
    ],
)
def test_an_axis_without_an_index(verb: Any, axis: Any, error: Any, problem: str, mesh: Mesh) -> None:
    def f() -> Any:
        return verb(axis)

    with fails(error, f"{verb.__name__} in f: {problem}"):
        jax.eval_shape(typed_shard_map(f, mesh=mesh, axes=SHARD_NAMES, in_types=(), out_types=None))
