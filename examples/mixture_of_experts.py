"""A mixture of experts: every token goes to its two experts, wherever they are, and comes back.

`ep` shards the experts; `dp` and `ep` together shard the batch. So a shard holds some complete texts and
some complete experts, and an all_to_all brings each token to its expert: in the pattern, `ep` moves from
the batch dim to the expert dim, and back after the experts have done their work.

    [batch/dp,ep] experts capacity model  <->  [batch/dp] [experts/ep] capacity model

Shapes are static, so an expert takes at most `capacity` tokens of one text; first choices go before
second ones, earlier tokens before later ones, and what does not fit is dropped. That is a rule about
a text, not about a shard: the result is the same on every mesh. A loss for balance teaches the
router, which here begins by sending nearly all to one expert, to spread the tokens.

    python examples/mixture_of_experts.py

It prints how the load spreads while it trains, what is sent on many devices, and compares output,
loss and gradients with plain JAX on one device, where every expert does every token and a loop in
Python says who is dropped. The exit code is 1 if they differ.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from typedshmap import (
    Array,
    Float32,
    all_to_all,
    einsum,
    explain,
    rearrange,
    reduce,
    shape_structs,
    shard,
    size,
    typed,
    typed_jit,
    typed_shard_map,
)

SIZES = {"model": 32, "experts": 8, "ff": 64}
BATCH, SEQ, STEPS, RATE = 16, 32, 200, 1.0
CHOICES, CAPACITY_FACTOR = 2, 1.25  # experts of a token; capacity over what an even load would need
BALANCE = 0.1
LARGE = {"batch": 512, "seq": 4096, "model": 4096, "experts": 64, "ff": 14336}

# The largest difference from plain JAX, relative to the largest entry of each result: float32 sums over some thousand
# numbers, taken in another order, are off by some 1e-6. One token that is dropped wrongly is off by 1e-2 or more.
TOLERANCE = 5e-5


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    router: Float32[Array, "model experts"]
    up: Float32[Array, "[experts/ep] model ff"]
    down: Float32[Array, "[experts/ep] ff model"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Metrics:
    loss: Float32[Array, ""]
    load: Float32[Array, "experts"]  # how many tokens each expert got
    dropped: Float32[Array, ""]  # how many choices found no room


Texts = Float32[Array, "[batch/dp,ep] seq model"]
Gates = Float32[Array, "[batch/dp,ep] seq experts"]
Slots = Float32[Array, "[batch/dp,ep] seq experts capacity"]


@typed
def route(gates: Gates, capacity: int) -> Slots:
    """The weight with which each slot of each expert goes into each token: zero but for the slots that it got."""
    best, experts = jax.lax.top_k(gates, CHOICES)
    chosen = jax.nn.one_hot(experts, size("experts"), dtype=jnp.int32)
    in_line = rearrange(chosen, "[b/dp,ep] s k e -> [b/dp,ep] (k s) e")
    ahead = jnp.cumsum(in_line, axis=1) - in_line
    place = rearrange(jnp.sum(ahead * in_line, -1), "[b/dp,ep] (k s) -> [b/dp,ep] s k", k=CHOICES)
    slot = jax.nn.one_hot(place, capacity)  # all zeros for a place past the last
    shares = best / best.sum(-1, keepdims=True)
    return einsum(shares, chosen, slot, "[b/dp,ep] s k, [b/dp,ep] s k e, [b/dp,ep] s k c -> [b/dp,ep] s e c")


@typed
def balance(gates: Gates) -> Float32[Array, ""]:
    """The load-balancing loss of the Switch Transformer: 1 where all experts are first choices equally often."""
    first = jax.nn.one_hot(jnp.argmax(gates, -1), size("experts"))
    share, gate = (reduce(each, "[b/dp,ep] s e -> e", "mean") for each in (first, gates))
    return size("experts") * jnp.sum(share * gate)


@typed
def experts(x: Texts, slots: Slots, weights: Weights) -> Texts:
    sent = einsum(x, jnp.sign(slots), "[b/dp,ep] s m, [b/dp,ep] s e c -> [b/dp,ep] e c m")
    arrived = all_to_all(sent, "[b/dp,ep] e c m -> [b/dp] [e/ep] c m")
    h = jax.nn.silu(einsum(arrived, weights.up, "[b/dp] [e/ep] c m, [e/ep] m f -> [b/dp] [e/ep] c f"))
    done = einsum(h, weights.down, "[b/dp] [e/ep] c f, [e/ep] f m -> [b/dp] [e/ep] c m")
    back = all_to_all(done, "[b/dp] [e/ep] c m -> [b/dp,ep] e c m")
    return einsum(back, slots, "[b/dp,ep] e c m, [b/dp,ep] s e c -> [b/dp,ep] s m")


def capacity_of(seq: int, number: int) -> int:
    return int(CAPACITY_FACTOR * CHOICES * seq / number)


@typed
def layer(x: Texts, weights: Weights) -> tuple[Texts, Gates, Slots]:
    gates = jax.nn.softmax(einsum(x, weights.router, "[b/dp,ep] s m, m e -> [b/dp,ep] s e"))
    slots = route(gates, capacity_of(size("seq"), size("experts")))
    return x + experts(x, slots, weights), gates, slots


@typed
def objective(weights: Weights, x: Texts, target: Texts) -> tuple[Float32[Array, ""], Metrics]:
    y, gates, slots = layer(x, weights)
    loss = reduce((y - target) ** 2, "[b/dp,ep] s m ->", "mean") + BALANCE * balance(gates)
    load = reduce(jnp.sign(slots), "[b/dp,ep] s e c -> e", "sum")
    return loss, Metrics(loss, load, CHOICES * size("batch") * size("seq") - load.sum())


@typed_shard_map
def apply(x: Texts, weights: Weights) -> Texts:
    return layer(x, weights)[0]


@typed_jit
@typed_shard_map
def gradients(weights: Weights, x: Texts, target: Texts) -> tuple[Weights, Metrics]:
    return jax.grad(objective, has_aux=True)(weights, x, target)


@typed_jit(donate_argnames="weights")
@typed_shard_map
def train_step(weights: Weights, x: Texts, target: Texts) -> tuple[Weights, Metrics]:
    slopes, metrics = jax.grad(objective, has_aux=True)(weights, x, target)
    return jax.tree_util.tree_map(lambda w, slope: w - RATE * slope, weights, slopes), metrics


def kept_choices(gates: np.ndarray) -> np.ndarray:
    """Which choices are kept, [batch, seq, experts]: token by token, as the rule is stated."""
    kept = np.zeros_like(gates)
    for text in range(BATCH):
        free = np.full(SIZES["experts"], capacity_of(SEQ, SIZES["experts"]))
        order = np.argsort(-gates[text], axis=-1)
        for choice in range(CHOICES):
            for token in range(SEQ):
                expert = order[token, choice]
                kept[text, token, expert] = free[expert] > 0
                free[expert] -= 1
    return kept


def plain_objective(weights: Weights, x: Array, target: Array, kept: Array) -> tuple[Array, tuple[Array, Array]]:
    """Every expert does every token; `kept` says what counts."""
    gates = jax.nn.softmax(x @ weights.router)
    best = gates * (gates >= jnp.sort(gates, axis=-1)[..., -CHOICES, None])
    done = jnp.einsum("bsef,efm->bsem", jax.nn.silu(jnp.einsum("bsm,emf->bsef", x, weights.up)), weights.down)
    y = x + jnp.einsum("bse,bsem->bsm", kept * best / best.sum(-1, keepdims=True), done)
    is_first = gates == gates.max(-1, keepdims=True)
    balance = SIZES["experts"] * jnp.sum(is_first.mean((0, 1)) * gates.mean((0, 1)))
    return jnp.mean((y - target) ** 2) + BALANCE * balance, (y, kept.sum((0, 1)))


def draw() -> tuple[Weights, np.ndarray, np.ndarray]:
    """Weights, texts, and what a teacher makes of them. The first feature is 1, and at first the router looks at it."""
    rng = np.random.default_rng(0)
    structs = shape_structs(Weights, **SIZES)
    weights = jax.tree_util.tree_map(lambda s: s.shape[-2] ** -0.5 * rng.standard_normal(s.shape, np.float32), structs)
    weights.router[0, 0] += 3
    x = rng.standard_normal((BATCH, SEQ, SIZES["model"]), np.float32)
    x[..., 0] = 1
    teacher = rng.standard_normal((SIZES["model"], SIZES["model"]), np.float32) / 4
    return weights, x, x + np.tanh(x @ teacher)


def compare(title: str, weights: Weights, x: Array, target: Array) -> float:
    """Print how far all results are from plain JAX; return the largest relative difference."""
    slopes, metrics = jax.device_get(gradients(weights, x, target))
    y = jax.device_get(jax.jit(apply)(x, weights))
    weights, x, target = jax.device_put(jax.device_get((weights, x, target)), jax.devices()[0])
    kept = kept_choices(np.asarray(jax.nn.softmax(x @ weights.router)))
    plain = jax.jit(jax.value_and_grad(plain_objective, has_aux=True))
    (loss, (plain_y, load)), plain_slopes = jax.device_get(plain(weights, x, target, kept))
    ours, theirs = (slopes, y, metrics.loss, metrics.load), (plain_slopes, plain_y, loss, load)
    off = jax.tree_util.tree_map(lambda a, b: float(np.abs(a - b).max() / np.abs(b).max()), ours, theirs)
    names = ("gradient router", "up", "down", "output", "loss", "load")
    listed = ", ".join(f"{name} {each:.0e}" for name, each in zip(names, jax.tree_util.tree_leaves(off), strict=True))
    print(f"{title}, {int(metrics.dropped)} choices dropped; off from plain JAX: {listed}", flush=True)
    return max(jax.tree_util.tree_leaves(off))


def train(weights: Weights, x: Array, target: Array) -> tuple[Weights, Metrics]:
    for step in range(STEPS + 1):
        weights, metrics = jax.block_until_ready(train_step(weights, x, target))
        if step % 25 == 0:
            bars = " ".join(f"{int(each):4d}" for each in metrics.load)
            print(f"{step:4d} {float(metrics.loss):10.4f} {int(metrics.dropped):9d}   {bars}", flush=True)
    return weights, metrics


def main() -> int:
    mesh = jax.make_mesh((2, 4), ("dp", "ep"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        weights, x, target = shard(draw(), tuple[Weights, Texts, Texts])
    worst = compare("before", weights, x, target)
    print(f"\n{'step':>4} {'loss':>10} {'dropped':>9}   tokens of each of {SIZES['experts']} experts, on dp=2, ep=4")
    with jax.set_mesh(mesh):
        first = gradients(weights, x, target)[1]
        weights, last = train(weights, x, target)
    print()
    worst = max(worst, compare("after", weights, x, target))
    print(f"\n{explain(apply, meshes=['dp=512,ep=1', 'dp=64,ep=8', 'dp=8,ep=64'], **LARGE)}\n")
    if not worst < TOLERANCE:
        print(f"FAILED: something differs from plain JAX by {worst:.1e}, over {TOLERANCE:.0e}")
    elif not (last.dropped < first.dropped / 2 and last.loss < first.loss):
        print(f"FAILED: the load did not spread: {first.dropped} choices dropped at first, {last.dropped} at last")
    else:
        print(f"The load spread; nothing differs from plain JAX by more than {worst:.1e} (allowed: {TOLERANCE:.0e}).")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
