"""How much of what mesh invariance allows right programs use: of rounding alone, in float32 and in bfloat16.

    python bench/tolerance.py

Per program, over several draws and meshes of eight virtual CPU devices: what is allowed as a share of a result's
largest entry, and the largest share of it that a result, or a gradient, used. Over 1 a right program would be refused.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from typedshmap import Array, BFloat16, Float32, psum, typed_shard_map
from typedshmap.inspection import signature
from typedshmap.testing.compare import as_double, measure, scale_of
from typedshmap.testing.run import Outcome, classify_function, compile_call
from typedshmap.tools.sample.arguments import FlatCall
from typedshmap.tools.sample.input_plan import plan_inputs

SEEDS = range(4)
SIZES = {"batch": 32, "model": 64, "ff": 128}


def mlp(dtype: Any) -> Callable[..., Any]:
    def body(x: Array, w: Array, v: Array) -> Array:
        return psum(jax.nn.gelu(x @ w) @ v, "tp")

    types = (dtype[Array, "[batch/dp] model"], dtype[Array, "model [ff/tp]"], dtype[Array, "[ff/tp] model"])
    return typed_shard_map(body, in_types=types, out_types=types[0])


def normed(dtype: Any) -> Callable[..., Any]:
    def body(x: Array, w: Array) -> Array:
        x = x - jax.lax.pmean(x.mean(0), "dp")
        return jax.nn.softmax(x / jnp.sqrt(jax.lax.pmean((x * x).mean(0), "dp") + 1e-3) @ w)

    types = (dtype[Array, "[batch/dp] model"], dtype[Array, "model ff"])
    return typed_shard_map(body, in_types=types, out_types=dtype[Array, "[batch/dp] ff"])


def alternating(dtype: Any) -> Callable[..., Any]:
    """A sum of as many numbers with one sign as with the other, of which little is left."""

    def body(x: Array) -> Array:
        signs = jnp.where(jnp.arange(x.shape[1]) % 2, 1, -1).astype(x.dtype)
        return jax.lax.psum(jnp.sum(x * signs), "dp")

    return typed_shard_map(body, in_types=(dtype[Array, "[batch/dp] model"],), out_types=dtype[Array, ""])


class Used(NamedTuple):
    """Of one result on one mesh: what is allowed, and what was used of it."""

    allowed: float
    share: float


def used(f: Callable[..., Any]) -> Iterator[Used]:
    devices = np.array(jax.devices())
    shapes = [(1, 1), (4, 2), (2, 4), (8, 1)]
    one, *meshes = [Mesh(devices[: a * b].reshape(a, b), ("dp", "tp")) for a, b in shapes]
    subject = classify_function(f, signature(f, "bench"))

    def outcome(drawn: Any, mesh: Mesh) -> Outcome:
        call = FlatCall(drawn.on(mesh), jax.Array)
        return compile_call(subject, call, mesh, True, lambda name: False).run(subject, call.arrays, drawn.seed, 120.0)

    for seed in SEEDS:
        given = {name: size for name, size in SIZES.items() if name in plan_inputs(f, [one]).draw(0).sizes}
        drawn = plan_inputs(f, meshes, given).draw(seed)
        there, others = outcome(drawn, one), [outcome(drawn, mesh) for mesh in meshes]
        tolerance = measure(there, seed).over(there, others)
        for here in others:
            for name, values in there.values.items():
                allowed, scale = tolerance.allowed(name, values, here.compiled.mesh.size), scale_of(values)
                off = float(np.max(np.abs(as_double(here.values[name]) - as_double(values))))
                if allowed:
                    yield Used(allowed / scale if scale else 0.0, off / allowed)


def main() -> None:
    print(f"{'program':28} {'allowed, of the largest entry':>32} {'used of it, at most':>22}  bad is")
    for make in (mlp, normed, alternating):
        for dtype in (Float32, BFloat16):
            uses = list(used(make(dtype)))
            most, share = max(use.allowed for use in uses), max(use.share for use in uses)
            mark = "  <-- BAD" if share > 1 else ""
            name = f"{make.__name__}, {dtype.__name__}"
            print(f"{name:28} {most:32.1e} {share:22.2f}  over 1{mark}", flush=True)


if __name__ == "__main__":
    main()
