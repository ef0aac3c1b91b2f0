import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Block:
    """A feed-forward block."""

    up: jax.Array
    down: jax.Array
    scale: jax.Array | None = None

    @property
    def width(self):
        return self.up.shape[0]


def specs():
    return Block(up=P(None, "tp"), down=P("tp", None), scale=P())


def block(params: Block, x):
    x = x * params.scale
    return x + jax.lax.psum(jax.nn.relu(x @ params.up) @ params.down, "tp")


params = Block(jnp.ones((16, 32)), jnp.ones((32, 16)), jnp.ones(16))
apply = jax.jit(jax.shard_map(block, mesh=mesh, in_specs=(specs(), P("dp", None)), out_specs=P("dp", None)))
print(apply(params, jnp.ones((8, 16))).shape)
