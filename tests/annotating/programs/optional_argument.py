import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def dense(x, w, b=None):
    y = jax.lax.psum(x @ w, "tp")
    return y if b is None else y + b


def apply(x, w, b=None):
    specs = (P("dp", "tp"), P("tp"), None if b is None else P())
    return jax.shard_map(dense, mesh=mesh, in_specs=specs, out_specs=P("dp"))(x, w, b)


x, w = jnp.ones((8, 16)), jnp.ones((16, 4))
print(jax.jit(apply)(x, w).shape, jax.jit(apply)(x, w, jnp.ones(4)).shape)
