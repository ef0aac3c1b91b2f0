"""What the checks and the patterns cost while a program is traced, and lowered."""

from functools import cache

import programs

from ..benchmark import Benchmark, Result, benchmark, of_counts, of_times, over
from ..meshes import make_mesh
from ..timing import Effort
from ..tracing import calls_lowered, calls_traced, lowered, traced

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


@cache
def _by_patterns() -> programs.Pair:
    return programs.by_patterns(make_mesh(4, 2), LAYERS)


def _trace(pair: programs.Pair, effort: Effort) -> Result:
    return of_times(traced(pair.typed, pair.by_hand, pair.args, effort))


def _lower(pair: programs.Pair, effort: Effort) -> Result:
    return of_times(lowered(pair.typed, pair.by_hand, pair.args, effort))


def _calls_traced(pair: programs.Pair) -> Result:
    return of_counts(*calls_traced(pair.typed, pair.by_hand, pair.args))


def _calls_lowered(pair: programs.Pair) -> Result:
    return of_counts(*calls_lowered(pair.typed, pair.by_hand, pair.args))


@benchmark(GROUP, "noise: a trace and lowering against itself", over(1.03), is_noise=True)
def noise(effort: Effort) -> Result:
    """The quickstart's step by hand on both sides; what it is off 1 is the machine's doing."""
    pair = _quickstart()
    return of_times(lowered(pair.by_hand, pair.by_hand, pair.args, effort))


@benchmark(GROUP, f"forward pass of {LAYERS} layers, trace", over(1.1))
def forward_trace(effort: Effort) -> Result:
    """An unrolled transformer, one body on both sides: what the boundary's hints and the reading of the body add."""
    return _trace(_forward(), effort)


@benchmark(GROUP, f"forward pass of {LAYERS} layers, calls in a trace", over(1.1))
def forward_calls(effort: Effort) -> Result:
    """The calls that Python makes meanwhile: nearly the same in every run, though not each of the same time."""
    return _calls_traced(_forward())


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
    """The same, with its lowering: what is between a user and the compiler."""
    return _lower(_step(), effort)


@benchmark(GROUP, f"gradient step of {LAYERS} layers, calls in trace and lowering", over(1.03))
def step_calls(effort: Effort) -> Result:
    """The same, in calls."""
    return _calls_lowered(_step())


@benchmark(GROUP, f"gradient step of {LAYERS} layers by patterns, trace and lower", over(1.03))
def patterns_lower(effort: Effort) -> Result:
    """The step with its products and collectives written as patterns, against `jax.numpy.einsum` and `jax.lax`."""
    return _lower(_by_patterns(), effort)


@benchmark(GROUP, f"gradient step of {LAYERS} layers by patterns, calls in trace and lowering", over(1.02))
def patterns_calls(effort: Effort) -> Result:
    """The same, in calls: gradients linearise an `einsum` once per types of its operands."""
    return _calls_lowered(_by_patterns())


@benchmark(GROUP, f"forward pass of {LAYERS} layers by patterns, calls in a trace", over(0.92))
def patterns_forward_calls(effort: Effort) -> Result:
    """Its forward pass alone."""
    return _calls_traced(programs.forward_by_patterns(make_mesh(4, 2), LAYERS))


@benchmark(GROUP, "quickstart's step with its patterns, trace", over(1.1))
def quickstart_trace(effort: Effort) -> Result:
    """`examples/quickstart.py`, whose every function has hints and every collective a pattern, and the same by hand."""
    return _trace(_quickstart(), effort)


@benchmark(GROUP, "quickstart's step with its patterns, trace and lower", over(1.03))
def quickstart_lower(effort: Effort) -> Result:
    """The same, with its lowering."""
    return _lower(_quickstart(), effort)


@benchmark(GROUP, "quickstart's step with its patterns, calls in a trace", over(1.1))
def quickstart_trace_calls(effort: Effort) -> Result:
    """Its trace in calls."""
    return _calls_traced(_quickstart())


@benchmark(GROUP, "quickstart's step with its patterns, calls in trace and lowering", over(1.03))
def quickstart_lower_calls(effort: Effort) -> Result:
    """Both, in calls."""
    return _calls_lowered(_quickstart())


@benchmark(GROUP, "small gradient around a region, trace", over(1.1))
def gradient_trace(effort: Effort) -> Result:
    """`jax.grad` of a region: the body is differentiated as it is traced, and read as that left it."""
    return _trace(programs.PAIRS["gradient"](make_mesh(4, 2)), effort)


ROWS: tuple[Benchmark, ...] = (
    noise,
    forward_trace,
    forward_calls,
    forward_lower,
    step_trace,
    step_lower,
    step_calls,
    patterns_lower,
    patterns_calls,
    patterns_forward_calls,
    quickstart_trace,
    quickstart_trace_calls,
    quickstart_lower,
    quickstart_lower_calls,
    gradient_trace,
)
