import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def norms(x, key):
    noise = jax.random.normal(key, x.shape)
    loss = jnp.sqrt((x @ x.T).sum())
    total = jax.lax.psum(loss, ("dp", "tp"))
    return x + noise, total, jax.lax.psum(total, "dp")


f = jax.shard_map(norms, mesh=mesh, in_specs=(P("dp", "tp"), P()), out_specs=(P("dp", "tp"), P(), P()), check_vma=False)
out, total, again = jax.jit(f)(jnp.ones((8, 4)), jax.random.key(1))
print(out.shape, total.shape)
