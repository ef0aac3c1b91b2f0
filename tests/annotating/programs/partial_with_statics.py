import functools

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def attend(q, k, v, *, causal, scale):
    # q, k, v: [batch, heads, seqlen, head_dim]
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * scale
    if causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(mask, scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)


def attention(q, k, v, causal=True):
    spec = P("dp", "tp", None, None)
    body = functools.partial(attend, causal=causal, scale=q.shape[-1] ** -0.5)
    return jax.shard_map(body, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec, check_vma=False)(q, k, v)


q = jax.random.normal(jax.random.key(0), (4, 2, 16, 8))
print(jax.jit(attention)(q, q, q).shape)
