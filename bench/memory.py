"""The memory that `explain` says beside what XLA sets aside on CPU, for the steps of the examples.

    python bench/memory.py            prints the table of docs/explain.md
    python bench/memory.py stencil    some rows of it

A ratio below 0.8 or above 1.25 would be bad."""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from typedshmap import explain
from typedshmap.explaining import Explanation
from typedshmap.testing import inputs

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

LEAST, MOST = 0.8, 1.25
EXAMPLES = {
    "decoding.extend": ("dp=2,tp=2,cp=2", {
        "vocab": 32768, "model": 1024, "kv_heads": 8, "group": 2, "head": 64, "ff": 4096, "layers": 4, "batch": 8,
        "positions": 4096, "new": 16,
    }),
    "fft.solve": ("y=4,x=2", {"a": 128, "b": 128, "c": 128}),
    "mixture_of_experts.train_step": ("dp=2,ep=4", {"batch": 32, "seq": 256, "model": 512, "experts": 16, "ff": 1024}),
    "optimizer.step": ("fsdp=8", {"model": 512, "ff": 2048, "layers": 6, "batch": 512}),
    "pipeline.train_step": ("dp=2,pp=4", {"layers": 16, "model": 512, "ff": 2048, "micro": 8, "batch": 128}),
    "quickstart.train_step": ("dp=4,tp=2", {
        "vocab": 8192, "model": 512, "heads": 8, "head": 64, "ff": 2048, "layers": 4, "batch": 32, "seq": 256,
    }),
    "ring_attention.attention_and_gradients": ("dp=2,cp=4", {
        "batch": 4, "seq": 4096, "kv_heads": 4, "group": 2, "head": 64,
    }),
    "stencil.simulate": ("y=2,x=4", {"height": 2048, "width": 4096, "iterations": 32, "depth": 4}),
    "transformer.step": ("fsdp=4,tp=2", {
        "vocab": 8192, "model": 512, "kv_heads": 4, "group": 2, "head": 64, "ff": 2048, "layers": 6, "batch": 16,
        "seq": 512,
    }),
    "vocabulary.loss_and_gradients": ("dp=2,tp=4", {"vocab": 32768, "model": 512, "batch": 16, "seq": 256}),
}  # fmt: skip


class Compared(NamedTuple):
    """What `explain` says of an example, and what XLA sets aside for it."""

    found: Explanation
    bytes: int

    @property
    def ratio(self) -> float:
        return self.found.memory.peak / self.bytes


def compare(name: str) -> Compared:
    """Explain an example's function, and compile it for eight devices."""
    module, function = name.split(".")
    f, (mesh, sizes) = getattr(importlib.import_module(module), function), EXAMPLES[name]
    more = {"state": importlib.import_module(module).optimizer.init} if module == "optimizer" else {}
    found = explain(f, mesh=mesh, grad=False, **sizes, **more)
    memory = compiled(f, found, {**sizes, **more}).memory_analysis()
    taken = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return Compared(found, taken - memory.alias_size_in_bytes)


def compiled(f: Any, found: Explanation, given: dict[str, Any]) -> Any:
    """A function compiled for eight devices, as it was explained."""
    devices = np.array(jax.devices()[:8]).reshape([size for _, size in found.mesh])
    there = Mesh(devices, [axis for axis, _ in found.mesh])
    made = inputs(f, mesh=there.abstract_mesh, **given)

    def placed(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(there, sharding.spec))

    args, kwargs = jax.tree.map(placed, (made.args, made.kwargs))
    with jax.set_mesh(there):
        return (f if hasattr(f, "lower") else jax.jit(f)).lower(*args, **kwargs).compile()


if __name__ == "__main__":
    names = [name for name in EXAMPLES if not sys.argv[1:] or any(part in name for part in sys.argv[1:])]
    print("| function | mesh | `explain` | XLA on CPU | ratio |\n|---|---|---|---|---|")
    for name in names:
        one = compare(name)
        sizes = (f"{size / 2**20:.1f} MiB" for size in (one.found.memory.peak, one.bytes))
        print(f"| `{name}` | {EXAMPLES[name][0]} | {' | '.join(sizes)} | {one.ratio:.2f} |", flush=True)
