"""Generate text with a key-value cache that is split three ways: by batch, by heads, by position.

A decoder that writes one token at a time spends its time reading memory: the weights and, the longer
the context, the cache. So the cache is what is split: over `dp` by batch, over `tp` by key-value heads,
and, for contexts that are longer than one device can hold or read in time, over `cp` by position.

    [batch/dp] [positions/cp] [kv_heads/tp] head

A new key is written by the one shard whose position it is. Every shard attends to the positions that it
has, and `softmax` and `einsum` over the split dim combine them: a pmax and two psums of what one token
needs, however long the context. Prompt and single tokens go through the same function, `extend`; its
cache is donated, so that the next one takes its memory.

    python examples/decoding.py

It writes from random weights, compares every token with plain JAX on one device, which has no cache
and computes everything anew for each token, and shows what a context of a million tokens takes on 16
devices and on 256. The exit code is 1 if a token differs.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import sys
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from typedshmap import (
    Array,
    Float32,
    Int32,
    Stacked,
    all_gather,
    einsum,
    explain,
    reshard,
    shape_structs,
    shard,
    shard_size,
    size,
    softmax,
    take,
    typed,
    typed_jit,
    typed_shard_map,
)

SIZES = {"vocab": 128, "model": 64, "kv_heads": 2, "group": 2, "head": 16, "ff": 128, "layers": 2}
BATCH, PROMPT, NEW = 4, 12, 36
LARGE = {"vocab": 128256, "model": 4096, "kv_heads": 8, "group": 4, "head": 128, "ff": 14336, "layers": 32}

# Logits are float32 sums over 64 and 128 numbers, taken in another order: off by some 1e-6 of the largest. A token can
# only differ where the best two are closer than that, so how close they came is printed as well.
TOLERANCE = 2e-5


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Attention:
    query: Float32[Array, "model [kv_heads/tp] group head"]
    key: Float32[Array, "model [kv_heads/tp] head"]
    value: Float32[Array, "model [kv_heads/tp] head"]
    out: Float32[Array, "[kv_heads/tp] group head model"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    attention: Attention
    up: Float32[Array, "model [ff/tp]"]
    down: Float32[Array, "[ff/tp] model"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    embed: Float32[Array, "[vocab/tp] model"]
    layers: Stacked["layers", Layer]
    unembed: Float32[Array, "model [vocab/tp]"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    keys: Float32[Array, "[batch/dp] [positions/cp] [kv_heads/tp] head"]
    values: Float32[Array, "[batch/dp] [positions/cp] [kv_heads/tp] head"]


Caches = Stacked["layers", Cache]
Stream = Float32[Array, "[batch/dp] new model"]
Tokens = Int32[Array, "[batch/dp] new"]
Logits = Float32[Array, "[batch/dp] vocab"]
Length = Int32[Array, ""]


def normed(x: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def rotated(x: Array, positions: Array) -> Array:
    """Rotary positions; x has the dims batch, new, any, head."""
    pairs = x.shape[-1] // 2
    angle = positions[:, None] * 10_000.0 ** (-jnp.arange(pairs) / pairs)
    angle = angle.reshape(-1, *[1] * (x.ndim - 3), pairs)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], axis=-1)


def own_positions() -> Array:
    """Which positions of the cache this shard has, a slice of all of them: nothing is sent."""
    return reshard(jnp.arange(size("positions")), "t -> [t/cp]")


@typed
def written(
    cache: Float32[Array, "[batch/dp] [positions/cp] [kv_heads/tp] head"],
    new: Float32[Array, "[batch/dp] new [kv_heads/tp] head"],
    at: Int32[Array, "new"],
) -> Float32[Array, "[batch/dp] [positions/cp] [kv_heads/tp] head"]:
    """Each shard writes what falls into its positions, and drops the rest."""
    here = at - own_positions()[0]
    return cache.at[:, jnp.where(here < 0, shard_size("positions"), here)].set(new, mode="drop")


@typed
def attend(x: Stream, weights: Attention, cache: Cache, at: Int32[Array, "new"]) -> tuple[Stream, Cache]:
    q = rotated(einsum(x, weights.query, "[b/dp] s m, m [k/tp] g d -> [b/dp] s [k/tp] g d"), at)
    k = rotated(einsum(x, weights.key, "[b/dp] s m, m [k/tp] d -> [b/dp] s [k/tp] d"), at)
    v = einsum(x, weights.value, "[b/dp] s m, m [k/tp] d -> [b/dp] s [k/tp] d")
    cache = Cache(written(cache.keys, k, at), written(cache.values, v, at))
    scores = einsum(q, cache.keys, "[b/dp] s [k/tp] g d, [b/dp] [t/cp] [k/tp] d -> [b/dp] [k/tp] g s [t/cp]")
    seen = own_positions() <= at[:, None]
    scores = jnp.where(seen, scores / size("head") ** 0.5, -jnp.inf)
    probs = softmax(scores, "[b/dp] [k/tp] g s [t/cp]", "t")
    mixed = einsum(probs, cache.values, "[b/dp] [k/tp] g s [t/cp], [b/dp] [t/cp] [k/tp] d -> [b/dp] s [k/tp] g d")
    return einsum(mixed, weights.out, "[b/dp] s [k/tp] g d, [k/tp] g d m -> [b/dp] s m"), cache


@typed
def mlp(x: Stream, layer: Layer) -> Stream:
    h = jax.nn.gelu(einsum(x, layer.up, "[b/dp] s m, m [f/tp] -> [b/dp] s [f/tp]"))
    return einsum(h, layer.down, "[b/dp] s [f/tp], [f/tp] m -> [b/dp] s m")


@typed_jit(donate_argnames="cache")
@typed_shard_map
def extend(weights: Weights, cache: Caches, tokens: Tokens, length: Length) -> tuple[Logits, Caches]:
    """The logits of what comes after tokens that follow `length` earlier ones, which are in the cache."""
    at = length + jnp.arange(size("new"))

    def block(x: Array, layer_and_cache: tuple[Layer, Cache]) -> tuple[Array, Cache]:
        layer, cache = layer_and_cache
        mixed, cache = attend(normed(x), layer.attention, cache, at)
        x += mixed
        return x + mlp(normed(x), layer), cache

    x = take(weights.embed, tokens, "[v/tp] m, [b/dp] s -> [b/dp] s m")
    x, cache = jax.lax.scan(block, x, (weights.layers, cache))
    logits = einsum(normed(x[:, -1]), weights.unembed, "[b/dp] m, m [v/tp] -> [b/dp] [v/tp]")
    return all_gather(logits, "[b/dp] [v/tp] -> [b/dp] v"), cache


def generate(weights: Weights, cache: Cache, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The prompt and the most likely tokens after it, one by one; and the logits that they were chosen by."""
    text, chosen_by, tokens = prompt, [], prompt
    for _ in range(NEW):
        length = np.int32(text.shape[1] - tokens.shape[1])
        logits, cache = jax.block_until_ready(extend(weights, cache, shard(tokens, Tokens), length))
        chosen_by.append(np.asarray(logits))
        tokens = chosen_by[-1].argmax(-1, keepdims=True).astype(np.int32)
        text = np.concatenate([text, tokens], axis=1)
    return text, np.stack(chosen_by)


