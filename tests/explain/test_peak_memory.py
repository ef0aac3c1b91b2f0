"""The peak of memory by liveness: what is fused, what is written where something else was, and what loops keep."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh

from typedshmap import Array, Float32, all_gather, explain, typed_jit, typed_shard_map
from typedshmap.tools.explain import Memory

# The programs are about other things, and do not all mean something.
pytestmark = pytest.mark.filterwarnings("ignore::typedshmap.SuspectWarning")

MESH = AbstractMesh((4,), ("dp",))
ROWS = {"a": 64, "b": 16}  # of which a shard is 1,024 bytes
SHARD = 1024


def memory_of(body, **options) -> Memory:
    @typed_shard_map(check_vma=False)
    def f(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
        return body(x)

    return explain(f, mesh=MESH, grad=False, **ROWS, **options).memory


def scanned(x):
    return lax.scan(lambda c, _: (jnp.tanh(c), None), x, None, length=5)[0]


def stacked(x):
    return lax.scan(lambda c, _: (c * 2, c @ c.T), x, None, length=5)[1].sum() + x


def half(x):
    return x.astype(jnp.bfloat16)


def branches(x):
    return lax.cond(x[0, 0] > 0, lambda x: x, lambda x: jnp.sort(jnp.tile(x, (8, 1)), axis=0)[:16], x)


def moments(y):
    return y.sum(1)[:, None] + (y * y).sum(1)[:, None]


# The peak in shards, beyond the argument and the result.
PEAKS = {
    "elementwise operations are fused": (lambda x: 2 * jnp.sin(x) + 1, 0),
    "so are masks": (lambda x: jnp.where(jnp.tril(jnp.ones((16, 16), bool)), x, 0), 0),
    "what a sum takes is not in memory": (lambda x: x + jnp.sum(jnp.broadcast_to(x, (50, 16, 16)), 0), 0),
    "nor is what costs little to compute again": (lambda x: moments(2 * x) + x, 0),
    "an exponential that several take is": (lambda x: moments(jnp.exp(x)) + x, 1),
    "what is summed as it is written is not written over its operand": (
        lambda x: (y := jnp.exp(x @ x.T)) / y.sum(1)[:, None] @ x, 2),
    "a product is written": (lambda x: x @ x.T, 0),
    "two products hold what is between them": (lambda x: jnp.tanh(x @ x.T) @ x, 1),
    "a sort writes where its operand was": (lambda x: jnp.sort(x @ x.T, axis=0), 0),
    "a gathered array is there until it is read": (
        lambda x: x @ lax.all_gather(x, "dp", tiled=True).T @ jnp.ones((64, 16)), 8),
    "along another dim its parts are laid out anew": (
        lambda x: x @ lax.all_gather(x, "dp", axis=1, tiled=True)[:, :16], 8),
    "a loop writes what it carries in the place of its result": (scanned, 0),
    "what a scan stacks is there from its start": (stacked, 7),
    "of branches the one that writes most counts": (branches, 8),
    "an inner function is read": (lambda x: jax.jit(lambda x: jnp.tanh(x @ x.T) @ x)(x), 1),
}  # fmt: skip


@pytest.mark.parametrize("body, more", PEAKS.values(), ids=PEAKS)
def test_the_peak_is_what_is_in_memory_at_once(body, more):
    assert memory_of(body).peak // SHARD == 2 + more


@pytest.mark.parametrize(
    "collective",
    [
        lambda x, axis: lax.psum(x, axis),
        lambda x, axis: lax.all_gather(x, axis, axis=1, tiled=True),
        lambda x, axis: lax.psum_scatter(x, axis, scatter_dimension=1, tiled=True),
        lambda x, axis: lax.all_to_all(x, axis, 0, 1, tiled=True),
        lambda x, axis: lax.ppermute(x, axis, [(0, 0)]),
    ],
)
def test_over_an_axis_of_size_1_a_collective_is_a_view(collective):
    """XLA drops it, of one shard by itself, from a region around and one within."""

    def peak(over_one) -> int:
        mesh = AbstractMesh((4, 1), ("dp", "one"))

        @typed_shard_map(axis_names={"dp"}, check_vma=False)
        def f(x: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
            inner = jax.shard_map(
                lambda x: over_one(jnp.tanh(x @ x.T)).reshape(-1, 16)[:16] @ x,
                in_specs=jax.P(), out_specs=jax.P(), axis_names={"one"}, check_vma=False,
            )  # fmt: skip
            return inner(x)

        return explain(f, mesh=mesh, grad=False, **ROWS).memory.peak

    assert peak(lambda x: collective(x, "one")) == peak(lambda x: x)


def test_what_is_scanned_is_made_narrow_once_before_the_loop():
    def body(x):
        total, _ = lax.scan(lambda c, w: (c + half(w) @ half(w).T, None), half(x[:4, :4]), x.reshape(4, 4, 16))
        return x + total.sum()

    alive = [(one.what.removesuffix(" convert_element_type"), one.bytes) for one in memory_of(body).alive]
    assert alive.count(("x as bf16", SHARD // 2)) == 1


def test_the_peak_has_a_place_and_what_is_alive_there():
    memory = memory_of(lambda x: jnp.tanh(x @ lax.all_gather(x, "dp", tiled=True).T)[:, :16])
    alive = [(one.bytes // SHARD, one.what, one.kind) for one in memory.alive]
    assert alive == [
        (4, "f32[64,16] all_gather", "gathered"),
        (4, "f32[16,64] dot_general", "temporaries"),
        (1, "x", "arguments"),
        (1, "f32[16,16] slice", "results"),
    ]
    assert memory.place.startswith("test_peak_memory.py:")
    assert memory.parts == {"gathered": 4096, "temporaries": 4096, "arguments": 1024, "results": 1024}
    assert sum(memory.parts.values()) == sum(one.bytes for one in memory.alive) == memory.peak


@typed_shard_map
def layers(x: Float32[Array, "[a/dp] b"], weights: Float32[Array, "layers [b/dp] b"]) -> Float32[Array, "[a/dp] b"]:
    def layer(x, weight):
        return jnp.tanh(x @ all_gather(weight, "[b/dp] c -> b c ~dp")), None

    return lax.scan(layer, x, weights)[0]


def test_a_gradient_keeps_what_its_backward_part_needs_and_a_checkpoint_computes_it_again():
    @typed_shard_map
    def saved(x: Float32[Array, "[a/dp] b"], weights: Float32[Array, "layers [b/dp] b"]) -> Float32[Array, "[a/dp] b"]:
        def layer(x, weight):
            return jax.checkpoint(lambda x: jnp.tanh(x @ all_gather(weight, "[b/dp] c -> b c ~dp")))(x), None

        return lax.scan(layer, x, weights)[0]

    sizes = {**ROWS, "layers": 10}
    alone, plain, again = (
        explain(f, mesh=MESH, grad=grad, **sizes).memory for f, grad in ((layers, False), (layers, True), (saved, True))
    )
    assert "saved activations" not in alone.parts
    # Of ten layers the operand of each product, and its gathered weight or the result, as far as it is not made again.
    assert plain.parts["saved activations"] >= again.parts["saved activations"] >= 10 * SHARD
    assert plain.peak > again.peak > alone.peak
    assert "cotangent of return" in [one.what for one in plain.alive]


def test_a_result_takes_the_place_of_a_donated_argument_once_that_is_read():
    def step(state: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
        return state @ state.T @ state

    def twice(state: Float32[Array, "[a/dp] b"]) -> Float32[Array, "[a/dp] b"]:
        return 2 * state

    kept, donated = typed_jit(typed_shard_map(step)), typed_jit(typed_shard_map(step), donate_argnums=0)
    peaks = [explain(f, mesh=MESH, grad=False, **ROWS).memory.peak // SHARD for f in (kept, donated)]
    assert peaks == [3, 3]  # the last product still reads what was donated
    once = typed_jit(typed_shard_map(twice), donate_argnums=0)
    assert explain(once, mesh=MESH, grad=False, **ROWS).memory.peak // SHARD == 1


def test_weights_are_told_from_optimizer_state_and_from_what_is_neither():
    @typed_shard_map
    def step(
        weights: Float32[Array, "[b/dp] b"], mean: Float32[Array, "[b/dp] b"], x: Float32[Array, "[a/dp] b"]
    ) -> tuple[Float32[Array, "[b/dp] b"], Float32[Array, "[b/dp] b"]]:
        def loss(weights):
            gathered = all_gather(weights, "[b/dp] c -> b c ~dp")
            return jnp.sum(jnp.tanh(x @ gathered) @ gathered)

        mean = 0.9 * mean + jax.grad(loss)(weights)
        return weights - mean, mean

    memory = explain(step, mesh=MESH, **ROWS).memory
    kinds = {one.what: one.kind for one in memory.alive}
    assert [kinds[name] for name in ("weights", "mean", "x")] == ["weights", "optimizer state", "arguments"]
    assert memory.parts["gathered weights"] == SHARD
    alone = explain(layers, mesh=MESH, grad=True, layers=10, **ROWS).memory
    assert {"weights", "optimizer state"}.isdisjoint(alone.parts)


def test_what_only_products_take_is_in_bfloat16_where_they_are_multiplied_so():
    def body(precision):
        return lambda x: jnp.dot(y := jnp.dot(x, x.T), x, precision=precision) + jnp.dot(y.T, x)

    def products(precision, hardware):
        alive = memory_of(body(precision), hardware=hardware).alive
        return [one.bytes for one in alive if "dot_general" in one.what]

    assert products(None, None) == products("highest", "v5e") != products(None, "v5e")
    assert min(products(None, "v5e")) == SHARD // 2
    assert products(None, "h100") == products(None, None)


def test_only_a_product_of_a_cpu_has_a_copy_of_an_operand_whose_batch_dims_are_not_in_front():
    @typed_shard_map
    def scores(
        q: Float32[Array, "[b/dp] rows heads m"], k: Float32[Array, "[b/dp] columns heads m"]
    ) -> Float32[Array, "[b/dp] heads rows columns"]:
        return jnp.einsum("brhm,bchm->bhrc", q, k)

    sizes = {"b": 8, "rows": 64, "columns": 64, "heads": 8, "m": 64}
    found = [explain(scores, mesh=MESH, grad=False, hardware=name, **sizes) for name in (None, "h100", "v5e")]
    cpu, h100, v5e = (one.memory.peak for one in found)
    assert cpu > h100 == v5e


def test_on_a_tpu_a_product_writes_its_part_of_a_stack():
    @typed_shard_map
    def squares(x: Float32[Array, "steps n [n/dp]"]) -> Float32[Array, "steps n [n/dp]"]:
        return jax.lax.scan(lambda total, each: (total, jnp.tanh(total @ each)), jnp.ones((1024, 1024)), x)[1]

    on_tpu = explain(squares, mesh={"dp": 1}, hardware="v5e", grad=False, steps=8, n=1024).memory
    on_cpu = explain(squares, mesh={"dp": 1}, grad=False, steps=8, n=1024).memory
    assert on_cpu.peak - on_tpu.peak >= 4 * 1024**2
    assert not any(one.what.startswith("f32[1024,1024] tanh") for one in on_tpu.alive)
