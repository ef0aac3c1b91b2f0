"""Fine-tune a model from a file with LoRA: placed by hints, resumed on another mesh, served with a cache.

The file is what Llama's are: `model.safetensors`, with its names, its output dims first, and a `config.json` beside it.
This program makes one itself, from a model that has learned Python on one device, so that nothing is downloaded. Then:

1. `read` places the weights on fsdp=4, tp=2. Each device reads from the file what its hint gives it, and nothing else.
2. Low-rank adapters of the queries and values learn English by optax, from the texts behind Python's `help()`. The base
   is frozen: its shards are gathered, and no gradient comes back. Each process loads its own rows of a batch.
3. Halfway through the epoch everything is saved, and goes on from there on fsdp=2, tp=4: the hints of what is
   restored say where it belongs, on any mesh.
4. The adapters are merged into the weights, which move to dp=2, tp=2, cp=2, and write, with the cache of decoding.py.

    python examples/finetune.py

It prints the losses, and what the model writes before and after. The exit code is 1 if the losses differ from those on
one device, or if what is served differs from plain JAX without a cache. It needs optax, orbax and safetensors:
pip install 'typedshmap[examples]'.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import json
import pydoc_data.topics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from decoding import Attention, Caches, attend, normed, rotated
from jax.sharding import AxisType, Mesh
from quickstart import standard_library

from typedshmap import (
    Array,
    Float32,
    Int32,
    Key,
    Like,
    Stacked,
    UInt8,
    all_gather,
    einsum,
    from_callback,
    from_process_local,
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
from typedshmap.testing import mesh_invariant

try:
    import optax
    import orbax.checkpoint as ocp
    import safetensors.numpy
except ImportError as missing:
    sys.exit(f"this example needs {missing.name}: pip install 'typedshmap[examples]'")

HEAD, GROUP, KV_HEADS, LAYERS = 16, 2, 4, 2
SIZES = {"vocab": 256, "model": 128, "queries": 128, "keys": 64, "ff": 256, "layers": LAYERS}
RANK, SCALE = 8, 2.0
BATCH, SEQ, STEPS = 16, 64, 120
PROMPT, NEW = b"for ", 60

# float32 sums in another order differ by some 1e-6 of them, which training carries on.
SAME_LOSS, SAME_LOGITS = 1e-4, 5e-5


class Block(NamedTuple):
    """A layer as the file has it: output dims first."""

    attention_norm: Float32[Array, "model"]
    query: Float32[Array, "[queries/tp] [model/fsdp]"]
    key: Float32[Array, "[keys/tp] [model/fsdp]"]
    value: Float32[Array, "[keys/tp] [model/fsdp]"]
    out: Float32[Array, "[model/fsdp] [queries/tp]"]
    mlp_norm: Float32[Array, "model"]
    gate: Float32[Array, "[ff/tp] [model/fsdp]"]
    up: Float32[Array, "[ff/tp] [model/fsdp]"]
    down: Float32[Array, "[model/fsdp] [ff/tp]"]


class Base(NamedTuple):
    embed: Float32[Array, "[vocab/tp] [model/fsdp]"]
    layers: Stacked["layers", Block]
    norm: Float32[Array, "model"]
    unembed: Float32[Array, "[vocab/tp] [model/fsdp]"]


class Adapter(NamedTuple):
    """What is added to the weights of queries and values of a layer: `up @ down`, of low rank."""

    query_down: Float32[Array, "rank [model/fsdp]"]
    query_up: Float32[Array, "[queries/tp] rank"]
    value_down: Float32[Array, "rank [model/fsdp]"]
    value_up: Float32[Array, "[keys/tp] rank"]


Adapters: TypeAlias = Stacked["layers", Adapter]
State: TypeAlias = Like[optax.OptState, Adapters]
Stream = Float32[Array, "[batch/fsdp] seq model"]
Text = UInt8[Array, "[batch/fsdp] length"]
Loss = Float32[Array, ""]

TENSORS = {
    ".embed": "model.embed_tokens.weight",
    ".layers.attention_norm": "model.layers.{}.input_layernorm.weight",
    ".layers.query": "model.layers.{}.self_attn.q_proj.weight",
    ".layers.key": "model.layers.{}.self_attn.k_proj.weight",
    ".layers.value": "model.layers.{}.self_attn.v_proj.weight",
    ".layers.out": "model.layers.{}.self_attn.o_proj.weight",
    ".layers.mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    ".layers.gate": "model.layers.{}.mlp.gate_proj.weight",
    ".layers.up": "model.layers.{}.mlp.up_proj.weight",
    ".layers.down": "model.layers.{}.mlp.down_proj.weight",
    ".norm": "model.norm.weight",
    ".unembed": "lm_head.weight",
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": SIZES["model"],
    "intermediate_size": SIZES["ff"],
    "num_hidden_layers": LAYERS,
    "num_attention_heads": KV_HEADS * GROUP,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "vocab_size": SIZES["vocab"],
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def structs() -> tuple[Base, Adapters]:
    """The shapes of all weights, with their shardings where there is a mesh."""
    return shape_structs(tuple[Base, Adapters], rank=RANK, **SIZES)


def write(base: Base, folder: Path) -> None:
    """Write weights as Llama's are."""
    tensors = dict[str, np.ndarray]()
    for path, value in jax.tree_util.tree_leaves_with_path(jax.device_get(base)):
        name = TENSORS[jax.tree_util.keystr(path)]
        tensors |= {name.format(i): each for i, each in enumerate(value)} if "{}" in name else {name: value}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", {"format": "np"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")