@jax.jit
def plain_logits(w: Weights, text: Array) -> Array:
    """Logits at every position, in plain JAX for one device and without a cache."""

    def block(x, layer):
        y, positions, weights = normed(x), jnp.arange(text.shape[1]), layer.attention
        q, k = (rotated(jnp.tensordot(y, each, 1), positions) for each in (weights.query, weights.key))
        v = jnp.tensordot(y, weights.value, 1)
        mixed = jax.nn.dot_product_attention(q.reshape(*q.shape[:2], -1, q.shape[-1]), k, v, is_causal=True)
        x = x + jnp.tensordot(mixed.reshape(q.shape), weights.out, 3)
        return x + jax.nn.gelu(normed(x) @ layer.up) @ layer.down, None

    return normed(jax.lax.scan(block, w.embed[text], w.layers)[0]) @ w.unembed


def plain_generate(weights: Weights, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    text, chosen_by = np.pad(prompt, ((0, 0), (0, NEW))), []
    for length in range(PROMPT, PROMPT + NEW):
        chosen_by.append(np.asarray(plain_logits(weights, text))[:, length - 1])
        text[:, length] = chosen_by[-1].argmax(-1)
    return text, np.stack(chosen_by)


def draw() -> tuple[Weights, Cache, np.ndarray]:
    """Random weights, an empty cache, and prompts."""
    rng = np.random.default_rng(0)
    structs, cache = shape_structs(tuple[Weights, Caches], batch=BATCH, positions=PROMPT + NEW, **SIZES)
    scale = SIZES["model"] ** -0.5
    weights = jax.tree_util.tree_map(lambda s: scale * rng.standard_normal(s.shape, np.float32), structs)
    empty = jax.tree_util.tree_map(lambda s: np.zeros(s.shape, s.dtype), cache)
    return weights, empty, rng.integers(SIZES["vocab"], size=(BATCH, PROMPT), dtype=np.int32)


def main() -> int:
    mesh = jax.make_mesh((2, 2, 2), ("dp", "tp", "cp"), axis_types=(AxisType.Auto,) * 3)
    weights, empty, prompt = draw()
    with jax.set_mesh(mesh):
        placed, cache = shard((weights, empty), tuple[Weights, Caches])
        generate(placed, jax.tree_util.tree_map(jnp.copy, cache), prompt)  # compiles
        start = time.perf_counter()
        text, logits = generate(placed, cache, prompt)
        seconds = time.perf_counter() - start
    plain_text, plain_chosen_by = plain_generate(weights, prompt)

    print(f"on dp=2, tp=2, cp=2: {NEW} tokens after {PROMPT}, {1e3 * seconds / NEW:.1f} ms each\n")
    for line, plain in zip(text, plain_text, strict=True):
        print(" ".join(map(str, line[:PROMPT])), "|", *line[PROMPT:], "" if (line == plain).all() else "   DIFFERS")
    largest = np.abs(plain_chosen_by).max()
    off = np.abs(logits - plain_chosen_by).max() / largest
    second, best = np.moveaxis(np.sort(plain_chosen_by, axis=-1)[..., -2:], -1, 0)
    print(f"\nlogits are off by {off:.1e} of the largest (allowed: {TOLERANCE:.0e}),", end=" ")
    print(f"and the best two came within {(best - second).min() / largest:.1e} of it")

    meshes = ["dp=2,tp=8,cp=1", "dp=2,tp=8,cp=4", "dp=2,tp=8,cp=16"]
    print("\none more token for each of 2 texts of a million, with 8 billion weights:\n")
    print(explain(extend, meshes=meshes, batch=2, positions=2**20, new=1, grad=False, **LARGE))
    if not ((text == plain_text).all() and off < TOLERANCE):
        print("\nFAILED: it differs from plain JAX")
        return 1
    print(f"\nEvery one of {BATCH * NEW} tokens is the one that plain JAX chooses.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
