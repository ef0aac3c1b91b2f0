"""Weights that were saved whole, of shards by rows, and are restored as shards by columns."""

import jax

from typedshmap import Array, Float32, size, typed_shard_map


@typed_shard_map
def restored(w: Float32[Array, "[rows/dp,tp] model"]) -> Float32[Array, "rows [model/dp,tp]"]:
    saved = jax.lax.all_gather(w, ("dp", "tp"), tiled=True)
    count = size("model") // jax.lax.axis_size(("dp", "tp"))
    first = jax.lax.axis_index(("dp", "tp")) * count
    return jax.lax.dynamic_slice_in_dim(saved, first, count, axis=1)
