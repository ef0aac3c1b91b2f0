"""The training step of `examples/transformer.py`, and the same by hand.

By hand means `jax.shard_map`, `jax.lax` and `jax.numpy`: no hint, no pattern, no check, the specs
written out. The initial weights and AdamW, which is elementwise, are the example's.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from quickstart_step import load

import typedshmap

EXAMPLE = Path(__file__).parent.parent / "examples" / "transformer.py"


def gather(w, axis):
    """A weight in bfloat16, gathered along the dim that is sharded at rest."""
    return lax.all_gather(w.astype(jnp.bfloat16), "fsdp", axis=axis, tiled=True)


def scatter(x):
    """Between blocks the sequence is sharded."""
    return lax.psum_scatter(x, "tp", scatter_dimension=1, tiled=True)


def normed(x, gain):
    wide = x.astype(jnp.float32)
    unit = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    gain = lax.all_gather(gain.astype(jnp.bfloat16), ("fsdp", "tp"), tiled=True)
    return lax.all_gather(unit.astype(x.dtype) * gain, "tp", axis=1, tiled=True)


def rotated(x):
    length, half = x.shape[-2], x.shape[-1] // 2
    angle = jnp.outer(jnp.arange(length), 10_000.0 ** (-jnp.arange(half) / half))
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def attention(x, layer):
    query, key, value, out = gather(layer.query, 0), gather(layer.key, 0), gather(layer.value, 0), gather(layer.out, 3)
    q = rotated(jnp.einsum("bsm,mkgd->bkgsd", x, query))
    k = rotated(jnp.einsum("bsm,mkd->bksd", x, key))
    v = jnp.einsum("bsm,mkd->bksd", x, value)
    scores = jnp.einsum("bkgqd,bksd->bkgqs", q, k).astype(jnp.float32)
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    chances = jax.nn.softmax(jnp.where(causal, scores / q.shape[-1] ** 0.5, -jnp.inf)).astype(x.dtype)
    return scatter(jnp.einsum("bkgsd,kgdm->bsm", jnp.einsum("bkgqs,bksd->bkgqd", chances, v), out))


def mlp(x, layer):
    gate, up, down = gather(layer.gate, 0), gather(layer.up, 0), gather(layer.down, 1)
    opened = jax.nn.silu(jnp.einsum("bsm,mf->bsf", x, gate))
    return scatter(jnp.einsum("bsf,fm->bsm", opened * jnp.einsum("bsm,mf->bsf", x, up), down))


def block(x, layer):
    x += attention(normed(x, layer.attention_norm), layer)
    return x + mlp(normed(x, layer.mlp_norm), layer)


def places(ids, count):
    """The places of ids on this shard, which has so many; one past the end for those of others."""
    here = ids - lax.axis_index("tp") * count
    return jnp.where((here >= 0) & (here < count), here, count)


def cross_entropy(logits, targets):
    top = lax.pmax(lax.stop_gradient(logits.max(axis=-1)), "tp")
    total = lax.psum(jnp.exp(logits - top[..., None]).sum(axis=-1), "tp")
    count = logits.shape[-1]
    flat, ids = logits.reshape(-1, count), places(targets, count).reshape(-1)
    chosen = jax.vmap(lambda row, i: row.at[i].get(mode="fill", fill_value=0))(flat, ids)
    chosen = lax.psum(chosen.reshape(targets.shape), "tp")
    return lax.pmean((jnp.log(total) + top - chosen).mean(), "fsdp")


def loss(weights, tokens, targets):
    table = gather(weights.embed, 1)
    x = scatter(table.at[places(tokens, len(table))].get(mode="fill", fill_value=0))
    step = jax.checkpoint(lambda x, layer: (block(x, layer), None), prevent_cse=False)
    x, _ = lax.scan(step, x, weights.layers)
    logits = jnp.einsum("bsm,mv->bsv", normed(x, weights.final_norm), gather(weights.unembed, 0))
    return cross_entropy(logits.astype(jnp.float32), targets)


def norm(gradients):
    squares = jax.tree_util.tree_map(lambda g: jnp.sum(g * g), gradients)
    return jnp.sqrt(sum(jax.tree_util.tree_leaves(lax.psum(squares, ("fsdp", "tp")))))


def state_specs(example: Any) -> Any:
    """By hand, what the hints of the example's `State` say."""
    layer = example.Layer(
        attention_norm=P(None, ("fsdp", "tp")),
        query=P(None, "fsdp", "tp", None, None),
        key=P(None, "fsdp", "tp", None),
        value=P(None, "fsdp", "tp", None),
        out=P(None, "tp", None, None, "fsdp"),
        mlp_norm=P(None, ("fsdp", "tp")),
        gate=P(None, "fsdp", "tp"),
        up=P(None, "fsdp", "tp"),
        down=P(None, "tp", "fsdp"),
    )
    weights = example.Weights(P("tp", "fsdp"), layer, P(("fsdp", "tp")), P("fsdp", "tp"))
    return example.State(weights, weights, weights, P())


def steps(mesh: Mesh) -> tuple[Any, Any, tuple[Any, Any, Any]]:
    """The step by hand, the typed step, and the arguments of both, on a mesh of the example's axes."""
    example = load("transformer_with_hints", EXAMPLE)

    def train_step(state, tokens, targets):
        value, gradients = jax.value_and_grad(loss)(state.weights, tokens, targets)
        gradient_norm = norm(gradients)
        scale = jnp.minimum(1, example.LARGEST_NORM / gradient_norm)
        return example.adamw(state, gradients, scale), example.Metrics(value, gradient_norm)

    specs, batch = state_specs(example), P("fsdp", None)
    out_specs = (specs, example.Metrics(P(), P()))
    by_hand = jax.shard_map(train_step, mesh=mesh, in_specs=(specs, batch, batch), out_specs=out_specs)
    text = np.random.default_rng(0).integers(example.SIZES["vocab"], size=(example.BATCH, example.SEQ + 1))
    with jax.set_mesh(mesh):
        state = jax.block_until_ready(example.init(jax.random.key(0)))
    typed = typedshmap.typed_shard_map(example.step.__wrapped__, mesh=mesh)
    return by_hand, typed, (state, text[:, :-1].astype(np.int32), text[:, 1:].astype(np.int32))
