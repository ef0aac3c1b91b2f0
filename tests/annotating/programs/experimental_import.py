from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, PartitionSpec

mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))


@partial(shard_map, mesh=mesh, in_specs=(PartitionSpec("x", "y"), PartitionSpec("y")), out_specs=PartitionSpec("x"), check_rep=False)
def matvec(a, v):
    return jax.lax.psum(a @ v, "y")


scaled = shard_map(lambda a: 2 * a, mesh, (PartitionSpec("x", "y"),), PartitionSpec("x", "y"), check_rep=False)
a = jnp.arange(64.0).reshape(8, 8)
print(matvec(scaled(a), jnp.ones(8)))
