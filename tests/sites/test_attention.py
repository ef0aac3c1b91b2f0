"""Sites of attention: a backward kernel (8), heads split between two dims (12), a context over several shards (24)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expecting import numbers
from jax.sharding import PartitionSpec as P
from pairs import close, mesh_of, one_program, whole_numbers

from typedshmap import Array, Float, Int, Int32, typed_shard_map

HEADS = mesh_of(dp=2, tp=2)


# 8. A kernel and its backward, called from a custom_vjp.

Q, KV = Float[Array, "[b/dp] [h/tp] s d"], Float[Array, "[b/dp] [g/tp] s d"]
L = Float[Array, "[b/dp] [h/tp] s"]


def repeat_heads(k: Any, q: Any) -> Any:
    return jnp.repeat(k, q.shape[1] // k.shape[1], axis=1)


def forward_kernel(q: Any, k: Any, v: Any) -> Any:
    k, v = repeat_heads(k, q), repeat_heads(v, q)
    scores = jnp.einsum("bhsd,bhtd->bhst", q, k)
    lse = jax.nn.logsumexp(scores, axis=-1)
    return jnp.einsum("bhst,bhtd->bhsd", jnp.exp(scores - lse[..., None]), v), lse


def backward_kernel(residuals: Any, cotangents: Any) -> Any:
    (lse, q, k, v, o), (g, g_lse) = residuals, cotangents
    groups, (k, v) = k.shape[1], (repeat_heads(k, q), repeat_heads(v, q))
    p = jnp.exp(jnp.einsum("bhsd,bhtd->bhst", q, k) - lse[..., None])
    d_scores = p * (jnp.einsum("bhsd,bhtd->bhst", g, v) + (g_lse - (g * o).sum(-1))[..., None])
    dq, dk = jnp.einsum("bhst,bhtd->bhsd", d_scores, k), jnp.einsum("bhst,bhsd->bhtd", d_scores, q)
    dv = jnp.einsum("bhst,bhsd->bhtd", p, g)
    shape = (dk.shape[0], groups, -1, *dk.shape[2:])
    return dq, dk.reshape(shape).sum(2), dv.reshape(shape).sum(2)


def attention_of(forward: Any, backward: Any) -> Any:
    @jax.custom_vjp
    def attention(q: Any, k: Any, v: Any) -> Any:
        return forward(q, k, v)

    def saved(q: Any, k: Any, v: Any) -> Any:
        o, lse = forward(q, k, v)
        return (o, lse), (lse, q, k, v, o)

    attention.defvjp(saved, backward)
    return attention


forward = typed_shard_map(forward_kernel, mesh=HEADS, in_types=(Q, KV, KV), out_types=tuple[Q, L], check_vma=False)
backward = typed_shard_map(
    backward_kernel,
    mesh=HEADS,
    in_types=(tuple[L, Q, KV, KV, Q], tuple[Q, L]),
    out_types=tuple[Q, KV, KV],
    check_vma=False,
)
q, k, v, lse = numbers(2, 4, 6, 3), numbers(2, 2, 6, 3), 2 * numbers(2, 2, 6, 3), numbers(2, 4, 6)
RESIDUALS, COTANGENTS = (lse, q, k, v, 2 * q), (3 * q, 2 * lse)


def test_a_backward_kernel_is_that_by_hand() -> None:
    spec = P("dp", "tp")
    specs = {"in_specs": ((spec,) * 5, (spec,) * 2), "out_specs": (spec,) * 3}
    by_hand = jax.shard_map(backward_kernel, mesh=HEADS, check_vma=False, **specs)
    one_program(by_hand, backward, RESIDUALS, COTANGENTS)


def test_a_gradient_by_way_of_two_kernels_is_that_of_plain_attention() -> None:
    def loss(attention: Any) -> Any:
        return lambda *args: sum((part**2).sum() for part in attention(*args))

    got, expected = (
        jax.block_until_ready(jax.jit(jax.grad(loss(attention), (0, 1, 2)))(q, k, v))
        for attention in (attention_of(forward, backward), forward_kernel)
    )
    close(got, expected)


# 12. Query heads as two dims; the axes of the heads go to either, or to none.

SPLIT = mesh_of(data=2, x=2, y=2)
ARGS = (
    numbers(4, 2, 4, 3, 5),
    numbers(4, 2, 6, 5),
    numbers(4, 2, 6, 5),
    whole_numbers(4, 3, below=2),
    whole_numbers(4, below=3),
)
SCALE = np.abs(numbers(4, 2, 6))


def attend_heads(
    q: Float[Array, "[b/batch] [g/kv] [r/rep] s d"],
    k: Float[Array, "[b/batch] [g/kv] t d"],
    v: Float[Array, "[b/batch] [g/kv] t d"],
    q_seg: Int[Array, "[b/batch] s"],
    starts: Int[Array, "[b/batch]"],
    k_scale: Float[Array, "[b/batch] [g/kv] t"] | None = None,
) -> Float[Array, "[b/batch] [g/kv] [r/rep] s d"]:
    scores = jnp.einsum("bgrsd,bgtd->bgrst", q, k)
    scores = scores if k_scale is None else scores * k_scale[:, :, None, None]
    seen = jnp.arange(k.shape[2]) >= starts[:, None]
    seen = seen[:, None, None, None] & (q_seg > 0)[:, None, None, :, None]
    return jnp.einsum("bgrst,bgtd->bgrsd", jax.nn.softmax(jnp.where(seen, scores, -1e30)), v)


def heads_by_hand(batch: Any, kv: Any, rep: Any, scaled: bool) -> Any:
    keys = P(batch, kv, None, None)
    specs = (P(batch, kv, rep), keys, keys, P(batch, None), P(batch))
    specs = (*specs, P(batch, kv, None)) if scaled else specs
    return jax.shard_map(attend_heads, mesh=SPLIT, in_specs=specs, out_specs=P(batch, kv, rep), check_vma=False)


def heads_typed(batch: Any, kv: Any, rep: Any) -> Any:
    axes = {"batch": batch, "kv": kv, "rep": rep}
    return typed_shard_map(mesh=SPLIT, axes=axes, check_vma=False)(attend_heads)


@pytest.mark.sample(3)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    ("batch", "kv", "rep"),
    [("data", "x", "y"), ("data", None, ("x", "y")), (None, "x", None), (("data", "x"), "y", None)],
)
def test_heads_split_between_two_dims_are_those_by_hand(batch: Any, kv: Any, rep: Any, scaled: bool) -> None:
    args = (*ARGS, SCALE) if scaled else ARGS
    got = one_program(heads_by_hand(batch, kv, rep, scaled), heads_typed(batch, kv, rep), *args)
    close(got, attend_heads(*map(jnp.asarray, args)))


# 24. A context over several shards; a vector with one entry per shard gives each its rank.

CONTEXT = mesh_of(context=4, model=2)
TOKENS = 8


def attend_context(
    q: Float[Array, "[t/cp] [h/model] d"],
    k: Float[Array, "[t/cp] [h/model] d"],
    v: Float[Array, "[t/cp] [h/model] d"],
    rank: Int32[Array, "[ranks/cp]"],
    lens: Int32[Array, "seqs"],
    table: Float[Array, "t d"],
    sinks: Float[Array, "[h/model]"] | None,
    scale: float,
    *,
    cp: str | None,
    mask_value: float = -1e30,
) -> Float[Array, "[t/cp] [h/model] d"]:
    rows = jax.lax.dynamic_slice_in_dim(table, rank[0] * q.shape[0], q.shape[0])[:, None]
    if cp is not None:  # tokens come together, heads go apart
        swap = partial(jax.lax.all_to_all, axis_name=cp, tiled=True)
        q, k, v = (swap(x, split_axis=1, concat_axis=0) for x in (q + rows, k + rows, v))
        here = q.shape[1] * rank[0]
        sinks = sinks if sinks is None else jax.lax.dynamic_slice_in_dim(sinks, here, q.shape[1])
    else:
        q, k = q + rows, k + rows
    at = jnp.arange(q.shape[0])
    sequence = (at[:, None] >= jnp.cumsum(lens)).sum(1)
    seen = (sequence[:, None] == sequence) & (at[:, None] >= at)
    scores = jnp.where(seen, jnp.einsum("thd,uhd->htu", q, k) * scale, mask_value)
    scores = scores if sinks is None else scores + sinks[:, None, None]
    o = jnp.einsum("htu,uhd->thd", jax.nn.softmax(scores), v)
    return o if cp is None else swap(o, split_axis=0, concat_axis=1)


def context_args(tokens: int, ranks: int, seqs: tuple[int, ...]) -> tuple[Any, ...]:
    x = numbers(tokens, 8, 3)
    return x, 2 * x, x + 1, np.arange(ranks, dtype=np.int32), np.array(seqs, np.int32), numbers(tokens, 3)


def context_typed(cp: str | None) -> Any:
    axes = {"cp": cp}
    return partial(typed_shard_map(mesh=CONTEXT, axes=axes, check_vma=False)(attend_context), scale=0.5, cp=cp)


def context_by_hand(cp: str | None, sinks: Any) -> Any:
    x = P(cp, "model", None)
    specs = (x, x, x, P(cp), P(None), P(None, None), None if sinks is None else P("model"))
    body = partial(attend_context, scale=0.5, cp=cp)
    return jax.shard_map(body, mesh=CONTEXT, in_specs=specs, out_specs=x, check_vma=False)


@pytest.mark.sample(3)
@pytest.mark.parametrize("sinks", [None, numbers(8)])
@pytest.mark.parametrize(("cp", "ranks"), [("context", 4), (None, 1)])
def test_attention_over_a_split_context_is_that_by_hand(cp: str | None, ranks: int, sinks: Any) -> None:
    args = (*context_args(TOKENS, ranks, (3, 5)), sinks)
    got = one_program(context_by_hand(cp, sinks), context_typed(cp), *args)
    plain = (*context_args(TOKENS, 1, (3, 5)), sinks)
    close(got, attend_context(*jax.tree.map(jnp.asarray, plain), scale=0.5, cp=None))