def read(folder: Path) -> Base:
    """The weights of a file, each device's part where it belongs on the ambient mesh."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    others = [f"{name}={config.get(name)}, here {CONFIG[name]}" for name in CONFIG if config.get(name) != CONFIG[name]]
    if others:
        raise SystemExit(f"{folder / 'config.json'} is of another model: {'; '.join(others)}")
    with safetensors.safe_open(folder / "model.safetensors", "numpy") as file:

        def part(path: str, index: tuple[slice, ...]) -> np.ndarray:
            name = TENSORS[path]
            if "{}" not in name:
                return file.get_slice(name)[index]
            layers, *rest = index
            return np.stack([file.get_slice(name.format(i))[tuple(rest)] for i in range(LAYERS)[layers]])

        return from_callback(part, Base, **SIZES)


@typed
def linear(x: Stream, weight: Float32[Array, "[out/tp] [model/fsdp]"]) -> Float32[Array, "[batch/fsdp] seq [out/tp]"]:
    # The base is frozen: no gradient comes back through this gather, and no mark says where it would go.
    whole = all_gather(weight, "[o/tp] [m/fsdp] -> [o/tp] m")
    return einsum(x, whole, "[b/fsdp] s m, [o/tp] m -> [b/fsdp] s [o/tp]")


@typed
def linear_back(
    x: Float32[Array, "[batch/fsdp] seq [in/tp]"], weight: Float32[Array, "[model/fsdp] [in/tp]"]
) -> Stream:
    whole = all_gather(weight, "[m/fsdp] [i/tp] -> m [i/tp]")
    return einsum(x, whole, "[b/fsdp] s [i/tp], m [i/tp] -> [b/fsdp] s m")


@typed
def low_rank(
    x: Stream, down: Float32[Array, "rank [model/fsdp]"], up: Float32[Array, "[out/tp] rank"]
) -> Float32[Array, "[batch/fsdp] seq [out/tp]"]:
    whole = all_gather(down, "r [m/fsdp] -> r m ~fsdp")  # ~: its gradient is a reduce-scatter
    inner = einsum(x, whole, "[b/fsdp] s m, r m -> [b/fsdp] s r")
    return SCALE / RANK * einsum(inner, up, "[b/fsdp] s r, [o/tp] r -> [b/fsdp] s [o/tp]")


def heads(x: Array) -> Array:
    """Each head by itself: of a shard, since it has whole heads."""
    return x.reshape(*x.shape[:2], -1, HEAD)


@typed
def block(x: Stream, layer: Block, adapter: Adapter) -> Stream:
    y, at = layer.attention_norm * normed(x), jnp.arange(size("seq"))
    q = heads(linear(y, layer.query) + low_rank(y, adapter.query_down, adapter.query_up))
    k = heads(linear(y, layer.key))
    v = heads(linear(y, layer.value) + low_rank(y, adapter.value_down, adapter.value_up))
    mixed = jax.nn.dot_product_attention(rotated(q, at), rotated(k, at), v, is_causal=True)
    x += linear_back(mixed.reshape(*mixed.shape[:2], -1), layer.out)
    y = layer.mlp_norm * normed(x)
    return x + linear_back(jax.nn.silu(linear(y, layer.gate)) * linear(y, layer.up), layer.down)


@typed
def loss(adapters: Adapters, base: Base, text: Text) -> Loss:
    table = all_gather(base.embed, "[v/tp] [m/fsdp] -> [v/tp] m")
    x = take(table, text[:, :-1], "[v/tp] m, [b/fsdp] s -> [b/fsdp] s m")
    x, _ = jax.lax.scan(lambda x, each: (block(x, *each), None), x, (base.layers, adapters))
    logits = linear(base.norm * normed(x), base.unembed)
    total = logsumexp(logits, "[b/fsdp] s [v/tp] -> [b/fsdp] s")
    chosen = take(logits, text[:, 1:], "[b/fsdp] s [v/tp], [b/fsdp] s -> [b/fsdp] s")
    return reduce(total - chosen, "[b/fsdp] s ->", "mean")


optimizer = optax.adamw(optax.cosine_decay_schedule(2e-2, STEPS), weight_decay=0.0)


@typed_shard_map
def loss_and_gradients(adapters: Adapters, base: Base, text: Text) -> tuple[Loss, Adapters]:
    return jax.value_and_grad(loss)(adapters, base, text)


@mesh_invariant(state=optimizer.init)  # how tests and the command line make a state
@typed_jit(donate_argnames=("adapters", "state"))
def step(adapters: Adapters, state: State, base: Base, text: Text) -> tuple[Adapters, State, Loss]:
    value, gradients = loss_and_gradients(adapters, base, text)
    updates, state = optimizer.update(gradients, state, adapters)
    return optax.apply_updates(adapters, updates), state, value


@typed_jit
def init(key: Key[Array, ""]) -> tuple[Adapters, State]:
    """Adapters that add nothing yet, and the state of their optimizer."""
    keys = Adapter(*jax.random.split(key, len(Adapter._fields)))
    downs = jax.tree.map(lambda s, k: SIZES["model"] ** -0.5 * jax.random.normal(k, s.shape), structs()[1], keys)
    zeros = jnp.zeros_like
    adapters = downs._replace(query_up=zeros(downs.query_up), value_up=zeros(downs.value_up))
    return adapters, optimizer.init(adapters)


def batches(text: np.ndarray, start: int, stop: int) -> Iterator[Text]:
    """Batches of one epoch: every window once, in a random order. A process loads its own rows of each."""
    order = np.random.default_rng(0).permutation(len(text) // SEQ - 1)
    rows = BATCH // jax.process_count()
    for number in range(start, stop):
        first = number * BATCH + jax.process_index() * rows
        windows = order[first : first + rows, None] * SEQ + np.arange(SEQ + 1)
        yield from_process_local(text[windows], Text, batch=BATCH, length=SEQ + 1)


def train(base: Base, adapters: Adapters, state: State, text: np.ndarray, start: int, stop: int):
    """Train from a step to another one; adapters, state, and the losses."""
    losses = list[float]()
    for batch in batches(text, start, stop):
        adapters, state, value = jax.block_until_ready(step(adapters, state, base, batch))
        losses.append(float(value))
    print(f"steps {start + 1} to {stop}: loss {losses[0]:.4f} -> {np.mean(losses[-5:]):.4f}", flush=True)
    return adapters, state, losses


class ServedLayer(NamedTuple):
    attention_norm: Float32[Array, "model"]
    attention: Attention
    mlp_norm: Float32[Array, "model"]
    gate: Float32[Array, "model [ff/tp]"]
    up: Float32[Array, "model [ff/tp]"]
    down: Float32[Array, "[ff/tp] model"]


class Served(NamedTuple):
    embed: Float32[Array, "[vocab/tp] model"]
    layers: Stacked["layers", ServedLayer]
    norm: Float32[Array, "model"]
    unembed: Float32[Array, "model [vocab/tp]"]


@typed_jit
def merged(base: Base, adapters: Adapters) -> Served:
    """The weights with what the adapters add, their dims as decoding.py has them; on global arrays."""
    layers, transposed = base.layers, lambda weight: jnp.swapaxes(weight, -1, -2)
    query = layers.query + SCALE / RANK * adapters.query_up @ adapters.query_down
    value = layers.value + SCALE / RANK * adapters.value_up @ adapters.value_down
    attention = Attention(
        transposed(query).reshape(LAYERS, -1, KV_HEADS, GROUP, HEAD),
        transposed(layers.key).reshape(LAYERS, -1, KV_HEADS, HEAD),
        transposed(value).reshape(LAYERS, -1, KV_HEADS, HEAD),
        transposed(layers.out).reshape(LAYERS, KV_HEADS, GROUP, HEAD, -1),
    )
    mlp = map(transposed, (layers.gate, layers.up, layers.down))
    served = ServedLayer(layers.attention_norm, attention, layers.mlp_norm, *mlp)
    return Served(base.embed, served, base.norm, transposed(base.unembed))


@typed_jit(donate_argnames="cache")
@typed_shard_map
def extend(
    weights: Served, cache: Caches, tokens: Int32[Array, "[batch/dp] new"], length: Int32[Array, ""]
) -> tuple[Float32[Array, "[batch/dp] vocab"], Caches]:
    """The logits of what comes after tokens that follow `length` earlier ones, which are in the cache."""
    at = length + jnp.arange(size("new"))

    def served_block(x, layer_and_cache):
        layer, cache = layer_and_cache
        mixed, cache = attend(layer.attention_norm * normed(x), layer.attention, cache, at)
        x += mixed
        y = layer.mlp_norm * normed(x)
        gate = einsum(y, layer.gate, "[b/dp] s m, m [f/tp] -> [b/dp] s [f/tp]")
        up = einsum(y, layer.up, "[b/dp] s m, m [f/tp] -> [b/dp] s [f/tp]")
        return x + einsum(jax.nn.silu(gate) * up, layer.down, "[b/dp] s [f/tp], [f/tp] m -> [b/dp] s m"), cache

    x = take(weights.embed, tokens, "[v/tp] m, [b/dp] s -> [b/dp] s m")
    x, cache = jax.lax.scan(served_block, x, (weights.layers, cache))
    logits = einsum(weights.norm * normed(x[:, -1]), weights.unembed, "[b/dp] m, m [v/tp] -> [b/dp] [v/tp]")
    return all_gather(logits, "[b/dp] [v/tp] -> [b/dp] v"), cache


def generate(weights: Served) -> tuple[np.ndarray, np.ndarray]:
    """Two texts that follow the prompt, drawn byte by byte; and the logits of the last bytes."""
    rng = np.random.default_rng(0)
    text = tokens = np.tile(np.frombuffer(PROMPT, np.uint8).astype(np.int32), (2, 1))
    empty = shape_structs(Caches, layers=LAYERS, batch=2, positions=len(PROMPT) + NEW, kv_heads=KV_HEADS, head=HEAD)
    cache = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype, device=s.sharding), empty)
    for _ in range(NEW):
        logits, cache = jax.block_until_ready(extend(weights, cache, tokens, np.int32(text.shape[1] - tokens.shape[1])))
        # The largest after Gumbel noise is a draw from their softmax, here of logits that are sharpened by 2.
        noisy = 2 * np.asarray(logits) + rng.gumbel(size=logits.shape)
        tokens = noisy.argmax(-1, keepdims=True).astype(np.int32)
        text = np.concatenate([text, tokens], axis=1)
    return text, np.asarray(logits)


def serve(base: Base, adapters: Adapters, mesh: Mesh, what: str) -> float:
    """Print what the model writes; how far its last logits are from plain JAX's, relative to the largest."""
    weights = merged(base, adapters)
    with jax.set_mesh(mesh):
        text, logits = generate(shard(weights, Served))
    print(f"{what}: {bytes(text[0].astype(np.uint8))!r}")
    plain = np.asarray(plain_logits(*map(jax.device_get, (base, adapters)), text[:, :-1]))[:, -1]
    return float(np.abs(logits - plain).max() / np.abs(plain).max())


