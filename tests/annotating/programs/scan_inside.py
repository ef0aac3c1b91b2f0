import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


@jax.jit
def rollout(x, n_steps=4):
    def shift(x):
        size = jax.lax.axis_size("dp")
        perm = [(i, (i + 1) % size) for i in range(size)]

        def body(carry, _):
            carry = jax.lax.ppermute(carry, "dp", perm)
            return carry, carry.sum()

        final, sums = jax.lax.scan(body, x, None, length=4)
        return final, jax.lax.psum(sums, "dp")

    return jax.shard_map(shift, mesh=mesh, in_specs=(P("dp"),), out_specs=(P("dp"), P()))(x)


print([y.shape for y in rollout(jnp.arange(16.0).reshape(8, 2))])
