"""The step of `unrolled`, its products and collectives written as patterns: the same program."""

from typing import Any

import jax
import jax.numpy as jnp
from unrolled import RATE, Layer, Weights, mean_loss, normed

from typedshmap import Array, Float, Int, all_gather, einsum

INTO = "[m/dp] [h/tp] d -> m [h/tp] d ~dp"
HEADS = "[b/dp] s m, m [h/tp] d -> [b/dp] s [h/tp] d"


def _attention(x: Any, layer: Layer) -> Any:
    query, key, value = (einsum(x, all_gather(w, INTO), HEADS) for w in (layer.query, layer.key, layer.value))
    scores = einsum(query, key, "[b/dp] s [h/tp] d, [b/dp] t [h/tp] d -> [b/dp] [h/tp] s t") / query.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    shares = jax.nn.softmax(jnp.where(seen, scores, -1e9))
    mixed = einsum(shares, value, "[b/dp] [h/tp] s t, [b/dp] t [h/tp] d -> [b/dp] s [h/tp] d")
    out = all_gather(layer.out, "[h/tp] d [m/dp] -> [h/tp] d m ~dp")
    return einsum(mixed, out, "[b/dp] s [h/tp] d, [h/tp] d m -> [b/dp] s m")


def _mlp(x: Any, layer: Layer) -> Any:
    up = all_gather(layer.up, "[m/dp] [f/tp] -> m [f/tp] ~dp")
    opened = jax.nn.gelu(einsum(x, up, "[b/dp] s m, m [f/tp] -> [b/dp] s [f/tp]"))
    down = all_gather(layer.down, "[f/tp] [m/dp] -> [f/tp] m ~dp")
    return einsum(opened, down, "[b/dp] s [f/tp], [f/tp] m -> [b/dp] s m")


def forward(weights: Weights, tokens: Int[Array, "[b/dp] s"]) -> Float[Array, "[b/dp] s v"]:
    """Logits."""
    x = all_gather(weights.embed, "v [m/dp] -> v m ~dp")[tokens]
    for layer in weights.layers:
        x = x + _attention(normed(x, layer.before_attention), layer)
        x = x + _mlp(normed(x, layer.before_mlp), layer)
    x = normed(x, weights.before_head)
    return einsum(x, all_gather(weights.head, "[m/dp] v -> m v ~dp"), "[b/dp] s m, m v -> [b/dp] s v")


def step(
    weights: Weights, tokens: Int[Array, "[b/dp] s"], targets: Int[Array, "[b/dp] s"]
) -> tuple[Float[Array, ""], Weights]:
    """The loss, and the weights after one step of gradient descent."""

    def loss(weights: Weights) -> Any:
        return mean_loss(forward(weights, tokens), targets)

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, jax.tree.map(lambda w, g: w - RATE * g, weights, gradients)
