"""Sites of expert layers: many arguments, some optional (10), and a stack of decorators (16)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import numbers
from jax.sharding import PartitionSpec as P
from pairs import close, mesh_of, one_program, said

from typedshmap import Array, Float, Key, typed_shard_map

MESH = mesh_of(data=2, seq=1, expert=2, tp=2)
X = Float[Array, "[b/data] [s/seq] [d/tp]"]


# 10. Eleven arguments, four of which may be absent; losses that are None where they are not asked for.


def experts(
    x: X,
    logits: Float[Array, "[b/data] [s/seq] e"],
    prior: Float[Array, "e"] | None,
    w0: Float[Array, "[e/expert] d [f/tp]"],
    w1: Float[Array, "[e/expert] d [f/tp]"],
    wo: Float[Array, "[e/expert] [f/tp] d"],
    b0: Float[Array, "[e/expert] [f/tp]"] | None,
    b1: Float[Array, "[e/expert] [f/tp]"] | None,
    bo: Float[Array, "[e/expert] [d/tp]"] | None,
    key: Key[Array, ""] | None,
    temperature: Float[Array, ""],
    *,
    with_loss: bool = False,
    averaged: bool = True,
) -> tuple[X, Float[Array, ""] | None, Float[Array, "e"] | None]:
    if key is not None:
        key = jax.random.fold_in(key, jax.lax.axis_index("data"))
        logits = logits + 0.1 * jax.random.normal(key, logits.shape)
    logits = logits if prior is None else logits + prior
    probabilities = jax.nn.softmax(logits / temperature)
    here = w0.shape[0]
    mine = jax.lax.dynamic_slice_in_dim(probabilities, jax.lax.axis_index("expert") * here, here, axis=2)
    x = jax.lax.all_gather(x, "tp", axis=2, tiled=True)
    h0, h1 = jnp.einsum("bsd,edf->bsef", x, w0), jnp.einsum("bsd,edf->bsef", x, w1)
    h0, h1 = (h if b is None else h + b for h, b in ((h0, b0), (h1, b1)))
    partial_sum = jnp.einsum("bsef,efd,bse->bsd", jax.nn.silu(h0) * h1, wo, mine)
    y = jax.lax.psum_scatter(partial_sum, "tp", scatter_dimension=2, tiled=True)
    y = jax.lax.psum(y if bo is None else y + jnp.einsum("ed,bse->bsd", bo, mine), "expert")
    if not with_loss:
        return y, None, None
    load = probabilities.mean((0, 1))
    load = jax.lax.pmean(load, ("data", "seq")) if averaged else load
    return y, (load * load).sum() * load.size, load if averaged else None


x, logits = numbers(4, 3, 4), numbers(4, 3, 6)
prior, key, temperature = numbers(6), jax.random.key(0), np.float32(0.7)
w0, w1, wo = numbers(6, 4, 8), 2 * numbers(6, 4, 8), numbers(6, 8, 4)
b0, b1, bo = numbers(6, 8), 3 * numbers(6, 8), numbers(6, 4)
ALL = (x, logits, prior, w0, w1, wo, b0, b1, bo, key, temperature)
BARE = (x, logits, None, w0, w1, wo, None, None, None, None, temperature)


def experts_by_hand(args: tuple[Any, ...], check_vma: bool, with_loss: bool) -> Any:
    tokens = P("data", "seq", "tp")
    w, b = P("expert", None, "tp"), P("expert", "tp")
    specs = [tokens, P("data", "seq", None), P(None), w, w, P("expert", "tp", None), b, b, b, P(), P()]
    in_specs = tuple(None if arg is None else spec for arg, spec in zip(args, specs, strict=True))
    out_specs = (tokens, P() if with_loss else None, P(None) if with_loss else None)
    body = partial(experts, with_loss=with_loss)
    return jax.shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)


def experts_typed(check_vma: bool = True, **statics: Any) -> Any:
    return typed_shard_map(partial(experts, **statics), mesh=MESH, check_vma=check_vma)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("args", "check_vma", "with_loss"),
    [(ALL, True, True), ((*ALL[:9], None, temperature), False, True), (BARE, True, False)],
    ids=["all", "no_key_and_no_check", "bare"],
)
def test_an_expert_layer_is_that_by_hand(args: tuple[Any, ...], check_vma: bool, with_loss: bool) -> None:
    by_hand = experts_by_hand(args, check_vma, with_loss)
    y, loss, load = one_program(by_hand, experts_typed(check_vma, with_loss=with_loss), *args)
    assert (loss is not None, load is not None) == (with_loss, with_loss)
    if args[9] is None:
        close(y, dense_experts(*args[:9], temperature))


def dense_experts(x: Any, logits: Any, prior: Any, w0: Any, w1: Any, wo: Any, b0: Any, b1: Any, bo: Any, t: Any) -> Any:
    gate = jax.nn.softmax((logits if prior is None else logits + prior) / t)
    h0 = jnp.einsum("bsd,edf->bsef", x, w0) + (0 if b0 is None else b0)
    h1 = jnp.einsum("bsd,edf->bsef", x, w1) + (0 if b1 is None else b1)
    out = jnp.einsum("bsef,efd->bsed", jax.nn.silu(h0) * h1, wo) + (0 if bo is None else bo)
    return jnp.einsum("bsed,bse->bsd", out, gate)


def test_a_loss_that_was_not_averaged_is_named() -> None:
    assert said(experts_typed(with_loss=True, averaged=False), *BARE) == [
        "VaryingError: experts: return[1] varies over 'data', 'seq', which its hint does not mention",
        "Hint: the mean over b (sharded over 'data') covers only each shard's part: pmean over 'data'",
    ]


# 16. jit of typed of checkpoint, in a region that may be manual already.

LAYER = mesh_of(data=2, expert=1, fsdp=2, model=2)
tokens, wi = numbers(4, 3, 8), numbers(2, 8, 4)


def layer_body(
    x: Float[Array, "[b/data] s m"], wi: Float[Array, "[e/expert] [m/fsdp] [h/model]"]
) -> Float[Array, "[b/data] s m"]:
    wi = jax.lax.all_gather(wi, "fsdp", axis=1, tiled=True, to="invarying")
    h = jax.nn.relu(jnp.einsum("bsm,emh->bseh", x, wi))
    return jax.lax.psum(jnp.einsum("bseh,emh->bsm", h, wi), ("model", "expert"))


def dense_layer(x: Any, wi: Any) -> Any:
    return jnp.einsum("bseh,emh->bsm", jax.nn.relu(jnp.einsum("bsm,emh->bseh", x, wi)), wi)


SPECS = {"in_specs": (P("data", None, None), P("expert", "fsdp", "model")), "out_specs": P("data", None, None)}


def test_a_layer_under_a_stack_of_decorators_is_that_by_hand() -> None:
    typed = jax.jit(typed_shard_map(mesh=LAYER)(jax.checkpoint(layer_body)))
    by_hand = jax.jit(jax.shard_map(jax.checkpoint(layer_body), mesh=LAYER, **SPECS))
    close(one_program(by_hand, typed, tokens, wi), dense_layer(tokens, wi))


def test_the_gradient_of_a_layer_under_a_stack_of_decorators_is_that_by_hand() -> None:
    def gradient(layer: Any) -> Any:
        return jax.grad(lambda x, wi: (layer(x, wi) ** 2).sum(), (0, 1))

    typed = typed_shard_map(mesh=LAYER)(jax.checkpoint(layer_body))
    by_hand = jax.shard_map(jax.checkpoint(layer_body), mesh=LAYER, **SPECS)
    got = one_program(gradient(jax.jit(by_hand)), gradient(jax.jit(typed)), tokens, wi)
    close(got, jax.jit(gradient(dense_layer))(tokens, wi))


@pytest.mark.parametrize("outer", [{"data"}, {"data", "fsdp"}])
def test_axes_that_are_manual_already_drop_out_of_the_specs(outer: set[str]) -> None:
    def left(*axes: str) -> list[str | None]:
        return [axis if axis not in outer else None for axis in axes]

    def around(layer: Any) -> Any:
        specs = {"in_specs": (P("data"), P(None, *({"fsdp"} & outer))), "out_specs": P("data")}
        return jax.jit(jax.shard_map(lambda x, wi: layer(2 * x, wi), mesh=LAYER, axis_names=outer, **specs))

    by_hand = jax.shard_map(
        jax.checkpoint(layer_body),
        axis_names=set(LAYER.axis_names) - outer,
        in_specs=(P(None, None, None), P(*left("expert", "fsdp", "model"))),
        out_specs=P(None, None, None),
    )
    typed = typed_shard_map(jax.checkpoint(layer_body))
    close(one_program(around(by_hand), around(typed), tokens, wi), dense_layer(2 * tokens, wi))


def test_a_layer_in_a_region_that_is_manual_over_all_axes_runs_as_it_is() -> None:
    typed = typed_shard_map(jax.checkpoint(layer_body))
    by_hand, nested = (jax.shard_map(f, mesh=LAYER, **SPECS) for f in (jax.checkpoint(layer_body), typed))
    one_program(jax.jit(by_hand), jax.jit(nested), tokens, wi)
