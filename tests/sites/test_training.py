"""Sites of whole steps: a recurrence on an Explicit mesh (14), and a training step (40)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import numbers
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from pairs import close, mesh_of, one_program, said, whole_numbers

from typedshmap import Array, Float, Int32, Stacked, UInt32, typed_shard_map

# 14. Arrays that carry their sharding in their type; the results are sharded as one of the arguments is.

EXPLICIT = mesh_of(AxisType.Explicit, x=2, y=4)


def recur(
    x: Float[Array, "[b/x] s [d/y]"], state: Float[Array, "[b/x] [d/y] n"]
) -> tuple[Float[Array, "[b/x] s [d/y]"], ...]:
    def one(state: Any, row: Any) -> tuple[Any, Any]:
        state = 0.5 * state + row[..., None]
        return state, state.sum(-1)

    _, sums = jax.lax.scan(one, state, x.swapaxes(0, 1))
    y = sums.swapaxes(0, 1)
    return y, jnp.tanh(y), x * jax.nn.sigmoid(y)


def recurrent_args() -> tuple[Any, Any]:
    return (
        jax.device_put(numbers(4, 3, 8), NamedSharding(EXPLICIT, P("x", None, "y"))),
        jax.device_put(numbers(4, 8, 2), NamedSharding(EXPLICIT, P("x", "y", None))),
    )


def test_a_recurrence_on_an_explicit_mesh_is_that_with_specs_from_its_arguments() -> None:
    def by_hand(x: Any, state: Any) -> Any:
        return jax.shard_map(recur, out_specs=(jax.typeof(x).sharding.spec,) * 3)(x, state)

    with jax.set_mesh(EXPLICIT):
        got = one_program(by_hand, typed_shard_map(recur), *recurrent_args())
    assert [part.sharding.spec for part in got] == [P("x", None, "y")] * 3
    close(got, recur(*map(jnp.asarray, jax.device_get(recurrent_args()))))


# 40. A training step: gradients, a scan over layers, remat, the optimiser and its collectives.

MESH = mesh_of(d=4, t=2)


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    norm: Float[Array, "m"]
    w_in: Float[Array, "[m/d] [f/t]"]
    w_out: Float[Array, "[f/t] [m/d]"]


@jax.tree_util.register_dataclass
@dataclass
class Weights:
    embed: Float[Array, "vocab [m/d]"]
    layers: Stacked["layers", Layer]
    unembed: Float[Array, "[m/d] [vocab/t]"]


@jax.tree_util.register_dataclass
@dataclass
class State:
    weights: Weights
    momentum: Weights


@jax.tree_util.register_dataclass
@dataclass
class Tokens:
    inputs: Int32[Array, "[batch/d] length"]
    targets: Int32[Array, "[batch/d] length"]


@jax.tree_util.register_dataclass
@dataclass
class Metrics:
    loss: Float[Array, ""]
    grad_norm: Float[Array, ""]
    rate: Float[Array, ""]


@dataclass(frozen=True)
class Hparams:
    rate: float
    decay: float
    reduced: bool = True


def gathered(w: Any, axis: int) -> Any:
    return jax.lax.all_gather(w, "d", axis=axis, tiled=True)


def layer_of(x: Any, layer: Any) -> tuple[Any, None]:
    scaled = layer.norm * x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    h = jax.nn.relu(scaled @ gathered(layer.w_in, 0))
    return x + jax.lax.psum(h @ gathered(layer.w_out, 1), "t"), None


def loss_of(weights: Any, batch: Any) -> Any:
    """The mean over the whole batch, with the words of the logits split over ``t``."""
    x = jnp.take(gathered(weights.embed, 1), batch.inputs, axis=0)
    x, _ = jax.lax.scan(jax.checkpoint(layer_of), x, weights.layers)
    logits = x @ gathered(weights.unembed, 0)
    highest = jax.lax.pmax(jax.lax.stop_gradient(logits.max(-1)), "t")
    total = jax.lax.psum(jnp.exp(logits - highest[..., None]).sum(-1), "t")
    words = jax.lax.axis_index("t") * logits.shape[-1] + jnp.arange(logits.shape[-1])
    right = jax.lax.psum(jnp.where(words == batch.targets[..., None], logits, 0).sum(-1), "t")
    per_token = jnp.log(total) + highest - right
    return jax.lax.psum(per_token.sum(), "d") / (jax.lax.axis_size("d") * per_token.size)


def squared_norm(grads: Any) -> Any:
    """The sum of squares of all gradients, each counted once however it is sharded."""

    def one(g: Any) -> Any:
        varying = tuple(axis for axis in ("d", "t") if axis in jax.typeof(g).manual_axis_type.varying)
        return jax.lax.psum((g * g).sum(), varying) if varying else (g * g).sum()

    return sum(map(one, jax.tree.leaves(grads)))


def step_of(hparams: Hparams) -> Any:
    def step(state: State, step: UInt32[Array, ""], batch: Tokens) -> tuple[State, Metrics]:
        weights = state.weights
        if not hparams.reduced:  # a gradient by these is a shard's own
            weights = jax.tree.map(own_over_d, weights)
        loss, grads = jax.value_and_grad(loss_of)(weights, batch)
        rate = hparams.rate / (1 + step.astype(jnp.float32))
        momentum = jax.tree.map(lambda m, g: hparams.decay * m + g, state.momentum, grads)
        moved = jax.tree.map(lambda w, m: w - rate * m, state.weights, momentum)
        return State(moved, momentum), Metrics(loss, jnp.sqrt(squared_norm(grads)), rate)

    return step


def own_over_d(w: Any) -> Any:
    return w if "d" in jax.typeof(w).manual_axis_type.varying else jax.lax.pcast(w, "d", to="varying")


def weights() -> Weights:
    layers = Layer(1 + numbers(3, 8), numbers(3, 8, 6), numbers(3, 6, 8))
    return Weights(numbers(10, 8), layers, numbers(8, 10))


STATE = State(weights(), jax.tree.map(np.zeros_like, weights()))
BATCH = Tokens(whole_numbers(8, 5, below=10), whole_numbers(5, 8, below=10).T.copy())
HPARAMS = Hparams(rate=0.1, decay=0.9)
STEP = np.uint32(1)


def step_by_hand() -> Any:
    layers = Layer(P(None, None), P(None, "d", "t"), P(None, "t", "d"))
    specs = Weights(P(None, "d"), layers, P("d", "t"))
    state, batch = State(specs, specs), P("d", None)
    return jax.jit(jax.shard_map(step_of(HPARAMS), mesh=MESH, in_specs=(state, P(), batch), out_specs=(state, P())))


def dense_loss(weights: Any, batch: Any) -> Any:
    x = weights.embed[batch.inputs]
    for i in range(3):
        norm, w_in, w_out = (leaf[i] for leaf in jax.tree.leaves(weights.layers))
        x = x + jax.nn.relu((norm * x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)) @ w_in) @ w_out
    logits = jax.nn.log_softmax(x @ weights.unembed)
    return -jnp.take_along_axis(logits, batch.targets[..., None], -1).mean()


def test_a_training_step_is_that_by_hand() -> None:
    typed = jax.jit(typed_shard_map(mesh=MESH)(step_of(HPARAMS)))
    state, metrics = one_program(step_by_hand(), typed, STATE, STEP, BATCH)
    loss, grads = jax.jit(jax.value_and_grad(dense_loss))(*jax.tree.map(jnp.asarray, (STATE.weights, BATCH)))
    close((metrics.loss, state.momentum), (loss, grads))
    close(metrics.grad_norm, np.sqrt(sum((np.asarray(g) ** 2).sum() for g in jax.tree.leaves(grads))))


@pytest.mark.slow
def test_a_gradient_that_was_not_summed_over_the_batch_is_named_by_its_leaf() -> None:
    typed = typed_shard_map(mesh=MESH)(step_of(Hparams(0.1, 0.9, reduced=False)))
    assert said(typed, STATE, STEP, BATCH) == [
        "VaryingError: step: return[0].weights.layers.norm varies over 'd', which its hint does not mention",
        "Hint: the gradient leaves partial sums: psum over 'd' of its gradient",
    ]
