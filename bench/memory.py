"""The memory that `explain` says beside what XLA says, for the steps of the examples.

    python bench/memory.py                 on CPU: prints the table of docs/accuracy.md
    python bench/memory.py stencil         some rows of it
    python bench/memory.py --tpu           for TPUs, by libtpu: the second table there, in half an hour
    python bench/memory.py --tpu decoding  some rows of it

On CPU a ratio below 0.8 or above 1.25 would be bad; for TPUs one below 0.85 or above 1.2, and any case in which `fits`
is not what the compiler says: the exit code is 1."""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import importlib
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from typedshmap import explain
from typedshmap.testing import inputs
from typedshmap.tools.explain import Explanation

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
    found, program = explained(name, *EXAMPLES[name])
    return Compared(found, bytes_of(program))


def explained(name: str, mesh: str, sizes: dict[str, int], **options: Any) -> tuple[Explanation, Any]:
    """What `explain` says of an example's function, and what XLA makes of it."""
    module, function = name.split(".")
    f = getattr(importlib.import_module(module), function)
    more = {"state": importlib.import_module(module).optimizer.init} if module == "optimizer" else {}
    found = explain(f, mesh=mesh, grad=False, **options, **sizes, **more)
    return found, compiled(f, found, {**sizes, **more})


def bytes_of(program: Any) -> int:
    """What XLA sets aside for a program."""
    memory = program.memory_analysis()
    taken = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return taken - memory.alias_size_in_bytes


def compiled(f: Any, found: Explanation, given: dict[str, Any]) -> Any:
    """A function compiled for the devices that are there, as it was explained."""
    shape = [size for _, size in found.mesh]
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
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


TRANSFORMER = {"vocab": 128256, "model": 4096, "kv_heads": 8, "group": 4, "head": 128, "ff": 14336, "layers": 32}
SHALLOW = {**TRANSFORMER, "vocab": 32064, "batch": 4, "seq": 8192}
DECODING = {**TRANSFORMER, "vocab": 32768, "layers": 8, "positions": 8192, "new": 16}
PIPELINE = {"layers": 16, "model": 4096, "ff": 16384, "micro": 8}
OPTIMIZER = {"model": 4096, "ff": 16384, "batch": 4096}
MIXTURE = {"seq": 1024, "model": 2048, "experts": 16, "ff": 8192}
# The three meshes at 8B, then programs that need from 0.85 to 1.15 of what a v5e has, and a small mixture of experts.
ON_TPU = [
    *(
        ("transformer.train_step", "v5p:8x16x16", mesh, {**TRANSFORMER, "batch": 2048, "seq": 8192})
        for mesh in ("fsdp=2048,tp=1", "fsdp=512,tp=4", "fsdp=256,tp=8")
    ),
    *(("transformer.train_step", "v5e:2x4", "fsdp=4,tp=2", {**SHALLOW, "layers": n}) for n in (10, 12, 14, 16)),
    *(("decoding.extend", "v5e:2x4", "dp=2,tp=2,cp=2", {**DECODING, "batch": n}) for n in (84, 100)),
    *(("pipeline.train_step", "v5e:2x4", "dp=2,pp=4", {**PIPELINE, "batch": n}) for n in (8384, 9856)),
    *(("optimizer.step", "v5e:2x4", "fsdp=8", {**OPTIMIZER, "layers": n}) for n in (27, 32)),
    ("mixture_of_experts.train_step", "v5e:2x4", "dp=2,ep=4", {**MIXTURE, "batch": 64}),
]


def row_on_tpu(name: str, topology: str, mesh: str, sizes: dict[str, int]) -> tuple[str, bool]:
    """A row of the table, and whether it is as it should be."""
    module, function = name.split(".")
    imported = importlib.import_module(module)
    more = {"state": imported.optimizer.init} if module == "optimizer" else {}
    hardware = topology.partition(":")[0]
    f = getattr(imported, function)
    found = explain(f, mesh=mesh, grad=False, hardware=hardware, compile=topology, **sizes, **more)
    there, peak = found.compiled, found.memory.peak
    assert there is not None
    says, ratio = (
        ("does not fit", "") if there.error else (f"{there.memory / 2**30:.2f} GiB", f"{peak / there.memory:.2f}")
    )
    is_right = found.fits is not bool(there.error) and (not ratio or 0.85 <= float(ratio) <= 1.2)
    varied = "layers" if module in ("transformer", "optimizer") else "batch"
    at = f"{varied}={sizes[varied]}"
    fits = "fits" if found.fits else "does not fit"
    return f"| `{name}` | {at} | {mesh} | {topology} | {peak / 2**30:.2f} GiB, {fits} | {says} | {ratio} |", is_right


def print_for_tpus(parts: list[str]) -> int:
    """Print the table for TPUs; the exit code."""
    rows = [row for row in ON_TPU if not parts or any(part in row[0] for part in parts)]
    print("| function | size | mesh | devices | `explain` | XLA | ratio |\n|---|---|---|---|---|---|---|")
    wrong = 0
    for row in rows:
        text, is_right = row_on_tpu(*row)
        wrong += not is_right
        print(text, flush=True)
    print(f"\n{len(rows) - wrong} of {len(rows)} as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    if "--tpu" in sys.argv[1:]:
        sys.exit(print_for_tpus([part for part in sys.argv[1:] if part != "--tpu"]))
    names = [name for name in EXAMPLES if not sys.argv[1:] or any(part in name for part in sys.argv[1:])]
    print("| function | mesh | `explain` | XLA on CPU | ratio |\n|---|---|---|---|---|")
    for name in names:
        one = compare(name)
        sizes = (f"{size / 2**20:.1f} MiB" for size in (one.found.memory.peak, one.bytes))
        print(f"| `{name}` | {EXAMPLES[name][0]} | {' | '.join(sizes)} | {one.ratio:.2f} |", flush=True)
