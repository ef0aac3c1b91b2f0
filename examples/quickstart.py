"""Train a small transformer, FSDP x tensor parallel, with every shape and sharding in the hints.

A decoder-only transformer learns the Python standard library byte by byte, on a mesh of eight
virtual CPU devices: dp=4 splits the batch and the weights at rest, tp=2 splits heads, ff and
vocabulary. The hints of `State` say all there is to say of the weights: what shapes they have, where
`init` makes them, how the step takes and returns them. The training step, gradients and Adam
included, is one `typed_shard_map`; its patterns are global mathematics, and their brackets say what
is sent. No PartitionSpec is written.

    python examples/quickstart.py

It prints the loss while it trains, compares loss and gradients with the same model in plain JAX on
one device, and shows what three typical mistakes are answered with. The exit code is 1 if the loss
did not fall or a gradient differs.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import sys
import sysconfig
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import typedshmap as ts
from typedshmap import (
    Array,
    Float32,
    Int32,
    Key,
    Stacked,
    UInt8,
    all_gather,
    einsum,
    logsumexp,
    reduce,
    shape_structs,
    shard,
    size,
    take,
    typed,
    typed_jit,
    typed_shard_map,
)

VOCAB, MODEL, HEADS, HEAD, FF, LAYERS = 256, 128, 4, 32, 512, 2
BATCH, SEQ, STEPS, LEARNING_RATE = 32, 64, 100, 4e-3

# The gradients are float32 sums over 2,048 tokens, taken in another order on the mesh: they differ
# by some 1e-6 of the largest entry. A psum too many or too few is off by a factor of 2 or more.
TOLERANCE = 5e-5


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    attention_norm: Float32[Array, "model"]
    qkv: Float32[Array, "3 [model/dp] [heads/tp] head"]
    out: Float32[Array, "[heads/tp] head [model/dp]"]
    mlp_norm: Float32[Array, "model"]
    up: Float32[Array, "[model/dp] [ff/tp]"]
    down: Float32[Array, "[ff/tp] [model/dp]"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    embed: Float32[Array, "[vocab/tp] [model/dp]"]
    positions: Float32[Array, "seq [model/dp]"]
    layers: Stacked["layers", Layer]  # every array of Layer with a leading dim, for lax.scan
    final_norm: Float32[Array, "model"]
    unembed: Float32[Array, "[model/dp] [vocab/tp]"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    weights: Weights
    mean: Weights
    square: Weights
    step: Int32[Array, ""]


Stream = Float32[Array, "[batch/dp] seq model"]
Tokens = UInt8[Array, "[batch/dp] seq"]
Text = UInt8[Array, "[batch/dp] seq+1"]
Loss = Float32[Array, ""]


@typed
def embed(ids: Tokens, table: Float32[Array, "[vocab/tp] model"]) -> Stream:
    return take(table, ids, "[v/tp] m, [b/dp] s -> [b/dp] s m")


@typed
def rms_norm(x: Stream, gain: Float32[Array, "model"]) -> Stream:
    return gain * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


@typed
def attention(
    x: Stream,
    qkv: Float32[Array, "3 model [heads/tp] head"],
    out: Float32[Array, "[heads/tp] head model"],
) -> Stream:
    q, k, v = einsum(x, qkv, "[b/dp] s m, c m [h/tp] d -> c [b/dp] s [h/tp] d")
    scores = einsum(q, k, "[b/dp] q [h/tp] d, [b/dp] k [h/tp] d -> [b/dp] [h/tp] q k")
    causal = jnp.tril(jnp.ones((size("seq"), size("seq")), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores / size("head") ** 0.5, -jnp.inf))
    mixed = einsum(weights, v, "[b/dp] [h/tp] q k, [b/dp] k [h/tp] d -> [b/dp] q [h/tp] d")
    return einsum(mixed, out, "[b/dp] s [h/tp] d, [h/tp] d m -> [b/dp] s m")


@typed
def mlp(x: Stream, up: Float32[Array, "model [ff/tp]"], down: Float32[Array, "[ff/tp] model"]) -> Stream:
    h = jax.nn.gelu(einsum(x, up, "[b/dp] s m, m [f/tp] -> [b/dp] s [f/tp]"))
    return einsum(h, down, "[b/dp] s [f/tp], [f/tp] m -> [b/dp] s m")


@typed
def block(x: Stream, layer: Layer) -> Stream:
    # FSDP: weights are gathered right before their use. The gradient of a gather that says ~dp is a reduce-scatter;
    # that the shards agree from there on, the library infers.
    qkv = all_gather(layer.qkv, "c [m/dp] [h/tp] d -> c m [h/tp] d ~dp")
    out = all_gather(layer.out, "[h/tp] d [m/dp] -> [h/tp] d m ~dp")
    x += attention(rms_norm(x, layer.attention_norm), qkv, out)
    up = all_gather(layer.up, "[m/dp] [f/tp] -> m [f/tp] ~dp")
    down = all_gather(layer.down, "[f/tp] [m/dp] -> [f/tp] m ~dp")
    return x + mlp(rms_norm(x, layer.mlp_norm), up, down)


@typed
def cross_entropy(logits: Float32[Array, "[batch/dp] seq [vocab/tp]"], targets: Tokens) -> Loss:
    total = logsumexp(logits, "[b/dp] s [v/tp] -> [b/dp] s")
    chosen = take(logits, targets, "[b/dp] s [v/tp], [b/dp] s -> [b/dp] s")
    return reduce(total - chosen, "[b/dp] s ->", "mean")


@typed
def loss(weights: Weights, text: Text) -> Loss:
    table = all_gather(weights.embed, "[v/tp] [m/dp] -> [v/tp] m ~dp")
    positions = all_gather(weights.positions, "s [m/dp] -> s m ~dp")
    unembed = all_gather(weights.unembed, "[m/dp] [v/tp] -> m [v/tp] ~dp")
    x = embed(text[:, :-1], table) + positions
    x, _ = jax.lax.scan(lambda x, layer: (block(x, layer), None), x, weights.layers)
    logits = einsum(rms_norm(x, weights.final_norm), unembed, "[b/dp] s m, m [v/tp] -> [b/dp] s [v/tp]")
    return cross_entropy(logits, text[:, 1:])


def adam(state: State, gradients: Weights) -> State:
    """Each shard updates what it holds: elementwise work needs no collective. The step checks the result."""
    tree_map, step = jax.tree_util.tree_map, state.step + 1
    mean = tree_map(lambda m, g: 0.9 * m + 0.1 * g, state.mean, gradients)
    square = tree_map(lambda s, g: 0.99 * s + 0.01 * g * g, state.square, gradients)
    rate = LEARNING_RATE * jnp.minimum(1, step / 20) * jnp.sqrt(1 - 0.99**step) / (1 - 0.9**step)
    weights = tree_map(lambda w, m, s: w - rate * m / (jnp.sqrt(s) + 1e-8), state.weights, mean, square)
    return State(weights, mean, square, step)


@typed_jit(donate_argnames="state")
@typed_shard_map
def train_step(state: State, text: Text) -> tuple[State, Loss]:
    value, gradients = jax.value_and_grad(loss)(state.weights, text)
    return adam(state, gradients), value


@typed_jit
@typed_shard_map
def loss_and_gradients(weights: Weights, text: Text) -> tuple[Loss, Weights]:
    return jax.value_and_grad(loss)(weights, text)


@jax.jit
@jax.value_and_grad
def plain_loss_and_gradients(w, text):
    """The same model in plain JAX for one device, written another way wherever there is one."""

    def norm(x, gain):
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gain

    x = w.embed[text[:, :-1]] + w.positions
    for i in range(LAYERS):
        layer = jax.tree_util.tree_map(lambda stacked: stacked[i], w.layers)  # noqa: B023
        q, k, v = jnp.tensordot(norm(x, layer.attention_norm), layer.qkv, (2, 1)).transpose(2, 0, 1, 3, 4)
        x = x + jnp.tensordot(jax.nn.dot_product_attention(q, k, v, is_causal=True), layer.out, 2)
        x = x + jax.nn.gelu(norm(x, layer.mlp_norm) @ layer.up) @ layer.down
    log_probabilities = jax.nn.log_softmax(norm(x, w.final_norm) @ w.unembed)
    return -jnp.take_along_axis(log_probabilities, text[:, 1:, None], axis=-1).mean()


@typed_jit
def init(key: Key[Array, ""]) -> State:
    """Weights of the shapes that the hints say, made where the hints place them."""
    sizes = {"vocab": VOCAB, "model": MODEL, "seq": SEQ, "heads": HEADS, "head": HEAD, "ff": FF, "layers": LAYERS}
    shapes, structure = jax.tree_util.tree_flatten_with_path(shape_structs(Weights, **sizes))
    keys = jax.random.split(key, len(shapes))
    weights = structure.unflatten([draw(path[-1].name, s, key) for (path, s), key in zip(shapes, keys, strict=True)])
    zeros = jax.tree_util.tree_map(jnp.zeros_like, weights)
    return State(weights, zeros, zeros, jnp.int32(0))


def draw(name: str, struct: jax.ShapeDtypeStruct, key: Array) -> Array:
    if name.endswith("norm"):
        return jnp.ones(struct.shape, struct.dtype)
    # A small unembed, so that no byte is much preferred at the start.
    fan_in = {"down": FF, "unembed": 4 * MODEL}.get(name, MODEL)
    return fan_in**-0.5 * jax.random.normal(key, struct.shape, struct.dtype)


def standard_library() -> np.ndarray:
    """The source of the Python standard library, as bytes."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)