def plain_logits(base: Base, adapters: Adapters, text: Array) -> Array:
    """Logits at every position, in plain JAX for one device and without a cache."""

    def plain_block(x, layer_and_adapter):
        layer, adapter = layer_and_adapter
        query = layer.query + SCALE / RANK * adapter.query_up @ adapter.query_down
        value = layer.value + SCALE / RANK * adapter.value_up @ adapter.value_down
        y, at = layer.attention_norm * normed(x), jnp.arange(x.shape[1])
        q, k, v = (heads(y @ weight.T) for weight in (query, layer.key, value))
        mixed = jax.nn.dot_product_attention(rotated(q, at), rotated(k, at), v, is_causal=True)
        x = x + mixed.reshape(*x.shape[:2], -1) @ layer.out.T
        y = layer.mlp_norm * normed(x)
        return x + (jax.nn.silu(y @ layer.gate.T) * (y @ layer.up.T)) @ layer.down.T, None

    x, _ = jax.lax.scan(plain_block, jnp.asarray(base.embed)[text], (base.layers, adapters))
    return base.norm * normed(x) @ base.unembed.T


def plain_loss(adapters: Adapters, base: Base, text: Array) -> Array:
    log_probabilities = jax.nn.log_softmax(plain_logits(base, adapters, text[:, :-1]))
    return -jnp.take_along_axis(log_probabilities, text[:, 1:, None].astype(jnp.int32), axis=-1).mean()


