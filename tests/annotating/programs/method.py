import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P


class Layer:
    def __init__(self, mesh, width):
        self.mesh = mesh
        self.weight = jnp.ones((width, width))

    def _forward(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.tanh(jax.lax.psum(x @ weight, "tp"))

    def __call__(self, x: jax.Array) -> jax.Array:
        forward = jax.shard_map(
            self._forward,
            mesh=self.mesh,
            in_specs=(P(None, "tp"), P("tp", None)),  # x, weight
            out_specs=P(),
        )
        return forward(x, self.weight)


mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
layer = Layer(mesh, 16)
print(jax.jit(layer)(jnp.ones((8, 16))).shape)
