import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def mlp(x, up, down):
    h = jax.nn.relu(x @ up)
    return jax.lax.psum(h @ down, "tp")


def loss(x, up, down):
    specs = (P("dp"), P(None, "tp"), P("tp"))
    y = jax.shard_map(mlp, mesh=mesh, in_specs=specs, out_specs=P("dp"), check_vma=False)(x, up, down)
    return jnp.mean(y**2)


jax.eval_shape(jax.grad(loss), jnp.ones((8, 16)), jnp.ones((16, 32)), jnp.ones((32, 16)))
