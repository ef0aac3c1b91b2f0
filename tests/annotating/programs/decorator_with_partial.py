"""A tensor-parallel MLP."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=(P("dp", None), P(None, "tp"), P("tp", None)), out_specs=P("dp", None))
def mlp(x, w_up, w_down):
    """Two matmuls, one sum."""
    hidden = jax.nn.gelu(x @ w_up)
    return jax.lax.psum(hidden @ w_down, "tp")  # over the hidden units


batch, model, ff = 16, 32, 64
x = jnp.ones((batch, model))
print(mlp(x, jnp.ones((model, ff)), jnp.ones((ff, model))).shape)
