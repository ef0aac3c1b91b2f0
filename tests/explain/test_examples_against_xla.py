"""The functions of the examples, all of them, and the classic programs are counted as XLA compiles them."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from compiled import Sent, reported, sent_by
from expecting import mesh_of
from tiers import slow

from typedshmap import explain
from typedshmap.testing import inputs

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES.parent / "bench"), str(EXAMPLES.parent / "tests/mutants")]

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


# The classic programs, with their gradients where they have any

# Of each its mesh, whether it has a gradient, and how many collectives XLA finds to be equal to others.
CLASSICS = {
    "data_parallel.step": ({"dp": 8}, False, 0),
    "data_parallel.step_by_hand": ({"dp": 8}, False, 0),
    "tensor_mlp.forward": ({"dp": 4, "tp": 2}, True, 0),
    "tensor_mlp.at_rest": ({"dp": 2, "tp": 4}, True, 0),
    "tensor_mlp.loss_and_gradients": ({"dp": 4, "tp": 2}, False, 0),
    "ring_attention.attention": ({"dp": 2, "sp": 4}, True, 0),
    "experts.layer": ({"ep": 8}, True, 1),
    "cross_entropy.cross_entropy": ({"dp": 4, "tp": 2}, True, 1),
    "cross_entropy.token_losses": ({"dp": 4, "tp": 2}, True, 2),
    "pipeline.pipeline": ({"pp": 4}, True, 0),
    "stencil.heat": ({"y": 4, "x": 2}, False, 0),
    "fourier.spectrum": ({"p": 2, "q": 2}, True, 0),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name, mesh, has_gradient, merged", [(name, *how) for name, how in CLASSICS.items()])
def test_a_classic_is_counted_as_xla_compiles_it(name, mesh, has_gradient, merged):
    module, function = name.split(".")
    f = getattr(importlib.import_module(f"classic_{module}"), function)
    there = mesh_of(*mesh.values(), names=tuple(mesh))
    found = explain(f, mesh=there, grad=has_gradient)
    made = inputs(f, mesh=there.abstract_mesh, **found.sizes)
    leaves, structure = jax.tree_util.tree_flatten(tuple(made))
    structs = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]

    def forward(*leaves):
        return jax.tree_util.tree_leaves(f(*structure.unflatten(leaves)))

    with jax.set_mesh(there):
        program = jax.jit(with_gradient(forward) if has_gradient else forward)
        given = (cotangents(forward, structs),) if has_gradient else ()
        xla = sent_by(program.lower(*given, *structs).compile().as_text(), there.size)
    assert xla <= reported(found)
    assert (reported(found) - xla).total() == merged


def cotangents(forward, structs):
    return [leaf for leaf in jax.eval_shape(forward, *structs) if is_inexact(leaf)]


def with_gradient(forward):
    """A function of leaves, and its vector-Jacobian product by those that have one."""

    def both(cotangents, *leaves):
        def inexact(*some):
            rest = iter(some)
            results = forward(*(next(rest) if is_inexact(leaf) else leaf for leaf in leaves))
            return [leaf for leaf in results if is_inexact(leaf)]

        out, pull = jax.vjp(inexact, *(leaf for leaf in leaves if is_inexact(leaf)))
        return out, pull(cotangents)

    return both


def is_inexact(leaf) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))