def pretrained() -> Base:
    """A model that has learned some Python, on one device in plain JAX."""
    rng, source = np.random.default_rng(0), standard_library()

    def draw(path, struct):
        is_gain = "norm" in jax.tree_util.keystr(path)
        return np.ones(struct.shape, np.float32) if is_gain else 0.08 * rng.standard_normal(struct.shape, np.float32)

    base = jax.tree_util.tree_map_with_path(draw, structs()[0])
    nothing = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), structs()[1])
    adam = optax.adam(3e-3)

    @jax.jit
    def plain_step(base, state, text):
        value, gradients = jax.value_and_grad(plain_loss, 1)(nothing, base, text)
        updates, state = adam.update(gradients, state)
        return optax.apply_updates(base, updates), state, value

    state = adam.init(base)
    for _ in range(300):
        starts = rng.integers(0, len(source) - SEQ, (BATCH, 1))
        base, state, value = plain_step(base, state, source[starts + np.arange(SEQ + 1)])
    print(f"a model that has learned Python, its loss is {value:.4f}", flush=True)
    return base


def plain_losses(base: Base, adapters: Adapters, text: np.ndarray) -> list[float]:
    """The losses of the epoch on one device."""
    mesh = jax.make_mesh((1,), ("fsdp",), axis_types=(AxisType.Auto,))
    losses, state = list[float](), optimizer.init(adapters)

    @jax.jit
    def plain_step(adapters, state, batch):
        value, gradients = jax.value_and_grad(plain_loss)(adapters, base, batch)
        updates, state = optimizer.update(gradients, state, adapters)
        return optax.apply_updates(adapters, updates), state, value

    with jax.set_mesh(mesh):
        for batch in batches(text, 0, STEPS):
            adapters, state, value = plain_step(adapters, state, np.asarray(batch))
            losses.append(float(value))
    return losses


