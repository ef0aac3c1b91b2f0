"""A training step of a decoder-only transformer, FSDP over ``dp`` and tensor parallel over ``tp``, in several forms.

The forms have the same model and differ in its functions: written with `jax.lax` and unchecked, by hand or with hints
at the boundary only; checked by our hints; written in patterns and checked by our hints; checked by jaxtyping with
beartype, whose hints say the shape of a shard. The layers come one after the other in the program, so that it is as
long as real ones are, or are scanned.
"""

import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import unrolled
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import typedshmap
from typedshmap import Array, Float, Int, typed, typed_shard_map

RATE = 0.1
Function = Callable[..., Any]
Check = Callable[[Function], Function]


class Form(NamedTuple):
    """The functions of the model, and whether hints are read at the boundary of its region."""

    gathered: Function
    norm: Function
    heads: Function
    mixed: Function
    mlp: Function
    unembedded: Function
    has_hints: bool = False


STREAM, HEADS, INTO = "[b/dp] s m", "[b/dp] s [h/tp] d", "m [h/tp] d"
DIMS = {
    "norm": {"x": STREAM, "gain": "m", "return": STREAM},
    "heads": {"x": STREAM, "w": INTO, "return": HEADS},
    "mixed": {**dict.fromkeys(("query", "key", "value"), HEADS), "out": "[h/tp] d m", "return": STREAM},
    "mlp": {"x": STREAM, "up": "m [f/tp]", "down": "[f/tp] m", "return": STREAM},
    "unembedded": {"x": STREAM, "head": "m v", "return": "[b/dp] s v"},
}
# The gather of a weight, and the dim that is gathered.
GATHERS = {
    "embed": ("v [m/dp] -> v m ~dp", 1),
    "into": ("[m/dp] [h/tp] d -> m [h/tp] d ~dp", 0),
    "out": ("[h/tp] d [m/dp] -> [h/tp] d m ~dp", 2),
    "up": ("[m/dp] [f/tp] -> m [f/tp] ~dp", 0),
    "down": ("[f/tp] [m/dp] -> [f/tp] m ~dp", 1),
    "head": ("[m/dp] v -> m v ~dp", 0),
}


def gathered(weight, name):
    return lax.all_gather(weight, "dp", axis=GATHERS[name][1], tiled=True)


def norm(x, gain):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * gain


def heads(x, w):
    return jnp.einsum("bsm,mhd->bshd", x, w)


def shares(scores, d):
    """The weights of causal attention."""
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(seen, scores / d**0.5, -1e9))


def mixed(query, key, value, out):
    scores = jnp.einsum("bshd,bthd->bhst", query, key)
    values = jnp.einsum("bhst,bthd->bshd", shares(scores, query.shape[-1]), value)
    return lax.psum(jnp.einsum("bsad,adm->bsm", values, out), "tp")


def mlp(x, up, down):
    return lax.psum(jax.nn.gelu(x @ up) @ down, "tp")


def unembedded(x, head):
    return x @ head


class Patterns:
    """The same functions, their products and collectives written as patterns."""

    @staticmethod
    def gathered(weight, name):
        return typedshmap.all_gather(weight, GATHERS[name][0])

    @staticmethod
    def heads(x, w):
        return typedshmap.einsum(x, w, "[b/dp] s m, m [h/tp] d -> [b/dp] s [h/tp] d")

    @staticmethod
    def mixed(query, key, value, out):
        scores = typedshmap.einsum(query, key, "[b/dp] s [h/tp] d, [b/dp] t [h/tp] d -> [b/dp] [h/tp] s t")
        weights = shares(scores, query.shape[-1])
        values = typedshmap.einsum(weights, value, "[b/dp] [h/tp] s t, [b/dp] t [h/tp] d -> [b/dp] s [h/tp] d")
        return typedshmap.einsum(values, out, "[b/dp] s [h/tp] d, [h/tp] d m -> [b/dp] s m")

    @staticmethod
    def mlp(x, up, down):
        opened = jax.nn.gelu(typedshmap.einsum(x, up, "[b/dp] s m, m [f/tp] -> [b/dp] s [f/tp]"))
        return typedshmap.einsum(opened, down, "[b/dp] s [f/tp], [f/tp] m -> [b/dp] s m")

    @staticmethod
    def unembedded(x, head):
        return typedshmap.einsum(x, head, "[b/dp] s m, m v -> [b/dp] s v")


def hinted(f: Function, hint: Callable[[str], Any]) -> Function:
    """A copy of a function that carries a hint for each of its arrays."""
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


BY_HAND = Form(gathered, norm, heads, mixed, mlp, unembedded)
AT_BOUNDARY = BY_HAND._replace(has_hints=True)


def checked(check: Check, has_hints: bool = False) -> Form:
    """The functions with `jax.lax`, each checked."""
    return Form(gathered, *map(check, BY_HAND[1:-1]), has_hints)


def in_patterns() -> Form:
    """The functions in patterns, each checked by us."""
    made = (norm, Patterns.heads, Patterns.mixed, Patterns.mlp, Patterns.unembedded)
    return Form(Patterns.gathered, *map(by_us, made), True)


FORMS: dict[str, Callable[[], Form]] = {
    "hints at the boundary": lambda: AT_BOUNDARY,
    "checked by our hints": partial(checked, by_us, True),
    "in patterns": in_patterns,
    "by jaxtyping": partial(checked, by_jaxtyping),
}


