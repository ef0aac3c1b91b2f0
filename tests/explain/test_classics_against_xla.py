"""The classic programs are counted as XLA compiles them, with their gradients where they have any."""

from __future__ import annotations

import importlib
import sys
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import reported, sent_by
from jax.sharding import Mesh

from typedshmap import explain
from typedshmap.testing import inputs

sys.path.insert(0, str(Path(__file__).parents[1] / "mutants"))

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
    there = Mesh(np.array(jax.devices()[: prod(mesh.values())]).reshape(tuple(mesh.values())), tuple(mesh))
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
