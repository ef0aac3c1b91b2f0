"""Accumulate gradients over microbatches, with one all-reduce per step, and not one per microbatch.

On Explicit mesh axes JAX has types for this. A weight that is *reduced* over `dp` (`-dp`) has a gradient that is
*unreduced* over it (`+dp`): every device keeps the sum of its own rows. Sums of such values need no communication, and
`reshard(g, "d f +dp -> d f")` takes the sum that is due, once, after the loop.

What is easily lost is the tag. In MaxText (pull request 5056) a weight was resharded by a spec without it on its way
into the loss; JAX then took the sum in every iteration, and since no number was wrong, nothing said so. Here hints and
patterns say the tag wherever the weight goes. Where one of them leaves it out, the program is refused when traced.

    python examples/microbatches.py

It prints how many all-reduces the compiled step has, in the loop and after it, with the tag and without; each way to
lose the tag, with its error; and compares with plain JAX on one device. The exit code is 1 if anything is wrong.
"""

import os

# jax reads both when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import sys
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from typedshmap import (
    Array,
    Float32,
    check,
    einsum,
    reduce,
    reshard,
    shape_structs,
    shard,
    typed,
    typed_jit,
    typed_shard_map,
)

MICROBATCHES, BATCH, MODEL, FF = 8, 32, 16, 64
RATE = 0.1
TOLERANCE = 1e-6  # sums in another order


class Weights(TypedDict):
    up: Float32[Array, "model ff"]
    down: Float32[Array, "ff model"]
    gate: Float32[Array, "model model"]


class Tagged(TypedDict):
    up: Float32[Array, "model ff -dp"]
    down: Float32[Array, "ff model -dp"]
    gate: Float32[Array, "model model -dp"]


class Gradients(TypedDict):
    up: Float32[Array, "model ff +dp"]
    down: Float32[Array, "ff model +dp"]
    gate: Float32[Array, "model model +dp"]


Rows = Float32[Array, "[batch/dp] model"]


@typed_shard_map
def gated(x: Rows, gate: Float32[Array, "model model -dp"]) -> Rows:
    """A region, as that of a mixture of experts: what enters with the tag has an unreduced gradient, too."""
    return x * jax.nn.sigmoid(einsum(x, gate, "[b/dp] m, m n -> [b/dp] n"))


@typed
def loss(weights: Tagged, x: Rows) -> Float32[Array, ""]:
    hidden = jnp.tanh(einsum(gated(x, weights["gate"]), weights["up"], "[b/dp] m, m f -dp -> [b/dp] f"))
    y = einsum(hidden, weights["down"], "[b/dp] f, f m -dp -> [b/dp] m")
    return reduce((y - x) ** 2, "[b/dp] m ->", "mean")


@typed_jit
def step(weights: Weights, rows: Float32[Array, "microbatches [batch/dp] model"]) -> Weights:
    tagged = shard(weights, Tagged)

    def accumulate(total, x):
        gradients = check(jax.grad(loss)(tagged, x), Gradients)
        return jax.tree.map(jnp.add, total, gradients), None

    zeros = shard(jax.tree.map(jnp.zeros_like, weights), Gradients)
    total, _ = jax.lax.scan(accumulate, zeros, rows)
    mean = jax.tree.map(lambda g: reshard(g, "m n +dp -> m n") / MICROBATCHES, total)
    return jax.tree.map(lambda w, g: w - RATE * g, weights, mean)


def plain_loss(weights, x):
    y = jnp.tanh((x * jax.nn.sigmoid(x @ weights["gate"])) @ weights["up"]) @ weights["down"]
    return jnp.mean((y - x) ** 2)


@jax.jit
def plain_step(weights, rows):
    """The same in plain JAX: on one device, and on a mesh with a sum in every iteration."""

    def accumulate(total, x):
        return jax.tree.map(jnp.add, total, jax.grad(plain_loss)(weights, x)), None

    total, _ = jax.lax.scan(accumulate, jax.tree.map(jnp.zeros_like, weights), rows)
    return jax.tree.map(lambda w, g: w - RATE * g / MICROBATCHES, weights, total)


def all_reduces(compiled):
    """How many arrays a compiled program sums over devices: in its loops, and outside of them."""
    lines = [line for line in compiled.as_text().splitlines() if " all-reduce(" in line or " all-reduce-start(" in line]
    in_loops = [line for line in lines if "/while/body/" in line]
    return len(in_loops), len(lines) - len(in_loops)


# Every way to lose the tag.


def by_placing(tagged, x):
    return loss(tagged | {"up": shard(tagged["up"], "[model/] ff")}, x)


def by_an_operation(tagged, x):
    return einsum(x, tagged["up"], "[b/dp] m, m f -> [b/dp] f").sum()


def by_a_region(tagged, x):
    region = typed_shard_map(lambda x, w: x @ w, in_types=(Rows, Float32[Array, "model model"]), out_types=Rows)
    return region(x, tagged["gate"]).sum()


def by_taking_it_off(tagged, x):
    return loss(tagged | {"up": reshard(tagged["up"], "m f -dp -> m f")}, x)


def by_a_gradient(tagged, x):
    return check(jax.grad(loss)(tagged, x)["up"], "[model/] ff")


def by_zeros(tagged, x):
    zeros = {name: jnp.zeros(weight.shape) for name, weight in tagged.items()}
    return jax.tree.map(jnp.add, zeros, jax.grad(loss)(tagged, x))


WAYS = {
    "placed without it": by_placing,
    "used by an operation without it": by_an_operation,
    "given to a region without it": by_a_region,
    "rid of it on its way to the loss": by_taking_it_off,
    "said to be a whole gradient": by_a_gradient,
    "added to zeros without it": by_zeros,
}


def refusals(weights, x):
    """The first line of the error of each way to lose the tag; None where it is lost in silence."""
    tagged, found = jax.jit(lambda w: shard(w, Tagged))(weights), {}
    for way, lose in WAYS.items():
        found[way] = None
        try:
            jax.eval_shape(lose, tagged, x)
        except Exception as error:  # of the library, and where values are added of JAX
            found[way] = str(error).splitlines()[0]
    return found


def main() -> int:
    rng = np.random.default_rng(0)
    structs = shape_structs(Weights, model=MODEL, ff=FF)
    weights = jax.tree.map(lambda struct: 0.1 * rng.normal(size=struct.shape).astype(np.float32), structs)
    rows = rng.normal(size=(MICROBATCHES, BATCH, MODEL)).astype(np.float32)
    expected = plain_step(weights, rows)
    with jax.set_mesh(jax.make_mesh((8,), ("dp",))):  # Explicit axes are JAX's default here
        on_mesh = shard(weights, Weights)
        placed = shard(rows, "microbatches [batch/dp] model")
        counts = {"with the tag": all_reduces(step.lower(on_mesh, placed).compile())}
        counts["without"] = all_reduces(plain_step.lower(on_mesh, placed).compile())
        for name, (inside, after) in counts.items():
            print(f"{name}: all-reduces in the loop of {MICROBATCHES} microbatches: {inside}, after it: {after}")
        got = jax.block_until_ready(step(on_mesh, placed))
        print("\nThe tag is lost, and the program refused, where a weight or a gradient is")
        found = refusals(on_mesh, placed[0])
    for way, line in found.items():
        print(f"  {way}:\n    {line or 'nothing is said'}")
    differences = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), got, expected)
    difference = max(differences.values())
    is_right = difference < TOLERANCE and counts["with the tag"][0] == 0 and None not in found.values()
    print(f"\n{'All is as it should be' if is_right else 'Something is wrong'}: plain JAX differs by {difference:.1e}.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
