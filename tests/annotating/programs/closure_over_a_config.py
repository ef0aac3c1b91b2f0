import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


@dataclasses.dataclass(frozen=True)
class Config:
    vocab: int = 64
    d_model: int = 16
    tp_axis: str = "tp"


def embed(config, table, tokens):
    """Look up tokens in a table whose rows are sharded."""

    def body(table, tokens):
        start = jax.lax.axis_index(config.tp_axis) * table.shape[0]
        local = tokens - start
        valid = (local >= 0) & (local < table.shape[0])
        rows = jnp.where(valid[..., None], table[jnp.clip(local, 0, table.shape[0] - 1)], 0)
        return jax.lax.psum(rows, config.tp_axis)

    mapped = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(P(config.tp_axis, None), P("dp", None)),
        out_specs=P("dp", None, None),
    )
    return mapped(table, tokens)


config = Config()
tokens = jnp.zeros((8, 10), jnp.int32)
table = jnp.ones((config.vocab, config.d_model))
print(jax.jit(embed, static_argnums=0)(config, table, tokens).shape)
