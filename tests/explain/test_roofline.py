"""What the examples compute, beside what JAX's own roofline counts."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental import roofline
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AbstractMesh, AxisType

from typedshmap import explain
from typedshmap._jax.jaxpr import all_equations
from typedshmap.testing import inputs

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

EXAMPLES = {
    "mixture_of_experts.train_step": ("dp=2,ep=4", {"batch": 32, "seq": 64, "model": 64, "experts": 16, "ff": 128}),
    "vocabulary.loss_and_gradients": ("dp=2,tp=4", {"vocab": 512, "model": 64, "batch": 16, "seq": 32}),
    "optimizer.step": ("fsdp=8", {"model": 64, "ff": 128, "layers": 1, "batch": 64}),
    "decoding.extend": ("dp=2,tp=2,cp=2", {
        "vocab": 256, "model": 64, "kv_heads": 4, "group": 2, "head": 16, "ff": 128, "layers": 1, "batch": 8,
        "positions": 64, "new": 16,
    }),
    "quickstart.train_step": ("dp=4,tp=2", {
        "vocab": 256, "model": 64, "heads": 4, "head": 16, "ff": 128, "layers": 1, "batch": 16, "seq": 32,
    }),
    "transformer.step": ("fsdp=4,tp=2", {
        "vocab": 256, "model": 64, "kv_heads": 4, "group": 2, "head": 16, "ff": 128, "layers": 1, "batch": 16,
        "seq": 64,
    }),
}  # fmt: skip
"""The examples that it reads, with loops that run once, since it counts a loop's body once."""


def regions(jaxpr: Any) -> list[Any]:
    """The equations of outermost regions."""
    found = (eqn for eqn in all_equations(jaxpr) if eqn.primitive.name == "shard_map")
    return [eqn for eqn in found if not eqn.params["mesh"].manual_axes]


def counted(eqn: Any) -> int:
    """The operations of products in a region, as JAX's roofline counts them."""
    inner = eqn.params["jaxpr"]
    body = jaxpr_as_fun(inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ()))
    specs = {name: eqn.params[name] for name in ("mesh", "in_specs", "out_specs")}
    structs = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in eqn.invars]
    return roofline.roofline(lambda *args: tuple(body(*args)), **specs)(*structs)[1].flops


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_products_are_those_of_the_roofline_of_jax(name: str) -> None:
    module, function = name.split(".")
    imported, (mesh, sizes) = importlib.import_module(module), EXAMPLES[name]
    f, more = getattr(imported, function), {"state": imported.optimizer.init} if module == "optimizer" else {}
    found = explain(f, mesh=mesh, grad=False, **sizes, **more)
    axes = dict(found.mesh)
    there = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    made = inputs(f, mesh=there, **sizes, **more)
    with jax.sharding.use_abstract_mesh(there):
        traced = jax.make_jaxpr(lambda *args, **kwargs: f(*args, **kwargs))(*made.args, **made.kwargs)
    assert found.work.kinds["products"] == sum(map(counted, regions(traced.jaxpr))) > 0
