"""A transformer's gradient step twice: with the operations, and by hand with `jax.lax`.

FSDP over ``dp``, tensor parallel over ``tp``, and between the blocks the sequence is split over
``tp``: weights are gathered per layer right before their use, activations before every block, and
what a block makes is scattered along the sequence again. The layers' weights are those of
`unrolled`; the vocabulary is split over ``tp``.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import unrolled
from jax import lax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P
from unrolled import Layer

from typedshmap import Array, Float, Int, all_gather, einsum, logsumexp, reduce, take, typed, typed_shard_map

Stream = Float[Array, "[b/dp] [s/tp] m"]
Ids = Int[Array, "[b/dp] s"]


@jax.tree_util.register_dataclass
@dataclass
class Weights:
    embed: Float[Array, "[v/tp] [m/dp]"]
    layers: list[Layer]
    before_head: Float[Array, " m"]
    head: Float[Array, "[m/dp] [v/tp]"]


def norm(x, gain):
    return gain * x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def weigh(scores, d):
    """The weights of causal attention, from scores ``[b h q k]``."""
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(causal, scores / d**0.5, -jnp.inf))


@typed
def attention(x: Stream, layer: Layer) -> Stream:
    x = all_gather(norm(x, layer.before_attention), "[b/dp] [s/tp] m -> [b/dp] s m ~tp")
    q, k, v = (
        einsum(x, all_gather(w, "[m/dp] [h/tp] d -> m [h/tp] d ~dp"), "[b/dp] s m, m [h/tp] d -> [b/dp] s [h/tp] d")
        for w in (layer.query, layer.key, layer.value)
    )
    scores = einsum(q, k, "[b/dp] q [h/tp] d, [b/dp] k [h/tp] d -> [b/dp] [h/tp] q k")
    mixed = einsum(weigh(scores, q.shape[-1]), v, "[b/dp] [h/tp] q k, [b/dp] k [h/tp] d -> [b/dp] q [h/tp] d")
    out = all_gather(layer.out, "[h/tp] d [m/dp] -> [h/tp] d m ~dp")
    return einsum(mixed, out, "[b/dp] s [h/tp] d, [h/tp] d m -> [b/dp] [s/tp] m")


@typed
def mlp(x: Stream, layer: Layer) -> Stream:
    x = all_gather(norm(x, layer.before_mlp), "[b/dp] [s/tp] m -> [b/dp] s m ~tp")
    up = all_gather(layer.up, "[m/dp] [f/tp] -> m [f/tp] ~dp")
    down = all_gather(layer.down, "[f/tp] [m/dp] -> [f/tp] m ~dp")
    h = jax.nn.gelu(einsum(x, up, "[b/dp] s m, m [f/tp] -> [b/dp] s [f/tp]"))
    return einsum(h, down, "[b/dp] s [f/tp], [f/tp] m -> [b/dp] [s/tp] m")


@typed
def loss(weights: Weights, ids: Ids, targets: Ids) -> Float[Array, ""]:
    table = all_gather(weights.embed, "[v/tp] [m/dp] -> [v/tp] m ~dp")
    x = take(table, ids, "[v/tp] m, [b/dp] s -> [b/dp] [s/tp] m")
    for layer in weights.layers:
        x += attention(x, layer)
        x += mlp(x, layer)
    x = all_gather(norm(x, weights.before_head), "[b/dp] [s/tp] m -> [b/dp] s m ~tp")
    head = all_gather(weights.head, "[m/dp] [v/tp] -> m [v/tp] ~dp")
    logits = einsum(x, head, "[b/dp] s m, m [v/tp] -> [b/dp] s [v/tp]")
    total = logsumexp(logits, "[b/dp] s [v/tp] -> [b/dp] s")
    chosen = take(logits, targets, "[b/dp] s [v/tp], [b/dp] s -> [b/dp] s")
    return reduce(total - chosen, "[b/dp] s ->", "mean")


def with_operations(weights: Weights, ids: Ids, targets: Ids) -> tuple[Float[Array, ""], Weights]:
    return jax.value_and_grad(loss)(weights, ids, targets)


def gather(w, axis, name="dp"):
    return lax.all_gather(w, name, axis=axis, tiled=True)


def scatter(x):
    return lax.psum_scatter(x, "tp", scatter_dimension=1, tiled=True)


def places(ids, count):
    """The places of ids on this shard, one past the end for those of others."""
    here = ids - lax.axis_index("tp") * count
    return jnp.where((here >= 0) & (here < count), here, count)


def loss_by_hand(weights, ids, targets):
    table = gather(weights.embed, 1)
    x = scatter(table.at[places(ids, table.shape[0])].get(mode="fill", fill_value=0))
    for layer in weights.layers:
        h = gather(norm(x, layer.before_attention), 1, "tp")
        q, k, v = (jnp.einsum("bsm,mhd->bshd", h, gather(w, 0)) for w in (layer.query, layer.key, layer.value))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weigh(jnp.einsum("bqhd,bkhd->bhqk", q, k), q.shape[-1]), v)
        x += scatter(jnp.einsum("bshd,hdm->bsm", mixed, gather(layer.out, 2)))
        h = gather(norm(x, layer.before_mlp), 1, "tp")
        x += scatter(jax.nn.gelu(h @ gather(layer.up, 0)) @ gather(layer.down, 1))
    logits = gather(norm(x, weights.before_head), 1, "tp") @ gather(weights.head, 0)
    top = lax.pmax(lax.stop_gradient(logits.max(axis=-1)), "tp")
    total = jnp.log(lax.psum(jnp.exp(logits - top[..., None]).sum(axis=-1), "tp")) + top
    flat, count = logits.reshape(-1, logits.shape[-1]), logits.shape[-1]
    chosen = jax.vmap(lambda row, i: row.at[i].get(mode="fill", fill_value=0))(flat, places(targets, count).reshape(-1))
    chosen = lax.psum(chosen.reshape(targets.shape), "tp")
    return lax.pmean((total - chosen).mean(), "dp")


def by_hand(weights: Any, ids: Any, targets: Any) -> Any:
    return jax.value_and_grad(loss_by_hand)(weights, ids, targets)


def structs(layers: int, batch: int, length: int, **sizes: int) -> tuple[Weights, Any, Any]:
    """The shapes of the arguments, for what is traced and not run."""
    weights, ids = unrolled.shapes(layers, **sizes), jax.ShapeDtypeStruct((batch, length), jnp.int32)
    return Weights(weights.embed, weights.layers, weights.before_head, weights.head), ids, ids


def mapped(mesh: Mesh | AbstractMesh, layers: int) -> tuple[Any, Any]:
    """The step by hand, and the step with operations."""
    parts = unrolled.specs(layers)
    specs = Weights(P("tp", "dp"), parts.layers, P(None), P("dp", "tp"))
    batch = P("dp", None)
    hand = jax.shard_map(by_hand, mesh=mesh, in_specs=(specs, batch, batch), out_specs=(P(), specs))
    return hand, typed_shard_map(with_operations, mesh=mesh)


def steps(mesh: Mesh, layers: int = 2) -> tuple[Any, Any, tuple[Any, Any, Any]]:
    """The step by hand, the step with operations, and the arguments of both."""
    weights, ids, targets = unrolled.arguments(layers)
    arguments = (Weights(weights.embed, weights.layers, weights.before_head, weights.head), ids, targets)
    return *mapped(mesh, layers), arguments
