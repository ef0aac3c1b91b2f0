"""The training step of `examples/quickstart.py`, and the same by hand.

By hand means: the example's source run again with decorators and checks that do nothing, with its
sizes as numbers, and with its specs written out.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import typedshmap

EXAMPLE = Path(__file__).parent.parent / "examples" / "quickstart.py"
TP = 2


def load(name: str) -> Any:
    """The example as a module of that name."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_checks(sizes: dict[str, int]) -> ModuleType:
    """A typedshmap that leaves every function and every value as it is."""
    plain: Any = ModuleType("typedshmap")
    vars(plain).update(vars(typedshmap))
    plain.typed = plain.typed_shard_map = lambda f: f
    plain.check = lambda x, hint: x
    plain.size = sizes.__getitem__
    plain.shard_size = lambda name: {"vocab": sizes["vocab"] // TP}[name]
    return plain


def load_by_hand(example: Any) -> Any:
    """The example without hints, over the classes of the one with hints."""
    sizes = {"batch": example.BATCH, "seq": example.SEQ, "head": example.HEAD, "vocab": example.VOCAB}
    with mock.patch.dict(sys.modules, typedshmap=without_checks(sizes)):
        plain = load("quickstart_by_hand")
    plain.Layer, plain.Weights, plain.State = example.Layer, example.Weights, example.State
    return plain


def state_specs(example: Any) -> Any:
    """By hand, what the hints of the example's `State` say."""
    layer = example.Layer(
        attention_norm=P(None),
        qkv=P(None, "dp", "tp", None),
        out=P("tp", None, "dp"),
        mlp_norm=P(None),
        up=P("dp", "tp"),
        down=P("tp", "dp"),
    )
    weights = example.Weights(P("tp", "dp"), P(None, "dp"), (layer,) * example.LAYERS, P(None), P("dp", "tp"))
    return example.State(weights, weights, weights, P())


def steps(mesh: Mesh) -> tuple[Any, Any, tuple[Any, Any]]:
    """The step by hand, the typed step, and the arguments of both."""
    example = load("quickstart_with_hints")
    specs = state_specs(example)
    # Under the example's jit stands what was decorated.
    body = load_by_hand(example).train_step.__wrapped__
    by_hand = jax.shard_map(body, mesh=mesh, in_specs=(specs, P("dp", None)), out_specs=(specs, P()))
    typed = typedshmap.typed_shard_map(example.train_step.__wrapped__.__wrapped__, mesh=mesh)
    rng = np.random.default_rng(0)
    text = rng.integers(example.VOCAB, size=(example.BATCH, example.SEQ + 1), dtype=np.uint8)
    return by_hand, typed, (example.init(rng), text)
