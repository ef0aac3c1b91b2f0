import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def dropout(key, x, step, rate):
    key = jax.random.fold_in(key, step)
    key = jax.random.fold_in(key, jax.lax.axis_index("dp"))
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x, 0), keep.sum(keepdims=True).reshape(1)


specs = (P(), P("dp"), P(), P())
run = jax.jit(jax.shard_map(dropout, mesh=mesh, in_specs=specs, out_specs=(P("dp"), P("dp"))))
print([y.shape for y in run(jax.random.key(0), jnp.ones((8, 4)), 3, 0.5)])
