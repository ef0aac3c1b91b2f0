import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)

x = jnp.arange(32.0).reshape(8, 4)
total = jax.shard_map(lambda x: jax.lax.psum(x, "dp"), mesh=mesh, in_specs=P("dp"), out_specs=P())(x)
rank = jax.jit(jax.shard_map(lambda: jax.lax.axis_index("dp")[None], mesh=mesh, in_specs=(), out_specs=P("dp")))()
print(total.shape, rank)
