"""The training step of `examples/quickstart.py`, and the same by hand.

By hand means `jax.shard_map`, `jax.lax` and `jax.numpy`: no hint, no pattern, no check, the sizes as
numbers and the specs written out. The initial weights and Adam, which is elementwise, are the
example's.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import typedshmap

EXAMPLE = Path(__file__).parent.parent / "examples" / "quickstart.py"
VOCAB, HEAD, BATCH, SEQ, TP = 256, 32, 32, 64, 2


def load(name: str, example: Path = EXAMPLE) -> Any:
    """An example as a module of that name."""
    spec = importlib.util.spec_from_file_location(name, example)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gather(w, axis):
    return lax.all_gather(w, "dp", axis=axis, tiled=True)


def places(ids):
    """The places of ids on this shard; one past the end for those of others."""
    here = ids.astype(jnp.int32) - lax.axis_index("tp") * (VOCAB // TP)
    return jnp.where((here >= 0) & (here < VOCAB // TP), here, VOCAB // TP)


def embed(ids, table):
    return lax.psum(table.at[places(ids)].get(mode="fill", fill_value=0), "tp")


def rms_norm(x, gain):
    return gain * x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attention(x, qkv, out):
    q, k, v = jnp.einsum("bsm,cmhd->cbshd", x, qkv)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    causal = jnp.tril(jnp.ones((SEQ, SEQ), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores / HEAD**0.5, -jnp.inf))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return lax.psum(jnp.einsum("bshd,hdm->bsm", mixed, out), "tp")


def mlp(x, up, down):
    return lax.psum(jax.nn.gelu(x @ up) @ down, "tp")


def block(x, layer):
    x += attention(rms_norm(x, layer.attention_norm), gather(layer.qkv, 1), gather(layer.out, 2))
    return x + mlp(rms_norm(x, layer.mlp_norm), gather(layer.up, 0), gather(layer.down, 1))


def cross_entropy(logits, targets):
    top = lax.pmax(lax.stop_gradient(logits.max(axis=-1)), "tp")
    total = lax.psum(jnp.exp(logits - top[..., None]).sum(axis=-1), "tp")
    flat, ids = logits.reshape(-1, VOCAB // TP), places(targets).reshape(-1)
    chosen = jax.vmap(lambda row, i: row.at[i].get(mode="fill", fill_value=0))(flat, ids)
    chosen = lax.psum(chosen.reshape(targets.shape), "tp")
    return lax.psum((jnp.log(total) + top - chosen).sum(), "dp") / (BATCH * SEQ)


def loss(weights, text):
    x = embed(text[:, :-1], gather(weights.embed, 1)) + gather(weights.positions, 1)
    x, _ = lax.scan(lambda x, layer: (block(x, layer), None), x, weights.layers)
    return cross_entropy(rms_norm(x, weights.final_norm) @ gather(weights.unembed, 0), text[:, 1:])


def state_specs(example: Any) -> Any:
    """By hand, what the hints of the example's `State` say."""
    layer = example.Layer(
        attention_norm=P(None, None),
        qkv=P(None, None, "dp", "tp", None),
        out=P(None, "tp", None, "dp"),
        mlp_norm=P(None, None),
        up=P(None, "dp", "tp"),
        down=P(None, "tp", "dp"),
    )
    weights = example.Weights(P("tp", "dp"), P(None, "dp"), layer, P(None), P("dp", "tp"))
    return example.State(weights, weights, weights, P())


def steps(mesh: Mesh) -> tuple[Any, Any, tuple[Any, Any]]:
    """The step by hand, the typed step, and the arguments of both."""
    example = load("quickstart_with_hints")
    assert (example.VOCAB, example.HEAD, example.BATCH, example.SEQ) == (VOCAB, HEAD, BATCH, SEQ)

    def train_step(state, text):
        value, gradients = jax.value_and_grad(loss)(state.weights, text)
        return example.adam(state, gradients), value

    specs = state_specs(example)
    by_hand = jax.shard_map(train_step, mesh=mesh, in_specs=(specs, P("dp", None)), out_specs=(specs, P()))
    typed = typedshmap.typed_shard_map(example.train_step.__wrapped__.__wrapped__, mesh=mesh)
    text = np.random.default_rng(0).integers(example.VOCAB, size=(example.BATCH, example.SEQ + 1), dtype=np.uint8)
    with jax.set_mesh(mesh):
        state = jax.block_until_ready(example.init(jax.random.key(0)))
    return by_hand, typed, (state, text)
