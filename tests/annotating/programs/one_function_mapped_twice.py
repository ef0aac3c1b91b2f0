from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)

smap = partial(jax.shard_map, mesh=mesh)


def reduce_rows(x, axis):
    return jax.lax.psum(x.sum(0), axis)


rows = smap(lambda x: reduce_rows(x, "dp"), in_specs=P("dp"), out_specs=P())
cols = smap(lambda x: reduce_rows(x, "tp"), in_specs=P("tp"), out_specs=P())


def double(x):
    return 2 * x


by_rows = jax.shard_map(double, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))
by_cols = jax.shard_map(double, mesh=mesh, in_specs=P(None, "tp"), out_specs=P(None, "tp"))
x = jnp.ones((8, 4))
print(rows(x), cols(x), by_rows(by_cols(x)).shape)
