"""What the checks and the patterns cost while a program is traced, and lowered."""

from collections.abc import Callable
from functools import cache, partial
from itertools import count
from typing import Any

import jax
import programs

from typedshmap import audit

from ..benchmark import Benchmark, Result, benchmark, counted, of_counts, of_times, over
from ..meshes import make_mesh
from ..timing import Effort, take_turns
from ..tracing import TRIES, calls, calls_lowered, calls_traced, lowered, trace, traced

GROUP = "tracing"


@cache
def _quickstart() -> programs.Pair:
    return programs.quickstart(make_mesh(4, 2))


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


@benchmark(GROUP, "quickstart's step with its patterns, trace", None)
def quickstart_trace(effort: Effort) -> Result:
    """`examples/quickstart.py`, whose every function has hints and every collective a pattern, and the same by hand."""
    return _trace(_quickstart(), effort)


@benchmark(GROUP, "quickstart's step with its patterns, trace and lower", None)
def quickstart_lower(effort: Effort) -> Result:
    """The same, with its lowering."""
    return _lower(_quickstart(), effort)


@counted(GROUP, "quickstart's step with its patterns, calls in a trace")
def quickstart_trace_calls(effort: Effort) -> Result:
    """Its trace in calls."""
    return _calls_traced(_quickstart())


@counted(GROUP, "quickstart's step with its patterns, calls in trace and lowering")
def quickstart_lower_calls(effort: Effort) -> Result:
    """Both, in calls."""
    return _calls_lowered(_quickstart())


@cache
def _whole() -> programs.Pair:
    return programs.whole_training(make_mesh(4, 2), layers=16)


@counted(GROUP, "step of Adam, 16 layers scanned and rematerialised, calls in trace and lowering", bad=over(1.05))
def whole_lower_calls(effort: Effort) -> Result:
    """FSDP x TP: loss, gradients, their norm and the update in one region, by hand and with hints at its boundary."""
    return _calls_lowered(_whole())


@benchmark(GROUP, "small gradient around a region, trace", over(1.1))
def gradient_trace(effort: Effort) -> Result:
    """`jax.grad` of a region: the body is differentiated as it is traced, and read as that left it."""
    return _trace(programs.PAIRS["gradient"](make_mesh(4, 2)), effort)


# What was traced before is traced anew in each of its values, as it is in each audit.
_anew, _values = jax.make_user_context(default_value=0), count(1)


@cache
def _step() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A trace of a step by hand, under audit and without."""
    step = programs.training(make_mesh(4, 2), layers=16)

    def traced_in(context: Callable[[], Any]) -> Any:
        with context():
            return trace(step.by_hand, step.args)

    return partial(traced_in, audit), partial(traced_in, lambda: _anew(next(_values)))


@benchmark(GROUP, "gradient step of 16 unrolled layers under audit, trace", None, "without")
def audited_trace(effort: Effort) -> Result:
    """A plain step, its `shard_map` read as it is traced, and the same that nobody reads."""
    return of_times(take_turns(*_step(), effort, tries=TRIES))


@counted(GROUP, "gradient step of 16 unrolled layers under audit, calls in a trace", "without")
def audited_trace_calls(effort: Effort) -> Result:
    """The same in calls."""
    return of_counts(*map(calls, _step()))


ROWS: tuple[Benchmark, ...] = (
    noise,
    quickstart_trace,
    quickstart_trace_calls,
    quickstart_lower,
    quickstart_lower_calls,
    whole_lower_calls,
    gradient_trace,
    audited_trace,
    audited_trace_calls,
)