def sample(source: np.ndarray, rng: np.random.Generator, batch: int = BATCH) -> np.ndarray:
    starts = rng.integers(0, len(source) - SEQ, (batch, 1))
    return source[starts + np.arange(SEQ + 1)]


def train(state: State, source: np.ndarray, rng: np.random.Generator) -> tuple[State, list[float]]:
    losses = []
    start = time.perf_counter()
    for step in range(1, STEPS + 1):
        text = shard(sample(source, rng), Text)
        state, value = jax.block_until_ready(train_step(state, text))
        losses.append(float(value))
        if step == 1 or step % 10 == 0:
            print(f"step {step:4d}   loss {losses[-1]:.4f}   {time.perf_counter() - start:5.1f} s", flush=True)
    return state, losses


def compare(weights: Weights, text: np.ndarray) -> float:
    """Print how far loss and gradients are from plain JAX; return the largest relative difference."""
    on_one = jax.device_put(jax.device_get(weights), jax.devices()[0])
    ours = jax.device_get(loss_and_gradients(weights, text))
    plain = jax.device_get(plain_loss_and_gradients(on_one, text))
    print(f"\n{'against plain JAX':36}{'largest entry':>16}{'largest difference':>22}{'relative':>12}")
    relative = []
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree_util.tree_leaves(plain), strict=True):
        name = f"gradient {jax.tree_util.keystr(path[1:])[1:]}" if path[1:] else "loss"
        scale, difference = np.abs(b).max(), np.abs(a - b).max()
        relative.append(difference / scale)
        print(f"{name:36}{scale:16.6f}{difference:22.2e}{relative[-1]:12.2e}")
    return float(np.max(relative))


