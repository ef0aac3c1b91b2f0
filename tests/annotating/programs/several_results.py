from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


class Stats(NamedTuple):
    mean: jax.Array
    count: int | jax.Array


def summarize(x, weights):
    total = jax.lax.psum((x * weights[:, None]).sum(0), "dp")
    count = jax.lax.psum(weights.sum(), "dp")
    return Stats(total / count, count), {"max": jax.lax.pmax(x.max(), "dp")}


summarized = jax.jit(jax.shard_map(summarize, mesh=mesh, in_specs=(P("dp"), P("dp")), out_specs=(P(), {"max": P()})))
stats, extra = summarized(jnp.ones((8, 3)), jnp.ones(8))
print(stats.mean, extra)
