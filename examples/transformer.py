"""Train a Llama-style transformer, FSDP x tensor x sequence parallel; stop it anywhere, go on on any mesh.

Grouped-query attention, rotary positions, SwiGLU, RMSNorm; bfloat16 compute over float32 weights;
AdamW with the global norm of the gradients clipped; a scan over rematerialised layers. On the mesh

- `fsdp` splits the batch, and every weight at rest. A weight is gathered in bfloat16 right before
  its use, again in the backward pass, and its gradient is reduce-scattered.
- `tp` splits heads, ff and vocabulary inside of a block, and the sequence between blocks:
  Megatron-LM's sequence parallelism. So a block begins with an all_gather of the sequence and ends
  with a psum_scatter, norms and the residual stream are never computed twice, and what the scan keeps
  for the backward pass is 1/tp of it.

Every weight is split over both axes, so no number of `State` is held twice. The whole step is one
`typed_shard_map`; `State` also says how a checkpoint is restored, on whatever mesh.

    python examples/transformer.py
    python examples/transformer.py --checkpoints DIR --steps 200 --every 20 --mesh fsdp=4,tp=2

Without options it trains, goes on from a checkpoint on another mesh, compares loss and gradients
with plain JAX on one device, and tells what 8 billion weights would send on thousands of devices.
With --checkpoints it trains up to --steps, from where DIR's last checkpoint is. It may be killed at
any moment: the checkpoint is written whole or not at all, the data is a function of the step, and
the losses that follow are those of a run that was never killed. Checkpoints need orbax:
pip install 'typedshmap[checkpoint]'. The exit code is 1 if something is not as it should be.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import argparse
import importlib.util
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from typedshmap import (
    Array,
    BFloat16,
    Bool,
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
BATCH, SEQ, STEPS, EVERY = 8, 64, 40, 20
LEARNING_RATE, DECAY, LARGEST_NORM = 3e-3, 0.1, 1.0
LLAMA_8B = {"vocab": 128256, "model": 4096, "kv_heads": 8, "group": 4, "head": 128, "ff": 14336, "layers": 32}

RUN = SIZES | {"batch": BATCH, "seq": SEQ}

INSTALL = "pip install 'typedshmap[checkpoint]'"

# bfloat16 has 8 bits, and which way they round depends on the order of a sum, that is on the mesh. So it is measured
# how far plain JAX in bfloat16 on one device is from plain JAX in float32. The mesh, which rounds before and after it
# sends as well, is allowed twice as much. The loss, a mean over many tokens, is off by less than one rounding.
TWICE, ONE_ROUNDING = 2.0, 2**-8

# Two meshes, the same steps: losses part by what bfloat16 rounds differently, carried on by the training.
SAME_LOSS = 0.02


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Metrics:
    loss: Float32[Array, ""]
    gradient_norm: Float32[Array, ""]


Stream = BFloat16[Array, "[batch/fsdp] [seq/tp] model"]  # between blocks
Whole = BFloat16[Array, "[batch/fsdp] seq model"]  # inside of a block
Heads = BFloat16[Array, "[batch/fsdp] [kv_heads/tp] ... seq head"]
Tokens = Int32[Array, "[batch/fsdp] seq"]
Loss = Float32[Array, ""]


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
    """Rotary positions: pair (i, i + head/2) turns by an angle that grows with the position in the text."""
    pairs = size("head") // 2
    angle = jnp.outer(jnp.arange(size("seq")), 10_000.0 ** (-jnp.arange(pairs) / pairs))
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


@typed
def causal(length: int) -> Bool[Array, "{length} {length}"]:
    return jnp.tril(jnp.ones((length, length), bool))


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
    probs = jax.nn.softmax(jnp.where(causal(size("seq")), scores / size("head") ** 0.5, -jnp.inf)).astype(x.dtype)
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
def cross_entropy(logits: Float32[Array, "[batch/fsdp] seq [vocab/tp]"], targets: Tokens) -> Loss:
    total = logsumexp(logits, "[b/fsdp] s [v/tp] -> [b/fsdp] s")
    chosen = take(logits, targets, "[b/fsdp] s [v/tp], [b/fsdp] s -> [b/fsdp] s")
    return reduce(total - chosen, "[b/fsdp] s ->", "mean")


@typed
def loss(weights: Weights, tokens: Tokens, targets: Tokens) -> Loss:
    table = all_gather(half(weights.embed), "[v/tp] [m/fsdp] -> [v/tp] m ~fsdp")
    x = take(table, tokens, "[v/tp] m, [b/fsdp] s -> [b/fsdp] [s/tp] m")
    # Under scan, CSE cannot undo the rematerialisation, and nothing has to prevent it.
    turn = jax.checkpoint(lambda x, layer: (block(x, layer), None), prevent_cse=False)
    x, _ = jax.lax.scan(turn, x, weights.layers)
    unembed = all_gather(half(weights.unembed), "[m/fsdp] [v/tp] -> m [v/tp] ~fsdp")
    logits = einsum(normed(x, weights.final_norm), unembed, "[b/fsdp] s m, m [v/tp] -> [b/fsdp] s [v/tp]")
    return cross_entropy(logits.astype(jnp.float32), targets)


@typed
def norm(gradients: Weights) -> Float32[Array, ""]:
    """Each shard squares what it holds. A leaf that is not split over both axes would count several times: an error."""
    squares = jax.tree_util.tree_map(lambda g: jnp.sum(g * g), gradients)
    return jnp.sqrt(sum(jax.tree_util.tree_leaves(psum(squares, ("fsdp", "tp")))))


def adamw(state: State, gradients: Weights, scale: Array) -> State:
    """Each shard updates what it holds: elementwise work needs no collective. The step checks the result."""
    tree_map, step = jax.tree_util.tree_map, state.step + 1
    mean = tree_map(lambda m, g: 0.9 * m + 0.1 * scale * g, state.mean, gradients)
    square = tree_map(lambda s, g: 0.99 * s + 0.01 * (scale * g) ** 2, state.square, gradients)
    rate = LEARNING_RATE * jnp.minimum(1, step / 20)

    def updated(path: tuple[Any, ...], w: Array, m: Array, s: Array) -> Array:
        direction = (m / (1 - 0.9**step)) / (jnp.sqrt(s / (1 - 0.99**step)) + 1e-8)
        return w - rate * (direction + (0 if path[-1].name.endswith("norm") else DECAY) * w)

    return State(jax.tree_util.tree_map_with_path(updated, state.weights, mean, square), mean, square, step)


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
    structs, structure = jax.tree_util.tree_flatten_with_path(shape_structs(Weights, **SIZES))
    keys = jax.random.split(key, len(structs))
    weights = structure.unflatten([draw(path[-1].name, s, key) for (path, s), key in zip(structs, keys, strict=True)])
    zeros = jax.tree_util.tree_map(jnp.zeros_like, weights)
    return State(weights, zeros, zeros, jnp.int32(0))


def draw(name: str, struct: jax.ShapeDtypeStruct, key: Array) -> Array:
    if name.endswith("norm"):
        return jnp.ones(struct.shape, struct.dtype)
    # A small unembed, so that no byte is much preferred at the start.
    fan_in = {"down": SIZES["ff"], "unembed": 4 * SIZES["model"]}.get(name, SIZES["model"])
    return fan_in**-0.5 * jax.random.normal(key, struct.shape, struct.dtype)


def plain_loss(w: Weights, tokens: Array, targets: Array, dtype: Any) -> Array:
    """The same model in plain JAX for one device, written another way wherever there is one."""
    length, pairs = tokens.shape[1], SIZES["head"] // 2
    turn = jnp.exp(1j * jnp.arange(length)[:, None] * 10_000.0 ** (-jnp.arange(pairs) / pairs))[:, None]

    def norm(x, gain):
        wide = x.astype(jnp.float32)
        return (wide / jnp.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(dtype) * gain

    def rotate(x):  # [batch, seq, heads, head]
        turned = turn * (x[..., :pairs].astype(jnp.float32) + 1j * x[..., pairs:].astype(jnp.float32))
        return jnp.concatenate([turned.real, turned.imag], axis=-1).astype(dtype)

    def block(x, layer):
        y = norm(x, layer.attention_norm)
        q = rotate(jnp.tensordot(y, layer.query, 1).reshape(*y.shape[:2], -1, SIZES["head"]))
        k, v = rotate(jnp.tensordot(y, layer.key, 1)), jnp.tensordot(y, layer.value, 1)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(*x.shape[:2], *layer.out.shape[:3])
        x = x + jnp.tensordot(mixed, layer.out, 3)
        y = norm(x, layer.mlp_norm)
        return x + (jax.nn.silu(y @ layer.gate) * (y @ layer.up)) @ layer.down, None

    w = jax.tree_util.tree_map(lambda each: each.astype(dtype), w)
    x, _ = jax.lax.scan(block, w.embed[tokens], w.layers)
    log_probabilities = jax.nn.log_softmax((norm(x, w.final_norm) @ w.unembed).astype(jnp.float32))
    return -jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1).mean()


def first_mean(gradients: Weights) -> list[np.ndarray]:
    """What AdamW's mean is after one step: a tenth of the clipped gradients."""
    leaves = jax.tree_util.tree_leaves(jax.device_get(gradients))
    norm = np.sqrt(sum(np.sum(leaf**2) for leaf in leaves))
    return [0.1 * min(1, LARGEST_NORM / norm) * leaf for leaf in leaves]


