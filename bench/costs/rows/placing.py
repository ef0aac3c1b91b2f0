"""Placing a tree of 1,000 arrays as its hints say, against JAX's own calls for a whole tree; by calls, and by time."""

from functools import cache
from typing import Any

import jax
import numpy as np
import unrolled

from typedshmap import from_process_local, shard, shardings

from ..benchmark import Benchmark, Result, benchmark, counted, of_counts, of_times
from ..meshes import make_mesh
from ..timing import WALL, Effort, take_turns
from ..tracing import calls

GROUP = "placing"
LAYERS = 125  # 8 leaves each, and 3 beside them
DEVICE_PUT = "one jax.device_put"
FROM_LOCAL = "one jax.make_array_from_process_local_data"


@cache
def _weights() -> tuple[Any, Any, Any]:
    """Small weights of NumPy, the same where their hints place them, and their shardings."""
    shapes = unrolled.shapes(LAYERS, m=8, heads=2, ff=8)
    weights = jax.tree.map(lambda shape: np.ones(shape.shape, shape.dtype), shapes)
    where = shardings(unrolled.Weights, make_mesh(4, 2), like=weights)
    return weights, jax.device_put(weights, where), where


def _shard(weights: Any) -> Any:
    return shard(weights, unrolled.Weights, make_mesh(4, 2))


def _from_local(weights: Any) -> Any:
    return from_process_local(weights, unrolled.Weights, make_mesh(4, 2))


@benchmark(GROUP, "shard of 1,000 leaves", None, DEVICE_PUT)
def sharded(effort: Effort) -> Result:
    """A tree of NumPy arrays: what the checks add to moving them."""
    weights, _, where = _weights()
    return of_times(take_turns(lambda: _shard(weights), lambda: jax.device_put(weights, where), effort, WALL))


@counted(GROUP, "shard of 1,000 leaves, calls", DEVICE_PUT)
def sharded_in_calls(effort: Effort) -> Result:
    """The calls that Python makes for the same."""
    weights, _, where = _weights()
    return of_counts(calls(lambda: _shard(weights)), calls(lambda: jax.device_put(weights, where)))


@counted(GROUP, "shard of 1,000 leaves placed already, calls", DEVICE_PUT)
def placed_in_calls(effort: Effort) -> Result:
    """A tree that is where its hints say: each leaf is looked at, and none is moved."""
    _, placed, where = _weights()
    return of_counts(calls(lambda: _shard(placed)), calls(lambda: jax.device_put(placed, where)))


@counted(GROUP, "from_process_local of 1,000 leaves, calls", FROM_LOCAL)
def local_in_calls(effort: Effort) -> Result:
    """One process, whose data is the global value."""
    weights, _, where = _weights()
    made = calls(lambda: jax.make_array_from_process_local_data(where, weights))
    return of_counts(calls(lambda: _from_local(weights)), made)


ROWS: tuple[Benchmark, ...] = (sharded, sharded_in_calls, placed_in_calls, local_in_calls)
