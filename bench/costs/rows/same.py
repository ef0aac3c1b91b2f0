"""Is it the same program: its text, and what a closed-over value is."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import programs
from jax.sharding import PartitionSpec as P

from typedshmap import Array, Shaped, typed_shard_map

from ..benchmark import Benchmark, Result, counted, of_counts, over, under
from ..meshes import make_mesh
from ..timing import Effort, exactly

GROUP = "same"
ROWS_OF_X = Shaped[Array, "[b/dp] m"]
# What a function does with a value that it closes over, and its values.
CHANGES: tuple[tuple[Callable[[Any, Any], Any], tuple[Any, ...]], ...] = (
    (lambda x, v: x * v, (2.0, 3.0, -0.0)),
    (lambda x, v: x * v, (jnp.ones(4), jnp.arange(4.0))),
    (lambda x, v: jnp.bfloat16(x) * v, (jnp.ones(4, jnp.bfloat16), jnp.ones(4))),
    (lambda x, v: v(x), (jnp.sin, jnp.cos)),
    (lambda x, v: x + jax.random.uniform(v), (jax.random.key(0), jax.random.key(0, impl="rbg"))),
)


@counted(GROUP, "programs lowered to the same text", bad=under(1))
def same_text(effort: Effort) -> Result:
    """Programs written twice over one body, with hints and with specs, whose StableHLO is the same text."""
    mesh = make_mesh(4, 2)
    pairs = [make(mesh) for make in programs.PAIRS.values()]
    equal = sum(
        programs.lowered(pair.typed, pair.args).as_text() == programs.lowered(pair.by_hand, pair.args).as_text()
        for pair in pairs
    )
    return of_counts(equal, len(pairs))


@counted(GROUP, "calls without jit that saw an old value", "calls after a change", over(0))
def stale_calls(effort: Effort) -> Result:
    """Calls outside of `jit`, which we compile, that computed with a closed-over value of an earlier call: a number, an
    array, its dtype, a function, a generator of random numbers."""
    x, mesh, calls, wrong = programs.numbers(8, 4), make_mesh(4, 2), 0, 0
    for apply, values in CHANGES:
        closed_over = list(values[:1])
        body = partial(lambda x, apply, closed_over: apply(x, *closed_over), apply=apply, closed_over=closed_over)
        typed = typed_shard_map(body, mesh=mesh, in_types=ROWS_OF_X, out_types=ROWS_OF_X)
        for closed_over[0] in (*values, *values):
            by_hand = jax.shard_map(partial(apply, v=closed_over[0]), mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))
            found, expected = jax.block_until_ready((typed(x), jax.jit(by_hand)(x)))
            calls += 1
            wrong += found.dtype != expected.dtype or not np.allclose(found, expected)
    return Result(str(wrong), str(calls), exactly(wrong / calls))


ROWS: tuple[Benchmark, ...] = (same_text, stale_calls)
