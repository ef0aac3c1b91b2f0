"""Heat and wind on a plate: a stencil with halos from four neighbours, over a mesh in two directions."""

import jax
import jax.numpy as jnp

from typedshmap import Array, Float32, Int32, size, typed, typed_shard_map

STEPS, EDGE = 3, 1.0
Plate = Float32[Array, "[height/y] [width/x]"]


def shifted(edge: Array, axis: str, by: int) -> Array:
    """The neighbour's edge, and a fixed temperature where the plate ends."""
    count, mine = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    arrived = jax.lax.ppermute(edge, axis, [(i, (i + by) % count) for i in range(count)])
    is_end = mine == (0 if by == 1 else count - 1)
    return jnp.where(is_end, EDGE, arrived)


def with_halo(t: Array, axis: str, dim: int) -> Array:
    first, last = jax.lax.slice_in_dim(t, 0, 1, axis=dim), jax.lax.slice_in_dim(t, -1, None, axis=dim)
    before = shifted(last, axis, 1)
    after = shifted(first, axis, -1)
    return jnp.concatenate([before, t, after], dim)


@typed
def warmed(t: Plate, row: Int32[Array, ""]) -> Plate:
    """Heated along one row of the global plate."""
    first_row = jax.lax.axis_index("y") * t.shape[0]
    rows = first_row + jnp.arange(t.shape[0])
    return t + 0.1 * (rows == row)[:, None]


@typed
def moved(t: Plate) -> Plate:
    tall = with_halo(t, "y", 0)
    wide = with_halo(t, "x", 1)
    spread = tall[:-2] + tall[2:] + wide[:, :-2] + wide[:, 2:] - 4 * t
    wind = wide[:, :-2] - t
    return t + 0.1 * spread + wind / size("width")


@typed_shard_map
def heat(start: Plate, row: Int32[Array, ""]) -> tuple[Plate, Float32[Array, ""], Float32[Array, ""]]:
    t = jax.lax.fori_loop(0, STEPS, lambda _, t: warmed(moved(t), row), start)
    change = jnp.sqrt(jax.lax.psum(jnp.sum((t - start) ** 2), ("y", "x")))
    mean = jax.lax.pmean(t.mean(), ("y", "x"))
    return t - mean, change, jax.lax.pmax(t.max(), ("y", "x"))
