"""Train a deep network whose layers lie on different devices: a GPipe-style pipeline, data parallel beside it.

The mesh has two axes. pp splits the layers: each shard holds, and updates, a stage of consecutive ones.
dp splits every microbatch. At each tick every stage works on another microbatch and hands its result
to the next stage by one `ppermute`; a microbatch takes as many ticks as there are stages, and a stage
waits at the start and at the end, which is the bubble. The schedule is one `lax.scan` over ticks, so
that its gradient is the same schedule run backwards, without a line written for it; `jax.checkpoint`
keeps of each microbatch what enters a stage, and no more.

    python examples/pipeline.py

It prints the schedule as it ran, the bubble for more and more microbatches, the loss of some training
steps, and a comparison of loss and gradients with the same layers applied one after the other on one
device. The exit code is 1 if the loss did not fall or a gradient differs.
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
    Int32,
    Key,
    Stacked,
    check,
    einsum,
    explain,
    ppermute,
    psum,
    reduce,
    shape_structs,
    size,
    typed,
    typed_jit,
    typed_shard_map,
)

LAYERS, MODEL, FF = 8, 32, 64
MICRO, BATCH = 8, 16  # microbatches, and the rows of each
STEPS, LEARNING_RATE = 60, 0.5

# Float32 sums over rows and microbatches, in another order: some 1e-6 of the largest entry. A microbatch that is
# lost, or counted at two stages, is off by a tenth and more.
TOLERANCE = 2e-5


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    up: Float32[Array, "model ff"]
    down: Float32[Array, "ff model"]


Layers = Stacked["[layers/pp]", Layer]
Moving = Float32[Array, "[stages/pp] [batch/dp] model"]  # what every stage works on, at one tick
Microbatches = Float32[Array, "micro [batch/dp] model"]
Schedule = Int32[Array, "[stages/pp] ticks"]
Loss = Float32[Array, ""]

# What one stage sees of them: every stage has others.
Work = Float32[Array, "[batch/dp] model ~pp"]
Up = Float32[Array, "model ff ~pp"]
Down = Float32[Array, "ff model ~pp"]


@typed
def mlp(x: Work, up: Up, down: Down) -> Work:
    h = jax.nn.gelu(einsum(x, up, "[b/dp] m ~pp, m f ~pp -> [b/dp] f ~pp"))
    return x + einsum(h, down, "[b/dp] f ~pp, f m ~pp -> [b/dp] m ~pp")


@jax.checkpoint
def stage(x, layers):
    return jax.lax.scan(lambda x, layer: (mlp(x, layer.up, layer.down), None), x, layers)[0]


@typed
def pipeline(layers: Layers, x: Microbatches) -> tuple[Float32[Array, "micro [batch/dp] model ~pp"], Schedule]:
    """What the last stage makes of the microbatches; which of them each stage had at each tick (-1: none)."""
    stages, mine = jax.lax.axis_size("pp"), jax.lax.axis_index("pp")
    # Here, not at each use: so the gradients are summed over dp once, and not at every tick (explain counts them).
    layers = jax.tree.map(lambda w: jax.lax.pcast(w, "dp", to="varying"), layers)

    def tick(arrived, t):
        micro = t - mine
        is_busy = (micro >= 0) & (micro < size("micro"))
        fresh = x[jnp.clip(micro, 0, size("micro") - 1)]
        done = stage(jnp.where(mine == 0, fresh, arrived[0]), layers)
        arriving = ppermute(check(done[None], Moving), "[s/pp] [b/dp] m", shift=1, axis="pp")
        return arriving, (done, jnp.where(is_busy, micro, -1))

    start = jax.lax.pcast(jnp.zeros_like(x[:1]), "pp", to="varying")
    _, (done, schedule) = jax.lax.scan(tick, start, jnp.arange(size("micro") + stages - 1))
    return done[stages - 1 :], schedule[None]


@typed
def loss(layers: Layers, x: Microbatches, y: Microbatches) -> tuple[Loss, Schedule]:
    out, schedule = pipeline(layers, x)
    error = reduce((out - y) ** 2, "n [b/dp] m ~pp -> ~pp", "mean")
    is_last = jax.lax.axis_index("pp") == jax.lax.axis_size("pp") - 1
    return psum(jnp.where(is_last, error, 0), "~pp ->"), schedule


@typed_jit
@typed_shard_map
def loss_and_gradients(layers: Layers, x: Microbatches, y: Microbatches) -> tuple[Loss, Layers, Schedule]:
    (value, schedule), gradients = jax.value_and_grad(loss, has_aux=True)(layers, x, y)
    return value, gradients, schedule


@typed_jit(donate_argnames="layers")
@typed_shard_map
def train_step(layers: Layers, x: Microbatches, y: Microbatches) -> tuple[Layers, Loss]:
    """Each stage updates its own layers: that takes no collective."""
    (value, _), gradients = jax.value_and_grad(loss, has_aux=True)(layers, x, y)
    return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, layers, gradients), value


@jax.jit
@jax.value_and_grad
def plain_loss_and_gradients(layers, x, y):
    """The layers one after the other, on all rows at once."""
    for i in range(LAYERS):
        x = x + jax.nn.gelu(x @ layers.up[i]) @ layers.down[i]
    return ((x - y) ** 2).mean()


@typed_jit
def init(key: Key[Array, ""]) -> Layers:
    shapes = shape_structs(Layers, layers=LAYERS, model=MODEL, ff=FF)
    up, down = (
        jax.random.normal(k, s.shape) for k, s in zip(jax.random.split(key), jax.tree.leaves(shapes), strict=True)
    )
    return Layer(up * MODEL**-0.5, 0.3 * down * FF**-0.5)


def data(micro: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and the same rows turned: something that the network can learn."""
    x = rng.normal(size=(micro, BATCH, MODEL)).astype(np.float32)
    return x, np.roll(x, 1, axis=-1)