def compare(weights: Weights, batch: tuple[Array, Array], state: State, loss: float) -> bool:
    """Print how far the first step on the mesh is from plain JAX; return whether that is rounding alone."""
    plain = jax.jit(jax.value_and_grad(plain_loss), static_argnums=3)
    (exact_loss, exact), (_, rounded) = (plain(weights, *batch, dtype) for dtype in (jnp.float32, jnp.bfloat16))
    print(f"\n{'off from plain JAX in float32':32}{'plain JAX in bfloat16':>24}{'the mesh':>12}{'of it':>8}")
    ratios = []
    paths, ours = zip(*jax.tree_util.tree_leaves_with_path(jax.device_get(state.mean)), strict=True)
    for path, a, b, c in zip(paths, ours, first_mean(exact), first_mean(rounded), strict=True):
        off, plain_off = (np.linalg.norm(each - b) / np.linalg.norm(b) for each in (a, c))
        ratios.append(off / plain_off)
        print(f"gradient {jax.tree_util.keystr(path)[1:]:23}{plain_off:24.4f}{off:12.4f}{ratios[-1]:8.2f}")
    loss_off = abs(loss / float(exact_loss) - 1)
    print(f"gradients are off {max(ratios):.2f} times as far (allowed: {TWICE:.0f}),", end=" ")
    print(f"the loss by {loss_off:.1e} (allowed: {ONE_ROUNDING:.1e})\n", flush=True)
    return loss_off < ONE_ROUNDING and max(ratios) < TWICE


