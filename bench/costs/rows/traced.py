"""What the checks and the patterns cost while a program is traced, and lowered."""

from functools import cache

import programs

from ..benchmark import Benchmark, Result, benchmark, of_times, over
from ..meshes import make_mesh
from ..timing import Effort
from ..tracing import lowered, traced

GROUP = "tracing"
LAYERS = 12


@cache
def _quickstart() -> programs.Pair:
    return programs.quickstart(make_mesh(4, 2))


@cache
def _forward() -> programs.Pair:
    return programs.inference(make_mesh(4, 2), LAYERS)


@cache
def _step() -> programs.Pair:
    return programs.training(make_mesh(4, 2), LAYERS)


def _trace(pair: programs.Pair, effort: Effort) -> Result:
    return of_times(traced(pair.typed, pair.by_hand, pair.args, effort))


def _lower(pair: programs.Pair, effort: Effort) -> Result:
    return of_times(lowered(pair.typed, pair.by_hand, pair.args, effort))


@benchmark(GROUP, "noise: a trace and lowering against itself", over(1.03), is_noise=True)
def noise(effort: Effort) -> Result:
    """The quickstart's step by hand on both sides; what it is off 1 is the machine's doing."""
    pair = _quickstart()
    return of_times(lowered(pair.by_hand, pair.by_hand, pair.args, effort))


@benchmark(GROUP, f"forward pass of {LAYERS} layers, trace", over(1.1))
def forward_trace(effort: Effort) -> Result:
    """An unrolled transformer, one body on both sides: what the boundary's hints and the reading of the body add."""
    return _trace(_forward(), effort)


@benchmark(GROUP, f"forward pass of {LAYERS} layers, trace and lower", over(1.1))
def forward_lower(effort: Effort) -> Result:
    """The same, with its lowering to StableHLO, which is JAX's alone."""
    return _lower(_forward(), effort)


@benchmark(GROUP, f"gradient step of {LAYERS} layers, trace", over(1.1))
def step_trace(effort: Effort) -> Result:
    """The transformer's forward pass, gradient and update in one region."""
    return _trace(_step(), effort)


@benchmark(GROUP, f"gradient step of {LAYERS} layers, trace and lower", over(1.03))
def step_lower(effort: Effort) -> Result:
    """The same, with its lowering: what stands between a user and the compiler."""
    return _lower(_step(), effort)


@benchmark(GROUP, "quickstart's step with its patterns, trace", over(1.1))
def quickstart_trace(effort: Effort) -> Result:
    """`examples/quickstart.py`, whose every function has hints and every collective a pattern, and the same by hand."""
    return _trace(_quickstart(), effort)


@benchmark(GROUP, "quickstart's step with its patterns, trace and lower", over(1.03))
def quickstart_lower(effort: Effort) -> Result:
    """The same, with its lowering."""
    return _lower(_quickstart(), effort)


@benchmark(GROUP, "small gradient around a region, trace", over(1.1))
def gradient_trace(effort: Effort) -> Result:
    """`jax.grad` of a region: the body is differentiated as it is traced, and read as that left it."""
    return _trace(programs.PAIRS["gradient"](make_mesh(4, 2)), effort)


ROWS: tuple[Benchmark, ...] = (
    noise,
    forward_trace,
    forward_lower,
    step_trace,
    step_lower,
    quickstart_trace,
    quickstart_lower,
    gradient_trace,
)
