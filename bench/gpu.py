"""What a GPU does with typed programs: memory and time beside what `explain` says, and what comparing replicas costs.

    python bench/gpu.py              all parts, in about four minutes
    python bench/gpu.py examples     one of: examples, hand, checksums, kernel

One device is enough: every mesh axis has size 1. HARDWARE=b200 is for another than an H100. The exit code is 1 if
`explain` says less than 0.8 or more than 1.35 of the memory that XLA sets aside, or says that a step takes longer than
it does; if a typed step takes above 1.02 of the time of the same step by hand; if a checksum is not the same as on the
CPU; or if a kernel's result is wrong.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax

PLATFORM = jax.devices()[0].platform  # before the modules below ask for eight virtual CPU devices

import jax.numpy as jnp  # noqa: E402
import memory  # noqa: E402
import numpy as np  # noqa: E402
import transformer_by_hand  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402
from jax.sharding import Mesh  # noqa: E402

from typedshmap import Array, Float32, typed_shard_map  # noqa: E402
from typedshmap.tools.sanitize.checksums import checksum  # noqa: E402

LEAST, MOST = 0.8, 1.35
HARDWARE = os.environ.get("HARDWARE", "h100")
TRANSFORMER = {
    "vocab": 32768, "model": 2048, "kv_heads": 8, "group": 2, "head": 128, "ff": 8192, "layers": 8, "batch": 8,
    "seq": 2048,
}  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "int32", "bool", "complex64")


def one_device(*names: str) -> Mesh:
    return Mesh(np.array(jax.devices()[:1]).reshape([1] * len(names)), names)


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def in_turns(turns: int, *runs: Callable[[], Any]) -> list[float]:
    """The median time of each, measured in turns."""
    for run in runs:
        jax.block_until_ready(run())
    times = [[seconds(run) for run in runs] for _ in range(turns)]
    return [median(each) for each in zip(*times, strict=True)]


def arguments_of(program: Any) -> tuple[Any, Any]:
    """Zeros for the arguments of a compiled program, where it takes them."""

    def zeros(leaf: Any, sharding: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.device_put(jax.random.key(0), sharding)
        return jnp.zeros(leaf.shape, leaf.dtype, device=sharding)

    return jax.block_until_ready(jax.tree.map(zeros, program.args_info, program.input_shardings))


def time_of(program: Any, turns: int = 10) -> float:
    """The median time of a compiled program, which may take its arguments' memory."""
    times = list[float]()
    for _ in range(turns + 2):
        args, kwargs = arguments_of(program)
        times.append(seconds(lambda args=args, kwargs=kwargs: program(*args, **kwargs)))
    return median(times[2:])


def row(name: str, mesh: str, sizes: dict[str, int]) -> bool:
    """Print a row for a function on a mesh whose axes have size 1; whether it is bad."""
    axes = ",".join(f"{axis.partition('=')[0]}=1" for axis in mesh.split(","))
    found, program = memory.explained(name, axes, sizes, hardware=HARDWARE)
    assert found.time is not None
    peak, taken, said, measured = found.memory.peak, memory.bytes_of(program), found.time.overlapped, time_of(program)
    print(
        f"| `{name}` | {peak / 2**20:.1f} MiB | {taken / 2**20:.1f} MiB | {peak / taken:.2f} "
        f"| {1e3 * said:.2f} ms, {found.time.bound} | {1e3 * measured:.2f} ms | {said / measured:.2f} |",
        flush=True,
    )
    return not LEAST <= peak / taken <= MOST or said > measured


def examples() -> bool:
    print("| function | memory by `explain` | by XLA | ratio | time by `explain` at least | measured | ratio |")
    print("|---|---|---|---|---|---|---|")
    rows = [*((name, *each) for name, each in memory.EXAMPLES.items()), ("transformer.step", "fsdp,tp", TRANSFORMER)]
    are_bad = [row(*each) for each in rows]
    return any(are_bad)


def by_hand() -> bool:
    hand, typed, arguments = transformer_by_hand.steps(one_device("fsdp", "tp"))
    steps = [jax.jit(f) for f in (hand, typed, hand)]
    of_hand, of_ours, again = in_turns(50, *(lambda step=step: step(*arguments) for step in steps))
    noise = abs(again / of_hand - 1)
    print(f"typed step over the same by hand: {of_ours / of_hand:.3f} ({1e3 * of_hand:.2f} ms; noise {noise:.3f})")
    return of_ours / of_hand > 1.02 + noise


def rate_of_checksums(dtype: str) -> str:
    x = jax.random.normal(jax.random.key(0), (8, 2**25), jnp.float32).astype(dtype)
    unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    sum_of_words = jax.jit(lambda x: jnp.sum(jax.lax.bitcast_convert_type(x, unsigned)))
    checked = jax.jit(checksum)
    taken, of_sum = in_turns(20, lambda: checked(x), lambda: sum_of_words(x))
    return (
        f"{x.nbytes / 2**30:.1f} GiB of {dtype}: checksum {x.nbytes / taken / 1e9:,.0f} GB/s, "
        f"{taken / of_sum:.2f} of the time of a sum of its words"
    )


def checksums() -> bool:
    is_bad = False
    for dtype in DTYPES:
        bits = np.random.default_rng(0).integers(0, 256, size=(1000, 16), dtype=np.uint8)
        values = bits.view(jnp.dtype(dtype)) if dtype != "bool" else bits > 127
        there, here = (
            int(jax.jit(checksum)(jax.device_put(values, jax.devices(platform)[0]))) for platform in (PLATFORM, "cpu")
        )
        print(f"{dtype}: {there:#010x} on {PLATFORM}, {here:#010x} on cpu")
        is_bad |= there != here
    for dtype in ("float32", "bfloat16"):
        print(rate_of_checksums(dtype))
    return is_bad


def kernel() -> bool:
    def product(x_ref: Any, w_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jnp.maximum(x_ref[...] @ w_ref[...], 0)

    @typed_shard_map(mesh=one_device("dp", "tp"), check_vma=False)
    def layer(
        x: Float32[Array, "[batch/dp] model"], w: Float32[Array, "model [ff/tp]"]
    ) -> Float32[Array, "[batch/dp] [ff/tp]"]:
        out = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
        return pl.pallas_call(product, out_shape=out)(x, w)

    random = np.random.default_rng(0)
    x, w = (random.integers(-4, 5, size=shape).astype(np.float32) for shape in ((32, 16), (16, 64)))
    is_bad = not np.array_equal(jax.block_until_ready(layer(x, w)), np.maximum(x @ w, 0))
    print(f"the kernel of docs/kernels.md: {'WRONG' if is_bad else 'right'}")
    return is_bad


PARTS = {"examples": examples, "hand": by_hand, "checksums": checksums, "kernel": kernel}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    parts = parser.parse_args().parts or [*PARTS]
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}", flush=True)
    is_bad = False
    for name in parts:
        print(f"\n{name}", flush=True)
        is_bad |= PARTS[name]()
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
