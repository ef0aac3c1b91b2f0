import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)

PARTITION = {
    "tokens": P("dp"),
    "kernel": P(None, "tp"),
    "bias": P("tp"),
    "logits": P("dp", "tp"),
}


def head(hidden, kernel, bias):
    return hidden @ kernel + bias


logits = jax.shard_map(
    head,
    mesh=mesh,
    in_specs=(PARTITION["tokens"], PARTITION["kernel"], PARTITION["bias"]),
    out_specs=PARTITION["logits"],
    check_vma=True,
)
hidden = jnp.ones((8, 16), jnp.bfloat16)
print(jax.jit(logits)(hidden, jnp.ones((16, 32), jnp.bfloat16), jnp.zeros(32, jnp.bfloat16)).dtype)
