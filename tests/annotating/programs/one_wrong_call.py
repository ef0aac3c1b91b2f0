import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def matmul(x, w):
    return x @ w


def summed(x, w):
    return jax.lax.psum(x @ w, "tp")


x, w = jnp.ones((4, 8)), jnp.ones((8, 6))
forgotten = jax.shard_map(
    matmul, mesh=mesh, in_specs=(P(None, "tp"), P("tp", None)), out_specs=P(None, None), check_vma=False
)
right = jax.shard_map(summed, mesh=mesh, in_specs=(P(None, "tp"), P("tp", None)), out_specs=P(None, None), check_vma=False)
print(jax.jit(forgotten)(x, w).shape, jax.jit(right)(x, w).shape)
