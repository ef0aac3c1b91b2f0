import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)

# How activations and weights are sharded.
act_spec = P("dp", None)
col_spec, row_spec = P(None, "tp"), P("tp", None)

SIZES = dict(batch=8, d=16, f=32)


def forward(x, w1, w2):
    h = jax.nn.relu(x @ w1)
    return jax.lax.psum(h @ w2, "tp"), h


in_specs = (act_spec, col_spec, row_spec)
out_specs = (act_spec, P("dp", "tp"))
forward_sharded = jax.jit(jax.shard_map(forward, mesh=mesh, in_specs=in_specs, out_specs=out_specs))
y, h = forward_sharded(jnp.ones((8, 16)), jnp.ones((16, 32)), jnp.ones((32, 16)))
print(y.shape, h.shape)
