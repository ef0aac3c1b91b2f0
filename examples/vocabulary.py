"""Softmax cross-entropy over a vocabulary that no device holds, with its gradient.

The two largest matrices of a small language model are those of its vocabulary, and its logits are
larger than both. Here `tp` splits the vocabulary: of the embedding, of the unembedding, and so of the
logits, which are never gathered. `dp` splits the batch.

- looking up: each shard gives the rows that it holds, zeros for the others, and a psum adds them
- normalising: a pmax of the largest logit and a psum of the exponentials, one number per token each
- picking the target's logit: a psum again, one number per token

So per token a few numbers are sent instead of a row of logits. `gathered_loss` is what one would
write first, and the program prints what either sends, for a vocabulary of 128 thousand.

    python examples/vocabulary.py

It compares loss and gradients with plain JAX on one device, logits of some thousands included, whose
exponentials float32 cannot hold. The exit code is 1 if they differ.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import sys
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from typedshmap import (
    Array,
    Float32,
    Int32,
    all_gather,
    einsum,
    explain,
    logsumexp,
    reduce,
    shape_structs,
    shard,
    take,
    typed,
    typed_jit,
    typed_shard_map,
)

SIZES = {"vocab": 512, "model": 64}
BATCH, SEQ = 8, 32
LLAMA = {"vocab": 128256, "model": 4096, "batch": 64, "seq": 8192}

# The largest difference from plain JAX, relative to the largest entry of each result: float32 sums over 256 tokens and
# 512 words, taken in another order, are off by some 1e-6. A psum that is missing or taken twice is off by half or more.
TOLERANCE = 2e-5


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    embed: Float32[Array, "[vocab/tp] model"]
    unembed: Float32[Array, "model [vocab/tp]"]


Tokens = Int32[Array, "[batch/dp] seq"]
Logits = Float32[Array, "[batch/dp] seq [vocab/tp]"]
Loss = Float32[Array, ""]


@typed
def logits_of(weights: Weights, tokens: Tokens) -> Logits:
    """A language model without anything in between: it can learn which word follows which."""
    x = take(weights.embed, tokens, "[v/tp] m, [b/dp] s -> [b/dp] s m")
    return einsum(x, weights.unembed, "[b/dp] s m, m [v/tp] -> [b/dp] s [v/tp]")


@typed
def cross_entropy(logits: Logits, targets: Tokens) -> Loss:
    total = logsumexp(logits, "[b/dp] s [v/tp] -> [b/dp] s")
    chosen = take(logits, targets, "[b/dp] s [v/tp], [b/dp] s -> [b/dp] s")
    return reduce(total - chosen, "[b/dp] s ->", "mean")


@typed_shard_map
def loss(weights: Weights, tokens: Tokens, targets: Tokens) -> Loss:
    return cross_entropy(logits_of(weights, tokens), targets)


@typed_shard_map
def gathered_loss(weights: Weights, tokens: Tokens, targets: Tokens) -> Loss:
    """The same, with all logits on every shard."""
    logits = all_gather(logits_of(weights, tokens), "[b/dp] s [v/tp] -> [b/dp] s v")
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
    return reduce(-chosen, "[b/dp] s 1 ->", "mean")


def plain_loss(weights: Weights, tokens: Array, targets: Array) -> Array:
    """The same in plain JAX on one device."""
    log_probabilities = jax.nn.log_softmax(weights.embed[tokens] @ weights.unembed)
    return -jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1).mean()


@typed_jit
def loss_and_gradients(weights: Weights, tokens: Tokens, targets: Tokens) -> tuple[Loss, Weights]:
    return jax.value_and_grad(loss)(weights, tokens, targets)


@typed_jit
def gathered_loss_and_gradients(weights: Weights, tokens: Tokens, targets: Tokens) -> tuple[Loss, Weights]:
    return jax.value_and_grad(gathered_loss)(weights, tokens, targets)


def draw(scale: float) -> tuple[Weights, np.ndarray, np.ndarray]:
    """Weights, tokens and targets; with a large scale, logits that are far apart."""
    rng = np.random.default_rng(0)
    structs = shape_structs(Weights, **SIZES)
    weights = jax.tree_util.tree_map(lambda s: scale * rng.standard_normal(s.shape, np.float32), structs)
    tokens, targets = rng.integers(SIZES["vocab"], size=(2, BATCH, SEQ), dtype=np.int32)
    return weights, tokens, targets


def compare(title: str, f: Callable[..., tuple[Array, Weights]], mesh: Mesh, scale: float) -> float:
    """Print how far loss and gradients are from plain JAX; return the largest relative difference."""
    drawn = draw(scale)
    with jax.set_mesh(mesh):
        placed = shard(drawn, tuple[Weights, Tokens, Tokens])
        ours = jax.device_get(f(*placed))
    plain = jax.device_get(jax.jit(jax.value_and_grad(plain_loss))(*drawn))
    off = jax.tree_util.tree_map(lambda a, b: float(np.abs(a - b).max() / np.abs(b).max()), ours, plain)
    of_loss, gradients = off
    print(
        f"{title:34}{float(ours[0]):12.4f}{of_loss:12.1e}{gradients.embed:16.1e}{gradients.unembed:18.1e}", flush=True
    )
    return max(of_loss, gradients.embed, gradients.unembed)


def main() -> int:
    mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    print(f"{'off from plain JAX':34}{'loss':>12}{'of it':>12}{'gradient embed':>16}{'gradient unembed':>18}")
    worst = max(
        compare("vocabulary sharded", loss_and_gradients, mesh, scale=0.3),
        compare("logits gathered", gathered_loss_and_gradients, mesh, scale=0.3),
        compare("sharded, logits in the thousands", loss_and_gradients, mesh, scale=20.0),
    )
    sharded, gathered = (explain(f, mesh="dp=8,tp=8", **LLAMA) for f in (loss, gathered_loss))
    print(f"\n{sharded}\n\nper device, forward, by collectives over tp:")
    for title, found in (("vocabulary sharded", sharded), ("logits gathered", gathered)):
        sent = sum(total.wire for total in found.totals if (total.part, total.axes) == ("forward", ("tp",)))
        largest = max(collective.bytes_out for collective in found.collectives)
        print(f"    {title:20}{sent / 2**30:6.2f} GiB sent, the largest result {largest / 2**30:6.2f} GiB")
    if not worst < TOLERANCE:
        print(f"\nFAILED: loss or gradients differ from plain JAX by {worst:.1e}, over {TOLERANCE:.0e}")
        return 1
    print(f"\nNothing differs from plain JAX by more than {worst:.1e} (allowed: {TOLERANCE:.0e}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
