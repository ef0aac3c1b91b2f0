"""One transformer whose helper functions are checked in three ways: not, by us, by jaxtyping with beartype.

The code is the same, and so are the dims of every hint; jaxtyping's say the shape of a shard, which is
what a value has there.
"""

import re
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import unrolled
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Float, Int, typed, typed_shard_map

STREAM, INTO = "[b/dp] s m", "m [h/tp] d"
DIMS = {
    "norm": {"x": STREAM, "gain": "m", "return": STREAM},
    "heads": {"x": STREAM, "w": INTO, "return": "[b/dp] s [h/tp] d"},
    "mixed": {
        **dict.fromkeys(("query", "key", "value"), "[b/dp] s [h/tp] d"),
        "out": "[h/tp] d m",
        "return": STREAM,
    },
    "mlp": {"x": STREAM, "up": "m [f/tp]", "down": "[f/tp] m", "return": STREAM},
}

Function = Callable[..., Any]
Check = Callable[[Function], Function]


class Helpers(NamedTuple):
    """The functions that are checked."""

    norm: Function
    heads: Function
    mixed: Function
    mlp: Function


def norm(x, gain):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain


def heads(x, w):
    return jnp.einsum("bsm,mhd->bshd", x, w)


def mixed(query, key, value, out):
    scores = jnp.einsum("bshd,bthd->bhst", query, key) / query.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    values = jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(jnp.where(seen, scores, -1e9)), value)
    return lax.psum(jnp.einsum("bshd,hdm->bsm", values, out), "tp")


def mlp(x, up, down):
    return lax.psum(jax.nn.gelu(x @ up) @ down, "tp")


def gathered(weight, axis):
    return lax.all_gather(weight, "dp", axis=axis, tiled=True)


def logits(helpers: Helpers, weights: Any, tokens: Any) -> Any:
    x = gathered(weights.embed, 1)[tokens]
    for layer in weights.layers:
        h = helpers.norm(x, layer.before_attention)
        query, key, value = (helpers.heads(h, gathered(w, 0)) for w in (layer.query, layer.key, layer.value))
        x = x + helpers.mixed(query, key, value, gathered(layer.out, 2))
        h = helpers.norm(x, layer.before_mlp)
        x = x + helpers.mlp(h, gathered(layer.up, 0), gathered(layer.down, 1))
    return helpers.norm(x, weights.before_head) @ gathered(weights.head, 0)


def hinted(f: Function, hint: Callable[[str], Any]) -> Function:
    """A copy of a helper that carries a hint for each of its arrays."""
    copy = types.FunctionType(f.__code__, f.__globals__, f.__name__)
    copy.__annotations__ = {name: hint(dims) for name, dims in DIMS[f.__name__].items()}
    return copy


def shard_shape(dims: str) -> str:
    """``b s d`` of ``[b/dp] s d``."""
    return re.sub(r"\[(\w+)/\w+\]", r"\1", dims)


def by_us(f: Function) -> Function:
    return typed(hinted(f, lambda dims: Float[Array, dims]))


def by_jaxtyping(f: Function) -> Function:
    import jaxtyping
    from beartype import beartype

    return jaxtyping.jaxtyped(typechecker=beartype)(
        hinted(f, lambda dims: jaxtyping.Float[jax.Array, shard_shape(dims)])
    )


def with_hints(mesh: Mesh, check: Check) -> Function:
    """The forward pass under `typed_shard_map`."""
    helpers = Helpers(*map(check, (norm, heads, mixed, mlp)))

    def forward(weights: unrolled.Weights, tokens: Int[Array, "[b/dp] s"]) -> Float[Array, "[b/dp] s v"]:
        return logits(helpers, weights, tokens)

    return typed_shard_map(forward, mesh=mesh)


def with_specs(mesh: Mesh, layers: int, check: Check = lambda f: f) -> Function:
    """The forward pass under `jax.shard_map`, its helpers checked or not."""
    helpers = Helpers(*map(check, (norm, heads, mixed, mlp)))

    def forward(weights: Any, tokens: Any) -> Any:
        return logits(helpers, weights, tokens)

    in_specs = (unrolled.specs(layers), P("dp", None))
    return jax.shard_map(forward, mesh=mesh, in_specs=in_specs, out_specs=P("dp", None, None))
