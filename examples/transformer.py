"""Train a Llama-style transformer: FSDP x tensor x sequence parallel, every sharding in a hint.

Grouped-query attention, rotary positions, SwiGLU, RMSNorm; bfloat16 compute over float32 weights;
AdamW with the global norm of the gradients clipped; a scan over rematerialised layers. On the mesh

- `fsdp` splits the batch, and every weight at rest. A weight is gathered in bfloat16 right before
  its use, again in the backward pass, and its gradient is reduce-scattered.
- `tp` shards heads, ff and vocabulary inside of a block, and the sequence between blocks:
  Megatron-LM's sequence parallelism. So a block begins with an all_gather of the sequence and ends
  with a psum_scatter, norms and the residual stream are never computed twice, and what the scan keeps
  for the backward pass is 1/tp of it.

Every weight is sharded over both axes, so no number of `State` is held twice. The step, gradients
and update included, is one `typed_shard_map`.

    python examples/transformer.py

It compares loss and gradients of the first step with plain JAX on one device, trains on the source of
the standard library, and shows what 8 billion weights would send on thousands of devices. The exit
code is 1 if something is not as it should be. `resuming.py` trains the same with checkpoints.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from typedshmap import (
    Array,
    BFloat16,
    Float32,
    Int32,
    Key,
    Stacked,
    all_gather,
    einsum,
    explain,
    logsumexp,
    psum,
    reduce,
    shape_structs,
    shard,
    size,
    take,
    typed,
    typed_jit,
    typed_shard_map,
)

SIZES = {"vocab": 256, "model": 128, "kv_heads": 4, "group": 2, "head": 16, "ff": 256, "layers": 3}
BATCH, SEQ, STEPS = 8, 64, 40
LEARNING_RATE, DECAY, LARGEST_NORM = 3e-3, 0.1, 1.0
LLAMA_8B = {"vocab": 128256, "model": 4096, "kv_heads": 8, "group": 4, "head": 128, "ff": 14336, "layers": 32}

# bfloat16 has 8 bits, and which way they round depends on the order of a sum, that is on the mesh. So it is measured
# how far plain JAX in bfloat16 on one device is from plain JAX in float32. The mesh, which rounds before and after it
# sends as well, is allowed twice as much. The loss, a mean over many tokens, is off by less than one rounding.
TWICE, ONE_ROUNDING = 2.0, 2**-8


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    attention_norm: Float32[Array, "[model/fsdp,tp]"]
    query: Float32[Array, "[model/fsdp] [kv_heads/tp] group head"]
    key: Float32[Array, "[model/fsdp] [kv_heads/tp] head"]
    value: Float32[Array, "[model/fsdp] [kv_heads/tp] head"]
    out: Float32[Array, "[kv_heads/tp] group head [model/fsdp]"]
    mlp_norm: Float32[Array, "[model/fsdp,tp]"]
    gate: Float32[Array, "[model/fsdp] [ff/tp]"]
    up: Float32[Array, "[model/fsdp] [ff/tp]"]
    down: Float32[Array, "[ff/tp] [model/fsdp]"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    embed: Float32[Array, "[vocab/tp] [model/fsdp]"]
    layers: Stacked["layers", Layer]  # every array of Layer with a leading dim, for lax.scan
    final_norm: Float32[Array, "[model/fsdp,tp]"]
    unembed: Float32[Array, "[model/fsdp] [vocab/tp]"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    weights: Weights
    mean: Weights
    square: Weights
    step: Int32[Array, ""]


Stream = BFloat16[Array, "[batch/fsdp] [seq/tp] model"]  # between blocks
Whole = BFloat16[Array, "[batch/fsdp] seq model"]  # inside of a block
Heads = BFloat16[Array, "[batch/fsdp] [kv_heads/tp] ... seq head"]
Tokens = Int32[Array, "[batch/fsdp] seq"]
Scalar = Float32[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Metrics:
    loss: Scalar
    gradient_norm: Scalar


def half(weight: Array) -> Array:
    """For compute, and before a gather: half of the bytes are sent, forth as a weight and back as a gradient."""
    return weight.astype(jnp.bfloat16)


@typed
def normed(x: Stream, gain: Float32[Array, "[model/fsdp,tp]"]) -> Whole:
    wide = x.astype(jnp.float32)
    unit = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    gain = all_gather(half(gain), "[m/fsdp,tp] -> m ~fsdp ~tp")
    return all_gather(unit.astype(x.dtype) * gain, "[b/fsdp] [s/tp] m -> [b/fsdp] s m ~tp")


@typed
def rotated(x: Heads) -> Heads:
    """Rotary positions: pair (i, i + head/2) rotates by an angle that grows with the position in the text."""
    pairs = size("head") // 2
    angle = jnp.outer(jnp.arange(size("seq")), 10_000.0 ** (-jnp.arange(pairs) / pairs))
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


@typed
def attention(x: Whole, layer: Layer) -> Stream:
    query = all_gather(half(layer.query), "[m/fsdp] [k/tp] g d -> m [k/tp] g d ~fsdp")
    key = all_gather(half(layer.key), "[m/fsdp] [k/tp] d -> m [k/tp] d ~fsdp")
    value = all_gather(half(layer.value), "[m/fsdp] [k/tp] d -> m [k/tp] d ~fsdp")
    out = all_gather(half(layer.out), "[k/tp] g d [m/fsdp] -> [k/tp] g d m ~fsdp")
    q = rotated(einsum(x, query, "[b/fsdp] s m, m [k/tp] g d -> [b/fsdp] [k/tp] g s d"))
    k = rotated(einsum(x, key, "[b/fsdp] s m, m [k/tp] d -> [b/fsdp] [k/tp] s d"))
    v = einsum(x, value, "[b/fsdp] s m, m [k/tp] d -> [b/fsdp] [k/tp] s d")
    scores = einsum(q, k, "[b/fsdp] [k/tp] g q d, [b/fsdp] [k/tp] s d -> [b/fsdp] [k/tp] g q s").astype(jnp.float32)
    seen = jnp.tril(jnp.ones((size("seq"), size("seq")), bool))
    probs = jax.nn.softmax(jnp.where(seen, scores / size("head") ** 0.5, -jnp.inf)).astype(x.dtype)
    mixed = einsum(probs, v, "[b/fsdp] [k/tp] g q s, [b/fsdp] [k/tp] s d -> [b/fsdp] [k/tp] g q d")
    return einsum(mixed, out, "[b/fsdp] [k/tp] g s d, [k/tp] g d m -> [b/fsdp] [s/tp] m")


@typed
def mlp(x: Whole, layer: Layer) -> Stream:
    gate = all_gather(half(layer.gate), "[m/fsdp] [f/tp] -> m [f/tp] ~fsdp")
    up = all_gather(half(layer.up), "[m/fsdp] [f/tp] -> m [f/tp] ~fsdp")
    down = all_gather(half(layer.down), "[f/tp] [m/fsdp] -> [f/tp] m ~fsdp")
    opened = jax.nn.silu(einsum(x, gate, "[b/fsdp] s m, m [f/tp] -> [b/fsdp] s [f/tp]"))
    h = opened * einsum(x, up, "[b/fsdp] s m, m [f/tp] -> [b/fsdp] s [f/tp]")
    return einsum(h, down, "[b/fsdp] s [f/tp], [f/tp] m -> [b/fsdp] [s/tp] m")


@typed
def block(x: Stream, layer: Layer) -> Stream:
    x += attention(normed(x, layer.attention_norm), layer)
    return x + mlp(normed(x, layer.mlp_norm), layer)


@typed
def loss(weights: Weights, tokens: Tokens, targets: Tokens) -> Scalar:
    table = all_gather(half(weights.embed), "[v/tp] [m/fsdp] -> [v/tp] m ~fsdp")
    x = take(table, tokens, "[v/tp] m, [b/fsdp] s -> [b/fsdp] [s/tp] m")
    # Under scan, CSE cannot undo the rematerialisation, and nothing has to prevent it.
    step = jax.checkpoint(lambda x, layer: (block(x, layer), None), prevent_cse=False)
    x, _ = jax.lax.scan(step, x, weights.layers)
    unembed = all_gather(half(weights.unembed), "[m/fsdp] [v/tp] -> m [v/tp] ~fsdp")
    logits = einsum(normed(x, weights.final_norm), unembed, "[b/fsdp] s m, m [v/tp] -> [b/fsdp] s [v/tp]")
    logits = logits.astype(jnp.float32)
    total = logsumexp(logits, "[b/fsdp] s [v/tp] -> [b/fsdp] s")
    chosen = take(logits, targets, "[b/fsdp] s [v/tp], [b/fsdp] s -> [b/fsdp] s")
    return reduce(total - chosen, "[b/fsdp] s ->", "mean")


@typed
def norm(gradients: Weights) -> Scalar:
    """Each shard squares what it holds. A leaf that is not split over both axes would count several times: an error."""
    squares = jax.tree.map(lambda g: jnp.sum(g * g), gradients)
    return jnp.sqrt(sum(jax.tree.leaves(psum(squares, ("fsdp", "tp")))))


def adamw(state: State, gradients: Weights, scale: Array) -> State:
    """Each shard updates what it holds: elementwise work needs no collective. The step checks the result."""
    step = state.step + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * scale * g, state.mean, gradients)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * (scale * g) ** 2, state.square, gradients)
    rate = LEARNING_RATE * jnp.minimum(1, step / 20)

    def updated(path, w, m, s):
        direction = (m / (1 - 0.9**step)) / (jnp.sqrt(s / (1 - 0.99**step)) + 1e-8)
        return w - rate * (direction + (0 if path[-1].name.endswith("norm") else DECAY) * w)

    return State(jax.tree.map_with_path(updated, state.weights, mean, square), mean, square, step)


@typed_shard_map
def step(state: State, tokens: Tokens, targets: Tokens) -> tuple[State, Metrics]:
    value, gradients = jax.value_and_grad(loss)(state.weights, tokens, targets)
    gradient_norm = norm(gradients)
    scale = jnp.minimum(1, LARGEST_NORM / gradient_norm)
    return adamw(state, gradients, scale), Metrics(value, gradient_norm)


train_step = typed_jit(step, donate_argnames="state")


@typed_jit
def init(key: Key[Array, ""]) -> State:
    """Weights of the shapes that the hints say, made where the hints place them."""
    structs, structure = jax.tree.flatten_with_path(shape_structs(Weights, **SIZES))
    keys = jax.random.split(key, len(structs))
    weights = structure.unflatten([draw(path[-1].name, s, key) for (path, s), key in zip(structs, keys, strict=True)])
    zeros = jax.tree.map(jnp.zeros_like, weights)
    return State(weights, zeros, zeros, jnp.int32(0))


def draw(name: str, struct: jax.ShapeDtypeStruct, key: Array) -> Array:
    if name.endswith("norm"):
        return jnp.ones(struct.shape, struct.dtype)
    # A small unembed, so that no byte is much preferred at the start.
    fan_in = {"down": SIZES["ff"], "unembed": 4 * SIZES["model"]}.get(name, SIZES["model"])
    return fan_in**-0.5 * jax.random.normal(key, struct.shape, struct.dtype)


def plain_loss(w: Weights, tokens: Array, targets: Array, dtype: jnp.dtype) -> Array:
    """The same model in plain JAX for one device, written another way wherever there is one."""
    fall = jnp.linspace(0, 1, SIZES["head"] // 2, endpoint=False)
    rotation = jnp.exp(1j * jnp.arange(SEQ)[:, None, None] * 10_000.0**-fall)

    def norm(x, gain):
        wide = x.astype(jnp.float32)
        return (wide / jnp.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(dtype) * gain

    def rotate(x):  # [batch, seq, heads, head]
        rotated = rotation * jax.lax.complex(*jnp.split(x.astype(jnp.float32), 2, axis=-1))
        return jnp.concatenate([rotated.real, rotated.imag], axis=-1).astype(dtype)

    def block(x, layer):
        y = norm(x, layer.attention_norm)
        q = rotate(jnp.tensordot(y, layer.query, 1).reshape(BATCH, SEQ, -1, SIZES["head"]))
        k, v = rotate(jnp.tensordot(y, layer.key, 1)), jnp.tensordot(y, layer.value, 1)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x += jnp.tensordot(mixed.reshape(BATCH, SEQ, *layer.out.shape[:3]), layer.out, 3)
        y = norm(x, layer.mlp_norm)
        return x + (jax.nn.silu(y @ layer.gate) * (y @ layer.up)) @ layer.down, None

    w = jax.tree.map(lambda each: each.astype(dtype), w)
    x, _ = jax.lax.scan(block, w.embed[tokens], w.layers)
    log_probabilities = jax.nn.log_softmax((norm(x, w.final_norm) @ w.unembed).astype(jnp.float32))
    return -jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1).mean()


def plain_step(state: State, tokens: Array, targets: Array, dtype: jnp.dtype) -> tuple[State, Array]:
    """A step on one device; AdamW, which is elementwise, is the same."""
    value, gradients = jax.value_and_grad(plain_loss)(state.weights, tokens, targets, dtype)
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradients)))
    return adamw(state, gradients, jnp.minimum(1, LARGEST_NORM / norm)), value


def compare(start: State, batch: tuple[Array, Array], after: State, loss: float) -> bool:
    """Print how far the first step on the mesh is from plain JAX; return whether that is rounding alone."""
    plain = jax.jit(plain_step, static_argnums=3)
    (exact, exact_loss), (rounded, _) = (plain(start, *batch, dtype) for dtype in (jnp.float32, jnp.bfloat16))
    # The mean that AdamW keeps is a tenth of the clipped gradients, after one step.
    means = (jax.tree.leaves(jax.device_get(state.mean)) for state in (after, exact, rounded))
    times = [np.linalg.norm(a - b) / np.linalg.norm(c - b) for a, b, c in zip(*means, strict=True)]
    loss_off = abs(loss / float(exact_loss) - 1)
    print("\nthe first step, compared with plain JAX in float32 on one device:")
    print(f"gradients are {min(times):.2f} to {max(times):.2f} times as far off as those of plain JAX in bfloat16")
    print(f"(allowed: {TWICE}), and the loss is off by {loss_off:.1e} (allowed: {ONE_ROUNDING:.1e})")
    return np.max(times) < TWICE and loss_off < ONE_ROUNDING


def standard_library() -> np.ndarray:
    """The source of the Python standard library, as bytes."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8).astype(np.int32)


