"""The transformer of the examples, against the same step by hand: traced, compiled, run, compared."""

import time
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import programs
from collectives import collectives, sent

from ..benchmark import Benchmark, Result, benchmark, bytes_text, counted, of_counts, of_times, over
from ..meshes import make_mesh
from ..timing import WALL, Effort, Turns, exactly, seconds, take_turns
from ..tracing import calls_lowered, calls_traced, lowered, traced

GROUP = "transformer"
TOLERANCE = 1e-3  # a quarter of bfloat16's last place


def steps() -> programs.Pair:
    return programs.transformer(make_mesh(4, 2, names=("fsdp", "tp")))


@cache
def compiled() -> tuple[Any, Any]:
    """Our step compiled, and the one by hand."""
    pair = steps()
    return tuple(jax.jit(step).lower(*pair.args).compile() for step in (pair.typed, pair.by_hand))


@benchmark(GROUP, "transformer's step, trace", None)
def trace(effort: Effort) -> Result:
    """`examples/transformer.py`, FSDP x tensor x sequence parallel, written in hints and patterns, and by hand."""
    pair = steps()
    return of_times(traced(pair.typed, pair.by_hand, pair.args, effort))


@benchmark(GROUP, "transformer's step, trace and lower", None)
def lower(effort: Effort) -> Result:
    """The same, with its lowering to StableHLO."""
    pair = steps()
    return of_times(lowered(pair.typed, pair.by_hand, pair.args, effort))


@counted(GROUP, "transformer's step, calls in a trace")
def trace_calls(effort: Effort) -> Result:
    """The calls that Python makes while it is traced."""
    return of_counts(*calls_traced(steps().typed, steps().by_hand, steps().args))


@counted(GROUP, "transformer's step, calls in trace and lowering")
def lower_calls(effort: Effort) -> Result:
    """And until it is lowered."""
    return of_counts(*calls_lowered(steps().typed, steps().by_hand, steps().args))


@benchmark(GROUP, "transformer's step, run", None)
def step_time(effort: Effort) -> Result:
    """The compiled step on eight virtual CPU devices: XLA's time, of the same collectives."""
    ours, by_hand = (partial(step, *steps().args) for step in compiled())
    return of_times(take_turns(ours, by_hand, effort, WALL))


@benchmark(GROUP, "transformer's step, call without jit", over(1), is_slow=True)
def unjitted(effort: Effort) -> Result:
    """The step called as it is, once by hand: its scan is compiled there, and all around it is not."""
    pair = steps()
    ours = seconds(partial(pair.typed, *pair.args), WALL)
    start = time.perf_counter()
    jax.block_until_ready(pair.by_hand(*pair.args))
    return of_times(Turns((ours,), (time.perf_counter() - start,)))


@counted(GROUP, "transformer's step, collectives in StableHLO", bad=over(1))
def lowered_collectives(effort: Effort) -> Result:
    """Collectives of the lowered program; those of a scan's body count once."""
    pair = steps()
    return of_counts(*(sum(programs.sent(step, pair.args).values()) for step in (pair.typed, pair.by_hand)))


@counted(GROUP, "transformer's step, collectives compiled", bad=over(1))
def compiled_collectives(effort: Effort) -> Result:
    """What XLA makes of them."""
    return of_counts(*(len(collectives(step.as_text())) for step in compiled()))


@counted(GROUP, "transformer's step, bytes that a device sends", bad=over(1))
def compiled_bytes(effort: Effort) -> Result:
    """Of the compiled program's collectives, by ring formulas, for the busiest device."""
    return of_counts(*(float(sent(step.as_text())) for step in compiled()), bytes_text)


@counted(GROUP, "transformer's step, difference of loss and gradient norm", bad=over(TOLERANCE))
def difference(effort: Effort) -> Result:
    """The larger of both, relative to the step's by hand: the same numbers, up to the order of sums in bfloat16."""
    ours, other = (jax.device_get(jax.block_until_ready(step(*steps().args))[1]) for step in compiled())
    leaves = zip(jax.tree_util.tree_leaves(ours), jax.tree_util.tree_leaves(other), strict=True)
    largest = max(float(np.abs(a - b) / np.abs(b)) for a, b in leaves)
    return Result(f"{ours.loss:.6f}", f"{other.loss:.6f}", exactly(largest))


ROWS: tuple[Benchmark, ...] = (
    trace,
    trace_calls,
    lower,
    lower_calls,
    step_time,
    unjitted,
    lowered_collectives,
    compiled_collectives,
    compiled_bytes,
    difference,
)
