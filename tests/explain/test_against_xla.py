"""What ``explain`` counts is what XLA compiles: operations, groups, bytes and how often, loops included."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from compiled import Sent, reported, sent_by
from jax import lax
from tiers import slow

from typedshmap import Array, Float32, all_gather, einsum, psum, reshard, typed_jit, typed_shard_map
from typedshmap.tools.explain import explain

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import memory

# The programs are about other things, and do not all mean something.
pytestmark = pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")


def compiled(f, mesh, args) -> Counter[Sent]:
    with jax.set_mesh(mesh):
        return sent_by(f.lower(*args).compile().as_text(), mesh.size)


def agree(f, mesh, *shapes, **options) -> Counter[Sent]:
    """Compare a mapped function's collectives; what both say."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    found = explain(f, *args, mesh=mesh, grad=False, **options)
    xla = compiled(jax.jit(f), mesh, args)
    assert reported(found) == xla
    return xla


def on_all(body):
    """A function of one array that is sharded over dp and tp, of whose body's result each device returns one number."""

    @typed_shard_map(check_vma=False)
    def f(x: Float32[Array, "[a/dp] [b/tp]"]) -> Float32[Array, "[n/dp,tp]"]:
        return jnp.sum(jnp.sin(body(x)))[None]

    return f


COLLECTIVES = {
    "psum": lambda x: lax.psum(x, "dp"),
    "psum over both": lambda x: lax.psum(x, ("dp", "tp")),
    "psum of two": lambda x: sum(jnp.sum(y) for y in lax.psum((x, x[:1] + 1), "tp")),
    "pmean": lambda x: lax.pmean(x, "tp"),
    "pmax": lambda x: lax.pmax(x, "dp"),
    "pmin": lambda x: lax.pmin(x, "dp"),
    "all_gather": lambda x: lax.all_gather(x, "dp"),
    "all_gather tiled": lambda x: lax.all_gather(x, "tp", axis=1, tiled=True),
    "all_gather over both": lambda x: lax.all_gather(x, ("dp", "tp"), axis=0, tiled=True),
    "psum_scatter": lambda x: lax.psum_scatter(x, "dp", scatter_dimension=0, tiled=True),
    "psum_scatter untiled": lambda x: lax.psum_scatter(x[:, :2], "tp", scatter_dimension=1),
    "all_to_all": lambda x: lax.all_to_all(x, "dp", 0, 1, tiled=True),
    "all_to_all untiled": lambda x: lax.all_to_all(x[:4], "dp", 0, 1),
    "ppermute": lambda x: lax.ppermute(x, "dp", [(i, (i + 1) % 4) for i in range(4)]),
    "ppermute to some": lambda x: lax.ppermute(x, "dp", [(0, 1)]),
    "psum in groups": lambda x: lax.psum(x, "dp", axis_index_groups=[[0, 1], [2, 3]]),
    "all_gather in groups": lambda x: lax.all_gather(x, "dp", axis_index_groups=[[0, 2], [1, 3]]),
    "all_gather under vmap": lambda x: jax.vmap(lambda row: lax.all_gather(row, "tp", tiled=True))(x),
    "all_to_all under vmap": lambda x: jax.vmap(lambda row: lax.all_to_all(row, "tp", 0, 0, tiled=True))(x),
    "all_gather of bytes": lambda x: lax.all_gather(x.astype(jnp.int8), "dp").astype(jnp.float32),
    "cond": lambda x: lax.cond(lax.psum(jnp.sum(x), ("dp", "tp")) > 0, lambda x: lax.psum(x, "dp"), jnp.sin, x),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("body", COLLECTIVES.values(), ids=COLLECTIVES)
def test_each_collective_is_counted_as_xla_compiles_it(mesh, body):
    assert agree(on_all(body), mesh, (32, 32))


def test_a_sum_of_a_number_is_the_size_of_the_axis_and_no_collective(mesh):
    assert agree(on_all(lambda x: x * lax.psum(2, "dp")), mesh, (32, 32)).total() == 0


def test_a_dead_collective_is_not_counted(mesh):
    def body(x):
        lax.psum(x, "dp")
        return lax.psum(2 * x, "tp")

    assert agree(on_all(body), mesh, (32, 32)).total() == 1


def test_a_scan_runs_its_body_as_often_as_it_is_long(mesh):
    def body(x):
        return lax.scan(lambda c, _: (lax.psum(jnp.sin(c), "dp"), None), x, None, length=5)[0]

    assert agree(on_all(body), mesh, (32, 32)).total() == 5


def test_inner_functions_and_regions_are_read(mesh):
    inner = jax.jit(lambda x: lax.psum(x, "tp"))
    assert agree(on_all(lambda x: jax.checkpoint(inner)(jnp.sin(x))), mesh, (32, 32)).total() == 1


@typed_shard_map
def mlp(
    x: Float32[Array, "[batch/dp] model"],
    up: Float32[Array, "layers [model/dp] [ff/tp]"],
    down: Float32[Array, "layers [ff/tp] [model/dp]"],
) -> Float32[Array, "[batch/dp] model"]:
    def layer(x, weights):
        up, down = weights
        up = all_gather(up, "[m/dp] [f/tp] -> m [f/tp] ~dp")
        down = all_gather(down, "[f/tp] [m/dp] -> [f/tp] m ~dp")
        h = jnp.tanh(einsum(x, up, "[b/dp] m, m [f/tp] -> [b/dp] [f/tp]"))
        return x + einsum(h, down, "[b/dp] [f/tp], [f/tp] m -> [b/dp] m"), None

    return lax.scan(layer, x, (up, down))[0]


MLP = [(8, 16), (3, 16, 24), (3, 24, 16)]


@typed_shard_map
def checkpointed(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
    @jax.checkpoint
    def layer(x):
        return lax.pcast(lax.psum(jnp.sin(x).sum(0), "dp"), "dp", to="varying") * jnp.cos(x)

    return layer(layer(x))


@jax.custom_vjp
def total(x):
    return lax.psum(x, "dp")


total.defvjp(
    lambda x: (lax.psum(x, "dp"), lax.psum(jnp.cos(x), "dp")),
    lambda rest, ct: (lax.pcast(rest * ct, "dp", to="varying"),),
)


@typed_shard_map
def ring(q: Float32[Array, "[s/dp] d"], k: Float32[Array, "[s/dp] d"]) -> Float32[Array, "[s/dp] d"]:
    def iteration(carry, _):
        out, k = carry
        return (out + jnp.tanh(q * k), lax.ppermute(k, "dp", [(i, (i + 1) % 4) for i in range(4)])), None

    return lax.scan(iteration, (jnp.zeros_like(q), k), None, length=4)[0][0]


in_a_region = typed_shard_map(lambda x: total(x), in_types=Float32[Array, "[a/dp] b"], out_types=Float32[Array, "c b"])
# The collectives of the forward part, and those that the gradient adds.
GRADIENTS = {
    "a loop": (mlp, MLP, 9, 9),
    "what a checkpoint computes again": (checkpointed, [(32, 32)], 2, 4),
    "what a forward rule computes more": (in_a_region, [(32, 32)], 1, 1),
    "a ring": (ring, [(32, 8), (32, 8)], 4, 4),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_with_its_forward_part_is_counted_as_xla_compiles_it(mesh, name):
    f, shapes, forward, gradient = GRADIENTS[name]
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    found = explain(f, *args, mesh=mesh, grad=True)

    def both(cotangent, *args):
        out, pull = jax.vjp(f, *args)
        return out, pull(cotangent)

    with jax.set_mesh(mesh):
        cotangent = jax.eval_shape(f, *args)
    assert reported(found) == compiled(jax.jit(both), mesh, [cotangent, *args])
    counts = [sum(total.count for total in found.totals if total.part == part) for part in ("forward", "gradient")]
    assert counts == [forward, gradient]


def test_a_region_within_a_region_is_read(mesh):
    @typed_shard_map(axis_names={"dp"})
    def outer(x: Float32[Array, "[a/dp] [b/tp]"]) -> Float32[Array, "[a/dp]"]:
        @typed_shard_map(axis_names={"tp"})
        def inner(x: Float32[Array, "a [b/tp]"]) -> Float32[Array, "a"]:
            return lax.psum(jnp.sin(x).sum(1), "tp")

        return inner(x)

    assert agree(outer, mesh, (32, 32)) == {Sent("all-reduce", 2, 32, 32): 1}


def test_resharding_is_counted_by_the_steps_that_xla_compiles(mesh):
    @typed_shard_map
    def f(x: Float32[Array, "[a/dp] [b/tp]"]) -> Float32[Array, "[a/tp] [b/dp]"]:
        return reshard(x, "[a/dp] [b/tp] -> [a/tp] [b/dp]")

    assert agree(f, mesh, (32, 32))


@typed_jit
def step(x: Float32[Array, "[batch/dp] model"], w: Float32[Array, "model model"]) -> Float32[Array, "batch"]:
    return jnp.sum(jnp.sin(x @ w), axis=1)


def test_what_xla_adds_to_global_operations_is_said_not_to_be_counted(mesh):
    found = explain(step, mesh=mesh, batch=8, model=16, grad=False)
    args = [jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((16, 16), jnp.float32)]
    assert found.collectives == ()
    assert compiled(step, mesh, args).total() == 1
    (note,) = found.notes
    assert note.startswith("outside of manual regions XLA partitions operations on global arrays (dot_general, sin, ")


ONLY_XLA = {
    "twice the same": (lambda x: lax.psum(x, "dp") + jnp.sin(lax.psum(x, "dp")), 2, 1),
    "the same at every iteration": (
        lambda x: lax.scan(lambda c, _: (jnp.sin(c + lax.psum(x, "dp")), None), x, None, length=5)[0],
        5,
        1,
    ),
    "of a constant": (lambda x: x * lax.psum(jnp.ones((8, 16)), "dp"), 1, 0),
}


@pytest.mark.parametrize("body, ours, xlas", ONLY_XLA.values(), ids=ONLY_XLA)
def test_what_only_xla_finds_superfluous_is_counted(mesh, body, ours, xlas):
    """What docs/explain.md says of the program as it stands: XLA may do less, and this shows where."""
    f, args = on_all(body), [jax.ShapeDtypeStruct((32, 32), jnp.float32)]
    assert reported(explain(f, *args, mesh=mesh, grad=False)).total() == ours
    assert compiled(jax.jit(f), mesh, args).total() == xlas


def test_the_products_of_an_unrolled_program_are_those_that_xla_counts(mesh):
    @typed_shard_map(check_vma=False)
    def gradients(
        x: Float32[Array, "[a/dp] b"], up: Float32[Array, "b [c/tp]"], down: Float32[Array, "[c/tp] b"]
    ) -> tuple[Float32[Array, "b [c/tp]"], Float32[Array, "[c/tp] b"]]:
        def loss(up, down):
            return jnp.sum(psum(jnp.tanh(x @ up) @ down, "tp") ** 2) / jax.lax.axis_size("tp")

        return psum(jax.grad(loss, (0, 1))(up, down), "dp")

    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1024, 256), (256, 1024), (1024, 256))]
    work = explain(gradients, *args, mesh=mesh, grad=False).work
    with jax.set_mesh(mesh):
        cost = jax.jit(gradients).lower(*args).compile().cost_analysis()
    assert work.kinds["products"] == 5 * 2 * 256 * 256 * 512
    assert work.flops == pytest.approx(cost["flops"], rel=0.02)


@pytest.mark.parametrize("name", [*map(slow, memory.EXAMPLES)])
def test_the_memory_of_an_example_is_that_which_xla_sets_aside(name):
    assert memory.LEAST <= memory.compare(name).ratio <= memory.MOST


def test_a_text_without_an_entry_is_refused():
    with pytest.raises(AssertionError, match="no ENTRY"):
        sent_by("HloModule m", 8)
