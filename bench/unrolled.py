"""The weights of a decoder-only transformer, FSDP over ``dp`` and tensor parallel over ``tp``; `forms` has its step.

Its layers are unrolled, a list of them, or stacked, to be scanned. The hints are for `typed_shard_map`; `specs` says
the same by hand for `jax.shard_map`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, Stacked


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    before_attention: Float[Array, " m"]
    query: Float[Array, "[m/dp] [heads/tp] d"]
    key: Float[Array, "[m/dp] [heads/tp] d"]
    value: Float[Array, "[m/dp] [heads/tp] d"]
    out: Float[Array, "[heads/tp] d [m/dp]"]
    before_mlp: Float[Array, " m"]
    up: Float[Array, "[m/dp] [ff/tp]"]
    down: Float[Array, "[ff/tp] [m/dp]"]


@jax.tree_util.register_dataclass
@dataclass
class Weights:
    embed: Float[Array, "v [m/dp]"]
    layers: list[Layer]
    before_head: Float[Array, " m"]
    head: Float[Array, "[m/dp] v"]


@jax.tree_util.register_dataclass
@dataclass
class Scanned:
    embed: Float[Array, "v [m/dp]"]
    layers: Stacked["layers", Layer]
    before_head: Float[Array, " m"]
    head: Float[Array, "[m/dp] v"]


def shapes(layers: int, m: int = 32, heads: int = 4, d: int = 8, ff: int = 64, v: int = 128) -> Weights:
    """The shape of every weight."""
    shape = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    into, out = shape((m, heads, d)), shape((heads, d, m))
    layer = Layer(shape((m,)), into, into, into, out, shape((m,)), shape((m, ff)), shape((ff, m)))
    return Weights(shape((v, m)), [layer] * layers, shape((m,)), shape((m, v)))


def arguments(layers: int, is_scanned: bool = False) -> tuple[Weights | Scanned, Any, Any]:
    """Weights, tokens and targets."""
    rng = np.random.default_rng(0)
    weights = jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.1).astype(np.float32), shapes(layers))
    if is_scanned:
        stacked = jax.tree.map(lambda *each: np.stack(each), *weights.layers)
        weights = Scanned(weights.embed, stacked, weights.before_head, weights.head)
    tokens = rng.integers(128, size=(8, 17), dtype=np.int32)
    return weights, tokens[:, :-1], tokens[:, 1:]


def specs(layers: int, is_scanned: bool = False) -> Weights | Scanned:
    """By hand, what the hints of `Weights` say."""
    into, out = P("dp", "tp", None), P("tp", None, "dp")
    layer = Layer(P(None), into, into, into, out, P(None), P("dp", "tp"), P("tp", "dp"))
    if is_scanned:
        return Scanned(P(None, "dp"), jax.tree.map(lambda spec: P(None, *spec), layer), P(None), P("dp", None))
    return Weights(P(None, "dp"), [layer] * layers, P(None), P("dp", None))
