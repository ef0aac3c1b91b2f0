"""Each shard takes its rows of a shuffled table, and standardises them by the statistics of all."""

import jax

from typedshmap import Array, Float32, Key, size, typed_shard_map


@typed_shard_map
def loaded(table: Float32[Array, "rows model"], key: Key[Array, ""]) -> Float32[Array, "[rows/dp,tp] model"]:
    order = jax.random.permutation(key, size("rows"))
    count = size("rows") // jax.lax.axis_size(("dp", "tp"))
    first = jax.lax.axis_index(("dp", "tp")) * count
    mine = table[jax.lax.dynamic_slice_in_dim(order, first, count)]
    mean = jax.lax.pmean(mine.mean(0), ("dp", "tp"))
    return mine - mean
