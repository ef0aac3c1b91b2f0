"""Memory: what a compiled step holds on a device, and what tracing takes of the host."""

import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from typedshmap import typed_shard_map

from ..benchmark import Benchmark, Result, bytes_text, counted, of_counts, over
from ..meshes import make_abstract
from ..timing import Effort
from ..tracing import trace
from . import boundary
from .trained import compiled, steps

GROUP = "memory"


def _peak_bytes(step: Any) -> int:
    memory = step.memory_analysis()
    arguments, results = memory.argument_size_in_bytes, memory.output_size_in_bytes
    return arguments + results + memory.temp_size_in_bytes - memory.alias_size_in_bytes


@counted(GROUP, "transformer's step, peak of a device", bad=over(1))
def peak(effort: Effort) -> Result:
    """Arguments, results and temporaries of the compiled program, as XLA counts them."""
    return of_counts(*map(_peak_bytes, compiled()), bytes_text)


def allocated(run: Callable[[], Any]) -> int:
    """The most memory that Python had allocated at once during a second run, beyond what it had before."""
    run()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@counted(GROUP, "call with 1,000 leaves, peak of the host", bad=over(2))
def call(effort: Effort) -> Result:
    """What `jax.eval_shape` of a body with 1,000 leaves allocates in Python, by tracemalloc."""
    mesh = make_abstract(*boundary.SMALL)
    sides = (typed_shard_map(boundary.norm, mesh=mesh), boundary.by_hand(mesh))
    # A function of its own each time: eval_shape caches by function.
    runs = (lambda f=f: jax.eval_shape(lambda weights: f(weights), boundary.weights()) for f in sides)
    return of_counts(*map(allocated, runs), bytes_text)


@counted(GROUP, "transformer's step, trace, peak of the host", bad=over(1.15))
def traced(effort: Effort) -> Result:
    """The same of a trace of the transformer's step."""
    pair = steps()
    return of_counts(*(allocated(partial(trace, step, pair.args)) for step in (pair.typed, pair.by_hand)), bytes_text)


ROWS: tuple[Benchmark, ...] = (peak, call, traced)
