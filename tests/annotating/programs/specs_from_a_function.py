from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def specs_for(axes):
    """One spec for each array."""
    return tuple(P(*entry) for entry in axes)


def gather_heads(x: jax.Array) -> jax.Array:
    b, s, h, d = x.shape
    return jax.lax.all_to_all(x, "tp", split_axis=1, concat_axis=2, tiled=True)


def swap(x):
    in_specs = specs_for([("dp", None, "tp")])
    (out_specs,) = specs_for([("dp", "tp")])
    return jax.shard_map(gather_heads, mesh=mesh, in_specs=in_specs, out_specs=out_specs)(x)


print(jax.jit(swap)(jnp.ones((4, 16, 8, 2))).shape)