def mesh_of(**axes: int) -> Mesh:
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def main() -> int:
    text = np.frombuffer("".join(pydoc_data.topics.topics.values()).encode()[: SEQ * (BATCH * STEPS + 1)], np.uint8)
    with tempfile.TemporaryDirectory() as name, ocp.StandardCheckpointer() as checkpointer:
        folder, saved = Path(name), Path(name).resolve() / "adapters"
        write(pretrained(), folder)
        print("\non fsdp=4, tp=2:")
        with jax.set_mesh(mesh_of(fsdp=4, tp=2)):
            base = read(folder)
            adapters, state = init(jax.random.key(0))
            first = jax.device_get(adapters)
            off = [serve(base, adapters, mesh_of(dp=2, tp=2, cp=2), "before")]
            adapters, state, losses = train(base, adapters, state, text, 0, STEPS // 2)
            checkpointer.save(saved, (adapters, state))
            checkpointer.wait_until_finished()
        print("\nresumed on fsdp=2, tp=4:")
        with jax.set_mesh(mesh_of(fsdp=2, tp=4)):
            base = read(folder)
            like = jax.eval_shape(init, jax.random.key(0))
            adapters, state = checkpointer.restore(saved, shape_structs(tuple[Adapters, State], like=like))
            adapters, state, rest = train(base, adapters, state, text, STEPS // 2, STEPS)
            off.append(serve(base, adapters, mesh_of(dp=2, tp=2, cp=2), "after"))

    expected = plain_losses(jax.device_get(base), first, text)
    apart = max(abs(a / b - 1) for a, b in zip([*losses, *rest], expected, strict=True))
    print(f"\nlosses are within {apart:.1e} of those on one device (allowed: {SAME_LOSS:.0e}),", end=" ")
    print(f"what is served within {max(off):.1e} of plain JAX (allowed: {SAME_LOGITS:.0e})")
    if not (apart < SAME_LOSS and max(off) < SAME_LOGITS and np.mean(rest[-5:]) < losses[0]):
        print("FAILED: see above")
        return 1
    print("All is as it should be.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
