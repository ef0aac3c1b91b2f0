import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def get_mesh():
    return jax.make_mesh((2, 2, 2), ("data", "fsdp", "model"), axis_types=(AxisType.Auto,) * 3)


def all_gather_matmul(x, w):
    w = jax.lax.all_gather(w, "fsdp", axis=0, tiled=True)
    return x @ w


# Rows of x go over both data axes.
matmul = jax.jit(
    jax.shard_map(
        all_gather_matmul,
        mesh=get_mesh(),
        in_specs=(
            P(("data", "fsdp"), None),  # activations
            P("fsdp", "model"),  # weights are sharded over fsdp, too
        ),
        out_specs=P(("data", "fsdp"), "model"),
    )
)
x = jax.device_put(jnp.ones((8, 16)), NamedSharding(get_mesh(), P(("data", "fsdp"))))
print(matmul(x, jnp.ones((16, 4))).shape)
