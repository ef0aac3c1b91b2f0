"""Programs as people write them, with options, rates and counters beside the arrays: the text is that by hand.

On both types of mesh axes, with the check and without.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from expecting import numbers
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from pairs import lowered, mesh_of

from typedshmap import Array, Float, typed_shard_map

X = Float[Array, "[b/dp] d"]
ROWS = P("dp", None)


class State(NamedTuple):
    """What a training loop carries; the last two are numbers to their user, and arrays under jit."""

    w: Float[Array, "d [f/tp]"]
    step: int = 0
    rate: float = 0.1


STATE = State(P(None, "tp"), P(), P())


def attention(q, k, scale=None, causal=True, *, block=(128, 128), bias_fn: Callable[..., Any] | None = None, **flags):
    return q * k * (scale or 0.5) + flags.get("shift", 0)


def trained(state: State, x: X) -> tuple[State, dict[str, float]]:
    loss = lax.psum(((x @ state.w) ** 2).sum(), ("dp", "tp"))
    return State(state.w * (1 - state.rate), state.step + 1, state.rate), {"loss": loss}


def masked(x: X, mask: Array | None = None, extras: dict | None = None, names: tuple = ()) -> X:
    x = x if mask is None else jnp.where(mask > 0, x, 0)
    return x if extras is None else x * extras["gain"]


class Layer:
    """A method that is mapped when the layer is made."""

    gain = 2.0

    def __init__(self, wrap: Callable[..., Any]) -> None:
        self.run = wrap(self.scaled)

    def scaled(self, x, times=3, **options):
        return x * self.gain * times


Maps = Callable[..., Any]
"""`jax.shard_map` or `typed_shard_map` on a mesh and in a mode."""


def by_kernel(by_hand: Maps, typed: Maps) -> tuple[Any, Any]:
    body = partial(attention, block=(8, 8), shift=1.0)
    ours = typed(attention, in_types=(X, X), out_types=X)
    hand = by_hand(lambda q, k: body(q, k), in_specs=(ROWS, ROWS), out_specs=ROWS)
    return lambda x, *_: hand(x, x), lambda x, *_: ours(x, x, None, False, block=(8, 8), shift=1.0)


def by_state(by_hand: Maps, typed: Maps) -> tuple[Any, Any]:
    hand = by_hand(trained, in_specs=(STATE, ROWS), out_specs=(STATE, {"loss": P()}))
    ours = typed(trained)
    return [lambda x, w, rate, step, f=f: f(State(w, step, rate), x) for f in (hand, ours)]


def by_scan(by_hand: Maps, typed: Maps) -> tuple[Any, Any]:
    def steps(f: Any, x: Any, w: Any, rate: Any) -> Any:
        def body(state: State, rate: Any) -> Any:
            return f(state._replace(rate=rate), x)

        return lax.scan(body, State(w, jnp.int32(0), rate), rate / jnp.arange(1.0, 4.0))

    hand = by_hand(trained, in_specs=(STATE, ROWS), out_specs=(STATE, {"loss": P()}))
    ours = typed(trained)
    return [lambda x, w, rate, step, f=f: steps(f, x, w, rate) for f in (hand, ours)]


def by_optional(by_hand: Maps, typed: Maps) -> tuple[Any, Any]:
    hand = by_hand(lambda x, mask, gain: masked(x, mask, {"gain": gain}), in_specs=(ROWS, P(None), P()), out_specs=ROWS)
    ours = typed(masked)
    return (
        lambda x, w, rate, step: hand(x, jnp.ones(4), rate),
        lambda x, w, rate, step: ours(x, jnp.ones(4), {"gain": rate, "unused": "relu"}, ("a",)),
    )


def by_method(by_hand: Maps, typed: Maps) -> tuple[Any, Any]:
    hand = Layer(lambda f: by_hand(partial(f, times=4), in_specs=ROWS, out_specs=ROWS))
    ours = Layer(partial(typed, in_types=X, out_types=X))
    return lambda x, *_: hand.run(x), lambda x, *_: ours.run(x, times=4, unused=None)


def by_gradient(by_hand: Maps, typed: Maps) -> tuple[Any, Any]:
    def loss(x: X, rate: float, power=2) -> float:
        return lax.psum((x**power * rate).sum(), "dp")

    hand, ours = by_hand(loss, in_specs=(ROWS, P()), out_specs=P()), typed(loss)
    return [lambda x, w, rate, step, f=f: jax.grad(f, argnums=(0, 1))(x, rate) for f in (hand, ours)]


PROGRAMS = [by_kernel, by_state, by_scan, by_optional, by_method, by_gradient]


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("check_vma", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_with_options_lowers_to_the_text_by_hand(program: Any, check_vma: bool, kind: AxisType) -> None:
    mesh = mesh_of(kind, dp=4, tp=2)
    options = {"mesh": mesh, "check_vma": check_vma}
    by_hand, ours = program(partial(jax.shard_map, **options), partial(typed_shard_map, **options))
    x = jax.device_put(numbers(8, 4), NamedSharding(mesh, ROWS))
    w = jax.device_put(numbers(4, 6), NamedSharding(mesh, STATE.w))
    args = x, w, jnp.float32(0.5), jnp.int32(3)
    assert lowered(ours, args).as_text() == lowered(by_hand, args).as_text()
