"""A training step of a decoder-only transformer, FSDP over ``dp`` and tensor parallel over ``tp``.

Its layers are unrolled, so that the traced program is as long as real ones are. `step` and `forward`
carry hints for `typed_shard_map`; `SPECS` says the same by hand for `jax.shard_map`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, Int

RATE = 0.1


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    before_attention: Float[Array, " m"]
    query: Float[Array, "[m/dp] [heads/tp] d"]
    key: Float[Array, "[m/dp] [heads/tp] d"]
    value: Float[Array, "[m/dp] [heads/tp] d"]
    out: Float[Array, "[heads/tp] d [m/dp]"]
    before_mlp: Float[Array, " m"]
    up: Float[Array, "[m/dp] [ff/tp]"]
    down: Float[Array, "[ff/tp] [m/dp]"]


@jax.tree_util.register_dataclass
@dataclass
class Weights:
    embed: Float[Array, "v [m/dp]"]
    layers: list[Layer]
    before_head: Float[Array, " m"]
    head: Float[Array, "[m/dp] v"]


def shapes(layers: int, m: int = 32, heads: int = 4, d: int = 8, ff: int = 64, v: int = 128) -> Weights:
    """The shape of every weight."""
    shape = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    into, out = shape((m, heads, d)), shape((heads, d, m))
    layer = Layer(shape((m,)), into, into, into, out, shape((m,)), shape((m, ff)), shape((ff, m)))
    return Weights(shape((v, m)), [layer] * layers, shape((m,)), shape((m, v)))


def arguments(layers: int) -> tuple[Weights, Any, Any]:
    """Weights, tokens and targets."""
    rng = np.random.default_rng(0)
    weights = jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.1).astype(np.float32), shapes(layers))
    tokens = rng.integers(128, size=(8, 17), dtype=np.int32)
    return weights, tokens[:, :-1], tokens[:, 1:]


def specs(layers: int) -> Weights:
    """By hand, what the hints of `Weights` say."""
    into, out = P("dp", "tp", None), P("tp", None, "dp")
    layer = Layer(P(None), into, into, into, out, P(None), P("dp", "tp"), P("tp", "dp"))
    return Weights(P(None, "dp"), [layer] * layers, P(None), P("dp", None))


def _gathered(weight: Any, axis: int) -> Any:
    return jax.lax.all_gather(weight, "dp", axis=axis, tiled=True)


def normed(x: Any, scale: Any) -> Any:
    """Scaled to a mean square of 1."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def _attention(x: Any, layer: Layer) -> Any:
    query, key, value = (jnp.einsum("bsm,mhd->bshd", x, _gathered(w, 0)) for w in (layer.query, layer.key, layer.value))
    scores = jnp.einsum("bshd,bthd->bhst", query, key) / query.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    mixed = jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(jnp.where(seen, scores, -1e9)), value)
    return jax.lax.psum(jnp.einsum("bsad,adm->bsm", mixed, _gathered(layer.out, 2)), "tp")


def _mlp(x: Any, layer: Layer) -> Any:
    return jax.lax.psum(jax.nn.gelu(x @ _gathered(layer.up, 0)) @ _gathered(layer.down, 1), "tp")


def forward(weights: Weights, tokens: Int[Array, "[b/dp] s"]) -> Float[Array, "[b/dp] s v"]:
    """Logits."""
    x = _gathered(weights.embed, 1)[tokens]
    for layer in weights.layers:
        x = x + _attention(normed(x, layer.before_attention), layer)
        x = x + _mlp(normed(x, layer.before_mlp), layer)
    return normed(x, weights.before_head) @ _gathered(weights.head, 0)


def mean_loss(logits: Any, targets: Any) -> Any:
    """The cross entropy of all shards' tokens."""
    logs = jax.nn.log_softmax(logits)
    return jax.lax.pmean(-jnp.take_along_axis(logs, targets[..., None], axis=-1).mean(), "dp")


def _loss(weights: Weights, tokens: Any, targets: Any) -> Any:
    return mean_loss(forward(weights, tokens), targets)


def step(
    weights: Weights, tokens: Int[Array, "[b/dp] s"], targets: Int[Array, "[b/dp] s"]
) -> tuple[Float[Array, ""], Weights]:
    """The loss, and the weights after one step of gradient descent."""
    loss, gradients = jax.value_and_grad(_loss)(weights, tokens, targets)
    return loss, jax.tree.map(lambda w, g: w - RATE * g, weights, gradients)
