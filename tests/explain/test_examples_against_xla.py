"""The functions of the examples are counted as XLA compiles them, all of them."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from compiled import Sent, reported, sent_by
from tiers import slow

from typedshmap import explain

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES.parent / "bench"))

import memory  # noqa: E402

FUNCTIONS = {
    "decoding": "extend",
    "fft": "backward forward gathered solve",
    "finetune": "extend init loss_and_gradients merged step",
    "mixture_of_experts": "apply gradients train_step",
    "multiprocess": "train_step",
    "optimizer": "init_state loss_and_gradients step",
    "pipeline": "init loss_and_gradients train_step",
    "quickstart": "init loss_and_gradients train_step",
    "ring_attention": "attention_and_gradients",
    "stencil": "simulate",
    "transformer": "init step train_step",
    "vocabulary": "gathered_loss gathered_loss_and_gradients loss loss_and_gradients",
}
NAMES = [f"{module}.{name}" for module, names in FUNCTIONS.items() for name in names.split()]
LORA = {"vocab": 256, "model": 128, "queries": 128, "keys": 64, "ff": 256, "layers": 2, "rank": 8}
GIVEN = {
    "finetune.extend": {"kv_heads": 4, "group": 2, "head": 16, "layers": 2},
    "finetune.loss_and_gradients": {**LORA, "batch": 8, "length": 9},
    "finetune.merged": LORA,
    "finetune.step": {**LORA, "batch": 8, "length": 9},
    "stencil.simulate": {"iterations": 8, "depth": 2},
}
OTHERWISE = {
    # XLA gathers, and sums a norm, outside of manual regions: a note says that this is not counted.
    "finetune.merged": (
        {},
        {Sent("all-gather", 4, size, 4 * size): times for size, times in ((8192, 2), (16384, 4), (32768, 3))},
    ),
    "optimizer.step": ({}, {Sent("all-reduce", 8, 4, 4): 2}),
    # The edges of the slopes are those that the last step has sent: XLA sends them once.
    "stencil.simulate": ({Sent("collective-permute", 0, 32, 32): 2}, {}),
}
"""What only ``explain`` counts, and what only XLA has."""


@pytest.mark.parametrize("name", ["vocabulary.loss_and_gradients", *map(slow, NAMES[:-1])])
def test_a_function_of_an_example_is_counted_as_xla_compiles_it(name: str) -> None:
    module, _, function = name.partition(".")
    example = importlib.import_module(module)
    meshes = {each.partition(".")[0]: mesh for each, (mesh, _) in memory.EXAMPLES.items()}
    meshes |= {"finetune": "fsdp=4,tp=2", "finetune.extend": "dp=2,tp=2,cp=2", "multiprocess": "dp=4,tp=2"}
    f, mesh, given = getattr(example, function), meshes.get(name) or meshes[module], dict(GIVEN.get(name, {}))
    if name in ("finetune.step", "optimizer.step"):
        given["state"] = example.optimizer.init
    found = explain(f, mesh=mesh, grad=False, **given)
    ours, xla = reported(found, module == "transformer"), sent_by(memory.compiled(f, found, given).as_text(), 8)
    only_ours, only_xla = OTHERWISE.get(name, ({}, {}))
    assert (ours - xla, xla - ours) == (only_ours, only_xla)
    if only_xla:
        assert found.notes[0].startswith("outside of manual regions XLA partitions operations on global arrays")


def test_every_function_that_an_example_maps_or_compiles_is_in_the_table() -> None:
    found = {
        f"{path.stem}.{name}"
        for path in EXAMPLES.glob("*.py")
        for name in re.findall(r"^@typed_(?:shard_map|jit)\b[^\n]*\ndef (\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    # What its types say needs Explicit axes; its test counts what XLA sends.
    found -= {"microbatches.gated", "microbatches.step"}
    assert len(found) > 20 and found <= {*NAMES}