def draw(schedule: np.ndarray) -> None:
    print("tick    " + "".join(f"{tick:3}" for tick in range(schedule.shape[1])))
    for number, stage in enumerate(schedule):
        print(f"stage {number} " + "".join("  ." if micro < 0 else f"{micro:3}" for micro in stage))


def show_schedules(layers, rng: np.random.Generator) -> None:
    for micro in (MICRO, 4 * MICRO):
        *_, schedule = jax.block_until_ready(loss_and_gradients(layers, *data(micro, rng)))
        schedule = np.asarray(schedule)
        if micro == MICRO:
            draw(schedule)
        print(f"{micro:3} microbatches: {(schedule < 0).mean():.0%} of all work is bubble")


def compare(layers, x: np.ndarray, y: np.ndarray) -> float:
    """Print how far loss and gradients are from plain JAX; return the largest relative difference."""
    value, gradients, _ = jax.device_get(loss_and_gradients(layers, x, y))
    plain = jax.device_get(plain_loss_and_gradients(jax.device_get(layers), x, y))
    relative = []
    for name, a, b in zip(
        ("loss", "d up", "d down"), jax.tree.leaves((value, gradients)), jax.tree.leaves(plain), strict=True
    ):
        relative.append(np.abs(a - b).max() / np.abs(b).max())
        print(f"{name:8}{np.abs(b).max():12.6f}   relative difference {relative[-1]:.1e}")
    return float(np.max(relative))


def main() -> int:
    rng = np.random.default_rng(0)
    with jax.set_mesh(jax.make_mesh((2, 4), ("dp", "pp"), axis_types=(AxisType.Auto,) * 2)):
        layers = init(jax.random.key(0))
        show_schedules(layers, rng)
        worst = compare(layers, *data(MICRO, rng))
        losses = []
        for step in range(STEPS):
            layers, value = jax.block_until_ready(train_step(layers, *data(MICRO, rng)))
            losses.append(float(value))
            if step % 10 == 0 or step == STEPS - 1:
                print(f"step {step:3}   loss {value:.4f}")

    sizes = {"layers": 64, "model": 8192, "ff": 32768, "micro": 64, "batch": 1024}
    meshes = ["dp=64,pp=1", "dp=16,pp=4", "dp=4,pp=16", "dp=1,pp=64"]
    print(f"\n{explain(train_step, meshes=meshes, **sizes)}\n")
    if not worst < TOLERANCE:
        print(f"FAILED: loss or gradients differ from plain JAX by {worst:.1e}, over {TOLERANCE:.0e}")
    elif not losses[-1] < 0.5 * losses[0]:
        print(f"FAILED: the loss did not fall: {losses[0]:.4f} at the start, {losses[-1]:.4f} at the end")
    else:
        print(f"The loss fell; nothing differs from plain JAX by more than {worst:.1e} (allowed: {TOLERANCE:.0e}).")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