def block(form: Form, x: Any, layer: unrolled.Layer) -> Any:
    h = form.norm(x, layer.before_attention)
    query, key, value = (form.heads(h, form.gathered(w, "into")) for w in (layer.query, layer.key, layer.value))
    x = x + form.mixed(query, key, value, form.gathered(layer.out, "out"))
    h = form.norm(x, layer.before_mlp)
    return x + form.mlp(h, form.gathered(layer.up, "up"), form.gathered(layer.down, "down"))


def logits(form: Form, weights: unrolled.Weights | unrolled.Scanned, tokens: Any, is_rematerialised: bool) -> Any:
    x = form.gathered(weights.embed, "embed")[tokens]
    if isinstance(weights, unrolled.Scanned):
        apply = partial(block, form)
        apply = jax.checkpoint(apply) if is_rematerialised else apply
        x, _ = lax.scan(lambda x, layer: (apply(x, layer), None), x, weights.layers)
    else:
        for layer in weights.layers:
            x = block(form, x, layer)
    return form.unembedded(form.norm(x, weights.before_head), form.gathered(weights.head, "head"))


def loss(form: Form, weights: Any, tokens: Any, targets: Any, is_rematerialised: bool = False) -> Any:
    """The cross entropy of all shards' tokens."""
    logs = jax.nn.log_softmax(logits(form, weights, tokens, is_rematerialised))
    return lax.pmean(-jnp.take_along_axis(logs, targets[..., None], axis=-1).mean(), "dp")


def forward(form: Form, mesh: Mesh, layers: int, is_scanned: bool = False) -> Function:
    """The logits, in a region."""
    if not form.has_hints:
        specs = (unrolled.specs(layers, is_scanned), P("dp", None))
        by_hand = partial(logits, form, is_rematerialised=False)
        return jax.shard_map(by_hand, mesh=mesh, in_specs=specs, out_specs=P("dp", None, None))
    weights_hint = unrolled.Scanned if is_scanned else unrolled.Weights

    def program(weights: weights_hint, tokens: Int[Array, "[b/dp] s"]) -> Float[Array, "[b/dp] s v"]:
        return logits(form, weights, tokens, is_rematerialised=False)

    return typed_shard_map(program, mesh=mesh)


def step(form: Form, mesh: Mesh, layers: int, is_scanned: bool = False) -> Function:
    """The loss, and the weights after one step of gradient descent, in a region."""
    weights_hint, ids = unrolled.Scanned if is_scanned else unrolled.Weights, Int[Array, "[b/dp] s"]

    def program(weights: weights_hint, tokens: ids, targets: ids) -> tuple[Float[Array, ""], weights_hint]:
        value, gradients = jax.value_and_grad(partial(loss, form))(weights, tokens, targets)
        return value, jax.tree.map(lambda w, g: w - RATE * g, weights, gradients)

    if form.has_hints:
        return typed_shard_map(program, mesh=mesh)
    specs, batch = unrolled.specs(layers, is_scanned), P("dp", None)
    return jax.shard_map(program, mesh=mesh, in_specs=(specs, batch, batch), out_specs=(P(), specs))


B1, B2, EPSILON, CLIP = 0.9, 0.95, 1e-8, 1.0


@jax.tree_util.register_dataclass
@dataclass
class State:
    """What Adam trains."""

    weights: unrolled.Scanned
    mean: unrolled.Scanned
    square: unrolled.Scanned
    count: Float[Array, ""]


def norm_of(tree: Any, specs: Any) -> Any:
    """The norm of all shards' parts, by one sum for each way in which leaves are sharded."""
    squares: dict[tuple[str, ...], Any] = {}
    for leaf, spec in zip(jax.tree.leaves(tree), jax.tree.leaves(specs), strict=True):
        axes = tuple(axis for axis in spec if axis is not None)
        squares[axes] = squares.get(axes, 0.0) + jnp.sum(leaf * leaf)
    return jnp.sqrt(sum(lax.psum(square, axes) if axes else square for axes, square in squares.items()))


def whole_step(form: Form, mesh: Mesh, layers: int) -> Function:
    """The loss, the norm of the gradients, and the state after a step of Adam, all in a region.

    The layers are scanned and rematerialised, and the gradients clipped.
    """
    specs, ids = unrolled.specs(layers, is_scanned=True), Int[Array, "[b/dp] s"]
    scalar = Float[Array, ""]

    def program(state: State, tokens: ids, targets: ids) -> tuple[scalar, scalar, State]:
        differentiated = jax.value_and_grad(partial(loss, form, is_rematerialised=True))
        value, gradients = differentiated(state.weights, tokens, targets)
        norm, count = norm_of(gradients, specs), state.count + 1
        gradients = jax.tree.map(lambda g: g * jnp.minimum(1.0, CLIP / norm), gradients)
        mean = jax.tree.map(lambda m, g: B1 * m + (1 - B1) * g, state.mean, gradients)
        square = jax.tree.map(lambda v, g: B2 * v + (1 - B2) * g * g, state.square, gradients)

        def update(w: Any, m: Any, v: Any) -> Any:
            return w - RATE * (m / (1 - B1**count)) / (jnp.sqrt(v / (1 - B2**count)) + EPSILON)

        weights = jax.tree.map(update, state.weights, mean, square)
        return value, norm, State(weights, mean, square, count)

    if form.has_hints:
        return typed_shard_map(program, mesh=mesh)
    trained, batch = State(specs, specs, specs, P()), P("dp", None)
    return jax.shard_map(program, mesh=mesh, in_specs=(trained, batch, batch), out_specs=(P(), P(), trained))


def state_of(weights: unrolled.Scanned) -> State:
    """The state before the first step."""
    zeros = jax.tree.map(np.zeros_like, weights)
    return State(weights, zeros, zeros, np.float32(0))
