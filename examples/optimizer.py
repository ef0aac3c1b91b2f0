"""Train with optax, FSDP: parameters and moments sharded over one mesh axis, by the hints of the parameters.

`Like[optax.OptState, Params]` is the hint of an optimizer's state: whatever optax's transformations keep,
what looks like `Params` in it is sharded as `Params` says, and counts are unsharded. Here that is AdamW
with clipping, a schedule, first moments in bfloat16, and weight decay for matrices only.

Who does what: `loss_and_gradients` is a `typed_shard_map`, in which each weight is gathered right before
its use, and its gradient scattered. The update is not: under `typed_jit` it sees global arrays, so that
the norm by which optax clips is that of all gradients, and not that of one shard's.

    python examples/optimizer.py

It prints what a device holds, trains, and compares with the same training on one device. The exit code
is 1 if the loss did not fall or a parameter differs. It needs optax: pip install 'typedshmap[examples]'.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import sys
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType

from typedshmap import (
    Array,
    Float32,
    Like,
    Stacked,
    all_gather,
    reduce,
    shape_structs,
    shard,
    typed_jit,
    typed_shard_map,
)
from typedshmap.testing import mesh_invariant

try:
    import optax
except ImportError:
    sys.exit("this example needs optax: pip install 'typedshmap[examples]'")

SIZES = {"model": 32, "ff": 128, "layers": 3}
BATCH, STEPS = 64, 60

# Gradients are summed in another order on the mesh, which differs by some 1e-7 of them; bfloat16 rounds a moment by up
# to 4e-3 of it, to the other side where two sums differ. The parameters move by some 0.1.
TOLERANCE = 1e-3


class Layer(NamedTuple):
    up: Float32[Array, "model [ff/fsdp]"]
    down: Float32[Array, "[ff/fsdp] model"]
    bias: Float32[Array, "model"]


class Params(NamedTuple):
    layers: Stacked["layers", Layer]
    scale: Float32[Array, ""]


State: TypeAlias = Like[optax.OptState, Params]
Rows = Float32[Array, "[batch/fsdp] model"]
Loss = Float32[Array, ""]

optimizer = optax.chain(
    optax.clip_by_global_norm(0.5),
    optax.adamw(
        optax.warmup_cosine_decay_schedule(0.0, 5e-3, 10, STEPS),
        mu_dtype=jnp.bfloat16,
        weight_decay=0.01,
        mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 2, params),
    ),
)


def forward(params, x, gather=lambda layer: layer):
    def block(x, layer):
        layer = gather(layer)
        return x + jnp.tanh(x @ layer.up) @ layer.down + layer.bias, None

    return params.scale * jax.lax.scan(block, x, params.layers)[0]


def gather(layer: Layer) -> Layer:
    up = all_gather(layer.up, "m [f/fsdp] -> m f ~fsdp")  # ~: its gradient is a reduce-scatter
    return Layer(up, all_gather(layer.down, "[f/fsdp] m -> f m ~fsdp"), layer.bias)


@typed_shard_map
def loss_and_gradients(params: Params, x: Rows, y: Rows) -> tuple[Loss, Params]:
    def loss(params):
        return reduce((forward(params, x, gather) - y) ** 2, "[b/fsdp] m ->", "mean")

    return jax.value_and_grad(loss)(params)


@mesh_invariant(state=optimizer.init)  # how tests and the command line make a state
@typed_jit(donate_argnames=("params", "state"))
def step(params: Params, state: State, x: Rows, y: Rows) -> tuple[Params, State, Loss]:
    loss, gradients = loss_and_gradients(params, x, y)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


@typed_jit
def init_state(params: Params) -> State:
    return optimizer.init(params)


@jax.jit
def plain_step(params, state, x, y):
    loss, gradients = jax.value_and_grad(lambda p: jnp.mean((forward(p, x) - y) ** 2))(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def init(seed: int) -> Params:
    rng, structs = np.random.default_rng(seed), shape_structs(Params, **SIZES)
    params = jax.tree.map(lambda s: rng.normal(0, 0.1, s.shape).astype(np.float32), structs)
    return params._replace(scale=np.float32(1))


def show(state: State) -> None:
    """What there is of a state, and what one device holds of it."""
    print(f"{'state':30}{'global':>20}  {'sharding':24}{'a device':>10}")
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        held = leaf.addressable_shards[0].data.nbytes / 1024
        name, kind = jax.tree_util.keystr(path), f"{leaf.dtype}{list(leaf.shape)}".replace(" ", "")
        print(f"{name:30}{kind:>20}  {leaf.sharding.spec!s:24}{held:6.2f} KiB")


def show_large() -> None:
    """What a device holds of the state of a large model; nothing is computed, and nobody has the mesh."""
    mesh = AbstractMesh((512,), ("fsdp",))
    params = shape_structs(Params, mesh, model=8192, ff=32768, layers=64)
    state = shape_structs(State, mesh, like=jax.eval_shape(optimizer.init, params))
    billions = sum(struct.size for struct in jax.tree.leaves(params)) / 1e9
    held = sum(np.prod(s.sharding.shard_shape(s.shape)) * s.dtype.itemsize for s in jax.tree.leaves(state))
    print(f"\nof {billions:.0f} billion parameters on 512 devices the state takes {held / 2**30:.2f} GiB of each\n")


def main() -> int:
    mesh, rng, teacher = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,)), np.random.default_rng(0), init(1)
    xs = rng.normal(size=(STEPS, BATCH, SIZES["model"])).astype(np.float32)
    ys = np.asarray(jax.vmap(forward, (None, 0))(teacher, xs))
    with jax.set_mesh(mesh):
        params, losses = shard(init(0), Params), list[float]()
        state = init_state(params)
        show(state)
        for x, y in zip(xs, ys, strict=True):
            params, state, loss = jax.block_until_ready(step(params, state, x, y))
            losses.append(float(loss))
    show_large()

    expected, plain_state = init(0), optimizer.init(init(0))
    for x, y in zip(xs, ys, strict=True):
        expected, plain_state, _ = plain_step(expected, plain_state, x, y)
    worst = max(jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(a - b).max()), params, expected)))
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    if losses[-1] > losses[0] / 2 or not worst < TOLERANCE:
        print(f"FAILED: the loss should halve, and the parameters differ from one device's by {worst:.1e}")
        return 1
    print(f"The loss fell; no parameter differs from one device's by more than {worst:.1e}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