def show_mistake(title: str, expected: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except expected as error:
        message = textwrap.indent(f"{type(error).__name__}: {error}", "    ")
        print(f"\n{title}\n\n{message}", flush=True)
    else:
        raise AssertionError(f"{title}: no {expected.__name__} was raised")


def show_mistakes(state: State, text: np.ndarray, odd_text: np.ndarray) -> None:
    @typed
    def hasty_mlp(x: Stream, up: Float32[Array, "model [ff/tp]"], down: Float32[Array, "[ff/tp] model"]) -> Stream:
        return jax.nn.gelu(x @ up) @ down

    @typed_shard_map(check_vma=False)
    def hasty(x: Stream, layer: Layer) -> Stream:
        up = all_gather(layer.up, "[m/dp] [f/tp] -> m [f/tp]")
        down = all_gather(layer.down, "[f/tp] [m/dp] -> [f/tp] m")
        return x + hasty_mlp(x, up, down)

    @typed_shard_map
    def shift(text: UInt8[Array, "[batch/data] length"]) -> UInt8[Array, "[batch/data] length"]:
        return text + 1

    x = shard(np.zeros((BATCH, SEQ, MODEL), np.float32), Stream)
    layer = jax.tree_util.tree_map(lambda stacked: stacked[0], state.weights.layers)
    show_mistake("Mistake 1: an mlp without its psum, under check_vma=False", ts.VaryingError, lambda: hasty(x, layer))
    show_mistake("Mistake 2: a batch of 30 over dp=4", ts.ShapeError, lambda: train_step(state, odd_text))
    show_mistake("Mistake 3: an axis that the mesh does not have", ts.MeshAxisError, lambda: shift(text))


def main() -> int:
    mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    rng, source = np.random.default_rng(0), standard_library()
    with jax.set_mesh(mesh):
        state = init(jax.random.key(0))
        count = sum(w.size for w in jax.tree_util.tree_leaves(state.weights))
        print(f"{count:,} weights, {len(source):,} bytes of Python, {STEPS} steps, mesh dp=4, tp=2", flush=True)
        state, losses = train(state, source, rng)

    first, last = losses[0], float(np.mean(losses[-10:]))
    print(f"\nloss at the start {first:.4f}, at the end {last:.4f} (mean of the last 10 steps)")
    text = sample(source, rng)
    worst = compare(state.weights, text)
    with jax.set_mesh(mesh):
        show_mistakes(state, text, sample(source, rng, batch=30))

    if not last < first - 1:
        print(f"\nFAILED: the loss did not fall: {first:.4f} at the start, {last:.4f} at the end")
    elif not worst < TOLERANCE:
        print(f"\nFAILED: loss or gradients differ from plain JAX by {worst:.1e}, over {TOLERANCE:.0e}")
    else:
        print(f"\nThe loss fell; nothing differs from plain JAX by more than {worst:.1e} (allowed: {TOLERANCE:.0e}).")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