def sample(source: np.ndarray, step: int) -> tuple[Array, Array]:
    """Tokens and targets of a step: a function of the step, so that a resumed run sees what it would have seen."""
    starts = np.random.default_rng((0, step)).integers(0, len(source) - SEQ, (BATCH, 1))
    text = source[starts + np.arange(SEQ + 1)]
    return shard((text[:, :-1], text[:, 1:]), tuple[Tokens, Tokens])


def main() -> int:
    # Most of the time here is compilation; jax reads this when it makes its devices.
    os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=1"
    source, losses = standard_library(), []
    with jax.set_mesh(jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(AxisType.Auto,) * 2)):
        state = init(jax.random.key(0))
        start, batch = jax.device_get((state, sample(source, 1)))
        print(f"{sum(w.size for w in jax.tree.leaves(start.weights)):,} weights on fsdp=4, tp=2", flush=True)
        for step in range(1, STEPS + 1):
            state, metrics = jax.block_until_ready(train_step(state, *sample(source, step)))
            losses.append(float(metrics.loss))
            if step == 1:
                after = jax.device_get(state)
            if step == 1 or step % 5 == 0:
                print(f"step {step:4d}   loss {losses[-1]:.4f}   gradient norm {metrics.gradient_norm:.3f}", flush=True)
    is_right = compare(start, batch, after, losses[0]) and losses[-1] < losses[0] - 1

    meshes = ["fsdp=2048,tp=1", "fsdp=512,tp=4", "fsdp=256,tp=8"]
    print("\none step of 8 billion weights, for each of 2,048 devices:\n")
    print(explain(train_step, meshes=meshes, batch=2048, seq=8192, **LLAMA_8B))
    print("\nAll is as it should be." if is_right else "\nFAILED: see above")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
