"""Is it the same program: its text, and what a closed-over value is."""

import jax
import numpy as np
import programs

from typedshmap import Array, Float, typed_shard_map

from ..benchmark import Benchmark, Result, counted, of_counts, over, under
from ..meshes import make_mesh
from ..timing import Effort, exactly

GROUP = "same"
CALLS = 5


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
    """Calls outside of `jit`, which we compile, that computed with a closed-over value of an earlier call."""
    factor = 0.0

    @typed_shard_map(mesh=make_mesh(4, 2))
    def scaled(x: Float[Array, "[b/dp] m"]) -> Float[Array, "[b/dp] m"]:
        return x * factor

    x, wrong = programs.numbers(8, 4), 0
    for call in range(CALLS):
        factor = float(call)
        wrong += not np.array_equal(jax.block_until_ready(scaled(x)), x * np.float32(factor))
    return Result(str(wrong), str(CALLS), exactly(wrong / CALLS))


ROWS: tuple[Benchmark, ...] = (same_text, stale_calls)
