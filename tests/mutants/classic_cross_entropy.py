"""Softmax cross-entropy over a sharded vocabulary: a weighted mean, accuracy, and a gradient written by hand."""

import jax
import jax.numpy as jnp

from typedshmap import Array, Float32, Int32, size, typed, typed_shard_map

Logits = Float32[Array, "[batch/dp] [vocab/tp]"]
Labels = Int32[Array, "[batch/dp]"]
Rows = Float32[Array, "[batch/dp]"]
Number = Float32[Array, ""]
Owed = Float32[Array, "[batch/dp] +tp"]


def first_id(logits: Array) -> Array:
    """The id of this shard's first column."""
    return jax.lax.axis_index("tp") * logits.shape[-1]


@typed
def normaliser(logits: Logits) -> Rows:
    largest = jax.lax.pmax(jax.lax.stop_gradient(logits).max(-1), "tp")
    return jnp.log(jax.lax.psum(jnp.exp(logits - largest[:, None]).sum(-1), "tp")) + largest


@typed
def taken(logits: Logits, labels: Labels) -> Owed:
    """The label's logit on the shard that has it, zero on the others."""
    here = labels - first_id(logits)
    is_here = (here >= 0) & (here < logits.shape[-1])
    mine = jnp.take_along_axis(logits, jnp.where(is_here, here, 0)[:, None], -1)[:, 0]
    return jnp.where(is_here, mine, 0)


@typed
def best(logits: Logits) -> Labels:
    top, at = logits.max(-1), jnp.argmax(logits, -1) + first_id(logits)
    return jax.lax.pmax(jnp.where(top == jax.lax.pmax(top, "tp"), at, -1), "tp")


@typed_shard_map
def cross_entropy(logits: Logits, labels: Labels, weights: Rows) -> tuple[Number, Number, Labels]:
    total = normaliser(logits)
    smooth = jax.lax.psum(logits.sum(-1), "tp") / size("vocab")
    loss = total - 0.9 * jax.lax.psum(taken(logits, labels), "tp") - 0.1 * smooth + 0.01 * total**2
    guess = best(jax.lax.stop_gradient(logits))
    mean = jax.lax.psum((loss * weights).sum(), "dp") / jax.lax.psum(weights.sum(), "dp")
    return mean, jax.lax.pmean((guess == labels).mean(), "dp"), guess


@jax.custom_vjp
def token_loss(logits: Array, labels: Array) -> Array:
    return normaliser(logits) - jax.lax.psum(taken(logits, labels), "tp")


def kept(logits: Array, labels: Array) -> tuple[Array, tuple[Array, ...]]:
    return token_loss(logits, labels), (logits, labels)


def pulled_back(kept: tuple[Array, ...], g: Array) -> tuple[Array, None]:
    logits, labels = kept
    ids = first_id(logits) + jnp.arange(logits.shape[-1])
    chances = jnp.exp(logits - normaliser(logits)[:, None])
    return g[:, None] * (chances - (ids == labels[:, None])), None


token_loss.defvjp(kept, pulled_back)


@typed_shard_map
def token_losses(logits: Logits, labels: Labels) -> Rows:
    return token_loss(logits, labels)
