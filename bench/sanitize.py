"""What comparing replicas costs: a training step with weights that every data-parallel device holds, in turns.

    python bench/sanitize.py                  about two minutes
    python bench/sanitize.py --steps 1000     more steps of each
    python bench/sanitize.py --rows 512       of shorter steps
    python bench/sanitize.py --alarms 10000   steps of the example transformer, whose replicas do not drift, every tenth
                                              compared; the exit code is 1 if one of them is said to

Each row is the time of a step, compared every so often, over that of the same step with `sanitize` off, measured in
turns in one run; and, where every step is compared, what that adds over the time of one pass over the compared values,
a sum of the words of each. The exit code is 1 if every=100 takes above 1.01, or every=1 adds above one pass, by more
than what is measured twice differs.
"""

import os

# jax reads these when it starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float32, ReplicaError, sanitize, typed_jit, typed_shard_map

MODEL, LAYERS = 512, 8
Weights = dict[str, Float32[Array, "m m"]]
Rows = Float32[Array, "[b/dp] m"]


def body(weights: Weights, x: Rows, y: Rows) -> Weights:
    def loss(weights: Weights) -> Array:
        h = x
        for name in sorted(weights):
            h = jnp.tanh(h @ weights[name])
        return jnp.mean((h - y) ** 2)

    gradients = jax.grad(loss)(weights)  # invarying weights: JAX sums their gradients over dp
    return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients)


def seconds(step: Callable[..., object], weights: object, batch: tuple[Array, Array]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(step(weights, *batch))
    return time.perf_counter() - start


def alarms(steps: int) -> int:
    """Train the example transformer, which has no drifting replicas, and say whether any is reported."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    transformer = importlib.import_module("transformer")

    source, start = transformer.standard_library(), time.process_time()
    with jax.set_mesh(Mesh(np.array(jax.devices()).reshape(4, 2), ("fsdp", "tp"))):
        state = transformer.init(jax.random.key(0))
        try:
            with sanitize(every=10):
                for step in range(steps):
                    state, _ = jax.block_until_ready(transformer.train_step(state, *transformer.sample(source, step)))
        except ReplicaError as error:
            print(f"a false alarm: {error}")
            return 1
    print(f"{steps} steps, every tenth compared, and no alarm: {time.process_time() - start:.0f} s of CPU time")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="of each kind (60)")
    parser.add_argument("--rows", type=int, default=4096, metavar="N", help="rows of the batch (4096)")
    parser.add_argument("--alarms", type=int, metavar="N", help="steps of the example transformer, and no row")
    given = parser.parse_args()
    if given.alarms is not None:
        return alarms(given.alarms)
    steps = given.steps
    mesh = Mesh(np.array(jax.devices()), ("dp",))
    keys = jax.random.split(jax.random.key(0), LAYERS + 2)
    make = [jax.random.normal(key, (MODEL, MODEL)) / MODEL**0.5 for key in keys[:LAYERS]]
    weights = jax.device_put({f"w{at}": w for at, w in enumerate(make)}, NamedSharding(mesh, P()))
    batch = tuple(
        jax.device_put(jax.random.normal(key, (given.rows, MODEL)), NamedSharding(mesh, P("dp"))) for key in keys[-2:]
    )
    region = typed_shard_map(body, mesh=mesh)
    kinds: dict[str, Callable[[], Callable[..., object]]] = {
        "typed_jit": lambda: typed_jit(region, mesh=mesh),
        "jax.jit": lambda: jax.jit(lambda *args: region(*args)),
    }

    def words(w: Array) -> Array:
        return jnp.sum(jax.lax.bitcast_convert_type(w, jnp.uint32))

    sums = jax.shard_map(lambda w: jax.tree.map(words, w), mesh=mesh, in_specs=P(), out_specs=P())
    one_pass = jax.jit(sums)
    passes = lambda weights, *_: (one_pass(weights), one_pass(weights))  # noqa: E731 (arguments and results)
    is_bad = False
    for kind, make_step in kinds.items():
        variants = {"off": 0, "off again": 0, "every=100": 100, "every=1": 1}
        made = {name: make_step() for name in variants}
        times: dict[str, list[float]] = {name: [] for name in (*variants, "one pass")}
        for turn in range(steps + 2):
            for name, every in variants.items():
                with sanitize(every) if every else nullcontext():
                    taken = seconds(made[name], weights, batch)
                times[name] += [taken] if turn > 1 else []
            times["one pass"] += [seconds(passes, weights, batch)] if turn > 1 else []
        off = median(times["off"])
        noise = abs(median(times["off again"]) / off - 1)
        # A mean over all steps, since few are compared, of what their medians leave out.
        often = (median(times["every=100"]) * 99 + median(times["every=1"])) / 100
        print(
            f"{kind}: a step takes {1e3 * off:.2f} ms, "
            f"one pass over the weights before and after it {1e3 * median(times['one pass']):.2f} ms"
        )
        print(f"  off, measured twice    {median(times['off again']) / off:.3f}")
        print(f"  every=100              {often / off:.3f}")
        added = (median(times["every=1"]) - off) / median(times["one pass"])
        print(f"  every=1                {median(times['every=1']) / off:.3f}, which adds {added:.2f} passes")
        is_bad |= often / off > 1.01 + noise or added > 1 + noise
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