def standard_library() -> np.ndarray:
    """The source of the Python standard library, as bytes."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8).astype(np.int32)


def sample(source: np.ndarray, step: int) -> tuple[Array, Array]:
    """Tokens and targets of a step: a function of the step, so that a resumed run sees what it would have seen."""
    starts = np.random.default_rng((0, step)).integers(0, len(source) - SEQ, (BATCH, 1))
    text = source[starts + np.arange(SEQ + 1)]
    return shard((text[:, :-1], text[:, 1:]), tuple[Tokens, Tokens])


class Checkpoints:
    """A directory of whole states, each with the losses that led to it."""

    def __init__(self, directory: str | Path) -> None:
        # Here, since it takes a second, and training does not need it.
        import orbax.checkpoint as ocp

        self.ocp, self.directory = ocp, Path(directory).resolve()
        # A checkpoint is written beside, and renamed when it is whole; what a killed run left is removed.
        options = ocp.CheckpointManagerOptions(
            max_to_keep=3, cleanup_tmp_directories=True, enable_async_checkpointing=False
        )
        self.manager = ocp.CheckpointManager(self.directory, options=options)

    def save(self, state: State, losses: list[float]) -> None:
        run = {"sizes": RUN, "losses": losses}
        items = self.ocp.args.Composite(state=self.ocp.args.StandardSave(state), run=self.ocp.args.JsonSave(run))
        self.manager.save(len(losses), args=items)

    def restore(self, mesh: Mesh, step: int) -> tuple[State, list[float]]:
        """A state, placed on the mesh as its hints say, whatever mesh it was saved from."""
        structs = shape_structs(State, mesh, **SIZES)
        run = self.read(step, run=self.ocp.args.JsonRestore()).run
        saved = run["sizes"]
        others = [f"{name}={saved.get(name)}, here {RUN[name]}" for name in RUN if saved.get(name) != RUN[name]]
        if others:
            sys.exit(f"{self.directory}: checkpoint {step} is of another model: {'; '.join(others)}")
        return self.read(step, state=self.ocp.args.StandardRestore(structs)).state, run["losses"]

    def read(self, step: int, **items: Any) -> Any:
        try:
            return self.manager.restore(step, args=self.ocp.args.Composite(**items))
        except Exception as error:  # of many kinds: of orbax, of tensorstore, of the file system
            sys.exit(
                f"{self.directory}: checkpoint {step} cannot be restored: {type(error).__name__}: {error}\n"
                f"Remove {self.directory / str(step)} to go on from the one before it."
            )


def train(
    state: State, losses: list[float], until: int, source: np.ndarray, every: int, to: Checkpoints | None
) -> State:
    """Take steps up to `until`, append their losses, and save the state every so often."""
    for step in range(len(losses) + 1, until + 1):
        state, metrics = jax.block_until_ready(train_step(state, *sample(source, step)))
        losses.append(float(metrics.loss))
        saves = to is not None and (step % every == 0 or step == until)
        if to and saves:
            to.save(state, losses)
        if step == 1 or step % 5 == 0 or saves:
            line = f"step {step:4d}   loss {losses[-1]:.4f}   gradient norm {float(metrics.gradient_norm):.3f}"
            print(line + "   saved" * saves, flush=True)
    return state


def mesh_of(text: str) -> Mesh:
    """The mesh that "fsdp=4,tp=2" names."""
    names, sizes = zip(*(pair.split("=") for pair in text.split(",")), strict=True)
    fsdp, tp = map(int, sizes)
    if names != ("fsdp", "tp") or fsdp * tp > len(jax.devices()):
        raise argparse.ArgumentTypeError(f"wants fsdp=..,tp=.. of {len(jax.devices())} devices, got {text}")
    return Mesh(np.array(jax.devices()[: fsdp * tp]).reshape(fsdp, tp), ("fsdp", "tp"))


def resume(directory: str, until: int, every: int, mesh: Mesh) -> None:
    """Train from the last checkpoint, or from the start, up to a step."""
    checkpoints = Checkpoints(directory)
    latest = checkpoints.manager.latest_step()
    print(f"from {'the start' if latest is None else f'the checkpoint of step {latest}'} to step {until}", flush=True)
    with jax.set_mesh(mesh):
        state, losses = (init(jax.random.key(0)), []) if latest is None else checkpoints.restore(mesh, latest)
        train(state, losses, until, standard_library(), every, checkpoints)


def agree(losses: list[float], resumed: list[float]) -> bool:
    """Print the losses that follow a checkpoint on two meshes; return whether they are alike."""
    print(f"\n{'':10}{'fsdp=4, tp=2':>14}{'fsdp=2, tp=4':>14}")
    for step in range(EVERY + 5, STEPS + 1, 5):
        print(f"step {step:4d} {losses[step - 1]:14.4f}{resumed[step - 1]:14.4f}")
    apart = max(abs(a / b - 1) for a, b in zip(losses, resumed, strict=True))
    print(f"resumed on another mesh, the losses are within {apart:.1e} (allowed: {SAME_LOSS})\n")
    return apart < SAME_LOSS


def demonstrate(directory: str, has_orbax: bool) -> bool:
    """Train; compare the first step with plain JAX, and the last ones with those on another mesh."""
    source, losses = standard_library(), []
    checkpoints = Checkpoints(directory) if has_orbax else None
    mesh, other = mesh_of("fsdp=4,tp=2"), mesh_of("fsdp=2,tp=4")
    with jax.set_mesh(mesh):
        state = init(jax.random.key(0))
        weights, batch = jax.device_get((state.weights, sample(source, 1)))
        print(f"{sum(w.size for w in jax.tree_util.tree_leaves(weights)):,} weights on fsdp=4, tp=2", flush=True)
        state = train(state, losses, 1, source, EVERY, None)
    is_right = compare(weights, batch, state, losses[0])  # without a mesh: on one device
    with jax.set_mesh(mesh):
        train(state, losses, STEPS, source, EVERY, checkpoints)
    if checkpoints is None:
        print(f"\nWithout orbax no checkpoint was saved and resumed ({INSTALL}).\n")
    else:
        state, resumed = checkpoints.restore(other, EVERY)
        with jax.set_mesh(other):
            train(state, resumed, STEPS, source, EVERY, None)
        is_right &= agree(losses, resumed)
    is_right &= losses[-1] < losses[0] - 1
    return is_right


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a Llama-style transformer on virtual CPU devices.")
    parser.add_argument("--checkpoints", metavar="DIR", help="train with checkpoints, from the last one in DIR")
    parser.add_argument("--steps", type=int, default=STEPS, help="up to which step (default: %(default)s)")
    parser.add_argument("--every", type=int, default=EVERY, help="steps between checkpoints (default: %(default)s)")
    parser.add_argument("--mesh", type=mesh_of, default="fsdp=4,tp=2", help="its axes (default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    # Most of the time here is compilation; jax reads this when it makes its devices.
    os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=1"
    given = arguments()
    has_orbax = importlib.util.find_spec("orbax") is not None
    if given.checkpoints and not has_orbax:
        sys.exit(f"--checkpoints needs orbax: {INSTALL}")
    if given.checkpoints:
        resume(given.checkpoints, given.steps, given.every, given.mesh)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        is_right = demonstrate(directory, has_orbax)
    meshes = ["fsdp=2048,tp=1", "fsdp=512,tp=4", "fsdp=256,tp=8"]
    print("one step of 8 billion weights, for each of 2,048 devices:\n")
    print(explain(train_step, mesh=meshes, batch=2048, seq=8192, **LLAMA_8B))
    print("\nAll is as it should be." if is_right else "\nFAILED: see above")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
